//! Limit on decompressed text. A file of a megabyte can hold a gigabyte of zeros, which would exhaust the memory of any
//! reader.

use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::{Error, Result};

/// For the whole process, as the number of threads is: it changes no result, only what is refused.
static MOST: AtomicU64 = AtomicU64::new(TextLimit::DEFAULT);
/// A row of JSON becomes a tree of values, in which a byte of text may take twenty.
const ROW_SHARE: u64 = 10;
/// Rows of task data are trees, all in memory at once.
pub const MAX_ROWS: usize = 1_000_000;

/// The most bytes of text that a file may hold or unpack to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimit(u64);

impl TextLimit {
    /// Default limit in bytes. A shard of C4 has 0.8 GB.
    pub const DEFAULT: u64 = 2_000_000_000;

    /// Returns the current limit.
    pub fn current() -> Self {
        Self(MOST.load(Relaxed))
    }

    /// Sets the limit of this process.
    pub fn set(bytes: u64) {
        MOST.store(bytes, Relaxed);
    }

    /// Returns the share of the limit for one JSON tree: a row of a text, or all rows of a task.
    #[must_use]
    pub fn of_json(self) -> Self {
        Self(self.0 / ROW_SHARE)
    }

    pub fn bytes(self) -> u64 {
        self.0
    }

    /// # Errors
    /// More bytes than the limit.
    pub fn check(self, path: &Path, bytes: u64) -> Result<()> {
        if bytes <= self.0 { Ok(()) } else { Err(self.exceeded(path).found(format!("{:.2} GB", bytes as f64 / 1e9))) }
    }

    /// Returns the limit reduced to the memory that may be used.
    #[must_use]
    pub fn within(self, memory: u64) -> Self {
        Self(self.0.min(memory))
    }

    /// Creates the error for a file above the limit.
    pub fn exceeded(self, path: &Path) -> Error {
        Error::bad_input("the file holds or unpacks to more text than is read")
            .at(path.display())
            .expected(format!("at most {} GB", self.0 as f64 / 1e9))
            .found("more")
            .hint(
                "a larger text is read with `--text GB`, as far as memory holds it; a small file that unpacks to so much is \
                 damaged or hostile",
            )
    }

    /// Reads from `inner` and fails after the limit's last byte, with a kind of error of its own.
    pub fn reader<R: Read>(self, inner: R) -> Bounded<R> {
        Bounded { inner, left: self.0 }
    }
}

/// Counts what rows take in memory, the empty ones too: a file of a few megabytes can unpack to a hundred million of them.
#[derive(Debug)]
pub struct HeldRows<'a> {
    limit: TextLimit,
    path: &'a Path,
    bytes: u64,
}

impl<'a> HeldRows<'a> {
    pub fn new(limit: TextLimit, path: &'a Path) -> Self {
        Self { limit, path, bytes: 0 }
    }

    /// Counts another item of `bytes` bytes.
    ///
    /// # Errors
    /// All together take more than the limit.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.bytes += (bytes + size_of::<String>()) as u64;
        if self.bytes <= self.limit.bytes() { Ok(()) } else { Err(self.limit.exceeded(self.path)) }
    }
}

/// A reader that ends in an error where the limit does.
#[derive(Debug)]
pub struct Bounded<R> {
    inner: R,
    left: u64,
}

/// Returns whether a read failed because of a limit.
pub fn is_exceeded(error: &io::Error) -> bool {
    error.kind() == ErrorKind::FileTooLarge
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => return Err(ErrorKind::FileTooLarge.into()),
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_as_the_limit_is_read_and_a_byte_more_is_an_error() {
        let mut bytes = Vec::new();
        assert_eq!(TextLimit(5).reader(&b"12345"[..]).read_to_end(&mut bytes).unwrap(), 5);
        assert!(is_exceeded(&TextLimit(4).reader(&b"12345"[..]).read_to_end(&mut bytes).unwrap_err()));
        assert!(TextLimit(5).check(Path::new("a"), 5).is_ok());
        let message = TextLimit(3_000_000_000).check(Path::new("a.gz"), 5_000_000_000).unwrap_err().to_string();
        assert!(
            message.contains("a.gz") && message.contains("at most 3 GB") && message.contains("--text"),
            "{message}"
        );
    }
}
