//! Fault injection tests: damaged payloads, full disks, missing permissions, file systems without hard links, kills,
//! panics and signals at given points, changed or irregular input files, and leftovers of dead processes.
//!
//! Each kind of fault has a table with one case per line. `GHOSTLAB_FAULT` injects a fault at a given point (see
//! `crates/store/src/fault.rs`).

#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

mod gc;
mod inputs;
mod processes;
mod stores;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::common;
use crate::common::file_name;
use crate::common::output::{send_signal, stdout, wait_for_exit};
use crate::common::world::World;
use serde_json::json;

/// Timeout for detecting hangs. It is longer than any run in these tests.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Overrides that select the smallest grid with every kind of stored object.
const SMALL: [&str; 6] = ["--set", "corpora.long.limit=5", "--set", "criterion=llm-streamline", "--set", "depth=2"];

fn spawn_with_fault(world: &World, arguments: &[&str], fault: &str) -> Child {
    let mut command = world.command(arguments);
    command.env("GHOSTLAB_FAULT", fault).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn run_with_fault(world: &World, more: &[&str], fault: &str) -> (Option<i32>, String) {
    let output = wait_for_exit(spawn_with_fault(world, &[&["run", "grid.yaml"], more].concat(), fault));
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn verify_store(world: &World) -> Option<i32> {
    world.ghostlab(&["cache", "verify"]).status.code()
}

/// Id of a process on another machine.
const REMOTE_PROCESS: &str = "5-0123456789ab";
/// Id of a dead process on this machine. Its pid exceeds the system's maximum.
const DEAD_PROCESS: &str = "99999999-0123456789ab";

/// Writes the record and the leases of a process on another machine. Returns the path of the record.
fn plant_remote_process(world: &World, id: &str, lease_names: &[&str]) -> PathBuf {
    let store = world.path("data/store");
    let text = json!({"id": id, "pid": 5, "system": "another boot", "started": 7, "beat": "00000000000000000007"});
    for folder in ["processes", "claims", "drafts"] {
        fs::create_dir_all(store.join(folder)).unwrap();
    }
    fs::write(store.join("store.json"), r#"{"format":1}"#).unwrap();
    lease_names.iter().for_each(|name| fs::write(store.join("claims").join(name), text.to_string()).unwrap());
    let record = store.join(format!("processes/{id}.json"));
    fs::write(&record, text.to_string()).unwrap();
    record
}

/// Sets a file's modification time to ten minutes ago. This is longer than the lease timeout on shared file systems.
fn make_stale(path: &Path) {
    fs::File::open(path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(600)).unwrap();
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        if entry.path().is_dir() {
            collect_files(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}

fn stage_folder(world: &World, kind: &str) -> PathBuf {
    let stages = fs::read_dir(world.path("data/store")).unwrap().map(|entry| entry.unwrap().path());
    stages
        .into_iter()
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{kind}-v")))
        .unwrap()
}

fn flip_byte(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(path, bytes).unwrap();
}

fn truncate_file(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

#[test]
fn run_recomputes_damaged_objects_of_every_stage() {
    let world = World::large();
    world.run_ok(&SMALL);
    let tables = world.tables();
    // The objects derived from a damaged object are deleted so that the run has to read it.
    let kinds = [
        ("scores", &[][..]),
        ("operator", &["scores"]),
        ("selection", &["operator", "scores"]),
        ("activations", &["operator", "scores"]),
        ("tokens", &["selection", "operator", "scores", "activations"]),
    ];
    for (kind, after) in kinds {
        for damage in [flip_byte, truncate_file] {
            let mut files = Vec::new();
            collect_files(&stage_folder(&world, kind), &mut files);
            assert!(!files.is_empty(), "{kind}");
            files.iter().for_each(|path| damage(path));
            assert_eq!(world.ghostlab(&["cache", "verify"]).status.code(), Some(5), "{kind}");
            for kind in after {
                fs::remove_dir_all(stage_folder(&world, kind)).unwrap();
            }
            let log = world.run_ok(&SMALL);
            assert!(log.contains("a stored object is damaged"), "{kind}: {log}");
            assert!(world.tables() == tables, "{kind}: the tables differ");
        }
    }
    // The last round damaged all token files, and the run replaced them. Nothing else is damaged.
    let verified = world.ghostlab(&["cache", "verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stdout));
}

/// Returns the stage of a stored file, followed by its file name without digits. The name is replaced by `of one` for a
/// file that contains a single object, and by `of many` for a pack of several objects.
fn payload_kind(path: &Path) -> String {
    let stage = path.ancestors().map(file_name).find(|name| name.contains("-v")).unwrap();
    let what = match file_name(path) {
        _ if file_name(path.parent().unwrap()) == "packs" => "of many".to_owned(),
        hash if hash.len() == 64 => "of one".to_owned(),
        file => file.replace(|c: char| c.is_ascii_digit(), ""),
    };
    format!("{stage} {what}")
}

#[test]
fn damaged_payload_of_every_kind_is_repaired() {
    let world = World::large();
    world.run_ok(&SMALL);
    let tables = world.tables();
    let kinds: BTreeSet<String> = payload_files(&world).iter().map(|path| payload_kind(path)).collect();
    for name in ["meta.json", "rows.f", "tokens-v", "selection-v", "operator-v", "activations-v", "of one", "of many"] {
        assert!(kinds.iter().any(|kind| kind.contains(name)), "{name} is not in {kinds:?}");
    }
    type Damage<'a> = (&'a str, &'a dyn Fn(&Path));
    let damages: [Damage<'_>; 4] = [
        ("flipped", &flip_byte),
        ("truncated", &truncate_file),
        ("lost", &|path: &Path| fs::remove_file(path).unwrap()),
        ("emptied", &|path: &Path| fs::write(path, "").unwrap()),
    ];
    for (number, kind) in kinds.iter().enumerate() {
        // Damage each kind of file in two of the four ways so that every way is covered.
        for (how, damage) in [damages[number % 4], damages[(number + 1) % 4]] {
            payload_files(&world).iter().filter(|path| payload_kind(path) == *kind).for_each(|path| damage(path));
            // An object whose files are all deleted is treated as if it had never been computed.
            let seen = if how == "lost" && kind.contains(" of ") { 0 } else { 5 };
            assert_eq!(verify_store(&world), Some(seen), "{kind} {how}");
            world.run_ok(&SMALL);
            assert!(world.tables() == tables, "{kind} {how}: the tables differ");
            // Objects that a finished run does not read may still be damaged, so repair them.
            assert_eq!(world.ghostlab(&["cache", "verify", "--repair"]).status.code(), Some(0), "{kind} {how}");
            assert_eq!(verify_store(&world), Some(0), "{kind} {how}");
            world.run_ok(&SMALL);
            assert!(world.tables() == tables, "{kind} {how}: the tables differ after the repair");
            // Activations are recomputed only on demand. Delete the operators so that the next run needs activations.
            if !stage_exists(&world, "activations") {
                fs::remove_dir_all(stage_folder(&world, "operator")).unwrap();
                world.run_ok(&SMALL);
            }
            assert!(
                payload_files(&world).iter().any(|path| payload_kind(path) == *kind),
                "{kind} {how} was not recomputed"
            );
        }
    }
}

fn payload_files(world: &World) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for kind in ["scores", "operator", "selection", "activations", "tokens"] {
        collect_files(&stage_folder(world, kind), &mut files);
    }
    files
}

fn stage_exists(world: &World, kind: &str) -> bool {
    let mut files = Vec::new();
    let prefix = format!("{kind}-v");
    for entry in fs::read_dir(world.path("data/store")).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            collect_files(&entry.path(), &mut files);
        }
    }
    !files.is_empty()
}

#[test]
fn plan_counts_damaged_objects_and_gc_deletes_them() {
    let world = World::new();
    world.run_ok(&[]);
    let mut files = Vec::new();
    collect_files(&stage_folder(&world, "scores"), &mut files);
    flip_byte(&files[0]);
    let plan = String::from_utf8(world.ghostlab(&["plan", "grid.yaml"]).stdout).unwrap();
    assert!(plan.contains("8 complete, 1 to run") && plan.contains("1 damaged"), "{plan}");
    truncate_file(&files[0]);
    let shown = String::from_utf8(world.ghostlab(&["cache", "gc"]).stdout).unwrap();
    assert!(shown.contains("nothing was deleted") && shown.contains("scores-v"), "{shown}");
    let output = String::from_utf8(world.ghostlab(&["cache", "gc", "--yes"]).stdout).unwrap();
    assert!(output.ends_with("deleted\n"), "{output}");
    assert_eq!(world.ghostlab(&["cache", "verify"]).status.code(), Some(0));
}
