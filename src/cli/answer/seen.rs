//! Answers of read-only commands: comparisons of two results folders; runs, workers, their progress and the scheduler's
//! state; a cell's inputs; a diagnosis.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::cluster::{JobEnd, Queue, QueuedJob, Submission};
use crate::criterion;
use crate::deviation::PruneCase;
use crate::exec::Overview;
use crate::grid::Cell;
use crate::model::{Config, Cut, Program};
use crate::plan::{BackbonePlan, ObjectState, Plan, Reason, Reasons, StoreState, Variant};
use crate::recovery;
use crate::results::{Differences, StoredResults};
use ghostlab_store::{Key, Store};

/// Two results and their differences.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Comparison {
    pub(crate) first: Side,
    pub(crate) second: Side,
    #[serde(flatten)]
    pub(crate) differences: Differences,
}

/// One of two results.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Side {
    /// The artifact, or the grid.
    pub(crate) name: String,
    /// The profile; empty without one.
    pub(crate) profile: String,
    /// The folder as named.
    pub(crate) folder: String,
    /// Version and commit of the program that wrote it.
    pub(crate) program: String,
}

impl Side {
    pub(crate) fn of(stored: &StoredResults, folder: &Path) -> Self {
        Self {
            name: stored.name.clone(),
            profile: stored.profile.clone(),
            folder: folder.display().to_string(),
            program: stored.program.clone(),
        }
    }
}

/// How everything stands that works on a store.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StatusAnswer {
    /// The store's folder.
    pub(crate) store: String,
    #[serde(flatten)]
    pub(crate) overview: Overview,
    /// Submissions to a scheduler with this store.
    pub(crate) submissions: Vec<SubmissionView>,
    /// Records of runs and plans that are damaged and not shown, by their paths.
    pub(crate) damaged_records: Vec<String>,
    /// Why the scheduler tells nothing; null where it does, or where nothing was submitted.
    pub(crate) scheduler_silent: Option<String>,
}

/// A submission, with the scheduler's view of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SubmissionView {
    /// Id for `cancel`.
    pub(crate) id: String,
    /// The id of its plan.
    pub(crate) plan: String,
    /// The grid or artifact.
    pub(crate) name: String,
    /// The engine, with its float type.
    pub(crate) engine: String,
    /// The scheduler's jobs of it.
    pub(crate) jobs: Vec<SubmittedJob>,
    /// Queued or running jobs; null if the scheduler does not answer.
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
        let submitted: Vec<Submission> =
            Submission::all(store).into_iter().filter(|submission| submission.jobs(store).any()).collect();
        // A scheduler is asked only if something was submitted.
        let queue = (!submitted.is_empty()).then(Queue::ask);
        let (queue, scheduler_silent) = match queue {
            Some(Ok(queue)) => (Some(queue), None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, None),
        };
        let submissions = submitted
            .iter()
            .map(|submission| SubmissionView {
                id: submission.id.clone(),
                plan: submission.plan.clone(),
                name: submission.name.clone(),
                engine: submission.engine.clone(),
                ends: JobEnd::all(&submission.folder(store)),
                jobs: submission
                    .jobs(store)
                    .jobs
                    .into_iter()
                    .map(|(what, number)| SubmittedJob { what, number })
                    .collect(),
                queued: queue.as_ref().map(|queue| queue.of(&submission.comment()).cloned().collect()),
            })
            .collect();
        let store_name = store.root().display().to_string();
        let damaged = store.damaged_records();
        let damaged_records = damaged.iter().map(|record| record.path.display().to_string()).collect();
        Self { store: store_name, overview: Overview::of(store), submissions, damaged_records, scheduler_silent }
    }
}

/// Inputs of a cell.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Explanation {
    /// Its name.
    pub(crate) cell: String,
    pub(crate) backbone: ExplainedBackbone,
    /// Removed layers and sublayers, counted from 0; null if not yet known, and for the dense cell.
    pub(crate) removed_layers: Option<Cut>,
    /// Size without what is removed; null where `removed_layers` is.
    pub(crate) size: Option<RemainingSize>,
    /// What the official code of its methods does otherwise: deviations from its formulas that apply to the cell.
    pub(crate) deviations: Vec<String>,
    /// Objects that it is made from, in the order in which they are made.
    pub(crate) artifacts: Vec<ExplainedObject>,
}

/// Size of a backbone without what a cell removes. Operators at the cut are not counted.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RemainingSize {
    /// Parameters of the sublayers that stay, with embedding and head.
    pub(crate) parameters: u64,
    /// Parameters of the dense backbone.
    pub(crate) dense_parameters: u64,
    /// Bytes of keys and values per token, in float32.
    pub(crate) kv_cache_bytes: u64,
    /// Bytes for the dense backbone.
    pub(crate) dense_kv_cache_bytes: u64,
}

impl RemainingSize {
    fn of(config: &Config, removed: &Cut) -> Self {
        let program = Program::without(config.layers, removed);
        let dense = Program::dense(config.layers);
        Self {
            parameters: config.parameters(&program),
            dense_parameters: config.parameters(&dense),
            kv_cache_bytes: config.cache_bytes(&program),
            dense_kv_cache_bytes: config.cache_bytes(&dense),
        }
    }
}

/// The backbone of a cell.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExplainedBackbone {
    /// Name in the grid.
    pub(crate) name: String,
    /// Its folder.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub(crate) folder: PathBuf,
    /// SHA-256 of what of its config and weights is computed with, in hexadecimal digits.
    pub(crate) content: String,
}

/// Something that a cell is made from.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExplainedObject {
    /// Description: `selection`, `scores on c4@2048`.
    pub(crate) what: String,
    /// The SHA-256 of its key, in hexadecimal digits.
    pub(crate) key: String,
    /// How it was made; null where it is not stored.
    pub(crate) stored: Option<Creation>,
    /// Why it is not stored; null where it is.
    pub(crate) reason: Option<Reason>,
    /// Where it lies, or would.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    #[serde(rename = "place")]
    pub(crate) folder: PathBuf,
    /// Contents of its key: settings by name, hashes of inputs, and keys of other artifacts as `{kind, version, of}`.
    #[serde(rename = "of")]
    pub(crate) identity: Value,
}

/// How an artifact was made.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Creation {
    /// Its size, in bytes.
    pub(crate) bytes: u64,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    /// The version of the program.
    pub(crate) ghostlab: Option<String>,
    /// The commit that the program was built from.
    pub(crate) commit: Option<String>,
    /// Whether there were uncommitted changes.
    pub(crate) dirty: bool,
    /// The command line.
    pub(crate) command: Vec<String>,
}

impl Explanation {
    pub(crate) fn of(plan: &Plan<'_>, (backbone, variant): (&BackbonePlan, &Variant), store: &Store) -> Self {
        let state = StoreState::read(plan, store);
        let reasons = Reasons::new(store, plan);
        let mut artifacts = Vec::new();
        let mut add = |what: String, key: &Key| artifacts.push(explained(what, key, &state, &reasons, store));
        for (job, words, key) in backbone.parts(variant) {
            if let Some((tokens, key)) = (words.reads)(backbone, variant, job.index) {
                add(tokens, &key);
            }
            let on = (job.group.on)(backbone, job.index).map(|on| format!(" {on}"));
            add(format!("{}{}", words.what, on.unwrap_or_default()), key);
        }
        let selection = variant.selection.as_ref().and_then(|key| state.selection(key));
        let cell = &plan.grid.cells[variant.cell];
        let removed_layers = selection.map(|selection| selection.removed.clone());
        Self {
            cell: cell.to_string(),
            backbone: ExplainedBackbone {
                name: backbone.name.clone(),
                folder: backbone.folder.clone(),
                content: backbone.content.clone(),
            },
            deviations: deviations(
                cell,
                backbone.config.layers,
                removed_layers.as_ref().map(Cut::whole_layers).as_deref(),
            ),
            size: removed_layers.as_ref().map(|removed| RemainingSize::of(&backbone.config, removed)),
            removed_layers,
            artifacts,
        }
    }
}

/// Returns the deviations of the official code that apply to a cell.
fn deviations(cell: &Cell, layers: usize, removed: Option<&[usize]>) -> Vec<String> {
    let Cell { backbone, criterion: Some(rule), depth, recovery: Some(repair), calibration: Some(calibration), .. } =
        cell
    else {
        return Vec::new();
    };
    let cut = criterion::PruneSpec { backbone, layers, depth: depth.count, unit: depth.unit };
    let case = PruneCase {
        sequences: calibration.sequences,
        operator_sequences: calibration.operator_sequences,
        one_block: rule.rule.one_block(&cut),
        removed,
    };
    let known = criterion::deviations(&rule.name, &case).into_iter().chain(recovery::deviations(&repair.name, &case));
    known.map(str::to_owned).collect()
}

fn explained(what: String, key: &Key, state: &StoreState, reasons: &Reasons, store: &Store) -> ExplainedObject {
    let stored = match state.of(key) {
        ObjectState::Whole(artifact) => {
            let meta = artifact.meta();
            let by = |field: &str| meta.made[field].as_str().map(str::to_owned);
            let words = meta.made["command"].as_array().into_iter().flatten();
            Some(Creation {
                bytes: meta.bytes(),
                seconds: meta.seconds,
                ghostlab: by("ghostlab"),
                commit: by("commit"),
                dirty: meta.made["dirty"] == true,
                command: words.filter_map(Value::as_str).map(str::to_owned).collect(),
            })
        }
        _ => None,
    };
    let reason = if stored.is_some() { None } else { Some(reasons.of(key, state)) };
    let identity = key.readable()["of"].take();
    ExplainedObject { what, key: key.hash().to_owned(), stored, reason, folder: store.lies(key), identity }
}

/// State of the machine and of inputs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Diagnosis {
    /// Number of missing items.
    pub(crate) lacking: usize,
    /// One thing each.
    pub(crate) things: Vec<Thing>,
}

/// How one thing stands.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Thing {
    pub(crate) mark: Mark,
    /// Item checked.
    pub(crate) what: String,
    /// State as text.
    pub(crate) found: String,
    /// Hint; empty if nothing needs doing.
    pub(crate) todo: String,
}

/// Whether something is as it has to be.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mark {
    /// Present.
    Good,
    /// Usable, with a remark.
    Note,
    /// Missing.
    Lacks,
}
