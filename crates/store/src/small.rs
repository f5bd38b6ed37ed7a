//! Storage of small objects, each in its own file or in a pack.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::packed::{self, MAX_PACK_MEMBERS, MAX_SMALL_BYTES, PackEntry, PackMember, Packs};
use super::{Key, Lookup, ObjectKind, Store, StoredObject};
use crate::fault;
use ghostlab_core::error::{Error, Result};

pub(super) enum ObjectLocation {
    /// Path of a separate folder or file.
    Separate(PathBuf),
    /// Pack and the object's position in it.
    Packed(PathBuf, PackMember),
}

impl Store {
    /// Maximum payload size in bytes for which an object is stored as a file instead of a folder.
    pub const MAX_SMALL_BYTES: u64 = MAX_SMALL_BYTES as u64;

    /// Maximum number of members per pack.
    pub const MAX_PACK_MEMBERS: usize = MAX_PACK_MEMBERS;

    pub fn is_packed(&self, kind: ObjectKind) -> bool {
        kind == self.schema.packed
    }

    /// Returns the location of the object with the given key hash, if it exists.
    pub(super) fn locate(&self, kind: ObjectKind, hash: &str) -> Option<ObjectLocation> {
        if self.is_packed(kind) {
            if let Some((file, member)) = self.packs.find(hash) {
                return Some(ObjectLocation::Packed(file, member));
            }
            // Older programs stored these objects separately. List them once instead of checking each path.
            if !self.unpacked.get_or_init(|| self.list_unpacked_hashes(kind)).contains(hash) {
                return None;
            }
        }
        let path = self.object_folder_of(kind, hash);
        self.disk.exists(&path).then_some(ObjectLocation::Separate(path))
    }

    /// Opens the object at a location and checks its record and payload sizes.
    pub(super) fn open_location(&self, hash: &str, location: &ObjectLocation) -> Result<StoredObject> {
        match location {
            ObjectLocation::Separate(path) => StoredObject::open(Arc::clone(&self.disk), path.clone(), Some(hash)),
            ObjectLocation::Packed(file, member) => {
                StoredObject::open_packed(&self.disk, &self.packs, hash, (file.clone(), member.clone()))
            }
        }
    }

    /// Returns the path at which a key's object is or would be stored.
    pub fn object_path(&self, key: &Key) -> PathBuf {
        match self.locate(key.kind(), key.hash()) {
            Some(ObjectLocation::Packed(file, _)) => file,
            _ => self.object_folder(key),
        }
    }

    /// Prepares an object for [`Self::put_all`].
    pub fn pack_entry(&self, key: &Key, seconds: f64, payloads: &[(&str, &[u8])]) -> PackEntry {
        PackEntry::new(key, seconds, (self.provenance)(), payloads)
    }

    /// Writes an object whose payloads are in memory. A small object becomes one file or a member of a pack.
    pub fn put(&self, key: &Key, seconds: f64, payloads: &[(&str, &[u8])]) -> Result<StoredObject> {
        if self.scratch.is_some() {
            return self.writer()?.put(key, seconds, payloads);
        }
        if payloads.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > MAX_SMALL_BYTES {
            let mut draft = self.draft()?;
            for (name, bytes) in payloads {
                draft.write(name, bytes)?;
            }
            return self.commit(draft, key, seconds);
        }
        let entry = self.pack_entry(key, seconds, payloads);
        if self.is_packed(key.kind()) {
            self.put_all(vec![entry])?;
            return match self.lookup(key) {
                Lookup::Intact(object) => Ok(object),
                Lookup::Damaged(error) => Err(error),
                Lookup::Absent => {
                    Err(Error::job("an object that was just stored is missing").at(key.short().to_owned()))
                }
            };
        }
        self.reserve([key.hash()])?;
        let path = self.object_folder(key);
        let meta = entry.meta().clone();
        let (bytes, members) = packed::encode_pack(&[entry])?;
        self.draft()?.commit_file(&path, &bytes, || matches!(self.get(key), Lookup::Intact(_)))?;
        Ok(StoredObject::packed(Arc::clone(&self.disk), path, members[0].payload_offset, meta, None))
    }

    /// Writes many small objects of the packed kind. Existing intact objects are kept.
    ///
    /// # Errors
    /// Fails if the store is not writable.
    pub fn put_all(&self, entries: Vec<PackEntry>) -> Result<()> {
        if self.scratch.is_some() {
            return self.writer()?.put_all(entries);
        }
        self.reserve(entries.iter().map(|entry| &*entry.hash))?;
        self.packs.refresh();
        let unpacked_hashes = self.unpacked.get_or_init(|| self.list_unpacked_hashes(self.schema.packed));
        let (mut new, mut damaged) = (Vec::new(), Vec::new());
        for entry in entries {
            let location = match self.packs.find_in_memory(&entry.hash) {
                Some((file, member)) => Some(ObjectLocation::Packed(file, member)),
                None if unpacked_hashes.contains(&entry.hash) => {
                    Some(ObjectLocation::Separate(self.object_folder_of(self.schema.packed, &entry.hash)))
                }
                None => None,
            };
            if location.as_ref().is_some_and(|location| {
                self.open_location(&entry.hash, location).and_then(|object| object.verify()).is_ok()
            }) {
                continue;
            }
            damaged.extend(location.map(|location| (entry.hash.clone(), location)));
            new.push(entry);
        }
        for file in packed::split_into_packs(new) {
            self.put_pack(self.packs.folder(), &file)?;
        }
        let mut hashes_by_file: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
        for (hash, location) in damaged {
            fault::fault_point("replace");
            match location {
                ObjectLocation::Packed(file, _) => hashes_by_file.entry(file).or_default().push(hash),
                ObjectLocation::Separate(path) => self.remove_object(&path, &hash)?,
            }
        }
        for (file, hashes) in hashes_by_file {
            // Ignore the returned value: `false` means that another process has already removed the pack.
            self.rewrite_without(&file, &hashes.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn put_pack(&self, folder: &Path, members: &[PackEntry]) -> Result<PathBuf> {
        let (bytes, index) = packed::encode_pack(members)?;
        let path = folder.join(ghostlab_core::files::sha256::of_bytes(&bytes));
        // The file name is the hash of the content, so keep a file that already exists. Replace any other entry, such
        // as a folder.
        self.draft()?.commit_file(&path, &bytes, || self.disk.size(&path).is_ok())?;
        if folder == self.packs.folder() {
            self.packs.insert_pack(&path, index);
        }
        Ok(path)
    }

    /// Removes members from a pack, or from the packs to which they have moved in the meantime.
    pub(super) fn drop_members(&self, file: &Path, hashes: &[&str]) -> Result<()> {
        if self.rewrite_without(file, hashes)? {
            return Ok(());
        }
        let folder = file.parent().unwrap_or(file);
        let packs = Packs::new(Arc::clone(&self.disk), folder.parent().unwrap_or(folder));
        packs.refresh();
        let mut moved: BTreeMap<PathBuf, Vec<&str>> = BTreeMap::new();
        for hash in hashes {
            if let Some((file, _)) = packs.find_in_memory(hash) {
                moved.entry(file).or_default().push(hash);
            }
        }
        moved.into_iter().try_for_each(|(file, hashes)| self.drop_members(&file, &hashes))
    }

    /// Rewrites a pack without the given members and without damaged ones. Returns whether the pack existed.
    fn rewrite_without(&self, file: &Path, hashes: &[&str]) -> Result<bool> {
        let folder = file.parent().unwrap_or(file);
        let retained = match packed::read_members_except(&*self.disk, file, hashes) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            // A pipe or folder has taken the place of the pack.
            Err(error) if error.kind() == ErrorKind::InvalidData => Vec::new(),
            retained => retained.map_err(|error| remove_error(&error, file))?,
        };
        if !retained.is_empty() && self.put_pack(folder, &retained)? == file {
            return Ok(true);
        }
        let removed = self.disk.remove(file).or_else(|error| match error.kind() {
            ErrorKind::NotFound => Err(error),
            _ => self.disk.remove_folder(file),
        });
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(remove_error(&error, file)),
            _ => self.packs.remove_pack(file),
        }
        // This succeeds only if the folders are empty.
        self.disk
            .remove_empty_folder(folder)
            .and_then(|()| self.disk.remove_empty_folder(folder.parent().unwrap_or(folder)))
            .ok();
        Ok(true)
    }
}

fn remove_error(error: &std::io::Error, file: &Path) -> Error {
    Error::io("remove", file, error)
}
