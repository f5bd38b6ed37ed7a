//! Compares methods that are not in the Ghosted Layers paper with a plain float64 implementation in PyTorch. The
//! expected values are in the `beyond` reference data, whose README documents the formulas and tolerances.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

pub(crate) mod world;

use std::sync::Arc;

use crate::common::stories::{perplexities, recovery};
use crate::common::{assert_close, compare_matrix, flat, no_trials, relative_error};
use crate::official::setting::{CalibrationResult, calibrate, layers, losses, pruned, spans};
use ghostlab_core::calibrate::PassRequest;
use ghostlab_core::checkpoint::Layout;
use ghostlab_core::criterion::{self, CalibrationStats, Criterion, DepthUnit, PruneSpec, Selection};
use ghostlab_core::model::{CPU, Cut, Engine, Operator, Program, RmsNorm, deploy};
use ghostlab_core::recovery::{Recovery, Repair, Solution, Span};
use serde_json::{Value, json};
use world::{OPERATOR_TOLERANCE, PERPLEXITY_TOLERANCE, SCORE_TOLERANCE, World};

/// Suffix of variants (repaired models) whose RMSNorm weight is multiplied into the operator matrix. Their results
/// equal those of `normed-bias`.
const UNIT_NORM_SUFFIX: &str = ":unit-normed-bias";

impl World {
    /// Returns the names and expected values of the variants that remove complete layers. Engines other than the CPU
    /// engine take minutes, so for them only the first cut and the first LoRP selection are returned.
    fn cuts(&self, engine: &dyn Engine) -> Vec<(&str, &Value)> {
        let kinds = ["cut:", "lorp:"];
        let mut cuts = self.variants(&kinds);
        // `variants` matches substrings, and `finercut:` contains `cut:`.
        cuts.retain(|(name, _)| kinds.iter().any(|kind| name.starts_with(kind)));
        if engine.id() != CPU {
            let first = kinds.map(|kind| {
                let (name, _) = cuts.iter().find(|(name, _)| name.starts_with(kind)).unwrap();
                &name[..=name.rfind(':').unwrap()]
            });
            cuts.retain(|(name, _)| first.iter().any(|cut| name.starts_with(cut)) && !name.ends_with(UNIT_NORM_SUFFIX));
        }
        cuts
    }

    /// Compares operators, selections, perplexities and damage on one engine.
    fn compare_cuts(&self, engine: &dyn Engine) {
        let mut request = PassRequest::default();
        let depth = 1;
        let all = engine.config().layers;
        request.pairs.extend(build_lorp(None).pairs(&PruneSpec {
            backbone: "",
            layers: all,
            depth,
            unit: DepthUnit::Layers,
        }));
        let cuts = self.cuts(engine);
        for (name, variant) in &cuts {
            let method = build_recovery(name);
            let spans = spans(&*method, &layers(&variant["removed"]));
            request.sites.extend(spans.into_iter().flat_map(|span| method.sites(span)));
        }
        let calibrated = calibrate(engine, &self.calibration, &request);
        self.compare_selections(engine, &calibrated);
        let programs: Vec<Program> = cuts
            .iter()
            .map(|&(name, variant)| {
                let removed = layers(&variant["removed"]);
                let solved = self.solve(engine, &calibrated, name, &removed);
                self.compare_operators(engine, name, variant, &solved);
                let program = pruned(all, &removed, &solved);
                let deployed = deploy(&program, engine.config());
                let checkpoint = Layout::plan(engine.config(), &self.folder, &deployed, None).unwrap();
                assert_eq!(variant["parameters"], checkpoint.parameters(), "{}: {name}: parameters", self.name);
                program
            })
            .collect();
        let compared = self.compare_variants(engine, &cuts, &programs);
        // Scoring the dense model together with variants must leave its losses bit-identical.
        let dense = [Program::dense(all)];
        let what = format!("{} on {}", self.name, engine.id());
        assert_eq!(losses(engine, &dense, &self.evaluation)[0].windows, compared.windows, "{what}");
        let expected = self.numbers["dense"]["calibration_ppl"].as_f64().unwrap();
        assert_close(&what, perplexities(engine, &dense, &self.calibration)[0], expected, PERPLEXITY_TOLERANCE);
    }

    /// Compares the layers that LoRP removes, their order and their redundancy scores.
    fn compare_selections(&self, engine: &dyn Engine, calibrated: &CalibrationResult) {
        // The reference data contains the similarities only once per backbone.
        let all = self.numbers["lorp"].as_object().unwrap();
        let similarity = all.values().find_map(|found| found["similarity"].as_array()).unwrap();
        for (name, expected) in all {
            let (depth, clusters) = name.split_once(":K=").map_or((name.as_str(), None), |(n, k)| (n, Some(k)));
            let clusters = clusters.map(|clusters| clusters.parse().unwrap());
            let selection = select(&*build_lorp(clusters), engine, calibrated, depth.parse().unwrap());
            let what = format!("{} on {}: lorp {name}", self.name, engine.id());
            assert_eq!(selection.removed, Cut::layers(layers(&expected["removed"])), "{what}");
            let order: Vec<usize> = selection.scores.iter().map(|(layer, _)| *layer).collect();
            assert_eq!(order, layers(&expected["order"]), "{what}");
            let labels = layers(&expected["labels"]);
            for (layer, redundancy) in selection.scores {
                let others = (0..labels.len()).filter(|&other| other != layer && labels[other] == labels[layer]);
                let others: Vec<f64> = others.map(|other| similarity[layer][other].as_f64().unwrap()).collect();
                let mean = others.iter().sum::<f64>() / others.len() as f64;
                assert_close(&format!("{what}: layer {layer}"), redundancy, mean, SCORE_TOLERANCE);
            }
        }
    }

    fn solve(
        &self,
        engine: &dyn Engine,
        calibrated: &CalibrationResult,
        name: &str,
        removed: &[usize],
    ) -> Vec<(Span, Solution)> {
        let method = build_recovery(name);
        spans(&*method, removed)
            .into_iter()
            .map(|span| {
                let mut solution = calibrated.solve(engine, &*method, span, self.calibration.count());
                if name.ends_with(UNIT_NORM_SUFFIX) {
                    solution.repair = Repair::Stream(with_unit_norm(solution.repair.operator().unwrap()));
                }
                (span, solution)
            })
            .collect()
    }

    /// Compares the Frobenius norms and element sums of operators with the reference data, and also their elements if
    /// the reference data contains them.
    fn compare_operators(&self, engine: &dyn Engine, name: &str, variant: &Value, solved: &[(Span, Solution)]) {
        if variant["operators"].is_null() {
            return;
        }
        let mut compared = 0;
        for (span, solution) in solved {
            let Some(operator) = solution.repair.operator() else { continue };
            for (part, values) in operator_parts(operator) {
                let key = format!("{}.{part}", span.start);
                let what = format!("{} on {}: {name}: {key}", self.name, engine.id());
                compare_matrix(&what, &values, &variant["operators"][&key], OPERATOR_TOLERANCE);
                let stored = name.strip_prefix("cut:").map(|cut| cut.replace(':', "."));
                let stored = stored.map(|cut| format!("{}/{cut}.{key}", self.name));
                if let Some(stored) = stored.and_then(|stored| self.operators.get(&stored)) {
                    let error = relative_error(&values, &flat(stored));
                    assert!(error <= OPERATOR_TOLERANCE, "{what}: {error:e}");
                }
                compared += 1;
            }
        }
        assert_eq!(compared, variant["operators"].as_object().unwrap().len(), "{name}");
    }
}

fn build_lorp(clusters: Option<u64>) -> Box<dyn Criterion> {
    let options = clusters.map_or(json!({}), |clusters| json!({"clusters": clusters}));
    criterion::build("lorp", options.as_object().unwrap()).unwrap()
}

fn select(rule: &dyn Criterion, engine: &dyn Engine, calibrated: &CalibrationResult, depth: usize) -> Selection {
    let cut = PruneSpec { backbone: "", layers: engine.config().layers, depth, unit: DepthUnit::Layers };
    rule.check("lorp", &cut).unwrap();
    let mut none = no_trials;
    let mut stats = CalibrationStats::new(&calibrated.similarities, None, &mut none);
    rule.select(&cut, &mut stats).unwrap()
}

/// Builds the recovery for a variant, whose name ends with the repair's name in the reference data.
fn build_recovery(variant: &str) -> Box<dyn Recovery> {
    let (name, options) = match variant.rsplit(':').next().unwrap() {
        "normed" => ("ghosted", json!({"input": "normed"})),
        "normed-bias" | "unit-normed-bias" => ("ghosted", json!({"input": "normed", "bias": true})),
        name => (name, json!({})),
    };
    recovery(name, options)
}

/// Moves the weight of an operator's norm into its matrix.
fn with_unit_norm(operator: &Operator) -> Arc<Operator> {
    let RmsNorm { eps, weight } = operator.norm().unwrap().unwrap();
    let channels = operator.channels();
    let mut matrix = operator.change().unwrap();
    for (row, factor) in matrix.chunks_exact_mut(channels).zip(weight.unwrap()) {
        row.iter_mut().for_each(|v| *v *= f64::from(factor));
    }
    let matrix = matrix.into_iter().map(|v| v as f32).collect();
    let norm = RmsNorm { eps, weight: None };
    Operator::normed(norm, channels, matrix, operator.bias().unwrap()).unwrap()
}

/// Returns the matrix and bias of an operator, each with its name in the reference data.
fn operator_parts(operator: &Operator) -> Vec<(&'static str, Vec<f64>)> {
    let matrix = (!operator.is_bias_only()).then(|| ("M", operator.change().unwrap()));
    let bias = operator.bias().unwrap();
    let bias = bias.map(|bias| ("b", bias.into_iter().map(f64::from).collect()));
    matrix.into_iter().chain(bias).collect()
}

fn compare(name: &'static str) {
    let Some(world) = World::read(name) else { return };
    world.engines().iter().for_each(|engine| world.compare_cuts(&**engine));
}

#[test]
fn tiny_llama_methods_match_the_reference() {
    compare("tiny-llama");
}

#[test]
fn tiny_qwen3_methods_match_the_reference() {
    compare("tiny-qwen3");
}

#[test]
fn tiny_olmo2_methods_match_the_reference() {
    compare("tiny-olmo2");
}

#[test]
#[ignore = "slow: 35 variants of 14 million parameters"]
fn english_backbone_methods_match_the_reference() {
    compare("real");
}
