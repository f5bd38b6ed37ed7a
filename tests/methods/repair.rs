//! Tests for repairs with degenerate weights or calibration data.

use super::*;

/// Modifies the backbone's tensors. `change` receives the name of a tensor, its number of columns, and its values in
/// row-major order.
fn change_weights(world: &World, change: impl Fn(&str, usize, &mut [f32])) {
    let path = world.path("backbone/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    for (name, info) in entries.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let [start, end] = [0, 1].map(|at| 8 + header + info["data_offsets"][at].as_u64().unwrap() as usize);
        let columns = info["shape"].as_array().unwrap().last().unwrap().as_u64().unwrap() as usize;
        let mut values: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes[start..end]);
        change(name, columns, &mut values);
        bytes[start..end].copy_from_slice(bytemuck::cast_slice(&values));
    }
    std::fs::write(&path, bytes).unwrap();
}

/// Zeroes the weights that write to the first channel of the residual stream: those of the embedding and of all layers.
fn silence_a_channel(world: &World) {
    change_weights(world, |name, columns, values| {
        if name.ends_with("embed_tokens.weight") {
            values.iter_mut().step_by(columns).for_each(|v| *v = 0.0);
        } else if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") {
            values[..columns].fill(0.0);
        }
    });
}

#[test]
fn cells_with_overflowing_trials_fail() {
    let world = World::new();
    // Scale the weights so that activations overflow f16 after any cut.
    change_weights(&world, |name, _, values| {
        if name.ends_with("down_proj.weight") {
            values.iter_mut().for_each(|v| *v *= 1.5e5);
        }
    });
    let grid = ["--set", "criterion=[sleb, shortened-llama]", "--set", "depth=2", "--set", "recovery=none"];
    let output = world.run(&[&grid[..], &["--engine", "candle", "--dtype", "f16"]].concat());
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{log}");
    let rows = std::fs::read_to_string(results_path(&world, &log)).unwrap();
    assert_eq!(rows.matches("the perplexity of a trial is not finite").count(), 2, "{rows}");
    let log = world.run_ok(&grid);
    assert_eq!(read_results(&world, &log).len(), 1 + 1 + 2, "a criterion failed in f32");
}

#[test]
fn zero_channel_is_repaired_and_noted() {
    let world = World::new();
    silence_a_channel(&world);
    let output = world.run(&["--set", "recovery=[linearpatch-diag, prune-and-comp, replaceme-ls, ghosted]"]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{log}");
    let rows = read_results(&world, &log);
    assert!(
        find_note(&rows, "linearpatch-diag").contains("1 channels are zero in all sequences and keep scale 1"),
        "{rows:?}"
    );
    assert!(find_note(&rows, "prune-and-comp").contains("1 channels that are always zero keep factor 1"), "{rows:?}");
    for recovery in ["replaceme-ls", "ghosted"] {
        assert!(find_note(&rows, recovery).contains("rank 63 of 64"), "{rows:?}");
    }
}

#[test]
fn rank_deficient_rows_have_a_note_and_are_never_marked_best() {
    let world = World::new();
    world.write("train.txt", "w5 ".repeat(6000));
    let all = "recovery=[none, prune-and-comp, linearpatch-rotate, replaceme-ls, ghosted, {name: ghosted, solver: svd}, affine, rank]";
    // The text repeats a single word, so all channels are constant. The data have rank 1, and the centered data rank 0.
    let log = world.run_ok(&["--set", all, "--set", "depth=1"]);
    let rows = read_results(&world, &log);
    let notes = rows[0].iter().position(|name| name == "notes").unwrap();
    for row in &rows[1..] {
        let repaired = !["dense", "none", ""].contains(&row[5].as_str());
        assert_eq!(row[notes].contains("constant in the calibration"), repaired, "{row:?}");
        // Every cut also has a note saying that its criterion cannot rank layers on constant input.
        assert_eq!(row[notes].contains("repeats one token"), row[5] != "dense" && !row[5].is_empty(), "{row:?}");
    }
    let table = std::fs::read_to_string(results_path(&world, &log).with_extension("md")).unwrap();
    for (recovery, expected) in [("ghosted", "rank 1 of 64"), ("affine", "rank 0 of 64")] {
        let note = find_note(&rows, recovery);
        assert!(note.contains(expected), "{note}");
    }
    assert!(!table.contains("**"), "a best value is marked although all calibrations are rank-deficient:\n{table}");
    // The note about the repeated token appears for all criteria except an explicit cut, which needs no calibration.
    let rules = "criterion=[shortgpt, angular, sleb, shortened-llama, cca, {name: explicit, layers: [2]}]";
    let log = world.run_ok(&["--set", rules, "--set", "recovery=none", "--set", "depth=1"]);
    for row in &read_results(&world, &log)[2..] {
        let explicit = row.iter().any(|cell| cell.contains("explicit"));
        assert_eq!(row[notes].contains("repeats one token"), !explicit, "{row:?}");
    }
    // Use fewer calibration tokens than there are channels in the backbone.
    let world = World::new();
    let set = ["--set", "calibration=[{corpus: train, sequences: 2, length: 16}]"];
    let log = world.run_ok(&[&["--set", all, "--set", "depth=1"], &set[..]].concat());
    let rows = read_results(&world, &log);
    let note = rows.iter().find(|row| row[5] == "linearpatch-rotate").unwrap()[notes].clone();
    assert!(note.contains("only 32 calibration tokens for 64 channels"), "{note}");
    let note = rows.iter().find(|row| row[5] == "none").unwrap()[notes].clone();
    assert!(note.contains("fewer tokens (32) than the backbone has channels (64)"), "{note}");
    assert!(rows.iter().any(|row| row[notes].contains("rank 32 of 64 (32 tokens)")), "{rows:?}");
    let markdown = std::fs::read_to_string(results_path(&world, &log).with_extension("md")).unwrap();
    assert!(!markdown.contains("**"), "{markdown}");
}

#[test]
fn unrepairable_cell_does_not_fail_other_cells() {
    let world = World::new();
    let output = world.run(&[
        "--set",
        "criterion=[{name: explicit, layers: [0, 2]}]",
        "--set",
        "depth=2",
        "--set",
        "recovery=[none, replaceme-ls, ghosted]",
    ]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{log}");
    let rows = std::fs::read_to_string(results_path(&world, &log)).unwrap();
    let failed: Vec<&str> = rows.lines().filter(|line| line.contains("failed: ")).collect();
    assert_eq!(failed.len(), 1, "{rows}");
    assert!(failed[0].contains("replaceme-ls") && failed[0].contains("no layer before layer 0"), "{rows}");
}

#[test]
fn nonfinite_activation_fails_every_pruned_cell() {
    let world = World::new();
    // Make the weights of one projection so large that the MLP in layer 1 overflows.
    let path = world.path("backbone/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let range = &entries["model.layers.1.mlp.down_proj.weight"]["data_offsets"];
    let [start, end] = [0, 1].map(|i| 8 + header + range[i].as_u64().unwrap() as usize);
    for weight in bytes[start..end].chunks_exact_mut(4) {
        weight.copy_from_slice(&3e38f32.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let output = world.run(&[]);
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = std::fs::read_to_string(world.path("results/grid/results.csv")).unwrap();
    let pruned: Vec<&str> = rows.lines().filter(|line| line.contains("llm-streamline")).collect();
    assert_eq!(pruned.len(), 8);
    for line in pruned {
        assert!(line.contains("residual stream entering layer 2, calibration sequence 0"), "{line}");
    }
}
