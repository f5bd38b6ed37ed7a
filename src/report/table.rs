//! The table of a run: one row per cell, as a polars frame, on screen and in three files.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use polars::prelude::{Column, DataFrame, IntoColumn, NamedFrom, ParquetWriter, PolarsError, Series};

use super::csv::write_csv;
use super::{Protocol, Provenance, render, write_atomically};
use crate::error::{Error, Result};

/// One cell with its result. [`Row::NONE`] stands where a cell has no criterion, recovery or calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub backbone: String,
    pub criterion: String,
    /// How many layers are removed; 0 for the dense backbone.
    pub depth: usize,
    /// Which layers are removed, counted from 0.
    pub layers_removed: Vec<usize>,
    /// How many layers the dense backbone has.
    pub layers: usize,
    pub recovery: String,
    pub calibration: String,
    /// One value per protocol of the table; none where there is no result.
    pub values: Vec<Option<Measured>>,
    pub seconds: f64,
    /// What a reader has to know of this cell; empty where there is nothing.
    pub notes: String,
    /// `ok`, or `failed: ` and the reason.
    pub status: String,
}

/// A value and, where it is a mean over a sample, its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub value: f64,
    pub error: Option<f64>,
}

impl From<f64> for Measured {
    fn from(value: f64) -> Self {
        Self { value, error: None }
    }
}

impl Row {
    /// What stands for an absent criterion, recovery or calibration; the files hold an empty value instead.
    pub const NONE: &str = render::NONE;
    /// The status of a cell that has a result.
    pub const OK: &str = "ok";
}

/// The results of a run.
#[derive(Debug, Clone)]
pub struct Table {
    frame: DataFrame,
    /// Of each row. Not in the files: they hold what a repeated run gives again, byte for byte.
    seconds: Vec<f64>,
    protocols: Vec<Protocol>,
    /// Row and column of each cell that is the best of its backbone, depth and column.
    best: Vec<(usize, usize)>,
    /// What stands below the table, a paragraph each.
    notes: Vec<String>,
}

/// The columns before the values.
const LEADING: usize = 7;
const CSV: &str = "results.csv";
const PARQUET: &str = "results.parquet";
const MARKDOWN: &str = "results.md";

impl Table {
    /// All files that a run leaves in its results folder, [`Provenance::FILE`] included.
    pub const FILES: [&str; 4] = [CSV, PARQUET, MARKDOWN, Provenance::FILE];

    /// The table of `rows`, in their order.
    ///
    /// # Errors
    /// When a row has not one value per protocol, or two protocols have the same column.
    pub fn new(protocols: &[Protocol], rows: &[Row]) -> Result<Self> {
        if let Some((i, row)) = rows.iter().enumerate().find(|(_, row)| row.values.len() != protocols.len()) {
            return Err(Error::job(format!("row {i} of the results does not fit the table"))
                .expected(format!("{} values", protocols.len()))
                .found(row.values.len().to_string()));
        }
        let texts = |name: &str, text: &dyn Fn(&Row) -> String| {
            let some = |text: String| (text != Row::NONE && !text.is_empty()).then_some(text);
            Series::new(name.into(), rows.iter().map(|row| some(text(row))).collect::<Vec<_>>()).into_column()
        };
        let counts = |name: &str, count: &dyn Fn(&Row) -> usize| {
            Series::new(name.into(), rows.iter().map(|row| count(row) as u64).collect::<Vec<_>>()).into_column()
        };
        let mut columns: Vec<Column> = vec![
            texts("backbone", &|row| row.backbone.clone()),
            texts("criterion", &|row| row.criterion.clone()),
            counts("depth", &|row| row.depth),
            texts("layers removed", &|row| ranges(&row.layers_removed)),
            counts("layers", &|row| row.layers),
            texts("recovery", &|row| row.recovery.clone()),
            texts("calibration", &|row| row.calibration.clone()),
        ];
        debug_assert_eq!(columns.len(), LEADING);
        for (i, protocol) in protocols.iter().enumerate() {
            let values: Vec<Option<f64>> = rows.iter().map(|row| row.values[i].map(|v| v.value)).collect();
            columns.push(Series::new(protocol.column().into(), values).into_column());
        }
        // After all values, so that these stand side by side.
        for (i, protocol) in protocols.iter().enumerate() {
            let Some(name) = protocol.error_column() else { continue };
            let errors: Vec<Option<f64>> = rows.iter().map(|row| row.values[i].and_then(|v| v.error)).collect();
            columns.push(Series::new(name.into(), errors).into_column());
        }
        // Most grids have nothing to note.
        if rows.iter().any(|row| !row.notes.is_empty()) {
            columns.push(texts("notes", &|row| row.notes.clone()));
        }
        columns.push(texts("status", &|row| row.status.clone()));
        let frame = DataFrame::new(rows.len(), columns).map_err(|error| failed(&error))?;
        let seconds = rows.iter().map(|row| row.seconds).collect();
        let best = best(rows, protocols, &render::show(&frame)?);
        Ok(Self { frame, seconds, protocols: protocols.to_vec(), best, notes: Vec::new() })
    }

    /// The table with what a reader has to know of all its numbers.
    pub fn noted(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }

    /// The results as a polars frame; an absent value is null.
    pub fn frame(&self) -> &DataFrame {
        &self.frame
    }

    /// What a person reads: everything but the standard errors, which the files hold.
    fn shown(&self, frame: &DataFrame) -> Result<Vec<render::Shown>> {
        let errors: Vec<String> = self.protocols.iter().filter_map(Protocol::error_column).collect();
        Ok(render::show(frame)?.into_iter().filter(|column| !errors.contains(&column.name)).collect())
    }

    /// The table for a terminal of so many columns: every row, nothing shortened, and what each took.
    ///
    /// # Errors
    /// When polars cannot give a value back.
    pub fn on_screen(&self, width: Option<usize>) -> Result<String> {
        let mut frame = self.frame.clone();
        let seconds = Series::new("seconds".into(), &self.seconds).into_column();
        let place = LEADING + self.protocols.len() + self.protocols.iter().filter_map(Protocol::error_column).count();
        frame.insert_column(place, seconds).map_err(|error| failed(&error))?;
        let mut text = render::fitted(&self.shown(&frame)?, LEADING, width);
        self.notes.iter().for_each(|note| {
            text.push_str(&format!("\n{note}"));
        });
        text.push_str(if self.notes.is_empty() {
            ""
        } else {
            "
"
        });
        Ok(text)
    }

    /// The table in Markdown, the best pruned value of each backbone and depth in bold, its protocols below it.
    ///
    /// # Errors
    /// When polars cannot give a value back.
    pub fn markdown(&self) -> Result<String> {
        let mut text = render::markdown(&self.shown(&self.frame)?, |row, column| self.best.contains(&(row, column)));
        text.push_str(
            "\nBold: the best of the pruned variants of a backbone at a depth (lowest perplexity, highest accuracy).\n",
        );
        self.notes.iter().for_each(|note| text.push_str(&format!("\n{note}\n")));
        for protocol in &self.protocols {
            text.push_str(&format!("\n- {}", protocol.note()));
        }
        text.push('\n');
        Ok(text)
    }

    /// Writes `results.csv`, `results.parquet` and `results.md` into `dir`, each whole or not at all, and returns their
    /// paths. Numbers have full precision in the first two.
    ///
    /// # Errors
    /// Exit code 3 when the folder cannot be written to.
    pub fn write(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        // polars wants to mutate what it writes.
        let mut frame = self.frame.clone();
        let csv = dir.join(CSV);
        write_csv(&csv, &frame)?;
        let parquet = dir.join(PARQUET);
        write_atomically(&parquet, |file| {
            ParquetWriter::new(file).finish(&mut frame).map(|_| ()).map_err(|e| unwritten(&parquet, &e))
        })?;
        let markdown = dir.join(MARKDOWN);
        let text = self.markdown()?;
        write_atomically(&markdown, |file: &mut File| {
            file.write_all(text.as_bytes()).map_err(|error| Error::io("write", &markdown, &error))
        })?;
        Ok(vec![csv, parquet, markdown])
    }
}

/// The cells that hold the best value of the pruned variants of a backbone at a depth, as printed: a tie has several.
/// What has failed or is not finite is never the best.
fn best(rows: &[Row], protocols: &[Protocol], shown: &[render::Shown]) -> Vec<(usize, usize)> {
    // Signed so that less is better.
    let value = |at: usize, column: usize| {
        let text = &shown[LEADING + column].cells[at];
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && rows[at].status == Row::OK);
        value.and_then(|value| protocols[column].measures().cost(value))
    };
    let mut best = Vec::new();
    for (i, row) in rows.iter().enumerate().filter(|(_, row)| row.depth > 0) {
        for column in 0..protocols.len() {
            let Some(own) = value(i, column) else { continue };
            let rivals = rows.iter().enumerate();
            let mut rivals = rivals.filter(|(_, rival)| rival.depth == row.depth && rival.backbone == row.backbone);
            if rivals.all(|(at, _)| value(at, column).is_none_or(|theirs| own <= theirs)) {
                best.push((i, LEADING + column));
            }
        }
    }
    best
}

/// `8-10` for a run of layers, `1,3` for single ones.
fn ranges(layers: &[usize]) -> String {
    let mut sorted = layers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs: Vec<String> = sorted
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [only] => only.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        })
        .collect();
    runs.join(",")
}

pub(crate) fn failed(error: &PolarsError) -> Error {
    Error::job("the results make no table").found(error.to_string())
}

pub(crate) fn unwritten(path: &Path, error: &PolarsError) -> Error {
    match error {
        PolarsError::IO { error, .. } => Error::io("write", path, error),
        other => {
            Error::job("the results cannot be put into a file").at(path.display().to_string()).found(other.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use polars::prelude::{ParquetReader, SerReader};

    use super::*;

    fn protocol(corpus: &str) -> Protocol {
        Protocol::Windows {
            corpus: corpus.to_owned(),
            rule: corpus.to_owned(),
            length: 512,
            limit: None,
            windows: None,
            all: None,
            generated: false,
        }
    }

    fn row(depth: usize, recovery: &str, perplexity: &[Option<f64>]) -> Row {
        let is_dense = depth == 0;
        let of = |text: &str| if is_dense { Row::NONE.to_owned() } else { text.to_owned() };
        Row {
            backbone: "english".into(),
            criterion: of("llm-streamline"),
            depth,
            layers_removed: (8..8 + depth).collect(),
            layers: 16,
            recovery: of(recovery),
            calibration: of("wiki:32x512@0"),
            values: perplexity.iter().map(|value| value.map(Measured::from)).collect(),
            seconds: 1.25,
            notes: String::new(),
            status: "ok".into(),
        }
    }

    fn table() -> Table {
        let mut broken = row(3, "linearpatch-rotate", &[None, None]);
        broken.status = "failed: a tensor\n  is | not finite".into();
        let rows = [
            row(0, "", &[Some(18.123_456_789_012_3), Some(250.5)]),
            row(3, "none", &[Some(123.456), Some(f64::NAN)]),
            row(3, "ghosted", &[Some(25.5), Some(3.25e12)]),
            broken,
        ];
        Table::new(&[protocol("wikitext2"), protocol("c4")], &rows).unwrap()
    }

    #[test]
    fn the_screen_shows_every_value_in_line() {
        let text = table().on_screen(None).unwrap();
        let expected = "\
backbone  criterion       depth  layers removed  layers  recovery            calibration    ppl wikitext2@512  ppl c4@512  seconds  status
────────  ──────────────  ─────  ──────────────  ──────  ──────────────────  ─────────────  ─────────────────  ──────────  ───────  ────────────────────────────────
english   —                   0  —                   16  —                   —                         18.123      250.50      1.2  ok
english   llm-streamline      3  8-10                16  none                wiki:32x512@0            123.456         NaN      1.2  ok
english   llm-streamline      3  8-10                16  ghosted             wiki:32x512@0             25.500    3.250e12      1.2  ok
english   llm-streamline      3  8-10                16  linearpatch-rotate  wiki:32x512@0                  —           —      1.2  failed: a tensor is | not finite
";
        assert_eq!(text, expected);
    }

    #[test]
    fn notes_have_a_column_where_there_are_any() {
        let mut noted = row(3, "ghosted", &[Some(2.0)]);
        noted.notes = "rank 3 of 64".into();
        let text =
            Table::new(&[protocol("c4")], &[row(3, "none", &[Some(1.0)]), noted]).unwrap().on_screen(None).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("  notes") && lines[3].contains("rank 3 of 64  ok"), "{text}");
        assert!(!table().on_screen(None).unwrap().contains("notes"));
    }

    #[test]
    fn markdown_marks_the_best_finite_value_and_names_the_protocols() {
        let text = table().markdown().unwrap();
        assert!(text.contains("| **25.500** | **3.250e12** |"), "{text}");
        assert_eq!(text.matches("**").count(), 4, "only pruned variants compete:\n{text}");
        assert!(text.contains("failed: a tensor is \\| not finite"), "{text}");
        assert!(text.contains("protocol `windows`, all windows of 512 tokens"), "{text}");
    }

    #[test]
    fn the_best_is_sought_within_a_depth_and_a_tie_has_two() {
        let rows = [
            row(3, "a", &[Some(2.0)]),
            row(3, "b", &[Some(2.0)]),
            row(5, "a", &[Some(9.0)]),
            row(5, "b", &[Some(f64::INFINITY)]),
        ];
        assert_eq!(Table::new(&[protocol("c4")], &rows).unwrap().best, [(0, 7), (1, 7), (2, 7)]);
    }

    #[test]
    fn what_prints_alike_is_best_together_and_a_failed_cell_never() {
        let mut failed = row(3, "c", &[Some(2.0)]);
        failed.status = "failed: not scored on wiki".into();
        let rows = [row(3, "a", &[Some(2.900_000_015)]), row(3, "b", &[Some(2.9)]), failed];
        assert_eq!(Table::new(&[protocol("c4")], &rows).unwrap().best, [(0, 7), (1, 7)]);
    }

    #[test]
    fn of_accuracies_the_highest_is_best_and_errors_stand_in_the_files_alone() {
        let task = Protocol::MultipleChoice {
            name: "copa".into(),
            label: "copa".into(),
            task: "copa".into(),
            version: 1,
            metric: "acc".into(),
            bos: "tokenizer".into(),
            documents: 50,
            original: 100,
            whole: false,
            generated: false,
            limit: Some(50.0),
            max_length: None,
        };
        let accuracy = |value| Row { values: vec![Some(Measured { value, error: Some(5.0) })], ..row(3, "a", &[]) };
        let table = Table::new(&[task], &[accuracy(55.0), accuracy(60.0)]).unwrap();
        assert_eq!(table.best, [(1, LEADING)]);
        assert!(table.markdown().unwrap().contains("50 of 100 documents (not the whole published split)"));
        assert!(!table.on_screen(None).unwrap().contains('±'));
        let folder = tempfile::tempdir().unwrap();
        let csv = std::fs::read_to_string(&table.write(folder.path()).unwrap()[0]).unwrap();
        assert!(csv.lines().next().unwrap().contains("copa,copa ±,status"), "{csv}");
    }

    #[test]
    fn layers_are_written_as_ranges() {
        for (layers, text) in
            [(&[][..], ""), (&[8, 9, 10], "8-10"), (&[3, 1], "1,3"), (&[0, 1, 5, 7, 8], "0-1,5,7-8"), (&[4, 4], "4")]
        {
            assert_eq!(ranges(layers), text);
        }
    }

    #[test]
    fn the_files_hold_full_precision_and_nulls() {
        let dir = tempfile::tempdir().unwrap();
        let paths = table().write(dir.path()).unwrap();
        assert_eq!(paths.len(), 3);
        let csv = std::fs::read_to_string(&paths[0]).unwrap();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines[0],
            "backbone,criterion,depth,layers removed,layers,recovery,calibration,ppl wikitext2@512,ppl c4@512,status"
        );
        assert_eq!(lines[1], "english,,0,,16,,,18.1234567890123,250.5,ok");
        assert!(lines[2].contains("123.456,NaN"), "{csv}");
        let back = ParquetReader::new(File::open(&paths[1]).unwrap()).finish().unwrap();
        assert!(back.equals_missing(table().frame()));
    }

    #[test]
    fn an_unwritable_folder_is_said_with_exit_code_3() {
        let dir = tempfile::tempdir().unwrap();
        let error = table().write(&dir.path().join("absent")).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("results.csv"), "{error}");
    }

    #[test]
    fn a_row_of_another_width_is_refused() {
        let error = Table::new(&[protocol("c4")], &[row(3, "none", &[])]).unwrap_err();
        assert!(error.to_string().contains("expected: 1 values"), "{error}");
    }
}
