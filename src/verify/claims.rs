//! Judges the recorded verdicts again from the numbers of the folders around the run.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::finding::{Check, CheckKind};
use super::record::Recorded;
use crate::artifact::claims::{CLAIMS, JudgedClaim, SEEDS, about, judged_in, line, written};
use crate::error::Result;
use crate::files::regular;
use crate::results::StoredResults;

/// Judges the claims on the folders of one place and profile once, however many of these are checked.
#[derive(Default)]
pub(super) struct Judge(Mutex<HashMap<ProfilePlace, Arc<Verdicts>>>);

/// Sibling folders, and the profile.
type ProfilePlace = (Vec<PathBuf>, String);

/// All claims, and the artifacts whose results are there.
struct Verdicts {
    there: BTreeSet<String>,
    judged: Vec<JudgedClaim<'static>>,
}

impl Judge {
    fn verdicts(&self, folders: Vec<PathBuf>, profile: &str) -> Result<Arc<Verdicts>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (folders, profile.to_owned());
        if let Some(verdicts) = known.get(&place) {
            return Ok(Arc::clone(verdicts));
        }
        let there = place.0.iter().filter_map(|of| Some(StoredResults::read(of).ok()?.name)).collect();
        let verdicts = Arc::new(Verdicts { there, judged: judged_in(&place.0, profile)? });
        known.insert(place, Arc::clone(&verdicts));
        Ok(verdicts)
    }
}

/// # Errors
/// A file that cannot be read.
pub(super) fn check(folder: &Path, recorded: &Recorded, judge: &Judge) -> Result<Check> {
    let mut check = Check::new(CheckKind::Claims);
    let path = folder.join(CLAIMS);
    if !path.is_file() {
        return Ok(check);
    }
    let text = String::from_utf8_lossy(&regular::read(&path)?).into_owned();
    let numbers = &recorded.numbers;
    let verdicts = judge.verdicts(around(folder), &numbers.profile)?;
    let judged = about(&numbers.name, &verdicts.judged);
    if judged.is_empty() && text != written(&[]) {
        check.differ(CLAIMS, [text.lines().next().unwrap_or_default(), "no claim about this that is checked"], None);
    }
    for of in &judged {
        let claim = of.claim;
        let seeds = claim.best_by.map(|_| SEEDS);
        let mut needed = claim.artifacts.iter().copied().chain(seeds);
        if let Some(lacking) = needed.find(|name| !verdicts.there.contains(*name)) {
            check.lack(format!("{CLAIMS}, {}", claim.id), format!("the results of {lacking}, next to this folder"));
            continue;
        }
        let made = line(of);
        // By its sentence, the first column.
        let sentence = |of: &str| of.trim_start_matches("| ").split(" | ").next().unwrap_or_default().to_owned();
        let said = text.lines().find(|line| sentence(line) == sentence(&made));
        match said {
            Some(said) if said == made => check.agree(0.0),
            Some(said) => {
                let rest = |of: &str| of.split(" | ").skip(2).collect::<Vec<_>>().join(" | ");
                check.differ(format!("{CLAIMS}, {}", claim.id), [rest(said), rest(&made)], None);
            }
            None => check.differ(format!("{CLAIMS}, {}", claim.id), ["nothing", made.as_str()], None),
        }
    }
    let all = check.compared();
    Ok(check.of(all))
}

/// Returns the folders of all artifacts in the same place, including this one.
fn around(folder: &Path) -> Vec<PathBuf> {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let (Some(own), Some(results)) = (absolute.file_name(), absolute.parent().and_then(Path::parent)) else {
        return vec![absolute];
    };
    let inner = std::fs::read_dir(results).into_iter().flatten().flatten().map(|item| item.path().join(own));
    let mut all: Vec<PathBuf> = inner.filter(|folder| folder.join(StoredResults::FILE).is_file()).collect();
    all.sort();
    all
}
