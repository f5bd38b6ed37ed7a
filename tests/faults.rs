//! What can go wrong with a store: damage of every kind, no room, no right, another version, what the dead left.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::world::World;

fn below(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        if entry.path().is_dir() {
            below(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}

fn stage(world: &World, kind: &str) -> PathBuf {
    let stages = fs::read_dir(world.path("data/store")).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{kind}-v"));
    stages.into_iter().find(is_it).unwrap()
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(path, bytes).unwrap();
}

fn truncate(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

#[test]
fn damage_of_every_kind_is_named_made_good_and_never_used() {
    let world = World::large();
    // As small as it can be with every kind of artifact.
    let small = ["--set", "corpora.long.limit=5", "--set", "criterion=llm-streamline", "--set", "depth=2"];
    world.runs(&small);
    let tables = world.tables();
    // What is made from each kind goes with it, so that the damaged thing is asked for.
    let kinds = [
        ("scores", &[][..]),
        ("operator", &["scores"]),
        ("selection", &["operator", "scores"]),
        ("activations", &["operator", "scores"]),
        ("tokens", &["selection", "operator", "scores", "activations"]),
    ];
    for (kind, after) in kinds {
        for spoil in [flip, truncate] {
            let mut files = Vec::new();
            below(&stage(&world, kind), &mut files);
            assert!(!files.is_empty(), "{kind}");
            files.iter().for_each(|path| spoil(path));
            assert_eq!(world.ghostlab(&["cache", "verify"]).status.code(), Some(5), "{kind}");
            for kind in after {
                fs::remove_dir_all(stage(&world, kind)).unwrap();
            }
            let log = world.runs(&small);
            assert!(log.contains("a stored artifact is damaged"), "{kind}: {log}");
            assert!(world.tables() == tables, "{kind}: the tables differ");
        }
    }
    // Nothing was deleted after the last round but tokens, which are all in use.
    let verified = world.ghostlab(&["cache", "verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stdout));
}

#[test]
fn the_plan_names_damage_and_gc_removes_it() {
    let world = World::new();
    world.runs(&[]);
    let mut files = Vec::new();
    below(&stage(&world, "scores"), &mut files);
    flip(files.iter().find(|path| path.ends_with("values.f64")).unwrap());
    let plan = String::from_utf8(world.ghostlab(&["plan", "grid.yaml"]).stdout).unwrap();
    assert!(plan.contains("8 complete, 1 to run") && plan.contains("1 damaged"), "{plan}");
    truncate(files.iter().find(|path| path.ends_with("values.f64")).unwrap());
    let shown = String::from_utf8(world.ghostlab(&["cache", "gc"]).stdout).unwrap();
    assert!(shown.contains("nothing was deleted") && shown.contains("scores-v"), "{shown}");
    let gone = String::from_utf8(world.ghostlab(&["cache", "gc", "--yes"]).stdout).unwrap();
    assert!(gone.ends_with("deleted\n"), "{gone}");
    assert_eq!(world.ghostlab(&["cache", "verify"]).status.code(), Some(0));
}

#[test]
fn gc_keeps_what_a_grid_uses_and_tells_what_the_rest_costs() {
    let world = World::new();
    world.runs(&[]);
    world.runs(&["--set", "calibration.seed=1", "--set", "name=other"]);
    let list = |world: &World| String::from_utf8(world.ghostlab(&["cache", "ls"]).stdout).unwrap();
    assert!(list(&world).contains("operator-v1"), "{}", list(&world));
    let gone = world.ghostlab(&["cache", "gc", "--keep", "grid.yaml", "--yes"]);
    let gone = String::from_utf8(gone.stdout).unwrap();
    assert!(gone.contains("to make again") && gone.contains("operator-v1"), "{gone}");
    let log = world.runs(&[]);
    assert!(log.contains("9 of 9 cells are stored already"), "{log}");
    let log = world.runs(&["--set", "calibration.seed=1", "--set", "name=other"]);
    assert!(log.contains("1 of 9 cells are stored already"), "the dense cell is in both: {log}");
}

#[cfg(unix)]
#[test]
fn a_full_disk_stops_the_run_with_a_reason_and_room_lets_it_go_on() {
    let world = World::large();
    // A limit on the size of any file stands for a disk without room: activations are larger.
    let script = "trap '' XFSZ; ulimit -f 40; exec \"$0\" run grid.yaml";
    let output = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_ghostlab")])
        .current_dir(world.folder.path())
        .output()
        .unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{log}");
    assert!(log.contains("error: cannot write") && !log.contains("panicked"), "{log}");
    assert!(!world.path("results/grid/results.csv").exists());
    assert_eq!(world.ghostlab(&["cache", "verify"]).status.code(), Some(0));
    world.runs(&[]);
    let undisturbed = World::large();
    undisturbed.runs(&[]);
    assert!(world.tables() == undisturbed.tables());
}

#[cfg(target_os = "linux")]
#[test]
fn a_store_that_cannot_be_written_is_refused_before_the_run() {
    let world = World::new();
    // Nobody can write here, whatever their rights.
    world.refuses(&["--store", "/proc/ghostlab"], 3, &["the store cannot be written to", "/proc/ghostlab", "--store"]);
}

#[test]
fn a_store_of_a_newer_program_is_refused() {
    let world = World::new();
    fs::create_dir_all(world.path("data/store")).unwrap();
    world.write("data/store/store.json", r#"{"format": 99}"#);
    world.refuses(&[], 3, &["written by another version", "format 99"]);
    let status = world.ghostlab(&["status"]);
    assert_eq!(status.status.code(), Some(3));
}

#[test]
fn artifacts_of_another_stage_version_are_not_used() {
    let world = World::new();
    world.runs(&[]);
    let scores = stage(&world, "scores");
    fs::rename(&scores, scores.with_file_name("scores-v999")).unwrap();
    let log = world.runs(&[]);
    assert!(!log.contains("cells are stored already"), "{log}");
    let list = String::from_utf8(world.ghostlab(&["cache", "ls"]).stdout).unwrap();
    assert!(list.contains("scores-v999") && list.contains("of another version"), "{list}");
}

#[test]
fn what_dead_processes_left_is_in_nobodys_way() {
    let world = World::new();
    world.runs(&[]);
    let store = world.path("data/store");
    // As of a process of this machine that is gone: process numbers end below 2^22.
    let system = {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        format!("{} {}", boot.trim(), namespace.display())
    };
    let record = serde_json::json!({"id": "99999999-dead", "pid": 99_999_999, "system": system, "started": 1, "beat": "00000000000000000007"});
    fs::write(store.join("processes/99999999-dead.json"), record.to_string()).unwrap();
    fs::write(store.join("claims/something"), record.to_string()).unwrap();
    fs::create_dir_all(store.join("drafts/99999999-dead.abc")).unwrap();
    fs::remove_dir_all(stage(&world, "scores")).unwrap();
    world.runs(&[]);
    for left in ["drafts", "claims", "processes"] {
        assert_eq!(fs::read_dir(store.join(left)).unwrap().count(), 0, "{left}");
    }
}
