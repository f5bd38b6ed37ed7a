//! What a grid file may say. Nothing is checked here but keys and types; meaning is `check`'s business.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::tasks::Bos;

/// The whole file. Every axis takes a single value or a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Schema {
    pub(super) name: Option<String>,
    pub(super) backbones: BTreeMap<String, BackboneEntry>,
    pub(super) corpora: BTreeMap<String, Corpus>,
    #[serde(default)]
    pub(super) tasks: BTreeMap<String, TaskData>,
    pub(super) backbone: Vec<String>,
    pub(super) criterion: Vec<Method>,
    pub(super) depth: Vec<usize>,
    pub(super) recovery: Vec<Method>,
    pub(super) calibration: Vec<CalibrationEntry>,
    pub(super) evaluate: Evaluate,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackboneEntry {
    pub(super) path: PathBuf,
}

/// A text collection and the rule that cuts windows from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corpus {
    /// The file; as a grid holds it, absolute or relative to the current folder.
    pub path: PathBuf,
    /// How its rows are joined and its windows drawn.
    pub rule: String,
    /// Evaluate on at most this many windows, the first ones. Calibration is not bounded by it.
    #[serde(default)]
    pub limit: Option<usize>,
    /// The column or field that holds the text, where it is not the usual one.
    #[serde(default)]
    pub column: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CalibrationEntry {
    pub(super) corpus: String,
    pub(super) sequences: usize,
    pub(super) length: usize,
    #[serde(default)]
    pub(super) seed: u64,
    pub(super) operator_sequences: Option<usize>,
}

/// The data of a multiple-choice task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskData {
    /// A file, or a folder with the task's split in it; as a grid holds it, absolute or relative to the current folder.
    pub path: PathBuf,
    /// Which task it is, where the name it has in the grid does not say so.
    #[serde(default)]
    pub task: Option<String>,
}

/// What every variant is scored on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluate {
    /// Perplexity, protocol `windows`; one column of the table each.
    #[serde(default)]
    pub perplexity: Vec<Perplexity>,
    /// Zero-shot multiple choice; one column of the table each, and one for their average.
    #[serde(default)]
    pub tasks: Vec<TaskUse>,
}

/// One task and the protocol that it is scored under.
#[derive(Debug, Clone, PartialEq, Serialize)]
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

impl<'de> Deserialize<'de> for TaskUse {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TaskUseVisitor)
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
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Map {
            name: String,
            limit: Option<f64>,
            #[serde(default)]
            bos: Bos,
            max_length: Option<usize>,
        }
        let Map { name, limit, bos, max_length } = Map::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(TaskUse { name, limit, bos, max_length })
    }
}

/// Perplexity on one corpus in windows of `length` tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Perplexity {
    pub corpus: String,
    pub length: usize,
}

/// A criterion or a recovery: a name and its options. The grid knows neither; the caller's registry checks both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Method {
    pub name: String,
    pub options: serde_json::Map<String, serde_json::Value>,
}

impl Method {
    /// A method without options.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), options: serde_json::Map::new() }
    }
}

/// `llm-streamline`, or `llm-streamline(cosine=token)`. Options come in the order of their names, whatever their order in
/// the file, so that equal methods have equal labels.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options: Vec<_> = self.options.iter().collect();
        options.sort_by_key(|(name, _)| *name);
        let options: Vec<String> = options
            .into_iter()
            .map(|(name, value)| match value {
                serde_json::Value::String(text) => format!("{name}={text}"),
                other => format!("{name}={other}"),
            })
            .collect();
        f.write_str(&self.name)?;
        if options.is_empty() { Ok(()) } else { write!(f, "({})", options.join(",")) }
    }
}

impl<'de> Deserialize<'de> for Method {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MethodVisitor)
    }
}

struct MethodVisitor;

impl<'de> Visitor<'de> for MethodVisitor {
    type Value = Method;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name, or a map with `name` and options")
    }

    fn visit_str<E>(self, name: &str) -> Result<Method, E> {
        Ok(Method::named(name))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Method, A::Error> {
        let mut name = None;
        let mut options = serde_json::Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "name" {
                name = Some(map.next_value()?);
            } else {
                options.insert(key, map.next_value()?);
            }
        }
        let name = name.ok_or_else(|| de::Error::missing_field("name"))?;
        Ok(Method { name, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_the_options_in_one_order() {
        assert_eq!(Method::named("none").to_string(), "none");
        let mut method = Method::named("m");
        method.options.insert("z".into(), 1.into());
        method.options.insert("a".into(), "token".into());
        assert_eq!(method.to_string(), "m(a=token,z=1)");
    }
}
