//! What living processes read or make: a list of hashes for each, so that clearing up beside a run takes nothing from it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::process::Known;
use crate::error::{Error, Result};
use crate::files::atomic::{PATIENCE, age, clock};

/// What this process has noted.
#[derive(Default)]
pub(super) struct Uses(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    hashes: BTreeSet<String>,
    file: PathBuf,
}

pub(super) fn file(root: &Path, process: &str) -> PathBuf {
    root.join("uses").join(process)
}

impl Uses {
    /// Adds to this process's list what is not in it.
    pub(super) fn note<'k>(&self, root: &Path, process: &str, hashes: impl IntoIterator<Item = &'k str>) -> Result<()> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new: BTreeSet<&str> = hashes.into_iter().filter(|&hash| !noted.hashes.contains(hash)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let path = file(root, process);
        let lines: String = new.iter().map(|hash| format!("{hash}\n")).collect();
        let write = || {
            fs::create_dir_all(root.join("uses"))?;
            // Closed each time: over a network, others see it then.
            File::options().create(true).append(true).open(&path)?.write_all(lines.as_bytes())
        };
        write().map_err(|error| Error::io("write", &path, &error))?;
        noted.hashes.extend(new.into_iter().map(str::to_string));
        noted.file = path;
        Ok(())
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        let noted = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !noted.hashes.is_empty() {
            fs::remove_file(&noted.file).ok();
        }
    }
}

/// Removes lists that nobody has a record for, after the time that a shared file system may take to show one.
pub(super) fn sweep(root: &Path, known: &[Known]) {
    let folder = root.join("uses");
    let lists = fs::read_dir(&folder).into_iter().flatten().flatten();
    let nobodys = |path: &PathBuf| !known.iter().any(|known| path.ends_with(&known.process.id));
    let left: Vec<PathBuf> = lists.map(|entry| entry.path()).filter(nobodys).collect();
    let now = if left.is_empty() { return } else { clock(&folder) };
    for path in left.iter().filter(|path| age(path, now).is_some_and(|age| age > PATIENCE)) {
        fs::remove_file(path).ok();
    }
}

/// What some processes have noted.
pub(super) fn of(root: &Path, processes: &[String]) -> BTreeSet<String> {
    let lists = processes.iter().filter_map(|process| fs::read_to_string(file(root, process)).ok());
    lists.flat_map(|list| list.lines().map(str::to_string).collect::<Vec<_>>()).collect()
}
