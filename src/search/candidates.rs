//! Cells that meet a budget, and the state of each candidate during a search.

use std::collections::BTreeMap;
use std::slice;

use super::env::{Gains, SearchEnv, Track, scale_score, step_grid};
use super::program_path::build_program;
use super::race::mean_of_means;
use super::{Candidate, CandidateOutcome, CostModel, Costs, ExcludedCell, Score, in_gigabytes};
use crate::criterion::{Depth, DepthUnit};
use crate::error::{Error, Result};
use crate::grid::{Budget, Cell, Evaluate, Grid, Latency, Search};
use crate::model::{Config, Cut, EngineChoice, Program, deploy};
use crate::pipeline::exec::stored_program;
use crate::results::{MeasuredProgram, RowContent, is_one_measurement};
use crate::significance::stratified::StratifiedMean;

/// Splits a grid into searches, one for each backbone and each layer count in its budget.
pub fn split_searches(grid: &Grid) -> Vec<Grid> {
    let Some(search) = &grid.search else { return Vec::new() };
    let depths: Vec<Vec<usize>> = match search.budget.layers.as_slice() {
        [] => vec![Vec::new()],
        several => several.iter().map(|&depth| vec![depth]).collect(),
    };
    grid.backbone
        .iter()
        .flat_map(|backbone| depths.iter().map(move |layers| restrict(grid, backbone, layers)))
        .collect()
}

/// Restricts a search to one backbone and, unless `layers` is empty, to dense cells and cells that remove one of these
/// numbers of layers.
fn restrict(grid: &Grid, backbone: &str, layers: &[usize]) -> Grid {
    let mut part = grid.clone();
    part.cells.retain(|cell| cell.backbone == backbone);
    part.cells.retain(|cell| cell.is_dense() || layers.is_empty() || layers.iter().any(|count| cell.depth == *count));
    part.backbones.retain(|name, _| name == backbone);
    part.backbone = vec![backbone.to_owned()];
    if let Some(search) = &mut part.search {
        search.budget.layers = layers.to_vec();
        search.unselectable.retain(|unselectable| {
            let is_wanted = layers.is_empty() || layers.iter().any(|count| unselectable.depth == *count);
            unselectable.backbone == backbone && is_wanted
        });
    }
    part
}

/// Returns the depths to try in each unit, for a grid that specifies none: from the smallest depth at which some cut
/// may meet the budget to the smallest depth at which every cut does.
///
/// Returns at least two depths per unit if possible, because operators may use up the savings of the first depth.
///
/// # Errors
/// Fails with exit code 2 if the dense backbone already meets the budget, or if even the deepest cut misses it.
pub fn depths(
    units: &[DepthUnit],
    budget: &Budget,
    config: &Config,
    engine: EngineChoice,
    prompt: Latency,
    dense: Option<f64>,
) -> Result<Vec<Depth>> {
    let check = BudgetCheck { budget, model: CostModel::new(config, engine, prompt)?, layers: config.layers, dense };
    if check.meets_budget(Depth::layers(0)).1 {
        return Err(check
            .budget_error("the dense backbone already meets the budget")
            .expected("a budget that requires removing layers")
            .found(check.format_costs(0))
            .hint(format!("tighten the budget; removing one layer gives {}", check.format_costs(1))));
    }
    let mut depths = Vec::new();
    for &unit in units {
        depths.extend(check.find_depths(unit));
    }
    if !depths.is_empty() {
        return Ok(depths);
    }
    let max_removed = config.layers.saturating_sub(1);
    let reached = check.format_costs(max_removed);
    Err(check
        .budget_error("the budget cannot be met even with a single layer left")
        .expected(format!("a budget that removing {max_removed} of {} layers meets ({reached})", config.layers))
        .found(budget.to_string())
        .hint("loosen the budget; the embedding and the head cannot be removed"))
}

/// Budget with the cost model by which cuts are checked against it.
struct BudgetCheck<'a> {
    budget: &'a Budget,
    model: CostModel<'a>,
    layers: usize,
    /// Latency of the dense backbone in milliseconds, if known.
    dense: Option<f64>,
}

impl BudgetCheck<'_> {
    /// Returns whether at least one cut at a depth meets the budget, and whether every cut does.
    fn meets_budget(&self, depth: Depth) -> (bool, bool) {
        let estimates = self.model.estimate_costs(depth).into_iter();
        let meets: Vec<bool> = estimates.map(|costs| costs.violated_bound(self.budget, self.dense).is_none()).collect();
        (meets.contains(&true), !meets.contains(&false))
    }

    fn find_depths(&self, unit: DepthUnit) -> Vec<Depth> {
        let layers = self.layers;
        let all = unit.available(layers) - usize::from(unit.candidates(layers).len() == 2 * layers);
        let mut depths: Vec<Depth> = Vec::new();
        for count in 1..=all {
            let depth = Depth { count, unit };
            let (some, every) = self.meets_budget(depth);
            if some {
                depths.push(depth);
            }
            if every && depths.len() > 1 {
                break;
            }
        }
        depths
    }

    fn budget_error(&self, what: &str) -> Error {
        Error::bad_input(what).at(format!("--budget {}", self.budget))
    }

    /// Formats the estimated costs that remain after removing `layers` layers.
    fn format_costs(&self, layers: usize) -> String {
        let Some(costs) = self.model.estimate_costs(Depth::layers(layers)).into_iter().next() else {
            return String::new();
        };
        let Costs { speedup, bytes, params, kv_cache } = costs.keep_bounded_sizes(self.budget);
        let time = self.dense.map_or_else(String::new, |dense| format!(", {:.2} ms", dense / speedup));
        let shares = [(params, "of the parameters"), (kv_cache, "of the KV cache")].into_iter();
        let shares: String = shares.filter_map(|(share, what)| Some(format!(", {:.3} {what}", share?))).collect();
        format!("speedup {speedup:.3}{time}, {:.4} GB{shares}", in_gigabytes(bytes))
    }
}

/// Returns the candidate cells and the excluded cells. A cell is excluded if its criterion cannot select the cut, the
/// backbone does not support its recovery, or its estimated costs miss the budget.
///
/// # Errors
/// Fails with exit code 2 if no candidate is left. The message lists the cells that come closest to the budget.
pub(super) fn find_candidates(
    grid: &Grid,
    config: &Config,
    engine: EngineChoice,
    dense_milliseconds: Option<f64>,
) -> Result<(Vec<Cell>, Vec<ExcludedCell>)> {
    let Some(search) = &grid.search else { return Ok((Vec::new(), Vec::new())) };
    let budget = &search.budget;
    let model = CostModel::new(config, engine, search.prompt)?;
    let mut excluded: Vec<ExcludedCell> = search
        .unselectable
        .iter()
        .map(|unselectable| ExcludedCell { cell: unselectable.to_string(), reason: unselectable.reason.clone() })
        .collect();
    let mut candidates = Vec::new();
    let mut nearest = Vec::new();
    for cell in grid.cells.iter().filter(|cell| !cell.is_dense()) {
        let criterion = cell.criterion.as_ref().map_or(Ok(()), |criterion| criterion.rule.check_backbone(config));
        let recovery = cell.recovery.as_ref().map_or(Ok(()), |recovery| recovery.rule.check(config));
        if let Err(error) = criterion.and(recovery) {
            excluded.push(ExcludedCell::new(cell, error.one_line()));
            continue;
        }
        let estimates = model.estimate_costs(cell.depth).into_iter();
        let misses: Option<Vec<String>> =
            estimates.map(|costs| costs.violated_bound(budget, dense_milliseconds)).collect();
        let wrong_depth = budget.layers.first().filter(|layers| cell.depth != **layers);
        let wrong_depth =
            wrong_depth.map(|layers| format!("removes {}, but the budget requires {layers}", format_depth(cell.depth)));
        let distance = cell.depth.count.abs_diff(budget.layers.first().copied().unwrap_or(usize::MAX));
        match wrong_depth.or_else(|| misses.and_then(|reasons| reasons.into_iter().next())) {
            Some(reason) => nearest.push((distance, ExcludedCell::new(cell, reason))),
            None => candidates.push(cell.clone()),
        }
    }
    if candidates.is_empty() {
        nearest.sort_by_key(|(distance, _)| *distance);
        // Cells that remove the same number of layers have the same costs, so list each reason once.
        nearest.dedup_by(|(_, later), (_, one)| later.reason == one.reason);
        let near: Vec<String> =
            nearest.iter().take(3).map(|(_, entry)| format!("{}: {}", entry.cell, entry.reason)).collect();
        let near =
            if near.is_empty() { excluded.iter().take(3).map(|entry| entry.reason.clone()).collect() } else { near };
        let found = if near.is_empty() { "no pruned cell".to_owned() } else { format!("closest: {}", near.join("; ")) };
        return Err(no_candidate_error("no candidate meets the budget", grid, budget, &found));
    }
    excluded.extend(nearest.into_iter().map(|(_, entry)| entry));
    Ok((candidates, excluded))
}

/// Formats a depth, such as `7 layers` or `8 attention`.
fn format_depth(depth: Depth) -> String {
    if depth.is_in_layers() { format!("{depth} layers") } else { depth.to_string() }
}

pub(super) fn no_candidate_error(what: &str, grid: &Grid, budget: &Budget, found: &str) -> Error {
    let error = Error::bad_input(what).at(grid.file.display().to_string()).expected(budget.to_string());
    error.found(found).hint("try other depths or a looser budget")
}

/// Moves cells to `excluded` if a shallower cell with the same criterion, recovery and calibration also meets the
/// budget.
fn exclude_deeper_cells(cells: Vec<Cell>, excluded: &mut Vec<ExcludedCell>) -> Vec<Cell> {
    let mut min_depths: BTreeMap<String, Depth> = BTreeMap::new();
    for cell in &cells {
        min_depths
            .entry(format_method_key(cell))
            .and_modify(|depth| *depth = cell.depth.min(*depth))
            .or_insert(cell.depth);
    }
    let (kept, deeper): (Vec<Cell>, Vec<Cell>) =
        cells.into_iter().partition(|cell| min_depths[&format_method_key(cell)] == cell.depth);
    excluded.extend(deeper.into_iter().map(|cell| {
        let reason = format!(
            "with the same methods, removing {} already meets the budget",
            format_depth(min_depths[&format_method_key(&cell)])
        );
        ExcludedCell { cell: cell.name, reason }
    }));
    kept
}

/// Formats the settings of a cell, except for the number of removed layers or sublayers.
fn format_method_key(cell: &Cell) -> String {
    let Cell { criterion, recovery, calibration, depth, .. } = cell;
    format!("{criterion:?} {recovery:?} {calibration:?} {}", depth.unit)
}

/// State of a candidate during the search.
pub(super) struct Racer {
    pub(super) cell: Cell,
    pub(super) removed: Cut,
    /// Program with placeholder operators, by which layer evaluations are counted.
    pub(super) placeholder_program: Program,
    pub(super) program: MeasuredProgram,
    pub(super) costs: Costs,
    pub(super) duplicates: Vec<String>,
    pub(super) milliseconds: Option<f64>,
    /// Gains by objective, stratum and item.
    pub(super) gains: Vec<Gains>,
    pub(super) differences: Vec<Score>,
    pub(super) outcome: CandidateOutcome,
}

impl Racer {
    /// Returns the mean gain for the first objective.
    pub(super) fn merit(&self) -> f64 {
        mean_of_means(&self.gains[0])
    }

    /// Returns the sort key for the runner-up: whether the candidate survived, and the number of items on which it was
    /// scored.
    pub(super) fn rank(&self) -> (bool, usize) {
        (self.outcome == CandidateOutcome::Survived, count_seen_items(&self.gains))
    }

    pub(super) fn into_candidate(self, tracks: &[Track], budget: &Budget) -> Candidate {
        let scores = tracks.iter().zip(&self.gains).filter(|(_, gains)| gains.iter().any(|gain| !gain.is_empty()));
        let scores = scores
            .map(|(track, gains)| scale_score(StratifiedMean::from_strata(gains), mean_of_means(gains), track))
            .collect();
        let items = count_seen_items(&self.gains);
        let Self { cell, removed, costs, duplicates, milliseconds, differences, outcome, .. } = self;
        Candidate {
            criterion: cell.criterion.as_ref().map(ToString::to_string).unwrap_or_default(),
            recovery: cell.recovery.as_ref().map(ToString::to_string).unwrap_or_default(),
            calibration: cell.calibration.as_ref().map(ToString::to_string).unwrap_or_default(),
            cell: cell.name,
            removed,
            duplicates,
            costs: costs.keep_bounded_sizes(budget),
            milliseconds,
            scores,
            differences,
            items,
            outcome,
        }
    }
}

/// Computes the candidates' layer selections and operators. Excludes candidates that fail, miss the budget because of
/// their operators, or remove more than the budget requires. Merges identical candidates.
pub(super) fn solve_candidates(
    grid: &Grid,
    spec: &Search,
    env: &SearchEnv<'_>,
    cells: Vec<Cell>,
    dense_milliseconds: Option<f64>,
    excluded: &mut Vec<ExcludedCell>,
) -> Result<Vec<Racer>> {
    let solving = step_grid(grid, "candidates", cells, Evaluate::default());
    let outcome = (env.run)(&solving)?;
    let plan = env.plan(&solving)?;
    let mut racers: Vec<Racer> = Vec::new();
    let mut fits = Vec::new();
    for ((backbone, variant), result) in plan.variants().zip(&outcome.cells) {
        let cell = result.cell.clone();
        if let Some(reason) = result.failure.as_ref().or(result.missing.as_ref()) {
            excluded.push(ExcludedCell::new(&cell, reason.clone()));
            continue;
        }
        let program = deploy(&stored_program(env.run_env.store, backbone, variant)?, &backbone.config).program;
        let costs = Costs::new(&program, &backbone.config, backbone.engine, spec.prompt);
        match costs.violated_bound(&spec.budget, dense_milliseconds) {
            Some(reason) => excluded.push(ExcludedCell::new(&cell, format!("with operators: {reason}"))),
            None => fits.push((cell, result, costs)),
        }
    }
    let shallowest = exclude_deeper_cells(fits.iter().map(|(cell, ..)| cell.clone()).collect(), excluded);
    for (cell, result, costs) in fits.into_iter().filter(|(cell, ..)| shallowest.contains(cell)) {
        let program = MeasuredProgram::new(&result.removed, &result.boundaries);
        match racers.iter_mut().find(|racer| is_duplicate(&racer.program, &program)) {
            Some(racer) => racer.duplicates.push(cell.name),
            None => racers.push(Racer {
                cell,
                removed: result.removed.clone(),
                placeholder_program: build_program(result.layers, &result.removed, &result.boundaries)?,
                program,
                costs,
                duplicates: Vec::new(),
                milliseconds: None,
                gains: Vec::new(),
                differences: Vec::new(),
                outcome: CandidateOutcome::Survived,
            }),
        }
    }
    Ok(racers)
}

fn is_duplicate(one: &MeasuredProgram, other: &MeasuredProgram) -> bool {
    let [one, other] = [one, other].map(slice::from_ref).map(RowContent::Programs);
    is_one_measurement(&one, &other)
}

/// Returns the indices of the candidates that have not been eliminated.
pub(super) fn survivors(racers: &[Racer]) -> impl Iterator<Item = usize> {
    (0..racers.len()).filter(|&racer| racers[racer].outcome == CandidateOutcome::Survived)
}

pub(super) fn count_seen_items(gains: &[Gains]) -> usize {
    gains.iter().flatten().map(Vec::len).sum()
}

/// Returns the index of the survivor that is best in the first objective. The first one wins a tie.
pub(super) fn find_winner(racers: &[Racer]) -> Option<usize> {
    survivors(racers).reduce(|best, other| if racers[other].merit() > racers[best].merit() { other } else { best })
}
