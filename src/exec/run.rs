//! The run of a grid: preflight, plan, jobs for what is not stored, and the outcome from the store.

use std::sync::atomic::AtomicBool;

use super::context::Context;
use super::event::{Event, Reporter};
use super::models::Models;
use super::outcome::GridOutcome;
use super::prepare::prepare;
use super::programs::Programs;
use super::room::{self, Needs};
use super::schedule::{self, Limits, Task};
use super::settings::Settings;
use super::stored::scored;
use super::{calibration, evaluation, latency, wait};
use crate::error::{ErrorKind, Result};
use crate::grid::Grid;
use crate::machine;
use crate::plan::{BackbonePlan, Estimate, Plan, StoreState, Variant, held_weights, warnings};
use crate::store::{Key, Store};

/// Runs what is not stored of a grid. A cell that fails is in the outcome with its reason; the others go on.
///
/// # Errors
/// What preflight finds, a backbone that cannot be loaded, no room in the store, or that `stop` was set. What was done
/// until then is stored.
pub fn run(
    grid: &Grid,
    settings: Settings,
    store: &Store,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
) -> Result<GridOutcome> {
    let plan = Plan::new(grid, store, settings.batch_tokens)?;
    for text in warnings(grid, &plan.inputs.by_path()) {
        reporter.event(Event::Note { text });
    }
    reserve(&plan, store, reporter, stop)?;
    prepare(&plan, store, reporter, stop)?;
    let state = StoreState::read(&plan, store);
    let complete: Vec<usize> =
        plan.variants().filter(|(_, of)| state.complete(of)).map(|(_, variant)| variant.cell).collect();
    let estimate = Estimate::of(&plan, &state, settings.spool_bytes, settings.memory_bytes())?;
    room::on_disk(estimate.disk + estimate.spool, store)?;
    let flops = estimate.left;
    let scores = || plan.variants().flat_map(|(_, variant)| &variant.scores);
    reporter.event(Event::Planned {
        cells: grid.cells.len(),
        complete: complete.len(),
        scores: scores().count(),
        scored: scores().filter(|key| state.has(key)).count(),
        flops,
    });
    let context = Context::new(&plan, store, settings, reporter, stop);
    context.found_complete(complete.into_iter());
    state.damages().for_each(|error| context.damaged(error));
    let result = context.check_stop().and_then(|()| execute(&context, &state));
    let failures = context.failures();
    let outcome = result.and_then(|()| GridOutcome::read(&plan, store, &failures));
    let (complete, failed, interrupted) = match &outcome {
        Ok(outcome) => (outcome.cells.len() - outcome.failed(), outcome.failed(), false),
        Err(error) => (context.complete(), failures.len(), error.kind() == ErrorKind::Interrupted),
    };
    reporter.event(Event::Ended { complete, failed, interrupted });
    outcome
}

/// Notes what the run will use before it looks what is there, and waits for whoever clears up right now: between them,
/// nothing that a run has seen goes away.
fn reserve(plan: &Plan<'_>, store: &Store, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<()> {
    let of_variants = plan.variants().flat_map(|(_, variant)| variant.keys());
    let keys = of_variants.chain(plan.backbones.iter().flat_map(BackbonePlan::tokens));
    store.reserve(keys.map(|key| key.hash()))?;
    wait::claim(store, Store::CLEARING, "clearing up the store", reporter, stop).map(drop)
}

/// Makes what is missing.
fn execute(context: &Context<'_>, state: &StoreState) -> Result<()> {
    let memory = context.settings.memory_bytes();
    let held = |backbone| held_weights(context.plan, backbone, state, memory);
    let sizes: Vec<u64> = context.plan.backbones.iter().map(held).collect();
    let budgets = context.plan.backbones.iter().zip(&sizes).map(|(backbone, &bytes)| (&*backbone.name, bytes));
    let (models, programs) = (&Models::new(&context.plan.inputs, budgets.collect()), &Programs::default());
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (model, backbone) in context.plan.backbones.iter().enumerate() {
        let made = |variant: &Variant| variant.repairs().all(|key| state.has(key));
        let matrix = 4 * (backbone.config.hidden * backbone.config.hidden) as u64;
        let batch = backbone.config.batch_bytes(context.settings.batch_tokens, 4);
        let mut repairs = Vec::new();
        for (place, calibration) in backbone.calibrations.iter().enumerate() {
            let own = backbone.variants.iter().filter(|variant| variant.calibration == Some(place));
            let own: Vec<&Variant> = own.filter(|variant| !made(variant)).collect();
            if own.is_empty() {
                continue;
            }
            let training = own.iter().filter_map(|variant| variant.trained.as_ref());
            let training = training.map(|plan| backbone.config.training_bytes(plan.finetune.length)).max().unwrap_or(0);
            repairs.push(tasks.len());
            let work = move || {
                let cells: Vec<usize> = own.iter().map(|variant| variant.cell).collect();
                attempt(context, &cells, || calibration::repair(context, models, backbone, calibration, &own))?;
                context.look_complete(&own);
                Ok(())
            };
            // Four matrices in f64 are the most that solving holds.
            let bytes = batch + (8 * matrix).max(training);
            tasks.push(Task { after: Vec::new(), model, bytes, run: Box::new(work) });
        }
        for (place, evaluation) in backbone.evaluations.iter().enumerate() {
            let own: Vec<&Variant> =
                backbone.variants.iter().filter(|variant| !state.has(&variant.scores[place])).collect();
            if own.is_empty() {
                continue;
            }
            let bytes = batch + own.len() as u64 * matrix;
            let work = move || {
                let cells: Vec<usize> = own.iter().map(|variant| variant.cell).collect();
                attempt(context, &cells, || evaluation::score(context, models, programs, backbone, place, &own))?;
                let new = own.iter().filter(|of| !context.failed(of.cell));
                let new: Vec<(usize, &Key)> = new.map(|of| (of.cell, &*of.scores[place])).collect();
                // Damage right after writing is found again by whoever reads the outcome.
                for (cell, value) in scored(evaluation, &new, context.store).unwrap_or_default() {
                    context.scored(cell, &evaluation.subject, value);
                }
                context.look_complete(&own);
                Ok(())
            };
            tasks.push(Task { after: repairs.clone(), model, bytes, run: Box::new(work) });
        }
    }
    let free = machine::told_free_memory();
    for (model, backbone) in context.plan.backbones.iter().enumerate() {
        let most = tasks.iter().filter(|task| task.model == model).map(|task| task.bytes).max();
        // Of the weights no more than the largest part has to be there.
        let needs = |beside| Needs { backbone: &backbone.name, weights: backbone.config.held_bytes(0), beside };
        most.map_or(Ok(()), |beside| room::in_memory(&needs(beside), context.settings.memory, free))?;
    }
    let limits = Limits { tasks: context.settings.jobs, memory };
    let forget = |model: usize| {
        models.forget(&context.plan.backbones[model]);
        programs.forget(&context.plan.backbones[model]);
    };
    schedule::run(&tasks, &sizes, limits, forget)?;
    drop(tasks);
    // Nothing else runs by now, and of these no two at a time.
    schedule::run(&timings(context, models, programs, state), &sizes, Limits { tasks: 1, memory }, forget)
}

/// The prompts whose latencies are not all stored.
fn timings<'a>(
    context: &'a Context<'a>,
    models: &'a Models<'a>,
    programs: &'a Programs,
    state: &'a StoreState,
) -> Vec<Task<'a>> {
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (model, backbone) in context.plan.backbones.iter().enumerate() {
        for place in 0..backbone.latencies.len() {
            if backbone.variants.iter().all(|variant| state.has(&variant.latencies[place])) {
                continue;
            }
            let work = move || {
                let cells: Vec<usize> = backbone.variants.iter().map(|variant| variant.cell).collect();
                attempt(context, &cells, || latency::measure(context, models, programs, backbone, place))?;
                context.look_complete(&backbone.variants.iter().collect::<Vec<_>>());
                Ok(())
            };
            // What does not fit is a result of its own.
            tasks.push(Task { after: Vec::new(), model, bytes: 0, run: Box::new(work) });
        }
    }
    tasks
}

/// Runs a job as often as it may be tried. A job that fails for good fails its cells, and the others go on.
fn attempt(context: &Context<'_>, cells: &[usize], job: impl Fn() -> Result<()>) -> Result<()> {
    context.check_stop()?;
    for left in (0..=context.settings.retries).rev() {
        let error = match schedule::caught(&job) {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::BadInput) => return Err(error),
            Err(error) => error,
        };
        if left > 0 {
            context.note(format!("{}; trying again, {left} more at most", error.one_line()));
            continue;
        }
        if error.kind() == ErrorKind::Missing {
            return Err(error);
        }
        for &cell in cells {
            context.fail(cell, error.one_line());
        }
    }
    Ok(())
}
