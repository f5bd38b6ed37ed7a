//! Checks the commands in the README, CONTRIBUTING and docs/. The program must accept every line. Lines that need no
//! network, GPU or scheduler are also run.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

mod command_line;
mod grid_keys;
mod models;
mod performance;
mod recorded_run;
mod rules;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::output::stderr;
use crate::common::world::World;

/// Maximum number of words in the README and `docs/` together.
const MAX_WORDS: usize = 16_000;

/// Returns the shell lines that call the program, as pairs of page and arguments.
fn command_lines() -> Vec<(String, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    pages.extend(fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    pages.sort();
    let mut lines = Vec::new();
    for page in pages.iter().filter(|page| page.extension().is_some_and(|ending| ending == "md")) {
        let text = fs::read_to_string(page).unwrap();
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        for block in text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or("")) {
            let called = block.lines().flat_map(|line| line.split(" #").take(1).map(str::trim)).filter_map(parse_call);
            lines.extend(called.map(|words| (name.clone(), words)));
        }
    }
    lines
}

/// Returns the arguments in a line that calls the program, directly or through cargo. Pipes and redirections are
/// dropped.
fn parse_call(line: &str) -> Option<Vec<String>> {
    let line = line.split(" | ").next()?.trim().trim_start_matches("source <(").trim_end_matches(')');
    let rest = line.strip_prefix("cargo run --release -- ").or_else(|| line.strip_prefix("ghostlab "))?;
    let rest = rest.split(" > ").next()?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Returns why a line is only parsed and not run, or `None` if it is run.
fn skip_reason(words: &[String]) -> Option<&'static str> {
    match words[0].as_str() {
        "fetch" => Some("network"),
        "submit" | "cancel" => Some("scheduler"),
        "reproduce" => Some("minutes: tests/reproduce.rs"),
        _ if contains_any(words, &["--fetch", "paper", "smollm2"]) => Some("network"),
        _ if contains_any(words, &["cuda", "metal"]) => Some("device"),
        _ if contains_any(words, &["--gguf"]) => Some("needs a tokenizer that llama.cpp supports: tests/llama_cpp.rs"),
        _ => None,
    }
}

fn contains_any(words: &[String], wanted: &[&str]) -> bool {
    words.iter().any(|word| wanted.contains(&word.as_str()))
}

/// Creates the files that the docs assume to exist: `grid.yaml`, `models/my-llama`, and the texts and tasks that they
/// name.
fn create_world() -> World {
    let world = World::new();
    fs::create_dir_all(world.path("models")).unwrap();
    fs::rename(world.path("backbone"), world.path("models/my-llama")).unwrap();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("tiny", "my-llama").replace("path: backbone", "path: models/my-llama"));
    for folder in ["corpora", "tasks"] {
        fs::create_dir(world.path(folder)).unwrap();
    }
    for corpus in ["wikitext2", "c4"] {
        world.write(&format!("corpora/{corpus}.yaml"), "{path: ../test.jsonl, rule: ptb, limit: 2}\n");
    }
    let question = serde_json::json!({
        "id": "1", "question": "w1 w2", "choices": {"text": ["w3", "w4"], "label": ["A", "B"]}, "answerKey": "A",
    });
    world.write("tasks/arc_easy.jsonl", format!("{question}\n"));
    let ending = serde_json::json!({
        "ctx_a": "w1 w2", "ctx_b": "w5", "activity_label": "w9", "endings": ["w3", "w4", "w5", "w6"], "label": "1",
    });
    world.write("tasks/hellaswag.jsonl", format!("{ending}\n"));
    fs::create_dir_all(world.path("my-tasks")).unwrap();
    fs::create_dir_all(world.path("my-rows")).unwrap();
    for (split, more) in [("train", "w4"), ("test", "w5")] {
        let row = serde_json::json!({"text": format!("w1 w2 {more}"), "label": 1});
        world.write(&format!("my-rows/{split}.jsonl"), format!("{row}\n"));
    }
    let data = "dataset_path: mine\ntraining_split: train\ntest_split: test\n";
    let choice = "output_type: multiple_choice\ndoc_to_text: text\ndoc_to_choice: [w6, w7]\ndoc_to_target: label\n";
    world.write("my-tasks/choice.yaml", format!("task: my_choice\n{data}{choice}"));
    let cloze = "output_type: loglikelihood\ndoc_to_text: text\ndoc_to_target: ' w8'\n";
    world.write("my-tasks/cloze.yaml", format!("task: my_cloze\n{data}{cloze}"));
    world.write("models/my-llama/chat_template.jinja", "{% for m in messages %}w9 {{ m.content }} {% endfor %}");
    for task in ["arc_easy", "hellaswag"] {
        world.write(&format!("tasks/{task}.yaml"), format!("{{path: {task}.jsonl}}\n"));
    }
    world
}

#[test]
fn every_command_line_in_docs_is_parsed() {
    let lines = command_lines();
    assert!(lines.len() > 25, "too few lines: {lines:?}");
    let world = World::new();
    for (page, words) in lines {
        // Arguments after `--` are passed to the scheduler, so leave them out. A trailing `--help` makes the program
        // parse all arguments before it and then exit.
        let command_words = words.iter().take_while(|word| *word != "--").map(String::as_str);
        let line: Vec<&str> = command_words.chain(["--help"]).collect();
        let output = world.ghostlab(&line);
        assert_eq!(output.status.code(), Some(0), "{page}: `ghostlab {}`\n{}", words.join(" "), stderr(&output));
    }
}

#[test]
fn every_self_contained_command_line_in_docs_runs() {
    let world = create_world();
    // This run creates the results that other lines display. The folders `a` and `b` are copies of these results.
    let output = world.ghostlab(&["run", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for copy in ["a", "b"] {
        fs::create_dir(world.path(copy)).unwrap();
        for file in fs::read_dir(world.path("results/grid")).unwrap().map(|file| file.unwrap().path()) {
            if file.is_file() {
                fs::copy(&file, world.path(copy).join(file.file_name().unwrap())).unwrap();
            }
        }
    }
    let mut ran = 0;
    for (page, words) in command_lines() {
        if skip_reason(&words).is_some() {
            continue;
        }
        // Adapt depths to the small backbone and paths to the test folder.
        let line: Vec<String> = words
            .iter()
            .map(|word: &String| {
                word.replace("/7/", "/2/").replace("-7", "-2").replace("/shared/", "shared/").replace("~/", "home/")
            })
            .collect();
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        // Use the `experiments` folder in the checkout.
        let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
        let output = world.command(&words).env("GHOSTLAB_EXPERIMENTS", experiments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{page}: `ghostlab {}`\n{}", line.join(" "), stderr(&output));
        ran += 1;
    }
    assert!(ran > 12, "only {ran} lines ran");
}

#[test]
fn pages_are_short_and_their_links_resolve() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    assert!(readme.lines().count() <= 130 && readme.split_whitespace().count() <= 1500, "the README is too long");
    let total = count_words(root);
    assert!(total <= MAX_WORDS, "README and docs have {total} words, more than {MAX_WORDS}");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.chain(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name)));
    for page in pages.filter(|page| page.extension().is_some_and(|ending| ending == "md")) {
        let text = fs::read_to_string(&page).unwrap();
        let page_name = page.display();
        assert!(
            page.ends_with("CONTRIBUTING.md") || text.lines().count() <= 200,
            "{page_name} has more than 200 lines"
        );
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{page_name}: {link} does not exist");
            let heads = fs::read_to_string(&target).unwrap_or_default();
            let known = heads.lines().filter(|line| line.starts_with('#')).any(|line| heading_anchor(line) == anchor);
            assert!(anchor.is_empty() || known, "{page_name}: {file} has no heading #{anchor}");
        }
    }
}

/// Cargo's resolver only prefers versions compatible with `rust-version`, so a locked dependency may require a newer
/// compiler.
#[test]
fn stated_rust_version_builds_every_dependency() {
    let compiler = Command::new("rustc").arg("-vV").output().unwrap();
    let compiler = String::from_utf8(compiler.stdout).unwrap();
    let host = compiler.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Exclude packages for other platforms, because they are not downloaded.
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", host])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let versions = metadata["packages"].as_array().unwrap().iter().filter_map(|package| {
        let version = package["rust_version"].as_str()?;
        let parts: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
        Some(((parts[0], parts[1]), package["name"].as_str()?.to_owned()))
    });
    let ((major, minor), needed_by) = versions.max().unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    assert!(readme.contains(&format!("({major}.{minor} or newer)")), "{needed_by} needs Rust {major}.{minor}");
}

/// Counts the words in the README and in all pages of `docs/`.
fn count_words(root: &Path) -> usize {
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.chain([root.join("README.md")]);
    let pages = pages.filter(|page| page.extension().is_some_and(|ending| ending == "md"));
    pages.map(|page| fs::read_to_string(page).unwrap().split_whitespace().count()).sum()
}

/// Returns the anchor that GitHub generates for a heading.
fn heading_anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .replace(' ', "-")
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_')
        .collect()
}
