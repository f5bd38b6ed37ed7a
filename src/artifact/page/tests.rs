//! Tests that data is never markup, nothing is loaded, and every link has its target.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use super::*;
use crate::artifact::audit::Severity;
use crate::results::{PaperVerdict, SavedCell, SavedColumn, SavedComparison, SavedMark, SavedRow, SavedTable};

/// Text that closes every context in which data is embedded.
const HOSTILE: &str = "\"'><script>alert(1)</script></style></title><!--<img src=x onerror=alert(2)>{{body}}&amp;";

fn hostile() -> String {
    HOSTILE.to_owned()
}

/// Builds a page with [`HOSTILE`] in every text field.
fn hostile_page() -> Page {
    Page {
        title: hostile(),
        made: hostile(),
        program: hostile(),
        answer: vec![hostile()],
        headline: hostile(),
        profile_note: hostile(),
        artifacts: vec![hostile_artifact()],
        claims: vec![ClaimRow {
            sentence: hostile(),
            claim: hostile(),
            section: hostile(),
            paper: hostile(),
            paper_verdict: Judgement::Fails,
            ours: hostile(),
            verdict: Judgement::Holds,
            artifact: hostile(),
            profile: hostile(),
        }],
        findings: vec![FindingRow {
            severity: Severity::Contradiction,
            rule: hostile(),
            position: hostile(),
            expected: hostile(),
            found: hostile(),
            note: hostile(),
        }],
        left_out: vec![(hostile(), hostile())],
        cells: [(hostile(), hostile_note())].into(),
    }
}

fn hostile_artifact() -> PageArtifact {
    let row = SavedRow {
        group: Some(hostile()),
        ours: true,
        cells: vec![hostile_cell(false), hostile_cell(true)],
        ..SavedRow::default()
    };
    PageArtifact {
        name: hostile(),
        profile: hostile(),
        title: hostile(),
        caption: hostile(),
        status: hostile(),
        tables: vec![SavedTable {
            caption: hostile(),
            protocol: hostile(),
            notes: vec![hostile()],
            group_name: hostile(),
            columns: vec![hostile_column(false), hostile_column(true)],
            rows: vec![row; 8],
        }],
        figures: vec![FigureView { svg: format!("<svg width='3' height='4'>{HOSTILE}</svg>"), label: hostile() }],
        provenance: vec![pair()],
        computed: vec![ComputedBy {
            commit: hostile(),
            machine: hostile(),
            results: 1,
            seconds: 1.5,
            first: hostile(),
            last: hostile(),
        }],
        inputs: [pair()].into(),
        files: vec![pair(), (hostile(), format!("a{HOSTILE}")), (hostile(), "javascript:1".into())],
    }
}

fn hostile_note() -> CellNote {
    CellNote {
        title: hostile(),
        identity: hostile().into(),
        lines: vec![pair()],
        commands: vec![hostile()],
        makers: vec![vec![pair()], vec![pair()]],
        parts: vec![ObjectNote { kind: hostile(), key: hostile(), finished: hostile(), seconds: 1.5, maker: 1 }],
        inputs: [pair()].into(),
    }
}

fn pair() -> (String, String) {
    (hostile(), hostile())
}

fn hostile_cell(numeric: bool) -> SavedCell {
    SavedCell {
        text: hostile(),
        value: numeric.then_some(1.5),
        mark: Some(SavedMark { better: numeric, says: hostile() }),
        comparison: Some(SavedComparison {
            paper: hostile(),
            difference: Some(hostile()),
            tolerance: Some(hostile()),
            verdict: PaperVerdict::OtherProtocol(vec![hostile()]),
        }),
        key: Some(hostile()),
        error: hostile(),
        items: Some(3),
        identity: Some(hostile()),
        ..SavedCell::default()
    }
}

fn hostile_column(numeric: bool) -> SavedColumn {
    SavedColumn { name: hostile(), group: Some(hostile()), numeric, ..SavedColumn::default() }
}

fn large_row(row: usize) -> Vec<SavedCell> {
    let depth = SavedCell { text: row.to_string(), value: Some(row as f64), ..SavedCell::default() };
    let numbers = (0..10).map(|i| {
        let value = f64::from(i) + row as f64 / 100.0;
        SavedCell { text: format!("{value:.2}"), value: Some(value), key: Some(large_key(row)), ..SavedCell::default() }
    });
    [depth, text_cell("LLM-Streamline"), text_cell("Linear Patch (Rotate)")].into_iter().chain(numbers).collect()
}

/// Builds a table with ten columns of numbers, each linked to its row's note.
fn large_page(rows: usize) -> Page {
    let names = ["Depth", "Criterion", "Recovery", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let columns = names.iter().enumerate().map(|(i, name)| SavedColumn {
        name: (*name).to_owned(),
        numeric: i == 0 || i > 2,
        higher_is_better: (i > 2).then_some(true),
        choice: i < 3,
        ..SavedColumn::default()
    });
    let view = SavedTable {
        columns: columns.collect(),
        rows: (0..rows)
            .map(|index| SavedRow { group: Some("Tiny LLaMA".into()), cells: large_row(index), ..SavedRow::default() })
            .collect(),
        ..SavedTable::default()
    };
    let artifact = PageArtifact { name: "table2".into(), tables: vec![view], ..PageArtifact::default() };
    Page {
        artifacts: vec![artifact],
        cells: (0..rows).map(|row| (large_key(row), large_note(row))).collect(),
        ..Page::default()
    }
}

fn text_cell(text: &str) -> SavedCell {
    SavedCell { text: text.to_owned(), ..SavedCell::default() }
}

fn large_note(row: usize) -> CellNote {
    CellNote {
        title: format!("Tiny LLaMA without {row} of 16 layers"),
        lines: vec![("Backbone".into(), "tiny-llama".into()), ("Removed".into(), "layers 8 to 11".into())],
        commands: vec![format!("ghostlab explain table2.yaml {}", large_key(row))],
        makers: vec![vec![("program".into(), "ghostlab 0.1.0".into())]],
        parts: vec![ObjectNote { kind: "operator".into(), key: "0f".repeat(6), seconds: 2.5, ..ObjectNote::default() }],
        ..CellNote::default()
    }
}

fn large_key(row: usize) -> String {
    format!("tiny-llama/llm-streamline/{row}/linearpatch-rotate/c4:64x512@0")
}

fn without_ours(html: &str) -> String {
    html.replace(STYLE, "").replace(SCRIPT, "")
}

fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!(" {name}=\"");
    html.split(start.as_str()).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn assert_links_lead_somewhere(html: &str) {
    let ids = attributes(html, "id");
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(unique.len(), ids.len(), "an id is there twice");
    for link in attributes(html, "href").into_iter().filter_map(|href| href.strip_prefix('#')) {
        assert!(unique.contains(link), "#{link} leads nowhere");
    }
    for label in attributes(html, "aria-labelledby") {
        assert!(unique.contains(label), "{label} is no label");
    }
}

/// The browser would block a style or script whose hash differs from the policy.
#[test]
fn the_policy_has_the_hashes_of_the_style_and_the_script() {
    let html = render(&large_page(1)).unwrap();
    for (tag, text) in [("style", STYLE), ("script", SCRIPT)] {
        let digest = html::base64(&Sha256::digest(text.as_bytes()));
        assert!(html.contains(&format!("{tag}-src 'sha256-{digest}'")), "{tag}");
        assert!(html.contains(&format!("<{tag}>{text}</{tag}>")), "{tag}: unchanged since hashing");
    }
}

#[test]
fn no_text_of_the_data_is_markup() {
    let html = render(&hostile_page()).unwrap();
    // The skeleton contains one of each.
    for tag in ["<script", "</script", "<style", "</style", "<title", "</title"] {
        assert_eq!(html.matches(tag).count(), 1, "{tag}");
    }
    let data = without_ours(&html);
    assert_eq!(data.matches("<img").count(), 1, "the figure");
    assert!(!data.contains("onerror=alert(2)>") && !data.contains("<!--"));
    assert!(data.contains("&quot;&#39;&gt;&lt;script&gt;alert(1)"), "the text is shown as it is");
    for href in attributes(&data, "href").into_iter().filter(|href| *href != "data:,") {
        assert!(!href.contains([':', '<', '>', '\'']) && !href.starts_with('/'), "{href}");
    }
}

#[test]
fn ids_are_unique_and_links_have_their_targets() {
    assert_links_lead_somewhere(&render(&hostile_page()).unwrap());
    let mut page = large_page(20);
    let mut again = page.artifacts[0].clone();
    again.profile = "tiny".into();
    page.artifacts.push(again);
    page.claims.push(ClaimRow { claim: "c".into(), ..ClaimRow::default() });
    page.findings.push(FindingRow { rule: "r".into(), ..FindingRow::default() });
    let html = render(&page).unwrap();
    assert_links_lead_somewhere(&html);
    assert_eq!(html.matches("href=\"#cell-").count(), 2 * 20 * 10);
    assert_eq!(html.matches("id=\"cell-").count(), 20);
}

#[test]
fn a_key_without_a_note_makes_no_link() {
    let mut page = large_page(2);
    page.cells.clear();
    let html = render(&page).unwrap();
    assert!(!html.contains("href=\"#cell-") && !html.contains("id=\"notes\""));
    assert!(html.contains("<td>9.01</td>"), "a plain number");
}

#[test]
fn a_note_that_no_number_opens_is_left_out() {
    let mut page = large_page(2);
    page.cells.insert("tiny/figure1/a.dense".into(), CellNote { title: "a.dense".into(), ..CellNote::default() });
    let html = render(&page).unwrap();
    assert_eq!(html.matches("id=\"cell-").count(), 2);
    assert!(!html.contains("a.dense"));
}

#[test]
fn nothing_is_loaded() {
    let mut page = hostile_page();
    page.profile_note = "see https://example.org/paper".into();
    let html = render(&page).unwrap();
    for source in attributes(&html, "src") {
        assert!(source.starts_with("data:image/svg+xml;base64,"), "{source}");
    }
    let ours: String = TEMPLATES.iter().map(|(_, text)| *text).chain([STYLE, SCRIPT]).collect();
    for way in ["http:", "https:", "@import", "url(", "fetch(", "srcset", "XMLHttpRequest", "import("] {
        assert!(!ours.contains(way), "{way}");
    }
    assert!(html.contains("default-src 'none'"));
    assert!(!without_ours(&html).contains(" style="), "the policy forbids styles in attributes");
}

#[test]
fn five_hundred_rows_make_less_than_a_megabyte() {
    let size = render(&large_page(500)).unwrap().len();
    assert!(size < 1_000_000, "{size} bytes");
}

#[test]
fn a_stored_page_gives_the_same_html() {
    for page in [hostile_page(), large_page(3)] {
        let stored = serde_json::to_string(&page).unwrap();
        let read: Page = serde_json::from_str(&stored).unwrap();
        assert_eq!(render(&read).unwrap(), render(&page).unwrap());
    }
    let old: Page = serde_json::from_str(r#"{"title": "only this"}"#).unwrap();
    assert!(render(&old).unwrap().contains("<h1>only this</h1>"));
}

#[test]
fn a_table_that_makes_no_sense_is_refused() {
    let mut page = large_page(3);
    page.artifacts[0].tables[0].rows[1].cells.pop();
    let message = render(&page).unwrap_err().to_string();
    assert!(message.contains("artifact table2") && message.contains("row 2") && message.contains("12"), "{message}");

    let mut page = large_page(1);
    page.artifacts.push(page.artifacts[0].clone());
    assert!(render(&page).unwrap_err().to_string().contains("table2"));
}

#[test]
fn the_text_alternatives_say_what_the_print_does() {
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
    // Sorted by the value, not by the text.
    assert!(html.contains("<td data-v=\"7123456789\">7.1e9</td>"));
}

fn paper_value(paper: &str, difference: Option<&str>, verdict: PaperVerdict) -> Option<SavedComparison> {
    Some(SavedComparison { paper: paper.into(), difference: difference.map(str::to_owned), tolerance: None, verdict })
}

#[test]
fn papers_value_has_difference_verdict_and_count() {
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
    assert!(top.contains("profile paper") && top.contains(&page_of(2)), "both tables together");
    assert_eq!(top.matches(page_of(1).as_str()).count(), 2, "and each of them");
    assert!(!render(&large_page(2)).unwrap().contains("class=\"compared\""), "nothing to count in another profile");
}

fn page_of(count: usize) -> String {
    let part = |word: &str, sign: &str, text: &str| {
        format!("<span class=\"{word}\"><b>{count}</b> <span aria-hidden=\"true\">{sign}</span> {text}</span>")
    };
    [part("same", "=", "same"), part("differs", "≠", "differs"), part("other-protocol", "~", "other protocol")].concat()
}

#[test]
fn a_mark_of_a_paired_test_is_to_be_seen() {
    let mut page = large_page(1);
    let row = &mut page.artifacts[0].tables[0].rows[0].cells;
    row[3].mark = Some(SavedMark { better: true, says: "better than A".into() });
    row[4].mark = Some(SavedMark { better: false, says: "worse than B".into() });
    let html = render(&page).unwrap();
    assert!(html.contains("<sup class=\"up\" title=\"better than A\"><span aria-hidden=\"true\">+</span>"), "{html}");
    assert!(html.contains("<sup class=\"down\" title=\"worse than B\"><span aria-hidden=\"true\">−</span>"));
}

#[test]
fn a_caption_stands_once() {
    let caption = "Mean of the nine tasks.";
    let mut page = large_page(1);
    page.artifacts[0].caption = caption.into();
    page.artifacts[0].figures = vec![figure("LLaMA"), figure("OLMo")];
    let html = render(&page).unwrap();
    // The figures' alternative texts also contain the caption, invisibly.
    let seen = without_ours(&html).replace(&format!("LLaMA. {caption}"), "").replace(&format!("OLMo. {caption}"), "");
    assert_eq!(seen.matches(caption).count(), 1);
    assert!(html.contains("<figcaption>LLaMA</figcaption>") && html.contains("width=\"5\" height=\"6\""));
}

fn figure(label: &str) -> FigureView {
    FigureView { svg: "<svg width='3pt' height='4pt'></svg>".into(), label: label.into() }
}

#[test]
fn a_note_says_by_whom_when_and_from_what() {
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
fn the_last_text_before_the_numbers_names_the_row() {
    let mut page = large_page(1);
    assert!(render(&page).unwrap().contains("<th scope=\"row\" class=\"t l\">Linear Patch (Rotate)</th>"));
    page.artifacts[0].tables[0].columns[1].label = true;
    assert!(render(&page).unwrap().contains("<th scope=\"row\" class=\"t l\">LLM-Streamline</th>"));
}

#[test]
fn a_file_link_stays_on_the_disk_that_the_page_lies_on() {
    let mut page = large_page(1);
    let files = [
        "tiny/table 2.csv",
        "/etc/passwd",
        "../results/b.csv",
        "https://example.org/x",
        "javascript:alert(1)",
        "//example.org",
        "\\\\example.org",
    ];
    page.artifacts[0].files = files.iter().map(|path| ("CSV".to_owned(), (*path).to_owned())).collect();
    let html = render(&page).unwrap();
    let links: Vec<&str> = attributes(&html, "href").into_iter().filter(|href| !href.starts_with('#')).collect();
    assert_eq!(links, ["data:,", "tiny/table%202.csv", "../results/b.csv"]);
}

/// WCAG 2.1 §1.4.3 requires a contrast ratio of 4.5 for text.
#[test]
fn text_stands_out_from_every_background() {
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
    let colour = scheme.split_once(&format!("--{name}: #")).unwrap().1;
    0.2126 * linear_channel(colour, 0) + 0.7152 * linear_channel(colour, 2) + 0.0722 * linear_channel(colour, 4)
}

fn linear_channel(colour: &str, position: usize) -> f64 {
    let part = f64::from(u8::from_str_radix(&colour[position..position + 2], 16).unwrap()) / 255.0;
    if part <= 0.03928 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
}

#[test]
fn a_text_that_is_an_address_is_a_link_and_nothing_else_is() {
    let mut page = large_page(1);
    let cells = &mut page.artifacts[0].tables[0].rows[0].cells;
    cells[1].text = "https://example.org/a?b=1".into();
    cells[2].text = "https://example.org/\"><script>".into();
    let html = render(&page).unwrap();
    assert!(html.contains("<a href=\"https://example.org/a?b=1\" rel=\"noreferrer\">https://example.org/a?b=1</a>"));
    assert_eq!(attributes(&html, "href").iter().filter(|href| href.starts_with("https:")).count(), 1);
}

#[test]
fn page_begins_with_answer_figure_table_and_claims() {
    let mut page = large_page(2);
    page.artifacts[0].provenance = vec![entry("machine", "a machine"), entry(WRITING_STARTED, "2026-01-01T00:00:00Z")];
    page.artifacts[0].provenance.push(entry(WRITING_FINISHED, "2026-01-01T00:10:00Z"));
    let other = PageArtifact { name: "table1".into(), title: "Table 1: it".into(), ..PageArtifact::default() };
    // A list appears among the artifacts of the first profile.
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
    assert_links_lead_somewhere(&html);
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
    // Tables of the appendix and those beyond the paper are collapsed.
    assert_eq!(html.matches("<details class=\"folded\"><summary>Show 2 rows</summary>").count(), 2);
    assert!(html.contains("On small models a claim that fails"), "what a failure on small models can say");
    let rows: Vec<&str> = html
        .split("class=\"squares\" aria-hidden=\"true\">")
        .skip(1)
        .map(|row| row.split("</p>").next().unwrap())
        .collect();
    let counts =
        |row: &str| ["holds", "fails", "unknown"].map(|word| row.matches(&format!("class=\"{word}\"")).count());
    assert_eq!(rows.iter().map(|row| counts(row)).collect::<Vec<_>>(), [[1, 1, 1], [2, 1, 0]]);
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
fn page_tells_computing_from_writing_and_names_all_commits() {
    let mut page = large_page(1);
    page.artifacts[0].provenance = vec![
        entry("commit", &"a".repeat(40)),
        entry("machine", "machine A"),
        entry(WRITING_STARTED, "2026-02-01T00:00:00Z"),
        entry(WRITING_FINISHED, "2026-02-01T00:00:06Z"),
    ];
    page.artifacts[0].computed = vec![
        computed("b", "machine B", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"),
        computed("c", "machine A", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
    ];
    let html = render(&page).unwrap();
    let when = "2026-01-01T00:00:00Z to 2026-01-03T00:00:00Z, by commits bbbbbbbbbbbb, cccccccccccc";
    assert!(html.contains(&fact_of("Computed", when)), "{html}");
    let when = "2026-02-01T00:00:00Z to 2026-02-01T00:00:06Z, by commit aaaaaaaaaaaa";
    assert!(html.contains(&fact_of("Written", when)));
    assert!(html.contains(&fact_of("On", "machine A; machine B")));
    assert!(html.contains("2 results in 90.0 s of computing, 2026-01-02T00:00:00Z to"));
}

fn computed(commit: &str, machine: &str, first: &str, last: &str) -> ComputedBy {
    ComputedBy {
        commit: commit.repeat(40),
        machine: machine.into(),
        results: 2,
        seconds: 90.0,
        first: first.into(),
        last: last.into(),
    }
}

fn fact_of(name: &str, value: &str) -> String {
    format!("<dt>{name}</dt><dd>{value}</dd>")
}

#[test]
fn audit_has_a_page_of_its_own() {
    let page = hostile_page();
    let [html, audit] = [render(&page).unwrap(), render_audit(&page).unwrap()];
    assert!(html.contains("href=\"audit.html\"") && html.contains("1 contradiction"));
    assert!(!html.contains("id=\"findings\"") && audit.contains("id=\"findings\""));
    assert!(audit.contains("href=\"index.html\""));
    assert_links_lead_somewhere(&audit);
    assert_eq!(audit.matches("<script").count(), 1, "no text of the data is markup");
    assert!(without_ours(&audit).contains("&quot;&#39;&gt;&lt;script&gt;alert(1)"), "the text is shown as it is");
    let none = Page::default();
    assert!(!render(&none).unwrap().contains("audit.html"), "nothing was found");
    assert!(render_audit(&none).unwrap().contains("found nothing"));
}

#[test]
fn columns_that_nothing_asks_for_are_left_out() {
    let mut page = large_page(2);
    page.artifacts[0].tables[0].columns[4].name = "bits per byte".into();
    assert!(render(&page).unwrap().contains("bits per byte"));
    page.artifacts[0].tables[0].columns[4].unasked = true;
    let html = render(&page).unwrap();
    assert!(!html.contains("bits per byte"));
    assert_eq!(html.matches("href=\"#cell-").count(), 2 * 9);
}

#[test]
fn protocol_folds_and_warnings_precede_their_table() {
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
fn what_notes_have_in_common_stands_once() {
    let mut page = large_page(30);
    for note in page.cells.values_mut() {
        note.inputs = [("data/c4.jsonl".to_owned(), "ab".repeat(32))].into();
    }
    let html = render(&page).unwrap();
    assert_eq!(html.matches("data/c4.jsonl").count(), 1);
    assert_eq!(html.matches("href=\"#inputs-1\"").count(), 30);
    assert_links_lead_somewhere(&html);
}

#[test]
fn an_artifact_is_called_as_the_paper_prints_it() {
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
