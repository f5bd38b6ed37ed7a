//! Export of a trained backbone as Hugging Face files, with a manifest of how it was made.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use half::f16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::batch::Score;
use super::checkpoint::StoredTensor;
use super::corpus::Origin;
use super::parameters::Parameters;
use super::recipe::Recipe;
use super::tokenizer::Tokens;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::write_whole;
use ghostlab_core::files::sha256;

pub const MANIFEST: &str = "manifest.json";
pub const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";

/// Record of how a backbone was made. The same recipe, corpus and program reproduce it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub fingerprint: String,
    pub recipe: Recipe,
    pub parameters: usize,
    pub steps: usize,
    pub tokens: usize,
    pub epochs: f64,
    pub seconds: f64,
    pub tokens_per_second: f64,
    pub threads: usize,
    /// Name, version and commit.
    pub program: String,
    pub corpus: Vec<Origin>,
    pub train_loss: f64,
    /// Validation scores of the stored f16 weights.
    pub validation: Vec<Score>,
    pub files: BTreeMap<String, FileEntry>,
    pub history: Vec<StoredTensor>,
}

/// Size and hash of one file in the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub bytes: u64,
    pub sha256: String,
}

/// Rounds the weights to f16.
///
/// # Errors
/// Fails if a weight exceeds the range of f16, and names its tensor.
pub fn rounded(parameters: &Parameters, weights: &[f32]) -> Result<Vec<f32>> {
    let rounded: Vec<f32> = weights.iter().map(|&weight| f16::from_f32(weight).to_f32()).collect();
    if let Some(at) = rounded.iter().position(|weight| !weight.is_finite()) {
        let name = parameters.list.iter().find(|parameter| parameter.range.contains(&at));
        return Err(Error::job("a trained weight does not fit into f16")
            .at(name.map_or(String::new(), |parameter| format!("tensor {}", parameter.name)))
            .expected("a finite number below 65504")
            .found(weights[at])
            .hint("the training diverged: lower the learning rate"));
    }
    Ok(rounded)
}

/// Writes config, tokenizer and weights.
///
/// # Errors
/// Fails if a file cannot be written.
pub fn write(
    folder: &Path,
    recipe: &Recipe,
    tokens: &Tokens,
    parameters: &Parameters,
    weights: &[f32],
) -> Result<BTreeMap<String, FileEntry>> {
    let config = pretty(&recipe.shape.config(tokens.end))?;
    let tokenizer_config = pretty(&tokens.config(recipe.shape.context))?;
    let files = [
        ("config.json", config.into_bytes()),
        ("tokenizer_config.json", tokenizer_config.into_bytes()),
        (TOKENIZER, tokens.json()?.into_bytes()),
        (WEIGHTS, pack(parameters, weights)?),
    ];
    let mut entries = BTreeMap::new();
    for (name, bytes) in files {
        write_whole(&folder.join(name), &bytes)?;
        let entry = FileEntry { bytes: bytes.len() as u64, sha256: sha256::of_bytes(&bytes) };
        entries.insert(name.to_string(), entry);
    }
    Ok(entries)
}

impl Manifest {
    /// Writes the manifest.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let value =
            serde_json::to_value(self).map_err(|error| Error::job("the manifest cannot be written").found(error))?;
        write_whole(&folder.join(MANIFEST), pretty(&value)?.as_bytes())
    }

    /// Reads the manifest of a folder, if one exists.
    ///
    /// # Errors
    /// Fails if the file is unreadable.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(MANIFEST);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = std::fs::read(&path).map_err(|error| Error::io("read", &path, &error))?;
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| Error::damaged("a manifest cannot be read").at(path.display()).found(error))
    }
}

pub(crate) fn pretty(value: &Value) -> Result<String> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Error::job("JSON cannot be written").found(error))?;
    Ok(text + "\n")
}

/// Packs `model.safetensors` in f16. transformers requires the metadata entry `format`.
fn pack(parameters: &Parameters, weights: &[f32]) -> Result<Vec<u8>> {
    let narrow: Vec<u8> = weights.iter().flat_map(|&weight| f16::from_f32(weight).to_le_bytes()).collect();
    let mut views = Vec::new();
    for parameter in &parameters.list {
        let bytes = &narrow[2 * parameter.range.start..2 * parameter.range.end];
        views.push((
            parameter.name.clone(),
            TensorView::new(Dtype::F16, parameter.shape.clone(), bytes).map_err(unfit)?,
        ));
    }
    safetensors::serialize(views, Some(HashMap::from([("format".to_string(), "pt".to_string())]))).map_err(unfit)
}

fn unfit(error: safetensors::SafeTensorError) -> Error {
    Error::job("weights cannot be packed").found(error)
}
