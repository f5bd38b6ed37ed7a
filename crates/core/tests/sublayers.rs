//! Compares sublayer cuts, and the criteria that select them, with a plain PyTorch implementation. The results are in
//! `shared/oracles/beyond`, whose README documents formulas and tolerances.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::path::PathBuf;

use crate::common::stories::perplexities;
use crate::common::{assert_close, checkout, engines, json, numbers, shared};
use ghostlab_core::calibrate::{self, InMemory, Pair, PassRequest, Similarities, WindowSubset};
use ghostlab_core::corpus::{Rule, Tokenizer, Windows, calibration, evaluation, read_rows};
use ghostlab_core::criterion::{self, CalibrationStats, DepthUnit, PruneSpec, Selection, Trial, TrialMetric};
use ghostlab_core::evaluate::output_cosines;
use ghostlab_core::model::{CPU, Cut, Engine, Program, Sublayer, Trie};
use ghostlab_core::options::Options;
use serde_json::{Value, json};

/// Relative tolerance for scores for f32 engines.
pub(crate) const SCORE: f64 = 1e-6;
/// Relative tolerance for divergences. The reference data specifies it for damage metrics.
const DIVERGENCE: f64 = 1e-5;
/// Relative tolerance for perplexities for f32 engines.
pub(crate) const PERPLEXITY: f64 = 2e-6;

/// Names of the bundled backbones in the reference data.
pub(crate) const TINY: [&str; 3] = ["tiny-llama", "tiny-qwen3", "tiny-olmo2"];

/// Backbone from the reference data, with its texts.
pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) folder: PathBuf,
    pub(crate) calibration: Windows,
    pub(crate) evaluation: Windows,
    pub(crate) numbers: Value,
}

impl World {
    /// Reads a bundled backbone. Returns `None` if the shared folder is missing.
    pub(crate) fn tiny(name: &'static str) -> Option<Self> {
        let data = checkout().join("data/tiny");
        let corpora = ["train", "test"].map(|part| data.join(format!("corpora/wiki-{part}.jsonl.gz")));
        Self::read(name, data.join(&name[5..]), &corpora)
    }

    /// Reads the larger trained backbone and WikiText-2. Returns `None` if the shared folder is missing.
    pub(crate) fn real() -> Option<Self> {
        let corpora = shared("real/corpora")?;
        let corpora = ["validation", "test"].map(|part| corpora.join(format!("wikitext2-{part}.parquet")));
        Self::read("real", shared("real/backbone")?, &corpora)
    }

    fn read(name: &'static str, folder: PathBuf, corpora: &[PathBuf; 2]) -> Option<Self> {
        let numbers = json(&shared("oracles/beyond/numbers.json")?)[name].clone();
        let tokenizer = Tokenizer::load(folder.join("tokenizer.json")).unwrap();
        let [train, test] = corpora.each_ref().map(|path| read_rows(path, None).unwrap());
        let calibration = calibration(Rule::Wikitext2, &train, &tokenizer, 16, 256, 0).unwrap();
        let evaluation = evaluation(Rule::Wikitext2, &test, &tokenizer, 256, Some(40)).unwrap();
        let world = Self { name, folder, calibration, evaluation, numbers };
        for (key, windows) in [("calibration", &world.calibration), ("evaluation", &world.evaluation)] {
            let sum: u64 = windows.ids.iter().map(|&id| u64::from(id)).sum();
            assert_eq!(sum, world.numbers[format!("{key}_checksum")].as_u64().unwrap(), "{name}: {key}");
        }
        Some(world)
    }

    pub(crate) fn engines(&self) -> Vec<Box<dyn Engine>> {
        engines(&self.folder)
    }

    /// Returns the variants whose names begin with `prefix`, each with its cut.
    fn variants(&self, prefix: &str) -> Vec<(&String, &Value, Cut)> {
        let variants = self.numbers["variants"].as_object().unwrap().iter();
        let variants = variants.filter(|(name, variant)| name.starts_with(prefix) && variant["removed"].is_array());
        variants.map(|(name, variant)| (name, variant, cut(&variant["removed"]))).collect()
    }

    /// Runs a criterion. The similarities and trials that it needs are measured on the given engine.
    fn select(
        &self,
        engine: &dyn Engine,
        similarities: &Similarities,
        (name, options): (&str, &Value),
        (unit, depth): (DepthUnit, usize),
    ) -> Selection {
        let options: Options = options.as_object().unwrap().clone();
        let rule = criterion::build(name, &options).unwrap();
        let cut = PruneSpec { backbone: self.name, layers: engine.config().layers, depth, unit };
        criterion::check(name, &*rule, &cut).unwrap();
        let selection = rule.select(
            &cut,
            &mut CalibrationStats::new(similarities, None, &mut |metric, trials| self.measure(engine, metric, trials)),
        );
        selection.unwrap()
    }

    pub(crate) fn measure(
        &self,
        engine: &dyn Engine,
        metric: TrialMetric,
        trials: &[Trial],
    ) -> ghostlab_core::error::Result<Vec<f64>> {
        let programs: Vec<Program> = trials.iter().map(|trial| trial.program(engine.config().layers)).collect();
        match metric {
            TrialMetric::Perplexity => Ok(perplexities(engine, &programs, &self.calibration)),
            TrialMetric::Distance(distance) => {
                let windows = distance.by_window(engine, &programs, &self.calibration, &mut |_| Ok(()))?;
                Ok(windows.iter().map(|means| means.iter().sum::<f64>() / means.len() as f64).collect())
            }
            TrialMetric::Cosine => {
                let windows = output_cosines(engine, &programs, &self.calibration, &mut |_| Ok(()))?;
                Ok(windows.iter().map(|cosines| cosines.iter().sum::<f64>() / cosines.len() as f64).collect())
            }
        }
    }

    /// Measures the similarity between the streams before and after each sublayer.
    fn similarities(&self, engine: &dyn Engine) -> Similarities {
        let candidates = DepthUnit::Sublayers.candidates(engine.config().layers);
        let pairs = candidates.into_iter().map(|(layer, kind)| Pair::around(layer, kind)).collect();
        let request = PassRequest { pairs, ..PassRequest::default() };
        let windows: Vec<&[u32]> = self.calibration.iter().collect();
        let mut kept = InMemory::default();
        let mut pieces = [WindowSubset { windows, first_sequence: 0, spool: &mut kept }];
        calibrate::run(engine, &mut pieces, 1024, &request, |_| Ok(())).unwrap().remove(0)
    }

    /// Compares the steps of a greedy selection with the reference data.
    fn compare_steps(&self, engine: &dyn Engine, selection: &Selection, steps: &[Value], tolerance: f64) {
        assert_eq!(selection.scores.len(), steps.len());
        for (index, ((removed, cost), step)) in selection.scores.iter().zip(steps).enumerate() {
            let what = format!("{} {} step {index}", self.name, engine.id());
            assert_eq!(Sublayer::numbered(*removed), sublayer(&step["removed"]), "{what}: {:?}", selection.scores);
            assert_close(&what, *cost, step["cost"].as_f64().unwrap(), tolerance);
        }
    }
}

/// Parses a sublayer such as `attn 3` or `mlp 3`.
fn sublayer(name: &Value) -> (usize, Sublayer) {
    let (kind, layer) = name.as_str().unwrap().split_once(' ').unwrap();
    let kind = if kind == "attn" { Sublayer::Attention } else { Sublayer::Mlp };
    (layer.parse().unwrap(), kind)
}

fn cut(removed: &Value) -> Cut {
    removed.as_array().unwrap().iter().map(sublayer).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Parses the kind and depth in a variant name such as `half:attn:4`.
fn depth(variant: &str) -> (DepthUnit, usize) {
    let [_, kind, depth] = variant.split(':').collect::<Vec<_>>()[..] else { panic!("{variant}") };
    let unit = match kind {
        "attn" => DepthUnit::Attention,
        "mlp" => DepthUnit::Mlp,
        _ => DepthUnit::Sublayers,
    };
    (unit, depth.parse().unwrap())
}

fn perplexities_of_all_cuts(world: &World) {
    for engine in world.engines() {
        let layers = engine.config().layers;
        let mut variants: Vec<_> =
            ["half:", "blockpruner:", "finercut:"].iter().flat_map(|prefix| world.variants(prefix)).collect();
        // Run fewer variants on candle, which is several times slower.
        variants.truncate(if engine.id().name == CPU.name { variants.len() } else { 3 });
        assert!(!variants.is_empty());
        let mut programs = vec![Program::dense(layers)];
        programs.extend(variants.iter().map(|(_, _, cut)| Program::without(layers, cut)));
        let found = perplexities(&*engine, &programs, &world.evaluation);
        let what = format!("{} {}", world.name, engine.id());
        assert_close(&what, found[0], number(&world.numbers["dense"]["ppl"]), PERPLEXITY);
        for (((name, variant, cut), program), found) in variants.iter().zip(&programs[1..]).zip(&found[1..]) {
            assert_close(&format!("{what} {name}"), *found, number(&variant["ppl"]), PERPLEXITY);
            let attentions = program.0.iter().filter(|step| matches!(step.sublayer(), Some((Sublayer::Attention, _))));
            assert_eq!(attentions.count() as u64, variant["attentions"].as_u64().unwrap(), "{what} {name}");
            let parameters = engine.config().parameters(program);
            assert_eq!(parameters, variant["parameters"].as_u64().unwrap(), "{what} {name}");
            let ours = engine.config().cache_bytes(program) / engine.config().cache_bytes(&Program::dense(1));
            assert_eq!(ours, variant["attentions"].as_u64().unwrap(), "{what} {name}: {cut}");
        }
    }
}

#[test]
fn perplexities_without_sublayers_equal_the_reference() {
    TINY.into_iter().filter_map(World::tiny).for_each(|world| perplexities_of_all_cuts(&world));
}

#[test]
#[ignore = "slow: thirteen variants of the real backbone on two engines"]
fn perplexities_of_the_real_backbone_equal_the_reference() {
    World::real().iter().for_each(perplexities_of_all_cuts);
}

fn llm_drop_of_all_kinds(world: &World) {
    let expected = [&world.numbers["half_scores"]["attn"], &world.numbers["half_scores"]["mlp"]].map(numbers);
    for engine in world.engines() {
        let similarities = world.similarities(&*engine);
        for (name, _, cut) in world.variants("half:") {
            let what = format!("{} {} {name}", world.name, engine.id());
            let selection = world.select(&*engine, &similarities, ("llm-drop", &json!({})), depth(name));
            assert_eq!(selection.removed, cut, "{what}: {:?}", selection.scores);
            for &(candidate, score) in &selection.scores {
                assert_close(&what, score, expected[candidate % 2][candidate / 2], SCORE);
            }
        }
    }
}

#[test]
fn llm_drop_selects_what_the_reference_does() {
    TINY.into_iter().filter_map(World::tiny).for_each(|world| llm_drop_of_all_kinds(&world));
}

#[test]
fn llm_drop_on_the_real_backbone_equals_the_reference() {
    World::real().iter().for_each(llm_drop_of_all_kinds);
}

/// Compares the first `steps` steps of a greedy criterion on one engine with the reference data.
fn greedy(world: &World, engine: &dyn Engine, (name, options): (&str, &Value), expected: &Value, steps: usize) {
    let expected = &expected.as_array().unwrap()[..steps];
    let selection = world.select(engine, &Similarities::default(), (name, options), (DepthUnit::Sublayers, steps));
    let tolerance = if options["distance"] == "js" { DIVERGENCE } else { SCORE };
    world.compare_steps(engine, &selection, expected, tolerance);
}

/// Checks only the first step, and only on the CPU engine, because each step takes minutes on candle.
#[test]
fn block_pruner_removes_what_the_reference_does() {
    for (name, steps) in [("tiny-llama", 1), ("tiny-olmo2", 1)] {
        let Some(world) = World::tiny(name) else { return };
        let engine = &*world.engines()[0];
        greedy(&world, engine, ("block-pruner", &json!({})), &world.numbers["blockpruner"], steps);
    }
}

#[test]
fn finercut_removes_what_the_reference_does() {
    let Some(world) = World::tiny("tiny-llama") else { return };
    let engine = &*world.engines()[0];
    for distance in ["angle", "js"] {
        let expected = &world.numbers[format!("finercut_{distance}")];
        greedy(&world, engine, ("finercut", &json!({"distance": distance})), expected, 1);
    }
}

#[test]
fn criteria_refuse_a_depth_in_another_unit() {
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
fn shared_steps_of_sublayer_cuts_run_once() {
    let cuts = [Cut::default(), Cut::sublayers([(3, Sublayer::Mlp)]), Cut::layers([3])];
    let trie = Trie::new(&cuts.map(|cut| Program::without(4, &cut)));
    // All programs share the six sublayers in layers 0 to 2. The two sublayers in layer 3 each run once, and there are
    // three heads.
    assert_eq!((trie.sublayers(), trie.len()), (8, 1 + 8 + 3));
}
