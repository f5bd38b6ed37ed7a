//! `ghostlab fetch --data FOLDER`: copies local texts and tasks to where grids expect them.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::atomic::write_atomically;
use crate::grid::{EntryKind, InputList, InputRef};
use crate::tasks::Task;

const ENDINGS: [&str; 3] = [".parquet", ".jsonl", ".jsonl.gz"];

/// Copies inputs from `folder` if they are neither at their paths nor in the hub cache. Returns the number of inputs
/// copied.
///
/// # Errors
/// Fails if `folder` does not exist or a copy fails.
pub(super) fn copy(folder: &Path, lists: &[InputList]) -> Result<usize> {
    if !folder.is_dir() {
        return Err(Error::missing("folder of local copies not found")
            .at(folder.display())
            .expected("a folder with `corpora` and `tasks`"));
    }
    let mut copied = 0;
    for list in lists {
        let resolver = list.resolver();
        for need in list.needs.iter().filter(|need| need.kind != EntryKind::Backbone) {
            let Some(path) = &need.path else { continue };
            if need.find(&resolver).is_ok() {
                continue;
            }
            match local_copy(folder, need, path) {
                Some((from, to)) => {
                    copy_file(&from, &to)?;
                    note!("{} {}: copied from {} to {}", need.kind.word(), need.name, from.display(), to.display());
                    copied += 1;
                }
                None => note!(
                    "{} {}: not found in {} (to avoid a download from the hub, add {} there)",
                    need.kind.word(),
                    need.name,
                    folder.display(),
                    candidates(need, path).into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" or ")
                ),
            }
        }
    }
    Ok(copied)
}

/// Returns the first local copy of an input and its destination.
fn local_copy(folder: &Path, need: &InputRef, path: &Path) -> Option<(PathBuf, PathBuf)> {
    let candidates = candidates(need, path).into_iter();
    candidates.map(|(name, to)| (folder.join(name), to)).find(|(from, _)| from.is_file())
}

/// Returns the names that a local copy may have, each with its destination.
fn candidates(need: &InputRef, path: &Path) -> Vec<(String, PathBuf)> {
    if need.kind == EntryKind::Task {
        // The path of a task is the directory that contains its splits.
        let split = Task::find(&need.name).map_or("test", Task::split_name);
        return ENDINGS
            .map(|ending| (format!("tasks/{}{ending}", need.name), path.join(format!("{split}{ending}"))))
            .into();
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let above = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let ending = name.find('.').map_or("", |at| &name[at..]);
    [format!("corpora/{}{ending}", need.name), format!("corpora/{above}-{name}")]
        .map(|name| (name, path.to_owned()))
        .into()
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    let mut source = File::open(from).map_err(|error| Error::io("read", from, &error))?;
    write_atomically(to, |file| {
        std::io::copy(&mut source, file).map(drop).map_err(|error| Error::io("write", to, &error))
    })
}
