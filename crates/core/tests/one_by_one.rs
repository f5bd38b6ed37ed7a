//! Compares iterative selection, for every criterion that supports it, with the plain criterion on a model from which
//! the first layer or sublayer has already been removed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::{BTreeSet, HashMap};

use candle_core::Tensor;
use ghostlab_core::calibrate::{self, ActivationShape, HookPoint, InMemory, PassRequest, WindowSubset};
use ghostlab_core::corpus::{Tokenizer, WindowRule, Windows, calibration_windows, read_rows};
use ghostlab_core::criterion::{
    self, CalibrationStats, Criterion, DepthUnit, PruneSpec, Selection, Trial, TrialMetric,
};
use ghostlab_core::error::Result;
use ghostlab_core::evaluate;
use ghostlab_core::iterative::ShrinkingModel;
use ghostlab_core::model::{Config, Cut, Decoder, Engine, Program, Sublayer, Trie};
use ghostlab_core::recovery::Recovery;
use serde_json::{Value, json};

use crate::common::stories::recovery;
use crate::common::{checkout, json, tensors};

/// Number of tokens per batch.
const BATCH: usize = 1024;

struct Case {
    criterion: &'static str,
    options: Value,
    unit: DepthUnit,
    /// Recovery for the tests of repaired models.
    repair: &'static str,
}

/// Returns cases that cover every criterion with the option `iterative`, and every kind of calibration statistic that
/// these criteria use.
fn cases() -> Vec<Case> {
    let case = |criterion, options, unit, repair| Case { criterion, options, unit, repair };
    vec![
        case("llm-streamline", json!({}), DepthUnit::Layers, "mean"),
        case("shortgpt", json!({}), DepthUnit::Layers, "prune-and-comp"),
        case("shortened-llama", json!({}), DepthUnit::Layers, "mean"),
        case("sleb", json!({}), DepthUnit::Layers, "ghosted"),
        case("angular", json!({}), DepthUnit::Layers, "ghosted"),
        case("cca", json!({}), DepthUnit::Layers, "ghosted"),
        case("llm-drop", json!({}), DepthUnit::Sublayers, "none"),
        case("llm-drop", json!({}), DepthUnit::Attention, "nbl"),
        case("block-pruner", json!({}), DepthUnit::Sublayers, "none"),
        case("finercut", json!({}), DepthUnit::Attention, "nbl"),
        case("finercut", json!({"distance": "js"}), DepthUnit::Mlp, "none"),
        case("nbl", json!({}), DepthUnit::Attention, "nbl"),
        case("nbl", json!({"input": "normed"}), DepthUnit::Attention, "none"),
    ]
}

impl Case {
    fn rule(&self, iterative: bool) -> Box<dyn Criterion> {
        let mut options = self.options.as_object().unwrap().clone();
        if iterative {
            options.insert("iterative".into(), true.into());
        }
        criterion::build(self.criterion, &options).unwrap()
    }

    fn spec(&self, layers: usize, depth: usize) -> PruneSpec<'static> {
        PruneSpec { backbone: "", layers, depth, unit: self.unit }
    }

    /// Returns the cut that removes only the given candidate.
    fn removal(&self, candidate: usize) -> Cut {
        if self.unit.is_layers() { Cut::layers([candidate]) } else { Cut::sublayers([Sublayer::from_index(candidate)]) }
    }

    /// Returns the candidate that a selection of depth 1 removed, and its score.
    fn removed_candidate(&self, selection: &Selection) -> (usize, f64) {
        *selection.scores.iter().find(|(candidate, _)| self.removal(*candidate) == selection.removed).unwrap()
    }
}

/// Bundled backbone with calibration windows.
struct World {
    engine: Decoder,
    windows: Windows,
}

impl World {
    fn new() -> Self {
        let folder = checkout().join("data/tiny/llama");
        let rows = read_rows(checkout().join("data/tiny/corpora/wiki-train.jsonl.gz"), None).unwrap();
        let tokenizer = Tokenizer::load(folder.join("tokenizer.json")).unwrap();
        let windows = calibration_windows(WindowRule::Wikitext2, &rows, &tokenizer, 4, 64, 0).unwrap();
        Self { engine: Decoder::load_with(Config::read(&folder).unwrap(), &folder).unwrap(), windows }
    }

    fn layers(&self) -> usize {
        self.engine.config().layers
    }

    fn shrinking<'a>(&'a self, recovery: &'a dyn Recovery) -> ShrinkingModel<'a> {
        ShrinkingModel::new(&self.engine, &self.windows, BATCH, recovery, self.windows.count())
    }

    /// Selects candidates one by one. Returns them in removal order, with their scores.
    fn select_iteratively(&self, case: &Case, recovery: &dyn Recovery, depth: usize) -> Vec<(usize, f64)> {
        let spec = case.spec(self.layers(), depth);
        let rule = case.rule(true);
        criterion::check(case.criterion, &*rule, &spec).unwrap();
        self.shrinking(recovery).select(&*rule, &spec, &mut |_| Ok(())).unwrap().scores
    }

    /// Runs the plain criterion for one removal on the model that `program` describes. Returns the removed candidate
    /// and its score.
    fn remove_once(&self, case: &Case, program: &Program, removed: Cut) -> (usize, f64) {
        case.removed_candidate(&plain_selection(&self.engine, &self.windows, case, program, removed))
    }
}

/// Runs the plain criterion for one removal on the model that `program` describes, from which the candidates in
/// `removed` are missing.
fn plain_selection(engine: &dyn Engine, windows: &Windows, case: &Case, program: &Program, removed: Cut) -> Selection {
    let rule = case.rule(false);
    let spec = case.spec(engine.config().layers, 1);
    let computed: BTreeSet<HookPoint> = calibrate::computed_sites(program).into_iter().map(|(_, site)| site).collect();
    let pairs = rule.pairs(&spec).into_iter().filter(|pair| pair.ends().iter().all(|site| computed.contains(site)));
    let sites = rule.sites(&spec).into_iter().filter(|site| computed.contains(site));
    let request = PassRequest { pairs: pairs.collect(), sites: sites.collect() };
    let mut trunk = program.clone();
    trunk.0.pop();
    let sequences: Vec<&[u32]> = windows.iter().collect();
    let shape =
        ActivationShape { channels: engine.config().hidden, sequences: sequences.len(), length: windows.length };
    let mut collected = InMemory::new(request.sites.iter().copied());
    let mut pieces = [WindowSubset { windows: sequences, first_sequence: 0, spool: &mut collected }];
    let similarities =
        calibrate::run_program(engine, &trunk, &mut pieces, BATCH, &request, |_| Ok(())).unwrap().remove(0);
    let activations = collected.finish(shape).unwrap();
    let norms = |(layer, sublayer): (usize, Sublayer)| engine.input_norm(layer, sublayer);
    let mut trials = |metric: TrialMetric, trials: &[Trial]| {
        let programs: Vec<Program> = trials.iter().map(|trial| without_steps(program, &trial.removed)).collect();
        measure(engine, windows, metric, &programs)
    };
    let mut stats =
        CalibrationStats::new(&similarities, Some(&activations), &mut trials).with_norms(&norms).without(removed);
    rule.select(&spec, &mut stats).unwrap()
}

/// Returns a program without the steps that a cut removes.
fn without_steps(program: &Program, cut: &Cut) -> Program {
    let mut program = program.clone();
    program.0.retain(|step| !step.sublayer().is_some_and(|(kind, layer)| cut.contains(layer, kind)));
    program
}

fn measure(engine: &dyn Engine, windows: &Windows, metric: TrialMetric, programs: &[Program]) -> Result<Vec<f64>> {
    let TrialMetric::Distance(distance) = metric else {
        let trie = Trie::for_scoring(programs);
        let eval_set = evaluate::perplexity::PerplexityEval::new(windows, BATCH);
        let losses = evaluate::score(&eval_set, engine, &trie, &mut vec![0.0; trie.len()], |_| Ok(()))?;
        return Ok(losses.into_iter().map(|windows| evaluate::perplexity::Losses { windows }.perplexity()).collect());
    };
    let windows = distance.by_window(engine, programs, windows, &mut |_| Ok(()))?;
    Ok(windows.iter().map(|means| means.iter().sum::<f64>() / means.len() as f64).collect())
}

#[test]
fn cases_cover_every_iterative_criterion() {
    let covered: BTreeSet<String> = cases().iter().map(|case| case.criterion.to_owned()).collect();
    let iterative = criterion::descriptions().into_iter().filter(|criterion| criterion.has("iterative"));
    assert_eq!(covered, iterative.map(|criterion| criterion.name).collect());
}

#[test]
fn iterative_selection_of_one_layer_matches_plain_selection() {
    let world = World::new();
    for case in cases() {
        let what = format!("{} {}", case.criterion, case.unit);
        let dense = world.remove_once(&case, &Program::dense(world.layers()), Cut::default());
        for repair in ["none", case.repair] {
            let recovery = recovery(repair, json!({}));
            assert_eq!(world.select_iteratively(&case, &*recovery, 1), [dense], "{what} {repair}");
        }
    }
}

#[test]
fn second_removal_matches_plain_removal_on_pruned_program() {
    let world = World::new();
    for case in cases() {
        for repair in ["none", case.repair] {
            let what = format!("{} {} {repair}", case.criterion, case.unit);
            let recovery = recovery(repair, json!({}));
            let found = world.select_iteratively(&case, &*recovery, 2);
            let removed = case.removal(found[0].0);
            let first = Selection::new(removed.clone(), vec![found[0]]);
            let mut pruned = world.shrinking(&*recovery);
            pruned.replay(case.unit, &first, &mut |_| Ok(())).unwrap();
            let program = pruned.program().unwrap();
            if repair == "none" {
                assert_eq!(program, Program::without(world.layers(), &removed), "{what}");
            } else {
                assert_ne!(
                    program,
                    Program::without(world.layers(), &removed),
                    "{what}: the program must contain a repair"
                );
            }
            assert_eq!(found[1], world.remove_once(&case, &program, removed), "{what}");
        }
    }
}

#[test]
fn second_removal_matches_first_removal_on_smaller_backbone() {
    let world = World::new();
    for case in cases().into_iter().filter(|case| case.unit.is_layers()) {
        let none = recovery("none", json!({}));
        let found = world.select_iteratively(&case, &*none, 2);
        let smaller = backbone_without(found[0].0);
        let dense = Program::dense(smaller.config().layers);
        let (layer, score) =
            case.removed_candidate(&plain_selection(&smaller, &world.windows, &case, &dense, Cut::default()));
        let layer = if layer < found[0].0 { layer } else { layer + 1 };
        assert_eq!(found[1], (layer, score), "{}", case.criterion);
    }
}

#[test]
fn removal_is_independent_of_the_activation_limit() {
    let world = World::new();
    let none = recovery("none", json!({}));
    for case in cases().into_iter().filter(|case| ["cca", "nbl"].contains(&case.criterion)) {
        let spec = case.spec(world.layers(), 2);
        // Activations for three of the sixteen candidates fit in one pass.
        let site = 4 * world.windows.ids.len() * world.engine.config().hidden;
        let limited = world.shrinking(&*none).with_activation_limit(6 * site as u64);
        let mut passes = 0;
        let found = { limited }.select(&*case.rule(true), &spec, &mut |_| {
            passes += 1;
            Ok(())
        });
        assert_eq!(found.unwrap().scores, world.select_iteratively(&case, &*none, 2), "{}", case.criterion);
        // There are six passes for the first removal and five for the second. Each pass has one batch.
        assert_eq!(passes, 11, "{}", case.criterion);
    }
}

/// Writes the bundled backbone without one of its layers, and loads it.
fn backbone_without(removed: usize) -> Decoder {
    let source = checkout().join("data/tiny/llama");
    let mut weights: HashMap<String, Tensor> = HashMap::new();
    for (name, tensor) in tensors(&source.join("model.safetensors")) {
        let Some((number, rest)) = name.strip_prefix("model.layers.").and_then(|name| name.split_once('.')) else {
            weights.insert(name, tensor);
            continue;
        };
        let layer: usize = number.parse().unwrap();
        if layer != removed {
            weights.insert(format!("model.layers.{}.{rest}", layer - usize::from(layer > removed)), tensor);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    candle_core::safetensors::save(&weights, folder.path().join("model.safetensors")).unwrap();
    let mut config = json(&source.join("config.json"));
    config["num_hidden_layers"] = (config["num_hidden_layers"].as_u64().unwrap() - 1).into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    Decoder::load_with(Config::read(folder.path()).unwrap(), folder.path()).unwrap()
}
