//! Grid entries for models, tasks and texts that are named on the command line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::directories;
use crate::error::{Error, ErrorKind, Result};
use crate::files::gguf::is_gguf;
use crate::files::{parts, regular};
use crate::grid::{self, EntryKind};
use crate::hub::Source;
use crate::model::Config;
use crate::quantity::MAX;
use crate::tasks::{Bos, DocumentLimit, TASKS, Task};

/// File name of the generated grid in messages. It has no parent directory, so named entries are looked up in the
/// current directory.
const FILE: &str = "command line";

/// Replaces a hint to run `ghostlab fetch` with a hint to pass `--fetch`, which `score`, `layers` and `search` support.
pub(super) fn with_fetch_hint(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Missing if error.advice().is_some_and(|advice| advice.contains("ghostlab fetch")) => {
            error.hint("run the same command with --fetch to download it")
        }
        _ => error,
    }
}

/// Parses the window length in tokens, given as `TEXT@TOKENS`.
fn parse_window_length(flag: &str, argument: &str, length: &str) -> Result<usize> {
    let parsed = length.parse().ok().filter(|length| (2..=MAX).contains(length));
    parsed.ok_or_else(|| {
        Error::bad_input("invalid window length")
            .at(format!("{flag} {argument}"))
            .expected(format!("TEXT@TOKENS, with 2 to {MAX} tokens"))
            .found(format!("`{length}`"))
    })
}

/// Grid entries for texts and tasks that a profile (`profiles/NAME.yaml`) defines, by name. Their paths are absolute.
#[derive(Default)]
struct ProfileEntries {
    corpora: Map<String, Value>,
    tasks: Map<String, Value>,
}

impl ProfileEntries {
    fn read(name: &str) -> Result<Self> {
        let file = Path::new("profiles").join(name).with_extension("yaml");
        let folders = [Some(PathBuf::new()), directories::find_experiments(None).ok()];
        let files: Vec<PathBuf> = folders.into_iter().flatten().map(|folder| folder.join(&file)).collect();
        let Some(path) = files.iter().find(|path| path.is_file()) else {
            let looked: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            return Err(Error::missing("unknown profile")
                .at(format!("--profile {name}"))
                .expected(looked.join(", or "))
                .found("nothing")
                .hint("omit --profile and pass text and task files instead"));
        };
        let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
        let profile: Value = serde_saphyr::from_str(&text).map_err(|error| {
            Error::bad_input("cannot read the profile").at(path.display().to_string()).found(error.to_string())
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let corpora = resolve_entries(&profile, folder, "corpora")?;
        Ok(Self { corpora, tasks: resolve_entries(&profile, folder, "tasks")? })
    }
}

/// Grid for a model, texts and tasks that are named on the command line.
pub(super) struct NamedGrid {
    /// Name of the model in the grid.
    pub(super) backbone: String,
    backbones: Value,
    tasks: Map<String, Value>,
    corpora: Map<String, Value>,
    profile: ProfileEntries,
}

impl NamedGrid {
    /// Creates a grid for a model. The names of texts and tasks may refer to `profile` or, if it is `None`, to the
    /// profile that the model's entry names.
    pub(super) fn new(model: &str, profile: Option<&String>) -> Result<Self> {
        let (backbone, backbones) = build_backbone_entry(model)?;
        let profile = profile.cloned().or_else(|| find_model_profile(model));
        let profile = profile.as_deref().map(ProfileEntries::read).transpose()?.unwrap_or_default();
        Ok(Self { backbone, backbones, tasks: Map::new(), corpora: Map::new(), profile })
    }

    /// Adds the entry for a task given on the command line. Returns the task for the list of tasks to evaluate.
    pub(super) fn add_task(&mut self, given: &str, bos: Bos, limit: Option<DocumentLimit>) -> Result<Value> {
        let (task, file) = match given.split_once('=') {
            Some((task, file)) => (task.to_owned(), Some(file)),
            None if is_file(given)? => (name_before_dot(given), Some(given)),
            None => (given.to_owned(), None),
        };
        let entry = match (file, self.profile.tasks.get(&task)) {
            (Some(_), _) if Task::find(&task).is_err() => return Err(unknown_task_error(&task, &self.profile)),
            (Some(file), _) => Some(json!({"path": absolute_path(file)?})),
            (None, Some(entry)) => Some(entry.clone()),
            (None, None) if is_known(EntryKind::Task, &task) => None,
            (None, None) => {
                let entry = read_builtin_entry(EntryKind::Task, &task);
                Some(entry.ok_or_else(|| unknown_task_error(&task, &self.profile))?)
            }
        };
        let mut usage = json!({"name": task, "bos": bos});
        if let Some(limit) = limit {
            usage["limit"] = json!(limit.value());
        }
        insert_entry(&mut self.tasks, ("tasks", "--tasks", given), task, entry.unwrap_or_default())?;
        Ok(usage)
    }

    /// Adds the entry for a text given with an option. Returns the text with its window length, which is
    /// `default_length` if none is given.
    pub(super) fn add_text(
        &mut self,
        flag: &str,
        given: &str,
        default_length: usize,
        rule: &str,
        max_windows: Option<u32>,
    ) -> Result<Value> {
        let (text, length) = match given.rsplit_once('@').filter(|_| !Path::new(given).exists()) {
            Some((text, length)) => (text, parse_window_length(flag, given, length)?),
            None => (given, default_length),
        };
        let mut entry = Map::new();
        let file = is_file(text)?;
        let corpus = if file { name_before_dot(text) } else { text.to_owned() };
        match self.profile.corpora.get(&corpus) {
            _ if file => {
                entry.extend([("path".into(), json!(absolute_path(text)?)), ("rule".into(), json!(rule))]);
            }
            Some(Value::Object(shared)) => entry.extend(shared.clone()),
            _ if is_known(EntryKind::Corpus, &corpus) => {}
            _ => match read_builtin_entry(EntryKind::Corpus, &corpus) {
                Some(Value::Object(hub_entry)) => entry.extend(hub_entry),
                _ => return Err(unknown_text_error(&corpus, flag, &self.profile)),
            },
        }
        entry.extend(max_windows.map(|limit| ("limit".into(), json!(limit))));
        let usage = json!({"corpus": corpus, "length": length});
        let entry = if entry.is_empty() { Value::Null } else { Value::Object(entry) };
        insert_entry(&mut self.corpora, ("texts", flag, given), corpus, entry)?;
        Ok(usage)
    }

    /// Formats the grid as JSON, which is valid YAML. `settings` contains all keys except the entries.
    pub(super) fn format(self, mut settings: Value) -> String {
        let Self { backbones, mut tasks, mut corpora, .. } = self;
        tasks.retain(|_, entry| !entry.is_null());
        corpora.retain(|_, entry| !entry.is_null());
        let parts = [("backbones", backbones), ("tasks", Value::Object(tasks)), ("corpora", Value::Object(corpora))];
        for (key, part) in parts.into_iter().filter(|(_, part)| part.as_object().is_some_and(|part| !part.is_empty())) {
            settings[key] = part;
        }
        settings.to_string()
    }
}

/// Inserts the entry of a text or task, which is null if the grid needs none. `source` is the kind of the entry, and
/// the option and argument that it comes from.
///
/// # Errors
/// Fails if a different entry has the same name.
fn insert_entry(
    entries: &mut Map<String, Value>,
    source: (&str, &str, &str),
    name: String,
    entry: Value,
) -> Result<()> {
    let Some(other) = entries.get(&name).filter(|&other| !is_same_entry(other, &entry)) else {
        entries.entry(name).or_insert(entry);
        return Ok(());
    };
    let (kind, flag, given) = source;
    let (message, hint) = if find_file(other).is_some_and(|file| find_file(&entry) == Some(file)) {
        (format!("`{name}` is given twice with different settings"), "use either the name or the file")
    } else {
        (format!("two different {kind} have the name `{name}`"), "rename one of the files")
    };
    let [first, second] = [other, &entry].map(|entry| entry["path"].as_str().unwrap_or(&name));
    Err(Error::bad_input(message).at(format!("{flag} {given}")).found(format!("{first} and {second}")).hint(hint))
}

/// Returns whether two entries have the same settings and file. The paths of the file may differ.
fn is_same_entry(one: &Value, other: &Value) -> bool {
    let [first, second] = [one, other].map(|entry| {
        let mut settings = entry.clone();
        let file = find_file(entry);
        if file.is_some() {
            settings["path"] = Value::Null;
        }
        (settings, file)
    });
    first == second
}

/// Returns the file of an entry, without links, or `None` if the entry has no file or the file does not exist.
fn find_file(entry: &Value) -> Option<PathBuf> {
    Path::new(entry["path"].as_str()?).canonicalize().ok()
}

/// Returns the entries in a section of a profile, with absolute paths. `folder` contains the profile.
fn resolve_entries(profile: &Value, folder: &Path, section: &str) -> Result<Map<String, Value>> {
    let mut entries = profile[section].as_object().cloned().unwrap_or_default();
    for entry in entries.values_mut() {
        if let Some(path) = entry["path"].as_str() {
            entry["path"] = json!(absolute_path(&folder.join(path).display().to_string())?);
        }
    }
    Ok(entries)
}

/// Returns the profile named in the model's entry in `backbones/`. The entry is found by its name or by the model's
/// directory.
fn find_model_profile(model: &str) -> Option<String> {
    let folder = directories::find_experiments(None).ok()?;
    let model_path = Path::new(model).canonicalize().ok();
    // Ignore errors, because they may concern other entries.
    let mut entries = grid::backbone_files(&folder).unwrap_or_default().into_iter();
    let entry = entries.find(|file| {
        let path = file.path.as_ref().and_then(|path| path.canonicalize().ok());
        file.name == model || (path.is_some() && path == model_path)
    });
    entry?.profile
}

fn is_known(kind: EntryKind, name: &str) -> bool {
    grid::available_names(Path::new(FILE), kind).iter().any(|known| known == name)
}

/// Returns the names of all entries that a grid in the current directory can refer to, and those in `profile_entries`.
/// The names are sorted and distinct.
fn list_entry_names(kind: EntryKind, profile_entries: &Map<String, Value>) -> Vec<String> {
    let available = grid::available_names(Path::new(FILE), kind).into_iter();
    available.chain(profile_entries.keys().cloned()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn unknown_task_error(name: &str, profile: &ProfileEntries) -> Error {
    let builtin_names: Vec<&str> = TASKS.iter().map(|task| task.name).collect();
    let forms = "FILE named after its task, or NAME=FILE";
    if builtin_names.contains(&name) {
        return Error::bad_input(format!("no data for the task `{name}`"))
            .at(format!("--tasks {name}"))
            .expected(forms)
            .found("a name without a file")
            .hint(format!("pass the data, for example --tasks {name}=questions.jsonl"));
    }
    let with_data = list_entry_names(EntryKind::Task, &profile.tasks);
    let one_of = if with_data.is_empty() { String::new() } else { format!("one of {}, ", with_data.join(", ")) };
    let hint = format!(
        "use one of the built-in tasks ({}) as NAME, or define a task of lm-evaluation-harness with --tasks FILE.yaml or \
         --definitions path/to/lm_eval/tasks",
        builtin_names.join(", ")
    );
    Error::bad_input(format!("unknown task `{name}`"))
        .at(format!("--tasks {name}"))
        .expected(format!("{one_of}{forms}"))
        .hint(hint)
        .suggest(name, builtin_names)
}

fn unknown_text_error(name: &str, flag: &str, profile: &ProfileEntries) -> Error {
    let names = list_entry_names(EntryKind::Corpus, &profile.corpora);
    let one_of = if names.is_empty() { String::new() } else { format!("one of {}, or ", names.join(", ")) };
    let error = Error::bad_input(format!("unknown text `{name}`")).at(format!("{flag} {name}"));
    let forms = "a file (.txt .jsonl .jsonl.gz .parquet), with the window length as FILE@TOKENS";
    error
        .expected(format!("{one_of}{forms}"))
        .hint(format!("pass a file, for example {flag} notes.txt@1024"))
        .suggest(name, names.iter().map(String::as_str))
}

/// Returns the model's name in the grid and its grid entry. The entry is empty if `model` names an entry in
/// `backbones/`.
pub(super) fn build_backbone_entry(model: &str) -> Result<(String, Value)> {
    let folder = Path::new(model);
    if parts::is_backbone(folder) {
        // Read the config now so that an invalid model is reported before any other problem.
        Config::read_with_attachments(folder)?;
        let full_path = std::path::absolute(folder).map_err(|error| Error::path_io("resolve", folder, &error))?;
        let name: String =
            full_path.components().next_back().map_or(String::new(), |name| name.as_os_str().to_string_lossy().into());
        let name = if is_gguf(folder) { name[..name.len() - ".gguf".len()].to_owned() } else { name };
        return Ok((name.clone(), json!({ name: {"path": absolute_path(model)?} })));
    }
    if !model.contains('/') {
        return Ok((model.to_owned(), json!({})));
    }
    let source = Source::parse(model).map_err(|_| {
        Error::missing("model not found")
            .at(model)
            .expected("a model folder, a .gguf file, or `org/name[@revision]` on the hub")
            .hint("check the path for typos")
    })?;
    let hub = source.repo.to_string();
    let revision = source.revision().to_owned();
    let name = hub.rsplit('/').next().unwrap_or_default().to_owned();
    Ok((name.clone(), json!({ name: {"hub": hub, "revision": revision} })))
}

/// Makes a path absolute, because relative paths in a grid are relative to the grid's directory.
pub(super) fn absolute_path(path: &str) -> Result<String> {
    let full_path = std::path::absolute(path).map_err(|error| Error::path_io("resolve", Path::new(path), &error))?;
    full_path.into_os_string().into_string().map_err(|_| Error::bad_input("a path is not UTF-8").at(path))
}

/// Returns whether an argument is a file rather than a name.
///
/// # Errors
/// Fails if the argument has a path separator and no such file exists.
pub(super) fn is_file(text: &str) -> Result<bool> {
    let exists = Path::new(text).exists();
    if !exists && text.contains(std::path::MAIN_SEPARATOR) {
        return Err(Error::bad_input("file not found")
            .at(text)
            .expected("an existing file, or a name without path separators")
            .hint("check the path for typos"));
    }
    Ok(exists && (text.contains(['/', '.']) || Path::new(text).is_file()))
}

/// Returns the part of the file name before the first dot.
fn name_before_dot(path: &str) -> String {
    let name = Path::new(path).file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    name.split('.').next().unwrap_or_default().to_owned()
}

macro_rules! entries {
    ($folder:literal, $($name:literal),+) => {
        [$(($name, include_str!(concat!("../../experiments/", $folder, "/", $name, ".yaml")))),+]
    };
}

const KNOWN_TASKS: [(&str, &str); 9] = entries!(
    "tasks",
    "arc_easy",
    "arc_challenge",
    "hellaswag",
    "winogrande",
    "boolq",
    "openbookqa",
    "rte",
    "copa",
    "race"
);
const KNOWN_TEXTS: [(&str, &str); 5] = entries!("corpora", "c4", "c4-train", "ptb", "wikitext2", "wikitext2-train");

/// Returns the built-in grid entry for a text or task on the hub, without its local path.
pub(super) fn read_builtin_entry(kind: EntryKind, name: &str) -> Option<Value> {
    let all = match kind {
        EntryKind::Task => &KNOWN_TASKS[..],
        EntryKind::Corpus => &KNOWN_TEXTS,
        _ => return None,
    };
    let (_, text) = all.iter().find(|(known, _)| *known == name)?;
    let mut entry: Value = serde_saphyr::from_str(text).ok()?;
    entry.as_object_mut()?.remove("path");
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_entry_has_a_hub_location() {
        for (kind, all) in [(EntryKind::Task, &KNOWN_TASKS[..]), (EntryKind::Corpus, &KNOWN_TEXTS)] {
            for (name, _) in all {
                let entry = read_builtin_entry(kind, name).unwrap();
                assert!(entry["hub"].is_string() && entry["path"].is_null(), "{name}: {entry}");
            }
        }
        assert!(read_builtin_entry(EntryKind::Task, "nine").is_none());
    }
}
