//! Test executors that compute nothing, and an artifact to run them on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Artifact, ArtifactOutcome, Executor, GateMode, ResultsFolder, make};
use crate::error::Result;
use crate::evaluate::perplexity::Losses;
use crate::grid::{Cell, Grid, Latency};
use crate::latency::{LatencyResult, RoundTimes};
use crate::model::EngineRequest;
use crate::pipeline::exec::{CellResult, EvalResult, GridOutcome};
use crate::pipeline::identity::MeasureId;
use crate::pipeline::outcome::TextExtent;
use crate::results::{RunCommand, RunDescription};

/// Executor that gives every cell a perplexity of 9 and the same prompt timings.
pub(super) struct FixedTimes(pub(super) &'static [f64]);

impl Executor for FixedTimes {
    fn run(&self, grid: &Grid, results: &Path) -> Result<GridOutcome> {
        let mut outcome = FakeExecutor::new(|_| Some(9.0)).run(grid, results)?;
        let times = Some(self.0.to_vec());
        for cell in &mut outcome.cells {
            cell.prompts = grid
                .evaluate
                .latency
                .iter()
                .map(|prompt: &Latency| EvalResult {
                    requested: *prompt,
                    measure: MeasureId::Boundary.into(),
                    extent: None,
                    sample: Some(LatencyResult {
                        prefill: RoundTimes { times: times.clone(), by_channel: None, dense: times.clone(), first: 0 },
                        sessions: 1,
                        weight_bytes: 300,
                        intermediate_bytes: Some(100),
                        dense_bytes: Some(500),
                        decode: None,
                    }),
                })
                .collect();
        }
        Ok(outcome)
    }
}

/// Executor that returns a given perplexity for each cell and records the number of cells of each run.
pub(super) struct FakeExecutor {
    pub(super) perplexity: fn(&Cell) -> Option<f64>,
    pub(super) cell_counts: RefCell<Vec<usize>>,
}

impl FakeExecutor {
    pub(super) fn new(perplexity: fn(&Cell) -> Option<f64>) -> Self {
        Self { perplexity, cell_counts: RefCell::default() }
    }
}

impl Executor for FakeExecutor {
    fn run(&self, grid: &Grid, _: &Path) -> Result<GridOutcome> {
        self.cell_counts.borrow_mut().push(grid.cells.len());
        let cells = grid
            .cells
            .iter()
            .map(|cell| {
                let perplexity = (self.perplexity)(cell);
                let failure = perplexity.is_none().then(|| "out of luck".to_owned());
                let layers = grid.backbones[&cell.backbone].layers;
                let unmeasured = CellResult::unmeasured(cell.clone(), layers, failure);
                let sample = perplexity.map(|perplexity| Losses { windows: vec![perplexity.ln()] });
                CellResult {
                    texts: grid
                        .evaluate
                        .perplexity
                        .iter()
                        .map(|perplexity| EvalResult {
                            requested: perplexity.clone(),
                            measure: MeasureId::Boundary.into(),
                            extent: Some(TextExtent { windows: 256, all: 256, bytes: 1 << 20 }),
                            sample: sample.clone(),
                        })
                        .collect(),
                    ..unmeasured
                }
            })
            .collect();
        Ok(GridOutcome {
            cells,
            inputs: inputs(),
            engines: BTreeMap::new(),
            rounded: BTreeMap::new(),
            machine: String::new(),
        })
    }
}

pub(super) fn inputs() -> BTreeMap<String, String> {
    [("a".to_owned(), "ff".to_owned())].into()
}

/// Copies a fixture and adds the tokenizer file that a backbone requires.
fn copy_backbone(root: &Path) -> PathBuf {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/arch/llama-gqa");
    let folder = root.join("llama-gqa");
    fs::create_dir(&folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(name), folder.join(name)).unwrap();
    }
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    folder
}

pub(super) struct Bench {
    pub(super) root: TempDir,
    pub(super) artifact: Artifact,
}

impl Bench {
    /// Creates an artifact with a table of perplexities on `c4`. The data for its tasks does not exist.
    pub(super) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let backbone = copy_backbone(root.path());
        fs::write(root.path().join("text.jsonl"), "{\"text\": \"a b\"}\n").unwrap();
        let file = root.path().join("table3.yaml");
        let text = format!(
            "artifact:\n  title: Perplexity\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
             - {{criterion: llm-streamline, recovery: [none, ghosted]}}\n    metrics: [ppl_c4]\n\
             backbones:\n  llama-3-8b: {{path: {}}}\ncorpora:\n  c4: {{path: text.jsonl, rule: c4-stream}}\n\
             \x20 other: {{path: nowhere.jsonl, rule: c4}}\ntasks:\n  rte: {{path: nowhere}}\nbackbone: llama-3-8b\n\
             criterion: llm-streamline\ndepth: [1, 2]\nrecovery: [none, ghosted]\n\
             calibration: {{corpus: c4, sequences: 8, length: 64}}\n\
             evaluate:\n  perplexity: [{{corpus: other, length: 64}}, {{corpus: c4, length: 2048}}]\n  tasks: [rte]\n",
            backbone.display()
        );
        fs::write(&file, text).unwrap();
        let artifact = Artifact::read(&file).unwrap().unwrap();
        Self { root, artifact }
    }

    /// Creates an artifact with a table that aggregates over calibration seeds.
    pub(super) fn over_seeds() -> Self {
        let bench = Self::new();
        let text = fs::read_to_string(bench.artifact.file.path()).unwrap();
        let text = text.replace("metrics: [ppl_c4]", "metrics: [ppl_c4]\n    over: seed\n    order_of: table3");
        fs::write(
            bench.artifact.file.path(),
            text.replace("length: 64}\nevaluate", "length: 64, seed: [0, 1, 2]}\nevaluate"),
        )
        .unwrap();
        let artifact = Artifact::read(bench.artifact.file.path()).unwrap().unwrap();
        Self { artifact, ..bench }
    }

    /// Creates an artifact with a table of prefill times and speedups.
    pub(super) fn timed() -> Self {
        let bench = Self::new();
        let text = fs::read_to_string(bench.artifact.file.path()).unwrap();
        let text = text.replace("metrics: [ppl_c4]", "metrics: [prefill_ms, speedup]");
        fs::write(bench.artifact.file.path(), text.replace("  tasks: [rte]", "  latency: {length: 8, batch: 1}"))
            .unwrap();
        let artifact = Artifact::read(bench.artifact.file.path()).unwrap().unwrap();
        Self { artifact, ..bench }
    }

    pub(super) fn grid(&self, overrides: &[String]) -> Grid {
        self.artifact.grid(None, overrides).unwrap()
    }

    pub(super) fn target(&self, overrides: &[String]) -> ResultsFolder {
        let grid = self.grid(overrides);
        let request = EngineRequest::default();
        let description =
            RunDescription::new(&grid, &self.artifact.name, RunCommand::Reproduce, true, overrides, request);
        ResultsFolder::new(&self.root.path().join("results"), description.unwrap())
    }

    pub(super) fn make(
        &self,
        overrides: &[&str],
        gated: bool,
        executor: &dyn Executor,
    ) -> (Result<ArtifactOutcome>, PathBuf) {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let target = self.target(&overrides);
        let grid = self.grid(&overrides);
        let dense = self.artifact.gate(&grid, None, &overrides).unwrap();
        let gated = if gated { GateMode::Yes(dense.map(Box::new)) } else { GateMode::No };
        let outcome = make(&self.artifact, &grid, &gated, &target, executor);
        (outcome, target.path().to_owned())
    }
}

pub(super) fn read_csv(folder: &Path) -> String {
    fs::read_to_string(folder.join("table3.csv")).unwrap()
}
