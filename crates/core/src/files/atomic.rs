//! Atomic creation of files and folders.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::{NamedTempFile, TempDir};

use super::owner::Owner;
use super::parent_folder;
use crate::error::{Error, Result};

/// Age after which an unchanged temporary file is considered abandoned if its owner process cannot be checked. Network
/// file systems cache file attributes for a shorter time.
pub const STALE_AFTER: Duration = Duration::from_secs(180);

const TEMPORARY_SUFFIX: &str = ".ghostlab-tmp";

/// Creates `dir` if necessary and checks that files can be written there, so that a run fails at the start rather than
/// when it saves its results. `names` are the files to write. None of them may exist as a folder. Also removes
/// temporary files of killed processes ([`sweep`]).
///
/// # Errors
/// Fails with exit code 3, naming the folder.
pub fn ensure_writable(dir: &Path, names: &[&str]) -> Result<()> {
    fs::create_dir_all(dir).map_err(|error| unwritable_error(dir, &error))?;
    if let Some(name) = names.iter().find(|name| dir.join(name).is_dir()) {
        return Err(Error::missing("cannot write the results")
            .at(dir.join(name).display())
            .expected("a file, or an unused name")
            .found("a folder")
            .hint("move or rename the folder"));
    }
    let mut probe = temporary(dir, "probe").map_err(|error| unwritable_error(dir, &error))?;
    // Creating a file may succeed even on a full disk, so write and sync a byte as well.
    probe.write_all(b"x").and_then(|()| probe.as_file().sync_all()).map_err(|error| unwritable_error(dir, &error))?;
    sweep(dir);
    Ok(())
}

/// Predicts from the permissions whether [`ensure_writable`] would succeed. Does not write anything.
///
/// # Errors
/// Fails with the same errors as [`ensure_writable`].
pub fn check_writable_folder(dir: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        use rustix::fs::{Access, access};
        use rustix::io::Errno;

        use super::disk::nearest_existing;
        let existing = nearest_existing(dir);
        let found = match existing.is_dir() {
            true => access(existing, Access::WRITE_OK | Access::EXEC_OK),
            false => Err(if existing == dir { Errno::EXIST } else { Errno::NOTDIR }),
        };
        found.map_err(|error| unwritable_error(dir, &error.into()))?;
    }
    #[cfg(not(unix))]
    let _ = dir;
    Ok(())
}

/// Returns whether a file name has the format that [`temporary`] uses.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX)
}

/// Removes temporary files and folders left by killed processes.
pub fn sweep(dir: &Path) {
    let entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
    let now = OnceCell::new();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let tag = name
            .strip_suffix(TEMPORARY_SUFFIX)
            .filter(|_| is_temporary(&name))
            .and_then(|name| name.rsplit('.').nth(1));
        // Skip files that have the suffix but were not created by `temporary`.
        let Some(tag) = tag.filter(|tag| Owner::is_tag(tag)) else { continue };
        let is_abandoned = match Owner::is_tag_alive(tag) {
            Some(lives) => !lives,
            None => age(&entry.path(), *now.get_or_init(|| file_system_time(dir))).is_some_and(|age| age > STALE_AFTER),
        };
        if is_abandoned {
            fs::remove_file(entry.path()).or_else(|_| fs::remove_dir_all(entry.path())).ok();
        }
    }
}

/// Returns the current time according to a folder's file system. The clock of a file server may differ from this
/// machine's clock.
pub fn file_system_time(dir: &Path) -> SystemTime {
    let now = temporary(dir, "clock").and_then(|mut file| {
        file.write_all(b"x")?;
        file.as_file().sync_all()?;
        file.as_file().metadata()?.modified()
    });
    // Fall back to the local clock if the folder is read-only.
    now.unwrap_or_else(|_| SystemTime::now())
}

/// Returns the time from the last modification of a file or folder to `now`, or `None` if it is unknown or negative.
pub fn age(path: &Path, now: SystemTime) -> Option<Duration> {
    let changed = fs::metadata(path).and_then(|data| data.modified()).ok()?;
    now.duration_since(changed).ok()
}

/// Writes a file through a temporary file in the same folder, so that readers and crashes never see partial content.
///
/// # Errors
/// Propagates errors from `fill`. Fails with exit code 3, naming the file, if it cannot be written.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    StagedFile::fill(path, fill)?.publish()
}

/// Writes bytes to a file with [`write_atomically`].
///
/// # Errors
/// Fails with exit code 3, naming the file.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomically(path, |file| file.write_all(bytes).map_err(|error| Error::io("write", path, &error)))
}

/// Completely written file that is not yet published. Dropping it removes the temporary file.
#[derive(Debug)]
pub struct StagedFile {
    temporary: NamedTempFile,
    path: PathBuf,
}

impl StagedFile {
    /// Writes bytes to a temporary file next to `path`. Creates the folder if necessary.
    ///
    /// # Errors
    /// Fails with exit code 3, naming the file.
    pub fn stage(path: &Path, bytes: &[u8]) -> Result<Self> {
        let write_error = |error: std::io::Error| Error::io("write", path, &error);
        fs::create_dir_all(parent_folder(path)).map_err(write_error)?;
        Self::fill(path, |file| file.write_all(bytes).map_err(write_error))
    }

    fn fill(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<Self> {
        let write_error = |error: std::io::Error| Error::io("write", path, &error);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut temporary = temporary(parent_folder(path), &name).map_err(write_error)?;
        fill(temporary.as_file_mut())?;
        temporary.as_file().sync_all().map_err(write_error)?;
        Ok(Self { temporary, path: path.to_owned() })
    }

    /// Renames the temporary file to its final path.
    ///
    /// # Errors
    /// Fails with exit code 3, naming the file.
    pub fn publish(self) -> Result<()> {
        let Self { temporary, path } = self;
        temporary.persist(&path).map(drop).map_err(|error| Error::io("write", &path, &error.error))
    }
}

/// Creates a file in `dir` that is removed on drop, unless it is persisted ([`NamedTempFile::persist`]). [`sweep`]
/// removes leftovers of killed processes.
///
/// # Errors
/// Fails if the file cannot be created.
pub fn temporary(dir: &Path, name: &str) -> std::io::Result<NamedTempFile> {
    with_temporary_name(name, 0o666, |builder| builder.tempfile_in(dir))
}

/// Like [`temporary`], but creates a folder. The folder is removed on drop unless it is kept ([`TempDir::keep`]).
///
/// # Errors
/// Fails if the folder cannot be created.
pub fn temporary_folder(dir: &Path, name: &str) -> std::io::Result<TempDir> {
    with_temporary_name(name, 0o777, |builder| builder.tempdir_in(dir))
}

/// Tries to exchange two folders atomically. Returns whether the exchange succeeded.
#[cfg(target_os = "linux")]
pub fn try_exchange(one: &Path, other: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok()
}

#[cfg(not(target_os = "linux"))]
pub fn try_exchange(_: &Path, _: &Path) -> bool {
    false
}

fn with_temporary_name<T>(
    name: &str,
    mode: u32,
    make: impl FnOnce(&mut tempfile::Builder<'_, '_>) -> std::io::Result<T>,
) -> std::io::Result<T> {
    // Most file systems limit names to 255 bytes.
    let name: String = name.chars().take(40).collect();
    let prefix = format!(".{name}.{}.", Owner::current().tag());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(TEMPORARY_SUFFIX);
    // Temporary files are private by default, but results should have the user's usual permissions.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    make(&mut builder)
}

fn unwritable_error(dir: &Path, error: &std::io::Error) -> Error {
    Error::missing("cannot write to the results folder")
        .at(dir.display())
        .expected("a folder in which files can be created")
        .found(error)
        .hint("remove the file at this path, free disk space, fix the folder's permissions, or choose another folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writability_check_creates_an_empty_folder() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        ensure_writable(&dir, &["results.csv"]).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn unwritable_output_folder_is_rejected() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let error = ensure_writable(&root.path().join("file/results"), &[]).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().starts_with("cannot write to the results folder\n  where:"), "{error}");
        fs::create_dir(root.path().join("run.json")).unwrap();
        let error = ensure_writable(root.path(), &["run.json"]).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("found:    a folder"), "{error}");
    }

    #[test]
    fn failed_write_keeps_the_old_file() {
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
        write_whole(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn sweep_removes_only_temporary_files_of_dead_processes() {
        let root = tempfile::tempdir().unwrap();
        let this = Owner::current();
        let remote = Owner { system: Some("another machine".into()), ..this.clone() };
        let killed = temporary_path(&Owner { pid: 99_999_999, ..this.clone() }, "results.csv", root.path());
        let living = temporary_path(&this, "run.json", root.path());
        let remote_dead = temporary_path(&remote, "old", root.path());
        let remote_living = temporary_path(&remote, "new", root.path());
        let others = root.path().join(".results.csv.swp");
        let theirs = ["mine.5.ghostlab-tmp", ".notes.ghostlab-tmp", ".notes.of.mine.ghostlab-tmp"];
        let theirs = theirs.map(|name| root.path().join(name));
        let all = [&killed, &living, &remote_dead, &remote_living, &others];
        for path in all.into_iter().chain(&theirs) {
            fs::write(path, "half").unwrap();
        }
        for path in [&remote_dead].into_iter().chain(&theirs) {
            let old = File::options().append(true).open(path).unwrap();
            old.set_modified(SystemTime::now() - STALE_AFTER * 2).unwrap();
        }
        let folder = temporary_path(&Owner { pid: 99_999_999, ..this.clone() }, "backbone", root.path());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("config.json"), "half").unwrap();
        ensure_writable(root.path(), &[]).unwrap();
        assert!(!folder.exists(), "the folder was not removed");
        assert!(!killed.exists() && !remote_dead.exists(), "files of dead processes remain");
        assert!(
            living.exists() && remote_living.exists() && others.exists(),
            "files of running or unknown processes were removed"
        );
        assert!(theirs.iter().all(|path| path.exists()), "an unrelated file with the suffix was removed");
    }

    fn temporary_path(owner: &Owner, name: &str, root: &Path) -> PathBuf {
        root.join(format!(".{name}.{}.abcdef{TEMPORARY_SUFFIX}", owner.tag()))
    }

    #[test]
    fn write_error_for_missing_folder_names_the_file() {
        let root = tempfile::tempdir().unwrap();
        let error = write_atomically(&root.path().join("none/x.csv"), |_| Ok(())).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("x.csv"), "{error}");
    }
}
