//! Which layers each cell loses: stored, computed before the calibration pass, or after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::calibration::CalibrationJob;
use crate::calibrate::{Pair, Similarities};
use crate::criterion::{self, CalibrationEvidence, Criterion, PruneSpec, Selection};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Variant;
use crate::plan::payload::{self, SELECTION, to_json};
use crate::store::Key;

/// The selections of some variants, each computed once.
pub(super) struct Selections<'a> {
    backbone: &'a str,
    layers: usize,
    by_key: BTreeMap<String, SelectionSlot>,
}

struct SelectionSlot {
    key: Arc<Key>,
    label: String,
    depth: usize,
    criterion: Box<dyn Criterion>,
    picked: Picked,
    /// What it took, in seconds.
    seconds: f64,
}

/// How far a selection is.
pub(super) enum Picked {
    Done(Selection),
    Failed(String),
    /// It needs similarities that the pass has to measure.
    Waiting,
}

impl<'a> Selections<'a> {
    /// Looks up what is stored, and picks what needs no similarities.
    ///
    /// # Errors
    /// The run was stopped; a selection that fails by itself is kept as failed.
    pub(super) fn of(calibrating: &'a CalibrationJob<'_>, variants: &[&Variant]) -> Result<Self> {
        let backbone = calibrating.backbone;
        let mut selections = Self { backbone: &backbone.name, layers: backbone.config.layers, by_key: BTreeMap::new() };
        let mut known = BTreeMap::new();
        for variant in variants {
            let cell = &calibrating.run.plan.grid.cells[variant.cell];
            let (Some(key), Some(method)) = (&variant.selection, &cell.criterion) else { continue };
            if selections.by_key.contains_key(key.hash()) {
                continue;
            }
            let started = Instant::now();
            let criterion = criterion::build(&method.name, &method.options)?;
            let cut = selections.cut(cell.depth);
            let stored = calibrating.run.get(key);
            let stored = stored.and_then(|artifact| payload::selection(&artifact).ok());
            let mut entry = SelectionSlot {
                key: Arc::clone(key),
                label: method.to_string(),
                depth: cell.depth,
                criterion,
                picked: Picked::Waiting,
                seconds: 0.0,
            };
            if let Some(selection) = stored {
                entry.picked = Picked::Done(selection);
            } else if entry.criterion.pairs(&cut).is_empty() {
                let mut witness = entry.witness(calibrating, None, &cut, &mut known);
                entry.picked = pick(&*entry.criterion, &cut, &mut witness)?;
                entry.keep(calibrating, started)?;
            }
            selections.by_key.insert(key.hash().to_string(), entry);
        }
        Ok(selections)
    }

    fn cut(&self, depth: usize) -> PruneSpec<'a> {
        PruneSpec { backbone: self.backbone, layers: self.layers, depth }
    }

    /// The similarities that the pass has to measure.
    pub(super) fn pairs(&self) -> BTreeSet<Pair> {
        let waiting = self.by_key.values().filter(|entry| matches!(entry.picked, Picked::Waiting));
        waiting.flat_map(|entry| entry.criterion.pairs(&self.cut(entry.depth))).collect()
    }

    /// Picks what waited for the pass.
    pub(super) fn finish(&mut self, calibrating: &CalibrationJob<'_>, similarities: &Similarities) -> Result<()> {
        let (backbone, layers) = (self.backbone, self.layers);
        for entry in self.by_key.values_mut().filter(|entry| matches!(entry.picked, Picked::Waiting)) {
            let (started, mut known) = (Instant::now(), BTreeMap::new());
            let cut = PruneSpec { backbone, layers, depth: entry.depth };
            let mut witness = entry.witness(calibrating, Some(similarities), &cut, &mut known);
            entry.picked = pick(&*entry.criterion, &cut, &mut witness)?;
            entry.keep(calibrating, started)?;
        }
        Ok(())
    }

    pub(super) fn picked(&self, variant: &Variant) -> Option<&Picked> {
        self.by_key.get(variant.selection.as_ref()?.hash()).map(|entry| &entry.picked)
    }

    /// The regions that a variant's selection has or may have.
    pub(super) fn regions(&self, variant: &Variant) -> Vec<(usize, usize)> {
        let entry = variant.selection.as_ref().and_then(|key| self.by_key.get(key.hash()));
        let Some(entry) = entry else { return Vec::new() };
        match &entry.picked {
            Picked::Done(selection) => selection.regions(),
            Picked::Failed(_) => Vec::new(),
            Picked::Waiting => entry.criterion.regions(&self.cut(entry.depth)),
        }
    }
}

impl SelectionSlot {
    fn witness<'a>(
        &'a self,
        calibrating: &'a CalibrationJob<'_>,
        similarities: Option<&'a Similarities>,
        cut: &PruneSpec<'_>,
        known: &'a mut BTreeMap<Vec<usize>, f64>,
    ) -> Witness<'a> {
        let trials = !self.criterion.trials(cut).is_empty();
        Witness { calibrating, label: &self.label, similarities, trials, known }
    }

    /// Stores a selection that has been made; one that failed is tried again by the next run.
    fn keep(&mut self, calibrating: &CalibrationJob<'_>, started: Instant) -> Result<()> {
        self.seconds += started.elapsed().as_secs_f64();
        let Picked::Done(selection) = &self.picked else { return Ok(()) };
        calibrating.run.store.put(&self.key, self.seconds, &[(SELECTION, &to_json(selection)?)]).map(drop)
    }
}

fn pick(criterion: &dyn Criterion, cut: &PruneSpec<'_>, witness: &mut Witness<'_>) -> Result<Picked> {
    match criterion.select(cut, witness) {
        Ok(selection) => Ok(Picked::Done(selection)),
        Err(error) if error.kind() == ErrorKind::Job => Ok(Picked::Failed(error.one_line())),
        Err(error) => Err(error),
    }
}

/// What the criteria may ask of one calibration.
struct Witness<'a> {
    calibrating: &'a CalibrationJob<'a>,
    label: &'a str,
    similarities: Option<&'a Similarities>,
    /// Whether the criterion said that it measures perplexities: only then are they in its selection's key.
    trials: bool,
    /// Perplexities measured so far, by removed layers: two rules, or two depths, may ask for the same.
    known: &'a mut BTreeMap<Vec<usize>, f64>,
}

impl CalibrationEvidence for Witness<'_> {
    fn similarity(&self, pair: Pair) -> Result<f64> {
        match self.similarities.and_then(|similarities| similarities.get(pair)) {
            Some(value) if value.is_finite() => Ok(value),
            other => Err(Error::job("a similarity is missing or not finite")
                .at(format!("layers {} and {}", pair.from, pair.to))
                .found(format!("{other:?}"))),
        }
    }

    fn perplexities(&mut self, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
        if !self.trials {
            return Err(Error::job("a criterion measures perplexities though its `trials` names none").at(self.label));
        }
        let new: Vec<Vec<usize>> = removed.iter().filter(|set| !self.known.contains_key(*set)).cloned().collect();
        if !new.is_empty() {
            let measured = self.calibrating.perplexities(self.label, &new)?;
            self.known.extend(new.into_iter().zip(measured));
        }
        Ok(removed.iter().map(|set| self.known[set]).collect())
    }
}
