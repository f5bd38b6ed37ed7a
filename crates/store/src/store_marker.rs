//! The marker `store.json`, which identifies a folder as a store. Without it, nothing in the folder is written, swept
//! or removed. Only an empty folder can become a store.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::meta::{META, Meta};
use super::packed;
use super::process::Process;
use super::{StoreSchema, StoreSharing};
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::{self, atomic, regular};

const MARKER_FILE: &str = "store.json";

/// Version of the folder layout.
const FORMAT: u64 = 1;

/// Maximum size of a marker. Larger files were not written by this program.
const MAX_MARKER_BYTES: u64 = 1 << 16;

/// Folders in a store other than object folders.
const STORE_FOLDERS: [&str; 11] = [
    "attempts",
    "claims",
    "drafts",
    "index",
    "journals",
    "plans",
    "processes",
    "programs",
    "runs",
    "submissions",
    "uses",
];

/// Content of `store.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoreMarker {
    format: u64,
    #[serde(default, skip_serializing_if = "is_umask")]
    pub(super) shared: StoreSharing,
}

fn is_umask(shared: &StoreSharing) -> bool {
    *shared == StoreSharing::Umask
}

impl StoreMarker {
    pub(super) fn new(shared: StoreSharing) -> Self {
        Self { format: FORMAT, shared }
    }

    /// Reads the marker of a store. Returns `None` if the folder is missing or empty.
    ///
    /// # Errors
    /// Fails with exit code 3 if the folder belongs to another program, is a file, or has a different format version.
    /// Fails with exit code 5 if the marker is damaged.
    pub(super) fn read(root: &Path, schema: StoreSchema) -> Result<Option<Self>> {
        let path = root.join(MARKER_FILE);
        let mut text = Vec::new();
        let read = regular::file(&path).and_then(|file| file.take(MAX_MARKER_BYTES + 1).read_to_end(&mut text));
        match read {
            Ok(_) => {}
            Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
                return Self::read_unmarked(root, schema);
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => return Err(marker_error(error.to_string(), &path)),
            Err(error) => {
                return Err(Error::missing("cannot read the store")
                    .at(path.display())
                    .found(error)
                    .hint("check the owner of the folder, or use another one with --store"));
            }
        }
        let value: Value = match serde_json::from_slice(&text) {
            Ok(value) => value,
            // The marker is truncated, empty or overwritten.
            Err(_) if text.len() as u64 <= MAX_MARKER_BYTES => return Err(marker_error(format_preview(&text), &path)),
            Err(_) => return Err(not_a_store_error(root, schema, "a `store.json` of another program")),
        };
        let Some(format) = value["format"].as_u64() else {
            return Err(not_a_store_error(root, schema, "a `store.json` of another program"));
        };
        if format != FORMAT {
            return Err(Error::missing("the store was written by a different version of ghostlab")
                .at(path.display())
                .expected(format!("format {FORMAT}"))
                .found(format!("format {format}"))
                .hint("use that version, or another folder with --store"));
        }
        serde_json::from_value(value).map(Some).map_err(|_| marker_error(format_preview(&text), &path))
    }

    /// Handles a folder in which no marker was found. Returns `None` if the folder is missing or empty. Otherwise,
    /// fails unless another process has just created the marker.
    fn read_unmarked(root: &Path, schema: StoreSchema) -> Result<Option<Self>> {
        match (list_entries(root)?.is_empty(), root.join(MARKER_FILE).exists()) {
            (true, _) => Ok(None),
            // Another process created the store after the first check.
            (false, true) => Self::read(root, schema),
            (false, false) => Err(not_a_store_error(root, schema, "no `store.json`")),
        }
    }

    /// Turns a folder into a store. If several processes do so at the same time, one marker wins.
    pub(super) fn create(self, root: &Path) -> std::io::Result<()> {
        self.shared.make_folder(root)?;
        self.write(root, |file, path| match file.persist_noclobber(path) {
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Ok(()),
            // Some file systems cannot rename without replacing.
            Err(error) => error.file.persist(path).map(drop),
            Ok(_) => Ok(()),
        })
    }

    pub(super) fn replace(self, root: &Path) -> Result<()> {
        let replaced = self.write(root, |file, path| file.persist(path).map(drop));
        replaced.map_err(|error| write_error(&error, root))
    }

    fn write(
        self,
        root: &Path,
        persist: impl FnOnce(tempfile::NamedTempFile, &Path) -> Result<(), tempfile::PersistError>,
    ) -> std::io::Result<()> {
        let mut file = atomic::temporary(root, MARKER_FILE)?;
        file.write_all(&serde_json::to_vec(&self)?)?;
        file.as_file().sync_data()?;
        self.shared.share_file(file.as_file());
        persist(file, &root.join(MARKER_FILE)).map_err(|error| error.error)
    }

    /// Rewrites a missing or damaged marker if all other entries belong to a store and at least one of them can only
    /// have been written by this program. Returns whether a rewrite was necessary.
    ///
    /// # Errors
    /// Fails with exit code 3 if the folder contains anything else or is not writable.
    pub(super) fn repair(root: &Path, schema: StoreSchema) -> Result<bool> {
        let path = root.join(MARKER_FILE);
        match Self::read(root, schema) {
            Ok(_) => return Ok(false),
            Err(error) if error.exit_code() == 5 || (!path.exists() && is_lost_store(root, schema)) => {}
            Err(error) => return Err(error),
        }
        if !is_lost_store(root, schema) {
            return Err(not_a_store_error(root, schema, "an unreadable `store.json`"));
        }
        if path.is_dir() {
            fs::remove_dir(&path).map_err(|error| write_error(&error, root))?;
        }
        Self::new(StoreSharing::Umask).replace(root)?;
        Ok(true)
    }
}

fn marker_error(found: String, path: &Path) -> Error {
    Error::damaged("`store.json` is damaged")
        .at(path.display())
        .expected(format!("{{\"format\":{FORMAT}}}"))
        .found(found)
        .hint("run `ghostlab cache verify --repair --store FOLDER` to rewrite it")
}

pub(super) fn write_error(error: &std::io::Error, root: &Path) -> Error {
    Error::io("write", &root.join(MARKER_FILE), error)
}

/// Formats the beginning of a damaged marker for an error message.
fn format_preview(text: &[u8]) -> String {
    match text.len() {
        0 => "an empty file".to_owned(),
        length => format!("{length} bytes: {:?}", String::from_utf8_lossy(&text[..length.min(40)])),
    }
}

/// Lists the names in a folder, except temporary files and `lost+found`. Returns an empty list if the folder does not
/// exist.
fn list_entries(root: &Path) -> Result<Vec<String>> {
    match fs::read_dir(root) {
        Ok(entries) => {
            let mut names: Vec<String> =
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            // Ignore temporary files, such as an unfinished marker, and `lost+found` at the root of a disk.
            names.retain(|name| !atomic::is_temporary(name) && name != "lost+found");
            names.sort();
            Ok(names)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Err(unreadable_error("a file".to_owned(), root)),
        Err(error) => Err(unreadable_error(error.to_string(), root)),
    }
}

fn unreadable_error(found: String, root: &Path) -> Error {
    Error::missing("cannot read the store")
        .at(root.display())
        .expected("a folder")
        .found(found)
        .hint("use another folder with --store")
}

/// Returns whether a folder is nonempty and contains only entries that belong to a store.
fn has_only_store_entries(root: &Path, schema: StoreSchema) -> bool {
    list_entries(root).is_ok_and(|names| {
        !names.is_empty()
            && names.iter().all(|name| {
                name == MARKER_FILE || STORE_FOLDERS.contains(&name.as_str()) || schema.kind_of_folder(name).is_some()
            })
    })
}

/// Returns whether a folder is a store that lost its marker.
fn is_lost_store(root: &Path, schema: StoreSchema) -> bool {
    has_only_store_entries(root, schema) && has_store_content(root, schema)
}

/// Returns whether a folder contains an object or a process record, which only this program writes. Folder names alone
/// do not identify a store.
fn has_store_content(root: &Path, schema: StoreSchema) -> bool {
    let objects = list_entries(root).unwrap_or_default();
    let mut objects = objects.iter().filter(|name| schema.kind_of_folder(name).is_some()).map(|name| root.join(name));
    objects.any(|folder| contains_object(&folder, MAX_OBJECT_DEPTH)) || contains_process_record(&root.join("processes"))
}

/// Number of folder levels between the folder of a kind and an object record: hash prefix and object.
const MAX_OBJECT_DEPTH: usize = 2;

fn contains_object(folder: &Path, depth: usize) -> bool {
    files::entries(folder).unwrap_or_default().into_iter().any(|path| match path.is_dir() {
        true => depth > 0 && contains_object(&path, depth - 1),
        false => is_object(&path),
    })
}

/// Returns whether a file is a valid `meta.json` or a pack.
fn is_object(path: &Path) -> bool {
    let Ok(mut file) = regular::file(path) else { return false };
    if path.file_name().is_some_and(|name| name == META) {
        let mut text = Vec::new();
        return file.read_to_end(&mut text).is_ok() && Meta::from_text(&text).is_ok();
    }
    let mut head = [0; packed::HEADER_PREFIX.len()];
    file.read_exact(&mut head).is_ok() && head == *packed::HEADER_PREFIX.as_bytes()
}

fn contains_process_record(folder: &Path) -> bool {
    files::entries(folder).unwrap_or_default().into_iter().any(|path| {
        let mut text = Vec::new();
        let read = regular::file(&path).and_then(|file| file.take(MAX_MARKER_BYTES).read_to_end(&mut text));
        let process = read.ok().and_then(|_| Process::parse(&text));
        process.is_some_and(|process| path.file_stem().is_some_and(|name| name == process.id.as_str()))
    })
}

/// Creates the error for a folder that is not a store. `marker_state` describes its `store.json`.
fn not_a_store_error(root: &Path, schema: StoreSchema, marker_state: &str) -> Error {
    /// Maximum number of names listed in the error message.
    const MAX_LISTED: usize = 3;
    let names = list_entries(root).unwrap_or_default();
    let listed: Vec<String> = names.iter().take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let error = Error::missing("the folder is neither a store nor empty")
        .at(root.display())
        .expected("a store (a folder with `store.json`), or an empty folder")
        .found(format!("{marker_state}; {}{more}", listed.join(", ")));
    if is_lost_store(root, schema) {
        return error.hint(
            "if this is a store that lost its `store.json`, rewrite it with \
             `ghostlab cache verify --repair --store FOLDER`; no files were changed",
        );
    }
    error.hint("use another folder with --store; no files were changed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::SCHEMA;

    #[test]
    fn store_marker_round_trips_with_format_1() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(StoreMarker::read(&folder.path().join("none"), SCHEMA).unwrap(), None);
        assert_eq!(StoreMarker::read(folder.path(), SCHEMA).unwrap(), None, "an empty folder has no marker");
        for shared in [StoreSharing::Umask, StoreSharing::Group, StoreSharing::All] {
            let root = folder.path().join(shared.to_string());
            StoreMarker::new(shared).create(&root).unwrap();
            assert_eq!(StoreMarker::read(&root, SCHEMA).unwrap(), Some(StoreMarker::new(shared)));
            // Creating the store in a second process changes nothing.
            StoreMarker::new(StoreSharing::Umask).create(&root).unwrap();
            assert_eq!(StoreMarker::read(&root, SCHEMA).unwrap(), Some(StoreMarker::new(shared)));
            let value: Value = serde_json::from_slice(&fs::read(root.join(MARKER_FILE)).unwrap()).unwrap();
            assert_eq!(value["format"], 1, "older programs check the format");
        }
    }

    #[test]
    fn concurrently_created_store_is_recognized() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(StoreMarker::read_unmarked(root, SCHEMA).unwrap(), None);
        fs::create_dir(root.join("drafts")).unwrap();
        assert!(StoreMarker::read_unmarked(root, SCHEMA).is_err(), "a folder without marker was accepted");
        StoreMarker::new(StoreSharing::All).create(root).unwrap();
        assert_eq!(StoreMarker::read_unmarked(root, SCHEMA).unwrap(), Some(StoreMarker::new(StoreSharing::All)));
    }

    #[test]
    fn foreign_marker_is_distinguished_from_a_damaged_one() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for text in ["", "{", "{\"format\":1", "\0\0\0", "{\"format\":1,\"shared\":\"gruop\"}"] {
            let (code, message) = open_error(text, root);
            assert!(code == 5 && message.contains("store.json") && message.contains("--repair"), "{text:?}: {message}");
        }
        for text in ["{}", "[1]", "{\"users\": []}"] {
            let (code, message) = open_error(text, root);
            assert!(code == 3 && message.contains("neither a store"), "{text:?}: {message}");
            assert!(StoreMarker::repair(root, SCHEMA).is_err(), "a foreign file was overwritten: {text:?}");
        }
        let (code, message) = open_error("{\"format\": 2}", root);
        assert!(code == 3 && message.contains("a different version"), "{message}");
    }

    fn open_error(text: &str, root: &Path) -> (u8, String) {
        fs::write(root.join(MARKER_FILE), text).unwrap();
        let error = StoreMarker::read(root, SCHEMA).unwrap_err();
        (error.exit_code(), error.to_string())
    }

    /// Writes a process record, which proves that the folder is a store.
    fn write_process_record(root: &Path) {
        let process = Process::current();
        fs::create_dir_all(root.join("processes")).unwrap();
        fs::write(root.join(format!("processes/{}.json", process.id)), process.record()).unwrap();
    }

    #[test]
    fn folder_with_store_like_names_is_not_repaired() {
        for name in STORE_FOLDERS.into_iter().chain(["scores-v5"]) {
            for marker in [None, Some("{\"form")] {
                let folder = tempfile::tempdir().unwrap();
                let root = folder.path();
                fs::create_dir_all(root.join(name).join("empty")).unwrap();
                fs::write(root.join(name).join("thesis.json"), "{\"id\": \"mine\"}").unwrap();
                if let Some(text) = marker {
                    fs::write(root.join(MARKER_FILE), text).unwrap();
                }
                let error = StoreMarker::repair(root, SCHEMA).unwrap_err();
                assert_eq!(error.exit_code(), 3, "{name}: {error}");
                assert!(!error.to_string().contains("--repair"), "{name}: {error}");
                assert!(root.join(name).join("empty").is_dir());
                assert_eq!(fs::read_to_string(root.join(MARKER_FILE)).ok().as_deref(), marker, "{name}");
            }
        }
    }

    #[test]
    fn marker_is_rewritten_only_in_a_folder_of_store_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("drafts")).unwrap();
        fs::create_dir(root.join("scores-v3")).unwrap();
        fs::write(root.join(MARKER_FILE), "{\"form").unwrap();
        fs::write(root.join("letter.txt"), "mine").unwrap();
        write_process_record(root);
        assert!(StoreMarker::repair(root, SCHEMA).is_err());
        fs::remove_file(root.join("letter.txt")).unwrap();
        assert!(StoreMarker::repair(root, SCHEMA).unwrap());
        assert!(!StoreMarker::repair(root, SCHEMA).unwrap(), "a valid marker was rewritten");
        fs::remove_file(root.join(MARKER_FILE)).unwrap();
        assert!(StoreMarker::read(root, SCHEMA).unwrap_err().to_string().contains("--repair"));
        assert!(StoreMarker::repair(root, SCHEMA).unwrap(), "a missing marker was not rewritten");
        fs::remove_file(root.join(MARKER_FILE)).unwrap();
        fs::create_dir(root.join(MARKER_FILE)).unwrap();
        assert!(StoreMarker::repair(root, SCHEMA).unwrap(), "a folder in place of the marker was not replaced");
        assert_eq!(StoreMarker::read(root, SCHEMA).unwrap(), Some(StoreMarker::new(StoreSharing::Umask)));
    }
}
