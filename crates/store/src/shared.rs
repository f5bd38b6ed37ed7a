//! Sharing modes of a store, which set file permissions regardless of the umask, like git's `core.sharedRepository`.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Users who may read and write a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreSharing {
    /// Permissions follow the umask of the writing process.
    #[default]
    Umask,
    /// The folder's group may read and write.
    Group,
    /// The group may read and write, others may read.
    All,
}

impl StoreSharing {
    /// Names of the modes that the command line accepts.
    pub const NAMES: [&str; 2] = ["group", "all"];

    /// Returns the permission bits added to a file.
    const fn permission_bits(self) -> u32 {
        match self {
            Self::Umask => 0,
            Self::Group => 0o660,
            Self::All => 0o664,
        }
    }

    /// Returns the mode to set for a file, given its current mode. Users who may read an executable may also run it.
    fn file_mode(self, mode: u32) -> u32 {
        let mode = mode | self.permission_bits();
        if mode & 0o100 == 0 { mode } else { mode | ((mode & self.permission_bits() & 0o444) >> 2) }
    }

    /// Returns the mode to set for a folder, given its current mode. It includes setgid so that new entries inherit the
    /// group.
    fn folder_mode(self, mode: u32) -> u32 {
        let permission_bits = self.permission_bits();
        if permission_bits == 0 { mode } else { mode | permission_bits | ((permission_bits & 0o444) >> 2) | 0o2000 }
    }

    /// Sets the mode of a new file. This has no effect on file systems without modes.
    pub(super) fn share_file(self, file: &File) {
        self.set_mode(file.metadata(), Self::file_mode, |permissions| file.set_permissions(permissions));
    }

    pub(super) fn share_path(self, path: &Path) {
        let mode = if path.is_dir() { Self::folder_mode } else { Self::file_mode };
        self.set_mode(fs::symlink_metadata(path), mode, |permissions| fs::set_permissions(path, permissions));
    }

    /// Creates a folder and its missing parents, and sets their modes.
    pub(super) fn make_folder(self, path: &Path) -> io::Result<()> {
        if self == Self::Umask {
            return fs::create_dir_all(path);
        }
        // Skip the last ancestor of a relative path, which is empty.
        let missing = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        let missing: Vec<&Path> = missing.collect();
        for folder in missing.into_iter().rev() {
            match fs::create_dir(folder) {
                Ok(()) => self.share_path(folder),
                // Another process created the folder concurrently.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sets the modes of this user's files and folders below a folder. Links are skipped.
    pub(super) fn share_all(self, folder: &Path) {
        self.share_path(folder);
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.share_all(&entry.path()),
                Ok(kind) if kind.is_file() => self.share_path(&entry.path()),
                _ => {}
            }
        }
    }

    /// Gives a new file the permissions of its folder if the folder belongs to a shared store. Used for files that are
    /// not written through a [`Store`](crate::Store).
    pub fn inherit_folder_mode(path: &Path) {
        #[cfg(unix)]
        if let Some(folder) = path.parent().and_then(|folder| fs::metadata(folder).ok()) {
            use std::os::unix::fs::PermissionsExt;
            let mode = folder.permissions().mode();
            let shared = match (mode & 0o2020 == 0o2020, mode & 0o4 != 0) {
                (true, true) => Self::All,
                (true, false) => Self::Group,
                (false, _) => Self::Umask,
            };
            shared.share_path(path);
        }
    }

    #[cfg(unix)]
    fn set_mode(
        self,
        data: io::Result<fs::Metadata>,
        shared_mode: impl Fn(Self, u32) -> u32,
        set: impl FnOnce(fs::Permissions) -> io::Result<()>,
    ) {
        use std::os::unix::fs::PermissionsExt;
        let Ok(data) = data else { return };
        let mode = data.permissions().mode() & 0o7777;
        let is_link = data.file_type().is_symlink();
        let expected = shared_mode(self, mode);
        if expected != mode && !is_link {
            set(fs::Permissions::from_mode(expected)).ok();
        }
    }

    #[cfg(not(unix))]
    fn set_mode(
        self,
        _: io::Result<fs::Metadata>,
        _: impl Fn(Self, u32) -> u32,
        _: impl FnOnce(fs::Permissions) -> io::Result<()>,
    ) {
    }
}

ghostlab_core::names!(StoreSharing: Umask = "umask", Group = "group", All = "all");

impl FromStr for StoreSharing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "group" => Ok(Self::Group),
            "all" => Ok(Self::All),
            _ => Err(format!("one of {}", Self::NAMES.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_file_modes_match_git_for_any_umask() {
        // Expected values: `git init --shared=group` and `--shared=all` with umask 077 and 022.
        for (shared, file, folder) in [
            (StoreSharing::Group, [(0o600, 0o660), (0o644, 0o664), (0o700, 0o770)], [(0o700, 0o2770), (0o755, 0o2775)]),
            (StoreSharing::All, [(0o600, 0o664), (0o644, 0o664), (0o700, 0o775)], [(0o700, 0o2775), (0o755, 0o2775)]),
            (StoreSharing::Umask, [(0o600, 0o600), (0o644, 0o644), (0o700, 0o700)], [(0o700, 0o700), (0o755, 0o755)]),
        ] {
            for (mode, expected_mode) in file {
                assert_eq!(shared.file_mode(mode), expected_mode, "{shared}: a file of {mode:o}");
            }
            for (mode, expected_mode) in folder {
                assert_eq!(shared.folder_mode(mode), expected_mode, "{shared}: a folder of {mode:o}");
            }
        }
    }
}
