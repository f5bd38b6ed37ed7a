//! Runs a calibration: selections, activations, operators and training, in this order.

use super::calibration_job::{CalibrationJob, LeaseGuard};
use super::group::{Group, JobContext, Order, ResumeState};
use super::selection::Selections;
use super::{distilled, operator, tokens};
use crate::calibrate::ActivationShape;
use crate::error::{ErrorKind, Result};
use crate::pipeline::env::backbone::{BackbonePlan, CalibrationPlan, Variant};
use crate::pipeline::env::context::RunContext;
use crate::pipeline::env::coordination::{JobStatus, catch_panic};
use crate::pipeline::env::event::WorkKind;

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
    let run = job_context.run;
    let plan = &backbone.calibrations[index];
    let label = plan.label(backbone);
    let name = plan.lease_name(backbone);
    let Some(lease) = run.lease(&name, &label)? else { return Ok(JobStatus::Contended) };
    let guard = LeaseGuard::new(run, lease, &name);
    // Another process may have computed the objects before this one acquired the lease.
    if run.store_view.are_stored(variants.iter().flat_map(|variant| variant.repairs())) {
        return Ok(JobStatus::Done);
    }
    run.reset_idle();
    let left = variants.iter().copied();
    let mut left: Vec<&Variant> =
        left.filter(|variant| !variant.repairs().all(|key| run.store_view.is_stored(key))).collect();
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
    let done = catch_panic(|| calibrate(run, backbone, plan, &left, &label, &guard));
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
    backbone: &BackbonePlan,
    plan: &CalibrationPlan,
    left: &[&Variant],
    label: &str,
    guard: &LeaseGuard<'_>,
) -> Result<()> {
    let backbone = backbone.calibrated();
    let windows = tokens::load_windows(run, backbone, &plan.tokens)?;
    let engine = run.models.get(backbone)?;
    let shape =
        ActivationShape { channels: backbone.config.hidden, sequences: windows.count(), length: windows.length };
    let label = label.to_owned();
    let job = CalibrationJob { run, backbone, engine, tokens: &plan.tokens, windows, label, shape, guard };
    let (selections, activations) = Selections::select_all(&job, left)?;
    let chosen = selections.chosen(left);
    operator::solve_all(&job, &chosen, &activations)?;
    distilled::train(&job, &chosen, &activations)
}
