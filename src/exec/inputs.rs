//! Hashes of everything that a run reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::files::sha256;
use crate::grid::Grid;
use crate::model::weights::Weights;
use crate::tasks::Task;

/// SHA-256 of each input file of a grid, by path: the grid itself, configs, tokenizers, weights, corpora, tasks.
pub(super) fn hashes(grid: &Grid) -> Result<BTreeMap<String, String>> {
    let mut files = vec![grid.file.clone()];
    files.extend(grid.entries.iter().cloned());
    for backbone in grid.backbones.values() {
        files.extend(["config.json", "tokenizer.json"].map(|name| backbone.path.join(name)));
        files.extend(Weights::files(&backbone.path)?);
        files.extend(Some(backbone.path.join("tokenizer_config.json")).filter(|file| file.exists()));
    }
    files.extend(grid.corpora.values().map(|corpus| corpus.path.clone()));
    for (name, data) in &grid.tasks {
        let task = Task::find(data.task.as_deref().unwrap_or(name))?;
        files.extend(task.files(&data.path)?);
    }
    let hash = |file: PathBuf| {
        let (hash, _) = sha256::of_file(&file).map_err(|error| Error::io("read", &file, &error))?;
        Ok((file.display().to_string(), hash))
    };
    files.into_iter().map(hash).collect()
}
