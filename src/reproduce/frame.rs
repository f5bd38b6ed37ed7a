//! A table as data: one row for each number, in the columns of the paper's own tables and some more.

use std::path::{Path, PathBuf};

use polars::prelude::{Column, DataFrame, IntoColumn, NamedFrom, ParquetWriter, Series};

use super::beside::PaperComparison;
use super::layout::{Shown, View};
use super::ours::Number;
use super::paired::Paired;
use super::setup::protocol_line;
use crate::error::Result;
use crate::files::atomic::write_atomically;
use crate::report::csv::write_csv;
use crate::report::table::{failed, unwritten};

/// Who made a table.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    pub artifact: &'a str,
    pub profile: &'a str,
    /// The cells by their names, in the outcome's order.
    pub cells: &'a [String],
}

/// Writes `NAME.csv` and `NAME.parquet` into `dir`, each whole or not at all; their paths.
///
/// # Errors
/// Exit code 3 when the folder cannot be written to.
pub fn write_frame(dir: &Path, origin: Origin<'_>, view: &View, numbers: &[Number]) -> Result<Vec<PathBuf>> {
    let mut frame = frame(origin, view, numbers)?;
    let (csv, parquet) =
        (dir.join(format!("{}.csv", origin.artifact)), dir.join(format!("{}.parquet", origin.artifact)));
    write_csv(&csv, &frame)?;
    write_atomically(&parquet, |file| {
        ParquetWriter::new(file).finish(&mut frame).map(|_| ()).map_err(|error| unwritten(&parquet, &error))
    })?;
    Ok(vec![csv, parquet])
}

/// All numbers of a view. A dense row that is shown for several depths stands here once.
pub(super) fn frame(origin: Origin<'_>, view: &View, numbers: &[Number]) -> Result<DataFrame> {
    let mut rows: Vec<(&Shown, &Number)> = Vec::new();
    for (_, shown) in view.shown() {
        if rows.iter().all(|(known, _)| known.number != shown.number) {
            rows.push((shown, &numbers[shown.number]));
        }
    }
    let text = |name: &str, of: &dyn Fn(&Shown, &Number) -> Option<String>| -> Column {
        let values: Vec<Option<String>> = rows.iter().map(|(shown, number)| of(shown, number)).collect();
        Series::new(name.into(), values).into_column()
    };
    let real = |name: &str, of: &dyn Fn(&Shown, &Number) -> Option<f64>| -> Column {
        let values: Vec<Option<f64>> = rows.iter().map(|(shown, number)| of(shown, number)).collect();
        Series::new(name.into(), values).into_column()
    };
    let count = |name: &str, of: &dyn Fn(&Number) -> usize| -> Column {
        let values: Vec<u64> = rows.iter().map(|(_, number)| of(number) as u64).collect();
        Series::new(name.into(), values).into_column()
    };
    let paired = |of: fn(&Paired) -> String| move |shown: &Shown, _: &Number| shown.paired.as_ref().map(of);
    let columns = vec![
        text("artifact", &|_, _| Some(origin.artifact.to_owned())),
        text("profile", &|_, _| Some(origin.profile.to_owned())),
        text("backbone", &|_, number| Some(number.record.condition.backbone.clone())),
        count("total_layers", &|number| number.record.condition.layers),
        count("pruned_layers", &|number| number.record.condition.depth),
        text("criterion", &|_, number| Some(number.record.condition.criterion.clone())),
        text("recovery", &|_, number| Some(number.record.condition.recovery.clone())),
        text("finetuned", &|_, number| Some(number.record.condition.finetuned.to_string())),
        text("calibration", &|_, number| Some(number.record.condition.calibration.clone())),
        text("metric", &|_, number| Some(number.record.metric.clone())),
        real("value", &|_, number| number.record.value),
        real("std", &|_, number| number.record.error),
        text("rank", &|shown, _| {
            let rank = if shown.best { "best" } else { "second" };
            (shown.best || shown.second).then(|| rank.to_owned())
        }),
        real("paper", &|shown, _| shown.beside.as_ref().map(|beside| beside.paper)),
        real("difference", &|shown, _| shown.beside.as_ref().and_then(|beside| beside.difference)),
        real("tolerance", &|shown, _| shown.beside.as_ref().map(|beside| beside.tolerance)),
        text("verdict", &|shown, _| shown.beside.as_ref().and_then(PaperComparison::word)),
        text("other_protocol", &|shown, _| shown.beside.as_ref().and_then(PaperComparison::other_protocol)),
        text("test", &paired(|of| of.test.to_owned())),
        text("against", &paired(|of| of.against.clone())),
        real("effect", &|shown, _| shown.paired.as_ref().map(|of| of.difference)),
        real("p", &|shown, _| shown.paired.as_ref().map(|of| of.p)),
        text("status", &|_, number| {
            Some(number.failure.as_ref().map_or("ok".to_owned(), |reason| format!("failed: {reason}")))
        }),
        text("protocol", &|_, number| Some(protocol_line(origin.profile, std::iter::once(number)))),
        text("cell", &|_, number| origin.cells.get(number.cell).cloned()),
    ];
    DataFrame::new(rows.len(), columns).map_err(|error| failed(&error))
}
