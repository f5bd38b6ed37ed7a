//! A candidate on its way: solved, raced, told.

use super::candidates;
use super::costs::Costs;
use super::found::{Candidate, Fate, LeftOut};
use super::laboratory::{Laboratory, bare};
use super::race::mean_of_means;
use super::route::Route;
use super::track::{Gains, Track, score};
use crate::error::Result;
use crate::exec::stored_program;
use crate::grid::{Cell, Grid, Search};
use crate::model::deployed;
use crate::significance::stratified::Stratified;

/// A candidate on its way.
pub(super) struct Racer {
    pub(super) cell: Cell,
    pub(super) removed: Vec<usize>,
    pub(super) route: Route,
    pub(super) costs: Costs,
    pub(super) same: Vec<String>,
    pub(super) milliseconds: Option<f64>,
    /// By objective.
    pub(super) gains: Vec<Gains>,
    pub(super) fate: Fate,
}

impl Racer {
    pub(super) fn told(self, tracks: &[Track]) -> Candidate {
        let scores = tracks.iter().zip(&self.gains).filter(|(_, gains)| gains.iter().any(|of| !of.is_empty()));
        let scores = scores.map(|(track, gains)| score(Stratified::of(gains), mean_of_means(gains), track)).collect();
        let items = self.gains.iter().flatten().map(Vec::len).sum();
        let Self { cell, removed, costs, same, milliseconds, fate, .. } = self;
        let text = |method: Option<String>| method.unwrap_or_default();
        Candidate {
            criterion: text(cell.criterion.as_ref().map(ToString::to_string)),
            recovery: text(cell.recovery.as_ref().map(ToString::to_string)),
            calibration: text(cell.calibration.as_ref().map(ToString::to_string)),
            cell: cell.name,
            removed,
            same,
            costs,
            milliseconds,
            scores,
            items,
            fate,
        }
    }
}

/// Solves the candidates' cuts and repairs; copies are one, and what misses the budget with its operators is left out.
pub(super) fn solved(
    grid: &Grid,
    spec: &Search,
    lab: &Laboratory<'_>,
    cells: Vec<Cell>,
    dense: Option<f64>,
    left_out: &mut Vec<LeftOut>,
) -> Result<Vec<Racer>> {
    let solving = Grid { cells, name: format!("{}.candidates", grid.name), ..bare(grid) };
    let outcome = (lab.run)(&solving)?;
    let plan = lab.plan(&solving)?;
    let mut racers: Vec<Racer> = Vec::new();
    let mut fits = Vec::new();
    for ((backbone, variant), result) in plan.variants().zip(&outcome.cells) {
        let cell = result.cell.clone();
        let leave = |reason: String| LeftOut { cell: cell.name.clone(), reason };
        if let Some(reason) = result.failure.as_ref().or(result.missing.as_ref()) {
            left_out.push(leave(reason.clone()));
            continue;
        }
        let program = deployed(&stored_program(lab.store, backbone, variant)?, &backbone.config).program;
        let costs = Costs::of(&program, &backbone.config, backbone.engine, spec.prompt);
        match costs.misses(&spec.budget, dense) {
            Some(reason) => left_out.push(leave(format!("with its operators {reason}"))),
            None => fits.push((cell, result, costs)),
        }
    }
    let kept = candidates::without_deeper(fits.iter().map(|(cell, ..)| cell.clone()).collect(), left_out);
    for (cell, result, costs) in fits.into_iter().filter(|(cell, ..)| kept.contains(cell)) {
        let route = Route::of(result.layers, &result.removed, &result.boundaries);
        match racers.iter_mut().find(|of| of.route == route) {
            Some(same) => same.same.push(cell.name),
            None => racers.push(Racer {
                cell,
                removed: result.removed.clone(),
                route,
                costs,
                same: Vec::new(),
                milliseconds: None,
                gains: Vec::new(),
                fate: Fate::Survived,
            }),
        }
    }
    Ok(racers)
}

/// The best of the survivors on the first objective; of equals the first.
pub(super) fn winner(racers: &[Racer]) -> Option<usize> {
    let merit = |of: usize| mean_of_means(&racers[of].gains[0]);
    let alive = (0..racers.len()).filter(|&of| racers[of].fate == Fate::Survived);
    alive.reduce(|best, other| if merit(other) > merit(best) { other } else { best })
}
