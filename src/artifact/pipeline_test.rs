//! The pipeline on an executor that computes nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::sheet::PageSheet;
use super::{Artifact, Executor, Gated, Made, ResultsFolder, make};
use crate::error::{Error, Result};
use crate::exec::{CellResult, GridOutcome, TextProtocol};
use crate::grid::{Cell, Grid};
use crate::results::StoredResults;

/// Gives each cell the perplexity that it is told to, and remembers which cells it was asked for.
struct Fake {
    perplexity: fn(&Cell) -> Option<f64>,
    asked: RefCell<Vec<usize>>,
}

impl Fake {
    fn new(perplexity: fn(&Cell) -> Option<f64>) -> Self {
        Self { perplexity, asked: RefCell::default() }
    }
}

impl Executor for Fake {
    fn run(&self, grid: &Grid, _: &Path) -> Result<GridOutcome> {
        self.asked.borrow_mut().push(grid.cells.len());
        let result = |cell: &Cell| {
            let perplexity = (self.perplexity)(cell);
            let failure = perplexity.is_none().then(|| "out of luck".to_owned());
            let layers = grid.backbones[&cell.backbone].layers;
            let unmeasured = CellResult::unmeasured(cell.clone(), layers, failure);
            CellResult { perplexity: vec![perplexity], losses: vec![None], ..unmeasured }
        };
        let cells = grid.cells.iter().map(result).collect();
        let read = grid
            .evaluate
            .perplexity
            .iter()
            .map(|_| Some(TextProtocol { windows: 256, all: 256, bytes: 1 << 20 }))
            .collect();
        let texts = BTreeMap::from([("llama-3-8b".to_owned(), read)]);
        Ok(GridOutcome { cells, inputs: inputs(), texts, tasks: Vec::new(), engines: BTreeMap::new() })
    }
}

fn inputs() -> BTreeMap<String, String> {
    [("a".to_owned(), "ff".to_owned())].into()
}

struct Bench {
    root: TempDir,
    artifact: Artifact,
}

impl Bench {
    /// A table of perplexities on `c4` of a backbone that the paper has too. Its tasks' data are not there.
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let backbone = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/arch/llama-gqa");
        fs::write(root.path().join("text.jsonl"), "{\"text\": \"a b\"}\n").unwrap();
        let file = root.path().join("table3.yaml");
        let text = format!(
            "artifact:\n  title: Perplexity\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
             - {{criterion: llm-streamline, recovery: [none, ghosted]}}\n    metrics: [ppl_c4]\n\
             backbones:\n  llama-3-8b: {{path: {}}}\ncorpora:\n  c4: {{path: text.jsonl, rule: c4}}\n\
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

    fn grid(&self, overrides: &[String]) -> Grid {
        self.artifact.grid(None, overrides).unwrap()
    }

    fn target(&self, overrides: &[String]) -> ResultsFolder {
        ResultsFolder::new(&self.root.path().join("results"), &self.artifact.name, None, overrides)
    }

    fn make(&self, overrides: &[&str], gated: bool, executor: &dyn Executor) -> (Result<Made>, PathBuf) {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let (target, grid) = (self.target(&overrides), self.grid(&overrides));
        let dense = self.artifact.gate(&grid, None, &overrides).unwrap();
        let gated = if gated { Gated::Yes(dense.map(Box::new)) } else { Gated::No };
        let made = make(&self.artifact, &grid, &gated, &target, executor);
        (made, target.path().to_owned())
    }
}

fn csv(folder: &Path) -> String {
    fs::read_to_string(folder.join("table3.csv")).unwrap()
}

#[test]
fn what_an_artifact_does_not_show_is_not_run_and_its_data_need_not_be_there() {
    let bench = Bench::new();
    let grid = bench.grid(&[]);
    let corpora: Vec<&str> = grid.evaluate.perplexity.iter().map(|text| text.corpus.as_str()).collect();
    assert_eq!((corpora, grid.evaluate.tasks.len(), grid.tasks.len()), (vec!["c4"], 0, 0));
    assert_eq!(grid.corpora.keys().collect::<Vec<_>>(), ["c4"]);
    let error = Grid::load(&bench.artifact.file, None, &[], &crate::exec::Methods).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "`run` needs all of them: {error}");
}

#[test]
fn a_dense_backbone_like_the_papers_is_pruned_and_another_is_not() {
    let bench = Bench::new();
    // The paper has 6.71 for the dense LLaMA-3-8B on C4, as `data/paper/table3.csv` says.
    let good = Fake::new(|cell| Some(if cell.is_dense() { 6.7 } else { 20.0 }));
    let (made, folder) = bench.make(&[], true, &good);
    let made = made.unwrap();
    assert_eq!((*good.asked.borrow()).as_slice(), [1, 5], "the dense cell first, then all");
    assert!(made.misses.is_empty() && made.failed == 0 && !csv(&folder).contains("failed"));

    let bad = Fake::new(|_| Some(50.0));
    let (made, folder) = bench.make(&[], true, &bad);
    let made = made.unwrap();
    assert_eq!((*bad.asked.borrow()).as_slice(), [1, 1], "what is pruned from it is not run");
    assert_eq!((made.misses.len(), made.failed, made.failures.len()), (1, 4, 0));
    assert_eq!(csv(&folder).matches("failed: stopped by the gate").count(), 4);

    let again = Fake::new(|_| Some(50.0));
    let (made, _) = bench.make(&[], false, &again);
    assert_eq!(((*again.asked.borrow()).as_slice(), made.unwrap().failed), (&[5][..], 0));
}

#[test]
fn the_numbers_say_which_files_made_them_and_whether_there_was_a_gate() {
    let bench = Bench::new();
    for gated in [true, false] {
        let (_, folder) = bench.make(&[], gated, &Fake::new(|_| Some(30.0)));
        let stored = StoredResults::read(&folder).unwrap();
        assert_eq!((stored.gate, stored.inputs), (gated, inputs()));
    }
}

#[test]
fn a_cell_that_fails_is_told_with_its_reason_and_the_others_stand() {
    let bench = Bench::new();
    let fake = Fake::new(|cell| (cell.depth != 2).then_some(30.0));
    let (made, folder) = bench.make(&[], false, &fake);
    let made = made.unwrap();
    assert_eq!(made.failed, 2);
    let (cell, reason) = &made.failures[0];
    assert!(cell.contains("llm-streamline/2/none") && reason == "out of luck", "{cell}: {reason}");
    assert_eq!(csv(&folder).matches("failed: out of luck").count(), 2);
    // Everything that was written is said, and is there.
    assert!(made.files.iter().all(|file| file.is_file()), "{:?}", made.files);
    let names: Vec<String> =
        made.files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect();
    for name in ["table3.csv", "table3.parquet", "table3.md", "table3.tex", "numbers.json", "run.json"] {
        assert!(names.iter().any(|known| known == name), "{name} is not among {names:?}");
    }
}

#[test]
fn other_settings_have_a_folder_of_their_own_and_are_not_for_the_page() {
    let bench = Bench::new();
    let fake = Fake::new(|_| Some(30.0));
    let (_, plain) = bench.make(&[], false, &fake);
    let before = csv(&plain);
    let (made, own) = bench.make(&["depth=2"], false, &fake);
    made.unwrap();
    assert_ne!(plain, own);
    assert_eq!(csv(&plain), before);
    assert_eq!(csv(&own).lines().count(), 1 + 3);
    assert!(plain.join(PageSheet::FILE).exists() && !own.join(PageSheet::FILE).exists());
}

#[test]
fn a_run_that_is_stopped_leaves_the_results_that_were_there() {
    struct Stopped;
    impl Executor for Stopped {
        fn run(&self, _: &Grid, _: &Path) -> Result<GridOutcome> {
            Err(Error::interrupted("stopped"))
        }
    }
    let bench = Bench::new();
    let (_, folder) = bench.make(&[], false, &Fake::new(|_| Some(30.0)));
    let before = csv(&folder);
    assert_eq!(bench.make(&[], false, &Stopped).0.unwrap_err().exit_code(), 130);
    assert_eq!(csv(&folder), before);
    assert_eq!(fs::read_dir(folder.parent().unwrap()).unwrap().count(), 1);
}
