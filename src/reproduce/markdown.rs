//! A table in Markdown, as GitHub renders it.

use super::layout::{Shown, View};
use crate::report::render::escaped;

/// The best in bold, the second underlined, ours in italics; what the marks mean below it.
pub fn markdown(view: &View) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let groups = view.groups.iter().flat_map(|(head, count)| std::iter::repeat_n(head, *count));
    let mut groups = groups.map(String::as_str);
    let heads = view.columns.iter().map(|column| match groups.next() {
        Some(group) => escaped(&format!("{} ({group})", column.head)),
        None => escaped(&column.head),
    });
    let heads: Vec<String> = view.lead.iter().map(|head| escaped(head)).chain(heads).collect();
    let rules = (0..heads.len()).map(|at| if at < view.lead.len() { "---" } else { "---:" }.to_owned());
    let mut text = format!("**{}**\n\n{}{}", escaped(&view.title), line(&heads), line(&rules.collect::<Vec<_>>()));
    for row in &view.rows {
        let lead = row.lead.iter().map(|text| if row.ours { format!("*{}*", escaped(text)) } else { escaped(text) });
        let cells = row.cells.iter().map(|shown| shown.as_ref().map_or("—".to_owned(), cell));
        text.push_str(&line(&lead.chain(cells).collect::<Vec<_>>()));
    }
    text.push_str("\nBold: best of a block; underlined: second; in italics: ours.");
    if view.significant() {
        text.push_str(" ⁺ and ⁻: ours is better or worse than the best other repair of the same selection, p < 0.05 on the same items.");
    }
    if view.has_paper() {
        text.push_str(&format!(" Small: the paper's value, ours less it, and a sign: {}.", view.signs()));
    }
    view.notes.iter().for_each(|note| text.push_str(&format!("\n\n{}", escaped(note))));
    if !view.caption.is_empty() {
        text.push_str(&format!("\n\n{}", view.caption.trim()));
    }
    text.push('\n');
    text
}

fn cell(shown: &Shown) -> String {
    let mark = match shown.paired.as_ref().map_or("", super::paired::Paired::mark) {
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
