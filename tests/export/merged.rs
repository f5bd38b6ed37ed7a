//! Tests for exports with merged layers, which need no additional tensors or code.

use super::*;

const FORMS: [&str; 3] = ["paper", "released", "norms"];

/// Covers biases of the projections (Qwen2), norms of queries and keys (Qwen3), and norms after sublayers (OLMo-2).
#[test]
fn exported_merged_layers_score_like_their_cells() {
    for backbone in ["llama-gqa", "qwen2", "qwen3", "olmo2"] {
        let world = World::large();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixture("arch").join(backbone).join(file), world.path("backbone").join(file)).unwrap();
        }
        let all = ["--set", "recovery=[none, {name: merge, form: [paper, released, norms]}]"];
        let cut = ["--set", "criterion=[{name: explicit, layers: [1, 2]}]", "--set", "depth=2"];
        world.run_ok(&[&all[..], &cut, &["--set", "name=grid"]].concat());
        let rows = read_csv(&world.path("results/grid/results.csv"));
        let column = rows[0].iter().position(|head| head == "ppl test@64").unwrap();
        let perplexities: Vec<f64> = rows[1..].iter().map(|row| row[column].parse().unwrap()).collect();
        assert_eq!(perplexities.len(), 1 + 1 + FORMS.len(), "{rows:?}");
        let distinct: BTreeSet<&String> = rows[1..].iter().map(|row| &row[column]).collect();
        assert_eq!(distinct.len(), perplexities.len(), "{backbone}: {rows:?}");
        for (form, expected) in FORMS.into_iter().zip(&perplexities[2..]) {
            let set = ["--set", &format!("recovery={{name: merge, form: {form}}}")];
            let set = [&set[..], &cut].concat();
            let log = export(&world, "merge", form, &set);
            assert!(!log.contains("trust_remote_code"), "{log}");
            assert!(!world.path(form).join("modeling_ghostlab.py").exists());
            assert_eq!(json(&world.path(form).join("config.json"))["num_hidden_layers"], 2);
            assert_eq!(score_perplexity(&world, form), *expected, "{backbone}, {form}");
        }
    }
}

/// GGUF reorders the query and key rows of Llama models. Merged layers need the same reordering.
#[test]
fn merged_layers_export_as_gguf() {
    let world = World::new();
    let data = checkout().canonicalize().unwrap().join("data/tiny");
    let data = data.display();
    world.write_bundled_grid(
        "calibration: {corpus: train, sequences: 2, length: 128}\n\
         criterion: {name: explicit, layers: [4, 5]}\ndepth: 2\nrecovery: merge\n\
         evaluate: {perplexity: [{corpus: test, length: 128}]}\n",
    );
    world.run_ok(&[]);
    let rows = read_csv(&world.path("results/grid/results.csv"));
    let column = rows[0].iter().position(|head| head == "ppl test@128").unwrap();
    let expected: f64 = rows[2][column].parse().unwrap();
    export(&world, "merge", "merged.gguf", &["--gguf", "f32"]);
    let text = format!("{data}/corpora/wiki-test.jsonl.gz@128");
    let scores = run_score(&world, &["merged.gguf", "--perplexity", &text, "--windows", "2", "--rule", "wikitext2"]);
    let found = scores["results"]["wiki-test@128"]["perplexity,none"].as_f64().unwrap();
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} and {expected}");
}

#[test]
fn impossible_merges_are_rejected_or_fail_their_cells() {
    let world = World::new();
    let merge = ["--set", "recovery=merge", "--set", "depth=1"];
    for (more, words) in [
        (&["--set", "criterion={name: shortgpt, iterative: true}"][..], &["`merge`", "one by one"][..]),
        (&["--set", "criterion=llm-drop", "--set", "depth={mlp: 1}"], &["`merge`", "whole layers"]),
    ] {
        world.assert_rejected(&[&merge[..], more].concat(), 2, words);
    }
    // A merge needs a layer before the cut. Layer 0 has none.
    let first = ["--set", "criterion={name: explicit, layers: [0]}"];
    let output = world.run(&[&merge[..], &first].concat());
    let rows = fs::read_to_string(world.path("results/grid/results.csv")).unwrap_or_default();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!((rows + &log).contains("no layer before layer 0"), "{log}");
}
