//! The paper's count and ours, side by side.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::claim::{Claim, Needed};
use super::eval::Outcome;
use super::judge::Verdict;
use crate::record::Record;

/// The records of each artifact that there is: `table2` and so on.
pub type Artifacts = BTreeMap<String, Vec<Record>>;

/// A claim, judged on the paper's own numbers and on ours.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison<'a> {
    pub claim: &'a Claim,
    pub paper: Verdict,
    pub ours: Verdict,
    /// The profile that our numbers are from: `tiny` or `paper`.
    pub profile: String,
}

/// Judges all claims on both sides.
pub fn compare<'a>(claims: &'a [Claim], paper: &Artifacts, ours: &Artifacts, profile: &str) -> Vec<Comparison<'a>> {
    let absent_of_paper =
        |artifact: &str| if artifact.starts_with("figure") { "not printed as numbers" } else { "no data" }.to_owned();
    claims
        .iter()
        .map(|claim| Comparison {
            claim,
            paper: claim.judge_artifacts(paper, absent_of_paper),
            ours: claim.judge_artifacts(ours, |_| "not run".to_owned()),
            profile: profile.to_owned(),
        })
        .collect()
}

impl Claim {
    /// Judges the claim on the records of its artifacts. Where one of them is absent, only what its records could not
    /// change is settled; `why` says how an artifact comes to be absent.
    fn judge_artifacts(&self, artifacts: &Artifacts, why: impl Fn(&str) -> String) -> Verdict {
        let absent = self.artifacts.iter().find(|artifact| artifacts.get(*artifact).is_none_or(Vec::is_empty));
        let records: Vec<Record> =
            self.artifacts.iter().filter_map(|name| artifacts.get(name)).flatten().cloned().collect();
        let mut verdict = self.judge(&records);
        if let Some(artifact) = absent {
            let settled = match self.holds {
                // A single check may rest on the absent records.
                _ if self.over.is_empty() => None,
                Needed::All => Some(false),
                Needed::Any | Needed::AtLeast(_) => Some(true),
                Needed::Most => None,
            };
            if verdict.holds != settled {
                verdict.holds = None;
            }
            let all_absent = self.artifacts.iter().all(|name| artifacts.get(name).is_none_or(Vec::is_empty));
            let why = why(artifact);
            verdict.note = Some(if all_absent { why } else { format!("{artifact}: {why}") });
        }
        verdict
    }
}

impl Verdict {
    /// In a word.
    pub fn word(&self) -> &'static str {
        match self.holds {
            Some(true) => "HOLDS",
            Some(false) => "FAILS",
            None => "UNKNOWN",
        }
    }

    /// `5 of 6`, with what is unknown of it.
    pub fn count(&self) -> String {
        let mut text = match (&self.note, self.of) {
            (Some(note), 0) => return note.clone(),
            _ => format!("{} of {}", self.held, self.of),
        };
        if self.unknown > 0 {
            let _ = write!(text, ", {} unknown", self.unknown);
        }
        if let Some(note) = &self.note {
            let _ = write!(text, "; {note}");
        }
        text
    }
}

/// One line for each claim, `table2-average: paper 6 of 6 HOLDS, ours 5 of 6 (tiny): FAILS`, and below it the groups on
/// either side that are not true, with their numbers.
pub fn render(comparisons: &[Comparison<'_>]) -> String {
    let mut text = String::new();
    for Comparison { claim, paper, ours, profile } in comparisons {
        let (paper_count, our_count) = (paper.count(), ours.count());
        let (paper_word, our_word) = (paper.word(), ours.word());
        let _ =
            writeln!(text, "{}: paper {paper_count} {paper_word}, ours {our_count} ({profile}): {our_word}", claim.id);
        for (side, verdict) in [("paper", paper), ("ours", ours)] {
            for group in verdict.groups.iter().filter(|group| group.outcome != Outcome::True) {
                let values: Vec<&str> = group.group.iter().map(|(_, value)| value.as_str()).collect();
                let name = if values.is_empty() { String::new() } else { format!(" {}", values.join(" ")) };
                let word = if group.outcome == Outcome::False { "false" } else { "unknown" };
                let shown = group.shown.strip_prefix("unknown: ").unwrap_or(&group.shown);
                let _ = writeln!(text, "  {side}{name}: {word}: {shown}");
            }
        }
    }
    text
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
