//! An artifact that is being written: a private folder that becomes visible in one step.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use rayon::prelude::*;
use tempfile::TempDir;

use super::artifact::{META, Meta, Stored};
use super::key::Key;
use crate::error::{Error, Result};

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
    pub(super) fn new(drafts: &Path) -> Result<Self> {
        // The name tells whose it is: see `sweep`.
        let folder = tempfile::Builder::new()
            .prefix(&format!("{}-", std::process::id()))
            .tempdir_in(drafts)
            .map_err(|error| Error::io("create", drafts, &error))?;
        Ok(Self { folder, payloads: BTreeSet::new() })
    }

    /// Opens a payload file. It has to be closed ([`Payload::close`]) before the draft is committed.
    pub fn payload(&mut self, name: &str) -> Result<Payload> {
        let path = self.folder.path().join(name);
        let file = File::create_new(&path).map_err(|error| Error::io("create", &path, &error))?;
        self.payloads.insert(name.to_string());
        Ok(Payload(BufWriter::with_capacity(1 << 20, file)))
    }

    /// Hashes the payloads, sees that they reach the disk, writes `meta.json` and moves the folder to its place.
    pub(super) fn commit(self, place: &Path, key: &Key, seconds: f64) -> Result<()> {
        let folder = self.folder.path();
        let payloads = self
            .payloads
            .par_iter()
            .map(|name| {
                let path = folder.join(name);
                let synced = File::open(&path).and_then(|file| file.sync_all());
                synced.map_err(|error| Error::io("write", &path, &error))?;
                Ok((name.clone(), Stored::of(&path).map_err(|error| Error::io("read", &path, &error))?))
            })
            .collect::<Result<_>>()?;
        let meta = Meta { key: key.readable().clone(), seconds, payloads };
        let text = serde_json::to_vec_pretty(&meta)
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
        let folder = self.folder.keep();
        let moved = fs::rename(&folder, place).or_else(|_| {
            // What stands there (damaged, or from a run that was faster) goes aside first. A crash in between loses
            // nothing but work.
            let aside = folder.with_extension("old");
            if place.exists() {
                fs::rename(place, &aside)?;
            }
            let moved = fs::rename(&folder, place);
            fs::remove_dir_all(&aside).ok();
            moved
        });
        moved.and_then(|()| File::open(parent)?.sync_all()).map_err(|error| {
            fs::remove_dir_all(&folder).ok();
            Error::io("move into its place", place, &error)
        })
    }
}

impl Payload {
    /// Hands everything to the operating system.
    pub fn close(self) -> io::Result<()> {
        self.0.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
    }
}

/// Removes the drafts of processes that are gone: a killed run leaves its own behind.
///
/// Only where the system tells which processes live; elsewhere they stay.
pub(super) fn sweep(drafts: &Path) {
    if !Path::new("/proc/self").exists() {
        return;
    }
    for entry in fs::read_dir(drafts).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.split_once('-').and_then(|(pid, _)| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}
