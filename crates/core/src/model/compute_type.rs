//! Requested float type for a computation.

use super::candle::FloatType;
use crate::named::named;

/// Float type of a computation: a tensor type, or f32 whose products are computed as sums of bf16 products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeType {
    F32,
    Bf16,
    F16,
    /// f32 numbers, split into sums of two bf16 parts and multiplied with three bf16 products.
    Bf16x3,
    /// f32 numbers, split into sums of three bf16 parts and multiplied with six bf16 products.
    Bf16x6,
}

named!(ComputeType: F32 = "f32", Bf16 = "bf16", F16 = "f16", Bf16x3 = "bf16x3", Bf16x6 = "bf16x6");

impl ComputeType {
    /// Returns the tensor type, or `None` for a sum of bf16 products.
    pub fn float(self) -> Option<FloatType> {
        match self {
            Self::F32 => Some(FloatType::F32),
            Self::Bf16 => Some(FloatType::Bf16),
            Self::F16 => Some(FloatType::F16),
            Self::Bf16x3 | Self::Bf16x6 => None,
        }
    }

    /// Returns the nearest type that runs on every processor.
    pub fn portable(self) -> Self {
        self.float().map_or(Self::F32, Self::from)
    }
}

impl From<FloatType> for ComputeType {
    fn from(dtype: FloatType) -> Self {
        match dtype {
            FloatType::F32 => Self::F32,
            FloatType::Bf16 => Self::Bf16,
            FloatType::F16 => Self::F16,
        }
    }
}
