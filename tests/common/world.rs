//! Test fixture that runs the command-line program on a tiny backbone in a temporary folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::output::combined_output;
use super::{checkout, fixture};

/// Temporary folder with a backbone (the `llama-gqa` fixture with a 300-word tokenizer), two corpora and a grid.
pub struct World {
    pub folder: TempDir,
}

impl World {
    pub fn new() -> Self {
        let world = Self { folder: TempDir::new().unwrap() };
        std::fs::create_dir(world.path("backbone")).unwrap();
        // A folder that contains a store counts as a checkout, so its parent folders are not searched.
        std::fs::create_dir_all(world.path("data/store")).unwrap();
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(fixture("arch/llama-gqa").join(name), world.path("backbone").join(name)).unwrap();
        }
        world.write("backbone/tokenizer.json", build_tokenizer(300).to_string());
        world.write("train.txt", generate_words(3, 6000));
        world.write(
            "test.jsonl",
            format!("{}\n{}\n", json!({"text": generate_words(5, 400)}), json!({"text": generate_words(8, 300)})),
        );
        world.write(
            "grid.yaml",
            "backbones:\n  tiny: {path: backbone}\n\
             corpora:\n  train: {path: train.txt, rule: wikitext2}\n  test: {path: test.jsonl, rule: ptb, limit: 5}\n\
             backbone: [tiny]\ncriterion: [llm-streamline]\ndepth: [1, 2]\n\
             recovery: [none, linearpatch-diag, linearpatch-rotate, ghosted]\n\
             calibration:\n  - {corpus: train, sequences: 8, length: 64}\n\
             evaluate:\n  perplexity:\n    - {corpus: test, length: 64}\n",
        );
        world
    }

    /// Replaces the grid with one that uses the bundled Llama and the texts `train` and `test`, followed by the YAML in
    /// `more`.
    pub fn write_bundled_grid(&self, more: &str) {
        let data = checkout().canonicalize().unwrap().join("data/tiny");
        let data = data.display();
        self.write(
            "grid.yaml",
            format!(
                "name: grid\nbackbones:\n  tiny: {{path: {data}/llama}}\ncorpora:\n\
                 \x20 train: {{path: {data}/corpora/wiki-train.jsonl.gz, rule: wikitext2}}\n\
                 \x20 test: {{path: {data}/corpora/wiki-test.jsonl.gz, rule: wikitext2, limit: 2}}\nbackbone: tiny\n{more}"
            ),
        );
    }

    /// Creates a world whose grid takes several seconds to run: three criteria, five recoveries, two texts and a task.
    pub fn large() -> Self {
        let world = Self::new();
        world.write(
            "long.jsonl",
            (0..40).map(|i| format!("{}\n", json!({"text": generate_words(11 + i, 400)}))).collect::<String>(),
        );
        world.write("copa.jsonl", (0..40).map(|i| format!("{}\n", copa_row(i))).collect::<String>());
        world.write(
            "grid.yaml",
            "# A comment.\nbackbones:\n  tiny: {path: backbone}\n\
             corpora:\n  train: {path: train.txt, rule: wikitext2}\n  test: {path: test.jsonl, rule: ptb, limit: 5}\n\
             \x20 long: {path: long.jsonl, rule: ptb}\ntasks:\n  copa: {path: copa.jsonl}\n\
             backbone: [tiny]\ncriterion: [llm-streamline, sleb, shortgpt]\ndepth: [1, 2]\n\
             recovery: [none, prune-and-comp, linearpatch-diag, ghosted, replaceme-ls]\n\
             calibration:\n  - {corpus: train, sequences: 8, length: 64}\n\
             evaluate:\n  perplexity:\n    - {corpus: test, length: 64}\n    - {corpus: long, length: 64}\n  tasks: [copa]\n",
        );
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn run(&self, more: &[&str]) -> Output {
        self.ghostlab(&[&["run", "grid.yaml"], more].concat())
    }

    pub fn ghostlab(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghostlab"));
        command.current_dir(self.folder.path()).args(arguments);
        // Keep user data inside the test folder so that it is removed with the folder.
        command.env("XDG_DATA_HOME", self.folder.path().join(".user"));
        command
    }

    /// Returns the number of journals in the store. Each worker that has scored a chunk has one.
    pub fn count_journals(&self) -> usize {
        let folders = std::fs::read_dir(self.path("data/store/journals")).into_iter().flatten().flatten();
        folders.flat_map(|folder| std::fs::read_dir(folder.path()).into_iter().flatten()).count()
    }

    /// Runs the grid, asserts that it succeeds, and returns its stderr.
    pub fn run_ok(&self, more: &[&str]) -> String {
        let output = self.run(more);
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{log}");
        log
    }

    /// Reads the results files that a repeated run must reproduce, keyed by name.
    pub fn tables(&self) -> BTreeMap<String, Vec<u8>> {
        let names = ["results.csv", "results.parquet", "results.md", "documents.parquet"];
        let folder = self.path("results/grid");
        names.into_iter().filter_map(|name| Some((name.to_string(), std::fs::read(folder.join(name)).ok()?))).collect()
    }

    pub fn change_config(&self, key: &str, value: Value) {
        let path = self.path("backbone/config.json");
        let mut config = super::json(&path);
        config[key] = value;
        std::fs::write(path, config.to_string()).unwrap();
    }

    /// Runs the grid. Asserts that it fails before it writes a table, with the given exit code and the given words in
    /// its message.
    pub fn assert_rejected(&self, more: &[&str], code: i32, words: &[&str]) {
        let output = self.run(more);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        for word in words {
            assert!(text.contains(word), "`{word}` is not in:\n{text}");
        }
        assert!(text.contains("error: ") && !text.contains("panicked"), "{text}");
        assert!(!self.path("results/grid/results.csv").exists(), "the rejected run wrote a table");
    }
}

pub fn copa_row(i: usize) -> Value {
    json!({"premise": format!("w{i} w7 w8."), "question": "cause", "choice1": "w1 w2.", "choice2": "w3 w4 w5.", "label": i % 2})
}

/// Generates a deterministic text in which each word depends on the two words before it.
fn generate_words(seed: usize, count: usize) -> String {
    let mut a = seed;
    let mut b = seed + 1;
    let mut text = Vec::new();
    for _ in 0..count {
        (a, b) = (b, (a * 31 + b * 17 + 7) % 299);
        text.push(format!("w{b}"));
    }
    text.join(" ")
}

/// Builds a word-level tokenizer with the words `w0`, `w1`, ….
pub fn build_tokenizer(words: usize) -> Value {
    let vocab: serde_json::Map<String, Value> = (0..words).map(|i| (format!("w{i}"), json!(i))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    })
}

/// Runs a command, asserts that it succeeds, and returns its stdout followed by its stderr.
pub fn run_ok(world: &World, arguments: &[&str]) -> String {
    let output = world.ghostlab(arguments);
    let text = combined_output(&output);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {text}");
    text
}

/// Reads a CSV file with quoted fields. Returns all rows, including the header row.
pub fn read_csv(path: &Path) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(path).unwrap();
    reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect()
}

/// Reads a CSV file without quoted fields. Returns all rows, including the header row.
pub fn read_rows(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(',').map(str::to_string).collect()).collect()
}

/// Returns the index of a column by its name in the header row.
pub fn column_index(rows: &[Vec<String>], name: &str) -> usize {
    rows[0].iter().position(|head| head == name).unwrap_or_else(|| panic!("no column `{name}`"))
}
