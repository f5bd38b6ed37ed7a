//! File metadata: size, times, identity. It changes with the content, though not always at once.

use std::fs::{self, File, Metadata};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{atomic, disk};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub bytes: u64,
    /// In nanoseconds.
    pub modified: i128,
    /// In nanoseconds; not in anyone's power to set back.
    pub changed: i128,
    /// Device and number on it.
    pub file: (u64, u64),
}

impl Stamp {
    /// Stamps the file at a path. `None` if the system has no change time that programs cannot set.
    pub fn at(path: &Path) -> std::io::Result<Option<Self>> {
        fs::metadata(path).map(|data| Self::of(&data))
    }

    /// Returns the stamp without the device number, which differs between machines that mount the same file system.
    #[must_use]
    pub fn anywhere(&self) -> Self {
        Self { file: (0, self.file.1), ..self.clone() }
    }

    /// Stamps file metadata. `None` as in [`Self::at`].
    #[cfg(unix)]
    pub fn of(data: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        Some(Self {
            bytes: data.len(),
            modified: to_nanoseconds(data.mtime(), data.mtime_nsec()),
            changed: to_nanoseconds(data.ctime(), data.ctime_nsec()),
            file: (data.dev(), data.ino()),
        })
    }

    #[cfg(not(unix))]
    pub fn of(_: &Metadata) -> Option<Self> {
        None
    }

    /// Returns whether the file is old enough that another change would get another time.
    pub fn settled(&self, grain: Duration) -> bool {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let [now, grain] = [now, grain].map(|time| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX));
        now.saturating_sub(self.modified.max(self.changed)) > grain
    }
}

fn to_nanoseconds(seconds: i64, rest: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(rest)
}

/// Returns the resolution of change times. `None` if changes may leave no trace, as writes through shared mappings in
/// memory file systems.
pub fn grain(file: &File) -> Option<Duration> {
    match disk::of_open(file) {
        Some(system) if system.memory => None,
        // FAT counts every other second.
        Some(system) if !system.shared => Some(Duration::from_secs(2)),
        // The clock of a server may differ, and its metadata may be cached.
        _ => Some(atomic::PATIENCE),
    }
}
