//! Backbones in the reference data `beyond`, and comparisons of their variants (pruned and repaired models) with the
//! expected values.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::common::stories::perplexities;
use crate::common::{assert_close, checkout, engines, json, numbers, shared, tensors};
use crate::official::setting::count;
use candle_core::Tensor;
use ghostlab_core::corpus::{Tokenizer, WindowRule, Windows, calibration_windows, evaluation_windows, read_rows};
use ghostlab_core::criterion::{Trial, TrialMetric};
use ghostlab_core::error::Result;
use ghostlab_core::evaluate::damage_eval::{Damage, Damages, WindowPart, measure_damage};
use ghostlab_core::evaluate::output_cosines;
use ghostlab_core::evaluate::perplexity::Losses;
use ghostlab_core::model::{CPU, Engine, Program, deploy, fold_scalar_factors};
use serde_json::Value;

/// Relative tolerance for perplexities.
pub(crate) const PERPLEXITY_TOLERANCE: f64 = 2e-6;
/// Relative tolerance for scores.
pub(crate) const SCORE_TOLERANCE: f64 = 1e-6;
/// Relative tolerance for operators and merged matrices (in the Frobenius norm), and for their norms.
pub(crate) const OPERATOR_TOLERANCE: f64 = 1e-5;
/// Relative tolerance for damage metrics and divergences.
pub(crate) const DAMAGE_TOLERANCE: f64 = 1e-5;

/// Backbone and variant in which the two most likely tokens of one prediction have logits that differ by 2e-6, which is
/// less than the rounding error of f32.
const TIED_VARIANT: (&str, &str) = ("real", "half:mlp:2");

/// Variants of the backbone `real` in which positive and negative changes of probabilities nearly cancel. The mean
/// change is at most 2 % of the mean absolute change, and its observed error is at most 4e-7 of the mean absolute
/// change.
const CANCELLING_VARIANTS: [&str; 3] = ["half:attn:11", "nbl:normed:stream:8", "nbl:stream:stream:8"];

/// Names of the bundled backbones in the reference data. Only the first one has every kind of variant.
pub(crate) const TINY_BACKBONES: [&str; 3] = ["tiny-llama", "tiny-qwen3", "tiny-olmo2"];

/// Backbone in the reference data, with its texts and expected numbers.
pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) folder: PathBuf,
    pub(crate) calibration: Windows,
    pub(crate) evaluation: Windows,
    pub(crate) numbers: Value,
    pub(crate) operators: HashMap<String, Tensor>,
}

impl World {
    /// Reads a backbone from the reference data, and checks that its windows match. Returns `None` if a required file
    /// is missing.
    pub(crate) fn read(name: &'static str) -> Option<Self> {
        let reference = shared("oracles/beyond")?;
        let settings = json(&reference.join("settings.json"));
        let worlds = settings["worlds"].as_array().unwrap();
        let settings = worlds.iter().find(|world| world["name"] == name).unwrap();
        let folder = resolve_input(&settings["backbone"])?;
        let [calibration_text, evaluation_text] =
            ["calibration", "evaluation"].map(|part| resolve_input(&settings[part]["path"]));
        let tokenizer = Tokenizer::load(folder.join("tokenizer.json")).unwrap();
        let rows = read_rows(calibration_text?, None).unwrap();
        let [sequences, length, seed] = ["sequences", "length", "seed"].map(|key| count(&settings["calibration"], key));
        let calibration =
            calibration_windows(WindowRule::Wikitext2, &rows, &tokenizer, sequences, length, seed as u64).unwrap();
        let rows = read_rows(evaluation_text?, None).unwrap();
        let [length, limit] = ["length", "limit"].map(|key| count(&settings["evaluation"], key));
        let evaluation = evaluation_windows(WindowRule::Wikitext2, &rows, &tokenizer, length, Some(limit)).unwrap();
        let numbers = json(&reference.join("numbers.json"))[name].take();
        let operators = tensors(&reference.join("operators.safetensors"));
        let world = Self { name, folder, calibration, evaluation, numbers, operators };
        world.check_windows();
        Some(world)
    }

    /// Checks that the windows match those of the reference data.
    fn check_windows(&self) {
        let starts: Vec<f64> = self.calibration.starts.iter().map(|start| start.token as f64).collect();
        assert_eq!(starts, numbers(&self.numbers["starts"]), "{}", self.name);
        for (part, windows) in [("calibration", &self.calibration), ("evaluation", &self.evaluation)] {
            let sum: u64 = windows.ids.iter().map(|&id| u64::from(id)).sum();
            assert_eq!(self.numbers[format!("{part}_checksum")], sum, "{}: sum of the ids for {part}", self.name);
        }
    }

    /// Loads every f32 engine. On the CPU, candle takes minutes, so it loads only the first bundled backbone.
    pub(crate) fn engines(&self) -> Vec<Box<dyn Engine>> {
        let mut engines = engines(&self.folder);
        if self.name != TINY_BACKBONES[0] {
            engines.retain(|engine| engine.id().name == CPU.name || !engine.id().is_on_cpu());
        }
        engines
    }

    /// Returns the names and expected values of the variants whose names contain one of the given strings.
    pub(crate) fn variants(&self, kinds: &[&str]) -> Vec<(&str, &Value)> {
        let variants = self.numbers["variants"].as_object().unwrap().iter();
        let variants = variants.filter(|(name, _)| kinds.iter().any(|kind| name.contains(kind)));
        variants.map(|(name, expected)| (name.as_str(), expected)).collect()
    }

    /// Returns the variants of the given kinds that are compared on an engine. Engines other than the CPU engine run
    /// only the last variant of each kind, because candle is several times slower.
    pub(crate) fn variants_on(&self, engine: &dyn Engine, kinds: &[&str]) -> Vec<(&str, &Value)> {
        if engine.id().name == CPU.name {
            return self.variants(kinds);
        }
        kinds.iter().filter_map(|kind| self.variants(&[*kind]).last().copied()).collect()
    }

    /// Computes a metric for each trial on the calibration windows.
    pub(crate) fn measure(&self, engine: &dyn Engine, metric: TrialMetric, trials: &[Trial]) -> Result<Vec<f64>> {
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

    /// Compares perplexity, damage and size of variants with the reference data, and checks the dense model. Returns
    /// the losses of the dense model.
    pub(crate) fn compare_variants(
        &self,
        engine: &dyn Engine,
        variants: &[(&str, &Value)],
        programs: &[Program],
    ) -> Losses {
        assert!(!variants.is_empty(), "{}", self.name);
        let dense = Program::dense(engine.config().layers);
        let mut all = vec![dense.clone()];
        all.extend_from_slice(programs);
        let mut damages = measure_damage(engine, &dense, &all, &self.evaluation).unwrap();
        assert_eq!(damages.len(), 1 + variants.len());
        self.compare_dense(engine, &damages[0]);
        for ((&(name, expected), program), ours) in variants.iter().zip(programs).zip(&damages[1..]) {
            let what = format!("{} on {}: {name}", self.name, engine.id());
            assert_close(&what, ours.losses.perplexity(), expected["ppl"].as_f64().unwrap(), PERPLEXITY_TOLERANCE);
            let predictions = self.evaluation.count() * (self.evaluation.length - 1);
            let tolerances = DamageTolerances {
                ties: if (self.name, name) == TIED_VARIANT { 1.0 / predictions as f64 } else { 0.0 },
                cancels: self.name == "real" && CANCELLING_VARIANTS.contains(&name),
                ..DamageTolerances::new(DAMAGE_TOLERANCE)
            };
            compare_damages(&what, ours, WindowPart::All, expected, &tolerances);
            // Only two variants per backbone have reference metrics for the second half of each window.
            if expected["second_half"].is_object() {
                let second_half = &expected["second_half"];
                compare_damages(
                    &what,
                    ours,
                    WindowPart::SecondHalf,
                    second_half,
                    &DamageTolerances::new(DAMAGE_TOLERANCE),
                );
            }
            compare_size(&what, engine, program, expected);
        }
        damages.swap_remove(0).losses
    }

    /// Checks the perplexity of the dense model, and that the model has no damage relative to itself.
    fn compare_dense(&self, engine: &dyn Engine, ours: &Damages) {
        let what = format!("{} on {}: dense", self.name, engine.id());
        assert_close(
            &what,
            ours.losses.perplexity(),
            self.numbers["dense"]["ppl"].as_f64().unwrap(),
            PERPLEXITY_TOLERANCE,
        );
        for part in [WindowPart::All, WindowPart::SecondHalf] {
            for ((damage, _), expected) in MEASURES.into_iter().zip([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]) {
                assert_eq!(ours.measure(damage, part).unwrap().value, expected, "{what}: {damage:?}");
            }
        }
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

/// Tolerances for damage metrics.
pub(crate) struct DamageTolerances {
    relative: f64,
    /// Fraction of predictions whose two most likely tokens are tied.
    ties: f64,
    /// Whether the mean change is compared relative to the mean absolute change, at a tenth of the tolerance.
    cancels: bool,
}

impl DamageTolerances {
    pub(crate) fn new(relative: f64) -> Self {
        Self { relative, ties: 0.0, cancels: false }
    }
}

/// Compares all damage metrics of a variant.
pub(crate) fn compare_damages(
    what: &str,
    ours: &Damages,
    part: WindowPart,
    expected: &Value,
    tolerances: &DamageTolerances,
) {
    let &DamageTolerances { relative, ties, cancels } = tolerances;
    for (damage, key) in MEASURES {
        let found = ours.measure(damage, part).unwrap().value;
        let number = expected[key].as_f64().unwrap();
        let allowed = match damage {
            Damage::MeanChange if cancels => relative / 10.0 * expected["mean_abs_dp"].as_f64().unwrap(),
            Damage::SameTop => relative * number + ties,
            _ => relative * number.abs(),
        };
        let error = (found - number).abs();
        assert!(error <= allowed, "{what}: {key}, {part:?}: ours {found}, expected {number}, {error:e} > {allowed:e}");
    }
}

/// Compares the number of stored parameters and of attention sublayers, which determines the size of the KV cache.
fn compare_size(what: &str, engine: &dyn Engine, program: &Program, expected: &Value) {
    let config = engine.config();
    // Fold scalar factors into the weights that follow, as an exported checkpoint stores them.
    let stored = fold_scalar_factors(deploy(program, config), config).unwrap().program;
    assert_eq!(expected["parameters"], config.parameters(&stored), "{what}: parameters");
    let attentions = config.cache_bytes(program) / config.cache_bytes(&Program::dense(1));
    assert_eq!(expected["attentions"], attentions, "{what}: attentions");
}

/// Resolves a path from the settings, which is relative to the checkout or to the shared folder. Returns `None` if the
/// shared folder is missing.
fn resolve_input(path: &Value) -> Option<PathBuf> {
    let path = path.as_str().unwrap();
    match path.split_once("/main/") {
        Some((_, path)) => Some(checkout().join(path)),
        None => shared(path.trim_start_matches("../")),
    }
}
