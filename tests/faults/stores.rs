//! Tests with stores that cannot be read or written, and with leftovers from dead processes.

use super::*;

#[cfg(unix)]
#[test]
fn run_stopped_by_full_disk_resumes_after_space_is_freed() {
    let world = World::large();
    // Simulate a full disk with a file size limit that is smaller than the activations.
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
    world.run_ok(&[]);
    let undisturbed = World::large();
    undisturbed.run_ok(&[]);
    assert!(world.tables() == undisturbed.tables());
}

#[cfg(target_os = "linux")]
#[test]
fn unwritable_store_is_rejected_before_the_run() {
    let world = World::new();
    // No user can write to `/proc`.
    world.assert_rejected(
        &["--store", "/proc/ghostlab"],
        3,
        &["cannot write to the store", "/proc/ghostlab", "--store"],
    );
}

#[test]
fn store_with_a_newer_format_is_rejected() {
    let world = World::new();
    fs::create_dir_all(world.path("data/store")).unwrap();
    world.write("data/store/store.json", r#"{"format": 99}"#);
    world.assert_rejected(&[], 3, &["written by a different version", "format 99"]);
    let status = world.ghostlab(&["status"]);
    assert_eq!(status.status.code(), Some(3));
}

#[test]
fn objects_of_another_stage_version_are_not_used() {
    let world = World::new();
    world.run_ok(&[]);
    let scores = stage_folder(&world, "scores");
    fs::rename(&scores, scores.with_file_name("scores-v999")).unwrap();
    let log = world.run_ok(&[]);
    assert!(!log.contains("cells cached"), "{log}");
    let list = String::from_utf8(world.ghostlab(&["cache", "ls"]).stdout).unwrap();
    assert!(list.contains("scores-v999") && list.contains("newer format"), "{list}");
}

#[cfg(target_os = "linux")]
#[test]
fn leftovers_of_dead_processes_are_shown_and_removed() {
    let this_system = {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        format!("{} {}", boot.trim(), namespace.display())
    };
    let world = World::new();
    world.run_ok(&[]);
    let store = world.path("data/store");
    // Write the records of two processes: a dead one on this machine, whose pid exceeds the maximum of 2^22, and one on
    // another machine.
    let killed = plant_remote_process(&world, DEAD_PROCESS, &["something"]);
    let text = fs::read_to_string(&killed).unwrap().replace("another boot", &this_system).replace(":5,", ":99999999,");
    fs::write(&killed, &text).unwrap();
    fs::write(store.join("claims/something"), &text).unwrap();
    let remote = plant_remote_process(&world, REMOTE_PROCESS, &["other"]);
    for owner in [DEAD_PROCESS, REMOTE_PROCESS] {
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
    let mut record = common::read_record(done).unwrap();
    (record["process"], record["stage"]) = (json!(REMOTE_PROCESS), json!("running"));
    fs::write(done, record.to_string()).unwrap();

    assert!(status_of_all(&world).contains("): running"), "{}", status_of_all(&world));
    let list = stdout(&world.ghostlab(&["cache", "ls"]));
    assert!(list.contains("drafts: 1, 3.0 MB, being written"), "a possibly running process counts as dead: {list}");
    assert!(list.contains("drafts: 1, 3.0 MB, left by dead processes"), "{list}");
    [&remote, &half, &results].iter().for_each(|path| make_stale(path));
    assert!(status_of_all(&world).contains("): died"), "{}", status_of_all(&world));
    let list = stdout(&world.ghostlab(&["cache", "ls"]));
    assert!(list.contains("drafts: 2, 6.0 MB, left by dead processes"), "{list}");
    let shown = stdout(&world.ghostlab(&["cache", "gc"]));
    assert!(shown.contains("drafts of dead processes") && shown.contains("6.0 MB"), "{shown}");
    fs::remove_dir_all(stage_folder(&world, "scores")).unwrap();
    world.run_ok(&[]);
    for left in ["drafts", "claims", "processes", "uses"] {
        assert_eq!(fs::read_dir(store.join(left)).unwrap().count(), 0, "{left}");
    }
    for folder in [store.join("runs"), store.clone(), world.path("results")] {
        let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
        let left: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn status_of_all(world: &World) -> String {
    stdout(&world.ghostlab(&["status", "--all"]))
}
