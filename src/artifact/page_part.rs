//! `page.json`: the part of the results page that describes one artifact.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::lists::NameList;
use super::paper_columns::is_added_automatically;
use super::{Artifact, printed};
use crate::artifact::page::{CellNote, ComputedBy, FigureView, ObjectNote, PageArtifact};
use crate::error::{Error, Result};
use crate::pipeline::exec::{CellResult, GridOutcome, UsedObject};
use crate::results::settings::value_text;
use crate::results::{SavedColumn, SavedTable, Table, put};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PagePart {
    pub artifact: PageArtifact,
    pub cells: BTreeMap<String, CellNote>,
}

/// Name of the [`CellNote`] line with the computing time.
const SECONDS: &str = "seconds";

impl PagePart {
    pub const FILE: &str = "page.json";

    /// Drops the data that is also in `numbers.json`, and all origins of each cell except the first.
    #[must_use]
    pub fn without_numbers(mut self) -> Self {
        for note in self.cells.values_mut() {
            note.parts.clear();
            note.makers.truncate(1);
            note.inputs.clear();
            note.identity = Value::Null;
        }
        self
    }

    /// Returns whether both parts render the same page apart from the provenance and computing times of the results.
    pub(super) fn renders_same_page(&self, other: &Self) -> bool {
        fn page_artifact(part: &PagePart) -> (PageArtifact, bool, BTreeMap<String, CellNote>) {
            let artifact = PageArtifact { provenance: Vec::new(), computed: Vec::new(), ..part.artifact.clone() };
            let mut cells = part.cells.clone();
            for note in cells.values_mut() {
                note.makers.clear();
                note.lines.retain(|(name, _)| name != SECONDS);
            }
            // Page parts of earlier versions have no `computed` field. They count as different, so that the field is
            // added.
            (artifact, part.artifact.computed.is_empty(), cells)
        }
        page_artifact(self) == page_artifact(other)
    }

    /// Writes [`Self::FILE`] to a folder.
    ///
    /// # Errors
    /// Fails if the folder is not writable.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string(self)
            .map_err(|error| Error::job("cannot write the artifact as JSON").found(error.to_string()))?;
        put(&folder.join(Self::FILE), text.as_bytes()).map(drop)
    }

    /// Reads [`Self::FILE`] from a folder. Returns `None` if the file cannot be read.
    ///
    /// # Errors
    /// Fails if the file is not valid JSON.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(Self::FILE);
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| {
            Error::damaged("the data of the results page is not valid JSON")
                .at(path.display().to_string())
                .found(error.to_string())
                .hint("run `ghostlab reproduce` again; cached results are reused")
        })
    }
}

pub(super) fn build_table_page_part(
    artifact: &Artifact,
    profile: &str,
    outcome: &GridOutcome,
    table: Option<&Table>,
    figures: Vec<FigureView>,
) -> PagePart {
    let all = outcome.cells.len();
    let status = match (outcome.failed_count(), outcome.incomplete_count()) {
        (0, 0) => PageArtifact::COMPLETE.to_owned(),
        (0, incomplete) => format!("{incomplete} of {all} cells not computed"),
        (failed, 0) => format!("{failed} of {all} cells failed"),
        (failed, incomplete) => format!("{failed} of {all} cells failed, {incomplete} not computed"),
    };
    let cells = outcome
        .cells
        .iter()
        .map(|result| (result.cell.to_string(), cell_note(result, artifact.file.path(), profile, outcome)))
        .collect();
    let artifact = PageArtifact {
        profile: profile.to_owned(),
        status,
        tables: table.map(|table| saved_table(artifact, table)).into_iter().collect(),
        figures,
        computed: summarize_origins(outcome),
        inputs: outcome.inputs.clone(),
        ..base_page_artifact(artifact)
    };
    PagePart { artifact, cells }
}

/// Converts the table of an artifact into its saved form. Marks the columns that the description does not request.
fn saved_table(artifact: &Artifact, table: &Table) -> SavedTable {
    let mut saved = SavedTable::from(table);
    if let Some(entry) = &artifact.description.table {
        // The text columns come before the number columns.
        let text_columns = saved.columns.len() - table.columns.len();
        for (column, number) in saved.columns[text_columns..].iter_mut().zip(&table.columns) {
            column.unasked = is_added_automatically(entry, &number.metric);
        }
    }
    saved
}

/// Groups the stored results of a run by the commit and machine that computed them.
fn summarize_origins(outcome: &GridOutcome) -> Vec<ComputedBy> {
    let origins = outcome.cells.iter().flat_map(|result| &result.made_from);
    let distinct: BTreeMap<&String, &UsedObject> = origins.map(|origin| (&origin.key, origin)).collect();
    let mut all: BTreeMap<(String, String), ComputedBy> = BTreeMap::new();
    for origin in distinct.into_values() {
        let lines: BTreeMap<String, String> = format_origin(&origin.made).into_iter().collect();
        let commit = line_value(&lines, "commit");
        let machine = line_value(&lines, "machine");
        let entry = all.entry((commit.clone(), machine.clone())).or_insert_with(|| ComputedBy {
            commit,
            machine,
            ..ComputedBy::default()
        });
        entry.results += 1;
        entry.seconds += origin.seconds;
        if let Some(finished) = json_text(&origin.made["finished"]) {
            if entry.first.is_empty() || finished < entry.first {
                entry.first.clone_from(&finished);
            }
            entry.last = finished.max(std::mem::take(&mut entry.last));
        }
    }
    all.into_values().collect()
}

fn line_value(lines: &BTreeMap<String, String>, name: &str) -> String {
    lines.get(name).cloned().unwrap_or_default()
}

pub(super) fn build_list_page_part(artifact: &Artifact, list: &NameList) -> PagePart {
    let columns = list.heads.iter().enumerate().map(|(at, head)| {
        // A column gets a filter if it has at most half as many distinct texts as rows.
        let texts: BTreeSet<&String> = list.rows.iter().map(|row| &row[at]).collect();
        let choice = 2 * texts.len() <= list.rows.len();
        SavedColumn { label: at == list.label, choice, ..SavedColumn::with_name(head) }
    });
    let view = SavedTable::from_texts(columns.collect(), &list.rows);
    PagePart { artifact: PageArtifact { tables: vec![view], ..base_page_artifact(artifact) }, cells: BTreeMap::new() }
}

pub(super) fn build_search_page_part(
    artifact: &Artifact,
    profile: &str,
    table: &[Vec<String>],
    notes: Vec<String>,
    dense: &GridOutcome,
    provenance: Vec<(String, String)>,
) -> PagePart {
    let (heads, rows) = table.split_first().map_or((&[][..], &[][..]), |(heads, rows)| (heads.as_slice(), rows));
    let columns = heads.iter().map(SavedColumn::with_name).collect();
    let view = SavedTable { notes, ..SavedTable::from_texts(columns, rows) };
    let artifact = PageArtifact {
        profile: profile.to_owned(),
        status: PageArtifact::COMPLETE.to_owned(),
        tables: vec![view],
        provenance,
        computed: summarize_origins(dense),
        inputs: dense.inputs.clone(),
        ..base_page_artifact(artifact)
    };
    PagePart { artifact, cells: BTreeMap::new() }
}

fn base_page_artifact(artifact: &Artifact) -> PageArtifact {
    PageArtifact {
        name: artifact.name.clone(),
        title: format!("{}: {}", printed(&artifact.name), artifact.description.title),
        caption: artifact.description.caption.clone().unwrap_or_default(),
        ..PageArtifact::default()
    }
}

fn cell_note(result: &CellResult, file: &Path, profile: &str, outcome: &GridOutcome) -> CellNote {
    let cell = result.cell.to_string();
    let mut lines = vec![("layers removed".to_owned(), result.removed.to_string())];
    lines.extend(outcome.engines.get(&result.cell.backbone).map(|engine| ("engine".to_owned(), engine.to_string())));
    lines.extend(result.failure.iter().map(|reason| ("failed".to_owned(), reason.clone())));
    lines.extend(result.missing.iter().map(|what| ("not computed".to_owned(), what.clone())));
    lines.extend(result.notes().into_iter().map(|note| ("note".to_owned(), note)));
    for boundary in &result.boundaries {
        let boundary_name = format!("boundary of layer {}", boundary.region.0);
        lines.push((boundary_name, format!("mean absolute error {:.4}", boundary.numbers.boundary_mae)));
    }
    lines.push((SECONDS.to_owned(), format!("{:.1}", result.seconds)));
    let profile = if profile.is_empty() { String::new() } else { format!(" --profile {profile}") };
    let mut makers: Vec<Vec<(String, String)>> = Vec::new();
    let parts = result.made_from.iter().map(|origin| {
        let maker = format_origin(&origin.made);
        let index = makers.iter().position(|known| *known == maker).unwrap_or_else(|| {
            makers.push(maker);
            makers.len() - 1
        });
        ObjectNote {
            kind: origin.kind.to_owned(),
            key: origin.key.clone(),
            finished: json_text(&origin.made["finished"]).unwrap_or_default(),
            seconds: (origin.seconds * 100.0).round() / 100.0,
            maker: index,
        }
    });
    let parts = parts.collect();
    let inputs = outcome.inputs.iter().filter(|(path, _)| result.inputs.contains(*path));
    CellNote {
        title: cell.clone(),
        identity: json!(result.identity.as_deref()),
        lines,
        commands: vec![format!("cargo run --release -- explain {}{profile} {cell}", file.display())],
        makers,
        parts,
        inputs: inputs.map(|(path, hash)| (path.clone(), hash.clone())).collect(),
    }
}

/// Formats the origin of a stored object (see [`crate::machine::provenance`]) as name-value pairs.
fn format_origin(provenance: &Value) -> Vec<(String, String)> {
    let dirty = if provenance["dirty"] == true { ", with uncommitted changes" } else { "" };
    let words =
        provenance["command"].as_array().map(|words| words.iter().filter_map(Value::as_str).collect::<Vec<_>>());
    let machine = &provenance["machine"];
    let cores = json_text(&machine["threads"]).map(|threads| format!("{threads} threads"));
    let features = machine["cpu_features"].as_array().map(|all| all.iter().filter_map(Value::as_str));
    let features = features.map(|all| all.collect::<Vec<_>>().join(" ")).filter(|all| !all.is_empty());
    let [cpu, gpu, os, arch] = ["cpu", "gpu", "os", "arch"].map(|part| json_text(&machine[part]));
    let machine: Vec<String> = [cpu, gpu, cores, features, os, arch].into_iter().flatten().collect();
    let lines = [
        ("program", json_text(&provenance["ghostlab"]).map(|version| format!("ghostlab {version}"))),
        ("commit", json_text(&provenance["commit"]).map(|commit| format!("{commit}{dirty}"))),
        ("command", words.filter(|words| !words.is_empty()).map(|words| words.join(" "))),
        ("machine", Some(machine.join(", ")).filter(|text| !text.is_empty())),
    ];
    lines.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn json_text(value: &Value) -> Option<String> {
    (!value.is_null()).then(|| value_text(value))
}
