//! An unfinished run on the disk: weights, both moments, and how far it came. Whole or not there.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::optimizer::Moments;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::write_atomically;

/// How far a run came.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Which run it is ([`super::recipe::Recipe::fingerprint`]).
    pub fingerprint: String,
    /// Steps done. The position in the data follows from it.
    pub step: usize,
    /// Time spent in training, over all its parts.
    pub seconds: f64,
    pub history: Vec<Entry>,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub step: usize,
    /// Mean over the steps since the entry before.
    pub train_loss: f64,
    /// The mean over the registers, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
}

/// A run between two steps.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub progress: Progress,
    pub weights: Vec<f32>,
    pub moments: Moments,
}

const PROGRESS: &str = "progress";

impl State {
    /// Writes it through a temporary file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let unfit = |error: String| Error::job("a checkpoint cannot be packed").found(error);
        let parts = [
            ("weights", &self.weights),
            ("first_moment", &self.moments.first),
            ("second_moment", &self.moments.second),
        ];
        let bytes = parts.map(|(name, values)| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (name, values.len(), bytes)
        });
        let mut views = Vec::new();
        for (name, count, bytes) in &bytes {
            let view = TensorView::new(Dtype::F32, vec![*count], bytes).map_err(|error| unfit(error.to_string()))?;
            views.push((*name, view));
        }
        let progress = serde_json::to_string(&self.progress).map_err(|error| unfit(error.to_string()))?;
        let packed = safetensors::serialize(views, Some(HashMap::from([(PROGRESS.to_string(), progress)])))
            .map_err(|error| unfit(error.to_string()))?;
        write_atomically(path, |file| file.write_all(&packed).map_err(|error| Error::io("write", path, &error)))
    }

    /// Reads a checkpoint; nothing where there is none.
    ///
    /// # Errors
    /// A damaged file, or one of another run.
    pub fn load(path: &Path, fingerprint: &str) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, &error))?;
        let place = path.display().to_string();
        let damaged = |found: String| {
            Error::damaged("a checkpoint cannot be read")
                .at(&place)
                .expected("what an interrupted training left")
                .found(found)
                .hint("delete it to begin anew")
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| damaged(error.to_string()))?;
        let progress = header.metadata().as_ref().and_then(|map| map.get(PROGRESS));
        let progress = progress.ok_or_else(|| damaged("no progress in its header".into()))?;
        let progress: Progress = serde_json::from_str(progress).map_err(|error| damaged(error.to_string()))?;
        if progress.fingerprint != fingerprint {
            return Err(Error::bad_input("the checkpoint is of another run")
                .at(place)
                .expected(format!("recipe and corpus {fingerprint}"))
                .found(progress.fingerprint)
                .hint("choose another folder, or delete the checkpoint to begin anew"));
        }
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
        let values = |name: &str| -> Result<Vec<f32>> {
            let tensor = tensors.tensor(name).map_err(|error| damaged(error.to_string()))?;
            let (words, _) = tensor.data().as_chunks::<4>();
            Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
        };
        let moments = Moments { first: values("first_moment")?, second: values("second_moment")? };
        Ok(Some(Self { progress, weights: values("weights")?, moments }))
    }
}
