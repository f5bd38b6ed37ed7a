//! Memory of an operator that is more than its matrix can be.

use super::finding::{Check, Finding, Severity};
use super::row::{AuditRow, EPSILON};
use crate::recovery;
use crate::results::record::Condition;

/// The backbone of whose memory the paper tells; `C`, and the numbers of all its weights, by its config and the sizes of its
/// published files.
const BACKBONE: &str = "llama-3.1-8b";
const CHANNELS: f64 = 4096.0;
const WEIGHTS: f64 = 8_030_261_248.0;

/// An operator is a `C×C` matrix. In the float type of the weights it is at most `C²` of their count of the dense backbone's
/// memory, which holds all of them and more; two printed percentages are each within half a unit of their last digit.
pub(super) fn check(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows.iter().filter(|row| row.condition.backbone == BACKBONE) {
        let Some((cell, own)) = row.get("peak_memory_percent") else { continue };
        let condition = Condition { recovery: recovery::NONE.to_owned(), ..row.condition.clone() };
        let bare = rows.iter().find(|bare| bare.artifact == row.artifact && *bare.condition == condition);
        let Some((base, bare)) = bare.and_then(|bare| bare.get("peak_memory_percent")) else { continue };
        let (most, least) = (100.0 * CHANNELS.powi(2) / WEIGHTS, own - bare - cell.unit());
        if least <= most + EPSILON {
            continue;
        }
        let expected = format!("at most {most:.2} % more than without an operator, C² of the weights");
        let found = format!("{} over {}", cell.printed, base.printed);
        let note = "as if an operator had more bytes for a number than the weights have";
        let finding = Finding::new(Check::Memory, Severity::Suspicion, row.condition, &[cell, base]);
        findings.push(finding.says(expected, found, note).in_column(&cell.record.metric));
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::AuditColumns;
    use super::*;
    use crate::artifact::audit::paper_test::entries;

    fn found(own: &str) -> usize {
        let bare = entries("t", "llama-3.1-8b,32,7,sleb,none,false,c4", &[("peak_memory_percent", "81.6")]);
        let row = entries("t", "llama-3.1-8b,32,7,sleb,ghosted,false,c4", &[("peak_memory_percent", own)]);
        let mut findings = Vec::new();
        check(&AuditRow::group(&[bare, row].concat(), AuditColumns::paper()), &mut findings);
        findings.len()
    }

    #[test]
    fn an_operator_may_take_its_matrix_and_what_rounding_adds() {
        // 4096² of 8.03 thousand million weights is 0.21 %; 81.65 and 81.85 print 81.7 and 81.9.
        for (own, wrong) in [("81.6", 0), ("81.8", 0), ("81.9", 0), ("82.0", 1)] {
            assert_eq!(found(own), wrong, "{own}");
        }
    }
}
