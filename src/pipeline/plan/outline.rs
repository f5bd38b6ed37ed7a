//! Summary of a plan, which is stored so that `ghostlab status` can count finished objects without reading the grid or
//! its inputs.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Plan;
use super::cost::JobCost;
use crate::files::sha256;
use crate::pipeline::stage::{KINDS, Stage};
use ghostlab_store::{Key, Store};

/// Objects, cells and jobs in a plan. Latencies are excluded, because they are valid on one machine only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outline {
    pub grid: String,
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    pub file: PathBuf,
    pub profile: Option<String>,
    /// Kind and hash of every object.
    artifacts: Vec<(String, String)>,
    pub cells: Vec<OutlineCell>,
    pub jobs: Vec<OutlineJob>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutlineCell {
    pub name: String,
    /// Indices into `Outline::artifacts`.
    artifacts: Vec<usize>,
}

/// Job that calibrates a backbone or scores it on a text or task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutlineJob {
    /// Label for the job in events and records.
    pub label: String,
    pub backbone: String,
    /// Prefix of the job's lease names.
    #[serde(rename = "claim")]
    pub lease_name: String,
    /// Total work in floating-point operations, as estimated by the cost model.
    pub flops: f64,
    /// Indices into `Outline::artifacts`.
    artifacts: Vec<usize>,
}

/// Progress of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OutlineProgress {
    /// Number of cells in the plan.
    pub cells: usize,
    /// Number of complete cells.
    pub complete: usize,
    /// Jobs of the plan, including finished ones.
    pub jobs: Vec<JobProgress>,
}

/// Progress of a job.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct JobProgress {
    /// Label of the job in events and records.
    pub label: String,
    /// Backbone that the job uses.
    pub backbone: String,
    /// Total work estimated by the cost model, in floating-point operations.
    pub flop: f64,
    /// Number of objects that the job creates.
    pub artifacts: usize,
    /// Number of these objects that are stored.
    pub stored: usize,
}

impl Outline {
    /// Summarizes a plan, given the costs of its jobs.
    pub fn new(plan: &Plan<'_>, costs: &[JobCost]) -> Self {
        let mut artifacts: Vec<(String, String)> = Vec::new();
        let mut indices: BTreeMap<String, usize> = BTreeMap::new();
        let mut index_of = |key: &Arc<Key>| {
            *indices.entry(key.hash().to_owned()).or_insert_with(|| {
                artifacts.push((key.kind().name().to_owned(), key.hash().to_owned()));
                artifacts.len() - 1
            })
        };
        let cells = plan.variants().map(|(_, variant)| OutlineCell {
            name: plan.grid.cells[variant.cell].to_string(),
            artifacts: variant.shared_keys().map(&mut index_of).collect(),
        });
        let cells = cells.collect();
        let mut jobs = Vec::new();
        for JobCost { backbone, job, cost } in costs {
            let backbone = &plan.backbones[*backbone];
            let keys = backbone.variants.iter().flat_map(|variant| job.produced_keys(variant));
            // Results that depend on the machine are excluded, because workers do not share them.
            let mut artifacts: Vec<usize> =
                keys.filter(|key| !Stage::is_machine_specific(key)).map(&mut index_of).collect();
            if artifacts.is_empty() {
                continue;
            }
            artifacts.sort_unstable();
            artifacts.dedup();
            let label = job.label(backbone);
            let lease_name = job.lease_name(backbone);
            jobs.push(OutlineJob { label, backbone: backbone.name.clone(), lease_name, flops: cost.shared, artifacts });
        }
        let grid = plan.grid.name.clone();
        let file = plan.grid.file.clone();
        let profile = plan.grid.profile.clone();
        let file = std::path::absolute(&file).unwrap_or(file);
        Self { grid, file, profile, artifacts, cells, jobs }
    }

    pub fn id(&self) -> String {
        let names = self.cells.iter().map(|cell| cell.name.as_str());
        let hashes = self.artifacts.iter().map(|(_, hash)| hash.as_str());
        let all: Vec<&str> = [self.grid.as_str()].into_iter().chain(names).chain(hashes).collect();
        sha256::of_bytes(all.join("\n"))[..12].to_owned()
    }

    /// Stores the outline, unless it is stored already, and returns its id. Write errors are ignored, because they
    /// affect only `status`.
    pub fn save(&self, store: &Store) -> String {
        let id = self.id();
        let path = store.plans().join(format!("{id}.json"));
        if !store.has_file(&path) {
            store.put_record(&path, &serde_json::to_vec(self).unwrap_or_default()).ok();
        }
        id
    }

    pub fn find(store: &Store, id: &str) -> Option<Self> {
        serde_json::from_slice(&store.record(&store.plans().join(format!("{id}.json")))?).ok()
    }

    pub fn has(&self, hash: &str) -> bool {
        self.artifacts.iter().any(|(_, artifact)| artifact == hash)
    }

    pub fn find_job(&self, lease_name: &str) -> Option<&OutlineJob> {
        self.jobs.iter().find(|job| lease_name.starts_with(&job.lease_name))
    }

    /// Returns the progress of the plan. Stored objects are counted but not verified.
    pub fn progress(&self, store: &Store) -> OutlineProgress {
        let present: BTreeMap<&str, HashSet<String>> =
            KINDS.iter().map(|&kind| (kind.name(), store.present(kind))).collect();
        let has = |&index: &usize| {
            let (kind, hash) = &self.artifacts[index];
            present.get(kind.as_str()).is_some_and(|hashes| hashes.contains(hash))
        };
        let jobs = self.jobs.iter().map(|job| JobProgress {
            label: job.label.clone(),
            backbone: job.backbone.clone(),
            flop: job.flops,
            artifacts: job.artifacts.len(),
            stored: job.artifacts.iter().filter(|index| has(index)).count(),
        });
        let complete = self.cells.iter().filter(|cell| cell.artifacts.iter().all(has)).count();
        OutlineProgress { cells: self.cells.len(), complete, jobs: jobs.collect() }
    }
}
