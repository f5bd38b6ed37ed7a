//! Environment of a search: the function that runs its grids, grids for timing, objectives with their items, and the
//! schedule of rounds.

use std::collections::BTreeMap;

use super::Score;
use crate::error::{Error, Result};
use crate::grid::{Cell, Draw, EvalTask, Evaluate, Grid, Latency, Perplexity, Search, TaskSettings};
use crate::latency::LatencyResult;
use crate::model::{Config, EngineChoice};
use crate::pipeline::exec::{self, CellResult, GridOutcome, RunEnv, TargetMachine};
use crate::pipeline::plan::{EvalTarget, Plan};
use crate::significance::stratified::StratifiedMean;

/// Environment and callbacks with which a search runs its grids.
pub struct SearchEnv<'a> {
    pub run_env: RunEnv<'a>,
    /// Function that runs a grid to completion, possibly together with workers.
    pub run: &'a dyn Fn(&Grid) -> Result<GridOutcome>,
    /// Whether this process may measure latencies. If not, latencies are only read from the store.
    pub can_time: bool,
}

impl SearchEnv<'_> {
    pub(super) fn plan<'g>(&self, grid: &'g Grid) -> Result<Plan<'g>> {
        let RunEnv { store, settings, .. } = self.run_env;
        Plan::new(grid, store, settings)
    }
}

pub(super) fn read_backbone(grid: &Grid, env: &SearchEnv<'_>) -> Result<(Config, EngineChoice)> {
    let bare = step_grid(grid, "backbone", dense_cells(grid), Evaluate::default());
    let plan = env.plan(&bare)?;
    let backbone = plan.backbones.first().ok_or_else(|| Error::bad_input("the search has no backbone"))?;
    Ok((backbone.config.clone(), backbone.engine))
}

/// Builds the grid of one step of a search, with the given cells and evaluations.
pub(super) fn step_grid(grid: &Grid, step: &str, cells: Vec<Cell>, evaluate: Evaluate) -> Grid {
    Grid { name: format!("{}.{step}", grid.name), cells, evaluate, ..grid.clone() }
}

pub(super) fn dense_cells(grid: &Grid) -> Vec<Cell> {
    grid.cells.iter().filter(|cell| cell.is_dense()).cloned().collect()
}

/// Measures the dense backbone's latency in milliseconds, or reads it from the store if this process may not measure.
pub(super) fn measure_dense_latency(grid: &Grid, spec: &Search, env: &SearchEnv<'_>) -> Result<f64> {
    let outcome = time_cells(grid, "dense", dense_cells(grid), spec, env)?;
    let time = outcome.cells.first().and_then(|cell| measured_latency(cell, &spec.prompt));
    let time =
        time.ok_or_else(|| Error::job("no latency measured for the dense backbone").at(grid.backbone.join(", ")));
    time.map(|(time, _)| time)
}

/// Measures the latency of cells for the search's prompt. If this process may not measure latencies, reads the stored
/// ones instead.
pub(super) fn time_cells(
    grid: &Grid,
    step: &str,
    cells: Vec<Cell>,
    spec: &Search,
    env: &SearchEnv<'_>,
) -> Result<GridOutcome> {
    let grid = step_grid(grid, step, cells, Evaluate { latency: vec![spec.prompt], ..Evaluate::default() });
    if env.can_time {
        return (env.run)(&grid);
    }
    let outcome = exec::read_stored(&grid, &RunEnv { reporter: &(), ..env.run_env }, &|_, _| ())?;
    match outcome.cells.iter().find(|cell| cell.missing.is_some() && cell.failure.is_none()) {
        None => Ok(outcome),
        Some(result) => Err(Error::missing("the search has a time budget, but workers do not measure latencies")
            .at(result.cell.to_string())
            .hint("run `ghostlab search` with the same file, during or after the workers")),
    }
}

/// Returns the mean latency of a cell for a prompt in milliseconds, and the speedup if the dense backbone was timed.
pub fn measured_latency(result: &CellResult, prompt: &Latency) -> Option<(f64, Option<f64>)> {
    mean_latency(result.prompt(prompt)?.sample.as_ref()?)
}

/// Returns the mean latency of prefill and decoding in milliseconds, and the speedup if the dense backbone was timed.
fn mean_latency(timed: &LatencyResult) -> Option<(f64, Option<f64>)> {
    let read = timed.spread()?.mean;
    let faster = timed.speedup().map(|speedup| speedup.ratio);
    let Some(decode) = &timed.decode else { return Some((read, faster)) };
    let new = decode.spread()?.mean;
    let dense = faster
        .zip(decode.speedup())
        .map(|(prefill_ratio, decode_speedup)| prefill_ratio * read + decode_speedup.ratio * new);
    Some((read + new, dense.map(|dense| dense / (read + new))))
}

/// Number of documents in the first round, summed over tasks.
pub const FIRST_DOCUMENTS: usize = 64;
/// Number of windows in the first round, summed over texts.
pub const FIRST_WINDOWS: usize = 16;

/// Fraction of each stratum that is held out for the final evaluation.
pub const HELD_OUT_FRACTION: f64 = 0.2;

pub fn held_out_items(items: usize) -> usize {
    (items as f64 * HELD_OUT_FRACTION).round() as usize
}

/// Schedule of rounds for one objective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Number of items in each stratum (task or text), without those held out for the final evaluation.
    strata: Vec<usize>,
    /// Number of items per stratum in the first round.
    first_round_items: usize,
}

impl Schedule {
    /// Creates a schedule with about `first` items in the first round. The number of items per stratum is rounded up to
    /// a power of two, so that searches of different sizes have item ranges in common.
    pub fn new(strata: Vec<usize>, first: usize) -> Self {
        let first_round_items = first.div_ceil(strata.len().max(1)).next_power_of_two();
        Self { strata, first_round_items }
    }

    pub fn rounds(&self) -> usize {
        let max_items = self.strata.iter().copied().max().unwrap_or(0);
        (0..).find(|&round| self.items_reached(round) >= max_items).map_or(1, |round| round + 1)
    }

    /// Returns how many items of each stratum have been scored after a round, where 0 is the first round.
    pub fn items_after(&self, round: usize) -> Vec<usize> {
        self.strata.iter().map(|&items| items.min(self.items_reached(round))).collect()
    }

    /// Returns the ranges of a stratum's items that a round adds. Ranges end at powers of two or at the last item.
    pub fn added_ranges(&self, round: usize, stratum: usize) -> Vec<(usize, usize)> {
        let items = self.strata[stratum];
        let first = if round == 0 { 0 } else { self.items_reached(round - 1) };
        let mut from = first.min(items);
        let end = self.items_reached(round).min(items);
        let mut ranges = Vec::new();
        while from < end {
            let to = if from == 0 { FIRST_RANGE_LENGTH } else { 2 * from };
            ranges.push((from, to.min(end)));
            from = to;
        }
        ranges
    }

    fn items_reached(&self, round: usize) -> usize {
        u32::try_from(round)
            .ok()
            .and_then(|round| self.first_round_items.checked_shl(round))
            .unwrap_or(usize::MAX)
            .max(self.first_round_items)
    }
}

/// Number of items in the first range of a stratum.
const FIRST_RANGE_LENGTH: usize = 4;

/// Task or text, with its number of items.
pub(super) struct Stratum {
    pub(super) on: EvalTarget,
    /// Number of items in the task or text.
    pub(super) all: usize,
    /// Number of items that the search may use, including held-out items.
    pub(super) used: usize,
}

/// Objective with its strata and its schedule.
pub(super) struct Track {
    pub(super) name: &'static str,
    pub(super) strata: Vec<Stratum>,
    pub(super) schedule: Schedule,
    /// Factor that converts gains to the displayed unit.
    pub(super) scale: f64,
}

/// Gains of a candidate by stratum and item. A gain is 1 for a right answer and 0 for a wrong one, or the negative loss
/// of a window in nats per token.
pub(super) type Gains = Vec<Vec<f64>>;

impl Stratum {
    pub(super) fn held_out_count(&self) -> usize {
        held_out_items(self.used)
    }
}

/// Returns one track per objective. Tokenizes all texts and tasks to count their items.
pub(super) fn build_tracks(grid: &Grid, spec: &Search, env: &SearchEnv<'_>) -> Result<Vec<Track>> {
    let dense_grid = Grid { cells: dense_cells(grid), ..grid.clone() };
    let plan = env.plan(&dense_grid)?;
    exec::preflight(&plan, &env.run_env, TargetMachine::Local, &|_, _| ())?;
    let outcome = GridOutcome::read(&plan, env.run_env.store, &BTreeMap::new())?;
    let tasks =
        grid.evaluate.tasks.iter().map(|used| (EvalTarget::Task(used.clone()), count_documents(&outcome, used)));
    let texts =
        grid.evaluate.perplexity.iter().map(|text| (EvalTarget::Windows(text.clone()), count_windows(&outcome, text)));
    let tracks = [
        build_track(spec, "accuracy", tasks.collect(), FIRST_DOCUMENTS, 100.0),
        build_track(spec, "loss", texts.collect(), FIRST_WINDOWS, -1.0),
    ];
    let tracks: Vec<Track> = tracks.into_iter().filter(|track| !track.strata.is_empty()).collect();
    match tracks.iter().flat_map(|track| &track.strata).find(|stratum| stratum.held_out_count() == 0) {
        None => Ok(tracks),
        Some(stratum) => Err(Error::bad_input("no held-out items")
            .at(stratum.on.to_string())
            .expected("at least 3 items of each task and text (one fifth is held out)")
            .found(format!("{} of {} items", stratum.used, stratum.all))
            .hint("raise --items, or use fewer tasks and texts")),
    }
}

/// Creates the track of an objective. Items held out for the final evaluation are not in its schedule.
fn build_track(spec: &Search, name: &'static str, strata: Vec<(EvalTarget, usize)>, first: usize, scale: f64) -> Track {
    let max_items = spec.items.map_or(usize::MAX, |items| items.div_ceil(strata.len().max(1)));
    let strata = strata.into_iter().map(|(on, all)| Stratum { on, all, used: all.min(max_items) });
    let strata: Vec<Stratum> = strata.collect();
    let sizes = strata.iter().map(|stratum| stratum.used - stratum.held_out_count()).collect();
    Track { name, strata, schedule: Schedule::new(sizes, first), scale }
}

fn count_documents(outcome: &GridOutcome, used: &EvalTask) -> usize {
    outcome.task(used).map_or(0, |task| task.documents)
}

fn count_windows(outcome: &GridOutcome, text: &Perplexity) -> usize {
    outcome.text_extents(text).next().map_or(0, |text| text.windows)
}

/// Function that takes a track and the index of a stratum, and returns the item ranges to score.
pub(super) type DrawRanges<'a> = dyn Fn(&Track, usize) -> Vec<(usize, usize)> + 'a;

/// Returns empty gains, one list per stratum of each track.
pub(super) fn empty_gains(tracks: &[Track]) -> Vec<Gains> {
    tracks.iter().map(|track| vec![Vec::new(); track.strata.len()]).collect()
}

/// Builds the evaluations of a round: one task or text for each item range that `draw_ranges` returns.
pub(super) fn build_evaluation(spec: &Search, tracks: &[Track], draw_ranges: &DrawRanges<'_>) -> Evaluate {
    let mut perplexity = Vec::new();
    let mut tasks = Vec::new();
    for track in tracks {
        for (at, stratum) in track.strata.iter().enumerate() {
            for (from, to) in draw_ranges(track, at) {
                let draw = Some(Draw { seed: spec.seed, from, to });
                match &stratum.on {
                    EvalTarget::Task(task) => tasks.push(with_draw(task, draw)),
                    EvalTarget::Windows(text) => perplexity.push(Perplexity { draw, ..text.clone() }),
                }
            }
        }
    }
    Evaluate { perplexity, tasks, ..Evaluate::default() }
}

fn with_draw(task: &EvalTask, draw: Option<Draw>) -> EvalTask {
    EvalTask { how: TaskSettings { draw, ..task.how.clone() }, ..task.clone() }
}

/// Appends a candidate's gains on the items that `result` scored.
pub(super) fn append_gains(
    gains: &mut [Gains],
    tracks: &[Track],
    evaluate: &Evaluate,
    result: &CellResult,
) -> Result<()> {
    for (track, gains) in tracks.iter().zip(gains) {
        for (stratum, gains) in track.strata.iter().zip(gains) {
            match &stratum.on {
                EvalTarget::Task(task) => {
                    for drawn in evaluate.tasks.iter().filter(|drawn| with_draw(drawn, None) == *task) {
                        let scores = result.task(drawn).and_then(|task| task.sample.as_ref());
                        let right = scores.and_then(|scores| {
                            let main_score = scores.main_score()?;
                            scores.right(&main_score.metric, &main_score.filter)
                        });
                        let right = right.ok_or_else(|| missing_scores_error(&result.cell, &drawn.to_string()))?;
                        gains.extend(right.into_iter().map(|is_correct| f64::from(u8::from(is_correct))));
                    }
                }
                EvalTarget::Windows(text_use) => {
                    let drawn = evaluate
                        .perplexity
                        .iter()
                        .filter(|text| Perplexity { draw: None, ..(*text).clone() } == *text_use);
                    for text in drawn {
                        let losses = result.text(text).and_then(|scores| scores.sample.as_ref());
                        let losses = losses.ok_or_else(|| missing_scores_error(&result.cell, &text.to_string()))?;
                        gains.extend(losses.windows.iter().map(|loss| -loss));
                    }
                }
            }
        }
    }
    Ok(())
}

fn missing_scores_error(cell: &Cell, on: &str) -> Error {
    Error::job("a candidate has no scores").at(format!("{cell} on {on}"))
}

/// Converts a mean gain and its 95 % confidence interval to the unit of the objective.
pub(super) fn scale_score(stratified: Option<StratifiedMean>, mean: f64, track: &Track) -> Score {
    Score {
        mean: track.scale * mean,
        half: stratified.map(|stratified| track.scale.abs() * stratified.half_width(0.95)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn race_rounds_double_until_strata_are_exhausted() {
        let schedule = Schedule::new(vec![100, 30], 16);
        assert_eq!(schedule.rounds(), 5);
        let seen: Vec<Vec<usize>> = (0..5).map(|round| schedule.items_after(round)).collect();
        assert_eq!(seen, [vec![8, 8], vec![16, 16], vec![32, 30], vec![64, 30], vec![100, 30]]);
        assert_eq!(Schedule::new(vec![5], 64).rounds(), 1);
    }

    #[test]
    fn added_ranges_end_at_powers_of_two_or_the_last_item() {
        let schedule = Schedule::new(vec![100, 30], 16);
        assert_eq!(schedule.added_ranges(0, 0), [(0, 4), (4, 8)]);
        assert_eq!(schedule.added_ranges(2, 1), [(16, 30)]);
        assert_eq!(schedule.added_ranges(3, 1), []);
        assert_eq!(schedule.added_ranges(4, 0), [(64, 100)]);
        // With a single task, all items of the first round come from it.
        assert_eq!(Schedule::new(vec![100], 16).added_ranges(0, 0), [(0, 4), (4, 8), (8, 16)]);
    }
}
