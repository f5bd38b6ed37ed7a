//! A dense backbone that misses the paper's dense numbers is not the paper's, or is not scored as there: what is pruned
//! from it is not run.

use crate::error::Result;
use crate::exec::{CellResult, Outcome};
use crate::grid::{Cell, Description, Grid};
use crate::paper;
use crate::record::Record;
use crate::reproduce::{self, Miss};

/// The grid without the pruned cells of backbones whose dense numbers are not the paper's, and what those miss.
pub(super) fn gate(
    grid: &Grid,
    description: &Description,
    run: &dyn Fn(&Grid) -> Result<Outcome>,
) -> Result<(Grid, Vec<Miss>)> {
    let paper: Vec<Record> = paper::all()?.into_iter().map(|entry| entry.record).collect();
    let of_paper = |backbone: &String| paper.iter().any(|record| record.condition.backbone == *backbone);
    if !grid.backbones.keys().any(of_paper) {
        return Ok((grid.clone(), Vec::new()));
    }
    let mut dense = grid.clone();
    dense.cells.retain(Cell::is_dense);
    let outcome = run(&dense)?;
    let numbers = reproduce::numbers(&dense, &outcome, &[]);
    let misses = reproduce::gate(&numbers, &paper, &description.tolerance);
    let stopped = Miss::backbones(&misses);
    let mut open = grid.clone();
    open.cells.retain(|cell| cell.is_dense() || !stopped.contains(&cell.backbone));
    Ok((open, misses))
}

/// The outcome with the cells that the gate stopped, each in its place and as failed: a table says what it lacks.
pub(super) fn with_stopped(outcome: Outcome, grid: &Grid, misses: &[Miss]) -> Outcome {
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
    Outcome { cells: grid.cells.iter().map(result).collect(), ..outcome }
}
