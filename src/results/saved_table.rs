//! A table as stored in `page.json` and shown by the page: the common table as texts, with sort keys, links and
//! comparisons. All text is plain text, never HTML; fields missing from an older file have defaults.

use serde::{Deserialize, Serialize};

use super::measurement::{Measurement, Sample};
use super::paired::{PaperComparison, PaperVerdict};
use super::table::{PrintedNumber, Table};
use crate::metric::Spread;
use crate::recovery;

/// One table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedTable {
    /// Shown above the table; an empty one is not: the artifact's title and caption say it already.
    pub caption: String,
    /// How the numbers were measured: one line that opens. May be empty.
    pub protocol: String,
    /// Remarks needed to use the numbers, one line each, shown above them.
    pub notes: Vec<String>,
    /// The name of the column that shows [`SavedRow::group`]; `Group` where it is empty.
    pub group_name: String,
    pub columns: Vec<SavedColumn>,
    pub rows: Vec<SavedRow>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedColumn {
    pub name: String,
    /// The heading above neighbouring columns of the same group.
    pub group: Option<String>,
    /// Sorted by [`SavedCell::value`] and aligned to the right.
    pub numeric: bool,
    /// The direction that the head shows; none where neither is better.
    pub higher_is_better: Option<bool>,
    /// Whether this column names the row. Where no column says so, it is the last column of text before the first
    /// measured one.
    pub label: bool,
    /// Whether rows can be filtered by this column.
    pub choice: bool,
    /// Whether nothing asks for the column: bits per byte are next to each perplexity. The page leaves it out.
    #[serde(skip_serializing_if = "usual")]
    pub unasked: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedRow {
    /// A column of its own, in front, when any row of the table has one: it reads the same however rows are sorted.
    pub group: Option<String>,
    /// Whether the row is the paper's own method: it is shaded.
    pub ours: bool,
    /// Fragment of a link to the row; `None` if nothing links to it.
    pub anchor: Option<String>,
    /// One per column.
    pub cells: Vec<SavedCell>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedCell {
    /// The printed text.
    pub text: String,
    /// Sort key of a numeric column; missing or non-finite values come last.
    #[serde(skip_serializing_if = "usual")]
    pub value: Option<f64>,
    /// Its uncertainty as printed; empty where there is none.
    #[serde(skip_serializing_if = "usual")]
    pub error: String,
    /// Kind of the uncertainty by its CSV column, such as `std_seeds`; empty for a standard error.
    #[serde(skip_serializing_if = "usual")]
    pub error_kind: String,
    /// How many items it is the mean of: documents, windows, seeds.
    #[serde(skip_serializing_if = "usual")]
    pub items: Option<usize>,
    #[serde(skip_serializing_if = "usual")]
    pub best: bool,
    #[serde(skip_serializing_if = "usual")]
    pub second: bool,
    #[serde(skip_serializing_if = "usual")]
    pub mark: Option<SavedMark>,
    #[serde(skip_serializing_if = "usual")]
    #[serde(rename = "beside")]
    pub comparison: Option<SavedComparison>,
    /// The note that the number opens, a key of the page's cells. A key without a note makes no link.
    #[serde(skip_serializing_if = "usual")]
    pub key: Option<String>,
    /// SHA-256 of the number's identity (variant, measurement, metric), as in `numbers.json`; `None` for a text, and
    /// for results of an older program.
    #[serde(skip_serializing_if = "usual")]
    pub identity: Option<String>,
    #[serde(skip_serializing_if = "usual")]
    pub failed: bool,
}

impl SavedColumn {
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

impl SavedTable {
    /// Builds a table of texts.
    pub fn of_words(columns: Vec<SavedColumn>, rows: &[Vec<String>]) -> Self {
        Self {
            columns,
            rows: rows
                .iter()
                .map(|texts| SavedRow { cells: texts.iter().map(SavedCell::words).collect(), ..SavedRow::default() })
                .collect(),
            ..Self::default()
        }
    }
}

impl SavedCell {
    /// Builds a cell of text.
    pub fn words(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// Returns whether a value is the default, which is not written.
fn usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A difference that is more than chance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedMark {
    /// Whether ours is the better one.
    pub better: bool,
    /// Than what, and by which test.
    pub says: String,
}

/// The paper's number next to ours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedComparison {
    /// The value as printed in the paper.
    pub paper: String,
    /// Ours less the paper's, with its sign; none where ours failed.
    pub difference: Option<String>,
    /// How far it may be off; none where nothing is judged.
    pub tolerance: Option<String>,
    pub verdict: PaperVerdict,
}

impl From<&Table> for SavedTable {
    fn from(table: &Table) -> Self {
        let mut groups = table.groups.iter().flat_map(|(head, count)| std::iter::repeat_n(head.clone(), *count));
        let lead = table.lead.iter().skip(1).map(|lead| SavedColumn { choice: true, ..SavedColumn::named(&lead.head) });
        let measured = table.columns.iter().map(|column| SavedColumn {
            group: groups.next(),
            numeric: true,
            higher_is_better: column.higher_is_better(),
            ..SavedColumn::named(&column.head)
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
                    let texts = row.lead.iter().skip(1).map(SavedCell::words);
                    let values =
                        row.cells.iter().map(|shown| shown.as_ref().map_or_else(|| SavedCell::words("—"), cell));
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

/// Returns the CSV column of a number's uncertainty; empty for a standard error or none.
fn error_kind(number: &Measurement) -> String {
    let kind = number.spread();
    let is_usual = kind == Spread::StandardError || number.record.error.is_none();
    if is_usual { String::new() } else { kind.column().to_owned() }
}

fn cell(shown: &PrintedNumber) -> SavedCell {
    let mark = shown.paired.as_ref().filter(|paired| paired.significant()).map(|paired| {
        let better = paired.mark() == "+";
        let word = if better { "better" } else { "worse" };
        let against = recovery::label(&paired.against);
        SavedMark { better, says: format!("{word} than {against} (p = {:.2e}, {})", paired.p, paired.test) }
    });
    SavedCell {
        text: shown.text.clone(),
        value: shown.measurement.record.value,
        error: shown.measurement.record.error.map(|error| format!("{error:.2}")).unwrap_or_default(),
        error_kind: error_kind(&shown.measurement),
        items: items(&shown.measurement.sample),
        best: shown.best,
        second: shown.second,
        mark,
        comparison: shown.comparison.as_ref().map(beside),
        key: Some(shown.measurement.cell.clone()),
        identity: shown.measurement.identity(),
        failed: shown.measurement.failure.is_some(),
    }
}

/// Returns the number of items behind a mean, if they are kept.
fn items(sample: &Sample) -> Option<usize> {
    match sample {
        Sample::None | Sample::OutOfMemory | Sample::NoisyTimes => None,
        Sample::Right(items) => Some(items.len()),
        Sample::Tasks(tasks) => Some(tasks.iter().map(Vec::len).sum()),
        Sample::Losses(windows) => Some(windows.len()),
        Sample::Seeds(seeds) => Some(seeds.len()),
    }
}

fn beside(comparison: &PaperComparison) -> SavedComparison {
    SavedComparison {
        paper: comparison.paper_text(),
        difference: comparison.difference_text(),
        tolerance: comparison.other_protocol().is_none().then(|| format!("{:.2}", comparison.tolerance)),
        verdict: comparison.verdict.clone(),
    }
}
