//! Checks derived from sentences in the paper, applied to the paper's numbers and to ours.
//!
//! A [`Claim`] quotes a sentence and states its section, its interpretation and the artifacts it is about. It also
//! states in how many settings it must hold, and has a function that checks the numbers of one setting. To add a claim,
//! add an entry to `claims.yaml` and a function to `checks`.
//!
//! Numbers are compared as printed. A missing number makes the result of a check unknown. Each claim lists the methods
//! with which ours is compared, so that a missing method makes it unknown. The verdict on a claim is unknown if the
//! settings with unknown results could change it.

mod artifact_numbers;
mod checks;
mod judge;
mod number;
mod setting;
mod verdict_comparison;

#[cfg(test)]
mod paper_tests;
#[cfg(test)]
mod place_tests;
#[cfg(test)]
mod sample_records;

pub use artifact_numbers::{ArtifactNumbers, Artifacts};
pub use judge::{ClaimVerdict, SEEDS, SettingVerdict};
pub use number::Judgement;
pub use verdict_comparison::{
    CLAIMS, JudgedClaim, claim_row, claims_about, find_headline, format_claims, format_headline, format_row, judge_all,
    judge_folders, render,
};

use std::fmt;
use std::sync::LazyLock;

use checks::{CHECKS, CheckSetting, SETTING_FILTERS, SettingFilter};
use serde::Deserialize;

use crate::results::number_record::Condition;

#[derive(Debug, Clone)]
pub struct Claim {
    pub id: &'static str,
    /// Artifacts that provide the numbers: one, such as `table2`, or several whose numbers are joined.
    pub artifacts: &'static [&'static str],
    /// Sentence as worded in the paper.
    pub says: &'static str,
    /// Section of the paper that contains the sentence.
    pub section: &'static str,
    /// Interpretation of an imprecise word, such as "first or second" for "competitive".
    pub reading: Option<&'static str>,
    /// Axes that distinguish the settings of the claim. Each combination among the pruned cells is one setting.
    pub over: &'static [ClaimAxis],
    /// Number of settings in which the check must hold for the claim to hold.
    pub needed: RequiredSettings,
    /// Metric by which the sentence calls our method the best, or `None` if it does not.
    pub best_by: Option<&'static str>,
    /// Whether the sentence names the paper's models or quotes numbers measured on them.
    pub needs_paper_models: bool,
    /// Predicate that selects the settings covered by the claim.
    only: SettingFilter,
    check: CheckSetting,
}

/// Dimension along which the settings of a claim differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimAxis {
    Backbone,
    Criterion,
    Depth,
}

impl ClaimAxis {
    fn value(self, condition: &Condition) -> String {
        match self {
            ClaimAxis::Backbone => condition.backbone.clone(),
            ClaimAxis::Criterion => condition.criterion.clone(),
            ClaimAxis::Depth => condition.depth.to_string(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequiredSettings {
    #[default]
    All,
    /// More than half of the settings.
    Most,
    AtLeast(usize),
    Any,
}

impl fmt::Display for RequiredSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequiredSettings::All => f.write_str("all"),
            RequiredSettings::Most => f.write_str("most"),
            RequiredSettings::AtLeast(count) => write!(f, "at least {count}"),
            RequiredSettings::Any => f.write_str("any"),
        }
    }
}

impl RequiredSettings {
    /// Returns whether the claim holds, given that the check holds in `held` of `total` settings and is unknown in
    /// `unknown`. Returns `None` if the unknown settings could change the outcome, or if there are too few settings.
    fn decide(self, held: usize, unknown: usize, total: usize) -> Option<bool> {
        let needed = match self {
            RequiredSettings::All => total,
            RequiredSettings::Most => total / 2 + 1,
            RequiredSettings::AtLeast(count) => count,
            RequiredSettings::Any => 1,
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

/// Sentence from the paper and the claims derived from it.
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
    needed: RequiredSettings,
    only: Option<String>,
    best_by: Option<String>,
}

static ALL: LazyLock<Vec<Claim>> = LazyLock::new(|| {
    let sentences: Vec<Sentence> = match serde_saphyr::from_str(include_str!("claims.yaml")) {
        Ok(sentences) => sentences,
        Err(error) => unreachable!("invalid embedded claims.yaml: {error}"),
    };
    sentences.into_iter().flat_map(Sentence::claims).collect()
});

pub fn claims() -> impl Iterator<Item = &'static Claim> {
    ALL.iter()
}

impl Sentence {
    /// Converts the sentence into claims. Leaks its strings to give them a static lifetime.
    fn claims(self) -> impl Iterator<Item = Claim> {
        let (says, section): (&str, &str) = (self.says.leak(), self.section.leak());
        let artifacts: Vec<&str> = self.artifacts.into_iter().map(|name| &*name.leak()).collect();
        let artifacts: &[&str] = artifacts.leak();
        let needs_paper_models = self.models == Models::Paper;
        self.claims.into_iter().map(move |entry| {
            let only = entry.only.as_deref().unwrap_or(SETTING_FILTERS[0].0);
            let only = SETTING_FILTERS.iter().find(|(name, _)| *name == only);
            let check = CHECKS.iter().find(|(id, _)| *id == entry.id);
            let (Some((_, only)), Some((id, check))) = (only, check) else {
                unreachable!("invalid embedded claims.yaml: `{}` has no check, or its filter is unknown", entry.id)
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
    fn verdict_is_decided_only_if_unknowns_cannot_change_it() {
        assert_eq!((RequiredSettings::All).decide(6, 0, 6), Some(true));
        assert_eq!((RequiredSettings::All).decide(5, 1, 6), None);
        assert_eq!((RequiredSettings::All).decide(4, 1, 6), Some(false));
        assert_eq!((RequiredSettings::Most).decide(3, 0, 6), Some(false), "half is not most");
        assert_eq!((RequiredSettings::Most).decide(4, 2, 6), Some(true));
        assert_eq!((RequiredSettings::Most).decide(3, 1, 6), None);
        assert_eq!((RequiredSettings::AtLeast(5)).decide(5, 1, 6), Some(true));
        assert_eq!((RequiredSettings::AtLeast(5)).decide(4, 0, 6), Some(false));
        assert_eq!((RequiredSettings::AtLeast(5)).decide(4, 0, 4), None, "five of four is impossible");
        assert_eq!((RequiredSettings::Any).decide(0, 1, 6), None);
        assert_eq!((RequiredSettings::Any).decide(0, 0, 6), Some(false));
        assert_eq!((RequiredSettings::All).decide(0, 0, 0), None, "there are no settings");
    }
}
