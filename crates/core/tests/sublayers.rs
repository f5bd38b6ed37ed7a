//! Compares sublayer cuts, and the criteria that select them, with a plain PyTorch implementation. The results are in
//! `shared/oracles/beyond`, whose README documents formulas and tolerances.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeMap;

use crate::beyond::world::{
    DAMAGE_TOLERANCE, DamageTolerances, SCORE_TOLERANCE, TINY_BACKBONES, World, compare_damages,
};
use crate::common::{assert_close, engines_of_all_types, no_trials, numbers};
use ghostlab_core::calibrate::{self, InMemory, Pair, PassRequest, Similarities, WindowSubset};
use ghostlab_core::criterion::{self, CalibrationStats, DepthUnit, PruneSpec, Selection, Trial, TrialMetric, Trials};
use ghostlab_core::error::Result;
use ghostlab_core::evaluate::damage_eval::{WindowPart, measure_damage};
use ghostlab_core::evaluate::logit_distance::LogitDistance;
use ghostlab_core::model::{Cut, Decoder, Engine, Program, Sublayer, Tolerance, Trie};
use ghostlab_core::options::Options;
use serde_json::{Value, json};

/// Substrings that select the compared variants by name.
const KINDS: [&str; 6] = ["half:joint:", "half:attn:", "half:mlp:", "blockpruner:", "finercut:angle:", "finercut:js:"];

/// Runs a criterion on similarities and trials.
fn select(
    world: &World,
    engine: &dyn Engine,
    (name, options): (&str, &Value),
    (unit, depth): (DepthUnit, usize),
    similarities: &Similarities,
    trials: &mut Trials<'_>,
) -> Selection {
    let options: Options = options.as_object().unwrap().clone();
    let rule = criterion::build(name, &options).unwrap();
    let cut = PruneSpec { backbone: world.name, layers: engine.config().layers, depth, unit };
    criterion::check(name, &*rule, &cut).unwrap();
    rule.select(&cut, &mut CalibrationStats::new(similarities, None, trials)).unwrap()
}

/// Computes the similarity between the residual stream before and after each sublayer.
fn measure_similarities(world: &World, engine: &dyn Engine) -> Similarities {
    let candidates = DepthUnit::Sublayers.candidates(engine.config().layers);
    let pairs = candidates.into_iter().map(|(layer, kind)| Pair::around(layer, kind)).collect();
    let request = PassRequest { pairs, ..PassRequest::default() };
    let windows: Vec<&[u32]> = world.calibration.iter().collect();
    let mut collected = InMemory::default();
    let mut pieces = [WindowSubset { windows, first_sequence: 0, spool: &mut collected }];
    calibrate::run(engine, &mut pieces, 1024, &request, |_| Ok(())).unwrap().remove(0)
}

/// Parses a sublayer such as `attn 3` or `mlp 3`.
fn parse_sublayer(name: &str) -> (usize, Sublayer) {
    let (kind, layer) = name.split_once(' ').unwrap();
    let kind = if kind == "attn" { Sublayer::Attention } else { Sublayer::Mlp };
    (layer.parse().unwrap(), kind)
}

fn parse_cut(removed: &Value) -> Cut {
    removed.as_array().unwrap().iter().map(|name| parse_sublayer(name.as_str().unwrap())).collect()
}

/// Parses the kind and depth in a variant name such as `half:attn:4`.
fn parse_depth(variant: &str) -> (DepthUnit, usize) {
    let [_, kind, depth] = variant.split(':').collect::<Vec<_>>()[..] else { panic!("{variant}") };
    let unit = match kind {
        "attn" => DepthUnit::Attention,
        "mlp" => DepthUnit::Mlp,
        _ => DepthUnit::Sublayers,
    };
    (unit, depth.parse().unwrap())
}

fn compare_cuts(world: &World) {
    for engine in world.engines() {
        let variants = world.variants_on(&*engine, &KINDS);
        let layers = engine.config().layers;
        let programs = variants.iter().map(|(_, variant)| Program::without(layers, &parse_cut(&variant["removed"])));
        world.compare_variants(&*engine, &variants, &programs.collect::<Vec<_>>());
    }
}

#[test]
fn models_with_removed_sublayers_match_the_reference() {
    TINY_BACKBONES.into_iter().filter_map(World::read).for_each(|world| compare_cuts(&world));
}

#[test]
#[ignore = "slow: ten variants of the real backbone"]
fn real_backbone_with_removed_sublayers_matches_reference() {
    World::read("real").iter().for_each(compare_cuts);
}

/// Compares a model without some attention sublayers and MLPs, including its difference from the dense model.
#[test]
fn removed_sublayers_match_the_reference_in_every_float_type() {
    let Some(world) = World::read(TINY_BACKBONES[0]) else { return };
    let (name, expected) = world.variants(&["half:joint:8"])[0];
    for engine in engines_of_all_types(&world.folder) {
        let what = format!("{} {name}", engine.id());
        let tolerance = Tolerance::for_dtype(engine.id().dtype);
        let dense = Program::dense(engine.config().layers);
        let program = Program::without(engine.config().layers, &parse_cut(&expected["removed"]));
        let found = measure_damage(&*engine, &dense, &[program], &world.evaluation).unwrap().remove(0);
        assert_close(&what, found.losses.perplexity(), expected["ppl"].as_f64().unwrap(), tolerance.perplexity);
        let damage = DamageTolerances::new(tolerance.activations.max(DAMAGE_TOLERANCE));
        compare_damages(&what, &found, WindowPart::All, expected, &damage);
    }
}

fn compare_llm_drop(world: &World) {
    let expected = [&world.numbers["half_scores"]["attn"], &world.numbers["half_scores"]["mlp"]].map(numbers);
    for engine in world.engines() {
        let similarities = measure_similarities(world, &*engine);
        for (name, variant) in world.variants(&["half:"]) {
            let what = format!("{} {} {name}", world.name, engine.id());
            let rule = ("llm-drop", &json!({}));
            let selection = select(world, &*engine, rule, parse_depth(name), &similarities, &mut no_trials);
            assert_eq!(selection.removed, parse_cut(&variant["removed"]), "{what}: {:?}", selection.scores);
            for &(candidate, score) in &selection.scores {
                assert_close(&what, score, expected[candidate % 2][candidate / 2], SCORE_TOLERANCE);
            }
        }
    }
}

#[test]
fn llm_drop_selection_matches_the_reference() {
    TINY_BACKBONES.into_iter().filter_map(World::read).for_each(|world| compare_llm_drop(&world));
}

#[test]
fn llm_drop_on_the_real_backbone_matches_the_reference() {
    World::read("real").iter().for_each(compare_llm_drop);
}

/// Costs measured during a greedy selection, and the expected steps.
struct GreedyTrials<'a> {
    world: &'a World,
    engine: &'a dyn Engine,
    /// Steps in the reference data. The first step has the costs of all candidates, and later steps have the two lowest
    /// costs.
    steps: &'a [Value],
    /// Number of steps in which all candidates are measured. Later steps measure only the candidates named in
    /// the reference data, and assume that all others cost more.
    complete_steps: usize,
    /// Measured cost of each tried cut.
    costs: BTreeMap<Cut, f64>,
}

impl GreedyTrials<'_> {
    /// Measures the trials of one step. The costs of skipped trials are `f64::MAX`.
    fn measure(&mut self, metric: TrialMetric, trials: &[Trial]) -> Result<Vec<f64>> {
        let step = trials[0].removed.len() - 1;
        let named = ["removed", "next"].map(|key| parse_sublayer(self.steps[step][key].as_str().unwrap()));
        let mut measured = trials.to_vec();
        if step >= self.complete_steps {
            measured.retain(|trial| named.iter().any(|&(layer, kind)| trial.removed.contains(layer, kind)));
        }
        let values = self.world.measure(self.engine, metric, &measured)?;
        self.costs.extend(measured.into_iter().map(|trial| trial.removed).zip(values));
        Ok(trials.iter().map(|trial| self.costs.get(&trial.removed).copied().unwrap_or(f64::MAX)).collect())
    }

    /// Compares the removed sublayers and the costs of a selection with the reference data.
    fn compare(&self, what: &str, selection: &Selection, tolerance: f64) {
        let mut removed = Cut::default();
        for (index, (step, (candidate, _))) in self.steps.iter().zip(&selection.scores).enumerate() {
            let what = format!("{what} step {index}");
            let best = step["removed"].as_str().unwrap();
            let (layer, kind) = parse_sublayer(best);
            assert_eq!(Sublayer::from_index(*candidate), (layer, kind), "{what}: {:?}", selection.scores);
            let mut expected = vec![(best, &step["cost"]), (step["next"].as_str().unwrap(), &step["next_cost"])];
            if let Some(all) = step["all"].as_object() {
                assert_eq!(all.len(), 2 * self.engine.config().layers, "{what}");
                expected.extend(all.iter().map(|(name, cost)| (name.as_str(), cost)));
            }
            for (name, cost) in expected {
                let (layer, kind) = parse_sublayer(name);
                let found = self.costs[&removed.with(layer, kind)];
                assert_close(&format!("{what}: {name}"), found, cost.as_f64().unwrap(), tolerance);
            }
            removed = removed.with(layer, kind);
        }
        assert_eq!((selection.scores.len(), &selection.removed), (self.steps.len(), &removed), "{what}");
    }
}

/// Compares the steps of a greedy criterion with those under `key` in the reference data. Uses only the CPU engine,
/// because each step takes minutes on candle.
fn compare_greedy_steps(world: &World, key: &str, complete_steps: usize, rule: (&str, &Value), tolerance: f64) {
    let engine = Decoder::load(&world.folder).unwrap();
    let steps = world.numbers[key].as_array().unwrap();
    let mut trials = GreedyTrials { world, engine: &engine, steps, complete_steps, costs: BTreeMap::new() };
    let measure = &mut |metric: TrialMetric, tried: &[Trial]| trials.measure(metric, tried);
    let depth = (DepthUnit::Sublayers, steps.len());
    let selection = select(world, &engine, rule, depth, &Similarities::default(), measure);
    trials.compare(&format!("{} {key}", world.name), &selection, tolerance);
}

/// Compares the scores of LLM-Drop, and two costs in the first step of each greedy criterion.
#[test]
fn sublayer_scores_match_the_reference_in_every_float_type() {
    let Some(world) = World::read(TINY_BACKBONES[0]) else { return };
    let scores = [&world.numbers["half_scores"]["attn"], &world.numbers["half_scores"]["mlp"]].map(numbers);
    for engine in engines_of_all_types(&world.folder) {
        let tolerance = Tolerance::for_dtype(engine.id().dtype);
        let similarities = measure_similarities(&world, &*engine);
        let (rule, depth) = (("llm-drop", &json!({})), (DepthUnit::Sublayers, 8));
        for (candidate, score) in select(&world, &*engine, rule, depth, &similarities, &mut no_trials).scores {
            let what = format!("{} llm-drop {candidate}", engine.id());
            assert_close(&what, score, scores[candidate % 2][candidate / 2], tolerance.activations);
        }
        let damage = tolerance.activations.max(DAMAGE_TOLERANCE);
        for (key, metric, tolerance) in [
            ("blockpruner", TrialMetric::Perplexity, tolerance.perplexity),
            ("finercut_angle", TrialMetric::Distance(LogitDistance::Angle), damage),
            ("finercut_js", TrialMetric::Distance(LogitDistance::Js), damage),
        ] {
            let all = world.numbers[key][0]["all"].as_object().unwrap();
            let mut costs: Vec<(&String, f64)> =
                all.iter().map(|(name, cost)| (name, cost.as_f64().unwrap())).collect();
            costs.sort_by(|a, b| a.1.total_cmp(&b.1));
            // In bf16, the lowest distances are as small as rounding errors.
            let costs = [costs[costs.len() * 3 / 4], costs[costs.len() - 3]];
            let trials = costs.map(|(name, _)| Trial::from(Cut::sublayers([parse_sublayer(name)])));
            let found = world.measure(&*engine, metric, &trials).unwrap();
            for ((name, cost), found) in costs.into_iter().zip(found) {
                assert_close(&format!("{} {key} {name}", engine.id()), found, cost, tolerance);
            }
        }
    }
}

#[test]
fn block_pruner_removal_matches_the_reference() {
    for (name, complete_steps) in [("tiny-llama", 4), ("tiny-olmo2", 2)] {
        let Some(world) = World::read(name) else { return };
        compare_greedy_steps(&world, "blockpruner", complete_steps, ("block-pruner", &json!({})), SCORE_TOLERANCE);
    }
}

#[test]
fn finercut_removal_matches_the_reference() {
    let Some(world) = World::read("tiny-llama") else { return };
    compare_greedy_steps(&world, "finercut_angle", 2, ("finercut", &json!({"distance": "angle"})), SCORE_TOLERANCE);
    compare_greedy_steps(&world, "finercut_js", 1, ("finercut", &json!({"distance": "js"})), DAMAGE_TOLERANCE);
}

#[test]
#[ignore = "slow: two greedy selections on the real backbone"]
fn greedy_steps_on_the_real_backbone_match_the_reference() {
    let Some(world) = World::read("real") else { return };
    compare_greedy_steps(&world, "blockpruner", 1, ("block-pruner", &json!({})), SCORE_TOLERANCE);
    compare_greedy_steps(&world, "finercut_angle", 1, ("finercut", &json!({"distance": "angle"})), SCORE_TOLERANCE);
}

#[test]
fn criteria_reject_depths_in_unsupported_units() {
    for (name, unit, expected) in [
        ("llm-drop", DepthUnit::Layers, "`{attention: 2}`"),
        ("block-pruner", DepthUnit::Layers, "`{sublayers: 2}`"),
        ("shortgpt", DepthUnit::Mlp, "`2`"),
    ] {
        let rule = criterion::build(name, &Options::new()).unwrap();
        let cut = PruneSpec { backbone: "b", layers: 8, depth: 2, unit };
        let error = criterion::check(name, &*rule, &cut).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(expected), "{name}: {error}");
    }
}

#[test]
fn shared_steps_of_sublayer_cuts_are_run_once() {
    let cuts = [Cut::default(), Cut::sublayers([(3, Sublayer::Mlp)]), Cut::layers([3])];
    let trie = Trie::new(&cuts.map(|cut| Program::without(4, &cut)));
    // All programs share the six sublayers in layers 0 to 2. The two sublayers in layer 3 each run once, and there are
    // three heads.
    assert_eq!((trie.sublayers(), trie.len()), (8, 1 + 8 + 3));
}
