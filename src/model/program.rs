//! A variant of a backbone as a program: a list of steps over the residual stream (design §3).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use candle_core::Tensor;
use sha2::{Digest, Sha256};

use super::slice::{elements, tensor};
use crate::error::Result;

/// A linear map of the residual stream, row vectors times matrix: `x ← x·W`. Known by its content.
#[derive(Debug)]
pub struct Operator {
    key: [u8; 32],
    pub(super) matrix: Matrix,
}

#[derive(Debug)]
pub(super) enum Matrix {
    /// `W [C, C]`
    Dense(Tensor),
    /// The diagonal of `W`, `[C]`: one multiplication a channel instead of a matrix product.
    Diagonal(Tensor),
}

impl Operator {
    /// A full matrix, row-major.
    ///
    /// # Shapes
    /// `matrix [channels, channels]`.
    pub fn dense(channels: usize, matrix: Vec<f32>) -> Result<Arc<Self>> {
        let key = key_of("dense", &matrix);
        Ok(Arc::new(Self { key, matrix: Matrix::Dense(tensor(matrix, &[channels, channels])?) }))
    }

    /// A diagonal matrix, given by its diagonal.
    pub fn diagonal(diagonal: Vec<f32>) -> Result<Arc<Self>> {
        let (key, channels) = (key_of("diagonal", &diagonal), diagonal.len());
        Ok(Arc::new(Self { key, matrix: Matrix::Diagonal(tensor(diagonal, &[channels])?) }))
    }

    /// The matrix in full, `[C, C]` row-major.
    pub fn to_dense(&self) -> Result<Vec<f32>> {
        match &self.matrix {
            Matrix::Dense(matrix) => Ok(elements(matrix)?.to_vec()),
            Matrix::Diagonal(diagonal) => {
                let diagonal = elements(diagonal)?;
                let channels = diagonal.len();
                let mut matrix = vec![0.0; channels * channels];
                for (i, &d) in diagonal.iter().enumerate() {
                    matrix[i * channels + i] = d;
                }
                Ok(matrix)
            }
        }
    }

    /// The content key: equal keys, equal operators.
    pub fn key(&self) -> String {
        self.key.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn key_of(form: &str, values: &[f32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(form);
    for value in values {
        hash.update(value.to_le_bytes());
    }
    hash.finalize().into()
}

/// One step over the residual stream. Steps are equal when their content is.
#[derive(Clone)]
pub enum Step {
    /// Token ids to residual stream.
    Embed,
    /// The attention half of a layer, with its residual addition.
    Attention(usize),
    /// The MLP half of a layer, with its residual addition.
    Mlp(usize),
    /// A recovery's operator.
    Apply(Arc<Operator>),
    /// Final norm, output projection, log-probability of each target.
    Head,
}

impl Step {
    /// What tells steps apart: kind, layer, operator key.
    fn content(&self) -> (u8, usize, &[u8]) {
        match self {
            Self::Embed => (0, 0, &[]),
            Self::Attention(layer) => (1, *layer, &[]),
            Self::Mlp(layer) => (2, *layer, &[]),
            Self::Apply(operator) => (3, 0, &operator.key),
            Self::Head => (4, 0, &[]),
        }
    }
}

impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        self.content() == other.content()
    }
}

impl Eq for Step {}

impl Hash for Step {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.content().hash(state);
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embed => write!(f, "Embed"),
            Self::Attention(layer) => write!(f, "Attention({layer})"),
            Self::Mlp(layer) => write!(f, "Mlp({layer})"),
            Self::Apply(operator) => write!(f, "Apply({})", &operator.key()[..8]),
            Self::Head => write!(f, "Head"),
        }
    }
}

/// The steps of one variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program(pub Vec<Step>);

impl Program {
    /// The unpruned backbone.
    pub fn dense(layers: usize) -> Self {
        Self::pruned(layers, &[], |_| None)
    }

    /// The unpruned backbone up to `X_L`, without the head: what calibration runs.
    pub fn trunk(layers: usize) -> Self {
        let mut program = Self::dense(layers);
        program.0.pop();
        program
    }

    /// A backbone without the layers `removed`; `operator_at(s)` stands at the boundary of the region that starts at layer `s`.
    ///
    /// A region that starts at layer 0 puts its operator before the first surviving layer.
    pub fn pruned(layers: usize, removed: &[usize], operator_at: impl Fn(usize) -> Option<Arc<Operator>>) -> Self {
        let mut steps = vec![Step::Embed];
        for layer in 0..layers {
            if !removed.contains(&layer) {
                steps.extend([Step::Attention(layer), Step::Mlp(layer)]);
            } else if (layer == 0 || !removed.contains(&(layer - 1)))
                && let Some(operator) = operator_at(layer)
            {
                steps.push(Step::Apply(operator));
            }
        }
        steps.push(Step::Head);
        Self(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_stands_at_its_boundary() {
        let operator = Operator::diagonal(vec![1.0, 2.0]).unwrap();
        let program = Program::pruned(4, &[1, 2], |start| (start == 1).then(|| Arc::clone(&operator)));
        use Step::{Apply, Attention, Embed, Head, Mlp};
        assert_eq!(program.0, [Embed, Attention(0), Mlp(0), Apply(operator), Attention(3), Mlp(3), Head]);
    }

    #[test]
    fn regions_at_both_ends_keep_their_place() {
        let operator = Operator::diagonal(vec![1.0]).unwrap();
        let program = Program::pruned(3, &[0, 2], |_| Some(Arc::clone(&operator)));
        use Step::{Apply, Attention, Embed, Head, Mlp};
        assert_eq!(program.0, [Embed, Apply(operator.clone()), Attention(1), Mlp(1), Apply(operator), Head]);
    }

    #[test]
    fn operators_are_equal_by_content() {
        let (a, b) = (Operator::diagonal(vec![1.0, 2.0]).unwrap(), Operator::diagonal(vec![1.0, 2.0]).unwrap());
        let other = Operator::diagonal(vec![1.0, 2.5]).unwrap();
        assert_eq!(Step::Apply(Arc::clone(&a)), Step::Apply(b));
        assert_ne!(Step::Apply(a), Step::Apply(other));
    }
}
