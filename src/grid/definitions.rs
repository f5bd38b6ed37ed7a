//! Resolution of the names used in a grid to entries, and location of the entries' files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::entry_kind::EntryKind;
use super::eval_task::{TaskData, TaskSource};
use super::input::{self, HubSource, InputRef, InputResolver, ResolvedInput, SourceEntry};
use super::library::{self, Library};
use super::schema::{BackboneEntry, CorpusEntry, Schema, TaskEntry};
use super::shards::{ShardsEntry, Stream};
use super::validate::{self, EntryPosition};
use super::weights::CalibratedOn;
use super::yaml::Positioned;
use crate::corpus::WindowRule;
use crate::error::{Error, ErrorKind, ErrorParts, Result};
use crate::files::parts;
use crate::model::{self, Config, WeightType};
use crate::tasks::{TASKS, Task};

/// Entries that the grid uses, by name.
#[derive(Debug)]
pub(super) struct Definitions {
    pub(super) backbones: BTreeMap<String, NamedEntry<BackboneEntry>>,
    pub(super) corpora: BTreeMap<String, NamedEntry<CorpusEntry>>,
    pub(super) tasks: BTreeMap<String, NamedEntry<TaskEntry>>,
}

/// Backbone, corpus or task of the grid, with the locations of its files.
#[derive(Debug)]
pub(super) struct NamedEntry<T> {
    pub(super) entry: T,
    pub(super) need: InputRef,
}

/// Sources of named entries: the grid itself and the library.
pub(super) struct EntrySources<'a> {
    pub(super) schema: &'a Schema,
    pub(super) root: &'a EntryPosition<'a>,
    pub(super) library: &'a Library,
}

impl EntrySources<'_> {
    pub(super) fn read_backbones<'n>(
        &self,
        used: impl Iterator<Item = &'n Positioned<String>>,
    ) -> Result<BTreeMap<String, NamedEntry<BackboneEntry>>> {
        self.read_each(EntryKind::Backbone, &self.schema.backbones, used, |_, entry: &BackboneEntry| {
            let BackboneEntry { path, hub, revision, files, package, .. } = entry;
            Ok(SourceEntry { package: package.as_deref(), ..SourceEntry::new(path, hub, revision, files) })
        })
    }

    /// Reads the entries of the corpora in use. `seeds` determines which shards of a corpus are read.
    pub(super) fn read_corpora<'n>(
        &self,
        used: impl Iterator<Item = &'n Positioned<String>>,
        seeds: &BTreeMap<&str, BTreeSet<u64>>,
    ) -> Result<BTreeMap<String, NamedEntry<CorpusEntry>>> {
        self.read_each(EntryKind::Corpus, &self.schema.corpora, used, |(name, at), corpus: &CorpusEntry| {
            check_builtin_name("window rule", &corpus.rule, &rule_names(), &at.key("rule"))?;
            if let Some(limit) = corpus.limit {
                validate::check_count(1, limit, "the limit on evaluation windows", &at.key("limit").position())?;
            }
            let CorpusEntry { path, hub, revision, files, rule, shards, shards_read, .. } = corpus;
            let seeds = seeds.get(name).cloned().unwrap_or_default();
            let shards = ShardsEntry::read(at, rule, (*shards, *shards_read), files, seeds)?;
            Ok(SourceEntry { shards, ..SourceEntry::new(path, hub, revision, files) })
        })
    }

    pub(super) fn read_tasks<'n>(
        &self,
        used: impl Iterator<Item = &'n Positioned<String>>,
    ) -> Result<BTreeMap<String, NamedEntry<TaskEntry>>> {
        let used: Vec<&Positioned<String>> = used.collect();
        let mut data =
            self.read_each(EntryKind::Task, &self.schema.tasks, used.into_iter(), |_, entry: &TaskEntry| {
                let TaskEntry { path, hub, revision, files, .. } = entry;
                Ok(SourceEntry::new(path, hub, revision, files))
            })?;
        for (name, NamedEntry { entry, .. }) in &mut data {
            let task = entry.task.get_or_insert_with(|| name.clone());
            check_builtin_name("built-in task", task, &task_names(), &self.root.key("tasks").key(name).key("task"))?;
        }
        Ok(data)
    }

    /// Reads the entries of one kind that are in use. `read` validates an entry and returns its source.
    fn read_each<'n, T: Clone>(
        &self,
        kind: EntryKind,
        defined: &BTreeMap<String, T>,
        used: impl Iterator<Item = &'n Positioned<String>>,
        read: impl for<'e> Fn((&str, &EntryPosition<'_>), &'e T) -> Result<SourceEntry<'e>>,
    ) -> Result<BTreeMap<String, NamedEntry<T>>> {
        let mut all = BTreeMap::new();
        for Positioned { value: name, position } in used {
            if all.contains_key(name) {
                continue;
            }
            validate::check_printable(kind.label(), name, position)?;
            let Some(definition) = defined.get(name) else {
                let inline = defined.keys().map(String::as_str);
                return Err(library::unknown_name_error(self.library, kind, name, inline, position.to_string()));
            };
            let at = self.root.key(kind.key()).key(name);
            let need = InputRef::read(kind, name, &at, read((name, &at), definition)?)?;
            all.insert(name.clone(), NamedEntry { entry: definition.clone(), need });
        }
        Ok(all)
    }
}

pub fn rule_names() -> Vec<&'static str> {
    WindowRule::ALL.into_iter().map(WindowRule::name).collect()
}

pub fn task_names() -> Vec<&'static str> {
    TASKS.iter().map(|task| task.name).collect()
}

/// Rejects a name that is not in `known`, the names that are built in.
fn check_builtin_name(kind: &str, name: &str, known: &[&str], at: &EntryPosition<'_>) -> Result<()> {
    if known.contains(&name) {
        return Ok(());
    }
    Err(at.error(format!("unknown {kind} `{name}`")).none_of(name, known.iter().copied()))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backbone {
    /// Directory or GGUF file of the model. The path is absolute or relative to the current directory.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    pub path: PathBuf,
    pub layers: usize,
    /// Repository on the hub. Also set if a local copy is used instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubSource>,
    /// Reason that the backbone could not be identified as the published one. `None` if it was identified or not
    /// checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unidentified: Option<String>,
    /// Rounding of the weights, or `None` if they are used as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<RoundedWeights>,
}

/// Source and weight type of a backbone with rounded weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundedWeights {
    /// Name of the source backbone in the grid.
    #[serde(rename = "of")]
    pub backbone: String,
    pub to: WeightType,
    /// Weights from which repairs are computed.
    pub calibrated: CalibratedOn,
}

/// Collection of texts, with the rule for cutting windows of tokens from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corpus {
    /// File, or directory of shards (see [`Stream`]). The path is absolute or relative to the current directory.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    pub path: PathBuf,
    /// Repository on the hub. Also set if a local copy is used instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubSource>,
    /// Rule for joining rows and drawing windows.
    pub rule: String,
    /// Shards of a streamed corpus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<Stream>,
    /// Maximum number of evaluation windows, counted from the start. Calibration is not limited.
    pub limit: Option<usize>,
    /// Name of the column or field that contains the text, or `None` for the default.
    pub column: Option<String>,
    /// Whether the text is synthetic. Synthetic data never counts as the published text.
    pub generated: bool,
}

impl Corpus {
    pub fn files(&self) -> Vec<PathBuf> {
        match &self.stream {
            None => vec![self.path.clone()],
            Some(stream) => stream.files.values().map(|name| self.path.join(name)).collect(),
        }
    }

    /// Returns the files to read for a seed, in order.
    ///
    /// # Errors
    /// Fails if a required shard is not available, which can happen only for a seed that the grid does not use.
    pub fn files_for_seed(&self, seed: u64) -> Result<Vec<PathBuf>> {
        let Some(stream) = &self.stream else { return Ok(self.files()) };
        let first = stream.shards.opened_shards(stream.count, seed, stream.read);
        first.into_iter().map(|shard| self.shard(shard)).collect()
    }

    /// Returns the file of a shard.
    ///
    /// # Errors
    /// Fails if the shard is not among those selected by `shards_read`, which means that they contain too few tokens.
    pub fn shard(&self, number: usize) -> Result<PathBuf> {
        let stream = self.stream.as_ref();
        let file = stream.and_then(|stream| stream.files.get(&number)).map(|name| self.path.join(name));
        file.ok_or_else(|| {
            let (count, read) = stream.map_or((1, 1), |stream| (stream.count, stream.read));
            Error::missing("the shards selected by `shards_read` contain too few tokens")
                .expected(format!("shard {number} of {count}"))
                .found(format!("`shards_read: {read}`"))
                .hint(format!("set `shards_read: {}`, then run `ghostlab fetch GRID.yaml`", read + 1))
        })
    }
}

fn read_layer_count(folder: &Path) -> Result<usize> {
    let config = Config::read_with_attachments(folder)?;
    // Compare the weights with the config, because a wrong layer count such as 10^7 would produce too many cells.
    model::check_weights(&config, folder)?;
    Ok(config.layers)
}

/// Locates the backbones and reads their layer counts.
pub(super) fn find_backbones(
    defined: BTreeMap<String, NamedEntry<BackboneEntry>>,
    resolver: &InputResolver<'_>,
) -> Result<BTreeMap<String, Backbone>> {
    defined
        .into_iter()
        .map(|(name, NamedEntry { entry, need })| {
            let ResolvedInput { path, hub, .. } =
                need.find(resolver).map_err(|error| match (&entry.source, &need.want) {
                    (Some(source), None) => error.hint(format!("download it from {source}")),
                    _ => error,
                })?;
            let layers = read_layer_count(&path).map_err(|error| error.at(need.position()))?;
            parts::check_tokenizer(&path).map_err(|error| error.at(need.position()))?;
            Ok((name, Backbone { path, layers, hub, unidentified: None, weights: None }))
        })
        .collect()
}

/// Extends an error about a missing input with all other missing inputs, so that they can be fetched at once. Returns
/// other errors unchanged.
pub(super) fn add_other_missing(first: Error, needs: &[InputRef], resolver: &InputResolver<'_>) -> Error {
    if first.kind() != ErrorKind::Missing {
        return first;
    }
    let mut missing: Vec<(&InputRef, Error)> =
        needs.iter().filter_map(|need| Some((need, need.find(resolver).err()?))).collect();
    missing.retain(|(_, error)| error.kind() == ErrorKind::Missing);
    // Combine the hints for all inputs that `ghostlab fetch` downloads.
    let single_hint = |need: &InputRef| input::fetch_hint(&[need], resolver);
    let fetched: Vec<&InputRef> = missing
        .iter()
        .filter(|(need, error)| error.advice().is_some_and(|advice| advice == single_hint(need)))
        .map(|(need, _)| *need)
        .collect();
    let covered: Vec<String> = fetched.iter().map(|need| single_hint(need)).collect();
    missing.retain(|(_, error)| message_and_location(error) != message_and_location(&first));
    if missing.is_empty() {
        return first;
    }
    let errors: Vec<Error> = [first].into_iter().chain(missing.into_iter().map(|(_, error)| error)).collect();
    let lines: Vec<String> = errors
        .iter()
        .map(|error| {
            let ErrorParts { what, location: position, expected, .. } = error.parts();
            let position = position.clone().unwrap_or_default();
            let expected = expected.clone().unwrap_or_default();
            format!("{what} ({position}): {}", expected.replace('\n', " "))
        })
        .collect();
    let mut hints: Vec<String> = Vec::new();
    if !fetched.is_empty() {
        hints.push(input::fetch_hint(&fetched, resolver));
    }
    let others = errors.iter().filter_map(Error::advice).map(str::to_owned);
    hints.extend(others.filter(|advice| !covered.contains(advice)));
    hints.dedup();
    Error::missing(format!("{} inputs of the grid are missing", errors.len()))
        .expected(lines.join("\n"))
        .found("none of them")
        .hint(hints.join("\n"))
}

fn message_and_location(error: &Error) -> (String, Option<String>) {
    (error.parts().what.clone(), error.parts().location.clone())
}

pub(super) fn find_corpora(
    defined: BTreeMap<String, NamedEntry<CorpusEntry>>,
    resolver: &InputResolver<'_>,
) -> Result<BTreeMap<String, Corpus>> {
    defined
        .into_iter()
        .map(|(name, NamedEntry { entry, need })| {
            let ResolvedInput { path, hub, stream } = need.find(resolver)?;
            let CorpusEntry { rule, limit, column, generated, .. } = entry;
            Ok((name, Corpus { path, hub, rule, stream, limit, column, generated }))
        })
        .collect()
}

pub(super) fn find_tasks(
    defined: BTreeMap<String, NamedEntry<TaskEntry>>,
    resolver: &InputResolver<'_>,
) -> Result<BTreeMap<String, TaskData>> {
    defined
        .into_iter()
        .map(|(name, NamedEntry { entry, need })| {
            let ResolvedInput { path, hub, .. } = need.find(resolver)?;
            let task = Task::find(entry.task.as_deref().unwrap_or(&name))?;
            Ok((name, TaskData { source: TaskSource::Builtin { task, path }, hub, generated: entry.generated }))
        })
        .collect()
}
