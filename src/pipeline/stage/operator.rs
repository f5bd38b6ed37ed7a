//! Operators of a variant in the store: their format, and their conversion to a program. Each operator repairs one
//! [`Span`] of the removed layers or sublayers.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use super::boundary_result::{BoundaryResult, PlacedRepair};
use super::calibration_job::CalibrationJob;
use super::{BackboneKeyParts, Check, Cost, InputNames, Stage, activations, from_json, to_json};
use crate::calibrate::Activations;
use crate::criterion::Selection;
use crate::error::{Error, ErrorKind, Result};
use crate::grid::Cell;
use crate::iterative::{ShrinkingModel, SolvedSpan};
use crate::model::{Config, Cut, Load, MergedLayer, Operator, Program, Sublayer};
use crate::pipeline::env::backbone::Variant;
use crate::pipeline::env::event::WorkKind;
use crate::pipeline::identity::RepairId;
use crate::quantity::pluralize;
use crate::recovery::{self, Boundary, F64_COST, Recovery, Repair, RepairMetrics, RepairTarget, Solution, Span};
use ghostlab_store::{Key, Lookup, ObjectKind, Store, StoredObject};

// Version 2: keys contain the activations and every option. Version 3: the key contains the number of sequences used
// for solving, even if several layers form one block. Version 4: see version 4 of `tokens`.
pub const KIND: ObjectKind = ObjectKind::new("operator", 4);

pub const STAGE: Stage = Stage {
    check: Check::Only(RESULTS_FILE),
    inodes: |small| if small { 2 } else { 6 },
    words: Some(InputNames {
        group: WorkKind::Calibrate,
        part: "operator",
        about: "Operator inserted at the cut.",
        what: "operator",
        reads: |_, _, _| None,
    }),
    ..Stage::new(KIND)
};

/// Payload that contains a [`BoundaryResult`] for each repaired span.
pub(super) const RESULTS_FILE: &str = "figures.json";

/// Returns the key of an operator. It depends on the selection, on the activations, and on the number of sequences used
/// to solve the operator.
pub fn key(backbone: BackboneKeyParts<'_>, selection: &Arc<Key>, repair: &RepairId, tokens: &Arc<Key>) -> Key {
    let RepairId { recovery, version, options, fitted, training: _ } = repair;
    let identity = json!({
        "recovery": recovery, "recovery_version": version, "options": options.value(), "sequences": fitted,
    });
    let activations = Arc::new(activations::family(backbone, tokens).key());
    Key::new(KIND, identity, [("selection", Arc::clone(selection)), ("activations", activations)])
}

/// Estimates the cost of repairing the variants of a calibration: one pass over the text (`pass_flops`), and solving
/// all operators. `all` contains the FLOPs for solving each variant, and `missing` those for each variant that is not
/// stored.
pub fn cost(config: &Config, pass_flops: f64, all: &[f64], missing: &[f64]) -> Cost {
    let [all_flops, missing_flops] = [all, missing].map(|solves| solves.iter().sum::<f64>());
    Cost {
        separate: all.len() as f64 * pass_flops + all_flops,
        shared: pass_flops + all_flops,
        left: if missing.is_empty() { 0.0 } else { pass_flops + missing_flops },
        disk: missing.len() as u64 * matrix_bytes(config),
        inodes: 0,
    }
}

/// Estimates the FLOPs for fitting and measuring one operator for each of `spans` spans. Each operator is fitted on
/// `fitted` sequences of `load`.
pub fn solve_flops(config: &Config, recovery: &dyn Recovery, load: &Load, fitted: usize, spans: usize) -> f64 {
    let channels = config.hidden as f64;
    let tokens = load.tokens as f64;
    let product = 2.0 * tokens * channels * channels * F64_COST;
    let measured = METRIC_FLOPS_PER_VALUE * tokens * channels
        + match recovery.target() {
            RepairTarget::Nothing => 0.0,
            RepairTarget::Branch | RepairTarget::Stream => product,
            // The layer before the cut runs once more.
            RepairTarget::Rows | RepairTarget::Layer => activations::pass_flops(config, load) / config.layers as f64,
        };
    spans as f64 * (recovery.estimated_operations(config.hidden, fitted * load.length) + measured)
}

/// Cost of measuring a repair, in floating-point operations per value at the input of the repaired region. Fitted to
/// the solve times of 18 operators.
const METRIC_FLOPS_PER_VALUE: f64 = 450.0;

/// Returns the size in bytes of a square f32 matrix whose side is the hidden size.
pub fn matrix_bytes(config: &Config) -> u64 {
    4 * (config.hidden * config.hidden) as u64
}

/// Returns the payload name and the encoded bytes for the operator of a repaired span.
///
/// # Errors
/// Propagates errors from [`Operator::parts`].
pub fn encode_operator(span_index: usize, operator: &Operator) -> Result<(String, Vec<u8>)> {
    let (form, values) = operator.parts()?;
    Ok((format!("{span_index:04}.{form}.f32"), values.iter().flat_map(|value| value.to_le_bytes()).collect()))
}

/// Stores the operators of a variant, encoded by [`encode_operator`].
///
/// # Errors
/// Fails with kind `Job` if a measured value is not finite. Also fails if the store cannot be written.
pub fn store(
    store: &Store,
    key: &Key,
    seconds: f64,
    results: &[BoundaryResult],
    operators: &[(String, Vec<u8>)],
) -> Result<()> {
    let encoded_results = encode_results(results)?;
    let payloads = operators.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    let payloads: Vec<(&str, &[u8])> = payloads.chain([(RESULTS_FILE, encoded_results.as_slice())]).collect();
    store.put(key, seconds, &payloads).map(drop)
}

/// Encodes the results of all repaired spans.
///
/// # Errors
/// Fails with kind `Job` if a measured value is not finite.
pub(super) fn encode_results(results: &[BoundaryResult]) -> Result<Vec<u8>> {
    let encoded = to_json(&results)?;
    // JSON writes non-finite numbers as `null`, which cannot be read back.
    match serde_json::from_slice::<Vec<BoundaryResult>>(&encoded) {
        Ok(_) => Ok(encoded),
        Err(_) => {
            Err(Error::job("the repair produced non-finite values")
                .hint("reduce the learning rate, or use another method"))
        }
    }
}

/// Reads the results of all repaired spans of a stored variant.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read_results(artifact: &StoredObject) -> Result<Vec<BoundaryResult>> {
    from_json(artifact, RESULTS_FILE)
}

/// Reads the operator of a variant with a single repaired span as a dense matrix.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read_matrix(artifact: &StoredObject) -> Result<Vec<f32>> {
    load_operator(artifact, 0)?.to_dense()
}

/// Reads the program of a stored variant.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read_program(artifact: &StoredObject, layers: usize, selection: &Selection) -> Result<Program> {
    let mismatch_error =
        || Error::damaged("a stored operator does not match its record").at(artifact.folder().display().to_string());
    let program = build_program(layers, &selection.removed, &read_results(artifact)?, |index, key| {
        let operator = load_operator(artifact, index)?;
        if operator.key() == key { Ok(operator) } else { Err(mismatch_error()) }
    });
    program?.ok_or_else(mismatch_error)
}

/// Builds the program for a repaired cut. `find_operator` returns the operator that belongs to a result, given the
/// index and the content key. Returns `None` if a repair on an MLP branch has no layer before the cut.
///
/// # Errors
/// Propagates errors from `find_operator`.
pub fn build_program(
    layers: usize,
    removed: &Cut,
    results: &[BoundaryResult],
    find_operator: impl Fn(usize, &str) -> Result<Arc<Operator>>,
) -> Result<Option<Program>> {
    let mut repaired = Vec::new();
    for (index, result) in results.iter().enumerate() {
        let (Some(placed), Some(key)) = (result.placed, &result.operator) else { continue };
        let (start, end) = result.region;
        if let Some(merged) = &result.merged {
            repaired.push((Span::layers(start, end), Repair::Merged(Arc::new(merged.clone()))));
            continue;
        }
        let operator = find_operator(index, key)?;
        let span = match placed.replaced_sublayer() {
            Some(sublayer) => Span::sublayer(start, sublayer),
            None => Span::layers(start, end),
        };
        let repair = match placed {
            PlacedRepair::Stream | PlacedRepair::Attention | PlacedRepair::ReplacedMlp => Repair::Stream(operator),
            PlacedRepair::Merged => return Err(Error::job("a merged layer has no record of its weights")),
            PlacedRepair::Mlp => Repair::Branches { operator, attention: false },
            PlacedRepair::AttentionAndMlp => Repair::Branches { operator, attention: true },
        };
        repaired.push((span, repair));
    }
    let repairs = recovery::place_repairs(removed, &repaired)?;
    Ok(repairs.map(|repairs| Program::repaired(layers, removed, &repairs)))
}

fn load_operator(artifact: &StoredObject, index: usize) -> Result<Arc<Operator>> {
    let prefix = format!("{index:04}.");
    let name = artifact.payloads().find(|name| name.starts_with(&prefix)).unwrap_or(&prefix);
    let values = artifact.read(name)?;
    let values: Vec<f32> =
        bytemuck::pod_collect_to_vec::<u8, u32>(&values).into_iter().map(|b| f32::from_bits(u32::from_le(b))).collect();
    let form = name.split('.').nth(1).unwrap_or_default();
    Operator::from_parts(form, values)
}

/// Returns the recovery of a pruned cell.
pub(super) fn recovery_of(cell: &Cell) -> Result<&dyn Recovery> {
    let method = cell.recovery.as_ref().map(|recovery| &*recovery.rule);
    method.ok_or_else(|| Error::job("the dense cell has no recovery").at(cell.to_string()))
}

/// Solves the operators that are not stored. If one cannot be solved, only its cell fails.
pub(super) fn solve_all(
    job: &CalibrationJob<'_>,
    chosen: &[(&Variant, &Selection)],
    activations: &Activations,
) -> Result<()> {
    let run = job.run;
    let mut missing = Vec::new();
    for &(variant, selection) in chosen {
        let key = variant.operator.as_ref().filter(|key| !matches!(run.store.get(key), Lookup::Intact(_)));
        missing.extend(key.map(|key| (variant, selection, key)));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let count = missing.len();
    let tokens = job.shape.sequences * job.shape.length;
    let label = format!("{}: solve {}", job.label, pluralize(count, "operator"));
    let config = &job.backbone.config;
    let load = Load::windows(tokens, job.shape.length);
    let flops = missing
        .iter()
        .map(|&(variant, selection, _)| {
            let recovery = recovery_of(&run.grid.cells[variant.cell])?;
            let spans = recovery::spans(recovery, &selection.removed).len();
            Ok(solve_flops(config, recovery, &load, variant.fitted(), spans))
        })
        .sum::<Result<f64>>()?;
    let id = run.start(job.guard.name(), &label, count * tokens, 0, flops);
    for (variant, selection, key) in missing {
        let is_iterative =
            run.grid.cells[variant.cell].criterion.as_ref().is_some_and(|method| method.rule.is_iterative());
        let solved = match is_iterative {
            true => solve_one_by_one(job, variant, selection, key),
            false => solve(job, variant, selection, activations, key),
        };
        match solved {
            Err(error) if error.kind() == ErrorKind::Job => run.fail_and_record(variant.cell, key, error.one_line()),
            solved => solved?,
        }
        run.advance(id, tokens)?;
    }
    run.finish(id);
    Ok(())
}

/// Solves and stores the operators of a variant.
///
/// # Errors
/// Fails with kind `Job` if the cell cannot be repaired. The error states the reason.
fn solve(
    job: &CalibrationJob<'_>,
    variant: &Variant,
    selection: &Selection,
    activations: &Activations,
    key: &Key,
) -> Result<()> {
    let started = Instant::now();
    let recovery = recovery_of(&job.run.grid.cells[variant.cell])?;
    let mut solved_cut = SolvedCut::default();
    let mut earlier = Vec::new();
    for span in recovery::spans(recovery, &selection.removed) {
        let boundary = Boundary {
            earlier: &earlier,
            merges: &selection.merges,
            starts: &job.windows.starts,
            ..Boundary::new(&*job.engine, activations, span, variant.fitted())
        };
        let began = Instant::now();
        let solution =
            recovery.solve(&boundary).map_err(|error| error.at(format!("boundary of layer {}", span.start)))?;
        let seconds = began.elapsed().as_secs_f64();
        let degenerate =
            if solution.repair.operator().is_some() { recovery::degenerate(&boundary)? } else { Vec::new() };
        let metrics = RepairMetrics::compute(&boundary, &solution.repair)?;
        earlier.push((span, solution.repair.clone()));
        solved_cut.add(span, solution, metrics, degenerate, seconds)?;
    }
    solved_cut.store(job, key, started)
}

/// Removes the selected layers one by one, and solves an operator on the pruned model after each removal. All operators
/// are stored at the end.
///
/// # Errors
/// Fails under the same conditions as [`solve`].
fn solve_one_by_one(job: &CalibrationJob<'_>, variant: &Variant, selection: &Selection, key: &Key) -> Result<()> {
    let started = Instant::now();
    let cell = &job.run.grid.cells[variant.cell];
    let recovery = recovery_of(cell)?;
    let batch = job.backbone.batch_tokens;
    let progress = begin_passes(job, &format!("{}: repair one by one", job.label), selection.scores.len(), 0.0);
    let mut model = ShrinkingModel::new(&*job.engine, &job.windows, batch, recovery, variant.fitted());
    let replayed = model.replay(cell.depth.unit, selection, &mut |tokens| job.run.advance(progress, tokens));
    job.run.finish(progress);
    replayed?;
    let mut solved_cut = SolvedCut::default();
    for solved in model.into_repairs() {
        let SolvedSpan { span, solution, metrics, degenerate, seconds, .. } = solved;
        solved_cut.add(span, solution, metrics, degenerate, seconds)?;
    }
    solved_cut.store(job, key, started)
}

/// Reports the start of several passes over a calibration text. `trial_flops` is the cost of all trials in the passes.
/// Returns the job id.
pub(super) fn begin_passes(job: &CalibrationJob<'_>, label: &str, passes: usize, trial_flops: f64) -> usize {
    let tokens = job.shape.sequences * job.shape.length;
    let load = Load::windows(tokens, job.shape.length);
    let flops = passes as f64 * activations::pass_flops(&job.backbone.config, &load) + trial_flops;
    job.run.start(job.guard.name(), label, passes * tokens, 0, flops)
}

/// Results and encoded operators of a repaired cut.
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
            Repair::Stream(_) => Some(match span.sublayer {
                None => PlacedRepair::Stream,
                Some(Sublayer::Attention) => PlacedRepair::Attention,
                Some(Sublayer::Mlp) => PlacedRepair::ReplacedMlp,
            }),
            Repair::Branches { attention: false, .. } => Some(PlacedRepair::Mlp),
            Repair::Branches { attention: true, .. } => Some(PlacedRepair::AttentionAndMlp),
            Repair::Merged(_) => Some(PlacedRepair::Merged),
        };
        let merged = match &solution.repair {
            Repair::Merged(merged) => Some(MergedLayer::clone(merged)),
            _ => None,
        };
        let operator = solution.repair.operator();
        if let Some(operator) = operator {
            self.matrices.push(encode_operator(self.results.len(), operator)?);
        }
        self.results.push(BoundaryResult {
            region: (span.start, span.end),
            operator: operator.map(|operator| operator.key()).or_else(|| Some(merged.as_ref()?.key().to_owned())),
            placed,
            merged,
            undetermined: !degenerate.is_empty(),
            notes: degenerate.into_iter().chain(solution.notes).collect(),
            rank: solution.system.map(|system| system.rank),
            condition: solution.system.map(|system| system.condition).filter(|condition| condition.is_finite()),
            losses: solution.losses,
            solve_seconds,
            numbers,
        });
        Ok(())
    }

    fn store(&self, job: &CalibrationJob<'_>, key: &Key, started: Instant) -> Result<()> {
        job.check_unchanged()?;
        store(job.run.store, key, started.elapsed().as_secs_f64(), &self.results, &self.matrices)?;
        job.run.report_stored();
        job.guard.record_progress();
        Ok(())
    }
}
