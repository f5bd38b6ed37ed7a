//! `ghostlab fetch --data FOLDER`: copies local texts and tasks to where grids expect them.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::files::atomic::write_atomically;
use crate::grid::{EntryKind, InputList, InputRef};
use crate::tasks::Task;

const TASK_EXTENSIONS: [&str; 3] = [".parquet", ".jsonl", ".jsonl.gz"];

/// Outcome of copying local files.
#[derive(Default)]
pub(super) struct LocalCopies {
    pub(super) copied: usize,
    folder: PathBuf,
    /// Accepted file names for each input that was not found, joined with `or`.
    missing: Vec<String>,
}

impl LocalCopies {
    /// Returns a hint that lists the missing local files, or `None` if no file is missing.
    pub(super) fn hint(&self) -> Option<String> {
        let files = self.missing.join("\n");
        (!files.is_empty())
            .then(|| format!("to use local copies, add these files to {}:\n{files}", self.folder.display()))
    }

    /// Appends the missing local files to the hint of an error of kind `Missing`.
    pub(super) fn add_hint(&self, error: Error) -> Error {
        match self.hint().filter(|_| error.kind() == ErrorKind::Missing) {
            Some(files) => {
                let first = error.advice().map_or(String::new(), |hint| format!("{hint}\n"));
                error.hint(first + &files)
            }
            None => error,
        }
    }
}

/// Copies texts and tasks from `folder` if they are neither at their paths nor in the hub cache. Skips backbones.
///
/// # Errors
/// Fails if `folder` does not exist or a copy fails.
pub(super) fn copy_inputs(folder: &Path, lists: &[InputList]) -> Result<LocalCopies> {
    if !folder.is_dir() {
        return Err(Error::missing("folder of local copies not found")
            .at(folder.display())
            .expected("a folder with `corpora` and `tasks`"));
    }
    let mut copies = LocalCopies { folder: folder.to_owned(), ..LocalCopies::default() };
    for list in lists {
        let resolver = list.resolver();
        for need in list.needs.iter().filter(|need| need.kind != EntryKind::Backbone) {
            let Some(path) = &need.path else { continue };
            if need.find(&resolver).is_ok() {
                continue;
            }
            match find_local_copy(folder, need, path) {
                Some((from, to)) => {
                    copy_file(&from, &to)?;
                    note!("{} {}: copied from {} to {}", need.kind.label(), need.name, from.display(), to.display());
                    copies.copied += 1;
                }
                None => {
                    let names: Vec<String> =
                        list_possible_copies(need, path).into_iter().map(|(name, _)| name).collect();
                    note!("{} {}: not found in {}", need.kind.label(), need.name, folder.display());
                    copies.missing.push(names.join(" or "));
                }
            }
        }
    }
    Ok(copies)
}

/// Returns the first local copy of an input that exists, with its destination.
fn find_local_copy(folder: &Path, need: &InputRef, path: &Path) -> Option<(PathBuf, PathBuf)> {
    let candidates = list_possible_copies(need, path).into_iter();
    candidates.map(|(name, to)| (folder.join(name), to)).find(|(from, _)| from.is_file())
}

/// Returns the names that a local copy may have, each with its destination.
fn list_possible_copies(need: &InputRef, path: &Path) -> Vec<(String, PathBuf)> {
    if need.kind == EntryKind::Task {
        // The path of a task is the directory that contains its splits.
        let split = Task::find(&need.name).map_or("test", Task::split_name);
        return TASK_EXTENSIONS
            .map(|ending| (format!("tasks/{}{ending}", need.name), path.join(format!("{split}{ending}"))))
            .into();
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parent_name = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let ending = name.find('.').map_or("", |at| &name[at..]);
    [format!("corpora/{}{ending}", need.name), format!("corpora/{parent_name}-{name}")]
        .map(|name| (name, path.to_owned()))
        .into()
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(folder).map_err(|error| Error::folder_io("create", folder, &error))?;
    let mut source = File::open(from).map_err(|error| Error::io("read", from, &error))?;
    write_atomically(to, |file| {
        std::io::copy(&mut source, file).map(drop).map_err(|error| Error::io("write", to, &error))
    })
}
