//! Output of commands that compute something or write files.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::super::requested_work::differing_settings;
use crate::artifact::audit::Finding;
use crate::artifact::{Artifact, ResultsFolder};
use crate::error::{Error, ErrorParts};
use crate::export::ExportedModel;
use crate::grid::{Grid, HubSource};
use crate::pipeline::exec::WorkerOutcome;
use crate::results::ModelScore;
use crate::search::SearchOutcome;

pub(crate) fn display_path(path: &Path) -> String {
    path.display().to_string()
}

/// Output of `init`: the starter grid that was written.
#[derive(Serialize, JsonSchema)]
pub(crate) struct InitAnswer {
    /// Path of the grid file.
    pub(crate) file: String,
    /// Names of the models in the grid.
    pub(crate) models: Vec<String>,
    /// Directories without a usable model.
    pub(crate) left_out: Vec<SkippedItem>,
}

/// Skipped or failed item, with the reason.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SkippedItem {
    /// Directory, file or artifact name.
    pub(crate) what: String,
    /// Error for this item.
    #[schemars(with = "ErrorParts")]
    pub(crate) error: Error,
}

impl SkippedItem {
    pub(crate) fn new(what: impl Into<String>, error: &Error) -> Self {
        Self { what: what.into(), error: error.clone() }
    }
}

/// Cell without a result.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CellFailure {
    /// Name of the cell.
    pub(crate) cell: String,
    /// Reason as text.
    pub(crate) reason: String,
}

/// Output of `run`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RunAnswer {
    /// Name of the grid.
    pub(crate) grid: String,
    /// Profile applied to the grid; null if there is none.
    pub(crate) profile: Option<String>,
    /// Number of cells in the grid.
    pub(crate) cells: usize,
    /// Cells that failed.
    pub(crate) failed: Vec<CellFailure>,
    /// Cells with missing results, each with a description of what is missing.
    pub(crate) unmade: Vec<CellFailure>,
    /// Files written: tables, numbers, documents and the run record.
    pub(crate) files: Vec<String>,
    /// Elapsed time in seconds.
    pub(crate) seconds: f64,
}

/// Output of `score`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ScoreAnswer {
    /// Name of the model as given on the command line.
    pub(crate) model: String,
    /// Name of the engine.
    pub(crate) engine: String,
    /// Scores on texts and tasks, and the average if there are several tasks.
    pub(crate) scores: Vec<ModelScore>,
    /// Inputs from the Hugging Face hub.
    pub(crate) hub: Vec<HubInput>,
    /// Results in the lm-evaluation-harness format, as written by `--output`.
    pub(crate) lm_eval: Value,
}

/// Model, text or task data from the Hugging Face hub.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HubInput {
    /// Name in the grid.
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) source: HubSource,
}

/// Output of `worker`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct WorkerAnswer {
    /// Reason why the worker exited.
    pub(crate) end: WorkerExit,
    /// Number of cells in the grid. `cells`, `complete` and `failed` are null if the worker exited before reading the
    /// cells.
    pub(crate) cells: Option<usize>,
    /// Number of cells with complete results in the store.
    pub(crate) complete: Option<usize>,
    /// Number of failed cells.
    pub(crate) failed: Option<usize>,
    /// Elapsed time in seconds.
    pub(crate) seconds: f64,
}

impl WorkerAnswer {
    /// Creates the output of a worker. `outcome` is `None` if the worker was interrupted.
    pub(crate) fn new(outcome: Option<WorkerOutcome>, seconds: f64) -> Self {
        let (end, counts) = match outcome {
            Some(WorkerOutcome::Done { cells, complete, failed }) => {
                (WorkerExit::Done, [cells, complete, failed].map(Some))
            }
            Some(WorkerOutcome::IdleTimeout) => (WorkerExit::Left, [None; 3]),
            None => (WorkerExit::Stopped, [None; 3]),
        };
        let [cells, complete, failed] = counts;
        Self { end, cells, complete, failed, seconds }
    }
}

/// Reason why a worker exited.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerExit {
    /// No jobs remain that workers can run.
    Done,
    /// Other workers have leased the remaining jobs.
    Left,
    /// Interrupted by the user or the scheduler.
    Stopped,
}

/// Output of `submit`, including dry runs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SubmitAnswer {
    /// ID of the submission.
    pub(crate) id: String,
    /// Name of the grid or artifact.
    pub(crate) name: String,
    /// Number of cells in the grid.
    pub(crate) cells: usize,
    /// Number of cells with complete results in the store.
    pub(crate) complete: usize,
    /// Remaining work in floating-point operations.
    pub(crate) left_flop: f64,
    /// Memory required per worker, in bytes.
    pub(crate) memory_bytes: u64,
    /// Number of bytes that will be written to the store.
    pub(crate) disk_bytes: u64,
    /// Number of submitted workers.
    pub(crate) workers: usize,
    /// Scheduler job numbers; empty if nothing was submitted.
    pub(crate) jobs: Vec<String>,
    /// Job script; null if nothing is submitted.
    pub(crate) script: Option<String>,
}

/// Output of `cancel`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CancelAnswer {
    /// Cancelled jobs and their submissions.
    pub(crate) ended: Vec<CancelledJob>,
}

/// Cancelled scheduler job.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CancelledJob {
    /// ID of the submission.
    pub(crate) submission: String,
    /// Scheduler job number; for an array, the number of the whole array.
    pub(crate) job: String,
}

/// Output of `reproduce`: results by artifact, or the list of artifacts if none was named.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ReproduceAnswer {
    /// Available artifacts; empty if artifacts were named.
    pub(crate) listed: Vec<ListedArtifact>,
    /// Artifacts that were produced.
    pub(crate) made: Vec<ReproducedArtifact>,
    /// Artifacts that were not produced, with reasons.
    pub(crate) not_made: Vec<SkippedItem>,
    /// Path of the page that shows all artifacts; null if it was not written.
    pub(crate) page: Option<String>,
}

/// Table or figure available to `reproduce`.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct ListedArtifact {
    /// Artifact name, such as `table2`.
    pub(crate) name: String,
    /// Title of the artifact.
    pub(crate) title: String,
    /// Profile of the grid; null for a list, or if the grid cannot be read.
    pub(crate) profile: Option<String>,
    /// Number of cells in the grid; null if `profile` is null.
    pub(crate) cells: Option<usize>,
    /// Number of cells with complete results in the store; null if `profile` is null.
    pub(crate) complete: Option<usize>,
    /// Estimated remaining time in seconds; null if unknown.
    pub(crate) seconds_left: Option<f64>,
    /// Error that prevents reading the grid, as text; null if the grid is readable.
    pub(crate) lacks: Option<String>,
    /// Finish time of the last run in UTC, from the run record; null if there is no record.
    pub(crate) made: Option<String>,
}

/// Table or figure that was produced.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct ReproducedArtifact {
    /// Artifact name, such as `table2`.
    pub(crate) name: String,
    /// Profile of the grid; null for a list.
    pub(crate) profile: Option<String>,
    /// Number of cells in the grid.
    pub(crate) cells: usize,
    /// Number of cells that failed or were stopped.
    pub(crate) failed: usize,
    /// Number of cells without complete results.
    pub(crate) unmade: usize,
    /// Failed cells, with reasons.
    pub(crate) failures: Vec<CellFailure>,
    /// Dense scores that do not match the paper's numbers, as text.
    pub(crate) misses: Vec<String>,
    /// Differences from the artifact's definition. If there are any, the result is neither shown on the page nor
    /// compared with the claims.
    pub(crate) differs: Vec<String>,
    /// Comparison with the recorded run in the repository, as text; null if there is no recorded run.
    pub(crate) recorded: Option<String>,
    /// Files written.
    pub(crate) files: Vec<String>,
}

impl ReproducedArtifact {
    /// Creates the output for a run of `grid` that writes to `target`. The fields for failures
    /// and files are empty.
    pub(crate) fn new(artifact: &Artifact, grid: &Grid, target: &ResultsFolder) -> Self {
        Self {
            name: artifact.name.clone(),
            profile: grid.profile.clone(),
            cells: grid.cells.len(),
            differs: differing_settings(target),
            ..Self::default()
        }
    }
}

/// Output of `fetch`.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct FetchAnswer {
    /// Directory of the hub cache.
    pub(crate) cache: String,
    /// Required files and their state before the download.
    pub(crate) files: Vec<HubFile>,
    /// Number of files downloaded.
    #[serde(rename = "brought")]
    pub(crate) downloaded: usize,
    /// Number of bytes downloaded.
    pub(crate) bytes: u64,
    /// Files that could not be fetched, with reasons.
    pub(crate) failures: Vec<SkippedItem>,
    /// Lock files written.
    pub(crate) locks: Vec<String>,
}

/// File on the Hugging Face hub.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HubFile {
    /// Repository and file name.
    pub(crate) file: String,
    /// Size in bytes; null if the hub does not report it.
    pub(crate) bytes: Option<u64>,
    /// Whether the file was already cached.
    pub(crate) cached: bool,
    /// Commit of the repository.
    pub(crate) commit: String,
    /// Whether the file is pinned in `hub.lock`.
    pub(crate) pinned: bool,
}

/// Output of `audit`: findings about the internal consistency of tables.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AuditAnswer {
    /// Findings, contradictions first.
    pub(crate) findings: Vec<Finding>,
}

/// Output of `report`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ReportAnswer {
    /// Path of the page.
    pub(crate) page: String,
}

/// Output of `export`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExportAnswer {
    /// Exported cells, one directory or GGUF file each.
    pub(crate) folders: Vec<ExportedCell>,
}

/// Cell exported as a Hugging Face directory or a GGUF file.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExportedCell {
    /// Name of the cell.
    pub(crate) cell: String,
    #[serde(flatten)]
    pub(crate) exported: ExportedModel,
}

/// Output of `schema`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SchemaAnswer {
    /// JSON schema.
    pub(crate) schema: Value,
}

/// Output of `completions`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CompletionsAnswer {
    /// Completion script to load in the shell.
    pub(crate) script: String,
}

/// Output of `man`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ManAnswer {
    /// Directory that contains the manual pages.
    pub(crate) folder: String,
    /// Number of pages.
    pub(crate) pages: usize,
}

/// Output of `store init`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct StoreInitAnswer {
    /// Directory of the store.
    pub(crate) store: String,
    /// Users with access to the store: `umask` (set by the umask of each writing process), `group` or `all`.
    pub(crate) shared: String,
}

/// Output of `record pack`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RecordPackAnswer {
    /// Path of the archive.
    pub(crate) file: String,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Names of the results directories in the archive.
    pub(crate) folders: Vec<String>,
    /// Number of entries, including the metadata and the hash list.
    pub(crate) entries: usize,
    /// Number of files that are listed by a run but do not exist. A record may omit large files.
    pub(crate) left_out: usize,
}

pub(crate) fn display_paths(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| display_path(path)).collect()
}

/// Output of `search`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SearchAnswer {
    /// One search for each backbone and each number of layers in the budget.
    pub(crate) searches: Vec<SearchOutcome>,
    /// One-sentence summary of each search.
    pub(crate) sentences: Vec<String>,
    /// Files written: the report with its data and figures.
    pub(crate) files: Vec<String>,
    /// Export of the winner; null if no export was requested.
    pub(crate) exported: Option<ExportedCell>,
    /// Command that exports the winner; null if it was exported or if there are several searches.
    pub(crate) export: Option<String>,
    /// Elapsed time in seconds.
    pub(crate) seconds: f64,
}
