//! The weights of a linear layer in memory: in f32 as a tensor, or in bf16 as panels.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use candle_core::Tensor;
use serde::Serialize;

use super::kernels::Weight;
use super::slice::{elements, tensor};
use super::weights::Weights;
use crate::error::Result;
use crate::linalg::bf16::Panels;

/// What the CPU engine computes the products of the layers in; all else is in f32, the sums of those products too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Products {
    F32,
    /// Weights in half the memory. Fast where the processor has AVX512-BF16; the same numbers everywhere.
    Bf16,
}

impl Products {
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of a weight.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `[inner, outer]`: the layout in which the product is fastest.
#[derive(Clone)]
pub(super) enum LayerMatrix {
    F32(Tensor),
    Bf16(Arc<Panels>),
}

impl LayerMatrix {
    /// Several stored matrices `[outer, inner]` side by side: name and `outer` of each.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub(super) fn read(
        products: Products,
        weights: &Weights,
        matrices: &[(String, usize)],
        inner: usize,
    ) -> Result<Self> {
        let outer = matrices.iter().map(|(_, outer)| outer).sum();
        Ok(match products {
            Products::F32 => Self::F32(tensor(weights.transposed(matrices, inner)?, &[inner, outer])?),
            Products::Bf16 => Self::Bf16(Arc::new(weights.panels(matrices, inner)?)),
        })
    }

    /// The weights, borrowed.
    pub(super) fn get(&self) -> Result<Held<'_, impl Deref<Target = [f32]> + Sync + '_>> {
        Ok(match self {
            Self::F32(weight) => Held::F32(elements(weight)?),
            Self::Bf16(panels) => Held::Bf16(panels),
        })
    }
}

/// Weights, held while a kernel reads them.
pub(super) enum Held<'a, F32> {
    F32(F32),
    Bf16(&'a Panels),
}

impl<F32: Deref<Target = [f32]>> Held<'_, F32> {
    pub(super) fn weight(&self) -> Weight<'_> {
        match self {
            Self::F32(weight) => Weight::F32(weight),
            Self::Bf16(panels) => Weight::Bf16(panels),
        }
    }
}
