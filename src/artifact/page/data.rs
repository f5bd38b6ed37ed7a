//! Contents of the results page as plain data.
//!
//! The data is stored as JSON. Fields that are missing from older files get default values. All strings are plain text,
//! never HTML.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::artifact::audit::Finding;
use crate::results::{SavedTable, group_by_key};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Page {
    pub title: String,
    pub made: String,
    pub program: String,
    /// Main findings, shown first on the page. Each is one sentence.
    pub answer: Vec<String>,
    /// Name of the artifact with the paper's main result, which precedes the other artifacts. Empty if unknown.
    pub headline: String,
    /// Explanation of the profiles. May be empty.
    pub profile_note: String,
    /// Artifacts in the order of the page. Profile and name together are unique.
    pub artifacts: Vec<PageArtifact>,
    pub claims: Vec<ClaimRow>,
    pub findings: Vec<Finding>,
    /// Results folders left out of the page, each with the reason.
    pub left_out: Vec<(String, String)>,
    /// Provenance of each cell. The keys are those in [`SavedCell::key`](crate::results::SavedCell::key).
    pub cells: BTreeMap<String, CellNote>,
}

/// A reproduced table or figure, or a list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageArtifact {
    pub name: String,
    /// Profile (such as `paper` or `tiny`), or the folder of a run with other settings. Empty if there is no profile,
    /// as for a list.
    pub profile: String,
    pub title: String,
    pub caption: String,
    /// Status, such as `complete` or `3 of 40 cells failed`. May be empty.
    pub status: String,
    pub tables: Vec<SavedTable>,
    pub figures: Vec<FigureView>,
    /// Command, commit, machine and times of the run, as name-value pairs.
    pub provenance: Vec<(String, String)>,
    /// Commits and machines that computed the stored results of the artifact.
    pub computed: Vec<ComputedBy>,
    /// SHA-256 of each input file, keyed by path.
    pub inputs: BTreeMap<String, String>,
    /// Links to files, each with its text and a path relative to the folder of the page.
    pub files: Vec<(String, String)>,
}

impl PageArtifact {
    pub const COMPLETE: &str = "complete";
}

/// Stored results that were computed with one commit on one machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComputedBy {
    pub commit: String,
    pub machine: String,
    pub results: usize,
    /// Total computing time, in seconds.
    pub seconds: f64,
    /// UTC time of the first result.
    pub first: String,
    /// UTC time of the last result.
    pub last: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CellNote {
    pub title: String,
    /// Settings of the cell. Null if it was not run because its dense backbone did not match the paper.
    pub identity: Value,
    /// Removed layers, engine, notes and computing time of the cell, as name-value pairs.
    pub lines: Vec<(String, String)>,
    /// Shell commands to copy, such as `ghostlab explain …`.
    pub commands: Vec<String>,
    /// Origins of the objects in `parts`: program, commit, command and machine. Usually there is only one.
    pub makers: Vec<Vec<(String, String)>>,
    pub parts: Vec<ObjectNote>,
    /// SHA-256 of each input file, keyed by path.
    pub inputs: BTreeMap<String, String>,
}

/// Stored object that a cell was computed from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectNote {
    pub kind: String,
    /// Hash of the object's key.
    pub key: String,
    /// UTC time at which the computation finished. Empty if unknown.
    pub finished: String,
    pub seconds: f64,
    /// Index into [`CellNote::makers`].
    pub maker: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FigureView {
    pub svg: String,
    /// Label of the figure, such as its backbone. Empty if the artifact has only one figure.
    pub label: String,
}

/// A claim made in the paper, with its verdicts for the paper's tables and for ours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimRow {
    pub claim: String,
    /// Sentence in the paper that contains the claim.
    pub sentence: String,
    #[serde(rename = "place")]
    pub section: String,
    /// Number of settings in which the claim holds in the paper's tables, such as `54 of 60`.
    pub paper: String,
    pub paper_verdict: Judgement,
    /// Number of settings in which the claim holds in our tables.
    pub ours: String,
    pub verdict: Judgement,
    /// Name of the artifact that the claim is about ([`PageArtifact::name`]). Empty if there are several.
    pub artifact: String,
    /// Profile in which the claim is judged. Empty if the claim applies to all profiles.
    pub profile: String,
}

impl ClaimRow {
    /// Returns one verdict per sentence, combined from those of its claims.
    pub fn by_sentence<'a>(
        claims: impl IntoIterator<Item = &'a Self>,
        verdict: fn(&Self) -> Judgement,
    ) -> Vec<Judgement> {
        let sentences = group_by_key(claims.into_iter().map(|claim| (claim.sentence.as_str(), verdict(claim))));
        sentences.into_iter().map(|(_, parts)| Judgement::combine(parts)).collect()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    Holds,
    Fails,
    /// A number needed for the verdict is missing.
    #[default]
    Unknown,
    /// The claim is about models that were not measured.
    NotApplicable,
}

impl Judgement {
    pub const ALL: [Self; 4] = [Self::Holds, Self::Fails, Self::Unknown, Self::NotApplicable];

    /// Combines the verdicts for the parts of a sentence. The result is the first of `Fails`, `Unknown` and
    /// `Holds` that occurs, or `NotApplicable` if none of them does.
    pub fn combine(parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: Vec<Self> = parts.into_iter().collect();
        let order = [Self::Fails, Self::Unknown, Self::Holds];
        order.into_iter().find(|verdict| parts.contains(verdict)).unwrap_or(Self::NotApplicable)
    }

    pub fn label(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Unknown => "unknown",
            Self::NotApplicable => "not applicable",
        }
    }

    /// Returns the verb for `count` claims, in the singular or the plural.
    pub fn verb(self, count: usize) -> &'static str {
        match self {
            Self::Holds if count != 1 => "hold",
            Self::Fails if count != 1 => "fail",
            _ => self.label(),
        }
    }

    /// Formats a number of claims with this verdict, such as `2 fail` or `1 is unknown`.
    pub fn count_text(self, count: usize) -> String {
        match self {
            Self::Unknown | Self::NotApplicable if count == 1 => format!("1 is {}", self.label()),
            Self::Unknown | Self::NotApplicable => format!("{count} are {}", self.label()),
            Self::Holds | Self::Fails => format!("{count} {}", self.verb(count)),
        }
    }

    pub(super) fn class(self) -> String {
        self.label().replace(' ', "-")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_with_several_claims_counts_once() {
        let rows = [
            row("accuracy and perplexity", Judgement::Holds),
            row("accuracy and perplexity", Judgement::Fails),
            row("both latencies", Judgement::Holds),
            row("both latencies", Judgement::Holds),
            row("widens", Judgement::Unknown),
            row("on LLaMA-2-7B", Judgement::NotApplicable),
            row("on LLaMA-2-7B", Judgement::NotApplicable),
        ];
        let verdicts = [Judgement::Fails, Judgement::Holds, Judgement::Unknown, Judgement::NotApplicable];
        assert_eq!(ClaimRow::by_sentence(&rows, |row| row.verdict), verdicts);
        let texts = verdicts.map(|verdict| verdict.count_text(1));
        assert_eq!(texts, ["1 fails", "1 holds", "1 is unknown", "1 is not applicable"]);
    }

    fn row(sentence: &str, verdict: Judgement) -> ClaimRow {
        ClaimRow { sentence: sentence.into(), verdict, ..ClaimRow::default() }
    }
}
