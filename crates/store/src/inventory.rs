//! Listing, checking and removal of stored objects.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::key::is_hex;
use super::object::{StoredObject, damaged_error};
use super::packed::{self, Packs};
use super::small::ObjectLocation;
use super::{Key, Store, StoreSchema};
use ghostlab_core::error::{Error, Result};

/// Object in a store listing, intact or damaged.
#[derive(Debug)]
pub struct InventoryItem {
    /// Folder name of the [`ObjectKind`](super::ObjectKind), such as `scores-v1`. The version may be older or newer
    /// than the current one.
    pub stage: String,
    /// Hash of the object's key.
    pub hash: String,
    /// Folder of the object, or the file that contains it.
    pub folder: PathBuf,
    /// The object, or the error that describes its damage.
    pub object: Result<StoredObject>,
    schema: StoreSchema,
}

impl InventoryItem {
    /// Returns whether the current program version can use the object. The stage versions of the object and of its
    /// inputs must be current.
    pub fn is_current(&self) -> bool {
        fn is_current_key(key: &Value, schema: StoreSchema) -> bool {
            let is_key = key.get("kind").is_some() && key.get("of").is_some();
            let parents = key["of"].as_object().into_iter().flat_map(|fields| fields.values());
            !is_key
                || ((schema.kinds.iter().any(|kind| key["kind"] == kind.name() && key["version"] == kind.version()))
                    && parents.into_iter().all(|parent| is_current_key(parent, schema)))
        }
        let is_current_stage = self.schema.kinds.iter().any(|kind| kind.folder() == self.stage);
        let key = self.object.as_ref().ok().map(|object| &object.meta().key);
        is_current_stage && key.is_none_or(|key| is_current_key(key, self.schema))
    }

    /// Returns whether the object is intact but unused, because an older program version wrote it.
    pub fn is_older_version(&self) -> bool {
        self.object.is_ok() && !self.is_current() && !self.is_newer_version()
    }

    /// Returns the hash of the key without the given fields, or `None` if a field is missing or the object is damaged.
    pub fn hash_without(&self, fields: &[&str]) -> Option<String> {
        let mut key = self.object.as_ref().ok()?.meta().key.clone();
        let fields_of_key = key["of"].as_object_mut()?;
        fields.iter().try_for_each(|field| fields_of_key.remove(*field).map(drop))?;
        Some(Key::hash_of(&key))
    }

    /// Returns the hash of the input object with the given name, if any.
    pub fn parent(&self, name: &str) -> Option<String> {
        let parent = self.object.as_ref().ok()?.meta().key["of"].get(name)?;
        parent.get("kind").is_some().then(|| Key::hash_of(parent))
    }

    /// Returns whether a newer program version wrote the object or one of its inputs.
    pub fn is_newer_version(&self) -> bool {
        fn is_newer_key(key: &Value, schema: StoreSchema) -> bool {
            let (Some(kind), Some(version)) = (key["kind"].as_str(), key["version"].as_u64()) else { return false };
            let mut parents = key["of"].as_object().into_iter().flat_map(|fields| fields.values());
            schema.kind(kind).is_none_or(|known| version > u64::from(known.version()))
                || parents.any(|parent| is_newer_key(parent, schema))
        }
        let has_newer_key = self.object.as_ref().is_ok_and(|object| is_newer_key(&object.meta().key, self.schema));
        has_newer_key
            || self.schema.kind_of_folder(&self.stage).is_none_or(|(known, version)| version > known.version())
    }

    fn is_packed(&self) -> bool {
        self.folder.parent().is_some_and(|group| file_name(group) == Packs::FOLDER)
    }

    /// Returns the total payload size in bytes. For a damaged object, returns its size on disk.
    pub fn bytes(&self) -> u64 {
        match &self.object {
            Ok(object) => object.meta().bytes(),
            // The size of a damaged pack member is unknown.
            Err(_) if self.is_packed() => 0,
            Err(_) => folder_bytes(&self.folder),
        }
    }

    /// Returns how long the object took to compute, in seconds, or 0 if unknown.
    pub fn seconds(&self) -> f64 {
        self.object.as_ref().map_or(0.0, |object| object.meta().seconds)
    }

    /// Returns the time since the last modification according to the system clock, or zero if unknown.
    pub fn age(&self) -> Duration {
        let written = fs::metadata(&self.folder).and_then(|data| data.modified());
        written.ok().and_then(|time| SystemTime::now().duration_since(time).ok()).unwrap_or_default()
    }
}

impl Store {
    /// Lists the objects of all stages and versions, sorted by stage. Checks records and payload sizes, but no payload
    /// hashes.
    pub fn entries(&self) -> Vec<InventoryItem> {
        let mut entries = Vec::new();
        for stage in self.list_paths(&self.root) {
            let name = file_name(&stage);
            if self.schema.kind_of_folder(&name).is_none() {
                continue;
            }
            for group in self.list_paths(&stage) {
                let is_pack_folder = file_name(&group) == Packs::FOLDER;
                for path in self.list_paths(&group) {
                    // Skip names that this program does not write so that foreign files are never removed.
                    let hash = file_name(&path);
                    match is_pack_folder {
                        _ if !is_hex(&hash, 64) => {}
                        true => self.add_pack_items(&name, &path, &mut entries),
                        false if hash.starts_with(&file_name(&group)) => {
                            entries.push(self.read_folder_item(&name, path));
                        }
                        false => {}
                    }
                }
            }
        }
        entries
    }

    /// Reads an object in its own folder or file.
    fn read_folder_item(&self, stage: &str, folder: PathBuf) -> InventoryItem {
        let hash = file_name(&folder);
        let opened = StoredObject::open(Arc::clone(&self.disk), folder.clone(), None);
        self.build_item(stage, hash, folder, opened)
    }

    /// Builds the item for an opened object. If the key of the object does not hash to `hash`, the object is damaged.
    fn build_item(&self, stage: &str, hash: String, folder: PathBuf, opened: Result<StoredObject>) -> InventoryItem {
        let object = opened.and_then(|object| match Key::hash_of(&object.meta().key) == hash {
            true => Ok(object),
            false => Err(Error::damaged("the key of a stored object does not match its path").at(folder.display())),
        });
        InventoryItem { stage: stage.to_owned(), hash, folder, object, schema: self.schema }
    }

    /// Reads the objects of a pack. Unreadable members are reported as one damaged item.
    fn add_pack_items(&self, stage: &str, file: &Path, entries: &mut Vec<InventoryItem>) {
        let pack = packed::read_members(&*self.disk, file);
        let damage = match &pack {
            Ok((_, true)) => None,
            Ok((_, false)) => Some("a line of the member list is damaged".to_owned()),
            Err(found) => Some(found.clone()),
        };
        if let Some(found) = damage {
            let damaged = Err(damaged_error(file).found(found));
            entries.push(self.build_item(stage, file_name(file), file.to_owned(), damaged));
        }
        for (member, meta) in pack.map(|(members, _)| members).unwrap_or_default() {
            let opened = meta.map_err(|found| damaged_error(file).found(found));
            let packs = Some(Arc::clone(&self.packs));
            let opened = opened.map(|meta| {
                StoredObject::packed(Arc::clone(&self.disk), file.to_owned(), member.payload_offset, meta, packs)
            });
            entries.push(self.build_item(stage, member.hash, file.to_owned(), opened));
        }
    }

    /// Returns the number of objects written by older stage versions. Reads only directory listings and pack headers.
    pub fn count_older_objects(&self) -> usize {
        self.list_paths(&self.root)
            .iter()
            .filter(|stage| {
                self.schema.kind_of_folder(&file_name(stage)).is_some_and(|(known, version)| version < known.version())
            })
            .map(|stage| {
                let groups = self.list_paths(stage).into_iter().filter(|group| file_name(group) != Packs::FOLDER);
                let separate: usize = groups.map(|group| self.list_paths(&group).len()).sum();
                separate + Packs::new(Arc::clone(&self.disk), stage).hashes().len()
            })
            .sum()
    }

    /// Removes objects. The folder of an object is renamed before its files are deleted.
    ///
    /// # Errors
    /// Fails if the store is not writable.
    pub fn remove_all<'e>(&self, entries: impl IntoIterator<Item = &'e InventoryItem>) -> Result<()> {
        let mut hashes_by_file: BTreeMap<&Path, Vec<&str>> = BTreeMap::new();
        for entry in entries {
            match entry.is_packed() {
                true => hashes_by_file.entry(&entry.folder).or_default().push(&entry.hash),
                false => self.remove_object(&entry.folder, &entry.hash)?,
            }
        }
        hashes_by_file.into_iter().try_for_each(|(file, hashes)| self.drop_members(file, &hashes))
    }

    /// Removes the object for a key, if present.
    pub fn discard(&self, key: &Key) -> Result<()> {
        match self.locate(key.kind(), key.hash()) {
            None => Ok(()),
            Some(ObjectLocation::Separate(path)) => self.remove_object(&path, key.hash()),
            Some(ObjectLocation::Packed(file, _)) => self.drop_members(&file, &[key.hash()]),
        }
    }

    pub(super) fn remove_object(&self, folder: &Path, hash: &str) -> Result<()> {
        let aside = self.drafts().join(format!("{}.{hash}.gone", self.worker()?.id()));
        // A single file needs no rename, because its removal is atomic.
        let is_file = self.disk.list(folder).is_empty();
        if !is_file || self.disk.remove(folder).is_err() {
            ignore_missing(self.disk.rename(folder, &aside), folder)?;
            ignore_missing(
                self.disk.remove_folder(&aside).or_else(|error| self.disk.remove(&aside).map_err(|_| error)),
                folder,
            )?;
        }
        // This succeeds only if the folder is empty.
        folder.parent().map(|parent| self.disk.remove_empty_folder(parent));
        Ok(())
    }

    fn list_paths(&self, folder: &Path) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self.disk.list(folder).into_iter().map(|name| folder.join(name)).collect();
        paths.sort();
        paths
    }

    /// Lists the journals of unfinished work with their sizes.
    pub fn journals(&self) -> Vec<(PathBuf, u64)> {
        self.list_paths(&self.root.join("journals"))
            .into_iter()
            .map(|folder| (folder.clone(), folder_bytes(&folder)))
            .collect()
    }
}

/// Treats a missing path as success, because another process has removed it or the reply to the rename was lost.
fn ignore_missing(result: std::io::Result<()>, folder: &Path) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error: std::io::Error| Error::path_io("remove", folder, &error)),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn folder_bytes(folder: &Path) -> u64 {
    let file_bytes = fs::metadata(folder).ok().filter(fs::Metadata::is_file).map_or(0, |data| data.len());
    file_bytes
        + fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.metadata().map_or(0, |data| data.len()))
            .sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{SCHEMA, SELECTION};
    use serde_json::json;

    #[test]
    fn entries_list_damaged_and_outdated_objects_until_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), SCHEMA).unwrap();
        let [good, bad] = [1, 2].map(|depth| {
            let mut draft = store.draft().unwrap();
            draft.write("a", b"xyz").unwrap();
            store.commit(draft, &selection_key(depth), 2.0).unwrap()
        });
        fs::write(bad.path("a").unwrap(), "x").unwrap();
        // Write an object of an older stage version.
        let old = folder.path().join("selection-v0").join(&selection_key(1).hash()[..2]).join(selection_key(1).hash());
        fs::create_dir_all(&old).unwrap();
        fs::copy(good.folder().join("meta.json"), old.join("meta.json")).unwrap();
        fs::write(old.join("a"), "xyz").unwrap();
        let theirs = folder.path().join("selection-v0/notes");
        fs::create_dir_all(theirs.join("mine")).unwrap();
        let entries = store.entries();
        assert_eq!(entries.len(), 3);
        let damaged: Vec<&InventoryItem> = entries.iter().filter(|entry| entry.object.is_err()).collect();
        assert_eq!(damaged.len(), 1);
        assert_eq!(damaged[0].folder, bad.folder());
        assert_eq!(
            entries.iter().filter(|entry| !entry.is_current()).map(InventoryItem::bytes).collect::<Vec<_>>(),
            [3]
        );
        store.remove_all(&entries).unwrap();
        assert!(store.entries().is_empty() && theirs.join("mine").exists());
        assert_eq!(fs::read_dir(folder.path().join("drafts")).unwrap().count(), 0);
    }

    fn selection_key(depth: u32) -> Key {
        Key::new(SELECTION, json!({"depth": depth}), [])
    }
}
