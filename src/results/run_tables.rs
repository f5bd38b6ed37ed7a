//! Tables for `run`. The long table has one row per cell and one column per protocol. The wide table shows a single
//! metric, with one row per method and one column per backbone and depth.

use std::collections::BTreeSet;

use serde_json::Value;

use super::equal_selections::criterion_label;
use super::measurement::{CellSummary, Results, Sample};
use super::notes::{protocol_sentence, removed_text};
use super::settings::{self, distinct};
use super::table::{NumberColumn, PrintedNumber, RowHeader, RowHeaderKind, Table, TableRow, Visibility};
use super::{MetricKey, Protocol, Settings};
use crate::criterion::{Criterion, Depth};
use crate::error::{Error, Result, nearest};
use crate::grid::{Cell, Method};
use crate::metric::Nearness;
use crate::{criterion, recovery};

pub(super) const OK: &str = "ok";
const NOT_COMPUTED: &str = "not computed";

/// Builds the table of all results. `extra_notes` are appended to the table's notes.
pub fn long(results: &Results, profile: &str, extra_notes: Vec<String>) -> Table {
    let decimals: Vec<usize> = results.protocols.iter().map(|protocol| decimals(results, protocol)).collect();
    // Omit the notes column if no cell has notes.
    let noted = results.cells.iter().any(|cell| !cell.notes.is_empty());
    let blocks: Vec<(&String, Depth)> =
        distinct(results.cells.iter().map(|cell| (&cell.cell.backbone, cell.cell.depth)).collect::<Vec<_>>().iter());
    // Add one column per setting in which cells may differ, for programs that read the data.
    let written: BTreeSet<String> =
        results.cells.iter().flat_map(|cell| settings::explicit_options(&cell.cell)).collect();
    // If method labels include options, add columns with the bare method names.
    let named =
        ["criterion", "recovery"].into_iter().filter(|axis| written.iter().any(|column| column.starts_with(axis)));
    let written = named.chain(written.iter().map(String::as_str));
    let setting_names: Vec<&str> = settings::CALIBRATION_SETTINGS.into_iter().chain(written).collect();
    let backbones = distinct(results.cells.iter().map(|cell| &cell.cell.backbone));
    let heads = ["backbone", "criterion", "depth", UNIT, "layers removed", "layers", "recovery", "calibration"];
    // Omit the unit column for grids that count whole layers.
    let heads = heads.into_iter().filter(|head| *head != UNIT || counts_sublayers(results));
    let lead = heads
        .map(|head| if matches!(head, "depth" | "layers") { RowHeader::count(head) } else { RowHeader::text(head) });
    let setting_columns = setting_names.iter().map(|name| {
        let head = match *name {
            "criterion" | "recovery" => format!("{name}.name"),
            name => name.strip_prefix("calibration.").unwrap_or(name).to_owned(),
        };
        let is_count = settings::CALIBRATION_SETTINGS.contains(name) && *name != settings::CORPUS;
        (if is_count { RowHeader::count(head) } else { RowHeader::text(head) }).only(Visibility::Data)
    });
    let seconds = RowHeader::count("seconds").only(Visibility::Terminal);
    let tail = [Some(seconds), noted.then(|| remark_of("notes")), Some(remark_of("status"))];
    let protocols: Vec<String> = results.protocols.iter().map(|protocol| format!("- {}", protocol.note())).collect();
    let table = Table {
        caption: protocols.join("\n"),
        lead: lead.collect(),
        columns: results
            .protocols
            .iter()
            .map(|protocol| NumberColumn::new(protocol.measures(), protocol.column()))
            .collect(),
        tail: setting_columns.chain(tail.into_iter().flatten()).collect(),
        rows: results
            .cells
            .iter()
            .map(|cell| long_table_row(results, &decimals, noted, &blocks, &setting_names, &backbones, cell))
            .collect(),
        protocol: protocol_sentence(profile, results.numbers().map(AsRef::as_ref)),
        notes: extra_notes,
        ..Table::default()
    };
    table.ranked()
}

fn long_table_row(
    results: &Results,
    decimals: &[usize],
    noted: bool,
    blocks: &[(&String, Depth)],
    setting_names: &[&str],
    backbones: &[String],
    cell: &CellSummary,
) -> TableRow {
    let Cell { backbone, criterion, depth, recovery, .. } = &cell.cell;
    let status = match (&cell.failure, &cell.missing) {
        (Some(reason), _) => format!("failed: {reason}"),
        (None, Some(what)) => format!("{NOT_COMPUTED}: {what}"),
        (None, None) => OK.to_owned(),
    };
    let notes = noted.then(|| cell.notes.join("; "));
    let mut lead = vec![
        backbone.clone(),
        criterion.as_ref().map(criterion_name).unwrap_or_default(),
        depth.count.to_string(),
        removed_text(&cell.removed),
        cell.layers.to_string(),
        recovery.as_ref().map(ToString::to_string).unwrap_or_default(),
        cell.calibration.clone().unwrap_or_default(),
    ];
    if counts_sublayers(results) {
        lead.insert(UNIT_POSITION, depth.unit.to_string());
    }
    TableRow {
        lead,
        backbone: backbones.iter().position(|known| known == backbone).unwrap_or(0),
        block: blocks.iter().position(|known| *known == (backbone, *depth)).unwrap_or(0),
        dense: depth.count == 0,
        ours: settings::is_ours(&cell.settings),
        cells: results
            .protocols
            .iter()
            .zip(decimals)
            .map(|(protocol, &decimals)| printed_number(cell, &protocol.key(), decimals))
            .collect(),
        tail: setting_names
            .iter()
            .map(|name| setting_text(cell, name))
            .chain([Some(format!("{:.1}", cell.seconds)), notes, Some(status)].into_iter().flatten())
            .collect(),
        ..TableRow::default()
    }
}

/// Returns a criterion as written in the grid. An iterative criterion gets the same label as in artifacts.
fn criterion_name(method: &Method<dyn Criterion>) -> String {
    if method.rule.is_iterative() { criterion_label(method) } else { method.to_string() }
}

/// Header of the column that shows the unit of each depth.
const UNIT: &str = "unit";
/// Index of [`UNIT`] among the columns before the numbers.
const UNIT_POSITION: usize = 3;

fn counts_sublayers(results: &Results) -> bool {
    results.cells.iter().any(|cell| !cell.cell.depth.is_in_layers())
}

fn remark_of(head: &str) -> RowHeader {
    RowHeader::text(head).kind(RowHeaderKind::Remark)
}

/// Returns a cell's printed number, if there is one.
pub(super) fn printed_number(cell: &CellSummary, key: &MetricKey, decimals: usize) -> Option<PrintedNumber> {
    Some(PrintedNumber::printed(
        cell.number(key).filter(|number| number.record.value.is_some() || number.sample == Sample::OutOfMemory)?,
        decimals,
        "",
    ))
}

/// Returns a cell's setting as a string, or an empty string if the cell does not have it.
fn setting_text(cell: &CellSummary, name: &str) -> String {
    cell.settings
        .get(name)
        .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        .unwrap_or_default()
}

/// Returns the number of decimals needed to show at least four digits of the smallest number in a column. Percentages
/// have two decimals, as in the paper.
pub(super) fn decimals(results: &Results, protocol: &Protocol) -> usize {
    if protocol.measures().nearness == Nearness::Difference {
        return 2;
    }
    if protocol.measures().is_latency() {
        return protocol.measures().decimals;
    }
    let key = protocol.key();
    let numbers = results.numbers().filter(|number| number.key == key).filter_map(|number| number.record.value);
    match numbers.map(f64::abs).fold(f64::INFINITY, f64::min) {
        least if least < 10.0 => 4,
        least if least < 100.0 => 3,
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
    let key = protocol.key();
    let decimals = decimals(results, protocol);
    let pruned: Vec<Setting> = results.cells.iter().filter(|cell| cell.cell.depth.count > 0).map(setting_of).collect();
    // A backbone that is not pruned gets its own column.
    let dense_cells =
        results.cells.iter().filter(|cell| pruned.iter().all(|(backbone, ..)| *backbone != cell.cell.backbone));
    let settings = distinct(pruned.iter().chain(&dense_cells.map(setting_of).collect::<Vec<_>>()));
    let variants = distinct(results.cells.iter().map(variant).collect::<Vec<_>>().iter());
    let row = |(row_settings, label): (&RowSettings, String)| {
        let cells = settings
            .iter()
            .map(|(backbone, depth, _)| {
                // Repeat the dense value in each column of its backbone.
                let shown = results.cells.iter().find(|summary| {
                    let cell = &summary.cell;
                    let is_here = cell.backbone == *backbone && (cell.depth == *depth || cell.depth.count == 0);
                    is_here && variant(summary) == *row_settings
                });
                printed_number(shown?, &key, decimals)
            })
            .collect();
        TableRow {
            lead: vec![label],
            dense: row_settings.is_empty(),
            ours: settings::is_ours(row_settings),
            cells,
            ..TableRow::default()
        }
    };
    let table = Table {
        title: key.to_string(),
        lead: vec![RowHeader::text("")],
        columns: settings
            .iter()
            .map(|(backbone, depth, layers)| {
                let total = if depth.is_in_layers() { format!("/{layers}") } else { String::new() };
                NumberColumn::new(protocol.measures(), format!("{backbone} {depth}{total}"))
            })
            .collect(),
        rows: variants.iter().zip(row_labels(&variants)).map(row).collect(),
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
    let found = match metric {
        Some(metric) => protocols.iter().find(|protocol| protocol.column() == metric),
        None => average.or(protocols.first()),
    };
    found.ok_or_else(|| {
        let requested = metric.unwrap_or_default();
        let known = protocols.iter().map(Protocol::column).collect::<Vec<_>>();
        let error = Error::bad_input("unknown metric of the run").at("--metric");
        let error = error.expected(format!("one of {}", known.join(", "))).found(format!("`{requested}`"));
        match nearest(requested, known.iter().map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    })
}

/// Settings shared by the cells in a row, except backbone and depth. Empty for the dense backbone.
type RowSettings = Settings;

fn variant(cell: &CellSummary) -> RowSettings {
    let settings = cell.settings.iter().filter(|(name, _)| *name != "backbone" && *name != settings::DEPTH);
    settings.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the row labels. A label names only the recovery if the table has an unrepaired row for the same criterion.
/// Equal labels are distinguished by their settings.
fn row_labels(variants: &[RowSettings]) -> Vec<String> {
    let headed: Vec<RowSettings> = variants
        .iter()
        .filter(|variant| setting_word(variant, "recovery") == recovery::NONE)
        .map(criterion_settings)
        .collect();
    let bases: Vec<(String, RowSettings)> = variants
        .iter()
        .map(|settings| match setting_word(settings, "recovery") {
            name if name.is_empty() => (criterion::DENSE.label.to_owned(), RowSettings::new()),
            name if name == recovery::NONE => {
                let iterative = settings.get("criterion.iterative").filter(|value| **value == Value::Bool(true));
                let label = criterion::label_with(
                    &setting_word(settings, "criterion"),
                    iterative.map(|value| ("iterative", value)),
                );
                (label, RowSettings::new())
            }
            name => {
                let below = Some(criterion_settings(settings)).filter(|settings| headed.contains(settings));
                (format!("+ {}", recovery::label(&name)), below.unwrap_or_default())
            }
        })
        .collect();
    let words = settings::distinguishing_suffixes(&bases, &variants.iter().collect::<Vec<_>>());
    bases
        .into_iter()
        .zip(words)
        .map(|((text, _), words)| if words.is_empty() { text } else { format!("{text}, {words}") })
        .collect()
}

fn setting_word(settings: &RowSettings, name: &str) -> String {
    settings.get(name).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn criterion_settings(settings: &RowSettings) -> RowSettings {
    let settings = settings.iter().filter(|(name, _)| *name == "criterion" || name.starts_with("criterion."));
    settings.map(|(name, value)| (name.clone(), value.clone())).collect()
}
