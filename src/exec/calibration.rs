//! From one calibration to the repaired variants of one backbone: selections, activations, operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::context::Context;
use super::operator::{self, recovery_of, spans};
use super::score::Sitting;
use super::selection::{Picked, Selections};
use super::spool::{self, Shards};
use crate::calibrate::{self, Activations, Request, Shape, Similarities, Site};
use crate::corpus::Windows;
use crate::criterion::Selection;
use crate::error::{Kind, Result};
use crate::evaluate::perplexity::{Losses, Reading};
use crate::files::sha256;
use crate::model::{Decoder, Load, Program, Trie};
use crate::plan::{BackbonePlan, CalibrationPlan, Variant};
use crate::recovery::Span;
use crate::store::{Artifact, Key, Lookup};

/// One calibration of one backbone at work.
pub(super) struct Calibrating<'a> {
    pub(super) run: &'a Context<'a>,
    pub(super) backbone: &'a BackbonePlan,
    decoder: Arc<Decoder>,
    tokens: &'a Arc<Key>,
    windows: Windows,
    /// How reports name it.
    label: String,
    shape: Shape,
}

impl<'a> Calibrating<'a> {
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
            let shape = Shape { channels: backbone.config.hidden, sequences: windows.count(), length: windows.length };
            let calibrating = Self { run, backbone, decoder, tokens: &plan.tokens, windows, label, shape };
            calibrating.try_repair(&left)?;
        }
        drop(lease);
        Ok(())
    }

    fn try_repair(&self, variants: &[&Variant]) -> Result<()> {
        let mut selections = Selections::of(self, variants)?;
        let started = Instant::now();
        let mut artifacts = BTreeMap::new();
        let mut wanted: BTreeSet<Site> = BTreeSet::new();
        for variant in variants {
            let recovery = recovery_of(&self.run.plan.grid.cells[variant.cell])?;
            for (start, end) in selections.regions(variant) {
                let spans = recovery.spans(Span { start, end });
                wanted.extend(spans.into_iter().flat_map(|span| recovery.sites(span)));
            }
        }
        wanted.retain(|&site| match self.run.get(&self.site_key(site)) {
            Some(artifact) => artifacts.insert(site, artifact).is_some(),
            None => true,
        });
        let mut request = Request { pairs: selections.pairs(), sites: wanted };
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
        let mut spool = None;
        if request.is_empty() {
            selections.finish(self, &Similarities::default())?;
        } else {
            let (similarities, shards) = self.pass(&self.label, &request)?;
            selections.finish(self, &similarities)?;
            spool = Some(shards);
        }
        let chosen = self.chosen(variants, &selections);
        let mut sites = BTreeSet::new();
        for (variant, selection) in &chosen {
            let recovery = recovery_of(&self.run.plan.grid.cells[variant.cell])?;
            sites.extend(spans(selection, &*recovery).into_iter().flat_map(|span| recovery.sites(span)));
        }
        let seconds = started.elapsed().as_secs_f64();
        self.keep(spool.as_mut(), &sites, seconds, &mut artifacts)?;
        let rest: BTreeSet<Site> = sites.iter().copied().filter(|site| !artifacts.contains_key(site)).collect();
        if !rest.is_empty() {
            let started = Instant::now();
            let request = Request { sites: rest, ..Request::default() };
            let (_, mut spool) = self.pass(&format!("{}, second pass", self.label), &request)?;
            self.keep(Some(&mut spool), &sites, started.elapsed().as_secs_f64(), &mut artifacts)?;
        }
        let activations = spool::open(self.shape, &artifacts)?;
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
            Err(error) if error.kind() == Kind::Job => {
                self.run.fail(variant.cell, error.one_line());
                Ok(())
            }
            other => other,
        }
    }

    fn pass(&self, label: &str, request: &Request) -> Result<(Similarities, Shards)> {
        let windows: Vec<&[u32]> = self.windows.iter().collect();
        let tokens = self.windows.ids.len();
        let trie = Trie::new(&[request.program(self.backbone.config.layers)]);
        let flops = self.run.cost(self.backbone, &trie, &Load::windows(tokens, self.shape.length));
        let job = self.run.start(label, tokens, 0, flops);
        let progress = |tokens| self.run.advance(job, tokens);
        let batch = self.run.settings.batch_tokens;
        let mut shards = Shards::create(self.run.store, &request.sites, self.shape)?;
        let similarities = calibrate::run(&self.decoder, &windows, batch, request, &mut shards, progress)
            .map_err(|error| error.at(self.label.clone()))?;
        self.run.finish(job);
        Ok((similarities, shards.finish()?))
    }

    /// Perplexity on the calibration windows without each of some sets of layers, all in one trie. Each is stored.
    pub(super) fn perplexities(&self, label: &str, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
        let label = format!("{label} for {} ({} trials)", self.backbone.name, removed.len());
        let batch = self.run.settings.batch_tokens;
        let layers = self.backbone.config.layers;
        let trial = |set: &Vec<usize>| {
            (Arc::new(self.backbone.trial(self.tokens, set, batch)), Program::pruned(layers, set, |_| None))
        };
        let sitting = Sitting {
            run: self.run,
            backbone: self.backbone,
            exam: &Reading::new(&self.windows, batch),
            label: &label,
            journal: sha256::of_bytes(format!("{} {} {batch}", self.backbone.content, self.tokens.hash())),
        };
        let losses = sitting.scores(removed.iter().map(trial).collect())?;
        // A variant that overflows is the worst there is.
        let perplexity = |windows: Vec<f64>| Losses { windows }.perplexity();
        Ok(losses.into_iter().map(perplexity).map(|p| if p.is_nan() { f64::INFINITY } else { p }).collect())
    }

    fn site_key(&self, site: Site) -> Key {
        self.backbone.activations(self.tokens, &site.to_string())
    }

    fn keep(
        &self,
        spool: Option<&mut Shards>,
        chosen: &BTreeSet<Site>,
        seconds: f64,
        artifacts: &mut BTreeMap<Site, Artifact>,
    ) -> Result<()> {
        let Some(spool) = spool else { return Ok(()) };
        // One pass made them all.
        let seconds = seconds / chosen.len().max(1) as f64;
        for &site in chosen {
            if let Some(artifact) = spool.keep(self.run.store, site, &self.site_key(site), seconds)? {
                artifacts.insert(site, artifact);
            }
        }
        Ok(())
    }
}

/// Whether a variant's selection and operators are stored.
fn made(run: &Context<'_>, variant: &Variant) -> bool {
    let whole = |key: &Arc<Key>| matches!(run.store.get(key), Lookup::Whole(_));
    variant.selection.iter().chain(&variant.operator).all(whole)
}
