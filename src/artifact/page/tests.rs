//! Tests the contents of the results page and of the audit page.

use super::safety_tests::{assert_links_have_targets, without_style_and_script};
use super::sample_pages::{hostile_page, large_page};
use super::*;
use crate::results::{PaperVerdict, SavedCell, SavedComparison, SavedSignificance};

#[test]
fn accessible_text_describes_the_marks() {
    let mut page = large_page(1);
    let row = &mut page.artifacts[0].tables[0].rows[0];
    row.ours = true;
    row.cells[3].best = true;
    row.cells[4].second = true;
    row.cells[5] = SavedCell { text: "—".into(), value: None, failed: true, ..SavedCell::default() };
    row.cells[6] = SavedCell { text: "7.1e9".into(), value: Some(7_123_456_789.0), ..SavedCell::default() };
    let html = render(&page).unwrap();
    assert!(html.contains("<b>0.00</b></a><span class=\"vh\"> best</span>"));
    assert!(html.contains("<u>1.00</u></a><span class=\"vh\"> second</span>"));
    assert!(html.contains("<tr class=\"ours\">") && html.contains("<span class=\"vh\"> (ours)</span></th>"));
    assert!(html.contains("<td class=\"failed\">—</td>"));
    // Rows are sorted by the value of the cell, not by its text.
    assert!(html.contains("<td data-v=\"7123456789\">7.1e9</td>"));
}

fn paper_value(paper: &str, difference: Option<&str>, verdict: PaperVerdict) -> Option<SavedComparison> {
    Some(SavedComparison { paper: paper.into(), difference: difference.map(str::to_owned), tolerance: None, verdict })
}

#[test]
fn paper_value_shows_difference_verdict_and_count() {
    let mut page = large_page(2);
    let row = &mut page.artifacts[0].tables[0].rows[0].cells;
    row[3].comparison = paper_value("81.20", Some("+0.10"), PaperVerdict::Same);
    row[4].comparison = paper_value("70.00", Some("−9.00"), PaperVerdict::Differs);
    row[5].comparison =
        paper_value("60.00", Some("+5.00"), PaperVerdict::OtherProtocol(vec!["100 of 2376 documents".into()]));
    row[6].comparison = paper_value("50.00", None, PaperVerdict::Missing);
    page.artifacts[0].profile = "paper".into();
    let mut other = page.artifacts[0].clone();
    other.name = "table3".into();
    page.artifacts.push(other);
    let html = render(&page).unwrap();
    for sign in [
        "class=\"paper same\"",
        "81.20<br>",
        "+0.10</span>",
        "aria-hidden=\"true\">=</span>",
        "aria-hidden=\"true\">≠</span>",
    ] {
        assert!(html.contains(sign), "{sign}");
    }
    assert!(html.contains("class=\"paper other-protocol\" title=\"100 of 2376 documents\""));
    let (top, _) = html.split_once("class=\"legend\"").unwrap();
    assert!(top.contains("profile paper") && top.contains(&tally_html(2)), "the count of both tables");
    assert_eq!(top.matches(tally_html(1).as_str()).count(), 2, "one count per table");
    assert!(!render(&large_page(2)).unwrap().contains("class=\"compared\""), "nothing to count in another profile");
}

fn tally_html(count: usize) -> String {
    let part = |word: &str, sign: &str, text: &str| {
        format!("<span class=\"{word}\"><b>{count}</b> <span aria-hidden=\"true\">{sign}</span> {text}</span>")
    };
    [part("same", "=", "same"), part("differs", "≠", "differs"), part("other-protocol", "~", "other protocol")].concat()
}

#[test]
fn paired_test_mark_is_shown() {
    let mut page = large_page(1);
    let row = &mut page.artifacts[0].tables[0].rows[0].cells;
    row[3].mark = Some(SavedSignificance { better: true, says: "better than A".into() });
    row[4].mark = Some(SavedSignificance { better: false, says: "worse than B".into() });
    let html = render(&page).unwrap();
    assert!(html.contains("<sup class=\"up\" title=\"better than A\"><span aria-hidden=\"true\">+</span>"), "{html}");
    assert!(html.contains("<sup class=\"down\" title=\"worse than B\"><span aria-hidden=\"true\">−</span>"));
}

#[test]
fn caption_is_printed_once() {
    let caption = "Mean of the nine tasks.";
    let mut page = large_page(1);
    page.artifacts[0].caption = caption.into();
    page.artifacts[0].figures = vec![figure("LLaMA"), figure("OLMo")];
    let html = render(&page).unwrap();
    // The alternative texts of the figures contain the caption too, so remove them first.
    let seen = without_style_and_script(&html)
        .replace(&format!("LLaMA. {caption}"), "")
        .replace(&format!("OLMo. {caption}"), "");
    assert_eq!(seen.matches(caption).count(), 1);
    assert!(html.contains("<figcaption>LLaMA</figcaption>") && html.contains("width=\"5\" height=\"6\""));
}

fn figure(label: &str) -> FigureView {
    FigureView { svg: "<svg width='3pt' height='4pt'></svg>".into(), label: label.into() }
}

#[test]
fn provenance_note_lists_commits_times_and_inputs() {
    let mut page = large_page(1);
    let note = page.cells.values_mut().next().unwrap();
    note.makers = vec![vec![("commit".into(), "abc123".into())], vec![("commit".into(), "def456".into())]];
    note.parts = vec![object_note(0), object_note(1)];
    note.inputs = [("data/c4.jsonl".to_owned(), "ab".repeat(32))].into();
    let html = render(&page).unwrap();
    let (_, note) = html.split_once("<article").unwrap();
    for text in [
        "abc123",
        "def456",
        "Made by (2)",
        "2026-01-02T03:04:05Z",
        "<td>1.25</td><td>2</td>",
        "data/c4.jsonl",
        &"ab".repeat(32),
    ] {
        assert!(note.contains(text), "{text}: {note}");
    }
}

fn object_note(maker: usize) -> ObjectNote {
    ObjectNote {
        kind: "scores".into(),
        key: "0f".into(),
        finished: "2026-01-02T03:04:05Z".into(),
        seconds: 1.25,
        maker,
    }
}

#[test]
fn last_text_column_is_the_row_header_by_default() {
    let mut page = large_page(1);
    assert!(render(&page).unwrap().contains("<th scope=\"row\" class=\"t l\">Linear Patch (Rotate)</th>"));
    page.artifacts[0].tables[0].columns[1].label = true;
    assert!(render(&page).unwrap().contains("<th scope=\"row\" class=\"t l\">LLM-Streamline</th>"));
}

// WCAG 2.1 §1.4.3 requires a contrast ratio of 4.5 for text.
#[test]
fn text_contrasts_with_every_background() {
    let (light, dark) = STYLE.split_once("prefers-color-scheme: dark").unwrap();
    for scheme in [light, dark] {
        for back in ["back", "raised", "ours"] {
            for (front, least) in
                [("text", 4.5), ("muted", 4.5), ("link", 4.5), ("bad", 4.5), ("good", 4.5), ("other", 4.5)]
            {
                let a = luminance(scheme, front);
                let b = luminance(scheme, back);
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= least, "{front} on {back}: {contrast:.2}");
            }
        }
    }
}

fn luminance(scheme: &str, name: &str) -> f64 {
    let color = scheme.split_once(&format!("--{name}: #")).unwrap().1;
    0.2126 * linear_channel(color, 0) + 0.7152 * linear_channel(color, 2) + 0.0722 * linear_channel(color, 4)
}

fn linear_channel(color: &str, position: usize) -> f64 {
    let part = f64::from(u8::from_str_radix(&color[position..position + 2], 16).unwrap()) / 255.0;
    if part <= 0.03928 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
}

#[test]
fn page_begins_with_answer_figure_table_and_claims() {
    let mut page = large_page(2);
    page.artifacts[0].provenance = vec![entry("machine", "a machine"), entry(WRITING_STARTED, "2026-01-01T00:00:00Z")];
    page.artifacts[0].provenance.push(entry(WRITING_FINISHED, "2026-01-01T00:10:00Z"));
    let other = PageArtifact { name: "table1".into(), title: "Table 1: it".into(), ..PageArtifact::default() };
    // A list is shown among the artifacts of the first profile.
    page.artifacts[0].profile = "tiny".into();
    for name in ["beyond", "tableA4", "figure1", "table3"] {
        page.artifacts.push(PageArtifact { name: name.into(), ..page.artifacts[0].clone() });
    }
    page.artifacts.insert(0, other);
    page.headline = "table2".into();
    page.claims = vec![
        claim_row("first", Judgement::Holds, Judgement::Holds),
        claim_row("second", Judgement::Fails, Judgement::Holds),
        claim_row("third", Judgement::Unknown, Judgement::Fails),
    ];
    let html = render(&page).unwrap();
    assert_links_have_targets(&html);
    let parts = [
        "Of 3 sentences of the paper, checked on our numbers, 1 holds, 1 fails, 1 unknown.",
        "2026-01-01T00:00:00Z to 2026-01-01T00:10:00Z",
        "<section id=\"artifact-tiny/figure1\">",
        "<section id=\"artifact-tiny/table2\">",
        "<section id=\"claims\">",
        "<p class=\"squares\"",
        "<section id=\"artifact-table1\">",
        "<section id=\"artifact-tiny/table3\">",
        "<section id=\"artifact-tiny/tableA4\">",
        "<section id=\"artifact-tiny/beyond\">",
    ];
    let places = parts.map(|text| html.find(text).unwrap_or_else(|| panic!("{text}")));
    assert!(places.is_sorted(), "{:?}", parts.iter().zip(places).collect::<Vec<_>>());
    // Tables from the appendix and tables that are not in the paper are collapsed.
    assert_eq!(html.matches("<details class=\"folded\"><summary>Show 2 rows</summary>").count(), 2);
    assert!(html.contains("On small models, a claim that fails"), "the caveat about small models");
    let rows: Vec<&str> = html
        .split("class=\"squares\" aria-hidden=\"true\">")
        .skip(1)
        .map(|row| row.split("</p>").next().unwrap())
        .collect();
    let counts = rows
        .iter()
        .map(|row| ["holds", "fails", "unknown"].map(|word| row.matches(&format!("class=\"{word}\"")).count()));
    assert_eq!(counts.collect::<Vec<_>>(), [[1, 1, 1], [2, 1, 0]]);
    assert!(html.contains("<tr id=\"claim-2\">") && html.contains("<b>fails</b>"));
}

fn entry(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn claim_row(sentence: &str, verdict: Judgement, paper_verdict: Judgement) -> ClaimRow {
    ClaimRow {
        claim: "Ours is best.".into(),
        sentence: sentence.into(),
        artifact: "table2".into(),
        profile: "tiny".into(),
        verdict,
        paper_verdict,
        ..ClaimRow::default()
    }
}

#[test]
fn page_states_when_results_were_computed_and_written() {
    let mut page = large_page(1);
    page.artifacts[0].provenance = vec![
        entry("commit", &"a".repeat(40)),
        entry("machine", "machine A"),
        entry(WRITING_STARTED, "2026-02-01T00:00:00Z"),
        entry(WRITING_FINISHED, "2026-02-01T00:00:06Z"),
    ];
    page.artifacts[0].computed = vec![
        computed_by("b", "machine B", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"),
        computed_by("c", "machine A", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
    ];
    let html = render(&page).unwrap();
    let when = "2026-01-01T00:00:00Z to 2026-01-03T00:00:00Z, by commits bbbbbbbbbbbb, cccccccccccc";
    assert!(html.contains(&fact_html("Computed", when)), "{html}");
    let when = "2026-02-01T00:00:00Z to 2026-02-01T00:00:06Z, by commit aaaaaaaaaaaa";
    assert!(html.contains(&fact_html("Written", when)));
    assert!(html.contains(&fact_html("On", "machine A; machine B")));
    assert!(html.contains("2 results in 90.0 s of computing, 2026-01-02T00:00:00Z to"));
}

fn computed_by(commit: &str, machine: &str, first: &str, last: &str) -> ComputedBy {
    ComputedBy {
        commit: commit.repeat(40),
        machine: machine.into(),
        results: 2,
        seconds: 90.0,
        first: first.into(),
        last: last.into(),
    }
}

fn fact_html(name: &str, value: &str) -> String {
    format!("<dt>{name}</dt><dd>{value}</dd>")
}

#[test]
fn audit_has_a_separate_page() {
    let page = hostile_page();
    let [html, audit] = [render(&page).unwrap(), render_audit(&page).unwrap()];
    assert!(html.contains("href=\"audit.html\"") && html.contains("1 contradiction"));
    assert!(!html.contains("id=\"findings\"") && audit.contains("id=\"findings\""));
    assert!(audit.contains("href=\"index.html\""));
    assert_links_have_targets(&audit);
    assert_eq!(audit.matches("<script").count(), 1, "no text of the data is markup");
    assert!(without_style_and_script(&audit).contains("&quot;&#39;&gt;&lt;script&gt;alert(1)"), "the text is escaped");
    let none = Page::default();
    assert!(!render(&none).unwrap().contains("audit.html"), "nothing was found");
    assert!(render_audit(&none).unwrap().contains("found nothing"));
}

#[test]
fn unrequested_columns_are_hidden() {
    let mut page = large_page(2);
    page.artifacts[0].tables[0].columns[4].name = "bits per byte".into();
    assert!(render(&page).unwrap().contains("bits per byte"));
    page.artifacts[0].tables[0].columns[4].unasked = true;
    let html = render(&page).unwrap();
    assert!(!html.contains("bits per byte"));
    assert_eq!(html.matches("href=\"#cell-").count(), 2 * 9);
}

#[test]
fn protocol_is_folded_and_warnings_precede_the_table() {
    let mut page = large_page(1);
    page.artifacts[0].tables[0].protocol = "Protocol: all of it.".into();
    page.artifacts[0].tables[0].notes = vec!["Something else ran.".into()];
    let html = render(&page).unwrap();
    assert!(html.contains("<details class=\"protocol\"><summary>Protocol: all of it.</summary></details>"));
    let note = html.find("<li>Something else ran.</li>").unwrap();
    let table = html.find("<thead>").unwrap();
    assert!(note < table);
}

#[test]
fn shared_inputs_of_notes_are_listed_once() {
    let mut page = large_page(30);
    for note in page.cells.values_mut() {
        note.inputs = [("data/c4.jsonl".to_owned(), "ab".repeat(32))].into();
    }
    let html = render(&page).unwrap();
    assert_eq!(html.matches("data/c4.jsonl").count(), 1);
    assert_eq!(html.matches("href=\"#inputs-1\"").count(), 30);
    assert_links_have_targets(&html);
}

#[test]
fn artifact_name_is_printed_as_in_the_paper() {
    for (name, text) in [
        ("table2", "Table 2"),
        ("tableA8", "Table A8"),
        ("figure1", "Figure 1"),
        ("tables", "tables"),
        ("mine", "mine"),
    ] {
        assert_eq!(crate::artifact::printed(name), text);
    }
}
