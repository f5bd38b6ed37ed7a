//! Grids and artifacts that commands work on, loaded from files or from the frozen copies in a submission.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::directories;
use super::grid_args::{GridArgs, GridSource};
use super::stop::EXIT_TEMPFAIL;
use crate::artifact::{self, Artifact, GateMode, ResultsFolder};
use crate::cluster::{JobEnd, Submission};
use crate::error::{Error, Result};
use crate::files::sha256;
use crate::grid::{AxisChoice, Grid, GridFile, InputList};
use crate::model::EngineRequest;
use crate::results::{Provenance, RunCommand, RunDescription};
use ghostlab_store::Store;

/// Grid to run, with the artifact it belongs to and the artifact's gate ([`GateMode`]).
pub(super) struct RequestedWork {
    pub(super) artifact: Option<Artifact>,
    pub(super) grid: Grid,
    pub(super) gated: GateMode,
    pub(super) overrides: Vec<String>,
}

impl RequestedWork {
    /// Loads a grid file, an artifact by its file or name, or a submission file.
    ///
    /// # Errors
    /// Fails if the grid is invalid, or if a submission was created by another program or with other inputs.
    pub(super) fn new(grid_args: &GridArgs, no_gate: bool, store: &Store) -> Result<Self> {
        let file = match grid_args.read()? {
            GridSource::File(file) => file,
            GridSource::Submission(submission) => {
                let artifact = submission.artifact.as_ref().map(|call| Artifact::read(&call.file)).transpose()?;
                return Self::from_submission(&submission, artifact.flatten(), store);
            }
        };
        let Some(artifact) = Artifact::from_file(&file)?.filter(|artifact| artifact.description.list.is_none()) else {
            let mut grid = grid_args.grid_from_file(&file)?;
            let overrides = grid_args.overrides.clone();
            artifact::check_pins(&mut grid, &file_hasher(store))?;
            return Ok(Self { artifact: None, grid, gated: GateMode::No, overrides });
        };
        Self::from_artifact(artifact, grid_args.profile.as_deref(), &grid_args.overrides, no_gate, store)
    }

    /// Loads the grid of an artifact and, unless `no_gate` is set, the grid with the dense backbones for its gate.
    ///
    /// # Errors
    /// Fails if the grid is invalid, or if a model differs from the paper's model with the same name.
    pub(super) fn from_artifact(
        artifact: Artifact,
        profile: Option<&str>,
        overrides: &[String],
        no_gate: bool,
        store: &Store,
    ) -> Result<Self> {
        let hash = file_hasher(store);
        let mut grid = artifact.grid(profile, overrides)?;
        artifact::identify(&mut grid, &hash)?;
        let gated = match no_gate {
            true => GateMode::No,
            false => {
                let mut dense = artifact.gate(&grid, profile, overrides)?;
                dense.as_mut().map_or(Ok(()), |dense| artifact::identify(dense, &hash))?;
                GateMode::Yes(dense.map(Box::new))
            }
        };
        Ok(Self { artifact: Some(artifact), grid, gated, overrides: overrides.to_vec() })
    }

    /// Loads a frozen submission. `artifact` is the artifact that it belongs to, if any.
    ///
    /// # Errors
    /// Fails if the submission was created by another program or with other inputs.
    pub(super) fn from_submission(submission: &Submission, artifact: Option<Artifact>, store: &Store) -> Result<Self> {
        submission.check(store)?;
        let (grid, gate) = submission.grids()?;
        let overrides = submission.overrides.clone();
        let gated = match &submission.artifact {
            Some(call) if call.gated => GateMode::Yes(gate.map(Box::new)),
            _ => GateMode::No,
        };
        Ok(Self { artifact, grid, gated, overrides })
    }

    pub(super) fn gate(&self) -> Option<&Grid> {
        match &self.gated {
            GateMode::Yes(gate) => gate.as_deref(),
            GateMode::No => None,
        }
    }
}

/// Applies the input checks of `run` and `reproduce`. A submission is checked against its recorded program and inputs.
/// The grids of an artifact are checked against the lock file and, in the profile `paper`, against the paper's models.
/// This marks unpinned backbones as unidentified. Other grids are not checked.
///
/// # Errors
/// Fails if a check fails or a file cannot be hashed.
pub(super) fn check_grids(source: &GridSource, grids: &mut [Grid], is_artifact: bool, store: &Store) -> Result<()> {
    if let Some(submission) = source.submission() {
        return submission.check(store);
    }
    let hash = file_hasher(store);
    grids.iter_mut().filter(|_| is_artifact).try_for_each(|grid| artifact::identify(grid, &hash))
}

/// Returns the results directory that `run` uses for a grid file or frozen grid.
///
/// # Errors
/// Fails if the file is not a grid or this machine does not support the engine.
pub(super) fn run_results_folder(
    grid_args: &GridArgs,
    source: &GridSource,
    grid: &Grid,
    results: Option<&PathBuf>,
) -> Result<ResultsFolder> {
    let results = directories::default_directory(results, "results", Some(grid_args.file()));
    let (overrides, is_artifact) = match source {
        GridSource::Submission(submission) => (submission.overrides.as_slice(), false),
        GridSource::File(file) => {
            let overrides =
                effective_overrides(&grid_args.overrides, grid, || file.grid(grid_args.profile.as_deref(), &[]))?;
            (overrides, Artifact::from_file(file)?.is_some())
        }
    };
    let description =
        RunDescription::new(grid, &grid.name, RunCommand::Run, is_artifact, overrides, grid_args.engine.request())?;
    Ok(ResultsFolder::new(&results, description))
}

/// Returns the results directory that `reproduce` uses for an artifact.
///
/// # Errors
/// Fails if this machine does not support the engine.
pub(super) fn artifact_results_folder(
    artifact: &Artifact,
    grid: &Grid,
    overrides: &[String],
    engine: EngineRequest,
    results: &Path,
) -> Result<ResultsFolder> {
    let overrides = effective_overrides(overrides, grid, || artifact.grid(grid.profile.as_deref(), &[]))?;
    let description = RunDescription::new(grid, &artifact.name, RunCommand::Reproduce, true, overrides, engine)?;
    Ok(ResultsFolder::new(results, description))
}

/// Returns the settings in which a run differs from the artifact's definition.
pub(super) fn differing_settings(target: &ResultsFolder) -> Vec<String> {
    if target.as_described() { Vec::new() } else { target.description().name_parts() }
}

/// Returns an error if a submission would replace the results of a later run that used other settings or inputs.
pub(super) fn check_not_newer(file: &Path, submission: &Submission, target: &ResultsFolder, grid: &Grid) -> Result<()> {
    if modified_time(&target.path().join(Provenance::FILE)) <= modified_time(file) {
        return Ok(());
    }
    let differs = target.differences_from(grid, submission.inputs())?;
    if differs.is_empty() {
        return Ok(());
    }
    Err(Error::bad_input("the results folder contains a later run with other settings")
        .at(target.path().display().to_string())
        .expected("an empty folder, results older than the submission, or results with the same settings")
        .found(format!("other {}", differs.join(", ")))
        .hint(format!(
            "run the report command in {} with another `--results` folder",
            file.with_file_name(Submission::SCRIPT).display()
        )))
}

fn modified_time(path: &Path) -> Option<std::time::SystemTime> {
    std::fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// Returns the overrides, or an empty list if they do not change the grid.
///
/// # Errors
/// Fails if a path in the grid is not UTF-8.
fn effective_overrides<'a>(
    overrides: &'a [String],
    grid: &Grid,
    build_without_overrides: impl FnOnce() -> Result<Grid>,
) -> Result<&'a [String]> {
    let same = match (!overrides.is_empty()).then(build_without_overrides) {
        Some(Ok(plain)) => plain.resolved()? == grid.resolved()?,
        _ => false,
    };
    Ok(if same { &[] } else { overrides })
}

/// Runs a command. If `file` is a submission, records how its job ended.
pub(super) fn with_job_end(file: Option<&Path>, command: impl FnOnce() -> Result<u8>) -> Result<ExitCode> {
    let result = command();
    if let Some(file) = file.filter(|file| Submission::is_submission(file)) {
        let failure = match &result {
            Ok(0 | EXIT_TEMPFAIL) => None,
            Ok(code) => Some((*code, "some cells have no result (see the table)".to_owned())),
            Err(error) => Some((error.exit_code(), error.one_line())),
        };
        JobEnd::record(file, failure);
    }
    result.map(ExitCode::from)
}

/// Returns the inputs of a grid file or of the artifacts named `target`, which may be `all`.
///
/// # Errors
/// Fails if a grid is invalid, a name is unknown, or a path is not a grid.
pub(super) fn read_target_inputs(
    target: &str,
    profile: Option<&str>,
    overrides: &[String],
    experiments: impl FnOnce() -> Result<PathBuf>,
) -> Result<Vec<InputList>> {
    let file = Path::new(target);
    if file.is_file() {
        let file = GridFile::read(file)?;
        return match Artifact::from_file(&file)? {
            Some(artifact) => artifact.needs(profile, overrides),
            None => Ok(vec![file.needs(profile, overrides, &AxisChoice::ALL)?]),
        };
    }
    if file.is_dir() || file.components().count() > 1 || file.extension().is_some() {
        let found = if file.is_dir() { "a folder without config.json" } else { "nothing" };
        return Err(Error::missing("unknown target")
            .at(target)
            .expected("an artifact's name, a grid file, a model folder or a .gguf file")
            .found(found));
    }
    let names = [target.to_owned()];
    let (all, _) = artifact::all_for(&experiments()?, &names)?;
    let (chosen, _) = artifact::partition_by_profile(artifact::select(&all, &names)?, &names, profile);
    let needs = chosen.into_iter().map(|artifact| artifact.needs(profile, overrides));
    Ok(needs.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Returns a function that hashes files. It reuses the hashes cached in the store.
pub(super) fn file_hasher<'s>(store: impl Into<Option<&'s Store>>) -> impl Fn(&Path) -> Result<String> {
    let store: Option<&Store> = store.into();
    move |path: &Path| match store {
        Some(store) => store.input(path).map(|input| input.sha256().to_owned()),
        None => sha256::of_file(path).map(|(hash, _)| hash).map_err(|error| Error::io("read", path, &error)),
    }
}
