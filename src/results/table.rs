//! Tables of numbers, with ranks and paired tests. The caller provides the rows and columns, and this module ranks the
//! values.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::number_record::Condition;
use super::paired::{self, Paired, PaperComparison};
use super::result_row::{ResultRow, Sample};
use super::settings::distinct;
use super::timed_passes::NOISY;
use crate::criterion::Depth;
use crate::metric::{Direction, Metric};
use crate::recovery;

/// Text in place of the number for a variant that ran out of memory.
pub(super) const OUT_OF_MEMORY: &str = "OOM";

/// Table of numbers, independent of the output format.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Title above the table; may be empty.
    pub title: String,
    /// Markdown caption below the table, printed verbatim.
    pub caption: String,
    /// Columns before the numbers.
    pub lead: Vec<RowHeader>,
    /// Headers that span several columns, each with its number of columns; empty if columns are not grouped.
    pub groups: Vec<(String, usize)>,
    pub columns: Vec<NumberColumn>,
    /// Columns after the numbers.
    pub tail: Vec<RowHeader>,
    pub rows: Vec<TableRow>,
    /// Recovery against which every other recovery with the same selection is tested. If `None`, our recovery is tested
    /// against the best of the others.
    pub against: Option<String>,
    /// Settings shared by all numbers in a printed table, such as the backbone, that no column shows. May be empty.
    pub scope: String,
    /// Measurement protocol in one sentence; may be empty.
    pub protocol: String,
    /// Notes shown below the table in every format.
    pub notes: Vec<String>,
}

/// Column of text or counts next to the numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowHeader {
    pub head: String,
    /// Whether the column contains counts. Counts are right-aligned.
    pub count: bool,
    pub visibility: Visibility,
    pub kind: RowHeaderKind,
}

/// Content of a text column, which determines its formatting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RowHeaderKind {
    #[default]
    Words,
    /// Text shared by all rows of a backbone ([`TableRow::backbone`]), printed once in a cell that spans these rows.
    Spanning,
    /// Number of removed layers and total number of layers.
    Fraction,
    /// URL, or an empty string.
    Link,
    /// Remarks on single rows. A terminal shows them below the table.
    Remark,
}

/// Output formats in which a text column appears.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Visibility {
    #[default]
    Everywhere,
    /// Only on a terminal, such as times, which differ between runs.
    Terminal,
    /// Only in CSV and Parquet, such as the settings behind a label.
    Data,
}

#[derive(Debug, Clone, PartialEq)]
pub struct NumberColumn {
    pub head: String,
    pub metric: Metric,
    /// Column of the numbers in the run's table, or `None` if the run measured the metric in only one way.
    pub column: Option<String>,
    /// Depth shown for each backbone, or `None` if the column shows all depths of all backbones. Dense numbers are
    /// shown for every listed backbone.
    pub depths: Option<BTreeMap<String, Option<Depth>>>,
    pub decimals: usize,
    /// Whether the printed header has an arrow that points in the better direction.
    pub arrow: bool,
}

#[derive(Debug, Clone, Default)]
pub struct TableRow {
    /// Text in each leading column; may be empty.
    pub lead: Vec<String>,
    /// Index of the backbone. Rows of a backbone, and of a block within it, are adjacent. Values are ranked within a
    /// block.
    pub backbone: usize,
    pub block: usize,
    pub dense: bool,
    pub ours: bool,
    /// Whether the row is shaded in print.
    pub shaded: bool,
    /// Whether the row is a heading for the rows below, printed in bold.
    pub heading: bool,
    /// Number in each column; `None` if the grid has no such cell.
    pub cells: Vec<Option<PrintedNumber>>,
    pub tail: Vec<String>,
}

/// Number as printed in a table, with its rank and comparisons.
#[derive(Debug, Clone)]
pub struct PrintedNumber {
    pub number: Arc<ResultRow>,
    /// Value formatted with the table's number of decimals, or a placeholder such as `failed`.
    pub text: String,
    /// Value rounded to the printed number of decimals; `None` if the cell failed.
    pub value: Option<f64>,
    /// Whether the value is the best among the pruned variants in its column and block.
    pub best: bool,
    pub second: bool,
    /// Paired test against the row that [`Table::against`] selects. `None` if there is no such row or if a row has no
    /// items.
    pub paired: Option<Paired>,
    /// Comparison with the paper's value for this condition, if any.
    pub comparison: Option<PaperComparison>,
}

impl RowHeader {
    pub fn text(head: impl Into<String>) -> Self {
        Self { head: head.into(), ..Self::default() }
    }

    pub fn count(head: impl Into<String>) -> Self {
        Self { head: head.into(), count: true, ..Self::default() }
    }

    #[must_use]
    pub fn kind(self, kind: RowHeaderKind) -> Self {
        Self { kind, ..self }
    }

    /// Restricts the column to the given output formats.
    #[must_use]
    pub fn only(self, visibility: Visibility) -> Self {
        Self { visibility, ..self }
    }
}

impl PrintedNumber {
    /// Formats a number without its rank. Latencies, speedups and means over seeds include their spread. `placeholder`
    /// is shown if there is no value, for example because the cell failed.
    pub fn printed(number: &Arc<ResultRow>, decimals: usize, placeholder: &str) -> Self {
        let aggregate_seeds = matches!(number.sample, Sample::Seeds(_));
        let text = match number.record.value.filter(|_| number.failure.is_none()) {
            Some(value) => match number.record.error.filter(|_| number.metric.is_latency() || aggregate_seeds) {
                Some(error) => {
                    let noisy = if number.is_noise() { NOISY } else { "" };
                    format!(
                        "{noisy}{} ± {}",
                        Metric::format_value(value, decimals),
                        Metric::format_value(error, decimals)
                    )
                }
                None => Metric::format_value(value, decimals),
            },
            None if number.sample == Sample::OutOfMemory => OUT_OF_MEMORY.to_owned(),
            None => placeholder.to_owned(),
        };
        // If some seeds failed, add the number of seeds that have a value.
        let text = match number.seed_counts() {
            Some((count, all)) if count > 0 && count < all => format!("{text} (n = {count})"),
            _ => text,
        };
        let value = number.valid_value().map(|value| Metric::round_to_printed(value, decimals));
        Self { number: Arc::clone(number), text, value, best: false, second: false, paired: None, comparison: None }
    }

    /// Returns the mark of the paired test ([`Paired::mark`]), or an empty string without a test.
    pub fn mark(&self) -> &'static str {
        self.paired.as_ref().map_or("", Paired::mark)
    }
}

impl Table {
    /// Marks the best and second-best values in each column and block, and tests ours against the best other row.
    ///
    /// Values that are printed alike count as equal. Failed cells and cells whose calibration does not determine the
    /// operator are not ranked. A column whose values are all equal has no best value.
    #[must_use]
    pub fn ranked(mut self) -> Self {
        for block in distinct(self.rows.iter().map(|row| &row.block)) {
            let places = 0..self.rows.len();
            let block: Vec<usize> = places.filter(|&at| self.rows[at].block == block && !self.rows[at].dense).collect();
            (0..self.columns.len()).for_each(|column| self.rank(&block, column));
        }
        self
    }

    fn rank(&mut self, block: &[usize], column: usize) {
        let metric = &self.columns[column].metric;
        // Do not rank latencies, because their differences may be mere noise.
        if metric.is_latency() {
            return;
        }
        let shown = |at: usize| {
            let shown = self.rows[at].cells[column].as_ref().filter(|shown| !shown.number.setup.undetermined)?;
            metric.cost(shown.value?).map(|cost| (cost, &shown.number))
        };
        let mut costs: Vec<f64> = block.iter().filter_map(|&at| shown(at)).map(|(cost, _)| cost).collect();
        costs.sort_by(f64::total_cmp);
        costs.dedup();
        // Compare only rows with the same selection, including the unrepaired one. Otherwise, the difference could be
        // due to the criterion.
        let ranked = block.iter().map(|&at| {
            let Some((cost, number)) = shown(at) else { return (None, None) };
            let others = block.iter().filter_map(|&row| shown(row).map(|(cost, other)| (row, cost, other)));
            let mut others = others.filter(|(.., other)| other.same_selection(number));
            let rival = match &self.against {
                Some(name) if number.record.condition.recovery == *name => None,
                Some(name) => others.find(|(.., other)| other.record.condition.recovery == *name),
                None if !self.rows[at].ours => None,
                None => others.filter(|(row, ..)| !self.rows[*row].ours).min_by(|a, b| a.1.total_cmp(&b.1)),
            };
            (Some(cost), rival.and_then(|(.., other)| paired::paired_test(number, other)))
        });
        let ranked: Vec<(Option<f64>, Option<Paired>)> = ranked.collect();
        for (&at, (cost, paired)) in block.iter().zip(ranked) {
            let Some(shown) = &mut self.rows[at].cells[column] else { continue };
            shown.best = costs.len() > 1 && costs.first().copied() == cost;
            shown.second = costs.len() > 2 && costs.get(1).copied() == cost;
            shown.paired = paired;
        }
    }

    /// Iterates over all numbers in the table, each with its row.
    pub fn numbers(&self) -> impl Iterator<Item = (&TableRow, &PrintedNumber)> {
        self.rows.iter().flat_map(|row| row.cells.iter().flatten().map(move |shown| (row, shown)))
    }

    /// Iterates over the lines below the table: the protocol and the notes.
    pub fn footer_lines(&self) -> impl Iterator<Item = &String> {
        Some(&self.protocol).filter(|protocol| !protocol.is_empty()).into_iter().chain(&self.notes)
    }

    #[must_use]
    pub fn without_comparisons(mut self) -> Self {
        self.rows.iter_mut().flat_map(|row| row.cells.iter_mut()).flatten().for_each(|shown| shown.comparison = None);
        self
    }

    /// Prepares a table that has no artifact description for print. Shades our rows, and removes the columns after the
    /// numbers in which all rows have the same text.
    #[must_use]
    pub fn printed(&self, title: &str) -> Self {
        let mut table = self.clone();
        table.title = [title, &self.title].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
        // In print, the protocol sentence explains the columns, so the Markdown caption is not needed.
        table.caption.clear();
        table.rows.iter_mut().for_each(|row| row.shaded = row.ours);
        let varying: Vec<usize> =
            (0..self.tail.len()).filter(|at| distinct(self.rows.iter().map(|row| &row.tail[*at])).len() > 1).collect();
        table.tail = varying.iter().map(|&at| self.tail[at].clone()).collect();
        for (row, original) in table.rows.iter_mut().zip(&self.rows) {
            row.tail = varying.iter().map(|&at| original.tail[at].clone()).collect();
        }
        table
    }

    /// Returns whether any value is ranked. In a table with a single variant, none is.
    pub fn has_ranks(&self) -> bool {
        self.numbers().any(|(_, shown)| shown.best)
    }

    /// Returns whether the paper has a value for any number shown.
    pub fn has_paper(&self) -> bool {
        self.numbers().any(|(_, shown)| shown.comparison.is_some())
    }

    /// Formats an explanation of the verdict signs that occur in the table.
    pub fn sign_legend(&self) -> String {
        let mut known: Vec<(&str, &str)> = self
            .numbers()
            .filter_map(|(_, shown)| shown.comparison.as_ref())
            .map(|comparison| (comparison.verdict.sign(), comparison.verdict.label()))
            .filter(|(sign, _)| !sign.is_empty())
            .collect();
        known.sort_unstable();
        known.dedup();
        let known: Vec<String> = known.into_iter().map(|(sign, word)| format!("{sign} {word}")).collect();
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    }

    /// Formats an explanation of the marks `+` and `-`.
    pub fn marks_legend(&self) -> String {
        match &self.against {
            Some(name) => {
                let name = recovery::label(name);
                format!("better or worse than {name} on the same selection (paired test on the same items, p < 0.05)")
            }
            None => "ours is better or worse than the best other row of the same selection, including plain removal \
                 (paired test on the same items, p < 0.05, not corrected for choosing that row)"
                .to_owned(),
        }
    }

    pub fn has_significant_tests(&self) -> bool {
        self.numbers().any(|(_, shown)| shown.paired.as_ref().is_some_and(Paired::is_significant))
    }
}

impl NumberColumn {
    pub fn new(metric: Metric, head: impl Into<String>) -> Self {
        let decimals = metric.decimals;
        Self { head: head.into(), metric, column: None, depths: None, decimals, arrow: false }
    }

    /// Returns whether the column shows numbers measured under a condition.
    pub fn shows(&self, condition: &Condition) -> bool {
        let Some(depths) = &self.depths else { return true };
        let depth = depths.get(&condition.backbone);
        depth.is_some_and(|depth| condition.depth == 0 || *depth == Some(condition.cut_depth()))
    }

    /// Iterates over the numbers of a row that belong to the column.
    pub fn numbers<'n>(&self, row: &[&'n Arc<ResultRow>]) -> impl Iterator<Item = &'n Arc<ResultRow>> {
        row.iter().copied().filter(move |number| {
            let is_measured = match &self.column {
                // A task may have the same name as a metric.
                Some(column) => number.column == *column && *number.metric == *self.metric,
                None => number.metric.id == self.metric.id,
            };
            is_measured && self.shows(&number.record.condition)
        })
    }

    /// Returns whether higher is better, if the metric has a direction.
    pub fn higher_is_better(&self) -> Option<bool> {
        match self.metric.direction {
            Direction::Higher => Some(true),
            Direction::Lower => Some(false),
            Direction::Neither => None,
        }
    }
}
