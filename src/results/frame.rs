//! A table as data: CSV for spreadsheets, Parquet for programs. Numbers have full precision; an absent one is null.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polars::prelude::{Column, DataFrame, IntoColumn, NamedFrom, ParquetWriter, Series};

use super::file::{ParquetFile, failed, write_csv};
use super::measurement::{Measurement, Sample};
use super::notes::protocol_line;
use super::table::{Lead, LeadPlace, OUT_OF_MEMORY, PrintedNumber, Table, TableRow};
use crate::error::Result;
use crate::files::atomic::write_atomically;
use crate::metric::Spread;

/// Writes `NAME.csv` and `NAME.parquet` into `dir`, each whole or not at all; their paths.
///
/// # Errors
/// Exit code 3 when the folder cannot be written to.
pub fn write_frame(dir: &Path, name: &str, mut frame: DataFrame) -> Result<Vec<PathBuf>> {
    let csv = dir.join(format!("{name}.csv"));
    let parquet = dir.join(format!("{name}.parquet"));
    write_csv(&csv, &frame)?;
    write_atomically(&parquet, |file| {
        ParquetFile::write(file, &parquet, |file| ParquetWriter::new(file).finish(&mut frame).map(drop))
    })?;
    Ok(vec![csv, parquet])
}

/// A table of a run: a row for each of its rows, values before their uncertainties. A column such as `copa stderr` says in its
/// name which kind of uncertainty it holds.
///
/// # Errors
/// Two columns of one name.
pub fn run_frame(table: &Table) -> Result<DataFrame> {
    let beside = |leads: &[Lead], cells: &dyn Fn(&TableRow) -> &[String]| -> Vec<Column> {
        let of = |(at, lead): (usize, &Lead)| {
            let texts = table.rows.iter().map(|row| Some(cells(row)[at].as_str()).filter(|text| !text.is_empty()));
            match lead.count {
                true => column(&lead.head, texts.map(|text| text?.parse::<u64>().ok())),
                false => column(&lead.head, texts),
            }
        };
        leads.iter().enumerate().filter(|(_, lead)| lead.place != LeadPlace::Terminal).map(of).collect()
    };
    let mut columns = beside(&table.lead, &|row| &row.lead);
    for (at, of) in table.columns.iter().enumerate() {
        let values = table.rows.iter().map(|row| row.cells[at].as_ref()?.of.record.value);
        columns.push(column(&of.head, values));
    }
    for (at, of) in table.columns.iter().enumerate() {
        let counts = || table.rows.iter().map(|row| Some(row.cells[at].as_ref()?.seeds()? as u64));
        let has_seeds = counts().any(|count| count.is_some());
        for kind in Spread::ALL {
            if of.metric.spread == Some(kind) || (has_seeds && kind == Spread::OverSeeds) {
                let errors = table.rows.iter().map(|row| row.cells[at].as_ref()?.of.error_of(kind));
                columns.push(column(&spread_head(&of.head, kind), errors));
            }
        }
        columns.extend(has_seeds.then(|| column(&format!("{} n", of.head), counts())));
    }
    columns.extend(beside(&table.tail, &|row| &row.tail));
    DataFrame::new(table.rows.len(), columns).map_err(|error| failed(&error))
}

/// Builds a data frame with a row per number, in the columns of the paper's tables and some more. A dense row shown for
/// several depths appears once.
///
/// # Errors
/// When polars cannot make the columns.
pub fn tidy_frame(artifact: &str, profile: &str, table: &Table) -> Result<DataFrame> {
    let mut rows: Vec<&PrintedNumber> = Vec::new();
    for (_, shown) in table.shown() {
        if rows.iter().all(|known| !Arc::ptr_eq(&known.of, &shown.of)) {
            rows.push(shown);
        }
    }
    let numbers: Vec<&Measurement> = rows.iter().map(|shown| &*shown.of).collect();
    let status = |number: &&Measurement| match (&number.failure, &number.sample) {
        (Some(reason), _) => format!("failed: {reason}"),
        (None, Sample::OutOfMemory) => OUT_OF_MEMORY.to_owned(),
        (None, _) if number.record.value.is_none() => "no value".to_owned(),
        (None, _) => "ok".to_owned(),
    };
    let cell = |number: &&Measurement| match &number.sample {
        Sample::Seeds(seeds) => seeds.iter().map(|of| of.cell.as_str()).collect::<Vec<_>>().join("; "),
        _ => number.cell.clone(),
    };
    let rank = |shown: &&PrintedNumber| match (shown.best, shown.second) {
        (true, _) => Some("best"),
        (_, true) => Some("second"),
        _ => None,
    };
    let besides = || rows.iter().map(|shown| shown.beside.as_ref());
    let pairs = || rows.iter().map(|shown| shown.paired.as_ref());
    let mut columns = described(artifact, profile, &numbers);
    columns.extend([
        column("rank", rows.iter().map(rank)),
        column("paper", besides().map(|of| Some(of?.paper))),
        column("difference", besides().map(|of| of?.difference)),
        column("tolerance", besides().map(|of| Some(of?.tolerance))),
        column("verdict", besides().map(|of| of?.word())),
        column("other_protocol", besides().map(|of| of?.other_protocol())),
        column("test", pairs().map(|of| Some(of?.test))),
        column("against", pairs().map(|of| Some(of?.against.clone()))),
        column("effect", pairs().map(|of| Some(of?.difference))),
        column("p", pairs().map(|of| Some(of?.p))),
        column("status", numbers.iter().map(status)),
        column("protocol", numbers.iter().map(|number| protocol_line(profile, [*number]))),
        column("cell", numbers.iter().map(cell)),
    ]);
    let counts = || rows.iter().map(|shown| shown.seeds().map(|count| count as u64));
    if counts().any(|count| count.is_some()) {
        let deviation = columns.iter().position(|column| column.name().as_str() == Spread::OverSeeds.column());
        columns.insert(deviation.map_or(columns.len(), |at| at + 1), column("n", counts()));
    }
    DataFrame::new(rows.len(), columns).map_err(|error| failed(&error))
}

/// Builds the data frame of a figure, with a row per number.
///
/// # Errors
/// When polars cannot make the columns.
pub fn drawn_frame(artifact: &str, profile: &str, numbers: &[&Measurement]) -> Result<DataFrame> {
    let mut columns = described(artifact, profile, numbers);
    // A figure draws what is trained under a name of its own.
    columns.retain(|column| column.name().as_str() != "finetuned");
    columns.push(column("cell", numbers.iter().map(|number| number.cell.as_str())));
    DataFrame::new(numbers.len(), columns).map_err(|error| failed(&error))
}

/// Builds the columns that describe numbers, as in the paper's tables.
fn described(artifact: &str, profile: &str, numbers: &[&Measurement]) -> Vec<Column> {
    let records = || numbers.iter().map(|number| &number.record);
    let conditions = || records().map(|record| &record.condition);
    let mut columns = vec![
        column("artifact", numbers.iter().map(|_| artifact)),
        column("profile", numbers.iter().map(|_| profile)),
        column("backbone", conditions().map(|of| of.backbone.as_str())),
        column("total_layers", conditions().map(|of| of.layers as u64)),
        column("pruned_layers", conditions().map(|of| of.depth as u64)),
        column("criterion", conditions().map(|of| of.criterion.as_str())),
        column("recovery", conditions().map(|of| of.recovery.as_str())),
        column("finetuned", conditions().map(|of| of.finetuned.to_string())),
        column("calibration", conditions().map(|of| of.calibration.as_str())),
        column("metric", records().map(|of| of.metric.as_str())),
        column("value", records().map(|of| of.value)),
    ];
    let errors = |kind: Spread| column(kind.column(), numbers.iter().map(|number| number.error_of(kind)));
    columns.extend(Spread::ALL.map(errors));
    columns
}

/// Returns the head of the column of a metric's uncertainty: `copa stderr`.
pub fn spread_head(head: &str, kind: Spread) -> String {
    format!("{head} {}", kind.column())
}

fn column<T>(name: &str, values: impl Iterator<Item = T>) -> Column
where
    Series: NamedFrom<Vec<T>, [T]>,
{
    Series::new(name.into(), values.collect::<Vec<_>>()).into_column()
}
