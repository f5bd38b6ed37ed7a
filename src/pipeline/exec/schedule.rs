//! Runs tasks in dependency order, and in parallel within limits on memory and on the number of tasks.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::pipeline::env::coordination::{JobStatus, catch_panic, lock};
use crate::pipeline::stage::Order;

pub(super) struct ScheduledTask<'a> {
    /// Indices of the tasks that must be finished before this one starts.
    pub(super) dependencies: Vec<usize>,
    /// Index of the task's model in the `models` of [`run`].
    pub(super) model: usize,
    /// Memory that the task needs in addition to its model, in bytes.
    pub(super) bytes: u64,
    /// Prefix of the task's lease names.
    pub(super) lease_name: String,
    /// Order of the task's group. A task with order `First` has a single lease, so that it cannot be divided among
    /// processes.
    pub(super) order: Order,
    pub(super) run: Box<dyn Fn() -> Result<JobStatus> + Send + Sync + 'a>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Maximum number of tasks that run at the same time.
    pub(super) tasks: usize,
    /// Memory limit in bytes. A task that needs more memory than this runs alone.
    pub(super) memory: u64,
}

/// Callbacks of the scheduler.
pub(super) trait TaskHooks: Sync {
    /// Unloads a model that no running task uses.
    fn unload_model(&self, model: usize);

    /// Chooses the model for the next task. `models` contains the models of the tasks that are ready to start.
    fn choose_model(&self, models: &[usize]) -> usize {
        models.first().copied().unwrap_or_default()
    }

    /// Returns whether other workers hold the leases on all remaining work of a task.
    fn is_leased_elsewhere(&self, _: &ScheduledTask<'_>) -> bool {
        false
    }

    /// Waits while other processes are working on all remaining tasks.
    ///
    /// # Errors
    /// Fails if the scheduler should stop waiting.
    fn idle(&self) -> Result<()>;
}

#[derive(Default)]
struct TaskQueue {
    waiting: BTreeSet<usize>,
    running: BTreeSet<usize>,
    /// Waiting tasks whose remaining work was leased to other processes when they were last attempted.
    busy: BTreeSet<usize>,
    /// Model of the task that was started last.
    chosen: Option<usize>,
    /// Models that may be in memory.
    loaded: BTreeSet<usize>,
    /// Whether a thread is calling [`TaskHooks::idle`].
    is_idling: bool,
    error: Option<Error>,
}

/// Runs all tasks. `models` contains the size of each model in bytes.
///
/// # Errors
/// Returns the first error from a task. Running tasks are allowed to finish, and no further tasks are started.
pub(super) fn run(tasks: &[ScheduledTask<'_>], models: &[u64], limits: Limits, hooks: &dyn TaskHooks) -> Result<()> {
    let state = Mutex::new(TaskQueue { waiting: (0..tasks.len()).collect(), ..TaskQueue::default() });
    let changed = Condvar::new();
    let work = || {
        let mut queue = lock(&state);
        loop {
            if queue.error.is_some() || queue.waiting.is_empty() {
                return;
            }
            let Some(index) = next_task(tasks, models, limits, &mut queue, hooks) else {
                if queue.busy.is_empty() || queue.is_idling {
                    queue = changed.wait(queue).unwrap_or_else(std::sync::PoisonError::into_inner);
                    continue;
                }
                queue.is_idling = true;
                drop(queue);
                let idle = hooks.idle();
                queue = lock(&state);
                (queue.is_idling, queue.busy) = (false, BTreeSet::new());
                if let Err(error) = idle {
                    queue.error.get_or_insert(error);
                }
                changed.notify_all();
                continue;
            };
            let model = tasks[index].model;
            queue.waiting.remove(&index);
            queue.running.insert(index);
            queue.loaded.insert(model);
            drop(queue);
            // Catch panics, because the other threads would wait forever for a task that never finishes.
            let result = catch_panic(&tasks[index].run);
            queue = lock(&state);
            queue.running.remove(&index);
            if let Ok(JobStatus::Contended) = result {
                queue.waiting.insert(index);
                queue.busy.insert(index);
            }
            if !queue.waiting.iter().chain(&queue.running).any(|&other| tasks[other].model == model) {
                queue.loaded.remove(&model);
                hooks.unload_model(model);
            }
            if let Err(error) = result {
                queue.error.get_or_insert(error);
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

/// Returns the next task to run, or `None` if no task can start. Prefers tasks with the same model as the task that was
/// started last. Unloads models without running tasks if the chosen task needs their memory.
fn next_task(
    tasks: &[ScheduledTask<'_>],
    models: &[u64],
    limits: Limits,
    queue: &mut TaskQueue,
    hooks: &dyn TaskHooks,
) -> Option<usize> {
    let needed_bytes = |index: usize, idle_models: &BTreeSet<usize>| {
        let running_tasks = || queue.running.iter().copied().chain([index]).map(|index| &tasks[index]);
        let loaded: BTreeSet<usize> =
            running_tasks().map(|task| task.model).chain(idle_models.iter().copied()).collect();
        running_tasks().map(|task| task.bytes).chain(loaded.into_iter().map(|model| models[model])).sum::<u64>()
    };
    let no_models = BTreeSet::new();
    let ready: Vec<usize> = queue.waiting.difference(&queue.busy).copied().collect();
    let ready: Vec<usize> = ready
        .into_iter()
        .filter(|&index| {
            (queue.running.is_empty() || needed_bytes(index, &no_models) <= limits.memory)
                && !tasks[index]
                    .dependencies
                    .iter()
                    .any(|other| queue.waiting.contains(other) || queue.running.contains(other))
        })
        .collect();
    let (leased, ready): (Vec<usize>, Vec<usize>) =
        ready.into_iter().partition(|&index| hooks.is_leased_elsewhere(&tasks[index]));
    queue.busy.extend(leased);
    let next_for_model = |model: usize| ready.iter().copied().find(|&index| tasks[index].model == model);
    let index = match queue.chosen.and_then(next_for_model) {
        Some(index) => index,
        None => {
            let mut ready_models: Vec<usize> = ready.iter().map(|&index| tasks[index].model).collect();
            ready_models.dedup();
            if ready_models.is_empty() {
                return None;
            }
            let model = hooks.choose_model(&ready_models);
            next_for_model(model).or(ready.first().copied())?
        }
    };
    let idle_models: BTreeSet<usize> = queue
        .loaded
        .iter()
        .filter(|model| !queue.running.iter().any(|&task| tasks[task].model == **model))
        .copied()
        .collect();
    if needed_bytes(index, &idle_models) > limits.memory {
        for &model in idle_models.iter().filter(|&&model| model != tasks[index].model) {
            hooks.unload_model(model);
        }
        queue.loaded.retain(|model| !idle_models.contains(model));
    }
    queue.chosen = Some(tasks[index].model);
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    fn task<'a>(after: &[usize], model: usize, run: impl Fn() -> Result<()> + Send + Sync + 'a) -> ScheduledTask<'a> {
        contended_task(after, model, move || run().map(|()| JobStatus::Done))
    }

    fn contended_task<'a>(
        after: &[usize],
        model: usize,
        run: impl Fn() -> Result<JobStatus> + Send + Sync + 'a,
    ) -> ScheduledTask<'a> {
        ScheduledTask {
            dependencies: after.to_vec(),
            model,
            bytes: 10,
            lease_name: String::new(),
            order: Order::Then,
            run: Box::new(run),
        }
    }

    #[derive(Default)]
    struct RecordingHooks {
        unloaded: Mutex<Vec<usize>>,
        idled: AtomicUsize,
    }

    impl TaskHooks for RecordingHooks {
        fn unload_model(&self, model: usize) {
            self.unloaded.lock().unwrap().push(model);
        }

        fn choose_model(&self, models: &[usize]) -> usize {
            models[models.len() - 1]
        }

        fn idle(&self) -> Result<()> {
            self.idled.fetch_add(1, SeqCst);
            Ok(())
        }
    }

    #[test]
    fn contended_job_is_retried_after_all_ready_jobs() {
        let order = Mutex::new(Vec::new());
        let hooks = RecordingHooks::default();
        let attempts = AtomicUsize::new(0);
        let note = |name: &'static str| {
            let order = &order;
            move || {
                order.lock().unwrap().push(name);
                Ok(())
            }
        };
        let tasks = [
            contended_task(&[], 1, || {
                let attempts = attempts.fetch_add(1, SeqCst);
                order.lock().unwrap().push("attempt");
                Ok(if attempts < 2 { JobStatus::Contended } else { JobStatus::Done })
            }),
            task(&[], 1, note("same model")),
            task(&[], 0, note("other model")),
            task(&[0], 1, note("after it")),
        ];
        run(&tasks, &[60, 60], Limits { tasks: 1, memory: 100 }, &hooks).unwrap();
        let order = order.lock().unwrap().clone();
        assert_eq!(order, ["other model", "attempt", "same model", "attempt", "attempt", "after it"]);
        assert_eq!(hooks.idled.load(SeqCst), 2, "idles only if no other job is ready");
    }

    #[test]
    fn model_of_contended_job_is_unloaded_to_load_another() {
        let hooks = RecordingHooks::default();
        let attempts = AtomicUsize::new(0);
        let tasks = [
            task(&[], 0, || Ok(())),
            contended_task(&[], 1, || {
                Ok(if attempts.fetch_add(1, SeqCst) == 0 { JobStatus::Contended } else { JobStatus::Done })
            }),
        ];
        run(&tasks, &[60, 60], Limits { tasks: 1, memory: 100 }, &hooks).unwrap();
        assert_eq!(*hooks.unloaded.lock().unwrap(), [1, 0, 1]);
    }

    #[test]
    fn task_starts_after_its_dependencies() {
        let order = Mutex::new(Vec::new());
        let note = |name: &'static str| {
            let order = &order;
            move || {
                order.lock().unwrap().push(name);
                Ok(())
            }
        };
        let tasks = [task(&[2], 0, note("last")), task(&[], 0, note("first")), task(&[1], 0, note("second"))];
        run(&tasks, &[0], Limits { tasks: 3, memory: 1000 }, &RecordingHooks::default()).unwrap();
        assert_eq!(*order.lock().unwrap(), ["first", "second", "last"]);
    }

    #[test]
    fn independent_tasks_run_concurrently() {
        let barrier = Barrier::new(2);
        let meet = || {
            barrier.wait();
            Ok(())
        };
        run(
            &[task(&[], 0, meet), task(&[], 0, meet)],
            &[0],
            Limits { tasks: 2, memory: 1000 },
            &RecordingHooks::default(),
        )
        .unwrap();
    }

    #[test]
    fn memory_limits_the_number_of_loaded_models() {
        for (memory, max_loaded) in [(100, 1), (220, 2)] {
            let now = AtomicUsize::new(0);
            let peak = AtomicUsize::new(0);
            let busy = || {
                peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_millis(100));
                now.fetch_sub(1, SeqCst);
                Ok(())
            };
            let hooks = RecordingHooks::default();
            let tasks = [task(&[], 0, busy), task(&[], 1, busy)];
            run(&tasks, &[100, 100], Limits { tasks: 4, memory }, &hooks).unwrap();
            assert_eq!(peak.load(SeqCst), max_loaded);
            let mut unloaded = hooks.unloaded.into_inner().unwrap();
            unloaded.sort_unstable();
            assert_eq!(unloaded, [0, 1], "each model once, after its last task");
        }
    }

    #[test]
    fn panicking_task_is_reported_without_deadlock() {
        let tasks = [
            task(&[], 0, || -> Result<()> { panic!("no such layer") }),
            task(&[0], 0, || Ok(())),
            task(&[0], 0, || Ok(())),
        ];
        let error = run(&tasks, &[0], Limits { tasks: 3, memory: 1000 }, &RecordingHooks::default()).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains("no such layer"), "{error}");
    }

    #[test]
    fn no_task_starts_after_an_error() {
        let ran = AtomicUsize::new(0);
        let count = || {
            ran.fetch_add(1, SeqCst);
            Ok(())
        };
        let tasks = [task(&[], 0, || Err(Error::job("broken"))), task(&[], 0, count), task(&[0], 0, count)];
        let error = run(&tasks, &[0], Limits { tasks: 1, memory: 1000 }, &RecordingHooks::default()).unwrap_err();
        assert!(error.to_string().contains("broken"));
        assert_eq!(ran.load(SeqCst), 0);
    }
}
