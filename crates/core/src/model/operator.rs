//! Maps of the residual stream, row vectors times matrix: what recoveries put at a boundary.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use ghostlab_kernels::forward::{self as kernels, Weight};
use sha2::{Digest, Sha256};

use super::slice::{elements, tensor};
use crate::error::{Error, Result};
use crate::files::sha256;

/// A map of the residual stream, `x ← x·W`, or `x ← x·W + b`. Known by its content.
#[derive(Debug)]
pub struct Operator {
    key: [u8; 32],
    channels: usize,
    pub(super) matrix: Matrix,
    pub(super) bias: Option<Tensor>, // [C]
}

#[derive(Debug)]
pub(super) enum Matrix {
    /// `W [C, C]`
    Dense(Tensor),
    /// The diagonal of `W`, `[C]`: one multiplication a channel instead of a matrix product.
    Diagonal(Tensor),
    /// `W = I + D·U` with `D [C, r]` and `U [r, C]`: two thin products.
    LowRank { down: Tensor, up: Tensor },
}

const DENSE: &str = "dense";
const DIAGONAL: &str = "diagonal";
const AFFINE: &str = "affine";
/// With the rank behind it.
const LOW_RANK: &str = "rank-";

impl Operator {
    /// Creates a full matrix, row-major.
    ///
    /// # Shapes
    /// `matrix [channels, channels]`.
    pub fn dense(channels: usize, matrix: Vec<f32>) -> Result<Arc<Self>> {
        let key = key_of(DENSE, [&matrix]);
        let matrix = Matrix::Dense(tensor(matrix, &[channels, channels])?);
        Ok(Arc::new(Self { key, channels, matrix, bias: None }))
    }

    /// Creates a diagonal matrix from its diagonal.
    pub fn diagonal(diagonal: Vec<f32>) -> Result<Arc<Self>> {
        let key = key_of(DIAGONAL, [&diagonal]);
        let channels = diagonal.len();
        let matrix = Matrix::Diagonal(tensor(diagonal, &[channels])?);
        Ok(Arc::new(Self { key, channels, matrix, bias: None }))
    }

    /// Creates a full matrix, row-major, with a bias.
    ///
    /// # Shapes
    /// `matrix [channels, channels]`, `bias [channels]`.
    pub fn affine(channels: usize, matrix: Vec<f32>, bias: Vec<f32>) -> Result<Arc<Self>> {
        let key = key_of(AFFINE, [&matrix, &bias]);
        let matrix = Matrix::Dense(tensor(matrix, &[channels, channels])?);
        Ok(Arc::new(Self { key, channels, matrix, bias: Some(tensor(bias, &[channels])?) }))
    }

    /// Creates `I + D·U`, both row-major.
    ///
    /// # Shapes
    /// `down [channels, rank]`, `up [rank, channels]`.
    pub fn low_rank(channels: usize, down: Vec<f32>, up: Vec<f32>) -> Result<Arc<Self>> {
        let rank = down.len() / channels.max(1);
        let key = key_of(&format!("{LOW_RANK}{rank}"), [&down, &up]);
        let matrix = Matrix::LowRank { down: tensor(down, &[channels, rank])?, up: tensor(up, &[rank, channels])? };
        Ok(Arc::new(Self { key, channels, matrix, bias: None }))
    }

    /// Returns the form and its numbers: the row-major matrix, the matrix and its bias, the diagonal, or the two factors.
    pub fn parts(&self) -> Result<(String, Vec<f32>)> {
        let (form, mut values) = match &self.matrix {
            Matrix::Dense(matrix) => {
                (if self.bias.is_some() { AFFINE } else { DENSE }.to_owned(), elements(matrix)?.to_vec())
            }
            Matrix::Diagonal(diagonal) => (DIAGONAL.to_owned(), elements(diagonal)?.to_vec()),
            Matrix::LowRank { down, up } => {
                let rank = up.dims()[0];
                (format!("{LOW_RANK}{rank}"), [&*elements(down)?, &*elements(up)?].concat())
            }
        };
        values.extend(self.bias()?.unwrap_or_default());
        Ok((form, values))
    }

    /// Restores an operator from its [`Self::parts`].
    ///
    /// # Errors
    /// An unknown form, or another number of values than it has.
    pub fn from_parts(form: &str, mut values: Vec<f32>) -> Result<Arc<Self>> {
        let count = values.len();
        let misfit = || Error::damaged("an operator has another number of values").at(form).found(count);
        match form {
            DENSE => Self::dense(
                (Some(count.isqrt()).filter(|channels| channels * channels == count)).ok_or_else(misfit)?,
                values,
            ),
            DIAGONAL => Self::diagonal(values),
            AFFINE => {
                // C² + C lies between C² and (C + 1)².
                let channels = count.isqrt();
                if channels * channels + channels != count {
                    return Err(misfit());
                }
                let bias = values.split_off(channels * channels);
                Self::affine(channels, values, bias)
            }
            other => {
                let rank = other.strip_prefix(LOW_RANK).and_then(|rank| rank.parse::<usize>().ok());
                let rank = rank
                    .filter(|&rank| rank > 0)
                    .ok_or_else(|| Error::damaged("an operator of an unknown form").found(format!("`{other}`")))?;
                if !count.is_multiple_of(2) || !(count / 2).is_multiple_of(rank) {
                    return Err(misfit());
                }
                let up = values.split_off(count / 2);
                Self::low_rank(count / 2 / rank, values, up)
            }
        }
    }

    /// Returns the full matrix, `[C, C]` row-major.
    ///
    /// # Errors
    /// A map with a bias, which is more than a matrix: [`Self::linear`] has its matrix alone.
    pub fn to_dense(&self) -> Result<Vec<f32>> {
        match self.bias {
            None => self.linear(),
            Some(_) => Err(Error::job("an operator with a bias is more than a matrix")
                .expected("a map without a bias")
                .found(format!("operator {}", &self.key()[..8]))),
        }
    }

    /// Returns the matrix `W` of a map that may have a bias, `[C, C]` row-major.
    pub fn linear(&self) -> Result<Vec<f32>> {
        let channels = self.channels;
        match &self.matrix {
            Matrix::Dense(matrix) => Ok(elements(matrix)?.to_vec()),
            Matrix::Diagonal(diagonal) => {
                let mut matrix = vec![0.0; channels * channels];
                matrix.iter_mut().step_by(channels + 1).zip(&*elements(diagonal)?).for_each(|(to, &d)| *to = d);
                Ok(matrix)
            }
            Matrix::LowRank { .. } => {
                let mut identity = vec![0.0; channels * channels];
                identity.iter_mut().step_by(channels + 1).for_each(|d| *d = 1.0);
                self.product(&identity)
            }
        }
    }

    /// Returns whether the map has a bias.
    pub fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// Returns the bias `[C]`, if any.
    pub fn bias(&self) -> Result<Option<Vec<f32>>> {
        self.bias.as_ref().map(|bias| Ok(elements(bias)?.to_vec())).transpose()
    }

    /// Computes `x·W` or `x·W + b` for each row.
    ///
    /// # Shapes
    /// `x [rows, C]`; result the same.
    pub fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        let mut out = self.product(x)?;
        if let Some(bias) = &self.bias {
            let bias = elements(bias)?;
            out.chunks_exact_mut(self.channels).for_each(|row| kernels::add(row, &bias));
        }
        Ok(out)
    }

    /// Computes `x·W` for each row.
    fn product(&self, x: &[f32]) -> Result<Vec<f32>> {
        match &self.matrix {
            Matrix::Dense(matrix) => linear(x, self.channels, matrix, None),
            Matrix::Diagonal(diagonal) => Ok(kernels::apply_diagonal(x, &elements(diagonal)?)),
            Matrix::LowRank { down, up } => {
                let narrow = linear(x, self.channels, down, None)?; // [rows, r]
                linear(&narrow, up.dims()[0], up, Some(x))
            }
        }
    }

    /// Copies the operator to a device.
    pub(super) fn to_device(&self, device: &Device) -> Result<Self> {
        let matrix = match &self.matrix {
            Matrix::Dense(matrix) => Matrix::Dense(move_part(matrix, device)?),
            Matrix::Diagonal(diagonal) => Matrix::Diagonal(move_part(diagonal, device)?),
            Matrix::LowRank { down, up } => {
                Matrix::LowRank { down: move_part(down, device)?, up: move_part(up, device)? }
            }
        };
        Ok(Self { matrix, bias: self.bias.as_ref().map(|part| move_part(part, device)).transpose()?, ..*self })
    }

    /// Composes this map with the next one: `(x·W + b)·V + c`.
    pub fn then(&self, next: &Self) -> Result<Arc<Self>> {
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
            (_, _, None) => Self::dense(self.channels, next.product(&self.linear()?)?),
            (_, _, Some(bias)) => Self::affine(self.channels, next.product(&self.linear()?)?, bias),
        }
    }

    /// Returns the multiplications and additions of [`Self::apply`] on `rows` rows.
    pub(super) fn flops(&self, rows: usize) -> f64 {
        let rows = rows as f64;
        let channels = self.channels as f64;
        let product = match &self.matrix {
            Matrix::Dense(_) => 2.0 * rows * channels.powi(2),
            Matrix::Diagonal(_) => rows * channels,
            Matrix::LowRank { up, .. } => 4.0 * rows * channels * up.dims()[0] as f64,
        };
        product + if self.bias.is_some() { rows * channels } else { 0.0 }
    }

    /// Returns the number of stored values.
    pub(super) fn numbers(&self) -> usize {
        let matrix = match &self.matrix {
            Matrix::Dense(_) => self.channels * self.channels,
            Matrix::Diagonal(_) => self.channels,
            Matrix::LowRank { up, .. } => 2 * self.channels * up.dims()[0],
        };
        matrix + self.bias.as_ref().map_or(0, |_| self.channels)
    }

    /// Returns the hidden size `C`.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns whether the map is one factor per channel.
    pub fn is_diagonal(&self) -> bool {
        matches!(self.matrix, Matrix::Diagonal(_))
    }

    /// Returns the common factor of all channels, if it is such a map with a positive factor.
    pub fn factor(&self) -> Result<Option<f32>> {
        let Matrix::Diagonal(diagonal) = &self.matrix else { return Ok(None) };
        let diagonal = elements(diagonal)?;
        Ok(diagonal.first().copied().filter(|first| *first > 0.0 && diagonal.iter().all(|entry| entry == first)))
    }

    /// Returns the content key. Equal keys mean equal operators.
    pub fn key(&self) -> String {
        sha256::hex(self.key)
    }

    pub(super) fn content(&self) -> &[u8] {
        &self.key
    }
}

fn move_part(part: &Tensor, device: &Device) -> candle_core::Result<Tensor> {
    part.to_device(device)
}

/// Computes `x·W`, or adds it to a residual stream.
///
/// # Shapes
/// `x [rows, inner]`, `matrix [inner, outer]`, `residual [rows, outer]`.
fn linear(x: &[f32], inner: usize, matrix: &Tensor, residual: Option<&[f32]>) -> Result<Vec<f32>> {
    let weight = elements(matrix)?;
    let outer = matrix.dims()[1];
    Ok(kernels::linear(x, inner, Weight::Plain(&weight, outer).into(), None, residual))
}

fn key_of<const N: usize>(form: &str, parts: [&Vec<f32>; N]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(form);
    for value in parts.into_iter().flatten() {
        hash.update(value.to_le_bytes());
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> [Arc<Operator>; 4] {
        [
            Operator::diagonal(vec![2.0, 3.0]).unwrap(),
            Operator::dense(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap(),
            Operator::affine(2, vec![1.0, 2.0, 3.0, 4.0], vec![10.0, 20.0]).unwrap(),
            // I + (1, 2)ᵀ·(3, 4)
            Operator::low_rank(2, vec![1.0, 2.0], vec![3.0, 4.0]).unwrap(),
        ]
    }

    #[test]
    fn one_map_after_another_is_their_product() {
        let dense = Operator::dense(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(dense_product(&diagonal_of(&[2.0, 3.0]), &diagonal_of(&[5.0, 7.0])), [10.0, 0.0, 0.0, 21.0]);
        assert_eq!(dense_product(&diagonal_of(&[2.0, 3.0]), &dense), [2.0, 4.0, 9.0, 12.0]);
        assert_eq!(dense_product(&dense, &diagonal_of(&[2.0, 3.0])), [2.0, 6.0, 6.0, 12.0]);
        assert_eq!(dense_product(&dense, &dense), [7.0, 10.0, 15.0, 22.0]);
    }

    fn diagonal_of(values: &[f32]) -> Arc<Operator> {
        Operator::diagonal(values.to_vec()).unwrap()
    }

    fn dense_product(a: &Operator, b: &Operator) -> Vec<f32> {
        a.then(b).unwrap().to_dense().unwrap()
    }

    #[test]
    fn maps_of_every_form_do_what_their_matrix_and_bias_say() {
        let x = [1.0, -1.0, 0.5, 2.0];
        let expected =
            [[2.0, -3.0, 1.0, 6.0], [-2.0, -2.0, 6.5, 9.0], [8.0, 18.0, 16.5, 29.0], [-2.0, -5.0, 14.0, 20.0]];
        for (operator, expected) in some().iter().zip(expected) {
            assert_eq!(operator.apply(&x).unwrap(), expected);
            let dense = Operator::dense(2, operator.linear().unwrap()).unwrap().apply(&x).unwrap();
            let bias = operator.bias().unwrap().unwrap_or(vec![0.0; 2]);
            let sum: Vec<f32> = dense.iter().zip(bias.iter().cycle()).map(|(a, b)| a + b).collect();
            assert_eq!(sum, expected);
            assert_eq!(operator.to_dense().is_err(), operator.bias().unwrap().is_some(), "a bias is never lost unseen");
        }
    }

    #[test]
    fn maps_of_every_form_in_a_row_are_their_composition() {
        let x = [1.0, -1.0, 0.5, 2.0];
        for first in some() {
            for second in some() {
                let expected = second.apply(&first.apply(&x).unwrap()).unwrap();
                assert_eq!(first.then(&second).unwrap().apply(&x).unwrap(), expected);
            }
        }
    }

    #[test]
    fn operator_is_restored_from_parts_unless_damaged() {
        let mut keys = Vec::new();
        for operator in some() {
            let (form, mut values) = operator.parts().unwrap();
            let back = Operator::from_parts(&form, values.clone()).unwrap();
            assert_eq!((back.key(), back.numbers()), (operator.key(), values.len()), "{form}");
            keys.push(back.key());
            values.push(1.0);
            assert!(form == "diagonal" || Operator::from_parts(&form, values).is_err(), "{form}");
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 4);
        for form in ["rank-0", "rank-x", "sparse"] {
            assert!(Operator::from_parts(form, vec![1.0; 4]).is_err(), "{form}");
        }
    }
}
