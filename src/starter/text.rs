//! The grid as a file, with a comment beside what can be chosen.

use std::path::{Component, Path, PathBuf};

use super::find::Model;
use super::{RULE, Starter};
use crate::options::Described;
use crate::{criterion, grid, recovery};

/// Tasks that are scored; the others are defined only.
const SCORED: [&str; 2] = ["arc_easy", "hellaswag"];

impl Starter {
    /// The text of a grid of these models, for a file at `target`.
    pub(super) fn text(&self, models: &[Model], target: &Path) -> String {
        let path = |path: &Path| quoted(&relative(path, target));
        let file = target.file_name().unwrap_or_default().to_string_lossy();
        let mut lines: Vec<String> = Vec::new();
        let mut say = |line: String| lines.push(line);
        say(format!(
            "# A grid of the models in {}. `ghostlab plan {file}` tells what it would do and cost,",
            plain(&self.folder)
        ));
        say(format!(
            "# `ghostlab run {file}` does it. Where a list stands, one value may stand too; docs/grid.md has the rest."
        ));
        say(String::new());
        say("# Paths start from this file's folder. A model of the Hugging Face hub: `name: {hub: org/name}`.".into());
        say("backbones:".into());
        for model in models {
            let of = format!("{}, {} layers", model.architecture, model.layers);
            say(format!("  {}: {{path: {}}}   # {of}", quoted(&model.name), path(&model.path)));
        }
        if !self.left_out.is_empty() {
            say("  # Left out:".into());
            for (folder, error) in &self.left_out {
                say(format!("  #   {}: {}", plain(folder), error.one_line()));
            }
        }
        say(String::new());
        say("# .txt .jsonl .jsonl.gz .parquet; the column `text` or `sentence`, or `column: …`. `rule` tells how rows are joined and".into());
        say(format!("# windows drawn: {}. `limit: 100` scores the first 100 windows.", grid::rules().join(", ")));
        say("# The paper's texts have names of their own, c4-train, c4, wikitext2 and ptb: `ghostlab fetch` brings them, and".into());
        say("# nothing has to be said of them here.".into());
        if self.corpora.iter().any(|of| of.generated) {
            say("# These tell of an invented world: they show that everything runs. A number on them says little of a model".into());
            say("# that was trained on something else.".into());
        }
        say("corpora:".into());
        for corpus in &self.corpora {
            let generated = if corpus.generated { ", generated: true" } else { "" };
            say(format!("  {}: {{path: {}, rule: {RULE}{generated}}}", quoted(&corpus.name), path(&corpus.path)));
        }
        if !self.tasks.is_empty() {
            say(String::new());
            say("# Of the same world. Your own: a file in the hub's schema, .jsonl .jsonl.gz .json .parquet, or a folder with it.".into());
            say("tasks:".into());
            for (name, file) in &self.tasks {
                say(format!("  {name}: {{path: {}, generated: true}}", path(file)));
            }
        }
        say(String::new());
        let names: Vec<String> = models.iter().map(|model| quoted(&model.name)).collect();
        say(format!("backbone: [{}]", names.join(", ")));
        say(String::new());
        say("# Which layers go:".into());
        described(&criterion::described(), &mut say);
        say("criterion: [llm-streamline]".into());
        say(String::new());
        say("# How many: a count, or a share of each backbone's layers.".into());
        for model in models.iter().filter(|model| !model.depths.is_empty()) {
            let depths: Vec<String> = model.depths.iter().map(ToString::to_string).collect();
            say(format!("#   {}: {} of its {} layers", model.name, depths.join(" and "), model.layers));
        }
        say("depth: [12.5%, 25%]".into());
        say(String::new());
        say(
            "# What is put at the cut, all without training (`finetune: {sequences: …, length: …}` trains it further):"
                .into(),
        );
        described(&recovery::described(), &mut say);
        let patch = if models.iter().all(|model| model.rotates) { "linearpatch-rotate" } else { "linearpatch-diag" };
        say(format!("recovery: [none, replaceme-ls, {patch}, ghosted]"));
        say(String::new());
        let (length, sequences) = (self.length, self.sequences);
        say("# What layers are chosen and repairs are solved on: so many windows of so many tokens. `operator_sequences: 32` solves".into());
        say("# operators on the first 32. `seed: [0, 1, 2]` does it on three draws.".into());
        if let Some(text) = self.corpora.iter().find(|of| of.calibrates) {
            let corpus = quoted(&text.name);
            say(format!("calibration: {{corpus: {corpus}, sequences: {sequences}, length: {length}, seed: 0}}"));
        }
        say(String::new());
        say("# What every variant and the whole backbone are scored on. Also `latency: {length: 512, batch: 1}`."
            .into());
        say("evaluate:".into());
        say("  perplexity:".into());
        for text in self.corpora.iter().filter(|of| of.scored) {
            say(format!("    - {{corpus: {}, length: {length}}}", quoted(&text.name)));
        }
        let known = grid::tasks().join(", ");
        say(format!("  # {known}"));
        let scored: Vec<&String> =
            self.tasks.iter().map(|(name, _)| name).filter(|name| SCORED.contains(&name.as_str())).collect();
        if scored.is_empty() {
            say("  # tasks: [{name: arc_easy, limit: 100}]".into());
        } else {
            say("  tasks:".into());
            scored.iter().for_each(|name| say(format!("    - {{name: {name}, limit: 100}}")));
        }
        lines.join("\n") + "\n"
    }
}

/// A comment line for each method, with what it is called in tables and its options.
fn described(methods: &[Described], say: &mut dyn FnMut(String)) {
    for Described { name, label, options, .. } in methods {
        let keys: Vec<&String> = options["properties"].as_object().into_iter().flat_map(|keys| keys.keys()).collect();
        let keys: Vec<&str> = keys.into_iter().map(String::as_str).filter(|key| *key != "finetune").collect();
        let label = if *label == name { String::new() } else { format!(": {label}") };
        say(match keys.as_slice() {
            [] => format!("#   {name}{label}"),
            [one] => format!("#   {name}{label}; option {one}"),
            several => format!("#   {name}{label}; options {}", several.join(", ")),
        });
    }
}

/// A path for a comment: on one line.
fn plain(path: &Path) -> String {
    crate::error::printable(&path.display().to_string()).replace('\n', " ")
}

/// A text as YAML has it: as it is where nothing in it means something else.
fn quoted(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.' || c == '/')
        && text.chars().any(|c| c.is_ascii_alphabetic())
        && !text.starts_with("...")
        && !reserved.contains(&text.to_ascii_lowercase().as_str());
    // Like `.5e3` or `.inf`.
    let is_number = text.starts_with('.') && !text.contains('/');
    if is_word && !is_number && text.chars().all(safe) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

/// A path from the folder of the grid's file, or whole where there is no way without leaving the disk's root.
fn relative(path: &Path, target: &Path) -> String {
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let clean = |path: PathBuf| path.canonicalize().unwrap_or(path);
    let path = clean(whole(path));
    let folder = whole(target).parent().map(|folder| clean(folder.to_owned())).unwrap_or_default();
    let common = path.components().zip(folder.components()).take_while(|(a, b)| a == b).count();
    let normal = |part: &Component<'_>| matches!(part, Component::Normal(_));
    // Nothing in common but the root: far away.
    if path.components().take(common).filter(normal).count() == 0 {
        return path.display().to_string();
    }
    let up = std::iter::repeat_n(Component::ParentDir, folder.components().count() - common);
    let way: PathBuf = up.chain(path.components().skip(common)).collect();
    if way.as_os_str().is_empty() { ".".to_owned() } else { way.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_yaml_would_read_otherwise_are_quoted() {
        for (text, written) in [
            ("models/my-llama", "models/my-llama"),
            ("../data/a.jsonl.gz", "../data/a.jsonl.gz"),
            ("true", "\"true\""),
            ("7b", "\"7b\""),
            ("a: b", "\"a: b\""),
            (".5", "\".5\""),
            ("modèle", "\"modèle\""),
        ] {
            assert_eq!(quoted(text), written);
        }
    }

    #[test]
    fn paths_start_from_the_grids_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let path = |text: &str| folder.path().join(text);
        assert_eq!(relative(&path("a/b"), &path("grid.yaml")), "a/b");
        assert_eq!(relative(&path("a"), &path("a/b/grid.yaml")), "..");
        assert_eq!(relative(&path("a/b"), &path("a/b/grid.yaml")), ".");
    }
}
