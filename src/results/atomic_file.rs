//! Writes results files atomically.
//!
//! CSV cells that a spreadsheet would execute as formulas are escaped. Parquet files are written in row groups, so that
//! only one row group is in memory at a time.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use polars::prelude::{
    Column, CsvWriter, DataFrame, IntoColumn, NamedFrom, ParquetWriter, PolarsError, SerWriter, Series,
};

use crate::error::{Error, Result};
use crate::files::atomic::write_atomically;

/// Writes a file atomically and returns its path.
///
/// # Errors
/// Fails with exit code 3 if the directory is not writable.
pub fn put(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    write_atomically(path, |file| file.write_all(bytes).map_err(|error| Error::io("write", path, &error)))?;
    Ok(path.to_owned())
}

/// Writes a data frame as CSV. Strings that look like formulas are prefixed with an apostrophe. Numbers are not
/// changed.
///
/// # Errors
/// Fails with exit code 3 if the file cannot be written.
pub fn write_csv(path: &Path, frame: &DataFrame) -> Result<()> {
    let columns = frame.columns().iter().map(escape_formulas).collect();
    let mut escaped = DataFrame::new(frame.height(), columns).map_err(|error| polars_error(&error))?;
    write_atomically(path, |file| PolarsFile::write(file, path, |file| CsvWriter::new(file).finish(&mut escaped)))
}

/// Escapes the name and the strings of a column.
fn escape_formulas(column: &Column) -> Column {
    let mut escaped = match column.str() {
        Ok(texts) => {
            let texts: Vec<Option<String>> = texts.iter().map(|text| text.map(escape_formula)).collect();
            Series::new(column.name().clone(), texts).into_column()
        }
        Err(_) => column.clone(),
    };
    escaped.rename(escape_formula(column.name()).into());
    escaped
}

/// Returns the string, after an apostrophe if a spreadsheet would interpret it as a formula.
fn escape_formula(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    if is_formula { format!("'{text}") } else { text.to_owned() }
}

/// Returns records as CSV text. Fields are quoted if necessary.
///
/// # Errors
/// Fails if the records differ in their number of fields.
pub fn csv_text<R: IntoIterator<Item: AsRef<[u8]>>>(records: impl IntoIterator<Item = R>) -> Result<String> {
    let failed = |error: String| Error::job("cannot write the results as CSV").found(error);
    let mut writer = csv::Writer::from_writer(Vec::new());
    records
        .into_iter()
        .try_for_each(|record| writer.write_record(record))
        .map_err(|error| failed(error.to_string()))?;
    let bytes = writer.into_inner().map_err(|error| failed(error.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub fn polars_error(error: &PolarsError) -> Error {
    Error::job("cannot write the results as CSV or Parquet").found(error.to_string())
}

/// Output file that remembers I/O errors, because polars would report a full disk as a damaged table.
pub(super) struct PolarsFile<'a> {
    file: &'a mut File,
    error: &'a mut Option<io::Error>,
}

impl PolarsFile<'_> {
    /// Writes a file by calling `write`.
    ///
    /// # Errors
    /// Fails with exit code 3 if the file cannot be written or if the format does not support the table.
    pub(super) fn write(
        file: &mut File,
        path: &Path,
        write: impl FnOnce(PolarsFile<'_>) -> Result<(), PolarsError>,
    ) -> Result<()> {
        let mut error = None;
        let written = write(PolarsFile { file, error: &mut error });
        match (written, error) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => Err(Error::io("write", path, &error)),
            (Err(error), None) => Err(polars_error(&error).at(path.display().to_string())),
        }
    }

    /// Stores the code or kind of an I/O error, because `io::Error` is not `Clone`.
    fn record_error<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            *self.error = Some(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error));
        }
        result
    }
}

impl Write for PolarsFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        self.record_error(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.record_error(flushed)
    }
}

/// Writes the rows of several items atomically to one file, with one row group per item that has rows. Only the rows of
/// one item are in memory at a time.
///
/// # Errors
/// Fails if `build_frame` fails. Fails with exit code 3 if the file cannot be written.
pub(super) fn write_row_groups<T>(
    path: &Path,
    items: &[T],
    build_frame: impl Fn(&[T]) -> Result<DataFrame>,
) -> Result<()> {
    let empty = build_frame(&[])?;
    write_atomically(path, |file| {
        let mut frame_error = None;
        PolarsFile::write(file, path, |file| {
            let mut writer = ParquetWriter::new(file).batched(empty.schema())?;
            for frame in items.chunks(1).map(&build_frame) {
                match frame {
                    Ok(frame) if frame.height() > 0 => writer.write_batch(&frame)?,
                    Ok(_) => {}
                    Err(error) => {
                        frame_error = Some(error);
                        return Ok(());
                    }
                }
            }
            writer.finish().map(drop)
        })?;
        frame_error.map_or(Ok(()), Err)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn full_disk_fails_the_parquet_write_with_exit_code_3() {
        let mut frame = DataFrame::new(1, vec![Series::new("a".into(), [1_i64]).into_column()]).unwrap();
        let path = Path::new("documents.parquet");
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let written = PolarsFile::write(&mut full, path, |file| ParquetWriter::new(file).finish(&mut frame).map(drop));
        let error = written.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.exit_code(), 3, "{text}");
        assert!(text.contains("documents.parquet") && text.contains("No space left"), "{text}");
    }

    fn csv_text(columns: Vec<Column>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        write_csv(&path, &DataFrame::new(columns[0].len(), columns).unwrap()).unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn csv_output_has_quoted_strings_and_shortest_numbers() {
        let texts = [Some("a,b"), Some("say \"x\""), Some("two\nlines"), Some(""), None, Some("é ±")];
        let numbers = [Some(0.1 + 0.2), Some(1e-7), Some(1e21), Some(-0.0), None, Some(f64::INFINITY)];
        let small = [Some(0.000_012_5), Some(123_456_789.0), Some(1e16), Some(f64::NAN), Some(5e-324), Some(100.0)];
        let counts = [Some(3_u64), None, Some(0), Some(u64::MAX), Some(1), Some(2)];
        let columns = vec![
            Series::new("text".into(), texts).into_column(),
            Series::new("number, all".into(), numbers).into_column(),
            Series::new("small".into(), small).into_column(),
            Series::new("count".into(), counts).into_column(),
        ];
        let expected = [
            "text,\"number, all\",small,count",
            "\"a,b\",0.30000000000000004,0.0000125,3",
            "\"say \"\"x\"\"\",1e-7,123456789.0,",
            "\"two\nlines\",1e+21,1e+16,0",
            "\"\",-0.0,NaN,18446744073709551615",
            ",,5e-324,1",
            "é ±,inf,100.0,2\n",
        ];
        assert_eq!(csv_text(columns), expected.join("\n"));
    }

    #[test]
    fn csv_text_that_looks_like_a_formula_is_escaped() {
        let columns = vec![
            Series::new("name".into(), ["=1+1", "-cmd", "@x", "+a", "-3.5", "a=b", ""]).into_column(),
            Series::new("=value".into(), [-1.5, 2.0, -0.25, 1.0, 1.0, 1.0, 1.0]).into_column(),
        ];
        let text = csv_text(columns);
        let expected = "name,'=value\n'=1+1,-1.5\n'-cmd,2.0\n'@x,-0.25\n'+a,1.0\n-3.5,1.0\na=b,1.0\n\"\",1.0\n";
        assert_eq!(text, expected);
    }
}
