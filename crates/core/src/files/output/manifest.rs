//! Manifest of the files that this program wrote into a folder. Only listed, unchanged files may be replaced. All other
//! files belong to the user. The format is readable by `sha256sum -c`.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, Metadata};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::files::atomic::write_whole;
use crate::files::stamp::Stamp;
use crate::files::{regular, sha256};

/// Hashes by file name. A name has two hashes while its file is being replaced, because a killed process may leave
/// either version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    files: BTreeMap<String, Vec<String>>,
    /// Kind of output in the folder, or `None` if there is no manifest.
    kind: Option<String>,
}

/// State of a file in a folder relative to the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileState {
    Nothing,
    /// Listed and unchanged.
    Ours,
    Changed,
    /// Not listed, so not written by this program.
    Foreign,
    Folder,
    Link,
}

/// Cache of file hashes, valid while a file's stamp is unchanged. Avoids rehashing multi-gigabyte weight files.
#[derive(Debug, Default)]
pub(super) struct HashCache(Mutex<HashMap<(u64, u64), (Stamp, String)>>);

impl Manifest {
    /// Manifest file name, hidden so that it is not mistaken for a result.
    pub const FILE: &str = ".ghostlab.sha256";
    const HEADER: &str =
        "# Written here by ghostlab, which replaces these files while they are so, and no others; for: ";

    /// Reads the manifest of a folder. Returns an empty one if there is none.
    pub fn read(folder: &Path) -> Self {
        let path = folder.join(Self::FILE);
        let is_file = path.symlink_metadata().is_ok_and(|data| data.is_file());
        let text = if is_file { regular::read(&path).ok() } else { None };
        let text = text.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let mut lines = text.lines();
        let Some(kind) = lines.next().and_then(|line| line.strip_prefix(Self::HEADER)) else { return Self::default() };
        let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (hash, name) in lines.filter_map(|line| line.split_once("  ")) {
            files.entry(name.to_owned()).or_default().push(hash.to_owned());
        }
        Self { files, kind: Some(kind.to_owned()) }
    }

    /// Creates a manifest of the named files with their current hashes.
    ///
    /// # Errors
    /// Fails if a file cannot be read.
    pub(super) fn new(folder: &Path, names: &[String], kind: &str) -> Result<Self> {
        let mut manifest = Self::default().for_kind(kind);
        for name in names {
            let path = folder.join(name);
            let (hash, _) = sha256::of_file(&path).map_err(|error| Error::io("read", &path, &error))?;
            manifest.add(name, hash);
        }
        Ok(manifest)
    }

    #[must_use]
    pub(super) fn for_kind(self, kind: &str) -> Self {
        Self { kind: Some(kind.to_owned()), ..self }
    }

    pub(super) fn add(&mut self, name: &str, hash: String) {
        let known = self.files.entry(name.to_owned()).or_default();
        if !known.contains(&hash) {
            known.push(hash);
        }
    }

    /// Replaces all hashes of a name with a single one.
    pub(super) fn replace_hashes(&mut self, name: &str, hash: String) {
        self.files.insert(name.to_owned(), vec![hash]);
    }

    /// Returns whether the manifest lists this name with this content.
    pub fn lists(&self, name: &str, bytes: &[u8]) -> bool {
        self.files.get(name).is_some_and(|known| known.contains(&sha256::of_bytes(bytes)))
    }

    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    pub(super) fn has_files_below(&self, folder: &Path) -> bool {
        self.files.keys().any(|name| Path::new(name).starts_with(folder) && Path::new(name) != folder)
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// Fails if the folder is not writable.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(Self::FILE);
        let lines = self.files.iter().flat_map(|(name, hashes)| hashes.iter().map(move |hash| (hash, name)));
        let lines: String = lines.map(|(hash, name)| format!("{hash}  {name}\n")).collect();
        let text = format!("{}{}\n{lines}", Self::HEADER, self.kind().unwrap_or_default());
        write_whole(&path, text.as_bytes())
    }

    /// Compares the file called `name` in `folder` with the manifest.
    pub(super) fn file_state(&self, folder: &Path, name: &str, hash_cache: &HashCache) -> FileState {
        let path = folder.join(name);
        let Ok(data) = path.symlink_metadata() else { return FileState::Nothing };
        if data.is_dir() {
            return FileState::Folder;
        }
        if data.file_type().is_symlink() {
            return FileState::Link;
        }
        match self.files.get(name) {
            _ if name == Self::FILE && self.kind.is_some() => FileState::Ours,
            None => FileState::Foreign,
            Some(_) if !data.is_file() => FileState::Changed,
            Some(hashes) => match hash_cache.hash(&path, &data) {
                Some(hash) if hashes.contains(&hash) => FileState::Ours,
                _ => FileState::Changed,
            },
        }
    }
}

impl FileState {
    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Ours => "a file written by ghostlab",
            Self::Changed => "a file that has changed since ghostlab wrote it",
            Self::Foreign => "a file that ghostlab did not write",
            Self::Folder => "a folder",
            Self::Link => "a link",
        }
    }
}

impl HashCache {
    fn hash(&self, path: &Path, data: &Metadata) -> Option<String> {
        let stamp = Stamp::from_metadata(data);
        let mut hash_cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stamp) = &stamp
            && let Some((known, hash)) = hash_cache.get(&stamp.file)
            && known == stamp
        {
            return Some(hash.clone());
        }
        let (hash, _) = sha256::of_file(path).ok()?;
        if let Some(stamp) = stamp.filter(|stamp| {
            fs::symlink_metadata(path).is_ok_and(|now| Stamp::from_metadata(&now).as_ref() == Some(stamp))
        }) {
            hash_cache.insert(stamp.file, (stamp, hash.clone()));
        }
        Some(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_owned_while_listed_and_unmodified() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("lm_eval")).unwrap();
        ["a", "b", "lm_eval/c"].iter().for_each(|name| write_text(name, name, root.path()));
        let names = ["a", "b", "lm_eval/c"].map(str::to_owned);
        let manifest = Manifest::new(root.path(), &names, "results").unwrap();
        manifest.write(root.path()).unwrap();
        let read = Manifest::read(root.path());
        assert_eq!(read, manifest);
        for (folder, expected) in [("lm_eval", true), ("lm", false), ("a", false)] {
            assert_eq!(read.has_files_below(Path::new(folder)), expected, "{folder}");
        }
        let hash_cache = HashCache::default();
        let state = |name: &str| Manifest::read(root.path()).file_state(root.path(), name, &hash_cache);
        assert_eq!(state("a"), FileState::Ours);
        assert_eq!(state("lm_eval/c"), FileState::Ours);
        assert_eq!(state(Manifest::FILE), FileState::Ours);
        assert_eq!((state("none"), state("lm_eval")), (FileState::Nothing, FileState::Folder));
        write_text("mine", "a", root.path());
        assert_eq!(state("mine"), FileState::Foreign);
        write_text("b", "c", root.path());
        assert_eq!(state("b"), FileState::Changed, "the new content has the same length");
        // A manifest in another format is ignored.
        write_text(Manifest::FILE, &format!("{}  a\n", sha256::of_bytes("a")), root.path());
        assert_eq!((state("a"), state(Manifest::FILE)), (FileState::Foreign, FileState::Foreign));
    }

    fn write_text(name: &str, text: &str, root: &Path) {
        fs::write(root.join(name), text).unwrap();
    }
}
