//! Access to user-provided paths, restricted to regular files. Reading from a pipe or device could block or never end.

use std::fs::{self, File, FileType};
use std::io::{self, Read, Seek};
use std::path::Path;

use super::limit::TextLimit;
use crate::error::{Error, Result};

/// Opens a regular file for reading.
///
/// # Errors
/// Fails with exit code 2 if the path is a folder, pipe, socket or device. Fails with exit code 3 if the file cannot be
/// opened or is an unfetched Git LFS pointer.
pub fn open(path: &Path) -> Result<File> {
    // Check before opening, because opening a pipe waits for a writer.
    let metadata = fs::metadata(path).map_err(|error| Error::io("open", path, &error))?;
    let kind = metadata.file_type();
    if !kind.is_file() {
        return Err(Error::bad_input("cannot read from this path")
            .at(path.display())
            .expected("a regular file")
            .found(file_type_name(kind))
            .hint(if kind.is_dir() {
                "choose a file in the folder"
            } else {
                "save the data to a regular file first, because inputs are read several times"
            }));
    }
    let mut file = File::open(path).map_err(|error| Error::io("open", path, &error))?;
    if metadata.len() <= MAX_POINTER_BYTES
        && is_lfs_pointer(&mut file).map_err(|error| Error::io("open", path, &error))?
    {
        return Err(Error::missing("the file is only a Git LFS pointer")
            .at(path.display())
            .expected("the file itself")
            .found(format!("{} bytes that begin with `{LFS_POINTER}`", metadata.len()))
            .hint("run `git lfs install` and `git lfs pull` in its repository, or download the file"));
    }
    Ok(file)
}

/// First bytes of a Git LFS pointer file.
const LFS_POINTER: &str = "version https://git-lfs";
/// Maximum size of a pointer: the Git LFS specification requires less than 1,024 bytes.
const MAX_POINTER_BYTES: u64 = 1023;

/// Returns whether a file is a Git LFS pointer. Rewinds the file afterwards.
fn is_lfs_pointer(file: &mut File) -> io::Result<bool> {
    let mut beginning = Vec::new();
    (&mut *file).take(LFS_POINTER.len() as u64).read_to_end(&mut beginning)?;
    file.rewind()?;
    Ok(beginning == LFS_POINTER.as_bytes())
}

/// Opens a regular file, rejecting pipes without blocking. Unlike [`open`], this function does not detect Git LFS
/// pointers. It needs one fewer system call, which matters on network file systems.
///
/// # Errors
/// Fails if the file cannot be opened. Fails with kind `InvalidData`, naming the file type, if it is not a regular
/// file.
pub fn file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, rustix::fs::OFlags::NONBLOCK.bits() as i32);
    #[cfg(not(target_os = "linux"))]
    check_regular(fs::metadata(path)?.file_type())?;
    let file = options.open(path)?;
    check_regular(file.metadata()?.file_type())?;
    Ok(file)
}

fn check_regular(kind: FileType) -> io::Result<()> {
    if kind.is_file() { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, file_type_name(kind))) }
}

/// Returns the file type if a path exists and is not a regular file.
pub fn non_regular_kind(path: &Path) -> Option<&'static str> {
    fs::metadata(path).ok().map(|data| data.file_type()).filter(|kind| !kind.is_file()).map(file_type_name)
}

/// Reads a settings file or a JSON file into memory.
///
/// # Errors
/// Fails in the same cases as [`open`], or if the file exceeds the size limit or cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let mut file = open(path)?;
    let metadata = file.metadata().map_err(|error| Error::io("read", path, &error))?;
    // Check the size first, because a sparse file takes no disk space but would fill memory.
    TextLimit::current().for_json().check(path, metadata.len())?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| Error::io("read", path, &error))?;
    Ok(bytes)
}

/// Returns the name of a file type for messages.
#[cfg(unix)]
pub(super) fn file_type_name(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_symlink() => "a link",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
pub(super) fn file_type_name(kind: FileType) -> &'static str {
    if kind.is_dir() { "a folder" } else { "a special file" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_oversized_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "abc").unwrap();
        assert_eq!(read(&path).unwrap(), b"abc");
        fs::File::create(folder.path().join("hole")).unwrap().set_len(1 << 40).unwrap();
        let error = read(&folder.path().join("hole")).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("1099.51 GB"), "{error}");
        let error = read(&folder.path().join("none")).unwrap_err();
        assert!(error.exit_code() == 3 && error.to_string().contains("none"), "{error}");
    }

    #[test]
    fn lfs_pointer_is_rejected_and_similar_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 27820096\n";
        fs::write(&path, pointer).unwrap();
        let error = read(&path).unwrap_err();
        assert!(error.exit_code() == 3 && error.to_string().contains("git lfs pull"), "{error}");
        for content in [&pointer[..20], &format!("{pointer}{}", " ".repeat(1024)), ""] {
            fs::write(&path, content).unwrap();
            assert_eq!(read(&path).unwrap(), content.as_bytes());
        }
    }

    #[cfg(unix)]
    #[test]
    fn pipes_devices_and_folders_are_rejected_with_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (path, kind) in
            [(pipe.as_path(), "a pipe"), (Path::new("/dev/zero"), "a device"), (folder.path(), "a folder")]
        {
            let error = read(path).unwrap_err();
            let text = error.to_string();
            assert!(error.exit_code() == 2 && text.contains(kind) && text.contains(&*path.to_string_lossy()), "{text}");
            let error = file(path).unwrap_err();
            assert!(error.kind() == io::ErrorKind::InvalidData && error.to_string() == kind, "{error}");
            assert_eq!(non_regular_kind(path), Some(kind));
        }
    }
}
