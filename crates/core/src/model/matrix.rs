//! Weights of a linear layer or of the output projection as f32 or bf16 panels.

use std::sync::Arc;

use ghostlab_kernels::forward::{PackedWeights, Weight};

use super::engine::{CPU, EngineId};
use super::kernel_family::KernelFamily;
use super::weights::Weights;
use crate::error::{Error, Result};
use crate::linalg::bf16::{Bf16, Bf16Kernels};
use crate::linalg::bf16_amx::Bf16Amx;
use crate::linalg::float32::F32;
use crate::linalg::panels::{Kind, Panels};

/// Data type and kernels of the CPU engine's products in layers, attention and output projection. Everything else is
/// f32, including the accumulators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    F32,
    /// bf16 weights, with kernels that give identical results on every processor.
    Bf16,
    /// bf16 weights with Intel AMX kernels, whose results differ in the last digits.
    Bf16Amx,
}

impl Products {
    pub const fn bf16(kernels: KernelFamily) -> Self {
        match kernels {
            KernelFamily::Portable => Self::Bf16,
            KernelFamily::Amx => Self::Bf16Amx,
        }
    }

    pub const fn kernels(self) -> KernelFamily {
        match self {
            Self::F32 | Self::Bf16 => KernelFamily::Portable,
            Self::Bf16Amx => KernelFamily::Amx,
        }
    }

    /// Returns the dtype name used in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 | Self::Bf16Amx => "bf16",
        }
    }

    /// Returns the device class used in cache keys.
    pub const fn device_class(self) -> &'static str {
        self.kernels().device_class()
    }

    /// Returns the id of the CPU engine with these products.
    pub const fn engine_id(self) -> EngineId {
        EngineId { name: CPU.name, dtype: self.name(), device: self.device_class() }
    }

    pub(super) fn bf16_kernels(self) -> Option<Bf16Kernels> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(Bf16Kernels::Portable),
            Self::Bf16Amx => Some(Bf16Kernels::Amx),
        }
    }

    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::Bf16Amx => 2,
        }
    }
}

/// Matrix `[inner, outer]` as panels.
#[derive(Clone)]
pub(super) enum LayerMatrix {
    F32(Arc<Panels<F32>>),
    Bf16(Arc<Panels<Bf16>>),
    Bf16Amx(Arc<Panels<Bf16Amx>>),
}

impl LayerMatrix {
    /// Reads stored matrices `[outer, inner]`, given by name and `outer`, and concatenates them along `outer`.
    ///
    /// # Errors
    /// See [`Weights::take`].
    pub(super) fn read<N: AsRef<str>>(
        products: Products,
        weights: &Weights,
        matrices: &[(N, usize)],
        inner: usize,
    ) -> Result<Self> {
        Ok(match products {
            Products::F32 => Self::F32(Arc::new(weights.panels(matrices, inner)?)),
            Products::Bf16 => Self::Bf16(Arc::new(weights.panels(matrices, inner)?)),
            Products::Bf16Amx => Self::Bf16Amx(Arc::new(weights.panels(matrices, inner)?)),
        })
    }

    /// Computes `Σ factor·matrix` of matrices with equal shapes and types.
    ///
    /// # Errors
    /// Fails if the types differ or there are no matrices.
    pub(super) fn weighted_sum(matrices: &[(f64, &Self)]) -> Result<Self> {
        fn sum<'a, K: Kind<Word: 'a> + 'a>(
            matrices: &[(f64, &'a LayerMatrix)],
            panels: impl Fn(&'a LayerMatrix) -> Option<&'a Arc<Panels<K>>>,
        ) -> Option<Arc<Panels<K>>> {
            let panels = matrices.iter().map(|&(factor, matrix)| Some((factor, &**panels(matrix)?)));
            panels.collect::<Option<Vec<_>>>().map(|panels| Arc::new(Panels::weighted_sum(&panels)))
        }
        let found = match matrices.first() {
            None => None,
            Some((_, Self::F32(_))) => sum(matrices, |matrix| match matrix {
                Self::F32(panels) => Some(panels),
                _ => None,
            })
            .map(Self::F32),
            Some((_, Self::Bf16(_))) => sum(matrices, |matrix| match matrix {
                Self::Bf16(panels) => Some(panels),
                _ => None,
            })
            .map(Self::Bf16),
            Some((_, Self::Bf16Amx(_))) => sum(matrices, |matrix| match matrix {
                Self::Bf16Amx(panels) => Some(panels),
                _ => None,
            })
            .map(Self::Bf16Amx),
        };
        found.ok_or_else(|| Error::job("merged layers differ in the types of their weights"))
    }

    pub(super) fn weight(&self) -> Weight<'_> {
        Weight::PackedWeights(self.packed())
    }

    pub(super) fn packed(&self) -> PackedWeights<'_> {
        match self {
            Self::F32(panels) => PackedWeights::F32(panels),
            Self::Bf16(panels) => PackedWeights::Bf16(panels),
            Self::Bf16Amx(panels) => PackedWeights::Bf16Amx(panels),
        }
    }
}
