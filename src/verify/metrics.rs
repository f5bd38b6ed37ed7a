//! Checks the numbers in a results folder against the recorded answers and losses from which they were computed,
//! without the models.

use std::collections::BTreeSet;
use std::path::Path;

use super::finding::{CheckKind, CheckResult};
use super::recorded_results::ReferenceRun;
use crate::criterion::DENSE;
use crate::error::Result;
use crate::evaluate::perplexity::Losses;
use crate::metric::{BOUNDARY_ERROR, Metric, MetricSource, PERPLEXITY, TEXT, TextSample};
use crate::pipeline::identity::MeasureId;
use crate::results::{CHANNELS_FILE, ResultRow, mean, read_frame};
use crate::tasks::{Flip, Task};

/// Maximum relative difference between two computations of the same number in f64.
pub(super) const MAX_ROUNDING_ERROR: f64 = 1e-9;

/// Recomputes numbers, answers, flips and boundary errors from the recorded items, and compares them with the record.
///
/// # Errors
/// Fails if the table of channel errors cannot be read.
pub(super) fn check(folder: &Path, recorded: &ReferenceRun) -> Result<CheckResult> {
    let mut check = CheckResult::new(CheckKind::Items);
    for number in &recorded.numbers.numbers {
        let Some(value) = number.record.value else { continue };
        if let Some(recomputed) = recompute_from_items(recorded, number) {
            check.compare_numbers(|| item_label(number), value, recomputed, MAX_ROUNDING_ERROR * recomputed.abs());
        }
        if let Some(answers) = recompute_answers(recorded, number) {
            let recomputed: Vec<bool> = answers.into_iter().map(|(_, right)| right).collect();
            let right = number.task_answers().unwrap_or_default();
            let first = recomputed.iter().zip(right).position(|(a, b)| a != b).unwrap_or_default();
            let labels = [right, recomputed.as_slice()].map(|answers| answer_label(answers.get(first) == Some(&true)));
            let at = || format!("{}, scored document {first}, from log-likelihoods", item_label(number));
            check.compare(recomputed == right, at, labels);
        }
    }
    check_flips(recorded, &mut check);
    check_channels(folder, recorded, &mut check)?;
    let all = check.compared_count();
    Ok(check.with_total(all))
}

fn item_label(number: &ResultRow) -> String {
    format!("{}, {}", number.cell, number.column)
}

pub(super) fn answer_label(is_right: bool) -> &'static str {
    if is_right { "right" } else { "wrong" }
}

/// Recomputes a number from its recorded items or, for an average, from the values that it averages. Returns `None` if
/// they are not recorded.
fn recompute_from_items(recorded: &ReferenceRun, number: &ResultRow) -> Option<f64> {
    match (number.answers(), number.losses()) {
        (Some(tasks), _) => {
            let each: Vec<f64> = tasks
                .iter()
                .map(|right| {
                    let values: Vec<f64> = right.iter().map(|&right| if right { 100.0 } else { 0.0 }).collect();
                    mean(&values)
                })
                .collect::<Option<_>>()?;
            mean(&each)
        }
        // Of task definitions that score texts, only token perplexities are recomputed, because word and byte counts
        // are not recorded.
        (_, Some(losses)) if has_task_definition(recorded, number) => {
            let (_, name) = number.record.metric.rsplit_once('/')?;
            mean(losses).filter(|_| name.split(',').next() == Some("perplexity")).map(f64::exp)
        }
        (_, Some(losses)) => {
            let metric = metric_of(number);
            if let MetricSource::Damage(damage, _) = metric.source {
                return damage.estimate(losses).map(|estimate| estimate.value);
            }
            // The length of the text in bytes is not recorded.
            let losses = Losses { windows: losses.to_vec() };
            let sample = TextSample { losses: &losses, length: 0, bytes: None, damages: None };
            sample.estimate(&metric).map(|estimate| estimate.value)
        }
        _ if number.record.metric == PERPLEXITY.id => {
            let parts = recorded
                .numbers
                .numbers
                .iter()
                .filter(|part| part.cell == number.cell && *metric_of(part).entry() == TEXT);
            let each: Vec<f64> = parts.map(|part| recompute_from_items(recorded, part)).collect::<Option<_>>()?;
            mean(&each)
        }
        _ if number.record.metric == BOUNDARY_ERROR.id => {
            let cell = recorded.run_cell(&number.cell)?;
            let each: Vec<f64> = cell.boundaries.iter().map(|boundary| boundary.boundary_mae).collect();
            mean(&each)
        }
        _ => None,
    }
}

pub(super) fn metric_of(number: &ResultRow) -> Metric {
    Metric::find(&number.record.metric).unwrap_or_else(|_| Metric::task(&number.record.metric))
}

/// Returns whether a number belongs to a task with an lm-evaluation-harness definition.
pub(super) fn has_task_definition(recorded: &ReferenceRun, number: &ResultRow) -> bool {
    matches!(recorded.measure(number), Some(MeasureId::Defined { .. }))
}

/// Returns the columns of lm-evaluation-harness tasks that have no recorded items, such as metrics that compare
/// generated texts with references.
pub(super) fn columns_without_items(recorded: &ReferenceRun) -> BTreeSet<&str> {
    let numbers_without_items = recorded
        .numbers
        .numbers
        .iter()
        .filter(|number| number.record.value.is_some() && number.answers().is_none() && number.losses().is_none())
        .filter(|number| has_task_definition(recorded, number));
    numbers_without_items.map(|number| number.column.as_str()).collect()
}

/// Returns, for each document, the answer that its log-likelihoods select, and whether it is correct. Returns `None` if
/// no log-likelihoods are recorded.
fn recompute_answers(recorded: &ReferenceRun, number: &ResultRow) -> Option<Vec<(Option<usize>, bool)>> {
    let documents = recorded.documents.as_ref()?.get(&(number.cell.clone(), number.column.clone()))?;
    let MeasureId::Task { task, .. } = recorded.measure(number)? else { return None };
    let task = Task::find(task).ok()?;
    let kind = task.paper_metric;
    Some(documents.iter().map(|document| (document.prediction(kind), document.is_correct(kind))).collect())
}

/// Checks the recorded flips (changed answers) against the recorded answers of the dense and the pruned model.
fn check_flips(recorded: &ReferenceRun, check: &mut CheckResult) {
    for number in &recorded.numbers.numbers {
        let metric = metric_of(number);
        let (MetricSource::Flips(flip), Some(recorded_flips)) = (metric.source, number.task_answers()) else {
            continue;
        };
        let same_task: Vec<&ResultRow> = recorded
            .numbers
            .numbers
            .iter()
            .filter(|other| metric.task_name() == Some(&*other.record.metric))
            .filter(|other| recorded.measure(other) == recorded.measure(number))
            .collect();
        let backbone = &number.record.condition.backbone;
        let dense = same_task.iter().find(|other| {
            other.record.condition.criterion == DENSE.name && other.record.condition.backbone == *backbone
        });
        let variant = same_task.iter().find(|other| other.cell == number.cell);
        let (Some(dense), Some(variant)) = (dense, variant) else {
            check.record_missing(item_label(number), "recorded answers of the dense model and the variant");
            continue;
        };
        let expected = recompute_flips(recorded, flip, dense, variant);
        let first = recorded_flips
            .iter()
            .zip(&expected)
            .position(|(flips, expected)| expected.is_some_and(|expected| expected != *flips));
        match first {
            None => check.compare_equal(
                || item_label(number),
                [recorded_flips.len(), expected.len()].map(|count| format!("{count} documents")),
            ),
            Some(index) => {
                let at = format!("{}, scored document {index}", item_label(number));
                let texts = if recorded_flips[index] { ["flips", "does not flip"] } else { ["does not flip", "flips"] };
                check.record_difference(at, texts, None);
            }
        }
    }
}

/// Returns, for each document, whether its answer changes between two cells in the way of `flip`. For
/// [`Flip::Changed`], an entry is `None` if both answers are wrong and no log-likelihoods are recorded that show whether
/// they differ.
fn recompute_flips(recorded: &ReferenceRun, flip: Flip, dense: &ResultRow, variant: &ResultRow) -> Vec<Option<bool>> {
    let [dense_right, variant_right] =
        [dense, variant].map(|number| number.task_answers().unwrap_or_default().iter().copied());
    let [dense_chosen, variant_chosen] = [dense, variant].map(|number| recompute_answers(recorded, number));
    dense_right
        .zip(variant_right)
        .enumerate()
        .map(|(index, (dense, variant))| match flip {
            Flip::RightToWrong => Some(dense && !variant),
            Flip::WrongToRight => Some(!dense && variant),
            Flip::Changed if dense || variant => Some(dense != variant),
            Flip::Changed => Some(dense_chosen.as_ref()?.get(index)?.0 != variant_chosen.as_ref()?.get(index)?.0),
        })
        .collect()
}

/// Checks the table of errors per channel against the recorded boundary errors, which are their means.
fn check_channels(folder: &Path, recorded: &ReferenceRun, check: &mut CheckResult) -> Result<()> {
    let path = folder.join(CHANNELS_FILE);
    if !path.exists() {
        return Ok(());
    }
    let frame = read_frame(&path)?;
    let columns = (frame.column("cell"), frame.column("boundary"), frame.column("error"));
    let (Ok(cells), Ok(starts), Ok(errors)) = columns else {
        check.record_difference(CHANNELS_FILE, ["columns cell, boundary and error", "a missing column"], None);
        return Ok(());
    };
    let (Ok(cells), Ok(starts), Ok(errors)) = (cells.str(), starts.u64(), errors.f64()) else {
        check.record_difference(CHANNELS_FILE, ["columns of strings, u64 and f64", "other types"], None);
        return Ok(());
    };
    let mut sums: std::collections::BTreeMap<(&str, u64), (f64, f64)> = std::collections::BTreeMap::new();
    for row in 0..frame.height() {
        let (Some(cell), Some(start), Some(error)) = (cells.get(row), starts.get(row), errors.get(row)) else {
            continue;
        };
        let (sum, count) = sums.entry((cell, start)).or_default();
        *sum += error;
        *count += 1.0;
    }
    for ((cell, start), (sum, count)) in sums {
        let run_cell = recorded.run_cell(cell);
        let boundary =
            run_cell.and_then(|cell| cell.boundaries.iter().find(|boundary| boundary.region.0 as u64 == start));
        if let Some(boundary) = boundary {
            // Both values are means of f32 errors, summed in different orders.
            check.compare_numbers(
                || format!("{CHANNELS_FILE}: {cell}, boundary {start}"),
                boundary.boundary_mae,
                sum / count,
                1e-6 * boundary.boundary_mae.abs(),
            );
        }
    }
    Ok(())
}
