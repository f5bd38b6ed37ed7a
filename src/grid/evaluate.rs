//! Evaluations that are run on every variant (dense or pruned model) of a grid.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use ghostlab_definitions::task::DEFAULT_FEWSHOT_SEED;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::defined_tasks::{DataEntry, DefinitionEntry, GroupUse, TaskUseEntry};
use super::draw::Draw;
use super::eval_task::{EvalTask, TaskSettings};
use super::one_or_many::{self, OneOrMany};
use crate::error::Result;
pub use crate::metric::PromptName as Latency;
use crate::tasks::Bos;

/// Evaluations that are run on every variant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluate {
    /// Perplexities over windows of fixed length. Each one is a column in the table.
    pub perplexity: Vec<Perplexity>,
    /// Built-in tasks, followed by user-defined tasks. Tables have a column for each built-in task and one for
    /// their average. A user-defined task has a column for each of its metrics.
    #[serde(flatten, with = "super::eval_task::lists")]
    pub tasks: Vec<EvalTask>,
    /// Groups of tasks that have aggregate scores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupUse>,
    /// Prompts to time. Each adds columns for time, speedup and memory to the tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<Latency>,
    /// Names of optional metrics to include in the tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<String>,
}

impl Evaluate {
    /// Returns whether any text or task is scored.
    pub fn has_scores(&self) -> bool {
        !(self.perplexity.is_empty() && self.tasks.is_empty())
    }

    /// Iterates over the built-in tasks.
    pub fn builtin(&self) -> impl Iterator<Item = &EvalTask> {
        self.tasks.iter().filter(|task| !task.defined)
    }

    /// Iterates over the tasks that are given by definitions.
    pub fn defined(&self) -> impl Iterator<Item = &EvalTask> {
        self.tasks.iter().filter(|task| task.defined)
    }
}

/// Perplexity of one corpus, measured in windows of `length` tokens.
#[derive(Debug, Clone, Eq, Serialize, Deserialize)]
pub struct Perplexity {
    pub corpus: String,
    pub length: usize,
    /// Whether to also compute metrics that compare each variant with the dense model.
    #[serde(default, skip_serializing_if = "is_false")]
    pub damage: bool,
    /// Subset of the windows. Set only by a search, never by a grid file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<Draw>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Ignores `damage`, which only adds metrics. Two entries for the same text and length are duplicates in a grid.
impl PartialEq for Perplexity {
    fn eq(&self, other: &Self) -> bool {
        (&self.corpus, self.length, self.draw) == (&other.corpus, other.length, other.draw)
    }
}

/// Formats the corpus, the window length and the subset, such as `c4@2048` or `c4@2048(8-16@0)`.
impl fmt::Display for Perplexity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.corpus, self.length)?;
        self.draw.map_or(Ok(()), |draw| write!(f, "({draw})"))
    }
}

/// Evaluations of every variant: one or more of `perplexity`, `tasks` and `latency`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EvaluateEntry {
    /// Perplexity for each text and length.
    pub(super) perplexity: OneOrMany<PerplexityEntry>,
    /// Multiple-choice tasks with their average, and tasks of lm-evaluation-harness.
    pub(super) tasks: OneOrMany<TaskUseEntry>,
    /// Time and memory of prompts and decoding.
    pub(super) latency: OneOrMany<LatencyEntry>,
    /// Additional columns. Savings such as `parameters_removed` are in percent.
    #[schemars(schema_with = "one_or_many::metrics_schema")]
    pub(super) metrics: OneOrMany<String>,
}

/// Prompts to time: every combination of length, batch and number of new tokens.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LatencyEntry {
    /// Tokens per sequence.
    #[schemars(schema_with = "one_or_many::counts_schema")]
    pub(super) length: OneOrMany<usize>,
    /// Sequences per batch.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::counts_schema")]
    #[schemars(extend("default" = 1))]
    pub(super) batch: OneOrMany<usize>,
    /// New tokens per sequence; none by default.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::counts_schema")]
    pub(super) decode: OneOrMany<usize>,
}

/// Perplexity on each corpus at each length.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PerplexityEntry {
    /// Names in `corpora`.
    pub(super) corpus: OneOrMany<String>,
    /// Tokens per window.
    #[schemars(schema_with = "one_or_many::lengths_schema")]
    pub(super) length: OneOrMany<usize>,
    /// Whether to compare variants with the dense model.
    #[serde(default)]
    pub(super) damage: bool,
}

/// Task and the protocol by which it is scored. Requires either `name` or `definition`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TaskUseMap {
    /// Name in `tasks`, instead of `definition`.
    name: Option<String>,
    /// YAML file of a task or group, folder of such files, or name in `folder`.
    definition: Option<String>,
    /// Folder in which to look up names; that of the definition by default.
    folder: Option<PathBuf>,
    /// Rows: folder, file, or files by split; the definition's dataset by default.
    data: Option<DataEntry>,
    /// Revision of the dataset, which is used if `data` is missing.
    revision: Option<String>,
    /// Whether the rows are synthetic.
    #[serde(default)]
    generated: bool,
    /// Number of few-shot examples, unless the definition has 0; the definition's by default.
    shots: Option<usize>,
    /// Seed for drawing few-shot examples.
    #[schemars(extend("default" = TaskSettings::default().seed))]
    seed: Option<u64>,
    /// Whether to apply the model's chat template.
    #[serde(default)]
    chat: bool,
    /// Whether few-shot examples are separate messages.
    #[schemars(extend("default" = true))]
    multiturn: Option<bool>,
    /// System message, or text before the prompt.
    system: Option<String>,
    /// Number of leading documents, or fraction below 1.
    limit: Option<f64>,
    /// Whether contexts begin with special tokens.
    #[serde(default)]
    bos: Bos,
    /// Context length in tokens; the model's by default.
    max_length: Option<usize>,
}

impl<'de> Deserialize<'de> for TaskUseEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TaskUseVisitor)
    }
}

struct TaskUseVisitor;

impl<'de> Visitor<'de> for TaskUseVisitor {
    type Value = TaskUseEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a task, or a map with `name` or `definition` and options")
    }

    fn visit_str<E>(self, name: &str) -> Result<TaskUseEntry, E> {
        Ok(TaskUseEntry { name: name.to_owned(), how: TaskSettings::default(), definition: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TaskUseEntry, A::Error> {
        let TaskUseMap {
            name,
            definition,
            folder,
            data,
            revision,
            generated,
            shots,
            seed,
            chat,
            multiturn,
            system,
            limit,
            bos,
            max_length,
        } = TaskUseMap::deserialize(de::value::MapAccessDeserializer::new(map))?;
        let (name, definition) = match (name, definition) {
            (Some(name), None) => {
                let written = [
                    ("folder", folder.is_some()),
                    ("data", data.is_some()),
                    ("revision", revision.is_some()),
                    ("generated", generated),
                    ("shots", shots.is_some()),
                    ("seed", seed.is_some()),
                    ("chat", chat),
                    ("multiturn", multiturn.is_some()),
                    ("system", system.is_some()),
                ];
                if let Some((key, _)) = written.into_iter().find(|(_, written)| *written) {
                    return Err(de::Error::custom(format!("`{key}` requires `definition`")));
                }
                (name, None)
            }
            (None, Some(_)) if multiturn.is_some() && !chat => {
                return Err(de::Error::custom("`multiturn` requires `chat: true`"));
            }
            (None, Some(definition)) => (definition, Some(DefinitionEntry { folder, data, revision, generated })),
            _ => return Err(de::Error::custom("a task needs either `name` or `definition`")),
        };
        let chat = chat.then(|| multiturn.unwrap_or(true));
        let seed = seed.unwrap_or(DEFAULT_FEWSHOT_SEED);
        let how = TaskSettings { shots, seed, chat, system, limit, bos, max_length, draw: None };
        Ok(TaskUseEntry { name, how, definition })
    }
}

impl JsonSchema for TaskUseEntry {
    fn schema_name() -> Cow<'static, str> {
        "TaskUse".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let name = one_or_many::task_name_schema(generator);
        json_schema!({"anyOf": [name, generator.subschema_for::<TaskUseMap>()]})
    }
}
