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
use crate::metric::TextSample;
use crate::model::Cut;
use crate::model::EngineId;
use crate::stage::operator::BoundaryResult;
use crate::tasks::{self, Answered, Task, TaskResult};

/// Results of a grid run.
#[derive(Debug)]
pub struct GridOutcome {
    /// Results in the order of the grid's cells.
    pub cells: Vec<CellResult>,
    /// SHA-256 of every input file, by path.
    pub inputs: BTreeMap<String, String>,
    /// Engine of each backbone.
    pub engines: BTreeMap<String, EngineId>,
    /// Weight type of each backbone with rounded weights, as text, by backbone name.
    pub rounded: BTreeMap<String, String>,
    /// Machine on which latencies were measured, as text; empty without latencies.
    pub machine: String,
}

impl GridOutcome {
    /// Returns whether the backbones have different vocabularies, so that their perplexities are not comparable.
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

    /// Returns the extent of a text as tokenized by a cell's backbone, taken from another cell of the backbone if
    /// necessary. `None` if it is not tokenized.
    pub fn text_read(&self, result: &CellResult, text: &Perplexity) -> Option<TextExtent> {
        let mut others = self.cells.iter().filter(|cell| cell.cell.backbone == result.cell.backbone);
        is_known_text(text, result).or_else(|| others.find_map(|result| is_known_text(text, result)))
    }

    /// Returns the dense model's answers to a task, if its cell is scored.
    pub fn dense_answers(&self, backbone: &str, used: &TaskUse) -> Option<&Answered> {
        let dense = self.cells.iter().find(|cell| cell.cell.is_dense() && cell.cell.backbone == backbone)?;
        Some(&dense.task(used)?.sample.as_ref()?.answers)
    }

    /// Iterates over the extents of a text in all cells.
    pub fn text_reads(&self, text: &Perplexity) -> impl Iterator<Item = TextExtent> {
        self.cells.iter().filter_map(|cell| cell.text(text)?.extent)
    }

    /// Returns the extent of a task, which is the same for all backbones. `None` if nothing is stored.
    pub fn task(&self, used: &TaskUse) -> Option<&TaskExtent> {
        self.cells.first()?.task(used)?.extent.as_ref()
    }

    /// Returns the extent of a task with a definition.
    pub fn defined(&self, used: &DefinitionUse) -> Option<&DefinedExtent> {
        self.cells.first()?.defined(used)?.extent.as_ref()
    }

    /// Counts cells that are incomplete without a failure.
    pub fn unmade(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_none() && cell.missing.is_some()).count()
    }

    pub fn failed(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_some()).count()
    }
}

fn is_known_text(text: &Perplexity, result: &CellResult) -> Option<TextExtent> {
    result.text(text)?.extent
}

/// Scores of a variant on one built-in task.
#[derive(Debug, Clone, Serialize)]
pub struct TaskScores {
    /// Task as written in the grid, with its options.
    pub label: String,
    #[serde(flatten)]
    pub result: TaskResult,
    /// Answers to each document. Skipped in the run's record, which they would enlarge by megabytes.
    #[serde(skip)]
    pub answers: Answered,
}

/// Scores of a variant on one task with a definition.
#[derive(Debug, Clone, Serialize)]
pub struct DefinedScores {
    /// Task as written in the grid, with its options.
    pub label: String,
    /// Number of documents in the split, of which `effective` are scored.
    pub original: usize,
    pub effective: usize,
    /// Number of texts with a truncated context. `non_finite` counts documents with a non-finite likelihood.
    pub truncated: usize,
    pub non_finite: usize,
    /// Every metric of every filter pipeline.
    #[serde(serialize_with = "by_key")]
    pub scores: Vec<Judged>,
    /// Answers to each document's requests. Skipped in the run's record.
    #[serde(skip)]
    pub answers: Vec<Vec<Answer>>,
}

/// Formats scores as `acc,none` and `acc_stderr,none`, like lm-evaluation-harness.
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

/// Measurement of a cell, with the request it answers. The identity of the cell and `measure` together identify its
/// numbers ([`Identity::measured`]).
#[derive(Debug, Clone)]
pub struct Measured<A, E, S> {
    /// Request, as in the grid.
    pub asked: A,
    pub measure: Arc<MeasureId>,
    /// Amount of data the backbone reads for it, the same for all variants; `None` if it is not stored.
    pub extent: Option<E>,
    /// Measured values; `None` if the cell failed or was never computed.
    pub sample: Option<S>,
}

impl Measured<Perplexity, TextExtent, Losses> {
    /// Returns the losses of the windows, if they are scored.
    pub fn windows(&self) -> Option<TextSample<'_>> {
        let bytes = self.extent.map(|extent| extent.bytes);
        Some(TextSample { losses: self.sample.as_ref()?, length: self.asked.length, bytes, damages: None })
    }
}

/// Cell with its results.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CellResult {
    pub cell: Cell,
    /// Identity, independent of names; `None` if the cell was never planned. `numbers.json` stores it once per run.
    #[serde(skip)]
    pub identity: Option<Arc<Identity>>,
    /// Number of layers of the dense backbone.
    pub layers: usize,
    /// Removed layers or sublayers.
    pub removed: Cut,
    /// Criterion scores as `(candidate, score)`.
    pub scores: Vec<(usize, f64)>,
    /// Reasons why the selection is meaningless, if any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub selection_notes: Vec<String>,
    pub boundaries: Vec<BoundaryResult>,
    /// Window losses of each text. The run's record contains only the perplexities.
    #[serde(rename = "perplexity", serialize_with = "perplexities")]
    pub texts: Vec<Measured<Perplexity, TextExtent, Losses>>,
    /// Comparisons with the dense model, by text; `None` for texts without one.
    #[serde(skip)]
    pub damages: Vec<Option<Damages>>,
    #[serde(serialize_with = "samples")]
    pub tasks: Vec<Measured<TaskUse, TaskExtent, TaskScores>>,
    /// Tasks with definitions.
    #[serde(serialize_with = "samples", skip_serializing_if = "Vec::is_empty")]
    pub definitions: Vec<Measured<DefinitionUse, DefinedExtent, DefinedScores>>,
    #[serde(rename = "latencies", serialize_with = "samples")]
    pub prompts: Vec<Measured<Latency, (), LatencyResult>>,
    /// Loss of each training step; empty if the operator was not trained. Not part of the run's record.
    #[serde(skip)]
    pub training: Vec<f64>,
    /// Time spent on the cell's operators and scores, over all runs. The time of shared steps is divided equally among
    /// cells.
    pub seconds: f64,
    /// Reason for the failure of the cell.
    pub failure: Option<String>,
    /// Description of the missing parts of a cell that did not fail. Finished parts keep their values.
    pub missing: Option<String>,
    /// Stored objects that the cell was made from, with their provenance.
    pub made_from: Vec<MadeFrom>,
    /// Paths of the cell's input files, a subset of [`GridOutcome::inputs`](super::GridOutcome::inputs).
    #[serde(skip)]
    pub inputs: BTreeSet<String>,
}

/// Provenance of a stored object.
#[derive(Debug, Clone, Serialize)]
pub struct MadeFrom {
    pub kind: &'static str,
    /// Hash of the object's key. `ghostlab explain` and the object's record in the store show the key itself.
    pub key: String,
    pub seconds: f64,
    /// Program, commit, command line and machine that made the object.
    pub made: Value,
}

impl CellResult {
    /// Creates a cell without results. `layers` counts those of the dense backbone, and `failure` is the reason, if
    /// any.
    pub fn unmeasured(cell: Cell, layers: usize, failure: Option<String>) -> Self {
        Self { cell, layers, failure, ..Self::default() }
    }

    pub fn text(&self, asked: &Perplexity) -> Option<&Measured<Perplexity, TextExtent, Losses>> {
        self.texts.iter().find(|text| text.asked == *asked)
    }

    /// Returns the scores of a text, if any.
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

    /// Formats the accuracies as results files of lm-evaluation-harness. A file lists each task once, so a task scored
    /// under several protocols needs several files. Empty without task scores.
    ///
    /// # Errors
    /// Never fails: no file contains a task twice.
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

    /// Returns the cell if it is complete.
    ///
    /// # Errors
    /// Fails if the cell failed or is incomplete.
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
    /// Number of scored windows, out of `all`.
    pub windows: usize,
    pub all: usize,
    /// Size in bytes of the text covered by the predicted tokens.
    pub bytes: usize,
}

/// Size of a built-in task.
#[derive(Debug, Clone)]
pub struct TaskExtent {
    pub task: &'static Task,
    /// Number of scored documents, out of `original`.
    pub documents: usize,
    pub original: usize,
    /// Whether all documents of the published split are scored.
    pub full_split: bool,
}

/// Size of a task with a definition.
#[derive(Debug, Clone)]
pub struct DefinedExtent {
    /// Number of scored documents, out of `original`.
    pub documents: usize,
    pub original: usize,
}
