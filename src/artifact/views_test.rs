//! Tests that the rows of a table have distinct labels in every output format.

use std::fs;
use std::path::Path;

use polars::prelude::{ParquetReader, SerReader};

use super::page_part::PagePart;
use super::pipeline_bench::{Bench, FakeExecutor, read_csv};
use super::{Artifact, GateMode, make};
use crate::grid::Cell;
use crate::results::{StoredResults, settings};

/// Function that reads the row labels of a table from one output format in a results folder.
type ViewFiles = fn(&Path) -> Vec<String>;

/// Output formats of a table, each with a function that reads the row labels. A new format needs an entry here.
const VIEWS: [(&str, ViewFiles); 6] = [
    ("Markdown", |folder| read_markdown_labels(folder, "table3.md", "| ", " | ")),
    ("LaTeX", |folder| {
        let text = fs::read_to_string(folder.join("table3.tex")).unwrap();
        let (_, rows) = text.split_once("\\midrule").unwrap();
        let (rows, _) = rows.split_once("\\bottomrule").unwrap();
        let rows = rows.lines().filter(|line| line.contains(" & "));
        // Skip the first column, because only the first row contains the backbone.
        rows.map(|line| line.split(" & ").skip(1).take(2).collect::<Vec<_>>().join(" ")).collect()
    }),
    ("CSV", |folder| {
        let text = read_csv(folder);
        let index = text.lines().next().unwrap().split(',').position(|head| head == "cell").unwrap();
        text.lines().skip(1).map(|line| parse_csv_fields(line)[index].clone()).collect()
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

fn read_markdown_labels(folder: &Path, file: &str, begin: &str, between: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    let rows = text.lines().filter(|line| line.contains("LLaMA-3-8B") && line.contains(between));
    rows.map(|line| line.trim_start_matches(begin).split(between).take(3).collect::<Vec<_>>().join(" ")).collect()
}

fn parse_csv_fields(line: &str) -> Vec<String> {
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

/// Returns settings in which two cells of a grid may differ, each with an override in grid syntax.
fn setting_overrides() -> Vec<(&'static str, String)> {
    vec![
        ("calibration.seed", calibration_override("c4", "sequences: 8, length: 64, seed: 1")),
        ("calibration.sequences", calibration_override("c4", "sequences: 9, length: 64, operator_sequences: 8")),
        ("calibration.length", calibration_override("c4", "sequences: 8, length: 65")),
        (
            "calibration.operator_sequences",
            calibration_override("c4", "sequences: 8, length: 64, operator_sequences: 4"),
        ),
        ("calibration.corpus", calibration_override("again", "sequences: 8, length: 64")),
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

fn calibration_override(corpus: &str, more: &str) -> String {
    format!("calibration=[{{corpus: c4, sequences: 8, length: 64}}, {{corpus: {corpus}, {more}}}]")
}

#[test]
fn cells_that_differ_in_one_setting_have_distinct_labels() {
    let bench = Bench::new();
    let file = fs::read_to_string(bench.artifact.file.path()).unwrap();
    let file = file.replace("corpora:\n", "corpora:\n  again: {path: text.jsonl, rule: ptb}\n");
    fs::write(
        bench.artifact.file.path(),
        file.replace(
            "recovery: [none, ghosted]}",
            "recovery: [none, ghosted]}\n      - {criterion: llm-streamline, recovery: ghosted, finetuned: true}",
        ),
    )
    .unwrap();
    let bench = Bench { artifact: Artifact::read(bench.artifact.file.path()).unwrap().unwrap(), ..bench };
    for (axis, setting) in setting_overrides() {
        // Give every cell a different value.
        let fake = FakeExecutor::new(|cell| Some(10.0 + cell.to_string().bytes().map(f64::from).sum::<f64>()));
        // Write to a folder that is shown on the results page.
        let overrides = [setting.clone()];
        let target = bench.target(&[]);
        let grid = bench.grid(&overrides);
        let outcome = make(&bench.artifact, &grid, &GateMode::No, &target, &fake);
        let table = outcome.unwrap_or_else(|error| panic!("{axis}: {error}")).table.unwrap();
        assert!(table.rows.len() > 1 + 4 || axis == "recovery.finetune", "{axis}: the additional cells have rows");
        let screen: Vec<String> = table.rows.iter().map(|row| row.lead.join(" ")).collect();
        let views = VIEWS.iter().map(|(view, content)| (*view, content(target.path())));
        for (view, labels) in views.chain([("the screen", screen)]) {
            let distinct: std::collections::BTreeSet<&String> = labels.iter().collect();
            assert_eq!(distinct.len(), labels.len(), "{axis} in {view}: {labels:?}");
            assert_eq!(labels.len(), table.rows.len(), "{axis} in {view}: {labels:?}");
        }
    }
}

#[test]
fn setting_overrides_cover_every_option_of_a_paper_cell() {
    let known: Vec<&str> = setting_overrides().iter().map(|(axis, _)| *axis).collect();
    let cell = Cell {
        backbone: "b".into(),
        criterion: Some(crate::grid::Method::with_name("llm-streamline")),
        depth: 1.into(),
        recovery: Some(crate::grid::Method::with_name("ghosted")),
        calibration: Some(crate::grid::Calibration {
            corpus: "c".into(),
            sequences: 1,
            length: 1,
            seed: 0,
            operator_sequences: 1,
        }),
        name: "a cell".into(),
    };
    for factor in settings::from_cell(&cell).keys() {
        // Backbone, depth, criterion and recovery have their own columns.
        let is_axis = ["backbone", settings::DEPTH, "criterion", "recovery"].contains(&factor.as_str());
        assert!(is_axis || known.iter().any(|axis| factor.starts_with(axis)), "{factor} is not tested");
    }
}
