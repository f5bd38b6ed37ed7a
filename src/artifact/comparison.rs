//! The paper's value beside ours, and the gate that a dense backbone has to pass.

use std::sync::Arc;

use serde::Serialize;

use super::other_protocol::differences;
use crate::grid::Tolerance;
use crate::metric::Nearness;
use crate::results::record::{Condition, DENSE, Record};
use crate::results::{Measurement, PaperComparison, PaperVerdict, Table, distinct};

/// The paper's value beside ours; none where the paper has no such number.
pub(super) fn compare(ours: &Measurement, paper: &[Record], tolerance: &Tolerance) -> Option<PaperComparison> {
    let record = &ours.record;
    let same: Vec<&Record> = paper.iter().filter(|theirs| theirs.metric == record.metric).collect();
    let exact = same.iter().find(|theirs| theirs.condition == record.condition);
    // A table that varies no size need not say which one it has.
    let found = exact.or_else(|| same.iter().find(|theirs| alike(&theirs.condition, &record.condition)))?;
    Some(beside(ours, found.value?, tolerance))
}

fn beside(ours: &Measurement, paper: f64, tolerance: &Tolerance) -> PaperComparison {
    let tolerance = match ours.metric.nearness {
        Nearness::Relative => paper * tolerance.perplexity / 100.0,
        Nearness::Difference => tolerance.accuracy,
    };
    let difference = ours.record.value.map(|ours| ours - paper);
    let other = differences(ours);
    let verdict = match difference {
        None => PaperVerdict::Missing,
        Some(_) if !other.is_empty() => PaperVerdict::OtherProtocol(other),
        Some(difference) if difference.abs() <= tolerance => PaperVerdict::Same,
        Some(_) => PaperVerdict::Differs,
    };
    PaperComparison { paper, difference, tolerance, verdict }
}

/// The same dense backbone, whatever is said of a calibration that it does not need; or the same but for a number of
/// sequences that only one of the two names.
fn alike(one: &Condition, other: &Condition) -> bool {
    if one.criterion == DENSE || other.criterion == DENSE {
        return one.criterion == other.criterion && one.backbone == other.backbone;
    }
    let ((a, a_size), (b, b_size)) = (one.calibrated(), other.calibrated());
    let bare = |condition: &Condition| Condition { calibration: String::new(), ..condition.clone() };
    a == b && a_size.is_some() != b_size.is_some() && bare(one) == bare(other)
}

/// How the numbers of a table stand to the paper's, for a terminal; empty where it has none for these backbones.
pub(super) fn beside_paper(table: &Table) -> String {
    let compared: Vec<_> = table.shown().filter_map(|(_, shown)| Some((shown, shown.beside.as_ref()?))).collect();
    if compared.is_empty() {
        return String::new();
    }
    let count = |of: &dyn Fn(&PaperVerdict) -> bool| compared.iter().filter(|(_, beside)| of(&beside.verdict)).count();
    let same = count(&|verdict| *verdict == PaperVerdict::Same);
    let other = count(&|verdict| matches!(verdict, PaperVerdict::OtherProtocol(_)));
    let mut text = match compared.len() - other {
        0 => String::new(),
        judged => format!("beside the paper: {same} of {judged} values are within the tolerance\n"),
    };
    if other > 0 {
        text.push_str(&format!("beside the paper: {other} values of another protocol, which are not judged\n"));
    }
    for (shown, beside) in compared.iter().filter(|(_, beside)| beside.verdict != PaperVerdict::Same) {
        let record = &shown.of.record;
        let of = &record.condition;
        let difference = beside.difference.map(|off| format!(", {off:+.2}")).unwrap_or_default();
        text.push_str(&format!(
            "  {} {}/{} {} {} {}: {}, the paper has {:.2} (± {:.2}){difference}: {}\n",
            of.backbone,
            of.depth,
            of.layers,
            of.criterion,
            of.recovery,
            record.metric,
            shown.text,
            beside.paper,
            beside.tolerance,
            beside.verdict
        ));
    }
    text
}

/// A dense backbone that is not the paper's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GateFailure {
    pub backbone: String,
    pub metric: String,
    pub ours: Option<f64>,
    /// The different values that the paper prints, with how far each may be off.
    pub paper: Vec<(f64, f64)>,
}

/// What the dense backbones among the numbers say of the paper's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gate {
    pub misses: Vec<GateFailure>,
    /// Backbones of the paper of which no dense number could be compared, and why.
    pub unknown: Vec<(String, String)>,
}

impl Gate {
    /// What the dense backbones among `numbers` miss of the paper's dense numbers. A backbone that misses any is not the
    /// paper's: nothing that is pruned from it can be compared. A number of another protocol tells nothing.
    ///
    /// `paper` are the numbers of all tables: most have no dense row, and the dense row of one (LLaMA-3-8B in table 3) is
    /// another backbone's. A number is missed if it is near none that the paper prints for it.
    pub fn of(numbers: &[Arc<Measurement>], paper: &[Record], tolerance: &Tolerance) -> Self {
        let mut gate = Self::default();
        for backbone in distinct(numbers.iter().map(|number| &number.record.condition.backbone)) {
            if paper.iter().all(|theirs| theirs.condition.backbone != backbone) {
                continue;
            }
            let own = numbers.iter().filter(|number| {
                number.record.condition.backbone == backbone && number.record.condition.criterion == DENSE
            });
            let (mut judged, mut reasons) = (false, Vec::new());
            for number in own {
                let besides = dense(number, paper, tolerance);
                if besides.is_empty() {
                    continue;
                }
                if let Some(reason) = besides.iter().find_map(PaperComparison::other_protocol) {
                    reasons.push(reason);
                    continue;
                }
                judged = true;
                if besides.iter().all(|beside| beside.verdict != PaperVerdict::Same) {
                    gate.misses.push(GateFailure {
                        backbone: backbone.clone(),
                        metric: number.record.metric.clone(),
                        ours: number.record.value,
                        paper: besides.iter().map(|beside| (beside.paper, beside.tolerance)).collect(),
                    });
                }
            }
            if !judged {
                let reason = match reasons.first() {
                    Some(reason) => format!("other protocol: {reason}"),
                    None => "nothing was scored that the paper has for it".to_owned(),
                };
                gate.unknown.push((backbone, reason));
            }
        }
        gate
    }
}

/// A dense number beside each of the different values that the paper prints for it.
fn dense(number: &Measurement, paper: &[Record], tolerance: &Tolerance) -> Vec<PaperComparison> {
    let ours = &number.record;
    let same = |theirs: &&Record| {
        theirs.condition.criterion == DENSE
            && theirs.metric == ours.metric
            && theirs.condition.backbone == ours.condition.backbone
    };
    let mut besides: Vec<PaperComparison> = Vec::new();
    for value in paper.iter().filter(same).filter_map(|theirs| theirs.value) {
        if besides.iter().all(|known| known.paper != value) {
            besides.push(beside(number, value, tolerance));
        }
    }
    besides
}

impl GateFailure {
    /// The backbones that miss anything.
    pub fn backbones(misses: &[Self]) -> Vec<String> {
        distinct(misses.iter().map(|miss| &miss.backbone))
    }
}

/// `llama-3-8b: ppl_c4 is 9.90, the paper has 6.71 (± 0.13)`
impl std::fmt::Display for GateFailure {
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
#[path = "comparison_test.rs"]
mod tests;
