//! Results folders become a zip.

use std::collections::BTreeSet;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::metadata::metadata;
use super::{MANIFEST, METADATA, is_inside, listed_in};
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

/// An archive.
#[derive(Debug)]
pub struct Packed {
    pub bytes: Vec<u8>,
    /// Its folders, as they are called in it.
    pub folders: Vec<String>,
    /// All its entries.
    pub entries: usize,
    /// Files that the folders list and do not hold, as a record may.
    pub left_out: usize,
}

/// An archive of results folders. `license` says under what they may be used: an address, or words.
///
/// # Errors
/// A folder without numbers or record; a file that is not as the run wrote it.
pub fn pack(folders: &[PathBuf], license: Option<&str>) -> Result<Packed> {
    let mut left_out = 0;
    let mut packed = folders.iter().map(|folder| read(folder, &mut left_out)).collect::<Result<Vec<_>>>()?;
    packed.sort_by(|one, other| one.name.cmp(&other.name));
    let names: BTreeSet<&str> = packed.iter().map(|folder| folder.name.as_str()).collect();
    if let Some(twice) = packed.windows(2).find(|two| two[0].name == two[1].name) {
        return Err(Error::bad_input("two results folders have one name")
            .at(twice[0].name.clone())
            .expected("each artifact and profile once")
            .found(format!("{} folders of {} names", packed.len(), names.len()))
            .hint("pack them into a file each"));
    }
    let all = packed.iter().flat_map(|of| of.files.iter().map(move |file| format!("{}/{}", of.name, file.name)));
    // What a line of it has beside a name: 64 digits, two blanks and its end.
    let manifest_bytes = all.chain([METADATA.to_owned()]).map(|name| name.len() + 67).sum();
    let metadata = format!("{:#}\n", metadata(&packed, license, manifest_bytes));
    let mut entries = vec![(METADATA.to_owned(), metadata.into_bytes())];
    let mut hashes = vec![(METADATA.to_owned(), sha256::of_bytes(&entries[0].1))];
    let titles = packed.iter().map(|folder| folder.name.clone()).collect();
    let mut entries_of = Vec::new();
    for folder in packed {
        // A folder that is described has an entry of its own.
        entries_of.push((format!("{}/", folder.name), Vec::new()));
        for PackedFile { name, bytes, hash } in folder.files {
            let name = format!("{}/{name}", folder.name);
            hashes.push((name.clone(), hash));
            entries_of.push((name, bytes));
        }
    }
    let manifest: String = hashes.iter().map(|(name, hash)| format!("{hash}  {name}\n")).collect();
    entries.push((MANIFEST.to_owned(), manifest.into_bytes()));
    entries.append(&mut entries_of);
    let count = entries.len();
    let bytes =
        zipped(&entries).map_err(|error| Error::job("an archive cannot be written").found(error.to_string()))?;
    Ok(Packed { bytes, folders: titles, entries: count, left_out })
}

/// Entries in their order, with no trace of when and where.
fn zipped(entries: &[(String, Vec<u8>)]) -> zip::result::ZipResult<Vec<u8>> {
    let mut to = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .unix_permissions(0o644)
            .large_file(u32::try_from(bytes.len()).is_err());
        if name.ends_with('/') {
            to.add_directory(name.as_str(), options.unix_permissions(0o755))?;
            continue;
        }
        to.start_file(name.as_str(), options)?;
        to.write_all(bytes)?;
    }
    Ok(to.finish()?.into_inner())
}

fn read(folder: &Path, left_out: &mut usize) -> Result<PackedFolder> {
    let numbers = StoredResults::read(folder)?;
    let path = folder.join(Provenance::FILE);
    let damaged = |error: serde_json::Error| {
        Error::damaged("the record of a run cannot be read").at(path.display().to_string()).found(error.to_string())
    };
    let run: Value = serde_json::from_slice(&regular::read(&path)?).map_err(damaged)?;
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
