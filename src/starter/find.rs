//! Models, texts and tasks that a starter grid is built from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::corpus::{Tokenizer, file_format};
use crate::error::{Error, Result};
use crate::files::gguf::is_gguf;
use crate::files::{self, parts};
use crate::model::{Config, check_weights};

/// Model to prune.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) config: Config,
    /// Numbers of layers to remove, from the depths of the grid.
    pub(super) depths: Vec<usize>,
}

impl Model {
    fn read(folder: &Path) -> Result<Self> {
        let config = Config::read(folder)?;
        check_weights(&config, folder)?;
        let tokenizer = Tokenizer::load(parts::tokenizer_path(folder))?;
        if tokenizer.vocab_size() > config.vocab {
            return Err(Error::bad_input("the tokenizer's vocabulary exceeds the embedding")
                .expected(format!("token ids below {}", config.vocab))
                .found(format!("ids up to {}", tokenizer.vocab_size() - 1)));
        }
        Ok(Self {
            name: model_name(folder),
            path: folder.to_owned(),
            tokenizer: Arc::new(tokenizer),
            config,
            depths: Vec::new(),
        })
    }
}

/// Text used for calibration or scoring.
#[derive(Debug, Clone)]
pub(super) struct Corpus {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Whether the text is used for calibration. If not, it is scored.
    pub(super) is_calibration: bool,
    pub(super) is_generated: bool,
}

/// Returns the user's texts. The first text is used for calibration, and the others are scored.
///
/// # Errors
/// Fails if there is only one file, or if a file cannot be read as text.
pub(super) fn read_texts(files: &[PathBuf]) -> Result<Vec<Corpus>> {
    if let [single] = files {
        return Err(Error::bad_input("no text to score")
            .at(single.display())
            .expected("two texts, one for calibration and one for scoring")
            .found("one"));
    }
    let mut texts: Vec<Corpus> = Vec::new();
    for path in files {
        file_format(path)?;
        let stem = file_stem(path);
        let free = (1..)
            .map(|number| if number == 1 { stem.clone() } else { format!("{stem}-{number}") })
            .find(|name| texts.iter().all(|text| text.name != *name));
        let name = free.unwrap_or_default();
        texts.push(Corpus { name, path: path.clone(), is_calibration: texts.is_empty(), is_generated: false });
    }
    Ok(texts)
}

/// Returns the last component of the absolute path. The extension of a GGUF file is dropped.
fn model_name(folder: &Path) -> String {
    let absolute = files::absolute(folder);
    let last = absolute.components().rev().find_map(|part| match part {
        std::path::Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    });
    let last = last.unwrap_or_else(|| "model".to_owned());
    if is_gguf(folder) { last[..last.len() - ".gguf".len()].to_owned() } else { last }
}

/// Returns the first non-empty part of a file name that is split at dots, or `text` if there is none.
pub(super) fn file_stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').find(|part| !part.is_empty()).unwrap_or("text").to_owned()
}

/// Directories whose models cannot be used, each with the reason.
pub(super) type UnusableModels = Vec<(PathBuf, Error)>;

/// Number of directory levels to search below the given directory: two, to find `org/name` in `models`.
const MAX_SEARCH_DEPTH: usize = 2;

/// Returns the usable models in a directory, and the directories of unusable models with reasons.
///
/// # Errors
/// Fails if the directory cannot be read or contains no usable model.
pub(super) fn find_models(folder: &Path) -> Result<(Vec<Model>, UnusableModels)> {
    let is_model_file = is_gguf(folder) && folder.is_file();
    let candidates = if is_model_file {
        vec![folder.to_owned()]
    } else if folder.is_file() {
        return Err(no_model_error(folder, &[]).found("a different file type"));
    } else {
        std::fs::read_dir(folder).map_err(|error| Error::folder_io("read", folder, &error))?;
        find_model_folders(folder, MAX_SEARCH_DEPTH)
    };
    let mut models = Vec::<Model>::new();
    let mut skipped_directories = Vec::new();
    for found in candidates {
        match Model::read(&found) {
            Ok(model) => models.push(model),
            Err(error) => skipped_directories.push((found, error)),
        }
    }
    if models.is_empty() {
        return Err(no_model_error(folder, &skipped_directories));
    }
    // Distinguish `a/model` from `b/model`.
    let names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
    for model in &mut models {
        if names.iter().filter(|name| **name == model.name).count() > 1
            && let Some(parent) = model.path.parent()
        {
            model.name = format!("{}-{}", model_name(parent), model.name);
        }
    }
    Ok((models, skipped_directories))
}

/// Finds GGUF files and directories that contain a config or weights, sorted by name. Does not search inside such
/// directories.
fn find_model_folders(folder: &Path, levels: usize) -> Vec<PathBuf> {
    let mut inner = files::entries(folder).unwrap_or_default();
    if folder.join("config.json").exists()
        || inner.iter().any(|path| path.extension().is_some_and(|ending| ending == "safetensors"))
    {
        return vec![folder.to_owned()];
    }
    let files: Vec<PathBuf> = inner.iter().filter(|path| is_gguf(path)).cloned().collect();
    inner.retain(|path| levels > 0 && path.is_dir() && !is_hidden(path));
    files.into_iter().chain(inner.iter().flat_map(|path| find_model_folders(path, levels.saturating_sub(1)))).collect()
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

pub(super) fn no_model_error(folder: &Path, skipped_directories: &[(PathBuf, Error)]) -> Error {
    let position = folder.display().to_string();
    let expected =
        "a folder with config.json, tokenizer.json and *.safetensors, a .gguf file, or a parent of such folders";
    if skipped_directories.is_empty() {
        return Error::missing("no model found").at(position).expected(expected).found("none");
    }
    let each = skipped_directories.iter().map(|(path, error)| format!("{}: {}", path.display(), error.one_line()));
    Error::bad_input("no usable model found").at(position).expected(expected).found(each.collect::<Vec<_>>().join("\n"))
}

/// Returns the bundled synthetic texts: one for calibration and one for scoring.
pub(super) fn find_embedded_texts(folder: Option<&Path>) -> Result<Vec<Corpus>> {
    let folder = folder.ok_or_else(missing_text_error)?.join("corpora");
    let texts = vec![build_embedded_text(&folder, "train", true), build_embedded_text(&folder, "test", false)];
    if texts.iter().all(|text| text.path.is_file()) { Ok(texts) } else { Err(missing_text_error()) }
}

fn missing_text_error() -> Error {
    Error::missing("no text for calibration and scoring")
        .expected("--corpus FILE, or the bundled texts")
        .found("neither")
        .hint("pass a text, for example --corpus notes.txt (or .jsonl, .jsonl.gz, .parquet)")
}

fn build_embedded_text(folder: &Path, name: &str, is_calibration: bool) -> Corpus {
    Corpus {
        name: name.to_owned(),
        path: folder.join(format!("wiki-{name}.jsonl.gz")),
        is_calibration,
        is_generated: true,
    }
}

pub(super) fn find_embedded_tasks(folder: &Path, task_names: &[&str]) -> Vec<(String, PathBuf)> {
    let files =
        task_names.iter().map(|name| ((*name).to_owned(), folder.join("tasks").join(format!("{name}.jsonl.gz"))));
    files.filter(|(_, file)| file.is_file()).collect()
}
