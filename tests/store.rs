//! Ownership of stores: foreign folders, read-only stores, stores of several users, and foreign files in a store. Some
//! tests need another user or a mount; without root they are skipped with a message.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "a test panics on setup errors, and says what it leaves out"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::common::stored_record;
use crate::common::world::World;
use serde_json::{Value, json};

/// Timeout above the duration of any command here, for detecting hangs.
const LONG: Duration = Duration::from_secs(120);

/// Id of another machine's process in a store.
const FAR: &str = "5-0123456789ab";

fn ended(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > LONG {
            child.kill().unwrap();
            panic!("it hangs: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn done(mut command: Command) -> (Option<i32>, String) {
    let output = ended(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    (output.status.code(), text)
}

fn ghostlab(world: &World, arguments: &[&str]) -> (Option<i32>, String) {
    done(world.command(arguments))
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pipe(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Sets a file's times to ten minutes ago, beyond the lease timeout of shared file systems.
fn age(path: &Path) {
    let ago = (SystemTime::now() - Duration::from_secs(600)).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    // `touch` also works for pipes, which cannot be opened here.
    let asked = Command::new("touch").args(["-d", &format!("@{}", ago.as_secs())]).arg(path).status().unwrap();
    assert!(asked.success(), "{}", path.display());
}

/// Lists everything below a folder: mode, time and bytes.
fn tree(folder: &Path) -> BTreeMap<PathBuf, (u32, Option<SystemTime>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let data = entry.metadata().unwrap();
            let bytes = if data.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            // Ignore folder times: the store creates and removes a file to read the file system's clock.
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

/// Returns a command prefix that runs the rest as another user, or `None` if not permitted.
fn as_user(uid: u32, gid: u32) -> Option<Vec<String>> {
    let words = ["setpriv".to_owned(), format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".to_owned()];
    let works = Command::new(&words[0]).args(&words[1..]).arg("true").stderr(Stdio::null()).status();
    let works = is_root() && works.is_ok_and(|status| status.success());
    if !works {
        println!("skipped: only root may be another user");
    }
    works.then(|| words.to_vec())
}

/// Builds a command that runs the program in a world, with a prefix.
fn after(words: &[String], world: &World, arguments: &[&str]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(env!("CARGO_BIN_EXE_ghostlab")).args(arguments).current_dir(world.folder.path());
    command
}

/// Writes a user's old files into folders named like those of a store.
fn foreign(folder: &Path) {
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
        put(&folder.join(name), "mine");
    }
    let all: Vec<PathBuf> = tree(folder).into_keys().collect();
    all.iter().rev().for_each(|path| age(path));
}

#[test]
fn no_command_touches_a_folder_that_is_not_a_store() {
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
    // A foreign folder; one with its own `store.json`; one with an unreadable `store.json`.
    for (mark, name) in [(None, "own"), (Some("{\"users\": []}"), "shop"), (Some("{\"form"), "broken")] {
        let folder = world.path(name);
        foreign(&folder);
        if let Some(text) = mark {
            put(&folder.join("store.json"), text);
        }
        let before = tree(&folder);
        for (words, needs) in commands {
            let store_words = if words[0] == "store" { vec![name] } else { vec!["--store", name] };
            let (code, log) = ghostlab(&world, &[words, &store_words].concat());
            let reported = log.contains("no store") || log.contains("the file that marks the store is damaged");
            assert!(!needs || ([Some(3), Some(5)].contains(&code) && reported), "{name} {words:?}: {code:?} {log}");
            assert!(!needs || (log.contains(name) && log.contains("hint:")), "{name} {words:?}: {log}");
            assert!(tree(&folder) == before, "{name} {words:?} changed something");
        }
    }
    assert!(!world.path("out").exists());
    // An empty folder may become a store, and so may the root of a disk.
    fs::create_dir_all(world.path("disk/lost+found")).unwrap();
    let (code, log) = ghostlab(&world, &["run", "grid.yaml", "--store", "disk"]);
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn in_a_store_only_what_is_its_own_is_swept() {
    let world = World::new();
    world.runs(&[]);
    let store = world.path("data/store");
    // Foreign files next to leftovers of dead processes.
    foreign(&store);
    let theirs: Vec<PathBuf> =
        tree(&store).into_keys().filter(|path| fs::read(path).is_ok_and(|text| text == b"mine")).collect();
    assert_eq!(theirs.len(), 16);
    let draft = store.join(format!("drafts/{FAR}.0"));
    put(&draft.join("rows.f32"), "half");
    let record = store.join(format!("processes/{FAR}.json"));
    let text = json!({"id": FAR, "pid": 5, "system": "another", "started": 7, "beat": "00000000000000000007"});
    put(&record, &text.to_string());
    put(&store.join(format!("uses/{FAR}")), "abc\n");
    age(&record);
    for arguments in
        [&["run", "grid.yaml", "--set", "depth=1"][..], &["cache", "gc", "--yes"], &["cache", "verify", "--repair"]]
    {
        let (code, log) = ghostlab(&world, arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {log}");
        theirs.iter().for_each(|path| assert!(path.exists(), "{arguments:?}: {} is gone", path.display()));
        assert!(!draft.exists() && !record.exists(), "what is ours is swept");
    }
}

/// Commands that compute nothing.
const READING: [&[&str]; 10] = [
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
    world.runs(&[]);
    let store = world.path("data/store");
    // Leftovers of dead processes are kept, too.
    put(&store.join(format!("drafts/{FAR}.0/rows.f32")), "half");
    age(&store.join(format!("drafts/{FAR}.0/rows.f32")));
    age(&store.join(format!("drafts/{FAR}.0")));
    let before = tree(&store);
    let results = world.path("elsewhere");
    fs::create_dir(&results).unwrap();
    fs::set_permissions(&results, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let other = as_user(65_534, 65_534);
    let mut outputs = Vec::new();
    for words in READING {
        let words: Vec<&str> =
            words.iter().map(|word| if *word == "/RESULTS" { results.to_str().unwrap() } else { word }).collect();
        let (code, output) = ghostlab(&world, &words);
        assert_eq!(code, Some(0), "{words:?}: {output}");
        assert!(tree(&store) == before, "{words:?} changed the store");
        // A user without write permission can run these commands too.
        if let Some(other) = &other {
            // Another user cannot replace these results.
            if words[0] == "run" {
                fs::remove_dir_all(results.join("grid")).unwrap();
            }
            let (code, theirs) = done(after(other, &world, &words));
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
    assert_eq!(
        counts,
        ["tokens", "2", "1", "1"],
        "tokens that a plan makes to count them are not kept: {}",
        outputs[1]
    );
    assert!(results.join("grid/results.csv").is_file());
    // Reading commands create no store.
    let (code, text) = ghostlab(&world, &["plan", "grid.yaml", "--store", "new"]);
    assert!(code == Some(0) && text.contains("0 complete, 9 to run") && !world.path("new").exists(), "{text}");
    let disk = text.lines().find(|line| line.starts_with("disk:")).unwrap();
    assert!(disk.ends_with("are free"), "of the disk that it would lie on: {disk}");
    let (code, text) = ghostlab(&world, &["run", "grid.yaml", "--stored", "--store", "new", "--results", "none"]);
    assert!(code == Some(3) && text.contains("not made yet") && !world.path("new").exists(), "{text}");
}

#[test]
fn pipes_and_folders_in_a_store_are_damage_and_never_a_hang() {
    let world = World::new();
    world.runs(&[]);
    let tables = world.tables();
    let store = world.path("data/store");
    let artifacts = ["scores-v", "operator-v", "selection-v"].map(|kind| {
        let names = fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path());
        let mut found = names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(kind));
        let group = fs::read_dir(found.next().unwrap()).unwrap().next().unwrap().unwrap().path();
        fs::read_dir(group).unwrap().next().unwrap().unwrap().path()
    });
    let hash = "a".repeat(64);
    let files = [
        store.join(format!("processes/{FAR}.json")),
        store.join("claims/tokenising"),
        store.join(format!("claims/{hash}-0")),
        store.join(format!("uses/{FAR}")),
        store.join("index/abc.json"),
        store.join("runs/000000000000-5-0123456789ab-0.json"),
        store.join("plans/abc.json"),
        store.join(format!("attempts/{hash}/5-0123456789ab.5.0.json")),
        store.join(format!("attempts/{hash}b")),
        store.join(format!("journals/{hash}")),
        store.join(format!("journals/{hash}b/{FAR}.0.jsonl")),
        store.join("submissions/abc/submission.json"),
        store.join("submissions/abc/jobs.json"),
        store.join("submissions/def"),
    ];
    let make_folder = |path: &Path| fs::create_dir_all(path).unwrap();
    type Make<'a> = (&'a str, &'a dyn Fn(&Path));
    let makes: [Make<'_>; 2] = [("a pipe", &pipe), ("a folder", &make_folder)];
    for (what, make) in makes {
        for path in artifacts.iter().chain(&files) {
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap_or(());
            }
            make(path);
        }
        for words in READING.iter().filter(|words| words[0] != "run") {
            let (code, log) = ghostlab(&world, words);
            assert!([Some(0), Some(5)].contains(&code), "{what} {words:?}: {log}");
        }
        let (code, report) = ghostlab(&world, &["cache", "verify"]);
        assert_eq!(code, Some(5), "{what}: {report}");
        for path in files.iter().filter(|path| !path.starts_with(store.join("submissions"))) {
            let is_ours = what == "a folder"
                && ["attempts", "journals"].iter().any(|name| path.parent() == Some(&store.join(name)));
            assert!(
                is_ours || report.contains(path.strip_prefix(world.folder.path()).unwrap().to_str().unwrap()),
                "{what}: {} is not named: {report}",
                path.display()
            );
        }
        let log = world.runs(&[]);
        assert!(world.tables() == tables, "{what}: {log}");
        let (code, log) = ghostlab(&world, &["cache", "verify", "--repair"]);
        assert_eq!(code, Some(0), "{what}: {log}");
        assert_eq!(ghostlab(&world, &["cache", "verify"]).0, Some(0), "{what}");
        world.runs(&[]);
        assert!(world.tables() == tables, "{what}");
        fs::remove_dir_all(store.join("submissions")).unwrap();
    }
    // A non-empty folder is never removed, and reported until it is moved away.
    put(&store.join("plans/abc.json/letter"), "mine");
    let (code, log) = ghostlab(&world, &["cache", "verify", "--repair"]);
    assert!(code == Some(5) && log.contains("move it away"), "{log}");
    assert!(store.join("plans/abc.json/letter").exists());
}

#[test]
fn unreadable_record_counts_as_alive_for_three_minutes() {
    let text = json!({"id": FAR, "pid": 5, "system": "another", "started": 7, "beat": "00000000000000000007"});
    type Spoil<'a> = (&'a str, &'a dyn Fn(&Path));
    let make_folder = |path: &Path| fs::create_dir_all(path).unwrap();
    let spoils: [Spoil<'_>; 3] =
        [("a pipe", &pipe), ("a folder", &make_folder), ("cut", &|path| put(path, "{\"id\":"))];
    for (what, spoil) in spoils {
        let world = World::new();
        world.runs(&["--set", "depth=1"]);
        let store = world.path("data/store");
        let record = store.join(format!("processes/{FAR}.json"));
        let calibration = fs::read_dir(store.join("plans")).unwrap().next().unwrap().unwrap().path();
        let outline = stored_record(&calibration).unwrap();
        let claims: Vec<&str> =
            outline["jobs"].as_array().unwrap().iter().map(|job| job["claim"].as_str().unwrap()).collect();
        let claim = claims.iter().find(|claim| claim.starts_with("calibrate-")).unwrap();
        put(&store.join("claims").join(claim), &text.to_string());
        spoil(&record);
        let (code, log) = ghostlab(&world, &["worker", "grid.yaml", "--idle-exit", "1"]);
        assert!(code == Some(0) && log.contains("this worker exited"), "{what}: in doubt it lives: {log}");
        age(&record);
        let (code, log) = ghostlab(&world, &["worker", "grid.yaml", "--idle-exit", "60"]);
        assert!(code == Some(0) && log.contains("all 9 cells are stored"), "{what}: {log}");
    }
}

#[test]
fn a_store_whose_mark_is_damaged_says_so_and_is_mended() {
    let world = World::new();
    world.runs(&[]);
    let tables = world.tables();
    let mark = world.path("data/store/store.json");
    let full_mark = fs::read(&mark).unwrap();
    type Spoil<'a> = (&'a str, Box<dyn Fn(&Path) + 'a>);
    let spoils: [Spoil<'_>; 6] = [
        ("emptied", Box::new(|path| put(path, ""))),
        ("cut", Box::new(|path| fs::write(path, &full_mark[..full_mark.len() / 2]).unwrap())),
        ("zeros", Box::new(|path| fs::write(path, vec![0; full_mark.len()]).unwrap())),
        ("a pipe", Box::new(pipe)),
        ("a folder", Box::new(|path: &Path| fs::create_dir_all(path).unwrap())),
        ("lost", Box::new(|_| ())),
    ];
    for (what, spoil) in &spoils {
        fs::remove_file(&mark).unwrap();
        spoil(&mark);
        let lost = *what == "lost";
        for words in [&["run", "grid.yaml"][..], &["plan", "grid.yaml"], &["status"], &["cache", "verify"]] {
            let (code, log) = ghostlab(&world, words);
            assert_eq!(code, Some(if lost { 3 } else { 5 }), "{what} {words:?}: {log}");
            assert!(log.contains("store.json") && log.contains("cache verify --repair"), "{what} {words:?}: {log}");
        }
        let (code, report) = ghostlab(&world, &["cache", "verify", "--repair"]);
        assert!(
            code == Some(0) && report.contains("store.json was lost or damaged, and was rewritten"),
            "{what}: {report}"
        );
        let log = world.runs(&[]);
        assert!(log.contains("9 of 9 cells are stored already") && world.tables() == tables, "{what}: {log}");
    }
}

#[test]
fn a_foreign_folder_with_names_of_a_store_is_not_repaired() {
    let world = World::new();
    let folder = world.path("own");
    put(&folder.join("runs/thesis.txt"), "mine");
    fs::create_dir(folder.join("runs/empty")).unwrap();
    pipe(&folder.join("runs/pipe"));
    let before = tree(&folder);
    let (code, log) = ghostlab(&world, &["cache", "verify", "--repair", "--store", "own"]);
    assert!(code == Some(3) && log.contains("no store") && !log.contains("--repair"), "{log}");
    assert!(tree(&folder) == before, "something was written or removed");
}

#[test]
fn a_flipped_byte_of_a_record_is_named_and_removed() {
    let world = World::new();
    world.runs(&[]);
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

fn under(umask: &str, mut command: Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).arg(command.get_program());
    shell.args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    command.stdin(Stdio::null());
    shell
}

#[test]
fn shared_store_files_belong_to_its_group_for_any_umask() {
    for (whom, file, folder) in [("group", 0o660, 0o2770), ("all", 0o664, 0o2775)] {
        let world = World::large();
        let store = world.path("shared");
        let init = ["store", "init", "shared", "--shared", whom];
        assert_eq!(done(under("077", world.command(&init))).0, Some(0));
        let small = ["--set", "criterion=llm-streamline", "--set", "depth=2", "--store", "shared"];
        // A killed run leaves journals, drafts and a record; a worker records a failure.
        let mut killed = under("077", world.command(&[&["run", "grid.yaml"], &small[..]].concat()));
        killed.env("GHOSTLAB_FAULT", "kill@journal:2");
        assert_eq!(done(killed).0, None);
        let mut failing =
            under("077", world.command(&[&["worker", "grid.yaml", "--idle-exit", "1"], &small[..]].concat()));
        failing.env("GHOSTLAB_FAULT", "panic@score:1");
        // The process reports the requested panic.
        ended(failing.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let modes = |what: &str| {
            for (path, (mode, ..)) in tree(&store)
                .into_iter()
                .chain([(store.clone(), (fs::metadata(&store).unwrap().mode(), None, Vec::new()))])
            {
                let wanted = if path.is_dir() { folder } else { file };
                assert_eq!(mode & 0o7777, wanted, "{whom}, {what}: {} has {mode:o}", path.display());
            }
        };
        for made in ["journals", "attempts", "runs", "plans", "index", "submissions"] {
            let there = fs::read_dir(store.join(made)).is_ok_and(|mut names| names.next().is_some());
            assert!(there || ["index", "submissions"].contains(&made), "nothing in {made} was looked at");
        }
        modes("what a killed run and a failing worker left");
        assert_eq!(done(under("077", world.command(&[&["run", "grid.yaml"], &small[..]].concat()))).0, Some(0));
        modes("what a run made");
    }
    // `--shared` changes an existing store with its contents; without it, the store keeps its modes.
    let world = World::new();
    assert_eq!(done(under("077", world.command(&["run", "grid.yaml"]))).0, Some(0));
    assert_eq!(fs::metadata(world.path("data/store/store.json")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(ghostlab(&world, &["store", "init", "data/store", "--shared", "group"]).0, Some(0));
    assert_eq!(ghostlab(&world, &["store", "init", "data/store"]).0, Some(0));
    for (path, (mode, ..)) in tree(&world.path("data/store")) {
        let wanted = if path.is_dir() { 0o2770 } else { 0o660 };
        assert_eq!(mode & wanted, wanted, "{} has {mode:o}", path.display());
    }
    let (code, log) = ghostlab(&world, &["store", "init", "data/store", "--json"]);
    assert!(code == Some(0) && log.contains("\"group\""), "{log}");
    let (code, log) = ghostlab(&world, &["store", "init", "x", "--shared", "world"]);
    assert!(code == Some(2) && log.contains("group"), "{log}");
}

#[test]
fn two_users_of_a_group_work_on_one_store_under_a_closed_umask() {
    const GROUP: u32 = 64_999;
    let (Some(one), Some(two)) = (as_user(64_001, GROUP), as_user(64_002, GROUP)) else { return };
    let world = World::large();
    fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let small = ["--set", "criterion=llm-streamline", "--set", "depth=2"];
    world.runs(&[&small[..], &["--results", "alone", "--store", "own"]].concat());
    let folder = world.path("group");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(64_001), Some(GROUP)).unwrap();
    let init = after(&one, &world, &["store", "init", "group", "--shared", "group"]);
    assert_eq!(done(under("077", init)).0, Some(0));
    let mut kills = 0;
    for (user, fault) in [(&one, "kill@journal:1"), (&two, "kill@commit:3"), (&one, "kill@score:2"), (&two, "")] {
        let results = world.path(&format!("results-{}", user[1]));
        fs::create_dir_all(&results).unwrap();
        fs::set_permissions(&results, fs::Permissions::from_mode(0o777)).unwrap();
        let arguments =
            [&["run", "grid.yaml", "--store", "group", "--results", results.to_str().unwrap()], &small[..]].concat();
        let mut command = under("077", after(user, &world, &arguments));
        command.env("GHOSTLAB_FAULT", fault);
        let (code, log) = done(command);
        // The second process resumes where the first was killed, and removes its leftovers.
        assert!(code == Some(0) || (code.is_none() && !fault.is_empty()), "{fault}: {code:?} {log}");
        kills += usize::from(code.is_none());
    }
    assert!(kills >= 2, "each is killed once before the end");
    let read = |folder: &str| {
        let all = tree(&world.path(folder)).into_iter();
        all.filter(|(path, _)| path.ends_with("results.csv")).map(|(_, (.., bytes))| bytes).collect::<Vec<_>>()
    };
    assert!(read("alone").len() == 1 && read("alone") == read("results---reuid=64002"));
    for left in ["drafts", "claims", "processes", "uses", "journals"] {
        assert_eq!(fs::read_dir(folder.join(left)).unwrap().count(), 0, "{left}");
    }
}

#[test]
fn hidden_process_of_another_user_is_not_presumed_dead() {
    let world = World::new();
    // A separate mount of /proc that shows each user only their own processes.
    let hidden = ["unshare", "--mount", "sh", "-c", "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"", "sh"];
    let hidden = hidden.map(str::to_owned);
    let works = Command::new(&hidden[0]).args(&hidden[1..]).arg("true").stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        println!("skipped: /proc cannot be mounted here");
        return;
    }
    let (Some(one), Some(two)) = (as_user(64_001, 64_999), as_user(64_002, 64_999)) else { return };
    fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let store = world.path("group");
    fs::create_dir(&store).unwrap();
    std::os::unix::fs::chown(&store, Some(64_001), Some(64_999)).unwrap();
    let run =
        |user: &[String], arguments: &[&str]| under("077", after(&[&hidden[..], user].concat(), &world, arguments));
    assert_eq!(done(run(&one, &["store", "init", "group", "--shared", "group"])).0, Some(0));
    let worker = ["worker", "grid.yaml", "--store", "group"];
    let mut halted = run(&one, &worker);
    halted.env("GHOSTLAB_FAULT", "stop@activations:1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let halted = halted.spawn().unwrap();
    let claimed = || {
        let names = fs::read_dir(store.join("claims")).into_iter().flatten().flatten();
        names.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("calibrate-"))
    };
    until("no worker", || {
        claimed().is_some()
            && fs::read_to_string(format!("/proc/{}/stat", halted.id())).is_ok_and(|stat| stat.contains(") T "))
    });
    let before = fs::read(claimed().unwrap()).unwrap();
    let (code, log) = done(run(&two, &[&worker[..], &["--idle-exit", "2"]].concat()));
    assert!(code == Some(0) && log.contains("this worker exited"), "{code:?} {log}");
    assert_eq!(claimed().map(|path| fs::read(path).unwrap()), Some(before), "the claim was taken from a living worker");
    assert!(!store.join("attempts").exists(), "it is said to have died");
    assert!(Command::new("kill").args(["-CONT", &halted.id().to_string()]).status().unwrap().success());
    assert_eq!(ended(halted).status.code(), Some(0));
    // The dead process is recognized, because its pid is no longer in use.
    let mut killed = run(&one, &["worker", "grid.yaml", "--store", "group", "--set", "calibration.seed=7"]);
    killed.env("GHOSTLAB_FAULT", "kill@activations:1");
    assert_eq!(done(killed).0, None);
    let (code, log) = done(run(
        &two,
        &["worker", "grid.yaml", "--store", "group", "--set", "calibration.seed=7", "--idle-exit", "60"],
    ));
    assert!(code == Some(0) && log.contains("all 9 cells are stored"), "{log}");
}

#[test]
fn suspended_worker_yields_lost_jobs_and_continues() {
    let undisturbed = World::new();
    undisturbed.runs(&[]);
    let halted: Vec<(World, Child)> = ["stop@activations:1", "stop@score:1"]
        .into_iter()
        .map(|point| {
            let world = World::new();
            let mut command = world.command(&["worker", "grid.yaml"]);
            command.env("GHOSTLAB_FAULT", point).stdout(Stdio::null()).stderr(Stdio::piped());
            let child = command.spawn().unwrap();
            let stat = format!("/proc/{}/stat", child.id());
            until("it does not stop", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
            // Make the record look like that of another machine's process without recent heartbeats.
            let record = fs::read_dir(world.path("data/store/processes")).unwrap().next().unwrap().unwrap().path();
            let mut worker: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
            worker["system"] = json!("another machine");
            fs::write(&record, worker.to_string()).unwrap();
            age(&record);
            let (code, log) = ghostlab(&world, &["worker", "grid.yaml", "--idle-exit", "60"]);
            assert!(code == Some(0) && log.contains("all 9 cells are stored"), "{point}: {log}");
            (world, child)
        })
        .collect();
    // A lease is trusted for half a minute before it is checked again.
    std::thread::sleep(Duration::from_secs(31));
    for (world, child) in halted {
        assert!(Command::new("kill").args(["-CONT", &child.id().to_string()]).status().unwrap().success());
        let output = ended(child);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert!(log.contains("suspended for so long that others took it for dead"), "{log}");
        assert!(log.contains("all 9 cells are stored"), "{log}");
        for left in ["claims", "processes", "drafts", "journals", "uses", "attempts"] {
            let count = fs::read_dir(world.path("data/store").join(left)).map_or(0, Iterator::count);
            assert_eq!(count, 0, "{left}: {log}");
        }
        assert_eq!(ghostlab(&world, &["cache", "verify"]).0, Some(0));
        world.runs(&[]);
        assert!(world.tables() == undisturbed.tables());
    }
}
