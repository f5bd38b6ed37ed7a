//! Which cells of a grid meet a budget; and a candidate on its way: solved, raced, told.

use std::collections::BTreeMap;
use std::slice;

use super::laboratory::{Gains, Laboratory, Track, bare, score};
use super::program_path::path;
use super::race::mean_of_means;
use super::{Candidate, Costs, Fate, LeftOut, Score, gigabytes};
use crate::criterion::Depth;
use crate::error::{Error, Result};
use crate::exec::stored_program;
use crate::grid::{Budget, Cell, Grid, Latency, Search};
use crate::model::{Config, EngineChoice, Program, deployed};
use crate::results::{MeasuredProgram, RowContent, is_one_measurement};
use crate::significance::stratified::Stratified;

/// Splits a grid into searches: one per backbone and number of layers of its budget.
pub fn parts(grid: &Grid) -> Vec<Grid> {
    let Some(search) = &grid.search else { return Vec::new() };
    let depths: Vec<Vec<usize>> = match search.budget.layers.as_slice() {
        [] => vec![Vec::new()],
        several => several.iter().map(|&depth| vec![depth]).collect(),
    };
    let part = |backbone: &String, layers: &Vec<usize>| {
        let mut part = grid.clone();
        part.cells.retain(|cell| cell.backbone == *backbone);
        part.cells.retain(|cell| cell.is_dense() || layers.is_empty() || layers.contains(&cell.depth.count));
        part.backbones.retain(|name, _| name == backbone);
        part.backbone = vec![backbone.clone()];
        if let Some(search) = &mut part.search {
            search.budget.layers = layers.clone();
            search.unselectable.retain(|unselectable| {
                unselectable.backbone == *backbone && (layers.is_empty() || layers.contains(&unselectable.depth))
            });
        }
        part
    };
    grid.backbone.iter().flat_map(|backbone| depths.iter().map(move |layers| part(backbone, layers))).collect()
}

/// Returns the smallest number of layers whose plain removal meets a budget, the start of a search without depths.
///
/// # Errors
/// Exit code 2: the dense backbone meets it, or not even the deepest cut does.
pub fn shallowest(
    budget: &Budget,
    config: &Config,
    engine: EngineChoice,
    prompt: Latency,
    dense: Option<f64>,
) -> Result<usize> {
    let meets = |depth: usize| Costs::of_cut(depth, config, engine, prompt).misses(budget, dense).is_none();
    let refused = |what: &str| Error::bad_input(what).at(format!("--budget {budget}"));
    let reasons_at = |depth: usize| {
        let costs = Costs::of_cut(depth, config, engine, prompt);
        let time = dense.map_or_else(String::new, |dense| format!(", {:.2} ms", dense / costs.speedup));
        format!("{:.3} times as fast{time}, {:.4} GB", costs.speedup, gigabytes(costs.bytes))
    };
    if meets(0) {
        return Err(refused("the dense backbone meets the budget already")
            .expected("a budget for which layers have to go")
            .found(reasons_at(0))
            .hint(format!("one layer less is {}", reasons_at(1))));
    }
    let most = config.layers.saturating_sub(1);
    (1..=most).find(|&depth| meets(depth)).ok_or_else(|| {
        refused("the budget is below what one layer costs")
            .expected(format!("at most what removing {most} of {} layers gives: {}", config.layers, reasons_at(most)))
            .found(budget.to_string())
            .hint("weights of embedding and head stay, whatever is removed")
    })
}

/// Returns the pruned cells of a search, and those excluded upfront: repairs that the backbone cannot hold, cuts that miss
/// the budget, and deeper cuts than a shallower one that meets it.
///
/// # Errors
/// Exit code 2: no candidate is left; with the nearest.
pub(super) fn candidates(
    grid: &Grid,
    config: &Config,
    engine: EngineChoice,
    dense: Option<f64>,
) -> Result<(Vec<Cell>, Vec<LeftOut>)> {
    let Some(search) = &grid.search else { return Ok((Vec::new(), Vec::new())) };
    let budget = &search.budget;
    let prompt = search.prompt;
    let mut left_out: Vec<LeftOut> = search
        .unselectable
        .iter()
        .map(|unselectable| LeftOut { cell: unselectable.to_string(), reason: unselectable.reason.clone() })
        .collect();
    let mut taken = Vec::new();
    let mut nearest = Vec::new();
    for cell in grid.cells.iter().filter(|cell| !cell.is_dense()) {
        let leave = |reason: String| LeftOut { cell: cell.name.clone(), reason };
        if let Some(Err(error)) = cell.recovery.as_ref().map(|recovery| recovery.rule.check(config)) {
            left_out.push(leave(error.one_line()));
            continue;
        }
        let costs = Costs::of_cut(cell.depth.count, config, engine, prompt);
        let wrong = budget.layers.first().filter(|layers| cell.depth.count != **layers);
        let wrong = wrong.map(|layers| format!("{} layers removed, not {layers}", cell.depth));
        let distance = cell.depth.count.abs_diff(budget.layers.first().copied().unwrap_or(usize::MAX));
        match wrong.or_else(|| costs.misses(budget, dense)) {
            Some(reason) => nearest.push((distance, leave(reason))),
            None => taken.push(cell.clone()),
        }
    }
    if taken.is_empty() {
        nearest.sort_by_key(|(distance, _)| *distance);
        // Cells of one cut cost the same.
        nearest.dedup_by(|(_, later), (_, one)| later.reason == one.reason);
        let near: Vec<String> =
            nearest.iter().take(3).map(|(_, entry)| format!("{}: {}", entry.cell, entry.reason)).collect();
        let near =
            if near.is_empty() { left_out.iter().take(3).map(|entry| entry.reason.clone()).collect() } else { near };
        let found =
            if near.is_empty() { "no pruned cell".to_owned() } else { format!("the nearest: {}", near.join("; ")) };
        return Err(none_meets("no candidate meets the budget", grid, budget, &found));
    }
    left_out.extend(nearest.into_iter().map(|(_, entry)| entry));
    Ok((taken, left_out))
}

/// Creates the error that no candidate is left.
pub(super) fn none_meets(what: &str, grid: &Grid, budget: &Budget, found: &str) -> Error {
    let error = Error::bad_input(what).at(grid.file.display().to_string()).expected(budget.to_string());
    error.found(found).hint("other depths, or a budget that asks for less")
}

/// Drops cells that are deeper than another of the same method, if both are within the budget.
pub(super) fn without_deeper(cells: Vec<Cell>, left_out: &mut Vec<LeftOut>) -> Vec<Cell> {
    let kind = |cell: &Cell| format!("{:?} {:?} {:?}", cell.criterion, cell.recovery, cell.calibration);
    let mut least: BTreeMap<String, Depth> = BTreeMap::new();
    for cell in &cells {
        least.entry(kind(cell)).and_modify(|depth| *depth = cell.depth.min(*depth)).or_insert(cell.depth);
    }
    let (kept, deeper): (Vec<Cell>, Vec<Cell>) = cells.into_iter().partition(|cell| least[&kind(cell)] == cell.depth);
    left_out.extend(deeper.into_iter().map(|cell| {
        let reason = format!("{} layers of the same kind meet the budget", least[&kind(&cell)]);
        LeftOut { cell: cell.name, reason }
    }));
    kept
}

/// A candidate on its way.
pub(super) struct Racer {
    pub(super) cell: Cell,
    pub(super) removed: Vec<usize>,
    /// Its program, with placeholders for operators.
    pub(super) path: Program,
    pub(super) program: MeasuredProgram,
    pub(super) costs: Costs,
    pub(super) same: Vec<String>,
    pub(super) milliseconds: Option<f64>,
    /// Indexed by objective.
    pub(super) gains: Vec<Gains>,
    pub(super) beyond: Vec<Score>,
    pub(super) fate: Fate,
}

impl Racer {
    pub(super) fn told(self, tracks: &[Track]) -> Candidate {
        let scores = tracks.iter().zip(&self.gains).filter(|(_, gains)| gains.iter().any(|gain| !gain.is_empty()));
        let scores = scores.map(|(track, gains)| score(Stratified::of(gains), mean_of_means(gains), track)).collect();
        let items = self.gains.iter().flatten().map(Vec::len).sum();
        let Self { cell, removed, costs, same, milliseconds, beyond, fate, .. } = self;
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
            beyond,
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
    let kept = without_deeper(fits.iter().map(|(cell, ..)| cell.clone()).collect(), left_out);
    for (cell, result, costs) in fits.into_iter().filter(|(cell, ..)| kept.contains(cell)) {
        let program = MeasuredProgram::new(&result.removed, &result.boundaries);
        match racers.iter_mut().find(|racer| is_copy(&racer.program, &program)) {
            Some(same) => same.same.push(cell.name),
            None => racers.push(Racer {
                cell,
                removed: result.removed.whole_layers(),
                path: path(result.layers, &result.removed, &result.boundaries)?,
                program,
                costs,
                same: Vec::new(),
                milliseconds: None,
                gains: Vec::new(),
                beyond: Vec::new(),
                fate: Fate::Survived,
            }),
        }
    }
    Ok(racers)
}

fn is_copy(one: &MeasuredProgram, other: &MeasuredProgram) -> bool {
    let [one, other] = [one, other].map(slice::from_ref).map(RowContent::Programs);
    is_one_measurement(&one, &other)
}

/// Returns the best survivor on the first objective, the first of equals.
pub(super) fn winner(racers: &[Racer]) -> Option<usize> {
    let merit = |racer: usize| mean_of_means(&racers[racer].gains[0]);
    let alive = (0..racers.len()).filter(|&racer| racers[racer].fate == Fate::Survived);
    alive.reduce(|best, other| if merit(other) > merit(best) { other } else { best })
}
