//! A table in Markdown, as GitHub renders it.

use super::table::{Lead, LeadPlace, PrintedNumber, Table};
use super::text::{TextTable, escaped};

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
    let words = |_: &Lead, row: usize, text: &str, leads: bool| match (text, table.rows[row].ours && leads) {
        ("", _) => "—".to_owned(),
        (text, true) => format!("*{}*", escaped(text)),
        (text, false) => escaped(text),
    };
    let numbers =
        |all: &[Option<&PrintedNumber>]| all.iter().map(|shown| shown.map_or_else(|| "—".to_owned(), cell)).collect();
    TextTable::of(table, |place| place == LeadPlace::Everywhere, &words, &numbers)
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
