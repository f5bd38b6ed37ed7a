//! Tests in which processes die, fail or wait.

use super::*;

#[test]
fn run_killed_at_each_point_resumes_to_the_same_tables() {
    let undisturbed = World::large();
    undisturbed.run_ok(&SMALL);
    let places =
        ["draft:1", "draft:4", "record:2", "commit:1", "commit:3", "commit:6", "score:1", "journal:1", "score:1"];
    let world = World::large();
    for point in places {
        let (code, log) = run_with_fault(&world, &SMALL, &format!("kill@{point}"));
        assert_eq!(code, None, "{point} was not reached: {log}");
    }
    world.run_ok(&SMALL);
    assert!(world.tables() == undisturbed.tables());
    assert_eq!(verify_store(&world), Some(0));
    // Damage all scores, and kill the run while it is replacing them.
    let mut files = Vec::new();
    collect_files(&stage_folder(&world, "scores"), &mut files);
    files.iter().for_each(|path| flip_byte(path));
    assert_eq!(run_with_fault(&world, &SMALL, "kill@replace:1").0, None);
    world.run_ok(&SMALL);
    assert!(world.tables() == undisturbed.tables());
    for left in ["drafts", "claims", "processes", "journals", "uses"] {
        let count = fs::read_dir(world.path("data/store").join(left)).map_or(0, Iterator::count);
        assert_eq!(count, 0, "{left} of dead processes remain");
    }
}

#[test]
fn panic_fails_only_the_cells_of_its_job() {
    for jobs in ["1", "2"] {
        let world = World::large();
        let (code, log) = run_with_fault(&world, &[&SMALL[..], &["--jobs", jobs]].concat(), "panic@score:1");
        assert_eq!(code, Some(4), "{log}");
        assert!(log.contains("panicked") && log.contains("cells failed"), "{log}");
        let log = world.run_ok(&SMALL);
        assert!(!log.contains("6 of 6 cells cached"), "{log}");
        let undisturbed = World::large();
        undisturbed.run_ok(&SMALL);
        assert!(world.tables() == undisturbed.tables());
    }
}

#[cfg(unix)]
#[test]
fn runs_complete_on_filesystems_without_hard_links() {
    let undisturbed = World::large();
    undisturbed.run_ok(&SMALL);
    for fault in ["no-links", "link-made-and-denied"] {
        let world = World::large();
        let arguments = [&["run", "grid.yaml"], &SMALL[..]].concat();
        let other = [&arguments[..], &["--results", "other"]].concat();
        let children = [spawn_with_fault(&world, &arguments, fault), spawn_with_fault(&world, &other, fault)];
        for output in children.map(wait_for_exit) {
            assert_eq!(output.status.code(), Some(0), "{fault}: {}", String::from_utf8_lossy(&output.stderr));
        }
        assert!(world.tables() == undisturbed.tables(), "{fault}");
        assert_eq!(verify_store(&world), Some(0), "{fault}");
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
    // Keep draining stderr, because the child would block otherwise.
    std::thread::spawn(move || lines.for_each(drop));
}

#[cfg(unix)]
#[test]
fn waiting_for_a_process_is_shown_and_interruptible() {
    for name in ["-INT", "-TERM", "-HUP"] {
        let world = World::new();
        plant_remote_process(&world, REMOTE_PROCESS, &["tokenising"]);
        let mut child = spawn_with_fault(&world, &["run", "grid.yaml"], "");
        wait_for(&mut child, "tokenizing: waiting for process 5");
        send_signal(&child, name);
        assert_eq!(wait_for_exit(child).status.code(), Some(130), "{name}");
        let status = stdout(&world.ghostlab(&["status"]));
        assert!(status.contains("): interrupted"), "{name}: {status}");
    }
}
