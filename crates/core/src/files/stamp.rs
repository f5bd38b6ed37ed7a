//! What the system says of a file: size, times, identity. It changes with the content, if not always at once.

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
    /// The file that lies at a path now; none where the system has no time that nobody can set back.
    pub fn at(path: &Path) -> std::io::Result<Option<Self>> {
        fs::metadata(path).map(|data| Self::of(&data))
    }

    /// The same as other machines see it: each gives a mounted file system a device number of its own.
    #[must_use]
    pub fn anywhere(&self) -> Self {
        Self { file: (0, self.file.1), ..self.clone() }
    }

    /// The file that this is known of; none as in [`Self::at`].
    #[cfg(unix)]
    pub fn of(data: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Some(Self {
            bytes: data.len(),
            modified: nanoseconds(data.mtime(), data.mtime_nsec()),
            changed: nanoseconds(data.ctime(), data.ctime_nsec()),
            file: (data.dev(), data.ino()),
        })
    }

    #[cfg(not(unix))]
    pub fn of(_: &Metadata) -> Option<Self> {
        None
    }

    /// Whether the file has been left alone for so long that another change would give it another time.
    pub fn settled(&self, grain: Duration) -> bool {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let [now, grain] = [now, grain].map(|time| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX));
        now.saturating_sub(self.modified.max(self.changed)) > grain
    }
}

/// How near each other two changes of a file may be without a trace in its times; none where changes may leave no trace at
/// all: file systems in memory give no time to what is written through a shared mapping.
pub fn grain(file: &File) -> Option<Duration> {
    match disk::of_open(file) {
        Some(system) if system.memory => None,
        // FAT counts every other second.
        Some(system) if !system.shared => Some(Duration::from_secs(2)),
        // A server's clock may go otherwise, and what is known of its files may be old.
        _ => Some(atomic::PATIENCE),
    }
}
