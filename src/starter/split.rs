//! Splits a text into two disjoint parts, one for calibration and one for scoring.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::find;
use crate::corpus::read_rows;
use crate::error::{Error, Result};
use crate::files::output::{Input, OutputFile};

/// Fraction of the text that is used for calibration.
const CALIBRATION_FRACTION: f64 = 0.8;
/// Range of calibration fractions in which to look for a split point between rows, lines or words.
const SPLIT_RANGE: [f64; 2] = [0.7, 0.9];
/// Separator between rows according to the window rule of starter grids.
const ROW_SEPARATOR: &str = "\n\n";

/// Text that is split into two parts, each to be written to a file next to the grid.
#[derive(Debug)]
pub struct SplitText {
    text: PathBuf,
    parts: [(PathBuf, String); 2],
}

impl SplitText {
    /// Splits a text for a grid at `target`, without writing the files.
    ///
    /// # Errors
    /// Fails if the file cannot be read as text, or if no split leaves words in both parts.
    pub fn new(text: &Path, target: &Path) -> Result<Self> {
        let rows = read_rows(text, None)?;
        let Some([calibration, scored]) = split_rows(&rows) else {
            return Err(Error::bad_input("cannot split the text into a calibration part and a scored part")
                .at(text.display())
                .expected("at least two words, with whitespace near the split point")
                .hint("pass a longer text with --corpus, or pass one text for calibration and one for scoring"));
        };
        let folder = target.parent().unwrap_or(Path::new(""));
        let stem = find::file_stem(text);
        let parts = [("calibration", calibration), ("scored", scored)]
            .map(|(part, rows)| (folder.join(format!("{stem}-{part}.jsonl")), format_json_lines(&rows)));
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Returns the paths of the calibration file and of the file to score.
    pub fn files(&self) -> [&Path; 2] {
        [&self.parts[0].0, &self.parts[1].0]
    }

    /// Writes the files, except those that exist with the same content. If a write fails, removes the files already
    /// written.
    ///
    /// # Errors
    /// Fails if a file exists with different content and `force` is not set, or if a file cannot be written.
    pub fn write(&self, force: bool) -> Result<WrittenParts> {
        let mut written = WrittenParts::default();
        for (path, content) in &self.parts {
            if std::fs::read(path).is_ok_and(|bytes| bytes == content.as_bytes()) {
                continue;
            }
            let inputs = vec![Input::new("a text", &self.text)];
            OutputFile { path, inputs, force, is_ours: |_| false }.write(content.as_bytes())?;
            written.0.push(path.clone());
        }
        Ok(written)
    }
}

/// Guard for files written next to a grid. When dropped, it removes the files unless [`keep`](Self::keep) was called.
#[derive(Debug, Default)]
pub struct WrittenParts(Vec<PathBuf>);

impl WrittenParts {
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for WrittenParts {
    fn drop(&mut self) {
        for path in &self.0 {
            std::fs::remove_file(path).ok();
        }
    }
}

fn format_json_lines(rows: &[&str]) -> String {
    rows.iter().map(|row| json!({"text": row}).to_string() + "\n").collect()
}

/// Splits a text between two rows or at whitespace within a long row. Returns `None` if one of the parts would contain
/// no words, as in a text with a single word.
fn split_rows(rows: &[String]) -> Option<[Vec<&str>; 2]> {
    let bytes: usize = rows.iter().map(String::len).sum();
    let mut before = 0;
    for (index, row) in rows.iter().enumerate() {
        let after = before + row.len();
        if after as f64 >= SPLIT_RANGE[0] * bytes as f64 {
            let is_good = after as f64 <= SPLIT_RANGE[1] * bytes as f64 && index + 1 < rows.len();
            let cut = if is_good { row.len() } else { find_split_offset(row, before, bytes)? };
            let mut calibration: Vec<&str> = rows[..index].iter().map(String::as_str).collect();
            calibration.push(&row[..cut]);
            let rest = row[cut..].trim_start();
            let first = (!rest.is_empty()).then_some(rest);
            let scored: Vec<&str> = first.into_iter().chain(rows[index + 1..].iter().map(String::as_str)).collect();
            return (has_words(&calibration) && has_words(&scored)).then_some([calibration, scored]);
        }
        before = after;
    }
    None
}

fn has_words(part: &[&str]) -> bool {
    part.iter().any(|row| !row.trim().is_empty())
}

/// Returns the byte offset at which to split a row that starts at byte `row_start` of a text with `text_bytes` bytes.
/// Prefers a blank line, then a line end, then a space in [`SPLIT_RANGE`]. Otherwise uses the row's last whitespace.
fn find_split_offset(row: &str, row_start: usize, text_bytes: usize) -> Option<usize> {
    let [first, ideal, last] = [SPLIT_RANGE[0], CALIBRATION_FRACTION, SPLIT_RANGE[1]].map(|fraction| {
        let offset = ((fraction * text_bytes as f64) as usize).saturating_sub(row_start).min(row.len());
        (0..=offset).rev().find(|offset| row.is_char_boundary(*offset)).unwrap_or(0)
    });
    for pattern in [ROW_SEPARATOR, "\n", " "] {
        let earlier = row[first..ideal].rfind(pattern).map(|offset| first + offset);
        if let Some(cut) = earlier.or_else(|| row[ideal..last].find(pattern).map(|offset| ideal + offset)) {
            return Some(cut);
        }
    }
    row.rfind(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_parts_are_disjoint_and_cover_the_text() {
        let word = "word ".repeat(100);
        let short: Vec<String> = (0..50).map(|row| format!("row {row}")).collect();
        let long = vec!["one ".repeat(30), "two ".repeat(970)];
        let paragraphs = vec!["a b c d.\n\n".repeat(100)];
        for rows in [vec![word], short, long, paragraphs, vec!["a b".to_owned()], vec!["é è ê ë ".repeat(9)]] {
            let [calibration, scored] = split_rows(&rows).unwrap();
            let all: Vec<&str> = rows.iter().map(String::as_str).collect();
            assert_eq!([words_of(&calibration), words_of(&scored)].concat(), words_of(&all));
            let fraction = words_of(&calibration).len() as f64 / words_of(&all).len() as f64;
            assert!((0.5..=0.95).contains(&fraction), "{fraction} of {rows:?}");
        }
        assert_eq!(split_rows(&["word".to_owned()]), None);
        assert_eq!(split_rows(&[" ".to_owned()]), None);
    }

    fn words_of(rows: &[&str]) -> Vec<String> {
        rows.join(" ").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    }
}
