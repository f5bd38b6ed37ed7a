//! From one calibration to the repaired variants of one backbone: selections, activations, operators.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::context::Context;
use super::operator::{self, recovery_of, spans};
use super::pass::KeptActivations;
use super::score::ScoringJob;
use super::selection::{Picked, Selections};
use crate::calibrate::{ActivationShape, Activations, HookPoint, PassRequest, Similarities};
use crate::corpus::Windows;
use crate::criterion::Selection;
use crate::error::{ErrorKind, Result};
use crate::evaluate::perplexity::{Losses, PerplexityEval};
use crate::files::sha256;
use crate::model::{Decoder, Program};
use crate::plan::{BackbonePlan, CalibrationPlan, Variant};
use crate::recovery::Span;
use crate::store::{Key, Lookup};

/// One calibration of one backbone at work.
pub(super) struct CalibrationJob<'a> {
    pub(super) run: &'a Context<'a>,
    pub(super) backbone: &'a BackbonePlan,
    pub(super) decoder: Arc<Decoder>,
    pub(super) tokens: &'a Arc<Key>,
    pub(super) windows: Windows,
    /// How reports name it.
    pub(super) label: String,
    pub(super) shape: ActivationShape,
}

impl<'a> CalibrationJob<'a> {
    /// Makes the selections and operators of some variants of one calibration that are not stored. What one variant
    /// suffers from fails it alone.
    ///
    /// # Errors
    /// What stops the whole run, and what all variants suffer from.
    pub(super) fn repair(
        run: &'a Context<'a>,
        backbone: &'a BackbonePlan,
        plan: &'a CalibrationPlan,
        variants: &[&Variant],
    ) -> Result<()> {
        let label = format!("calibrate {} on {}", backbone.name, plan.calibration);
        let name = sha256::of_bytes(format!("{} {}", backbone.content, plan.tokens.hash()));
        let lease = run.claim(&format!("calibrate-{name}"), &label)?;
        // Another process may have made them while this one waited.
        let left: Vec<&Variant> = variants.iter().copied().filter(|variant| !made(run, variant)).collect();
        if !left.is_empty() {
            let windows = run.windows(backbone, &plan.tokens)?;
            let decoder = run.model(backbone)?;
            let shape = ActivationShape {
                channels: backbone.config.hidden,
                sequences: windows.count(),
                length: windows.length,
            };
            let calibrating = Self { run, backbone, decoder, tokens: &plan.tokens, windows, label, shape };
            calibrating.try_repair(&left)?;
        }
        drop(lease);
        Ok(())
    }

    fn try_repair(&self, variants: &[&Variant]) -> Result<()> {
        let mut selections = Selections::of(self, variants)?;
        let mut wanted: BTreeSet<HookPoint> = BTreeSet::new();
        for variant in variants {
            let recovery = recovery_of(&self.run.plan.grid.cells[variant.cell])?;
            for (start, end) in selections.regions(variant) {
                let spans = recovery.spans(Span { start, end });
                wanted.extend(spans.into_iter().flat_map(|span| recovery.sites(span)));
            }
        }
        let mut kept = KeptActivations::default();
        wanted.iter().for_each(|&site| self.find(&mut kept, site));
        wanted.retain(|&site| !kept.has(site));
        let mut request = PassRequest { pairs: selections.pairs(), sites: wanted };
        let all_bytes = self.shape.bytes() * request.sites.len() as u64;
        let fits = all_bytes <= self.run.settings.spool_bytes;
        if !request.is_empty() {
            self.run.note(format!(
                "{}: {} sites, {:.1} MB of activations, {}",
                self.label,
                request.sites.len(),
                all_bytes as f64 / 1e6,
                if fits { "one pass" } else { "over the limit: a second pass spools only what the selections chose" }
            ));
        }
        if !fits && !request.pairs.is_empty() {
            request.sites.clear();
        }
        let similarities = match request.is_empty() {
            true => Similarities::default(),
            false => self.pass(&self.label, &request, &mut kept)?,
        };
        selections.finish(self, &similarities)?;
        let chosen = self.chosen(variants, &selections);
        let mut sites = BTreeSet::new();
        for (variant, selection) in &chosen {
            let recovery = recovery_of(&self.run.plan.grid.cells[variant.cell])?;
            sites.extend(spans(selection, &*recovery).into_iter().flat_map(|span| recovery.sites(span)));
        }
        self.clear(&request, &sites)?;
        let mut rest = sites.clone();
        rest.retain(|&site| !kept.has(site));
        if !rest.is_empty() {
            rest.iter().for_each(|&site| self.find(&mut kept, site));
            let request = PassRequest { sites: rest, ..PassRequest::default() };
            self.pass(&format!("{}, second pass", self.label), &request, &mut kept)?;
        }
        let activations = self.open(&kept, &sites)?;
        for (variant, selection) in chosen {
            self.solve(variant, selection, &activations)?;
            self.run.check_stop()?;
        }
        Ok(())
    }

    /// The variants whose layers are chosen; those whose criterion failed are said to have failed.
    fn chosen<'s>(
        &self,
        variants: &[&'s Variant],
        selections: &'s Selections<'_>,
    ) -> Vec<(&'s Variant, &'s Selection)> {
        let choose = |variant: &&'s Variant| match selections.picked(variant) {
            Some(Picked::Done(selection)) => Some((*variant, selection)),
            Some(Picked::Failed(reason)) => {
                self.run.fail(variant.cell, reason.clone());
                None
            }
            Some(Picked::Waiting) | None => {
                self.run.fail(variant.cell, "its criterion was never measured".to_string());
                None
            }
        };
        variants.iter().filter_map(choose).collect()
    }

    fn solve(&self, variant: &Variant, selection: &Selection, activations: &Activations) -> Result<()> {
        let Some(key) = variant.operator.as_ref().filter(|_| !made(self.run, variant)) else { return Ok(()) };
        let cell = &self.run.plan.grid.cells[variant.cell];
        match operator::solve(cell, selection, &self.decoder, activations, self.run.store, key) {
            Err(error) if error.kind() == ErrorKind::Job => {
                self.run.fail(variant.cell, error.one_line());
                Ok(())
            }
            other => other,
        }
    }

    /// Perplexity on the calibration windows without each of some sets of layers, all in one trie. Each is stored.
    pub(super) fn perplexities(&self, label: &str, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
        let label = format!("{label} for {} ({} trials)", self.backbone.name, removed.len());
        let batch = self.run.settings.batch_tokens;
        let layers = self.backbone.config.layers;
        let trial = |set: &Vec<usize>| {
            (Arc::new(self.backbone.trial(self.tokens, set, batch)), Program::pruned(layers, set, |_| None))
        };
        let sitting = ScoringJob {
            run: self.run,
            backbone: self.backbone,
            exam: &PerplexityEval::new(&self.windows, batch),
            label: &label,
            journal: sha256::of_bytes(format!("{} {} {batch}", self.backbone.content, self.tokens.hash())),
        };
        let losses = sitting.scores(removed.iter().map(trial).collect())?;
        // A variant that overflows is the worst there is.
        let perplexity = |windows: Vec<f64>| Losses { windows }.perplexity();
        Ok(losses.into_iter().map(perplexity).map(|p| if p.is_nan() { f64::INFINITY } else { p }).collect())
    }
}

/// Whether a variant's selection and operators are stored.
fn made(run: &Context<'_>, variant: &Variant) -> bool {
    let whole = |key: &Arc<Key>| matches!(run.store.get(key), Lookup::Whole(_));
    variant.selection.iter().chain(&variant.operator).all(whole)
}
