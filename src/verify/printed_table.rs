//! CSV tables in a results folder.

use std::path::Path;

use super::finding::CheckResult;
use super::metrics::MAX_ROUNDING_ERROR;
use crate::error::{Error, Result};
use crate::files::regular;

/// CSV table with its file name. All fields are strings.
pub(super) struct PrintedTable {
    pub(super) name: String,
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl PrintedTable {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let name = file_name(path);
        let bytes = regular::read(path)?;
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(bytes.as_slice());
        let damaged = |error: csv::Error| {
            Error::damaged("the table is not a CSV file").at(path.display().to_string()).found(error.to_string())
        };
        let heads = reader.headers().map_err(damaged)?.iter().map(str::to_owned).collect();
        let rows = reader.records().map(|row| Ok(row.map_err(damaged)?.iter().map(str::to_owned).collect()));
        Ok(Self { name, heads, rows: rows.collect::<Result<_>>()? })
    }

    pub(super) fn column(&self, head: &str) -> Option<usize> {
        self.heads.iter().position(|known| known == head)
    }

    pub(super) fn number(&self, row: usize, column: usize) -> Option<f64> {
        self.rows[row].get(column)?.parse().ok()
    }

    /// Reports that a field differs from `computed`, the value computed from `numbers.json`.
    pub(super) fn record_difference(
        &self,
        at: String,
        (row, column): (usize, usize),
        computed: Option<f64>,
        check: &mut CheckResult,
    ) {
        let by = computed.zip(self.number(row, column)).map(|(computed, found)| (computed - found).abs());
        let text = computed.map_or("nothing".to_owned(), |computed| computed.to_string());
        check.record_difference(at, [self.rows[row][column].clone(), text], by);
    }
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

pub(super) fn nearly_equal(one: f64, two: f64) -> bool {
    (one - two).abs() <= MAX_ROUNDING_ERROR * one.abs().max(two.abs())
}
