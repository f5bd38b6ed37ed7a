//! Loads exported cells in Python. transformers must reproduce this program's logits, and lm-evaluation-harness must
//! reproduce its scores.
//!
//! Skipped with a message unless `GHOSTLAB_PYTHON` names an interpreter that has torch, transformers and lm_eval.
//! `.ci/run` sets one up.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print why they are skipped"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::world::build_tokenizer;
use crate::common::{flat, json, tensors};
use candle_core::DType;
use ghostlab::grid::Grid;
use ghostlab::model::architecture::ARCHITECTURES;
use ghostlab::model::{Batch, Config, Decoder, Model, Program, Step, Sublayer};
use ghostlab::pipeline::exec::{RunSettings, stored_program};
use ghostlab::pipeline::plan::Plan;
use ghostlab::pipeline::stage;
use ghostlab_store::Store;
use tempfile::TempDir;

const BACKBONES: [&str; 3] = ["llama", "qwen3", "olmo2"];
/// Tolerance used by transformers itself when it compares two f32 implementations of a model.
const LOGIT_TOLERANCE: f64 = 1e-4;

fn python() -> Option<PathBuf> {
    common::python::python("torch, transformers and lm_eval")
}

fn bundled_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny").join(path)
}

/// Runs `tools/exported.py` with temporary Hugging Face caches.
pub(crate) fn run_script(python: &Path, arguments: &[&str]) {
    let home = TempDir::new().unwrap();
    let mut command = common::python::script(python, "exported.py", arguments);
    command.env("HF_HOME", home.path()).env("HF_MODULES_CACHE", home.path().join("modules"));
    common::python::run(&mut command);
}

/// Creates a folder with a store and a grid that uses the tiny backbones.
fn create_world(grid: &str) -> TempDir {
    let world = TempDir::new().unwrap();
    std::fs::create_dir_all(world.path().join("data/store")).unwrap();
    let corpora = bundled_path("corpora");
    let backbones = BACKBONES.map(|name| format!("  {name}: {{path: {}}}\n", bundled_path(name).display())).concat();
    let text = format!(
        "name: grid\nbackbones:\n{backbones}corpora:\n  train: {{path: {0}/web-train.jsonl.gz, rule: c4}}\n  \
         test: {{path: {0}/wiki-test.jsonl.gz, rule: wikitext2, limit: 2}}\n{grid}",
        corpora.display()
    );
    std::fs::write(world.path().join("grid.yaml"), text).unwrap();
    world
}

fn run_ghostlab(world: &TempDir, arguments: &[&str]) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_ghostlab")).current_dir(world.path()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Computes this program's logits at every position in a text.
fn compute_logits(decoder: &Decoder, program: &Program, ids: &[u32]) -> Vec<f64> {
    let batch = Batch::windows([ids]);
    let mut x = decoder.begin(&batch).unwrap();
    for step in program.0.iter().filter(|step| !matches!(step, Step::Embed | Step::Head)) {
        x = decoder.advance(&batch, step, &x).unwrap();
    }
    flat(&decoder.logits(&x, &(0..ids.len()).collect::<Vec<_>>()).unwrap())
}

#[test]
fn exports_with_every_recovery_match_transformers() {
    let Some(python) = python() else { return };
    // Use sixteen calibration tokens per channel, and a ridge for ReplaceMe. Otherwise, the maps become very large
    // (largest singular value 600 on OLMo-2), and transformers in f32 differs by 1e-4 from transformers in f64. The
    // grid covers every recovery at a single cut and a trained operator. It also has operators at two cuts, at each
    // removed layer and at both ends of the model. To save time, only some backbones have merged layers and linear
    // attention.
    let world = create_world(
        "backbone: [llama, qwen3, olmo2]\ncriterion: llm-streamline\ndepth: 4\n\
         recovery: [none, prune-and-comp, {name: prune-and-comp, granularity: scalar}, {name: replaceme-ls, alpha: 10}, \
         {name: replaceme-cos, epochs: 1}, linearpatch-diag, linearpatch-rotate, ghosted, \
         affine, mean, {name: rank, rank: 8}, sequential, \
         {name: ghosted, input: normed}, {name: ghosted, input: normed, bias: true}, \
         {name: ghosted, finetune: {sequences: 2, length: 32}}]\n\
         calibration: {corpus: train, sequences: 16, length: 128}\n\
         include:\n  - {criterion: {name: explicit, layers: [3, 4, 9]}, depth: 3, recovery: [{name: ghosted, boundary: layer}, \
         {name: replaceme-ls, alpha: 10, boundary: layer}]}\n\
         \x20 - {criterion: {name: explicit, layers: [0, 1, 15]}, depth: 3, recovery: [ghosted, linearpatch-diag, \
         prune-and-comp]}\n\
         \x20 - {criterion: llm-drop, depth: [{attention: 4}, {mlp: 2}, {sublayers: 8}], recovery: none}\n\
         \x20 - {backbone: [llama, olmo2], criterion: nbl, depth: {attention: 4}, recovery: nbl}\n\
         \x20 - {backbone: [llama, qwen3], criterion: nbl, depth: {attention: 4}, recovery: {name: nbl, input: normed}}\n\
         \x20 - {backbone: [llama, olmo2], criterion: {name: explicit, sublayers: [attention 0, mlp 3, attention 4, mlp 4, \
         attention 15, mlp 15]}, depth: {sublayers: 6}, recovery: {name: nbl, input: normed}}\n\
         \x20 - {backbone: llama, criterion: {name: explicit, layers: [3, 4, 9]}, depth: 3, recovery: merge}\n\
         evaluate: {perplexity: {corpus: test, length: 64}}\n",
    );
    run_ghostlab(&world, &["export", "grid.yaml", "--to", "out", "--dtype", "f32"]);
    let grid = Grid::load(&world.path().join("grid.yaml"), None, &[]).unwrap();
    let store = Store::open(&world.path().join("data/store"), stage::STORE_WORDS).unwrap();
    let settings = RunSettings::default();
    let plan = Plan::new(&grid, &store, settings).unwrap();
    let cells: Vec<String> = grid.cells.iter().filter(|cell| !cell.is_dense()).map(ToString::to_string).collect();
    assert_eq!(cells.len(), 3 * 23 + 7);
    let folders: Vec<String> = cells.iter().map(|cell| format!("{}/out/{cell}", world.path().display())).collect();
    let (out, text) =
        (world.path().join("logits.safetensors"), "Question: What does the pet of Anna eat?\nAnswer: The");
    let arguments = ["logits", out.to_str().unwrap(), text].into_iter().chain(folders.iter().map(String::as_str));
    run_script(&python, &arguments.collect::<Vec<_>>());

    let with_code = compare(&world, &plan, &store, &out, largest_difference);
    // Of the 23 cells of each backbone, 20 remove whole layers. Six of these need no code: `none`, four folded repairs,
    // and a folded repair at two cuts. On OLMo-2, the maps of ReplaceMe (LS, Cos, and at two cuts) and the scaling of
    // the residual stream need code too. At layer 0, there is no earlier layer into which a scale can be folded. The
    // six cuts with replaced sublayers need code, and merged layers do not.
    assert_eq!(with_code, 2 * 14 + 18 + 3 * 3 + 6);
}

/// Compares our logits with those that transformers computes from the folder of each pruned cell. `error` must not
/// exceed [`LOGIT_TOLERANCE`]. Returns the number of folders with code.
pub(crate) fn compare(
    world: &TempDir,
    plan: &Plan<'_>,
    store: &Store,
    out: &Path,
    error: fn(&[f64], &[f64]) -> f64,
) -> usize {
    let grid = plan.grid;
    let theirs = tensors(out);
    let mut with_code = 0;
    for backbone in &plan.backbones {
        let decoder = Decoder::load(&backbone.folder).unwrap();
        for variant in backbone.variants.iter().filter(|variant| !grid.cells[variant.cell].is_dense()) {
            let cell = grid.cells[variant.cell].to_string();
            let ids: Vec<u32> = theirs[&format!("{cell}.ids")].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
            let ours = compute_logits(&decoder, &stored_program(store, backbone, variant).unwrap(), &ids);
            let theirs = flat(&theirs[&format!("{cell}.logits")]);
            assert_eq!(ours.len(), theirs.len(), "{cell}");
            assert!(ours.iter().chain(&theirs).all(|logit| logit.is_finite()), "{cell}");
            assert!(error(&ours, &theirs) <= LOGIT_TOLERANCE, "{cell}: {:e}", error(&ours, &theirs));
            let dense = compute_logits(&decoder, &Program::dense(backbone.config.layers), &ids);
            assert!(largest_difference(&dense, &theirs) > 0.01, "{cell}: the logits equal those of the dense backbone");
            let code = world.path().join("out").join(&cell).join("modeling_ghostlab.py");
            with_code += usize::from(code.exists());
        }
    }
    with_code
}

fn largest_difference(ours: &[f64], theirs: &[f64]) -> f64 {
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Creates a folder that contains random backbones with word tokenizers, a text, and a grid that uses them.
fn random_world(backbones: &[(String, PathBuf)], grid: &str) -> TempDir {
    let world = TempDir::new().unwrap();
    std::fs::create_dir_all(world.path().join("data/store")).unwrap();
    for (backbone, source) in backbones {
        let folder = world.path().join(backbone);
        std::fs::create_dir(&folder).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(source.join(file), folder.join(file)).unwrap();
        }
        std::fs::write(folder.join("tokenizer.json"), build_tokenizer(300).to_string()).unwrap();
        std::fs::write(folder.join("tokenizer_config.json"), r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#)
            .unwrap();
    }
    std::fs::write(world.path().join("train.txt"), generate_words(4000, 31).join(" ")).unwrap();
    let named = backbones.iter().map(|(name, _)| format!("  {name}: {{path: {name}}}\n")).collect::<String>();
    let list = backbones.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let text = format!(
        "backbones:\n{named}corpora: {{train: {{path: train.txt, rule: wikitext2}}}}\nbackbone: [{list}]\n{grid}\
         evaluate: {{perplexity: {{corpus: train, length: 64}}}}\n"
    );
    std::fs::write(world.path().join("grid.yaml"), text).unwrap();
    world
}

fn generate_words(count: usize, step: usize) -> Vec<String> {
    (0..count).map(|i| format!("w{}", i * step * (i + 7) % 299)).collect()
}

/// Exports all cells of a random world, and compares our logits with those of transformers. Returns the number of cells
/// and the number of folders with code.
fn compare_random(python: &Path, world: &TempDir) -> (usize, usize) {
    run_ghostlab(world, &["export", "grid.yaml", "--to", "out", "--dtype", "f32"]);
    let grid = Grid::load(&world.path().join("grid.yaml"), None, &[]).unwrap();
    let store = Store::open(&world.path().join("data/store"), stage::STORE_WORDS).unwrap();
    let settings = RunSettings::default();
    let plan = Plan::new(&grid, &store, settings).unwrap();
    let folders: Vec<String> = std::fs::read_dir(world.path().join("out"))
        .unwrap()
        .map(|dir| dir.unwrap().path().display().to_string())
        .collect();
    // The text is longer than any attention window and any original context length. Pass it as token ids, because
    // transformers replaces some tokenizers.
    let ids: Vec<String> = generate_words(100, 17).iter().map(|word| word.trim_start_matches('w').to_owned()).collect();
    let out = world.path().join("logits.safetensors");
    let text = ids.join(" ");
    let arguments = ["logits", out.to_str().unwrap(), &text].into_iter().chain(folders.iter().map(String::as_str));
    run_script(python, &arguments.collect::<Vec<_>>());
    (folders.len(), compare(world, &plan, &store, &out, largest_difference))
}

#[test]
fn exported_biases_and_windows_follow_the_kept_layers() {
    let Some(python) = python() else { return };
    // In Qwen2, layers from the third on have an attention window.
    let backbones = ["mistral", "qwen2"].map(|name| (name.to_owned(), common::fixture(&format!("arch/{name}"))));
    let world = random_world(
        &backbones,
        "criterion: [{name: explicit, layers: [1]}]\ndepth: 1\n\
         recovery: [none, prune-and-comp, {name: replaceme-ls, alpha: 10}, ghosted, affine, merge]\n\
         calibration: {corpus: train, sequences: 16, length: 64}\n\
         include:\n  - {criterion: llm-drop, depth: {attention: 2}, recovery: nbl}\n",
    );
    assert_eq!(
        compare_random(&python, &world).1,
        2 * 3,
        "expected three recoveries with operators next to the weights"
    );
}

/// Covers every supported architecture, including features that transformers derives from the layer index: attention
/// windows, and layers without rotary embeddings or experts. There are cuts both before and after such layers.
#[test]
fn exports_of_every_architecture_match_transformers() {
    let Some(python) = python() else { return };
    let models = TempDir::new().unwrap();
    let names = [
        "llama-biases",
        "llama-yarn-all",
        "qwen2",
        "qwen3-biases",
        "olmo2-biases",
        "mistral-untied",
        "phi3-longrope",
        "smollm3-window",
        "gemma2",
        "gemma3_text",
        "mixtral",
        "qwen3_moe-mixed",
    ];
    let folder = models.path().to_str().unwrap();
    common::python::run(&mut common::python::script(&python, "arch_models.py", [folder].into_iter().chain(names)));
    let backbones = names.map(|name| (name.replace('_', "-"), models.path().join(name)));
    let configs: Vec<Config> = backbones.iter().map(|(_, folder)| Config::read(folder).unwrap()).collect();
    let known: BTreeSet<&str> = ARCHITECTURES.iter().map(|architecture| architecture.model_type).collect();
    assert_eq!(configs.iter().map(|config| config.architecture.model_type).collect::<BTreeSet<_>>(), known);
    // Use a ridge for ReplaceMe, as in `exports_with_every_recovery_match_transformers`. In Qwen3-MoE, the layer
    // before the cut at layer 2 has experts.
    let world = random_world(
        &backbones,
        "criterion: {name: explicit, layers: [2]}\ndepth: 1\n\
         recovery: [none, prune-and-comp, {name: prune-and-comp, granularity: scalar}, {name: replaceme-ls, alpha: 10}, \
         {name: replaceme-cos, epochs: 1}, linearpatch-diag, linearpatch-rotate, ghosted, affine, \
         mean, {name: rank, rank: 8}, sequential, {name: ghosted, input: normed}, \
         {name: ghosted, input: normed, bias: true}]\n\
         calibration: {corpus: train, sequences: 16, length: 64}\n\
         include:\n  - {criterion: {name: explicit, layers: [0]}, depth: 1, recovery: [none]}\n\
         \x20 - {criterion: {name: explicit, layers: [1]}, depth: 1, recovery: [none, {name: replaceme-ls, alpha: 10}]}\n\
         \x20 - {criterion: llm-drop, depth: [{attention: 2}, {mlp: 1}], recovery: none}\n\
         \x20 - {backbone: [gemma2, phi3-longrope], criterion: llm-drop, depth: {attention: 2}, recovery: nbl}\n\
         \x20 - {backbone: [gemma2, phi3-longrope, qwen3-moe-mixed], criterion: nbl, depth: {mlp: 1}, \
         recovery: {name: nbl, input: normed}}\n\
         \x20 - {backbone: phi3-longrope, criterion: {name: explicit, layers: [1]}, depth: 1, recovery: merge}\n",
    );
    let (cells, with_code) = compare_random(&python, &world);
    assert_eq!(cells, 19 * names.len() + 6);
    // The nine recoveries with operators on the residual stream need code, and so do the two sublayer cuts and the five
    // cuts with replaced sublayers. If an MLP ends with a norm, the scaling and the three maps of ReplaceMe need code,
    // too.
    let behind_norms = configs.iter().filter(|config| config.ends_in_norm(Sublayer::Mlp)).count();
    assert_eq!(with_code, (9 + 2) * names.len() + 5 + 4 * behind_norms);
}

#[test]
fn lm_eval_scores_of_an_export_match_ghostlab() {
    let Some(python) = python() else { return };
    let names = ["arc_easy", "copa", "hellaswag", "winogrande"];
    let tasks = names
        .map(|task| format!("  {task}: {{path: {}}}\n", bundled_path(&format!("tasks/{task}.jsonl.gz")).display()));
    let used = names.map(|task| format!("{{name: {task}, limit: 50}}")).join(", ");
    let world = create_world(&format!(
        "tasks:\n{}backbone: llama\ncriterion: llm-streamline\ndepth: 4\nrecovery: [none, ghosted]\n\
         calibration: {{corpus: train, sequences: 4, length: 64}}\nevaluate: {{tasks: [{used}]}}\n",
        tasks.concat()
    ));
    run_ghostlab(&world, &["run", "grid.yaml"]);
    run_ghostlab(&world, &["export", "grid.yaml", "--to", "out", "--dtype", "f32"]);
    let cells: BTreeMap<String, String> = std::fs::read_dir(world.path().join("out"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let cell = json(&entry.path().join("ghostlab.json"))["cell"].as_str().unwrap().to_owned();
            (cell, entry.path().display().to_string())
        })
        .collect();
    assert_eq!(cells.len(), 2);
    let out = world.path().join("scores.json");
    let tasks = bundled_path("tasks");
    let arguments =
        ["lm-eval", out.to_str().unwrap(), tasks.to_str().unwrap(), "50", &names.join(",")].map(str::to_owned);
    let arguments: Vec<String> = arguments.into_iter().chain(cells.values().cloned()).collect();
    run_script(&python, &arguments.iter().map(String::as_str).collect::<Vec<_>>());

    let theirs = json(&out);
    let mut compared = 0;
    for file in std::fs::read_dir(world.path().join("results/grid/lm_eval")).unwrap() {
        let ours = json(&file.unwrap().path());
        let cell = ours["config"]["model_args"].as_str().unwrap();
        let Some(folder) = cells.get(cell) else { continue };
        let folder = Path::new(folder).file_name().unwrap().to_str().unwrap();
        for task in names {
            let ours = ours["results"][task].as_object().unwrap();
            let theirs = &theirs[folder][task];
            for (metric, value) in ours.iter().filter(|(metric, _)| metric.ends_with(",none")) {
                assert_eq!(format_percent(value), format_percent(&theirs[metric]), "{cell}, {task}, {metric}");
                compared += 1;
            }
        }
    }
    // There are two cells. Two tasks have two metrics each and two have one, and each metric comes with its standard
    // error.
    assert_eq!(compared, 2 * (2 * 2 + 2) * 2);
}

/// Formats a fraction as a percentage with two decimals, as in the results tables.
fn format_percent(value: &serde_json::Value) -> String {
    format!("{:.2}", 100.0 * value.as_f64().unwrap())
}

/// Uses problem sizes that are too small for meaningful timings, and only checks results. Each part of the benchmark
/// fails if the programs' results differ.
#[test]
fn peer_benchmark_runs_and_its_results_agree() {
    let Some(python) = python() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ghostlab = Path::new(env!("CARGO_BIN_EXE_ghostlab"));
    let driver = ghostlab.with_file_name("examples").join("peers");
    if !driver.exists() {
        assert!(std::env::var_os("CI").is_none(), "{} is not built", driver.display());
        eprintln!("skipped: {} is not built (cargo build --release --example peers)", driver.display());
        return;
    }
    let output = Command::new(&python)
        .args([root.join("tools/peers"), "--quick".into(), "--ghostlab".into(), ghostlab.into()])
        .args([Path::new("--driver"), &driver])
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    for part in ["forward", "wide", "generate", "choices", "grid", "solve", "table2", "late"] {
        assert!(stdout.lines().any(|line| line.starts_with(&format!("| {part} |"))), "{part}: {stdout}");
    }
    // If llama.cpp is unavailable, the report says that its part was skipped.
    assert!(stdout.contains("| llamacpp |") || stdout.contains("llamacpp: skipped: "), "{stdout}");
    let differ = "import sys; sys.path.insert(0, sys.argv[1]); from bench import difference; difference('x', [1.0], [1.1], 0.05)";
    let output = Command::new(&python).args(["-c", differ]).arg(root.join("tools/peers")).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("x, number 0: ours 1.0, theirs 1.1: more than 0.05 apart")
    );
}
