//! Finds the inputs of a run by hash, at the recorded paths and in other folders such as the hub cache. Also checks the
//! hashes of the files in a results folder.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::finding::{CheckKind, CheckResult};
use crate::archive;
use crate::error::{Error, Result};
use crate::files::output::Manifest;
use crate::files::sha256;
use crate::results::may_be_left_out;

pub(super) struct InputFinder {
    roots: Vec<PathBuf>,
    /// Hashes of the files that were read so far; `None` for unreadable files.
    hashes: Mutex<HashMap<PathBuf, Option<String>>>,
}

impl InputFinder {
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        Self { roots, hashes: Mutex::default() }
    }

    fn hash(&self, path: &Path) -> Option<String> {
        let mut known = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(path.to_owned()).or_insert_with(|| sha256::of_file(path).ok().map(|(hash, _)| hash)).clone()
    }

    /// Finds a recorded file or folder, and adds an agreement to `check` for each of its files. If a file is missing or
    /// does not match its recorded hash in `inputs`, returns `None` and adds the problem to `check`. `what` names the
    /// input in messages.
    pub(super) fn find(
        &self,
        what: &str,
        path: &Path,
        inputs: &BTreeMap<String, String>,
        check: &mut CheckResult,
    ) -> Option<PathBuf> {
        let expected = inputs.iter().filter_map(|(file, hash)| Some((Path::new(file).strip_prefix(path).ok()?, hash)));
        let expected: Vec<(&Path, &String)> = expected.collect();
        if expected.is_empty() {
            check.record_missing(what, format!("recorded hashes of files below {}", path.display()));
            return None;
        }
        let candidates = self.find_candidates(path);
        if let Some(found) = candidates.iter().find(|base| {
            expected.iter().all(|(file_name, hash)| self.hash(&join_file(base, file_name)).as_ref() == Some(*hash))
        }) {
            expected.iter().for_each(|_| check.record_agreement(0.0));
            return Some(found.clone());
        }
        let existing =
            candidates.iter().find(|base| expected.iter().any(|(file_name, _)| join_file(base, file_name).exists()));
        for (file_name, hash) in &expected {
            let at = format!("{what}: {}", join_file(path, file_name).display());
            match existing.map(|base| join_file(base, file_name)).and_then(|file| Some((self.hash(&file)?, file))) {
                Some((found, file)) if found != **hash => {
                    check.record_missing(at, format!("a file with SHA-256 {hash}; {} has {found}", file.display()));
                }
                Some(_) => {}
                None => check.record_missing(at, format!("a file with SHA-256 {hash}; not found")),
            }
        }
        None
    }

    /// Returns the existing candidates: the path itself, then paths under each root that end in the same components,
    /// longest match first.
    fn find_candidates(&self, path: &Path) -> Vec<PathBuf> {
        let parts: Vec<Component<'_>> = path.components().collect();
        // Use only the components after the last `..`, because the earlier ones depend on the machine.
        let first = parts.iter().rposition(|part| !matches!(part, Component::Normal(_))).map_or(0, |at| at + 1);
        let ends = (first..parts.len()).map(|at| parts[at..].iter().collect::<PathBuf>());
        let below = ends.flat_map(|end| self.roots.iter().map(move |root| root.join(&end)));
        std::iter::once(path.to_owned()).chain(below).filter(|path| path.exists()).collect()
    }
}

fn join_file(base: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { base.to_owned() } else { base.join(path) }
}

/// Checks the hash of each file that the folder's manifest lists. Adds a note with the number of missing files that a
/// record may omit.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn check_files(folder: &Path, notes: &mut Vec<String>) -> Result<CheckResult> {
    let mut check = CheckResult::new(CheckKind::Files);
    let Some(listed) = archive::read_checksums(&folder.join(Manifest::FILE))? else {
        check.record_missing(Manifest::FILE, "list of file hashes");
        return Ok(check);
    };
    let mut absent = 0;
    let mut all = 0;
    for (hash, name) in listed {
        all += 1;
        let file = folder.join(&name);
        if !archive::is_inside(&name) {
            check.record_difference(name, ["a file in this folder", "a path outside the folder"], None);
        } else if !file.exists() && may_be_left_out(&name) {
            absent += 1;
        } else if !file.exists() {
            check.record_difference(name, [hash.as_str(), "no such file"], None);
        } else {
            let (found, _) = sha256::of_file(&file).map_err(|error| Error::io("read", &file, &error))?;
            check.compare_equal(|| name, [hash, found]);
        }
    }
    notes.extend(
        (absent > 0).then(|| format!("{absent} of {all} listed files are not in the folder (allowed for records)")),
    );
    Ok(check.with_total(all - absent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::finding::CheckKind;

    #[test]
    fn moved_folder_is_found_by_path_suffix_and_hashes() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data/tiny/llama");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), "abc").unwrap();
        let finder = InputFinder::new(vec![root.path().to_owned()]);
        let path = Path::new("/nowhere/experiments/../data/tiny/llama");
        let hash = sha256::of_bytes("abc");
        let inputs = BTreeMap::from([(path.join("config.json").display().to_string(), hash.clone())]);
        let mut check = CheckResult::new(CheckKind::Inputs);
        assert_eq!(finder.find("a", path, &inputs, &mut check), Some(folder.clone()));
        assert!(check.unchecked.is_empty() && check.agreed == 1);
        let other = BTreeMap::from([(path.join("config.json").display().to_string(), sha256::of_bytes("abd"))]);
        assert_eq!(finder.find("a", path, &other, &mut check), None);
        assert!(check.unchecked[0].missing_input.contains(&hash), "{check:?}");
        let missing = BTreeMap::from([("/no/where/else".to_owned(), hash)]);
        assert_eq!(finder.find("b", Path::new("/no/where/else"), &missing, &mut check), None);
        assert!(check.unchecked[1].missing_input.contains("; not found"), "{check:?}");
    }
}
