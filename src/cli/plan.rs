//! `ghostlab plan GRID.yaml`: shows what a run would compute, why, and at what cost.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::answer::cache::KindTotals;
use super::answer::plan::{ArtifactCount, GridPlan, MissingObject, PlanAnswer, StoreUsage};
use super::answer::plan_cost::{PlanCost, RateSource};
use super::answer::{self, Answer};
use super::grid_args::{GridArgs, GridSource, LimitArgs};
use super::terminal::{format_bytes, format_columns, format_flops, format_seconds};
use super::{directories, progress, requested_work};
use crate::artifact::{Artifact, TableShape, artifact_files, run_files};
use crate::error::Result;
use crate::files::output::check_separate;
use crate::grid::Grid;
use crate::pipeline::exec::{self, RunEnv, TargetMachine, WorkKind};
use crate::pipeline::plan::{Plan, Reason, warnings};
use crate::quantity::pluralize;
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    grid_args: GridArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Parent folder for the results of `run` [default: `results/` in the checkout].
    ///
    /// `plan` writes nothing there, but fails if `run` (or `reproduce`, for an artifact) could not write to it.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// List all cells that would run, not just the first few.
    #[arg(long)]
    all: bool,
}

/// Maximum number of cells that are listed without `--all`.
const MAX_LISTED: usize = 20;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let source = arguments.grid_args.read()?;
    let (mut grids, artifact) = arguments.grid_args.grids_to_run(&source)?;
    arguments.grid_args.threads.start()?;
    let store = arguments.grid_args.open_read_only()?;
    requested_work::check_grids(&source, &mut grids, artifact.is_some(), &store)?;
    if let Some(grid) = grids.last() {
        check_results_writable(arguments, &source, grid, artifact.as_ref(), &store)?;
    }
    let settings = arguments.limits.settings(arguments.grid_args.engine.request());
    let planned = grids.iter().map(|grid| {
        let plan = Plan::new(grid, &store, settings)?;
        warnings(grid, &plan.inputs.hashes_by_path()).iter().for_each(|text| note!("warning: {text}"));
        // Tokenize now to determine the text lengths and to report unreadable texts. The tokens are discarded.
        let reporter = progress::reporter(false);
        let env = RunEnv { settings, reporter: &*reporter, ..RunEnv::new(&store) };
        let preflight = exec::preflight(&plan, &env, TargetMachine::Local, &|_, _| ())?;
        GridPlan::new(&plan, &preflight, &store, &settings)
    });
    let answer =
        PlanAnswer { artifact: artifact.map(|artifact| artifact.name), grids: planned.collect::<Result<_>>()? };
    answer::print_answer(answer, Answer::Plan, |answer| print_plan(answer, arguments.all))
}

/// Checks that `run` or `reproduce` could write to the results directory, without writing anything.
fn check_results_writable(
    arguments: &Arguments,
    source: &GridSource,
    grid: &Grid,
    artifact: Option<&Artifact>,
    store: &Store,
) -> Result<()> {
    let grid_args = &arguments.grid_args;
    let results = arguments.results.as_ref();
    let (target, files) = match artifact {
        Some(artifact) => {
            let results = directories::default_directory(results, "results", None);
            let target = requested_work::artifact_results_folder(
                artifact,
                grid,
                &grid_args.overrides,
                grid_args.engine.request(),
                &results,
            )?;
            (target, artifact_files(artifact, grid))
        }
        None => {
            let target = requested_work::run_results_folder(grid_args, source, grid, results)?;
            (target, run_files(grid, &TableShape::Long))
        }
    };
    check_separate(target.path(), &directories::list_inputs(grid, store))?;
    target.output().precheck(&files)
}

fn print_plan(answer: &PlanAnswer, all: bool) {
    if let Some(artifact) = &answer.artifact {
        println!("this is a paper artifact; use `reproduce {artifact}` to run only the cells that it shows");
    }
    for (index, grid) in answer.grids.iter().enumerate() {
        let gate = index + 1 < answer.grids.len();
        if gate {
            println!("gate: check that the dense backbones reproduce the paper's values (--no-gate skips it):");
        }
        print_grid_plan(grid, all);
        if gate {
            println!("\nthen:");
        }
    }
    println!("downloads: none; all inputs are on this machine");
}

fn print_grid_plan(plan: &GridPlan, all: bool) {
    let profile = plan.profile.as_ref().map_or(String::new(), |profile| format!(", profile {profile}"));
    println!("grid {} ({}{profile}): {}", plan.grid, plan.file.display(), pluralize(plan.cells, "cell"));
    println!("{} complete, {} to run\n", plan.cells_complete, plan.cells_to_run.len());
    print!("{}", format_counts(&plan.artifacts));
    if !plan.cells_to_run.is_empty() {
        println!("\njobs:");
        plan.jobs.iter().for_each(|job| println!("  {job}"));
        println!("\ncells to run:");
        let left = plan.cells_to_run.len();
        let max_cells = if all { usize::MAX } else { MAX_LISTED };
        for cell in plan.cells_to_run.iter().take(max_cells) {
            println!("  {}", cell.cell);
            explain_missing(&cell.missing).iter().for_each(|line| println!("    {line}"));
        }
        if left > max_cells {
            println!("  … and {} more (use --all to list them)", left - max_cells);
        }
    }
    println!("\n{}", format_costs(&plan.cost));
    if let Some(store) = &plan.store_limit {
        print!("{}", format_store_usage(store));
    }
}

/// Formats the number of objects of each kind in columns.
pub(super) fn format_counts(artifacts: &[ArtifactCount]) -> String {
    let mut rows = vec![["artifacts", "needed", "stored", "to compute", "reason"].map(str::to_owned).to_vec()];
    for ArtifactCount { kind, needed, stored, to_make, reasons } in artifacts {
        let mut reason_texts = reasons.iter().map(|reason| format!("{} {}", reason.count, reason.reason));
        let [needed, stored, to_make] = [needed, stored, to_make].map(ToString::to_string);
        rows.push(vec![kind.clone(), needed, stored, to_make, reason_texts.next().unwrap_or_default()]);
        rows.extend(reason_texts.map(|why| vec![String::new(), String::new(), String::new(), String::new(), why]));
    }
    format_columns(&rows, &[1, 2, 3])
}

/// Formats the missing objects of a cell, with the reasons. Of the missing selection and operator, only the first is
/// listed. If one is missing, the reasons of the scores are omitted unless a score is damaged.
fn explain_missing(missing: &[MissingObject]) -> Vec<String> {
    let in_group = |group| missing.iter().filter(move |entry| entry.what.0.group == group);
    let repairs = in_group(WorkKind::Calibrate).take(1);
    let mut lines: Vec<String> = repairs.map(|repairs| format_reason(repairs.what.0.what, &repairs.reason)).collect();
    let scored: Vec<&MissingObject> = in_group(WorkKind::Score).collect();
    let damaged = scored.iter().any(|entry| matches!(entry.reason, Reason::Damaged(_)));
    if lines.is_empty() || damaged {
        // Print one line for each score with a reason, and a common line for the scores without one.
        let (plain, reasoned): (Vec<&MissingObject>, Vec<&MissingObject>) =
            scored.into_iter().partition(|entry| entry.reason == Reason::First);
        lines.extend(reasoned.into_iter().map(|entry| format_reason(&target_label(entry), &entry.reason)));
        if !plain.is_empty() {
            lines.push(format!("scores on {}", plain.into_iter().map(target_label).collect::<Vec<_>>().join(", ")));
        }
    } else if !scored.is_empty() {
        lines.push(format!("then scores on {}", scored.into_iter().map(target_label).collect::<Vec<_>>().join(", ")));
    }
    let timed: Vec<String> = in_group(WorkKind::Time).map(target_label).collect();
    lines.extend((!timed.is_empty()).then(|| format!("latency over {}", timed.join(", "))));
    lines
}

fn format_reason(what: &str, reason: &Reason) -> String {
    match reason {
        Reason::First => what.to_owned(),
        reason => format!("{what}: {reason}"),
    }
}

fn target_label(missing: &MissingObject) -> String {
    missing.on.clone().unwrap_or_default()
}

/// Formats the size of the store, its limit, and the expected evictions.
fn format_store_usage(store: &StoreUsage) -> String {
    let mut text = format!(
        "store: limit {}; {} used by this grid, {} to add, {} used by other grids\n",
        format_bytes(store.limit_bytes),
        format_bytes(store.needed_bytes),
        format_bytes(store.coming_bytes),
        format_bytes(store.kept_bytes)
    );
    if store.beyond_bytes > 0 {
        text += &format!("  {} over the limit, all needed by this grid\n", format_bytes(store.beyond_bytes));
    }
    for KindTotals { stage, artifacts, bytes: size, seconds: time } in &store.going {
        text += &format!("  evicts: {artifacts} {stage}, {}, took {}\n", format_bytes(*size), format_seconds(*time));
    }
    text
}

fn format_costs(cost: &PlanCost) -> String {
    let naive = cost.cell_by_cell_flop;
    let shared = cost.shared_flop;
    let mut lines = vec![format!(
        "cost: {} cell by cell, {} with shared work ({:.0} %), {} remaining",
        format_flops(naive),
        format_flops(shared),
        100.0 * shared / naive.max(1.0),
        format_flops(cost.left_flop)
    )];
    if let Some(run) = &cost.run {
        lines.push(format!("engine: {}", run.engine));
        lines.push(match &run.time {
            Some(time) => {
                let how = match time.rate {
                    RateSource::LastRun => "measured in the last run with this store and engine on this machine",
                    RateSource::Probe => "estimated from a short matrix product; the first run measures it",
                };
                format!(
                    "time: about {} at {}/s ({how})",
                    format_seconds(time.seconds),
                    format_flops(time.flop_per_second)
                )
            }
            None => "time: unknown; the first run with this engine on this machine measures it".to_owned(),
        });
        let memory = format_bytes(run.memory_bytes);
        let free = format_bytes(run.free_memory_bytes);
        lines.push(format!("memory: about {memory} at peak; {free} free"));
        let room = run.free_disk_bytes.map_or(String::new(), |free| format!("; {} free", format_bytes(free)));
        let stays = format_bytes(run.disk_bytes);
        let spool = format_bytes(run.spool_bytes);
        lines.push(format!("disk: about {stays} permanent, {spool} temporary{room}"));
        let room = run.free_inodes.map_or(String::new(), |free| format!("; {free} free"));
        lines.push(format!("inodes: at most {}{room}", run.inodes));
    }
    lines.join("\n")
}
