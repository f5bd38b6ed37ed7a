//! Workers: they share a grid and agree, fail together no more often than they may, leave when they are asked to, and are
//! submitted with what they need and no more.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it lacks")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use common::world::World;
use serde_json::Value;

const LONG: Duration = Duration::from_secs(120);

fn started(world: &World, arguments: &[&str]) -> Child {
    world.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn events(output: &Output) -> Vec<Value> {
    said(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Tokens that a process computed itself.
fn computed(events: &[Value]) -> u64 {
    let own = events.iter().filter(|event| event["event"] == "advanced" && event["elsewhere"] == false);
    own.map(|event| event["tokens"].as_u64().unwrap()).sum()
}

fn status(world: &World) -> String {
    let output = world.ghostlab(&["status"]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    said(&output)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn journals(world: &World) -> usize {
    let folders = || fs::read_dir(world.path("data/store/journals")).into_iter().flatten().flatten();
    folders().flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten()).count()
}

fn left_in(world: &World, folder: &str) -> usize {
    fs::read_dir(world.path("data/store").join(folder)).map_or(0, Iterator::count)
}

fn signal(child: &Child, name: &str) {
    assert!(std::process::Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn three_workers_make_the_tables_of_one_process_and_share_its_work() {
    let (alone, world) = (World::large(), World::large());
    let whole = computed(&events(&alone.run(&["--events"])));
    let workers = [(); 3].map(|()| started(&world, &["worker", "grid.yaml", "--events"]));
    let outputs = workers.map(|worker| worker.wait_with_output().unwrap());
    for output in &outputs {
        assert_eq!(output.status.code(), Some(0), "{}", log(output));
        assert!(log(output).contains("all 31 cells are stored"), "{}", log(output));
    }
    assert!(!world.path("results").exists(), "a worker writes no results");
    let work: Vec<u64> = outputs.iter().map(|output| computed(&events(output))).collect();
    assert!(work.iter().sum::<u64>() as f64 <= 1.1 * whole as f64, "{work:?} of {whole}");
    let shown = status(&world);
    assert!(shown.contains("shared by workers") && shown.contains("31 of 31 cells complete"), "{shown}");
    assert!(shown.contains("0 workers alive (3 ended)"), "{shown}");
    let report = world.run(&["--stored", "--events"]);
    assert_eq!(report.status.code(), Some(0), "{}", log(&report));
    assert!(events(&report).iter().all(|event| event["event"] != "started"), "the report computes nothing");
    assert!(alone.tables().len() == 4 && alone.tables() == world.tables(), "the tables differ");
    for folder in ["drafts", "claims", "processes", "journals", "attempts"] {
        assert_eq!(left_in(&world, folder), 0, "{folder} of workers are left");
    }
}

#[test]
fn a_worker_that_is_asked_to_end_gives_back_what_it_has_and_another_goes_on() {
    let whole = computed(&events(&World::large().run(&["--events"])));
    for name in ["-USR1", "-TERM", "-INT"] {
        let world = World::large();
        let mut worker = started(&world, &["worker", "grid.yaml", "--events"]);
        until("no chunk was written", || {
            assert!(worker.try_wait().unwrap().is_none(), "it ended before it had written a chunk");
            journals(&world) > 0
        });
        signal(&worker, name);
        let first = worker.wait_with_output().unwrap();
        assert_eq!(first.status.code(), Some(75), "{name}: {}", log(&first));
        assert!(log(&first).contains("its claims are given back"), "{}", log(&first));
        assert_eq!((left_in(&world, "claims"), left_in(&world, "processes")), (0, 0), "{name}");
        let shown = status(&world);
        assert!(shown.contains("1 asked to end before"), "{shown}");
        let second = world.ghostlab(&["worker", "grid.yaml", "--events"]);
        assert_eq!(second.status.code(), Some(0), "{}", log(&second));
        // A shard of a calibration pass that was cut off begins anew; whatever was scored is there.
        assert!(computed(&events(&first)) + computed(&events(&second)) <= whole + 8 * 64, "{name}: work was lost");
    }
}

#[test]
fn a_worker_whose_time_is_nearly_up_when_it_begins_stores_a_batch_before_it_ends() {
    let whole = computed(&events(&World::large().run(&["--events"])));
    let world = World::large();
    let mut ends = 0;
    let mut done = 0;
    // As with a time limit below the scheduler's warning: each is told as soon as it can be told.
    loop {
        let worker = started(&world, &["worker", "grid.yaml", "--events"]);
        until("no process", || left_in(&world, "processes") > 0);
        signal(&worker, "-USR1");
        let output = worker.wait_with_output().unwrap();
        done += computed(&events(&output));
        if output.status.code() == Some(0) {
            break;
        }
        ends += 1;
        assert_eq!(output.status.code(), Some(75), "{}", log(&output));
        assert!(events(&output).iter().any(|event| event["event"] == "kept"), "it stored nothing: {}", log(&output));
        assert!(!log(&output).contains("stored nothing"), "{}", log(&output));
        if ends == 3 {
            let last = world.ghostlab(&["worker", "grid.yaml", "--events"]);
            assert_eq!(last.status.code(), Some(0), "{}", log(&last));
            done += computed(&events(&last));
            break;
        }
    }
    assert!(ends > 0, "it was never asked to end before all was done");
    // A shard of a calibration pass that was cut off begins anew, each time.
    assert!(done <= whole + ends * 8 * 64, "{done} of {whole}: work was lost");
}

#[test]
fn what_a_killed_worker_was_at_is_taken_over_and_its_death_is_known() {
    let (alone, world) = (World::large(), World::large());
    alone.runs(&[]);
    let mut command = world.command(&["worker", "grid.yaml"]);
    let killed = command.env("GHOSTLAB_FAULT", "kill@score:1").output().unwrap();
    assert_eq!(killed.status.code(), None, "{}", log(&killed));
    let shown = status(&world);
    assert!(shown.contains("0 workers alive (1 died)"), "{shown}");
    let workers = [(); 2].map(|()| started(&world, &["worker", "grid.yaml"]));
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    }
    assert_eq!(world.run(&["--stored"]).status.code(), Some(0));
    assert!(alone.tables() == world.tables(), "the tables differ");
    assert_eq!(left_in(&world, "attempts"), 0, "what was done all the same is no failure");
}

#[test]
fn a_job_that_takes_its_workers_down_is_given_up_with_its_reason() {
    let world = World::new();
    for death in 0..5 {
        let mut command = world.command(&["worker", "grid.yaml"]);
        let killed = command.env("GHOSTLAB_FAULT", "kill@score:1").output().unwrap();
        assert_eq!(killed.status.code(), None, "{death}: {}", log(&killed));
    }
    let output = world.ghostlab(&["worker", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(log(&output).contains("5 processes died at it"), "{}", log(&output));
    let shown = status(&world);
    assert!(shown.contains("tiny on test@64 its worker died 5 times"), "{shown}");
    // Who runs it by himself tries again, and then nothing is left of it.
    world.runs(&[]);
    assert!(!status(&world).contains("died 5 times"));
}

/// Cells that fail where they are solved: no MLP stands before layer 0.
fn with_a_bad_cell() -> World {
    let world = World::new();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("criterion: [llm-streamline]", "criterion: [{name: explicit, layers: [0]}]");
    let grid = grid.replace("depth: [1, 2]", "depth: [1]").replace("linearpatch-diag", "replaceme-ls");
    world.write("grid.yaml", grid);
    world
}

#[test]
fn a_cell_that_fails_is_tried_as_often_as_all_may_and_told_with_its_reason() {
    let world = with_a_bad_cell();
    let tried = |world: &World| {
        let all = fs::read_dir(world.path("data/store/attempts")).into_iter().flatten().flatten();
        all.map(|entry| fs::read_dir(entry.path()).unwrap().count()).sum::<usize>()
    };
    for (retries, attempts) in [("0", 1), ("0", 1), ("1", 2), ("1", 2)] {
        let output = world.ghostlab(&["worker", "grid.yaml", "--retries", retries]);
        assert_eq!(output.status.code(), Some(0), "{}", log(&output));
        assert!(log(&output).contains("1 of 5 cells have no result"), "{}", log(&output));
        assert_eq!(tried(&world), attempts, "--retries {retries}");
    }
    let shown = status(&world);
    assert!(shown.contains("replaceme-ls") && shown.contains("failed 2 times"), "{shown}");
    let report = world.run(&["--stored"]);
    assert_eq!(report.status.code(), Some(4), "{}", log(&report));
    let table = fs::read_to_string(world.path("results/grid/results.csv")).unwrap();
    let alone = with_a_bad_cell();
    assert_eq!(alone.run(&[]).status.code(), Some(4));
    let reason = |table: &str| table.lines().find(|line| line.contains("replaceme-ls")).unwrap().to_owned();
    let own = fs::read_to_string(alone.path("results/grid/results.csv")).unwrap();
    assert_eq!(reason(&table), reason(&own), "the reason is that of a run");
}

#[test]
fn a_job_that_fails_is_tried_again_within_the_retries_of_all() {
    let world = World::new();
    let failing = |fault: &str, retries: &str| {
        let mut command = world.command(&["worker", "grid.yaml", "--retries", retries]);
        command.env("GHOSTLAB_FAULT", fault).output().unwrap()
    };
    let output = failing("panic@score:1,panic@score:2", "1");
    assert!(output.status.code() == Some(0) && log(&output).contains("a job panicked"), "{}", log(&output));
    assert!(log(&output).contains("9 of 9 cells have no result"), "{}", log(&output));
    let shown = status(&world);
    assert!(shown.contains("tiny on test@64 failed 2 times") && shown.contains("fault on purpose"), "{shown}");
    // One more, and nothing fails this time.
    let output = failing("", "2");
    assert!(log(&output).contains("all 9 cells are stored"), "{}", log(&output));
    assert!(!status(&world).contains("fault on purpose"));
}

#[test]
fn a_worker_leaves_when_it_waits_for_longer_than_it_may() {
    let world = World::new();
    world.runs(&["--set", "depth=1", "--set", "recovery=none"]);
    let store = world.path("data/store");
    let mut one = world.command(&["worker", "grid.yaml"]);
    // It stops in the calibration, and its claim with it.
    let mut one = one.env("GHOSTLAB_FAULT", "stop@commit:1").stderr(Stdio::null()).spawn().unwrap();
    let claimed = || {
        let mut names = fs::read_dir(store.join("claims")).into_iter().flatten().flatten();
        names.any(|entry| entry.file_name().to_string_lossy().starts_with("calibrate-"))
    };
    until("no claim", claimed);
    let output = world.ghostlab(&["worker", "grid.yaml", "--idle-exit", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(log(&output).contains("this worker left"), "{}", log(&output));
    let shown = status(&world);
    assert!(shown.contains("1 workers alive (1 ended)"), "{shown}");
    signal(&one, "-KILL");
    one.wait().unwrap();
}

#[test]
fn workers_begin_at_backbones_of_their_own() {
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
    // Each is stopped in its first calibration, so that all are there at once.
    let stopped = |_| {
        let mut command = world.command(&["worker", "grid.yaml", "--events"]);
        command.env("GHOSTLAB_FAULT", "stop@activations:1");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let process = format!("/proc/{}/stat", child.id());
        until("it does not stop", || fs::read_to_string(&process).is_ok_and(|stat| stat.contains(") T ")));
        child
    };
    let workers = [0, 1, 2].map(stopped);
    let claims = fs::read_dir(world.path("data/store/claims")).unwrap().map(|e| e.unwrap().file_name());
    let mut seats: Vec<String> =
        claims.map(|name| name.into_string().unwrap()).filter(|n| n.starts_with("at-")).collect();
    seats.sort();
    assert!(seats.len() == 3 && seats.iter().all(|seat| seat.ends_with("-0")), "{seats:?}");
    let first = |worker: &Child| signal(worker, "-CONT");
    workers.iter().for_each(first);
    let mut begun = Vec::new();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let events = events(&output);
        let label = events.iter().find(|event| event["event"] == "started").unwrap()["label"].clone();
        begun.push(label.as_str().unwrap().split(' ').nth(1).unwrap().to_owned());
    }
    begun.sort();
    assert_eq!(begun, ["b", "c", "tiny"]);
}

#[test]
fn a_store_without_room_ends_a_worker_with_the_reason() {
    let world = World::large();
    let script = "trap '' XFSZ; ulimit -f 40; exec \"$0\" worker grid.yaml";
    let mut command = std::process::Command::new("sh");
    let command = command.args(["-c", script, env!("CARGO_BIN_EXE_ghostlab")]).current_dir(world.folder.path());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", log(&output));
    assert!(log(&output).contains("error: cannot write") && !log(&output).contains("panicked"), "{}", log(&output));
    assert_eq!(left_in(&world, "claims"), 0);
    let output = world.ghostlab(&["worker", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
}

/// Slurm's commands as a script plays them: what each was told stands in a file beside it.
struct FakeSlurm(PathBuf);

impl FakeSlurm {
    fn new(world: &World) -> Self {
        let folder = world.path("bin");
        fs::create_dir(&folder).unwrap();
        let fake = Self(folder);
        fake.put("sbatch", "n=$(cat \"$0.n\" 2>/dev/null || echo 40); n=$((n+1)); echo $n > \"$0.n\"; echo $n");
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
        let path = std::env::var("PATH").unwrap();
        let mut command = world.command(arguments);
        command.env("PATH", format!("{}:{path}", self.0.display())).env("HF_TOKEN", "hf_very_secret");
        command.output().unwrap()
    }
}

fn submission(world: &World) -> PathBuf {
    let mut folders = fs::read_dir(world.path("data/store/submissions")).unwrap();
    folders.next().unwrap().unwrap().path()
}

#[test]
fn a_submission_is_one_readable_script_with_what_the_plan_needs_and_no_secret() {
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
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    let script = said(&output);
    for line in [
        "--array=0-2%3",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@120",
        "--dependency=afterany:ARRAY",
        "#SBATCH --open-mode=append",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=2:00:00",
        "#SBATCH --nice=5",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --export=PATH",
        "#SBATCH --comment=ghostlab:",
        "#SBATCH --job-name=ghostlab-grid-",
        "module load x",
        "    exec /",
        "--stored",
        "--retries 1",
    ] {
        assert!(script.contains(line), "`{line}` is not in\n{script}");
    }
    assert!(!script.contains("hf_very_secret") && !script.contains("HF_TOKEN"), "{script}");
    assert!(script.contains("#SBATCH --mem=") && !script.contains("--gres"), "{script}");
    assert_eq!(slurm.told("sbatch"), "", "a dry run submits nothing");
    assert!(!log(&output).contains("warning"), "{}", log(&output));
    let short = slurm.run(&world, &["submit", "slurm", "grid.yaml", "--dry-run", "--", "--time=2"]);
    assert!(log(&short).contains("warning: a time limit of") && log(&short).contains("or more"), "{}", log(&short));
    let checked = std::process::Command::new("bash").args(["-n", "/dev/stdin"]).stdin(Stdio::piped()).spawn();
    let mut checked = checked.unwrap();
    std::io::Write::write_all(&mut checked.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(checked.wait().unwrap().success(), "bash does not read it");
    // A GPU is asked for where it computes, of a type that the largest backbone fits into.
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
    let script = said(&output);
    assert!(
        script.contains("#SBATCH --gres=gpu:small:1") && script.contains("--device cuda"),
        "{script}{}",
        log(&output)
    );
}

#[test]
fn a_second_submit_says_what_is_queued_and_adds_nothing_unless_told() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    let submit =
        |more: &[&str]| slurm.run(&world, &[&["submit", "slurm", "grid.yaml", "--workers", "2"], more].concat());
    let output = submit(&[]);
    assert!(said(&output).contains("as job 41, the report as job 42"), "{}{}", said(&output), log(&output));
    let told = slurm.told("sbatch");
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("--array=0-1%2") && lines[1].contains("afterany:41"), "{told}");
    let folder = submission(&world);
    let id = folder.file_name().unwrap().to_string_lossy().into_owned();
    let record: Value = serde_json::from_slice(&fs::read(folder.join("submission.json")).unwrap()).unwrap();
    let plan = record["plan"].as_str().unwrap().to_owned();
    let all = fs::read_to_string(folder.join("job.sh")).unwrap() + &record.to_string();
    assert!(!all.contains("hf_very_secret"), "a credential stands in what was submitted");
    let comment = format!("ghostlab:{plan}:{id}");
    // Somebody's own jobs stand beside it, one with a number of ours in another array.
    let queue = format!(
        "41_[0-1]|a|PENDING|Resources|{comment}\n42|a|PENDING|Dependency|{comment}\n43|own|RUNNING|None|(null)\n"
    );
    fs::write(slurm.0.join("squeue.out"), queue).unwrap();
    let output = submit(&[]);
    let text = said(&output);
    assert!(text.contains("queued already: job 41_[0-1]") && text.contains("nothing is added"), "{text}");
    assert_eq!(slurm.told("sbatch").lines().count(), 2);
    let shown = said(&slurm.run(&world, &["status"]));
    assert!(shown.contains("job 41_[0-1]: pending (Resources)") && !shown.contains("job 43"), "{shown}");
    // Where it does not answer, nothing is added either, and status does without.
    slurm.put("squeue", "echo slurm_load_jobs error >&2; exit 1");
    slurm.put("sacct", "exit 1");
    let output = submit(&[]);
    assert!(output.status.code() == Some(3) && log(&output).contains("slurm_load_jobs error"), "{}", log(&output));
    let shown = slurm.run(&world, &["status"]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(said(&shown).contains("the scheduler tells nothing"), "{}", said(&shown));
    let output = slurm.run(&world, &["cancel"]);
    assert!(output.status.code() == Some(3) && slurm.told("scancel").is_empty(), "{}", log(&output));
    slurm.put("squeue", "sleep 30");
    let began = Instant::now();
    assert!(said(&slurm.run(&world, &["status"])).contains("did not answer within 2 s"));
    assert!(began.elapsed() < Duration::from_secs(20));
    slurm.put("squeue", "cat \"$0.out\"");
    assert!(said(&submit(&["--again"])).contains("as job 43"), "--again adds workers");
    // It ends its own and nothing else.
    let output = slurm.run(&world, &["cancel", &id]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert_eq!(slurm.told("scancel"), "41 42\n");
    assert_eq!(slurm.run(&world, &["cancel", "other"]).status.code(), Some(3));
}

/// A submission of the world's grid, whose worker a test starts by hand.
fn submitted(world: &World) -> (PathBuf, String) {
    let slurm = FakeSlurm::new(world);
    let output = slurm.run(world, &["submit", "slurm", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    let file = submission(world).join("submission.json");
    let shown = file.display().to_string();
    (file, shown)
}

#[test]
fn a_worker_works_on_what_was_submitted_whatever_becomes_of_the_grid_s_file() {
    let (alone, world) = (World::new(), World::new());
    alone.runs(&[]);
    let (_, frozen) = submitted(&world);
    fs::remove_file(world.path("grid.yaml")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let store = world.path("data/store").display().to_string();
    let run = |arguments: &[&str]| world.command(arguments).current_dir(elsewhere.path()).output().unwrap();
    let output = run(&["worker", &frozen, "--store", &store]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    let results = world.path("results").display().to_string();
    let output = run(&["run", &frozen, "--store", &store, "--stored", "--results", &results]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(alone.tables().len() == 3 && alone.tables() == world.tables(), "the tables differ");
}

#[test]
fn a_worker_refuses_another_program_and_other_inputs_with_the_reason() {
    let world = World::new();
    let (file, frozen) = submitted(&world);
    let refused = |words: &[&str]| {
        let output = world.ghostlab(&["worker", &frozen]);
        assert_eq!(output.status.code(), Some(2), "{}", log(&output));
        words.iter().for_each(|word| assert!(log(&output).contains(word), "`{word}` is not in {}", log(&output)));
    };
    let text = fs::read_to_string(&file).unwrap();
    let mut record: Value = serde_json::from_str(&text).unwrap();
    let other = "0".repeat(64);
    record["binary"]["sha256"] = other.clone().into();
    fs::write(&file, record.to_string()).unwrap();
    refused(&["not the one that the grid was submitted with", &other]);
    fs::write(&file, &text).unwrap();
    let corpus = fs::read_to_string(world.path("train.txt")).unwrap();
    fs::write(world.path("train.txt"), corpus + " w1").unwrap();
    refused(&["an input has changed since the grid was submitted", "train.txt"]);
}

/// A world with an artifact `mini`, a table of the world's backbone.
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
fn an_artifact_is_shared_by_workers_and_reported_from_what_they_stored() {
    let (alone, world) = (with_an_artifact(), with_an_artifact());
    assert_eq!(alone.ghostlab(&["reproduce", "mini"]).status.code(), Some(0));
    let slurm = FakeSlurm::new(&world);
    let output = slurm.run(&world, &["submit", "slurm", "mini"]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    let script = fs::read_to_string(submission(&world).join("job.sh")).unwrap();
    // The script itself, as the array and then as the report; what it asks of Slurm is comments to bash.
    let job = |array: bool| {
        let mut command = std::process::Command::new("bash");
        command.arg(submission(&world).join("job.sh")).current_dir("/").env_remove("SLURM_ARRAY_TASK_ID");
        if array {
            command.env("SLURM_ARRAY_TASK_ID", "0");
        }
        command.output().unwrap()
    };
    let report = job(false);
    assert_eq!(report.status.code(), Some(4), "nothing is stored yet: {}", log(&report));
    let worker = job(true);
    assert_eq!(worker.status.code(), Some(0), "{script}\n{}", log(&worker));
    let report = job(false);
    assert_eq!(report.status.code(), Some(0), "{script}\n{}", log(&report));
    for name in ["mini.csv", "mini.parquet", "mini.md", "mini.tex"] {
        let read = |world: &World| fs::read(world.path("results/mini/tiny").join(name)).unwrap();
        assert!(read(&alone) == read(&world), "{name} differs");
    }
    assert!(world.path("reports/index.html").exists());
}
