//! File stamps (size, times, inode), used to detect changes without reading the file. A change soon after the previous
//! one may leave the stamp unmodified (see [`time_resolution`]).

use std::fs::{self, File, Metadata};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{atomic, disk};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub bytes: u64,
    /// Modification time in nanoseconds.
    pub modified: i128,
    /// Status change time in nanoseconds, which programs cannot set.
    pub changed: i128,
    /// Device and inode.
    pub file: (u64, u64),
}

impl Stamp {
    /// Returns the stamp of the file at a path, or `None` if the system has no change time that programs cannot set.
    pub fn at(path: &Path) -> std::io::Result<Option<Self>> {
        fs::metadata(path).map(|data| Self::from_metadata(&data))
    }

    /// Returns the stamp without the device number, which differs between machines that mount the same file system.
    #[must_use]
    pub fn without_device(&self) -> Self {
        Self { file: (0, self.file.1), ..self.clone() }
    }

    /// Returns the stamp from file metadata, or `None` in the same cases as [`Self::at`].
    #[cfg(unix)]
    pub fn from_metadata(data: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        Some(Self {
            bytes: data.len(),
            modified: to_nanoseconds(data.mtime(), data.mtime_nsec()),
            changed: to_nanoseconds(data.ctime(), data.ctime_nsec()),
            file: (data.dev(), data.ino()),
        })
    }

    #[cfg(not(unix))]
    pub fn from_metadata(_: &Metadata) -> Option<Self> {
        None
    }

    /// Returns whether the last change is older than `resolution` (see [`time_resolution`]), so that another change
    /// would alter the stamp.
    pub fn is_older_than(&self, resolution: Duration) -> bool {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let [now, resolution] = [now, resolution].map(|time| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX));
        now.saturating_sub(self.modified.max(self.changed)) > resolution
    }
}

fn to_nanoseconds(seconds: i64, nanoseconds: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

/// Returns the resolution of change times, or `None` if a write may leave them unchanged, as with shared mappings on
/// in-memory file systems.
pub fn time_resolution(file: &File) -> Option<Duration> {
    match disk::file_system_of(file) {
        Some(system) if system.memory => None,
        // FAT has a resolution of two seconds.
        Some(system) if !system.shared => Some(Duration::from_secs(2)),
        // A server's clock may differ, and its metadata may be cached.
        _ => Some(atomic::STALE_AFTER),
    }
}
