//! Presentation of a grid as a table or figure of the paper, given by the key `artifact` in a grid file.
//!
//! The key describes rows, columns, grouping and metrics. The cells come from the grid in the same file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::yaml::{Value, YamlNode};
use super::{deserialize, one_or_many};
use crate::error::{Error, Result};
use crate::metric::{Direction, Metric, MetricSource, PARAMETERS_REMOVED};

/// Table or figure of the paper.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// One-line title.
    pub title: String,
    /// Shortened caption from the paper.
    pub caption: Option<String>,
    /// Other name under which the paper shows the same content. For example, `tableA3` is `table4`.
    pub also: Option<String>,
    /// Table of numbers.
    pub table: Option<TableEntry>,
    /// Figure.
    pub figure: Option<FigureEntry>,
    /// Table of the built-in methods or checkpoints, without a grid.
    pub list: Option<ListEntry>,
    /// Comparison of searches over the grid's cells (see the grid's key `search`) with another artifact's best rows.
    pub races: Option<RacesEntry>,
    /// Names of the list rows that are in the paper's table, in its order. The LaTeX output contains only these rows.
    #[serde(default)]
    pub in_paper: Vec<String>,
    /// Maximum deviation of a value from the paper's.
    #[serde(default)]
    pub tolerance: Tolerance,
}

/// Comparison of a search with another artifact.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RacesEntry {
    /// Artifact that scores the same cells on all items.
    #[serde(rename = "beside")]
    pub table: String,
    /// Metrics of the search, as named in that artifact.
    pub metrics: Vec<String>,
}

/// Table with a row for each backbone and method, and a column for each metric.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TableEntry {
    /// Columns before the numbers.
    pub lead: Vec<RowHeader>,
    /// Whether each backbone starts with its dense row.
    #[serde(default)]
    pub dense: bool,
    /// Rows of each block, in this order.
    pub rows: Vec<RowEntry>,
    /// Whether the columns are repeated for each depth. Otherwise the rows are repeated.
    #[serde(default)]
    pub across_depths: bool,
    /// Metrics of the columns, in this order.
    pub metrics: Vec<String>,
    /// Method options shown as part of the method name, such as `solver`.
    #[serde(default)]
    pub named_options: Vec<String>,
    /// Recovery that every other recovery of the same selection is tested against, item by item. By default, our
    /// recovery is tested against the best other one.
    pub against: Option<String>,
    /// Dimension to aggregate over. Each row shows the mean, the standard deviation and the number of cells. A figure
    /// shows the single values as dots.
    pub over: Option<Over>,
    /// Table in the paper whose order of methods is compared with the order for each seed.
    pub order_of: Option<String>,
    /// Number of decimals shown for every number.
    #[serde(default = "default_decimals")]
    pub decimals: usize,
    /// Layout of the LaTeX output, where it differs from the other outputs.
    #[serde(default)]
    pub print: PrintEntry,
}

/// Layout of a table printed next to the paper's. Omitted settings are the same as in the other outputs.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PrintEntry {
    /// Columns before the numbers, in this order.
    pub lead: Option<Vec<RowHeader>>,
    /// Metrics that the paper's table lacks. They are written to a separate file.
    pub beyond: Vec<String>,
    /// Metrics whose headers have an arrow that shows which direction is better; all metrics with a direction by
    /// default.
    pub arrows: Option<Vec<String>>,
    /// Rows to shade.
    pub shade: Highlight,
    /// Number of calibration sequences of the shaded rows. Rows whose operators are computed from another number are
    /// not shaded.
    pub shade_sequences: Option<usize>,
    /// Whether the table is transposed, with a row per prompt and a column per variant.
    pub prompts_as_rows: bool,
}

/// Rows that a printed table shades.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Highlight {
    #[default]
    Ours,
    None,
}

fn default_decimals() -> usize {
    2
}

/// Dimension over which a table aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// Calibration seed.
    Seed,
}

/// Column before the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RowHeader {
    Backbone,
    /// Number of removed layers out of the total.
    Depth,
    /// Number of removed layers or sublayers, with the unit.
    Removed,
    /// Recovery, or the criterion if there is no recovery.
    Method,
    /// Number of sequences that an operator is computed from.
    Sequences,
}

/// Rows of a block: the combinations of criteria and recoveries that exist in the grid.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowEntry {
    /// Names of criteria.
    #[schemars(schema_with = "one_or_many::names_schema")]
    pub criterion: Vec<String>,
    /// Names of recoveries.
    #[schemars(schema_with = "one_or_many::names_schema")]
    pub recovery: Vec<String>,
    /// Whether the rows show cells with fine-tuned operators, instead of cells without fine-tuning.
    #[serde(default)]
    pub finetuned: bool,
}

/// Figure, with its metrics and axes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureEntry {
    pub kind: FigureKind,
    /// Metrics to draw. Several metrics are drawn as adjacent bars. The kind `layers` draws the selection and needs
    /// none.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// Costs on the x-axes of a Pareto figure, with one column of panels each. For a metric such as
    /// `parameters_removed`, the axis shows the fraction that is kept. Any other metric must be one for which lower is
    /// better, such as `prefill_ms`.
    #[serde(default = "default_costs")]
    pub costs: Vec<String>,
    /// Label of the value axis, including the unit.
    #[serde(default)]
    pub axis: String,
    /// Whether the value axis is logarithmic.
    #[serde(default)]
    pub log: bool,
    /// Recoveries to draw, in this order; all recoveries of the grid by default.
    #[serde(default)]
    pub recovery: Vec<String>,
}

fn default_costs() -> Vec<String> {
    vec![PARAMETERS_REMOVED.id.to_owned()]
}

impl FigureEntry {
    /// Checks the metrics and costs of a Pareto figure.
    fn check_panels(&self) -> Result<()> {
        if self.metrics.is_empty() || self.costs.is_empty() {
            return reject("a Pareto figure has no panel", "at least one entry in `metrics` and in `costs`");
        }
        for id in &self.costs {
            let metric = Metric::find(id)?;
            let is_size = matches!(metric.source, MetricSource::Size(_));
            if !is_size && metric.direction != Direction::Lower {
                return reject(
                    &format!("`{id}` is not a cost"),
                    "a metric for which lower is better, or a saving such as `parameters_removed`",
                );
            }
        }
        Ok(())
    }
}

/// Kind of figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FigureKind {
    /// One bar per recovery, grouped by backbone.
    Bars,
    /// One bar per metric, grouped by backbone.
    Shares,
    /// One line per recovery over the channels of the residual stream.
    Channels,
    /// One line per recovery over the depth.
    Depths,
    /// Layer stacks of the dense, pruned and repaired model. Cuts of sublayers split each layer.
    Layers,
    /// One row of panels per metric and one column per cost, with the Pareto frontier. May accompany a table.
    Pareto,
}

/// Contents of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ListEntry {
    /// Criteria and recoveries with their repositories.
    Methods,
    /// Backbones with their sources.
    Checkpoints,
}

/// Maximum deviation from the paper's value at which a value still counts as reproduced.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tolerance {
    /// Percentage points.
    pub accuracy: f64,
    /// Percent of the paper's value.
    pub perplexity: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { accuracy: 1.0, perplexity: 2.0 }
    }
}

impl Description {
    /// Deserializes the description in the tree of a grid file, or returns `None` if the file has no key `artifact`.
    pub(super) fn from_root(root: &YamlNode) -> Result<Option<Self>> {
        let keys = root.entries();
        let Some(entry) = keys.iter().find(|entry| entry.key == ARTIFACT_KEY) else { return Ok(None) };
        let artifact_only = YamlNode { value: Value::Map(vec![entry.clone()]), position: root.position.clone() };
        let ArtifactOnly { artifact } = deserialize::from_root(&artifact_only)?;
        artifact.check(keys.len() > 1).map_err(|error| error.at(root.position.to_string()))?;
        Ok(Some(artifact))
    }

    /// Returns whether the artifact can show cuts of sublayers. A table needs the column `removed`, and a figure the
    /// kind `layers` or `pareto`, because other kinds count layers on their axes or labels.
    pub fn shows_sublayers(&self) -> bool {
        let in_table = self.table.as_ref().is_none_or(|table| table.lead.contains(&RowHeader::Removed));
        let kind = self.figure.as_ref().map(|figure| figure.kind);
        in_table && matches!(kind, None | Some(FigureKind::Layers | FigureKind::Pareto))
    }

    pub fn metrics(&self) -> &[String] {
        match (&self.table, &self.figure, &self.races) {
            (Some(table), ..) => &table.metrics,
            (None, Some(figure), _) => &figure.metrics,
            (None, None, Some(races)) => &races.metrics,
            (None, None, None) => &[],
        }
    }

    /// Checks constraints that the types cannot express.
    fn check(&self, has_grid: bool) -> Result<()> {
        let pareto = self.figure.as_ref().filter(|figure| figure.kind == FigureKind::Pareto);
        let has_figure = self.figure.is_some() && !(pareto.is_some() && self.table.is_some());
        let outputs = [self.table.is_some(), has_figure, self.list.is_some(), self.races.is_some()];
        let output_count = outputs.into_iter().filter(|is_present| *is_present).count();
        if output_count != 1 {
            return reject(
                "the artifact must define exactly one output",
                "one of the keys `table`, `figure`, `list` and `races`",
            );
        }
        if self.list.is_none() && !has_grid {
            return reject("the artifact has no cells", "the keys of a grid next to `artifact`");
        }
        pareto.map_or(Ok(()), FigureEntry::check_panels)?;
        if let (Some(figure), Some(table)) = (pareto, &self.table)
            && let Some(other) = figure.metrics.iter().find(|metric| !table.metrics.contains(metric))
        {
            return reject(&format!("the figure draws `{other}`, which is not in the table"), "a metric of the table");
        }
        if self.table.as_ref().is_some_and(|table| table.metrics.is_empty() || table.rows.is_empty()) {
            return reject("the table is empty", "at least one entry in `rows` and in `metrics`");
        }
        Ok(())
    }
}

fn reject(message: &str, expected: &str) -> Result<()> {
    Err(Error::bad_input(message).expected(expected))
}

/// Key of the description in a grid file.
pub(super) const ARTIFACT_KEY: &str = "artifact";

/// Wrapper for parsing only the artifact description.
#[derive(Debug, Deserialize)]
struct ArtifactOnly {
    artifact: Description,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::grid::GridFile;

    const TABLE: &str = "table: {lead: [removed], rows: [{criterion: sleb, recovery: none}], metrics: [ppl_c4]}";

    #[test]
    fn pareto_figure_next_to_a_table_draws_only_its_metrics() {
        for (parts, rejected) in [
            ("figure: {kind: pareto, metrics: [ppl_c4]}", None),
            ("figure: {kind: pareto, metrics: [kl_c4]}", Some("draws `kl_c4`")),
            ("figure: {kind: pareto, metrics: [ppl_c4], costs: [kv_cache_removed, prefill_ms]}", None),
            ("figure: {kind: pareto, metrics: [ppl_c4], costs: [speedup]}", Some("`speedup` is not a cost")),
            ("figure: {kind: pareto, metrics: [ppl_c4], costs: [size]}", Some("unknown metric `size`")),
            ("figure: {kind: pareto}", Some("no panel")),
            ("figure: {kind: bars, metrics: [ppl_c4]}", Some("exactly one output")),
            ("list: methods", Some("exactly one output")),
        ] {
            let text = format!("artifact:\n  title: a\n  {TABLE}\n  {parts}\nbackbone: b\n");
            let file = GridFile::from_text(&text, Path::new("grid.yaml")).unwrap();
            let error = file.description().err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(error.is_empty(), rejected.is_none(), "{parts}: {error}");
            assert!(error.contains(rejected.unwrap_or_default()), "{parts}: {error}");
        }
    }

    #[test]
    fn columns_and_figure_kind_decide_if_sublayers_are_shown() {
        for (part, expected) in [
            (json!({"table": {"lead": ["removed"], "rows": [], "metrics": []}}), true),
            (json!({"table": {"lead": ["depth"], "rows": [], "metrics": []}}), false),
            (json!({"figure": {"kind": "pareto"}}), true),
            (json!({"figure": {"kind": "layers"}}), true),
            (json!({"figure": {"kind": "bars"}}), false),
            (json!({"figure": {"kind": "shares"}}), false),
            (json!({"figure": {"kind": "channels"}}), false),
            (json!({"figure": {"kind": "depths"}}), false),
            (json!({"table": {"lead": ["depth"], "rows": [], "metrics": []}, "figure": {"kind": "pareto"}}), false),
        ] {
            let mut description = json!({"title": "a"});
            description.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
            let description: Description = serde_json::from_value(description).unwrap();
            assert_eq!(description.shows_sublayers(), expected, "{part}");
        }
    }
}
