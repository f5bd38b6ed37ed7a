//! Archives of results directories, which can be read without this program (layer 4 of the architecture).
//!
//! An archive is a zip file of uncompressed entries, with RO-Crate 1.2 metadata and a list of hashes. Packing the same
//! directories yields the same bytes.
//!
//! | entry | contents |
//! | --- | --- |
//! | `ro-crate-metadata.json` | files with sizes and hashes, and the runs with their commands, software and inputs |
//! | `manifest-sha256.txt` | hash of every other entry, in the format of `sha256sum -c` |
//! | `NAME/PROFILE/…` | results directory: its list of hashes, and the listed files |

mod metadata;
mod unpack;

pub use unpack::{AlteredFile, UnpackedRecord, unpack};

use std::collections::BTreeSet;
use std::io::{Cursor, Write};
use std::path::{Component, Path, PathBuf};

use metadata::{PackedFile, PackedFolder, build_metadata, read_folder};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use crate::error::{Error, Result};
use crate::files::output::Manifest;
use crate::files::{regular, sha256};

pub const METADATA: &str = "ro-crate-metadata.json";
pub const MANIFEST: &str = "manifest-sha256.txt";

/// Reads the hashes and names in a checksum file. Returns `None` if the file does not exist.
pub fn read_checksums(path: &Path) -> Result<Option<Vec<(String, String)>>> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
    let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once("  "));
    Ok(Some(lines.map(|(hash, name)| (hash.to_owned(), name.to_owned())).collect()))
}

/// Reads the hashes and names of the files in a results directory.
///
/// # Errors
/// Fails if the checksum file is missing or cannot be read.
pub fn read_file_list(folder: &Path) -> Result<Vec<(String, String)>> {
    let path = folder.join(Manifest::FILE);
    read_checksums(&path)?.ok_or_else(|| {
        Error::missing("the results folder has no file list")
            .at(path.display().to_string())
            .expected("the list of file hashes written by a run")
            .found("none")
            .hint("rerun the grid to write the list; cached results are reused")
    })
}

/// Returns whether a relative path stays inside its directory.
pub fn is_inside(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(['\\', '\0'])
        // Reject Windows drive letters.
        && name.as_bytes().get(1) != Some(&b':')
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

#[derive(Debug)]
pub struct RecordArchive {
    pub bytes: Vec<u8>,
    /// Names of the results directories in the archive.
    pub folders: Vec<String>,
    pub entries: usize,
    /// Number of listed files that were left out because they do not exist. Only large files may be missing.
    pub omitted_files: usize,
}

/// Packs results directories into an archive. `license` is a URL or text.
///
/// # Errors
/// Fails if a directory lacks its numbers or its provenance record, or if a file has changed since the run.
pub fn pack(folders: &[PathBuf], license: Option<&str>) -> Result<RecordArchive> {
    let mut omitted_files = 0;
    let mut packed =
        folders.iter().map(|folder| read_folder(folder, &mut omitted_files)).collect::<Result<Vec<_>>>()?;
    packed.sort_by(|one, other| one.name.cmp(&other.name));
    let names: BTreeSet<&str> = packed.iter().map(|folder| folder.name.as_str()).collect();
    if let Some(pair) = packed.windows(2).find(|two| two[0].name == two[1].name) {
        return Err(Error::bad_input("two results folders have the same name")
            .at(pair[0].name.clone())
            .expected("one folder per artifact and profile")
            .found(format!("{} folders with {} names", packed.len(), names.len()))
            .hint("pack the folders into separate files"));
    }
    let all = packed
        .iter()
        .flat_map(|folder| folder.files.iter().map(move |file| (format!("{}/{}", folder.name, file.name), file)));
    let all: Vec<(String, &PackedFile)> = all.collect();
    // Each line has 67 bytes in addition to the name: 64 hexadecimal digits, two spaces and a newline.
    let manifest_bytes = all.iter().map(|(name, _)| name.len() + 67).sum::<usize>() + METADATA.len() + 67;
    let metadata = format!("{:#}\n", build_metadata(&packed, license, manifest_bytes));
    let hashes = all.iter().map(|(name, file)| format!("{}  {name}\n", file.hash));
    let manifest: String =
        [format!("{}  {METADATA}\n", sha256::of_bytes(&metadata))].into_iter().chain(hashes).collect();
    let folder_names = packed.iter().map(|folder| folder.name.clone()).collect();
    let mut entries = vec![(METADATA.to_owned(), metadata.into_bytes()), (MANIFEST.to_owned(), manifest.into_bytes())];
    for PackedFolder { name, files, .. } in packed {
        // RO-Crate requires an entry for each described directory.
        entries.push((format!("{name}/"), Vec::new()));
        entries.extend(files.into_iter().map(|file| (format!("{name}/{}", file.name), file.bytes)));
    }
    let bytes = write_zip(&entries).map_err(|error| Error::job("cannot write the archive").found(error.to_string()))?;
    Ok(RecordArchive { bytes, folders: folder_names, entries: entries.len(), omitted_files })
}

/// Writes the entries in order to a zip file without timestamps or host-specific metadata.
fn write_zip(entries: &[(String, Vec<u8>)]) -> zip::result::ZipResult<Vec<u8>> {
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
