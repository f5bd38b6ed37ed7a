//! A table in LaTeX, as the paper has its own: booktabs, a backbone once beside its rows, the best in bold, the second
//! underlined, ours shaded; natural width, unless the line is narrower.

use super::table::{Lead, LeadKind, LeadPlace, PrintedNumber, Row, Table};
use crate::error::printable;

/// What a document needs before it can take a table in.
const PACKAGES: &str = "% \\usepackage{adjustbox,booktabs,graphicx,multirow,url} \\usepackage[table]{xcolor}";
const SHADE: &str = "\\cellcolor{gray!15} ";
/// From so many columns on a table is as wide as the page, where that has two columns of text.
const WIDE: usize = 9;
/// A letter's height on its side, in lines of the table: a name that is longer than its rows lies.
const LETTER: f64 = 0.45;

/// A whole `table` environment with the label `tab:LABEL`.
pub fn latex(table: &Table, label: &str) -> String {
    let places = places(table);
    let star = if places.len() >= WIDE { "*" } else { "" };
    let mut text = format!("{PACKAGES}\n\\begin{{table{star}}}[t]\n\\centering\n\\footnotesize\n");
    text.push_str(&format!("\\caption[{}]{{{}}}\n", said(&title(table)), caption(table)));
    text.push_str(&format!(
        "\\label{{tab:{label}}}\n\\begin{{adjustbox}}{{max totalsize={{\\linewidth}}{{.75\\textheight}}}}\n"
    ));
    let sides: String = places.iter().map(|place| place.side(table)).collect();
    text.push_str(&format!("\\begin{{tabular}}{{{sides}}}\n\\toprule\n"));
    text.push_str(&over(table, &places));
    text.push_str(&line(&places.iter().map(|place| place.head(table)).collect::<Vec<_>>()));
    text.push_str("\\midrule\n");
    for at in 0..table.rows.len() {
        text.push_str(&rule(table, at, places.len()));
        text.push_str(&line(&cells(table, at, &places)));
    }
    text.push_str("\\bottomrule\n\\end{tabular}\n\\end{adjustbox}\n");
    for note in &table.notes {
        text.push_str(&format!("\\par\\smallskip{{\\footnotesize {}}}\n", said(note)));
    }
    text.push_str(&format!("\\end{{table{star}}}\n"));
    text
}

/// A column of the printed table.
#[derive(Debug, Clone, Copy)]
enum ColumnPlace {
    Lead(usize),
    Number(usize),
    /// Between two groups of numbers.
    Gap,
    Tail(usize),
}

fn places(table: &Table) -> Vec<ColumnPlace> {
    let shown = |(at, lead): (usize, &Lead)| (lead.place == LeadPlace::Everywhere).then_some(at);
    let mut places: Vec<ColumnPlace> = table.lead.iter().enumerate().filter_map(shown).map(ColumnPlace::Lead).collect();
    let mut ends: Vec<usize> = Vec::new();
    table.groups.iter().for_each(|(_, count)| ends.push(ends.last().unwrap_or(&0) + count));
    for at in 0..table.columns.len() {
        places.extend((at > 0 && ends.contains(&at)).then_some(ColumnPlace::Gap));
        places.push(ColumnPlace::Number(at));
    }
    places.extend(table.tail.iter().enumerate().filter_map(shown).map(ColumnPlace::Tail));
    places
}

impl ColumnPlace {
    /// To which side its cells stand.
    fn side(self, table: &Table) -> char {
        match self {
            Self::Lead(at) if table.lead[at].count => 'r',
            Self::Tail(at) if table.tail[at].count => 'r',
            Self::Lead(_) | Self::Tail(_) => 'l',
            Self::Number(_) => 'r',
            Self::Gap => 'c',
        }
    }

    fn head(self, table: &Table) -> String {
        let bold = |text: &str| format!("\\textbf{{{text}}}");
        let words = |lead: &Lead| match lead.kind {
            LeadKind::Fraction => bold("$L_p/L_t$"),
            _ => bold(&said(&lead.head)),
        };
        match self {
            Self::Lead(at) => words(&table.lead[at]),
            Self::Tail(at) => words(&table.tail[at]),
            Self::Gap => String::new(),
            Self::Number(at) => {
                let column = &table.columns[at];
                let arrow = match column.higher_is_better().filter(|_| column.arrow) {
                    Some(true) => " $\\uparrow$",
                    Some(false) => " $\\downarrow$",
                    None => "",
                };
                format!("{}{arrow}", bold(&said(&column.head)))
            }
        }
    }
}

/// The heads over several columns, and the rules below them.
fn over(table: &Table, places: &[ColumnPlace]) -> String {
    if table.groups.is_empty() {
        return String::new();
    }
    let (mut heads, mut rules, mut first) = (Vec::new(), Vec::new(), 0);
    let mut groups = table.groups.iter();
    for (place, at) in places.iter().zip(1..) {
        match place {
            ColumnPlace::Number(number) if *number == first => {
                let Some((head, count)) = groups.next() else { break };
                heads.push(format!("\\multicolumn{{{count}}}{{c}}{{\\textbf{{{}}}}}", said(head)));
                rules.extend((!head.is_empty()).then(|| format!("\\cmidrule{{{at}-{}}}", at + count - 1)));
                first += count;
            }
            ColumnPlace::Number(_) => {}
            _ => heads.push(String::new()),
        }
    }
    format!("{}{}\n", line(&heads), rules.join(" "))
}

/// The rule above a row: a whole one between backbones; between blocks one that the backbone's name stands beside.
fn rule(table: &Table, at: usize, columns: usize) -> String {
    let Some(before) = at.checked_sub(1).map(|before| &table.rows[before]) else { return String::new() };
    let spans = table.lead.first().is_some_and(|lead| lead.kind == LeadKind::Spanning);
    let row = &table.rows[at];
    match (before.backbone == row.backbone, before.block == row.block) {
        (true, true) => String::new(),
        (true, false) if spans => format!("\\cmidrule{{2-{columns}}}\n"),
        _ => "\\midrule\n".to_owned(),
    }
}

fn line(cells: &[String]) -> String {
    format!("{} \\\\\n", cells.join(" & "))
}

fn cells(table: &Table, at: usize, places: &[ColumnPlace]) -> Vec<String> {
    let row = &table.rows[at];
    // What spans rows, and what a cut is, is not ours.
    let is_named =
        |place: &ColumnPlace| matches!(place, ColumnPlace::Lead(lead) if table.lead[*lead].kind == LeadKind::Words);
    let named = places.iter().position(is_named).unwrap_or(0);
    let text = |place: &ColumnPlace| match *place {
        ColumnPlace::Lead(lead) => words(table, at, lead),
        ColumnPlace::Tail(tail) => linked(&table.tail[tail], &row.tail[tail]),
        ColumnPlace::Number(column) => row.cells[column].as_ref().map_or("--".to_owned(), number),
        ColumnPlace::Gap => String::new(),
    };
    let shaded = |(column, place): (usize, &ColumnPlace)| {
        let shade = if row.shaded && column >= named { SHADE } else { "" };
        format!("{shade}{}", text(place))
    };
    places.iter().enumerate().map(shaded).collect()
}

fn words(table: &Table, at: usize, lead: usize) -> String {
    let (row, kind) = (&table.rows[at], table.lead[lead].kind);
    let text = linked(&table.lead[lead], &row.lead[lead]);
    if kind == LeadKind::Spanning {
        let same = |other: &&Row| other.backbone == row.backbone;
        let first = at == 0 || table.rows[at - 1].backbone != row.backbone;
        let rows = table.rows[at..].iter().take_while(same).count();
        return match (first, rows) {
            (false, _) => String::new(),
            (true, 1) => text,
            (true, rows) => format!("\\multirow{{{rows}}}{{*}}{{{}}}", lying(&text, &row.lead[lead], rows)),
        };
    }
    if kind == LeadKind::Words && row.heading { format!("\\textbf{{{text}}}") } else { text }
}

/// A name on its side, where its rows leave room for it.
fn lying(text: &str, name: &str, rows: usize) -> String {
    match name.chars().count() as f64 * LETTER <= rows as f64 {
        true => format!("\\rotatebox[origin=c]{{90}}{{{text}}}"),
        false => text.to_owned(),
    }
}

fn linked(lead: &Lead, text: &str) -> String {
    match lead.kind {
        _ if text.is_empty() => "--".to_owned(),
        LeadKind::Link if text.starts_with("https://") => format!("\\url{{{text}}}"),
        _ => said(text),
    }
}

fn number(shown: &PrintedNumber) -> String {
    let text = said(&shown.text);
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
    let lines = beside.said().into_iter().map(|line| format!("\\\\{{\\tiny {}}}", said(&line)));
    format!("\\shortstack[r]{{{text}{}}}", lines.collect::<String>())
}

/// With what no column says.
fn title(table: &Table) -> String {
    [&table.title, &table.of].into_iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>().join(": ")
}

/// Title, caption, what the marks mean and how the numbers were made: a sentence each.
fn caption(table: &Table) -> String {
    let mut parts = vec![sentence(&title(table)), sentence(&table.caption)];
    if table.lead.iter().any(|lead| lead.kind == LeadKind::Fraction) {
        parts.push("$L_p/L_t$: layers removed, of the backbone's layers.".to_owned());
    }
    let of_ours = table.rows.iter().filter(|row| row.shaded).all(|row| row.ours);
    let ours = if of_ours && table.rows.iter().any(|row| row.shaded) { "shaded: ours" } else { "" };
    let ranks = if table.has_ranks() { "bold: best of a block, underlined: second" } else { "" };
    let marks = [ranks, ours].into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join("; ");
    parts.push(sentence(&capital(&marks)));
    if table.significant() {
        let marks = said(&table.marks());
        parts.push(format!("$^{{+}}$ and $^{{-}}$: {marks}, $p < 0.05$ on the same items."));
    }
    if table.has_paper() {
        let signs = said(&table.signs());
        parts.push(format!("Small: the paper's value, ours less it, and a sign: {signs}."));
    }
    parts.push(sentence(&table.protocol));
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// With a full stop behind it; empty where there is nothing to say.
fn sentence(text: &str) -> String {
    match text.trim() {
        "" => String::new(),
        text if text.ends_with('.') => said(text),
        text => format!("{}.", said(text)),
    }
}

/// A text as LaTeX prints it: nothing in it is read as a command, and signs that its fonts lack stand in its mathematics.
fn said(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            // A line of its own would end the paragraph, which a table's cell may not.
            '\n' | '\t' => out.push(' '),
            '<' => out.push_str("\\textless{}"),
            '>' => out.push_str("\\textgreater{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => out.extend(['\\', c]),
            '\\' => out.push_str("\\textbackslash{}"),
            // Alone it is the sign for about; in a path it is a letter.
            '~' => out.push_str("$\\sim$"),
            '^' => out.push_str("\\textasciicircum{}"),
            // Ends the short form of a caption.
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
