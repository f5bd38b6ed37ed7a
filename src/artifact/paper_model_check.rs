//! Verifies that a backbone with a name from the paper is the paper's model, by its layer count and the hashes in
//! `hub.lock`.

use std::path::{Path, PathBuf};

use super::paper::{self, backbone_label};
use crate::error::{Error, Result};
use crate::files;
use crate::grid::{EntryKind, Grid, HubSource, InputRef, InputResolver, ResolvedInput, TaskSource};
use crate::hub::{Lock, LockedFile, LockedRepo};
use crate::model::weights::Weights;
use crate::model::{Config, check_weights};

/// Files other than the weights that affect a model's results. The remaining files of its repository are not checked.
const METADATA_FILES: [&str; 2] = ["config.json", "tokenizer.json"];
const WEIGHTS_EXTENSION: &str = ".safetensors";

/// Profile in which the paper's backbone names refer to the paper's models.
const PAPER_PROFILE: &str = "paper";

/// Function that computes the SHA-256 of a file.
type HashFile<'a> = &'a dyn Fn(&Path) -> Result<String>;

/// Compares the hub inputs of a grid with `hub.lock` and marks the matching ones as pinned.
///
/// # Errors
/// Fails if a file in the hub cache differs from its pin.
pub fn check_pins(grid: &mut Grid, hash: HashFile<'_>) -> Result<()> {
    let lock = Lock::read(&grid.lock_file)?;
    let profile = grid.profile.as_ref().map_or(String::new(), |name| format!(" --profile {name}"));
    let fetch = format!("ghostlab fetch {}{profile}", grid.file.display());
    for backbone in grid.backbones.values_mut() {
        mark_pinned(
            &mut backbone.hub,
            &backbone.path,
            || input_files(EntryKind::Backbone, &backbone.path),
            (&lock, &fetch, hash),
        )?;
    }
    for corpus in grid.corpora.values_mut() {
        let files = corpus.files();
        let path = corpus.path.clone();
        mark_pinned(&mut corpus.hub, &path, || Ok(files), (&lock, &fetch, hash))?;
    }
    for task in grid.tasks.values_mut().chain(grid.definitions.values_mut()) {
        match &task.source {
            TaskSource::Builtin { path, .. } => {
                mark_pinned(&mut task.hub, path, || input_files(EntryKind::Task, path), (&lock, &fetch, hash))?;
            }
            TaskSource::Defined { rows, .. } => {
                let files: Vec<PathBuf> = rows.splits.values().flatten().cloned().collect();
                let path = files.first().and_then(|file| file.parent()).map(Path::to_owned).unwrap_or_default();
                mark_pinned(&mut task.hub, &path, || Ok(files), (&lock, &fetch, hash))?;
            }
        }
    }
    Ok(())
}

/// Sets whether the files of a hub input have the hashes in `hub.lock`. An input without an entry there is not pinned.
fn mark_pinned(
    hub: &mut Option<HubSource>,
    path: &Path,
    files: impl FnOnce() -> Result<Vec<PathBuf>>,
    (lock, fetch, hash): (&Lock, &str, HashFile<'_>),
) -> Result<()> {
    let Some(hub) = hub else { return Ok(()) };
    let Some(pinned) = lock.get(&hub.want.source) else {
        hub.pinned = false;
        return Ok(());
    };
    let is_pinned = matches_pin(hub, path, &files()?, pinned, hash);
    hub.pinned = is_pinned.map_err(|error| error.hint(format!("run `{fetch}` to download it again")))?;
    Ok(())
}

/// Returns the files that a grid reads from a backbone folder or from task data.
fn input_files(kind: EntryKind, path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    if kind == EntryKind::Backbone {
        let metadata = METADATA_FILES.iter().map(|name| path.join(name)).filter(|file| file.is_file());
        return Ok(metadata.chain(Weights::files(path)?).collect());
    }
    let entries = files::entries(path).map_err(|error| Error::folder_io("read", path, &error))?;
    Ok(entries.into_iter().filter(|file| file.is_file()).collect())
}

/// Checks the pins of a grid's inputs and, in the `paper` profile, that its backbones are the paper's models. Marks
/// unpinned backbones as unidentified, so that their numbers are not compared with the paper.
///
/// # Errors
/// Fails if a folder contains a different model than the backbone's name says, or if a cached file differs from its
/// pin.
pub fn identify(grid: &mut Grid, hash: HashFile<'_>) -> Result<()> {
    if grid.profile.as_deref() != Some(PAPER_PROFILE) {
        return check_pins(grid, hash);
    }
    let paper_layers = paper::layers_by_backbone()?;
    let lock = Lock::read(&grid.lock_file)?;
    let unpinned = format!("is not pinned in {}, so the origin of its weights is unknown", grid.lock_file.display());
    for (name, backbone) in &mut grid.backbones {
        let Some(&layers) = paper_layers.get(name) else { continue };
        if backbone.layers != layers {
            return Err(layer_count_error(name, &backbone.path, [layers, backbone.layers]));
        }
        match backbone.hub.as_ref().and_then(|hub| lock.get(&hub.want.source)) {
            Some(pinned) => check_against_pin(name, &backbone.path, pinned, hash)?,
            None => backbone.unidentified = Some(format!("{name} {unpinned}")),
        }
    }
    check_pins(grid, hash)
}

/// Compares the files in a backbone folder with their pins, smallest first, to detect a different model early.
fn check_against_pin(name: &str, folder: &Path, pinned: &LockedRepo, hash: HashFile<'_>) -> Result<()> {
    let mut files: Vec<(&str, &LockedFile)> =
        pinned.files.iter().map(|(file, pin)| (file.as_str(), pin)).filter(|(file, _)| is_relevant(file)).collect();
    files.sort_by_key(|(_, pin)| pin.bytes);
    if let Some((file, _)) = files.iter().find(|(file, _)| !folder.join(file).is_file()) {
        return Err(other_model_error(name, folder)
            .expected(format!("{file}, as pinned in hub.lock"))
            .found("no such file"));
    }
    for weights in Weights::files(folder)? {
        if files.iter().all(|(file, _)| folder.join(file) != weights) {
            let found = weights.display().to_string();
            return Err(other_model_error(name, folder).expected("only the weights that hub.lock lists").found(found));
        }
    }
    for (file, pin) in files {
        let found = hash(&folder.join(file))?;
        if !found.eq_ignore_ascii_case(pin.sha256.as_str()) {
            let expected = format!("{file} with SHA-256 {}", pin.sha256);
            let found = format!("SHA-256 {found}");
            return Err(other_model_error(name, folder).expected(expected).found(found));
        }
    }
    Ok(())
}

fn is_relevant(file: &str) -> bool {
    METADATA_FILES.contains(&file) || file.ends_with(WEIGHTS_EXTENSION)
}

#[derive(Debug)]
pub struct ExaminedInput {
    /// Path and properties of the input, shown in messages.
    pub found: String,
    /// Hub repository that has no entry in `hub.lock`, or `None` if the input is pinned or not from a hub.
    pub unpinned: Option<String>,
}

/// Checks whether a backbone, text or task exists, is readable and matches `hub.lock`.
///
/// # Errors
/// Fails if the input is missing, unreadable or not the paper's model, or if a cached file differs from its pin.
pub fn examine(need: &InputRef, resolver: &InputResolver<'_>, hash: HashFile<'_>) -> Result<ExaminedInput> {
    let ResolvedInput { path, hub, stream } = need.find(resolver)?;
    let mut found = path.display().to_string();
    let lock = resolver.lock()?;
    let pinned = hub.as_ref().and_then(|hub| lock.get(&hub.want.source));
    if need.kind == EntryKind::Backbone {
        let config = Config::read(&path)?;
        check_weights(&config, &path)?;
        found = format!("{} layers, hidden size {}, {found}", config.layers, config.hidden);
        let paper_layers =
            paper::layers_by_backbone()?.remove(&need.name).filter(|_| resolver.profile() == Some(PAPER_PROFILE));
        if let Some(layers) = paper_layers.filter(|layers| *layers != config.layers) {
            return Err(layer_count_error(&need.name, &path, [layers, config.layers]));
        }
        if let (Some(pinned), Some(_)) = (pinned, paper_layers) {
            check_against_pin(&need.name, &path, pinned, hash)?;
        }
    }
    let files = match &stream {
        Some(stream) => stream.files.values().map(|name| path.join(name)).collect(),
        None => input_files(need.kind, &path)?,
    };
    let is_pinned = pinned.zip(hub.as_ref()).map(|(pinned, hub)| matches_pin(hub, &path, &files, pinned, hash));
    let is_pinned = is_pinned
        .transpose()
        .map_err(|error| error.hint(format!("run `{}` to download it again", resolver.command())))?;
    if let (Some(pinned), Some(true)) = (pinned, is_pinned) {
        found = format!("{found}, commit {} with the hashes of hub.lock", pinned.commit.short());
    }
    if is_pinned == Some(false) {
        found = format!("{found}, which differs from hub.lock");
    }
    let unpinned = hub.filter(|_| pinned.is_none()).map(|hub| hub.repository);
    Ok(ExaminedInput { found, unpinned })
}

/// Returns whether all files have the pinned hashes. Files in the hub cache are matched by name, other copies by hash.
///
/// # Errors
/// Fails if a cached file differs from its pin.
fn matches_pin(
    hub: &HubSource,
    path: &Path,
    files: &[PathBuf],
    pinned: &LockedRepo,
    hash: HashFile<'_>,
) -> Result<bool> {
    for file in files {
        // Cached files are below a snapshot directory named after the commit.
        let below = hub.commit.as_ref().and_then(|commit| {
            let mut parts = file.components();
            parts.by_ref().any(|part| part.as_os_str() == commit.as_str()).then(|| parts.as_path().to_owned())
        });
        let pin = below.and_then(|name| pinned.files.iter().find(|(known, _)| known.path() == name));
        let found = hash(file)?;
        match pin {
            Some((_, pin)) if found == pin.sha256.as_str() => {}
            Some((_, pin)) => {
                return Err(Error::damaged("the cached file differs from the pinned one")
                    .at(file.display().to_string())
                    .expected(format!("SHA-256 {}", pin.sha256))
                    .found(format!("SHA-256 {found}")));
            }
            None if hub.commit.is_some() => return Ok(false),
            None => {
                let name = file.strip_prefix(path).ok().filter(|_| path.is_dir());
                let mut same = pinned.files.iter().filter(|(_, pin)| found == pin.sha256.as_str());
                if !same.any(|(known, _)| name.is_none_or(|name| known.path().ends_with(name))) {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// Returns the total size of the weight files in a folder, in bytes, or `None` if there are none.
pub fn weight_bytes(folder: &Path) -> Option<u64> {
    let files = Weights::files(folder).ok()?;
    Some(files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|metadata| metadata.len()).sum())
}

fn layer_count_error(name: &str, path: &Path, layers: [usize; 2]) -> Error {
    let [expected, found] = layers.map(|count| format!("{count} layers"));
    other_model_error(name, path).expected(expected).found(found)
}

fn other_model_error(name: &str, path: &Path) -> Error {
    Error::bad_input(format!("the folder of `{name}` does not contain {}", backbone_label(name)))
        .at(path.display().to_string())
        .hint(format!("use another name in a separate grid: `{name}` is reserved for the paper's model"))
}
