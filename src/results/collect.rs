//! From a grid's outcome to its results, in the paper's words.

use std::collections::BTreeSet;
use std::sync::Arc;

use ghostlab_definitions::aggregate::Item;
use ghostlab_definitions::results::Score;
use serde_json::{Value, json};

use super::measurement::{Calibrated, CellSummary, Measurement, Results, Sample, Setup};
use super::record::{Condition, DENSE, Record};
use super::{Asked, Factors, Protocol, factors, stem};
use crate::exec::{CellResult, GridOutcome, TaskScores};
use crate::grid::{Cell, DefinitionUse, Grid, Method, MethodAxis};
use crate::identity::MeasureId;
use crate::metric::{ENTRIES, Metric, MetricEntry, Of, RepairSample, Shown, TaskSample, TextSample};
use crate::recovery::{self, RepairMetrics};
use crate::stage::scores::scale;
use crate::tasks::Measure;

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
        let mut push = |of: Number<'_>| {
            let Number { metric, asked, scored, estimate, sample, measure, measures } = of;
            let value = estimate.map(|of| of.value).filter(|value| value.is_finite());
            let error = estimate.and_then(|of| of.stderr);
            let record = Record { condition: condition.clone(), metric: metric.id.clone(), value, error };
            let unidentified = grid.backbones.get(&result.cell.backbone).and_then(|of| of.unidentified.clone());
            let repairs = result.boundaries.iter().any(|boundary| boundary.undetermined);
            let undetermined = repairs || !result.selection_notes.is_empty();
            let (variant, told, calibration) = (Arc::clone(&variant), Arc::clone(&told), calibration.clone());
            let scored = scored.to_vec();
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
        defined(grid, outcome, result, &mut push);
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
        finetune: cell.recovery.as_ref().and_then(|of| of.training),
        calibration,
    })
}

/// A number before its cell is said.
struct Number<'a> {
    metric: Metric,
    /// None of what stands in no table of a run.
    asked: Option<Asked>,
    scored: &'a [Protocol],
    estimate: Option<Measure>,
    sample: Sample,
    /// The settings of what is measured.
    measure: Factors,
    /// What was measured: of a mean, each part.
    measures: Vec<Arc<MeasureId>>,
}

type Push<'a> = dyn FnMut(Number<'_>) + 'a;

/// The metrics that a run has a number of for each text or task. What is derived of another stands before it.
fn asked_for(grid: &Grid, unlike: bool) -> impl Iterator<Item = &'static MetricEntry> {
    ENTRIES.iter().rev().copied().filter(move |metric| metric.is_column(unlike, &grid.evaluate.metrics))
}

fn texts(grid: &Grid, outcome: &GridOutcome, result: &CellResult, push: &mut Push<'_>) {
    let (mut samples, mut scored, mut parts, mut all) = (Vec::new(), Vec::new(), Vec::new(), Factors::new());
    let unlike = outcome.unlike_vocabularies(grid);
    for text in &grid.evaluate.perplexity {
        let protocol = Protocol::text(grid, text, outcome.text_read(result, text));
        let limit = grid.corpora.get(&text.corpus).and_then(|corpus| corpus.limit);
        let settings = json!({"corpus": text.corpus, "length": text.length, "limit": limit});
        let measure = factors::below(&protocol.measures().id, &settings);
        let measures: Vec<_> = result.text(text).map(|of| Arc::clone(&of.measure)).into_iter().collect();
        let of = outcome.sample(result, text);
        for entry in asked_for(grid, unlike) {
            let Of::Text(estimate) = entry.of else { continue };
            let items = of.filter(|_| entry.test.is_some());
            push(Number {
                metric: entry.on(stem(&text.corpus)),
                asked: Some(Asked::Text(entry, text.clone())),
                scored: std::slice::from_ref(&protocol),
                estimate: of.as_ref().and_then(estimate),
                sample: items.map_or(Sample::None, |of| Sample::Losses(of.losses.windows.clone())),
                measure: measure.clone(),
                measures: measures.clone(),
            });
        }
        all.extend(factors::below(&text.to_string(), &json!({"limit": limit})));
        samples.push(of);
        scored.push(protocol);
        parts.extend(measures);
    }
    if samples.len() < 2 {
        return;
    }
    let samples: Option<Vec<TextSample<'_>>> = samples.into_iter().collect();
    for metric in ENTRIES {
        let Of::Texts(estimate) = metric.of else { continue };
        push(Number {
            metric: metric.metric(),
            asked: None,
            scored: &scored,
            estimate: samples.as_deref().and_then(estimate),
            sample: Sample::None,
            measure: all.clone(),
            measures: parts.clone(),
        });
    }
}

fn tasks(grid: &Grid, outcome: &GridOutcome, result: &CellResult, push: &mut Push<'_>) {
    let (mut samples, mut scored, mut parts, mut all) = (Vec::new(), Vec::new(), Vec::new(), Factors::new());
    let right = |of: &TaskSample<'_>| -> Vec<bool> {
        of.answers.documents().map(|document| document.right(of.result.task.column)).collect()
    };
    let unlike = outcome.unlike_vocabularies(grid);
    for used in &grid.evaluate.tasks {
        let protocol: Vec<Protocol> = outcome.task(used).map(|of| Protocol::task(grid, used, of)).into_iter().collect();
        let measured = result.task(used);
        let scores = measured.and_then(|of| of.sample.as_ref());
        let of = scores.map(|TaskScores { result, answers, .. }| TaskSample { result, answers });
        let measures: Vec<_> = measured.map(|of| Arc::clone(&of.measure)).into_iter().collect();
        for entry in asked_for(grid, unlike) {
            let Of::Task(estimate) = entry.of else { continue };
            let items = of.as_ref().filter(|_| entry.test.is_some());
            push(Number {
                metric: entry.on(&used.name),
                asked: Some(Asked::Task(entry, used.clone())),
                scored: &protocol,
                estimate: of.as_ref().and_then(estimate),
                sample: items.map_or(Sample::None, |of| Sample::Right(right(of))),
                measure: factors::below(&used.name, used),
                measures: measures.clone(),
            });
        }
        all.extend(factors::below(&used.to_string(), used));
        samples.push(of);
        scored.extend(protocol);
        parts.extend(measures);
    }
    if samples.len() < 2 {
        return;
    }
    let samples: Option<Vec<TaskSample<'_>>> = samples.into_iter().collect();
    for metric in ENTRIES {
        let Of::Tasks(estimate) = metric.of else { continue };
        let items = samples.as_ref().filter(|_| metric.test.is_some());
        push(Number {
            metric: metric.metric(),
            asked: Some(Asked::Tasks(metric)),
            scored: &scored,
            estimate: samples.as_deref().and_then(estimate),
            sample: items.map_or(Sample::None, |all| Sample::Tasks(all.iter().map(right).collect())),
            measure: all.clone(),
            measures: parts.clone(),
        });
    }
}

/// Every metric of each task by a definition, and of each group of them.
fn defined(grid: &Grid, outcome: &GridOutcome, result: &CellResult, push: &mut Push<'_>) {
    let estimate = |metric: &Metric, of: &Score| {
        let scale = scale(metric);
        Measure {
            value: scale * of.score,
            stderr: of.error.filter(|error| error.is_finite()).map(|error| scale * error),
        }
    };
    for protocol in Protocol::columns(grid, outcome) {
        let Protocol::Defined { label, metric, filter, .. } = &protocol else { continue };
        let is_it = |of: &Score| of.metric == *metric && of.filter == *filter;
        let task = grid.evaluate.definitions.iter().find(|of| of.to_string() == *label);
        let group = grid.evaluate.groups.iter().find(|of| of.to_string() == *label);
        let measured = task.and_then(|used| result.defined(used));
        let scores = measured.and_then(|of| of.sample.as_ref());
        let judged = scores.and_then(|of| of.scores.iter().find(|of| is_it(&of.score)));
        let name = metric;
        let metric = protocol.measures();
        let (value, measure, measures) = match (task, group) {
            (Some(used), _) => {
                let measures = measured.map(|of| Arc::clone(&of.measure)).into_iter().collect();
                (judged.map(|of| estimate(&metric, &of.score)), factors::below(&metric.id, used), measures)
            }
            (None, Some(group)) => {
                let found = result.group(group).and_then(|scores| scores.into_iter().find(is_it));
                let member =
                    |task: &String| result.defined(&DefinitionUse { name: task.clone(), how: group.how.clone() });
                let members = group.group.tasks.iter().filter_map(member).map(|of| Arc::clone(&of.measure));
                (found.map(|of| estimate(&metric, &of)), factors::below(&metric.id, &group.how), members.collect())
            }
            (None, None) => continue,
        };
        let losses = || {
            let metrics = &grid.definitions[&task?.name].definition.metrics;
            let aggregation = metrics.iter().find(|of| of.kind.name() == *name)?.aggregation;
            Some(Sample::Losses(aggregation.losses(&judged?.items)?.0))
        };
        // Of a mean of ones and zeros, which is what a paired test is made of.
        let bits: Option<Vec<bool>> = judged.filter(|_| metric.test.is_some()).and_then(|of| {
            let bit = |item: &Item| match item {
                Item::Number(number) if *number == 0.0 || *number == 1.0 => Some(*number == 1.0),
                _ => None,
            };
            let bits: Vec<bool> = of.items.iter().map(bit).collect::<Option<_>>()?;
            let mean = bits.iter().filter(|bit| **bit).count() as f64 / bits.len().max(1) as f64;
            ((mean - of.score.score).abs() < 1e-12).then_some(bits)
        });
        push(Number {
            metric,
            asked: Some(protocol.asked()),
            scored: std::slice::from_ref(&protocol),
            estimate: value,
            sample: bits.map(Sample::Right).or_else(losses).unwrap_or(Sample::None),
            measure,
            measures,
        });
    }
}

/// All that is told of each prompt.
fn latencies(grid: &Grid, outcome: &GridOutcome, result: &CellResult, push: &mut Push<'_>) {
    for prompt in &grid.evaluate.latency {
        let measured = result.prompt(prompt);
        let of = measured.and_then(|of| of.sample.as_ref());
        let sample = match of {
            Some(of) if of.times.is_none() => Sample::OutOfMemory,
            _ => Sample::None,
        };
        for protocol in Protocol::latencies(grid, *prompt, &outcome.machine) {
            let metric = protocol.measures();
            let estimate = match metric.of {
                Of::Prompt(estimate) => of.and_then(estimate),
                Of::Decode(estimate) => of.and_then(|of| estimate(of.decode.as_ref()?)),
                _ => continue,
            };
            push(Number {
                asked: Some(protocol.asked()),
                scored: std::slice::from_ref(&protocol),
                estimate,
                sample: sample.clone(),
                measure: factors::below(metric.family(), prompt),
                measures: measured.map(|of| Arc::clone(&of.measure)).into_iter().collect(),
                metric,
            });
        }
    }
}

/// What is known of the repair itself (paper figures 1, 3 and 4); of several boundaries the mean. A pruned cell that failed
/// has errors without a value: what is missing must not look as if nobody had asked for it.
fn boundaries(result: &CellResult, unrepaired: Option<&CellResult>, push: &mut Push<'_>) {
    fn numbers(of: &CellResult) -> Vec<&RepairMetrics> {
        of.boundaries.iter().map(|boundary| &boundary.numbers).collect()
    }
    let of = RepairSample { boundaries: numbers(result), unrepaired: unrepaired.map(numbers) };
    let lacks = (result.failure.is_some() || result.missing.is_some()) && !result.cell.is_dense();
    for metric in ENTRIES {
        let Of::Repair(estimate) = metric.of else { continue };
        let value = if of.boundaries.is_empty() { None } else { estimate(&of) };
        let there = if of.boundaries.is_empty() { lacks } else { true };
        if value.is_some() || (there && metric.shown == Shown::Besides) {
            push(Number {
                metric: metric.metric(),
                asked: None,
                scored: &[],
                estimate: value.map(|value| Measure { value, stderr: None }),
                sample: Sample::None,
                measure: Factors::new(),
                measures: Vec::new(),
            });
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
    fn method<M: MethodAxis + ?Sized>(&self, method: &Method<M>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric;

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
            boundaries(&result, None, &mut |of| all.push((of.metric, of.estimate)));
            all
        };
        let missing = [&metric::BOUNDARY_ERROR, &metric::CHANNEL_ERROR].map(|entry| (entry.metric(), None));
        assert_eq!(pushed(cell(Some("sleb")), Some("it failed")), missing);
        assert_eq!(pushed(cell(Some("sleb")), None), []);
        assert_eq!(pushed(cell(None), Some("it failed")), []);
    }
}
