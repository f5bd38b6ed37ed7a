//! Compares a run with the recorded run of the same artifact, which is kept in the repository.
//!
//! Timings, the command, the commit and the machine are not results and are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::differing_files;
use crate::error::{Error, Result};
use crate::files::{self, owner, regular};
use crate::quantity::pluralize;
use crate::results::{Provenance, ResultRow, StoredResults, settings_that_differ};

/// Fields of a cell in `run.json` that are not results.
const IGNORED_FIELDS: [&str; 4] = ["seconds", "solve_seconds", "made_from", "cell"];
/// Maximum number of names listed in a message.
const MAX_NAMES: usize = 3;

/// Largest relative difference in diagnostics (operator statistics, selection scores) that rounding can explain.
const MAX_ROUNDING_DIFFERENCE: f64 = 1e-3;

/// Result of comparing a run with the recorded one. The text describes the differences.
#[derive(Debug, PartialEq)]
pub(super) enum RecordComparison {
    /// The numbers, files and diagnostics are identical.
    Identical,
    /// The numbers, their scored items, the settings and the inputs are identical. The files differ, or diagnostics
    /// differ within rounding errors.
    IdenticalNumbers(String),
    Different(String),
}

/// Fields of `run.json` and `numbers.json` that are compared.
struct ComparedRun {
    run: Value,
    /// Numbers of the run. `None` for searches, whose files are compared instead.
    numbers: Option<Vec<ResultRow>>,
}

impl ComparedRun {
    /// Reads a results folder. Makes paths below `root` relative, because runs in other directories record absolute
    /// paths.
    fn read(folder: &Path, root: &Path) -> Result<Self> {
        let path = folder.join(Provenance::FILE);
        let text = String::from_utf8_lossy(&regular::read(&path)?).replace(&format!("\"{}/", root.display()), "\"");
        let run = serde_json::from_str(&text).map_err(|error| {
            Error::damaged("cannot read the run record").at(path.display().to_string()).found(error.to_string()).hint(
                "if the folder is committed, restore it with `git checkout`; otherwise delete it and run the \
                 command again",
            )
        })?;
        let has_numbers = folder.join(StoredResults::FILE).exists();
        let numbers = has_numbers.then(|| StoredResults::read(folder)).transpose()?.map(|stored| stored.numbers);
        Ok(Self { run, numbers })
    }
}

/// Compares a run with the recorded one.
///
/// # Errors
/// Fails if one of the records cannot be read.
pub(super) fn compare(computed: &Path, recorded: &Path) -> Result<RecordComparison> {
    let root = recorded.ancestors().nth(3).and_then(|root| std::path::absolute(root).ok()).unwrap_or_default();
    let ours = ComparedRun::read(computed, &root)?;
    let theirs = ComparedRun::read(recorded, &root)?;
    let our_numbers = ours.numbers.as_deref();
    let their_numbers = theirs.numbers.as_deref();
    let ours = &ours.run;
    let theirs = &theirs.run;
    let mut different = Vec::new();
    different.extend(compare_numbers(our_numbers.unwrap_or_default(), their_numbers.unwrap_or_default()));
    let settings = settings_that_differ(&theirs["grid"], &ours["grid"]);
    different.extend(list_names("settings", settings.into_iter().map(|setting| setting.path.to_string())));
    different.extend(list_names("inputs", differing_keys(&ours["inputs"], &theirs["inputs"]).into_iter()));
    let findings = DiagnosticDifference::between(&cell_diagnostics(ours), &cell_diagnostics(theirs));
    let is_rounding = findings.structure.is_none()
        && findings.largest.as_ref().is_none_or(|(_, size)| *size <= MAX_ROUNDING_DIFFERENCE);
    let mut rounding = Vec::new();
    let list = if is_rounding { &mut rounding } else { &mut different };
    list.extend(findings.sentence());
    // Ignore the hash of `numbers.json`, because the file contains the program version. Its numbers were compared
    // above.
    let mut files = differing_keys(&ours["files"], &theirs["files"]);
    files.remove(StoredResults::FILE);
    if our_numbers.is_none() && !files.is_empty() {
        different.extend(list_names("files", files.into_iter()));
    } else {
        rounding.extend(differing_files::explain(computed, recorded, files.iter().map(String::as_str))?);
    }
    if different.is_empty() && rounding.is_empty() {
        return Ok(RecordComparison::Identical);
    }
    let result = if different.is_empty() { RecordComparison::IdenticalNumbers } else { RecordComparison::Different };
    let texts = different.into_iter().chain(rounding).chain(describe_instruction_difference(ours, theirs));
    Ok(result(texts.collect::<Vec<_>>().join("; ")))
}

/// Describes how the vector instructions of two runs differ, which may change the last bits of a value. Returns `None`
/// if they are equal.
fn describe_instruction_difference(ours: &Value, theirs: &Value) -> Option<String> {
    let ours = vector_features(ours)?;
    let theirs = vector_features(theirs)?;
    (ours != theirs).then(|| format!("different vector instructions: recorded with {theirs}, here {ours}"))
}

fn vector_features(run: &Value) -> Option<String> {
    let all = run["machine"]["cpu_features"].as_array()?;
    Some(all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
}

/// Difference in diagnostics between the cells of two runs.
#[derive(Debug, Default, PartialEq)]
struct DiagnosticDifference {
    /// Path and size of the largest relative difference between two floating-point numbers.
    largest: Option<(String, f64)>,
    /// Path of the first difference that is not between two floating-point numbers.
    structure: Option<String>,
}

impl DiagnosticDifference {
    fn between(ours: &Value, theirs: &Value) -> Self {
        let mut difference = Self::default();
        difference.add("cells", ours, theirs);
        difference
    }

    fn add(&mut self, path: &str, ours: &Value, theirs: &Value) {
        match (ours, theirs) {
            (Value::Object(one), Value::Object(other)) => {
                for name in one.keys().chain(other.keys().filter(|name| !one.contains_key(*name))) {
                    self.add(&format!("{path}.{name}"), &field_of(name, one), &field_of(name, other));
                }
            }
            (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
                for (at, (one, other)) in one.iter().zip(other).enumerate() {
                    self.add(&format!("{path}[{at}]"), one, other);
                }
            }
            (Value::Number(one), Value::Number(other)) if one.is_f64() && other.is_f64() => {
                let one = one.as_f64().unwrap_or(f64::NAN);
                let other = other.as_f64().unwrap_or(f64::NAN);
                let relative = relative_difference(one, other);
                if one != other && self.largest.as_ref().is_none_or(|(_, largest)| relative > *largest) {
                    self.largest = Some((path.to_owned(), relative));
                }
            }
            _ if ours != theirs => {
                self.structure.get_or_insert_with(|| path.to_owned());
            }
            _ => {}
        }
    }

    fn sentence(&self) -> Option<String> {
        if let Some(path) = &self.structure {
            return Some(format!("cell results ({path} in run.json)"));
        }
        let (path, relative) = self.largest.as_ref()?;
        Some(format!("cell results differ by at most {relative:.1e} of their value ({path} in run.json)"))
    }
}

fn field_of(name: &String, map: &Map<String, Value>) -> Value {
    map.get(name).cloned().unwrap_or_default()
}

/// Describes the differences between the numbers of two runs. Returns `None` if there are none.
fn compare_numbers(ours: &[ResultRow], theirs: &[ResultRow]) -> Option<String> {
    let theirs: BTreeMap<_, _> = theirs.iter().map(|number| (number_key(number), number)).collect();
    let ours: BTreeMap<_, _> = ours.iter().map(|number| (number_key(number), number)).collect();
    let pairs = ours.iter().filter_map(|(key, our)| Some((key, *our, *theirs.get(key)?)));
    let pairs: Vec<_> = pairs.collect();
    let unmatched = ours.len() + theirs.len() - 2 * pairs.len();
    let differ: Vec<_> = pairs.iter().filter(|(_, our, their)| our.record.value != their.record.value).collect();
    let items = pairs.iter().filter(|(_, our, their)| {
        our.record.value == their.record.value
            && (our.record.error, &our.sample, &our.failure) != (their.record.error, &their.sample, &their.failure)
    });
    let mut texts = Vec::new();
    if !differ.is_empty() {
        let all = pairs.len();
        let shares = differ
            .iter()
            .filter_map(|(key, our, their)| Some((relative_difference(our.record.value?, their.record.value?), key)));
        let largest = shares.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(relative, (cell, column, metric))| {
            let column = if column.is_empty() { metric } else { column };
            format!(", most by {relative:.2e} of its value ({column} of {cell})")
        });
        texts.push(format!("{} of {all} numbers{}", differ.len(), largest.unwrap_or_default()));
    }
    let items = items.count();
    texts.extend((items > 0).then(|| format!("per-item data of {}", pluralize(items, "number"))));
    texts.extend((unmatched > 0).then(|| format!("{} in only one of the runs", pluralize(unmatched, "number"))));
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn number_key(number: &ResultRow) -> (String, String, String) {
    (number.cell.clone(), number.column.clone(), number.record.metric.clone())
}

/// Returns the difference between two values relative to the second.
fn relative_difference(ours: f64, theirs: f64) -> f64 {
    (ours - theirs).abs() / theirs.abs().max(f64::MIN_POSITIVE)
}

fn list_names(head: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let names: BTreeSet<String> = names.collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{head}: {}{more}", shown.join(", ")))
}

fn differing_keys(one: &Value, other: &Value) -> BTreeSet<String> {
    let names = [one, other].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
    names.filter(|name| one.get(*name) != other.get(*name)).cloned().collect()
}

/// Returns the `cells` of `run.json` without the fields in [`IGNORED_FIELDS`], at any nesting depth.
fn cell_diagnostics(run: &Value) -> Value {
    fn bare(full: &Value) -> Value {
        match full {
            Value::Object(map) => {
                let compared = map.iter().filter(|(name, _)| !IGNORED_FIELDS.contains(&name.as_str()));
                compared.map(|(name, value)| (name.clone(), bare(value))).collect()
            }
            Value::Array(list) => list.iter().map(bare).collect(),
            other => other.clone(),
        }
    }
    bare(&run["cells"])
}

/// Checks that no text file identifies the machine by its host name or by local paths.
///
/// # Errors
/// Fails with exit code 2 and names the file and the text.
pub(super) fn check_anonymous(folder: &Path) -> Result<()> {
    let folders = [std::env::home_dir(), std::env::current_dir().ok()];
    // Ignore short strings and common words, because they occur in any text.
    let words = [std::env::consts::OS, std::env::consts::ARCH, "localhost", "ghostlab"];
    let mut private: Vec<String> = folders.into_iter().flatten().map(|path| path.display().to_string()).collect();
    private.push(owner::host());
    private.retain(|text| text.len() >= 5 && !words.contains(&text.as_str()));
    let texts = ["json", "csv", "md", "tex", "svg"];
    let mut all = files::entries(folder).map_err(|error| Error::folder_io("read", folder, &error))?;
    all.retain(|path| path.extension().is_some_and(|extension| texts.iter().any(|text| extension == *text)));
    for path in all {
        let bytes = regular::read(&path)?;
        let text = String::from_utf8_lossy(&bytes);
        if let Some(found) = private.iter().find(|word| text.contains(word.as_str())) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(Error::bad_input("the record would identify the machine")
                .at(name)
                .expected("neither the machine's name nor its folder paths")
                .found(format!("`{found}`"))
                .hint("repeat the run in the checkout, with relative paths and a store created there"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rounding_and_structural_differences_are_separated() {
        let recorded = json!([{"removed": [2, 3], "boundary_mae": 1.0, "note": null}]);
        assert_eq!(DiagnosticDifference::between(&recorded, &recorded), DiagnosticDifference::default());
        let found = DiagnosticDifference::between(&json!([{"removed": [2, 3], "boundary_mae": 1.25}]), &recorded);
        assert_eq!(found.largest, Some(("cells[0].boundary_mae".to_owned(), 0.25)));
        assert_eq!(found.structure, None, "a value that is null may be absent");
        // Layer indices are integers, so rounding cannot explain a difference.
        let found = DiagnosticDifference::between(&json!([{"removed": [2, 4], "boundary_mae": 1.0}]), &recorded);
        assert_eq!(found.structure.as_deref(), Some("cells[0].removed[1]"));
        assert!(
            DiagnosticDifference::between(&json!([]), &recorded).structure.is_some(),
            "a cell that only one run has"
        );
    }

    #[test]
    fn differing_vector_instructions_are_named() {
        assert_eq!(describe_instruction_difference(&machine_with(&["fma"]), &machine_with(&["fma"])), None);
        let explanation =
            describe_instruction_difference(&machine_with(&["fma", "avx512f"]), &machine_with(&["fma"])).unwrap();
        assert_eq!(explanation, "different vector instructions: recorded with fma, here fma avx512f");
    }

    fn machine_with(features: &[&str]) -> Value {
        json!({"machine": {"cpu_features": features}})
    }
}
