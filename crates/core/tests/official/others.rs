//! Comparisons with the repositories of other methods: LinearPatch and ReplaceMe, and, for scores only, LLM-Streamline,
//! ShortGPT and NBL.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::HashMap;

use super::setting::{
    CalibrationResult, available, calibrate, checked_calibration_windows, checked_evaluation_windows, count,
    input_path, layers, losses, pairs_only, pruned, spans, text, values,
};
use crate::common::stories::recovery;
use crate::common::{assert_close, flat, json, no_trials, numbers, relative_error, shared, tensors};
use candle_core::Tensor;
use ghostlab_core::calibrate::{HookPoint, Pair, PassRequest, SimilarityAxis};
use ghostlab_core::corpus::{Tokenizer, WindowRule, Windows, evaluation_windows, read_rows};
use ghostlab_core::criterion::{self, CalibrationStats, DepthUnit, PruneSpec};
use ghostlab_core::model::{Cut, Decoder, Program, Repairs, Sublayer};
use ghostlab_core::options::Options;
use ghostlab_core::recovery::{Recovery, Repair};
use serde_json::{Value, json};

/// Absolute tolerance for mean cosines and for scores computed from them.
const COSINE_TOLERANCE: f64 = 1e-6;
/// Relative tolerance for operators, in the Frobenius norm.
const OPERATOR_TOLERANCE: f64 = 5e-6;
/// Relative tolerance for bounds, which are computed in f64 from f32 residual streams.
const BOUND_TOLERANCE: f64 = 1e-7;
/// Relative tolerance for perplexities.
const PERPLEXITY_TOLERANCE: f64 = 2e-6;

/// Reference data for all repositories, including the stored operators.
struct OtherRepositories {
    settings: Value,
    official: Value,
    operators: HashMap<String, Tensor>,
}

fn read_others() -> Option<OtherRepositories> {
    let folder = shared("oracles/official")?;
    Some(OtherRepositories {
        settings: json(&folder.join("others.json")),
        official: json(&folder.join("official.json"))["settings"].take(),
        operators: tensors(&folder.join("others.safetensors")),
    })
}

/// Backbone with the calibration windows for a setting.
struct Backbone {
    decoder: Decoder,
    tokenizer: Tokenizer,
    calibration: Windows,
}

/// Loads a backbone. If it or its calibration text is missing, prints the reason and returns `None`.
fn load_backbone(folder: &str, calibration: &Value) -> Option<Backbone> {
    if !available(&[folder, text(calibration, "file")]) {
        return None;
    }
    let tokenizer = Tokenizer::load(input_path(folder).join("tokenizer.json")).unwrap();
    let calibration = checked_calibration_windows(&tokenizer, calibration);
    Some(Backbone { decoder: Decoder::load(&input_path(folder)).unwrap(), tokenizer, calibration })
}

impl Backbone {
    fn layers(&self) -> usize {
        self.decoder.config().layers
    }

    fn calibrated(&self, request: &PassRequest) -> CalibrationResult {
        calibrate(&self.decoder, &self.calibration, request)
    }

    /// Runs a criterion. Returns the removed layers and the scores.
    fn run_criterion(&self, name: &str, options: &Value, depth: usize) -> (Vec<usize>, Vec<(usize, f64)>) {
        let options: Options = options.as_object().unwrap().clone();
        let rule = criterion::build(name, &options).unwrap();
        let cut = PruneSpec { backbone: "b", layers: self.layers(), depth, unit: DepthUnit::Layers };
        let mut request = pairs_only(rule.pairs(&cut));
        request.sites.extend(rule.sites(&cut));
        let calibrated = self.calibrated(&request);
        let mut none = no_trials;
        let mut stats = CalibrationStats::new(&calibrated.similarities, Some(&calibrated.activations), &mut none);
        let selection = rule.select(&cut, &mut stats).unwrap();
        (selection.removed.whole_layers(), selection.scores)
    }

    /// Returns, for each pair of layers, the mean token-wise cosine between the inputs to the two layers.
    fn token_cosines(&self, pairs: &[(usize, usize)]) -> Vec<f64> {
        let calibrated = self.calibrated(&pairs_only(pairs.iter().map(token_pair)));
        pairs.iter().map(|pair_of_layers| calibrated.similarities.get(token_pair(pair_of_layers)).unwrap()).collect()
    }
}

fn token_pair(&(from, to): &(usize, usize)) -> Pair {
    Pair { axis: SimilarityAxis::Token, from, to }
}

fn assert_near(what: &str, ours: f64, theirs: f64) {
    let error = (ours - theirs).abs();
    assert!(error <= COSINE_TOLERANCE, "{what}: ours {ours}, theirs {theirs}, error {error:e}");
}

/// Returns the evaluation windows for a LinearPatch setting, or `None` if the text is not available. The text is that
/// of the official settings for the same backbone. The windowing rule and the limit are those of LinearPatch.
fn perplexity_windows(
    tokenizer: &Tokenizer,
    others: &OtherRepositories,
    setting: &Value,
    name: &str,
) -> Option<Windows> {
    let real = text(setting, "backbone").starts_with("shared/");
    let official = if real { "A.dense" } else { "D-tiny-qwen3.dense" };
    let file = text(&others.official[official]["perplexity_texts"][name], "file");
    if !available(&[file]) || file.starts_with("(outside)") {
        return None;
    }
    // LinearPatch has its own loader for C4, which reads all documents.
    let rule: WindowRule = if name == "c4" { WindowRule::C4 } else { name.parse().unwrap() };
    let length = count(setting, "ppl_length");
    let limit = count(&setting["limits"], name);
    let rows = read_rows(input_path(file), None).unwrap();
    Some(evaluation_windows(rule, &rows, tokenizer, length, Some(limit)).unwrap())
}

#[test]
fn linearpatch_matches_the_official_implementation() {
    let Some(others) = read_others() else { return };
    for (id, setting) in others.settings["linearpatch"]["settings"].as_object().unwrap() {
        let Some(backbone) = load_backbone(text(setting, "backbone"), &setting["calibration"]) else { continue };
        let depth = count(setting, "depth");
        let (removed, scores) = backbone.run_criterion("llm-streamline", &json!({}), depth);
        assert_eq!(removed, layers(&setting["removed"]), "{id}");
        for ((start, score), cosine) in scores.iter().zip(numbers(&setting["mean_cosines"])) {
            assert_near(&format!("{id}: start {start}"), *score, cosine);
        }
        let method = recovery(text(setting, "recovery"), json!({}));
        let spans = spans(&*method, &removed);
        let sites = spans.iter().flat_map(|&span| method.sites(span)).collect();
        let calibrated = backbone.calibrated(&PassRequest { sites, ..PassRequest::default() });
        let all = backbone.calibration.count();
        let solved: Vec<_> =
            spans.iter().map(|&span| (span, calibrated.solve(&backbone.decoder, &*method, span, all))).collect();
        if let Some(theirs) = others.operators.get(&format!("{id}/W")) {
            let error = relative_error(&values(solved[0].1.repair.operator().unwrap()), &flat(theirs));
            assert!(error <= OPERATOR_TOLERANCE, "{id}: {error:e}");
        }
        let program = [pruned(backbone.layers(), &removed, &solved)];
        for (name, theirs) in setting["perplexity"].as_object().unwrap() {
            let Some(windows) = perplexity_windows(&backbone.tokenizer, &others, setting, name) else { continue };
            let ours = losses(&backbone.decoder, &program, &windows)[0].perplexity();
            assert_close(&format!("{id}: {name}"), ours, theirs.as_f64().unwrap(), PERPLEXITY_TOLERANCE);
        }
    }
}

/// Returns the recovery that corresponds to a ReplaceMe setting, or `None` for orders and objectives that ghostlab does
/// not implement.
fn replaceme_recovery(setting: &Value) -> Option<Box<dyn Recovery>> {
    let alpha = setting["alpha"].as_f64().unwrap();
    match (text(setting, "method"), text(setting, "order")) {
        ("lstsq", _) => Some(recovery("replaceme-ls", json!({"alpha": alpha}))),
        ("cos", "sequential") if setting["accurate"] == false => {
            Some(recovery("replaceme-cos", json!({"order": "sequential"})))
        }
        _ => None,
    }
}

#[test]
fn replaceme_matches_the_official_implementation() {
    let Some(others) = read_others() else { return };
    let mut compared = 0;
    for (id, setting) in others.settings["replaceme"]["settings"].as_object().unwrap() {
        let Some(method) = replaceme_recovery(setting) else { continue };
        let official = &others.official[text(setting, "windows_of")];
        let Some(backbone) = load_backbone(text(setting, "backbone"), &official["calibration"]) else { continue };
        let removed = layers(&setting["removed"]);
        let span = spans(&*method, &removed)[0];
        let sites = [HookPoint::Middle(span.start - 1)].into_iter().chain(method.sites(span)).collect();
        let calibrated = backbone.calibrated(&PassRequest { sites, ..PassRequest::default() });
        let solution = calibrated.solve(&backbone.decoder, &*method, span, backbone.calibration.count());
        let Repair::Branches { operator, attention: false } = &solution.repair else {
            panic!("{id}: expected a map of the MLP branch")
        };
        if let Some(theirs) = others.operators.get(&format!("{id}/T")) {
            let error = relative_error(&values(operator), &flat(theirs));
            assert!(error <= OPERATOR_TOLERANCE, "{id}: {error:e}");
        }
        let branches = [((span.start - 1, Sublayer::Mlp), operator.clone())].into();
        let program = Program::repaired(
            backbone.layers(),
            &Cut::layers(removed.iter().copied()),
            &Repairs { branches, ..Repairs::default() },
        );
        let windows = checked_evaluation_windows(&backbone.tokenizer, &official["perplexity_texts"]["wikitext2"]);
        let ours = losses(&backbone.decoder, &[program], &windows)[0].perplexity();
        assert_close(id, ours, setting["perplexity"]["wikitext2"].as_f64().unwrap(), PERPLEXITY_TOLERANCE);
        compared += 1;
    }
    assert_eq!(compared, 4, "expected least squares on two backbones, with a ridge, and with the cosine objective");
}

/// Returns the backbones for a repository that only computes scores, each with its expected results.
fn scored_backbones(others: &OtherRepositories, repository: &str) -> Vec<(Backbone, Value)> {
    let settings = &others.settings[repository];
    [("real", "shared/real/backbone"), ("tiny", "data/tiny/llama")]
        .into_iter()
        .filter_map(|(key, folder)| {
            let windows = others.official[text(&settings["windows_of"], key)]["calibration"].clone();
            Some((load_backbone(folder, &windows)?, settings[key].clone()))
        })
        .collect()
}

/// The official code compares the hidden states that transformers returns. The last of these has already passed through
/// the final norm, so the last candidate is not compared.
#[test]
fn streamline_scores_match_the_official_repository() {
    let Some(others) = read_others() else { return };
    for (backbone, expected) in scored_backbones(&others, "llm_streamline") {
        let depth = count(&expected, "n");
        let similarities = numbers(&expected["similarities"]);
        let pairs: Vec<(usize, usize)> = (0..backbone.layers() - depth).map(|from| (from, from + depth)).collect();
        assert_eq!(similarities.len(), pairs.len() + 1);
        let cosines = backbone.token_cosines(&pairs);
        for (start, (cosine, theirs)) in cosines.iter().zip(similarities).enumerate() {
            assert_near(&format!("start {start}"), 0.5 + 0.5 * cosine, theirs);
        }
        let (removed, _) = backbone.run_criterion("llm-streamline", &json!({"cosine": "token"}), depth);
        assert_eq!(removed[0], count(&expected, "best"));
    }
}

#[test]
fn shortgpt_scores_match_the_official_repository() {
    let Some(others) = read_others() else { return };
    for (backbone, expected) in scored_backbones(&others, "shortgpt") {
        let options = json!({"cosine": "token", "last_layer": "allow"});
        let (removed, scores) = backbone.run_criterion("shortgpt", &options, count(&expected, "n"));
        assert_eq!(removed, layers(&expected["pruned"]));
        let influences = numbers(&expected["block_influence"]);
        assert_eq!(scores.len(), influences.len());
        for ((layer, score), theirs) in scores.into_iter().zip(influences) {
            assert_near(&format!("layer {layer}"), score, theirs);
        }
    }
}

#[test]
fn cca_bounds_match_the_official_repository() {
    let Some(others) = read_others() else { return };
    let expected = &others.settings["nbl"];
    let windows = &others.official[text(expected, "windows_of")]["calibration"];
    let Some(backbone) = load_backbone("data/tiny/llama", windows) else { return };
    let (_, scores) = backbone.run_criterion("cca", &json!({}), 1);
    let bounds = numbers(&expected["bounds"]);
    assert_eq!(scores.len(), bounds.len());
    for ((layer, score), theirs) in scores.into_iter().zip(bounds) {
        assert_close(&format!("layer {layer}"), score, theirs, BOUND_TOLERANCE);
    }
}
