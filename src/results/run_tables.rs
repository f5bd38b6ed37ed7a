//! Tables for `run`. The long table has one row per cell and one column per protocol. The wide table shows a single
//! metric, with one row per method and one column per backbone and depth.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::equal_selections::criterion_label;
use super::notes::{protocol_sentence, removed_text};
use super::result_row::{CellSummary, ResultRow, Results, Sample};
use super::settings::{self, distinct, group_by_key, select_settings, setting_text, value_text};
use super::table::{NumberColumn, PrintedNumber, RowHeader, RowHeaderKind, Table, TableRow, Visibility};
use super::{Protocol, Settings};
use crate::criterion::{Criterion, Depth};
use crate::error::{Error, Result};
use crate::grid::Method;
use crate::metric::DifferenceKind;
use crate::{criterion, recovery};

pub(super) const OK: &str = "ok";
const NOT_COMPUTED: &str = "not computed";

/// Builds the table of all results. `extra_notes` are appended to the table's notes.
pub fn long(results: &Results, profile: &str, extra_notes: Vec<String>) -> Table {
    let columns = results.protocols.iter().map(|protocol| number_column(results, protocol, protocol.column(), None));
    let columns: Vec<NumberColumn> = columns.collect();
    let lead = lead_columns(results);
    let tail = tail_columns(results);
    let backbones = distinct(results.cells.iter().map(|cell| &cell.cell.backbone));
    let blocks = distinct(&results.cells.iter().map(block_of).collect::<Vec<_>>());
    let row = |cell: &CellSummary| TableRow {
        lead: lead.iter().map(|column| (column.text)(cell)).collect(),
        backbone: backbones.iter().position(|backbone| *backbone == cell.cell.backbone).unwrap_or(0),
        block: blocks.iter().position(|block| *block == block_of(cell)).unwrap_or(0),
        dense: cell.cell.depth.count == 0,
        ours: settings::is_ours(&cell.settings),
        cells: format_numbers(&columns, &cell.numbers.iter().collect::<Vec<_>>()),
        tail: tail.iter().map(|column| (column.text)(cell)).collect(),
        ..TableRow::default()
    };
    let rows = results.cells.iter().map(row).collect();
    let protocols: Vec<String> = results.protocols.iter().map(|protocol| format!("- {}", protocol.note())).collect();
    let table = Table {
        caption: protocols.join("\n"),
        lead: lead.into_iter().map(|column| column.header).collect(),
        columns,
        tail: tail.into_iter().map(|column| column.header).collect(),
        rows,
        protocol: protocol_sentence(profile, results.numbers().map(AsRef::as_ref)),
        notes: extra_notes,
        ..Table::default()
    };
    table.ranked()
}

/// Returns the backbone and depth of a cell. Rows are ranked among those with the same backbone and depth.
fn block_of(cell: &CellSummary) -> (String, Depth) {
    (cell.cell.backbone.clone(), cell.cell.depth)
}

/// Column of text or counts in the long table, with the function that formats its text for a cell.
struct CellColumn {
    header: RowHeader,
    text: Box<dyn Fn(&CellSummary) -> String>,
}

impl CellColumn {
    fn new(header: RowHeader, text: impl Fn(&CellSummary) -> String + 'static) -> Self {
        Self { header, text: Box::new(text) }
    }

    /// Creates the column for a setting, which appears only in CSV and Parquet.
    fn from_setting(name: &str) -> Self {
        let head = match name {
            "criterion" | "recovery" => format!("{name}.name"),
            name => name.strip_prefix("calibration.").unwrap_or(name).to_owned(),
        };
        let is_count = settings::CALIBRATION_SETTINGS.contains(&name) && name != settings::CORPUS;
        let header = if is_count { RowHeader::count(head) } else { RowHeader::text(head) };
        let name = name.to_owned();
        Self::new(header.only(Visibility::Data), move |cell| {
            cell.settings.get(&name).map(value_text).unwrap_or_default()
        })
    }

    fn remark(head: &str, text: impl Fn(&CellSummary) -> String + 'static) -> Self {
        Self::new(RowHeader::text(head).kind(RowHeaderKind::Remark), text)
    }
}

/// Returns the columns before the numbers.
fn lead_columns(results: &Results) -> Vec<CellColumn> {
    let mut columns = vec![
        CellColumn::new(RowHeader::text("backbone"), |cell| cell.cell.backbone.clone()),
        CellColumn::new(RowHeader::text("criterion"), |cell| {
            cell.cell.criterion.as_ref().map(criterion_name).unwrap_or_default()
        }),
        CellColumn::new(RowHeader::count("depth"), |cell| cell.cell.depth.count.to_string()),
        CellColumn::new(RowHeader::text("layers removed"), |cell| removed_text(&cell.removed)),
        CellColumn::new(RowHeader::count("layers"), |cell| cell.layers.to_string()),
        CellColumn::new(RowHeader::text("recovery"), |cell| {
            cell.cell.recovery.as_ref().map(ToString::to_string).unwrap_or_default()
        }),
        CellColumn::new(RowHeader::text("calibration"), |cell| cell.calibration.clone().unwrap_or_default()),
    ];
    // Omit the unit column for grids that count whole layers.
    if results.cells.iter().any(|cell| !cell.cell.depth.is_in_layers()) {
        columns.insert(3, CellColumn::new(RowHeader::text("unit"), |cell| cell.cell.depth.unit.to_string()));
    }
    columns
}

/// Returns the columns after the numbers: the settings in which cells may differ, the time, the notes and the status.
fn tail_columns(results: &Results) -> Vec<CellColumn> {
    let options: BTreeSet<String> =
        results.cells.iter().flat_map(|cell| settings::explicit_options(&cell.cell)).collect();
    // If method labels include options, add columns with the bare method names.
    let methods =
        ["criterion", "recovery"].into_iter().filter(|axis| options.iter().any(|option| option.starts_with(axis)));
    let names = settings::CALIBRATION_SETTINGS.into_iter().chain(methods).chain(options.iter().map(String::as_str));
    let seconds = RowHeader::count("seconds").only(Visibility::Terminal);
    // Omit the notes column if no cell has notes.
    let has_notes = results.cells.iter().any(|cell| !cell.notes.is_empty());
    let columns = [
        Some(CellColumn::new(seconds, |cell| format!("{:.1}", cell.seconds))),
        has_notes.then(|| CellColumn::remark("notes", |cell| cell.notes.join("; "))),
        Some(CellColumn::remark("status", format_status)),
    ];
    names.map(CellColumn::from_setting).chain(columns.into_iter().flatten()).collect()
}

fn format_status(cell: &CellSummary) -> String {
    match (&cell.failure, &cell.missing) {
        (Some(reason), _) => format!("failed: {reason}"),
        (None, Some(what)) => format!("{NOT_COMPUTED}: {what}"),
        (None, None) => OK.to_owned(),
    }
}

/// Returns a criterion as written in the grid. An iterative criterion gets the same label as in artifacts.
fn criterion_name(method: &Method<dyn Criterion>) -> String {
    if method.rule.is_iterative() { criterion_label(method) } else { method.to_string() }
}

fn number_column(
    results: &Results,
    protocol: &Protocol,
    head: String,
    depths: Option<BTreeMap<String, Option<Depth>>>,
) -> NumberColumn {
    let column = NumberColumn::new(protocol.measures(), head);
    NumberColumn { column: Some(protocol.column()), depths, decimals: count_decimals(results, protocol), ..column }
}

/// Formats the number of a row in each column, if there is one.
fn format_numbers(columns: &[NumberColumn], row: &[&Arc<ResultRow>]) -> Vec<Option<PrintedNumber>> {
    columns
        .iter()
        .map(|column| {
            let number = column.numbers(row).next()?;
            let is_shown = number.record.value.is_some() || number.sample == Sample::OutOfMemory;
            is_shown.then(|| PrintedNumber::printed(number, column.decimals, ""))
        })
        .collect()
}

/// Returns the number of decimals needed to show at least four digits of the smallest number in a column. Percentages
/// have two decimals, as in the paper, and latencies those of their metric.
fn count_decimals(results: &Results, protocol: &Protocol) -> usize {
    if protocol.measures().difference == DifferenceKind::Absolute {
        return 2;
    }
    if protocol.measures().is_latency() {
        return protocol.measures().decimals;
    }
    let column = protocol.column();
    let numbers = results.numbers().filter(|number| number.column == column).filter_map(|number| number.record.value);
    match numbers.map(f64::abs).fold(f64::INFINITY, f64::min) {
        smallest if smallest < 10.0 => 4,
        smallest if smallest < 100.0 => 3,
        _ => 2,
    }
}

/// Column key: backbone, removed layers, total layers.
type Setting = (String, Depth, usize);

/// Builds the table for one metric. By default, this is the average over tasks or, if there is no average, the first
/// column. `extra_notes` are appended to the table's notes.
///
/// # Errors
/// Fails if the results do not contain the metric, or contain no metric at all.
pub fn wide(results: &Results, metric: Option<&str>, profile: &str, extra_notes: Vec<String>) -> Result<Table> {
    let protocol = select_protocol(&results.protocols, metric)?;
    let pruned: Vec<Setting> = results.cells.iter().filter(|cell| cell.cell.depth.count > 0).map(setting_of).collect();
    // A backbone that is not pruned gets its own column.
    let dense_cells =
        results.cells.iter().filter(|cell| pruned.iter().all(|(backbone, ..)| *backbone != cell.cell.backbone));
    let settings = distinct(pruned.iter().chain(&dense_cells.map(setting_of).collect::<Vec<_>>()));
    let columns = settings.into_iter().map(|(backbone, depth, layers)| {
        let total = if depth.is_in_layers() { format!("/{layers}") } else { String::new() };
        let head = format!("{backbone} {depth}{total}");
        // Each column of a backbone shows its dense value.
        number_column(results, protocol, head, Some(BTreeMap::from([(backbone, Some(depth))])))
    });
    let columns: Vec<NumberColumn> = columns.collect();
    let variants = group_by_key(results.cells.iter().map(|cell| (variant_settings(cell), cell)));
    let labels = row_labels(&variants.iter().map(|(settings, _)| settings).collect::<Vec<_>>());
    let rows = variants.iter().zip(labels).map(|((settings, cells), label)| TableRow {
        lead: vec![label],
        dense: settings.is_empty(),
        ours: settings::is_ours(settings),
        cells: format_numbers(&columns, &cells.iter().flat_map(|cell| &cell.numbers).collect::<Vec<_>>()),
        ..TableRow::default()
    });
    let rows = rows.collect();
    let table = Table {
        title: protocol.column(),
        lead: vec![RowHeader::text("")],
        columns,
        rows,
        protocol: protocol_sentence(profile, results.numbers().map(AsRef::as_ref)),
        notes: extra_notes,
        ..Table::default()
    };
    Ok(table.ranked())
}

fn setting_of(cell: &CellSummary) -> Setting {
    (cell.cell.backbone.clone(), cell.cell.depth, cell.layers)
}

fn select_protocol<'a>(protocols: &'a [Protocol], metric: Option<&str>) -> Result<&'a Protocol> {
    let average = protocols.iter().find(|protocol| matches!(protocol, Protocol::Average { .. }));
    let selected = match metric {
        Some(metric) => protocols.iter().find(|protocol| protocol.column() == metric),
        None => average.or(protocols.first()),
    };
    selected.ok_or_else(|| {
        let Some(metric) = metric else { return Error::bad_input("the results contain no metric") };
        let columns: Vec<String> = protocols.iter().map(Protocol::column).collect();
        Error::bad_input("unknown metric").at("--metric").none_of(metric, columns.iter().map(String::as_str))
    })
}

/// Returns the settings shared by the cells in a row of the wide table, that is, all except backbone and depth. Empty
/// for a dense cell.
fn variant_settings(cell: &CellSummary) -> Settings {
    select_settings(&cell.settings, |name| name != "backbone" && name != settings::DEPTH)
}

/// Returns the row labels. A label names only the recovery if the table has an unrepaired row for the same criterion.
/// Equal labels are distinguished by their settings.
fn row_labels(variants: &[&Settings]) -> Vec<String> {
    let unrepaired = variants.iter().filter(|settings| setting_text(settings, "recovery") == recovery::NONE);
    let unrepaired: Vec<Settings> = unrepaired.map(|settings| criterion_settings(settings)).collect();
    let names = variants.iter().map(|settings| match setting_text(settings, "recovery") {
        "" => (criterion::DENSE.label.to_owned(), None),
        recovery::NONE => {
            let iterative = settings.get("criterion.iterative").filter(|value| **value == Value::Bool(true));
            let options = iterative.map(|value| ("iterative", value));
            (criterion::label_with(setting_text(settings, "criterion"), options), None)
        }
        name => {
            let criterion = Some(criterion_settings(settings)).filter(|criterion| unrepaired.contains(criterion));
            (format!("+ {}", recovery::label(name)), criterion)
        }
    });
    settings::distinct_labels(&names.collect::<Vec<_>>(), |(label, _)| label.clone(), variants)
}

fn criterion_settings(settings: &Settings) -> Settings {
    select_settings(settings, |name| name == "criterion" || name.starts_with("criterion."))
}
