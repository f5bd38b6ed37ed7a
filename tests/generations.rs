//! End-to-end tests for generated answers. The answers are identical after kills, do not depend on the number of
//! documents, and equal those of lm-evaluation-harness.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]
#![allow(clippy::disallowed_macros, reason = "tests print why they are skipped")]

use std::path::Path;

use crate::common;
use crate::common::world::World;
use ghostlab::pipeline::stage::{self, generations};
use ghostlab_store::Store;
use serde_json::{Value, json};

/// Creates a world with 200 prompts, which are split into four chunks.
fn generation_world(evaluate: &str) -> World {
    let world = World::new();
    world.write("rows.jsonl", (0..200).map(|i| format!("{}\n", question_row(i))).collect::<String>());
    world.write(
        "answers.yaml",
        "task: answers\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\noutput_type: generate_until\n\
         test_split: test\ndoc_to_text: \"{{question}}\"\ndoc_to_target: \"{{answer.split('#### ')[-1]}}\"\n\
         generation_kwargs: {until: [\"w7 \", \"w9\"], do_sample: false, max_gen_toks: 12}\n\
         metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n",
    );
    world.write(
        "grid.yaml",
        format!(
            "backbones:\n  tiny: {{path: backbone}}\ncorpora:\n  train: {{path: train.txt, rule: wikitext2}}\n\
             backbone: [tiny]\ncriterion: [llm-streamline]\ndepth: [1, 2]\nrecovery: [none, ghosted]\n\
             calibration:\n  - {{corpus: train, sequences: 8, length: 64}}\n\
             evaluate:\n  tasks: [{{definition: answers.yaml{evaluate}}}]\n"
        ),
    );
    world
}

fn question_row(i: usize) -> Value {
    json!({"question": format!("w{i} w{} w{}", i * 7 % 299, i * 31 % 299), "answer": format!("#### w{}", i % 9)})
}

/// Reads all stored answers, sorted by the hashes of their keys.
fn read_stored_answers(world: &World) -> Vec<(String, Vec<generations::GeneratedText>)> {
    let items = Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap().entries();
    let mut all: Vec<_> = items
        .into_iter()
        .filter(|item| item.stage.starts_with("generations"))
        .map(|item| (item.hash, generations::read(&item.object.unwrap()).unwrap()))
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

#[test]
fn killed_generation_resumes_to_identical_answers() {
    let undisturbed = generation_world("");
    let world = generation_world("");
    undisturbed.run_ok(&[]);
    for point in ["score:1", "journal:1", "score:2", "journal:2", "commit:2"] {
        let output =
            world.command(&["run", "grid.yaml"]).env("GHOSTLAB_FAULT", format!("kill@{point}")).output().unwrap();
        assert_eq!(output.status.code(), None, "{point} was not reached: {}", String::from_utf8_lossy(&output.stderr));
        assert!(world.tables().is_empty(), "{point}: the killed run wrote a table");
    }
    world.run_ok(&[]);
    let one = read_stored_answers(&undisturbed);
    let other = read_stored_answers(&world);
    // There is one object for the dense backbone, and one for each of two recoveries at two cuts.
    assert_eq!(one.len(), 5);
    assert!(one.iter().all(|(_, texts)| texts.len() == 200 && texts.iter().all(|text| text.tokens > 0)));
    assert!(one == other, "answers differ");
    assert!(!undisturbed.tables().is_empty() && undisturbed.tables() == world.tables(), "the tables differ");
    let left = std::fs::read_dir(world.path("data/store/journals")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "journals of stored work remain");
}

#[test]
fn document_limit_does_not_change_answers() {
    let all = generation_world("");
    let few = generation_world(", limit: 70");
    all.run_ok(&[]);
    few.run_ok(&[]);
    assert!(read_first_answers(&all) == read_first_answers(&few));
}

fn read_first_answers(world: &World) -> Vec<Vec<generations::GeneratedText>> {
    let mut texts: Vec<Vec<_>> = read_stored_answers(world)
        .into_iter()
        .map(|(_, mut texts)| {
            texts.truncate(70);
            texts
        })
        .collect();
    // Sort by content, because the keys depend on the number of documents.
    texts.sort_by_key(|text| format!("{text:?}"));
    texts
}

#[test]
fn planned_memory_includes_the_kv_cache() {
    let world = generation_world("");
    let config = common::json(&world.path("backbone/config.json"));
    let layers = config_value(&config, "num_hidden_layers");
    let heads = config["head_dim"]
        .as_u64()
        .unwrap_or(config_value(&config, "hidden_size") / config_value(&config, "num_attention_heads"));
    // Bytes per token in the f32 KV caches of the dense backbone and of two recoveries at each of two cuts. A batch has
    // 64 prompts.
    let token =
        8 * config_value(&config, "num_key_value_heads") * heads * (layers + 2 * (layers - 1) + 2 * (layers - 2));
    let [few, many] = [12, 90].map(|new| planned_memory(&world, new, &[]));
    assert!(many - few >= 64 * 78 * token, "{many} {few}");
    // The KV cache must stay within its fraction of the memory limit.
    let [few, many] = [12, 240].map(|new| planned_memory(&world, new, &["--memory", "0.12"]));
    assert!(many - few < 64 * 228 * token, "{many} {few}");
}

/// Returns the planned memory in bytes if at most `new` tokens are generated per answer.
fn planned_memory(world: &World, new: usize, more: &[&str]) -> u64 {
    let text = std::fs::read_to_string(world.path("answers.yaml")).unwrap();
    let (before, rest) = text.split_once("max_gen_toks: ").unwrap();
    let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    world.write("answers.yaml", format!("{before}max_gen_toks: {new}{after}"));
    let output = world.ghostlab(&[&["plan", "grid.yaml", "--json"], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = serde_json::to_string(&plan).unwrap();
    let (_, rest) = found.split_once("\"memory_bytes\":").unwrap_or_else(|| panic!("{plan:#}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

fn config_value(config: &Value, name: &str) -> u64 {
    config[name].as_u64().unwrap()
}

#[test]
fn bundled_backbones_generate_correct_answers() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let definitions = checkout.join("experiments/definitions/");
    let world = World::new();
    for name in ["llama", "qwen3", "olmo2"] {
        let backbone = checkout.join("data/tiny").join(name);
        let [backbone, tasks] = [&backbone, &definitions].map(|path| path.to_str().unwrap());
        let output = world.ghostlab(&["score", backbone, "--tasks", tasks, "--limit", "40", "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let file = &answer["answer"]["lm_eval"];
        for (task, metric) in [
            ("short_answers", "exact_match,strict-match"),
            ("short_answers", "exact_match,flexible-extract"),
            ("last_word", "acc,none"),
        ] {
            let [value, error] = [metric.to_owned(), metric.replace(',', "_stderr,")]
                .map(|key| file["results"][task][key].as_f64().unwrap_or_else(|| panic!("{file:#}")));
            assert!(value > 3.0 * error && value > 0.25, "{name}, {task}, {metric}: {value} ± {error}");
        }
        // A task with several scores appears only once in the task list.
        assert_eq!(file["config"]["tasks"].as_array().unwrap().len(), 2, "{}", file["config"]);
    }
}

#[test]
fn invalid_generation_task_is_rejected_before_anything_runs() {
    for (from, to, words) in [
        ("max_gen_toks: 12", "num_beams: 4", ["num_beams", "answers.yaml"]),
        ("max_gen_toks: 12", "max_gen_tokens: 12", ["did you mean `max_gen_toks`?", "task answers"]),
        ("max_gen_toks: 12", "repetition_penalty: 1.5", ["repetition_penalty", "answers.yaml"]),
        ("max_gen_toks: 12", "max_gen_toks: 100000", ["too short for a prompt", "max_gen_toks"]),
    ] {
        let world = generation_world("");
        let text = std::fs::read_to_string(world.path("answers.yaml")).unwrap();
        world.write("answers.yaml", text.replace(from, to));
        world.assert_rejected(&[], 2, &words);
    }
    let world = generation_world("");
    std::fs::remove_file(world.path("rows.jsonl")).unwrap();
    world.assert_rejected(&[], 3, &["task rows not found", "answers.yaml", "pass `--rows`"]);
}

/// Skipped with a message unless `GHOSTLAB_PYTHON` names an interpreter that has `lm_eval`, which `.ci/run` installs.
#[test]
fn generated_answers_and_scores_match_the_harness() {
    let Some(python) = common::python::python("lm_eval") else { return };
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["llama", "qwen3", "olmo2"] {
        let world = World::new();
        let backbone = checkout.join("data/tiny").join(name);
        // Write synthetic rows in the schema of GSM8K. Each question is preceded by two few-shot examples.
        let folders = [world.folder.path(), &backbone];
        common::python::run(&mut common::python::script(&python, "golden_answers.py", folders));
        world.write(
            "grid.yaml",
            format!(
                "backbones:\n  tiny: {{path: {}}}\ncorpora:\n  train: {{path: train.txt, rule: wikitext2}}\n\
                 backbone: [tiny]\ncriterion: [llm-streamline]\ndepth: [1]\nrecovery: [none]\n\
                 calibration:\n  - {{corpus: train, sequences: 8, length: 64}}\n\
                 evaluate:\n  tasks: [{{definition: definitions/made_up.yaml}}]\n",
                backbone.display()
            ),
        );
        let log = world.run_ok(&[]);
        let golden: Value = serde_json::from_slice(&std::fs::read(world.path("golden.json")).unwrap()).unwrap();
        let theirs: Vec<&str> =
            golden["answers"].as_array().unwrap().iter().map(|answer| answer.as_str().unwrap()).collect();
        let ours = read_stored_answers(&world);
        // lm-evaluation-harness used the dense backbone, which is one of our two models.
        let best = ours
            .iter()
            .map(|(_, texts)| texts.iter().zip(&theirs).filter(|(ours, theirs)| ours.text == **theirs).count())
            .max()
            .unwrap();
        assert_eq!(best, theirs.len(), "{name}: {log}");
        let mut table = csv::Reader::from_path(world.path("results/grid/results.csv")).unwrap();
        let heads: Vec<String> = table.headers().unwrap().iter().map(str::to_owned).collect();
        let row = table.records().next().unwrap().unwrap();
        for (filter, score) in golden["scores"].as_object().unwrap() {
            let column = heads.iter().position(|head| *head == format!("made_up exact_match,{filter}")).unwrap();
            let (ours, score): (f64, f64) = (row[column].parse().unwrap(), 100.0 * score.as_f64().unwrap());
            assert!((ours - score).abs() < 1e-9, "{name} {filter}: {ours} and {score}");
            assert!(score > 0.0, "{name} {filter}: no document matches, so the comparison is empty");
        }
    }
}
