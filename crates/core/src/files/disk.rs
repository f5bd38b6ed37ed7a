//! How much room a disk has.

use std::path::Path;

/// Bytes that can still be written to the disk of a folder; none where the system does not tell.
pub fn free(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::statvfs(folder).ok()?;
        Some(disk.f_bavail * disk.f_frsize)
    }
    #[cfg(not(unix))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_room_and_one_that_is_not_there_has_none_to_tell() {
        let root = tempfile::tempdir().unwrap();
        assert!(cfg!(not(unix)) || free(root.path()).is_some_and(|bytes| bytes > 0));
        assert_eq!(free(&root.path().join("none")), None);
    }
}
