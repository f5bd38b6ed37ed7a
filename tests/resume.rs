//! Tests that work is neither lost nor repeated. Covers killed and repeated runs, concurrent processes, and changes
//! that do or do not affect results.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::output::{computed_tokens, events_of_kind, parse_events};
use crate::common::world::World;
use ghostlab::pipeline::stage;
use ghostlab_store::Store;
use serde_json::Value;

fn spawn_run(world: &World, more: &[&str]) -> Child {
    let mut command = world.command(&[&["run", "grid.yaml"], more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Fault points at which successive runs are killed. The counts start when a run resumes. The first kills happen while
/// texts, activations and operators are written. The later ones happen at chunks of the three scoring jobs. Every kill
/// is reached, however many chunks a journal contains.
const KILLS: &str = "draft:1 commit:1 record:1 commit:3 draft:6 commit:8 record:10 commit:20 \
                     score:1 journal:1 score:1 journal:1 score:1 commit:2";

/// Runs the grid until it is killed at a fault point (see `crates/store/src/fault.rs`).
fn kill_run_at(world: &World, point: &str) {
    let mut command = world.command(&["run", "grid.yaml"]);
    let output = command.env("GHOSTLAB_FAULT", format!("kill@{point}")).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), None, "{point} was not reached: {log}");
}

fn wait_for_a_journal(world: &World, child: &mut Child) {
    let began = Instant::now();
    while !list_journals(world).any(|folder| std::fs::read_dir(folder.path()).is_ok_and(|files| files.count() > 0)) {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it had written a chunk");
        assert!(began.elapsed() < Duration::from_secs(60), "no chunk was written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn list_journals(world: &World) -> impl Iterator<Item = std::fs::DirEntry> {
    std::fs::read_dir(world.path("data/store/journals")).into_iter().flatten().flatten()
}

#[test]
fn repeatedly_killed_run_gives_identical_tables() {
    let undisturbed = World::large();
    let world = World::large();
    undisturbed.run_ok(&[]);
    for point in KILLS.split(' ') {
        kill_run_at(&world, point);
        assert!(world.tables().is_empty(), "{point}: the killed run wrote a table");
    }
    world.run_ok(&[]);
    assert_eq!(undisturbed.tables().len(), 4);
    assert!(undisturbed.tables() == world.tables(), "the tables differ");
    let verified = world.ghostlab(&["cache", "verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stdout));
    for left in ["drafts", "claims", "processes", "journals"] {
        let count = std::fs::read_dir(world.path("data/store").join(left)).map_or(0, Iterator::count);
        assert_eq!(count, 0, "{left} of dead processes remain");
    }
}

#[test]
fn killed_run_is_shown_as_dead_and_resumes() {
    let world = World::large();
    let mut child = spawn_run(&world, &[]);
    wait_for_a_journal(&world, &mut child);
    let running = String::from_utf8(world.ghostlab(&["status"]).stdout).unwrap();
    assert!(running.contains("): running") && running.contains("% of the work done"), "{running}");
    child.kill().unwrap();
    child.wait().unwrap();
    let dead = String::from_utf8(world.ghostlab(&["status"]).stdout).unwrap();
    assert!(dead.contains("): died: run the same command to resume"), "{dead}");
    let again = world.run(&["--events"]);
    let undisturbed = World::large().run(&["--events"]);
    let again = computed_tokens(&parse_events(&again));
    let total = computed_tokens(&parse_events(&undisturbed));
    assert!(again < total, "{again} of {total} tokens were recomputed");
    let complete = String::from_utf8(world.ghostlab(&["status", "--all"]).stdout).unwrap();
    assert!(complete.contains("): complete") && complete.contains("31 of 31 cells complete"), "{complete}");
    assert!(complete.contains("): died"), "{complete}");
}

#[test]
fn killed_calibration_resumes_at_the_next_shard() {
    let undisturbed = long_world();
    let world = long_world();
    let full_run = parse_events(&undisturbed.run(&["--events"]));
    // The similarity sums are the sixth and last object of the first shard. Kill the run just after they are stored.
    kill_run_at(&world, "commit:7");
    let stored = Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap().entries();
    assert!(
        stored
            .iter()
            .any(|entry| entry.object.as_ref().is_ok_and(|object| object.payloads().any(|name| name == "sums.f64"))),
        "no shard was stored"
    );
    let again = parse_events(&world.run(&["--events"]));
    assert_eq!(calibrated_tokens(&full_run), 320 * 1024);
    assert!(
        calibrated_tokens(&again) < calibrated_tokens(&full_run),
        "the pass restarted: {} tokens",
        calibrated_tokens(&again)
    );
    assert!(undisturbed.tables() == world.tables(), "the tables differ");
    // Until a criterion has selected layers, the activations around every possible cut are kept as drafts. The drafts of
    // cuts that were not selected have been deleted.
    assert_eq!(undisturbed.path("data/store").join("drafts").read_dir().unwrap().count(), 0);
}

/// Creates a world whose calibration is stored in five shards of 64 sequences each. A sequence has 1024 tokens.
fn long_world() -> World {
    let world = World::new();
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("sequences: 8, length: 64", "sequences: 320, length: 1024"));
    world
}

fn calibrated_tokens(events: &[Value]) -> u64 {
    let jobs = events_of_kind(events, "started").into_iter();
    let passes = jobs.filter(|job| {
        let label = job["label"].as_str().unwrap();
        label.starts_with("calibrate") && !label.contains(": solve")
    });
    passes.map(|job| job["tokens"].as_u64().unwrap()).sum()
}

#[cfg(unix)]
#[test]
fn ctrl_c_finishes_and_stores_the_current_chunk() {
    let world = World::large();
    let mut child = spawn_run(&world, &["--events"]);
    wait_for_a_journal(&world, &mut child);
    let interrupt = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{log}");
    assert!(log.contains("run the same command to resume"), "{log}");
    let first = parse_events(&output);
    assert_eq!(events_of_kind(&first, "ended")[0]["interrupted"], true);
    let shown = String::from_utf8(world.ghostlab(&["status"]).stdout).unwrap();
    assert!(shown.contains("): interrupted"), "{shown}");
    let second = parse_events(&world.run(&["--events"]));
    let total = computed_tokens(&parse_events(&World::large().run(&["--events"])));
    // An interrupted shard of a calibration pass (8 × 64 tokens) starts over. All scores are kept.
    assert!(computed_tokens(&first) + computed_tokens(&second) <= total + 8 * 64, "chunks were computed twice");
}

#[test]
fn second_run_is_fully_cached_after_touch_or_move() {
    let world = World::large();
    world.run_ok(&[]);
    let tables = world.tables();
    let again = |world: &World| {
        let events = parse_events(&world.run(&["--events"]));
        assert!(events_of_kind(&events, "started").is_empty(), "{events:?}");
        assert_eq!(events_of_kind(&events, "planned")[0]["complete"], 31);
        assert!(world.tables() == tables);
    };
    again(&world);
    // Comments, blank lines and the order of keys do not change what a grid means.
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("# A comment.\n", "# Another one.\n\n\n");
    let corpora = &grid[grid.find("corpora").unwrap()..grid.find("tasks").unwrap()];
    let rest = grid.clone();
    world.write("grid.yaml", rest.replacen(corpora, "", 1) + corpora);
    again(&world);
    // Set modification times far in the future.
    for name in ["backbone/model.safetensors", "backbone/config.json", "train.txt", "data/store/store.json"] {
        let file = std::fs::File::options().append(true).open(world.path(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() + Duration::from_secs(3_000_000_000)).unwrap();
    }
    again(&world);
    // Move the whole folder together with the store.
    let moved = World { folder: tempfile::tempdir().unwrap() };
    copy_folder(world.folder.path(), moved.folder.path());
    again(&moved);
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn changed_option_reruns_only_its_planned_cells() {
    let world = World::large();
    world.run_ok(&[]);
    let change = "recovery=[none, prune-and-comp, linearpatch-diag, ghosted, {name: replaceme-ls, alpha: 0.5}]";
    let plan = world.ghostlab(&["plan", "grid.yaml", "--all", "--set", change]);
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert!(plan.contains("25 complete, 6 to run"), "{plan}");
    assert!(plan.contains("6 changed: options.alpha: 0.0 → 0.5"), "{plan}");
    assert!(!plan.contains("/ghosted/"), "{plan}");
    let events = parse_events(&world.run(&["--events", "--set", change]));
    assert_eq!(events_of_kind(&events, "planned")[0]["complete"], 25);
    let cells: Vec<u64> = events_of_kind(&events, "started").iter().map(|job| job["cells"].as_u64().unwrap()).collect();
    assert_eq!(cells, [0, 6, 6, 6], "expected jobs for operators, two texts and a task");
}

#[test]
fn changed_weight_byte_reruns_its_backbone() {
    let world = World::large();
    world.run_ok(&[]);
    let path = world.path("backbone/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 4;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let plan = String::from_utf8(world.ghostlab(&["plan", "grid.yaml"]).stdout).unwrap();
    assert!(plan.contains("0 complete, 31 to run"), "{plan}");
    assert!(plan.contains("changed: ") && plan.contains("backbone: "), "{plan}");
    let events = parse_events(&world.run(&["--events"]));
    assert_eq!(events_of_kind(&events, "planned")[0]["complete"], 0);
}

#[test]
fn two_processes_share_the_work_and_agree() {
    let world = World::large();
    let full = computed_tokens(&parse_events(&World::large().run(&["--events"])));
    let children =
        [0, 1].map(|i| spawn_run(&world, &["--events", "--results", if i == 0 { "results" } else { "other" }]));
    let outputs = children.map(|child| child.wait_with_output().unwrap());
    for output in &outputs {
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let work = outputs.each_ref().map(|output| computed_tokens(&parse_events(output)));
    let total = work.iter().sum::<u64>() as f64;
    assert!(total <= 1.1 * full as f64, "{work:?} of {full}");
    for name in ["results.csv", "results.parquet", "results.md", "documents.parquet"] {
        let [one, other] =
            ["results", "other"].map(|folder| std::fs::read(world.path(folder).join("grid").join(name)).unwrap());
        assert!(one == other, "{name} differs");
    }
    assert_eq!(world.ghostlab(&["cache", "verify"]).status.code(), Some(0));
}
