//! Output of read-only commands: `compare`, `status`, `explain` and `doctor`.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::cluster::{JobEnd, Queue, QueuedJob, Submission};
use crate::criterion;
use crate::deviation::PruneCase;
use crate::grid::Cell;
use crate::model::{Config, Cut, Program};
use crate::pipeline::exec::Overview;
use crate::pipeline::plan::{BackbonePlan, ObjectState, Plan, Reason, StoreView, StoredKeyIndex, Variant};
use crate::recovery;
use crate::results::{Differences, StoredResults};
use ghostlab_store::{Key, Store};

/// Output of `compare`: differences between two results directories.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CompareAnswer {
    pub(crate) first: ComparedRun,
    pub(crate) second: ComparedRun,
    #[serde(flatten)]
    pub(crate) differences: Differences,
}

/// One of the two compared runs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ComparedRun {
    /// Name of the artifact or grid.
    pub(crate) name: String,
    /// Profile of the run; empty if there is none.
    pub(crate) profile: String,
    /// Results directory as given on the command line.
    pub(crate) folder: String,
    /// Version and commit of the program that wrote the results.
    pub(crate) program: String,
}

impl ComparedRun {
    pub(crate) fn new(stored: &StoredResults, folder: &Path) -> Self {
        Self {
            name: stored.name.clone(),
            profile: stored.profile.clone(),
            folder: folder.display().to_string(),
            program: stored.program.clone(),
        }
    }
}

/// Output of `status`: all runs and workers of a store.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StatusAnswer {
    /// Directory of the store.
    pub(crate) store: String,
    #[serde(flatten)]
    pub(crate) overview: Overview,
    /// Scheduler submissions that use this store.
    pub(crate) submissions: Vec<SubmissionView>,
    /// Paths of damaged run and plan records, which are not shown.
    pub(crate) damaged_records: Vec<String>,
    /// Reason why the scheduler state is unavailable; null if it is available or nothing was submitted.
    pub(crate) scheduler_silent: Option<String>,
}

/// Submission with its state in the scheduler.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SubmissionView {
    /// ID for `cancel`.
    pub(crate) id: String,
    /// ID of the plan.
    pub(crate) plan: String,
    /// Name of the grid or artifact.
    pub(crate) name: String,
    /// Engine and its float type.
    pub(crate) engine: String,
    /// Scheduler jobs of the submission.
    pub(crate) jobs: Vec<SubmittedJob>,
    /// Queued or running jobs; null if the scheduler does not answer.
    pub(crate) queued: Option<Vec<QueuedJob>>,
    /// Jobs that ended without completing their work, oldest first.
    pub(crate) ends: Vec<JobEnd>,
}

/// Job of a submission.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SubmittedJob {
    /// Job type: `array` or `report`.
    pub(crate) what: String,
    /// Scheduler job number.
    pub(crate) number: String,
}

impl StatusAnswer {
    pub(crate) fn new(store: &Store) -> Self {
        let submitted: Vec<Submission> =
            Submission::all(store).into_iter().filter(|submission| submission.jobs(store).may_have_jobs()).collect();
        // Query the scheduler only if something was submitted.
        let queue = (!submitted.is_empty()).then(Queue::query);
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
                queued: queue.as_ref().map(|queue| queue.jobs_with_comment(&submission.comment()).cloned().collect()),
            })
            .collect();
        let store_name = store.root().display().to_string();
        let damaged = store.damaged_records();
        let damaged_records = damaged.iter().map(|record| record.path.display().to_string()).collect();
        Self { store: store_name, overview: Overview::read(store), submissions, damaged_records, scheduler_silent }
    }
}

/// Output of `explain`: inputs of a cell.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExplainAnswer {
    /// Name of the cell.
    pub(crate) cell: String,
    pub(crate) backbone: ExplainedBackbone,
    /// Indices of removed layers (from 0) and names of removed sublayers. Null for the dense cell, or if no layers have
    /// been selected yet.
    pub(crate) removed_layers: Option<Cut>,
    /// Size of the pruned backbone; null if `removed_layers` is null.
    pub(crate) size: Option<RemainingSize>,
    /// Known deviations of the methods' official code from the published formulas that affect this cell.
    pub(crate) deviations: Vec<String>,
    /// Objects that the cell needs, in order of computation.
    pub(crate) artifacts: Vec<ExplainedObject>,
}

/// Size of a backbone after pruning, without repair operators.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RemainingSize {
    /// Parameters of the remaining sublayers, embedding and head.
    pub(crate) parameters: u64,
    /// Parameters of the dense backbone.
    pub(crate) dense_parameters: u64,
    /// Size of the KV cache in bytes per token, in float32.
    pub(crate) kv_cache_bytes: u64,
    /// Size of the dense backbone's KV cache in bytes per token, in float32.
    pub(crate) dense_kv_cache_bytes: u64,
}

impl RemainingSize {
    fn new(config: &Config, removed: &Cut) -> Self {
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

/// Backbone of a cell.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExplainedBackbone {
    /// Name in the grid.
    pub(crate) name: String,
    /// Directory of the backbone.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    #[schemars(with = "String")]
    pub(crate) folder: PathBuf,
    /// SHA-256 of the parts of its config and weights that affect the computation, in hexadecimal.
    pub(crate) content: String,
}

/// Object that a cell needs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExplainedObject {
    /// Description, such as `selection` or `scores on c4@2048`.
    pub(crate) what: String,
    /// SHA-256 of the object's key, in hexadecimal.
    pub(crate) key: String,
    /// Provenance of the stored object; null if it is not stored.
    pub(crate) stored: Option<ObjectProvenance>,
    /// Reason why the object is not stored; null if it is stored.
    pub(crate) reason: Option<Reason>,
    /// Directory of the object, whether or not it exists.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    #[schemars(with = "String")]
    #[serde(rename = "place")]
    pub(crate) folder: PathBuf,
    /// Contents of the key: settings by name, hashes of inputs, and keys of other artifacts as `{kind, version, of}`.
    #[serde(rename = "of")]
    pub(crate) identity: Value,
}

/// Provenance of an artifact.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ObjectProvenance {
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Compute time in seconds.
    pub(crate) seconds: f64,
    /// Version of the program.
    pub(crate) ghostlab: Option<String>,
    /// Commit that the program was built from.
    pub(crate) commit: Option<String>,
    /// Whether the build had uncommitted changes.
    pub(crate) dirty: bool,
    /// Command line.
    pub(crate) command: Vec<String>,
}

impl ExplainAnswer {
    pub(crate) fn new(plan: &Plan<'_>, (backbone, variant): (&BackbonePlan, &Variant), store: &Store) -> Self {
        let state = StoreView::survey(plan, store);
        let stored_keys = StoredKeyIndex::new(store, plan);
        let mut artifacts = Vec::new();
        let mut add = |what: String, key: &Key| artifacts.push(explain_object(what, key, &state, &stored_keys, store));
        for (job, words, key) in backbone.inputs_of(variant) {
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
                content: backbone.dense.model.content.clone(),
            },
            deviations: list_deviations(
                cell,
                backbone.config.layers,
                removed_layers.as_ref().map(Cut::whole_layers).as_deref(),
            ),
            size: removed_layers.as_ref().map(|removed| RemainingSize::new(&backbone.config, removed)),
            removed_layers,
            artifacts,
        }
    }
}

/// Returns the known deviations of the methods' official code from the published formulas. Only deviations that affect
/// the cell are included.
fn list_deviations(cell: &Cell, layers: usize, removed: Option<&[usize]>) -> Vec<String> {
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

fn explain_object(
    what: String,
    key: &Key,
    state: &StoreView,
    stored_keys: &StoredKeyIndex,
    store: &Store,
) -> ExplainedObject {
    let stored = match state.object(key) {
        ObjectState::Whole(artifact) => {
            let meta = artifact.meta();
            let [ghostlab, commit] =
                ["ghostlab", "commit"].map(|field| meta.provenance[field].as_str().map(str::to_owned));
            let words = meta.provenance["command"].as_array().into_iter().flatten();
            Some(ObjectProvenance {
                bytes: meta.bytes(),
                seconds: meta.seconds,
                ghostlab,
                commit,
                dirty: meta.provenance["dirty"] == true,
                command: words.filter_map(Value::as_str).map(str::to_owned).collect(),
            })
        }
        _ => None,
    };
    let reason = if stored.is_some() { None } else { Some(stored_keys.explain(key, state)) };
    let identity = key.readable()["of"].take();
    ExplainedObject { what, key: key.hash().to_owned(), stored, reason, folder: store.object_path(key), identity }
}

/// Output of `doctor`: state of the machine and the inputs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DoctorAnswer {
    /// Number of missing items.
    pub(crate) lacking: usize,
    /// Result of each check.
    pub(crate) things: Vec<CheckItem>,
}

/// Result of one check.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CheckItem {
    #[serde(rename = "mark")]
    pub(crate) status: CheckStatus,
    /// Checked item.
    pub(crate) what: String,
    /// Description of the item's state.
    pub(crate) found: String,
    /// Hint; empty if no action is needed.
    pub(crate) todo: String,
}

/// Status of a check.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CheckStatus {
    /// Present.
    Good,
    /// Usable, with a note.
    Note,
    /// Missing.
    #[serde(rename = "lacks")]
    Missing,
}
