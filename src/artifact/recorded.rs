//! The recorded run of an artifact, which a repository keeps, and one that was made anew: what they say unlike.
//!
//! Times, the command, the commit and the machine stand in a record too, and are another's each time. They are no result.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::files::{owner, regular};
use crate::results::{CHANNELS, DOCUMENTS, LATENCY, Provenance, StoredNumber, StoredResults, settings_that_differ};

/// Files of a results folder that a repository does not keep: each choice of each document, the error of each channel, and
/// each pass that was timed. Their hashes stand in `run.json`; `.gitignore` has them, and the folders for other programs.
pub const NOT_RECORDED: [&str; 3] = [DOCUMENTS, CHANNELS, LATENCY];
/// What a cell of `run.json` has that is no result of it: how long it and its parts took, what of the store it was made
/// from, and what it is called.
const ASIDE: [&str; 4] = ["seconds", "solve_seconds", "made_from", "cell"];
/// As many names as a message has.
const NAMED: usize = 3;

/// How the run in a folder differs from the recorded one in another, in words; none where it says the same, to the last
/// digit and byte.
///
/// # Errors
/// A record that cannot be read.
pub(super) fn unlike(made: &Path, recorded: &Path) -> Result<Option<String>> {
    // Whoever makes it anew from elsewhere has paths that begin at the root.
    let root = recorded.ancestors().nth(3).and_then(|root| std::path::absolute(root).ok()).unwrap_or_default();
    let read = |folder: &Path| -> Result<(Value, Vec<StoredNumber>)> {
        let path = folder.join(Provenance::FILE);
        let text = String::from_utf8_lossy(&regular::read(&path)?).replace(&format!("\"{}/", root.display()), "\"");
        let run = serde_json::from_str(&text).map_err(|error| {
            Error::damaged("the record of a run cannot be read")
                .at(path.display().to_string())
                .found(error.to_string())
                .hint("`git checkout` brings a recorded one back; any other folder can be removed and made again")
        })?;
        // Races have none: what they say stands in their files.
        let numbers =
            if folder.join(StoredResults::FILE).exists() { StoredResults::read(folder)?.numbers } else { Vec::new() };
        Ok((run, numbers))
    };
    let ((ours, our_numbers), (theirs, their_numbers)) = (read(made)?, read(recorded)?);
    let mut says = Vec::new();
    says.extend(numbers(&our_numbers, &their_numbers));
    let settings = settings_that_differ(&theirs["grid"], &ours["grid"]);
    says.extend(listed("settings", settings.into_iter().map(|setting| setting.path)));
    says.extend(listed("inputs", unequal(&ours["inputs"], &theirs["inputs"]).into_iter()));
    // The numbers' own file also says which program wrote it.
    let files = unequal(&ours["files"], &theirs["files"]).into_iter();
    says.extend(listed("files", files.filter(|name| name != StoredResults::FILE)));
    says.extend(
        (says.is_empty() && found(&ours) != found(&theirs))
            .then(|| "what the cells found on their way (`cells` of run.json)".to_owned()),
    );
    Ok((!says.is_empty()).then(|| says.join("; ")))
}

/// Numbers that are not the same, and how far they are apart.
fn numbers(ours: &[StoredNumber], theirs: &[StoredNumber]) -> Option<String> {
    let key = |of: &StoredNumber| (of.cell.clone(), of.column.clone(), of.record.metric.clone());
    let recorded: BTreeMap<_, _> = theirs.iter().map(|of| (key(of), of)).collect();
    let made: BTreeMap<_, _> = ours.iter().map(|of| (key(of), of)).collect();
    let of_one = made.keys().filter(|key| !recorded.contains_key(key)).count()
        + recorded.keys().filter(|key| !made.contains_key(key)).count();
    let both: Vec<_> = made.iter().filter_map(|(key, of)| Some((key, *of, *recorded.get(key)?))).collect();
    let differ: Vec<_> = both.iter().filter(|(_, one, two)| one.record.value != two.record.value).collect();
    let items = both.iter().filter(|(_, one, two)| {
        one.record.value == two.record.value
            && (one.record.error, &one.right, &one.losses, &one.failure)
                != (two.record.error, &two.right, &two.losses, &two.failure)
    });
    let mut says = Vec::new();
    if !differ.is_empty() {
        let all = both.len();
        let share = |(_, one, two): &&&(&(String, String, String), &StoredNumber, &StoredNumber)| {
            let (one, two) = (one.record.value?, two.record.value?);
            Some((one - two).abs() / two.abs().max(f64::MIN_POSITIVE))
        };
        let most = differ.iter().filter_map(|of| Some((share(&of)?, of))).max_by(|a, b| a.0.total_cmp(&b.0));
        let most = most.map(|(share, ((cell, column, metric), ..))| {
            let column = if column.is_empty() { metric } else { column };
            format!(", most by {share:.2e} of its value ({column} of {cell})")
        });
        says.push(format!("{} of {all} numbers{}", differ.len(), most.unwrap_or_default()));
    }
    let items = items.count();
    says.extend((items > 0).then(|| format!("the items behind {items} numbers")));
    says.extend((of_one > 0).then(|| format!("{of_one} numbers that only one of them has")));
    (!says.is_empty()).then(|| says.join(", "))
}

/// A few of some names under a head; none where there are none.
fn listed(head: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let names: BTreeSet<String> = names.collect();
    let more = names.len().saturating_sub(NAMED);
    let shown: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{head}: {}{more}", shown.join(", ")))
}

/// The names under which two maps do not have the same.
fn unequal(one: &Value, other: &Value) -> BTreeSet<String> {
    let names = [one, other].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
    names.filter(|name| one.get(*name) != other.get(*name)).cloned().collect()
}

/// What the cells of a record found on their way.
fn found(run: &Value) -> Value {
    fn bare(of: &Value) -> Value {
        match of {
            Value::Object(map) => {
                let kept = map.iter().filter(|(name, _)| !ASIDE.contains(&name.as_str()));
                kept.map(|(name, value)| (name.clone(), bare(value))).collect()
            }
            Value::Array(list) => list.iter().map(bare).collect(),
            other => other.clone(),
        }
    }
    bare(&run["cells"])
}

/// Proves that nothing in the texts of a folder tells whose machine made it: its name, or where folders lie on it.
///
/// # Errors
/// Exit code 2, naming the file and what it tells.
pub(super) fn impersonal(folder: &Path) -> Result<()> {
    let folders = [std::env::home_dir(), std::env::current_dir().ok()];
    // What is as short as a word, or is one, stands in any text.
    let words = [std::env::consts::OS, std::env::consts::ARCH, "localhost", "ghostlab"];
    let private = |text: &String| text.len() >= 5 && !words.contains(&text.as_str());
    let mut tells: Vec<String> = folders.into_iter().flatten().map(|path| path.display().to_string()).collect();
    tells.push(owner::host());
    tells.retain(private);
    let texts = ["json", "csv", "md", "tex", "svg"];
    let listing = std::fs::read_dir(folder).map_err(|error| Error::io("list", folder, &error))?;
    let is_text = |path: &PathBuf| path.extension().is_some_and(|of| texts.iter().any(|text| of == *text));
    for path in listing.filter_map(|item| Some(item.ok()?.path())).filter(is_text) {
        let bytes = regular::read(&path)?;
        let text = String::from_utf8_lossy(&bytes);
        if let Some(found) = tells.iter().find(|found| text.contains(found.as_str())) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(Error::bad_input("a record would tell whose machine made it")
                .at(name)
                .expected("neither the machine's name nor where its folders lie")
                .found(format!("`{found}`"))
                .hint("run it in the checkout's own folder, with short paths, on a store that was made so"));
        }
    }
    Ok(())
}
