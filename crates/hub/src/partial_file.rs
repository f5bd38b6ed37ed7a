//! Partial file of a running download, stored next to the blobs. The file outlives the process that writes it.
//!
//! Correctness does not depend on locks, because some shared file systems grant a lock to several processes. The file
//! name identifies the owning process. If that process is dead, another one takes the file over by renaming it. A
//! complete file is renamed into place.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use ghostlab_core::error::Result;
use ghostlab_core::files::atomic::{STALE_AFTER, age};
use ghostlab_core::files::owner::Owner;
use ghostlab_core::files::sha256::hex;
use sha1::{Digest, Sha1};
use sha2::Sha256;

use crate::cache::cache_error;
use crate::name::{BlobName, ContentHash, KnownFile};

const PARTIAL_FILE_SUFFIX: &str = ".incomplete";

/// Mismatch between the expected and the received file.
#[derive(Debug)]
pub(crate) struct Mismatch {
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// Bytes of a blob received so far, hashed while they are written.
pub(crate) struct PartialFile {
    /// Path while this process writes the file.
    owned_path: PathBuf,
    /// Path while no process writes the file.
    shared_path: PathBuf,
    file: File,
    bytes: u64,
    expected: KnownFile,
    sha256: Sha256,
    git: Option<Sha1>,
    is_published: bool,
}

impl PartialFile {
    /// Opens the longest abandoned partial file of a blob, or a new one, and hashes its content.
    pub(crate) fn open(blobs: &Path, blob: &BlobName, expected: KnownFile) -> Result<Self> {
        static NEXT_FILE_ID: AtomicU64 = AtomicU64::new(0);
        let shared = blobs.join(format!("{blob}{PARTIAL_FILE_SUFFIX}"));
        let file_name =
            format!("{blob}.{}.{}{PARTIAL_FILE_SUFFIX}", Owner::current().tag(), NEXT_FILE_ID.fetch_add(1, Relaxed));
        let path = blobs.join(file_name);
        let mut abandoned = list_abandoned(blobs, blob);
        abandoned.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let taken = abandoned.iter().position(|(_, part)| fs::rename(part, &path).is_ok());
        // Delete the shorter partial files: only the longest is resumed.
        for (_, part) in abandoned.iter().skip(taken.map_or(0, |index| index + 1)) {
            fs::remove_file(part).ok();
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        // Never follow a symlink, because its target may be outside the cache.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(
            &mut options,
            rustix::fs::OFlags::NOFOLLOW.bits().cast_signed(),
        );
        let file = options.open(&path).map_err(|error: std::io::Error| cache_error("write", &path, &error))?;
        let mut part = Self {
            owned_path: path,
            shared_path: shared,
            file,
            bytes: 0,
            expected,
            sha256: Sha256::new(),
            git: None,
            is_published: false,
        };
        part.reset_hashes();
        part.hash_existing_bytes().map_err(|error| cache_error("read", &part.owned_path, &error))?;
        if part.expected.bytes.is_some_and(|bytes| part.bytes > bytes) {
            part.restart().map_err(|error| cache_error("write", &part.owned_path, &error))?;
        }
        Ok(part)
    }

    fn reset_hashes(&mut self) {
        self.sha256 = Sha256::new();
        self.bytes = 0;
        self.git = match (self.expected.git_blob_hash(), self.expected.bytes) {
            (Some(_), Some(bytes)) => Some(Sha1::new_with_prefix(format!("blob {bytes}\0"))),
            _ => None,
        };
    }

    fn hash_existing_bytes(&mut self) -> std::io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            match self.file.read(&mut buffer)? {
                0 => return Ok(()),
                read => self.update_hashes(&buffer[..read]),
            }
        }
    }

    fn update_hashes(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(git) = &mut self.git {
            git.update(bytes);
        }
        self.bytes += bytes.len() as u64;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn expected_bytes(&self) -> Option<u64> {
        self.expected.bytes
    }

    /// Returns the path for use in messages.
    pub(crate) fn path(&self) -> &Path {
        &self.owned_path
    }

    /// Returns whether the file contains `bytes` at `offset`.
    pub(crate) fn contains(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<bool> {
        if bytes.is_empty() {
            return Ok(true);
        }
        let mut stored = vec![0; bytes.len()];
        self.file.seek(SeekFrom::Start(offset))?;
        self.file.read_exact(&mut stored)?;
        self.file.seek(SeekFrom::Start(self.bytes))?;
        Ok(stored == bytes)
    }

    /// Appends bytes. If writing fails, the partial write is undone.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            self.file.set_len(self.bytes).ok();
            self.file.seek(SeekFrom::Start(self.bytes)).ok();
            return Err(error);
        }
        self.update_hashes(bytes);
        Ok(())
    }

    pub(crate) fn restart(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.reset_hashes();
        Ok(())
    }

    /// Returns the SHA-256 of the bytes received so far.
    pub(crate) fn sha256(&self) -> String {
        hex(self.sha256.clone().finalize())
    }

    /// Checks that the file has the expected size and hashes.
    pub(crate) fn check(&self) -> std::result::Result<(), Mismatch> {
        let KnownFile { bytes, sha256, .. } = &self.expected;
        compare_with_expected(
            bytes.map(|bytes| bytes.to_string()).as_deref(),
            &self.bytes.to_string(),
            "size in bytes:",
        )?;
        compare_with_expected(sha256.as_ref().map(ContentHash::as_str), &self.sha256(), "SHA-256")?;
        let Some(git) = &self.git else { return Ok(()) };
        compare_with_expected(self.expected.git_blob_hash().as_deref(), &hex(git.clone().finalize()), "Git blob hash")
    }

    /// Flushes a complete file to disk and renames it to `path`.
    pub(crate) fn publish(mut self, path: &Path) -> Result<()> {
        self.file.sync_all().map_err(|error| cache_error("write", &self.owned_path, &error))?;
        fs::rename(&self.owned_path, path).map_err(|error| cache_error("write", path, &error))?;
        self.is_published = true;
        Ok(())
    }
}

fn compare_with_expected(expected: Option<&str>, found: &str, label: &str) -> std::result::Result<(), Mismatch> {
    match expected {
        Some(expected) if expected != found => {
            Err(Mismatch { expected: format!("{label} {expected}"), found: format!("{label} {found}") })
        }
        _ => Ok(()),
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        // Keep received bytes under the shared name, so that any process can resume.
        match self.bytes {
            0 => fs::remove_file(&self.owned_path).ok(),
            _ => fs::rename(&self.owned_path, &self.shared_path).ok(),
        };
    }
}

/// Returns the size of the longest abandoned partial file of a blob.
pub(crate) fn find_abandoned_bytes(blobs: &Path, blob: &BlobName) -> u64 {
    list_abandoned(blobs, blob).iter().map(|(bytes, _)| *bytes).max().unwrap_or(0)
}

/// Lists abandoned partial files of a blob with their sizes. A file is abandoned if no process owns it or its owner is
/// dead. Partial files from other programs have other names and are ignored, because they may not start at byte 0.
fn list_abandoned(blobs: &Path, blob: &BlobName) -> Vec<(u64, PathBuf)> {
    let listing = fs::read_dir(blobs).into_iter().flatten().flatten();
    let found = listing.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let middle = name.strip_prefix(blob.as_str())?.strip_suffix(PARTIAL_FILE_SUFFIX)?;
        let path = entry.path();
        let metadata = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let is_abandoned = match middle.strip_prefix('.') {
            None => middle.is_empty(),
            Some(rest) => {
                let (tag, count) = rest.split_once('.')?;
                count.parse::<u64>().ok()?;
                match Owner::is_tag_alive(tag) {
                    Some(lives) => !lives,
                    None => Owner::is_tag(tag) && age(&path, SystemTime::now()).is_some_and(|age| age > STALE_AFTER),
                }
            }
        };
        is_abandoned.then_some((metadata.len(), path))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Reference: printf 12345 | sha256sum; printf 12345 | git hash-object --stdin
    const SHA256: &str = "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5";
    const GIT: &str = "bd41cba781d8349272bf3eb92568285b411c027c";

    fn name(etag: &str) -> BlobName {
        BlobName::new(etag).unwrap()
    }

    #[test]
    fn partial_file_resumes_and_is_verified_by_either_hash() {
        for etag in [SHA256, GIT] {
            let blob = &name(etag);
            let blobs = tempfile::tempdir().unwrap();
            let mut part = open_with_expected_size_5(blob, blobs.path());
            part.write(b"123").unwrap();
            assert!(part.check().is_err());
            drop(part);
            assert_eq!(find_abandoned_bytes(blobs.path(), blob), 3);
            let mut part = open_with_expected_size_5(blob, blobs.path());
            assert_eq!(part.bytes(), 3);
            part.write(b"46").unwrap();
            let wrong = part.check().unwrap_err();
            assert!(wrong.expected.contains(etag), "{wrong:?}");
            part.restart().unwrap();
            part.write(b"12345").unwrap();
            part.check().unwrap();
            part.publish(&blobs.path().join(etag)).unwrap();
            let names: Vec<_> = fs::read_dir(blobs.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, [etag], "other files remain");
        }
    }

    fn open_with_expected_size_5(blob: &BlobName, blobs: &Path) -> PartialFile {
        PartialFile::open(blobs, blob, KnownFile::from_blob(blob.clone(), Some(5))).unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn partial_file_is_taken_over_only_from_a_dead_process() {
        let blobs = tempfile::tempdir().unwrap();
        let dead = Owner { pid: 99_999_999, ..Owner::current() }.tag();
        fs::write(blobs.path().join(format!("{SHA256}.{dead}.0{PARTIAL_FILE_SUFFIX}")), "1234").unwrap();
        fs::write(blobs.path().join(format!("{SHA256}.{}.999{PARTIAL_FILE_SUFFIX}", Owner::current().tag())), "12")
            .unwrap();
        fs::write(blobs.path().join(format!("{SHA256}.0a1b2c3d{PARTIAL_FILE_SUFFIX}")), "Python's").unwrap();
        let blob = &name(SHA256);
        let one = PartialFile::open(blobs.path(), blob, expected_size_5()).unwrap();
        assert_eq!(one.bytes(), 4);
        let two = PartialFile::open(blobs.path(), blob, expected_size_5()).unwrap();
        assert_eq!(two.bytes(), 0, "partial files must not be shared");
        drop((one, two));
        assert_eq!(fs::read_dir(blobs.path()).unwrap().count(), 3);
    }

    fn expected_size_5() -> KnownFile {
        KnownFile::from_blob(name(SHA256), Some(5))
    }

    #[cfg(unix)]
    #[test]
    fn symlink_in_place_of_a_partial_file_is_not_followed() {
        let blobs = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let target = outside.path().join("precious");
        fs::write(&target, "mine").unwrap();
        std::os::unix::fs::symlink(&target, blobs.path().join(format!("{SHA256}{PARTIAL_FILE_SUFFIX}"))).unwrap();
        let mut part = PartialFile::open(blobs.path(), &name(SHA256), expected_size_5()).unwrap();
        part.write(b"12345").unwrap();
        part.publish(&blobs.path().join(SHA256)).unwrap();
        assert_eq!(fs::read_to_string(target).unwrap(), "mine");
    }
}
