//! Means that are not the mean of their columns.

use super::accuracy::counts;
use super::columns::AuditColumns;
use super::finding::{Check, Finding, Severity};
use super::row::{AuditRow, EPSILON};
use crate::artifact::paper::PaperNumber;

/// Each printed part is within half a unit of its last digit of the true value, hence so is the mean of the parts, and
/// the printed mean is within half a unit of the true mean. With two decimals everywhere: 0.005 + 0.005.
///
/// Where each accuracy gives away its count of right answers, the true mean is known, and the printed mean has only its
/// own half unit: a mean that fails this but not the first was taken from rounded columns, which is only a remark.
pub(super) fn check(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows {
        let of = row.columns;
        for (average, parts) in [(&of.accuracy, of.task_names()), (&of.perplexity, of.text_names())] {
            let (Some((cell, printed)), Some(parts)) = (row.get(average), row.all(&parts)) else { continue };
            if parts.is_empty() {
                continue;
            }
            if let Some((severity, mean, note)) = judge(cell, printed, &parts, of) {
                let finding = Finding::new(Check::Average, severity, row.condition, &[cell]);
                findings.push(finding.says(mean, &cell.printed, note));
            }
        }
    }
}

fn judge(
    cell: &PaperNumber,
    printed: f64,
    parts: &[(&PaperNumber, f64)],
    columns: &AuditColumns,
) -> Option<(Severity, String, String)> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let half = cell.unit() / 2.0;
    let of_printed = mean(&parts.iter().map(|part| part.1).collect::<Vec<_>>());
    let tolerance = half + mean(&parts.iter().map(|part| part.0.unit() / 2.0).collect::<Vec<_>>());
    if (of_printed - printed).abs() > tolerance + EPSILON {
        let note =
            format!("the mean of {} printed columns, which rounding moves by at most {tolerance:.3}", parts.len());
        return Some((Severity::Contradiction, format!("{of_printed:.4}"), note));
    }
    let (lows, highs): (Vec<f64>, Vec<f64>) =
        parts.iter().map(|part| bounds(part.0, columns)).collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let (low, high) = (mean(&lows), mean(&highs));
    if (low - half - EPSILON..=high + half + EPSILON).contains(&printed) {
        return None;
    }
    let expected = if high - low < EPSILON { format!("{low:.4}") } else { format!("{low:.4} to {high:.4}") };
    let note = "the mean of the counts of right answers; printed is that of rounded columns";
    Some((Severity::Remark, expected, note.to_owned()))
}

/// The least and the greatest accuracy that a cell can stand for; None where its task is unknown or no count fits.
fn bounds(entry: &PaperNumber, columns: &AuditColumns) -> Option<(f64, f64)> {
    let fitting = counts(entry, columns)?;
    Some((fitting.first()?.1, fitting.last()?.1))
}

#[cfg(test)]
mod tests {
    use super::super::row::AuditRow;
    use super::*;
    use crate::artifact::audit::paper_test::entries;
    use crate::metric;

    fn found(metrics: &[(&str, &str)]) -> Vec<Finding> {
        let entries = entries("t", "b,32,7,sleb,none,false,c4", metrics);
        let mut findings = Vec::new();
        check(&AuditRow::group(&entries, AuditColumns::paper()), &mut findings);
        findings
    }

    #[test]
    fn a_mean_is_wrong_only_beyond_what_rounding_allows() {
        // The mean of 10.00, 20.00 and 30.01 is 20.0033: 20.01 may be honest, 20.02 not.
        let parts = [("ppl_wikitext2", "10.00"), ("ppl_c4", "20.00"), ("ppl_ptb", "30.01")];
        for (average, wrong) in [("20.00", false), ("20.01", false), ("20.02", true), ("19.99", true), ("20.0", false)]
        {
            let findings = found(&[&parts[..], &[("ppl_average", average)]].concat());
            assert_eq!(!findings.is_empty(), wrong, "{average}");
            assert!(
                findings
                    .iter()
                    .all(|finding| finding.severity == Severity::Contradiction && finding.expected == "20.0033")
            );
        }
    }

    #[test]
    fn a_mean_of_rounded_columns_is_a_remark() {
        // Table 2, LLaMA-3.1-8B, dense: the counts give 67.7645, the printed columns 67.7656.
        let columns = ["81.19", "53.41", "78.92", "73.64", "82.11", "44.80", "69.68", "87.00", "39.14"];
        let mut metrics: Vec<(&str, &str)> = metric::tasks().into_iter().zip(columns).collect();
        let mut severities = |average| {
            metrics.truncate(9);
            metrics.push(("acc_average", average));
            found(&metrics).iter().map(|finding| finding.severity).collect::<Vec<_>>()
        };
        let mean: f64 = columns.iter().map(|column| column.parse::<f64>().unwrap()).sum::<f64>() / 9.0;
        assert!((mean - 67.7656).abs() < 1e-4, "{mean}");
        assert_eq!(severities("67.76"), []);
        assert_eq!(severities("67.77"), [Severity::Remark]);
        assert_eq!(severities("67.78"), [Severity::Contradiction]);
    }

    #[test]
    fn a_row_without_all_columns_has_no_mean_to_check() {
        assert!(found(&[("ppl_wikitext2", "10.00"), ("ppl_c4", "20.00"), ("ppl_average", "99.00")]).is_empty());
    }
}
