//! Operators, which [recovery methods](crate::recovery) insert where layers were removed. They multiply the rows of the
//! residual stream or of a branch by a matrix from the right (`x·W`).

use std::sync::Arc;

use candle_core::{Device, Tensor};
use ghostlab_kernels::forward::{self as kernels, Linear, Norm, Weight};

use super::rms_norm::RmsNorm;
use super::slice::{elements, tensor};
use crate::error::{Error, Result};
use crate::files::sha256;

/// Operator on the residual stream: `x·W + b` or `x + RMSNorm(x)·M + b`, where `b` is optional. Operators are
/// identified by their content hash.
#[derive(Debug)]
pub struct Operator {
    key: [u8; 32],
    channels: usize,
    pub(super) matrix: Matrix,
    pub(super) bias: Option<Tensor>, // [C]
}

#[derive(Debug)]
pub(super) enum Matrix {
    /// `W = I`: the operator only adds a bias.
    Identity,
    /// Full matrix `W [C, C]`.
    Dense(Tensor),
    /// Diagonal of `W`, `[C]`: one multiplication per channel.
    Diagonal(Tensor),
    /// `W = I + D·U` with `D [C, r]` and `U [r, C]`.
    LowRank { down: Tensor, up: Tensor },
    /// `x + RMSNorm(x)·M` with `M [C, C]`.
    Normed { norm: DeviceNorm, matrix: Tensor },
}

/// Norm in a [`Matrix::Normed`], on the same device as the matrix.
#[derive(Debug)]
pub(super) struct DeviceNorm {
    /// Weight `[C]`, or all ones if the norm has no weight.
    pub(super) weight: Tensor,
    pub(super) eps: f32,
    /// Whether the weight is stored with the operator.
    pub(super) weighted: bool,
}

impl Operator {
    /// Creates an operator and computes its content hash.
    fn new(channels: usize, matrix: Matrix, bias: Option<Vec<f32>>) -> Result<Arc<Self>> {
        let bias = bias.map(|bias| tensor(bias, &[channels])).transpose()?;
        let mut operator = Self { key: [0; 32], channels, matrix, bias };
        operator.key = operator.content_hash()?;
        Ok(Arc::new(operator))
    }

    /// Creates an operator from a full row-major matrix.
    ///
    /// # Shapes
    /// `matrix [channels, channels]`.
    pub fn dense(channels: usize, matrix: Vec<f32>) -> Result<Arc<Self>> {
        Self::new(channels, Matrix::Dense(tensor(matrix, &[channels, channels])?), None)
    }

    /// Creates an operator that scales each channel.
    pub fn diagonal(diagonal: Vec<f32>) -> Result<Arc<Self>> {
        let channels = diagonal.len();
        Self::new(channels, Matrix::Diagonal(tensor(diagonal, &[channels])?), None)
    }

    /// Creates an operator from a full row-major matrix and a bias.
    ///
    /// # Shapes
    /// `matrix [channels, channels]`, `bias [channels]`.
    pub fn affine(channels: usize, matrix: Vec<f32>, bias: Vec<f32>) -> Result<Arc<Self>> {
        Self::new(channels, Matrix::Dense(tensor(matrix, &[channels, channels])?), Some(bias))
    }

    /// Creates the operator `x·(I + D·U)` from row-major factors.
    ///
    /// # Shapes
    /// `down [channels, rank]`, `up [rank, channels]`.
    pub fn low_rank(channels: usize, down: Vec<f32>, up: Vec<f32>) -> Result<Arc<Self>> {
        let rank = down.len() / channels.max(1);
        let matrix = Matrix::LowRank { down: tensor(down, &[channels, rank])?, up: tensor(up, &[rank, channels])? };
        Self::new(channels, matrix, None)
    }

    /// Creates an operator that only adds a bias: `x + b`.
    ///
    /// # Shapes
    /// `bias [channels]`.
    pub fn bias_only(bias: Vec<f32>) -> Result<Arc<Self>> {
        Self::new(bias.len(), Matrix::Identity, Some(bias))
    }

    /// Creates the operator `x + norm(x)·M` from a row-major matrix, and adds the bias if one is given.
    ///
    /// # Shapes
    /// `matrix [channels, channels]`, `bias [channels]`.
    pub fn normed(norm: RmsNorm, channels: usize, matrix: Vec<f32>, bias: Option<Vec<f32>>) -> Result<Arc<Self>> {
        let RmsNorm { eps, weight } = norm;
        let weighted = weight.is_some();
        let weight = tensor(weight.unwrap_or_else(|| vec![1.0; channels]), &[channels])?;
        let norm = DeviceNorm { weight, eps, weighted };
        Self::new(channels, Matrix::Normed { norm, matrix: tensor(matrix, &[channels, channels])? }, bias)
    }

    /// Returns the operator as a row-major matrix `[C, C]`.
    ///
    /// # Errors
    /// Fails if the operator has a bias or a norm.
    pub fn to_dense(&self) -> Result<Vec<f32>> {
        match self.bias {
            None => self.linear_part(),
            Some(_) => Err(Error::job("an operator with a bias cannot be converted to a matrix")
                .expected("an operator without a bias")
                .found(format!("operator {}", &self.key()[..8]))),
        }
    }

    /// Returns the row-major matrix `W` `[C, C]`, ignoring any bias.
    ///
    /// # Errors
    /// Fails if the operator has a norm.
    pub fn linear_part(&self) -> Result<Vec<f32>> {
        let channels = self.channels;
        match &self.matrix {
            Matrix::Dense(matrix) => Ok(elements(matrix)?.to_vec()),
            Matrix::Identity => Ok(identity(channels)),
            Matrix::Normed { .. } => Err(self.not_linear_error()),
            Matrix::Diagonal(diagonal) => {
                let mut matrix = vec![0.0; channels * channels];
                matrix.iter_mut().step_by(channels + 1).zip(&*elements(diagonal)?).for_each(|(to, &d)| *to = d);
                Ok(matrix)
            }
            Matrix::LowRank { .. } => self.apply_linear_part(&identity(channels)),
        }
    }

    /// Returns the row-major matrix `[C, C]` that a checkpoint stores: `M` if the operator has a norm, otherwise `W`.
    pub fn matrix(&self) -> Result<Vec<f32>> {
        match &self.matrix {
            Matrix::Normed { matrix, .. } => Ok(elements(matrix)?.to_vec()),
            _ => self.linear_part(),
        }
    }

    /// Returns the row-major matrix `M` `[C, C]` of the update that the operator adds to the stream: `x·M` or
    /// `norm(x)·M`, without the bias.
    pub fn change(&self) -> Result<Vec<f64>> {
        let mut change: Vec<f64> = self.matrix()?.into_iter().map(f64::from).collect();
        if !self.is_normed() {
            change.iter_mut().step_by(self.channels + 1).for_each(|diagonal| *diagonal -= 1.0);
        }
        Ok(change)
    }

    /// Returns the norm applied to the input, if any.
    pub fn norm(&self) -> Result<Option<RmsNorm>> {
        let Matrix::Normed { norm, .. } = &self.matrix else { return Ok(None) };
        let weight = norm.weighted.then(|| elements(&norm.weight).map(|weight| weight.to_vec())).transpose()?;
        Ok(Some(RmsNorm { eps: norm.eps, weight }))
    }

    /// Returns whether the operator is a plain matrix product, which a weight matrix can absorb.
    pub fn is_linear(&self) -> bool {
        self.bias.is_none() && !self.is_normed()
    }

    /// Returns whether the operator normalizes its input.
    pub fn is_normed(&self) -> bool {
        matches!(self.matrix, Matrix::Normed { .. })
    }

    pub fn is_bias_only(&self) -> bool {
        matches!(self.matrix, Matrix::Identity)
    }

    pub fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// Returns the bias `[C]`, if any.
    pub fn bias(&self) -> Result<Option<Vec<f32>>> {
        self.bias.as_ref().map(|bias| Ok(elements(bias)?.to_vec())).transpose()
    }

    /// Applies the operator to each row.
    ///
    /// # Shapes
    /// `x` and the result are `[rows, C]`.
    pub fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        let mut out = match &self.matrix {
            Matrix::Normed { norm, matrix } => self.add_normed(x, norm, matrix)?,
            _ => self.apply_linear_part(x)?,
        };
        if let Some(bias) = &self.bias {
            let bias = elements(bias)?;
            out.chunks_exact_mut(self.channels).for_each(|row| kernels::add_assign(row, &bias));
        }
        Ok(out)
    }

    /// Computes `x + norm(x)·M` for each row.
    fn add_normed(&self, x: &[f32], norm: &DeviceNorm, matrix: &Tensor) -> Result<Vec<f32>> {
        let matrix = elements(matrix)?;
        let weight = elements(&norm.weight)?;
        let map = Linear::from(Weight::Plain(&matrix, self.channels));
        let mut out = x.to_vec();
        kernels::add_assign(
            &mut out,
            &kernels::norm_linear(x, self.channels, Some(Norm { weight: &weight, eps: norm.eps }), map),
        );
        Ok(out)
    }

    /// Computes `x·W` for each row.
    fn apply_linear_part(&self, x: &[f32]) -> Result<Vec<f32>> {
        match &self.matrix {
            Matrix::Identity => Ok(x.to_vec()),
            Matrix::Normed { .. } => Err(self.not_linear_error()),
            Matrix::Dense(matrix) => matmul(x, self.channels, matrix, None),
            Matrix::Diagonal(diagonal) => Ok(kernels::apply_diagonal(x, &elements(diagonal)?)),
            Matrix::LowRank { down, up } => {
                let narrow = matmul(x, self.channels, down, None)?; // [rows, r]
                matmul(&narrow, up.dims()[0], up, Some(x))
            }
        }
    }

    pub(super) fn to_device(&self, device: &Device) -> Result<Self> {
        let matrix = match &self.matrix {
            Matrix::Identity => Matrix::Identity,
            Matrix::Normed { norm, matrix } => Matrix::Normed {
                norm: DeviceNorm { weight: move_tensor(&norm.weight, device)?, ..*norm },
                matrix: move_tensor(matrix, device)?,
            },
            Matrix::Dense(matrix) => Matrix::Dense(move_tensor(matrix, device)?),
            Matrix::Diagonal(diagonal) => Matrix::Diagonal(move_tensor(diagonal, device)?),
            Matrix::LowRank { down, up } => {
                Matrix::LowRank { down: move_tensor(down, device)?, up: move_tensor(up, device)? }
            }
        };
        Ok(Self { matrix, bias: self.bias.as_ref().map(|bias| move_tensor(bias, device)).transpose()?, ..*self })
    }

    /// Composes this operator with the next one: `(x·W + b)·V + c`.
    ///
    /// # Errors
    /// Fails if either operator has a norm, because the composition is not a single operator.
    pub fn compose(&self, next: &Self) -> Result<Arc<Self>> {
        if let Some(normed) = [self, next].into_iter().find(|map| map.is_normed()) {
            return Err(normed.not_linear_error());
        }
        let bias = match self.bias()? {
            Some(bias) => Some(next.apply(&bias)?),
            None => next.bias()?,
        };
        match (&self.matrix, &next.matrix, bias) {
            (Matrix::Diagonal(first), Matrix::Diagonal(second), None) => {
                let first = elements(first)?;
                let second = elements(second)?;
                Self::diagonal(first.iter().zip(second.iter()).map(|(a, b)| a * b).collect())
            }
            (Matrix::Identity, Matrix::Identity, Some(bias)) => Self::bias_only(bias),
            (_, _, None) => Self::dense(self.channels, next.apply_linear_part(&self.linear_part()?)?),
            (_, _, Some(bias)) => Self::affine(self.channels, next.apply_linear_part(&self.linear_part()?)?, bias),
        }
    }

    /// Returns the number of floating-point operations that [`Self::apply`] performs on `rows` rows.
    pub(super) fn flops(&self, rows: usize) -> f64 {
        let rows = rows as f64;
        let channels = self.channels as f64;
        let product = match &self.matrix {
            Matrix::Identity => 0.0,
            // Five operations per channel: the square, its sum, the two factors of the norm, and the residual sum.
            Matrix::Normed { .. } => rows * channels * (2.0 * channels + 5.0),
            Matrix::Dense(_) => 2.0 * rows * channels.powi(2),
            Matrix::Diagonal(_) => rows * channels,
            Matrix::LowRank { up, .. } => 4.0 * rows * channels * up.dims()[0] as f64,
        };
        product + if self.bias.is_some() { rows * channels } else { 0.0 }
    }

    /// Returns the tensors of parameters in storage order: the weight of the norm, the matrix or its factors, and the
    /// bias, as far as they exist.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        let matrix = match &self.matrix {
            Matrix::Identity => [None, None],
            Matrix::Normed { norm, matrix } => [norm.weighted.then_some(&norm.weight), Some(matrix)],
            Matrix::Dense(matrix) | Matrix::Diagonal(matrix) => [Some(matrix), None],
            Matrix::LowRank { down, up } => [Some(down), Some(up)],
        };
        matrix.into_iter().flatten().chain(&self.bias)
    }

    pub(super) fn parameter_count(&self) -> usize {
        self.parameters().map(Tensor::elem_count).sum()
    }

    /// Returns the hidden size `C`.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns whether the operator is a diagonal matrix.
    pub fn is_diagonal(&self) -> bool {
        matches!(self.matrix, Matrix::Diagonal(_))
    }

    /// Returns the factor if the operator scales all channels by the same positive factor.
    pub fn factor(&self) -> Result<Option<f32>> {
        let Matrix::Diagonal(diagonal) = &self.matrix else { return Ok(None) };
        let diagonal = elements(diagonal)?;
        Ok(diagonal.first().copied().filter(|first| *first > 0.0 && diagonal.iter().all(|entry| entry == first)))
    }

    /// Returns the content hash in hexadecimal.
    pub fn key(&self) -> String {
        sha256::hex(self.key)
    }

    pub(super) fn key_bytes(&self) -> &[u8] {
        &self.key
    }

    fn not_linear_error(&self) -> Error {
        Error::job("an operator with a norm cannot be converted to a matrix")
            .expected("an operator without a norm")
            .found(format!("operator {}", &self.key()[..8]))
    }
}

/// Returns the identity matrix `[C, C]`.
fn identity(channels: usize) -> Vec<f32> {
    let mut identity = vec![0.0; channels * channels];
    identity.iter_mut().step_by(channels + 1).for_each(|d| *d = 1.0);
    identity
}

fn move_tensor(tensor: &Tensor, device: &Device) -> candle_core::Result<Tensor> {
    tensor.to_device(device)
}

/// Computes `x·W`, and adds `residual` if it is given.
///
/// # Shapes
/// `x [rows, inner]`, `matrix [inner, outer]`, `residual [rows, outer]`.
fn matmul(x: &[f32], inner: usize, matrix: &Tensor, residual: Option<&[f32]>) -> Result<Vec<f32>> {
    let weight = elements(matrix)?;
    let outer = matrix.dims()[1];
    Ok(kernels::linear(x, inner, Weight::Plain(&weight, outer).into(), None, residual))
}

#[cfg(test)]
pub(super) mod tests;
