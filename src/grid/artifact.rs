//! How a grid becomes a table or figure of the paper: the key `artifact` of an artifact's file.
//!
//! A description, not code: rows, columns, grouping and metrics. The cells come from the grid in the same file.

use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;

use super::node::{Value, YamlNode};
use super::yaml::{self, FileShape};
use super::{many, typed};
use crate::error::{Error, Result};

/// A table or a figure of the paper.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Title in one line.
    pub title: String,
    /// The paper's caption, shortened.
    pub caption: Option<String>,
    /// Where the paper says the same under another name: `tableA3` is `table4`.
    pub also: Option<String>,
    /// A table of numbers.
    pub table: Option<TableEntry>,
    /// A figure.
    pub figure: Option<FigureEntry>,
    /// A table of what the program knows by name, without a grid.
    pub list: Option<ListEntry>,
    /// Searches over the grid's cells (its key `search`), compared with another artifact's best rows.
    pub races: Option<RacesEntry>,
    /// The rows of such a list that the paper's table has, by name and in its order: they alone are in the LaTeX form.
    #[serde(default)]
    pub in_paper: Vec<String>,
    /// How far a value may be from the paper's.
    #[serde(default)]
    pub tolerance: Tolerance,
}

/// Comparison of a search.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RacesEntry {
    /// The artifact that scores the same cells on all items.
    #[serde(rename = "beside")]
    pub table: String,
    /// Metrics of the search, by that artifact's names.
    pub metrics: Vec<String>,
}

/// A table: rows by backbone and method, columns by metric.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TableEntry {
    /// The columns before the numbers.
    pub lead: Vec<Lead>,
    /// Whether each backbone begins with its dense row.
    #[serde(default)]
    pub dense: bool,
    /// The rows of a block, in this order.
    pub rows: Vec<RowEntry>,
    /// Repeats the columns for each depth. Otherwise the rows are repeated for each depth.
    #[serde(default)]
    pub across_depths: bool,
    /// The metrics of the columns, in this order.
    pub metrics: Vec<String>,
    /// Options of methods that are part of their names in the table, such as `solver`. Others are not shown.
    #[serde(default)]
    pub named_options: Vec<String>,
    /// The recovery that every other one of the same selection is tested against, item by item. Otherwise ours is tested
    /// against the best other.
    pub against: Option<String>,
    /// Shows one row for all cells that differ in this alone: the mean, the standard deviation and of how many, with a figure
    /// of each.
    pub over: Option<Over>,
    /// The table of the paper whose order of methods is held against the order under each seed.
    pub order_of: Option<String>,
    /// Decimals of all numbers.
    #[serde(default = "two")]
    pub decimals: usize,
    /// How the paper prints it, where the LaTeX form differs from the others.
    #[serde(default)]
    pub print: PrintEntry,
}

/// Layout of a table printed next to the paper's. Omitted settings are as in the table's other forms.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PrintEntry {
    /// The columns before the numbers, in this order.
    pub lead: Option<Vec<Lead>>,
    /// Metrics that the paper's table does not have: they have a file of their own.
    pub beyond: Vec<String>,
    /// Metrics whose heads have an arrow to the better side; by default all that have one.
    pub arrows: Option<Vec<String>>,
    /// The rows that are shaded.
    pub shade: Shade,
    /// Shades only rows whose operators are computed from this many sequences.
    pub shade_sequences: Option<usize>,
    /// Turned round: a row for each prompt, a column for each variant.
    pub prompts_as_rows: bool,
}

/// The rows that a printed table shades.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Shade {
    #[default]
    Ours,
    None,
}

fn two() -> usize {
    2
}

/// Dimension over which a table averages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// The seed of the calibration.
    Seed,
}

/// A column before the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Lead {
    Backbone,
    /// Layers removed, of how many.
    Depth,
    /// The recovery, or the criterion where there is none.
    Method,
    /// Sequences that an operator is computed from.
    Sequences,
}

/// Rows of a block: the product of both, as far as the grid has such cells.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowEntry {
    /// Names of criteria.
    #[schemars(schema_with = "many::names")]
    pub criterion: Vec<String>,
    /// Names of recoveries.
    #[schemars(schema_with = "many::names")]
    pub recovery: Vec<String>,
    /// Whether these are the cells whose operators were fine-tuned, or those whose were not.
    #[serde(default)]
    pub finetuned: bool,
}

/// A figure, by its kind.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureEntry {
    pub kind: FigureKind,
    /// Metrics to draw; the kind `layers` draws the selection and needs none. Several are drawn as bars side by side.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// Label of the value axis, with unit.
    #[serde(default)]
    pub axis: String,
    /// Whether the axis of values is logarithmic.
    #[serde(default)]
    pub log: bool,
    /// The recoveries that are drawn, in this order; all of the grid by default.
    #[serde(default)]
    pub recovery: Vec<String>,
}

/// How a figure draws its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FigureKind {
    /// A bar for each recovery, in a group for each backbone.
    Bars,
    /// A bar for each metric, in a group for each backbone.
    Shares,
    /// A line for each recovery over the channels of the residual stream.
    Channels,
    /// A line for each recovery over the depth.
    Depths,
    /// The stacks of layers: dense, pruned, repaired.
    Layers,
}

/// A list of what the program knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ListEntry {
    /// Criteria and recoveries with their repositories.
    Methods,
    /// Backbones with their sources.
    Checkpoints,
}

/// How far a value may be from the paper's before it counts as another one.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tolerance {
    /// In points of percent.
    pub accuracy: f64,
    /// In percent of the paper's value.
    pub perplexity: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { accuracy: 1.0, perplexity: 2.0 }
    }
}

impl Description {
    /// Reads the description of an artifact's file, and whether it contains a grid. `None` without the key `artifact`.
    ///
    /// # Errors
    /// The error names file, line and column, and what was expected and found.
    pub fn read(path: &Path) -> Result<Option<(Self, bool)>> {
        let shape =
            FileShape { what: "the artifact", expected: "`artifact: …` and a grid", hint: "docs/grid.md shows one" };
        let mut root = yaml::read(path, &shape)?;
        let Value::Map(keys) = &mut root.value else { return Ok(None) };
        let Some(at) = keys.iter().position(|entry| entry.key == KEY) else { return Ok(None) };
        let entry = keys.remove(at);
        let has_grid = !keys.is_empty();
        root.value = Value::Map(vec![entry]);
        let Alone { artifact } = Alone::deserialize(typed::FromNode::root(&root)).map_err(typed::Fault::into_error)?;
        artifact.check(has_grid).map_err(|error| error.at(root.position.to_string()))?;
        Ok(Some((artifact, has_grid)))
    }

    /// Returns the metrics that it shows.
    pub fn metrics(&self) -> &[String] {
        match (&self.table, &self.figure, &self.races) {
            (Some(table), ..) => &table.metrics,
            (None, Some(figure), _) => &figure.metrics,
            (None, None, Some(races)) => &races.metrics,
            (None, None, None) => &[],
        }
    }

    /// Checks what the types cannot express.
    fn check(&self, has_grid: bool) -> Result<()> {
        let wrong = |what: &str, expected: &str| Err(Error::bad_input(what).expected(expected));
        let parts = [self.table.is_some(), self.figure.is_some(), self.list.is_some(), self.races.is_some()];
        let parts = parts.into_iter().filter(|part| *part).count();
        if parts != 1 {
            return wrong("an artifact is not one thing", "one of the keys `table`, `figure`, `list` and `races`");
        }
        if self.list.is_none() && !has_grid {
            return wrong("an artifact has no cells", "the keys of a grid next to `artifact`");
        }
        if self.table.as_ref().is_some_and(|table| table.metrics.is_empty() || table.rows.is_empty()) {
            return wrong("a table is empty", "`rows` and `metrics` with an entry each");
        }
        Ok(())
    }
}

/// Takes the description out of a grid's tree: the grid has no use for it.
pub(super) fn take(root: &mut YamlNode) {
    if let Value::Map(keys) = &mut root.value {
        keys.retain(|entry| entry.key != KEY);
    }
}

const KEY: &str = "artifact";

/// The description alone.
#[derive(Debug, Deserialize)]
struct Alone {
    artifact: Description,
}
