//! Estimated costs of a plan: FLOPs with and without shared steps, memory, and disk space.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::trials::CriterionTrials;
use super::{BackbonePlan, ObjectState, Plan, StoreView, Variant};
use crate::criterion::{Depth, Selection, TrialMetric};
use crate::error::Result;
use crate::evaluate::generation::PROMPTS_PER_CHUNK;
use crate::grid::{Cell, Draw};
use crate::model::{Cut, Load, MergedLayer, Operator, Products, Program, Repairs, Trie};
use crate::pipeline::env::run_settings::RunSettings;
use crate::pipeline::stage::calibration_inputs::{CalibrationInputs, WantedRepair};
use crate::pipeline::stage::selection::activation_limit;
use crate::pipeline::stage::{
    Cost, Job, KINDS, Stage, activations, calibration, distilled, latency, operator, scores, scoring, tokens,
};
use crate::recovery::{self, RepairTarget};
use ghostlab_store::{Key, ObjectKind, Store};

/// Costs of a grid, in total or for the remaining work.
#[derive(Debug, Clone, Default)]
pub struct Estimate {
    pub cost: Cost,
    /// Peak memory in bytes, including mapped files.
    pub memory: u64,
    /// Bytes of temporary activations on disk, in addition to the activations that are kept in the store.
    pub spool: u64,
    /// Cost of each job, in total and for the remaining work. Evaluations whose texts have not been tokenized yet are
    /// excluded.
    pub jobs: Vec<JobCost>,
}

/// Memory in bytes that the program uses without any backbone: tokenizers, tables and memory retained by the allocator.
/// Measured with grids of tiny backbones.
const PROGRAM_BYTES: u64 = 92 << 20;

/// Additional memory in bytes that the program uses if it is available. 30 runs with a small backbone used 128 to 160
/// MB in total (2026-11-27). Of this, 50 or 57 MB were pages of the executable, depending on the page cache.
const OPTIONAL_BYTES: u64 = 30 << 20;

/// Returns a placeholder for an operator that is not known yet. Each index gives a different operator, because a
/// [`Trie`] merges equal programs.
pub fn placeholder_operator(index: usize) -> Result<Arc<Operator>> {
    Operator::diagonal(vec![index as f32])
}

#[cfg(test)]
thread_local! {
    /// Number of estimates by this thread.
    pub(crate) static ESTIMATES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Estimate {
    /// Estimates the costs of a plan. `spool_bytes` limits the activations that a calibration pass stores temporarily.
    /// `memory` limits the memory of jobs and weights.
    ///
    /// # Errors
    /// Fails if the operators of an exported backbone cannot be read.
    pub fn from_plan(plan: &Plan<'_>, state: &StoreView, spool_bytes: u64, memory: u64) -> Result<Self> {
        #[cfg(test)]
        ESTIMATES.set(ESTIMATES.get() + 1);
        let mut total = Self::default();
        for (index, backbone) in plan.backbones.iter().enumerate() {
            let (estimate, jobs) = BackboneEstimator { plan, backbone, state }.estimate(spool_bytes, memory)?;
            total.jobs.extend(jobs.into_iter().map(|(job, cost)| JobCost { backbone: index, job, cost }));
            total.cost += estimate.cost;
            // Backbones run one after the other.
            total.memory = total.memory.max(estimate.memory);
            total.spool = total.spool.max(estimate.spool);
        }
        Ok(total)
    }

    /// Returns the number of bytes that will be added to the store, including temporary ones.
    pub fn incoming(&self) -> u64 {
        self.cost.disk.saturating_add(self.spool)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct JobCost {
    /// Index of the backbone in the plan.
    pub backbone: usize,
    pub job: Job,
    pub cost: Cost,
}

/// Returns how many bytes of `memory` are left for the weights of a backbone while its jobs run.
pub fn weights_budget(plan: &Plan<'_>, backbone: &BackbonePlan, state: &StoreView, memory: u64) -> u64 {
    let config = &backbone.config;
    let left = backbone.variants.iter().filter(|variant| !state.is_complete(variant)).count();
    // Solving needs memory for at most four f64 matrices. Scoring needs memory for one operator per variant.
    let matrices = (4 * config.hidden * config.hidden) as u64 * left.max(8) as u64;
    let left = memory.saturating_sub(PROGRAM_BYTES + batch_bytes(plan, backbone, state, memory) + matrices);
    // If weights are rounded, the unquantized weights are also in memory, for calibration.
    let left = if backbone.unquantized.is_some() { left / 2 } else { left };
    left.min(backbone.engine.weight_bytes(config))
}

/// Returns how many bytes of `memory` the weights of a backbone take while its jobs run.
pub(crate) fn held_weight_bytes(plan: &Plan<'_>, backbone: &BackbonePlan, state: &StoreView, memory: u64) -> u64 {
    let bytes = backbone.engine.held_bytes(&backbone.config, weights_budget(plan, backbone, state, memory));
    if backbone.unquantized.is_some() { 2 * bytes } else { bytes }
}

/// Returns how many bytes of memory the largest batch needs. This includes the residual streams of [`Trie`] branches
/// and of the dense model in comparisons, and the KV caches for generation.
pub fn batch_bytes(plan: &Plan<'_>, backbone: &BackbonePlan, state: &StoreView, memory: u64) -> u64 {
    let deepest =
        plan.grid.cells.iter().filter(|cell| cell.depth.is_in_layers()).map(|cell| cell.depth.count).max().unwrap_or(0);
    let calibrations = backbone.calibrations.iter().map(|calibration| {
        let Load { tokens, length, .. } = calibration.load();
        backbone.config.batch_bytes(backbone.batch_tokens.max(length).min(tokens), deepest + 2)
    });
    let evaluations = backbone.evaluations.iter().enumerate().map(|(index, evaluation)| {
        // For a comparison, the residual stream of the dense model is kept until the end of the batch.
        let streams = if evaluation.target.extent().damage { 5 } else { 4 };
        let load = read_load(state, &evaluation.tokens);
        let all = load.as_ref().map_or(usize::MAX, |load| load.tokens);
        let length = load.map_or(0, |load| load.length);
        let batch = backbone.config.batch_bytes(backbone.batch_tokens.max(length).min(all), streams);
        batch + cache_bytes(plan, backbone, index, state, memory)
    });
    calibrations.chain(evaluations).max().unwrap_or(0)
}

/// Returns the size in bytes of the KV caches for prompts that are processed at the same time, or 0 if nothing is
/// generated. The size is limited by [`RunSettings::max_cache_bytes`], but always suffices for one prompt.
fn cache_bytes(plan: &Plan<'_>, backbone: &BackbonePlan, position: usize, state: &StoreView, memory: u64) -> u64 {
    let evaluation = &backbone.evaluations[position];
    let Some(load) = read_load(state, &evaluation.tokens).filter(|_| evaluation.generates) else { return 0 };
    let unscored = backbone.variants.iter().filter(|variant| !state.has(&variant.scores[position]));
    let estimator = BackboneEstimator { plan, backbone, state };
    let programs = unscored.filter_map(|variant| estimator.assumed_program(variant).ok());
    let trie = Trie::new(&programs.collect::<Vec<_>>());
    let prompts = (load.tokens / load.length.max(1)).max(1);
    let new_tokens = load.scored / prompts;
    let prompt_bytes = backbone.config.prompt_cache_bytes(&trie, load.length.saturating_sub(new_tokens), new_tokens);
    (prompt_bytes * prompts.min(PROMPTS_PER_CHUNK) as u64).min(RunSettings::max_cache_bytes(memory)).max(prompt_bytes)
}

struct BackboneEstimator<'a> {
    plan: &'a Plan<'a>,
    backbone: &'a BackbonePlan,
    state: &'a StoreView,
}

/// Costs of all work that uses a calibration text.
#[derive(Default)]
struct CalibrationCost {
    /// Cost of the calibration job, or `None` if the text is used only for training.
    job: Option<Cost>,
    /// Costs that belong to no job: storing the token ids, and the pass over a text that is used only for training.
    unscheduled: Cost,
    /// Bytes of temporary activations on disk.
    spool: u64,
    /// Number of bytes of activations that are memory-mapped, or `None` if no operator is missing.
    mapped: Option<u64>,
}

impl BackboneEstimator<'_> {
    /// Returns the total costs of the backbone, and the cost of each of its jobs.
    fn estimate(&self, spool_bytes: u64, memory: u64) -> Result<(Estimate, Vec<(Job, Cost)>)> {
        let programs: Vec<Program> =
            self.backbone.variants.iter().map(|variant| self.assumed_program(variant)).collect::<Result<_>>()?;
        let all = Trie::for_scoring(&programs);
        let mut jobs = self.score_jobs(&programs, &all)?;
        jobs.extend(self.latency_jobs(&all));
        let mut total = Estimate::default();
        let mut mapped = None;
        for index in 0..self.backbone.calibrations.len() {
            let calibration = self.calibration_cost(index);
            total.cost += calibration.unscheduled;
            total.spool = total.spool.max(calibration.spool.min(spool_bytes));
            mapped = mapped.max(calibration.mapped);
            jobs.extend(calibration.job.map(|cost| (Job { group: &calibration::GROUP, index }, cost)));
        }
        jobs.iter().for_each(|(_, cost)| total.cost += *cost);
        total.cost.inodes += self.count_inodes()?;
        total.memory = self.peak_memory(memory, mapped);
        Ok((total, jobs))
    }

    fn cell(&self, variant: &Variant) -> &Cell {
        &self.plan.grid.cells[variant.cell]
    }

    fn selection(&self, variant: &Variant) -> Option<&Selection> {
        self.state.selection(variant.selection.as_ref()?)
    }

    /// Returns the cut of a variant. If its selection is not stored, the middle layers are assumed to be removed.
    fn assumed_cut(&self, variant: &Variant) -> Cut {
        self.selection(variant).map_or_else(
            || self.cell(variant).depth.middle(self.backbone.config.layers),
            |selection| selection.removed.clone(),
        )
    }

    /// Returns the program of a variant with its [assumed cut](Self::assumed_cut) and placeholder operators.
    fn assumed_program(&self, variant: &Variant) -> Result<Program> {
        let layers = self.backbone.config.layers;
        let removed = self.assumed_cut(variant);
        let recovery = self.cell(variant).recovery.as_ref().map(|method| &*method.rule);
        let Some(recovery) = recovery.filter(|rule| rule.is_repairing()) else {
            return Ok(Program::without(layers, &removed));
        };
        let merges = self.selection(variant).map_or(&[][..], |selection| &selection.merges);
        if let Some(repairs) = recovery::merged_layers(recovery, &removed, merges) {
            return Ok(Program::repaired(layers, &removed, &repairs));
        }
        let operator = placeholder_operator(variant.cell)?;
        if !recovery.replaces_sublayers() {
            return Ok(Program::pruned(layers, &removed.whole_layers(), |_| Some(Arc::clone(&operator))));
        }
        let sublayers = removed.iter().map(|sublayer| (sublayer, Arc::clone(&operator))).collect();
        Ok(Program::repaired(layers, &removed, &Repairs { sublayers, ..Repairs::default() }))
    }

    /// Returns the costs of the evaluations whose texts have been tokenized.
    fn score_jobs(&self, programs: &[Program], all: &Trie) -> Result<Vec<(Job, Cost)>> {
        let Self { backbone, state, .. } = self;
        let mut jobs = Vec::new();
        for (index, evaluation) in backbone.evaluations.iter().enumerate() {
            let Some(load) = read_load(state, &evaluation.tokens) else { continue };
            let load = evaluation.target.draw().map_or(load, |draw| drawn_load(load, draw));
            let missing =
                backbone.variants.iter().zip(programs).filter(|(variant, _)| !state.has(&variant.scores[index]));
            let missing: Vec<Program> = missing.map(|(_, program)| program.clone()).collect();
            let reference = evaluation.target.read_reference(backbone)?;
            let compared = reference.as_ref().map(|reference| Trie::with_reference(reference, programs));
            let trie = compared.as_ref().unwrap_or(all);
            let cost = scores::cost(&backbone.config, trie, reference.as_ref(), &missing, &load);
            jobs.push((Job { group: &scoring::GROUP, index }, cost));
        }
        Ok(jobs)
    }

    fn latency_jobs(&self, all: &Trie) -> impl Iterator<Item = (Job, Cost)> {
        let Self { backbone, state, .. } = self;
        backbone.latencies.iter().enumerate().map(|(index, prompt)| {
            let left = backbone.variants.iter().any(|variant| !state.has(&variant.latencies[index]));
            (Job { group: &latency::GROUP, index }, latency::cost(&backbone.config, all, prompt, left))
        })
    }

    fn calibration_cost(&self, index: usize) -> CalibrationCost {
        let Self { plan, backbone, state } = *self;
        let config = &backbone.config;
        let calibration = &backbone.calibrations[index];
        let load = calibration.load();
        let mut costs = CalibrationCost::default();
        if !state.has(&calibration.tokens) {
            // Each token id takes 4 bytes on disk.
            costs.unscheduled.disk += 4 * load.tokens as u64;
        }
        let calibrated: Vec<&Variant> = backbone.variants.iter().filter(|v| v.calibration == Some(index)).collect();
        let missing: Vec<&Variant> =
            calibrated.iter().copied().filter(|variant| !state.has_optional(variant.operator.as_ref())).collect();
        let pass = activations::pass_flops(config, &load);
        // A text that is used only for training has no calibration job, but reading it still costs one pass.
        if calibrated.is_empty() {
            costs.unscheduled.shared += pass;
            return costs;
        }
        let [all, left] = [&calibrated, &missing].map(|variants| -> Vec<f64> {
            variants.iter().filter_map(|variant| self.solve_flops(variant, &load)).collect()
        });
        let mut cost = operator::cost(config, pass, &all, &left);
        for CriterionTrials { metric, all, missing, .. } in
            CriterionTrials::list_by_criterion(plan.grid, backbone, index, state)
        {
            cost += scores::trial_cost(config, metric, [&all, &missing], &load);
        }
        self.add_training_costs(&mut cost, &calibrated, pass / load.tokens.max(1) as f64);
        if !missing.is_empty() {
            let (kept, spooled) = self.count_sites(&missing);
            cost += activations::cost(config, calibration.shape(config), &load, [kept, spooled]);
            let site_bytes = activations::site_bytes(config, &load);
            costs.mapped = Some(kept as u64 * site_bytes);
            costs.spool = spooled as u64 * site_bytes;
        }
        costs.job = Some(cost);
        costs
    }

    /// Estimates the number of FLOPs for solving the operators of a variant, for its [assumed cut](Self::assumed_cut).
    fn solve_flops(&self, variant: &Variant, load: &Load) -> Option<f64> {
        let config = &self.backbone.config;
        let cell = self.cell(variant);
        let recovery = &*cell.recovery.as_ref()?.rule;
        let spans = recovery::spans(recovery, &self.assumed_cut(variant)).len();
        // If layers are removed one by one, each layer takes additional passes: two to select it, and one to repair it.
        let is_iterative = cell.criterion.as_ref().is_some_and(|method| method.rule.is_iterative());
        let steps = if is_iterative { cell.depth.count } else { 0 };
        let passes = 2 * (steps - self.state.selected_steps(variant).min(steps))
            + if recovery.is_repairing() { steps } else { 0 };
        let passes = passes as f64 * activations::pass_flops(config, load);
        Some(passes + operator::solve_flops(config, recovery, load, variant.fitted(), spans))
    }

    /// Returns the number of sites ([`HookPoint`](crate::calibrate::HookPoint)) whose activations a calibration pass
    /// stores, and the number of additional sites whose activations it spools until the layers are selected.
    fn count_sites(&self, variants: &[&Variant]) -> (usize, usize) {
        let [assumed, known] = [true, false].map(|assumes_middle| {
            CalibrationInputs::from_repairs(variants.iter().filter_map(|variant| {
                let cell = self.cell(variant);
                let criterion = Some(&*cell.criterion.as_ref()?.rule).filter(|rule| !rule.is_iterative())?;
                let recovery = &*cell.recovery.as_ref()?.rule;
                let is_known = assumes_middle || self.selection(variant).is_some();
                let removed = is_known.then(|| self.assumed_cut(variant));
                Some(WantedRepair { criterion, recovery, cut: self.backbone.prune_spec(cell.depth), removed })
            }))
        });
        let retained = assumed.required;
        let spooled = known.possible.union(&known.criterion_sites).filter(|site| !retained.contains(site)).count();
        (retained.len(), spooled)
    }

    /// Adds the costs of training the operators of `variants`. `token_flops` is the cost of passing one token through
    /// all layers.
    fn add_training_costs(&self, cost: &mut Cost, variants: &[&Variant], token_flops: f64) {
        let Self { backbone, state, .. } = self;
        let config = &backbone.config;
        // One pass stores the outputs of the teacher for all training runs with the same text and selection.
        let mut counted = BTreeSet::new();
        for (variant, trained) in variants.iter().filter_map(|variant| Some((variant, variant.trained.as_ref()?))) {
            let text = &backbone.calibrations[trained.text];
            let left = !state.has(&trained.key);
            *cost += distilled::cost(config, token_flops, &text.load(), left);
            let selection = variant.selection.as_ref().map_or("", |key| key.hash());
            if left && counted.insert((trained.text, selection)) {
                *cost += distilled::teacher_cost(config, &text.load(), text.shape(config));
            }
        }
    }

    /// Returns how many files and directories the missing objects need.
    fn count_inodes(&self) -> Result<u64> {
        let missing = self.backbone.keys().filter(|key| !self.state.has(key));
        let missing: BTreeSet<(ObjectKind, &str)> = missing.map(|key| (key.kind(), key.hash())).collect();
        if missing.is_empty() {
            return Ok(0);
        }
        // An object is assumed to have at most four operator matrices, one per region of the cut.
        let small = 4 * operator::matrix_bytes(&self.backbone.config) <= Store::MAX_SMALL_BYTES;
        // One directory per kind, and one for shared packs.
        let mut inodes = KINDS.len() as u64 + 1;
        for (kind, _) in &missing {
            inodes += (Stage::for_kind(*kind)?.inodes)(small);
        }
        Ok(inodes)
    }

    /// Returns the memory in bytes for the activations of one pass of an iterative removal. This is the maximum of the
    /// activations that the criterion reads, up to its limit, and those that the repair of one span (removed layers or
    /// a sublayer) reads.
    fn iterative_bytes(&self, variant: &Variant, memory: u64) -> u64 {
        let Self { backbone, state, .. } = self;
        let cell = self.cell(variant);
        let (Some(criterion), Some(recovery), Some(index)) = (&cell.criterion, &cell.recovery, variant.calibration)
        else {
            return 0;
        };
        let is_selected = state.has_optional(variant.selection.as_ref());
        if !criterion.rule.is_iterative() || (is_selected && state.has_optional(variant.operator.as_ref())) {
            return 0;
        }
        let site = activations::site_bytes(&backbone.config, &backbone.calibrations[index].load());
        let one = backbone.prune_spec(Depth { count: 1, ..cell.depth });
        // The activations at the two hook points of a candidate are read even if they exceed the limit.
        let read = (criterion.rule.sites(&one).len() as u64 * site).min(activation_limit(memory).max(2 * site));
        let read = if is_selected { 0 } else { read };
        let spans = recovery::spans(&*recovery.rule, &cell.depth.middle(backbone.config.layers));
        let solved = spans.into_iter().map(|span| recovery.rule.sites(span).len() as u64 * site).max();
        read.max(solved.unwrap_or(0))
    }

    /// Returns the peak memory in bytes of the remaining jobs, or 0 if everything is stored. `mapped` is the size of
    /// mapped activations, if any operator is missing.
    fn peak_memory(&self, memory: u64, mapped: Option<u64>) -> u64 {
        let Self { plan, backbone, state } = self;
        let left = backbone.variants.iter().filter(|variant| !state.is_complete(variant)).count();
        if left == 0 {
            return 0;
        }
        // Solving needs at most four f64 matrices, and either the mapped activations or those of an iterative removal.
        let matrix = operator::matrix_bytes(&backbone.config);
        let iterative = backbone.variants.iter().map(|variant| self.iterative_bytes(variant, memory)).max();
        let solving = mapped.map_or(0, |mapped| 8 * matrix + mapped.max(iterative.unwrap_or(0)));
        let weights = held_weight_bytes(plan, backbone, state, memory) + self.merged_bytes();
        let required =
            PROGRAM_BYTES + weights + batch_bytes(plan, backbone, state, memory) + solving.max(left as u64 * matrix);
        (required + OPTIONAL_BYTES).min(memory.max(required))
    }

    /// Returns how many bytes of memory merged layers need in f32. Assumes one merged layer for each variant whose
    /// recovery merges layers. The trials for a missing selection may fill the cache of merged layers.
    fn merged_bytes(&self) -> u64 {
        let missing_selections = self.backbone.variants.iter().filter(|variant| {
            let criterion = self.cell(variant).criterion.as_ref();
            criterion.is_some_and(|criterion| criterion.rule.trial_metric() == TrialMetric::Cosine)
                && !self.state.has_optional(variant.selection.as_ref())
        });
        let merged_variants = self.backbone.variants.iter().filter(|variant| {
            let recovery = self.cell(variant).recovery.as_ref();
            recovery.is_some_and(|recovery| recovery.rule.target() == RepairTarget::Layer)
        });
        let layers = merged_variants.count().max(missing_selections.count() * MergedLayer::MAX_CACHED);
        layers.min(MergedLayer::MAX_CACHED) as u64 * self.backbone.config.layer_bytes(Products::F32)
    }
}

/// Reads the [`Load`] of stored tokens. Returns `None` if they are missing or damaged.
fn read_load(state: &StoreView, key: &Key) -> Option<Load> {
    debug_assert_eq!(key.kind(), tokens::KIND);
    match state.object(key) {
        ObjectState::Whole(artifact) => tokens::load(artifact).ok(),
        _ => None,
    }
}

/// Returns the load of a sample of a text or task. All windows or documents are assumed to have the same size.
fn drawn_load(all: Load, draw: Draw) -> Load {
    let items = (all.tokens / all.length.max(1)).max(1);
    Load {
        tokens: drawn_tokens(&draw, items, all.tokens),
        scored: drawn_tokens(&draw, items, all.scored),
        length: all.length,
    }
}

fn drawn_tokens(draw: &Draw, items: usize, tokens: usize) -> usize {
    tokens * draw.drawn_count(items) / items
}
