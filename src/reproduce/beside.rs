//! The paper's value beside ours, and the gate that a dense backbone has to pass.

use serde::Serialize;

use super::layout::{View, distinct};
use super::ours::Number;
use crate::grid::Tolerance;
use crate::metric::{Metric, Nearness};
use crate::record::{Condition, DENSE, Record};

/// A value of the paper and how ours stands to it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Beside {
    pub paper: f64,
    /// Ours less the paper's; none where ours failed.
    pub difference: Option<f64>,
    /// How far it may be off.
    pub tolerance: f64,
}

impl Beside {
    /// None where the paper has no such number.
    pub fn of(ours: &Number, paper: &[Record], tolerance: &Tolerance) -> Option<Self> {
        let (metric, ours) = (&ours.metric, &ours.record);
        let same: Vec<&Record> = paper.iter().filter(|theirs| theirs.metric == ours.metric).collect();
        let exact = same.iter().find(|theirs| theirs.condition == ours.condition);
        // A table that varies no size need not say which one it has.
        let found = exact.or_else(|| same.iter().find(|theirs| alike(&theirs.condition, &ours.condition)))?;
        let value = found.value?;
        Some(Self::to(metric, ours, value, tolerance))
    }

    fn to(metric: &Metric, ours: &Record, paper: f64, tolerance: &Tolerance) -> Self {
        let tolerance = match metric.nearness {
            Nearness::Relative => paper * tolerance.perplexity / 100.0,
            Nearness::Difference => tolerance.accuracy,
        };
        Self { paper, difference: ours.value.map(|ours| ours - paper), tolerance }
    }

    /// Whether ours is as near as it has to be.
    pub fn holds(&self) -> bool {
        self.difference.is_some_and(|difference| difference.abs() <= self.tolerance)
    }

    pub fn verdict(&self) -> &'static str {
        match self.difference {
            None => "missing",
            Some(_) if self.holds() => "same",
            Some(_) => "differs",
        }
    }
}

/// The same dense backbone, whatever is said of a calibration that it does not need; or the same but for a number of
/// sequences that only one of the two names.
fn alike(one: &Condition, other: &Condition) -> bool {
    if one.criterion == DENSE || other.criterion == DENSE {
        return one.criterion == other.criterion && one.backbone == other.backbone;
    }
    let (a, b) = (one.calibration.split(':').collect::<Vec<_>>(), other.calibration.split(':').collect::<Vec<_>>());
    let bare = |condition: &Condition| Condition { calibration: String::new(), ..condition.clone() };
    a[0] == b[0] && a.len() != b.len() && bare(one) == bare(other)
}

/// How the numbers of a table stand to the paper's, for a terminal; empty where it has none for these backbones.
pub fn beside_paper(view: &View, numbers: &[Number]) -> String {
    let compared: Vec<_> = view.shown().filter_map(|(_, shown)| Some((shown, shown.beside?))).collect();
    if compared.is_empty() {
        return String::new();
    }
    let same = compared.iter().filter(|(_, beside)| beside.holds()).count();
    let mut text = format!("beside the paper: {same} of {} values are within the tolerance\n", compared.len());
    for (shown, beside) in compared.iter().filter(|(_, beside)| !beside.holds()) {
        let record = &numbers[shown.number].record;
        let of = &record.condition;
        text.push_str(&format!(
            "  {} {}/{} {} {} {}: {}, the paper has {:.2} (± {:.2}): {}\n",
            of.backbone,
            of.depth,
            of.layers,
            of.criterion,
            of.recovery,
            record.metric,
            shown.text,
            beside.paper,
            beside.tolerance,
            beside.verdict()
        ));
    }
    text
}

/// A dense backbone that is not the paper's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Miss {
    pub backbone: String,
    pub metric: String,
    pub ours: Option<f64>,
    /// The different values that the paper prints, with how far each may be off.
    pub paper: Vec<(f64, f64)>,
}

/// What the dense backbones among `numbers` miss of the paper's dense numbers. A backbone that misses any is not the
/// paper's, or is not scored as there: nothing that is pruned from it can be compared.
///
/// `paper` are the numbers of all tables: most have no dense row, and the dense row of one (LLaMA-3-8B in table 3) is
/// another backbone's. A number is missed if it is near none that the paper prints for it.
pub fn gate(numbers: &[Number], paper: &[Record], tolerance: &Tolerance) -> Vec<Miss> {
    let dense = |record: &Record| record.condition.criterion == DENSE;
    let miss = |number: &Number| {
        let ours = &number.record;
        let same = |theirs: &&Record| {
            dense(theirs) && theirs.metric == ours.metric && theirs.condition.backbone == ours.condition.backbone
        };
        let values = paper.iter().filter(same).filter_map(|theirs| theirs.value);
        let mut besides: Vec<Beside> = Vec::new();
        for value in values {
            if besides.iter().all(|known| known.paper != value) {
                besides.push(Beside::to(&number.metric, ours, value, tolerance));
            }
        }
        let missed = !besides.is_empty() && !besides.iter().any(Beside::holds);
        missed.then(|| Miss {
            backbone: ours.condition.backbone.clone(),
            metric: ours.metric.clone(),
            ours: ours.value,
            paper: besides.iter().map(|beside| (beside.paper, beside.tolerance)).collect(),
        })
    };
    numbers.iter().filter(|number| dense(&number.record)).filter_map(miss).collect()
}

impl Miss {
    /// The backbones that miss anything.
    pub fn backbones(misses: &[Self]) -> Vec<String> {
        distinct(misses.iter().map(|miss| &miss.backbone))
    }
}

/// `llama-3-8b: ppl_c4 is 9.90, the paper has 6.71 (± 0.13)`
impl std::fmt::Display for Miss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { backbone, metric, ours, paper } = self;
        match ours {
            Some(ours) => write!(f, "{backbone}: {metric} is {ours:.2}")?,
            None => write!(f, "{backbone}: {metric} has no value")?,
        }
        let paper: Vec<String> = paper.iter().map(|(value, off)| format!("{value:.2} (± {off:.2})")).collect();
        write!(f, ", the paper has {}", paper.join(" or "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ours::Sample;
    use super::*;

    fn record(criterion: &str, calibration: &str, metric: &str, value: f64) -> Record {
        let condition = Condition {
            backbone: "llama".into(),
            layers: 32,
            depth: if criterion == DENSE { 0 } else { 7 },
            criterion: criterion.into(),
            recovery: "none".into(),
            finetuned: false,
            calibration: calibration.into(),
        };
        Record { condition, metric: metric.into(), value: Some(value), error: None }
    }

    fn number(record: Record) -> Number {
        let metric = Metric::find(&record.metric).unwrap();
        Number { record, metric, sample: Sample::None, cell: 0, failure: None }
    }

    #[test]
    fn a_value_is_held_against_the_papers_of_the_same_condition() {
        let paper = [record("sleb", "c4:16", "ppl_c4", 50.0), record("sleb", "c4:32", "ppl_c4", 100.0)];
        let tolerance = Tolerance { accuracy: 1.0, perplexity: 2.0 };
        let beside = Beside::of(&number(record("sleb", "c4:32", "ppl_c4", 101.5)), &paper, &tolerance).unwrap();
        assert_eq!((beside.paper, beside.difference, beside.tolerance), (100.0, Some(1.5), 2.0));
        assert_eq!(beside.verdict(), "same");
        assert_eq!(Beside::of(&number(record("sleb", "wikitext2", "ppl_c4", 1.0)), &paper, &tolerance), None);
        assert_eq!(Beside::of(&number(record("sleb", "c4:32", "rte", 1.0)), &paper, &tolerance), None);
        let mut failed = record("sleb", "c4:32", "ppl_c4", 1.0);
        failed.value = None;
        assert_eq!(Beside::of(&number(failed), &paper, &tolerance).unwrap().verdict(), "missing");
    }

    #[test]
    fn the_gate_names_what_a_dense_backbone_misses() {
        let paper =
            [record(DENSE, "c4", "rte", 60.0), record(DENSE, "c4", "ppl_c4", 10.0), record("sleb", "c4", "rte", 9.0)];

        // Calibrated or not, a dense backbone is the same.
        let ours = [
            number(record(DENSE, "wikitext2", "rte", 61.5)),
            number(record(DENSE, "wikitext2", "ppl_c4", 10.1)),
            number(record("sleb", "c4", "rte", 50.0)),
        ];
        let misses = gate(&ours, &paper, &Tolerance::default());
        assert_eq!(
            misses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["llama: rte is 61.50, the paper has 60.00 (± 1.00)"]
        );
        assert_eq!(Miss::backbones(&misses), ["llama"]);
        assert!(gate(&ours, &paper, &Tolerance { accuracy: 2.0, perplexity: 2.0 }).is_empty());
        // Another table has another value for it.
        let more = [&paper[..], &[record(DENSE, "c4", "rte", 64.0)]].concat();
        let misses = gate(&ours, &more, &Tolerance::default());
        assert_eq!(misses[0].to_string(), "llama: rte is 61.50, the paper has 60.00 (± 1.00) or 64.00 (± 1.00)");
        let more = [&paper[..], &[record(DENSE, "c4", "rte", 62.0)]].concat();
        assert!(gate(&ours, &more, &Tolerance::default()).is_empty());
    }
}
