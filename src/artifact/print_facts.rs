//! Extracts facts about the layout of LaTeX tables, to compare printed tables with the paper's.

use std::collections::BTreeMap;

/// Facts about the layout of a table, one per line.
pub(super) type Facts = Vec<String>;

const FIXTURE: &str = include_str!("../../tests/fixtures/paper_tables.txt");

/// Parses the fixture. Returns the label and the layout facts of each table in the paper, keyed by table name.
pub(super) fn read_fixture() -> BTreeMap<String, (String, Facts)> {
    let mut all: BTreeMap<String, (String, Facts)> = BTreeMap::new();
    let mut current = String::new();
    for line in FIXTURE.lines() {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')?.split_once(' ')) {
            Some((name, label)) => {
                current = name.to_owned();
                all.insert(current.clone(), (label.to_owned(), Vec::new()));
            }
            None => all.get_mut(&current).unwrap().1.push(line.to_owned()),
        }
    }
    all
}

/// Splits off a leading LaTeX argument in braces or brackets. Returns the argument and the remaining text.
fn split_argument(text: &str) -> (&str, &str) {
    let close = match text.chars().next() {
        Some('{') => '}',
        Some('[') => ']',
        _ => return ("", text),
    };
    let end = text.find(close).unwrap();
    (&text[1..end], &text[end + 1..])
}

/// Reduces the LaTeX source of a cell to a normalized word. Also returns whether the cell is shaded.
fn parse_cell(text: &str) -> (String, bool) {
    let mut word = String::new();
    let mut over = String::new();
    let mut span = String::new();
    let mut arrow = "";
    let mut shaded = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c != '\\' {
            word.extend(c.to_lowercase().filter(|c| c.is_ascii_alphanumeric() || "/.".contains(*c)));
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (command, behind) = rest.split_at(end);
        // Skip the character in a control symbol such as `\&`.
        rest = if end == 0 { rest.get(1..).unwrap_or("") } else { behind };
        match command {
            "jygl" => shaded = true,
            "cellcolor" => (shaded, rest) = (true, split_argument(rest).1),
            "cite" | "citep" | "textcolor" | "begin" | "end" => rest = split_argument(rest).1,
            "rotatebox" => rest = split_argument(split_argument(rest).1).1,
            "multirow" => {
                let (count, behind) = split_argument(rest);
                (span, rest) = (format!("*{count}"), split_argument(behind).1);
            }
            "multicolumn" => {
                let (count, behind) = split_argument(rest);
                (over, rest) = (format!("{count}:"), split_argument(behind).1);
            }
            "uparrow" => arrow = "↑",
            "downarrow" => arrow = "↓",
            _ => {}
        }
    }
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let is_number = digits > 0 && word[digits..].starts_with('.');
    let word = match word.as_str() {
        "" => "_",
        _ if is_number && word[digits + 1..].starts_with(|c: char| c.is_ascii_digit()) => "#",
        word => word,
    };
    (format!("{over}{word}{span}{arrow}"), shaded)
}

/// Splits off a leading rule command and returns its name, such as `midrule` or `cmidrule2-13`. The name is empty for
/// `\rowcolor`, which shades the row.
fn split_rule(text: &str) -> Option<(String, &str)> {
    for name in ["toprule", "midrule", "bottomrule"] {
        if let Some(behind) = text.strip_prefix(&format!("\\{name}")) {
            return Some((name.to_owned(), behind));
        }
    }
    if let Some(behind) = text.strip_prefix("\\cmidrule") {
        let behind = behind.split_once('{').unwrap().1;
        let (columns, behind) = behind.split_once('}').unwrap();
        return Some((format!("cmidrule{columns}"), behind));
    }
    text.strip_prefix("\\rowcolor").map(|behind| (String::new(), split_argument(behind).1))
}

pub(super) fn extract_facts(tex: &str) -> Facts {
    let (_, begun) = tex.split_once("\\begin{tabular}").unwrap();
    let (_, tabular) = begun.split_once('}').unwrap();
    let tabular = tabular.split_once("\\end{tabular}").unwrap().0.replace("\\&", "");
    let tabular: String = tabular.lines().map(|line| format!("{}\n", line.split(" %").next().unwrap())).collect();
    let mut kind = "head";
    let mut heads = Vec::new();
    let mut found = Vec::new();
    for line in tabular.split("\\\\") {
        let (mut rules, mut is_full, mut rest): (Vec<String>, bool, &str) = (Vec::new(), false, line.trim());
        while let Some((name, behind)) = split_rule(rest) {
            is_full |= name.is_empty();
            if !name.is_empty() && name != "toprule" && rules.last() != Some(&name) {
                rules.push(name);
            }
            rest = behind.trim_start();
        }
        if rest.is_empty() {
            continue;
        }
        if rules.iter().any(|name| name == "midrule") {
            kind = "row";
        }
        let cells: Vec<(String, bool)> = rest.split('&').map(parse_cell).collect();
        let mut words: Vec<String> = cells.iter().map(|(word, _)| word.clone()).collect();
        if kind == "head" {
            heads.clone_from(&words);
        }
        for (word, head) in words.iter_mut().zip(&heads) {
            if kind == "row" && ["officialrepository", "downloadlink"].contains(&head.as_str()) {
                "#".clone_into(word);
            }
        }
        let shaded: Vec<usize> = (1..=cells.len()).filter(|at| is_full || cells[at - 1].1).collect();
        if let (Some(first), Some(last)) = (shaded.first(), shaded.last()) {
            words.push(format!("shaded{first}-{last}"));
        }
        let rules = if rules.is_empty() { "-".to_owned() } else { rules.join(",") };
        found.push((format!("{kind} {rules}"), words));
    }
    move_names_first(&mut found);
    found.into_iter().map(|(kind, words)| format!("{kind} {}", words.join(" "))).collect()
}

/// Moves the label of a multirow cell from its last row (`llama*-4`) to its first (`llama*4`), where the paper prints
/// it.
fn move_names_first(rows: &mut [(String, Vec<String>)]) {
    for at in 0..rows.len() {
        let Some((name, count)) = rows[at].1[0].split_once("*-") else { continue };
        let (name, count): (String, usize) = (name.to_owned(), count.parse().unwrap());
        "_".clone_into(&mut rows[at].1[0]);
        rows[at + 1 - count].1[0] = format!("{name}*{count}");
    }
}

/// Pairs of a name used by the paper or by this program and the common name that replaces it in the comparison.
const COMMON_NAMES: [(&str, &str); 15] = [
    ("prunecomp", "pruneandcomp"),
    ("linearpatchd", "linearpatchdiag"),
    ("linearpatchr", "linearpatchrotate"),
    ("ghostedlayersours", "ghostlayerours"),
    ("ours", "ghostlayerours"),
    ("prunedllm", "llmstreamline"),
    ("prunedstreamline", "llmstreamline"),
    ("dllama8b*5", "deepseekr1distillllama8b*5"),
    ("torch.linalg.svd", "svdbased"),
    ("torch.linalg.solve", "solverbased"),
    ("wikitext2", "wiki"),
    ("avg", "accavg"),
    ("avg↑", "accavg↑"),
    ("gpu", "memory"),
    ("latencyms", "prefillms"),
];

pub(super) fn normalize_terms(facts: &Facts) -> Facts {
    facts
        .iter()
        .map(|line| {
            line.split(' ')
                .map(|word| {
                    COMMON_NAMES
                        .iter()
                        .find(|(known, _)| *known == word)
                        .map_or_else(|| normalize_shading(word), |(_, same)| (*same).to_owned())
                })
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}

/// Replaces a word for shading with `shaded`, because the paper shades single cells and this program whole rows.
fn normalize_shading(word: &str) -> String {
    if word.starts_with("shaded") { "shaded".to_owned() } else { word.to_owned() }
}
