//! The folder's own list of hashes against its files.

use std::path::Path;

use super::finding::{Check, CheckKind};
use crate::error::{Error, Result};
use crate::files::output::Manifest;
use crate::files::{regular, sha256};
use crate::results::{CHANNELS, DOCUMENTS, FORMS, LATENCY};

/// What a record may leave out (docs/record.md).
fn is_bulk(name: &str) -> bool {
    // What other programs read is made of the numbers that stay.
    [DOCUMENTS, CHANNELS, LATENCY].contains(&name) || FORMS.iter().any(|form| Path::new(name).starts_with(form))
}

/// Each listed file. What was left out is told in `notes`.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn check(folder: &Path, notes: &mut Vec<String>) -> Result<Check> {
    let mut check = Check::new(CheckKind::Files);
    let path = folder.join(Manifest::FILE);
    if !path.is_file() {
        check.lack(Manifest::FILE, "the folder's list of hashes");
        return Ok(check);
    }
    let text = String::from_utf8_lossy(&regular::read(&path)?).into_owned();
    let listed: Vec<(&str, &str)> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once("  ")).collect();
    let (mut left_out, mut all) = (0, 0);
    for (hash, name) in listed {
        all += 1;
        let inside = Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let file = folder.join(name);
        if !inside {
            check.differ(name, ["a file of this folder", "a path that leads out of it"], None);
        } else if !file.exists() && is_bulk(name) {
            left_out += 1;
        } else if !file.exists() {
            check.differ(name, [hash, "no such file"], None);
        } else {
            match sha256::of_file(&file).map_err(|error| Error::io("read", &file, &error))?.0 {
                found if found == hash => check.agree(0.0),
                found => check.differ(name, [hash, &found], None),
            }
        }
    }
    if left_out > 0 {
        notes.push(format!("left out of the folder, as a record may: {left_out} of {all} listed files"));
    }
    Ok(check.of(all - left_out))
}
