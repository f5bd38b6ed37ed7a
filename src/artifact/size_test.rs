//! Tests the size of the results folder for the paper's largest table.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::page::{self, Page};
use super::page_part::{PagePart, build_table_page_part};
use super::{Artifact, ResultsFolder, TableShape, write_run};
use crate::evaluate::perplexity::Losses;
use crate::grid::{Cell, Description, Grid, GridFile};
use crate::machine;
use crate::pipeline::exec::{CellResult, EvalResult, GridOutcome, TaskScores, UsedObject};
use crate::pipeline::identity::MeasureId;
use crate::pipeline::outcome::{TaskExtent, TextExtent};
use crate::pipeline::stage::boundary_result::BoundaryResult;
use crate::results::{RunCommand, RunDescription};
use crate::tasks::{Score, ScoredTask, Solutions};

const CELLS: usize = 129;
const CHANNELS: usize = 4096;
/// Number of documents per task. It does not affect the measured sizes.
const DOCUMENTS: usize = 10;
const TASKS: [&str; 9] =
    ["arc_easy", "arc_challenge", "hellaswag", "winogrande", "boolq", "openbookqa", "rte", "copa", "race"];

/// Builds a grid that evaluates two texts and nine tasks.
fn grid(root: &Path) -> Grid {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let data = checkout.join("data/tiny/tasks");
    let tasks: String =
        TASKS.iter().map(|name| format!("  {name}: {{path: {}/{name}.jsonl.gz}}\n", data.display())).collect();
    fs::write(root.join("text.jsonl"), "{\"text\": \"a b\"}\n").unwrap();
    let fixture = checkout.join("tests/fixtures/arch/llama-gqa");
    let backbone = root.join("llama-gqa");
    fs::create_dir(&backbone).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(name), backbone.join(name)).unwrap();
    }
    fs::write(backbone.join("tokenizer.json"), "{}").unwrap();
    let text = format!(
        "backbones:\n  llama: {{path: {}}}\ncorpora:\n  c4: {{path: text.jsonl, rule: c4}}\n  wikitext2: {{path: \
         text.jsonl, rule: wikitext2}}\ntasks:\n{tasks}backbone: llama\ncriterion: llm-streamline\ndepth: [1]\nrecovery: \
         [ghosted]\ncalibration: {{corpus: c4, sequences: 8, length: 64}}\nevaluate:\n  perplexity: [{{corpus: c4, \
         length: 2048}}, {{corpus: wikitext2, length: 2048}}]\n  tasks: [{}]\n",
        backbone.display(),
        TASKS.join(", ")
    );
    fs::write(root.join("large.yaml"), text).unwrap();
    Grid::load(&root.join("large.yaml"), None, &[]).unwrap()
}

/// Returns a number that can only be stored with full precision.
fn number(at: usize) -> f64 {
    (at as f64 + 2.0).sqrt()
}

fn boundary(cell: usize) -> BoundaryResult {
    let errors: Vec<f64> = (0..CHANNELS).map(|channel| number(cell * CHANNELS + channel)).collect();
    serde_json::from_value(serde_json::json!({
        "region": [1, 2], "operator": "0123456789abcdef".repeat(4), "placed": "stream", "notes": [], "rank": CHANNELS,
        "condition": number(cell), "losses": [], "solve_seconds": number(cell), "boundary_mae": number(cell),
        "boundary_mae_by_channel": errors, "relative_residual": number(cell), "delta_norm": number(cell),
        "m_norm": number(cell), "m_symmetric_norm": number(cell), "m_antisymmetric_norm": number(cell)
    }))
    .unwrap()
}

fn build_solutions(name: &str) -> Arc<Solutions> {
    let choices: Vec<[usize; 4]> = (0..3).map(|at| [at % 90, at % 90, at % 20, 0]).collect();
    let documents: Vec<_> =
        (0..DOCUMENTS).map(|id| serde_json::json!({"id": id, "gold": 1, "choices": choices})).collect();
    let key = serde_json::json!({"task": name, "original": DOCUMENTS, "documents": documents});
    Arc::new(serde_json::from_value(key).unwrap())
}

fn scores(key: &Arc<Solutions>, cell: usize) -> TaskScores {
    let scores = (0..key.requests())
        .map(|at| Score { log_likelihood: -number(cell + at), greedy: at.is_multiple_of(3) })
        .collect();
    TaskScores::builtin(key.task.name.to_owned(), ScoredTask::new(key, scores).unwrap())
}

fn eval_result<A, E, S>(requested: A, extent: E, sample: S) -> EvalResult<A, E, S> {
    EvalResult { requested, measure: MeasureId::Boundary.into(), extent: Some(extent), sample: Some(sample) }
}

fn losses(cell: usize) -> Losses {
    Losses { windows: (0..256).map(|window| number(cell + window)).collect() }
}

/// Builds an outcome by repeating the last cell of the grid with different seeds.
fn outcome(grid: &Grid) -> GridOutcome {
    let inputs: BTreeMap<String, String> =
        (0..25).map(|at| (format!("models/llama/file-{at}.safetensors"), "0123456789abcdef".repeat(4))).collect();
    let signature = machine::provenance();
    let keys = TASKS.map(build_solutions);
    let windows = TextExtent { windows: 256, all: 256, bytes: 1 << 20 };
    let extent = TaskExtent { documents: DOCUMENTS, original: DOCUMENTS };
    GridOutcome {
        cells: (0..CELLS)
            .map(|at: usize| {
                let mut cell: Cell = grid.cells.last().unwrap().clone();
                cell.calibration.as_mut().unwrap().seed = at as u64;
                let kinds = ["selection", "operator"].into_iter().chain([&"scores"; 11].map(|kind| *kind));
                let key = "0123456789abcdef".repeat(4);
                CellResult {
                    removed: crate::model::Cut::layers(1..10),
                    scores: (0..24).map(|layer| (layer, number(layer))).collect(),
                    boundaries: vec![boundary(at)],
                    texts: grid
                        .evaluate
                        .perplexity
                        .iter()
                        .map(|text| eval_result(text.clone(), windows, losses(at)))
                        .collect(),
                    tasks: grid
                        .evaluate
                        .tasks
                        .iter()
                        .zip(&keys)
                        .map(|(used, key)| eval_result(used.clone(), extent, scores(key, at)))
                        .collect(),
                    made_from: kinds
                        .map(|kind| UsedObject { kind, key: key.clone(), seconds: number(at), made: signature.clone() })
                        .collect(),
                    inputs: inputs.keys().cloned().collect(),
                    ..CellResult::unmeasured(cell, 32, None)
                }
            })
            .collect(),
        inputs: inputs.clone(),
        engines: BTreeMap::new(),
        rounded: BTreeMap::new(),
        machine: String::new(),
    }
}

#[test]
fn record_and_page_of_a_large_run_are_small() {
    let root = tempfile::tempdir().unwrap();
    let grid = grid(root.path());
    let outcome = outcome(&grid);
    let description = RunDescription {
        name: "large".into(),
        profile: None,
        by: RunCommand::Run,
        overrides: Vec::new(),
        engines: BTreeMap::new(),
        differs: Vec::new(),
    };
    let target = ResultsFolder::new(root.path(), description);
    write_run(&grid, &outcome, &target, SystemTime::now(), &TableShape::Long, None, None).unwrap();

    let description: Description = serde_json::from_value(serde_json::json!({"title": "Large"})).unwrap();
    let artifact = Artifact { name: "large".into(), file: GridFile::read(&grid.file).unwrap(), description };
    let PagePart { artifact, cells } = build_table_page_part(&artifact, "", &outcome, None, Vec::new());
    let page = page::render(&Page { artifacts: vec![artifact], cells, ..Page::default() }).unwrap().len();
    assert!(file_size(&target, "run.json") < 25_000 * CELLS, "{}", file_size(&target, "run.json"));
    assert!(page < 10_000 * CELLS, "{page}");
    // Each value is stored with full precision but little metadata.
    assert!(
        file_size(&target, "channels.parquet") < 10 * CELLS * CHANNELS,
        "{}",
        file_size(&target, "channels.parquet")
    );
}

fn file_size(target: &ResultsFolder, name: &str) -> usize {
    fs::metadata(target.path().join(name)).unwrap().len() as usize
}
