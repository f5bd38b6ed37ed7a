//! What the names of a grid stand for, as it is defined. Whether that is there is looked for later, and only where it is
//! used.

use std::collections::{BTreeMap, BTreeSet};

use super::at::{At, Positioned};
use super::entry_kind::EntryKind;
use super::limits;
use super::named::{self, Library};
use super::need::{Need, WrittenSource};
use super::schema::{BackboneEntry, CorpusEntry, Schema, TaskEntry};
use super::shards::WrittenShards;
use crate::corpus::Rule;
use crate::error::Result;
use crate::tasks::TASKS;

/// Definitions by name.
#[derive(Debug)]
pub(super) struct Definitions {
    pub(super) backbones: BTreeMap<String, NamedEntry<BackboneEntry>>,
    pub(super) corpora: BTreeMap<String, NamedEntry<CorpusEntry>>,
    pub(super) tasks: BTreeMap<String, NamedEntry<TaskEntry>>,
}

/// An entry, and where what it means may be.
#[derive(Debug)]
pub(super) struct NamedEntry<T> {
    pub(super) entry: T,
    pub(super) need: Need,
}

/// Where names are defined.
pub(super) struct Definers<'a> {
    pub(super) schema: &'a Schema,
    pub(super) root: &'a At<'a>,
    pub(super) library: &'a Library,
}

impl Definers<'_> {
    /// The backbones of these names.
    pub(super) fn backbones<'n>(
        &self,
        used: impl Iterator<Item = &'n Positioned<String>>,
    ) -> Result<BTreeMap<String, NamedEntry<BackboneEntry>>> {
        self.each(EntryKind::Backbone, &self.schema.backbones, used, |_, entry: &BackboneEntry| {
            let BackboneEntry { path, hub, revision, files, .. } = entry;
            let (path, hub, revision) = (path.as_deref(), hub.as_deref(), revision.as_deref());
            Ok(WrittenSource { path, hub, revision, files, shards: None })
        })
    }

    /// The corpora of these names; `seeds` are those by which a grid shuffles their shards.
    pub(super) fn corpora<'n>(
        &self,
        used: impl Iterator<Item = &'n Positioned<String>>,
        seeds: &BTreeMap<&str, BTreeSet<u64>>,
    ) -> Result<BTreeMap<String, NamedEntry<CorpusEntry>>> {
        self.each(EntryKind::Corpus, &self.schema.corpora, used, |(name, at), corpus: &CorpusEntry| {
            known("window rule", &corpus.rule, &rules(), &at.key("rule"))?;
            if let Some(limit) = corpus.limit {
                limits::count(1, limit, "the limit on evaluation windows", &at.key("limit").place())?;
            }
            let CorpusEntry { path, hub, revision, files, rule, shards, shards_read, .. } = corpus;
            let seeds = seeds.get(name).cloned().unwrap_or_default();
            let shards = WrittenShards::read(at, rule, (*shards, *shards_read), files, seeds)?;
            let written = WrittenSource {
                path: path.as_deref(),
                hub: hub.as_deref(),
                revision: revision.as_deref(),
                files,
                shards,
            };
            Ok(written)
        })
    }

    /// The data of the tasks of these names.
    pub(super) fn tasks<'n>(
        &self,
        used: impl Iterator<Item = &'n Positioned<String>>,
    ) -> Result<BTreeMap<String, NamedEntry<TaskEntry>>> {
        let used: Vec<&Positioned<String>> = used.collect();
        let mut data = self.each(EntryKind::Task, &self.schema.tasks, used.into_iter(), |_, entry: &TaskEntry| {
            let TaskEntry { path, hub, revision, files, .. } = entry;
            let (path, hub, revision) = (path.as_deref(), hub.as_deref(), revision.as_deref());
            Ok(WrittenSource { path, hub, revision, files, shards: None })
        })?;
        for (name, NamedEntry { entry, .. }) in &mut data {
            let task = entry.task.get_or_insert_with(|| name.clone());
            known("kind of task", task, &tasks(), &self.root.key("tasks").key(name).key("task"))?;
        }
        Ok(data)
    }

    /// `read` refuses what is wrong with an entry, and says where its files are.
    fn each<'n, T: Clone>(
        &self,
        kind: EntryKind,
        defined: &BTreeMap<String, T>,
        used: impl Iterator<Item = &'n Positioned<String>>,
        read: impl for<'e> Fn((&str, &At<'_>), &'e T) -> Result<WrittenSource<'e>>,
    ) -> Result<BTreeMap<String, NamedEntry<T>>> {
        let mut all = BTreeMap::new();
        for Positioned { value: name, place } in used {
            if all.contains_key(name) {
                continue;
            }
            limits::shown(kind.word(), name, place)?;
            let Some(definition) = defined.get(name) else {
                let inline = defined.keys().map(String::as_str);
                return Err(named::unknown(self.library, kind, name, inline, place.to_string()));
            };
            let at = self.root.key(kind.key()).key(name);
            let need = Need::read(kind, name, &at, read((name, &at), definition)?)?;
            all.insert(name.clone(), NamedEntry { entry: definition.clone(), need });
        }
        Ok(all)
    }
}

/// The names of the window rules.
pub fn rules() -> Vec<&'static str> {
    Rule::ALL.into_iter().map(Rule::name).collect()
}

/// The names of the multiple-choice tasks that can be scored.
pub fn tasks() -> Vec<&'static str> {
    TASKS.iter().map(|task| task.name).collect()
}

/// Refuses a name that is none of those that the program knows.
fn known(kind: &str, name: &str, known: &[&str], at: &At<'_>) -> Result<()> {
    if known.contains(&name) {
        return Ok(());
    }
    Err(at.bad(format!("unknown {kind} `{name}`")).none_of(name, known.iter().copied()))
}
