//! The paper against itself: what its tables say twice and differently, and what no evaluation can have printed.
//!
//! | file | noun |
//! | --- | --- |
//! | `finding` | what was found, and by which check |
//! | `render` | findings as text, CSV and JSON |
//! | `row` | one row of a table |
//! | `columns` | what the columns of a table mean |
//! | `averages` | means that are not the mean of their columns |
//! | `agreement` | one condition with two values |
//! | `calibration` | how many calibration sequences an unsized row has |
//! | `accuracy` | accuracies that no count of right answers gives; rows at chance |
//! | `copies` | two conditions with one row; one metric twice |
//! | `speedup` | speedups that are not the ratio of their latencies |
//! | `memory` | operators that take more memory than their matrix |
//!
//! Everything is judged from printed digits, so every tolerance is what rounding to those digits allows, and no more.
//! A finding does not say which of two numbers is right.

mod accuracy;
mod agreement;
mod averages;
mod calibration;
mod columns;
mod copies;
mod finding;
mod memory;
#[cfg(test)]
mod paper_test;
mod render;
mod row;
mod speedup;

pub use columns::{AuditColumns, AuditTask};
pub use finding::{Check, Finding, Severity};
pub use render::{csv, json, text};

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
    averages::check(&rows, &mut findings);
    agreement::check(entries, &mut findings);
    calibration::check(&rows, &mut findings);
    accuracy::check_counts(entries, columns, &mut findings);
    accuracy::check_chance(&rows, &mut findings);
    copies::check_rows(&rows, &mut findings);
    copies::check_duplicates(&rows, &mut findings);
    speedup::check(&rows, &mut findings);
    memory::check(&rows, &mut findings);
    // A stable sort: within a check of one severity the order of the tables stays.
    findings.sort_by_key(|finding| (finding.severity, finding.check));
    findings
}
