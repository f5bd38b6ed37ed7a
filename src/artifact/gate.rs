//! A dense backbone that misses the paper's dense numbers is not the paper's, or is not scored as there: what is pruned
//! from it is not run.

use super::comparison::{Gate, GateFailure};
use crate::artifact::paper;
use crate::error::{Error, Result};
use crate::exec::{CellResult, GridOutcome};
use crate::grid::{Cell, Description, Grid};
use crate::results::collect;
use crate::results::record::Record;

/// What `dense`, a grid of dense backbones alone, says of the paper's.
pub(super) fn gate(
    dense: &Grid,
    description: &Description,
    run: &dyn Fn(&Grid) -> Result<GridOutcome>,
) -> Result<Gate> {
    let paper: Vec<Record> = paper::all()?.into_iter().map(|entry| entry.record).collect();
    let results = collect(dense, &run(dense)?, &[]);
    Ok(Gate::of(&results.measurements(), &paper, &description.tolerance))
}

/// Why there is nothing to draw where the gate has stopped something.
pub(super) fn stopped_by(misses: &[GateFailure]) -> Option<Error> {
    let first = misses.first()?;
    let error = Error::job("a dense backbone has not the paper's dense numbers, so that nothing of it is drawn");
    Some(error.found(first.to_string()).hint("--no-gate prunes it all the same"))
}

/// The grid without the pruned cells of backbones that are not the paper's.
pub(super) fn open(grid: &Grid, misses: &[GateFailure]) -> Grid {
    let (stopped, mut open) = (GateFailure::backbones(misses), grid.clone());
    open.cells.retain(|cell| cell.is_dense() || !stopped.contains(&cell.backbone));
    open
}

/// The outcome with the cells that the gate stopped, each in its place and as failed: a table says what it lacks.
pub(super) fn with_stopped(outcome: GridOutcome, grid: &Grid, misses: &[GateFailure]) -> GridOutcome {
    if misses.is_empty() {
        return outcome;
    }
    let mut ran = outcome.cells.into_iter().peekable();
    let result = |cell: &Cell| match ran.next_if(|result| result.cell == *cell) {
        Some(result) => result,
        None => {
            let reason = misses.iter().find(|miss| miss.backbone == cell.backbone).map(ToString::to_string);
            let reason = format!("stopped by the gate: {}", reason.unwrap_or_default());
            CellResult::unmeasured(cell.clone(), grid.backbones[&cell.backbone].layers, Some(reason))
        }
    };
    GridOutcome { cells: grid.cells.iter().map(result).collect(), ..outcome }
}
