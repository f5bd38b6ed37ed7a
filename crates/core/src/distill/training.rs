//! Training of an operator's matrix: training text, optimizer and steps.

use candle_core::{DType, Device, Tensor, Var};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::teacher::TopTokens;
use crate::error::{Error, Result};
use crate::linalg::adam::Adam;
use crate::model::LayersAfter;
use crate::model::candle::ops;

/// Training run for the matrix of one operator.
pub struct Training<'a> {
    layers: &'a LayersAfter,
    state: Checkpoint,
}

/// Training state. A run that resumes from it produces the same bytes as an uninterrupted run.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Row-major matrix `W [C, C]`.
    pub matrix: Vec<f32>,
    pub adam: Adam,
    /// Loss of each completed step.
    pub losses: Vec<f64>,
}

impl Checkpoint {
    /// Returns the state before the first step.
    pub fn start(matrix: Vec<f32>) -> Self {
        let adam = Adam::new(matrix.len(), Finetune::LEARNING_RATE).with_weight_decay(Finetune::WEIGHT_DECAY);
        Self { matrix, adam, losses: Vec::new() }
    }

    /// Serializes the number of steps, the matrix, both AdamW moments and the losses as little-endian numbers.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (first, second) = self.adam.moments();
        let numbers = self.matrix.iter().chain(first).chain(second).flat_map(|value| value.to_le_bytes());
        let mut bytes = (self.losses.len() as u64).to_le_bytes().to_vec();
        bytes.extend(numbers);
        bytes.extend(self.losses.iter().flat_map(|loss| loss.to_le_bytes()));
        bytes
    }

    /// Parses the output of [`Self::to_bytes`].
    ///
    /// # Errors
    /// Fails with kind `Damaged` if the number of bytes does not match the number of steps.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (count, rest) = bytes.split_at_checked(8).ok_or_else(length_error)?;
        let steps = u64::from_le_bytes(count.try_into().map_err(|_| length_error())?) as usize;
        let number_bytes =
            steps.checked_mul(8).and_then(|bytes| rest.len().checked_sub(bytes)).ok_or_else(length_error)?;
        if !number_bytes.is_multiple_of(12) {
            return Err(length_error());
        }
        let (numbers, losses) = rest.split_at(number_bytes);
        let numbers: Vec<f32> = numbers.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let count = numbers.len() / 3;
        let [matrix, first, second] = [0, 1, 2].map(|part| numbers[part * count..(part + 1) * count].to_vec());
        let mut state = Self::start(matrix);
        state.adam = state.adam.with_state(steps, first, second);
        state.losses = losses.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        Ok(state)
    }
}

fn length_error() -> Error {
    Error::damaged("the size of the training checkpoint does not match its header")
}

impl<'a> Training<'a> {
    /// Starts or resumes a training run.
    ///
    /// # Errors
    /// Fails if the matrix or the optimizer state in `state` does not match the hidden size of the layers.
    pub fn new(layers: &'a LayersAfter, state: Checkpoint) -> Result<Self> {
        let c = layers.channels();
        if state.matrix.len() != c * c || state.adam.parameters() != c * c {
            return Err(Error::job("the checkpoint does not match the backbone's hidden size")
                .expected(format!("{} parameters", c * c))
                .found(format!(
                    "{} matrix elements and {} optimizer parameters",
                    state.matrix.len(),
                    state.adam.parameters()
                )));
        }
        Ok(Self { layers, state })
    }

    /// Returns the number of completed steps.
    pub fn steps(&self) -> usize {
        self.state.losses.len()
    }

    pub fn state(&self) -> &Checkpoint {
        &self.state
    }

    /// Trains on one sequence. Returns the loss before the update.
    ///
    /// # Shapes
    /// `stream [positions, C]`, the input of the first removed layer of the dense backbone.
    ///
    /// # Errors
    /// Fails if the loss or the gradient is not finite because training diverged.
    pub fn step(&mut self, stream: &[f32], teacher: &TopTokens) -> Result<f64> {
        let (loss, gradient) = self.loss_and_gradient(stream, teacher)?;
        if !loss.is_finite() || gradient.iter().any(|g| !g.is_finite()) {
            return Err(Error::job("training diverged: the loss or the gradient is not finite")
                .at(format!("step {}", self.steps() + 1))
                .found(loss));
        }
        self.state.adam.update(&mut self.state.matrix, &gradient);
        self.state.losses.push(loss);
        Ok(loss)
    }

    /// Computes the loss of a sequence and its gradient with respect to the matrix, `[C, C]`. Either may be non-finite.
    ///
    /// # Errors
    /// Fails if a tensor operation fails.
    pub fn loss_and_gradient(&self, stream: &[f32], teacher: &TopTokens) -> Result<(f64, Vec<f32>)> {
        let c = self.layers.channels();
        let device = self.layers.device();
        let matrix = Var::from_tensor(&Tensor::from_slice(&self.state.matrix, (c, c), device)?)?;
        let stream = Tensor::from_slice(stream, (stream.len() / c, c), device)?;
        let stream = ops::apply_matrix(&stream, matrix.as_tensor())?;
        let loss = kl_divergence(&self.layers.logits(&stream)?, teacher)?;
        let gradients = loss.backward()?;
        let gradient =
            gradients.get(&matrix).ok_or_else(|| Error::job("the loss has no gradient with respect to the matrix"))?;
        let gradient = gradient.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Ok((f64::from(loss.to_dtype(DType::F32)?.to_scalar::<f32>()?), gradient))
    }
}

/// Computes the Kullback-Leibler divergence of the student from the teacher, averaged over positions. Both
/// distributions are restricted to the teacher's most likely tokens.
///
/// # Shapes
/// `logits [positions, vocab]`; result a scalar.
fn kl_divergence(logits: &Tensor, teacher: &TopTokens) -> Result<Tensor> {
    let positions = logits.dim(0)?;
    let device = logits.device();
    let tokens = Tensor::from_slice(&teacher.tokens, (positions, teacher.kept), device)?;
    let teacher_logits = Tensor::from_slice(&teacher.logits, (positions, teacher.kept), device)?;
    let teacher = ops::log_softmax(&teacher_logits)?;
    let student = ops::log_softmax(&ops::widen(logits)?.gather(&tokens, 1)?)?;
    let divergence = (teacher.exp()? * (teacher - student)?)?;
    Ok((divergence.sum_all()? / positions as f64)?)
}

/// Training text for an operator: sequences drawn from the calibration corpus like the calibration sequences. Each
/// sequence is used for one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finetune {
    /// Number of sequences, which is also the number of steps.
    #[schemars(range(min = 1))]
    pub sequences: usize,
    /// Tokens per sequence.
    #[schemars(range(min = 2))]
    pub length: usize,
    /// Seed for drawing sequences.
    #[serde(default)]
    pub seed: u64,
}

/// Constants from appendix D of the Ghosted Layers paper. LinearPatch uses the same values.
impl Finetune {
    /// Learning rate of AdamW, constant over all steps.
    pub const LEARNING_RATE: f32 = 1e-4;
    pub const WEIGHT_DECAY: f32 = 1e-4;
    /// Number of the teacher's most likely tokens that are compared at each position.
    pub const TOP_TOKENS: usize = 100;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_matches_its_definition_on_the_teachers_tokens() {
        let logits = Tensor::new(&[[0.0f32, 1.0, 3.0], [2.0, 0.0, 0.0]], &Device::Cpu).unwrap();
        let teacher = TopTokens { kept: 2, tokens: vec![2, 1, 0, 2], logits: vec![1.0, 0.0, 0.0, 0.0] };
        let found = kl_divergence(&logits, &teacher).unwrap().to_scalar::<f32>().unwrap();
        let expected = (binary_kl(sigmoid(1.0), sigmoid(2.0)) + binary_kl(0.5, sigmoid(2.0))) / 2.0;
        assert!((f64::from(found) - expected).abs() < 1e-6, "{found} {expected}");
    }

    /// Computes the probability of the first of two tokens from the difference of their logits. The teacher's
    /// probability is σ(1) at the first position and 1/2 at the second. The student's is σ(2) at both.
    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    fn binary_kl(p: f64, q: f64) -> f64 {
        p * (p / q).ln() + (1.0 - p) * ((1.0 - p) / (1.0 - q)).ln()
    }
}
