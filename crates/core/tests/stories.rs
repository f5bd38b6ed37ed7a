//! Compares each computation on a small trained model (5 layers, 64 channels) with reference implementations. The results
//! are in the reference data `stories260k`, whose README gives the tolerances.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use crate::common;
use crate::common::stories::{LAYERS, oracle, perplexities};
use crate::common::{assert_close, flat, numbers, relative_error, tensors};
use ghostlab_core::calibrate::{Pair, SimilarityAxis};
use ghostlab_core::corpus::{PythonRandom, Tokenizer, WindowRule, calibration_windows};
use ghostlab_core::criterion::{self, CalibrationStats, DepthUnit, PruneSpec, Selection};
use ghostlab_core::error::Result;
use ghostlab_core::linalg::hadamard;
use ghostlab_core::linalg::solve::NormalEquations;
use ghostlab_core::linalg::streaming_qr::StreamingQr;
use ghostlab_core::model::{Batch, Engine, HostRows, Observer, Program, ResidualStream, Trie};
use serde_json::{Value, json};

#[test]
fn forward_pass_matches_the_reference() {
    let Some(oracle) = oracle() else { return };
    let expected = tensors(&oracle.folder.join("stories260k_forward.safetensors"));
    let rows: Vec<Vec<i64>> = expected["input_ids"].to_vec2().unwrap();
    let rows: Vec<Vec<u32>> = rows.into_iter().map(|row| row.into_iter().map(|id| id as u32).collect()).collect();
    let batch = Batch::windows(rows.iter().map(Vec::as_slice));
    for engine in oracle.engines() {
        let mut streams = Inputs::default();
        engine.run(&Trie::new(&[Program::trunk(LAYERS)]), &batch, &mut streams).unwrap();
        for (layer, input) in streams.0.iter().take(LAYERS).enumerate() {
            let error = relative_error(&to_f64(input), &flat(&expected[&format!("layer_input.{layer}")]));
            assert!(error <= 1e-4, "{}: input of layer {layer}: {error:e}", engine.id().name);
        }
        let last = streams.0[LAYERS].values().unwrap().to_vec();
        let logits = engine.logits(&last, &(0..256).collect::<Vec<_>>()).unwrap();
        let error = relative_error(&to_f64(&logits), &flat(&expected["logits"]));
        assert!(error <= 1e-4, "{}: logits: {error:e}", engine.id().name);
    }
}

fn to_f64(rows: &HostRows) -> Vec<f64> {
    rows.values().unwrap().iter().map(|&v| v.into()).collect::<Vec<f64>>()
}

/// Observer that stores the inputs to each layer and to the head.
#[derive(Default)]
struct Inputs(Vec<HostRows>);

impl Observer<dyn ResidualStream> for Inputs {
    fn after_step(&mut self, node: usize, stream: Option<&dyn ResidualStream>, _: f64) -> Result<()> {
        // Even trie nodes are the embedding and the MLPs, whose outputs are the inputs to the layers and to the head.
        if node.is_multiple_of(2) {
            self.0.push(stream.unwrap().rows()?);
        }
        Ok(())
    }
}

#[test]
fn cosines_match_the_reference_on_both_axes() {
    let Some(oracle) = oracle() else { return };
    let calibrations = oracle.engines().into_iter().map(|engine| oracle.calibration(&*engine)).collect::<Vec<_>>();
    let tables = &oracle.values["cosine_pairs"];
    for (axis, name) in [
        (SimilarityAxis::ChannelSeries, "token_axis(official: over positions, per channel)"),
        (SimilarityAxis::Token, "channel_axis(per token, over channels)"),
    ] {
        for from in 0..=LAYERS {
            for (to, expected) in numbers(&tables[name][from]).into_iter().enumerate().skip(from) {
                for calibration in &calibrations {
                    let ours = calibration.similarities.get(Pair { axis, from, to }).unwrap();
                    assert!((ours - expected).abs() <= 1e-5, "{axis:?} {from} {to}: {ours} {expected}");
                }
            }
        }
    }
}

/// Inputs for a criterion: reference data, engine and calibration.
struct CriterionInputs<'a> {
    oracle: &'a common::stories::Oracle,
    engine: &'a dyn Engine,
    calibrated: &'a common::stories::CalibrationResult,
}

fn select(inputs: &CriterionInputs<'_>, name: &str, options: &Value, depth: usize) -> Selection {
    let criterion = criterion::build(name, options.as_object().unwrap()).unwrap();
    let cut = PruneSpec { backbone: "stories", layers: LAYERS, depth, unit: DepthUnit::Layers };
    criterion.check(name, &cut).unwrap();
    let similarities = &inputs.calibrated.similarities;
    let selection = criterion.select(
        &cut,
        &mut CalibrationStats::new(similarities, None, &mut |_, trials| {
            let programs: Vec<Program> = trials.iter().map(|trial| trial.program(LAYERS)).collect();
            Ok(perplexities(inputs.engine, &programs, &inputs.oracle.calibration_windows()))
        }),
    );
    selection.unwrap()
}

#[test]
fn criteria_select_the_layers_of_the_official_code() {
    let Some(oracle) = oracle() else { return };
    for engine in oracle.engines() {
        let calibrated = oracle.calibration(&*engine);
        let inputs = &CriterionInputs { oracle: &oracle, engine: &*engine, calibrated: &calibrated };
        for (depth, expected) in oracle.values["streamline_official"].as_object().unwrap() {
            let depth: usize = depth.parse().unwrap();
            let selection = select(inputs, "llm-streamline", &json!({}), depth);
            let (start, end) =
                (expected["start"].as_u64().unwrap() as usize, expected["end"].as_u64().unwrap() as usize);
            assert_eq!(selection.removed, (start..end).collect::<Vec<_>>(), "depth {depth}");
            let best = selection.scores.iter().find(|(s, _)| *s == start).unwrap().1;
            assert!((best - expected["best"].as_f64().unwrap()).abs() <= 1e-5, "depth {depth}: {best}");
        }
        let expected = &oracle.values["shortgpt_official"];
        let pruned: Vec<usize> = numbers(&expected["pruned"]).into_iter().map(|layer| layer as usize).collect();
        let selection = select(inputs, "shortgpt", &json!({}), pruned.len());
        assert_eq!(selection.removed, pruned);
        let pruned_scores = selection.scores.iter().filter(|(layer, _)| pruned.contains(layer));
        let mean = pruned_scores.map(|(_, influence)| 1.0 - influence).sum::<f64>() / pruned.len() as f64;
        assert!((mean - expected["avg_similarity"].as_f64().unwrap()).abs() <= 1e-5, "{mean}");
    }
}

#[test]
fn leave_one_out_perplexities_match_the_reference() {
    let Some(oracle) = oracle() else { return };
    for engine in oracle.engines() {
        let calibrated = oracle.calibration(&*engine);
        let inputs = &CriterionInputs { oracle: &oracle, engine: &*engine, calibrated: &calibrated };
        let expected = numbers(&oracle.values["leave_one_out_ppl"]);
        let selection = select(inputs, "shortened-llama", &json!({}), 2);
        for (&(layer, ours), expected) in selection.scores.iter().zip(&expected) {
            assert_close(&format!("without layer {layer}"), ours, *expected, 1e-4);
        }
        // These layers have the two lowest perplexities in the reference data, 55.5 and 58.5.
        assert_eq!(selection.removed, [2, 4]);
        // SLEB's first step removes the layer with the lowest perplexity, and its second step measures perplexities
        // again.
        let sleb = select(inputs, "sleb", &json!({}), 2);
        assert_eq!(sleb.scores[0].0, 2);
        assert_close("sleb's first step", sleb.scores[0].1, expected[2], 1e-4);
        let dense = perplexities(&*engine, &[Program::dense(LAYERS)], &oracle.calibration_windows());
        assert_close("dense", dense[0], oracle.number("/dense_calibration_ppl"), 1e-4);
    }
}

/// Adds the rows `x` and right-hand sides `y` to both solvers, in blocks of 500 rows.
fn accumulate_systems(x: &[f64], y: &[f64]) -> (NormalEquations, StreamingQr) {
    let mut normal = NormalEquations::new(64);
    let mut qr = StreamingQr::new(64);
    for (x, y) in x.chunks(64 * 500).zip(y.chunks(64 * 500)) {
        normal.add(x, y);
        qr.add(x, y);
    }
    (normal, qr)
}

#[test]
fn least_squares_match_the_reference_in_f64() {
    let Some(oracle) = oracle() else { return };
    let matrices = tensors(&oracle.folder.join("stories260k_operators.safetensors"));
    let [pre, post, branch] = ["x_pre", "x_post", "mlp_out"].map(|name| flat(&matrices[name]));
    let delta: Vec<f64> = post.iter().zip(&pre).map(|(post, pre)| post - pre).collect();
    let (normal, mut qr) = accumulate_systems(&pre, &delta);
    // ReplaceMe maps the branch `A` to the target `Y = X_post − (X_pre − A)`.
    let target: Vec<f64> = delta.iter().zip(&branch).map(|(delta, branch)| delta + branch).collect();
    let (normal_branch, mut qr_branch) = accumulate_systems(&branch, &target);
    for (what, ours, expected) in [
        ("normal equations", normal.solve(1e-6).unwrap(), "M_solve_f64"),
        ("svd", qr.solve(1e-6).unwrap().solution, "M_svd_f64"),
        ("ReplaceMe by normal equations", normal_branch.solve(0.0).unwrap(), "replaceme_ls_T_f64"),
        ("ReplaceMe by svd", qr_branch.solve(1e-6).unwrap().solution, "replaceme_ls_T_f64"),
    ] {
        let error = relative_error(&ours, &flat(&matrices[expected]));
        assert!(error <= 1e-6, "{what}: {error:e}");
    }
}

#[test]
fn walsh_hadamard_matrix_matches_the_reference() {
    let Some(oracle) = oracle() else { return };
    let ours: Vec<f64> = hadamard::matrix(64).into_iter().map(f64::from).collect();
    let expected = flat(&tensors(&oracle.folder.join("stories260k_operators.safetensors"))["hadamard64"]);
    assert!(relative_error(&ours, &expected) <= 1e-6);
}

#[test]
fn python_random_draws_match_the_reference() {
    let Some(oracle) = oracle() else { return };
    for case in oracle.values["python_random"].as_array().unwrap() {
        let [seed, low, high] = ["seed", "low", "high"].map(|key| case[key].as_u64().unwrap());
        let mut random = PythonRandom::new(seed);
        for expected in case["draws"].as_array().unwrap() {
            assert_eq!(random.randint(low, high).unwrap(), expected.as_u64().unwrap(), "seed {seed}, {low}..={high}");
        }
    }
}

#[test]
fn tokens_and_calibration_windows_match_the_reference() {
    let Some(oracle) = oracle() else { return };
    let tokenizer = Tokenizer::load(oracle.folder.join("tokenizer.json")).unwrap();
    for name in ["calibration", "evaluation"] {
        let text = std::fs::read_to_string(oracle.folder.join(format!("{name}.txt"))).unwrap();
        let ours = tokenizer.encode(&text).unwrap();
        assert!(
            ours == oracle.ids(&format!("{name}.ids.json")),
            "{name}.txt: the {} tokens differ from the reference",
            ours.len()
        );
    }
    let text = std::fs::read_to_string(oracle.folder.join("calibration.txt")).unwrap();
    let windows = calibration_windows(WindowRule::Wikitext2, &[text], &tokenizer, 16, 128, 0).unwrap();
    let starts: Vec<f64> = windows.starts.iter().map(|start| start.token as f64).collect();
    assert_eq!(starts, numbers(&oracle.values["windows"]["train_starts"]));
    assert_eq!(windows.corpus_tokens as u64, oracle.values["windows"]["total_tokens"].as_u64().unwrap());
}
