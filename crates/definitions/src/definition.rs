//! Task definitions. Unsupported keys are rejected with an error that names the key, file and line.

mod fewshot_config;
mod field_reader;
mod key_reader;

use ghostlab_core::error::Result;
use ghostlab_core::tasks::NonFiniteScore;

use crate::filter::Pipeline;
use crate::metric::{Metric, Output};
use crate::prepared::RowPreparation;
use crate::row::{self, Column};
use crate::template::Template;
use crate::value::Value;
use crate::yaml::{Node, SourceLocation, value_error};
use key_reader::KeyReader;

/// Dataset on the Hub or in a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Data {
    /// `owner/name`, or a builder name such as `json`.
    pub path: String,
    /// Name of the dataset's configuration, if any.
    pub name: Option<String>,
    /// Other arguments of `datasets.load_dataset`, such as `data_files` and `revision`.
    pub options: Value,
    /// Columns that every row must have. Empty if the definition declares none.
    pub fields: Vec<Column>,
}

impl Data {
    /// Returns the columns to read, or `None` to read all columns.
    pub fn columns(&self) -> Option<Vec<String>> {
        (!self.fields.is_empty()).then(|| row::top_level_names(&self.fields))
    }
}

/// Template or constant that defines a field of each document, such as its question.
#[derive(Debug, Clone)]
pub enum Field {
    /// Compiled template and its source. If the source is a column name, the field is the unrendered value in that
    /// column.
    Text(Box<Template>, String),
    /// Constant value.
    Fixed(Value),
}

/// Few-shot settings.
#[derive(Debug, Clone)]
pub struct Examples {
    /// Whether to use the first examples of the split instead of a random sample.
    pub first: bool,
    /// Split to draw examples from. `None` selects `samples`, or else a default split.
    pub split: Option<String>,
    /// Examples listed in the definition, used only if `split` is `None`.
    pub samples: Option<Vec<Value>>,
    /// Question in an example.
    pub text: Field,
    /// Answer in an example.
    pub target: Field,
    /// Choices in an example.
    pub choices: Option<Field>,
    /// Start of the answer (`gen_prefix`).
    pub prefix: Option<Field>,
    /// Separator between the question and the answer.
    pub target_delimiter: String,
    /// Separator after each example.
    pub delimiter: String,
}

#[derive(Debug, Clone)]
pub struct Definition {
    pub name: String,
    pub alias: String,
    /// Version from `metadata`, or `Yaml` if there is none, as in lm-evaluation-harness.
    pub version: String,
    pub data: Data,
    /// Name of the training split.
    pub training: Option<String>,
    /// Name of the validation split, which is evaluated if there is no test split.
    pub validation: Option<String>,
    /// Name of the test split.
    pub test: Option<String>,
    /// Row filter: pairs of a column and its allowed values. A row is kept if it matches all pairs.
    pub keep_rows: Vec<(String, Vec<Value>)>,
    /// Built-in hook that adds columns to each row.
    pub prepare: Option<RowPreparation>,
    pub output: Output,
    /// Field that contains the question.
    pub text: Field,
    /// Field that contains the answer.
    pub target: Field,
    pub choices: Option<Field>,
    /// Start of the answer, which ends the prompt (`gen_prefix`).
    pub prefix: Option<Field>,
    /// Text before the few-shot examples.
    pub description: Option<Field>,
    /// Separator between the question and the answer.
    pub target_delimiter: String,
    pub examples: Examples,
    /// Number of few-shot examples, if the definition specifies it.
    pub shots: Option<usize>,
    /// Separator between the system text and the description.
    pub fewshot_delimiter: String,
    /// Generation arguments: stop sequences, length limits and sampling parameters.
    pub generation: Value,
    /// Number of times that each request is sent.
    pub repeats: usize,
    /// Filter pipelines that are applied to answers before scoring.
    pub filters: Vec<Pipeline>,
    pub metrics: Vec<Metric>,
    /// Rule for documents with a non-finite score. Only built-in tasks deviate from lm-evaluation-harness.
    pub non_finite: NonFiniteScore,
    pub location: SourceLocation,
    /// All keys and values, with includes and overrides resolved.
    pub(crate) source: Value,
}

impl Definition {
    /// Returns the number of few-shot examples. `requested` overrides the definition, unless the definition sets 0.
    pub fn shots(&self, requested: Option<usize>) -> usize {
        match self.shots {
            Some(0) => 0,
            defined => requested.or(defined).unwrap_or(0),
        }
    }

    pub fn evaluated_split(&self) -> &str {
        self.test.as_deref().or(self.validation.as_deref()).unwrap_or_default()
    }

    /// Returns the split to draw examples from, or `None` if the definition lists its examples.
    pub fn example_split(&self) -> Option<&str> {
        let Examples { split, samples, .. } = &self.examples;
        match (split, samples) {
            (Some(split), _) => Some(split),
            (None, Some(_)) => None,
            (None, None) => self.training.as_deref().or(self.validation.as_deref()).or(self.test.as_deref()),
        }
    }

    /// Parses a definition whose includes are already resolved.
    ///
    /// # Errors
    /// Fails if a key is unknown or its value is unsupported.
    pub fn read(node: &Node) -> Result<Self> {
        let name = node.get("task").and_then(Node::text).map(str::to_owned);
        let name = name.ok_or_else(|| value_error("task", "a name", node.get("task").unwrap_or(node)))?;
        let checked = node.check_finite("").and_then(|()| KeyReader { node }.read_definition(name.clone()));
        checked.map_err(|error| error.at(format!("task {name}")))
    }
}
