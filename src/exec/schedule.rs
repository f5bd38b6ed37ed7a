//! Jobs in the order of what they wait for, several at a time within limits.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex};

use super::lock::lock;
use crate::error::{Error, Result};

/// A piece of work and what it needs.
pub(super) struct Task<'a> {
    /// The tasks that have to be done before.
    pub(super) after: Vec<usize>,
    /// Which model it runs.
    pub(super) model: usize,
    /// Memory beside the model, in bytes.
    pub(super) bytes: u64,
    pub(super) run: Box<dyn Fn() -> Result<()> + Send + Sync + 'a>,
}

/// How much may go on at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) tasks: usize,
    /// Bytes. A task that needs more runs alone.
    pub(super) memory: u64,
}

struct Queue {
    waiting: BTreeSet<usize>,
    running: BTreeSet<usize>,
    error: Option<Error>,
}

/// Runs all tasks; `models` are the models' sizes in bytes, and `forget` is told when no task needs one any more.
///
/// # Errors
/// The first error of a task: those that run go on to their end, no other begins.
pub(super) fn run(tasks: &[Task<'_>], models: &[u64], limits: Limits, forget: impl Fn(usize) + Sync) -> Result<()> {
    let state = Mutex::new(Queue { waiting: (0..tasks.len()).collect(), running: BTreeSet::new(), error: None });
    let changed = Condvar::new();
    let work = || {
        let mut now = lock(&state);
        loop {
            if now.error.is_some() || now.waiting.is_empty() {
                return;
            }
            let Some(index) = next(tasks, models, limits, &now) else {
                now = changed.wait(now).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            };
            now.waiting.remove(&index);
            now.running.insert(index);
            drop(now);
            // A worker that went down with its task would leave the others waiting for it for ever.
            let result = caught(&tasks[index].run);
            now = lock(&state);
            now.running.remove(&index);
            let model = tasks[index].model;
            if !now.waiting.iter().chain(&now.running).any(|&other| tasks[other].model == model) {
                forget(model);
            }
            if let Err(error) = result {
                now.error.get_or_insert(error);
            }
            changed.notify_all();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..limits.tasks.clamp(1, tasks.len().max(1)) {
            scope.spawn(work);
        }
    });
    state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).error.map_or(Ok(()), Err)
}

/// Runs a job; a panic in it is its failure.
pub(super) fn caught(job: impl Fn() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(ToString::to_string);
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::job("a job panicked, which is a fault of the program")
            .found(said.unwrap_or_else(|| "a panic without a message".to_string())))
    })
}

/// The first waiting task that may begin.
fn next(tasks: &[Task<'_>], models: &[u64], limits: Limits, now: &Queue) -> Option<usize> {
    let pending = |other: &usize| now.waiting.contains(other) || now.running.contains(other);
    now.waiting.iter().copied().find(|&index| {
        let fits = now.running.is_empty() || {
            let of_tasks = || now.running.iter().copied().chain([index]).map(|index| &tasks[index]);
            let loaded: BTreeSet<usize> = of_tasks().map(|task| task.model).collect();
            let bytes: u64 = of_tasks().map(|task| task.bytes).chain(loaded.into_iter().map(|m| models[m])).sum();
            bytes <= limits.memory
        };
        fits && !tasks[index].after.iter().any(pending)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    fn task<'a>(after: &[usize], model: usize, run: impl Fn() -> Result<()> + Send + Sync + 'a) -> Task<'a> {
        Task { after: after.to_vec(), model, bytes: 10, run: Box::new(run) }
    }

    #[test]
    fn a_task_begins_when_what_it_waits_for_is_done() {
        let order = Mutex::new(Vec::new());
        let note = |name: &'static str| {
            let order = &order;
            move || {
                order.lock().unwrap().push(name);
                Ok(())
            }
        };
        let tasks = [task(&[2], 0, note("last")), task(&[], 0, note("first")), task(&[1], 0, note("second"))];
        run(&tasks, &[0], Limits { tasks: 3, memory: 1000 }, |_| ()).unwrap();
        assert_eq!(*order.lock().unwrap(), ["first", "second", "last"]);
    }

    #[test]
    fn independent_tasks_meet_each_other() {
        // Would hang if they ran one after the other.
        let barrier = Barrier::new(2);
        let meet = || {
            barrier.wait();
            Ok(())
        };
        run(&[task(&[], 0, meet), task(&[], 0, meet)], &[0], Limits { tasks: 2, memory: 1000 }, |_| ()).unwrap();
    }

    #[test]
    fn memory_decides_how_many_models_are_there_at_a_time() {
        for (memory, most) in [(100, 1), (220, 2)] {
            let (now, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let busy = || {
                peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_millis(100));
                now.fetch_sub(1, SeqCst);
                Ok(())
            };
            let forgotten = Mutex::new(Vec::new());
            let tasks = [task(&[], 0, busy), task(&[], 1, busy)];
            let forget = |model| forgotten.lock().unwrap().push(model);
            run(&tasks, &[100, 100], Limits { tasks: 4, memory }, forget).unwrap();
            assert_eq!(peak.load(SeqCst), most);
            let mut forgotten = forgotten.into_inner().unwrap();
            forgotten.sort_unstable();
            assert_eq!(forgotten, [0, 1], "each model once, after its last task");
        }
    }

    #[test]
    fn a_task_that_panics_fails_and_nobody_waits_for_it_for_ever() {
        let panics = || -> Result<()> { panic!("no such layer") };
        let tasks = [task(&[], 0, panics), task(&[0], 0, || Ok(())), task(&[0], 0, || Ok(()))];
        let error = run(&tasks, &[0], Limits { tasks: 3, memory: 1000 }, |_| ()).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains("no such layer"), "{error}");
    }

    #[test]
    fn after_an_error_nothing_new_begins() {
        let ran = AtomicUsize::new(0);
        let count = || {
            ran.fetch_add(1, SeqCst);
            Ok(())
        };
        let tasks = [task(&[], 0, || Err(Error::job("broken"))), task(&[], 0, count), task(&[0], 0, count)];
        let error = run(&tasks, &[0], Limits { tasks: 1, memory: 1000 }, |_| ()).unwrap_err();
        assert!(error.to_string().contains("broken"));
        assert_eq!(ran.load(SeqCst), 0);
    }
}
