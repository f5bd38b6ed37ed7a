//! Tests for rejected model files, tokenizers, texts and grids.

use super::*;

#[test]
fn truncated_weight_file_is_rejected() {
    let world = World::new();
    let path = world.path("backbone/model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    world.assert_rejected(&[], 2, &["truncated or damaged", "model.safetensors"]);
    std::fs::write(&path, &bytes[..5]).unwrap();
    world.assert_rejected(&[], 2, &["truncated or damaged"]);
}

#[test]
fn different_vocabularies_are_compared_in_bits_per_byte() {
    let world = World::new();
    world.run_ok(&[]);
    let alike = read_rows(&world.path("results/grid/results.csv"));
    assert!(!alike[0].iter().any(|name| name.starts_with("bits/byte")), "{:?}", alike[0]);
    // The second tokenizer lacks a word that occurs in no text, so both tokenizers produce the same tokens and numbers.
    std::fs::create_dir(world.path("other")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(world.path("backbone").join(name), world.path("other").join(name)).unwrap();
    }
    world.write("other/tokenizer.json", build_tokenizer(299).to_string());
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("tiny: {path: backbone}", "tiny: {path: backbone}\n  other: {path: other}");
    world.write("grid.yaml", grid.replace("backbone: [tiny]", "backbone: [tiny, other]"));
    world.run_ok(&[]);
    let rows = read_rows(&world.path("results/grid/results.csv"));
    let perplexity = column_index(&rows, "ppl test@64");
    let bits = column_index(&rows, "bits/byte test@64");
    // Compute the expected value by hand for five windows of 64 words. The scored text in a window begins after its
    // first word.
    let texts = std::fs::read_to_string(world.path("test.jsonl")).unwrap();
    let texts =
        texts.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["text"].as_str().unwrap().to_owned());
    let text = texts.collect::<Vec<_>>().join("\n\n");
    let ends: Vec<usize> =
        text.split_whitespace().map(|word| word.as_ptr() as usize - text.as_ptr() as usize + word.len()).collect();
    let bytes: usize = ends[..5 * 64].chunks(64).map(|window| window[63] - window[0]).sum();
    for row in &rows[1..] {
        let [perplexity, bits] = [perplexity, bits].map(|at| row[at].parse::<f64>().unwrap());
        let expected = perplexity.ln() * 63.0 * 5.0 / std::f64::consts::LN_2 / bytes as f64;
        assert!((bits - expected).abs() <= 1e-12 * expected, "{bits} {expected}");
    }
    assert_eq!(rows.len(), 1 + 2 * 9);
}

#[test]
fn wrong_tensor_shape_error_names_the_tensor() {
    let world = World::new();
    world.change_config("intermediate_size", json!(96));
    world.assert_rejected(&[], 2, &["wrong shape", "mlp.gate_proj", "[96, 64]", "[112, 64]"]);
}

#[test]
fn missing_and_unused_tensors_are_rejected_by_name() {
    let world = World::new();
    world.change_config("num_hidden_layers", json!(5));
    world.assert_rejected(&[], 2, &["missing", "model.layers.4."]);
    world.change_config("num_hidden_layers", json!(3));
    world.assert_rejected(&["--set", "depth=1"], 2, &["does not use", "model.layers.3."]);
}

#[test]
fn unknown_architecture_error_lists_supported_architectures() {
    let world = World::new();
    world.change_config("architectures", json!(["GPT2LMHeadModel"]));
    world.assert_rejected(&[], 2, &["unknown architecture", "GPT2LMHeadModel", "LlamaForCausalLM"]);
}

#[test]
fn tokenizer_larger_than_the_embedding_is_rejected() {
    let world = World::new();
    world.write("backbone/tokenizer.json", build_tokenizer(400).to_string());
    world.assert_rejected(&[], 2, &["the tokenizer's vocabulary exceeds the embedding", "below 320", "ids up to 399"]);
}

#[test]
fn explain_names_deviations_from_the_official_code() {
    let world = World::new();
    for (cell, expected) in [
        ("streamline-1.linearpatch-diag", Some("the official code divides LinearPatch's sums by 128")),
        ("streamline-1.ghosted", None),
    ] {
        let output = world.ghostlab(&["explain", "grid.yaml", cell]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("the official code")).count(),
            usize::from(expected.is_some())
        );
        assert!(expected.is_none_or(|words| text.contains(words)), "{text}");
    }
}

#[test]
fn calibration_larger_than_its_text_prints_a_note() {
    let world = World::new();
    for (sequences, noted) in [("8", false), ("200", true)] {
        let sequences = format!("calibration.sequences={sequences}");
        let log = world.run_ok(&["--set", &sequences, "--set", "recovery=[none]", "--set", "depth=[1]"]);
        let note = "calibration train:200x64@0 draws 12800 tokens from 6000 tokens of text, so each token is drawn 2.1";
        assert_eq!(log.contains(note), noted, "{log}");
    }
}

#[test]
fn missing_tokenizer_error_names_grid_line_and_remedy() {
    let world = World::new();
    std::fs::remove_file(world.path("backbone/tokenizer.json")).unwrap();
    world.assert_rejected(&[], 3, &["the model has no tokenizer.json", "grid.yaml:2", "tokenizer.save_pretrained"]);
}

#[test]
fn git_lfs_pointer_instead_of_a_model_file_is_rejected() {
    let pointer =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\nsize 12345\n";
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        let world = World::new();
        world.write(&format!("backbone/{file}"), pointer);
        world.assert_rejected(&[], 3, &["Git LFS pointer", file, "git lfs pull"]);
    }
}

#[test]
fn text_limit_is_in_the_limits_section_of_help() {
    let world = World::new();
    for command in ["run", "man", "completions"] {
        let help = String::from_utf8(world.ghostlab(&[command, "-h"]).stdout).unwrap();
        let (before, after) = help.split_once("Limits:").unwrap();
        assert!(!before.contains("--text <GB>") && after.contains("--text <GB>"), "{help}");
    }
}

#[test]
fn corpus_too_short_for_one_window_is_rejected() {
    let world = World::new();
    world.write("test.jsonl", format!("{}\n", json!({"text": "w1 w2 w3"})));
    world.assert_rejected(&[], 2, &["corpus `test`", "3"]);
}

#[test]
fn non_utf8_text_is_rejected_with_its_line() {
    let world = World::new();
    world.write("train.txt", b"w1 w2\nw3 \xff w4\n");
    world.assert_rejected(&[], 2, &["not UTF-8", "train.txt:2"]);
}

#[test]
fn nan_weight_error_names_the_tensor() {
    let world = World::new();
    let path = world.path("backbone/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let start = entries["model.layers.2.mlp.up_proj.weight"]["data_offsets"][0].as_u64().unwrap() as usize;
    let at = 8 + header + start + 4 * 7;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    world.assert_rejected(&[], 2, &["not a finite number", "model.layers.2.mlp.up_proj.weight", "element 7"]);
}

#[test]
fn unwritable_results_folder_is_rejected_before_the_run() {
    let world = World::new();
    world.write("occupied", "");
    world.assert_rejected(&["--results", "occupied/here"], 3, &["results folder"]);
}

#[test]
fn grid_typos_are_reported_with_locations() {
    let world = World::new();
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    for (from, to, words) in [
        ("recovery:", "recovry:", ["grid.yaml:9", "did you mean `recovery`?"]),
        ("ghosted]", "ghostd]", ["grid.yaml:9", "did you mean `ghosted`?"]),
        ("depth: [1, 2]", "depth: [1, 4]", ["grid.yaml:8", "fewer than the 4 layers"]),
        ("depth: [1, 2]", "depth: [3]", ["grid.yaml:8", "at most 2"]),
        ("depth: [1, 2]", "depth: []", ["grid.yaml:8", "empty"]),
        ("depth: [1, 2]", "depth: [1]\ndepth: [2]", ["grid.yaml:9", "duplicate key"]),
        ("llm-streamline]", "{name: llm-streamline, cosin: token}]", ["grid.yaml:7", "cosin"]),
    ] {
        assert!(grid.contains(from));
        world.write("grid.yaml", grid.replacen(from, to, 1));
        world.assert_rejected(&[], 2, &words);
    }
    world.write("grid.yaml", grid.replace("train.txt", "nowhere.txt"));
    world.assert_rejected(&[], 3, &["grid.yaml:4", "nowhere.txt"]);
}

#[test]
fn different_files_with_the_same_name_are_rejected() {
    let world = World::new();
    std::fs::create_dir(world.path("other")).unwrap();
    world.write("copa.jsonl", format!("{}\n", copa_row(0)));
    for (file, copy) in [("test.jsonl", "other/test.jsonl"), ("copa.jsonl", "other/copa.jsonl")] {
        std::fs::copy(world.path(file), world.path(copy)).unwrap();
        let option = if file == "test.jsonl" { "--perplexity" } else { "--tasks" };
        let output = world.ghostlab(&["score", "backbone", option, file, copy, "--length", "64"]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        for word in ["have the name", &format!("/{copy}"), "rename one of the files"] {
            assert!(text.contains(word), "`{word}` is not in:\n{text}");
        }
    }
    let rows = world.path("copa.jsonl");
    let tasks = format!("copa,copa={}", rows.display());
    let output = world.ghostlab(&["score", "backbone", "--tasks", &tasks]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("have the name `copa`"), "{text}");
    let calibration = "other/test.jsonl:8x64";
    let line = ["search", "backbone", "--texts", "test.jsonl", "--calibration", calibration, "--budget", "layers=1"];
    let output = world.ghostlab(&line);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("--calibration other/test.jsonl"), "{text}");
    // The same file under another path and with another window length is one text.
    let texts = ["test.jsonl@32", "other/../test.jsonl@64"];
    let output = world.ghostlab(&["score", "backbone", "--perplexity", texts[0], texts[1], "--rule", "ptb"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
