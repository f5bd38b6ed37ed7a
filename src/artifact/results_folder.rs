//! Results folders, one for each [`RunDescription`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::page_part::PagePart;
use super::recorded::{self, RecordComparison};
use crate::error::{Error, Result};
use crate::files::output::{Draft, Manifest, OutputFolder};
use crate::files::regular;
use crate::files::sha256;
use crate::grid::Grid;
use crate::results::{Provenance, RunDescription, StoredResults, changed_settings, may_be_left_out};

#[derive(Debug, Clone)]
pub struct ResultsFolder {
    output: OutputFolder,
    description: RunDescription,
    as_described: bool,
    record: RecordMode,
}

/// Relation of a run to the recorded run (the run committed to the repository) at its path.
#[derive(Debug, Clone)]
enum RecordMode {
    /// No recorded run exists at this path.
    None,
    /// The run becomes the recorded one. Noisy timings are rejected unless `may_be_noisy` is set.
    This { may_be_noisy: bool },
    /// A recorded run exists and is kept. If the results differ from it, they are written to the folder next to it with
    /// the suffix `+here`.
    Kept { local: OutputFolder },
}

#[derive(Debug)]
pub struct PublishedFiles {
    /// Final paths of the files.
    pub files: Vec<PathBuf>,
    /// Comparison with the recorded run, if there is one.
    pub recorded: Option<String>,
}

/// Kind of output folder, stored in its marker file.
const KIND: &str = "results";
/// Maximum number of characters that the settings contribute to a folder's name.
const MAX_SETTING_CHARS: usize = 48;

impl ResultsFolder {
    /// Determines the folder for a run, which is normally `NAME/PROFILE`.
    ///
    /// The run gets a separate folder such as `NAME/PROFILE+depth=2-1a2b3c4d` if it overrides settings or uses another
    /// engine. The same applies if the normal folder contains results with another description.
    pub fn new(results: &Path, description: RunDescription) -> Self {
        let plain = results.join(&description.name).join(description.profile.as_deref().unwrap_or_default());
        let plain: PathBuf = plain.components().collect();
        let is_unchanged = description.differs.is_empty();
        // A renamed grid has a separate folder anyway, so it needs no suffix.
        let is_plain = is_unchanged || description.is_renamed();
        let path = match is_plain && Provenance::read_description(&plain).is_none_or(|run| run.is_same(&description)) {
            true => plain.clone(),
            false => with_suffixes(&plain, &description.name_parts()),
        };
        let as_described = is_unchanged && path == plain;
        let record = match as_described && Provenance::is_recorded(&path) {
            true => RecordMode::Kept { local: OutputFolder::new(local_run_folder(&path), KIND) },
            false => RecordMode::None,
        };
        Self { output: OutputFolder::new(path, KIND), description, as_described, record }
    }

    /// Makes the run the recorded one.
    ///
    /// # Errors
    /// Fails if the run deviates from the artifact's description.
    pub fn with_recording(self, may_be_noisy: bool) -> Result<Self> {
        if !self.as_described {
            return Err(Error::bad_input("only an artifact with its default settings can be recorded")
                .at(self.path().display().to_string())
                .expected("no overrides, the default engine and the default results folder")
                .found(self.description.name_parts().join(", "))
                .hint("leave out --record: this run has its own results folder"));
        }
        Ok(Self { record: RecordMode::This { may_be_noisy }, ..self })
    }

    /// Returns whether the run will be the recorded one.
    pub fn is_recording(&self) -> bool {
        matches!(self.record, RecordMode::This { .. })
    }

    /// Returns whether noisy timings must be rejected because the run will be recorded.
    pub fn rejects_noisy_times(&self) -> bool {
        matches!(self.record, RecordMode::This { may_be_noisy: false })
    }

    pub fn list_folder(results: &Path, name: &str) -> OutputFolder {
        OutputFolder::new(results.join(name), KIND)
    }

    /// Adds files to a results folder.
    ///
    /// # Errors
    /// Fails if one of the names belongs to a file that ghostlab did not write, or if the folder is not writable.
    pub fn add(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<()> {
        OutputFolder::new(folder, KIND).put(files)
    }

    pub fn path(&self) -> &Path {
        self.output.path()
    }

    /// Returns the existing folders that the run may write to.
    pub fn folders(&self) -> Vec<&Path> {
        let local = if let RecordMode::Kept { local } = &self.record { Some(local.path()) } else { None };
        [self.path()].into_iter().chain(local).filter(|folder| folder.is_dir()).collect()
    }

    pub fn description(&self) -> &RunDescription {
        &self.description
    }

    /// Returns whether the run uses the unmodified description.
    pub fn as_described(&self) -> bool {
        self.as_described
    }

    /// Returns the folder that the run writes to.
    pub fn output(&self) -> &OutputFolder {
        match &self.record {
            RecordMode::Kept { local } => local,
            RecordMode::None | RecordMode::This { .. } => &self.output,
        }
    }

    /// Lists the differences in settings and input hashes between the run in the folder and `grid`.
    ///
    /// # Errors
    /// Fails if a path is not UTF-8.
    pub fn differences_from(&self, grid: &Grid, inputs: &BTreeMap<String, String>) -> Result<Vec<String>> {
        // Unreadable results cannot be compared, and replacing them loses nothing.
        let Ok(before) = StoredResults::read(self.path()) else { return Ok(Vec::new()) };
        Ok(changed_settings(&before, &grid.resolved()?, inputs))
    }

    /// Returns a warning if this run would overwrite results computed with different settings, unless a recorded run is
    /// kept.
    ///
    /// # Errors
    /// Fails if a path is not UTF-8.
    pub fn replacement_warning(&self, grid: &Grid, inputs: &BTreeMap<String, String>) -> Result<Option<String>> {
        if matches!(self.record, RecordMode::Kept { .. }) {
            return Ok(None);
        }
        let paths = self.differences_from(grid, inputs)?;
        Ok((!paths.is_empty()).then(|| {
            let folder = self.path().display();
            let paths = paths.join(", ");
            format!("{folder} contains a run with other settings ({paths}), which will be replaced")
        }))
    }

    /// Moves a finished draft to its final location.
    ///
    /// A recorded run is replaced only if the new run will be recorded and its results differ. If a run reproduces the
    /// recorded numbers, the recorded folder only receives the large untracked files whose hashes are in its
    /// `run.json`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Draft::publish`], or if the files of a run that will be recorded would identify the
    /// machine.
    pub fn publish(&self, draft: Draft, files: &[PathBuf]) -> Result<PublishedFiles> {
        let staged = draft.path().to_owned();
        let plain = self.path();
        if self.is_recording() {
            recorded::check_anonymous(&staged)?;
        }
        let comparison = match &self.record {
            RecordMode::None => return publish_draft(draft, files, None),
            RecordMode::This { .. } if !Provenance::is_recorded(plain) => {
                return publish_draft(draft, files, Some("recorded".to_owned()));
            }
            RecordMode::This { .. } | RecordMode::Kept { .. } => recorded::compare(&staged, plain)?,
        };
        match (&self.record, comparison) {
            (RecordMode::This { .. }, RecordComparison::IdenticalNumbers(what) | RecordComparison::Different(what)) => {
                let summary = format!("recorded again; differences from the previous record: {what}");
                publish_draft(draft, files, Some(summary))
            }
            (RecordMode::Kept { local }, RecordComparison::Different(what)) => {
                let other = plain.display();
                let ours = local.path().display();
                let summary = format!(
                    "differs from the recorded run in {other}: {what}; new results are in {ours} (for \
                     details, run `ghostlab compare {other} {ours}`)"
                );
                publish_draft(draft, files, Some(summary))
            }
            (RecordMode::This { .. }, RecordComparison::Identical) if !have_same_page(&staged, plain)? => {
                let summary = "recorded again; differences from the previous record: the results page".to_owned();
                publish_draft(draft, files, Some(summary))
            }
            (record, comparison) => {
                let summary = describe_reproduction(plain, comparison);
                if let RecordMode::Kept { local } = record
                    && local.path().exists()
                {
                    return publish_draft(draft, files, Some(summary));
                }
                self.output.put(&missing_large_files(&draft, plain)?)?;
                let kept =
                    files.iter().map(|file| file.strip_prefix(&staged).map_or(file.clone(), |name| plain.join(name)));
                Ok(PublishedFiles { files: kept.filter(|file| file.exists()).collect(), recorded: Some(summary) })
            }
        }
    }
}

/// Returns whether two folders yield the same results page.
fn have_same_page(one: &Path, other: &Path) -> Result<bool> {
    Ok(match (PagePart::read(one)?, PagePart::read(other)?) {
        (Some(one), Some(other)) => one.renders_same_page(&other),
        (one, other) => one.is_none() && other.is_none(),
    })
}

/// Formats a message saying that a run reproduced the recorded numbers.
fn describe_reproduction(recorded: &Path, comparison: RecordComparison) -> String {
    match comparison {
        RecordComparison::IdenticalNumbers(what) => {
            format!("numbers identical to the recorded run in {}; {what}", recorded.display())
        }
        RecordComparison::Identical | RecordComparison::Different(_) => {
            format!("identical to the recorded run in {}", recorded.display())
        }
    }
}

/// Publishes a draft. `files` are the paths of its files in the draft.
fn publish_draft(draft: Draft, files: &[PathBuf], recorded: Option<String>) -> Result<PublishedFiles> {
    let files = files.iter().map(|file| draft.published(file)).collect();
    draft.publish()?;
    Ok(PublishedFiles { files, recorded })
}

/// Returns the folder next to the recorded run that receives different results.
pub fn local_run_folder(recorded: &Path) -> PathBuf {
    let base = recorded.file_name().map(|last| last.to_string_lossy().into_owned()).unwrap_or_default();
    recorded.with_file_name(format!("{base}{LOCAL_SUFFIX}"))
}

/// Suffix for the name of the folder next to the recorded run.
const LOCAL_SUFFIX: &str = "+here";

/// Returns the large files of a draft that are missing from a folder although its manifest lists them with the same
/// hash.
fn missing_large_files(draft: &Draft, folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let manifest = Manifest::read(folder);
    let mut names = draft.file_names()?;
    names.retain(|name| may_be_left_out(name) && folder.join(name).symlink_metadata().is_err());
    let files = names.into_iter().map(|name| Ok((name.clone(), regular::read(&draft.path().join(&name))?)));
    files.filter(|file| file.as_ref().is_ok_and(|(name, bytes)| manifest.lists(name, bytes)) || file.is_err()).collect()
}

fn with_suffixes(plain: &Path, parts: &[String]) -> PathBuf {
    let shown = parts
        .iter()
        .map(|part| {
            part.chars()
                .map(|c| if c.is_ascii_alphanumeric() || ".,=-".contains(c) { c } else { '_' })
                .collect::<String>()
        })
        .collect::<Vec<_>>()
        .join("+");
    let shown: String = shown.chars().take(MAX_SETTING_CHARS).collect();
    let hash = sha256::of_bytes(parts.join("\n"));
    let base = plain.file_name().map(|last| last.to_string_lossy().into_owned()).unwrap_or_default();
    plain.with_file_name(format!("{base}+{shown}-{}", &hash[..8]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::model::CPU;
    use crate::results::RunCommand;

    fn description(differs: &[&str]) -> RunDescription {
        RunDescription {
            name: "b".into(),
            profile: Some("tiny".into()),
            by: RunCommand::Run,
            overrides: differs.iter().filter(|text| text.contains('=')).map(ToString::to_string).collect(),
            engines: BTreeMap::from([("a".to_owned(), CPU.into())]),
            differs: differs.iter().map(ToString::to_string).collect(),
        }
    }

    fn target(results: &Path, differs: &[&str]) -> ResultsFolder {
        ResultsFolder::new(results, description(differs))
    }

    #[test]
    fn overridden_run_has_a_separate_folder() {
        let results = Path::new("results");
        assert_eq!(target(results, &[]).path(), Path::new("results/b/tiny"));
        let bare = RunDescription { profile: None, ..description(&[]) };
        assert_eq!(ResultsFolder::new(results, bare).path(), Path::new("results/b"));
        let first = target(results, &["depth=2"]);
        let name = first.path().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("tiny+depth=2-") && name.len() == "tiny+depth=2-".len() + 8, "{name}");
        assert_eq!(first.path().parent(), Some(Path::new("results/b")));
        let all = [&["depth=2"][..], &["depth=3"], &["depth=2", "cpu-bf16"], &["cpu-bf16"], &["run"]];
        let paths: std::collections::BTreeSet<_> =
            all.iter().map(|overrides| target(results, overrides).path().to_owned()).collect();
        assert_eq!(paths.len(), all.len(), "{paths:?}");
        // The name must neither escape the parent directory nor exceed the length limit.
        let wild = target(results, &[&format!("recovery=[{{name: ../../x, a: {}}}]", "y".repeat(400))]);
        assert_eq!(wild.path().parent(), Some(Path::new("results/b")));
        assert!(wild.path().file_name().unwrap().len() < 80);
        assert!(target(results, &[]).as_described() && !first.as_described());
        let named = RunDescription { name: "c".into(), profile: None, ..description(&["name=c"]) };
        let named = ResultsFolder::new(results, named);
        assert!(named.path() == Path::new("results/c") && !named.as_described());
    }

    #[test]
    fn results_with_another_description_are_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let plain = target(root.path(), &[]);
        fs::create_dir_all(plain.path()).unwrap();
        write_provenance(&plain, &description(&[]));
        assert_eq!(target(root.path(), &[]).path(), plain.path());
        write_provenance(&plain, &RunDescription { by: RunCommand::Reproduce, ..description(&[]) });
        let recorded = target(root.path(), &[]);
        let name = recorded.path().file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with("tiny+cpu-f32+run-") && !recorded.as_described(), "{name}");
    }

    fn write_provenance(folder: &ResultsFolder, description: &RunDescription) {
        fs::write(folder.path().join(Provenance::FILE), json!({"description": description}).to_string()).unwrap();
    }
}
