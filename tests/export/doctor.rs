//! Tests for `doctor MODEL`, which describes a model.

use super::*;

/// Runs `doctor MODEL --check`. Returns the status and the text of each report line, keyed by its label.
fn run_doctor(world: &World, model: &str) -> BTreeMap<String, (String, String)> {
    let output = world.ghostlab(&["doctor", model, "--check", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let entries = document["answer"]["things"].as_array().unwrap().iter();
    entries
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
        ("repaired", layer_count - 1, 6, Some("1 operator stored in the checkpoint")),
    ] {
        let report = run_doctor(&world, name);
        assert!(report.len() > lines, "{name}: {report:?}");
        let report = ModelReport { name, report, operators };
        report.check_description(layers);
        report.check_engines();
        report.check_methods();
    }
}

/// Output of `doctor --check` for one model.
struct ModelReport<'a> {
    name: &'a str,
    report: BTreeMap<String, (String, String)>,
    /// Expected text in the report line `operators`; `None` if the model was exported without operators.
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
        // Keys and values of 2 heads in f32, with 16 channels each in the fixture and 32 in the bundled model.
        let saved = if ["backbone", "repaired"].contains(&self.name) { "256 B" } else { "512 B" };
        let saved = format!("removing one attention sublayer saves {saved} per token");
        assert!(self.found("KV cache").contains(&saved), "{report:?}");
    }

    fn check_engines(&self) {
        let Self { name, report, operators } = self;
        for what in ["check, engines", "check, candle-transformers"] {
            // candle-transformers supports neither GGUF files nor models with operators.
            if what.ends_with("transformers") && (operators.is_some() || name.ends_with(".gguf")) {
                assert!(
                    report[what].0 == "note" && self.found(what).contains("candle-transformers does not support "),
                    "{report:?}"
                );
                continue;
            }
            let difference: f64 = self
                .found(what)
                .split_once("relative difference ")
                .unwrap()
                .1
                .split_once(' ')
                .unwrap()
                .0
                .parse()
                .unwrap();
            assert!(
                difference > 0.0 && difference < 1e-5 && report[what].0 == "good",
                "{name}, {what}: {difference:e}"
            );
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
                assert!(
                    self.found("export to a folder with a code file").contains("attention or MLP sublayers removed"),
                    "{report:?}"
                );
                // The tokenizer in `backbone` cannot be stored in a GGUF file.
                let is_in_gguf = *name != "backbone";
                assert_eq!(self.found("export --gguf, as `deci`").contains("`mean`"), is_in_gguf, "{report:?}");
            }
        }
    }
}

/// Labels of the `doctor` lines about exports.
const FOLDER: &str = "export to a folder";
const FOLDER_WITH_CODE: &str = "export to a folder with a code file";
const GGUF: &str = "export --gguf";
const DECI: &str = "export --gguf, as `deci`";

/// Cut and recovery in a line of `doctor`, such as `whole layers` and `` `ghosted` (`input: normed`) ``.
type ListedCut = (String, String);

/// Returns the cuts and recoveries that a line lists.
fn parse_listed_cuts(report: &BTreeMap<String, (String, String)>, line: &str) -> Vec<ListedCut> {
    let groups = report[line].1.split("; ").filter_map(|group| group.split_once(" removed with "));
    let cuts = groups.flat_map(|(cut, recoveries)| {
        recoveries.split(", ").map(move |recovery| (cut.to_owned(), recovery.to_owned()))
    });
    cuts.collect()
}

/// Returns the grid entry for a cut and its recovery.
fn grid_entry((cut, recovery): &ListedCut) -> Value {
    let (criterion, depth) = match cut.as_str() {
        "whole layers" => (json!({"name": "explicit", "layers": [4, 5]}), json!(2)),
        "attention sublayers" => (json!("llm-drop"), json!({"attention": 1})),
        _ => (json!("llm-drop"), json!({"mlp": 1})),
    };
    let mut quoted = recovery.split('`').skip(1).step_by(2);
    let mut method = json!({"name": quoted.next().unwrap()});
    if let Some((option, value)) = quoted.next().and_then(|option| option.split_once(": ")) {
        method[option] = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
    }
    json!({"criterion": criterion, "depth": depth, "recovery": method})
}

/// In OLMo-2, sublayers end with norms. Some repairs therefore cannot be folded into the weights, and llama.cpp cannot
/// represent the others.
#[test]
fn doctor_lists_exactly_the_supported_exports() {
    for backbone in ["llama", "olmo2"] {
        let world = World::new();
        let model = checkout().canonicalize().unwrap().join("data/tiny").join(backbone);
        let report = run_doctor(&world, model.to_str().unwrap());
        let [plain, coded, gguf, deci] =
            [FOLDER, FOLDER_WITH_CODE, GGUF, DECI].map(|line| parse_listed_cuts(&report, line));
        assert!(coded.len() > 8 && !plain.is_empty() && !gguf.is_empty(), "{report:?}");
        assert_eq!(deci.is_empty(), backbone == "olmo2", "{report:?}");
        let cuts = [plain.as_slice(), &coded].concat();
        let entries: Vec<Value> = cuts.iter().map(grid_entry).collect();
        let (first, others) = entries.split_first().unwrap();
        world.write_bundled_grid(&format!(
            "calibration: {{corpus: train, sequences: 4, length: 64}}\ncriterion: {}\ndepth: {}\nrecovery: {}\n\
             include: {}\nevaluate: {{perplexity: [{{corpus: test, length: 64}}]}}\n",
            first["criterion"],
            first["depth"],
            first["recovery"],
            json!(others),
        ));
        let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
        world.write("grid.yaml", grid.replacen("/llama}", &format!("/{backbone}}}"), 1));
        let output = world.ghostlab(&["export", "grid.yaml", "--to", "folders", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let folders = document["answer"]["folders"].as_array().unwrap();
        assert_eq!(folders.len(), cuts.len(), "{folders:?}");
        for (cut, folder) in cuts.iter().zip(folders) {
            assert_eq!(folder["needs_code"], coded.contains(cut), "{backbone}, {cut:?}");
            let cell = folder["cell"].as_str().unwrap();
            let output = world.ghostlab(&["export", "grid.yaml", cell, "--gguf", "f32", "--to", "it.gguf"]);
            let is_listed = gguf.contains(cut) || deci.contains(cut);
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(if is_listed { 0 } else { 2 }), "{backbone}, {cut:?}: {log}");
        }
    }
}

#[test]
fn doctor_rejects_broken_and_missing_models() {
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
