//! Who has a claim, and who lives.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::files::atomic::PATIENCE;
use crate::files::owner::Owner;
use crate::store::disk::SystemDisk;
use crate::store::process::{Process, all};
use crate::store::worker::{ClaimResult, Worker};

fn started(root: &Path) -> Worker {
    Worker::start(root, Arc::new(SystemDisk::default())).unwrap()
}

fn workers() -> (tempfile::TempDir, Worker, Worker) {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (started(folder.path()), started(folder.path()));
    (folder, one, two)
}

#[test]
fn a_name_is_claimed_once_and_free_again_after() {
    let (_folder, one, two) = workers();
    let ClaimResult::Mine(lease) = one.claim("a") else { panic!("not free") };
    let ClaimResult::Theirs(owner) = two.claim("a") else { panic!("claimed twice") };
    assert_eq!(owner.id, one.id());
    assert!(matches!(one.claim("a"), ClaimResult::Theirs(_)), "another thread of the same process has it");
    assert!(matches!(two.claim("b"), ClaimResult::Mine(_)));
    assert!(matches!(two.claim("a"), ClaimResult::Theirs(_)), "having asked changes nothing");
    drop(lease);
    assert!(matches!(two.claim("a"), ClaimResult::Mine(_)));
}

#[test]
fn a_link_that_was_made_although_it_is_said_to_exist_is_one_s_own() {
    let (_folder, one, two) = workers();
    // What a server's lost answer leaves: the link is there, and the call failed.
    fs::hard_link(&one.record, one.claims.join("a")).unwrap();
    assert!(matches!(two.claim("a"), ClaimResult::Theirs(_)));
    let ClaimResult::Mine(lease) = one.claim("a") else { panic!("one waits for oneself") };
    drop(lease);
    assert!(matches!(two.claim("a"), ClaimResult::Mine(_)));
}

/// A claim by a process that the record says this of, and that record.
fn planted(worker: &Worker, process: &Process) -> PathBuf {
    let record = worker.processes.join(format!("{}.json", process.id));
    fs::write(&record, process.record()).unwrap();
    fs::write(worker.claims.join("a"), process.record()).unwrap();
    record
}

#[cfg(target_os = "linux")]
#[test]
fn the_claim_of_a_dead_process_is_taken_over_at_once() {
    let (_folder, one, _two) = workers();
    let owner = || one.process.owner.clone();
    for owner in [Owner { pid: 99_999_999, ..owner() }, Owner { started: Some(1), ..owner() }] {
        planted(&one, &Process { id: "dead".into(), owner, beat: 0 });
        assert!(matches!(one.claim("a"), ClaimResult::Mine(_)));
    }
    fs::write(one.claims.join("a"), "no record").unwrap();
    assert!(matches!(one.claim("a"), ClaimResult::Mine(_)), "a damaged claim is nobody's");
}

#[test]
fn a_process_elsewhere_lives_as_long_as_its_heart_beats() {
    let (_folder, one, _two) = workers();
    let owner = Owner { system: Some("another".into()), ..one.process.owner.clone() };
    let mut far = Process { id: "far".into(), owner, beat: 0 };
    planted(&one, &far);
    assert!(matches!(one.claim("a"), ClaimResult::Theirs(_)), "in doubt it lives");
    // Watched for longer than patience lasts, without a beat; no clock is read, so none can mislead.
    let before = one.disk.now() - PATIENCE * 2;
    one.seen.lock().unwrap().insert("far".into(), (0, before));
    far.beat = 1;
    planted(&one, &far);
    assert!(matches!(one.claim("a"), ClaimResult::Theirs(_)), "it has moved");
    one.seen.lock().unwrap().insert("far".into(), (1, before));
    assert!(matches!(one.claim("a"), ClaimResult::Mine(_)));
}

#[test]
fn a_process_elsewhere_whose_record_is_old_is_dead_at_first_sight() {
    let (folder, one, two) = workers();
    let owner = Owner { system: Some("another".into()), ..one.process.owner.clone() };
    let record = planted(&one, &Process { id: "far".into(), owner, beat: 0 });
    let dead = || all(&SystemDisk::default(), folder.path()).iter().filter(|known| known.dead).count();
    assert_eq!(dead(), 0);
    let file = fs::File::options().append(true).open(&record).unwrap();
    file.set_modified(SystemTime::now() - PATIENCE * 2).unwrap();
    assert_eq!(dead(), 1);
    let ClaimResult::Mine(lease) = one.claim("a") else { panic!("waits for the dead") };
    drop(lease);
    // Without a record it is gone: whatever it has claimed is free.
    fs::rename(&record, one.claims.join("b")).unwrap();
    assert!(matches!(two.claim("b"), ClaimResult::Mine(_)));
}

#[test]
fn the_heart_beats_in_the_record_and_a_lost_record_comes_back() {
    let (folder, one, _two) = workers();
    let beat = || {
        all(&SystemDisk::default(), folder.path())
            .iter()
            .find(|known| known.process.id == one.id())
            .map(|k| k.process.beat)
    };
    let wait = |what: &str, until: &dyn Fn() -> bool| {
        let started = std::time::Instant::now();
        while !until() {
            assert!(started.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait("no beat", &|| beat() >= Some(1));
    fs::remove_file(&one.record).unwrap();
    wait("no new record", &|| beat() >= Some(2));
}

#[test]
fn a_process_that_ends_leaves_no_record() {
    let (folder, one, two) = workers();
    assert_eq!(all(&SystemDisk::default(), folder.path()).len(), 2);
    drop((one, two));
    assert_eq!(all(&SystemDisk::default(), folder.path()).len(), 0);
}
