//! Pareto figure for a backbone, based on the same numbers as its table.

use std::sync::Arc;

use super::layout::variant_label;
use crate::artifact::figure::{Axis, Pareto, ParetoPoint, ParetoRow, ParetoSeries, Scale};
use crate::criterion::DepthUnit;
use crate::error::{Error, Result};
use crate::grid::FigureEntry;
use crate::metric::{Direction, Metric, MetricSource, Unit};
use crate::results::number_record::{Condition, DENSE};
use crate::results::{ResultRow, distinct};

/// Builds the figure from the numbers for one backbone.
///
/// # Errors
/// Fails if the grid does not measure a cost, unless the cost is a latency and not the only cost.
pub(super) fn build_pareto(entry: &FigureEntry, numbers: &[&Arc<ResultRow>]) -> Result<Pareto> {
    let costs = cost_metrics(entry, numbers)?;
    let first_costs = costs.first().map(|cost| filter_by_metric(numbers, &cost.id)).unwrap_or_default();
    let pruned: Vec<&ResultRow> =
        first_costs.into_iter().filter(|number| number.record.condition.criterion != DENSE).collect();
    let keys: Vec<SeriesKey> =
        pruned.iter().map(|number| SeriesKey::from_condition(&number.record.condition)).collect();
    let series = distinct(&keys).into_iter().map(|key| {
        let members = pruned.iter().zip(&keys).filter(|(_, other)| **other == key).map(|(number, _)| *number);
        let points = members.map(|number| to_point(number, entry, &costs, numbers));
        ParetoSeries { label: key.label(&keys), points: points.collect() }
    });
    Ok(Pareto {
        series: series.collect(),
        rows: entry.metrics.iter().map(|metric| to_row(metric, entry.log, numbers)).collect(),
        columns: costs.iter().map(cost_axis).collect(),
    })
}

/// Returns the measured metrics for the costs. A latency has one metric for each prompt length and batch size, or none
/// if the grid times no prompts.
fn cost_metrics(entry: &FigureEntry, numbers: &[&Arc<ResultRow>]) -> Result<Vec<Metric>> {
    let mut costs = Vec::new();
    for id in &entry.costs {
        let metrics = numbers.iter().map(|number| &number.metric).filter(|metric| metric.family() == id);
        let measured = distinct(metrics);
        let is_time = Metric::find(id).is_ok_and(|metric| metric.is_latency());
        if measured.is_empty() && (!is_time || entry.costs.len() == 1) {
            let hint = match is_time {
                true => "add a prompt to `evaluate.latency` in the grid".to_owned(),
                false => format!("add `{id}` to `evaluate.metrics` in the grid"),
            };
            return Err(Error::bad_input("a cost of the Pareto figure is not measured")
                .expected(format!("the metric `{id}`"))
                .hint(hint));
        }
        costs.extend(measured);
    }
    Ok(costs)
}

fn cost_axis(cost: &Metric) -> Axis {
    let entry = cost.entry();
    let (label, unit) = match (entry.source, cost.prompt()) {
        (MetricSource::Size(_), _) => (format!("{} kept", entry.label.trim_end_matches(" removed")), "%"),
        (_, Some(prompt)) => (format!("{}, {prompt} tokens", entry.label), ""),
        (_, None) => (entry.label.to_owned(), ""),
    };
    Axis { label, unit: unit.to_owned(), scale: Scale::Linear }
}

/// Returns the numbers for a metric, one per cell.
fn filter_by_metric<'n>(numbers: &[&'n Arc<ResultRow>], metric: &str) -> Vec<&'n ResultRow> {
    numbers.iter().filter(|number| number.record.metric == metric).map(|number| &***number).collect()
}

/// Key of a series: its method (criterion and recovery) and the unit of its depths, such as layers or attentions.
#[derive(Debug, Clone, PartialEq)]
struct SeriesKey {
    method: String,
    unit: DepthUnit,
}

impl SeriesKey {
    fn from_condition(condition: &Condition) -> Self {
        Self { method: variant_label(&condition.criterion, &condition.recovery), unit: condition.unit }
    }

    /// Returns the name of the method. Adds the unit if another series has the same method.
    fn label(&self, all: &[Self]) -> String {
        let is_ambiguous = all.iter().any(|other| other.method == self.method && other.unit != self.unit);
        if is_ambiguous { format!("{} ({})", self.method, self.unit.plural()) } else { self.method.clone() }
    }
}

/// Returns the point for the cell that `number` belongs to.
fn to_point(number: &ResultRow, entry: &FigureEntry, costs: &[Metric], numbers: &[&Arc<ResultRow>]) -> ParetoPoint {
    ParetoPoint {
        costs: costs.iter().map(|cost| find_cost(&number.cell, cost, numbers)).collect(),
        values: entry.metrics.iter().map(|metric| find_value(&number.cell, metric, numbers)).collect(),
        label: number.record.condition.cut_depth().describe(),
    }
}

/// Returns the value of a cost metric for a cell. Size metrics are converted from the percentage removed to the
/// percentage kept.
fn find_cost(cell: &str, cost: &Metric, numbers: &[&Arc<ResultRow>]) -> Option<f64> {
    let value = find_value(cell, &cost.id, numbers)?;
    Some(if matches!(cost.source, MetricSource::Size(_)) { 100.0 - value } else { value })
}

/// Returns the value of a metric for a cell, or `None` if the cell failed or the value is unknown.
fn find_value(cell: &str, metric: &str, numbers: &[&Arc<ResultRow>]) -> Option<f64> {
    numbers.iter().find(|number| number.record.metric == metric && number.cell == cell)?.valid_value()
}

fn to_row(metric: &str, log: bool, numbers: &[&Arc<ResultRow>]) -> ParetoRow {
    let all = filter_by_metric(numbers, metric);
    let measured = all.first().map(|number| &number.metric);
    let label = measured.map_or_else(
        || metric.to_owned(),
        |measured| match measured.text() {
            Some(text) => format!("{} on {text}", measured.head),
            None => measured.label.clone(),
        },
    );
    let unit = if measured.is_some_and(|measured| measured.unit == Unit::Nats) { "nats" } else { "" };
    let dense = all.iter().find(|number| number.record.condition.criterion == DENSE);
    ParetoRow {
        axis: Axis { label, unit: unit.to_owned(), scale: if log { Scale::Log } else { Scale::Linear } },
        is_higher_better: measured.is_some_and(|measured| measured.direction == Direction::Higher),
        dense: dense.and_then(|number| number.record.value).filter(|value| *value > 0.0),
    }
}
