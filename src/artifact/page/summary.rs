//! Summary at the top of the results page: its runs, and the verdicts on the sentences of the paper.

use std::collections::BTreeSet;

use serde::Serialize;

use super::data::{ClaimRow, Judgement, Page, PageArtifact};
use crate::artifact::audit::{Finding, Severity, filter_by_severity};
use crate::quantity::pluralize;

/// Collects the names and values shown in the page header from the provenance of the artifacts.
pub(super) fn header_fields(page: &Page) -> Vec<(&'static str, String)> {
    let profiles: BTreeSet<&str> = page.artifacts.iter().map(|artifact| artifact.profile.as_str()).collect();
    let profiles: Vec<&str> = profiles.into_iter().filter(|profile| !profile.is_empty()).collect();
    let shown = format!(
        "{} and {}{}",
        pluralize(page.artifacts.iter().filter(|artifact| !artifact.tables.is_empty()).count(), "table"),
        pluralize(page.artifacts.iter().filter(|artifact| artifact.tables.is_empty()).count(), "figure"),
        if profiles.is_empty() { String::new() } else { format!(", profile {}", profiles.join(", ")) },
    );
    let first = provenance_values(page, WRITING_STARTED).into_iter().min();
    let last = provenance_values(page, WRITING_FINISHED).into_iter().max();
    let written = match first.zip(last) {
        Some((first, last)) => {
            format_time_and_commits(&format!("{first} to {last}"), provenance_values(page, "commit").into_iter())
        }
        None => String::new(),
    };
    let machines: BTreeSet<&str> =
        provenance_values(page, "machine").into_iter().chain(origin_values(page, "machine")).collect();
    let open =
        page.artifacts.iter().filter(|artifact| !["", PageArtifact::COMPLETE].contains(&artifact.status.as_str()));
    let open: Vec<String> = open.map(|open| format!("{}: {}", open.name, open.status)).collect();
    let fields = [
        ("Shown", shown),
        ("Computed", format_computed(page)),
        ("Written", written),
        ("On", machines.into_iter().collect::<Vec<_>>().join("; ")),
        ("Not complete", open.join("; ")),
    ];
    fields.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn provenance_values<'a>(page: &'a Page, name: &str) -> BTreeSet<&'a str> {
    let lines = page.artifacts.iter().flat_map(|artifact| &artifact.provenance);
    lines.filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
}

/// Returns the main findings, followed by a sentence that counts the sentences of the paper by verdict.
pub(super) fn summary_sentences(page: &Page) -> Vec<String> {
    let sentences = ClaimRow::by_sentence(&page.claims, |claim| claim.verdict);
    let words: Vec<String> = count_verdicts(&sentences)
        .into_iter()
        .map(|VerdictCount { count, verb, .. }| format!("{count} {verb}"))
        .collect();
    let claims = (!words.is_empty()).then(|| {
        format!("Of {} sentences of the paper, checked on our numbers, {}.", sentences.len(), words.join(", "))
    });
    page.answer.iter().cloned().chain(claims).collect()
}

/// Names of the provenance lines that state when an artifact's files were written.
pub(crate) const WRITING_STARTED: &str = "writing started";
pub(crate) const WRITING_FINISHED: &str = "writing finished";

fn format_computed(page: &Page) -> String {
    let all = page.artifacts.iter().flat_map(|artifact| &artifact.computed);
    let first = all.clone().map(|times| times.first.as_str()).filter(|time| !time.is_empty()).min();
    let last = all.map(|times| times.last.as_str()).filter(|time| !time.is_empty()).max();
    let when = first.zip(last).map_or_else(String::new, |(first, last)| format!("{first} to {last}"));
    format_time_and_commits(&when, origin_values(page, "commit").into_iter())
}

fn origin_values<'p>(page: &'p Page, field: &str) -> BTreeSet<&'p str> {
    let computed = page.artifacts.iter().flat_map(|artifact| &artifact.computed);
    let computed =
        computed.map(|computed| if field == "commit" { computed.commit.as_str() } else { computed.machine.as_str() });
    computed.filter(|value| !value.is_empty()).collect()
}

/// Formats a time and its commits, for example `WHEN, by commit 0123456789ab`.
fn format_time_and_commits<'c>(when: &str, commits: impl Iterator<Item = &'c str>) -> String {
    let commits: BTreeSet<String> = commits.map(short_commit).collect();
    let noun = if commits.len() == 1 { "commit" } else { "commits" };
    let by = (!commits.is_empty()).then(|| format!("by {noun} {}", commits.into_iter().collect::<Vec<_>>().join(", ")));
    [Some(when.to_owned()).filter(|when| !when.is_empty()), by].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn short_commit(commit: &str) -> String {
    let (hash, rest) = commit.split_at(commit.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(commit.len()));
    format!("{}{rest}", hash.get(..12).unwrap_or(hash))
}

/// Formats the number of findings by severity, for example `52 contradictions, 15 suspicions and 20 remarks`.
pub(super) fn format_finding_counts(findings: &[Finding]) -> String {
    let counts = Severity::ALL.map(|severity| (filter_by_severity(findings, severity).count(), severity.name()));
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let mut words: Vec<String> = counts.map(|(count, name)| pluralize(count, name)).collect();
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} and {last}", words.join(", ")) }
}

/// Strip that shows one square per claim and counts the sentences by verdict.
#[derive(Debug, Serialize)]
pub(super) struct Strip<'a> {
    /// Profile of the claims. Empty if they apply to all profiles.
    profile: &'a str,
    rows: [StripRow; 2],
}

#[derive(Debug, Serialize)]
struct StripRow {
    name: &'static str,
    /// Numbers of sentences by verdict, without the verdicts that do not occur.
    tally: Vec<VerdictCount>,
    squares: Vec<Square>,
}

#[derive(Debug, Serialize)]
struct Square {
    class: String,
    sign: &'static str,
    id: String,
    says: String,
}

/// Number of sentences with a verdict.
#[derive(Debug, Serialize)]
pub(super) struct VerdictCount {
    /// CSS class of the verdict.
    class: String,
    sign: &'static str,
    count: usize,
    /// Verb that follows the count.
    verb: &'static str,
}

/// Counts the occurrences of each verdict. Omits verdicts that do not occur.
pub(super) fn count_verdicts(all: &[Judgement]) -> Vec<VerdictCount> {
    let counted = Judgement::ALL.into_iter().filter_map(|verdict| {
        let count = all.iter().filter(|other| **other == verdict).count();
        (count > 0).then(|| VerdictCount {
            class: verdict.class(),
            sign: verdict.sign(),
            count,
            verb: verdict.verb(count),
        })
    });
    counted.collect()
}

pub(super) fn build_strips(claims: &[ClaimRow]) -> Vec<Strip<'_>> {
    let numbered: Vec<(usize, &ClaimRow)> = claims.iter().enumerate().collect();
    let profile_chunks = numbered.chunk_by(|(_, a), (_, b)| a.profile == b.profile);
    profile_chunks
        .map(|claims| Strip {
            profile: claims.first().map_or("", |(_, claim)| claim.profile.as_str()),
            rows: [
                build_strip_row("Ours", claims, |claim| claim.verdict),
                build_strip_row("The paper's own numbers", claims, |claim| claim.paper_verdict),
            ],
        })
        .collect()
}

fn build_strip_row(name: &'static str, claims: &[(usize, &ClaimRow)], verdict: fn(&ClaimRow) -> Judgement) -> StripRow {
    let tally = count_verdicts(&ClaimRow::by_sentence(claims.iter().map(|(_, claim)| *claim), verdict));
    StripRow {
        name,
        tally,
        squares: claims
            .iter()
            .map(|(at, claim)| {
                let word = verdict(claim).label();
                let sign = verdict(claim).sign();
                let says = format!("{word}: {}", claim.claim.chars().take(90).collect::<String>());
                Square { class: verdict(claim).class(), sign, id: claim_anchor(*at), says }
            })
            .collect(),
    }
}

pub(super) fn claim_anchor(position: usize) -> String {
    format!("claim-{}", position + 1)
}
