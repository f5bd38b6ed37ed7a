//! Tests for leases and liveness checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::disk::{Disk, SystemDisk};
use crate::gc_roots::GcRoots;
use crate::process::Process;
use crate::processes::list_processes;
use crate::tests::SCHEMA;
use crate::worker::{Lease, LeaseResult, Worker, attempts, lock};
use ghostlab_core::files::atomic::STALE_AFTER;
use ghostlab_core::files::owner::Owner;

fn start_worker(root: &Path) -> Worker {
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk::default());
    Worker::start(root, SCHEMA, Arc::clone(&disk), Arc::new(GcRoots::new(disk))).unwrap()
}

fn workers() -> (tempfile::TempDir, Worker, Worker) {
    let folder = tempfile::tempdir().unwrap();
    let one = start_worker(folder.path());
    let two = start_worker(folder.path());
    (folder, one, two)
}

#[test]
fn lease_is_exclusive_until_dropped() {
    let (_folder, one, two) = workers();
    let LeaseResult::Acquired(lease) = one.lease("a") else { panic!("not free") };
    let LeaseResult::Contended(owner) = two.lease("a") else { panic!("the lease was granted twice") };
    assert_eq!(owner.id, one.id());
    assert!(matches!(one.lease("a"), LeaseResult::Contended(_)), "another thread of the process holds the lease");
    assert!(matches!(two.lease("b"), LeaseResult::Acquired(_)));
    assert!(matches!(two.lease("a"), LeaseResult::Contended(_)), "a failed attempt must not change the lease");
    drop(lease);
    assert!(matches!(two.lease("a"), LeaseResult::Acquired(_)));
}

#[test]
fn existing_link_to_own_record_is_an_acquired_lease() {
    let (_folder, one, two) = workers();
    // State after a lost reply from the server: the link exists although the call failed.
    fs::hard_link(&one.record, one.leases.join("a")).unwrap();
    assert!(matches!(two.lease("a"), LeaseResult::Contended(_)));
    let LeaseResult::Acquired(lease) = one.lease("a") else { panic!("waits for its own lease") };
    drop(lease);
    assert!(matches!(two.lease("a"), LeaseResult::Acquired(_)));
}

/// Id of a process on another machine.
const REMOTE_PROCESS: &str = "5-0123456789ab";

/// Writes a lease and the record of its process.
fn plant_lease(worker: &Worker, process: &Process) -> PathBuf {
    let record = worker.processes.join(format!("{}.json", process.id));
    fs::write(&record, process.record()).unwrap();
    fs::write(worker.leases.join("a"), process.record()).unwrap();
    record
}

#[cfg(target_os = "linux")]
#[test]
fn lease_of_a_dead_process_is_taken_over_at_once() {
    let (_folder, one, _two) = workers();
    let owner = &one.process.owner;
    for owner in [Owner { pid: 99_999_999, ..owner.clone() }, Owner { started: Some(1), ..owner.clone() }] {
        plant_lease(&one, &Process { id: "3-0123456789ab".into(), owner, beat: 0 });
        assert!(matches!(one.lease("a"), LeaseResult::Acquired(_)));
    }
    fs::write(one.leases.join("a"), "no record").unwrap();
    assert!(matches!(one.lease("a"), LeaseResult::Acquired(_)), "a damaged lease must be free");
}

#[test]
fn remote_process_is_alive_while_its_heartbeat_changes() {
    let (_folder, one, _two) = workers();
    let owner = Owner { system: Some("another".into()), ..one.process.owner.clone() };
    let mut remote = Process { id: REMOTE_PROCESS.into(), owner, beat: 0 };
    plant_lease(&one, &remote);
    assert!(matches!(one.lease("a"), LeaseResult::Contended(_)), "a possibly running process counts as dead");
    // Simulate that the heartbeat was last observed longer ago than the timeout. Observations use the monotonic clock.
    let before = one.disk.now() - STALE_AFTER * 2;
    one.seen.lock().unwrap().insert(REMOTE_PROCESS.into(), (0, before));
    remote.beat = 1;
    plant_lease(&one, &remote);
    assert!(matches!(one.lease("a"), LeaseResult::Contended(_)), "a new heartbeat must count");
    one.seen.lock().unwrap().insert(REMOTE_PROCESS.into(), (1, before));
    assert!(matches!(one.lease("a"), LeaseResult::Acquired(_)));
}

#[test]
fn remote_process_with_stale_heartbeat_is_considered_dead() {
    let (folder, one, two) = workers();
    let owner = Owner { system: Some("another".into()), ..one.process.owner.clone() };
    let record = plant_lease(&one, &Process { id: REMOTE_PROCESS.into(), owner, beat: 0 });
    assert_eq!(count_dead(folder.path()), 0);
    let file = fs::File::options().append(true).open(&record).unwrap();
    file.set_modified(SystemTime::now() - STALE_AFTER * 2).unwrap();
    assert_eq!(count_dead(folder.path()), 1);
    let LeaseResult::Acquired(lease) = one.lease("a") else { panic!("waits for a dead process") };
    drop(lease);
    // A process without a record is dead, so its leases are free.
    fs::rename(&record, one.leases.join("b")).unwrap();
    assert!(matches!(two.lease("b"), LeaseResult::Acquired(_)));
}

fn count_dead(folder: &Path) -> usize {
    list_processes(&SystemDisk::default(), folder).iter().filter(|known| known.dead).count()
}

#[test]
fn heartbeat_updates_and_restores_the_record() {
    let (folder, one, _two) = workers();
    wait_until("no heartbeat", &|| read_heartbeat(folder.path(), one.id()) >= Some(1));
    fs::remove_file(&one.record).unwrap();
    wait_until("no new record", &|| read_heartbeat(folder.path(), one.id()) >= Some(2));
}

fn wait_until(what: &str, until: &dyn Fn() -> bool) {
    let started = std::time::Instant::now();
    while !until() {
        assert!(started.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn dropped_worker_removes_its_process_record() {
    let (folder, one, two) = workers();
    assert_eq!(list_processes(&SystemDisk::default(), folder.path()).len(), 2);
    drop((one, two));
    assert_eq!(list_processes(&SystemDisk::default(), folder.path()).len(), 0);
}

#[test]
fn dropping_a_lost_lease_keeps_the_new_owners_lease() {
    let (_folder, one, two) = workers();
    let LeaseResult::Acquired(lease) = one.lease("a") else { panic!("not free") };
    // This process was stopped for longer than the timeout, and another one took over its lease.
    fs::remove_file(one.leases.join("a")).unwrap();
    let LeaseResult::Acquired(theirs) = two.lease("a") else { panic!("not free") };
    drop(lease);
    assert!(matches!(one.lease("a"), LeaseResult::Contended(_)), "the lease of the other process was removed");
    drop(theirs);
    assert!(matches!(one.lease("a"), LeaseResult::Acquired(_)));
}

#[test]
fn resumed_process_removes_its_death_record() {
    let (folder, one, two) = workers();
    let name = "compute-a";
    let LeaseResult::Acquired(lease) = one.lease(name) else { panic!("not free") };
    // Simulate a process on another machine that has had no heartbeat for longer than the timeout.
    let remote =
        Process { owner: Owner { system: Some("another".into()), ..one.process.owner.clone() }, ..one.process.clone() };
    fs::write(&one.record, remote.record()).unwrap();
    two.seen.lock().unwrap().insert(remote.id.clone(), (0, two.disk.now() - STALE_AFTER * 2));
    let LeaseResult::Acquired(_theirs) = two.lease(name) else { panic!("waits forever") };
    assert_eq!(attempts::read_attempts(&SystemDisk::default(), folder.path(), name).len(), 1);
    drop(lease);
    assert_eq!(attempts::read_attempts(&SystemDisk::default(), folder.path(), name).len(), 0);
}

#[test]
fn resumed_process_detects_its_lost_leases() {
    let (_folder, one, two) = workers();
    let lease = acquire_lease(&one);
    expire_lease(&lease);
    assert!(lease.is_held(), "the lease was not taken over");
    fs::remove_file(one.leases.join("a")).unwrap();
    assert!(lease.is_held(), "a recent check must be reused");
    expire_lease(&lease);
    assert!(!lease.is_held(), "the lease was removed");
    let LeaseResult::Acquired(theirs) = two.lease("a") else { panic!("not free") };
    assert!(!lease.is_held(), "another process holds the lease");
    drop(theirs);
    drop(lease);
    let lease = acquire_lease(&one);
    expire_lease(&lease);
    fs::remove_file(&one.record).unwrap();
    assert!(!lease.is_held(), "a process without a record counts as dead, so any process can take its lease");
    drop(lease);
    // Acquiring a lease first restores the record of this process.
    let lease = acquire_lease(&one);
    assert!(one.record.exists() && matches!(two.lease("a"), LeaseResult::Contended(_)));
    // A change of the system clock does not hide the loss of a lease.
    lock(&lease.last_confirmed).1 += STALE_AFTER * 9;
    fs::remove_file(one.leases.join("a")).unwrap();
    assert!(!lease.is_held());
}

fn acquire_lease(worker: &Worker) -> Lease {
    match worker.lease("a") {
        LeaseResult::Acquired(lease) => lease,
        LeaseResult::Contended(_) => panic!("not free"),
    }
}

/// Moves the last lease check into the past, as if the process had been suspended since.
fn expire_lease(lease: &Lease) {
    lock(&lease.last_confirmed).0 -= STALE_AFTER * 2;
}

#[test]
fn process_with_unreadable_record_is_dead_after_timeout() {
    for folder in [true, false] {
        let (_folder, one, _two) = workers();
        let owner = Owner { system: Some("another".into()), ..one.process.owner.clone() };
        let record = plant_lease(&one, &Process { id: REMOTE_PROCESS.into(), owner, beat: 0 });
        fs::remove_file(&record).unwrap();
        if folder {
            fs::create_dir(&record).unwrap();
        } else {
            fs::write(&record, "{").unwrap();
        }
        assert!(matches!(one.lease("a"), LeaseResult::Contended(_)), "a possibly running process counts as dead");
        let before = one.disk.now() - STALE_AFTER * 2;
        one.seen.lock().unwrap().insert(REMOTE_PROCESS.into(), (u64::MAX, before));
        assert!(matches!(one.lease("a"), LeaseResult::Acquired(_)), "the lease must expire");
    }
}

#[test]
fn folder_in_place_of_a_lease_does_not_block_it() {
    let (_folder, one, _two) = workers();
    for _ in 0..3 {
        fs::create_dir_all(one.leases.join("a/b")).unwrap();
        assert!(matches!(one.lease("a"), LeaseResult::Acquired(_)));
    }
}

fn read_heartbeat(folder: &Path, id: &str) -> Option<u64> {
    list_processes(&SystemDisk::default(), folder).iter().find(|known| known.process.id == id).map(|k| k.process.beat)
}
