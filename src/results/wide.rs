//! The table of a run turned round: a row for each method, a column for each backbone and depth, one metric.

use super::Protocol;
use super::long::decimals;
use super::measurement::{CellSummary, Results, Sample, distinct};
use super::protocol_line::protocol_line;
use super::table::{Column, Lead, Row, Shown, Table};
use crate::error::{Error, Result, nearest};
use crate::{criterion, recovery};

/// A column: backbone, layers removed, layers.
type Setting = (String, usize, usize);

/// One metric of some results: that of a column of the long table; without one, the average of the tasks, or else the
/// first. `besides` are lines that a reader has to know.
///
/// # Errors
/// A metric that the results do not have, or none at all.
pub fn wide(results: &Results, metric: Option<&str>, profile: &str, besides: Vec<String>) -> Result<Table> {
    let protocol = chosen(&results.protocols, metric)?;
    let (name, decimals) = (protocol.column(), decimals(results, protocol));
    let pruned = || results.cells.iter().filter(|cell| cell.depth > 0);
    let calibrations = distinct(pruned().map(|cell| &cell.calibration));
    // Calibrations are named where they tell rows apart.
    let label = |cell: &CellSummary| Label::of(cell, calibrations.len() > 1);
    let setting = |cell: &CellSummary| (cell.backbone.clone(), cell.depth, cell.layers);
    let of_pruned: Vec<Setting> = pruned().map(setting).collect();
    // A backbone that is not pruned has a column of its own.
    let whole = results.cells.iter().filter(|cell| of_pruned.iter().all(|(backbone, ..)| *backbone != cell.backbone));
    let settings = distinct(of_pruned.iter().chain(&whole.map(setting).collect::<Vec<_>>()));
    let row = |of: Label| {
        let shown = |(backbone, depth, _): &Setting| {
            // The dense value stands in each column of its backbone.
            let own = |cell: &&CellSummary| cell.backbone == *backbone && (cell.depth == *depth || cell.depth == 0);
            let cell = results.cells.iter().filter(own).find(|cell| label(cell) == of)?;
            let found = results.find(&cell.name, &name)?;
            let known = found.record.value.is_some() || found.sample == Sample::OutOfMemory;
            known.then(|| Shown::printed(found, decimals, ""))
        };
        let cells = settings.iter().map(shown).collect();
        Row { lead: vec![of.text.clone()], dense: of.dense, cells, ..Row::default() }
    };
    let labels = distinct(results.cells.iter().map(label).collect::<Vec<_>>().iter());
    let column = |(backbone, depth, layers): &Setting| Column {
        has_error: protocol.error_column().is_some(),
        ..Column::of(protocol.measures(), format!("{backbone} {depth}/{layers}"))
    };
    let line = protocol_line(profile, results.measurements.iter().map(AsRef::as_ref));
    let line = Some(line).filter(|line| !line.is_empty()).map(|line| format!("Protocol: {line}."));
    let table = Table {
        title: name.clone(),
        lead: vec![Lead::text("")],
        columns: settings.iter().map(column).collect(),
        rows: labels.into_iter().map(row).collect(),
        notes: line.into_iter().chain(besides).collect(),
        ..Table::default()
    };
    Ok(table.ranked())
}

fn chosen<'a>(protocols: &'a [Protocol], metric: Option<&str>) -> Result<&'a Protocol> {
    let average = protocols.iter().find(|protocol| matches!(protocol, Protocol::Average { .. }));
    let found = match metric {
        Some(metric) => protocols.iter().find(|protocol| protocol.column() == metric),
        None => average.or(protocols.first()),
    };
    found.ok_or_else(|| {
        let (asked, known) = (metric.unwrap_or_default(), protocols.iter().map(Protocol::column).collect::<Vec<_>>());
        let error = Error::bad_input("the run has no such metric").at("--metric");
        let error = error.expected(format!("one of {}", known.join(", "))).found(format!("`{asked}`"));
        match nearest(asked, known.iter().map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    })
}

/// What a row is called, and what tells it from the others.
#[derive(Debug, Clone, PartialEq)]
struct Label {
    dense: bool,
    criterion: String,
    text: String,
}

impl Label {
    fn of(cell: &CellSummary, calibrated: bool) -> Self {
        let (Some(criterion), Some(recovery)) = (&cell.criterion, &cell.recovery) else {
            return Self { dense: true, criterion: String::new(), text: criterion::DENSE.label.to_owned() };
        };
        let calibration = cell.calibration.as_ref().filter(|_| calibrated).map(|text| format!(", {text}"));
        let text = match recovery.as_str() {
            recovery::NONE => criterion::label(criterion).to_owned(),
            recovery => format!("+ {}", recovery::label(recovery)),
        };
        let calibration = calibration.unwrap_or_default();
        Self { dense: false, criterion: format!("{criterion}{calibration}"), text: text + &calibration }
    }
}
