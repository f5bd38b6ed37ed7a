//! What a claim comes to on a list of records.

use std::collections::BTreeSet;

use serde::Serialize;

use super::claim::Claim;
use super::eval::{self, Outcome};
use super::filter::{Depths, Field};
use super::read::Group;
use crate::record::Record;

/// Whether a claim holds, and on what that rests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// None where missing numbers leave it open.
    pub holds: Option<bool>,
    /// In the order in which the records have them.
    pub groups: Vec<GroupVerdict>,
    /// Groups in which the check is true.
    pub held: usize,
    /// All groups.
    pub of: usize,
    /// Groups in which the check is unknown; never among `held`.
    pub unknown: usize,
    /// Why the claim is open, where that is not for a number of a group.
    pub note: Option<String>,
}

/// The check on one combination of the fields in `over`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupVerdict {
    /// Empty where the claim has a single check.
    pub group: Vec<(Field, String)>,
    pub outcome: Outcome,
    /// The numbers used (`ghosted 60.10 > replaceme-ls 59.45`), or what is missing.
    pub shown: String,
}

impl Claim {
    /// Judges the claim on the records of its artifacts. A record that two artifacts share counts once; a value that is
    /// not finite is missing.
    pub fn judge(&self, records: &[Record]) -> Verdict {
        let mut seen = BTreeSet::new();
        let own: Vec<&Record> = records
            .iter()
            .filter(|record| seen.insert((&record.condition, &record.metric, record.value.map(f64::to_bits))))
            .collect();
        // Before `only`: it may itself ask for the deepest cut.
        let depths = Depths::of(own.iter().copied());
        let admitted = own.into_iter().filter(|record| self.only.iter().all(|filter| filter.admits(record, &depths)));

        let mut groups: Vec<(Vec<String>, Vec<&Record>)> = Vec::new();
        for record in admitted {
            let key: Vec<String> = self.over.iter().map(|field| field.of(&record.condition)).collect();
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, records)) => records.push(record),
                None => groups.push((key, vec![record])),
            }
        }
        self.verdict(groups.into_iter().map(|(key, records)| self.judge_group(key, records, &depths)).collect())
    }

    fn judge_group(&self, key: Vec<String>, records: Vec<&Record>, depths: &Depths) -> GroupVerdict {
        let (outcome, shown) = eval::truth(&self.truth, &Group { records, depths });
        GroupVerdict { group: self.over.iter().copied().zip(key).collect(), outcome, shown }
    }

    fn verdict(&self, groups: Vec<GroupVerdict>) -> Verdict {
        let count = |outcome| groups.iter().filter(|group| group.outcome == outcome).count();
        let (held, unknown, of) = (count(Outcome::True), count(Outcome::Unknown), groups.len());
        let holds = self.holds.decide(held, unknown, of);
        let note = match holds {
            None if of == 0 => Some("no records".to_owned()),
            None if unknown == 0 => Some(format!("{of} groups are too few for `{}`", self.holds)),
            _ => None,
        };
        Verdict { holds, groups, held, of, unknown, note }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
