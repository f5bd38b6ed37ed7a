//! Tests with damaged stores.

use super::*;

#[test]
fn pipes_and_folders_in_a_store_are_reported_as_damage() {
    let world = World::new();
    world.run_ok(&[]);
    let tables = world.tables();
    let store = world.path("data/store");
    let artifacts = ["scores-v", "operator-v", "selection-v"].map(|kind| first_artifact(&store, kind));
    let files = store_files(&store);
    type Make<'a> = (&'a str, &'a dyn Fn(&Path));
    let makes: [Make<'_>; 2] = [("a pipe", &make_pipe), ("a folder", &|path: &Path| fs::create_dir_all(path).unwrap())];
    for (what, make) in makes {
        for path in artifacts.iter().chain(&files) {
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap_or(());
            }
            make(path);
        }
        assert_damage_is_reported(&world, what, &files);
        let log = world.run_ok(&[]);
        assert!(world.tables() == tables, "{what}: {log}");
        let (code, log) = ghostlab(&world, &["cache", "verify", "--repair"]);
        assert_eq!(code, Some(0), "{what}: {log}");
        assert_eq!(ghostlab(&world, &["cache", "verify"]).0, Some(0), "{what}");
        world.run_ok(&[]);
        assert!(world.tables() == tables, "{what}");
        fs::remove_dir_all(store.join("submissions")).unwrap();
    }
    // A folder that is not empty is never removed. It is reported until the user moves it away.
    write_file(&store.join("plans/abc.json/letter"), "mine");
    let (code, log) = ghostlab(&world, &["cache", "verify", "--repair"]);
    assert!(code == Some(5) && log.contains("move the entry out of the store"), "{log}");
    assert!(store.join("plans/abc.json/letter").exists());
}

/// Returns the path of the first stored object of the given kind.
fn first_artifact(store: &Path, kind: &str) -> PathBuf {
    let names = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path());
    let mut found = names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(kind));
    let group = fs::read_dir(found.next().unwrap()).unwrap().next().unwrap().unwrap().path();
    fs::read_dir(group).unwrap().next().unwrap().unwrap().path()
}

/// Returns paths for all kinds of files in a store, except those of stored objects.
fn store_files(store: &Path) -> [PathBuf; 14] {
    let hash = "a".repeat(64);
    [
        store.join(format!("processes/{REMOTE_PROCESS}.json")),
        store.join("claims/tokenising"),
        store.join(format!("claims/{hash}-0")),
        store.join(format!("uses/{REMOTE_PROCESS}")),
        store.join("index/abc.json"),
        store.join("runs/000000000000-5-0123456789ab-0.json"),
        store.join("plans/abc.json"),
        store.join(format!("attempts/{hash}/5-0123456789ab.5.0.json")),
        store.join(format!("attempts/{hash}b")),
        store.join(format!("journals/{hash}")),
        store.join(format!("journals/{hash}b/{REMOTE_PROCESS}.0.jsonl")),
        store.join("submissions/abc/submission.json"),
        store.join("submissions/abc/jobs.json"),
        store.join("submissions/def"),
    ]
}

/// Checks that no command hangs on the damaged files, and that `cache verify` names these files.
fn assert_damage_is_reported(world: &World, what: &str, files: &[PathBuf]) {
    let store = world.path("data/store");
    for words in READ_ONLY_COMMANDS.iter().filter(|words| words[0] != "run") {
        let (code, log) = ghostlab(world, words);
        assert!([Some(0), Some(5)].contains(&code), "{what} {words:?}: {log}");
    }
    let (code, report) = ghostlab(world, &["cache", "verify"]);
    assert_eq!(code, Some(5), "{what}: {report}");
    for path in files.iter().filter(|path| !path.starts_with(store.join("submissions"))) {
        let is_ours =
            what == "a folder" && ["attempts", "journals"].iter().any(|name| path.parent() == Some(&store.join(name)));
        assert!(
            is_ours || report.contains(path.strip_prefix(world.folder.path()).unwrap().to_str().unwrap()),
            "{what}: {} is not reported: {report}",
            path.display()
        );
    }
}

#[test]
fn process_with_unreadable_record_is_alive_for_3_minutes() {
    let text =
        json!({"id": REMOTE_PROCESS, "pid": 5, "system": "another", "started": 7, "beat": "00000000000000000007"});
    type Damage<'a> = (&'a str, &'a dyn Fn(&Path));
    let damages: [Damage<'_>; 3] = [
        ("a pipe", &make_pipe),
        ("a folder", &|path: &Path| fs::create_dir_all(path).unwrap()),
        ("cut", &|path| write_file(path, "{\"id\":")),
    ];
    for (what, damage) in damages {
        let world = World::new();
        world.run_ok(&["--set", "depth=1"]);
        let store = world.path("data/store");
        let record = store.join(format!("processes/{REMOTE_PROCESS}.json"));
        let calibration = fs::read_dir(store.join("plans")).unwrap().next().unwrap().unwrap().path();
        let outline = read_record(&calibration).unwrap();
        let claims: Vec<&str> =
            outline["jobs"].as_array().unwrap().iter().map(|job| job["claim"].as_str().unwrap()).collect();
        let claim = claims.iter().find(|claim| claim.starts_with("calibrate-")).unwrap();
        write_file(&store.join("claims").join(claim), &text.to_string());
        damage(&record);
        let (code, log) = ghostlab(&world, &["worker", "grid.yaml", "--idle-exit", "1"]);
        assert!(
            code == Some(0) && log.contains("all remaining jobs are leased by other workers"),
            "{what}: a possibly running process counts as dead: {log}"
        );
        make_old(&record);
        let (code, log) = ghostlab(&world, &["worker", "grid.yaml", "--idle-exit", "60"]);
        assert!(code == Some(0) && log.contains("all 9 cells complete"), "{what}: {log}");
    }
}

#[test]
fn damaged_store_marker_is_reported_and_repaired() {
    let world = World::new();
    world.run_ok(&[]);
    let tables = world.tables();
    let mark = world.path("data/store/store.json");
    let full_mark = fs::read(&mark).unwrap();
    type Damage<'a> = (&'a str, Box<dyn Fn(&Path) + 'a>);
    let damages: [Damage<'_>; 6] = [
        ("emptied", Box::new(|path| write_file(path, ""))),
        ("cut", Box::new(|path| fs::write(path, &full_mark[..full_mark.len() / 2]).unwrap())),
        ("zeros", Box::new(|path| fs::write(path, vec![0; full_mark.len()]).unwrap())),
        ("a pipe", Box::new(make_pipe)),
        ("a folder", Box::new(|path: &Path| fs::create_dir_all(path).unwrap())),
        ("lost", Box::new(|_| ())),
    ];
    for (what, damage) in &damages {
        fs::remove_file(&mark).unwrap();
        damage(&mark);
        let lost = *what == "lost";
        for words in [&["run", "grid.yaml"][..], &["plan", "grid.yaml"], &["status"], &["cache", "verify"]] {
            let (code, log) = ghostlab(&world, words);
            assert_eq!(code, Some(if lost { 3 } else { 5 }), "{what} {words:?}: {log}");
            assert!(log.contains("store.json") && log.contains("cache verify --repair"), "{what} {words:?}: {log}");
        }
        let (code, report) = ghostlab(&world, &["cache", "verify", "--repair"]);
        assert!(code == Some(0) && report.contains("rewrote ") && report.contains("store.json"), "{what}: {report}");
        let log = world.run_ok(&[]);
        assert!(log.contains("9 of 9 cells cached") && world.tables() == tables, "{what}: {log}");
    }
}

#[test]
fn foreign_folder_with_store_names_is_not_repaired() {
    let world = World::new();
    let folder = world.path("own");
    write_file(&folder.join("runs/thesis.txt"), "mine");
    fs::create_dir(folder.join("runs/empty")).unwrap();
    make_pipe(&folder.join("runs/pipe"));
    let before = read_tree(&folder);
    let (code, log) = ghostlab(&world, &["cache", "verify", "--repair", "--store", "own"]);
    assert!(
        code == Some(3)
            && ["neither a store nor empty", "store not found"].iter().any(|words| log.contains(words))
            && !log.contains("--repair"),
        "{log}"
    );
    assert!(read_tree(&folder) == before, "the store was changed");
}

#[test]
fn record_with_a_flipped_byte_is_named_and_removed() {
    let world = World::new();
    world.run_ok(&[]);
    for folder in ["runs", "plans"] {
        let record = fs::read_dir(world.path("data/store").join(folder)).unwrap().next().unwrap().unwrap().path();
        let mut bytes = fs::read(&record).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&record, bytes).unwrap();
        let name = record.file_name().unwrap().to_str().unwrap();
        for (words, code) in [(&["cache", "verify"][..], 5), (&["status"], 0), (&["cache", "verify", "--repair"], 0)] {
            let (found, log) = ghostlab(&world, words);
            assert!(found == Some(code) && log.contains(name) && log.contains("damaged"), "{words:?}: {log}");
        }
        assert!(!record.exists());
        let (code, log) = ghostlab(&world, &["cache", "verify"]);
        assert!(code == Some(0) && !log.contains(name), "{log}");
    }
}
