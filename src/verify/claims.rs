//! Checks the recorded verdicts on the paper's claims against the numbers in a results folder and its sibling folders.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::finding::{CheckKind, CheckResult};
use super::recorded_results::ReferenceRun;
use crate::artifact::claims::{CLAIMS, JudgedClaim, SEEDS, claims_about, format_claims, format_row, judge_folders};
use crate::error::Result;
use crate::files::{self, regular};
use crate::results::StoredResults;

/// Cache of verdicts, keyed by sibling folders and profile.
#[derive(Default)]
pub(super) struct VerdictCache(Mutex<HashMap<VerdictKey, Arc<Verdicts>>>);

type VerdictKey = (Vec<PathBuf>, String);

/// Verdicts on all claims, and the names of the artifacts for which there are results.
struct Verdicts {
    present_artifacts: BTreeSet<String>,
    judged: Vec<JudgedClaim<'static>>,
}

impl VerdictCache {
    /// Returns the verdicts for a profile on the results in `folders`, which are computed only once.
    fn get_or_judge(&self, folders: Vec<PathBuf>, profile: &str) -> Result<Arc<Verdicts>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (folders, profile.to_owned());
        if let Some(verdicts) = known.get(&key) {
            return Ok(Arc::clone(verdicts));
        }
        let present_artifacts =
            key.0.iter().filter_map(|folder| Some(StoredResults::read(folder).ok()?.name)).collect();
        let verdicts = Arc::new(Verdicts { present_artifacts, judged: judge_folders(&key.0, profile)? });
        known.insert(key, Arc::clone(&verdicts));
        Ok(verdicts)
    }
}

/// Checks the verdicts in the `claims.md` of a results folder. Does nothing if the folder has no such file.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn check(folder: &Path, recorded: &ReferenceRun, verdict_cache: &VerdictCache) -> Result<CheckResult> {
    let mut check = CheckResult::new(CheckKind::Claims);
    let path = folder.join(CLAIMS);
    if !path.is_file() {
        return Ok(check);
    }
    let text = String::from_utf8_lossy(&regular::read(&path)?).into_owned();
    let numbers = &recorded.numbers;
    let verdicts = verdict_cache.get_or_judge(sibling_folders(folder), &numbers.profile)?;
    let judged = claims_about(&numbers.name, &verdicts.judged);
    if judged.is_empty() && text != format_claims(&[]) {
        check.record_difference(
            CLAIMS,
            [text.lines().next().unwrap_or_default(), "no checked claim about this artifact"],
            None,
        );
    }
    for entry in &judged {
        let claim = entry.claim;
        let at = || format!("{CLAIMS}, {}", claim.id);
        let seeds = claim.best_by.map(|_| SEEDS);
        let mut needed = claim.artifacts.iter().copied().chain(seeds);
        if let Some(missing) = needed.find(|name| !verdicts.present_artifacts.contains(*name)) {
            check.record_missing(at(), format!("the results of `{missing}` next to this folder"));
            continue;
        }
        let current_line = format_row(entry);
        let sentence = |line: &str| line.trim_start_matches("| ").split(" | ").next().unwrap_or_default().to_owned();
        let recorded_line = text.lines().find(|line| sentence(line) == sentence(&current_line));
        match recorded_line {
            Some(line) => check.compare(line == current_line, at, [line, current_line.as_str()].map(verdict_columns)),
            None => check.record_difference(at(), ["nothing", current_line.as_str()], None),
        }
    }
    let all = check.compared_count();
    Ok(check.with_total(all))
}

/// Returns the columns of a claim's line with counts and verdicts, without the columns of its sentence and section.
fn verdict_columns(line: &str) -> String {
    line.split(" | ").skip(2).collect::<Vec<_>>().join(" | ")
}

/// Returns the folders of all artifacts in the same results directory with the same profile.
fn sibling_folders(folder: &Path) -> Vec<PathBuf> {
    let absolute = files::absolute(folder);
    let (Some(name), Some(results)) = (absolute.file_name(), absolute.parent().and_then(Path::parent)) else {
        return vec![absolute];
    };
    let inner = files::entries(results).unwrap_or_default().into_iter().map(|path| path.join(name));
    inner.filter(|folder| folder.join(StoredResults::FILE).is_file()).collect()
}
