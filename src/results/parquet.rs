//! A Parquet file that is written part by part, so that only one part is in memory.

use std::path::Path;

use polars::prelude::{DataFrame, ParquetWriter, PolarsError};

use super::csv::unwritten;
use crate::error::Result;
use crate::files::atomic::write_atomically;

/// Writes frames with the columns of `empty`, each a row group; the file is whole or not there.
///
/// # Errors
/// What a frame fails with; exit code 3 when the file cannot be written.
pub(super) fn write_parts(
    path: &Path,
    empty: &DataFrame,
    parts: impl Iterator<Item = Result<DataFrame>>,
) -> Result<()> {
    write_atomically(path, |file| {
        let unwritten = |error: PolarsError| unwritten(path, &error);
        let mut writer = ParquetWriter::new(file).batched(empty.schema()).map_err(unwritten)?;
        for part in parts {
            let part = part?;
            if part.height() > 0 {
                writer.write_batch(&part).map_err(unwritten)?;
            }
        }
        writer.finish().map_err(unwritten).map(drop)
    })
}
