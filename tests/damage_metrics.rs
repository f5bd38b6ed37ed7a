//! Compares damage metrics, such as the KL divergence, with a plain PyTorch reference (`shared/oracles/beyond`) on a
//! bundled backbone.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::path::{Path, PathBuf};

use crate::common::world::World;
use crate::common::{assert_close, checkout, json, shared, stored_numbers};
use ghostlab::grid::Grid;
use ghostlab::metric::{Metric, MetricSource, Unit};
use ghostlab::model::{EngineName, EngineRequest};
use ghostlab::pipeline::exec::{self, RunEnv, RunSettings};
use ghostlab::pipeline::stage;
use ghostlab::results::{ResultRow, collect};
use ghostlab::tasks::{Flip, Task};
use ghostlab_store::Store;
use serde_json::Value;

/// Relative tolerances for comparing an f32 engine with the reference.
const DAMAGE_TOLERANCE: f64 = 1e-5;
const PERPLEXITY_TOLERANCE: f64 = 2e-6;

/// Metric names, which are the same in the grid and in the reference. The prefix `second_half_` restricts a metric to
/// the second half of each window.
const DAMAGE_METRICS: [&str; 7] =
    ["kl_dense_variant", "kl_variant_dense", "same_top", "mean_dp", "mean_abs_dp", "rms_dp", "ppl_ratio"];

/// Backbone of the reference, with the cells and tasks to compare.
struct Setting {
    /// Name of the backbone in the reference.
    name: &'static str,
    backbone: PathBuf,
    /// Calibration text and evaluation text.
    corpora: [PathBuf; 2],
    /// Tasks, each with its number of documents and its file.
    tasks: Vec<(&'static str, usize, PathBuf)>,
    /// Criteria, depths and recoveries of the grid.
    axes: &'static str,
    /// Cell names, each with the name of the same pruned model in the reference.
    variants: &'static [(&'static str, &'static str)],
}

const TINY_AXES: &str = "\
criterion: {name: explicit, layers: [7, 8, 9, 10]}
depth: 4
recovery: {name: ghosted, input: normed, bias: true}
include:
  - {criterion: {name: explicit, layers: [3, 4, 5, 6, 7, 8]}, depth: 6, recovery: none}
  - {criterion: llm-drop, depth: {attention: 4}, recovery: none}
  - {criterion: nbl, depth: {attention: 4}, recovery: {name: nbl, input: normed}}
";
const TINY_VARIANTS: [(&str, &str); 4] = [
    ("b.explicit-4.ghosted", "cut:[7,11):normed-bias"),
    ("b.explicit-6.none", "cut:[3,9):none"),
    ("b.llm-drop-attention-4.none", "half:attn:4"),
    ("b.nbl-attention-4.nbl", "nbl:normed:stream:4"),
];

const REAL_AXES: &str = "\
criterion: {name: explicit, layers: [8, 9, 10, 11, 12]}
depth: 5
recovery: [none, {name: ghosted, input: normed, bias: true}]
include:
  - {criterion: llm-drop, depth: {attention: 4}, recovery: none}
";
const REAL_VARIANTS: [(&str, &str); 3] = [
    ("b.explicit-5.ghosted", "cut:[8,13):normed-bias"),
    ("b.explicit-5.none", "cut:[8,13):none"),
    ("b.llm-drop-attention-4.none", "half:attn:4"),
];

impl Setting {
    fn tiny(tasks: &[(&'static str, usize)]) -> Self {
        let data = checkout().canonicalize().unwrap().join("data/tiny");
        let tasks = tasks.iter().map(|&(task, limit)| (task, limit, data.join(format!("tasks/{task}.jsonl.gz"))));
        Self {
            name: "tiny-llama",
            backbone: data.join("llama"),
            corpora: ["train", "test"].map(|part| data.join(format!("corpora/wiki-{part}.jsonl.gz"))),
            tasks: tasks.collect(),
            axes: TINY_AXES,
            variants: &TINY_VARIANTS,
        }
    }

    /// Returns the setting for the larger trained backbone, or `None` if the shared folder is missing.
    fn real() -> Option<Self> {
        let data = shared("real")?.canonicalize().unwrap();
        Some(Self {
            name: "real",
            backbone: data.join("backbone"),
            corpora: ["validation", "test"].map(|part| data.join(format!("corpora/wikitext2-{part}.parquet"))),
            tasks: vec![
                ("arc_easy", 50, data.join("tasks/arc_easy.parquet")),
                ("copa", 100, data.join("tasks/copa.jsonl")),
            ],
            axes: REAL_AXES,
            variants: &REAL_VARIANTS,
        })
    }

    fn grid(&self, folder: &Path) -> Grid {
        // The grid reports `kl_dense_variant` and `same_top` even if it does not list them.
        let named = DAMAGE_METRICS.iter().filter(|name| !["kl_dense_variant", "same_top"].contains(name));
        let halves = DAMAGE_METRICS.iter().map(|name| format!("second_half_{name}"));
        let metrics: Vec<String> = named.map(|name| (*name).to_owned()).chain(halves).collect();
        let files = self.tasks.iter().map(|(task, _, file)| format!("  {task}: {{path: {}}}\n", file.display()));
        let uses = self.tasks.iter().map(|(task, limit, _)| format!("{{name: {task}, limit: {limit}}}"));
        let [train, test] = self.corpora.each_ref().map(|file| file.display());
        let text = format!(
            "backbones:\n  b: {{path: {}}}\ncorpora:\n\
             \x20 train: {{path: {train}, rule: wikitext2}}\n\
             \x20 test: {{path: {test}, rule: wikitext2, limit: 40}}\n\
             tasks:\n{}backbone: b\ncalibration: {{corpus: train, sequences: 16, length: 256}}\n{}\
             evaluate:\n  perplexity: [{{corpus: test, length: 256, damage: true}}]\n  tasks: [{}]\n\
             \x20 metrics: [{}, flips, right_to_wrong, wrong_to_right]\n",
            self.backbone.display(),
            files.collect::<String>(),
            self.axes,
            uses.collect::<Vec<_>>().join(", "),
            metrics.join(", ")
        );
        Grid::from_text(&text, &folder.join("grid.yaml")).unwrap()
    }

    /// Runs the grid on an engine and compares all damage metrics with the reference.
    fn compare(&self, engine: EngineName) {
        let Some(file) = shared("oracles/beyond/numbers.json") else { return };
        let reference = json(&file)[self.name].take();
        let folder = tempfile::tempdir().unwrap();
        let grid = self.grid(folder.path());
        let request = EngineRequest {
            engine: Some(engine),
            device: Some("cpu".parse().unwrap()),
            dtype: Some("f32".parse().unwrap()),
            kernels: None,
        };
        let settings = RunSettings::with_engine(request);
        let store = Store::open(&folder.path().join("store"), stage::STORE_WORDS).unwrap();
        let outcome = exec::run(&grid, RunEnv { settings, ..RunEnv::new(&store) }).unwrap();
        let results = collect(&grid, &outcome, &[]);
        let mut names: Vec<&str> = results.cells.iter().map(|cell| cell.cell.name.as_str()).collect();
        names.sort_unstable();
        for (cell, variant) in self.variants {
            let cell = results.cells.iter().find(|result| result.cell.name == *cell);
            let cell = cell.unwrap_or_else(|| panic!("no cell for {variant}: {names:?}"));
            assert_eq!(cell.failure, None, "{variant}");
            let mut compared = 0;
            for number in &cell.numbers {
                compared += usize::from(compare_number(number, variant, &reference));
            }
            assert_eq!(compared, 1 + 2 * DAMAGE_METRICS.len() + 4 * self.tasks.len(), "{variant}");
        }
    }
}

/// Compares a number with the reference. Returns whether the reference contains the number's metric.
fn compare_number(number: &ResultRow, variant: &str, reference: &Value) -> bool {
    let metric = &number.metric;
    let what = format!("{variant}, {}", metric.id);
    let found = number.record.value.unwrap_or(f64::NAN);
    match metric.source {
        MetricSource::Text(_) => {
            assert_close(&what, found, reference["variants"][variant]["ppl"].as_f64().unwrap(), PERPLEXITY_TOLERANCE);
        }
        MetricSource::Damage(..) => {
            let expected = &reference["variants"][variant];
            let expected = match metric.name.strip_prefix("second_half_") {
                Some(name) => &expected["second_half"][name],
                None => &expected[metric.name],
            };
            // The reference has second-half metrics for only some of the pruned models.
            if let Some(expected) = expected.as_f64() {
                assert_close(&what, found, expected, DAMAGE_TOLERANCE);
            }
            assert!(number.record.error.is_some_and(|error| error > 0.0), "{what}: {:?}", number.record.error);
        }
        MetricSource::Task | MetricSource::Flips(_) => {
            assert_eq!(metric.unit, Unit::Percent);
            let task = metric.task_name().unwrap();
            let paper_metric = Task::find(task).unwrap().paper_metric.name();
            let expected = &reference["flips"][task][variant][paper_metric];
            let key = match metric.source {
                MetricSource::Flips(Flip::Changed) => "flip_rate",
                MetricSource::Flips(Flip::RightToWrong) => "right_to_wrong",
                MetricSource::Flips(Flip::WrongToRight) => "wrong_to_right",
                _ => "accuracy",
            };
            let expected = 100.0 * expected[key].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-9, "{what}: {found} and {expected}");
        }
        _ => return false,
    }
    true
}

#[test]
fn grid_damage_metrics_match_the_reference() {
    let tasks = [("arc_easy", 100), ("hellaswag", 100), ("openbookqa", 60), ("copa", 60)];
    Setting::tiny(&tasks).compare(EngineName::Cpu);
}

#[test]
fn grid_damage_metrics_by_candle_match_the_reference() {
    Setting::tiny(&[("copa", 60)]).compare(EngineName::Candle);
}

#[test]
#[ignore = "slow: two tasks and three variants on the real backbone"]
fn damage_metrics_on_real_backbone_match_the_reference() {
    Setting::real().iter().for_each(|setting| setting.compare(EngineName::Cpu));
}

/// Grid with one cut, unrepaired and repaired, several damage metrics, and enough windows for a paired test.
const GRID: &str = "\
backbones: {tiny: {path: backbone}}
corpora:
  train: {path: train.txt, rule: wikitext2}
  long: {path: long.jsonl, rule: ptb, limit: 24}
tasks: {copa: {path: copa.jsonl}}
backbone: tiny
criterion: llm-streamline
depth: 2
recovery: [none, ghosted]
calibration: {corpus: train, sequences: 8, length: 64}
evaluate:
  perplexity: {corpus: long, length: 64, damage: true}
  tasks: [copa]
  metrics: [rms_dp, ppl_ratio, flips, wrong_to_right]
";

#[test]
fn damage_metrics_are_stored_per_item_cached_and_verified() {
    let world = World::large();
    world.write("grid.yaml", GRID);
    world.run_ok(&[]);
    let table = std::fs::read_to_string(world.path("results/grid/results.csv")).unwrap();
    for head in ["KL", "same top", "RMS Δp", "ppl ratio", "flips"] {
        assert!(table.contains(head), "no column {head}: {table}");
    }
    let numbers = json(&world.path("results/grid/numbers.json"));
    let columns = numbers["numbers"]["columns"].as_array().unwrap();
    for (metric, items) in [("kl_long", "losses"), ("rms_dp_long", "losses"), ("flips_copa", "right")] {
        let index = columns.iter().position(|column| column["metric"] == metric).unwrap();
        for cell in numbers["numbers"]["cells"].as_array().unwrap() {
            let value = cell["values"].as_array().unwrap().iter().find(|value| value["of"] == index).unwrap();
            assert!(!value[items].is_null() && value["error"].is_number(), "{metric}: {value}");
        }
    }
    let form = json(&world.path("results/grid/every_eval_ever/tiny.streamline-2.none.json"));
    let ratio =
        form["evaluation_results"].as_array().unwrap().iter().find(|score| {
            score["metric_config"]["metric_id"] == "ppl_ratio" && score["metric_config"]["min_score"] == 0.0
        });
    assert!(ratio.is_some(), "{form:#}");
    // All cells are cached, and `verify` does not need the store.
    let plan = world.ghostlab(&["plan", "grid.yaml", "--json"]);
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert_eq!(
        (&plan["answer"]["grids"][0]["cells_complete"], &plan["answer"]["grids"][0]["cells"]),
        (&Value::from(3), &Value::from(3)),
        "{plan:#}"
    );
    std::fs::remove_dir_all(world.path("data/store")).unwrap();
    std::fs::create_dir_all(world.path("data/store")).unwrap();
    let verified = world.ghostlab(&["verify", "results/grid", "--json", "--share", "100%"]);
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stdout));
}

/// Grid with a task of two choices and a generation task, both given by definitions.
const DEFINITION_GRID: &str = "\
backbones: {tiny: {path: backbone}}
corpora: {train: {path: train.txt, rule: wikitext2}}
backbone: tiny
criterion: llm-streamline
depth: 2
recovery: [none, ghosted]
calibration: {corpus: train, sequences: 8, length: 64}
evaluate:
  tasks: [{definition: defs/}]
  metrics: [flips, right_to_wrong, wrong_to_right]
";

const CHOICE_DEFINITION: &str = "output_type: multiple_choice\ndoc_to_choice: list\ndoc_to_target: label\n\
    metric_list: [{metric: acc}, {metric: acc_norm}, {metric: brier_score}]\n";

const GENERATION_DEFINITION: &str = "output_type: generate_until\ndoc_to_target: \"1\"\n\
    generation_kwargs: {until: [\"w7 \"], do_sample: false, max_gen_toks: 4}\n\
    filter_list:\n  - name: digit\n    filter: [{function: regex, regex_pattern: \"w([0-9])\"}, {function: take_first}]\n\
    metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n";

/// The accuracy changes by the fraction of answers that become right minus the fraction that become wrong. With two
/// choices, every changed answer becomes either right or wrong.
#[test]
fn answer_flips_account_for_score_changes() {
    let world = World::new();
    std::fs::create_dir(world.path("defs")).unwrap();
    let rows = (0..40).map(|i| {
        let text = format!("w{i} w{}", i * 7 % 299);
        format!("{}\n", serde_json::json!({"text": text, "label": i % 2, "list": ["w1", "w22"]}))
    });
    world.write("rows.jsonl", rows.collect::<String>());
    for (name, rest) in [("choice", CHOICE_DEFINITION), ("text", GENERATION_DEFINITION)] {
        let head = "dataset_path: json\ndataset_kwargs: {data_files: {test: ../rows.jsonl}}\ntest_split: test\n";
        world.write(&format!("defs/{name}.yaml"), format!("task: {name}\n{head}doc_to_text: \"{{{{text}}}}\"\n{rest}"));
    }
    world.write("grid.yaml", DEFINITION_GRID);
    world.run_ok(&[]);
    let numbers = stored_numbers(&json(&world.path("results/grid/numbers.json")));
    let value = |cell: &str, metric: &str| {
        let number = numbers.iter().find(|number| number["cell"] == cell && number["metric"] == metric);
        number.and_then(|number| number["value"].as_f64()).unwrap_or_else(|| panic!("no {metric} for {cell}"))
    };
    for variant in ["tiny.dense", "tiny.streamline-2.none", "tiny.streamline-2.ghosted"] {
        for (task, has_two_choices) in
            [("choice/acc,none", true), ("choice/acc_norm,none", true), ("text/exact_match,digit", false)]
        {
            let [flips, worse, better] =
                ["flips", "right_to_wrong", "wrong_to_right"].map(|name| value(variant, &format!("{name}_{task}")));
            let change = value(variant, task) - value("tiny.dense", task);
            assert!((better - worse - change).abs() < 1e-9, "{variant}, {task}: {change} from -{worse} and +{better}");
            let least = better + worse;
            let fits = if has_two_choices { (flips - least).abs() < 1e-9 } else { flips > least - 1e-9 };
            assert!(fits && (flips == 0.0 || variant != "tiny.dense"), "{variant}, {task}: {flips} and {least}");
        }
    }
    let changes = value("tiny.streamline-2.none", "flips_text/exact_match,digit");
    assert!(changes > 0.0, "the cut changes no generated answer");
    assert!(!numbers.iter().any(|number| number["metric"] == "flips_choice/brier_score,none"));
    let verified = world.ghostlab(&["verify", "results/grid", "--json", "--share", "100%"]);
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stdout));
}

#[test]
fn damage_metric_without_a_damage_text_is_rejected() {
    let world = World::large();
    world.write("grid.yaml", GRID.replace(", damage: true", ""));
    let output = world.ghostlab(&["plan", "grid.yaml"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("requires a text with `damage: true`"), "{message}");
    assert!(Metric::find("kl_long").is_ok());
}
