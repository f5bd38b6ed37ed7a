//! Stored objects, each in its own folder, its own file or a pack.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use super::disk::{Disk, FileContent};
use super::key::Key;
use super::meta::{META, Meta, StoredFile};
use super::packed::{self, PackMember, Packs};
use ghostlab_core::error::{Error, Result};

/// Object with an intact record and payloads of the recorded sizes.
#[derive(Debug, Clone)]
pub struct StoredObject {
    disk: Arc<dyn Disk>,
    location: PayloadLocation,
    meta: Meta,
}

/// Location of an object's payloads.
#[derive(Debug, Clone)]
enum PayloadLocation {
    Folder(PathBuf),
    /// Pack file, offset of the payloads in bytes, and the packs to search if the object has moved.
    File(PathBuf, u64, Option<Arc<Packs>>),
}

impl StoredObject {
    /// Opens an object. Checks the record and payload sizes, but not payload hashes. If `hash` is given, also checks
    /// that the key has this hash.
    pub(super) fn open(disk: Arc<dyn Disk>, path: PathBuf, hash: Option<&str>) -> Result<Self> {
        if let Ok(read) = packed::read_single_member(&*disk, &path) {
            let (member, meta) = read.map_err(|found| damaged_error(&path).found(found))?;
            check_key(&path, &meta, hash)?;
            return Ok(Self::packed(disk, path, member.payload_offset, meta, None));
        }
        let record = path.join(META);
        let text = disk.read(&record).map_err(|error| damaged_error(&record).found(error))?;
        let meta = Meta::from_text(&text).map_err(|found| damaged_error(&record).found(found))?;
        check_key(&record, &meta, hash)?;
        for (name, stored) in &meta.payloads {
            let payload = path.join(name);
            let bytes = disk.size(&payload).map_err(|error| damaged_error(&payload).found(error))?;
            if bytes != stored.bytes {
                return Err(damaged_error(&payload)
                    .expected(format!("{} bytes", stored.bytes))
                    .found(format!("{bytes} bytes")));
            }
        }
        Ok(Self { disk, location: PayloadLocation::Folder(path), meta })
    }

    /// Creates an object from its record and the position of its payloads in a pack file.
    pub(super) fn packed(
        disk: Arc<dyn Disk>,
        file: PathBuf,
        offset: u64,
        meta: Meta,
        packs: Option<Arc<Packs>>,
    ) -> Self {
        Self { disk, location: PayloadLocation::File(file, offset, packs), meta }
    }

    /// Opens an object that is a member of a pack.
    pub(super) fn open_packed(
        disk: &Arc<dyn Disk>,
        packs: &Arc<Packs>,
        hash: &str,
        location: (PathBuf, PackMember),
    ) -> Result<Self> {
        let open = |(file, member): (PathBuf, PackMember)| {
            let meta =
                packed::read_record(&**disk, &file, &member).map_err(|found| damaged_error(&file).found(found))?;
            check_key(&file, &meta, Some(hash))?;
            Ok(Self::packed(Arc::clone(disk), file, member.payload_offset, meta, Some(Arc::clone(packs))))
        };
        // A concurrent `cache gc` may have moved the object.
        open(location).or_else(|error| packs.find_refreshed(hash).map_or(Err(error), open))
    }

    /// Checks the hash of every payload.
    ///
    /// # Errors
    /// Fails at the first damaged payload.
    pub fn verify(&self) -> Result<()> {
        if let PayloadLocation::File(file, ..) = &self.location {
            return self.read_payloads(0, self.meta.bytes(), |bytes| {
                let mut rest = bytes;
                for (name, stored) in &self.meta.payloads {
                    let (payload, after) = rest.split_at_checked(stored.bytes as usize).unwrap_or((rest, &[]));
                    check_content(&file.join(name), stored, &StoredFile::from_bytes(payload))?;
                    rest = after;
                }
                Ok(())
            });
        }
        // Hashing small payloads is faster than waking another thread.
        if self.meta.bytes() < 1 << 20 {
            return self.meta.payloads.iter().try_for_each(|(name, stored)| self.verify_file(name, stored));
        }
        let payloads: Vec<(&String, &StoredFile)> = self.meta.payloads.iter().collect();
        payloads.into_par_iter().try_for_each(|(name, stored)| self.verify_file(name, stored))
    }

    fn verify_file(&self, name: &str, stored: &StoredFile) -> Result<()> {
        let path = self.folder().join(name);
        let found = StoredFile::read(&*self.disk, &path).map_err(|error| damaged_error(&path).found(error))?;
        check_content(&path, stored, &found)
    }

    /// Reads `bytes` payload bytes from a pack file and parses them. If this fails, the object may have moved to
    /// another pack, so it is looked up again.
    fn read_payloads<T>(&self, start: u64, bytes: u64, parse: impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        let PayloadLocation::File(file, offset, packs) = &self.location else { return parse(&[]) };
        self.read_range(file, offset.saturating_add(start), bytes, &parse).or_else(|error| {
            let moved = packs.as_ref().and_then(|packs| packs.find_refreshed(&Key::hash_of(&self.meta.key)));
            moved.map_or(Err(error), |(file, member)| {
                self.read_range(&file, member.payload_offset.saturating_add(start), bytes, &parse)
            })
        })
    }

    /// Reads and parses a byte range of a file.
    fn read_range<T>(&self, file: &Path, start: u64, bytes: u64, parse: &impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        let read = self.disk.read_part(file, start, bytes);
        parse(&read.map_err(|error| damaged_error(file).found(error))?)
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns the folder of the object, or the file that contains it.
    pub fn folder(&self) -> &Path {
        let (PayloadLocation::Folder(path) | PayloadLocation::File(path, ..)) = &self.location;
        path
    }

    /// Iterates over the sorted payload names.
    pub fn payloads(&self) -> impl Iterator<Item = &str> {
        self.meta.payloads.keys().map(String::as_str)
    }

    fn find_stored_file(&self, name: &str) -> Result<&StoredFile> {
        self.meta.payloads.get(name).ok_or_else(|| {
            let names: Vec<String> = self.payloads().map(|name| format!("`{name}`")).collect();
            damaged_error(self.folder()).expected(format!("a payload `{name}`")).found(names.join(", "))
        })
    }

    /// Returns the file that contains a payload, without checking it.
    ///
    /// # Errors
    /// Fails if there is no payload with that name.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        self.find_stored_file(name).map(|_| match &self.location {
            PayloadLocation::Folder(folder) => folder.join(name),
            PayloadLocation::File(file, ..) => file.clone(),
        })
    }

    /// Maps a payload into memory. The hash is not checked if the payload is a separate file.
    ///
    /// # Errors
    /// Fails if there is no payload with that name or it cannot be read.
    pub fn map(&self, name: &str) -> Result<FileContent> {
        if matches!(self.location, PayloadLocation::File(..)) {
            return self.read(name).map(FileContent::Memory);
        }
        let path = self.path(name)?;
        self.disk.map(&path).map_err(|error| Error::io("map", &path, &error))
    }

    /// Reads a payload and checks its hash.
    ///
    /// # Errors
    /// Fails if the payload is missing or damaged.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let stored = self.find_stored_file(name)?;
        let path = self.folder().join(name);
        if let PayloadLocation::File(..) = self.location {
            return self.read_payloads(self.meta.offset_of(name), stored.bytes, |bytes| {
                check_content(&path, stored, &StoredFile::from_bytes(bytes)).map(|()| bytes.to_vec())
            });
        }
        let bytes = self.disk.read(&path).map_err(|error| damaged_error(&path).found(error))?;
        check_content(&path, stored, &StoredFile::from_bytes(&bytes))?;
        Ok(bytes)
    }
}

fn check_key(path: &Path, meta: &Meta, hash: Option<&str>) -> Result<()> {
    let Some(expected) = hash else { return Ok(()) };
    let found = Key::hash_of(&meta.key);
    if found == expected {
        return Ok(());
    }
    Err(damaged_error(path).expected(format!("a key with hash {expected}")).found(format!("a key with hash {found}")))
}

pub(super) fn damaged_error(path: &Path) -> Error {
    Error::damaged("a stored object is damaged")
        .at(path.display())
        .hint("no action needed: the next run recomputes the object")
}

fn check_content(path: &Path, stored: &StoredFile, found: &StoredFile) -> Result<()> {
    if found == stored {
        return Ok(());
    }
    Err(damaged_error(path).expected(format!("SHA-256 {}", stored.sha256)).found(format!("SHA-256 {}", found.sha256)))
}
