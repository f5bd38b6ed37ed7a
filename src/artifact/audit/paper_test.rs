//! Audits the whole paper, and provides entries for the tests of individual checks.

use std::sync::LazyLock;

use super::{Check, Finding, Severity, run};
use crate::artifact::paper::{self, PaperNumber};

/// Builds the entries of one row. A value may include its standard deviation: `9.0,0.1`.
pub(super) fn entries(artifact: &str, condition: &str, metrics: &[(&str, &str)]) -> Vec<PaperNumber> {
    let mut text =
        "artifact,backbone,total_layers,pruned_layers,criterion,recovery,finetuned,calibration,metric,value,std\n"
            .to_owned();
    for (metric, value) in metrics {
        let value = if value.contains(',') { (*value).to_owned() } else { format!("{value},") };
        text.push_str(&format!("{artifact},{condition},{metric},{value}\n"));
    }
    PaperNumber::parse(artifact, &text).unwrap()
}

pub(super) fn entry(artifact: &str, condition: &str, metric: &str, value: &str) -> PaperNumber {
    entries(artifact, condition, &[(metric, value)]).remove(0)
}

static AUDIT: LazyLock<Vec<Finding>> = LazyLock::new(|| run(&paper::all().unwrap()));

fn findings_for(check: Check) -> Vec<Finding> {
    AUDIT.iter().filter(|finding| finding.check == check).cloned().collect()
}

/// Returns the findings about one row as (column, expected, found).
fn finding_values<'a>(findings: &'a [Finding], artifact: &str, row: &str) -> Vec<(&'a str, &'a str, &'a str)> {
    findings
        .iter()
        .filter(|finding| finding.artifact == artifact && finding.row == row)
        .map(|finding| (finding.column.as_str(), finding.expected.as_str(), finding.found.as_str()))
        .collect()
}

fn count_by_severity(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

// An independent script computed the expected counts.

#[test]
fn printed_means_agree_with_their_columns_after_rounding() {
    let findings = findings_for(Check::Average);
    assert_eq!((findings.len(), count_by_severity(&findings, Severity::Remark)), (10, 10));
    assert_eq!(finding_values(&findings, "table2", "llama-3.1-8b, dense"), [("acc_average", "67.7645", "67.77")]);
}

#[test]
fn copied_llama_3_8b_perplexities_are_reported() {
    assert_eq!(
        finding_values(&findings_for(Check::Agreement), "table3, tableA5", "llama-3-8b, dense"),
        [
            ("ppl_wikitext2", "5.47 (table3)", "6.14 (tableA5)"),
            ("ppl_c4", "6.71 (table3)", "8.61 (tableA5)"),
            ("ppl_ptb", "22.51 (table3)", "10.58 (tableA5)"),
            ("ppl_average", "11.56 (table3)", "8.44 (tableA5)"),
        ]
    );
    let copies = findings_for(Check::Copy);
    let copy = copies.iter().find(|finding| finding.row == "llama-2-7b, dense").unwrap();
    assert_eq!(
        (copy.severity, copy.found.as_str()),
        (Severity::Contradiction, "the values of llama-3-8b, dense (table3)")
    );
}

#[test]
fn conflicting_llama_2_7b_rows_are_reported() {
    let findings = findings_for(Check::Agreement);
    let row = finding_values(&findings, "tableA4, tableA6", "llama-2-7b, 7/32, llm-streamline, pruned, c4");
    // All columns differ except BoolQ, which is 62.17 in both tables.
    assert_eq!(row.len(), 9);
    assert_eq!(row[0], ("arc_easy", "55.89 (tableA4)", "48.61 (tableA6)"));
    assert_eq!(row[8], ("acc_average", "54.18 (tableA4)", "51.51 (tableA6)"));
    assert!(row.iter().all(|(column, ..)| *column != "boolq"));
}

#[test]
fn dense_rows_that_differ_by_calibration_are_reported() {
    let findings = findings_for(Check::Agreement);
    let dense = findings.iter().filter(|finding| finding.note.contains("does not depend on the calibration"));
    // The dense values differ in 6 columns for LLaMA-3-8B, 7 for LLaMA-3.1-8B, and 6 for the distilled model.
    assert_eq!(dense.count(), 19);
    assert_eq!((findings.len(), count_by_severity(&findings, Severity::Remark)), (43, 3));
}

#[test]
fn table_3_average_is_traced_to_another_calibration() {
    let findings = findings_for(Check::Agreement);
    let row = "llama-3-8b, 7/32, shortened-llama, pruned, c4";
    let finding = findings.iter().find(|finding| finding.row == row).unwrap();
    assert_eq!((finding.expected.as_str(), finding.found.as_str()), ("49.34 (table2)", "49.39 (table3)"));
    assert_eq!(finding.note, "49.39 in table3 is the value for wikitext2 in tableA7");
}

#[test]
fn table_5_operator_memory_deviations_are_reported() {
    // 82.0 vs. 81.6 and 71.5 vs. 71.1 differ by at least 0.3 points before rounding, but 4096² weights are only 0.21 %.
    assert_eq!(findings_for(Check::Memory).len(), 6);
}

#[test]
fn repeated_latencies_agree_within_their_deviation() {
    // The two dense latencies of tables A8 and A9 that differ most (5368.3 ± 4.6, 5349.4 ± 4.3) are three standard
    // deviations apart.
    let findings = findings_for(Check::Agreement);
    let latencies: Vec<&Finding> = findings.iter().filter(|finding| finding.column.starts_with("prefill_ms")).collect();
    // Table 5 repeats tables A8 and A9 exactly, except for one latency.
    let [quoted] = latencies[..] else { panic!("{latencies:?}") };
    assert_eq!(
        (quoted.severity, quoted.row.as_str()),
        (Severity::Remark, "llama-3.1-8b, 7/32, llm-streamline, pruned, c4")
    );
    assert_eq!((quoted.expected.as_str(), quoted.found.as_str()), ("287.3 (table5)", "287.8 (tableA8)"));
}

#[test]
fn rows_of_tables_3_and_5_match_32_calibration_sequences() {
    let findings = findings_for(Check::Calibration);
    let row = "llama-3.1-8b, 7/32, llm-streamline, ghosted, c4";
    assert_eq!(
        finding_values(&findings, "table5, table4", row),
        [("acc_average, ppl_average", "128 sequences: 60.04 25.89", "32 sequences: 60.01 27.81")]
    );
    assert_eq!(finding_values(&findings, "table3, table4", row).len(), 1);
    assert_eq!(findings.len(), 2);
}

#[test]
fn eight_impossible_accuracies_are_reported() {
    let findings = findings_for(Check::Count);
    assert_eq!(findings.len(), 8);
    let row = "olmo-2-7b, 7/32, llm-streamline, ghosted, c4";
    let row = finding_values(&findings, "tableA6", row);
    assert!(row.contains(&("openbookqa", "37.80 (189/500) or 38.00 (190/500)", "37.87")), "{row:?}");
}

#[test]
fn two_qwen_rows_at_chance_level_are_reported() {
    let rows: Vec<String> = findings_for(Check::Chance).into_iter().map(|finding| finding.row).collect();
    let expected = ["diag", "rotate"].map(|kind| format!("qwen-3-14b, 13/40, llm-streamline, linearpatch-{kind}, c4"));
    assert_eq!(rows, expected);
}

#[test]
fn copied_rows_of_the_paper_are_reported() {
    let findings = findings_for(Check::Copy);
    assert_eq!(findings.len(), 16);
    let selection = find(&findings, "table2", "llama-3-8b, 11/32, shortgpt, pruned, c4");
    assert_eq!(selection.found, "the values of llama-3-8b, 11/32, llm-streamline, pruned, c4 (table2)");
    assert_eq!(
        selection.note,
        "the criteria select the same layers, or the row was copied; but the criteria differ in table3 (prune-and-comp)"
    );
    // The first row is copied from another backbone. In the second row, two of three perplexities are copied.
    let backbone = find(&findings, "tableA7", "deepseek-r1-distill-llama-8b, 11/32, llm-streamline, pruned, wikitext2");
    assert_eq!((backbone.severity, backbone.column.as_str()), (Severity::Contradiction, "all 10 scores"));
    let slip = find(&findings, "table3", "llama-3-8b, 11/32, shortgpt, pruned, c4");
    assert!(slip.note.contains("ppl_ptb 4481.35 and 5481.35"), "{}", slip.note);
}

fn find<'a>(findings: &'a [Finding], artifact: &str, row: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.artifact == artifact && finding.row == row).unwrap()
}

#[test]
fn paper_has_no_duplicates_and_no_wrong_speedups() {
    assert_eq!(findings_for(Check::Duplicate), []);
    assert_eq!(findings_for(Check::Speedup), []);
    // Insert a wrong speedup and a duplicated entry.
    let mut entries = paper::all().unwrap();
    let index = entries.iter().position(|entry| entry.record.metric == "speedup" && entry.printed == "1.26").unwrap();
    entries.push(entries[index].clone());
    entries[index].record.value = Some(1.29);
    let findings = run(&entries);
    assert_eq!((count_by_check(&findings, Check::Speedup), count_by_check(&findings, Check::Duplicate)), (1, 1));
}

fn count_by_check(findings: &[Finding], check: Check) -> usize {
    findings.iter().filter(|finding| finding.check == check).count()
}

#[test]
fn findings_are_sorted_by_severity_and_check() {
    let findings = &*AUDIT;
    assert!(findings.is_sorted_by_key(|finding| (finding.severity, finding.check)));
    for finding in findings {
        let Finding { artifact, row, column, expected, found, places, .. } = finding;
        assert!([artifact, row, column, expected, found, places].iter().all(|text| !text.is_empty()), "{finding:?}");
    }
}

#[test]
fn empty_paper_has_no_findings() {
    assert_eq!(run(&[]), []);
}
