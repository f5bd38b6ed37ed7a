//! `page.json`: an artifact as the page of all artifacts shows it, with how each of its cells was made.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layout::{Shown, View};
use super::ours::Number;
use crate::error::{Error, Result};
use crate::exec::{CellResult, Outcome};
use crate::grid::Description;
use crate::metric::Direction;
use crate::names;
use crate::page::{Artifact, Cell, CellNote, Column, FigureView, Row, TableView};

/// An artifact of the page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sheet {
    pub artifact: Artifact,
    pub cells: BTreeMap<String, CellNote>,
}

impl Sheet {
    pub const FILE: &str = "page.json";

    /// None where a folder has none.
    ///
    /// # Errors
    /// A damaged file.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(Self::FILE);
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| {
            Error::damaged("an artifact of the page cannot be read")
                .at(path.display().to_string())
                .found(error.to_string())
                .hint("make the artifact again: what is stored of it is not computed again")
        })
    }
}

/// An artifact that was made.
#[derive(Debug, Clone, Copy)]
pub struct Made<'a> {
    pub name: &'a str,
    pub profile: &'a str,
    /// Its grid's file.
    pub file: &'a Path,
    pub description: &'a Description,
    pub outcome: &'a Outcome,
    pub numbers: &'a [Number],
}

/// What the page shows of an artifact: its table, or its figures with their captions.
pub fn sheet(made: Made<'_>, view: Option<&View>, figures: Vec<FigureView>) -> Sheet {
    let Made { name, profile, file, description, outcome, numbers } = made;
    let failed = outcome.failed();
    let status =
        if failed == 0 { "complete".to_owned() } else { format!("{failed} of {} cells failed", outcome.cells.len()) };
    let artifact = Artifact {
        name: name.to_owned(),
        profile: profile.to_owned(),
        title: format!("{name}: {}", description.title),
        caption: description.caption.clone().unwrap_or_default(),
        status,
        tables: view.map(|view| table(view, numbers, outcome)).into_iter().collect(),
        figures,
        provenance: Vec::new(),
        files: Vec::new(),
    };
    let cells = outcome.cells.iter().map(|result| (result.cell.to_string(), note(result, file, profile))).collect();
    Sheet { artifact, cells }
}

fn table(view: &View, numbers: &[Number], outcome: &Outcome) -> TableView {
    let mut groups = view.groups.iter().flat_map(|(head, count)| std::iter::repeat_n(head.clone(), *count));
    let lead = view.lead.iter().skip(1).map(|name| Column { name: name.clone(), ..Column::default() });
    let measured = view.columns.iter().map(|column| Column {
        name: column.head.clone(),
        group: groups.next(),
        numeric: true,
        higher_is_better: match column.metric.direction {
            Direction::Higher => Some(true),
            Direction::Lower => Some(false),
            Direction::Neither => None,
        },
        label: false,
    });
    let row = |row: &super::layout::Row| {
        let texts = row.lead.iter().skip(1).map(|text| Cell { text: text.clone(), ..Cell::default() });
        let values = row.cells.iter().map(|shown| match shown {
            Some(shown) => cell(shown, numbers, outcome),
            None => Cell { text: "—".to_owned(), ..Cell::default() },
        });
        Row { group: row.lead.first().cloned(), ours: row.ours, cells: texts.chain(values).collect() }
    };
    TableView {
        caption: view.notes.join(" "),
        group_name: view.lead.first().cloned().unwrap_or_default(),
        columns: lead.chain(measured).collect(),
        rows: view.rows.iter().map(row).collect(),
    }
}

fn cell(shown: &Shown, numbers: &[Number], outcome: &Outcome) -> Cell {
    let number = &numbers[shown.number];
    let significant = shown.paired.as_ref().filter(|paired| paired.significant()).map(|paired| {
        let word = if paired.mark() == "+" { "better" } else { "worse" };
        format!("{word} than {} (p = {:.2e}, {})", names::recovery(&paired.against), paired.p, paired.test)
    });
    Cell {
        text: shown.text.clone(),
        value: number.record.value,
        best: shown.best,
        second: shown.second,
        paper: shown.beside.as_ref().map(|beside| format!("{:.2}", beside.paper)),
        verdict: shown.beside.as_ref().map(|beside| beside.verdict.to_string()),
        significant,
        key: Some(outcome.cells[number.cell].cell.to_string()),
        failed: number.failure.is_some(),
    }
}

fn note(result: &CellResult, file: &Path, profile: &str) -> CellNote {
    let cell = result.cell.to_string();
    let mut lines = vec![("layers removed".to_owned(), format!("{:?}", result.removed))];
    lines.extend(result.failure.iter().map(|reason| ("failed".to_owned(), reason.clone())));
    lines.extend(result.notes().into_iter().map(|note| ("note".to_owned(), note)));
    for boundary in &result.boundaries {
        let place = format!("boundary of layer {}", boundary.region.0);
        lines.push((place, format!("mean absolute error {:.4}", boundary.numbers.boundary_mae)));
    }
    lines.push(("seconds".to_owned(), format!("{:.1}", result.seconds)));
    let profile = if profile.is_empty() { String::new() } else { format!(" --profile {profile}") };
    let made = |value: &Value| match value {
        Value::Object(keys) => {
            let text = |key: &str| keys.get(key).map(|value| value.as_str().map_or(value.to_string(), str::to_owned));
            ["program", "commit", "when"].iter().filter_map(|key| text(key)).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    };
    CellNote {
        title: cell.clone(),
        lines,
        commands: vec![format!("cargo run --release -- explain {}{profile} '{cell}'", file.display())],
        artifacts: result
            .made_from
            .iter()
            .map(|origin| {
                let by = format!("{}; {:.1} s", made(&origin.made), origin.seconds);
                (origin.kind.to_owned(), origin.key.clone(), by)
            })
            .collect(),
    }
}
