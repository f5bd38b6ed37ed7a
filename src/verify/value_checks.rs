//! Compares recomputed values with recorded ones. Cells are matched by [`Identity`], items by index.

use std::sync::Arc;

use super::finding::{CheckKind, CheckResult};
use super::metrics::{MAX_ROUNDING_ERROR, answer_label, has_task_definition, metric_of};
use super::recorded_results::{ReferenceRun, RunBoundary};
use crate::evaluate::damage_eval::Damage;
use crate::grid::Grid;
use crate::metric::MetricSource;
use crate::model::Tolerance;
use crate::pipeline::exec::{DefinedItems, DocumentLoss, SampledCell, SampledItems, SampledScores};
use crate::pipeline::identity::{ComputeId, Identity};
use crate::pipeline::stage::boundary_result::BoundaryResult;
use crate::results::ResultRow;
use crate::tasks::{AccuracyKind, DocumentResult};
use ghostlab_definitions::aggregate::Aggregation;

/// Results of the checks on one results folder that need recomputed values.
pub(super) struct Checks {
    pub(super) inputs: CheckResult,
    windows: CheckResult,
    documents: CheckResult,
    choices: CheckResult,
    selections: CheckResult,
    operators: CheckResult,
}

impl Checks {
    /// Creates empty checks of all kinds. The check of the inputs is already complete.
    pub(super) fn new(inputs: CheckResult) -> Self {
        use CheckKind::{Documents, LogLikelihoods, Operators, Selections, Windows};
        let [windows, documents, choices, selections, operators] =
            [Windows, Documents, LogLikelihoods, Selections, Operators].map(CheckResult::new);
        Self { inputs, windows, documents, choices, selections, operators }
    }

    /// Compares a recomputed cell with its record.
    pub(super) fn compare(&mut self, recorded: &ReferenceRun, engine: &ComputeId, grid: &Grid, cell: &SampledCell) {
        // The engine may differ from the recorded one, but all other fields of the identity must be equal.
        let is_recorded_engine = *cell.identity.engine == *engine;
        let tolerance = Tolerance::between(&engine.dtype, &cell.identity.engine.dtype);
        let identity = Identity { engine: Arc::new(engine.clone()), ..(*cell.identity).clone() };
        let identities = &recorded.numbers.identities;
        let Some((name, _)) = identities.iter().find(|(_, entry)| **entry == identity) else {
            let name = grid.cells[cell.cell].to_string();
            self.inputs.record_missing(
                name,
                format!("a cell with the same settings in the record by {}", recorded.numbers.program),
            );
            return;
        };
        let cell_numbers: Vec<&ResultRow> =
            recorded.numbers.numbers.iter().filter(|number| number.cell == *name).collect();
        if let Some(failure) = &cell.failure {
            match cell_numbers.iter().any(|number| number.failure.is_some()) {
                true => self.operators.record_agreement(0.0),
                false => self.operators.record_missing(name, format!("recomputed values ({failure})")),
            }
            return;
        }
        if let Some(run) = recorded.run_cell(name) {
            if let Some(selection) = &cell.selection {
                let layers = [&run.removed, &selection.removed].map(ToString::to_string);
                self.selections.compare_equal(|| format!("{name}, removed layers"), layers);
            }
            compare_boundaries(name, &run.boundaries, &cell.boundaries, tolerance, &mut self.operators);
        } else if cell.selection.is_some() {
            self.selections.record_missing(name, "the cell in run.json");
        }
        for scores in &cell.scores {
            // A task definition may have several metrics, each with its own number.
            let numbers: Vec<&&ResultRow> = cell_numbers
                .iter()
                .filter(|number| {
                    let items = number.losses().is_some() || number.answers().is_some();
                    items && recorded.measure(number) == Some(&*scores.measure)
                })
                .collect();
            let has_no_metric = matches!(&scores.items, SampledItems::Defined(all) if all.is_empty());
            if numbers.is_empty() && !has_no_metric && cell_numbers.iter().all(|number| number.failure.is_none()) {
                self.inputs
                    .record_missing(format!("{name} on {}", scores.label), "recorded answers or losses of this metric");
            }
            for number in numbers {
                // A relative tolerance for the perplexity is an absolute tolerance for the loss in nats per token.
                let loss_tolerance = tolerance.perplexity.ln_1p();
                self.compare_items(recorded, &NumberCheck { number, loss_tolerance, is_recorded_engine }, scores);
            }
        }
    }

    fn compare_items(&mut self, recorded: &ReferenceRun, number: &NumberCheck<'_>, scores: &SampledScores) {
        // Flips are derived from answers, which are compared separately.
        if matches!(metric_of(number.number).source, MetricSource::Flips(_)) {
            return;
        }
        match &scores.items {
            SampledItems::Windows(windows) => self.compare_windows(number, windows),
            SampledItems::Defined(by_metric) => {
                let metric = number.number.record.metric.rsplit('/').next().unwrap_or_default();
                match by_metric.get(metric) {
                    Some(DefinedItems::Right(recomputed)) => compare_answers(number, recomputed, &mut self.documents),
                    Some(DefinedItems::Losses { items, aggregation, units }) => {
                        compare_losses(number, items, &mut self.choices);
                        self.compare_perplexity(number, scores.all, *aggregation, *units);
                    }
                    None => {}
                }
            }
            SampledItems::Documents(documents, kind) => self.compare_documents(recorded, number, documents, *kind),
        }
    }

    fn compare_windows(&mut self, number: &NumberCheck<'_>, windows: &[(usize, Vec<f64>)]) {
        let losses = number.number.losses().unwrap_or_default();
        let column = match metric_of(number.number).source {
            // Another engine may break the tie between two equally likely tokens differently.
            MetricSource::Damage(Damage::SameTop, _) if !number.is_recorded_engine => return,
            MetricSource::Damage(damage, part) => damage.value_index(part),
            _ => 0,
        };
        for (index, values) in windows {
            let found = values.get(column).copied().unwrap_or(f64::NAN);
            let at = || number.location(&format!("window {index}"));
            match losses.get(*index) {
                Some(&loss) => self.windows.compare_numbers(at, loss, found, number.loss_tolerance),
                None => self.windows.record_missing(at(), "recorded loss"),
            }
        }
    }

    /// Compares a perplexity over all documents with the value computed from the recorded losses.
    fn compare_perplexity(&mut self, number: &NumberCheck<'_>, all: usize, aggregation: Aggregation, units: f64) {
        let losses = number.number.losses().unwrap_or_default();
        if let (Some(value), true) = (number.number.record.value, losses.len() == all) {
            let recomputed = aggregation.score_from_loss(losses.iter().sum::<f64>() / units);
            let tolerance = MAX_ROUNDING_ERROR * recomputed.abs();
            self.choices.compare_numbers(
                || number.location("from log-likelihoods of documents"),
                value,
                recomputed,
                tolerance,
            );
        }
    }

    fn compare_documents(
        &mut self,
        recorded: &ReferenceRun,
        number: &NumberCheck<'_>,
        documents: &[(usize, DocumentResult)],
        kind: AccuracyKind,
    ) {
        let ResultRow { cell, column, .. } = number.number;
        let right = number.number.task_answers().unwrap_or_default();
        let losses = recorded.documents.as_ref().and_then(|all| all.get(&(cell.clone(), column.clone())));
        for &(index, ref document) in documents {
            let found = document.is_correct(kind);
            match right.get(index) {
                Some(&recorded) => self.documents.compare(
                    recorded == found || is_tie(document, kind, number.loss_tolerance),
                    || number.location(&format!("scored document {index}")),
                    [recorded, found].map(answer_label),
                ),
                None => self.documents.record_missing(number.location(&format!("document {index}")), "recorded answer"),
            }
            if let Some(known) = losses.and_then(|losses| losses.get(index)) {
                compare_choices(number, known, document, &mut self.choices);
            }
        }
    }

    /// Returns all checks, each with the number of recorded values of its kind.
    pub(super) fn into_results(self, recorded: &ReferenceRun) -> Vec<CheckResult> {
        let numbers = &recorded.numbers.numbers;
        let losses = |defined: bool| -> usize {
            let defined_numbers = numbers.iter().filter(|number| has_task_definition(recorded, number) == defined);
            defined_numbers.filter_map(|number| Some(number.losses()?.len())).sum()
        };
        let windows = losses(false);
        let documents = numbers.iter().filter_map(|number| number.task_answers().map(<[bool]>::len)).sum();
        let documents_of_tasks = recorded.documents.iter().flat_map(|all| all.values().flatten());
        let choices = documents_of_tasks.map(|document| document.choices.len()).sum::<usize>() + losses(true);
        let pruned = recorded.cells.iter().filter(|cell| !cell.removed.is_empty()).count();
        let boundaries = recorded.cells.iter().map(|cell| cell.boundaries.len()).sum();
        let counts = [self.inputs.compared_count(), windows, documents, choices, pruned, boundaries];
        let checks = [self.inputs, self.windows, self.documents, self.choices, self.selections, self.operators];
        checks.into_iter().zip(counts).map(|(check, count)| check.with_total(count)).collect()
    }
}

/// Recorded number whose items are compared.
struct NumberCheck<'a> {
    number: &'a ResultRow,
    /// Tolerance for a loss in nats per token.
    loss_tolerance: f64,
    /// Whether the values were recomputed on the recorded engine.
    is_recorded_engine: bool,
}

impl NumberCheck<'_> {
    /// Formats the location of an item: cell, column and item.
    fn location(&self, item: &str) -> String {
        format!("{}, {}, {item}", self.number.cell, self.number.column)
    }
}

fn compare_boundaries(
    name: &str,
    recorded: &[RunBoundary],
    recomputed: &[BoundaryResult],
    tolerance: Tolerance,
    check: &mut CheckResult,
) {
    if recorded.len() != recomputed.len() {
        let counts = [recorded.len(), recomputed.len()].map(|count| format!("{count} boundaries"));
        check.record_difference(name, counts, None);
        return;
    }
    for (one, two) in recorded.iter().zip(recomputed) {
        let at = |what: &str| format!("{name}, boundary of layer {}, {what}", one.region.0);
        if one.region != two.region {
            check.record_difference(at("region"), [format!("{:?}", one.region), format!("{:?}", two.region)], None);
            continue;
        }
        // The rounding error of the solution grows with the condition number, but that of its outputs hardly does.
        let enlarged = tolerance.activations * one.condition.unwrap_or(0.0);
        let solved = tolerance.perplexity.max(enlarged.min(1.0));
        let numbers = &two.numbers;
        let diagnostics = [
            ("mean absolute error", one.boundary_mae, numbers.boundary_mae, tolerance.perplexity),
            ("norm of the change", one.delta_norm, numbers.delta_norm, tolerance.perplexity),
            ("norm of M", one.m_norm, numbers.m_norm, solved),
            ("norm of M's symmetric part", one.m_symmetric_norm, numbers.m_symmetric_norm, solved),
            ("norm of M's antisymmetric part", one.m_antisymmetric_norm, numbers.m_antisymmetric_norm, solved),
        ];
        let scale =
            |what: &str, reference: f64| if what.starts_with("norm of M") { one.m_norm.abs() } else { reference.abs() };
        let mismatch = diagnostics.iter().find(|(what, one, two, relative_tolerance)| {
            let difference = (one - two).abs();
            !(difference <= relative_tolerance * scale(what, *one) || one.to_bits() == two.to_bits())
        });
        match mismatch {
            None => check.record_agreement((one.boundary_mae - numbers.boundary_mae).abs()),
            Some((what, one, two, _)) => {
                check.record_difference(at(what), [one.to_string(), two.to_string()], Some((one - two).abs()));
            }
        }
    }
}

/// Compares the correctness of generated answers. On another engine, near ties between tokens may lead to other texts
/// and answers.
fn compare_answers(number: &NumberCheck<'_>, recomputed: &[(usize, bool)], check: &mut CheckResult) {
    let recorded = number.number.task_answers().unwrap_or_default();
    for (index, recomputed) in recomputed {
        let at = || number.location(&format!("document {index}"));
        match recorded.get(*index).copied() {
            Some(bit) if bit == *recomputed || number.is_recorded_engine => {
                check.compare(bit == *recomputed, at, [bit, *recomputed].map(answer_label));
            }
            Some(bit) => {
                check.record_missing(
                    at(),
                    format!(
                        "the recorded engine (recorded {}, found {})",
                        answer_label(bit),
                        answer_label(*recomputed)
                    ),
                );
            }
            // Answers are recorded only for metrics that are means of zeros and ones.
            None if recorded.is_empty() => {}
            None => check.record_missing(at(), "recorded answer"),
        }
    }
}

fn compare_losses(number: &NumberCheck<'_>, recomputed: &[DocumentLoss], check: &mut CheckResult) {
    let losses = number.number.losses().unwrap_or_default();
    for DocumentLoss { index, nats, tokens } in recomputed {
        let at = || number.location(&format!("document {index}"));
        match losses.get(*index) {
            Some(loss) => check.compare_numbers(at, *loss, *nats, number.loss_tolerance * *tokens as f64),
            None => check.record_missing(at(), "recorded log-likelihood"),
        }
    }
}

fn compare_choices(
    number: &NumberCheck<'_>,
    recorded: &DocumentResult,
    found: &DocumentResult,
    check: &mut CheckResult,
) {
    if (recorded.id, recorded.gold, recorded.choices.len()) != (found.id, found.gold, found.choices.len()) {
        let one = describe_document(recorded.id, recorded.gold, recorded.choices.len());
        let two = describe_document(found.id, found.gold, found.choices.len());
        check.record_difference(number.location(&format!("document {}", found.id)), [one, two], None);
        return;
    }
    for (index, (one, two)) in recorded.choices.iter().zip(&found.choices).enumerate() {
        let at = || number.location(&format!("document {}, choice {index}", found.id));
        let tolerance = number.loss_tolerance * two.tokens as f64;
        check.compare_numbers(at, one.log_likelihood, two.log_likelihood, tolerance);
    }
}

fn describe_document(id: usize, gold: i64, choices: usize) -> String {
    format!("document {id}, gold choice {gold} of {choices}")
}

/// Returns whether rounding errors could change the best choice.
fn is_tie(document: &DocumentResult, kind: AccuracyKind, loss_tolerance: f64) -> bool {
    let mut all: Vec<(f64, f64)> = document
        .choices
        .iter()
        .map(|choice| {
            let length = choice.length(kind).max(1) as f64;
            (choice.log_likelihood / length, loss_tolerance * choice.tokens as f64 / length)
        })
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    matches!(all.as_slice(), [first, second, ..] if first.0 - second.0 <= first.1 + second.1)
}
