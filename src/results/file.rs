//! A file of a results folder.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::atomic::write_atomically;

/// Writes a file, whole or not at all; its path.
///
/// # Errors
/// Exit code 3 when the folder cannot be written to.
pub fn put(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    write_atomically(path, |file| file.write_all(bytes).map_err(|error| Error::io("write", path, &error)))?;
    Ok(path.to_owned())
}
