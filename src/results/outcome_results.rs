//! Converts the outcome of a grid into results, with the names of metrics and methods that the paper uses.

use std::collections::BTreeSet;
use std::sync::Arc;

use ghostlab_definitions::results::Score;
use serde_json::{Value, json};

use super::number_record::{Condition, DENSE, Record};
use super::result_row::{CalibrationSummary, CellSummary, ResultRow, Results, Sample, Setup};
use super::{MeasuredProgram, Protocol, Settings, settings, stem};
use crate::grid::{Cell, EvalTask, Grid, Method, MethodAxis};
use crate::metric::{
    DECODE_SPEEDUP, ENTRIES, Metric, MetricEntry, MetricSource, MetricVisibility, RepairSample, SPEEDUP, TextSample,
};
use crate::pipeline::outcome::{CellResult, EvalResult, GridOutcome, NO_FILTER, displayed_score};
use crate::recovery::{self, RepairMetrics};
use crate::tasks::{Flip, Measure};

/// Collects the numbers in an outcome, cell by cell. The names of methods include the values of the options in
/// `named`.
pub fn collect(grid: &Grid, outcome: &GridOutcome, named: &[String]) -> Results {
    let labels = Labels::new(outcome, named);
    let columns = Protocol::columns(grid, outcome);
    let has_different_vocabularies = outcome.has_different_vocabularies(grid);
    // Derived metrics come before the metrics from which they are computed.
    let shown = ENTRIES
        .iter()
        .rev()
        .copied()
        .filter(|metric| metric.is_column(has_different_vocabularies, &grid.evaluate.metrics));
    let shown: Vec<&'static MetricEntry> = shown.collect();
    let cell = |result: &CellResult| {
        let variant = Arc::new(settings::from_cell(&result.cell));
        let undetermined = result.boundaries.iter().any(|boundary| boundary.undetermined);
        let setup = Setup {
            identity: result.identity.clone(),
            named_settings: Arc::new(labels.shown_settings(&variant)),
            calibration: summarize_calibration(grid, &result.cell),
            unidentified: grid
                .backbones
                .get(&result.cell.backbone)
                .and_then(|backbones| backbones.unidentified.clone()),
            undetermined: undetermined || !result.selection_notes.is_empty(),
            variant,
            ..Setup::default()
        };
        let condition = labels.condition(result);
        let mut numbers = CellRowsBuilder { grid, outcome, result, condition, setup, all: Vec::new() };
        numbers.add_texts(&shown);
        numbers.add_tasks(&shown);
        numbers.add_defined_tasks(&columns);
        numbers.add_latencies();
        numbers.add_sizes(&shown);
        for (metric, value) in repair_metrics(result, unrepaired_cell(outcome, &result.cell)) {
            let value = value.map(|value| Measure { value, stderr: None });
            numbers.push(metric.id.clone(), metric, numbers.setup.clone(), value, Sample::None);
        }
        summarize_cell(result, numbers.setup.variant, numbers.all)
    };
    let cells = outcome.cells.iter().map(cell).collect();
    Results { cells, protocols: columns }
}

fn summarize_cell(result: &CellResult, settings: Arc<Settings>, numbers: Vec<Arc<ResultRow>>) -> CellSummary {
    let is_complete = result.failure.is_none() && result.missing.is_none();
    CellSummary {
        cell: result.cell.clone(),
        removed: result.removed.clone(),
        programs: is_complete.then(|| MeasuredProgram::new(&result.removed, &result.boundaries)).into_iter().collect(),
        layers: result.layers,
        calibration: result.cell.calibration.as_ref().map(ToString::to_string),
        settings,
        seconds: result.seconds,
        notes: result.notes(),
        failure: result.failure.clone(),
        missing: result.missing.clone(),
        numbers,
    }
}

fn summarize_calibration(grid: &Grid, cell: &Cell) -> Option<CalibrationSummary> {
    let calibration = cell.calibration.clone()?;
    let corpus = grid.corpora.get(&calibration.corpus);
    Some(CalibrationSummary {
        rule: corpus.map(|corpus| corpus.rule.clone()).unwrap_or_default(),
        shards: corpus.and_then(|corpus| corpus.stream.as_ref()).map(|stream| stream.shards),
        generated: corpus.is_some_and(|corpus| corpus.generated),
        repaired: cell.recovery.as_ref().is_some_and(|recovery| recovery.name != recovery::NONE),
        finetune: cell.recovery.as_ref().and_then(|recovery| recovery.training),
        calibration,
    })
}

/// Builder for the rows of one cell.
struct CellRowsBuilder<'a> {
    grid: &'a Grid,
    outcome: &'a GridOutcome,
    result: &'a CellResult,
    condition: Condition,
    /// Setup that all numbers of the cell share. Its `measure` is empty.
    setup: Setup,
    all: Vec<Arc<ResultRow>>,
}

impl CellRowsBuilder<'_> {
    /// Builds the setup for a measurement on one text, task or prompt.
    fn build_setup<E, S, A>(
        &self,
        measured: Option<&EvalResult<A, E, S>>,
        measure: Settings,
        scored: Option<Protocol>,
    ) -> Setup {
        let measures = measured.map(|entry| Arc::clone(&entry.measure)).into_iter().collect();
        Setup { scored: scored.into_iter().collect(), measure, measures, ..self.setup.clone() }
    }

    /// Adds a number. If `column` is the metric id, the number does not appear in the tables of a run.
    fn push(&mut self, column: String, metric: Metric, setup: Setup, estimate: Option<Measure>, sample: Sample) {
        let record = Record {
            condition: self.condition.clone(),
            metric: metric.id.clone(),
            value: estimate.map(|estimate| estimate.value).filter(|value| value.is_finite()),
            error: estimate.and_then(|estimate| estimate.stderr),
        };
        let cell = self.result.cell.to_string();
        let failure = self.result.failure.clone();
        self.all.push(Arc::new(ResultRow { record, metric, cell, column, failure, sample, setup }));
    }

    fn add_texts(&mut self, shown: &[&'static MetricEntry]) {
        let grid = self.grid;
        let outcome = self.outcome;
        let result = self.result;
        let mut samples = Vec::new();
        let mut all = self.setup.clone();
        for text in &grid.evaluate.perplexity {
            let limit = grid.corpora.get(&text.corpus).and_then(|corpus| corpus.limit);
            let settings = json!({"corpus": text.corpus, "length": text.length, "limit": limit});
            let measured = result.text(text);
            let protocol = Protocol::text(grid, text, outcome.text_extent(result, text));
            let setup =
                self.build_setup(measured, settings::flatten_below(&protocol.measures().id, &settings), Some(protocol));
            let windows = result.text_sample(text);
            for entry in shown {
                match entry.source {
                    MetricSource::Text(_) => {}
                    MetricSource::Damage(..) if text.damage => {}
                    _ => continue,
                }
                let items =
                    windows.filter(|_| entry.test.is_some()).map(|windows| Sample::Losses(windows.by_window(entry)));
                let estimate = windows.and_then(|windows| windows.estimate(entry));
                let metric = entry.metric_for(stem(&text.corpus));
                self.push(entry.column_header(text), metric, setup.clone(), estimate, items.unwrap_or_default());
            }
            all.add_averaged(setup, settings::flatten_below(&text.to_string(), &json!({"limit": limit})));
            samples.push(windows);
        }
        if samples.len() < 2 {
            return;
        }
        let samples: Option<Vec<TextSample<'_>>> = samples.into_iter().collect();
        for metric in ENTRIES {
            let MetricSource::Texts(estimate) = metric.source else { continue };
            let estimate = samples.as_deref().and_then(estimate);
            self.push(metric.id.to_owned(), metric.metric(), all.clone(), estimate, Sample::None);
        }
    }

    /// Adds the metrics of the built-in tasks, and their average.
    fn add_tasks(&mut self, shown: &[&'static MetricEntry]) {
        let grid = self.grid;
        let outcome = self.outcome;
        let result = self.result;
        let mut answered = Vec::new();
        let mut all = self.setup.clone();
        for used in grid.evaluate.builtin() {
            let Some(task) = grid.task(used).builtin() else { continue };
            let accuracy = task.paper_metric.name();
            let measured = result.task(used);
            let protocol = outcome.task(used).and_then(|extent| Protocol::task(grid, used, extent));
            let setup = self.build_setup(measured, settings::flatten_below(&used.name, used), protocol);
            for entry in
                shown.iter().filter(|entry| matches!(entry.source, MetricSource::Task | MetricSource::Flips(_)))
            {
                let (estimate, sample) = self.measure_task(used, entry, accuracy, NO_FILTER);
                self.push(entry.column_header(used), entry.metric_for(&used.name), setup.clone(), estimate, sample);
            }
            all.add_averaged(setup, settings::flatten_below(&used.to_string(), used));
            let scores = measured.and_then(|measured| measured.sample.as_ref());
            answered.push(scores.and_then(|scores| {
                let Score { score: value, error: stderr, .. } = *scores.score(accuracy, NO_FILTER)?;
                Some((Measure { value, stderr }, scores.right(accuracy, NO_FILTER)?))
            }));
        }
        if answered.len() < 2 {
            return;
        }
        let answered: Option<Vec<(Measure, Vec<bool>)>> = answered.into_iter().collect();
        let answered: Option<(Vec<Measure>, Vec<Vec<bool>>)> = answered.map(|all| all.into_iter().unzip());
        for metric in ENTRIES {
            let MetricSource::Tasks(estimate) = metric.source else { continue };
            let (estimate, right) = answered.as_ref().map(|(all, right)| (estimate(all), right.clone())).unzip();
            let sample = right.filter(|_| metric.test.is_some()).map(Sample::Answers).unwrap_or_default();
            self.push(metric.head.to_owned(), metric.metric(), all.clone(), estimate.flatten(), sample);
        }
    }

    /// Returns the value of a task's score for a metric and filter, in the unit of `entry`, and the items of its paired
    /// test. If `entry` is a flip metric, the value is the rate of answers that flip relative to the dense model.
    fn measure_task(
        &self,
        task: &EvalTask,
        entry: &MetricEntry,
        metric: &str,
        filter: &str,
    ) -> (Option<Measure>, Sample) {
        let scores = self.result.task(task).and_then(|measured| measured.sample.as_ref());
        if let MetricSource::Flips(flip) = entry.source {
            let dense = self.outcome.dense_scores(&self.result.cell.backbone, task);
            let flips = scores.zip(dense).and_then(|(scores, dense)| scores.flips(dense, flip, metric, filter));
            return (flips.as_deref().and_then(Flip::rate), flips.map(Sample::of_task).unwrap_or_default());
        }
        let score = scores.and_then(|scores| scores.score(metric, filter));
        let right = scores.filter(|_| entry.test.is_some()).and_then(|scores| scores.right(metric, filter));
        let sample = right.map(Sample::of_task).or_else(|| {
            let metrics = &self.grid.task(task).definition().ok()?.metrics;
            let aggregation = metrics.iter().find(|other| other.kind.name() == metric)?.aggregation;
            scores?.losses(metric, filter, aggregation).map(Sample::Losses)
        });
        (score.map(|score| displayed_score(score, entry)), sample.unwrap_or_default())
    }

    /// Adds the metrics of the user-defined tasks and of their groups: first the scores, then the flips.
    fn add_defined_tasks(&mut self, columns: &[Protocol]) {
        let evaluate = &self.grid.evaluate;
        let result = self.result;
        let (flips, scores): (Vec<&Protocol>, Vec<&Protocol>) =
            columns.iter().partition(|protocol| matches!(protocol, Protocol::Defined { flips: Some(_), .. }));
        for protocol in scores.into_iter().chain(flips) {
            let Protocol::Defined { label, metric: name, filter, .. } = protocol else { continue };
            let metric = protocol.measures();
            let task = evaluate.defined().find(|task| task.to_string() == *label);
            let group = evaluate.groups.iter().find(|group| group.to_string() == *label);
            let (members, measure, (value, sample)) = match (task, group) {
                (Some(task), _) => (
                    vec![task.clone()],
                    settings::flatten_below(&metric.id, task),
                    self.measure_task(task, metric.entry(), name, filter),
                ),
                (None, Some(group)) => {
                    let scores = result.group(group).unwrap_or_default();
                    let score = scores.iter().find(|score| score.metric == *name && score.filter == *filter);
                    let members = group.group.tasks.iter().map(|name| group.task(name));
                    let value = score.map(|score| displayed_score(score, metric.entry()));
                    (members.collect(), settings::flatten_below(&metric.id, &group.how), (value, Sample::None))
                }
                (None, None) => continue,
            };
            let measures = members.iter().filter_map(|task| Some(Arc::clone(&result.task(task)?.measure))).collect();
            let setup = Setup { scored: vec![protocol.clone()], measure, measures, ..self.setup.clone() };
            self.push(protocol.column(), metric, setup, value, sample);
        }
    }

    /// Adds the size metrics that are shown in the table.
    fn add_sizes(&mut self, shown: &[&'static MetricEntry]) {
        for entry in shown {
            let MetricSource::Size(estimate) = entry.source else { continue };
            let value = self.result.savings.as_ref().map(estimate).filter(|value| value.is_finite());
            let estimate = value.map(|value| Measure { value, stderr: None });
            self.push(entry.head.to_owned(), entry.metric(), self.setup.clone(), estimate, Sample::None);
        }
    }

    fn add_latencies(&mut self) {
        for prompt in &self.grid.evaluate.latency {
            let measured = self.result.prompt(prompt);
            let timing = measured.and_then(|measured| measured.sample.as_ref());
            for protocol in Protocol::latency_protocols(self.grid, *prompt, &self.outcome.machine) {
                let metric = protocol.measures();
                let column = protocol.column();
                let estimate = match metric.source {
                    MetricSource::Prompt(estimate) => timing.and_then(estimate),
                    MetricSource::Decode(estimate) => timing.and_then(|timing| estimate(timing.decode.as_ref()?)),
                    _ => continue,
                };
                let is_noisy_speedup = (metric.family() == SPEEDUP.id
                    && timing.is_some_and(|timed| timed.has_noisy_speedup()))
                    || (metric.family() == DECODE_SPEEDUP.id
                        && timing
                            .and_then(|timing| timing.decode.as_ref())
                            .is_some_and(|decode| decode.has_noisy_speedup()));
                let setup =
                    self.build_setup(measured, settings::flatten_below(metric.family(), prompt), Some(protocol));
                let sample = match timing {
                    Some(sample) if sample.times.is_none() => Some(Sample::OutOfMemory),
                    _ => is_noisy_speedup.then_some(Sample::NoisyTimes),
                };
                self.push(column, metric, setup, estimate, sample.unwrap_or_default());
            }
        }
    }
}

/// Returns the metrics of the repair itself (paper figures 1, 3 and 4), averaged over boundaries ([`RepairMetrics`]).
/// For pruned cells that failed or are incomplete, the metrics have no values, which leaves gaps in the figures.
fn repair_metrics(result: &CellResult, unrepaired: Option<&CellResult>) -> Vec<(Metric, Option<f64>)> {
    fn numbers(result: &CellResult) -> Vec<&RepairMetrics> {
        result.boundaries.iter().map(|boundary| &boundary.numbers).collect()
    }
    let sample = RepairSample { boundaries: numbers(result), unrepaired: unrepaired.map(numbers) };
    let has_boundaries = !sample.boundaries.is_empty();
    let is_incomplete = (result.failure.is_some() || result.missing.is_some()) && !result.cell.is_dense();
    ENTRIES
        .iter()
        .filter_map(|metric| {
            let MetricSource::Repair(estimate) = metric.source else { return None };
            let value = if has_boundaries { estimate(&sample) } else { None };
            let is_requested = metric.visibility == MetricVisibility::OnRequest && (has_boundaries || is_incomplete);
            (value.is_some() || is_requested).then(|| (metric.metric(), value))
        })
        .collect()
}

/// Returns the cell that has the same cut but no repair.
fn unrepaired_cell<'a>(outcome: &'a GridOutcome, cell: &Cell) -> Option<&'a CellResult> {
    outcome.cells.iter().find(|other| {
        other.cell.recovery.as_ref().is_some_and(|recovery| recovery.name == recovery::NONE)
            && (&other.cell.backbone, &other.cell.criterion, other.cell.depth, &other.cell.calibration)
                == (&cell.backbone, &cell.criterion, cell.depth, &cell.calibration)
    })
}

/// Formatter for the labels of conditions, which depend on the settings that vary within the grid.
struct Labels<'a> {
    /// Options that appear in the names of methods.
    named: &'a [String],
    /// Whether labels include the number of calibration sequences from which operators are computed, because it varies
    /// among the cells.
    shows_sequences: bool,
    /// Calibration corpus of the first pruned cell, or an empty string if there is none.
    calibration: String,
}

impl<'a> Labels<'a> {
    fn new(outcome: &GridOutcome, named: &'a [String]) -> Self {
        let used = || outcome.cells.iter().filter_map(|result| result.cell.calibration.as_ref());
        let sizes: BTreeSet<usize> = used().map(|calibration| calibration.operator_sequences).collect();
        let calibration = used().next().map(|calibration| stem(&calibration.corpus).to_owned()).unwrap_or_default();
        Self { named, shows_sequences: sizes.len() > 1, calibration }
    }

    fn condition(&self, result: &CellResult) -> Condition {
        let cell = &result.cell;
        Condition {
            backbone: cell.backbone.clone(),
            layers: result.layers,
            depth: cell.depth.count,
            unit: cell.depth.unit,
            criterion: cell.criterion.as_ref().map_or(DENSE.to_owned(), |method| self.format_method(method)),
            recovery: cell.recovery.as_ref().map_or(recovery::NONE.to_owned(), |method| self.format_method(method)),
            finetuned: cell.recovery.as_ref().is_some_and(|method| method.options.contains_key(recovery::FINETUNE)),
            calibration: match &cell.calibration {
                Some(calibration) if self.shows_sequences => {
                    format!("{}:{}", stem(&calibration.corpus), calibration.operator_sequences)
                }
                Some(calibration) => stem(&calibration.corpus).to_owned(),
                None => self.calibration.clone(),
            },
        }
    }

    /// Returns the names of the settings whose values appear in the condition labels of a cell.
    fn shown_settings(&self, variant: &Settings) -> BTreeSet<String> {
        let named =
            self.named.iter().flat_map(|option| ["criterion", "recovery"].map(|axis| format!("{axis}.{option}")));
        let sequences = self.shows_sequences.then(|| settings::OPERATOR_SEQUENCES.to_owned());
        named.chain(sequences).filter(|name| variant.contains_key(name)).collect()
    }

    /// Formats a method as `ghosted`, or as `ghosted:svd` if an option is part of the name. A boolean option that is
    /// set is shown by its name.
    fn format_method<M: MethodAxis + ?Sized>(&self, method: &Method<M>) -> String {
        let mut name = method.name.clone();
        for option in self.named {
            let value = match method.options.get(option) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Bool(true)) => option.clone(),
                Some(Value::Bool(false)) | None => continue,
                Some(other) => other.to_string(),
            };
            name = format!("{name}:{}", recovery::word(&method.name, option, &value));
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric;

    #[test]
    fn failed_pruned_cell_has_boundary_metrics_without_value() {
        let cell = |criterion: Option<&str>| Cell {
            criterion: criterion.map(Method::with_name),
            depth: 4.into(),
            recovery: criterion.map(|_| Method::with_name("ghosted")),
            ..Cell::with_name("a", "a")
        };
        let missing = [&metric::BOUNDARY_ERROR, &metric::CHANNEL_ERROR].map(|entry| (entry.metric(), None));
        assert_eq!(metrics_of_unmeasured_cell(cell(Some("sleb")), Some("it failed")), missing);
        assert_eq!(metrics_of_unmeasured_cell(cell(Some("sleb")), None), []);
        assert_eq!(metrics_of_unmeasured_cell(cell(None), Some("it failed")), []);
    }

    fn metrics_of_unmeasured_cell(cell: Cell, failure: Option<&str>) -> Vec<(Metric, Option<f64>)> {
        let result = CellResult::unmeasured(cell, 16, failure.map(str::to_owned));
        repair_metrics(&result, None)
    }
}
