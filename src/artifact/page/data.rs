//! Contents of the results page as plain data.
//!
//! The data is stored as JSON, with defaults for fields missing from older files. All strings are plain text, never HTML.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::artifact::audit::Severity;
use crate::results::{SavedTable, grouped};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Page {
    pub title: String,
    pub made: String,
    pub program: String,
    /// Main findings, one sentence each, shown first.
    pub answer: Vec<String>,
    /// Name of the artifact with the paper's main result, which is shown first. Empty if unknown.
    pub headline: String,
    /// Explanation of the profiles, possibly empty.
    pub profile_note: String,
    /// Artifacts in page order, unique by profile and name.
    pub artifacts: Vec<PageArtifact>,
    pub claims: Vec<ClaimRow>,
    pub findings: Vec<FindingRow>,
    /// Results folders that the page omits, with the reasons.
    pub left_out: Vec<(String, String)>,
    /// Provenance of each cell, by the key in [`SavedCell::key`](crate::results::SavedCell::key).
    pub cells: BTreeMap<String, CellNote>,
}

/// A reproduced table or figure of the paper.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageArtifact {
    pub name: String,
    /// Profile (`paper`, `tiny`), or the folder of a run with other settings. Empty without a profile, as for a list.
    pub profile: String,
    pub title: String,
    pub caption: String,
    /// Status, such as `complete` or `3 of 40 cells failed`, possibly empty.
    pub status: String,
    pub tables: Vec<SavedTable>,
    pub figures: Vec<FigureView>,
    /// Provenance lines as pairs of name and value.
    pub provenance: Vec<(String, String)>,
    /// Origins of the stored results behind the artifact.
    pub computed: Vec<ComputedBy>,
    /// SHA-256 of each input file, by path.
    pub inputs: BTreeMap<String, String>,
    /// Links to files, as pairs of a text and a path relative to the page's folder.
    pub files: Vec<(String, String)>,
}

impl PageArtifact {
    pub const COMPLETE: &str = "complete";
}

/// Stored results that one commit computed on one machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComputedBy {
    pub commit: String,
    pub machine: String,
    pub results: usize,
    /// Total computing time in seconds.
    pub seconds: f64,
    /// UTC times of the first and the last result.
    pub first: String,
    pub last: String,
}

/// Provenance of a cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CellNote {
    pub title: String,
    /// Settings of the cell. Null if the cell was never planned.
    pub identity: Value,
    /// Lines as pairs of name and value.
    pub lines: Vec<(String, String)>,
    /// Shell commands that can be copied: `ghostlab explain …`.
    pub commands: Vec<String>,
    /// Origins of the parts, usually one: program, commit, command and machine.
    pub makers: Vec<Vec<(String, String)>>,
    pub parts: Vec<ObjectNote>,
    /// SHA-256 of each input file, by path.
    pub inputs: BTreeMap<String, String>,
}

/// Stored object that a cell was computed from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectNote {
    pub kind: String,
    /// Hash of the object's key.
    pub key: String,
    /// UTC time of completion, or empty if unknown.
    pub finished: String,
    pub seconds: f64,
    /// Index into [`CellNote::makers`].
    pub maker: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FigureView {
    pub svg: String,
    /// Backbone, if the artifact has several figures.
    pub label: String,
}

/// A claim of the paper, with its verdicts on the paper's tables and on ours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimRow {
    pub claim: String,
    /// Sentence of the paper that the claim is part of.
    pub sentence: String,
    #[serde(rename = "place")]
    pub section: String,
    /// Number of settings in which the claim holds in the paper's tables, such as `54 of 60`.
    pub paper: String,
    pub paper_verdict: Judgement,
    /// Number of settings in which the claim holds in our tables.
    pub ours: String,
    pub verdict: Judgement,
    /// Name of the claim's artifact ([`PageArtifact::name`]), or empty if there are several.
    pub artifact: String,
    /// Profile that the claim is judged on, or empty if the claim applies to all profiles.
    pub profile: String,
}

impl ClaimRow {
    /// Returns the verdict on each sentence.
    pub fn by_sentence<'a>(
        claims: impl IntoIterator<Item = &'a Self>,
        verdict: fn(&Self) -> Judgement,
    ) -> Vec<Judgement> {
        let sentences = grouped(claims.into_iter().map(|claim| (claim.sentence.as_str(), verdict(claim))));
        sentences.into_iter().map(|(_, parts)| Judgement::of_parts(parts)).collect()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    Holds,
    Fails,
    /// A required number is missing.
    #[default]
    Unknown,
    /// The statement is about models that were not measured.
    NotApplicable,
}

impl Judgement {
    pub const ALL: [Self; 4] = [Self::Holds, Self::Fails, Self::Unknown, Self::NotApplicable];

    /// Combines the verdicts on the parts of a sentence. Returns the first of failed, unknown and holding that occurs.
    pub fn of_parts(parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: Vec<Self> = parts.into_iter().collect();
        let order = [Self::Fails, Self::Unknown, Self::Holds];
        order.into_iter().find(|verdict| parts.contains(verdict)).unwrap_or(Self::NotApplicable)
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Unknown => "unknown",
            Self::NotApplicable => "not applicable",
        }
    }

    /// Returns the verb form for `count` claims.
    pub fn of(self, count: usize) -> &'static str {
        match self {
            Self::Holds if count != 1 => "hold",
            Self::Fails if count != 1 => "fail",
            _ => self.word(),
        }
    }

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

/// A finding of the audit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FindingRow {
    pub severity: Severity,
    /// Check that failed.
    pub rule: String,
    #[serde(rename = "place")]
    pub position: String,
    pub expected: String,
    pub found: String,
    pub note: String,
}
