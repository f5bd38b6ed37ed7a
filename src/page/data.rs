//! What a page shows, as plain data. All of it can be stored as JSON and rendered again; a field that an older file
//! lacks has its default. All text is plain text, never HTML.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The whole page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Page {
    pub title: String,
    /// When the page was made, as a reader wants to see it.
    pub made: String,
    /// The program's version and commit.
    pub program: String,
    /// What a reader has to know of the profiles: how the tiny one differs from the paper's. May be empty.
    pub profile_note: String,
    /// In the order of the page. No two have the same profile and name.
    pub artifacts: Vec<Artifact>,
    pub claims: Vec<ClaimRow>,
    pub findings: Vec<FindingRow>,
    /// How each cell was made, by the key that [`Cell::key`] refers to.
    pub cells: BTreeMap<String, CellNote>,
}

/// One table or figure of the paper, made again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Artifact {
    /// `table2`, …
    pub name: String,
    /// `paper` or `tiny`; empty where there is only one.
    pub profile: String,
    pub title: String,
    pub caption: String,
    /// `complete`, `3 of 40 cells failed`, …; may be empty.
    pub status: String,
    pub tables: Vec<TableView>,
    pub figures: Vec<FigureView>,
    /// Name and value, in the order of the page.
    pub provenance: Vec<(String, String)>,
    /// What the link says, and the file's path relative to the page's folder.
    pub files: Vec<(String, String)>,
}

/// One table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableView {
    /// The artifact's title stands in for an empty one.
    pub caption: String,
    /// The name of the column that shows [`Row::group`]; `Group` where it is empty.
    pub group_name: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Column {
    pub name: String,
    /// The heading above neighbouring columns of the same group.
    pub group: Option<String>,
    /// Sorted by [`Cell::value`] and aligned to the right.
    pub numeric: bool,
    /// The direction that the head shows; none where neither is better.
    pub higher_is_better: Option<bool>,
    /// Whether this column names the row and so stays in sight while the table is scrolled. Where no column says so,
    /// it is the last column of text before the first measured one.
    pub label: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// A column of its own, in front, when any row of the table has one: it reads the same however rows are sorted.
    pub group: Option<String>,
    /// Whether the row is the paper's own method: it is shaded.
    pub ours: bool,
    /// As many as the table has columns.
    pub cells: Vec<Cell>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// What is printed.
    pub text: String,
    /// What a numeric column is sorted by; none, or not finite, comes last.
    pub value: Option<f64>,
    pub best: bool,
    pub second: bool,
    /// The paper's number, as printed there.
    pub paper: Option<String>,
    /// How ours compares with the paper's.
    pub verdict: Option<String>,
    /// Whether a difference is more than chance, in words.
    pub significant: Option<String>,
    /// The note that the number opens, a key of [`Page::cells`]. A key without a note makes no link.
    pub key: Option<String>,
    pub failed: bool,
}

/// How a cell was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CellNote {
    pub title: String,
    /// Name and value, in the order of the page.
    pub lines: Vec<(String, String)>,
    /// Commands for a shell, each to be copied: `ghostlab explain …`.
    pub commands: Vec<String>,
    /// Kind, hash of the key, and by what, when and in how many seconds it was made.
    pub artifacts: Vec<(String, String, String)>,
}

/// A figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FigureView {
    /// A whole SVG document.
    pub svg: String,
    /// Shown below the figure, and read out in its place.
    pub caption: String,
}

/// One statement of the paper, counted in its tables and in ours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimRow {
    pub claim: String,
    /// Where the paper says it.
    pub place: String,
    /// In the paper's tables: `54 of 60`.
    pub paper: String,
    /// In ours.
    pub ours: String,
    pub verdict: String,
    /// The artifact ([`Artifact::name`]) that it is counted in; empty where it is none or several.
    pub artifact: String,
    /// The artifact's profile; empty for every profile.
    pub profile: String,
}

/// Something that an audit of the paper's tables found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FindingRow {
    /// The rule that does not hold.
    pub rule: String,
    /// The table and the cell.
    pub place: String,
    pub expected: String,
    pub found: String,
    pub note: String,
}
