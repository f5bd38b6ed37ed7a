//! Which layers each variant loses: stored, picked before the calibration pass, or after it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::job::CalibrationJob;
use super::trials::Trials;
use crate::calibrate::{Activations, Similarities};
use crate::criterion::{self, Criterion, Evidence, PruneSpec, Selection};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Variant;
use crate::stage;
use crate::stage::operator::{Needs, Wanted};
use ghostlab_store::Key;

/// The selections of some variants, each picked once.
pub(super) struct Selections<'a> {
    by_key: BTreeMap<String, SelectionSlot<'a>>,
}

struct SelectionSlot<'a> {
    key: Arc<Key>,
    /// The criterion as the grid writes it.
    label: String,
    cut: PruneSpec<'a>,
    criterion: Arc<dyn Criterion>,
    picked: Picked,
}

/// How far a selection is.
pub(super) enum Picked {
    Done(Selection),
    Failed(String),
    /// It needs similarities or activations that the pass has to make.
    Waiting,
}

impl<'a> Selections<'a> {
    /// Looks up what is stored, and picks what needs no similarities.
    ///
    /// # Errors
    /// The run was stopped; a selection that fails by itself is kept as failed.
    pub(super) fn before_pass(
        job: &CalibrationJob<'a>,
        variants: &[&Variant],
        trials: &mut Trials<'_>,
    ) -> Result<Self> {
        let mut by_key = BTreeMap::new();
        for variant in variants {
            let cell = &job.run.plan.grid.cells[variant.cell];
            let (Some(key), Some(method)) = (&variant.selection, &cell.criterion) else { continue };
            if by_key.contains_key(key.hash()) {
                continue;
            }
            let started = Instant::now();
            let stored = job.run.get(key).and_then(|artifact| stage::selection::read(&artifact).ok());
            let mut slot = SelectionSlot {
                key: Arc::clone(key),
                label: method.to_string(),
                cut: PruneSpec { backbone: &job.backbone.name, layers: job.backbone.config.layers, depth: cell.depth },
                criterion: Arc::clone(&method.rule),
                picked: stored.map_or(Picked::Waiting, Picked::Done),
            };
            let needs_pass = !slot.criterion.pairs(&slot.cut).is_empty() || !slot.criterion.sites(&slot.cut).is_empty();
            if slot.waits() && !needs_pass {
                slot.pick(&Similarities::default(), None, trials, job, started)?;
            }
            by_key.insert(key.hash().to_string(), slot);
        }
        Ok(Self { by_key })
    }

    /// What some variants need of a pass, by what is chosen until now; those without a choice for good need nothing.
    pub(super) fn needs(&self, job: &CalibrationJob<'_>, variants: &[&Variant]) -> Needs {
        Needs::of(variants.iter().filter_map(|variant| {
            let (slot, recovery) = (self.slot(variant)?, &job.run.plan.grid.cells[variant.cell].recovery);
            let regions = match &slot.picked {
                Picked::Done(selection) => Some(selection.regions()),
                Picked::Failed(_) => return None,
                Picked::Waiting => None,
            };
            let (criterion, recovery) = (&*slot.criterion, &*recovery.as_ref()?.rule);
            Some(Wanted { criterion, recovery, cut: slot.cut, regions })
        }))
    }

    /// Picks what waited for the pass.
    pub(super) fn after_pass(
        &mut self,
        similarities: &Similarities,
        activations: Option<&Activations>,
        trials: &mut Trials<'_>,
        job: &CalibrationJob<'_>,
    ) -> Result<()> {
        let mut waiting = self.by_key.values_mut().filter(|slot| slot.waits());
        waiting.try_for_each(|slot| slot.pick(similarities, activations, trials, job, Instant::now()))
    }

    pub(super) fn picked(&self, variant: &Variant) -> Option<&Picked> {
        self.slot(variant).map(|slot| &slot.picked)
    }

    fn slot(&self, variant: &Variant) -> Option<&SelectionSlot<'a>> {
        self.by_key.get(variant.selection.as_ref()?.hash())
    }
}

impl SelectionSlot<'_> {
    fn waits(&self) -> bool {
        matches!(self.picked, Picked::Waiting)
    }

    /// Picks and stores a selection; one that failed is tried again by the next run.
    fn pick(
        &mut self,
        similarities: &Similarities,
        activations: Option<&Activations>,
        trials: &mut Trials<'_>,
        job: &CalibrationJob<'_>,
        started: Instant,
    ) -> Result<()> {
        // Only where a criterion says so are perplexities in its selection's key.
        let announced = !self.criterion.trials(&self.cut).is_empty();
        let mut perplexities = |removed: &[Vec<usize>]| match announced {
            true => trials.perplexities(&self.label, removed),
            false => {
                Err(Error::job("a criterion measures perplexities though its `trials` names none").at(&*self.label))
            }
        };
        let mut evidence = Evidence { similarities, activations, perplexities: &mut perplexities };
        self.picked = match self.criterion.select(&self.cut, &mut evidence) {
            Ok(selection) => {
                let seconds = started.elapsed().as_secs_f64();
                job.hold.check()?;
                let channels = job.backbone.config.hidden;
                let notes = criterion::degenerate(&*self.criterion, &self.cut, &selection, &job.windows, channels);
                stage::selection::store(job.run.store, &self.key, seconds, &selection, &notes)?;
                job.hold.gone_on();
                Picked::Done(selection)
            }
            Err(error) if error.kind() == ErrorKind::Job => Picked::Failed(error.one_line()),
            Err(error) => return Err(error),
        };
        Ok(())
    }
}
