//! Cached hashes of large input files, and detection of inputs that change after hashing.
//!
//! The cache only saves time. A touched file is hashed again, and it counts as changed only if its hash differs. A
//! cached hash is trusted only if the file was unmodified for some time before hashing. Otherwise, the timestamps might
//! not show a change made within the same tick of the file system's clock.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::disk::Disk;
use super::key::canonical;
use super::lock;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::stamp::{Stamp, time_resolution};
use ghostlab_core::files::{regular, sha256};

/// Minimum size in bytes of a file whose hash and results are cached on disk.
const MIN_CACHED_BYTES: u64 = 1 << 20;

/// Cached hash of one file.
#[derive(Serialize, Deserialize)]
struct IndexEntry {
    /// Size, times and inode of the file, without the device number, which differs between machines that share the
    /// store.
    stamp: Stamp,
    sha256: String,
    /// Checksum of the preceding fields so that a damaged entry never yields a wrong hash.
    check: String,
}

fn entry_checksum(stamp: &Stamp, sha256: &str) -> String {
    sha256::of_bytes(
        json!([stamp.bytes, stamp.modified.to_string(), stamp.changed.to_string(), stamp.file, sha256]).to_string(),
    )
}

/// Hash of an input file, and the file's stamp when it was hashed.
#[derive(Debug, Clone)]
pub struct Input {
    sha256: String,
    /// Stamp of the file. `None` if the file was modified so recently that a later change might not show in its
    /// timestamps.
    stamp: Arc<Mutex<Option<Stamp>>>,
}

impl Input {
    fn new(sha256: String, stamp: Option<Stamp>) -> Self {
        Self { sha256, stamp: Arc::new(Mutex::new(stamp)) }
    }

    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    fn stamp(&self) -> MutexGuard<'_, Option<Stamp>> {
        lock(&self.stamp)
    }
}

/// In-process cache of input hashes. A file with an unchanged stamp is not read again.
#[derive(Debug, Default)]
pub(super) struct InputHashCache {
    by_path: Mutex<BTreeMap<PathBuf, Input>>,
    /// Results by file hash and result name.
    results: Mutex<BTreeMap<(String, String), Value>>,
}

impl InputHashCache {
    pub(super) fn get_or_hash(&self, path: &Path, hash: impl FnOnce() -> Result<Input>) -> Result<Input> {
        let cached = lock(&self.by_path).get(path).cloned();
        if let Some(cached) = cached.filter(|input| {
            input.stamp().as_ref().is_some_and(|stamp| Stamp::at(path).ok().flatten().as_ref() == Some(stamp))
        }) {
            return Ok(cached);
        }
        let input = hash()?;
        lock(&self.by_path).insert(path.to_owned(), input.clone());
        Ok(input)
    }

    pub(super) fn cached_or_compute<T: Serialize + DeserializeOwned>(
        &self,
        input: &Input,
        result_name: &str,
        compute: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let key = (input.sha256.clone(), result_name.to_owned());
        let cached = lock(&self.results).get(&key).cloned();
        if let Some(cached) = cached.and_then(|value| serde_json::from_value(value).ok()) {
            return Ok(cached);
        }
        let value = compute()?;
        if let Ok(json) = serde_json::to_value(&value) {
            lock(&self.results).insert(key, json);
        }
        Ok(value)
    }
}

/// Returns the hash of a file. Uses the entry in the index `folder` if its stamp matches and `rehash` is false, and
/// hashes the file otherwise.
pub(super) fn hash_input(disk: &dyn Disk, folder: Option<&Path>, path: &Path, rehash: bool) -> Result<Input> {
    let file = regular::open(path)?;
    let stamp =
        file.metadata().map(|data| Stamp::from_metadata(&data)).map_err(|error| Error::io("read", path, &error))?;
    let entry_path = |stamp: &Stamp| folder.and_then(|folder| index_entry_path(folder, path, stamp));
    if !rehash
        && let Some(stamp) = stamp.as_ref().filter(is_large)
        && let Some(entry_path) = entry_path(stamp)
        && let Some(entry) =
            disk.read(&entry_path).ok().and_then(|text| serde_json::from_slice::<IndexEntry>(&text).ok())
        && entry.stamp == stamp.without_device()
        && entry.check == entry_checksum(&entry.stamp, &entry.sha256)
    {
        return Ok(Input::new(entry.sha256, Some(stamp.clone())));
    }
    let (sha256, stamp) = hash_file(file, path)?;
    if let Some(stamp) = stamp.as_ref().filter(is_large)
        && let Some(entry_path) = entry_path(stamp)
    {
        write_entry(disk, &entry_path, stamp, &sha256).ok();
    }
    Ok(Input::new(sha256, stamp))
}

fn is_large(stamp: &&Stamp) -> bool {
    stamp.bytes >= MIN_CACHED_BYTES
}

/// Hashes a file. Also returns its stamp, or `None` if a later change might not alter the stamp.
fn hash_file(mut file: File, path: &Path) -> Result<(String, Option<Stamp>)> {
    // Flush first so that later writes through a shared mapping change the modification time. Errors are ignored.
    file.sync_all().ok();
    let before = file.metadata().map(|data| Stamp::from_metadata(&data)).map_err(|error| read_error(&error, path))?;
    let before =
        before.filter(|stamp| time_resolution(&file).is_some_and(|resolution| stamp.is_older_than(resolution)));
    let (sha256, _) = sha256::of_reader(&mut file).map_err(|error| read_error(&error, path))?;
    let stamp = before.filter(|before| Stamp::at(path).ok().flatten().as_ref() == Some(before));
    Ok((sha256, stamp))
}

fn read_error(error: &std::io::Error, path: &Path) -> Error {
    Error::io("read", path, error)
}

/// Implements [`crate::Store::read_unchanged`].
pub(super) fn read_unchanged<T>(files: &[(&Path, &Input)], read: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = read_stamps(files);
    let value = read();
    for ((path, input), (before, after)) in files.iter().zip(before.into_iter().zip(read_stamps(files))) {
        if before != after {
            return Err(changed_input_error(path, input, "a change while the file was read"));
        }
        if after.is_some() && after == *input.stamp() {
            continue;
        }
        let (found, stamp) = hash_file(regular::open(path)?, path)?;
        if found != input.sha256 {
            return Err(changed_input_error(path, input, &format!("SHA-256 {found}")));
        }
        // The next check can rely on the stamp.
        *input.stamp() = stamp;
    }
    value
}

fn changed_input_error(path: &Path, input: &Input, found: &str) -> Error {
    Error::bad_input("an input changed after it was hashed")
        .at(path.display())
        .expected(format!("SHA-256 {}", input.sha256))
        .found(found)
        .hint("rerun once the file no longer changes; no results were stored")
}

fn read_stamps(files: &[(&Path, &Input)]) -> Vec<Option<Stamp>> {
    files.iter().map(|(path, _)| Stamp::at(path).ok().flatten()).collect::<Vec<_>>()
}

#[derive(Serialize, Deserialize)]
struct CachedResult {
    found: Value,
    /// Checksum of the result, its name and the hash of the file.
    check: String,
}

/// Caches the result of `compute` on disk, keyed by the content hash of a large file and by `result_name`, which names
/// the result and its version. Small files are not cached.
pub(super) fn cached_result<T: Serialize + DeserializeOwned>(
    disk: &dyn Disk,
    folder: Option<&Path>,
    (path, input): (&Path, &Input),
    result_name: &str,
    compute: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Some(folder) = folder.filter(|_| path.metadata().is_ok_and(|data| data.len() >= MIN_CACHED_BYTES)) else {
        return compute();
    };
    let result_path = folder.join(format!("{}.{result_name}.json", input.sha256));
    let cached = disk.read(&result_path).ok().and_then(|text| serde_json::from_slice::<CachedResult>(&text).ok());
    let cached = cached
        .filter(|cached| cached.check == checksum(input, result_name, &cached.found))
        .and_then(|cached| serde_json::from_value(cached.found).ok());
    if let Some(cached) = cached {
        return Ok(cached);
    }
    let value = compute()?;
    if let Ok(found) = serde_json::to_value(&value) {
        let entry = CachedResult { check: checksum(input, result_name, &found), found };
        let text = serde_json::to_vec(&entry).unwrap_or_default();
        disk.make_folder(folder).and_then(|()| disk.replace(&result_path, &text)).ok();
    }
    Ok(value)
}

fn checksum(input: &Input, result_name: &str, found: &Value) -> String {
    sha256::of_bytes(format!("{} {result_name} {}", input.sha256, canonical(found)))
}

/// Returns the path of an index entry. The name includes the inode number, because each machine may have its own disk
/// mounted at the same path.
fn index_entry_path(folder: &Path, path: &Path, stamp: &Stamp) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let name = [path.as_os_str().as_encoded_bytes(), b"\0", stamp.file.1.to_string().as_bytes()].concat();
    Some(folder.join(format!("{}.json", sha256::of_bytes(name))))
}

fn write_entry(disk: &dyn Disk, entry_path: &Path, stamp: &Stamp, sha256: &str) -> std::io::Result<()> {
    disk.make_folder(entry_path.parent().unwrap_or(entry_path))?;
    let stamp = stamp.without_device();
    let entry = IndexEntry { check: entry_checksum(&stamp, sha256), sha256: sha256.to_string(), stamp };
    disk.replace(entry_path, &serde_json::to_vec(&entry)?)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;
    use std::fs;
    use std::time::{Duration, SystemTime};

    fn sha256_of(folder: &Path, path: &Path) -> String {
        hash_input(&SystemDisk::default(), Some(folder), path, false).unwrap().sha256
    }

    fn write_old_file(path: &Path, bytes: &[u8]) -> String {
        fs::write(path, bytes).unwrap();
        let file = File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
        sha256::of_bytes(bytes)
    }

    #[test]
    fn edit_that_keeps_size_and_mtime_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join("index");
        let path = folder.path().join("weights");
        let mut bytes = vec![7; 2 << 20];
        let first = write_old_file(&path, &bytes);
        assert_eq!(sha256_of(&index, &path), first);
        bytes[99] ^= 1;
        let second = write_old_file(&path, &bytes);
        assert_eq!(sha256_of(&index, &path), second);
    }

    #[test]
    fn cached_hash_is_used_unless_damaged_or_rehashing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let right = write_old_file(&path, &vec![7; 2 << 20]);
        let now = Stamp::at(&path).unwrap().unwrap();
        let entry_path = index_entry_path(folder.path(), &path, &now).unwrap();
        write_entry(&SystemDisk::default(), &entry_path, &now, "remembered").unwrap();
        assert_eq!(sha256_of(folder.path(), &path), "remembered");
        assert_eq!(
            hash_input(&SystemDisk::default(), Some(folder.path()), &path, true).unwrap().sha256,
            right,
            "`--rehash` must ignore the cached hash"
        );
        write_entry(&SystemDisk::default(), &entry_path, &now, "remembered").unwrap();
        let text = fs::read_to_string(&entry_path).unwrap().replace("remembered", "rememberee");
        fs::write(&entry_path, text).unwrap();
        assert_eq!(sha256_of(folder.path(), &path), right);
    }

    #[test]
    fn cached_hash_is_shared_between_mounts_of_one_server() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join("index");
        let path = folder.path().join("weights");
        write_old_file(&path, &vec![7; 2 << 20]);
        let local = Stamp::at(&path).unwrap().unwrap();
        // Another client of the same file server sees a different device number.
        let remote = Stamp { file: (local.file.0 + 77, local.file.1), ..local.clone() };
        let server_file = index_entry_path(&index, &path, &local).unwrap();
        write_entry(&SystemDisk::default(), &server_file, &remote, "hashed there").unwrap();
        assert_eq!(sha256_of(&index, &path), "hashed there");
        // Another machine may have a local disk at the same path. The inode number differs, so both entries are kept.
        let other_mount = Stamp { file: (local.file.0, local.file.1 + 1), ..local };
        write_entry(
            &SystemDisk::default(),
            &index_entry_path(&index, &path, &other_mount).unwrap(),
            &other_mount,
            "another disk",
        )
        .unwrap();
        assert_eq!(sha256_of(&index, &path), "hashed there");
    }

    #[test]
    fn results_for_large_files_are_cached_by_content_hash() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join("index");
        let path = folder.path().join("weights");
        let compute = |bytes: &[u8], found: &str| {
            write_old_file(&path, bytes);
            let input = hash_input(&SystemDisk::default(), Some(&index), &path, false).unwrap();
            cached_result(&SystemDisk::default(), Some(&index), (&path, &input), "what", || Ok(found.to_owned()))
                .unwrap()
        };
        let mut bytes = vec![7; 2 << 20];
        let small = [7; 9];
        assert_eq!((compute(&bytes, "first"), compute(&bytes, "again")), ("first".into(), "first".into()));
        assert_eq!((compute(&small, "small"), compute(&small, "anew")), ("small".into(), "anew".into()));
        bytes[99] ^= 1;
        assert_eq!(compute(&bytes, "other"), "other");
        let entry = fs::read_dir(&index).unwrap().map(|entry| entry.unwrap().path());
        for entry in entry.filter(|entry| entry.to_string_lossy().ends_with(".what.json")) {
            let text = fs::read_to_string(&entry).unwrap().replace("other", "ether");
            fs::write(entry, text).unwrap();
        }
        assert_eq!(compute(&bytes, "damage must be detected"), "damage must be detected");
    }

    #[test]
    fn hash_of_recently_modified_file_is_not_cached() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join("index");
        let path = folder.path().join("weights");
        write_old_file(&path, &vec![7; 2 << 20]);
        let fresh = hash_input(&SystemDisk::default(), Some(&index), &path, false).unwrap();
        assert!(fresh.stamp().is_none(), "timestamps of a recently modified file must not be trusted");
        assert_eq!(fs::read_dir(&index).into_iter().flatten().count(), 0);
        // A modification time in the future never counts as old enough. It occurs if the clock is set forward and then
        // back.
        let future = Stamp { bytes: 1, modified: i128::MAX / 2, changed: 0, file: (0, 0) };
        assert!(!future.is_older_than(Duration::ZERO));
    }

    #[test]
    fn input_changed_after_hashing_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        fs::write(&path, "as hashed").unwrap();
        let hashed = hash_input(&SystemDisk::default(), Some(folder.path()), &path, false).unwrap();
        // Simulate a file that has not changed for a long time, so its timestamps are trusted.
        let restored = Input::new(hashed.sha256.clone(), Stamp::at(&path).unwrap());
        let read = |input: &Input, during: &dyn Fn()| {
            read_unchanged(&[(path.as_path(), input)], || {
                during();
                Ok(fs::read(&path).unwrap())
            })
        };
        for input in [&hashed, &restored] {
            assert_eq!(read(input, &|| ()).unwrap(), b"as hashed");
        }
        fs::write(&path, "as hashed").unwrap();
        assert_eq!(read(&restored, &|| ()).unwrap(), b"as hashed", "rewriting equal content must not be an error");
        let rejects = |input: &Input, during: &dyn Fn()| {
            let error = read(input, during).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("weights"), "{error}");
        };
        // Another file with the same size and times replaces the file during the read, then the original is restored.
        let other = folder.path().join("other");
        for input in [&hashed, &restored] {
            rejects(input, &|| {
                fs::write(&other, "unhashed!").unwrap();
                fs::rename(&path, folder.path().join("aside")).unwrap();
                fs::rename(&other, &path).unwrap();
            });
            rejects(input, &|| ());
            fs::rename(folder.path().join("aside"), &path).unwrap();
            assert_eq!(read(input, &|| ()).unwrap(), b"as hashed");
        }
    }
}
