//! Floor 4: results folders as one file that others can read without this program: a zip of stored entries with RO-Crate
//! 1.2 metadata and a list of hashes. The same folders give the same bytes.
//!
//! | entry | what |
//! | --- | --- |
//! | `ro-crate-metadata.json` | files with sizes and hashes, the runs with their commands, software and inputs |
//! | `manifest-sha256.txt` | the hash of every other entry, as `sha256sum -c` reads it |
//! | `NAME/PROFILE/…` | a results folder: what its own list of hashes names, and that list |

mod metadata;
mod pack;
mod packed_folder;
mod unpack;

pub use pack::{Packed, pack};
pub use unpack::{Altered, Unpacked, unpack};

use std::path::{Component, Path};

use crate::error::{Error, Result};
use crate::files::output::Manifest;
use crate::files::regular;

pub const METADATA: &str = "ro-crate-metadata.json";
pub const MANIFEST: &str = "manifest-sha256.txt";

/// The hashes and names of a list of files; none where there is no such file.
///
/// # Errors
/// A list that cannot be read.
pub fn listed(path: &Path) -> Result<Option<Vec<(String, String)>>> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
    let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once("  "));
    Ok(Some(lines.map(|(hash, name)| (hash.to_owned(), name.to_owned())).collect()))
}

/// The same of what a run left in its folder.
///
/// # Errors
/// A list that cannot be read, or none.
pub fn listed_in(folder: &Path) -> Result<Vec<(String, String)>> {
    let path = folder.join(Manifest::FILE);
    listed(&path)?.ok_or_else(|| {
        Error::missing("a results folder has no list of its files")
            .at(path.display().to_string())
            .expected("the list of hashes that a run leaves")
            .found("none")
            .hint("run it again: what is stored is not computed again")
    })
}

/// Whether a name stays below the folder that it is a name in.
pub fn is_inside(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(['\\', '\0'])
        // A drive, where there are such.
        && name.as_bytes().get(1) != Some(&b':')
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}
