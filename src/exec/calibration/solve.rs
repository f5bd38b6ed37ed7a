//! Solving: a variant's operators from activations.

use std::time::Instant;

use super::job::CalibrationJob;
use crate::calibrate::Activations;
use crate::criterion::Selection;
use crate::error::{Error, Result};
use crate::grid::Cell;
use crate::plan::Variant;
use crate::recovery::{self, Boundary, Recovery, Repair, RepairMetrics, Span, System};
use crate::stage::operator::{self, BoundaryResult, PlacedRepair};
use ghostlab_store::Key;

/// The recovery of a cell that is not the dense one.
pub(super) fn recovery_of(cell: &Cell) -> Result<&dyn Recovery> {
    let method = cell.recovery.as_ref().map(|of| &*of.rule);
    method.ok_or_else(|| Error::job("the dense cell has no recovery").at(cell.to_string()))
}

/// Solves a variant's operators and stores them.
///
/// # Errors
/// Kind `Job`: the cell cannot be repaired, and why.
pub(super) fn solve(
    job: &CalibrationJob<'_>,
    variant: &Variant,
    selection: &Selection,
    activations: &Activations,
    key: &Key,
) -> Result<()> {
    let started = Instant::now();
    let recovery = recovery_of(&job.run.plan.grid.cells[variant.cell])?;
    let spans: Vec<Span> = operator::spans(recovery, selection.regions()).collect();
    let (mut results, mut matrices, mut earlier) = (Vec::new(), Vec::new(), Vec::new());
    for &span in &spans {
        let boundary = Boundary {
            backbone: &*job.engine,
            activations,
            span,
            fitted: variant.fitted,
            earlier: &earlier,
            starts: &job.windows.starts,
        };
        let place = |error: Error| error.at(format!("boundary of layer {}", span.start));
        let began = Instant::now();
        let solution = recovery.solve(&boundary).map_err(place)?;
        let solve_seconds = began.elapsed().as_secs_f64();
        let System { rank, condition } = solution.system.unwrap_or(System { rank: 0, condition: f64::INFINITY });
        let placed = match &solution.repair {
            Repair::Cut => None,
            Repair::Stream(_) => Some(PlacedRepair::Stream),
            Repair::Branches { attention: false, .. } => Some(PlacedRepair::Mlp),
            Repair::Branches { attention: true, .. } => Some(PlacedRepair::AttentionAndMlp),
        };
        let operator = solution.repair.operator();
        let reasons = if operator.is_some() { recovery::degenerate(&boundary)? } else { Vec::new() };
        if let Some(operator) = operator {
            matrices.push(operator::payload(results.len(), operator)?);
        }
        results.push(BoundaryResult {
            region: (span.start, span.end),
            operator: operator.map(|operator| operator.key()),
            placed,
            undetermined: !reasons.is_empty(),
            notes: reasons.into_iter().chain(solution.notes).collect(),
            rank: solution.system.map(|_| rank),
            condition: condition.is_finite().then_some(condition),
            losses: solution.losses,
            solve_seconds,
            numbers: RepairMetrics::of(&boundary, &solution.repair)?,
        });
        earlier.push((span, solution.repair));
    }
    job.unchanged()?;
    operator::store(job.run.store, key, started.elapsed().as_secs_f64(), &results, &matrices)?;
    job.run.kept();
    job.hold.gone_on();
    Ok(())
}
