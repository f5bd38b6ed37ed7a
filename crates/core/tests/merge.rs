//! Compares merged layers (LaCo) with a plain PyTorch implementation in float64. The results are in
//! `shared/oracles/beyond`, whose README documents formulas and tolerances.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::path::Path;

use crate::beyond::world::{OPERATOR_TOLERANCE, TINY_BACKBONES, World};
use crate::common::stories::{perplexities, recovery};
use crate::common::{assert_close, compare_matrix, engines_of_all_types, flat, tensors};
use ghostlab_core::calibrate::{self, HookPoint};
use ghostlab_core::checkpoint::Layout;
use ghostlab_core::model::{CPU, Cut, Engine, FloatType, Program, Tolerance, deploy};
use ghostlab_core::recovery::{Boundary, Repair, RepairMetrics, Span, merged_layers, place_repairs};
use serde_json::{Value, json};

/// Substrings that select the compared variants by name.
const KINDS: [&str; 3] = ["):released", "):norms", "):paper"];

/// Pruned model in the reference data, `merge:[FIRST,END):FORM`. All other layers in the range are merged into layer
/// FIRST.
struct Variant<'a> {
    name: &'a str,
    first: usize,
    end: usize,
    form: &'a str,
    expected: &'a Value,
}

impl<'a> Variant<'a> {
    fn parse(name: &'a str, expected: &'a Value) -> Self {
        let (layers, form) = name.strip_prefix("merge:[").unwrap().split_once("):").unwrap();
        let (first, end) = layers.split_once(',').unwrap();
        Self { name, first: first.parse().unwrap(), end: end.parse().unwrap(), form, expected }
    }

    fn removed(&self) -> Cut {
        Cut::layers(self.first + 1..self.end)
    }

    /// Returns the program with the merged layer. Checks that planning the repair without calibration gives the same
    /// program as solving it.
    fn program(&self, world: &World, engine: &dyn Engine) -> Program {
        let what = format!("{} on {}: {}", world.name, engine.id(), self.name);
        let method = recovery("merge", json!({"form": self.form}));
        let span = Span::layers(self.first + 1, self.end);
        let sites = method.sites(span);
        assert!(sites.contains(&HookPoint::Stream(self.first)), "{what}: {sites:?}");
        let activations = calibrate::in_memory(engine, &world.calibration, sites).unwrap();
        let fitted = world.calibration.count();
        let boundary = Boundary::new(engine, &activations, span, fitted);
        let solution = method.solve(&boundary).unwrap();
        assert!(matches!(solution.repair, Repair::Merged(_)) && solution.notes.is_empty(), "{what}");
        let metrics = RepairMetrics::compute(&boundary, &solution.repair).unwrap();
        assert!(metrics.boundary_mae > 0.0 && metrics.m_norm == 0.0, "{what}");
        let layers = engine.config().layers;
        let solved = place_repairs(&self.removed(), &[(span, solution.repair)]).unwrap().unwrap();
        let planned = merged_layers(&*method, &self.removed(), &[]).unwrap();
        let [solved, planned] = [solved, planned].map(|repairs| Program::repaired(layers, &self.removed(), &repairs));
        assert_eq!(solved, planned, "{what}");
        solved
    }

    /// Compares the norms and sums of the merged matrices in an exported checkpoint with the expected values.
    fn compare_export(&self, world: &World, engine: &dyn Engine, program: &Program) {
        let what = format!("{}: {}", world.name, self.name);
        let layout =
            Layout::plan(engine.config(), &world.folder, &deploy(program, engine.config()), Some(FloatType::F32))
                .unwrap();
        assert_eq!(self.expected["parameters"], layout.parameters(), "{what}");
        assert!(!layout.needs_modeling_file(), "{what}");
        let folder = tempfile::tempdir().unwrap();
        layout.write(folder.path(), u64::MAX, &mut |_| Ok(())).unwrap();
        let exported = tensors(&folder.path().join("model.safetensors"));
        for (part, module) in [("q_proj", "self_attn"), ("down_proj", "mlp")] {
            let name = format!("model.layers.{}.{module}.{part}.weight", self.first);
            compare_matrix(
                &format!("{what}: {name}"),
                &flat(&exported[&name]),
                &self.expected["weights"][part],
                OPERATOR_TOLERANCE,
            );
        }
        self.compare_norms(&what, &exported, &world.folder);
    }

    /// Checks that the norm of the exported layer is unchanged unless the variant merges norms.
    fn compare_norms(&self, what: &str, exported: &Tensors, folder: &Path) {
        let name = format!("model.layers.{}.post_attention_layernorm.weight", self.first);
        let dense = &tensors(&folder.join("model.safetensors"))[&name];
        assert_eq!(flat(dense) == flat(&exported[&name]), self.form != "norms", "{what}: {name}");
    }
}

type Tensors = std::collections::HashMap<String, candle_core::Tensor>;

fn compare(world: &World) {
    for engine in world.engines() {
        let variants = world.variants_on(&*engine, &KINDS);
        let parsed = variants.iter().map(|(name, expected)| Variant::parse(name, expected));
        let parsed: Vec<Variant<'_>> = parsed.collect();
        let programs: Vec<Program> = parsed.iter().map(|variant| variant.program(world, &*engine)).collect();
        world.compare_variants(&*engine, &variants, &programs);
        if engine.id() == CPU {
            for (variant, program) in parsed.iter().zip(&programs) {
                variant.compare_export(world, &*engine, program);
            }
        }
    }
}

#[test]
fn merged_layers_of_tiny_backbones_match_the_reference() {
    TINY_BACKBONES.into_iter().filter_map(World::read).for_each(|world| compare(&world));
}

#[test]
#[ignore = "slow: five variants of the real backbone"]
fn merged_layers_of_the_real_backbone_match_the_reference() {
    World::read("real").iter().for_each(compare);
}

/// Weights that are loaded on demand must give the same merged layers as weights in memory.
#[test]
fn merged_layers_run_in_every_float_type() {
    let Some(world) = World::read("tiny-llama") else { return };
    let engines = engines_of_all_types(&world.folder);
    let variants = world.variants(&KINDS);
    let mut variants: Vec<Variant<'_>> =
        variants.iter().map(|(name, expected)| Variant::parse(name, expected)).collect();
    // Skip variants with a perplexity of 3 or more, because they amplify rounding errors.
    variants.retain(|variant| variant.expected["ppl"].as_f64().unwrap() < 3.0);
    let programs: Vec<Program> = variants.iter().map(|variant| variant.program(&world, &*engines[0])).collect();
    let in_memory = perplexities(&*engines[0], &programs, &world.evaluation);
    assert_eq!(perplexities(&*engines[1], &programs, &world.evaluation), in_memory);
    for engine in engines {
        let tolerance = Tolerance::for_dtype(engine.id().dtype).perplexity;
        let found = perplexities(&*engine, &programs, &world.evaluation);
        for (variant, found) in variants.iter().zip(found) {
            let what = format!("{} {}", engine.id(), variant.name);
            assert_close(&what, found, variant.expected["ppl"].as_f64().unwrap(), tolerance);
        }
    }
}

#[test]
fn merging_requires_a_preceding_layer_and_the_merge_method() {
    assert!(merged_layers(&*recovery("merge", json!({})), &Cut::layers([0, 1, 5]), &[]).is_none());
    assert!(merged_layers(&*recovery("ghosted", json!({})), &Cut::layers([5]), &[]).is_none());
}
