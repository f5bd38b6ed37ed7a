//! Hashes of large input files, remembered with what the system says of the file: size, times, identity.
//!
//! Only a saving: a file that was touched is hashed again, and the hash decides. What the index says is trusted only for
//! a file that had not been changed for some time when it was hashed, because a change within one tick of the file
//! system's clock would not show.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::{Error, Result};
use crate::files::sha256;

/// Smaller files are read anew each time.
const LARGE: u64 = 1 << 20;

/// How old a change must be, in nanoseconds.
const SETTLED: i128 = 2_000_000_000;

/// What the system says of a file: it changes with the content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Stamp {
    bytes: u64,
    modified: i128,
    /// Not in anyone's power to set back.
    changed: i128,
    file: (u64, u64),
}

#[derive(Serialize, Deserialize)]
struct Entry {
    stamp: Stamp,
    sha256: String,
    /// Of all that stands before: a damaged entry must not give a wrong hash.
    check: String,
}

#[cfg(unix)]
fn stamp(path: &Path) -> std::io::Result<Option<Stamp>> {
    use std::os::unix::fs::MetadataExt;
    let data = fs::metadata(path)?;
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    Ok(Some(Stamp {
        bytes: data.len(),
        modified: nanoseconds(data.mtime(), data.mtime_nsec()),
        changed: nanoseconds(data.ctime(), data.ctime_nsec()),
        file: (data.dev(), data.ino()),
    }))
}

/// Elsewhere there is no time that nobody can set back.
#[cfg(not(unix))]
fn stamp(_: &Path) -> std::io::Result<Option<Stamp>> {
    Ok(None)
}

fn check(stamp: &Stamp, sha256: &str) -> String {
    sha256::of_bytes(
        json!([stamp.bytes, stamp.modified.to_string(), stamp.changed.to_string(), stamp.file, sha256]).to_string(),
    )
}

/// The SHA-256 of a file, from the index in `folder` where that can be trusted.
pub(super) fn sha256_of(folder: &Path, path: &Path) -> Result<String> {
    let failed = |error: std::io::Error| Error::io("read", path, &error);
    let before = stamp(path).map_err(failed)?.filter(|stamp| stamp.bytes >= LARGE);
    let place = before.as_ref().and_then(|_| place(folder, path));
    if let (Some(stamp), Some(place)) = (&before, &place)
        && let Some(entry) = fs::read(place).ok().and_then(|text| serde_json::from_slice::<Entry>(&text).ok())
        && entry.stamp == *stamp
        && entry.check == check(stamp, &entry.sha256)
    {
        return Ok(entry.sha256);
    }
    let (sha256, _) = sha256::of_file(path).map_err(failed)?;
    if let (Some(before), Some(place)) = (before, place)
        && stamp(path).map_err(failed)?.as_ref() == Some(&before)
        && settled(&before)
    {
        remember(&place, &before, &sha256).ok();
    }
    Ok(sha256)
}

fn settled(stamp: &Stamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let age = i128::try_from(now).unwrap_or(0) - stamp.modified.max(stamp.changed);
    age > SETTLED
}

fn place(folder: &Path, path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    Some(folder.join(format!("{}.json", sha256::of_bytes(path.as_os_str().as_encoded_bytes()))))
}

fn remember(place: &Path, stamp: &Stamp, sha256: &str) -> std::io::Result<()> {
    let folder = place.parent().unwrap_or(place);
    fs::create_dir_all(folder)?;
    let entry = Entry { stamp: stamp.clone(), sha256: sha256.to_string(), check: check(stamp, sha256) };
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut file, &entry)?;
    file.persist(place)?;
    Ok(())
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn old(path: &Path, bytes: &[u8]) -> String {
        fs::write(path, bytes).unwrap();
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
        sha256::of_bytes(bytes)
    }

    #[test]
    fn a_change_is_seen_even_with_the_same_size_and_the_same_times() {
        let folder = tempfile::tempdir().unwrap();
        let (index, path) = (folder.path().join("index"), folder.path().join("weights"));
        let mut bytes = vec![7; 2 << 20];
        let first = old(&path, &bytes);
        assert_eq!(sha256_of(&index, &path).unwrap(), first);
        bytes[99] ^= 1;
        let second = old(&path, &bytes);
        assert_eq!(sha256_of(&index, &path).unwrap(), second);
    }

    #[test]
    fn an_entry_is_used_for_its_file_and_not_when_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let right = old(&path, &vec![7; 2 << 20]);
        let (now, place) = (stamp(&path).unwrap().unwrap(), place(folder.path(), &path).unwrap());
        remember(&place, &now, "remembered").unwrap();
        assert_eq!(sha256_of(folder.path(), &path).unwrap(), "remembered");
        let text = fs::read_to_string(&place).unwrap().replace("remembered", "rememberee");
        fs::write(&place, text).unwrap();
        assert_eq!(sha256_of(folder.path(), &path).unwrap(), right);
    }

    #[test]
    fn a_file_that_has_just_changed_is_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let (index, path) = (folder.path().join("index"), folder.path().join("weights"));
        old(&path, &vec![7; 2 << 20]);
        sha256_of(&index, &path).unwrap();
        assert_eq!(fs::read_dir(&index).into_iter().flatten().count(), 0, "changed within the last two seconds");
        // A clock that was set forward and back: a change in the future is never settled.
        let future = Stamp { bytes: 1, modified: i128::MAX / 2, changed: 0, file: (0, 0) };
        assert!(!settled(&future));
    }
}
