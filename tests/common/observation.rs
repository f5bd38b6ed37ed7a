//! Views of a run's numbers (results files and command outputs), and the identity settings (see `pairs.rs`) that each
//! view shows. The tests on setting pairs fail if a results file or a command is missing from the lists below.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ghostlab::files::sha256;
use ghostlab::pipeline::identity::SettingPath;
use ghostlab::results::StoredResults;
use serde_json::{Value, json};

use super::pairs::Setting;

/// Artifact definition with a table that shows the grid's last cell on the report page.
const ARTIFACT: &str = "\
artifact:
  title: A table
  table:
    lead: [backbone, depth, method]
    dense: true
    rows:
      - {criterion: [llm-streamline, shortgpt, shortened-llama], recovery: [none, ghosted, replaceme-ls, affine]}
      - {criterion: llm-streamline, recovery: ghosted, finetuned: true}
    metrics: [ppl_test, copa, prefill_ms]
";

/// All results files and command outputs of one run.
pub struct Observation {
    pub numbers: StoredResults,
    /// Path of the run's results folder, relative to `results`.
    folder: String,
    /// Contents of `run.json`.
    record: Value,
    /// Contents of `page.json`; `None` for a run with overrides, which the report page does not show.
    page: Option<Value>,
    /// Store keys in the output of `explain`, separated by spaces.
    explained: String,
    /// Contents of the exported `ghostlab.json`, which contains the cell's identity.
    exported: Value,
    /// Model card of the exported folder.
    card: String,
    /// Dtype, shape and hash of each exported tensor, by name.
    tensors: BTreeMap<String, String>,
}

/// Results file or command output that shows numbers.
pub struct View {
    pub name: &'static str,
    /// Function that returns what the view shows about the last cell and its numbers, or `None` if it shows nothing.
    text: fn(&Observation) -> Option<String>,
    /// Function that returns whether the view shows an identity setting. A setting that it does not show is in another
    /// file of the results folder.
    pub shows: fn(&SettingPath) -> bool,
    /// Whether equal identities yield equal text. A results folder is named after the request as written, so its name
    /// may differ even if identities are equal.
    pub depends_only_on_identity: bool,
}

fn any_setting(_: &SettingPath) -> bool {
    true
}

fn is_variant_setting(setting_path: &SettingPath) -> bool {
    !setting_path.is_of("measure")
}

pub const VIEWS: [View; 9] = [
    View {
        name: "numbers.json",
        text: |observed| Some(observed.identities().join(" ")),
        shows: any_setting,
        depends_only_on_identity: true,
    },
    View {
        name: "run.json",
        text: |observed| Some(observed.record_keys().to_string()),
        shows: is_variant_setting,
        depends_only_on_identity: true,
    },
    View {
        name: "page.json",
        text: |observed| Some(observed.page_identities()?.join(" ")),
        shows: any_setting,
        depends_only_on_identity: true,
    },
    View {
        name: "page.json, notes",
        text: |observed| Some(observed.note_identity()?.to_string()),
        shows: is_variant_setting,
        depends_only_on_identity: true,
    },
    View {
        name: "explain",
        text: |observed| Some(observed.explained.clone()),
        shows: any_setting,
        depends_only_on_identity: true,
    },
    View {
        name: "results folder",
        text: |observed| Some(observed.folder.clone()),
        shows: |setting_path| setting_path.is_of("engine"),
        depends_only_on_identity: false,
    },
    View {
        name: "export",
        text: |observed| Some(observed.exported_identity().to_string()),
        shows: is_variant_setting,
        depends_only_on_identity: true,
    },
    View {
        name: "export, card",
        text: |observed| Some(observed.card_identity()),
        shows: is_variant_setting,
        depends_only_on_identity: true,
    },
    // Different cells may export equal tensors. Other exported files contain the identity.
    View {
        name: "export, tensors",
        text: |observed| Some(format!("{:?}", observed.tensors)),
        shows: |_| false,
        depends_only_on_identity: true,
    },
];

/// Results files without identities. The `numbers.json` in the same folder contains the identities of their numbers.
const FILES_WITHOUT_IDENTITY: [&str; 22] = [
    ".ghostlab.sha256",
    "latency.parquet",
    "results.csv",
    "results.parquet",
    "results.md",
    "results.tex",
    "results-notes.tex",
    "wide.tex",
    "wide-notes.tex",
    "grid.csv",
    "grid.parquet",
    "grid.md",
    "grid.tex",
    "grid-notes.tex",
    "grid-losses.svg",
    "grid-losses.png",
    "grid-losses.pdf",
    "documents.parquet",
    "channels.parquet",
    "lm_eval",
    "every_eval_ever",
    "eval_results",
];

/// All commands, each with the test that compares setting pairs for it (`here` is this file), or the reason why no such
/// test is needed.
const COMMANDS: [(&str, &str); 25] = [
    ("run", "here"),
    ("reproduce", "here"),
    ("explain", "here"),
    ("export", "here"),
    ("compare", "tests/views.rs"),
    ("plan", "tests/identity.rs"),
    ("worker", "tests/identity.rs: journals and leases"),
    ("status", "shows the records of runs but no numbers"),
    ("record", "packs the files of a results folder"),
    ("report", "shows the content of page.json"),
    ("score", "computes the dense cell of a grid"),
    ("layers", "computes criterion scores on a separate text: tests/layers.rs"),
    ("search", "races candidates on separate draws: tests/search.rs"),
    ("verify", "recomputes the content of numbers.json"),
    ("audit", "checks only the paper's numbers"),
    ("cache", "shows keys: tests/identity.rs"),
    ("store", "shows no numbers"),
    ("init", "shows no numbers"),
    ("submit", "starts workers"),
    ("cancel", "shows no numbers"),
    ("fetch", "shows no numbers"),
    ("doctor", "shows no numbers"),
    ("schema", "shows no numbers"),
    ("completions", "shows no numbers"),
    ("man", "shows no numbers"),
];

fn run_command(setting: &Setting, what: &str, words: &[&str]) -> String {
    // Replace `--dtype` with `--compute` for `export`, whose own `--dtype` sets the dtype of the exported weights.
    let setting_words = setting.arguments.iter().map(|argument| match (words[0], argument.as_str()) {
        ("export", "--dtype") => "--compute",
        (_, other) => other,
    });
    let arguments: Vec<&str> = words.iter().copied().chain(setting_words).collect();
    let output = setting.world.ghostlab(&arguments);
    assert_eq!(output.status.code(), Some(0), "{what}, {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Finds the folders in or below `folder` that contain a run's numbers.
fn find_run_folders(folder: &Path) -> Vec<PathBuf> {
    if folder.join(StoredResults::FILE).is_file() {
        return vec![folder.to_owned()];
    }
    let inner = std::fs::read_dir(folder).into_iter().flatten().map(|item| item.unwrap().path());
    inner.filter(|path| path.is_dir()).flat_map(|path| find_run_folders(&path)).collect()
}

/// Runs a setting, and collects its results files and command outputs.
pub fn observe(setting: &Setting, what: &str) -> Observation {
    let grid = std::fs::read_to_string(setting.world.path("grid.yaml")).unwrap();
    setting.world.write("grid.yaml", format!("{grid}{ARTIFACT}"));
    let results = setting.world.path("results");
    run_command(setting, what, &["run", "grid.yaml"]);
    let [folder] = find_run_folders(&results).try_into().unwrap();
    // Tables show the metrics of task definitions only if these are listed as columns, so list all of them.
    let numbers = StoredResults::read(&folder).unwrap();
    let made =
        numbers.numbers.iter().map(|number| number.record.metric.as_str()).filter(|name| name.starts_with("made"));
    let columns: BTreeSet<String> = made.map(|made| format!(", \"{made}\"")).collect();
    let columns = format!("prefill_ms{}]", columns.into_iter().collect::<String>());
    setting.world.write("grid.yaml", grid + &ARTIFACT.replace("prefill_ms]", &columns));
    run_command(setting, what, &["reproduce", "grid", "--no-gate", "--experiments", "."]);
    let artifacts: Vec<PathBuf> = find_run_folders(&results).into_iter().filter(|path| *path != folder).collect();
    let [artifact] = artifacts.try_into().unwrap();
    for folder in [&folder, &artifact] {
        let files = std::fs::read_dir(folder).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap());
        let view = |file: &String| {
            FILES_WITHOUT_IDENTITY.contains(&file.as_str()) || VIEWS.iter().any(|view| view.name == file.as_str())
        };
        let unknown: Vec<String> = files.filter(|file| !view(file)).collect();
        assert!(
            unknown.is_empty(),
            "list these in tests/common/observation.rs with the numbers that they show: {unknown:?}"
        );
    }
    let cell = numbers.numbers.last().unwrap().cell.clone();
    let explained = run_command(setting, what, &["explain", "grid.yaml", &cell, "--json"]);
    let mut keys = BTreeSet::new();
    collect_keys(&serde_json::from_str(&explained).unwrap(), &mut keys);
    let explained: Vec<String> = keys.into_iter().collect();
    assert!(!explained.is_empty(), "{what}: explain prints no key");
    run_command(setting, what, &["export", "grid.yaml", &cell, "--to", "exported"]);
    // The page shows only tables that were computed without overrides and on the machine's default engine.
    let page = artifact.join("page.json");
    assert!(page.is_file() || !setting.arguments.is_empty(), "{what}: {} is missing", page.display());
    Observation {
        folder: folder.strip_prefix(&results).unwrap().display().to_string(),
        record: super::json(&folder.join("run.json")),
        page: page.is_file().then(|| super::json(&page)),
        explained: explained.join(" "),
        exported: super::json(&setting.world.path("exported/ghostlab.json")),
        card: std::fs::read_to_string(setting.world.path("exported/README.md")).unwrap(),
        tensors: hash_tensors(&setting.world.path("exported")),
        numbers,
    }
}

/// Collects the store keys that occur in the JSON output of `explain`.
fn collect_keys(answer: &Value, keys: &mut BTreeSet<String>) {
    match answer {
        Value::Object(map) => {
            keys.extend(map.get("key").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| collect_keys(value, keys));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_keys(value, keys)),
        _ => {}
    }
}

/// Returns the dtype, shape and hash of each tensor in an exported folder, and the hash of `tokenizer.json`.
fn hash_tensors(folder: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for file in std::fs::read_dir(folder).unwrap().map(|item| item.unwrap().path()) {
        if file.extension().is_some_and(|ending| ending == "safetensors") {
            let bytes = std::fs::read(&file).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            all.extend(tensors.iter().map(|(name, tensor)| {
                (
                    name.to_owned(),
                    format!("{:?} {:?} {}", tensor.dtype(), tensor.shape(), sha256::of_bytes(tensor.data())),
                )
            }));
        }
    }
    let tokenizer = std::fs::read(folder.join("tokenizer.json")).unwrap();
    all.insert("tokenizer.json".to_owned(), sha256::of_bytes(tokenizer));
    assert!(all.len() > 1, "{}: no weights", folder.display());
    all
}

impl Observation {
    /// Returns the name of the last cell in the grid.
    fn cell(&self) -> &str {
        &self.numbers.numbers.last().unwrap().cell
    }

    fn identities(&self) -> Vec<String> {
        let cell_numbers = self.numbers.numbers.iter().filter(|number| number.cell == self.cell());
        cell_numbers.map(|number| self.numbers.identity(number).unwrap()).collect()
    }

    /// Returns the kinds and keys of the stored objects from which the cell was computed, as listed in `run.json`.
    fn record_keys(&self) -> Value {
        let sources = self.record["cells"].as_array().unwrap().last().unwrap()["made_from"].as_array().unwrap();
        assert!(sources.len() >= 3, "{sources:?}");
        sources.iter().map(|object| json!([object["kind"], object["key"]])).collect()
    }

    /// Returns the identities of the cell's numbers on the page, after checking that each is in `numbers.json`.
    fn page_identities(&self) -> Option<Vec<String>> {
        let rows = self.page.as_ref()?["artifact"]["tables"][0]["rows"].as_array().unwrap();
        let cells = rows.iter().flat_map(|row| row["cells"].as_array().unwrap());
        let shown_cells = cells.filter(|cell| cell["key"] == self.cell());
        let shown: Vec<String> = shown_cells.map(|cell| cell["identity"].as_str().unwrap().to_owned()).collect();
        let known = self.identities();
        // Latency is not measured for models with quantized weights.
        let timed = self.numbers.numbers.iter().any(|number| number.record.metric.starts_with("prefill"));
        assert!(shown.len() >= 2 + usize::from(timed), "expected a text, a task and a latency: {shown:?}");
        assert!(shown.iter().all(|word| known.contains(word)), "{shown:?} are not in {known:?}");
        Some(shown)
    }

    /// Returns the identity and the provenance recorded in the exported folder.
    fn exported_identity(&self) -> Value {
        assert_eq!(self.exported["identity"], json!(self.numbers.identities[self.cell()]));
        json!([self.exported["identity"], self.exported["made_from"]])
    }

    fn card_identity(&self) -> String {
        let line = self.card.lines().find(|line| line.starts_with("| identity |"));
        line.unwrap_or_else(|| panic!("{}", self.card)).to_owned()
    }

    fn note_identity(&self) -> Option<&Value> {
        let identity = &self.page.as_ref()?["cells"][self.cell()]["identity"];
        assert_eq!(identity, &json!(self.numbers.identities[self.cell()]));
        Some(identity)
    }
}

impl View {
    /// Asserts that the view shows different texts for two settings that differ in `setting_paths`, if it shows any of
    /// these paths. If `setting_paths` is empty, asserts that the view shows the same text for both.
    pub fn assert_distinguishes(&self, what: &str, setting_paths: &[&str], [one, other]: [&Observation; 2]) {
        let (Some(a), Some(b)) = ((self.text)(one), (self.text)(other)) else { return };
        if setting_paths.is_empty() {
            assert!(
                !self.depends_only_on_identity || a == b,
                "{}: equal settings differ in {what}:\n{a}\n{b}",
                self.name
            );
        } else if setting_paths.iter().any(|setting_path| (self.shows)(&SettingPath::new(*setting_path))) {
            assert_ne!(a, b, "{}: {what} is not distinguished", self.name);
        }
    }
}

/// Checks that [`COMMANDS`] lists every command.
pub fn assert_commands_are_listed(help: &str) {
    let list = help.split("Options:").next().unwrap().lines().filter_map(|line| line.strip_prefix("  "));
    let commands: BTreeSet<&str> = list.filter_map(|line| line.split_whitespace().next()).collect();
    let known: BTreeSet<&str> = COMMANDS.iter().map(|(name, _)| *name).collect();
    assert_eq!(commands, known, "add the command to COMMANDS in tests/common/observation.rs");
}
