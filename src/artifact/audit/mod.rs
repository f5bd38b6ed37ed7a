//! The paper against itself: what its tables say twice and differently, and what no evaluation can have printed.
//!
//! | file | noun |
//! | --- | --- |
//! | `finding` | what was found, and by which check; findings as text, CSV and JSON |
//! | `row` | one row of a table, and what its columns mean |
//! | `agreement` | one condition with two values |
//! | `accuracy` | accuracies that no count of right answers gives; means that are not those of their columns; rows at chance |
//! | `copies` | two conditions with one row, or that of another number of calibration sequences; one metric twice |
//! | `costs` | speedups that are not the ratio of their latencies; operators that take more memory than their matrix |
//!
//! Everything is judged from printed digits, so every tolerance is what rounding to those digits allows, and no more.
//! A finding does not say which of two numbers is right.

mod accuracy;
mod agreement;
mod copies;
mod costs;
mod finding;
#[cfg(test)]
mod paper_test;
mod row;

pub use finding::{Check, Finding, Severity, csv, json, text};
pub use row::{AuditColumns, AuditTask};

use crate::artifact::paper::PaperNumber;
use row::AuditRow;

/// All findings in the tables whose numbers are given ([`crate::artifact::paper::all`] for the whole paper), contradictions first,
/// then by check and in the order of the tables.
///
/// Entries without a value take part in no check but that for duplicates.
pub fn run(entries: &[PaperNumber]) -> Vec<Finding> {
    run_with(entries, AuditColumns::paper())
}

/// The same of any tables, whose columns mean this.
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
    // A stable sort: within a check of one severity the order of the tables stays.
    findings.sort_by_key(|finding| (finding.severity, finding.check));
    findings
}
