//! Interface to the machine of a store: file system, clock, and process identity. Tests replace this interface by a
//! file system that caches, loses replies and shows changes late, as network file systems do, and by a clock of their
//! own.
//!
//! There is no lock among the operations: some file systems give one to everybody, and nothing here would notice.

use std::any::Any;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use memmap2::Mmap;

use super::process::Process;
use super::shared::Shared;
use ghostlab_core::files::{atomic, regular};

/// A file system with a clock, as far as a store needs one.
pub trait Disk: fmt::Debug + Send + Sync {
    /// # Errors
    /// There is none, or it cannot be read.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_from(path, 0)
    }

    /// Reads a file from byte `start` on.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_from(&self, path: &Path, start: u64) -> io::Result<Vec<u8>>;

    /// Reads up to `bytes` bytes of a file from byte `start` on.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_part(&self, path: &Path, start: u64, bytes: u64) -> io::Result<Vec<u8>> {
        let mut read = self.read_from(path, start)?;
        read.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(read)
    }

    /// Opens a large file for streaming.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn reader(&self, path: &Path) -> io::Result<Box<dyn Read + Send>>;

    /// Maps an immutable file into memory.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn map(&self, path: &Path) -> io::Result<Mapped>;

    /// Returns the size of a file in bytes.
    ///
    /// # Errors
    /// There is none.
    fn size(&self, path: &Path) -> io::Result<u64>;

    /// Makes a file that is not there, and its folder where that is not there either; it is on the disk, or at the server,
    /// afterwards.
    ///
    /// # Errors
    /// There is one, or it cannot be written.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file that is not there, to be written piece by piece. It is on the disk after [`Self::sync`].
    ///
    /// # Errors
    /// There is one, or it cannot be written.
    fn writer(&self, path: &Path) -> io::Result<Box<dyn Write + Send>>;

    /// Flushes a file, or the metadata of a folder, to disk.
    ///
    /// # Errors
    /// It is not there, or cannot be written.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Writes over a file in place, so that its other names have it too; it is at the server afterwards.
    ///
    /// # Errors
    /// There is none, or it cannot be written.
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Adds to a file, which is made with its folder where it is not there: all or nothing, at the server afterwards.
    ///
    /// # Errors
    /// It cannot be written.
    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Replaces a file atomically. A killed process leaves temporary files, which [`Self::sweep`] removes.
    ///
    /// # Errors
    /// It cannot be written.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Removes what killed processes left of [`Self::replace`] in a folder.
    fn sweep(&self, folder: &Path);

    /// Gives a file a second name that nothing has.
    ///
    /// # Errors
    /// Something has it, or there are no links.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file, or a folder to a name that no folder with anything in it has.
    ///
    /// # Errors
    /// There is no such file or folder, or its new name is taken.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// # Errors
    /// There is no such file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder and its parents if they are missing.
    ///
    /// # Errors
    /// It cannot be made.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with what is in it.
    ///
    /// # Errors
    /// There is none, or not all of it can be removed.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder that nothing is in.
    ///
    /// # Errors
    /// There is none, or something is in it.
    fn remove_empty(&self, path: &Path) -> io::Result<()>;

    fn exists(&self, path: &Path) -> bool;

    /// Lists the names in a folder.
    fn list(&self, folder: &Path) -> Vec<String>;

    /// Returns the time by the clock of a folder's file system.
    fn clock(&self, folder: &Path) -> SystemTime;

    /// Returns the time since a file was changed, by that clock, if known.
    fn age(&self, path: &Path, now: SystemTime) -> Option<Duration>;

    /// Returns a monotonic time of this process.
    fn now(&self) -> Duration;

    /// Lets some time go by, less where `stop` is set meanwhile.
    fn sleep(&self, time: Duration, stop: &AtomicBool);

    /// Does something every so often, until what is given back is dropped.
    fn every(&self, period: Duration, act: Box<dyn FnMut() + Send>) -> Box<dyn Any + Send + Sync>;

    /// Returns the identity of the calling process.
    fn process(&self) -> Process;

    /// Returns the number of file system operations so far.
    fn operations(&self) -> u64;
}

/// A file's bytes, read as they are used.
pub enum Mapped {
    File(Mmap),
    Memory(Vec<u8>),
}

/// The system's own.
#[derive(Debug, Default)]
pub(crate) struct SystemDisk {
    operations: AtomicU64,
    /// Users who may read and write what is created.
    shared: Shared,
}

impl SystemDisk {
    pub(super) fn new(shared: Shared) -> Self {
        Self { shared, ..Self::default() }
    }

    fn count(&self, operations: u64) {
        self.operations.fetch_add(operations, Relaxed);
    }

    /// Makes a file, and its folder where that is not there, which another process may remove at the same moment because it
    /// is empty.
    fn in_its_folder(&self, path: &Path, make: impl Fn() -> io::Result<File>) -> io::Result<File> {
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
    fn read_from(&self, path: &Path, start: u64) -> io::Result<Vec<u8>> {
        self.count(1);
        let mut file = regular::file(path)?;
        if start > 0 {
            file.seek(SeekFrom::Start(start))?;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_part(&self, path: &Path, start: u64, bytes: u64) -> io::Result<Vec<u8>> {
        self.count(1);
        let mut file = regular::file(path)?;
        if start > 0 {
            file.seek(SeekFrom::Start(start))?;
        }
        let mut read = Vec::new();
        file.take(bytes).read_to_end(&mut read)?;
        Ok(read)
    }

    fn reader(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        self.count(1);
        Ok(Box::new(regular::file(path)?))
    }

    fn map(&self, path: &Path) -> io::Result<Mapped> {
        self.count(1);
        let file = regular::file(path)?;
        // SAFETY: objects are never changed in place, only replaced by a rename: the mapped file stays as it is.
        Ok(Mapped::File(unsafe { Mmap::map(&file) }?))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        self.count(1);
        let data = fs::metadata(path)?;
        // A pipe or a folder has some length too.
        if data.is_file() { Ok(data.len()) } else { Err(ErrorKind::InvalidData.into()) }
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.count(1);
        let mut file = self.in_its_folder(path, || File::create_new(path))?;
        self.shared.give_file(&file);
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn writer(&self, path: &Path) -> io::Result<Box<dyn Write + Send>> {
        self.count(1);
        let file = File::create_new(path)?;
        self.shared.give_file(&file);
        Ok(Box::new(file))
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.count(1);
        File::open(path)?.sync_all()
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.count(1);
        let mut file = File::options().write(true).open(path)?;
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.count(1);
        let mut file = self.in_its_folder(path, || File::options().create(true).append(true).open(path))?;
        let before = file.metadata()?.len();
        if before == 0 {
            self.shared.give_file(&file);
        }
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        if written.is_err() {
            // Half a line would hide the next one.
            file.set_len(before).ok();
        }
        written
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.count(2);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut file = atomic::temporary(path.parent().unwrap_or(path), &name)?;
        file.write_all(bytes)?;
        file.as_file().sync_data()?;
        self.shared.give_file(file.as_file());
        file.persist(path)?;
        Ok(())
    }

    fn sweep(&self, folder: &Path) {
        self.count(1);
        atomic::sweep(folder);
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count(1);
        fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count(1);
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.count(1);
        fs::remove_file(path)
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.count(1);
        self.shared.make_folder(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        // Its names are listed, and of most folders two or three files are removed.
        self.count(4);
        match fs::remove_dir_all(path) {
            // Something else lay in its place.
            Err(error) if error.kind() == ErrorKind::NotADirectory => fs::remove_file(path),
            removed => removed,
        }
    }

    fn remove_empty(&self, path: &Path) -> io::Result<()> {
        self.count(1);
        fs::remove_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.count(1);
        path.exists()
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        self.count(1);
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn clock(&self, folder: &Path) -> SystemTime {
        // A file is made to read the clock, and removed.
        self.count(2);
        atomic::clock(folder)
    }

    fn age(&self, path: &Path, now: SystemTime) -> Option<Duration> {
        self.count(1);
        atomic::age(path, now)
    }

    fn now(&self) -> Duration {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        // Starts late enough that a file seen before may count as long unchanged.
        ORIGIN.get_or_init(Instant::now).elapsed() + Duration::from_secs(1 << 20)
    }

    fn sleep(&self, time: Duration, stop: &AtomicBool) {
        /// Between two looks.
        const SLICE: Duration = Duration::from_millis(50);
        let mut left = time;
        while !left.is_zero() && !stop.load(Relaxed) {
            let slice = left.min(SLICE);
            std::thread::sleep(slice);
            left -= slice;
        }
    }

    fn every(&self, period: Duration, mut act: Box<dyn FnMut() + Send>) -> Box<dyn Any + Send + Sync> {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                act();
            }
        });
        Box::new(Timer { stop: Some(stop), thread: Some(thread) })
    }

    fn process(&self) -> Process {
        Process::this()
    }

    fn operations(&self) -> u64 {
        self.operations.load(Relaxed)
    }
}

/// A thread that does something every so often.
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

/// Returns whether an error means that a name exists.
pub(super) fn is_taken(error: &io::Error) -> bool {
    error.kind() == ErrorKind::AlreadyExists
}
