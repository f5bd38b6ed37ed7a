//! Files that are installed with the program or embedded in it, and the location of user data (layer 0 of the
//! architecture). The files are the experiments, and the texts, tasks and backbones of the `tiny` profile.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, Result};

#[derive(Debug)]
pub struct EmbeddedFiles {
    /// Hash of the names and contents of the files. The directory of the unpacked files is named after it.
    pub id: &'static str,
    /// Relative path and content of each file.
    pub files: &'static [(&'static str, &'static [u8])],
}

static EMBEDDED: OnceLock<&'static EmbeddedFiles> = OnceLock::new();

/// Registers the files embedded in the program. Must be called before any other function in this module.
pub fn register_embedded(files: &'static EmbeddedFiles) {
    EMBEDDED.get_or_init(|| files);
}

/// Returns `share/ghostlab` below the installation prefix of the program, or else the directory into which
/// [`unpack_installed`] unpacked the embedded files. Returns `None` if neither exists.
pub fn installed_folder() -> Option<PathBuf> {
    let installed = share_folder_of_program().filter(|folder| has_experiments(folder));
    installed.or_else(|| unpacked_folder(EMBEDDED.get()?).filter(|folder| has_experiments(folder)))
}

fn has_experiments(folder: &Path) -> bool {
    folder.join(EXPERIMENTS).is_dir()
}

fn share_folder_of_program() -> Option<PathBuf> {
    let program = fs::canonicalize(std::env::current_exe().ok()?).ok()?;
    Some(program.parent()?.parent()?.join("share/ghostlab"))
}

pub fn experiments() -> Option<PathBuf> {
    Some(installed_folder()?.join(EXPERIMENTS))
}

/// Returns whether the file with the given relative path is embedded.
pub fn is_embedded(name: &str) -> bool {
    EMBEDDED.get().is_some_and(|embedded| embedded.files.iter().any(|(file_name, _)| *file_name == name))
}

/// Returns the directory of the installed files. If there is none, the embedded files are first unpacked into the
/// user's data directory. Returns `None` if no files are embedded or there is no home directory.
///
/// # Errors
/// Fails if the disk is full or the user's data directory is not writable.
pub fn unpack_installed() -> Result<Option<PathBuf>> {
    if let Some(folder) = installed_folder() {
        return Ok(Some(folder));
    }
    let Some(embedded) = EMBEDDED.get().filter(|embedded| !embedded.files.is_empty()) else { return Ok(None) };
    let Some(folder) = unpacked_folder(embedded) else { return Ok(None) };
    let unpacked = unpack(embedded, &folder);
    unpacked.map_err(|error| error.hint("set XDG_DATA_HOME to another folder for the bundled data"))?;
    Ok(Some(folder))
}

/// Unpacks the embedded files into a new directory.
fn unpack(embedded: &EmbeddedFiles, folder: &Path) -> Result<()> {
    let above = folder.parent().unwrap_or(folder);
    fs::create_dir_all(above).map_err(|error| Error::folder_io("write to", above, &error))?;
    // Unpack into a temporary directory and rename it, because another process may unpack the files at the same time.
    let draft = tempfile::Builder::new().prefix(".share-").tempdir_in(above);
    let draft = draft.map_err(|error| Error::folder_io("write to", above, &error))?;
    for (name, bytes) in embedded.files {
        let path = draft.path().join(name);
        let inner = path.parent().unwrap_or(draft.path());
        fs::create_dir_all(inner).map_err(|error| Error::folder_io("create", inner, &error))?;
        fs::write(&path, bytes).map_err(|error| Error::io("write", &path, &error))?;
    }
    match fs::rename(draft.path(), folder) {
        Err(error) if !has_experiments(folder) => Err(Error::folder_io("create", folder, &error)),
        _ => Ok(()),
    }
}

fn unpacked_folder(embedded: &EmbeddedFiles) -> Option<PathBuf> {
    Some(user_data_folder()?.join(format!("share-{}", embedded.id)))
}

/// Returns the program's user data directory, in `$XDG_DATA_HOME` or the equivalent on this system. Returns `None` if
/// there is no home directory.
pub fn user_data_folder() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    Some(
        named
            .or_else(|| {
                if cfg!(windows) {
                    return std::env::var_os("LOCALAPPDATA").map(PathBuf::from);
                }
                let home = std::env::home_dir().filter(|home| home.is_absolute())?;
                Some(home.join(if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/share" }))
            })?
            .join("ghostlab"),
    )
}

const EXPERIMENTS: &str = "experiments";
