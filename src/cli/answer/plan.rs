//! Plan of a grid's run, with reasons and costs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::super::out::cells;
use super::cache::KindSum;
use crate::error::Result;
use crate::exec::{Preflight, RunRecord, RunSettings};
use crate::files::disk;
use crate::grid::Grid;
use crate::linalg::gemm;
use crate::machine;
use crate::plan::{BackbonePlan, Estimate, Plan, Quota, Reason, Reasons, StoreState, TrialCount, Variant};
use crate::stage::{self, Cost, Stage, Words};
use ghostlab_store::{Key, ObjectKind, Store};

/// Plan of a run.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PlanAnswer {
    /// The artifact whose grid it is; null for a grid of one's own.
    pub(crate) artifact: Option<String>,
    /// The grids in order of execution: for an artifact without scores, first the dense backbones that the gate needs.
    pub(crate) grids: Vec<GridPlan>,
}

/// Plan of one grid's run.
#[derive(Serialize, JsonSchema)]
pub(crate) struct GridPlan {
    /// The grid's name, which is that of its results' folder.
    pub(crate) grid: String,
    /// The file that it was read from.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub(crate) file: PathBuf,
    /// The profile that is laid upon it.
    pub(crate) profile: Option<String>,
    /// Cells of the grid.
    pub(crate) cells: usize,
    /// Cells of which everything is stored.
    pub(crate) cells_complete: usize,
    /// The objects that the cells need, by kind.
    pub(crate) artifacts: Vec<ArtifactCount>,
    /// The jobs that are left, in the order in which they run.
    pub(crate) jobs: Vec<PlannedJob>,
    /// Every cell that is not complete, in the grid's order.
    pub(crate) cells_to_run: Vec<CellToRun>,
    pub(crate) cost: PlanCost,
    /// Effect of `--store-limit` on the store; null without it.
    pub(crate) store_limit: Option<LimitedStore>,
}

/// How the artifacts of one kind stand.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ArtifactCount {
    /// `tokens`, `selection`, `operator`, `scores`, …; `trials` are the perplexities and distances that criteria measure.
    pub(crate) kind: String,
    /// How many the grid needs.
    pub(crate) needed: usize,
    /// How many of them are stored.
    pub(crate) stored: usize,
    /// How many have to be made.
    pub(crate) to_make: usize,
    /// Reasons, the most frequent first. Objects that were never made have none.
    pub(crate) reasons: Vec<CountedReason>,
}

/// A reason, and how many artifacts have it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CountedReason {
    /// Artifacts that have to be made for this reason.
    pub(crate) count: usize,
    pub(crate) reason: Reason,
}

/// A job of one backbone that is left.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "job", rename_all = "snake_case")]
pub(crate) enum PlannedJob {
    /// A criterion chooses layers by trials.
    ChooseLayers {
        /// Whose layers.
        backbone: String,
        /// The criterion, as the grid writes it.
        criterion: String,
        /// The calibration, as cells are called after it.
        calibration: String,
        /// Perplexities or distances to measure.
        trials: usize,
    },
    /// A calibration pass, and the operators fitted with it.
    Calibrate {
        /// Whose activations.
        backbone: String,
        /// The calibration, as cells are called after it.
        calibration: String,
        /// Cells to repair.
        cells: usize,
    },
    /// An operator is trained further.
    Finetune {
        /// Whose operator.
        backbone: String,
        /// The text that it is trained on.
        calibration: String,
    },
    /// Cells are scored.
    Score {
        /// Whose cells.
        backbone: String,
        /// A corpus with its length, or a task.
        on: String,
        /// Cells to score.
        cells: usize,
    },
    /// All cells of a backbone are timed together.
    Time {
        /// Whose cells.
        backbone: String,
        /// The prompt: length and batch.
        prompt: String,
        /// Cells to time.
        cells: usize,
    },
}

/// A cell that is not complete.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CellToRun {
    /// Its name.
    pub(crate) cell: String,
    /// Missing objects, in the order in which they are made.
    pub(crate) missing: Vec<Missing>,
}

/// An object missing from a cell.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Missing {
    /// Which part of the cell.
    pub(crate) what: MissingPart,
    /// The text or task that it is scored on or timed over; null for other objects.
    pub(crate) on: Option<String>,
    /// SHA-256 of its key, in hexadecimal: its identity, whatever its name in the grid.
    pub(crate) key: String,
    /// Why it is not stored.
    pub(crate) reason: Reason,
}

/// A part of a cell.
pub(crate) struct MissingPart(pub(crate) Words);

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
        let parts: Vec<Value> = Stage::parts()
            .into_iter()
            .map(|words| json!({"description": words.about, "type": "string", "const": words.part}))
            .collect();
        json_schema!({"description": "A part of a cell.", "oneOf": parts})
    }
}

/// Costs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PlanCost {
    /// Floating-point operations of the whole grid, each cell by itself.
    pub(crate) cell_by_cell_flop: f64,
    /// Floating-point operations of the whole grid, what cells share counted once.
    pub(crate) shared_flop: f64,
    /// Floating-point operations that are left.
    pub(crate) left_flop: f64,
    /// Remaining cost of the run; null if nothing is left.
    pub(crate) run: Option<RunCost>,
}

/// Cost of a run on this machine.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RunCost {
    /// The engine.
    pub(crate) engine: String,
    /// Null where the engine's speed was never measured here.
    pub(crate) time: Option<PlanTime>,
    /// Memory at the peak, mapped files included, in bytes.
    pub(crate) memory_bytes: u64,
    /// Free memory, in bytes.
    pub(crate) free_memory_bytes: u64,
    /// Bytes to be written to the store.
    pub(crate) disk_bytes: u64,
    /// Bytes of temporary files besides.
    pub(crate) spool_bytes: u64,
    /// Free room on the store's disk, in bytes; null where the system does not tell.
    pub(crate) free_disk_bytes: Option<u64>,
    /// Files and folders that will be made in the store at the most.
    pub(crate) inodes: u64,
    /// How many the store's disk can still have; null where it has no such bound, or does not tell.
    pub(crate) free_inodes: Option<u64>,
}

/// How long it would take.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PlanTime {
    /// Seconds until all is done.
    pub(crate) seconds: f64,
    /// The rate that this goes by, in floating-point operations a second.
    pub(crate) flop_per_second: f64,
    pub(crate) rate: RateSource,
}

/// Where a rate comes from.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RateSource {
    /// The last run with this store and engine on this machine.
    LastRun,
    /// Guessed from a short matrix product.
    Probe,
}

/// How the store stands to its limit.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LimitedStore {
    /// The limit, in bytes.
    pub(crate) limit_bytes: u64,
    /// Bytes of the store that this grid or a living process needs.
    pub(crate) needed_bytes: u64,
    /// Bytes that nothing needs but that still fit.
    pub(crate) kept_bytes: u64,
    /// Bytes to be written.
    pub(crate) coming_bytes: u64,
    /// Bytes above the limit after removing everything removable.
    pub(crate) beyond_bytes: u64,
    /// Removed objects, by kind and version.
    pub(crate) going: Vec<KindSum>,
}

impl GridPlan {
    /// # Errors
    /// A method that cannot be built, or a store that cannot be read.
    pub(crate) fn of(plan: &Plan<'_>, found: &Preflight, store: &Store, settings: &RunSettings) -> Result<Self> {
        let grid: &Grid = plan.grid;
        let Preflight { state, estimate } = found;
        let reasons = Reasons::new(store, plan);
        let left: Vec<(&BackbonePlan, &Variant)> = plan.variants().filter(|(_, v)| !state.complete(v)).collect();
        let jobs_left = plan.backbones.iter().filter(|_| !left.is_empty());
        let jobs_left = jobs_left.flat_map(|backbone| jobs(plan, backbone, state, store)).collect();
        let to_run = left.iter().map(|(backbone, variant)| CellToRun {
            cell: grid.cells[variant.cell].to_string(),
            missing: missing(backbone, variant, state, &reasons),
        });
        let quota = settings.store_limit.map(|limit| -> Result<LimitedStore> {
            let reserved = store.reserved_by_others()?;
            let quota = Quota::of(plan, store, &reserved, limit, estimate.coming());
            Ok(LimitedStore {
                limit_bytes: quota.limit,
                needed_bytes: quota.needed,
                kept_bytes: quota.kept,
                coming_bytes: quota.coming,
                beyond_bytes: quota.beyond(),
                going: KindSum::of(&quota.going),
            })
        });
        Ok(Self {
            grid: grid.name.clone(),
            file: grid.file.clone(),
            profile: grid.profile.clone(),
            cells: grid.cells.len(),
            cells_complete: grid.cells.len() - left.len(),
            artifacts: artifacts(plan, state, &reasons, store),
            jobs: jobs_left,
            cells_to_run: to_run.collect(),
            cost: cost(estimate, plan, store),
            store_limit: quota.transpose()?,
        })
    }
}

/// Summarises the objects of each kind, and why missing ones are missing.
pub(crate) fn artifacts(plan: &Plan<'_>, state: &StoreState, reasons: &Reasons, store: &Store) -> Vec<ArtifactCount> {
    let mut by_kind: BTreeMap<ObjectKind, BTreeMap<String, Arc<Key>>> = BTreeMap::new();
    for key in plan.keys() {
        by_kind.entry(key.kind()).or_default().insert(key.hash().to_string(), Arc::clone(key));
    }
    let mut counts = Vec::new();
    for (kind, keys) in stage::KINDS.into_iter().filter_map(|kind| Some((kind, by_kind.remove(&kind)?))) {
        // Objects made only for counting are already gone at this point.
        let missing: Vec<&Arc<Key>> = keys.values().filter(|key| !state.has(key) || store.passing(key)).collect();
        let mut counted: BTreeMap<String, CountedReason> = BTreeMap::new();
        // There is no reason for objects that were never made.
        let lacking = missing.iter().filter(|key| !state.has(key));
        for reason in lacking.map(|key| reasons.of(key, state)).filter(|reason| *reason != Reason::First) {
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
            for trials in TrialCount::of(plan, backbone, index, state, store) {
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

/// Returns the jobs of one backbone in their order.
fn jobs(plan: &Plan<'_>, backbone: &BackbonePlan, state: &StoreState, store: &Store) -> Vec<PlannedJob> {
    let mut jobs = Vec::new();
    for (index, calibration) in backbone.calibrations.iter().enumerate() {
        let calibrated = backbone.variants.iter().filter(|variant| variant.calibration == Some(index));
        let calibrated: Vec<&Variant> = calibrated.collect();
        let missing = calibrated
            .iter()
            .filter(|variant| !is_stored(state, &variant.selection) || !is_stored(state, &variant.operator))
            .count();
        let text = calibration.calibration.to_string();
        for TrialCount { criterion, needed, stored } in TrialCount::of(plan, backbone, index, state, store) {
            if stored < needed {
                let calibration = text.clone();
                let trials = needed - stored;
                jobs.push(PlannedJob::ChooseLayers { backbone: job_name(backbone), criterion, calibration, trials });
            }
        }
        if missing > 0 {
            jobs.push(PlannedJob::Calibrate { backbone: job_name(backbone), calibration: text, cells: missing });
        }
        for trained in
            calibrated.iter().filter_map(|variant| variant.trained.as_ref()).filter(|model| !state.has(&model.key))
        {
            let calibration = backbone.calibrations[trained.text].calibration.to_string();
            jobs.push(PlannedJob::Finetune { backbone: job_name(backbone), calibration });
        }
    }
    for (index, evaluation) in backbone.evaluations.iter().enumerate() {
        let cells = backbone.variants.iter().filter(|variant| !state.has(&variant.scores[index])).count();
        if cells > 0 {
            jobs.push(PlannedJob::Score { backbone: job_name(backbone), on: evaluation.subject.to_string(), cells });
        }
    }
    for (index, prompt) in backbone.latencies.iter().enumerate() {
        if backbone.variants.iter().any(|variant| !state.has(&variant.latencies[index])) {
            // Cells of one comparison are measured together.
            let prompt = prompt.to_string();
            let cells = backbone.variants.len();
            jobs.push(PlannedJob::Time { backbone: job_name(backbone), prompt, cells });
        }
    }
    jobs
}

fn is_stored(state: &StoreState, key: &Option<Arc<Key>>) -> bool {
    key.as_ref().is_none_or(|key| state.has(key))
}

fn job_name(backbone: &BackbonePlan) -> String {
    backbone.name.clone()
}

impl fmt::Display for PlannedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChooseLayers { backbone, criterion, calibration, trials } => {
                write!(f, "choose layers of {backbone} by {criterion} on {calibration}: {trials} trials")
            }
            Self::Calibrate { backbone, calibration, cells: count } => {
                write!(f, "calibrate {backbone} on {calibration}: repair {}", cells(*count))
            }
            Self::Finetune { backbone, calibration } => {
                write!(f, "fine-tune an operator of {backbone} on {calibration}")
            }
            Self::Score { backbone, on, cells: count } => write!(f, "score {backbone} on {on}: {}", cells(*count)),
            Self::Time { backbone, prompt, cells: count } => {
                write!(f, "time {backbone} over {prompt}: {}", cells(*count))
            }
        }
    }
}

fn missing(backbone: &BackbonePlan, variant: &Variant, state: &StoreState, reasons: &Reasons) -> Vec<Missing> {
    let lacking = backbone.parts(variant).filter(|(_, _, key)| !state.has(key));
    let missing = lacking.map(|(job, words, key)| Missing {
        what: MissingPart(words),
        on: (job.group.on)(backbone, job.index),
        key: key.hash().to_owned(),
        reason: reasons.of(key, state),
    });
    missing.collect()
}

fn cost(estimate: &Estimate, plan: &Plan<'_>, store: &Store) -> PlanCost {
    let Estimate { cost: Cost { separate, shared, left, disk: bytes, inodes }, memory, spool } = *estimate;
    let run = (left > 0.0).then(|| {
        let engine = plan.engines();
        let on_cpu = plan.backbones.iter().all(|backbone| backbone.engine.id().is_on_cpu());
        let rate = match RunRecord::rate(store, &engine, &plan.machine()) {
            Some(rate) => Some((rate, RateSource::LastRun)),
            None if on_cpu => Some((probe(), RateSource::Probe)),
            None => None,
        };
        let time = rate.map(|(rate, source)| PlanTime { seconds: left / rate, flop_per_second: rate, rate: source });
        RunCost {
            engine,
            time,
            memory_bytes: memory,
            free_memory_bytes: machine::free_memory(),
            disk_bytes: bytes,
            spool_bytes: spool,
            free_disk_bytes: disk::free(store.root()),
            inodes,
            free_inodes: disk::free_inodes(store.root()),
        }
    });
    PlanCost { cell_by_cell_flop: separate, shared_flop: shared, left_flop: left, run }
}

/// Estimates a run's floating-point operations per second: about half of a plain product's.
pub(crate) fn probe() -> f64 {
    const SIZE: usize = 768;
    let x = vec![1.0f32; SIZE * SIZE];
    let mut y = vec![0.0f32; SIZE * SIZE];
    let mut products = 0.0;
    let started = Instant::now();
    while products < 3.0 || started.elapsed().as_millis() < 60 {
        let a = gemm::MatrixView::rows(&x, SIZE, SIZE);
        let b = gemm::MatrixView::rows(&x, SIZE, SIZE);
        gemm::gemm_parallel(gemm::MatrixViewMut::rows(&mut y, SIZE, SIZE), gemm::Update::Replace, a, b);
        products += 1.0;
    }
    0.5 * products * 2.0 * (SIZE as f64).powi(3) / started.elapsed().as_secs_f64()
}
