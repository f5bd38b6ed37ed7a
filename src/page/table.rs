//! A table of the page. The script sorts and filters the rows that are here; without it the table is whole and plain.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::data::{Cell, CellNote, Column, Row, TableView};
use super::html::{cell_id, escaped};
use crate::error::{Error, Result};

/// Columns of these names are chosen from by a list. A depth is a number, but not a measured one.
const CHOICES: [&str; 5] = ["backbone", "depth", "criterion", "recovery", "method"];

/// A column with a text longer than this, in characters, is prose and wraps.
const PROSE: usize = 36;

/// Fewer rows than this are filtered by eye.
const FILTERED: usize = 6;

/// The table with its caption, its filters and a frame that scrolls.
///
/// `id` is unique in the page. `title` stands in for an empty caption.
///
/// # Errors
/// When a row has not one cell for each column.
pub(super) fn table(view: &TableView, id: &str, title: &str, notes: &BTreeMap<String, CellNote>) -> Result<String> {
    if let Some((index, row)) = view.rows.iter().enumerate().find(|(_, row)| row.cells.len() != view.columns.len()) {
        return Err(Error::job("a row does not fit its table")
            .at(format!("{title}, row {}", index + 1))
            .expected(format!("{} cells", view.columns.len()))
            .found(row.cells.len().to_string()));
    }
    let shape = Shape::of(view);
    // The heading above says it already, but not to a reader who goes from table to table.
    let (class, caption) = if view.caption.is_empty() { (" class=\"vh\"", title) } else { ("", view.caption.as_str()) };
    let mut html =
        format!("<figure class=\"table\">\n<figcaption{class} id=\"{id}\">{}</figcaption>\n", escaped(caption));
    html.push_str(&shape.controls(view));
    // Focusable, so that it can be scrolled with the keys.
    let _ = write!(
        html,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"{id}\">\
         <table aria-labelledby=\"{id}\">\n<thead>{}</thead>\n<tbody>\n",
        shape.head(view),
    );
    for row in &view.rows {
        shape.row(&mut html, view, row, notes);
    }
    html.push_str("</tbody></table></div>\n</figure>\n");
    Ok(html)
}

/// What holds for the whole table.
struct Shape<'a> {
    /// The name of the column in front, when rows have groups.
    group: Option<&'a str>,
    /// The column that names a row.
    label: usize,
    /// Of each column.
    is_prose: Vec<bool>,
}

impl<'a> Shape<'a> {
    fn of(view: &'a TableView) -> Self {
        let name = if view.group_name.is_empty() { "Group" } else { &view.group_name };
        let is_prose = (0..view.columns.len())
            .map(|column| view.rows.iter().any(|row| row.cells[column].text.chars().count() > PROSE))
            .collect();
        let group = view.rows.iter().any(|row| row.group.is_some()).then_some(name);
        Self { group, label: label(&view.columns), is_prose }
    }

    /// Where a column stands in the printed table.
    fn place(&self, column: usize) -> usize {
        column + usize::from(self.group.is_some())
    }

    /// A box for words, lists of what a column holds, and room for the count. Shown only where the script runs.
    fn controls(&self, view: &TableView) -> String {
        if view.rows.len() < FILTERED {
            return String::new();
        }
        let mut html =
            "<div class=\"controls\"><label>Filter <input type=\"search\" placeholder=\"all of these words\" \
                        autocomplete=\"off\" spellcheck=\"false\"></label>"
                .to_owned();
        if let Some(name) = self.group {
            html.push_str(&choice(name, 0, view.rows.iter().map(|row| row.group.as_deref().unwrap_or(""))));
        }
        for (index, column) in view.columns.iter().enumerate() {
            if CHOICES.contains(&column.name.to_lowercase().as_str()) {
                let texts = view.rows.iter().map(|row| row.cells[index].text.as_str());
                html.push_str(&choice(&column.name, self.place(index), texts));
            }
        }
        let _ = writeln!(html, "<output>{} rows</output></div>", view.rows.len());
        html
    }

    /// One row of heads, or two where columns have a heading in common.
    fn head(&self, view: &TableView) -> String {
        let two = view.columns.iter().any(|column| column.group.is_some());
        let span = if two { " rowspan=\"2\"" } else { "" };
        let (mut upper, mut lower) = (String::new(), String::new());
        if let Some(name) = self.group {
            let _ = write!(
                upper,
                "<th scope=\"col\" class=\"t g\" data-column=\"0\"{span}>{}</th>",
                sort_button(&Column { name: name.to_owned(), ..Column::default() })
            );
        }
        let mut index = 0;
        for together in view.columns.chunk_by(|a, b| a.group.is_some() && a.group == b.group) {
            let heading = together.first().and_then(|column| column.group.as_ref());
            if let Some(heading) = heading {
                let _ = write!(
                    upper,
                    "<th scope=\"colgroup\" class=\"over\" colspan=\"{}\">{}</th>",
                    together.len(),
                    escaped(heading)
                );
            }
            for column in together {
                let (row, span) = if heading.is_some() { (&mut lower, "") } else { (&mut upper, span) };
                let _ = write!(
                    row,
                    "<th scope=\"col\"{} data-column=\"{}\"{span}>{}</th>",
                    self.class(index, column, ""),
                    self.place(index),
                    sort_button(column)
                );
                index += 1;
            }
        }
        if two { format!("<tr>{upper}</tr>\n<tr>{lower}</tr>") } else { format!("<tr>{upper}</tr>") }
    }

    fn row(&self, html: &mut String, view: &TableView, row: &Row, notes: &BTreeMap<String, CellNote>) {
        html.push_str(if row.ours { "<tr class=\"ours\">" } else { "<tr>" });
        if self.group.is_some() {
            let _ = write!(html, "<td class=\"t g\">{}</td>", escaped(row.group.as_deref().unwrap_or("")));
        }
        for (index, (column, cell)) in view.columns.iter().zip(&row.cells).enumerate() {
            let is_label = index == self.label;
            let start = if is_label { "<th scope=\"row\"" } else { "<td" };
            let class = self.class(index, column, if cell.failed { "failed" } else { "" });
            let _ = write!(html, "{start}{class}{}>{}", sort_value(column, cell), content(cell, notes));
            if is_label && row.ours && !cell.text.to_lowercase().contains("ours") {
                html.push_str("<span class=\"vh\"> (ours)</span>");
            }
            html.push_str(if is_label { "</th>" } else { "</td>" });
        }
        html.push_str("</tr>\n");
    }

    /// `t` text, `p` prose, `l` label; a plain number needs no class, as most cells are that.
    fn class(&self, index: usize, column: &Column, more: &str) -> String {
        let label = if index == self.label { "l" } else { "" };
        let kind = match (column.numeric, self.is_prose[index]) {
            (true, _) => "",
            (false, true) => "t p",
            (false, false) => "t",
        };
        let all: Vec<&str> = [kind, label, more].into_iter().filter(|class| !class.is_empty()).collect();
        if all.is_empty() { String::new() } else { format!(" class=\"{}\"", all.join(" ")) }
    }
}

/// The column that names a row: the one that says so, or the last text before the first measured number.
fn label(columns: &[Column]) -> usize {
    let measured = |column: &Column| column.numeric && !CHOICES.contains(&column.name.to_lowercase().as_str());
    columns.iter().position(|column| column.label).unwrap_or_else(|| match columns.iter().position(measured) {
        Some(first) => columns[..first].iter().rposition(|column| !column.numeric).unwrap_or(0),
        None => 0,
    })
}

/// A list of the texts of a column, in their order; nothing where all are the same.
fn choice<'t>(name: &str, place: usize, texts: impl Iterator<Item = &'t str>) -> String {
    let mut seen = BTreeSet::new();
    let options: Vec<&str> = texts.filter(|text| !text.is_empty() && seen.insert(*text)).collect();
    if options.len() < 2 {
        return String::new();
    }
    let options: String =
        options.iter().map(|text| format!("<option value=\"{0}\">{0}</option>", escaped(text))).collect();
    format!(
        "<label>{} <select data-column=\"{place}\" autocomplete=\"off\"><option value=\"\">all</option>{options}\
         </select></label>",
        escaped(name)
    )
}

/// The head of a column. The script enables the button.
fn sort_button(column: &Column) -> String {
    let direction = match column.higher_is_better {
        Some(true) => "<span class=\"dir\" aria-hidden=\"true\">↑</span><span class=\"vh\">, higher is better</span>",
        Some(false) => "<span class=\"dir\" aria-hidden=\"true\">↓</span><span class=\"vh\">, lower is better</span>",
        None => "",
    };
    format!("<button type=\"button\" class=\"sort\" disabled>{}{direction}</button>", escaped(&column.name))
}

/// What a numeric column is sorted by, where the text is not that number.
fn sort_value(column: &Column, cell: &Cell) -> String {
    if !column.numeric {
        return String::new();
    }
    let text = cell.text.parse::<f64>().ok();
    match cell.value.filter(|value| value.is_finite()) {
        Some(value) if text == Some(value) => String::new(),
        Some(value) => format!(" data-v=\"{value}\""),
        None if text.is_some() => " data-v=\"\"".to_owned(),
        None => String::new(),
    }
}

/// The number first, as the script reads it there; then what is said about it.
fn content(cell: &Cell, notes: &BTreeMap<String, CellNote>) -> String {
    let text = escaped(&cell.text);
    let (number, said) = match (cell.best, cell.second) {
        (true, _) => (format!("<b>{text}</b>"), "<span class=\"vh\"> best</span>"),
        (_, true) => (format!("<u>{text}</u>"), "<span class=\"vh\"> second</span>"),
        _ => (text, ""),
    };
    let mut html = match &cell.key {
        Some(key) if notes.contains_key(key) => format!("<a href=\"#{}\">{number}</a>{said}", cell_id(key)),
        _ => format!("{number}{said}"),
    };
    if let Some(paper) = &cell.paper {
        let _ = write!(html, "<small class=\"paper\"><span class=\"vh\">paper </span>{}</small>", escaped(paper));
    }
    let remarks: Vec<&str> = [&cell.verdict, &cell.significant].into_iter().flatten().map(String::as_str).collect();
    if !remarks.is_empty() {
        let _ = write!(html, "<small class=\"more\">{}</small>", escaped(&remarks.join("; ")));
    }
    html
}
