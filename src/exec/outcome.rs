//! What came of a grid, read from the store: the store alone says what is done.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::operator::{BoundaryResult, figures};
use super::tokens::{SHEET, extent};
use crate::corpus::Rule;
use crate::error::{Error, Result};
use crate::evaluate::choices;
use crate::evaluate::perplexity::Losses;
use crate::grid::{Cell, Grid, TaskUse};
use crate::plan::payload::{from_json, selection, values};
use crate::plan::{BackbonePlan, Plan, Subject, Variant};
use crate::store::{Key, Lookup, Store, StoredArtifact};
use crate::tasks::{self, AnswerKey, Bos, DocumentResult, Score, Task, TaskResult};

/// What came of a grid.
#[derive(Debug)]
pub struct GridOutcome {
    /// In the order of the grid's cells.
    pub cells: Vec<CellResult>,
    /// SHA-256 of every file that was read, by path.
    pub inputs: BTreeMap<String, String>,
    /// What each backbone read of each perplexity's text, in the grid's order; none where it is not tokenised.
    pub texts: BTreeMap<String, Vec<Option<TextProtocol>>>,
    /// How each task was scored, in the grid's order.
    pub tasks: Vec<TaskProtocol>,
}

impl GridOutcome {
    /// Whether backbones with unlike vocabularies stand beside each other: their perplexities are of other tokens.
    pub fn unlike_vocabularies(&self, grid: &Grid) -> bool {
        let of = |cell: &CellResult| {
            let folder = &grid.backbones.get(&cell.cell.backbone)?.path;
            self.inputs.get(&folder.join("tokenizer.json").display().to_string())
        };
        self.cells.iter().filter_map(of).collect::<BTreeSet<_>>().len() > 1
    }

    /// The bits per byte of a cell on the perplexity at `place`, of windows of `length` tokens: what the model needs for a
    /// byte of the predicted text, whatever its tokens are.
    pub fn bits_per_byte(&self, result: &CellResult, place: usize, length: usize) -> Option<f64> {
        let read = self.texts.get(&result.cell.backbone)?.get(place).copied().flatten()?;
        let losses = result.losses.get(place)?.as_ref()?;
        let nats = losses.iter().sum::<f64>() * (length - 1) as f64;
        (read.bytes > 0).then(|| nats / std::f64::consts::LN_2 / read.bytes as f64).filter(|bits| bits.is_finite())
    }
}

/// How much of a text was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextProtocol {
    /// Windows that are scored, and windows that there are.
    pub windows: usize,
    pub all: usize,
    /// Of the text that the predicted tokens stand for.
    pub bytes: usize,
}

/// How a task was scored, whatever the variant.
#[derive(Debug, Clone)]
pub struct TaskProtocol {
    /// The task as the grid writes it, with its options.
    pub label: String,
    pub task: &'static Task,
    pub bos: Bos,
    /// Documents scored, and documents in the files.
    pub documents: usize,
    pub original: usize,
    /// Whether all documents of the published split are scored.
    pub whole: bool,
}

/// A variant's scores on one task.
#[derive(Debug, Clone, Serialize)]
pub struct TaskScores {
    /// The task as the grid writes it, with its options.
    pub label: String,
    #[serde(flatten)]
    pub result: TaskResult,
    /// Every choice of every document; not part of the run's record, which would grow by megabytes.
    #[serde(skip)]
    pub documents: Vec<DocumentResult>,
}

/// A cell and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct CellResult {
    pub cell: Cell,
    /// Layers of the dense backbone.
    pub layers: usize,
    /// Removed layers, ascending.
    pub removed: Vec<usize>,
    /// `(candidate, score)` of the criterion.
    pub scores: Vec<(usize, f64)>,
    pub boundaries: Vec<BoundaryResult>,
    /// One for each perplexity of the grid; none where the cell failed.
    pub perplexity: Vec<Option<f64>>,
    /// The windows' losses behind each perplexity; not part of the run's record.
    #[serde(skip)]
    pub losses: Vec<Option<Vec<f64>>>,
    /// One for each task of the grid; none where the cell failed.
    pub tasks: Vec<Option<TaskScores>>,
    /// What its operators and scores took to make, whenever that was; steps shared with other cells count in equal parts.
    pub seconds: f64,
    /// Why the cell has no result.
    pub failure: Option<String>,
    /// The artifacts that it was made from, each with its key and who made it.
    pub made_from: Vec<MadeFrom>,
    /// The paths of the input files that it was made from, which are among [`GridOutcome::inputs`].
    #[serde(skip)]
    pub inputs: BTreeSet<String>,
}

/// Where a number comes from.
#[derive(Debug, Clone, Serialize)]
pub struct MadeFrom {
    pub kind: &'static str,
    /// The hash of its key; `ghostlab explain` and the store's `meta.json` have it in words.
    pub key: String,
    pub seconds: f64,
    /// Program, commit, command line, machine.
    pub made: Value,
}

impl GridOutcome {
    /// How a task of the grid was scored; none where nothing of it is stored.
    pub fn task(&self, used: &TaskUse) -> Option<&TaskProtocol> {
        self.tasks.iter().find(|of| of.label == used.to_string())
    }

    /// How many cells failed.
    pub fn failed(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_some()).count()
    }

    /// Reads what is stored of a plan. A cell that lacks something has failed: with the reason given, or for want of it.
    ///
    /// # Errors
    /// Damage that appeared since the run looked.
    pub fn read(plan: &Plan<'_>, store: &Store, failures: &BTreeMap<usize, String>) -> Result<Self> {
        let inputs = plan.inputs.by_path();
        let mut cells = Vec::new();
        for backbone in &plan.backbones {
            let reader = Reader::new(backbone, store, &inputs)?;
            for variant in &backbone.variants {
                cells.push(reader.cell(plan, variant, failures.get(&variant.cell))?);
            }
        }
        let tasks = plan.backbones.first().map_or(Ok(Vec::new()), |backbone| protocols(plan, backbone, store))?;
        let mut texts = BTreeMap::new();
        for backbone in &plan.backbones {
            texts.insert(backbone.name.clone(), texts_of(plan, backbone, store)?);
        }
        Ok(Self { cells, inputs, texts, tasks })
    }
}

/// Reads one backbone's results; the tasks' sheets are read once.
struct Reader<'a> {
    backbone: &'a BackbonePlan,
    store: &'a Store,
    sheets: Vec<Option<AnswerKey>>,
    /// The paths of the input files, by their hashes.
    files: BTreeMap<&'a str, Vec<&'a str>>,
}

fn sheets(backbone: &BackbonePlan, store: &Store) -> Result<Vec<Option<AnswerKey>>> {
    backbone.evaluations.iter().map(|evaluation| sheet(evaluation, store)).collect()
}

fn sheet(evaluation: &crate::plan::Evaluation, store: &Store) -> Result<Option<AnswerKey>> {
    match (&evaluation.subject, store.look(&evaluation.tokens)) {
        (Subject::Task(_), Lookup::Whole(artifact)) => from_json(&artifact, SHEET).map(Some),
        _ => Ok(None),
    }
}

fn texts_of(plan: &Plan<'_>, backbone: &BackbonePlan, store: &Store) -> Result<Vec<Option<TextProtocol>>> {
    let mut texts = Vec::new();
    for evaluation in &backbone.evaluations {
        let Subject::Windows(text) = &evaluation.subject else { continue };
        let rule: Rule = plan.grid.corpora[&text.corpus].rule.parse()?;
        let read = match store.look(&evaluation.tokens) {
            Lookup::Whole(artifact) => {
                let (windows, corpus_tokens, bytes) = extent(&artifact)?;
                Some(TextProtocol { windows, all: rule.windows(corpus_tokens, text.length), bytes })
            }
            _ => None,
        };
        texts.push(read);
    }
    Ok(texts)
}

fn protocols(plan: &Plan<'_>, backbone: &BackbonePlan, store: &Store) -> Result<Vec<TaskProtocol>> {
    let mut protocols = Vec::new();
    for (evaluation, sheet) in backbone.evaluations.iter().zip(sheets(backbone, store)?) {
        let (Subject::Task(used), Some(sheet)) = (&evaluation.subject, sheet) else { continue };
        protocols.push(TaskProtocol {
            label: used.to_string(),
            task: sheet.task()?,
            bos: used.bos,
            documents: sheet.documents(),
            original: sheet.original,
            whole: sheet.whole() && !plan.grid.tasks[&used.name].generated,
        });
    }
    Ok(protocols)
}

impl<'a> Reader<'a> {
    fn new(backbone: &'a BackbonePlan, store: &'a Store, inputs: &'a BTreeMap<String, String>) -> Result<Self> {
        let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (path, hash) in inputs {
            files.entry(hash).or_default().push(path);
        }
        Ok(Self { backbone, store, sheets: sheets(backbone, store)?, files })
    }

    fn cell(&self, plan: &Plan<'_>, variant: &Variant, failure: Option<&String>) -> Result<CellResult> {
        let cell = plan.grid.cells[variant.cell].clone();
        let mut result = CellResult::unmeasured(cell, self.backbone.config.layers, failure.cloned());
        let own = self.files.values().flatten().filter(|path| Path::new(path).starts_with(&self.backbone.folder));
        result.inputs.extend(own.map(|path| (*path).to_string()));
        if let Some(artifact) = variant.selection.as_ref().and_then(|key| self.find(key, &mut result)) {
            let selection = selection(&artifact)?;
            (result.removed, result.scores) = (selection.removed, selection.scores);
        }
        if let Some(artifact) = variant.operator.as_ref().and_then(|key| self.find(key, &mut result)) {
            result.boundaries = figures(&artifact)?;
            result.seconds += artifact.meta().seconds;
        }
        for (place, (evaluation, key)) in self.backbone.evaluations.iter().zip(&variant.scores).enumerate() {
            // A variant without operators cannot have been scored: what is under the key is of another time.
            let artifact = if result.failure.is_none() { self.find(key, &mut result) } else { None };
            if artifact.is_none() {
                result.failure.get_or_insert_with(|| format!("not scored on {}", evaluation.subject));
            }
            result.seconds += artifact.as_ref().map_or(0.0, |artifact| artifact.meta().seconds);
            let values = artifact.as_ref().map(values).transpose()?;
            match &evaluation.subject {
                Subject::Windows(text) => {
                    let losses = values.map(|windows| Losses { windows });
                    result.perplexity.push(losses.as_ref().map(Losses::perplexity));
                    result.losses.push(losses.as_ref().map(|losses| losses.windows.clone()));
                    if let Some(losses) = losses.filter(|losses| losses.not_finite() > 0) {
                        let (bad, all) = (losses.not_finite(), losses.windows.len());
                        let reason = format!("{bad} of {all} windows of {} have no finite loss", text.corpus);
                        result.failure = Some(reason);
                    }
                }
                Subject::Task(used) => {
                    let sheet = self.sheets[place].as_ref();
                    let scores = values.zip(sheet).map(|(values, sheet)| judge(&values, sheet, used.to_string()));
                    result.tasks.push(scores.transpose()?);
                }
            }
        }
        Ok(result)
    }

    fn find(&self, key: &Key, result: &mut CellResult) -> Option<StoredArtifact> {
        let Lookup::Whole(artifact) = self.store.look(key) else { return None };
        let meta = artifact.meta();
        self.read_by(&meta.key, result);
        result.made_from.push(MadeFrom {
            kind: key.kind().name(),
            key: key.hash().to_string(),
            seconds: meta.seconds,
            made: meta.made.clone(),
        });
        Some(artifact)
    }
}

impl Reader<'_> {
    /// Notes the input files whose hashes stand in a key or in its parents'. Weights and config stand there as one hash
    /// of several files: those of the backbone's folder count for every cell.
    fn read_by(&self, key: &Value, result: &mut CellResult) {
        match key {
            Value::String(hash) => {
                let files = self.files.get(hash.as_str()).map(Vec::as_slice).unwrap_or_default();
                // Another backbone's file may have the same bytes: then the own one was read.
                let own = files.iter().any(|path| Path::new(path).starts_with(&self.backbone.folder));
                let others = files.iter().filter(|_| !own);
                result.inputs.extend(others.map(|path| (*path).to_string()));
            }
            Value::Array(values) => values.iter().for_each(|value| self.read_by(value, result)),
            Value::Object(fields) => fields.values().for_each(|value| self.read_by(value, result)),
            _ => {}
        }
    }
}

/// What some variants scored in one evaluation, as far as it is stored: a perplexity, or an accuracy in percent.
///
/// # Errors
/// Damage.
pub(super) fn scored(
    evaluation: &crate::plan::Evaluation,
    scores: &[(usize, &Key)],
    store: &Store,
) -> Result<Vec<(usize, f64)>> {
    let sheet = sheet(evaluation, store)?;
    let mut all = Vec::new();
    for (cell, key) in scores {
        let Lookup::Whole(artifact) = store.look(key) else { continue };
        let values = values(&artifact)?;
        let value = match (&evaluation.subject, &sheet) {
            (Subject::Windows(_), _) => Losses { windows: values }.perplexity(),
            (Subject::Task(used), Some(sheet)) => {
                100.0 * judge(&values, sheet, used.to_string())?.result.column().value
            }
            (Subject::Task(_), None) => continue,
        };
        all.push((*cell, value));
    }
    Ok(all)
}

fn judge(values: &[f64], sheet: &AnswerKey, label: String) -> Result<TaskScores> {
    let scored = choices::scored(values);
    let scores = scored.iter().map(|of| Score { log_likelihood: of.log_likelihood, greedy: of.greedy });
    let documents = sheet.judge(&scores.collect::<Vec<_>>())?;
    Ok(TaskScores { label, result: sheet.result(&documents)?, documents })
}

impl CellResult {
    /// A cell of which nothing is known but, perhaps, why. `layers` are those of the dense backbone.
    pub fn unmeasured(cell: Cell, layers: usize, failure: Option<String>) -> Self {
        Self {
            cell,
            layers,
            removed: Vec::new(),
            scores: Vec::new(),
            boundaries: Vec::new(),
            perplexity: Vec::new(),
            losses: Vec::new(),
            tasks: Vec::new(),
            seconds: 0.0,
            failure,
            made_from: Vec::new(),
            inputs: BTreeSet::new(),
        }
    }

    /// What a reader has to know of this cell, each thing once.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
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
    /// The cell failed, with its reason.
    pub fn ok(&self) -> Result<&Self> {
        match &self.failure {
            Some(reason) => Err(Error::job("a cell failed").at(self.cell.to_string()).found(reason.clone())),
            None => Ok(self),
        }
    }
}
