//! Unpacking of untrusted archives. Path traversal, damaged entries and entries larger than the archive are rejected
//! with an error that names the entry.

use std::collections::BTreeSet;
use std::io::{Read, Seek};
use std::path::Path;

use zip::ZipArchive;
use zip::result::ZipError;

use super::{MANIFEST, is_inside, read_checksums};
use crate::error::{Error, Result};
use crate::files::{panics, sha256};
use crate::quantity::pluralize;

#[derive(Debug)]
pub struct UnpackedRecord {
    /// Number of entries whose hash matches the manifest.
    pub intact: usize,
    pub altered: Vec<AlteredFile>,
}

/// Entry whose hash differs from the manifest, or which only the manifest or only the archive contains.
#[derive(Debug)]
pub struct AlteredFile {
    pub name: String,
    pub listed: String,
    pub found: String,
}

/// Unpacks an archive of `bytes` bytes into an empty directory, and checks each entry against the manifest.
///
/// # Errors
/// Fails if the archive is invalid. The error names the invalid entry.
pub fn unpack(from: impl Read + Seek, bytes: u64, to: &Path) -> Result<UnpackedRecord> {
    // The zip reader may panic on damaged bytes.
    let names = panics::catch(|| write_entries(from, bytes, to)).map_err(|panic| damaged_archive_error(&panic))??;
    let listed = read_checksums(&to.join(MANIFEST))?.ok_or_else(|| {
        Error::bad_input("the file is not a packed record")
            .expected(format!("an archive with {MANIFEST}, as `ghostlab record pack` writes it"))
            .found(format!("{}, none with that name", pluralize(names.len(), "file")))
    })?;
    let mut unlisted: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| *name != MANIFEST).collect();
    let mut intact = 0;
    let mut altered = Vec::new();
    for (hash, name) in &listed {
        let exists = unlisted.remove(name.as_str());
        let path = to.join(name);
        let found = match exists {
            true => sha256::of_file(&path).map_err(|error| Error::io("read", &path, &error))?.0,
            false => "no such entry".to_owned(),
        };
        match found == *hash {
            true => intact += 1,
            false => altered.push(AlteredFile { name: name.clone(), listed: hash.clone(), found }),
        }
    }
    altered.extend(unlisted.into_iter().map(|name| AlteredFile {
        name: name.to_owned(),
        listed: "nothing".to_owned(),
        found: "an unlisted entry".to_owned(),
    }));
    Ok(UnpackedRecord { intact, altered })
}

/// Writes all entries and returns the names of the files.
fn write_entries(from: impl Read + Seek, archive_bytes: u64, to: &Path) -> Result<BTreeSet<String>> {
    let mut archive = ZipArchive::new(from).map_err(|error| zip_error(&error))?;
    let mut names = BTreeSet::new();
    let mut remaining_bytes = archive_bytes;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| zip_error(&error))?;
        let name = entry.name().map_err(|error| zip_error(&error))?.into_owned();
        if entry.is_dir() && is_inside(name.trim_end_matches('/')) {
            let folder = to.join(&name);
            std::fs::create_dir_all(&folder).map_err(|error| Error::folder_io("create", &folder, &error))?;
            continue;
        }
        if !is_inside(&name) || !entry.is_file() {
            return reject_entry(
                &name,
                "a regular file inside the archive",
                "a path outside the archive, or an entry that is not a regular file",
            );
        }
        if names.contains(&name) {
            return reject_entry(&name, "unique entry names", "a duplicate entry");
        }
        // Entries are uncompressed, so their total size is below the size of the archive.
        let Some(left) = remaining_bytes.checked_sub(entry.size()) else {
            return reject_entry(
                &name,
                "uncompressed entries, smaller in total than the archive",
                "entries that are larger in total",
            );
        };
        remaining_bytes = left;
        let path = to.join(&name);
        let folder = path.parent().unwrap_or(to);
        std::fs::create_dir_all(folder).map_err(|error| Error::folder_io("create", folder, &error))?;
        let mut content = Vec::new();
        let size = entry.size();
        (&mut entry)
            .take(size + 1)
            .read_to_end(&mut content)
            .map_err(|error| damaged_archive_error(&error.to_string()).at(&name))?;
        if content.len() as u64 != size {
            return reject_entry(&name, "as many bytes as the entry declares", "a different size");
        }
        std::fs::write(&path, content).map_err(|error| Error::io("write", &path, &error))?;
        names.insert(name);
    }
    Ok(names)
}

fn reject_entry<T>(name: &str, expected: &str, found: &str) -> Result<T> {
    Err(Error::bad_input("unsafe archive").at(name).expected(expected).found(found))
}

fn zip_error(error: &ZipError) -> Error {
    damaged_archive_error(&error.to_string())
}

fn damaged_archive_error(found: &str) -> Error {
    Error::bad_input("the archive is damaged")
        .expected("a complete zip file of uncompressed entries, as `ghostlab record pack` writes it")
        .found(found)
        .hint("download the archive again")
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::*;

    fn build_archive(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut to = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, text) in entries {
            let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
            to.start_file(*name, options).unwrap();
            to.write_all(text.as_bytes()).unwrap();
        }
        to.finish().unwrap().into_inner()
    }

    fn unpack_bytes(bytes: &[u8]) -> (Result<UnpackedRecord>, tempfile::TempDir) {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        (unpack(Cursor::new(bytes.to_vec()), bytes.len() as u64, &inner), outer)
    }

    #[test]
    fn unsafe_archives_are_rejected_without_writing_outside() {
        for name in ["../evil.txt", "/evil.txt", "a/../../evil.txt", "C:\\evil.txt", "a\\..\\evil.txt"] {
            let (found, folder) = unpack_bytes(&build_archive(&[("good.txt", "x"), (name, "evil")]));
            let error = found.unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("unsafe"), "{name}: {error}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{name}");
        }
        let zip = build_archive(&[("a.txt", "some text that is long enough to be found")]);
        let offset = zip.windows(4).position(|four| four == b"some").unwrap();
        let mut altered = zip.clone();
        altered[offset] = b'S';
        let error = unpack_bytes(&altered).0.unwrap_err();
        assert!(error.to_string().contains("damaged") && error.to_string().contains("a.txt"), "{error}");
        for end in [0, 3, zip.len() / 2, zip.len() - 1] {
            let error = unpack_bytes(&zip[..end]).0.unwrap_err();
            assert_eq!(error.exit_code(), 2, "{end}: {error}");
        }
        let error = unpack_bytes(&zip).0.unwrap_err();
        assert!(error.to_string().contains(MANIFEST), "{error}");
    }

    #[test]
    fn archive_entries_are_checked_against_the_manifest() {
        let hash = sha256::of_bytes("one");
        let list = format!("{hash}  a.txt\n{hash}  b.txt\n{hash}  c.txt\n");
        let (found, _folder) =
            unpack_bytes(&build_archive(&[(MANIFEST, &list), ("a.txt", "one"), ("b.txt", "two"), ("d.txt", "one")]));
        let found = found.unwrap();
        let altered: Vec<&str> = found.altered.iter().map(|file| file.name.as_str()).collect();
        assert_eq!((found.intact, altered), (1, vec!["b.txt", "c.txt", "d.txt"]));
    }
}
