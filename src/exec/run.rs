//! The run of a grid: preflight, then backbone by backbone one calibration pass for each calibration and one trie for each text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use super::event::{Event, Job, Reporter};
use super::prepare::{Prepared, prepare};
use super::variant::{self, CellResult};
use crate::calibrate::{self, Request};
use crate::error::{Error, Result};
use crate::evaluate::perplexity;
use crate::grid::{Calibration, Grid};
use crate::model::trie::Cost;
use crate::model::{Decoder, Operator, Program, Trie};

/// How to run, as far as it may not change a result beyond rounding.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Tokens of a batch.
    pub batch_tokens: usize,
    /// Most bytes of activations to spool in one pass. Where all possible boundaries need more, a second pass spools
    /// only those that the selections chose.
    pub spool_bytes: u64,
    /// Run every variant by itself, with its own calibration pass and its own forward passes: for benchmarks and tests.
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
    /// In the order of [`Grid::cells`].
    pub cells: Vec<CellResult>,
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
pub fn run(grid: &Grid, settings: Settings, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<Outcome> {
    let prepared = prepare(grid, reporter)?;
    let mut cells: Vec<CellResult> = grid
        .cells()
        .into_iter()
        .map(|cell| {
            let layers = grid.backbones[&cell.backbone].layers;
            CellResult::new(cell, layers)
        })
        .collect();
    let mut first = true;
    for backbone in &prepared {
        let mut own: Vec<&mut CellResult> =
            cells.iter_mut().filter(|result| result.cell.backbone == backbone.name).collect();
        let decoder = Decoder::load_with(backbone.config.clone(), &backbone.folder)?;
        let run = Run { grid, backbone, decoder, settings, reporter, stop };
        if std::mem::take(&mut first) {
            let flops = run.planned_flops(&own)? * prepared.len() as f64;
            reporter.event(Event::Planned { flops });
        }
        run.calibrate(&mut own)?;
        run.evaluate(&mut own)?;
    }
    Ok(Outcome { cells })
}

struct Run<'a> {
    grid: &'a Grid,
    backbone: &'a Prepared,
    decoder: Decoder,
    settings: Settings,
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
            let windows: Vec<&[u32]> = windows.iter().collect();
            let together = if self.settings.separate { 1 } else { own.len().max(1) };
            for cells in own.chunks_mut(together) {
                self.repair(cells, calibration, &windows)?;
            }
        }
        Ok(())
    }

    /// Selects, repairs and writes the programs of cells that share one calibration.
    fn repair(&self, cells: &mut [&mut CellResult], calibration: &Calibration, windows: &[&[u32]]) -> Result<()> {
        let started = Instant::now();
        let mut request = variant::request(cells)?;
        let row_bytes = windows.len() * calibration.length * self.decoder.config().hidden * size_of::<f32>();
        let all_bytes = (row_bytes * request.sites.len()) as u64;
        let one_pass = all_bytes <= self.settings.spool_bytes;
        let label = format!("calibrate {} on {calibration}", self.backbone.name);
        self.note(&format!(
            "{label}: {} boundaries, {:.1} MB of activations, {}",
            request.sites.len(),
            all_bytes as f64 / 1e6,
            if one_pass { "one pass" } else { "over the limit: a second pass spools only what the selections chose" }
        ));
        if !one_pass {
            request.sites.clear();
        }
        let mut measured = self.pass(&label, windows, &request)?;
        variant::select(cells, &measured);
        if !one_pass {
            let request = Request { sites: variant::chosen_sites(cells), ..Request::default() };
            measured.activations = self.pass(&format!("{label}, second pass"), windows, &request)?.activations;
        }
        let share = started.elapsed().as_secs_f64() / cells.len().max(1) as f64;
        cells.iter_mut().for_each(|cell| cell.seconds += share);
        variant::repair(cells, &measured);
        Ok(())
    }

    fn pass(&self, label: &str, windows: &[&[u32]], request: &Request) -> Result<calibrate::Calibration> {
        let length = windows.first().map_or(0, |window| window.len());
        let tokens = windows.len() * length;
        let cost = self.cost(&Trie::new(&[Program::trunk(self.decoder.config().layers)]), tokens, length);
        self.start(label, tokens, 0, cost.shared);
        let progress = |tokens| self.advance(tokens);
        let calibration = calibrate::run(&self.decoder, windows, self.settings.batch_tokens, request, progress)?;
        self.reporter.event(Event::Finished);
        Ok(calibration)
    }

    fn evaluate(&self, cells: &mut [&mut CellResult]) -> Result<()> {
        let texts = self.grid.evaluate.perplexity.len();
        let mut live: Vec<&mut CellResult> = Vec::new();
        for cell in cells.iter_mut() {
            cell.perplexity = vec![None; texts];
            if cell.program.is_some() {
                live.push(cell);
            }
        }
        if self.settings.separate {
            for cell in live {
                self.score(&mut [cell])?;
            }
            return Ok(());
        }
        self.score(&mut live)
    }

    /// Scores cells on all texts, sharing what their programs share.
    fn score(&self, cells: &mut [&mut CellResult]) -> Result<()> {
        let programs: Vec<Program> = cells.iter().filter_map(|cell| cell.program.clone()).collect();
        let trie = Trie::new(&programs);
        for (index, (text, windows)) in self.grid.evaluate.perplexity.iter().zip(&self.backbone.texts).enumerate() {
            let tokens = windows.count() * windows.length;
            let cost = self.cost(&trie, tokens, windows.length);
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
            self.reporter.event(Event::Finished);
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
        Ok(calibrations
            .chain(texts)
            .map(|(trie, windows)| self.cost(trie, windows.count() * windows.length, windows.length).shared)
            .sum())
    }

    fn cost(&self, trie: &Trie, tokens: usize, length: usize) -> Cost {
        trie.cost(|step| self.decoder.flops(step, tokens, length))
    }

    fn start(&self, label: &str, tokens: usize, cells: usize, flops: f64) {
        self.reporter.event(Event::Started(Job { label: label.to_string(), tokens, cells, flops }));
    }

    fn note(&self, text: &str) {
        self.reporter.event(Event::Note(text.to_string()));
    }

    fn advance(&self, tokens: usize) -> Result<()> {
        self.reporter.event(Event::Advanced { tokens });
        if self.stop.load(Relaxed) {
            return Err(
                Error::interrupted("stopped before the grid was finished").hint("the same command starts it again")
            );
        }
        Ok(())
    }
}
