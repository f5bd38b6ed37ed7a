//! Answers of commands that change something.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::artifact::audit::Finding;
use crate::error::{Error, ErrorParts};
use crate::export::Exported;
use crate::search::Found;

/// Formats a path for JSON.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// A grid to begin with was written.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Begun {
    /// The grid.
    pub(crate) file: String,
    /// The models that it names.
    pub(crate) models: Vec<String>,
    /// Folders that hold no model that can be run.
    pub(crate) left_out: Vec<Refused>,
}

/// Something that was not taken or not made, and why.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Refused {
    /// A folder, a file or an artifact, by its name.
    pub(crate) what: String,
    /// Why not.
    pub(crate) error: ErrorParts,
}

impl Refused {
    pub(crate) fn new(what: impl Into<String>, error: &Error) -> Self {
        Self { what: what.into(), error: error.parts().clone() }
    }
}

/// A cell without a result.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CellFailure {
    /// Its name.
    pub(crate) cell: String,
    /// Why it has none, in words.
    pub(crate) reason: String,
}

/// A grid was run.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Ran {
    /// The grid's name.
    pub(crate) grid: String,
    /// The profile that was laid upon it; null where there is none.
    pub(crate) profile: Option<String>,
    /// How many cells it has.
    pub(crate) cells: usize,
    /// Cells that failed.
    pub(crate) failed: Vec<CellFailure>,
    /// Cells without complete results, with the missing parts.
    pub(crate) unmade: Vec<CellFailure>,
    /// Files written: tables, numbers, documents, the record of the run.
    pub(crate) files: Vec<String>,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
}

/// A model was scored.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Scored {
    /// The model's name as given.
    pub(crate) model: String,
    /// The engine.
    pub(crate) engine: String,
    /// Texts, tasks, and the average of several tasks.
    pub(crate) scores: Vec<Score>,
    /// Its inputs from the hub.
    pub(crate) hub: Vec<HubInput>,
    /// The results file that lm-evaluation-harness would write; `--output` writes it.
    pub(crate) lm_eval: Value,
}

/// A model, a text or a task's data of the hub.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HubInput {
    /// Its name in the grid.
    pub(crate) name: String,
    /// Repository and revision: `org/name@main`.
    pub(crate) repository: String,
    /// The commit in the cache; null where a copy elsewhere was read.
    pub(crate) commit: Option<String>,
    /// Whether all inputs match the hashes of `hub.lock`.
    pub(crate) pinned: bool,
}

/// One score of a model.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Score {
    /// A text with its length, a task as a grid writes it, or `average`.
    #[serde(rename = "of")]
    pub(crate) label: String,
    /// `perplexity`, `acc` or `acc_norm`.
    pub(crate) metric: String,
    /// A perplexity, or a share of the documents in percent.
    pub(crate) value: f64,
    /// Its standard error; null where it has none.
    pub(crate) standard_error: Option<f64>,
    /// Bits per byte of text; null for tasks.
    pub(crate) bits_per_byte: Option<f64>,
    /// Windows or documents.
    pub(crate) items: usize,
}

/// A worker has ended.
#[derive(Serialize, JsonSchema)]
pub(crate) struct WorkerEnd {
    /// How the work ended.
    pub(crate) end: WorkEnd,
    /// Cells of the grid; null where it left before they were looked at, and so below.
    pub(crate) cells: Option<usize>,
    /// Cells of which everything is stored.
    pub(crate) complete: Option<usize>,
    /// Cells without a result.
    pub(crate) failed: Option<usize>,
    /// How long it worked, in seconds.
    pub(crate) seconds: f64,
}

/// How a worker's part of a grid ended.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkEnd {
    /// No work is left for a worker.
    Done,
    /// Other workers process the rest.
    Left,
    /// This was interrupted.
    Stopped,
}

/// A grid was handed to a scheduler, or would be.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Submitted {
    /// The submission's id.
    pub(crate) id: String,
    /// The grid's or artifact's name.
    pub(crate) name: String,
    /// Cells of the grid.
    pub(crate) cells: usize,
    /// Cells of which everything is stored.
    pub(crate) complete: usize,
    /// Floating-point operations that are left.
    pub(crate) left_flop: f64,
    /// Memory that a worker takes, in bytes.
    pub(crate) memory_bytes: u64,
    /// Bytes to be written to the store.
    pub(crate) disk_bytes: u64,
    /// Workers that were submitted.
    pub(crate) workers: usize,
    /// The numbers of the jobs; empty where none was submitted.
    pub(crate) jobs: Vec<String>,
    /// The job script; null where nothing is submitted.
    pub(crate) script: Option<String>,
}

/// Jobs of a submission that were ended.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Cancelled {
    /// Each with the submission that it belongs to.
    pub(crate) ended: Vec<EndedJob>,
}

/// A job that was ended.
#[derive(Serialize, JsonSchema)]
pub(crate) struct EndedJob {
    /// The submission's id.
    pub(crate) submission: String,
    /// The scheduler's number; of an array that of the whole.
    pub(crate) job: String,
}

/// What was reproduced, or the list of artifacts if none was named.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Reproduced {
    /// Available artifacts; empty if some were made.
    pub(crate) listed: Vec<ListedArtifact>,
    /// Artifacts made.
    pub(crate) made: Vec<MadeArtifact>,
    /// Artifacts not made, with reasons.
    pub(crate) not_made: Vec<Refused>,
    /// The page of all artifacts; null where it was not written.
    pub(crate) page: Option<String>,
}

/// A table or figure that can be made.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct ListedArtifact {
    /// Its name: `table2`.
    pub(crate) name: String,
    /// Its title.
    pub(crate) title: String,
    /// The profile; null for a list, which has none, and where its grid cannot be read.
    pub(crate) profile: Option<String>,
    /// Cells of its grid; null as above.
    pub(crate) cells: Option<usize>,
    /// Those of which all results are stored; null as above.
    pub(crate) complete: Option<usize>,
    /// Estimated seconds left; null if unknown.
    pub(crate) seconds_left: Option<f64>,
    /// Why its grid cannot be read, in words; null where it can.
    pub(crate) lacks: Option<String>,
    /// When its last run finished, in UTC, as the record says; null when there is none.
    pub(crate) made: Option<String>,
}

/// A table or figure that was made.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct MadeArtifact {
    /// Its name: `table2`.
    pub(crate) name: String,
    /// The profile; null for a list.
    pub(crate) profile: Option<String>,
    /// Cells of its grid.
    pub(crate) cells: usize,
    /// Cells that failed or were stopped.
    pub(crate) failed: usize,
    /// Number of cells without complete results.
    pub(crate) unmade: usize,
    /// Cells that failed.
    pub(crate) failures: Vec<CellFailure>,
    /// Deviations of dense backbones from the paper's numbers, as text.
    pub(crate) misses: Vec<String>,
    /// How it differs from the artifact as it is described; then it is neither on the page nor held against the claims.
    pub(crate) differs: Vec<String>,
    /// How it stands to the recorded run that the repository keeps, in words; null where none is kept.
    pub(crate) recorded: Option<String>,
    /// Files written.
    pub(crate) files: Vec<String>,
}

/// Files of the hub.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct Fetched {
    /// The cache.
    pub(crate) cache: String,
    /// The files that are needed, as they stood before.
    pub(crate) files: Vec<HubFile>,
    /// Files that were brought.
    pub(crate) brought: usize,
    /// Bytes that were brought.
    pub(crate) bytes: u64,
    /// What could not be fetched, with reasons.
    pub(crate) failures: Vec<Refused>,
    /// The locks that were written.
    pub(crate) locks: Vec<String>,
}

/// A file of the hub.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HubFile {
    /// Repository and name.
    pub(crate) file: String,
    /// Its size in bytes; null where the hub does not tell.
    pub(crate) bytes: Option<u64>,
    /// Whether it was in the cache.
    pub(crate) cached: bool,
    /// The commit that it belongs to.
    pub(crate) commit: String,
    /// Whether `hub.lock` has it.
    pub(crate) pinned: bool,
}

/// The paper's tables against themselves.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Audited {
    /// Findings, contradictions first.
    pub(crate) findings: Vec<Finding>,
}

/// The page of all artifacts was written.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Reported {
    /// The page.
    pub(crate) page: String,
}

/// Cells were written as folders for other programs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExportedCells {
    /// A folder each.
    pub(crate) folders: Vec<ExportedCell>,
}

/// A cell as a folder for other programs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExportedCell {
    /// Its name.
    pub(crate) cell: String,
    #[serde(flatten)]
    pub(crate) exported: Exported,
}

/// A schema.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PrintedSchema {
    /// The JSON schema.
    pub(crate) schema: Value,
}

/// Completion code for a shell.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Completions {
    /// Script for the shell to load.
    pub(crate) script: String,
}

/// Manual pages were written.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Manual {
    /// The folder.
    pub(crate) folder: String,
    /// How many pages.
    pub(crate) pages: usize,
}

/// A folder is a store.
#[derive(Serialize, JsonSchema)]
pub(crate) struct BegunStore {
    /// The folder.
    pub(crate) store: String,
    /// Users who may read and write the store: `umask` (as the umask of the writing process says), `group` or `all`.
    pub(crate) shared: String,
}

/// Results folders were packed.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PackedRecord {
    /// The archive.
    pub(crate) file: String,
    /// Size of the archive.
    pub(crate) bytes: u64,
    /// The results folders, as they are called in it.
    pub(crate) folders: Vec<String>,
    /// All its entries, metadata and list of hashes among them.
    pub(crate) entries: usize,
    /// Files that the folders list and do not hold, as a record may.
    pub(crate) left_out: usize,
}

/// Formats paths for JSON.
pub(crate) fn all_shown(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| shown(path)).collect()
}

/// Candidates were raced under a budget.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Searched {
    /// A search for each backbone and each number of layers of the budget.
    pub(crate) searches: Vec<Found>,
    /// Each search's result in one sentence.
    pub(crate) sentences: Vec<String>,
    /// Files written: the report, its data, the figures.
    pub(crate) files: Vec<String>,
    /// The winner as a folder for other programs; null where none was asked for.
    pub(crate) exported: Option<ExportedCell>,
    /// The command that exports the winner; null where it is exported, or there are several searches.
    pub(crate) export: Option<String>,
    /// Time taken in seconds; stored results take none.
    pub(crate) seconds: f64,
}
