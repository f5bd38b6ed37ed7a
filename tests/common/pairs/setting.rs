//! Setup for tests that compare two runs: a test folder with a grid, and methods that change the grid or its input
//! files.

use serde_json::{Value, json};

use crate::common::fixture;
use crate::common::world::World;

/// Grid with one pruned cell, which is scored on a text and a task and is also timed.
const GRID: &str = "\
backbones:
  tiny: {path: backbone}
corpora:
  train: {path: train.jsonl, rule: ptb}
  test: {path: test.jsonl, rule: ptb, limit: 5}
tasks:
  copa: {path: copa.jsonl}
backbone: tiny
criterion: llm-streamline
depth: 1
recovery: ghosted
calibration: {corpus: train, sequences: 4, length: 32, operator_sequences: 3}
evaluate:
  perplexity: {corpus: test, length: 64}
  tasks: {name: copa, limit: 6}
  latency: {length: 16}
";

/// Test folder with a grid, and the arguments that follow `run grid.yaml`.
pub struct Setting {
    pub world: World,
    pub arguments: Vec<String>,
}

impl Setting {
    pub(super) fn new() -> Self {
        let world = World::large();
        let words =
            |seed: usize| (0..400).map(|at| format!("w{}", (at * at * seed + at) % 299)).collect::<Vec<_>>().join(" ");
        for (name, seed) in [("train.jsonl", 3), ("test.jsonl", 5)] {
            world.write(name, (0..3).map(|at| side_row(&words(seed + at), &words(seed + at + 50))).collect::<String>());
        }
        world.write("backbone/tokenizer_config.json", json!({"bos_token": "w1"}).to_string());
        world.write("grid.yaml", GRID);
        Self { world, arguments: Vec::new() }
    }

    /// Replaces `from`, which must occur exactly once in the grid.
    pub fn replace_in_grid(&self, from: &str, to: &str) {
        self.replace_in_file("grid.yaml", from, to);
    }

    pub(super) fn add_text_row(&self, file: &str) {
        let rows = std::fs::read_to_string(self.world.path(file)).unwrap();
        self.world.write(file, rows + &json!({"text": "w1 w2 w3", "side": "w3 w2 w1"}).to_string() + "\n");
    }

    pub(super) fn add_labeled_row(&self, file: &str) {
        let rows = std::fs::read_to_string(self.world.path(file)).unwrap();
        self.world.write(file, rows + &json!({"text": "w1 w2", "label": 1}).to_string() + "\n");
    }

    pub(super) fn replace_in_file(&self, file: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.world.path(file)).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from} in {file}");
        self.world.write(file, text.replace(from, to));
    }

    pub(super) fn add_arguments(&mut self, arguments: &[&str]) {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
    }

    pub(super) fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.world.path(from), self.world.path(to)).unwrap();
        self.replace_in_grid(from, to);
    }

    pub(super) fn change_json(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.world.path(file);
        let mut value = crate::common::json(&path);
        change(&mut value);
        self.world.write(file, serde_json::to_vec_pretty(&value).unwrap());
    }

    /// Writes a text as identical shards so that every shard order yields the same bytes.
    pub(super) fn write_shards(&self, text: &str, shards: usize, settings: &str) {
        let rows = std::fs::read_to_string(self.world.path(&format!("{text}.jsonl"))).unwrap().repeat(100);
        std::fs::create_dir(self.world.path(text)).unwrap();
        for at in 0..shards {
            self.world.write(&format!("{text}/{at}.jsonl"), &rows);
        }
        self.replace_in_grid(
            &format!("{{path: {text}.jsonl, rule: ptb"),
            &format!("{{path: {text}, rule: c4-stream{settings}"),
        );
    }

    /// Moves the task's file into a folder, as in published datasets.
    pub(super) fn move_task_to_folder(&self) {
        std::fs::create_dir(self.world.path("copa")).unwrap();
        std::fs::rename(self.world.path("copa.jsonl"), self.world.path("copa/validation.jsonl")).unwrap();
        self.world.write("copa/README.md", "A text.\n");
        self.replace_in_grid("path: copa.jsonl", "path: copa");
    }

    /// Removes the latency measurement, because models with quantized weights are not timed.
    pub(super) fn remove_latency(&mut self) {
        self.replace_in_grid("  latency: {length: 16}\n", "");
    }

    /// Removes the task's document limit, so that planning does not read the documents to count them.
    pub(super) fn remove_document_limit(&mut self) {
        self.replace_in_grid("tasks: {name: copa, limit: 6}", "tasks: copa");
    }

    pub(super) fn add_definition(&self, options: &str) {
        std::fs::create_dir(self.world.path("rows")).unwrap();
        for (split, count) in [("train", 5), ("test", 6)] {
            self.world.write(
                &format!("rows/{split}.jsonl"),
                (0..count).map(|at| numbered_row(3 * at + count)).collect::<String>(),
            );
        }
        self.world.write(
            "made.yaml",
            "task: made\ndataset_path: a/b\ntraining_split: train\ntest_split: test\noutput_type: multiple_choice\n\
             doc_to_text: '{{text}} w9'\ndoc_to_choice: [w1, w2]\ndoc_to_target: label\n",
        );
        self.world.write("backbone/chat_template.jinja", "{% for m in messages %}w5 {{ m.content }} w6 {% endfor %}");
        self.replace_in_grid(
            "tasks: {name: copa, limit: 6}",
            &format!("tasks: [{{name: copa, limit: 6}}, {{definition: made.yaml, data: rows{options}}}]"),
        );
    }

    pub(super) fn add_generation_definition(&self) {
        self.add_definition("");
        self.world.write(
            "made.yaml",
            "task: made\ndataset_path: a/b\ntest_split: test\noutput_type: generate_until\n\
             doc_to_text: '{{text}} w9'\ndoc_to_target: w1\nmetric_list: [{metric: exact_match}]\n",
        );
    }

    pub(super) fn add_finetuning(&self) {
        self.replace_in_grid(
            "recovery: ghosted",
            "recovery: {name: ghosted, finetune: {sequences: 4, length: 32, seed: 0}}",
        );
    }

    /// Makes the criterion iterative: layers are removed one by one, with a repair after each removal.
    pub(super) fn make_iterative(&self) {
        self.replace_in_grid("criterion: llm-streamline", "criterion: {name: shortgpt, iterative: true}");
    }

    /// Repeats the fixture's first layer to 32 layers, as in Llama 2 7B, and selects layers by a published order.
    pub(super) fn deepen_model(&self) {
        const LAYERS: usize = 32;
        let bytes = std::fs::read(fixture("arch/llama-gqa/model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut all = Vec::new();
        for (name, view) in tensors.iter() {
            match name.strip_prefix("model.layers.0.") {
                Some(part) => all.extend((0..LAYERS).map(|at| (format!("model.layers.{at}.{part}"), view.clone()))),
                None if name.starts_with("model.layers.") => {}
                None => all.push((name.to_owned(), view)),
            }
        }
        safetensors::serialize_to_file(all, None, &self.world.path("backbone/model.safetensors")).unwrap();
        self.change_json("backbone/config.json", |config| config["num_hidden_layers"] = json!(LAYERS));
        self.replace_in_grid("criterion: llm-streamline", "criterion: {name: shortened-llama, order: released}");
    }
}

fn side_row(text: &str, side: &str) -> String {
    json!({"text": text, "side": side}).to_string() + "\n"
}

fn numbered_row(at: usize) -> String {
    json!({"text": format!("w{at} w{}", at * 7 % 299), "label": at % 2}).to_string() + "\n"
}
