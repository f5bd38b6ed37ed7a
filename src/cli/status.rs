//! `ghostlab status`, which shows runs, workers and the state of the scheduler, and `ghostlab cancel`, which cancels
//! jobs submitted with this store.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;

use super::answer::read_commands::{StatusAnswer, SubmissionView};
use super::answer::write_commands::{CancelAnswer, CancelledJob};
use super::answer::{self, Answer};
use super::directories::StoreArgs;
use super::terminal::{format_flops, format_seconds};
use crate::clock::format_utc;
use crate::cluster::{self, JobEnd, Queue, Submission};
use crate::error::{Error, Result};
use crate::pipeline::exec::{FailureView, Overview, PlanView, RunState, RunView, WorkerView};
use crate::pipeline::plan::OutlineProgress;
use crate::quantity::pluralize;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    store: StoreArgs,
    /// Show all runs, and every job and worker of shared grids.
    ///
    /// By default, shows active runs and the newest run of each grid.
    #[arg(long)]
    all: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let store = arguments.store.open_read_only()?;
    answer::print_answer(StatusAnswer::new(&store), Answer::Status, |answer| print_status(answer, arguments.all))
}

fn print_status(answer: &StatusAnswer, all: bool) {
    let StatusAnswer { store, overview, submissions, damaged_records, scheduler_silent } = answer;
    let Overview { runs, plans, failures } = overview;
    for path in damaged_records {
        println!("{path}: skipped damaged record (remove with `ghostlab cache verify --repair`)");
    }
    if runs.is_empty() && plans.is_empty() && submissions.is_empty() {
        println!("no runs recorded in {store}");
        return;
    }
    plans.iter().for_each(|plan| print!("{}", format_shared_plan(plan, all)));
    for (index, run) in runs.iter().enumerate() {
        let newest = !runs[..index].iter().any(|newer| newer.file == run.file);
        let is_active = run.stage == RunState::Running && !run.died;
        if all || newest || is_active {
            print!("{}", format_run(run));
        }
    }
    // Skip failures that were already listed with a run.
    let listed: Vec<&String> = runs.iter().flat_map(|run| &run.failures).map(|failure| &failure.cell).collect();
    for failure in failures.iter().filter(|failure| !listed.contains(&&failure.what)) {
        println!("{}", format_failure(failure));
    }
    submissions.iter().for_each(|submission| println!("{}", format_submission(submission)));
    if let Some(reason) = scheduler_silent {
        println!("the scheduler is not available ({reason}); job states are unknown");
    }
}

/// Formats a plan that several workers share.
fn format_shared_plan(plan: &PlanView, all: bool) -> String {
    let OutlineProgress { complete, cells, jobs } = &plan.progress;
    let profile = plan.profile.as_ref().map_or(String::new(), |profile| format!(", profile {profile}"));
    let engine = plan.engine.as_ref().map_or(String::new(), |engine| format!(" on {engine}"));
    let done = jobs.iter().filter(|job| job.stored == job.artifacts).count();
    let mut lines = vec![
        format!("{} ({}{profile}){engine}, shared by workers, plan {}", plan.grid, plan.file.display(), plan.id),
        format!("  {complete} of {cells} cells complete, {done} of {} done", pluralize(jobs.len(), "job")),
    ];
    let running = jobs.iter().filter(|job| all || (job.stored < job.artifacts && job.stored > 0));
    lines.extend(running.map(|job| {
        let artifacts = pluralize(job.artifacts, "artifact");
        format!("  {}: {} of {artifacts} stored", job.label, job.stored)
    }));
    let past = [(plan.ended, "ended"), (plan.interrupted, "interrupted"), (plan.died, "died")];
    let past = past.into_iter().filter(|(count, _)| *count > 0).map(|(count, how)| format!("{count} {how}"));
    let past: Vec<String> = past.collect();
    let past = if past.is_empty() { String::new() } else { format!(" ({})", past.join(", ")) };
    let speed = match (plan.flop_per_second > 0.0, plan.seconds_left) {
        (true, Some(left)) if plan.left_flop > 0.0 => {
            format!(", {}/s in total, about {} left", format_flops(plan.flop_per_second), format_seconds(left))
        }
        _ => String::new(),
    };
    lines.push(format!("  {} running{past}{speed}", pluralize(plan.workers.len(), "worker")));
    const MAX_SHOWN_WORKERS: usize = 20;
    let max_workers = if all { plan.workers.len() } else { MAX_SHOWN_WORKERS };
    lines.extend(plan.workers.iter().take(max_workers).map(|worker| format!("    {}", format_worker(worker))));
    let more = plan.workers.len() - max_workers.min(plan.workers.len());
    lines.extend((more > 0).then(|| format!("    … and {more} more (use --all to show them)")));
    lines.extend(plan.failures.iter().map(|failure| format!("  {}", format_failure(failure))));
    lines.join("\n") + "\n"
}

fn format_worker(worker: &WorkerView) -> String {
    let number = worker.process.split('-').next().unwrap_or_default();
    let job = worker.scheduler_job.as_ref().map_or(String::new(), |job| format!(", job {job}"));
    let progress = worker.jobs.iter().map(|job| format!("{}: {} of {} tokens", job.label, job.tokens_done, job.tokens));
    let progress = progress.collect::<Vec<_>>().join("; ");
    let rate = worker.flop_per_second.map_or(String::new(), |rate| format!(", {}/s", format_flops(rate)));
    format!("{} process {number}{job}{rate}: {}", worker.host, if progress.is_empty() { "idle" } else { &progress })
}

fn format_failure(failure: &FailureView) -> String {
    let how = match (failure.failed, failure.died) {
        (0, died) => format!("its worker died {}", format_times(died)),
        (failed, 0) => format!("failed {}", format_times(failed)),
        (failed, died) => format!("failed {}, its worker died {}", format_times(failed), format_times(died)),
    };
    let FailureView { what, host, time, reason, .. } = failure;
    format!("{what} {how}, last on {host} at {}: {reason}", format_time(*time))
}

fn format_times(count: usize) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// Formats a Unix time given in seconds.
fn format_time(seconds: u64) -> String {
    format_utc(UNIX_EPOCH + Duration::from_secs(seconds))
}

fn format_submission(submission: &SubmissionView) -> String {
    let ended = submission.ends.iter().map(|end| {
        let JobEnd { job, exit_code, host, reason, log, time } = end;
        let at = format_time(*time);
        let log = log.display();
        format!("\n  job {job} ended with exit code {exit_code} on {host} at {at}: {reason}\n    log: {log}")
    });
    format_queue(submission) + &ended.collect::<String>()
}

fn format_queue(submission: &SubmissionView) -> String {
    let jobs = submission.jobs.iter().map(|job| format!("{} {}", job.what, job.number)).collect::<Vec<_>>().join(", ");
    let engine = if submission.engine.is_empty() { String::new() } else { format!(" on {}", submission.engine) };
    let head = format!("{}{engine} submitted as {} ({jobs})", submission.name, submission.id);
    let Some(queue) = &submission.queued else { return head };
    if queue.is_empty() {
        return head + ": no jobs left in the queue";
    }
    let lines = queue.iter().map(|job| format!("\n  job {}: {}", job.id, job.state_text()));
    head + &lines.collect::<String>()
}

fn format_run(record: &RunView) -> String {
    let stage = match record.stage {
        RunState::Running if record.died => "died: run the same command to resume",
        RunState::Running => "running",
        RunState::Complete => "complete",
        RunState::Failed => "failed",
        RunState::Interrupted => "interrupted: run the same command to resume",
    };
    let scored = match record.scores {
        0 => String::new(),
        scores => format!(", {} of {scores} scores", record.scored.min(scores)),
    };
    let mut lines = vec![
        format!("{} ({}): {stage}", record.grid, record.file.display()),
        format!(
            "  started {}, last update {}, process {}",
            format_time(record.started),
            format_time(record.updated),
            record.process
        ),
        format!("  {} of {} cells complete{scored}", record.complete, record.cells),
    ];
    if matches!(record.stage, RunState::Running | RunState::Interrupted) && record.flop > 0.0 {
        let fraction = (record.done_flop / record.flop).min(1.0);
        let left = record.seconds_left.map_or(String::new(), |left| format!(", about {} left", format_seconds(left)));
        lines.push(format!("  {:.0} % of the work done{left}", 100.0 * fraction));
    }
    let jobs = record.jobs.iter().filter(|_| record.stage == RunState::Running);
    lines.extend(jobs.map(|job| format!("  {}: {} of {} tokens", job.label, job.tokens_done, job.tokens)));
    lines.extend(record.failures.iter().map(|failure| format!("  {} failed: {}", failure.cell, failure.reason)));
    let complete = record.stage == RunState::Complete;
    lines.extend(complete.then(|| format!("  results in {}", record.results.display())));
    lines.push(format!("  {}", record.command.join(" ")));
    lines.join("\n") + "\n"
}

#[derive(Args)]
pub(super) struct CancelArguments {
    /// IDs of submissions, or grid or artifact names [default: all submissions of the store].
    which: Vec<String>,
    #[command(flatten)]
    store: StoreArgs,
}

pub(super) fn run_cancel(arguments: &CancelArguments) -> Result<ExitCode> {
    let store = arguments.store.open_read_only()?;
    let mut chosen = Submission::all(&store);
    for name in &arguments.which {
        if !chosen.iter().any(|submission| is_called(submission, name)) {
            let known: Vec<&str> = chosen.iter().map(|submission| submission.id.as_str()).collect();
            return Err(Error::missing("no submission with that name in this store")
                .at(store.root().display().to_string())
                .expected(if known.is_empty() {
                    "a submission; this store has none".to_owned()
                } else {
                    format!("a submission ID ({}), or the name of a submitted grid or artifact", known.join(", "))
                })
                .found(format!("`{name}`"))
                .hint("use `ghostlab status` to list the submissions"));
        }
    }
    if !arguments.which.is_empty() {
        chosen.retain(|submission| arguments.which.iter().any(|name| is_called(submission, name)));
    }
    let queue = Queue::query().map_err(|reason| {
        Error::missing("cannot list the scheduler's jobs, so no job was cancelled")
            .found(reason)
            .hint("try again later")
    })?;
    let mut ended = Vec::new();
    for submission in &chosen {
        for job in queue.jobs_with_comment(&submission.comment()) {
            // Cancel whole arrays: `45_1` and `45_[2-3]` become 45.
            let number = job.id.split('_').next().unwrap_or_default().to_owned();
            if !ended.iter().any(|job: &CancelledJob| job.job == number) {
                ended.push(CancelledJob { submission: submission.id.clone(), job: number });
            }
        }
    }
    if !ended.is_empty() {
        cluster::cancel(&ended.iter().map(|entry| entry.job.clone()).collect::<Vec<_>>())?;
    }
    answer::print_answer(CancelAnswer { ended }, Answer::Cancel, |answer| {
        answer.ended.iter().for_each(|entry| println!("cancelled job {} of {}", entry.job, entry.submission));
        if answer.ended.is_empty() {
            println!("no queued jobs");
        }
    })
}

/// Returns whether a string is the ID of a submission, the ID of its plan, or the name of its grid or artifact.
fn is_called(submission: &Submission, name: &str) -> bool {
    [&submission.id, &submission.plan, &submission.name].iter().any(|known| *known == name)
}
