//! Checks every criterion, recovery and option, on every engine and in every float type, against numpy implementations
//! of the formulas in f64. The expected values are in tests/fixtures/methods.json, which tools/method_oracles.py
//! writes. That script's forward pass is checked against transformers. The tolerances are those of the engines
//! ([`Tolerance`]).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::common;
use crate::common::stories::{CalibrationResult, calibrated, perplexities};
use crate::common::{engines_of_all_types, fixture, no_trials, numbers, relative_error};
use candle_core::Device;
use ghostlab_core::calibrate::{HookPoint, Similarities};
use ghostlab_core::corpus::{Start, Windows};
use ghostlab_core::criterion::{self, CalibrationStats, DepthUnit, PruneSpec, Trial, TrialMetric};
use ghostlab_core::distill::{Checkpoint, Finetune, LayersAfter, Training, top_tokens};
use ghostlab_core::model::{Cut, Engine, Operator, Program, Repairs, Sublayer, Tolerance};
use ghostlab_core::options::{MethodDescription, Options};
use ghostlab_core::recovery::{self, Boundary, Repair, RepairMetrics, Span};
use serde_json::{Value, json};

fn windows(ids: &Value) -> Windows {
    let rows: Vec<Vec<f64>> = ids.as_array().unwrap().iter().map(numbers).collect();
    Windows {
        ids: rows.iter().flatten().map(|&id| id as u32).collect(),
        length: rows[0].len(),
        starts: (0..rows.len()).map(|document| Start { document, token: 0 }).collect(),
        corpus_tokens: 0,
        bytes: 0,
    }
}

fn layers(value: &Value) -> Vec<usize> {
    numbers(value).into_iter().map(|layer| layer as usize).collect()
}

fn options(value: &Value) -> Options {
    value.as_object().unwrap().clone()
}

/// Backbone on one engine, with its calibration windows.
struct Case<'a> {
    engine: &'a dyn Engine,
    calibration: &'a Windows,
    calibrated: CalibrationResult,
    operator_sequences: usize,
    tolerance: f64,
    name: String,
}

impl Case<'_> {
    /// Asserts that the error of a result is within its bound: the engine's tolerance for activations, times the factor
    /// by which the problem amplifies errors (`moves` in the reference data).
    fn assert_near(&self, what: &str, ours: &[f64], expected: &[f64], bounds: &Value) {
        let error = relative_error(ours, expected);
        let amplification = bounds["moves"].as_f64().unwrap();
        let max = amplification * self.tolerance;
        assert!(error <= max, "{}: {what}: error {error:e} exceeds {max:e}", self.name);
    }

    fn check_criterion(&self, expected: &Value) {
        let name = expected["name"].as_str().unwrap();
        let depth = expected["depth"].as_u64().unwrap() as usize;
        let rule = criterion::build(name, &options(&expected["options"])).unwrap();
        let cut = PruneSpec { backbone: "b", layers: self.engine.config().layers, depth, unit: DepthUnit::Layers };
        let mut perplexities = |_: TrialMetric, trials: &[Trial]| {
            let programs: Vec<Program> = trials.iter().map(|trial| trial.program(cut.layers)).collect();
            Ok(perplexities(self.engine, &programs, self.calibration))
        };
        let mut stats =
            CalibrationStats::new(&self.calibrated.similarities, Some(&self.calibrated.activations), &mut perplexities);
        let found = rule.select(&cut, &mut stats).unwrap();
        let what = format!("{name} {} at depth {depth}", expected["options"]);
        assert_eq!(found.removed, layers(&expected["removed"]), "{}: {what}: {:?}", self.name, found.scores);
        let scores: Vec<Vec<f64>> = expected["scores"].as_array().unwrap().iter().map(numbers).collect();
        let order: Vec<f64> = found.scores.iter().map(|(layer, _)| *layer as f64).collect();
        assert_eq!(order, scores.iter().map(|score| score[0]).collect::<Vec<_>>(), "{what}");
        let (ours, theirs): (Vec<f64>, Vec<f64>) =
            found.scores.iter().zip(&scores).map(|((_, ours), score)| (*ours, score[1])).unzip();
        if !ours.is_empty() {
            self.assert_near(&what, &ours, &theirs, expected);
        }
    }

    /// Compares the operators of a recovery with the expected ones, and returns the repaired program.
    fn check_recovery(&self, expected: &Value) -> Program {
        let name = expected["name"].as_str().unwrap();
        let removed = layers(&expected["removed"]);
        let what = format!("{name} {} without {removed:?}", expected["options"]);
        let method = recovery::build(name, &options(&expected["options"])).unwrap();
        let all = self.calibrated.activations.shape().sequences;
        let one_block = removed.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let fitted = method.fit_sequences(one_block).count(all, self.operator_sequences);
        assert_eq!(fitted as u64, expected["fitted"].as_u64().unwrap(), "{what}");
        let regions = removed.chunk_by(|a, b| a + 1 == *b).map(|layers_of_region| {
            Span::layers(layers_of_region[0], layers_of_region[layers_of_region.len() - 1] + 1)
        });
        let spans: Vec<Span> = regions.flat_map(|region| method.spans(region)).collect();
        let boundaries = expected["boundaries"].as_array().unwrap();
        assert_eq!(spans.len(), boundaries.len(), "{what}");
        let mut earlier = Vec::new();
        let mut repairs = Repairs::default();
        for (&span, expected) in spans.iter().zip(boundaries) {
            let what = format!("{what}, {span:?}");
            assert_eq!([span.start, span.end].to_vec(), layers(&expected["span"]), "{what}");
            let boundary = Boundary {
                earlier: &earlier,
                starts: &self.calibration.starts,
                ..Boundary::new(self.engine, &self.calibrated.activations, span, fitted)
            };
            let solution = method.solve(&boundary).unwrap();
            let metrics = RepairMetrics::compute(&boundary, &solution.repair).unwrap();
            if let Some(operator) = solution.repair.operator() {
                self.check_operator(&what, operator, expected);
            }
            self.assert_near(
                &format!("{what}: error"),
                &[metrics.boundary_mae],
                &[expected["mae"].as_f64().unwrap()],
                expected,
            );
            place_repair(&mut repairs, &removed, span, &solution.repair);
            earlier.push((span, solution.repair));
        }
        Program::repaired(self.engine.config().layers, &Cut::layers(removed.iter().copied()), &repairs)
    }

    /// Trains an operator, starting from the identity, with one step per calibration sequence, and compares the result.
    /// The comparison is most informative in f32. In half precision, steps of elements with near-zero gradients may
    /// have either sign, which `moves` accounts for.
    fn check_training(&self, expected: &Value, folder: &Path, text: &Windows) {
        let removed = layers(&expected["removed"]);
        let config = self.engine.config();
        let start = removed[0];
        let end = removed[removed.len() - 1] + 1;
        let activations = &self.calibrated.activations;
        let channels = config.hidden;
        let tail = LayersAfter::load(config, folder, end, &Device::Cpu).unwrap();
        let identity: Vec<f32> =
            (0..channels * channels).map(|index| f32::from(u8::from(index % (channels + 1) == 0))).collect();
        let mut training = Training::new(&tail, Checkpoint::start(identity.clone())).unwrap();
        for index in 0..self.calibration.count() {
            let rows = index * self.calibration.length..(index + 1) * self.calibration.length;
            let [input, output] =
                [start, config.layers].map(|layer| activations.rows(HookPoint::Stream(layer), rows.clone()).unwrap());
            let teacher = top_tokens(&tail.project_rows(output).unwrap(), Finetune::TOP_TOKENS).unwrap();
            training.step(input, &teacher).unwrap();
        }
        let trained = &training.state().matrix;
        let change: Vec<f64> =
            trained.iter().zip(&identity).map(|(after, before)| f64::from(*after) - f64::from(*before)).collect();
        let operator = Operator::dense(channels, trained.clone()).unwrap();
        let program = Program::pruned(config.layers, &removed, |index| (index == start).then(|| operator.clone()));
        for (key, ours) in [
            ("losses", training.state().losses.clone()),
            ("probe", probe_matrix(&change, channels)),
            ("norm", vec![change.iter().map(|v| v * v).sum::<f64>().sqrt()]),
            ("perplexity", perplexities(self.engine, &[program], text)),
        ] {
            let what = format!("training without {removed:?}: {key}");
            let theirs =
                if expected[key].is_array() { numbers(&expected[key]) } else { vec![expected[key].as_f64().unwrap()] };
            let mut amplification = expected["moves"][key].as_f64().unwrap();
            if ["probe", "norm"].contains(&key) {
                // The matrix is stored in f32, so each step rounds its diagonal, whose elements are near 1.
                let rounding = (channels as f64).sqrt() * training.steps() as f64 * f64::from(f32::EPSILON) / 2.0;
                amplification += rounding / theirs.iter().map(|v| v * v).sum::<f64>().sqrt() / self.tolerance;
            }
            self.assert_near(&what, &ours, &theirs, &json!({"moves": amplification}));
        }
    }

    fn check_operator(&self, what: &str, operator: &Operator, expected: &Value) {
        let channels = self.engine.config().hidden;
        let matrix: Vec<f64> = operator.matrix().unwrap().into_iter().map(f64::from).collect();
        self.assert_near(
            &format!("{what}: matrix"),
            &probe_matrix(&matrix, channels),
            &numbers(&expected["probe"]),
            expected,
        );
        let norm = matrix.iter().map(|v| v * v).sum::<f64>().sqrt();
        self.assert_near(&format!("{what}: norm"), &[norm], &[expected["norm"].as_f64().unwrap()], expected);
        match operator.bias().unwrap() {
            Some(bias) => {
                let bias: Vec<f64> = bias.into_iter().map(f64::from).collect();
                self.assert_near(&format!("{what}: bias"), &bias, &numbers(&expected["bias"]), expected);
            }
            None => assert!(expected["bias"].is_null(), "{what}"),
        }
    }
}

/// Multiplies a fixed probe row by a matrix.
fn probe_matrix(matrix: &[f64], channels: usize) -> Vec<f64> {
    let probe: Vec<f64> = (0..channels).map(|i| (i as f64 * 0.7).cos()).collect();
    (0..channels).map(|j| (0..channels).map(|i| probe[i] * matrix[i * channels + j]).sum()).collect()
}

/// Adds a repair to the repairs of a program. Branch maps of spans with the same preceding layer are composed.
fn place_repair(repairs: &mut Repairs, removed: &[usize], span: Span, repair: &Repair) {
    let (operator, sublayers): (_, &[Sublayer]) = match repair {
        Repair::Cut => return,
        Repair::Merged(merged) => return drop(repairs.merged.insert(merged.layer(), merged.clone())),
        Repair::Stream(operator) => (operator, &[]),
        Repair::Branches { operator, attention: true } => (operator, &[Sublayer::Attention, Sublayer::Mlp]),
        Repair::Branches { operator, attention: false } => (operator, &[Sublayer::Mlp]),
    };
    let before = (0..span.start).rev().find(|layer| !removed.contains(layer));
    let Some(layer) = before.filter(|_| !sublayers.is_empty()) else {
        repairs.stream.insert(span.start, Arc::clone(operator));
        return;
    };
    for &sublayer in sublayers {
        let product = match repairs.branches.get(&(layer, sublayer)) {
            Some(first) => first.compose(operator).unwrap(),
            None => Arc::clone(operator),
        };
        repairs.branches.insert((layer, sublayer), product);
    }
}

fn check_every_method(backbone: &str) {
    let golden = common::json(&fixture("methods.json"));
    let calibration = windows(&golden["calibration"]);
    let text = windows(&golden["windows"]);
    let operator_sequences = golden["operator_sequences"].as_u64().unwrap() as usize;
    let expected = &golden["backbones"][backbone];
    let folder = fixture(&format!("arch/{backbone}"));
    for engine in engines_of_all_types(&folder) {
        let (engine, id) = (&*engine, engine.id());
        let case = Case {
            engine,
            calibration: &calibration,
            calibrated: calibrated(engine, &calibration),
            operator_sequences,
            tolerance: Tolerance::for_dtype(id.dtype).activations,
            name: format!("{backbone} on {id}"),
        };
        expected["criteria"].as_array().unwrap().iter().for_each(|expected_case| case.check_criterion(expected_case));
        let recoveries = expected["recoveries"].as_array().unwrap();
        let programs: Vec<Program> =
            recoveries.iter().map(|expected_case| case.check_recovery(expected_case)).collect();
        for (expected_case, ours) in recoveries.iter().zip(perplexities(engine, &programs, &text)) {
            let what = format!(
                "{} {} without {}: perplexity",
                expected_case["name"], expected_case["options"], expected_case["removed"]
            );
            case.assert_near(&what, &[ours], &[expected_case["perplexity"].as_f64().unwrap()], expected_case);
        }
        expected["trainings"]
            .as_array()
            .unwrap()
            .iter()
            .for_each(|expected_case| case.check_training(expected_case, &folder, &text));
    }
}

#[test]
fn every_method_matches_its_formula_on_every_engine() {
    check_every_method("llama-gqa");
}

#[test]
fn every_method_matches_its_formula_with_branch_norms() {
    check_every_method("olmo2");
}

#[test]
fn published_removal_orders_need_no_calibration() {
    let golden = common::json(&fixture("methods.json"));
    let cases = golden["released"].as_array().unwrap();
    assert_eq!(cases.len(), 4 * 4, "expected two backbones, two scores and four depths");
    for case in cases {
        let known = options(&case["options"]);
        let rule = criterion::build("shortened-llama", &known).unwrap();
        let cut = PruneSpec {
            backbone: "of-mine",
            layers: number_of("layers", case),
            depth: number_of("depth", case),
            unit: DepthUnit::Layers,
        };
        rule.check("shortened-llama", &cut).unwrap();
        assert!(rule.pairs(&cut).is_empty() && rule.sites(&cut).is_empty() && rule.trials(&cut).is_empty());
        let mut none = no_trials;
        let similarities = Similarities::default();
        let mut stats = CalibrationStats::new(&similarities, None, &mut none);
        let found = rule.select(&cut, &mut stats).unwrap();
        assert_eq!(found.removed, layers(&case["removed"]), "{}", case["options"]);
    }
}

fn number_of(key: &str, case: &Value) -> usize {
    case[key].as_u64().unwrap() as usize
}

/// Methods that `sublayers.rs`, `nbl.rs`, `merge.rs` and `laco.rs` compare with another reference.
const OTHER_REFERENCES: [&str; 6] = ["llm-drop", "block-pruner", "finercut", "nbl", "merge", "laco"];

/// Requires that every option is set in at least one case of the reference data.
#[test]
fn golden_cases_cover_every_method_and_option() {
    let golden = common::json(&fixture("methods.json"));
    let backbones: Vec<&Value> = golden["backbones"].as_object().unwrap().values().collect();
    for (kind, described) in [("criteria", criterion::descriptions()), ("recoveries", recovery::descriptions())] {
        for MethodDescription { name, options, .. } in
            described.into_iter().filter(|method| !OTHER_REFERENCES.contains(&&*method.name))
        {
            let cases_of_method: Vec<&Value> = backbones
                .iter()
                .flat_map(|case| case[kind].as_array().unwrap())
                .filter(|case| case["name"] == name)
                .collect();
            assert!(!cases_of_method.is_empty(), "no golden case contains {name}");
            let released = golden["released"].as_array().unwrap().iter().filter(|_| name == "shortened-llama");
            let all = cases_of_method.into_iter().chain(released);
            let used: BTreeSet<&str> =
                all.flat_map(|case| case["options"].as_object().unwrap().keys().map(String::as_str)).collect();
            let known = options["properties"].as_object().into_iter().flatten().map(|(option, _)| option);
            // The cases in `trainings` cover `finetune`, because training works alike for every initial operator. The
            // option `target` is determined by `granularity`.
            let trained = backbones.iter().all(|case| !case["trainings"].as_array().unwrap().is_empty());
            // `iterative.rs` tests the option `iterative`, and `tests/sublayers.rs` tests `sublayers`, with other
            // reference data.
            let tested_elsewhere = ["target", "iterative", "sublayers"];
            for option in known
                .filter(|option| !((*option == "finetune" && trained) || tested_elsewhere.contains(&option.as_str())))
            {
                assert!(used.contains(option.as_str()), "no golden case of {name} sets {option}");
            }
        }
    }
}
