//! Tests for exports without operators. Such exports are plain models in the Hugging Face format.

use super::*;

#[test]
fn plain_export_scores_like_its_cell() {
    let world = World::new();
    world.run_ok(&["--set", "recovery=none,prune-and-comp,replaceme-ls", "--set", "name=grid"]);
    let set = ["--set", "recovery=none,prune-and-comp,replaceme-ls"];
    for recovery in ["none", "prune-and-comp", "replaceme-ls"] {
        export(&world, &format!("depth/2/{recovery}"), recovery, &set);
        let ours = score_perplexity(&world, recovery);
        let cell = read_value(&world, recovery, "ppl test@64");
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
    assert_eq!(file_names(&world.path("none")), files.map(str::to_owned).into());
    let card = fs::read_to_string(world.path("replaceme-ls/README.md")).unwrap();
    for text in ["ReplaceMe (LS)", "mlp.down_proj", "8 sequences of 64 tokens", "convert_hf_to_gguf.py", "test@64"] {
        assert!(card.contains(text), "`{text}` is not in:\n{card}");
    }
    let warning = "operators of `tiny` are computed from 512 tokens, 8.0 for each of its 64 channels";
    assert!(card.contains(warning), "{card}");
    let card = fs::read_to_string(world.path("none/README.md")).unwrap();
    assert!(card.contains("it has no additional tensors"), "{card}");
    assert!(!card.contains("sliding window") && !card.contains(warning), "{card}");
}

#[test]
fn export_of_rounded_weights_scores_like_its_cell() {
    let world = World::new();
    let set = ["--set", "recovery=none,replaceme-ls", "--set", "weights=q4_0", "--set", "name=grid"];
    world.run_ok(&set);
    for recovery in ["none", "replaceme-ls"] {
        export(&world, &format!("streamline-2.{recovery}"), recovery, &set);
        let ours = score_perplexity(&world, recovery);
        let cell = read_value(&world, recovery, "ppl test@64");
        assert!((ours / cell - 1.0).abs() < 1e-5, "{recovery}: {ours} and {cell}");
        let card = fs::read_to_string(world.path(recovery).join("README.md")).unwrap();
        assert!(card.contains("weights rounded to q4_0 (matrices: "), "{card}");
    }
    let stored = ["--set", "recovery=none", "--set", "name=other"];
    world.run_ok(&stored);
    export(&world, "streamline-2.none", "stored", &stored);
    assert!(
        (score_perplexity(&world, "stored") / score_perplexity(&world, "none") - 1.0).abs() > 1e-5,
        "no weight was rounded"
    );
}

#[test]
fn export_keeps_model_settings_but_drops_remote_code() {
    let world = World::new();
    let files = [
        ("generation_config.json", json!({"eos_token_id": [2, 7], "temperature": 0.5}).to_string()),
        ("chat_template.jinja", "{% for message in messages %}{{ message.content }}{% endfor %}".to_owned()),
    ];
    files.iter().for_each(|(name, text)| world.write(&format!("backbone/{name}"), text));
    let settings = json!({"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_own.Own", null]},
        "model_max_length": 64});
    world.write("backbone/tokenizer_config.json", settings.to_string());
    world.change_config("auto_map", json!({"AutoModelForCausalLM": "modeling_own.Own"}));
    export(&world, "depth/2/none", "out", &["--set", "recovery=none"]);
    for (name, text) in files {
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
fn error_for_symlink_out_of_the_model_folder_names_the_file() {
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
fn model_card_warns_that_converter_drops_sliding_windows() {
    let world = World::new();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("arch/mistral").join(file), world.path("backbone").join(file)).unwrap();
    }
    export(&world, "dense", "out", &[]);
    let window = json(&world.path("backbone/config.json"))["sliding_window"].as_u64().unwrap();
    let card = fs::read_to_string(world.path("out/README.md")).unwrap();
    assert!(card.contains(&format!("drops the sliding window of {window} tokens")), "{card}");
}

/// A cell can be exported before it is scored on its task definition. The model card of a later export lists the
/// scores.
#[test]
fn cell_with_definition_exports_before_and_after_scoring() {
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
    let evaluations = "  tasks: [{definition: made.yaml, data: rows}]\n";
    world.write("grid.yaml", grid.replace("  perplexity:\n    - {corpus: test, length: 64}\n", evaluations));
    export(&world, "depth/1/none", "before", &[]);
    assert!(read_card(&world, "before").contains("Not scored"), "{}", read_card(&world, "before"));
    world.run_ok(&[]);
    export(&world, "depth/1/none", "after", &[]);
    assert!(
        read_card(&world, "after").contains("made version") && !read_card(&world, "after").contains("Not scored"),
        "{}",
        read_card(&world, "after")
    );
}

#[test]
fn sharded_export_scores_like_the_unsharded_one() {
    let world = World::new();
    export(&world, "depth/1/none", "whole", &["--dtype", "f32"]);
    export(&world, "depth/1/none", "cut", &["--dtype", "f32", "--shard-size", "0.00005"]);
    export(&world, "depth/1/none", "half", &["--dtype", "bf16"]);
    let index = json(&world.path("cut/model.safetensors.index.json"));
    let files: BTreeSet<&str> = index["weight_map"].as_object().unwrap().values().filter_map(Value::as_str).collect();
    assert!(files.len() > 2 && files.iter().all(|file| world.path("cut").join(file).is_file()), "{files:?}");
    assert_eq!(score_perplexity(&world, "cut"), score_perplexity(&world, "whole"));
    assert_eq!(json(&world.path("half/config.json"))["torch_dtype"], "bfloat16");
    let near = score_perplexity(&world, "half") / score_perplexity(&world, "whole");
    assert!(near != 1.0 && (near - 1.0).abs() < 0.02, "{near}");
    let [half, complete] =
        ["half", "whole"].map(|name| world.path(name).join("model.safetensors").metadata().unwrap().len());
    assert!(half * 2 < complete + 20_000);
}

#[test]
fn export_replaces_only_exported_folders() {
    let world = World::new();
    world.write("backbone/LICENSE", "theirs");
    export(&world, "depth/1/ghosted", "out", &[]);
    export(&world, "depth/2/none", "out", &[]);
    assert!(!file_names(&world.path("out")).contains("modeling_ghostlab.py"), "files of the earlier export remain");
    assert_eq!(fs::read_to_string(world.path("out/LICENSE")).unwrap(), "theirs");
    assert!(!file_names(world.folder.path()).iter().any(|name| name.starts_with('.')), "temporary files remain");
    fs::create_dir(world.path("mine")).unwrap();
    world.write("mine/notes.txt", "mine");
    let output = world.ghostlab(&["export", "grid.yaml", "depth/1/none", "--to", "mine"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("the output path already exists") && error.contains("--to"), "{error}");
    assert_eq!(file_names(&world.path("mine")), ["notes.txt".to_owned()].into());
}

/// Reads all files in a folder.
fn read_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    file_names(folder).into_iter().map(|name| (name.clone(), fs::read(folder.join(name)).unwrap())).collect()
}

#[test]
fn killed_export_leaves_its_target_unchanged() {
    let world = World::new();
    assert!(world.ghostlab(&sharded_export_arguments("unbroken")).status.success());
    let unbroken = read_files(&world.path("unbroken"));
    assert!(unbroken.len() > 8, "{:?}", unbroken.keys());
    // Kill the export at its 1st, 2nd, 4th, … write, until it makes fewer writes than that and finishes.
    let kills = (0..).map(|power| format!("kill@export:{}", 1 << power)).take_while(|fault| {
        let was_killed = export_is_killed(&world, fault);
        assert_eq!(world.path("out").exists(), !was_killed, "{fault}: the target contains a partial folder");
        was_killed
    });
    assert!(kills.count() > 4);
    assert!(read_files(&world.path("out")) == unbroken, "the uninterrupted export differs");
    assert!(
        !file_names(world.folder.path()).iter().any(|name| name.starts_with('.')),
        "temporary files of killed exports remain"
    );
    // An existing folder must stay complete until the new one replaces it.
    export(&world, "depth/1/none", "out", &[]);
    let before = read_files(&world.path("out"));
    for fault in ["kill@export:1", "kill@export:30", "kill@place:1"] {
        assert!(export_is_killed(&world, fault), "{fault}");
        assert!(read_files(&world.path("out")) == before, "{fault}");
    }
    assert!(world.ghostlab(&sharded_export_arguments("out")).status.success());
    assert!(read_files(&world.path("out")) == unbroken);
    assert!(!file_names(world.folder.path()).iter().any(|name| name.starts_with('.')), "temporary files remain");
}

#[test]
fn grid_export_creates_one_folder_per_cell() {
    let world = World::new();
    let output = world.ghostlab(&["export", "grid.yaml", "--to", "all", "--set", "recovery=none,linearpatch-diag"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(file_names(&world.path("all")).len(), 4);
    for folder in file_names(&world.path("all")) {
        assert!(world.path("all").join(folder).join("config.json").is_file());
    }
}

#[test]
fn export_of_an_overflowing_weight_leaves_no_folder() {
    let world = World::new();
    let path = world.path("backbone/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    // Overwrite the last four bytes, which belong to a tensor, with 1e30. This value is finite in f32 but out of range
    // in f16.
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&1e30f32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let output = world.ghostlab(&["export", "grid.yaml", "dense", "--to", "out", "--dtype", "f16"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("overflows its float type") && error.contains("tensor model."), "{error}");
    assert!(!world.path("out").exists());
    assert!(!file_names(world.folder.path()).iter().any(|name| name.starts_with('.')));
}

fn read_card(world: &World, name: &str) -> String {
    fs::read_to_string(world.path(name).join("README.md")).unwrap()
}

/// Returns the arguments for an export that produces several weight files, operators and a Python file.
fn sharded_export_arguments(folder: &str) -> [&str; 9] {
    ["export", "grid.yaml", "depth/2/ghosted", "--to", folder, "--dtype", "f32", "--shard-size", "0.00005"]
}

/// Runs an export to `out`. Returns whether the injected fault killed it.
fn export_is_killed(world: &World, fault: &str) -> bool {
    let output = world.command(&sharded_export_arguments("out")).env("GHOSTLAB_FAULT", fault).output().unwrap();
    let drafts = file_names(world.folder.path()).into_iter().filter(|name| name.starts_with(".out.")).count();
    // A killed process has no exit code and leaves its temporary folder behind.
    assert_eq!((output.status.code().is_none(), drafts), (!output.status.success(), drafts.min(1)), "{fault}");
    drafts == 1
}
