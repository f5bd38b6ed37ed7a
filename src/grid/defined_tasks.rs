//! Tasks of a grid that use lm-evaluation-harness definitions: the selected definitions and the locations of their
//! rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use ghostlab_definitions::definition::Data;
use ghostlab_definitions::generation::GenerationConfig;
use ghostlab_definitions::metric::{Kind, Output};
use ghostlab_definitions::{Definition, FileRows, Group, Library, Selection, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::eval_task::{EvalTask, TaskData, TaskSettings, TaskSource};
use super::input::{InputRef, InputResolver, ResolvedInput, resolve_path};
use super::validate::{self, EntryPosition};
use super::yaml::Positioned;
use crate::error::{Error, Result};
use crate::hub::{FilePattern, Repo, RepoFiles, RepoKind, Source};
use crate::metric::{Metric, MetricEntry, PairedTest};
use crate::sandbox::{self, Probe};
use crate::tasks::DocumentLimit;

/// Group of tasks with shared settings and aggregate scores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupUse {
    pub group: Group,
    pub how: TaskSettings,
}

impl GroupUse {
    /// Returns a task of the group with the settings of the group.
    pub fn task(&self, name: &str) -> EvalTask {
        EvalTask { name: name.to_owned(), how: self.how.clone(), defined: true }
    }
}

impl fmt::Display for GroupUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.group.name, self.how)
    }
}

/// Result column for a metric of a task or group.
#[derive(Debug, Clone, PartialEq)]
pub struct DefinedColumn {
    /// Name of the task or group.
    pub name: String,
    /// Settings of the task or group.
    pub how: TaskSettings,
    pub metric: &'static str,
    pub filter: String,
    /// Metric that compares the scored answers with those of the dense model; `None` for the score itself.
    pub flips: Option<&'static MetricEntry>,
}

impl DefinedColumn {
    /// Returns the metric of the column: the score, or the flips of the scored answers.
    pub fn metric(&self) -> Metric {
        let scored = self.scored();
        self.flips.map_or_else(|| scored.clone(), |flips| flips.metric_on(&scored))
    }

    /// Returns the column for the flips of the scored answers. Returns `None` if the metric does not mark answers as
    /// right or wrong.
    pub fn with_flips(&self, flips: &'static MetricEntry) -> Option<Self> {
        (self.metric().test == Some(PairedTest::Mcnemar)).then(|| Self { flips: Some(flips), ..self.clone() })
    }

    /// Returns the metric that scores the answers. Its ID omits the document limit, as for built-in tasks. Its label
    /// includes the limit.
    pub fn scored(&self) -> Metric {
        let Self { name, how, metric, filter, .. } = self;
        let mut scored = Metric::defined(&format!("{name}{}", how.without_extent()), metric, filter);
        scored.label = Metric::defined(&format!("{name}{how}"), metric, filter).label;
        scored
    }
}

/// Returns a column for each filter and metric of a definition. `name` is the name of the task or group.
pub fn columns(name: &str, how: &TaskSettings, definition: &Definition) -> Vec<DefinedColumn> {
    let column = |filter: &str, kind: Kind| DefinedColumn {
        name: name.to_owned(),
        how: how.clone(),
        metric: kind.name(),
        filter: filter.to_owned(),
        flips: None,
    };
    let filters = definition.filters.iter();
    filters.flat_map(|filter| definition.metrics.iter().map(|metric| column(&filter.name, metric.kind))).collect()
}

/// Location of a definition's rows.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum DataEntry {
    /// Directory or file with the rows.
    Path(PathBuf),
    /// Files by split.
    Splits(BTreeMap<String, SplitFiles>),
}

/// One or more files.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Files")]
pub(super) enum SplitFiles {
    One(PathBuf),
    More(Vec<PathBuf>),
}

/// Task given by its name or by a map with options, or all tasks of a definition.
#[derive(Debug, Clone)]
pub(super) struct TaskUseEntry {
    /// Name in `tasks`, or the file, folder or name of a definition.
    pub(super) name: String,
    pub(super) how: TaskSettings,
    /// Location of the definition and its rows; `None` for a name in `tasks`.
    pub(super) definition: Option<DefinitionEntry>,
}

/// Location of the definition in an entry of `evaluate.tasks`, and of its rows.
#[derive(Debug, Clone)]
pub(super) struct DefinitionEntry {
    pub(super) folder: Option<PathBuf>,
    pub(super) data: Option<DataEntry>,
    pub(super) revision: Option<String>,
    pub(super) generated: bool,
}

/// Task definition, with the source of its rows.
#[derive(Debug, Clone)]
pub(super) struct DefinedTask {
    definition: Definition,
    origin: RowsOrigin,
    generated: bool,
}

#[derive(Debug, Clone)]
enum RowsOrigin {
    /// Files by split, and the position at which they are listed.
    Files(BTreeMap<String, Vec<PathBuf>>, String),
    Input(Box<InputRef>),
}

/// Resolved task definitions in a grid.
#[derive(Debug, Clone, Default)]
pub(super) struct ResolvedDefinitions {
    pub(super) uses: Vec<EvalTask>,
    pub(super) groups: Vec<GroupUse>,
    pub(super) tasks: BTreeMap<String, DefinedTask>,
}

impl ResolvedDefinitions {
    /// Reads the definitions that the entries refer to. Skips entries that name a built-in task.
    ///
    /// # Errors
    /// Fails if a definition is missing or uses an unsupported feature. The error gives the key, file and line.
    pub(super) fn read(entries: &[(EntryPosition<'_>, &TaskUseEntry)]) -> Result<Self> {
        let mut resolved = Self::default();
        let mut labels: Vec<Positioned<String>> = Vec::new();
        for (at, TaskUseEntry { name, how, definition }) in entries {
            let Some(entry) = definition else { continue };
            let Selection { tasks, groups } = select_definitions(at, name, entry.folder.as_deref())?;
            if tasks.is_empty() {
                return Err(at
                    .key("definition")
                    .error(format!("no task definition in `{name}`"))
                    .expected("a file or folder that defines a task"));
            }
            for definition in tasks {
                check_supported(&definition)?;
                let task_use = EvalTask { name: definition.name.clone(), how: how.clone(), defined: true };
                validate::check_printable("task", &task_use.name, &at.position())?;
                labels.push(at.with_position(task_use.to_string()));
                resolved.uses.push(task_use);
                let defined = DefinedTask {
                    origin: find_rows_origin(at, entry, &definition)?,
                    generated: entry.generated,
                    definition,
                };
                let other = resolved.tasks.get(&defined.definition.name);
                if other.is_some_and(|other| other.definition != defined.definition) {
                    return Err(at.error(format!("conflicting definitions of task `{}`", defined.definition.name)));
                }
                resolved.tasks.entry(defined.definition.name.clone()).or_insert(defined);
            }
            for group in groups.into_iter().filter(|group| !group.metrics.is_empty()) {
                let group_use = GroupUse { group, how: how.clone() };
                labels.push(at.with_position(group_use.to_string()));
                resolved.groups.push(group_use);
            }
        }
        validate::check_unique("evaluate.tasks", &labels)?;
        Ok(resolved)
    }

    /// Returns the inputs of the tasks for which `is_included` returns true. Tasks whose row files are listed have no
    /// input.
    pub(super) fn needs(&self, is_included: &dyn Fn(&str) -> bool) -> Vec<InputRef> {
        let tasks = self.tasks.iter().filter(|(name, _)| is_included(name));
        tasks
            .filter_map(|(name, defined)| match &defined.origin {
                RowsOrigin::Input(need) => {
                    let mut need = (**need).clone();
                    need.want = need
                        .want
                        .take()
                        .map(|want| add_split_patterns(want, &defined.definition, &self.used_splits(name)));
                    Some(need)
                }
                RowsOrigin::Files(..) => None,
            })
            .collect()
    }

    /// Returns the splits that a task uses: the evaluated split and, if there are shots, the split for few-shot
    /// examples.
    fn used_splits(&self, name: &str) -> Vec<&str> {
        let definition = &self.tasks[name].definition;
        let uses = self.uses.iter().filter(|task| task.name == name);
        let example_splits =
            uses.filter(|task| definition.shots(task.how.shots) > 0).filter_map(|_| definition.example_split());
        let all: BTreeSet<&str> = example_splits.chain([definition.evaluated_split()]).collect();
        all.into_iter().collect()
    }

    /// Locates the rows of each task.
    ///
    /// # Errors
    /// Fails if a split is missing.
    pub(super) fn locate_rows(&self, resolver: &InputResolver<'_>) -> Result<BTreeMap<String, TaskData>> {
        let found = self.tasks.iter().map(|(name, DefinedTask { definition, origin, generated })| {
            let splits = self.used_splits(name);
            let (rows, hub) = match origin {
                RowsOrigin::Files(files, position) => (find_listed_rows(files, &splits, position)?, None),
                RowsOrigin::Input(need) => {
                    let mut need = (**need).clone();
                    need.want = need.want.take().map(|want| add_split_patterns(want, definition, &splits));
                    let ResolvedInput { path, hub, .. } = need.find(resolver)?;
                    let rows = if path.is_file() {
                        single_split(path, &splits, &need.position())?
                    } else {
                        FileRows::find_in(&path, &definition.data, &splits)?
                    };
                    (rows, hub)
                }
            };
            let source = TaskSource::Defined { definition: Box::new(definition.clone()), rows };
            Ok((name.clone(), TaskData { source, hub, generated: *generated }))
        });
        found.collect::<Result<_>>().map_err(|error| error.at("evaluate.tasks"))
    }
}

/// Rejects a definition with unsupported generation settings.
fn check_supported(definition: &Definition) -> Result<()> {
    match definition.output {
        Output::MultipleChoice | Output::LogLikelihood | Output::Rolling => Ok(()),
        Output::Generate => GenerationConfig::read(&definition.generation)
            .map(drop)
            .map_err(|error| error.at(format!("task {}, {}", definition.name, definition.location))),
    }
}

/// Returns the tasks and groups that `name` selects: a file, a directory of files, or a definition in `folder`.
fn select_definitions(at: &EntryPosition<'_>, name: &str, folder: Option<&Path>) -> Result<Selection> {
    let named = at.key("definition");
    let path = resolve_path(Path::new(name), &named).value;
    let folder = folder.map(|folder| resolve_path(folder, &at.key("folder")).value);
    let add_position =
        |error: Error| if error.parts().location.is_none() { error.at(named.position().to_string()) } else { error };
    let probe = Probe::Definitions { path: path.clone(), name: name.to_owned(), folder: folder.clone() };
    sandbox::check_probe(probe).map_err(add_position)?;
    let Some(selection) = Library::find_at(&path, name, folder.as_deref()) else {
        return Err(named
            .error("definition not found")
            .expected("a file, a folder of files, or a name with `folder`")
            .found(format!("`{name}`"))
            .hint(format!("check the path: {} does not exist", path.display())));
    };
    selection.map_err(add_position)
}

/// Determines the source of an entry's rows: the key `data` of the entry, or by default the dataset in the definition.
fn find_rows_origin(at: &EntryPosition<'_>, entry: &DefinitionEntry, definition: &Definition) -> Result<RowsOrigin> {
    let name = &definition.name;
    let at = at.key("data");
    let Data { path, options, .. } = &definition.data;
    match &entry.data {
        Some(DataEntry::Splits(splits)) => {
            let splits = splits.iter().map(|(split, entry)| (split.clone(), resolve_files(&at, entry))).collect();
            return Ok(RowsOrigin::Files(splits, at.position().to_string()));
        }
        Some(DataEntry::Path(folder)) => {
            let Positioned { value, position } = resolve_path(folder, &at);
            let want = entry.revision.is_some().then(|| resolve_hub_dataset(entry, definition)).transpose()?;
            return Ok(RowsOrigin::Input(Box::new(InputRef::for_rows(name, Some(value), want, position))));
        }
        None => {}
    }
    let folder = Path::new(&*definition.location.file).parent().unwrap_or(Path::new("")).to_owned();
    // Like the `datasets` loader, prefer a path that exists relative to the current directory. Otherwise, resolve the
    // path relative to the definition so that the two can be moved together.
    let local =
        |path: &str| Some(PathBuf::from(path)).filter(|path| path.exists()).unwrap_or_else(|| folder.join(path));
    if let Some(files) = options.get("data_files").filter(|_| SUPPORTED_BUILDERS.contains(&path.as_str())) {
        let list = |value: &Value| -> Option<Vec<PathBuf>> {
            let texts = value
                .as_list()
                .map_or_else(|| vec![value.as_text()], |items| items.iter().map(Value::as_text).collect());
            texts.into_iter().map(|text| text.filter(|text| !text.contains("://")).map(local)).collect()
        };
        let splits: Option<BTreeMap<String, Vec<PathBuf>>> = match files {
            Value::Map(pairs) => pairs.iter().map(|(split, files)| Some((split.text(), list(files)?))).collect(),
            // The loader assigns files to the split `train` if no split is given.
            files => list(files).map(|files| BTreeMap::from([("train".to_owned(), files)])),
        };
        let splits = splits.ok_or_else(|| {
            Error::bad_input("unsupported value of `data_files`")
                .at(definition.location.to_string())
                .expected("paths of local files, or a map from splits to such paths")
                .found(files.repr())
                .hint("download the files and name them in the grid: `data: {SPLIT: FILE}`")
        })?;
        return Ok(RowsOrigin::Files(splits, format!("task {name}, `data_files`, {}", definition.location)));
    }
    if local(path).is_dir() {
        return Ok(RowsOrigin::Input(Box::new(InputRef::for_rows(name, Some(local(path)), None, at.position()))));
    }
    let want = resolve_hub_dataset(entry, definition)?;
    Ok(RowsOrigin::Input(Box::new(InputRef::for_rows(name, None, Some(want), at.position()))))
}

/// Returns the hub dataset that the definition refers to, without file patterns. The revision comes from the entry or,
/// by default, from the definition.
fn resolve_hub_dataset(entry: &DefinitionEntry, definition: &Definition) -> Result<RepoFiles> {
    let Data { path, options, .. } = &definition.data;
    check_builder(definition, path)?;
    let revision = entry.revision.as_deref().or_else(|| options.get("revision")?.as_text());
    let source = Repo::new(RepoKind::Dataset, path).and_then(|repo| Source::new(repo, revision)).map_err(|error| {
        error
            .at(format!("{}, dataset_path", definition.location))
            .hint("set `data: FOLDER` or `data: {SPLIT: FILE}` in the grid")
    })?;
    Ok(RepoFiles { source, files: Vec::new() })
}

/// Returns the files of one split, with paths relative to the working directory.
fn resolve_files(at: &EntryPosition<'_>, entry: &SplitFiles) -> Vec<PathBuf> {
    let files = match entry {
        SplitFiles::One(file) => std::slice::from_ref(file),
        SplitFiles::More(files) => files.as_slice(),
    };
    files.iter().map(|file| resolve_path(file, at).value).collect()
}

/// Builders in the Python package `datasets` whose local files are supported.
const SUPPORTED_BUILDERS: [&str; 4] = ["csv", "json", "parquet", "text"];
/// Builders in the Python package `datasets` whose files are not supported.
const UNSUPPORTED_BUILDERS: [&str; 11] = [
    "arrow",
    "audiofolder",
    "cache",
    "hdf5",
    "imagefolder",
    "pandas",
    "pdffolder",
    "spark",
    "videofolder",
    "webdataset",
    "xml",
];

/// Rejects a dataset path that is the name of a `datasets` builder. On the Hub, a dataset of that name either does not
/// exist or is unrelated.
fn check_builder(definition: &Definition, path: &str) -> Result<()> {
    let position = format!("{}, dataset_path", definition.location);
    if UNSUPPORTED_BUILDERS.contains(&path) {
        return Err(Error::bad_input(format!("`{path}` is an unsupported builder of `datasets`"))
            .at(position)
            .expected(format!("a dataset, a folder, or one of the builders {}", SUPPORTED_BUILDERS.join(", ")))
            .hint("convert the rows to .jsonl or .parquet"));
    }
    if SUPPORTED_BUILDERS.contains(&path) {
        return Err(Error::bad_input(format!("the builder `{path}` has no data files"))
            .at(position)
            .expected("`dataset_kwargs: {data_files: {SPLIT: FILE}}`")
            .hint("add the files, set `data: {SPLIT: FILE}` in the grid, or pass `--rows` to `ghostlab score`"));
    }
    Ok(())
}

/// Returns `want` with patterns for the files of the splits. The patterns cover the usual directory layouts of hub
/// datasets.
fn add_split_patterns(want: RepoFiles, definition: &Definition, splits: &[&str]) -> RepoFiles {
    let folder = definition.data.options.get("data_dir").and_then(Value::as_text).map(|folder| format!("{folder}/"));
    let folder = folder.unwrap_or_default();
    let bases = match &definition.data.name {
        Some(name) => [format!("{name}/"), format!("data/{name}/"), "data/".to_owned(), String::new()],
        None => ["data/".to_owned(), "default/".to_owned(), "data/default/".to_owned(), String::new()],
    };
    let mut files = Vec::new();
    for (split, base) in splits.iter().flat_map(|split| bases.iter().map(move |base| (split, base))) {
        for form in ["-*-of-*.parquet", ".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz", "/*.parquet"] {
            files.push(FilePattern::optional(format!("{folder}{base}{split}{form}")));
        }
    }
    RepoFiles { files, ..want }
}

/// Returns the files that the grid or the definition lists for each split in `splits`.
///
/// # Errors
/// Fails if a split has no files, or if a file does not exist.
fn find_listed_rows(files: &BTreeMap<String, Vec<PathBuf>>, splits: &[&str], position: &str) -> Result<FileRows> {
    Ok(FileRows { splits: splits.iter().map(|split| find_split_files(files, position, split)).collect::<Result<_>>()? })
}

fn find_split_files(
    files: &BTreeMap<String, Vec<PathBuf>>,
    position: &str,
    split: &&str,
) -> Result<(String, Vec<PathBuf>)> {
    let split_files = files.get(*split).filter(|file| !file.is_empty()).ok_or_else(|| {
        Error::bad_input(format!("no file for the split `{split}`"))
            .at(position.to_owned())
            .expected(format!("`data: {{{split}: FILE}}`"))
            .found(format!("`{}`", files.keys().map(String::as_str).collect::<Vec<_>>().join("`, `")))
    })?;
    match split_files.iter().find(|file| !file.is_file()) {
        Some(file) => Err(Error::missing("task rows not found")
            .at(position.to_owned())
            .expected(format!("a file at {}", file.display()))
            .found("nothing")
            .hint("set `data` in the grid, or pass `--rows` to `ghostlab score`, if the rows are elsewhere")),
        None => Ok(((*split).to_owned(), split_files.clone())),
    }
}

/// Assigns a file to the only split.
///
/// # Errors
/// Fails if there are several splits.
fn single_split(file: PathBuf, splits: &[&str], position: &str) -> Result<FileRows> {
    match splits {
        [split] => Ok(FileRows { splits: BTreeMap::from([((*split).to_owned(), vec![file])]) }),
        several => Err(Error::bad_input("a single file cannot provide several splits")
            .at(position.to_owned())
            .expected("`data: {SPLIT: FILE, …}`, or a folder")
            .found(format!("the splits {}", several.join(", ")))),
    }
}

/// Checks the number of few-shot examples, the document limit and the context length.
pub(super) fn check_settings(at: &EntryPosition<'_>, how: &TaskSettings) -> Result<()> {
    let TaskSettings { shots, max_length, limit, .. } = *how;
    if let Some(length) = max_length {
        validate::check_count(1, length, "the context length of a backbone", &at.key("max_length").position())?;
    }
    let limit = limit.map(DocumentLimit::new).transpose();
    limit.map_err(|error| error.at(at.key("limit").position().to_string()))?;
    validate::check_count(0, shots.unwrap_or_default(), "the number of examples", &at.key("shots").position())
}
