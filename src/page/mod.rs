//! One page of all artifacts: tables that can be sorted and filtered, figures, claims, and of each number how it was made.
//!
//! The page is one file that loads nothing. Its policy (`Content-Security-Policy`) allows only its own style and script,
//! by their hashes, and images that are in the page. Data is only ever text and attributes, never a part of the script.
//!
//! Without JavaScript it is a plain page, with all notes at its end. With it, a click on a number opens its note as
//! `#cell-…`, an address that can be kept.
//!
//! Browsers that can (`rel="expect"`) paint it when it is read to its end: the last row of a table may widen its columns,
//! and nothing should move under a reader's eyes.
//!
//! The skeleton, the style and the script are `page.html`, `page.css` and `page.js` beside this file.

mod data;
mod figure;
mod html;
mod section;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use data::{Artifact, Cell, CellNote, ClaimRow, Column, FigureView, FindingRow, Page, Row, TableView};

use crate::error::{Error, Result};
use html::{escaped, fill, paragraph};

const SKELETON: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The only style and script that the page's policy lets run: SHA-256 in base64. A test says what they are after a change.
const STYLE_HASH: &str = "sha256-e9SvRfWjuE3jwL8lXsHc9wo28Aq3NHRZ/cQI+iCEgjY=";
const SCRIPT_HASH: &str = "sha256-+863jmAObkAvZVzEtF1RZDKa8TGR5mJzPlhdRTW71Vk=";

/// The page as HTML.
///
/// # Errors
/// When two artifacts have the same profile and name, a row does not fit its table's columns, or a figure is no SVG.
pub fn render(page: &Page) -> Result<String> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = page.artifacts.iter().find(|artifact| !seen.insert((&artifact.profile, &artifact.name))) {
        return Err(Error::job("two artifacts of the page have the same name")
            .at(format!("profile `{}`", twice.profile))
            .found(twice.name.clone()));
    }
    let mut body = String::new();
    for artifact in &page.artifacts {
        let place = |error: Error| error.at(format!("artifact {}", artifact.name));
        body.push_str(&section::artifact(artifact, page).map_err(place)?);
    }
    body.push_str(&section::claims(&page.claims)?);
    body.push_str(&section::findings(&page.findings)?);
    body.push_str(&section::notes(&page.cells));
    let cells = || {
        let tables = page.artifacts.iter().flat_map(|artifact| &artifact.tables);
        tables.flat_map(|table| &table.rows).flat_map(|row| &row.cells)
    };
    // Numbers of the paper can be hidden where there are any.
    let switch = if cells().any(|cell| cell.paper.is_some()) {
        "<p class=\"switch\"><label><input type=\"checkbox\" id=\"papers\" checked autocomplete=\"off\"> \
         Show the paper's numbers</label></p>"
    } else {
        ""
    };
    fill(
        SKELETON,
        &[
            ("style hash", STYLE_HASH),
            ("script hash", SCRIPT_HASH),
            ("style", STYLE),
            ("script", SCRIPT),
            ("title", &escaped(&page.title)),
            ("made", &escaped(&page.made)),
            ("program", &escaped(&page.program)),
            ("note", &paragraph("intro", &page.profile_note)),
            ("contents", &section::contents(page)),
            ("switch", switch),
            ("body", &body),
        ],
    )
}
