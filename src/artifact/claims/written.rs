//! The verdicts of a recorded run as a file beside its tables, and the folders that they are judged on.

use std::path::{Path, PathBuf};

use super::compare::{JudgedClaim, judged};
use super::run::{ArtifactNumbers, Artifacts};
use super::sentences::claims;
use crate::artifact::page::ClaimRow;
use crate::artifact::{PagePart, here, paper};
use crate::error::Result;
use crate::results::StoredResults;

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
