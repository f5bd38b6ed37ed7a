//! Tests that compare operators with the reference implementation.

use super::*;

/// Returns, for each recovery, its name, its options, and its keys in the reference numbers and in the reference
/// operators.
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

#[test]
fn operators_and_their_statistics_match_the_reference() {
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
            let numbers = RepairMetrics::compute(&boundary, &solution.repair).unwrap();
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

fn site_rows(site: HookPoint, calibration: &CalibrationResult) -> Vec<f64> {
    calibration.activations.rows(site, 0..2048).unwrap().iter().map(|&v| v.into()).collect()
}

#[test]
fn perplexities_match_the_reference() {
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
fn per_layer_repairs_of_scattered_layers_match_reference() {
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
