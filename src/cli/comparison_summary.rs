//! One-sentence summary of a comparison.

use crate::metric::{Metric, MetricSource};
use crate::quantity::pluralize;
use crate::results::{Differences, ValueDifference, group_by_key};
use crate::significance::stratified::holm_correction;

/// Family-wise error rate for the paired tests.
const ERROR_RATE: f64 = 0.05;

/// Category of metrics. The summary counts differences per category.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    Text,
    Task,
    Prompt,
    Repair,
    Size,
}

impl MetricKind {
    fn from_metric(metric: &Metric) -> Self {
        match metric.source {
            MetricSource::Text(_) | MetricSource::Damage(..) | MetricSource::Texts(_) => Self::Text,
            MetricSource::Task | MetricSource::Flips(_) | MetricSource::Tasks(_) | MetricSource::Defined => Self::Task,
            MetricSource::Prompt(_) | MetricSource::Decode(_) => Self::Prompt,
            MetricSource::Repair(_) => Self::Repair,
            MetricSource::Size(_) => Self::Size,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Text => "perplexities",
            Self::Task => "task scores",
            Self::Prompt => "latency and memory values",
            Self::Repair => "boundary metrics",
            Self::Size => "sizes",
        }
    }
}

/// Summarizes how many values differ, in which direction they differ, and how many paired tests are significant.
pub(super) fn summarize(differences: &Differences) -> String {
    let differ = differences.values.len();
    let all = differences.compared;
    let unpaired = [(&differences.only_first, "A"), (&differences.only_second, "B")];
    let unpaired: Vec<String> = unpaired
        .iter()
        .filter(|(only, _)| !only.is_empty())
        .map(|(only, run)| format!("{} only in {run}", only.len()))
        .collect();
    let unpaired = if unpaired.is_empty() { String::new() } else { format!(" ({})", unpaired.join(", ")) };
    match (differ, all) {
        (_, 0) => format!("The runs have no common values{unpaired}."),
        (0, 1) => format!("The only common value is the same{unpaired}."),
        (0, _) => format!("All {all} common values are the same{unpaired}."),
        _ => {
            let kinds = differences.values.iter().map(|value| (metric_kind(value), value));
            let kinds: Vec<String> =
                group_by_key(kinds).iter().map(|(kind, values)| format_directions(*kind, values)).collect();
            let tests = format_significance(&differences.values);
            let verb = if all == 1 { "differs" } else { "differ" };
            format!(
                "{differ} of {} {verb}{unpaired}. B relative to A: {}.{tests}",
                pluralize(all, "value"),
                kinds.join("; ")
            )
        }
    }
}

fn find_metric(value: &ValueDifference) -> Option<Metric> {
    Metric::find(&value.first.metric).ok()
}

fn metric_kind(value: &ValueDifference) -> MetricKind {
    find_metric(value).map_or(MetricKind::Task, |metric| MetricKind::from_metric(&metric))
}

/// Formats how many values are better or worse, for example `perplexities 12 better, 3 worse`.
fn format_directions(kind: MetricKind, values: &[&ValueDifference]) -> String {
    let known: Vec<bool> = values
        .iter()
        .filter_map(|value: &&ValueDifference| -> Option<bool> {
            let metric = find_metric(value)?;
            let a = value.first.value?;
            let b = value.second.value?;
            metric.cost(b).map(|_| metric.is_better(b, a))
        })
        .collect();
    let better = known.iter().filter(|better| **better).count();
    let parts = [(better, "better"), (known.len() - better, "worse"), (values.len() - known.len(), "different")];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    format!("{} {}", kind.label(), parts.join(", "))
}

/// Formats how many paired tests are significant after Holm's correction.
fn format_significance(values: &[ValueDifference]) -> String {
    let p: Vec<f64> = values.iter().filter_map(|value| Some(value.paired.as_ref()?.p)).collect();
    let rejected = holm_correction(&p, ERROR_RATE).into_iter().filter(|rejected| *rejected).count();
    match p.len() {
        0 => String::new(),
        tests => {
            format!(" {rejected} of {tests} paired tests are significant (p < {ERROR_RATE} after Holm's correction).")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Unpaired;
    use crate::results::number_record::{Condition, Record};

    fn record(metric: &str, value: f64) -> Record {
        let condition = Condition {
            backbone: "a".into(),
            layers: 16,
            depth: 4,
            unit: crate::criterion::DepthUnit::Layers,
            criterion: "sleb".into(),
            recovery: "ghosted".into(),
            finetuned: false,
            calibration: "c4".into(),
        };
        Record { condition, metric: metric.into(), value: Some(value), error: None }
    }

    fn differences(values: &[(&str, f64, f64)], compared: usize, only_first: usize) -> Differences {
        let unpaired = Unpaired { record: record("rte", 1.0), cell: String::new(), column: String::new() };
        Differences {
            settings: Vec::new(),
            data: Vec::new(),
            data_known: true,
            protocols: Vec::new(),
            engines: Vec::new(),
            identified: true,
            global_differences: Vec::new(),
            compared,
            values: values
                .iter()
                .map(|(metric, a, b)| ValueDifference {
                    first: record(metric, *a),
                    second: record(metric, *b),
                    cell: String::new(),
                    column: String::new(),
                    beyond: None,
                    same_items: false,
                    paired: None,
                })
                .collect(),
            only_first: vec![unpaired; only_first],
            only_second: Vec::new(),
            coinciding: Vec::new(),
        }
    }

    #[test]
    fn comparison_summary_counts_directions_by_metric_kind() {
        let cases = [
            (differences(&[], 0, 2), "The runs have no common values (2 only in A)."),
            (differences(&[], 7, 0), "All 7 common values are the same."),
            (
                differences(
                    &[
                        ("ppl_c4", 9.0, 8.0),
                        ("ppl_c4", 9.0, 10.0),
                        ("ppl_average", 9.0, 10.0),
                        ("rte", 50.0, 60.0),
                        ("m_symmetric_share", 0.5, 0.6),
                    ],
                    40,
                    1,
                ),
                "5 of 40 values differ (1 only in A). B relative to A: perplexities 1 better, 2 worse; task scores 1 better; \
                 boundary metrics 1 different.",
            ),
        ];
        for (differences, expected) in cases {
            assert_eq!(summarize(&differences), expected);
        }
    }
}
