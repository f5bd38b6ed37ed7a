//! Whether a backbone that is called like one of the paper's is that one: by its number of layers, and by the hashes that
//! `hub.lock` has of its config, tokenizer and weights.

use std::path::Path;

use super::paper::{self, backbone_label};
use crate::error::{Error, Result};
use crate::grid::{Around, EntryKind, Found, Grid, Need};
use crate::hub::{Hub, Lock, LockedFile, LockedRepo, Settings};
use crate::model::weights::Weights;
use crate::model::{Config, check_weights};
use crate::results::record::Condition;

/// What tells one model from another, besides its weights. Others do not change a number.
const NAMED: [&str; 2] = ["config.json", "tokenizer.json"];
const WEIGHTS: &str = ".safetensors";

/// The profile in which a name of the paper's means the paper's model.
const PROFILE: &str = "paper";

/// In the profile `paper`: holds the paper's backbones among those of a grid against what is known of them. One that is not pinned is marked: no
/// verdict is given on its numbers. `hash` gives the SHA-256 of a file.
///
/// # Errors
/// A folder of another model under the name of one of the paper's.
pub fn identify(grid: &mut Grid, hash: &dyn Fn(&Path) -> Result<String>) -> Result<()> {
    if grid.profile.as_deref() != Some(PROFILE) {
        return Ok(());
    }
    let paper = paper::all()?;
    let lock = Lock::read(&grid.lock_file)?;
    for (name, backbone) in &mut grid.backbones {
        let Some(layers) =
            paper.iter().map(|entry| &entry.record.condition).find(|of| of.backbone == *name).map(|of| of.layers)
        else {
            continue;
        };
        if backbone.layers != layers {
            let (expected, found) = (format!("{layers} layers"), format!("{} layers", backbone.layers));
            return Err(another(name, &backbone.path).expected(expected).found(found));
        }
        let pinned = backbone.hub.as_ref().and_then(|hub| lock.get(&hub.want.source));
        match pinned {
            Some(pinned) => held_against(name, &backbone.path, pinned, hash)?,
            None => {
                let lock = grid.lock_file.display();
                backbone.unidentified =
                    Some(format!("{name} is not pinned in {lock}, so that nobody knows whose weights these are"));
            }
        }
    }
    // Texts and tasks of the cache: what was altered there is not what is pinned.
    let corpora = grid.corpora.values().map(|of| (&of.path, &of.hub));
    for (path, hub) in corpora.chain(grid.tasks.values().map(|of| (&of.path, &of.hub))) {
        let Some(hub) = hub.as_ref().filter(|hub| hub.commit.is_some()) else { continue };
        if let Some(pinned) = lock.get(&hub.want.source) {
            let snapshot = Hub::new(Settings::from_env()?).cache().snapshot(&hub.want.source.repo, &pinned.commit);
            as_pinned(path, &snapshot, pinned, hash).map_err(|error| error.hint("`ghostlab fetch` brings it anew"))?;
        }
    }
    Ok(())
}

/// Small files first: of another model they tell at once.
fn held_against(name: &str, folder: &Path, pinned: &LockedRepo, hash: &dyn Fn(&Path) -> Result<String>) -> Result<()> {
    let matters = |file: &str| NAMED.contains(&file) || file.ends_with(WEIGHTS);
    let mut files: Vec<(&str, &LockedFile)> =
        pinned.files.iter().map(|(file, pin)| (file.as_str(), pin)).filter(|(file, _)| matters(file)).collect();
    files.sort_by_key(|(_, pin)| pin.bytes);
    let path = |file: &str| folder.join(file);
    if let Some((file, _)) = files.iter().find(|(file, _)| !path(file).is_file()) {
        return Err(another(name, folder).expected(format!("{file}, as hub.lock has it")).found("no such file"));
    }
    for weights in Weights::files(folder)? {
        if files.iter().all(|(file, _)| path(file) != weights) {
            let found = weights.display().to_string();
            return Err(another(name, folder).expected("no weights but those that hub.lock has").found(found));
        }
    }
    for (file, pin) in files {
        let found = hash(&path(file))?;
        if !found.eq_ignore_ascii_case(&pin.sha256) {
            let (expected, found) = (format!("{file} with SHA-256 {}", pin.sha256), format!("SHA-256 {found}"));
            return Err(another(name, folder).expected(expected).found(found));
        }
    }
    Ok(())
}

/// What is known of something that a grid needs.
#[derive(Debug)]
pub struct Seen {
    /// Where it is and what it is, for people.
    pub found: String,
    /// The repository that it should be pinned to and is not.
    pub unpinned: Option<String>,
}

/// Looks at a backbone, text or task: whether it is there, can be read, and is what `hub.lock` has. `hash` gives the
/// SHA-256 of a file.
///
/// # Errors
/// What lacks or is wrong, with what to do.
pub fn examine(need: &Need, around: &Around<'_>, hash: &dyn Fn(&Path) -> Result<String>) -> Result<Seen> {
    let Found { path, hub } = need.find(around)?;
    let (mut found, lock) = (path.display().to_string(), around.lock()?);
    let pinned = hub.as_ref().and_then(|hub| lock.get(&hub.want.source));
    if need.kind == EntryKind::Backbone {
        let config = Config::read(&path)?;
        check_weights(&config, &path)?;
        found = format!("{} layers, hidden size {}, {found}", config.layers, config.hidden);
        let paper = paper::all()?;
        let named = |of: &&Condition| around.profile() == Some(PROFILE) && of.backbone == need.name;
        let of_paper = paper.iter().map(|entry| &entry.record.condition).find(named);
        if let Some(of) = of_paper.filter(|of| of.layers != config.layers) {
            let (expected, found) = (format!("{} layers", of.layers), format!("{} layers", config.layers));
            return Err(another(&need.name, &path).expected(expected).found(found));
        }
        if let Some(pinned) = pinned {
            held_against(&need.name, &path, pinned, hash)?;
        }
    } else if let (Some(pinned), Some(hub)) = (pinned, hub.as_ref().filter(|hub| hub.commit.is_some())) {
        as_pinned(&path, &around.hub()?.cache().snapshot(&hub.want.source.repo, &pinned.commit), pinned, hash)
            .map_err(|error| error.hint(format!("`{}` brings it anew", around.command())))?;
    }
    if let Some(pinned) = pinned {
        found = format!("{found}, commit {} with the hashes of hub.lock", &pinned.commit[..12]);
    }
    let unpinned = hub.filter(|_| pinned.is_none()).map(|hub| hub.repository);
    Ok(Seen { found, unpinned })
}

/// A cached file is the one that is pinned.
fn as_pinned(path: &Path, snapshot: &Path, pinned: &LockedRepo, hash: &dyn Fn(&Path) -> Result<String>) -> Result<()> {
    let pin = pinned.files.iter().find(|(name, _)| snapshot.join(name.path()) == path);
    let Some((_, pin)) = pin else { return Ok(()) };
    let found = hash(path)?;
    if found.eq_ignore_ascii_case(&pin.sha256) {
        return Ok(());
    }
    Err(Error::damaged("a cached file is not the one that is pinned")
        .at(path.display().to_string())
        .expected(format!("SHA-256 {}", pin.sha256))
        .found(format!("SHA-256 {found}")))
}

/// Bytes of the weight files in a folder; none where there are none.
pub fn weight_bytes(folder: &Path) -> Option<u64> {
    let files = Weights::files(folder).ok()?;
    Some(files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|about| about.len()).sum())
}

fn another(name: &str, path: &Path) -> Error {
    Error::bad_input(format!("the folder of `{name}` does not hold {}", backbone_label(name)))
        .at(path.display().to_string())
        .hint(format!("`{name}` stands for the paper's model: give another one another name, in a grid of its own"))
}
