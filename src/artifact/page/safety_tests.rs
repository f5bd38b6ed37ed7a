//! Tests that data cannot become markup, and that every link has a target.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use super::sample_pages::{hostile_page, large_page};
use super::*;

pub(super) fn without_style_and_script(html: &str) -> String {
    html.replace(STYLE, "").replace(SCRIPT, "")
}

pub(super) fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!(" {name}=\"");
    html.split(start.as_str()).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

pub(super) fn assert_links_have_targets(html: &str) {
    let ids = attributes(html, "id");
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(unique.len(), ids.len(), "duplicate id");
    for link in attributes(html, "href").into_iter().filter_map(|href| href.strip_prefix('#')) {
        assert!(unique.contains(link), "#{link} has no target");
    }
    for label in attributes(html, "aria-labelledby") {
        assert!(unique.contains(label), "no element has the id {label}");
    }
}

// A browser blocks a style or script whose hash differs from the one in the policy.
#[test]
fn content_policy_has_hashes_of_style_and_script() {
    let html = render(&large_page(1)).unwrap();
    for (tag, text) in [("style", STYLE), ("script", SCRIPT)] {
        let digest = BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
        assert!(html.contains(&format!("{tag}-src 'sha256-{digest}'")), "{tag}");
        assert!(html.contains(&format!("<{tag}>{text}</{tag}>")), "{tag}: unchanged since hashing");
    }
}

#[test]
fn data_is_escaped_in_html() {
    let html = render(&hostile_page()).unwrap();
    // Each of these tags occurs once in the page template itself.
    for tag in ["<script", "</script", "<style", "</style", "<title", "</title"] {
        assert_eq!(html.matches(tag).count(), 1, "{tag}");
    }
    let data = without_style_and_script(&html);
    assert_eq!(data.matches("<img").count(), 1, "the figure");
    assert!(!data.contains("onerror=alert(2)>") && !data.contains("<!--"));
    assert!(data.contains("&quot;&#39;&gt;&lt;script&gt;alert(1)"), "the text is escaped");
    for href in attributes(&data, "href").into_iter().filter(|href| *href != "data:,") {
        assert!(!href.contains([':', '<', '>', '\'']) && !href.starts_with('/'), "{href}");
    }
}

#[test]
fn ids_are_unique_and_links_have_their_targets() {
    assert_links_have_targets(&render(&hostile_page()).unwrap());
    let mut page = large_page(20);
    let mut again = page.artifacts[0].clone();
    again.profile = "tiny".into();
    page.artifacts.push(again);
    page.claims.push(ClaimRow { claim: "c".into(), ..ClaimRow::default() });
    page.findings = hostile_page().findings;
    let html = render(&page).unwrap();
    assert_links_have_targets(&html);
    assert_eq!(html.matches("href=\"#cell-").count(), 2 * 20 * 10);
    assert_eq!(html.matches("id=\"cell-").count(), 20);
}

#[test]
fn number_without_a_note_is_not_a_link() {
    let mut page = large_page(2);
    page.cells.clear();
    let html = render(&page).unwrap();
    assert!(!html.contains("href=\"#cell-") && !html.contains("id=\"notes\""));
    assert!(html.contains("<td>9.01</td>"), "a plain number");
}

#[test]
fn unreferenced_note_is_omitted_from_the_page() {
    let mut page = large_page(2);
    page.cells.insert("tiny/figure1/a.dense".into(), CellNote { title: "a.dense".into(), ..CellNote::default() });
    let html = render(&page).unwrap();
    assert_eq!(html.matches("id=\"cell-").count(), 2);
    assert!(!html.contains("a.dense"));
}

#[test]
fn page_loads_no_external_resources() {
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
    assert!(!without_style_and_script(&html).contains(" style="), "the policy forbids styles in attributes");
}

#[test]
fn page_with_500_rows_is_smaller_than_a_megabyte() {
    let size = render(&large_page(500)).unwrap().len();
    assert!(size < 1_000_000, "{size} bytes");
}

#[test]
fn stored_page_renders_identical_html() {
    for page in [hostile_page(), large_page(3)] {
        let stored = serde_json::to_string(&page).unwrap();
        let read: Page = serde_json::from_str(&stored).unwrap();
        assert_eq!(render(&read).unwrap(), render(&page).unwrap());
    }
    let old: Page = serde_json::from_str(r#"{"title": "only this"}"#).unwrap();
    assert!(render(&old).unwrap().contains("<h1>only this</h1>"));
}

#[test]
fn inconsistent_table_is_rejected() {
    let mut page = large_page(3);
    page.artifacts[0].tables[0].rows[1].cells.pop();
    let message = render(&page).unwrap_err().to_string();
    assert!(message.contains("artifact table2") && message.contains("row 2") && message.contains("12"), "{message}");

    let mut page = large_page(1);
    page.artifacts.push(page.artifacts[0].clone());
    assert!(render(&page).unwrap_err().to_string().contains("table2"));
}

#[test]
fn file_links_are_relative_paths_only() {
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

#[test]
fn only_texts_that_are_urls_become_links() {
    let mut page = large_page(1);
    let cells = &mut page.artifacts[0].tables[0].rows[0].cells;
    cells[1].text = "https://example.org/a?b=1".into();
    cells[2].text = "https://example.org/\"><script>".into();
    let html = render(&page).unwrap();
    assert!(html.contains("<a href=\"https://example.org/a?b=1\" rel=\"noreferrer\">https://example.org/a?b=1</a>"));
    assert_eq!(attributes(&html, "href").iter().filter(|href| href.starts_with("https:")).count(), 1);
}
