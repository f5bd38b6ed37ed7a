//! Arranges numbers in the rows and columns that an artifact's description specifies.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::comparison::compare;
use crate::artifact::paper::backbone_label;
use crate::criterion::Depth;
use crate::error::{Error, Result};
use crate::grid::{Description, Highlight, RowEntry, RowHeader, TableEntry};
use crate::metric::{Metric, MetricSource};
use crate::results::number_record::{Condition, DENSE, Record};
use crate::results::{
    Measurement, MetricKey, NumberColumn, PrintedNumber, RowHeader as TableLead, RowHeaderKind, Settings, Table,
    TableRow, distinct, protocol_sentence, settings,
};
use crate::{criterion, recovery};

/// Builds the table for an artifact. `paper` contains the paper's numbers for the artifact, if there are any.
///
/// # Errors
/// Fails if two numbers belong to the same table cell, or if a metric does not exist.
pub(super) fn layout(
    description: &Description,
    table: &TableEntry,
    numbers: &[Arc<Measurement>],
    paper: &[Record],
) -> Result<Table> {
    let backbones = distinct(numbers.iter().map(|number| &number.record.condition.backbone));
    let depths: Vec<Vec<Depth>> = backbones.iter().map(|backbone| depths_of(numbers, backbone)).collect();
    let depth_groups = if table.across_depths { Some(depth_groups(&depths)) } else { None };
    let (columns, over) = columns_of(table, numbers)?;
    let (mut groups, columns) = heads(columns, depth_groups.as_deref());
    if groups.is_empty() && over.iter().any(|(head, _)| !head.is_empty()) {
        groups = over;
    }
    let mut builder =
        RowsBuilder { table, columns: &columns, depth_groups: depth_groups.as_deref(), rows: Vec::new(), block: 0 };
    for (index, backbone) in backbones.iter().enumerate() {
        let backbone_numbers: Vec<&Arc<Measurement>> =
            numbers.iter().filter(|number| number.record.condition.backbone == *backbone).collect();
        builder.add_backbone(index, &backbone_numbers, &depths[index])?;
    }
    let mut rows = builder.rows;
    distinguish_rows(table, &mut rows);
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
        shown.comparison = compare(&shown.measurement, paper, &description.tolerance);
    }
    Ok(laid)
}

/// Builder for the rows of a table.
struct RowsBuilder<'a> {
    table: &'a TableEntry,
    columns: &'a [LayoutColumn],
    /// Depths indexed by `[group][backbone]`, or `None` if columns do not repeat for each depth.
    depth_groups: Option<&'a [Vec<Option<Depth>>]>,
    rows: Vec<LayoutRow>,
    /// Index of the current block of rows.
    block: usize,
}

impl RowsBuilder<'_> {
    /// Adds the rows for one backbone, which is given by its index.
    fn add_backbone(&mut self, backbone: usize, numbers: &[&Arc<Measurement>], depths: &[Depth]) -> Result<()> {
        let table = self.table;
        let (dense, pruned): (Vec<&Arc<Measurement>>, Vec<&Arc<Measurement>>) =
            numbers.iter().partition(|number| number.record.condition.criterion == DENSE);
        if table.dense {
            self.add_row(backbone, true, &dense)?;
            self.block += 1;
        }
        let steps: Vec<Vec<Depth>> = match table.across_depths {
            true => vec![depths.to_vec()],
            false => depths.iter().map(|depth| vec![*depth]).collect(),
        };
        for step in steps {
            let step_numbers: Vec<&Arc<Measurement>> =
                pruned.iter().copied().filter(|number| step.contains(&number.record.condition.cut_depth())).collect();
            for entry in &table.rows {
                self.add_methods(backbone, entry, &step_numbers)?;
                // If there is one column per depth, each row entry forms a block.
                self.block += usize::from(table.across_depths);
            }
            self.block += usize::from(!table.across_depths);
        }
        Ok(())
    }

    /// Adds a row for each method of an entry, and for each variant of the method.
    fn add_methods(&mut self, backbone: usize, entry: &RowEntry, numbers: &[&Arc<Measurement>]) -> Result<()> {
        for (criterion, recovery) in entry.criterion.iter().flat_map(|c| entry.recovery.iter().map(move |r| (c, r))) {
            let method_numbers: Vec<&Arc<Measurement>> = numbers
                .iter()
                .filter(|number| {
                    let condition = &number.record.condition;
                    condition.criterion == *criterion
                        && condition.recovery == *recovery
                        && condition.finetuned == entry.finetuned
                })
                .copied()
                .collect();
            for variant in distinct(method_numbers.iter().map(|number| variant(number)).collect::<Vec<_>>().iter()) {
                let variant_numbers: Vec<_> =
                    method_numbers.iter().copied().filter(|number| self::variant(number) == variant).collect();
                self.add_row(backbone, false, &variant_numbers)?;
            }
        }
        Ok(())
    }

    /// Adds a row unless it would contain no numbers.
    fn add_row(&mut self, backbone: usize, dense: bool, numbers: &[&Arc<Measurement>]) -> Result<()> {
        let Self { table, columns, depth_groups, .. } = *self;
        let cells = columns
            .iter()
            .map(|column| {
                let depth = column.group.and_then(|group| depth_groups?[group][backbone]);
                find(numbers, column, depth, dense)
            })
            .collect::<Result<Vec<_>>>()?;
        let (Some(first), false) = (numbers.first(), cells.iter().all(Option::is_none)) else { return Ok(()) };
        let ours = recovery::is_ours(&first.record.condition.recovery);
        let lead = table.lead.iter().map(|lead| lead_text(*lead, first, table)).collect();
        let cells = cells.into_iter().map(|number| number.map(|number| printed_number(number, table))).collect();
        let shaded = match (table.print.shade_sequences, table.print.shade) {
            (Some(count), _) => operator_sequences(first) == Some(count),
            (None, Highlight::Ours) => ours,
            (None, Highlight::None) => false,
        };
        let row = TableRow { lead, backbone, block: self.block, dense, ours, shaded, cells, ..TableRow::default() };
        self.rows.push(LayoutRow { row, first: Arc::clone(first) });
        Ok(())
    }
}

/// Table row together with its first measurement, which provides the labels of the row.
struct LayoutRow {
    row: TableRow,
    first: Arc<Measurement>,
}

#[derive(Clone)]
struct LayoutColumn {
    column: NumberColumn,
    /// Key of the metric, or `None` if the run measured the metric in only one way.
    key: Option<MetricKey>,
    /// Index of the depth group, or `None` if columns do not repeat for each depth.
    group: Option<usize>,
}

fn operator_sequences(measurement: &Measurement) -> Option<usize> {
    measurement.setup.variant.get(settings::OPERATOR_SEQUENCES)?.as_u64()?.try_into().ok()
}

/// Returns what distinguishes the rows of a method: the calibration and all settings except the depth.
fn variant(measurement: &Measurement) -> (String, Settings) {
    let mut settings = Settings::clone(&measurement.setup.variant);
    settings.remove(settings::DEPTH);
    (measurement.record.condition.calibration.clone(), settings)
}

/// Returns the depths of a backbone's pruned rows. Depths in whole layers come first.
fn depths_of(numbers: &[Arc<Measurement>], backbone: &str) -> Vec<Depth> {
    let conditions = numbers.iter().map(|number| &number.record.condition);
    let pruned = conditions.filter(|condition| condition.backbone == backbone && condition.criterion != DENSE);
    let mut depths = distinct(pruned.map(Condition::cut_depth).collect::<Vec<_>>().iter());
    depths.sort_unstable_by_key(|depth| (depth.unit, depth.count));
    depths
}

/// Returns the depths of the column groups, indexed by `[group][backbone]`.
///
/// Depths of different backbones are aligned by rank, unless this would put the same depth into two groups.
fn depth_groups(depths: &[Vec<Depth>]) -> Vec<Vec<Option<Depth>>> {
    let max_depths = depths.iter().map(Vec::len).max().unwrap_or(0);
    let aligned = depths.iter().all(|row| {
        row.is_empty() || row.len() == max_depths && row.iter().all(|depth| positions(depths, *depth).len() == 1)
    });
    if aligned {
        return (0..max_depths).map(|group| depths.iter().map(|row| row.get(group).copied()).collect()).collect();
    }
    let mut all = distinct(depths.iter().flatten());
    all.sort_unstable_by_key(|depth| (depth.unit, depth.count));
    all.into_iter().map(|depth| depths.iter().map(|row| row.contains(&depth).then_some(depth)).collect()).collect()
}

/// Returns the distinct indices of `depth` in the lists of `depths`.
fn positions(depths: &[Vec<Depth>], depth: Depth) -> BTreeSet<usize> {
    depths.iter().filter_map(|row| row.iter().position(|known| *known == depth)).collect()
}

/// Headings with the number of columns they span.
type GroupHeads = Vec<(String, usize)>;

/// Returns the columns for a table's metrics, and the headings above them. Metrics that were not measured have no
/// columns, because a profile may lack texts, tasks or times of another.
fn columns_of(table: &TableEntry, numbers: &[Arc<Measurement>]) -> Result<(Vec<LayoutColumn>, GroupHeads)> {
    // A latency metric expands to one column per timed prompt.
    let prompts =
        |metric: &Metric| {
            let metrics = numbers.iter().map(|number| &number.metric);
            distinct(metrics.filter(|candidate| {
                candidate.id != metric.id && candidate.is_latency() && candidate.family() == metric.id
            }))
        };
    let is_any_measured = table.metrics.iter().any(|id| found_column(numbers, id).is_some());
    let mut measured = Vec::new();
    let mut over = Vec::new();
    for id in &table.metrics {
        let found = found_column(numbers, id);
        let is_measured = found.is_some();
        let metric = found.map_or_else(|| Metric::find(id), Ok)?;
        let prompt_metrics = prompts(&metric);
        let is_measured = is_measured || !prompt_metrics.is_empty();
        if !is_measured && (is_any_measured || metric.is_defined()) {
            continue;
        }
        let (head, metrics) = match prompt_metrics.is_empty() {
            true => (
                String::new(),
                std::iter::once(metric.clone()).chain(related_metrics(table, numbers, &metric)).collect(),
            ),
            false => (metric.label, prompt_metrics),
        };
        let columns: Vec<LayoutColumn> =
            metrics.into_iter().flat_map(|metric| columns_of_metric(numbers, &metric)).collect();
        over.push((head, columns.len()));
        measured.extend(columns);
    }
    Ok((measured, over))
}

/// Returns the other metrics for the same text or task, whose columns are placed next to the metric's own.
fn related_metrics(table: &TableEntry, numbers: &[Arc<Measurement>], metric: &Metric) -> Vec<Metric> {
    let others = metric.siblings().into_iter().filter(|other| !table.metrics.contains(&other.id));
    others.filter_map(|other| found_column(numbers, &other.id)).collect::<Vec<_>>()
}

/// Returns the columns for a metric. If a metric was measured in several ways, each way has its own column.
fn columns_of_metric(numbers: &[Arc<Measurement>], metric: &Metric) -> Vec<LayoutColumn> {
    let selected = numbers.iter().filter(|number| number.metric.id == metric.id);
    let ways = distinct(selected.map(|number| &number.key));
    let heads: Vec<(String, Option<_>)> = match ways.len() {
        0 | 1 => vec![(metric.label.clone(), None)],
        _ => ways.into_iter().map(|way| (way.to_string(), Some(way))).collect(),
    };
    let columns = heads.into_iter().map(|(head, key)| (NumberColumn::new(metric.clone(), head), key));
    columns.map(|(column, key)| LayoutColumn { column, key, group: None }).collect()
}

fn found_column(numbers: &[Arc<Measurement>], id: &str) -> Option<Metric> {
    numbers.iter().find(|number| number.metric.id == id).map(|number| number.metric.clone())
}

/// Distinguishes rows with equal labels by adding the smallest sufficient set of settings to their labels.
fn distinguish_rows(table: &TableEntry, rows: &mut [LayoutRow]) {
    let headed: Vec<_> =
        rows.iter().filter(|row| row.first.record.condition.recovery == recovery::NONE).map(head_of).collect();
    let called: Vec<_> = rows
        .iter()
        .map(|row| {
            (row.row.lead.clone(), Some(head_of(row)).filter(|head| table.across_depths && headed.contains(head)))
        })
        .collect();
    let words = settings::distinguishing_suffixes(
        &called,
        &rows.iter().map(|row| &*row.first.setup.variant).collect::<Vec<_>>(),
    );
    for (row, words) in rows.iter_mut().zip(words).filter(|(_, words)| !words.is_empty()) {
        if let Some(last) = row.row.lead.last_mut() {
            *last = format!("{last}, {words}");
        }
    }
}

/// Returns the backbone, block and criterion of a row. They identify the unrepaired row above a repaired one.
fn head_of(laid: &LayoutRow) -> (usize, usize, String) {
    (laid.row.backbone, laid.row.block, laid.first.record.condition.criterion.clone())
}

pub(super) fn with_notes(mut table: Table, profile: &str, besides: Vec<String>) -> Table {
    table.protocol = protocol_sentence(profile, table.numbers().map(|(_, shown)| &*shown.measurement));
    table.notes = besides;
    table
}

/// Repeats the columns for each depth group and returns them with the headings above them.
fn heads(columns: Vec<LayoutColumn>, depth_groups: Option<&[Vec<Option<Depth>>]>) -> (GroupHeads, Vec<LayoutColumn>) {
    let Some(depth_groups) = depth_groups else { return (Vec::new(), columns) };
    (
        depth_groups
            .iter()
            .map(|depths| {
                let counts: BTreeSet<Depth> = depths.iter().flatten().copied().collect();
                let counts: Vec<String> = counts.iter().map(|depth| depth_head(*depth)).collect();
                (counts.join(", "), columns.len())
            })
            .collect(),
        (0..depth_groups.len())
            .flat_map(|group| columns.iter().map(move |column| LayoutColumn { group: Some(group), ..column.clone() }))
            .collect(),
    )
}

fn depth_head(depth: Depth) -> String {
    if depth.is_in_layers() { format!("{depth}-layer") } else { depth.to_string() }
}

/// Finds the number in a row that belongs to a column. If columns repeat for each depth, the number
/// must also be for `depth`.
fn find<'n>(
    row: &[&'n Arc<Measurement>],
    column: &LayoutColumn,
    depth: Option<Depth>,
    dense: bool,
) -> Result<Option<&'n Arc<Measurement>>> {
    let any = dense || column.group.is_none();
    let candidates = || row.iter().copied().filter(|number| any || Some(number.record.condition.cut_depth()) == depth);
    let mut found = candidates().filter(|number| {
        number.metric.id == column.column.metric.id && column.key.as_ref().is_none_or(|key| *key == number.key)
    });
    match (found.next(), found.next()) {
        (Some(number), None) => Ok(Some(number)),
        (Some(one), Some(other)) => Err(Error::bad_input("two numbers of the grid belong to the same table cell")
            .at(format!("{:?}", one.record.condition))
            .expected("cells that differ in a setting")
            .found(format!("`{}` and `{}`", one.cell, other.cell))
            .hint("name the option in the artifact's `named_options`, or leave one of the cells out")),
        // A failed cell has no score but still belongs in its row.
        (None, _) => Ok(candidates().find(|number| number.failure.is_some())),
    }
}

fn printed_number(number: &Arc<Measurement>, table: &TableEntry) -> PrintedNumber {
    // Latencies are too inaccurate for two decimals, and divergences need more than two.
    let has_own_decimals = number.metric.is_latency() || matches!(number.metric.source, MetricSource::Damage(..));
    let decimals = if has_own_decimals { number.metric.decimals } else { table.decimals };
    PrintedNumber::printed(number, decimals, if number.failure.is_none() { "—" } else { "failed" })
}

fn head(lead: &RowHeader) -> TableLead {
    match lead {
        RowHeader::Backbone => TableLead::text("Model").kind(RowHeaderKind::Spanning),
        RowHeader::Depth => TableLead::text("Lp/Lt").kind(RowHeaderKind::Fraction),
        RowHeader::Removed => TableLead::text("Removed"),
        RowHeader::Method => TableLead::text("Method"),
        RowHeader::Sequences => TableLead::text("Num. of sequences"),
    }
}

fn lead_text(lead: RowHeader, measurement: &Measurement, table: &TableEntry) -> String {
    let condition = &measurement.record.condition;
    match lead {
        RowHeader::Backbone => backbone_label(&condition.backbone).to_owned(),
        RowHeader::Depth => format!("{}/{}", condition.depth, condition.layers),
        RowHeader::Removed if condition.criterion == DENSE => "—".to_owned(),
        RowHeader::Removed => condition.cut_depth().words(),
        RowHeader::Method if table.lead.contains(&RowHeader::Removed) => cut_and_repair(condition),
        RowHeader::Method if condition.recovery == recovery::NONE => criterion::label(&condition.criterion).to_owned(),
        RowHeader::Method => {
            let below = if table.across_depths { "+ " } else { "" };
            let trained = if condition.finetuned { " + FT" } else { "" };
            format!("{below}{}{trained}", recovery::heading(&condition.recovery))
        }
        RowHeader::Sequences => {
            measurement.setup.variant.get(settings::OPERATOR_SEQUENCES).map_or(String::new(), ToString::to_string)
        }
    }
}

/// Returns the label for a variant, composed of its criterion and its recovery: `LLM-Streamline + Mean change`.
pub(super) fn cut_and_repair(condition: &Condition) -> String {
    let cut = criterion::label(&condition.criterion);
    match condition.recovery.as_str() {
        recovery::NONE => cut.to_owned(),
        repair => format!("{cut} + {}", recovery::heading(repair)),
    }
}
