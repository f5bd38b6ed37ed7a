//! Tests for submissions to a scheduler. A submission contains only the required files, is not duplicated, and does not
//! depend on later changes to the grid or the program.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

mod frozen_program;
mod job;
mod script;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::output::{stderr, stdout};
use crate::common::world::World;
use serde_json::Value;

/// Scripts that imitate Slurm's commands. Each records its calls in a file next to the script.
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

    fn logged_calls(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(format!("{name}.log"))).unwrap_or_default()
    }

    fn run(&self, world: &World, arguments: &[&str]) -> Output {
        self.with_fake_slurm(world.command(arguments)).output().unwrap()
    }

    /// Puts these scripts before Slurm's programs on a command's PATH.
    fn with_fake_slurm(&self, mut command: Command) -> Command {
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

/// Runs the script of a submission as Slurm would, as the array task `task` or as the report. In bash, the `#SBATCH`
/// options are comments.
fn run_job(submission: &Path, task: Option<&str>) -> Output {
    let mut command = Command::new("bash");
    command.arg(submission.join("job.sh")).current_dir("/");
    match task {
        Some(task) => command.env("SLURM_JOB_ID", "5").env("SLURM_ARRAY_JOB_ID", "5").env("SLURM_ARRAY_TASK_ID", task),
        None => command.env("SLURM_JOB_ID", "6").env_remove("SLURM_ARRAY_JOB_ID").env_remove("SLURM_ARRAY_TASK_ID"),
    };
    command.output().unwrap()
}

fn run_submit(slurm: &FakeSlurm, world: &World, more: &[&str]) -> Output {
    let submit = ["submit", "slurm", "grid.yaml", "--dry-run", "--device", "cpu"];
    slurm.run(world, &[&submit[..], more].concat())
}

#[test]
fn second_submit_lists_the_queue_without_adding_jobs() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    let submit_with =
        |more: &[&str]| slurm.run(&world, &[&["submit", "slurm", "grid.yaml", "--workers", "2"], more].concat());
    let output = submit_with(&[]);
    assert!(stdout(&output).contains("as job 41, the report as job 42"), "{}{}", stdout(&output), stderr(&output));
    let submitted = slurm.logged_calls("sbatch");
    let lines: Vec<&str> = submitted.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("--array=0-1%2") && lines[1].contains("afterany:41"), "{submitted}");
    let folder = submission(&world);
    let id = folder.file_name().unwrap().to_string_lossy().into_owned();
    let record: Value = serde_json::from_slice(&fs::read(folder.join("submission.json")).unwrap()).unwrap();
    let plan = record["plan"].as_str().unwrap().to_owned();
    let all = fs::read_to_string(folder.join("job.sh")).unwrap() + &record.to_string();
    assert!(!all.contains("hf_very_secret"), "the submission contains a credential");
    let comment = format!("ghostlab:{plan}:{id}");
    // The queue also lists a job (43) that does not belong to this submission.
    let queue = format!(
        "41_[0-1]|a|PENDING|Resources|{comment}\n42|a|PENDING|Dependency|{comment}\n43|own|RUNNING|None|(null)\n"
    );
    fs::write(slurm.0.join("squeue.out"), queue).unwrap();
    let output = submit_with(&[]);
    let text = stdout(&output);
    assert!(text.contains("already queued: job 41_[0-1]") && text.contains("no jobs submitted"), "{text}");
    assert_eq!(slurm.logged_calls("sbatch").lines().count(), 2);
    let shown = stdout(&slurm.run(&world, &["status"]));
    assert!(shown.contains("job 41_[0-1]: pending (Resources)") && !shown.contains("job 43"), "{shown}");
    // If the queue does not answer, nothing is submitted. `status` works without it.
    slurm.put("squeue", "echo slurm_load_jobs error >&2; exit 1");
    slurm.put("sacct", "exit 1");
    let output = submit_with(&[]);
    assert!(
        output.status.code() == Some(3) && stderr(&output).contains("slurm_load_jobs error"),
        "{}",
        stderr(&output)
    );
    let shown = slurm.run(&world, &["status"]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(stdout(&shown).contains("the scheduler is not available"), "{}", stdout(&shown));
    let output = slurm.run(&world, &["cancel"]);
    assert!(output.status.code() == Some(3) && slurm.logged_calls("scancel").is_empty(), "{}", stderr(&output));
    slurm.put("squeue", "sleep 30");
    let began = Instant::now();
    assert!(stdout(&slurm.run(&world, &["status"])).contains("timed out after 2 s"));
    assert!(began.elapsed() < Duration::from_secs(20));
    slurm.put("squeue", "cat \"$0.out\"");
    assert!(stdout(&submit_with(&["--again"])).contains("as job 43"), "`--again` submitted no workers");
    let output = slurm.run(&world, &["cancel", &id]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(slurm.logged_calls("scancel"), "41 42\n");
    assert_eq!(slurm.run(&world, &["cancel", "other"]).status.code(), Some(3));
}

/// Submits the world's grid. Returns the submission file and its path as text. Tests pass this path to a worker that
/// they start manually.
fn submit_grid(world: &World) -> (PathBuf, String) {
    let slurm = FakeSlurm::new(world);
    let output = slurm.run(world, &["submit", "slurm", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let file = submission(world).join("submission.json");
    let shown = file.display().to_string();
    (file, shown)
}

#[test]
fn resubmission_after_a_crash_queues_no_duplicate_jobs() {
    // `submit` is killed after it has submitted the array or the report, but before it saves the job id.
    for (killed, known) in [(1, 1), (2, 2)] {
        let world = World::new();
        let slurm = FakeSlurm::new(&world);
        let submit = ["submit", "slurm", "grid.yaml", "--workers", "2"];
        let mut command = slurm.with_fake_slurm(world.command(&submit));
        let output = command.env("GHOSTLAB_FAULT", format!("kill@handed-over:{killed}")).output().unwrap();
        assert_eq!(output.status.code(), None, "submit was not killed: {}", stderr(&output));
        let folder = submission(&world);
        let record: Value = serde_json::from_slice(&fs::read(folder.join("submission.json")).unwrap()).unwrap();
        let comment = format!("ghostlab:{}:{}", record["plan"].as_str().unwrap(), record["id"].as_str().unwrap());
        let jobs = ["41_[0-1]", "42"].map(|id| format!("{id}|a|PENDING|Resources|{comment}\n"));
        fs::write(slurm.0.join("squeue.out"), jobs[..known].concat()).unwrap();
        // The contents of the queue are unknown, so nothing is submitted.
        slurm.put("squeue", "exit 1");
        assert_eq!(slurm.run(&world, &submit).status.code(), Some(3));
        slurm.put("squeue", "cat \"$0.out\"");
        let output = slurm.run(&world, &submit);
        assert!(stdout(&output).contains("already queued: job 41_[0-1]"), "{}{}", stdout(&output), stderr(&output));
        let submitted = slurm.logged_calls("sbatch");
        let lines: Vec<&str> = submitted.lines().collect();
        assert!(
            lines.len() == 2 && lines[0].contains("--array=0-1%2") && lines[1].contains("afterany:41"),
            "{submitted}"
        );
        let jobs: Value = serde_json::from_slice(&fs::read(folder.join("jobs.json")).unwrap()).unwrap();
        assert_eq!(jobs["jobs"], serde_json::json!([["array", "41"], ["report", "42"]]));
    }
}
