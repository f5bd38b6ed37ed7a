//! Finds copied rows, repeated metrics, and rows whose number of calibration sequences differs from the stated one.

use super::accuracy::are_both_at_chance;
use super::row::{AuditRow, agree, describe_condition, normalize_equivalent};
use super::{Check, Finding, Severity};
use crate::artifact::paper::PaperNumber;
use crate::recovery;
use crate::results::MIN_EQUAL_SCORES;
use crate::results::number_record::Condition;

/// Minimum number of equal four-digit perplexities that indicates a copy. Fewer may be a coincidence.
const MIN_EQUAL_PERPLEXITIES: usize = 2;

/// Note for rows with equal scores whose conditions differ only in the criterion.
const SAME_LAYERS: &str = "the criteria select the same layers, or the row was copied";

/// Compares the scores of every row with those of earlier rows whose condition differs. Reports the first full copy, or
/// else the first partial one. Equal latencies, speedups and memory do not indicate a copy.
pub(super) fn check_rows(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    let conditions: Vec<Condition> = rows.iter().map(|row| normalize_equivalent(row.condition)).collect();
    for (index, row) in rows.iter().enumerate() {
        let earlier = rows.iter().zip(&conditions).take(index);
        let others = earlier.filter(|(_, condition)| **condition != conditions[index]).map(|(other, _)| other);
        let mut full_copy = None;
        let mut partial_copy = None;
        for other in others {
            let shared = other.shared_scores(row);
            let agreeing: Vec<_> = shared.iter().copied().filter(|(one, other)| agree(one, other)).collect();
            let perplexities =
                agreeing.iter().filter(|(one, _)| row.columns.texts.contains(&one.record.metric)).count();
            if agreeing.len() == shared.len() && shared.len() >= MIN_EQUAL_SCORES {
                full_copy = full_copy.or(Some((other, shared)));
            } else if perplexities >= MIN_EQUAL_PERPLEXITIES {
                partial_copy = partial_copy.or(Some((other, shared)));
            }
        }
        if let Some((other, shared)) = full_copy.or(partial_copy) {
            findings.push(copy_finding(rows, other, row, &shared));
        }
    }
}

fn copy_finding(
    rows: &[AuditRow],
    first: &AuditRow,
    row: &AuditRow,
    shared: &[(&PaperNumber, &PaperNumber)],
) -> Finding {
    let differing: Vec<_> = shared.iter().filter(|(a, b)| !agree(a, b)).collect();
    let (severity, mut note) = judge_copy(rows, first, row, differing.is_empty());
    if !differing.is_empty() {
        let pairs = differing.iter().map(|(a, b)| format!("{} {} and {}", a.record.metric, a.printed, b.printed));
        note.push_str(&format!("; but {}", pairs.collect::<Vec<_>>().join(", ")));
    }
    let cells: Vec<&PaperNumber> = shared.iter().filter(|(a, b)| agree(a, b)).flat_map(|(a, b)| [*a, *b]).collect();
    let found = format!("the values of {} ({})", describe_condition(first.condition), first.artifact);
    let finding =
        Finding::new(Check::Copy, severity, row.condition, &cells).with_texts("different values", found, note);
    if differing.is_empty() { finding.in_column(format!("all {} scores", shared.len())) } else { finding }
}

fn judge_copy(rows: &[AuditRow], one: &AuditRow, other: &AuditRow, is_full: bool) -> (Severity, String) {
    let a = one.condition;
    let b = other.condition;
    let values = if is_full { "all values" } else { "some values" };
    if a.criterion.is_empty() && b.criterion.is_empty() {
        return (Severity::Suspicion, format!("{values} occur under two names"));
    }
    if a.backbone != b.backbone {
        return (Severity::Contradiction, format!("{values} occur under two backbones"));
    }
    let same_cut = a.depth == b.depth && a.finetuned == b.finetuned && a.calibration == b.calibration;
    if same_cut && a.recovery == b.recovery {
        // Only the criterion differs. Criteria that select the same layers agree for every recovery and metric.
        let elsewhere =
            find_difference(rows, one, other).map(|elsewhere| format!("the criteria differ in {elsewhere}"));
        return match (is_full, elsewhere) {
            (true, None) => (Severity::Remark, SAME_LAYERS.to_owned()),
            (true, Some(unlike)) => (Severity::Suspicion, format!("{SAME_LAYERS}; but {unlike}")),
            (false, None) => {
                (Severity::Suspicion, "the criteria select the same layers, or part of the row was copied".to_owned())
            }
            (false, Some(unlike)) => (Severity::Contradiction, format!("part of the row was copied: {unlike}")),
        };
    }
    let note = match (is_full, same_cut) {
        _ if are_both_at_chance(one, other) => "both models have collapsed to chance, or the row was copied",
        (true, true) => "the recovery changed nothing, or the row was copied",
        (true, false) => "the row was copied",
        (false, _) => "part of the row was copied",
    };
    (Severity::Suspicion, note.to_owned())
}

/// Finds a table and recovery for which the criteria of two rows differ in every score, which shows that the criteria
/// selected different layers. Skips the two rows themselves.
fn find_difference(rows: &[AuditRow], one: &AuditRow, other: &AuditRow) -> Option<String> {
    rows.iter().find_map(|row| {
        let recovery = &row.condition.recovery;
        let is_same_row = row.artifact == one.artifact && *recovery == one.condition.recovery;
        if is_same_row || !matches_with_methods(one, row, &one.condition.criterion, recovery) {
            return None;
        }
        let twin = rows.iter().find(|twin| {
            twin.artifact == row.artifact && matches_with_methods(one, twin, &other.condition.criterion, recovery)
        })?;
        let recovery = if recovery == recovery::NONE { "pruned" } else { recovery };
        let shared = row.shared_scores(twin);
        (!shared.is_empty() && shared.iter().all(|(a, b)| !agree(a, b)))
            .then(|| format!("{} ({recovery})", row.artifact))
    })
}

/// Returns whether the condition of `row` equals that of `one` with another criterion and recovery.
fn matches_with_methods(one: &AuditRow, row: &AuditRow, criterion: &str, recovery: &str) -> bool {
    *row.condition
        == Condition { criterion: criterion.to_owned(), recovery: recovery.to_owned(), ..one.condition.clone() }
}

/// Finds metrics that one table gives more than once for the same condition.
pub(super) fn check_duplicates(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows {
        for (index, cell) in row.cells.iter().enumerate() {
            let Some(first) = row.cells[..index].iter().find(|first| first.record.metric == cell.record.metric) else {
                continue;
            };
            let (severity, note) = if first.record.value == cell.record.value {
                (Severity::Remark, "given twice, with the same value")
            } else {
                (Severity::Contradiction, "given twice, with two values")
            };
            let finding = Finding::new(Check::Duplicate, severity, row.condition, &[first, cell]);
            findings.push(finding.with_texts(&first.printed, &cell.printed, note));
        }
    }
}

/// Number of calibration sequences stated in the paper.
const STATED_SEQUENCES: &str = "128";

/// Minimum number of scores that two rows must share to be compared.
const MIN_SHARED_SCORES: usize = 2;

/// Compares rows without a stated number of calibration sequences with the corresponding rows of a table that varies
/// this number. Reports rows that match another number than [`STATED_SEQUENCES`].
pub(super) fn check_calibration(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows.iter().filter(|row| row.condition.calibrated().1.is_none()) {
        let variants: Vec<(&AuditRow, String)> =
            rows.iter().filter_map(|other| Some((other, calibration_size(other, row)?))).collect();
        let Some((stated, _)) = variants.iter().find(|variant| variant.1 == STATED_SEQUENCES) else { continue };
        let Some((actual, count)) = variants.iter().find(|variant| {
            let shared = row.shared_scores(variant.0);
            shared.len() >= MIN_SHARED_SCORES && shared.iter().all(|(one, other)| agree(one, other))
        }) else {
            continue;
        };
        if count == STATED_SEQUENCES {
            continue;
        }
        let shared = row.shared_scores(actual);
        let cells: Vec<_> = shared.iter().flat_map(|(one, other)| [*one, *other]).collect();
        let printed = shared.iter().filter_map(|(one, _)| Some((one, stated.get(&one.record.metric)?.0)));
        let (expected, found): (Vec<&str>, Vec<&str>) =
            printed.map(|(one, at_stated)| (at_stated.printed.as_str(), one.printed.as_str())).unzip();
        let note = format!("the values are those of `{}` in {}", describe_condition(actual.condition), actual.artifact);
        let finding = Finding::new(Check::Calibration, Severity::Contradiction, row.condition, &cells);
        findings.push(finding.with_texts(
            format_scores(STATED_SEQUENCES, &expected),
            format_scores(count, &found),
            note,
        ));
    }
}

/// Returns the number of calibration sequences that `other` states, if the conditions of both rows are otherwise equal.
fn calibration_size(other: &AuditRow, row: &AuditRow) -> Option<String> {
    let (corpus, size) = other.condition.calibrated();
    let unsized_other = Condition { calibration: corpus.to_owned(), ..other.condition.clone() };
    (unsized_other == *row.condition).then_some(size?.to_owned())
}

fn format_scores(count: &str, printed: &[&str]) -> String {
    format!("{count} sequences: {}", printed.join(" "))
}

#[cfg(test)]
mod tests {
    use super::super::row::AuditColumns;
    use super::*;
    use crate::artifact::audit::paper_test::entries;
    use crate::metric;

    type Cells<'a> = (&'a str, &'a str, [&'a str; 4]);

    fn audit_findings(rows: &[Cells]) -> Vec<Finding> {
        let all: Vec<PaperNumber> = rows
            .iter()
            .flat_map(|(artifact, condition, values)| {
                let texts = metric::texts();
                let metrics = texts.iter().map(String::as_str).chain(["acc_average"]).zip(values.iter().copied());
                entries(artifact, condition, &metrics.collect::<Vec<_>>())
            })
            .collect();
        let mut findings = Vec::new();
        check_rows(&AuditRow::group(&all, AuditColumns::paper()), &mut findings);
        findings
    }

    fn severities(rows: &[Cells]) -> Vec<Severity> {
        audit_findings(rows).iter().map(|finding| finding.severity).collect()
    }

    const VALUES: [&str; 4] = ["10.01", "20.02", "30.03", "40.04"];
    const OTHER_VALUES: [&str; 4] = ["11.01", "21.02", "31.03", "41.04"];

    #[test]
    fn equal_rows_of_two_backbones_are_a_contradiction() {
        let findings = audit_findings(&[
            ("t", "b,32,0,dense,none,false,c4", VALUES),
            ("u", "c,32,0,dense,none,false,c4", VALUES),
            ("u", "d,32,0,dense,none,false,c4", OTHER_VALUES),
        ]);
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].severity, findings[0].row.as_str()), (Severity::Contradiction, "c, dense"));
        assert_eq!(
            (findings[0].column.as_str(), findings[0].found.as_str()),
            ("all 4 scores", "the values of b, dense (t)")
        );
    }

    #[test]
    fn same_condition_in_two_tables_is_not_a_copy() {
        let rows = ["c4", "c4:32"].map(|calibration| format!("b,32,7,sleb,ghosted,false,{calibration}"));
        assert_eq!(severities(&[("t", &rows[0], VALUES), ("u", &rows[0], VALUES), ("v", &rows[1], VALUES)]), []);
        let dense = ["c4", "wikitext2"].map(|calibration| format!("b,32,0,dense,none,false,{calibration}"));
        assert_eq!(severities(&[("t", &dense[0], VALUES), ("u", &dense[1], VALUES)]), []);
    }

    #[test]
    fn equal_rows_of_two_criteria_are_suspect_if_repairs_differ() {
        let sleb = "b,32,7,sleb,none,false,c4";
        let shortgpt = "b,32,7,shortgpt,none,false,c4";
        let equal = [("t", sleb, VALUES), ("t", shortgpt, VALUES)];
        assert_eq!(severities(&equal), [Severity::Remark]);
        let repaired = "b,32,7,sleb,ghosted,false,c4";
        let other = "b,32,7,shortgpt,ghosted,false,c4";
        let unequal = [equal[0], equal[1], ("u", repaired, VALUES.map(|_| "1.00")), ("u", other, OTHER_VALUES)];
        let findings = audit_findings(&unequal);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].severity, Severity::Suspicion);
        assert!(findings[0].note.ends_with("differ in u (ghosted)"), "{}", findings[0].note);
    }

    #[test]
    fn two_equal_perplexities_are_a_partial_copy() {
        let sleb = "b,32,7,sleb,none,false,c4";
        let shortgpt = "b,32,7,shortgpt,none,false,c4";
        let part = ["10.01", "20.02", "35.03", "40.04"];
        let findings = audit_findings(&[("t", sleb, VALUES), ("t", shortgpt, part)]);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].severity, Severity::Suspicion);
        assert!(findings[0].note.ends_with("but ppl_ptb 30.03 and 35.03"), "{}", findings[0].note);
        assert_eq!(severities(&[("t", sleb, VALUES), ("t", shortgpt, ["10.01", "21.02", "35.03", "40.04"])]), []);
    }

    #[test]
    fn partial_copy_under_another_backbone_is_reported() {
        let part = ["10.01", "20.02", "35.03", "41.04"];
        let findings =
            audit_findings(&[("t", "b,32,7,sleb,none,false,c4", VALUES), ("t", "c,32,7,sleb,none,false,c4", part)]);
        assert_eq!((findings.len(), findings[0].severity), (1, Severity::Contradiction));
        assert_eq!(findings[0].column, "ppl_wikitext2, ppl_c4");
        assert!(findings[0].note.starts_with("some values occur under two backbones"), "{}", findings[0].note);
    }

    #[test]
    fn three_equal_rows_give_two_findings() {
        let rows = ["none", "ghosted", "replaceme-ls"].map(|recovery| format!("b,32,7,sleb,{recovery},false,c4"));
        let findings = audit_findings(&[("t", &rows[0], VALUES), ("t", &rows[1], VALUES), ("t", &rows[2], VALUES)]);
        assert_eq!(findings.len(), 2);
        assert!(
            findings.iter().all(|finding| finding.found.contains("pruned") && finding.severity == Severity::Suspicion)
        );
    }

    #[test]
    fn repeated_metric_is_a_duplicate() {
        let condition = "b,32,7,sleb,none,false,c4";
        let duplicates = |metrics: &[(&str, &str)]| {
            let entries = entries("t", condition, metrics);
            let mut findings = Vec::new();
            check_duplicates(&AuditRow::group(&entries, AuditColumns::paper()), &mut findings);
            findings.iter().map(|finding| (finding.severity, finding.places.clone())).collect::<Vec<_>>()
        };
        let latency = "prefill_ms:seq=512:batch=1";
        let places = "t.csv:2, t.csv:4".to_owned();
        assert_eq!(
            duplicates(&[(latency, "9.0,0.1"), ("ppl_c4", "9.00"), (latency, "9.1,0.1")]),
            [(Severity::Contradiction, places.clone())]
        );
        assert_eq!(duplicates(&[(latency, "9.0"), ("ppl_c4", "9.00"), (latency, "9.0")]), [(Severity::Remark, places)]);
        assert_eq!(duplicates(&[(latency, "9.0"), ("prefill_ms:seq=512:batch=4", "9.0")]), []);
    }
}

#[cfg(test)]
mod calibration_tests {
    use super::*;
    use crate::artifact::audit::AuditColumns;
    use crate::artifact::audit::paper_test::entries;

    fn audit_findings(last_value: &str) -> Vec<Finding> {
        let entries = [
            perplexity_entries("t", "c4:32", "20.00"),
            perplexity_entries("t", "c4:128", "19.00"),
            perplexity_entries("u", "c4", last_value),
        ]
        .concat();
        let mut findings = Vec::new();
        check_calibration(&AuditRow::group(&entries, AuditColumns::paper()), &mut findings);
        findings
    }

    fn perplexity_entries(table: &'static str, calibration: &str, perplexity: &str) -> Vec<PaperNumber> {
        let condition = format!("b,32,7,sleb,ghosted,false,{calibration}");
        entries(table, &condition, &[("ppl_c4", perplexity), ("acc_average", "50.00")])
    }

    #[test]
    fn row_with_unexpected_calibration_size_is_reported() {
        let findings = audit_findings("20.00");
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].expected, "128 sequences: 19.00 50.00");
        assert_eq!(findings[0].found, "32 sequences: 20.00 50.00");
        assert_eq!(findings[0].artifact, "u, t");
    }

    #[test]
    fn row_is_reported_only_if_it_matches_another_size() {
        assert!(audit_findings("19.00").is_empty());
        assert!(audit_findings("21.00").is_empty());
    }
}
