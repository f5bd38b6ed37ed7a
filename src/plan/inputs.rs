//! Hashes of everything that a grid reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::files::{regular, sha256};
use crate::grid::Grid;
use crate::model::weights::Weights;
use crate::store::Store;
use crate::tasks::Task;

/// SHA-256 of each input file of a grid.
pub struct Inputs {
    by_path: BTreeMap<PathBuf, String>,
}

/// The hashes that tell one backbone from another.
pub(super) struct BackboneFiles {
    /// Over those of config and weights.
    pub(super) content: String,
    pub(super) config: String,
    pub(super) tokenizer: String,
    /// None where there is no such file.
    pub(super) tokenizer_config: Option<String>,
}

impl Inputs {
    /// Reads the files: configs, tokenizers, weights, corpora, tasks. (Not the grid: its meaning counts, not its bytes.)
    pub(super) fn read(grid: &Grid, store: &Store) -> Result<Self> {
        let mut files = BTreeSet::new();
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
        let files: Vec<PathBuf> = files.into_iter().collect();
        let hash = |file: PathBuf| {
            // A pipe would be waited for for ever.
            regular::open(&file)?;
            store.sha256_of(&file).map(|hash| (file, hash))
        };
        Ok(Self { by_path: files.into_par_iter().map(hash).collect::<Result<_>>()? })
    }

    pub(super) fn of(&self, file: &Path) -> Result<&str> {
        self.by_path.get(file).map(String::as_str).ok_or_else(|| {
            Error::job("an input appeared after the inputs were hashed")
                .at(file.display().to_string())
                .hint("leave the inputs alone while a run begins")
        })
    }

    pub(super) fn of_backbone(&self, folder: &Path) -> Result<BackboneFiles> {
        let config = self.of(&folder.join("config.json"))?.to_string();
        let weights = Weights::files(folder)?;
        let weights = weights.iter().map(|file| self.of(file)).collect::<Result<String>>()?;
        Ok(BackboneFiles {
            content: sha256::of_bytes(format!("{config}{weights}")),
            config,
            tokenizer: self.of(&folder.join("tokenizer.json"))?.to_string(),
            tokenizer_config: self.by_path.get(&folder.join("tokenizer_config.json")).cloned(),
        })
    }

    /// By path as text, for the record of a run.
    pub fn by_path(&self) -> BTreeMap<String, String> {
        self.by_path.iter().map(|(path, hash)| (path.display().to_string(), hash.clone())).collect()
    }
}
