//! One page of all artifacts: tables that can be sorted and filtered, figures, claims, and of each number how it was made.
//!
//! The page is one file that loads nothing. Its policy (`Content-Security-Policy`) allows only its own style and script,
//! by their hashes, and images that are in the page. Data is only ever text and attributes, never a part of the script:
//! the templates escape every value that is not said to be safe, and those are made here.
//!
//! Without JavaScript it is a plain page, with all notes at its end. With it, a click on a number opens its note beside
//! the number as `#cell-…`, by the hash of its key, and what a table is sorted and filtered by stands in the address: both can
//! be kept and sent.
//!
//! Browsers that can (`rel="expect"`) paint it when it is read to its end: the last row of a table may widen its columns,
//! and nothing should move under a reader's eyes.
//!
//! `page.html` is the skeleton, the other templates are its parts; `page.css` and `page.js` stand in it as they are.

mod data;
mod figure;
mod html;
mod section;
mod summary;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;
use sha2::{Digest, Sha256};

pub use data::{CellNote, ClaimRow, FigureView, FindingRow, Judgement, ObjectNote, Page, PageArtifact};

use crate::error::{Error, Result};

const TEMPLATES: [(&str, &str); 5] = [
    ("page.html", include_str!("page.html")),
    ("summary.html", include_str!("summary.html")),
    ("artifact.html", include_str!("artifact.html")),
    ("table.html", include_str!("table.html")),
    ("note.html", include_str!("note.html")),
];
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

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
    let section = |artifact| section::artifact(artifact, page);
    let mut shown: Vec<&PageArtifact> = page.artifacts.iter().collect();
    // The profiles with the main table first, and of each its main table; the others keep their order.
    let place = |of: &PageArtifact| {
        let has_main = page.artifacts.iter().any(|other| other.profile == of.profile && other.name == page.headline);
        (!has_main, page.artifacts.iter().position(|other| other.profile == of.profile))
    };
    shown.sort_by_key(|artifact| (place(artifact), artifact.name != page.headline));
    let artifacts = shown.into_iter().map(section).collect::<Result<Vec<_>>>()?;
    let lists = [section::findings(&page.findings)?, section::left_out(&page.left_out)?];
    let (notes, shared) = section::notes(page);
    let values = PageValues {
        page,
        style: STYLE,
        style_hash: hash(STYLE),
        script: SCRIPT,
        script_hash: hash(SCRIPT),
        profiles: section::profiles(&artifacts),
        has_papers: artifacts.iter().any(|artifact| !artifact.tally.is_empty()),
        artifacts: &artifacts,
        facts: summary::facts(page),
        strips: summary::strips(&page.claims),
        claims: section::claims(&page.claims)?,
        lists: lists.into_iter().flatten().collect(),
        notes,
        shared,
    };
    filled(&values).map_err(|error| Error::job("the page's templates cannot be filled").found(format!("{error:#}")))
}

/// What the templates know.
#[derive(Serialize)]
struct PageValues<'a> {
    page: &'a Page,
    style: &'a str,
    style_hash: String,
    script: &'a str,
    script_hash: String,
    profiles: Vec<section::PageProfile<'a>>,
    has_papers: bool,
    artifacts: &'a [section::Section<'a>],
    facts: Vec<(&'static str, String)>,
    strips: Vec<summary::Strip<'a>>,
    claims: Option<section::PageList>,
    lists: Vec<section::PageList>,
    notes: Vec<section::Note<'a>>,
    shared: Vec<section::SharedNote<'a>>,
}

fn filled(values: &PageValues<'_>) -> std::result::Result<String, minijinja::Error> {
    let mut templates = Environment::new();
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    // A name that is misspelt in a template is an error and not an empty text.
    templates.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    templates.set_formatter(html::escaped);
    for (name, source) in TEMPLATES {
        templates.add_template(name, source)?;
    }
    templates.get_template("page.html")?.render(Serde(values))
}

/// What the policy knows a style or a script by.
fn hash(text: &str) -> String {
    format!("sha256-{}", html::base64(&Sha256::digest(text.as_bytes())))
}
