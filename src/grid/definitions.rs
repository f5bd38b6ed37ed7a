//! What the names of a grid stand for, as it is defined. Whether that is there is looked for later, and only where it is
//! used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::at::{At, Placed};
use super::limits;
use super::named::{self, EntryKind, Library};
use super::node::Place;
use super::schema::{BackboneEntry, Corpus, Schema, TaskData};
use crate::error::{Error, Result, nearest};

/// Definitions by name. Each has the place of its path, which starts from the current folder.
#[derive(Debug)]
pub(super) struct Definitions {
    pub(super) backbones: BTreeMap<String, Placed<BackboneEntry>>,
    pub(super) corpora: BTreeMap<String, Placed<Corpus>>,
    pub(super) tasks: BTreeMap<String, Placed<TaskData>>,
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
        used: impl Iterator<Item = &'n Placed<String>>,
    ) -> Result<BTreeMap<String, Placed<BackboneEntry>>> {
        self.each(EntryKind::Backbone, &self.schema.backbones, used, |at, entry: &BackboneEntry| {
            let at = at.key("path");
            Ok(at.placed(BackboneEntry { path: from_here(&entry.path, &at.place()), ..entry.clone() }))
        })
    }

    /// The corpora of these names, each cut by one of `rules`.
    pub(super) fn corpora<'n>(
        &self,
        used: impl Iterator<Item = &'n Placed<String>>,
        rules: &[&str],
    ) -> Result<BTreeMap<String, Placed<Corpus>>> {
        self.each(EntryKind::Corpus, &self.schema.corpora, used, |at, corpus: &Corpus| {
            known("window rule", &corpus.rule, rules, &at.key("rule"))?;
            if let Some(limit) = corpus.limit {
                limits::count(1, limit, "the limit on evaluation windows", &at.key("limit").place())?;
            }
            let at = at.key("path");
            Ok(at.placed(Corpus { path: from_here(&corpus.path, &at.place()), ..corpus.clone() }))
        })
    }

    /// The data of the tasks of these names, each one of `kinds`.
    pub(super) fn tasks<'n>(
        &self,
        used: impl Iterator<Item = &'n Placed<String>>,
        kinds: &[&str],
    ) -> Result<BTreeMap<String, Placed<TaskData>>> {
        let used: Vec<&Placed<String>> = used.collect();
        let mut tasks = self.each(EntryKind::Task, &self.schema.tasks, used.into_iter(), |at, data: &TaskData| {
            let at = at.key("path");
            Ok(at.placed(TaskData { path: from_here(&data.path, &at.place()), ..data.clone() }))
        })?;
        for (name, Placed { value: data, .. }) in &mut tasks {
            let task = data.task.get_or_insert_with(|| name.clone());
            known("kind of task", task, kinds, &self.root.key("tasks").key(name).key("task"))?;
        }
        Ok(tasks)
    }

    fn each<'n, T>(
        &self,
        kind: EntryKind,
        defined: &BTreeMap<String, T>,
        used: impl Iterator<Item = &'n Placed<String>>,
        read: impl Fn(&At<'_>, &T) -> Result<Placed<T>>,
    ) -> Result<BTreeMap<String, Placed<T>>> {
        let mut all = BTreeMap::new();
        for Placed { value: name, place } in used {
            if all.contains_key(name) {
                continue;
            }
            limits::shown(kind.word(), name, place)?;
            let Some(definition) = defined.get(name) else {
                let inline = defined.keys().map(String::as_str);
                return Err(named::unknown(self.library, kind, name, inline, place.to_string()));
            };
            all.insert(name.clone(), read(&self.root.key(kind.key()).key(name), definition)?);
        }
        Ok(all)
    }
}

/// A path in a file starts from the file's folder, one on the command line from the current folder.
fn from_here(path: &Path, place: &Place) -> PathBuf {
    match place {
        Place::File { file, .. } => file.parent().unwrap_or(Path::new("")).join(path),
        Place::Set(_) => path.to_owned(),
    }
}

/// Refuses a name that is none of those that the program knows.
fn known(kind: &str, name: &str, known: &[&str], at: &At<'_>) -> Result<()> {
    if known.contains(&name) {
        return Ok(());
    }
    let error = at.bad(format!("unknown {kind} `{name}`")).found(format!("`{name}`"));
    let error: Error = error.expected(format!("one of {}", known.join(", ")));
    Err(match nearest(name, known.iter().copied()) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error,
    })
}
