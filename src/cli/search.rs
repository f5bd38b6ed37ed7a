//! `ghostlab search MODEL --budget …`: which layers, which repair, how sure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Map, Value, json};

use super::answer::done::{ExportedCell, all_shown, shown};
use super::answer::search::Searched;
use super::answer::{self, Answer};
use super::candidates;
use super::grid_args::{EngineArgs, LimitArgs, Threads};
use super::home::{self, StoreArgs};
use super::score::{SharedEntries, backbone};
use super::units::{bytes, columns, seconds};
use super::{fetch, progress, stop};
use crate::artifact::{self, search_files, search_names};
use crate::corpus::Rule;
use crate::criterion::{self, PruneSpec};
use crate::error::{Error, Result};
use crate::exec::{self, GridOutcome, Recorder, Reporter, RunSettings};
use crate::export::{self, Exported, Exporter, Form};
use crate::files::output::{OutputFolder, apart};
use crate::grid::{Budget, Grid, Latency, Search};
use crate::latency::LatencyResult;
use crate::model::Config;
use crate::options::Options;
use crate::quantity::{Gigabytes, MOST};
use crate::recovery;
use crate::search::{Found, Laboratory, parts, search, shallowest};
use crate::tasks::Bos;
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    /// A folder with config.json, tokenizer.json and *.safetensors; `org/name[@revision]` of the hub's cache; the name of a
    /// file in `backbones/`; or a grid file that says `search` instead of `evaluate`.
    #[arg(add = candidates::models())]
    model: String,
    /// What every candidate has to meet: `layers=8` (so many are removed), `speedup=1.3`, `latency=25ms`, `memory=12GB`;
    /// several are met together.
    #[arg(long, value_name = "BOUND", num_args = 1.., value_delimiter = ',')]
    budget: Vec<String>,
    /// Tasks by name, or their files, as `score` has them: the objective is their mean accuracy.
    #[arg(long, value_name = "TASK", num_args = 1.., value_delimiter = ',', add = candidates::tasks())]
    tasks: Vec<String>,
    /// Texts by name or files, as `score --perplexity` has them: the objective is their mean loss. With tasks as well, a
    /// candidate leaves only where one rival is better in both.
    #[arg(long, value_name = "TEXT", num_args = 1.., value_delimiter = ',', add = candidates::texts())]
    texts: Vec<String>,
    /// Texts that layers are chosen by and repairs are solved on, by name or files, with their size where it is not
    /// 128 sequences of --length tokens: `c4-train:64x1024@0` (sequences, tokens, seed).
    #[arg(long, value_name = "TEXT", num_args = 1.., value_delimiter = ',', add = candidates::texts())]
    calibration: Vec<String>,
    /// Criteria by name; by default those of the paper's that one pass over the calibration answers.
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    criteria: Vec<String>,
    /// Recoveries by name; by default all of the paper's.
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    recoveries: Vec<String>,
    /// Most documents of all tasks together, and most windows of all texts together; all by default. A fifth of them is kept
    /// for the judgement.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST as i64))]
    items: Option<u32>,
    /// The chance of any false exit from the race.
    #[arg(long, default_value_t = 0.05, value_parser = alpha)]
    alpha: f64,
    /// Of the order in which items come.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Tokens of a window, and of a calibration sequence; 2048 by default, or the model's context where that is less.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..=MOST as i64))]
    length: Option<u32>,
    /// The prompt that speed is counted and measured over: tokens, and sequences that are read together.
    #[arg(long, value_name = "TOKENS[xBATCH]", default_value = "512", value_parser = prompt)]
    prompt: Latency,
    /// How the rows of text files are joined and their windows drawn.
    #[arg(long, default_value = "wikitext2", value_parser = PossibleValuesParser::new(Rule::ALL.map(Rule::name)))]
    rule: String,
    /// Write the winner as a Hugging Face folder, with the evidence in its model card.
    #[arg(long, value_name = "FOLDER")]
    export: Option<PathBuf>,
    /// Bring what is missing from the hub first.
    #[arg(long)]
    fetch: bool,
    /// The profile whose texts and tasks are meant by their names; of a grid file the profile that is laid upon it.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Of a grid file: change a value, for example `--set search.seed=1`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Where the report's folder is made; `results` of the checkout by default.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    place: StoreArgs,
}

/// How messages call the grid of a command line. It stands in no file.
const FILE: &str = "search";
/// Tokens of a window and of a calibration sequence where nobody says otherwise.
const LENGTH: usize = 2048;
/// Sequences of a calibration where nobody says otherwise: the paper's.
const SEQUENCES: usize = 128;
/// The calibration where nobody says otherwise.
const CALIBRATION: &str = "c4-train";

fn prompt(text: &str) -> Result<Latency, String> {
    let (length, batch) = text.split_once('x').unwrap_or((text, "1"));
    let count = |text: &str| text.parse::<usize>().ok().filter(|count| (1..=MOST).contains(count));
    match (count(length), count(batch)) {
        (Some(length), Some(batch)) => Ok(Latency { length, batch, decode: None }),
        _ => Err("tokens, or tokens x sequences: 512, 512x4".to_owned()),
    }
}

fn alpha(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|alpha: &f64| *alpha > 0.0 && *alpha <= 0.5);
    number.ok_or_else(|| "a number above 0 and up to 0.5".to_owned())
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let clock = Instant::now();
    arguments.threads.start()?;
    let model = Path::new(&arguments.model);
    let store = arguments.place.store_near(Some(model).filter(|model| model.exists()))?;
    let stop = stop::on_ctrl_c(stop::AFTER_BATCH)?;
    let settings = arguments.limits.settings(arguments.engine.request());
    let reporter = progress::reporter(false);
    let work = |grid: &Grid, results: &Path| -> Result<GridOutcome> {
        let recorder = Recorder::start(grid, results, &store, &*reporter)?;
        exec::run(grid, settings, &store, &recorder, &stop).inspect_err(|error| recorder.end(error))
    };
    if let Some(folder) = &arguments.export {
        export::check(folder)?;
    }
    let mut grid =
        if is_grid(&arguments.model) { of_file(arguments)? } else { of_model(arguments, &store, &stop, &work)? };
    artifact::hold(&mut grid, &|file| store.input(file).map(|input| input.sha256().to_owned()))?;
    let spec = grid.search.clone().ok_or_else(|| {
        Error::bad_input("the grid has no `search`")
            .at(grid.file.display().to_string())
            .expected("`search:` with a budget, instead of `evaluate:`")
            .found("a grid that is scored")
            .hint("`ghostlab run` runs it")
    })?;
    let searches = parts(&grid);
    if arguments.export.is_some() && searches.len() != 1 {
        return Err(Error::bad_input("one winner can be exported")
            .at("--export")
            .expected("one backbone and one budget")
            .found(format!("{} searches", searches.len())));
    }
    let near = Some(model).filter(|_| is_grid(&arguments.model));
    let target = folder(arguments, &grid, &spec, near);
    apart(target.path(), &home::inputs(&grid, &store))?;
    target.look(&search_names(FILE, searches.len()))?;
    let lab = Laboratory {
        store: &store,
        settings,
        reporter: &*reporter,
        stop: &stop,
        run: &|grid: &Grid| work(grid, target.path()),
        times: true,
    };
    let found = searches.iter().map(|one| search(one, &lab)).collect::<Result<Vec<Found>>>()?;
    let files = search_files(FILE, &found)?;
    let draft = target.stage()?;
    for (name, bytes) in &files {
        std::fs::write(draft.path().join(name), bytes)
            .map_err(|error| Error::io("write", &draft.path().join(name), &error))?;
    }
    draft.publish()?;
    let written: Vec<PathBuf> = files.iter().map(|(name, _)| target.path().join(name)).collect();
    let exported = match (&arguments.export, searches.first(), found.first()) {
        (Some(folder), Some(grid), Some(found)) => {
            Some(exported(grid, found, folder, &store, settings, &*reporter, &stop)?)
        }
        _ => None,
    };
    let command = (found.len() == 1 && exported.is_none() && found[0].winner.is_some()).then(export_command);
    let answer = Searched {
        sentences: found.iter().map(Found::sentence).collect(),
        searches: found,
        files: all_shown(&written),
        exported,
        export: command,
        seconds: clock.elapsed().as_secs_f64(),
    };
    let missed = answer.searches.iter().any(|of| of.winner.is_none());
    answer::show(answer, Answer::Search, say)?;
    Ok(if missed { ExitCode::from(4) } else { ExitCode::SUCCESS })
}

fn is_grid(model: &str) -> bool {
    Path::new(model).extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// Of a grid file everything stands in it.
fn of_file(arguments: &Arguments) -> Result<Grid> {
    let Arguments { budget, tasks, texts, calibration, criteria, recoveries, .. } = arguments;
    let lists = [budget, tasks, texts, calibration, criteria, recoveries];
    let names = ["--budget", "--tasks", "--texts", "--calibration", "--criteria", "--recoveries"];
    if let Some((name, _)) = names.into_iter().zip(lists).find(|(_, list)| !list.is_empty()) {
        return Err(Error::bad_input("a grid file says what is searched")
            .at(name)
            .expected("no axes and no budget beside it")
            .hint("change a value of it with --set, for example `--set search.budget.layers=6`"));
    }
    Grid::load(Path::new(&arguments.model), arguments.profile.as_deref(), &arguments.overrides)
}

/// The grid of a command line: what is named is looked for, and depths are worked out from the budget.
fn of_model(
    arguments: &Arguments,
    store: &Store,
    stop: &std::sync::Arc<std::sync::atomic::AtomicBool>,
    work: &dyn Fn(&Grid, &Path) -> Result<GridOutcome>,
) -> Result<Grid> {
    let budget = budget(&arguments.budget)?;
    if arguments.tasks.is_empty() && arguments.texts.is_empty() {
        return Err(Error::bad_input("nothing to race on")
            .expected("--tasks, --texts, or both")
            .found("neither")
            .hint("for example --texts wikitext2"));
    }
    // First the model alone: how many layers it has decides how many go.
    let (name, entry) = backbone(&arguments.model)?;
    let probe =
        json!({"name": "search", "backbones": entry, "backbone": [name], "evaluate": {"latency": arguments.prompt}});
    if arguments.fetch {
        let needs = Grid::needs_of_text(&text(arguments, &budget, &[1], LENGTH)?, Path::new(FILE))?;
        fetch::bring(&[needs], store, false, stop)?;
    }
    let dense = Grid::of_text(&probe.to_string(), Path::new(FILE))?;
    let folder = dense.backbones.values().next().map(|of| of.path.clone()).unwrap_or_default();
    let config = Config::read_with_attachments(&folder)?;
    let checked = checked(&budget, arguments, &entry, &name)
        .map_err(|error| error.at(format!("--budget {}", arguments.budget.join(","))))?;
    // What is not there is told before anything is measured.
    Grid::of_text(&text(arguments, &budget, &[1], 2)?, Path::new(FILE))?;
    let engine = arguments.engine.request().choose(&folder)?;
    let depths = match checked.layers.as_slice() {
        [] => {
            let time = match checked.latency {
                Some(_) => {
                    let outcome = work(&dense, &home::below(arguments.results.as_ref(), "results", None))?;
                    let sample = outcome.cells.first().and_then(|of| of.prompt(&arguments.prompt)?.sample.as_ref());
                    sample.and_then(LatencyResult::spread).map(|of| of.mean)
                }
                None => None,
            };
            let least = shallowest(&checked, &config, engine, arguments.prompt, time)?;
            // An operator may take what the cut has won: the next depth is there for it.
            (least..=least + 1).filter(|&depth| depth < config.layers).collect()
        }
        layers => {
            if let Some(&most) = layers.iter().find(|&&depth| depth >= config.layers) {
                return Err(Error::bad_input("the budget leaves nothing of the backbone")
                    .at(format!("--budget layers={most}"))
                    .expected(format!("a number below {}, the model's layers", config.layers))
                    .found(most.to_string()));
            }
            layers.to_vec()
        }
    };
    let length = arguments.length.map_or(LENGTH, |length| length as usize);
    let length = match config.max_positions {
        Some(most) if arguments.length.is_none() => length.min(most),
        _ => length,
    };
    Grid::of_text(&text(arguments, &budget, &depths, length)?, Path::new(FILE))
}

/// The bounds of `--budget` as a grid has them.
fn budget(given: &[String]) -> Result<Map<String, Value>> {
    let forms = "`layers=8`, `speedup=1.3`, `latency=25ms` or `memory=12GB`";
    if given.is_empty() {
        return Err(Error::bad_input("the search has no budget")
            .at("--budget")
            .expected(forms)
            .found("none")
            .hint("for example --budget speedup=1.3"));
    }
    let mut budget = Map::new();
    for bound in given {
        let bad = |what: &str| Error::bad_input(what).at(format!("--budget {bound}")).expected(forms);
        let (key, value) = bound.split_once('=').ok_or_else(|| bad("a budget cannot be read"))?;
        let number = || value.parse::<f64>().ok().filter(|number| number.is_finite());
        let value = match key {
            "layers" => json!(value.parse::<usize>().map_err(|_| bad("a number of layers cannot be read"))?),
            "speedup" => json!(number().ok_or_else(|| bad("a speedup cannot be read"))?),
            "latency" | "memory" => json!(value),
            _ => return Err(bad("there is no such budget").found(format!("`{key}`"))),
        };
        if let Some(first) = budget.insert(key.to_owned(), value) {
            return Err(
                bad("the budget contradicts itself").found(format!("`{key}={first}` before it", first = plain(&first)))
            );
        }
    }
    Ok(budget)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The bounds, read and checked as a grid's are.
fn checked(budget: &Map<String, Value>, arguments: &Arguments, entry: &Value, name: &str) -> Result<Budget> {
    let any = json!({
        "name": "search", "backbones": entry, "backbone": [name], "criterion": "llm-streamline", "depth": 1, "recovery": "none",
        "corpora": {"none": {"path": "none.txt", "rule": "wikitext2"}},
        "calibration": {"corpus": "none", "sequences": 1, "length": 2},
        "search": {"budget": budget, "perplexity": {"corpus": "none", "length": 2}, "alpha": arguments.alpha},
    });
    match Grid::checked_search(&any.to_string(), Path::new(FILE))? {
        Some(Search { budget, .. }) => Ok(budget),
        None => Ok(Budget::default()),
    }
}

/// The grid as a file would have it. (JSON is YAML.)
fn text(arguments: &Arguments, budget: &Map<String, Value>, depths: &[usize], length: usize) -> Result<String> {
    let (name, entry) = backbone(&arguments.model)?;
    let shared = SharedEntries::of(&arguments.model, arguments.profile.as_ref())?;
    let (tasks, used) = shared.tasks_of(&arguments.tasks, Bos::default(), None)?;
    let (mut corpora, read) = shared.texts_of(&arguments.texts, length, &arguments.rule, None)?;
    let asked = match arguments.calibration.as_slice() {
        [] => vec![CALIBRATION.to_owned()],
        asked => asked.to_vec(),
    };
    let mut calibrations = Vec::new();
    for given in &asked {
        let (text, size) = sized(given, length)?;
        let (entries, used) =
            shared.texts_of(std::slice::from_ref(&text), length, &arguments.rule, None).map_err(|error| {
                if arguments.calibration.is_empty() {
                    error.hint("name a text to calibrate on: --calibration train.txt")
                } else {
                    error
                }
            })?;
        for (name, entry) in entries {
            corpora.entry(name).or_insert(entry);
        }
        let corpus = used.first().map(|of| of["corpus"].clone()).unwrap_or_default();
        let [sequences, length, seed] = size;
        // The paper's operators are solved on a quarter of the sequences.
        let operator = sequences.div_ceil(4);
        calibrations.push(json!({
            "corpus": corpus, "sequences": sequences, "length": length, "seed": seed, "operator_sequences": operator,
        }));
    }
    let mut search = json!({
        "budget": budget, "alpha": arguments.alpha, "seed": arguments.seed, "prompt": arguments.prompt,
    });
    if let Some(items) = arguments.items {
        search["items"] = json!(items);
    }
    for (key, list) in [("tasks", used), ("perplexity", read)].into_iter().filter(|(_, list)| !list.is_empty()) {
        search[key] = Value::Array(list);
    }
    let criteria = named(&arguments.criteria, one_pass);
    let recoveries = named(&arguments.recoveries, || {
        recovery::described().into_iter().filter(|of| !of.beyond).map(|of| of.name).collect()
    });
    let mut grid = json!({
        "name": name, "backbone": [name], "criterion": criteria, "depth": depths, "recovery": recoveries,
        "calibration": calibrations, "search": search,
    });
    let parts = [("backbones", entry), ("tasks", Value::Object(tasks)), ("corpora", Value::Object(corpora))];
    for (key, part) in parts.into_iter().filter(|(_, part)| part.as_object().is_some_and(|part| !part.is_empty())) {
        grid[key] = part;
    }
    Ok(grid.to_string())
}

fn named(given: &[String], all: impl FnOnce() -> Vec<String>) -> Vec<String> {
    if given.is_empty() { all() } else { given.to_vec() }
}

/// The paper's criteria that need no trials and no options.
fn one_pass() -> Vec<String> {
    let any = PruneSpec { backbone: "", layers: 8, depth: 2 };
    let fits = |name: &str| criterion::build(name, &Options::new()).is_ok_and(|rule| rule.trials(&any).is_empty());
    criterion::described().into_iter().filter(|of| !of.beyond && fits(&of.name)).map(|of| of.name).collect()
}

/// `TEXT:SEQUENCESxTOKENS@SEED` as the text and its numbers.
fn sized(given: &str, length: usize) -> Result<(String, [usize; 3])> {
    let usual = [SEQUENCES, length, 0];
    let Some((text, size)) = given.rsplit_once(':').filter(|_| !Path::new(given).exists()) else {
        return Ok((given.to_owned(), usual));
    };
    let (size, seed) = size.split_once('@').unwrap_or((size, "0"));
    let (sequences, tokens) = size.split_once('x').unwrap_or((size, ""));
    let number = |text: &str, usual: usize| if text.is_empty() { Some(usual) } else { text.parse().ok() };
    match (number(sequences, usual[0]), number(tokens, usual[1]), number(seed, 0)) {
        (Some(sequences), Some(tokens), Some(seed)) => Ok((text.to_owned(), [sequences, tokens, seed])),
        _ => Err(Error::bad_input("the size of a calibration cannot be read")
            .at(format!("--calibration {given}"))
            .expected("TEXT:SEQUENCESxTOKENS@SEED, for example c4-train:64x1024@0")
            .found(format!("`{given}`"))),
    }
}

/// `results/NAME/search+BUDGET`: another budget has another folder.
fn folder(arguments: &Arguments, grid: &Grid, spec: &Search, near: Option<&Path>) -> OutputFolder {
    let results = home::below(arguments.results.as_ref(), "results", near);
    let budget = spec.budget.to_string().replace(", ", "+");
    let differs =
        arguments.overrides.iter().map(|of| format!("+{}", of.replace(['/', '\\', ' '], "_"))).collect::<String>();
    OutputFolder::new(results.join(&grid.name).join(format!("search+{budget}{differs}")), "a search")
}

/// Writes the winner's folder.
fn exported(
    grid: &Grid,
    found: &Found,
    folder: &Path,
    store: &Store,
    settings: RunSettings,
    reporter: &dyn Reporter,
    stop: &std::sync::atomic::AtomicBool,
) -> Result<ExportedCell> {
    let winner = found.winner.as_ref().and_then(|name| grid.cells.iter().position(|cell| cell.name == *name));
    let winner =
        winner.ok_or_else(|| Error::job("no candidate meets the budget when it is measured: nothing is exported"))?;
    let form = Form { dtype: None, shard: Gigabytes::of_bytes(5_000_000_000).bytes() };
    let exporter = Exporter { store, settings, form, reporter, stop, evidence: Some(found.markdown()) };
    let Exported { folder, bytes, parameters, needs_code } = exporter.export(grid, winner, folder)?;
    Ok(ExportedCell { cell: grid.cells[winner].to_string(), folder: shown(&folder), bytes, parameters, needs_code })
}

/// The command line that was given, with an export.
fn export_command() -> String {
    let quoted = |word: OsString| {
        let word = word.to_string_lossy().into_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@+%".contains(c);
        if !word.is_empty() && word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let words = std::env::args_os().skip(1).map(quoted);
    let words: Vec<String> = ["ghostlab".to_owned()].into_iter().chain(words).collect();
    format!("{} --export FOLDER", words.join(" "))
}

fn say(answer: &Searched) {
    for (found, sentence) in answer.searches.iter().zip(&answer.sentences) {
        println!("{}\n\n{}", found.title(), columns(&found.table(), &[]));
        if !found.judged.is_empty() {
            println!("Judged on items that the race never saw:\n\n{}", columns(&found.judgement(), &[]));
        }
        found.left_out.iter().for_each(|of| note!("left out: {}: {}", of.cell, of.reason));
        found.lines().iter().for_each(|line| println!("{line}"));
        let spent = &found.spent;
        if spent.layers > 0.0 && answer.searches.len() == 1 {
            // What was stored before took no time: then there is nothing to compare.
            let all = answer.seconds * spent.all_layers / (spent.layers + spent.judged_layers);
            println!("This took {}; all candidates on all items about {}.", seconds(answer.seconds), seconds(all));
        }
        println!("\n{sentence}");
    }
    note!("written: {}", answer.files.join(", "));
    if let Some(of) = &answer.exported {
        let code = if of.needs_code { "; it loads with trust_remote_code=True" } else { "" };
        println!("exported to {}: {}{code}", of.folder, bytes(of.bytes));
    }
    if let Some(command) = &answer.export {
        println!("The winner as a folder for transformers:\n  {command}");
    }
}
