//! The table that `run` shows: a row for each cell, a column for each protocol.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::measurement::{CellSummary, Measurement, Results, Sample};
use super::protocol_line::protocol_sentence;
use super::table::{Lead, LeadPlace, NumberColumn, PrintedNumber, Table, TableRow};
use super::{Protocol, Question, distinct, factors};
use crate::metric::Nearness;

/// The status of a cell that has a result.
const OK: &str = "ok";
/// That of one that nobody has made wholly.
const UNMADE: &str = "not made yet";

/// All of some results. `besides` are lines that a reader has to know.
pub fn long(results: &Results, profile: &str, besides: Vec<String>) -> Table {
    let decimals: Vec<usize> = results.protocols.iter().map(|protocol| decimals(results, protocol)).collect();
    // Most grids have nothing to note.
    let noted = results.cells.iter().any(|cell| !cell.notes.is_empty());
    let blocks: Vec<(&String, usize)> =
        distinct(results.cells.iter().map(|cell| (&cell.backbone, cell.depth)).collect::<Vec<_>>().iter());
    // For programs: one column for each setting that the grid's cells may differ in.
    let written: BTreeSet<&String> = results.cells.iter().flat_map(|cell| &cell.written).collect();
    // Where options are part of what a method is called, it has a column without them.
    let named = ["criterion", "recovery"].into_iter().filter(|axis| written.iter().any(|of| of.starts_with(axis)));
    let written = named.chain(written.iter().map(|of| of.as_str()));
    let factors: Vec<&str> = factors::OF_CALIBRATION.into_iter().chain(written).collect();
    let backbones = distinct(results.cells.iter().map(|cell| &cell.backbone));
    let row = |cell: &CellSummary| {
        let shown = |(protocol, &decimals): (&Protocol, &usize)| shown(cell, &protocol.asked(), decimals);
        let said = |text: &Option<String>| text.clone().unwrap_or_default();
        let status = match (&cell.failure, &cell.missing) {
            (Some(reason), _) => format!("failed: {reason}"),
            (None, Some(what)) => format!("{UNMADE}: {what}"),
            (None, None) => OK.to_owned(),
        };
        let notes = noted.then(|| cell.notes.join("; "));
        TableRow {
            lead: vec![
                cell.backbone.clone(),
                said(&cell.criterion),
                cell.depth.to_string(),
                ranges(&cell.removed),
                cell.layers.to_string(),
                said(&cell.recovery),
                said(&cell.calibration),
            ],
            backbone: backbones.iter().position(|known| *known == cell.backbone).unwrap_or(0),
            block: blocks.iter().position(|known| *known == (&cell.backbone, cell.depth)).unwrap_or(0),
            dense: cell.depth == 0,
            ours: factors::is_ours(&cell.factors),
            cells: results.protocols.iter().zip(&decimals).map(shown).collect(),
            tail: factors
                .iter()
                .map(|name| factor(cell, name))
                .chain([Some(format!("{:.1}", cell.seconds)), notes, Some(status)].into_iter().flatten())
                .collect(),
            ..TableRow::default()
        }
    };
    let column = |protocol: &Protocol| NumberColumn::of(protocol.measures(), protocol.column());
    let lead = ["backbone", "criterion", "depth", "layers removed", "layers", "recovery", "calibration"];
    let lead = lead.map(|head| if matches!(head, "depth" | "layers") { Lead::count(head) } else { Lead::text(head) });
    let factors_of = factors.iter().map(|name| {
        let head = match *name {
            "criterion" | "recovery" => format!("{name}.name"),
            name => name.strip_prefix("calibration.").unwrap_or(name).to_owned(),
        };
        let is_count = factors::OF_CALIBRATION.contains(name) && *name != factors::CORPUS;
        (if is_count { Lead::count(head) } else { Lead::text(head) }).only(LeadPlace::Data)
    });
    let seconds = Lead::count("seconds").only(LeadPlace::Terminal);
    let tail = [Some(seconds), noted.then(|| Lead::text("notes")), Some(Lead::text("status"))];
    let protocols: Vec<String> = results.protocols.iter().map(|protocol| format!("- {}", protocol.note())).collect();
    let table = Table {
        caption: protocols.join("\n"),
        lead: lead.to_vec(),
        columns: results.protocols.iter().map(column).collect(),
        tail: factors_of.chain(tail.into_iter().flatten()).collect(),
        rows: results.cells.iter().map(row).collect(),
        protocol: protocol_sentence(profile, results.numbers().map(AsRef::as_ref)),
        notes: besides,
        ..Table::default()
    };
    table.ranked()
}

/// A cell's number; none where there is nothing to print.
pub(super) fn shown(cell: &CellSummary, asked: &Question, decimals: usize) -> Option<PrintedNumber> {
    let known = |of: &&Arc<Measurement>| of.record.value.is_some() || of.sample == Sample::OutOfMemory;
    Some(PrintedNumber::printed(cell.number(asked).filter(known)?, decimals, ""))
}

/// What a cell has of a setting; nothing where it has none.
fn factor(cell: &CellSummary, name: &str) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    cell.factors.get(name).map(text).unwrap_or_default()
}

/// So many decimals for all numbers of a column that the smallest still shows four figures or more, and points line up. A
/// perplexity has as many figures as it needs; a percentage always two decimals, as in the paper.
pub(super) fn decimals(results: &Results, protocol: &Protocol) -> usize {
    if protocol.measures().nearness == Nearness::Difference {
        return 2;
    }
    if protocol.measures().is_latency() {
        return protocol.measures().decimals;
    }
    let asked = protocol.asked();
    let numbers = results.numbers().filter(|of| of.asked == asked).filter_map(|of| of.record.value);
    match numbers.map(f64::abs).fold(f64::INFINITY, f64::min) {
        least if least < 10.0 => 4,
        least if least < 100.0 => 3,
        _ => 2,
    }
}

/// `8-10` for a run of layers, `1,3` for single ones.
pub(super) fn ranges(layers: &[usize]) -> String {
    let mut sorted = layers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs: Vec<String> = sorted
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            [only] => only.to_string(),
            [] => String::new(),
        })
        .collect();
    runs.join(",")
}
