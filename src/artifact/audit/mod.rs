//! Audits the paper's tables for contradictions and for values that no evaluation can produce.
//!
//! All checks work on printed digits, so tolerances only cover the rounding of those digits. A finding does not say
//! which of two numbers is correct.

mod accuracy;
mod agreement;
mod copies;
mod costs;
#[cfg(test)]
mod paper_test;
mod row;

pub use row::{AuditColumns, AuditTask};

use row::{AuditRow, describe_condition};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::artifact::paper::PaperNumber;
use crate::error::{Error, Result};
use crate::quantity::pluralize;
use crate::results::number_record::Condition;
use crate::results::{csv_text, distinct};

/// Kind of consistency check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    Average,
    Agreement,
    Calibration,
    Count,
    Chance,
    Copy,
    Duplicate,
    Speedup,
    Memory,
}

ghostlab_core::names!(
    Check:
    Average = "average",
    Agreement = "agreement",
    Calibration = "calibration",
    Count = "count",
    Chance = "chance",
    Copy = "copy",
    Duplicate = "duplicate",
    Speedup = "speedup",
    Memory = "memory",
);

impl Check {
    pub fn description(self) -> &'static str {
        match self {
            Self::Average => "printed means that are not the mean of their columns",
            Self::Agreement => "conditions with more than one value",
            Self::Calibration => "rows with the values of another number of calibration sequences than stated",
            Self::Count => "accuracies that no number of correct answers gives",
            Self::Chance => "rows in which every task accuracy is at chance level",
            Self::Copy => "rows with the values of another condition",
            Self::Duplicate => "metrics that a table gives twice for one condition",
            Self::Speedup => "speedups that are not the dense latency divided by the row's latency",
            Self::Memory => "operators that take more memory than a matrix of C² numbers",
        }
    }
}

/// Severity of a finding, most severe first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Impossible number, or two numbers that contradict each other.
    Contradiction,
    /// Probable error, although an innocent explanation exists.
    Suspicion,
    /// Difference in the last digit, or one with a known explanation.
    #[default]
    Remark,
}

ghostlab_core::names!(Severity: Contradiction = "contradiction", Suspicion = "suspicion", Remark = "remark");

impl Severity {
    pub fn about(self) -> &'static str {
        match self {
            Self::Contradiction => "an impossible number, or two numbers that contradict each other",
            Self::Suspicion => "a probable error that may have an innocent explanation",
            Self::Remark => "a difference in the last digit, or one with a known explanation",
        }
    }
}

/// Problem found by the audit. Numbers are given as printed in the paper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Check that failed.
    pub check: Check,
    /// Table, or several tables separated by commas, such as `table3, tableA5`.
    pub artifact: String,
    /// Description of the row, such as `llama-3-8b, 7/32, llm-streamline, ghosted, c4`.
    pub row: String,
    /// Metric, or several metrics separated by commas.
    pub column: String,
    /// Value that the check requires, formatted like the printed one.
    pub expected: String,
    /// Value printed in the tables.
    pub found: String,
    /// Possible explanation; may be empty.
    pub note: String,
    /// Line numbers in the data files, such as `table3.csv:2, tableA5.csv:22`.
    pub places: String,
}

impl Finding {
    /// Creates a finding about `condition`, listing each table, metric and line of `entries` once.
    fn new(check: Check, severity: Severity, condition: &Condition, entries: &[&PaperNumber]) -> Self {
        Self {
            severity,
            check,
            artifact: join_distinct(entries.iter().map(|entry| entry.artifact.clone())),
            row: describe_condition(condition),
            column: join_distinct(entries.iter().map(|entry| entry.record.metric.clone())),
            expected: String::new(),
            found: String::new(),
            note: String::new(),
            places: join_distinct(entries.iter().map(|entry| entry.location())),
        }
    }

    fn with_texts(self, expected: impl Into<String>, found: impl Into<String>, note: impl Into<String>) -> Self {
        Self { expected: expected.into(), found: found.into(), note: note.into(), ..self }
    }

    fn in_column(self, column: impl Into<String>) -> Self {
        Self { column: column.into(), ..self }
    }
}

fn join_distinct(items: impl Iterator<Item = String>) -> String {
    distinct(&items.collect::<Vec<_>>()).join(", ")
}

const COLUMNS: [&str; 9] = ["severity", "check", "artifact", "row", "column", "expected", "found", "note", "places"];

fn finding_cells(finding: &Finding) -> [&str; 9] {
    let Finding { severity, check, artifact, row, column, expected, found, note, places } = finding;
    [severity.name(), check.name(), artifact, row, column, expected, found, note, places]
}

/// Formats findings for a terminal: counts, one table per severity and check, and the checks without findings.
pub fn format_text(findings: &[Finding]) -> String {
    let counts =
        Severity::ALL.map(|severity| pluralize(filter_by_severity(findings, severity).count(), severity.name()));
    let mut text = format!("{}: {}\n", pluralize(findings.len(), "finding"), counts.join(", "));
    for severity in
        Severity::ALL.into_iter().filter(|severity| filter_by_severity(findings, *severity).next().is_some())
    {
        text.push_str(&format!("\n{}S: {}\n", severity.name().to_uppercase(), severity.about()));
        for check in Check::ALL {
            let found: Vec<&Finding> =
                filter_by_severity(findings, severity).filter(|finding| finding.check == check).collect();
            if !found.is_empty() {
                text.push_str(&check_heading(check, found.len()));
                text.push_str(&align_findings(&found));
            }
        }
    }
    text.extend(
        Check::ALL
            .into_iter()
            .filter(|check| findings.iter().all(|finding| finding.check != *check))
            .map(|check| check_heading(check, 0)),
    );
    text
}

pub(super) fn filter_by_severity(findings: &[Finding], severity: Severity) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(move |finding| finding.severity == severity)
}

fn check_heading(check: Check, count: usize) -> String {
    format!("\n{}: {} ({})\n", check.name(), check.description(), pluralize(count, "finding"))
}

/// Range of [`COLUMNS`] that the terminal shows in aligned columns. The headings name the severity and the check.
const SHOWN_COLUMNS: std::ops::Range<usize> = 2..7;

/// Aligns findings in columns, with notes below them.
fn align_findings(findings: &[&Finding]) -> String {
    let rows: Vec<[&str; 9]> = findings.iter().map(|finding| finding_cells(finding)).collect();
    let widths: Vec<usize> = SHOWN_COLUMNS
        .map(|column| rows.iter().chain([&COLUMNS]).map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let rules: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
    let mut text = align_cells(&widths, &COLUMNS[SHOWN_COLUMNS]);
    text.push_str(&format!("  {}\n", rules.join("  ")));
    for (index, (finding, row)) in findings.iter().zip(&rows).enumerate() {
        text.push_str(&align_cells(&widths, &row[SHOWN_COLUMNS]));
        let last = findings.get(index + 1).is_none_or(|next| next.note != finding.note);
        if last && !finding.note.is_empty() {
            text.push_str(&format!("    └ {}\n", finding.note));
        }
    }
    text
}

fn align_cells(widths: &[usize], cells: &[&str]) -> String {
    let padded: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
    format!("  {}\n", padded.join("  ").trim_end())
}

/// Formats findings as CSV with a header.
///
/// # Errors
/// Fails if a finding cannot be serialized, which indicates a bug.
pub fn format_csv(findings: &[Finding]) -> Result<String> {
    csv_text([COLUMNS].into_iter().chain(findings.iter().map(finding_cells)))
}

/// Formats findings as a JSON array.
///
/// # Errors
/// Fails if a finding cannot be serialized, which indicates a bug.
pub fn format_json(findings: &[Finding]) -> Result<String> {
    serde_json::to_string_pretty(findings)
        .map(|text| text + "\n")
        .map_err(|error| Error::job("cannot write the findings as JSON").found(error.to_string()))
}

/// Runs all checks on the given entries ([`crate::artifact::paper::all`] for the paper). Findings are sorted by
/// severity, then by check and table order.
///
/// Entries without a value are only checked for duplicates.
pub fn run(entries: &[PaperNumber]) -> Vec<Finding> {
    run_with(entries, AuditColumns::paper())
}

/// Runs all checks on tables with the given columns.
pub fn run_with(entries: &[PaperNumber], columns: &AuditColumns) -> Vec<Finding> {
    let rows = AuditRow::group(entries, columns);
    let mut findings = Vec::new();
    accuracy::check_averages(&rows, &mut findings);
    agreement::check(entries, &mut findings);
    copies::check_calibration(&rows, &mut findings);
    accuracy::check_counts(entries, columns, &mut findings);
    accuracy::check_chance(&rows, &mut findings);
    copies::check_rows(&rows, &mut findings);
    copies::check_duplicates(&rows, &mut findings);
    costs::check_speedup(&rows, &mut findings);
    costs::check_memory(&rows, &mut findings);
    // The sort is stable, so the findings of a check remain in table order.
    findings.sort_by_key(|finding| (finding.severity, finding.check));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::audit::paper_test::entry;

    fn findings() -> Vec<Finding> {
        let (one, two) = (
            entry("t", "b,32,0,dense,none,false,c4", "ppl_c4", "9.00"),
            entry("table7", "b,32,7,sleb,none,true,c4", "copa", "9.50"),
        );
        let new = |entry, severity, note| {
            Finding::new(Check::Agreement, severity, &one.record.condition, &[entry]).with_texts("5", "9", note)
        };
        vec![new(&one, Severity::Contradiction, "a \"word\", and a line\nmore"), new(&two, Severity::Remark, "")]
    }

    #[test]
    fn text_is_grouped_with_aligned_columns() {
        let text = format_text(&findings());
        assert!(text.starts_with("2 findings: 1 contradiction, 0 suspicions, 1 remark\n"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let agreement = line_starting_with(&lines, "agreement: ");
        assert_eq!(offset_of(lines[agreement + 1], "column"), offset_of(lines[agreement + 3], "ppl_c4"));
        assert_eq!(offset_of(lines[agreement + 1], "artifact"), offset_of(lines[agreement + 3], "t  "));
        assert!(
            line_starting_with(&lines, "CONTRADICTIONS: ") < agreement
                && agreement < line_starting_with(&lines, "REMARKS: "),
            "{text}"
        );
        assert!(!text.contains("SUSPICIONS"), "{text}");
        assert!(lines.iter().any(|line| line.starts_with("speedup: ") && line.ends_with("(0 findings)")), "{text}");
        assert!(lines.iter().all(|line| line.trim_end() == *line), "{text}");
    }

    fn line_starting_with(lines: &[&str], prefix: &str) -> usize {
        lines.iter().position(|line| line.starts_with(prefix)).unwrap()
    }

    fn offset_of(line: &str, word: &str) -> usize {
        line.find(word).unwrap()
    }

    #[test]
    fn shared_note_is_printed_once_below_its_findings() {
        let mut findings = findings();
        findings[0].note = "why".to_owned();
        assert_eq!(format_text(&findings).matches("└ why").count(), 1);
        (findings[1].severity, findings[1].note) = (Severity::Contradiction, "why".to_owned());
        let text = format_text(&findings);
        assert_eq!(text.matches("└ why").count(), 1);
        assert!(offset_of(&text, "└ why") > offset_of(&text, "table7"), "{text}");
    }

    #[test]
    fn csv_cell_with_commas_and_quotes_is_quoted() {
        let csv = format_csv(&findings()).unwrap();
        assert!(csv.starts_with("severity,check,artifact,row,column,expected,found,note,places\n"), "{csv}");
        assert!(
            csv.contains(
                "contradiction,agreement,t,\"b, dense\",ppl_c4,5,9,\"a \"\"word\"\", and a line\nmore\",t.csv:2\n"
            ),
            "{csv}"
        );
        assert!(csv.ends_with("remark,agreement,table7,\"b, dense\",copa,5,9,,table7.csv:2\n"), "{csv}");
    }

    #[test]
    fn json_names_every_column() {
        let json: serde_json::Value = serde_json::from_str(&format_json(&findings()).unwrap()).unwrap();
        let object = json[0].as_object().unwrap();
        assert_eq!(object.len(), COLUMNS.len());
        assert!(COLUMNS.iter().all(|column| object[*column].is_string()));
        assert_eq!((&json[1]["severity"], &json[1]["check"]), (&"remark".into(), &"agreement".into()));
    }

    #[test]
    fn check_and_severity_names_match_their_json() {
        for check in Check::ALL {
            assert_eq!(serde_json::to_value(check).unwrap(), check.name());
        }
        for severity in Severity::ALL {
            assert_eq!(serde_json::to_value(severity).unwrap(), severity.name());
        }
    }
}
