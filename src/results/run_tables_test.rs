//! Tests for the long table and the wide table in every format.

use std::fs::File;
use std::sync::Arc;

use polars::prelude::{ParquetReader, SerReader};

use super::number_record::{Condition, Record};
use super::result_row::{CellSummary, ResultRow, Results, Sample};
use super::settings::{DEPTH, Settings};
use super::{Protocol, Table, latex, long, markdown, run_frame, screen, wide, write_frame};
use crate::grid::{Cell, Method};
use crate::tasks::Bos;

pub(super) fn text(corpus: &str) -> Protocol {
    Protocol::Windows {
        shards: None,
        corpus: corpus.to_owned(),
        rule: corpus.to_owned(),
        length: 512,
        limit: None,
        windows: None,
        all: None,
        generated: false,
    }
}

pub(super) fn task() -> Protocol {
    Protocol::MultipleChoice {
        name: "copa".into(),
        label: "copa(limit=50)".into(),
        task: "copa".into(),
        version: 1,
        metric: "acc".into(),
        bos: Bos::Tokenizer,
        documents: 50,
        original: 100,
        full_split: false,
        generated: false,
        limit: Some(50.0),
        max_length: None,
    }
}

/// Test cell with one value per protocol.
pub(super) struct CellFixture<'a> {
    pub(super) backbone: &'a str,
    pub(super) depth: usize,
    pub(super) recovery: &'a str,
    pub(super) values: &'a [Option<f64>],
    pub(super) error: Option<f64>,
    pub(super) notes: &'a str,
    pub(super) failure: Option<&'a str>,
}

pub(super) fn cell<'a>(
    backbone: &'a str,
    depth: usize,
    recovery: &'a str,
    values: &'a [Option<f64>],
) -> CellFixture<'a> {
    CellFixture { backbone, depth, recovery, values, error: None, notes: "", failure: None }
}

fn cell_settings(fixture: &CellFixture<'_>) -> Settings {
    let mut all = Settings::from([("backbone".into(), fixture.backbone.into()), (DEPTH.into(), fixture.depth.into())]);
    if fixture.depth > 0 {
        all.insert("criterion".into(), "llm-streamline".into());
        all.insert("recovery".into(), fixture.recovery.into());
    }
    all
}

pub(super) fn results(protocols: Vec<Protocol>, fixtures: &[CellFixture<'_>]) -> Results {
    let mut cells = Vec::new();
    for spec in fixtures {
        let is_pruned = spec.depth > 0;
        let name = format!("{}/{}/{}", spec.backbone, spec.depth, spec.recovery);
        let failure = spec.failure.map(str::to_owned);
        let mut cell = CellSummary {
            cell: Cell {
                criterion: is_pruned.then(|| Method::with_name("llm-streamline")),
                depth: spec.depth.into(),
                recovery: is_pruned.then(|| Method { name: spec.recovery.to_owned(), ..Method::with_name("none") }),
                ..Cell::with_name(spec.backbone, &name)
            },
            removed: crate::model::Cut::layers(8..8 + spec.depth),
            programs: Vec::new(),
            layers: 16,
            calibration: is_pruned.then(|| "wiki:32x512@0".to_owned()),
            settings: Arc::new(cell_settings(spec)),
            seconds: 1.25,
            notes: Some(spec.notes.to_owned()).filter(|text| !text.is_empty()).into_iter().collect(),
            failure: failure.clone(),
            missing: None,
            numbers: Vec::new(),
        };
        for (protocol, value) in protocols.iter().zip(spec.values) {
            let condition = Condition {
                backbone: spec.backbone.into(),
                layers: 16,
                depth: spec.depth,
                unit: crate::criterion::DepthUnit::Layers,
                criterion: "llm-streamline".into(),
                recovery: spec.recovery.into(),
                finetuned: false,
                calibration: "wiki".into(),
            };
            let record = Record { condition, metric: protocol.measures().id, value: *value, error: spec.error };
            let column = protocol.column();
            let failure = failure.clone();
            cell.numbers.push(Arc::new(ResultRow { column, failure, ..ResultRow::new(record, &name) }));
        }
        cells.push(cell);
    }
    Results { cells, protocols }
}

fn table() -> Table {
    let rows = [
        cell("english", 0, "none", &[Some(18.123_456_789_012_3), Some(250.5)]),
        cell("english", 3, "none", &[Some(123.456), None]),
        cell("english", 3, "ghosted", &[Some(25.5), Some(3.25e12)]),
        CellFixture {
            failure: Some("a tensor\n  is | not finite"),
            ..cell("english", 3, "linearpatch-rotate", &[None, None])
        },
    ];
    long(&results(vec![text("wikitext2"), text("c4")], &rows), "", Vec::new())
}

#[test]
fn screen_shows_every_value_aligned() {
    let expected = "\
backbone  criterion       depth  layers removed  layers  recovery            calibration    ppl wikitext2@512  ppl c4@512  seconds  status
────────  ──────────────  ─────  ──────────────  ──────  ──────────────────  ─────────────  ─────────────────  ──────────  ───────  ────────────────────────────────
english   —                   0  —                   16  —                   —                        18.123       250.50      1.2  ok
┄┄┄┄┄┄┄┄  ┄┄┄┄┄┄┄┄┄┄┄┄┄┄  ┄┄┄┄┄  ┄┄┄┄┄┄┄┄┄┄┄┄┄┄  ┄┄┄┄┄┄  ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄  ┄┄┄┄┄┄┄┄┄┄┄┄┄  ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄  ┄┄┄┄┄┄┄┄┄┄  ┄┄┄┄┄┄┄  ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
english   llm-streamline      3  8-10                16  none                wiki:32x512@0            123.456            —      1.2  ok
english   llm-streamline      3  8-10                16  ghosted             wiki:32x512@0            25.500*      3.25e12      1.2  ok
english   llm-streamline      3  8-10                16  linearpatch-rotate  wiki:32x512@0                  —            —      1.2  failed: a tensor is | not finite

* best, ° second best in each block
";
    let text = screen(&table(), None);
    assert_eq!(squeeze_spaces(&text), squeeze_spaces(expected));
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[5]
            .chars()
            .take(lines[0].find("ppl c4@512").map(|at| at + "ppl c4@512".len()).unwrap())
            .collect::<String>()
            .ends_with("3.25e12"),
        "{text}"
    );
}

fn squeeze_spaces(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
}

#[test]
fn notes_column_is_omitted_without_notes() {
    let noted = CellFixture { notes: "rank 3 of 64", ..cell("a", 3, "ghosted", &[Some(2.0)]) };
    let text =
        screen(&long(&results(vec![text("c4")], &[cell("a", 3, "none", &[Some(1.0)]), noted]), "", Vec::new()), None);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("  notes") && lines[3].contains("rank 3 of 64  ok"), "{text}");
    assert!(!screen(&table(), None).contains("notes"));
}

#[test]
fn markdown_marks_best_lists_protocols_and_omits_times() {
    let text = markdown(&table());
    assert!(text.contains("| 123.456 | — |") && text.contains("| **25.500** | 3.25e12 |"), "{text}");
    assert_eq!(text.matches("**").count(), 2, "only pruned variants are ranked, and a single variant is not:\n{text}");
    assert!(text.contains("failed: a tensor is \\| not finite"), "{text}");
    assert!(text.contains("protocol `windows`, all windows of 512 tokens"), "{text}");
    assert!(!text.contains("seconds"), "{text}");
}

#[test]
fn best_value_is_marked_per_backbone_and_depth() {
    let rows = [
        cell("a", 3, "x", &[Some(2.900_000_015)]),
        cell("a", 3, "y", &[Some(2.9)]),
        cell("a", 3, "z", &[Some(3.0)]),
        cell("a", 5, "x", &[Some(9.0)]),
        cell("a", 5, "y", &[None]),
        CellFixture { failure: Some("not scored on wiki"), ..cell("a", 3, "w", &[Some(2.0)]) },
    ];
    let table = long(&results(vec![text("c4")], &rows), "", Vec::new());
    let best: Vec<&str> = table
        .rows
        .iter()
        .filter(|row| row.cells[0].as_ref().is_some_and(|cell| cell.best))
        .map(|row| row.lead[5].as_str())
        .collect();
    assert_eq!(best, ["x", "y"]);
}

#[test]
fn undetermined_row_is_not_ranked() {
    let rows = [("x", Some(2.0)), ("y", Some(3.0)), ("z", Some(4.0))].map(|(name, value)| (name, [value]));
    let rows: Vec<CellFixture<'_>> = rows.iter().map(|(name, value)| cell("a", 3, name, value)).collect();
    let marks = |undetermined: &str| {
        let mut results = results(vec![text("c4")], &rows);
        for number in results.cells.iter_mut().flat_map(|cell| &mut cell.numbers) {
            let is_undetermined = number.record.condition.recovery == undetermined;
            Arc::make_mut(number).setup.undetermined = is_undetermined;
        }
        let table = long(&results, "", Vec::new());
        table
            .rows
            .iter()
            .map(|row| row.cells[0].as_ref().map(|shown| (shown.best, shown.second)).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(marks(""), [(true, false), (false, true), (false, false)]);
    assert_eq!(marks("x"), [(false, false), (true, false), (false, false)]);
    assert_eq!(marks("y"), [(true, false), (false, false), (false, false)]);
}

#[test]
fn highest_accuracy_is_best_and_errors_are_only_in_files() {
    let with = |value, recovery| CellFixture { error: Some(5.0), ..cell("a", 3, recovery, value) };
    let table = long(&results(vec![task()], &[with(&[Some(55.0)], "x"), with(&[Some(60.0)], "y")]), "", Vec::new());
    assert!(table.rows[1].cells[0].as_ref().unwrap().best);
    assert!(markdown(&table).contains("50 of 100 documents (part of the published split)"));
    assert!(!screen(&table, None).contains('±'));
    let folder = tempfile::tempdir().unwrap();
    let csv = std::fs::read_to_string(&write_frame(folder.path(), "results", run_frame(&table).unwrap()).unwrap()[0])
        .unwrap();
    assert!(csv.lines().next().unwrap().contains("copa(limit=50),copa(limit=50) stderr,corpus"), "{csv}");
}

#[test]
fn layers_are_written_as_ranges() {
    for (layers, expected) in
        [(&[][..], ""), (&[8, 9, 10], "8-10"), (&[3, 1], "1,3"), (&[0, 1, 5, 7, 8], "0-1,5,7-8"), (&[4, 4], "4")]
    {
        let mut results = results(vec![text("c4")], &[cell("a", 2, "none", &[None])]);
        results.cells[0].removed = crate::model::Cut::layers(layers.iter().copied());
        assert_eq!(long(&results, "", Vec::new()).rows[0].lead[3], expected);
    }
}

#[test]
fn result_files_have_full_precision_and_nulls() {
    let folder = tempfile::tempdir().unwrap();
    let frame = run_frame(&table()).unwrap();
    let paths = write_frame(folder.path(), "results", frame.clone()).unwrap();
    let csv = std::fs::read_to_string(&paths[0]).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(
        lines[0],
        "backbone,criterion,depth,layers removed,layers,recovery,calibration,ppl wikitext2@512,ppl c4@512,\
         ppl wikitext2@512 stderr,ppl c4@512 stderr,corpus,sequences,length,seed,operator_sequences,status"
    );
    assert_eq!(lines[1], "english,,0,,16,,,18.1234567890123,250.5,,,,,,,,ok");
    assert!(lines[2].contains(",123.456,,,,,,,,,ok"), "{csv}");
    let back = ParquetReader::new(File::open(&paths[1]).unwrap()).finish().unwrap();
    assert!(back.equals_missing(&frame));
}

#[test]
fn unwritable_results_folder_has_exit_code_3() {
    let folder = tempfile::tempdir().unwrap();
    let error = write_frame(&folder.path().join("absent"), "results", run_frame(&table()).unwrap()).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("results.csv"), "{error}");
}

#[test]
fn wide_table_has_method_rows_and_backbone_depth_columns() {
    let average = Protocol::Average { tasks: 2 };
    let row = |backbone, depth, recovery, value: &'static [Option<f64>]| cell(backbone, depth, recovery, value);
    let rows = [
        row("a", 0, "none", &[Some(7.0), Some(80.0)]),
        row("a", 4, "none", &[Some(7.0), Some(50.0)]),
        row("a", 4, "ghosted", &[Some(6.0), Some(60.0)]),
        row("a", 6, "none", &[Some(7.0), Some(45.5)]),
        row("b", 0, "none", &[Some(7.0), Some(90.0)]),
        row("b", 4, "none", &[Some(7.0), Some(70.0)]),
        row("b", 4, "ghosted", &[Some(7.0), None]),
    ];
    let results = results(vec![text("c4"), average], &rows);
    let table = wide(&results, None, "", Vec::new()).unwrap();
    let expected = "\
**average**

|  | a 4/16 | a 6/16 | b 4/16 |
| --- | ---: | ---: | ---: |
| Dense | 80.00 | 80.00 | 90.00 |
| LLM-Streamline | 50.00 | 45.50 | 70.00 |
| *+ Ghost Layer (Ours)* | **60.00** | — | — |

Bold: best of a block; underlined: second; in italics: ours.
";
    assert_eq!(markdown(&table), expected);
    assert!(screen(&table, None).contains("60.00*"));
    let text = markdown(&wide(&results, Some("ppl c4@512"), "", Vec::new()).unwrap());
    assert!(text.starts_with("**ppl c4@512**") && text.contains("**6.0000**"), "{text}");
    let error = wide(&results, Some("avrage"), "", Vec::new()).unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("did you mean `average`?"), "{error}");
}

/// Returns answers to 100 documents, of which the first `right` are correct.
fn answers_sample(right: usize) -> Sample {
    Sample::of_task((0..100).map(|at| at < right).collect())
}

/// Builds a table in which `ghosted` beats two other recoveries on the same documents. `change` modifies the
/// measurement of `linearpatch-diag`.
fn table_with_tests(change: impl FnOnce(&mut ResultRow)) -> Table {
    let values = [("none", 40), ("linearpatch-diag", 50), ("ghosted", 80)];
    let rows = values.map(|(name, right)| (name, [Some(right as f64)]));
    let cells: Vec<CellFixture<'_>> = rows.iter().map(|(name, value)| cell("a", 3, name, value)).collect();
    let mut results = results(vec![task()], &cells);
    for (cell, (_, right)) in results.cells.iter_mut().zip(values) {
        Arc::get_mut(&mut cell.numbers[0]).unwrap().sample = answers_sample(right);
    }
    change(Arc::get_mut(&mut results.cells[1].numbers[0]).unwrap());
    long(&results, "", Vec::new())
}

#[test]
fn user_grid_shows_ranks_and_paired_tests() {
    let table = table_with_tests(|_| ());
    let paired = |at: usize| table.rows[at].cells[0].as_ref().unwrap().paired.clone();
    assert_eq!((paired(0), paired(1)), (None, None), "only ours is tested");
    let ours = paired(2).unwrap();
    assert_eq!((ours.against.as_str(), ours.mark()), ("linearpatch-diag", "+"));
    assert!(screen(&table, None).contains("80.00*+") && screen(&table, None).contains("+ or -: ours is better"));
    assert!(markdown(&table).contains("**80.00**⁺") && markdown(&table).contains("in italics: ours"));
}

#[test]
fn paired_test_uses_rows_of_same_selection_and_calibration() {
    for setting in ["calibration.seed", "criterion.cosine"] {
        let table = table_with_tests(|number: &mut ResultRow| {
            number.setup.variant = Arc::new(Settings::from([(setting.to_owned(), 1.into())]));
        });
        assert_eq!(table.rows[2].cells[0].as_ref().unwrap().paired.as_ref().unwrap().against, "none", "{setting}");
    }
}

#[test]
fn latex_of_user_grid_shows_ranks_and_paired_tests() {
    let text = latex(&table_with_tests(|_| ()).printed("my grid"), "my-results");
    assert!(text.contains("\\caption[my grid]{my grid. ") && text.contains("\\label{tab:my-results}"), "{text}");
    assert!(text.contains("\\textbf{80.00}$^{+}$") && text.contains("shaded: ours"), "{text}");
    assert!(!text.contains("status"), "{text}");
    let failed = latex(&table().printed("my grid"), "my-results");
    assert!(failed.contains("\\textbf{status}") && failed.contains("failed: a tensor"), "{failed}");
}

#[test]
fn notes_list_resampled_texts_and_equal_selections() {
    let mut results = results(vec![text("wikitext2"), text("c4")], &[cell("a", 3, "none", &[Some(2.0), Some(3.0)])]);
    assert_eq!(results.notes(), Vec::<String>::new(), "a table without errors needs no note");
    for number in results.cells.iter_mut().flat_map(|cell| &mut cell.numbers) {
        let row = Arc::get_mut(number).unwrap();
        row.sample = Sample::Losses(vec![1.0, 1.1]);
        row.setup.scored = vec![text(if row.column == text("c4").column() { "c4" } else { "wikitext2" })];
    }
    let mut twin = results.cells[0].clone();
    twin.cell.criterion = Some(Method::with_name("shortgpt"));
    results.cells.push(twin);
    let notes = results.notes();
    assert!(
        notes[0].starts_with("LLM-Streamline and ShortGPT remove the same layers on a 3/16 (layers 8-10)"),
        "{notes:?}"
    );
    assert!(notes[1].starts_with("Windows of c4 are drawn with replacement"), "{notes:?}");
    assert_eq!(notes.len(), 2);
}

#[test]
fn iterative_criteria_are_labeled_as_in_artifacts() {
    let values = [Some(2.0)];
    let rows =
        [cell("english", 0, "none", &values), cell("english", 2, "none", &values), cell("english", 2, "mean", &values)];
    let mut results = results(vec![text("wikitext2")], &rows);
    let options = serde_json::json!({"cosine": "token", "iterative": true});
    for cell in &mut results.cells[1..] {
        cell.cell.criterion = Some(Method::new("shortgpt", options.as_object().unwrap()).unwrap());
        let settings = Arc::make_mut(&mut cell.settings);
        settings.insert("criterion".into(), "shortgpt".into());
        settings.insert("criterion.iterative".into(), true.into());
    }
    let names =
        |table: Table, column: usize| table.rows.into_iter().map(|mut row| row.lead.remove(column)).collect::<Vec<_>>();
    let iterative = "ShortGPT, iterative, cosine token";
    assert_eq!(names(long(&results, "", Vec::new()), 1), ["", iterative, iterative]);
    let wide = wide(&results, None, "", Vec::new()).unwrap();
    assert_eq!(names(wide, 0), ["Dense", "ShortGPT, iterative", "+ Mean change"]);
}
