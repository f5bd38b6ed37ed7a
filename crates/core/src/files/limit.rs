//! Limits on decompressed text. A megabyte of compressed zeros can expand to a gigabyte and exhaust memory.

use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::{Error, Result};

/// Process-wide limit in bytes. It determines which files are rejected but never changes results.
static LIMIT_BYTES: AtomicU64 = AtomicU64::new(TextLimit::DEFAULT);
/// Divisor of the limit for text that is parsed into a JSON tree. The tree may take twenty times the size of its text.
const JSON_DIVISOR: u64 = 10;
/// Maximum number of rows in a task. All of them are kept in memory as JSON trees.
pub const MAX_ROWS: usize = 1_000_000;

/// Maximum size in bytes of the text in a file, after decompression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimit(u64);

impl TextLimit {
    /// Default limit in bytes. A C4 shard takes 0.8 GB.
    pub const DEFAULT: u64 = 2_000_000_000;

    pub fn current() -> Self {
        Self(LIMIT_BYTES.load(Relaxed))
    }

    pub fn set(bytes: u64) {
        LIMIT_BYTES.store(bytes, Relaxed);
    }

    /// Returns the smaller limit that applies to text parsed into one JSON tree, such as a row of a corpus or all rows
    /// of a task.
    #[must_use]
    pub fn for_json(self) -> Self {
        Self(self.0 / JSON_DIVISOR)
    }

    pub fn bytes(self) -> u64 {
        self.0
    }

    /// Checks a size against the limit.
    ///
    /// # Errors
    /// Fails if `bytes` exceeds the limit.
    pub fn check(self, path: &Path, bytes: u64) -> Result<()> {
        if bytes <= self.0 {
            Ok(())
        } else {
            Err(self.limit_error(path).found(format!("{:.2} GB", bytes as f64 / 1e9)))
        }
    }

    /// Returns the smaller of this limit and `memory` bytes.
    #[must_use]
    pub fn at_most(self, memory: u64) -> Self {
        Self(self.0.min(memory))
    }

    /// Creates the error for a file above the limit.
    pub fn limit_error(self, path: &Path) -> Error {
        Error::bad_input("the file exceeds the size limit for text")
            .at(path.display())
            .expected(format!("at most {} GB", self.0 as f64 / 1e9))
            .hint(
                "raise the limit with `--text GB` if memory allows; a small file that decompresses to more than this \
                 is probably corrupt or malicious",
            )
    }

    /// Wraps `inner` in a reader that fails with [`ErrorKind::FileTooLarge`] beyond the limit.
    pub fn reader<R: Read>(self, inner: R) -> LimitedReader<R> {
        LimitedReader { inner, left: self.0 }
    }
}

/// Counter for the memory that rows occupy. Empty rows also occupy memory, and a few megabytes can decompress to a
/// hundred million of them.
#[derive(Debug)]
pub struct RowMemory<'a> {
    limit: TextLimit,
    path: &'a Path,
    bytes: u64,
}

impl<'a> RowMemory<'a> {
    pub fn new(limit: TextLimit, path: &'a Path) -> Self {
        Self { limit, path, bytes: 0 }
    }

    /// Counts a row of `bytes` bytes.
    ///
    /// # Errors
    /// Fails if the total exceeds the limit.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.bytes += (bytes + size_of::<String>()) as u64;
        if self.bytes <= self.limit.bytes() { Ok(()) } else { Err(self.limit.limit_error(self.path)) }
    }
}

/// Reader that fails once it has read more bytes than a limit.
#[derive(Debug)]
pub struct LimitedReader<R> {
    inner: R,
    left: u64,
}

/// Returns whether a read failed because it exceeded a limit.
pub fn is_exceeded(error: &io::Error) -> bool {
    error.kind() == ErrorKind::FileTooLarge
}

impl<R: Read> Read for LimitedReader<R> {
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
    fn reading_past_the_text_limit_is_an_error() {
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
