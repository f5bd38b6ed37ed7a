//! `ghostlab submit slurm GRID`: submits an array of workers and a report job to a scheduler.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};

use clap::{Args, Subcommand};

use super::answer::write_commands::SubmitAnswer;
use super::answer::{self, Answer};
use super::grid_args::{GridArgs, LimitArgs};
use super::requested_work::RequestedWork;
use super::terminal::{format_bytes, format_flops, format_seconds};
use super::{directories, progress};
use crate::cluster::{
    self, ArtifactCall, Binary, JobEnd, JobScript, MIN_TIME_LIMIT, Queue, SlurmProfile, Submission, SubmittedJobs,
    time_limit,
};
use crate::error::{Error, Result};
use crate::files;
use crate::grid::Grid;
use crate::model::{CPU, EngineChoice, EngineRequest, Products};
use crate::pipeline::exec::{self, RunEnv, RunSettings, TargetMachine};
use crate::pipeline::plan::{Estimate, Inputs, Outline, Plan, batch_bytes};
use crate::pipeline::stage::Cost;
use crate::quantity::{Gigabytes, pluralize};
use ghostlab_store::{LeaseResult, Store};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Submit an array of workers and a report job with Slurm's `sbatch`.
    ///
    /// All inputs are checked and tokenized first. The grid, hub.lock, inputs and program are frozen in the store, so
    /// later changes to the files do not affect queued jobs. Submitting the same plan again only shows what is queued.
    Slurm(Arguments),
}

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    grid_args: GridArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Number of workers [default: from the profile file, or one per backbone].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Maximum number of workers to run at once [default: all].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    at_a_time: Option<u16>,
    /// Cluster profile: partition, account, time limit, GPU types, … (docs/cluster.md).
    #[arg(long, value_name = "FILE")]
    profile_file: Option<PathBuf>,
    /// Print the job script and the commands without submitting.
    #[arg(long)]
    dry_run: bool,
    /// Submit additional workers even if workers for the same plan are queued.
    #[arg(long)]
    again: bool,
    /// Evaluate pruned models even if the dense one does not match the paper.
    #[arg(long)]
    no_gate: bool,
    /// Parent folder for the results [default: `results/` in the checkout].
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Additional options for sbatch.
    #[arg(last = true, value_name = "SBATCH OPTIONS")]
    sbatch: Vec<String>,
}

pub(super) fn run(command: &Command) -> Result<ExitCode> {
    let Command::Slurm(arguments) = command;
    let profile = arguments.profile_file.as_deref().map(SlurmProfile::read).transpose()?.unwrap_or_default();
    cluster::check_options(&arguments.sbatch)?;
    arguments.grid_args.threads.start()?;
    // A dry run adds no objects to the store. A read-only store keeps them in a temporary folder.
    let store =
        if arguments.dry_run { arguments.grid_args.open_read_only()? } else { arguments.grid_args.open_store()? };
    let work = RequestedWork::new(&arguments.grid_args, arguments.no_gate, &store)?;
    let engine = resolve_auto(arguments.grid_args.engine.request(), &work.grid)?;
    let settings = arguments.limits.settings(engine);
    let (submission, answer, device_memory) = prepare_submission(&work, settings, &store, arguments.dry_run)?;
    if answer.complete == submission.cells {
        let message = format!(
            "nothing to submit: all {} are cached (use `ghostlab run` to write the results)",
            pluralize(submission.cells, "cell")
        );
        return print_submission(answer, &message);
    }
    let folder = std::path::absolute(submission.folder(&store))
        .map_err(|error| Error::path_io("resolve", store.root(), &error))?;
    let call = SubmitCall { arguments, profile, store: &store, work: &work, settings, submission, folder };
    let script = call.build_job_script(answer.memory_bytes, device_memory)?;
    warn_about_time_limit(&script);
    let text = script.render(&call.folder)?;
    let SubmitCall { submission, .. } = &call;
    note!(
        "{}: {} of {} to run, {} remaining; about {} of memory per worker, {} of disk",
        submission.name,
        submission.cells - answer.complete,
        pluralize(submission.cells, "cell"),
        format_flops(answer.left_flop),
        format_bytes(answer.memory_bytes),
        format_bytes(answer.disk_bytes),
    );
    if arguments.dry_run {
        return print_submission(SubmitAnswer { script: Some(text.clone()), ..answer }, text.trim_end());
    }
    call.submit(&script, text, answer)
}

/// Command-line arguments with the submission prepared from them.
struct SubmitCall<'a> {
    arguments: &'a Arguments,
    profile: SlurmProfile,
    store: &'a Store,
    work: &'a RequestedWork,
    settings: RunSettings,
    submission: Submission,
    /// Folder in the store that contains the submission.
    folder: PathBuf,
}

impl SubmitCall<'_> {
    /// Builds the job script. `memory` and `device_memory` are the estimated main memory and GPU memory per worker, in
    /// bytes.
    fn build_job_script(&self, memory: u64, device_memory: u64) -> Result<JobScript<'_>> {
        let Self { arguments, profile, store, work, settings, submission, folder } = self;
        let workers = arguments.workers.map(usize::from).or(profile.workers).unwrap_or(work.grid.backbone.len()).max(1);
        let at_a_time = arguments.at_a_time.map_or(workers, usize::from).min(workers);
        let cpus = arguments.grid_args.threads.threads.map(usize::from).or(profile.cpus).unwrap_or(1);
        let memory = arguments.limits.memory.map_or(memory, Gigabytes::bytes);
        let program = absolute_text(&freeze_job_program(&submission.binary, arguments.dry_run, store)?)?;
        let gres = choose_gres(device_memory, *settings, profile)?;
        Ok(JobScript {
            submission,
            workers,
            at_a_time,
            cpus,
            // The program and cached files need memory in addition to the weights and the jobs.
            memory: (memory as f64 * 1.15 / 1e6).ceil() as u64 + 256,
            options: build_sbatch_options(gres.as_deref(), profile, &arguments.sbatch),
            logs: folder.join(JobEnd::LOGS),
            profile,
            worker: self.build_worker_command(&program, cpus, memory)?,
            report: self.build_report_command(&program)?,
        })
    }

    /// Submits the workers and the report job. If jobs for the same plan are already queued, shows those instead.
    fn submit(&self, script: &JobScript<'_>, text: String, answer: SubmitAnswer) -> Result<ExitCode> {
        let Self { arguments, store, submission, folder, .. } = self;
        let name = format!("submit-{}", submission.plan);
        let LeaseResult::Acquired(_lease) = store.lease(&name)? else {
            return Err(Error::missing("another process is submitting this plan").at(submission.name.clone()));
        };
        let path = cluster::path_to_text(&folder.join(Submission::SCRIPT))?;
        if !arguments.again
            && let Some((mut lines, without_report)) = find_queued(submission, store)?
        {
            let mut jobs = Vec::new();
            if let Some(array) = without_report {
                let report = self.submit_job(SubmittedJobs::REPORT, &script.report_options(&array)?, &path)?;
                lines.push(format!("submitted the missing report as job {report}"));
                jobs.push(report);
            }
            return print_submission(SubmitAnswer { jobs, ..answer }, &lines.join("\n"));
        }
        submission.write(store, &text)?;
        let array = self.submit_job(SubmittedJobs::ARRAY, &script.array_options()?, &path)?;
        let report = self.submit_job(SubmittedJobs::REPORT, &script.report_options(&array)?, &path)?;
        let workers = script.workers;
        let message = format!(
            "submitted {}: {} as job {array}, the report as job {report}\nscript and logs: {}",
            submission.id,
            pluralize(workers, "worker"),
            folder.display()
        );
        let code = print_submission(
            SubmitAnswer { workers, jobs: vec![array, report], script: Some(text), ..answer },
            &message,
        )?;
        note!("use `ghostlab status` to see the progress, and `ghostlab cancel {}` to cancel", submission.id);
        Ok(code)
    }

    /// Submits the script at `path` with `sbatch` and returns the job number.
    fn submit_job(&self, job_type: &str, options: &[String], path: &str) -> Result<String> {
        self.submission.submit(self.store, job_type, options, path)
    }

    fn build_worker_command(&self, program: &str, cpus: usize, memory: u64) -> Result<Vec<String>> {
        let Self { arguments, profile, store, settings, folder, .. } = self;
        let mut words = vec![program.to_owned(), "worker".into(), absolute_text(&folder.join(Submission::FILE))?];
        words.extend(["--store".into(), absolute_text(store.root())?, "--slurm".into()]);
        words.extend(["--threads".into(), cpus.to_string()]);
        let retries =
            if arguments.limits.retries > 0 { arguments.limits.retries } else { profile.retries.unwrap_or(0) };
        words.extend(["--retries".into(), retries.to_string()]);
        if let Some(idle) = profile.idle_exit {
            words.extend(["--idle-exit".into(), idle.to_string()]);
        }
        words.extend(arguments.limits.to_arguments(memory));
        words.extend(format_engine_options(settings.engine));
        Ok(words)
    }

    fn build_report_command(&self, program: &str) -> Result<Vec<String>> {
        let Self { arguments, store, work, settings, submission, folder, .. } = self;
        let file = absolute_text(&folder.join(Submission::FILE))?;
        let near = Some(arguments.grid_args.file());
        let results = absolute_text(&directories::default_directory(arguments.results.as_ref(), "results", near))?;
        let mut words = vec![program.to_owned()];
        match &work.artifact {
            None => words.extend(["run".into(), file]),
            Some(artifact) => {
                let folder = artifact.file.path().parent().unwrap_or(Path::new("."));
                words.extend(["reproduce".into(), artifact.name.clone(), "--frozen".into(), file]);
                words.extend(["--experiments".into(), absolute_text(folder)?]);
                words.extend([
                    "--reports".into(),
                    absolute_text(&directories::default_directory(None, "reports", near))?,
                ]);
                words.extend(submission.overrides.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
            }
        }
        words.extend(["--store".into(), absolute_text(store.root())?, "--results".into(), results, "--stored".into()]);
        words.extend(format_engine_options(settings.engine));
        Ok(words)
    }
}

/// Warns if the time limit of the jobs is too short for a worker.
fn warn_about_time_limit(script: &JobScript<'_>) {
    if let Some(limit) = time_limit(&script.options).filter(|&limit| limit < MIN_TIME_LIMIT) {
        eprintln!(
            "warning: the time limit of {} is too short: a worker stops two minutes before its limit and is requeued; \
             use {} or more",
            format_seconds(limit.as_secs_f64()),
            format_seconds(MIN_TIME_LIMIT.as_secs_f64()),
        );
    }
}

/// Prints `answer` as JSON if `--json` was given, otherwise prints `message`.
fn print_submission(answer: SubmitAnswer, message: &str) -> Result<ExitCode> {
    answer::print_answer(answer, Answer::SubmitSlurm, |_| println!("{message}"))
}

/// Checks and tokenizes all inputs, as a run does before its first job.
///
/// Returns the submission, the output to print (still without jobs), and the required GPU memory in bytes. The memory
/// estimates assume that a worker keeps all weights of the largest backbone in memory.
fn prepare_submission(
    work: &RequestedWork,
    settings: RunSettings,
    store: &Store,
    dry_run: bool,
) -> Result<(Submission, SubmitAnswer, u64)> {
    let reporter = progress::reporter(false);
    let env = RunEnv { settings, reporter: &*reporter, ..RunEnv::new(store) };
    let mut gate_plan: Option<Plan<'_>> = None;
    if let Some(gate) = work.gate() {
        let plan = Plan::new(gate, store, settings)?;
        exec::preflight(&plan, &env, TargetMachine::Remote, &|_, _| ())?;
        gate_plan = Some(plan);
    }
    let plan = Plan::new(&work.grid, store, settings)?;
    let exec::Preflight { state, estimate } = exec::preflight(&plan, &env, TargetMachine::Remote, &|_, _| ())?;
    let memory_limit = settings.memory.unwrap_or(u64::MAX);
    let device_bytes = plan.backbones.iter().map(|backbone| {
        backbone.engine.weight_bytes(&backbone.config) + batch_bytes(&plan, backbone, &state, memory_limit)
    });
    let device_memory = device_bytes.max().unwrap_or(0);
    let complete = plan.variants().filter(|(_, variant)| state.is_complete_elsewhere(variant)).count();
    let outline = Outline::new(&plan, &estimate.jobs);
    let artifact = work.artifact.as_ref().map(|artifact| ArtifactCall {
        file: files::absolute(artifact.file.path()),
        profile: work.grid.profile.clone(),
        gated: matches!(work.gated, crate::artifact::GateMode::Yes(_)),
    });
    let name = work.artifact.as_ref().map_or(&work.grid.name, |artifact| &artifact.name).clone();
    let id = (if dry_run { outline.id() } else { outline.save(store) }, plan.engines());
    let inputs: Vec<&Inputs> = gate_plan.iter().map(|plan| &plan.inputs).chain([&plan.inputs]).collect();
    let grids = (&work.grid, work.gate());
    let binary = Binary::current(store)?;
    let submission = Submission::freeze(&name, artifact, &work.overrides, grids, &inputs, id, binary)?;
    let Estimate { cost: Cost { left, disk, .. }, memory, .. } = estimate;
    let answer = SubmitAnswer {
        id: submission.id.clone(),
        name: submission.name.clone(),
        cells: submission.cells,
        complete,
        left_flop: left,
        memory_bytes: memory,
        disk_bytes: disk,
        workers: 0,
        jobs: Vec::new(),
        script: None,
    };
    Ok((submission, answer, device_memory))
}

/// Returns one line for each queued job of the same plan, or `None` if no job is queued. Also returns the number of an
/// array job whose report job is missing because an earlier `submit` was interrupted.
fn find_queued(submission: &Submission, store: &Store) -> Result<Option<(Vec<String>, Option<String>)>> {
    let before: Vec<Submission> =
        Submission::all(store).into_iter().filter(|earlier| earlier.plan == submission.plan).collect();
    if !before.iter().any(|submission| submission.jobs(store).may_have_jobs()) {
        return Ok(None);
    }
    let queue = Queue::query().map_err(|reason| {
        Error::missing("cannot determine whether jobs of an earlier submission of this plan are queued")
            .found(reason)
            .hint("try again later, or use --again to submit anyway")
    })?;
    let mut lines = Vec::new();
    let mut without_report = None;
    for earlier in &before {
        let mut array = None;
        for job in queue.jobs_with_comment(&earlier.comment()) {
            lines.push(format!("already queued: job {} of {}: {}", job.id, earlier.id, job.state_text()));
            array = array.or(job.id.split_once('_').map(|(array, _)| array.to_owned()));
        }
        // Jobs are listed in order of submission, so the report job comes after its array job.
        let known = earlier.find_jobs(store, &queue)?.jobs;
        let last = known.last().filter(|(what, number)| what == SubmittedJobs::ARRAY && array.as_ref() == Some(number));
        if let Some((_, number)) = last.filter(|_| earlier.id == submission.id) {
            without_report = Some(number.clone());
        }
    }
    if lines.is_empty() {
        return Ok(None);
    }
    lines.push("no jobs submitted; use --again to add workers".to_owned());
    Ok(Some((lines, without_report)))
}

/// Resolves `auto` so that all workers use the same engine.
fn resolve_auto(request: EngineRequest, grid: &Grid) -> Result<EngineRequest> {
    let Some(backbone) = grid.backbones.values().next() else { return Ok(request) };
    let choice = request.choose(&backbone.path)?;
    if request.device.is_none() {
        let class = choice.device().class();
        let gpu_hint = if class == "cpu" { "; pass --device cuda to request GPUs" } else { "" };
        note!("--device auto selected {class} on this machine; all workers will use it{gpu_hint}");
    }
    let kernels = match choice {
        EngineChoice::Cpu(products @ (Products::Bf16 | Products::Bf16Amx)) if request.kernels.is_none() => {
            let kernels = products.kernels();
            note!(
                "--kernels auto selected {kernels} on this machine; all workers will use them (--kernels portable runs on every CPU)"
            );
            Some(kernels)
        }
        _ => request.kernels,
    };
    Ok(EngineRequest { device: Some(request.device.unwrap_or_else(|| choice.device())), kernels, ..request })
}

fn format_engine_options(engine: EngineRequest) -> Vec<String> {
    let device = engine.device.map(|device| ["--device".to_owned(), device.to_string()]);
    let dtype = engine.dtype.map(|dtype| ["--dtype".to_owned(), dtype.name().to_owned()]);
    let name = engine.engine.map(|name| ["--engine".to_owned(), name.name().to_owned()]);
    let kernels = engine.kernels.map(|kernels| ["--kernels".to_owned(), kernels.name().to_owned()]);
    [device, dtype, name, kernels].into_iter().flatten().flatten().collect()
}

/// Returns the `--gres` value that requests a GPU, or `None` if the CPU is used.
fn choose_gres(memory_bytes: u64, settings: RunSettings, profile: &SlurmProfile) -> Result<Option<String>> {
    let on_cpu = settings.engine.device.is_none_or(|device| device.to_string() == CPU.device);
    if on_cpu {
        return Ok(None);
    }
    let gpu = profile.smallest_gpu_with(settings.device_memory.unwrap_or(memory_bytes))?;
    Ok(Some(gpu.map_or("gpu:1".to_owned(), |gpu| format!("gpu:{}:1", gpu.name))))
}

fn build_sbatch_options(gres: Option<&str>, profile: &SlurmProfile, sbatch: &[String]) -> Vec<String> {
    let SlurmProfile { partition, account, qos, constraint, time, .. } = profile;
    let named = [
        ("gres", gres),
        ("partition", partition.as_deref()),
        ("account", account.as_deref()),
        ("qos", qos.as_deref()),
        ("constraint", constraint.as_deref()),
        ("time", time.as_deref()),
    ];
    let named = named.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?)));
    named.chain(profile.options()).chain(sbatch.iter().cloned()).collect()
}

/// Returns the path of the program that the jobs run: a frozen copy in the store or, if programs cannot be executed
/// there, the original program.
fn freeze_job_program(binary: &Binary, dry_run: bool, store: &Store) -> Result<PathBuf> {
    if dry_run {
        return Ok(binary.frozen_path(store));
    }
    let copy = binary.freeze(store)?;
    let runs = std::process::Command::new(&copy).arg("--version").stdout(Stdio::null()).status();
    if runs.as_ref().is_ok_and(ExitStatus::success) {
        return Ok(copy);
    }
    let why = runs.map_or_else(|error| error.to_string(), |status| status.to_string());
    eprintln!(
        "warning: cannot run programs from the store's disk ({why}), so jobs run {} directly and fail if it is rebuilt",
        binary.path.display()
    );
    Ok(binary.path.clone())
}

fn absolute_text(path: &Path) -> Result<String> {
    let found = std::path::absolute(path).map_err(|error| Error::path_io("resolve", path, &error))?;
    cluster::path_to_text(&found)
}
