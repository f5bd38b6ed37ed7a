//! Runs a calibration: selections, activations, operators and training, in this order.

use std::sync::Arc;

use super::activations::{self, KeptActivations};
use super::group::{Group, JobContext, Order, ResumeState};
use super::operator::{self, CalibrationInputs, solve_flops};
use super::selection::{SelectionState, Selections, Trials};
use super::{distilled, tokens};
use crate::calibrate::{ActivationShape, Activations, PassRequest};
use crate::criterion::Selection;
use crate::error::{ErrorKind, Result};
use crate::model::Load;
use crate::pipeline::env::backbone::{BackbonePlan, CalibrationPlan, Variant};
use crate::pipeline::env::context::{CalibrationJob, LeaseGuard, RunContext};
use crate::pipeline::env::coordination::{JobStatus, catch_panic};
use crate::pipeline::env::event::WorkKind;
use crate::pipeline::env::models::Models;
use crate::quantity::pluralize;
use crate::recovery;
use ghostlab_store::{Key, Lookup};

/// Group of calibration jobs. Each job computes all selections and operators of a backbone for one calibration.
pub const GROUP: Group = Group {
    kind: WorkKind::Calibrate,
    count: |backbone| backbone.calibrations.len(),
    label: |backbone, index| backbone.calibrations[index].label(backbone),
    lease_name: |backbone, index| backbone.calibrations[index].lease_name(backbone),
    on: |_, _| None,
    produced: |variant, index| variant.repairs().filter(|_| variant.calibration == Some(index)).collect(),
    bytes: |backbone, variants| {
        let training = variants.iter().filter_map(|variant| variant.trained.as_ref());
        let training = training.map(|plan| backbone.config.training_bytes(plan.finetune.length)).max();
        // Solving needs memory for at most four f64 matrices.
        (8 * operator::matrix_bytes(&backbone.config)).max(training.unwrap_or(0))
    },
    order: Order::First,
    run: run_calibration,
    report: |_, _, _, _| {},
};

/// Computes the missing selections, operators and trained operators of some variants of a calibration. If a single
/// variant cannot be computed, only its cell fails.
///
/// # Errors
/// Fails on errors that stop the run or affect all variants.
fn run_calibration(
    job_context: &JobContext<'_>,
    backbone: &BackbonePlan,
    index: usize,
    variants: &[&Variant],
    _: &mut ResumeState,
) -> Result<JobStatus> {
    let JobContext { run, models, .. } = *job_context;
    let plan = &backbone.calibrations[index];
    let label = plan.label(backbone);
    let name = plan.lease_name(backbone);
    let Some(lease) = run.lease(&name, &label)? else { return Ok(JobStatus::Contended) };
    let guard = LeaseGuard::new(run, lease, &name);
    // Another process may have computed the objects before this one acquired the lease.
    if run.store_view.are_stored(run.store, variants.iter().flat_map(|variant| variant.repairs())) {
        return Ok(JobStatus::Done);
    }
    run.reset_idle();
    let left = variants.iter().copied();
    let mut left: Vec<&Variant> =
        left.filter(|variant| !variant.repairs().all(|key| run.store_view.is_stored(run.store, key))).collect();
    left.retain(|variant| {
        let reason = variant.repairs().find_map(|key| run.abandon_reason(key.hash()));
        reason.map(|reason| run.fail(variant.cell, reason)).is_none()
    });
    if left.is_empty() {
        return Ok(JobStatus::Done);
    }
    if let Some(reason) = run.abandon_reason(&name) {
        return Ok(JobStatus::Abandoned(reason));
    }
    // Record failures while the lease is still held, so that no other process repeats work that is known to fail.
    let done = catch_panic(|| calibrate(run, models, backbone, plan, &left, &label, &guard));
    if done.is_err() && guard.is_lost() {
        run.check_stop()?;
        run.note(format!("{label}: suspended too long; other workers took over its work"));
        return Ok(JobStatus::Contended);
    }
    match &done {
        Ok(()) => run.store.clear_attempts(&name),
        Err(error) if error.kind() == ErrorKind::Job => run.store.record_attempt(&name, &label, &error.one_line()),
        Err(_) => {}
    }
    run.reset_idle();
    done?;
    let repaired = left.iter().filter(|variant| !run.has_failed(variant.cell));
    repaired.flat_map(|variant| variant.repairs()).for_each(|key| run.store_view.mark_intact(key));
    Ok(JobStatus::Done)
}

fn calibrate(
    run: &RunContext<'_>,
    models: &Models<'_>,
    backbone: &BackbonePlan,
    plan: &CalibrationPlan,
    left: &[&Variant],
    label: &str,
    guard: &LeaseGuard<'_>,
) -> Result<()> {
    let backbone = backbone.calibrated();
    let windows = tokens::load_windows(run, backbone, &plan.tokens)?;
    let engine = models.get(backbone)?;
    let shape =
        ActivationShape { channels: backbone.config.hidden, sequences: windows.count(), length: windows.length };
    let label = label.to_owned();
    run_stages(
        &CalibrationJob { run, models, backbone, engine, tokens: &plan.tokens, windows, label, shape, guard },
        left,
    )
}

fn run_stages(job: &CalibrationJob<'_>, variants: &[&Variant]) -> Result<()> {
    let mut trials = Trials::new(job);
    let mut selections = Selections::compute_before_pass(job, variants, &mut trials)?;
    let CalibrationInputs { required, possible, criterion_sites, pairs } = selections.needed_inputs(job, variants);
    let all_sites = [&required, &possible, &criterion_sites].into_iter().flatten().copied().collect();
    let mut kept = KeptActivations::default();
    kept.look_up(job, &all_sites);
    let request = activations::plan_first_pass(job, pairs, &criterion_sites, kept.missing_sites(&all_sites));
    let similarities = activations::run_pass(job, &job.label, &request, &mut kept)?;
    let all_kept = kept.missing_sites(&criterion_sites).is_empty();
    let activations = all_kept.then(|| kept.open(job.shape, &criterion_sites)).transpose()?;
    selections.compute_after_pass(&similarities, activations.as_ref(), &mut trials, job)?;
    drop(activations);
    let chosen = selected_variants(job.run, variants, &selections);
    let sites = selections.needed_inputs(job, variants).required;
    activations::discard_unneeded(job, &request, &sites)?;
    // Collect the activations that repairs of the selected layers need and that are not stored yet.
    let missing_sites = kept.missing_sites(&sites);
    kept.look_up(job, &missing_sites);
    let second_request = PassRequest { sites: missing_sites, ..PassRequest::default() };
    activations::run_pass(job, &format!("{}, second pass", job.label), &second_request, &mut kept)?;
    let activations = kept.open(job.shape, &sites)?;
    solve_all(job, &chosen, &activations)?;
    distilled::train(job, &chosen, &activations)
}

/// Solves the operators that are not stored. If one cannot be solved, only its cell fails.
fn solve_all(job: &CalibrationJob<'_>, chosen: &[(&Variant, &Selection)], activations: &Activations) -> Result<()> {
    let run = job.run;
    let mut missing = Vec::new();
    for &(variant, selection) in chosen {
        let key = variant.operator.as_ref().filter(|key| !is_stored(run, key));
        missing.extend(key.map(|key| (variant, selection, key)));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let count = missing.len();
    let tokens = job.shape.sequences * job.shape.length;
    let label = format!("{}: solve {}", job.label, pluralize(count, "operator"));
    let config = &job.backbone.config;
    let load = Load::windows(tokens, job.shape.length);
    let flops = missing
        .iter()
        .map(|&(variant, selection, _)| {
            let recovery = operator::recovery_of(&run.grid.cells[variant.cell])?;
            let spans = recovery::spans(recovery, &selection.removed).len();
            Ok(solve_flops(config, recovery, &load, variant.fitted(), spans))
        })
        .sum::<Result<f64>>()?;
    let id = run.start(job.guard.name(), &label, count * tokens, 0, flops);
    for (variant, selection, key) in missing {
        let is_iterative =
            run.grid.cells[variant.cell].criterion.as_ref().is_some_and(|method| method.rule.is_iterative());
        let solved = match is_iterative {
            true => operator::solve_one_by_one(job, variant, selection, key),
            false => operator::solve(job, variant, selection, activations, key),
        };
        match solved {
            Err(error) if error.kind() == ErrorKind::Job => run.fail_and_record(variant.cell, key, error.one_line()),
            solved => solved?,
        }
        run.advance(id, tokens)?;
    }
    run.finish(id);
    Ok(())
}

/// Returns the variants whose layers or sublayers have been selected. Records a failure for the others.
fn selected_variants<'s>(
    run: &RunContext<'_>,
    variants: &[&'s Variant],
    selections: &'s Selections<'_>,
) -> Vec<(&'s Variant, &'s Selection)> {
    let mut chosen = Vec::new();
    for &variant in variants {
        match selections.state(variant) {
            Some(SelectionState::Done(selection)) => chosen.push((variant, selection)),
            Some(SelectionState::Failed(reason)) => match &variant.selection {
                Some(key) => run.fail_and_record(variant.cell, key, reason.clone()),
                None => run.fail(variant.cell, reason.clone()),
            },
            Some(SelectionState::Waiting) | None => {
                run.fail(variant.cell, "the criterion selected no layers".to_string());
            }
        }
    }
    chosen
}

fn is_stored(run: &RunContext<'_>, key: &Arc<Key>) -> bool {
    matches!(run.store.get(key), Lookup::Intact(_))
}
