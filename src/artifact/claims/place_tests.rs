//! Checks the cited table, figure and section numbers against the paper's LaTeX source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::claims;

/// Reads the paper's LaTeX source. Returns `None` if the file is missing, which counts as a failure in CI.
#[expect(clippy::disallowed_macros, reason = "a skipped test prints the reason")]
fn read_latex_source() -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/paper/ghosted_layers.tex");
    let text = fs::read_to_string(&path).ok();
    assert!(text.is_some() || std::env::var_os("CI").is_none(), "{} is missing", path.display());
    if text.is_none() {
        eprintln!("skipped: the paper's source is not at {}", path.display());
    }
    text
}

/// Returns the lines in the order in which LaTeX reads them, with each file inserted at its `\input`. Each file in
/// `source` starts with a line `%% file: NAME`.
fn inline_files(source: &str) -> Vec<&str> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut file = "";
    for line in source.lines() {
        match line.strip_prefix("%% file: ") {
            Some(name) => file = name.trim_end_matches(".tex"),
            None => files.entry(file).or_default().push(line),
        }
    }
    fn read<'a>(files: &BTreeMap<&str, Vec<&'a str>>, name: &str, lines: &mut Vec<&'a str>) {
        for line in &files[name] {
            match line.trim().strip_prefix("\\input{").and_then(|rest| rest.strip_suffix('}')) {
                Some(inner) => read(files, inner, lines),
                None => lines.push(line),
            }
        }
    }
    let mut all = Vec::new();
    read(&files, "main", &mut all);
    all
}

/// Current values of LaTeX's section, table and figure counters.
#[derive(Default)]
struct Counters {
    appendix: bool,
    section: u8,
    subsection: u8,
    tables: u8,
    figures: u8,
}

impl Counters {
    fn update(&mut self, line: &str) {
        let line = line.trim();
        if line.starts_with("\\appendix") {
            *self = Self { appendix: true, ..Self::default() };
        } else if line.starts_with("\\section{") {
            (self.section, self.subsection) = (self.section + 1, 0);
        } else if line.starts_with("\\subsection{") {
            self.subsection += 1;
        } else if line.starts_with("\\begin{table") {
            self.tables += 1;
        } else if line.starts_with("\\begin{figure") || line.starts_with("\\begin{wrapfigure") {
            self.figures += 1;
        }
    }

    fn place(&self) -> String {
        match (self.appendix, self.section, self.subsection) {
            (false, 0, _) => "Abstract".to_owned(),
            (false, section, 0) => format!("Section {section}"),
            (false, section, subsection) => format!("Section {section}.{subsection}"),
            (true, 0, _) => "Appendix".to_owned(),
            (true, section, _) => format!("Appendix {}", char::from(b'A' + section - 1)),
        }
    }

    fn artifact(&self, label: &str) -> String {
        let prefix = if self.appendix { "A" } else { "" };
        match label.starts_with("tab:") {
            true => format!("table{prefix}{}", self.tables),
            false => format!("figure{prefix}{}", self.figures),
        }
    }
}

#[test]
fn artifact_number_matches_latex_numbering() {
    let Some(source) = read_latex_source() else { return };
    let mut counters = Counters::default();
    let mut numbered = Vec::new();
    for line in inline_files(&source) {
        counters.update(line);
        for kind in ["tab:", "fig:"] {
            if let Some(label) = line.trim().strip_prefix(&format!("\\label{{{kind}")) {
                let label = format!("{kind}{}", label.trim_end_matches('}'));
                numbered.push((counters.artifact(&label), label));
            }
        }
    }
    // Names of our artifacts, with the LaTeX labels of the same tables and figures in the paper.
    let expected = [
        ("figure1", "fig:boundary_mae"),
        ("figure2", "fig:main"),
        ("figure3", "fig:symm"),
        ("figure4", "fig:channel_mae"),
        ("table1", "tab:method_repos"),
        ("table2", "tab:commonsense_main"),
        ("table3", "tab:ppl_main"),
        ("table4", "tab:csize_ablation"),
        ("table5", "tab:efficiency_llama31"),
        ("figure5", "fig:diss"),
        ("tableA1", "tab:model_links"),
        ("tableA2", "tab:method_repos"),
        ("tableA3", "tab:csize_ablation"),
        ("tableA4", "tab:commonsensekl_common"),
        ("tableA5", "tab:commonsensekl_ppl"),
        ("tableA6", "tab:commonsense_additional_llms"),
        ("tableA7", "tab:commonsense_wiki"),
        ("tableA8", "tab:latency_grid_n7"),
        ("tableA9", "tab:latency_grid_n11"),
        ("tableA10", "tab:solver_comparison"),
    ];
    let expected: BTreeSet<(String, String)> = expected.map(|(name, label)| (name.to_owned(), label.to_owned())).into();
    assert_eq!(BTreeSet::from_iter(numbered), expected);

    // Each artifact has its own file in `experiments/` or is listed in another file's `also`.
    let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    let also: BTreeSet<String> = expected
        .iter()
        .filter_map(|(name, _)| experiment_text(&experiments, name))
        .filter_map(|text| Some(text.lines().find_map(|line| line.trim().strip_prefix("also: "))?.to_owned()))
        .collect();
    for (name, label) in &expected {
        assert!(experiment_text(&experiments, name).is_some() != also.contains(name), "{name} ({label})");
    }
    assert!(experiment_text(&experiments, "tableA1").is_some_and(|text| text.contains("list: checkpoints")));
    assert!(
        experiment_text(&experiments, "table1")
            .is_some_and(|text| text.contains("list: methods") && text.contains("also: tableA2"))
    );
    assert!(experiment_text(&experiments, "table4").is_some_and(|text| text.contains("also: tableA3")));
}

fn experiment_text(experiments: &Path, name: &str) -> Option<String> {
    fs::read_to_string(experiments.join(name).with_extension("yaml")).ok()
}

/// Returns the word trigrams of a sentence, ignoring LaTeX commands.
fn word_trigrams(text: &str) -> BTreeSet<[String; 3]> {
    let mut plain = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '\\' {
            while rest.next_if(char::is_ascii_alphabetic).is_some() {}
            plain.push(' ');
        } else if c.is_ascii_alphanumeric() {
            plain.push(c.to_ascii_lowercase());
        } else if !matches!(c, '{' | '}') {
            plain.push(' ');
        }
    }
    let words: Vec<&str> = plain.split_whitespace().collect();
    words.windows(3).map(|three| [three[0].to_owned(), three[1].to_owned(), three[2].to_owned()]).collect()
}

#[test]
fn claim_is_in_the_section_that_it_names() {
    let Some(source) = read_latex_source() else { return };
    let mut sections: BTreeMap<String, String> = BTreeMap::new();
    let mut counters = Counters::default();
    for line in inline_files(&source) {
        counters.update(line);
        let text = sections.entry(counters.place()).or_default();
        text.push_str(line);
        text.push('\n');
    }
    let sections: BTreeMap<String, BTreeSet<[String; 3]>> =
        sections.into_iter().map(|(section, text)| (section, word_trigrams(&text))).collect();
    for claim in claims() {
        let claimed = word_trigrams(claim.says);
        let found = |section: &str| sections.get(section).map_or(0, |words| claimed.intersection(words).count());
        let best = sections.keys().map(|section| found(section)).max().unwrap_or(0);
        assert!(
            2 * best >= claimed.len(),
            "{}: {:?} not found in the paper ({best} of {})",
            claim.id,
            claim.says,
            claimed.len()
        );
        let named = claim.section.split(", ").next().unwrap_or_default();
        let best_sections: Vec<&String> = sections.keys().filter(|section| found(section) == best).collect();
        assert!(
            best_sections.iter().any(|section| *section == named),
            "{}: {named}, but it is in {best_sections:?}",
            claim.id
        );
    }
}
