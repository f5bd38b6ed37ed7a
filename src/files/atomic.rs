//! Files that are either whole or not there.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// Creates `dir` if need be and proves that files can be written there, so that a run does not lose its results at its
/// very end. `names` are the files to come: a folder of such a name would be in their way.
///
/// # Errors
/// Exit code 3, naming the folder.
pub fn ensure_writable(dir: &Path, names: &[&str]) -> Result<()> {
    fs::create_dir_all(dir).map_err(|error| refused(dir, &error))?;
    if let Some(name) = names.iter().find(|name| dir.join(name).is_dir()) {
        return Err(Error::missing("the results cannot be written")
            .at(dir.join(name).display().to_string())
            .expected("a file, or nothing")
            .found("a folder")
            .hint("move the folder away"));
    }
    let mut probe = temporary(dir, "probe").map_err(|error| refused(dir, &error))?;
    // Creating a file may work on a full disk; a byte that must reach it does not.
    probe.write_all(b"x").and_then(|()| probe.as_file().sync_all()).map_err(|error| refused(dir, &error))
}

/// Writes a file through a temporary one beside it, so that a reader, or a crash, never meets half of it.
///
/// # Errors
/// What `fill` reports, or exit code 3 naming the file.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let failed = |error: &std::io::Error| Error::io("write", path, error);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mut temporary = temporary(dir, &name).map_err(|error| failed(&error))?;
    fill(temporary.as_file_mut())?;
    temporary.as_file().sync_all().map_err(|error| failed(&error))?;
    temporary.persist(path).map_err(|error| failed(&error.error))?;
    Ok(())
}

fn temporary(dir: &Path, name: &str) -> std::io::Result<NamedTempFile> {
    let prefix = format!(".{name}.");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix);
    // Temporary files are private by default; a result is as readable as any other file the user makes.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(dir)
}

fn refused(dir: &Path, error: &std::io::Error) -> Error {
    Error::missing("the results folder cannot be written to")
        .at(dir.display().to_string())
        .expected("a folder in which files can be created")
        .found(error.to_string())
        .hint("free the path or some room, mend the folder's rights, or choose another folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_and_left_clean() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        ensure_writable(&dir, &["results.csv"]).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_is_refused_before_the_run() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let error = ensure_writable(&root.path().join("file/results"), &[]).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().starts_with("the results folder cannot be written to\n  where:"), "{error}");
        fs::create_dir(root.path().join("run.json")).unwrap();
        let error = ensure_writable(root.path(), &["run.json"]).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("found:    a folder"), "{error}");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        fs::write(&path, "old").unwrap();
        let error = write_atomically(&path, |file| {
            file.write_all(b"ne").unwrap();
            Err(Error::job("stopped"))
        });
        assert!(error.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        write_atomically(&path, |file| file.write_all(b"new").map_err(|e| Error::io("write", &path, &e))).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn a_write_into_no_folder_names_the_file() {
        let root = tempfile::tempdir().unwrap();
        let error = write_atomically(&root.path().join("none/x.csv"), |_| Ok(())).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("x.csv"), "{error}");
    }
}
