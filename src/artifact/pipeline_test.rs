//! Tests the pipeline with executors that compute nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use polars::prelude::{ParquetReader, SerReader};
use tempfile::TempDir;

use super::page_part::PagePart;
use super::{Artifact, ArtifactOutcome, Executor, Gated, ResultsFolder, make};
use crate::error::{Error, Result};
use crate::evaluate::perplexity::Losses;
use crate::grid::{Cell, Grid, Latency};
use crate::latency::LatencyResult;
use crate::model::EngineRequest;
use crate::pipeline::exec::{CellResult, GridOutcome, Measured};
use crate::pipeline::identity::MeasureId;
use crate::pipeline::outcome::TextExtent;
use crate::results::{By, RunDescription, StoredResults, settings};

/// Executor that gives every cell the same prompt timings and a perplexity of 9.
struct Timed(&'static [f64]);

impl Executor for Timed {
    fn run(&self, grid: &Grid, results: &Path) -> Result<GridOutcome> {
        let mut outcome = Fake::new(|_| Some(9.0)).run(grid, results)?;
        let times = Some(self.0.to_vec());
        for cell in &mut outcome.cells {
            cell.prompts = grid
                .evaluate
                .latency
                .iter()
                .map(|prompt: &Latency| Measured {
                    requested: *prompt,
                    measure: MeasureId::Boundary.into(),
                    extent: None,
                    sample: Some(LatencyResult {
                        times: times.clone(),
                        by_channel: None,
                        dense: times.clone(),
                        first: 0,
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

/// Executor that returns a given perplexity for each cell, and counts the requested cells.
struct Fake {
    perplexity: fn(&Cell) -> Option<f64>,
    cell_counts: RefCell<Vec<usize>>,
}

impl Fake {
    fn new(perplexity: fn(&Cell) -> Option<f64>) -> Self {
        Self { perplexity, cell_counts: RefCell::default() }
    }
}

impl Executor for Fake {
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
                        .map(|perplexity| Measured {
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

fn inputs() -> BTreeMap<String, String> {
    [("a".to_owned(), "ff".to_owned())].into()
}

/// Copies a fixture, and adds the required tokenizer file.
fn with_tokenizer(root: &Path) -> PathBuf {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/arch/llama-gqa");
    let folder = root.join("llama-gqa");
    fs::create_dir(&folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(name), folder.join(name)).unwrap();
    }
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    folder
}

struct Bench {
    root: TempDir,
    artifact: Artifact,
}

impl Bench {
    /// Creates a table of perplexities on `c4`. The data of its tasks does not exist.
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let backbone = with_tokenizer(root.path());
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

    /// Creates a table that aggregates calibration seeds.
    fn over_seeds() -> Self {
        let bench = Self::new();
        let text = fs::read_to_string(&bench.artifact.file).unwrap();
        let text = text.replace("metrics: [ppl_c4]", "metrics: [ppl_c4]\n    over: seed\n    order_of: table3");
        fs::write(
            &bench.artifact.file,
            text.replace("length: 64}\nevaluate", "length: 64, seed: [0, 1, 2]}\nevaluate"),
        )
        .unwrap();
        let artifact = Artifact::read(&bench.artifact.file).unwrap().unwrap();
        Self { artifact, ..bench }
    }

    fn timed() -> Self {
        let bench = Self::new();
        let text = fs::read_to_string(&bench.artifact.file).unwrap();
        let text = text.replace("metrics: [ppl_c4]", "metrics: [prefill_ms, speedup]");
        fs::write(&bench.artifact.file, text.replace("  tasks: [rte]", "  latency: {length: 8, batch: 1}")).unwrap();
        let artifact = Artifact::read(&bench.artifact.file).unwrap().unwrap();
        Self { artifact, ..bench }
    }

    fn grid(&self, overrides: &[String]) -> Grid {
        self.artifact.grid(None, overrides).unwrap()
    }

    fn target(&self, overrides: &[String]) -> ResultsFolder {
        let grid = self.grid(overrides);
        let request = EngineRequest::default();
        let description = RunDescription::of(&grid, &self.artifact.name, By::Reproduce, true, overrides, request);
        ResultsFolder::new(&self.root.path().join("results"), description.unwrap())
    }

    fn make(&self, overrides: &[&str], gated: bool, executor: &dyn Executor) -> (Result<ArtifactOutcome>, PathBuf) {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let target = self.target(&overrides);
        let grid = self.grid(&overrides);
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
fn hidden_cells_of_an_artifact_need_no_run_or_data() {
    let bench = Bench::new();
    let grid = bench.grid(&[]);
    let corpora: Vec<&str> = grid.evaluate.perplexity.iter().map(|text| text.corpus.as_str()).collect();
    assert_eq!((corpora, grid.evaluate.tasks.len(), grid.tasks.len()), (vec!["c4"], 0, 0));
    assert_eq!(grid.corpora.keys().collect::<Vec<_>>(), ["c4"]);
    let error = Grid::load(&bench.artifact.file, None, &[]).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "`run` needs all of them: {error}");
}

#[test]
fn only_a_dense_backbone_within_tolerance_is_pruned() {
    let bench = Bench::new();
    // The paper's perplexity is 6.71 (`data/paper/table3.csv`).
    let good = Fake::new(|cell| Some(if cell.is_dense() { 6.7 } else { 20.0 }));
    let (made, folder) = bench.make(&[], true, &good);
    let made = made.unwrap();
    assert_eq!((*good.cell_counts.borrow()).as_slice(), [1, 5], "the dense cell first, then all");
    assert!(made.misses.is_empty() && made.failed == 0 && !csv(&folder).contains("failed"));

    let bad = Fake::new(|_| Some(50.0));
    let (made, folder) = bench.make(&[], true, &bad);
    let made = made.unwrap();
    assert_eq!((*bad.cell_counts.borrow()).as_slice(), [1, 1], "what is pruned from it is not run");
    assert_eq!((made.misses.len(), made.failed, made.failures.len()), (1, 4, 0));
    assert_eq!(csv(&folder).matches("failed: stopped by the gate").count(), 4);

    let again = Fake::new(|_| Some(50.0));
    let (made, _) = bench.make(&[], false, &again);
    assert_eq!(((*again.cell_counts.borrow()).as_slice(), made.unwrap().failed), (&[5][..], 0));
}

#[test]
fn numbers_record_their_files_and_gate() {
    let bench = Bench::new();
    for gated in [true, false] {
        let (_, folder) = bench.make(&[], gated, &Fake::new(|_| Some(30.0)));
        let stored = StoredResults::read(&folder).unwrap();
        assert_eq!((stored.gate, stored.inputs), (gated, inputs()));
    }
}

#[test]
fn failed_cell_shows_its_reason_and_others_finish() {
    let bench = Bench::new();
    let fake = Fake::new(|cell| (cell.depth != 2).then_some(30.0));
    let (made, folder) = bench.make(&[], false, &fake);
    let made = made.unwrap();
    assert_eq!(made.failed, 2);
    let (cell, reason) = &made.failures[0];
    assert!(cell == "llama-3-8b.streamline-2.none" && reason == "out of luck", "{cell}: {reason}");
    assert_eq!(csv(&folder).matches("failed: out of luck").count(), 2);
    assert!(made.files.iter().all(|file| file.exists()), "{:?}", made.files);
    let names: Vec<String> =
        made.files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect();
    for name in ["table3.csv", "table3.parquet", "table3.md", "table3.tex", "numbers.json", "run.json"] {
        assert!(names.iter().any(|known| known == name), "{name} is not among {names:?}");
    }
}

#[test]
fn other_settings_have_their_own_folder_off_the_page() {
    let bench = Bench::new();
    let fake = Fake::new(|_| Some(30.0));
    let (_, plain) = bench.make(&[], false, &fake);
    let before = csv(&plain);
    let (made, overridden) = bench.make(&["depth=2"], false, &fake);
    made.unwrap();
    assert_ne!(plain, overridden);
    assert_eq!(csv(&plain), before);
    assert_eq!(csv(&overridden).lines().count(), 1 + 3);
    assert!(plain.join(PagePart::FILE).exists() && !overridden.join(PagePart::FILE).exists());
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

/// Function that returns the row labels in one format of a folder's table.
type Called = fn(&Path) -> Vec<String>;

/// Row labels in each format of a table. A new format needs an entry here.
const VIEWS: [(&str, Called); 6] = [
    ("Markdown", |folder| words(folder, "table3.md", "| ", " | ")),
    ("LaTeX", |folder| {
        let text = fs::read_to_string(folder.join("table3.tex")).unwrap();
        let (_, rows) = text.split_once("\\midrule").unwrap();
        let (rows, _) = rows.split_once("\\bottomrule").unwrap();
        let rows = rows.lines().filter(|line| line.contains(" & "));
        // Only the first row contains the backbone.
        rows.map(|line| line.split(" & ").skip(1).take(2).collect::<Vec<_>>().join(" ")).collect()
    }),
    ("CSV", |folder| {
        let text = csv(folder);
        let index = text.lines().next().unwrap().split(',').position(|head| head == "cell").unwrap();
        text.lines().skip(1).map(|line| fields(line)[index].clone()).collect()
    }),
    ("Parquet", |folder| {
        let file = fs::File::open(folder.join("table3.parquet")).unwrap();
        let frame = ParquetReader::new(file).finish().unwrap();
        frame.column("cell").unwrap().str().unwrap().iter().map(|cell| cell.unwrap().to_owned()).collect()
    }),
    ("numbers.json", |folder| {
        let stored = StoredResults::read(folder).unwrap();
        stored
            .numbers
            .iter()
            .filter(|number| number.record.metric == "ppl_c4")
            .map(|number| serde_json::to_string(&stored.number_settings(number)).unwrap())
            .collect()
    }),
    ("the page", |folder| {
        let page = PagePart::read(folder).unwrap().unwrap();
        page.artifact.tables[0]
            .rows
            .iter()
            .map(|row| {
                let cells = row.cells.iter().take(2).map(|cell| cell.text.clone());
                row.group.iter().cloned().chain(cells).collect::<Vec<_>>().join(" ")
            })
            .collect()
    }),
];

fn words(folder: &Path, file: &str, begin: &str, between: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    let rows = text.lines().filter(|line| line.contains("LLaMA-3-8B") && line.contains(between));
    rows.map(|line| line.trim_start_matches(begin).split(between).take(3).collect::<Vec<_>>().join(" ")).collect()
}

fn fields(line: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(String::new()),
            c => all.last_mut().unwrap().push(c),
        }
    }
    all
}

/// Settings in which two cells of one grid may differ, in grid syntax.
fn axes() -> Vec<(&'static str, String)> {
    vec![
        ("calibration.seed", calibration("c4", "sequences: 8, length: 64, seed: 1")),
        ("calibration.sequences", calibration("c4", "sequences: 9, length: 64, operator_sequences: 8")),
        ("calibration.length", calibration("c4", "sequences: 8, length: 65")),
        ("calibration.operator_sequences", calibration("c4", "sequences: 8, length: 64, operator_sequences: 4")),
        ("calibration.corpus", calibration("again", "sequences: 8, length: 64")),
        ("recovery.solver", "recovery=[none, ghosted, {name: ghosted, solver: svd}]".to_owned()),
        ("recovery.boundary", "recovery=[none, ghosted, {name: ghosted, boundary: layer}]".to_owned()),
        ("recovery.ridge", "recovery=[none, ghosted, {name: ghosted, ridge: 0.5}]".to_owned()),
        (
            "recovery.finetune",
            "recovery=[none, {name: ghosted, finetune: [{sequences: 4, length: 16}, {sequences: 5, length: 16}]}]"
                .to_owned(),
        ),
        ("criterion.cosine", "criterion=[llm-streamline, {name: llm-streamline, cosine: token}]".to_owned()),
    ]
}

fn calibration(corpus: &str, more: &str) -> String {
    format!("calibration=[{{corpus: c4, sequences: 8, length: 64}}, {{corpus: {corpus}, {more}}}]")
}

#[test]
fn one_setting_distinguishes_cells_in_every_table_view() {
    let bench = Bench::new();
    let file = fs::read_to_string(&bench.artifact.file).unwrap();
    let file = file.replace("corpora:\n", "corpora:\n  again: {path: text.jsonl, rule: ptb}\n");
    fs::write(
        &bench.artifact.file,
        file.replace(
            "recovery: [none, ghosted]}",
            "recovery: [none, ghosted]}\n      - {criterion: llm-streamline, recovery: ghosted, finetuned: true}",
        ),
    )
    .unwrap();
    let bench = Bench { artifact: Artifact::read(&bench.artifact.file).unwrap().unwrap(), ..bench };
    for (axis, setting) in axes() {
        // Each cell has a different value.
        let fake = Fake::new(|cell| Some(10.0 + cell.to_string().bytes().map(f64::from).sum::<f64>()));
        // Use a folder that the page shows.
        let overrides = [setting.clone()];
        let target = bench.target(&[]);
        let grid = bench.grid(&overrides);
        let made = make(&bench.artifact, &grid, &Gated::No, &target, &fake);
        let table = made.unwrap_or_else(|error| panic!("{axis}: {error}")).table.unwrap();
        assert!(table.rows.len() > 1 + 4 || axis == "recovery.finetune", "{axis}: the further cells have rows");
        let screen: Vec<String> = table.rows.iter().map(|row| row.lead.join(" ")).collect();
        let views = VIEWS.iter().map(|(view, content)| (*view, content(target.path())));
        for (view, called) in views.chain([("the screen", screen)]) {
            let distinct: std::collections::BTreeSet<&String> = called.iter().collect();
            assert_eq!(distinct.len(), called.len(), "{axis} in {view}: {called:?}");
            assert_eq!(called.len(), table.rows.len(), "{axis} in {view}: {called:?}");
        }
    }
}

#[test]
fn every_paper_option_is_covered_by_the_view_settings() {
    let known: Vec<&str> = axes().iter().map(|(axis, _)| *axis).collect();
    let cell = Cell {
        backbone: "b".into(),
        criterion: Some(crate::grid::Method::named("llm-streamline")),
        depth: 1.into(),
        recovery: Some(crate::grid::Method::named("ghosted")),
        calibration: Some(crate::grid::Calibration {
            corpus: "c".into(),
            sequences: 1,
            length: 1,
            seed: 0,
            operator_sequences: 1,
        }),
        name: "a cell".into(),
    };
    for factor in settings::of_cell(&cell).keys() {
        // Separate columns distinguish rows by backbone, depth, criterion and recovery.
        let is_axis = ["backbone", settings::DEPTH, "criterion", "recovery"].contains(&factor.as_str());
        assert!(is_axis || known.iter().any(|axis| factor.starts_with(axis)), "{factor} has no pair");
    }
}

#[test]
fn seed_table_has_one_row_with_mean_deviation_and_dots() {
    let bench = Bench::over_seeds();
    let fake = Fake::new(|cell| {
        let seed = cell.calibration.as_ref().map_or(0.0, |calibration| calibration.seed as f64);
        match cell.recovery.as_ref().map(|recovery| recovery.name.as_str()) {
            None => Some(6.7),
            // Better than no repair with the first two seeds, worse with the third.
            Some("ghosted") => Some(20.0 + 10.0 * seed),
            Some(_) => Some(35.0),
        }
    });
    let (made, folder) = bench.make(&[], false, &fake);
    let made = made.unwrap();
    let table = made.table.unwrap();
    let rows: Vec<String> = table
        .rows
        .iter()
        .map(|row| format!("{} {}", row.lead[1..].join(" "), row.cells[0].as_ref().unwrap().text))
        .collect();
    // Squared deviations: (10² + 0 + 10²) / 2.
    assert_eq!(
        rows[..3],
        ["0/4 Dense 6.70", "1/4 LLM-Streamline 35.00 ± 0.00", "1/4 Ghost Layer (Ours) 30.00 ± 10.00"]
    );
    let notes = table.notes.join("\n");
    assert!(notes.contains("n = 3 calibration seeds (0, 1, 2)"), "{notes}");
    // In the paper, ghosted beats the unrepaired model in every setting.
    assert!(notes.contains("1 pair of methods") && notes.contains("one changes with the seed"), "{notes}");
    assert!(notes.contains("first is Ghost Layer (Ours) under 2, LLM-Streamline under 1 of 3 seeds"), "{notes}");
    let lines: Vec<String> = csv(&folder).lines().map(str::to_owned).collect();
    let heads: Vec<&str> = lines[0].split(',').collect();
    let ghosted: Vec<&str> = lines.iter().find(|line| line.contains("ghosted")).unwrap().split(',').collect();
    // Perplexities are exponentials of a mean loss, so they are not exact.
    let near = |name: &str, value: f64| (ghosted[index_of(&heads, name)].parse::<f64>().unwrap() - value).abs() < 1e-12;
    assert!(near("value", 30.0) && near("std_seeds", 10.0) && ghosted[index_of(&heads, "n")] == "3", "{ghosted:?}");
    for (form, words) in [
        ("table3.md", ["30.00", "10.00", "calibration seeds"]),
        ("table3.tex", ["30.00", "10.00", "tab:table3"]),
        ("table3-notes.tex", ["n = 3", "calibration seeds", "tab:table3"]),
    ] {
        let text = fs::read_to_string(folder.join(form)).unwrap();
        assert!(words.iter().all(|word| text.contains(word)), "{form}: {text}");
    }
    assert_eq!(StoredResults::read(&folder).unwrap().numbers.len(), 1 + 2 * 2 * 3);
    let svg = fs::read_to_string(folder.join("table3-seeds.svg")).unwrap();
    assert!(svg.contains("Ghost Layer (Ours)") && folder.join("table3-seeds.png").exists());
    let page = PagePart::read(&folder).unwrap().unwrap();
    assert_eq!(page.artifact.figures.len(), 1);
    assert_eq!(page.artifact.tables[0].rows.len(), table.rows.len());
    // A number's note states the kind of its deviation.
    let kinds = page.artifact.tables[0].rows.iter().flat_map(|row| &row.cells).filter(|cell| !cell.error.is_empty());
    assert!(kinds.map(|cell| cell.error_kind.as_str()).any(|kind| kind == "std_seeds"));
}

fn index_of(heads: &[&str], name: &str) -> usize {
    heads.iter().position(|head| *head == name).unwrap()
}

#[test]
fn unstable_times_are_marked_and_not_recorded() {
    let bench = Bench::timed();
    let quiet = Timed(&[10.0, 10.1]);
    let noisy = Timed(&[10.0, 20.0]);
    let of_noise = markdown(&bench, &noisy);
    assert!(of_noise.contains("~15.0 ± ") && of_noise.contains("~1.00 ± "), "times and speedups: {of_noise}");
    let refused = record(&bench, &noisy, false).unwrap_err();
    assert_eq!(refused.exit_code(), 4);
    let text = refused.to_string();
    assert!(text.contains("unstable times cannot be recorded") && text.contains("--record-noisy"), "{text}");
    assert!(record(&bench, &noisy, true).is_ok(), "noise is recorded on request");
    assert!(record(&bench, &quiet, false).is_ok(), "stable times are recorded");
    let of_quiet = markdown(&bench, &quiet);
    assert!(of_quiet.contains("10.1 ± ") && !of_quiet.contains('~'), "{of_quiet}");
    let page = PagePart::read(bench.target(&[]).path()).unwrap().unwrap();
    let cells = page.artifact.tables[0].rows.iter().flat_map(|row| &row.cells).filter(|cell| !cell.error.is_empty());
    let kinds: std::collections::BTreeSet<&str> = cells.map(|cell| cell.error_kind.as_str()).collect();
    assert!(kinds.contains("std_rounds") && kinds.contains("ci95") && !kinds.contains(""), "{kinds:?}");
}

fn markdown(bench: &Bench, executor: &dyn Executor) -> String {
    let grid = bench.grid(&[]);
    let target = bench.target(&[]);
    make(&bench.artifact, &grid, &Gated::No, &target, executor).unwrap();
    fs::read_to_string(target.path().join("table3.md")).unwrap()
}

fn record(bench: &Bench, executor: &dyn Executor, may_be_noisy: bool) -> Result<ArtifactOutcome> {
    let grid = bench.grid(&[]);
    let target = bench.target(&[]).recording(may_be_noisy).unwrap();
    make(&bench.artifact, &grid, &Gated::No, &target, executor)
}
