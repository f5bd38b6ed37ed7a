//! Results of a grid, cell by cell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ghostlab_definitions::Answer;
use ghostlab_definitions::aggregate::Item;
use ghostlab_definitions::results::{Score, group_scores};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::evaluate::damage::Damages;
use crate::evaluate::perplexity::Losses;
use crate::files::parts;
use crate::grid::{Cell, EvalTask, Grid, GroupUse, Latency, Perplexity};
use crate::identity::{Identity, MeasureId};
use crate::latency::LatencyResult;
use crate::metric::TextSample;
use crate::model::Cut;
use crate::model::EngineId;
use crate::stage::operator::BoundaryResult;
use crate::tasks::{AccuracyKind, Answered, Measure, TaskResult};

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
    pub fn dense_answers(&self, backbone: &str, task: &EvalTask) -> Option<&Answered> {
        let dense = self.cells.iter().find(|cell| cell.cell.is_dense() && cell.cell.backbone == backbone)?;
        dense.task(task)?.sample.as_ref()?.answers.native()
    }

    /// Iterates over what all cells read of a text.
    pub fn text_reads(&self, text: &Perplexity) -> impl Iterator<Item = TextExtent> {
        self.cells.iter().filter_map(|cell| cell.text(text)?.extent)
    }

    /// Returns the extent of a task, which the first backbone determines for all. `None` if nothing is stored.
    pub fn task(&self, task: &EvalTask) -> Option<TaskExtent> {
        self.cells.first()?.task(task)?.extent
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
#[derive(Debug, Clone)]
pub struct TaskScores {
    /// The task as the grid writes it, with its options.
    pub label: String,
    /// Documents of the split, and those that were scored.
    pub original: usize,
    pub effective: usize,
    /// Texts whose context was cut, documents with a likelihood that is not finite, and documents without an answer.
    pub truncated: usize,
    pub non_finite: usize,
    pub unanswered: usize,
    /// Every metric of every pipeline of filters.
    pub scores: Vec<Score>,
    pub answers: Answers,
}

/// Answers to a task's documents.
#[derive(Debug, Clone)]
pub enum Answers {
    /// Choices of a built-in task.
    Native(Answered),
    /// Answers to each document's requests, and each score's values of the documents.
    Defined { answers: Vec<Vec<Answer>>, items: Vec<Vec<Item>> },
}

impl Answers {
    /// Returns the answers to a built-in task.
    pub fn native(&self) -> Option<&Answered> {
        match self {
            Self::Native(answered) => Some(answered),
            Self::Defined { .. } => None,
        }
    }
}

impl TaskScores {
    /// Collects the scores of a built-in task.
    pub fn native(label: String, answered: Answered) -> Self {
        let TaskResult { task, original, effective, non_finite, unanswered, truncated, .. } = answered.result;
        let score = |kind: &AccuracyKind| {
            let Measure { value: score, stderr: error } = answered.result.measure(*kind);
            Score { metric: kind.name().to_owned(), filter: "none".to_owned(), score, error, documents: effective }
        };
        let scores = task.metrics.iter().map(score).collect();
        let answers = Answers::Native(answered);
        Self { label, original, effective, truncated, non_finite, unanswered, scores, answers }
    }
}

/// Formats `acc,none` and `acc_stderr,none` as lm-evaluation-harness does.
pub fn harness_scores(scores: &[Score]) -> Map<String, Value> {
    let each = scores.iter().flat_map(|score| {
        let error = score.error.filter(|error| error.is_finite()).map_or(json!("N/A"), |error| json!(error));
        [
            (format!("{},{}", score.metric, score.filter), json!(score.score)),
            (format!("{}_stderr,{}", score.metric, score.filter), error),
        ]
    });
    each.collect()
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
    /// The windows' losses of each text. The run's record has the perplexities alone.
    #[serde(rename = "perplexity", serialize_with = "perplexities")]
    pub texts: Vec<Measured<Perplexity, TextExtent, Losses>>,
    /// Comparisons with the dense model by text; `None` for texts without one.
    #[serde(skip)]
    pub damages: Vec<Option<Damages>>,
    /// The run's record has only some values of each.
    #[serde(skip)]
    pub tasks: Vec<Measured<EvalTask, TaskExtent, TaskScores>>,
    #[serde(rename = "latencies", serialize_with = "prompts")]
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

    pub fn task(&self, asked: &EvalTask) -> Option<&Measured<EvalTask, TaskExtent, TaskScores>> {
        self.tasks.iter().find(|task| task.asked == *asked)
    }

    pub fn prompt(&self, asked: &Latency) -> Option<&Measured<Latency, (), LatencyResult>> {
        self.prompts.iter().find(|prompt| prompt.asked == *asked)
    }

    /// Returns the scores of a group. `None` if one of its tasks has none.
    pub fn group(&self, group_use: &GroupUse) -> Option<Vec<Score>> {
        let tasks = group_use.group.tasks.iter();
        let all = tasks.map(|name| Some(&self.task(&group_use.task(name))?.sample.as_ref()?.scores));
        let all: Vec<&Vec<Score>> = all.collect::<Option<_>>()?;
        Some(group_scores(&group_use.group, &|name: &str| {
            let index = group_use.group.tasks.iter().position(|task| task == name);
            index.map(|index| all[index].clone()).unwrap_or_default()
        }))
    }

    /// Iterates over the tasks with scores.
    pub fn scored(&self) -> impl Iterator<Item = &TaskScores> {
        self.tasks.iter().filter_map(|task| task.sample.as_ref())
    }

    /// Iterates over the built-in tasks with answers, by label.
    pub fn answered(&self) -> impl Iterator<Item = (&str, &Answered)> {
        self.scored().filter_map(|scores| Some((scores.label.as_str(), scores.answers.native()?)))
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
        for TaskScores { label, effective, non_finite, unanswered, .. } in self.scored() {
            if *non_finite > 0 {
                notes.push(format!("{non_finite} of {effective} documents of {label} have no finite score"));
            }
            if *unanswered > 0 {
                notes.push(format!("{unanswered} of {effective} documents of {label} have no answer"));
            }
        }
        notes
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

fn perplexities<S: Serializer>(
    texts: &[Measured<Perplexity, TextExtent, Losses>],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(texts.iter().map(|text| text.sample.as_ref().map(Losses::perplexity)))
}

fn prompts<S: Serializer>(
    all: &[Measured<Latency, (), LatencyResult>],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(|prompt| &prompt.sample))
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
#[derive(Debug, Clone, Copy)]
pub struct TaskExtent {
    /// Documents scored, and documents of the split.
    pub documents: usize,
    pub original: usize,
}
