//! `ghostlab score MODEL --tasks … --perplexity …`: scores a dense backbone, using a grid built from the command line.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueHint};
use serde_json::{Value, json};

use super::answer::write_commands::{HubInput, ScoreAnswer};
use super::answer::{self, Answer};
use super::grid_args::ComputeArgs;
use super::named_entries::{NamedGrid, absolute_path, is_file, with_fetch_hint};
use super::terminal::format_columns;
use super::{directories, fetch, progress, requested_work, stop};
use crate::artifact;
use crate::corpus::WindowRule;
use crate::error::{Error, Result};
use crate::files;
use crate::files::atomic::write_atomically;
use crate::files::output::{OutputFile, SEAL, UNSEALED, is_sealed, seal};
use crate::grid::{AxisChoice, Grid, GridFile, HubSource, is_yaml};
use crate::model::Config;
use crate::pipeline::exec::{self, RunEnv};
use crate::quantity::MAX;
use crate::results::{ModelScore, ModelScores};
use crate::tasks::{Bos, DocumentLimit};

#[derive(Args)]
pub(super) struct Arguments {
    /// Model folder, .gguf file, `org/name[@revision]`, or name from `backbones/`.
    ///
    /// A model folder contains config.json, tokenizer.json and *.safetensors. `org/name[@revision]` is looked up in the
    /// hub cache.
    model: String,
    /// Tasks: names, files, or lm-evaluation-harness definitions.
    ///
    /// A file is named after its task (`arc_easy.jsonl`) or given as `NAME=FILE`. Definitions are YAML files, folders
    /// of them, or names of tasks, groups and tags in --definitions.
    #[arg(long, value_name = "TASK", num_args = 1.., value_delimiter = ',')]
    tasks: Vec<String>,
    /// Folder with lm-evaluation-harness task definitions, such as its `lm_eval/tasks`.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    definitions: Option<PathBuf>,
    /// Dataset folder for task definitions [default: their datasets on the hub].
    ///
    /// The folder contains one file per split.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::AnyPath)]
    rows: Option<PathBuf>,
    /// Number of few-shot examples for task definitions [default: from the definition].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000))]
    shots: Option<u32>,
    /// Format the questions of task definitions with the model's chat template.
    #[arg(long)]
    chat: bool,
    /// System message, or text before each prompt, for task definitions.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Write requests and answers for task definitions to `samples_TASK.jsonl` files.
    ///
    /// lm-evaluation-harness writes the same format with `--log_samples`.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    samples: Option<PathBuf>,
    /// Texts by name or file, with optional window length, e.g. `wikitext2@1024`.
    ///
    /// Names are `wikitext2`, `c4`, `ptb` and the files in `corpora/`. The default length is --length.
    #[arg(long, value_name = "TEXT", num_args = 1.., value_delimiter = ',')]
    perplexity: Vec<String>,
    /// Tokens per window [default: 2048, or the model's context if shorter].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..=MAX as i64))]
    length: Option<u32>,
    /// Rule for joining the rows of text files and drawing windows from them.
    ///
    /// A .txt file is one row; a .jsonl file has one row per line.
    #[arg(long, default_value = "wikitext2", value_parser = PossibleValuesParser::new(WindowRule::ALL.map(WindowRule::name)))]
    rule: String,
    /// Maximum number of documents per task, or a fraction below 1.
    #[arg(long = "documents", visible_alias = "limit", value_name = "N")]
    limit: Option<DocumentLimit>,
    /// Maximum number of windows per text.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX as i64))]
    windows: Option<u32>,
    /// Special tokens at the start of contexts: `tokenizer`, `never` or `always`.
    ///
    /// `tokenizer` uses the tokenizer's default.
    #[arg(long, default_value_t, value_parser = str::parse::<Bos>)]
    bos: Bos,
    /// Download missing inputs from the Hugging Face hub first.
    #[arg(long)]
    fetch: bool,
    /// Profile that defines text and task names [default: as in `backbones/`].
    ///
    /// The profile is read from `profiles/NAME.yaml` in the current folder or in the experiments folder.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Write results in lm-evaluation-harness format.
    ///
    /// Replaces a file that an earlier `score` wrote.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing output file that `score` did not write.
    #[arg(long, requires = "output")]
    force: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// File name of the generated grid in messages. It has no parent directory, so named entries are looked up in the
/// current directory.
const FILE: &str = "score";
/// Default number of tokens per window, as in the paper's reference code.
const DEFAULT_LENGTH: usize = 2048;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let model = Path::new(&arguments.model);
    let store = arguments.compute.start(Some(model).filter(|model| model.is_dir()))?;
    let stop = stop::on_ctrl_c(stop::STOPPING_AFTER_BATCH)?;
    if arguments.fetch {
        let file = GridFile::from_text(&format_grid(arguments, DEFAULT_LENGTH)?, Path::new(FILE))?;
        let needs = file.needs(None, &[], &AxisChoice::ALL)?;
        fetch::fetch_missing(&[needs], &store, false, &stop)?;
    }
    let mut grid = build_grid(arguments)?;
    artifact::check_pins(&mut grid, &requested_work::file_hasher(&store)).map_err(|error| {
        if error.advice().is_some() {
            error.hint("run the same command with --fetch to download it again")
        } else {
            error
        }
    })?;
    let force = arguments.force;
    let output = arguments.output.as_ref().map(|path| OutputFile {
        path,
        inputs: directories::list_inputs(&grid, &store),
        force,
        is_ours: is_sealed,
    });
    output.as_ref().map_or(Ok(()), OutputFile::check)?;
    let settings = arguments.compute.settings();
    let env = RunEnv { store: &store, settings, reporter: &*progress::reporter(false), stop: &stop };
    let outcome = exec::run(&grid, env)?;
    let scores = ModelScores::new(&grid, &outcome)?;
    let file = scores.lm_eval(&arguments.model)?;
    if let Some(folder) = &arguments.samples {
        write_samples(folder, &exec::harness_samples(&grid, &env, &outcome)?)?;
    }
    if let Some(output) = output {
        write_sealed(&output, file.clone())?;
    }
    let engines: Vec<String> = outcome.engines.values().map(ToString::to_string).collect();
    let scored = ScoreAnswer {
        model: arguments.model.clone(),
        engine: engines.join(", "),
        scores: scores.scores,
        hub: list_hub_inputs(&grid),
        lm_eval: file,
    };
    answer::print_answer(scored, Answer::Score, |answer| {
        println!("{} ({})", answer.model, answer.engine);
        answer.hub.iter().for_each(|source| println!("{}", format_hub_input(source)));
        println!("\n{}", format_scores(&answer.scores));
    })
}

/// Writes the results with a hash of the file, by which a later `score` recognizes a file that it may replace.
fn write_sealed(output: &OutputFile<'_>, mut results: Value) -> Result<()> {
    results[SEAL] = json!(UNSEALED);
    let text = serde_json::to_string_pretty(&results)
        .map_err(|error| Error::job("cannot write the results as JSON").found(error.to_string()))?;
    output.write(seal(&format!("{text}\n")).as_bytes())
}

/// Returns the inputs of the grid that have a source on the hub, even if a local copy is used.
fn list_hub_inputs(grid: &Grid) -> Vec<HubInput> {
    let backbones = grid.backbones.iter().map(|(name, backbone)| (name, &backbone.hub));
    let corpora = grid.corpora.iter().map(|(name, corpus)| (name, &corpus.hub));
    let tasks = grid.task_data().map(|(name, task)| (name, &task.hub));
    backbones
        .chain(corpora)
        .chain(tasks)
        .filter_map(|(name, hub)| Some(HubInput { name: name.clone(), source: hub.clone()? }))
        .collect()
}

fn format_hub_input(HubInput { name, source }: &HubInput) -> String {
    let HubSource { repository, commit, pinned, .. } = source;
    let commit = commit.as_ref().map_or("a local copy".to_owned(), |commit| format!("commit {commit}"));
    format!("{name}: {repository}, {commit}, {}", if *pinned { "pinned" } else { "not pinned" })
}

/// Builds the grid. Without `--length`, windows have 2048 tokens or, if it is shorter, the length of the model's
/// context.
fn build_grid(arguments: &Arguments) -> Result<Grid> {
    let grid = load_grid(arguments, arguments.length.map_or(DEFAULT_LENGTH, |length| length as usize))?;
    let context =
        grid.backbones.values().next().map(|backbone| Config::read_with_attachments(&backbone.path)).transpose()?;
    match context.and_then(|config| config.max_positions) {
        Some(most) if arguments.length.is_none() && most < DEFAULT_LENGTH => load_grid(arguments, most),
        _ => Ok(grid),
    }
}

fn load_grid(arguments: &Arguments, length: usize) -> Result<Grid> {
    Grid::from_text(&format_grid(arguments, length)?, Path::new(FILE))
        .map_err(with_fetch_hint)
        .map_err(without_location)
}

/// Removes the location in the generated grid from an error, because the user did not write that grid.
fn without_location(error: Error) -> Error {
    let line = format!("{FILE}:");
    let Some(position) = error.parts().location.clone().filter(|position| position.contains(&line)) else {
        return error;
    };
    let others: Vec<&str> = position.split(", ").filter(|part| !part.starts_with(&line)).collect();
    error.replace_location(if others.is_empty() { "the options of `score`".to_owned() } else { others.join(", ") })
}

/// Builds the text of the grid, as JSON.
fn format_grid(arguments: &Arguments, length: usize) -> Result<String> {
    if arguments.tasks.is_empty() && arguments.perplexity.is_empty() {
        return Err(Error::bad_input("nothing to score")
            .expected("--tasks, --perplexity, or both")
            .found("neither")
            .hint("pass inputs, for example --perplexity wikitext2 --tasks arc_easy,hellaswag"));
    }
    let mut grid = NamedGrid::new(&arguments.model, arguments.profile.as_ref())?;
    let mut used = Vec::new();
    let mut defined = false;
    for given in &arguments.tasks {
        match build_definition_entry(arguments, given)? {
            Some(entry) => {
                used.push(entry);
                defined = true;
            }
            None => used.push(grid.add_task(given, arguments.bos, arguments.limit)?),
        }
    }
    if !defined {
        let Arguments { definitions, rows, shots, chat, system, samples, .. } = arguments;
        let given = [
            ("--definitions", definitions.is_some()),
            ("--rows", rows.is_some()),
            ("--shots", shots.is_some()),
            ("--chat", *chat),
            ("--system", system.is_some()),
            ("--samples", samples.is_some()),
        ];
        if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
            return Err(Error::bad_input(format!("`{flag}` applies only to user-defined tasks"))
                .expected("--tasks with a YAML file, a folder of them, or a name in --definitions")
                .found(arguments.tasks.join(", "))
                .hint("remove the option: the nine built-in tasks are zero-shot without a chat template"));
        }
    }
    let texts = arguments.perplexity.iter();
    let texts = texts.map(|text| grid.add_text("--perplexity", text, length, &arguments.rule, arguments.windows));
    let texts = texts.collect::<Result<Vec<Value>>>()?;
    let mut settings = json!({"name": "score", "backbone": [grid.backbone], "evaluate": {}});
    for (key, list) in [("tasks", used), ("perplexity", texts)].into_iter().filter(|(_, list)| !list.is_empty()) {
        settings["evaluate"][key] = Value::Array(list);
    }
    Ok(grid.format(settings))
}

/// Returns the grid entry for a task that has an lm-evaluation-harness definition, or `None` for any other task.
fn build_definition_entry(arguments: &Arguments, task: &str) -> Result<Option<Value>> {
    let path = Path::new(task);
    let file = path.is_file() && is_yaml(path) || path.is_dir() && task.contains(['/', '.']) && has_yaml(path);
    let named = arguments.definitions.is_some() && !task.contains('=') && !is_file(task)?;
    if !file && !named {
        return Ok(None);
    }
    let mut entry =
        json!({"definition": if file { absolute_path(task)? } else { task.to_owned() }, "bos": arguments.bos});
    let Arguments { definitions, rows, shots, limit, system, chat, .. } = arguments;
    let absolute_option =
        |path: &Option<PathBuf>| path.as_ref().map(|path| absolute_path(&path.display().to_string())).transpose();
    let options = [
        ("folder", json!(absolute_option(definitions)?)),
        ("data", json!(absolute_option(rows)?)),
        ("shots", json!(shots)),
        ("limit", json!(limit.map(DocumentLimit::value))),
        ("system", json!(system)),
        ("chat", json!(chat.then_some(true))),
    ];
    for (key, value) in options.into_iter().filter(|(_, value)| !value.is_null()) {
        entry[key] = value;
    }
    Ok(Some(entry))
}

fn has_yaml(folder: &Path) -> bool {
    files::entries(folder).unwrap_or_default().iter().any(|path| is_yaml(path))
}

/// Writes the samples for each task to a separate file. The files are named as in lm-evaluation-harness but without a
/// timestamp.
fn write_samples(folder: &Path, samples: &[(String, Vec<Value>)]) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| Error::folder_io("create", folder, &error))?;
    for (task, lines) in samples {
        let name = task.split('(').next().unwrap_or(task).replace([':', '/', '\\'], "_");
        let path = folder.join(format!("samples_{name}.jsonl"));
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        write_atomically(&path, |file| {
            file.write_all(text.as_bytes()).map_err(|error| Error::io("write", &path, &error))
        })?;
    }
    Ok(())
}

/// Formats a table with one row per score.
fn format_scores(scores: &[ModelScore]) -> String {
    let mut rows = vec![["scored on", "metric", "value", "±", "bits per byte", "items"].map(str::to_owned).to_vec()];
    rows.extend(scores.iter().map(|score| {
        let items = if score.windows { "windows" } else { "documents" };
        vec![
            score.label.clone(),
            score.metric.clone(),
            format_value(score, score.value),
            score.error.map_or(String::new(), |error| format_value(score, error)),
            score.bits_per_byte.map_or(String::new(), |bits| format!("{bits:.4}")),
            format!("{} {items}", score.items),
        ]
    }));
    format_columns(&rows, &[2, 3, 4])
}

fn format_value(score: &ModelScore, value: f64) -> String {
    format!("{value:.0$}", if score.percent { 2 } else { 4 })
}
