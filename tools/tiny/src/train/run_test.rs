//! Complete runs of a very small backbone: they learn, resume after interruptions, and are deterministic.

use std::path::Path;
use std::time::Duration;

use super::corpus::Register;
use super::export::Manifest;
use super::optimizer::Optimizer;
use super::recipe::{Lessons, Recipe};
use super::run::{Habits, train};
use super::shape::{Shape, trained};
use ghostlab_core::model::architecture::{ARCHITECTURES, Architecture};

fn recipe(architecture: &Architecture) -> Recipe {
    let shape = Shape {
        layers: 2,
        hidden: 32,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        intermediate: 48,
        vocab: 300,
        context: 32,
        ..Shape::tiny(architecture)
    };
    Recipe {
        shape,
        optimizer: Optimizer { rate: 1e-2, warmup: 5, ..Optimizer::default() },
        tokens: 60 * 4 * 32,
        chunk: 32,
        short: 16,
        lessons: Lessons { tokens: 8 * 4 * 32, rate: 1e-3, weight: 4.0 },
        ..Recipe::tiny(architecture)
    }
}

fn registers() -> Vec<Register> {
    vec![stories("web", 0), stories("news", 1000)]
}

fn story(seed: usize) -> String {
    let names = ["Mara", "Odo", "Lin", "Tess"];
    let things = ["bell", "lamp", "drum", "kite"];
    (0..6).map(|i| format!("{} carried the {} home. ", names[(seed + i) % 4], things[(seed * 3 + i) % 4])).collect()
}

fn stories(name: &str, first: usize) -> Register {
    Register {
        name: name.into(),
        train: (first..first + 60).map(story).collect(),
        validation: (first + 60..first + 70).map(story).collect(),
    }
}

fn habits() -> Habits {
    Habits { report_every: 10, validate_every: 20, save_every: Duration::ZERO, ..Habits::default() }
}

fn run(architecture: &Architecture, folder: &Path, habits: &Habits) -> ghostlab_core::error::Result<Option<Manifest>> {
    train(&recipe(architecture), &registers(), folder, habits, &mut |_| ())
}

#[test]
fn a_run_learns_and_writes_a_whole_backbone() {
    for architecture in trained() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = run(architecture, folder.path(), &habits()).unwrap().unwrap();
        let first = &manifest.history[0];
        let last = manifest.history.last().unwrap();
        assert!(last.train_loss < 0.5 * first.train_loss, "{}: {:?}", architecture.class, manifest.history);
        assert!(manifest.validation.iter().all(|s| s.perplexity < 0.2 * s.unigram_perplexity), "{manifest:?}");
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(
            names,
            ["config.json", "manifest.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
        );
        for (name, entry) in &manifest.files {
            let (sha256, bytes) = ghostlab_core::files::sha256::of_file(&folder.path().join(name)).unwrap();
            assert_eq!((&sha256, bytes), (&entry.sha256, entry.bytes), "{name}");
        }
        // A second run has nothing to do.
        assert_eq!(run(architecture, folder.path(), &habits()).unwrap().unwrap(), manifest);
    }
}

#[test]
fn interrupted_run_matches_for_any_number_of_threads() {
    let architecture = &ARCHITECTURES[1];
    let whole = tempfile::tempdir().unwrap();
    let expected = run(architecture, whole.path(), &habits()).unwrap().unwrap();
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let folder = tempfile::tempdir().unwrap();
            for stop in [20, 50, 60] {
                let habits = Habits { stop_before: Some(stop), ..habits() };
                assert!(run(architecture, folder.path(), &habits).unwrap().is_none());
            }
            let found = run(architecture, folder.path(), &habits()).unwrap().unwrap();
            assert_eq!(found.files, expected.files, "{threads} threads");
            assert_eq!(found.history, expected.history, "{threads} threads");
        });
    }
}

#[test]
fn a_folder_of_another_run_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let stop = Habits { stop_before: Some(3), ..habits() };
    run(&ARCHITECTURES[0], folder.path(), &stop).unwrap();
    let error = run(&ARCHITECTURES[1], folder.path(), &stop).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    assert!(error.to_string().contains("another run"), "{error}");
}

#[test]
fn the_lessons_have_a_rate_of_their_own() {
    let recipe = recipe(&ARCHITECTURES[0]);
    assert_eq!((recipe.steps(), recipe.all_steps()), (60, 68));
    assert_eq!(recipe.rate_at(59), recipe.optimizer.rate_at(59, 60));
    assert_eq!(recipe.rate_at(60), recipe.lessons.rate);
    assert!((recipe.rate_at(67) - 0.1 * recipe.lessons.rate).abs() < 1e-12);
}

#[test]
fn an_impossible_recipe_is_named() {
    let architecture = &ARCHITECTURES[0];
    for (change, part) in [
        (Recipe { short: 5, ..recipe(architecture) }, "short"),
        (Recipe { batch: 0, ..recipe(architecture) }, "batch"),
        (Recipe { tokens: 200, ..recipe(architecture) }, "tokens"),
        (Recipe { chunk: 64, ..recipe(architecture) }, "chunk"),
    ] {
        let text = change.check().unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
}

mod optimizer {
    use candle_core::{Device, Tensor, Var};
    use candle_nn::{AdamW, Optimizer as _, ParamsAdamW};

    use super::super::optimizer::{Moments, Optimizer};
    use super::super::parameters::Parameters;
    use super::*;

    #[test]
    fn a_step_is_that_of_candles_adamw() {
        let recipe = recipe(&ARCHITECTURES[2]);
        let parameters = Parameters::of(&recipe.config(0).unwrap());
        let total = parameters.total;
        let cpu = Device::Cpu;
        let mut weights = parameters.start(3);
        let mut moments = Moments { first: vec![0.0; total], second: vec![0.0; total] };
        let ours = &recipe.optimizer;
        let vars: Vec<Var> = parameters
            .list
            .iter()
            .map(|p| Var::from_vec(weights[p.range.clone()].to_vec(), p.range.len(), &cpu).unwrap())
            .collect();
        let optimizer = |decays: bool| {
            let vars = vars.iter().zip(&parameters.list).filter(|(_, p)| p.kind.decays() == decays);
            let weight_decay = if decays { ours.weight_decay } else { 0.0 };
            let params = ParamsAdamW { beta1: ours.beta1, beta2: ours.beta2, eps: ours.eps, weight_decay, lr: 0.0 };
            AdamW::new(vars.map(|(var, _)| var.clone()).collect(), params).unwrap()
        };
        let mut both = [optimizer(true), optimizer(false)];
        for step in 0..8 {
            let gradient: Vec<f32> = (0..total).map(|i| ((i * 31 + step * 17) as f32).sin() * 1e-2).collect();
            let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let clipped: Vec<f32> = gradient.iter().map(|g| (f64::from(*g) * (1.0 / norm).min(1.0)) as f32).collect();
            // `Σ v·g` has the gradient g.
            let mut loss = Tensor::zeros((), candle_core::DType::F32, &cpu).unwrap();
            for (var, p) in vars.iter().zip(&parameters.list) {
                let g = Tensor::new(&clipped[p.range.clone()], &cpu).unwrap();
                loss = (loss + (var.as_tensor() * g).unwrap().sum_all().unwrap()).unwrap();
            }
            let gradients = loss.backward().unwrap();
            for one in &mut both {
                one.set_learning_rate(ours.rate_at(step, 20));
                one.step(&gradients).unwrap();
            }
            // Two shards that sum to the gradient.
            let mut parts = vec![gradient.iter().map(|g| g * 0.25).collect::<Vec<_>>(); 2];
            parts[1].iter_mut().for_each(|g| *g *= 3.0);
            let found = ours.update(step, ours.rate_at(step, 20), &parameters, &mut weights, &mut moments, &mut parts);
            assert!((found - norm).abs() < 1e-5 * norm && norm > 1.0);
            assert!(parts.iter().flatten().all(|g| *g == 0.0));
        }
        for (var, p) in vars.iter().zip(&parameters.list) {
            let expected: Vec<f32> = var.to_vec1().unwrap();
            for (a, b) in expected.iter().zip(&weights[p.range.clone()]) {
                assert!((a - b).abs() < 1e-5, "{}: {a}, not {b}", p.name);
            }
        }
    }

    #[test]
    fn the_rate_rises_and_falls() {
        let optimizer = Optimizer { rate: 2.0, warmup: 4, ..Optimizer::default() };
        let rates: Vec<f64> = (0..14).map(|step| optimizer.rate_at(step, 14)).collect();
        assert_eq!(rates[..5], [0.5, 1.0, 1.5, 2.0, 2.0]);
        assert!(rates[4..].windows(2).all(|pair| pair[1] < pair[0]));
        assert!((rates[13] - 0.2).abs() < 1e-12);
    }
}
