//! Fuzz targets for the records and payloads in a store, and for archives.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ghostlab::archive::unpack;
use ghostlab::pipeline::stage;
use ghostlab_store::{Journal, JournalRecord, Key, Lookup, Store};
use serde_json::json;
use tempfile::TempDir;

use super::{assert_user_error, read_file};

const PAYLOADS: [(&str, &[u8]); 2] = [("a.json", b"[1, 2]"), ("values.f64", b"12345678")];

/// Stores an object. Returns the store, the key, and the path of the object's record.
fn write_artifact(folder: &Path) -> (Store, Key, PathBuf) {
    let store = Store::open(folder, stage::STORE_WORDS).unwrap();
    let key = Key::new(stage::operator::KIND, json!({"of": 1}), []);
    let mut draft = store.draft().unwrap();
    PAYLOADS.iter().for_each(|(name, bytes)| draft.write(name, bytes).unwrap());
    let artifact = store.commit(draft, &key, 0.5).unwrap();
    (store, key, artifact.folder().join("meta.json"))
}

pub(super) fn meta_seeds() -> Vec<Vec<u8>> {
    let folder = TempDir::new().unwrap();
    vec![fs::read(write_artifact(folder.path()).2).unwrap()]
}

/// Checks that an object with a modified record is either reported as damaged or read unchanged.
pub(super) fn fuzz_meta(data: &[u8]) {
    let folder = TempDir::new().unwrap();
    let (store, key, path) = write_artifact(folder.path());
    fs::write(path, data).unwrap();
    if let Lookup::Intact(artifact) = store.get(&key) {
        for name in artifact.payloads() {
            let written = PAYLOADS.iter().find(|(known, _)| *known == name);
            assert_eq!(Some(artifact.read(name).unwrap().as_slice()), written.map(|(_, bytes)| *bytes), "{name}");
        }
    }
}

/// Stores two small objects in one pack. Returns their keys and the path of the pack.
fn write_pack(folder: &Path) -> ([Key; 2], PathBuf) {
    let store = Store::open(folder, stage::STORE_WORDS).unwrap();
    let keys = [1, 2].map(|id| Key::new(stage::scores::KIND, json!({"of": id}), []));
    store.put_all(keys.iter().map(|key| store.pack_entry(key, 0.5, &PAYLOADS)).collect()).unwrap();
    let file = store.object_path(&keys[0]);
    (keys, file)
}

pub(super) fn pack_seeds() -> Vec<Vec<u8>> {
    let folder = TempDir::new().unwrap();
    vec![fs::read(write_pack(folder.path()).1).unwrap()]
}

/// Checks that reading a modified pack returns only original data.
pub(super) fn fuzz_pack(data: &[u8]) {
    let folder = TempDir::new().unwrap();
    let (keys, path) = write_pack(folder.path());
    fs::write(path, data).unwrap();
    let store = Store::open_read_only(folder.path(), stage::STORE_WORDS).unwrap();
    for key in &keys {
        if let Lookup::Intact(artifact) = store.get(key) {
            PAYLOADS.into_iter().for_each(|(name, bytes)| assert_eq!(artifact.read(name).unwrap(), bytes, "{name}"));
        }
    }
    store.entries();
}

fn build_records() -> Vec<JournalRecord> {
    (0..3)
        .map(|chunk| JournalRecord {
            key: "k".repeat(64),
            chunk,
            values: vec![-1.25 * chunk as f64, f64::NAN, f64::NEG_INFINITY],
            seconds: 0.5,
        })
        .collect()
}

fn open_journal(folder: &Path) -> (Journal, PathBuf) {
    let store = Store::open(folder, stage::STORE_WORDS).unwrap();
    (store.journal("j").unwrap(), folder.join("journals/j"))
}

pub(super) fn journal_seeds() -> Vec<Vec<u8>> {
    let folder = TempDir::new().unwrap();
    let (mut journal, journal_dir) = open_journal(folder.path());
    build_records().iter().for_each(|record| journal.push(record).unwrap());
    journal.flush().unwrap();
    let file = fs::read_dir(journal_dir).unwrap().next().unwrap().unwrap().path();
    vec![fs::read(file).unwrap()]
}

/// Checks that only unmodified records are read from a modified journal.
pub(super) fn fuzz_journal(data: &[u8]) {
    let folder = TempDir::new().unwrap();
    let (mut journal, journal_dir) = open_journal(folder.path());
    fs::create_dir_all(&journal_dir).unwrap();
    fs::write(journal_dir.join("another.jsonl"), data).unwrap();
    // Compare debug output, because NaN does not equal itself. The output distinguishes all numbers.
    let written: BTreeMap<usize, String> =
        build_records().iter().map(|record| (record.chunk, format!("{record:?}"))).collect();
    for record in journal.read().0 {
        assert_eq!(written.get(&record.chunk), Some(&format!("{record:?}")));
    }
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    let archive = read_file("tests/fixtures/record/small.zip");
    vec![rename_entry(b"../b.tx", &archive), rename_entry(b"/ab.txt", &archive), archive]
}

/// Returns the ZIP archive with its entry `a/b.txt` renamed to `entry`, which has the same length, in the local header
/// and in the central directory.
fn rename_entry(entry: &[u8], archive: &[u8]) -> Vec<u8> {
    let mut bytes = archive.to_vec();
    for start in 0..bytes.len() - 7 {
        if &bytes[start..start + 7] == b"a/b.txt" {
            bytes[start..start + 7].copy_from_slice(entry);
        }
    }
    bytes
}

/// Checks that unpacking an archive writes nothing next to the folder, and reports at most one file per byte of the
/// archive.
pub(super) fn fuzz_record(data: &[u8]) {
    let outer = TempDir::new().unwrap();
    let inner = outer.path().join("inner");
    fs::create_dir(&inner).unwrap();
    match unpack(std::io::Cursor::new(data), data.len() as u64, &inner) {
        Ok(unpacked) => assert!(unpacked.intact + unpacked.altered.len() <= data.len()),
        Err(error) => assert_user_error(&error),
    }
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1, "a file was written next to the folder");
}
