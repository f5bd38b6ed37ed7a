//! Command line of the generator: `ghostlab-tiny write FOLDER`, `ghostlab-tiny train ARCHITECTURE FOLDER`,
//! `ghostlab-tiny random --like SHAPE FOLDER`.
#![allow(clippy::disallowed_macros, reason = "a tool prints")]

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::{Command as Process, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use clap::{Args, Parser};

use ghostlab_core::error::{Error, Result};
use ghostlab_tiny::random::folder::{Backbone, SHARD, Writing};
use ghostlab_tiny::random::shape;
use ghostlab_tiny::train::corpus::registers;
use ghostlab_tiny::train::recipe::Recipe;
use ghostlab_tiny::train::run::{Habits, train};
use ghostlab_tiny::train::shape::trained;
use ghostlab_tiny::world::{SEED, World, write};

/// Reuses freed memory for the next step. The system's allocator would map each large intermediate again, page by page.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Generate the contents of data/tiny: texts, tasks, backbones.
#[derive(Parser)]
#[command(version)]
enum Command {
    /// Write the world's texts and tasks below a folder, as corpora/*.jsonl.gz and tasks/*.jsonl.gz.
    Write {
        /// Output folder.
        folder: PathBuf,
    },
    /// Train a backbone on the world's text from scratch.
    Train(Training),
    /// Write an untrained backbone in the shape of a real one for benchmarks: bf16 shards with an index.
    Random(Untrained),
}

#[derive(Args)]
struct Training {
    /// llama, qwen3 or olmo2.
    architecture: String,
    /// Output folder for the backbone and its manifest; a stopped run resumes from the checkpoint there.
    folder: PathBuf,
    /// Number of tokens before the final phase, counting repeated epochs; the final phase is scaled accordingly.
    #[arg(long)]
    tokens: Option<usize>,
    /// Seed of the initial weights and the text order.
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Args)]
struct Untrained {
    /// llama-3.1-8b, qwen3-14b or olmo-2-7b.
    #[arg(long, value_name = "SHAPE")]
    like: String,
    /// Output folder; must be empty or missing.
    folder: PathBuf,
    /// Number of decoder layers, if different from the real model's.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    layers: Option<u16>,
    /// Seed of the weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Write { folder } => write(&World::new(SEED), &folder),
        Command::Train(arguments) => learn(&arguments),
        Command::Random(arguments) => draw(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn learn(arguments: &Training) -> Result<()> {
    let name = &arguments.architecture;
    let architecture = trained().find(|architecture| architecture.model_type == name).ok_or_else(|| {
        Error::bad_input(format!("unknown architecture `{name}`"))
            .none_of(name, trained().map(|architecture| architecture.model_type))
    })?;
    let mut recipe = Recipe::tiny(architecture);
    if let Some(tokens) = arguments.tokens {
        recipe.lessons.tokens = (recipe.lessons.tokens as f64 * tokens as f64 / recipe.tokens as f64) as usize;
        recipe.tokens = tokens;
    }
    recipe.seed = arguments.seed.unwrap_or(recipe.seed);
    let habits = Habits { stop: on_ctrl_c()?, program: program(), ..Habits::default() };
    let done = train(&recipe, &registers(SEED), &arguments.folder, &habits, &mut |line| println!("{line}"))?;
    done.map(drop).ok_or_else(|| {
        Error::interrupted("stopped before the training was finished")
            .hint("nothing is lost: run the same command to resume")
    })
}

fn draw(arguments: &Untrained) -> Result<()> {
    let backbone = Backbone::new(shape::like(&arguments.like, arguments.layers.map(usize::from))?, arguments.seed)?;
    let started = Instant::now();
    let stop = on_ctrl_c()?;
    let is_shown = std::io::stderr().is_terminal();
    let mut shown = Instant::now();
    let mut progress = |done: u64, total: u64| {
        if is_shown && (done == total || shown.elapsed().as_millis() > 200) {
            shown = Instant::now();
            let end = if done == total { "\n" } else { "" };
            eprint!("\r{:.1} of {:.1} GB{end}", done as f64 / 1e9, total as f64 / 1e9);
        }
    };
    let mut writing = Writing { shard: SHARD, stop: &stop, progress: &mut progress };
    let files = backbone.write(&arguments.folder, &mut writing)?;
    let bytes = backbone.bytes() as f64;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{}: {:.2} GB of weights in {files} files, {seconds:.1} s, {:.0} MB/s",
        arguments.folder.display(),
        bytes / 1e9,
        bytes / 1e6 / seconds
    );
    Ok(())
}

/// Returns a flag that the first Ctrl-C sets, so that training saves a checkpoint and stops. The second Ctrl-C exits
/// immediately.
fn on_ctrl_c() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if flag.swap(true, Relaxed) {
            std::process::exit(130);
        }
        eprintln!("stopping after this step; press Ctrl-C again to stop at once");
    })
    .map_err(|error| Error::job("cannot watch for Ctrl-C").found(error))?;
    Ok(stop)
}

/// Returns the program's name, version and git commit (if known).
fn program() -> String {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    let changes = if changed { " with changes" } else { "" };
    format!("ghostlab {} {commit}{changes}", env!("CARGO_PKG_VERSION")).trim_end().to_owned()
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Process::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}
