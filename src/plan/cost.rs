//! What a plan costs: floating-point operations with and without sharing, memory, disk.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::kinds;
use super::{BackbonePlan, ObjectState, Plan, StoreState, Variant, payload};
use crate::calibrate::ActivationShape;
use crate::criterion::{self, Criterion, PruneSpec};
use crate::distill::Finetune;
use crate::error::Result;
use crate::grid::{Calibration, Grid};
use crate::latency::{self, Rounds};
use crate::model::trie::Cost;
use crate::model::{Load, Operator, Program, Trie};
use crate::recovery::{self, Span};
use ghostlab_store::{ObjectKind, Store};

/// What a grid costs, and what is left of that.
#[derive(Debug, Clone, Copy, Default)]
pub struct Estimate {
    /// Everything, each cell by itself.
    pub naive: f64,
    /// Everything, what cells share counted once.
    pub shared: f64,
    /// What is not stored yet, shared.
    pub left: f64,
    /// Bytes of memory at the peak, mapped files included.
    pub memory: u64,
    /// Bytes that will be written to the store.
    pub disk: u64,
    /// Bytes of activations that are written for a while, beyond those that stay.
    pub spool: u64,
    /// Files and folders that all of these are, at the most.
    pub inodes: u64,
}

/// What the program takes by itself, with tokenizers, tables, and what the allocator keeps for another time: measured on
/// grids of tiny backbones.
const PROGRAM: u64 = 92 << 20;

/// An operator that stands for one that is not known yet, unlike the others: equal programs would count once.
pub fn place_holder(index: usize) -> Result<Arc<Operator>> {
    Operator::diagonal(vec![index as f32])
}

impl Estimate {
    /// `spool_bytes` bounds what one calibration pass writes, `memory` what jobs and weights take.
    pub fn of(plan: &Plan<'_>, state: &StoreState, spool_bytes: u64, memory: u64) -> Result<Self> {
        let mut total = Self::default();
        for backbone in &plan.backbones {
            let one = of_backbone(plan, backbone, state, spool_bytes, memory, &mut Vec::new())?;
            total.naive += one.naive;
            total.shared += one.shared;
            total.left += one.left;
            total.disk += one.disk;
            total.inodes += one.inodes;
            // One backbone at a time.
            total.memory = total.memory.max(one.memory);
            total.spool = total.spool.max(one.spool);
        }
        Ok(total)
    }
}

/// One of a backbone's jobs, by its place among its calibrations or evaluations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPlace {
    Calibration(usize),
    Evaluation(usize),
    Latency(usize),
}

/// What a job costs, in floating-point operations.
#[derive(Debug, Clone, Copy)]
pub struct JobCost {
    /// Its place in the plan.
    pub backbone: usize,
    pub job: JobPlace,
    /// When nothing of it is stored.
    pub flops: f64,
    /// What is not stored of it.
    pub left: f64,
}

/// What the jobs of a plan cost, and what is left of them; of texts that are not tokenised nothing is known.
///
/// # Errors
/// A method that cannot be built.
pub fn job_costs(plan: &Plan<'_>, state: &StoreState) -> Result<Vec<JobCost>> {
    let mut all = Vec::new();
    for (place, backbone) in plan.backbones.iter().enumerate() {
        let mut jobs = Vec::new();
        of_backbone(plan, backbone, state, u64::MAX, u64::MAX, &mut jobs)?;
        all.extend(jobs.into_iter().map(|(job, flops, left)| JobCost { backbone: place, job, flops, left }));
    }
    Ok(all)
}

/// What solving an operator takes: sums, a factorisation, and measuring the result.
pub fn solve_flops(channels: usize, tokens: usize) -> f64 {
    let c = channels as f64;
    6.0 * tokens as f64 * c * c + 10.0 * c.powi(3)
}

/// Bytes that a backbone's weights may have while its jobs run, if jobs have `memory`: what one job leaves of it.
pub fn weights_budget(plan: &Plan<'_>, backbone: &BackbonePlan, state: &StoreState, memory: u64) -> u64 {
    let config = &backbone.config;
    let left = backbone.variants.iter().filter(|variant| !state.complete(variant)).count();
    // Four matrices in f64 are the most that solving holds; scoring holds an operator for each variant.
    let matrices = (4 * config.hidden * config.hidden) as u64 * left.max(8) as u64;
    memory
        .saturating_sub(PROGRAM + batch_bytes(plan, backbone, state) + matrices)
        .min(backbone.engine.weight_bytes(config))
}

/// Bytes of the largest batch of a backbone. Branches of a trie keep a few streams, and so do comparisons of a stream with
/// those some layers before.
pub fn batch_bytes(plan: &Plan<'_>, backbone: &BackbonePlan, state: &StoreState) -> u64 {
    let bytes = |tokens: &ghostlab_store::Key, streams: usize| {
        let all = load(state, tokens).map_or(usize::MAX, |load| load.tokens);
        let length = load(state, tokens).map_or(0, |load| load.length);
        backbone.config.batch_bytes(plan.batch_tokens.max(length).min(all), streams)
    };
    let deepest = plan.grid.cells.iter().map(|cell| cell.depth).max().unwrap_or(0);
    let calibrations = backbone.calibrations.iter().map(|of| {
        let Load { tokens, length, .. } = of.load();
        backbone.config.batch_bytes(plan.batch_tokens.max(length).min(tokens), deepest + 2)
    });
    let evaluations = backbone.evaluations.iter().map(|of| bytes(&of.tokens, 4));
    calibrations.chain(evaluations).max().unwrap_or(0)
}

/// The variants of a backbone's calibration whose repairs are not all stored.
pub fn unrepaired<'a>(backbone: &'a BackbonePlan, calibration: usize, state: &StoreState) -> Vec<&'a Variant> {
    let own = backbone.variants.iter().filter(|variant| variant.calibration == Some(calibration));
    own.filter(|variant| !variant.repairs().all(|key| state.has(key))).collect()
}

/// The variants that are not scored on a backbone's text or task.
pub fn unscored<'a>(backbone: &'a BackbonePlan, evaluation: usize, state: &StoreState) -> Vec<&'a Variant> {
    backbone.variants.iter().filter(|variant| !state.has(&variant.scores[evaluation])).collect()
}

/// Bytes that repairing some variants takes beside the weights and a batch: four matrices in f64 are the most that solving
/// holds.
pub fn repair_bytes(backbone: &BackbonePlan, variants: &[&Variant]) -> u64 {
    let training = variants.iter().filter_map(|variant| variant.trained.as_ref());
    let training = training.map(|plan| backbone.config.training_bytes(plan.finetune.length)).max().unwrap_or(0);
    (8 * matrix_bytes(backbone)).max(training)
}

/// Bytes that scoring some variants takes beside the weights and a batch: an operator each.
pub fn score_bytes(backbone: &BackbonePlan, variants: &[&Variant]) -> u64 {
    variants.len() as u64 * matrix_bytes(backbone)
}

fn matrix_bytes(backbone: &BackbonePlan) -> u64 {
    4 * (backbone.config.hidden * backbone.config.hidden) as u64
}

/// Files and folders of an artifact at the most, with the folder of its hash's first digits: one file where it is small, else a
/// folder with its record and payloads. Scores lie in files of many.
fn inodes(kind: ObjectKind, backbone: &BackbonePlan) -> u64 {
    // As many regions of a cut as there may well be.
    let small = 4 * matrix_bytes(backbone) <= Store::SMALL;
    match kind {
        kinds::SCORES => 0,
        kinds::SELECTION | kinds::LATENCY => 2,
        kinds::OPERATOR | kinds::DISTILLED if small => 2,
        kinds::TOKENS => 7,
        _ => 6,
    }
}

/// Files of so many scores that are stored together.
fn score_files(scores: usize) -> u64 {
    scores.div_ceil(Store::TOGETHER) as u64
}

fn of_backbone(
    plan: &Plan<'_>,
    backbone: &BackbonePlan,
    state: &StoreState,
    spool_bytes: u64,
    memory: u64,
    jobs: &mut Vec<(JobPlace, f64, f64)>,
) -> Result<Estimate> {
    let config = &backbone.config;
    let mut total = Estimate::default();
    let programs = backbone
        .variants
        .iter()
        .map(|variant| program(plan.grid, backbone, variant, state))
        .collect::<Result<Vec<Program>>>()?;
    let all = Trie::scoring(&programs);
    for (place, evaluation) in backbone.evaluations.iter().enumerate() {
        let Some(load) = load(state, &evaluation.tokens) else { continue };
        let Cost { shared, separate } = all.flops(config, &load);
        total.shared += shared;
        total.naive += separate;
        let missing = backbone.variants.iter().zip(&programs).filter(|(variant, _)| !state.has(&variant.scores[place]));
        let missing: Vec<Program> = missing.map(|(_, program)| program.clone()).collect();
        let mut left = 0.0;
        if !missing.is_empty() {
            left = Trie::scoring(&missing).flops(config, &load).shared;
            total.left += left;
            total.disk += missing.len() as u64 * 16 * load.scored as u64 / load.length.max(1) as u64;
            total.inodes += score_files(missing.len());
        }
        jobs.push((JobPlace::Evaluation(place), shared, left));
    }
    for (place, prompt) in backbone.latencies.iter().enumerate() {
        let load = Load::windows(prompt.length * prompt.batch, prompt.length);
        // Each variant alone, and all of a comparison anew.
        let passes = latency::passes(1, Rounds::PAPER) as f64 * all.flops(config, &load).separate;
        let left = backbone.variants.iter().any(|variant| !state.has(&variant.latencies[place]));
        total.naive += passes;
        total.shared += passes;
        let left = if left { passes } else { 0.0 };
        total.left += left;
        jobs.push((JobPlace::Latency(place), passes, left));
    }
    let c = config.hidden as f64;
    let (mut operators, mut mapped) = (0, 0);
    for (place, calibration) in backbone.calibrations.iter().enumerate() {
        let load = calibration.load();
        if !state.has(&calibration.tokens) {
            // Ids, and where each sequence begins.
            total.disk += 4 * load.tokens as u64;
        }
        let own: Vec<&Variant> = backbone.variants.iter().filter(|v| v.calibration == Some(place)).collect();
        let missing: Vec<&Variant> =
            own.iter().copied().filter(|v| !v.operator.as_ref().is_some_and(|key| state.has(key))).collect();
        let pass = Trie::new(&[Program::trunk(config.layers)]).flops(config, &load).shared;
        let solve = solve_flops(config.hidden, load.tokens);
        let trials: Vec<(bool, f64)> = trials(plan.grid, backbone, &own, state, &load)?;
        let trial_cost: f64 = trials.iter().map(|(_, cost)| cost).sum();
        let before = (total.shared, total.left);
        total.naive += own.len() as f64 * (pass + solve) + trial_cost;
        total.shared += pass + own.len() as f64 * solve + trial_cost;
        total.left += trials.iter().filter(|(left, _)| *left).map(|(_, cost)| cost).sum::<f64>();
        // What a step of a search scores is stored together.
        total.inodes += trials.iter().filter(|(left, _)| *left).count() as u64 * score_files(backbone.config.layers);
        // What one pass gives is kept once for all methods of a boundary.
        let mut read = BTreeSet::new();
        for (variant, trained) in own.iter().filter_map(|variant| Some((variant, variant.trained.as_ref()?))) {
            let text = &backbone.calibrations[trained.text].calibration;
            let tokens = text.sequences * text.length;
            // Forwards and backwards through what stands after the boundary, taken to be a quarter of the layers.
            let steps = 3.0 * (pass / load.tokens.max(1) as f64 / 4.0 + 2.0 * c * config.vocab as f64) * tokens as f64;
            total.naive += steps;
            total.shared += steps;
            if !state.has(&trained.key) {
                total.left += steps;
                let boundary = variant.selection.as_ref().map_or("", |key| key.hash());
                if read.insert((trained.text, boundary)) {
                    total.left += pass / load.tokens.max(1) as f64 * tokens as f64;
                    total.disk += (4 * config.hidden + 8 * Finetune::TOP_TOKENS) as u64 * tokens as u64;
                    let shape =
                        ActivationShape { sequences: text.sequences, length: text.length, channels: config.hidden };
                    total.inodes += 2 * shape.shard_count() as u64 * inodes(kinds::TEACHER, backbone);
                }
            }
        }
        if !missing.is_empty() {
            total.left += pass + missing.len() as f64 * solve;
        }
        // A text that operators are trained on alone is no job.
        if !own.is_empty() {
            jobs.push((JobPlace::Calibration(place), total.shared - before.0, total.left - before.1));
        }
        if missing.is_empty() {
            continue;
        }
        operators += missing.len();
        let (kept, spooled) = sites(plan.grid, backbone, &missing, state)?;
        let site_bytes = (4 * load.tokens * config.hidden) as u64;
        total.disk += kept as u64 * site_bytes;
        let Calibration { sequences, length, .. } = calibration.calibration;
        let shape = ActivationShape { sequences, length, channels: config.hidden };
        let shards = shape.shard_count() as u64;
        total.inodes += (kept + spooled) as u64 * shards * inodes(kinds::ACTIVATIONS, backbone);
        mapped = mapped.max(kept as u64 * site_bytes);
        total.spool = total.spool.max((spooled as u64 * site_bytes).min(spool_bytes));
    }
    let matrix = 4 * (config.hidden * config.hidden) as u64;
    total.disk += operators as u64 * matrix;
    let lacking: BTreeSet<(ObjectKind, &str)> = backbone
        .tokens()
        .into_iter()
        .chain(backbone.variants.iter().flat_map(Variant::keys))
        .filter(|key| !state.has(key))
        .map(|key| (key.kind(), key.hash()))
        .collect();
    total.inodes += lacking.iter().map(|(kind, _)| inodes(*kind, backbone)).sum::<u64>();
    // The folders of kinds, and that of the files of many.
    total.inodes += if lacking.is_empty() { 0 } else { kinds::ALL.len() as u64 + 1 };
    let left = backbone.variants.iter().filter(|variant| !state.complete(variant)).count();
    if left > 0 {
        // Four matrices in f64 are the most that solving holds, beside the activations that it maps.
        let solving = if operators > 0 { 8 * matrix + mapped } else { 0 };
        let weights = backbone.engine.held_bytes(config, weights_budget(plan, backbone, state, memory));
        total.memory = PROGRAM + weights + batch_bytes(plan, backbone, state) + solving.max(left as u64 * matrix);
    }
    Ok(total)
}

fn load(state: &StoreState, tokens: &ghostlab_store::Key) -> Option<Load> {
    debug_assert_eq!(tokens.kind(), kinds::TOKENS);
    match state.of(tokens) {
        ObjectState::Whole(artifact) => payload::load(artifact).ok(),
        _ => None,
    }
}

/// A variant's program; a selection that is not known yet is taken to lie in the middle.
fn program(grid: &Grid, backbone: &BackbonePlan, variant: &Variant, state: &StoreState) -> Result<Program> {
    let (layers, cell) = (backbone.config.layers, &grid.cells[variant.cell]);
    let known = variant.selection.as_ref().and_then(|key| state.selection(key));
    let removed = known.map_or_else(|| middle(layers, cell.depth), |selection| selection.removed.clone());
    let recovery = cell.recovery.as_ref().map(|method| recovery::build(&method.name, &method.options)).transpose()?;
    let operator = recovery.filter(|recovery| recovery.repairs()).map(|_| place_holder(variant.cell)).transpose()?;
    Ok(Program::pruned(layers, &removed, |_| operator.clone()))
}

fn middle(layers: usize, depth: usize) -> Vec<usize> {
    let start = layers.saturating_sub(depth) / 2;
    (start..start + depth).collect()
}

fn cut<'a>(backbone: &'a BackbonePlan, depth: usize) -> PruneSpec<'a> {
    PruneSpec { backbone: &backbone.name, layers: backbone.config.layers, depth }
}

fn criterion_of(grid: &Grid, variant: &Variant) -> Result<Option<Box<dyn Criterion>>> {
    let method = grid.cells[variant.cell].criterion.as_ref();
    method.map(|method| criterion::build(&method.name, &method.options)).transpose()
}

/// The perplexities that a criterion measures on one calibration, each without some layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trials {
    /// The criterion as the grid writes it.
    pub criterion: String,
    pub needed: usize,
    pub stored: usize,
}

impl Trials {
    /// Those of a backbone's calibration, criterion by criterion.
    ///
    /// # Errors
    /// A criterion that cannot be built.
    pub fn of(
        plan: &Plan<'_>,
        backbone: &BackbonePlan,
        calibration: usize,
        state: &StoreState,
        store: &Store,
    ) -> Result<Vec<Self>> {
        let own: Vec<&Variant> = backbone.variants.iter().filter(|of| of.calibration == Some(calibration)).collect();
        let tokens = &backbone.calibrations[calibration].tokens;
        let mut all = Vec::new();
        for Deepest { criterion, sets, left } in deepest(plan.grid, backbone, &own, state)? {
            let stored = |set: &&Vec<usize>| !left || store.has(&backbone.trial(tokens, set, plan.batch_tokens));
            let (needed, stored) = (sets.len(), sets.iter().filter(stored).count());
            if needed > 0 {
                all.push(Self { criterion, needed, stored });
            }
        }
        Ok(all)
    }
}

/// What a criterion measures by perplexity: the deepest cut measures what the others need.
struct Deepest {
    criterion: String,
    /// The sets of removed layers.
    sets: Vec<Vec<usize>>,
    /// Whether a selection is missing.
    left: bool,
}

fn deepest(grid: &Grid, backbone: &BackbonePlan, variants: &[&Variant], state: &StoreState) -> Result<Vec<Deepest>> {
    let mut deepest: Vec<(String, &Variant, bool)> = Vec::new();
    for &variant in variants {
        let cell = &grid.cells[variant.cell];
        let Some(method) = &cell.criterion else { continue };
        let left = !variant.selection.as_ref().is_some_and(|key| state.has(key));
        match deepest.iter_mut().find(|(name, ..)| *name == method.to_string()) {
            Some((_, known, any)) => {
                *any |= left;
                if grid.cells[known.cell].depth < cell.depth {
                    *known = variant;
                }
            }
            None => deepest.push((method.to_string(), variant, left)),
        }
    }
    let mut all = Vec::new();
    for (name, variant, left) in deepest {
        let Some(criterion) = criterion_of(grid, variant)? else { continue };
        let sets = criterion.trials(&cut(backbone, grid.cells[variant.cell].depth));
        all.push(Deepest { criterion: name, sets, left });
    }
    Ok(all)
}

/// Whether each step of the criteria's measuring is left to do, and its cost.
fn trials(
    grid: &Grid,
    backbone: &BackbonePlan,
    variants: &[&Variant],
    state: &StoreState,
    load: &Load,
) -> Result<Vec<(bool, f64)>> {
    let mut costs = Vec::new();
    for Deepest { sets, left, .. } in deepest(grid, backbone, variants, state)? {
        // A step of a greedy search waits for the one before it: each size is a run of its own.
        for run in sets.chunk_by(|a, b| a.len() == b.len()) {
            let programs: Vec<Program> =
                run.iter().map(|set| Program::pruned(backbone.config.layers, set, |_| None)).collect();
            let cost = Trie::new(&programs).flops(&backbone.config, load);
            costs.push((left, cost.shared));
        }
    }
    Ok(costs)
}

/// How many sites of activations will be kept, and how many a pass has to write because a selection may need them.
fn sites(grid: &Grid, backbone: &BackbonePlan, variants: &[&Variant], state: &StoreState) -> Result<(usize, usize)> {
    let (mut kept, mut spooled) = (BTreeSet::new(), BTreeSet::new());
    for &variant in variants {
        let cell = &grid.cells[variant.cell];
        let (Some(criterion), Some(method)) = (criterion_of(grid, variant)?, &cell.recovery) else { continue };
        let recovery = recovery::build(&method.name, &method.options)?;
        let of = |regions: Vec<(usize, usize)>| -> Vec<_> {
            let spans = regions.into_iter().flat_map(|(start, end)| recovery.spans(Span { start, end }));
            spans.flat_map(|span| recovery.sites(span)).collect()
        };
        let known = variant.selection.as_ref().and_then(|key| state.selection(key));
        match known {
            Some(selection) => kept.extend(of(selection.regions())),
            None => {
                let start = middle(backbone.config.layers, cell.depth)[0];
                kept.extend(of(vec![(start, start + cell.depth)]));
                spooled.extend(of(criterion.regions(&cut(backbone, cell.depth))));
                spooled.extend(criterion.sites(&cut(backbone, cell.depth)));
            }
        }
    }
    let beyond = spooled.difference(&kept).count();
    Ok((kept.len(), beyond))
}
