//! Tests for packs: objects stay readable, damage is reported, and objects from older stores are kept.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::tests::{OPERATOR, SCHEMA, SCORES, SELECTION};
use super::*;

fn key(value: u32) -> Key {
    Key::new(SCORES, json!({"variant": value}), [])
}

fn values(value: u32) -> Vec<u8> {
    vec![value as u8; 40 + value as usize]
}

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), SCHEMA).unwrap();
    (folder, store)
}

fn put(store: &Store, which: impl IntoIterator<Item = u32>) {
    store
        .put_all(
            which
                .into_iter()
                .map(|value| store.pack_entry(&key(value), 1.5, &[("values.f64", &values(value)), ("a", b"x")]))
                .collect(),
        )
        .unwrap();
}

fn is_intact(store: &Store, value: u32) -> bool {
    match store.get(&key(value)) {
        Lookup::Intact(object) => {
            assert_eq!(object.read("values.f64").unwrap(), values(value));
            assert_eq!(object.read("a").unwrap(), b"x");
            true
        }
        Lookup::Absent | Lookup::Damaged(_) => false,
    }
}

/// Returns the number of files and folders below a folder.
fn count_inodes(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| 1 + count_inodes(&entry.path())).sum()
}

fn list_packs(root: &Path) -> Vec<PathBuf> {
    let folder = root.join(SCORES.folder()).join("packs");
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn count_damaged(store: &Store) -> usize {
    store.entries().iter().filter(|entry| !entry.object.as_ref().is_ok_and(|object| object.verify().is_ok())).count()
}

#[test]
fn packed_scores_are_found_by_every_process() {
    let (folder, store) = store();
    let before = Store::open_read_only(folder.path(), SCHEMA).unwrap();
    assert!(!before.has(&key(0)), "the key must be unknown");
    put(&store, 0..100);
    assert_eq!(list_packs(folder.path()).len(), 1);
    for store in [&store, &before, &Store::open_read_only(folder.path(), SCHEMA).unwrap()] {
        assert!((0..100).all(|value| is_intact(store, value)) && !store.has(&key(100)));
        assert_eq!((store.present(SCORES).len(), store.entries().len()), (100, 100));
        assert!(store.entries().iter().all(InventoryItem::is_current));
    }
    // Existing members are not written again.
    put(&store, 0..101);
    assert_eq!((list_packs(folder.path()).len(), store.entries().len()), (2, 101));
    assert_eq!(fs::read_dir(folder.path().join("drafts")).unwrap().count(), 0);
    // Write more members than fit into one pack.
    put(&store, 200..1100);
    assert!(list_packs(folder.path()).len() == 5 && (200..1100).all(|value| is_intact(&before, value)));
}

#[test]
fn small_object_is_a_file_and_large_object_is_a_folder() {
    let (folder, store) = store();
    let large = vec![7; packed::MAX_SMALL_BYTES];
    for (depth, matrix, files) in [(1, &large[..99], 1), (2, &large, 4)] {
        let path = store.object_folder(&operator_key(depth));
        let stored = store.put(&operator_key(depth), 1.5, &[("matrix", matrix), ("figures", b"{}")]).unwrap();
        assert_eq!(1 + count_inodes(&path), files);
        let Lookup::Intact(found) = store.get(&operator_key(depth)) else { panic!("not found") };
        for object in [stored, found] {
            assert_eq!(object.read("matrix").unwrap(), matrix);
            assert_eq!(
                (object.read("figures").unwrap(), object.meta().bytes()),
                (b"{}".to_vec(), matrix.len() as u64 + 2)
            );
            assert_eq!(object.payloads().collect::<Vec<_>>(), ["figures", "matrix"]);
        }
    }
    store.discard(&operator_key(1)).unwrap();
    assert!(!store.has(&operator_key(1)) && store.has(&operator_key(2)));
    store.remove_all(&store.entries()).unwrap();
    assert!(store.entries().is_empty() && fs::read_dir(folder.path().join("drafts")).unwrap().count() == 0);
}

fn operator_key(depth: u32) -> Key {
    Key::new(OPERATOR, json!({"depth": depth}), [])
}

#[test]
fn damaged_file_is_detected_and_repaired_by_rewriting() {
    let (folder, store) = store();
    let single = Key::new(SELECTION, json!({"depth": 1}), []);
    write_both(&store, &single);
    for path in [list_packs(folder.path()).remove(0), store.object_folder(&single)] {
        let intact_bytes = fs::read(&path).unwrap();
        let check_damage = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let store = open_read_only(folder.path());
            assert!(count_damaged(&store) > 0, "no reader detected the damage");
            // A value that is still found must equal the value that was written.
            for value in 0..3 {
                is_intact(&store, value);
            }
            if let Lookup::Intact(found) = store.get(&single) {
                assert_eq!(found.read("selection.json").unwrap(), b"[1, 2]");
            }
        };
        for position in (0..intact_bytes.len()).step_by(7).chain(0..30) {
            let mut bytes = intact_bytes.clone();
            bytes[position] ^= 4;
            check_damage(&bytes);
        }
        for length in [0, 1, 24, 30, 200, intact_bytes.len() / 2, intact_bytes.len() - 1] {
            check_damage(&intact_bytes[..length]);
        }
        // Check a store that has cached the pack index, and one that has not.
        for reader in [&store, &open_read_only(folder.path())] {
            let mut bytes = intact_bytes.clone();
            let last = bytes.len() - 9;
            bytes[last] ^= 4;
            fs::write(&path, &bytes).unwrap();
            assert!(
                matches!(reader.get(&key(2)), Lookup::Damaged(_)) || matches!(reader.get(&single), Lookup::Damaged(_))
            );
            write_both(&store, &single);
            assert_eq!(count_damaged(&open_read_only(folder.path())), 0);
            assert!(
                (0..3).all(|value| is_intact(&open_read_only(folder.path()), value))
                    && matches!(open_read_only(folder.path()).get(&single), Lookup::Intact(_))
            );
            if path.exists() {
                continue;
            }
            // The other members of the pack have moved to a new file.
            reader.remove_all(&reader.entries()).unwrap();
            write_both(&store, &single);
        }
    }
}

fn open_read_only(folder: &Path) -> Store {
    Store::open_read_only(folder, SCHEMA).unwrap()
}

#[test]
fn objects_lost_in_a_truncated_pack_are_rewritten() {
    let (folder, store) = store();
    for which in [0..4, 0..8] {
        put(&store, which);
    }
    for file in list_packs(folder.path()) {
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    }
    let lost = (0..8).filter(|&value| !is_intact(&store, value)).count();
    assert!(lost > 3, "only {lost} damaged objects were reported for two files");
    put(&store, 0..8);
    for store in [&store, &Store::open_read_only(folder.path(), SCHEMA).unwrap()] {
        assert!((0..8).all(|value| is_intact(store, value)));
        assert_eq!((count_damaged(store), store.entries().len()), (0, 8));
    }
}

#[test]
fn removing_damaged_pack_members_keeps_the_others() {
    let (folder, store) = store();
    put(&store, 0..5);
    let file = list_packs(folder.path()).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    // Damage the second member line.
    bytes[25 + 133 + 3] ^= 1;
    fs::write(&file, bytes).unwrap();
    let store = Store::open(folder.path(), SCHEMA).unwrap();
    let bad: Vec<InventoryItem> = store.entries().into_iter().filter(|entry| entry.object.is_err()).collect();
    assert_eq!(bad.len(), 1);
    store.remove_all(&bad).unwrap();
    assert_eq!((count_damaged(&store), store.entries().len()), (0, 4));
    fs::write(&list_packs(folder.path())[0], "none").unwrap();
    let store = Store::open(folder.path(), SCHEMA).unwrap();
    store.remove_all(&store.entries()).unwrap();
    assert!(store.entries().is_empty() && list_packs(folder.path()).is_empty());
}

#[test]
fn removed_pack_members_do_not_disturb_readers() {
    let (folder, store) = store();
    put(&store, 0..10);
    let reader = Store::open_read_only(folder.path(), SCHEMA).unwrap();
    let Lookup::Intact(held) = reader.lookup(&key(3)) else { panic!("not found") };
    let entries = store.entries();
    store
        .remove_all(entries.iter().filter(|entry| [1, 2].iter().any(|&value| key(value).hash() == entry.hash)))
        .unwrap();
    store.discard(&key(4)).unwrap();
    assert_eq!(held.read("values.f64").unwrap(), values(3), "a moved object must stay readable");
    held.verify().unwrap();
    for store in [&store, &reader] {
        let intact: Vec<u32> = (0..10).filter(|&value| is_intact(store, value)).collect();
        assert_eq!(intact, [0, 3, 5, 6, 7, 8, 9]);
    }
    assert_eq!((list_packs(folder.path()).len(), count_damaged(&store)), (1, 0));
    // `entries` was listed before the removals above, so some of its objects are already gone.
    store.remove_all(&entries).unwrap();
    assert!(store.entries().is_empty() && !store.has(&key(9)) && list_packs(folder.path()).is_empty());
}

#[test]
fn scores_stored_outside_packs_remain_usable() {
    let (folder, store) = store();
    for value in 0..3 {
        let mut draft = store.draft().unwrap();
        draft.write("values.f64", &values(value)).unwrap();
        draft.write("a", b"x").unwrap();
        store.commit(draft, &key(value), 1.5).unwrap();
    }
    let store = Store::open(folder.path(), SCHEMA).unwrap();
    assert!((0..3).all(|value| is_intact(&store, value)) && store.present(SCORES).len() == 3);
    put(&store, 0..4);
    assert_eq!(store.entries().len(), 4, "objects were written again");
    fs::write(store.object_folder(&key(1)).join("values.f64"), "x").unwrap();
    assert!(matches!(store.get(&key(1)), Lookup::Damaged(_)));
    put(&store, 0..4);
    assert!((0..4).all(|value| is_intact(&store, value)) && count_damaged(&store) == 0 && store.entries().len() == 4);
    store.discard(&key(0)).unwrap();
    assert!(!store.has(&key(0)) && store.has(&key(1)));
}

fn write_both(store: &Store, single: &Key) {
    put(store, 0..3);
    store.put(single, 1.5, &[("selection.json", b"[1, 2]")]).unwrap();
}
