//! What a page shows, as plain data. All of it can be stored as JSON and rendered again; a field that an older file
//! lacks has its default. All text is plain text, never HTML.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::artifact::audit::Severity;
use crate::results::PaperVerdict;

/// The whole page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Page {
    pub title: String,
    /// When the page was made, as a reader wants to see it.
    pub made: String,
    /// The program's version and commit.
    pub program: String,
    /// The artifact whose table stands first, as the paper's main result; none or an unknown one changes nothing.
    pub headline: String,
    /// What a reader has to know of the profiles: how the tiny one differs from the paper's. May be empty.
    pub profile_note: String,
    /// In the order of the page. No two have the same profile and name.
    pub artifacts: Vec<PageArtifact>,
    pub claims: Vec<ClaimRow>,
    pub findings: Vec<FindingRow>,
    /// Results folders that the page does not show, each with the reason.
    pub left_out: Vec<(String, String)>,
    /// How each cell was made, by the key that [`Cell::key`] refers to.
    pub cells: BTreeMap<String, CellNote>,
}

/// One table or figure of the paper, made again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageArtifact {
    /// `table2`, …
    pub name: String,
    /// `paper`, `tiny`, …, or the folder of other settings; empty where there is only one.
    pub profile: String,
    pub title: String,
    /// Shown once, below the title.
    pub caption: String,
    /// `complete`, `3 of 40 cells failed`, …; may be empty.
    pub status: String,
    pub tables: Vec<TableView>,
    pub figures: Vec<FigureView>,
    /// Name and value, in the order of the page.
    pub provenance: Vec<(String, String)>,
    /// The files that were read, by path, with their SHA-256.
    pub inputs: BTreeMap<String, String>,
    /// What the link says, and the file's path relative to the page's folder.
    pub files: Vec<(String, String)>,
}

impl PageArtifact {
    /// The status of one that lacks nothing.
    pub const COMPLETE: &str = "complete";
}

/// One table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableView {
    /// Shown above the table; an empty one is not: the artifact's title and caption say it already.
    pub caption: String,
    /// How the numbers were measured: one line that opens. May be empty.
    pub protocol: String,
    /// What a reader has to know before the numbers are used, each in a line above them.
    pub notes: Vec<String>,
    /// The name of the column that shows [`PageRow::group`]; `Group` where it is empty.
    pub group_name: String,
    pub columns: Vec<Column>,
    pub rows: Vec<PageRow>,
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
    /// Whether this column names the row. Where no column says so, it is the last column of text before the first
    /// measured one.
    pub label: bool,
    /// Whether rows can be chosen by what stands in this column.
    pub choice: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageRow {
    /// A column of its own, in front, when any row of the table has one: it reads the same however rows are sorted.
    pub group: Option<String>,
    /// Whether the row is the paper's own method: it is shaded.
    pub ours: bool,
    /// What a link to the row ends with; none where nothing leads to it.
    pub anchor: Option<String>,
    /// As many as the table has columns.
    pub cells: Vec<Cell>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// What is printed.
    pub text: String,
    /// What a numeric column is sorted by; none, or not finite, comes last.
    #[serde(skip_serializing_if = "usual")]
    pub value: Option<f64>,
    /// Its standard error, or a time's deviation, as printed; empty where there is none.
    #[serde(skip_serializing_if = "usual")]
    pub error: String,
    /// How many items it is the mean of: documents, windows, seeds.
    #[serde(skip_serializing_if = "usual")]
    pub items: Option<usize>,
    #[serde(skip_serializing_if = "usual")]
    pub best: bool,
    #[serde(skip_serializing_if = "usual")]
    pub second: bool,
    #[serde(skip_serializing_if = "usual")]
    pub mark: Option<Mark>,
    #[serde(skip_serializing_if = "usual")]
    pub beside: Option<BesideView>,
    /// The note that the number opens, a key of [`Page::cells`]. A key without a note makes no link.
    #[serde(skip_serializing_if = "usual")]
    pub key: Option<String>,
    /// SHA-256 of what the number is (variant, what was measured, metric), as in `numbers.json`; none of a text, and of what
    /// an older program made.
    #[serde(skip_serializing_if = "usual")]
    pub identity: Option<String>,
    #[serde(skip_serializing_if = "usual")]
    pub failed: bool,
}

impl Column {
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

impl Cell {
    /// One of words alone.
    pub fn words(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// What most cells have is not written.
fn usual<T: Default + PartialEq>(of: &T) -> bool {
    *of == T::default()
}

/// A difference that is more than chance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mark {
    /// Whether ours is the better one.
    pub better: bool,
    /// Than what, and by which test.
    pub says: String,
}

/// The paper's number beside ours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BesideView {
    /// As printed there.
    pub paper: String,
    /// Ours less the paper's, with its sign; none where ours failed.
    pub difference: Option<String>,
    /// How far it may be off; none where nothing is judged.
    pub tolerance: Option<String>,
    pub verdict: PaperVerdict,
}

/// How a cell was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CellNote {
    pub title: String,
    /// What the cell is, whatever it is called: model, engine, cut, repair and calibration. Null of what was never planned.
    pub identity: Value,
    /// Name and value, in the order of the page.
    pub lines: Vec<(String, String)>,
    /// Commands for a shell, each to be copied: `ghostlab explain …`.
    pub commands: Vec<String>,
    /// Who made its parts: program, commit, command, machine. Mostly one.
    pub makers: Vec<Vec<(String, String)>>,
    pub parts: Vec<ObjectNote>,
    /// The files that it was made from, by path, with their SHA-256.
    pub inputs: BTreeMap<String, String>,
}

/// A stored artifact that a cell was made from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectNote {
    pub kind: String,
    /// The hash of its key.
    pub key: String,
    /// In UTC; empty where the record does not say.
    pub finished: String,
    pub seconds: f64,
    /// Its place in [`CellNote::makers`].
    pub maker: usize,
}

/// A figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FigureView {
    /// A whole SVG document.
    pub svg: String,
    /// What tells it from the artifact's other figures: the backbone. Empty where there is one.
    pub label: String,
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
    pub paper_verdict: Judgement,
    /// In ours.
    pub ours: String,
    pub verdict: Judgement,
    /// The artifact ([`PageArtifact::name`]) that it is counted in; empty where it is none or several.
    pub artifact: String,
    /// The artifact's profile; empty for every profile.
    pub profile: String,
}

/// Whether something that the paper says is so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    Holds,
    Fails,
    /// A number that decides it is missing.
    #[default]
    Unknown,
}

impl Judgement {
    pub(super) const ALL: [Self; 3] = [Self::Holds, Self::Fails, Self::Unknown];

    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Unknown => "unknown",
        }
    }

    /// The verb of so many claims.
    pub(super) fn of(self, count: usize) -> &'static str {
        match self {
            Self::Holds if count != 1 => "hold",
            Self::Fails if count != 1 => "fail",
            _ => self.word(),
        }
    }

    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Holds => "✓",
            Self::Fails => "✗",
            Self::Unknown => "?",
        }
    }
}

/// Something that an audit of the paper's tables found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FindingRow {
    pub severity: Severity,
    /// The rule that does not hold.
    pub rule: String,
    /// The table and the cell.
    pub place: String,
    pub expected: String,
    pub found: String,
    pub note: String,
}
