//! Arranges numbers in the rows and columns that an artifact's description specifies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::comparison::compare;
use crate::artifact::paper::backbone_label;
use crate::criterion::Depth;
use crate::error::{Error, Result};
use crate::grid::{Description, Highlight, RowEntry, RowHeader, TableEntry};
use crate::metric::{Metric, MetricSource};
use crate::results::number_record::{Condition, DENSE, Record};
use crate::results::{
    NumberColumn, PrintedNumber, ResultRow, RowHeader as TableLead, RowHeaderKind, Settings, Table, TableRow, distinct,
    group_by_key, protocol_sentence, settings,
};
use crate::{criterion, recovery};

/// Builds the table for an artifact. `paper` contains the paper's numbers for the artifact, if there are any.
///
/// # Errors
/// Fails if two numbers belong to the same table cell, or if a metric does not exist.
pub(super) fn lay_out_table(
    description: &Description,
    table: &TableEntry,
    numbers: &[Arc<ResultRow>],
    paper: &[Record],
) -> Result<Table> {
    let backbones = distinct(numbers.iter().map(|number| &number.record.condition.backbone));
    let depths: Vec<Vec<Depth>> = backbones.iter().map(|backbone| pruned_depths(numbers, backbone)).collect();
    let depth_groups = if table.across_depths { Some(group_depths(&depths)) } else { None };
    let (mut columns, headings) = build_columns(table, numbers)?;
    for column in columns.iter_mut().filter(|column| !has_own_decimals(&column.metric)) {
        column.decimals = table.decimals;
    }
    let (mut groups, columns) = repeat_for_depths(columns, &backbones, depth_groups.as_deref());
    if groups.is_empty() && headings.iter().any(|(head, _)| !head.is_empty()) {
        groups = headings;
    }
    let mut builder = RowsBuilder { table, columns: &columns, rows: Vec::new(), block: 0 };
    for (index, backbone) in backbones.iter().enumerate() {
        let backbone_numbers: Vec<&Arc<ResultRow>> =
            numbers.iter().filter(|number| number.record.condition.backbone == *backbone).collect();
        builder.add_backbone(index, &backbone_numbers, &depths[index])?;
    }
    let mut rows = builder.rows;
    distinguish_rows(table, &mut rows);
    let mut laid_out = Table {
        title: description.title.clone(),
        caption: description.caption.clone().unwrap_or_default(),
        lead: table.lead.iter().map(table_header).collect(),
        groups,
        columns,
        rows: rows.into_iter().map(|layout| layout.row).collect(),
        against: table.against.clone(),
        ..Table::default()
    }
    .ranked();
    for shown in laid_out.rows.iter_mut().flat_map(|row| row.cells.iter_mut()).flatten() {
        shown.comparison = compare(&shown.number, paper, &description.tolerance);
    }
    Ok(laid_out)
}

struct RowsBuilder<'a> {
    table: &'a TableEntry,
    columns: &'a [NumberColumn],
    rows: Vec<LayoutRow>,
    /// Index of the current block, the rows whose values are ranked together.
    block: usize,
}

impl RowsBuilder<'_> {
    /// Adds the rows for the backbone with the given index.
    fn add_backbone(&mut self, backbone: usize, numbers: &[&Arc<ResultRow>], depths: &[Depth]) -> Result<()> {
        let table = self.table;
        let (dense, pruned): (Vec<&Arc<ResultRow>>, Vec<&Arc<ResultRow>>) =
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
            let step_numbers: Vec<&Arc<ResultRow>> =
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

    /// Adds the rows of an entry: one per method, or several if its numbers differ in their settings.
    fn add_methods(&mut self, backbone: usize, entry: &RowEntry, numbers: &[&Arc<ResultRow>]) -> Result<()> {
        for (criterion, recovery) in entry.criterion.iter().flat_map(|c| entry.recovery.iter().map(move |r| (c, r))) {
            let method_numbers = numbers.iter().copied().filter(|number| {
                let condition = &number.record.condition;
                condition.criterion == *criterion
                    && condition.recovery == *recovery
                    && condition.finetuned == entry.finetuned
            });
            for (_, variant_numbers) in group_by_key(method_numbers.map(|number| (variant_key(number), number))) {
                self.add_row(backbone, false, &variant_numbers)?;
            }
        }
        Ok(())
    }

    /// Adds a row unless none of its columns has a number.
    fn add_row(&mut self, backbone: usize, dense: bool, numbers: &[&Arc<ResultRow>]) -> Result<()> {
        let Self { table, columns, .. } = *self;
        let cells = columns.iter().map(|column| find_number(numbers, column)).collect::<Result<Vec<_>>>()?;
        let (Some(first), false) = (numbers.first(), cells.iter().all(Option::is_none)) else { return Ok(()) };
        let ours = recovery::is_ours(&first.record.condition.recovery);
        let lead = table.lead.iter().map(|lead| row_header_text(*lead, first, table)).collect();
        let cells = columns.iter().zip(cells).map(|(column, number)| Some(format_number(number?, column))).collect();
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

/// Table row together with its first number, which provides the labels of the row.
struct LayoutRow {
    row: TableRow,
    first: Arc<ResultRow>,
}

fn operator_sequences(number: &ResultRow) -> Option<usize> {
    number.setup.variant.get(settings::OPERATOR_SEQUENCES)?.as_u64()?.try_into().ok()
}

/// Returns the key that distinguishes the rows of a method: the calibration and all settings except the depth.
fn variant_key(number: &ResultRow) -> (String, Settings) {
    let mut settings = Settings::clone(&number.setup.variant);
    settings.remove(settings::DEPTH);
    (number.record.condition.calibration.clone(), settings)
}

/// Returns the distinct depths of a backbone's pruned rows, with depths in whole layers first.
fn pruned_depths(numbers: &[Arc<ResultRow>], backbone: &str) -> Vec<Depth> {
    let conditions = numbers.iter().map(|number| &number.record.condition);
    let pruned = conditions.filter(|condition| condition.backbone == backbone && condition.criterion != DENSE);
    let mut depths = distinct(pruned.map(Condition::cut_depth).collect::<Vec<_>>().iter());
    depths.sort_unstable_by_key(|depth| (depth.unit, depth.count));
    depths
}

/// Returns the depths of the column groups, indexed by `[group][backbone]`.
///
/// Depths of different backbones are aligned by rank if all backbones have the same number of depths and no depth would
/// be in two groups. Otherwise each distinct depth forms a group.
fn group_depths(depths: &[Vec<Depth>]) -> Vec<Vec<Option<Depth>>> {
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

/// Returns the distinct indices at which `depth` occurs in the lists of `depths`.
fn positions(depths: &[Vec<Depth>], depth: Depth) -> BTreeSet<usize> {
    depths.iter().filter_map(|row| row.iter().position(|known| *known == depth)).collect()
}

/// Headings with the number of columns they span.
type GroupHeads = Vec<(String, usize)>;

/// Builds the columns for a table's metrics, and the headings above them. Skips metrics that were not measured, because
/// profiles may differ in their texts, their tasks and the prompts that they time.
fn build_columns(table: &TableEntry, numbers: &[Arc<ResultRow>]) -> Result<(Vec<NumberColumn>, GroupHeads)> {
    // A latency metric expands to one column for each prompt length and batch size.
    let prompts =
        |metric: &Metric| {
            let metrics = numbers.iter().map(|number| &number.metric);
            distinct(metrics.filter(|candidate| {
                candidate.id != metric.id && candidate.is_latency() && candidate.family() == metric.id
            }))
        };
    let is_any_measured = table.metrics.iter().any(|id| find_metric(numbers, id).is_some());
    let mut measured = Vec::new();
    let mut headings = Vec::new();
    for id in &table.metrics {
        let found = find_metric(numbers, id);
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
        let columns: Vec<NumberColumn> =
            metrics.into_iter().flat_map(|metric| build_metric_columns(numbers, &metric)).collect();
        headings.push((head, columns.len()));
        measured.extend(columns);
    }
    Ok((measured, headings))
}

/// Returns the measured metrics for the same text or task that the table does not request. Their columns follow the
/// metric's column.
fn related_metrics(table: &TableEntry, numbers: &[Arc<ResultRow>], metric: &Metric) -> Vec<Metric> {
    let others = metric.siblings().into_iter().filter(|other| !table.metrics.contains(&other.id));
    others.filter_map(|other| find_metric(numbers, &other.id)).collect::<Vec<_>>()
}

/// Returns the columns for a metric. A metric that was measured with several protocols has one column per protocol.
fn build_metric_columns(numbers: &[Arc<ResultRow>], metric: &Metric) -> Vec<NumberColumn> {
    let selected = numbers.iter().filter(|number| number.metric.id == metric.id);
    let columns = distinct(selected.map(|number| &number.column));
    if columns.len() < 2 {
        return vec![NumberColumn::new(metric.clone(), metric.label.clone())];
    }
    columns
        .into_iter()
        .map(|name| NumberColumn { column: Some(name.clone()), ..NumberColumn::new(metric.clone(), name) })
        .collect()
}

/// Returns the metric with this id, or `None` if it was not measured.
fn find_metric(numbers: &[Arc<ResultRow>], id: &str) -> Option<Metric> {
    numbers.iter().find(|number| number.metric.id == id).map(|number| number.metric.clone())
}

/// Distinguishes rows with equal labels by adding the smallest sufficient set of settings to their labels.
fn distinguish_rows(table: &TableEntry, rows: &mut [LayoutRow]) {
    let unrepaired = rows.iter().filter(|row| row.first.record.condition.recovery == recovery::NONE);
    let unrepaired: Vec<_> = unrepaired.map(baseline_key).collect();
    let names = rows.iter().map(|row| {
        let cut = Some(baseline_key(row)).filter(|cut| table.across_depths && unrepaired.contains(cut));
        (row.row.lead.clone(), cut)
    });
    let names: Vec<_> = names.collect();
    let settings: Vec<&Settings> = rows.iter().map(|row| &*row.first.setup.variant).collect();
    let labels = settings::distinct_labels(&names, |(lead, _)| lead.last().cloned().unwrap_or_default(), &settings);
    for (row, label) in rows.iter_mut().zip(labels) {
        if let Some(last) = row.row.lead.last_mut() {
            *last = label;
        }
    }
}

/// Returns the key (backbone, block, criterion) that a repaired row shares with its unrepaired baseline row.
fn baseline_key(layout: &LayoutRow) -> (usize, usize, String) {
    (layout.row.backbone, layout.row.block, layout.first.record.condition.criterion.clone())
}

pub(super) fn with_notes(mut table: Table, profile: &str, notes: Vec<String>) -> Table {
    table.protocol = protocol_sentence(profile, table.numbers().map(|(_, shown)| &*shown.number));
    table.notes = notes;
    table
}

/// Repeats the columns for each depth group and returns them with the headings above them.
fn repeat_for_depths(
    columns: Vec<NumberColumn>,
    backbones: &[String],
    depth_groups: Option<&[Vec<Option<Depth>>]>,
) -> (GroupHeads, Vec<NumberColumn>) {
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
        depth_groups
            .iter()
            .flat_map(|depths| {
                let depths: BTreeMap<_, _> = backbones.iter().cloned().zip(depths.iter().copied()).collect();
                columns.iter().map(move |column| NumberColumn { depths: Some(depths.clone()), ..column.clone() })
            })
            .collect(),
    )
}

fn depth_head(depth: Depth) -> String {
    if depth.is_in_layers() { format!("{depth}-layer") } else { depth.to_string() }
}

/// Finds the number in a row that belongs to a column, or else a failed number of the row.
fn find_number<'n>(row: &[&'n Arc<ResultRow>], column: &NumberColumn) -> Result<Option<&'n Arc<ResultRow>>> {
    let mut numbers = column.numbers(row);
    match (numbers.next(), numbers.next()) {
        (Some(number), None) => Ok(Some(number)),
        (Some(first), Some(second)) => Err(Error::bad_input("two numbers of the grid belong to the same table cell")
            .expected("cells that differ in a setting")
            .found(format!("`{}` and `{}`", first.cell, second.cell))
            .hint(
                "add the option in which the cells differ to the artifact's `named_options`, \
                 or remove one of the cells",
            )),
        // A failed cell has no score, but its column shows the failure.
        (None, _) => {
            let mut shown = row.iter().copied().filter(|number| column.shows(&number.record.condition));
            Ok(shown.find(|number| number.failure.is_some()))
        }
    }
}

/// Returns whether a metric ignores the table's number of decimals. Latencies are too inaccurate for two decimals, and
/// divergences need more than two.
fn has_own_decimals(metric: &Metric) -> bool {
    metric.is_latency() || matches!(metric.source, MetricSource::Damage(..))
}

fn format_number(number: &Arc<ResultRow>, column: &NumberColumn) -> PrintedNumber {
    PrintedNumber::printed(number, column.decimals, if number.failure.is_none() { "—" } else { "failed" })
}

fn table_header(lead: &RowHeader) -> TableLead {
    match lead {
        RowHeader::Backbone => TableLead::text("Model").kind(RowHeaderKind::Spanning),
        RowHeader::Depth => TableLead::text("Lp/Lt").kind(RowHeaderKind::Fraction),
        RowHeader::Removed => TableLead::text("Removed"),
        RowHeader::Method => TableLead::text("Method"),
        RowHeader::Sequences => TableLead::text("Num. of sequences"),
    }
}

fn row_header_text(lead: RowHeader, number: &ResultRow, table: &TableEntry) -> String {
    let condition = &number.record.condition;
    match lead {
        RowHeader::Backbone => backbone_label(&condition.backbone).to_owned(),
        RowHeader::Depth => format!("{}/{}", condition.depth, condition.layers),
        RowHeader::Removed if condition.criterion == DENSE => "—".to_owned(),
        RowHeader::Removed => condition.cut_depth().describe(),
        RowHeader::Method if table.lead.contains(&RowHeader::Removed) => {
            variant_label(&condition.criterion, &condition.recovery)
        }
        RowHeader::Method if condition.recovery == recovery::NONE => criterion::label(&condition.criterion).to_owned(),
        RowHeader::Method => {
            let below = if table.across_depths { "+ " } else { "" };
            let trained = if condition.finetuned { " + FT" } else { "" };
            format!("{below}{}{trained}", recovery::heading(&condition.recovery))
        }
        RowHeader::Sequences => {
            number.setup.variant.get(settings::OPERATOR_SEQUENCES).map_or(String::new(), ToString::to_string)
        }
    }
}

/// Returns the label for a variant, composed of its criterion and its recovery: `LLM-Streamline + Mean change`.
pub(super) fn variant_label(criterion: &str, recovery: &str) -> String {
    let cut = criterion::label(criterion);
    match recovery {
        recovery::NONE => cut.to_owned(),
        repair => format!("{cut} + {}", recovery::heading(repair)),
    }
}
