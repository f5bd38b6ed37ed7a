//! Compares recoveries on a trained model with the reference implementations, and checks properties that hold for any
//! model. The README of the reference data `stories260k` gives the tolerances.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

mod map;
mod reference;

use crate::common;
use crate::common::stories::{CalibrationResult, LAYERS, calibrated, oracle, perplexities, recovery};
use crate::common::{assert_close, fixture, flat, numbers, relative_error, tensors};
use ghostlab_core::calibrate::HookPoint;
use ghostlab_core::corpus::{Start, Windows};
use ghostlab_core::model::{
    Batch, Cut, Decoder, Model, Operator, Program, Repairs, RmsNorm, Step, Sublayer, Trie, elements,
};
use ghostlab_core::recovery::{Boundary, Repair, RepairMetrics, Solution, Span};
use serde_json::{Value, json};

/// Returns pseudorandom windows for a fixture backbone.
fn sample_windows(sequences: usize, length: usize, vocab: usize) -> Windows {
    let mut state = 12345u64;
    let mut ids = Vec::with_capacity(sequences * length);
    for _ in 0..sequences * length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ids.push(((state >> 33) % vocab as u64) as u32);
    }
    let starts = (0..sequences).map(|i| Start { document: 0, token: i * length }).collect();
    Windows { ids, length, starts, corpus_tokens: 0, bytes: 0 }
}

struct World {
    decoder: Decoder,
    calibration: CalibrationResult,
}

fn load_world(name: &str, sequences: usize, length: usize) -> World {
    let decoder = Decoder::load(&fixture(&format!("arch/{name}"))).unwrap();
    let calibration = calibrated(&decoder, &sample_windows(sequences, length, decoder.config().vocab));
    World { decoder, calibration }
}

#[test]
fn ghosted_has_the_smallest_residual_of_linear_maps() {
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let world = load_world(name, 8, 64);
        for (start, end) in [(0, 1), (1, 3), (2, 4), (0, 3)] {
            let boundary = world.calibration.boundary(&world.decoder, start, end);
            let ghosted = residual(&boundary, "ghosted", json!({}));
            for (other, options) in [
                ("none", json!({})),
                ("linearpatch-diag", json!({})),
                ("linearpatch-rotate", json!({})),
                ("linearpatch-rotate", json!({"boundary": "layer"})),
                ("prune-and-comp", json!({"granularity": "scalar"})),
            ] {
                let theirs = residual(&boundary, other, options);
                assert!(
                    ghosted <= theirs * (1.0 + 1e-9),
                    "{name} [{start}, {end}): ghosted {ghosted}, {other} {theirs}"
                );
            }
        }
    }
}

#[test]
fn ghosted_solvers_agree_at_full_rank() {
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let world = load_world(name, 8, 64);
        let boundary = world.calibration.boundary(&world.decoder, 1, 3);
        let [normal, svd] =
            ["normal", "svd"].map(|solver| recovery("ghosted", json!({"solver": solver})).solve(&boundary).unwrap());
        assert_eq!(normal.system.unwrap().rank, world.decoder.config().hidden);
        assert_eq!(svd.system.unwrap().rank, normal.system.unwrap().rank);
        assert_close("condition", normal.system.unwrap().condition, svd.system.unwrap().condition, 1e-2);
        let [a, b] = [&normal, &svd].map(|s| matrix(s.repair.operator().unwrap()));
        assert!(relative_error(&a, &b) <= 1e-5, "{name}: {:e}", relative_error(&a, &b));
    }
}

#[test]
fn rank_deficient_calibration_is_noted_and_repaired() {
    let world = load_world("llama-gqa", 2, 16); // 32 tokens, 64 channels
    let boundary = world.calibration.boundary(&world.decoder, 1, 3);
    for (name, options) in [
        ("ghosted", json!({})),
        ("ghosted", json!({"solver": "svd"})),
        ("replaceme-ls", json!({})),
        ("replaceme-ls", json!({"alpha": 1e-3})),
    ] {
        let solution = recovery(name, options.clone()).solve(&boundary).unwrap();
        assert!(solution.notes[0].contains("rank 32 of 64 (32 tokens)"), "{name} {options}: {:?}", solution.notes);
        assert_eq!(solution.system.unwrap().rank, 32);
        assert!(solution.system.unwrap().condition.is_infinite());
        let operator = matrix(solution.repair.operator().unwrap());
        assert!(operator.iter().all(|v| v.is_finite()), "{name} {options}");
        // The system has fewer equations than unknowns, so the boundary is matched exactly.
        let residual = RepairMetrics::compute(&boundary, &solution.repair).unwrap().relative_residual;
        assert!(residual < 1e-2, "{name} {options}: {residual}");
    }
}

/// Runs a program and returns the input to the head.
fn run(decoder: &Decoder, program: &Program, batch: &Batch) -> Vec<f64> {
    let mut x = decoder.begin(batch).unwrap();
    for step in program.0.iter().filter(|step| !matches!(step, Step::Embed | Step::Head)) {
        x = decoder.advance(batch, step, &x).unwrap();
    }
    elements(&x).unwrap().iter().map(|&v| f64::from(v)).collect()
}

#[test]
fn boundary_error_matches_a_run_of_the_repaired_backbone() {
    for name in ["llama-gqa", "olmo2"] {
        let world = load_world(name, 4, 32);
        let boundary = world.calibration.boundary(&world.decoder, 2, 4);
        let all = sample_windows(4, 32, world.decoder.config().vocab);
        let batch = Batch::windows(all.iter());
        for (method, options) in [
            ("none", json!({})),
            ("prune-and-comp", json!({})),
            ("prune-and-comp", json!({"granularity": "scalar"})),
            ("replaceme-ls", json!({"alpha": 1.0})),
            ("replaceme-cos", json!({"epochs": 2, "batch": 32})),
            ("linearpatch-rotate", json!({})),
            ("ghosted", json!({"boundary": "layer"})),
            ("ghosted", json!({"ridge": "auto"})),
            ("affine", json!({})),
            ("rank", json!({"rank": 5})),
        ] {
            let solution = recovery(method, options).solve(&boundary).unwrap();
            let numbers = RepairMetrics::compute(&boundary, &solution.repair).unwrap();
            // Layers 2 and 3 are the last layers, so the boundary's output is the head's input.
            let repaired = run(&world.decoder, &program(4, &[2, 3], &[(2, solution)]), &batch);
            let post = world.calibration.activations.rows(HookPoint::Stream(4), 0..128).unwrap();
            let mae =
                repaired.iter().zip(post).map(|(a, b)| (a - f64::from(*b)).abs()).sum::<f64>() / repaired.len() as f64;
            assert_close(&format!("{name} {method}"), numbers.boundary_mae, mae, 1e-4);
        }
    }
}

#[test]
fn cuts_at_both_ends_are_repaired_or_rejected_with_a_reason() {
    let world = load_world("llama-gqa", 8, 64);
    let batch = Batch::windows([(0..50).collect::<Vec<u32>>().as_slice()]);
    for (start, end) in [(0, 2), (2, 4), (1, 4)] {
        let boundary = world.calibration.boundary(&world.decoder, start, end);
        let stream = ["linearpatch-diag", "linearpatch-rotate", "ghosted", "affine", "rank", "sequential"];
        for method in ["none", "prune-and-comp", "replaceme-ls"].into_iter().chain(stream) {
            let solution = recovery(method, json!({})).solve(&boundary);
            if start == 0 && method == "replaceme-ls" {
                assert!(solution.unwrap_err().to_string().contains("layer 0"), "{method}");
                continue;
            }
            let removed: Vec<usize> = (start..end).collect();
            let repaired = run(&world.decoder, &program(4, &removed, &[(start, solution.unwrap())]), &batch);
            assert!(repaired.iter().all(|v| v.is_finite()), "{method}");
        }
    }
}

#[test]
fn residual_falls_with_rank_and_with_an_added_bias() {
    let world = load_world("qwen3", 8, 64);
    let boundary = world.calibration.boundary(&world.decoder, 1, 3);
    let ghosted = relative_residual("ghosted", json!({}), &boundary);
    assert!(relative_residual("affine", json!({}), &boundary) < ghosted);
    let ranks = [1, 8, 32, 64].map(|rank| relative_residual("rank", json!({"rank": rank}), &boundary));
    assert!(ranks.is_sorted_by(|a, b| a > b) && ranks[2] > ghosted, "{ranks:?} {ghosted}");
    assert_close("full rank", ranks[3], ghosted, 1e-4);
}

fn relative_residual(name: &str, options: Value, boundary: &Boundary<'_>) -> f64 {
    let solution = recovery(name, options).solve(boundary).unwrap();
    RepairMetrics::compute(boundary, &solution.repair).unwrap().relative_residual
}

#[test]
fn sequential_repair_lowers_the_error_of_its_last_boundary() {
    let world = load_world("llama-gqa", 8, 64);
    let removed = [1, 3];
    let batch = Batch::windows(sample_windows(8, 64, world.decoder.config().vocab).iter());
    let post = world.calibration.activations.rows(HookPoint::Stream(4), 0..512).unwrap();
    let [sequential, ghosted] = ["sequential", "ghosted"].map(|name| {
        let mut solutions: Vec<(usize, Solution)> = Vec::new();
        let mut earlier: Vec<(Span, Repair)> = Vec::new();
        for start in removed {
            let boundary =
                Boundary { earlier: &earlier, ..world.calibration.boundary(&world.decoder, start, start + 1) };
            let solution = recovery(name, json!({})).solve(&boundary).unwrap();
            earlier.push((boundary.span, solution.repair.clone()));
            solutions.push((start, solution));
        }
        let repaired = run(&world.decoder, &program(4, &removed, &solutions), &batch);
        repaired.iter().zip(post).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>()
    });
    assert!(sequential < 0.999 * ghosted, "{sequential} {ghosted}");
}

fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| 0.1 * ((index * 7919 + seed * 104_729) as f32 * 0.37).sin()).collect()
}

#[test]
fn invalid_recovery_options_are_rejected_with_a_hint() {
    for (name, options, words) in [
        ("prune-and-comp", json!({"granularity": "channel", "target": "stream"}), "scalar, target: stream"),
        ("prune-and-comp", json!({"granularity": "scalar", "target": "boundary"}), "channel, target: boundary"),
        ("replaceme-ls", json!({"alpha": -1.0}), "0 or more"),
        ("replaceme-cos", json!({"batch": 0}), "batch"),
        ("replaceme-cos", json!({"learning_rate": 0.0}), "learning_rate"),
        ("ghosted", json!({"solver": "qr"}), "svd"),
        ("ghosted", json!({"boundary": "none"}), "layer"),
        ("none", json!({"solver": "svd"}), "solver"),
    ] {
        let error = ghostlab_core::recovery::build(name, options.as_object().unwrap()).err().unwrap();
        assert!(error.to_string().contains(words), "{name}: {error}");
        assert_eq!(error.exit_code(), 2);
    }
}

fn residual(boundary: &Boundary<'_>, name: &str, options: Value) -> f64 {
    let solution = recovery(name, options).solve(boundary).unwrap();
    RepairMetrics::compute(boundary, &solution.repair).unwrap().relative_residual
}

fn matrix(operator: &Operator) -> Vec<f64> {
    operator.to_dense().unwrap().into_iter().map(f64::from).collect()
}

/// Returns the program without the layers in `removed`. Each solution is paired with the first layer of the span that
/// it repairs.
fn program(layers: usize, removed: &[usize], solutions: &[(usize, Solution)]) -> Program {
    let mut repairs = Repairs::default();
    for (start, solution) in solutions {
        match &solution.repair {
            Repair::Cut => {}
            Repair::Merged(merged) => drop(repairs.merged.insert(merged.layer(), merged.clone())),
            Repair::Stream(operator) => {
                repairs.stream.insert(*start, operator.clone());
            }
            Repair::Branches { operator, attention } => {
                if *attention {
                    repairs.branches.insert((start - 1, Sublayer::Attention), operator.clone());
                }
                repairs.branches.insert((start - 1, Sublayer::Mlp), operator.clone());
            }
        }
    }
    Program::repaired(layers, &Cut::layers(removed.iter().copied()), &repairs)
}
