//! What a reader sees first: what was run, on what and when, and what became of each claim.

use std::collections::BTreeSet;

use serde::Serialize;

use super::data::{ClaimRow, Judgement, Page, PageArtifact};

/// Names and values: of what the page shows, from the artifacts' records.
pub(super) fn facts(page: &Page) -> Vec<(&'static str, String)> {
    let of = |name: &str| -> BTreeSet<&str> {
        let lines = page.artifacts.iter().flat_map(|artifact| &artifact.provenance);
        lines.filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    };
    let all = |name: &str| of(name).into_iter().collect::<Vec<_>>().join("; ");
    let count = |is: fn(&PageArtifact) -> bool, one: &str, many: &str| {
        let count = page.artifacts.iter().filter(|artifact| is(artifact)).count();
        format!("{count} {}", if count == 1 { one } else { many })
    };
    let profiles: BTreeSet<&str> = page.artifacts.iter().map(|artifact| artifact.profile.as_str()).collect();
    let profiles: Vec<&str> = profiles.into_iter().filter(|profile| !profile.is_empty()).collect();
    let shown = format!(
        "{} and {}{}",
        count(|artifact| !artifact.tables.is_empty(), "table", "tables"),
        count(|artifact| artifact.tables.is_empty(), "figure", "figures"),
        if profiles.is_empty() { String::new() } else { format!(", profile {}", profiles.join(", ")) },
    );
    let when = match (of("started").first(), of("finished").last()) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        _ => String::new(),
    };
    let open = page.artifacts.iter().filter(|of| !["", PageArtifact::COMPLETE].contains(&of.status.as_str()));
    let open: Vec<String> = open.map(|of| format!("{}: {}", of.name, of.status)).collect();
    let facts = [
        ("Shown", shown),
        ("Made", when),
        ("On", all("machine")),
        ("With", all("program")),
        ("Commit", all("commit")),
        ("Not complete", open.join("; ")),
    ];
    facts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// A square for each claim, with how many there are of each sort.
#[derive(Debug, Serialize)]
pub(super) struct Strip<'a> {
    /// Empty where there is one profile.
    profile: &'a str,
    rows: [StripRow; 2],
}

#[derive(Debug, Serialize)]
struct StripRow {
    name: &'static str,
    /// Class, sign, count, and the word for so many.
    tally: [(&'static str, &'static str, usize, &'static str); 3],
    squares: Vec<Square>,
}

#[derive(Debug, Serialize)]
struct Square {
    word: &'static str,
    sign: &'static str,
    /// The claim's row.
    id: String,
    says: String,
}

/// Ours and the paper's for each profile; none where there are no claims.
pub(super) fn strips(claims: &[ClaimRow]) -> Vec<Strip<'_>> {
    let numbered: Vec<(usize, &ClaimRow)> = claims.iter().enumerate().collect();
    let of_profiles = numbered.chunk_by(|(_, a), (_, b)| a.profile == b.profile);
    let row = |name, claims: &[(usize, &ClaimRow)], verdict: fn(&ClaimRow) -> Judgement| {
        let tally = Judgement::ALL.map(|word| {
            let count = claims.iter().filter(|(_, of)| verdict(of) == word).count();
            (word.word(), word.sign(), count, word.of(count))
        });
        let square = |(at, of): &(usize, &ClaimRow)| {
            let (word, sign) = (verdict(of).word(), verdict(of).sign());
            let says = format!("{word}: {}", of.claim.chars().take(90).collect::<String>());
            Square { word, sign, id: anchor(*at), says }
        };
        StripRow { name, tally, squares: claims.iter().map(square).collect() }
    };
    of_profiles
        .map(|claims| Strip {
            profile: claims.first().map_or("", |(_, claim)| claim.profile.as_str()),
            rows: [row("Ours", claims, |of| of.verdict), row("The paper's own numbers", claims, |of| of.paper_verdict)],
        })
        .collect()
}

/// What a link to the claim at a place of the list ends with.
pub(super) fn anchor(place: usize) -> String {
    format!("claim-{}", place + 1)
}
