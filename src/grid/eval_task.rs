//! Evaluated task: its settings, its serialized forms, its definition, and its rows.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use ghostlab_definitions::metric::Output;
use ghostlab_definitions::task::DEFAULT_FEWSHOT_SEED;
use ghostlab_definitions::{Definition, FileRows, builtin};
use serde::{Deserialize, Serialize};

use super::Grid;
use super::draw::Draw;
use super::input::HubSource;
use crate::error::Result;
use crate::files::sha256;
use crate::sandbox::{Probe, TaskProbe};
use crate::tasks::{Bos, Task};

/// Settings for the evaluation of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSettings {
    /// Number of few-shot examples. Defaults to the number in the definition. A definition with 0 shots always uses 0.
    pub shots: Option<usize>,
    /// Seed for drawing the few-shot examples.
    pub seed: u64,
    /// Whether few-shot examples are separate messages in the model's chat template. `None` if no chat template is
    /// used.
    pub chat: Option<bool>,
    /// Text before the prompt. With a chat template, this is the system message.
    pub system: Option<String>,
    /// Limit on the number of documents: a count from the start, or a fraction below 1.
    pub limit: Option<f64>,
    /// Whether contexts begin with the tokenizer's special tokens.
    pub bos: Bos,
    /// Context length in tokens. Defaults to the length in the backbone's config.
    pub max_length: Option<usize>,
    /// Subset of the documents. Set only by a search, never by a grid file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<Draw>,
}

impl Default for TaskSettings {
    fn default() -> Self {
        let bos = Bos::default();
        Self {
            shots: None,
            seed: DEFAULT_FEWSHOT_SEED,
            chat: None,
            system: None,
            limit: None,
            bos,
            max_length: None,
            draw: None,
        }
    }
}

impl TaskSettings {
    /// Returns the settings without the document limit and subset, which metric IDs omit.
    #[must_use]
    pub fn without_extent(&self) -> Self {
        Self { limit: None, draw: None, ..self.clone() }
    }
}

/// Formats the settings that differ from the defaults, such as `(shots=5,chat)`.
impl fmt::Display for TaskSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options: Vec<String> = Vec::new();
        options.extend(self.shots.map(|shots| format!("shots={shots}")));
        options.extend((self.seed != DEFAULT_FEWSHOT_SEED).then(|| format!("seed={}", self.seed)));
        options.extend(self.chat.map(|multiturn| if multiturn { "chat" } else { "chat=one-turn" }.to_owned()));
        // System prompts can be long, so they are identified by a hash.
        options.extend(self.system.as_ref().map(|text| format!("system={}", &sha256::of_bytes(text)[..8])));
        options.extend((self.bos != Bos::default()).then(|| format!("bos={}", self.bos)));
        options.extend(self.limit.map(|limit| format!("limit={limit}")));
        options.extend(self.max_length.map(|length| format!("max_length={length}")));
        options.extend(self.draw.map(|draw| format!("draw={draw}")));
        if options.is_empty() { Ok(()) } else { write!(f, "({})", options.join(",")) }
    }
}

/// Task to evaluate, with its settings. The task is built in or given by an lm-evaluation-harness definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenTask", into = "WrittenTask")]
pub struct EvalTask {
    /// Name in [`Grid::tasks`](super::Grid::tasks) or in [`Grid::definitions`](super::Grid::definitions).
    pub name: String,
    pub how: TaskSettings,
    /// Whether the task is given by a definition rather than built in.
    pub defined: bool,
}

/// Formats the task as `hellaswag`, `hellaswag(bos=never,limit=100)` or `mmlu_anatomy(shots=5)`.
impl fmt::Display for EvalTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.how)
    }
}

/// Serialized form of [`EvalTask`]. A built-in task has no prompt settings.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenTask {
    Defined {
        name: String,
        how: TaskSettings,
    },
    Builtin {
        name: String,
        limit: Option<f64>,
        bos: Bos,
        max_length: Option<usize>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        draw: Option<Draw>,
    },
}

impl From<WrittenTask> for EvalTask {
    fn from(written: WrittenTask) -> Self {
        match written {
            WrittenTask::Defined { name, how } => Self { name, how, defined: true },
            WrittenTask::Builtin { name, limit, bos, max_length, draw } => Self {
                name,
                how: TaskSettings { limit, bos, max_length, draw, ..TaskSettings::default() },
                defined: false,
            },
        }
    }
}

impl From<EvalTask> for WrittenTask {
    fn from(EvalTask { name, how, defined }: EvalTask) -> Self {
        if defined {
            return Self::Defined { name, how };
        }
        let TaskSettings { limit, bos, max_length, draw, .. } = how;
        Self::Builtin { name, limit, bos, max_length, draw }
    }
}

/// Serializes the built-in tasks and the user-defined tasks as two separate lists.
pub(super) mod lists {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::EvalTask;

    #[derive(Serialize, Deserialize)]
    struct TaskLists<T> {
        tasks: Vec<T>,
        #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
        definitions: Vec<T>,
    }

    pub(in crate::grid) fn serialize<S: Serializer>(all: &[EvalTask], serializer: S) -> Result<S::Ok, S::Error> {
        let (definitions, tasks) = all.iter().partition(|task| task.defined);
        TaskLists::<&EvalTask> { tasks, definitions }.serialize(serializer)
    }

    pub(in crate::grid) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<EvalTask>, D::Error> {
        let TaskLists { mut tasks, definitions } = TaskLists::deserialize(deserializer)?;
        tasks.extend(definitions);
        Ok(tasks)
    }
}

/// Definition of a task, and the location of its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskData {
    #[serde(flatten)]
    pub source: TaskSource,
    /// Repository on the hub. Also set if a local copy is used instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubSource>,
    /// Whether the data is synthetic. Synthetic data never counts as the published split, whatever its size.
    pub generated: bool,
}

/// Built-in task or definition, with its row files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TaskSource {
    Builtin {
        task: &'static Task,
        /// File, or directory that contains the task's split. The path is absolute or relative to the current
        /// directory.
        #[serde(serialize_with = "crate::files::serialize_path::one")]
        path: PathBuf,
    },
    Defined {
        definition: Box<Definition>,
        /// Files for the splits in use.
        rows: FileRows,
    },
}

impl TaskData {
    /// Returns the built-in task, or `None` if the task is given by a definition.
    pub fn builtin(&self) -> Option<&'static Task> {
        match self.source {
            TaskSource::Builtin { task, .. } => Some(task),
            TaskSource::Defined { .. } => None,
        }
    }

    /// Returns the definition of the task.
    ///
    /// # Errors
    /// Fails only if a built-in definition is invalid.
    pub fn definition(&self) -> Result<&Definition> {
        match &self.source {
            TaskSource::Builtin { task, .. } => builtin::definition(task),
            TaskSource::Defined { definition, .. } => Ok(definition),
        }
    }

    /// Returns whether the model answers the task by generating text.
    pub fn is_generative(&self) -> bool {
        self.definition().is_ok_and(|definition| definition.output == Output::Generate)
    }

    /// Returns the files that contain the rows.
    ///
    /// # Errors
    /// Fails if the files of a built-in task's split are missing.
    pub fn rows(&self) -> Result<Cow<'_, FileRows>> {
        match &self.source {
            TaskSource::Builtin { task, path } => builtin::files(task, path).map(Cow::Owned),
            TaskSource::Defined { rows, .. } => Ok(Cow::Borrowed(rows)),
        }
    }

    /// Returns the paths of the data files, or the path of their directory.
    pub fn paths(&self) -> Vec<&PathBuf> {
        match &self.source {
            TaskSource::Builtin { path, .. } => vec![path],
            TaskSource::Defined { rows, .. } => rows.splits.values().flatten().collect(),
        }
    }

    /// Returns mutable references to the paths that [`TaskData::paths`] returns.
    pub fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        match &mut self.source {
            TaskSource::Builtin { path, .. } => vec![path],
            TaskSource::Defined { rows, .. } => rows.splits.values_mut().flatten().collect(),
        }
    }

    /// Returns a probe that reads the rows and renders the prompts with the settings `how`. `backbone` is the folder
    /// that contains the chat template.
    ///
    /// # Errors
    /// Fails in the same cases as [`TaskData::rows`].
    pub fn probe(&self, how: &TaskSettings, backbone: &Path) -> Result<Probe> {
        let definition = self.definition()?.clone();
        let rows = self.rows()?.into_owned();
        let origin = match &self.source {
            TaskSource::Builtin { path, .. } => path.display().to_string(),
            TaskSource::Defined { .. } => format!("task {}, {}", definition.name, definition.location),
        };
        let TaskSettings { shots, seed, limit, ref system, chat, .. } = *how;
        let system = system.clone();
        let chat = chat.map(|multiturn| (backbone.to_owned(), multiturn));
        Ok(Probe::Task(Box::new(TaskProbe { definition, rows, origin, limit, shots, seed, system, chat })))
    }
}

impl Grid {
    /// Returns the definition and rows of a task.
    pub fn task(&self, task: &EvalTask) -> &TaskData {
        if task.defined { &self.definitions[&task.name] } else { &self.tasks[&task.name] }
    }

    /// Iterates over the names and data of all tasks.
    pub fn task_data(&self) -> impl Iterator<Item = (&String, &TaskData)> {
        self.tasks.iter().chain(&self.definitions)
    }
}
