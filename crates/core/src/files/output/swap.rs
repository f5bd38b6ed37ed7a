//! Replacement of an output folder, and recovery after crashes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::manifest::{FileState, HashCache, Manifest};
use crate::files::atomic::is_temporary;
use crate::files::name;
use crate::files::owner::Owner;

/// Suffix of drafts. [`OLD`] is the suffix of replaced folders that are being removed.
pub(super) const DRAFT: &str = ".part";
pub(super) const OLD: &str = ".old";
/// Marker for an incomplete draft, whose whole content belongs to this program.
pub(super) const MARK: &str = ".ghostlab.draft";
/// Age after which an unchanged draft counts as abandoned. Filling a folder takes seconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(600);
/// Maximum length of the folder name within a draft's name, which leaves room for the owner tag.
const MAX_NAME_BYTES: usize = 120;

/// Returns the path of a hidden folder next to `output`.
pub(super) fn sibling_path(output: &Path, id: &str, ending: &str) -> PathBuf {
    above(output).join(format!("{}{id}{ending}", prefix(output)))
}

fn prefix(output: &Path) -> String {
    let file_name = output.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if file_name.len() > MAX_NAME_BYTES {
        format!(".{}.", name::sanitize(&file_name))
    } else {
        format!(".{file_name}.")
    }
}

/// Hard-links the user's files from an old folder into the draft, so that they exist throughout the swap. Folders
/// cannot be hard-linked, and some file systems have no hard links. [`clear`] moves these entries afterwards.
pub(super) fn link_user_files(old: &Path, draft: &Path, seen: &HashCache) {
    link_below(old, draft, Path::new(""), &Manifest::read(old), seen);
}

fn link_below(old: &Path, draft: &Path, below: &Path, manifest: &Manifest, seen: &HashCache) {
    for (name, is_folder) in entries(old, below) {
        let to = draft.join(&name);
        if is_folder {
            if to.is_dir() {
                link_below(old, draft, &name, manifest, seen);
            }
        } else if !is_ours(old, &name, manifest, seen) && to.symlink_metadata().is_err() {
            fs::hard_link(old.join(&name), &to).ok();
        }
    }
}

/// Removes a replaced folder. Deletes this program's files and files that were hard-linked into the new folder. Moves
/// all other files to the new folder, unless their names are taken there.
pub(super) fn clear(old: &Path, output: &Path, seen: &HashCache) {
    if old.join(MARK).symlink_metadata().is_ok() {
        fs::remove_dir_all(old).ok();
        return;
    }
    clear_below(old, output, Path::new(""), &Manifest::read(old), seen);
}

fn clear_below(old: &Path, output: &Path, below: &Path, manifest: &Manifest, seen: &HashCache) {
    for (name, is_folder) in entries(old, below) {
        // Remove the manifest last, because it identifies this program's files.
        if manifest.kind().is_some() && name == Path::new(Manifest::FILE) {
            continue;
        }
        let from = old.join(&name);
        let to = output.join(&name);
        let free = to.symlink_metadata().is_err();
        if is_folder {
            if free && !manifest.has_below(&name) {
                fs::rename(&from, &to).ok();
            } else {
                clear_below(old, output, &name, manifest, seen);
            }
        } else if is_ours(old, &name, manifest, seen) || same(&from, &to) {
            fs::remove_file(&from).ok();
        } else if free {
            fs::create_dir_all(above(&to)).ok();
            fs::rename(&from, &to).ok();
        }
    }
    if below.as_os_str().is_empty() && manifest.kind().is_some() && entries(old, below).len() == 1 {
        fs::remove_file(old.join(Manifest::FILE)).ok();
    }
    // Ignore errors, because a folder that is not empty must be kept.
    fs::remove_dir(old.join(below)).ok();
}

fn is_ours(folder: &Path, name: &Path, manifest: &Manifest, seen: &HashCache) -> bool {
    // This program writes only UTF-8 names.
    let text = name.to_str().is_some_and(|name| manifest.file_state(folder, name, seen) == FileState::Ours);
    text || name.file_name().and_then(|file_name| file_name.to_str()).is_some_and(is_temporary)
}

/// Lists a subfolder. Returns the relative name of each entry and whether it is a folder.
fn entries(folder: &Path, below: &Path) -> Vec<(PathBuf, bool)> {
    let listed = fs::read_dir(folder.join(below)).into_iter().flatten().flatten();
    listed.map(|entry| (below.join(entry.file_name()), entry.file_type().is_ok_and(|kind| kind.is_dir()))).collect()
}

/// Returns whether two paths refer to the same file.
#[cfg(unix)]
fn same(one: &Path, other: &Path) -> bool {
    inode(one).is_some() && inode(one) == inode(other)
}

#[cfg(unix)]
fn inode(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().ok().map(|data| (data.dev(), data.ino()))
}

#[cfg(not(unix))]
fn same(_: &Path, _: &Path) -> bool {
    false
}

/// Removes or restores the drafts and replaced folders that a crash left next to an output folder.
pub(super) fn sweep(output: &Path, seen: &HashCache) {
    let prefix = prefix(output);
    for item in fs::read_dir(above(output)).into_iter().flatten().flatten() {
        let found = item.file_name().to_string_lossy().into_owned();
        let Some(rest) = found.strip_prefix(&prefix) else { continue };
        let draft = owner_tag(DRAFT, rest);
        let old = owner_tag(OLD, rest);
        let Some(tag) = draft.or(old) else { continue };
        if old.is_some() && !output.exists() {
            fs::rename(item.path(), output).ok();
            continue;
        }
        let age = item.metadata().and_then(|data| data.modified()).ok();
        let age = age.and_then(|time| SystemTime::now().duration_since(time).ok()).unwrap_or_default();
        // A draft left by a dead process is removed regardless of its age.
        let left = Owner::is_tag_alive(tag).map_or(age >= ABANDONED_AFTER, |lives| !lives);
        if left {
            clear(&item.path(), output, seen);
        }
    }
}

fn owner_tag<'a>(ending: &str, rest: &'a str) -> Option<&'a str> {
    let (tag, count) = rest.strip_suffix(ending)?.split_once('.')?;
    (Owner::is_tag(tag) && count.parse::<u64>().is_ok()).then_some(tag)
}

pub(super) fn above(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
