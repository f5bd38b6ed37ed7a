//! A variant's operators in the store: the format, and how they become a program.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Check, Cost, KeyedBackbone, Stage, Words, activations, from_json, to_json};
use crate::calibrate::{Activations, HookPoint, Pair};
use crate::criterion::{Criterion, PruneSpec, Selection};
use crate::error::{Error, Result};
use crate::grid::Cell;
use crate::identity::RepairId;
use crate::iterative::{ShrinkingModel, SolvedSpan};
use crate::model::{Config, Cut, Load, Operator, Program, Sublayer};
use crate::recovery::{self, Boundary, F64_COST, Place, Recovery, Repair, RepairMetrics, Solution, Span, System};
use crate::work::backbone::Variant;
use crate::work::context::CalibrationJob;
use crate::work::event::WorkKind;
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

// 2: keys name the activations, and have every option filled in. 3: what is solved on how many sequences is what the key says,
// also where many layers happen to be one block.
pub const KIND: ObjectKind = ObjectKind::new("operator", 4);

pub const STAGE: Stage = Stage {
    check: Check::Only(FIGURES),
    inodes: |small| if small { 2 } else { 6 },
    words: Some(Words {
        group: WorkKind::Calibrate,
        part: "operator",
        about: "What is put at the cut.",
        what: "operator",
        reads: |_, _, _| None,
    }),
    ..Stage::new(KIND)
};

/// Measurements of each boundary.
pub(super) const FIGURES: &str = "figures.json";

/// Returns the key of an operator: selection, activations, and the number of sequences it is solved on.
pub fn key(backbone: KeyedBackbone<'_>, selection: &Arc<Key>, repair: &RepairId, tokens: &Arc<Key>) -> Key {
    let RepairId { recovery, version, options, fitted, training: _ } = repair;
    let identity = json!({
        "recovery": recovery, "recovery_version": version, "options": options.value(), "sequences": fitted,
    });
    let activations = Arc::new(activations::family(backbone, tokens).key());
    Key::new(KIND, identity, [("selection", Arc::clone(selection)), ("activations", activations)])
}

/// Returns the spans that a recovery may repair, whatever a criterion selects.
fn possible_spans(criterion: &dyn Criterion, recovery: &dyn Recovery, cut: &PruneSpec<'_>) -> Vec<Span> {
    if recovery.sublayer().is_some() {
        return recovery::spans(recovery, &cut.unit.candidates(cut.layers).into_iter().collect());
    }
    let regions = criterion.regions(cut).into_iter().map(|(start, end)| Span::layers(start, end));
    regions.flat_map(|region| recovery.spans(region)).collect()
}

/// A variant without operators, whose layers are chosen.
pub struct WantedRepair<'a> {
    pub criterion: &'a dyn Criterion,
    pub recovery: &'a dyn Recovery,
    pub cut: PruneSpec<'a>,
    /// The removed layers or sublayers. `None` until they are selected.
    pub removed: Option<Cut>,
}

/// Inputs that some variants need from a calibration pass together, before and after layers are chosen: used by plan,
/// cost and run.
#[derive(Debug, Default)]
pub struct Needs {
    /// Activations that recoveries read at what is chosen.
    pub exact: BTreeSet<HookPoint>,
    /// Sites that they would read at any possible choice.
    pub perhaps: BTreeSet<HookPoint>,
    /// Inputs of the choice: activations and similarities.
    pub looks: BTreeSet<HookPoint>,
    pub pairs: BTreeSet<Pair>,
}

impl Needs {
    pub fn of<'a>(group: impl IntoIterator<Item = WantedRepair<'a>>) -> Self {
        let mut needs = Self::default();
        for WantedRepair { criterion, recovery, cut, removed } in group {
            match removed {
                Some(removed) => {
                    let spans = recovery::spans(recovery, &removed);
                    needs.exact.extend(spans.into_iter().flat_map(|span| recovery.sites(span)));
                }
                None => {
                    let spans = possible_spans(criterion, recovery, &cut);
                    needs.perhaps.extend(spans.into_iter().flat_map(|span| recovery.sites(span)));
                    needs.looks.extend(criterion.sites(&cut));
                    needs.pairs.extend(criterion.pairs(&cut));
                }
            }
        }
        needs
    }
}

/// Estimates repairing variants on one calibration: a pass, and solving those that are `missing` out of `all`.
pub fn cost(config: &Config, pass: f64, all: &[f64], missing: &[f64]) -> Cost {
    let [every, left] = [all, missing].map(|solves| solves.iter().sum::<f64>());
    Cost {
        separate: all.len() as f64 * pass + every,
        shared: pass + every,
        left: if missing.is_empty() { 0.0 } else { pass + left },
        disk: missing.len() as u64 * matrix_bytes(config),
        inodes: 0,
    }
}

/// Estimates solving and measuring operators at `spans` spans in floating-point operations; `fitted` sequences of `load`
/// make an operator.
pub fn solve_flops(config: &Config, recovery: &dyn Recovery, load: &Load, fitted: usize, spans: usize) -> f64 {
    let c = config.hidden as f64;
    let tokens = load.tokens as f64;
    let product = 2.0 * tokens * c * c * F64_COST;
    let measured = MEASURED * tokens * c
        + match recovery.place() {
            Place::Nothing => 0.0,
            Place::Branch | Place::Stream => product,
            // The layer before runs again.
            Place::Rows => activations::pass_flops(config, load) / config.layers as f64,
        };
    spans as f64 * (recovery.operations(config.hidden, fitted * load.length) + measured)
}

/// Cost of measuring one number at the input of a region, in floating-point operations. Measured on solves of 18
/// operators.
const MEASURED: f64 = 450.0;

/// Returns the bytes of one matrix.
pub fn matrix_bytes(config: &Config) -> u64 {
    4 * (config.hidden * config.hidden) as u64
}

/// Where a repair stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacedRepair {
    /// On the residual stream, in the place of the removed layers.
    Stream,
    /// On the MLP branch of the layer before.
    Mlp,
    /// On both branches of the layer before.
    AttentionAndMlp,
    /// On the residual stream, in the place of the removed attention of the layer `region.0`.
    Attention,
}

/// One repaired span.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BoundaryResult {
    /// The removed layers, `[start, end)`; the layer of a removed attention.
    pub region: (usize, usize),
    /// The operator's content key; none where the layers were only removed.
    pub operator: Option<String>,
    /// Where it stands.
    pub placed: Option<PlacedRepair>,
    /// Remarks on the repair for readers.
    pub notes: Vec<String>,
    /// Whether its calibration can determine no repair at all: its numbers are no merit then.
    #[serde(default)]
    pub undetermined: bool,
    /// Rank of the least-squares problem's matrix, where one was solved.
    pub rank: Option<usize>,
    /// Its condition number; none where it is infinite.
    pub condition: Option<f64>,
    /// Mean loss of each epoch, where the method iterates.
    pub losses: Vec<f64>,
    /// Time for solving, without measuring.
    pub solve_seconds: f64,
    #[serde(flatten)]
    pub numbers: RepairMetrics,
}

/// Encodes the operator at a boundary: payload name and numbers.
///
/// # Errors
/// None that a reader could mend.
pub fn payload(boundary: usize, operator: &Operator) -> Result<(String, Vec<u8>)> {
    let (form, values) = operator.parts()?;
    Ok((format!("{boundary:04}.{form}.f32"), values.iter().flat_map(|value| value.to_le_bytes()).collect()))
}

/// Stores a variant's operators, given as [`payload`]s.
///
/// # Errors
/// Kind `Job`: figures that are not finite. Else a store that cannot be written.
pub fn store(
    store: &Store,
    key: &Key,
    seconds: f64,
    results: &[BoundaryResult],
    operators: &[(String, Vec<u8>)],
) -> Result<()> {
    let figures = figures_payload(results)?;
    let payloads = operators.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    let payloads: Vec<(&str, &[u8])> = payloads.chain([(FIGURES, figures.as_slice())]).collect();
    store.put(key, seconds, &payloads).map(drop)
}

/// Encodes the results of the boundaries.
///
/// # Errors
/// Kind `Job`: figures that are not finite.
pub(super) fn figures_payload(results: &[BoundaryResult]) -> Result<Vec<u8>> {
    let figures = to_json(&results)?;
    // JSON has no word for a number that is none: it would not come back.
    match serde_json::from_slice::<Vec<BoundaryResult>>(&figures) {
        Ok(_) => Ok(figures),
        Err(_) => Err(Error::job("the repair's figures are not finite numbers")
            .hint("the method diverged: a smaller learning rate, or another method")),
    }
}

/// Reads the results of a stored variant's boundaries.
///
/// # Errors
/// Damage.
pub fn figures(artifact: &StoredObject) -> Result<Vec<BoundaryResult>> {
    from_json(artifact, FIGURES)
}

/// Reads the full matrix of a variant's only boundary.
///
/// # Errors
/// Damage.
pub fn matrix(artifact: &StoredObject) -> Result<Vec<f32>> {
    load(artifact, 0)?.to_dense()
}

/// Reads a stored variant as a program.
///
/// # Errors
/// Damage.
pub fn program(artifact: &StoredObject, layers: usize, selection: &Selection) -> Result<Program> {
    let misfit =
        || Error::damaged("a stored operator does not fit its record").at(artifact.folder().display().to_string());
    let program = repaired(layers, &selection.removed, &figures(artifact)?, |index, key| {
        let operator = load(artifact, index)?;
        if operator.key() == key { Ok(operator) } else { Err(misfit()) }
    });
    program?.ok_or_else(misfit)
}

/// Builds the program of a repaired cut; `operator` gives the operator of a result by its index and key. `None` if a map of
/// an MLP branch has no layer before it.
///
/// # Errors
/// As of `operator`.
pub fn repaired(
    layers: usize,
    removed: &Cut,
    results: &[BoundaryResult],
    operator: impl Fn(usize, &str) -> Result<Arc<Operator>>,
) -> Result<Option<Program>> {
    let mut repaired = Vec::new();
    for (index, result) in results.iter().enumerate() {
        let (Some(placed), Some(key)) = (result.placed, &result.operator) else { continue };
        let operator = operator(index, key)?;
        let (start, end) = result.region;
        let span = match placed {
            PlacedRepair::Attention => Span::sublayer(start, Sublayer::Attention),
            _ => Span::layers(start, end),
        };
        let repair = match placed {
            PlacedRepair::Stream | PlacedRepair::Attention => Repair::Stream(operator),
            PlacedRepair::Mlp => Repair::Branches { operator, attention: false },
            PlacedRepair::AttentionAndMlp => Repair::Branches { operator, attention: true },
        };
        repaired.push((span, repair));
    }
    let repairs = recovery::placed(removed, &repaired)?;
    Ok(repairs.map(|repairs| Program::repaired(layers, removed, &repairs)))
}

fn load(artifact: &StoredObject, index: usize) -> Result<Arc<Operator>> {
    let prefix = format!("{index:04}.");
    let name = artifact.payloads().find(|name| name.starts_with(&prefix)).unwrap_or(&prefix);
    let values = artifact.read(name)?;
    let values: Vec<f32> =
        bytemuck::pod_collect_to_vec::<u8, u32>(&values).into_iter().map(|b| f32::from_bits(u32::from_le(b))).collect();
    let form = name.split('.').nth(1).unwrap_or_default();
    Operator::from_parts(form, values)
}

/// Returns the recovery of a pruned cell.
pub(crate) fn recovery_of(cell: &Cell) -> Result<&dyn Recovery> {
    let method = cell.recovery.as_ref().map(|recovery| &*recovery.rule);
    method.ok_or_else(|| Error::job("the dense cell has no recovery").at(cell.to_string()))
}

/// Solves a variant's operators and stores them.
///
/// # Errors
/// Kind `Job`: the cell cannot be repaired, and why.
pub(crate) fn solve(
    job: &CalibrationJob<'_>,
    variant: &Variant,
    selection: &Selection,
    activations: &Activations,
    key: &Key,
) -> Result<()> {
    let started = Instant::now();
    let recovery = recovery_of(&job.run.grid.cells[variant.cell])?;
    let mut results = SolvedCut::default();
    let mut earlier = Vec::new();
    for span in recovery::spans(recovery, &selection.removed) {
        let boundary = Boundary {
            backbone: &*job.engine,
            activations,
            span,
            fitted: variant.fitted,
            earlier: &earlier,
            before: None,
            starts: &job.windows.starts,
        };
        let began = Instant::now();
        let solution =
            recovery.solve(&boundary).map_err(|error| error.at(format!("boundary of layer {}", span.start)))?;
        let seconds = began.elapsed().as_secs_f64();
        let degenerate =
            if solution.repair.operator().is_some() { recovery::degenerate(&boundary)? } else { Vec::new() };
        let metrics = RepairMetrics::of(&boundary, &solution.repair)?;
        earlier.push((span, solution.repair.clone()));
        results.add(span, solution, metrics, degenerate, seconds)?;
    }
    results.keep(job, key, started)
}

/// Removes the layers of a selection one by one, solves their operators in the backbone that is left each time, and stores
/// them.
///
/// # Errors
/// As of [`solve`].
pub(crate) fn solve_one_by_one(
    job: &CalibrationJob<'_>,
    variant: &Variant,
    selection: &Selection,
    key: &Key,
) -> Result<()> {
    let started = Instant::now();
    let cell = &job.run.grid.cells[variant.cell];
    let recovery = recovery_of(cell)?;
    let batch = job.backbone.batch_tokens;
    let progress = begin_passes(job, &format!("{}: repair one by one", job.label), selection.scores.len());
    let mut model = ShrinkingModel::new(&*job.engine, &job.windows, batch, recovery, variant.fitted);
    let replayed = model.replay(cell.depth.unit, selection, &mut |tokens| job.run.advance(progress, tokens));
    job.run.finish(progress);
    replayed?;
    let mut results = SolvedCut::default();
    for solved in model.into_repairs() {
        let SolvedSpan { span, solution, metrics, degenerate, seconds, .. } = solved;
        results.add(span, solution, metrics, degenerate, seconds)?;
    }
    results.keep(job, key, started)
}

/// Reports the begin of some passes over a calibration. Returns the number of the job.
pub(crate) fn begin_passes(job: &CalibrationJob<'_>, label: &str, passes: usize) -> usize {
    let tokens = job.shape.sequences * job.shape.length;
    let load = Load::windows(tokens, job.shape.length);
    let flops = passes as f64 * activations::pass_flops(&job.backbone.config, &load);
    job.run.start(job.hold.name(), label, passes * tokens, 0, flops)
}

/// The operators of a cut, in the form of the store.
#[derive(Default)]
struct SolvedCut {
    results: Vec<BoundaryResult>,
    matrices: Vec<(String, Vec<u8>)>,
}

impl SolvedCut {
    fn add(
        &mut self,
        span: Span,
        solution: Solution,
        numbers: RepairMetrics,
        degenerate: Vec<String>,
        solve_seconds: f64,
    ) -> Result<()> {
        let placed = match &solution.repair {
            Repair::Cut => None,
            Repair::Stream(_) if span.sublayer.is_some() => Some(PlacedRepair::Attention),
            Repair::Stream(_) => Some(PlacedRepair::Stream),
            Repair::Branches { attention: false, .. } => Some(PlacedRepair::Mlp),
            Repair::Branches { attention: true, .. } => Some(PlacedRepair::AttentionAndMlp),
        };
        let operator = solution.repair.operator();
        if let Some(operator) = operator {
            self.matrices.push(payload(self.results.len(), operator)?);
        }
        let System { rank, condition } = solution.system.unwrap_or(System { rank: 0, condition: f64::INFINITY });
        self.results.push(BoundaryResult {
            region: (span.start, span.end),
            operator: operator.map(|operator| operator.key()),
            placed,
            undetermined: !degenerate.is_empty(),
            notes: degenerate.into_iter().chain(solution.notes).collect(),
            rank: solution.system.map(|_| rank),
            condition: condition.is_finite().then_some(condition),
            losses: solution.losses,
            solve_seconds,
            numbers,
        });
        Ok(())
    }

    fn keep(&self, job: &CalibrationJob<'_>, key: &Key, started: Instant) -> Result<()> {
        job.unchanged()?;
        store(job.run.store, key, started.elapsed().as_secs_f64(), &self.results, &self.matrices)?;
        job.run.kept();
        job.hold.gone_on();
        Ok(())
    }
}
