//! Finds speedups that do not match their latencies, and operators that need more memory than their matrix.

use super::row::{AuditRow, EPSILON};
use super::{Check, Finding, Severity};
use crate::artifact::paper::PaperNumber;
use crate::recovery;
use crate::results::number_record::{Condition, DENSE};

/// Checks that each speedup equals the dense latency divided by the row's latency, within rounding.
pub(super) fn check_speedup(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows {
        let (Some((cell, speedup)), Some(prefill)) = (row.get("speedup"), row.get("prefill_ms")) else { continue };
        let dense = rows.iter().find(|dense| {
            dense.artifact == row.artifact
                && dense.condition.criterion == DENSE
                && dense.condition.backbone == row.condition.backbone
        });
        let Some(dense) = dense.and_then(|dense| dense.get("prefill_ms")) else { continue };
        let ((dense_low, dense_high), (low, high)) = (rounding_interval(dense), rounding_interval(prefill));
        let half = cell.unit() / 2.0 + EPSILON;
        // The dense row is its own baseline.
        let is_dense = row.condition.criterion == DENSE;
        let (least, most) = if is_dense { (1.0, 1.0) } else { (dense_low / high, dense_high / low) };
        if (least - half..=most + half).contains(&speedup) {
            continue;
        }
        let expected = format!("{:.4} ({} / {})", dense.1 / prefill.1, dense.0.printed, prefill.0.printed);
        let note = format!("rounding allows {least:.4} to {most:.4}");
        let finding = Finding::new(Check::Speedup, Severity::Contradiction, row.condition, &[cell, dense.0, prefill.0]);
        findings.push(finding.with_texts(expected, &cell.printed, note).in_column(&cell.record.metric));
    }
}

fn rounding_interval((entry, value): (&PaperNumber, f64)) -> (f64, f64) {
    let half = entry.unit() / 2.0;
    (value - half, value + half)
}

/// Backbone whose memory the paper reports.
const BACKBONE: &str = "llama-3.1-8b";
/// Hidden size `C` of [`BACKBONE`].
const CHANNELS: f64 = 4096.0;
/// Number of weights of [`BACKBONE`].
const WEIGHTS: f64 = 8_030_261_248.0;

/// Checks the memory column. An operator is a `C×C` matrix, so it adds at most `C²` weights.
pub(super) fn check_memory(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows.iter().filter(|row| row.condition.backbone == BACKBONE) {
        let Some((cell, peak)) = row.get("peak_memory_percent") else { continue };
        let condition = Condition { recovery: recovery::NONE.to_owned(), ..row.condition.clone() };
        let bare = rows.iter().find(|bare| bare.artifact == row.artifact && *bare.condition == condition);
        let Some((base, bare)) = bare.and_then(|bare| bare.get("peak_memory_percent")) else { continue };
        let max_added = 100.0 * CHANNELS.powi(2) / WEIGHTS;
        let min_added = peak - bare - cell.unit();
        if min_added <= max_added + EPSILON {
            continue;
        }
        let expected = format!("at most {max_added:.2} % more than without an operator, C² of the weights");
        let found = format!("{} over {}", cell.printed, base.printed);
        let note = "as if an operator had more bytes for a number than the weights have";
        let finding = Finding::new(Check::Memory, Severity::Suspicion, row.condition, &[cell, base]);
        findings.push(finding.with_texts(expected, found, note).in_column(&cell.record.metric));
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::AuditColumns;
    use super::*;
    use crate::artifact::audit::paper_test::entries;

    fn count_findings(latency: &str, speedup: &str) -> usize {
        let dense = entries("t", "b,32,0,dense,none,false,c4", &[("prefill_ms", "362.6"), ("speedup", "1.00")]);
        let row = entries("t", "b,32,7,sleb,none,false,c4", &[("prefill_ms", latency), ("speedup", speedup)]);
        let mut findings = Vec::new();
        check_speedup(&AuditRow::group(&[dense, row].concat(), AuditColumns::paper()), &mut findings);
        findings.len()
    }

    #[test]
    fn speedup_within_rounding_is_accepted() {
        // 362.6 / 287.3 is 1.2621. 362.6 / 290.1 is 1.2499, which rounding of the latencies can raise to 1.2503.
        for (latency, speedup, wrong) in [
            ("287.3", "1.26", 0),
            ("287.3", "1.27", 1),
            ("287.3", "1.25", 1),
            ("290.1", "1.25", 0),
            ("288.9", "1.26", 0),
        ] {
            assert_eq!(count_findings(latency, speedup), wrong, "{latency} {speedup}");
        }
    }

    #[test]
    fn speedup_at_a_rounding_bound_is_accepted() {
        // 362.55 / 290.15 is 1.24953 and 362.65 / 290.05 is 1.25030, so only 1.249 and 1.250 are possible with three
        // decimals.
        for (speedup, wrong) in [("1.250", 0), ("1.249", 1), ("1.251", 1)] {
            assert_eq!(count_findings("290.1", speedup), wrong, "{speedup}");
        }
    }
}

#[cfg(test)]
mod memory_tests {
    use super::*;
    use crate::artifact::audit::AuditColumns;
    use crate::artifact::audit::paper_test::entries;

    fn count_findings(memory: &str) -> usize {
        let bare = entries("t", "llama-3.1-8b,32,7,sleb,none,false,c4", &[("peak_memory_percent", "81.6")]);
        let row = entries("t", "llama-3.1-8b,32,7,sleb,ghosted,false,c4", &[("peak_memory_percent", memory)]);
        let mut findings = Vec::new();
        check_memory(&AuditRow::group(&[bare, row].concat(), AuditColumns::paper()), &mut findings);
        findings.len()
    }

    #[test]
    fn operator_memory_within_rounding_is_accepted() {
        // 4096² weights are 0.21 % of 8.03 billion. 81.6 may be rounded from almost 81.65, so up to 81.86 is
        // possible with the operator, which is printed as 81.9.
        for (text, wrong) in [("81.6", 0), ("81.8", 0), ("81.9", 0), ("82.0", 1)] {
            assert_eq!(count_findings(text), wrong, "{text}");
        }
    }
}
