//! A results folder holds one run: it is written beside its place and put there whole.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::sheet::PageSheet;
use crate::error::{Error, Result};
use crate::files::atomic::{ensure_writable, exchanged, is_temporary};
use crate::files::owner::Owner;
use crate::files::sha256;
use crate::grid::Grid;
use crate::results::{CHANNELS, DOCUMENTS, LATENCY, Provenance, StoredResults, settings_that_differ};

/// Where the results of a run go.
#[derive(Debug, Clone)]
pub struct ResultsFolder {
    path: PathBuf,
    as_described: bool,
}

/// Files that every run may leave, whatever its tables are called.
const OWN: [&str; 7] =
    [Provenance::FILE, StoredResults::FILE, PageSheet::FILE, DOCUMENTS, CHANNELS, LATENCY, "lm_eval"];

/// What was set from outside, as far as a folder's name shows it.
const SHOWN: usize = 48;

impl ResultsFolder {
    /// `NAME/PROFILE` below the results. A run with other settings than the file's has a folder of its own, called after
    /// the settings: `NAME/PROFILE+depth=2-1a2b3c4d`. Who gives the grid another name has chosen the folder already.
    pub fn new(results: &Path, name: &str, profile: Option<&str>, overrides: &[String]) -> Self {
        let plain = results.join(name).join(profile.unwrap_or_default());
        let named = overrides.iter().any(|text| text.split('=').next().is_some_and(|key| key.trim() == "name"));
        if overrides.is_empty() || named {
            return Self { path: plain.components().collect(), as_described: overrides.is_empty() };
        }
        // Of two settings of one key the later one counts; all else may stand in any order.
        let mut sorted: Vec<&str> = overrides.iter().map(|text| text.trim()).collect();
        sorted.sort_by_key(|text| text.split('=').next().unwrap_or_default().trim());
        let safe = |c: char| if c.is_ascii_alphanumeric() || ".,=-".contains(c) { c } else { '_' };
        let shown: String = sorted.join("+").chars().take(SHOWN).map(|c| if c == '+' { c } else { safe(c) }).collect();
        let hash = sha256::of_bytes(sorted.join("\n"));
        let base = plain.components().next_back().map(|last| last.as_os_str().to_string_lossy().into_owned());
        let folder = format!("{}+{shown}-{}", base.unwrap_or_default(), &hash[..8]);
        Self { path: plain.components().collect::<PathBuf>().with_file_name(folder), as_described: false }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is the run of the file as it is, without settings from outside.
    pub fn as_described(&self) -> bool {
        self.as_described
    }

    /// Proves that the folder can be put in its place, so that a run does not lose its results at its very end.
    ///
    /// # Errors
    /// Exit code 3, naming the folder.
    pub fn check(&self) -> Result<()> {
        if self.path.exists() && !self.path.is_dir() {
            return Err(Error::missing("the results folder cannot be written to")
                .at(self.path.display().to_string())
                .expected("a folder, or nothing")
                .found("a file")
                .hint("move the file away, or choose another folder with --results"));
        }
        ensure_writable(above(&self.path), &[])
    }

    /// What is to be said where the folder holds a run with other settings, which this one will replace.
    ///
    /// # Errors
    /// Never for a loaded grid, unless a path is not UTF-8.
    pub fn replaces(&self, grid: &Grid) -> Result<Option<String>> {
        // A folder that cannot be read holds nothing that could be missed.
        let Ok(before) = StoredResults::read(&self.path) else { return Ok(None) };
        let settings = settings_that_differ(&before.settings, &grid.resolved()?);
        let paths: Vec<&str> = settings.iter().map(|setting| setting.path.as_str()).collect();
        Ok((!paths.is_empty()).then(|| {
            let (folder, paths) = (self.path.display(), paths.join(", "));
            format!("{folder} holds a run with other settings ({paths}); this one will replace it")
        }))
    }

    /// A folder beside the place, to be filled.
    ///
    /// # Errors
    /// Exit code 3, naming the folder.
    pub fn stage(&self) -> Result<Staging> {
        // Whoever made the folder a link wants it where the link leads.
        let place = if self.path.is_dir() { fs::canonicalize(&self.path).ok() } else { None };
        let place = place.unwrap_or_else(|| self.path.clone());
        let (parent, name) = (above(&place).to_owned(), file_name(&place));
        fs::create_dir_all(&parent).map_err(|error| Error::io("create", &parent, &error))?;
        sweep(&parent, &name, &place);
        let folder = parent.join(format!(".{name}.{}.part", Owner::this().tag()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir(&folder).map_err(|error| Error::io("create", &folder, &error))?;
        Ok(Staging { folder, place, shown: self.path.clone() })
    }
}

/// A results folder that is being written. Dropped before it is published, it leaves nothing.
#[derive(Debug)]
pub struct Staging {
    folder: PathBuf,
    place: PathBuf,
    shown: PathBuf,
}

impl Staging {
    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Where a file of the folder will be found.
    pub fn published(&self, file: &Path) -> PathBuf {
        file.strip_prefix(&self.folder).map_or_else(|_| file.to_owned(), |name| self.shown.join(name))
    }

    /// Puts the folder in its place, whole. Of what was there the files of the run before go; what is not a run's (notes,
    /// the folder of another profile) stays.
    ///
    /// # Errors
    /// Exit code 3, naming the folder.
    pub fn publish(self) -> Result<()> {
        let failed = |error: &std::io::Error| Error::io("replace", &self.shown, error);
        if !self.place.exists() {
            return fs::rename(&self.folder, &self.place).map_err(|error| failed(&error));
        }
        let old = if exchanged(&self.folder, &self.place) {
            self.folder.clone()
        } else {
            // Not every file system can exchange two folders; what a crash leaves in between is found by `sweep`.
            let aside = self.folder.with_extension("old");
            fs::rename(&self.place, &aside).map_err(|error| failed(&error))?;
            if let Err(error) = fs::rename(&self.folder, &self.place) {
                fs::rename(&aside, &self.place).ok();
                return Err(failed(&error));
            }
            aside
        };
        keep_strangers(&old, &self.place);
        fs::remove_dir_all(&old).ok();
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Moves what no run has written from an old results folder into the new one.
fn keep_strangers(old: &Path, new: &Path) {
    let own = written(old);
    let ours = |name: &str| {
        // A temporary file of a run that was killed is called after the file that it would have become.
        let temporary = name.strip_prefix('.').and_then(|rest| Some(rest.rsplit_once('.')?.0));
        let temporary = temporary.is_some_and(|name| own.contains(name) || name == "probe");
        own.contains(name) || temporary || is_temporary(name)
    };
    for item in fs::read_dir(old).into_iter().flatten().flatten() {
        let name = item.file_name().to_string_lossy().into_owned();
        if !ours(&name) && !new.join(item.file_name()).exists() {
            fs::rename(item.path(), new.join(item.file_name())).ok();
        }
    }
}

/// What the run before has written, by its own record.
fn written(folder: &Path) -> BTreeSet<String> {
    let record = fs::read(folder.join(Provenance::FILE)).ok();
    let record: Option<serde_json::Value> = record.and_then(|text| serde_json::from_slice(&text).ok());
    let Some(record) = record else { return BTreeSet::new() };
    let files = record["files"].as_object().into_iter().flat_map(|files| files.keys().cloned());
    files.chain(OWN.map(str::to_owned)).collect()
}

/// Filling a folder takes seconds: one that nobody has touched for so long was left by a crash.
const LEFT: Duration = Duration::from_secs(600);

/// Clears up beside a place what a crash has left there.
fn sweep(parent: &Path, name: &str, place: &Path) {
    let prefix = format!(".{name}.");
    for item in fs::read_dir(parent).into_iter().flatten().flatten() {
        let found = item.file_name().to_string_lossy().into_owned();
        let Some(rest) = found.strip_prefix(&prefix) else { continue };
        let age = item.metadata().and_then(|meta| meta.modified()).ok();
        let age = age.and_then(|time| SystemTime::now().duration_since(time).ok()).unwrap_or_default();
        let id = |ending: &str| {
            rest.strip_suffix(ending).filter(|id| Owner::is_tag(id) || id.chars().all(|c| c.is_ascii_digit()))
        };
        let own = |ending: &str| id(ending).is_some();
        // Whose process is known to be dead is touched by nobody, however young it is.
        let left = match id(".part").or(id(".old")).and_then(Owner::of_tag_lives) {
            Some(lives) => !lives,
            None => age >= LEFT,
        };
        if own(".old") && !place.exists() {
            fs::rename(item.path(), place).ok();
        } else if (own(".part") || own(".old")) && left {
            keep_strangers(&item.path(), place);
            fs::remove_dir_all(item.path()).ok();
        }
    }
}

fn above(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(results: &Path, overrides: &[&str]) -> ResultsFolder {
        ResultsFolder::new(results, "b", Some("tiny"), &overrides.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Publishes a run that wrote these files.
    fn publish(target: &ResultsFolder, files: &[&str]) {
        let staging = target.stage().unwrap();
        for file in files {
            fs::write(staging.path().join(file), *file).unwrap();
        }
        let record = serde_json::json!({"files": files.iter().map(|file| (*file, "")).collect::<std::collections::BTreeMap<_, _>>()});
        fs::write(staging.path().join(Provenance::FILE), record.to_string()).unwrap();
        fs::create_dir(staging.path().join("lm_eval")).unwrap();
        fs::write(staging.path().join("lm_eval").join(files[0]), "").unwrap();
        staging.publish().unwrap();
    }

    #[test]
    fn settings_from_outside_have_a_folder_of_their_own() {
        let results = Path::new("results");
        assert_eq!(target(results, &[]).path(), Path::new("results/b/tiny"));
        assert_eq!(ResultsFolder::new(results, "b", None, &[]).path(), Path::new("results/b"));
        let own = target(results, &["depth=2"]);
        let name = own.path().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("tiny+depth=2-") && name.len() == "tiny+depth=2-".len() + 8, "{name}");
        assert_eq!(own.path().parent(), Some(Path::new("results/b")));
        assert_ne!(own.path(), target(results, &["depth=3"]).path());
        let two = target(results, &["calibration.seed=1", "depth=2"]);
        assert_eq!(two.path(), target(results, &["depth=2", "calibration.seed=1"]).path(), "the order says nothing");
        assert_ne!(target(results, &["depth=2", "depth=3"]).path(), target(results, &["depth=3", "depth=2"]).path());
        // A name that cannot lead anywhere else, and not too long to be one.
        let wild = target(results, &[&format!("recovery=[{{name: ../../x, a: {}}}]", "y".repeat(400))]);
        assert_eq!(wild.path().parent(), Some(Path::new("results/b")));
        assert!(wild.path().file_name().unwrap().len() < 80);
        assert!(target(results, &[]).as_described() && !own.as_described());
        assert_eq!(ResultsFolder::new(results, "c", None, &["name=c".into()]).path(), Path::new("results/c"));
    }

    #[test]
    fn a_folder_holds_one_run_and_what_is_not_a_runs_stays() {
        let root = tempfile::tempdir().unwrap();
        let target = target(root.path(), &[]);
        publish(&target, &["one.csv", "both.csv"]);
        fs::write(target.path().join("notes.txt"), "mine").unwrap();
        fs::create_dir(target.path().join("other")).unwrap();
        fs::write(target.path().join(".both.csv.Ab12Cd"), "half").unwrap();
        publish(&target, &["both.csv", "two.csv"]);
        assert_eq!(names(target.path()), ["both.csv", "lm_eval", "notes.txt", "other", "run.json", "two.csv"]);
        assert_eq!(names(&target.path().join("lm_eval")), ["both.csv"]);
        assert_eq!(names(target.path().parent().unwrap()), ["tiny"], "nothing is left beside it");
    }

    #[test]
    fn a_run_that_fails_while_it_writes_leaves_the_one_before() {
        let root = tempfile::tempdir().unwrap();
        let target = target(root.path(), &[]);
        publish(&target, &["one.csv"]);
        let staging = target.stage().unwrap();
        fs::write(staging.path().join("two.csv"), "half").unwrap();
        drop(staging);
        assert_eq!(names(target.path()), ["lm_eval", "one.csv", "run.json"]);
        assert_eq!(names(target.path().parent().unwrap()), ["tiny"]);
    }

    #[test]
    fn what_a_crash_left_beside_a_folder_is_cleared_up() {
        let root = tempfile::tempdir().unwrap();
        let target = target(root.path(), &[]);
        let parent = target.path().parent().unwrap();
        fs::create_dir_all(parent.join(".tiny.4.old")).unwrap();
        fs::write(parent.join(".tiny.4.old/one.csv"), "one").unwrap();
        fs::create_dir(parent.join(".tiny.5.part")).unwrap();
        let killed = Owner { pid: 99_999_999, ..Owner::this() };
        if killed.lives() == Some(false) {
            fs::create_dir(parent.join(format!(".tiny.{}.part", killed.tag()))).unwrap();
        }
        let long_ago = SystemTime::now() - 2 * LEFT;
        fs::File::open(parent.join(".tiny.5.part")).unwrap().set_modified(long_ago).unwrap();
        drop(target.stage().unwrap());
        assert_eq!(names(parent), ["tiny"], "the run before is back, the half one is gone");
        assert_eq!(names(target.path()), ["one.csv"]);
    }

    #[test]
    fn a_file_in_the_way_is_refused_before_the_run() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("b")).unwrap();
        fs::write(root.path().join("b/tiny"), "").unwrap();
        let error = target(root.path(), &[]).check().unwrap_err();
        assert!(error.exit_code() == 3 && error.to_string().contains("found:    a file"), "{error}");
    }
}
