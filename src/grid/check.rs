//! What the types cannot say: every complaint here points at the line that holds the value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::evaluate::Evaluate;
use super::named::{self, EntryKind, Library};
use super::node::Step::{Item, Key};
use super::node::{Node, Place, Step};
use super::schema::{Corpus, Schema, TaskData};
use super::{Backbone, Grid, Perplexity, Registry, Shown, TaskUse, expand};
use crate::error::{Error, Result, nearest};
use crate::options::Described;
use crate::tasks::DocumentLimit;

/// The most of anything that a grid counts: sequences, tokens of a window, windows. Two of them multiplied fit a u64.
const MOST: usize = 1 << 30;
/// The most tokens of a calibration. The paper's has 262,144; one of this size would take weeks.
pub(super) const MOST_TOKENS: usize = 1 << 32;
/// The most values on an axis, cells of a grid, and characters of a name.
pub(super) const MOST_CELLS: usize = 100_000;
pub(super) const MOST_NAME: usize = 200;

/// Where a grid came from.
pub(super) struct Source {
    /// Its file.
    pub(super) file: PathBuf,
    pub(super) around: Library,
    /// The files of named entries that were read.
    pub(super) entries: Vec<PathBuf>,
    pub(super) profile: Option<String>,
}

/// A value and the place that a complaint about it names.
#[derive(Debug, Clone)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) place: String,
}

pub(super) struct Checker<'a> {
    pub(super) root: &'a Node,
    pub(super) schema: &'a Schema,
    pub(super) registry: &'a dyn Registry,
    pub(super) criteria: Vec<Described>,
    pub(super) recoveries: Vec<Described>,
    source: &'a Source,
}

/// Turns what was written into a grid whose cells can be tried.
pub(super) fn check(
    schema: &Schema,
    root: &Node,
    source: &Source,
    registry: &dyn Registry,
    shown: &Shown<'_>,
) -> Result<Grid> {
    let (criteria, recoveries) = (registry.criteria(), registry.recoveries());
    let checker = Checker { root, schema, registry, criteria, recoveries, source };
    let name = checker.name()?;
    let plan = expand::plan(&checker)?;
    let mut evaluate = checker.evaluations()?;
    evaluate.perplexity.retain(|text| (shown.text)(&text.corpus));
    evaluate.tasks.retain(|task| (shown.task)(&task.name));
    let backbones = checker.backbones(&plan)?;
    let cells = expand::cells(&checker, &plan, &backbones)?;

    let pruned = || cells.iter().filter(|cell| !cell.is_dense());
    let backbone = expand::distinct(cells.iter().map(|cell| &cell.backbone));
    let calibration = expand::distinct(pruned().filter_map(|cell| cell.calibration.as_ref()));
    let texts = evaluate.perplexity.iter().map(|text| &text.corpus);
    let corpora = checker.corpora(calibration.iter().map(|calibration| &calibration.corpus).chain(texts))?;
    Ok(Grid {
        name,
        file: source.file.clone(),
        entries: source.entries.clone(),
        profile: source.profile.clone(),
        backbones: backbones.into_iter().filter(|(name, _)| backbone.contains(name)).collect(),
        corpora,
        tasks: checker.tasks(&evaluate.tasks)?,
        criterion: expand::distinct(pruned().filter_map(|cell| cell.criterion.as_ref())),
        depth: expand::distinct(pruned().map(|cell| &cell.depth)),
        recovery: expand::distinct(pruned().filter_map(|cell| cell.recovery.as_ref())),
        backbone,
        calibration,
        evaluate,
        cells,
    })
}

impl Checker<'_> {
    pub(super) fn place(&self, steps: &[Step<'_>]) -> String {
        self.root.deepest(steps).place.to_string()
    }

    pub(super) fn bad(&self, what: impl Into<String>, steps: &[Step<'_>]) -> Error {
        Error::bad_input(what).at(self.place(steps))
    }

    /// Whether a key is written, at the end of `steps`.
    pub(super) fn has(&self, steps: &[Step<'_>], key: &str) -> bool {
        self.root.deepest(steps).get(key).is_some()
    }

    /// Names stand in tables, on the terminal and in the names of files.
    fn shown(&self, what: &str, name: &str, place: String) -> Result<()> {
        if is_shown(name) {
            return Ok(());
        }
        let start: String = name.chars().take(40).collect();
        Err(Error::bad_input(format!("the name of a {what} cannot be shown"))
            .at(place)
            .expected(format!("1 to {MOST_NAME} bytes without control characters"))
            .found(format!("{} bytes: `{}`", name.len(), start.escape_debug())))
    }

    /// The name becomes a folder below the results, and must not lead out of them.
    fn name(&self) -> Result<String> {
        let stem = self.source.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = self.schema.name.clone().or(stem).unwrap_or_default();
        if is_plain(&name) {
            return Ok(name);
        }
        Err(self
            .bad("the grid's name cannot name a folder", &[Key("name")])
            .expected(format!(
                "a plain name of at most {MOST_NAME} bytes without `/`, `\\` or `:`, not starting with a dot"
            ))
            .found(format!("`{name}`"))
            .hint("the results are written to a folder of this name"))
    }

    /// The backbones that cells may be made of, each with its folder and its number of layers.
    fn backbones(&self, plan: &expand::Expansion) -> Result<BTreeMap<String, Backbone>> {
        let mut backbones = BTreeMap::new();
        for Placed { value: name, place } in plan.backbones() {
            self.shown("backbone", name, place.clone())?;
            let entry = self.schema.backbones.get(name).ok_or_else(|| {
                let inline = self.schema.backbones.keys().map(String::as_str);
                named::unknown(&self.source.around, EntryKind::Backbone, name, inline, place.clone())
            })?;
            let steps = [Key("backbones"), Key(name), Key("path")];
            let path = self.resolve(&entry.path, &steps)?;
            if !path.is_dir() {
                let absent = self.absent("the backbone's folder", "a folder", &path, &steps);
                return Err(match &entry.source {
                    Some(source) => absent.hint(format!("it can be had at {source}")),
                    None => absent,
                });
            }
            let layers = self.registry.layers(&path).map_err(|error| error.at(self.place(&steps)))?;
            backbones.insert(name.clone(), Backbone { path, layers });
        }
        Ok(backbones)
    }

    fn evaluations(&self) -> Result<Evaluate> {
        let (entries, at) = (&self.schema.evaluate, [Key("evaluate")]);
        if self.root.deepest(&at).entries().is_empty() {
            return Err(self
                .bad("the grid evaluates nothing", &at)
                .expected("`perplexity: [{corpus: …, length: …}]` or `tasks: [arc_easy, …]`, or both")
                .found("an empty map"));
        }
        let mut perplexity = Vec::new();
        for (i, entry) in entries.perplexity.iter().enumerate() {
            let at = |key| [Key("evaluate"), Key("perplexity"), Item(i), Key(key)];
            self.known_corpus(&entry.corpus, &at("corpus"))?;
            for length in self.axis(&at("length"), &entry.length)? {
                self.at_least(2, length.value, "the length of an evaluation window", &length.place)?;
                let text = Perplexity { corpus: entry.corpus.clone(), length: length.value };
                // Of one length, the entry is what stands twice.
                let place = if entry.length.len() > 1 { length.place } else { self.place(&at("corpus")[..3]) };
                perplexity.push(Placed { value: text, place });
            }
        }
        let tasks: Vec<TaskUse> = entries.tasks.iter().map(|task| task.0.clone()).collect();
        // A list that is written out and empty is a mistake; one that is left out is not.
        if self.has(&at, "perplexity") {
            self.distinct(&[at[0], Key("perplexity")], &perplexity)?;
        }
        if self.has(&at, "tasks") {
            self.axis(&[at[0], Key("tasks")], &tasks)?;
        }
        Ok(Evaluate { perplexity: perplexity.into_iter().map(|text| text.value).collect(), tasks })
    }

    /// The corpora that calibration and evaluation use.
    fn corpora<'n>(&self, used: impl Iterator<Item = &'n String>) -> Result<BTreeMap<String, Corpus>> {
        let used: Vec<&String> = used.collect();
        let mut corpora = BTreeMap::new();
        for (name, corpus) in self.schema.corpora.iter().filter(|(name, _)| used.contains(name)) {
            let at = |key| [Key("corpora"), Key(name), Key(key)];
            self.shown("corpus", name, self.place(&at("path")))?;
            let rules = self.registry.rules();
            if !rules.contains(&corpus.rule.as_str()) {
                return Err(self.unknown("window rule", &corpus.rule, rules.iter().copied(), &at("rule")));
            }
            if let Some(limit) = corpus.limit {
                self.at_least(1, limit, "the limit on evaluation windows", &self.place(&at("limit")))?;
            }
            let path = self.resolve(&corpus.path, &at("path"))?;
            if !path.is_file() {
                return Err(self.absent("the corpus", "a file", &path, &at("path")));
            }
            corpora.insert(name.clone(), Corpus { path, ..corpus.clone() });
        }
        Ok(corpora)
    }

    /// The data of the tasks that are scored.
    fn tasks(&self, used: &[TaskUse]) -> Result<BTreeMap<String, TaskData>> {
        let mut tasks = BTreeMap::new();
        for (i, entry) in used.iter().enumerate() {
            let at = |key| [Key("evaluate"), Key("tasks"), Item(i), Key(key)];
            self.shown("task", &entry.name, self.place(&at("name")))?;
            let Some(data) = self.schema.tasks.get(&entry.name) else {
                let inline = self.schema.tasks.keys().map(String::as_str);
                let place = self.place(&at("name"));
                return Err(named::unknown(&self.source.around, EntryKind::Task, &entry.name, inline, place));
            };
            if let Some(length) = entry.max_length {
                let place = self.place(&at("max_length"));
                self.at_least(1, length, "the number of tokens that a backbone sees", &place)?;
            }
            if let Some(limit) = entry.limit {
                DocumentLimit::new(limit).map_err(|error| error.at(self.place(&at("limit"))))?;
            }
            let of = |key| [Key("tasks"), Key(entry.name.as_str()), Key(key)];
            let known = self.registry.tasks();
            let task = data.task.as_ref().unwrap_or(&entry.name);
            if !known.contains(&task.as_str()) {
                return Err(self.unknown("kind of task", task, known, &of("task")));
            }
            let path = self.resolve(&data.path, &of("path"))?;
            if !path.exists() {
                return Err(self.absent("the task's data", "a file or a folder", &path, &of("path")));
            }
            let found = TaskData { path, task: Some(task.clone()), ..data.clone() };
            tasks.insert(entry.name.clone(), found);
        }
        Ok(tasks)
    }

    pub(super) fn known_corpus(&self, name: &str, steps: &[Step<'_>]) -> Result<()> {
        if self.schema.corpora.contains_key(name) {
            return Ok(());
        }
        let inline = self.schema.corpora.keys().map(String::as_str);
        Err(named::unknown(&self.source.around, EntryKind::Corpus, name, inline, self.place(steps)))
    }

    pub(super) fn at_least(&self, least: usize, found: usize, what: &str, place: &str) -> Result<()> {
        if found > MOST {
            return Err(Error::bad_input(format!("{what} is too large"))
                .at(place)
                .expected(format!("{MOST} or less"))
                .found(found.to_string()));
        }
        if found >= least {
            return Ok(());
        }
        let error = Error::bad_input(format!("{what} is too small")).at(place).expected(format!("{least} or more"));
        let error = error.found(found.to_string());
        // A lone token has nothing before it that could predict it.
        Err(if least == 2 { error.hint("one token alone predicts nothing") } else { error })
    }

    fn unknown<'n>(
        &self,
        kind: &str,
        name: &str,
        known: impl IntoIterator<Item = &'n str>,
        steps: &[Step<'_>],
    ) -> Error {
        let known: Vec<&str> = known.into_iter().collect();
        let error = self.bad(format!("unknown {kind} `{name}`"), steps).found(format!("`{name}`"));
        let error = error.expected(format!("one of {}", known.join(", ")));
        match nearest(name, known) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    }

    fn absent(&self, what: &str, kind: &str, path: &Path, steps: &[Step<'_>]) -> Error {
        let found = if path.exists() { "something else of that name" } else { "nothing" };
        Error::missing(format!("{what} is not there"))
            .at(self.place(steps))
            .expected(format!("{kind} at {}", path.display()))
            .found(found)
            .hint(match &self.root.deepest(steps).place {
                Place::File { file, .. } if **file == self.source.file => {
                    "a path in a grid starts from the grid file's folder"
                }
                Place::File { .. } => "a path in the file of an entry starts from that file's folder",
                Place::Set(_) => "a path in an override starts from the current folder",
            })
    }

    /// A path in a file starts from the file's folder, one on the command line from the current folder.
    fn resolve(&self, path: &Path, steps: &[Step<'_>]) -> Result<PathBuf> {
        Ok(match &self.root.deepest(steps).place {
            Place::File { file, .. } => file.parent().unwrap_or(Path::new("")).join(path),
            Place::Set(_) => path.to_owned(),
        })
    }
}

/// Whether a name can be printed in a line.
fn is_shown(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= MOST_NAME && !name.contains(char::is_control)
}

/// Whether a folder can be called so, wherever it is made.
pub(super) fn is_plain(name: &str) -> bool {
    is_shown(name) && !name.starts_with('.') && name.trim() == name && !name.contains(['/', '\\', ':'])
}
