//! Check that outputs do not overlap inputs. Symbolic links are resolved first.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::files;

/// Input file or folder that outputs must not replace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Input {
    /// Description used in messages, such as `the backbone llama`.
    pub what: String,
    pub path: PathBuf,
    /// Whether the entire folder is an input, so that no output may be written into it.
    pub whole: bool,
}

impl Input {
    /// Creates an input: a file, or a folder into which no output may be written.
    pub fn new(what: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { what: what.into(), path: path.into(), whole: true }
    }

    /// Creates an input for a folder that may contain outputs but must not be replaced by one.
    pub fn allowing_outputs(what: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { whole: false, ..Self::new(what, path) }
    }
}

/// Rejects an output folder that is an input, contains one, or is inside one.
///
/// # Errors
/// Fails with exit code 2. The message names the output and the input.
pub fn check_separate(output: &Path, inputs: &[Input]) -> Result<()> {
    let output_path = resolve_links(output);
    for Input { what, path, whole } in inputs {
        let input = resolve_links(path);
        let found = match (is_within(&input, &output_path), is_within(&output_path, &input)) {
            (true, true) => "the same folder",
            (true, false) => "a folder that contains it",
            (false, true) if *whole => "a folder inside it",
            _ => continue,
        };
        return Err(Error::bad_input("the output must not overlap with an input")
            .at(output.display())
            .expected(format!("a folder outside {what}, {}", path.display()))
            .found(found)
            .hint("choose another folder"));
    }
    Ok(())
}

/// Returns whether a path is `folder` or inside it.
pub(super) fn is_within(path: &Path, folder: &Path) -> bool {
    let folder_id = file_id(folder);
    path.ancestors().any(|above| above == folder || (folder_id.is_some() && file_id(above) == folder_id))
}

/// Returns the absolute path with links resolved as far as the path exists. Like the kernel, follows each link before
/// it applies `..`.
pub(super) fn resolve_links(path: &Path) -> PathBuf {
    let absolute = files::absolute(path);
    let mut real = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => drop(real.pop()),
            Component::CurDir => {}
            component => {
                real.push(component);
                real = fs::canonicalize(&real).unwrap_or(real);
            }
        }
    }
    real
}

/// Returns the device and inode, which identify a folder even if it is mounted at several paths.
#[cfg(unix)]
fn file_id(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

#[cfg(not(unix))]
fn file_id(_: &Path) -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn output_folder_that_overlaps_an_input_is_rejected() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["models/llama", "texts", "other"] {
            fs::create_dir_all(path_in(folder, root.path())).unwrap();
        }
        fs::write(path_in("texts/a.txt", root.path()), "a").unwrap();
        std::os::unix::fs::symlink(path_in("models/llama", root.path()), path_in("link", root.path())).unwrap();
        std::os::unix::fs::symlink(path_in("models", root.path()), path_in("above", root.path())).unwrap();
        let inputs = [
            Input::new("the backbone llama", path_in("models/llama", root.path())),
            Input::new("the text a", path_in("texts/a.txt", root.path())),
            Input::allowing_outputs("the checkout", root.path()),
        ];
        for (name, found) in [
            ("models/llama", "the same folder"),
            ("link", "the same folder"),
            ("models", "a folder that contains it"),
            ("above", "a folder that contains it"),
            ("link/..", "a folder that contains it"),
            ("models/none/..", "a folder that contains it"),
            ("models/llama/out/deeper", "a folder inside it"),
            ("link/out", "a folder inside it"),
            ("texts", "a folder that contains it"),
            ("", "a folder that contains it"),
            ("..", "a folder that contains it"),
        ] {
            let error = check_separate(&path_in(name, root.path()), &inputs).unwrap_err().to_string();
            assert!(error.contains(&format!("found:    {found}")), "{name}: {error}");
        }
        for name in ["other", "out", "models/llama-7", "texts/out", "new/deeper"] {
            check_separate(&path_in(name, root.path()), &inputs).unwrap();
        }
    }

    fn path_in(name: &str, root: &Path) -> PathBuf {
        root.join(name)
    }
}
