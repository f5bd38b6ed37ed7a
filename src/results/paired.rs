//! Comparisons shown next to a number: a paired test of our method against another, and the difference from the paper's
//! value.
//!
//! `artifact::comparison` decides how our value compares with the paper's. This module defines and formats the result.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::result_row::ResultRow;
use crate::metric::PairedTest;
use crate::significance::{DiscordantCounts, paired_bootstrap, sign_flip_test};

/// Paired test of two variants on the same items.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Paired {
    /// Test name: `mcnemar`, `permutation` (several tasks) or `bootstrap`.
    pub test: &'static str,
    /// Recovery of the other variant.
    pub against: String,
    /// Value of this variant minus that of the other, computed from the values in the table.
    pub difference: f64,
    /// Two-sided p-value.
    pub p: f64,
    /// Whether this variant is better; null if the values are equal or the metric has no direction.
    better: Option<bool>,
}

/// Number of random draws in a permutation test whose outcomes are too many to enumerate.
const PERMUTATION_DRAWS: usize = 20_000;
/// Number of bootstrap resamples of the windows.
const BOOTSTRAP_RESAMPLES: usize = 2000;
const SEED: u64 = 0;
/// Minimum number of windows for the bootstrap. With fewer windows, its quantiles are too narrow.
const MIN_WINDOWS: usize = 20;
const SIGNIFICANCE_LEVEL: f64 = 0.05;

impl Paired {
    pub fn is_significant(&self) -> bool {
        self.p < SIGNIFICANCE_LEVEL
    }

    /// Returns the mark for a test: `+` if ours is significantly better, `-` if significantly worse, otherwise an empty
    /// string.
    pub fn mark(&self) -> &'static str {
        match (self.is_significant(), self.better) {
            (true, Some(true)) => "+",
            (true, Some(false)) => "-",
            _ => "",
        }
    }
}

/// Tests two numbers on the same documents or windows against each other. Returns `None` if the metric has no paired
/// test, if a value or the items are missing, or if there are too few windows.
pub(super) fn paired_test(ours: &ResultRow, other: &ResultRow) -> Option<Paired> {
    let one = ours.record.value?;
    let two = other.record.value?;
    let (test, p) = match ours.metric.test? {
        PairedTest::Mcnemar => ("mcnemar", sign_flip_p(ours.answers()?, other.answers()?)?),
        PairedTest::Permutation => ("permutation", sign_flip_p(ours.answers()?, other.answers()?)?),
        PairedTest::Bootstrap => {
            let losses = ours.losses().filter(|losses| losses.len() >= MIN_WINDOWS)?;
            ("bootstrap", paired_bootstrap(losses, other.losses()?, BOOTSTRAP_RESAMPLES, SEED).ok()?.p)
        }
    };
    let better = (one != two).then(|| ours.metric.is_better(one, two)).filter(|_| ours.metric.cost(one).is_some());
    Some(Paired { test, against: other.record.condition.recovery.clone(), difference: one - two, p, better })
}

/// Computes the p-value of a sign-flip test on the answers of two variants, grouped by task. Returns `None` if the
/// variants have different numbers of tasks or answers, or no answers.
fn sign_flip_p(ours: &[Vec<bool>], theirs: &[Vec<bool>]) -> Option<f64> {
    let same = ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| a.len() == b.len() && !a.is_empty());
    let tasks: Vec<DiscordantCounts> = ours
        .iter()
        .zip(theirs)
        .map(|(a, b)| DiscordantCounts {
            questions: a.len() as u64,
            only_a: count_right_in_first_only(a, b),
            only_b: count_right_in_first_only(b, a),
        })
        .collect();
    (same && !tasks.is_empty()).then(|| sign_flip_test(&tasks, PERMUTATION_DRAWS, SEED))
}

fn count_right_in_first_only(a: &[bool], b: &[bool]) -> u64 {
    a.iter().zip(b).filter(|&(&a, &b)| a && !b).count() as u64
}

/// Comparison of the paper's value with ours.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PaperComparison {
    pub paper: f64,
    /// Our value minus the paper's; `None` if ours failed.
    pub difference: Option<f64>,
    /// Maximum deviation that counts as equal.
    pub tolerance: f64,
    pub verdict: PaperVerdict,
}

impl PaperComparison {
    pub fn paper_text(&self) -> String {
        format!("{:.2}", self.paper)
    }

    /// Formats our value minus the paper's as a signed number. Returns `None` if ours failed.
    pub fn difference_text(&self) -> Option<String> {
        let text = match self.difference? {
            large if large.abs() >= 1e7 => format!("{large:+.2e}"),
            difference => format!("{difference:+.2}"),
        };
        // Show a difference that rounds to zero as `±0.00`, and negative differences with a minus sign instead of a
        // hyphen.
        Some(match text.as_str() {
            "+0.00" | "-0.00" => "±0.00".to_owned(),
            other => other.replace('-', "−"),
        })
    }

    /// Formats the paper's value and the difference on one line each. The difference is followed by the verdict's sign.
    pub fn lines(&self) -> Vec<String> {
        let difference = self.difference_text().map(|text| format!("{text} {}", self.verdict.sign()));
        [Some(self.paper_text()), difference].into_iter().flatten().collect()
    }

    /// Returns the verdict in one word, or `None` if the protocols differ.
    pub fn verdict_label(&self) -> Option<String> {
        self.verdict.other_protocol().is_none().then(|| self.verdict.to_string())
    }
}

/// Verdict on how our number compares with the paper's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaperVerdict {
    /// Equal within tolerance.
    Same,
    Differs,
    /// Our value is missing.
    #[default]
    Missing,
    /// The protocols differ in the listed ways, so the values cannot be compared.
    OtherProtocol(Vec<String>),
}

impl PaperVerdict {
    /// Returns the protocol differences that make the two values incomparable. Returns `None` if the protocols match.
    pub fn other_protocol(&self) -> Option<String> {
        match self {
            Self::OtherProtocol(differences) => Some(differences.join("; ")),
            _ => None,
        }
    }

    pub fn label(&self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Differs => "differs",
            Self::Missing => "missing",
            Self::OtherProtocol(_) => "other protocol",
        }
    }

    /// Returns a sign for the verdict, so that the display does not rely on color alone.
    pub fn sign(&self) -> &'static str {
        match self {
            Self::Same => "=",
            Self::Differs => "≠",
            Self::Missing => "",
            Self::OtherProtocol(_) => "~",
        }
    }
}

impl std::fmt::Display for PaperVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OtherProtocol(differences) => write!(f, "{}: {}", self.label(), differences.join("; ")),
            other => f.write_str(other.label()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::number_record::{Condition, Record};
    use super::super::result_row::Sample;
    use super::*;
    use crate::metric::{self, Metric};

    fn number(metric: &Metric, value: f64, sample: Sample) -> ResultRow {
        let condition = Condition {
            backbone: "llama".into(),
            layers: 16,
            depth: 4,
            unit: crate::criterion::DepthUnit::Layers,
            criterion: "sleb".into(),
            recovery: "ghosted".into(),
            finetuned: false,
            calibration: "c4".into(),
        };
        let record = Record { condition, metric: metric.id.clone(), value: Some(value), error: None };
        ResultRow { sample, ..ResultRow::new(record, "") }
    }

    /// Returns `count` answers, of which `right` are correct, starting at `from`.
    fn answers(from: usize, right: usize, count: usize) -> Vec<bool> {
        (0..count).map(|at| (from..from + right).contains(&at)).collect()
    }

    #[test]
    fn average_significance_weights_tasks_equally() {
        // Each of eight small tasks gains 6 of 100 answers, and one large task loses 200 of 10,000.
        let tasks = |small: usize, large: usize| -> Vec<Vec<bool>> {
            std::iter::repeat_with(|| answers(0, small, 100)).take(8).chain([answers(0, large, 10_000)]).collect()
        };
        let one = tasks(56, 5_000);
        let two = tasks(50, 5_200);
        let average =
            |tasks: &Vec<Vec<bool>>| number(&metric::ACCURACY.metric(), mean(tasks), Sample::Answers(tasks.clone()));
        let paired = paired_test(&average(&one), &average(&two)).unwrap();
        assert_eq!((paired.test, paired.mark()), ("permutation", "+"));
        assert_eq!(paired.difference, mean(&one) - mean(&two), "the difference that the table shows");
        assert_eq!(paired_test(&average(&two), &average(&one)).unwrap().mark(), "-");
        let other: Vec<Vec<bool>> = one[..8].to_vec();
        assert_eq!(paired_test(&average(&one), &average(&other)), None, "other tasks");
    }

    fn mean(tasks: &[Vec<bool>]) -> f64 {
        tasks
            .iter()
            .map(|task| 100.0 * task.iter().filter(|&&right| right).count() as f64 / task.len() as f64)
            .sum::<f64>()
            / tasks.len() as f64
    }

    #[test]
    fn paired_bootstrap_prefers_lower_perplexity() {
        let text = |value, shift| number(&Metric::perplexity("c4"), value, Sample::Losses(losses(shift)));
        let paired = paired_test(&text(20.0, -0.1), &text(22.0, 0.0)).unwrap();
        assert_eq!((paired.test, paired.difference, paired.mark()), ("bootstrap", -2.0, "+"));
        assert_eq!(paired_test(&text(20.0, 0.0), &text(20.0, 0.0)).unwrap().mark(), "");
        let sample = |count: usize, shift| {
            number(&Metric::perplexity("c4"), 20.0 + shift, Sample::Losses(losses(shift)[..count].to_vec()))
        };
        assert!(
            paired_test(&sample(19, -0.1), &sample(19, 0.0)).is_none(),
            "nineteen windows are too few to be resampled"
        );
        assert!(paired_test(&sample(20, -0.1), &sample(20, 0.0)).is_some());
    }

    fn losses(shift: f64) -> Vec<f64> {
        (0..50).map(|at| 3.0 + (f64::from(at) * 0.7).sin() + shift).collect::<Vec<f64>>()
    }
}
