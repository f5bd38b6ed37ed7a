//! Iterative pruning: removes one layer or sublayer, repairs the backbone, and measures the remaining candidates again.
//!
//! With `shortgpt` and `prune-and-comp` this is iterative Prune&Comp (arXiv 2507.18212). With `llm-drop` and no repair
//! it is the iterative form of LLM-Drop. Each repair is fitted on the backbone left by all earlier removals and
//! repairs. A repair folded into a layer is lost if that layer is removed later.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::calibrate::{
    ActivationShape, Activations, HookPoint, InMemory, PassRequest, Piece, Similarities, places, run_program,
};
use crate::corpus::Windows;
use crate::criterion::{CalibrationStats, Criterion, DepthUnit, PruneSpec, Selection, TrialMetric};
use crate::error::{Error, Result};
use crate::model::{Cut, Engine, Program, Step, Sublayer};
use crate::recovery::{self, Boundary, Recovery, RemainingLayer, Repair, RepairMetrics, Solution, Span, layer_before};

/// Callback that receives the token count of each batch of a pass. It may return an error to stop the pass.
pub type Progress<'a> = dyn FnMut(usize) -> Result<()> + 'a;

/// A backbone from which layers or sublayers are removed one by one.
pub struct ShrinkingModel<'a> {
    engine: &'a dyn Engine,
    windows: &'a Windows,
    batch_tokens: usize,
    recovery: &'a dyn Recovery,
    /// Number of sequences, counted from the first, on which repairs are fitted.
    fitted: usize,
    removed: Cut,
    repaired: Vec<SolvedSpan>,
}

/// A fitted repair with its metrics.
#[derive(Debug)]
pub struct SolvedSpan {
    pub span: Span,
    pub solution: Solution,
    pub metrics: RepairMetrics,
    /// Reasons why the activations cannot determine a repair ([`recovery::degenerate`]).
    pub degenerate: Vec<String>,
    /// Seconds spent fitting, excluding the calibration pass and the metrics.
    pub seconds: f64,
    /// Layer whose weights the repair is folded into.
    host: Option<usize>,
}

impl<'a> ShrinkingModel<'a> {
    /// Creates the model without any removals.
    pub fn new(
        engine: &'a dyn Engine,
        windows: &'a Windows,
        batch_tokens: usize,
        recovery: &'a dyn Recovery,
        fitted: usize,
    ) -> Self {
        Self { engine, windows, batch_tokens, recovery, fitted, removed: Cut::default(), repaired: Vec::new() }
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
        let repaired: Vec<(Span, Repair)> =
            self.repaired.iter().map(|solved| (solved.span, solved.solution.repair.clone())).collect();
        let repairs = recovery::place_repairs(&self.removed, &repaired)?
            .ok_or_else(|| Error::job("no layer before a map of an MLP branch").at(self.removed.to_string()))?;
        Ok(Program::repaired(self.engine.config().layers, &self.removed, &repairs))
    }

    /// Selects `cut.depth` layers or sublayers, one at a time. Returns the scores of the removed candidates in removal
    /// order.
    ///
    /// # Errors
    /// Fails if a residual stream is not finite, a repair cannot be fitted, or `progress` fails.
    pub fn select(
        &mut self,
        rule: &dyn Criterion,
        cut: &PruneSpec<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<Selection> {
        let one = PruneSpec { depth: 1, ..*cut };
        let mut scores = Vec::new();
        let mut removed = Cut::default();
        while scores.len() < cut.depth {
            let (similarities, _) = self.measure(&self.comparisons(rule, &one)?, progress)?;
            let mut no_trials =
                |_: TrialMetric, _: &[Cut]| Err(Error::job("an iterative criterion does not measure trials"));
            let mut stats = CalibrationStats::new(&similarities, None, &mut no_trials).without(self.removed.clone());
            let chosen = rule.select(&one, &mut stats)?;
            let score = chosen.scores.iter().find(|(candidate, _)| removal(cut.unit, *candidate) == chosen.removed);
            let score =
                score.ok_or_else(|| Error::job("a selected layer has no score").at(chosen.removed.to_string()))?;
            scores.push(*score);
            removed.extend(&chosen.removed);
            if self.recovery.repairs() && scores.len() < cut.depth {
                self.remove(&chosen.removed, progress)?;
            } else {
                self.removed.extend(&chosen.removed);
            }
        }
        Ok(Selection { removed, scores })
    }

    /// Removes and repairs the candidates of an earlier selection, in its order.
    ///
    /// # Errors
    /// See [`Self::select`].
    pub fn replay(&mut self, unit: DepthUnit, selection: &Selection, progress: &mut Progress<'_>) -> Result<()> {
        selection.scores.iter().try_for_each(|&(candidate, _)| self.remove(&removal(unit, candidate), progress))
    }

    /// Returns a request for those pairs of the criterion whose streams still exist in the model.
    fn comparisons(&self, rule: &dyn Criterion, cut: &PruneSpec<'_>) -> Result<PassRequest> {
        let places: BTreeSet<HookPoint> = places(&self.program()?).into_iter().map(|(_, site)| site).collect();
        let pairs = rule.pairs(cut).into_iter().filter(|pair| pair.ends().iter().all(|site| places.contains(site)));
        Ok(PassRequest { pairs: pairs.collect(), sites: BTreeSet::new() })
    }

    /// Runs the model over the calibration windows.
    fn measure(&self, request: &PassRequest, progress: &mut Progress<'_>) -> Result<(Similarities, Activations)> {
        let mut program = self.program()?;
        program.0.pop(); // the head
        let windows: Vec<&[u32]> = self.windows.iter().collect();
        let channels = self.engine.config().hidden;
        let shape = ActivationShape { channels, sequences: windows.len(), length: self.windows.length };
        let mut kept = InMemory::of(request.sites.iter().copied());
        let mut pieces = [Piece { windows, first_sequence: 0, spool: &mut kept }];
        let found = run_program(self.engine, &program, &mut pieces, self.batch_tokens, request, progress)?;
        Ok((found.into_iter().next().unwrap_or_default(), kept.finish(shape)?))
    }

    /// Removes one layer or sublayer and fits its repair. Also discards repairs folded into a removed layer.
    fn remove(&mut self, removed: &Cut, progress: &mut Progress<'_>) -> Result<()> {
        let mut solved = Vec::new();
        for span in recovery::spans(self.recovery, removed) {
            solved.push(self.solve(span, progress)?);
        }
        self.repaired.retain(|solved| !solved.host.is_some_and(|layer| removed.contains_layer(layer)));
        self.removed.extend(removed);
        self.repaired.extend(solved);
        Ok(())
    }

    fn solve(&self, span: Span, progress: &mut Progress<'_>) -> Result<SolvedSpan> {
        let host = layer_before(&self.removed, span.start);
        let places: BTreeSet<HookPoint> = places(&self.program()?).into_iter().map(|(_, site)| site).collect();
        let sites = self.recovery.sites(span).into_iter().filter_map(|site| moved(site, span, host));
        let sites = sites.filter(|site| places.contains(site)).collect();
        let (_, activations) = self.measure(&PassRequest { sites, ..PassRequest::default() }, progress)?;
        let before = host.map(|layer| self.remaining(layer)).transpose()?;
        let boundary = Boundary {
            backbone: self.engine,
            activations: &activations,
            span,
            fitted: self.fitted,
            earlier: &[],
            before: before.as_ref(),
            starts: &self.windows.starts,
        };
        let started = Instant::now();
        let mut solution = self.recovery.solve(&boundary)?;
        let seconds = started.elapsed().as_secs_f64();
        // If no layer precedes the span, the factors of branches are applied to the output of the embedding.
        if let Repair::Branches { operator, attention: true } = &solution.repair
            && host.is_none()
        {
            solution.repair = Repair::Stream(Arc::clone(operator));
        }
        let metrics = RepairMetrics::of(&boundary, &solution.repair)?;
        let degenerate = match solution.repair.operator() {
            Some(_) => recovery::degenerate(&boundary)?,
            None => Vec::new(),
        };
        let host = host.filter(|_| matches!(solution.repair, Repair::Branches { .. }));
        Ok(SolvedSpan { span, solution, metrics, degenerate, seconds, host })
    }

    /// Returns a layer with the repairs folded into its weights.
    fn remaining(&self, layer: usize) -> Result<RemainingLayer> {
        let steps = self.program()?.0.into_iter();
        let edits = steps.filter_map(|step| match step {
            Step::Edited(sublayer, edited, operator) if edited == layer => Some((sublayer, operator)),
            _ => None,
        });
        Ok(RemainingLayer { layer, edits: edits.collect() })
    }
}

/// Returns the cut that removes one candidate.
fn removal(unit: DepthUnit, candidate: usize) -> Cut {
    if unit.is_layers() { Cut::layers([candidate]) } else { Cut::sublayers([Sublayer::numbered(candidate)]) }
}

/// Moves a site in the layer before a span to the nearest remaining layer before it. Returns `None` if there is none.
fn moved(site: HookPoint, span: Span, host: Option<usize>) -> Option<HookPoint> {
    match site {
        HookPoint::Stream(layer) if layer + 1 == span.start => host.map(HookPoint::Stream),
        HookPoint::Middle(layer) if layer + 1 == span.start => host.map(HookPoint::Middle),
        _ => Some(site),
    }
}
