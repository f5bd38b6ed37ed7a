//! CSV files that a spreadsheet may open: a text that it would take for a formula is shown and not run.

use std::path::Path;

use polars::prelude::{Column, CsvWriter, DataFrame, DataType, IntoColumn, NamedFrom, PolarsError, SerWriter, Series};

use crate::error::{Error, Result};
use crate::files::atomic::write_atomically;

/// Writes a frame as CSV. Texts that begin like a formula get an apostrophe in front; numbers are left alone.
///
/// # Errors
/// Exit code 3 when the file cannot be written.
pub fn write_csv(path: &Path, frame: &DataFrame) -> Result<()> {
    let columns = frame.columns().iter().map(guarded).collect::<Result<Vec<Column>>>()?;
    let mut frame = DataFrame::new(frame.height(), columns).map_err(|error| failed(&error))?;
    write_atomically(path, |file| CsvWriter::new(file).finish(&mut frame).map_err(|error| unwritten(path, &error)))
}

fn guarded(column: &Column) -> Result<Column> {
    let name = guard(column.name()).unwrap_or_else(|| column.name().to_string());
    if *column.dtype() != DataType::String {
        return Ok(column.clone().with_name(name.into()));
    }
    let texts = column.str().map_err(|error| failed(&error))?;
    let texts: Vec<Option<String>> =
        texts.iter().map(|text| text.map(|text| guard(text).unwrap_or_else(|| text.to_owned()))).collect();
    Ok(Series::new(name.into(), texts).into_column())
}

/// The text as no formula, where it begins like one and is no number.
fn guard(text: &str) -> Option<String> {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    formula.then(|| format!("'{text}"))
}

pub fn failed(error: &PolarsError) -> Error {
    Error::job("the results make no table").found(error.to_string())
}

pub(super) fn unwritten(path: &Path, error: &PolarsError) -> Error {
    match error {
        PolarsError::IO { error, .. } => Error::io("write", path, error),
        other => failed(other).at(path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_never_a_formula_and_a_negative_number_stays_one() {
        let columns = vec![
            Series::new("name".into(), ["=1+1", "-cmd", "@x", "+a", "-3.5", "a=b", ""]).into_column(),
            Series::new("=value".into(), [-1.5, 2.0, -0.25, 1.0, 1.0, 1.0, 1.0]).into_column(),
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        write_csv(&path, &DataFrame::new(7, columns).unwrap()).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let expected = "name,'=value\n'=1+1,-1.5\n'-cmd,2.0\n'@x,-0.25\n'+a,1.0\n-3.5,1.0\na=b,1.0\n\"\",1.0\n";
        assert_eq!(text, expected);
    }
}
