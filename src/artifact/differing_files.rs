//! Explains how the files of a run differ from the recorded files although all numbers are equal.

use std::path::Path;

use crate::error::Result;
use crate::files::regular;
use crate::quantity::pluralize;
use crate::results::{FrameDifference, may_be_left_out, read_frame};

/// Extensions of files that contain printed tables.
const TABLE_EXTENSIONS: [&str; 3] = ["csv", "md", "tex"];

/// Describes how each named file differs. Adds a final phrase if no printed digit changes.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn explain<'n>(
    computed: &Path,
    recorded: &Path,
    names: impl IntoIterator<Item = &'n str>,
) -> Result<Vec<String>> {
    let mut phrases = Vec::new();
    let mut changed_digits = 0;
    for name in names {
        let one = computed.join(name);
        let other = recorded.join(name);
        let ending = one.extension().unwrap_or_default().to_string_lossy().into_owned();
        let phrase = match (one.is_file(), other.is_file()) {
            (true, true) if ending == "parquet" => compare_frames(&one, &other)?,
            (true, true) if TABLE_EXTENSIONS.contains(&ending.as_str()) => {
                let digits = count_changed_numbers(&read_text(&one)?, &read_text(&other)?);
                changed_digits += digits;
                if digits == 0 {
                    "text differs".to_owned()
                } else {
                    format!("{} changed", pluralize(digits, "printed number"))
                }
            }
            (true, true) => "contents differ".to_owned(),
            (true, false) if may_be_left_out(name) => {
                "only its hash is in the record, so the size of the difference is unknown".to_owned()
            }
            (true, false) => "not in the recorded run".to_owned(),
            _ => "only in the recorded run".to_owned(),
        };
        phrases.push(format!("{name}: {phrase}"));
    }
    if !phrases.is_empty() && changed_digits == 0 {
        phrases.push("no printed digit changes".to_owned());
    }
    Ok(phrases)
}

fn compare_frames(computed: &Path, recorded: &Path) -> Result<String> {
    let Some(difference) = FrameDifference::between(&read_frame(computed)?, &read_frame(recorded)?) else {
        return Ok("rows or columns differ".to_owned());
    };
    let FrameDifference { largest, rows, cells, other_columns } = difference;
    let mut parts = Vec::new();
    if let Some((column, difference)) = largest {
        let total = if cells.is_empty() { String::new() } else { format!(" of {}", pluralize(cells.len(), "cell")) };
        parts.push(format!("{column} differs by at most {difference:.1e} ({}{total})", pluralize(rows, "row")));
    }
    if !other_columns.is_empty() {
        parts.push(format!("{} differs", other_columns.join(", ")));
    }
    Ok(if parts.is_empty() { "same values, stored differently".to_owned() } else { parts.join(", ") })
}

fn read_text(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&regular::read(path)?).into_owned())
}

/// Counts the numbers that differ between two texts, comparing them in order.
fn count_changed_numbers(one: &str, other: &str) -> usize {
    let one = printed_numbers(one);
    let other = printed_numbers(other);
    let changed = one.iter().zip(&other).filter(|(a, b)| a != b).count();
    changed + one.len().abs_diff(other.len())
}

fn printed_numbers(text: &str) -> Vec<&str> {
    let parts = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    parts.map(|part| part.trim_matches('.')).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use polars::df;
    use polars::prelude::ParquetWriter;

    use super::*;

    #[test]
    fn changed_number_count_ignores_other_words() {
        assert_eq!(count_changed_numbers("| a | 1.25 ± 0.5 |", "| b | 1.25 ± 0.5 |"), 0);
        assert_eq!(count_changed_numbers("| a | 1.25 ± 0.5 |", "| a | 1.26 ± 0.5 |"), 1);
        assert_eq!(count_changed_numbers("1.25, 2", "1.25, 2, 3."), 1);
    }

    #[test]
    fn explanation_states_size_and_printed_digits() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [reproduced, recorded] = [folders[0].path(), folders[1].path()];
        for (folder, value) in [(reproduced, -1.0), (recorded, -1.0 - 3e-7)] {
            let mut frame = df!("cell" => &["a.ghosted"], "log_likelihood" => &[value]).unwrap();
            let file = fs::File::create(folder.join("documents.parquet")).unwrap();
            ParquetWriter::new(file).finish(&mut frame).unwrap();
        }
        fs::write(reproduced.join("a.md"), "one 1.5").unwrap();
        fs::write(recorded.join("a.md"), "two 1.5").unwrap();
        let explanation = explain(reproduced, recorded, ["a.md", "documents.parquet"]).unwrap();
        let difference = "documents.parquet: log_likelihood differs by at most 3.0e-7 (1 row of 1 cell)";
        assert_eq!(explanation, ["a.md: text differs", difference, "no printed digit changes"]);
        fs::write(reproduced.join("a.md"), "one 1.6").unwrap();
        assert_eq!(explain(reproduced, recorded, ["a.md"]).unwrap(), ["a.md: 1 printed number changed"]);
        fs::remove_file(recorded.join("documents.parquet")).unwrap();
        let explanation = explain(reproduced, recorded, ["documents.parquet"]).unwrap();
        assert!(explanation[0].contains("only its hash is in the record"), "{explanation:?}");
        assert_eq!(explanation[1], "no printed digit changes");
    }
}
