//! Submissions to a scheduler: they contain only the needed files, happen only once, and are independent of later
//! changes to the grid and the program.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::output::{stderr, stdout};
use crate::common::world::World;
use serde_json::Value;

/// Scripts that simulate Slurm's commands and record each call in a file next to the script.
struct FakeSlurm(PathBuf);

impl FakeSlurm {
    fn new(world: &World) -> Self {
        let folder = world.path("bin");
        fs::create_dir(&folder).unwrap();
        let fake = Self(folder);
        fake.put("sbatch", "printf '%s\\n' \"$@\" >> \"$0.words\"; n=$(cat \"$0.n\" 2>/dev/null || echo 40); n=$((n+1)); echo $n > \"$0.n\"; echo $n");
        fake.put("squeue", "cat \"$0.out\" 2>/dev/null; exit 0");
        fake.put("scancel", "exit 0");
        fake
    }

    fn put(&self, name: &str, body: &str) {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\necho \"$@\" >> \"$0.log\"\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn told(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(format!("{name}.log"))).unwrap_or_default()
    }

    fn run(&self, world: &World, arguments: &[&str]) -> Output {
        self.beside(world.command(arguments)).output().unwrap()
    }

    /// Configures a command to find these scripts instead of Slurm's programs.
    fn beside(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.0.display())).env("HF_TOKEN", "hf_very_secret");
        command
    }
}

fn submission(world: &World) -> PathBuf {
    submission_in(&world.path("data/store"))
}

fn submission_in(store: &Path) -> PathBuf {
    fs::read_dir(store.join("submissions")).unwrap().next().unwrap().unwrap().path()
}

/// Runs a submission's script like Slurm: an array task, or the report. Slurm's options are comments in bash.
fn job(submission: &Path, task: Option<&str>) -> Output {
    let mut command = Command::new("bash");
    command.arg(submission.join("job.sh")).current_dir("/");
    match task {
        Some(task) => command.env("SLURM_JOB_ID", "5").env("SLURM_ARRAY_JOB_ID", "5").env("SLURM_ARRAY_TASK_ID", task),
        None => command.env("SLURM_JOB_ID", "6").env_remove("SLURM_ARRAY_JOB_ID").env_remove("SLURM_ARRAY_TASK_ID"),
    };
    command.output().unwrap()
}

/// Parts of a submission script.
const SCRIPT_LINES: [&str; 16] = [
    "--array=0-2%3",
    "#SBATCH --requeue",
    "#SBATCH --signal=B:USR1@120",
    "--dependency=afterany:ARRAY",
    "#SBATCH --open-mode=append",
    " --partition=gpu ",
    " --time=2:00:00 ",
    " --nice=5 ",
    "#SBATCH --cpus-per-task=2",
    "#SBATCH --export=PATH",
    "#SBATCH --comment=ghostlab:",
    "#SBATCH --job-name=ghostlab-grid-",
    "module load x",
    "    exec /",
    "--stored",
    "--retries 1",
];

#[test]
fn submission_is_one_readable_script_without_secrets() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    world.write("slurm.yaml", "partition: gpu\ntime: 2:00:00\ncpus: 2\nretries: 1\nsetup: [module load x]\n");
    let arguments = [
        "submit",
        "slurm",
        "grid.yaml",
        "--workers",
        "3",
        "--profile-file",
        "slurm.yaml",
        "--dry-run",
        "--",
        "--nice=5",
    ];
    let output = slurm.run(&world, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let script = stdout(&output);
    for line in SCRIPT_LINES {
        assert!(script.contains(line), "`{line}` is not in\n{script}");
    }
    assert!(!script.contains("hf_very_secret") && !script.contains("HF_TOKEN"), "{script}");
    assert!(script.contains("#SBATCH --mem=") && !script.contains("--gres"), "{script}");
    assert_eq!(slurm.told("sbatch"), "", "a dry run submits nothing");
    assert_eq!(fs::read_dir(world.path("data/store")).unwrap().count(), 0, "and writes nothing");
    assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
    let short = slurm.run(&world, &["submit", "slurm", "grid.yaml", "--dry-run", "--", "--time=2"]);
    assert!(
        stderr(&short).contains("warning: a time limit of") && stderr(&short).contains("or more"),
        "{}",
        stderr(&short)
    );
    assert_bash_reads(&script);
}

/// Asserts that a script has no syntax errors.
fn assert_bash_reads(script: &str) {
    let checked = Command::new("bash").args(["-n", "/dev/stdin"]).stdin(Stdio::piped()).spawn();
    let mut checked = checked.unwrap();
    std::io::Write::write_all(&mut checked.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(checked.wait().unwrap().success(), "bash does not read it");
}

#[test]
fn submission_requests_a_gpu_with_enough_memory() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    // A GPU is requested if the grid computes on one, of a type with enough memory for the largest backbone.
    world.write("slurm.yaml", "gpus:\n  - {name: big, memory: 80}\n  - {name: small, memory: 1}\n");
    let output = slurm.run(
        &world,
        &[
            "submit",
            "slurm",
            "grid.yaml",
            "--profile-file",
            "slurm.yaml",
            "--dry-run",
            "--device",
            "cuda",
            "--dtype",
            "bf16",
        ],
    );
    let script = stdout(&output);
    assert!(script.contains(" --gres=gpu:small:1 ") && script.contains("--device cuda"), "{script}{}", stderr(&output));
}

#[test]
fn submit_in_bf16_freezes_the_kernel_family() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    for (asked, frozen) in [("portable", "--kernels portable"), ("amx", "--kernels amx")] {
        let script = stdout(&submit(&slurm, &world, &["--dtype", "bf16", "--kernels", asked]));
        assert_eq!(script.matches(frozen).count(), 2, "worker and report of {asked}: {script}");
    }
    let output = submit(&slurm, &world, &["--dtype", "bf16"]);
    let script = stdout(&output);
    let family = ["portable", "amx"].map(|kernels| format!("--kernels {kernels}"));
    assert!(family.iter().any(|word| script.matches(word).count() == 2), "{script}");
    assert!(stderr(&output).contains("--kernels auto: "), "{}", stderr(&output));
    assert!(!stdout(&submit(&slurm, &world, &[])).contains("--kernels"), "f32 has one family");
}

fn submit(slurm: &FakeSlurm, world: &World, more: &[&str]) -> Output {
    let submit = ["submit", "slurm", "grid.yaml", "--dry-run", "--device", "cpu"];
    slurm.run(world, &[&submit[..], more].concat())
}

#[test]
fn second_submit_lists_the_queue_and_adds_nothing() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    let submit =
        |more: &[&str]| slurm.run(&world, &[&["submit", "slurm", "grid.yaml", "--workers", "2"], more].concat());
    let output = submit(&[]);
    assert!(stdout(&output).contains("as job 41, the report as job 42"), "{}{}", stdout(&output), stderr(&output));
    let submitted = slurm.told("sbatch");
    let lines: Vec<&str> = submitted.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("--array=0-1%2") && lines[1].contains("afterany:41"), "{submitted}");
    let folder = submission(&world);
    let id = folder.file_name().unwrap().to_string_lossy().into_owned();
    let record: Value = serde_json::from_slice(&fs::read(folder.join("submission.json")).unwrap()).unwrap();
    let plan = record["plan"].as_str().unwrap().to_owned();
    let all = fs::read_to_string(folder.join("job.sh")).unwrap() + &record.to_string();
    assert!(!all.contains("hf_very_secret"), "a credential is in the submission");
    let comment = format!("ghostlab:{plan}:{id}");
    // The queue also lists foreign jobs. One has the number of a submitted task, but in another array.
    let queue = format!(
        "41_[0-1]|a|PENDING|Resources|{comment}\n42|a|PENDING|Dependency|{comment}\n43|own|RUNNING|None|(null)\n"
    );
    fs::write(slurm.0.join("squeue.out"), queue).unwrap();
    let output = submit(&[]);
    let text = stdout(&output);
    assert!(text.contains("queued already: job 41_[0-1]") && text.contains("no jobs were added"), "{text}");
    assert_eq!(slurm.told("sbatch").lines().count(), 2);
    let shown = stdout(&slurm.run(&world, &["status"]));
    assert!(shown.contains("job 41_[0-1]: pending (Resources)") && !shown.contains("job 43"), "{shown}");
    // If the queue does not answer, nothing is submitted, and `status` works without it.
    slurm.put("squeue", "echo slurm_load_jobs error >&2; exit 1");
    slurm.put("sacct", "exit 1");
    let output = submit(&[]);
    assert!(
        output.status.code() == Some(3) && stderr(&output).contains("slurm_load_jobs error"),
        "{}",
        stderr(&output)
    );
    let shown = slurm.run(&world, &["status"]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(stdout(&shown).contains("the scheduler is not available"), "{}", stdout(&shown));
    let output = slurm.run(&world, &["cancel"]);
    assert!(output.status.code() == Some(3) && slurm.told("scancel").is_empty(), "{}", stderr(&output));
    slurm.put("squeue", "sleep 30");
    let began = Instant::now();
    assert!(stdout(&slurm.run(&world, &["status"])).contains("did not answer within 2 s"));
    assert!(began.elapsed() < Duration::from_secs(20));
    slurm.put("squeue", "cat \"$0.out\"");
    assert!(stdout(&submit(&["--again"])).contains("as job 43"), "--again adds workers");
    let output = slurm.run(&world, &["cancel", &id]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(slurm.told("scancel"), "41 42\n");
    assert_eq!(slurm.run(&world, &["cancel", "other"]).status.code(), Some(3));
}

/// Submits the world's grid; the test starts its worker manually.
fn submitted(world: &World) -> (PathBuf, String) {
    let slurm = FakeSlurm::new(world);
    let output = slurm.run(world, &["submit", "slurm", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let file = submission(world).join("submission.json");
    let shown = file.display().to_string();
    (file, shown)
}

#[test]
fn worker_runs_the_submitted_grid_despite_later_edits() {
    let alone = World::new();
    let world = World::new();
    alone.runs(&[]);
    let (_, frozen) = submitted(&world);
    fs::remove_file(world.path("grid.yaml")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let store = world.path("data/store").display().to_string();
    let output = world.command(&["worker", &frozen, "--store", &store]).current_dir(elsewhere.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let results = world.path("results").display().to_string();
    let output = world
        .command(&["run", &frozen, "--store", &store, "--stored", "--results", &results])
        .current_dir(elsewhere.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(alone.tables().len() == 3 && alone.tables() == world.tables(), "the tables differ");
}

#[test]
fn worker_refuses_other_program_or_inputs_with_reason() {
    let world = World::new();
    let (file, frozen) = submitted(&world);
    let text = fs::read_to_string(&file).unwrap();
    let mut record: Value = serde_json::from_str(&text).unwrap();
    let other = "0".repeat(64);
    record["binary"]["sha256"] = other.clone().into();
    fs::write(&file, record.to_string()).unwrap();
    assert_worker_refused(&world, &frozen, &["differs from the one that submitted the grid", &other]);
    fs::write(&file, &text).unwrap();
    let corpus = fs::read_to_string(world.path("train.txt")).unwrap();
    fs::write(world.path("train.txt"), corpus + " w1").unwrap();
    assert_worker_refused(&world, &frozen, &["an input has changed since the grid was submitted", "train.txt"]);
}

/// Creates a world with an artifact `mini`, a table of its backbone.
fn with_an_artifact() -> World {
    let world = World::new();
    for folder in ["experiments/backbones", "experiments/profiles"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.write("experiments/backbones/mine.yaml", "path: ../../backbone\nsource: a test\n");
    world.write(
        "experiments/profiles/tiny.yaml",
        "corpora:\n  train-train: {path: ../../train.txt, rule: wikitext2}\n  \
         test: {path: ../../test.jsonl, rule: ptb, limit: 5}\nevaluate:\n  perplexity: [{corpus: test, length: 64}]\n",
    );
    world.write(
        "experiments/mini.yaml",
        "artifact:\n  title: A small table\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
         - {criterion: llm-streamline, recovery: [none, ghosted]}\n    metrics: [ppl_test]\n\
         criterion: llm-streamline\nrecovery: [none, ghosted]\n\
         calibration: {corpus: train-train, sequences: 8, length: 64}\nprofile: tiny\nprofiles:\n  tiny: {backbone: mine, depth: 1}\n",
    );
    world
}

#[test]
fn workers_share_an_artifact_and_report_reads_the_store() {
    let alone = with_an_artifact();
    let world = with_an_artifact();
    assert_eq!(alone.ghostlab(&["reproduce", "mini"]).status.code(), Some(0));
    let slurm = FakeSlurm::new(&world);
    let output = slurm.run(&world, &["submit", "slurm", "mini"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let script = fs::read_to_string(submission(&world).join("job.sh")).unwrap();
    let report = job(&submission(&world), None);
    assert_eq!(report.status.code(), Some(3), "nothing is stored yet: {}", stderr(&report));
    let worker = job(&submission(&world), Some("0"));
    assert_eq!(worker.status.code(), Some(0), "{script}\n{}", stderr(&worker));
    let report = job(&submission(&world), None);
    assert_eq!(report.status.code(), Some(0), "{script}\n{}", stderr(&report));
    for name in ["mini.csv", "mini.parquet", "mini.md", "mini.tex"] {
        assert!(
            fs::read(alone.path("results/mini/tiny").join(name)).unwrap()
                == fs::read(world.path("results/mini/tiny").join(name)).unwrap(),
            "{name} differs"
        );
    }
    assert!(world.path("reports/index.html").exists());
}

#[test]
fn resubmission_after_a_crash_queues_nothing_twice() {
    // Killed after submitting the array or the report, before the job id was saved.
    for (killed, known) in [(1, 1), (2, 2)] {
        let world = World::new();
        let slurm = FakeSlurm::new(&world);
        let submit = ["submit", "slurm", "grid.yaml", "--workers", "2"];
        let mut command = slurm.beside(world.command(&submit));
        let output = command.env("GHOSTLAB_FAULT", format!("kill@handed-over:{killed}")).output().unwrap();
        assert_eq!(output.status.code(), None, "it was not killed: {}", stderr(&output));
        let folder = submission(&world);
        let record: Value = serde_json::from_slice(&fs::read(folder.join("submission.json")).unwrap()).unwrap();
        let comment = format!("ghostlab:{}:{}", record["plan"].as_str().unwrap(), record["id"].as_str().unwrap());
        let jobs = ["41_[0-1]", "42"].map(|id| format!("{id}|a|PENDING|Resources|{comment}\n"));
        fs::write(slurm.0.join("squeue.out"), jobs[..known].concat()).unwrap();
        // The queue is unknown, so nothing is submitted.
        slurm.put("squeue", "exit 1");
        assert_eq!(slurm.run(&world, &submit).status.code(), Some(3));
        slurm.put("squeue", "cat \"$0.out\"");
        let output = slurm.run(&world, &submit);
        assert!(stdout(&output).contains("queued already: job 41_[0-1]"), "{}{}", stdout(&output), stderr(&output));
        let submitted = slurm.told("sbatch");
        let lines: Vec<&str> = submitted.lines().collect();
        assert!(
            lines.len() == 2 && lines[0].contains("--array=0-1%2") && lines[1].contains("afterany:41"),
            "{submitted}"
        );
        let jobs: Value = serde_json::from_slice(&fs::read(folder.join("jobs.json")).unwrap()).unwrap();
        assert_eq!(jobs["jobs"], serde_json::json!([["array", "41"], ["report", "42"]]));
    }
}

#[test]
fn odd_paths_reach_slurm_intact_and_line_breaks_are_refused() {
    let alone = World::new();
    let world = World::new();
    alone.runs(&[]);
    let slurm = FakeSlurm::new(&world);
    let store = world.path("a b%j #'\"$(touch x)/store");
    let run = |store: &Path| {
        let store = store.display().to_string();
        slurm.run(&world, &["submit", "slurm", "grid.yaml", "--store", &store, "--", "--mail-user=a b"])
    };
    let output = run(&store);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let folder = submission_in(&store);
    let words = fs::read_to_string(slurm.0.join("sbatch.words")).unwrap();
    let logs = folder.join("logs").display().to_string().replace('%', "%%");
    for word in [format!("--output={logs}/%A_%a.log"), format!("--output={logs}/%j.log"), "--mail-user=a b".to_owned()]
    {
        assert!(words.lines().any(|line| line == word), "`{word}` is not in\n{words}");
    }
    for task in [Some("0"), None] {
        let output = job(&folder, task);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    assert!(alone.tables() == world.tables() && !world.path("x").exists());
    for (odd, word) in [("a\nb", "a UTF-8 path on one line"), ("a\\b", "without `\\`")] {
        let submitted = slurm.told("sbatch");
        let output = run(&world.path(odd));
        assert!(output.status.code() == Some(2) && stderr(&output).contains(word), "{}", stderr(&output));
        assert_eq!(slurm.told("sbatch"), submitted, "something was submitted");
    }
}

#[test]
fn options_that_override_ours_are_refused_by_line() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    world.write("slurm.yaml", "time: 60\noptions:\n  - --exclude=node7\n  - --comm=mine\n");
    let profile = ["submit", "slurm", "grid.yaml", "--profile-file", "slurm.yaml"];
    let output = slurm.run(&world, &profile);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    for word in ["slurm.yaml, line 4", "`--comm=mine`", "`--comment`"] {
        assert!(stderr(&output).contains(word), "`{word}` is not in {}", stderr(&output));
    }
    let output = slurm.run(&world, &["submit", "slurm", "grid.yaml", "--", "--no-requeue"]);
    assert!(output.status.code() == Some(2) && stderr(&output).contains("`--no-requeue`"), "{}", stderr(&output));
    assert_eq!(slurm.told("sbatch"), "");
}

#[test]
fn a_program_that_is_built_anew_ends_no_job_that_is_queued() {
    let alone = World::new();
    let world = World::new();
    alone.runs(&[]);
    let slurm = FakeSlurm::new(&world);
    let program = world.path("ghostlab");
    fs::copy(env!("CARGO_BIN_EXE_ghostlab"), &program).unwrap();
    let mut command = Command::new(&program);
    command.current_dir(world.folder.path()).args(["submit", "slurm", "grid.yaml"]);
    let output = slurm.beside(command).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    fs::write(&program, "another program").unwrap();
    for task in [Some("0"), None] {
        let output = job(&submission(&world), task);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    assert!(alone.tables().len() == 3 && alone.tables() == world.tables(), "the tables differ");
}

#[test]
fn what_a_job_refused_stands_in_status_until_it_works() {
    let world = World::new();
    let (slurm, (_, _)) = (world.path("bin"), submitted(&world));
    let slurm = FakeSlurm(slurm);
    let corpus = fs::read_to_string(world.path("train.txt")).unwrap();
    fs::write(world.path("train.txt"), corpus.clone() + " w1").unwrap();
    for task in [Some("0"), None] {
        let output = job(&submission(&world), task);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
    let shown = stdout(&slurm.run(&world, &["status"]));
    let logs = submission(&world).join("logs");
    for word in [
        "grid on cpu",
        "f32",
        "job 5_0 ended with exit code 2",
        "job 6 ended with exit code 2",
        "an input has changed since the grid was submitted",
        "train.txt",
        &logs.join("5_0.log").display().to_string(),
    ] {
        assert!(shown.contains(word), "`{word}` is not in\n{shown}");
    }
    let status: Value = serde_json::from_str(&stdout(&slurm.run(&world, &["status", "--json"]))).unwrap();
    let ends = &status["answer"]["submissions"][0]["ends"];
    assert_eq!((&ends[0]["job"], &ends[0]["exit_code"]), (&"5_0".into(), &2.into()), "{status}");
    fs::write(world.path("train.txt"), corpus).unwrap();
    let output = job(&submission(&world), Some("0"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown = stdout(&slurm.run(&world, &["status"]));
    assert!(!shown.contains("job 5_0 ended") && shown.contains("job 6 ended"), "{shown}");
    assert!(shown.contains(") on cpu"), "a plan says its engine: {shown}");
}

#[test]
fn report_replaces_a_later_run_only_with_equal_settings() {
    let world = World::new();
    submitted(&world);
    let worked = job(&submission(&world), Some("0"));
    assert_eq!(worked.status.code(), Some(0), "{}", stderr(&worked));
    // Meanwhile the same grid is run manually, with its original paths; the frozen grid has absolute ones.
    let printed = world.runs(&[]);
    let first = report(&world);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    assert!(!stderr(&first).contains("other settings"), "{}", stderr(&first));
    assert!(!printed.contains("other settings") && !world.runs(&[]).contains("other settings"));
    let again = report(&world);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));

    // The grid is changed and run manually while the submission waits for its report.
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("depth: [1, 2]", "depth: [2]"));
    world.runs(&[]);
    let tables = world.tables();
    let refused = report(&world);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    for word in ["a later run with other settings", "results/grid", "other depth", "--results", "job.sh"] {
        assert!(stderr(&refused).contains(word), "`{word}` is not in {}", stderr(&refused));
    }
    assert!(tables.len() == 3 && world.tables() == tables, "the later run's tables are unchanged");
    // A result from other bytes under the same path is stale too, although the bytes are restored.
    let text = fs::read(world.path("test.jsonl")).unwrap();
    let other = "{\"text\": \"w1 w2 w3\"}\n".repeat(60);
    world.write("grid.yaml", &grid);
    world.write("test.jsonl", other);
    world.runs(&[]);
    world.write("test.jsonl", text);
    let refused = report(&world);
    assert!(
        refused.status.code() == Some(2) && stderr(&refused).contains("other corpora.test"),
        "{}",
        stderr(&refused)
    );
    // Results from before the submission are replaced as usual.
    world.runs(&[]);
    let last = report(&world);
    assert_eq!(last.status.code(), Some(0), "{}", stderr(&last));
}

fn report(world: &World) -> Output {
    job(&submission(world), None)
}

/// Sets the times of everything below a folder to `hours` ago.
fn aged(folder: &Path, hours: u64) {
    let then = std::time::SystemTime::now() - Duration::from_secs(3600 * hours);
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            aged(&entry, hours);
        }
        fs::File::open(&entry).unwrap().set_modified(then).unwrap();
    }
}

#[test]
fn frozen_program_stays_while_a_job_may_run_it() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    let output = slurm.run(&world, &["submit", "slurm", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let programs = world.path("data/store/programs");
    // A program that belongs to no submission, next to a foreign file.
    let orphan = programs.join("ab".repeat(32));
    let theirs = programs.join("mine");
    for folder in [&orphan, &theirs] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("ghostlab"), "a program").unwrap();
    }
    assert_eq!(collect_garbage(&slurm, &world, &[]), 0, "all are new");
    assert!(stdout(&slurm.run(&world, &["cache", "ls"])).contains("programs of submitted jobs: 2"));
    let id = submission(&world).file_name().unwrap().to_string_lossy().into_owned();
    let record: Value = serde_json::from_slice(&fs::read(submission(&world).join("submission.json")).unwrap()).unwrap();
    let queued = format!("42|a|PENDING|Dependency|ghostlab:{}:{id}\n", record["plan"].as_str().unwrap());
    aged(&programs, 48);
    aged(&submission(&world), 48);
    fs::write(slurm.0.join("squeue.out"), queued).unwrap();
    assert_eq!(collect_garbage(&slurm, &world, &["--kind", "scores"]), 0, "it is of no kind");
    assert_eq!(collect_garbage(&slurm, &world, &["--older", "3"]), 0);
    assert_eq!(
        (collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()),
        (1.into(), 2),
        "the report is queued"
    );
    assert!(!orphan.exists() && theirs.join("ghostlab").exists());
    // The queue does not answer, so the state of the job is unknown.
    slurm.put("squeue", "exit 1");
    slurm.put("sacct", "exit 1");
    assert_eq!((collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()), (0.into(), 2));
    slurm.put("squeue", "exit 0");
    // An unreadable submission may belong to any program.
    let unread = world.path("data/store/submissions/other");
    fs::create_dir(&unread).unwrap();
    fs::write(unread.join("submission.json"), "{\"format\": 99}").unwrap();
    assert_eq!((collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()), (0.into(), 2));
    fs::remove_dir_all(&unread).unwrap();
    // A job that ended recently may be queued again.
    fs::write(submission(&world).join("logs/41_0.log"), "done").unwrap();
    assert_eq!((collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()), (0.into(), 2));
    aged(&programs, 48);
    aged(&submission(&world), 48);
    assert_eq!((collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()), (1.into(), 1));
    // The program is frozen again when needed.
    let output = slurm.run(&world, &["submit", "slurm", "grid.yaml", "--again"]);
    assert_eq!((output.status.code(), fs::read_dir(&programs).unwrap().count()), (Some(0), 2), "{}", stderr(&output));
}

fn collect_garbage(slurm: &FakeSlurm, world: &World, more: &[&str]) -> Value {
    let output = slurm.run(world, &[&["cache", "gc", "--yes", "--json"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_str::<Value>(&stdout(&output)).unwrap()["answer"]["programs"]["count"].clone()
}

fn assert_worker_refused(world: &World, frozen: &str, words: &[&str]) {
    let output = world.ghostlab(&["worker", frozen]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    words.iter().for_each(|word| assert!(stderr(&output).contains(word), "`{word}` is not in {}", stderr(&output)));
}
