//! Parts of a definition that determine its requests and its scores, for use in cache keys. Names and paths are
//! excluded.

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

use ghostlab_core::error::Error;

use crate::definition::Definition;
use crate::literal::literal;
use crate::metric::Kind;
use crate::value::Value;
use crate::yaml::{Node, SourceLocation, Tree};

/// Keys that affect neither requests nor scores: names, data locations and row checks. Also contains `repeats`, which
/// [`Definition::request_keys`] adds, and `num_fewshot`, which callers can override.
const IGNORED_KEYS: [&str; 15] = [
    "task",
    "task_alias",
    "tag",
    "group",
    "task_list",
    "metadata",
    "should_decontaminate",
    "doc_to_decontamination_query",
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "columns",
    "unsafe_code",
    "num_fewshot",
    "repeats",
];
/// Keys that determine how answers are scored.
const SCORING_KEYS: [&str; 2] = ["metric_list", "filter_list"];

impl Definition {
    /// Returns the keys that determine the requests, with their values, as a Python literal. For the same rows and
    /// number of few-shot examples, definitions with equal literals produce equal requests.
    pub fn request_keys(&self) -> String {
        let scores_without_context = self.metrics.iter().any(|metric| metric.kind == Kind::AccMutualInfo);
        let mut all = self.select_keys(|key| !IGNORED_KEYS.contains(&key) && !SCORING_KEYS.contains(&key));
        all.set("repeats", Value::Int(i64::try_from(self.repeats).unwrap_or(i64::MAX)));
        if scores_without_context {
            all.set("acc_mutual_info", Value::Bool(true));
        }
        all.repr()
    }

    /// Returns all keys and values, without their files and lines.
    pub fn plain_value(&self) -> &Value {
        &self.source
    }

    /// Returns the keys that determine how answers are scored, with their values, as a Python literal.
    pub fn scoring_keys(&self) -> String {
        self.select_keys(|key| SCORING_KEYS.contains(&key)).repr()
    }

    /// Returns the keys that `keep` accepts and their values, sorted by key. Omits keys whose value is null.
    fn select_keys(&self, keep: impl Fn(&str) -> bool) -> Value {
        let Value::Map(pairs) = &self.source else { return Value::None };
        let mut pairs: Vec<(Value, Value)> = pairs
            .iter()
            .filter(|(key, value)| key.as_text().is_some_and(&keep) && *value != Value::None)
            .cloned()
            .collect();
        pairs.sort_by_key(|(key, _)| key.text());
        Value::Map(pairs)
    }
}

impl PartialEq for Definition {
    /// Compares keys and values. Ignores the files and lines in which they are defined.
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SerializedDefinition {
    file: String,
    line: usize,
    /// Keys and values of the definition, written as a Python literal because JSON keys cannot be numbers.
    #[serde(rename = "says")]
    source: String,
}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let SourceLocation { file, line } = &self.location;
        SerializedDefinition { file: file.to_string(), line: *line, source: self.source.repr() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Definition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let SerializedDefinition { file, line, source } = SerializedDefinition::deserialize(deserializer)?;
        let location = SourceLocation { file: file.as_str().into(), line };
        let value = literal(&source).ok_or_else(|| Error::bad_input("invalid stored task definition").at(&location));
        let read = value.and_then(|value| Self::read(&to_node(value, &location)));
        read.map_err(|error| de::Error::custom(error.one_line()))
    }
}

fn to_node(value: Value, location: &SourceLocation) -> Node {
    let tree = match value {
        Value::List(items) => Tree::List(items.into_iter().map(|item| to_node(item, location)).collect()),
        Value::Map(pairs) => Tree::Map(pairs.into_iter().map(|(key, value)| (key, to_node(value, location))).collect()),
        other => Tree::Scalar(other),
    };
    Node { tree, location: location.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::parse;

    fn read(text: &str) -> Definition {
        Definition::read(&parse(text, "a.yaml").unwrap()).unwrap()
    }

    const TEXT: &str = "task: t\ndataset_path: d\ntest_split: test\noutput_type: multiple_choice\n\
        doc_to_text: \"{{q}}\\n'\\\"\"\ndoc_to_target: 0\ndoc_to_choice: {0: a, 1: b}\nkeep_rows: {s: [1, x]}\n";

    #[test]
    fn definition_round_trips_through_json() {
        let one = read(TEXT);
        let again: Definition = serde_json::from_str(&serde_json::to_string(&one).unwrap()).unwrap();
        assert_eq!(
            (again.request_keys(), again.scoring_keys(), again.location.to_string()),
            (one.request_keys(), one.scoring_keys(), "a.yaml:1".into())
        );
        assert_eq!(one, again);
        assert_eq!(again.keep_rows, one.keep_rows);
    }

    #[test]
    fn request_keys_depend_on_texts_but_not_on_names() {
        let one = read(TEXT);
        for other in ["task_alias: other\n", "metric_list: [{metric: acc}]\n", "num_fewshot: 3\n", "dataset_name: b\n"]
        {
            assert_eq!(read(&format!("{TEXT}{other}")).request_keys(), one.request_keys(), "{other}");
        }
        for other in ["metric_list: [{metric: acc_mutual_info}]\n", "description: d\n", "target_delimiter: ''\n"] {
            assert_ne!(read(&format!("{TEXT}{other}")).request_keys(), one.request_keys(), "{other}");
        }
        assert_ne!(read(&format!("{TEXT}metric_list: [{{metric: acc}}]\n")).scoring_keys(), one.scoring_keys());
    }
}
