//! Values for the templates of the page body.
//!
//! The script shows one note at a time, next to the number that it belongs to. Without the script, the notes stay at
//! the end of the page.

use std::collections::{BTreeMap, BTreeSet};

use percent_encoding::utf8_percent_encode;
use serde::Serialize;

use super::data::{CellNote, ClaimRow, ComputedBy, Page, PageArtifact};
use super::figure::{self, PageFigure};
use super::html::{ENCODED_IN_PATHS, artifact_id, cell_id};
use super::html_table::{self, PageTable};
use super::summary::{self, VerdictCount};
use crate::artifact::audit::{Finding, Severity};
use crate::artifact::{PaperPlace, printed};
use crate::error::Result;
use crate::quantity::pluralize;
use crate::results::{PaperVerdict, SavedCell, SavedColumn, SavedRow, SavedTable, capital};

/// Number of values compared with the paper, by verdict.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Tally {
    same: usize,
    differs: usize,
    other_protocol: usize,
    missing: usize,
    all: usize,
}

impl Tally {
    fn from_tables<'t>(tables: impl IntoIterator<Item = &'t SavedTable>) -> Self {
        let mut tally = Self::default();
        let cells = tables.into_iter().flat_map(|table| &table.rows).flat_map(|row| &row.cells);
        for comparison in cells.filter_map(|cell| cell.comparison.as_ref()) {
            *match comparison.verdict {
                PaperVerdict::Same => &mut tally.same,
                PaperVerdict::Differs => &mut tally.differs,
                PaperVerdict::OtherProtocol(_) => &mut tally.other_protocol,
                PaperVerdict::Missing => &mut tally.missing,
            } += 1;
            tally.all += 1;
        }
        tally
    }

    pub(super) fn is_empty(self) -> bool {
        self.all == 0
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Section<'a> {
    id: String,
    title: &'a str,
    artifact: &'a PageArtifact,
    /// Whether the section comes before the claims.
    is_leading: bool,
    /// Whether tables and figures are collapsed initially.
    is_folded: bool,
    is_in_paper: bool,
    /// Summary shown for a collapsed section, such as `57 rows`.
    extent: String,
    pub(super) tally: Tally,
    tables: Vec<PageTable>,
    figures: Vec<PageFigure<'a>>,
    /// Provenance of the numbers, as name-value pairs: when and by which commit they were computed, and how long it
    /// took.
    computed: Vec<(&'static str, String)>,
    /// Claims about this artifact, each with the id of its row.
    claims: Vec<(String, &'a ClaimRow)>,
    verdicts: Vec<VerdictCount>,
    /// Name and path of each file, and the link to it if there is one.
    files: Vec<(&'a str, &'a str, Option<String>)>,
}

#[derive(Debug, Serialize)]
pub(super) struct PageProfile<'a> {
    name: &'a str,
    tally: Tally,
    artifacts: Vec<ArtifactLink<'a>>,
    /// Links to the artifacts that are not in the paper.
    beyond: Vec<ArtifactLink<'a>>,
}

/// Returns the profile of the main table. If there is no main table, returns the first profile with a name.
pub(super) fn first_profile(page: &Page) -> &str {
    let main = page.artifacts.iter().find(|artifact| artifact.name == page.headline);
    let named = page.artifacts.iter().find(|artifact| !artifact.profile.is_empty());
    main.or(named).map_or("", |artifact| &artifact.profile)
}

/// Returns the profile under which an artifact is shown. A list of methods or checkpoints has no profile and is shown
/// under the page's first one.
pub(super) fn shown_profile<'a>(artifact: &'a PageArtifact, page: &'a Page) -> &'a str {
    if artifact.profile.is_empty() { first_profile(page) } else { &artifact.profile }
}

fn is_in_first_profile_too(artifact: &PageArtifact, page: &Page) -> bool {
    let first = first_profile(page);
    shown_profile(artifact, page) != first
        && page.artifacts.iter().any(|other| other.name == artifact.name && other.profile == first)
}

#[derive(Debug, Serialize)]
struct ArtifactLink<'a> {
    id: &'a str,
    name: &'a str,
    title: &'a str,
    is_leading: bool,
    tally: Tally,
}

/// Builds the section for an artifact.
///
/// # Errors
/// Fails in the same cases as [`html_table::build_table`] and [`figure::build_figure`].
pub(super) fn build_section<'a>(artifact: &'a PageArtifact, page: &'a Page, is_leading: bool) -> Result<Section<'a>> {
    let id = artifact_id(&artifact.profile, &artifact.name);
    let place_in_paper = PaperPlace::from_name(&artifact.name);
    let claims: Vec<(String, &ClaimRow)> = page
        .claims
        .iter()
        .enumerate()
        .filter_map(|(at, claim)| {
            let is_own =
                claim.artifact == artifact.name && (claim.profile.is_empty() || claim.profile == artifact.profile);
            is_own.then(|| (summary::claim_anchor(at), claim))
        })
        .collect();
    Ok(Section {
        title: heading(artifact),
        artifact,
        is_leading,
        is_folded: !is_leading
            && (!matches!(place_in_paper, PaperPlace::Main(_)) || is_in_first_profile_too(artifact, page)),
        is_in_paper: place_in_paper != PaperPlace::Beyond,
        extent: format_extent(artifact),
        tally: Tally::from_tables(&artifact.tables),
        tables: artifact
            .tables
            .iter()
            .enumerate()
            .map(|(number, view)| {
                let ids = (format!("{id}:table{}", number + 1), table_id(artifact, number));
                html_table::build_table(view, ids, heading(artifact), &page.cells, !is_leading)
                    .map_err(|error| error.at(format!("artifact {}", artifact.name)))
            })
            .collect::<Result<_>>()?,
        figures: artifact.figures.iter().map(|view| figure::build_figure(view, artifact)).collect::<Result<_>>()?,
        computed: artifact.computed.iter().map(|part| ("computed", format_origin(part))).collect(),
        verdicts: summary::count_verdicts(&ClaimRow::by_sentence(claims.iter().map(|(_, claim)| *claim), |claim| {
            claim.verdict
        })),
        claims,
        files: artifact.files.iter().map(|(name, path)| (name.as_str(), path.as_str(), relative_link(path))).collect(),
        id,
    })
}

fn table_id(artifact: &PageArtifact, number: usize) -> String {
    match artifact.tables.len() {
        1 => url_name(artifact),
        _ => format!("{}:{}", url_name(artifact), number + 1),
    }
}

fn heading(artifact: &PageArtifact) -> &str {
    if artifact.title.is_empty() { &artifact.name } else { &artifact.title }
}

/// Returns the name of a table as used in the URL, such as `tiny/table2`.
fn url_name(artifact: &PageArtifact) -> String {
    let slash = if artifact.profile.is_empty() { "" } else { "/" };
    format!("{}{slash}{}", artifact.profile, artifact.name)
}

/// Returns the link to a file, or `None` if the path is absolute or a URL.
fn relative_link(path: &str) -> Option<String> {
    let is_external = path.is_empty() || path.starts_with('/') || path.contains([':', '\\']);
    (!is_external).then(|| utf8_percent_encode(path, ENCODED_IN_PATHS).to_string())
}

/// Formats an origin, for example `690 results in 12 min of computing, TIME to TIME; commit 0123456789ab; MACHINE`.
fn format_origin(by: &ComputedBy) -> String {
    let time = match by.seconds {
        seconds if seconds < 100.0 => format!("{seconds:.1} s"),
        seconds if seconds < 6000.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    };
    let results = pluralize(by.results, "result");
    let when = format!("{results} in {time} of computing, {} to {}", by.first, by.last);
    let commit = if by.commit.is_empty() { String::new() } else { format!("commit {}", shorten_commit(&by.commit)) };
    let parts = [when.as_str(), &commit, &by.machine];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

fn format_extent(artifact: &PageArtifact) -> String {
    let rows: usize = artifact.tables.iter().map(|table| table.rows.len()).sum();
    let counts = [(rows, "row"), (artifact.figures.len(), "figure")].into_iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, noun)| pluralize(count, noun)).collect::<Vec<_>>().join(", ")
}

pub(super) fn group_by_profile<'a>(sections: &'a [Section<'a>], page: &'a Page) -> Vec<PageProfile<'a>> {
    let together = sections.chunk_by(|a, b| shown_profile(a.artifact, page) == shown_profile(b.artifact, page));
    together
        .map(|sections| PageProfile {
            name: sections.first().map_or("", |section| shown_profile(section.artifact, page)),
            tally: Tally::from_tables(sections.iter().flat_map(|section| &section.artifact.tables)),
            artifacts: sections.iter().filter(|section| section.is_in_paper).map(link_to).collect(),
            beyond: sections.iter().filter(|section| !section.is_in_paper).map(link_to).collect(),
        })
        .collect()
}

fn link_to<'a>(section: &'a Section<'a>) -> ArtifactLink<'a> {
    ArtifactLink {
        id: &section.id,
        name: &section.artifact.name,
        title: section.title,
        is_leading: section.is_leading,
        tally: section.tally,
    }
}

/// Section that consists of a table without numbers.
#[derive(Debug, Serialize)]
pub(super) struct PageList {
    id: &'static str,
    title: &'static str,
    caption: String,
    table: PageTable,
}

/// Builds the section with all claims. Returns `None` if there are none.
///
/// # Errors
/// Fails in the same cases as [`html_table::build_table`].
pub(super) fn build_claims(claims: &[ClaimRow]) -> Result<Option<PageList>> {
    let ours = Some("Ours".to_owned());
    let theirs = Some("The paper's own numbers".to_owned());
    let several = claims.iter().any(|claim| claim.profile != claims[0].profile);
    let columns = vec![
        SavedColumn { label: true, ..SavedColumn::with_name("What the paper says") },
        SavedColumn { group: ours.clone(), choice: true, ..SavedColumn::with_name("Verdict") },
        SavedColumn { group: ours, ..SavedColumn::with_name("True in") },
        SavedColumn { group: theirs.clone(), choice: true, ..SavedColumn::with_name("Verdict") },
        SavedColumn { group: theirs, ..SavedColumn::with_name("True in") },
        SavedColumn { choice: true, ..SavedColumn::with_name("Counted in") },
        SavedColumn::with_name("Where"),
    ];
    let caption = "Each sentence of the paper as a check: in how many settings it is true of our numbers, and of those \
                   that the paper prints. Unknown: a number that it rests on is missing, or is no measurement.";
    // Only numbers measured on the paper's own models can refute the paper.
    let is_toy = claims.iter().any(|claim| !["", PAPER_PROFILE].contains(&claim.profile.as_str()));
    let caption = if is_toy { format!("{TOY_MODELS} {caption}") } else { caption.to_owned() };
    let rows = claims.iter().enumerate().map(|(at, claim)| claim_row(at, claim, several)).collect();
    build_list(("claims", "Claims", caption), &SavedTable { columns, rows, ..SavedTable::default() })
}

fn claim_row(at: usize, claim: &ClaimRow, has_several_profiles: bool) -> SavedRow {
    let is_named = has_several_profiles && !claim.profile.is_empty();
    let profile = if is_named { format!(", {}", claim.profile) } else { String::new() };
    let counted = match claim.artifact.as_str() {
        "" => format!("several{profile}"),
        name => format!("{}{profile}", printed(name)),
    };
    SavedRow {
        anchor: Some(summary::claim_anchor(at)),
        cells: vec![
            SavedCell::from_text(&claim.claim),
            SavedCell { best: true, ..SavedCell::from_text(claim.verdict.label()) },
            SavedCell::from_text(&claim.ours),
            SavedCell::from_text(claim.paper_verdict.label()),
            SavedCell::from_text(&claim.paper),
            SavedCell::from_text(counted),
            SavedCell::from_text(&claim.section),
        ],
        ..SavedRow::default()
    }
}

/// Profile that uses the paper's own models.
const PAPER_PROFILE: &str = "paper";
/// Caveat for claims that are judged by results from other models.
const TOY_MODELS: &str = "On small models, a claim that fails is not refuted for the paper's models, and a claim that holds \
                          is confirmed for these models only.";

/// Builds the section with all audit findings. Returns `None` if there are none.
///
/// # Errors
/// Fails in the same cases as [`html_table::build_table`].
pub(super) fn build_findings(findings: &[Finding]) -> Result<Option<PageList>> {
    let caption = Severity::ALL.map(|severity| format!("{}: {}.", capital(severity.name()), severity.about()));
    let caption = format!("Inconsistencies in the paper's own tables. {}", caption.join(" "));
    let view = SavedTable {
        columns: label_columns(&["Rule", "Where", "Expected", "Found", "Note"], 0),
        rows: findings
            .iter()
            .map(|Finding { severity, check, artifact, row, column, expected, found, note, .. }| SavedRow {
                group: Some(severity.name().to_owned()),
                cells: [check.description(), &format!("{artifact}: {row}, {column}"), expected, found, note]
                    .map(SavedCell::from_text)
                    .to_vec(),
                ..SavedRow::default()
            })
            .collect(),
        group_name: "Severity".to_owned(),
        ..SavedTable::default()
    };
    build_list(("findings", "Findings", caption), &view)
}

/// Builds the section with the folders that were left out. Returns `None` if there are none.
///
/// # Errors
/// Fails in the same cases as [`html_table::build_table`].
pub(super) fn build_left_out(folders: &[(String, String)]) -> Result<Option<PageList>> {
    let rows: Vec<Vec<String>> = folders.iter().map(|(folder, reason)| vec![folder.clone(), reason.clone()]).collect();
    let caption = "Results folders that are not on this page.".to_owned();
    build_list(("left-out", "Left out", caption), &SavedTable::from_texts(label_columns(&["Folder", "Why"], 1), &rows))
}

/// Returns columns for text. The first column labels the rows, and rows can be filtered by the column with index
/// `choice`.
fn label_columns(names: &[&str], choice: usize) -> Vec<SavedColumn> {
    names
        .iter()
        .enumerate()
        .map(|(index, name)| SavedColumn {
            label: index == 0,
            choice: index == choice,
            ..SavedColumn::with_name(*name)
        })
        .collect()
}

/// Builds a section with a single table. Returns `None` if the table is empty.
fn build_list(
    (id, title, caption): (&'static str, &'static str, String),
    view: &SavedTable,
) -> Result<Option<PageList>> {
    if view.rows.is_empty() {
        return Ok(None);
    }
    let table = html_table::build_table(view, (format!("{id}:table"), id.to_owned()), title, &BTreeMap::new(), false)?;
    Ok(Some(PageList { id, title, caption, table }))
}

type Pairs = Vec<(String, String)>;

/// Note on the provenance of a cell.
#[derive(Debug, Serialize)]
pub(super) struct Note<'a> {
    id: String,
    /// Key of the cell, or `None` if the title already shows it.
    key: Option<&'a str>,
    title: &'a str,
    note: &'a CellNote,
    makers: Vec<SharedNoteLink>,
    inputs: Option<SharedNoteLink>,
}

/// Link that the script replaces with the text of a shared note.
#[derive(Debug, Clone, Serialize)]
struct SharedNoteLink {
    id: String,
    text: String,
}

/// Note whose text is shared by several other notes.
#[derive(Debug, Serialize)]
pub(super) struct SharedNote<'a> {
    id: String,
    /// Program, commit, command and machine of an origin, as name-value pairs.
    lines: Option<&'a Pairs>,
    /// SHA-256 of each input file, keyed by path.
    inputs: Option<&'a BTreeMap<String, String>>,
}

/// Returns the notes that numbers in tables link to, and the shared notes to which these refer.
pub(super) fn collect_notes(page: &Page) -> (Vec<Note<'_>>, Vec<SharedNote<'_>>) {
    let tables = page.artifacts.iter().flat_map(|artifact| &artifact.tables);
    let numbers = tables.flat_map(|table| &table.rows).flat_map(|row| &row.cells);
    let opened: BTreeSet<&String> = numbers.filter_map(|cell| cell.key.as_ref()).collect();
    let mut makers = Vec::new();
    let mut inputs = Vec::new();
    let mut notes = Vec::new();
    for (key, note) in page.cells.iter().filter(|(key, _)| opened.contains(key)) {
        let makers = note.makers.iter().map(|maker| {
            let words: Vec<&str> = maker.iter().take(2).map(|(_, value)| shorten_commit(value)).collect();
            SharedNoteLink { id: format!("maker-{}", index_or_append(&mut makers, maker)), text: words.join(", ") }
        });
        let is_in_key = key.ends_with(&note.title);
        notes.push(Note {
            id: cell_id(key),
            key: (!is_in_key).then_some(key),
            title: if is_in_key { key } else { &note.title },
            note,
            makers: makers.collect(),
            inputs: (!note.inputs.is_empty()).then(|| SharedNoteLink {
                id: format!("inputs-{}", index_or_append(&mut inputs, &note.inputs)),
                text: format!("{} input files", note.inputs.len()),
            }),
        });
    }
    let makers = makers.into_iter().enumerate();
    let makers =
        makers.map(|(at, lines)| SharedNote { id: format!("maker-{}", at + 1), lines: Some(lines), inputs: None });
    let inputs = inputs.into_iter().enumerate();
    let inputs =
        inputs.map(|(at, inputs)| SharedNote { id: format!("inputs-{}", at + 1), lines: None, inputs: Some(inputs) });
    (notes, makers.chain(inputs).collect())
}

/// Shortens a value if it starts with a commit hash.
fn shorten_commit(value: &str) -> &str {
    match value.split_at_checked(40) {
        Some((commit, _)) if commit.bytes().all(|byte| byte.is_ascii_hexdigit()) => &commit[..12],
        _ => value,
    }
}

/// Returns the 1-based index of an item in `known`. Appends the item if it is new.
fn index_or_append<'a, T: PartialEq>(known: &mut Vec<&'a T>, one: &'a T) -> usize {
    let at = known.iter().position(|other| *other == one).unwrap_or_else(|| {
        known.push(one);
        known.len() - 1
    });
    at + 1
}
