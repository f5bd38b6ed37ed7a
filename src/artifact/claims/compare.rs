//! The paper's count and ours, side by side: for the screen, and as a file beside a recorded run's tables.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::judge::ClaimVerdict;
use super::number::Judgement;
use super::run::{ArtifactNumbers, Artifacts};
use super::{Claim, claims};
use crate::artifact::page::ClaimRow;
use crate::artifact::paper::PaperTable;
use crate::artifact::{PagePart, here, paper};
use crate::error::Result;
use crate::results::StoredResults;

/// A claim, judged on the paper's own numbers and on ours.
#[derive(Debug, Clone)]
pub struct JudgedClaim<'a> {
    pub claim: &'a Claim,
    pub paper: ClaimVerdict,
    pub ours: ClaimVerdict,
    /// The profile that our numbers are from: `tiny` or `paper`.
    pub profile: String,
}

/// Judges claims on both sides.
pub fn judged<'a>(
    claims: impl IntoIterator<Item = &'a Claim>,
    paper: &Artifacts,
    ours: &Artifacts,
    profile: &str,
) -> Vec<JudgedClaim<'a>> {
    // A figure of the paper has no table of numbers.
    let absent_of_paper = |artifact: &str| {
        let why = if PaperTable::find(artifact).is_ok() { "has no data" } else { "is not printed as numbers" };
        format!("{artifact} {why}")
    };
    let absent_of_ours = |artifact: &str| {
        format!("{artifact} is not made: `ghostlab reproduce {artifact} --profile {profile}` makes it")
    };
    let judge = |claim: &'a Claim| {
        let (paper, ours) = (claim.judge(paper, absent_of_paper), claim.judge(ours, absent_of_ours));
        JudgedClaim { claim, paper, ours, profile: profile.to_owned() }
    };
    claims.into_iter().map(judge).collect()
}

/// One line for each claim, `table2-average: paper 6 of 6, all needed: HOLDS; ours (tiny) 5 of 6, all needed: FAILS`; below
/// it how the sentence is read, and the settings on either side in which it is not true, with their numbers.
pub fn render(judged: &[JudgedClaim<'_>]) -> String {
    let mut text = String::new();
    for JudgedClaim { claim, paper, ours, profile } in judged {
        let [(paper_count, paper_word), (our_count, our_word)] =
            [paper, ours].map(|verdict| (verdict.count(), verdict.outcome.word().to_uppercase()));
        let _ =
            writeln!(text, "{}: paper {paper_count}: {paper_word}; ours ({profile}) {our_count}: {our_word}", claim.id);
        if let Some(reading) = claim.reading {
            let _ = writeln!(text, "  read as: {reading}");
        }
        for (side, verdict) in [("paper", paper), ("ours", ours)] {
            for setting in verdict.settings.iter().filter(|setting| setting.outcome != Judgement::Holds) {
                let name: String = setting.setting.iter().map(|(_, value)| format!(" {value}")).collect();
                let word = setting.outcome.word();
                let _ = writeln!(text, "  {side}{name}: {word}: {}", setting.shown);
            }
        }
    }
    text
}

/// The claims about an artifact, beside its recorded tables.
pub const CLAIMS: &str = "claims.md";

/// Those that are about an artifact.
pub fn about<'j>(artifact: &str, judged: &'j [JudgedClaim<'static>]) -> Vec<&'j JudgedClaim<'static>> {
    judged.iter().filter(|of| of.claim.artifacts.contains(&artifact)).collect()
}

/// The text of [`CLAIMS`].
pub fn written(judged: &[&JudgedClaim<'_>]) -> String {
    if judged.is_empty() {
        return "The paper has no claim about this that is checked.\n".to_owned();
    }
    let lines: String = judged.iter().map(|of| format!("{}\n", line(of))).collect();
    format!("| claim | where | paper | here | verdict here |\n| --- | --- | --- | --- | --- |\n{lines}")
}

/// The line of a claim in it.
pub fn line(judged: &JudgedClaim<'_>) -> String {
    let cell = |text: String| text.replace('|', "\\|").replace('\n', " ");
    let ClaimRow { claim, place, paper, paper_verdict, ours, verdict, .. } = row(judged);
    let paper = format!("{paper}: {}", paper_verdict.word());
    format!("| {} |", [claim, place, paper, ours, verdict.word().to_owned()].map(cell).join(" | "))
}

/// Every claim, on the paper's numbers and on those of a profile that lie in some folders; none where there are none.
///
/// # Errors
/// Numbers that cannot be read.
pub fn judged_in(folders: &[PathBuf], profile: &str) -> Result<Vec<JudgedClaim<'static>>> {
    let mut ours = Artifacts::new();
    let names = [PathBuf::from(profile), here(Path::new(profile))];
    for folder in folders {
        let is_it = folder.file_name().is_some_and(|own| names.iter().any(|name| name.as_os_str() == own));
        // Races have no numbers.
        if is_it && [PagePart::FILE, StoredResults::FILE].iter().all(|file| folder.join(file).is_file()) {
            let stored = StoredResults::read(folder)?;
            ours.insert(stored.name.clone(), ArtifactNumbers::of(stored));
        }
    }
    if ours.is_empty() {
        return Ok(Vec::new());
    }
    let mut theirs = Artifacts::new();
    for table in paper::tables() {
        theirs.insert(table.name.to_owned(), ArtifactNumbers::printed(paper::records(table.name)?));
    }
    Ok(judged(claims(), &theirs, &ours, profile))
}

/// As the page has it.
pub fn row(judged: &JudgedClaim<'_>) -> ClaimRow {
    let claim = judged.claim;
    ClaimRow {
        claim: match claim.reading {
            Some(reading) => format!("{} (Read as: {reading}.)", claim.says),
            None => claim.says.to_owned(),
        },
        place: claim.place.to_owned(),
        paper: judged.paper.count(),
        paper_verdict: judged.paper.outcome,
        ours: judged.ours.count(),
        verdict: judged.ours.outcome,
        artifact: match claim.artifacts {
            [only] => (*only).to_owned(),
            _ => String::new(),
        },
        profile: judged.profile.clone(),
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
