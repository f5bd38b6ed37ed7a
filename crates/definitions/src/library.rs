//! Library of task definitions: the tasks, groups and tags in folders. Includes are resolved as in
//! lm-evaluation-harness.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use ghostlab_core::error::{Error, Result, nearest};
use serde::{Deserialize, Serialize};

use crate::aggregate::GroupMetric;
use crate::definition::Definition;
use crate::value::Value;
use crate::yaml::{Node, SourceLocation, Tree, read_file, texts, value_error};

/// Keys that describe the group itself. Other keys in a group file override settings of its tasks.
const GROUP_KEYS: [&str; 5] = ["group", "group_alias", "task", "aggregate_metric_list", "metadata"];
/// Maximum nesting depth of groups. A group that exceeds it is reported as containing itself.
const MAX_DEPTH: usize = 30;
/// Maximum number of members in a group, including those of nested groups. A member that is reachable through several
/// nested groups is counted several times.
const MAX_MEMBERS: usize = 20_000;

/// Named entry of a library.
#[derive(Debug, Clone)]
pub enum Entry {
    /// Task definition with its includes resolved. A task that is implemented as a Python `class` is rejected only when
    /// it is selected.
    Task(Node),
    Group(Node),
    /// Names of the tasks that have the tag.
    Tag(BTreeSet<String>),
}

/// Task, group and tag definitions, keyed by name.
#[derive(Debug, Clone, Default)]
pub struct Library {
    entries: BTreeMap<String, Entry>,
    /// Errors for the files that could not be read, one line each.
    skipped: Vec<String>,
}

/// Group with all of its tasks, including those in nested groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Name of the group. A group `inner` that is defined inside `outer` is called `outer::inner`.
    pub name: String,
    /// Name to show in tables.
    pub alias: String,
    /// Names of all tasks in the group.
    pub tasks: Vec<String>,
    pub metrics: Vec<GroupMetric>,
}

/// Requested tasks and the groups that contain them.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Requested tasks, without duplicates.
    pub tasks: Vec<Definition>,
    /// Groups, with outer groups before inner ones.
    pub groups: Vec<Group>,
}

impl Library {
    /// Reads all definitions (`*.yaml`) in folders. If a folder defines a name more than once, the first definition
    /// wins. Definitions in later folders override those in earlier folders. Files that cannot be read or that lack a
    /// task or group name are skipped (see [`Self::skipped`]).
    ///
    /// # Errors
    /// Fails if a folder cannot be read.
    pub fn from_folders(folders: &[&Path]) -> Result<Self> {
        let mut all = Self::default();
        for folder in folders {
            let mut selected = Self::default();
            for path in yaml_files(folder)? {
                match read_with_includes(&path) {
                    Ok(node) => selected.register(node),
                    Err(error) => all.skipped.push(error.one_line()),
                }
            }
            all.entries.extend(selected.entries);
        }
        Ok(all)
    }

    /// Selects the tasks and groups in the file `path`, or in the folder `path` if no library `folder` is given.
    /// Otherwise, selects the task, group or tag `name` in `folder`. Returns `None` if `path` does not exist and no
    /// `folder` is given.
    ///
    /// # Errors
    /// Fails in the same cases as [`Library::from_folders`] and [`Library::select`].
    pub fn find_at(path: &Path, name: &str, folder: Option<&Path>) -> Option<Result<Selection>> {
        if path.is_file() {
            return Some(Self::select_file(path, folder));
        }
        if path.is_dir() && folder.is_none() {
            return Some(Self::from_folders(&[path]).and_then(|library| library.all()));
        }
        folder.map(|folder| Self::from_folders(&[folder])?.select(&[name]))
    }

    fn select_file(path: &Path, folder: Option<&Path>) -> Result<Selection> {
        let file_name = path.display().to_string();
        let is_group = read_with_includes(path)?.get("group").is_some();
        // Members of a group are looked up in the folder of the group's file.
        let folder_of_group = folder.or_else(|| path.parent().filter(|_| is_group));
        Self::from_folders(&folder_of_group.into_iter().collect::<Vec<_>>())?.select(&[&file_name])
    }

    fn register(&mut self, node: Node) {
        if node.get("class").is_none() && node.get("group").is_some() {
            if let Some(name) = node.get("group").and_then(Node::text).map(str::to_owned) {
                self.entries.entry(name).or_insert(Entry::Group(node));
            }
            return;
        }
        let Some(name) = node.get("task").and_then(Node::text).map(str::to_owned) else { return };
        if self.entries.contains_key(&name) {
            return;
        }
        for tag in node.get("tag").map(texts).unwrap_or_default() {
            if let Entry::Tag(tasks) = self.entries.entry(tag).or_insert_with(|| Entry::Tag(BTreeSet::new())) {
                tasks.insert(name.clone());
            }
        }
        self.entries.insert(name, Entry::Task(node));
    }

    /// Iterates over all names and entries.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Returns a one-line error for each file that could not be read.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// Selects all top-level groups with their tasks, and all tasks that belong to no group.
    ///
    /// # Errors
    /// Fails if a definition needs an unsupported feature.
    pub fn all(&self) -> Result<Selection> {
        let mut selection = Selection::default();
        let mut inner: BTreeSet<String> = BTreeSet::new();
        let mut groups: Vec<SelectionCollector<'_>> = Vec::new();
        for (name, _) in self.entries.iter().filter(|(_, entry)| matches!(entry, Entry::Group(_))) {
            let nodes = SelectionCollector::new(self).add_by_name(name)?;
            inner.extend(nodes.groups.iter().skip(1).map(|group| group.name.clone()));
            groups.push(nodes);
        }
        groups.retain(|nodes| nodes.groups.first().is_some_and(|group| !inner.contains(&group.name)));
        let mut seen: BTreeMap<String, Node> = BTreeMap::new();
        for nodes in groups {
            selection.groups.extend(nodes.groups);
            for (name, node) in nodes.tasks {
                seen.entry(name).or_insert(node);
            }
        }
        for (name, entry) in &self.entries {
            if let Entry::Task(node) = entry {
                seen.entry(name.clone()).or_insert_with(|| node.clone());
            }
        }
        selection.tasks = seen.values().map(Definition::read).collect::<Result<_>>()?;
        Ok(selection)
    }

    /// Selects tasks and groups by file path, or by the name of a task, group or tag.
    ///
    /// # Errors
    /// Fails if a name is unknown, a task is requested twice, or a definition needs an unsupported feature.
    pub fn select(&self, names: &[&str]) -> Result<Selection> {
        let mut selection = Selection::default();
        let mut sources: BTreeMap<String, String> = BTreeMap::new();
        for name in names {
            let nodes = SelectionCollector::new(self).add_by_name(name)?;
            for (task, node) in nodes.tasks {
                if let Some(other) = sources.get(&task) {
                    let same = Error::bad_input(format!("the task `{task}` is requested twice"));
                    return Err(same.at(&node.location).found(format!("the task in both `{other}` and `{name}`")));
                }
                selection.tasks.push(Definition::read(&node)?);
                sources.insert(task, (*name).to_owned());
            }
            selection.groups.extend(nodes.groups);
        }
        Ok(selection)
    }
}

/// Lists the YAML files in a folder and its subfolders. They are sorted by full path, as in lm-evaluation-harness.
fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| read_error(&error, &folder))? {
            let entry = entry.map_err(|error| read_error(&error, &folder))?;
            let path = entry.path();
            let name = entry.file_name();
            let kind = entry.file_type().map_err(|error| read_error(&error, &folder))?;
            if kind.is_dir() && name != "__pycache__" && name != ".ipynb_checkpoints" {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "yaml") && path.is_file() {
                found.push(path);
            }
        }
    }
    found.sort_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
    Ok(found)
}

fn read_error(error: &std::io::Error, folder: &Path) -> Error {
    Error::folder_io("read", folder, error)
}

/// Reads a file and its includes. Keys of later includes override those of earlier ones, and keys of the file itself
/// override those of all includes. `task_list` is not inherited.
///
/// # Errors
/// Fails if a file cannot be read or is included twice.
pub fn read_with_includes(path: &Path) -> Result<Node> {
    merge_includes(path, &mut BTreeSet::new())
}

fn merge_includes(path: &Path, seen: &mut BTreeSet<PathBuf>) -> Result<Node> {
    let canonical = path.canonicalize().map_err(|error| Error::io("open", path, &error))?;
    if !seen.insert(canonical) {
        return Err(Error::bad_input("a definition includes a file twice")
            .at(path.display())
            .hint("include each file once"));
    }
    let mut node = read_file(path)?;
    let Some(include) = node.take("include") else { return Ok(node) };
    let mut merged = Node::empty(node.location.clone());
    for name in include.items() {
        let Some(text) = name.text() else {
            return Err(value_error("include", "a file, or a list of files", name));
        };
        let base = path.parent().unwrap_or_else(|| Path::new("."));
        let mut other = merge_includes(&base.join(text), seen).map_err(|error| error.at(&include.location))?;
        other.take("task_list");
        merged.set_all(&other);
    }
    merged.set_all(&node);
    Ok(merged)
}

/// Collector of selected tasks and groups, which applies the settings of a group to its tasks.
struct SelectionCollector<'a> {
    library: &'a Library,
    tasks: Vec<(String, Node)>,
    /// Names in `tasks`, for fast lookup.
    known: BTreeSet<String>,
    groups: Vec<Group>,
    /// Number of group members expanded so far, for [`MAX_MEMBERS`].
    members: usize,
}

impl<'a> SelectionCollector<'a> {
    fn new(library: &'a Library) -> Self {
        Self { library, tasks: Vec::new(), known: BTreeSet::new(), groups: Vec::new(), members: 0 }
    }

    fn add_by_name(mut self, name: &str) -> Result<Self> {
        let empty = Node::empty(SourceLocation { file: name.into(), line: 1 });
        match self.library.entries.get(name) {
            Some(entry) => {
                self.add_entry(name, entry, &empty, 0)?;
            }
            None if Path::new(name).is_file() => {
                let node = read_with_includes(Path::new(name))?;
                if node.get("group").is_some() {
                    let entry_name = node.get("group").and_then(Node::text).unwrap_or(name).to_owned();
                    self.add_group(&entry_name, &node, &empty, 0)?;
                } else {
                    let entry_name = node.get("task").and_then(Node::text).unwrap_or(name).to_owned();
                    self.add_task(entry_name, &node, &empty);
                }
            }
            None => return Err(self.unknown_name_error(name)),
        }
        Ok(self)
    }

    fn unknown_name_error(&self, name: &str) -> Error {
        let near = nearest(name, self.library.entries.keys().map(String::as_str));
        let error = Error::bad_input(format!("unknown task, group, tag or file `{name}`"));
        error.hint(
            near.map_or(
                "set `folder` in the grid, or pass `--definitions FOLDER`, to the folder that contains its definition"
                    .to_owned(),
                |near| format!("did you mean `{near}`?"),
            ),
        )
    }

    fn add_task(&mut self, name: String, node: &Node, overrides: &Node) -> String {
        if self.known.insert(name.clone()) {
            let mut node = node.clone();
            node.set_all(overrides);
            node.set(
                &Value::from("task"),
                Node { tree: Tree::Scalar(Value::from(&*name)), location: node.location.clone() },
            );
            self.tasks.push((name.clone(), node));
        }
        name
    }

    fn add_entry(&mut self, name: &str, entry: &Entry, overrides: &Node, depth: usize) -> Result<Vec<String>> {
        match entry {
            Entry::Task(node) => Ok(vec![self.add_task(name.to_owned(), node, overrides)]),
            Entry::Group(node) => self.add_group(name, node, overrides, depth),
            Entry::Tag(tasks) => {
                let mut names = Vec::new();
                for task in tasks {
                    if let Some(Entry::Task(node)) = self.library.entries.get(task) {
                        names.push(self.add_task(task.clone(), node, overrides));
                    }
                }
                Ok(names)
            }
        }
    }

    fn add_group(&mut self, name: &str, node: &Node, overrides: &Node, depth: usize) -> Result<Vec<String>> {
        if depth > MAX_DEPTH {
            return Err(Error::bad_input(format!("the group `{name}` contains itself")).at(&node.location));
        }
        let index = self.groups.len();
        let alias = node.get("group_alias").and_then(Node::text).unwrap_or(name).to_owned();
        self.groups.push(Group { name: name.to_owned(), alias, tasks: Vec::new(), metrics: group_metrics(node)? });
        // All other keys are settings for the group's tasks. An outer group may override them.
        let mut task_overrides = Node::empty(node.location.clone());
        for (key, value) in node.pairs() {
            if !GROUP_KEYS.iter().any(|known_key| key.as_text() == Some(known_key)) {
                task_overrides.set(key, value.clone());
            }
        }
        task_overrides.set_all(overrides);
        let mut names: Vec<String> = Vec::new();
        let mut known: BTreeSet<String> = BTreeSet::new();
        let members: &[Node] = match node.get("task").map(|node| &node.tree) {
            Some(Tree::List(items)) => items,
            _ => &[],
        };
        for member in members {
            self.members += 1;
            if self.members > MAX_MEMBERS {
                return Err(Error::bad_input(format!("the group `{name}` contains too many tasks and groups"))
                    .at(&member.location)
                    .expected(format!("at most {MAX_MEMBERS} members, including those of nested groups")));
            }
            let tasks = self.add_member(name, member, &task_overrides, depth)?;
            names.extend(tasks.into_iter().filter(|task| known.insert(task.clone())));
        }
        self.groups[index].tasks.clone_from(&names);
        Ok(names)
    }

    fn add_member(&mut self, group: &str, member: &Node, overrides: &Node, depth: usize) -> Result<Vec<String>> {
        let library = self.library;
        if let Some(name) = member.text() {
            let entry = library.entries.get(name).ok_or_else(|| self.unknown_name_error(name).at(&member.location))?;
            return self.add_entry(name, entry, overrides, depth + 1);
        }
        let mut member_overrides = overrides.clone();
        if let Some(name) = member.get("group").and_then(Node::text) {
            let Some(entry) = library.entries.get(name) else {
                return self.add_group(&format!("{group}::{name}"), member, overrides, depth + 1);
            };
            for (key, value) in member.pairs().iter().filter(|(key, _)| key.as_text() != Some("group")) {
                member_overrides.set(key, value.clone());
            }
            return self.add_entry(name, entry, &member_overrides, depth + 1);
        }
        let Some(name) = member.get("task").and_then(Node::text) else {
            return Err(value_error("task", "names, or mappings with `task` or `group`", member));
        };
        member_overrides.set_all(member);
        match library.entries.get(name) {
            None => Ok(vec![self.add_task(
                format!("{group}::{name}"),
                &member_overrides,
                &Node::empty(member_overrides.location.clone()),
            )]),
            Some(Entry::Tag(tasks)) if tasks.len() > 1 => {
                // lm-evaluation-harness would give every task the name of the tag.
                Err(Error::bad_input(format!("a group cannot override settings of the tag `{name}`"))
                    .at(&member.location)
                    .hint("list the tasks individually, or set the overrides for the whole group"))
            }
            Some(entry) => {
                member_overrides.take("task");
                self.add_entry(name, entry, &member_overrides, depth + 1)
            }
        }
    }
}

fn group_metrics(node: &Node) -> Result<Vec<GroupMetric>> {
    let Some(list) = node.get("aggregate_metric_list").filter(|node| !node.is_null()) else { return Ok(Vec::new()) };
    list.items().iter().map(read_group_metric).collect()
}

fn read_group_metric(item: &Node) -> Result<GroupMetric> {
    let mut metric = GroupMetric { metric: String::new(), filters: None, by_size: true };
    for (key, value) in item.pairs() {
        match (key.as_text(), &value.tree) {
            (Some("metric"), _) if value.text().is_some() => {
                value.text().unwrap_or_default().clone_into(&mut metric.metric);
            }
            (Some("filter_list"), Tree::Scalar(Value::None)) => {}
            (Some("filter_list"), Tree::List(_) | Tree::Scalar(Value::Text(_))) => {
                metric.filters = Some(texts(value));
            }
            (Some("weight_by_size"), Tree::Scalar(Value::Bool(by_size))) => metric.by_size = *by_size,
            (Some("aggregation"), Tree::Scalar(Value::Text(name))) if name == "mean" => {}
            (Some("aggregation"), _) => {
                return Err(value_error("aggregation", "`mean`, the only supported aggregation for groups", value));
            }
            _ => return Err(value_error(&key.text(), "metric, filter_list, weight_by_size or aggregation", value)),
        }
    }
    if metric.metric.is_empty() {
        Err(value_error("aggregate_metric_list", "entries with `metric`", item))
    } else {
        Ok(metric)
    }
}

#[cfg(test)]
mod tests;
