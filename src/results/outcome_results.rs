//! Converts the outcome of a grid into results, with the names of metrics and methods that the paper uses.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::measurement::{CalibrationSummary, CellSummary, Measurement, ResultRow, Results, Sample, Setup};
use super::number_record::{Condition, DENSE, Record};
use super::{MeasuredProgram, MetricKey, Protocol, Settings, settings, stem};
use crate::grid::{Cell, EvalTask, Grid, Method, MethodAxis};
use crate::metric::{
    DECODE_SPEEDUP, ENTRIES, Metric, MetricEntry, MetricSource, MetricVisibility, RepairSample, SPEEDUP, TextSample,
};
use crate::pipeline::outcome::{CellResult, EvalResult, GridOutcome, right_answers};
use crate::pipeline::stage::scores::display_scale;
use crate::recovery::{self, RepairMetrics};
use crate::tasks::{Flip, Measure, ScoredTask, TaskResult};

/// Collects the measurements in an outcome, cell by cell. The names of methods include the values of the options in
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
            engine: outcome.engines.get(&result.cell.backbone).copied(),
            calibration: summarize_calibration(grid, &result.cell),
            unidentified: grid
                .backbones
                .get(&result.cell.backbone)
                .and_then(|backbones| backbones.unidentified.clone()),
            undetermined: undetermined || !result.selection_notes.is_empty(),
            variant,
            ..Setup::default()
        };
        let summary = summarize_cell(result, Arc::clone(&setup.variant));
        let condition = labels.condition(result);
        let mut numbers = MeasurementsBuilder { grid, outcome, result, condition, setup, all: Vec::new() };
        numbers.add_texts(&shown);
        numbers.add_tasks(&shown);
        numbers.add_defined_tasks(&columns);
        numbers.add_defined_flips(&columns);
        numbers.add_latencies();
        numbers.add_sizes(&shown);
        for (metric, value) in repair_metrics(result, unrepaired_cell(outcome, &result.cell)) {
            let value = value.map(|value| Measure { value, stderr: None });
            numbers.push(metric, None, &numbers.setup.clone(), value, None);
        }
        CellSummary { numbers: numbers.all, ..summary }
    };
    let cells = outcome.cells.iter().map(cell).collect();
    Results { cells, protocols: columns }
}

fn summarize_cell(result: &CellResult, settings: Arc<Settings>) -> CellSummary {
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
        numbers: Vec::new(),
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

/// Builder for the measurements of one cell.
struct MeasurementsBuilder<'a> {
    grid: &'a Grid,
    outcome: &'a GridOutcome,
    result: &'a CellResult,
    condition: Condition,
    /// Setup that all measurements of the cell share. Its `measure` is empty.
    setup: Setup,
    all: Vec<Arc<Measurement>>,
}

impl MeasurementsBuilder<'_> {
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

    /// Adds a measurement. If it has no `key`, it does not appear in the tables of a run.
    fn push(
        &mut self,
        metric: Metric,
        key: Option<MetricKey>,
        setup: &Setup,
        estimate: Option<Measure>,
        sample: Option<Sample>,
    ) {
        let key = key.unwrap_or_else(|| MetricKey::without_table(&metric));
        let row = ResultRow {
            record: Record {
                condition: self.condition.clone(),
                metric: metric.id.clone(),
                value: estimate.map(|estimate| estimate.value).filter(|value| value.is_finite()),
                error: estimate.and_then(|estimate| estimate.stderr),
            },
            cell: self.result.cell.to_string(),
            column: key.to_string(),
            failure: self.result.failure.clone(),
            sample: sample.unwrap_or_default(),
        };
        self.all.push(Arc::new(Measurement { row, key, metric, setup: setup.clone() }));
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
                let key = MetricKey::Text(entry, text.clone());
                self.push(
                    entry.metric_for(stem(&text.corpus)),
                    Some(key),
                    &setup,
                    windows.and_then(|windows| windows.estimate(entry)),
                    items,
                );
            }
            all.measure.extend(settings::flatten_below(&text.to_string(), &json!({"limit": limit})));
            all.scored.extend(setup.scored);
            all.measures.extend(setup.measures);
            samples.push(windows);
        }
        if samples.len() < 2 {
            return;
        }
        let samples: Option<Vec<TextSample<'_>>> = samples.into_iter().collect();
        for metric in ENTRIES {
            let MetricSource::Texts(estimate) = metric.source else { continue };
            self.push(metric.metric(), None, &all, samples.as_deref().and_then(estimate), None);
        }
    }

    fn add_tasks(&mut self, shown: &[&'static MetricEntry]) {
        let grid = self.grid;
        let outcome = self.outcome;
        let result = self.result;
        let mut samples = Vec::new();
        let mut all = self.setup.clone();
        for used in grid.evaluate.builtin() {
            let measured = result.task(used);
            let protocol = outcome.task(used).and_then(|extent| Protocol::task(grid, used, extent));
            let setup = self.build_setup(measured, settings::flatten_below(&used.name, used), protocol);
            let answers = measured.and_then(|measured| measured.sample.as_ref()?.answers.builtin());
            let scored = answers.map(|answers| &answers.result);
            for entry in shown {
                let (estimate, items) = match entry.source {
                    MetricSource::Task(estimate) => (scored.and_then(estimate), answers.map(ScoredTask::right)),
                    MetricSource::Flips(flip) => {
                        let flips =
                            scored.and_then(|scored| self.flips(used, flip, scored.task.paper_metric.name(), "none"));
                        (flips.as_deref().and_then(Flip::rate), flips)
                    }
                    _ => continue,
                };
                let items = items.filter(|_| entry.test.is_some()).map(Sample::Right);
                let key = MetricKey::Task(entry, used.clone());
                self.push(entry.metric_for(&used.name), Some(key), &setup, estimate, items);
            }
            all.measure.extend(settings::flatten_below(&used.to_string(), used));
            all.scored.extend(setup.scored);
            all.measures.extend(setup.measures);
            samples.push(answers);
        }
        if samples.len() < 2 {
            return;
        }
        let samples: Option<Vec<&ScoredTask>> = samples.into_iter().collect();
        let scored: Option<Vec<&TaskResult>> =
            samples.as_ref().map(|all| all.iter().map(|answers| &answers.result).collect());
        for metric in ENTRIES {
            let MetricSource::Tasks(estimate) = metric.source else { continue };
            let items = samples.as_ref().filter(|_| metric.test.is_some());
            let items = items.map(|all| Sample::Tasks(all.iter().map(|answers| answers.right()).collect()));
            let estimate = scored.as_deref().and_then(estimate);
            self.push(metric.metric(), Some(MetricKey::Tasks(metric)), &all, estimate, items);
        }
    }

    /// Returns for each document of a task whether its answer flips relative to the dense model, for one metric and
    /// filter. Returns `None` if either model has no such score.
    fn flips(&self, task: &EvalTask, flip: Flip, metric: &str, filter: &str) -> Option<Vec<bool>> {
        let scores = self.result.task(task)?.sample.as_ref()?;
        scores.flips(self.outcome.dense_scores(&self.result.cell.backbone, task)?, flip, metric, filter)
    }

    /// Adds the metrics of the user-defined tasks and of their groups, except flips.
    fn add_defined_tasks(&mut self, columns: &[Protocol]) {
        let evaluate = &self.grid.evaluate;
        let result = self.result;
        for protocol in columns {
            let Protocol::Defined { label, metric, filter, flips: None, .. } = protocol else { continue };
            let task = evaluate.defined().find(|task| task.to_string() == *label);
            let group = evaluate.groups.iter().find(|group| group.to_string() == *label);
            let measured = task.and_then(|task| result.task(task));
            let judged = measured.and_then(|measured| measured.sample.as_ref()?.defined(metric, filter));
            let name = metric;
            let metric = protocol.measures();
            let (score, measure, members) = match (task, group) {
                (Some(task), _) => (
                    judged.map(|(score, ..)| score.clone()),
                    settings::flatten_below(&metric.id, task),
                    vec![task.clone()],
                ),
                (None, Some(group)) => {
                    let mut scores = result.group(group).unwrap_or_default().into_iter();
                    let score = scores.find(|score| score.metric == *name && score.filter == *filter);
                    let members = group.group.tasks.iter().map(|name| group.task(name));
                    (score, settings::flatten_below(&metric.id, &group.how), members.collect())
                }
                (None, None) => continue,
            };
            let measures = members.iter().filter_map(|task| Some(Arc::clone(&result.task(task)?.measure))).collect();
            let value = score.map(|score| {
                let error = score.error.filter(|error| error.is_finite());
                let scale = display_scale(&metric);
                Measure { value: scale * score.score, stderr: error.map(|error| scale * error) }
            });
            let tested = judged.filter(|_| metric.test.is_some());
            let bits = tested.and_then(|(score, items, _)| right_answers(score, items));
            let setup = Setup { scored: vec![protocol.clone()], measure, measures, ..self.setup.clone() };
            let sample = bits.map(Sample::Right).or_else(|| {
                let metrics = &self.grid.task(task?).definition().ok()?.metrics;
                let aggregation = metrics.iter().find(|metric| metric.kind.name() == *name)?.aggregation;
                Some(Sample::Losses(aggregation.losses(judged?.1)?.0))
            });
            self.push(metric, Some(protocol.key()), &setup, value, sample);
        }
    }

    /// Adds the flips of user-defined tasks, that is, the fraction of answers that differ from those of the dense
    /// model.
    fn add_defined_flips(&mut self, columns: &[Protocol]) {
        let result = self.result;
        for protocol in columns {
            let Protocol::Defined { label, metric, filter, flips: Some(entry), .. } = protocol else { continue };
            let MetricSource::Flips(flip) = entry.source else { continue };
            let task = self.grid.evaluate.defined().find(|task| task.to_string() == *label);
            let Some(task) = task else { continue };
            let flips = self.flips(task, flip, metric, filter);
            let shown = protocol.measures();
            let setup =
                self.build_setup(result.task(task), settings::flatten_below(&shown.id, task), Some(protocol.clone()));
            let estimate = flips.as_deref().and_then(Flip::rate);
            self.push(shown, Some(protocol.key()), &setup, estimate, flips.map(Sample::Right));
        }
    }

    /// Adds the size metrics that are shown in the table.
    fn add_sizes(&mut self, shown: &[&'static MetricEntry]) {
        for entry in shown {
            let MetricSource::Size(estimate) = entry.source else { continue };
            let value = self.result.savings.as_ref().map(estimate).filter(|value| value.is_finite());
            let estimate = value.map(|value| Measure { value, stderr: None });
            self.push(entry.metric(), Some(MetricKey::Size(entry)), &self.setup.clone(), estimate, None);
        }
    }

    fn add_latencies(&mut self) {
        for prompt in &self.grid.evaluate.latency {
            let measured = self.result.prompt(prompt);
            let timing = measured.and_then(|measured| measured.sample.as_ref());
            for protocol in Protocol::latency_protocols(self.grid, *prompt, &self.outcome.machine) {
                let metric = protocol.measures();
                let key = protocol.key();
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
                self.push(metric, Some(key), &setup, estimate, sample);
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
