//! Tables of the results page. The script sorts and filters their rows.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::data::CellNote;
use super::html::cell_id;
use crate::error::{Error, Result};
use crate::results::{SavedCell, SavedColumn, SavedComparison, SavedRow, SavedSignificance, SavedTable};

/// Maximum length of the texts in a column that does not wrap, in characters.
const MAX_NOWRAP_CHARS: usize = 36;

/// Minimum number of rows for which a filter is offered.
const MIN_FILTER_ROWS: usize = 6;

/// Maximum number of rows in a table that does not scroll.
const MAX_UNSCROLLED_ROWS: usize = 24;

#[derive(Debug, Serialize)]
pub(super) struct PageTable {
    id: String,
    name: String,
    caption: String,
    /// Whether only screen readers get the caption, because the heading above already shows its text.
    is_hidden: bool,
    is_filtered: bool,
    /// Whether the rows scroll in a frame.
    is_long: bool,
    choices: Vec<RowChoice>,
    protocol: String,
    notes: Vec<String>,
    /// Header rows. There are two if columns share a heading, otherwise one.
    heads: Vec<Vec<HeaderCell>>,
    rows: Vec<PageRow>,
}

/// Filter that selects rows by their value in one column.
#[derive(Debug, Serialize)]
struct RowChoice {
    name: String,
    column: usize,
    texts: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct HeaderCell {
    text: String,
    class: String,
    /// Index of the column, or `None` for a heading that spans several columns.
    column: Option<usize>,
    /// Number of columns that the header cell spans.
    columns: usize,
    /// Number of header rows that the header cell spans.
    rows: usize,
    higher_is_better: Option<bool>,
}

#[derive(Debug, Serialize)]
struct PageRow {
    id: Option<String>,
    group: Option<String>,
    group_class: &'static str,
    /// Whether the cell in the group column labels the row.
    is_label: bool,
    ours: bool,
    cells: Vec<TableCell>,
}

#[derive(Debug, Serialize)]
struct TableCell {
    class: String,
    is_label: bool,
    /// Whether to mark the cell as the label of our method.
    says_ours: bool,
    /// Sort key of a numeric cell, or `None` if the cell is sorted by its text.
    sort: Option<String>,
    text: String,
    /// Deviation after `±`. It moves below the number if space is short.
    deviation: String,
    best: bool,
    second: bool,
    /// Id of the note that opens when the number is clicked.
    link: Option<String>,
    /// Link target of the text, or `None` if the text is not a URL.
    address: Option<String>,
    error: String,
    error_kind: String,
    items: Option<usize>,
    mark: Option<SavedSignificance>,
    #[serde(rename = "beside")]
    comparison: Option<ComparisonBadge>,
}

#[derive(Debug, Serialize)]
struct ComparisonBadge {
    #[serde(flatten)]
    comparison: SavedComparison,
    sign: &'static str,
    word: &'static str,
    /// Differences from the paper's protocol, or `None` if it was followed.
    unlike: Option<String>,
}

/// Builds the template values for a table. `id` must be unique on the page, and `name` is used in the URL. `title` is
/// the caption if the table has none.
///
/// # Errors
/// Fails if the number of cells in a row differs from the number of columns.
pub(super) fn build_table(
    view: &SavedTable,
    (id, name): (String, String),
    title: &str,
    notes: &BTreeMap<String, CellNote>,
    may_scroll: bool,
) -> Result<PageTable> {
    if let Some((index, row)) = view.rows.iter().enumerate().find(|(_, row)| row.cells.len() != view.columns.len()) {
        return Err(Error::job("a table row has the wrong number of cells")
            .at(format!("{title}, row {}", index + 1))
            .expected(format!("{} cells", view.columns.len()))
            .found(format!("{} cells", row.cells.len())));
    }
    let view = &keep_requested_columns(view);
    let layout = TableLayout::new(view);
    Ok(PageTable {
        id,
        name,
        caption: if view.caption.is_empty() { title.to_owned() } else { view.caption.clone() },
        is_hidden: view.caption.is_empty(),
        is_filtered: view.rows.len() >= MIN_FILTER_ROWS,
        is_long: may_scroll && view.rows.len() > MAX_UNSCROLLED_ROWS,
        choices: layout.build_choices(view),
        protocol: view.protocol.clone(),
        notes: view.notes.clone(),
        heads: layout.build_heads(view),
        rows: view.rows.iter().map(|row| layout.build_row(view, row, notes)).collect(),
    })
}

fn keep_requested_columns(view: &SavedTable) -> SavedTable {
    let shown: Vec<usize> = (0..view.columns.len()).filter(|&at| !view.columns[at].unasked).collect();
    SavedTable {
        columns: shown.iter().map(|&at| view.columns[at].clone()).collect(),
        rows: view
            .rows
            .iter()
            .map(|row| SavedRow { cells: shown.iter().map(|&at| row.cells[at].clone()).collect(), ..row.clone() })
            .collect(),
        ..view.clone()
    }
}

struct TableLayout<'a> {
    /// Name of the first column, which shows the groups, or `None` if rows have no groups.
    group: Option<&'a str>,
    /// Index of the label column, or `None` if the group column labels the rows.
    label: Option<usize>,
    /// Whether each column contains a text that is long enough to wrap.
    is_prose: Vec<bool>,
}

impl<'a> TableLayout<'a> {
    fn new(view: &'a SavedTable) -> Self {
        let name = if view.group_name.is_empty() { "Group" } else { view.group_name.as_str() };
        let is_prose = (0..view.columns.len())
            .map(|column| view.rows.iter().any(|row| row.cells[column].text.chars().count() > MAX_NOWRAP_CHARS))
            .collect();
        let group = view.rows.iter().any(|row| row.group.is_some()).then_some(name);
        Self { group, label: find_label_column(&view.columns, group.is_some()), is_prose }
    }

    fn position(&self, column: usize) -> usize {
        column + usize::from(self.group.is_some())
    }

    fn build_choices(&self, view: &SavedTable) -> Vec<RowChoice> {
        let mut choices = Vec::new();
        if let Some(name) = self.group {
            choices.extend(build_choice(name, 0, view.rows.iter().map(|row| row.group.as_deref().unwrap_or(""))));
        }
        for (index, column) in view.columns.iter().enumerate().filter(|(_, column)| column.choice) {
            let texts = view.rows.iter().map(|row| row.cells[index].text.as_str());
            choices.extend(build_choice(&column.name, self.position(index), texts));
        }
        choices
    }

    fn build_heads(&self, view: &SavedTable) -> Vec<Vec<HeaderCell>> {
        let rows = if view.columns.iter().any(|column| column.group.is_some()) { 2 } else { 1 };
        let mut upper = Vec::new();
        let mut lower = Vec::new();
        upper.extend(self.group.map(|name| HeaderCell {
            text: name.to_owned(),
            class: self.group_class().to_owned(),
            column: Some(0),
            columns: 1,
            rows,
            higher_is_better: None,
        }));
        let columns: Vec<(usize, &SavedColumn)> = view.columns.iter().enumerate().collect();
        for together in columns.chunk_by(|(_, a), (_, b)| a.group.is_some() && a.group == b.group) {
            let heading = together.first().and_then(|(_, column)| column.group.clone());
            let (row, rows) = if heading.is_some() { (&mut lower, 1) } else { (&mut upper, rows) };
            row.extend(together.iter().map(|(index, column)| HeaderCell {
                text: column.name.clone(),
                class: self.class(*index, column, false),
                column: Some(self.position(*index)),
                columns: 1,
                rows,
                higher_is_better: column.higher_is_better,
            }));
            let class = "over".to_owned();
            let columns = together.len();
            upper.extend(heading.map(|text| HeaderCell { text, class, columns, rows: 1, ..HeaderCell::default() }));
        }
        [upper, lower].into_iter().filter(|row| !row.is_empty()).collect()
    }

    fn build_row(&self, view: &SavedTable, row: &SavedRow, notes: &BTreeMap<String, CellNote>) -> PageRow {
        let cells = view.columns.iter().zip(&row.cells).enumerate().map(|(index, (column, cell))| {
            let is_label = Some(index) == self.label;
            let (text, deviation) = match cell.text.split_once(" ± ") {
                Some((text, deviation)) if column.numeric => (text, deviation),
                _ => (cell.text.as_str(), ""),
            };
            TableCell {
                class: self.class(index, column, cell.failed),
                is_label,
                says_ours: is_label && row.ours && !cell.text.to_lowercase().contains("ours"),
                sort: sort_value(column, cell),
                text: text.to_owned(),
                deviation: deviation.to_owned(),
                best: cell.best,
                second: cell.second,
                address: link_target(column, &cell.text),
                error: cell.error.clone(),
                error_kind: cell.error_kind.clone(),
                items: cell.items,
                link: cell.key.as_deref().filter(|key| notes.contains_key(*key)).map(cell_id),
                mark: cell.mark.clone(),
                comparison: cell.comparison.as_ref().map(comparison_badge),
            }
        });
        PageRow {
            id: row.anchor.clone(),
            group: self.group.map(|_| row.group.clone().unwrap_or_default()),
            is_label: self.label.is_none(),
            group_class: self.group_class(),
            ours: row.ours,
            cells: cells.collect(),
        }
    }

    fn group_class(&self) -> &'static str {
        if self.label.is_none() { "t g l" } else { "t g" }
    }

    /// Returns the CSS classes of a cell: `t` for text, `p` for text that wraps, `l` for labels and `failed` for failed
    /// cells.
    fn class(&self, index: usize, column: &SavedColumn, failed: bool) -> String {
        let kind = match (column.numeric, self.is_prose[index]) {
            (true, _) => "",
            (false, true) => "t p",
            (false, false) => "t",
        };
        let label = if Some(index) == self.label { "l" } else { "" };
        let all = [kind, label, if failed { "failed" } else { "" }];
        all.into_iter().filter(|class| !class.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the index of the label column: the column marked as such, or else the last text column before the first
/// number. Without either, it is the first column, or `None` if the rows have a group column and the table has numbers.
fn find_label_column(columns: &[SavedColumn], has_group: bool) -> Option<usize> {
    if let Some(marked) = columns.iter().position(|column| column.label) {
        return Some(marked);
    }
    let first = columns.iter().position(|column| column.numeric && !column.choice);
    let text = columns[..first.unwrap_or_default()].iter().rposition(|column| !column.numeric);
    text.or((first.is_none() || !has_group).then_some(0))
}

/// Returns a filter for the distinct texts in a column, or `None` if all texts are equal.
fn build_choice<'t>(name: &str, column: usize, texts: impl Iterator<Item = &'t str>) -> Option<RowChoice> {
    let mut seen = BTreeSet::new();
    let texts: Vec<String> = texts.filter(|text| !text.is_empty() && seen.insert(*text)).map(str::to_owned).collect();
    (texts.len() > 1).then(|| RowChoice { name: name.to_owned(), column, texts })
}

/// Returns the text as a link target, or `None` if it is not a URL.
fn link_target(column: &SavedColumn, text: &str) -> Option<String> {
    (!column.numeric
        && text.starts_with("https://")
        && text.chars().all(|c| c.is_ascii_graphic() && !"<>\"'`".contains(c)))
    .then(|| text.to_owned())
}

fn sort_value(column: &SavedColumn, cell: &SavedCell) -> Option<String> {
    let text = cell.text.parse::<f64>().ok();
    // A sort key is needed only if the printed text does not determine the value.
    let decimals = cell.text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    match cell.value.filter(|value| value.is_finite()) {
        _ if !column.numeric => None,
        Some(value) => (format!("{value:.decimals$}") != cell.text).then(|| value.to_string()),
        None => text.map(|_| String::new()),
    }
}

fn comparison_badge(comparison: &SavedComparison) -> ComparisonBadge {
    ComparisonBadge {
        sign: comparison.verdict.sign(),
        word: comparison.verdict.label(),
        unlike: comparison.verdict.other_protocol(),
        comparison: comparison.clone(),
    }
}
