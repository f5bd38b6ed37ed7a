//! The folder's own list of hashes against its files.

use std::path::Path;

use super::finding::{Check, CheckKind};
use crate::archive;
use crate::error::{Error, Result};
use crate::files::output::Manifest;
use crate::files::sha256;
use crate::results::may_be_left_out;

/// Each listed file. What was left out is told in `notes`.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn check(folder: &Path, notes: &mut Vec<String>) -> Result<Check> {
    let mut check = Check::new(CheckKind::Files);
    let Some(listed) = archive::listed(&folder.join(Manifest::FILE))? else {
        check.lack(Manifest::FILE, "the folder's list of hashes");
        return Ok(check);
    };
    let (mut left_out, mut all) = (0, 0);
    for (hash, name) in listed {
        all += 1;
        let file = folder.join(&name);
        if !archive::is_inside(&name) {
            check.differ(name, ["a file of this folder", "a path that leads out of it"], None);
        } else if !file.exists() && may_be_left_out(&name) {
            left_out += 1;
        } else if !file.exists() {
            check.differ(name, [hash.as_str(), "no such file"], None);
        } else {
            match sha256::of_file(&file).map_err(|error| Error::io("read", &file, &error))?.0 {
                found if found == hash => check.agree(0.0),
                found => check.differ(name, [hash, found], None),
            }
        }
    }
    if left_out > 0 {
        notes.push(format!("left out of the folder, as a record may: {left_out} of {all} listed files"));
    }
    Ok(check.of(all - left_out))
}
