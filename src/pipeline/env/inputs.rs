//! Hashes of the input files of a grid: backbones, corpora and task documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ghostlab_definitions::{ChatTemplate, Rows};
use rayon::prelude::*;
use serde_json::{Value, json};

use crate::corpus;
use crate::error::{Error, Result};
use crate::files::gguf::is_gguf;
use crate::files::{parts, regular, sha256};
use crate::generate::{GENERATION_CONFIG, GenerationConfig};
use crate::grid::{Corpus, EvalTask, Grid};
use crate::model::weights::Weights;
use crate::model::{self, Config};
use crate::pipeline::identity::ModelId;
use crate::sandbox::{self, Probe};
use crate::tasks::DocumentLimit;
use ghostlab_store::{Input, Store};

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

pub struct Inputs {
    by_path: BTreeMap<PathBuf, Input>,
    /// Number of documents in each built-in task that has a limit.
    documents: BTreeMap<String, usize>,
    /// Identity of each backbone with weights as stored, by folder.
    models: BTreeMap<PathBuf, ModelId>,
}

#[derive(Clone, Copy)]
pub(crate) struct GridInputs<'a> {
    pub(crate) grid: &'a Grid,
    pub(crate) inputs: &'a Inputs,
}

fn new_file_error(file: &Path) -> Error {
    Error::bad_input("an input file was added after the inputs were hashed")
        .at(file.display().to_string())
        .hint("run the same command again, and do not add input files while it starts")
}

impl Inputs {
    /// Hashes all input files except the grid file, whose settings are part of the keys.
    pub(crate) fn read(grid: &Grid, store: &Store) -> Result<Self> {
        let mut files = BTreeSet::new();
        for backbone in grid.backbones.values() {
            files.extend([parts::config_path(&backbone.path), parts::tokenizer_path(&backbone.path)]);
            files.extend(Weights::files(&backbone.path)?);
            files.extend(Some(parts::sibling_file(&backbone.path, TOKENIZER_CONFIG)).filter(|file| file.exists()));
            files.extend(corpus::files_beside(&parts::tokenizer_path(&backbone.path)));
            if grid.task_data().any(|(_, data)| data.is_generative()) {
                files.extend(Some(parts::sibling_file(&backbone.path, GENERATION_CONFIG)).filter(|file| file.exists()));
            }
            if grid.evaluate.tasks.iter().any(|task| task.how.chat.is_some()) {
                let template = parts::sibling_file(&backbone.path, "chat_template.jinja");
                files.extend(Some(template).filter(|file| file.exists()));
            }
        }
        files.extend(grid.corpora.values().flat_map(Corpus::files));
        for (_, data) in grid.task_data() {
            files.extend(data.rows()?.splits.values().flatten().cloned());
        }
        let files: Vec<PathBuf> = files.into_iter().collect();
        let by_path =
            files.into_par_iter().map(|file| store.input(&file).map(|input| (file, input))).collect::<Result<_>>()?;
        let inputs = Self { by_path, documents: BTreeMap::new(), models: BTreeMap::new() };
        let models = grid.backbones.values().map(|backbone| {
            let folder = &backbone.path;
            let content = inputs.hash_content(folder, store)?;
            let tokenizer = inputs.hash_tokenizer(folder)?;
            Ok((folder.clone(), ModelId { content, tokenizer, weights: None }))
        });
        let models = models.collect::<Result<_>>()?;
        Ok(Self { documents: inputs.count_documents(grid)?, models, ..inputs })
    }

    pub(crate) fn file_hash(&self, file: &Path) -> Result<&str> {
        self.by_path.get(file).map(Input::sha256).ok_or_else(|| new_file_error(file))
    }

    /// Returns the identity of a backbone whose weights are used as stored.
    pub(crate) fn model_id(&self, folder: &Path) -> Result<ModelId> {
        self.models.get(folder).cloned().ok_or_else(|| new_file_error(folder))
    }

    /// Returns the hash of a tokenizer, including tokens that other tokenizer files in its folder add.
    fn hash_tokenizer(&self, folder: &Path) -> Result<String> {
        let file = parts::tokenizer_path(folder);
        let file_hash = self.file_hash(&file)?.to_owned();
        let files_beside = corpus::files_beside(&file);
        let files: Vec<&Path> = [file.as_path()].into_iter().chain(files_beside.iter().map(PathBuf::as_path)).collect();
        let added = self.read_unchanged(&files, || corpus::added_beside(&file))?;
        Ok(match added {
            None => file_hash,
            Some(added) => sha256::of_bytes(json!({"tokenizer": file_hash, "added": added}).to_string()),
        })
    }

    /// Returns the content hash of a backbone. Hashes of weight files are cached.
    fn hash_content(&self, folder: &Path, store: &Store) -> Result<String> {
        self.read_unchanged(&[folder], || {
            model::content(&Config::read_with_attachments(folder)?, folder, |file: &Path| {
                let input = self.by_path.get(file).ok_or_else(|| new_file_error(file))?;
                store.cached_result(file, input, "tensors", || model::tensor_hashes(file))
            })
        })
    }

    /// Reads `config.json` and `tokenizer_config.json`. Special tokens from other tokenizer files are added to the
    /// latter. A missing file is read as null.
    pub fn read_configs(&self, folder: &Path) -> Result<[Value; 2]> {
        let [config, tokenizer] = [parts::config_path(folder), parts::sibling_file(folder, TOKENIZER_CONFIG)];
        let files_beside = corpus::files_beside(&tokenizer);
        let files: Vec<&Path> =
            [config.as_path()].into_iter().chain(files_beside.iter().map(PathBuf::as_path)).collect();
        self.read_unchanged(&files, || Ok([read_config(&config)?, corpus::tokenizer_config(&tokenizer)?]))
    }

    /// Reads the generation settings of a backbone.
    ///
    /// # Errors
    /// Fails if a setting is not supported.
    pub(crate) fn read_generation_config(&self, folder: &Path, config: &Value) -> Result<GenerationConfig> {
        let file = parts::sibling_file(folder, GENERATION_CONFIG);
        self.read_unchanged(&[&file], || GenerationConfig::read(&read_json(&file)?, config))
            .map_err(|error| error.at(folder.display()))
    }

    /// Reads the chat template of a backbone.
    ///
    /// # Errors
    /// Fails if the backbone has no chat template.
    pub(crate) fn read_chat_template(&self, folder: &Path) -> Result<ChatTemplate> {
        let files = [TOKENIZER_CONFIG, "chat_template.jinja"].map(|name| parts::sibling_file(folder, name));
        self.read_unchanged(&[&parts::config_path(folder), &files[0], &files[1]], || {
            sandbox::check_probe(Probe::Chat { folder: folder.to_owned() })?;
            ChatTemplate::from_folder(folder)
        })
    }

    /// Calls `read`, and checks that the files at or below `paths` have not changed since they were hashed. Otherwise,
    /// results could be stored under the hash of different inputs.
    ///
    /// # Errors
    /// Propagates errors from `read`. Fails with exit code 2 if a file has changed.
    pub fn read_unchanged<T>(&self, paths: &[&Path], read: impl FnOnce() -> Result<T>) -> Result<T> {
        let files = self.by_path.iter().map(|(path, input)| (path.as_path(), input));
        let files: Vec<_> = files.filter(|(file, _)| paths.iter().any(|path| file.starts_with(path))).collect();
        match paths.iter().find(|path| !files.iter().any(|(file, _)| file.starts_with(path)) && path.exists()) {
            Some(path) => Err(new_file_error(path)),
            None => Store::read_unchanged(&files, read),
        }
    }

    fn count_documents(&self, grid: &Grid) -> Result<BTreeMap<String, usize>> {
        let limited = grid.evaluate.builtin().filter(|task| task.how.limit.is_some());
        let mut tasks: Vec<&EvalTask> = limited.collect();
        tasks.sort_by(|a, b| a.name.cmp(&b.name));
        tasks.dedup_by(|a, b| a.name == b.name);
        tasks
            .into_par_iter()
            .map(|task| {
                let data = grid.task(task);
                let definition = data.definition()?;
                let files = data.rows()?;
                let paths: Vec<&Path> = files.evaluated(definition).iter().map(PathBuf::as_path).collect();
                let rows = self.read_unchanged(&paths, || {
                    sandbox::check_probe(data.probe(&task.how, Path::new(""))?)?;
                    let rows = files.rows(&definition.data, definition.evaluated_split());
                    rows.map_err(|error| error.at(format!("task {}", definition.name)))
                })?;
                Ok((task.name.clone(), rows.len()))
            })
            .collect()
    }

    /// Returns the effective limit for a task. A limit on a built-in task is dropped if it excludes no documents,
    /// because it then has no effect on the results.
    pub(crate) fn effective_limit(&self, task: &EvalTask) -> Result<Option<f64>> {
        let documents = self.documents.get(&task.name).filter(|_| !task.defined);
        let (Some(limit), Some(&documents)) = (task.how.limit, documents) else { return Ok(task.how.limit) };
        Ok((DocumentLimit::new(limit)?.apply(documents) < documents).then_some(limit))
    }

    /// Returns the SHA-256 of each input file, by path.
    pub fn hashes_by_path(&self) -> BTreeMap<String, String> {
        self.by_path.iter().map(|(path, hash)| (path.display().to_string(), hash.sha256().to_string())).collect()
    }
}

fn read_config(config: &Path) -> Result<Value> {
    if is_gguf(config) { model::gguf_config(config) } else { read_json(config) }
}

/// Reads a JSON file. Returns null if the file does not exist.
fn read_json(path: &Path) -> Result<Value> {
    if !path.exists() {
        return Ok(Value::Null);
    }
    let text = regular::read(path)?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::bad_input("invalid JSON").at(path.display().to_string()).found(error.to_string()))
}

/// Returns warnings about cuts that a criterion of a search cannot select, texts used for both calibration and
/// evaluation, and calibrations with too few tokens.
pub fn warnings(grid: &Grid, hashes: &BTreeMap<String, String>) -> Vec<String> {
    let unselectable = grid.search.iter().flat_map(|search| &search.unselectable);
    let mut warnings: Vec<String> = unselectable
        .map(|unselectable| format!("skipped {unselectable} of `{}`: {}", unselectable.backbone, unselectable.reason))
        .collect();
    for calibration in &grid.calibration {
        let calibrated = &calibration.corpus;
        for evaluated in grid.evaluate.perplexity.iter().map(|text| &text.corpus) {
            if corpus_content(grid, hashes, calibrated).is_none()
                || corpus_content(grid, hashes, calibrated) != corpus_content(grid, hashes, evaluated)
            {
                continue;
            }
            let overlap = match calibrated == evaluated {
                true => format!("`{calibrated}` is used for both calibration and evaluation"),
                false => format!(
                    "`{calibrated}` and `{evaluated}` are the same file, used for both calibration and evaluation"
                ),
            };
            let warning = format!("{overlap}: the perplexity is biased, because methods have seen the text.");
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    warnings.extend(shortage_warnings(grid));
    warnings
}

/// Returns distinct warnings about calibrations with too few tokens to fit the operators of a cell.
fn shortage_warnings(grid: &Grid) -> Vec<String> {
    let mut channels: BTreeMap<&str, Option<usize>> = BTreeMap::new();
    let mut warnings = Vec::new();
    for cell in &grid.cells {
        let (Some(calibration), Some(recovery)) = (&cell.calibration, &cell.recovery) else { continue };
        if !recovery.rule.is_fitted() {
            continue;
        }
        // Ignore configs that cannot be read. Planning the backbone reports them.
        let hidden = *channels.entry(&cell.backbone).or_insert_with(|| {
            let backbone = grid.backbones.get(&cell.backbone)?;
            Config::read_with_attachments(&backbone.path).ok().map(|config| config.hidden)
        });
        let warning = hidden.and_then(|hidden| calibration.shortage(&cell.backbone, hidden));
        warnings.extend(warning.filter(|warning| !warnings.contains(warning)));
    }
    warnings
}

/// Returns the hash of each file of a corpus, or the path of a file that has no hash. Returns `None` if the grid does
/// not define the corpus.
fn corpus_content(grid: &Grid, hashes: &BTreeMap<String, String>, corpus: &str) -> Option<Vec<String>> {
    Some(
        grid.corpora
            .get(corpus)?
            .files()
            .into_iter()
            .map(|file| {
                let file = file.display().to_string();
                hashes.get(&file).cloned().unwrap_or(file)
            })
            .collect::<Vec<_>>(),
    )
}
