//! Compares the layout of each printed table with the paper's.
//!
//! The tables contain the paper's numbers, so nothing is computed. `tools/paper_tables.py` extracted the fixture from
//! the paper's LaTeX source. If the source is available, the fixture is checked against it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::catalog::{self, Artifact};
use super::layout::{lay_out_table, with_notes};
use super::lists;
use super::pipeline::latex_variants;
use super::print_facts::{extract_facts, normalize_terms, read_fixture};
use crate::artifact::paper;
use crate::grid::ListEntry;
use crate::results::number_record::{Condition, Record};
use crate::results::{
    ResultRow, RowHeader, Setup, StoredResults, Table, TableRow, latex, latex_notes, screen, settings,
};

fn experiments() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments")
}

fn as_row(record: Record) -> Arc<ResultRow> {
    let mut setup = Setup::default();
    if let (_, Some(sequences)) = record.condition.calibrated() {
        let sequences: usize = sequences.parse().unwrap();
        setup.variant = Arc::new([(settings::OPERATOR_SEQUENCES.to_owned(), sequences.into())].into());
    }
    Arc::new(ResultRow { setup, ..ResultRow::new(record, "") })
}

/// Returns all variants of an artifact's table with their names. `more` contains metrics and values that the paper does
/// not have.
fn build_variants(name: &str, more: &[(&str, f64)]) -> Vec<(String, Table)> {
    let all = catalog::all(&experiments()).unwrap();
    let artifact: &Artifact = catalog::select(&all, &[name.to_owned()]).unwrap()[0];
    if let Some(list) = artifact.description.list {
        let list = match list {
            ListEntry::Methods => lists::list_methods(),
            ListEntry::Checkpoints => lists::list_checkpoints(&experiments()).unwrap(),
        };
        let table = list.printed(&artifact.description).unwrap();
        return artifact.names().into_iter().map(|name| (name.to_owned(), table.clone())).collect();
    }
    let paper = paper::records(name).unwrap();
    let conditions: Vec<Condition> = crate::results::distinct(paper.iter().map(|record| &record.condition));
    let further = conditions.iter().flat_map(|condition| {
        more.iter().map(|(metric, value)| Record {
            condition: condition.clone(),
            metric: (*metric).to_owned(),
            value: Some(*value),
            error: None,
        })
    });
    let numbers: Vec<_> = paper.iter().cloned().chain(further).map(as_row).collect();
    let entry = artifact.description.table.as_ref().unwrap();
    let laid = lay_out_table(&artifact.description, entry, &numbers, &paper).unwrap();
    latex_variants(artifact, entry, &with_notes(laid, "paper", vec!["A note: 5 % ± 1 × 2 ≥ 3 – é.".to_owned()]))
}

fn print_latex(name: &str) -> String {
    let table = build_variants(name, &[]).into_iter().find(|(label, _)| label == name).unwrap().1;
    latex(&table, name)
}

#[test]
fn tables_have_the_papers_columns_rules_rows_and_shading() {
    let fixture = read_fixture();
    assert_eq!(fixture.len(), 15, "the paper has tables 1 to 5 and A1 to A10");
    for (name, (_, paper)) in &fixture {
        let ours = normalize_terms(&extract_facts(&print_latex(name)));
        let paper = normalize_terms(paper);
        for (at, (ours, paper)) in ours.iter().zip(&paper).enumerate() {
            assert_eq!(ours, paper, "{name}, line {}", at + 1);
        }
        assert_eq!(ours.len(), paper.len(), "{name}: lines");
    }
}

#[test]
#[expect(clippy::disallowed_macros, reason = "a skipped test prints the reason")]
fn fixture_matches_the_papers_source() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/paper/ghosted_layers.tex");
    let source = fs::read_to_string(&path);
    assert!(source.is_ok() || std::env::var_os("CI").is_none(), "{} is missing", path.display());
    let Ok(source) = source else {
        eprintln!("skipped: the paper's source is not at {}", path.display());
        return;
    };
    let source = source.replace("\\%", "");
    for (name, (label, facts)) in read_fixture() {
        let labeled = format!("\\label{{tab:{label}}}");
        let table = source
            .split("\\begin{table")
            .find(|part| part.split("\\end{table").next().is_some_and(|table| table.contains(&labeled)));
        assert_eq!(extract_facts(table.unwrap()), facts, "{name}");
    }
}

#[test]
fn table_3_criteria_are_bold_and_no_table_is_scaled() {
    let text = print_latex("table3");
    for criterion in ["Shortened LLaMA", "LLM-Streamline", "ShortGPT"] {
        assert_eq!(text.matches(&format!("\\textbf{{{criterion}}}")).count(), 3, "{criterion}: once per backbone");
    }
    assert!(print_latex("table4").contains("\\rowcolor{gray!15} \\textbf{32}"));
    for name in read_fixture().keys() {
        assert!(!print_latex(name).contains("\\resizebox"), "{name}");
    }
}

#[test]
fn captions_state_constants_and_notes_state_the_protocol() {
    for (name, cut) in [("tableA8", "7 of 32"), ("tableA9", "11 of 32"), ("table4", "7 of 32"), ("tableA10", "7 of 32")]
    {
        assert!(caption(name).contains(&format!(": LLaMA-3.1-8B, {cut} layers removed]{{")), "{}", caption(name));
    }
    let text = caption("table2");
    for sentence in [
        "$L_p/L_t$: layers removed, of the backbone's layers.",
        "Bold: best of a block, underlined: second; shaded: ours.",
    ] {
        assert!(text.contains(sentence), "{sentence}: {text}");
    }
    let table = build_variants("table2", &[]).remove(0).1;
    let notes = latex_notes(&table, "table2").unwrap();
    assert!(notes.contains("Protocol: profile paper.\n\nA note: ") && !text.contains("Protocol"), "{notes}");
    assert!(!text.contains("layers removed. Bold") && !caption("tableA10").contains("shaded"), "{text}");
}

fn caption(name: &str) -> String {
    print_latex(name).lines().find(|line| line.starts_with("\\caption")).unwrap().to_owned()
}

#[test]
fn columns_beyond_the_paper_have_a_separate_file() {
    assert_eq!(form_names(&build_variants("table3", &[])), ["table3", "table3-compared"]);
    assert_eq!(form_names(&build_variants("table4", &[])), ["table4", "tableA3", "table4-compared"]);
    let with = build_variants("table3", &[("bpb_c4", 0.5)]);
    assert_eq!(form_names(&with), ["table3", "table3-compared", "table3-beyond"]);
    assert_eq!(latex(&with[0].1, "table3"), print_latex("table3"), "only the paper's columns");
    let beyond = extract_facts(&latex(&with[2].1, "table3-beyond"));
    assert_eq!(beyond[1], "head cmidrule3-3,cmidrule5-5 model method c4bits/byte↓ _ c4bits/byte↓");
    assert!(latex(&with[1].1, "t").contains("\\shortstack") && !latex(&with[2].1, "t").contains("\\shortstack"));
    let memory = build_variants("table5", &[("peak_memory_mb", 16.5)]);
    assert_eq!(extract_facts(&latex(&memory[2].1, "t"))[0], "head - method lp/lt memorymb");
    let speed = build_variants("tableA8", &[("speedup:seq=512:batch=1", 1.26), ("speedup:seq=512:batch=4", 1.25)]);
    assert_eq!(extract_facts(&latex(&speed[2].1, "t"))[1], "row midrule 512 1 # # # # #");
}

fn form_names(forms: &[(String, Table)]) -> Vec<String> {
    forms.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
}

#[test]
#[expect(clippy::disallowed_macros, reason = "a skipped test prints the reason")]
fn all_printed_tables_compile_without_warnings() {
    if let Some(reason) = compile_skipped() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut text = "\\listoftables\n".to_owned();
    let mut known = BTreeSet::new();
    let mut add = |name: &str, table: &Table| {
        // The variant with the paper's values is the same for all names of a table, so add it only once.
        if !known.insert(name.to_owned()) {
            return;
        }
        let notes = latex_notes(table, name).unwrap_or_default();
        text.push_str(&format!("{}\n{notes}\\clearpage\n", latex(table, name)));
    };
    for name in read_fixture().keys() {
        let more = if name == "table3" { &[("bpb_c4", 0.5)][..] } else { &[] };
        build_variants(name, more)
            .iter()
            .filter(|(label, _)| label == name || label.contains('-'))
            .for_each(|(label, table)| add(label, table));
    }
    // Characters that users may put into names.
    let strange = "a_b & 50 % of {x} ^2 ~ \\ # $1 [y] <z> − ± × ≠ ≤ ≥ ≈ → · – — … ’ é ü";
    let odd = Table {
        title: strange.to_owned(),
        caption: strange.to_owned(),
        lead: vec![RowHeader::text(strange)],
        rows: vec![TableRow { lead: vec![strange.to_owned()], shaded: true, heading: true, ..TableRow::default() }],
        protocol: strange.to_owned(),
        notes: vec![strange.to_owned(), "a note of many lines ".repeat(400)],
        ..Table::default()
    };
    add("odd", &odd);
    assert_eq!(compile_warnings(&text), Vec::<String>::new());
}

/// Returns why LaTeX compilation is skipped, or `None` if it is not.
fn compile_skipped() -> Option<&'static str> {
    let requested = std::env::var("GHOSTLAB_TEX").unwrap_or_default();
    let is_installed = Command::new("pdflatex").arg("--version").output().is_ok();
    assert!(is_installed || requested != "require", "pdflatex is not installed");
    match (requested.as_str(), is_installed) {
        ("skip", _) => Some("GHOSTLAB_TEX=skip"),
        (_, false) => Some("pdflatex is not installed"),
        _ => None,
    }
}

/// Compiles an article twice to resolve its references. Returns the warnings from the second pass.
fn compile_warnings(body: &str) -> Vec<String> {
    let text = format!(
        "\\documentclass{{article}}\n\\usepackage[margin=2cm]{{geometry}}\n\
         \\usepackage{{adjustbox,booktabs,graphicx,multirow,url}}\n\\usepackage[table]{{xcolor}}\n\
         \\begin{{document}}\n{body}\\end{{document}}\n"
    );
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("all.tex"), &text).unwrap();
    let mut log = String::new();
    for _ in 0..2 {
        let mut pdflatex = Command::new("pdflatex");
        let run = pdflatex.args(["-interaction=nonstopmode", "-halt-on-error", "all.tex"]).current_dir(folder.path());
        let output = run.output().unwrap();
        log = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{log}");
    }
    log.lines()
        .filter(|line| ["Warning", "Overfull", "Underfull", "Error"].iter().any(|word| line.contains(word)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn option_names_and_quotes_are_escaped_in_latex() {
    let table = Table { notes: vec!["`--retime` times ''again'' -- and ---".to_owned()], ..Table::default() };
    let notes = latex_notes(&table, "t").unwrap();
    assert!(notes.contains("`-{}-retime` times '{}'again'{}' -{}- and -{}-{}-."), "{notes}");
}

// The committed tables must compile because readers copy them into their papers.
#[test]
#[expect(clippy::disallowed_macros, reason = "a skipped test prints the reason")]
fn all_recorded_tables_compile_without_warnings() {
    if let Some(reason) = compile_skipped() {
        eprintln!("skipped: {reason}");
        return;
    }
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let mut tables: Vec<PathBuf> = Vec::new();
    for artifact in fs::read_dir(results).unwrap() {
        let folder = artifact.unwrap().path();
        // Lists have no profile, so their files are in the folder itself.
        let files = [folder.clone(), folder.join("tiny")].into_iter().filter_map(|folder| fs::read_dir(folder).ok());
        let files = files.flatten().map(|file| file.unwrap().path());
        tables.extend(files.filter(|file| file.extension().is_some_and(|extension| extension == "tex")));
    }
    tables.sort();
    assert!(tables.len() >= 23, "{tables:?}");
    let text: Vec<String> = tables.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    assert_eq!(compile_warnings(&text.join("\\clearpage\n")), Vec::<String>::new());
}

// The paper's numbers have no significance marks, so a recorded run is used to check the marks.
#[test]
fn table_2_is_not_split_at_120_columns() {
    let table = lay_out("table2", &paper::records("table2").unwrap().into_iter().map(as_row).collect::<Vec<_>>());
    let text = screen(&table, Some(120));
    assert_eq!(text, read_expected("table2-120.txt"));
    assert_eq!(screen(&table, Some(80)), read_expected("table2-80.txt"));
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/table2/tiny");
    let recorded = StoredResults::read(&recorded).unwrap();
    let numbers: Vec<Arc<ResultRow>> = recorded.numbers.into_iter().map(Arc::new).collect();
    let text = screen(&lay_out("table2", &numbers), Some(120));
    assert!(text.contains("+ or -: ours is better") && !text.contains("columns 1"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

fn read_expected(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/screen");
    fs::read_to_string(fixtures.join(name)).unwrap()
}

fn lay_out(name: &str, numbers: &[Arc<ResultRow>]) -> Table {
    let all = catalog::all(&experiments()).unwrap();
    let artifact: &Artifact = catalog::select(&all, &[name.to_owned()]).unwrap()[0];
    lay_out_table(&artifact.description, artifact.description.table.as_ref().unwrap(), numbers, &[]).unwrap()
}

#[test]
fn every_part_of_table_3_has_headers_and_several_columns() {
    let numbers: Vec<Arc<ResultRow>> = paper::records("table3").unwrap().into_iter().map(as_row).collect();
    for width in [120, 80, 60] {
        let text = screen(&lay_out("table3", &numbers), Some(width));
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        assert!(text.contains("7-layer") && text.contains("11-layer"), "{text}");
        assert!(text.lines().all(|line| !line.starts_with("column ")), "a part of one column: {text}");
    }
}
