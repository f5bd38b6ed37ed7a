//! Judges a claim on the numbers of its artifacts.

use std::collections::{BTreeMap, BTreeSet};

use super::artifact_numbers::{ArtifactNumbers, Artifacts, IdentifiedRecord, find_incompatibility};
use super::number::{ClaimCheck, Judgement};
use super::setting::{ClaimSetting, NOISY};
use super::{Claim, ClaimAxis, RequiredSettings};
use crate::pipeline::identity::{FlatSettings, SettingPath, setting_differences};
use crate::recovery;
use crate::results::number_record::{DENSE, Record};
use crate::results::{BestCounts, BestQuestion, RowContent, group_by_key, is_one_measurement};

/// Artifact that repeats table 2 with several calibration seeds.
pub const SEEDS: &str = "seeds";

/// Verdict on a claim, with the counts behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimVerdict {
    pub outcome: Judgement,
    /// Explanation of an unknown verdict.
    pub reason: Option<String>,
    /// Number of settings in which the check holds.
    pub held: usize,
    /// Number of settings in which the check is inconclusive. They do not count in `held`.
    pub unknown: usize,
    pub total: usize,
    /// Number of settings in which the check must hold.
    pub needed: RequiredSettings,
    /// Whether a run did not check the dense models against the paper (`--no-gate`).
    pub ungated: bool,
    /// Counts of settings in which our method scores best. `None` unless the claim is that it is the best method.
    pub best: Option<BestCounts>,
    pub settings: Vec<SettingVerdict>,
}

/// Verdict of the check in one setting.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingVerdict {
    pub setting: Vec<(ClaimAxis, String)>,
    pub outcome: Judgement,
    /// Criterion of an earlier setting that removed the same layers but has different repaired scores. Settings whose
    /// scores are all equal are merged instead.
    pub cut_of: Option<String>,
    /// Numbers that the check used, such as `ghosted 60.10 > replaceme-ls 59.45`, or the missing numbers.
    pub shown: String,
}

impl Claim {
    /// Judges the claim. `absent` explains why an artifact has no numbers.
    pub(super) fn judge(&self, artifacts: &Artifacts, absent: impl Fn(&str) -> String) -> ClaimVerdict {
        let mut present: Vec<(&str, &ArtifactNumbers)> = Vec::new();
        for &name in self.artifacts {
            match artifacts.get(name).filter(|artifact| !artifact.numbers.is_empty()) {
                Some(artifact) => present.push((name, artifact)),
                None => return self.unknown_verdict(absent(name)),
            }
        }
        if let Some(reason) = present.windows(2).find_map(|pair| find_incompatibility(pair[0], pair[1])) {
            return self.unknown_verdict(reason);
        }
        let ungated = present.iter().filter_map(|(_, artifact)| artifact.stored.as_ref()).any(|run| !run.gate);
        let best = self.best_counts(artifacts, &present);
        ClaimVerdict { ungated, best, ..self.decide_verdict(self.judge_settings(&present)) }
    }

    /// Counts in how many settings our method has the best row. Returns `None` if the claim is not about the best
    /// method, if the numbers are the paper's, or if no other method was measured.
    fn best_counts(&self, artifacts: &Artifacts, present: &[(&str, &ArtifactNumbers)]) -> Option<BestCounts> {
        let run = present.first()?.1.stored.as_ref()?;
        let seeds = artifacts.get(SEEDS).and_then(|artifacts| artifacts.stored.as_ref());
        let question = BestQuestion {
            metric: self.best_by?,
            method: recovery::paper_appearance()?.name,
            keeps: &|condition| (self.only)(condition),
            group_by: &|condition| self.over.iter().map(|axis| axis.value(condition)).collect(),
        };
        BestCounts::new(run, seeds, question)
    }

    pub(super) fn not_applicable(&self) -> ClaimVerdict {
        let reason = "the sentence is about the paper's models".to_owned();
        ClaimVerdict { outcome: Judgement::NotApplicable, ..self.unknown_verdict(reason) }
    }

    /// Runs the check in every setting for which all artifacts have numbers.
    fn judge_settings(&self, artifacts: &[(&str, &ArtifactNumbers)]) -> Vec<SettingVerdict> {
        let key =
            |record: &Record| -> Vec<String> { self.over.iter().map(|axis| axis.value(&record.condition)).collect() };
        let mut seen = BTreeSet::new();
        let numbers = artifacts.iter().flat_map(|(_, artifact)| &artifact.numbers);
        let numbers =
            numbers.filter(|number| self.is_about(&number.record)).filter(|IdentifiedRecord { record, identity }| {
                seen.insert((&record.condition, &record.metric, record.value.map(f64::to_bits), identity))
            });
        let mut groups: Vec<ClaimGroup<'_>> = group_by_key(numbers.map(|number| (key(&number.record), number)));
        groups.retain(|(wanted, _)| {
            artifacts.iter().all(|(_, artifact)| {
                artifact.records().filter(|record| self.is_about(record)).any(|record| key(record) == *wanted)
            })
        });
        let groups = self.merge_equal_settings(groups);
        let cuts: Vec<Option<String>> = (0..groups.len()).map(|at| self.find_earlier_cut(&groups, at)).collect();
        groups.into_iter().zip(cuts).map(|(group, cut_of)| self.judge_setting(artifacts, group, cut_of)).collect()
    }

    fn is_about(&self, record: &Record) -> bool {
        record.condition.criterion != DENSE && (self.only)(&record.condition)
    }

    fn judge_setting(
        &self,
        artifacts: &[(&str, &ArtifactNumbers)],
        (key, numbers): ClaimGroup<'_>,
        cut_of: Option<String>,
    ) -> SettingVerdict {
        let records: Vec<&Record> = numbers.iter().map(|number| &number.record).collect();
        let backbone = records.first().map(|record| &record.condition.backbone);
        let dense = artifacts.iter().flat_map(|(_, artifact)| artifact.records());
        let dense =
            dense.filter(|record| record.condition.criterion == DENSE && Some(&record.condition.backbone) == backbone);
        let setting = ClaimSetting::new(records, dense.collect());
        let ClaimCheck { outcome, mut shown } = (self.check)(&setting);
        let differing = differing_settings(&numbers);
        if outcome == Judgement::Unknown && !differing.is_empty() {
            shown = format!("{shown}; the cells differ in {}", differing.join(", "));
        }
        // Suggest measuring again only for our timings, because the paper's cannot be measured again.
        let measured = artifacts.iter().any(|(_, artifact)| artifact.stored.is_some());
        if outcome == Judgement::Unknown && shown.contains(NOISY) && measured {
            shown = format!("{shown}; run the same command with --retime to measure again");
        }
        SettingVerdict { setting: self.over.iter().copied().zip(key).collect(), outcome, cut_of, shown }
    }

    /// Merges settings whose criteria have equal scores so that each measurement counts only once.
    fn merge_equal_settings<'a>(&self, groups: Vec<ClaimGroup<'a>>) -> Vec<ClaimGroup<'a>> {
        let Some(axis) = self.over.iter().position(|axis| *axis == ClaimAxis::Criterion) else { return groups };
        let mut cuts: Vec<ClaimGroup<'a>> = Vec::new();
        for (key, all) in groups {
            match cuts
                .iter_mut()
                .find(|(known, first)| is_equal_but(axis, known, &key) && have_equal_records(first, &all, |_| true))
            {
                Some((known, _)) => known[axis] = format!("{} = {}", known[axis], key[axis]),
                None => cuts.push((key, all)),
            }
        }
        cuts
    }

    /// Returns the criterion of the first earlier group with equal unrepaired scores. Equal scores imply that
    /// both groups remove the same layers.
    fn find_earlier_cut(&self, groups: &[ClaimGroup<'_>], at: usize) -> Option<String> {
        let axis = self.over.iter().position(|axis| *axis == ClaimAxis::Criterion)?;
        let (key, all) = &groups[at];
        let first = groups[..at].iter().find(|(known, first)| {
            is_equal_but(axis, known, key)
                && have_equal_records(first, all, |record: &Record| record.condition.recovery == recovery::NONE)
        });
        first.map(|(known, _)| known[axis].clone())
    }

    fn decide_verdict(&self, settings: Vec<SettingVerdict>) -> ClaimVerdict {
        let held = count_outcomes(&settings, Judgement::Holds);
        let unknown = count_outcomes(&settings, Judgement::Unknown);
        let total = settings.len();
        let (outcome, reason) = match self.needed.decide(held, unknown, total) {
            Some(true) => (Judgement::Holds, None),
            Some(false) => (Judgement::Fails, None),
            None if total == 0 => (Judgement::Unknown, Some("no numbers".to_owned())),
            None if unknown == 0 => {
                (Judgement::Unknown, Some(format!("too few settings for `{}` ({total})", self.needed)))
            }
            None => {
                let first = settings.iter().find(|setting| setting.outcome == Judgement::Unknown);
                (Judgement::Unknown, first.map(|setting| setting.shown.clone()))
            }
        };
        ClaimVerdict {
            outcome,
            reason,
            held,
            unknown,
            total,
            needed: self.needed,
            ungated: false,
            best: None,
            settings,
        }
    }

    fn unknown_verdict(&self, reason: String) -> ClaimVerdict {
        ClaimVerdict { reason: Some(reason), ..self.decide_verdict(Vec::new()) }
    }
}

/// Returns whether two keys are equal except for one axis.
fn is_equal_but(axis: usize, one: &[String], other: &[String]) -> bool {
    (0..one.len()).all(|at| at == axis || one[at] == other[at])
}

fn count_outcomes(settings: &[SettingVerdict], outcome: Judgement) -> usize {
    settings.iter().filter(|setting| setting.outcome == outcome).count()
}

/// Axis values of a setting, and its numbers.
type ClaimGroup<'a> = (Vec<String>, Vec<&'a IdentifiedRecord>);

/// Returns whether the records that `is_selected` accepts are equal in both groups.
fn have_equal_records(
    one: &[&IdentifiedRecord],
    other: &[&IdentifiedRecord],
    is_selected: impl Fn(&Record) -> bool,
) -> bool {
    is_one_measurement(&row_content(one, &is_selected), &row_content(other, &is_selected))
}

fn row_content<'a>(all: &[&'a IdentifiedRecord], is_selected: impl Fn(&Record) -> bool) -> RowContent<'a> {
    RowContent::scores(all.iter().map(|number| &number.record).filter(|record| is_selected(record)))
}

/// Returns the settings in which numbers with the same condition and metric differ.
fn differing_settings(numbers: &[&IdentifiedRecord]) -> Vec<String> {
    let mut alike: BTreeMap<_, Vec<&FlatSettings>> = BTreeMap::new();
    for IdentifiedRecord { record, identity } in numbers {
        alike.entry((&record.condition, &record.metric)).or_default().extend(identity);
    }
    let pairs = alike.values().flat_map(|all| all.windows(2));
    let paths: BTreeSet<SettingPath> =
        pairs.flat_map(|pair| setting_differences(pair[0], pair[1])).map(|differs| differs.path).collect();
    paths.iter().map(ToString::to_string).collect()
}

impl ClaimVerdict {
    /// Formats the number of settings in which the claim holds, such as `17 of 18, all needed`, or the reason why there
    /// are no settings.
    pub fn count(&self) -> String {
        if self.total == 0 {
            return self.reason.clone().unwrap_or_default();
        }
        let unknown = if self.unknown == 0 { String::new() } else { format!(", {} unknown", self.unknown) };
        let repeated = self.settings.iter().filter(|setting| setting.cut_of.is_some()).count();
        let repeated = if repeated == 0 { String::new() } else { format!(", {repeated} on a cut already counted") };
        let gate = if self.ungated { " (computed with --no-gate)" } else { "" };
        let best = self.best.as_ref().map_or_else(String::new, |best| format!(" ({})", best.significance_text()));
        format!("{} of {}{best}{unknown}{repeated}, {} needed{gate}", self.held, self.total, self.needed)
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
