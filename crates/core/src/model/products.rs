//! Data type and kernels of the CPU engine's matrix products.

use std::sync::Arc;

use ghostlab_kernels::forward::PackedWeights;

use super::engine::{CPU, EngineId};
use super::kernel_family::KernelFamily;
use super::weights::Weights;
use crate::error::Result;
use crate::linalg::bf16::Bf16Kernels;

/// Data type and kernels of the CPU engine's matrix products: the linear projections, attention and the output
/// projection. Everything else, including the accumulators, is f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    F32,
    /// bf16 weights, with kernels that give identical results on every processor.
    Bf16,
    /// bf16 weights with Intel AMX kernels, whose results differ in the last digits.
    Bf16Amx,
    /// f32 weights split into two bf16 parts, with Intel AMX kernels. Attention is computed in f32.
    Bf16x3,
    /// f32 weights split into three bf16 parts, with Intel AMX kernels. Attention is computed in f32.
    Bf16x6,
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
            Self::Bf16Amx | Self::Bf16x3 | Self::Bf16x6 => KernelFamily::Amx,
        }
    }

    /// Checks that this machine can run the kernels.
    pub fn check(self) -> Result<()> {
        let alternative = match self {
            Self::Bf16x3 | Self::Bf16x6 => "--dtype f32",
            Self::F32 | Self::Bf16 | Self::Bf16Amx => "--kernels portable",
        };
        self.kernels().check(alternative)
    }

    /// Returns the dtype name used in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 | Self::Bf16Amx => "bf16",
            Self::Bf16x3 => "bf16x3",
            Self::Bf16x6 => "bf16x6",
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

    /// Returns the kernels for bf16 attention, or `None` if attention is computed in f32.
    pub(super) fn bf16_kernels(self) -> Option<Bf16Kernels> {
        match self {
            Self::F32 | Self::Bf16x3 | Self::Bf16x6 => None,
            Self::Bf16 => Some(Bf16Kernels::Portable),
            Self::Bf16Amx => Some(Bf16Kernels::Amx),
        }
    }

    /// Returns the size of a weight in bytes.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::Bf16x3 => 4,
            Self::Bf16 | Self::Bf16Amx => 2,
            Self::Bf16x6 => 6,
        }
    }

    /// Reads stored matrices `[outer, inner]` and concatenates them along `outer`. `matrices` contains the name and the
    /// size along `outer` of each matrix.
    ///
    /// # Errors
    /// See [`Weights::take`].
    pub(super) fn read<N: AsRef<str>>(
        self,
        weights: &Weights,
        matrices: &[(N, usize)],
        inner: usize,
    ) -> Result<PackedWeights> {
        Ok(match self {
            Self::F32 => PackedWeights::F32(Arc::new(weights.pack_panels(matrices, inner)?)),
            Self::Bf16 => PackedWeights::Bf16(Arc::new(weights.pack_panels(matrices, inner)?)),
            Self::Bf16Amx => PackedWeights::Bf16Amx(Arc::new(weights.pack_panels(matrices, inner)?)),
            Self::Bf16x3 => PackedWeights::Bf16x3(Arc::new(weights.pack_panels(matrices, inner)?)),
            Self::Bf16x6 => PackedWeights::Bf16x6(Arc::new(weights.pack_panels(matrices, inner)?)),
        })
    }
}
