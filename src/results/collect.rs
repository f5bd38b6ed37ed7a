//! From a grid's outcome to its results, in the paper's words.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use super::measurement::{Calibrated, CellSummary, Measurement, Results, Sample, Setup};
use super::record::{Condition, DENSE, Record};
use super::{Asked, Factors, Protocol, factors, stem};
use crate::evaluate::perplexity::Losses;
use crate::exec::{CellResult, GridOutcome};
use crate::grid::{Cell, Grid, Method};
use crate::metric::{self, Metric};
use crate::recovery;
use crate::stage::latency::LatencyResult;
use crate::tasks::{self, Measure, TaskResult};

/// What an outcome has measured, cell by cell. `named` are the options that are part of a method's name.
pub fn collect(grid: &Grid, outcome: &GridOutcome, named: &[String]) -> Results {
    let labels = Labels::of(outcome, named);
    let mut cells = Vec::new();
    for result in &outcome.cells {
        let mut numbers = Vec::new();
        let (condition, cell) = (labels.condition(result), result.cell.to_string());
        let calibration = calibrated(grid, &result.cell);
        let variant = Arc::new(factors::of_cell(&result.cell));
        let (told, engine) = (Arc::new(labels.told(&variant)), outcome.engines.get(&result.cell.backbone).copied());
        let mut push = |of: Measured<'_>| {
            let Measured { metric, asked, scored, value, error, sample, measure, measured } = of;
            let value = value.filter(|value| value.is_finite());
            let record = Record { condition: condition.clone(), metric: metric.id.clone(), value, error };
            let unidentified = grid.backbones.get(&result.cell.backbone).and_then(|of| of.unidentified.clone());
            let repairs = result.boundaries.iter().any(|boundary| boundary.undetermined);
            let undetermined = repairs || !result.selection_notes.is_empty();
            let (variant, told, calibration) = (Arc::clone(&variant), Arc::clone(&told), calibration.clone());
            let scored = scored.to_vec();
            let measures = result.measures.get(measured).unwrap_or_default().to_vec();
            let identity = result.identity.clone();
            let setup = Setup {
                identity,
                measures,
                variant,
                measure,
                told,
                engine,
                scored,
                calibration,
                unidentified,
                undetermined,
            };
            let asked = asked.unwrap_or_else(|| Asked::besides(&metric));
            let (cell, failure) = (cell.clone(), result.failure.clone());
            numbers.push(Arc::new(Measurement { cell, asked, record, metric, setup, sample, failure }));
        };
        texts(grid, outcome, result, &mut push);
        tasks(grid, outcome, result, &mut push);
        latencies(grid, outcome, result, &mut push);
        boundaries(result, reference(outcome, &result.cell), &mut push);
        cells.push(CellSummary { numbers, ..summary(result) });
    }
    Results::new(cells, Protocol::columns(grid, outcome))
}

fn summary(result: &CellResult) -> CellSummary {
    let cell = &result.cell;
    CellSummary {
        name: cell.to_string(),
        backbone: cell.backbone.clone(),
        criterion: cell.criterion.as_ref().map(ToString::to_string),
        depth: cell.depth,
        removed: result.removed.clone(),
        layers: result.layers,
        recovery: cell.recovery.as_ref().map(ToString::to_string),
        calibration: cell.calibration.as_ref().map(ToString::to_string),
        factors: Arc::new(factors::of_cell(cell)),
        written: factors::written(cell),
        seconds: result.seconds,
        notes: result.notes(),
        failure: result.failure.clone(),
        missing: result.missing.clone(),
        numbers: Vec::new(),
    }
}

fn calibrated(grid: &Grid, cell: &Cell) -> Option<Calibrated> {
    let calibration = cell.calibration.clone()?;
    let corpus = grid.corpora.get(&calibration.corpus);
    Some(Calibrated {
        rule: corpus.map(|corpus| corpus.rule.clone()).unwrap_or_default(),
        shards: corpus.and_then(|corpus| corpus.stream.as_ref()).map(|stream| stream.shards),
        generated: corpus.is_some_and(|corpus| corpus.generated),
        repaired: cell.recovery.as_ref().is_some_and(|recovery| recovery.name != recovery::NONE),
        finetune: cell.recovery.as_ref().and_then(|of| recovery::finetune(&of.name, &of.options).ok().flatten()),
        calibration,
    })
}

/// A number before its cell is said.
struct Measured<'a> {
    metric: Metric,
    /// None of what stands in no table of a run.
    asked: Option<Asked>,
    scored: &'a [Protocol],
    value: Option<f64>,
    error: Option<f64>,
    sample: Sample,
    /// The settings of what is measured.
    measure: Factors,
    /// The places of its measures among those of its cell.
    measured: Range<usize>,
}

impl Measured<'_> {
    /// Without a protocol, an error or items.
    fn bare(metric: Metric, value: Option<f64>) -> Self {
        let (sample, measure) = (Sample::None, Factors::new());
        Self { metric, asked: None, scored: &[], value, error: None, sample, measure, measured: 0..0 }
    }
}

type Push<'a> = dyn FnMut(Measured<'_>) + 'a;

fn texts(grid: &Grid, outcome: &GridOutcome, result: &CellResult, push: &mut Push<'_>) {
    let (mut values, mut errors, mut scored, mut all) = (Vec::new(), Vec::new(), Vec::new(), Factors::new());
    let read = outcome.texts.get(&result.cell.backbone);
    let unlike = outcome.unlike_vocabularies(grid);
    for (place, text) in grid.evaluate.perplexity.iter().enumerate() {
        let value = result.perplexity.get(place).copied().flatten();
        let losses = result.losses.get(place).cloned().flatten().map(|windows| Losses { windows });
        let error = losses.as_ref().and_then(Losses::standard_error).filter(|error| error.is_finite());
        let mean = losses.as_ref().map(Losses::mean);
        let sample = losses.map_or(Sample::None, |losses| Sample::Losses(losses.windows));
        let protocol = Protocol::text(grid, text, read.and_then(|texts| texts.get(place).copied().flatten()));
        let metric = protocol.measures();
        let limit = grid.corpora.get(&text.corpus).and_then(|corpus| corpus.limit);
        let measure =
            factors::below(&metric.id, &json!({"corpus": text.corpus, "length": text.length, "limit": limit}));
        all.extend(factors::below(&text.to_string(), &json!({"limit": limit})));
        values.push(value);
        errors.push(error);
        scored.push(protocol.clone());
        if unlike {
            let bits = Protocol::BitsPerByte { corpus: text.corpus.clone(), length: text.length };
            let value = outcome.bits_per_byte(result, place, text.length);
            let (metric, asked) = (bits.measures(), Some(bits.asked()));
            let scored = std::slice::from_ref(&protocol);
            let (measure, measured) = (measure.clone(), place..place + 1);
            // Bits are the mean loss in another unit, and a perplexity's error is that of the mean loss, times itself.
            let error = error.zip(value).zip(mean).zip(result.perplexity[place]);
            let error = error.map(|(((error, bits), mean), perplexity)| error / perplexity * bits / mean);
            let error = error.filter(|error| error.is_finite());
            push(Measured { metric, asked, scored, value, error, sample: Sample::None, measure, measured });
        }
        let asked = Some(protocol.asked());
        let measured = place..place + 1;
        push(Measured { metric, asked, scored: &[protocol], value, error, sample, measure, measured });
    }
    if values.len() > 1 {
        let value = mean(&values);
        // Of texts that have nothing in common.
        let squares: Option<f64> = errors.iter().map(|error| error.map(|error| error * error)).sum();
        let error = squares.map(|squares| squares.sqrt() / errors.len() as f64);
        let measured = 0..grid.evaluate.perplexity.len();
        push(Measured {
            scored: &scored,
            error,
            measure: all,
            measured,
            ..Measured::bare(metric::PERPLEXITY.metric(), value)
        });
    }
}

fn tasks(grid: &Grid, outcome: &GridOutcome, result: &CellResult, push: &mut Push<'_>) {
    let percent = |of: Measure| (Some(100.0 * of.value), of.stderr.map(|error| 100.0 * error));
    let (mut scored, mut all, mut answers): (Vec<Protocol>, Vec<Option<TaskResult>>, _) = Default::default();
    let (mut measures, first) = (Factors::new(), grid.evaluate.perplexity.len());
    for (place, used) in grid.evaluate.tasks.iter().enumerate() {
        let protocol: Vec<Protocol> = outcome.task(used).map(|of| Protocol::task(grid, used, of)).into_iter().collect();
        scored.extend(protocol.clone());
        let (metric, asked) = (Metric::task(&used.name), Some(Asked::Task(used.clone())));
        let scores = result.tasks.get(place).and_then(Option::as_ref);
        let (value, error) = scores.map_or((None, None), |of| percent(of.result.column()));
        let sample = scores.map_or(Sample::None, |of| {
            let kind = of.result.task.column;
            let right: Vec<bool> = of.answers.documents().map(|document| document.right(kind)).collect();
            Vec::push(&mut answers, right.clone());
            Sample::Right(right)
        });
        all.push(scores.map(|of| of.result.clone()));
        let measure = factors::below(&metric.id, used);
        measures.extend(factors::below(&used.to_string(), used));
        let measured = first + place..first + place + 1;
        push(Measured { metric, asked, scored: &protocol, value, error, sample, measure, measured });
    }
    if all.len() > 1 {
        let all: Option<Vec<TaskResult>> = all.into_iter().collect();
        let average = all.and_then(|all| tasks::average(&all));
        let (value, error) = average.map_or((None, None), percent);
        let sample = if value.is_some() { Sample::Tasks(answers) } else { Sample::None };
        let asked = Some(Asked::Average);
        let (metric, measure) = (metric::ACCURACY.metric(), measures);
        let measured = first..first + grid.evaluate.tasks.len();
        push(Measured { metric, asked, scored: &scored, value, error, sample, measure, measured });
    }
}

/// Time, speedup and memory over each prompt.
fn latencies(grid: &Grid, outcome: &GridOutcome, result: &CellResult, push: &mut Push<'_>) {
    for (place, prompt) in grid.evaluate.latency.iter().enumerate() {
        let of = result.latencies.get(place).and_then(Option::as_ref);
        let sample = match of {
            Some(of) if of.times.is_none() => Sample::OutOfMemory,
            _ => Sample::None,
        };
        for protocol in Protocol::latencies(grid, *prompt, &outcome.machine) {
            let (metric, asked) = (protocol.measures(), Some(protocol.asked()));
            let (value, error) = match metric.family() {
                id if id == metric::PREFILL.id => {
                    let spread = of.and_then(LatencyResult::spread);
                    (spread.map(|spread| spread.mean), spread.map(|spread| spread.deviation))
                }
                id if id == metric::SPEEDUP.id => {
                    let speedup = of.and_then(LatencyResult::speedup);
                    (speedup.map(|of| of.ratio), speedup.and_then(|of| of.half_width))
                }
                id if id == metric::MEMORY.id => (of.and_then(LatencyResult::memory_percent), None),
                _ => (of.and_then(LatencyResult::bytes).map(|bytes| bytes as f64 / 1e6), None),
            };
            let (scored, sample) = (std::slice::from_ref(&protocol), sample.clone());
            let measure = factors::below(metric.family(), prompt);
            let at = grid.evaluate.perplexity.len() + grid.evaluate.tasks.len() + place;
            push(Measured { metric, asked, scored, value, error, sample, measure, measured: at..at + 1 });
        }
    }
}

/// What is known of the repair itself (paper figures 1, 3 and 4); of several boundaries the mean. A pruned cell that failed
/// has errors without a value: what is missing must not look as if nobody had asked for it.
fn boundaries(result: &CellResult, none: Option<&CellResult>, push: &mut Push<'_>) {
    if result.boundaries.is_empty() {
        if (result.failure.is_some() || result.missing.is_some()) && !result.cell.is_dense() {
            push(Measured::bare(metric::BOUNDARY_ERROR.metric(), None));
            push(Measured::bare(metric::CHANNEL_ERROR.metric(), None));
        }
        return;
    }
    let each = |of: &dyn Fn(&recovery::RepairMetrics) -> f64| {
        let values: Vec<Option<f64>> = result.boundaries.iter().map(|boundary| Some(of(&boundary.numbers))).collect();
        mean(&values)
    };
    push(Measured::bare(metric::BOUNDARY_ERROR.metric(), each(&|of| of.boundary_mae)));
    push(Measured::bare(metric::CHANNEL_ERROR.metric(), each(&|of| median(&of.boundary_mae_by_channel))));
    if each(&|of| of.m_norm).is_some_and(|norm| norm > 0.0) {
        push(Measured::bare(metric::SYMMETRIC.metric(), each(&|of| of.m_symmetric_norm / of.m_norm)));
        push(Measured::bare(metric::ANTISYMMETRIC.metric(), each(&|of| of.m_antisymmetric_norm / of.m_norm)));
    }
    if let Some(none) = none {
        let channels = |result: &CellResult| -> Vec<f64> {
            result.boundaries.iter().flat_map(|boundary| boundary.numbers.boundary_mae_by_channel.clone()).collect()
        };
        let (own, base) = (channels(result), channels(none));
        if own.len() == base.len() {
            let reduced = own.iter().zip(&base).filter(|(own, base)| own < base).count();
            push(Measured::bare(metric::CHANNELS_REDUCED.metric(), Some(reduced as f64 / own.len() as f64)));
        }
    }
}

/// The cell that differs from this one in having no recovery.
fn reference<'a>(outcome: &'a GridOutcome, cell: &Cell) -> Option<&'a CellResult> {
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
            finetuned: cell.recovery.as_ref().is_some_and(|method| method.options.contains_key(recovery::FINETUNE)),
            calibration: match &cell.calibration {
                Some(of) if self.sequences => format!("{}:{}", stem(&of.corpus), of.operator_sequences),
                Some(of) => stem(&of.corpus).to_owned(),
                None => self.calibration.clone(),
            },
        }
    }

    /// The settings that a cell's condition says, beside its names.
    fn told(&self, variant: &Factors) -> BTreeSet<String> {
        let named =
            self.named.iter().flat_map(|option| ["criterion", "recovery"].map(|axis| format!("{axis}.{option}")));
        let sequences = self.sequences.then(|| factors::OPERATOR_SEQUENCES.to_owned());
        named.chain(sequences).filter(|name| variant.contains_key(name)).collect()
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
            criterion: criterion.map(Method::named),
            depth: 4,
            recovery: criterion.map(|_| Method::named("ghosted")),
            ..Cell::named("a", "a")
        };
        let pushed = |cell, failure: Option<&str>| {
            let mut all = Vec::new();
            let result = CellResult::unmeasured(cell, 16, failure.map(str::to_owned));
            boundaries(&result, None, &mut |of| all.push((of.metric, of.value)));
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
