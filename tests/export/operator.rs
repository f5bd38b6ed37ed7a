//! Tests for exports with operators (maps that repair the residual stream, stored as additional tensors), and for
//! exports in which attention sublayers or MLPs are removed.

use super::*;

#[test]
fn stream_operator_export_contains_config_and_model_code() {
    let world = World::new();
    let log = export(&world, "depth/1/ghosted", "out", &[]);
    assert!(log.contains("trust_remote_code=True"), "{log}");
    let config = json(&world.path("out/config.json"));
    assert_eq!(config["model_type"], "llama");
    assert_eq!(config["architectures"][0], "GhostedLlamaForCausalLM");
    assert_eq!(config["auto_map"]["AutoModelForCausalLM"], "modeling_ghostlab.GhostedLlamaForCausalLM");
    assert_eq!(config["ghostlab"]["operators"][0]["form"], "dense");
    let code = fs::read_to_string(world.path("out/modeling_ghostlab.py")).unwrap();
    assert!(code.contains("class GhostedLlamaForCausalLM(LlamaForCausalLM)"), "{code}");
    let card = fs::read_to_string(world.path("out/README.md")).unwrap();
    for text in ["Not scored", "trust_remote_code=True", "GGUF cannot represent"] {
        assert!(card.contains(text), "`{text}` is not in:\n{card}");
    }
}

#[test]
fn export_with_operators_has_the_same_scores_as_its_cell() {
    // In OLMo-2, the MLP ends with a norm, and the map of ReplaceMe comes after it.
    let recoveries = [
        ("llama-gqa", &["linearpatch-diag", "linearpatch-rotate", "ghosted", "affine"][..]),
        ("olmo2", &["replaceme-ls", "ghosted"]),
    ];
    for (backbone, recoveries) in recoveries {
        let world = World::large();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixture("arch").join(backbone).join(file), world.path("backbone").join(file)).unwrap();
        }
        let set = format!("recovery={}", recoveries.join(","));
        let set = ["--set", &set, "--set", "criterion=llm-streamline", "--set", "depth=2"];
        world.run_ok(&[&set[..], &["--set", "name=grid"]].concat());
        for recovery in recoveries {
            export(&world, recovery, recovery, &set);
            assert!(world.path(recovery).join("modeling_ghostlab.py").exists());
            let texts = ["--perplexity", "test.jsonl@64", "--windows", "5", "--rule", "ptb"];
            let file = run_score(&world, &[&[*recovery, "--tasks", "copa.jsonl"], &texts[..]].concat());
            assert_eq!(
                score_of(&file, "test@64", "perplexity,none"),
                read_value(&world, recovery, "ppl test@64"),
                "{recovery}"
            );
            assert_eq!(100.0 * score_of(&file, "copa", "acc,none"), read_value(&world, recovery, "copa"), "{recovery}");
            assert_ne!(read_value(&world, recovery, "ppl test@64"), read_value(&world, "dense", "ppl test@64"));
        }
    }
}

/// Layers in OLMo-2 do not normalize their input stream, so the norm applied before the map has no weight there.
#[test]
fn normed_maps_export_and_score_like_their_cells() {
    for backbone in ["llama-gqa", "olmo2"] {
        let world = World::large();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixture("arch").join(backbone).join(file), world.path("backbone").join(file)).unwrap();
        }
        for bias in [false, true] {
            let set = format!("recovery={{name: ghosted, input: normed, bias: {bias}}}");
            let name = format!("name=bias-{bias}");
            let set = ["--set", &set, "--set", "criterion=llm-streamline", "--set", "depth=2"];
            world.run_ok(&[&set[..], &["--set", &name]].concat());
            let rows = read_csv(&world.path(&format!("results/bias-{bias}/results.csv")));
            let column = rows[0].iter().position(|head| head == "ppl test@64").unwrap();
            let folder = format!("exported-{bias}");
            export(&world, "ghosted", &folder, &set);
            let operator = json(&world.path(&folder).join("config.json"))["ghostlab"]["operators"][0].clone();
            let form = if backbone == "olmo2" { "normed-unweighted" } else { "normed" };
            assert_eq!((&operator["form"], &operator["bias"]), (&json!(form), &json!(bias)));
            let scored = score_perplexity(&world, &folder);
            assert_eq!(scored, rows[2][column].parse::<f64>().unwrap(), "{backbone}, bias {bias}");
            assert!(rows[1][column] != rows[2][column], "{rows:?}");
        }
    }
}

#[test]
fn unexportable_repairs_are_rejected_before_any_work() {
    let world = World::new();
    let gguf = ["--gguf", "f16"];
    for recovery in ["ghosted", "affine", "{name: rank, rank: 8}", "linearpatch-diag"] {
        let words =
            ["a constant, or a map of the normalized stream", "a linear map of the residual stream", "--to FOLDER"];
        assert_rejected(&world, "depth/1", recovery, &gguf, &words);
    }
    let linear = ["--gguf", "f16", "--set", "criterion=nbl", "--set", "depth={attention: 1}"];
    assert_rejected(&world, "nbl-attention-1", "nbl", &linear, &["a linear map of the residual stream", "--to FOLDER"]);
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("arch/qwen3").join(file), world.path("backbone").join(file)).unwrap();
    }
    assert_rejected(&world, "depth/1", "mean", &gguf, &["no query and key norms", "`deci`", "Qwen3ForCausalLM"]);
    let sublayers = ["--gguf", "f16", "--set", "criterion=llm-drop", "--set", "depth={attention: 1}"];
    assert_rejected(&world, "llm-drop-attention-1", "none", &sublayers, &["no query and key norms", "`deci`"]);
    let layers = "{name: ghosted, input: normed, boundary: layer}";
    assert_rejected(&world, "depth/1", layers, &[], &["`ghosted`", "boundary: region", "cannot be combined"]);
}

/// Writes a grid for the bundled Llama, with cuts and repairs that llama.cpp can represent only as `deci`.
fn write_sublayer_grid(world: &World) {
    world.write_bundled_grid(
        "calibration: {corpus: train, sequences: 2, length: 128}\n\
         criterion: llm-drop\ndepth: [{attention: 4}, {mlp: 2}, {sublayers: 8}]\nrecovery: none\n\
         include:\n  - {criterion: {name: explicit, layers: [0, 1, 15]}, depth: 3, \
         recovery: [mean, {name: ghosted, input: normed, bias: true}]}\n\
         \x20 - {criterion: nbl, depth: {attention: 3}, recovery: [nbl, {name: nbl, input: normed}]}\n\
         \x20 - {criterion: {name: explicit, sublayers: [attention 0, mlp 3, attention 4, mlp 4, attention 15, mlp 15]}, \
         depth: {sublayers: 6}, recovery: {name: nbl, input: normed}}\n\
         evaluate: {perplexity: [{corpus: test, length: 128}]}\n",
    );
}

/// Reads the perplexities of the pruned cells from the results table.
fn pruned_perplexities(world: &World) -> Vec<f64> {
    let rows = read_csv(&world.path("results/grid/results.csv"));
    let column = rows[0].iter().position(|head| head == "ppl test@128").unwrap();
    rows[2..].iter().map(|row| row[column].parse().unwrap()).collect()
}

/// Exports sublayer cuts to folders and to GGUF files, and reads both with this program.
#[test]
fn sublayer_cuts_export_and_score_like_their_cells() {
    let world = World::new();
    write_sublayer_grid(&world);
    world.run_ok(&[]);
    let expected = pruned_perplexities(&world);
    let cells = [
        "llm-drop-attention-4",
        "llm-drop-mlp-2",
        "llm-drop-sublayers-8",
        "explicit-3.mean",
        "explicit-3.ghosted",
        "nbl-attention-3.nbl",
        "nbl-attention-3.nbl.input-normed",
        "explicit-sublayers-6.nbl",
    ];
    assert_eq!(cells.len(), expected.len());
    let data = checkout().canonicalize().unwrap().join("data/tiny/corpora/wiki-test.jsonl.gz");
    let text = format!("{}@128", data.display());
    for (cell, expected) in cells.into_iter().zip(expected) {
        let file = format!("{cell}.gguf");
        let log = export(&world, cell, cell, &["--dtype", "f32"]);
        assert!(log.contains("trust_remote_code=True"), "{log}");
        let mut models = vec![cell];
        // GGUF cannot represent a map of the residual stream itself.
        if cell != "nbl-attention-3.nbl" {
            export(&world, cell, &file, &["--gguf", "f32"]);
            models.push(&file);
        }
        for model in models {
            let scores = run_score(&world, &[model, "--perplexity", &text, "--windows", "2", "--rule", "wikitext2"]);
            let found = scores["results"]["wiki-test@128"]["perplexity,none"].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() < 1e-6, "{model}: {found} and {expected}");
        }
    }
    let config = json(&world.path(cells[0]).join("config.json"));
    let dropped = ["attention 0", "attention 1"];
    let listed = config["ghostlab"]["dropped"].as_array().unwrap();
    assert!(listed.len() == 4 && dropped.iter().all(|name| listed.contains(&json!(name))), "{config}");
    let card = fs::read_to_string(world.path(cells[2]).join("README.md")).unwrap();
    for text in ["8 of 32 sublayers removed", "no attention in", "no MLP in", "(architecture `deci`)"] {
        assert!(card.contains(text), "`{text}` is not in:\n{card}");
    }
}

#[test]
fn model_card_states_that_nbl_replaced_attention_sublayers() {
    let world = World::new();
    let set = ["--set", "criterion=nbl", "--set", "depth={attention: 1}", "--set", "recovery=nbl"];
    export(&world, "nbl-attention-1", "out", &set);
    let card = fs::read_to_string(world.path("out/README.md")).unwrap();
    for text in
        ["1 of 4 attention sublayers replaced by an affine map", "were replaced by an affine map; 4 layers remain"]
    {
        assert!(card.contains(text), "`{text}` is not in:\n{card}");
    }
    assert!(!card.contains("sublayers removed") && !card.contains("were removed"), "{card}");
}

#[test]
fn export_without_sublayers_rejects_pruning_and_bad_config() {
    let world = World::new();
    export(
        &world,
        "llm-drop-mlp-1",
        "out",
        &["--set", "criterion=llm-drop", "--set", "depth={mlp: 1}", "--set", "recovery=none"],
    );
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("{path: backbone}", "{path: out}"));
    let pruned = ["--set", "recovery=none", "--set", "depth=1"];
    world.assert_rejected(&pruned, 2, &["1 sublayer removed", "exported from"]);
    let config = json(&world.path("out/config.json"));
    for (dropped, word) in [
        (json!(["mlp 99"]), "ghostlab.dropped"),
        (json!("mlp 1"), "ghostlab.dropped"),
        (json!(["gate 1"]), "ghostlab.dropped"),
        (json!([]), "ghostlab.operators"),
        (json!(["attention 0", "mlp 0"]), "tensor"),
    ] {
        let mut config = config.clone();
        config["ghostlab"]["dropped"] = dropped.clone();
        world.write("out/config.json", config.to_string());
        let output = world.ghostlab(&["score", "out", "--perplexity", "test.jsonl@64", "--rule", "ptb"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{dropped}: {error}");
        assert!(error.contains(word), "{dropped}: {error}");
    }
}

#[test]
fn operators_before_the_first_kept_layer_run_and_export() {
    let world = World::new();
    let recoveries = ["none", "prune-and-comp", "linearpatch-diag", "ghosted", "affine", "mean", "rank", "sequential"];
    let set = format!("recovery=[{}]", recoveries.join(", "));
    let set = ["--set", &set, "--set", "criterion={name: explicit, layers: [0, 2]}", "--set", "depth=2"];
    let ours = measure_perplexities(&world, &set, &[]);
    assert_eq!(ours.len(), recoveries.len(), "wrong number of pruned rows");
    for (engine, tolerance) in [
        (&["--engine", "candle"][..], 1e-5),
        (&["--dtype", "bf16"], 0.02),
        (&["--engine", "candle", "--dtype", "bf16"], 0.02),
        (&["--engine", "candle", "--dtype", "f16"], 0.005),
    ] {
        let other = measure_perplexities(&world, &set, engine);
        for (recovery, (a, b)) in recoveries.iter().zip(ours.iter().zip(&other)) {
            assert!((a / b - 1.0).abs() < tolerance, "{recovery} {engine:?}: {a} {b}");
        }
    }
    for (recovery, cell) in recoveries.iter().zip(ours.iter().copied()) {
        assert!(*recovery == "none" || cell != ours[0], "{recovery}: {cell}");
        export(&world, recovery, recovery, &set);
        let places = json(&world.path(recovery).join("config.json"))["ghostlab"]["operators"].clone();
        assert_eq!(
            places.as_array().is_some_and(|places| places
                .iter()
                .any(|operator| operator["layer"] == 0 && operator["at"] == "before")),
            *recovery != "none",
            "{recovery}: {places}"
        );
        let exported = score_perplexity(&world, recovery);
        assert!((exported / cell - 1.0).abs() < 1e-6, "{recovery}: {exported} {cell}");
    }
    // Export a fine-tuned operator as well.
    let trained = "recovery=[none, {name: ghosted, finetune: {sequences: 4, length: 32}}]";
    let set = ["--set", trained, "--set", "criterion={name: explicit, layers: [0, 1]}", "--set", "depth=2"];
    let values = measure_perplexities(&world, &set, &[]);
    export(&world, "ghosted", "trained", &set);
    assert!((score_perplexity(&world, "trained") / values[1] - 1.0).abs() < 1e-6, "{values:?}");
    assert_ne!(values[0], values[1]);
}

#[test]
fn trained_operator_reexports_as_the_same_model() {
    let world = World::new();
    let set = ["--set", "recovery={name: ghosted, finetune: {sequences: 4, length: 32}}", "--set", "depth=2"];
    world.run_ok(&[&set[..], &["--set", "name=grid"]].concat());
    let rows = read_rows(&world.path("results/grid/results.csv"));
    let column = rows[0].iter().position(|head| head == "ppl test@64").unwrap();
    // Index from the end, because the cell's name contains commas in its options.
    let trained: f64 = rows[2][rows[2].len() + column - rows[0].len()].parse().unwrap();
    let all = ["export", "grid.yaml", "--to", "all"];
    assert!(world.ghostlab(&[&all[..], &set[..]].concat()).status.success());
    let [folder] = &file_names(&world.path("all")).into_iter().collect::<Vec<_>>()[..] else {
        panic!("expected one cell")
    };
    fs::rename(world.path("all").join(folder), world.path("trained")).unwrap();
    assert_eq!(score_perplexity(&world, "trained"), trained);
    world.write(
        "again.yaml",
        "backbones: {once: {path: trained}}\nbackbone: once\ncorpora: {test: {path: test.jsonl, rule: ptb}}\n\
         evaluate: {perplexity: {corpus: test, length: 64}}\n",
    );
    let again = world.ghostlab(&["export", "again.yaml", "dense", "--to", "again"]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(score_perplexity(&world, "again"), trained);
    let [again, trained] =
        ["again", "trained"].map(|folder| fs::read(world.path(folder).join("model.safetensors")).unwrap());
    assert!(again == trained);
}

#[test]
fn export_with_operators_rejects_pruning_and_bad_config() {
    let world = World::new();
    export(&world, "depth/1/ghosted", "out", &[]);
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("{path: backbone}", "{path: out}"));
    let pruned = ["--set", "recovery=none", "--set", "depth=1"];
    world.assert_rejected(&pruned, 2, &["side operators", "exported from"]);
    let config = json(&world.path("out/config.json"));
    let operator = config["ghostlab"]["operators"][0].clone();
    let mut wrongs: Vec<(Value, &[&str])> = vec![
        (json!([]), &["ghostlab.operators", "a list of operators"]),
        (json!([operator, operator]), &["ghostlab.operators"]),
        (json!(null), &["ghostlab.operators"]),
    ];
    for (key, value, words) in [
        ("layer", json!(99), &["ghostlab.operators"][..]),
        ("at", json!("input_layernorm"), &["ghostlab.operators"]),
        ("form", json!("sparse"), &["ghostlab.operators"]),
        ("form", json!("diagonal"), &["boundary.weight", "wrong shape"]),
        ("bias", json!(true), &["boundary.bias"]),
        ("at", json!("after"), &["boundary_after.weight"]),
    ] {
        let mut other = operator.clone();
        other[key] = value;
        wrongs.push((json!([other]), words));
    }
    for (operators, words) in wrongs {
        let mut config = config.clone();
        config["ghostlab"]["operators"] = operators;
        world.write("out/config.json", config.to_string());
        let output = world.ghostlab(&["score", "out", "--perplexity", "test.jsonl@64", "--rule", "ptb"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
}

fn assert_rejected(world: &World, cell: &str, recovery: &str, more: &[&str], words: &[&str]) {
    let set = format!("recovery={recovery}");
    let arguments = ["export", "grid.yaml", cell, "--to", "out.gguf", "--set", &set];
    let output = world.ghostlab(&[&arguments[..], more].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    let objects =
        ghostlab_store::Store::open_read_only(&world.path("data/store"), ghostlab::pipeline::stage::STORE_WORDS)
            .unwrap();
    assert_eq!(objects.entries().len(), 0, "{recovery}: an object was computed");
    assert!(!world.path("out.gguf").exists());
}

/// Runs the grid. Returns the perplexities of the pruned cells from the results folder named in the log.
fn measure_perplexities(world: &World, set: &[&str], engine: &[&str]) -> Vec<f64> {
    let log = world.run_ok(&[set, engine].concat());
    let folder = log.split(" files to ").nth(1).unwrap().lines().next().unwrap();
    let rows = read_csv(&world.path(folder).join("results.csv"));
    let column = rows[0].iter().position(|name| name == "ppl test@64").unwrap();
    rows[2..].iter().map(|row| row[column].parse().unwrap()).collect()
}
