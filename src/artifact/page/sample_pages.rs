//! Sample pages for tests: a large one, and one whose texts look like markup.

use super::*;
use crate::artifact::audit::{Check, Finding, Severity};
use crate::results::{PaperVerdict, SavedCell, SavedColumn, SavedComparison, SavedRow, SavedSignificance, SavedTable};

/// Text that would break out of every context in which data is embedded if it were not escaped.
const HOSTILE: &str = "\"'><script>alert(1)</script></style></title><!--<img src=x onerror=alert(2)>{{body}}&amp;";

fn hostile() -> String {
    HOSTILE.to_owned()
}

/// Builds a page that has [`HOSTILE`] in every text field.
pub(super) fn hostile_page() -> Page {
    Page {
        title: hostile(),
        made: hostile(),
        program: hostile(),
        answer: vec![hostile()],
        headline: hostile(),
        profile_note: hostile(),
        artifacts: vec![hostile_artifact()],
        claims: vec![ClaimRow {
            sentence: hostile(),
            claim: hostile(),
            section: hostile(),
            paper: hostile(),
            paper_verdict: Judgement::Fails,
            ours: hostile(),
            verdict: Judgement::Holds,
            artifact: hostile(),
            profile: hostile(),
        }],
        findings: vec![Finding {
            severity: Severity::Contradiction,
            check: Check::Copy,
            artifact: hostile(),
            row: hostile(),
            column: hostile(),
            expected: hostile(),
            found: hostile(),
            note: hostile(),
            places: hostile(),
        }],
        left_out: vec![(hostile(), hostile())],
        cells: [(hostile(), hostile_note())].into(),
    }
}

fn hostile_artifact() -> PageArtifact {
    let row = SavedRow {
        group: Some(hostile()),
        ours: true,
        cells: vec![hostile_cell(false), hostile_cell(true)],
        ..SavedRow::default()
    };
    PageArtifact {
        name: hostile(),
        profile: hostile(),
        title: hostile(),
        caption: hostile(),
        status: hostile(),
        tables: vec![SavedTable {
            caption: hostile(),
            protocol: hostile(),
            notes: vec![hostile()],
            group_name: hostile(),
            columns: vec![hostile_column(false), hostile_column(true)],
            rows: vec![row; 8],
        }],
        figures: vec![FigureView { svg: format!("<svg width='3' height='4'>{HOSTILE}</svg>"), label: hostile() }],
        provenance: vec![pair()],
        computed: vec![ComputedBy {
            commit: hostile(),
            machine: hostile(),
            results: 1,
            seconds: 1.5,
            first: hostile(),
            last: hostile(),
        }],
        inputs: [pair()].into(),
        files: vec![pair(), (hostile(), format!("a{HOSTILE}")), (hostile(), "javascript:1".into())],
    }
}

fn hostile_note() -> CellNote {
    CellNote {
        title: hostile(),
        identity: hostile().into(),
        lines: vec![pair()],
        commands: vec![hostile()],
        makers: vec![vec![pair()], vec![pair()]],
        parts: vec![ObjectNote { kind: hostile(), key: hostile(), finished: hostile(), seconds: 1.5, maker: 1 }],
        inputs: [pair()].into(),
    }
}

fn pair() -> (String, String) {
    (hostile(), hostile())
}

fn hostile_cell(numeric: bool) -> SavedCell {
    SavedCell {
        text: hostile(),
        value: numeric.then_some(1.5),
        mark: Some(SavedSignificance { better: numeric, says: hostile() }),
        comparison: Some(SavedComparison {
            paper: hostile(),
            difference: Some(hostile()),
            tolerance: Some(hostile()),
            verdict: PaperVerdict::OtherProtocol(vec![hostile()]),
        }),
        key: Some(hostile()),
        error: hostile(),
        items: Some(3),
        identity: Some(hostile()),
        ..SavedCell::default()
    }
}

fn hostile_column(numeric: bool) -> SavedColumn {
    SavedColumn { name: hostile(), group: Some(hostile()), numeric, ..SavedColumn::default() }
}

fn large_row(row: usize) -> Vec<SavedCell> {
    let depth = SavedCell { text: row.to_string(), value: Some(row as f64), ..SavedCell::default() };
    let numbers = (0..10).map(|i| {
        let value = f64::from(i) + row as f64 / 100.0;
        SavedCell { text: format!("{value:.2}"), value: Some(value), key: Some(large_key(row)), ..SavedCell::default() }
    });
    [depth, text_cell("LLM-Streamline"), text_cell("Linear Patch (Rotate)")].into_iter().chain(numbers).collect()
}

/// Builds a page with a table that has ten columns of numbers. Each number links to the note for its row.
pub(super) fn large_page(rows: usize) -> Page {
    let names = ["Depth", "Criterion", "Recovery", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let columns = names.iter().enumerate().map(|(i, name)| SavedColumn {
        name: (*name).to_owned(),
        numeric: i == 0 || i > 2,
        higher_is_better: (i > 2).then_some(true),
        choice: i < 3,
        ..SavedColumn::default()
    });
    let view = SavedTable {
        columns: columns.collect(),
        rows: (0..rows)
            .map(|index| SavedRow { group: Some("Tiny LLaMA".into()), cells: large_row(index), ..SavedRow::default() })
            .collect(),
        ..SavedTable::default()
    };
    let artifact = PageArtifact { name: "table2".into(), tables: vec![view], ..PageArtifact::default() };
    Page {
        artifacts: vec![artifact],
        cells: (0..rows).map(|row| (large_key(row), large_note(row))).collect(),
        ..Page::default()
    }
}

fn text_cell(text: &str) -> SavedCell {
    SavedCell { text: text.to_owned(), ..SavedCell::default() }
}

fn large_note(row: usize) -> CellNote {
    CellNote {
        title: format!("Tiny LLaMA without {row} of 16 layers"),
        lines: vec![("Backbone".into(), "tiny-llama".into()), ("Removed".into(), "layers 8 to 11".into())],
        commands: vec![format!("ghostlab explain table2.yaml {}", large_key(row))],
        makers: vec![vec![("program".into(), "ghostlab 0.1.0".into())]],
        parts: vec![ObjectNote { kind: "operator".into(), key: "0f".repeat(6), seconds: 2.5, ..ObjectNote::default() }],
        ..CellNote::default()
    }
}

fn large_key(row: usize) -> String {
    format!("tiny-llama/llm-streamline/{row}/linearpatch-rotate/c4:64x512@0")
}
