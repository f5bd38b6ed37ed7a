//! The run of a grid: preflight, then backbone by backbone one calibration pass for each calibration and one trie for each text.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::calibration::Calibrating;
use super::event::{Event, Job, Reporter};
use super::prepare::{Prepared, prepare};
use super::tasks::{TaskData, TaskProtocol};
use super::variant::CellResult;
use crate::corpus::Windows;
use crate::criterion::{self, Cut};
use crate::error::{Error, Result};
use crate::evaluate::{choices, perplexity};
use crate::grid::{Cell, Grid};
use crate::model::trie::Cost;
use crate::model::{Decoder, Load, Operator, Program, Trie};
use crate::store::Store;

/// How to run, as far as it may not change a result beyond rounding.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Tokens of a batch.
    pub batch_tokens: usize,
    /// Most bytes of activations to spool in one pass. Where all sites that a selection may need are more, a second
    /// pass spools only those that the selections chose.
    pub spool_bytes: u64,
    /// Run every variant by itself, with its own calibration pass and its own forward passes, and nothing taken from the
    /// store: for benchmarks and tests.
    pub separate: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { batch_tokens: 2048, spool_bytes: 32 << 30, separate: false }
    }
}

/// What came of a grid.
#[derive(Debug)]
pub struct Outcome {
    /// In the order of the grid's.
    pub cells: Vec<CellResult>,
    /// SHA-256 of every file that was read, by path.
    pub inputs: BTreeMap<String, String>,
    /// How each task was scored, in the grid's order.
    pub tasks: Vec<TaskProtocol>,
}

impl Outcome {
    /// How many cells failed.
    pub fn failed(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_some()).count()
    }
}

/// Runs all cells of a grid. A cell that fails is in the outcome with its reason; the others go on.
///
/// # Errors
/// What preflight finds, a backbone that cannot be loaded, or that `stop` was set.
pub fn run(
    grid: &Grid,
    settings: Settings,
    store: &Store,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let inputs = super::inputs::hashes(grid)?;
    let tasks = TaskData::read(grid)?;
    let prepared = prepare(grid, &inputs, &tasks, reporter)?;
    let mut cells: Vec<CellResult> =
        grid.cells.iter().map(|cell| CellResult::new(cell.clone(), grid.backbones[&cell.backbone].layers)).collect();
    let mut first = true;
    for backbone in &prepared {
        let mut own: Vec<&mut CellResult> =
            cells.iter_mut().filter(|result| result.cell.backbone == backbone.name).collect();
        let decoder = Decoder::load_with(backbone.config.clone(), &backbone.folder)?;
        let run = Run { grid, backbone, decoder, settings, store, reporter, stop };
        if std::mem::take(&mut first) {
            let flops = run.planned_flops(&own)? * prepared.len() as f64;
            reporter.event(Event::Planned { flops });
        }
        run.calibrate(&mut own)?;
        run.evaluate(&mut own)?;
    }
    Ok(Outcome { cells, inputs, tasks: tasks.protocols(grid) })
}

/// One backbone's part of a run.
pub(super) struct Run<'a> {
    grid: &'a Grid,
    pub(super) backbone: &'a Prepared<'a>,
    pub(super) decoder: Decoder,
    pub(super) settings: Settings,
    store: &'a Store,
    reporter: &'a dyn Reporter,
    stop: &'a AtomicBool,
}

impl Run<'_> {
    fn calibrate(&self, cells: &mut [&mut CellResult]) -> Result<()> {
        for (calibration, windows) in self.grid.calibration.iter().zip(&self.backbone.calibrations) {
            let mut own: Vec<&mut CellResult> = cells
                .iter_mut()
                .map(|cell| &mut **cell)
                .filter(|result| result.cell.calibration.as_ref() == Some(calibration))
                .collect();
            if own.is_empty() {
                continue;
            }
            if !self.settings.separate {
                Calibrating::new(self, self.store, windows, calibration).repair(&mut own)?;
                continue;
            }
            for cells in own.chunks_mut(1) {
                let folder =
                    tempfile::tempdir().map_err(|error| Error::io("create", "a temporary folder".as_ref(), &error))?;
                let store = Store::open(folder.path())?;
                Calibrating::new(self, &store, windows, calibration).repair(cells)?;
            }
        }
        Ok(())
    }

    /// Perplexity of the bare backbone without each of some sets of layers, on some windows.
    pub(super) fn perplexities(&self, label: &str, windows: &Windows, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
        let layers = self.decoder.config().layers;
        let programs: Vec<Program> = removed.iter().map(|set| Program::pruned(layers, set, |_| None)).collect();
        let trie = Trie::new(&programs);
        let tokens = windows.ids.len();
        self.start(label, tokens, programs.len(), self.cost(&trie, &Load::windows(tokens, windows.length)).shared);
        let (mut seconds, batch) = (vec![0.0; trie.len()], self.settings.batch_tokens);
        let progress = |tokens| self.advance(tokens);
        let losses = perplexity::score(&self.decoder, &trie, programs.len(), windows, batch, &mut seconds, progress)?;
        self.finish();
        Ok(losses.iter().map(perplexity::Losses::perplexity).collect())
    }

    fn evaluate(&self, cells: &mut [&mut CellResult]) -> Result<()> {
        let texts = self.grid.evaluate.perplexity.len();
        let mut live: Vec<&mut CellResult> = Vec::new();
        for cell in cells.iter_mut() {
            cell.perplexity = vec![None; texts];
            cell.tasks = vec![None; self.backbone.tasks.len()];
            if cell.program.is_some() {
                live.push(cell);
            }
        }
        if self.settings.separate {
            for cell in live {
                self.score(&mut [&mut *cell])?;
                self.score_tasks(&mut [cell])?;
            }
            return Ok(());
        }
        self.score(&mut live)?;
        self.score_tasks(&mut live)
    }

    /// Scores cells on all texts, sharing what their programs share.
    fn score(&self, cells: &mut [&mut CellResult]) -> Result<()> {
        let programs: Vec<Program> = cells.iter().filter_map(|cell| cell.program.clone()).collect();
        let trie = Trie::new(&programs);
        for (index, (text, windows)) in self.grid.evaluate.perplexity.iter().zip(&self.backbone.texts).enumerate() {
            let tokens = windows.count() * windows.length;
            let cost = self.cost(&trie, &Load::windows(tokens, windows.length));
            let label = format!("perplexity of {} on {}", self.backbone.name, text.corpus);
            self.note(&format!(
                "{label}: {} cells share {:.2} of {:.2} TFLOP ({:.0} %)",
                cells.len(),
                cost.shared / 1e12,
                cost.separate / 1e12,
                100.0 * cost.shared / cost.separate
            ));
            self.start(&label, tokens, cells.len(), cost.shared);
            let mut seconds = vec![0.0; trie.len()];
            let progress = |tokens| self.advance(tokens);
            let batch = self.settings.batch_tokens;
            let losses =
                perplexity::score(&self.decoder, &trie, programs.len(), windows, batch, &mut seconds, progress)?;
            self.finish();
            for ((cell, losses), share) in cells.iter_mut().zip(losses).zip(trie.shares(&seconds)) {
                cell.seconds += share;
                cell.perplexity[index] = Some(losses.perplexity());
                let bad = losses.not_finite();
                if bad > 0 {
                    let reason =
                        format!("{bad} of {} windows of {} have no finite loss", losses.windows.len(), text.corpus);
                    cell.failure = Some(reason);
                }
            }
        }
        Ok(())
    }

    /// The cost of a backbone's jobs before its selections are known: regions are taken to lie in the middle.
    fn planned_flops(&self, cells: &[&mut CellResult]) -> Result<f64> {
        let layers = self.decoder.config().layers;
        let programs: Vec<Program> = cells
            .iter()
            .enumerate()
            .map(|(index, result)| {
                let operator = Operator::diagonal(vec![index as f32])?;
                let start = (layers - result.cell.depth) / 2;
                let removed: Vec<usize> = (start..start + result.cell.depth).collect();
                // Each cell gets an operator of its own: equal programs would count once.
                Ok(Program::pruned(layers, &removed, |_| Some(Arc::clone(&operator))))
            })
            .collect::<Result<_>>()?;
        let trunk = Trie::new(&[Program::trunk(layers)]);
        let calibrations = self.backbone.calibrations.iter().map(|windows| (&trunk, windows));
        let trie = Trie::new(&programs);
        let texts = self.backbone.texts.iter().map(|windows| (&trie, windows));
        let of_tasks =
            self.backbone.tasks.iter().map(|task| self.cost(&trie, &choices::load(&task.documents())).shared);
        let of_tasks: f64 = of_tasks.sum();
        let trials = self.trials(layers)?;
        let trials = self.backbone.calibrations.iter().flat_map(|windows| trials.iter().map(move |t| (t, windows)));
        Ok(calibrations
            .chain(texts)
            .chain(trials)
            .map(|(trie, windows)| self.cost(trie, &Load::windows(windows.ids.len(), windows.length)).shared)
            .sum::<f64>()
            + of_tasks)
    }

    /// What the criteria will measure by perplexity: for each the deepest cut, which measures what the others need.
    fn trials(&self, layers: usize) -> Result<Vec<Trie>> {
        let mut tries = Vec::new();
        for method in &self.grid.criterion {
            let own = |cell: &&Cell| cell.backbone == self.backbone.name && cell.criterion.as_ref() == Some(method);
            let Some(depth) = self.grid.cells.iter().filter(own).map(|cell| cell.depth).max() else { continue };
            let cut = Cut { backbone: &self.backbone.name, layers, depth };
            let trials = criterion::build(&method.name, &method.options)?.trials(&cut);
            // A step of a greedy search waits for the one before it: each size is a run of its own.
            for run in trials.chunk_by(|a, b| a.len() == b.len()) {
                let programs: Vec<Program> = run.iter().map(|set| Program::pruned(layers, set, |_| None)).collect();
                tries.push(Trie::new(&programs));
            }
        }
        Ok(tries)
    }

    pub(super) fn cost(&self, trie: &Trie, load: &Load) -> Cost {
        trie.cost(|step| self.decoder.flops(step, load))
    }

    pub(super) fn start(&self, label: &str, tokens: usize, cells: usize, flops: f64) {
        self.reporter.event(Event::Started(Job { label: label.to_string(), tokens, cells, flops }));
    }

    pub(super) fn note(&self, text: &str) {
        self.reporter.event(Event::Note(text.to_string()));
    }

    pub(super) fn finish(&self) {
        self.reporter.event(Event::Finished);
    }

    pub(super) fn advance(&self, tokens: usize) -> Result<()> {
        self.reporter.event(Event::Advanced { tokens });
        self.check_stop()
    }

    /// # Errors
    /// The user asked to stop.
    pub(super) fn check_stop(&self) -> Result<()> {
        if self.stop.load(Relaxed) {
            return Err(
                Error::interrupted("stopped before the grid was finished").hint("the same command starts it again")
            );
        }
        Ok(())
    }
}
