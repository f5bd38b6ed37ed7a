//! Reads the files of a model directory that an export copies. Links are checked, because a link in an untrusted
//! directory could point to one of the user's private files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::files::regular;

/// Reads a file in a model directory, or returns `None` if it does not exist.
///
/// # Errors
/// Fails with a bad-input error if the file is a link to a file outside the directory, or a `.json` file without valid
/// JSON.
pub(super) fn read(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(path) = find(folder, name)? else { return Ok(None) };
    let bytes = regular::read(&path)?;
    if path.extension().is_some_and(|ending| ending == "json")
        && let Err(error) = serde_json::from_slice::<Value>(&bytes)
    {
        return Err(Error::bad_input("malformed JSON").at(path.display()).found(error));
    }
    Ok(Some(bytes))
}

/// Returns the path of a file in a model directory, or `None` if the file does not exist.
///
/// # Errors
/// Fails with a bad-input error if the file is a link to a file outside the directory. In the hub cache, links may also
/// point to other directories of the model's repository.
pub(super) fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    let path = folder.join(name);
    if !path.is_file() {
        return Ok(None);
    }
    let target = fs::canonicalize(&path).map_err(|error| Error::io("open", &path, &error))?;
    let folder = fs::canonicalize(folder).map_err(|error| Error::folder_io("open", folder, &error))?;
    if target.starts_with(find_repository(&folder).unwrap_or(&folder)) {
        return Ok(Some(path));
    }
    Err(Error::bad_input("a model file is a symlink to a file outside its folder")
        .at(path.display())
        .expected(format!("a file in {}", folder.display()))
        .found(target.display())
        .hint("copy the file into the folder if it belongs to the model"))
}

/// Returns the repository directory for a snapshot in the hub cache. The files in a snapshot are links to the `blobs`
/// directory next to `snapshots`.
fn find_repository(folder: &Path) -> Option<&Path> {
    let snapshots = folder.ancestors().find(|above| above.file_name().is_some_and(|name| name == "snapshots"))?;
    let repository = snapshots.parent()?;
    repository.file_name()?.to_str()?.starts_with("models--").then_some(repository)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_within_the_model_and_its_repository() {
        let root = tempfile::tempdir().unwrap();
        let repository = root.path().join("models--a--b");
        let snapshot = repository.join("snapshots/0123");
        for folder in [&snapshot, &repository.join("blobs"), &root.path().join("plain/deep")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(root.path().join("secret"), "{}").unwrap();
        fs::write(repository.join("blobs/cafe"), "{}").unwrap();
        fs::write(root.path().join("plain/deep/own.json"), "{}").unwrap();
        fs::write(root.path().join("plain/text.json"), "root:x:0:0").unwrap();
        let plain = root.path().join("plain");
        for (folder, name, target, copied) in [
            (&snapshot, "vocab.json", "../../blobs/cafe", true),
            (&snapshot, "out.json", "../../../secret", false),
            (&plain, "inner.json", "deep/own.json", true),
            (&plain, "out.json", "../secret", false),
            (&plain, "blob.json", "../models--a--b/blobs/cafe", false),
            (&plain, "chain.json", "out.json", false),
        ] {
            symlink(target, folder.join(name)).unwrap();
            match read(folder, name) {
                Ok(bytes) => assert!(copied && bytes.unwrap() == b"{}", "{name} -> {target}"),
                Err(error) => {
                    let text = error.to_string();
                    let names = text.contains(name) && text.contains("a file outside its folder");
                    assert!(!copied && error.exit_code() == 2 && names, "{name} -> {target}: {text}");
                }
            }
        }
        assert!(read(&plain, "text.json").unwrap_err().to_string().contains("malformed JSON"));
        assert!(read(&plain, "absent.json").unwrap().is_none());
    }
}
