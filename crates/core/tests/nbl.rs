//! Checks Neural Block Linearization, which replaces sublayers with affine maps, against a plain PyTorch implementation
//! in float64. The expected results for attention sublayers are in `shared/oracles/beyond`, whose README documents
//! formulas and tolerances. `tools/nbl_mlp.py` computes the expected results for MLPs in the same way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeMap;

use crate::beyond::world::{OPERATOR_TOLERANCE, PERPLEXITY_TOLERANCE, SCORE_TOLERANCE, TINY_BACKBONES, World};
use crate::common::stories::{perplexities, recovery};
use crate::common::{
    assert_close, compare_matrix, engines_of_all_types, fixture, flat, json, no_trials, numbers, relative_error,
};
use ghostlab_core::calibrate::{self, Activations, HookPoint, Similarities};
use ghostlab_core::criterion::{self, CalibrationStats, DepthUnit, PruneSpec, Selection};
use ghostlab_core::model::{Cut, Engine, Operator, Program, Repairs, Sublayer, Tolerance};
use ghostlab_core::recovery::{Boundary, Span, spans};
use serde_json::{Value, json};

/// Prefixes that select the compared variants by name.
const KINDS: [&str; 3] = ["nbl:normed:", "nbl:stream:", "nbl-dropped:"];

/// Pruned model in the reference data: `nbl:INPUT:BOUND:DEPTH`, or `nbl-dropped:BOUND:DEPTH` if the attention sublayers
/// are removed without being replaced by maps. INPUT is what the maps read, and BOUND is what the error bounds are
/// computed from. Both are `stream` or `normed`.
struct Variant<'a> {
    name: &'a str,
    input: Option<&'a str>,
    bound: &'a str,
    depth: usize,
    expected: &'a Value,
}

impl<'a> Variant<'a> {
    fn parse(name: &'a str, expected: &'a Value) -> Self {
        let (input, bound, depth) = match name.split(':').collect::<Vec<_>>()[..] {
            ["nbl", input, bound, depth] => (Some(input), bound, depth),
            ["nbl-dropped", bound, depth] => (None, bound, depth),
            _ => panic!("{name}"),
        };
        Self { name, input, bound, depth: depth.parse().unwrap(), expected }
    }

    fn all(world: &'a World) -> Vec<Self> {
        world.variants(&KINDS).into_iter().map(|(name, expected)| Self::parse(name, expected)).collect()
    }

    /// Returns the attention sublayers that are removed or replaced.
    fn cut(&self) -> Cut {
        let layers = self.expected.get("replaced").unwrap_or(&self.expected["removed"]);
        numbers(layers).into_iter().map(|layer| (layer as usize, Sublayer::Attention)).collect()
    }
}

/// Engine, with the activations that it computes before and after each sublayer.
struct Setting<'a> {
    world: &'a World,
    engine: &'a dyn Engine,
    activations: Activations,
}

impl<'a> Setting<'a> {
    fn new(world: &'a World, engine: &'a dyn Engine) -> Self {
        let layers = engine.config().layers;
        let sites = (0..layers).flat_map(|layer| [HookPoint::Stream(layer), HookPoint::Middle(layer)]);
        let sites = sites.chain([HookPoint::Stream(layers)]);
        let activations = calibrate::in_memory(engine, &world.calibration, sites).unwrap();
        Self { world, engine, activations }
    }

    fn label(&self, variant: &Variant<'_>) -> String {
        format!("{} {} {}", self.world.name, self.engine.id(), variant.name)
    }

    fn select(&self, bound: &str, depth: usize, unit: DepthUnit) -> Selection {
        let rule = criterion::build("nbl", json!({"input": bound}).as_object().unwrap()).unwrap();
        let layers = self.engine.config().layers;
        let cut = PruneSpec { backbone: "", layers, depth, unit };
        criterion::check("nbl", &*rule, &cut).unwrap();
        let mut none = no_trials;
        let similarities = Similarities::default();
        let stats = CalibrationStats::new(&similarities, Some(&self.activations), &mut none);
        rule.select(&cut, &mut stats.with_norms(&|(layer, sublayer)| self.engine.input_norm(layer, sublayer))).unwrap()
    }

    /// Compares the selected attention sublayers and their bounds.
    fn compare_selection(&self, variant: &Variant<'_>, selection: &Selection) {
        let what = self.label(variant);
        let bounds = numbers(&self.world.numbers["nbl_bounds"][variant.bound]);
        assert_eq!(selection.removed, variant.cut(), "{what}: {:?}", selection.scores);
        for &(candidate, bound) in &selection.scores {
            assert_close(&what, bound, bounds[candidate / 2], SCORE_TOLERANCE);
        }
    }

    /// Returns the program of a variant, with maps that are fitted on this engine.
    fn program(&self, variant: &Variant<'_>) -> Program {
        let cut = variant.cut();
        match variant.input {
            Some(input) => self.replace(&cut, input),
            None => Program::without(self.engine.config().layers, &cut),
        }
    }

    /// Returns the program in which maps replace the sublayers of a cut.
    fn replace(&self, cut: &Cut, input: &str) -> Program {
        let method = recovery("nbl", json!({"input": input}));
        let mut repairs = Repairs::default();
        for span in spans(&*method, cut) {
            let solution = method.solve(&self.boundary(span)).unwrap();
            assert_eq!(solution.notes, [""; 0], "{} {} {span:?}", self.world.name, self.engine.id());
            let operator = solution.repair.operator().unwrap();
            repairs.sublayers.insert((span.start, span.sublayer.unwrap()), operator.clone());
        }
        Program::repaired(self.engine.config().layers, cut, &repairs)
    }

    fn boundary(&self, span: Span) -> Boundary<'_> {
        Boundary::new(self.engine, &self.activations, span, self.world.calibration.count())
    }

    /// Compares the maps for all attention sublayers with the reference data: their Frobenius norms and element sums,
    /// and their elements if the reference data contains them.
    fn compare_maps(&self, input: &str) {
        let cut: Cut = DepthUnit::Attention.candidates(self.engine.config().layers).into_iter().collect();
        let method = recovery("nbl", json!({"input": input}));
        for span in spans(&*method, &cut) {
            let solution = method.solve(&self.boundary(span)).unwrap();
            let what = format!("{} {} {input} {}", self.world.name, self.engine.id(), span.start);
            let expected = &self.world.numbers["nbl_maps"][input][span.start];
            for (part, values) in operator_parts(solution.repair.operator().unwrap()) {
                let expected = &expected[part];
                let what = format!("{what} {part}");
                compare_matrix(&what, &values, expected, OPERATOR_TOLERANCE);
                let stored = format!("{}/nbl.{input}.{}.{part}", self.world.name, span.start);
                if let Some(stored) = self.world.operators.get(&stored) {
                    let error = relative_error(&values, &flat(stored));
                    assert!(error <= OPERATOR_TOLERANCE, "{what}: {error:e}");
                }
            }
        }
    }
}

/// Returns a map's `W` and `b` in the layout of the reference data, in which `W` multiplies column vectors.
fn operator_parts(operator: &Operator) -> [(&'static str, Vec<f64>); 2] {
    let channels = operator.channels();
    let change = operator.change().unwrap();
    let transposed = (0..channels * channels).map(|at| change[at % channels * channels + at / channels]).collect();
    let bias = operator.bias().unwrap().unwrap().into_iter().map(f64::from).collect();
    [("W", transposed), ("b", bias)]
}

fn compare(world: &World) {
    for engine in world.engines() {
        let setting = Setting::new(world, &*engine);
        // Variants that differ only in their maps have the same selection.
        let mut selections = BTreeMap::new();
        for variant in Variant::all(world) {
            let selection = selections
                .entry((variant.bound, variant.depth))
                .or_insert_with(|| setting.select(variant.bound, variant.depth, DepthUnit::Attention));
            setting.compare_selection(&variant, selection);
        }
        // OLMo-2 has no norm before its attention, so both inputs are the same.
        for input in ["stream", "normed"] {
            setting.compare_maps(input);
        }
        let variants = world.variants_on(&*engine, &KINDS);
        let programs: Vec<Program> =
            variants.iter().map(|(name, expected)| setting.program(&Variant::parse(name, expected))).collect();
        world.compare_variants(&*engine, &variants, &programs);
    }
}

#[test]
fn nbl_on_tiny_backbones_matches_the_reference() {
    TINY_BACKBONES.into_iter().filter_map(World::read).for_each(|world| compare(&world));
}

#[test]
#[ignore = "slow: fifteen variants of the real backbone"]
fn nbl_on_the_real_backbone_matches_the_reference() {
    World::read("real").iter().for_each(compare);
}

/// Compares the bounds and maps of all sublayers, and variants with replaced MLPs, with `tests/fixtures/nbl_mlp.json`.
fn compare_mlps(world: &World, reference: &Value) {
    for engine in world.engines() {
        let setting = Setting::new(world, &*engine);
        let what = format!("{} {}", world.name, engine.id());
        for input in ["stream", "normed"] {
            let method = recovery("nbl", json!({"input": input}));
            for span in spans(&*method, &DepthUnit::Mlp.candidates(engine.config().layers).into_iter().collect()) {
                let solution = method.solve(&setting.boundary(span)).unwrap();
                let expected = &reference["maps"][input][Sublayer::Mlp.index_in_model(span.start)];
                for (part, values) in operator_parts(solution.repair.operator().unwrap()) {
                    compare_matrix(
                        &format!("{what} {input} {span:?} {part}"),
                        &values,
                        &expected[part],
                        OPERATOR_TOLERANCE,
                    );
                }
            }
        }
        let mut programs = Vec::new();
        let variants = reference["variants"].as_object().unwrap();
        for (name, expected) in variants {
            let [unit, input, depth] = name.split(':').collect::<Vec<_>>()[..] else { panic!("{name}") };
            let unit = if unit == "mlp" { DepthUnit::Mlp } else { DepthUnit::Sublayers };
            let selection = setting.select(input, depth.parse().unwrap(), unit);
            let removed: Vec<f64> =
                selection.removed.iter().map(|(layer, kind)| kind.index_in_model(layer) as f64).collect();
            assert_eq!(removed, numbers(&expected["replaced"]), "{what} {name}: {:?}", selection.scores);
            let bounds = numbers(&reference["bounds"][input]);
            for &(candidate, bound) in &selection.scores {
                assert_close(&format!("{what} {name} {candidate}"), bound, bounds[candidate], SCORE_TOLERANCE);
            }
            programs.push(setting.replace(&selection.removed, input));
        }
        let found = perplexities(&*engine, &programs, &world.evaluation);
        for ((name, expected), found) in variants.iter().zip(found) {
            assert_close(&format!("{what} {name}"), found, expected["ppl"].as_f64().unwrap(), PERPLEXITY_TOLERANCE);
        }
    }
}

#[test]
fn nbl_of_mlps_matches_the_reference() {
    let reference = json(&fixture("nbl_mlp.json"));
    for world in TINY_BACKBONES.into_iter().filter(|name| reference.get(name).is_some()).filter_map(World::read) {
        compare_mlps(&world, &reference[world.name]);
    }
}

#[test]
fn nbl_bounds_match_the_reference_in_every_float_type() {
    let Some(world) = World::read("tiny-llama") else { return };
    for engine in engines_of_all_types(&world.folder) {
        let tolerance = Tolerance::for_dtype(engine.id().dtype).activations;
        let setting = Setting::new(&world, &*engine);
        for input in ["stream", "normed"] {
            let bounds = numbers(&world.numbers["nbl_bounds"][input]);
            for (candidate, bound) in setting.select(input, 4, DepthUnit::Attention).scores {
                let what = format!("{} {input} {candidate}", engine.id());
                assert_close(&what, bound, bounds[candidate / 2], tolerance);
            }
        }
    }
}

/// Applies maps fitted in f32 in every float type. The results must agree within the type's tolerance.
#[test]
fn nbl_maps_apply_in_every_float_type() {
    let Some(world) = World::read("tiny-llama") else { return };
    let exact = &*world.engines()[0];
    let setting = Setting::new(&world, exact);
    let variants: Vec<Variant<'_>> =
        Variant::all(&world).into_iter().filter(|variant| variant.input.is_some() && variant.depth == 4).collect();
    let programs: Vec<Program> = variants.iter().map(|variant| setting.program(variant)).collect();
    for engine in engines_of_all_types(&world.folder) {
        let tolerance = Tolerance::for_dtype(engine.id().dtype).perplexity;
        let found = perplexities(&*engine, &programs, &world.evaluation);
        for (variant, found) in variants.iter().zip(found) {
            let what = format!("{} {}", engine.id(), variant.name);
            assert_close(&what, found, variant.expected["ppl"].as_f64().unwrap(), tolerance);
        }
    }
}
