//! Checks whether different tables give the same value for the same condition.

use std::collections::HashMap;

use super::row::{EPSILON, agree, normalize_dense, normalize_equivalent};
use super::{Check, Finding, Severity, join_distinct};
use crate::artifact::paper::PaperNumber;
use crate::results::group_by_key;
use crate::results::number_record::{Condition, DENSE};

/// Entries of one condition and metric, grouped by value in order of first appearance.
type ValueGroups<'a> = Vec<Vec<&'a PaperNumber>>;

/// Compares all values that the tables give for one metric and condition.
///
/// Differences between conditions that should be equivalent (another solver, an explicit default number of sequences)
/// are only remarks.
pub(super) fn check(entries: &[PaperNumber], findings: &mut Vec<Finding>) {
    let mut groups: Vec<Vec<&PaperNumber>> = Vec::new();
    let mut known: HashMap<(Condition, &str), usize> = HashMap::new();
    for entry in entries.iter().filter(|entry| entry.record.value.is_some()) {
        let index = *known
            .entry((normalize_equivalent(&entry.record.condition), metric_with_prompt(entry)))
            .or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
        // A second value in the same row of the same table is reported by the duplicate check.
        let is_duplicate = groups[index]
            .iter()
            .any(|seen| seen.artifact == entry.artifact && seen.record.condition == entry.record.condition);
        if !is_duplicate {
            groups[index].push(entry);
        }
    }
    for group in groups.iter().filter(|group| group.len() > 1) {
        let classes = group_by_key(group.iter().map(|&entry| (normalize_dense(&entry.record.condition), entry)));
        for (_, class) in &classes {
            check_equal_conditions(&group_by_value(class), entries, findings);
        }
        check_equivalent_conditions(&classes, findings);
    }
}

/// Returns the metric of an entry. Latencies in table 5 get the prompt length and batch size that the paper states only
/// in the text, not in the table.
fn metric_with_prompt(entry: &PaperNumber) -> &str {
    match entry.record.metric.as_str() {
        "prefill_ms" => "prefill_ms:seq=2048:batch=1",
        metric => metric,
    }
}

fn group_by_value<'a>(class: &[&'a PaperNumber]) -> ValueGroups<'a> {
    let mut values: ValueGroups<'a> = Vec::new();
    for &entry in class {
        match values.iter_mut().find(|same| agree(same[0], entry)) {
            Some(same) => same.push(entry),
            None => values.push(vec![entry]),
        }
    }
    values
}

fn check_equal_conditions(values: &ValueGroups, entries: &[PaperNumber], findings: &mut Vec<Finding>) {
    let Some((first, others)) = values.split_first() else { return };
    for other in others {
        let one = first[0];
        let two = other[0];
        let (severity, note) = match distance_in_deviations(one, two) {
            // Accept repeated measurements that agree. A value without a standard deviation should be an exact copy
            // instead.
            Some(distance) if distance <= MAX_DEVIATIONS && has_no_deviation(first) == has_no_deviation(other) => {
                continue;
            }
            Some(distance) if distance <= MAX_DEVIATIONS => (
                Severity::Remark,
                format!(
                    "{distance:.1} standard deviations apart, but printed without one: not copied from the other table"
                ),
            ),
            Some(distance) => {
                (Severity::Suspicion, format!("repeated measurements, {distance:.1} standard deviations apart"))
            }
            None if differs_only_in_last_digit(one, two) => {
                (Severity::Remark, "only the last digit differs".to_owned())
            }
            None => (Severity::Contradiction, describe_possible_source(one, two, entries)),
        };
        findings.push(difference_finding(severity, first, other, note));
    }
}

fn check_equivalent_conditions(classes: &[(Condition, Vec<&PaperNumber>)], findings: &mut Vec<Finding>) {
    let Some(((_, first), others)) = classes.split_first() else { return };
    for (_, other) in others.iter().filter(|(_, other)| !agree(first[0], other[0])) {
        let note = format!("{} and {} should be the same", describe_method(first[0]), describe_method(other[0]));
        findings.push(difference_finding(Severity::Remark, first, other, note));
    }
}

fn describe_method(entry: &PaperNumber) -> String {
    let Condition { recovery, calibration, .. } = &entry.record.condition;
    format!("{recovery} on {calibration}")
}

fn difference_finding(severity: Severity, one: &[&PaperNumber], other: &[&PaperNumber], note: String) -> Finding {
    let finding = Finding::new(Check::Agreement, severity, &one[0].record.condition, &[one, other].concat());
    finding.with_texts(format_values(one), format_values(other), note)
}

fn format_values(same: &[&PaperNumber]) -> String {
    format!("{} ({})", same[0].printed, join_distinct(same.iter().map(|entry| entry.artifact.clone())))
}

/// Maximum distance between two latency measurements that count as equal, in standard deviations.
const MAX_DEVIATIONS: f64 = 5.0;

fn has_no_deviation(same: &[&PaperNumber]) -> bool {
    same.iter().all(|entry| entry.record.error.is_none())
}

/// Returns the distance between two measurements in standard deviations of their difference. A missing deviation is
/// taken from the other value. Returns `None` if both are missing.
fn distance_in_deviations(one: &PaperNumber, other: &PaperNumber) -> Option<f64> {
    let spread = deviation_or_twins(one, other)?.hypot(deviation_or_twins(other, one)?);
    // A deviation printed as 0.0 may be up to half a unit of its last digit, so assume at least one unit.
    let spread = spread.max(one.unit().max(other.unit()));
    Some((one.record.value? - other.record.value?).abs() / spread)
}

/// Returns the standard deviation of an entry, or that of `twin`, the measurement it is compared with, if the entry has
/// none.
fn deviation_or_twins(entry: &PaperNumber, twin: &PaperNumber) -> Option<f64> {
    entry.record.error.or(twin.record.error)
}

/// Returns whether two values differ by at most one unit in the last digit that both print.
fn differs_only_in_last_digit(one: &PaperNumber, other: &PaperNumber) -> bool {
    let (Some(a), Some(b)) = (one.record.value, other.record.value) else { return false };
    (a - b).abs() <= one.unit().max(other.unit()) + EPSILON
}

/// Describes where one of two differing values may have been copied from.
fn describe_possible_source(one: &PaperNumber, two: &PaperNumber, entries: &[PaperNumber]) -> String {
    if one.record.condition.criterion == DENSE && one.record.condition.calibration != two.record.condition.calibration {
        return "the dense backbone does not depend on the calibration".to_owned();
    }
    for (value, name) in [(one, &one.artifact), (two, &two.artifact)] {
        if let Some(entry) = entries.iter().find(|entry| is_twin(entry, value)) {
            return format!(
                "{} in {name} is the value for {} in {}",
                value.printed, entry.record.condition.calibration, entry.artifact
            );
        }
    }
    "two values of one condition".to_owned()
}

/// Returns whether two entries have the same metric and value, and conditions that differ only in their calibration.
fn is_twin(entry: &PaperNumber, value: &PaperNumber) -> bool {
    let condition = &value.record.condition;
    let other = &entry.record.condition;
    entry.record.metric == value.record.metric
        && agree(entry, value)
        && other.calibrated().0 != condition.calibrated().0
        && other.without_calibration() == condition.without_calibration()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::audit::paper_test::{entries, entry};

    const CONDITION: &str = "b,32,7,sleb,ghosted,false,c4";

    fn audit_findings(entries: &[PaperNumber]) -> Vec<Finding> {
        let mut findings = Vec::new();
        check(entries, &mut findings);
        findings
    }

    fn severities_of_pair(one: (&str, &str), other: (&str, &str)) -> Vec<Severity> {
        audit_findings(&[entry("t", one.0, "ppl_c4", one.1), entry("u", other.0, "ppl_c4", other.1)])
            .iter()
            .map(|finding| finding.severity)
            .collect()
    }

    #[test]
    fn different_values_of_one_condition_are_a_contradiction() {
        assert_eq!(severities_of_pair((CONDITION, "10.00"), (CONDITION, "10.02")), [Severity::Contradiction]);
        assert_eq!(
            severities_of_pair((CONDITION, "10.00"), (CONDITION, "10.01")),
            [Severity::Remark],
            "only the last digit differs"
        );
        assert_eq!(severities_of_pair((CONDITION, "10.00"), (CONDITION, "10.0")), []);
        assert_eq!(severities_of_pair((CONDITION, "10.00"), (CONDITION, "")), [], "a failed cell is ignored");
        for other in ["b,32,7,sleb,ghosted,true,c4", "b,32,11,sleb,ghosted,false,c4", "b,32,7,sleb,ghosted,false,c4:64"]
        {
            assert_eq!(severities_of_pair((CONDITION, "10.00"), (other, "20.00")), [], "{other}");
        }
    }

    #[test]
    fn finding_names_both_tables_and_both_values() {
        let entries = [
            entry("t", CONDITION, "ppl_c4", "10.00"),
            entry("u", CONDITION, "ppl_c4", "12.00"),
            entry("v", CONDITION, "ppl_c4", "10.00"),
        ];
        let findings = audit_findings(&entries);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].artifact, "t, v, u");
        assert_eq!((findings[0].expected.as_str(), findings[0].found.as_str()), ("10.00 (t, v)", "12.00 (u)"));
        assert_eq!((findings[0].row.as_str(), findings[0].column.as_str()), ("b, 7/32, sleb, ghosted, c4", "ppl_c4"));
    }

    #[test]
    fn difference_in_solver_or_default_size_is_only_a_remark() {
        for other in ["b,32,7,sleb,ghosted,false,c4:32", "b,32,7,sleb,ghosted:svd,false,c4"] {
            assert_eq!(severities_of_pair((CONDITION, "10.00"), (other, "20.00")), [Severity::Remark], "{other}");
            assert_eq!(severities_of_pair((CONDITION, "10.00"), (other, "10.00")), [], "{other}");
        }
    }

    #[test]
    fn dense_rows_of_two_calibrations_must_agree() {
        let c4 = "b,32,0,dense,none,false,c4";
        let wiki = "b,32,0,dense,none,false,wikitext2";
        assert_eq!(severities_of_pair((c4, "10.00"), (wiki, "10.02")), [Severity::Contradiction]);
        let pruned = ("b,32,7,sleb,none,false,c4", "b,32,7,sleb,none,false,wikitext2");
        assert_eq!(severities_of_pair((pruned.0, "10.00"), (pruned.1, "10.02")), []);
    }

    #[test]
    fn value_from_another_corpus_is_recognized() {
        let entries = [
            entry("t", "b,32,7,sleb,none,false,c4", "acc_average", "50.10"),
            entry("u", "b,32,7,sleb,none,false,c4", "acc_average", "51.20"),
            entry("v", "b,32,7,sleb,none,false,wikitext2", "acc_average", "51.20"),
        ];
        assert_eq!(audit_findings(&entries)[0].note, "51.20 in u is the value for wikitext2 in v");
        assert_eq!(audit_findings(&entries[..2])[0].note, "two values of one condition");
    }

    #[test]
    fn latencies_may_differ_by_five_standard_deviations() {
        let severities = |one: &str, other: &str| {
            let entries = [
                entry("t", CONDITION, "prefill_ms", one),
                entry("u", CONDITION, "prefill_ms:seq=2048:batch=1", other),
                entry("v", CONDITION, "prefill_ms:seq=512:batch=1", "9.0,0.1"),
            ];
            audit_findings(&entries).iter().map(|finding| finding.severity).collect::<Vec<_>>()
        };
        // hypot(3, 4) is 5, so a difference of 25 is five standard deviations.
        assert_eq!(severities("100.0,3.0", "125.0,4.0"), []);
        assert_eq!(severities("100.0,3.0", "125.1,4.0"), [Severity::Suspicion]);
        // A missing deviation is taken from the other value: 5√2 is 7.07.
        assert_eq!(
            severities("100.0", "107.0,1.0"),
            [Severity::Remark],
            "a repeated measurement without a standard deviation"
        );
        assert_eq!(severities("100.0", "100.0,1.0"), []);
        assert_eq!(severities("100.0", "107.1,1.0"), [Severity::Suspicion]);
        assert_eq!(severities("100.0", "100.2"), [Severity::Contradiction], "no standard deviation is printed");
    }

    #[test]
    fn agreement_check_ignores_duplicates_within_a_row() {
        assert!(audit_findings(&entries("t", CONDITION, &[("ppl_c4", "10.00"), ("ppl_c4", "11.00")])).is_empty());
    }
}
