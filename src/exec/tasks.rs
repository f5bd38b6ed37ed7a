//! Multiple-choice tasks in a run: their requests before any weights load, their scores under all variants.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::run::Run;
use super::variant::CellResult;
use crate::corpus::Tokenizer;
use crate::error::{Error, Result};
use crate::evaluate::TaskEncoder;
use crate::evaluate::choices::{self, Choice};
use crate::grid::{Grid, TaskUse};
use crate::model::{Program, Trie};
use crate::tasks::{self, Bos, DocumentResult, Items, Limit, Request, Score, Task, TaskResult};

/// The documents of a grid's tasks, by the grid's name of the task and the limit: the same for all backbones.
pub(super) struct TaskData<'a> {
    by_use: BTreeMap<String, (&'a TaskUse, Items)>,
}

/// A task's requests for one backbone.
pub(super) struct PreparedTask<'a> {
    pub(super) used: &'a TaskUse,
    pub(super) items: &'a Items,
    pub(super) requests: Vec<Request>,
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

impl<'a> TaskData<'a> {
    /// Reads all tasks' documents.
    ///
    /// # Errors
    /// A file that is not the task's, or a document that cannot be asked, with file and row.
    pub(super) fn read(grid: &'a Grid) -> Result<Self> {
        let mut by_use = BTreeMap::new();
        for used in &grid.evaluate.tasks {
            let data = &grid.tasks[&used.name];
            let task = Task::find(data.task.as_deref().unwrap_or(&used.name))?;
            let limit = used.limit.map(Limit::new).transpose()?;
            by_use.insert(used.to_string(), (used, Items::read(task, &data.path, limit)?));
        }
        Ok(Self { by_use })
    }

    /// How each task is scored, in the grid's order.
    pub(super) fn protocols(&self, grid: &Grid) -> Vec<TaskProtocol> {
        let protocol = |used: &TaskUse| {
            let label = used.to_string();
            let items = &self.by_use[&label].1;
            let (documents, original, whole) = (items.documents.len(), items.original, items.whole());
            TaskProtocol { label, task: items.task, bos: used.bos, documents, original, whole }
        };
        grid.evaluate.tasks.iter().map(protocol).collect()
    }

    /// All requests for one backbone, in the grid's order.
    ///
    /// # Errors
    /// A document that cannot be scored, with file, row and choice.
    pub(super) fn requests(
        &'a self,
        grid: &Grid,
        folder: &Path,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<PreparedTask<'a>>> {
        if self.by_use.is_empty() {
            return Ok(Vec::new());
        }
        let config = read_json(&folder.join("config.json"))?;
        let tokenizer_config = read_json(&folder.join("tokenizer_config.json"))?;
        let encoder = TaskEncoder::new(tokenizer, &tokenizer_config, &config)?;
        let length = tasks::max_length(&config, Some(&tokenizer_config))?;
        let prepare = |used: &TaskUse| {
            let (used, items) = &self.by_use[&used.to_string()];
            let requests = tasks::requests(items, &encoder, used.bos, used.max_length.unwrap_or(length))?;
            Ok(PreparedTask { used, items, requests })
        };
        grid.evaluate.tasks.iter().map(prepare).collect()
    }
}

/// A JSON file; null where there is none.
fn read_json(path: &Path) -> Result<Value> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(error) => return Err(Error::io("read", path, &error)),
    };
    serde_json::from_slice(&text).map_err(|error| {
        Error::bad_input("the file is not JSON").at(path.display().to_string()).found(error.to_string())
    })
}

impl PreparedTask<'_> {
    /// What the engine scores: the choices of each document.
    pub(super) fn documents(&self) -> Vec<Vec<Choice<'_>>> {
        self.requests
            .chunk_by(|a, b| a.document == b.document)
            .map(|of_document| {
                of_document
                    .iter()
                    .map(|request| Choice { input: &request.input_ids, continuation: &request.continuation_ids })
                    .collect()
            })
            .collect()
    }
}

impl Run<'_> {
    /// Scores cells on all tasks, sharing what their programs share.
    pub(super) fn score_tasks(&self, cells: &mut [&mut CellResult]) -> Result<()> {
        let programs: Vec<Program> = cells.iter().filter_map(|cell| cell.program.clone()).collect();
        let trie = Trie::new(&programs);
        for (index, task) in self.backbone.tasks.iter().enumerate() {
            let documents = task.documents();
            let load = choices::load(&documents);
            let label = format!("{} on {}", self.backbone.name, task.used);
            self.start(&label, load.tokens, cells.len(), self.cost(&trie, &load).shared);
            let mut seconds = vec![0.0; trie.len()];
            let (batch, progress) = (self.settings.batch_tokens, |tokens| self.advance(tokens));
            let scores =
                choices::score(&self.decoder, &trie, programs.len(), &documents, batch, &mut seconds, progress)?;
            self.finish();
            for ((cell, scores), share) in cells.iter_mut().zip(scores).zip(trie.shares(&seconds)) {
                cell.seconds += share;
                let scores: Vec<Score> = scores
                    .into_iter()
                    .flatten()
                    .map(|scored| Score { log_likelihood: scored.log_likelihood, greedy: scored.greedy })
                    .collect();
                let documents = tasks::document_results(task.items, &task.requests, &scores)?;
                let result = TaskResult::of(task.items.task, task.items.original, &documents)?;
                cell.tasks[index] = Some(TaskScores { label: task.used.to_string(), result, documents });
            }
        }
        Ok(())
    }
}

impl CellResult {
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
}
