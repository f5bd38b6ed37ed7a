//! Compares the verdicts on the paper's numbers with those on ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::artifact_numbers::{ArtifactNumbers, Artifacts};
use super::judge::{ClaimVerdict, SEEDS};
use super::number::Judgement;
use super::{Claim, claims};
use crate::artifact::page::ClaimRow;
use crate::artifact::paper::PaperTable;
use crate::artifact::{PagePart, local_run_folder, paper};
use crate::error::Result;
use crate::metric::ACCURACY;
use crate::quantity::pluralize;
use crate::recovery;
use crate::results::{BestCounts, BestQuestion, StoredResults};

/// A claim with its verdicts on the paper's numbers and on ours.
#[derive(Debug, Clone)]
pub struct JudgedClaim<'a> {
    pub claim: &'a Claim,
    pub paper: ClaimVerdict,
    pub ours: ClaimVerdict,
    /// Grid profile of our numbers: `tiny` or `paper`.
    pub profile: String,
}

pub fn judge_all<'a>(
    claims: impl IntoIterator<Item = &'a Claim>,
    paper: &Artifacts,
    ours: &Artifacts,
    profile: &str,
) -> Vec<JudgedClaim<'a>> {
    // The paper prints no numbers for its figures, so claims about figures have no verdict on the paper's side.
    claims
        .into_iter()
        .map(|claim| {
            let is_applicable = !claim.needs_paper_models || shares_backbone(claim, paper, ours);
            let ours = if is_applicable {
                claim.judge(ours, |artifact| {
                    format!("{artifact} has no results: run `ghostlab reproduce {artifact} --profile {profile}`")
                })
            } else {
                claim.not_applicable()
            };
            let paper = claim.judge(paper, |artifact: &str| {
                let why = if PaperTable::find(artifact).is_ok() { "has no data" } else { "is not printed as numbers" };
                format!("{artifact} {why}")
            });
            JudgedClaim { claim, paper, ours, profile: profile.to_owned() }
        })
        .collect()
}

/// Returns whether our numbers and the paper's share a backbone, or one side has no numbers.
fn shares_backbone(claim: &Claim, paper: &Artifacts, ours: &Artifacts) -> bool {
    let our_backbones = backbones(claim, ours);
    let theirs = backbones(claim, paper);
    our_backbones.is_empty() || theirs.is_empty() || !our_backbones.is_disjoint(&theirs)
}

fn backbones(claim: &Claim, side: &Artifacts) -> BTreeSet<String> {
    let artifacts = claim.artifacts.iter().filter_map(|name| side.get(*name));
    artifacts.flat_map(ArtifactNumbers::records).map(|record| record.condition.backbone.clone()).collect()
}

/// Formats verdict counts and one line per claim: `table2-average: paper 6 of 6, all needed: HOLDS; ours (tiny) 5 of 6,
/// all needed: FAILS`. With `details`, the lines below each claim give its interpretation and the settings in which it
/// does not hold.
pub fn render(judged: &[JudgedClaim<'_>], details: bool) -> String {
    let ours = format_verdict_counts(judged.iter().map(|entry| entry.ours.outcome));
    let theirs = format_verdict_counts(judged.iter().map(|entry| entry.paper.outcome));
    let mut text = format!("{}: {ours} (on the paper's numbers: {theirs})\n", pluralize(judged.len(), "claim"));
    for JudgedClaim { claim, paper, ours, profile } in judged {
        let [(paper_count, paper_word), (our_count, our_word)] =
            [paper, ours].map(|verdict| (verdict.count(), verdict.outcome.label().to_uppercase()));
        let _ =
            writeln!(text, "{}: paper {paper_count}: {paper_word}; ours ({profile}) {our_count}: {our_word}", claim.id);
        if !details {
            continue;
        }
        if let Some(reading) = claim.reading {
            let _ = writeln!(text, "  read as: {reading}");
        }
        for (side, verdict) in [("paper", paper), ("ours", ours)] {
            for setting in verdict.settings.iter().filter(|setting| setting.outcome != Judgement::Holds) {
                let name: String = setting.setting.iter().map(|(_, value)| format!(" {value}")).collect();
                let word = setting.outcome.label();
                let _ = writeln!(text, "  {side}{name}: {word}: {}", setting.shown);
            }
        }
    }
    text
}

/// Formats the number of claims with each verdict, such as `2 fail, 1 is unknown`.
fn format_verdict_counts(verdicts: impl Iterator<Item = Judgement>) -> String {
    let verdicts: Vec<Judgement> = verdicts.collect();
    let counts = Judgement::ALL.map(|verdict| (verdict, verdicts.iter().filter(|other| **other == verdict).count()));
    let texts: Vec<String> =
        counts.iter().filter(|(_, count)| *count > 0).map(|(verdict, count)| verdict.count_text(*count)).collect();
    texts.join(", ")
}

/// Name of the file that lists an artifact's claims.
pub const CLAIMS: &str = "claims.md";

/// Profile of the bundled models.
const TINY: &str = "tiny";

/// Returns a caveat about claims that are judged on models other than the paper's.
fn other_models_note(profile: &str) -> String {
    let models = if profile == TINY { "the tiny models" } else { "a small model" };
    format!(
        "\nThe paper's sentences are about models of 7 to 14 billion parameters. A claim that fails on {models} says that \
         the effect does not show at their size; it does not refute the paper. Not applicable: the sentence names the \
         paper's models, or numbers that were measured on them.\n"
    )
}

pub fn claims_about<'j>(artifact: &str, judged: &'j [JudgedClaim<'static>]) -> Vec<&'j JudgedClaim<'static>> {
    judged.iter().filter(|entry| entry.claim.artifacts.contains(&artifact)).collect()
}

/// Formats the contents of the [`CLAIMS`] file.
pub fn format_claims(judged: &[&JudgedClaim<'_>]) -> String {
    if judged.is_empty() {
        return "The paper has no claim about this that is checked.\n".to_owned();
    }
    let lines: String = judged.iter().map(|entry| format!("{}\n", format_row(entry))).collect();
    let other = judged.iter().find(|entry| entry.claim.needs_paper_models || entry.profile == TINY);
    let note = other.map_or_else(String::new, |entry| other_models_note(&entry.profile));
    format!("| claim | where | paper | here | verdict here |\n| --- | --- | --- | --- | --- |\n{lines}{note}")
}

/// Formats a claim as a Markdown table row.
pub fn format_row(judged: &JudgedClaim<'_>) -> String {
    let ClaimRow { claim, section, paper, paper_verdict, ours, verdict, .. } = claim_row(judged);
    let paper = format!("{paper}: {}", paper_verdict.label());
    format!(
        "| {} |",
        [claim, section, paper, ours, verdict.label().to_owned()]
            .map(|text| text.replace('|', "\\|").replace('\n', " "))
            .join(" | ")
    )
}

/// Judges every claim on the paper's numbers and on those of `profile` in the given folders. Returns none if the
/// folders have no such results.
///
/// # Errors
/// Fails if the numbers cannot be read.
pub fn judge_folders(folders: &[PathBuf], profile: &str) -> Result<Vec<JudgedClaim<'static>>> {
    let ours = read_profile(folders, profile)?;
    if ours.is_empty() {
        return Ok(Vec::new());
    }
    let ours: Artifacts = ours.into_iter().map(|(name, stored)| (name, ArtifactNumbers::new(stored))).collect();
    let mut theirs = Artifacts::new();
    for table in paper::tables() {
        theirs.insert(table.name.to_owned(), ArtifactNumbers::printed(paper::records(table.name)?));
    }
    Ok(judge_all(claims(), &theirs, &ours, profile))
}

/// Reads the stored results of a profile, by artifact.
fn read_profile(folders: &[PathBuf], profile: &str) -> Result<BTreeMap<String, StoredResults>> {
    let folders = folders.iter().filter(|folder| has_results_of_profile(folder, profile));
    folders.map(|folder| StoredResults::read(folder).map(|stored| (stored.name.clone(), stored))).collect()
}

/// Returns whether a folder contains the results of a profile. Folders with search results lack the required files.
fn has_results_of_profile(folder: &Path, profile: &str) -> bool {
    let names = [PathBuf::from(profile), local_run_folder(Path::new(profile))];
    let has_name =
        folder.file_name().is_some_and(|folder_name| names.iter().any(|name| name.as_os_str() == folder_name));
    has_name && [PagePart::FILE, StoredResults::FILE].iter().all(|file| folder.join(file).is_file())
}

/// Formats the main result of table 2, such as `Ghost Layer (Ours): highest ACC AVG in 5 of 6 on seed 0, …`. Returns
/// `None` if the profile has no table 2.
///
/// # Errors
/// Fails if the numbers cannot be read.
pub fn find_headline(folders: &[PathBuf], profile: &str) -> Result<Option<String>> {
    let stored = read_profile(folders, profile)?;
    Ok(stored.get("table2").and_then(|table| format_headline(table, stored.get(SEEDS))).map(|(text, _)| text))
}

/// Formats the headline from table 2 and, if available, from its repetitions with other seeds. Also returns the counts.
pub fn format_headline(table: &StoredResults, seeds: Option<&StoredResults>) -> Option<(String, BestCounts)> {
    let ours = recovery::paper_appearance()?;
    let question = BestQuestion {
        metric: ACCURACY.id,
        method: ours.name,
        keeps: &|condition| condition.criterion == "llm-streamline",
        group_by: &|condition| vec![condition.backbone.clone(), condition.depth.to_string()],
    };
    let counts = BestCounts::new(table, seeds, question)?;
    let text = format!("{}: highest {} in {counts}.", ours.label, ACCURACY.label);
    Some((text, counts))
}

pub fn claim_row(judged: &JudgedClaim<'_>) -> ClaimRow {
    let claim = judged.claim;
    ClaimRow {
        sentence: claim.says.to_owned(),
        claim: match claim.reading {
            Some(reading) => format!("{} (Read as: {reading}.)", claim.says),
            None => claim.says.to_owned(),
        },
        section: claim.section.to_owned(),
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
#[path = "verdict_comparison_tests.rs"]
mod tests;
