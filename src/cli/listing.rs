//! List of artifacts with their stored results, remaining work and last run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::answer::write_commands::ListedArtifact;
use super::requested_work::artifact_results_folder;
use super::terminal::{self, format_columns, format_seconds};
use crate::artifact::{self, Artifact};
use crate::error::Result;
use crate::grid::Grid;
use crate::model::EngineRequest;
use crate::pipeline::exec::{RunRecord, RunSettings};
use crate::pipeline::plan::{BackbonePlan, Estimate, Plan, StoreView};
use crate::results::Provenance;
use ghostlab_store::Store;

pub(super) struct ArtifactList<'a> {
    pub(super) store: &'a Store,
    pub(super) results: &'a Path,
    pub(super) profile: Option<&'a str>,
    pub(super) overrides: &'a [String],
    pub(super) engine: EngineRequest,
}

/// Remaining floating-point operations of one grid, with the engine and machine that run it.
struct RemainingFlops {
    engine: String,
    machine: String,
    flops: f64,
}

/// Complete cells, remaining work and results directory of an artifact.
struct ArtifactProgress {
    profile: String,
    cells: usize,
    complete: usize,
    /// Remaining work per grid; `None` if texts are not tokenized yet.
    remaining_flops: Option<Vec<RemainingFlops>>,
    /// Results directory; `None` if it is unknown, for example because this machine does not support the engine.
    results: Option<PathBuf>,
}

impl ArtifactList<'_> {
    /// Lists artifacts with their progress.
    ///
    /// # Errors
    /// Fails if the store cannot be read or this machine does not support the engine.
    pub(super) fn list_artifacts(&self, all: &[Artifact]) -> Result<Vec<ListedArtifact>> {
        let mut rates = BTreeMap::new();
        let mut listed = Vec::new();
        for artifact in all {
            let name = artifact.name.clone();
            let title = artifact.description.title.clone();
            let mut entry = ListedArtifact { name, title, ..ListedArtifact::default() };
            if artifact.description.list.is_none() {
                match self.read_progress(artifact)? {
                    Ok(ArtifactProgress { profile, cells, complete, remaining_flops, results }) => {
                        (entry.profile, entry.cells, entry.complete) = (Some(profile), Some(cells), Some(complete));
                        // The remaining time is unknown if no run has measured the engine's speed on this machine.
                        entry.seconds_left = remaining_flops.and_then(|remaining| {
                            remaining.into_iter().try_fold(0.0, |sum, RemainingFlops { engine, machine, flops }| {
                                let rate = *rates
                                    .entry((engine.clone(), machine.clone()))
                                    .or_insert_with(|| RunRecord::latest_rate(self.store, &engine, &machine));
                                Some(sum + flops / rate?)
                            })
                        });
                        entry.made = results.as_deref().and_then(find_last_finish_time);
                    }
                    Err(lacks) => entry.lacks = Some(lacks),
                }
            }
            listed.push(entry);
        }
        Ok(listed)
    }

    /// Returns the progress of an artifact, or an inner error with the reason why its grid cannot be read.
    fn read_progress(&self, artifact: &Artifact) -> Result<Result<ArtifactProgress, String>> {
        let grids = match artifact.grids_to_run(self.profile, self.overrides) {
            Ok(grids) => grids,
            Err(error) => return Ok(Err(error.one_line())),
        };
        let mut progress = ArtifactProgress {
            profile: String::new(),
            cells: 0,
            complete: 0,
            remaining_flops: Some(Vec::new()),
            results: None,
        };
        for grid in &grids {
            self.add_grid(grid, &mut progress)?;
        }
        if let Some(grid) = grids.last() {
            let folder = artifact_results_folder(artifact, grid, self.overrides, self.engine, self.results).ok();
            progress.results = folder.map(|folder| folder.path().to_owned());
            progress.profile = grid.profile.clone().unwrap_or_default();
        }
        Ok(Ok(progress))
    }

    fn add_grid(&self, grid: &Grid, progress: &mut ArtifactProgress) -> Result<()> {
        let plan = Plan::new(grid, self.store, self.engine, RunSettings::default().batch_tokens)?;
        let state = StoreView::survey(&plan, self.store);
        let complete = plan.variants().filter(|(_, variant)| state.is_complete(variant)).count();
        progress.cells += grid.cells.len();
        progress.complete += complete;
        if complete == grid.cells.len() {
            return Ok(());
        }
        let estimate = Estimate::from_plan(&plan, &state, RunSettings::default().spool_bytes, u64::MAX)?;
        let known = plan.backbones.iter().flat_map(BackbonePlan::tokens).all(|key| state.has(key));
        match &mut progress.remaining_flops {
            Some(remaining) if known => remaining.push(RemainingFlops {
                engine: plan.engines(),
                machine: plan.machine(),
                flops: estimate.cost.left,
            }),
            remaining => *remaining = None,
        }
        Ok(())
    }
}

/// Returns the finish time of the last run, from the run records in the artifact's directory and in the directory of
/// local results next to a recorded run. File times are useless, because a checkout resets them.
fn find_last_finish_time(results: &Path) -> Option<String> {
    [results.to_owned(), artifact::local_run_folder(results)]
        .iter()
        .filter_map(|folder| Provenance::finished(folder))
        .max()
}

/// Formats a table with one row per artifact.
pub(super) fn format_list(all: &[ListedArtifact]) -> String {
    let mut rows = vec![["artifact", "what", "profile", "stored", "left", "finished"].map(str::to_owned).to_vec()];
    for listed in all {
        let stored = listed.complete.zip(listed.cells);
        let left = match (stored, listed.seconds_left, &listed.lacks) {
            (_, _, Some(lacks)) => lacks.clone(),
            (None, ..) => empty_cell(),
            (Some((complete, cells)), ..) if complete == cells => "nothing".to_owned(),
            (_, Some(time), _) => format!("about {}", format_seconds(time)),
            (Some((complete, cells)), ..) => terminal::format_cell_count(cells - complete),
        };
        let finished = if stored.is_some() { listed.made.clone().unwrap_or("never".to_owned()) } else { empty_cell() };
        let stored = stored.map_or_else(empty_cell, |(complete, cells)| format!("{complete} of {cells}"));
        let profile = listed.profile.clone().unwrap_or_else(empty_cell);
        rows.push(vec![listed.name.clone(), listed.title.clone(), profile, stored, left, finished]);
    }
    format_columns(&rows, &[])
}

fn empty_cell() -> String {
    "—".to_owned()
}
