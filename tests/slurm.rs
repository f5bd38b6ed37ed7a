//! Tests for workers under a real Slurm on a single machine, which `tools/slurm.sh start` sets up. Covers cluster
//! events, and compares the tables with those computed by a single process. `SLURM_CONF` must have the value that the
//! script prints.
//!
//! Skipped with a message if Slurm is not running. `GHOSTLAB_SLURM_TESTS=require` makes the tests fail instead.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print why they are skipped"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::common::output::combined_output;
use crate::common::read_record;
use crate::common::world::World;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(200);

/// Lock that is held exclusively by tests that change the whole cluster.
static CLUSTER: RwLock<()> = RwLock::new(());

macro_rules! shared_cluster {
    () => {
        let Some(()) = slurm() else { return };
        let _cluster = CLUSTER.read().unwrap_or_else(PoisonError::into_inner);
    };
}
macro_rules! exclusive_cluster {
    () => {
        let Some(()) = slurm() else { return };
        let _cluster = CLUSTER.write().unwrap_or_else(PoisonError::into_inner);
    };
}

/// Returns `Some` if a Slurm started by `tools/slurm.sh` is running.
fn slurm() -> Option<()> {
    let is_private = std::env::var("SLURM_CONF")
        .is_ok_and(|conf| fs::read_to_string(conf).is_ok_and(|text| text.contains("ClusterName=ghostlab\n")));
    if is_private {
        return Some(());
    }
    let required = std::env::var("GHOSTLAB_SLURM_TESTS").is_ok_and(|value| value == "require");
    assert!(!required, "SLURM_CONF does not belong to a Slurm that tools/slurm.sh started");
    eprintln!("skipped: SLURM_CONF does not point to a Slurm started by tools/slurm.sh");
    None
}

fn run_tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", combined_output(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Creates a world with a text that is scored in forty chunks, and with a Slurm profile file.
fn create_world() -> World {
    let world = World::new();
    let mut words = String::new();
    for i in 0..80_000_usize {
        words.push_str(&format!("w{} ", (i * i + 31 * i + i / 7) % 299));
    }
    world.write("long.jsonl", format!("{}\n", json!({"text": words})));
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("limit: 5}", "limit: 5}\n  long: {path: long.jsonl, rule: ptb}");
    world.write(
        "grid.yaml",
        grid.replace("{corpus: test, length: 64}", "{corpus: test, length: 64}\n    - {corpus: long, length: 64}"),
    );
    world.write("slurm.yaml", "export: [GHOSTLAB_FAULT]\n");
    world
}

/// Job ids of a submission: the worker array and the report.
struct SubmittedJobs {
    array: String,
    report: String,
}

/// Submits the world's grid. The scoring of each chunk is delayed by `delay_ms` milliseconds.
fn submit(world: &World, workers: &str, delay_ms: u32, more: &[&str], sbatch: &[&str]) -> SubmittedJobs {
    let arguments = [
        &["submit", "slurm", "grid.yaml", "--workers", workers, "--profile-file", "slurm.yaml"],
        more,
        &["--"],
        sbatch,
    ];
    let mut command = world.command(&arguments.concat());
    let output =
        command.env("GHOSTLAB_FAULT", format!("slow@score:{delay_ms}")).env("HF_TOKEN", "hf_secret").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", combined_output(&output));
    let output = combined_output(&output);
    SubmittedJobs { array: number_after(&output, " as job "), report: number_after(&output, "the report as job ") }
}

fn number_after(output: &str, after: &str) -> String {
    let rest = &output[output.find(after).unwrap() + after.len()..];
    rest.chars().take_while(char::is_ascii_digit).collect::<String>()
}

/// Returns the state and the exit code of each task in a job.
fn task_states(job: &str) -> Vec<(String, String)> {
    let shown = run_tool("scontrol", &["--oneliner", "show", "job", job]);
    shown.lines().map(|line| (parse_field(line, "JobState"), parse_field(line, "ExitCode"))).collect()
}

fn parse_field(line: &str, name: &str) -> String {
    let word = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    word.unwrap_or_default().to_owned()
}

fn wait_for_job(job: &str) {
    wait_until(&format!("job {job} does not end"), || {
        task_states(job)
            .iter()
            .all(|(state, _)| !["PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"].contains(&&**state))
    });
}

fn submission_folder(world: &World) -> PathBuf {
    fs::read_dir(world.path("data/store/submissions")).unwrap().next().unwrap().unwrap().path()
}

fn read_logs(world: &World) -> String {
    let folders = fs::read_dir(world.path("data/store/submissions")).unwrap();
    let files = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path().join("logs")).unwrap());
    files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect()
}

/// Waits for the report, and compares its tables with those computed by a single process.
fn assert_same_tables(world: &World, submitted: &SubmittedJobs) {
    wait_for_job(&submitted.array);
    wait_for_job(&submitted.report);
    let report = task_states(&submitted.report);
    assert_eq!(report, [("COMPLETED".to_owned(), "0:0".to_owned())], "{}", read_logs(world));
    let alone = create_world();
    alone.run_ok(&[]);
    assert!(alone.tables().len() == 3 && alone.tables() == world.tables(), "the tables differ: {}", read_logs(world));
    assert_eq!(world.ghostlab(&["cache", "verify"]).status.code(), Some(0));
    assert!(!read_logs(world).contains("hf_secret"));
}

fn read_run_records(world: &World) -> Vec<Value> {
    let files = fs::read_dir(world.path("data/store/runs")).unwrap();
    files.filter_map(|file| read_record(&file.unwrap().path())).collect()
}

/// Returns the total work done by all processes that used the store, in FLOPs according to the cost model.
fn flops_done(world: &World) -> f64 {
    read_run_records(world).iter().map(|record| record["flops_done"].as_f64().unwrap()).sum()
}

/// Waits until at least `count` workers have scored a chunk.
fn wait_for_workers(world: &World, count: usize) {
    wait_until(
        &format!("fewer than {count} workers scored a chunk: {}", combined_output(&world.ghostlab(&["status"]))),
        || world.count_journals() >= count,
    );
}

#[test]
fn three_workers_share_chunks_and_match_a_single_process() {
    shared_cluster!();
    let world = create_world();
    let submitted = submit(&world, "3", 200, &[], &[]);
    wait_for_workers(&world, 2);
    let status = combined_output(&world.ghostlab(&["status"]));
    assert!(status.contains(" running") && status.contains(&format!("job {}_", submitted.array)), "{status}");
    let again = world.ghostlab(&["submit", "slurm", "grid.yaml", "--profile-file", "slurm.yaml"]);
    assert!(combined_output(&again).contains("no jobs submitted"), "{}", combined_output(&again));
    assert_same_tables(&world, &submitted);
    let alone = create_world();
    alone.run_ok(&[]);
    let work = flops_done(&world);
    let total = flops_done(&alone);
    assert!(work <= 1.1 * total, "{work} of {total}");
    let workers = read_run_records(&world).iter().filter(|record| record["flops_done"].as_f64() > Some(0.0)).count();
    assert!(workers >= 2, "only one worker computed");
    let script = fs::read_to_string(submission_folder(&world).join("job.sh")).unwrap();
    assert!(!script.contains("hf_secret") && !script.contains("HF_TOKEN"), "{script}");
    let status = combined_output(&world.ghostlab(&["status"]));
    assert!(status.contains("9 of 9 cells complete") && status.contains("no jobs left in the queue"), "{status}");
}

#[test]
fn requeued_worker_loses_no_work() {
    shared_cluster!();
    let world = create_world();
    let submitted = submit(&world, "2", 300, &[], &[]);
    wait_for_workers(&world, 2);
    run_tool("scontrol", &["requeue", &format!("{}_1", submitted.array)]);
    assert_same_tables(&world, &submitted);
    assert!(read_logs(&world).contains("leases are released"), "{}", read_logs(&world));
}

#[test]
fn worker_at_its_time_limit_is_requeued_and_resumes() {
    shared_cluster!();
    let world = create_world();
    // The time limit is three minutes. The signal comes two minutes before it, that is, after one minute.
    let submitted = submit(&world, "1", 2000, &[], &["--time=3"]);
    assert_same_tables(&world, &submitted);
    let logs = read_logs(&world);
    assert!(logs.contains("requeued by Slurm"), "{logs}");
    assert!(logs.contains("chunks cached"), "{logs}");
}

#[test]
fn only_the_named_array_task_is_requeued() {
    shared_cluster!();
    let world = create_world();
    let submitted = submit(&world, "2", 300, &[], &[]);
    wait_for_workers(&world, 2);
    // Slurm also uses the array's id as the job id of one of its tasks.
    let (named, [_, other, ..]) = match &array_tasks(&submitted.array)[..] {
        [a, b] if a[0] == submitted.array => (a[1].clone(), b.clone()),
        [a, b] => (b[1].clone(), a.clone()),
        other => panic!("{other:?}"),
    };
    run_tool("scancel", &["--batch", "--signal=TERM", &format!("{}_{other}", submitted.array)]);
    wait_until("the job does not end", || {
        task_state(&submitted.array, &other) == Some(("FAILED".to_owned(), "0".to_owned()))
    });
    run_tool("scancel", &["--batch", "--signal=USR1", &format!("{}_{named}", submitted.array)]);
    wait_until("the job is not requeued", || {
        task_state(&submitted.array, &named).is_some_and(|(_, restarts)| restarts == "1")
    });
    assert_same_tables(&world, &submitted);
    assert_eq!(
        task_state(&submitted.array, &other),
        Some(("FAILED".to_owned(), "0".to_owned())),
        "a finished job was requeued"
    );
    assert_eq!(task_state(&submitted.array, &named), Some(("COMPLETED".to_owned(), "1".to_owned())));
}

fn array_tasks(array: &str) -> Vec<[String; 4]> {
    let shown = run_tool("scontrol", &["--oneliner", "show", "job", array]);
    shown
        .lines()
        .map(|line| ["JobId", "ArrayTaskId", "JobState", "Restarts"].map(|name| parse_field(line, name)))
        .collect::<Vec<_>>()
}

fn task_state(array: &str, task: &str) -> Option<(String, String)> {
    array_tasks(array).into_iter().find(|fields| fields[1] == task).map(|[_, _, state, restarts]| (state, restarts))
}

#[test]
fn resubmitting_after_a_kill_creates_no_second_job_array() {
    shared_cluster!();
    let world = create_world();
    let arguments = ["submit", "slurm", "grid.yaml", "--workers", "2", "--profile-file", "slurm.yaml"];
    let killed =
        world.command(&arguments).env("GHOSTLAB_FAULT", slow_with_fault("kill@handed-over:1")).output().unwrap();
    assert_eq!(killed.status.code(), None, "{}", combined_output(&killed));
    let again = world.command(&arguments).env("GHOSTLAB_FAULT", slow_with_fault("")).output().unwrap();
    assert!(combined_output(&again).contains("no jobs submitted"), "{}", combined_output(&again));
    let jobs: Value = serde_json::from_slice(&fs::read(submission_folder(&world).join("jobs.json")).unwrap()).unwrap();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 2);
    assert_same_tables(&world, &SubmittedJobs { array: job_id(&jobs, 0, "array"), report: job_id(&jobs, 1, "report") });
}

fn slow_with_fault(fault: &str) -> String {
    format!("slow@score:100,{fault}")
}

fn job_id(jobs: &Value, position: usize, what: &str) -> String {
    assert_eq!(jobs["jobs"][position][0], what, "{jobs}");
    jobs["jobs"][position][1].as_str().unwrap().to_owned()
}

#[test]
fn jobs_of_cancelled_and_killed_workers_are_taken_over() {
    shared_cluster!();
    let world = create_world();
    let submitted = submit(&world, "3", 300, &[], &[]);
    wait_for_workers(&world, 3);
    run_tool("scancel", &[&format!("{}_1", submitted.array)]);
    let job = format!("{}_2", submitted.array);
    let record = read_run_records(&world).into_iter().find(|record| record["scheduler_job"] == *job).unwrap();
    let pid = record["process"].as_str().unwrap().split('-').next().unwrap().to_owned();
    run_tool("kill", &["-9", &pid]);
    assert_same_tables(&world, &submitted);
    let states: Vec<String> = task_states(&submitted.array).into_iter().map(|(state, _)| state).collect();
    assert!(states.contains(&"CANCELLED".to_owned()) && states.contains(&"COMPLETED".to_owned()), "{states:?}");
    let status = combined_output(&world.ghostlab(&["status"]));
    assert!(status.contains("1 interrupted, 1 died"), "{status}");
}

#[test]
fn workers_of_a_rebooted_node_are_requeued() {
    exclusive_cluster!();
    let world = create_world();
    let submitted = submit(&world, "2", 300, &[], &[]);
    wait_for_workers(&world, 2);
    let node = run_tool("sinfo", &["--noheader", "-o", "%n"]);
    let node = format!("nodename={}", node.trim());
    run_tool("scontrol", &["update", &node, "state=down", "reason=test"]);
    wait_until("the jobs of the node still run", || {
        task_states(&submitted.array).iter().all(|(state, _)| state != "RUNNING")
    });
    // The node may already have resumed by itself, so ignore errors.
    Command::new("scontrol").args(["update", &node, "state=resume"]).output().unwrap();
    wait_until("the node does not return", || {
        let state = run_tool("sinfo", &["--noheader", "-o", "%T"]);
        ["idle", "mixed", "allocated"].contains(&state.trim())
    });
    assert_same_tables(&world, &submitted);
}

#[test]
fn workers_continue_without_the_slurm_controller() {
    exclusive_cluster!();
    let world = create_world();
    let submitted = submit(&world, "2", 200, &[], &[]);
    wait_for_workers(&world, 2);
    let conf = PathBuf::from(std::env::var("SLURM_CONF").unwrap());
    let pid = fs::read_to_string(conf.with_file_name("slurmctld.pid")).unwrap();
    // Terminate the controller gracefully. If it were killed, it would lose jobs that it has not saved yet.
    run_tool("kill", &["-TERM", pid.trim()]);
    wait_until("the controller does not end", || !Command::new("squeue").output().unwrap().status.success());
    let status = combined_output(&world.ghostlab(&["status"]));
    assert!(status.contains("the scheduler is not available") && status.contains(" running"), "{status}");
    wait_until("the grid does not complete", || {
        combined_output(&world.ghostlab(&["status"])).contains("9 of 9 cells complete")
    });
    assert!(Command::new("slurmctld").env("PATH", "/usr/sbin:/usr/bin:/bin").status().unwrap().success());
    wait_until("the controller does not return", || Command::new("squeue").output().unwrap().status.success());
    assert_same_tables(&world, &submitted);
}

#[test]
fn concurrent_grids_on_a_shared_store_complete() {
    shared_cluster!();
    let world = create_world();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("other.yaml", grid.replace("depth: [1, 2]", "depth: [2]"));
    let submitted = submit(&world, "2", 100, &[], &[]);
    let output = world.ghostlab(&["submit", "slurm", "other.yaml", "--workers", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", combined_output(&output));
    assert_same_tables(&world, &submitted);
    wait_until("the other grid has no table", || world.path("results/other/results.csv").exists());
    let alone = create_world();
    alone.run_ok(&["--set", "depth=2", "--set", "name=other"]);
    let folder = fs::read_dir(alone.path("results")).unwrap().next().unwrap().unwrap().path();
    assert!(result_table(&folder) == result_table(&world.path("results/other")), "the other grid's table differs");
}

fn result_table(path: &Path) -> Vec<u8> {
    fs::read(path.join("results.csv")).unwrap()
}

#[test]
fn full_disk_or_other_program_stops_a_worker_with_reason() {
    shared_cluster!();
    let world = create_world();
    // Activations and journals (files of scored chunks) are larger than the file size limit.
    world.write("slurm.yaml", "setup: ['trap \"\" XFSZ', 'ulimit -f 8']\n");
    let submitted = submit(&world, "1", 0, &[], &[]);
    wait_for_job(&submitted.array);
    wait_for_job(&submitted.report);
    assert_eq!(task_states(&submitted.array), [("FAILED".to_owned(), "3:0".to_owned())], "{}", read_logs(&world));
    assert!(read_logs(&world).contains("error: cannot write"), "{}", read_logs(&world));

    let other = create_world();
    let submitted = submit(&other, "1", 0, &[], &["--hold"]);
    let file = submission_folder(&other).join("submission.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    record["binary"]["sha256"] = "0".repeat(64).into();
    fs::write(&file, record.to_string()).unwrap();
    run_tool("scontrol", &["release", &submitted.array]);
    wait_for_job(&submitted.array);
    assert_eq!(task_states(&submitted.array), [("FAILED".to_owned(), "2:0".to_owned())], "{}", read_logs(&other));
    assert!(read_logs(&other).contains("differs from the one that submitted the grid"), "{}", read_logs(&other));
    let status = combined_output(&other.ghostlab(&["status"]));
    for word in
        [&format!("job {}_0 ended with exit code 2", submitted.array), "differs from the one that submitted the grid"]
    {
        assert!(status.contains(word), "`{word}` is not in {status}");
    }
    let named = status.lines().find_map(|line| line.trim().strip_prefix("log: ")).unwrap();
    assert!(fs::read_to_string(named).unwrap().contains("differs from the one"), "{named}");
    assert!(combined_output(&other.ghostlab(&["cancel"])).contains(&format!("cancelled job {}", submitted.report)));
}

#[test]
fn cancel_ends_only_jobs_of_its_store() {
    shared_cluster!();
    let (world, other) = (create_world(), create_world());
    let submission = submit(&world, "2", 500, &[], &[]);
    let theirs = submit(&other, "1", 500, &[], &[]);
    wait_for_workers(&world, 1);
    let output = world.ghostlab(&["cancel"]);
    assert_eq!(output.status.code(), Some(0), "{}", combined_output(&output));
    wait_for_job(&submission.array);
    wait_for_job(&submission.report);
    assert!(
        is_cancelled(&submission.array) && is_cancelled(&submission.report),
        "{:?}",
        task_states(&submission.array)
    );
    assert_eq!(fs::read_dir(world.path("data/store/claims")).unwrap().count(), 0, "leases were not released");
    assert_same_tables(&other, &theirs);
}

fn is_cancelled(job: &str) -> bool {
    task_states(job).iter().all(|(state, _)| state == "CANCELLED")
}
