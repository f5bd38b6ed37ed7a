//! What claims and records of processes ask of a file system: one small seam, behind which a test puts one that caches,
//! lies and shows things late, as network file systems do, with a clock of its own.
//!
//! There is no lock among the operations: some file systems give one to everybody, and nothing here would notice.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::files::atomic;

/// A file system, as far as claims need one.
pub(crate) trait Disk: Send + Sync {
    /// # Errors
    /// There is none, or it cannot be read.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Makes a file that is not there; it is on the disk, or at the server, afterwards.
    ///
    /// # Errors
    /// There is one, or it cannot be written.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Writes over a file in place, so that its other names have it too; it is at the server afterwards.
    ///
    /// # Errors
    /// There is none, or it cannot be written.
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Gives a file a second name that nothing has.
    ///
    /// # Errors
    /// Something has it, or there are no links.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// # Errors
    /// There is no such file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// # Errors
    /// There is no such file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    fn exists(&self, path: &Path) -> bool;

    /// The names in a folder.
    fn list(&self, folder: &Path) -> Vec<String>;

    /// For how long a file has stood still, by the clock that stamps the folder's files; none where that cannot be known.
    fn age(&self, path: &Path, folder: &Path) -> Option<Duration>;

    /// A time of this process that only grows.
    fn now(&self) -> Duration;
}

/// The system's own.
#[derive(Debug, Default)]
pub(crate) struct SystemDisk {
    operations: AtomicU64,
}

impl SystemDisk {
    /// How many operations it was asked for.
    pub(crate) fn operations(&self) -> u64 {
        self.operations.load(Relaxed)
    }

    fn count(&self) {
        self.operations.fetch_add(1, Relaxed);
    }
}

impl Disk for SystemDisk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.count();
        fs::read(path)
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.count();
        let made = File::create_new(path);
        let mut file = match made {
            // Folders of attempts are made when they are needed.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                path.parent().map_or(Ok(()), fs::create_dir_all)?;
                File::create_new(path)?
            }
            made => made?,
        };
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.count();
        let mut file = File::options().write(true).open(path)?;
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count();
        fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count();
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.count();
        fs::remove_file(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.count();
        path.exists()
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        self.count();
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn age(&self, path: &Path, folder: &Path) -> Option<Duration> {
        // A file is made to read the clock, and removed.
        self.operations.fetch_add(3, Relaxed);
        atomic::age(path, atomic::clock(folder))
    }

    fn now(&self) -> Duration {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        // Some time has gone by already: what was seen may have stood still for long.
        ORIGIN.get_or_init(Instant::now).elapsed() + Duration::from_secs(1 << 20)
    }
}

/// Whether an error says that a name is taken.
pub(super) fn is_taken(error: &io::Error) -> bool {
    error.kind() == ErrorKind::AlreadyExists
}
