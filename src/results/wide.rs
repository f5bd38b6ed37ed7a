//! The table of a run turned round: a row for each method, a column for each backbone and depth, one metric.

use super::groups::distinct;
use super::long::{decimals, shown};
use super::measurement::{CellSummary, Results};
use super::protocol_line::protocol_sentence;
use super::table::{Lead, NumberColumn, Table, TableRow};
use super::{Factors, Protocol, factors};
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
    let (asked, decimals) = (protocol.asked(), decimals(results, protocol));
    let setting = |cell: &CellSummary| (cell.backbone.clone(), cell.depth, cell.layers);
    let of_pruned: Vec<Setting> = results.cells.iter().filter(|cell| cell.depth > 0).map(setting).collect();
    // A backbone that is not pruned has a column of its own.
    let whole = results.cells.iter().filter(|cell| of_pruned.iter().all(|(backbone, ..)| *backbone != cell.backbone));
    let settings = distinct(of_pruned.iter().chain(&whole.map(setting).collect::<Vec<_>>()));
    let variants = distinct(results.cells.iter().map(variant).collect::<Vec<_>>().iter());
    let row = |(of, called): (&RowFactors, String)| {
        let number = |(backbone, depth, _): &Setting| {
            // The dense value stands in each column of its backbone.
            let own = |cell: &&CellSummary| cell.backbone == *backbone && (cell.depth == *depth || cell.depth == 0);
            shown(results.cells.iter().filter(own).find(|cell| variant(cell) == *of)?, &asked, decimals)
        };
        let cells = settings.iter().map(number).collect();
        TableRow { lead: vec![called], dense: of.is_empty(), ours: factors::is_ours(of), cells, ..TableRow::default() }
    };
    let column = |(backbone, depth, layers): &Setting| {
        NumberColumn::of(protocol.measures(), format!("{backbone} {depth}/{layers}"))
    };
    let table = Table {
        title: asked.to_string(),
        lead: vec![Lead::text("")],
        columns: settings.iter().map(column).collect(),
        rows: variants.iter().zip(called(&variants)).map(row).collect(),
        protocol: protocol_sentence(profile, results.numbers().map(AsRef::as_ref)),
        notes: besides,
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

/// What a row is about: the settings of its cells, whatever their backbones and depths. The dense backbone has none.
type RowFactors = Factors;

fn variant(cell: &CellSummary) -> RowFactors {
    let own = cell.factors.iter().filter(|(name, _)| *name != "backbone" && *name != factors::DEPTH);
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// What the rows are called: a recovery stands below the criterion that it repairs, where that has a row of its own, and
/// what would be called alike is told apart.
fn called(variants: &[RowFactors]) -> Vec<String> {
    let word =
        |of: &RowFactors, name: &str| of.get(name).and_then(|of| of.as_str().map(str::to_owned)).unwrap_or_default();
    let criterion = |of: &RowFactors| -> RowFactors {
        let own = of.iter().filter(|(name, _)| *name == "criterion" || name.starts_with("criterion."));
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let headed: Vec<RowFactors> =
        variants.iter().filter(|of| word(of, "recovery") == recovery::NONE).map(criterion).collect();
    let base = |of: &RowFactors| match word(of, "recovery") {
        name if name.is_empty() => (criterion::DENSE.label.to_owned(), RowFactors::new()),
        name if name == recovery::NONE => (criterion::label(&word(of, "criterion")).to_owned(), RowFactors::new()),
        name => {
            let below = Some(criterion(of)).filter(|of| headed.contains(of));
            (format!("+ {}", recovery::label(&name)), below.unwrap_or_default())
        }
    };
    let bases: Vec<(String, RowFactors)> = variants.iter().map(base).collect();
    let words = factors::besides(&bases, &variants.iter().collect::<Vec<_>>());
    let named = |((text, _), words): ((String, RowFactors), String)| {
        if words.is_empty() { text } else { format!("{text}, {words}") }
    };
    bases.into_iter().zip(words).map(named).collect()
}
