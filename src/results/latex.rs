//! LaTeX tables in the style of the paper: booktabs, backbone names spanning their rows, best values bold,
//! second-best underlined, our rows shaded.
//!
//! Tables have their natural width, shrunk to the line width if necessary. Protocol and notes would make the float
//! exceed a page, so they are written as running text to a separate file.

use super::table::{NumberColumn, PrintedNumber, RowHeader, RowHeaderKind, Table, Visibility};
use super::text::{TextColumn, TextTable, capital};
use crate::error::printable;

/// LaTeX packages required by a table.
const PACKAGES: &str = "% \\usepackage{adjustbox,booktabs,graphicx,multirow,url} \\usepackage[table]{xcolor}";
/// LaTeX comment that points to the notes file.
const NOTES: &str = "% Protocol and notes: the file beside this one whose name ends in -notes.tex\n";
/// Float settings. `\emergencystretch` keeps unbreakable words from overflowing the caption.
const FLOAT_SETTINGS: &str = "\\centering\n\\footnotesize\n\\setlength{\\emergencystretch}{4em}";
const ROW_SHADING: &str = "\\rowcolor{gray!15} ";
/// Cell color that keeps row shading out of the column of spanning names. A spanning name is typeset in the last of its
/// rows, because the colored cells of later rows would cover it otherwise.
const UNSHADED: &str = "\\cellcolor{white}";
/// Minimum number of columns at which a table spans both columns of a two-column document.
const MIN_WIDE_COLUMNS: usize = 9;
/// Height of one letter of a rotated name, in table rows. A name that would be taller than its rows is not rotated.
const LETTER_HEIGHT_ROWS: f64 = 0.52;

/// Formats a complete `table` environment with the label `tab:LABEL`.
pub fn latex(table: &Table, label: &str) -> String {
    let columns = build_columns(table);
    let star = if columns.len() >= MIN_WIDE_COLUMNS { "*" } else { "" };
    let notes = if table.footer_lines().next().is_some() { NOTES } else { "" };
    let mut text = format!("{PACKAGES}\n{notes}\\begin{{table{star}}}[t]\n{FLOAT_SETTINGS}\n");
    text.push_str(&format!("\\caption[{}]{{{}}}\n", escape_latex(&format_title(table)), format_caption(table)));
    text.push_str(&format!(
        "\\label{{tab:{label}}}\n\\smallskip\n\\begin{{adjustbox}}{{max totalsize={{\\linewidth}}{{.75\\textheight}}}}\n"
    ));
    let alignments: String = columns.iter().map(|column| column.alignment).collect();
    text.push_str(&format!("\\begin{{tabular}}{{{alignments}}}\n\\toprule\n"));
    text.push_str(&format_group_heads(table, &columns));
    text.push_str(&format_line(&columns.iter().map(|column| column.head.clone()).collect::<Vec<_>>()));
    text.push_str("\\midrule\n");
    for (at, row) in table.rows.iter().enumerate() {
        text.push_str(&format_rule(table, at, columns.len()));
        let cells: Vec<String> = columns.iter().map(|column| column.cells[at].clone()).collect();
        match (row.shaded, has_spanning_names(table)) {
            (false, _) => {}
            (true, true) => text.push_str(&format!("{ROW_SHADING}{UNSHADED}")),
            (true, false) => text.push_str(ROW_SHADING),
        }
        text.push_str(&format_line(&cells));
    }
    text.push_str(&format!("\\bottomrule\n\\end{{tabular}}\n\\end{{adjustbox}}\n\\end{{table{star}}}\n"));
    text
}

/// Returns the name of the file with the protocol and notes for `NAME.tex`.
pub fn notes_file(name: &str) -> String {
    format!("{name}-notes.tex")
}

/// Formats the protocol and notes of a table with the given label as running text. Returns `None` if there are none.
pub fn latex_notes(table: &Table, label: &str) -> Option<String> {
    let notes: Vec<String> = table.footer_lines().map(|note| end_sentence(note)).collect();
    (!notes.is_empty()).then(|| {
        let notes = notes.join("\n\n");
        format!("\\begin{{flushleft}}\n\\footnotesize\n\\textbf{{Table~\\ref{{tab:{label}}}.}} {notes}\n\\end{{flushleft}}\n")
    })
}

/// Returns whether the names in the first column span several rows.
fn has_spanning_names(table: &Table) -> bool {
    table.lead.first().is_some_and(|lead| lead.kind == RowHeaderKind::Spanning)
}

#[derive(Default)]
struct PrintedColumn {
    /// Column alignment in LaTeX: `l`, `c` or `r`.
    alignment: char,
    head: String,
    cells: Vec<String>,
    /// Index among the number columns; `None` if this is a text column.
    number: Option<usize>,
}

fn build_columns(table: &Table) -> Vec<PrintedColumn> {
    let texts = TextTable::new(
        table,
        is_everywhere,
        &|lead: &RowHeader, row: usize, text: &str, is_lead: bool| match is_lead {
            true => format_lead_cell(table, row, lead, text),
            false => format_cell(lead, text),
        },
        &|all: &[Option<&PrintedNumber>]| {
            all.iter().map(|shown| shown.map_or_else(|| "--".to_owned(), format_number)).collect()
        },
    );
    let mut kinds = table.lead.iter().filter(|lead| is_everywhere(lead.visibility)).map(|lead| lead.kind);
    let mut ends: Vec<usize> = Vec::new();
    table.groups.iter().for_each(|(_, count)| ends.push(ends.last().unwrap_or(&0) + count));
    let mut columns = Vec::new();
    for (at, TextColumn { head, cells, is_number }) in texts.columns.into_iter().enumerate() {
        let number = at.checked_sub(texts.lead).filter(|number| *number < table.columns.len());
        // Insert an empty column between two groups of numbers.
        if number.is_some_and(|number| number > 0 && ends.contains(&number)) {
            let cells = vec![String::new(); table.rows.len()];
            columns.push(PrintedColumn { alignment: 'c', cells, ..PrintedColumn::default() });
        }
        let kind = kinds.next();
        let column = number.map(|number| &table.columns[number]);
        let arrow = match column.filter(|column| column.arrow).and_then(NumberColumn::higher_is_better) {
            Some(true) => " $\\uparrow$",
            Some(false) => " $\\downarrow$",
            None => "",
        };
        let head = if kind == Some(RowHeaderKind::Fraction) { "$L_p/L_t$".to_owned() } else { escape_latex(&head) };
        columns.push(PrintedColumn {
            alignment: if is_number { 'r' } else { 'l' },
            head: format!("\\textbf{{{head}}}{arrow}"),
            cells,
            number,
        });
    }
    columns
}

fn is_everywhere(visibility: Visibility) -> bool {
    visibility == Visibility::Everywhere
}

/// Formats the headers of the column groups, with the rules below them.
fn format_group_heads(table: &Table, columns: &[PrintedColumn]) -> String {
    if table.groups.is_empty() {
        return String::new();
    }
    let mut heads = Vec::new();
    let mut rules = Vec::new();
    let mut first = 0;
    let mut groups = table.groups.iter();
    for (column, at) in columns.iter().zip(1..) {
        match column.number {
            Some(number) if number == first => {
                let Some((head, count)) = groups.next() else { break };
                heads.push(format!("\\multicolumn{{{count}}}{{c}}{{\\textbf{{{}}}}}", escape_latex(head)));
                rules.extend((!head.is_empty()).then(|| format!("\\cmidrule{{{at}-{}}}", at + count - 1)));
                first += count;
            }
            Some(_) => {}
            None => heads.push(String::new()),
        }
    }
    format!("{}{}\n", format_line(&heads), rules.join(" "))
}

/// Formats the rule above a row. The rule has full width between backbones and is partial between blocks.
fn format_rule(table: &Table, at: usize, columns: usize) -> String {
    let Some(before) = at.checked_sub(1).map(|before| &table.rows[before]) else { return String::new() };
    let row = &table.rows[at];
    match (before.backbone == row.backbone, before.block == row.block) {
        (true, true) => String::new(),
        (true, false) if has_spanning_names(table) => format!("\\cmidrule{{2-{columns}}}\n"),
        _ => "\\midrule\n".to_owned(),
    }
}

fn format_line(cells: &[String]) -> String {
    format!("{} \\\\\n", cells.join(" & "))
}

fn format_lead_cell(table: &Table, at: usize, lead: &RowHeader, name: &str) -> String {
    let row = &table.rows[at];
    let kind = lead.kind;
    let text = format_cell(lead, name);
    if kind == RowHeaderKind::Spanning {
        let is_last = table.rows.get(at + 1).is_none_or(|next| next.backbone != row.backbone);
        let rows = table.rows[..=at].iter().rev().take_while(|other| other.backbone == row.backbone).count();
        return match (is_last, rows) {
            (false, _) => String::new(),
            (true, 1) => text,
            (true, rows) => format!("\\multirow{{-{rows}}}{{*}}{{{}}}", rotate_name(&text, name, rows)),
        };
    }
    if kind == RowHeaderKind::Words && row.heading { format!("\\textbf{{{text}}}") } else { text }
}

/// Rotates a name if the rotated text fits the height of its rows.
fn rotate_name(text: &str, name: &str, rows: usize) -> String {
    match name.chars().count() as f64 * LETTER_HEIGHT_ROWS <= rows as f64 {
        true => format!("\\rotatebox[origin=c]{{90}}{{{text}}}"),
        false => text.to_owned(),
    }
}

fn format_cell(lead: &RowHeader, text: &str) -> String {
    match lead.kind {
        _ if text.is_empty() => "--".to_owned(),
        RowHeaderKind::Link if text.starts_with("https://") => format!("\\url{{{text}}}"),
        _ => escape_latex(text),
    }
}

fn format_number(shown: &PrintedNumber) -> String {
    let text = escape_latex(&shown.text);
    let text = match (shown.best, shown.second) {
        (true, _) => format!("\\textbf{{{text}}}"),
        (_, true) => format!("\\underline{{{text}}}"),
        _ => text,
    };
    let text = match shown.mark() {
        "" => text,
        mark => format!("{text}$^{{{mark}}}$"),
    };
    let Some(comparison) = &shown.comparison else { return text };
    let lines = comparison.lines().into_iter().map(|line| format!("\\\\{{\\tiny {}}}", escape_latex(&line)));
    format!("\\shortstack[r]{{{text}{}}}", lines.collect::<String>())
}

/// Formats the title, followed by the settings that no column shows.
fn format_title(table: &Table) -> String {
    [&table.title, &table.scope].into_iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>().join(": ")
}

/// Formats the title, the caption and an explanation of the marks, as one sentence each.
fn format_caption(table: &Table) -> String {
    let mut parts = vec![end_sentence(&format_title(table)), end_sentence(&table.caption)];
    if table.lead.iter().any(|lead| lead.kind == RowHeaderKind::Fraction) {
        parts.push("$L_p/L_t$: layers removed, of the backbone's layers.".to_owned());
    }
    let shaded_is_ours = table.rows.iter().filter(|row| row.shaded).all(|row| row.ours);
    let ours = if shaded_is_ours && table.rows.iter().any(|row| row.shaded) { "shaded: ours" } else { "" };
    let ranks = if table.has_ranks() { "bold: best of a block, underlined: second" } else { "" };
    let marks = [ranks, ours].into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join("; ");
    parts.push(end_sentence(&capital(&marks)));
    if table.has_significant_tests() {
        let marks = escape_latex(&table.marks_legend());
        parts.push(format!("$^{{+}}$ and $^{{-}}$: {marks}."));
    }
    if table.has_paper() {
        let signs = escape_latex(&table.sign_legend());
        parts.push(format!("Small: the paper's value, our difference from it, and a sign: {signs}."));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}

/// Escapes a string for LaTeX and ends it with a period, unless it is empty.
fn end_sentence(text: &str) -> String {
    match text.trim() {
        "" => String::new(),
        text if text.ends_with('.') => escape_latex(text),
        text => format!("{}.", escape_latex(text)),
    }
}

/// Escapes a string for LaTeX. Commands are printed literally, and characters that the fonts lack become math symbols.
fn escape_latex(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = None;
    for c in printable(text).chars() {
        // Break up ligatures such as `--`, which would be typeset as a dash.
        if before.replace(c) == Some(c) && matches!(c, '-' | '`' | '\'' | ',') {
            out.push_str("{}");
        }
        match c {
            // Replace line breaks, because a paragraph break is not allowed in a table cell.
            '\n' | '\t' => out.push(' '),
            '<' => out.push_str("\\textless{}"),
            '>' => out.push_str("\\textgreater{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => out.extend(['\\', c]),
            '\\' => out.push_str("\\textbackslash{}"),
            // Print a literal tilde instead of a nonbreaking space.
            '~' => out.push_str("$\\sim$"),
            '^' => out.push_str("\\textasciicircum{}"),
            // Protect `]`, which would end the short caption.
            ']' => out.push_str("{]}"),
            '−' => out.push_str("$-$"),
            '±' => out.push_str("$\\pm$"),
            '×' => out.push_str("$\\times$"),
            '≠' => out.push_str("$\\neq$"),
            '≤' => out.push_str("$\\leq$"),
            '≥' => out.push_str("$\\geq$"),
            '≈' => out.push_str("$\\approx$"),
            '→' => out.push_str("$\\rightarrow$"),
            '·' => out.push_str("$\\cdot$"),
            '–' => out.push_str("--"),
            '—' => out.push_str("--"),
            '…' => out.push_str("\\dots{}"),
            '’' => out.push('\''),
            _ => out.push(c),
        }
    }
    out
}
