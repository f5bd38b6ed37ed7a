//! Drafts: objects that are written to a private folder and published by an atomic rename.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;
use serde_json::Value;

use super::disk::Disk;
use super::key::{Key, is_hex, is_number};
use super::meta::{META, Meta, StoredFile};
use super::process::Process;
use super::processes;
use crate::{Lookup, Store, StoredObject, fault};
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::STALE_AFTER;

/// Private folder of an unfinished object. It is removed on drop unless it is committed.
pub struct Draft {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    payloads: BTreeSet<String>,
    committed: bool,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.committed {
            self.disk.remove_folder(&self.folder).ok();
        }
    }
}

impl Store {
    /// Creates a private folder for the payloads of a new object, invisible until [`Store::commit`].
    pub fn draft(&self) -> Result<Draft> {
        let store = self.writer()?;
        Draft::new(Arc::clone(&store.disk), &store.drafts(), store.worker()?.id())
    }

    /// Stores a finished draft under its key. An intact existing object is kept, because equal keys imply equal
    /// content.
    pub fn commit(&self, draft: Draft, key: &Key, seconds: f64) -> Result<StoredObject> {
        let store = self.writer()?;
        let path = store.object_folder(key);
        store.reserve([key.hash()])?;
        draft.commit(&path, key, seconds, (self.provenance)(), || matches!(store.get(key), Lookup::Intact(_)))?;
        StoredObject::open(Arc::clone(&store.disk), path, Some(key.hash()))
    }
}

/// Payload file that is being written.
pub type Payload = BufWriter<Box<dyn Write + Send>>;

impl Draft {
    /// Creates a draft owned by the process `owner`. The folder name contains `owner`, and [`list_drafts`] parses it.
    pub(super) fn new(disk: Arc<dyn Disk>, drafts: &Path, owner: &str) -> Result<Self> {
        static NEXT_DRAFT_ID: AtomicU64 = AtomicU64::new(0);
        let folder = drafts.join(format!("{owner}.{}", NEXT_DRAFT_ID.fetch_add(1, Relaxed)));
        disk.make_folder(&folder).map_err(|error| Error::folder_io("write to", drafts, &error))?;
        Ok(Self { disk, folder, payloads: BTreeSet::new(), committed: false })
    }

    /// Opens a payload file. Close it with [`BufWriter::into_inner`] before committing the draft.
    pub fn payload(&mut self, name: &str) -> Result<Payload> {
        fault::fault_point("draft");
        let path = self.folder.join(name);
        let file = self.disk.writer(&path).map_err(|error| Error::io("create", &path, &error))?;
        self.payloads.insert(name.to_string());
        Ok(BufWriter::with_capacity(1 << 20, file))
    }

    /// Writes an entire payload at once.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut payload = self.payload(name)?;
        payload
            .write_all(bytes)
            .and_then(|()| payload.flush())
            .map_err(|error| write_error(&self.folder.join(name), &error))
    }

    /// Hashes and flushes the payloads, writes `meta.json`, and renames the folder into place. An existing object is
    /// replaced unless `keep` returns true, i.e. unless it is intact.
    pub(super) fn commit(
        mut self,
        destination: &Path,
        key: &Key,
        seconds: f64,
        provenance: Value,
        keep: impl Fn() -> bool,
    ) -> Result<()> {
        let disk = &*self.disk;
        let folder = &*self.folder;
        let flush_and_hash = |name: &String| {
            let path = folder.join(name);
            disk.sync(&path).map_err(|error| Error::io("write", &path, &error))?;
            Ok((name.clone(), StoredFile::read(disk, &path).map_err(|error| Error::io("read", &path, &error))?))
        };
        let payloads = match self.payloads.len() {
            0 | 1 => self.payloads.iter().map(flush_and_hash).collect::<Result<_>>()?,
            _ => self.payloads.par_iter().map(flush_and_hash).collect::<Result<_>>()?,
        };
        fault::fault_point("record");
        let meta = Meta { key: key.record(), seconds, provenance, payloads };
        let text = meta.to_text()?;
        let path = folder.join(META);
        let written = disk.create(&path, &text).and_then(|()| disk.sync(folder));
        written.map_err(|error| Error::io("write", &path, &error))?;
        // If an intact object exists, the draft is dropped.
        self.committed = self.publish(folder, destination, &keep)?;
        Ok(())
    }

    /// Writes all payloads as one file and moves it into place. An existing file is replaced, because it is either
    /// identical or damaged. If an existing entry prevents the move, it is removed unless `keep` returns true.
    pub(super) fn commit_file(self, destination: &Path, bytes: &[u8], keep: impl Fn() -> bool) -> Result<()> {
        fault::fault_point("draft");
        fault::fault_point("record");
        let path = self.folder.join("packed");
        self.disk.create(&path, bytes).map_err(|error| write_error(&path, &error))?;
        // The draft folder is removed on drop.
        self.publish(&path, destination, &keep).map(drop)
    }

    /// Moves a finished file or folder into place. Returns false if an existing object was kept instead.
    fn publish(&self, from: &Path, destination: &Path, keep: &dyn Fn() -> bool) -> Result<bool> {
        let disk = &*self.disk;
        let parent = destination.parent().unwrap_or(destination);
        disk.make_folder(parent).map_err(|error| Error::folder_io("create", parent, &error))?;
        fault::fault_point("commit");
        // Derive the name from this draft, because other processes may replace the same object concurrently.
        let mut aside = self.folder.file_name().unwrap_or_default().to_owned();
        aside.push(".old");
        let aside = self.folder.with_file_name(aside);
        let mut is_moved = false;
        let mut move_into_place = || disk.rename(from, destination).inspect(|()| is_moved = true);
        let result = move_into_place().or_else(|error| {
            if !disk.exists(destination) {
                return Err(error);
            }
            if keep() {
                return Ok(());
            }
            // The existing object is damaged. A crash between the two renames loses only that object.
            disk.rename(destination, &aside)?;
            fault::fault_point("replace");
            let moved = move_into_place();
            disk.remove_folder(&aside).or_else(|_| disk.remove(&aside)).ok();
            // Another process may have repaired the object concurrently.
            if moved.is_err() && keep() { Ok(()) } else { moved }
        });
        let result = result.and_then(|()| disk.sync(parent));
        result.map(|()| is_moved).map_err(|error| Error::path_io("replace", destination, &error))
    }
}

fn write_error(path: &Path, error: &io::Error) -> Error {
    Error::missing("cannot write to the store")
        .at(path.display())
        .found(error)
        .hint("free some disk space, or use another folder with --store")
}

/// Parses the owner from the name of a draft folder: `PROCESS.NUMBER` for an object being written,
/// `PROCESS.NUMBER.old` for a replaced one, `PROCESS.HASH.gone` for a removed one.
fn parse_owner(name: &str) -> Option<&str> {
    let (owner, rest) = name.split_once('.')?;
    let is_draft = is_number(rest.strip_suffix(".old").unwrap_or(rest))
        || rest.strip_suffix(".gone").is_some_and(|text| is_hex(text, 64));
    (is_draft && Process::is_id(owner)).then_some(owner)
}

/// Draft folder found in a store. It is abandoned if its process is dead.
#[derive(Debug)]
pub struct AbandonedDraft {
    pub folder: PathBuf,
    pub bytes: u64,
    /// Whether the process that wrote the draft has died.
    pub dead: bool,
}

/// Lists all drafts. Drafts of unknown processes get a grace period, because a shared file system may show the process
/// record late.
pub(super) fn list_drafts(disk: &dyn Disk, root: &Path, drafts: &Path) -> Vec<AbandonedDraft> {
    let folders: Vec<PathBuf> = disk.list(drafts).into_iter().map(|name| drafts.join(name)).collect();
    // List processes after drafts, because a process writes its record before its first draft.
    let known = processes::list_processes(disk, root);
    let now = OnceCell::new();
    let listed = folders.into_iter().filter_map(|folder| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let owner = parse_owner(&name)?;
        let files: Vec<PathBuf> = disk.list(&folder).into_iter().map(|name| folder.join(name)).collect();
        let dead = match known.iter().find(|known| known.process.id == owner) {
            Some(known) => known.dead,
            None => {
                let now = *now.get_or_init(|| disk.file_system_time(drafts));
                let mut paths = std::iter::once(&folder).chain(&files);
                paths.all(|path| disk.age(path, now).is_some_and(|age| age > STALE_AFTER))
            }
        };
        let bytes = files.iter().filter_map(|file| disk.size(file).ok()).sum();
        Some(AbandonedDraft { dead, bytes, folder })
    });
    listed.collect()
}
