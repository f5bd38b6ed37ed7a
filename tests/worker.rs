//! Tests that workers share a grid, produce the same results as a single run, share one limit on failed attempts, and
//! exit on request.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::fs;
use std::process::{Child, Output, Stdio};

use crate::common::output::{computed_tokens, parse_events, send_signal, stderr, stdout, wait_until};
use crate::common::world::World;

fn spawn_worker(world: &World, arguments: &[&str]) -> Child {
    world.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn run_status(world: &World) -> String {
    let output = world.ghostlab(&["status"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

fn count_entries(world: &World, folder: &str) -> usize {
    fs::read_dir(world.path("data/store").join(folder)).map_or(0, Iterator::count)
}

#[test]
fn three_workers_match_the_tables_of_one_process() {
    let alone = World::large();
    let world = World::large();
    let total = computed_tokens(&parse_events(&alone.run(&["--events"])));
    let workers = [(); 3].map(|()| spawn_worker(&world, &["worker", "grid.yaml", "--events"]));
    let outputs = workers.map(|worker| worker.wait_with_output().unwrap());
    for output in &outputs {
        assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
        assert!(stderr(output).contains("all 31 cells complete"), "{}", stderr(output));
    }
    assert!(!world.path("results").exists(), "the worker wrote results");
    let work: Vec<u64> = outputs.iter().map(|output| computed_tokens(&parse_events(output))).collect();
    assert!(work.iter().sum::<u64>() as f64 <= 1.1 * total as f64, "{work:?} of {total}");
    let shown = run_status(&world);
    assert!(shown.contains("shared by workers") && shown.contains("31 of 31 cells complete"), "{shown}");
    assert!(shown.contains("0 workers running (3 ended)"), "{shown}");
    let report = world.run(&["--stored", "--events"]);
    assert_eq!(report.status.code(), Some(0), "{}", stderr(&report));
    assert!(parse_events(&report).iter().all(|event| event["event"] != "started"), "the report computed something");
    assert!(alone.tables().len() == 4 && alone.tables() == world.tables(), "the tables differ");
    for folder in ["drafts", "claims", "processes", "journals", "attempts"] {
        assert_eq!(count_entries(&world, folder), 0, "{folder} of workers remain");
    }
}

#[test]
fn jobs_of_a_stopped_worker_are_continued_by_another() {
    let total = computed_tokens(&parse_events(&World::large().run(&["--events"])));
    for name in ["-USR1", "-TERM", "-INT"] {
        let world = World::large();
        let mut worker = spawn_worker(&world, &["worker", "grid.yaml", "--events"]);
        wait_until("no chunk was written", || {
            assert!(worker.try_wait().unwrap().is_none(), "the worker ended before it had written a chunk");
            world.count_journals() > 0
        });
        send_signal(&worker, name);
        let first = worker.wait_with_output().unwrap();
        assert_eq!(first.status.code(), Some(75), "{name}: {}", stderr(&first));
        assert!(stderr(&first).contains("leases are released"), "{}", stderr(&first));
        assert_eq!((count_entries(&world, "claims"), count_entries(&world, "processes")), (0, 0), "{name}");
        let shown = run_status(&world);
        assert!(shown.contains("1 interrupted"), "{shown}");
        let second = world.ghostlab(&["worker", "grid.yaml", "--events"]);
        assert_eq!(second.status.code(), Some(0), "{}", stderr(&second));
        // An interrupted shard of a calibration pass (8 × 64 tokens) starts over. All scores are kept.
        assert!(
            computed_tokens(&parse_events(&first)) + computed_tokens(&parse_events(&second)) <= total + 8 * 64,
            "{name}: work was lost"
        );
    }
}

#[test]
fn worker_near_its_time_limit_stores_a_batch_before_exiting() {
    let total = computed_tokens(&parse_events(&World::large().run(&["--events"])));
    let world = World::large();
    let mut ends = 0;
    let mut done = 0;
    // Each worker gets the signal as early as possible, as if its time limit were shorter than the advance warning of
    // the scheduler.
    loop {
        let worker = spawn_worker(&world, &["worker", "grid.yaml", "--events"]);
        wait_until("no process record", || count_entries(&world, "processes") > 0);
        send_signal(&worker, "-USR1");
        let output = worker.wait_with_output().unwrap();
        done += computed_tokens(&parse_events(&output));
        if output.status.code() == Some(0) {
            break;
        }
        ends += 1;
        assert_eq!(output.status.code(), Some(75), "{}", stderr(&output));
        assert!(
            parse_events(&output).iter().any(|event| event["event"] == "kept"),
            "the worker stored nothing: {}",
            stderr(&output)
        );
        assert!(!stderr(&output).contains("nothing was stored"), "{}", stderr(&output));
        if ends == 3 {
            let last = world.ghostlab(&["worker", "grid.yaml", "--events"]);
            assert_eq!(last.status.code(), Some(0), "{}", stderr(&last));
            done += computed_tokens(&parse_events(&last));
            break;
        }
    }
    assert!(ends > 0, "the worker was never interrupted");
    // Each interruption makes one shard of a calibration pass (8 × 64 tokens) start over.
    assert!(done <= total + ends * 8 * 64, "{done} of {total}: work was lost");
}

#[test]
fn job_of_a_killed_worker_is_taken_over() {
    let alone = World::large();
    let world = World::large();
    alone.run_ok(&[]);
    let mut command = world.command(&["worker", "grid.yaml"]);
    let killed = command.env("GHOSTLAB_FAULT", "kill@score:1").output().unwrap();
    assert_eq!(killed.status.code(), None, "{}", stderr(&killed));
    let shown = run_status(&world);
    assert!(shown.contains("0 workers running (1 died)"), "{shown}");
    let workers = [(); 2].map(|()| spawn_worker(&world, &["worker", "grid.yaml"]));
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    assert_eq!(world.run(&["--stored"]).status.code(), Some(0));
    assert!(alone.tables() == world.tables(), "the tables differ");
    assert_eq!(count_entries(&world, "attempts"), 0, "attempts at finished work remain");
}

#[test]
fn job_that_kills_its_workers_is_abandoned_with_reason() {
    let world = World::new();
    for death in 0..5 {
        let mut command = world.command(&["worker", "grid.yaml"]);
        let killed = command.env("GHOSTLAB_FAULT", "kill@score:1").output().unwrap();
        assert_eq!(killed.status.code(), None, "{death}: {}", stderr(&killed));
    }
    let output = world.ghostlab(&["worker", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("5 processes died during this job"), "{}", stderr(&output));
    let shown = run_status(&world);
    assert!(shown.contains("tiny on test@64 its worker died 5 times"), "{shown}");
    // `run` retries the failed jobs, and clears their record of failures.
    world.run_ok(&[]);
    assert!(!run_status(&world).contains("died 5 times"));
}

#[test]
fn deaths_after_progress_do_not_exhaust_the_retry_limit() {
    let world = World::new();
    world.run_ok(&["--set", "depth=1", "--set", "recovery=none"]);
    // Kill each worker after it has stored some progress of the calibration, as can happen on preemptible nodes.
    let mut deaths = 0;
    let output = loop {
        let mut command = world.command(&["worker", "grid.yaml", "--set", "calibration.seed=3"]);
        let output = command.env("GHOSTLAB_FAULT", "kill@commit:2").output().unwrap();
        let calibrating =
            fs::read_dir(world.path("data/store/claims")).unwrap().map(|entry| entry.unwrap().file_name());
        deaths += usize::from(calibrating.into_iter().any(|name| name.to_string_lossy().starts_with("calibrate-")));
        if output.status.code().is_some() || deaths > 30 {
            break output;
        }
    };
    assert!(deaths > 5, "too few deaths to exhaust the retries: {deaths}");
    let output = if output.status.success() {
        output
    } else {
        world.ghostlab(&["worker", "grid.yaml", "--set", "calibration.seed=3"])
    };
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stderr(&output).contains("died during this job"), "{}", stderr(&output));
    world.run_ok(&["--set", "calibration.seed=3"]);
}

/// Creates a world with a cell whose repair fails, because there is no MLP before layer 0.
fn world_with_failing_cell() -> World {
    let world = World::new();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("criterion: [llm-streamline]", "criterion: [{name: explicit, layers: [0]}]");
    let grid = grid.replace("depth: [1, 2]", "depth: [1]").replace("linearpatch-diag", "replaceme-ls");
    world.write("grid.yaml", grid);
    world
}

#[test]
fn failing_cell_is_retried_up_to_the_limit_with_its_reason() {
    let world = world_with_failing_cell();
    for (retries, attempts) in [("0", 1), ("0", 1), ("1", 2), ("1", 2)] {
        let output = world.ghostlab(&["worker", "grid.yaml", "--retries", retries]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stderr(&output).contains("1 of 5 cells have no result"), "{}", stderr(&output));
        assert_eq!(count_attempts(&world), attempts, "--retries {retries}");
    }
    let shown = run_status(&world);
    assert!(shown.contains("replaceme-ls") && shown.contains("failed 2 times"), "{shown}");
    let report = world.run(&["--stored"]);
    assert_eq!(report.status.code(), Some(4), "{}", stderr(&report));
    let table = fs::read_to_string(world.path("results/grid/results.csv")).unwrap();
    let alone = world_with_failing_cell();
    assert_eq!(alone.run(&[]).status.code(), Some(4));
    let table_alone = fs::read_to_string(alone.path("results/grid/results.csv")).unwrap();
    assert_eq!(failure_reason(&table), failure_reason(&table_alone), "the reason differs from that of `run`");
}

fn count_attempts(world: &World) -> usize {
    let all = fs::read_dir(world.path("data/store/attempts")).into_iter().flatten().flatten();
    all.map(|entry| fs::read_dir(entry.path()).unwrap().count()).sum::<usize>()
}

fn failure_reason(table: &str) -> String {
    table.lines().find(|line| line.contains("replaceme-ls")).unwrap().to_owned()
}

#[test]
fn failed_job_is_retried_within_the_retry_limit() {
    let world = World::new();
    let output = run_with_fault(&world, "panic@score:1,panic@score:2", "1");
    assert!(output.status.code() == Some(0) && stderr(&output).contains("a job panicked"), "{}", stderr(&output));
    assert!(stderr(&output).contains("9 of 9 cells have no result"), "{}", stderr(&output));
    let shown = run_status(&world);
    assert!(shown.contains("tiny on test@64 failed 2 times") && shown.contains("injected fault"), "{shown}");
    let output = run_with_fault(&world, "", "2");
    assert!(stderr(&output).contains("all 9 cells complete"), "{}", stderr(&output));
    assert!(!run_status(&world).contains("injected fault"));
}

fn run_with_fault(world: &World, fault: &str, retries: &str) -> Output {
    let mut command = world.command(&["worker", "grid.yaml", "--retries", retries]);
    command.env("GHOSTLAB_FAULT", fault).output().unwrap()
}

#[test]
fn idle_worker_exits_after_its_idle_limit() {
    let world = World::new();
    world.run_ok(&["--set", "depth=1", "--set", "recovery=none"]);
    let store = world.path("data/store");
    let mut one = world.command(&["worker", "grid.yaml"]);
    // Stop the worker during the calibration, while it holds the lease.
    let mut one = one.env("GHOSTLAB_FAULT", "stop@commit:1").stderr(Stdio::null()).spawn().unwrap();
    wait_until("no lease was taken", || {
        let mut names = fs::read_dir(store.join("claims")).into_iter().flatten().flatten();
        names.any(|entry| entry.file_name().to_string_lossy().starts_with("calibrate-"))
    });
    let output = world.ghostlab(&["worker", "grid.yaml", "--idle-exit", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("all remaining jobs are leased by other workers"), "{}", stderr(&output));
    let shown = run_status(&world);
    assert!(shown.contains("1 worker running (1 ended)"), "{shown}");
    send_signal(&one, "-KILL");
    one.wait().unwrap();
}

#[test]
fn workers_start_with_different_backbones() {
    let world = World::new();
    for (name, byte) in [("second", 1), ("third", 2)] {
        fs::create_dir(world.path(name)).unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            let mut bytes = fs::read(world.path("backbone").join(file)).unwrap();
            let last = bytes.len() - 4;
            bytes[last] ^= if file.ends_with("safetensors") { byte } else { 0 };
            fs::write(world.path(name).join(file), bytes).unwrap();
        }
    }
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid =
        grid.replace("tiny: {path: backbone}", "tiny: {path: backbone}\n  b: {path: second}\n  c: {path: third}");
    world.write("grid.yaml", grid.replace("backbone: [tiny]", "backbone: [tiny, b, c]"));
    // Stop each worker during its first calibration so that all of them run at the same time.
    let workers = [0, 1, 2].map(|_| {
        let mut command = world.command(&["worker", "grid.yaml", "--events"]);
        command.env("GHOSTLAB_FAULT", "stop@activations:1");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let process = format!("/proc/{}/stat", child.id());
        wait_until("the worker does not stop", || fs::read_to_string(&process).is_ok_and(|stat| stat.contains(") T ")));
        child
    });
    let claims = fs::read_dir(world.path("data/store/claims")).unwrap().map(|e| e.unwrap().file_name());
    let mut lease_names: Vec<String> =
        claims.map(|name| name.into_string().unwrap()).filter(|n| n.starts_with("at-")).collect();
    lease_names.sort();
    assert!(lease_names.len() == 3 && lease_names.iter().all(|name| name.ends_with("-0")), "{lease_names:?}");
    workers.iter().for_each(|worker| send_signal(worker, "-CONT"));
    let mut first_backbones = Vec::new();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let events = parse_events(&output);
        let label = events.iter().find(|event| event["event"] == "started").unwrap()["label"].clone();
        first_backbones.push(label.as_str().unwrap().split(' ').nth(1).unwrap().to_owned());
    }
    first_backbones.sort();
    assert_eq!(first_backbones, ["b", "c", "tiny"]);
}

#[test]
fn full_disk_stops_worker_with_an_error_and_leaves_no_leases() {
    let world = World::large();
    let script = "trap '' XFSZ; ulimit -f 40; exec \"$0\" worker grid.yaml";
    let mut command = std::process::Command::new("sh");
    let command = command.args(["-c", script, env!("CARGO_BIN_EXE_ghostlab")]).current_dir(world.folder.path());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("error: cannot write") && !stderr(&output).contains("panicked"),
        "{}",
        stderr(&output)
    );
    assert_eq!(count_entries(&world, "claims"), 0);
    let output = world.ghostlab(&["worker", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}
