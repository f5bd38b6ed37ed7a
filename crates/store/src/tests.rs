//! Tests for the store's guarantees: written objects are found complete, and leftovers from dead processes are removed.

use std::fs;

use super::*;
use serde_json::json;

pub(crate) const TOKENS: ObjectKind = ObjectKind::new("tokens", 4);
pub(crate) const ACTIVATIONS: ObjectKind = ObjectKind::new("activations", 5);
pub(crate) const SELECTION: ObjectKind = ObjectKind::new("selection", 5);
pub(crate) const OPERATOR: ObjectKind = ObjectKind::new("operator", 4);
pub(crate) const SCORES: ObjectKind = ObjectKind::new("scores", 5);
pub(crate) const SCHEMA: StoreSchema = StoreSchema {
    kinds: &[TOKENS, ACTIVATIONS, SELECTION, OPERATOR, SCORES],
    packed: SCORES,
    counts_death: |lease| lease.starts_with("compute-"),
};

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), SCHEMA).unwrap();
    (folder, store)
}

fn key(value: u32) -> Key {
    Key::new(SELECTION, json!({"depth": value}), [])
}

fn write(store: &Store, key: &Key, bytes: &[u8]) -> StoredObject {
    // Use a draft so that the object gets its own folder like a large one.
    let mut draft = store.draft().unwrap();
    draft.write("a.bin", bytes).unwrap();
    store.commit(draft, key, 1.5).unwrap()
}

#[test]
fn journal_of_dead_process_is_removed_once_objects_exist() {
    let (folder, store) = store();
    let journal_dir = folder.path().join("journals/work");
    {
        let mut journal = Journal::open(Arc::new(SystemDisk::default()), journal_dir.clone(), "9-0123456789ab");
        let record = JournalRecord { key: (key(7).hash()).into(), chunk: 0, values: vec![1.0], seconds: 0.0 };
        journal.push(&record).unwrap();
        journal.flush().unwrap();
    };
    drop(Store::open(folder.path(), SCHEMA).unwrap());
    assert!(journal_dir.exists(), "a journal of unstored work was removed");
    write(&store, &key(7), b"done");
    drop(Store::open(folder.path(), SCHEMA).unwrap());
    assert!(!journal_dir.exists());
}

#[test]
fn get_finds_only_written_keys() {
    let (_folder, store) = store();
    let store = store.with_provenance(|| json!({"commit": "c"}));
    assert!(matches!(store.get(&key(7)), Lookup::Absent));
    write(&store, &key(7), b"hello");
    let Lookup::Intact(object) = store.get(&key(7)) else { panic!("not found") };
    assert_eq!(object.read("a.bin").unwrap(), b"hello");
    let meta = object.meta();
    assert_eq!((meta.seconds, &meta.key, meta.bytes()), (1.5, &key(7).readable(), 5));
    assert_eq!(meta.provenance["commit"], "c");
    assert!(matches!(store.get(&key(8)), Lookup::Absent));
}

#[test]
fn damaged_object_is_reported_and_repaired_by_rewriting() {
    let (_folder, store) = store();
    let path = write(&store, &key(1), b"hello").path("a.bin").unwrap();
    let meta = path.with_file_name("meta.json");
    type Damage<'a> = Box<dyn Fn() + 'a>;
    let damages: [(Damage<'_>, &str); 5] = [
        (Box::new(|| fs::write(&path, b"hellx").unwrap()), "a.bin"),
        (Box::new(|| fs::write(&path, b"hell").unwrap()), "5 bytes"),
        (Box::new(|| fs::remove_file(&path).unwrap()), "a.bin"),
        (Box::new(|| fs::write(&meta, b"{").unwrap()), "meta.json"),
        (Box::new(|| fs::remove_file(&meta).unwrap()), "meta.json"),
    ];
    for (damage, word) in damages {
        damage();
        let Lookup::Damaged(error) = store.get(&key(1)) else { panic!("used although damaged: {word}") };
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.exit_code(), 5);
        write(&store, &key(1), b"hello");
        assert!(matches!(store.get(&key(1)), Lookup::Intact(_)), "{word}");
    }
}

#[test]
fn concurrent_writes_of_one_key_keep_the_first() {
    let (folder, store) = store();
    let other = Store::open(folder.path(), SCHEMA).unwrap();
    let mut one = store.draft().unwrap();
    let mut two = other.draft().unwrap();
    one.write("a.bin", b"hello").unwrap();
    two.write("a.bin", b"hello").unwrap();
    let first = store.commit(one, &key(1), 1.0).unwrap();
    let second = other.commit(two, &key(1), 2.0).unwrap();
    assert_eq!(first.meta(), second.meta());
    assert_eq!(fs::read_dir(folder.path().join("drafts")).unwrap().count(), 0);
}

#[test]
fn concurrent_rewrites_repair_damaged_objects() {
    use rayon::prelude::*;
    let (_folder, store) = store();
    for _ in 0..20 {
        let keys: Vec<Key> = (0..16).map(key).collect();
        keys.iter().for_each(|key| drop(write(&store, key, b"hello")));
        keys.iter().for_each(|key| fs::write(store.object_folder(key).join("a.bin"), b"hellx").unwrap());
        keys.par_iter().for_each(|key| drop(write(&store, key, b"hello")));
        assert!(keys.iter().all(|key| matches!(store.get(key), Lookup::Intact(_))));
    }
}

#[test]
fn dropped_draft_leaves_no_files() {
    let (folder, store) = store();
    let mut draft = store.draft().unwrap();
    drop(draft.payload("a.bin").unwrap());
    drop(draft);
    assert_eq!(fs::read_dir(folder.path().join("drafts")).unwrap().count(), 0);
}

fn make_stale(path: &Path) {
    let file = fs::File::open(path).unwrap();
    file.set_modified(std::time::SystemTime::now() - ghostlab_core::files::atomic::STALE_AFTER * 2).unwrap();
}

/// Writes a process record and a draft of that process. Returns both paths.
fn plant_draft(root: &Path, id: &str, system: &str, pid: u32) -> (PathBuf, PathBuf) {
    let record = root.join("processes").join(format!("{id}.json"));
    let text = json!({"id": id, "pid": pid, "system": system, "started": 7, "beat": "00000000000000000007"});
    fs::create_dir_all(root.join("processes")).unwrap();
    fs::write(&record, text.to_string()).unwrap();
    let draft = root.join("drafts").join(format!("{id}.0"));
    fs::create_dir(&draft).unwrap();
    fs::write(draft.join("000000.f32"), [0; 99]).unwrap();
    (record, draft)
}

#[cfg(target_os = "linux")]
#[test]
fn only_drafts_of_dead_processes_are_removed() {
    let (folder, store) = store();
    let this_system = ghostlab_core::files::owner::Owner::current().system.unwrap();
    let draft = store.draft().unwrap();
    let (_, killed) = plant_draft(folder.path(), "99999999-0123456789ab", &this_system, 99_999_999);
    let (record, remote_draft) = plant_draft(folder.path(), "5-0123456789ab", "another boot", 5);
    // The owner of this draft has no record. It may be a remote process whose record is not visible yet.
    let ownerless = folder.path().join("drafts/77-0123456789ab.3");
    fs::create_dir(&ownerless).unwrap();
    assert_eq!(store.abandoned_drafts().iter().map(|left| (left.dead, left.bytes)).filter(|left| left.0).count(), 1);
    Store::open(folder.path(), SCHEMA).unwrap();
    assert!(!killed.exists(), "the draft of a dead process remains");
    assert!(
        remote_draft.exists() && ownerless.exists() && record.exists(),
        "files of possibly running processes were removed"
    );
    assert_eq!(count_drafts(folder.path()), 3);
    make_stale(&record);
    make_stale(&ownerless);
    assert_eq!(store.abandoned_drafts().iter().filter(|left| left.dead).map(|left| left.bytes).sum::<u64>(), 99);
    Store::open(folder.path(), SCHEMA).unwrap();
    assert!(!remote_draft.exists() && !ownerless.exists() && !record.exists(), "files remain after the timeout");
    assert_eq!(count_drafts(folder.path()), 1);
    drop(draft);
}

fn count_drafts(folder: &Path) -> usize {
    fs::read_dir(folder.join("drafts")).unwrap().count()
}

#[test]
fn reserved_lists_only_hashes_of_running_processes() {
    let (folder, store) = store();
    let other = Store::open(folder.path(), SCHEMA).unwrap();
    write(&store, &key(1), b"made");
    other.reserve(["x"]).unwrap();
    other.reserve(["x", "y"]).unwrap();
    let all: BTreeSet<String> = [key(1).hash(), "x", "y"].map(str::to_string).into();
    assert_eq!(Store::open_read_only(folder.path(), SCHEMA).unwrap().reserved(), all);
    drop(other);
    assert_eq!(store.reserved(), [key(1).hash().to_string()].into());
    drop(store);
    assert_eq!(fs::read_dir(folder.path().join("uses")).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn stored_files_have_default_permissions() {
    let (folder, store) = store();
    let object = write(&store, &key(1), b"hello");
    let plain = folder.path().join("plain");
    fs::create_dir(&plain).unwrap();
    fs::write(plain.join("file"), "").unwrap();
    assert_eq!(file_mode(object.folder()), file_mode(&plain));
    for file in [object.path("a.bin").unwrap(), object.folder().join("meta.json"), folder.path().join("store.json")] {
        assert_eq!(file_mode(&file), file_mode(&plain.join("file")), "{}", file.display());
    }
}

#[cfg(unix)]
fn file_mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode()
}

#[test]
fn altered_metadata_is_detected_by_its_checksum() {
    let (_folder, store) = store();
    let mut draft = store.draft().unwrap();
    draft.write("a.bin", b"one").unwrap();
    draft.write("b.bin", b"two").unwrap();
    let object = store.commit(draft, &key(1), 1.5).unwrap();
    let meta = object.folder().join("meta.json");
    let text = fs::read(&meta).unwrap();
    type Change = fn(&mut Value);
    let changes: [Change; 4] = [
        |record| drop(record["payloads"].as_object_mut().unwrap().remove("b.bin")),
        |record| record["seconds"] = json!(1.25),
        |record| record["made"] = json!("another user"),
        |record| drop(record.as_object_mut().unwrap().remove("check")),
    ];
    for change in changes {
        let mut record = serde_json::from_slice(&text).unwrap();
        change(&mut record);
        fs::write(&meta, record.to_string()).unwrap();
        let Lookup::Damaged(error) = store.lookup(&key(1)) else { panic!("damage was not detected: {record}") };
        assert!(error.to_string().contains("checksum"), "{error}");
    }
    fs::write(&meta, &text).unwrap();
    assert!(matches!(store.get(&key(1)), Lookup::Intact(_)));
}

#[test]
fn error_for_unusable_folder_suggests_the_store_option() {
    let (folder, _) = store();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(&file, SCHEMA).err().unwrap();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("--store"), "{error}");
}

#[test]
fn store_with_a_newer_format_is_rejected() {
    let (folder, _) = store();
    fs::write(folder.path().join("store.json"), r#"{"format": 2}"#).unwrap();
    let error = Store::open(folder.path(), SCHEMA).err().unwrap();
    assert!(error.to_string().contains("a different version") && error.exit_code() == 3, "{error}");
}

#[test]
fn reserved_and_pinned_objects_are_not_discarded() {
    let (folder, store) = store();
    let other = Store::open(folder.path(), SCHEMA).unwrap();
    let keys: Vec<Key> = (1..=4).map(key).collect();
    keys.iter().for_each(|key| drop(write(&store, key, b"rows")));
    other.reserve([keys[0].hash()]).unwrap();
    let third = Store::open(folder.path(), SCHEMA).unwrap();
    third.reserve([keys[3].hash()]).unwrap();
    let pin = store.pin([key(2)]);
    let second_pin = store.pin([key(2), key(3)]);
    drop(second_pin);
    store.discard_unused(&keys).unwrap();
    assert_eq!(
        are_stored(&store, &keys),
        [true, true, false, true],
        "objects in use were removed, or unused ones remain"
    );
    drop((pin, other, third));
    store.discard_unused(&keys).unwrap();
    assert_eq!(are_stored(&store, &keys), [false; 4]);
}

#[test]
fn attempt_that_cannot_be_written_is_still_counted() {
    let (folder, store) = store();
    fs::write(folder.path().join("attempts"), "in the way").unwrap();
    for count in 0..3 {
        assert_eq!(store.attempts("work").len(), count);
        store.record_attempt("work", "what", "why");
    }
    store.clear_attempts("work");
    assert!(store.attempts("work").is_empty());
}

#[test]
fn clear_deaths_keeps_other_failed_attempts() {
    let (folder, store) = store();
    let dead = Process::unknown("5-0123456789ab");
    for _ in 0..4 {
        attempts::write_attempt(&*store.disk, folder.path(), "work", &Attempt::from_dead_process(&dead)).unwrap();
    }
    store.record_attempt("work", "what", "why");
    store.clear_deaths("work");
    let left = store.attempts("work");
    assert!(left.len() == 1 && !left[0].died, "{left:?}");
}

#[test]
fn process_presumed_dead_restores_its_record_and_hashes() {
    let (folder, store) = store();
    store.reserve(["x", "y"]).unwrap();
    let id = store.process().unwrap();
    for name in [format!("processes/{id}.json"), format!("uses/{id}")] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    let began = std::time::Instant::now();
    while store.reserved() != ["x", "y"].map(str::to_string).into() {
        assert!(began.elapsed() < Duration::from_secs(30), "the reserved hashes were not restored");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn are_stored(store: &Store, keys: &[Key]) -> Vec<bool> {
    keys.iter().map(|key| store.has(key)).collect()
}
