//! Recoveries on a real trained model against the reference implementations (reference data `stories260k`; tolerances from its
//! README), and properties that hold for any model.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use crate::common;
use crate::common::stories::{Calibrated, LAYERS, calibrated, oracle, perplexities, recovery};
use crate::common::{assert_close, fixture, flat, numbers, relative_error, tensors};
use ghostlab_core::calibrate::HookPoint;
use ghostlab_core::corpus::{Start, Windows};
use ghostlab_core::model::{
    Batch, Cut, Decoder, Model, Operator, Program, Repairs, RmsNorm, Step, Sublayer, Trie, elements,
};
use ghostlab_core::recovery::{Boundary, Repair, RepairMetrics, Solution, Span};
use serde_json::{Value, json};

/// Returns name, options, key in the reference numbers, and key in the reference operators.
fn recoveries() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    vec![
        ("none", json!({}), "pruned", ""),
        ("linearpatch-diag", json!({}), "linearpatch_diag", "linearpatch_diag"),
        ("linearpatch-rotate", json!({}), "linearpatch_rotate", "linearpatch_rotate"),
        ("ghosted", json!({}), "ghosted", "ghosted_W"),
        ("ghosted", json!({"solver": "svd"}), "ghosted", "ghosted_W"),
        ("replaceme-ls", json!({}), "replaceme_ls", "replaceme_ls_T_f64"),
        ("replaceme-cos", json!({"order": "sequential"}), "replaceme_cos", "replaceme_cos_T"),
    ]
}

fn matrix(operator: &Operator) -> Vec<f64> {
    operator.to_dense().unwrap().into_iter().map(f64::from).collect()
}

/// Builds the program without the layers `removed`, repaired by one solution per start.
fn program(layers: usize, removed: &[usize], solutions: &[(usize, Solution)]) -> Program {
    let mut repairs = Repairs::default();
    for (start, solution) in solutions {
        match &solution.repair {
            Repair::Cut => {}
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

#[test]
fn operators_and_their_numbers_equal_the_reference() {
    let Some(oracle) = oracle() else { return };
    for engine in oracle.engines() {
        let calibration = oracle.calibration(&*engine);
        let boundary = calibration.boundary(&*engine, 2, 3);
        let matrices = tensors(&oracle.folder.join("stories260k_operators.safetensors"));
        let pre = site_rows(HookPoint::Stream(2), &calibration);
        let middle = site_rows(HookPoint::Middle(1), &calibration);
        let branch: Vec<f64> = pre.iter().zip(&middle).map(|(pre, middle)| pre - middle).collect();
        for (name, ours) in
            [("x_pre", pre), ("x_post", site_rows(HookPoint::Stream(3), &calibration)), ("mlp_out", branch)]
        {
            let error = relative_error(&ours, &flat(&matrices[name]));
            assert!(error <= 1e-4, "{name}: {error:e}");
        }
        for (name, options, mae, reference) in recoveries() {
            let solution = recovery(name, options.clone()).solve(&boundary).unwrap();
            assert_eq!(solution.notes, [""; 0], "{name}");
            if let Some(operator) = solution.repair.operator() {
                let error = relative_error(&matrix(operator), &flat(&matrices[reference]));
                assert!(error <= 1e-4, "{name} {options}: {error:e}");
            }
            let numbers = RepairMetrics::of(&boundary, &solution.repair).unwrap();
            assert_close(mae, numbers.boundary_mae, oracle.number(&format!("/boundary_mae/{mae}")), 1e-4);
            let by_channel = numbers.boundary_mae_by_channel.iter().sum::<f64>() / 64.0;
            assert_close("mean over channels", by_channel, numbers.boundary_mae, 1e-12);
            if name == "ghosted" {
                for (key, ours) in [
                    ("delta_fro", numbers.delta_norm),
                    ("M_fro", numbers.m_norm),
                    ("sym_fro", numbers.m_symmetric_norm),
                    ("asym_fro", numbers.m_antisymmetric_norm),
                ] {
                    assert_close(key, ours, oracle.number(&format!("/boundary/{key}")), 1e-4);
                }
                assert_eq!(solution.system.unwrap().rank, 64);
            }
            if name == "replaceme-cos" {
                let expected = common::numbers(&oracle.values["replaceme_cos"]["mean_loss_per_epoch"]);
                assert_eq!(solution.losses.len(), expected.len());
                for (ours, expected) in solution.losses.iter().zip(expected) {
                    assert!((ours - expected).abs() <= 1e-4, "{ours} {expected}");
                }
            }
        }
    }
}

fn site_rows(site: HookPoint, calibration: &Calibrated) -> Vec<f64> {
    calibration.activations.rows(site, 0..2048).unwrap().iter().map(|&v| v.into()).collect()
}

#[test]
fn perplexities_equal_the_reference() {
    let Some(oracle) = oracle() else { return };
    for engine in oracle.engines() {
        let calibration = oracle.calibration(&*engine);
        let boundary = calibration.boundary(&*engine, 2, 3);
        let mut programs = vec![Program::dense(LAYERS)];
        for (name, options, ..) in recoveries() {
            let solution = recovery(name, options).solve(&boundary).unwrap();
            programs.push(program(LAYERS, &[2], &[(2, solution)]));
        }
        let ours = perplexities(&*engine, &programs, &oracle.evaluation_windows());
        let names = ["dense"].into_iter().chain(recoveries().into_iter().map(|(_, _, name, _)| name));
        for (name, ours) in names.zip(ours) {
            assert_close(name, ours, oracle.number(&format!("/perplexity/values/{name}")), 1e-4);
        }
    }
}

#[test]
fn layerwise_repairs_of_regions_equal_the_reference() {
    let Some(oracle) = oracle() else { return };
    for engine in oracle.engines() {
        let calibration = oracle.calibration(&*engine);
        let matrices = tensors(&oracle.folder.join("stories260k_noncontiguous.safetensors"));
        let removed: Vec<usize> =
            numbers(&oracle.values["noncontiguous"]["pruned"]).into_iter().map(|layer| layer as usize).collect();
        let methods = [("none", "pruned"), ("ghosted", "ghosted"), ("linearpatch-rotate", "linearpatch_rotate")];
        let mut programs = Vec::new();
        for (name, key) in methods {
            let options = if name == "none" { json!({}) } else { json!({"boundary": "layer"}) };
            let mut solutions = Vec::new();
            for &layer in &removed {
                let boundary = calibration.boundary(&*engine, layer, layer + 1);
                let solution = recovery(name, options.clone()).solve(&boundary).unwrap();
                if let Some(operator) = solution.repair.operator() {
                    let error = relative_error(&matrix(operator), &flat(&matrices[&format!("{key}.{layer}")]));
                    assert!(error <= 1e-4, "{name} at layer {layer}: {error:e}");
                }
                solutions.push((layer, solution));
            }
            programs.push(program(LAYERS, &removed, &solutions));
        }
        let ours = perplexities(&*engine, &programs, &oracle.evaluation_windows());
        for ((_, key), ours) in methods.iter().zip(ours) {
            assert_close(key, ours, oracle.number(&format!("/noncontiguous/ppl_{key}")), 1e-4);
        }
    }
}

/// Returns pseudorandom windows for a fixture backbone.
fn windows(sequences: usize, length: usize, vocab: usize) -> Windows {
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
    calibration: Calibrated,
}

fn world(name: &str, sequences: usize, length: usize) -> World {
    let decoder = Decoder::load(&fixture(&format!("arch/{name}"))).unwrap();
    let calibration = calibrated(&decoder, &windows(sequences, length, decoder.config().vocab));
    World { decoder, calibration }
}

#[test]
fn no_linear_map_of_the_stream_leaves_less_than_ghosted() {
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let world = world(name, 8, 64);
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
fn both_solvers_of_ghosted_agree_when_the_rank_is_full() {
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let world = world(name, 8, 64);
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
fn fewer_tokens_than_channels_are_said_and_still_repaired() {
    let world = world("llama-gqa", 2, 16); // 32 tokens, 64 channels
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
        // The system has as many unknowns as equations, so the boundary is matched exactly.
        let residual = RepairMetrics::of(&boundary, &solution.repair).unwrap().relative_residual;
        assert!(residual < 1e-2, "{name} {options}: {residual}");
    }
}

#[test]
fn folding_a_map_equals_applying_it() {
    let batch = Batch::windows([(0..50).collect::<Vec<u32>>().as_slice(), &[7, 8, 9]]);
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let world = world(name, 8, 64);
        let boundary = world.calibration.boundary(&world.decoder, 2, 3);
        let ends_in_norm = world.decoder.config().ends_in_norm(Sublayer::Mlp);
        for (method, options) in [("replaceme-ls", json!({})), ("prune-and-comp", json!({}))] {
            let solution = recovery(method, options).solve(&boundary).unwrap();
            assert_eq!(solution.notes.len(), usize::from(ends_in_norm), "{name} {method}");
            let applied = run(&world.decoder, &program(4, &[2], &[(2, solution.clone())]), &batch);
            let Repair::Branches { operator, attention } = solution.repair else { panic!("{method} folds") };
            let folded = world.decoder.folded(Sublayer::Mlp, 1, &operator);
            if ends_in_norm && method == "replaceme-ls" {
                assert!(folded.err().unwrap().to_string().contains("norm"));
                continue;
            }
            let mut folded = folded.unwrap();
            if attention {
                folded = folded.folded(Sublayer::Attention, 1, &operator).unwrap();
            }
            let folded = run(&folded, &Program::pruned(4, &[2], |_| None), &batch);
            assert!(relative_error(&applied, &folded) <= 1e-5, "{name} {method}");
        }
    }
}

#[test]
fn before_a_norm_only_channel_proportions_matter() {
    // Without the epsilon, norms are scale-invariant.
    let folder = tempfile::tempdir().unwrap();
    let mut config = common::json(&fixture("arch/olmo2/config.json"));
    config["rms_norm_eps"] = json!(1e-20);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(fixture("arch/olmo2/model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let decoder = Decoder::load(folder.path()).unwrap();
    let channels = decoder.config().hidden;
    let batch = Batch::windows([(0..50).collect::<Vec<u32>>().as_slice()]);
    let dense = Program::dense(4);
    let plain = run(&decoder, &dense, &batch);
    assert!(relative_error(&run(&folded_twice(&decoder, vec![3.0; channels]), &dense, &batch), &plain) <= 1e-5);
    let once = run(&folded_twice(&decoder, scale_by_channel(1.0, channels)), &dense, &batch);
    assert!(
        relative_error(&run(&folded_twice(&decoder, scale_by_channel(3.0, channels)), &dense, &batch), &once) <= 1e-5
    );
    assert!(relative_error(&once, &plain) > 1e-2, "unequal factors must change the output");
    // The original method's factor would be cancelled by the norms, so the solution keeps it as a step, with a note.
    let calibration = calibrated(&decoder, &windows(8, 64, decoder.config().vocab));
    let solution = recovery("prune-and-comp", json!({"granularity": "scalar"}));
    let solution = solution.solve(&calibration.boundary(&decoder, 2, 3)).unwrap();
    assert!(matches!(solution.repair, Repair::Stream(_)) && solution.notes[0].contains("norm"), "{:?}", solution.notes);
}

fn scale_by_channel(scale: f32, channels: usize) -> Vec<f32> {
    (0..channels).map(|c| scale * (1.0 + c as f32 / 16.0)).collect::<Vec<_>>()
}

/// Computes the input of the head.
fn run(decoder: &Decoder, program: &Program, batch: &Batch) -> Vec<f64> {
    let mut x = decoder.begin(batch).unwrap();
    for step in program.0.iter().filter(|step| !matches!(step, Step::Embed | Step::Head)) {
        x = decoder.advance(batch, step, &x).unwrap();
    }
    elements(&x).unwrap().iter().map(|&v| f64::from(v)).collect()
}

#[test]
fn scalar_prune_and_comp_only_scales_earlier_layers() {
    // The fixture's stream is so small that the norms' epsilon (1e-5) matters; without it they are scale-invariant.
    let folder = tempfile::tempdir().unwrap();
    let mut config = common::json(&fixture("arch/llama-gqa/config.json"));
    config["rms_norm_eps"] = json!(1e-20);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(fixture("arch/llama-gqa/model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let decoder = Decoder::load(folder.path()).unwrap();
    let calibration = calibrated(&decoder, &windows(8, 64, decoder.config().vocab));
    let world = World { decoder, calibration };
    let boundary = world.calibration.boundary(&world.decoder, 2, 3);
    let solution =
        recovery("prune-and-comp", json!({"granularity": "scalar", "target": "stream"})).solve(&boundary).unwrap();
    let operator = solution.repair.operator().unwrap().clone();
    let factor = operator.to_dense().unwrap()[0];
    // The factor is defined as the ratio of mean magnitudes.
    let [before, after] = [2, 3].map(|stream| -> f64 {
        let rows = world.calibration.activations.rows(HookPoint::Stream(stream), 0..512).unwrap();
        rows.iter().map(|&v| f64::from(v.abs())).sum()
    });
    assert_close("factor", factor.into(), after / before, 1e-6);
    // The original method scales these weights of the preceding layers: embedding, o_proj and down_proj.
    let scalar = Operator::diagonal(vec![factor; 64]).unwrap();
    let mut folded = world.decoder.clone();
    for layer in 0..2 {
        folded =
            folded.folded(Sublayer::Attention, layer, &scalar).unwrap().folded(Sublayer::Mlp, layer, &scalar).unwrap();
    }
    let batch = Batch::windows([(0..50).collect::<Vec<u32>>().as_slice()]);
    let mut plain = world.decoder.begin(&batch).unwrap();
    let mut scaled = world.decoder.begin(&batch).unwrap();
    scaled = (scaled * f64::from(factor)).unwrap();
    for step in [Step::Attention(0), Step::Mlp(0), Step::Attention(1), Step::Mlp(1)] {
        plain = world.decoder.advance(&batch, &step, &plain).unwrap();
        scaled = folded.advance(&batch, &step, &scaled).unwrap();
        let expected: Vec<f64> = flat(&plain).into_iter().map(|v| v * f64::from(factor)).collect();
        let error = relative_error(&flat(&scaled), &expected);
        assert!(error <= 1e-5, "{step:?}: {error:e}");
    }
    // Applying the factor at the boundary gives the same result.
    let applied = run(&world.decoder, &program(4, &[2], &[(2, solution)]), &batch);
    let rest = folded.advance(&batch, &Step::Attention(3), &scaled).unwrap();
    let rest = folded.advance(&batch, &Step::Mlp(3), &rest).unwrap();
    assert!(relative_error(&applied, &flat(&rest)) <= 1e-5);
}

#[test]
fn boundary_error_is_that_of_the_repaired_backbone() {
    for name in ["llama-gqa", "olmo2"] {
        let world = world(name, 4, 32);
        let boundary = world.calibration.boundary(&world.decoder, 2, 4);
        let all = windows(4, 32, world.decoder.config().vocab);
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
            let numbers = RepairMetrics::of(&boundary, &solution.repair).unwrap();
            // Layers 2 and 3 are the last ones, so the boundary's output is the head's input.
            let given = run(&world.decoder, &program(4, &[2, 3], &[(2, solution)]), &batch);
            let post = world.calibration.activations.rows(HookPoint::Stream(4), 0..128).unwrap();
            let mae = given.iter().zip(post).map(|(a, b)| (a - f64::from(*b)).abs()).sum::<f64>() / given.len() as f64;
            assert_close(&format!("{name} {method}"), numbers.boundary_mae, mae, 1e-4);
        }
    }
}

#[test]
fn regions_at_both_ends_are_repaired_or_refused_with_the_reason() {
    let world = world("llama-gqa", 8, 64);
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
            let given = run(&world.decoder, &program(4, &removed, &[(start, solution.unwrap())]), &batch);
            assert!(given.iter().all(|v| v.is_finite()), "{method}");
        }
    }
}

#[test]
fn bias_and_full_rank_never_exceed_the_ghosted_error() {
    let world = world("qwen3", 8, 64);
    let boundary = world.calibration.boundary(&world.decoder, 1, 3);
    let ghosted = relative_residual("ghosted", json!({}), &boundary);
    assert!(relative_residual("affine", json!({}), &boundary) < ghosted);
    let ranks = [1, 8, 32, 64].map(|rank| relative_residual("rank", json!({"rank": rank}), &boundary));
    assert!(ranks.is_sorted_by(|a, b| a > b) && ranks[2] > ghosted, "{ranks:?} {ghosted}");
    assert_close("the whole rank", ranks[3], ghosted, 1e-4);
}

fn relative_residual(name: &str, options: Value, boundary: &Boundary<'_>) -> f64 {
    let solution = recovery(name, options).solve(boundary).unwrap();
    RepairMetrics::of(boundary, &solution.repair).unwrap().relative_residual
}

#[test]
fn sequential_repair_lowers_the_error_of_its_last_boundary() {
    let world = world("llama-gqa", 8, 64);
    let removed = [1, 3];
    let batch = Batch::windows(windows(8, 64, world.decoder.config().vocab).iter());
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
        let given = run(&world.decoder, &program(4, &removed, &solutions), &batch);
        given.iter().zip(post).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>()
    });
    assert!(sequential < 0.999 * ghosted, "{sequential} {ghosted}");
}

#[test]
fn maps_agree_on_engines_and_weights_absorb_no_bias() {
    let folder = fixture("arch/llama-gqa");
    let engines = common::engines(&folder);
    let channels = engines[0].config().hidden;
    let affine = Operator::affine(channels, noise(channels * channels, 1), noise(channels, 2)).unwrap();
    let thin = Operator::low_rank(channels, noise(5 * channels, 3), noise(5 * channels, 4)).unwrap();
    let batch = Batch::windows([(0..50).collect::<Vec<u32>>().as_slice(), &[7, 8, 9]]);
    let norm = RmsNorm { eps: 1e-5, weight: Some(noise(channels, 5)) };
    let normed = Operator::normed(norm, channels, noise(channels * channels, 6), Some(noise(channels, 7))).unwrap();
    let constant = Operator::bias_only(noise(channels, 8)).unwrap();
    for operator in [&affine, &thin, &normed, &constant] {
        let on_stream = Program::pruned(4, &[2], |_| Some(operator.clone()));
        let branches = [((1, Sublayer::Mlp), operator.clone())].into();
        let on_branch = Program::repaired(4, &Cut::layers([2]), &Repairs { branches, ..Repairs::default() });
        let trie = Trie::new(&[on_stream, on_branch, Program::pruned(4, &[2], |_| None)]);
        let [own_values, candle] = [0, 1].map(|index| -> Vec<Vec<f64>> {
            let outputs = engines[index].run(&trie, &batch, &mut ()).unwrap();
            let values = outputs.into_iter().flatten();
            values.map(|predictions| predictions.iter().map(|p| f64::from(p.log_probability)).collect()).collect()
        });
        for (own_values, candle) in own_values.iter().zip(&candle) {
            assert!(relative_error(own_values, candle) <= 1e-5);
        }
        assert!(
            relative_error(&own_values[0], &own_values[2]) > 1e-3
                && relative_error(&own_values[1], &own_values[2]) > 1e-3
        );
    }
    let decoder = Decoder::load(&folder).unwrap();
    for operator in [&affine, &normed, &constant] {
        let refused = decoder.folded(Sublayer::Mlp, 1, operator).err().unwrap();
        assert!(refused.to_string().contains("a bias or a norm"), "{refused}");
    }
    assert!(decoder.folded(Sublayer::Mlp, 1, &thin).is_ok());
}

fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| 0.1 * ((index * 7919 + seed * 104_729) as f32 * 0.37).sin()).collect()
}

#[test]
fn a_shuffled_replaceme_depends_on_its_seed_alone() {
    let world = world("llama-gqa", 4, 32);
    let boundary = world.calibration.boundary(&world.decoder, 2, 3);
    let first = replaceme_map(&boundary, json!({"batch": 50}));
    assert_eq!(first, replaceme_map(&boundary, json!({"batch": 50})));
    assert_ne!(first, replaceme_map(&boundary, json!({"batch": 50, "seed": 1})));
}

#[test]
fn options_that_make_no_sense_are_refused_with_what_would() {
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
    RepairMetrics::of(boundary, &solution.repair).unwrap().relative_residual
}

/// Folds the factors into both sublayers of layer 1.
fn folded_twice(decoder: &Decoder, factors: Vec<f32>) -> Decoder {
    let factors = Operator::diagonal(factors).unwrap();
    decoder.folded(Sublayer::Attention, 1, &factors).unwrap().folded(Sublayer::Mlp, 1, &factors).unwrap()
}

fn replaceme_map(boundary: &Boundary<'_>, options: Value) -> Vec<f64> {
    matrix(recovery("replaceme-cos", options).solve(boundary).unwrap().repair.operator().unwrap())
}
