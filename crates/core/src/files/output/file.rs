//! Single output files. An output file never replaces an input, a link or a device. It replaces any other file only if
//! this program wrote that file, or if `force` is set.

use std::path::{Path, PathBuf};

use super::overlap::{Input, is_within, resolve_links};
use crate::error::{Error, Result};
use crate::files::atomic::write_whole;
use crate::files::{parent_folder, regular, sha256};

#[derive(Debug)]
pub struct OutputFile<'a> {
    pub path: &'a Path,
    pub inputs: Vec<Input>,
    /// Whether an existing regular file may be replaced.
    pub force: bool,
    /// Function that recognizes content written by this program.
    pub is_ours: fn(&[u8]) -> bool,
}

impl OutputFile<'_> {
    /// Checks that the file may be written.
    ///
    /// # Errors
    /// Fails with exit code 2 if another file exists at the path, and with exit code 3 if the folder does not exist.
    pub fn check(&self) -> Result<()> {
        let Self { path, inputs, force, is_ours } = self;
        let Ok(data) = path.symlink_metadata() else {
            let folder = parent_folder(path);
            let error = Error::missing("the folder of the output file does not exist").at(folder.display());
            return if folder.is_dir() { Ok(()) } else { Err(error.hint("create the folder, or choose another one")) };
        };
        if !data.is_file() {
            let found = regular::file_type_name(data.file_type());
            return Err(already_exists_error(path).expected("a regular file").found(found).hint("choose another file"));
        }
        let target: PathBuf = resolve_links(path);
        if let Some(input) = inputs.iter().find(|input| input.whole && is_within(&target, &resolve_links(&input.path)))
        {
            let found = format!("{}, an input", input.what);
            return Err(already_exists_error(path)
                .expected("a file that is not an input")
                .found(found)
                .hint("choose another file"));
        }
        if *force || regular::read(path).is_ok_and(|bytes| is_ours(&bytes)) {
            return Ok(());
        }
        Err(already_exists_error(path).hint("choose another file, or pass --force to overwrite this one"))
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::check`], or if the file cannot be written.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        self.check()?;
        write_whole(self.path, bytes)
    }
}

fn already_exists_error(path: &Path) -> Error {
    Error::bad_input("the output file already exists").at(path.display())
}

/// JSON key whose value is the SHA-256 of the document that contains it. The hash is computed with the placeholder
/// [`UNSEALED`] as the value.
pub const SEAL: &str = "ghostlab_sha256";
pub const UNSEALED: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Replaces the placeholder [`UNSEALED`] in the entry [`SEAL`] with the hash of the text.
pub fn seal(text: &str) -> String {
    text.replacen(&seal_entry(UNSEALED), &seal_entry(&sha256::of_bytes(text)), 1)
}

fn seal_entry(hash: &str) -> String {
    format!("\"{SEAL}\": \"{hash}\"")
}

/// Returns whether the bytes are the output of [`seal`] and have not been modified.
pub fn is_sealed(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).ok().and_then(|text| {
        let head = format!("\"{SEAL}\": \"");
        let start = text.find(&head)? + head.len();
        let hash = text.get(start..start + UNSEALED.len())?;
        let plain = [text.get(..start)?, UNSEALED, text.get(start + UNSEALED.len()..)?].concat();
        Some(sha256::of_bytes(plain) == hash)
    }) == Some(true)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn modified_text_invalidates_its_seal() {
        let text = seal(&format!("{{\n  \"{SEAL}\": \"{UNSEALED}\",\n  \"results\": 1\n}}\n"));
        assert!(is_sealed(text.as_bytes()) && !text.contains(UNSEALED), "{text}");
        assert!(!is_sealed(text.replace(": 1", ": 2").as_bytes()));
        assert!(!is_sealed(b"{}") && !is_sealed(b"\xff") && !is_sealed(SEAL.as_bytes()));
    }

    #[cfg(unix)]
    #[test]
    fn only_generated_files_are_replaced() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(path_in("model", root.path())).unwrap();
        for name in ["model/config.json", "text.txt", "mine.json"] {
            fs::write(path_in(name, root.path()), "mine").unwrap();
        }
        std::os::unix::fs::symlink(path_in("mine.json", root.path()), path_in("link", root.path())).unwrap();
        std::os::unix::fs::symlink(path_in("nowhere", root.path()), path_in("dangling", root.path())).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path_in("pipe", root.path())).status().unwrap().success());
        let inputs = vec![
            Input::new("the model", path_in("model", root.path())),
            Input::new("the text", path_in("text.txt", root.path())),
        ];
        let write = |path: &Path, force: bool| {
            OutputFile { path, inputs: inputs.clone(), force, is_ours: |bytes| bytes == b"ours" }.write(b"ours")
        };
        let refused = |path: &Path, force: bool| write(path, force).unwrap_err().to_string();
        for (name, found) in [
            ("model/config.json", "the model, an input"),
            ("text.txt", "the text, an input"),
            ("link", "a link"),
            ("dangling", "a link"),
            ("pipe", "a pipe"),
            ("model", "a folder"),
        ] {
            for force in [false, true] {
                let error = refused(&path_in(name, root.path()), force);
                assert!(error.contains(&format!("found:    {found}")), "{name}: {error}");
            }
        }
        assert!(refused(Path::new("/dev/null"), true).contains("a device"));
        assert!(refused(&path_in("none/x.json", root.path()), false).contains("none"));
        let error = refused(&path_in("mine.json", root.path()), false);
        assert!(error.contains("--force"), "{error}");
        write(&path_in("mine.json", root.path()), true).unwrap();
        for name in ["mine.json", "new.json"] {
            write(&path_in(name, root.path()), false).unwrap();
            assert_eq!(fs::read_to_string(path_in(name, root.path())).unwrap(), "ours");
        }
        assert_eq!(fs::read_to_string(path_in("model/config.json", root.path())).unwrap(), "mine");
    }

    fn path_in(name: &str, root: &Path) -> PathBuf {
        root.join(name)
    }
}
