//! Columns of a parquet table.

use std::fs::File;
use std::path::Path;

use polars::prelude::{DataFrame, ParquetReader, PlSmallStr, PolarsError, SerReader};

use super::caught;
use super::limit::TextLimit;
use crate::error::{Error, Result};

/// Reads the columns that `choose` picks from the names there are, and gives them to `take`.
///
/// Polars panics on some damaged footers (found by flipping bits) and on types that it was built without, and a bad input
/// is never a panic. (A damaged page header can also make it ask for more memory than there is, which ends the process: that
/// cannot be caught here.)
///
/// # Errors
/// A file that cannot be read as a table, and what `choose` and `take` refuse.
pub fn read<T>(
    file: File,
    path: &Path,
    limit: TextLimit,
    choose: impl FnOnce(&[&str]) -> Result<Vec<String>>,
    take: impl FnOnce(&DataFrame) -> Result<T>,
) -> Result<T> {
    let columns = || {
        let broken = |error: PolarsError| broken(path, &error);
        let mut reader = ParquetReader::new(file);
        let schema = reader.schema().map_err(broken)?;
        let names: Vec<&str> = schema.iter_names().map(PlSmallStr::as_str).collect();
        let wanted = choose(&names)?;
        // Decompressed size of the wanted columns according to the footer.
        let metadata = reader.get_metadata().map_err(broken)?;
        let parts = metadata
            .row_groups
            .iter()
            .flat_map(|group| wanted.iter().filter_map(|name| group.columns_under_root_iter(name)).flatten());
        let bytes = parts.map(|part| u64::try_from(part.uncompressed_size()).unwrap_or(u64::MAX));
        limit.check(path, bytes.fold(0, u64::saturating_add))?;
        take(&reader.with_columns(Some(wanted)).finish().map_err(broken)?)
    };
    caught::catch(columns).unwrap_or_else(|_| Err(unreadable(path, "a table that the reader cannot make sense of")))
}

/// Creates the error for a part of a table that polars rejects.
pub fn broken(path: &Path, error: &PolarsError) -> Error {
    unreadable(path, &error.to_string())
}

fn unreadable(path: &Path, found: &str) -> Error {
    Error::bad_input("the parquet file cannot be read").at(path.display()).found(found).hint("download the file again")
}
