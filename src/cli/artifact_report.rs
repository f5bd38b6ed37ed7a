//! Reports on artifacts, printed at the end of a run and again when `ghostlab reproduce` finds the artifact up to date.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::answer;
use super::answer::write_commands::{ReproducedArtifact, display_paths};
use super::terminal::{self, format_seconds};
use crate::artifact::{Artifact, ArtifactOutcome, GateFailure, ResultsFolder};
use crate::grid::Grid;
use crate::quantity::pluralize;
use crate::results::screen;

/// Prints `prefix`, the number of files written and their folder. With `-v`, also lists the files.
pub(super) fn report_files(prefix: &str, files: &[impl AsRef<Path>]) {
    if let Some(folder) = files.first().and_then(|file| file.as_ref().parent()) {
        note!("{prefix}wrote {} to {}", pluralize(files.len(), "file"), folder.display());
    }
    files.iter().for_each(|file| detail!("  {}", file.as_ref().display()));
}

/// Prints the files written, the dense scores that do not match the paper, and the cells without results.
pub(super) fn report_outcome(name: &str, grid: &Grid, outcome: &ArtifactOutcome, seconds: f64) {
    let all = pluralize(grid.cells.len(), "cell");
    report_files(&format!("{name}: {all} in {}; ", format_seconds(seconds)), &outcome.files);
    if let Some(recorded) = &outcome.recorded {
        note!("{name}: {recorded}");
    }
    for (backbone, reason) in &outcome.unknown {
        note!("{backbone}: cannot check whether it is the paper's model: {reason}");
    }
    outcome.misses.iter().for_each(|miss| eprintln!("  {miss}"));
    if !outcome.misses.is_empty() {
        let backbones = GateFailure::backbones(&outcome.misses).join(", ");
        eprintln!("skipped the pruned cells of {backbones} (use --no-gate to run them)");
    }
    outcome.failures.iter().for_each(|(cell, reason)| eprintln!("  {cell} failed: {reason}"));
    if outcome.unmade > 0 {
        eprintln!("{name}: {} of {all} incomplete; run without --stored to compute them", outcome.unmade);
    }
}

/// Stored report on a finished artifact, printed again while the artifact is up to date.
#[derive(Serialize, Deserialize)]
pub(super) struct ArtifactReport {
    screen: Option<String>,
    comparison: String,
    recorded: Option<String>,
    files: Vec<PathBuf>,
    warnings: Vec<String>,
}

impl ArtifactReport {
    pub(super) fn new(outcome: &ArtifactOutcome, warnings: Vec<String>) -> Self {
        let ArtifactOutcome { table, comparison, files, recorded, .. } = outcome;
        let screen = table.as_ref().map(|view| screen(view, terminal::width()));
        Self { screen, comparison: comparison.clone(), recorded: recorded.clone(), files: files.clone(), warnings }
    }

    /// Prints the cached report and returns the command's output for this artifact.
    pub(super) fn print_cached(self, artifact: &Artifact, grid: &Grid, target: &ResultsFolder) -> ReproducedArtifact {
        let Self { screen, comparison, recorded, files, warnings } = self;
        warnings.iter().for_each(|text| note!("warning: {text}"));
        if let Some(screen) = screen.filter(|_| !answer::is_json()) {
            println!("{screen}");
            print!("{comparison}");
        }
        let name = &artifact.name;
        let cells = grid.cells.len();
        let all = pluralize(cells, "cell");
        note!("{name}: up to date ({cells} of {all} cached)");
        if let Some(recorded) = &recorded {
            note!("{name}: {recorded}");
        }
        let files = display_paths(&files);
        ReproducedArtifact { recorded, files, ..ReproducedArtifact::new(artifact, grid, target) }
    }
}
