//! Results page with tables, figures, claims, and the provenance of each number.
//!
//! The page is a single file that loads no other files. Its `Content-Security-Policy` allows only embedded images and
//! its own style and script, which are identified by their hashes. Data appears only as escaped text and attributes,
//! never in the script.
//!
//! Without JavaScript, the page is static and all notes are at its end. With JavaScript, clicking a number opens its
//! note. The URL then contains the open note, the sort order and the filter, so views can be shared.
//!
//! Browsers that support `rel="expect"` paint the page only when it is fully parsed, because the last row of a table
//! may still widen its columns.

mod data;
mod figure;
mod html;
mod html_table;
#[cfg(test)]
mod safety_tests;
#[cfg(test)]
mod sample_pages;
mod section;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;
use sha2::{Digest, Sha256};

pub use data::{CellNote, ClaimRow, ComputedBy, FigureView, Judgement, ObjectNote, Page, PageArtifact};

pub(crate) use summary::{WRITING_FINISHED, WRITING_STARTED};

use crate::artifact::PaperPlace;
use crate::error::{Error, Result};

const TEMPLATES: [(&str, &str); 7] = [
    ("page.html", include_str!("page.html")),
    ("frame.html", include_str!("frame.html")),
    ("audit.html", include_str!("audit.html")),
    ("summary.html", include_str!("summary.html")),
    ("artifact.html", include_str!("artifact.html")),
    ("table.html", include_str!("table.html")),
    ("note.html", include_str!("note.html")),
];
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

pub const PAGE: &str = "index.html";
pub const AUDIT: &str = "audit.html";
/// Name of the figure that precedes the main table.
const OPENING: &str = "figure1";

/// Renders the page as HTML, without the audit (see [`render_audit`]).
///
/// # Errors
/// Fails if two artifacts have the same profile and name, a row does not fit its table, or a figure is not an SVG.
pub fn render(page: &Page) -> Result<String> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = page.artifacts.iter().find(|artifact| !seen.insert((&artifact.profile, &artifact.name))) {
        return Err(Error::job("two artifacts on the page have the same name")
            .at(format!("profile `{}`", twice.profile))
            .found(format!("`{}`", twice.name)));
    }
    let shown = sort_artifacts(page);
    let leading = shown.iter().take_while(|artifact| is_leading(artifact, page)).count();
    let sections = shown.into_iter().map(|artifact| section::build_section(artifact, page, is_leading(artifact, page)));
    let artifacts = sections.collect::<Result<Vec<_>>>()?;
    let (notes, shared) = section::collect_notes(page);
    let values = PageValues {
        page,
        head_values: Head::new(page),
        profiles: section::group_by_profile(&artifacts, page),
        has_papers: artifacts.iter().any(|artifact| !artifact.tally.is_empty()),
        leading: &artifacts[..leading],
        artifacts: &artifacts[leading..],
        answer: summary::summary_sentences(page),
        facts: summary::header_fields(page),
        strips: summary::build_strips(&page.claims),
        claims: section::build_claims(&page.claims)?,
        audit: (!page.findings.is_empty()).then(|| summary::format_finding_counts(&page.findings)),
        lists: section::build_left_out(&page.left_out)?.into_iter().collect(),
        notes,
        shared,
    };
    fill_template("page.html", &values)
}

/// Renders the audit page as HTML.
///
/// # Errors
/// Fails if a template cannot be rendered.
pub fn render_audit(page: &Page) -> Result<String> {
    let values = AuditValues {
        page,
        head_values: Head::new(page),
        found: summary::format_finding_counts(&page.findings),
        findings: section::build_findings(&page.findings)?,
    };
    fill_template("audit.html", &values)
}

/// Returns the artifacts in the order of the page.
///
/// The profile with the main table comes first. Within a profile, the opening figure and the main table come before the
/// other artifacts, which are in the order of the paper. Lists of methods or checkpoints have no profile and are shown
/// with the first one.
fn sort_artifacts(page: &Page) -> Vec<&PageArtifact> {
    let mut shown: Vec<&PageArtifact> = page.artifacts.iter().collect();
    shown.sort_by_key(|artifact| {
        let profile = section::shown_profile(artifact, page);
        let index = page.artifacts.iter().position(|other| section::shown_profile(other, page) == profile);
        let is_rest = !is_leading(artifact, page);
        let is_main_table = artifact.name == page.headline;
        (
            profile != section::first_profile(page),
            index,
            is_rest,
            !is_rest && is_main_table,
            PaperPlace::from_name(&artifact.name),
        )
    });
    shown
}

/// Returns whether an artifact is shown before the claims.
fn is_leading(artifact: &PageArtifact, page: &Page) -> bool {
    let is_first = section::shown_profile(artifact, page) == section::first_profile(page);
    is_first && (artifact.name == OPENING || artifact.name == page.headline)
}

#[derive(Serialize)]
struct Head {
    style: &'static str,
    style_hash: String,
    script: &'static str,
    script_hash: String,
    title: String,
    made: String,
}

impl Head {
    fn new(page: &Page) -> Self {
        Self {
            style: STYLE,
            style_hash: policy_hash(STYLE),
            script: SCRIPT,
            script_hash: policy_hash(SCRIPT),
            title: page.title.clone(),
            made: [page.program.as_str(), &page.made].join(" · "),
        }
    }
}

#[derive(Serialize)]
struct PageValues<'a> {
    page: &'a Page,
    head_values: Head,
    profiles: Vec<section::PageProfile<'a>>,
    has_papers: bool,
    /// Sections that precede the claims.
    leading: &'a [section::Section<'a>],
    artifacts: &'a [section::Section<'a>],
    answer: Vec<String>,
    facts: Vec<(&'static str, String)>,
    strips: Vec<summary::Strip<'a>>,
    claims: Option<section::PageList>,
    audit: Option<String>,
    lists: Vec<section::PageList>,
    notes: Vec<section::Note<'a>>,
    shared: Vec<section::SharedNote<'a>>,
}

#[derive(Serialize)]
struct AuditValues<'a> {
    page: &'a Page,
    head_values: Head,
    found: String,
    findings: Option<section::PageList>,
}

fn fill_template(template: &str, values: &impl Serialize) -> Result<String> {
    render_template(template, values)
        .map_err(|error| Error::job("cannot render the page template").found(format!("{error:#}")))
}

fn render_template(template: &str, values: &impl Serialize) -> Result<String, minijinja::Error> {
    let mut templates = Environment::new();
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    // Make a misspelled name in a template an error. By default, it would yield empty text.
    templates.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    templates.set_formatter(html::write_escaped);
    for (name, source) in TEMPLATES {
        templates.add_template(name, source)?;
    }
    templates.get_template(template)?.render(Serde(values))
}

/// Returns the hash of a style or script as it is written in the `Content-Security-Policy`.
fn policy_hash(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text.as_bytes())))
}
