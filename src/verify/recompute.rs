//! Recomputes a sample of the values in a results folder and compares them with the record.
//!
//! The sample depends only on the seed and the items, so it does not depend on the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::VerifyRequest;
use super::finding::{CheckKind, CheckResult, RecomputeCost};
use super::input_finder::InputFinder;
use super::recorded_results::ReferenceRun;
use super::value_checks::Checks;
use crate::error::{ErrorKind, Result};
use crate::files::sha256;
use crate::grid::{Cell, Grid};
use crate::model::{ComputeType, EngineChoice, EngineRequest, KernelFamily};
use crate::pipeline::exec::{RunEnv, RunSettings, estimate_sample_cost, score_sample};
use crate::pipeline::identity::{ComputeId, MeasureId};
use crate::pipeline::plan::{BackbonePlan, Evaluation};

pub(super) struct DrawnSample {
    /// Sampled cells, by engine.
    engine_grids: Vec<EngineGrid>,
    /// Fraction of the chunks (batches of windows or documents) that are recomputed.
    fraction: f64,
    inputs: CheckResult,
}

/// Cells that run on one engine.
#[derive(Clone)]
struct EngineGrid {
    grid: Grid,
    settings: RunSettings,
    engine: ComputeId,
}

/// Runs all calibrations that the sampled cells need. A calibration shared by several folders runs only once.
///
/// # Errors
/// Fails if the user interrupts the run. Other failures are reported by the checks of the folders that need the
/// calibration.
pub(super) fn calibrate(samples: &[&DrawnSample], request: &VerifyRequest<'_>) -> Result<()> {
    let mut joined: Vec<EngineGrid> = Vec::new();
    for engine_grid in samples.iter().flat_map(|drawn| &drawn.engine_grids) {
        match joined.iter_mut().find(|group| group.is_compatible_with(engine_grid)) {
            Some(group) => group.merge_grid(engine_grid),
            None => joined.push(engine_grid.without_evaluations()),
        }
    }
    for EngineGrid { grid, settings, .. } in &joined {
        let env = RunEnv { settings: *settings, ..request.env };
        let outcome = score_sample(grid, env, &|_: &BackbonePlan, _: &Evaluation, _| Vec::new());
        outcome.err().filter(|error| error.kind() == ErrorKind::Interrupted).map_or(Ok(()), Err)?;
    }
    Ok(())
}

impl EngineGrid {
    fn without_evaluations(&self) -> Self {
        let mut part = self.clone();
        part.grid.evaluate.perplexity.clear();
        part.grid.evaluate.tasks.clear();
        part
    }

    /// Returns whether both grids use the same engine and batch size, and define all common names equally.
    fn is_compatible_with(&self, other: &Self) -> bool {
        let grid = &self.grid;
        let two = &other.grid;
        let backbones =
            grid.backbones.iter().all(|(name, backbone)| two.backbones.get(name).is_none_or(|two| two == backbone));
        let corpora = grid.corpora.iter().all(|(name, corpus)| two.corpora.get(name).is_none_or(|two| two == corpus));
        backbones && corpora && self.engine == other.engine && self.settings.batch_tokens == other.settings.batch_tokens
    }

    /// Adds the cells, backbones and corpora of a compatible grid. Skips cells that differ from an existing one only in
    /// their names.
    fn merge_grid(&mut self, other: &Self) {
        let known: BTreeSet<usize> = (0..other.grid.cells.len())
            .filter(|&at| self.grid.cells.iter().any(|cell| without_name(cell) == without_name(&other.grid.cells[at])))
            .collect();
        let new_cells = other.grid.cells.iter().enumerate().filter(|(at, _)| !known.contains(at));
        self.grid.cells.extend(new_cells.map(|(_, cell)| cell.clone()));
        self.grid.cells.sort_by(|one, two| one.backbone.cmp(&two.backbone));
        self.grid.backbones.extend(other.grid.backbones.clone());
        self.grid.corpora.extend(other.grid.corpora.clone());
    }
}

fn without_name(cell: &Cell) -> Cell {
    Cell { name: String::new(), ..cell.clone() }
}

/// Samples cells, and drops those whose inputs are missing on this machine.
pub(super) fn draw_sample(
    recorded: &ReferenceRun,
    request: &VerifyRequest<'_>,
    finder: &InputFinder,
    notes: &mut Vec<String>,
) -> DrawnSample {
    let mut drawn = DrawnSample {
        engine_grids: Vec::new(),
        fraction: request.fraction,
        inputs: CheckResult::new(CheckKind::Inputs),
    };
    let grid = match Grid::from_frozen(&recorded.numbers.settings) {
        Ok(grid) => grid,
        Err(error) => {
            drawn.inputs.record_missing("the grid of the run", format!("readable settings ({})", error.one_line()));
            return drawn;
        }
    };
    let groups = grid.cells.iter().map(|cell| {
        if cell.calibration.is_some() {
            return calibration_group(cell);
        }
        // A dense cell is in the group of the first calibrated cell with the same backbone.
        let calibrated =
            grid.cells.iter().find(|member| member.backbone == cell.backbone && member.calibration.is_some());
        calibrated.map_or_else(|| cell.backbone.clone(), calibration_group)
    });
    let names: Vec<String> = grid.cells.iter().map(ToString::to_string).collect();
    let (indices, fraction) = sample_cells(request.seed, &groups.collect::<Vec<_>>(), &names, request.fraction);
    drawn.fraction = fraction;
    let mut sampled = grid.clone();
    sampled.cells = indices.iter().map(|&at| grid.cells[at].clone()).collect();
    sampled.evaluate.latency.clear();
    remove_unavailable(&mut sampled, recorded, finder, &mut drawn.inputs);
    let engines: BTreeSet<ComputeId> =
        sampled.cells.iter().map(|cell| recorded.numbers.engine(&cell.backbone)).collect();
    for engine in engines {
        let mut subset = sampled.clone();
        subset.cells.retain(|cell| recorded.numbers.engine(&cell.backbone) == engine);
        let Some(backbone) = subset.cells.first().map(|cell| cell.backbone.clone()) else { continue };
        subset.backbones.retain(|name, _| subset.cells.iter().any(|cell| cell.backbone == *name));
        let (engine_request, note) = choose_engine(&engine, &subset, &backbone);
        notes.extend(note);
        let base = request.env.settings;
        let measured = subset.backbones.keys().filter_map(|name| recorded.numbers.measured.get(name));
        let batch = measured.flat_map(BTreeMap::values).flatten().find_map(batch_tokens);
        let settings = RunSettings { engine: engine_request, batch_tokens: batch.or(base.batch_tokens), ..base };
        drawn.engine_grids.push(EngineGrid { grid: subset, settings, engine });
    }
    drawn
}

fn calibration_group(cell: &Cell) -> String {
    match &cell.calibration {
        Some(calibration) => format!("{} {}", cell.backbone, serde_json::to_string(calibration).unwrap_or_default()),
        None => String::new(),
    }
}

fn batch_tokens(id: &MeasureId) -> Option<usize> {
    match id {
        MeasureId::Windows { batch, .. } | MeasureId::Task { batch, .. } | MeasureId::Defined { batch, .. } => {
            Some(*batch)
        }
        _ => None,
    }
}

impl DrawnSample {
    /// Returns a function that samples chunks. The sample depends on what is measured, not on the names in the grid.
    fn chunk_sampler(
        &self,
        request: &VerifyRequest<'_>,
    ) -> impl Fn(&BackbonePlan, &Evaluation, usize) -> Vec<usize> + use<> {
        let seed = request.seed;
        let fraction = self.fraction;
        move |backbone, variants, chunks| {
            let measure = serde_json::to_string(&*variants.measure).unwrap_or_default();
            sample_indices(seed, &format!("{}/{measure}", backbone.dense.model.content), chunks, fraction)
        }
    }

    /// Estimates the work needed to recompute the sample.
    ///
    /// # Errors
    /// Fails if the user interrupts the estimate. Other failures are reported when the sample is recomputed.
    pub(super) fn estimate_work(&self, request: &VerifyRequest<'_>) -> Result<RecomputeCost> {
        let mut work = RecomputeCost::default();
        for EngineGrid { grid, settings, .. } in &self.engine_grids {
            work.cells += grid.cells.len();
            work.backbones.extend(grid.backbones.values().map(|backbone| backbone.path.display().to_string()));
            let draw = self.chunk_sampler(request);
            match estimate_sample_cost(grid, RunEnv { settings: *settings, ..request.env }, &draw) {
                Ok(cost) => {
                    work.calibrations += cost.calibrations;
                    work.chunks += cost.chunks;
                    work.flop += cost.flops;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(_) => {}
            }
        }
        Ok(work)
    }

    /// Recomputes the sample and compares it with the record.
    ///
    /// # Errors
    /// Fails if the user interrupts the verification.
    pub(super) fn check(self, recorded: &ReferenceRun, request: &VerifyRequest<'_>) -> Result<Vec<CheckResult>> {
        let draw = self.chunk_sampler(request);
        let mut checks = Checks::new(self.inputs);
        for EngineGrid { grid, settings, engine } in &self.engine_grids {
            match score_sample(grid, RunEnv { settings: *settings, ..request.env }, &draw) {
                Ok(cells) => cells.iter().for_each(|cell| checks.compare(recorded, engine, grid, cell)),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(error) => checks.inputs.record_missing(
                    format!("cells on the engine {engine}"),
                    format!("recomputed values ({})", error.one_line()),
                ),
            }
        }
        Ok(checks.into_results(recorded))
    }
}

/// Returns the recorded engine. If this machine cannot run it, returns the closest available engine and a note.
fn choose_engine(id: &ComputeId, grid: &Grid, backbone: &str) -> (EngineRequest, Option<String>) {
    let Some((request, backbone)) = id.request().zip(grid.backbones.get(backbone)) else {
        return (EngineRequest::default(), unavailable_note(id));
    };
    match request.choose(&backbone.path).map(EngineChoice::check) {
        Ok(Ok(())) => (request, None),
        Ok(Err(error)) => {
            let dtype = request.dtype.map(ComputeType::portable);
            let portable = EngineRequest { kernels: Some(KernelFamily::Portable), dtype, ..request };
            let note =
                format!("{id} cannot run on this machine; recomputing with portable kernels: {}", error.one_line());
            (portable, Some(note))
        }
        Err(_) => (EngineRequest::default(), unavailable_note(id)),
    }
}

fn unavailable_note(id: &ComputeId) -> Option<String> {
    Some(format!("{id} is not available on this machine; recomputing with available kernels"))
}

/// Removes from a grid all cells and evaluations whose inputs are missing on this machine.
fn remove_unavailable(grid: &mut Grid, recorded: &ReferenceRun, finder: &InputFinder, check: &mut CheckResult) {
    let inputs = &recorded.numbers.inputs;
    grid.backbones.retain(|name, _| grid.cells.iter().any(|cell| cell.backbone == *name));
    let mut is_here = |what: &str, name: &str, path: &mut PathBuf| {
        let here = finder.find(&format!("{what} {name}"), path, inputs, check);
        here.map(|here| *path = here).is_some()
    };
    grid.backbones.retain(|name, backbone| is_here("backbone", name, &mut backbone.path));
    grid.corpora.retain(|name, corpus| is_here("text", name, &mut corpus.path));
    for (what, tasks) in [("task", &mut grid.tasks), ("rows of the task", &mut grid.definitions)] {
        tasks.retain(|name, task| {
            task.paths_mut().into_iter().fold(true, |here, path| here & is_here(what, name, path))
        });
    }
    let Grid { backbones, corpora, tasks, definitions, cells, evaluate, .. } = grid;
    cells.retain(|cell| {
        let text = cell.calibration.as_ref().is_none_or(|calibration| corpora.contains_key(&calibration.corpus));
        backbones.contains_key(&cell.backbone) && text
    });
    evaluate.perplexity.retain(|text| corpora.contains_key(&text.corpus));
    evaluate.tasks.retain(|task| match task.defined {
        true => definitions.contains_key(&task.name),
        false => tasks.contains_key(&task.name),
    });
    evaluate.groups.clear();
}

/// Samples a fraction of the indices below `count`, but at least one, in ascending order. Samples with different labels
/// are independent.
pub(super) fn sample_indices(seed: u64, label: &str, count: usize, fraction: f64) -> Vec<usize> {
    let names: Vec<String> = (0..count).map(|at| format!("{label}/{at}")).collect();
    let chosen = sample_names(seed, &names.iter().collect::<Vec<_>>(), fraction);
    (0..count).filter(|&at| chosen.contains(names[at].as_str())).collect()
}

/// Samples cells. Also returns the fraction of chunks to sample in each cell.
///
/// Groups are sampled first, then cells, then chunks. The cells in a group share a calibration. Calibrations are
/// expensive, and a few chunks suffice to find a cell that is entirely wrong. The sample does not depend on the folder,
/// so folders with the same cells share the work.
pub(super) fn sample_cells(seed: u64, groups: &[String], names: &[String], fraction: f64) -> (Vec<usize>, f64) {
    let distinct_groups: Vec<&String> = groups.iter().collect::<BTreeSet<_>>().into_iter().collect();
    let chosen = sample_names(seed, &distinct_groups, fraction.sqrt());
    let candidates: Vec<usize> = (0..groups.len()).filter(|&at| chosen.contains(&groups[at].as_str())).collect();
    let candidate_names: Vec<&String> = candidates.iter().map(|&at| &names[at]).collect();
    let remaining = (fraction * groups.len() as f64 / candidates.len().max(1) as f64).min(1.0);
    let chosen = sample_names(seed, &candidate_names, remaining.sqrt());
    let cells: Vec<usize> = candidates.into_iter().filter(|&at| chosen.contains(&names[at].as_str())).collect();
    let remaining = (fraction * groups.len() as f64 / cells.len().max(1) as f64).min(1.0);
    (cells, remaining)
}

/// Samples a fraction of the names, but at least one. Picks the names with the smallest hashes of seed and name, so
/// that their order does not matter.
fn sample_names<'a>(seed: u64, names: &[&'a String], fraction: f64) -> BTreeSet<&'a str> {
    // Subtract a small tolerance, because a product such as 0.05 × 100 may be rounded to slightly more than 5.
    let count = ((fraction * names.len() as f64 - 1e-9).ceil().max(1.0) as usize).min(names.len());
    let mut all: Vec<(String, &str)> =
        names.iter().map(|text| (sha256::of_bytes(format!("{seed}/{text}")), text.as_str())).collect();
    all.sort_unstable();
    all.into_iter().take(count).map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_is_rounded_up_and_depends_on_the_seed() {
        assert_eq!(sample_indices(0, "a", 100, 0.05).len(), 5);
        assert_eq!(sample_indices(0, "a", 7, 0.01).len(), 1);
        assert_eq!(sample_indices(0, "a", 7, 1.0), [0, 1, 2, 3, 4, 5, 6]);
        assert!(sample_indices(0, "a", 0, 1.0).is_empty());
        assert_eq!(sample_indices(3, "a", 100, 0.1), sample_indices(3, "a", 100, 0.1));
        assert_ne!(sample_indices(3, "a", 100, 0.1), sample_indices(4, "a", 100, 0.1));
        assert_ne!(sample_indices(3, "a", 100, 0.1), sample_indices(3, "b", 100, 0.1));
    }

    #[test]
    fn sample_covers_the_fraction_using_few_calibrations() {
        for (fraction, count) in [(0.05, 66), (0.02, 57), (1.0, 5), (0.5, 1), (0.02, 2)] {
            let (groups, names) = groups_and_names(count);
            let (drawn, chunks) = sample_cells(7, &groups, &names, fraction);
            assert!(!drawn.is_empty() && drawn.len() <= count);
            let drawn_fraction = drawn.len() as f64 * chunks / count as f64;
            assert!((drawn_fraction - fraction).abs() < 1e-9, "{fraction} {count} {drawn:?} {chunks}");
            let kinds: BTreeSet<&String> = drawn.iter().map(|&at| &groups[at]).collect();
            assert!(fraction > 0.1 || kinds.len() <= 2, "{kinds:?}");
        }
        // The sample does not depend on the order of the cells.
        let (groups, names) = groups_and_names(57);
        let (first, _) = sample_cells(7, &groups, &names, 0.02);
        let (again, _) = sample_cells(7, &reversed(&groups), &reversed(&names), 0.02);
        let mut again: Vec<usize> = again.iter().map(|at| 56 - at).collect();
        again.sort_unstable();
        assert_eq!(first, again);
        assert_ne!(first, sample_cells(8, &groups, &names, 0.02).0);
    }

    fn groups_and_names(count: usize) -> (Vec<String>, Vec<String>) {
        (0..count).map(|at| (format!("backbone {}", at % 3), format!("cell {at}"))).unzip()
    }

    fn reversed(names: &[String]) -> Vec<String> {
        names.iter().rev().cloned().collect::<Vec<_>>()
    }
}
