//! A table as data: CSV for spreadsheets, Parquet for programs. Numbers have full precision; an absent one is null.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polars::prelude::{Column, DataFrame, IntoColumn, NamedFrom, ParquetWriter, Series};

use super::comparison::PaperComparison;
use super::csv::{failed, unwritten, write_csv};
use super::measurement::{Measurement, Sample};
use super::paired::Paired;
use super::protocol_line::protocol_line;
use super::table::{Lead, LeadPlace, OUT_OF_MEMORY, PrintedNumber, Row, Table};
use crate::error::Result;
use crate::files::atomic::write_atomically;

/// Who made a table.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    pub artifact: &'a str,
    pub profile: &'a str,
}

/// Writes `NAME.csv` and `NAME.parquet` into `dir`, each whole or not at all; their paths.
///
/// # Errors
/// Exit code 3 when the folder cannot be written to.
pub fn write_frame(dir: &Path, name: &str, mut frame: DataFrame) -> Result<Vec<PathBuf>> {
    let (csv, parquet) = (dir.join(format!("{name}.csv")), dir.join(format!("{name}.parquet")));
    write_csv(&csv, &frame)?;
    write_atomically(&parquet, |file| {
        ParquetWriter::new(file).finish(&mut frame).map(|_| ()).map_err(|error| unwritten(&parquet, &error))
    })?;
    Ok(vec![csv, parquet])
}

/// A table of a run as it stands: a row for each of its rows, the standard errors behind the numbers.
///
/// # Errors
/// Two columns of one name.
pub fn run_frame(table: &Table) -> Result<DataFrame> {
    let beside = |leads: &[Lead], cells: &dyn Fn(&Row) -> &[String]| -> Vec<Column> {
        let column = |(at, lead): (usize, &Lead)| {
            let texts = table.rows.iter().map(|row| Some(cells(row)[at].clone()).filter(|text| !text.is_empty()));
            match lead.count {
                true => {
                    let counts = texts.map(|text| text?.parse::<u64>().ok()).collect::<Vec<_>>();
                    Series::new(lead.head.as_str().into(), counts).into_column()
                }
                false => Series::new(lead.head.as_str().into(), texts.collect::<Vec<_>>()).into_column(),
            }
        };
        leads
            .iter()
            .enumerate()
            .filter(|(_, lead)| matches!(lead.place, LeadPlace::Everywhere | LeadPlace::Data))
            .map(column)
            .collect()
    };
    let numbers = |at: usize, name: String, of: fn(&Measurement) -> Option<f64>| {
        let values = table.rows.iter().map(|row| of(&row.cells[at].as_ref()?.of)).collect::<Vec<_>>();
        Series::new(name.into(), values).into_column()
    };
    let mut columns = beside(&table.lead, &|row| &row.lead);
    for (at, column) in table.columns.iter().enumerate() {
        columns.push(numbers(at, column.head.clone(), |of| of.record.value));
    }
    // After all values, so that these stand side by side.
    for (at, column) in table.columns.iter().enumerate().filter(|(_, column)| column.has_error) {
        columns.push(numbers(at, format!("{} ±", column.head), |of| of.record.error));
    }
    for (at, column) in table.columns.iter().enumerate() {
        let counts = table.rows.iter().map(|row| Some(row.cells[at].as_ref()?.seeds()? as u64)).collect::<Vec<_>>();
        if counts.iter().any(Option::is_some) {
            // A mean over seeds has their deviation, whatever one number's error is.
            if !column.has_error {
                columns.push(numbers(at, format!("{} ±", column.head), |of| of.record.error));
            }
            columns.push(Series::new(format!("{} n", column.head).into(), counts).into_column());
        }
    }
    columns.extend(beside(&table.tail, &|row| &row.tail));
    DataFrame::new(table.rows.len(), columns).map_err(|error| failed(&error))
}

/// A row for each number of a table, in the columns of the paper's own tables and some more. A dense row that is shown for
/// several depths stands here once.
///
/// # Errors
/// When polars cannot make the columns.
pub fn tidy_frame(origin: Origin<'_>, table: &Table) -> Result<DataFrame> {
    let mut rows: Vec<(&PrintedNumber, &Measurement)> = Vec::new();
    for (_, shown) in table.shown() {
        if rows.iter().all(|(known, _)| !Arc::ptr_eq(&known.of, &shown.of)) {
            rows.push((shown, &*shown.of));
        }
    }
    let text = |name: &str, of: &dyn Fn(&PrintedNumber, &Measurement) -> Option<String>| {
        texts(name, rows.iter().map(|(shown, number)| of(shown, number)))
    };
    let real =
        |name: &str, of: &dyn Fn(&PrintedNumber) -> Option<f64>| reals(name, rows.iter().map(|(shown, _)| of(shown)));
    let paired =
        |of: fn(&Paired) -> String| move |shown: &PrintedNumber, _: &Measurement| shown.paired.as_ref().map(of);
    let mut columns = described(origin, &rows.iter().map(|(_, number)| *number).collect::<Vec<_>>());
    columns.extend([
        text("rank", &|shown, _| {
            let rank = if shown.best { "best" } else { "second" };
            (shown.best || shown.second).then(|| rank.to_owned())
        }),
        real("paper", &|shown| shown.beside.as_ref().map(|beside| beside.paper)),
        real("difference", &|shown| shown.beside.as_ref().and_then(|beside| beside.difference)),
        real("tolerance", &|shown| shown.beside.as_ref().map(|beside| beside.tolerance)),
        text("verdict", &|shown, _| shown.beside.as_ref().and_then(PaperComparison::word)),
        text("other_protocol", &|shown, _| shown.beside.as_ref().and_then(PaperComparison::other_protocol)),
        text("test", &paired(|of| of.test.to_owned())),
        text("against", &paired(|of| of.against.clone())),
        real("effect", &|shown| shown.paired.as_ref().map(|of| of.difference)),
        real("p", &|shown| shown.paired.as_ref().map(|of| of.p)),
        text("status", &|_, number| {
            Some(match (&number.failure, &number.sample) {
                (Some(reason), _) => format!("failed: {reason}"),
                (None, Sample::OutOfMemory) => OUT_OF_MEMORY.to_owned(),
                (None, _) if number.record.value.is_none() => "no value".to_owned(),
                (None, _) => "ok".to_owned(),
            })
        }),
        text("protocol", &|_, number| Some(protocol_line(origin.profile, std::iter::once(number)))),
        text("cell", &|_, number| {
            Some(match &number.sample {
                Sample::Seeds(seeds) => seeds.iter().map(|of| of.cell.as_str()).collect::<Vec<_>>().join("; "),
                _ => number.cell.clone(),
            })
        }),
    ]);
    let counts = rows.iter().map(|(shown, _)| shown.seeds().map(|count| count as u64)).collect::<Vec<_>>();
    if counts.iter().any(Option::is_some) {
        // Beside the deviation.
        let at = columns.iter().position(|column| column.name().as_str() == "std").map_or(columns.len(), |at| at + 1);
        columns.insert(at, Series::new("n".into(), counts).into_column());
    }
    DataFrame::new(rows.len(), columns).map_err(|error| failed(&error))
}

/// What a figure draws, as data: a row for each number, in the columns that a table has of it.
///
/// # Errors
/// When polars cannot make the columns.
pub fn drawn_frame(origin: Origin<'_>, numbers: &[&Measurement]) -> Result<DataFrame> {
    let mut columns = described(origin, numbers);
    // A figure draws what is trained under a name of its own.
    columns.retain(|column| column.name().as_str() != "finetuned");
    columns.push(texts("cell", numbers.iter().map(|number| Some(number.cell.clone()))));
    DataFrame::new(numbers.len(), columns).map_err(|error| failed(&error))
}

/// What a number is of, and the number: as in the paper's own tables.
fn described(origin: Origin<'_>, numbers: &[&Measurement]) -> Vec<Column> {
    let text =
        |name: &str, of: &dyn Fn(&Measurement) -> String| texts(name, numbers.iter().map(|number| Some(of(number))));
    let count = |name: &str, of: &dyn Fn(&Measurement) -> usize| {
        Series::new(name.into(), numbers.iter().map(|number| of(number) as u64).collect::<Vec<_>>()).into_column()
    };
    vec![
        text("artifact", &|_| origin.artifact.to_owned()),
        text("profile", &|_| origin.profile.to_owned()),
        text("backbone", &|number| number.record.condition.backbone.clone()),
        count("total_layers", &|number| number.record.condition.layers),
        count("pruned_layers", &|number| number.record.condition.depth),
        text("criterion", &|number| number.record.condition.criterion.clone()),
        text("recovery", &|number| number.record.condition.recovery.clone()),
        text("finetuned", &|number| number.record.condition.finetuned.to_string()),
        text("calibration", &|number| number.record.condition.calibration.clone()),
        text("metric", &|number| number.record.metric.clone()),
        reals("value", numbers.iter().map(|number| number.record.value)),
        reals("std", numbers.iter().map(|number| number.record.error)),
    ]
}

fn texts(name: &str, values: impl Iterator<Item = Option<String>>) -> Column {
    Series::new(name.into(), values.collect::<Vec<_>>()).into_column()
}

fn reals(name: &str, values: impl Iterator<Item = Option<f64>>) -> Column {
    Series::new(name.into(), values.collect::<Vec<_>>()).into_column()
}
