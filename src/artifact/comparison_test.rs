//! Tests for the comparison with the paper and for the gate.

use super::*;
use crate::corpus::ShardOrder;
use crate::distill::Finetune;
use crate::grid::Calibration;
use crate::metric;
use crate::model::{CPU, EngineId};
use crate::pipeline::identity::Identity;
use crate::results::{CalibrationSummary, Protocol, ResultRow, Settings, Setup, settings};
use crate::tasks::Bos;

fn record(criterion: &str, calibration: &str, metric: &str, value: f64) -> Record {
    let condition = Condition {
        backbone: "llama".into(),
        layers: 32,
        depth: if criterion == DENSE { 0 } else { 7 },
        unit: crate::criterion::DepthUnit::Layers,
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
        rule: "c4-stream".into(),
        shards: Some(ShardOrder::OneByOne),
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
        bos: Bos::Tokenizer,
        limit: None,
        max_length: None,
        documents,
        original: 277,
        full_split: documents == 277,
        generated: false,
    }
}

/// Creates a number that follows the paper's protocol.
fn number(record: Record) -> ResultRow {
    let scored = vec![if record.metric == "rte" { task("rte", 277) } else { text(2048, 256) }];
    let calibration =
        Calibration { corpus: "c4-train".into(), sequences: 128, length: 2048, seed: 0, operator_sequences: 32 };
    let calibrated = CalibrationSummary {
        calibration,
        rule: "c4-stream".into(),
        shards: Some(ShardOrder::ByTurns),
        generated: false,
        repaired: true,
        finetune: None,
    };
    let calibration = (record.condition.criterion != DENSE).then_some(calibrated);
    let setup = Setup { scored, calibration, ..Setup::default() };
    ResultRow { setup, ..ResultRow::new(record, "") }
}

fn settings_with(option: &str, value: &str) -> Arc<Settings> {
    let options = serde_json::Map::from_iter([(option.to_owned(), value.into())]);
    let options = crate::recovery::build_resolved("ghosted", &options).map(|resolved| resolved.1);
    let method = Settings::from([("recovery".to_owned(), "ghosted".into())]);
    Arc::new(method.into_iter().chain(settings::flatten_below("recovery", &options.unwrap())).collect())
}

#[test]
fn value_is_compared_with_the_papers_value_for_its_condition() {
    let paper = [record("sleb", "c4:16", "ppl_c4", 50.0), record("sleb", "c4:32", "ppl_c4", 100.0)];
    let tolerance = Tolerance { accuracy: 1.0, perplexity: 2.0 };
    let comparison = compare_with_paper(&paper, &tolerance, "c4:32", "ppl_c4", 101.5).unwrap();
    assert_eq!((comparison.paper, comparison.difference, comparison.tolerance), (100.0, Some(1.5), 2.0));
    assert_eq!(comparison.verdict, PaperVerdict::Same);
    assert_eq!(
        compare_with_paper(&paper, &tolerance, "c4:32", "ppl_c4", 103.0).unwrap().verdict,
        PaperVerdict::Differs
    );
    assert_eq!(compare_with_paper(&paper, &tolerance, "wikitext2", "ppl_c4", 1.0), None);
    assert_eq!(compare_with_paper(&paper, &tolerance, "c4:32", "rte", 1.0), None);
    let mut failed = record("sleb", "c4:32", "ppl_c4", 1.0);
    failed.value = None;
    assert_eq!(compare(&number(failed), &paper, &tolerance).unwrap().verdict, PaperVerdict::Missing);
}

fn compare_with_paper(
    paper: &[Record; 2],
    tolerance: &Tolerance,
    calibration: &str,
    metric: &str,
    value: f64,
) -> Option<PaperComparison> {
    compare(&number(record("sleb", calibration, metric, value)), paper, tolerance)
}

type Change = fn(&mut Setup);

fn calibration_of(setup: &mut Setup) -> &mut CalibrationSummary {
    setup.calibration.as_mut().unwrap()
}

/// Sets the float type of the engine in the identity of a backbone.
fn set_dtype(setup: &mut Setup, dtype: &'static str) {
    let engine = Arc::new(EngineId { dtype, ..CPU }.into());
    setup.identity = Some(Arc::new(Identity { engine, ..Identity::tiny() }));
}

/// Changes the training settings in a setup that otherwise follows the paper.
fn change_finetuning(setup: &mut Setup, change: fn(&mut Finetune)) {
    let mut training = Finetune { sequences: 5000, length: 2048, seed: 0 };
    change(&mut training);
    calibration_of(setup).finetune = Some(training);
}

/// Metric, change to the protocol, and the difference that must be reported.
const OTHER_PROTOCOLS: [(&str, Change, &str); 18] = [
    ("ppl_c4", |setup| setup.scored = vec![text(256, 256)], "windows of 256 tokens (paper: 2048)"),
    ("ppl_c4", |setup| setup.scored = vec![text(2048, 32)], "32 of 256 windows of c4"),
    ("rte", |setup| setup.scored = vec![task("rte", 100)], "rte: 100 of 277 documents"),
    (
        "rte",
        |setup| {
            let Protocol::MultipleChoice { bos, .. } = &mut setup.scored[0] else { return };
            *bos = Bos::Never;
        },
        "BOS never",
    ),
    (
        "rte",
        |setup| {
            let Protocol::MultipleChoice { generated, .. } = &mut setup.scored[0] else { return };
            *generated = true;
        },
        "rte: generated documents",
    ),
    ("rte", |setup| calibration_of(setup).calibration.sequences = 64, "64 calibration sequences (paper: 128)"),
    (
        "rte",
        |setup| calibration_of(setup).calibration.length = 512,
        "calibration sequences of 512 tokens (paper: 2048)",
    ),
    (
        "rte",
        |setup| calibration_of(setup).calibration.operator_sequences = 128,
        "operators from 128 sequences (paper: 32)",
    ),
    ("rte", |setup| calibration_of(setup).generated = true, "calibrated on generated text (c4-train)"),
    (
        "rte",
        |setup| change_finetuning(setup, |training| training.sequences = 64),
        "trained on 64 sequences (paper: 5000)",
    ),
    (
        "rte",
        |setup| change_finetuning(setup, |training| training.length = 256),
        "trained on sequences of 256 tokens (paper: 2048)",
    ),
    ("rte", |setup| change_finetuning(setup, |training| training.seed = 3), "trained with seed 3 (paper: 0)"),
    ("rte", |setup| calibration_of(setup).rule = "ptb".into(), "c4-train split by the rule ptb"),
    ("rte", |setup| calibration_of(setup).calibration.seed = 7, "calibration seed 7 (paper: 0)"),
    ("rte", |setup| set_dtype(setup, "bf16"), "computed in bf16 instead of float16 or f32"),
    ("rte", |setup| setup.variant = settings_with("solver", "svd"), "ghosted with solver svd instead of solver normal"),
    // LinearPatch's loader uses the rule `c4`, which differs from the paper's.
    ("rte", |setup| calibration_of(setup).rule = "c4".into(), "c4-train split by the rule c4"),
    (
        "ppl_c4",
        |setup| {
            let Protocol::Windows { rule, .. } = &mut setup.scored[0] else { return };
            *rule = "c4".into();
        },
        "c4 split by the rule c4",
    ),
];

#[test]
fn value_of_another_protocol_has_no_verdict() {
    let paper = [record("sleb", "c4", "ppl_c4", 100.0), record("sleb", "c4", "rte", 60.0)];
    assert_eq!(describe_other_protocol(&paper, "ppl_c4", |_| {}), "");
    assert_eq!(describe_other_protocol(&paper, "rte", |_| {}), "");
    for (metric, change, differs) in OTHER_PROTOCOLS {
        assert_eq!(describe_other_protocol(&paper, metric, change), differs);
    }
    // A setting that our condition names is also named in the paper's condition, so it is not reported. Settings that
    // the paper does not specify may have any value.
    let named = describe_other_protocol(&paper, "rte", |setup| {
        setup.variant = settings_with("solver", "svd");
        setup.named_settings = Arc::new(["recovery.solver".to_owned()].into());
    });
    assert_eq!(named, "");
    assert_eq!(describe_other_protocol(&paper, "rte", |setup| setup.variant = settings_with("boundary", "layer")), "");
    for dtype in ["f16", "f32"] {
        assert_eq!(describe_other_protocol(&paper, "rte", |setup| set_dtype(setup, dtype)), "");
    }
    // The operator sequences have no effect if nothing is repaired.
    let pruned = describe_other_protocol(&paper, "rte", |setup| {
        calibration_of(setup).repaired = false;
        calibration_of(setup).calibration.operator_sequences = 128;
    });
    assert_eq!(pruned, "");
}

fn describe_other_protocol(paper: &[Record; 2], metric: &str, change: impl Fn(&mut Setup)) -> String {
    let mut ours = number(record("sleb", "c4", metric, 100.0));
    change(&mut ours.setup);
    let comparison = compare(&ours, paper, &Tolerance::default()).unwrap();
    assert_eq!(comparison.verdict_label().is_some(), comparison.verdict.other_protocol().is_none());
    comparison.verdict.other_protocol().unwrap_or_default()
}

/// Reason to ignore the settings of repairs between two removals.
const ITERATIVE: &str = "only with `iterative: true`, an option that no row of the paper has";

/// Settings that the comparison ignores, with the reason for each.
const IGNORED_SETTINGS: [(&str, &str); 50] = [
    ("model.weights", "backbones with rounded weights have other names than the paper's"),
    ("calibration.weights", "backbones with rounded weights have other names than the paper's"),
    ("engine.name", "engines with the paper's float types are close enough"),
    ("engine.device", "engines with the paper's float types are close enough"),
    ("cut.criterion", "part of the condition"),
    ("cut.depth", "part of the condition"),
    ("cut.known", "the paper does not state the source of an order"),
    ("cut.version", "fixed by the program"),
    ("cut.repaired.fitted", ITERATIVE),
    ("cut.repaired.options", ITERATIVE),
    ("cut.repaired.recovery", ITERATIVE),
    ("cut.repaired.training.length", ITERATIVE),
    ("cut.repaired.training.seed", ITERATIVE),
    ("cut.repaired.training.sequences", ITERATIVE),
    ("cut.repaired.version", ITERATIVE),
    ("repair.recovery", "part of the condition"),
    ("repair.version", "fixed by the program"),
    ("calibration.text.bytes", "texts are matched by name"),
    ("calibration.text.format", "texts are matched by name"),
    ("calibration.text.column", "texts are matched by name"),
    ("calibration.text.shards.order", "either may be the authors'"),
    ("calibration.text.shards.of", "texts are matched by name"),
    ("calibration.text.shards.read", "texts are matched by name"),
    ("measure.boundary", "metrics of the repair, which the paper does not print"),
    ("measure.windows.text.bytes", "texts are matched by name"),
    ("measure.windows.text.format", "texts are matched by name"),
    ("measure.windows.text.column", "texts are matched by name"),
    ("measure.windows.text.shards.order", "either may be the authors'"),
    ("measure.windows.text.shards.of", "texts are matched by name"),
    ("measure.windows.text.shards.read", "texts are matched by name"),
    ("measure.windows.batch", "fixed by the engine"),
    ("measure.windows.draw.seed", "only searches use it"),
    ("measure.windows.draw.from", "only searches use it"),
    ("measure.windows.draw.to", "only searches use it"),
    ("measure.task.draw.seed", "only searches use it"),
    ("measure.task.draw.from", "only searches use it"),
    ("measure.task.draw.to", "only searches use it"),
    ("measure.task.task", "part of the metric"),
    ("measure.task.version", "fixed by the program"),
    ("measure.task.formats", "tasks are matched by name and document count"),
    ("measure.task.prefix", "the backbone's own"),
    ("measure.task.batch", "fixed by the engine"),
    ("measure.prefill.length", "part of the metric"),
    ("measure.prefill.batch", "part of the metric"),
    ("measure.prefill.decode", "part of the metric, and the paper decodes nothing"),
    ("measure.prefill.warmups", "fixed by the program"),
    ("measure.prefill.rounds", "fixed by the program"),
    ("measure.prefill.among", "only the paper's machine gets a verdict"),
    ("measure.defined", "the paper uses no task definitions"),
    ("measure", "its fields are listed separately"),
];

/// Settings that the comparison checks, each with a change that it must report.
const COMPARED_SETTINGS: [(&str, Change); 21] = [
    ("model.content", |setup| setup.unidentified = Some("another backbone".into())),
    ("model.tokenizer", |setup| setup.unidentified = Some("another backbone".into())),
    ("engine.dtype", |setup| set_dtype(setup, "bf16")),
    ("cut.options", |setup| {
        let options = [("criterion", "llm-streamline"), ("criterion.cosine", "token")];
        setup.variant = Arc::new(options.map(|(name, value)| (name.to_owned(), value.into())).into());
    }),
    ("repair.options", |setup| setup.variant = settings_with("solver", "svd")),
    ("repair.fitted", |setup| calibration_of(setup).calibration.operator_sequences = 16),
    ("repair.training.sequences", |setup| change_finetuning(setup, |training| training.sequences = 64)),
    ("repair.training.length", |setup| change_finetuning(setup, |training| training.length = 64)),
    ("repair.training.seed", |setup| change_finetuning(setup, |training| training.seed = 1)),
    ("calibration.text.rule", |setup| calibration_of(setup).rule = "ptb".into()),
    ("calibration.sequences", |setup| calibration_of(setup).calibration.sequences = 64),
    ("calibration.length", |setup| calibration_of(setup).calibration.length = 64),
    ("calibration.seed", |setup| calibration_of(setup).calibration.seed = 1),
    ("measure.windows.text.rule", |setup| {
        let Protocol::Windows { rule, .. } = &mut setup.scored[0] else { return };
        *rule = "c4".into();
    }),
    ("measure.windows.length", |setup| setup.scored = vec![text(256, 256)]),
    ("measure.windows.limit", |setup| setup.scored = vec![text(2048, 32)]),
    ("measure.task.rows", |setup| setup.scored = vec![task("rte", 300)]),
    ("measure.task.limit", |setup| setup.scored = vec![task("rte", 100)]),
    ("measure.task.bos", |setup| {
        let mut protocol = task("rte", 277);
        let Protocol::MultipleChoice { bos, .. } = &mut protocol else { return };
        *bos = Bos::Never;
        setup.scored = vec![protocol];
    }),
    ("measure.task.max_length", |setup| {
        let mut protocol = task("rte", 277);
        let Protocol::MultipleChoice { max_length, .. } = &mut protocol else { return };
        *max_length = Some(64);
        setup.scored = vec![protocol];
    }),
    ("measure.prefill.machine", |setup| {
        setup.scored = vec![Protocol::Latency {
            metric: &metric::PREFILL,
            length: 16,
            batch: 1,
            decode: None,
            several: false,
            warmups: 1,
            rounds: 1,
            machine: "another".into(),
        }];
    }),
];

#[test]
fn every_setting_path_affects_the_verdict_or_is_listed() {
    for (path, change) in &COMPARED_SETTINGS {
        let mut ours = number(record("sleb", "c4", "ppl_c4", 100.0));
        assert_eq!(protocol_differences(&ours), Vec::<String>::new());
        change(&mut ours.setup);
        assert_eq!(protocol_differences(&ours).len(), 1, "{path}: {:?}", protocol_differences(&ours));
    }
    let paths = crate::pipeline::identity::setting_paths();
    for path in &paths {
        let judged = COMPARED_SETTINGS.iter().any(|(name, _)| path.is_of(name));
        let open = IGNORED_SETTINGS.iter().any(|(name, _)| *name == path.as_str()) || path.is_of("measure.defined");
        assert!(judged != open, "{path}: either affects the verdict, or is listed here with a reason");
    }
}

#[test]
fn mean_of_other_tasks_has_no_paper_value() {
    let paper = [record("sleb", "c4", "acc_average", 60.0)];
    let mut ours = number(record("sleb", "c4", "acc_average", 60.0));
    ours.setup.scored = metric::tasks().into_iter().map(|name| task(name, 277)).collect();
    assert_eq!((compare(&ours, &paper, &Tolerance::default()).unwrap()).verdict, PaperVerdict::Same);
    ours.setup.scored.truncate(3);
    let other = (compare(&ours, &paper, &Tolerance::default()).unwrap()).verdict.to_string();
    assert_eq!(other, "other protocol: a mean of 3 tasks (paper: 9)");
}

#[test]
fn gate_names_the_metrics_outside_the_tolerance() {
    let paper =
        [record(DENSE, "c4", "rte", 60.0), record(DENSE, "c4", "ppl_c4", 10.0), record("sleb", "c4", "rte", 9.0)];
    // The scores of a dense backbone do not depend on the calibration.
    let ours = [
        Arc::new(number(record(DENSE, "wikitext2", "rte", 61.5))),
        Arc::new(number(record(DENSE, "wikitext2", "ppl_c4", 10.1))),
        Arc::new(number(record("sleb", "c4", "rte", 50.0))),
    ];
    let misses = Gate::check(&ours, &paper, &Tolerance::default()).misses;
    assert_eq!(
        misses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["llama: rte is 61.50, the paper has 60.00 (± 1.00)"]
    );
    assert_eq!(GateFailure::backbones(&misses), ["llama"]);
    let wide = Tolerance { accuracy: 2.0, perplexity: 2.0 };
    assert_eq!(Gate::check(&ours, &paper, &wide), Gate::default());
    // Another table prints a different value for the same score.
    let more = [&paper[..], &[record(DENSE, "c4", "rte", 64.0)]].concat();
    let misses = Gate::check(&ours, &more, &Tolerance::default()).misses;
    assert_eq!(misses[0].to_string(), "llama: rte is 61.50, the paper has 60.00 (± 1.00) or 64.00 (± 1.00)");
    let more = [&paper[..], &[record(DENSE, "c4", "rte", 62.0)]].concat();
    assert!(Gate::check(&ours, &more, &Tolerance::default()).misses.is_empty());
}

#[test]
fn gate_reports_scores_of_other_protocols_as_unknown() {
    let paper = [record(DENSE, "c4", "ppl_c4", 10.0)];
    let mut ours = number(record(DENSE, "c4", "ppl_c4", 99.0));
    ours.setup.scored = vec![text(256, 256)];
    let gate = Gate::check(&[Arc::new(ours)], &paper, &Tolerance::default());
    assert!(gate.misses.is_empty());
    assert_eq!(gate.unknown, [("llama".into(), "other protocol: windows of 256 tokens (paper: 2048)".into())]);
    let gate =
        Gate::check(&[Arc::new(number(record(DENSE, "c4", "boundary_mae", 1.0)))], &paper, &Tolerance::default());
    assert_eq!(gate.unknown.len(), 1, "the paper has no value of this metric");
}
