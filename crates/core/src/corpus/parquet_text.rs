//! Reader for the text column of a Parquet file.

use std::fs::File;
use std::path::Path;

use polars::prelude::{ArrowSchema, DataFrame, DataType, PlSmallStr};

use crate::error::Result;
use crate::files::limit::{RowMemory, TextLimit};
use crate::files::parquet::{self, parquet_error};
use crate::files::rows::input_error;

/// Reads the text column of a parquet file. `pick` selects one of the column names.
///
/// # Errors
/// Fails if the file is damaged, or the column does not exist, is not text or contains a null.
pub(super) fn read_parquet(
    file: File,
    path: &Path,
    limit: TextLimit,
    pick: impl Fn(&[&str]) -> Result<String>,
) -> Result<Vec<String>> {
    parquet::read(
        file,
        path,
        limit,
        |schema: &ArrowSchema| {
            let names: Vec<&str> = schema.iter_names().map(PlSmallStr::as_str).collect();
            let name = pick(&names).map_err(|error| error.at(path.display()))?;
            Ok(vec![name])
        },
        |frame, _| read_texts(frame, path, limit),
    )
}

/// Reads the texts of the table's only column.
fn read_texts(frame: &DataFrame, path: &Path, limit: TextLimit) -> Result<Vec<String>> {
    let values = frame.select_at_idx(0).ok_or_else(|| input_error("the parquet file has no columns", path))?;
    let name = values.name();
    if *values.dtype() != DataType::String {
        return Err(input_error(format!("column `{name}` does not contain text"), path)
            .expected("a string in every row")
            .found(values.dtype()));
    }
    let texts = values.str().map_err(|error| parquet_error(path, &error))?;
    let mut rows = Vec::new();
    let mut memory = RowMemory::new(limit, path);
    for (index, text) in texts.iter().enumerate() {
        let Some(text) = text else {
            return Err(input_error(format!("column `{name}` contains a value that is not text"), path)
                .at(format!("row {}", index + 1))
                .expected("a string in every row")
                .found("null"));
        };
        memory.add(text.len())?;
        rows.push(text.to_owned());
    }
    Ok(rows)
}

#[cfg(test)]
pub(super) mod sample {
    use polars::prelude::{Column, DataFrame, ParquetWriter};

    pub(crate) fn parquet(columns: Vec<Column>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut frame = DataFrame::new_infer_height(columns).unwrap();
        ParquetWriter::new(&mut bytes).finish(&mut frame).unwrap();
        bytes
    }
}

#[cfg(test)]
mod tests {
    use polars::prelude::Column;

    use super::super::read_rows;
    use super::sample::parquet;

    /// Reads a file that must be rejected, and returns the error message.
    fn rejection_message(bytes: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        std::fs::write(&path, bytes).unwrap();
        let error = read_rows(path, None).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        let message = error.to_string();
        assert!(message.contains("a.parquet"), "the message does not name the file: {message}");
        message
    }

    #[test]
    fn non_text_values_are_rejected() {
        let numbers = parquet(vec![Column::new("text".into(), [1_i64, 2])]);
        assert!(rejection_message(&numbers).contains("i64"));
        let nulls = parquet(vec![Column::new("text".into(), [Some("a"), None])]);
        let message = rejection_message(&nulls);
        assert!(message.contains("row 2") && message.contains("null"), "{message}");
    }

    #[test]
    fn damaged_parquet_file_is_rejected() {
        let intact = parquet(vec![Column::new("text".into(), ["a", "", "b\n"])]);
        rejection_message(b"not parquet at all");
        for size in [1, 7, intact.len() / 2, intact.len() - 1] {
            rejection_message(&intact[..size]);
        }
    }

    /// Parquet readers need not verify checksums, so an altered file may still be readable. It must not cause a panic.
    #[test]
    fn corrupt_parquet_footer_does_not_panic() {
        let intact = parquet(vec![Column::new("text".into(), ["a", "", "b\n"])]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        for position in intact.len().saturating_sub(400)..intact.len() {
            let mut altered = intact.clone();
            altered[position] ^= 1 << (position % 8);
            std::fs::write(&path, altered).unwrap();
            if let Err(error) = read_rows(&path, None) {
                assert_eq!(error.exit_code(), 2, "{error}");
            }
        }
    }
}
