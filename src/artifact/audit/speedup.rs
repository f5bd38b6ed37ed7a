//! Speedups that are not the ratio of their latencies.

use super::finding::{Check, Finding, Severity};
use super::row::{AuditRow, EPSILON};
use crate::artifact::paper::PaperNumber;
use crate::results::record::DENSE;

/// In a table that gives both, a speedup is the dense latency by the row's own. Each latency is within half a unit of
/// its last digit, so the ratio is within bounds, and the printed speedup within half a unit of its own of these.
pub(super) fn check(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows {
        let (Some((cell, speedup)), Some(own)) = (row.get("speedup"), row.get("prefill_ms")) else { continue };
        let dense = rows.iter().find(|dense| {
            dense.artifact == row.artifact
                && dense.condition.criterion == DENSE
                && dense.condition.backbone == row.condition.backbone
        });
        let Some(dense) = dense.and_then(|dense| dense.get("prefill_ms")) else { continue };
        let ((dense_low, dense_high), (low, high)) = (bounds(dense), bounds(own));
        let half = cell.unit() / 2.0 + EPSILON;
        // The dense row's speedup is of one latency over itself, whatever its rounding.
        let itself = row.condition.criterion == DENSE;
        let (least, most) = if itself { (1.0, 1.0) } else { (dense_low / high, dense_high / low) };
        if (least - half..=most + half).contains(&speedup) {
            continue;
        }
        let expected = format!("{:.4} ({} / {})", dense.1 / own.1, dense.0.printed, own.0.printed);
        let note = format!("rounding allows {least:.4} to {most:.4}");
        let finding = Finding::new(Check::Speedup, Severity::Contradiction, row.condition, &[cell, dense.0, own.0]);
        findings.push(finding.says(expected, &cell.printed, note).in_column(&cell.record.metric));
    }
}

fn bounds((entry, value): (&PaperNumber, f64)) -> (f64, f64) {
    let half = entry.unit() / 2.0;
    (value - half, value + half)
}

#[cfg(test)]
mod tests {
    use super::super::columns::AuditColumns;
    use super::*;
    use crate::artifact::audit::paper_test::entries;

    fn found(latency: &str, speedup: &str) -> usize {
        let dense = entries("t", "b,32,0,dense,none,false,c4", &[("prefill_ms", "362.6"), ("speedup", "1.00")]);
        let row = entries("t", "b,32,7,sleb,none,false,c4", &[("prefill_ms", latency), ("speedup", speedup)]);
        let mut findings = Vec::new();
        check(&AuditRow::group(&[dense, row].concat(), AuditColumns::paper()), &mut findings);
        findings.len()
    }

    #[test]
    fn a_speedup_is_wrong_only_beyond_what_rounding_allows() {
        // 362.6 / 287.3 is 1.2621; 362.6 / 290.1 is 1.2499, which half a unit of the latencies lifts to 1.2503.
        for (latency, speedup, wrong) in [
            ("287.3", "1.26", 0),
            ("287.3", "1.27", 1),
            ("287.3", "1.25", 1),
            ("290.1", "1.25", 0),
            ("288.9", "1.26", 0),
        ] {
            assert_eq!(found(latency, speedup), wrong, "{latency} {speedup}");
        }
    }

    #[test]
    fn a_tie_of_the_bounds_is_allowed() {
        // 362.55 / 290.15 is 1.24953 and 362.65 / 290.05 is 1.25030: a speedup of three digits has 1.250 and 1.249 only.
        for (speedup, wrong) in [("1.250", 0), ("1.249", 1), ("1.251", 1)] {
            assert_eq!(found("290.1", speedup), wrong, "{speedup}");
        }
    }
}
