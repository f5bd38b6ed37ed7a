//! What a search works with: who runs grids, and the grids that measure times or score nothing.

use std::sync::atomic::AtomicBool;

use crate::error::{Error, Result};
use crate::exec::{self, CellResult, GridOutcome, Reporter, RunSettings};
use crate::grid::{Cell, Evaluate, Grid, Search};
use crate::latency::LatencyResult;
use crate::model::{Config, EngineChoice};
use crate::plan::Plan;
use ghostlab_store::Store;

/// What a search works with.
pub struct Laboratory<'a> {
    pub store: &'a Store,
    pub settings: RunSettings,
    pub reporter: &'a dyn Reporter,
    pub stop: &'a AtomicBool,
    /// Runs a grid to its end, alone or beside others.
    pub run: &'a dyn Fn(&Grid) -> Result<GridOutcome>,
    /// Whether times may be measured here; those that are stored are read in any case.
    pub times: bool,
}

impl Laboratory<'_> {
    /// The plan of a grid.
    pub(super) fn plan<'g>(&self, grid: &'g Grid) -> Result<Plan<'g>> {
        Plan::new(grid, self.store, self.settings.engine, self.settings.batch_tokens)
    }
}

/// The backbone's config, and what computes it.
pub(super) fn backbone(grid: &Grid, lab: &Laboratory<'_>) -> Result<(Config, EngineChoice)> {
    let bare = Grid { cells: dense(grid), ..bare(grid) };
    let plan = lab.plan(&bare)?;
    let of = plan.backbones.first().ok_or_else(|| Error::bad_input("the search has no backbone"))?;
    Ok((of.config.clone(), of.engine))
}

/// The grid with nothing to score.
pub(super) fn bare(grid: &Grid) -> Grid {
    Grid { evaluate: Evaluate::default(), ..grid.clone() }
}

/// The whole backbone of a grid.
pub(super) fn dense(grid: &Grid) -> Vec<Cell> {
    grid.cells.iter().filter(|cell| cell.is_dense()).cloned().collect()
}

/// Milliseconds of the dense backbone over the prompt.
pub(super) fn dense_time(grid: &Grid, spec: &Search, lab: &Laboratory<'_>) -> Result<f64> {
    let timed = Grid { cells: dense(grid), name: format!("{}.dense", grid.name), ..timed(grid, spec) };
    let outcome = times(&timed, lab)?;
    let time = outcome.cells.first().and_then(|of| milliseconds(of, spec));
    time.ok_or_else(|| Error::job("the dense backbone has no time").at(grid.backbone.join(", ")))
}

/// The grid with only the prompt's time to measure.
pub(super) fn timed(grid: &Grid, spec: &Search) -> Grid {
    Grid { evaluate: Evaluate { latency: vec![spec.prompt], ..Evaluate::default() }, ..grid.clone() }
}

/// Runs a grid of times; reads what is stored of it where none are measured.
pub(super) fn times(grid: &Grid, lab: &Laboratory<'_>) -> Result<GridOutcome> {
    if lab.times {
        return (lab.run)(grid);
    }
    let outcome = exec::stored(grid, lab.settings, lab.store, &())?;
    match outcome.cells.iter().find(|of| of.missing.is_some() && of.failure.is_none()) {
        None => Ok(outcome),
        Some(of) => Err(Error::missing("a search under a time waits for times, which no worker measures")
            .at(of.cell.to_string())
            .hint("`ghostlab search` of the same file measures them, beside the workers or after them")),
    }
}

pub(super) fn milliseconds(of: &CellResult, spec: &Search) -> Option<f64> {
    Some(took(of.prompt(&spec.prompt)?.sample.as_ref()?)?.0)
}

/// The mean milliseconds of a variant, and how many times as fast as the dense backbone that is, where it was timed beside it:
/// of the prompt, and of what is decoded behind it.
pub fn took(timed: &LatencyResult) -> Option<(f64, Option<f64>)> {
    let (read, faster) = (timed.spread()?.mean, timed.speedup().map(|of| of.ratio));
    let Some(decode) = &timed.decode else { return Some((read, faster)) };
    let new = decode.spread()?.mean;
    let dense = faster.zip(decode.speedup()).map(|(of_prompt, of_new)| of_prompt * read + of_new.ratio * new);
    Some((read + new, dense.map(|dense| dense / (read + new))))
}
