//! Runs and workers, how far they are, and what the scheduler tells.

use schemars::JsonSchema;
use serde::Serialize;

use crate::cluster::{JobEnd, Queue, QueuedJob, Submission};
use crate::exec::Overview;
use ghostlab_store::Store;

/// How everything stands that works on a store.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StatusAnswer {
    /// The store's folder.
    pub(crate) store: String,
    #[serde(flatten)]
    pub(crate) overview: Overview,
    /// What was submitted to a scheduler with this store.
    pub(crate) submissions: Vec<SubmissionView>,
    /// Why the scheduler tells nothing; null where it does, or where nothing was submitted.
    pub(crate) scheduler_silent: Option<String>,
}

/// What was submitted, and what the scheduler shows of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SubmissionView {
    /// What `cancel` knows it by.
    pub(crate) id: String,
    /// The id of its plan.
    pub(crate) plan: String,
    /// The grid or artifact.
    pub(crate) name: String,
    /// What computes, with its float type.
    pub(crate) engine: String,
    /// The scheduler's jobs of it.
    pub(crate) jobs: Vec<SubmittedJob>,
    /// Those that are queued or run; null where the scheduler tells nothing.
    pub(crate) queued: Option<Vec<QueuedJob>>,
    /// Jobs that ended without their work, such as those that refused to begin; the oldest first.
    pub(crate) ends: Vec<JobEnd>,
}

/// A job that was handed to the scheduler.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SubmittedJob {
    /// `array` or `report`.
    pub(crate) what: String,
    /// The scheduler's number.
    pub(crate) number: String,
}

impl StatusAnswer {
    pub(crate) fn of(store: &Store) -> Self {
        let submitted: Vec<Submission> = Submission::all(store).into_iter().filter(|of| of.jobs(store).any()).collect();
        // Nobody is asked of whom nothing was wanted.
        let queue = (!submitted.is_empty()).then(|| Queue::ask("now-30days"));
        let (queue, scheduler_silent) = match queue {
            Some(Ok(queue)) => (Some(queue), None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, None),
        };
        let job = |(what, number): (String, String)| SubmittedJob { what, number };
        let view = |of: &Submission| SubmissionView {
            id: of.id.clone(),
            plan: of.plan.clone(),
            name: of.name.clone(),
            engine: of.engine.clone(),
            ends: JobEnd::all(&of.folder(store)),
            jobs: of.jobs(store).jobs.into_iter().map(job).collect(),
            queued: queue.as_ref().map(|queue| queue.of(&of.comment()).cloned().collect()),
        };
        let submissions = submitted.iter().map(view).collect();
        let store_name = store.root().display().to_string();
        Self { store: store_name, overview: Overview::of(store), submissions, scheduler_silent }
    }
}
