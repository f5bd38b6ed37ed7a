//! An artifact of races: the cells of another one, searched under its budgets.

use std::path::{Path, PathBuf};

use super::answer::done::{MadeArtifact, all_shown};
use super::units::columns;
use crate::artifact::{Artifact, Executor, Runner, raced_rows, search_files, search_names};
use crate::error::{Error, Result};
use crate::exec::GridOutcome;
use crate::files::output::OutputFolder;
use crate::grid::{Grid, RacesEntry};
use crate::results::StoredResults;
use crate::search::{Found, Laboratory, parts, search};

/// What is raced, and where it goes.
pub(super) struct Race<'a> {
    pub(super) artifact: &'a Artifact,
    pub(super) races: &'a RacesEntry,
    pub(super) grid: Grid,
    /// The folder of the races.
    pub(super) target: &'a Path,
    /// That of all artifacts.
    pub(super) results: &'a Path,
    pub(super) quiet: bool,
}

/// Races, writes what came of it, and says it beside the other artifact's best rows.
pub(super) fn made(race: &Race<'_>, runner: &Runner<'_>) -> Result<MadeArtifact> {
    let Race { artifact, races, grid, target, results, quiet } = race;
    let searches = parts(grid);
    if searches.is_empty() {
        return Err(Error::bad_input("an artifact of races has no `search`").at(artifact.file.display().to_string()));
    }
    let output = OutputFolder::new(*target, "results");
    output.check(&search_names(&artifact.name, searches.len()))?;
    let run = |grid: &Grid| -> Result<GridOutcome> {
        let outcome = runner.run(grid, target)?;
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
    let rows = raced_rows(&found, races, whole.as_ref());
    let mut files = search_files(&artifact.name, &found)?;
    let table: Vec<String> = rows.iter().map(|row| format!("| {} |", row.join(" | "))).collect();
    let rule = format!("|{}", " --- |".repeat(rows.first().map_or(0, Vec::len)));
    let (head, body) =
        table.split_first().map_or((String::new(), Vec::new()), |(head, body)| (head.clone(), body.to_vec()));
    let caption = artifact.description.caption.clone().unwrap_or_default();
    let text = format!("# {}\n\n{caption}\n\n{head}\n{rule}\n{}\n\n", artifact.description.title, body.join("\n"));
    if let Some((_, report)) = files.iter_mut().find(|(name, _)| name.ends_with(".md")) {
        *report = [text.as_bytes(), report].concat();
    }
    output.put(&files)?;
    if !quiet {
        println!("{}\n\n{}", artifact.description.title, columns(&rows, &[]));
    }
    let written: Vec<PathBuf> = files.iter().map(|(name, _)| target.join(name)).collect();
    note!("{}: written: {}", artifact.name, all_shown(&written).join(", "));
    let (name, cells) = (artifact.name.clone(), grid.cells.len());
    Ok(MadeArtifact {
        name,
        profile: grid.profile.clone(),
        cells,
        files: all_shown(&written),
        ..MadeArtifact::default()
    })
}
