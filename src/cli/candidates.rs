//! Candidates for an argument: names of artifacts, grids, cells and others, for shell completion.
//!
//! Asked at each press of a key: nothing is hashed, made or fetched, and what cannot be read has no names.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::{ArgMatches, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};

use super::home::{self, StoreArgs, folders_in};
use crate::artifact::{self, Artifact};
use crate::cluster::Submission;
use crate::grid::{EntryKind, Grid, names_around};
use crate::results::{StoredResults, distinct};
use crate::stage;
use ghostlab_store::Store;

/// The words of the line that is completed, without the one under the cursor.
static LINE: OnceLock<Vec<OsString>> = OnceLock::new();

/// Notes the line, before the engine asks for candidates.
pub(super) fn note_line(mut words: Vec<OsString>, current: usize) {
    if current < words.len() {
        words.remove(current);
    }
    LINE.set(words).ok();
}

/// Parses the command line so far, in the innermost command, ignoring errors.
fn said() -> Option<ArgMatches> {
    let words = LINE.get()?;
    let mut command = super::Arguments::command().ignore_errors(true);
    let mut matches = command.try_get_matches_from_mut(words).ok()?;
    while let Some((_, inner)) = matches.remove_subcommand() {
        matches = inner;
    }
    Some(matches)
}

fn one<T: Clone + Send + Sync + 'static>(said: &ArgMatches, name: &str) -> Option<T> {
    said.try_get_one::<T>(name).ok().flatten().cloned()
}

fn many<T: Clone + Send + Sync + 'static>(said: &ArgMatches, name: &str) -> Vec<T> {
    said.try_get_many::<T>(name).ok().flatten().into_iter().flatten().cloned().collect()
}

fn completer(of: impl Fn(&OsStr) -> Vec<CompletionCandidate> + Send + Sync + 'static) -> ArgValueCompleter {
    ArgValueCompleter::new(of)
}

/// Returns the names that begin with the typed text.
fn beginning(current: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    names.into_iter().filter(|name| name.starts_with(&*current)).map(CompletionCandidate::new).collect()
}

fn both(mut first: Vec<CompletionCandidate>, second: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    first.extend(second);
    first
}

/// Completes fixed words.
pub(super) fn words(words: &'static [&'static str]) -> ArgValueCompleter {
    completer(move |current| beginning(current, words.iter().map(|word| (*word).to_owned())))
}

/// Completes the artifacts of the experiments with their titles; only those with a grid if cells are needed.
fn artifacts_like(current: &OsStr, with_grid: bool) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let Ok(folder) = home::experiments(said().and_then(|said| one(&said, "experiments")).as_ref()) else {
        return Vec::new();
    };
    let mut known = artifact::all(&folder).unwrap_or_default();
    known.retain(|of| of.name.starts_with(&*current) && !(with_grid && of.description.list.is_some()));
    known.into_iter().map(|of| CompletionCandidate::new(of.name).help(Some(of.description.title.into()))).collect()
}

fn artifacts_or_all(current: &OsStr) -> Vec<CompletionCandidate> {
    both(artifacts_like(current, false), beginning(current, ["all".to_owned()]))
}

/// Completes YAML files and folders.
fn grid_files(current: &OsStr) -> Vec<CompletionCandidate> {
    let is_grid = |path: &Path| path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    PathCompleter::any().filter(is_grid).complete(current)
}

/// Grids: files, and artifacts by their names.
pub(super) fn grids() -> ArgValueCompleter {
    completer(|current| both(artifacts_like(current, true), grid_files(current)))
}

/// Artifacts, and `all` of them.
pub(super) fn artifacts() -> ArgValueCompleter {
    completer(artifacts_or_all)
}

/// Artifacts, `all` of them, and grid files.
pub(super) fn targets() -> ArgValueCompleter {
    completer(|current| both(artifacts_or_all(current), grid_files(current)))
}

/// Returns the files of the command line: its grid, or those of its artifacts.
fn files() -> Vec<PathBuf> {
    let Some(said) = said() else { return Vec::new() };
    if let Some(grid) = one::<PathBuf>(&said, "grid") {
        return vec![grid];
    }
    let names = ["artifacts", "targets", "target"].into_iter().flat_map(|name| many::<String>(&said, name));
    let folder = home::experiments(one(&said, "experiments").as_ref()).ok();
    let file = |name: String| match (&folder, Path::new(&name).is_file()) {
        (Some(folder), false) => folder.join(name).with_extension("yaml"),
        _ => PathBuf::from(name),
    };
    let files: Vec<PathBuf> = names.map(file).chain(many(&said, "keep")).collect();
    match (files.is_empty(), folder) {
        // Before anything is named, all artifacts may be meant.
        (true, Some(folder)) => artifact::all(&folder).unwrap_or_default().into_iter().map(|of| of.file).collect(),
        _ => files,
    }
}

/// Completes the profiles of the command line's files.
pub(super) fn profiles() -> ArgValueCompleter {
    completer(|current| {
        let names = files().iter().flat_map(|file| Grid::profiles(file).unwrap_or_default()).collect::<Vec<_>>();
        beginning(current, distinct(&names))
    })
}

/// Completes the cells of the command line's grid, or of its stored results if the grid cannot be loaded.
pub(super) fn cells() -> ArgValueCompleter {
    completer(|current| {
        let Some(said) = said() else { return Vec::new() };
        let Some(file) = one::<PathBuf>(&said, "grid") else { return Vec::new() };
        let profile = one::<String>(&said, "profile");
        let overrides = many::<String>(&said, "overrides");
        beginning(current, cells_of(&file, profile.as_deref(), &overrides))
    })
}

fn cells_of(file: &Path, profile: Option<&str>, overrides: &[String]) -> Vec<String> {
    let grids = match Artifact::read(file) {
        Ok(Some(artifact)) => artifact.runs(profile, overrides),
        _ => Grid::load(file, profile, overrides).map(|grid| vec![grid]),
    };
    let mut names: Vec<String> = match grids {
        Ok(grids) => grids.iter().flat_map(|grid| &grid.cells).map(ToString::to_string).collect(),
        Err(_) => stored(file, profile),
    };
    names.sort();
    names.dedup();
    names
}

/// Returns the cells of a grid's results, from the folders with its name.
fn stored(file: &Path, profile: Option<&str>) -> Vec<String> {
    let Some(name) = file.file_stem() else { return Vec::new() };
    let folder = home::below(None, "results", Some(file)).join(name);
    let folders = match profile {
        Some(profile) => vec![folder.join(profile)],
        None => [vec![folder.clone()], folders_in(&folder)].concat(),
    };
    let read = folders.iter().filter_map(|folder| StoredResults::read(folder).ok());
    read.flat_map(|stored| stored.numbers).map(|number| number.cell).collect()
}

/// Results folders, below the checkout's and wherever one looks.
pub(super) fn results() -> ArgValueCompleter {
    completer(|current| {
        let root = home::below(None, "results", None);
        let is_run = |folder: &PathBuf| folder.join(StoredResults::FILE).is_file();
        let inner =
            folders_in(&root).into_iter().flat_map(|folder| [vec![folder.clone()], folders_in(&folder)].concat());
        let known = inner.filter(is_run).filter_map(|folder| folder.into_os_string().into_string().ok());
        both(beginning(current, known), PathCompleter::dir().complete(current))
    })
}

/// Completes keys of stored objects after two digits, which name the only folder that is read.
pub(super) fn keys() -> ArgValueCompleter {
    completer(|current| {
        let Some(typed) = current.to_str().filter(|typed| typed.len() >= 2 && typed.is_ascii()) else {
            return Vec::new();
        };
        let store = said().and_then(|said| one::<PathBuf>(&said, "store"));
        let Some(root) = StoreArgs::of(store).root() else { return Vec::new() };
        let Ok(store) = Store::look_at(&root, stage::WORDS) else { return Vec::new() };
        beginning(current, stage::KINDS.iter().flat_map(|&kind| store.beginning(kind, typed)))
    })
}

/// Completes submissions.
pub(super) fn submissions() -> ArgValueCompleter {
    completer(|current| {
        let store = said().and_then(|said| one::<PathBuf>(&said, "store"));
        let Ok(store) = StoreArgs::of(store).look() else { return Vec::new() };
        let all = Submission::all(&store);
        let with_name = |of: &Submission| CompletionCandidate::new(of.id.clone()).help(Some(of.name.clone().into()));
        let typed = current.to_string_lossy();
        all.iter().filter(|of| of.id.starts_with(&*typed)).map(with_name).collect()
    })
}

/// Models: names in `backbones/`, and folders.
pub(super) fn models() -> ArgValueCompleter {
    completer(|current| both(named(EntryKind::Backbone, current), PathCompleter::dir().complete(current)))
}

/// Texts: names in `corpora/`, and files.
pub(super) fn texts() -> ArgValueCompleter {
    completer(|current| both(named(EntryKind::Corpus, current), PathCompleter::any().complete(current)))
}

/// Tasks by name, and their files.
pub(super) fn tasks() -> ArgValueCompleter {
    completer(|current| {
        let known = beginning(current, crate::grid::tasks().into_iter().map(str::to_owned));
        both(known, PathCompleter::any().complete(current))
    })
}

fn named(kind: EntryKind, current: &OsStr) -> Vec<CompletionCandidate> {
    // Resolved as `score` does: as by a grid in the current folder.
    beginning(current, names_around(Path::new("grid.yaml"), kind))
}
