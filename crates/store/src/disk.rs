//! Abstraction over the file system, clock and process identity that a store uses. Tests replace it with a simulated
//! network file system, which caches, loses replies and delays the visibility of changes, and with a simulated clock.
//!
//! There is no lock operation. Some file systems grant the same lock to every process, and the store could not detect
//! this.

use std::any::Any;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use memmap2::Mmap;

use super::process::Process;
use super::shared::StoreSharing;
use ghostlab_core::files::{atomic, regular};

/// File system and clock operations that a store needs.
pub trait Disk: fmt::Debug + Send + Sync {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_part(path, 0, u64::MAX)
    }

    /// Reads up to `bytes` bytes of a file from byte `start`.
    fn read_part(&self, path: &Path, start: u64, bytes: u64) -> io::Result<Vec<u8>>;

    /// Opens a large file for streaming.
    fn reader(&self, path: &Path) -> io::Result<Box<dyn Read + Send>>;

    /// Maps an immutable file into memory.
    fn map(&self, path: &Path) -> io::Result<FileContent>;

    /// Returns the size of a file in bytes.
    fn size(&self, path: &Path) -> io::Result<u64>;

    /// Creates a file, and its folder if missing. Returns once the file is durable.
    ///
    /// # Errors
    /// Fails if the file exists or cannot be written.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Creates a file for streaming writes. It is durable after [`Self::sync`].
    ///
    /// # Errors
    /// Fails if the file exists or cannot be written.
    fn writer(&self, path: &Path) -> io::Result<Box<dyn Write + Send>>;

    /// Flushes a file, or the metadata of a folder, to disk.
    ///
    /// # Errors
    /// Fails if the path is missing or cannot be flushed.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Overwrites a file in place, so all its hard links see the change. Returns once the change has reached the
    /// file server.
    ///
    /// # Errors
    /// Fails if the file is missing or cannot be written.
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Appends to a file atomically. Creates the file and its folder if missing. Returns once the change is on the
    /// disk, or on the file server of a network file system.
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Replaces a file atomically. If the process is killed, temporary files remain until [`Self::sweep`].
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Removes temporary files from [`Self::replace`] that killed processes left in a folder.
    fn sweep(&self, folder: &Path);

    /// Creates a hard link under an unused name.
    ///
    /// # Errors
    /// Fails if the name exists or the file system does not support hard links.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file or folder. An existing file is replaced, and an existing folder only if it is empty.
    ///
    /// # Errors
    /// Fails if the source is missing or the destination cannot be replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder and its parents if they are missing.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder and its contents.
    ///
    /// # Errors
    /// Fails if the folder is missing or cannot be removed completely.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder.
    ///
    /// # Errors
    /// Fails if the folder is missing or not empty.
    fn remove_empty_folder(&self, path: &Path) -> io::Result<()>;

    fn exists(&self, path: &Path) -> bool;

    /// Returns the names of the entries in a folder, in any order. Returns an empty list if the folder cannot be read.
    fn list(&self, folder: &Path) -> Vec<String>;

    /// Returns the current time according to the file system of `folder`.
    fn file_system_time(&self, folder: &Path) -> SystemTime;

    /// Returns the time since the last modification of a file. `now` is a result of [`Self::file_system_time`].
    /// Returns `None` if the modification time is unknown.
    fn age(&self, path: &Path, now: SystemTime) -> Option<Duration>;

    /// Returns the monotonic time of this process.
    fn now(&self) -> Duration;

    /// Sleeps for `time`, or until `stop` is set.
    fn sleep(&self, time: Duration, stop: &AtomicBool);

    /// Runs `action` periodically until the returned guard is dropped.
    fn run_periodically(&self, period: Duration, action: Box<dyn FnMut() + Send>) -> Box<dyn Any + Send + Sync>;

    fn process(&self) -> Process;
}

/// Content of a file, either memory-mapped or read into a buffer.
pub enum FileContent {
    File(Mmap),
    Memory(Vec<u8>),
}

/// File system and clock of the operating system.
#[derive(Debug, Default)]
pub(crate) struct SystemDisk {
    /// Permissions of created files and folders.
    shared: StoreSharing,
}

impl SystemDisk {
    pub(super) fn new(shared: StoreSharing) -> Self {
        Self { shared }
    }

    /// Creates a file with `make`, and its folder if missing. Retries because another process may concurrently remove
    /// the empty folder.
    fn create_in_folder(&self, path: &Path, make: impl Fn() -> io::Result<File>) -> io::Result<File> {
        for _ in 0..100 {
            match make() {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    path.parent().map_or(Ok(()), |folder| self.shared.make_folder(folder))?;
                }
                made => return made,
            }
        }
        make()
    }
}

impl Disk for SystemDisk {
    fn read_part(&self, path: &Path, start: u64, bytes: u64) -> io::Result<Vec<u8>> {
        let mut file = regular::file(path)?;
        if start > 0 {
            file.seek(SeekFrom::Start(start))?;
        }
        let mut read = Vec::new();
        file.take(bytes).read_to_end(&mut read)?;
        Ok(read)
    }

    fn reader(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(regular::file(path)?))
    }

    fn map(&self, path: &Path) -> io::Result<FileContent> {
        let file = regular::file(path)?;
        // SAFETY: objects are never modified in place, only replaced by a rename, so the mapped file does not change.
        Ok(FileContent::File(unsafe { Mmap::map(&file) }?))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        let data = fs::metadata(path)?;
        // Accept only regular files, because pipes and folders have a length too.
        if data.is_file() { Ok(data.len()) } else { Err(ErrorKind::InvalidData.into()) }
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.create_in_folder(path, || File::create_new(path))?;
        self.shared.share_file(&file);
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn writer(&self, path: &Path) -> io::Result<Box<dyn Write + Send>> {
        let file = File::create_new(path)?;
        self.shared.share_file(&file);
        Ok(Box::new(file))
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = File::options().write(true).open(path)?;
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.create_in_folder(path, || File::options().create(true).append(true).open(path))?;
        let before = file.metadata()?.len();
        if before == 0 {
            self.shared.share_file(&file);
        }
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        if written.is_err() {
            // Remove a partial line, which would make the next one unreadable.
            file.set_len(before).ok();
        }
        written
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut file = atomic::temporary(path.parent().unwrap_or(path), &name)?;
        file.write_all(bytes)?;
        file.as_file().sync_data()?;
        self.shared.share_file(file.as_file());
        file.persist(path)?;
        Ok(())
    }

    fn sweep(&self, folder: &Path) {
        atomic::sweep(folder);
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.shared.make_folder(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        match fs::remove_dir_all(path) {
            // The path is not a folder.
            Err(error) if error.kind() == ErrorKind::NotADirectory => fs::remove_file(path),
            removed => removed,
        }
    }

    fn remove_empty_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn file_system_time(&self, folder: &Path) -> SystemTime {
        atomic::file_system_time(folder)
    }

    fn age(&self, path: &Path, now: SystemTime) -> Option<Duration> {
        atomic::age(path, now)
    }

    fn now(&self) -> Duration {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        // Start at 2^20 s so that callers can subtract timeouts without reaching a negative time.
        ORIGIN.get_or_init(Instant::now).elapsed() + Duration::from_secs(1 << 20)
    }

    fn sleep(&self, time: Duration, stop: &AtomicBool) {
        const SLICE: Duration = Duration::from_millis(50);
        let mut left = time;
        while !left.is_zero() && !stop.load(Relaxed) {
            let slice = left.min(SLICE);
            std::thread::sleep(slice);
            left -= slice;
        }
    }

    fn run_periodically(&self, period: Duration, mut action: Box<dyn FnMut() + Send>) -> Box<dyn Any + Send + Sync> {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                action();
            }
        });
        Box::new(Timer { stop: Some(stop), thread: Some(thread) })
    }

    fn process(&self) -> Process {
        Process::current()
    }
}

/// Background thread that runs an action periodically.
struct Timer {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Timer {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Returns whether an error means that the name already exists.
pub(super) fn is_name_taken(error: &io::Error) -> bool {
    error.kind() == ErrorKind::AlreadyExists
}
