//! Grid for `ghostlab search MODEL --budget …`, built from the command line. Its depths are derived from the budget.

use std::path::Path;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Map, Value, json};

use super::named_entries::{NamedGrid, build_backbone_entry, with_fetch_hint};
use super::search_methods;
use super::terminal::format_json_value;
use crate::corpus::WindowRule;
use crate::criterion::{Depth, DepthUnit};
use crate::error::{Error, Result};
use crate::grid::{AxisChoice, Budget, Grid, GridFile, InputList, Latency, Search};
use crate::model::{Config, EngineRequest};
use crate::quantity::MAX;
use crate::search;
use crate::tasks::Bos;

/// Command-line arguments for the model and settings of a search.
#[derive(Args)]
pub(super) struct SearchArgs {
    /// Model folder, `org/name[@revision]`, name from `backbones/`, or grid file.
    ///
    /// A model folder contains config.json, tokenizer.json and *.safetensors. `org/name[@revision]` is looked up in the
    /// hub cache. A grid file has `search` instead of `evaluate`.
    pub(super) model: String,
    /// Bounds on every candidate, e.g. `layers=8` or `speedup=1.3,memory=12GB`.
    ///
    /// `layers=8` is the number of layers to remove. `latency=25ms` is the maximum time for --prompt. `params=0.8` and
    /// `kv_cache=0.5` are maximum fractions of the dense model. All bounds must hold.
    #[arg(long, value_name = "BOUND", num_args = 1.., value_delimiter = ',')]
    pub(super) budget: Vec<String>,
    /// Tasks by name or file, as in `score`; their mean accuracy is maximized.
    #[arg(long, value_name = "TASK", num_args = 1.., value_delimiter = ',')]
    pub(super) tasks: Vec<String>,
    /// Texts by name or file, as in `score --perplexity`; their mean loss is minimized.
    ///
    /// If --tasks is also given, a candidate is eliminated only if one rival is better in both objectives.
    #[arg(long, value_name = "TEXT", num_args = 1.., value_delimiter = ',')]
    pub(super) texts: Vec<String>,
    /// Calibration texts with optional size, e.g. `c4-train:64x1024@0`.
    ///
    /// Texts are given by name or file. The size in the example is 64 sequences of 1024 tokens, with seed 0. The texts
    /// are used to select layers and to compute recoveries. The default size is 128 sequences of --length tokens, with
    /// seed 0.
    #[arg(long, value_name = "TEXT", num_args = 1.., value_delimiter = ',')]
    pub(super) calibration: Vec<String>,
    /// Criteria [default: the paper's criteria and the one-pass sublayer criteria].
    ///
    /// One-pass criteria need only one calibration pass. Greedy criteria such as `sleb`, `block-pruner` and `finercut`
    /// measure many cuts and must be named. `default,block-pruner` adds a criterion to the default list. Options follow
    /// a colon, e.g. `nbl:input=normed`.
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    pub(super) criteria: Vec<String>,
    /// Recoveries [default: the paper's, those for sublayers, and two cheap ones].
    ///
    /// The two are `mean` and `ghosted:input=normed:bias=true`. `default,affine` adds a recovery to the default list.
    /// Options follow a colon.
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    pub(super) recoveries: Vec<String>,
    /// Maximum number of documents and of windows [default: all].
    ///
    /// The limit applies to the documents of all tasks together, and to the windows of all texts together. A fifth of
    /// the items is held out for the final evaluation.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX as i64))]
    items: Option<u32>,
    /// Family-wise error rate of the elimination tests.
    #[arg(long, default_value_t = 0.05, value_parser = parse_alpha)]
    alpha: f64,
    /// Seed for the order of items.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Tokens per window and calibration sequence [default: 2048, or the context].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..=MAX as i64))]
    length: Option<u32>,
    /// Prompt for latency, e.g. `512x4+64`.
    ///
    /// The example is a batch of 4 sequences with 512 tokens each, after which 64 tokens are decoded per sequence.
    #[arg(long, value_name = "TOKENS[xBATCH][+NEW]", default_value = "512", value_parser = parse_prompt)]
    pub(super) prompt: Latency,
    /// Rule for joining the rows of text files and drawing windows from them.
    #[arg(long, default_value = "wikitext2", value_parser = PossibleValuesParser::new(WindowRule::ALL.map(WindowRule::name)))]
    rule: String,
    /// Profile that defines text and task names; for a grid file, its profile.
    #[arg(long, value_name = "NAME")]
    pub(super) profile: Option<String>,
}

/// File name of the generated grid in messages. It has no parent directory, so named entries are looked up in the
/// current directory.
const FILE: &str = "command line";
/// Default number of tokens per window and per calibration sequence.
const DEFAULT_LENGTH: usize = 2048;
/// Default number of calibration sequences, as in the paper.
const DEFAULT_SEQUENCES: usize = 128;
const DEFAULT_CALIBRATION: &str = "c4-train";

fn parse_prompt(text: &str) -> Result<Latency, String> {
    let (read, new) = text.split_once('+').map_or((text, None), |(read, new)| (read, Some(new)));
    let (length, batch) = read.split_once('x').unwrap_or((read, "1"));
    match (parse_count(length), parse_count(batch), new.map(parse_count)) {
        (_, _, Some(None)) | (None, ..) | (_, None, _) => {
            Err("expected LENGTH[xBATCH][+NEW] in tokens, for example 512, 512x4 or 512x1+64".to_owned())
        }
        (Some(length), Some(batch), decode) => Ok(Latency { length, batch, decode: decode.flatten() }),
    }
}

fn parse_count(text: &str) -> Option<usize> {
    text.parse::<usize>().ok().filter(|count| (1..=MAX).contains(count))
}

fn parse_alpha(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|alpha: &f64| *alpha > 0.0 && *alpha <= 0.5);
    number.ok_or_else(|| "expected a number above 0 and at most 0.5".to_owned())
}

/// Function that times the backbone of a grid with only a dense cell. Returns milliseconds, or `None` without a
/// measurement.
pub(super) type DenseTimer<'a> = dyn Fn(&Grid) -> Result<Option<f64>> + 'a;

impl SearchArgs {
    /// Returns the inputs that the grid needs, whether or not they are available.
    ///
    /// # Errors
    /// Fails with exit code 2 if the arguments are invalid.
    pub(super) fn needs(&self) -> Result<InputList> {
        let bounds = self.parse_bounds()?;
        let depths: Vec<Depth> =
            self.allowed_units(&bounds)?.into_iter().map(|unit| Depth { count: 1, unit }).collect();
        GridFile::from_text(&self.format_grid(&bounds, &depths, DEFAULT_LENGTH)?, Path::new(FILE))?.needs(
            None,
            &[],
            &AxisChoice::ALL,
        )
    }

    /// Builds the grid. Resolves names and derives the depths from the budget.
    ///
    /// # Errors
    /// Fails with exit code 2 if the arguments are invalid or no depth meets the budget. Fails with exit code 3 if an
    /// input is missing.
    pub(super) fn build_grid(&self, engine: EngineRequest, time_dense: &DenseTimer<'_>) -> Result<Grid> {
        let bounds = self.parse_bounds()?;
        // Read the model first, because the depths depend on its number of layers.
        let (name, entry) = build_backbone_entry(&self.model)?;
        let probe =
            json!({"name": "search", "backbones": entry, "backbone": [name], "evaluate": {"latency": self.prompt}});
        let dense = Grid::from_text(&probe.to_string(), Path::new(FILE)).map_err(with_fetch_hint)?;
        let folder = dense.backbones.values().next().map(|backbone| backbone.path.clone()).unwrap_or_default();
        let config = Config::read_with_attachments(&folder)?;
        let budget = self
            .parse_budget(&bounds, &entry, &name)
            .map_err(|error| error.at(format!("--budget {}", self.budget.join(","))))?;
        // Report missing inputs before anything is measured.
        let units = self.allowed_units(&bounds)?;
        let any: Vec<Depth> = units.iter().map(|&unit| Depth { count: 1, unit }).collect();
        Grid::from_text(&self.format_grid(&bounds, &any, 2)?, Path::new(FILE)).map_err(with_fetch_hint)?;
        let depths = match budget.layers.as_slice() {
            [] => {
                let time = if budget.latency.is_some() { time_dense(&dense)? } else { None };
                search::depths(&units, &budget, &config, engine.choose(&folder)?, self.prompt, time)?
            }
            layers => {
                if let Some(&max) = layers.iter().find(|&&depth| depth >= config.layers) {
                    return Err(Error::bad_input("the budget removes all layers of the backbone")
                        .at(format!("--budget layers={max}"))
                        .expected(format!("fewer than the {} layers of the model", config.layers))
                        .found(max.to_string()));
                }
                layers.iter().copied().map(Depth::layers).collect()
            }
        };
        let length = self.length.map_or(DEFAULT_LENGTH, |length| length as usize);
        let length = match config.max_positions {
            Some(max) if self.length.is_none() => length.min(max),
            _ => length,
        };
        Grid::from_text(&self.format_grid(&bounds, &depths, length)?, Path::new(FILE)).map_err(with_fetch_hint)
    }

    /// Converts the bounds given by `--budget` into the `budget` entry of a grid.
    fn parse_bounds(&self) -> Result<Map<String, Value>> {
        let forms = "`layers=8`, `speedup=1.3`, `latency=25ms`, `memory=12GB`, `params=0.8` or `kv_cache=0.5`";
        if self.tasks.is_empty() && self.texts.is_empty() {
            return Err(Error::bad_input("no tasks or texts to score candidates on")
                .expected("--tasks, --texts, or both")
                .found("neither")
                .hint("pass a text, for example --texts wikitext2"));
        }
        if self.budget.is_empty() {
            return Err(Error::bad_input("the search has no budget")
                .at("--budget")
                .expected(forms)
                .found("none")
                .hint("pass a budget, for example --budget speedup=1.3"));
        }
        let mut budget = Map::new();
        for bound in &self.budget {
            let bad = |what: &str| Error::bad_input(what).at(format!("--budget {bound}")).expected(forms);
            let (key, value) = bound.split_once('=').ok_or_else(|| bad("invalid budget"))?;
            let number = value.parse::<f64>().ok().filter(|number| number.is_finite());
            let value = match key {
                "layers" => json!(value.parse::<usize>().map_err(|_| bad("invalid number of layers"))?),
                "speedup" => json!(number.ok_or_else(|| bad("invalid speedup"))?),
                "params" | "kv_cache" => json!(number.ok_or_else(|| bad("invalid fraction"))?),
                "latency" | "memory" => json!(value),
                _ => return Err(bad("unknown budget").found(format!("`{key}`"))),
            };
            if let Some(first) = budget.insert(key.to_owned(), value) {
                return Err(bad("conflicting budgets")
                    .found(format!("also `{key}={first}`", first = format_json_value(&first))));
            }
        }
        Ok(budget)
    }

    /// Parses and validates the bounds with the parser for grids.
    fn parse_budget(&self, bounds: &Map<String, Value>, entry: &Value, name: &str) -> Result<Budget> {
        let any = json!({
            "name": "search", "backbones": entry, "backbone": [name], "criterion": "llm-streamline", "depth": 1, "recovery": "none",
            "corpora": {"none": {"path": "none.txt", "rule": "wikitext2"}},
            "calibration": {"corpus": "none", "sequences": 1, "length": 2},
            "search": {"budget": bounds, "perplexity": {"corpus": "none", "length": 2}, "alpha": self.alpha},
        });
        match GridFile::from_text(&any.to_string(), Path::new(FILE))?.search()? {
            Some(Search { budget, .. }) => Ok(budget),
            None => Ok(Budget::default()),
        }
    }

    /// Builds the text of the grid, as JSON.
    fn format_grid(&self, bounds: &Map<String, Value>, depths: &[Depth], length: usize) -> Result<String> {
        let mut grid = NamedGrid::new(&self.model, self.profile.as_ref())?;
        let tasks = self.tasks.iter().map(|task| grid.add_task(task, Bos::default(), None));
        let tasks = tasks.collect::<Result<Vec<Value>>>()?;
        let texts = self.texts.iter().map(|text| grid.add_text("--texts", text, length, &self.rule, None));
        let texts = texts.collect::<Result<Vec<Value>>>()?;
        let requested = match self.calibration.as_slice() {
            [] => vec![DEFAULT_CALIBRATION.to_owned()],
            requested => requested.to_vec(),
        };
        let mut calibrations = Vec::new();
        for given in &requested {
            let (text, size) = parse_sized_text(given, length)?;
            let text = grid.add_text("--calibration", &text, length, &self.rule, None).map_err(|error| {
                if self.calibration.is_empty() {
                    error.hint("add a calibration text: --calibration train.txt")
                } else {
                    error
                }
            })?;
            let [sequences, length, seed] = size;
            calibrations
                .push(json!({"corpus": text["corpus"], "sequences": sequences, "length": length, "seed": seed}));
        }
        let mut search = json!({
            "budget": bounds, "alpha": self.alpha, "seed": self.seed, "prompt": self.prompt,
        });
        if let Some(items) = self.items {
            search["items"] = json!(items);
        }
        for (key, list) in [("tasks", tasks), ("perplexity", texts)].into_iter().filter(|(_, list)| !list.is_empty()) {
            search[key] = Value::Array(list);
        }
        let mut axes = self.group_axes(depths)?.into_iter();
        let Some(Axes { criteria, depths, recoveries }) = axes.next() else {
            return Err(Error::bad_input("no recovery in the search repairs the layers that its criteria remove")
                .at("--criteria, --recoveries")
                .expected("`none`, or a recovery for whole layers with a criterion that removes whole layers")
                .found(format_methods(&self.criteria, &self.recoveries)));
        };
        let more: Vec<Value> = axes
            .map(|axes| json!({"criterion": axes.criteria, "depth": axes.depths, "recovery": axes.recoveries}))
            .collect();
        let mut settings = json!({
            "name": grid.backbone, "backbone": [grid.backbone],
            "criterion": criteria, "depth": depths, "recovery": recoveries,
            "calibration": calibrations, "search": search,
        });
        if !more.is_empty() {
            settings["include"] = Value::Array(more);
        }
        Ok(grid.format(settings))
    }

    /// Returns the depth units that the criteria support. If the budget is in layers, only whole layers are allowed.
    fn allowed_units(&self, bounds: &Map<String, Value>) -> Result<Vec<DepthUnit>> {
        if bounds.contains_key("layers") {
            return Ok(vec![DepthUnit::Layers]);
        }
        let criteria = search_methods::build_criteria(&self.criteria)?;
        let mut units = DepthUnit::ALL.to_vec();
        units.retain(|unit| criteria.iter().any(|(_, rule)| rule.units().contains(unit)));
        Ok(units)
    }

    /// Groups criteria, depths and recoveries by depth unit, in the order of [`DepthUnit::ALL`]. Leaves out units that
    /// lack a criterion, a depth or a recovery.
    fn group_axes(&self, depths: &[Depth]) -> Result<Vec<Axes>> {
        let criteria = search_methods::build_criteria(&self.criteria)?;
        let recoveries = search_methods::build_recoveries(&self.recoveries)?;
        let mut all = Vec::new();
        for unit in DepthUnit::ALL {
            let counting = criteria.iter().filter(|(_, rule)| rule.units().contains(&unit));
            let repairing = recoveries
                .iter()
                .filter(|(_, rule)| !rule.is_repairing() || rule.replaces_sublayers() != unit.is_layers());
            let axes = Axes {
                criteria: counting.map(|(entry, _)| entry.clone()).collect(),
                depths: depths.iter().copied().filter(|depth| depth.unit == unit).collect(),
                recoveries: repairing.map(|(entry, _)| entry.clone()).collect(),
            };
            if !axes.criteria.is_empty() && !axes.depths.is_empty() && !axes.recoveries.is_empty() {
                all.push(axes);
            }
        }
        Ok(all)
    }
}

/// Formats criteria and recoveries as given on the command line. An empty list means the default list.
fn format_methods(criteria: &[String], recoveries: &[String]) -> String {
    let [criteria, recoveries] = [criteria, recoveries]
        .map(|methods| if methods.is_empty() { "default".to_owned() } else { methods.join(", ") });
    format!("criteria {criteria} with recoveries {recoveries}")
}

/// Values for the axes of a grid. Every combination of them is a cell.
struct Axes {
    criteria: Vec<Value>,
    depths: Vec<Depth>,
    recoveries: Vec<Value>,
}

/// Parses `TEXT:SEQUENCESxTOKENS@SEED`, in which everything after the text is optional. Returns the text and
/// `[sequences, tokens, seed]`.
fn parse_sized_text(argument: &str, default_length: usize) -> Result<(String, [usize; 3])> {
    let default = [DEFAULT_SEQUENCES, default_length, 0];
    let Some((text, size)) = argument.rsplit_once(':').filter(|_| !Path::new(argument).exists()) else {
        return Ok((argument.to_owned(), default));
    };
    let (size, seed) = size.split_once('@').unwrap_or((size, "0"));
    let (sequences, tokens) = size.split_once('x').unwrap_or((size, ""));
    match (parse_or_default(sequences, default[0]), parse_or_default(tokens, default[1]), parse_or_default(seed, 0)) {
        (Some(sequences), Some(tokens), Some(seed)) => Ok((text.to_owned(), [sequences, tokens, seed])),
        _ => Err(Error::bad_input("invalid calibration")
            .at(format!("--calibration {argument}"))
            .expected("TEXT:SEQUENCESxTOKENS@SEED, for example c4-train:64x1024@0")
            .found(format!("`{argument}`"))),
    }
}

fn parse_or_default(text: &str, default: usize) -> Option<usize> {
    if text.is_empty() { Some(default) } else { text.parse().ok() }
}
