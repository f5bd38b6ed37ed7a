//! Compares our values with the paper's if their protocols match.
//!
//! The gate skips the pruned models of a backbone if its dense scores do not reproduce the paper's.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::corpus::WindowRule;
use crate::criterion::Criterion;
use crate::distill::Finetune;
use crate::error::Error;
use crate::grid::{Calibration, Grid, Method, Tolerance};
use crate::metric::{DifferenceKind, MetricSource};
use crate::pipeline::exec::{CellResult, GridOutcome};
use crate::recovery::Recovery;
use crate::results::number_record::{Condition, DENSE, Record};
use crate::results::{
    CalibrationSummary, PaperComparison, PaperVerdict, Protocol, ResultRow, Sample, Table, distinct, settings, stem,
};
use crate::tasks::Bos;
use crate::{metric, recovery};

pub(super) fn compare(ours: &ResultRow, paper: &[Record], tolerance: &Tolerance) -> Option<PaperComparison> {
    let record = &ours.record;
    let same: Vec<&Record> = paper.iter().filter(|theirs| theirs.metric == record.metric).collect();
    let exact = same.iter().find(|theirs| theirs.condition == record.condition);
    // A table in the paper may omit the number of calibration sequences if it is the same in all rows.
    let entry = exact.or_else(|| same.iter().find(|theirs| conditions_match(&theirs.condition, &record.condition)))?;
    Some(compare_value(ours, entry.value?, tolerance))
}

fn compare_value(ours: &ResultRow, paper: f64, tolerance: &Tolerance) -> PaperComparison {
    let tolerance = match ours.metric.difference {
        DifferenceKind::Relative => paper * tolerance.perplexity / 100.0,
        DifferenceKind::Absolute => tolerance.accuracy,
    };
    let difference = ours.record.value.map(|ours| ours - paper);
    let other = protocol_differences(ours);
    let verdict = match difference {
        None => PaperVerdict::Missing,
        Some(_) if !other.is_empty() => PaperVerdict::OtherProtocol(other),
        Some(difference) if difference.abs() <= tolerance => PaperVerdict::Same,
        Some(_) => PaperVerdict::Differs,
    };
    PaperComparison { paper, difference, tolerance, verdict }
}

/// Returns whether two unequal conditions describe the same setting: the same dense backbone, or conditions that differ
/// only in that one of them omits the number of calibration sequences.
fn conditions_match(one: &Condition, other: &Condition) -> bool {
    if one.criterion == DENSE || other.criterion == DENSE {
        return one.criterion == other.criterion && one.backbone == other.backbone;
    }
    let ((a, a_size), (b, b_size)) = (one.calibrated(), other.calibrated());
    a == b && a_size.is_some() != b_size.is_some() && one.without_calibration() == other.without_calibration()
}

/// Formats the comparison of a table with the paper for the terminal.
pub(super) fn format_comparison(table: &Table) -> String {
    let compared: Vec<_> = table.numbers().filter_map(|(_, shown)| Some((shown, shown.comparison.as_ref()?))).collect();
    if compared.is_empty() {
        return String::new();
    }
    let verdicts = compared.iter().map(|(_, comparison)| &comparison.verdict);
    let same = verdicts.clone().filter(|verdict| **verdict == PaperVerdict::Same).count();
    let other = verdicts.filter(|verdict| matches!(verdict, PaperVerdict::OtherProtocol(_))).count();
    let mut text = match compared.len() - other {
        0 => String::new(),
        judged => format!("compared with the paper: {same} of {judged} values within tolerance\n"),
    };
    if other > 0 {
        text.push_str(&format!("not compared with the paper: {other} values, because the protocol differs\n"));
    }
    for (shown, comparison) in compared.iter().filter(|(_, comparison)| comparison.verdict != PaperVerdict::Same) {
        let record = &shown.number.record;
        let condition = &record.condition;
        let difference = comparison.difference.map(|difference| format!(", {difference:+.2}")).unwrap_or_default();
        text.push_str(&format!(
            "  {} {}/{} {} {} {}: {}, the paper has {:.2} (± {:.2}){difference}: {}\n",
            condition.backbone,
            condition.depth,
            condition.layers,
            condition.criterion,
            condition.recovery,
            record.metric,
            shown.text,
            comparison.paper,
            comparison.tolerance,
            comparison.verdict
        ));
    }
    text
}

/// Score of a dense backbone that differs from the paper's value by more than the tolerance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GateFailure {
    pub backbone: String,
    pub metric: String,
    pub ours: Option<f64>,
    /// Distinct values printed in the paper, each with its tolerance.
    pub paper: Vec<(f64, f64)>,
}

/// Result of comparing the dense backbones with the paper.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gate {
    pub misses: Vec<GateFailure>,
    /// Backbones from the paper whose dense scores cannot be compared with the paper's, each with the reason.
    pub unknown: Vec<(String, String)>,
}

impl Gate {
    /// Collects the dense scores that differ from the paper's by more than the tolerance. The pruned results of these
    /// backbones cannot be compared with the paper. Scores measured with another protocol are ignored. A backbone
    /// without comparable scores is listed in `unknown`.
    ///
    /// `paper` must contain all tables, because most have no dense row and the LLaMA-3-8B row in table 3 belongs to
    /// another backbone. If the paper prints several values for a score, matching one of them is sufficient.
    pub fn check(numbers: &[Arc<ResultRow>], paper: &[Record], tolerance: &Tolerance) -> Self {
        let mut gate = Self::default();
        for backbone in distinct(numbers.iter().map(|number| &number.record.condition.backbone)) {
            if paper.iter().all(|theirs| theirs.condition.backbone != backbone) {
                continue;
            }
            let candidates = numbers.iter().filter(|number| {
                number.record.condition.backbone == backbone && number.record.condition.criterion == DENSE
            });
            let mut judged = false;
            let mut reasons = Vec::new();
            for number in candidates {
                let comparisons = compare_dense(number, paper, tolerance);
                if comparisons.is_empty() {
                    continue;
                }
                if let Some(reason) = comparisons.iter().find_map(|comparison| comparison.verdict.other_protocol()) {
                    reasons.push(reason);
                    continue;
                }
                judged = true;
                if comparisons.iter().all(|comparison| comparison.verdict != PaperVerdict::Same) {
                    gate.misses.push(GateFailure {
                        backbone: backbone.clone(),
                        metric: number.record.metric.clone(),
                        ours: number.record.value,
                        paper: comparisons.iter().map(|comparison| (comparison.paper, comparison.tolerance)).collect(),
                    });
                }
            }
            if !judged {
                let reason = match reasons.first() {
                    Some(reason) => format!("other protocol: {reason}"),
                    None => "no computed value is in the paper".to_owned(),
                };
                gate.unknown.push((backbone, reason));
            }
        }
        gate
    }
}

fn compare_dense(number: &ResultRow, paper: &[Record], tolerance: &Tolerance) -> Vec<PaperComparison> {
    let ours = &number.record;
    let values: Vec<f64> = paper
        .iter()
        .filter(|theirs| {
            theirs.condition.criterion == DENSE
                && theirs.metric == ours.metric
                && theirs.condition.backbone == ours.condition.backbone
        })
        .filter_map(|theirs| theirs.value)
        .collect();
    distinct(&values).into_iter().map(|value| compare_value(number, value, tolerance)).collect()
}

impl GateFailure {
    pub fn backbones(misses: &[Self]) -> Vec<String> {
        distinct(misses.iter().map(|miss| &miss.backbone))
    }
}

/// Formats a failure such as `llama-3-8b: ppl_c4 is 9.90, the paper has 6.71 (± 0.13)`.
impl std::fmt::Display for GateFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { backbone, metric, ours, paper } = self;
        match ours {
            Some(ours) => write!(f, "{backbone}: {metric} is {ours:.2}")?,
            None => write!(f, "{backbone}: {metric} has no value")?,
        }
        let paper: Vec<String> =
            paper.iter().map(|(value, tolerance)| format!("{value:.2} (± {tolerance:.2})")).collect();
        write!(f, ", the paper has {}", paper.join(" or "))
    }
}

pub(super) fn gate_error(misses: &[GateFailure]) -> Option<Error> {
    let first = misses.first()?;
    let error = Error::job("a dense backbone does not reproduce the paper's values; pruning stopped");
    Some(error.found(first.to_string()).hint("pass --no-gate to prune it anyway"))
}

/// Adds a failed result for each cell that the gate skipped.
pub(super) fn insert_gated_cells(outcome: GridOutcome, grid: &Grid, misses: &[GateFailure]) -> GridOutcome {
    if misses.is_empty() {
        return outcome;
    }
    let mut ran = outcome.cells.into_iter().peekable();
    GridOutcome {
        cells: grid
            .cells
            .iter()
            .map(|cell| match ran.next_if(|result| result.cell == *cell) {
                Some(result) => result,
                None => {
                    let reason = misses.iter().find(|miss| miss.backbone == cell.backbone).map(ToString::to_string);
                    let reason = format!("stopped by the gate: {}", reason.unwrap_or_default());
                    CellResult::unmeasured(cell.clone(), grid.backbones[&cell.backbone].layers, Some(reason))
                }
            })
            .collect(),
        ..outcome
    }
}

/// Calibration settings used in the paper (section 4, appendix C) and its reference code. The length is in tokens.
const PAPER_LENGTH: usize = 2048;
const PAPER_SEQUENCES: usize = 128;
const PAPER_OPERATOR_SEQUENCES: usize = 32;
/// Seed used in the reference code. The paper does not state one.
const PAPER_SEED: u64 = 0;
/// Float types whose results may be compared with the paper. The paper states float16 for time and memory (appendix F).
const PAPER_DTYPES: [&str; 2] = ["f16", "f32"];
/// Method settings that the paper does not specify, so any value matches.
const UNSPECIFIED_SETTINGS: [&str; 2] = ["recovery.boundary", "criterion.order"];
/// Number of sequences on which an operator is fine-tuned (appendix D).
const PAPER_TRAINING_SEQUENCES: usize = 5000;
/// Rule that splits each of the paper's texts into windows. The order in which a streamed text reads its shard files
/// ([`ShardOrder`](crate::corpus::ShardOrder)) is not compared, because the paper does not state it.
const PAPER_RULES: [(&str, WindowRule); 3] =
    [("wikitext2", WindowRule::Wikitext2), ("c4", WindowRule::C4Stream), ("ptb", WindowRule::Ptb)];

/// Lists how a number's protocol differs from the paper's.
pub(super) fn protocol_differences(number: &ResultRow) -> Vec<String> {
    let mut texts: Vec<String> = number.setup.unidentified.iter().cloned().collect();
    let mean = match number.metric.source {
        MetricSource::Tasks(_) => {
            Some((metric::tasks().into_iter().map(str::to_owned).collect::<BTreeSet<String>>(), "tasks"))
        }
        MetricSource::Texts(_) => Some((metric::texts().into_iter().collect(), "texts")),
        _ => None,
    };
    texts.extend(mean.and_then(|(parts, words)| {
        let measured: BTreeSet<String> = number.setup.scored.iter().map(|protocol| protocol.measures().id).collect();
        (measured != parts).then(|| format!("a mean of {} {words} (paper: {})", measured.len(), parts.len()))
    }));
    number.setup.scored.iter().for_each(|protocol| add_protocol(protocol, &mut texts));
    let dtype = number.setup.identity.as_ref().map(|identity| identity.engine.dtype.as_str());
    let dtype = dtype.filter(|dtype| !PAPER_DTYPES.contains(dtype));
    texts.extend(dtype.map(|dtype| format!("computed in {dtype} instead of float16 or f32")));
    add_options(number, &mut texts);
    if let Sample::Seeds(seeds) = &number.sample {
        texts.push(format!("the mean over {} calibration seeds (paper: one)", seeds.len()));
    }
    if let Some(calibrated) = &number.setup.calibration {
        add_calibration(calibrated, number.setup.named_settings.contains(settings::OPERATOR_SEQUENCES), &mut texts);
    }
    distinct(&texts)
}

/// Describes each method option that differs from its default, except fine-tuning options and those that the condition
/// names or the paper does not specify.
fn add_options(number: &ResultRow, texts: &mut Vec<String>) {
    let variant = &number.setup.variant;
    let defaults = [Method::<dyn Criterion>::defaults, Method::<dyn Recovery>::defaults];
    for (axis, defaults) in ["criterion", "recovery"].into_iter().zip(defaults) {
        let Some(name) = variant.get(axis).and_then(Value::as_str) else { continue };
        let usual = settings::flatten_below(axis, &defaults(name));
        let finetune_prefix = format!("{axis}.{}.", recovery::FINETUNE);
        let options = variant.iter().filter(|(option, _)| option.starts_with(&format!("{axis}.")));
        for (option, value) in options.filter(|(option, value)| {
            !is_unspecified(number, &finetune_prefix, option) && usual.get(*option) != Some(value)
        }) {
            let replaced = usual
                .get(option)
                .map(|usual| format!(" instead of {}", settings::format_setting(option, usual)))
                .unwrap_or_default();
            texts.push(format!("{name} with {}{replaced}", settings::format_setting(option, value)));
        }
    }
}

fn is_unspecified(number: &ResultRow, finetune_prefix: &str, option: &str) -> bool {
    UNSPECIFIED_SETTINGS.contains(&option)
        || number.setup.named_settings.contains(option)
        || option.starts_with(finetune_prefix)
}

/// Describes each calibration setting that differs from the paper's. `is_count_named` states whether the condition
/// contains the number of operator sequences.
fn add_calibration(calibrated: &CalibrationSummary, is_count_named: bool, texts: &mut Vec<String>) {
    let Calibration { corpus, sequences, length, seed, operator_sequences } = &calibrated.calibration;
    match calibrated.generated {
        // The paper has no splitting rule for generated text, so the rule is not compared.
        true => texts.push(format!("calibrated on generated text ({corpus})")),
        false => add_rule(corpus, &calibrated.rule, texts),
    }
    let operator = calibrated.repaired && !is_count_named && *operator_sequences != PAPER_OPERATOR_SEQUENCES;
    let fields = [
        (*sequences != PAPER_SEQUENCES, format!("{sequences} calibration sequences (paper: {PAPER_SEQUENCES})")),
        (*length != PAPER_LENGTH, format!("calibration sequences of {length} tokens (paper: {PAPER_LENGTH})")),
        (*seed != PAPER_SEED, format!("calibration seed {seed} (paper: {PAPER_SEED})")),
        (operator, format!("operators from {operator_sequences} sequences (paper: {PAPER_OPERATOR_SEQUENCES})")),
    ];
    texts.extend(selected_texts(fields));
    calibrated.finetune.iter().for_each(|training| add_training(training, texts));
}

fn add_training(&Finetune { sequences, length, seed }: &Finetune, texts: &mut Vec<String>) {
    let fields = [
        (
            sequences != PAPER_TRAINING_SEQUENCES,
            format!("trained on {sequences} sequences (paper: {PAPER_TRAINING_SEQUENCES})"),
        ),
        (length != PAPER_LENGTH, format!("trained on sequences of {length} tokens (paper: {PAPER_LENGTH})")),
        (seed != PAPER_SEED, format!("trained with seed {seed} (paper: {PAPER_SEED})")),
    ];
    texts.extend(selected_texts(fields));
}

fn selected_texts<const N: usize>(fields: [(bool, String); N]) -> impl Iterator<Item = String> {
    fields.into_iter().filter(|(differs, _)| *differs).map(|(_, words)| words)
}

fn add_rule(corpus: &str, rule: &str, texts: &mut Vec<String>) {
    let text = stem(corpus);
    if PAPER_RULES.iter().any(|(known, needed)| *known == text && rule != needed.name()) {
        texts.push(format!("{corpus} split by the rule {rule}"));
    }
}

fn add_protocol(protocol: &Protocol, texts: &mut Vec<String>) {
    match protocol {
        Protocol::Windows { corpus, rule: by, length, windows, all, limit, generated, .. } => {
            match generated {
                true => texts.push(format!("generated text ({corpus})")),
                false => add_rule(corpus, by, texts),
            }
            texts.extend(
                (*length != PAPER_LENGTH).then(|| format!("windows of {length} tokens (paper: {PAPER_LENGTH})")),
            );
            match (windows.zip(*all), limit) {
                (Some((windows, all)), _) if windows == all => {}
                (Some((windows, all)), _) => texts.push(format!("{windows} of {all} windows of {corpus}")),
                // The total number of windows is unknown, so the limit is reported even if it may have no effect.
                (None, Some(limit)) => texts.push(format!("at most {limit} windows of {corpus}")),
                (None, None) => {}
            }
        }
        Protocol::MultipleChoice { label, documents, original, full_split, generated, bos, max_length, .. } => {
            match (generated, full_split) {
                (true, _) => texts.push(format!("{label}: generated documents")),
                (_, false) if documents < original => {
                    texts.push(format!("{label}: {documents} of {original} documents"));
                }
                (_, false) => texts.push(format!("{label}: {documents} documents, not the published split")),
                _ => {}
            }
            texts.extend((*bos != Bos::default()).then(|| format!("BOS {bos}")));
            texts.extend(max_length.map(|length| format!("inputs of at most {length} tokens")));
        }
        // The paper used float16 on an NVIDIA A40 with 48 GB (appendix F).
        Protocol::Latency { machine, .. } => texts.push(format!("measured on {machine} (paper: NVIDIA A40 in f16)")),
        Protocol::Average { .. } | Protocol::Derived { .. } | Protocol::Defined { .. } | Protocol::Size { .. } => {}
    }
}

#[cfg(test)]
#[path = "comparison_test.rs"]
mod tests;
