//! The list of artifacts: stored results, remaining work, and the last run of each.
//!
//! Reading a grid, planning it and looking everything up takes tens of milliseconds. The result is therefore cached in
//! the store and reused as long as nothing it depends on has changed: no experiment file or input, no object or folder
//! of objects, judged by size, times and identity, as with the hashes of large inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answer::done::ListedArtifact;
use super::home::folders_in;
use super::out::{self, columns, seconds};
use super::work::artifact_folder;
use crate::artifact::{self, Artifact, Finished};
use crate::error::Result;
use crate::exec::{RunRecord, RunSettings};
use crate::files::sha256;
use crate::files::stamp::{Stamp, grain};
use crate::grid::{Grid, folders_around};
use crate::machine;
use crate::model::{DeviceName, EngineRequest};
use crate::plan::{BackbonePlan, Estimate, Plan, StoreState};
use crate::results::Provenance;
use crate::stage::KINDS;
use ghostlab_store::Store;

/// Whose artifacts are listed, and how they would run.
pub(super) struct ArtifactList<'a> {
    pub(super) store: &'a Store,
    pub(super) experiments: &'a Path,
    pub(super) results: &'a Path,
    pub(super) profile: Option<&'a str>,
    pub(super) overrides: &'a [String],
    pub(super) engine: EngineRequest,
    /// Whether to ignore the cache.
    pub(super) anew: bool,
}

/// How an artifact stands.
#[derive(Serialize, Deserialize)]
struct ArtifactStanding {
    profile: String,
    cells: usize,
    complete: usize,
    /// Remaining floating-point operations by engine and machine; `None` if texts are not tokenised yet.
    left: Option<Vec<(String, String, f64)>>,
    /// Folder of the artifact's results; `None` when its settings do not tell which.
    results: Option<PathBuf>,
}

impl ArtifactList<'_> {
    /// # Errors
    /// A store that cannot be read, or an engine that does not run here.
    pub(super) fn of(&self, all: &[Artifact]) -> Result<Vec<ListedArtifact>> {
        let call = self.call();
        let mut rates = BTreeMap::new();
        let mut listed = Vec::new();
        for artifact in all {
            let name = artifact.name.clone();
            let title = artifact.description.title.clone();
            let mut of = ListedArtifact { name, title, ..ListedArtifact::default() };
            if artifact.description.list.is_none() {
                match self.standing(artifact, &call)? {
                    Ok(ArtifactStanding { profile, cells, complete, left, results }) => {
                        (of.profile, of.cells, of.complete) = (Some(profile), Some(cells), Some(complete));
                        // `None` if the engine's speed was never measured here.
                        let mut seconds = |(engine, machine, flops): (String, String, f64)| -> Option<f64> {
                            let found = || RunRecord::rate(self.store, &engine, &machine);
                            Some(flops / (*rates.entry((engine.clone(), machine.clone())).or_insert_with(found))?)
                        };
                        of.seconds_left =
                            left.and_then(|left| left.into_iter().try_fold(0.0, |sum, of| Some(sum + seconds(of)?)));
                        of.made = results.as_deref().and_then(last_finished);
                    }
                    Err(lacks) => of.lacks = Some(lacks),
                }
            }
            listed.push(of);
        }
        Ok(listed)
    }

    /// Returns what the listing depends on besides inputs and objects: options, directory and experiments.
    fn call(&self) -> Option<Value> {
        let mut paths = below(self.experiments);
        paths.extend(folders_around(&self.experiments.join("grid.yaml")));
        let told = |name: &str| ["GHOSTLAB_", "HF_", "XDG_", "HOME", "CUDA_"].iter().any(|of| name.starts_with(of));
        let variables = std::env::vars_os().map(|(name, value)| format!("{name:?}={value:?}"));
        let variables: BTreeSet<String> = variables.filter(|of| told(of.trim_start_matches('"'))).collect();
        let Self { experiments, results, profile, overrides, .. } = self;
        Some(json!([
            stamps(&paths, false)?,
            [Some(*experiments), Some(*results), std::env::current_dir().ok().as_deref()],
            [json!(profile), json!(overrides), json!(variables)],
            [format!("{:?}", self.engine), machine::identity(DeviceName::best()).to_string()],
        ]))
    }

    /// Returns the state of an artifact, or why its grid cannot be read.
    fn standing(&self, artifact: &Artifact, call: &Option<Value>) -> Result<Result<ArtifactStanding, String>> {
        let remembered = call.as_ref().filter(|_| !self.anew);
        let remembered =
            remembered.and_then(|call| Finished::of(self.store, &format!("how {} stands", artifact.name), call));
        let known = remembered.as_ref().and_then(|of| of.found::<(Vec<PathBuf>, String, ArtifactStanding)>(&[]));
        if let Some((.., standing)) = known.filter(|(paths, then, _)| stamps(paths, false).as_ref() == Some(then)) {
            return Ok(Ok(standing));
        }
        let grids = match artifact.runs(self.profile, self.overrides) {
            Ok(grids) => grids,
            Err(error) => return Ok(Err(error.one_line())),
        };
        let mut standing =
            ArtifactStanding { profile: String::new(), cells: 0, complete: 0, left: Some(Vec::new()), results: None };
        let mut paths = Some(Vec::new());
        for grid in &grids {
            self.add(grid, &mut standing, &mut paths)?;
        }
        if let Some(grid) = grids.last() {
            let folder = artifact_folder(artifact, grid, self.overrides, self.engine, self.results).ok();
            standing.results = folder.map(|folder| folder.path().to_owned());
            standing.profile = grid.profile.clone().unwrap_or_default();
        }
        if let Some((remembered, paths)) = remembered.zip(paths)
            && let Some(now) = stamps(&paths, true)
        {
            remembered.keep(&[], &(&paths, now, &standing));
        }
        Ok(Ok(standing))
    }

    /// Takes in how a grid stands, and the files that it was read from: none where they do not tell all.
    fn add(&self, grid: &Grid, to: &mut ArtifactStanding, paths: &mut Option<Vec<PathBuf>>) -> Result<()> {
        let store = self.store;
        let name = format!("all that is stored of {}", grid.name);
        let plan = Plan::new(grid, store, self.engine, RunSettings::default().batch_tokens)?;
        to.cells += grid.cells.len();
        if let Some(paths) = paths {
            paths.extend(plan.keys().map(|key| store.lies(key)).flat_map(|place| below(&place)));
        }
        *paths = paths.take().zip(self.sources(&plan)).map(|(paths, more)| [paths, more].concat());
        let finished = || Finished::of_plan(store, &name, &plan, &Value::Null);
        if let Some(complete) = finished().and_then(|of| of.found::<usize>(&[])) {
            to.complete += complete;
            return Ok(());
        }
        let state = StoreState::read(&plan, store);
        let complete = plan.variants().filter(|(_, variant)| state.complete(variant)).count();
        to.complete += complete;
        if complete == grid.cells.len() {
            finished().inspect(|of| of.keep(&[], &complete));
            return Ok(());
        }
        let estimate = Estimate::of(&plan, &state, RunSettings::default().spool_bytes, u64::MAX)?;
        let known = plan.backbones.iter().flat_map(BackbonePlan::tokens).all(|key| state.has(key));
        let left = (plan.engines(), plan.machine(), estimate.cost.left);
        to.left = to.left.take().filter(|_| known).map(|before| [before, vec![left]].concat());
        // Anything new appears in one of these.
        if let Some(paths) = paths {
            let kinds = KINDS.map(|kind| store.root().join(kind.folder()));
            paths.extend(kinds.iter().flat_map(|kind| folders_in(kind)).chain(kinds.iter().cloned()));
        }
        Ok(())
    }

    /// Returns the files that a plan was read from, and their folders, where a new file may take precedence. `None` if hub
    /// models or outside definitions depend on more.
    fn sources(&self, plan: &Plan<'_>) -> Option<Vec<PathBuf>> {
        let grid = plan.grid;
        let elsewhere = |file: &str| !Path::new(file).starts_with(self.experiments);
        let files: Vec<PathBuf> = plan.inputs.by_path().into_keys().map(PathBuf::from).collect();
        let cached = |file: &PathBuf| file.components().any(|part| part.as_os_str() == "snapshots");
        if files.iter().any(cached) || grid.definitions.values().any(|of| elsewhere(&of.definition.place.file)) {
            return None;
        }
        let folders = files.iter().filter_map(|file| file.parent()).map(Path::to_owned).collect::<Vec<_>>();
        let own = [grid.file.clone(), grid.lock_file.clone()];
        Some([files, folders, grid.entries.clone(), own.to_vec()].concat())
    }
}

/// Returns when the last run was finished, as its record says: in the artifact's folder, or next to a recorded run. The times
/// of the files are those of a checkout.
fn last_finished(results: &Path) -> Option<String> {
    [results.to_owned(), artifact::here(results)].iter().filter_map(|folder| Provenance::finished(folder)).max()
}

/// Hashes the metadata of some files and folders, including absence. `None` if that does not cover all changes; with
/// `settled`, only if the next change of each will show.
fn stamps(paths: &[PathBuf], settled: bool) -> Option<String> {
    let mut paths: Vec<&PathBuf> = paths.iter().collect();
    paths.sort_unstable();
    paths.dedup();
    let mut all = String::new();
    for path in paths {
        let stamp = match Stamp::at(path) {
            Ok(stamp) => Some(stamp?),
            Err(_) => None,
        };
        let told =
            |stamp: &Stamp| File::open(path).ok().and_then(|file| grain(&file)).is_some_and(|of| stamp.settled(of));
        if settled && !stamp.as_ref().is_none_or(told) {
            return None;
        }
        all += &format!("{} {stamp:?}\n", path.display());
    }
    Some(sha256::of_bytes(all))
}

/// Lists a file, or a folder with everything in it.
fn below(place: &Path) -> Vec<PathBuf> {
    let inner = std::fs::read_dir(place).into_iter().flatten().flatten().flat_map(|item| below(&item.path()));
    inner.chain([place.to_owned()]).collect()
}

/// Formats the listing in columns.
pub(super) fn text(all: &[ListedArtifact]) -> String {
    let none = || "—".to_owned();
    let mut rows = vec![["artifact", "what", "profile", "stored", "left", "finished"].map(str::to_owned).to_vec()];
    for of in all {
        let stored = of.complete.zip(of.cells);
        let left = match (stored, of.seconds_left, &of.lacks) {
            (_, _, Some(lacks)) => lacks.clone(),
            (None, ..) => none(),
            (Some((complete, cells)), ..) if complete == cells => "nothing".to_owned(),
            (_, Some(time), _) => format!("about {}", seconds(time)),
            (Some((complete, cells)), ..) => out::cells(cells - complete),
        };
        let made = if stored.is_some() { of.made.clone().unwrap_or("never".to_owned()) } else { none() };
        let stored = stored.map_or_else(none, |(complete, cells)| format!("{complete} of {cells}"));
        let profile = of.profile.clone().unwrap_or_else(none);
        rows.push(vec![of.name.clone(), of.title.clone(), profile, stored, left, made]);
    }
    columns(&rows, &[])
}
