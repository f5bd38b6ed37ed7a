//! Arranges numbers in the rows and columns of an artifact's description, with the paper's values next to them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::comparison::compare;
use crate::artifact::paper::backbone_label;
use crate::error::{Error, Result};
use crate::grid::{Description, Lead, Shade, TableEntry};
use crate::metric::Metric;
use crate::results::record::{DENSE, Record};
use crate::results::{
    Factors, Lead as TableLead, LeadKind, Measurement, NumberColumn, PrintedNumber, Question, Table, TableRow,
    distinct, factors, protocol_sentence,
};
use crate::{criterion, recovery};

/// Lays numbers out. `paper` are the paper's numbers for the same artifact; empty where there are none.
///
/// # Errors
/// Two numbers of one cell that no column tells apart; a metric that there is not.
pub(super) fn layout(
    description: &Description,
    table: &TableEntry,
    numbers: &[Arc<Measurement>],
    paper: &[Record],
) -> Result<Table> {
    let backbones = distinct(numbers.iter().map(|number| &number.record.condition.backbone));
    let depths: Vec<Vec<usize>> = backbones.iter().map(|backbone| depths_of(numbers, backbone)).collect();
    let places = if table.across_depths { Some(places(&depths)) } else { None };
    let (columns, over) = columns_of(table, numbers)?;
    let (mut groups, columns) = heads(columns, places.as_deref());
    if groups.is_empty() && over.iter().any(|(head, _)| !head.is_empty()) {
        groups = over;
    }
    let (mut rows, mut block): (Vec<Laid>, usize) = (Vec::new(), 0);
    for (place, backbone) in backbones.iter().enumerate() {
        let own = |number: &&Arc<Measurement>| number.record.condition.backbone == *backbone;
        let (dense, pruned): (Vec<_>, Vec<_>) =
            numbers.iter().filter(own).partition(|number| number.record.condition.criterion == DENSE);
        let mut add = |dense: bool, at: &[&Arc<Measurement>], block: usize| -> Result<()> {
            let depth = |column: &LaidColumn| column.group.and_then(|group| places.as_ref()?[group][place]);
            let cells = columns.iter().map(|column| find(at, column, depth(column), dense));
            let cells = cells.collect::<Result<Vec<_>>>()?;
            let (Some(first), false) = (at.first(), cells.iter().all(Option::is_none)) else { return Ok(()) };
            let ours = recovery::is_ours(&first.record.condition.recovery);
            let lead = table.lead.iter().map(|lead| lead_text(*lead, first, table)).collect();
            let cells = cells.into_iter().map(|number| number.map(|of| shown(of, table))).collect();
            let shaded = match (table.print.shade_sequences, table.print.shade) {
                (Some(count), _) => sequences(first) == Some(count),
                (None, Shade::Ours) => ours,
                (None, Shade::None) => false,
            };
            let row = TableRow { lead, backbone: place, block, dense, ours, shaded, cells, ..TableRow::default() };
            rows.push(Laid { row, first: Arc::clone(first) });
            Ok(())
        };
        if table.dense {
            add(true, &dense, block)?;
            block += 1;
        }
        let steps: Vec<Vec<usize>> = match table.across_depths {
            true => vec![depths[place].clone()],
            false => depths[place].iter().map(|depth| vec![*depth]).collect(),
        };
        for step in steps {
            for entry in &table.rows {
                for (criterion, recovery) in
                    entry.criterion.iter().flat_map(|c| entry.recovery.iter().map(move |r| (c, r)))
                {
                    let same = |number: &&&Arc<Measurement>| {
                        let of = &number.record.condition;
                        of.criterion == *criterion
                            && of.recovery == *recovery
                            && of.finetuned == entry.finetuned
                            && step.contains(&of.depth)
                    };
                    let own: Vec<&Arc<Measurement>> = pruned.iter().filter(same).copied().collect();
                    for variant in distinct(own.iter().map(|of| variant(of)).collect::<Vec<_>>().iter()) {
                        let at: Vec<_> = own.iter().filter(|of| self::variant(of) == variant).copied().collect();
                        add(false, &at, block)?;
                    }
                }
                // Columns for each depth leave blocks to the entries.
                block += usize::from(table.across_depths);
            }
            block += usize::from(!table.across_depths);
        }
    }
    tell_apart(table, &mut rows);
    let laid = Table {
        title: description.title.clone(),
        caption: description.caption.clone().unwrap_or_default(),
        lead: table.lead.iter().map(head).collect(),
        groups,
        columns: columns.into_iter().map(|placed| placed.column).collect(),
        rows: rows.into_iter().map(|laid| laid.row).collect(),
        against: table.against.clone(),
        ..Table::default()
    };
    let mut laid = laid.ranked();
    for shown in laid.rows.iter_mut().flat_map(|row| row.cells.iter_mut()).flatten() {
        shown.beside = compare(&shown.of, paper, &description.tolerance);
    }
    Ok(laid)
}

/// A row with one of the numbers that it is about, from which it has its words.
struct Laid {
    row: TableRow,
    first: Arc<Measurement>,
}

/// A column of the table.
#[derive(Clone)]
struct LaidColumn {
    column: NumberColumn,
    /// The question among several under which the run measured it.
    of: Option<Question>,
    /// Which group of depths it is in, where the columns are repeated for each.
    group: Option<usize>,
}

/// Returns the number of sequences that an operator is solved on.
fn sequences(of: &Measurement) -> Option<usize> {
    of.setup.variant.get(factors::OPERATOR_SEQUENCES)?.as_u64()?.try_into().ok()
}

/// Identifies a row: a cell, independent of its depth.
fn variant(of: &Measurement) -> (String, Factors) {
    let mut factors = Factors::clone(&of.setup.variant);
    factors.remove(factors::DEPTH);
    (of.record.condition.calibration.clone(), factors)
}

/// Returns the depths of a backbone in ascending order.
fn depths_of(numbers: &[Arc<Measurement>], backbone: &str) -> Vec<usize> {
    let own = numbers.iter().map(|number| &number.record.condition);
    let own = own.filter(|of| of.backbone == backbone && of.criterion != DENSE);
    let mut depths = distinct(own.map(|of| &of.depth));
    depths.sort_unstable();
    depths
}

/// Returns the depth of each backbone in each group of columns. Backbones of different sizes are aligned by first depth,
/// second and so on; if that would put one depth into two groups, each depth gets its own.
fn places(depths: &[Vec<usize>]) -> Vec<Vec<Option<usize>>> {
    let most = depths.iter().map(Vec::len).max().unwrap_or(0);
    let at = |depth: usize| depths.iter().filter_map(move |own| own.iter().position(|known| *known == depth));
    let stays = |depth: &usize| at(*depth).collect::<BTreeSet<_>>().len() == 1;
    if depths.iter().all(|own| own.is_empty() || own.len() == most && own.iter().all(stays)) {
        return (0..most).map(|group| depths.iter().map(|own| own.get(group).copied()).collect()).collect();
    }
    let all: BTreeSet<usize> = depths.iter().flatten().copied().collect();
    all.into_iter().map(|depth| depths.iter().map(|own| own.contains(&depth).then_some(depth)).collect()).collect()
}

/// Heads over several columns, and how many they are over; empty where there is none.
type GroupHeads = Vec<(String, usize)>;

/// Returns a table's metrics, and the headers over them with their spans.
fn columns_of(table: &TableEntry, numbers: &[Arc<Measurement>]) -> Result<(Vec<LaidColumn>, GroupHeads)> {
    let found = |id: &str| numbers.iter().find(|number| number.metric.id == id).map(|number| number.metric.clone());
    // Each of several measurements under one name gets its own column.
    let each = |metric: Metric| -> Vec<LaidColumn> {
        let column = |head: String, of| LaidColumn { column: NumberColumn::of(metric.clone(), head), of, group: None };
        let own = numbers.iter().filter(|number| number.metric.id == metric.id);
        let ways = distinct(own.map(|number| &number.asked));
        match ways.len() {
            0 | 1 => vec![column(metric.label.clone(), None)],
            _ => ways.into_iter().map(|of| column(of.to_string(), Some(of))).collect(),
        }
    };
    // Other measurements on the same text or task are next to it, unless they have their own column.
    let beside = |metric: &Metric| {
        let others = metric.others().into_iter().filter(|other| !table.metrics.contains(&other.id));
        others.filter_map(|other| found(&other.id)).collect::<Vec<_>>()
    };
    // A metric of prompts stands for that of each prompt that was timed, under a head of its own.
    let prompts = |metric: &Metric| {
        let own = numbers.iter().map(|number| &number.metric);
        distinct(own.filter(|of| of.id != metric.id && of.is_latency() && of.family() == metric.id))
    };
    let mut wanted = Vec::new();
    let mut over = Vec::new();
    for id in &table.metrics {
        let metric = found(id).map_or_else(|| Metric::find(id), Ok)?;
        let of_prompts = prompts(&metric);
        let (head, metrics) = match of_prompts.is_empty() {
            true => (String::new(), std::iter::once(metric.clone()).chain(beside(&metric)).collect()),
            false => (metric.label, of_prompts),
        };
        let columns: Vec<LaidColumn> = metrics.into_iter().flat_map(each).collect();
        over.push((head, columns.len()));
        wanted.extend(columns);
    }
    Ok((wanted, over))
}

/// Adds the fewest settings that distinguish rows with equal labels to their last label.
fn tell_apart(table: &TableEntry, rows: &mut [Laid]) {
    // With several criteria, a recovery stands below the row of the criterion whose cut it repairs, if there is one.
    let head = |of: &Laid| (of.row.backbone, of.row.block, of.first.record.condition.criterion.clone());
    let bare = |of: &&Laid| of.first.record.condition.recovery == recovery::NONE;
    let headed: Vec<_> = rows.iter().filter(bare).map(head).collect();
    let below = |of: &Laid| Some(head(of)).filter(|head| table.across_depths && headed.contains(head));
    let called: Vec<_> = rows.iter().map(|of| (of.row.lead.clone(), below(of))).collect();
    let words = factors::besides(&called, &rows.iter().map(|of| &*of.first.setup.variant).collect::<Vec<_>>());
    for (of, words) in rows.iter_mut().zip(words).filter(|(_, words)| !words.is_empty()) {
        if let Some(last) = of.row.lead.last_mut() {
            *last = format!("{last}, {words}");
        }
    }
}

/// Adds the protocol line and other notes to the table.
pub(super) fn noted(mut table: Table, profile: &str, besides: Vec<String>) -> Table {
    table.protocol = protocol_sentence(profile, table.shown().map(|(_, shown)| &*shown.of));
    table.notes = besides;
    table
}

/// Returns the columns and the headers over them.
fn heads(columns: Vec<LaidColumn>, places: Option<&[Vec<Option<usize>>]>) -> (GroupHeads, Vec<LaidColumn>) {
    let Some(places) = places else { return (Vec::new(), columns) };
    let again = |group: usize| columns.iter().map(move |of| LaidColumn { group: Some(group), ..of.clone() });
    let group = |depths: &Vec<Option<usize>>| {
        let counts: BTreeSet<usize> = depths.iter().flatten().copied().collect();
        let counts: Vec<String> = counts.iter().map(|depth| format!("{depth}-layer")).collect();
        (counts.join(", "), columns.len())
    };
    (places.iter().map(group).collect(), (0..places.len()).flat_map(again).collect())
}

/// Finds the number of a row's column: at `depth` if the columns repeat per depth, else at the row's only depth.
fn find<'n>(
    row: &[&'n Arc<Measurement>],
    column: &LaidColumn,
    depth: Option<usize>,
    dense: bool,
) -> Result<Option<&'n Arc<Measurement>>> {
    let any = dense || column.group.is_none();
    let own = || row.iter().copied().filter(|number| any || Some(number.record.condition.depth) == depth);
    let fits = |number: &&Arc<Measurement>| {
        number.metric.id == column.column.metric.id && column.of.as_ref().is_none_or(|of| *of == number.asked)
    };
    let mut found = own().filter(fits);
    match (found.next(), found.next()) {
        (Some(number), None) => Ok(Some(number)),
        (Some(one), Some(other)) => Err(Error::bad_input("a table cannot tell two numbers of its grid apart")
            .at(format!("{:?}", one.record.condition))
            .expected("cells that differ in a setting")
            .found(format!("`{}` and `{}`", one.cell, other.cell))
            .hint("name the option in the artifact's `named_options`, or leave one of the cells out")),
        // A cell without any score has failed; it still has its row.
        (None, _) => Ok(own().find(|number| number.failure.is_some())),
    }
}

fn shown(number: &Arc<Measurement>, table: &TableEntry) -> PrintedNumber {
    // A second decimal of a latency is noise.
    let is_latency = number.metric.is_latency();
    let decimals = if is_latency { number.metric.decimals } else { table.decimals };
    PrintedNumber::printed(number, decimals, if number.failure.is_none() { "—" } else { "failed" })
}

fn head(lead: &Lead) -> TableLead {
    match lead {
        Lead::Backbone => TableLead::text("Model").kind(LeadKind::Spanning),
        Lead::Depth => TableLead::text("Lp/Lt").kind(LeadKind::Fraction),
        Lead::Method => TableLead::text("Method"),
        Lead::Sequences => TableLead::text("Num. of sequences"),
    }
}

fn lead_text(lead: Lead, of: &Measurement, table: &TableEntry) -> String {
    let condition = &of.record.condition;
    match lead {
        Lead::Backbone => backbone_label(&condition.backbone).to_owned(),
        Lead::Depth => format!("{}/{}", condition.depth, condition.layers),
        Lead::Method if condition.recovery == recovery::NONE => criterion::label(&condition.criterion).to_owned(),
        // With several criteria, a recovery stands below the criterion whose cut it repairs.
        Lead::Method => {
            let below = if table.across_depths { "+ " } else { "" };
            let trained = if condition.finetuned { " + FT" } else { "" };
            format!("{below}{}{trained}", recovery::heading(&condition.recovery))
        }
        Lead::Sequences => of.setup.variant.get(factors::OPERATOR_SEQUENCES).map_or(String::new(), ToString::to_string),
    }
}
