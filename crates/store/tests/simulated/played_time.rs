//! Simulated time for tests with many processes. Each process is a thread that runs production code. Only one thread
//! runs at a time, and when it sleeps, the next one wakes. Time advances only while all threads wait, so runs are
//! deterministic.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Scheduled event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    /// Wakes a process, unless it has woken up in the meantime.
    Wake { process: usize, sleep: u64 },
    /// Runs a one-time or periodic action.
    Act(u64),
}

struct TimerAction {
    act: Arc<Mutex<Box<dyn FnMut() + Send>>>,
    /// Interval, or `None` for a one-time action.
    period: Option<Duration>,
}

#[derive(Default)]
struct ClockState {
    time: Duration,
    /// Counter that orders simultaneous events and identifies actions.
    number: u64,
    queue: BinaryHeap<Reverse<(Duration, u64, EventKind)>>,
    actions: HashMap<u64, TimerAction>,
    /// Counter for each process, incremented when a sleep starts and when it ends. Identifies the current sleep.
    sleeps: Vec<u64>,
    /// Number of processes that have not ended.
    alive: usize,
}

/// Simulated clock and scheduler.
#[derive(Default)]
pub(crate) struct Time {
    now: Mutex<ClockState>,
    wake_signals: Vec<WakeSignal>,
}

/// Signal that wakes a waiting process.
#[derive(Default)]
struct WakeSignal {
    open: Mutex<bool>,
    opened: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WakeSignal {
    fn open(&self) {
        *lock(&self.open) = true;
        self.opened.notify_one();
    }

    fn wait(&self) {
        let mut open = lock(&self.open);
        while !*open {
            open = self.opened.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
        *open = false;
    }
}

impl ClockState {
    fn push_event(&mut self, time: Duration, event: EventKind) {
        self.number += 1;
        let number = self.number;
        self.queue.push(Reverse((time, number, event)));
    }
}

impl Time {
    /// Runs simulated processes to completion and returns the simulated duration. `run` receives the index of its
    /// process.
    pub(crate) fn play(processes: usize, run: impl Fn(&Arc<Self>, usize) + Sync) -> Duration {
        let wake_signals = (0..processes).map(|_| WakeSignal::default()).collect();
        let now = Mutex::new(ClockState { sleeps: vec![0; processes], alive: processes, ..ClockState::default() });
        let time = Arc::new(Self { now, wake_signals });
        std::thread::scope(|scope| {
            for process in 0..processes {
                lock(&time.now).push_event(Duration::ZERO, EventKind::Wake { process, sleep: 0 });
                let time = &time;
                let run = &run;
                scope.spawn(move || {
                    time.wake_signals[process].wait();
                    let ended = catch_unwind(AssertUnwindSafe(|| run(time, process)));
                    // The process has ended, so the next one continues.
                    lock(&time.now).alive -= 1;
                    time.run_next_event(None);
                    ended.unwrap_or_else(|panic| resume_unwind(panic));
                });
            }
            time.run_next_event(None);
        });
        time.now()
    }

    pub(crate) fn now(&self) -> Duration {
        lock(&self.now).time
    }

    pub(crate) fn sleep(&self, process: usize, time: Duration) {
        let mut now = lock(&self.now);
        now.sleeps[process] += 1;
        let until = now.time + time;
        let sleep = now.sleeps[process];
        now.push_event(until, EventKind::Wake { process, sleep });
        drop(now);
        self.run_next_event(Some(process));
    }

    pub(crate) fn wake(&self, process: usize) {
        let mut now = lock(&self.now);
        let time = now.time;
        let sleep = now.sleeps[process];
        now.push_event(time, EventKind::Wake { process, sleep });
    }

    /// Runs `act` periodically until the returned timer is dropped.
    pub(crate) fn every(self: &Arc<Self>, period: Duration, act: Box<dyn FnMut() + Send>) -> Timer {
        self.schedule(period, Some(period), act)
    }

    /// Runs `act` once after a delay, unless the returned timer is dropped first.
    pub(crate) fn after(self: &Arc<Self>, delay: Duration, act: Box<dyn FnMut() + Send>) -> Timer {
        self.schedule(delay, None, act)
    }

    /// Schedules `act` after the delay `first`, and then every `period` if given.
    fn schedule(self: &Arc<Self>, first: Duration, period: Option<Duration>, act: Box<dyn FnMut() + Send>) -> Timer {
        let mut now = lock(&self.now);
        let due = now.time + first;
        let number = now.number + 1;
        now.push_event(due, EventKind::Act(number));
        now.actions.insert(number, TimerAction { act: Arc::new(Mutex::new(act)), period });
        Timer { time: Arc::clone(self), number }
    }

    /// Processes events until a process wakes. If that process is `waiting`, returns at once. Otherwise, blocks the
    /// thread of `waiting` until its own wake-up.
    fn run_next_event(&self, waiting: Option<usize>) {
        loop {
            let mut now = lock(&self.now);
            let Some(Reverse((due, _, event))) = now.queue.pop() else { return };
            if now.alive == 0 {
                return;
            }
            match event {
                EventKind::Wake { process, sleep } if now.sleeps[process] == sleep => {
                    now.time = due;
                    // A second wake-up for the same sleep is ignored.
                    now.sleeps[process] += 1;
                    drop(now);
                    if waiting == Some(process) {
                        return;
                    }
                    self.wake_signals[process].open();
                    if let Some(waiting) = waiting {
                        self.wake_signals[waiting].wait();
                    }
                    return;
                }
                EventKind::Wake { .. } => {}
                EventKind::Act(number) => {
                    let Some(action) = now.actions.get(&number) else { continue };
                    let act = Arc::clone(&action.act);
                    let period = action.period;
                    now.time = due;
                    match period {
                        Some(period) => now.push_event(due + period, event),
                        None => drop(now.actions.remove(&number)),
                    }
                    drop(now);
                    lock(&act)();
                }
            }
        }
    }
}

/// Guard that stops an action when dropped.
pub(crate) struct Timer {
    time: Arc<Time>,
    number: u64,
}

impl Drop for Timer {
    fn drop(&mut self) {
        lock(&self.time.now).actions.remove(&self.number);
    }
}
