//! Faults during a run: damaged payloads, missing space or permission, file systems without links, kills, panics and
//! signals at chosen moments, changed or irregular input files, leftovers of dead processes.
//!
//! Each kind of fault is a table with one case per line. `GHOSTLAB_FAULT` injects a fault at a chosen moment (see
//! `crates/store/src/fault.rs`).
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::common;
use crate::common::world::World;
use serde_json::json;

/// Timeout above the duration of any run here, for detecting hangs.
const LONG: Duration = Duration::from_secs(240);

/// Overrides for the smallest grid with every kind of artifact.
const SMALL: [&str; 6] = ["--set", "corpora.long.limit=5", "--set", "criterion=llm-streamline", "--set", "depth=2"];

fn started(world: &World, arguments: &[&str], fault: &str) -> Child {
    let mut command = world.command(arguments);
    command.env("GHOSTLAB_FAULT", fault).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > LONG {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(began.elapsed() <= LONG, "it hangs: {output:?}");
            return output;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn with_fault(world: &World, more: &[&str], fault: &str) -> (Option<i32>, String) {
    let output = ended(started(world, &[&["run", "grid.yaml"], more].concat(), fault));
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn verified(world: &World) -> Option<i32> {
    world.ghostlab(&["cache", "verify"]).status.code()
}

/// Process ids of another machine (`FAR`) and of a dead process of this one (`KILLED`), with a pid beyond the system's
/// range.
const FAR: &str = "5-0123456789ab";
const KILLED: &str = "99999999-0123456789ab";

/// Writes the record of another machine's process, with leases.
fn plant_far(world: &World, id: &str, claims: &[&str]) -> PathBuf {
    let store = world.path("data/store");
    let text = json!({"id": id, "pid": 5, "system": "another boot", "started": 7, "beat": "00000000000000000007"});
    for folder in ["processes", "claims", "drafts"] {
        fs::create_dir_all(store.join(folder)).unwrap();
    }
    fs::write(store.join("store.json"), r#"{"format":1}"#).unwrap();
    claims.iter().for_each(|name| fs::write(store.join("claims").join(name), text.to_string()).unwrap());
    let record = store.join(format!("processes/{id}.json"));
    fs::write(&record, text.to_string()).unwrap();
    record
}

/// Sets a file's times to ten minutes ago, beyond the lease timeout of shared file systems.
fn age(path: &Path) {
    fs::File::open(path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(600)).unwrap();
}

fn signal(child: &Child, name: &str) {
    let sent = std::process::Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

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
    stages
        .into_iter()
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{kind}-v")))
        .unwrap()
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
    world.runs(&SMALL);
    let tables = world.tables();
    // Derived objects are removed too, so that the damaged object is read.
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
            let log = world.runs(&SMALL);
            assert!(log.contains("a stored artifact is damaged"), "{kind}: {log}");
            assert!(world.tables() == tables, "{kind}: the tables differ");
        }
    }
    // After the last round only tokens were deleted, and all objects are in use.
    let verified = world.ghostlab(&["cache", "verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stdout));
}

/// Returns the kind of a store file without its numbers, such as `0000.dense.f32`.
fn sort_of(path: &Path) -> String {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let stage = path.ancestors().map(name).find(|name| name.contains("-v")).unwrap();
    let what = match name(path) {
        _ if name(path.parent().unwrap()) == "packs" => "of many".to_owned(),
        hash if hash.len() == 64 => "of one".to_owned(),
        file => file.replace(|c: char| c.is_ascii_digit(), ""),
    };
    format!("{stage} {what}")
}

#[test]
fn a_finished_run_mends_damage_of_every_payload_or_repair_does() {
    let world = World::large();
    world.runs(&SMALL);
    let tables = world.tables();
    let files = || {
        let mut files = Vec::new();
        for kind in ["scores", "operator", "selection", "activations", "tokens"] {
            below(&stage(&world, kind), &mut files);
        }
        files
    };
    let sorts: BTreeSet<String> = files().iter().map(|path| sort_of(path)).collect();
    let has = |name: &str| assert!(sorts.iter().any(|sort| sort.contains(name)), "{name} is not in {sorts:?}");
    for name in ["meta.json", "rows.f", "tokens-v", "selection-v", "operator-v", "activations-v", "of one", "of many"] {
        has(name);
    }
    let lost = |path: &Path| fs::remove_file(path).unwrap();
    let emptied = |path: &Path| fs::write(path, "").unwrap();
    type Spoil<'a> = (&'a str, &'a dyn Fn(&Path));
    let spoils: [Spoil<'_>; 4] = [("flipped", &flip), ("truncated", &truncate), ("lost", &lost), ("emptied", &emptied)];
    for (number, sort) in sorts.iter().enumerate() {
        // Damage each kind in two ways, so that every kind of damage is covered.
        for (how, spoil) in [spoils[number % 4], spoils[(number + 1) % 4]] {
            files().iter().filter(|path| sort_of(path) == *sort).for_each(|path| spoil(path));
            // An artifact that is deleted completely counts as never computed.
            let seen = if how == "lost" && sort.contains(" of ") { 0 } else { 5 };
            assert_eq!(verified(&world), Some(seen), "{sort} {how}");
            world.runs(&SMALL);
            assert!(world.tables() == tables, "{sort} {how}: the tables differ");
            // Objects that a finished run does not read may still be damaged.
            assert_eq!(world.ghostlab(&["cache", "verify", "--repair"]).status.code(), Some(0), "{sort} {how}");
            assert_eq!(verified(&world), Some(0), "{sort} {how}");
            world.runs(&SMALL);
            assert!(world.tables() == tables, "{sort} {how}: the tables differ after the repair");
            // Activations are not recomputed until they are needed.
            if !stage_exists(&world, "activations") {
                fs::remove_dir_all(stage(&world, "operator")).unwrap();
                world.runs(&SMALL);
            }
            assert!(files().iter().any(|path| sort_of(path) == *sort), "{sort} {how} was not made again");
        }
    }
}

fn stage_exists(world: &World, kind: &str) -> bool {
    let mut files = Vec::new();
    let prefix = format!("{kind}-v");
    for entry in fs::read_dir(world.path("data/store")).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            below(&entry.path(), &mut files);
        }
    }
    !files.is_empty()
}

#[test]
fn the_plan_names_damage_and_gc_removes_it() {
    let world = World::new();
    world.runs(&[]);
    let mut files = Vec::new();
    below(&stage(&world, "scores"), &mut files);
    flip(&files[0]);
    let plan = String::from_utf8(world.ghostlab(&["plan", "grid.yaml"]).stdout).unwrap();
    assert!(plan.contains("8 complete, 1 to run") && plan.contains("1 damaged"), "{plan}");
    truncate(&files[0]);
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
    assert!(list(&world).contains("operator-v4"), "{}", list(&world));
    let gone = world.ghostlab(&["cache", "gc", "--keep", "grid.yaml", "--yes"]);
    let gone = String::from_utf8(gone.stdout).unwrap();
    assert!(gone.contains("to make again") && gone.contains("operator-v4"), "{gone}");
    let log = world.runs(&[]);
    assert!(log.contains("9 of 9 cells are stored already"), "{log}");
    let log = world.runs(&["--set", "calibration.seed=1", "--set", "name=other"]);
    assert!(log.contains("1 of 9 cells are stored already"), "the dense cell is in both: {log}");
}

#[test]
fn gc_keeps_all_profiles_of_a_grid_and_its_trials() {
    let world = World::new();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let profiles = "profile: one\nprofiles:\n  one: {criterion: sleb, recovery: none}\n  two: {depth: 1}\n";
    world.write("grid.yaml", format!("{grid}{profiles}"));
    world.runs(&[]);
    world.runs(&["--profile", "two"]);
    world.runs(&["--profile", "two", "--set", "calibration.seed=1"]);
    let artifacts = |kind: &str| {
        let list = String::from_utf8(world.ghostlab(&["cache", "ls"]).stdout).unwrap();
        let line = list.lines().find(|line| line.starts_with(&format!("{kind}-v"))).unwrap_or_default();
        line.split_whitespace().nth(1).map_or(0, |count| count.parse::<usize>().unwrap())
    };
    let gc = |more: &[&str]| {
        let output = world.ghostlab(&[&["cache", "gc", "--keep", "grid.yaml", "--yes"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // One trial per layer (four), then three; two variants and the dense backbone; the five cells, and those of seed 1.
    assert_eq!(artifacts("scores"), 7 + 3 + 4 + 4);
    gc(&[]);
    assert_eq!(artifacts("scores"), 7 + 3 + 4);
    let log = world.runs(&[]);
    assert!(log.contains("3 of 3 cells are stored already"), "{log}");
    let log = world.runs(&["--profile", "two"]);
    assert!(log.contains("5 of 5 cells are stored already"), "{log}");
    // A profile that cannot be resolved is an error, because it may use any object.
    let away = "  away: {corpora: {train: {path: train.txt, rule: ptb}, test: {path: nowhere.txt, rule: ptb}}}\n";
    world.write("grid.yaml", format!("{grid}{profiles}{away}"));
    let refused = world.ghostlab(&["cache", "gc", "--keep", "grid.yaml", "--yes"]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(3) && text.contains("`away`"), "{text}");
    assert!(text.contains("`--profile one --profile two`") && text.lines().all(|line| line.len() < 200), "{text}");
    gc(&["--profile", "one"]);
    assert_eq!(artifacts("scores"), 7 + 3);
    gc(&["--profile", "one", "--set", "depth=1"]);
    // The second variant is deleted. The trials are kept, because another depth may need them.
    assert_eq!(artifacts("scores"), 7 + 2);
}

/// A fresh clone lacks the models of the profile `paper`.
#[test]
fn gc_keeps_what_a_profile_without_its_backbones_may_use() {
    let world = World::new();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    fs::rename(world.path("backbone"), world.path("other")).unwrap();
    let weights = fs::read(world.path("other/model.safetensors")).unwrap();
    let mut changed = weights.clone();
    changed[weights.len() - 4] ^= 1;
    fs::write(world.path("other/model.safetensors"), changed).unwrap();
    let profiles =
        "profile: here\nprofiles:\n  here: {depth: 1}\n  away: {backbones: {gone: {path: other}}, backbone: gone}\n";
    world.write("grid.yaml", format!("{grid}{profiles}"));
    world.runs(&["--profile", "away"]);
    fs::create_dir(world.path("backbone")).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(world.path("other").join(name), world.path("backbone").join(name)).unwrap();
    }
    fs::write(world.path("backbone/model.safetensors"), weights).unwrap();
    fs::rename(world.path("other"), world.path("hidden")).unwrap();
    world.runs(&[]);
    world.runs(&["--set", "calibration.seed=1"]);
    let output = world.ghostlab(&["cache", "gc", "--keep", "grid.yaml", "--yes"]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(0) && log.contains("profile `away` of grid.yaml"), "{log}");
    assert!(String::from_utf8(output.stdout).unwrap().ends_with("deleted\n"), "what seed 1 made");
    let log = world.runs(&[]);
    assert!(log.contains("5 of 5 cells are stored already"), "{log}");
    fs::rename(world.path("hidden"), world.path("other")).unwrap();
    let log = world.runs(&["--profile", "away"]);
    assert!(log.contains("9 of 9 cells are stored already"), "{log}");
}

#[test]
fn gc_keeps_what_a_grid_made_with_another_engine_or_float_type() {
    let world = World::new();
    let ways: [&[&str]; 3] = [&[], &["--dtype", "bf16"], &["--engine", "candle"]];
    ways.iter().for_each(|way| drop(world.runs(way)));
    world.runs(&["--set", "calibration.seed=1"]);
    let gc = |more: &[&str]| {
        let output = world.ghostlab(&[&["cache", "gc", "--keep", "grid.yaml", "--yes"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        said(&output)
    };
    assert!(gc(&[]).contains("deleted"), "what seed 1 made");
    for way in ways {
        let log = world.runs(way);
        assert!(log.contains("9 of 9 cells are stored already"), "{way:?}: {log}");
    }
    // With explicit engine flags, only objects of this engine are kept, like with an explicit profile.
    assert!(gc(&["--dtype", "bf16"]).contains("deleted"));
    let log = world.runs(&["--dtype", "bf16"]);
    assert!(log.contains("9 of 9 cells are stored already"), "{log}");
    let log = world.runs(&["--engine", "candle"]);
    assert!(!log.contains("cells are stored already"), "{log}");
}

#[test]
fn objects_of_older_programs_stay_until_named() {
    let world = World::new();
    world.runs(&[]);
    let now = stage(&world, "scores");
    let older = world.path("data/store/scores-v1");
    fs::rename(now, &older).unwrap();
    let left = || {
        let mut files = Vec::new();
        below(&older, &mut files);
        files
    };
    let all = left();
    let list = said(&world.ghostlab(&["cache", "ls"]));
    assert!(list.contains("of an older form, left alone"), "{list}");
    let log = world.runs(&["--store-limit", "0.000001"]);
    assert!(log.contains("9 stored artifacts are of an older form and left alone"), "{log}");
    for arguments in [&[][..], &["--kind", "scores"], &["--older", "0"], &["--keep", "grid.yaml"]] {
        world.ghostlab(&[&["cache", "gc", "--yes"], arguments].concat());
        assert_eq!(left(), all, "{arguments:?}");
    }
    let gone = said(&world.ghostlab(&["cache", "gc", "--stage", "scores-v1", "--yes"]));
    assert!(gone.contains("deleted") && left().is_empty(), "{gone}");
}

#[test]
fn what_a_later_program_made_is_never_cleared_away() {
    let world = World::new();
    world.runs(&[]);
    let now = stage(&world, "scores");
    let later = world.path("data/store/scores-v999");
    fs::rename(now, &later).unwrap();
    let mut files = Vec::new();
    below(&later, &mut files);
    for arguments in [&[][..], &["--stage", "scores-v999"], &["--older", "0"], &["--keep", "grid.yaml"]] {
        world.ghostlab(&[&["cache", "gc", "--yes"], arguments].concat());
        let mut left = Vec::new();
        below(&later, &mut left);
        assert_eq!(left, files, "{arguments:?}");
    }
}

#[cfg(unix)]
#[test]
fn full_disk_stops_the_run_and_space_lets_it_resume() {
    let world = World::large();
    // Simulate a full disk by a file size limit below the size of the activations.
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
    // No user can write here.
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
    assert!(list.contains("scores-v999") && list.contains("of a later program, left alone"), "{list}");
}

#[cfg(target_os = "linux")]
#[test]
fn leftovers_of_dead_processes_are_shown_and_swept() {
    let here = {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        format!("{} {}", boot.trim(), namespace.display())
    };
    let world = World::new();
    world.runs(&[]);
    let store = world.path("data/store");
    // Records of a dead process of this machine (pids are below 2^22), and of another machine's process without recent
    // heartbeats.
    let killed = plant_far(&world, KILLED, &["something"]);
    let text = fs::read_to_string(&killed).unwrap().replace("another boot", &here).replace(":5,", ":99999999,");
    fs::write(&killed, &text).unwrap();
    fs::write(store.join("claims/something"), &text).unwrap();
    let far = plant_far(&world, FAR, &["other"]);
    for owner in [KILLED, FAR] {
        let draft = store.join(format!("drafts/{owner}.0"));
        fs::create_dir(&draft).unwrap();
        fs::write(draft.join("000000.f32"), vec![0; 3_000_000]).unwrap();
        fs::create_dir_all(store.join("uses")).unwrap();
        fs::write(store.join("uses").join(owner), "abc\n").unwrap();
    }
    let tag = Path::new("runs/.run.99999999-1-").display().to_string();
    let half = store.join(format!("{tag}elsewhere123.abcdef.ghostlab-tmp"));
    fs::write(&half, "{").unwrap();
    let results = world.path("results/.probe.9-1-elsewhere123.abcdef.ghostlab-tmp");
    fs::write(&results, "half").unwrap();
    let runs: Vec<PathBuf> = fs::read_dir(store.join("runs")).unwrap().map(|e| e.unwrap().path()).collect();
    let done = runs.iter().find(|path| path.extension().is_some_and(|e| e == "json")).unwrap();
    let mut record = common::stored_record(done).unwrap();
    (record["process"], record["stage"]) = (json!(FAR), json!("running"));
    fs::write(done, record.to_string()).unwrap();

    let status = || said(&world.ghostlab(&["status", "--all"]));
    assert!(status().contains("): running"), "{}", status());
    let list = said(&world.ghostlab(&["cache", "ls"]));
    assert!(list.contains("drafts: 1, 3.0 MB, being written"), "in doubt they live: {list}");
    assert!(list.contains("drafts: 1, 3.0 MB, left by dead processes"), "{list}");
    [&far, &half, &results].iter().for_each(|path| age(path));
    assert!(status().contains("): died"), "{}", status());
    let list = said(&world.ghostlab(&["cache", "ls"]));
    assert!(list.contains("drafts: 2, 6.0 MB, left by dead processes"), "{list}");
    let shown = said(&world.ghostlab(&["cache", "gc"]));
    assert!(shown.contains("drafts of dead processes") && shown.contains("6.0 MB"), "{shown}");
    fs::remove_dir_all(stage(&world, "scores")).unwrap();
    world.runs(&[]);
    for left in ["drafts", "claims", "processes", "uses"] {
        assert_eq!(fs::read_dir(store.join(left)).unwrap().count(), 0, "{left}");
    }
    for folder in [store.join("runs"), store.clone(), world.path("results")] {
        let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
        let left: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn kills_at_chosen_moments_resume_to_the_same_tables() {
    let undisturbed = World::large();
    undisturbed.runs(&SMALL);
    let places =
        ["draft:1", "draft:4", "record:2", "commit:1", "commit:3", "commit:6", "score:1", "journal:1", "score:1"];
    let world = World::large();
    for point in places {
        let (code, log) = with_fault(&world, &SMALL, &format!("kill@{point}"));
        assert_eq!(code, None, "{point} was not reached: {log}");
    }
    world.runs(&SMALL);
    assert!(world.tables() == undisturbed.tables());
    assert_eq!(verified(&world), Some(0));
    // Damage all scores, and kill the run while it replaces them.
    let mut files = Vec::new();
    below(&stage(&world, "scores"), &mut files);
    files.iter().for_each(|path| flip(path));
    assert_eq!(with_fault(&world, &SMALL, "kill@replace:1").0, None);
    world.runs(&SMALL);
    assert!(world.tables() == undisturbed.tables());
    for left in ["drafts", "claims", "processes", "journals", "uses"] {
        let count = fs::read_dir(world.path("data/store").join(left)).map_or(0, Iterator::count);
        assert_eq!(count, 0, "{left} of dead processes are left");
    }
}

#[test]
fn a_panic_fails_the_cells_of_its_job_and_the_others_go_on() {
    for jobs in ["1", "2"] {
        let world = World::large();
        let (code, log) = with_fault(&world, &[&SMALL[..], &["--jobs", jobs]].concat(), "panic@score:1");
        assert_eq!(code, Some(4), "{log}");
        assert!(log.contains("panicked") && log.contains("cells failed"), "{log}");
        let log = world.runs(&SMALL);
        assert!(!log.contains("6 of 6 cells are stored"), "{log}");
        let undisturbed = World::large();
        undisturbed.runs(&SMALL);
        assert!(world.tables() == undisturbed.tables());
    }
}

#[cfg(unix)]
#[test]
fn without_links_work_may_be_done_twice_and_nothing_stops() {
    let undisturbed = World::large();
    undisturbed.runs(&SMALL);
    for fault in ["no-links", "link-made-and-denied"] {
        let world = World::large();
        let arguments = [&["run", "grid.yaml"], &SMALL[..]].concat();
        let other = [&arguments[..], &["--results", "other"]].concat();
        let children = [started(&world, &arguments, fault), started(&world, &other, fault)];
        for output in children.map(ended) {
            assert_eq!(output.status.code(), Some(0), "{fault}: {}", String::from_utf8_lossy(&output.stderr));
        }
        assert!(world.tables() == undisturbed.tables(), "{fault}");
        assert_eq!(verified(&world), Some(0), "{fault}");
        assert_eq!(fs::read_dir(world.path("data/store/claims")).unwrap().count(), 0, "{fault}");
    }
}

/// Waits for a line on stderr that contains `words`.
fn wait_for(child: &mut Child, words: &str) {
    use std::io::{BufRead, BufReader};
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut log = String::new();
    let found = lines.by_ref().map_while(Result::ok).any(|line| {
        log.push_str(&line);
        line.contains(words)
    });
    assert!(found, "`{words}` is not in: {log}");
    // Drain stderr, because the child would block otherwise.
    std::thread::spawn(move || lines.for_each(drop));
}

#[cfg(unix)]
#[test]
fn waiting_for_a_process_is_shown_and_stops_on_signal() {
    for name in ["-INT", "-TERM", "-HUP"] {
        let world = World::new();
        plant_far(&world, FAR, &["tokenising"]);
        let mut child = started(&world, &["run", "grid.yaml"], "");
        wait_for(&mut child, "tokenising: process 5 works on it; waiting");
        signal(&child, name);
        assert_eq!(ended(child).status.code(), Some(130), "{name}");
        let status = said(&world.ghostlab(&["status"]));
        assert!(status.contains("): interrupted"), "{name}: {status}");
    }
}

/// Simulates another process that is tokenizing, starts a run that waits for it, applies `change` to the hashed inputs,
/// and lets the run continue.
#[cfg(unix)]
fn changed_after_hashing(world: &World, change: impl FnOnce()) -> Output {
    let record = plant_far(world, FAR, &["tokenising"]);
    let log = world.path("log");
    let mut command = world.command(&[&["run", "grid.yaml"], &SMALL[..]].concat());
    command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let child = command.spawn().unwrap();
    let began = Instant::now();
    while !fs::read_to_string(&log).unwrap().contains("waiting") {
        assert!(began.elapsed() < LONG, "it does not wait");
        std::thread::sleep(Duration::from_millis(10));
    }
    change();
    // Release the lease, which the run notices sooner than the death of the process.
    fs::remove_file(world.path("data/store/claims/tokenising")).unwrap();
    fs::remove_file(record).unwrap();
    let output = ended(child);
    Output { stderr: fs::read(log).unwrap(), ..output }
}

#[cfg(unix)]
#[test]
fn inputs_changed_during_a_run_are_refused() {
    let inputs = ["backbone/model.safetensors", "backbone/tokenizer.json", "train.txt", "test.jsonl", "copa.jsonl"];
    let undisturbed = World::large();
    undisturbed.runs(&SMALL);
    for name in inputs {
        for settled in [false, true] {
            let world = World::large();
            let path = world.path(name);
            let bytes = fs::read(&path).unwrap();
            if settled {
                age(&path);
            }
            let times = fs::metadata(&path).unwrap().modified().unwrap();
            let output = changed_after_hashing(&world, || {
                // Replaced by a file of the same size and time.
                let mut other = bytes.clone();
                let last = other.len() - if name.ends_with(".safetensors") { 4 } else { 40 };
                other[last] = if other[last] == b'1' { b'2' } else { b'1' };
                let other_file = world.path("beside");
                fs::write(&other_file, other).unwrap();
                fs::File::open(&other_file).unwrap().set_modified(times).unwrap();
                fs::rename(other_file, &path).unwrap();
            });
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{name}: {log}");
            assert!(log.contains("an input changed after it was hashed") && log.contains(name), "{log}");
            assert!(!world.path("results/grid/results.csv").exists());
            // With the original bytes, the original results return: nothing computed from the changed file is stored
            // under their hash.
            fs::write(&path, &bytes).unwrap();
            world.runs(&SMALL);
            assert!(world.tables() == undisturbed.tables(), "{name}");
        }
    }
}

/// Memory limit that forces weights to be loaded on demand.
const BY_NEED: [&str; 2] = ["--memory", "0.05"];

#[cfg(target_os = "linux")]
#[test]
fn changed_weights_stop_on_demand_loading_store_nothing() {
    let undisturbed = World::large();
    undisturbed.runs(&SMALL);
    let arguments = [&SMALL[..], &BY_NEED].concat();
    let weights = |world: &World| world.path("backbone/model.safetensors");
    type Change<'a> = (&'a str, &'a dyn Fn(&Path));
    // Same length in place with the old mtime; truncated; replaced by another file.
    let in_place = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let time = fs::metadata(path).unwrap().modified().unwrap();
        let last = bytes.len() - 4;
        bytes[last] ^= 1;
        fs::write(path, bytes).unwrap();
        fs::File::open(path).unwrap().set_modified(time).unwrap();
    };
    let replaced = |path: &Path| {
        let copy = path.with_extension("beside");
        fs::copy(path, &copy).unwrap();
        in_place(&copy);
        fs::rename(copy, path).unwrap();
    };
    let changes: [Change<'_>; 3] = [("in place", &in_place), ("cut off", &truncate), ("replaced", &replaced)];
    for (how, change) in changes {
        // During the calibration pass, at the first scores, and at later scores.
        for (point, settled) in [("activations:1", true), ("score:1", false), ("score:3", true)] {
            let world = World::large();
            let bytes = fs::read(weights(&world)).unwrap();
            if settled {
                age(&weights(&world));
            }
            let mut child =
                started(&world, &[&["run", "grid.yaml"], &arguments[..]].concat(), &format!("stop@{point}"));
            wait_until_stopped(&mut child);
            change(&weights(&world));
            signal(&child, "-CONT");
            let output = ended(child);
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{how} at {point}: {log}");
            assert!(log.contains("model.safetensors"), "{how} at {point}: {log}");
            assert!(!world.path("results/grid/results.csv").exists());
            // With the original bytes, the original results return: nothing computed from the changed file is stored
            // under their hash.
            fs::write(weights(&world), &bytes).unwrap();
            world.runs(&arguments);
            assert!(world.tables() == undisturbed.tables(), "{how} at {point}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn changed_weights_stop_fine_tuning_and_store_nothing() {
    let tuned = |name: &str| format!("{{name: {name}, finetune: {{sequences: 8, length: 32}}}}");
    let world = || {
        let world = World::new();
        let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
        let all = "recovery: [none, linearpatch-diag, linearpatch-rotate, ghosted]";
        assert!(grid.contains(all) && grid.contains("depth: [1, 2]"));
        let grid = grid.replace(all, &format!("recovery: [{}, {}]", tuned("linearpatch-diag"), tuned("ghosted")));
        world.write("grid.yaml", grid.replace("depth: [1, 2]", "depth: 1"));
        world
    };
    let undisturbed = world();
    undisturbed.runs(&[]);
    // The backbone is in memory. The faults hit before the teacher and the layers after the cut are read for the first
    // and for the second training.
    for (point, settled) in [("activations:1", true), ("activations:1", false), ("train:5", true)] {
        let world = world();
        let weights = world.path("backbone/model.safetensors");
        let bytes = fs::read(&weights).unwrap();
        if settled {
            age(&weights);
        }
        let time = fs::metadata(&weights).unwrap().modified().unwrap();
        let mut child = started(&world, &["run", "grid.yaml"], &format!("stop@{point}"));
        wait_until_stopped(&mut child);
        let mut other = bytes.clone();
        let other_file = world.path("beside");
        let last = other.len() - 4;
        other[last] ^= 1;
        fs::write(&other_file, other).unwrap();
        fs::File::open(&other_file).unwrap().set_modified(time).unwrap();
        fs::rename(&other_file, &weights).unwrap();
        signal(&child, "-CONT");
        let output = ended(child);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{point}: {log}");
        assert!(log.contains("model.safetensors"), "{point}: {log}");
        fs::write(&weights, &bytes).unwrap();
        world.runs(&[]);
        assert!(world.tables() == undisturbed.tables(), "{point}");
    }
}

#[cfg(target_os = "linux")]
fn wait_until_stopped(child: &mut Child) {
    let began = Instant::now();
    let state = |id: u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().unwrap_or_default().chars().next()
    };
    while state(child.id()) != Some('T') {
        assert!(child.try_wait().unwrap().is_none() && began.elapsed() < LONG, "it does not stop");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_an_input_is_refused_by_name() {
    for name in ["grid.yaml", "backbone/model.safetensors", "backbone/tokenizer.json", "train.txt", "copa.jsonl"] {
        let world = World::large();
        fs::remove_file(world.path(name)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(world.path(name)).status().unwrap().success());
        let (code, log) = with_fault(&world, &[], "");
        assert!(code == Some(2) || code == Some(3), "{name}: {log}");
        assert!(log.contains(name.rsplit('/').next().unwrap()) || log.contains("the backbone has no weights"), "{log}");
    }
}

#[test]
fn clearing_up_beside_a_run_takes_nothing_from_it() {
    let world = World::large();
    let undisturbed = World::large();
    undisturbed.runs(&[]);
    let mut run = started(&world, &["run", "grid.yaml"], "");
    let mut rounds = 0;
    while run.try_wait().unwrap().is_none() {
        for kind in ["tokens", "activations", "selection", "operator", "scores"] {
            let output = world.ghostlab(&["cache", "gc", "--kind", kind, "--yes"]);
            // In the first round the store may not exist yet.
            assert!(output.status.success() || rounds == 0, "{}", String::from_utf8_lossy(&output.stderr));
        }
        rounds += 1;
    }
    let output = run.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(!log.contains("damaged") && !log.contains("vanished"), "{log}");
    assert!(rounds > 1 && world.tables() == undisturbed.tables());
    // Recreate scores that the last round may have deleted. Without a running process nothing protects them.
    world.runs(&[]);
    let gone = said(&world.ghostlab(&["cache", "gc", "--kind", "scores", "--yes"]));
    assert!(gone.contains("deleted"), "{gone}");
    assert!(!stage_exists(&world, "scores"));
}

#[test]
fn two_names_of_one_backbone_share_work_silently() {
    let world = World::large();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("tiny: {path: backbone}", "tiny: {path: backbone}\n  same: {path: ./backbone}");
    world.write("grid.yaml", grid.replace("backbone: [tiny]", "backbone: [tiny, same]"));
    let log = world.runs(&["--jobs", "2", "--memory", "16"]);
    assert!(!log.contains("damaged"), "{log}");
    let rows = common::world::table(&world.path("results/grid/results.csv"));
    let model_rows = |name: &str| -> Vec<Vec<String>> {
        let matching = rows.iter().filter(|row| row[0] == name);
        matching.map(|row| row[1..].iter().filter(|cell| cell.parse::<f64>().is_ok()).cloned().collect()).collect()
    };
    assert_eq!(model_rows("tiny").len(), 31);
    let shown = |rows: Vec<Vec<String>>| rows.into_iter().map(|row| row[..3].to_vec()).collect::<Vec<_>>();
    assert_eq!(shown(model_rows("tiny")), shown(model_rows("same")));
}

#[cfg(target_os = "linux")]
#[test]
fn a_grid_whose_path_is_no_text_is_run_to_its_end() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let name = Path::new(std::ffi::OsStr::from_bytes(b"gr\xffd.yaml"));
    fs::rename(world.path("grid.yaml"), world.folder.path().join(name)).unwrap();
    let output = world.command(&["run"]).arg(name).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(0) && !log.contains("panicked"), "{log}");
    assert!(said(&world.ghostlab(&["status"])).contains("complete"));
}

#[test]
fn thousands_of_threads_are_as_many_as_help() {
    let world = World::new();
    let began = Instant::now();
    let (code, log) = with_fault(&world, &["--threads", "4096"], "");
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("--threads 4096: ") && began.elapsed() < LONG, "{log}");
}
