//! A results folder as it goes into an archive.

use std::path::Path;

use serde_json::Value;

use super::{is_inside, listed_in};
use crate::error::{Error, Result};
use crate::files::output::Manifest;
use crate::files::{regular, sha256};
use crate::results::{Provenance, StoredResults, may_be_left_out};

/// What a folder is called in an archive, its files by their names there, and its record.
pub(super) struct PackedFolder {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) files: Vec<PackedFile>,
    pub(super) run: Value,
}

/// A file of a folder.
pub(super) struct PackedFile {
    /// In its folder.
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) hash: String,
}

/// Reads a folder with every file that it lists; `left_out` counts those that a record may lack.
///
/// # Errors
/// No numbers or record; a file that is not as the run wrote it.
pub(super) fn read(folder: &Path, left_out: &mut usize) -> Result<PackedFolder> {
    let numbers = StoredResults::read(folder)?;
    let run: Value = Provenance::read(folder)?;
    let mut files = Vec::new();
    for (hash, name) in listed_in(folder)? {
        let path = folder.join(&name);
        if !path.exists() && may_be_left_out(&name) {
            *left_out += 1;
            continue;
        }
        let altered = |found: String| {
            Error::bad_input("a file is not as the run wrote it")
                .at(path.display().to_string())
                .expected(format!("SHA-256 {hash}"))
                .found(found)
                .hint("only a whole folder is packed: `ghostlab verify` tells what else differs")
        };
        if !is_inside(&name) {
            return Err(altered("a name that leads out of the folder".to_owned()));
        }
        if !path.is_file() {
            return Err(altered("no such file".to_owned()));
        }
        let bytes = regular::read(&path)?;
        let found = sha256::of_bytes(&bytes);
        if found != hash {
            return Err(altered(format!("SHA-256 {found}")));
        }
        files.push(PackedFile { name, bytes, hash });
    }
    let bytes = regular::read(&folder.join(Manifest::FILE))?;
    files.push(PackedFile { name: Manifest::FILE.to_owned(), hash: sha256::of_bytes(&bytes), bytes });
    files.sort_by(|one, other| one.name.cmp(&other.name));
    let own = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let last = own(&absolute).unwrap_or_default();
    // A grid without a profile lies in a folder of its name.
    let name = if last == numbers.name { last } else { format!("{}/{last}", numbers.name) };
    let title = format!("{} {}", numbers.name, numbers.profile).trim_end().to_owned();
    Ok(PackedFolder { name, title, files, run })
}
