//! Tables as stored in `page.json` and shown on the page: cell texts with sort keys, links and comparisons.
//!
//! All text is plain text, never HTML. Fields that are missing in older files have defaults.

use serde::{Deserialize, Serialize};

use super::paired::{PaperComparison, PaperVerdict};
use super::result_row::{ResultRow, Sample};
use super::table::{PrintedNumber, Table};
use crate::metric::Spread;
use crate::recovery;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedTable {
    /// Caption shown above the table. Empty if the artifact's title and caption suffice.
    pub caption: String,
    /// Description of the measurement protocol, shown collapsed. May be empty.
    pub protocol: String,
    /// Remarks needed to interpret the numbers, one line each, shown above the table.
    pub notes: Vec<String>,
    /// Header of the column that shows [`SavedRow::group`]; `Group` if empty.
    pub group_name: String,
    pub columns: Vec<SavedColumn>,
    pub rows: Vec<SavedRow>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedColumn {
    pub name: String,
    /// Heading shared by adjacent columns of the same group.
    pub group: Option<String>,
    /// Whether the column is sorted by [`SavedCell::value`] and right-aligned.
    pub numeric: bool,
    /// Whether higher values are better, as shown in the header; `None` if neither direction is better.
    pub higher_is_better: Option<bool>,
    /// Whether this column names the row. If no column is marked, the last text column before the first numeric one
    /// names it.
    pub label: bool,
    /// Whether rows can be filtered by this column.
    pub choice: bool,
    /// Whether the column was added without being requested, such as the bits per byte next to each perplexity. The
    /// page omits it.
    #[serde(skip_serializing_if = "is_default")]
    pub unasked: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedRow {
    /// Group name; `None` if the row has none. If any row has one, the page shows an additional first column.
    pub group: Option<String>,
    /// Whether the row shows the paper's own method. Such rows are shaded.
    pub ours: bool,
    /// URL fragment that identifies the row; `None` if nothing links to it.
    pub anchor: Option<String>,
    pub cells: Vec<SavedCell>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedCell {
    pub text: String,
    /// Sort key in a numeric column. Missing and non-finite values sort last.
    #[serde(skip_serializing_if = "is_default")]
    pub value: Option<f64>,
    /// Uncertainty as printed; empty if there is none.
    #[serde(skip_serializing_if = "is_default")]
    pub error: String,
    /// Suffix of the CSV column for this kind of uncertainty, such as `std_seeds`; empty for a standard error.
    #[serde(skip_serializing_if = "is_default")]
    pub error_kind: String,
    /// Number of items averaged: documents, windows or seeds.
    #[serde(skip_serializing_if = "is_default")]
    pub items: Option<usize>,
    #[serde(skip_serializing_if = "is_default")]
    pub best: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub second: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub mark: Option<SavedSignificance>,
    #[serde(skip_serializing_if = "is_default")]
    #[serde(rename = "beside")]
    pub comparison: Option<SavedComparison>,
    /// Key of the note that a click on the number opens. If there is no note with this key, the number is not a link.
    #[serde(skip_serializing_if = "is_default")]
    pub key: Option<String>,
    /// SHA-256 of the number's identity (variant, measurement, metric), as in `numbers.json`. `None` for text and for
    /// results from older programs.
    #[serde(skip_serializing_if = "is_default")]
    pub identity: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub failed: bool,
}

impl SavedColumn {
    pub fn with_name(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

impl SavedTable {
    pub fn from_texts(columns: Vec<SavedColumn>, rows: &[Vec<String>]) -> Self {
        Self {
            columns,
            rows: rows
                .iter()
                .map(|texts| SavedRow {
                    cells: texts.iter().map(SavedCell::from_text).collect(),
                    ..SavedRow::default()
                })
                .collect(),
            ..Self::default()
        }
    }
}

impl SavedCell {
    pub fn from_text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// Returns whether a value is the default. Defaults are not serialized.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Mark for a significant difference from another variant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedSignificance {
    pub better: bool,
    /// Description of the other variant and the test.
    pub says: String,
}

/// Comparison with the paper's value, as printed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedComparison {
    pub paper: String,
    /// Our value minus the paper's, with its sign; `None` if ours failed.
    pub difference: Option<String>,
    /// Tolerance as printed; `None` if there is no verdict.
    pub tolerance: Option<String>,
    pub verdict: PaperVerdict,
}

impl From<&Table> for SavedTable {
    fn from(table: &Table) -> Self {
        let mut groups = table.groups.iter().flat_map(|(head, count)| std::iter::repeat_n(head.clone(), *count));
        let lead =
            table.lead.iter().skip(1).map(|lead| SavedColumn { choice: true, ..SavedColumn::with_name(&lead.head) });
        let measured = table.columns.iter().map(|column| SavedColumn {
            group: groups.next(),
            numeric: true,
            higher_is_better: column.higher_is_better(),
            ..SavedColumn::with_name(&column.head)
        });
        SavedTable {
            protocol: table.protocol.clone(),
            notes: table.notes.clone(),
            group_name: table.lead.first().map(|lead| lead.head.clone()).unwrap_or_default(),
            columns: lead.chain(measured).collect(),
            rows: table
                .rows
                .iter()
                .map(|row| {
                    let texts = row.lead.iter().skip(1).map(SavedCell::from_text);
                    let values = row.cells.iter().map(|shown| match shown {
                        Some(shown) => save_cell(shown),
                        None => SavedCell::from_text("—"),
                    });
                    SavedRow {
                        group: row.lead.first().cloned(),
                        ours: row.shaded,
                        cells: texts.chain(values).collect(),
                        ..SavedRow::default()
                    }
                })
                .collect(),
            ..SavedTable::default()
        }
    }
}

/// Returns the suffix of the CSV column for a number's uncertainty. Returns an empty string if it is a standard error
/// or if there is no uncertainty.
fn error_kind(number: &ResultRow) -> String {
    let kind = number.spread();
    let is_usual = kind == Spread::StandardError || number.record.error.is_none();
    if is_usual { String::new() } else { kind.column().to_owned() }
}

fn save_cell(shown: &PrintedNumber) -> SavedCell {
    let mark = shown.paired.as_ref().filter(|paired| paired.is_significant()).map(|paired| {
        let better = paired.mark() == "+";
        let word = if better { "better" } else { "worse" };
        let against = recovery::label(&paired.against);
        SavedSignificance { better, says: format!("{word} than {against} (p = {:.2e}, {})", paired.p, paired.test) }
    });
    SavedCell {
        text: shown.text.clone(),
        value: shown.number.record.value,
        error: shown.number.record.error.map(|error| format!("{error:.2}")).unwrap_or_default(),
        error_kind: error_kind(&shown.number),
        items: count_items(&shown.number.sample),
        best: shown.best,
        second: shown.second,
        mark,
        comparison: shown.comparison.as_ref().map(save_comparison),
        key: Some(shown.number.cell.clone()),
        identity: shown.number.identity(),
        failed: shown.number.failure.is_some(),
    }
}

/// Returns the number of items that were averaged, if they are stored.
fn count_items(sample: &Sample) -> Option<usize> {
    match sample {
        Sample::None | Sample::OutOfMemory | Sample::NoisyTimes => None,
        Sample::Answers(tasks) => Some(tasks.iter().map(Vec::len).sum()),
        Sample::Losses(windows) => Some(windows.len()),
        Sample::Seeds(seeds) => Some(seeds.len()),
    }
}

fn save_comparison(comparison: &PaperComparison) -> SavedComparison {
    SavedComparison {
        paper: comparison.paper_text(),
        difference: comparison.difference_text(),
        tolerance: comparison.verdict.other_protocol().is_none().then(|| format!("{:.2}", comparison.tolerance)),
        verdict: comparison.verdict.clone(),
    }
}
