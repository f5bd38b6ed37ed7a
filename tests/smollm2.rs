//! Tests on SmolLM2 with the texts and tasks in `../shared/real`: scores compared with transformers and llama.cpp, and
//! default sizes of a grid.
//!
//! Skipped with a message unless `GHOSTLAB_SMOLLM2` names the GGUF file, and `GHOSTLAB_PYTHON` or `GHOSTLAB_LLAMA_CPP` an
//! interpreter with the other program. `.ci/run` sets them up.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print the differences"
)]

use std::path::Path;

use crate::common::world::World;
use crate::common::{assert_close, json, numbers, python, shared, smollm2_path};
use crate::llama_cpp;
use ghostlab::corpus::{Tokenizer, WindowRule, evaluation_windows, read_rows};
use ghostlab::grid::Grid;
use ghostlab::pipeline::exec::{self, RunEnv};
use ghostlab::pipeline::stage;
use ghostlab::starter::{SplitText, Starter};
use ghostlab::tasks::{DocumentLimit, Task};
use ghostlab_definitions::{FileRows, PromptSettings, RequestKind, builtin};
use ghostlab_store::Store;
use serde_json::{Map, Value, json};

/// Files of the scored tasks. Each is named after its task.
const TASKS: [&str; 6] =
    ["arc_easy.parquet", "boolq.jsonl", "copa.jsonl", "hellaswag.jsonl", "openbookqa.parquet", "rte.jsonl"];
/// Number of documents per task.
const DOCUMENTS: u32 = 10;
const WINDOW_TOKENS: usize = 512;
const WINDOWS: usize = 8;
const VOCAB: usize = 49_152;
/// Maximum relative difference between perplexities computed in f32. Largest difference observed: 8e-8.
const PERPLEXITY_TOLERANCE: f64 = 1e-6;
/// Maximum difference in nats between log-likelihoods computed in f32. Largest difference observed: 7e-5.
const LOG_LIKELIHOOD_TOLERANCE: f64 = 3e-4;
/// Maximum relative difference if llama.cpp rounds activations to 8 bits. Difference observed: 4e-3.
const ROUNDED_PERPLEXITY_TOLERANCE: f64 = 1e-2;

fn task_name(file: &str) -> &str {
    file.split('.').next().unwrap()
}

/// Returns a grid that scores the dense model.
fn dense_grid(model: &Path, real: &Path) -> String {
    let paths = TASKS.iter().map(|file| (task_name(file).to_owned(), json!({"path": real.join("tasks").join(file)})));
    let paths: Map<String, Value> = paths.collect();
    let scored = TASKS.iter().map(|file| json!({"name": task_name(file), "limit": DOCUMENTS}));
    let text = json!({"path": real.join("corpora/wikitext2-test.parquet"), "rule": "wikitext2", "limit": WINDOWS});
    json!({
        "backbones": {"smollm2": {"path": model}},
        "corpora": {"test": text},
        "tasks": paths,
        "backbone": "smollm2",
        "evaluate": {
            "perplexity": [{"corpus": "test", "length": WINDOW_TOKENS}],
            "tasks": scored.collect::<Vec<Value>>(),
        },
    })
    .to_string()
}

/// Returns the context and continuation of each request for the scored documents of a task.
fn build_requests(real: &Path, file: &str) -> Vec<(String, String)> {
    let known = Task::find(task_name(file)).unwrap();
    let limit = DocumentLimit::new(f64::from(DOCUMENTS)).unwrap();
    let task = builtin::task(known, &real.join("tasks").join(file), Some(limit)).unwrap();
    let requests = task.requests(&FileRows::default(), &PromptSettings::default()).unwrap();
    let texts = requests.into_iter().map(|request| match request.kind {
        RequestKind::LogLikelihood { context, continuation } => (context, continuation),
        other => panic!("{other:?}"),
    });
    texts.collect()
}

/// transformers dequantizes the file, tokenizes the texts itself and computes in f32. It sums in a different order.
#[test]
fn scores_match_those_of_transformers() {
    let Some(model) = smollm2_path() else { return };
    let Some(python) = python::python("torch, transformers and gguf") else { return };
    let Some(real) = shared("real") else { return };
    let folder = tempfile::tempdir().unwrap();
    let grid = Grid::from_text(&dense_grid(&model, &real), &folder.path().join("grid.yaml")).unwrap();
    let store = Store::open(&folder.path().join("store"), stage::STORE_WORDS).unwrap();
    let outcome = exec::run(&grid, RunEnv::new(&store)).unwrap();
    let cell = outcome.cells[0].ok().unwrap();

    let requests: Vec<Vec<(String, String)>> = TASKS.iter().map(|file| build_requests(&real, file)).collect();
    let [requests_file, out] = ["requests.json", "scores.json"].map(|name| folder.path().join(name));
    std::fs::write(&requests_file, json!(requests.concat()).to_string()).unwrap();
    let text = real.join("corpora/wikitext2-test.parquet");
    let windows = WINDOWS.to_string();
    let arguments = [model.as_path(), &text, Path::new(&windows), &requests_file, &out];
    python::run(&mut python::script(&python, "gguf_scores.py", arguments));
    let theirs = json(&out);

    let perplexity = cell.texts[0].sample.as_ref().unwrap().perplexity();
    assert_close("perplexity", perplexity, theirs["perplexity"].as_f64().unwrap(), PERPLEXITY_TOLERANCE);
    let mut theirs = numbers(&theirs["log_likelihoods"]).into_iter();
    let answered: Vec<_> = cell.answered_tasks().collect();
    assert_eq!(answered.len(), TASKS.len());
    for ((name, answered), requests) in answered.into_iter().zip(&requests) {
        let ours: Vec<f64> =
            answered.documents().flat_map(|document| document.choices).map(|choice| choice.log_likelihood).collect();
        assert_eq!(ours.len(), requests.len(), "{name}");
        let differences = ours.iter().zip(theirs.by_ref()).map(|(ours, theirs)| (ours - theirs).abs());
        let largest = differences.fold(0.0, f64::max);
        println!("{name}: {} log-likelihoods, largest difference {largest:.1e} nats", ours.len());
        assert!(largest <= LOG_LIKELIHOOD_TOLERANCE, "{name}: {largest:e}");
    }
    assert_eq!(theirs.next(), None);
}

/// An export in f32 has the same weights as the file. On the file itself, llama.cpp rounds activations to 8 bits before
/// each product with Q4_1 weights, so that perplexities agree only roughly.
#[test]
fn perplexity_matches_llama_cpp() {
    let Some(model) = smollm2_path() else { return };
    let Some(python) = llama_cpp::python() else { return };
    let Some(real) = shared("real") else { return };
    let text = real.join("corpora/wikitext2-test.parquet");
    let rows = read_rows(&text, None).unwrap();
    let windows =
        evaluation_windows(WindowRule::Wikitext2, &rows, &Tokenizer::load(&model).unwrap(), WINDOW_TOKENS, Some(4))
            .unwrap();
    assert_eq!(windows.count(), 4);
    let world = World::new();
    world.write("grid.yaml", dense_grid(&model, &real));
    let exported = world.path("f32.gguf");
    llama_cpp::run_successfully(
        &world,
        &["export", "grid.yaml", "dense", "--gguf", "f32", "--to", exported.to_str().unwrap()],
    );
    let text = format!("{}@{WINDOW_TOKENS}", text.display());
    let options = ["--perplexity", &text, "--windows", "4", "--json"];
    let output = llama_cpp::run_successfully(&world, &[&["score", model.to_str().unwrap()], &options[..]].concat());
    let document: Value = serde_json::from_str(&output).unwrap();
    let results = document["answer"]["lm_eval"]["results"].as_object().unwrap();
    let ours = results.values().next().unwrap()["perplexity,none"].as_f64().unwrap();
    for (weights, file, tolerance) in
        [("f32", &exported, PERPLEXITY_TOLERANCE), ("Q4_1", &model, ROUNDED_PERPLEXITY_TOLERANCE)]
    {
        // Compute one window at a time, because its logits take 100 MB.
        let losses = windows.iter().map(|window| {
            let window = [window.to_vec()];
            llama_cpp::perplexity(&llama_cpp::llama_cpp_logits(&python, &world, file, &window), &window, VOCAB).ln()
        });
        let theirs = (losses.sum::<f64>() / windows.count() as f64).exp();
        println!("{weights}: perplexity {ours} in ghostlab, {theirs} in llama.cpp");
        assert_close(weights, ours, theirs, tolerance);
    }
}

/// Compares the duration that `init` states with the estimate of `plan`, at two FLOP rates of a machine with two cores
/// and at a slow rate. They may differ by 30 %, because `init` estimates more roughly.
#[test]
fn init_limits_the_run_to_15_minutes_or_states_the_duration() {
    let Some(model) = smollm2_path() else { return };
    let Some(real) = shared("real") else { return };
    let world = World::new();
    let target = world.path("own.yaml");
    let split = SplitText::new(&real.join("corpora/c4-sample.jsonl.gz"), &target).unwrap();
    split.write(false).unwrap().keep();
    let texts = split.files().map(Path::to_path_buf);
    for (flop_per_second, is_short) in [(3e10, true), (2e10, true), (5e9, false)] {
        let starter = Starter::new(&model, &texts, None, &target, flop_per_second).unwrap();
        let grid = starter.yaml(&target).unwrap();
        world.write("own.yaml", &grid);
        let plan = llama_cpp::run_successfully(&world, &["plan", "own.yaml", "--json"]);
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let seconds = plan["answer"]["grids"][0]["cost"]["left_flop"].as_f64().unwrap() / flop_per_second;
        assert_eq!(seconds <= 900.0, is_short, "{flop_per_second:e}: {seconds}");
        assert_eq!(grid.contains("# These sizes limit the run to 15 minutes"), is_short, "{flop_per_second:e}: {grid}");
        assert_eq!(starter.seconds_over_limit().is_none(), is_short, "{flop_per_second:e}");
        if let Some(stated) = starter.seconds_over_limit() {
            assert_close("duration", stated, seconds, 0.3);
            let words = format!("A run takes about {:.0} minutes", (stated / 60.0).ceil());
            assert!(grid.contains(&words), "{words}: {grid}");
            assert!(grid.contains("depth: [25%]   # reduced from [12.5%, 25%] to save time"), "{grid}");
        }
    }
}
