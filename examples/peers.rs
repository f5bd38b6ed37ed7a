//! Ghostlab's part of the benchmarks in `tools/peers`. It replaces the `ghostlab` program where timing a command would
//! include other work, such as loading the weights. Each line of standard input starts a round. The round prints a line
//! of JSON with its duration in seconds and its result.
//!
//! - `peers forward BACKBONE WINDOWS.json DTYPE THREADS`, where DTYPE is a float type of the engine `cpu`
//! - `peers halves BACKBONE WINDOWS.json DTYPE THREADS`, which computes losses of the second half of each window
//! - `peers generate BACKBONE PROMPTS.json DTYPE NEW CUTS THREADS`
//! - `peers solve SYSTEM.safetensors SOLUTION THREADS`
//! - `peers grid GRID.yaml THREADS`, with input lines `shared STORE` (runs all cells together) or `separate STORE`
//!   (runs one cell after the other)
#![allow(clippy::disallowed_macros, reason = "a benchmark prints")]

use std::io::{BufRead, stdin};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use ghostlab::corpus::{Start, Windows};
use ghostlab::error::{Error, Result};
use ghostlab::evaluate::perplexity::{Losses, PerplexityEval};
use ghostlab::evaluate::score;
use ghostlab::generate::{self, Detokenizer, Prompt, Settings};
use ghostlab::grid::{Cell, Grid};
use ghostlab::linalg::solve::NormalEquations;
use ghostlab::model::{Batch, Config, Decoder, Engine, EngineChoice, EngineName, EngineRequest, Program, Trie};
use ghostlab::pipeline::exec::{self, RunEnv};
use ghostlab::pipeline::stage;
use ghostlab_store::Store;
use safetensors::SafeTensors;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tokens per batch, equal to the default of the `ghostlab` program.
const BATCH_TOKENS: usize = 2048;
/// Ridge that the recovery method `ghosted` adds to the diagonal.
const RIDGE: f64 = 1e-6;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match *arguments.as_slice() {
        ["forward", backbone, windows, kind, threads] => {
            run_on(threads, &|| forward(backbone.as_ref(), windows.as_ref(), kind))
        }
        ["generate", backbone, prompts, kind, new, cuts, threads] => {
            run_on(threads, &|| generate(backbone.as_ref(), prompts.as_ref(), kind, (new, cuts)))
        }
        ["halves", backbone, windows, kind, threads] => {
            run_on(threads, &|| score_second_halves(backbone.as_ref(), windows.as_ref(), kind))
        }
        ["solve", system, solution, threads] => run_on(threads, &|| solve(system.as_ref(), solution.as_ref())),
        ["grid", grid, threads] => run_on(threads, &|| run_grid(grid.as_ref())),
        // Succeed without arguments, so that a script can run all examples.
        [] => {
            println!("run tools/bench_peers.sh, which starts this example with arguments");
            Ok(())
        }
        _ => Err(Error::bad_input("unknown arguments").found(arguments.join(" "))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run_on(threads: &str, benchmark: &dyn Fn() -> Result<()>) -> Result<()> {
    start_thread_pool(threads).and_then(|()| benchmark())
}

fn start_thread_pool(threads: &str) -> Result<()> {
    let threads = threads.parse().map_err(|_| Error::bad_input("invalid thread count").found(threads.to_owned()))?;
    let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    built.map_err(|error| Error::job("cannot start threads").found(error.to_string()))
}

/// Runs one round per input line and prints the result of each.
fn run_rounds(mut round: impl FnMut(&str) -> Result<Value>) -> Result<()> {
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| Error::job("cannot read standard input").found(error.to_string()))?;
        println!("{}", round(&line)?);
    }
    Ok(())
}

/// Reads windows of token ids, `[windows, length]`.
fn read_windows(file: &Path) -> Result<Vec<Vec<u32>>> {
    let bytes = std::fs::read(file).map_err(|error| Error::io("read", file, &error))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::bad_input("invalid token ids").at(file.display().to_string()).found(error.to_string()))
}

/// Computes the loss of each window under the dense model. Matrix products use the float type `kind`.
fn forward(backbone: &Path, windows: &Path, kind: &str) -> Result<()> {
    let ids = read_windows(windows)?;
    let length = ids.first().map_or(0, Vec::len);
    let starts = (0..ids.len()).map(|index| Start { document: 0, token: index * length }).collect();
    let windows = Windows { ids: ids.concat(), length, starts, corpus_tokens: 0, bytes: 0 };
    let decoder = load_decoder(backbone, kind)?;
    let trie = Trie::for_scoring(&[Program::dense(decoder.config().layers)]);
    let eval_set = PerplexityEval::new(&windows, BATCH_TOKENS);
    run_rounds(|_| {
        let started = Instant::now();
        let losses = score(&eval_set, &decoder, &trie, &mut vec![0.0; trie.len()], |_| Ok(()))?;
        let seconds = started.elapsed().as_secs_f64();
        let losses = Losses { windows: losses.concat() };
        Ok(json!({"seconds": seconds, "perplexity": losses.perplexity(), "losses": losses.windows}))
    })
}

/// Loads the backbone into the `cpu` engine. `kind` is the float type of its matrix products.
fn load_decoder(backbone: &Path, kind: &str) -> Result<Decoder> {
    let dtype = kind.parse().map_err(|text: String| Error::bad_input("unknown float type").found(text))?;
    let request = EngineRequest { engine: Some(EngineName::Cpu), dtype: Some(dtype), ..EngineRequest::default() };
    let choice = request.choose(backbone)?;
    choice.check()?;
    let EngineChoice::Cpu(products) = choice else { unreachable!("the engine was requested") };
    Decoder::load_within(Config::read_with_attachments(backbone)?, backbone, products, u64::MAX)
}

/// Detokenizer that returns empty texts, because only the ids are compared.
struct EmptyDetokenizer;

impl Detokenizer for EmptyDetokenizer {
    fn decode(&self, _: &[u32], _: bool) -> Result<String> {
        Ok(String::new())
    }
}

/// Generates `new` greedy tokens after each prompt, with the dense backbone and with each cut, in one [`Trie`]. `cuts`
/// lists half-open ranges of removed layers. For example, `3-5,7-9` is a cut of layers 3 and 4, and a cut of layers 7
/// and 8. An input line with a number sets how many prompts run together.
fn generate(backbone: &Path, prompts: &Path, kind: &str, (new, cuts): (&str, &str)) -> Result<()> {
    let new = parse_number(new)?;
    let prompts = read_windows(prompts)?.into_iter().map(|ids| Prompt { identity: String::new(), ids });
    let decoder = load_decoder(backbone, kind)?;
    let prompts = prompts.collect::<Vec<_>>();
    let layers = decoder.config().layers;
    let mut programs = vec![Program::dense(layers)];
    for cut in cuts.split(',').filter(|cut| !cut.is_empty()) {
        let (first, end) = cut.split_once('-').unwrap_or((cut, cut));
        let removed: Vec<usize> = (parse_number(first)?..parse_number(end)?).collect();
        programs.push(Program::pruned(layers, &removed, |_| None));
    }
    let trie = Trie::new(&programs);
    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    run_rounds(|together| {
        let batch = together.parse().unwrap_or(prompts.len());
        let settings = Settings { batch, ..Settings::greedy(new, longest + new) };
        let started = Instant::now();
        let made = generate::generate(&decoder, &trie, &prompts, &settings, &EmptyDetokenizer, &mut ())?;
        let seconds = started.elapsed().as_secs_f64();
        // Order the results by program (the dense backbone, then each cut), because the compared tools run one program
        // after the other.
        let ids: Vec<&[u32]> = (0..programs.len())
            .flat_map(|program| made.iter().map(move |outputs| outputs[program].ids.as_slice()))
            .collect();
        Ok(json!({"seconds": seconds, "ids": ids}))
    })
}

fn parse_number(text: &str) -> Result<usize> {
    text.parse::<usize>().map_err(|_| Error::bad_input("invalid number").found(text.to_owned()))
}

/// Computes the mean loss of the second half of each window under the dense backbone, like llama.cpp's perplexity.
fn score_second_halves(backbone: &Path, windows: &Path, kind: &str) -> Result<()> {
    let ids = read_windows(windows)?;
    let decoder = load_decoder(backbone, kind)?;
    let trie = Trie::for_scoring(&[Program::dense(decoder.config().layers)]);
    // Size each batch to the tokens that one worker thread processes at a time, rounded up to whole windows.
    let batches =
        ids.chunks(Engine::part_tokens(&decoder).div_ceil((ids.first().map_or(0, Vec::len)).max(1))).map(|windows| {
            let mut batch = Batch::windows(windows.iter().map(Vec::as_slice));
            let segments = batch.segments.iter();
            let kept: Vec<_> = segments.flat_map(|rows| rows.start + rows.len() / 2..rows.end).collect();
            batch.targets.retain(|target| kept.binary_search(&target.row).is_ok());
            batch
        });
    let batches: Vec<Batch> = batches.collect();
    run_rounds(|_| {
        let started = Instant::now();
        let mut losses = Vec::new();
        for (outputs, batch) in decoder.score(&trie, &batches, &mut vec![0.0; trie.len()])?.into_iter().zip(&batches) {
            let predictions = outputs.into_iter().flatten().flatten().collect::<Vec<_>>();
            let predicted = predictions.len() / batch.segments.len().max(1);
            losses.extend(predictions.chunks(predicted.max(1)).map(|window| {
                window.iter().map(|token| -f64::from(token.log_probability)).sum::<f64>() / window.len() as f64
            }));
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(json!({"seconds": seconds, "losses": losses}))
    })
}

/// Solves for the operator of the recovery method `ghosted` from the rows `pre` to the rows `post`, both `[rows, C]` in
/// f32. Each round writes its solution, `[C, C]` in f64, to the same file.
fn solve(system: &Path, solution: &Path) -> Result<()> {
    let bytes = std::fs::read(system).map_err(|error| Error::io("read", system, &error))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| linear_system_error(&error, system))?;
    let rows = |name: &str| -> Result<(Vec<f32>, usize)> {
        let tensor = tensors.tensor(name).map_err(|error| linear_system_error(&error, system))?;
        let channels = tensor.shape().last().copied().unwrap_or(0);
        Ok((bytemuck::pod_collect_to_vec(tensor.data()), channels))
    };
    let ((pre, channels), (post, _)) = (rows("pre")?, rows("post")?);
    run_rounds(|_| {
        let started = Instant::now();
        let mut normal = NormalEquations::new(channels);
        normal.add_difference(&pre, &post);
        let map = normal.solve(RIDGE)?;
        let seconds = started.elapsed().as_secs_f64();
        let written = std::fs::write(solution, bytemuck::cast_slice(&map));
        written.map_err(|error| Error::io("write", solution, &error))?;
        Ok(json!({"seconds": seconds}))
    })
}

fn linear_system_error(error: &dyn std::fmt::Display, system: &Path) -> Error {
    Error::bad_input("cannot read the linear system").at(system.display().to_string()).found(error.to_string())
}

/// Runs the grid in each round with the store that the input line names. Objects in that store are reused.
fn run_grid(grid: &Path) -> Result<()> {
    let grid = Grid::load(grid, None, &[])?;
    run_rounds(|line| {
        let (how, store) = line.split_once(' ').unwrap_or((line, ""));
        let store = Store::open(Path::new(store), stage::STORE_WORDS)?;
        let started = Instant::now();
        let run = |cells: &[Cell]| {
            let some = Grid { cells: cells.to_vec(), ..grid.clone() };
            let outcome = exec::run(&some, RunEnv::new(&store))?;
            if outcome.failed_count() > 0 { Err(Error::job("a cell failed")) } else { Ok(()) }
        };
        match how {
            "shared" => run(&grid.cells)?,
            _ => grid.cells.chunks(1).try_for_each(run)?,
        }
        Ok(json!({"seconds": started.elapsed().as_secs_f64()}))
    })
}
