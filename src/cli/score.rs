//! `ghostlab score MODEL --tasks … --perplexity …`: a grid of one dense backbone, made of the command line.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Map, Value, json};

use super::candidates;
use super::grid_args::{EngineArgs, LimitArgs, Threads};
use super::home::Place;
use super::units::columns;
use super::{fetch, out, progress, stop};
use crate::corpus::Rule;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::{self, Methods};
use crate::files::atomic::write_atomically;
use crate::grid::Grid;
use crate::hub::Source;
use crate::model::Config;
use crate::quantity::MOST;
use crate::results::{ModelScore, ModelScores};
use crate::tasks::{Bos, DocumentLimit};

#[derive(Args)]
pub(super) struct Arguments {
    /// A folder with config.json, tokenizer.json and *.safetensors; `org/name[@revision]` of the hub's cache; or the name of
    /// a file in `backbones/`.
    #[arg(add = candidates::models())]
    model: String,
    /// Tasks by name, or their files, which are called after their tasks (`arc_easy.jsonl`, `NAME=FILE` where they are not).
    #[arg(long, value_name = "TASK", num_args = 1.., value_delimiter = ',', add = candidates::tasks())]
    tasks: Vec<String>,
    /// Texts by name (`wikitext2`, `c4`, `ptb`, any file in `corpora/`) or text files, with the tokens of a window where
    /// they are not --length: `wikitext2@1024`, `notes.txt`.
    #[arg(long, value_name = "TEXT", num_args = 1.., value_delimiter = ',', add = candidates::texts())]
    perplexity: Vec<String>,
    /// Tokens of a window; 2048 by default, or the model's context where that is less.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..=MOST as i64))]
    length: Option<u32>,
    /// How the rows of text files are joined and their windows drawn.
    #[arg(long, default_value = "wikitext2", value_parser = PossibleValuesParser::new(Rule::ALL.map(Rule::name)))]
    rule: String,
    /// Only the first documents of each task: so many, or below 1 that part of them.
    #[arg(long, value_name = "N")]
    limit: Option<DocumentLimit>,
    /// Only the first windows of each text.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST as i64))]
    windows: Option<u32>,
    /// Whether contexts begin with the tokenizer's special tokens: as it does by itself, never or always.
    #[arg(long, default_value_t, value_parser = str::parse::<Bos>)]
    bos: Bos,
    /// Bring what is missing from the hub first.
    #[arg(long)]
    fetch: bool,
    /// Print a results file as lm-evaluation-harness writes it, instead of the table.
    #[arg(long)]
    json: bool,
    /// Write that file too.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    place: Place,
}

/// How messages call the grid. It stands in no file; names are looked for as in one of the current folder.
const FILE: &str = "score";
/// Tokens of a window where nobody says otherwise: the reference code's.
const LENGTH: usize = 2048;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    arguments.threads.start()?;
    let model = Path::new(&arguments.model);
    let store = arguments.place.store_near(Some(model).filter(|model| model.is_dir()))?;
    let stop = stop::on_ctrl_c(stop::AFTER_BATCH)?;
    if arguments.fetch {
        let needs = Grid::needs_of_text(&text(arguments, LENGTH)?, Path::new(FILE), &Methods)?;
        fetch::bring(&[needs], &store, false, &stop)?;
    }
    let grid = grid(arguments)?;
    let settings = arguments.limits.settings(arguments.engine.request());
    let outcome = exec::run(&grid, settings, &store, &*progress::reporter(false), &stop)?;
    let scores = ModelScores::of(&grid, &outcome)?;
    let file = scores.lm_eval(&arguments.model)?;
    if let Some(path) = &arguments.output {
        let failed = |error: std::io::Error| Error::io("write", path, &error);
        let file = serde_json::to_string_pretty(&file)
            .map_err(|error| Error::job("the results have no JSON form").found(error.to_string()))?;
        write_atomically(path, |out| out.write_all(format!("{file}\n").as_bytes()).map_err(failed))?;
    }
    if arguments.json {
        out::say_json(&file)?;
    } else {
        let engines: Vec<String> = outcome.engines.values().map(ToString::to_string).collect();
        println!("{} ({})\n\n{}", arguments.model, engines.join(", "), table(&scores.scores));
    }
    Ok(ExitCode::SUCCESS)
}

/// The grid, with windows that fit the model's context.
fn grid(arguments: &Arguments) -> Result<Grid> {
    let load = |length| {
        Grid::of_text(&text(arguments, length)?, Path::new(FILE), &Methods).map_err(|error| match error.kind() {
            ErrorKind::Missing if error.advice().is_some_and(|advice| advice.contains("ghostlab fetch")) => {
                error.hint("the same command with --fetch brings it")
            }
            _ => error,
        })
    };
    let grid = load(arguments.length.map_or(LENGTH, |length| length as usize))?;
    let context = grid.backbones.values().next().map(|of| Config::read_with_attachments(&of.path)).transpose()?;
    match context.and_then(|config| config.max_positions) {
        Some(most) if arguments.length.is_none() && most < LENGTH => load(most),
        _ => Ok(grid),
    }
}

/// The grid as a file would have it. (JSON is YAML.)
fn text(arguments: &Arguments, length: usize) -> Result<String> {
    if arguments.tasks.is_empty() && arguments.perplexity.is_empty() {
        return Err(Error::bad_input("nothing to score")
            .expected("--tasks, --perplexity, or both")
            .found("neither")
            .hint("for example --perplexity wikitext2 --tasks arc_easy,hellaswag"));
    }
    let (name, backbone) = backbone(&arguments.model)?;
    let (mut tasks, mut used) = (Map::new(), Vec::new());
    for given in &arguments.tasks {
        let (task, file) = match given.split_once('=') {
            Some((task, file)) => (task.to_owned(), Some(file)),
            None if is_file(given)? => (stem(given), Some(given.as_str())),
            None => (given.clone(), None),
        };
        if let Some(file) = file {
            tasks.insert(task.clone(), json!({"path": absolute(file)?}));
        }
        let mut entry = json!({"name": task, "bos": arguments.bos});
        if let Some(limit) = arguments.limit {
            entry["limit"] = json!(limit.value());
        }
        used.push(entry);
    }
    let (mut corpora, mut read) = (Map::new(), Vec::new());
    for given in &arguments.perplexity {
        let (text, own) = match given.rsplit_once('@').map(|(text, length)| (text, length.parse::<usize>())) {
            Some((text, Ok(length))) => (text, length),
            _ => (given.as_str(), length),
        };
        let mut entry = Map::new();
        let file = is_file(text)?;
        let corpus = if file { stem(text) } else { text.to_owned() };
        if file {
            entry.extend([("path".into(), json!(absolute(text)?)), ("rule".into(), json!(arguments.rule))]);
        }
        entry.extend(arguments.windows.map(|limit| ("limit".into(), json!(limit))));
        if !entry.is_empty() {
            corpora.insert(corpus.clone(), Value::Object(entry));
        }
        read.push(json!({"corpus": corpus, "length": own}));
    }
    let mut grid = json!({"name": "score", "backbone": [name], "evaluate": {}});
    let parts = [("backbones", backbone), ("tasks", Value::Object(tasks)), ("corpora", Value::Object(corpora))];
    for (key, part) in parts.into_iter().filter(|(_, part)| part.as_object().is_some_and(|part| !part.is_empty())) {
        grid[key] = part;
    }
    for (key, list) in [("tasks", used), ("perplexity", read)].into_iter().filter(|(_, list)| !list.is_empty()) {
        grid["evaluate"][key] = Value::Array(list);
    }
    Ok(grid.to_string())
}

/// What the grid calls the model, and its entry where that is not a file's.
fn backbone(model: &str) -> Result<(String, Value)> {
    let folder = Path::new(model);
    if folder.is_dir() {
        let whole = std::path::absolute(folder).map_err(|error| Error::io("find", folder, &error))?;
        let name =
            whole.components().next_back().map_or(String::new(), |name| name.as_os_str().to_string_lossy().into());
        return Ok((name.clone(), json!({ name: {"path": absolute(model)?} })));
    }
    if !model.contains('/') {
        return Ok((model.to_owned(), json!({})));
    }
    let missing = || {
        Error::missing("the model is not there")
            .at(model)
            .expected("a folder, or `org/name` of the hub")
            .hint("check the path for a typing error")
    };
    let source = Source::parse(model).map_err(|_| missing())?;
    let (hub, revision) = (source.repo.to_string(), source.revision.clone());
    let name = hub.rsplit('/').next().unwrap_or_default().to_owned();
    Ok((name.clone(), json!({ name: {"hub": hub, "revision": revision} })))
}

/// Paths in a grid begin at its folder.
fn absolute(path: &str) -> Result<String> {
    let whole = std::path::absolute(path).map_err(|error| Error::io("find", Path::new(path), &error))?;
    whole.into_os_string().into_string().map_err(|_| Error::bad_input("a path is not UTF-8").at(path))
}

/// Whether a text means a file and not a name.
///
/// # Errors
/// It can only be a file, and there is none.
fn is_file(text: &str) -> Result<bool> {
    let there = Path::new(text).exists();
    if !there && text.contains(std::path::MAIN_SEPARATOR) {
        return Err(Error::bad_input("there is no such file")
            .at(text)
            .expected("a file, or a name without a path")
            .hint("check the path for a typing error"));
    }
    Ok(there && (text.contains(['/', '.']) || Path::new(text).is_file()))
}

/// A file's name up to its first point.
fn stem(path: &str) -> String {
    let name = Path::new(path).file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    name.split('.').next().unwrap_or_default().to_owned()
}

/// A line for each score.
fn table(scores: &[ModelScore]) -> String {
    let number = |score: &ModelScore, value: f64| match score.percent {
        true => format!("{value:.2}"),
        false => format!("{value:.4}"),
    };
    let mut rows = vec![["scored on", "metric", "value", "±", "bits per byte", "items"].map(str::to_owned).to_vec()];
    rows.extend(scores.iter().map(|score| {
        let items = if score.percent { "documents" } else { "windows" };
        vec![
            score.of.clone(),
            score.metric.to_owned(),
            number(score, score.value),
            score.error.map_or(String::new(), |error| number(score, error)),
            score.bits_per_byte.map_or(String::new(), |bits| format!("{bits:.4}")),
            format!("{} {items}", score.items),
        ]
    }));
    columns(&rows, &[2, 3, 4])
}
