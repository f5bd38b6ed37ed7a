//! Tests for stores shared by several users and processes.

use super::*;
use crate::common::output::wait_until;

fn with_umask(umask: &str, mut command: Command) -> Command {
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
        assert_eq!(run_to_exit(with_umask("077", world.command(&init))).0, Some(0));
        let small = ["--set", "criterion=llm-streamline", "--set", "depth=2", "--store", "shared"];
        // A killed run leaves journals, drafts and a record behind. A failing worker records its failure.
        let mut killed = with_umask("077", world.command(&[&["run", "grid.yaml"], &small[..]].concat()));
        killed.env("GHOSTLAB_FAULT", "kill@journal:2");
        assert_eq!(run_to_exit(killed).0, None);
        let mut failing =
            with_umask("077", world.command(&[&["worker", "grid.yaml", "--idle-exit", "1"], &small[..]].concat()));
        failing.env("GHOSTLAB_FAULT", "panic@score:1");
        // Discard the output, because it contains the message of the injected panic.
        wait_for_exit(failing.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let assert_modes = |what: &str| {
            for (path, (mode, ..)) in read_tree(&store)
                .into_iter()
                .chain([(store.clone(), (fs::metadata(&store).unwrap().mode(), None, Vec::new()))])
            {
                let expected = if path.is_dir() { folder } else { file };
                assert_eq!(mode & 0o7777, expected, "{whom}, {what}: {} has {mode:o}", path.display());
            }
        };
        for name in ["journals", "attempts", "runs", "plans", "index", "submissions"] {
            let has_files = fs::read_dir(store.join(name)).is_ok_and(|mut names| names.next().is_some());
            assert!(has_files || ["index", "submissions"].contains(&name), "no file in {name} was checked");
        }
        assert_modes("after a killed run and a failing worker");
        assert_eq!(
            run_to_exit(with_umask("077", world.command(&[&["run", "grid.yaml"], &small[..]].concat()))).0,
            Some(0)
        );
        assert_modes("after a run");
    }
    // `store init --shared` changes the modes of an existing store and of everything in it. Without `--shared`, the
    // modes are kept.
    let world = World::new();
    assert_eq!(run_to_exit(with_umask("077", world.command(&["run", "grid.yaml"]))).0, Some(0));
    assert_eq!(fs::metadata(world.path("data/store/store.json")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(ghostlab(&world, &["store", "init", "data/store", "--shared", "group"]).0, Some(0));
    assert_eq!(ghostlab(&world, &["store", "init", "data/store"]).0, Some(0));
    for (path, (mode, ..)) in read_tree(&world.path("data/store")) {
        let expected = if path.is_dir() { 0o2770 } else { 0o660 };
        assert_eq!(mode & expected, expected, "{} has {mode:o}", path.display());
    }
    let (code, log) = ghostlab(&world, &["store", "init", "data/store", "--json"]);
    assert!(code == Some(0) && log.contains("\"group\""), "{log}");
    let (code, log) = ghostlab(&world, &["store", "init", "x", "--shared", "world"]);
    assert!(code == Some(2) && log.contains("group"), "{log}");
}

#[test]
fn users_of_a_group_share_a_store_under_a_closed_umask() {
    const GROUP: u32 = 64_999;
    let (Some(one), Some(two)) = (as_user(64_001, GROUP), as_user(64_002, GROUP)) else { return };
    let world = World::large();
    fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let small = ["--set", "criterion=llm-streamline", "--set", "depth=2"];
    world.run_ok(&[&small[..], &["--results", "alone", "--store", "own"]].concat());
    let folder = world.path("group");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(64_001), Some(GROUP)).unwrap();
    let init = command_after(&one, &world, &["store", "init", "group", "--shared", "group"]);
    assert_eq!(run_to_exit(with_umask("077", init)).0, Some(0));
    let mut kills = 0;
    for (user, fault) in [(&one, "kill@journal:1"), (&two, "kill@commit:3"), (&one, "kill@score:2"), (&two, "")] {
        let results = world.path(&format!("results-{}", user[1]));
        fs::create_dir_all(&results).unwrap();
        fs::set_permissions(&results, fs::Permissions::from_mode(0o777)).unwrap();
        let arguments =
            [&["run", "grid.yaml", "--store", "group", "--results", results.to_str().unwrap()], &small[..]].concat();
        let mut command = with_umask("077", command_after(user, &world, &arguments));
        command.env("GHOSTLAB_FAULT", fault);
        let (code, log) = run_to_exit(command);
        // Each process resumes where the one before it was killed, and removes what that one left behind.
        assert!(code == Some(0) || (code.is_none() && !fault.is_empty()), "{fault}: {code:?} {log}");
        kills += usize::from(code.is_none());
    }
    assert!(kills >= 2, "a process was not killed");
    assert!(
        result_tables(&world, "alone").len() == 1
            && result_tables(&world, "alone") == result_tables(&world, "results---reuid=64002")
    );
    for left in ["drafts", "claims", "processes", "uses", "journals"] {
        assert_eq!(fs::read_dir(folder.join(left)).unwrap().count(), 0, "{left}");
    }
}

fn result_tables(world: &World, folder: &str) -> Vec<Vec<u8>> {
    let all = read_tree(&world.path(folder)).into_iter();
    all.filter(|(path, _)| path.ends_with("results.csv")).map(|(_, (.., bytes))| bytes).collect::<Vec<_>>()
}

#[test]
fn hidden_process_of_another_user_is_not_presumed_dead() {
    let world = World::new();
    // Mount a separate /proc in which users see only their own processes.
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
    let run = |user: &[String], arguments: &[&str]| {
        with_umask("077", command_after(&[&hidden[..], user].concat(), &world, arguments))
    };
    assert_eq!(run_to_exit(run(&one, &["store", "init", "group", "--shared", "group"])).0, Some(0));
    let worker = ["worker", "grid.yaml", "--store", "group"];
    let mut halted = run(&one, &worker);
    halted.env("GHOSTLAB_FAULT", "stop@activations:1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let halted = halted.spawn().unwrap();
    wait_until("no worker", || {
        calibration_lease(&store).is_some()
            && fs::read_to_string(format!("/proc/{}/stat", halted.id())).is_ok_and(|stat| stat.contains(") T "))
    });
    let before = fs::read(calibration_lease(&store).unwrap()).unwrap();
    let (code, log) = run_to_exit(run(&two, &[&worker[..], &["--idle-exit", "2"]].concat()));
    assert!(code == Some(0) && log.contains("all remaining jobs are leased by other workers"), "{code:?} {log}");
    assert_eq!(
        calibration_lease(&store).map(|path| fs::read(path).unwrap()),
        Some(before),
        "the lease of a running worker was taken over"
    );
    assert!(!store.join("attempts").exists(), "the death of a running worker was recorded");
    assert!(Command::new("kill").args(["-CONT", &halted.id().to_string()]).status().unwrap().success());
    assert_eq!(wait_for_exit(halted).status.code(), Some(0));
    // A killed process is recognized as dead, because its pid no longer belongs to any process.
    let mut killed = run(&one, &["worker", "grid.yaml", "--store", "group", "--set", "calibration.seed=7"]);
    killed.env("GHOSTLAB_FAULT", "kill@activations:1");
    assert_eq!(run_to_exit(killed).0, None);
    let (code, log) = run_to_exit(run(
        &two,
        &["worker", "grid.yaml", "--store", "group", "--set", "calibration.seed=7", "--idle-exit", "60"],
    ));
    assert!(code == Some(0) && log.contains("all 9 cells complete"), "{log}");
}

fn calibration_lease(store: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(store.join("claims")).into_iter().flatten().flatten();
    names.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("calibrate-"))
}

#[test]
fn suspended_worker_yields_lost_jobs_and_continues() {
    let undisturbed = World::new();
    undisturbed.run_ok(&[]);
    let halted: Vec<(World, Child)> = ["stop@activations:1", "stop@score:1"]
        .into_iter()
        .map(|point| {
            let world = World::new();
            let mut command = world.command(&["worker", "grid.yaml"]);
            command.env("GHOSTLAB_FAULT", point).stdout(Stdio::null()).stderr(Stdio::piped());
            let child = command.spawn().unwrap();
            let stat = format!("/proc/{}/stat", child.id());
            wait_until("the worker does not stop", || {
                fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
            });
            // Make the record look as if the worker were on another machine and had sent no heartbeat recently.
            let record = fs::read_dir(world.path("data/store/processes")).unwrap().next().unwrap().unwrap().path();
            let mut worker: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
            worker["system"] = json!("another machine");
            fs::write(&record, worker.to_string()).unwrap();
            make_old(&record);
            let (code, log) = ghostlab(&world, &["worker", "grid.yaml", "--idle-exit", "60"]);
            assert!(code == Some(0) && log.contains("all 9 cells complete"), "{point}: {log}");
            (world, child)
        })
        .collect();
    // Wait for more than half a minute, because a lease is trusted for that long before it is checked again.
    std::thread::sleep(Duration::from_secs(31));
    for (world, child) in halted {
        assert!(Command::new("kill").args(["-CONT", &child.id().to_string()]).status().unwrap().success());
        let output = wait_for_exit(child);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert!(log.contains("suspended too long; other workers took over"), "{log}");
        assert!(log.contains("all 9 cells complete"), "{log}");
        for left in ["claims", "processes", "drafts", "journals", "uses", "attempts"] {
            let count = fs::read_dir(world.path("data/store").join(left)).map_or(0, Iterator::count);
            assert_eq!(count, 0, "{left}: {log}");
        }
        assert_eq!(ghostlab(&world, &["cache", "verify"]).0, Some(0));
        world.run_ok(&[]);
        assert!(world.tables() == undisturbed.tables());
    }
}
