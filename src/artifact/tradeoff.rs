//! Pareto figure for a backbone, based on the same numbers as its table.

use std::sync::Arc;

use super::layout::cut_and_repair;
use crate::artifact::figure::{Axis, Pareto, ParetoPanel, ParetoPoint, ParetoSeries, Scale};
use crate::criterion::DepthUnit;
use crate::error::{Error, Result};
use crate::grid::FigureEntry;
use crate::metric::{Direction, PARAMETERS_REMOVED, Unit};
use crate::results::record::{Condition, DENSE};
use crate::results::{Measurement, distinct};

/// Builds the figure from the numbers for one backbone.
///
/// # Errors
/// Fails if the grid does not measure the percentage of parameters removed.
pub(super) fn pareto(entry: &FigureEntry, numbers: &[&Arc<Measurement>]) -> Result<Pareto> {
    let sizes = filter_by_metric(numbers, PARAMETERS_REMOVED.id);
    if sizes.is_empty() {
        return Err(Error::bad_input("no sizes for the Pareto figure")
            .expected(format!("the metric `{}`", PARAMETERS_REMOVED.id))
            .hint("add it to `evaluate: {metrics: […]}` in the grid"));
    }
    let pruned: Vec<&Measurement> = sizes.into_iter().filter(|size| size.record.condition.criterion != DENSE).collect();
    let keys: Vec<SeriesKey> = pruned.iter().map(|size| SeriesKey::from_condition(&size.record.condition)).collect();
    let series = distinct(&keys).into_iter().map(|key| {
        let members = pruned.iter().zip(&keys).filter(|(_, other)| **other == key).map(|(size, _)| *size);
        let points = members.filter_map(|size| point(size, entry, numbers));
        ParetoSeries { label: key.label(&keys), points: points.collect() }
    });
    Ok(Pareto {
        x: Axis { label: "Parameters kept".to_owned(), unit: "%".to_owned(), scale: Scale::Linear },
        series: series.collect(),
        panels: entry.metrics.iter().map(|metric| panel(metric, entry.log, numbers)).collect(),
    })
}

/// Returns the numbers for a metric, one per cell.
fn filter_by_metric<'n>(numbers: &[&'n Arc<Measurement>], metric: &str) -> Vec<&'n Measurement> {
    numbers.iter().filter(|number| number.record.metric == metric).map(|number| &***number).collect()
}

/// Key of a series: its method (selection and repair) and the unit in which it removes parts of the model.
#[derive(Debug, Clone, PartialEq)]
struct SeriesKey {
    method: String,
    unit: DepthUnit,
}

impl SeriesKey {
    fn from_condition(condition: &Condition) -> Self {
        Self { method: cut_and_repair(condition), unit: condition.unit }
    }

    /// Returns the name of the method. Adds the unit if another series has the same method.
    fn label(&self, all: &[Self]) -> String {
        let is_ambiguous = all.iter().any(|other| other.method == self.method && other.unit != self.unit);
        if is_ambiguous { format!("{} ({})", self.method, self.unit.plural()) } else { self.method.clone() }
    }
}

/// Returns the point for a cell, or `None` if its size is unknown.
fn point(size: &Measurement, entry: &FigureEntry, numbers: &[&Arc<Measurement>]) -> Option<ParetoPoint> {
    let value_of = |metric: &String| {
        let found = filter_by_metric(numbers, metric).into_iter().find(|number| number.cell == size.cell)?;
        found.record.value.filter(|_| found.failure.is_none())
    };
    Some(ParetoPoint {
        x: 100.0 - size.record.value?,
        values: entry.metrics.iter().map(value_of).collect(),
        label: size.record.condition.cut_depth().words(),
    })
}

fn panel(metric: &str, log: bool, numbers: &[&Arc<Measurement>]) -> ParetoPanel {
    let all = filter_by_metric(numbers, metric);
    let known = all.first().map(|number| &number.metric);
    let label = known.map_or_else(
        || metric.to_owned(),
        |known| match known.text() {
            Some(text) => format!("{} on {text}", known.head),
            None => known.label.clone(),
        },
    );
    let unit = if known.is_some_and(|known| known.unit == Unit::Nats) { "nats" } else { "" };
    let dense = all.iter().find(|number| number.record.condition.criterion == DENSE);
    ParetoPanel {
        axis: Axis { label, unit: unit.to_owned(), scale: if log { Scale::Log } else { Scale::Linear } },
        is_higher_better: known.is_some_and(|known| known.direction == Direction::Higher),
        dense: dense.and_then(|number| number.record.value).filter(|value| *value > 0.0),
    }
}
