//! Tests for store ownership: folders and files that belong to someone else, read-only stores, and stores shared by
//! several users. Some tests need another user or a mount. Without root, they are skipped with a message.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print why they are skipped"
)]

mod damage;
mod shared;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::common::output::wait_for_exit;
use crate::common::read_record;
use crate::common::world::World;
use serde_json::{Value, json};

/// Id, in the format of the store, of a process on another machine.
const REMOTE_PROCESS: &str = "5-0123456789ab";

fn run_to_exit(mut command: Command) -> (Option<i32>, String) {
    let output =
        wait_for_exit(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    (output.status.code(), text)
}

fn ghostlab(world: &World, arguments: &[&str]) -> (Option<i32>, String) {
    run_to_exit(world.command(arguments))
}

fn make_pipe(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn write_file(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Sets a file's times to ten minutes ago. This is longer than the lease timeout on shared file systems.
fn make_old(path: &Path) {
    let ago = (SystemTime::now() - Duration::from_secs(600)).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    // `touch` also works for pipes, which this process could not open without blocking.
    let touched = Command::new("touch").args(["-d", &format!("@{}", ago.as_secs())]).arg(path).status().unwrap();
    assert!(touched.success(), "{}", path.display());
}

/// Returns the mode, modification time and bytes of each file and folder under a folder.
fn read_tree(folder: &Path) -> BTreeMap<PathBuf, (u32, Option<SystemTime>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let data = entry.metadata().unwrap();
            let bytes = if data.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            // Ignore the times of folders, because the store creates and removes a file to read the file system's
            // clock.
            let time = data.is_file().then(|| data.modified().unwrap());
            all.insert(path.clone(), (data.mode(), time, bytes));
            if data.is_dir() {
                folders.push(path);
            }
        }
    }
    all
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Returns a command prefix that runs a command as another user, or `None` if this is not permitted.
fn as_user(uid: u32, gid: u32) -> Option<Vec<String>> {
    let words = ["setpriv".to_owned(), format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".to_owned()];
    let works = Command::new(&words[0]).args(&words[1..]).arg("true").stderr(Stdio::null()).status();
    let works = is_root() && works.is_ok_and(|status| status.success());
    if !works {
        println!("skipped: running as another user requires root");
    }
    works.then(|| words.to_vec())
}

/// Builds a command that runs the program in a world, preceded by the given prefix.
fn command_after(words: &[String], world: &World, arguments: &[&str]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(env!("CARGO_BIN_EXE_ghostlab")).args(arguments).current_dir(world.folder.path());
    command
}

/// Writes user files into folders that have the same names as those of a store.
fn write_foreign_files(folder: &Path) {
    for name in [
        "letter.txt",
        "drafts/novel.txt",
        "drafts/chapter.1/page",
        "drafts/2024/may.md",
        "journals/2024/may.md",
        "journals/5-0123456789ab.0.jsonl/mine",
        "uses/of-a-hammer",
        "claims/insurance.json",
        "processes/how-to.json",
        "attempts/one/first",
        "index/a.json",
        "runs/10k.json",
        "plans/house.json",
        "tokens-v1/ab/mine",
        "scores-v3/football/1974",
        ".notes.of.5-1-abcdefabcdef.ghostlab-tmp",
    ] {
        write_file(&folder.join(name), "mine");
    }
    let all: Vec<PathBuf> = read_tree(folder).into_keys().collect();
    all.iter().rev().for_each(|path| make_old(path));
}

#[test]
fn commands_do_not_touch_foreign_store_folders() {
    let world = World::new();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments").display().to_string();
    let commands: [(&[&str], bool); 20] = [
        (&["plan", "grid.yaml"], true),
        (&["explain", "grid.yaml", "dense"], true),
        (&["run", "grid.yaml"], true),
        (&["run", "grid.yaml", "--stored"], true),
        (&["worker", "grid.yaml"], true),
        (&["score", "backbone", "--perplexity", "train.txt"], true),
        (&["export", "grid.yaml", "dense", "--to", "out"], true),
        (&["submit", "slurm", "grid.yaml", "--dry-run"], true),
        (&["cancel"], true),
        (&["status"], true),
        (&["reproduce", "--experiments", &checkout], true),
        (&["reproduce", "figure3", "--stored", "--experiments", &checkout], true),
        (&["reproduce", "figure3", "--experiments", &checkout], true),
        (&["cache", "ls"], true),
        (&["cache", "verify"], true),
        (&["cache", "verify", "--repair"], true),
        (&["cache", "gc", "--yes"], true),
        (&["cache", "path", "abc"], true),
        (&["store", "init"], true),
        (&["doctor"], false),
    ];
    // Cover a folder without a `store.json`, one with the `store.json` of another program, and one with a damaged
    // `store.json`.
    for (mark, name) in [(None, "own"), (Some("{\"users\": []}"), "shop"), (Some("{\"form"), "broken")] {
        let folder = world.path(name);
        write_foreign_files(&folder);
        if let Some(text) = mark {
            write_file(&folder.join("store.json"), text);
        }
        let before = read_tree(&folder);
        for (words, needs) in commands {
            let store_words = if words[0] == "store" { vec![name] } else { vec!["--store", name] };
            let (code, log) = ghostlab(&world, &[words, &store_words].concat());
            let reported = ["neither a store nor empty", "store not found", "`store.json` is damaged"]
                .iter()
                .any(|words| log.contains(words));
            assert!(!needs || ([Some(3), Some(5)].contains(&code) && reported), "{name} {words:?}: {code:?} {log}");
            assert!(!needs || (log.contains(name) && log.contains("hint:")), "{name} {words:?}: {log}");
            assert!(read_tree(&folder) == before, "{name} {words:?} changed the folder");
        }
    }
    assert!(!world.path("out").exists());
    // An empty folder may become a store, and so may the root folder of a disk.
    fs::create_dir_all(world.path("disk/lost+found")).unwrap();
    let (code, log) = ghostlab(&world, &["run", "grid.yaml", "--store", "disk"]);
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn only_store_leftovers_are_removed() {
    let world = World::new();
    world.run_ok(&[]);
    let store = world.path("data/store");
    // Put a user's files next to the leftovers of dead processes.
    write_foreign_files(&store);
    let theirs: Vec<PathBuf> =
        read_tree(&store).into_keys().filter(|path| fs::read(path).is_ok_and(|text| text == b"mine")).collect();
    assert_eq!(theirs.len(), 16);
    let draft = store.join(format!("drafts/{REMOTE_PROCESS}.0"));
    write_file(&draft.join("rows.f32"), "half");
    let record = store.join(format!("processes/{REMOTE_PROCESS}.json"));
    let text =
        json!({"id": REMOTE_PROCESS, "pid": 5, "system": "another", "started": 7, "beat": "00000000000000000007"});
    write_file(&record, &text.to_string());
    write_file(&store.join(format!("uses/{REMOTE_PROCESS}")), "abc\n");
    make_old(&record);
    for arguments in
        [&["run", "grid.yaml", "--set", "depth=1"][..], &["cache", "gc", "--yes"], &["cache", "verify", "--repair"]]
    {
        let (code, log) = ghostlab(&world, arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {log}");
        theirs.iter().for_each(|path| assert!(path.exists(), "{arguments:?}: {} was removed", path.display()));
        assert!(!draft.exists() && !record.exists(), "leftovers of the store were not removed");
    }
}

/// Commands that must leave the store unchanged. `/RESULTS` stands for a writable results folder.
const READ_ONLY_COMMANDS: [&[&str]; 10] = [
    &["plan", "grid.yaml", "--results", "/RESULTS"],
    &["plan", "grid.yaml", "--results", "/RESULTS", "--set", "calibration.seed=7", "--store-limit", "1"],
    &["explain", "grid.yaml", "depth/1/ghosted"],
    &["explain", "grid.yaml", "depth/1/ghosted", "--set", "calibration.seed=7"],
    &["run", "grid.yaml", "--stored", "--results", "/RESULTS"],
    &["status"],
    &["cache", "ls", "--all"],
    &["cache", "verify"],
    &["cache", "gc"],
    &["cache", "gc", "--keep", "grid.yaml", "--json"],
];

#[test]
fn read_only_commands_work_on_a_read_only_store() {
    let world = World::new();
    world.run_ok(&[]);
    let store = world.path("data/store");
    // Files left by dead processes must not be removed either.
    write_file(&store.join(format!("drafts/{REMOTE_PROCESS}.0/rows.f32")), "half");
    make_old(&store.join(format!("drafts/{REMOTE_PROCESS}.0/rows.f32")));
    make_old(&store.join(format!("drafts/{REMOTE_PROCESS}.0")));
    let before = read_tree(&store);
    let results = world.path("elsewhere");
    fs::create_dir(&results).unwrap();
    fs::set_permissions(&results, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let other = as_user(65_534, 65_534);
    let mut outputs = Vec::new();
    for words in READ_ONLY_COMMANDS {
        let words: Vec<&str> =
            words.iter().map(|word| if *word == "/RESULTS" { results.to_str().unwrap() } else { word }).collect();
        let (code, output) = ghostlab(&world, &words);
        assert_eq!(code, Some(0), "{words:?}: {output}");
        assert!(read_tree(&store) == before, "{words:?} changed the store");
        // These commands must also work for a user without write permission.
        if let Some(other) = &other {
            // Remove the results first, because the other user could not replace them.
            if words[0] == "run" {
                fs::remove_dir_all(results.join("grid")).unwrap();
            }
            let (code, theirs) = run_to_exit(command_after(other, &world, &words));
            assert_eq!(code, Some(0), "{words:?}: {theirs}");
        }
        outputs.push(output);
    }
    assert!(outputs[0].contains("9 complete, 0 to run"), "{}", outputs[0]);
    let counts: Vec<String> = outputs[1]
        .lines()
        .find(|line| line.starts_with("tokens"))
        .unwrap()
        .to_owned()
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    assert_eq!(counts, ["tokens", "2", "1", "1"], "plan kept its temporary tokens: {}", outputs[1]);
    assert!(results.join("grid/results.csv").is_file());
    // Read-only commands must not create a store.
    let (code, text) = ghostlab(&world, &["plan", "grid.yaml", "--store", "new"]);
    assert!(code == Some(0) && text.contains("0 complete, 9 to run") && !world.path("new").exists(), "{text}");
    let disk = text.lines().find(|line| line.starts_with("disk:")).unwrap();
    assert!(disk.ends_with(" free"), "no free space reported: {disk}");
    let (code, text) = ghostlab(&world, &["run", "grid.yaml", "--stored", "--store", "new", "--results", "none"]);
    assert!(code == Some(3) && text.contains("9 of 9 cells not computed") && !world.path("new").exists(), "{text}");
}
