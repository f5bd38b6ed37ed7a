//! A table in LaTeX, in the paper's look: booktabs, our rows shaded.

use super::table::{Row, Shown, Table};
use crate::error::printable;

/// A whole `table` environment. It needs the packages booktabs, graphicx and xcolor with the option `table`.
pub fn latex(table: &Table, label: &str) -> String {
    let (lead, columns) = (table.lead.len(), table.columns.len());
    let mut text =
        String::from("% \\usepackage{booktabs,graphicx} \\usepackage[table]{xcolor}\n\\begin{table}[t]\n\\centering\n");
    text.push_str(&format!("\\caption{{{}}}\n\\label{{tab:{label}}}\n", escaped(&table.title)));
    text.push_str("\\resizebox{\\linewidth}{!}{%\n");
    text.push_str(&format!("\\begin{{tabular}}{{{}{}}}\n\\toprule\n", "l".repeat(lead), "r".repeat(columns)));
    if !table.groups.is_empty() {
        text.push_str(&over(table));
    }
    let heads = table.lead.iter().map(|lead| &lead.head).chain(table.columns.iter().map(|column| &column.head));
    text.push_str(&line(&heads.map(|head| format!("\\textbf{{{}}}", escaped(head))).collect::<Vec<_>>()));
    text.push_str("\\midrule\n");
    for (at, row) in table.rows.iter().enumerate() {
        match at.checked_sub(1).map(|before| &table.rows[before]) {
            Some(before) if before.backbone != row.backbone => text.push_str("\\midrule\n"),
            Some(before) if before.block != row.block => {
                text.push_str(&format!("\\cmidrule{{2-{}}}\n", lead + columns));
            }
            _ => {}
        }
        if row.ours {
            text.push_str("\\rowcolor{gray!15}\n");
        }
        text.push_str(&line(&cells(row)));
    }
    text.push_str("\\bottomrule\n\\end{tabular}%\n}\n");
    if table.has_paper() {
        let signs = math(&escaped(&table.signs()));
        text.push_str(&format!(
            "\\par\\smallskip{{\\footnotesize Small: the paper's value, ours less it, and a sign: {signs}.}}\n"
        ));
    }
    for note in &table.notes {
        text.push_str(&format!("\\par\\smallskip{{\\footnotesize {}}}\n", escaped(note)));
    }
    text.push_str("\\end{table}\n");
    text
}

fn over(table: &Table) -> String {
    let mut at = table.lead.len() + 1;
    let (mut heads, mut rules) = (vec![String::new(); table.lead.len()], String::new());
    for (head, count) in &table.groups {
        heads.push(format!("\\multicolumn{{{count}}}{{c}}{{\\textbf{{{}}}}}", escaped(head)));
        rules.push_str(&format!("\\cmidrule(lr){{{at}-{}}}", at + count - 1));
        at += count;
    }
    format!("{}{rules}\n", line(&heads))
}

fn line(cells: &[String]) -> String {
    format!("{} \\\\\n", cells.join(" & "))
}

fn cells(row: &Row) -> Vec<String> {
    let cell = |shown: &Option<Shown>| shown.as_ref().map_or("--".to_owned(), cell);
    row.lead.iter().map(|text| escaped(text)).chain(row.cells.iter().map(cell)).collect()
}

fn cell(shown: &Shown) -> String {
    let text = escaped(&shown.text);
    let text = match (shown.best, shown.second) {
        (true, _) => format!("\\textbf{{{text}}}"),
        (_, true) => format!("\\underline{{{text}}}"),
        _ => text,
    };
    let text = match shown.mark() {
        "" => text,
        mark => format!("{text}$^{{{mark}}}$"),
    };
    let Some(beside) = &shown.beside else { return text };
    let lines = beside.said().into_iter().map(|line| format!("\\\\{{\\tiny {}}}", math(&escaped(&line))));
    format!("\\shortstack[r]{{{text}{}}}", lines.collect::<String>())
}

/// Signs that stand in LaTeX's mathematics only.
fn math(text: &str) -> String {
    text.replace('−', "$-$").replace('±', "$\\pm$").replace('≠', "$\\neq$").replace("\\textasciitilde{}", "$\\sim$")
}

/// What LaTeX would read as commands.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            // A line of its own would end the paragraph, which a table's cell may not.
            '\n' | '\t' => out.push(' '),
            '<' => out.push_str("\\textless{}"),
            '>' => out.push_str("\\textgreater{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => out.extend(['\\', c]),
            '\\' => out.push_str("\\textbackslash{}"),
            '~' => out.push_str("\\textasciitilde{}"),
            '^' => out.push_str("\\textasciicircum{}"),
            _ => out.push(c),
        }
    }
    out
}
