//! Splits a table into the columns that are in the paper and those that are not.

use crate::artifact::paper::backbone_label;
use crate::grid::TableEntry;
use crate::metric::{Metric, PromptName};
use crate::recovery;
use crate::results::number_record::{Condition, DENSE};
use crate::results::{NumberColumn, RowHeader, RowHeaderKind, Table, TableRow, distinct};

/// Returns the table with only the columns that the paper has.
pub(super) fn keep_paper_columns(entry: &TableEntry, table: &Table) -> Table {
    filter_columns(entry, table, |column| !is_beyond(entry, &column.metric))
}

/// Returns the table with only the columns that the paper does not have, or `None` if there are none.
pub(super) fn columns_beyond_paper(entry: &TableEntry, table: &Table) -> Option<Table> {
    let beyond = filter_columns(entry, table, |column| is_beyond(entry, &column.metric));
    let title = format!("{}, beyond the paper's columns", table.title);
    (!beyond.columns.is_empty()).then_some(Table { title, ..beyond })
}

/// Returns whether the paper's table has no column for a metric: it is listed in `beyond` or was added automatically.
fn is_beyond(entry: &TableEntry, metric: &Metric) -> bool {
    !contains_metric(&entry.metrics, metric) || contains_metric(&entry.print.beyond, metric)
}

/// Returns whether a metric, such as bits per byte, has a column although the description does not request it.
pub(super) fn is_added_automatically(entry: &TableEntry, metric: &Metric) -> bool {
    !contains_metric(&entry.metrics, metric) && !contains_metric(&entry.print.beyond, metric)
}

/// Returns whether a list of ids contains a metric or its family, the id without a prompt.
fn contains_metric(all: &[String], metric: &Metric) -> bool {
    all.iter().any(|id| *id == metric.id || *id == metric.family())
}

/// Selects columns, drops rows that become empty, and applies the print options of the description.
fn filter_columns(entry: &TableEntry, table: &Table, keep: impl Fn(&NumberColumn) -> bool) -> Table {
    let kept: Vec<usize> = (0..table.columns.len()).filter(|&at| keep(&table.columns[at])).collect();
    let order = entry.print.lead.as_ref().unwrap_or(&entry.lead);
    let lead: Vec<usize> = order.iter().filter_map(|name| entry.lead.iter().position(|known| known == name)).collect();
    let mut first = 0;
    let mut groups: Vec<(String, usize)> = Vec::new();
    for (head, count) in &table.groups {
        let group_size = kept.iter().filter(|&&at| (first..first + count).contains(&at)).count();
        groups.extend((group_size > 0).then(|| (head.clone(), group_size)));
        first += count;
    }
    let filtered = Table {
        lead: lead.iter().map(|&at| table.lead[at].clone()).collect(),
        groups: if groups.iter().all(|(head, _)| head.is_empty()) { Vec::new() } else { groups },
        columns: kept
            .iter()
            .map(|at| {
                let column = &table.columns[*at];
                NumberColumn {
                    arrow: entry.print.arrows.as_ref().is_none_or(|ids| contains_metric(ids, &column.metric)),
                    ..column.clone()
                }
            })
            .collect(),
        rows: table
            .rows
            .iter()
            .filter_map(|row| {
                let cells: Vec<_> = kept.iter().map(|&at| row.cells[at].clone()).collect();
                let shown = row.cells.iter().flatten().next()?;
                let is_unrepaired = shown.number.record.condition.recovery == recovery::NONE && !row.dense;
                let heading =
                    entry.across_depths && is_unrepaired || entry.print.shade_sequences.is_some() && row.shaded;
                let lead = lead.iter().map(|&at| row.lead[at].clone()).collect();
                cells.iter().any(Option::is_some).then_some(TableRow { lead, cells, heading, ..row.clone() })
            })
            .collect(),
        ..table.clone()
    };
    let filtered = if entry.print.prompts_as_rows { transpose(filtered) } else { filtered };
    Table { scope: scope_text(entry, &filtered), ..filtered }
}

/// Describes the backbone and the number of removed layers. Leaves out either one if it varies or is already shown in
/// the table.
fn scope_text(entry: &TableEntry, table: &Table) -> String {
    let conditions: Vec<&Condition> = table.numbers().map(|(_, shown)| &shown.number.record.condition).collect();
    let backbones = distinct(conditions.iter().map(|condition| &condition.backbone));
    let depths: Vec<(usize, usize)> = conditions
        .iter()
        .filter(|condition| condition.criterion != DENSE)
        .map(|condition| (condition.depth, condition.layers))
        .collect();
    let mut parts = Vec::new();
    if let ([backbone], false) = (backbones.as_slice(), has_header(table, RowHeaderKind::Spanning)) {
        parts.push(backbone_label(backbone).to_owned());
    }
    if let ([(depth, layers)], false) =
        (distinct(&depths).as_slice(), has_header(table, RowHeaderKind::Fraction) || entry.across_depths)
    {
        parts.push(format!("{depth} of {layers} layers removed"));
    }
    parts.join(", ")
}

fn has_header(table: &Table, kind: RowHeaderKind) -> bool {
    table.lead.iter().any(|lead| lead.kind == kind)
}

/// Transposes a latency table so that it has one row for each prompt length and batch size. Returns any other table
/// unchanged.
fn transpose(table: Table) -> Table {
    let metrics =
        distinct(table.columns.iter().map(|column| column.metric.without_prompt()).collect::<Vec<_>>().iter());
    let prompts: Option<Vec<PromptName>> = table.columns.iter().map(|column| column.metric.prompt()).collect();
    let ([metric], Some(prompts)) = (metrics.as_slice(), prompts) else { return table };
    // Keep only the label columns that distinguish rows.
    let pruned: Vec<&TableRow> = table.rows.iter().filter(|row| !row.dense).collect();
    let headers: Vec<usize> =
        (0..table.lead.len()).filter(|&at| distinct(pruned.iter().map(|row| &row.lead[at])).len() > 1).collect();
    let lengths = distinct(prompts.iter().map(|prompt| (prompt.length, prompt.decode)).collect::<Vec<_>>().iter());
    Table {
        lead: ["Seq", "Batch"].map(RowHeader::count).to_vec(),
        groups: Vec::new(),
        columns: table
            .rows
            .iter()
            .map(|row| NumberColumn::new(metric.clone(), transposed_heading(&headers, row)))
            .collect(),
        rows: prompts
            .iter()
            .enumerate()
            .map(|(at, prompt)| TableRow {
                lead: vec![prompt.tokens(), prompt.batch.to_string()],
                block: lengths.iter().position(|known| *known == (prompt.length, prompt.decode)).unwrap_or_default(),
                cells: table.rows.iter().map(|row| row.cells[at].clone()).collect(),
                ..TableRow::default()
            })
            .collect(),
        ..table
    }
}

fn transposed_heading(headers: &[usize], row: &TableRow) -> String {
    match headers.is_empty() {
        true => row.lead.last().cloned().unwrap_or_default(),
        false => headers.iter().map(|&at| row.lead[at].as_str()).collect::<Vec<_>>().join(" "),
    }
}
