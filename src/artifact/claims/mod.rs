//! The paper's sentences as checks, judged on its own numbers and on ours.
//!
//! A [`Claim`] quotes a sentence of the paper, says where it stands, how it is read, of which artifacts and in how many
//! settings it must be true, and what it comes to: a short function over the numbers of one setting.
//!
//! | file | noun |
//! | --- | --- |
//! | `claims.yaml` | the claims, section by section: another one is another entry there, and its check |
//! | `checks` | what each claim comes to |
//! | `setting` | the numbers of one setting, and the questions that a claim asks of them: value, mean, least, best, lead, rank |
//! | `number` | a number that may be unknown, and what a check comes to: holds, fails, or unknown |
//! | `run` | the numbers of an artifact and what made them: only runs that agree are read together |
//! | `judge` | a claim on one side's numbers |
//! | `sentences` | the count of sentences, whatever number of checks each comes to |
//! | `compare` | the paper's count next to ours, also as a file next to a recorded run, and the folders that it is judged on |
//!
//! Numbers are compared as printed: equal print means equal.
//!
//! A number that is missing makes a check unknown, and never true: a cell that failed, a method without a cell, a metric
//! that was not measured. A claim names its rivals, so that one that is missing is missed. A claim whose unknown settings
//! could change it neither holds nor fails.

mod checks;
mod compare;
mod judge;
mod number;
mod run;
mod sentences;
mod setting;

#[cfg(test)]
mod paper_tests;
#[cfg(test)]
mod place_tests;
#[cfg(test)]
mod samples;

pub use compare::{CLAIMS, JudgedClaim, about, headline, headline_in, judged, judged_in, line, render, row, written};
pub use judge::{ClaimVerdict, SEEDS, SettingVerdict};
pub use number::Judgement;
pub use run::{ArtifactNumbers, Artifacts, ClaimRun};
pub use sentences::{SentenceCount, count_sentences};

use std::fmt;
use std::sync::LazyLock;

use checks::{CHECKS, Checked, ONLY, Only};
use serde::Deserialize;

use crate::results::record::Condition;

/// A claim of the paper.
#[derive(Debug, Clone)]
pub struct Claim {
    pub id: &'static str,
    /// Whose numbers it is about: `table2`, or several that it joins.
    pub artifacts: &'static [&'static str],
    /// The paper's sentence, worded as it is written.
    pub says: &'static str,
    /// Where the paper says it.
    pub section: &'static str,
    /// How a word of the sentence was read that is no number: "competitive" as "first or second".
    pub reading: Option<&'static str>,
    /// One check is made for each combination of these values among the pruned cells.
    pub over: &'static [ClaimAxis],
    /// In how many of them it must be true.
    pub needed: Needed,
    /// The metric that ours is said to be best by, where the claim is of that kind: its count stands with significance and seeds.
    pub best_by: Option<&'static str>,
    /// Whether the sentence names the paper's models or numbers that were measured on them.
    pub needs_paper_models: bool,
    /// The settings that it is about.
    only: Only,
    check: Checked,
}

/// A dimension that distinguishes the settings of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimAxis {
    Backbone,
    Criterion,
    Depth,
}

impl ClaimAxis {
    fn of(self, condition: &Condition) -> String {
        match self {
            ClaimAxis::Backbone => condition.backbone.clone(),
            ClaimAxis::Criterion => condition.criterion.clone(),
            ClaimAxis::Depth => condition.depth.to_string(),
        }
    }
}

/// In how many settings the check must be true for the claim to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Needed {
    #[default]
    All,
    /// In more than half of them.
    Most,
    AtLeast(usize),
    Any,
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Needed::All => f.write_str("all"),
            Needed::Most => f.write_str("most"),
            Needed::AtLeast(count) => write!(f, "at least {count}"),
            Needed::Any => f.write_str("any"),
        }
    }
}

impl Needed {
    /// Returns whether `held` of `of` settings suffice when `unknown` of them may still hold. `None` if that is open, or if
    /// there are fewer settings than the claim needs.
    fn decide(self, held: usize, unknown: usize, total: usize) -> Option<bool> {
        let needed = match self {
            Needed::All => total,
            Needed::Most => total / 2 + 1,
            Needed::AtLeast(count) => count,
            Needed::Any => 1,
        };
        if total == 0 || needed > total {
            None
        } else if held >= needed {
            Some(true)
        } else if held + unknown < needed {
            Some(false)
        } else {
            None
        }
    }
}

/// A sentence of the paper, and the claims that it comes to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sentence {
    says: String,
    #[serde(rename = "where")]
    section: String,
    #[serde(rename = "of")]
    artifacts: Vec<String>,
    #[serde(default)]
    models: Models,
    claims: Vec<ClaimEntry>,
}

/// Models that a sentence is about.
#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Models {
    #[default]
    Any,
    Paper,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimEntry {
    id: String,
    reading: Option<String>,
    over: Vec<ClaimAxis>,
    #[serde(default)]
    needed: Needed,
    only: Option<String>,
    best_by: Option<String>,
}

static ALL: LazyLock<Vec<Claim>> = LazyLock::new(|| {
    let sentences: Vec<Sentence> = match serde_saphyr::from_str(include_str!("claims.yaml")) {
        Ok(sentences) => sentences,
        Err(error) => unreachable!("claims.yaml is a part of the program: {error}"),
    };
    sentences.into_iter().flat_map(Sentence::claims).collect()
});

/// Iterates over all claims in the order of the paper.
pub fn claims() -> impl Iterator<Item = &'static Claim> {
    ALL.iter()
}

impl Sentence {
    /// Iterates over the claims, leaking their texts for the lifetime of the program.
    fn claims(self) -> impl Iterator<Item = Claim> {
        let (says, section): (&str, &str) = (self.says.leak(), self.section.leak());
        let artifacts: Vec<&str> = self.artifacts.into_iter().map(|name| &*name.leak()).collect();
        let artifacts: &[&str] = artifacts.leak();
        let needs_paper_models = self.models == Models::Paper;
        self.claims.into_iter().map(move |entry| {
            let only = entry.only.as_deref().unwrap_or(ONLY[0].0);
            let only = ONLY.iter().find(|(name, _)| *name == only);
            let check = CHECKS.iter().find(|(id, _)| *id == entry.id);
            let (Some((_, only)), Some((id, check))) = (only, check) else {
                unreachable!("claims.yaml is a part of the program: {} has no check, or no such settings", entry.id)
            };
            Claim {
                id,
                artifacts,
                says,
                section,
                reading: entry.reading.map(|text| &*text.leak()),
                over: entry.over.leak(),
                needed: entry.needed,
                best_by: entry.best_by.map(|metric| &*metric.leak()),
                needs_paper_models,
                only: *only,
                check: *check,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_decides_only_when_the_unknown_cannot_change_it() {
        assert_eq!((Needed::All).decide(6, 0, 6), Some(true));
        assert_eq!((Needed::All).decide(5, 1, 6), None);
        assert_eq!((Needed::All).decide(4, 1, 6), Some(false));
        assert_eq!((Needed::Most).decide(3, 0, 6), Some(false), "half is not most");
        assert_eq!((Needed::Most).decide(4, 2, 6), Some(true));
        assert_eq!((Needed::Most).decide(3, 1, 6), None);
        assert_eq!((Needed::AtLeast(5)).decide(5, 1, 6), Some(true));
        assert_eq!((Needed::AtLeast(5)).decide(4, 0, 6), Some(false));
        assert_eq!((Needed::AtLeast(5)).decide(4, 0, 4), None, "five of four cannot be asked");
        assert_eq!((Needed::Any).decide(0, 1, 6), None);
        assert_eq!((Needed::Any).decide(0, 0, 6), Some(false));
        assert_eq!((Needed::All).decide(0, 0, 0), None, "nothing holds of nothing");
    }
}
