//! An artifact of races: the cells of another one, searched under its budgets.

use std::path::Path;
use std::time::SystemTime;

use super::answer::done::{MadeArtifact, all_shown, shown};
use super::units::columns;
use super::work::differs;
use crate::artifact::{Artifact, Executor, Published, Raced, ResultsFolder, Runner};
use crate::error::{Error, Result};
use crate::exec::{self, GridOutcome};
use crate::grid::{Grid, RacesEntry};
use crate::results::StoredResults;
use crate::search::{Found, Laboratory, parts, search};

/// What is raced, and where it goes.
pub(super) struct Race<'a> {
    pub(super) artifact: &'a Artifact,
    pub(super) races: &'a RacesEntry,
    pub(super) grid: Grid,
    /// The folder of the races.
    pub(super) target: &'a ResultsFolder,
    /// That of all artifacts.
    pub(super) results: &'a Path,
    pub(super) quiet: bool,
}

/// Races, writes what came of it, and says it beside the other artifact's best rows.
pub(super) fn made(race: &Race<'_>, runner: &Runner<'_>) -> Result<MadeArtifact> {
    let Race { artifact, races, grid, target, results, quiet } = race;
    let started = SystemTime::now();
    let searches = parts(grid);
    if searches.is_empty() {
        return Err(Error::bad_input("an artifact of races has no `search`").at(artifact.file.display().to_string()));
    }
    target.check(&Raced::files(artifact, searches.len()))?;
    let run = |grid: &Grid| -> Result<GridOutcome> {
        let outcome = runner.run(grid, target.path())?;
        match outcome.cells.iter().find(|of| runner.stored && of.missing.is_some() && of.failure.is_none()) {
            None => Ok(outcome),
            Some(of) => Err(Error::missing("a search is not made yet, or not wholly")
                .at(of.cell.to_string())
                .hint("without --stored it is made")),
        }
    };
    let Runner { store, settings, reporter, stop, stored } = *runner;
    let lab = Laboratory { store, settings, reporter, stop, run: &run, times: !stored };
    let found = searches.iter().map(|one| search(one, &lab)).collect::<Result<Vec<Found>>>()?;
    let profile = grid.profile.clone().unwrap_or_default();
    let whole = StoredResults::read(&results.join(&races.beside).join(&profile)).ok();
    let raced = Raced::new(grid, races, &found, whole.as_ref());
    let dense = Grid { cells: grid.cells.iter().filter(|of| of.is_dense()).cloned().collect(), ..grid.clone() };
    let dense = exec::stored(&dense, settings, store, &())?;
    let Published { files, recorded } = raced.publish(artifact, &dense, target, started)?;
    if !quiet {
        println!("{}\n\n{}", artifact.description.title, columns(&raced.table(), &[]));
        raced.notes().iter().for_each(|note| println!("{note}"));
    }
    let folder = shown(target.path());
    let put = || format!("{} files written in {folder}", files.len());
    note!("{}: {}", artifact.name, recorded.clone().unwrap_or_else(put));
    Ok(MadeArtifact {
        name: artifact.name.clone(),
        profile: grid.profile.clone(),
        cells: grid.cells.len(),
        differs: differs(target),
        recorded,
        files: all_shown(&files),
        ..MadeArtifact::default()
    })
}
