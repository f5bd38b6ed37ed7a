//! Reads and compares the Parquet files in results directories.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use polars::prelude::{Column, DataFrame, DataType, ParquetReader, SerReader};

use crate::error::{Error, Result};
use crate::files::panics;

pub fn read_frame(path: &Path) -> Result<DataFrame> {
    let file = File::open(path).map_err(|error| Error::io("read", path, &error))?;
    panics::catch(|| ParquetReader::new(file).finish())
        .map_err(|panic| damaged_frame_error(path, &panic))?
        .map_err(|error| damaged_frame_error(path, &error.to_string()))
}

/// Returns the error for a Parquet file that cannot be read.
pub fn damaged_frame_error(path: &Path, found: &str) -> Error {
    Error::damaged("cannot read a Parquet file in the results folder").at(path.display().to_string()).found(found)
}

/// Differences between two tables with the same columns and the same number of rows.
#[derive(Debug, Default, PartialEq)]
pub struct FrameDifference {
    /// Column with the largest absolute difference between floating-point values, and that difference.
    pub largest: Option<(String, f64)>,
    /// Number of rows in which a floating-point value differs.
    pub rows: usize,
    /// Grid cells of the differing rows.
    pub cells: BTreeSet<String>,
    /// Names of the differing columns of other types, such as strings, counts and flags.
    pub other_columns: Vec<String>,
}

impl FrameDifference {
    /// Compares two tables row by row. Returns `None` if their columns or row counts differ.
    pub fn between(one: &DataFrame, other: &DataFrame) -> Option<Self> {
        if one.schema() != other.schema() || one.height() != other.height() {
            return None;
        }
        let mut difference = Self::default();
        let mut differing_rows = BTreeSet::new();
        for (a, b) in one.columns().iter().zip(other.columns()) {
            if *a.dtype() == DataType::Float64 {
                difference.add_floats(a, b, &mut differing_rows);
            } else if !a.equals_missing(b) {
                difference.other_columns.push(a.name().to_string());
            }
        }
        difference.rows = differing_rows.len();
        if let Some(cells) = one.column("cell").ok().and_then(|column| column.str().ok()) {
            difference.cells = differing_rows.iter().filter_map(|&row| cells.get(row)).map(str::to_owned).collect();
        }
        Some(difference)
    }

    fn add_floats(&mut self, one: &Column, other: &Column, rows: &mut BTreeSet<usize>) {
        let (Ok(a), Ok(b)) = (one.f64(), other.f64()) else { return };
        for (row, (a, b)) in a.iter().zip(b.iter()).enumerate() {
            if a.map(f64::to_bits) == b.map(f64::to_bits) {
                continue;
            }
            rows.insert(row);
            // A missing or non-finite value counts as an infinite difference.
            let distance = a.zip(b).map_or(f64::INFINITY, |(a, b)| (a - b).abs());
            let distance = if distance.is_nan() { f64::INFINITY } else { distance };
            if self.largest.as_ref().is_none_or(|(_, largest)| distance > *largest) {
                self.largest = Some((one.name().to_string(), distance));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use polars::df;

    use super::*;

    fn table(values: &[f64], greedy: &[bool]) -> DataFrame {
        let cells = ["a.dense", "a.dense", "a.ghosted"];
        df!("cell" => &cells[..values.len()], "log_likelihood" => values, "greedy" => greedy).unwrap()
    }

    #[test]
    fn frame_difference_reports_its_maximum_its_rows_and_its_cells() {
        let recorded = table(&[-1.0, -2.0, -3.0], &[true, false, true]);
        let same = FrameDifference::between(&recorded, &recorded).unwrap();
        assert_eq!(same, FrameDifference::default());
        let reproduced = table(&[-1.0, -2.25, -3.5], &[true, false, true]);
        let found = FrameDifference::between(&reproduced, &recorded).unwrap();
        assert_eq!((found.largest, found.rows), (Some(("log_likelihood".to_owned(), 0.5)), 2));
        assert_eq!(found.cells.into_iter().collect::<Vec<_>>(), ["a.dense", "a.ghosted"]);
        assert!(found.other_columns.is_empty());
    }

    #[test]
    fn frame_difference_lists_other_columns_and_nan_is_infinite() {
        let recorded = table(&[-1.0, -2.0, -3.0], &[true, false, true]);
        let found =
            FrameDifference::between(&table(&[f64::NAN, -2.0, -3.0], &[false, false, true]), &recorded).unwrap();
        assert_eq!(found.largest, Some(("log_likelihood".to_owned(), f64::INFINITY)));
        assert_eq!(found.other_columns, ["greedy"]);
        assert_eq!(FrameDifference::between(&table(&[-1.0], &[true]), &recorded), None, "different row counts");
    }
}
