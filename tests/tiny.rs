//! The backbones that come with the project: what they are, and that they are as good as the tiny profile needs.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use candle_core::DType;
use common::{fixture, flat, json, tensors};
use ghostlab::exec::{self, CellResult, Event, Methods, Outcome, Reporter, Settings};
use ghostlab::grid::Grid;
use ghostlab::model::{Batch, Config, Decoder, Model, Step};
use ghostlab::significance::binomial_above_chance;
use ghostlab::store::Store;

const BACKBONES: [&str; 3] = ["llama", "qwen3", "olmo2"];
/// Two answers, or four.
const CHANCE: [(&str, f64); 9] = [
    ("arc_easy", 0.25),
    ("arc_challenge", 0.25),
    ("hellaswag", 0.25),
    ("winogrande", 0.5),
    ("boolq", 0.5),
    ("openbookqa", 0.25),
    ("rte", 0.5),
    ("copa", 0.5),
    ("race", 0.25),
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny").join(name)
}

struct Silent;

impl Reporter for Silent {
    fn event(&self, _: Event) {}
}

/// What the tiny grid comes to, in a store of its own: all of its cells, run once for all tests.
fn outcome() -> &'static Outcome {
    static OUTCOME: OnceLock<Outcome> = OnceLock::new();
    OUTCOME.get_or_init(|| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/tiny.yaml");
        let grid = Grid::load(&file, None, &[], &Methods).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        exec::run(&grid, Settings::default(), &store, &Silent, &AtomicBool::new(false)).unwrap()
    })
}

/// The mean of the grid's perplexities and that of its accuracies in percent, of the pruned cell with this recovery.
fn averages(backbone: &str, depth: usize, recovery: &str) -> (f64, f64) {
    let found = |of: &&CellResult| {
        let cell = &of.cell;
        let own = cell.recovery.as_ref().map_or("dense", |method| method.name.as_str());
        cell.backbone == format!("tiny-{backbone}") && cell.depth == depth && own == recovery
    };
    let result = outcome().cells.iter().find(found).unwrap().ok().unwrap();
    let perplexities: Vec<f64> = result.perplexity.iter().map(|value| value.unwrap()).collect();
    let accuracies: Vec<f64> =
        result.tasks.iter().map(|scores| 100.0 * scores.as_ref().unwrap().result.column().value).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    (mean(&perplexities), mean(&accuracies))
}

#[test]
fn their_logits_are_those_of_transformers() {
    // Made by tools/tiny_logits.py, which says how; its versions stand in the file's header.
    let expected = tensors(&fixture("tiny/logits.safetensors"));
    for name in BACKBONES {
        let of = |part: &str| expected[&format!("{name}.{part}")].clone();
        let ids: Vec<u32> = of("ids").to_dtype(DType::U32).unwrap().to_vec1().unwrap();
        let positions: Vec<u32> = of("positions").to_dtype(DType::U32).unwrap().to_vec1().unwrap();
        let config = Config::read_file(&folder(name).join("config.json")).unwrap();
        let decoder = Decoder::load_with(config, &folder(name)).unwrap();
        let batch = Batch::windows([ids.as_slice()]);
        let mut x = decoder.begin(&batch).unwrap();
        for layer in 0..decoder.config().layers {
            x = decoder.advance(&batch, &Step::Attention(layer), &x).unwrap();
            x = decoder.advance(&batch, &Step::Mlp(layer), &x).unwrap();
        }
        let rows: Vec<usize> = positions.iter().map(|&at| at as usize).collect();
        let ours = flat(&decoder.logits(&x, &rows).unwrap());
        let worst = ours.iter().zip(flat(&of("logits"))).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst <= 1e-4, "{name}: {worst:e}");
    }
}

#[test]
fn dense_backbones_know_the_world() {
    let dense: Vec<&CellResult> = outcome().cells.iter().filter(|of| of.cell.is_dense()).collect();
    assert_eq!(dense.len(), BACKBONES.len());
    for cell in dense {
        cell.ok().unwrap();
        let name = cell.cell.backbone.trim_start_matches("tiny-");
        let mut above = 0.0;
        for (scores, (task, chance)) in cell.tasks.iter().flatten().zip(CHANCE) {
            assert_eq!(scores.result.task.name, task);
            let metric = scores.result.task.column;
            let right = scores.documents.iter().filter(|document| document.right(metric)).count();
            let p = binomial_above_chance(right as u64, scores.documents.len() as u64, chance);
            assert!(p < 0.01, "{name} on {task}: {right} of {}, p = {p:.3}", scores.documents.len());
            above += 100.0 * (scores.result.column().value - chance) / 9.0;
        }
        assert!(above >= 20.0, "{name} is {above:.1} points above chance on the nine-task average");
        // The unigram model's perplexity stands in the manifest, of the same registers' validation splits.
        let manifest = json(&folder(name).join("manifest.json"));
        let unigram = |register: &str| {
            let scores = manifest["validation"].as_array().unwrap();
            scores.iter().find(|of| of["register"] == register).unwrap()["unigram_perplexity"].as_f64().unwrap()
        };
        for (perplexity, register) in cell.perplexity.iter().zip(["wiki", "web", "news"]) {
            let perplexity = perplexity.unwrap();
            assert!(perplexity < unigram(register) / 10.0, "{name} on {register}: {perplexity}");
        }
    }
}

#[test]
fn pruning_hurts_and_repairs_order_as_in_the_paper() {
    const OTHERS: [&str; 6] =
        ["none", "prune-and-comp", "replaceme-ls", "replaceme-cos", "linearpatch-diag", "linearpatch-rotate"];
    // Paper tables 2 and 3: in perplexity Ghosted Layers before ReplaceMe before LinearPatch before no repair; in accuracy
    // Ghosted Layers before all others.
    let orderly = |backbone: &&str| {
        [4, 6].iter().all(|&depth| {
            let (dense, _) = averages(backbone, 0, "dense");
            let of = |recovery: &str| averages(backbone, depth, recovery).0;
            let (none, ghosted, least_squares) = (of("none"), of("ghosted"), of("replaceme-ls"));
            assert!(none > 1.1 * dense, "{backbone} without {depth} layers: {none} against {dense}");
            let patches = [of("linearpatch-diag"), of("linearpatch-rotate")];
            let accuracy = |recovery: &str| averages(backbone, depth, recovery).1;
            let best = OTHERS.iter().all(|other| accuracy(other) < accuracy("ghosted"));
            best && ghosted < least_squares && patches.iter().all(|&patch| least_squares < patch && patch < none)
        })
    };
    let shown: Vec<&str> = BACKBONES.into_iter().filter(orderly).collect();
    assert!(shown.len() >= 2, "only {shown:?}");
}
