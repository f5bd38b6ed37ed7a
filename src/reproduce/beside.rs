//! The paper's value beside ours, and the gate that a dense backbone has to pass.

use serde::Serialize;

use super::layout::{View, distinct};
use super::ours::Number;
use crate::grid::Tolerance;
use crate::metric::Nearness;
use crate::record::{Condition, DENSE, PaperVerdict, Record};

/// A value of the paper and how ours stands to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PaperComparison {
    pub paper: f64,
    /// Ours less the paper's; none where ours failed.
    pub difference: Option<f64>,
    /// How far it may be off.
    pub tolerance: f64,
    pub verdict: PaperVerdict,
}

impl PaperComparison {
    /// None where the paper has no such number.
    pub fn of(ours: &Number, paper: &[Record], tolerance: &Tolerance) -> Option<Self> {
        let record = &ours.record;
        let same: Vec<&Record> = paper.iter().filter(|theirs| theirs.metric == record.metric).collect();
        let exact = same.iter().find(|theirs| theirs.condition == record.condition);
        // A table that varies no size need not say which one it has.
        let found = exact.or_else(|| same.iter().find(|theirs| alike(&theirs.condition, &record.condition)))?;
        let value = found.value?;
        Some(Self::to(ours, value, tolerance))
    }

    fn to(ours: &Number, paper: f64, tolerance: &Tolerance) -> Self {
        let tolerance = match ours.metric.nearness {
            Nearness::Relative => paper * tolerance.perplexity / 100.0,
            Nearness::Difference => tolerance.accuracy,
        };
        let difference = ours.record.value.map(|ours| ours - paper);
        let other = ours.other_protocol();
        let verdict = match difference {
            None => PaperVerdict::Missing,
            Some(_) if !other.is_empty() => PaperVerdict::OtherProtocol(other),
            Some(difference) if difference.abs() <= tolerance => PaperVerdict::Same,
            Some(_) => PaperVerdict::Differs,
        };
        Self { paper, difference, tolerance, verdict }
    }

    /// Why nothing follows from the difference; none where something does.
    pub fn other_protocol(&self) -> Option<String> {
        match &self.verdict {
            PaperVerdict::OtherProtocol(differences) => Some(differences.join("; ")),
            _ => None,
        }
    }

    /// The paper's value as the paper prints it.
    pub fn paper_text(&self) -> String {
        format!("{:.2}", self.paper)
    }

    /// Ours less the paper's, with its sign; none where ours failed.
    pub fn difference_text(&self) -> Option<String> {
        let text = match self.difference? {
            large if large.abs() >= 1e7 => format!("{large:+.2e}"),
            difference => format!("{difference:+.2}"),
        };
        // What rounds to nothing is neither more nor less, and a hyphen is no minus.
        Some(match text.as_str() {
            "+0.00" | "-0.00" => "±0.00".to_owned(),
            other => other.replace('-', "−"),
        })
    }

    /// The paper's value, and ours less it with the verdict's sign: a short line each.
    pub fn said(&self) -> Vec<String> {
        let difference = self.difference_text().map(|text| format!("{text} {}", self.verdict.sign()));
        [Some(self.paper_text()), difference].into_iter().flatten().collect()
    }

    /// The verdict in a word, where there may be one.
    pub fn word(&self) -> Option<String> {
        self.other_protocol().is_none().then(|| self.verdict.to_string())
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
    let compared: Vec<_> = view.shown().filter_map(|(_, shown)| Some((shown, shown.beside.as_ref()?))).collect();
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
        let record = &numbers[shown.number].record;
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
    pub fn of(numbers: &[Number], paper: &[Record], tolerance: &Tolerance) -> Self {
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
fn dense(number: &Number, paper: &[Record], tolerance: &Tolerance) -> Vec<PaperComparison> {
    let ours = &number.record;
    let same = |theirs: &&Record| {
        theirs.condition.criterion == DENSE
            && theirs.metric == ours.metric
            && theirs.condition.backbone == ours.condition.backbone
    };
    let mut besides: Vec<PaperComparison> = Vec::new();
    for value in paper.iter().filter(same).filter_map(|theirs| theirs.value) {
        if besides.iter().all(|known| known.paper != value) {
            besides.push(PaperComparison::to(number, value, tolerance));
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
mod tests {
    use super::super::ours::Sample;
    use super::super::setup::{Calibrated, Setup};
    use super::*;
    use crate::grid::Calibration;
    use crate::metric::{self, Metric};
    use crate::report::Protocol;

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

    fn text(length: usize, windows: usize) -> Protocol {
        Protocol::Windows {
            corpus: "c4".into(),
            rule: "c4".into(),
            length,
            limit: Some(windows),
            windows: Some(windows),
            all: Some(256),
            generated: false,
        }
    }

    fn task(name: &str, documents: usize) -> Protocol {
        Protocol::MultipleChoice {
            name: name.into(),
            label: name.into(),
            task: name.into(),
            version: 1,
            metric: "acc".into(),
            bos: "tokenizer".into(),
            limit: None,
            max_length: None,
            documents,
            original: 277,
            whole: documents == 277,
            generated: false,
        }
    }

    /// As the paper measures it.
    fn number(record: Record) -> Number {
        let metric = Metric::find(&record.metric).unwrap();
        let scored = vec![if record.metric == "rte" { task("rte", 277) } else { text(2048, 256) }];
        let calibration =
            Calibration { corpus: "c4-train".into(), sequences: 128, length: 2048, seed: 0, operator_sequences: 32 };
        let calibrated = Calibrated { calibration, rule: "c4".into(), generated: false, repaired: true };
        let calibration = (record.condition.criterion != DENSE).then_some(calibrated);
        let setup = Setup { scored, calibration };
        Number { record, metric, setup, sample: Sample::None, cell: 0, failure: None }
    }

    #[test]
    fn a_value_is_held_against_the_papers_of_the_same_condition() {
        let paper = [record("sleb", "c4:16", "ppl_c4", 50.0), record("sleb", "c4:32", "ppl_c4", 100.0)];
        let tolerance = Tolerance { accuracy: 1.0, perplexity: 2.0 };
        let of = |calibration: &str, metric: &str, value: f64| {
            PaperComparison::of(&number(record("sleb", calibration, metric, value)), &paper, &tolerance)
        };
        let beside = of("c4:32", "ppl_c4", 101.5).unwrap();
        assert_eq!((beside.paper, beside.difference, beside.tolerance), (100.0, Some(1.5), 2.0));
        assert_eq!(beside.verdict, PaperVerdict::Same);
        assert_eq!(of("c4:32", "ppl_c4", 103.0).unwrap().verdict, PaperVerdict::Differs);
        assert_eq!(of("wikitext2", "ppl_c4", 1.0), None);
        assert_eq!(of("c4:32", "rte", 1.0), None);
        let mut failed = record("sleb", "c4:32", "ppl_c4", 1.0);
        failed.value = None;
        assert_eq!(PaperComparison::of(&number(failed), &paper, &tolerance).unwrap().verdict, PaperVerdict::Missing);
    }

    #[test]
    fn a_number_of_another_protocol_is_not_judged_and_says_what_differs() {
        let paper = [record("sleb", "c4", "ppl_c4", 100.0), record("sleb", "c4", "rte", 60.0)];
        let ours = |metric: &str, change: &dyn Fn(&mut Setup)| {
            let mut ours = number(record("sleb", "c4", metric, 100.0));
            change(&mut ours.setup);
            let beside = PaperComparison::of(&ours, &paper, &Tolerance::default()).unwrap();
            assert_eq!(beside.word().is_some(), beside.other_protocol().is_none());
            beside.other_protocol().unwrap_or_default()
        };
        let calibrated =
            |change: fn(&mut Calibrated)| move |setup: &mut Setup| setup.calibration.iter_mut().for_each(change);
        assert_eq!(ours("ppl_c4", &|_| {}), "");
        assert_eq!(ours("rte", &|_| {}), "");
        for (metric, change, differs) in [
            (
                "ppl_c4",
                &(|setup: &mut Setup| setup.scored = vec![text(256, 256)]) as &dyn Fn(&mut Setup),
                "windows of 256 tokens, not 2048",
            ),
            ("ppl_c4", &|setup| setup.scored = vec![text(2048, 32)], "32 of 256 windows of c4"),
            ("rte", &|setup| setup.scored = vec![task("rte", 100)], "rte: 100 of 277 documents"),
            (
                "rte",
                &|setup| {
                    let Protocol::MultipleChoice { bos, .. } = &mut setup.scored[0] else { return };
                    *bos = "never".into();
                },
                "BOS never",
            ),
            (
                "rte",
                &|setup| {
                    let Protocol::MultipleChoice { generated, .. } = &mut setup.scored[0] else { return };
                    *generated = true;
                },
                "rte: generated documents",
            ),
            ("rte", &calibrated(|of| of.calibration.sequences = 64), "64 calibration sequences, not 128"),
            ("rte", &calibrated(|of| of.calibration.length = 512), "calibration sequences of 512 tokens, not 2048"),
            ("rte", &calibrated(|of| of.calibration.operator_sequences = 128), "operators from 128 sequences, not 32"),
            ("rte", &calibrated(|of| of.generated = true), "calibrated on generated text (c4-train)"),
            ("rte", &calibrated(|of| of.rule = "ptb".into()), "c4-train cut by the rule ptb"),
        ] {
            assert_eq!(ours(metric, change), differs);
        }
        // Without a repair nothing is computed from the operators' sequences.
        let pruned = calibrated(|of| (of.repaired, of.calibration.operator_sequences) = (false, 128));
        assert_eq!(ours("rte", &pruned), "");
    }

    #[test]
    fn a_mean_of_other_tasks_is_not_the_papers() {
        let paper = [record("sleb", "c4", "acc_average", 60.0)];
        let mut ours = number(record("sleb", "c4", "acc_average", 60.0));
        ours.setup.scored = metric::tasks().into_iter().map(|name| task(name, 277)).collect();
        let beside = |ours: &Number| PaperComparison::of(ours, &paper, &Tolerance::default()).unwrap();
        assert_eq!(beside(&ours).verdict, PaperVerdict::Same);
        ours.setup.scored.truncate(3);
        let other = beside(&ours).verdict.to_string();
        assert_eq!(other, "other protocol: a mean of 3 tasks, not of the paper's 9");
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
        let misses = Gate::of(&ours, &paper, &Tolerance::default()).misses;
        assert_eq!(
            misses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["llama: rte is 61.50, the paper has 60.00 (± 1.00)"]
        );
        assert_eq!(GateFailure::backbones(&misses), ["llama"]);
        let wide = Tolerance { accuracy: 2.0, perplexity: 2.0 };
        assert_eq!(Gate::of(&ours, &paper, &wide), Gate::default());
        // Another table has another value for it.
        let more = [&paper[..], &[record(DENSE, "c4", "rte", 64.0)]].concat();
        let misses = Gate::of(&ours, &more, &Tolerance::default()).misses;
        assert_eq!(misses[0].to_string(), "llama: rte is 61.50, the paper has 60.00 (± 1.00) or 64.00 (± 1.00)");
        let more = [&paper[..], &[record(DENSE, "c4", "rte", 62.0)]].concat();
        assert!(Gate::of(&ours, &more, &Tolerance::default()).misses.is_empty());
    }

    #[test]
    fn the_gate_stops_nothing_by_numbers_of_another_protocol_and_says_that_it_knows_nothing() {
        let paper = [record(DENSE, "c4", "ppl_c4", 10.0)];
        let mut ours = number(record(DENSE, "c4", "ppl_c4", 99.0));
        ours.setup.scored = vec![text(256, 256)];
        let gate = Gate::of(&[ours], &paper, &Tolerance::default());
        assert!(gate.misses.is_empty());
        assert_eq!(gate.unknown, [("llama".into(), "other protocol: windows of 256 tokens, not 2048".into())]);
        let gate = Gate::of(&[number(record(DENSE, "c4", "boundary_mae", 1.0))], &paper, &Tolerance::default());
        assert_eq!(gate.unknown.len(), 1, "nothing that the paper has");
    }
}
