//! The weights of a linear layer, or of the output projection, in memory: panels in f32 or bf16.

use std::sync::Arc;

use ghostlab_kernels::forward::{Laid, Weight};
use serde::Serialize;

use super::weights::Weights;
use crate::error::Result;
use crate::linalg::bf16::Bf16;
use crate::linalg::float32::F32;
use crate::linalg::panels::Panels;

/// What the CPU engine computes the products of the layers, of attention and of the output projection in; all else is in f32, the sums of those products too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Products {
    F32,
    /// Weights in half the memory. Fast where the processor has AVX512-BF16; the same numbers everywhere.
    Bf16,
}

crate::names!(Products: F32 = "f32", Bf16 = "bf16");

impl Products {
    /// Bytes of a weight.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// `[inner, outer]`, in panels.
#[derive(Clone)]
pub(super) enum LayerMatrix {
    F32(Arc<Panels<F32>>),
    Bf16(Arc<Panels<Bf16>>),
}

impl LayerMatrix {
    /// Several stored matrices `[outer, inner]` side by side: name and `outer` of each.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub(super) fn read<N: AsRef<str>>(
        products: Products,
        weights: &Weights,
        matrices: &[(N, usize)],
        inner: usize,
    ) -> Result<Self> {
        Ok(match products {
            Products::F32 => Self::F32(Arc::new(weights.panels(matrices, inner)?)),
            Products::Bf16 => Self::Bf16(Arc::new(weights.panels(matrices, inner)?)),
        })
    }

    /// The weights, borrowed.
    pub(super) fn weight(&self) -> Weight<'_> {
        Weight::Laid(self.laid())
    }

    /// The same for the output projection, which is always laid out.
    pub(super) fn laid(&self) -> Laid<'_> {
        match self {
            Self::F32(panels) => Laid::F32(panels),
            Self::Bf16(panels) => Laid::Bf16(panels),
        }
    }
}
