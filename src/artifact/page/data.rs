//! Contents of a page as plain data. All of it can be stored as JSON and rendered again; fields missing from an older
//! file have defaults. All text is plain text, never HTML.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::artifact::audit::Severity;
use crate::results::{SavedTable, grouped};

/// The whole page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Page {
    pub title: String,
    /// When the page was made, as a reader wants to see it.
    pub made: String,
    /// The program's version and commit.
    pub program: String,
    /// Findings, a sentence each, shown before everything else.
    pub answer: Vec<String>,
    /// The artifact whose table stands first, as the paper's main result; none or an unknown one changes nothing.
    pub headline: String,
    /// Explanation of the profiles: how the tiny one differs from the paper's. May be empty.
    pub profile_note: String,
    /// In the order of the page. No two have the same profile and name.
    pub artifacts: Vec<PageArtifact>,
    pub claims: Vec<ClaimRow>,
    pub findings: Vec<FindingRow>,
    /// Results folders that the page does not show, each with the reason.
    pub left_out: Vec<(String, String)>,
    /// How each cell was made, by the key that [`SavedCell::key`](crate::results::SavedCell::key) refers to.
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
    pub tables: Vec<SavedTable>,
    pub figures: Vec<FigureView>,
    /// Name and value, in the order of the page.
    pub provenance: Vec<(String, String)>,
    /// Programs that computed the stored results behind the artifact.
    pub computed: Vec<ComputedBy>,
    /// The files that were read, by path, with their SHA-256.
    pub inputs: BTreeMap<String, String>,
    /// Link text, and the file's path relative to the page's folder.
    pub files: Vec<(String, String)>,
}

impl PageArtifact {
    /// Status of a complete artifact.
    pub const COMPLETE: &str = "complete";
}

/// Stored results that one commit computed on one machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComputedBy {
    pub commit: String,
    pub machine: String,
    /// Stored results: selections, operators, scores.
    pub results: usize,
    /// Computing time of all of them.
    pub seconds: f64,
    /// When the first and the last of them were finished, in UTC.
    pub first: String,
    pub last: String,
}

/// How a cell was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CellNote {
    pub title: String,
    /// Identity of the cell, independent of its name: model, engine, cut, recovery and calibration. Null if it was
    /// never planned.
    pub identity: Value,
    /// Name and value, in the order of the page.
    pub lines: Vec<(String, String)>,
    /// Commands for a shell, each to be copied: `ghostlab explain …`.
    pub commands: Vec<String>,
    /// Origins of its parts: program, commit, command, machine. Usually one.
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
    /// Distinguishes it from the artifact's other figures: the backbone. Empty if there is one figure.
    pub label: String,
}

/// One statement of the paper, counted in its tables and in ours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimRow {
    pub claim: String,
    /// The paper's sentence, of which this may be one of several checks.
    pub sentence: String,
    /// Where the paper says it.
    #[serde(rename = "place")]
    pub section: String,
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

impl ClaimRow {
    /// Returns the verdict on each sentence, whatever number of checks it comes to.
    pub fn by_sentence<'a>(
        claims: impl IntoIterator<Item = &'a Self>,
        verdict: fn(&Self) -> Judgement,
    ) -> Vec<Judgement> {
        let sentences = grouped(claims.into_iter().map(|claim| (claim.sentence.as_str(), verdict(claim))));
        sentences.into_iter().map(|(_, parts)| Judgement::of_parts(parts)).collect()
    }
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
    /// This is about other models than those that were measured.
    NotApplicable,
}

impl Judgement {
    pub const ALL: [Self; 4] = [Self::Holds, Self::Fails, Self::Unknown, Self::NotApplicable];

    /// Returns the verdict on a sentence from those on its parts: it fails with any part, and holds with all that apply.
    pub fn of_parts(parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: Vec<Self> = parts.into_iter().collect();
        let order = [Self::Fails, Self::Unknown, Self::Holds];
        order.into_iter().find(|verdict| parts.contains(verdict)).unwrap_or(Self::NotApplicable)
    }

    /// Returns the verdict in one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Unknown => "unknown",
            Self::NotApplicable => "not applicable",
        }
    }

    /// The verb of so many claims.
    pub fn of(self, count: usize) -> &'static str {
        match self {
            Self::Holds if count != 1 => "hold",
            Self::Fails if count != 1 => "fail",
            _ => self.word(),
        }
    }

    /// The class of its style.
    pub(super) fn class(self) -> String {
        self.word().replace(' ', "-")
    }

    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Holds => "✓",
            Self::Fails => "✗",
            Self::Unknown => "?",
            Self::NotApplicable => "–",
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
    #[serde(rename = "place")]
    pub position: String,
    pub expected: String,
    pub found: String,
    pub note: String,
}
