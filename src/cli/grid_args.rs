//! Command-line arguments shared by all commands that take a grid.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::directories::{self, StoreArgs};
use super::terminal;
use crate::artifact::Artifact;
use crate::cluster::Submission;
use crate::error::{Error, Result};
use crate::grid::{Grid, GridFile, TaskSource};
use crate::installed;
use crate::model::{ComputeType, DeviceName, EngineName, EngineRequest, KernelFamily};
use crate::pipeline::exec::RunSettings;
use crate::quantity::{Gigabytes, MAX_RETRIES};
use crate::sandbox::STACK_BYTES;
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct GridArgs {
    /// Grid file, or the name of a paper artifact such as `table2`.
    // Parse as `OsString`, because a path need not be UTF-8.
    #[arg(value_parser = OsStringValueParser::new().map(resolve_grid_file))]
    grid: PathBuf,
    /// Override a grid value, e.g. `depth=7,9,11` or `calibration.sequences=16`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) overrides: Vec<String>,
    /// Use this profile instead of the grid's default.
    #[arg(long, value_name = "NAME")]
    pub(super) profile: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    pub(super) threads: Threads,
}

/// Parsed grid argument: a grid file or a submission.
pub(super) enum GridSource {
    File(GridFile),
    Submission(Box<Submission>),
}

impl GridSource {
    pub(super) fn submission(&self) -> Option<&Submission> {
        match self {
            Self::File(_) => None,
            Self::Submission(submission) => Some(submission),
        }
    }
}

/// Option for the number of threads.
#[derive(Args)]
pub(super) struct Threads {
    /// Number of compute threads [default: all cores].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,
}

/// Returns the path of a grid file. The name of an artifact, such as `table2`, is resolved to its file in the
/// experiments folder.
fn resolve_grid_file(named: OsString) -> PathBuf {
    let file = PathBuf::from(named);
    if file.exists() || file.components().count() != 1 || file.extension().is_some() {
        return file;
    }
    let known = installed::is_embedded(&format!("experiments/{}.yaml", file.display()));
    let experiments =
        if known { directories::find_or_unpack_experiments(None) } else { directories::find_experiments(None) };
    let artifact = experiments.ok().map(|folder| folder.join(&file).with_extension("yaml"));
    artifact.filter(|found| found.is_file()).unwrap_or(file)
}

/// Options for engine, device and float type.
#[derive(Args)]
pub(super) struct EngineArgs {
    /// Device: `cpu`, `cuda`, `cuda:1`, …, `metal`, or `auto` (best available).
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = parse_auto::<DeviceName>)]
    device: Auto<DeviceName>,
    /// Float type: `f32`, `bf16`, `f16` or `auto`.
    ///
    /// `auto` is f32 on the CPU, and the type of the stored weights on other devices. Processors with Intel AMX also
    /// support `bf16x3` and `bf16x6`, which represent f32 numbers as sums of two or three bf16 numbers.
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = parse_auto::<ComputeType>)]
    dtype: Auto<ComputeType>,
    /// Engine: `cpu`, `candle` or `auto` (built-in kernels where supported).
    ///
    /// `cpu` selects the built-in kernels, which run on the CPU in every float type except f16. `candle` supports every
    /// device, in f32, bf16 and f16.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = parse_auto::<EngineName>)]
    engine: Auto<EngineName>,
    /// CPU kernels for bf16: `portable`, `amx` or `auto`.
    ///
    /// `auto` selects the fastest family that the processor supports. `portable` gives bit-identical results on every
    /// processor.
    #[arg(long, value_name = "FAMILY", default_value = "auto", value_parser = parse_auto::<KernelFamily>)]
    kernels: Auto<KernelFamily>,
}

/// Value of an option, or `None` for `auto`.
#[derive(Clone, Copy)]
struct Auto<T>(Option<T>);

fn parse_auto<T: FromStr<Err = String>>(text: &str) -> Result<Auto<T>, String> {
    if text == "auto" { Ok(Auto(None)) } else { text.parse().map(|value| Auto(Some(value))) }
}

impl EngineArgs {
    pub(super) fn request(&self) -> EngineRequest {
        EngineRequest { engine: self.engine.0, device: self.device.0, dtype: self.dtype.0, kernels: self.kernels.0 }
    }
}

/// Options that limit memory, disk space and parallelism.
#[derive(Args)]
pub(super) struct LimitArgs {
    /// Number of parallel jobs; each uses all threads if possible.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Memory limit in GB for all jobs together [default: 80 % of free memory].
    ///
    /// If a model does not fit, its layers are loaded from disk on demand.
    #[arg(long, value_name = "GB")]
    pub(super) memory: Option<Gigabytes>,
    /// GPU memory limit in GB [default: most of the free memory].
    ///
    /// If a model does not fit, its layers are loaded from disk on demand.
    #[arg(long, value_name = "GB")]
    device_memory: Option<Gigabytes>,
    /// Maximum store size in GB [default: unlimited].
    ///
    /// Results that this grid does not need are evicted when the limit is reached, starting with those that are
    /// cheapest to recompute per byte.
    #[arg(long, value_name = "GB")]
    store_limit: Option<Gigabytes>,
    /// Number of times to retry a failed job.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_RETRIES)))]
    pub(super) retries: u32,
}

/// Options of the commands that compute with a model that is named on the command line.
#[derive(Args)]
pub(super) struct ComputeArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    store: StoreArgs,
}

impl ComputeArgs {
    /// Starts the threads and opens the named store, or the store of the checkout that contains `near`.
    pub(super) fn start(&self, near: Option<&Path>) -> Result<Store> {
        self.threads.start()?;
        self.store.open(near)
    }

    pub(super) fn settings(&self) -> RunSettings {
        self.limits.settings(self.engine.request())
    }
}

/// With `-v`, prints the file, profile and entries of a grid.
fn print_details(grid: &Grid) {
    if !terminal::shows_details() {
        return;
    }
    let profile = grid.profile.as_ref().map_or("no profile".to_owned(), |name| format!("profile {name}"));
    detail!("grid {}: {}, {profile}", grid.name, grid.file.display());
    grid.entries.iter().for_each(|file| detail!("  also read: {}", file.display()));
    for (name, backbone) in &grid.backbones {
        detail!("  backbone {name}: {}, {} layers", backbone.path.display(), backbone.layers);
    }
    for (name, corpus) in &grid.corpora {
        detail!("  corpus {name}: {}, rule {}", corpus.path.display(), corpus.rule);
    }
    for (name, task) in grid.task_data() {
        let location = match &task.source {
            TaskSource::Builtin { .. } => String::new(),
            TaskSource::Defined { definition, .. } => format!(", {}", definition.location),
        };
        let files: Vec<String> = task.paths().into_iter().map(|path| path.display().to_string()).collect();
        detail!("  task {name}{location}: {}", files.join(", "));
    }
}

/// Maximum number of threads per core, because thousands of threads would mostly wait for each other.
const MAX_THREADS_PER_CORE: usize = 4;

impl Threads {
    /// Starts the global thread pool, by default with one thread per core. Later calls in the same process have no
    /// effect.
    pub(super) fn start(&self) -> Result<()> {
        static STARTED: Mutex<bool> = Mutex::new(false);
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut started, true) {
            return Ok(());
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let requested = self.threads.map_or(0, usize::from);
        let max_threads = (MAX_THREADS_PER_CORE * cores).max(16);
        if requested > max_threads {
            note!("--threads {requested} exceeds the maximum for {cores} cores; using {max_threads} threads");
        }
        rayon::ThreadPoolBuilder::new()
            .num_threads(requested.min(max_threads))
            .stack_size(STACK_BYTES)
            .build_global()
            .map_err(|error| Error::job("cannot start threads").found(error.to_string()))
    }
}

impl GridArgs {
    /// Reads the grid file or submission.
    pub(super) fn read(&self) -> Result<GridSource> {
        self.check_exists()?;
        if Submission::is_submission(&self.grid) {
            return Ok(GridSource::Submission(Box::new(Submission::read(&self.grid)?)));
        }
        GridFile::read(&self.grid).map(GridSource::File)
    }

    /// Builds the grid in a file, with `--profile` and `--set` applied.
    pub(super) fn grid_from_file(&self, file: &GridFile) -> Result<Grid> {
        file.grid(self.profile.as_deref(), &self.overrides).inspect(print_details)
    }

    /// Reads the grid file or submission. Builds the grid in a file, or takes the frozen grid of a submission.
    pub(super) fn load(&self) -> Result<(GridSource, Grid)> {
        let source = self.read()?;
        let grid = match &source {
            GridSource::File(file) => self.grid_from_file(file)?,
            GridSource::Submission(submission) => submission.grids()?.0,
        };
        Ok((source, grid))
    }

    /// Returns the grids to run: the grid in the file or, for an artifact, the grids that `reproduce` runs.
    pub(super) fn grids_to_run(&self, source: &GridSource) -> Result<(Vec<Grid>, Option<Artifact>)> {
        let file = match source {
            GridSource::File(file) => file,
            GridSource::Submission(submission) => {
                let (grid, gate) = submission.grids()?;
                return Ok((gate.into_iter().chain([grid]).collect(), None));
            }
        };
        match Artifact::from_file(file)? {
            Some(artifact) if artifact.description.list.is_none() => {
                let grids = artifact.grids_to_run(self.profile.as_deref(), &self.overrides)?;
                grids.iter().for_each(print_details);
                Ok((grids, Some(artifact)))
            }
            _ => Ok((vec![self.grid_from_file(file)?], None)),
        }
    }

    fn check_exists(&self) -> Result<()> {
        if self.grid.exists() {
            return Ok(());
        }
        let error = Error::missing("grid file not found")
            .at(self.grid.display().to_string())
            .expected("a grid file, or the name of a paper artifact such as `table2`")
            .found("nothing");
        let artifact_file =
            directories::default_directory(None, "experiments", None).join(&self.grid).with_extension("yaml");
        let fallback_hint = match artifact_file.is_file() {
            true => format!("did you mean `{}`?", artifact_file.display()),
            false => "check the path for typos".to_owned(),
        };
        Err(directories::with_similar_path_hint(error, &self.grid, &fallback_hint))
    }

    pub(super) fn file(&self) -> &Path {
        &self.grid
    }

    /// Opens the store for reading. The store does not have to exist.
    pub(super) fn open_read_only(&self) -> Result<Store> {
        self.store.open_read_only_or_empty(Some(&self.grid))
    }

    pub(super) fn open_store(&self) -> Result<Store> {
        self.store.open(Some(&self.grid))
    }
}

impl LimitArgs {
    /// Formats the limits as command-line arguments, using `memory` bytes as the memory limit.
    pub(super) fn to_arguments(&self, memory: u64) -> Vec<String> {
        let mut words = vec!["--memory".to_owned(), format_gigabytes(memory as f64)];
        for (name, value) in [("--device-memory", self.device_memory), ("--store-limit", self.store_limit)] {
            if let Some(value) = value {
                words.extend([name.to_owned(), format!("{value}")]);
            }
        }
        if self.jobs > 1 {
            words.extend(["--jobs".to_owned(), self.jobs.to_string()]);
        }
        words
    }

    /// Returns the run settings. Prints a note if a build with GPU support finds no usable GPU.
    pub(super) fn settings(&self, engine: EngineRequest) -> RunSettings {
        if let Some(error) = engine.without_gpu() {
            note!("computing on the CPU: {}", error.one_line());
        }
        let [memory, device_memory, store_limit] =
            [self.memory, self.device_memory, self.store_limit].map(|size| size.map(Gigabytes::bytes));
        let mut settings = RunSettings {
            engine,
            device_memory,
            jobs: usize::from(self.jobs),
            memory,
            store_limit,
            retries: self.retries,
            ..RunSettings::default()
        };
        if let Some(limit) = store_limit {
            // Limit spooled activations to half the store limit. If that is too little, a second calibration pass
            // spools only the activations needed for the selected cuts.
            settings.spool_bytes = settings.spool_bytes.min(limit / 2);
        }
        settings
    }
}

fn format_gigabytes(bytes: f64) -> String {
    format!("{:.2}", (bytes / 1e7).ceil() / 100.0)
}
