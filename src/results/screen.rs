//! Tables for the terminal.
//!
//! Values shared by all rows are printed above the table, values shared by a block above the block, and remarks on
//! single rows below the table. A table that is still too wide is split into parts of about equal width.

use super::notes::WARNING;
use super::number_record::DENSE;
use super::settings::distinct;
use super::table::{PrintedNumber, RowHeaderKind, Table, Visibility};
use super::text::{NONE, TextColumn, TextTable, capital};
use crate::error::printable;
use crate::metric::MetricSource;

/// Formats a table for a terminal that is `width` columns wide. The best value is marked `*` and the second best `°`.
/// `+` or `-` marks our value if a paired test finds it significantly better or worse than the best other row. If
/// `width` is `None`, the output is not a terminal, and each row has all columns. Warnings are omitted, because runs
/// print them to stderr.
pub fn screen(table: &Table, width: Option<usize>) -> String {
    let mut text = if table.title.is_empty() { String::new() } else { format!("{}\n\n", table.title) };
    let is_shown = |visibility: Visibility| visibility != Visibility::Data;
    let texts = TextTable::new(table, is_shown, &|_, _, text, _| one_line(text), &format_numbers);
    match width {
        None => {
            let columns: Vec<usize> = (texts.lead..texts.columns.len()).collect();
            text.push_str(&ScreenTable::from_texts(texts).format_part(&columns));
        }
        Some(width) => text.push_str(&ScreenTable::condensed(texts, table, width).split_to_width(width)),
    }
    let mut legend = Vec::new();
    if table.has_ranks() {
        legend.push("* best, ° second best in each block".to_owned());
    }
    if table.has_significant_tests() {
        legend.push(format!("+ or -: {}", table.marks_legend()));
    }
    if !legend.is_empty() {
        text.push_str(&format!("\n{}\n", wrap(&legend.join("; "), width)));
    }
    let notes = table.footer_lines().filter(|note| !note.starts_with(WARNING));
    notes.for_each(|note| text.push_str(&format!("{}\n", wrap(note, width))));
    text
}

/// Joins the lines of a string, such as a failure reason, into one line.
fn one_line(text: &str) -> String {
    if text.is_empty() { NONE.to_owned() } else { text.split_whitespace().collect::<Vec<_>>().join(" ") }
}

/// Formats the numbers in a column, padded so that decimal points align even where ranks and marks follow.
fn format_numbers(all: &[Option<&PrintedNumber>]) -> Vec<String> {
    let ranks = all.iter().flatten().any(|shown| shown.best || shown.second);
    let marks = all.iter().flatten().any(|shown| !shown.mark().is_empty());
    all.iter().map(|shown| format_number(*shown, ranks, marks)).collect()
}

fn format_number(shown: Option<&PrintedNumber>, ranks: bool, marks: bool) -> String {
    let rank = match shown {
        Some(PrintedNumber { best: true, .. }) => "*",
        Some(PrintedNumber { second: true, .. }) => "°",
        _ => " ",
    };
    let mark = shown.map_or("", PrintedNumber::mark);
    let text = shown.map_or(NONE, |shown| &shown.text);
    let rank = if ranks { rank } else { "" };
    let mark = if marks { format!("{mark:<1}") } else { String::new() };
    format!("{text}{rank}{mark}")
}

/// Wraps a string into lines of at most `width` characters. A longer word gets a line of its own.
pub fn wrap(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// Table for the terminal, with the values that were moved out of its columns.
struct ScreenTable {
    texts: TextTable,
    /// Indices of the leading columns, which are repeated in every part of a split table.
    lead: Vec<usize>,
    /// Groups of column indices that stay in the same part.
    units: Vec<Vec<usize>>,
    /// Block headings, each with the index of the row below it.
    blocks: Vec<(usize, String)>,
    above: String,
    below: Vec<String>,
    /// Whether headers may be split over several lines.
    tall_heads: bool,
}

impl ScreenTable {
    /// Creates a table that shows all columns.
    fn from_texts(texts: TextTable) -> Self {
        let blocks = texts.breaks.iter().map(|row| (*row, String::new())).collect();
        let lead = (0..texts.lead).collect();
        Self { texts, lead, units: Vec::new(), blocks, above: String::new(), below: Vec::new(), tall_heads: false }
    }

    /// Moves values shared by several rows, and remarks on single rows, out of the columns.
    fn condensed(mut texts: TextTable, table: &Table, width: usize) -> Self {
        let tail = table.tail.iter().filter(|lead| lead.visibility != Visibility::Data);
        let tail: Vec<(RowHeaderKind, Visibility)> = tail.map(|lead| (lead.kind, lead.visibility)).collect();
        let first_tail = texts.columns.len() - tail.len();
        let remarks: Vec<usize> =
            (0..tail.len()).filter(|at| tail[*at].0 == RowHeaderKind::Remark).map(|at| first_tail + at).collect();
        let words: Vec<usize> = (0..texts.lead).chain(first_tail..texts.columns.len()).collect();
        let terminal: Vec<usize> =
            (0..tail.len()).filter(|at| tail[*at].1 == Visibility::Terminal).map(|at| first_tail + at).collect();
        let words: Vec<usize> =
            words.into_iter().filter(|at| !remarks.contains(at) && !terminal.contains(at)).collect();
        let is_dense: Vec<bool> = table.rows.iter().map(|row| row.dense).collect();
        let shared: Vec<(usize, SharedBy)> =
            words.iter().filter_map(|&at| Some((at, SharedBy::new(&texts.columns[at], &is_dense)?))).collect();
        let mut hidden: Vec<usize> = shared.iter().map(|(at, _)| *at).chain(remarks.iter().copied()).collect();
        let in_blocks = block_columns(&texts, &hidden);
        hidden.extend(&in_blocks);
        // Keep at least one column that names the rows.
        if texts.lead > 0 && (0..texts.lead).all(|at| hidden.contains(&at)) {
            hidden.retain(|at| *at + 1 != texts.lead);
        }
        label_dense_rows(&mut texts, &hidden, &is_dense);
        let blocks = block_heads(&texts, &in_blocks.into_iter().filter(|at| hidden.contains(at)).collect::<Vec<_>>());
        let above = shared_values_text(&texts, width, shared.iter().filter(|(at, _)| hidden.contains(at)));
        let below = remark_lines(&texts, &remarks, &hidden);
        let averages: Vec<usize> = (0..table.columns.len())
            .filter(|at| matches!(table.columns[*at].metric.source, MetricSource::Tasks(_) | MetricSource::Texts(_)))
            .map(|at| texts.lead + at)
            .collect();
        let mut screen = Self { texts, lead: Vec::new(), units: Vec::new(), blocks, above, below, tall_heads: false };
        screen.select_columns(&hidden, &averages);
        if !screen.fits(width) {
            // First drop the columns that only terminals show, such as times.
            screen.select_columns(&[hidden.as_slice(), &terminal].concat(), &averages);
        }
        screen.tall_heads = !screen.fits(width);
        screen
    }

    /// Selects which non-leading columns to show. An average stays in the same part as the last column it covers.
    fn select_columns(&mut self, hidden: &[usize], averages: &[usize]) {
        self.units.clear();
        for at in (self.texts.lead..self.texts.columns.len()).filter(|at| !hidden.contains(at)) {
            match self.units.last_mut() {
                Some(unit) if averages.contains(&at) => unit.push(at),
                _ => self.units.push(vec![at]),
            }
        }
        self.lead = (0..self.texts.lead).filter(|at| !hidden.contains(at)).collect();
    }

    fn fits(&self, width: usize) -> bool {
        self.total_width(&[self.lead.as_slice(), &self.units.concat()].concat()) <= width
    }

    /// Formats the table in as few parts as possible, each with the leading columns.
    fn split_to_width(&self, width: usize) -> String {
        let mut text = self.above.clone();
        let parts = split_units(&self.units, &|units: &[Vec<usize>]| {
            self.total_width(&[self.lead.as_slice(), &units.concat()].concat()) <= width
        });
        let count: usize = self.units.iter().map(Vec::len).sum();
        let mut from = 0;
        for part in &parts {
            let columns = part.concat();
            if parts.len() > 1 {
                let line = if from == 0 { "" } else { "\n" };
                let range = match columns.len() {
                    1 => format!("column {}", from + 1),
                    count => format!("columns {}–{}", from + 1, from + count),
                };
                text.push_str(&format!("{line}{range} of {count}\n"));
            }
            from += columns.len();
            text.push_str(&self.format_part(&columns));
        }
        if parts.is_empty() {
            text.push_str(&self.format_part(&[]));
        }
        for remark in &self.below {
            text.push_str(&format!("{}\n", wrap(remark, Some(width))));
        }
        text
    }

    /// Formats one part of the table. It shows the leading columns and `columns_after_lead`, with their headers above a
    /// rule.
    fn format_part(&self, columns_after_lead: &[usize]) -> String {
        let shown = self.lead.iter().chain(columns_after_lead);
        let columns: Vec<(usize, usize, &TextColumn)> =
            shown.map(|&at| (at, self.width(at), &self.texts.columns[at])).collect();
        let mut text = if self.texts.groups.is_empty() { String::new() } else { self.group_headers(&columns) };
        let height = columns.iter().map(|(_, _, column)| self.head(column).len()).max().unwrap_or(0);
        for row in 0..height {
            text.push_str(&joined_line(&columns, &|column| {
                let head = self.head(column);
                (row + head.len()).checked_sub(height).and_then(|at| head.get(at).cloned()).unwrap_or_default()
            }));
        }
        text.push_str(&format!("{}\n", rule_line(&columns, "─")));
        let total_width = columns.iter().map(|(_, width, _)| width + 2).sum::<usize>().saturating_sub(2);
        for row in 0..columns.first().map_or(0, |(_, _, column)| column.cells.len()) {
            match self.blocks.iter().find(|(at, _)| *at == row) {
                Some((_, head)) if !head.is_empty() => {
                    let rest = total_width.saturating_sub(head.chars().count() + 4);
                    text.push_str(&format!("┄┄ {head} {}\n", "┄".repeat(rest)));
                }
                Some(_) if row > 0 => text.push_str(&format!("{}\n", rule_line(&columns, "┄"))),
                _ => {}
            }
            text.push_str(&joined_line(&columns, &|column| column.cells[row].clone()));
        }
        printable(&text).into_owned()
    }

    /// Formats the headers of the column groups, limited to the columns shown.
    fn group_headers(&self, columns: &[(usize, usize, &TextColumn)]) -> String {
        let mut at = self.texts.lead;
        let mut text = " ".repeat(width_over(columns, &|at| at < self.texts.lead));
        for (head, count) in &self.texts.groups {
            let group = at..at + count;
            at += count;
            let width = width_over(columns, &|at| group.contains(&at));
            if width > 0 {
                text.push_str(&format!("{head:^0$}  ", width - 2));
            }
        }
        format!("{}\n", text.trim_end())
    }

    /// Splits a header into lines.
    fn head(&self, column: &TextColumn) -> Vec<String> {
        if !self.tall_heads {
            return vec![column.head.clone()];
        }
        let cells = column.cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let is_call = !column.head.contains(" (");
        let broken = column.head.replace('@', " @");
        let broken = if is_call { broken.replace('(', " (") } else { broken };
        let words: Vec<&str> = broken.split_whitespace().collect();
        let longest = words.iter().map(|word| word.chars().count()).max().unwrap_or(0);
        // Do not break headers into more lines than the width of the cells requires.
        let lines = wrap(&broken, Some(cells.max(longest)));
        let lines = lines.lines().map(|line| line.replace(" @", "@"));
        if is_call { lines.map(|line| line.replace(" (", "(")).collect() } else { lines.collect() }
    }

    fn width(&self, at: usize) -> usize {
        let column = &self.texts.columns[at];
        let head = self.head(column);
        column.cells.iter().chain(&head).map(|text| text.chars().count()).max().unwrap_or(0)
    }

    /// Returns the terminal width needed for the given columns.
    fn total_width(&self, columns: &[usize]) -> usize {
        columns.iter().map(|&at| self.width(at) + 2).sum::<usize>().saturating_sub(2)
    }
}

fn joined_line(columns: &[(usize, usize, &TextColumn)], text: &dyn Fn(&TextColumn) -> String) -> String {
    format!(
        "{}\n",
        columns
            .iter()
            .map(|(_, width, column)| match column.is_number {
                true => format!("{:>width$}", text(column)),
                false => format!("{:<width$}", text(column)),
            })
            .collect::<Vec<_>>()
            .join("  ")
            .trim_end()
    )
}

fn rule_line(columns: &[(usize, usize, &TextColumn)], sign: &str) -> String {
    columns.iter().map(|(_, width, _)| sign.repeat(*width)).collect::<Vec<_>>().join("  ")
}

fn width_over(columns: &[(usize, usize, &TextColumn)], is_kept: &dyn Fn(usize) -> bool) -> usize {
    columns.iter().filter(|(at, ..)| is_kept(*at)).map(|(_, width, _)| width + 2).sum::<usize>()
}

/// Rows that all have the same string in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SharedBy {
    All,
    /// All pruned rows. Dense rows have no value in the column.
    Pruned,
    /// No rows, because every cell in the column is empty.
    None,
}

impl SharedBy {
    /// Determines which rows share a string. Returns `None` if the strings differ or if there are fewer than two rows.
    fn new(column: &TextColumn, is_dense: &[bool]) -> Option<Self> {
        let known: Vec<(&String, bool)> =
            column.cells.iter().zip(is_dense.iter().copied()).filter(|(cell, _)| *cell != NONE).collect();
        let (first, _) = known.first().copied().unwrap_or((&column.head, false));
        let dense = is_dense.iter().filter(|dense| **dense).count();
        match known.len() {
            _ if column.cells.len() < 2 || known.iter().any(|(cell, _)| *cell != first) => None,
            0 => Some(Self::None),
            all if all == column.cells.len() => Some(Self::All),
            pruned if pruned + dense == column.cells.len() && known.iter().all(|(_, dense)| !dense) => {
                Some(Self::Pruned)
            }
            _ => None,
        }
    }
}

/// Formats the strings shared by all rows or by all pruned rows, which are printed above the table.
fn shared_values_text<'a>(
    texts: &TextTable,
    width: usize,
    shared: impl Iterator<Item = &'a (usize, SharedBy)>,
) -> String {
    let shared: Vec<&(usize, SharedBy)> = shared.collect();
    let mut text = String::new();
    for (by, rows) in [(SharedBy::All, "all rows"), (SharedBy::Pruned, "all pruned rows")] {
        let values = shared.iter().filter(|(_, index)| *index == by).map(|(at, _)| {
            let TextColumn { head, cells, .. } = &texts.columns[*at];
            let cell = cells.iter().find(|cell| *cell != NONE).map_or("", String::as_str);
            if head.is_empty() { cell.to_owned() } else { format!("{head} {cell}") }
        });
        let values: Vec<String> = values.collect();
        if !values.is_empty() {
            let line = format!("{}: {}", capital(rows), values.join(", "));
            text.push_str(&format!("{}\n", wrap(&line, Some(width))));
        }
    }
    if text.is_empty() { text } else { format!("{text}\n") }
}

/// Returns the leading columns that contain a single string in each block. Returns an empty list if there is only one
/// block, if no block has two rows, or if no other leading column would remain.
fn block_columns(texts: &TextTable, hidden: &[usize]) -> Vec<usize> {
    let rows = texts.columns.first().map_or(0, |column| column.cells.len());
    let starts: Vec<usize> = std::iter::once(0).chain(texts.breaks.iter().copied()).collect();
    let ends = starts.iter().skip(1).copied().chain([rows]);
    let blocks: Vec<std::ops::Range<usize>> = starts.iter().copied().zip(ends).map(|(from, to)| from..to).collect();
    if blocks.len() < 2 || blocks.iter().all(|block| block.len() < 2) {
        return Vec::new();
    }
    let shared: Vec<usize> = (0..texts.lead)
        .filter(|at| {
            let cells = &texts.columns[*at].cells;
            !hidden.contains(at) && blocks.iter().all(|block| distinct(&cells[block.clone()]).len() == 1)
        })
        .collect();
    let is_left = (0..texts.lead).any(|at| !hidden.contains(&at) && !shared.contains(&at));
    if is_left { shared } else { Vec::new() }
}

/// Labels dense rows whose names were moved out of the columns.
fn label_dense_rows(texts: &mut TextTable, hidden: &[usize], is_dense: &[bool]) {
    let retained: Vec<usize> = (0..texts.lead).filter(|at| !hidden.contains(at)).collect();
    let Some(last) = retained.last() else { return };
    for row in (0..is_dense.len()).filter(|row| is_dense[*row]) {
        if retained.iter().all(|at| texts.columns[*at].cells[row] == NONE) {
            DENSE.clone_into(&mut texts.columns[*last].cells[row]);
        }
    }
}

/// Returns the first row and the heading of each block. The heading is empty if it would repeat the previous one.
fn block_heads(texts: &TextTable, columns: &[usize]) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut last = String::new();
    let first = (!columns.is_empty()).then_some(0);
    for row in first.into_iter().chain(texts.breaks.iter().copied()) {
        let label = block_heading(texts, columns, row);
        blocks.push((row, if label == last { String::new() } else { label.clone() }));
        last = label;
    }
    blocks
}

fn block_heading(texts: &TextTable, columns: &[usize], row: usize) -> String {
    let words = columns.iter().filter_map(|&at| {
        let TextColumn { head, cells, .. } = &texts.columns[at];
        let cell = &cells[row];
        // Counts and layers are meaningless without their header. Names and fractions such as `4/16` are not.
        let needs_head = cell.starts_with(|first: char| first.is_ascii_digit()) && !cell.contains('/');
        (cell != NONE).then(|| if needs_head { format!("{head} {cell}") } else { cell.clone() })
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Formats one line for each row that has a remark other than `ok`.
fn remark_lines(texts: &TextTable, remarks: &[usize], hidden: &[usize]) -> Vec<String> {
    let rows = texts.columns.first().map_or(0, |column| column.cells.len());
    let names: Vec<usize> =
        (0..texts.lead).filter(|at| !hidden.contains(at) || distinct(&texts.columns[*at].cells).len() > 2).collect();
    (0..rows)
        .filter_map(|row| {
            let row_remarks = remarks.iter().map(|at| texts.columns[*at].cells[row].as_str());
            let shown_texts: Vec<&str> =
                row_remarks.filter(|text| ![NONE, super::run_tables::OK].contains(text)).collect();
            let name = names.iter().map(|at| texts.columns[*at].cells[row].as_str()).filter(|cell| *cell != NONE);
            let name = name.collect::<Vec<_>>().join(" ");
            (!shown_texts.is_empty()).then(|| format!("{name}: {}", shown_texts.join("; ")))
        })
        .collect()
}

/// Splits units (columns that stay together) into as few parts as possible, with about equal numbers of units. `fits`
/// returns whether a part with the given units is narrow enough.
fn split_units(units: &[Vec<usize>], fits: &dyn Fn(&[Vec<usize>]) -> bool) -> Vec<Vec<Vec<usize>>> {
    let mut filled: Vec<Vec<Vec<usize>>> = Vec::new();
    for unit in units {
        match filled.last_mut() {
            Some(part) if fits(&[part.as_slice(), std::slice::from_ref(unit)].concat()) => part.push(unit.clone()),
            _ => filled.push(vec![unit.clone()]),
        }
    }
    let even: Vec<Vec<Vec<usize>>> = (0..filled.len())
        .map(|at| units[at * units.len() / filled.len()..(at + 1) * units.len() / filled.len()].to_vec())
        .collect();
    if even.iter().all(|part| fits(part)) { even } else { filled }
}
