//! Free disk space and file system types.

use std::fs::File;
use std::path::Path;

/// Returns the folder if it exists, or otherwise its nearest existing ancestor.
#[cfg(unix)]
pub(super) fn nearest_existing(folder: &Path) -> &Path {
    let found = folder.ancestors().find(|folder| folder.exists());
    found.unwrap_or(Path::new(if folder.is_absolute() { "/" } else { "." }))
}

/// Returns the number of free bytes on the file system of a folder, or `None` if it is unknown. The folder need not
/// exist.
pub fn free(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::statvfs(nearest_existing(folder)).ok()?;
        Some(disk.f_bavail * disk.f_frsize)
    }
    #[cfg(not(unix))]
    None
}

/// Returns the number of free inodes on the file system of a folder, or `None` if it is unlimited or unknown.
pub fn free_inodes(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::statvfs(nearest_existing(folder)).ok()?;
        // File systems that allocate inodes dynamically report 0.
        (disk.f_files > 0).then_some(disk.f_favail)
    }
    #[cfg(not(unix))]
    None
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    pub name: &'static str,
    /// Whether other machines may write to the file system.
    pub shared: bool,
    /// Whether files exist only in memory and are lost at shutdown.
    pub memory: bool,
}

/// Magic numbers from `<linux/magic.h>` and the headers of the file systems.
#[cfg(target_os = "linux")]
const FILE_SYSTEMS: [(u32, FileSystem); 18] = [
    (0xef53, FileSystem::local("ext4")),
    (0x5846_5342, FileSystem::local("XFS")),
    (0x9123_683e, FileSystem::local("Btrfs")),
    (0xf2f5_2010, FileSystem::local("F2FS")),
    (0x2fc1_2fc1, FileSystem::local("ZFS")),
    (0x794c_7630, FileSystem::local("overlayfs")),
    (0xca45_1a4e, FileSystem::local("bcachefs")),
    (0x4d44, FileSystem::local("FAT")),
    (0x0102_1994, FileSystem { memory: true, ..FileSystem::local("tmpfs") }),
    (0x8584_58f6, FileSystem { memory: true, ..FileSystem::local("ramfs") }),
    (0x9584_58f6, FileSystem { memory: true, ..FileSystem::local("hugetlbfs") }),
    (0x6969, FileSystem::shared("NFS")),
    (0x517b, FileSystem::shared("SMB")),
    (0xff53_4d42, FileSystem::shared("CIFS")),
    (0xfe53_4d42, FileSystem::shared("SMB2")),
    (0x0bd0_0bd0, FileSystem::shared("Lustre")),
    (0x4750_4653, FileSystem::shared("GPFS")),
    (0x00c3_6400, FileSystem::shared("Ceph")),
];

impl FileSystem {
    const fn local(name: &'static str) -> Self {
        Self { name, shared: false, memory: false }
    }

    const fn shared(name: &'static str) -> Self {
        Self { name, shared: true, memory: false }
    }
}

/// Returns the file system of a folder, or `None` if it is unknown.
#[cfg(target_os = "linux")]
pub fn file_system(folder: &Path) -> Option<FileSystem> {
    identify(&rustix::fs::statfs(folder).ok()?)
}

#[cfg(target_os = "linux")]
pub(super) fn file_system_of(file: &File) -> Option<FileSystem> {
    identify(&rustix::fs::fstatfs(file).ok()?)
}

#[cfg(target_os = "linux")]
fn identify(stat: &rustix::fs::StatFs) -> Option<FileSystem> {
    let magic = stat.f_type as u32;
    FILE_SYSTEMS.iter().find(|(known, _)| *known == magic).map(|(_, system)| *system)
}

#[cfg(not(target_os = "linux"))]
pub fn file_system(_: &Path) -> Option<FileSystem> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn file_system_of(_: &File) -> Option<FileSystem> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_of_missing_folder_is_that_of_its_parent() {
        let root = tempfile::tempdir().unwrap();
        assert!(cfg!(not(unix)) || free(root.path()).is_some_and(|bytes| bytes > 0));
        let later = root.path().join("none/below");
        assert_eq!(free(&later).is_some(), cfg!(unix));
        assert_eq!(free_inodes(&later).is_some(), free_inodes(root.path()).is_some());
    }
}
