//! A time in which tests play many processes: seconds go by only where all of them wait. Each is a thread that runs the
//! program's own code; one runs at a time, and where it sleeps the next one wakes, so that a play is the same each time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An event at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A process wakes, if it has not been woken since.
    Wake { process: usize, sleep: u64 },
    /// Something that is done every so often, or once.
    Act(u64),
}

struct Acting {
    act: Arc<Mutex<Box<dyn FnMut() + Send>>>,
    /// `None`: once.
    period: Option<Duration>,
}

#[derive(Default)]
struct Now {
    time: Duration,
    /// The order of what happens at one moment, and the numbers of what acts.
    number: u64,
    queue: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    acting: HashMap<u64, Acting>,
    /// How often each process slept.
    sleeps: Vec<u64>,
    /// Number of processes that have not ended.
    alive: usize,
}

/// The time of a play.
#[derive(Default)]
pub(crate) struct Time {
    now: Mutex<Now>,
    doors: Vec<Door>,
}

/// Where a process waits for its turn.
#[derive(Default)]
struct Door {
    open: Mutex<bool>,
    opened: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Door {
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

impl Now {
    fn at(&mut self, time: Duration, what: Happening) {
        self.number += 1;
        let number = self.number;
        self.queue.push(Reverse((time, number, what)));
    }
}

impl Time {
    /// Plays some processes, which are given their number, to their end; how long it took.
    pub(crate) fn play(processes: usize, run: impl Fn(&Arc<Self>, usize) + Sync) -> Duration {
        let doors = (0..processes).map(|_| Door::default()).collect();
        let now = Mutex::new(Now { sleeps: vec![0; processes], alive: processes, ..Now::default() });
        let time = Arc::new(Self { now, doors });
        std::thread::scope(|scope| {
            for process in 0..processes {
                lock(&time.now).at(Duration::ZERO, Happening::Wake { process, sleep: 0 });
                let time = &time;
                let run = &run;
                scope.spawn(move || {
                    time.doors[process].wait();
                    let ended = catch_unwind(AssertUnwindSafe(|| run(time, process)));
                    // The process has ended, so the next one continues.
                    lock(&time.now).alive -= 1;
                    time.pass_on(None);
                    ended.unwrap_or_else(|panic| resume_unwind(panic));
                });
            }
            time.pass_on(None);
        });
        time.now()
    }

    pub(crate) fn now(&self) -> Duration {
        lock(&self.now).time
    }

    /// Lets a process sleep.
    pub(crate) fn sleep(&self, process: usize, time: Duration) {
        let mut now = lock(&self.now);
        now.sleeps[process] += 1;
        let until = now.time + time;
        let sleep = now.sleeps[process];
        now.at(until, Happening::Wake { process, sleep });
        drop(now);
        self.pass_on(Some(process));
    }

    /// Wakes a process that sleeps.
    pub(crate) fn wake(&self, process: usize) {
        let mut now = lock(&self.now);
        let time = now.time;
        let sleep = now.sleeps[process];
        now.at(time, Happening::Wake { process, sleep });
    }

    /// Does something every so often, until what is given back is dropped.
    pub(crate) fn every(self: &Arc<Self>, period: Duration, act: Box<dyn FnMut() + Send>) -> Timer {
        self.acting(period, Some(period), act)
    }

    /// Does something once, after a while, unless what is given back was dropped.
    pub(crate) fn after(self: &Arc<Self>, while_: Duration, act: Box<dyn FnMut() + Send>) -> Timer {
        self.acting(while_, None, act)
    }

    fn acting(self: &Arc<Self>, first: Duration, period: Option<Duration>, act: Box<dyn FnMut() + Send>) -> Timer {
        let mut now = lock(&self.now);
        let due = now.time + first;
        let number = now.number + 1;
        now.at(due, Happening::Act(number));
        now.acting.insert(number, Acting { act: Arc::new(Mutex::new(act)), period });
        Timer { time: Arc::clone(self), number }
    }

    /// Advances to the next event until a process wakes: the process `waiting`, which continues, or another one, for which
    /// `waiting` blocks here.
    fn pass_on(&self, waiting: Option<usize>) {
        loop {
            let mut now = lock(&self.now);
            let Some(Reverse((due, _, what))) = now.queue.pop() else { return };
            if now.alive == 0 {
                return;
            }
            match what {
                Happening::Wake { process, sleep } if now.sleeps[process] == sleep => {
                    now.time = due;
                    // A second wake-up for the same sleep is ignored.
                    now.sleeps[process] += 1;
                    drop(now);
                    if waiting == Some(process) {
                        return;
                    }
                    self.doors[process].open();
                    if let Some(waiting) = waiting {
                        self.doors[waiting].wait();
                    }
                    return;
                }
                Happening::Wake { .. } => {}
                Happening::Act(number) => {
                    let Some(acting) = now.acting.get(&number) else { continue };
                    let act = Arc::clone(&acting.act);
                    let period = acting.period;
                    now.time = due;
                    match period {
                        Some(period) => now.at(due + period, what),
                        None => drop(now.acting.remove(&number)),
                    }
                    drop(now);
                    lock(&act)();
                }
            }
        }
    }
}

/// Something that is done every so often until this is dropped.
pub(crate) struct Timer {
    time: Arc<Time>,
    number: u64,
}

impl Drop for Timer {
    fn drop(&mut self) {
        lock(&self.time.now).acting.remove(&self.number);
    }
}
