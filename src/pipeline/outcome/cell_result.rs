//! Results of a grid, cell by cell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ghostlab_definitions::results::{Score, group_scores};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::evaluate::damage_eval::Damages;
use crate::evaluate::perplexity::Losses;
use crate::files::parts;
use crate::grid::{Cell, EvalTask, Grid, GroupUse, Latency, Perplexity};
use crate::latency::LatencyResult;
use crate::metric::{Savings, TextSample};
use crate::model::Cut;
use crate::pipeline::identity::{ComputeId, Identity, MeasureId};
use crate::pipeline::stage::boundary_result::{BoundaryResult, PlacedRepair};
use crate::pipeline::stage::task_scores::TaskScores;
use crate::tasks::ScoredTask;

/// Results of a grid run.
#[derive(Debug)]
pub struct GridOutcome {
    /// Results of the cells, in grid order.
    pub cells: Vec<CellResult>,
    /// SHA-256 of every input file, by path.
    pub inputs: BTreeMap<String, String>,
    /// Engine of each backbone, by name.
    pub engines: BTreeMap<String, ComputeId>,
    /// Names of the weight types to which weights are rounded, by backbone name. Contains only backbones with rounded
    /// weights.
    pub rounded: BTreeMap<String, String>,
    /// Description of the machine on which latencies were measured. Empty if there are none.
    pub machine: String,
}

impl GridOutcome {
    /// Returns whether the backbones have different vocabularies, which makes their perplexities incomparable.
    pub fn has_different_vocabularies(&self, grid: &Grid) -> bool {
        self.cells
            .iter()
            .filter_map(|cell| {
                let folder = &grid.backbones.get(&cell.cell.backbone)?.path;
                self.inputs.get(&parts::tokenizer_path(folder).display().to_string())
            })
            .collect::<BTreeSet<_>>()
            .len()
            > 1
    }

    /// Returns the [`TextExtent`] of a text as tokenized by the backbone of a cell. If the cell has no extent, uses
    /// another cell of that backbone. Returns `None` if the text has not been tokenized.
    pub fn text_extent(&self, result: &CellResult, text: &Perplexity) -> Option<TextExtent> {
        let others = self.cells.iter().filter(|cell| cell.cell.backbone == result.cell.backbone);
        std::iter::once(result).chain(others).find_map(|result| result.text(text)?.extent)
    }

    /// Returns the scores of the dense model on a task, or `None` if its cell has no scores.
    pub fn dense_scores(&self, backbone: &str, task: &EvalTask) -> Option<&TaskScores> {
        let dense = self.cells.iter().find(|cell| cell.cell.is_dense() && cell.cell.backbone == backbone)?;
        dense.task(task)?.sample.as_ref()
    }

    /// Iterates over the extents of a text in the cells that have one.
    pub fn text_extents(&self, text: &Perplexity) -> impl Iterator<Item = TextExtent> {
        self.cells.iter().filter_map(|cell| cell.text(text)?.extent)
    }

    /// Returns the extent of a task, or `None` if it is not stored. It does not depend on the backbone.
    pub fn task(&self, task: &EvalTask) -> Option<TaskExtent> {
        self.cells.first()?.task(task)?.extent
    }

    /// Returns the number of cells that are incomplete but have not failed.
    pub fn incomplete_count(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_none() && cell.missing.is_some()).count()
    }

    pub fn failed_count(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_some()).count()
    }
}

/// Measurement of a cell, with the entry in the grid that requested it. [`Identity::with_measure`] combines the
/// identity of the cell and `measure` to identify the measured values.
#[derive(Debug, Clone)]
pub struct EvalResult<A, E, S> {
    /// Text, task or prompt, as requested in the grid.
    pub requested: A,
    pub measure: Arc<MeasureId>,
    /// Size of the text or task, or `None` if its tokens are not stored. Equal for all variants of a backbone.
    pub extent: Option<E>,
    /// Measured values, or `None` if the cell failed or was never computed.
    pub sample: Option<S>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct CellResult {
    pub cell: Cell,
    /// Identity, which does not depend on names, or `None` if the cell was never planned. Skipped, because it is in
    /// `numbers.json`.
    #[serde(skip)]
    pub identity: Option<Arc<Identity>>,
    /// Number of layers in the dense backbone.
    pub layers: usize,
    /// Layers or sublayers that were removed.
    pub removed: Cut,
    /// Scores of the criterion as pairs of candidate and score.
    pub scores: Vec<(usize, f64)>,
    /// Reasons why the selection may be meaningless, if any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub selection_notes: Vec<String>,
    pub boundaries: Vec<BoundaryResult>,
    /// Savings relative to the dense model. `None` unless the grid requests them and all operators are stored.
    #[serde(skip)]
    pub savings: Option<Savings>,
    /// Losses of the windows of each text. The run's record contains only the perplexities.
    #[serde(rename = "perplexity", serialize_with = "serialize_perplexities")]
    pub texts: Vec<EvalResult<Perplexity, TextExtent, Losses>>,
    /// Comparison with the dense model for each text, or `None` if none was requested.
    #[serde(skip)]
    pub damages: Vec<Option<Damages>>,
    /// Tasks with their measurements. The run's record contains only some of the values.
    #[serde(skip)]
    pub tasks: Vec<EvalResult<EvalTask, TaskExtent, TaskScores>>,
    #[serde(rename = "latencies", serialize_with = "serialize_latencies")]
    pub prompts: Vec<EvalResult<Latency, (), LatencyResult>>,
    /// Loss at each training step. Empty if the operator was not trained. Not part of the run's record.
    #[serde(skip)]
    pub training: Vec<f64>,
    /// Time spent on the operators and scores of the cell, summed over all runs. The time for shared steps is divided
    /// equally among the cells.
    pub seconds: f64,
    pub failure: Option<String>,
    /// Description of the first missing object if the cell is incomplete, such as `not scored on ptb`. Stored results
    /// of the cell are still filled in.
    pub missing: Option<String>,
    /// Stored objects from which the cell was computed, with their provenance.
    pub made_from: Vec<UsedObject>,
    /// Paths of the input files of the cell, a subset of [`GridOutcome::inputs`](super::GridOutcome::inputs).
    #[serde(skip)]
    pub inputs: BTreeSet<String>,
}

/// Provenance of a stored object.
#[derive(Debug, Clone, Serialize)]
pub struct UsedObject {
    pub kind: &'static str,
    /// Hash of the object's key. The key itself is shown by `ghostlab explain` and is in the object's record in
    /// the store.
    pub key: String,
    pub seconds: f64,
    /// Program, commit, command line and machine used to compute the object.
    pub made: Value,
}

impl CellResult {
    /// Creates a cell without results. `layers` is the number of layers in the dense backbone. If the cell failed,
    /// `failure` is the reason.
    pub fn unmeasured(cell: Cell, layers: usize, failure: Option<String>) -> Self {
        Self { cell, layers, failure, ..Self::default() }
    }

    /// Returns the removed sublayers that an affine map replaces.
    pub fn replaced_sublayers(&self) -> Cut {
        let replaced = self.boundaries.iter().filter_map(|boundary| {
            Some((boundary.region.0, boundary.placed.and_then(PlacedRepair::replaced_sublayer)?))
        });
        replaced.collect()
    }

    pub fn text(&self, requested: &Perplexity) -> Option<&EvalResult<Perplexity, TextExtent, Losses>> {
        self.texts.iter().find(|text| text.requested == *requested)
    }

    /// Returns the scores on a text, or `None` if there are none.
    pub fn text_sample(&self, requested: &Perplexity) -> Option<TextSample<'_>> {
        let index = self.texts.iter().position(|text| text.requested == *requested)?;
        let EvalResult { extent, sample, .. } = &self.texts[index];
        Some(TextSample {
            losses: sample.as_ref()?,
            length: requested.length,
            bytes: extent.map(|extent| extent.bytes),
            damages: self.damages.get(index).and_then(Option::as_ref),
        })
    }

    pub fn task(&self, requested: &EvalTask) -> Option<&EvalResult<EvalTask, TaskExtent, TaskScores>> {
        self.tasks.iter().find(|task| task.requested == *requested)
    }

    pub fn prompt(&self, requested: &Latency) -> Option<&EvalResult<Latency, (), LatencyResult>> {
        self.prompts.iter().find(|prompt| prompt.requested == *requested)
    }

    /// Returns the scores of a task group, or `None` if one of its tasks has no scores.
    pub fn group(&self, group_use: &GroupUse) -> Option<Vec<Score>> {
        let tasks = group_use.group.tasks.iter();
        let all = tasks.map(|name| Some(&self.task(&group_use.task(name))?.sample.as_ref()?.scores));
        let all: Vec<&Vec<Score>> = all.collect::<Option<_>>()?;
        Some(group_scores(&group_use.group, &|name: &str| {
            let index = group_use.group.tasks.iter().position(|task| task == name);
            index.map(|index| all[index].clone()).unwrap_or_default()
        }))
    }

    pub fn task_scores(&self) -> impl Iterator<Item = &TaskScores> {
        self.tasks.iter().filter_map(|task| task.sample.as_ref())
    }

    /// Iterates over the labels and answers of the built-in tasks that have been answered.
    pub fn answered_tasks(&self) -> impl Iterator<Item = (&str, &ScoredTask)> {
        self.task_scores().filter_map(|scores| Some((scores.label.as_str(), scores.answers.builtin()?)))
    }

    /// Returns the notes about the cell, without duplicates.
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
        for TaskScores { label, effective, non_finite, unanswered, .. } in self.task_scores() {
            if *non_finite > 0 {
                notes.push(format!("{non_finite} of {effective} documents of {label} have no finite score"));
            }
            if *unanswered > 0 {
                notes.push(format!("{unanswered} of {effective} documents of {label} have no answer"));
            }
        }
        notes
    }

    /// Returns the cell if it is complete.
    ///
    /// # Errors
    /// Fails if the cell failed or is incomplete.
    pub fn ok(&self) -> Result<&Self> {
        match (&self.failure, &self.missing) {
            (Some(reason), _) => Err(Error::job("a cell failed").at(self.cell.to_string()).found(reason.clone())),
            (None, Some(what)) => {
                Err(Error::missing("cell not computed").at(self.cell.to_string()).found(what.clone()))
            }
            (None, None) => Ok(self),
        }
    }
}

fn serialize_perplexities<S: Serializer>(
    texts: &[EvalResult<Perplexity, TextExtent, Losses>],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(texts.iter().map(|text| text.sample.as_ref().map(Losses::perplexity)))
}

fn serialize_latencies<S: Serializer>(
    all: &[EvalResult<Latency, (), LatencyResult>],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(|prompt| &prompt.sample))
}

/// Number of windows and bytes of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextExtent {
    /// Number of windows that are scored, out of `all`.
    pub windows: usize,
    pub all: usize,
    /// Length in bytes of the text covered by the predicted tokens.
    pub bytes: usize,
}

/// Number of documents in a task.
#[derive(Debug, Clone, Copy)]
pub struct TaskExtent {
    /// Number of documents that are scored, out of `original`.
    pub documents: usize,
    pub original: usize,
}
