//! JSON output of `plan`: what a run would compute, why, and at what cost.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::cache::KindTotals;
use super::plan_cost::{PlanCost, compute_cost};
use crate::error::Result;
use crate::grid::Grid;
use crate::pipeline::exec::{Preflight, RunSettings};
use crate::pipeline::plan::{BackbonePlan, Plan, Quota, Reason, StoreView, StoredKeyIndex, TrialCount, Variant};
use crate::pipeline::stage::{self, InputNames, Stage};
use crate::quantity::pluralize;
use ghostlab_store::{Key, ObjectKind, Store};

/// Output of `plan`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PlanAnswer {
    /// Name of the paper artifact; null for any other grid.
    pub(crate) artifact: Option<String>,
    /// Grids in order of execution. For an artifact with a gate, the grid of the dense backbones comes first.
    pub(crate) grids: Vec<GridPlan>,
}

/// Plan for running one grid.
#[derive(Serialize, JsonSchema)]
pub(crate) struct GridPlan {
    /// Name of the grid and of its results folder.
    pub(crate) grid: String,
    /// Path of the grid file.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    #[schemars(with = "String")]
    pub(crate) file: PathBuf,
    /// Profile applied to the grid; null if there is none.
    pub(crate) profile: Option<String>,
    /// Number of cells.
    pub(crate) cells: usize,
    /// Number of cells whose objects are all stored.
    pub(crate) cells_complete: usize,
    /// Required objects by kind.
    pub(crate) artifacts: Vec<ArtifactCount>,
    /// Jobs that still have to run, in order of execution.
    pub(crate) jobs: Vec<PlannedJob>,
    /// Incomplete cells, in grid order.
    pub(crate) cells_to_run: Vec<CellToRun>,
    pub(crate) cost: PlanCost,
    /// Effect of `--store-limit` on the store; null without the option.
    pub(crate) store_limit: Option<StoreUsage>,
}

/// Number of required, stored and missing objects of one kind.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ArtifactCount {
    /// Kind of object, such as `tokens` or `scores`. `trials` are measurements by which criteria rank layers.
    pub(crate) kind: String,
    /// Number of required objects.
    pub(crate) needed: usize,
    /// Number of stored objects.
    pub(crate) stored: usize,
    /// Number of missing objects.
    pub(crate) to_make: usize,
    /// Reasons why objects are missing, most frequent first. Objects that were never computed have no reason.
    pub(crate) reasons: Vec<CountedReason>,
}

/// Reason why objects are missing, with the number of objects.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CountedReason {
    /// Number of objects missing for this reason.
    pub(crate) count: usize,
    pub(crate) reason: Reason,
}

/// Job that still has to run for a backbone.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "job", rename_all = "snake_case")]
pub(crate) enum PlannedJob {
    /// Layer selection by trials.
    ChooseLayers {
        /// Name of the backbone.
        backbone: String,
        /// Criterion, as written in the grid.
        criterion: String,
        /// Calibration, as in cell names.
        calibration: String,
        /// Number of trials to measure.
        trials: usize,
    },
    /// Calibration pass, from whose statistics operators are solved.
    Calibrate {
        /// Name of the backbone.
        backbone: String,
        /// Calibration, as in cell names.
        calibration: String,
        /// Number of cells to repair.
        cells: usize,
    },
    /// Training of an operator.
    Finetune {
        /// Name of the backbone.
        backbone: String,
        /// Training text.
        calibration: String,
    },
    /// Scoring of cells.
    Score {
        /// Name of the backbone.
        backbone: String,
        /// Corpus with window length, or task.
        on: String,
        /// Number of cells to score.
        cells: usize,
    },
    /// Timing of all cells of a backbone together.
    Time {
        /// Name of the backbone.
        backbone: String,
        /// Prompt, such as `512×1`.
        prompt: String,
        /// Number of cells to time.
        cells: usize,
    },
}

/// Incomplete cell.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CellToRun {
    /// Name of the cell.
    pub(crate) cell: String,
    /// Missing objects, in order of computation.
    pub(crate) missing: Vec<MissingObject>,
}

/// Missing object of a cell.
#[derive(Serialize, JsonSchema)]
pub(crate) struct MissingObject {
    /// Kind of the object, such as `selection`.
    pub(crate) what: MissingPart,
    /// Text, task or prompt of a measurement; null for other objects.
    pub(crate) on: Option<String>,
    /// SHA-256 of the object's key in hexadecimal. It does not depend on names in the grid.
    pub(crate) key: String,
    /// Reason why the object is not stored.
    pub(crate) reason: Reason,
}

/// Kind of the missing object, serialized as a name such as `selection`.
pub(crate) struct MissingPart(pub(crate) InputNames);

impl Serialize for MissingPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.part)
    }
}

impl JsonSchema for MissingPart {
    fn schema_name() -> Cow<'static, str> {
        "MissingPart".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let parts: Vec<Value> = Stage::input_names()
            .into_iter()
            .map(|words| json!({"description": words.about, "type": "string", "const": words.part}))
            .collect();
        json_schema!({"description": "Kind of object that a cell needs.", "oneOf": parts})
    }
}

/// State of the store relative to its size limit.
#[derive(Serialize, JsonSchema)]
pub(crate) struct StoreUsage {
    /// Limit in bytes.
    pub(crate) limit_bytes: u64,
    /// Size in bytes of the objects that this grid or a running process needs.
    pub(crate) needed_bytes: u64,
    /// Size in bytes of the other objects that fit within the limit.
    pub(crate) kept_bytes: u64,
    /// Number of bytes to be written.
    pub(crate) coming_bytes: u64,
    /// Number of bytes above the limit after all possible evictions.
    pub(crate) beyond_bytes: u64,
    /// Objects to evict, by kind and version.
    pub(crate) going: Vec<KindTotals>,
}

impl GridPlan {
    /// Builds the output from a plan and the results of its preflight check.
    ///
    /// # Errors
    /// Fails if a method cannot be built or the store cannot be read.
    pub(crate) fn new(plan: &Plan<'_>, preflight: &Preflight, store: &Store, settings: &RunSettings) -> Result<Self> {
        let grid: &Grid = plan.grid;
        let Preflight { state, estimate } = preflight;
        let stored_keys = StoredKeyIndex::new(store, plan);
        let left: Vec<(&BackbonePlan, &Variant)> = plan.variants().filter(|(_, v)| !state.is_complete(v)).collect();
        let jobs_left = plan.backbones.iter().filter(|_| !left.is_empty());
        let jobs_left = jobs_left.flat_map(|backbone| list_jobs(plan, backbone, state)).collect();
        let to_run = left.iter().map(|(backbone, variant)| CellToRun {
            cell: grid.cells[variant.cell].to_string(),
            missing: list_missing(backbone, variant, state, &stored_keys),
        });
        let quota = settings.store_limit.map(|limit| -> Result<StoreUsage> {
            let reserved = store.reserved_by_others()?;
            let quota = Quota::new(plan, store, &reserved, limit, estimate.incoming());
            Ok(StoreUsage {
                limit_bytes: quota.limit,
                needed_bytes: quota.needed,
                kept_bytes: quota.kept,
                coming_bytes: quota.incoming,
                beyond_bytes: quota.excess(),
                going: KindTotals::by_kind(&quota.evicted),
            })
        });
        Ok(Self {
            grid: grid.name.clone(),
            file: grid.file.clone(),
            profile: grid.profile.clone(),
            cells: grid.cells.len(),
            cells_complete: grid.cells.len() - left.len(),
            artifacts: count_artifacts(plan, state, &stored_keys, store),
            jobs: jobs_left,
            cells_to_run: to_run.collect(),
            cost: compute_cost(estimate, plan, store),
            store_limit: quota.transpose()?,
        })
    }
}

/// Counts the required, stored and missing objects of each kind, and lists the reasons for the missing ones.
pub(crate) fn count_artifacts(
    plan: &Plan<'_>,
    state: &StoreView,
    stored_keys: &StoredKeyIndex,
    store: &Store,
) -> Vec<ArtifactCount> {
    let mut by_kind: BTreeMap<ObjectKind, BTreeMap<String, Arc<Key>>> = BTreeMap::new();
    for key in plan.keys() {
        by_kind.entry(key.kind()).or_default().insert(key.hash().to_string(), Arc::clone(key));
    }
    let mut counts = Vec::new();
    for (kind, keys) in stage::KINDS.into_iter().filter_map(|kind| Some((kind, by_kind.remove(&kind)?))) {
        // Treat objects in the temporary overlay as missing: they were written only to count tokens and will be
        // discarded.
        let missing: Vec<&Arc<Key>> = keys.values().filter(|key| !state.has(key) || store.is_temporary(key)).collect();
        let mut counted: BTreeMap<String, CountedReason> = BTreeMap::new();
        // Omit `Reason::First` (never computed), because it explains nothing to the user.
        let absent = missing.iter().filter(|key| !state.has(key));
        for reason in absent.map(|key| stored_keys.explain(key, state)).filter(|reason| *reason != Reason::First) {
            counted.entry(reason.to_string()).or_insert(CountedReason { count: 0, reason }).count += 1;
        }
        let mut reasons: Vec<CountedReason> = counted.into_values().collect();
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.count));
        let needed = keys.len();
        let to_make = missing.len();
        counts.push(ArtifactCount { kind: kind.name().into(), needed, stored: needed - to_make, to_make, reasons });
    }
    let mut needed = 0;
    let mut stored = 0;
    for backbone in &plan.backbones {
        for index in 0..backbone.calibrations.len() {
            for trials in TrialCount::count_by_criterion(plan, backbone, index, state) {
                (needed, stored) = (needed + trials.needed, stored + trials.stored);
            }
        }
    }
    if needed > 0 {
        let kind = "trials".to_owned();
        let to_make = needed - stored;
        counts.push(ArtifactCount { kind, needed, stored, to_make, reasons: Vec::new() });
    }
    counts
}

/// Returns the jobs that still have to run for a backbone, in order of execution.
fn list_jobs(plan: &Plan<'_>, backbone: &BackbonePlan, state: &StoreView) -> Vec<PlannedJob> {
    let mut jobs = Vec::new();
    for (index, calibration) in backbone.calibrations.iter().enumerate() {
        let calibrated = backbone.variants.iter().filter(|variant| variant.calibration == Some(index));
        let calibrated: Vec<&Variant> = calibrated.collect();
        let missing = calibrated
            .iter()
            .filter(|variant| !is_stored(state, &variant.selection) || !is_stored(state, &variant.operator))
            .count();
        let text = calibration.calibration.to_string();
        let trials = TrialCount::count_by_criterion(plan, backbone, index, state).into_iter();
        jobs.extend(trials.filter(|count| count.stored < count.needed).map(|count| PlannedJob::ChooseLayers {
            backbone: backbone.name.clone(),
            criterion: count.criterion,
            calibration: text.clone(),
            trials: count.needed - count.stored,
        }));
        if missing > 0 {
            jobs.push(PlannedJob::Calibrate { backbone: backbone.name.clone(), calibration: text, cells: missing });
        }
        let trained = calibrated.iter().filter_map(|variant| variant.trained.as_ref());
        jobs.extend(trained.filter(|trained| !state.has(&trained.key)).map(|trained| PlannedJob::Finetune {
            backbone: backbone.name.clone(),
            calibration: backbone.calibrations[trained.text].calibration.to_string(),
        }));
    }
    for (index, evaluation) in backbone.evaluations.iter().enumerate() {
        let cells = backbone.variants.iter().filter(|variant| !state.has(&variant.scores[index])).count();
        let on = evaluation.target.to_string();
        jobs.extend((cells > 0).then(|| PlannedJob::Score { backbone: backbone.name.clone(), on, cells }));
    }
    for (index, prompt) in backbone.latencies.iter().enumerate() {
        if backbone.variants.iter().any(|variant| !state.has(&variant.latencies[index])) {
            // All cells are timed in one job so that their latencies are comparable.
            jobs.push(PlannedJob::Time {
                backbone: backbone.name.clone(),
                prompt: prompt.to_string(),
                cells: backbone.variants.len(),
            });
        }
    }
    jobs
}

fn is_stored(state: &StoreView, key: &Option<Arc<Key>>) -> bool {
    key.as_ref().is_none_or(|key| state.has(key))
}

impl fmt::Display for PlannedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChooseLayers { backbone, criterion, calibration, trials } => {
                write!(f, "select layers of {backbone} by {criterion} on {calibration}: {trials} trials")
            }
            Self::Calibrate { backbone, calibration, cells: count } => {
                write!(f, "calibrate {backbone} on {calibration}: repair {}", pluralize(*count, "cell"))
            }
            Self::Finetune { backbone, calibration } => {
                write!(f, "fine-tune an operator of {backbone} on {calibration}")
            }
            Self::Score { backbone, on, cells: count } => {
                write!(f, "score {backbone} on {on}: {}", pluralize(*count, "cell"))
            }
            Self::Time { backbone, prompt, cells: count } => {
                write!(f, "time {backbone} over {prompt}: {}", pluralize(*count, "cell"))
            }
        }
    }
}

fn list_missing(
    backbone: &BackbonePlan,
    variant: &Variant,
    state: &StoreView,
    stored_keys: &StoredKeyIndex,
) -> Vec<MissingObject> {
    let inputs = backbone.inputs_of(variant).filter(|(_, _, key)| !state.has(key));
    let missing = inputs.map(|(job, words, key)| MissingObject {
        what: MissingPart(words),
        on: (job.group.on)(backbone, job.index),
        key: key.hash().to_owned(),
        reason: stored_keys.explain(key, state),
    });
    missing.collect()
}
