//! Replacement of an output folder, and recovery after crashes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::manifest::{FileState, HashCache, Manifest};
use crate::files::atomic::is_temporary;
use crate::files::name;
use crate::files::owner::Owner;
use crate::files::parent_folder;

pub(super) const DRAFT_SUFFIX: &str = ".part";
/// Suffix of a replaced folder until it is removed, on file systems that cannot exchange two folders atomically.
pub(super) const REPLACED_SUFFIX: &str = ".old";
/// File that marks an incomplete draft. A folder that contains it may be deleted as a whole.
pub(super) const DRAFT_MARKER: &str = ".ghostlab.draft";
/// Age after which an unchanged draft is considered abandoned. Writing a draft takes seconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of bytes of the output folder's name in the name of a draft. The limit leaves room for the owner tag.
const MAX_NAME_BYTES: usize = 120;

/// Returns the path of a hidden folder next to `output`.
pub(super) fn sibling_path(output: &Path, id: &str, ending: &str) -> PathBuf {
    parent_folder(output).join(format!("{}{id}{ending}", hidden_prefix(output)))
}

fn hidden_prefix(output: &Path) -> String {
    let file_name = output.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if file_name.len() > MAX_NAME_BYTES {
        format!(".{}.", name::sanitize(&file_name))
    } else {
        format!(".{file_name}.")
    }
}

/// Hard-links the user's files from an old folder into the draft, so that they exist throughout the swap.
/// [`remove_replaced`] later moves the entries that could not be linked: folders, and all files on file systems without
/// hard links.
pub(super) fn link_user_files(old: &Path, draft: &Path, hash_cache: &HashCache) {
    link_below(old, draft, Path::new(""), &Manifest::read(old), hash_cache);
}

fn link_below(old: &Path, draft: &Path, below: &Path, manifest: &Manifest, hash_cache: &HashCache) {
    for (name, is_folder) in list_entries(old, below) {
        let to = draft.join(&name);
        if is_folder {
            if to.is_dir() {
                link_below(old, draft, &name, manifest, hash_cache);
            }
        } else if !is_ours(old, &name, manifest, hash_cache) && to.symlink_metadata().is_err() {
            fs::hard_link(old.join(&name), &to).ok();
        }
    }
}

/// Removes a replaced folder. Deletes this program's files and files that were hard-linked into the new folder. Moves
/// all other files to the new folder, unless it has files with the same names.
pub(super) fn remove_replaced(old: &Path, output: &Path, hash_cache: &HashCache) {
    if old.join(DRAFT_MARKER).symlink_metadata().is_ok() {
        fs::remove_dir_all(old).ok();
        return;
    }
    remove_replaced_below(old, output, Path::new(""), &Manifest::read(old), hash_cache);
}

fn remove_replaced_below(old: &Path, output: &Path, below: &Path, manifest: &Manifest, hash_cache: &HashCache) {
    for (name, is_folder) in list_entries(old, below) {
        // Remove the manifest last, because it identifies this program's files.
        if manifest.kind().is_some() && name == Path::new(Manifest::FILE) {
            continue;
        }
        let from = old.join(&name);
        let to = output.join(&name);
        let is_free = to.symlink_metadata().is_err();
        if is_folder {
            if is_free && !manifest.has_files_below(&name) {
                fs::rename(&from, &to).ok();
            } else {
                remove_replaced_below(old, output, &name, manifest, hash_cache);
            }
        } else if is_ours(old, &name, manifest, hash_cache) || is_same_file(&from, &to) {
            fs::remove_file(&from).ok();
        } else if is_free {
            fs::create_dir_all(parent_folder(&to)).ok();
            fs::rename(&from, &to).ok();
        }
    }
    if below.as_os_str().is_empty() && manifest.kind().is_some() && list_entries(old, below).len() == 1 {
        fs::remove_file(old.join(Manifest::FILE)).ok();
    }
    // Ignore errors, because a folder that is not empty must be kept.
    fs::remove_dir(old.join(below)).ok();
}

/// Returns whether a file is listed and unchanged, or has the name of a temporary file.
fn is_ours(folder: &Path, name: &Path, manifest: &Manifest, hash_cache: &HashCache) -> bool {
    // This program writes only UTF-8 names.
    let is_listed = name.to_str().is_some_and(|name| manifest.file_state(folder, name, hash_cache) == FileState::Ours);
    is_listed || name.file_name().and_then(|file_name| file_name.to_str()).is_some_and(is_temporary)
}

/// Lists a subfolder. Returns the relative name of each entry and whether it is a folder.
fn list_entries(folder: &Path, below: &Path) -> Vec<(PathBuf, bool)> {
    let listed = fs::read_dir(folder.join(below)).into_iter().flatten().flatten();
    listed.map(|entry| (below.join(entry.file_name()), entry.file_type().is_ok_and(|kind| kind.is_dir()))).collect()
}

#[cfg(unix)]
fn is_same_file(one: &Path, other: &Path) -> bool {
    read_inode(one).is_some() && read_inode(one) == read_inode(other)
}

#[cfg(unix)]
fn read_inode(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().ok().map(|data| (data.dev(), data.ino()))
}

#[cfg(not(unix))]
fn is_same_file(_: &Path, _: &Path) -> bool {
    false
}

/// Removes or restores the drafts and replaced folders that a crash left next to an output folder.
pub(super) fn sweep(output: &Path, hash_cache: &HashCache) {
    let prefix = hidden_prefix(output);
    for item in fs::read_dir(parent_folder(output)).into_iter().flatten().flatten() {
        let file_name = item.file_name().to_string_lossy().into_owned();
        let Some(rest) = file_name.strip_prefix(&prefix) else { continue };
        let draft = parse_owner_tag(DRAFT_SUFFIX, rest);
        let old = parse_owner_tag(REPLACED_SUFFIX, rest);
        let Some(tag) = draft.or(old) else { continue };
        if old.is_some() && !output.exists() {
            fs::rename(item.path(), output).ok();
            continue;
        }
        // The age of a link is its own, not that of its target.
        let age = item.metadata().and_then(|data| data.modified()).ok();
        let age = age.and_then(|time| SystemTime::now().duration_since(time).ok()).unwrap_or_default();
        // A draft left by a dead process is removed regardless of its age.
        let is_abandoned = Owner::is_tag_alive(tag).map_or(age >= ABANDONED_AFTER, |lives| !lives);
        if is_abandoned {
            remove_replaced(&item.path(), output, hash_cache);
        }
    }
}

/// Returns the owner's tag in a name of the form `TAG.COUNT` followed by `ending`.
fn parse_owner_tag<'a>(ending: &str, rest: &'a str) -> Option<&'a str> {
    let (tag, count) = rest.strip_suffix(ending)?.split_once('.')?;
    (Owner::is_tag(tag) && count.parse::<u64>().is_ok()).then_some(tag)
}
