//! Atomic checkpoint of an unfinished run: weights, both moments, and progress.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::optimizer::Moments;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::write_whole;
use ghostlab_core::files::sha256;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Fingerprint of the run ([`super::recipe::Recipe::fingerprint`]).
    pub fingerprint: String,
    /// Number of completed steps, which determines the position in the data.
    pub step: usize,
    /// Total training time, including interrupted runs.
    pub seconds: f64,
    pub history: Vec<StoredTensor>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredTensor {
    pub step: usize,
    /// Mean loss of the steps since the previous entry.
    pub train_loss: f64,
    /// Mean over the registers, if measured at this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
}

/// State of a run between two steps.
#[derive(Debug, Clone, Default)]
pub struct TrainState {
    pub progress: Progress,
    pub weights: Vec<f32>,
    pub moments: Moments,
}

const PROGRESS: &str = "progress";
/// Checksum of the progress and all numbers, in the order listed here. Otherwise training would continue after a bit
/// flip, and a forged step count would export an unfinished model.
const CHECKSUM: &str = "sha256";
const PARTS: [&str; 3] = ["weights", "first_moment", "second_moment"];

fn checksum<'a>(progress: &str, parts: impl Iterator<Item = &'a [u8]>) -> String {
    let of_parts = parts.map(sha256::of_bytes);
    sha256::of_bytes(of_parts.fold(sha256::of_bytes(progress), |all, one| all + " " + &one))
}

impl TrainState {
    /// Writes the checkpoint through a temporary file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let parts = [&self.weights, &self.moments.first, &self.moments.second];
        let bytes = parts.map(|values| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        let mut views = Vec::new();
        for ((name, values), bytes) in PARTS.iter().zip(parts).zip(&bytes) {
            let view = TensorView::new(Dtype::F32, vec![values.len()], bytes);
            views.push((*name, view.map_err(|error| unfit(error.to_string()))?));
        }
        let progress = serde_json::to_string(&self.progress).map_err(|error| unfit(error.to_string()))?;
        let sum = checksum(&progress, bytes.iter().map(Vec::as_slice));
        let notes = HashMap::from([(PROGRESS.to_string(), progress), (CHECKSUM.to_string(), sum)]);
        let packed = safetensors::serialize(views, Some(notes)).map_err(|error| unfit(error.to_string()))?;
        write_whole(path, &packed)
    }

    /// Reads a checkpoint, if one exists.
    ///
    /// # Errors
    /// Fails if the file is damaged or belongs to another run.
    pub fn load(path: &Path, fingerprint: &str) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, &error))?;
        let shown = path.display().to_string();
        let damaged = |found: String| {
            Error::damaged("a checkpoint cannot be read")
                .at(&shown)
                .expected("what an interrupted training left")
                .found(found)
                .hint("delete it to begin anew")
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| damaged(error.to_string()))?;
        let note = |name: &str| {
            let found = header.metadata().as_ref().and_then(|map| map.get(name));
            found.ok_or_else(|| damaged(format!("no {name} in its header")))
        };
        let text = note(PROGRESS)?;
        let sum = note(CHECKSUM)?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
        let tensor = |name: &str| match tensors.tensor(name) {
            Ok(tensor) if tensor.dtype() == Dtype::F32 => Ok(tensor),
            Ok(tensor) => Err(damaged(format!("{name} of type {:?}", tensor.dtype()))),
            Err(error) => Err(damaged(error.to_string())),
        };
        let parts = PARTS.into_iter().map(tensor).collect::<Result<Vec<_>>>()?;
        if checksum(text, parts.iter().map(TensorView::data)) != *sum {
            return Err(damaged("other numbers than its checksum is of".into()));
        }
        let progress: Progress = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
        if progress.fingerprint != fingerprint {
            return Err(Error::bad_input("the checkpoint is of another run")
                .at(shown)
                .expected(format!("recipe and corpus {fingerprint}"))
                .found(progress.fingerprint)
                .hint("choose another folder, or delete the checkpoint to begin anew"));
        }
        let [weights, first, second] = [0, 1, 2].map(|part| {
            let (words, _) = parts[part].data().as_chunks::<4>();
            words.iter().map(|word| f32::from_le_bytes(*word)).collect::<Vec<f32>>()
        });
        Ok(Some(Self { progress, weights, moments: Moments { first, second } }))
    }
}

fn unfit(error: String) -> Error {
    Error::job("a checkpoint cannot be packed").found(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> TrainState {
        TrainState {
            progress: Progress { fingerprint: "f".into(), step: 7, seconds: 1.5, history: Vec::new() },
            weights: numbers(0.5),
            moments: Moments { first: numbers(1.0), second: numbers(2.0) },
        }
    }

    fn numbers(from: f32) -> Vec<f32> {
        (0..40).map(|i| from + i as f32).collect::<Vec<f32>>()
    }

    #[test]
    fn flipped_bit_or_forged_step_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.safetensors");
        state().save(&path).unwrap();
        let back = TrainState::load(&path, "f").unwrap().unwrap();
        assert_eq!((back.progress, back.weights), (state().progress, state().weights));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 7);
            std::fs::write(&path, bytes).unwrap();
            let Err(error) = TrainState::load(&path, "f") else {
                // Blanks after the end of the header are ignored.
                assert_eq!(whole[at], b' ', "byte {at}");
                continue;
            };
            // A changed fingerprint looks like another run.
            assert!(
                matches!(error.exit_code(), 2 | 5) && error.to_string().contains("checkpoint"),
                "byte {at}: {error}"
            );
        }
        let step = br#"\"step\":7"#;
        let at = whole.windows(step.len()).position(|window| window == step).unwrap();
        let mut bytes = whole;
        bytes[at + step.len() - 1] = b'9';
        std::fs::write(&path, bytes).unwrap();
        let message = TrainState::load(&path, "f").unwrap_err().to_string();
        assert!(message.contains("other numbers than its checksum"), "{message}");
    }
}
