//! File access: atomic writes, regular-file checks, hashes, and robust parsing of third-party formats.
//!
//! ```
//! use ghostlab_core::files::{atomic, sha256};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("table.csv");
//! // Readers see the old file or the new one, never a part of it.
//! atomic::write_whole(&path, b"a,b\n")?;
//! assert_eq!(sha256::of_file(&path)?, (sha256::of_bytes("a,b\n"), 4));
//! # Ok(())
//! # }
//! ```

pub mod atomic;
pub mod csv;
pub mod disk;
pub mod gguf;
pub mod gguf_writer;
pub mod gzip;
pub mod json_rows;
pub mod limit;
pub mod name;
pub mod not_finite;
pub mod number;
pub mod output;
pub mod owner;
pub mod panics;
pub mod parquet;
pub mod parts;
pub mod regular;
pub mod rows;
pub mod serialize_path;
pub mod sha256;
pub mod stamp;

use std::io;
use std::path::{Path, PathBuf};

/// Returns the absolute path, or the path itself if the current folder is unknown.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the folder that contains a path, which is `.` for a name without a folder.
pub fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Lists the paths in a folder, sorted.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = folder.read_dir()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}
