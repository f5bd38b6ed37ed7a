//! Compares LaCo's selection loop with a plain PyTorch implementation in float64 (`shared/oracles/beyond`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeMap;

use crate::beyond::world::{SCORE_TOLERANCE, World};
use crate::common::engines_of_all_types;
use crate::common::stories::recovery;
use ghostlab_core::calibrate::Similarities;
use ghostlab_core::criterion::{self, CalibrationStats, DepthUnit, PruneSpec, Selection, Trial, TrialMetric};
use ghostlab_core::error::Result;
use ghostlab_core::model::{CPU, Engine, Program, Tolerance};
use ghostlab_core::recovery::merged_layers;
use serde_json::{Value, json};

/// Pruned model in the reference data, named `laco:C=COMBINE:T=THRESHOLD:FORM`.
struct Variant<'a> {
    name: &'a str,
    combine: usize,
    threshold: f64,
    form: &'a str,
    expected: &'a Value,
}

impl<'a> Variant<'a> {
    fn parse(name: &'a str, expected: &'a Value) -> Self {
        let ["laco", combine, threshold, form] = name.split(':').collect::<Vec<_>>()[..] else { panic!("{name}") };
        let combine = combine.strip_prefix("C=").unwrap().parse().unwrap();
        let threshold = threshold.strip_prefix("T=").unwrap().parse().unwrap();
        Self { name, combine, threshold, form, expected }
    }

    /// Returns, for each remaining layer, the original layers merged into it.
    fn groups(&self) -> Vec<Vec<usize>> {
        serde_json::from_value(self.expected["origin"].clone()).unwrap()
    }

    /// Runs the selection loop to the given depth. Returns the selection and the cosines of all trials. Trials in
    /// `known` are not measured again.
    fn select(
        &self,
        world: &World,
        engine: &dyn Engine,
        depth: usize,
        known: &mut BTreeMap<Trial, f64>,
    ) -> (Result<Selection>, Vec<f64>) {
        let options = json!({"combine": self.combine, "threshold": self.threshold, "form": self.form});
        let rule = criterion::build("laco", options.as_object().unwrap()).unwrap();
        let cut = PruneSpec { backbone: world.name, layers: engine.config().layers, depth, unit: DepthUnit::Layers };
        criterion::check("laco", &*rule, &cut).unwrap();
        let mut cosines = Vec::new();
        let mut measure = |metric: TrialMetric, trials: &[Trial]| {
            let new: Vec<Trial> = trials.iter().filter(|trial| !known.contains_key(*trial)).cloned().collect();
            let measured = world.measure(engine, metric, &new)?;
            known.extend(new.into_iter().zip(measured));
            let found: Vec<f64> = trials.iter().map(|trial| known[trial]).collect();
            cosines.extend(&found);
            Ok(found)
        };
        let similarities = Similarities::default();
        let selection = rule.select(&cut, &mut CalibrationStats::new(&similarities, None, &mut measure));
        (selection, cosines)
    }

    /// Compares the cosines with those of the first trials in the reference data.
    fn compare_trials(&self, what: &str, engine: &dyn Engine, cosines: &[f64]) {
        let trail = self.expected["trail"].as_array().unwrap();
        assert!(cosines.len() <= trail.len(), "{what}");
        let dtype = engine.id().dtype;
        let tolerance = if dtype == "f32" { SCORE_TOLERANCE } else { Tolerance::for_dtype(dtype).activations };
        for (found, step) in cosines.iter().zip(trail) {
            let expected = step["cosine"].as_f64().unwrap();
            // The bound is absolute, because cosines near 0 are as inaccurate as those near 1.
            assert!((found - expected).abs() < tolerance, "{what} at {}: {found} and {expected}", step["at"]);
        }
    }

    /// Requests a greater depth than the reference implementation reached. The loop then tries every position and
    /// fails, because no further merge is similar enough.
    fn compare_all_trials(&self, world: &World, engine: &dyn Engine, known: &mut BTreeMap<Trial, f64>) {
        let removed = engine.config().layers - self.groups().len();
        let (selection, cosines) = self.select(world, engine, removed + self.combine - 1, known);
        let text = selection.unwrap_err().to_string();
        assert!(text.contains(&format!("removed {removed} of")), "{text}");
        assert_eq!(cosines.len(), self.expected["trail"].as_array().unwrap().len(), "{}", self.name);
        self.compare_trials(self.name, engine, &cosines);
    }

    /// Checks the selection and returns the program with the merged layers.
    fn program(&self, world: &World, engine: &dyn Engine, known: &mut BTreeMap<Trial, f64>) -> Program {
        let what = format!("{} {} {}", world.name, engine.id(), self.name);
        let groups = self.groups();
        let layers = engine.config().layers;
        let (selection, cosines) = self.select(world, engine, layers - groups.len(), known);
        if world.name == "tiny-llama" && engine.id() == CPU {
            self.compare_all_trials(world, engine, known);
        }
        let selection = selection.unwrap();
        self.compare_trials(&what, engine, &cosines);
        let trail = self.expected["trail"].as_array().unwrap();
        let last = trail.iter().rposition(|step| step["taken"] == true).unwrap();
        let tried: Vec<u64> = selection.scores.iter().map(|(layer, _)| *layer as u64).collect();
        let expected: Vec<u64> = trail[..=last].iter().map(|step| step["at"].as_u64().unwrap()).collect();
        assert_eq!(tried, expected, "{what}");
        let removed: Vec<usize> = groups.iter().flat_map(|group| group[1..].to_vec()).collect();
        assert_eq!(selection.removed, removed, "{what}");
        let method = recovery("merge", json!({"form": self.form}));
        let repairs = merged_layers(&*method, &selection.removed, &selection.merges).unwrap();
        let merged: Vec<usize> = groups.iter().filter(|group| group.len() > 1).map(|group| group[0]).collect();
        assert_eq!(repairs.merged.keys().copied().collect::<Vec<_>>(), merged, "{what}");
        Program::repaired(layers, &selection.removed, &repairs)
    }
}

fn compare(world: &World) {
    for engine in world.engines() {
        let variants = world.variants_on(&*engine, &["laco:"]);
        // Variants with the same form share trials.
        let mut known = BTreeMap::new();
        let parsed = variants.iter().map(|(name, expected)| Variant::parse(name, expected));
        let programs: Vec<Program> = parsed.map(|variant| variant.program(world, &*engine, &mut known)).collect();
        world.compare_variants(&*engine, &variants, &programs);
    }
}

#[test]
fn laco_on_tiny_backbones_matches_the_reference() {
    ["tiny-llama", "tiny-olmo2"].into_iter().filter_map(World::read).for_each(|world| compare(&world));
}

#[test]
fn laco_selects_the_same_layers_in_every_float_type() {
    let Some(world) = World::read("tiny-llama") else { return };
    let (name, expected) = world.variants(&["laco:"])[0];
    for engine in engines_of_all_types(&world.folder) {
        // On the CPU, candle takes minutes.
        if engine.id().dtype != "f32" && (engine.id().name == CPU.name || !engine.id().is_on_cpu()) {
            Variant::parse(name, expected).program(&world, &*engine, &mut BTreeMap::new());
        }
    }
}

#[test]
#[ignore = "slow: two loops on the real backbone"]
fn laco_on_the_real_backbone_matches_the_reference() {
    World::read("real").iter().for_each(compare);
}
