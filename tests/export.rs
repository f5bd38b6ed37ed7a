//! Exports cells to folders and files for other programs and reads them back. Also covers `score` on a single model.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::common::world::{World, records, table};
use crate::common::{checkout, fixture, json};
use serde_json::{Value, json};

/// Returns the value of a recovery in a column of a world's grid at depth 2.
fn value(world: &World, recovery: &str, column: &str) -> f64 {
    let rows = table(&world.path("results/grid/results.csv"));
    let [depth, method, column] =
        ["depth", "recovery", column].map(|name| rows[0].iter().position(|head| head == name).unwrap());
    let wanted = if recovery == "dense" { "0" } else { "2" };
    rows.iter().find(|row| row[depth] == wanted && (recovery == "dense" || row[method] == recovery)).unwrap()[column]
        .parse()
        .unwrap()
}

/// Exports a cell, expects success, and returns stdout.
fn export(world: &World, cell: &str, folder: &str, more: &[&str]) -> String {
    let output = world.ghostlab(&[&["export", "grid.yaml", cell, "--to", folder], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the results file in the JSON output of `score`.
fn score(world: &World, more: &[&str]) -> Value {
    let output = world.ghostlab(&[&["score"], more, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["answer"]["lm_eval"].take()
}

fn perplexity(world: &World, model: &str) -> f64 {
    let file = score(world, &[model, "--perplexity", "test.jsonl@64", "--windows", "5", "--rule", "ptb"]);
    file["results"]["test@64"]["perplexity,none"].as_f64().unwrap()
}

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_plain_export_is_a_backbone_that_scores_as_its_cell() {
    let world = World::new();
    world.runs(&["--set", "recovery=none,prune-and-comp,replaceme-ls", "--set", "name=grid"]);
    let set = ["--set", "recovery=none,prune-and-comp,replaceme-ls"];
    for recovery in ["none", "prune-and-comp", "replaceme-ls"] {
        export(&world, &format!("depth/2/{recovery}"), recovery, &set);
        let ours = perplexity(&world, recovery);
        let cell = value(&world, recovery, "ppl test@64");
        assert!((ours / cell - 1.0).abs() < 1e-5, "{recovery}: {ours} and {cell}");
        let config = json(&world.path(recovery).join("config.json"));
        let dense = json(&world.path("backbone/config.json"));
        let [layers, dense_layers] = [&config, &dense].map(|config| config["num_hidden_layers"].as_u64().unwrap());
        assert_eq!(layers + 2, dense_layers);
        assert_eq!(config["architectures"], dense["architectures"]);
        assert!(!world.path(recovery).join("modeling_ghostlab.py").exists());
    }
    let files = [
        ".ghostlab.sha256",
        "README.md",
        "config.json",
        "generation_config.json",
        "ghostlab.json",
        "model.safetensors",
        "tokenizer.json",
    ];
    assert_eq!(names(&world.path("none")), files.map(str::to_owned).into());
    let card = fs::read_to_string(world.path("replaceme-ls/README.md")).unwrap();
    for text in ["ReplaceMe (LS)", "mlp.down_proj", "8 sequences of 64 tokens", "convert_hf_to_gguf.py", "test@64"] {
        assert!(card.contains(text), "`{text}` is not in:\n{card}");
    }
    let card = fs::read_to_string(world.path("none/README.md")).unwrap();
    assert!(card.contains("it has no tensor that the architecture does not have"), "{card}");
    assert!(!card.contains("sliding window"), "{card}");
}

#[test]
fn an_export_of_rounded_weights_scores_as_its_cell() {
    let world = World::new();
    let set = ["--set", "recovery=none,replaceme-ls", "--set", "weights=q4_0", "--set", "name=grid"];
    world.runs(&set);
    for recovery in ["none", "replaceme-ls"] {
        export(&world, &format!("streamline-2.{recovery}"), recovery, &set);
        let ours = perplexity(&world, recovery);
        let cell = value(&world, recovery, "ppl test@64");
        assert!((ours / cell - 1.0).abs() < 1e-5, "{recovery}: {ours} and {cell}");
        let card = fs::read_to_string(world.path(recovery).join("README.md")).unwrap();
        assert!(card.contains("weights rounded, q4_0: of the matrices"), "{card}");
    }
    let stored = ["--set", "recovery=none", "--set", "name=other"];
    world.runs(&stored);
    export(&world, "streamline-2.none", "stored", &stored);
    assert!((perplexity(&world, "stored") / perplexity(&world, "none") - 1.0).abs() > 1e-5, "nothing was rounded");
}

#[test]
fn generation_and_chat_settings_are_kept_without_code() {
    let world = World::new();
    let kept = [
        ("generation_config.json", json!({"eos_token_id": [2, 7], "temperature": 0.5}).to_string()),
        ("chat_template.jinja", "{% for message in messages %}{{ message.content }}{% endfor %}".to_owned()),
    ];
    kept.iter().for_each(|(name, text)| world.write(&format!("backbone/{name}"), text));
    let settings = json!({"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_own.Own", null]},
        "model_max_length": 64});
    world.write("backbone/tokenizer_config.json", settings.to_string());
    world.change_config("auto_map", json!({"AutoModelForCausalLM": "modeling_own.Own"}));
    export(&world, "depth/2/none", "out", &["--set", "recovery=none"]);
    for (name, text) in kept {
        if name.ends_with(".json") {
            assert_eq!(json(&world.path("out").join(name)), serde_json::from_str::<Value>(&text).unwrap());
        } else {
            assert_eq!(fs::read_to_string(world.path("out").join(name)).unwrap(), text);
        }
    }
    let tokenizer = json(&world.path("out/tokenizer_config.json"));
    assert_eq!(tokenizer, json!({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}));
    assert_eq!(json(&world.path("out/config.json")).get("auto_map"), None);
}

#[cfg(unix)]
#[test]
fn a_link_out_of_the_model_folder_is_named_and_refused() {
    let names = [
        "special_tokens_map.json",
        "LICENSE",
        "chat_template.jinja",
        "tokenizer_config.json",
        "generation_config.json",
        "config.json",
    ];
    for name in names {
        let world = World::new();
        let link = world.path("backbone").join(name);
        let content = if link.exists() { fs::read(&link).unwrap() } else { b"{}".to_vec() };
        world.write("secret", content);
        fs::remove_file(&link).ok();
        std::os::unix::fs::symlink("../secret", &link).unwrap();
        let output = world.ghostlab(&["export", "grid.yaml", "depth/1/none", "--to", "out"]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {text}");
        assert!(text.contains(name) && text.contains("a file outside its folder"), "{name}: {text}");
        assert!(!world.path("out").exists(), "{name}");
    }
}

#[test]
fn card_warns_that_the_converter_drops_sliding_windows() {
    let world = World::new();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("arch/mistral").join(file), world.path("backbone").join(file)).unwrap();
    }
    export(&world, "dense", "out", &[]);
    let window = json(&world.path("backbone/config.json"))["sliding_window"].as_u64().unwrap();
    let card = fs::read_to_string(world.path("out/README.md")).unwrap();
    assert!(card.contains(&format!("leaves out the sliding window of {window} tokens")), "{card}");
}

#[test]
fn stream_operator_is_stored_next_to_weights() {
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
    for text in ["Not scored", "trust_remote_code=True", "GGUF has no place"] {
        assert!(card.contains(text), "`{text}` is not in:\n{card}");
    }
}

/// Tasks with definitions are not stored in a checkpoint. A cell without scores exports without them, and the model
/// card lists scores once they are known.
#[test]
fn definition_cell_exports_unscored_then_with_its_numbers() {
    let world = World::new();
    fs::create_dir(world.path("rows")).unwrap();
    world.write(
        "rows/test.jsonl",
        (0..6)
            .map(|at| json!({"text": format!("w{at} w{}", at * 7), "label": at % 2}).to_string() + "\n")
            .collect::<String>(),
    );
    world.write(
        "made.yaml",
        "task: made\ndataset_path: a/b\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{text}} w9'\n\
         doc_to_choice: [w1, w2]\ndoc_to_target: label\n",
    );
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let asked = "  tasks: [{definition: made.yaml, data: rows}]\n";
    world.write("grid.yaml", grid.replace("  perplexity:\n    - {corpus: test, length: 64}\n", asked));
    export(&world, "depth/1/none", "before", &[]);
    assert!(card(&world, "before").contains("Not scored"), "{}", card(&world, "before"));
    world.runs(&[]);
    export(&world, "depth/1/none", "after", &[]);
    assert!(
        card(&world, "after").contains("made version") && !card(&world, "after").contains("Not scored"),
        "{}",
        card(&world, "after")
    );
}

#[test]
fn weights_are_cut_into_files_that_hold_the_same_model() {
    let world = World::new();
    export(&world, "depth/1/none", "whole", &["--dtype", "f32"]);
    export(&world, "depth/1/none", "cut", &["--dtype", "f32", "--shard-size", "0.00005"]);
    export(&world, "depth/1/none", "half", &["--dtype", "bf16"]);
    let index = json(&world.path("cut/model.safetensors.index.json"));
    let files: BTreeSet<&str> = index["weight_map"].as_object().unwrap().values().filter_map(Value::as_str).collect();
    assert!(files.len() > 2 && files.iter().all(|file| world.path("cut").join(file).is_file()), "{files:?}");
    assert_eq!(perplexity(&world, "cut"), perplexity(&world, "whole"));
    assert_eq!(json(&world.path("half/config.json"))["torch_dtype"], "bfloat16");
    let near = perplexity(&world, "half") / perplexity(&world, "whole");
    assert!(near != 1.0 && (near - 1.0).abs() < 0.02, "{near}");
    let [half, complete] =
        ["half", "whole"].map(|name| world.path(name).join("model.safetensors").metadata().unwrap().len());
    assert!(half * 2 < complete + 20_000);
}

#[test]
fn a_folder_is_replaced_whole_and_what_was_not_exported_stays() {
    let world = World::new();
    world.write("backbone/LICENSE", "theirs");
    export(&world, "depth/1/ghosted", "out", &[]);
    export(&world, "depth/2/none", "out", &[]);
    assert!(!names(&world.path("out")).contains("modeling_ghostlab.py"), "of the export before nothing is left");
    assert_eq!(fs::read_to_string(world.path("out/LICENSE")).unwrap(), "theirs");
    assert!(!names(world.folder.path()).iter().any(|name| name.starts_with('.')), "no temporary files are left");
    fs::create_dir(world.path("mine")).unwrap();
    world.write("mine/notes.txt", "mine");
    let output = world.ghostlab(&["export", "grid.yaml", "depth/1/none", "--to", "mine"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("the output path already exists") && error.contains("--to"), "{error}");
    assert_eq!(names(&world.path("mine")), ["notes.txt".to_owned()].into());
}

/// Reads all files of a folder.
fn bytes(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    names(folder).into_iter().map(|name| (name.clone(), fs::read(folder.join(name)).unwrap())).collect()
}

#[test]
fn killed_export_leaves_its_place_unchanged() {
    let world = World::new();
    assert!(world.ghostlab(&split_export("unbroken")).status.success());
    let unbroken = bytes(&world.path("unbroken"));
    assert!(unbroken.len() > 8, "{:?}", unbroken.keys());
    // Kill at write 1, 2, 4, … until the export finishes first.
    let kills = (0..).map(|power| format!("kill@export:{}", 1 << power)).take_while(|fault| {
        let was_killed = is_killed(&world, fault);
        assert_eq!(world.path("out").exists(), !was_killed, "{fault}: half a folder stands in the place");
        was_killed
    });
    assert!(kills.count() > 4);
    assert!(bytes(&world.path("out")) == unbroken, "the one that no kill met");
    assert!(!names(world.folder.path()).iter().any(|name| name.starts_with('.')), "it swept what the others left");
    // An existing folder must stay complete until the new one replaces it.
    export(&world, "depth/1/none", "out", &[]);
    let before = bytes(&world.path("out"));
    for fault in ["kill@export:1", "kill@export:30", "kill@place:1"] {
        assert!(is_killed(&world, fault), "{fault}");
        assert!(bytes(&world.path("out")) == before, "{fault}");
    }
    assert!(world.ghostlab(&split_export("out")).status.success());
    assert!(bytes(&world.path("out")) == unbroken);
    assert!(!names(world.folder.path()).iter().any(|name| name.starts_with('.')), "no temporary files are left");
}

#[test]
fn export_with_operators_scores_exactly_as_its_cell() {
    // OLMo-2 places the map of ReplaceMe behind the norm at the end of its MLP.
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
        world.runs(&[&set[..], &["--set", "name=grid"]].concat());
        for recovery in recoveries {
            export(&world, recovery, recovery, &set);
            assert!(world.path(recovery).join("modeling_ghostlab.py").exists());
            let texts = ["--perplexity", "test.jsonl@64", "--windows", "5", "--rule", "ptb"];
            let file = score(&world, &[&[*recovery, "--tasks", "copa.jsonl"], &texts[..]].concat());
            assert_eq!(
                score_of(&file, "test@64", "perplexity,none"),
                value(&world, recovery, "ppl test@64"),
                "{recovery}"
            );
            assert_eq!(100.0 * score_of(&file, "copa", "acc,none"), value(&world, recovery, "copa"), "{recovery}");
            assert_ne!(value(&world, recovery, "ppl test@64"), value(&world, "dense", "ppl test@64"));
        }
    }
}

/// Layers of OLMo-2 do not normalize their input stream, so the norm of the map has no weight there.
#[test]
fn normed_maps_export_and_score_as_their_cells() {
    for backbone in ["llama-gqa", "olmo2"] {
        let world = World::large();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixture("arch").join(backbone).join(file), world.path("backbone").join(file)).unwrap();
        }
        for bias in [false, true] {
            let set = format!("recovery={{name: ghosted, input: normed, bias: {bias}}}");
            let name = format!("name=bias-{bias}");
            let set = ["--set", &set, "--set", "criterion=llm-streamline", "--set", "depth=2"];
            world.runs(&[&set[..], &["--set", &name]].concat());
            let rows = records(&world.path(&format!("results/bias-{bias}/results.csv")));
            let column = rows[0].iter().position(|head| head == "ppl test@64").unwrap();
            let folder = format!("exported-{bias}");
            export(&world, "ghosted", &folder, &set);
            let operator = json(&world.path(&folder).join("config.json"))["ghostlab"]["operators"][0].clone();
            let form = if backbone == "olmo2" { "normed-unweighted" } else { "normed" };
            assert_eq!((&operator["form"], &operator["bias"]), (&json!(form), &json!(bias)));
            let scored = perplexity(&world, &folder);
            assert_eq!(scored, rows[2][column].parse::<f64>().unwrap(), "{backbone}, bias {bias}");
            assert!(rows[1][column] != rows[2][column], "{rows:?}");
        }
    }
}

#[test]
fn repairs_without_a_form_are_refused_before_any_work() {
    let world = World::new();
    let gguf = ["--gguf", "f16"];
    for recovery in ["ghosted", "affine", "{name: rank, rank: 8}", "linearpatch-diag"] {
        let words = ["a constant or a map of the normed stream", "a map of the stream itself", "--to FOLDER"];
        assert_refused(&world, "depth/1", recovery, &gguf, &words);
    }
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("arch/qwen3").join(file), world.path("backbone").join(file)).unwrap();
    }
    assert_refused(&world, "depth/1", "mean", &gguf, &["no norms of queries and keys", "`deci`", "Qwen3ForCausalLM"]);
    let sublayers = ["--gguf", "f16", "--set", "criterion=llm-drop", "--set", "depth={attention: 1}"];
    assert_refused(&world, "llm-drop-attention-1", "none", &sublayers, &["no norms of queries and keys", "`deci`"]);
    let layers = "{name: ghosted, input: normed, boundary: layer}";
    assert_refused(&world, "depth/1", layers, &[], &["`ghosted`", "boundary: region", "no product"]);
}

/// Writes a grid over the bundled Llama with cuts and repairs that llama.cpp can only represent as `deci`.
fn write_sublayer_grid(world: &World) {
    let data = checkout().canonicalize().unwrap().join("data/tiny");
    let data = data.display();
    world.write(
        "grid.yaml",
        format!(
            "name: grid\nbackbones:\n  tiny: {{path: {data}/llama}}\ncorpora:\n\
             \x20 train: {{path: {data}/corpora/wiki-train.jsonl.gz, rule: wikitext2}}\n\
             \x20 test: {{path: {data}/corpora/wiki-test.jsonl.gz, rule: wikitext2, limit: 2}}\n\
             backbone: tiny\ncalibration: {{corpus: train, sequences: 2, length: 128}}\n\
             criterion: llm-drop\ndepth: [{{attention: 4}}, {{mlp: 2}}, {{sublayers: 8}}]\nrecovery: none\n\
             include:\n  - {{criterion: {{name: explicit, layers: [0, 1, 15]}}, depth: 3, \
             recovery: [mean, {{name: ghosted, input: normed, bias: true}}]}}\n\
             evaluate: {{perplexity: [{{corpus: test, length: 128}}]}}\n"
        ),
    );
}

/// Reads the perplexity of each pruned cell from the results table.
fn pruned_perplexities(world: &World) -> Vec<f64> {
    let rows = records(&world.path("results/grid/results.csv"));
    let column = rows[0].iter().position(|head| head == "ppl test@128").unwrap();
    rows[2..].iter().map(|row| row[column].parse().unwrap()).collect()
}

/// Covers folders and GGUF files of sublayer cuts, both read by this program.
#[test]
fn sublayer_cuts_export_and_score_as_their_cells() {
    let world = World::new();
    write_sublayer_grid(&world);
    world.runs(&[]);
    let expected = pruned_perplexities(&world);
    let cells =
        ["llm-drop-attention-4", "llm-drop-mlp-2", "llm-drop-sublayers-8", "explicit-3.mean", "explicit-3.ghosted"];
    let data = checkout().canonicalize().unwrap().join("data/tiny/corpora/wiki-test.jsonl.gz");
    let text = format!("{}@128", data.display());
    for (cell, expected) in cells.into_iter().zip(expected) {
        let file = format!("{cell}.gguf");
        let log = export(&world, cell, cell, &["--dtype", "f32"]);
        assert!(log.contains("trust_remote_code=True"), "{log}");
        export(&world, cell, &file, &["--gguf", "f32"]);
        for model in [cell, &file] {
            let scores = score(&world, &[model, "--perplexity", &text, "--windows", "2", "--rule", "wikitext2"]);
            let found = scores["results"]["wiki-test@128"]["perplexity,none"].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() < 1e-6, "{model}: {found} and {expected}");
        }
    }
    let config = json(&world.path(cells[0]).join("config.json"));
    let dropped = ["attention 0", "attention 1"];
    let listed = config["ghostlab"]["dropped"].as_array().unwrap();
    assert!(listed.len() == 4 && dropped.iter().all(|name| listed.contains(&json!(name))), "{config}");
    let card = fs::read_to_string(world.path(cells[2]).join("README.md")).unwrap();
    for text in ["8 of 32 sublayers removed", "no attention in", "no MLP in", "as its architecture `deci`"] {
        assert!(card.contains(text), "`{text}` is not in:\n{card}");
    }
}

#[test]
fn export_without_sublayers_is_not_pruned_or_misread() {
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
    world.refuses(&pruned, 2, &["1 sublayer dropped", "exported from"]);
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
    let ours = measured(&world, &set, &[]);
    assert_eq!(ours.len(), recoveries.len(), "all but the dense one");
    for (engine, most) in [
        (&["--engine", "candle"][..], 1e-5),
        (&["--dtype", "bf16"], 0.02),
        (&["--engine", "candle", "--dtype", "bf16"], 0.02),
        (&["--engine", "candle", "--dtype", "f16"], 0.005),
    ] {
        let other = measured(&world, &set, engine);
        for (recovery, (a, b)) in recoveries.iter().zip(ours.iter().zip(&other)) {
            assert!((a / b - 1.0).abs() < most, "{recovery} {engine:?}: {a} {b}");
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
        let exported = perplexity(&world, recovery);
        assert!((exported / cell - 1.0).abs() < 1e-6, "{recovery}: {exported} {cell}");
    }
    // Also cover an operator that is trained after solving.
    let trained = "recovery=[none, {name: ghosted, finetune: {sequences: 4, length: 32}}]";
    let set = ["--set", trained, "--set", "criterion={name: explicit, layers: [0, 1]}", "--set", "depth=2"];
    let values = measured(&world, &set, &[]);
    export(&world, "ghosted", "trained", &set);
    assert!((perplexity(&world, "trained") / values[1] - 1.0).abs() < 1e-6, "{values:?}");
    assert_ne!(values[0], values[1]);
}

#[test]
fn trained_operator_exports_again_as_the_same_model() {
    let world = World::new();
    let set = ["--set", "recovery={name: ghosted, finetune: {sequences: 4, length: 32}}", "--set", "depth=2"];
    world.runs(&[&set[..], &["--set", "name=grid"]].concat());
    let rows = table(&world.path("results/grid/results.csv"));
    let column = rows[0].iter().position(|head| head == "ppl test@64").unwrap();
    // Index from the end, because the options in the cell's name contain commas.
    let trained: f64 = rows[2][rows[2].len() + column - rows[0].len()].parse().unwrap();
    let all = ["export", "grid.yaml", "--to", "all"];
    assert!(world.ghostlab(&[&all[..], &set[..]].concat()).status.success());
    let [folder] = &names(&world.path("all")).into_iter().collect::<Vec<_>>()[..] else { panic!("one cell") };
    fs::rename(world.path("all").join(folder), world.path("trained")).unwrap();
    assert_eq!(perplexity(&world, "trained"), trained);
    world.write(
        "again.yaml",
        "backbones: {once: {path: trained}}\nbackbone: once\ncorpora: {test: {path: test.jsonl, rule: ptb}}\n\
         evaluate: {perplexity: {corpus: test, length: 64}}\n",
    );
    let again = world.ghostlab(&["export", "again.yaml", "dense", "--to", "again"]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(perplexity(&world, "again"), trained);
    let [again, trained] =
        ["again", "trained"].map(|folder| fs::read(world.path(folder).join("model.safetensors")).unwrap());
    assert!(again == trained);
}

#[test]
fn export_with_operators_is_not_pruned_or_read_incomplete() {
    let world = World::new();
    export(&world, "depth/1/ghosted", "out", &[]);
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("{path: backbone}", "{path: out}"));
    let pruned = ["--set", "recovery=none", "--set", "depth=1"];
    world.refuses(&pruned, 2, &["operators next to its weights", "exported from"]);
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

#[test]
fn a_whole_grid_is_exported_cell_by_cell() {
    let world = World::new();
    let output = world.ghostlab(&["export", "grid.yaml", "--to", "all", "--set", "recovery=none,linearpatch-diag"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(names(&world.path("all")).len(), 4);
    for folder in names(&world.path("all")) {
        assert!(world.path("all").join(folder).join("config.json").is_file());
    }
}

#[test]
fn a_weight_that_the_type_cannot_hold_leaves_no_folder() {
    let world = World::new();
    let path = world.path("backbone/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    // Overwrite the last four bytes, which belong to a tensor, with 1e30: finite in f32, but out of range in f16.
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&1e30f32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let output = world.ghostlab(&["export", "grid.yaml", "dense", "--to", "out", "--dtype", "f16"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("overflows its float type") && error.contains("tensor model."), "{error}");
    assert!(!world.path("out").exists());
    assert!(!names(world.folder.path()).iter().any(|name| name.starts_with('.')));
}

#[test]
fn a_model_is_scored_as_the_dense_cell_of_a_grid_and_not_twice() {
    let world = World::large();
    world.runs(&["--set", "recovery=none", "--set", "criterion=shortgpt", "--set", "depth=2", "--set", "name=grid"]);
    let store = world.path("data/store");
    let before = walk(&store);
    let tasks = ["--tasks", "copa.jsonl"];
    let texts = ["--perplexity", "test.jsonl@64", "--windows", "5", "--rule", "ptb"];
    let file = score(&world, &[&["backbone"][..], &tasks, &texts].concat());
    assert_eq!(walk(&store), before, "the grid has scored all of it");
    for (ours, column) in [
        (score_of(&file, "test@64", "perplexity,none"), "ppl test@64"),
        (100.0 * score_of(&file, "copa", "acc,none"), "copa"),
    ] {
        let grid = value(&world, "dense", column);
        assert!((ours / grid - 1.0).abs() < 1e-12, "{ours} and {grid}");
    }
    assert!(score_of(&file, "test@64", "perplexity_stderr,none") > 0.0);
    assert!(score_of(&file, "test@64", "bits_per_byte,none") > 0.0);
    // A different limit needs new scores.
    let fewer = score(&world, &["backbone", "--tasks", "copa.jsonl", "--documents", "10"]);
    assert_eq!(fewer["n-samples"]["copa"]["effective"], 10);
    assert_ne!(walk(&store), before);
}

#[test]
fn scores_stand_in_a_table_with_their_errors() {
    let world = World::large();
    let arguments = ["score", "backbone", "--tasks", "copa.jsonl", "--perplexity", "test.jsonl@64", "--rule", "ptb"];
    let output = world.ghostlab(&[&arguments[..], &["--output", "scores.json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for part in ["backbone (", "scored on", "±", "bits per byte", "test@64", "perplexity", "copa", "40 documents"] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    assert_eq!(json(&world.path("scores.json"))["config"]["model"], "ghostlab");
}

#[test]
fn texts_and_tasks_come_from_the_entrys_profile() {
    let world = World::large();
    for folder in ["experiments/profiles", "experiments/backbones"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.write(
        "experiments/profiles/mine.yaml",
        "corpora:\n  c4: {path: ../../test.jsonl, rule: ptb, limit: 3}\ntasks:\n  copa: {path: ../../copa.jsonl}\nevaluate: {tasks: [copa]}\n",
    );
    let (code, output) = score_table(&world, &["backbone"]);
    assert!(
        code == Some(3) && output.contains("super_glue") && output.contains("with --fetch to download it"),
        "{output}"
    );
    let (code, named) = score_table(&world, &["backbone", "--profile", "mine"]);
    assert!(code == Some(0) && named.contains("3 windows") && named.contains("40 documents"), "{named}");
    world.write("experiments/backbones/little.yaml", "path: ../../backbone\nprofile: mine\n");
    let (code, by_entry) = score_table(&world, &["backbone"]);
    assert!(code == Some(0) && by_entry.contains("3 windows"), "{by_entry}");
    let (code, by_name) = score_table(&world, &["little"]);
    assert!(code == Some(0) && by_name.contains("3 windows"), "{by_name}");
}

#[test]
fn what_cannot_be_scored_is_said_before_anything_runs() {
    let world = World::new();
    fs::create_dir(world.path("empty")).unwrap();
    for (arguments, code, words) in [
        (&["score", "backbone"][..], 2, &["nothing to score", "--perplexity"][..]),
        (&["score", "../nowhere/at/all", "--tasks", "copa"], 3, &["model not found"]),
        (&["score", "backbone", "--tasks", "copy.jsonl"], 2, &["copy.jsonl"]),
        (&["score", "backbone", "--tasks", "tasks/copa.jsonl"], 2, &["file not found", "tasks/copa.jsonl"]),
        (&["score", "backbone", "--perplexity", "texts/test.txt@64"], 2, &["file not found", "texts/test.txt"]),
        (&["score", "org/name", "--perplexity", "test.jsonl"], 3, &["--fetch"]),
        (
            &["score", "empty", "--tasks", "copa"],
            3,
            &["no config.json", "an empty folder", "config.json, tokenizer.json"],
        ),
        (
            &["score", ".", "--perplexity", "test.jsonl@64"],
            3,
            &["no config.json", "backbone, ", "did you mean `./backbone`?"],
        ),
        (
            &["score", "backbone", "--tasks", "arc_eazy"],
            2,
            &["unknown task `arc_eazy`", "NAME=FILE", "arc_easy, arc_challenge", "did you mean `arc_easy`?"],
        ),
        (
            &["score", "backbone", "--tasks", "nosuch=test.jsonl"],
            2,
            &["unknown task `nosuch`", "NAME=FILE", "where:    --tasks"],
        ),
        (&["score", "backbone", "--perplexity", "test.jsonl@nan"], 2, &["invalid window length", "`nan`"]),
        (&["score", "backbone", "--perplexity", "test.jsonl@1"], 2, &["--perplexity test.jsonl@1", "2 to 1073741824"]),
        (
            &["score", "backbone", "--perplexity", "nosuch"],
            2,
            &["unknown text `nosuch`", "FILE@TOKENS", "--perplexity"],
        ),
        (&["score", "backbone", "--tasks", "copa", "--profile", "none"], 3, &["unknown profile", "profiles/none.yaml"]),
    ] {
        let output = world.command(arguments).env("HF_HUB_CACHE", world.path("hub")).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        for word in words {
            assert!(error.contains(word), "{arguments:?}: `{word}` is not in {error}");
        }
    }
}

/// Returns the JSON output of `doctor MODEL --check` as mark and finding, by subject.
fn doctor(world: &World, model: &str) -> BTreeMap<String, (String, String)> {
    let output = world.ghostlab(&["doctor", model, "--check", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let things = document["answer"]["things"].as_array().unwrap().iter();
    things
        .map(|thing| ["what", "mark", "found"].map(|key| thing[key].as_str().unwrap().to_owned()))
        .map(|[what, mark, found]| (what, (mark, found)))
        .collect()
}

#[test]
fn doctor_describes_a_model_and_compares_engines() {
    let world = World::new();
    export(&world, "depth/1/ghosted", "repaired", &["--dtype", "f32"]);
    let tiny = checkout().join("data/tiny");
    let model = tiny.join("llama");
    let corpora = tiny.join("corpora");
    let grid = format!(
        "backbones: {{it: {{path: {}}}}}\nbackbone: it\ncriterion: {{name: explicit, layers: [1]}}\ndepth: 1\nrecovery: none\n\
         calibration: {{corpus: test, sequences: 2, length: 64}}\n\
         corpora: {{test: {{path: {}/wiki-test.jsonl.gz, rule: wikitext2, limit: 2}}}}\n\
         evaluate: {{perplexity: {{corpus: test, length: 64}}}}\n",
        model.display(),
        corpora.display()
    );
    world.write("tiny.yaml", grid);
    let output = world.ghostlab(&["export", "tiny.yaml", "depth/1/none", "--gguf", "f16", "--to", "it.gguf"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let [layer_count, tiny] = [&world.path("backbone"), &model]
        .map(|folder| json(&folder.join("config.json"))["num_hidden_layers"].as_u64().unwrap());
    for (name, layers, lines, operators) in [
        ("backbone", layer_count, 12, None),
        (model.to_str().unwrap(), tiny, 12, None),
        ("it.gguf", tiny - 1, 12, None),
        ("repaired", layer_count - 1, 6, Some("1 operator next to the weights")),
    ] {
        let report = doctor(&world, name);
        assert!(report.len() > lines, "{name}: {report:?}");
        let report = ModelReport { name, report, operators };
        report.check_description(layers);
        report.check_engines();
        report.check_methods();
    }
}

/// Output of `doctor --check` for a model.
struct ModelReport<'a> {
    name: &'a str,
    report: BTreeMap<String, (String, String)>,
    /// Text about the operators next to the weights, if there are any.
    operators: Option<&'a str>,
}

impl ModelReport<'_> {
    fn found(&self, what: &str) -> &str {
        self.report.get(what).map_or("", |entry| entry.1.as_str())
    }

    fn check_description(&self, layers: u64) {
        let Self { report, .. } = self;
        assert!(self.found("architecture").contains(&format!("LlamaForCausalLM, {layers} layers of")), "{report:?}");
        assert!(
            self.found("memory needed").contains(" in f32, ") && self.found("memory needed").contains(" in bf16, "),
            "{report:?}"
        );
        assert!(self.found("parameters").contains(" M, stored as "), "{report:?}");
    }

    fn check_engines(&self) {
        let Self { name, report, operators } = self;
        for what in ["check, engines", "check, candle-transformers"] {
            // candle-transformers supports neither GGUF files nor operators.
            if what.ends_with("transformers") && (operators.is_some() || name.ends_with(".gguf")) {
                assert!(
                    report[what].0 == "note" && self.found(what).contains("candle-transformers has no "),
                    "{report:?}"
                );
                continue;
            }
            let apart: f64 =
                self.found(what).split_once("in f32 are ").unwrap().1.split_once(' ').unwrap().0.parse().unwrap();
            assert!(apart > 0.0 && apart < 1e-5 && report[what].0 == "good", "{name}, {what}: {apart:e}");
        }
    }

    fn check_methods(&self) {
        let Self { name, report, operators } = self;
        match operators {
            Some(words) => assert!(self.found("operators").contains(words) && !report.contains_key("recovery ghosted")),
            None => {
                assert_eq!(
                    [self.found("recovery ghosted"), self.found("criterion shortgpt")],
                    ["applies"; 2],
                    "{report:?}"
                );
                assert!(self.found("export to a folder").contains("whole layers removed"), "{report:?}");
                assert!(self.found("export to a folder with a code file").contains("single attentions"), "{report:?}");
                // The tokenizer of `backbone` cannot be stored in a GGUF file.
                let is_in_gguf = *name != "backbone";
                assert_eq!(self.found("export --gguf, as `deci`").contains("`mean`"), is_in_gguf, "{report:?}");
            }
        }
    }
}

#[test]
fn doctor_refuses_broken_and_missing_models() {
    let world = World::new();
    fs::create_dir(world.path("broken")).unwrap();
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(world.path("backbone").join(file), world.path("broken").join(file)).unwrap();
    }
    let weights = fs::read(world.path("backbone/model.safetensors")).unwrap();
    world.write("broken/model.safetensors", &weights[..weights.len() / 2]);
    for (arguments, code, words) in [
        (&["doctor", "broken", "--check"][..], 2, &["model.safetensors"][..]),
        (&["doctor", "grid.yaml", "--check"], 2, &["--check applies only to models", "grid.yaml"]),
        (&["doctor", "nowhere.gguf"], 3, &["nowhere.gguf"]),
    ] {
        let output = world.ghostlab(arguments);
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {log}");
        assert!(words.iter().all(|word| log.contains(word)), "{log}");
    }
}

/// Lists the score files of a store.
fn walk(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.display().to_string().contains("scores-v") {
                found.insert(path.display().to_string());
            }
        }
    }
    found
}

fn card(world: &World, name: &str) -> String {
    fs::read_to_string(world.path(name).join("README.md")).unwrap()
}

/// Returns arguments that export several weight files, operators and the Python file.
fn split_export(folder: &str) -> [&str; 9] {
    ["export", "grid.yaml", "depth/2/ghosted", "--to", folder, "--dtype", "f32", "--shard-size", "0.00005"]
}

/// Whether an export to `out` is killed by the fault.
fn is_killed(world: &World, fault: &str) -> bool {
    let output = world.command(&split_export("out")).env("GHOSTLAB_FAULT", fault).output().unwrap();
    let drafts = names(world.folder.path()).into_iter().filter(|name| name.starts_with(".out.")).count();
    // A killed process has no exit code and leaves its temporary folder behind.
    assert_eq!((output.status.code().is_none(), drafts), (!output.status.success(), drafts.min(1)), "{fault}");
    drafts == 1
}

fn assert_refused(world: &World, cell: &str, recovery: &str, more: &[&str], words: &[&str]) {
    let set = format!("recovery={recovery}");
    let arguments = ["export", "grid.yaml", cell, "--to", "out.gguf", "--set", &set];
    let output = world.ghostlab(&[&arguments[..], more].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    let objects = ghostlab_store::Store::look_at(&world.path("data/store"), ghostlab::pipeline::stage::WORDS).unwrap();
    assert_eq!(objects.entries().len(), 0, "{recovery}: nothing was computed");
    assert!(!world.path("out.gguf").exists());
}

/// Runs the grid and returns the perplexities of the table that it reports, whose lists of layers contain commas.
fn measured(world: &World, set: &[&str], engine: &[&str]) -> Vec<f64> {
    let log = world.runs(&[set, engine].concat());
    let written = log.split("written: ").nth(1).unwrap().split(".csv").next().unwrap();
    let rows = records(&world.path(&format!("{written}.csv")));
    let column = rows[0].iter().position(|name| name == "ppl test@64").unwrap();
    rows[2..].iter().map(|row| row[column].parse().unwrap()).collect()
}

fn score_of(file: &Value, task: &str, metric: &str) -> f64 {
    file["results"][task][metric].as_f64().unwrap()
}

fn score_table(world: &World, more: &[&str]) -> (Option<i32>, String) {
    let output = world.ghostlab(&[&["score"], more, &["--perplexity", "c4@64", "--tasks", "copa"]].concat());
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}
