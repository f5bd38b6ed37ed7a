//! What a worker is given to do: a grid, an artifact, or what was frozen of either when it was submitted.

use std::path::Path;
use std::process::ExitCode;

use super::grid_args::GridArgs;
use super::worker::AGAIN;
use crate::artifact::{self, Artifact, Gated, ResultsFolder};
use crate::cluster::{JobEnd, Submission};
use crate::error::{Error, Result};
use crate::grid::Grid;
use crate::results::Provenance;
use crate::store::Store;

/// A grid, and what belongs to it where it is an artifact's.
pub(super) struct Work {
    pub(super) artifact: Option<Artifact>,
    pub(super) grid: Grid,
    pub(super) gated: Gated,
    /// What was set from outside.
    pub(super) overrides: Vec<String>,
}

impl Work {
    /// What is asked for: a grid file, an artifact's file or name, or a submission's file.
    ///
    /// # Errors
    /// A mistake in the grid; a submission of another program or of other inputs.
    pub(super) fn of(asked: &GridArgs, no_gate: bool, store: &Store) -> Result<Self> {
        if Submission::is_one(asked.file()) {
            return Self::frozen(&Submission::read(asked.file())?, store);
        }
        let Some(artifact) = Artifact::read(asked.file())?.filter(|of| of.description.list.is_none()) else {
            let (mut grid, overrides) = (asked.grid()?, asked.overrides().to_vec());
            artifact::hold(&mut grid, &|file| store.input(file).map(|input| input.sha256().to_owned()))?;
            return Ok(Self { artifact: None, grid, gated: Gated::No, overrides });
        };
        Self::of_artifact(artifact, asked.profile(), asked.overrides(), no_gate, store)
    }

    /// An artifact's grid, and what the gate asks before it.
    ///
    /// # Errors
    /// A mistake in the grid, or another model under the name of one of the paper's.
    pub(super) fn of_artifact(
        artifact: Artifact,
        profile: Option<&str>,
        overrides: &[String],
        no_gate: bool,
        store: &Store,
    ) -> Result<Self> {
        let hash = |file: &Path| store.input(file).map(|input| input.sha256().to_owned());
        let mut grid = artifact.grid(profile, overrides)?;
        artifact::identify(&mut grid, &hash)?;
        let gated = match no_gate {
            true => Gated::No,
            false => {
                let mut dense = artifact.gate(&grid, profile, overrides)?;
                dense.as_mut().map_or(Ok(()), |dense| artifact::identify(dense, &hash))?;
                Gated::Yes(dense.map(Box::new))
            }
        };
        Ok(Self { artifact: Some(artifact), grid, gated, overrides: overrides.to_vec() })
    }

    /// What was frozen.
    ///
    /// # Errors
    /// A submission of another program or of other inputs.
    pub(super) fn frozen(submission: &Submission, store: &Store) -> Result<Self> {
        submission.check(store)?;
        let (grid, gate) = submission.grids()?;
        let overrides = submission.overrides.clone();
        let Some(call) = &submission.artifact else {
            return Ok(Self { artifact: None, grid, gated: Gated::No, overrides });
        };
        let gated = if call.gated { Gated::Yes(gate.map(Box::new)) } else { Gated::No };
        Ok(Self { artifact: Artifact::read(&call.file)?, grid, gated, overrides })
    }

    /// The grid that the gate asks first.
    pub(super) fn gate(&self) -> Option<&Grid> {
        match &self.gated {
            Gated::Yes(gate) => gate.as_deref(),
            Gated::No => None,
        }
    }
}

/// Refuses what `run` and `reproduce` refuse of grids that were read: a submission of another program or of other inputs, and
/// another model under the name of one of the paper's.
///
/// # Errors
/// What is refused, or a file that cannot be hashed.
pub(super) fn check(file: &Path, grids: &mut [Grid], of_artifact: bool, store: &Store) -> Result<()> {
    if Submission::is_one(file) {
        return Submission::read(file)?.check(store);
    }
    let hash = |file: &Path| store.input(file).map(|input| input.sha256().to_owned());
    grids.iter_mut().filter(|_| of_artifact).try_for_each(|grid| artifact::identify(grid, &hash))
}

/// Does what a command is for, which may be a job of a scheduler on a submission's file: then it is noted how it ended.
pub(super) fn noted(file: Option<&Path>, done: impl FnOnce() -> Result<u8>) -> Result<ExitCode> {
    let result = done();
    if let Some(file) = file.filter(|file| Submission::is_one(file)) {
        let bad = match &result {
            Ok(0 | AGAIN) => None,
            Ok(code) => Some((*code, "some cells have no result; the table tells why".to_owned())),
            Err(error) => Some((error.exit_code(), error.one_line())),
        };
        JobEnd::note(file, bad);
    }
    result.map(ExitCode::from)
}

/// Refuses to put the results of a submission in the place of a later run with other settings.
///
/// # Errors
/// There is one.
pub(super) fn not_over_a_later_one(submission: &Path, target: &ResultsFolder, grid: &Grid) -> Result<()> {
    let written = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    let later = written(&target.path().join(Provenance::FILE)) > written(submission);
    let Some(found) = target.replaces(grid)?.filter(|_| later) else { return Ok(()) };
    Err(Error::bad_input("the results folder holds a later run with other settings")
        .at(target.path().display().to_string())
        .found(found.split(';').next().unwrap_or_default().to_owned())
        .hint(format!("`ghostlab run {} --stored --results FOLDER` writes these elsewhere", submission.display())))
}
