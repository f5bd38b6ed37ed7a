//! Numbers in the rows and columns that an artifact's description asks for, with the paper's values beside them.

use std::sync::Arc;

use super::comparison::compare;
use crate::artifact::paper::backbone_label;
use crate::error::{Error, Result};
use crate::grid::{Description, Lead, TableEntry};
use crate::metric::Metric;
use crate::results::record::{Condition, DENSE, Record};
use crate::results::{Column, Lead as TableLead, Measurement, Row, Shown, Table, distinct, protocol_line};
use crate::{criterion, recovery};

/// Lays numbers out. `paper` are the paper's numbers for the same artifact; empty where there are none.
///
/// # Errors
/// Two cells of the grid that the table cannot tell apart; a metric that there is not.
pub(super) fn layout(
    description: &Description,
    table: &TableEntry,
    numbers: &[Arc<Measurement>],
    paper: &[Record],
) -> Result<Table> {
    let mut rows = Vec::new();
    let backbones = distinct(numbers.iter().map(|number| &number.record.condition.backbone));
    let pruned = |backbone: &str| {
        let own = numbers.iter().map(|number| &number.record.condition);
        let own = own.filter(|of| of.backbone == backbone && of.criterion != DENSE);
        own.cloned().collect::<Vec<Condition>>()
    };
    let depths_of = |conditions: &[Condition]| {
        let mut depths = distinct(conditions.iter().map(|of| &of.depth));
        depths.sort_unstable();
        depths
    };
    let most = backbones.iter().map(|backbone| depths_of(&pruned(backbone)).len()).max().unwrap_or(0);
    let metric = |id: &String| match numbers.iter().find(|number| number.metric.id == *id) {
        Some(number) => Ok(number.metric.clone()),
        None => Metric::find(id),
    };
    let asked = table.metrics.iter().map(metric).collect::<Result<Vec<_>>>()?;
    // Beside perplexities of unlike vocabularies stand the bits per byte, where there are any.
    let beside = |metric: &Metric| {
        let id = Metric::text_of(&metric.id).map(|text| Metric::bits_per_byte(text).id)?;
        numbers.iter().find(|number| number.metric.id == id).map(|number| number.metric.clone())
    };
    // A metric of prompts stands for that of each prompt that was timed, under a head of its own.
    let prompts = |metric: &Metric| {
        let own = numbers.iter().map(|number| &number.metric);
        distinct(own.filter(|of| of.id != metric.id && of.is_latency() && of.family() == metric.id))
    };
    let (mut metrics, mut over): (Vec<Metric>, _) = (Vec::new(), Vec::new());
    for metric in asked {
        match prompts(&metric) {
            of if of.is_empty() => {
                over.push((String::new(), 1 + usize::from(beside(&metric).is_some())));
                metrics.extend([Some(metric.clone()), beside(&metric)].into_iter().flatten());
            }
            of => {
                over.push((metric.label, of.len()));
                metrics.extend(of);
            }
        }
    }
    let (mut groups, columns) = heads(table, &metrics, &backbones, most, |backbone| depths_of(&pruned(backbone)));
    if groups.is_empty() && over.iter().any(|(head, _)| !head.is_empty()) {
        groups = over;
    }
    let mut block = 0;
    for (place, backbone) in backbones.iter().enumerate() {
        let conditions = pruned(backbone);
        let depths = depths_of(&conditions);
        let mut add = |dense: bool, at: &[Condition], block: usize| -> Result<()> {
            let cells = columns.iter().map(|placed| find(numbers, at, placed, dense)).collect::<Result<Vec<_>>>()?;
            if cells.iter().all(Option::is_none) {
                return Ok(());
            }
            let ours = at.iter().any(|of| recovery::is_ours(&of.recovery));
            let lead = table.lead.iter().map(|lead| lead_text(*lead, at, table)).collect();
            let cells = cells.into_iter().map(|number| number.map(|of| shown(of, table))).collect();
            rows.push(Row { lead, backbone: place, block, dense, ours, cells, tail: Vec::new() });
            Ok(())
        };
        if table.dense {
            let dense = numbers.iter().map(|number| &number.record.condition);
            let dense = dense.filter(|of| of.backbone == *backbone && of.criterion == DENSE).take(1);
            add(true, &dense.cloned().collect::<Vec<_>>(), block)?;
            block += 1;
        }
        let steps: Vec<Vec<usize>> = match table.across_depths {
            true => vec![depths],
            false => depths.into_iter().map(|depth| vec![depth]).collect(),
        };
        for step in steps {
            for entry in &table.rows {
                for (criterion, recovery) in
                    entry.criterion.iter().flat_map(|c| entry.recovery.iter().map(move |r| (c, r)))
                {
                    let same = |of: &&Condition| {
                        of.criterion == *criterion && of.recovery == *recovery && of.finetuned == entry.finetuned
                    };
                    let own: Vec<&Condition> = conditions.iter().filter(same).collect();
                    for calibration in distinct(own.iter().map(|of| &of.calibration)) {
                        let at = |of: &&&Condition| of.calibration == calibration && step.contains(&of.depth);
                        let mut at: Vec<Condition> = own.iter().filter(at).map(|of| (*of).clone()).collect();
                        at.sort();
                        at.dedup();
                        add(false, &at, block)?;
                    }
                }
                // Columns for each depth leave blocks to the entries.
                block += usize::from(table.across_depths);
            }
            block += usize::from(!table.across_depths);
        }
    }
    let laid = Table {
        title: description.title.clone(),
        caption: description.caption.clone().unwrap_or_default(),
        lead: table.lead.iter().map(|lead| TableLead::text(head(*lead))).collect(),
        groups,
        columns: columns.into_iter().map(|(column, _)| column).collect(),
        rows,
        against: table.against.clone(),
        ..Table::default()
    };
    let mut laid = laid.ranked();
    for shown in laid.rows.iter_mut().flat_map(|row| row.cells.iter_mut()).flatten() {
        shown.beside = compare(&shown.of, paper, &description.tolerance);
    }
    Ok(laid)
}

/// The table with the line of protocols under it, and what has to be said besides.
pub(super) fn noted(mut table: Table, profile: &str, besides: Vec<String>) -> Table {
    let line = protocol_line(profile, table.shown().map(|(_, shown)| &*shown.of));
    table.notes =
        Some(line).filter(|line| !line.is_empty()).map(|line| format!("Protocol: {line}.")).into_iter().collect();
    table.notes.extend(besides);
    table
}

/// A column, and the place of its depth among a backbone's depths where the columns are repeated for each.
type Placed = (Column, Option<usize>);

/// The columns, and the heads over them.
fn heads(
    table: &TableEntry,
    metrics: &[Metric],
    backbones: &[String],
    most: usize,
    depths: impl Fn(&str) -> Vec<usize>,
) -> (Vec<(String, usize)>, Vec<Placed>) {
    let of =
        |depth: Option<usize>| metrics.iter().map(move |metric| (Column::of(metric.clone(), &metric.label), depth));
    if !table.across_depths {
        return (Vec::new(), of(None).collect());
    }
    let group = |place: usize| {
        let counts = distinct(
            backbones.iter().filter_map(|backbone| depths(backbone).get(place).copied()).collect::<Vec<_>>().iter(),
        );
        let counts: Vec<String> = counts.iter().map(|depth: &usize| format!("{depth}-layer")).collect();
        (counts.join(", "), metrics.len())
    };
    ((0..most).map(group).collect(), (0..most).flat_map(|place| of(Some(place))).collect())
}

/// The number that belongs into a column of a row.
fn find<'n>(
    numbers: &'n [Arc<Measurement>],
    at: &[Condition],
    (column, depth): &Placed,
    dense: bool,
) -> Result<Option<&'n Arc<Measurement>>> {
    let condition = match depth {
        Some(_) if dense => at.first(),
        Some(place) => at.get(*place),
        None => at.first(),
    };
    let Some(condition) = condition else { return Ok(None) };
    let own = || numbers.iter().filter(|number| number.record.condition == *condition);
    let mut found = own().filter(|number| number.metric.id == column.metric.id);
    match (found.next(), found.next()) {
        (Some(number), None) => Ok(Some(number)),
        (Some(_), Some(_)) => Err(Error::bad_input("a table cannot tell two cells of its grid apart")
            .at(format!("{condition:?}"))
            .expected("cells that differ in what the table names")
            .found("cells that differ in an option or in the calibration's size")
            .hint("name the option in the artifact's `named_options`, or leave one of the cells out")),
        // A cell without any score has failed; it still has its row.
        (None, _) => Ok(own().find(|number| number.failure.is_some())),
    }
}

fn shown(number: &Arc<Measurement>, table: &TableEntry) -> Shown {
    // Of a latency a second decimal is noise.
    let is_latency = number.metric.is_latency();
    let decimals = if is_latency { number.metric.decimals } else { table.decimals };
    Shown::printed(number, decimals, if is_latency && number.failure.is_none() { "—" } else { "failed" })
}

fn head(lead: Lead) -> &'static str {
    match lead {
        Lead::Backbone => "Model",
        Lead::Depth => "Lp/Lt",
        Lead::Method => "Method",
        Lead::Sequences => "Num. of sequences",
    }
}

fn lead_text(lead: Lead, at: &[Condition], table: &TableEntry) -> String {
    let Some(condition) = at.first() else { return String::new() };
    match lead {
        Lead::Backbone => backbone_label(&condition.backbone).to_owned(),
        Lead::Depth => format!("{}/{}", condition.depth, condition.layers),
        Lead::Method if condition.recovery == recovery::NONE => criterion::label(&condition.criterion).to_owned(),
        // Beside several criteria a recovery stands below the one that it repairs.
        Lead::Method => {
            let below = if table.across_depths { "+ " } else { "" };
            let trained = if condition.finetuned { " + FT" } else { "" };
            format!("{below}{}{trained}", recovery::heading(&condition.recovery))
        }
        Lead::Sequences => condition.calibration.split(':').nth(1).unwrap_or(&condition.calibration).to_owned(),
    }
}
