//! What came of one cell.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::grid::Cell;
use crate::identity::{Identity, MeasureId};
use crate::stage::latency::LatencyResult;
use crate::stage::operator::BoundaryResult;
use crate::tasks::{self, Answered, TaskResult};

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

/// A cell and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct CellResult {
    pub cell: Cell,
    /// What it is, whatever the grid calls it; none of a cell that was never planned.
    /// `numbers.json` has it, once for all that a run leaves.
    #[serde(skip)]
    pub identity: Option<Arc<Identity>>,
    /// What is measured of it: its perplexities, then its tasks, then its prompts, in the grid's order. With the identity it
    /// is what a number is ([`Identity::measured`]).
    #[serde(skip)]
    pub measures: Vec<Arc<MeasureId>>,
    /// Layers of the dense backbone.
    pub layers: usize,
    /// Removed layers, ascending.
    pub removed: Vec<usize>,
    /// `(candidate, score)` of the criterion.
    pub scores: Vec<(usize, f64)>,
    /// Why that choice tells nothing, a line each; empty where it does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub selection_notes: Vec<String>,
    pub boundaries: Vec<BoundaryResult>,
    /// One for each perplexity of the grid; none where the cell failed.
    pub perplexity: Vec<Option<f64>>,
    /// The windows' losses behind each perplexity; not part of the run's record.
    #[serde(skip)]
    pub losses: Vec<Option<Vec<f64>>>,
    /// One for each task of the grid; none where the cell failed.
    pub tasks: Vec<Option<TaskScores>>,
    /// One for each timed prompt of the grid; none where the cell failed.
    pub latencies: Vec<Option<LatencyResult>>,
    /// The loss of each step of its operator's training; empty where it was not trained, and no part of the run's record.
    #[serde(skip)]
    pub training: Vec<f64>,
    /// What its operators and scores took to make, whenever that was; steps shared with other cells count in equal parts.
    pub seconds: f64,
    /// Why the cell has no result.
    pub failure: Option<String>,
    /// What nobody has made yet of a cell that did not fail; what is there of it has its values.
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
    /// A cell of which nothing is known but, perhaps, why. `layers` are those of the dense backbone.
    pub fn unmeasured(cell: Cell, layers: usize, failure: Option<String>) -> Self {
        Self {
            cell,
            identity: None,
            measures: Vec::new(),
            layers,
            removed: Vec::new(),
            scores: Vec::new(),
            selection_notes: Vec::new(),
            boundaries: Vec::new(),
            perplexity: Vec::new(),
            losses: Vec::new(),
            tasks: Vec::new(),
            latencies: Vec::new(),
            training: Vec::new(),
            seconds: 0.0,
            failure,
            missing: None,
            made_from: Vec::new(),
            inputs: BTreeSet::new(),
        }
    }

    /// What a reader has to know of this cell, each thing once.
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
        for scores in self.tasks.iter().flatten() {
            let TaskResult { non_finite, unanswered, effective, .. } = scores.result;
            if non_finite > 0 {
                notes.push(format!("{non_finite} of {effective} documents of {} have no finite score", scores.label));
            }
            if unanswered > 0 {
                notes.push(format!("{unanswered} of {effective} documents of {} have no answer", scores.label));
            }
        }
        notes
    }

    /// The accuracies in the layout of lm-evaluation-harness' results file. It has one place for each task: where the grid
    /// scores a task under several protocols there are several files. None where the cell has no task scores.
    ///
    /// # Errors
    /// Never: no file gets a task twice.
    pub fn lm_eval(&self) -> Result<Vec<Value>> {
        let mut files: Vec<Vec<&TaskScores>> = Vec::new();
        for scores in self.tasks.iter().flatten() {
            let has_it = |file: &Vec<&TaskScores>| file.iter().any(|of| of.result.task.name == scores.result.task.name);
            match files.iter_mut().find(|file| !has_it(file)) {
                Some(file) => file.push(scores),
                None => files.push(vec![scores]),
            }
        }
        let export = |file: &Vec<&TaskScores>| {
            let results: Vec<TaskResult> = file.iter().map(|scores| scores.result.clone()).collect();
            let labels: Vec<&str> = file.iter().map(|scores| scores.label.as_str()).collect();
            tasks::export(&results, json!({"model": "ghostlab", "model_args": self.cell.to_string(), "tasks": labels}))
        };
        files.iter().map(export).collect()
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
