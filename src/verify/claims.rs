//! The verdicts beside a recorded run, judged again on the numbers of the folders around it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::finding::{Check, CheckKind};
use super::record::Recorded;
use crate::artifact::claims::{CLAIMS, judged_about, line, written};
use crate::error::Result;
use crate::files::regular;
use crate::results::StoredResults;

/// # Errors
/// A file that cannot be read.
pub(super) fn check(folder: &Path, recorded: &Recorded) -> Result<Check> {
    let mut check = Check::new(CheckKind::Claims);
    let path = folder.join(CLAIMS);
    if !path.is_file() {
        return Ok(check);
    }
    let text = String::from_utf8_lossy(&regular::read(&path)?).into_owned();
    let around = around(folder);
    let there: BTreeSet<String> = around.iter().filter_map(|of| Some(StoredResults::read(of).ok()?.name)).collect();
    let judged = judged_about(&recorded.numbers.name, &around, &recorded.numbers.profile)?;
    if judged.is_empty() && text != written(&judged) {
        check.differ(CLAIMS, [text.lines().next().unwrap_or_default(), "no claim about this that is checked"], None);
    }
    for of in &judged {
        let claim = of.claim;
        if let Some(lacking) = claim.artifacts.iter().find(|name| !there.contains(**name)) {
            check.lack(format!("{CLAIMS}, {}", claim.id), format!("the results of {lacking}, beside this folder"));
            continue;
        }
        let made = line(of);
        // By its sentence, which stands first.
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

/// The folders of all artifacts in the same place, this one among them.
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
