//! The run of a grid: preflight, plan, jobs for what is not stored, and the outcome from the store.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::outcome::GridOutcome;
use super::preflight::{Preflight, Where, preflight};
use super::preflight_limits;
use super::schedule::{self, Limits, Scheduled, TaskHooks};
use super::share::SeatClaim;
use super::stored::scored;
use crate::error::{ErrorKind, Result};
use crate::grid::Grid;
use crate::plan::{JobCost, Outline, Plan, StoreState, batch_bytes, job_costs, warnings, weights_budget};
use crate::stage::program::Programs;
use crate::stage::{calibration, latency, scores};
use crate::work::backbone::{BackbonePlan, JobPlace, Variant};
use crate::work::context::{Conditions, Context};
use crate::work::event::{Event, Reporter, Work, WorkKind};
use crate::work::known_objects::{AllStored, KnownObjects};
use crate::work::limits::WorkerLimits;
use crate::work::lock::lock;
use crate::work::models::{Engines, FromFiles, Models};
use crate::work::progress::{Progressed, caught};
use crate::work::settings::RunSettings;
use crate::work::wait;
use ghostlab_store::{Attempt, Key, Store};

/// Runs what is not stored of a grid. A cell that fails is in the outcome with its reason; the others go on.
///
/// # Errors
/// What preflight finds, a backbone that cannot be loaded, no room in the store, or that `stop` was set. What was done
/// until then is stored.
pub fn run(
    grid: &Grid,
    settings: RunSettings,
    store: &Store,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
) -> Result<GridOutcome> {
    run_all(grid, Conditions { settings, store, reporter, stop, terms: None }, |plan, context| {
        let outcome = GridOutcome::read(plan, store, &context.failures())?;
        let (failed, unmade) = (outcome.failed(), outcome.unmade());
        Ok((outcome.cells.len() - failed - unmade, failed, outcome))
    })
}

/// What came of a worker's part. It reads no results: hundreds of workers would each read all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worked {
    /// All that can be done is done: so many cells are complete, and so many failed.
    Done { cells: usize, complete: usize, failed: usize },
    /// Others are at what is left, and this worker's patience has ended.
    Left,
}

/// Does a part of a grid, beside others that do: job after job, until nothing is left that this process may do. Latencies
/// are left out: they are measured where they are asked for, on a machine of their own.
///
/// # Errors
/// As [`run`].
pub fn work(
    grid: &Grid,
    settings: RunSettings,
    terms: WorkerLimits,
    store: &Store,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
) -> Result<Worked> {
    // All workers count attempts, not each by itself.
    let settings = RunSettings { retries: 0, ..settings };
    run_all(grid, Conditions { settings, store, reporter, stop, terms: Some(terms) }, |_, context| {
        let (complete, failed) = (context.complete(), context.failures().len());
        if context.left() {
            return Ok((complete, 0, Worked::Left));
        }
        Ok((complete, failed, Worked::Done { cells: grid.cells.len(), complete, failed }))
    })
}

/// What is stored of a grid, and of what is not why, as far as somebody tried. Nothing is computed.
///
/// # Errors
/// An input that cannot be read, or damage.
pub fn stored(grid: &Grid, settings: RunSettings, store: &Store, reporter: &dyn Reporter) -> Result<GridOutcome> {
    let plan = Plan::new(grid, store, settings.engine, settings.batch_tokens)?;
    let state = StoreState::read(&plan, store);
    state.damages().for_each(|error| reporter.event(Event::Note { text: error.one_line() }));
    let failures = told_failures(&plan, &state, &store.all_attempts());
    let outcome = GridOutcome::read(&plan, store, &failures)?;
    let (failed, unmade) = (outcome.failed(), outcome.unmade());
    reporter.event(Event::Ended { complete: outcome.cells.len() - failed - unmade, failed, interrupted: false });
    Ok(outcome)
}

/// Why cells that lack something do, as far as attempts tell: at an artifact of their own, at the calibration that makes
/// it, or at a chunk of a text.
pub(super) fn told_failures(
    plan: &Plan<'_>,
    state: &StoreState,
    attempts: &BTreeMap<String, Vec<Attempt>>,
) -> BTreeMap<usize, String> {
    let last = |name: &str| attempts.get(name)?.last().map(|attempt| attempt.reason.clone());
    let of_chunks = |journal: &str| {
        let chunks = attempts.range(format!("{journal}-")..).take_while(|(name, _)| name.starts_with(journal));
        chunks.last().and_then(|(_, of)| of.last()).map(|attempt| attempt.reason.clone())
    };
    let mut failures = BTreeMap::new();
    for (backbone, variant) in plan.variants() {
        let repair = variant.repairs().find(|key| !state.has(key));
        let own = repair.and_then(|key| last(key.hash()));
        let calibration = variant.calibration.filter(|_| repair.is_some()).map(|place| &backbone.calibrations[place]);
        let calibration = || last(&calibration?.claim(backbone));
        let chunks = || {
            let lacking = backbone.evaluations.iter().zip(&variant.scores).filter(|(_, key)| !state.has(key));
            lacking.map(|(evaluation, _)| of_chunks(&evaluation.journal)).find_map(|reason| reason)
        };
        if let Some(reason) = own.or_else(calibration).or_else(chunks).filter(|_| !state.complete(variant)) {
            failures.insert(variant.cell, reason);
        }
    }
    failures
}

/// Does what is not done, and ends with what `end` makes of it: how many cells are complete, how many failed, and more.
fn run_all<T>(
    grid: &Grid,
    conditions: Conditions<'_>,
    end: impl FnOnce(&Plan<'_>, &Context<'_>) -> Result<(usize, usize, T)>,
) -> Result<T> {
    let Conditions { settings, store, reporter, stop, terms } = conditions;
    let plan = Plan::new(grid, store, settings.engine, settings.batch_tokens)?;
    for text in warnings(grid, &plan.inputs.by_path()) {
        reporter.event(Event::Note { text });
    }
    let older = if terms.is_none() { store.of_older_stages() } else { 0 };
    if older > 0 {
        let text =
            format!("{older} stored artifacts are of an older form and left alone; `ghostlab cache ls` lists them");
        reporter.event(Event::Note { text });
    }
    reserve(&plan, store, reporter, stop)?;
    if settings.retime {
        reporter.event(Event::Note { text: latency::announced(&plan.backbones) });
    }
    let Preflight { state, estimate } = preflight(&plan, &settings, Where::Here, store, reporter, stop)?;
    let complete: Vec<usize> =
        plan.variants().filter(|(_, of)| state.complete(of)).map(|(_, variant)| variant.cell).collect();
    let coming = estimate.coming();
    let clear = |coming| preflight_limits::in_store(settings.store_limit, coming, &plan, store, reporter, stop);
    clear(coming)?;
    let flops = estimate.cost.left;
    let scores = || plan.variants().flat_map(|(_, variant)| &variant.scores);
    let outline = Outline::of(&plan, &state)?;
    let plan_id = outline.keep(store);
    reporter.event(Event::Planned {
        cells: grid.cells.len(),
        complete: complete.len(),
        scores: scores().count(),
        scored: scores().filter(|key| state.has(key)).count(),
        flops,
        work: pieces(&plan, &state)?,
        engine: plan.engines(),
        machine: plan.machine(),
        plan: plan_id,
    });
    let context = context(&plan, &state, conditions);
    context.found_complete(complete.into_iter());
    state.damages().for_each(|error| context.damaged(error));
    let mut result = context.check_stop().and_then(|()| execute(&plan, &context, &state, &FromFiles));
    if context.left() {
        result = Ok(());
    } else if result.is_ok() {
        clear(0)?;
    }
    let ended = result.and_then(|()| end(&plan, &context));
    let (complete, failed, interrupted) = match &ended {
        Ok((complete, failed, _)) => (*complete, *failed, false),
        Err(error) => (context.complete(), context.failures().len(), error.kind() == ErrorKind::Interrupted),
    };
    reporter.event(Event::Ended { complete, failed, interrupted });
    ended.map(|(_, _, ended)| ended)
}

/// The pieces of a plan that are left to do.
fn pieces(plan: &Plan<'_>, state: &StoreState) -> Result<Vec<Work>> {
    let left = job_costs(plan, state)?.into_iter().filter(|of| of.cost.left > 0.0);
    let piece = |JobCost { backbone, job, cost }: JobCost| {
        let backbone = &plan.backbones[backbone];
        let kind = match job {
            JobPlace::Calibration(_) => WorkKind::Calibrate,
            JobPlace::Evaluation(_) => WorkKind::Score,
            JobPlace::Latency(_) => WorkKind::Time,
        };
        Work { work: backbone.claim(job), backbone: backbone.name.clone(), kind, flops: cost.left }
    };
    Ok(left.map(piece).collect())
}

/// Notes what the run will use before it looks what is there, and waits for whoever clears up right now: between them,
/// nothing that a run has seen goes away.
fn reserve(plan: &Plan<'_>, store: &Store, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<()> {
    store.reserve(plan.keys().map(|key| key.hash()))?;
    wait::claim(store, Store::CLEARING, "clearing up the store", reporter, stop).map(drop)
}

/// What the jobs of a plan share.
pub(super) fn context<'a>(plan: &'a Plan<'_>, state: &StoreState, conditions: Conditions<'a>) -> Context<'a> {
    let hashes = |damaged| state.hashes(damaged).map(str::to_owned).collect();
    Context::new(plan.given(), KnownObjects::new(hashes(false), hashes(true)), conditions)
}

/// Makes what is missing.
fn execute(plan: &Plan<'_>, context: &Context<'_>, state: &StoreState, engines: &dyn Engines) -> Result<()> {
    let memory = context.settings.memory_bytes();
    let backbones = || plan.backbones.iter();
    let budget = |backbone: &BackbonePlan| weights_budget(plan, backbone, state, memory);
    let budgets = backbones().map(|backbone| (&*backbone.name, budget(backbone))).collect();
    let held = |backbone: &BackbonePlan| backbone.engine.held_bytes(&backbone.config, budget(backbone));
    let sizes: Vec<u64> = backbones().map(held).collect();
    let models = &Models::new(&plan.inputs, budgets, context.settings.device_memory, engines);
    let programs = &Programs::default();
    let mut tasks: Vec<Scheduled<'_>> = Vec::new();
    for (model, backbone) in plan.backbones.iter().enumerate() {
        let batch = batch_bytes(plan, backbone, state);
        let mut repairs = Vec::new();
        for (place, calibration) in backbone.calibrations.iter().enumerate() {
            let job = JobPlace::Calibration(place);
            let own = backbone.lacking(job, state);
            if own.is_empty() {
                continue;
            }
            let bytes = batch + backbone.job_bytes(job, &own);
            repairs.push(tasks.len());
            let work = move || {
                let cells: Vec<usize> = own.iter().map(|variant| variant.cell).collect();
                let step =
                    attempt(context, &cells, || calibration::make(context, models, backbone, calibration, &own))?;
                if step == Progressed::Done {
                    context.work_done(&calibration.claim(backbone));
                    // The next calibration may write as much again.
                    let Context { settings, store, reporter, stop, .. } = context;
                    preflight_limits::in_store(settings.store_limit, 0, plan, store, *reporter, stop)?;
                    context.look_complete(&own);
                }
                Ok(step)
            };
            tasks.push(Scheduled { after: Vec::new(), model, bytes, run: Box::new(work) });
        }
        for (place, evaluation) in backbone.evaluations.iter().enumerate() {
            let job = JobPlace::Evaluation(place);
            let own = backbone.lacking(job, state);
            if own.is_empty() {
                continue;
            }
            let bytes = batch + backbone.job_bytes(job, &own);
            let kept = Mutex::new(None);
            let work = move || {
                let own: Vec<&Variant> = own.iter().copied().filter(|of| !context.failed(of.cell)).collect();
                let mut kept = lock(&kept);
                let keys = || own.iter().map(|of| &of.scores[place]);
                // Where others have done it, nothing has to be read to see that.
                match kept.as_ref().map_or_else(|| context.presence.all(context.store, keys()), |_| AllStored::Lacking)
                {
                    AllStored::All => {
                        context.work_done(&evaluation.journal);
                        context.look_complete(&own);
                        return Ok(Progressed::Done);
                    }
                    AllStored::Unclear => return Ok(Progressed::Busy),
                    AllStored::Lacking => {}
                }
                let cells: Vec<usize> = own.iter().map(|variant| variant.cell).collect();
                let kept = Mutex::new(&mut *kept);
                let score = || scores::make(context, models, programs, backbone, place, &own, &mut lock(&kept));
                let step = attempt(context, &cells, score)?;
                if step == Progressed::Busy {
                    return Ok(step);
                }
                context.work_done(&evaluation.journal);
                let new = own.iter().filter(|of| !context.failed(of.cell) && context.tells_of(&of.scores[place]));
                let new: Vec<(usize, &Key)> = new.map(|of| (of.cell, &*of.scores[place])).collect();
                // Damage right after writing is found again by whoever reads the outcome.
                for (cell, value) in scored(evaluation, &new, context.store).unwrap_or_default() {
                    context.scored(cell, &evaluation.subject, value);
                }
                context.look_complete(&own);
                Ok(step)
            };
            tasks.push(Scheduled { after: repairs.clone(), model, bytes, run: Box::new(work) });
        }
    }
    let limits = Limits { tasks: context.settings.jobs, memory };
    let head = GridHead { plan, context, models, programs, spread: context.terms.map(|_| SeatClaim::default()) };
    schedule::run(&tasks, &sizes, limits, &head)?;
    drop(tasks);
    let timings = timings(plan, context, models, programs, state);
    if context.terms.is_some() {
        if !timings.is_empty() {
            context.note("latencies are not measured by workers: `ghostlab run` measures them on its machine".into());
        }
        return Ok(());
    }
    // Nothing else runs by now, and of these no two at a time.
    schedule::run(&timings, &sizes, Limits { tasks: 1, memory }, &head)
}

/// What the order of a grid's jobs is asked about.
struct GridHead<'a> {
    plan: &'a Plan<'a>,
    context: &'a Context<'a>,
    models: &'a Models<'a>,
    programs: &'a Programs,
    /// Of a worker.
    spread: Option<SeatClaim>,
}

impl TaskHooks for GridHead<'_> {
    fn forget(&self, model: usize) {
        self.models.forget(&self.plan.backbones[model]);
        self.programs.forget(&self.plan.backbones[model]);
    }

    fn choose(&self, models: &[usize]) -> usize {
        match &self.spread {
            Some(spread) => spread.choose(self.plan, models, self.context.store),
            None => models.first().copied().unwrap_or_default(),
        }
    }

    fn idle(&self) -> Result<()> {
        self.context.pause()
    }
}

/// The prompts whose latencies are not all stored.
fn timings<'a>(
    plan: &'a Plan<'a>,
    context: &'a Context<'a>,
    models: &'a Models<'a>,
    programs: &'a Programs,
    state: &'a StoreState,
) -> Vec<Scheduled<'a>> {
    let mut tasks: Vec<Scheduled<'_>> = Vec::new();
    for (model, backbone) in plan.backbones.iter().enumerate() {
        for place in 0..backbone.latencies.len() {
            let job = JobPlace::Latency(place);
            if backbone.lacking(job, state).is_empty() {
                continue;
            }
            let work = move || {
                let cells: Vec<usize> = backbone.variants.iter().map(|variant| variant.cell).collect();
                let measure = || latency::make(context, models, programs, backbone, place);
                let step = attempt(context, &cells, measure)?;
                if step == Progressed::Done {
                    context.work_done(&backbone.claim(job));
                }
                context.look_complete(&backbone.variants.iter().collect::<Vec<_>>());
                Ok(step)
            };
            // What does not fit is a result of its own.
            tasks.push(Scheduled { after: Vec::new(), model, bytes: 0, run: Box::new(work) });
        }
    }
    tasks
}

/// Runs a job as often as it may be tried. A job that fails for good fails its cells, and the others go on.
pub(super) fn attempt(
    context: &Context<'_>,
    cells: &[usize],
    job: impl Fn() -> Result<Progressed>,
) -> Result<Progressed> {
    context.check_stop()?;
    let fail = |reason: String| {
        cells.iter().for_each(|&cell| context.fail(cell, reason.clone()));
        Ok(Progressed::Done)
    };
    for left in (0..=context.settings.retries).rev() {
        let error = match caught(&job) {
            Ok(Progressed::GivenUp(reason)) => return fail(reason),
            Ok(step) => return Ok(step),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::BadInput) => return Err(error),
            Err(error) => error,
        };
        if left > 0 {
            context.note(format!("{}; trying again, {left} more at most", error.one_line()));
            continue;
        }
        match error.kind() {
            ErrorKind::Missing => return Err(error),
            // It is noted, and whoever comes to it next sees whether it may be tried again.
            ErrorKind::Job if context.terms.is_some() => {
                context.note(error.one_line());
                return Ok(Progressed::Busy);
            }
            _ => return fail(error.one_line()),
        }
    }
    Ok(Progressed::Done)
}

#[cfg(test)]
mod play_test;
