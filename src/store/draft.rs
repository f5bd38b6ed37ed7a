//! An artifact that is being written: a private folder that becomes visible in one step.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::Value;
use tempfile::TempDir;

use super::artifact::{META, Meta, StoredFile};
use super::key::Key;
use super::process;
use crate::error::{Error, Result};
use crate::fault;
use crate::files::atomic::{PATIENCE, age, clock};

/// A private folder; it is removed unless it is committed.
pub struct Draft {
    folder: TempDir,
    payloads: BTreeSet<String>,
}

/// A payload file that is being written.
pub struct Payload(BufWriter<File>);

impl Write for Payload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Draft {
    /// `owner` is the process that writes it: see [`all`].
    pub(super) fn new(drafts: &Path, owner: &str) -> Result<Self> {
        let prefix = format!("{owner}.");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix);
        // Temporary folders are private by default; what is stored is as readable as anything else the user makes.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        let folder = builder.tempdir_in(drafts).map_err(|error| Error::io("create", drafts, &error))?;
        Ok(Self { folder, payloads: BTreeSet::new() })
    }

    /// Opens a payload file. It has to be closed ([`Payload::close`]) before the draft is committed.
    pub fn payload(&mut self, name: &str) -> Result<Payload> {
        fault::here("draft");
        let path = self.folder.path().join(name);
        let file = File::create_new(&path).map_err(|error| Error::io("create", &path, &error))?;
        self.payloads.insert(name.to_string());
        Ok(Payload(BufWriter::with_capacity(1 << 20, file)))
    }

    /// Writes a whole payload.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut payload = self.payload(name)?;
        payload.write_all(bytes).and_then(|()| payload.close()).map_err(|error| {
            Error::missing("cannot write to the store")
                .at(self.folder.path().join(name).display().to_string())
                .found(error.to_string())
                .hint("free some room on its disk, or name another folder with --store")
        })
    }

    /// Hashes the payloads, sees that they reach the disk, writes `meta.json` and moves the folder to its place. `keep`
    /// says whether what stands there already is as good: then that stays, and readers of it are not disturbed.
    pub(super) fn commit(
        self,
        place: &Path,
        key: &Key,
        seconds: f64,
        made: Value,
        keep: impl Fn() -> bool,
    ) -> Result<()> {
        let folder = self.folder.path();
        let payloads = self
            .payloads
            .par_iter()
            .map(|name| {
                let path = folder.join(name);
                let synced = File::open(&path).and_then(|file| file.sync_all());
                synced.map_err(|error| Error::io("write", &path, &error))?;
                Ok((name.clone(), StoredFile::of(&path).map_err(|error| Error::io("read", &path, &error))?))
            })
            .collect::<Result<_>>()?;
        fault::here("record");
        let meta = Meta { key: key.readable(), seconds, made, payloads };
        let text = meta
            .to_text()
            .map_err(|error| Error::job("an artifact's record has no JSON form").found(error.to_string()))?;
        let path = folder.join(META);
        let write = || {
            let mut file = File::create_new(&path)?;
            file.write_all(&text)?;
            file.sync_all()?;
            File::open(folder)?.sync_all()
        };
        write().map_err(|error| Error::io("write", &path, &error))?;
        let parent = place.parent().unwrap_or(place);
        fs::create_dir_all(parent).map_err(|error| Error::io("create", parent, &error))?;
        fault::here("commit");
        // Of this draft alone: others may be putting something aside at the same moment.
        let aside = drafts_name(folder, "old");
        let moved = fs::rename(folder, place).or_else(|error| {
            if !place.exists() {
                return Err(error);
            }
            if keep() {
                return Ok(());
            }
            // What stands there is damaged. A crash in between loses nothing but work.
            fs::rename(place, &aside)?;
            fault::here("replace");
            let moved = fs::rename(folder, place);
            fs::remove_dir_all(&aside).ok();
            // Somebody else mended it at the same moment.
            if moved.is_err() && keep() { Ok(()) } else { moved }
        });
        moved
            .and_then(|()| File::open(parent)?.sync_all())
            .map_err(|error| Error::io("move into its place", place, &error))
    }
}

/// The path of a folder with something after its whole name.
fn drafts_name(folder: &Path, after: &str) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(after);
    folder.with_file_name(name)
}

impl Payload {
    /// Hands everything to the operating system.
    pub fn close(self) -> io::Result<()> {
        self.0.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
    }
}

/// A private folder that some process writes or wrote.
#[derive(Debug)]
pub struct Left {
    pub folder: PathBuf,
    pub bytes: u64,
    /// Nobody writes it any more.
    pub dead: bool,
}

/// All drafts. Those without a known process are given the time that a shared file system may take to show its record.
pub(super) fn all(root: &Path, drafts: &Path) -> Vec<Left> {
    let folders: Vec<PathBuf> = fs::read_dir(drafts).into_iter().flatten().flatten().map(|e| e.path()).collect();
    // After the drafts: who writes one had a record before.
    let known = process::all(root);
    let now = OnceCell::new();
    let left = |folder: PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let owner = name.split('.').next().filter(|owner| !owner.is_empty())?;
        let files = || fs::read_dir(&folder).into_iter().flatten().flatten();
        let dead = match known.iter().find(|known| known.process.id == owner) {
            Some(known) => known.dead,
            None => {
                let now = *now.get_or_init(|| clock(drafts));
                let old = |path: &Path| age(path, now).is_some_and(|age| age > PATIENCE);
                old(&folder) && files().all(|file| old(&file.path()))
            }
        };
        let bytes = files().filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum();
        Some(Left { dead, bytes, folder })
    };
    folders.into_iter().filter_map(left).collect()
}
