//! What a target needs from outside, and the hashes of what is there.

use std::path::{Path, PathBuf};

use crate::artifact::{self, Artifact};
use crate::error::{Error, Result};
use crate::files::sha256;
use crate::grid::{AxisChoice, Grid, InputList};
use ghostlab_store::Store;

/// What a grid's file needs, or artifacts by their name, which are described in `experiments`.
///
/// # Errors
/// A mistake in a grid, or an unknown name.
pub(super) fn of_target(
    target: &str,
    profile: Option<&str>,
    overrides: &[String],
    experiments: impl FnOnce() -> Result<PathBuf>,
) -> Result<Vec<InputList>> {
    let file = Path::new(target);
    if file.is_file() {
        if let Some(artifact) = Artifact::read(file)? {
            return artifact.needs(profile, overrides);
        }
        let all = AxisChoice { text: &|_| true, task: &|_| true, latency: true };
        return Ok(vec![Grid::needs(file, profile, overrides, &all)?]);
    }
    let all = artifact::all(&experiments()?)?;
    let chosen = artifact::chosen(&all, &[target.to_owned()])?;
    let needs = chosen.into_iter().map(|artifact| artifact.needs(profile, overrides));
    Ok(needs.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Hashes files, as far as a store does not remember their hashes.
pub(super) fn hash<'s>(store: impl Into<Option<&'s Store>>) -> impl Fn(&Path) -> Result<String> {
    let store: Option<&Store> = store.into();
    move |path: &Path| match store {
        Some(store) => store.input(path).map(|input| input.sha256().to_owned()),
        None => sha256::of_file(path).map(|(hash, _)| hash).map_err(|error| Error::io("read", path, &error)),
    }
}
