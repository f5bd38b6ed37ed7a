//! Operations on untrusted inputs that are tried in a child process.

use std::fs;
use std::path::PathBuf;

use ghostlab_definitions::generation::GenerationConfig;
use ghostlab_definitions::metric::Output;
use ghostlab_definitions::{ChatTemplate, Definition, FileRows, Library, PromptSettings, Task};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::tasks::DocumentLimit;

/// Operation on untrusted inputs that a child process tries first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// Reads and compiles the definitions that a grid entry refers to ([`Library::find_at`]).
    Definitions { path: PathBuf, name: String, folder: Option<PathBuf> },
    /// Compiles the chat template in a model's folder.
    Chat { folder: PathBuf },
    /// Reads the rows of a definition, and renders all requests and answers.
    Task(Box<TaskProbe>),
}

/// Task definition with its rows and prompt settings.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaskProbe {
    pub definition: Definition,
    pub rows: FileRows,
    /// Source of the rows, for the error message if the child dies without a report.
    pub origin: String,
    pub limit: Option<f64>,
    pub shots: Option<usize>,
    pub seed: u64,
    pub system: Option<String>,
    /// Folder of the model with the chat template, and whether few-shot examples are separate messages. `None` without
    /// a chat template.
    pub chat: Option<(PathBuf, bool)>,
}

impl Probe {
    pub(super) fn run(&self) -> Result<()> {
        match self {
            Self::Definitions { path, name, folder } => {
                let Some(selected) = Library::find_at(path, name, folder.as_deref()) else { return Ok(()) };
                selected?.tasks.iter().try_for_each(check_generation)
            }
            Self::Chat { folder } => ChatTemplate::from_folder(folder).map(drop),
            Self::Task(probe) => probe.run(),
        }
    }

    fn task(&self) -> Option<&TaskProbe> {
        match self {
            Self::Task(probe) => Some(probe),
            Self::Definitions { .. } | Self::Chat { .. } => None,
        }
    }

    /// Returns the number of threads to use. Only rows are processed in parallel.
    pub(super) fn threads(&self) -> usize {
        self.task().map_or(1, |_| rayon::current_num_threads())
    }

    /// Returns the total size of the row files in bytes.
    pub(super) fn file_bytes(&self) -> u64 {
        self.task().map_or(0, |probe| probe.rows.splits.values().flatten().map(file_size).sum())
    }

    /// Returns the source of the input, for the error message if the child dies without a report.
    pub(super) fn origin(&self) -> String {
        match self {
            Self::Definitions { path, .. } | Self::Chat { folder: path } => path.display().to_string(),
            Self::Task(probe) => probe.origin.clone(),
        }
    }

    pub(super) fn subject(&self) -> Option<String> {
        self.task().map(|probe| format!("task {}", probe.definition.name))
    }
}

/// Checks the generation settings of a definition, as a grid does.
fn check_generation(definition: &Definition) -> Result<()> {
    match definition.output {
        Output::Generate => GenerationConfig::read(&definition.generation).map(drop),
        Output::MultipleChoice | Output::LogLikelihood | Output::Rolling => Ok(()),
    }
}

fn file_size(file: &PathBuf) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

impl TaskProbe {
    fn run(&self) -> Result<()> {
        let limit = self.limit.map(DocumentLimit::new).transpose()?;
        let task = Task::with_limit(self.definition.clone(), &self.rows, limit)?;
        let chat = self.chat.as_ref().map(|(folder, _)| ChatTemplate::from_folder(folder)).transpose()?;
        let settings = PromptSettings {
            shots: self.shots,
            seed: self.seed,
            system: self.system.clone(),
            chat: chat.as_ref(),
            multiturn: self.chat.as_ref().is_none_or(|(_, multiturn)| *multiturn),
        };
        task.dry_run(&self.rows, &settings)
    }
}
