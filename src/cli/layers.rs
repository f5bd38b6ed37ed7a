//! `ghostlab layers MODEL --corpus TEXT`: scores layers and sublayers by all criteria that rank them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueHint};
use serde_json::{Value, json};

use super::answer::layers::{CriterionScores, LayerScore, LayersAnswer};
use super::answer::{self, Answer};
use super::grid_args::ComputeArgs;
use super::named_entries::{NamedGrid, with_fetch_hint};
use super::terminal::format_columns;
use super::{directories, fetch, progress, requested_work, stop};
use crate::artifact;
use crate::artifact::figure::{Axis, Curves, Drawing, Figure, Line, Plot, Point, Surroundings};
use crate::corpus::WindowRule;
use crate::criterion::{self, DepthUnit, RankingCriterion};
use crate::error::{Error, Result};
use crate::files::output::OutputFile;
use crate::grid::{AxisChoice, Cell, GridFile};
use crate::model::Sublayer;
use crate::pipeline::exec::{self, RunEnv};
use crate::pipeline::outcome::GridOutcome;
use crate::pipeline::plan::{CandidateScores, Plan, trial_scores};
use crate::quantity::MAX;
use crate::recovery;

#[derive(Args)]
pub(super) struct Arguments {
    /// Model folder, .gguf file, `org/name[@revision]`, or name from `backbones/`.
    ///
    /// A model folder contains config.json, tokenizer.json and *.safetensors. `org/name[@revision]` is looked up in the
    /// hub cache.
    model: String,
    /// Text file to measure on, or name of a text in `corpora/`.
    #[arg(long, value_name = "TEXT")]
    corpus: String,
    /// Number of sequences.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=MAX as i64))]
    sequences: u32,
    /// Tokens per sequence.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..=MAX as i64))]
    length: u32,
    /// Rule for joining the rows of a text file and drawing sequences from it.
    #[arg(long, default_value = "wikitext2", value_parser = PossibleValuesParser::new(WindowRule::ALL.map(WindowRule::name)))]
    rule: String,
    /// Use only these criteria [default: all that rank layers or sublayers].
    ///
    /// Three criteria rank neither: `lorp` chooses layers by their clusters, `laco` scores merges of several layers, and
    /// `explicit` scores nothing.
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    criteria: Vec<String>,
    /// Skip the criteria that need one trial per layer or sublayer.
    ///
    /// A trial scores the model without a single layer (`shortened-llama`, `sleb`) or sublayer (`block-pruner`,
    /// `finercut`) on all sequences. The other criteria need one pass for the whole model, so the trials take most of
    /// the time.
    #[arg(long, conflicts_with = "criteria")]
    no_trials: bool,
    /// Plot the ranks to an .svg, .pdf or .png file.
    ///
    /// Criteria measure different quantities, so the figure compares ranks. The scores are in the table and in `--json`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    figure: Option<PathBuf>,
    /// Overwrite an existing figure file.
    #[arg(long, requires = "figure")]
    force: bool,
    /// Download missing inputs from the Hugging Face hub first.
    #[arg(long)]
    fetch: bool,
    /// Profile that defines text names [default: from the entry in `backbones/`].
    ///
    /// The profile is read from `profiles/NAME.yaml` in the current folder or in the experiments folder.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// File name of the generated grid in messages. It has no parent directory, so named entries are looked up in the
/// current directory.
const FILE: &str = "layers";
/// Name of the scored unit for criteria that rank whole layers.
const LAYER: &str = "layer";

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let format = arguments.figure.as_deref().map(parse_figure_format).transpose()?;
    let model = Path::new(&arguments.model);
    let store = arguments.compute.start(Some(model).filter(|model| model.is_dir()))?;
    let stop = stop::on_ctrl_c(stop::STOPPING_AFTER_BATCH)?;
    let rankings = arguments.select_rankings()?;
    let file = GridFile::from_text(&arguments.format_grid(&rankings)?, Path::new(FILE))?;
    if arguments.fetch {
        let needs = file.needs(None, &[], &AxisChoice::ALL)?;
        fetch::fetch_missing(&[needs], &store, false, &stop)?;
    }
    let mut grid = file.grid(None, &[]).map_err(with_fetch_hint)?;
    // Only criterion scores are shown, and dense cells have none.
    grid.evaluate.perplexity.clear();
    grid.cells.retain(|cell| !cell.is_dense());
    artifact::check_pins(&mut grid, &requested_work::file_hasher(&store))?;
    let output = arguments.figure.as_ref().map(|path| OutputFile {
        path,
        inputs: directories::list_inputs(&grid, &store),
        force: arguments.force,
        is_ours: |_| false,
    });
    output.as_ref().map_or(Ok(()), OutputFile::check)?;
    let settings = arguments.compute.settings();
    let env = RunEnv { store: &store, settings, reporter: &*progress::reporter(false), stop: &stop };
    let outcome = exec::run(&grid, env)?;
    let plan = Plan::new(&grid, &store, settings)?;
    let ranked = arguments.build_answer(&rankings, &outcome, &|cell| trial_scores(&plan, cell, &store))?;
    if let (Some(output), Some(format)) = (&output, format) {
        let drawing = build_figure(&ranked).draw()?;
        let bytes = drawing.formats().find(|(ending, _)| *ending == format).map(|(_, bytes)| bytes);
        output.write(bytes.unwrap_or_default())?;
    }
    answer::print_answer(ranked, Answer::Layers, |answer| {
        println!("{} ({}), {}", answer.model, answer.engine, answer.calibration);
        println!("\n{}", format_tables(&answer.criteria, answer.layers));
        println!("Ranks are in brackets; rank 1 is removed first. Attentions and MLPs are ranked together.");
        answer.figure.iter().for_each(|figure| println!("wrote {figure}"));
    })
}

impl Arguments {
    /// Returns the criteria selected by `--criteria` and `--no-trials`.
    fn select_rankings(&self) -> Result<Vec<RankingCriterion>> {
        let all = criterion::ranking_criteria();
        let known: Vec<&str> = all.iter().map(|ranking| ranking.name).collect();
        if let Some(unknown) = self.criteria.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(Error::bad_input("the criterion does not rank layers or sublayers")
                .at(format!("--criteria {unknown}"))
                .expected(known.join(", "))
                .found(format!("`{unknown}`")));
        }
        let requested = all.into_iter().filter(|ranking| match self.criteria.is_empty() {
            true => !(self.no_trials && ranking.has_trials),
            false => self.criteria.iter().any(|name| name == ranking.name),
        });
        Ok(requested.collect())
    }

    /// Builds the text of the grid, as JSON. Each criterion removes one layer or sublayer.
    fn format_grid(&self, rankings: &[RankingCriterion]) -> Result<String> {
        let mut grid = NamedGrid::new(&self.model, self.profile.as_ref())?;
        let text = grid.add_text("--corpus", &self.corpus, self.length as usize, &self.rule, Some(1))?;
        let mut rows = rankings.iter().map(|ranking| {
            let depth = if ranking.unit.is_layers() { json!(1) } else { json!({ ranking.unit.name(): 1 }) };
            json!({"criterion": ranking.name, "depth": depth})
        });
        let first = rows.next().unwrap_or_default();
        let settings = json!({
            "name": FILE, "backbone": [grid.backbone], "criterion": first["criterion"], "depth": first["depth"],
            "recovery": recovery::NONE, "include": rows.collect::<Vec<Value>>(),
            "calibration": {"corpus": text["corpus"], "sequences": self.sequences, "length": self.length},
            "evaluate": {"perplexity": [text]},
        });
        Ok(grid.format(settings))
    }

    /// Extracts the layer scores of each criterion from the grid's outcome. `read_trial_scores` returns the scores of
    /// a cell's trials, or `None` if its criterion has none.
    fn build_answer(
        &self,
        rankings: &[RankingCriterion],
        outcome: &GridOutcome,
        read_trial_scores: &dyn Fn(&Cell) -> Result<Option<CandidateScores>>,
    ) -> Result<LayersAnswer> {
        let mut criteria = Vec::new();
        for ranking in rankings {
            let found = outcome
                .cells
                .iter()
                .find(|cell| cell.cell.criterion.as_ref().is_some_and(|method| method.name == ranking.name));
            let cell = found.ok_or_else(|| Error::job("the run has no cell for the criterion").at(ranking.name))?;
            if let Some(failure) = &cell.failure {
                return Err(Error::job("cannot score layers by the criterion").at(ranking.name).found(failure));
            }
            let scores = read_trial_scores(&cell.cell)?;
            criteria.extend(split_columns(ranking, scores.as_ref().unwrap_or(&cell.scores)));
        }
        let layers = outcome.cells.first().map_or(0, |cell| cell.layers);
        let engines: Vec<String> = outcome.engines.values().map(ToString::to_string).collect();
        Ok(LayersAnswer {
            model: self.model.clone(),
            engine: engines.join(", "),
            calibration: format!("{} sequences of {} tokens of {}", self.sequences, self.length, self.corpus),
            layers,
            criteria,
            figure: self.figure.as_ref().map(|path| path.display().to_string()),
        })
    }
}

/// Infers the format of a figure from its file extension.
fn parse_figure_format(path: &Path) -> Result<&'static str> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    Drawing::ENDINGS.into_iter().find(|known| *known == ending).ok_or_else(|| {
        Error::bad_input("unknown figure format")
            .at(format!("--figure {}", path.display()))
            .expected(format!("a file name with the extension .{}", Drawing::ENDINGS.join(", .")))
            .found(if ending.is_empty() { "no extension".to_owned() } else { format!(".{ending}") })
    })
}

/// Splits the scores of a criterion into one column per kind of unit (layers, attention sublayers, MLP sublayers). The
/// columns share one ranking.
fn split_columns(ranking: &RankingCriterion, scores: &[(usize, f64)]) -> Vec<CriterionScores> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let direction = if ranking.lowest_first { 1.0 } else { -1.0 };
    order.sort_by(|&a, &b| (direction * scores[a].1).total_cmp(&(direction * scores[b].1)));
    let mut columns: BTreeMap<Option<Sublayer>, Vec<LayerScore>> = BTreeMap::new();
    for (rank, index) in order.into_iter().enumerate() {
        let (candidate, score) = scores[index];
        let (layer, sublayer) = match ranking.unit {
            DepthUnit::Layers => (candidate, None),
            _ => {
                let (layer, sublayer) = Sublayer::from_index(candidate);
                (layer, Some(sublayer))
            }
        };
        columns.entry(sublayer).or_default().push(LayerScore { layer, score, rank: rank + 1 });
    }
    let quantity = ranking.quantity;
    columns
        .into_iter()
        .map(|(sublayer, mut scores)| {
            scores.sort_by_key(|score| score.layer);
            CriterionScores {
                criterion: ranking.name.to_owned(),
                label: criterion::label(ranking.name).to_owned(),
                quantity: quantity.to_owned(),
                unit: sublayer.map_or(LAYER, Sublayer::name).to_owned(),
                lowest_first: ranking.lowest_first,
                scores,
            }
        })
        .collect()
}

/// Merges columns of the same unit with equal scores, such as those of criteria with the same trials. Returns each
/// column with the labels of its criteria.
fn merge_equal(criteria: &[CriterionScores]) -> Vec<(String, &CriterionScores)> {
    let mut merged: Vec<(String, &CriterionScores)> = Vec::new();
    for column in criteria {
        match merged.iter_mut().find(|(_, other)| other.unit == column.unit && other.scores == column.scores) {
            Some((labels, _)) => *labels = format!("{labels}, {}", column.label),
            None => merged.push((column.label.clone(), column)),
        }
    }
    merged
}

/// Formats a table for whole layers, one for attention sublayers and one for MLPs. Criteria with equal scores share a
/// column.
fn format_tables(criteria: &[CriterionScores], layers: usize) -> String {
    let merged = merge_equal(criteria);
    let mut tables = Vec::new();
    for unit in std::iter::once(LAYER).chain(Sublayer::ALL.into_iter().map(Sublayer::name)) {
        let columns: Vec<_> = merged.iter().filter(|(_, column)| column.unit == unit).collect();
        if !columns.is_empty() {
            tables.push(format_table(&columns, layers));
        }
    }
    tables.join("\n")
}

/// Formats a table with one row per layer.
fn format_table(merged: &[&(String, &CriterionScores)], layers: usize) -> String {
    let mut rows = vec![vec![String::new()], vec![String::new()], vec!["layer".to_owned()]];
    for (label, column) in merged {
        rows[0].push(label.clone());
        rows[1].push(column.unit.clone());
        rows[2].push(column.quantity.clone());
    }
    for layer in 0..layers {
        let mut row = vec![layer.to_string()];
        row.extend(merged.iter().map(|(_, column)| {
            let score = column.scores.iter().find(|score| score.layer == layer);
            score.map_or("kept".to_owned(), |score| format!("{} ({})", format_score(score.score), score.rank))
        }));
        rows.push(row);
    }
    let right: Vec<usize> = (1..=merged.len()).collect();
    format_columns(&rows, &right)
}

/// Formats a score with four decimals, or with two if its magnitude is at least 10.
fn format_score(score: f64) -> String {
    if score.abs() >= 10.0 { format!("{score:.2}") } else { format!("{score:.4}") }
}

/// Builds a figure with one line per criterion, which shows the rank of each layer.
fn build_figure(ranked: &LayersAnswer) -> Figure {
    let lines = merge_equal(&ranked.criteria).into_iter().map(|(label, column)| Line {
        method: String::new(),
        label: if column.unit == LAYER { label } else { format!("{label}, {}", column.unit) },
        points: column
            .scores
            .iter()
            .map(|score| Point { x: score.layer as f64, y: Some(score.rank as f64), error: None })
            .collect(),
    });
    Figure {
        around: Surroundings {
            title: format!("Ranks of the layers of {}", ranked.model),
            description: "For each criterion the rank of every layer; the layer of rank 1 is removed first. Attentions and MLPs are ranked together.".into(),
            heading: format!("{}: which layer is removed first", ranked.model),
            note: format!("{}; a layer without a point is never removed", ranked.calibration),
            ..Surroundings::default()
        },
        plot: Plot::Curves(Curves {
            x: Axis { label: "Layer".into(), ..Axis::default() },
            y: Axis { label: "Rank (1 is removed first)".into(), ..Axis::default() },
            lines: lines.collect(),
            levels: Vec::new(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_and_mlp_columns_share_one_ranking() {
        let ranking = ranking("llm-drop", DepthUnit::Sublayers, true);
        let found = split_columns(&ranking, &[(0, 0.5), (2, 0.1), (1, 0.3), (3, 0.2)]);
        let ranks: Vec<(&str, Vec<usize>)> = found
            .iter()
            .map(|column| (column.unit.as_str(), column.scores.iter().map(|score| score.rank).collect()))
            .collect();
        assert_eq!(ranks, [("attention", vec![4, 1]), ("mlp", vec![3, 2])]);
    }

    #[test]
    fn layer_rank_follows_the_direction_of_the_criterion() {
        let ranking = ranking("llm-streamline", DepthUnit::Layers, false);
        let found = split_columns(&ranking, &[(1, 0.5), (2, 0.9)]);
        assert_eq!(
            found[0].scores,
            [LayerScore { layer: 1, score: 0.5, rank: 2 }, LayerScore { layer: 2, score: 0.9, rank: 1 }]
        );
    }

    #[test]
    fn criteria_with_equal_scores_share_a_column() {
        let mut scores = Vec::new();
        for (name, third) in [("shortened-llama", 0.3), ("sleb", 0.3), ("shortgpt", 0.4)] {
            scores.extend(split_columns(&ranking(name, DepthUnit::Layers, true), &[(0, 0.5), (1, 0.1), (2, third)]));
        }
        let labels: Vec<String> = merge_equal(&scores).into_iter().map(|(label, _)| label).collect();
        assert_eq!(labels, ["Shortened LLaMA, SLEB", "ShortGPT"]);
    }

    /// Uses 128 layers, so that scores have three digits before the decimal point and ranks have three digits.
    #[test]
    fn tables_of_layers_and_sublayers_fit_in_120_columns() {
        let rankings = criterion::ranking_criteria();
        let criteria = rankings.iter().enumerate().flat_map(|(position, ranking)| {
            let candidates: Vec<usize> = match ranking.unit {
                DepthUnit::Layers => (0..128).collect(),
                DepthUnit::Attention => (0..256).step_by(2).collect(),
                _ => (0..256).collect(),
            };
            // Give each criterion different scores, because columns with equal scores are merged.
            let scores = candidates.into_iter().map(|index| (index, (100 + position + index) as f64));
            split_columns(ranking, &scores.collect::<Vec<_>>())
        });
        let text = format_tables(&criteria.collect::<Vec<_>>(), 128);
        let found: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(found.len(), 3, "{text}");
        assert!(!found[0].contains("attention") && found[0].contains("LLM-Streamline"), "{text}");
        assert!(found[1].contains("attention") && !found[1].contains("mlp") && found[1].contains("FinerCut"), "{text}");
        assert!(found[2].contains("mlp") && !found[2].contains("attention") && found[2].contains("FinerCut"), "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(120), "{widest:?} columns:\n{text}");
    }

    fn ranking(name: &'static str, unit: DepthUnit, lowest_first: bool) -> RankingCriterion {
        RankingCriterion { name, unit, quantity: "score", lowest_first, has_trials: false }
    }

    #[test]
    fn figure_format_is_inferred_from_the_extension() {
        assert_eq!(parse_figure_format(Path::new("a/ranks.pdf")).unwrap(), "pdf");
        let error = parse_figure_format(Path::new("ranks.jpg")).unwrap_err().to_string();
        assert!(error.contains(".svg, .pdf, .png") && error.contains(".jpg"), "{error}");
    }
}
