//! Evaluations of every variant.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use ghostlab_definitions::task::SEED;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::defined::{Asking, DataEntry, DefinitionEntry, DefinitionUse, GroupUse};
use super::many::{self, Many};
use crate::corpus::PythonRandom;
use crate::error::Result;
pub use crate::metric::PromptName as Latency;
use crate::tasks::Bos;

/// Evaluations of every variant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluate {
    /// Perplexity, protocol `windows`; one column of the table each.
    pub perplexity: Vec<Perplexity>,
    /// Zero-shot multiple choice; one column of the table each, and one for their average.
    pub tasks: Vec<TaskUse>,
    /// Tasks by lm-evaluation-harness' definitions; one column for each metric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub definitions: Vec<DefinitionUse>,
    /// Groups of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupUse>,
    /// How long a pass over a prompt takes; of each prompt the time, the speedup and the memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<Latency>,
    /// Metrics of what is scored that a run shows where they are named, by their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<String>,
}

impl Evaluate {
    /// Returns whether anything is scored: a text, a task, a definition.
    pub fn scores(&self) -> bool {
        !(self.perplexity.is_empty() && self.tasks.is_empty() && self.definitions.is_empty())
    }
}

/// Perplexity on one corpus in windows of `length` tokens.
#[derive(Debug, Clone, Eq, Serialize, Deserialize)]
pub struct Perplexity {
    pub corpus: String,
    pub length: usize,
    /// Whether variants are compared with the dense model too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub damage: bool,
    /// Only some of the windows; no file says so, a search does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<Draw>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A comparison with the dense model adds numbers, but the text is the same, and a grid has each text once.
impl PartialEq for Perplexity {
    fn eq(&self, other: &Self) -> bool {
        (&self.corpus, self.length, self.draw) == (&other.corpus, other.length, other.draw)
    }
}

/// `c4@2048`
impl fmt::Display for Perplexity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.corpus, self.length)?;
        self.draw.map_or(Ok(()), |draw| write!(f, "({draw})"))
    }
}

/// One task and the protocol that it is scored under.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskUse {
    /// A name in [`Grid::tasks`](super::Grid::tasks).
    pub name: String,
    /// Only the first documents: a number, or a fraction below 1.
    pub limit: Option<f64>,
    /// Whether contexts begin with the tokenizer's special tokens.
    pub bos: Bos,
    /// How many tokens the backbone sees; what its config says where the file does not.
    pub max_length: Option<usize>,
    /// Only some of the documents; no file says so, a search does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<Draw>,
}

/// `hellaswag`, or `hellaswag(bos=never,limit=100)`.
impl fmt::Display for TaskUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = Vec::new();
        if self.bos != Bos::default() {
            options.push(format!("bos={}", self.bos));
        }
        options.extend(self.limit.map(|limit| format!("limit={limit}")));
        options.extend(self.max_length.map(|length| format!("max_length={length}")));
        options.extend(self.draw.map(|draw| format!("draw={draw}")));
        f.write_str(&self.name)?;
        if options.is_empty() { Ok(()) } else { write!(f, "({})", options.join(",")) }
    }
}

/// Evaluations of every variant: one or more of `perplexity`, `tasks` and `latency`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EvaluateEntry {
    /// Perplexity of texts in windows; one column of the table for each text and length.
    pub(super) perplexity: Many<PerplexityEntry>,
    /// Zero-shot multiple choice; one column of the table for each task, and one for their average.
    pub(super) tasks: Many<TaskUseEntry>,
    /// Time and memory of a forward pass over a prompt, and of new tokens behind it, all variants of a backbone side by side.
    pub(super) latency: Many<LatencyEntry>,
    /// Further metrics of the texts and tasks that are scored, each in columns of its own: `bits_per_byte`, ….
    pub(super) metrics: Many<String>,
}

/// Prompts: each length with each batch and each count of new tokens.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LatencyEntry {
    /// Tokens of a sequence.
    #[schemars(schema_with = "many::counts")]
    pub(super) length: Many<usize>,
    /// Sequences that are read together; 1 by default.
    #[serde(default)]
    #[schemars(schema_with = "many::counts")]
    pub(super) batch: Many<usize>,
    /// New tokens of each sequence that are decoded behind the prompt, one after the other; none by default.
    #[serde(default)]
    #[schemars(schema_with = "many::counts")]
    pub(super) decode: Many<usize>,
}

/// Perplexity: each corpus with each length.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PerplexityEntry {
    /// Names in `corpora`, or of files `corpora/NAME.yaml`.
    pub(super) corpus: Many<String>,
    /// Tokens of a window.
    #[schemars(schema_with = "many::lengths")]
    pub(super) length: Many<usize>,
    /// Whether each variant's predictions are compared with the dense model's: KL divergence, same likeliest token, ….
    #[serde(default)]
    pub(super) damage: bool,
}

/// A task by its name, or by a map with options; or one or many tasks by a definition.
#[derive(Debug, Clone)]
pub(super) enum TaskUseEntry {
    Known(TaskUse),
    Defined(Box<DefinitionEntry>),
}

/// One task and the protocol that it is scored under; `name` or `definition`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TaskUseMap {
    /// A name in `tasks`, or of a file `tasks/NAME.yaml`.
    name: Option<String>,
    /// A task definition of lm-evaluation-harness: a YAML file of a task or group, a folder of them, or a name in `folder`.
    definition: Option<String>,
    /// Where the task, group or tag `definition` is looked for, and what its groups name.
    folder: Option<PathBuf>,
    /// Where the rows of a definition are: a folder (`SPLIT.jsonl`, `NAME/SPLIT.parquet`, …), a file, or files by split. By
    /// default the hub's data set that it names.
    data: Option<DataEntry>,
    /// Branch, tag or commit of the hub's data set.
    revision: Option<String>,
    /// Whether a program made the rows up.
    #[serde(default)]
    generated: bool,
    /// For a definition: examples before a question; the default is the definition's. A definition that says 0 keeps 0.
    shots: Option<usize>,
    /// Seed for drawing examples; 1234 by default.
    seed: Option<u64>,
    /// Whether the model's chat template is used.
    #[serde(default)]
    chat: bool,
    /// Whether examples are messages of their own in it; true by default.
    multiturn: Option<bool>,
    /// A text before all, the system's message of a chat.
    system: Option<String>,
    /// Only the first documents: a number, or a fraction below 1.
    limit: Option<f64>,
    /// Whether contexts begin with the tokenizer's special tokens.
    #[serde(default)]
    bos: Bos,
    /// How many tokens the backbone sees; by default what its config says.
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
        let name = name.to_string();
        let bos = Bos::default();
        Ok(TaskUseEntry::Known(TaskUse { name, limit: None, bos, max_length: None, draw: None }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TaskUseEntry, A::Error> {
        let task_use = TaskUseMap::deserialize(de::value::MapAccessDeserializer::new(map))?;
        let TaskUseMap { limit, bos, max_length, .. } = task_use;
        match (task_use.name, task_use.definition) {
            (Some(name), None) => {
                let written = [
                    ("folder", task_use.folder.is_some()),
                    ("data", task_use.data.is_some()),
                    ("revision", task_use.revision.is_some()),
                    ("generated", task_use.generated),
                    ("shots", task_use.shots.is_some()),
                    ("seed", task_use.seed.is_some()),
                    ("chat", task_use.chat),
                    ("multiturn", task_use.multiturn.is_some()),
                    ("system", task_use.system.is_some()),
                ];
                match written.into_iter().find(|(_, written)| *written) {
                    Some((key, _)) => {
                        Err(de::Error::custom(format!("`{key}` belongs to `definition`, which is not there")))
                    }
                    None => Ok(TaskUseEntry::Known(TaskUse { name, limit, bos, max_length, draw: None })),
                }
            }
            (None, Some(definition)) => {
                if task_use.multiturn.is_some() && !task_use.chat {
                    return Err(de::Error::custom("`multiturn` belongs to `chat: true`, which is not there"));
                }
                let chat = task_use.chat.then(|| task_use.multiturn.unwrap_or(true));
                let seed = task_use.seed.unwrap_or(SEED);
                let how = Asking { shots: task_use.shots, seed, chat, system: task_use.system, limit, bos, max_length };
                let folder = task_use.folder;
                let data = task_use.data;
                let revision = task_use.revision;
                let generated = task_use.generated;
                let entry = DefinitionEntry { definition, folder, data, revision, generated, how };
                Ok(TaskUseEntry::Defined(Box::new(entry)))
            }
            _ => Err(de::Error::custom("a task has either `name` or `definition`")),
        }
    }
}

impl JsonSchema for TaskUseEntry {
    fn schema_name() -> Cow<'static, str> {
        "TaskUse".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let name = many::task_name(generator);
        json_schema!({"anyOf": [name, generator.subschema_for::<TaskUseMap>()]})
    }
}

/// From which to which place of the order. It is the order of `random.Random(seed).sample(range(n), n)` in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    pub seed: u64,
    /// The first place.
    pub from: usize,
    /// The place behind the last.
    pub to: usize,
}

impl Draw {
    /// Samples indices below `count`, in the order of the draw.
    ///
    /// # Errors
    /// None that a caller could mend.
    pub fn of(&self, count: usize) -> Result<Vec<usize>> {
        let order = PythonRandom::new(self.seed).sample(count, count)?;
        let to = self.to.min(count);
        Ok(order[self.from.min(to)..to].to_vec())
    }

    /// Returns the size of the sample out of `count`.
    pub fn count(&self, count: usize) -> usize {
        self.to.min(count).saturating_sub(self.from)
    }
}

/// `8-16@0`: places and seed.
impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, from, to } = self;
        write!(f, "{from}-{to}@{seed}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_of_one_order_are_all_of_it_and_meet_nowhere() {
        let [a, b, c, none] =
            [(0, 4), (4, 8), (8, 16), (12, 20)].map(|(from, to)| Draw { seed: 7, from, to }.of(10).unwrap());
        // random.Random(7).sample(range(10), 10), Python 3.11.
        assert_eq!([a, b, c].concat(), [5, 2, 6, 9, 0, 7, 4, 1, 3, 8]);
        assert_eq!(Draw { seed: 7, from: 8, to: 16 }.count(10), 2);
        assert!(none.is_empty());
    }
}
