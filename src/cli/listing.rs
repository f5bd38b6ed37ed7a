//! List of artifacts with their stored results, remaining work and last run.

use std::path::Path;

use super::answer::write_commands::ListedArtifact;
use super::requested_work::artifact_results_folder;
use super::terminal::{format_columns, format_seconds};
use crate::artifact::{self, Artifact};
use crate::error::Result;
use crate::model::EngineRequest;
use crate::pipeline::exec::{RunRecord, RunSettings};
use crate::pipeline::plan::{BackbonePlan, Estimate, Plan, StoreView};
use crate::quantity::pluralize;
use crate::results::Provenance;
use ghostlab_store::Store;

pub(super) struct ArtifactList<'a> {
    pub(super) store: &'a Store,
    pub(super) results: &'a Path,
    pub(super) profile: Option<&'a str>,
    pub(super) overrides: &'a [String],
    pub(super) engine: EngineRequest,
}

impl ArtifactList<'_> {
    /// Lists artifacts with their progress.
    ///
    /// # Errors
    /// Fails if the store cannot be read or this machine does not support the engine.
    pub(super) fn list_artifacts(&self, all: &[Artifact]) -> Result<Vec<ListedArtifact>> {
        all.iter().map(|artifact| self.list_artifact(artifact)).collect()
    }

    fn list_artifact(&self, artifact: &Artifact) -> Result<ListedArtifact> {
        let name = artifact.name.clone();
        let title = artifact.description.title.clone();
        let listed = ListedArtifact { name, title, ..ListedArtifact::default() };
        if artifact.description.list.is_some() {
            return Ok(listed);
        }
        let grids = match artifact.grids_to_run(self.profile, self.overrides) {
            Ok(grids) => grids,
            Err(error) => return Ok(ListedArtifact { lacks: Some(error.one_line()), ..listed }),
        };
        let mut complete = 0;
        let mut seconds_left = Some(0.0);
        for grid in &grids {
            let plan = Plan::new(grid, self.store, RunSettings::with_engine(self.engine))?;
            let state = StoreView::survey(&plan, self.store);
            let complete_here = plan.variants().filter(|(_, variant)| state.is_complete(variant)).count();
            complete += complete_here;
            if complete_here < grid.cells.len() {
                let time = self.estimate_seconds(&plan, &state)?;
                seconds_left = seconds_left.zip(time).map(|(sum, time)| sum + time);
            }
        }
        // The results directory is unknown if this machine does not support the engine.
        let last = grids.last();
        let results =
            last.map(|grid| artifact_results_folder(artifact, grid, self.overrides, self.engine, self.results));
        Ok(ListedArtifact {
            profile: Some(last.and_then(|grid| grid.profile.clone()).unwrap_or_default()),
            cells: Some(grids.iter().map(|grid| grid.cells.len()).sum()),
            complete: Some(complete),
            seconds_left,
            made: results.and_then(|folder| find_last_finish_time(folder.ok()?.path())),
            ..listed
        })
    }

    /// Estimates the remaining time of a grid in seconds. It is unknown if texts are not tokenized yet, or if no run
    /// has measured the engine's rate on this machine.
    fn estimate_seconds(&self, plan: &Plan<'_>, state: &StoreView) -> Result<Option<f64>> {
        let estimate = Estimate::from_plan(plan, state, RunSettings::default().spool_bytes, u64::MAX)?;
        if !plan.backbones.iter().flat_map(BackbonePlan::tokens).all(|key| state.has(key)) {
            return Ok(None);
        }
        let rate = RunRecord::latest_rate(self.store, &plan.engines(), &plan.machine());
        Ok(rate.map(|rate| estimate.cost.left / rate))
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
            (Some((complete, cells)), ..) => pluralize(cells - complete, "cell"),
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
