//! Results of a grid, cell by cell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ghostlab_definitions::Answer;
use ghostlab_definitions::results::{Judged, Score, group_scores};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::evaluate::damage::Damages;
use crate::evaluate::perplexity::Losses;
use crate::files::parts;
use crate::grid::{Cell, DefinitionUse, Grid, GroupUse, Latency, Perplexity, TaskUse};
use crate::identity::{Identity, MeasureId};
use crate::latency::LatencyResult;
use crate::metric::{Savings, TextSample};
use crate::model::Cut;
use crate::model::EngineId;
use crate::stage::operator::BoundaryResult;
use crate::tasks::{self, Answered, Task, TaskResult};

/// Results of a grid.
#[derive(Debug)]
pub struct GridOutcome {
    /// In the order of the grid's cells.
    pub cells: Vec<CellResult>,
    /// SHA-256 of every file that was read, by path.
    pub inputs: BTreeMap<String, String>,
    /// The engine of each backbone.
    pub engines: BTreeMap<String, EngineId>,
    /// Types to which the weights of backbones are rounded, as text, by name; without those as stored.
    pub rounded: BTreeMap<String, String>,
    /// The machine of latencies, as text; empty without latencies.
    pub machine: String,
}

impl GridOutcome {
    /// Returns whether the backbones have different vocabularies, so that perplexities are over different tokens.
    pub fn unlike_vocabularies(&self, grid: &Grid) -> bool {
        self.cells
            .iter()
            .filter_map(|cell| {
                let folder = &grid.backbones.get(&cell.cell.backbone)?.path;
                self.inputs.get(&parts::tokenizer(folder).display().to_string())
            })
            .collect::<BTreeSet<_>>()
            .len()
            > 1
    }

    /// Returns what a cell's backbone reads of a text, perhaps from another cell. `None` if it is not tokenized.
    pub fn text_read(&self, result: &CellResult, text: &Perplexity) -> Option<TextExtent> {
        let mut others = self.cells.iter().filter(|cell| cell.cell.backbone == result.cell.backbone);
        is_known_text(text, result).or_else(|| others.find_map(|result| is_known_text(text, result)))
    }

    /// Returns the dense model's answers to a task, if its cell is scored.
    pub fn dense_answers(&self, backbone: &str, used: &TaskUse) -> Option<&Answered> {
        let dense = self.cells.iter().find(|cell| cell.cell.is_dense() && cell.cell.backbone == backbone)?;
        Some(&dense.task(used)?.sample.as_ref()?.answers)
    }

    /// Iterates over what all cells read of a text.
    pub fn text_reads(&self, text: &Perplexity) -> impl Iterator<Item = TextExtent> {
        self.cells.iter().filter_map(|cell| cell.text(text)?.extent)
    }

    /// Returns the extent of a task, which the first backbone determines for all. `None` if nothing is stored.
    pub fn task(&self, used: &TaskUse) -> Option<&TaskExtent> {
        self.cells.first()?.task(used)?.extent.as_ref()
    }

    /// Returns the extent of a defined task.
    pub fn defined(&self, used: &DefinitionUse) -> Option<&DefinedExtent> {
        self.cells.first()?.defined(used)?.extent.as_ref()
    }

    /// Counts cells that are incomplete without a failure.
    pub fn unmade(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_none() && cell.missing.is_some()).count()
    }

    /// Counts failed cells.
    pub fn failed(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_some()).count()
    }
}

fn is_known_text(text: &Perplexity, result: &CellResult) -> Option<TextExtent> {
    result.text(text)?.extent
}

/// A variant's scores on one task.
#[derive(Debug, Clone, Serialize)]
pub struct TaskScores {
    /// The task as the grid writes it, with its options.
    pub label: String,
    #[serde(flatten)]
    pub result: TaskResult,
    /// Not part of the run's record, which would grow by megabytes.
    #[serde(skip)]
    pub answers: Answered,
}

/// A variant's scores on one task by its definition.
#[derive(Debug, Clone, Serialize)]
pub struct DefinedScores {
    /// The task as the grid writes it, with its options.
    pub label: String,
    /// Documents of the split, and those that were scored.
    pub original: usize,
    pub effective: usize,
    /// Texts whose context was cut, and documents with a likelihood that is not finite.
    pub truncated: usize,
    pub non_finite: usize,
    /// Every metric of every pipeline of filters.
    #[serde(serialize_with = "by_key")]
    pub scores: Vec<Judged>,
    /// To each document's requests. Not part of the run's record.
    #[serde(skip)]
    pub answers: Vec<Vec<Answer>>,
}

/// Formats `acc,none` and `acc_stderr,none` as lm-evaluation-harness does.
pub fn harness_scores<'a>(scores: impl Iterator<Item = &'a Score>) -> Map<String, Value> {
    let each = scores.flat_map(|score| {
        let error = score.error.filter(|error| error.is_finite()).map_or(json!("N/A"), |error| json!(error));
        [
            (format!("{},{}", score.metric, score.filter), json!(score.score)),
            (format!("{}_stderr,{}", score.metric, score.filter), error),
        ]
    });
    each.collect()
}

fn by_key<S: Serializer>(scores: &[Judged], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    harness_scores(scores.iter().map(|score| &score.score)).serialize(serializer)
}

/// A measurement of a cell, by request. Cell identity and measure together identify its numbers
/// ([`Identity::measured`]).
#[derive(Debug, Clone)]
pub struct Measured<A, E, S> {
    /// The value as requested by the grid.
    pub asked: A,
    pub measure: Arc<MeasureId>,
    /// How much its backbone reads of it, whatever the variant; none where that is not stored.
    pub extent: Option<E>,
    /// `None` if the cell failed or was never computed.
    pub sample: Option<S>,
}

impl Measured<Perplexity, TextExtent, Losses> {
    /// Returns the windows, if they are scored.
    pub fn windows(&self) -> Option<TextSample<'_>> {
        let bytes = self.extent.map(|extent| extent.bytes);
        Some(TextSample { losses: self.sample.as_ref()?, length: self.asked.length, bytes, damages: None })
    }
}

/// A cell with its results.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CellResult {
    pub cell: Cell,
    /// Its identity, independent of names; `None` for a cell that was never planned. `numbers.json` stores it once per
    /// run.
    #[serde(skip)]
    pub identity: Option<Arc<Identity>>,
    /// Layers of the dense backbone.
    pub layers: usize,
    /// Removed layers or sublayers.
    pub removed: Cut,
    /// `(candidate, score)` of the criterion.
    pub scores: Vec<(usize, f64)>,
    /// Why that choice tells nothing, a line each; empty where it does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub selection_notes: Vec<String>,
    pub boundaries: Vec<BoundaryResult>,
    /// What the variant saves of the dense model; `None` unless the grid asks for it and all operators are stored.
    #[serde(skip)]
    pub savings: Option<Savings>,
    /// The windows' losses of each text. The run's record has the perplexities alone.
    #[serde(rename = "perplexity", serialize_with = "perplexities")]
    pub texts: Vec<Measured<Perplexity, TextExtent, Losses>>,
    /// Comparisons with the dense model by text; `None` for texts without one.
    #[serde(skip)]
    pub damages: Vec<Option<Damages>>,
    #[serde(serialize_with = "samples")]
    pub tasks: Vec<Measured<TaskUse, TaskExtent, TaskScores>>,
    /// Tasks by their definitions.
    #[serde(serialize_with = "samples", skip_serializing_if = "Vec::is_empty")]
    pub definitions: Vec<Measured<DefinitionUse, DefinedExtent, DefinedScores>>,
    #[serde(rename = "latencies", serialize_with = "samples")]
    pub prompts: Vec<Measured<Latency, (), LatencyResult>>,
    /// The loss of each step of its operator's training; empty where it was not trained, and no part of the run's record.
    #[serde(skip)]
    pub training: Vec<f64>,
    /// Time taken to make its operators and scores, in any run; steps shared with other cells count in equal parts.
    pub seconds: f64,
    /// Why the cell has no result.
    pub failure: Option<String>,
    /// The missing parts of a cell that did not fail; finished parts have their values.
    pub missing: Option<String>,
    /// The artifacts that it was made from, each with its key and who made it.
    pub made_from: Vec<MadeFrom>,
    /// The paths of the input files that it was made from, which are among [`GridOutcome::inputs`](super::GridOutcome::inputs).
    #[serde(skip)]
    pub inputs: BTreeSet<String>,
}

/// Where a number comes from.
#[derive(Debug, Clone, Serialize)]
pub struct MadeFrom {
    pub kind: &'static str,
    /// The hash of its key; `ghostlab explain` and the artifact's record in the store have it in words.
    pub key: String,
    pub seconds: f64,
    /// Program, commit, command line, machine.
    pub made: Value,
}

impl CellResult {
    /// Creates a cell without results, perhaps with a reason. `layers` are the dense backbone's.
    pub fn unmeasured(cell: Cell, layers: usize, failure: Option<String>) -> Self {
        Self { cell, layers, failure, ..Self::default() }
    }

    pub fn text(&self, asked: &Perplexity) -> Option<&Measured<Perplexity, TextExtent, Losses>> {
        self.texts.iter().find(|text| text.asked == *asked)
    }

    /// Returns the scores of a text, if there are any.
    pub fn text_sample(&self, asked: &Perplexity) -> Option<TextSample<'_>> {
        let index = self.texts.iter().position(|text| text.asked == *asked)?;
        let damages = self.damages.get(index).and_then(Option::as_ref);
        Some(TextSample { damages, ..self.texts[index].windows()? })
    }

    pub fn task(&self, asked: &TaskUse) -> Option<&Measured<TaskUse, TaskExtent, TaskScores>> {
        self.tasks.iter().find(|task| task.asked == *asked)
    }

    pub fn prompt(&self, asked: &Latency) -> Option<&Measured<Latency, (), LatencyResult>> {
        self.prompts.iter().find(|prompt| prompt.asked == *asked)
    }

    pub fn defined(&self, asked: &DefinitionUse) -> Option<&Measured<DefinitionUse, DefinedExtent, DefinedScores>> {
        self.definitions.iter().find(|definition| definition.asked == *asked)
    }

    /// Returns the scores of a group. `None` if one of its tasks has none.
    pub fn group(&self, group_use: &GroupUse) -> Option<Vec<Score>> {
        let task = |name: &str| {
            let asked = DefinitionUse { name: name.to_owned(), how: group_use.how.clone() };
            let scores = &self.defined(&asked)?.sample.as_ref()?.scores;
            Some(scores.iter().map(|score| score.score.clone()).collect::<Vec<_>>())
        };
        let all = group_use.group.tasks.iter().map(|name| task(name)).collect::<Option<Vec<_>>>()?;
        Some(group_scores(&group_use.group, &|name: &str| {
            let index = group_use.group.tasks.iter().position(|task| task == name);
            index.map(|index| all[index].clone()).unwrap_or_default()
        }))
    }

    /// Iterates over the tasks with scores.
    pub fn scored(&self) -> impl Iterator<Item = &TaskScores> {
        self.tasks.iter().filter_map(|task| task.sample.as_ref())
    }

    /// Returns the cell's notes without duplicates.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.selection_notes.clone();
        for boundary in &self.boundaries {
            for note in &boundary.notes {
                let placed = format!("layer {}: {note}", boundary.region.0);
                let note = if self.boundaries.len() == 1 { note } else { &placed };
                if !notes.contains(note) {
                    notes.push(note.clone());
                }
            }
        }
        for scores in self.scored() {
            let TaskResult { non_finite, unanswered, effective, .. } = scores.result;
            if non_finite > 0 {
                notes.push(format!("{non_finite} of {effective} documents of {} have no finite score", scores.label));
            }
            if unanswered > 0 {
                notes.push(format!("{unanswered} of {effective} documents of {} have no answer", scores.label));
            }
        }
        for sample in self
            .definitions
            .iter()
            .filter_map(|definition| definition.sample.as_ref())
            .filter(|sample| sample.non_finite > 0)
        {
            notes.push(format!(
                "{} of {} documents of {} have no finite score",
                sample.non_finite, sample.effective, sample.label
            ));
        }
        notes
    }

    /// Formats the accuracies as lm-evaluation-harness' results files. A file holds each task once, so several protocols of
    /// a task make several files. Empty without task scores.
    ///
    /// # Errors
    /// Never: no file gets a task twice.
    pub fn lm_eval(&self) -> Result<Vec<Value>> {
        let mut files: Vec<Vec<&TaskScores>> = Vec::new();
        for scores in self.scored() {
            match files.iter_mut().find(|file| !has_it(scores, file)) {
                Some(file) => file.push(scores),
                None => files.push(vec![scores]),
            }
        }
        files
            .iter()
            .map(|file| {
                let results: Vec<TaskResult> = file.iter().map(|scores| scores.result.clone()).collect();
                let labels: Vec<&str> = file.iter().map(|scores| scores.label.as_str()).collect();
                tasks::export(
                    &results,
                    json!({"model": "ghostlab", "model_args": self.cell.to_string(), "tasks": labels}),
                )
            })
            .collect()
    }

    /// # Errors
    /// The cell failed, with its reason, or something of it is not made yet.
    pub fn ok(&self) -> Result<&Self> {
        match (&self.failure, &self.missing) {
            (Some(reason), _) => Err(Error::job("a cell failed").at(self.cell.to_string()).found(reason.clone())),
            (None, Some(what)) => {
                Err(Error::missing("a cell is not made yet").at(self.cell.to_string()).found(what.clone()))
            }
            (None, None) => Ok(self),
        }
    }
}

fn has_it(scores: &TaskScores, file: &Vec<&TaskScores>) -> bool {
    file.iter().any(|entry| entry.result.task.name == scores.result.task.name)
}

fn perplexities<S: Serializer>(
    texts: &[Measured<Perplexity, TextExtent, Losses>],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(texts.iter().map(|text| text.sample.as_ref().map(Losses::perplexity)))
}

fn samples<A, E, T: Serialize, S: Serializer>(
    all: &[Measured<A, E, T>],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(|entry| &entry.sample))
}

/// Size of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextExtent {
    /// Windows that are scored, and windows that there are.
    pub windows: usize,
    pub all: usize,
    /// Bytes of the text behind the predicted tokens.
    pub bytes: usize,
}

/// Size of a task.
#[derive(Debug, Clone)]
pub struct TaskExtent {
    pub task: &'static Task,
    /// Documents scored, and documents in the files.
    pub documents: usize,
    pub original: usize,
    /// Whether all documents of the published split are scored.
    pub full_split: bool,
}

/// Size of a task with a definition.
#[derive(Debug, Clone)]
pub struct DefinedExtent {
    /// Documents scored, and documents of the split.
    pub documents: usize,
    pub original: usize,
}
