//! The parts of the page's body: the list of contents, the artifacts, claims, the audit and the cells' notes.

use std::collections::BTreeMap;

use super::data::{Artifact, Cell, CellNote, ClaimRow, Column, Page, Row, TableView};
use super::html::{artifact_id, cell_id, definitions, encoded, escaped, paragraph};
use super::{figure, table};
use crate::error::Result;

/// Links to all parts, artifacts below their profiles.
pub(super) fn contents(page: &Page) -> String {
    let link = |id: &str, text: &str| format!("<li><a href=\"#{id}\">{}</a></li>", escaped(text));
    let mut html = String::new();
    for artifacts in page.artifacts.chunk_by(|a, b| a.profile == b.profile) {
        if let Some(profile) = artifacts.first().map(|artifact| &artifact.profile).filter(|name| !name.is_empty()) {
            html.push_str(&format!("<p>{}</p>", escaped(profile)));
        }
        let links: String = artifacts
            .iter()
            .map(|artifact| link(&artifact_id(&artifact.profile, &artifact.name), heading(artifact)))
            .collect();
        html.push_str(&format!("<ul>{links}</ul>"));
    }
    let mut rest = String::new();
    for (is_there, id, text) in
        [(!page.claims.is_empty(), "claims", "Claims"), (!page.findings.is_empty(), "findings", "Audit")]
    {
        rest.push_str(&if is_there { link(id, text) } else { String::new() });
    }
    if !page.cells.is_empty() {
        rest.push_str("<li class=\"scriptless\"><a href=\"#notes\">How each number was made</a></li>");
    }
    if rest.is_empty() { html } else { format!("{html}<ul class=\"rest\">{rest}</ul>") }
}

fn heading(artifact: &Artifact) -> &str {
    if artifact.title.is_empty() { &artifact.name } else { &artifact.title }
}

/// The section of an artifact.
///
/// # Errors
/// As [`table::table`] and [`figure::figure`].
pub(super) fn artifact(artifact: &Artifact, page: &Page) -> Result<String> {
    let id = artifact_id(&artifact.profile, &artifact.name);
    let title = heading(artifact);
    let badge = |class: &str, text: &str| match text {
        "" => String::new(),
        text => format!(" <span class=\"{class}\">{}</span>", escaped(text)),
    };
    let mut html = format!(
        "<section id=\"{id}\">\n<h2>{}{}{}</h2>\n{}",
        escaped(title),
        badge("profile", &artifact.profile),
        badge("status", &artifact.status),
        paragraph("caption", &artifact.caption),
    );
    for (index, view) in artifact.tables.iter().enumerate() {
        html.push_str(&table::table(view, &format!("{id}:table{}", index + 1), title, &page.cells)?);
    }
    for view in &artifact.figures {
        html.push_str(&figure::figure(view)?);
    }
    html.push_str(&own_claims(artifact, &page.claims));
    if !artifact.files.is_empty() {
        let links: Vec<String> = artifact.files.iter().map(|(name, path)| file_link(name, path)).collect();
        html.push_str(&format!("<p class=\"files\">Files: {}</p>\n", links.join(", ")));
    }
    if !artifact.provenance.is_empty() {
        let list = definitions(&artifact.provenance);
        html.push_str(&format!("<details><summary>Provenance</summary>{list}</details>\n"));
    }
    html.push_str("</section>\n");
    Ok(html)
}

/// What the paper says of this artifact, and how often it is so there and here.
fn own_claims(artifact: &Artifact, claims: &[ClaimRow]) -> String {
    let is_own = |claim: &&ClaimRow| {
        claim.artifact == artifact.name && (claim.profile.is_empty() || claim.profile == artifact.profile)
    };
    let items: String = claims
        .iter()
        .filter(is_own)
        .map(|claim| {
            format!(
                "<li>{} <span class=\"count\">paper {}, ours {}</span>{}</li>\n",
                escaped(&claim.claim),
                escaped(&claim.paper),
                escaped(&claim.ours),
                if claim.verdict.is_empty() { String::new() } else { format!(": {}", escaped(&claim.verdict)) },
            )
        })
        .collect();
    if items.is_empty() { items } else { format!("<h3>Claims</h3>\n<ul class=\"claims\">\n{items}</ul>\n") }
}

/// A link to a file, by its path from the page. An absolute path, or one with a scheme, stays text.
fn file_link(name: &str, path: &str) -> String {
    let leaves = path.starts_with('/') || path.contains([':', '\\']);
    if path.is_empty() || leaves {
        return format!("{} ({})", escaped(name), escaped(path));
    }
    format!("<a href=\"{}\">{}</a>", encoded(path, "/"), escaped(name))
}

/// All claims as one table.
///
/// # Errors
/// As [`table::table`].
pub(super) fn claims(claims: &[ClaimRow]) -> Result<String> {
    let rows = claims.iter().map(|claim| {
        let artifact = if claim.profile.is_empty() {
            claim.artifact.clone()
        } else {
            format!("{}/{}", claim.profile, claim.artifact)
        };
        [&claim.claim, &claim.paper, &claim.ours, &claim.verdict, &artifact, &claim.place].map(Clone::clone)
    });
    let names = ["Claim", "Paper", "Ours", "Verdict", "Artifact", "Where the paper says it"];
    texts("claims", "Claims", "What the paper states, counted in its tables and in ours.", &names, rows)
}

/// All findings as one table.
///
/// # Errors
/// As [`table::table`].
pub(super) fn findings(findings: &[super::FindingRow]) -> Result<String> {
    let rows =
        findings.iter().map(|row| [&row.rule, &row.place, &row.expected, &row.found, &row.note].map(Clone::clone));
    let names = ["Rule", "Where", "Expected", "Found", "Note"];
    texts("findings", "Audit", "What the paper's own tables do not agree on.", &names, rows)
}

/// A section with one table of texts; nothing where there are no rows.
fn texts<const N: usize>(
    id: &str,
    title: &str,
    caption: &str,
    names: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Result<String> {
    let view = TableView {
        caption: caption.to_owned(),
        columns: names.iter().map(|&name| Column { name: name.to_owned(), ..Column::default() }).collect(),
        rows: rows
            .map(|texts| {
                let cells = texts.into_iter().map(|text| Cell { text, ..Cell::default() }).collect();
                Row { cells, ..Row::default() }
            })
            .collect(),
        ..TableView::default()
    };
    if view.rows.is_empty() {
        return Ok(String::new());
    }
    let table = table::table(&view, &format!("{id}:table"), title, &BTreeMap::new())?;
    Ok(format!("<section id=\"{id}\">\n<h2>{title}</h2>\n{table}</section>\n"))
}

/// How each cell was made. The script shows one at a time over the page; without it they stand at its end.
pub(super) fn notes(cells: &BTreeMap<String, CellNote>) -> String {
    if cells.is_empty() {
        return String::new();
    }
    let notes: String = cells.iter().map(|(key, note)| self::note(key, note)).collect();
    format!("<section id=\"notes\">\n<h2>How each number was made</h2>\n{notes}</section>\n")
}

fn note(key: &str, note: &CellNote) -> String {
    let title = if note.title.is_empty() { key } else { &note.title };
    let commands: String =
        note.commands.iter().map(|command| format!("<pre><code>{}</code></pre>\n", escaped(command))).collect();
    let artifacts: String = note
        .artifacts
        .iter()
        .map(|(kind, hash, made)| {
            let [kind, hash, made] = [kind, hash, made].map(|text| escaped(text));
            format!("<tr><th scope=\"row\">{kind}</th><td><code>{hash}</code></td><td>{made}</td></tr>\n")
        })
        .collect();
    let artifacts = if artifacts.is_empty() {
        artifacts
    } else {
        let head = "<tr><th scope=\"col\">Artifact</th><th scope=\"col\">Key</th><th scope=\"col\">Made</th></tr>";
        format!(
            "<div class=\"wide\"><table class=\"parts\"><thead>{head}</thead><tbody>{artifacts}</tbody></table></div>\n"
        )
    };
    format!(
        "<article id=\"{}\"><h3>{}</h3>\n<p class=\"key\"><code>{}</code></p>\n{}{commands}{artifacts}</article>\n",
        cell_id(key),
        escaped(title),
        escaped(key),
        definitions(&note.lines),
    )
}
