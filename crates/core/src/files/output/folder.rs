//! Output folders. Files are written to a draft, a hidden folder next to the output folder. The finished draft then
//! replaces the output folder, atomically where the file system supports it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::manifest::{FileState, HashCache, Manifest};
use super::swap;
use crate::error::{Error, Result};
use crate::files::atomic::{StagedFile, check_writable_folder, ensure_writable, try_exchange};
use crate::files::owner::Owner;
use crate::files::{parent_folder, sha256};

/// Output folder. Files in it that this program did not write are kept.
#[derive(Debug, Clone)]
pub struct OutputFolder {
    path: PathBuf,
    kind: &'static str,
    hash_cache: Arc<HashCache>,
}

/// Output folder that is being written. It is removed on drop unless it is published.
#[derive(Debug)]
pub struct Draft {
    folder: PathBuf,
    target: PathBuf,
    display_path: PathBuf,
    kind: &'static str,
    hash_cache: Arc<HashCache>,
    /// Whether the draft has been published. Dropping must then keep `folder`, which may contain the user's files.
    is_published: bool,
}

impl OutputFolder {
    /// Creates a handle for a folder with the given kind of output, such as `results`. Folders of another kind are
    /// never replaced.
    pub fn new(path: impl Into<PathBuf>, kind: &'static str) -> Self {
        Self { path: path.into(), kind, hash_cache: Arc::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that files with these names can be written and that the folder can be replaced. Called before a run, so
    /// that the run fails at the start rather than when it writes its results.
    ///
    /// # Errors
    /// Fails with exit code 3 if the location is not writable, and with exit code 2 if a name is taken by a file that
    /// this program did not write.
    pub fn check(&self, names: &[String]) -> Result<()> {
        self.check_names(names)?;
        ensure_writable(parent_folder(&self.path), &[])
    }

    /// Predicts from permissions and names whether the folder can be written. Does not create anything.
    ///
    /// # Errors
    /// See [`Self::check`].
    pub fn precheck(&self, names: &[String]) -> Result<()> {
        self.check_names(names)?;
        check_writable_folder(parent_folder(&self.path))
    }

    fn check_names(&self, names: &[String]) -> Result<()> {
        if !self.path.is_dir() && self.path.symlink_metadata().is_ok() {
            return Err(Error::missing("cannot write to the results folder")
                .at(self.path.display())
                .expected("a folder, or an unused path")
                .found("a path that is not a folder")
                .hint("move or rename the file, or choose another folder"));
        }
        check_conflicts(&self.path, &self.path, self.kind, names, &self.hash_cache)
    }

    /// Creates a draft next to the output folder.
    ///
    /// # Errors
    /// Fails with exit code 3, naming the folder.
    pub fn stage(&self) -> Result<Draft> {
        // Resolve a link, so that its target is replaced and the link remains.
        let target = if self.path.is_dir() { fs::canonicalize(&self.path).ok() } else { None };
        let target = target.unwrap_or_else(|| self.path.clone());
        let parent = parent_folder(&target);
        fs::create_dir_all(parent).map_err(|error| Error::folder_io("create", parent, &error))?;
        swap::sweep(&target, &self.hash_cache);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let id = format!("{}.{}", Owner::current().tag(), COUNT.fetch_add(1, Relaxed));
        let folder = swap::sibling_path(&target, &id, swap::DRAFT_SUFFIX);
        fs::create_dir(&folder).map_err(|error| Error::folder_io("create", &folder, &error))?;
        let draft = Draft {
            folder,
            target,
            display_path: self.path.clone(),
            kind: self.kind,
            hash_cache: Arc::clone(&self.hash_cache),
            is_published: false,
        };
        let marker = draft.folder.join(swap::DRAFT_MARKER);
        fs::write(&marker, "").map_err(|error| Error::io("write", &marker, &error))?;
        Ok(draft)
    }

    /// Writes individual files into the folder and keeps all others.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::check`], or if a file cannot be written.
    pub fn put(&self, files: &[(String, Vec<u8>)]) -> Result<()> {
        let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
        check_conflicts(&self.path, &self.path, self.kind, &names, &self.hash_cache)?;
        fs::create_dir_all(&self.path).map_err(|error| Error::folder_io("create", &self.path, &error))?;
        let hashes: Vec<String> = files.iter().map(|(_, bytes)| sha256::of_bytes(bytes)).collect();
        // Stage all files first, so that a full disk causes a failure before anything is listed or replaced.
        let staged = files.iter().map(|(name, bytes)| StagedFile::stage(&self.path.join(name), bytes));
        let staged = staged.collect::<Result<Vec<_>>>()?;
        let mut manifest = Manifest::read(&self.path).for_kind(self.kind);
        // Write the manifest first, so that a killed process never leaves an unlisted file.
        names.iter().zip(&hashes).for_each(|(name, hash)| manifest.add(name, hash.clone()));
        manifest.write(&self.path)?;
        staged.into_iter().try_for_each(StagedFile::publish)?;
        names.iter().zip(hashes).for_each(|(name, hash)| manifest.replace_hashes(name, hash));
        manifest.write(&self.path)
    }
}

impl Draft {
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Lists the relative names of all files in the draft.
    ///
    /// # Errors
    /// Fails if a folder of the draft cannot be read.
    pub fn file_names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        list_files(&self.folder, "", &mut names).map_err(|error| Error::folder_io("read", &self.folder, &error))?;
        Ok(names)
    }

    /// Returns the final path of a file in the draft.
    pub fn published(&self, file: &Path) -> PathBuf {
        file.strip_prefix(&self.folder).map_or_else(|_| file.to_owned(), |name| self.display_path.join(name))
    }

    /// Moves the finished draft into place. Unchanged files from the previous output are removed. All other files are
    /// kept.
    ///
    /// # Errors
    /// Fails with exit code 2 if a name is taken by a file that this program did not write, and with exit code 3 if the
    /// folder cannot be replaced. On failure the previous folder is kept.
    pub fn publish(mut self) -> Result<()> {
        let mut names = Vec::new();
        list_files(&self.folder, "", &mut names).map_err(|error| self.replace_error(&error))?;
        Manifest::new(&self.folder, &names, self.kind)?.write(&self.folder)?;
        names.push(Manifest::FILE.to_owned());
        check_conflicts(&self.target, &self.display_path, self.kind, &names, &self.hash_cache)?;
        let marker = self.folder.join(swap::DRAFT_MARKER);
        if !self.target.exists() {
            fs::remove_file(&marker).map_err(|error| self.replace_error(&error))?;
            fs::rename(&self.folder, &self.target).map_err(|error| self.replace_error(&error))?;
            self.is_published = true;
            return Ok(());
        }
        if let Ok(old) = fs::metadata(&self.target) {
            fs::set_permissions(&self.folder, old.permissions()).ok();
        }
        swap::link_user_files(&self.target, &self.folder, &self.hash_cache);
        fs::remove_file(&marker).map_err(|error| self.replace_error(&error))?;
        let old = if try_exchange(&self.folder, &self.target) {
            self.folder.clone()
        } else {
            // Fallback for file systems without atomic exchange. `sweep` recovers from a crash between the two renames.
            let aside = self.folder.with_extension(&swap::REPLACED_SUFFIX[1..]);
            fs::rename(&self.target, &aside).map_err(|error| self.replace_error(&error))?;
            if let Err(error) = fs::rename(&self.folder, &self.target) {
                fs::rename(&aside, &self.target).ok();
                return Err(self.replace_error(&error));
            }
            aside
        };
        self.is_published = true;
        swap::remove_replaced(&old, &self.target, &self.hash_cache);
        Ok(())
    }

    fn replace_error(&self, error: &std::io::Error) -> Error {
        Error::folder_io("replace", &self.display_path, error)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_published {
            fs::remove_dir_all(&self.folder).ok();
        }
    }
}

/// Rejects names that belong to files that this program did not write. Messages show `display_path` as the path of the
/// folder.
fn check_conflicts(
    folder: &Path,
    display_path: &Path,
    kind: &str,
    names: &[String],
    hash_cache: &HashCache,
) -> Result<()> {
    let manifest = Manifest::read(folder);
    if let Some(other) = manifest.kind().filter(|other| *other != kind) {
        return Err(Error::bad_input("the folder contains another kind of output")
            .at(display_path.display())
            .expected(format!("an empty folder, or one that contains {kind}"))
            .found(format!("a folder that contains {other}"))
            .hint("choose another folder"));
    }
    let mut conflicts: Vec<(String, FileState)> = Vec::new();
    for name in names.iter().map(String::as_str).chain([Manifest::FILE]) {
        // The path of a parent folder of the new file may be that of an existing file.
        let parents = name.match_indices('/').map(|(end, _)| &name[..end]);
        let blocked_parent = parents.map(|parent| (parent, manifest.file_state(folder, parent, hash_cache)));
        let blocked_parent =
            blocked_parent.filter(|(_, found)| !matches!(found, FileState::Nothing | FileState::Folder));
        let state = manifest.file_state(folder, name, hash_cache);
        let state = Some((name, state)).filter(|(_, found)| !matches!(found, FileState::Nothing | FileState::Ours));
        let found = blocked_parent.chain(state).next().map(|(name, found)| (name.to_owned(), found));
        conflicts.extend(found.filter(|found| !conflicts.contains(found)));
    }
    let [(first, found), rest @ ..] = conflicts.as_slice() else { return Ok(()) };
    let location = display_path.join(first).display().to_string();
    let rest: Vec<&str> = rest.iter().map(|(name, _)| name.as_str()).collect();
    let hint = match manifest.kind().is_some() {
        true => "move or rename the file; only unchanged files are replaced".to_owned(),
        false => format!(
            "move the file, or choose another folder; if the folder is from an earlier version and has no list of \
             written files ({}), move the whole folder",
            Manifest::FILE
        ),
    };
    Err(Error::bad_input("an output file would replace an existing file")
        .at(if rest.is_empty() { location } else { format!("{location}, and {}", rest.join(", ")) })
        .expected("no file, or the unchanged file that ghostlab wrote")
        .found(found.description())
        .hint(hint))
}

/// Lists the relative names of all files below a folder in sorted order. Skips the draft marker and the manifest.
fn list_files(folder: &Path, below: &str, names: &mut Vec<String>) -> std::io::Result<()> {
    let mut entries = fs::read_dir(folder.join(below))?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let name = if below.is_empty() { file_name } else { format!("{below}/{file_name}") };
        match entry.file_type()?.is_dir() {
            true => list_files(folder, &name, names)?,
            false if name == swap::DRAFT_MARKER || name == Manifest::FILE => {}
            false => names.push(name),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "folder_test.rs"]
mod tests;
