//! A table in Markdown, as GitHub renders it.

use super::table::{Lead, LeadPlace, PrintedNumber, Row, Table};
use super::text::{TextColumn, TextTable, escaped};

/// The best in bold, the second underlined, ours in italics; what the marks mean below it.
pub fn markdown(table: &Table) -> String {
    let mut text = match table.title.as_str() {
        "" => String::new(),
        title => format!("**{}**\n\n", escaped(title)),
    };
    text.push_str(&texts(table).markdown());
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

fn texts(table: &Table) -> TextTable {
    let words = |leads: &[Lead], cells: &dyn Fn(&Row) -> &[String], slanted: bool| -> Vec<TextColumn> {
        let cell = |row: &Row, at: usize| match (cells(row)[at].as_str(), row.ours && slanted) {
            ("", _) => "—".to_owned(),
            (text, true) => format!("*{}*", escaped(text)),
            (text, false) => escaped(text),
        };
        let column = |(at, lead): (usize, &Lead)| TextColumn {
            head: lead.head.clone(),
            cells: table.rows.iter().map(|row| cell(row, at)).collect(),
            is_number: lead.count,
        };
        leads.iter().enumerate().filter(|(_, lead)| lead.place == LeadPlace::Everywhere).map(column).collect()
    };
    let number = |(at, column): (usize, &super::Column)| TextColumn {
        head: column.head.clone(),
        cells: table.rows.iter().map(|row| row.cells[at].as_ref().map_or("—".to_owned(), cell)).collect(),
        is_number: true,
    };
    let numbers = table.columns.iter().enumerate().map(number);
    let lead = words(&table.lead, &|row| &row.lead, true);
    TextTable {
        lead: lead.len(),
        groups: table.groups.clone(),
        columns: lead.into_iter().chain(numbers).chain(words(&table.tail, &|row| &row.tail, false)).collect(),
        breaks: Vec::new(),
    }
}

fn cell(shown: &PrintedNumber) -> String {
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
