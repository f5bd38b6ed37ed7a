//! What a grid's cells measured, as numbers in the paper's words, with what a paired test needs of each.

use std::collections::BTreeSet;

use serde_json::Value;

use super::setup::{Calibrated, Setup};
use crate::exec::{CellResult, GridOutcome};
use crate::grid::{Cell, Grid, Method};
use crate::metric::{self, Metric};
use crate::record::{Condition, DENSE, Record};
use crate::recovery;
use crate::report::{Protocol, stem};

/// A number and where it comes from.
#[derive(Debug, Clone)]
pub struct Number {
    pub record: Record,
    /// The record's metric with its direction and its print.
    pub metric: Metric,
    /// How it was made.
    pub setup: Setup,
    pub sample: Sample,
    /// The cell's place in the outcome.
    pub cell: usize,
    /// Why there is no value.
    pub failure: Option<String>,
}

/// The items behind a number, in the same order for every variant of a backbone.
#[derive(Debug, Clone, PartialEq)]
pub enum Sample {
    None,
    /// Whether each document was answered rightly.
    Right(Vec<bool>),
    /// The same for each task of an average.
    Tasks(Vec<Vec<bool>>),
    /// The loss of each window.
    Losses(Vec<f64>),
}

/// All numbers of an outcome, cell by cell. `named` are the options that are part of a method's name.
pub fn numbers(grid: &Grid, outcome: &GridOutcome, named: &[String]) -> Vec<Number> {
    let labels = Labels::of(outcome, named);
    let mut numbers = Vec::new();
    for (place, result) in outcome.cells.iter().enumerate() {
        let condition = labels.condition(result);
        let calibration = Calibrated::of(grid, &result.cell);
        let mut push = |metric: Metric, scored: &[Protocol], value: Option<f64>, error: Option<f64>, sample: Sample| {
            let value = value.filter(|value| value.is_finite());
            let record = Record { condition: condition.clone(), metric: metric.id.clone(), value, error };
            let setup = Setup { scored: scored.to_vec(), calibration: calibration.clone() };
            numbers.push(Number { record, metric, setup, sample, cell: place, failure: result.failure.clone() });
        };
        texts(grid, outcome, result, &mut push);
        tasks(grid, outcome, result, &mut push);
        boundaries(result, reference(outcome, &result.cell), &mut push);
    }
    numbers
}

type Push<'a> = dyn FnMut(Metric, &[Protocol], Option<f64>, Option<f64>, Sample) + 'a;

fn texts(grid: &Grid, outcome: &GridOutcome, result: &CellResult, push: &mut Push<'_>) {
    let (mut values, mut scored) = (Vec::new(), Vec::new());
    let read = outcome.texts.get(&result.cell.backbone);
    let unlike = outcome.unlike_vocabularies(grid);
    for (place, text) in grid.evaluate.perplexity.iter().enumerate() {
        let value = result.perplexity.get(place).copied().flatten();
        let losses = result.losses.get(place).cloned().flatten();
        let protocol = Protocol::text(grid, text, read.and_then(|texts| texts.get(place).copied().flatten()));
        values.push(value);
        scored.push(protocol.clone());
        if unlike {
            let bits = outcome.bits_per_byte(result, place, text.length);
            push(Metric::bits_per_byte(stem(&text.corpus)), std::slice::from_ref(&protocol), bits, None, Sample::None);
        }
        push(protocol.measures(), &[protocol], value, None, losses.map_or(Sample::None, Sample::Losses));
    }
    if values.len() > 1 {
        push(metric::PERPLEXITY.metric(), &scored, mean(&values), None, Sample::None);
    }
}

fn tasks(grid: &Grid, outcome: &GridOutcome, result: &CellResult, push: &mut Push<'_>) {
    let (mut all, mut values, mut scored, mut variance) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    for (place, used) in grid.evaluate.tasks.iter().enumerate() {
        let protocol: Vec<Protocol> = outcome.task(used).map(|of| Protocol::task(grid, used, of)).into_iter().collect();
        scored.extend(protocol.clone());
        let Some(scores) = result.tasks.get(place).and_then(Option::as_ref) else {
            values.push(None);
            push(Metric::task(&used.name), &protocol, None, None, Sample::None);
            continue;
        };
        let measure = scores.result.column();
        let metric = scores.result.task.column;
        let right: Vec<bool> = scores.documents.iter().map(|document| document.right(metric)).collect();
        all.push(right.clone());
        values.push(Some(100.0 * measure.value));
        variance += measure.stderr.map_or(f64::NAN, |error| (100.0 * error).powi(2));
        let error = measure.stderr.map(|error| 100.0 * error);
        push(Metric::task(&used.name), &protocol, Some(100.0 * measure.value), error, Sample::Right(right));
    }
    if values.len() > 1 {
        let average = mean(&values);
        let error = average.and(Some(variance.sqrt() / values.len() as f64)).filter(|error| error.is_finite());
        push(
            metric::ACCURACY.metric(),
            &scored,
            average,
            error,
            if average.is_some() { Sample::Tasks(all) } else { Sample::None },
        );
    }
}

/// What is known of the repair itself (paper figures 1, 3 and 4); of several boundaries the mean. A pruned cell that failed
/// has errors without a value: what is missing must not look as if nobody had asked for it.
fn boundaries(result: &CellResult, none: Option<&CellResult>, push: &mut Push<'_>) {
    if result.boundaries.is_empty() {
        if result.failure.is_some() && !result.cell.is_dense() {
            push(metric::BOUNDARY_ERROR.metric(), &[], None, None, Sample::None);
            push(metric::CHANNEL_ERROR.metric(), &[], None, None, Sample::None);
        }
        return;
    }
    let each = |of: &dyn Fn(&recovery::RepairMetrics) -> f64| {
        let values: Vec<Option<f64>> = result.boundaries.iter().map(|boundary| Some(of(&boundary.numbers))).collect();
        mean(&values)
    };
    push(metric::BOUNDARY_ERROR.metric(), &[], each(&|of| of.boundary_mae), None, Sample::None);
    push(metric::CHANNEL_ERROR.metric(), &[], each(&|of| median(&of.boundary_mae_by_channel)), None, Sample::None);
    if each(&|of| of.m_norm).is_some_and(|norm| norm > 0.0) {
        push(metric::SYMMETRIC.metric(), &[], each(&|of| of.m_symmetric_norm / of.m_norm), None, Sample::None);
        push(metric::ANTISYMMETRIC.metric(), &[], each(&|of| of.m_antisymmetric_norm / of.m_norm), None, Sample::None);
    }
    if let Some(none) = none {
        let channels = |result: &CellResult| -> Vec<f64> {
            result.boundaries.iter().flat_map(|boundary| boundary.numbers.boundary_mae_by_channel.clone()).collect()
        };
        let (own, base) = (channels(result), channels(none));
        if own.len() == base.len() {
            let reduced = own.iter().zip(&base).filter(|(own, base)| own < base).count();
            push(metric::CHANNELS_REDUCED.metric(), &[], Some(reduced as f64 / own.len() as f64), None, Sample::None);
        }
    }
}

/// The cell that differs from this one in having no recovery.
pub(super) fn reference<'a>(outcome: &'a GridOutcome, cell: &Cell) -> Option<&'a CellResult> {
    outcome.cells.iter().find(|other| {
        other.cell.recovery.as_ref().is_some_and(|recovery| recovery.name == recovery::NONE)
            && (&other.cell.backbone, &other.cell.criterion, other.cell.depth, &other.cell.calibration)
                == (&cell.backbone, &cell.criterion, cell.depth, &cell.calibration)
    })
}

/// How conditions are called, which depends on what varies in the grid.
struct Labels<'a> {
    named: &'a [String],
    /// Whether the number of sequences varies.
    sequences: bool,
    /// Of the dense backbone, which needs none.
    calibration: String,
}

impl<'a> Labels<'a> {
    fn of(outcome: &GridOutcome, named: &'a [String]) -> Self {
        let used = || outcome.cells.iter().filter_map(|result| result.cell.calibration.as_ref());
        let sizes: BTreeSet<usize> = used().map(|calibration| calibration.operator_sequences).collect();
        let calibration = used().next().map(|calibration| stem(&calibration.corpus).to_owned()).unwrap_or_default();
        Self { named, sequences: sizes.len() > 1, calibration }
    }

    fn condition(&self, result: &CellResult) -> Condition {
        let cell = &result.cell;
        Condition {
            backbone: cell.backbone.clone(),
            layers: result.layers,
            depth: cell.depth,
            criterion: cell.criterion.as_ref().map_or(DENSE.to_owned(), |method| self.method(method)),
            recovery: cell.recovery.as_ref().map_or(recovery::NONE.to_owned(), |method| self.method(method)),
            finetuned: false,
            calibration: match &cell.calibration {
                Some(of) if self.sequences => format!("{}:{}", stem(&of.corpus), of.operator_sequences),
                Some(of) => stem(&of.corpus).to_owned(),
                None => self.calibration.clone(),
            },
        }
    }

    /// `ghosted`, or `ghosted:svd` where the option is part of the name.
    fn method(&self, method: &Method) -> String {
        let mut name = method.name.clone();
        for option in self.named {
            let value = match method.options.get(option) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => continue,
            };
            name = format!("{name}:{}", recovery::word(&method.name, option, &value));
        }
        name
    }
}

/// None where one is missing.
fn mean(values: &[Option<f64>]) -> Option<f64> {
    let all: Option<Vec<f64>> = values.iter().copied().collect();
    all.filter(|all| !all.is_empty()).map(|all| all.iter().sum::<f64>() / all.len() as f64)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_lacks_what_any_part_lacks() {
        assert_eq!(mean(&[Some(1.0), Some(3.0)]), Some(2.0));
        assert_eq!(mean(&[Some(1.0), None]), None);
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn a_failed_cell_has_boundary_errors_without_a_value() {
        let cell = |criterion: Option<&str>| Cell {
            backbone: "a".into(),
            criterion: criterion.map(Method::named),
            depth: 4,
            recovery: criterion.map(|_| Method::named("ghosted")),
            calibration: None,
        };
        let pushed = |cell, failure: Option<&str>| {
            let mut all = Vec::new();
            let result = CellResult::unmeasured(cell, 16, failure.map(str::to_owned));
            boundaries(&result, None, &mut |metric, _, value, _, _| all.push((metric, value)));
            all
        };
        let missing = [&metric::BOUNDARY_ERROR, &metric::CHANNEL_ERROR].map(|word| (word.metric(), None));
        assert_eq!(pushed(cell(Some("sleb")), Some("it failed")), missing);
        assert_eq!(pushed(cell(Some("sleb")), None), []);
        assert_eq!(pushed(cell(None), Some("it failed")), []);
    }

    #[test]
    fn a_median_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
