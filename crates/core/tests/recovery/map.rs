//! Tests for linear maps and for folding them into weights.

use super::*;

#[test]
fn folded_map_matches_applied_map() {
    let batch = Batch::windows([(0..50).collect::<Vec<u32>>().as_slice(), &[7, 8, 9]]);
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let world = load_world(name, 8, 64);
        let boundary = world.calibration.boundary(&world.decoder, 2, 3);
        let ends_in_norm = world.decoder.config().ends_in_norm(Sublayer::Mlp);
        for (method, options) in [("replaceme-ls", json!({})), ("prune-and-comp", json!({}))] {
            let solution = recovery(method, options).solve(&boundary).unwrap();
            assert_eq!(solution.notes.len(), usize::from(ends_in_norm), "{name} {method}");
            let applied = run(&world.decoder, &program(4, &[2], &[(2, solution.clone())]), &batch);
            let Repair::Branches { operator, attention } = solution.repair else {
                panic!("{method}: expected a repair of branches")
            };
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
fn uniform_scale_before_a_norm_does_not_change_output() {
    // With a negligible epsilon, norms do not depend on the scale of their input.
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
    // The norms after the sublayers would cancel a factor in the weights, so the repair scales the residual stream and
    // adds a note.
    let calibration = calibrated(&decoder, &sample_windows(8, 64, decoder.config().vocab));
    let solution = recovery("prune-and-comp", json!({"granularity": "scalar"}));
    let solution = solution.solve(&calibration.boundary(&decoder, 2, 3)).unwrap();
    assert!(matches!(solution.repair, Repair::Stream(_)) && solution.notes[0].contains("norm"), "{:?}", solution.notes);
}

fn scale_by_channel(scale: f32, channels: usize) -> Vec<f32> {
    (0..channels).map(|c| scale * (1.0 + c as f32 / 16.0)).collect::<Vec<_>>()
}

#[test]
fn scalar_prune_and_comp_scales_only_earlier_layers() {
    // The fixture's residual stream is so small that the norms' epsilon (1e-5) matters. With a negligible epsilon,
    // norms do not depend on the scale of their input.
    let folder = tempfile::tempdir().unwrap();
    let mut config = common::json(&fixture("arch/llama-gqa/config.json"));
    config["rms_norm_eps"] = json!(1e-20);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(fixture("arch/llama-gqa/model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let decoder = Decoder::load(folder.path()).unwrap();
    let calibration = calibrated(&decoder, &sample_windows(8, 64, decoder.config().vocab));
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
    // The original method scales the embedding, and o_proj and down_proj in each preceding layer.
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
    for step in (0..2).flat_map(|layer| Sublayer::ALL.map(|sublayer| Step::Sublayer(sublayer, layer))) {
        plain = world.decoder.advance(&batch, &step, &plain).unwrap();
        scaled = folded.advance(&batch, &step, &scaled).unwrap();
        let expected: Vec<f64> = flat(&plain).into_iter().map(|v| v * f64::from(factor)).collect();
        let error = relative_error(&flat(&scaled), &expected);
        assert!(error <= 1e-5, "{step:?}: {error:e}");
    }
    // Applying the factor at the boundary must give the same result.
    let applied = run(&world.decoder, &program(4, &[2], &[(2, solution)]), &batch);
    let rest = folded.advance(&batch, &Step::Sublayer(Sublayer::Attention, 3), &scaled).unwrap();
    let rest = folded.advance(&batch, &Step::Sublayer(Sublayer::Mlp, 3), &rest).unwrap();
    assert!(relative_error(&applied, &flat(&rest)) <= 1e-5);
}

#[test]
fn maps_agree_across_engines_and_biased_maps_do_not_fold() {
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
        let [cpu_values, candle_values] = [0, 1].map(|index| -> Vec<Vec<f64>> {
            let outputs = engines[index].run(&trie, &batch, &mut ()).unwrap();
            let values = outputs.into_iter().flatten();
            values.map(|predictions| predictions.iter().map(|p| f64::from(p.log_probability)).collect()).collect()
        });
        for (cpu_values, candle_values) in cpu_values.iter().zip(&candle_values) {
            assert!(relative_error(cpu_values, candle_values) <= 1e-5);
        }
        assert!(
            relative_error(&cpu_values[0], &cpu_values[2]) > 1e-3
                && relative_error(&cpu_values[1], &cpu_values[2]) > 1e-3
        );
    }
    let decoder = Decoder::load(&folder).unwrap();
    for operator in [&affine, &normed, &constant] {
        let rejected = decoder.folded(Sublayer::Mlp, 1, operator).err().unwrap();
        assert!(rejected.to_string().contains("a bias or a norm"), "{rejected}");
    }
    assert!(decoder.folded(Sublayer::Mlp, 1, &thin).is_ok());
}

#[test]
fn shuffled_replaceme_depends_only_on_its_seed() {
    let world = load_world("llama-gqa", 4, 32);
    let boundary = world.calibration.boundary(&world.decoder, 2, 3);
    let first = replaceme_map(&boundary, json!({"batch": 50}));
    assert_eq!(first, replaceme_map(&boundary, json!({"batch": 50})));
    assert_ne!(first, replaceme_map(&boundary, json!({"batch": 50, "seed": 1})));
}

/// Folds the factors into both sublayers of layer 1.
fn folded_twice(decoder: &Decoder, factors: Vec<f32>) -> Decoder {
    let factors = Operator::diagonal(factors).unwrap();
    decoder.folded(Sublayer::Attention, 1, &factors).unwrap().folded(Sublayer::Mlp, 1, &factors).unwrap()
}

fn replaceme_map(boundary: &Boundary<'_>, options: Value) -> Vec<f64> {
    matrix(recovery("replaceme-cos", options).solve(boundary).unwrap().repair.operator().unwrap())
}
