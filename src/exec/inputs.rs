//! Hashes of everything that a run reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::grid::Grid;
use crate::model::weights::Weights;
use crate::tasks::Task;

/// SHA-256 of each input file of a grid, by path: the grid itself, configs, tokenizers, weights, corpora, tasks.
pub(super) fn hashes(grid: &Grid) -> Result<BTreeMap<String, String>> {
    let mut files = vec![grid.file.clone()];
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
    files.into_iter().map(|file: PathBuf| Ok((file.display().to_string(), sha256(&file)?))).collect()
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|error| Error::io("open", path, &error))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut buffer).map_err(|error| Error::io("read", path, &error))?;
        if read == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&buffer[..read]);
    }
}
