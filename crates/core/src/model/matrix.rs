//! The weights of a linear layer, or of the output projection, in memory: panels in f32 or bf16.

use std::sync::Arc;

use ghostlab_kernels::forward::{Laid, Weight};

use super::engine::{CPU, EngineId};
use super::kernel_family::KernelFamily;
use super::weights::Weights;
use crate::error::Result;
use crate::linalg::bf16::{Bf16, Bf16Kernels};
use crate::linalg::bf16_amx::Bf16Amx;
use crate::linalg::float32::F32;
use crate::linalg::panels::Panels;

/// Type of the CPU engine's products in layers, attention and output projection. Everything else is f32, including the
/// sums of these products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    F32,
    /// Weights in half the memory, multiplied by kernels that give the same numbers everywhere.
    Bf16,
    /// Same weights on tile registers of Intel AMX, which round in their own order.
    Bf16Amx,
}

impl Products {
    /// Returns products in bf16 by a family of kernels.
    pub const fn bf16(kernels: KernelFamily) -> Self {
        match kernels {
            KernelFamily::Portable => Self::Bf16,
            KernelFamily::Amx => Self::Bf16Amx,
        }
    }

    /// Returns the family of kernels that multiplies.
    pub const fn kernels(self) -> KernelFamily {
        match self {
            Self::F32 | Self::Bf16 => KernelFamily::Portable,
            Self::Bf16Amx => KernelFamily::Amx,
        }
    }

    /// Returns the float type as files and commands call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 | Self::Bf16Amx => "bf16",
        }
    }

    /// Returns the class of device, as keys name it: one for all kernels whose results have the same bits.
    pub const fn device_class(self) -> &'static str {
        self.kernels().device_class()
    }

    /// Returns the identity of the CPU engine with these products.
    pub const fn engine_id(self) -> EngineId {
        EngineId { name: CPU.name, dtype: self.name(), device: self.device_class() }
    }

    /// Returns the kernels that multiply in bf16; none where products are in f32.
    pub(super) fn bf16_kernels(self) -> Option<Bf16Kernels> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(Bf16Kernels::Portable),
            Self::Bf16Amx => Some(Bf16Kernels::Amx),
        }
    }

    /// Returns the bytes of a weight.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::Bf16Amx => 2,
        }
    }
}

/// `[inner, outer]`, in panels.
#[derive(Clone)]
pub(super) enum LayerMatrix {
    F32(Arc<Panels<F32>>),
    Bf16(Arc<Panels<Bf16>>),
    Bf16Amx(Arc<Panels<Bf16Amx>>),
}

impl LayerMatrix {
    /// Reads several stored matrices `[outer, inner]` side by side, given by name and `outer`.
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
            Products::Bf16Amx => Self::Bf16Amx(Arc::new(weights.panels(matrices, inner)?)),
        })
    }

    /// Borrows the weights.
    pub(super) fn weight(&self) -> Weight<'_> {
        Weight::Laid(self.laid())
    }

    /// Borrows the weights of the output projection, which is always laid out.
    pub(super) fn laid(&self) -> Laid<'_> {
        match self {
            Self::F32(panels) => Laid::F32(panels),
            Self::Bf16(panels) => Laid::Bf16(panels),
            Self::Bf16Amx(panels) => Laid::Bf16Amx(panels),
        }
    }
}
