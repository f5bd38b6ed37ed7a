//! Default directories of a command.
//!
//! They belong to the checkout that contains the grid or the current directory, so a command finds earlier results from
//! any directory of the checkout. Outside a checkout, the store is in the user's data directory, and its path is
//! printed when it is created.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::error::{Error, ErrorKind, Result, nearest};
use crate::files;
use crate::files::output::Input;
use crate::grid::Grid;
use crate::installed;
use crate::machine;
use crate::pipeline::stage;
use ghostlab_store::Store;

const STORE_VARIABLE: &str = "GHOSTLAB_STORE";
const EXPERIMENTS_VARIABLE: &str = "GHOSTLAB_EXPERIMENTS";

#[derive(Args)]
pub(super) struct StoreArgs {
    /// Store folder for cached results [default: $GHOSTLAB_STORE or data/store].
    ///
    /// `data/store` is in the checkout that contains the grid or the current folder. Outside a checkout, the default is
    /// `ghostlab/store` in the user data folder ($XDG_DATA_HOME).
    #[arg(long, value_name = "FOLDER")]
    store: Option<PathBuf>,
    /// Rehash all inputs instead of trusting size and timestamps.
    ///
    /// By default a large file counts as unchanged if its size, timestamps and inode are the same as when it was last
    /// hashed.
    #[arg(long)]
    rehash: bool,
}

/// Finds the checkout: the closest ancestor of the grid, or else of the current directory, that contains experiments or
/// a store. Returns an empty path for the current directory to keep printed paths short.
fn find_checkout(near: Option<&Path>) -> Option<PathBuf> {
    let current = std::env::current_dir().ok()?;
    let installed_folder = installed::installed_folder();
    let near = near.and_then(|near| std::path::absolute(near).ok());
    let found = near.iter().flat_map(|near| near.ancestors()).chain(current.ancestors()).find(|folder| {
        let shared = ["backbones", "corpora", "tasks", "profiles", "claims.yaml"];
        // The folder of installed files has the layout of a checkout but is not one.
        let is_installed = installed_folder.as_ref().is_some_and(|installed| installed == folder);
        !is_installed
            && (folder.join("data/store").is_dir()
                || shared.iter().any(|name| folder.join("experiments").join(name).exists()))
    })?;
    Some(if found == current { PathBuf::new() } else { found.to_owned() })
}

/// Returns `named` or, if it is `None`, the directory `default` in the checkout. Outside a checkout, `default` is in
/// the current directory.
pub(super) fn default_directory(named: Option<&PathBuf>, default: &str, near: Option<&Path>) -> PathBuf {
    named.cloned().unwrap_or_else(|| find_checkout(near).unwrap_or_default().join(default))
}

/// Returns the directory with the experiments.
///
/// # Errors
/// Fails if no directory is named and none is found.
pub(super) fn find_experiments(named: Option<&PathBuf>) -> Result<PathBuf> {
    let named = named.cloned().or_else(|| Some(PathBuf::from(std::env::var_os(EXPERIMENTS_VARIABLE)?)));
    if let Some(folder) = named {
        detail!("experiments: {}", folder.display());
        return Ok(folder);
    }
    let found = find_checkout(None).map(|checkout| checkout.join("experiments")).filter(|folder| folder.is_dir());
    found.or_else(installed::experiments).ok_or_else(|| {
        Error::missing("no experiments found")
            .at(current_directory())
            .expected("an `experiments` folder in the current folder or one of its parents")
            .found("none")
            .hint(format!(
                "run the command in a checkout, or set the folder with --experiments or {EXPERIMENTS_VARIABLE}"
            ))
    })
}

/// Returns the directory with the experiments. If necessary, unpacks the embedded experiments into the user's data
/// directory.
///
/// # Errors
/// Fails in the same cases as [`find_experiments`], or if the user's data directory is not writable.
pub(super) fn find_or_unpack_experiments(named: Option<&PathBuf>) -> Result<PathBuf> {
    match find_experiments(named) {
        Err(error) if error.kind() == ErrorKind::Missing => {
            let folder = installed::unpack_installed()?.ok_or(error)?.join("experiments");
            note!("using the bundled experiments and data in {}", folder.with_file_name("").display());
            Ok(folder)
        }
        found => found,
    }
}

/// Returns the files and directories that a grid command reads, which its outputs must not overwrite.
pub(super) fn list_inputs(grid: &Grid, store: &Store) -> Vec<Input> {
    let mut inputs = vec![Input::new("the store", store.root())];
    inputs.extend(
        grid.backbones.iter().map(|(name, backbone)| Input::new(format!("the backbone {name}"), &backbone.path)),
    );
    inputs.extend(grid.corpora.iter().map(|(name, corpus)| Input::new(format!("the text {name}"), &corpus.path)));
    for (name, task) in grid.task_data() {
        inputs.extend(task.paths().into_iter().map(|path| Input::new(format!("the task {name}"), path)));
    }
    let files = std::iter::once(&grid.file).chain(&grid.entries).filter(|file| file.is_file());
    inputs.extend(files.map(|file| Input::new("the grid's file", file)));
    if let Some(folder) = find_checkout(Some(&grid.file)) {
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        inputs.push(Input::new("the experiments", folder.join("experiments")));
        inputs.push(Input::allowing_outputs("the checkout", folder));
    }
    inputs.retain(|input| input.path.exists());
    inputs
}

fn current_directory() -> String {
    std::env::current_dir().map_or(".".to_owned(), |folder| folder.display().to_string())
}

/// Origin of a store in the user's data directory, for messages.
const USER_DATA: &str = "user data directory; no checkout found";

impl StoreArgs {
    /// Returns the path of the store that is named by an option or a variable, and the name of the option or variable.
    fn explicit_path(&self) -> Option<(PathBuf, &'static str)> {
        let variable = || Some((PathBuf::from(std::env::var_os(STORE_VARIABLE)?), STORE_VARIABLE));
        self.store.clone().map(|path| (path, "--store")).or_else(variable)
    }

    fn path(&self, near: Option<&Path>) -> Result<(PathBuf, &'static str)> {
        let (path, origin) = self.resolve(near)?;
        detail!("store: {} ({origin})", path.display());
        Ok((path, origin))
    }

    /// Returns the path of the store, which need not exist, and its origin.
    ///
    /// # Errors
    /// Fails if no store is named and there is neither a checkout nor a home directory.
    pub(super) fn resolve(&self, near: Option<&Path>) -> Result<(PathBuf, &'static str)> {
        let found = self
            .explicit_path()
            .or_else(|| Some((find_checkout(near)?.join("data/store"), "data/store of the checkout")))
            .or_else(|| Some((installed::user_data_folder()?.join("store"), USER_DATA)));
        found.ok_or_else(|| {
            Error::missing("no store found")
                .at(current_directory())
                .expected(match near {
                    Some(grid) => format!("a checkout that contains {} or the current folder", grid.display()),
                    None => "a checkout that contains the current folder".to_owned(),
                })
                .found("none")
                .hint(format!("pass --store data/store to create one here, or set {STORE_VARIABLE}"))
        })
    }

    /// Opens the named store, or the store of the checkout that contains `near`, for writing.
    pub(super) fn open(&self, near: Option<&Path>) -> Result<Store> {
        let (path, origin) = self.path(near)?;
        if origin == USER_DATA && !path.exists() {
            note!("creating a store in {} (set --store or {STORE_VARIABLE} to use another one)", path.display());
        }
        Ok(Store::open(&path, stage::STORE_WORDS)?.with_rehash(self.rehash).with_provenance(machine::provenance))
    }

    /// Opens the store for reading. A store named by `--store` or `GHOSTLAB_STORE` must exist.
    pub(super) fn open_read_only(&self) -> Result<Store> {
        match self.explicit_path() {
            // Check only that the marker exists. If it is not a regular file, reading it later reports the error.
            Some((named, _)) if named.join("store.json").symlink_metadata().is_err() => Err(no_store_error(&named)),
            _ => self.open_read_only_or_empty(None),
        }
    }

    /// Opens the named store, or the store of the checkout that contains `near`, for reading. The store does not have
    /// to exist.
    pub(super) fn open_read_only_or_empty(&self, near: Option<&Path>) -> Result<Store> {
        Ok(Store::open_read_only(&self.path(near)?.0, stage::STORE_WORDS)?.with_rehash(self.rehash))
    }

    /// Rewrites `store.json` if it is missing or damaged. Returns its path if it was rewritten.
    pub(super) fn repair_marker(&self) -> Result<Option<PathBuf>> {
        let (root, _) = self.path(None)?;
        Ok(Store::repair_marker(&root, stage::STORE_WORDS)?.then(|| root.join("store.json")))
    }
}

fn no_store_error(named: &Path) -> Error {
    let error = Error::missing("store not found").at(named.display().to_string());
    let found = match (named.is_dir(), named.exists()) {
        (true, _) => "a folder without `store.json`",
        (_, true) => "a file",
        _ => "nothing",
    };
    let error = error.expected("a store folder, which contains `store.json`").found(found);
    let fallback_hint =
        "run `ghostlab run GRID.yaml` to create a store in the checkout, or else in the user data directory";
    with_similar_path_hint(error, named, fallback_hint)
}

/// Adds a hint to an error about a missing path. The hint suggests a similarly named sibling of the path. If there is
/// none, the hint is `fallback_hint`.
pub(super) fn with_similar_path_hint(error: Error, path: &Path, fallback_hint: &str) -> Error {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let items = files::entries(folder).unwrap_or_default();
    let near = path.file_name().and_then(|name| name.to_str()).and_then(|stem| {
        let names = items.iter().filter_map(|item| item.file_name()?.to_str());
        let near = nearest(stem, names.filter(|name| *name != stem))?;
        Some(format!("did you mean `{}`?", path.with_file_name(near).display()))
    });
    error.hint(near.unwrap_or_else(|| fallback_hint.to_owned()))
}

pub(super) fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let inner = files::entries(folder).unwrap_or_default();
    inner.into_iter().filter(|path| path.is_dir()).collect()
}
