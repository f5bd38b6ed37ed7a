//! Iterative pruning: removes one layer or sublayer, repairs the backbone, and measures the remaining candidates again.
//!
//! With `shortgpt` and `prune-and-comp`, this is iterative Prune&Comp (arXiv 2507.18212). With `llm-drop` and no
//! repair, it is the iterative form of LLM-Drop. Each repair is fitted on the model after all earlier removals and
//! repairs. A repair that is folded into a layer is lost if that layer is removed later.
//!
//! At each step, the criterion uses the same similarities, activations or trials as in one-shot pruning, but computed
//! on the pruned and repaired model. A trial removes one more candidate from this model.
//!
//! ```
//! use ghostlab_core::corpus::{WindowRule, Tokenizer, evaluation_windows, read_rows};
//! use ghostlab_core::criterion::{self, DepthUnit, PruneSpec};
//! use ghostlab_core::iterative::ShrinkingModel;
//! use ghostlab_core::model::Decoder;
//! use ghostlab_core::recovery;
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let data = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tiny"));
//! let decoder = Decoder::load(&data.join("llama"))?;
//! let tokenizer = Tokenizer::load(data.join("llama/tokenizer.json"))?;
//! let rows = read_rows(data.join("corpora/wiki-validation.jsonl.gz"), None)?;
//! let windows = evaluation_windows(WindowRule::Wikitext2, &rows, &tokenizer, 32, Some(2))?;
//! let criterion = criterion::build("shortgpt", &Default::default())?;
//! let recovery = recovery::build("none", &Default::default())?;
//! let mut model = ShrinkingModel::new(&decoder, &windows, 1024, &*recovery, windows.count());
//! let spec =
//!     PruneSpec { backbone: "llama", layers: decoder.config().layers, depth: 2, unit: DepthUnit::Layers };
//! let selection = model.select(&*criterion, &spec, &mut |_| Ok(()))?;
//! assert_eq!(*model.removed(), selection.removed);
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::calibrate::{
    ActivationShape, Activations, HookPoint, InMemory, Pair, PassRequest, Similarities, WindowSubset, computed_sites,
    run_program,
};
use crate::corpus::Windows;
use crate::criterion::{CalibrationStats, Criterion, DepthUnit, PruneSpec, Selection, Trial, TrialMetric};
use crate::error::{Error, Result};
use crate::evaluate::perplexity::{Losses, PerplexityEval};
use crate::evaluate::{Progress, score};
use crate::model::{Cut, Engine, Program, Step, Sublayer, Trie};
use crate::recovery::{self, Boundary, Recovery, RemainingLayer, Repair, RepairMetrics, Solution, Span, layer_before};

/// Backbone from which layers or sublayers are removed one at a time.
pub struct ShrinkingModel<'a> {
    engine: &'a dyn Engine,
    windows: &'a Windows,
    batch_tokens: usize,
    recovery: &'a dyn Recovery,
    /// Number of calibration sequences on which repairs are fitted, counted from the first sequence.
    fit_sequences: usize,
    /// Maximum size in bytes of the activations that one run over the calibration windows captures.
    activation_bytes: u64,
    removed: Cut,
    repaired: Vec<SolvedSpan>,
}

/// Fitted repair of one [`Span`] of removed layers, with its metrics.
#[derive(Debug)]
pub struct SolvedSpan {
    pub span: Span,
    pub solution: Solution,
    pub metrics: RepairMetrics,
    /// Reasons why the activations cannot determine a repair ([`recovery::degenerate`]).
    pub degenerate: Vec<String>,
    /// Seconds spent fitting, excluding the calibration pass and the metrics.
    pub seconds: f64,
    /// Layer whose weights the repair is folded into, if any.
    host: Option<usize>,
}

impl SolvedSpan {
    /// Returns whether `cut` also removes the repair, because it removes the layer into which the repair is folded.
    fn is_removed_by(&self, cut: &Cut) -> bool {
        self.host.is_some_and(|layer| cut.contains_layer(layer))
    }
}

/// Default maximum size of the activations that a criterion reads in one pass, in bytes.
const MAX_ACTIVATION_BYTES: u64 = 1 << 30;

impl<'a> ShrinkingModel<'a> {
    /// Creates a model from which nothing has been removed yet.
    pub fn new(
        engine: &'a dyn Engine,
        windows: &'a Windows,
        batch_tokens: usize,
        recovery: &'a dyn Recovery,
        fit_sequences: usize,
    ) -> Self {
        Self {
            engine,
            windows,
            batch_tokens,
            recovery,
            fit_sequences,
            activation_bytes: MAX_ACTIVATION_BYTES,
            removed: Cut::default(),
            repaired: Vec::new(),
        }
    }

    /// Limits the size of the activations that a criterion reads in one pass. Each pass still reads the activations of
    /// at least one candidate.
    #[must_use]
    pub fn with_activation_limit(self, bytes: u64) -> Self {
        Self { activation_bytes: bytes, ..self }
    }

    /// Returns the removed layers and sublayers.
    pub fn removed(&self) -> &Cut {
        &self.removed
    }

    /// Returns the repairs that are still part of the model, in the order of removal.
    pub fn into_repairs(self) -> Vec<SolvedSpan> {
        self.repaired
    }

    /// Returns the program of the pruned and repaired model.
    ///
    /// # Errors
    /// Fails if a repair cannot be placed in the program.
    pub fn program(&self) -> Result<Program> {
        self.program_without(&Cut::default())
    }

    /// Returns the program of the model with an additional, unrepaired cut.
    fn program_without(&self, cut: &Cut) -> Result<Program> {
        let mut removed = self.removed.clone();
        removed.extend(cut);
        let retained = self.repaired.iter().filter(|solved| !solved.is_removed_by(cut));
        let repaired: Vec<(Span, Repair)> =
            retained.map(|solved| (solved.span, solved.solution.repair.clone())).collect();
        let repairs = recovery::place_repairs(&removed, &repaired)?.ok_or_else(|| {
            Error::job("cannot repair an MLP branch: no layer remains before the cut").at(removed.to_string())
        })?;
        Ok(Program::repaired(self.engine.config().layers, &removed, &repairs))
    }

    /// Removes `spec.depth` layers or sublayers, one at a time. The scores of the selection are in removal order.
    ///
    /// # Errors
    /// Fails if a residual stream is not finite, a repair cannot be fitted, or `progress` fails.
    pub fn select(
        &mut self,
        criterion: &dyn Criterion,
        spec: &PruneSpec<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<Selection> {
        self.resume(criterion, spec, &Selection::new(Cut::default(), Vec::new()), &mut |_| Ok(()), progress)
    }

    /// Continues a selection after its first steps. `earlier` is the result of these steps, whose repairs are fitted
    /// again. After each further step, calls `on_step` with the result so far, which equals the selection for a smaller
    /// depth.
    ///
    /// # Errors
    /// See [`Self::select`]. Also fails if `on_step` fails.
    pub fn resume(
        &mut self,
        criterion: &dyn Criterion,
        spec: &PruneSpec<'_>,
        earlier: &Selection,
        on_step: &mut dyn FnMut(&Selection) -> Result<()>,
        progress: &mut Progress<'_>,
    ) -> Result<Selection> {
        let step_spec = PruneSpec { depth: 1, ..*spec };
        let mut selection = earlier.clone();
        if self.recovery.is_repairing() {
            self.replay(spec.unit, earlier, progress)?;
        } else {
            self.removed.extend(&earlier.removed);
        }
        while selection.scores.len() < spec.depth {
            let score = self.choose_next_removal(criterion, &step_spec, progress)?;
            let chosen = spec.unit.cut([score.0]);
            selection.removed.extend(&chosen);
            selection.scores.push(score);
            on_step(&selection)?;
            if self.recovery.is_repairing() && selection.scores.len() < spec.depth {
                self.remove(&chosen, progress)?;
            } else {
                self.removed.extend(&chosen);
            }
        }
        Ok(selection)
    }

    /// Measures the remaining candidates, and returns the one that a criterion removes next, with its score.
    fn choose_next_removal(
        &self,
        criterion: &dyn Criterion,
        step_spec: &PruneSpec<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(usize, f64)> {
        let lowest_first = criterion.importance().is_none_or(|importance| importance.lowest_first);
        let mut best: Option<(usize, f64)> = None;
        for excluded in self.excluded_by_pass(criterion, step_spec) {
            let request = self.build_request(criterion, step_spec, &excluded)?;
            let (similarities, activations) = self.run_pass(&request, progress)?;
            let mut trials = |metric: TrialMetric, trials: &[Trial]| self.measure_trials(metric, trials, progress);
            let norms = |(layer, sublayer): (usize, Sublayer)| self.engine.input_norm(layer, sublayer);
            let mut stats = CalibrationStats::new(&similarities, Some(&activations), &mut trials)
                .with_norms(&norms)
                .without(excluded);
            let chosen = criterion.select(step_spec, &mut stats)?;
            let score = chosen.scores.iter().find(|(candidate, _)| step_spec.unit.cut([*candidate]) == chosen.removed);
            let &score = score
                .ok_or_else(|| Error::job("the selected candidate has no score").at(chosen.removed.to_string()))?;
            if best.is_none_or(|(_, value)| if lowest_first { score.1 < value } else { score.1 > value }) {
                best = Some(score);
            }
        }
        best.ok_or_else(|| Error::job("no candidates left to remove"))
    }

    /// Divides the candidates of a step among calibration passes. If a criterion reads activations, several passes may
    /// be needed to stay below the memory limit. Returns one cut per pass, which contains the removed layers and the
    /// candidates of the other passes.
    fn excluded_by_pass(&self, criterion: &dyn Criterion, step_spec: &PruneSpec<'_>) -> Vec<Cut> {
        if criterion.sites(step_spec).is_empty() {
            return vec![self.removed.clone()];
        }
        let candidates = step_spec.remaining(&self.removed);
        // A candidate needs at most two hook points: its input and its output.
        let max_candidates = (self.activation_bytes / (2 * self.shape().bytes()).max(1)).max(1) as usize;
        let groups = candidates.chunks(max_candidates).map(|group| {
            let mut excluded = self.removed.clone();
            let others = candidates.iter().copied().filter(|candidate| !group.contains(candidate));
            excluded.extend(&step_spec.unit.cut(others));
            excluded
        });
        groups.collect()
    }

    /// Measures trials, each of which removes further sublayers from the pruned and repaired model.
    fn measure_trials(&self, metric: TrialMetric, trials: &[Trial], progress: &mut Progress<'_>) -> Result<Vec<f64>> {
        let programs = trials.iter().map(|trial| self.program_without(&trial.removed)).collect::<Result<Vec<_>>>()?;
        match metric {
            TrialMetric::Perplexity => {
                let trie = Trie::for_scoring(&programs);
                let eval_set = PerplexityEval::new(self.windows, self.batch_tokens);
                let losses = score(&eval_set, self.engine, &trie, &mut vec![0.0; trie.len()], progress)?;
                Ok(losses.into_iter().map(|windows| Losses { windows }.perplexity()).collect())
            }
            TrialMetric::Distance(distance) => {
                let windows = distance.by_window(self.engine, &programs, self.windows, progress)?;
                Ok(windows.iter().map(|means| means.iter().sum::<f64>() / means.len() as f64).collect())
            }
            TrialMetric::Cosine => Err(Error::job("iterative pruning does not support merging layers")),
        }
    }

    /// Repeats an earlier selection: removes its candidates in the same order and fits their repairs.
    ///
    /// # Errors
    /// See [`Self::select`].
    pub fn replay(&mut self, unit: DepthUnit, selection: &Selection, progress: &mut Progress<'_>) -> Result<()> {
        selection.scores.iter().try_for_each(|&(candidate, _)| self.remove(&unit.cut([candidate]), progress))
    }

    /// Builds the request for the measurements that a criterion needs. Keeps only pairs of hook points that the pruned
    /// model still passes through, and hook points directly before or after a candidate that is not excluded.
    fn build_request(&self, criterion: &dyn Criterion, spec: &PruneSpec<'_>, excluded: &Cut) -> Result<PassRequest> {
        let computed: BTreeSet<HookPoint> =
            computed_sites(&self.program()?).into_iter().map(|(_, site)| site).collect();
        let pairs =
            criterion.pairs(spec).into_iter().filter(|pair| pair.ends().iter().all(|site| computed.contains(site)));
        let candidates = spec.unit.candidates(spec.layers).into_iter();
        let ends: BTreeSet<usize> = candidates
            .filter(|&(layer, kind)| !excluded.contains(layer, kind))
            .flat_map(|(layer, kind)| Pair::around(layer, kind).ends().map(HookPoint::position))
            .collect();
        let sites =
            criterion.sites(spec).into_iter().filter(|site| computed.contains(site) && ends.contains(&site.position()));
        Ok(PassRequest { pairs: pairs.collect(), sites: sites.collect() })
    }

    fn shape(&self) -> ActivationShape {
        let channels = self.engine.config().hidden;
        ActivationShape { channels, sequences: self.windows.count(), length: self.windows.length }
    }

    /// Runs the model over the calibration windows and captures what `request` lists. Skips the run for an empty
    /// request.
    fn run_pass(&self, request: &PassRequest, progress: &mut Progress<'_>) -> Result<(Similarities, Activations)> {
        let mut spool = InMemory::new(request.sites.iter().copied());
        if request.is_empty() {
            return Ok((Similarities::default(), spool.finish(self.shape())?));
        }
        let mut program = self.program()?;
        program.0.pop(); // the head
        let windows: Vec<&[u32]> = self.windows.iter().collect();
        let mut pieces = [WindowSubset { windows, first_sequence: 0, spool: &mut spool }];
        let found = run_program(self.engine, &program, &mut pieces, self.batch_tokens, request, progress)?;
        Ok((found.into_iter().next().unwrap_or_default(), spool.finish(self.shape())?))
    }

    /// Removes one layer or sublayer and fits its repair. Also discards repairs folded into a removed layer.
    fn remove(&mut self, removed: &Cut, progress: &mut Progress<'_>) -> Result<()> {
        let mut solved = Vec::new();
        for span in recovery::spans(self.recovery, removed) {
            solved.push(self.fit_repair(span, progress)?);
        }
        self.repaired.retain(|solved| !solved.is_removed_by(removed));
        self.removed.extend(removed);
        self.repaired.extend(solved);
        Ok(())
    }

    fn fit_repair(&self, span: Span, progress: &mut Progress<'_>) -> Result<SolvedSpan> {
        let host = layer_before(&self.removed, span.start);
        let computed: BTreeSet<HookPoint> =
            computed_sites(&self.program()?).into_iter().map(|(_, site)| site).collect();
        let sites = self.recovery.sites(span).into_iter().filter_map(|site| remap_site(site, span, host));
        let sites = sites.filter(|site| computed.contains(site)).collect();
        let (_, activations) = self.run_pass(&PassRequest { sites, ..PassRequest::default() }, progress)?;
        let before = host.map(|layer| self.remaining_layer(layer)).transpose()?;
        let boundary = Boundary {
            before: before.as_ref(),
            starts: &self.windows.starts,
            ..Boundary::new(self.engine, &activations, span, self.fit_sequences)
        };
        let started = Instant::now();
        let mut solution = self.recovery.solve(&boundary)?;
        let seconds = started.elapsed().as_secs_f64();
        // If no layer precedes the span, apply the operator to the output of the embedding instead of to that layer's
        // branches.
        if let Repair::Branches { operator, attention: true } = &solution.repair
            && host.is_none()
        {
            solution.repair = Repair::Stream(Arc::clone(operator));
        }
        let metrics = RepairMetrics::compute(&boundary, &solution.repair)?;
        let degenerate = match solution.repair.operator() {
            Some(_) => recovery::degenerate(&boundary)?,
            None => Vec::new(),
        };
        let host = host.filter(|_| matches!(solution.repair, Repair::Branches { .. }));
        Ok(SolvedSpan { span, solution, metrics, degenerate, seconds, host })
    }

    /// Returns a layer with the operators that repairs folded into its weights.
    fn remaining_layer(&self, layer: usize) -> Result<RemainingLayer> {
        let steps = self.program()?.0.into_iter();
        let edits = steps.filter_map(|step| match step {
            Step::Edited(sublayer, edited, operator) if edited == layer => Some((sublayer, operator)),
            _ => None,
        });
        Ok(RemainingLayer { layer, edits: edits.collect() })
    }
}

/// Maps a hook point in the layer before a span to the nearest remaining layer before it, or to `None` if there is
/// none. Returns other hook points unchanged.
fn remap_site(site: HookPoint, span: Span, host: Option<usize>) -> Option<HookPoint> {
    match site {
        HookPoint::Stream(layer) if layer + 1 == span.start => host.map(HookPoint::Stream),
        HookPoint::Middle(layer) if layer + 1 == span.start => host.map(HookPoint::Middle),
        _ => Some(site),
    }
}
