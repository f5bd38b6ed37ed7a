//! A table as columns of texts, in which form a terminal, Markdown and LaTeX show it; the first two are laid out here. A result is
//! shown whole: nothing is shortened.

use super::table::{Lead, LeadPlace, NumberColumn, PrintedNumber, Table, TableRow};
use crate::error::printable;

/// Stands for a value that is not there.
const NONE: &str = "—";

/// Texts in columns.
#[derive(Debug, Clone, Default)]
pub(super) struct TextTable {
    pub columns: Vec<TextColumn>,
    /// How many columns lead: they name a row, and stand before every part of a table that is folded.
    pub lead: usize,
    /// A head over several columns behind those that lead, and how many they are; empty where there is none.
    pub groups: Vec<(String, usize)>,
    /// The rows that begin a block.
    pub breaks: Vec<usize>,
}

/// The texts of a column, and whether they are numbers: these stand to the right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextColumn {
    pub head: String,
    pub cells: Vec<String>,
    pub is_number: bool,
}

impl TextColumn {
    fn width(&self) -> usize {
        self.cells.iter().chain([&self.head]).map(|text| text.chars().count()).max().unwrap_or(0)
    }
}

impl TextTable {
    /// The texts of a table: the words that stand in some `places`, each by its column, the place of its row and whether it
    /// leads, and the numbers of a column together.
    pub(super) fn of(
        table: &Table,
        places: fn(LeadPlace) -> bool,
        words: &dyn Fn(&Lead, usize, &str, bool) -> String,
        numbers: &dyn Fn(&[Option<&PrintedNumber>]) -> Vec<String>,
    ) -> Self {
        let beside = |leads: &[Lead], cells: fn(&TableRow) -> &[String], is_lead: bool| -> Vec<TextColumn> {
            let column = |(at, lead): (usize, &Lead)| TextColumn {
                head: lead.head.clone(),
                cells: table
                    .rows
                    .iter()
                    .enumerate()
                    .map(|(row, of)| words(lead, row, &cells(of)[at], is_lead))
                    .collect(),
                is_number: lead.count,
            };
            leads.iter().enumerate().filter(|(_, lead)| places(lead.place)).map(column).collect()
        };
        let number = |(at, column): (usize, &NumberColumn)| {
            let all: Vec<_> = table.rows.iter().map(|row| row.cells[at].as_ref()).collect();
            TextColumn { head: column.head.clone(), cells: numbers(&all), is_number: true }
        };
        let lead = beside(&table.lead, |row| &row.lead, true);
        let begins = |&at: &usize| at > 0 && table.rows[at - 1].block != table.rows[at].block;
        let measured = table.columns.iter().enumerate().map(number);
        Self {
            lead: lead.len(),
            groups: table.groups.clone(),
            breaks: (0..table.rows.len()).filter(begins).collect(),
            columns: lead.into_iter().chain(measured).chain(beside(&table.tail, |row| &row.tail, false)).collect(),
        }
    }

    /// For a terminal of so many columns. What does not fit is folded: what is the same in all rows is said once above, and
    /// the columns behind those that lead stand in several tables one below the other, each with its lead.
    pub(super) fn screen(&self, width: Option<usize>) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = width.filter(|&width| self.wide(&all) > width) else { return self.part(&all) };
        let same = |&at: &usize| {
            let cells = &self.columns[at].cells;
            cells.len() > 1 && cells.iter().all(|cell| *cell == cells[0])
        };
        let (constant, lead): (Vec<usize>, Vec<usize>) = (0..self.lead).partition(same);
        let mut text = String::new();
        if !constant.is_empty() {
            let column = |&at: &usize| format!("{} {}", self.columns[at].head, self.columns[at].cells[0]);
            text.push_str(&format!("all rows: {}\n\n", constant.iter().map(column).collect::<Vec<_>>().join(", ")));
        }
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for at in self.lead..self.columns.len() {
            match parts.last_mut() {
                Some(part) if self.wide(&[&lead, part.as_slice(), &[at]].concat()) <= width => part.push(at),
                _ => parts.push(vec![at]),
            }
        }
        let count = self.columns.len() - self.lead;
        for part in &parts {
            if let ([first, ..], [.., last], true) = (part.as_slice(), part.as_slice(), parts.len() > 1) {
                let line = if *first == self.lead { "" } else { "\n" };
                let (from, to) = (first - self.lead + 1, last - self.lead + 1);
                text.push_str(&format!("{line}columns {from}–{to} of {count}\n"));
            }
            text.push_str(&self.part(&[lead.as_slice(), part].concat()));
        }
        text
    }

    /// Some columns in line, heads above a rule.
    fn part(&self, columns: &[usize]) -> String {
        let columns: Vec<(usize, usize, &TextColumn)> =
            columns.iter().map(|&at| (at, self.columns[at].width(), &self.columns[at])).collect();
        let line = |text: &dyn Fn(&TextColumn) -> String| {
            let cell = |(_, width, column): &(usize, usize, &TextColumn)| match column.is_number {
                true => format!("{:>width$}", text(column)),
                false => format!("{:<width$}", text(column)),
            };
            format!("{}\n", columns.iter().map(cell).collect::<Vec<_>>().join("  ").trim_end())
        };
        let rule = |sign: &str| columns.iter().map(|(_, width, _)| sign.repeat(*width)).collect::<Vec<_>>().join("  ");
        let mut text = if self.groups.is_empty() { String::new() } else { self.over(&columns) };
        text.push_str(&line(&|column| column.head.clone()));
        text.push_str(&format!("{}\n", rule("─")));
        for row in 0..columns.first().map_or(0, |(_, _, column)| column.cells.len()) {
            if row > 0 && self.breaks.contains(&row) {
                text.push_str(&format!("{}\n", rule("┄")));
            }
            text.push_str(&line(&|column| column.cells[row].clone()));
        }
        printable(&text).into_owned()
    }

    /// The heads over groups of columns, as far as these are shown.
    fn over(&self, columns: &[(usize, usize, &TextColumn)]) -> String {
        let width = |of: &dyn Fn(usize) -> bool| {
            columns.iter().filter(|(at, ..)| of(*at)).map(|(_, width, _)| width + 2).sum::<usize>()
        };
        let (mut text, mut at) = (" ".repeat(width(&|at| at < self.lead)), self.lead);
        for (head, count) in &self.groups {
            let group = at..at + count;
            at += count;
            let width = width(&|at| group.contains(&at));
            if width > 0 {
                text.push_str(&format!("{head:^0$}  ", width - 2));
            }
        }
        format!("{}\n", text.trim_end())
    }

    /// How many columns of a terminal some columns take.
    fn wide(&self, columns: &[usize]) -> usize {
        columns.iter().map(|&at| self.columns[at].width() + 2).sum::<usize>().saturating_sub(2)
    }

    /// As a Markdown table, the head of a group behind those of its columns. Heads are escaped; cells stand as they are.
    pub(super) fn markdown(&self) -> String {
        let groups: Vec<&String> =
            self.groups.iter().flat_map(|(head, count)| std::iter::repeat_n(head, *count)).collect();
        let head = |(at, column): (usize, &TextColumn)| match at.checked_sub(self.lead).and_then(|at| groups.get(at)) {
            Some(group) => escaped(&format!("{} ({group})", column.head)),
            None => escaped(&column.head),
        };
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(self.columns.iter().enumerate().map(head).collect());
        let rule = |column: &TextColumn| if column.is_number { "---:" } else { "---" }.to_owned();
        text.push_str(&line(self.columns.iter().map(rule).collect()));
        for row in 0..self.columns.first().map_or(0, |column| column.cells.len()) {
            text.push_str(&line(self.columns.iter().map(|column| column.cells[row].clone()).collect()));
        }
        text
    }
}

/// With a capital letter.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

/// A text as a cell of a Markdown table: nothing in it is a mark, a link, HTML, or the end of the cell.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for c in printable(&line).chars() {
        if matches!(c, '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '<' | '>') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The best in bold, the second underlined, ours in italics; what the marks mean below it.
pub fn markdown(table: &Table) -> String {
    let mut text = match table.title.as_str() {
        "" => String::new(),
        title => format!("**{}**\n\n", escaped(title)),
    };
    let words = |_: &Lead, row: usize, text: &str, leads: bool| match (text, table.rows[row].ours && leads) {
        ("", _) => NONE.to_owned(),
        (text, true) => format!("*{}*", escaped(text)),
        (text, false) => escaped(text),
    };
    let numbers = |all: &[Option<&PrintedNumber>]| {
        all.iter().map(|shown| shown.map_or_else(|| NONE.to_owned(), marked)).collect()
    };
    let texts = TextTable::of(table, |place| place == LeadPlace::Everywhere, &words, &numbers);
    text.push_str(&texts.markdown());
    let mut legend = Vec::new();
    if table.has_ranks() {
        let ours = if table.rows.iter().any(|row| row.ours) { "; in italics: ours" } else { "" };
        legend.push(format!("Bold: best of a block; underlined: second{ours}."));
    }
    if table.significant() {
        legend.push(format!("⁺ and ⁻: {}, p < 0.05 on the same items.", table.marks()));
    }
    if table.has_paper() {
        legend.push(format!("Small: the paper's value, ours less it, and a sign: {}.", table.signs()));
    }
    let legend = Some(legend.join(" ")).filter(|legend| !legend.is_empty());
    let caption = Some(table.caption.trim().to_owned()).filter(|caption| !caption.is_empty());
    let notes = table.below().map(|note| escaped(note));
    legend.into_iter().chain(notes).chain(caption).for_each(|part| text.push_str(&format!("\n{part}\n")));
    text
}

fn marked(shown: &PrintedNumber) -> String {
    let mark = match shown.mark() {
        "+" => "⁺",
        "-" => "⁻",
        _ => "",
    };
    let text = match (shown.best, shown.second) {
        (true, _) => format!("**{}**{mark}", shown.text),
        (_, true) => format!("<u>{}</u>{mark}", shown.text),
        _ => format!("{}{mark}", shown.text),
    };
    match &shown.beside {
        Some(beside) => format!("{text}<br><sub>{}</sub>", beside.said().join("; ")),
        None => text,
    }
}

/// Columns in line; `*` after the best, `°` after the second, `+` or `-` where a paired test tells ours from the best of
/// the others. On a terminal of `width` columns a wider table is folded.
pub fn screen(table: &Table, width: Option<usize>) -> String {
    let mut text = if table.title.is_empty() { String::new() } else { format!("{}\n\n", table.title) };
    let numbers = |all: &[Option<&PrintedNumber>]| {
        let ranks = all.iter().flatten().any(|shown| shown.best || shown.second);
        let marks = all.iter().flatten().any(|shown| !shown.mark().is_empty());
        all.iter().map(|shown| cell(*shown, ranks, marks)).collect()
    };
    let texts = TextTable::of(table, |place| place != LeadPlace::Data, &|_, _, text, _| said(text), &numbers);
    text.push_str(&texts.screen(width));
    let mut legend = Vec::new();
    if table.has_ranks() {
        legend.push("* best, ° second of a block".to_owned());
    }
    if table.significant() {
        legend.push(format!("+ or -: {}, p < 0.05 on the same items", table.marks()));
    }
    if !legend.is_empty() {
        text.push_str(&format!("\n{}\n", legend.join("; ")));
    }
    table.below().for_each(|note| text.push_str(&format!("{note}\n")));
    text
}

/// On one line: the reason of a failure may have several.
fn said(text: &str) -> String {
    if text.is_empty() { NONE.to_owned() } else { text.split_whitespace().collect::<Vec<_>>().join(" ") }
}

/// Room is kept for ranks and marks where a column has any, so that its points stand below each other.
fn cell(shown: Option<&PrintedNumber>, ranks: bool, marks: bool) -> String {
    let rank = match shown {
        Some(PrintedNumber { best: true, .. }) => "*",
        Some(PrintedNumber { second: true, .. }) => "°",
        _ => " ",
    };
    let mark = shown.map_or("", PrintedNumber::mark);
    let text = shown.map_or(NONE, |shown| &shown.text);
    let (rank, mark) = (if ranks { rank } else { "" }, if marks { format!("{mark:<1}") } else { String::new() });
    format!("{text}{rank}{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(head: &str, cells: [&str; 2]) -> TextColumn {
        TextColumn { head: head.to_owned(), cells: cells.map(str::to_owned).to_vec(), is_number: true }
    }

    #[test]
    fn a_table_that_is_too_wide_is_folded_and_says_so() {
        let columns = vec![
            column("backbone", ["mine", "mine"]),
            column("depth", ["1", "2"]),
            column("ppl a", ["10.00", "20.00"]),
            column("ppl b", ["30.00", "40.00"]),
            column("status", ["ok", "ok"]),
        ];
        let table = TextTable { columns, lead: 2, ..TextTable::default() };
        assert_eq!(table.screen(Some(37)), table.screen(None), "it fits");
        let text = table.screen(Some(23));
        let expected = "\
all rows: backbone mine

columns 1–2 of 3
depth  ppl a  ppl b
─────  ─────  ─────
    1  10.00  30.00
    2  20.00  40.00

columns 3–3 of 3
depth  status
─────  ──────
    1      ok
    2      ok
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= 23));
        let narrow = table.screen(Some(3));
        assert!(narrow.contains("columns 3–3 of 3"), "each column stands somewhere: {narrow}");
    }

    #[test]
    fn groups_and_blocks_are_seen_wherever_their_columns_and_rows_stand() {
        let columns = vec![
            TextColumn { is_number: false, ..column("method", ["a", "b"]) },
            column("rte", ["1.0", "2.0"]),
            column("copa", ["3.0", "4.0"]),
            column("rte", ["5.0", "6.0"]),
        ];
        let groups = vec![("4-layer".to_owned(), 2), ("6-layer".to_owned(), 1)];
        let table = TextTable { columns, lead: 1, groups, breaks: vec![1] };
        let expected = "         4-layer   6-layer\nmethod  rte  copa  rte\n──────  ───  ────  ───\na       1.0   3.0  5.0\n┄┄┄┄┄┄  ┄┄┄  ┄┄┄┄  ┄┄┄\nb       2.0   4.0  6.0\n";
        assert_eq!(table.screen(None), expected);
        assert!(table.screen(Some(14)).contains("4-layer\nmethod  rte"), "{}", table.screen(Some(14)));
        assert!(table.markdown().starts_with("| method | rte (4-layer) | copa (4-layer) | rte (6-layer) |\n"));
    }
}
