//! The paper's count and ours, side by side.

use std::fmt::Write as _;

use super::claim::Claim;
use super::judge::ClaimVerdict;
use super::outcome::Judgement;
use super::run::Artifacts;
use crate::artifact::paper::PaperTable;

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
    claims
        .into_iter()
        .map(|claim| JudgedClaim {
            claim,
            paper: claim.judge(paper, absent_of_paper),
            ours: claim.judge(ours, absent_of_ours),
            profile: profile.to_owned(),
        })
        .collect()
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

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
