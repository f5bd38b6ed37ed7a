//! Compares methods that are not in the paper with a plain float64 implementation in PyTorch. The expected values
//! are in the `beyond` reference data, whose README documents the formulas and tolerances.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::common::stories::recovery;
use crate::common::{assert_close, checkout, engines, flat, json, no_trials, numbers, relative_error, shared, tensors};
use crate::official::setting::{Calibrated, calibrate, layers, losses, pruned, spans};
use candle_core::Tensor;
use ghostlab_core::calibrate::PassRequest;
use ghostlab_core::checkpoint::Layout;
use ghostlab_core::corpus::{Rule, Tokenizer, Windows, calibration, evaluation, read_rows};
use ghostlab_core::criterion::{self, CalibrationStats, Criterion, DepthUnit, PruneSpec, Selection};
use ghostlab_core::evaluate::damage::{Damage, Damages, WindowPart, measure_damage};
use ghostlab_core::model::{CPU, Cut, Decoder, Engine, Operator, Program, deployed};
use ghostlab_core::recovery::{Recovery, Solution, Span};
use serde_json::{Value, json};

/// Relative tolerance for perplexities.
const PERPLEXITY_TOLERANCE: f64 = 2e-6;
/// Relative tolerance for operators (in the Frobenius norm) and for their norms.
const OPERATOR_TOLERANCE: f64 = 1e-5;
/// Relative tolerance for damage metrics.
const DAMAGE_TOLERANCE: f64 = 1e-5;
/// Relative tolerance for scores.
const SCORE_TOLERANCE: f64 = 1e-6;

/// Backbone in the reference data, with its texts and expected numbers.
struct OracleWorld {
    name: &'static str,
    expected: Value,
    operators: HashMap<String, Tensor>,
    backbone: PathBuf,
    calibration: Windows,
    evaluation: Windows,
}

impl OracleWorld {
    /// Reads a backbone from the reference data, and checks that its windows match. Returns `None` if a required file
    /// is missing.
    fn read(name: &'static str) -> Option<Self> {
        let folder = shared("oracles/beyond")?;
        let settings = json(&folder.join("settings.json"));
        let worlds = settings["worlds"].as_array().unwrap();
        let settings = worlds.iter().find(|world| world["name"] == name).unwrap();
        let backbone = input(&settings["backbone"])?;
        let texts = ["calibration", "evaluation"].map(|part| input(&settings[part]["path"]));
        let [Some(calibration_text), Some(evaluation_text)] = texts else { return None };
        let tokenizer = Tokenizer::load(backbone.join("tokenizer.json")).unwrap();
        let [sequences, length] = ["sequences", "length"].map(|key| number(settings, "calibration", key));
        let rows = read_rows(&calibration_text, None).unwrap();
        let seed = number(settings, "calibration", "seed") as u64;
        let calibration = calibration(Rule::Wikitext2, &rows, &tokenizer, sequences, length, seed).unwrap();
        let rows = read_rows(&evaluation_text, None).unwrap();
        let limit = number(settings, "evaluation", "limit");
        let length = number(settings, "evaluation", "length");
        let evaluation = evaluation(Rule::Wikitext2, &rows, &tokenizer, length, Some(limit)).unwrap();
        let expected = json(&folder.join("numbers.json"))[name].take();
        let starts: Vec<f64> = calibration.starts.iter().map(|start| start.token as f64).collect();
        assert_eq!(starts, numbers(&expected["starts"]), "{name}");
        for (part, windows) in [("calibration", &calibration), ("evaluation", &evaluation)] {
            let sum: u64 = windows.ids.iter().map(|&id| u64::from(id)).sum();
            assert_eq!(expected[format!("{part}_checksum")], sum, "{name}: sum of the ids for {part}");
        }
        let operators = tensors(&folder.join("operators.safetensors"));
        Some(Self { name, expected, operators, backbone, calibration, evaluation })
    }

    /// Returns the names and expected numbers of the variants that remove complete layers. Repairs without a
    /// corresponding option are skipped. Engines other than the CPU engine take minutes, so for them only the first cut
    /// and the first LoRP selection are returned.
    fn cuts(&self, engine: &dyn Engine) -> Vec<(&str, &Value)> {
        let variants: Vec<(&str, &Value)> =
            self.expected["variants"].as_object().unwrap().iter().map(|(name, value)| (name.as_str(), value)).collect();
        let prefixes = ["cut:", "lorp:"].map(|kind| {
            if engine.id() == CPU {
                return kind.to_owned();
            }
            let (name, _) = variants.iter().find(|(name, _)| name.starts_with(kind)).unwrap();
            name[..=name.rfind(':').unwrap()].to_owned()
        });
        let mut cuts = variants;
        cuts.retain(|(name, _)| {
            prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())) && !name.ends_with(":unit-normed-bias")
        });
        cuts
    }

    /// Compares operators, selections and perplexities on one engine.
    fn compare(&self, engine: &dyn Engine) {
        let mut request = PassRequest::default();
        let depth = 1;
        request.pairs.extend(lorp(None).pairs(&PruneSpec {
            backbone: "",
            layers: engine.config().layers,
            depth,
            unit: DepthUnit::Layers,
        }));
        for (name, variant) in self.cuts(engine) {
            let method = method(name);
            let spans = spans(&*method, &layers(&variant["removed"]));
            request.sites.extend(spans.into_iter().flat_map(|span| method.sites(span)));
        }
        let calibrated = calibrate(engine, &self.calibration, &request);
        self.compare_selections(engine, &calibrated);
        let all = engine.config().layers;
        let mut programs = vec![Program::dense(all)];
        programs.extend(self.cuts(engine).into_iter().map(|(name, variant)| {
            let removed = layers(&variant["removed"]);
            let solved = self.solve(engine, &calibrated, name, &removed);
            self.compare_operators(engine, name, variant, &solved);
            let program = pruned(all, &removed, &solved);
            let deployed = deployed(&program, engine.config());
            let checkpoint = Layout::plan(engine.config(), &self.backbone, &deployed, None).unwrap();
            assert_eq!(variant["parameters"], checkpoint.parameters(), "{}: {name}: parameters", self.name);
            program
        }));
        let variants = self.cuts(engine).into_iter();
        let expected: Vec<(&str, &Value)> = [("dense", &self.expected["dense"])].into_iter().chain(variants).collect();
        let damages = measure_damage(engine, &programs[0], &programs, &self.evaluation).unwrap();
        assert_eq!(damages.len(), programs.len());
        for ((name, expected), ours) in expected.iter().zip(&damages) {
            let what = format!("{} on {}: {name}", self.name, engine.id());
            let perplexity = expected["ppl"].as_f64().unwrap();
            assert_close(&what, ours.losses.perplexity(), perplexity, PERPLEXITY_TOLERANCE);
            compare_damages(&what, ours, WindowPart::All, expected);
            compare_damages(&what, ours, WindowPart::SecondHalf, &expected["second_half"]);
        }
        self.compare_dense_with_itself(engine, &programs[0], &damages);
    }

    /// Checks that the dense model has no damage relative to itself, and that a comparison leaves its losses
    /// bit-identical.
    fn compare_dense_with_itself(&self, engine: &dyn Engine, dense: &Program, damages: &[Damages]) {
        for part in [WindowPart::All, WindowPart::SecondHalf] {
            for (damage, expected) in
                MEASURES.map(|(damage, _)| damage).into_iter().zip([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0])
            {
                assert_eq!(damages[0].measure(damage, part).unwrap().value, expected, "{}: {damage:?}", self.name);
            }
        }
        let losses = losses(engine, std::slice::from_ref(dense), &self.evaluation);
        assert_eq!(losses[0].windows, damages[0].losses.windows, "{} on {}", self.name, engine.id());
    }

    /// Compares the layers that LoRP removes, in removal order, and their redundancies.
    fn compare_selections(&self, engine: &dyn Engine, calibrated: &Calibrated) {
        // The reference data contains the similarities only once per backbone.
        let all = self.expected["lorp"].as_object().unwrap();
        let similarity = all.values().find_map(|found| found["similarity"].as_array()).unwrap();
        for (name, expected) in all {
            let (depth, clusters) = name.split_once(":K=").map_or((name.as_str(), None), |(n, k)| (n, Some(k)));
            let clusters = clusters.map(|clusters| clusters.parse().unwrap());
            let selection = select(&*lorp(clusters), engine, calibrated, depth.parse().unwrap());
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
        calibrated: &Calibrated,
        name: &str,
        removed: &[usize],
    ) -> Vec<(Span, Solution)> {
        let method = method(name);
        let spans = spans(&*method, removed).into_iter();
        spans.map(|span| (span, calibrated.solve(engine, &*method, span, self.calibration.count()))).collect()
    }

    /// Compares the norms of operators with the reference data. Also compares the operators' elements if the reference
    /// data contains them.
    fn compare_operators(&self, engine: &dyn Engine, name: &str, variant: &Value, solved: &[(Span, Solution)]) {
        if variant["operators"].is_null() {
            return;
        }
        let mut compared = 0;
        for (span, solution) in solved {
            let Some(operator) = solution.repair.operator() else { continue };
            for (part, values) in parts(operator) {
                let key = format!("{}.{part}", span.start);
                let what = format!("{} on {}: {name}: {key}", self.name, engine.id());
                let expected = &variant["operators"][&key];
                let norm = values.iter().map(|v| v * v).sum::<f64>().sqrt();
                let expected_norm = expected["frobenius"].as_f64().unwrap();
                assert_close(&what, norm, expected_norm, OPERATOR_TOLERANCE);
                let sum: f64 = values.iter().sum();
                let cosine_sum: f64 = values.iter().enumerate().map(|(index, v)| v * (index as f64).cos()).sum();
                for (sum, key) in [(sum, "sum"), (cosine_sum, "cosine_sum")] {
                    let off = (sum - expected[key].as_f64().unwrap()).abs() / expected_norm;
                    assert!(off <= OPERATOR_TOLERANCE, "{what}: {key} is off by {off:e} of the norm");
                }
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

/// Damage metrics, and their names in the reference data.
const MEASURES: [(Damage, &str); 7] = [
    (Damage::KlDenseVariant, "kl_dense_variant"),
    (Damage::KlVariantDense, "kl_variant_dense"),
    (Damage::SameTop, "same_top"),
    (Damage::MeanChange, "mean_dp"),
    (Damage::MeanAbsoluteChange, "mean_abs_dp"),
    (Damage::RmsChange, "rms_dp"),
    (Damage::PerplexityRatio, "ppl_ratio"),
];

/// Compares the damage metrics that the reference data contains for a variant.
pub(crate) fn compare_damages(what: &str, ours: &Damages, part: WindowPart, expected: &Value) {
    for (damage, key) in MEASURES {
        let Some(expected) = expected[key].as_f64() else { continue };
        let what = format!("{what}: {key}, {part:?}");
        assert_close(&what, ours.measure(damage, part).unwrap().value, expected, DAMAGE_TOLERANCE);
    }
}

fn lorp(clusters: Option<u64>) -> Box<dyn Criterion> {
    let options = clusters.map_or(json!({}), |clusters| json!({"clusters": clusters}));
    criterion::build("lorp", options.as_object().unwrap()).unwrap()
}

fn select(rule: &dyn Criterion, engine: &dyn Engine, calibrated: &Calibrated, depth: usize) -> Selection {
    let cut = PruneSpec { backbone: "", layers: engine.config().layers, depth, unit: DepthUnit::Layers };
    rule.check(&cut).unwrap();
    let mut none = no_trials;
    let mut stats = CalibrationStats::new(&calibrated.similarities, None, &mut none);
    rule.select(&cut, &mut stats).unwrap()
}

/// Resolves a path from the settings, which is relative to the checkout or to the shared folder.
fn input(path: &Value) -> Option<PathBuf> {
    let path = path.as_str().unwrap();
    match path.split_once("/main/") {
        Some((_, path)) => Some(checkout().join(path)),
        None => shared(path.trim_start_matches("../")),
    }
}

/// Returns the recovery for a variant. The last part of `variant` is the name of the repair in the reference data.
fn method(variant: &str) -> Box<dyn Recovery> {
    let (name, options) = match variant.rsplit(':').next().unwrap() {
        "normed" => ("ghosted", json!({"input": "normed"})),
        "normed-bias" => ("ghosted", json!({"input": "normed", "bias": true})),
        name => (name, json!({})),
    };
    recovery(name, options)
}

/// Returns the matrix and bias of an operator, each with its name in the reference data.
fn parts(operator: &Operator) -> Vec<(&'static str, Vec<f64>)> {
    let matrix = (!operator.is_bias_only()).then(|| ("M", operator.change().unwrap()));
    let bias = operator.bias().unwrap();
    let bias = bias.map(|bias| ("b", bias.into_iter().map(f64::from).collect()));
    matrix.into_iter().chain(bias).collect()
}

fn compare(name: &'static str, load: impl Fn(&Path) -> Vec<Box<dyn Engine>>) {
    let Some(world) = OracleWorld::read(name) else { return };
    load(&world.backbone).iter().for_each(|engine| world.compare(&**engine));
}

#[test]
fn tiny_llama_equals_the_oracle() {
    compare("tiny-llama", engines);
}

#[test]
fn tiny_qwen3_equals_the_oracle() {
    compare("tiny-qwen3", engines);
}

#[test]
fn tiny_olmo2_equals_the_oracle() {
    compare("tiny-olmo2", engines);
}

/// Runs only on the CPU engine, because candle would take minutes.
#[test]
#[ignore = "slow: 35 variants of 14 million parameters"]
fn english_backbone_equals_the_oracle() {
    compare("real", |backbone| vec![Box::new(Decoder::load(backbone).unwrap())]);
}

fn number(settings: &Value, part: &str, key: &str) -> usize {
    settings[part][key].as_u64().unwrap() as usize
}
