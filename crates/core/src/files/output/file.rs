//! A single output file. It replaces only files that this program wrote, unless forced, and never inputs, links or
//! devices.

use std::path::{Path, PathBuf};

use super::apart::{Input, real, within};
use super::swap::above;
use crate::error::{Error, Result};
use crate::files::atomic::write_whole;
use crate::files::regular;
use crate::files::sha256;

/// A file to be written.
#[derive(Debug)]
pub struct OutputFile<'a> {
    pub path: &'a Path,
    /// Inputs of the command.
    pub inputs: Vec<Input>,
    /// Whether an ordinary file that is there may be replaced.
    pub force: bool,
    /// Tells from its content what this program wrote.
    pub is_ours: fn(&[u8]) -> bool,
}

impl OutputFile<'_> {
    /// Refuses a place where something stands that is not to be replaced.
    ///
    /// # Errors
    /// Exit code 2 if another file exists there, with its description. Exit code 3 if the folder does not exist.
    pub fn check(&self) -> Result<()> {
        let Self { path, inputs, force, is_ours } = self;
        let exists = || Error::bad_input("the output file already exists").at(path.display());
        let Ok(data) = path.symlink_metadata() else {
            let folder = above(path);
            let missing = Error::missing("the folder of a file to be written is not there").at(folder.display());
            return if folder.is_dir() { Ok(()) } else { Err(missing.hint("make the folder, or name another one")) };
        };
        if !data.is_file() {
            let found = regular::name_of(data.file_type());
            return Err(exists().expected("a regular file").found(found).hint("name another file"));
        }
        let own: PathBuf = real(path);
        if let Some(input) = inputs.iter().find(|input| input.whole && within(&own, &real(&input.path))) {
            let found = format!("{}, which is read", input.what);
            return Err(exists().expected("a file that is not read").found(found).hint("name another file"));
        }
        if *force || regular::read(path).is_ok_and(|bytes| is_ours(&bytes)) {
            return Ok(());
        }
        Err(exists().hint("name another file, or overwrite it with --force"))
    }

    /// # Errors
    /// As [`Self::check`], and where the file cannot be written.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        self.check()?;
        write_whole(self.path, bytes)
    }
}

/// Entry of a JSON object with the object's own hash, and its placeholder.
pub const SEAL: &str = "ghostlab_sha256";
pub const UNSEALED: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Replaces [`UNSEALED`] in the entry [`SEAL`] of a JSON object by the hash of the text.
pub fn sealed(text: &str) -> String {
    let entry = |hash: &str| format!("\"{SEAL}\": \"{hash}\"");
    text.replacen(&entry(UNSEALED), &entry(&sha256::of_bytes(text)), 1)
}

/// Returns whether the bytes are as [`sealed`] made them.
pub fn is_sealed(bytes: &[u8]) -> bool {
    let hash = |text: &str| {
        let head = format!("\"{SEAL}\": \"");
        let start = text.find(&head)? + head.len();
        let hash = text.get(start..start + UNSEALED.len())?;
        let plain = [text.get(..start)?, UNSEALED, text.get(start + UNSEALED.len()..)?].concat();
        Some(sha256::of_bytes(plain) == hash)
    };
    std::str::from_utf8(bytes).ok().and_then(hash) == Some(true)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_text_knows_whether_it_was_changed() {
        let text = sealed(&format!("{{\n  \"{SEAL}\": \"{UNSEALED}\",\n  \"results\": 1\n}}\n"));
        assert!(is_sealed(text.as_bytes()) && !text.contains(UNSEALED), "{text}");
        assert!(!is_sealed(text.replace(": 1", ": 2").as_bytes()));
        assert!(!is_sealed(b"{}") && !is_sealed(b"\xff") && !is_sealed(SEAL.as_bytes()));
    }

    #[cfg(unix)]
    #[test]
    fn only_own_files_are_replaced_never_inputs_or_links() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("model")).unwrap();
        for name in ["model/config.json", "text.txt", "mine.json"] {
            fs::write(at(name), "mine").unwrap();
        }
        std::os::unix::fs::symlink(at("mine.json"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let inputs = vec![Input::new("the model", at("model")), Input::new("the text", at("text.txt"))];
        let written = |path: &Path, force: bool| {
            OutputFile { path, inputs: inputs.clone(), force, is_ours: |bytes| bytes == b"ours" }.write(b"ours")
        };
        let refused = |path: &Path, force: bool| written(path, force).unwrap_err().to_string();
        for (name, found) in [
            ("model/config.json", "the model, which is read"),
            ("text.txt", "the text, which is read"),
            ("link", "a link"),
            ("dangling", "a link"),
            ("pipe", "a pipe"),
            ("model", "a folder"),
        ] {
            for force in [false, true] {
                let error = refused(&at(name), force);
                assert!(error.contains(&format!("found:    {found}")), "{name}: {error}");
            }
        }
        assert!(refused(Path::new("/dev/null"), true).contains("a device"));
        assert!(refused(&at("none/x.json"), false).contains("none"));
        let error = refused(&at("mine.json"), false);
        assert!(error.contains("--force"), "{error}");
        written(&at("mine.json"), true).unwrap();
        for name in ["mine.json", "new.json"] {
            written(&at(name), false).unwrap();
            assert_eq!(fs::read_to_string(at(name)).unwrap(), "ours");
        }
        assert_eq!(fs::read_to_string(at("model/config.json")).unwrap(), "mine");
    }
}
