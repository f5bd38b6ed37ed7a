//! Tables as data: CSV for spreadsheets and Parquet for programs. Numbers are written at full precision, and missing
//! numbers are null.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polars::prelude::{Column, DataFrame, IntoColumn, NamedFrom, ParquetWriter, Series};

use super::atomic_file::{PolarsFile, polars_error, write_csv};
use super::notes::{protocol_line, removed_text};
use super::protocol::stem;
use super::result_row::{ResultRow, Sample};
use super::table::{OUT_OF_MEMORY, PrintedNumber, RowHeader, Table, TableRow, Visibility};
use crate::error::Result;
use crate::files::atomic::write_atomically;
use crate::metric::Spread;
use crate::model::Cut;
use crate::pipeline::outcome::CellResult;

/// Writes `NAME.csv` and `NAME.parquet` into `dir` atomically, and returns their paths.
///
/// # Errors
/// Fails with exit code 3 if the directory is not writable.
pub fn write_frame(dir: &Path, name: &str, mut frame: DataFrame) -> Result<Vec<PathBuf>> {
    let csv = dir.join(format!("{name}.csv"));
    let parquet = dir.join(format!("{name}.parquet"));
    write_csv(&csv, &frame)?;
    write_atomically(&parquet, |file| {
        PolarsFile::write(file, &parquet, |file| ParquetWriter::new(file).finish(&mut frame).map(drop))
    })?;
    Ok(vec![csv, parquet])
}

/// Builds the data frame for a run's table. The value columns are followed by the uncertainty columns, whose names
/// state the kind of uncertainty, such as `copa stderr`.
///
/// # Errors
/// Fails if two columns have the same name.
pub fn run_frame(table: &Table) -> Result<DataFrame> {
    let mut columns = header_columns(table, &table.lead, &|row| &row.lead);
    for (at, column_head) in table.columns.iter().enumerate() {
        let values = table.rows.iter().map(|row| row.cells[at].as_ref()?.number.record.value);
        columns.push(column(&column_head.head, values));
    }
    for (at, column_head) in table.columns.iter().enumerate() {
        let counts = || table.rows.iter().map(|row| Some(row.cells[at].as_ref()?.number.seed_counts()?.0 as u64));
        let has_seeds = counts().any(|count| count.is_some());
        for kind in Spread::ALL {
            if column_head.metric.spread == Some(kind) || (has_seeds && kind == Spread::OverSeeds) {
                let errors = table.rows.iter().map(|row| row.cells[at].as_ref()?.number.error_if(kind));
                columns.push(column(&spread_header(&column_head.head, kind), errors));
            }
        }
        columns.extend(has_seeds.then(|| column(&format!("{} n", column_head.head), counts())));
    }
    columns.extend(header_columns(table, &table.tail, &|row| &row.tail));
    DataFrame::new(table.rows.len(), columns).map_err(|error| polars_error(&error))
}

fn header_columns(table: &Table, leads: &[RowHeader], cells: &dyn Fn(&TableRow) -> &[String]) -> Vec<Column> {
    leads
        .iter()
        .enumerate()
        .filter(|(_, lead)| lead.visibility != Visibility::Terminal)
        .map(|(at, lead)| {
            let texts = table.rows.iter().map(|row| Some(cells(row)[at].as_str()).filter(|text| !text.is_empty()));
            match lead.count {
                true => column(&lead.head, texts.map(|text| text?.parse::<u64>().ok())),
                false => column(&lead.head, texts),
            }
        })
        .collect()
}

/// Builds a data frame with one row per number. It has the columns of `data/paper/*.csv`, and columns for the rank, the
/// comparison with the paper, the paired test, the status, the protocol and the cell. A dense number that the table
/// repeats for several depths appears only once.
pub fn tidy_frame(artifact: &str, profile: &str, table: &Table) -> Result<DataFrame> {
    let mut rows: Vec<&PrintedNumber> = Vec::new();
    for (_, shown) in table.numbers() {
        if rows.iter().all(|known| !Arc::ptr_eq(&known.number, &shown.number)) {
            rows.push(shown);
        }
    }
    let numbers: Vec<&ResultRow> = rows.iter().map(|shown| &*shown.number).collect();
    let comparisons = || rows.iter().map(|shown| shown.comparison.as_ref());
    let pairs = || rows.iter().map(|shown| shown.paired.as_ref());
    let mut columns = description_columns(artifact, profile, &numbers);
    columns.extend([
        column(
            "rank",
            rows.iter().map(|shown| match (shown.best, shown.second) {
                (true, _) => Some("best"),
                (_, true) => Some("second"),
                _ => None,
            }),
        ),
        column("paper", comparisons().map(|comparison| Some(comparison?.paper))),
        column("difference", comparisons().map(|comparison| comparison?.difference)),
        column("tolerance", comparisons().map(|comparison| Some(comparison?.tolerance))),
        column("verdict", comparisons().map(|comparison| comparison?.verdict_label())),
        column("other_protocol", comparisons().map(|comparison| comparison?.verdict.other_protocol())),
        column("test", pairs().map(|pair| Some(pair?.test))),
        column("against", pairs().map(|pair| Some(pair?.against.clone()))),
        column("effect", pairs().map(|pair| Some(pair?.difference))),
        column("p", pairs().map(|pair| Some(pair?.p))),
        column(
            "status",
            numbers.iter().map(|number| match (&number.failure, &number.sample) {
                (Some(reason), _) => format!("failed: {reason}"),
                (None, Sample::OutOfMemory) => OUT_OF_MEMORY.to_owned(),
                (None, _) if number.record.value.is_none() => "no value".to_owned(),
                (None, _) => "ok".to_owned(),
            }),
        ),
        column("protocol", numbers.iter().map(|number| protocol_line(profile, [*number]))),
        column(
            "cell",
            numbers.iter().map(|number| match &number.sample {
                Sample::Seeds(rows) => rows.iter().map(|row| row.cell.as_str()).collect::<Vec<_>>().join("; "),
                _ => number.cell.clone(),
            }),
        ),
    ]);
    let counts = || rows.iter().map(|shown| shown.number.seed_counts().map(|(count, _)| count as u64));
    if counts().any(|count| count.is_some()) {
        let deviation = columns.iter().position(|column| column.name().as_str() == Spread::OverSeeds.column());
        columns.insert(deviation.map_or(columns.len(), |at| at + 1), column("n", counts()));
    }
    DataFrame::new(rows.len(), columns).map_err(|error| polars_error(&error))
}

/// Builds the data frame for a figure, with one row per number.
pub fn drawn_frame(artifact: &str, profile: &str, numbers: &[&ResultRow]) -> Result<DataFrame> {
    let mut columns = description_columns(artifact, profile, numbers);
    // In figures, the method name states whether an operator is trained.
    columns.retain(|column| column.name().as_str() != "finetuned");
    columns.push(column("cell", numbers.iter().map(|number| number.cell.as_str())));
    DataFrame::new(numbers.len(), columns).map_err(|error| polars_error(&error))
}

/// Builds the data frame for a diagram of sublayers. It has one row per pruned cell, which may have no number.
pub fn cut_frame(artifact: &str, profile: &str, cells: &[CellResult]) -> Result<DataFrame> {
    let pruned: Vec<&CellResult> = cells.iter().filter(|result| !result.cell.is_dense()).collect();
    let named = || pruned.iter().map(|result| &result.cell);
    let columns = vec![
        column("artifact", pruned.iter().map(|_| artifact)),
        column("profile", pruned.iter().map(|_| profile)),
        column("backbone", named().map(|cell| cell.backbone.as_str())),
        column("total_layers", pruned.iter().map(|result| result.layers as u64)),
        column("pruned_layers", named().map(|cell| cell.depth.count as u64)),
        column("unit", named().map(|cell| cell.depth.unit.name())),
        column("criterion", named().map(|cell| cell.criterion.as_ref().map(ToString::to_string))),
        column("recovery", named().map(|cell| cell.recovery.as_ref().map(ToString::to_string))),
        column("calibration", named().map(|cell| Some(stem(&cell.calibration.as_ref()?.corpus)))),
        column("removed", pruned.iter().map(|result| cut_text(&result.removed))),
        column(REPLACED, pruned.iter().map(|result| cut_text(&result.replaced_sublayers()))),
        column("cell", named().map(ToString::to_string)),
    ];
    DataFrame::new(pruned.len(), columns).map_err(|error| polars_error(&error))
}

/// Column of [`cut_frame`] with the removed sublayers that an operator replaces. No other data frame has it.
pub const REPLACED: &str = "replaced";

/// Formats a cut, or returns `None` if it is empty.
fn cut_text(cut: &Cut) -> Option<String> {
    Some(removed_text(cut)).filter(|text| !text.is_empty())
}

/// Builds the columns that describe numbers, as in `data/paper/*.csv`.
fn description_columns(artifact: &str, profile: &str, numbers: &[&ResultRow]) -> Vec<Column> {
    let records = || numbers.iter().map(|number| &number.record);
    let conditions = || records().map(|record| &record.condition);
    let mut columns = vec![
        column("artifact", numbers.iter().map(|_| artifact)),
        column("profile", numbers.iter().map(|_| profile)),
        column("backbone", conditions().map(|condition| condition.backbone.as_str())),
        column("total_layers", conditions().map(|condition| condition.layers as u64)),
        column("pruned_layers", conditions().map(|condition| condition.depth as u64)),
        column("criterion", conditions().map(|condition| condition.criterion.as_str())),
        column("recovery", conditions().map(|condition| condition.recovery.as_str())),
        column("finetuned", conditions().map(|condition| condition.finetuned.to_string())),
        column("calibration", conditions().map(|condition| condition.calibration.as_str())),
        column("metric", records().map(|record| record.metric.as_str())),
        column("value", records().map(|record| record.value)),
    ];
    columns.extend(Spread::ALL.map(|kind| column(kind.column(), numbers.iter().map(|number| number.error_if(kind)))));
    if conditions().any(|condition| !condition.unit.is_layers()) {
        columns.insert(UNIT_POSITION, column("unit", conditions().map(|condition| condition.unit.name())));
    }
    columns
}

/// Index of the column with the unit of `pruned_layers`. Only tables that also count sublayers have this column.
const UNIT_POSITION: usize = 5;

/// Returns the header of a metric's uncertainty column, such as `copa stderr`.
pub fn spread_header(head: &str, kind: Spread) -> String {
    format!("{head} {}", kind.column())
}

fn column<T>(name: &str, values: impl Iterator<Item = T>) -> Column
where
    Series: NamedFrom<Vec<T>, [T]>,
{
    Series::new(name.into(), values.collect::<Vec<_>>()).into_column()
}
