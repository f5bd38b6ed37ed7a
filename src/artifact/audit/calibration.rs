//! How many calibration sequences an unsized row has.

use super::finding::{Check, Finding, Severity};
use super::row::{AuditRow, agree, words};
use crate::results::record::Condition;

/// Sequences of all calibrations, as the paper states in its setup and its captions.
const STATED: &str = "128";

/// Scores that two rows must share for their agreement to be no chance.
const ENOUGH: usize = 2;

/// Where one table varies the number of sequences, a row of another that does not say its number is one of these rows.
/// It should be the one of the stated number.
pub(super) fn check(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows.iter().filter(|row| row.condition.calibrated().1.is_none()) {
        let size = |other: &AuditRow| {
            let (corpus, size) = other.condition.calibrated();
            let unsized_other = Condition { calibration: corpus.to_owned(), ..other.condition.clone() };
            (unsized_other == *row.condition).then_some(size?.to_owned())
        };
        let variants: Vec<(&AuditRow, String)> = rows.iter().filter_map(|other| Some((other, size(other)?))).collect();
        let is_of = |variant: &&(&AuditRow, String)| {
            let shared = row.shared_scores(variant.0);
            shared.len() >= ENOUGH && shared.iter().all(|(one, other)| agree(one, other))
        };
        let Some((stated, _)) = variants.iter().find(|variant| variant.1 == STATED) else { continue };
        let Some((actual, count)) = variants.iter().find(is_of) else { continue };
        if count == STATED {
            continue;
        }
        let shared = row.shared_scores(actual);
        let cells: Vec<_> = shared.iter().flat_map(|(one, other)| [*one, *other]).collect();
        let printed = shared.iter().filter_map(|(one, _)| Some((one, stated.get(&one.record.metric)?.0)));
        let (expected, found): (Vec<&str>, Vec<&str>) =
            printed.map(|(one, at_stated)| (at_stated.printed.as_str(), one.printed.as_str())).unzip();
        let said = |count: &str, printed: &[&str]| format!("{count} sequences: {}", printed.join(" "));
        let note = format!("the row is that of `{}` in {}", words(actual.condition), actual.artifact);
        let finding = Finding::new(Check::Calibration, Severity::Contradiction, row.condition, &cells);
        findings.push(finding.says(said(STATED, &expected), said(count, &found), note));
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::AuditColumns;
    use super::*;
    use crate::artifact::audit::paper_test::entries;

    fn found(own: &str) -> Vec<Finding> {
        let row = |table, calibration: &str, perplexity| {
            let condition = format!("b,32,7,sleb,ghosted,false,{calibration}");
            entries(table, &condition, &[("ppl_c4", perplexity), ("acc_average", "50.00")])
        };
        let entries = [row("t", "c4:32", "20.00"), row("t", "c4:128", "19.00"), row("u", "c4", own)].concat();
        let mut findings = Vec::new();
        check(&AuditRow::group(&entries, AuditColumns::paper()), &mut findings);
        findings
    }

    #[test]
    fn a_row_of_another_number_than_stated_is_found() {
        let findings = found("20.00");
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].expected, "128 sequences: 19.00 50.00");
        assert_eq!(findings[0].found, "32 sequences: 20.00 50.00");
        assert_eq!(findings[0].artifact, "u, t");
    }

    #[test]
    fn a_row_of_the_stated_number_or_of_none_is_not() {
        assert!(found("19.00").is_empty());
        assert!(found("21.00").is_empty());
    }
}
