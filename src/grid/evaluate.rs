//! What every variant is scored on.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::many::Many;
use super::references;
use crate::tasks::Bos;

/// What every variant is scored on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluate {
    /// Perplexity, protocol `windows`; one column of the table each.
    pub perplexity: Vec<Perplexity>,
    /// Zero-shot multiple choice; one column of the table each, and one for their average.
    pub tasks: Vec<TaskUse>,
    /// How long a pass over a prompt takes; of each prompt the time, the speedup and the memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<Latency>,
    /// Metrics of what is scored that a run shows where they are named, by their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<String>,
}

/// Perplexity on one corpus in windows of `length` tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Perplexity {
    pub corpus: String,
    pub length: usize,
}

/// `c4@2048`
impl fmt::Display for Perplexity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.corpus, self.length)
    }
}

/// The prompt of a latency: `batch` sequences of `length` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    pub length: usize,
    pub batch: usize,
}

/// `512×4`
impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}", self.length, self.batch)
    }
}

/// One task and the protocol that it is scored under.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskUse {
    /// A name in [`Grid::tasks`](super::Grid::tasks).
    pub name: String,
    /// Only the first documents: so many, or below 1 that part of them.
    pub limit: Option<f64>,
    /// Whether contexts begin with the tokenizer's special tokens.
    pub bos: Bos,
    /// How many tokens the backbone sees; what its config says where the file does not.
    pub max_length: Option<usize>,
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
        f.write_str(&self.name)?;
        if options.is_empty() { Ok(()) } else { write!(f, "({})", options.join(",")) }
    }
}

/// What every variant is scored on: one or more of `perplexity`, `tasks` and `latency`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EvaluateEntry {
    /// Perplexity of texts in windows; one column of the table for each text and length.
    #[serde(default)]
    pub(super) perplexity: Many<PerplexityEntry>,
    /// Zero-shot multiple choice; one column of the table for each task, and one for their average.
    #[serde(default)]
    pub(super) tasks: Many<TaskUseEntry>,
    /// Time and memory of a forward pass over a prompt, all variants of a backbone side by side.
    #[serde(default)]
    pub(super) latency: Many<LatencyEntry>,
    /// Further metrics of the texts and tasks that are scored, each in columns of its own: `bits_per_byte`, ….
    #[serde(default)]
    pub(super) metrics: Many<String>,
}

/// Prompts: each length with each batch.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LatencyEntry {
    /// Tokens of a sequence.
    #[schemars(schema_with = "references::counts")]
    pub(super) length: Many<usize>,
    /// Sequences that are read together; 1 by default.
    #[serde(default)]
    #[schemars(schema_with = "references::counts")]
    pub(super) batch: Many<usize>,
}

/// Perplexity: each corpus with each length.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PerplexityEntry {
    /// Names in `corpora`, or of files `corpora/NAME.yaml`.
    pub(super) corpus: Many<String>,
    /// Tokens of a window.
    #[schemars(schema_with = "references::lengths")]
    pub(super) length: Many<usize>,
}

/// A task by its name, or by a map with options.
#[derive(Debug)]
pub(super) struct TaskUseEntry(pub(super) TaskUse);

/// One task and the protocol that it is scored under.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TaskUseMap {
    /// A name in `tasks`, or of a file `tasks/NAME.yaml`.
    name: String,
    /// Only the first documents: so many, or below 1 that part of them.
    limit: Option<f64>,
    /// Whether contexts begin with the tokenizer's special tokens.
    #[serde(default)]
    bos: Bos,
    /// How many tokens the backbone sees; by default what its config says.
    max_length: Option<usize>,
}

impl<'de> Deserialize<'de> for TaskUseEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TaskUseVisitor).map(Self)
    }
}

struct TaskUseVisitor;

impl<'de> Visitor<'de> for TaskUseVisitor {
    type Value = TaskUse;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a task, or a map with `name` and options")
    }

    fn visit_str<E>(self, name: &str) -> Result<TaskUse, E> {
        Ok(TaskUse { name: name.to_string(), limit: None, bos: Bos::default(), max_length: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TaskUse, A::Error> {
        let TaskUseMap { name, limit, bos, max_length } =
            TaskUseMap::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(TaskUse { name, limit, bos, max_length })
    }
}

impl JsonSchema for TaskUseEntry {
    fn schema_name() -> Cow<'static, str> {
        "TaskUse".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let name = references::task_name(generator);
        json_schema!({"anyOf": [name, generator.subschema_for::<TaskUseMap>()]})
    }
}
