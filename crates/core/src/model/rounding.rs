//! Weight quantization at load time. Each matrix is quantized and dequantized, so its values equal those in a quantized
//! GGUF file.
//!
//! Types are chosen as in llama.cpp's `llama_tensor_get_type` (`llama-quant.cpp`), but independently of the layer
//! index. Pruning changes the indices, and all pruned variants of a backbone share its weights. Therefore `q4_k` uses
//! `Q4_K` in every layer, whereas `llama-quantize Q4_K_M` uses `Q6_K` in some layers. Norms, biases and routers are not
//! quantized.

use candle_core::quantized::GgmlDType;
use serde::{Deserialize, Serialize};

use crate::named::named;

/// Quantization type of a backbone's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WeightType {
    #[serde(rename = "q8_0")]
    Q8_0,
    #[serde(rename = "q4_0")]
    Q4_0,
    #[serde(rename = "q4_k")]
    Q4K,
}

// Grids and cache keys contain these names. If the rounding of a type changes, its name must change too.
named!(WeightType: Q8_0 = "q8_0", Q4_0 = "q4_0", Q4K = "q4_k");

impl WeightType {
    fn block_dtype(self) -> GgmlDType {
        match self {
            Self::Q8_0 => GgmlDType::Q8_0,
            Self::Q4_0 => GgmlDType::Q4_0,
            Self::Q4K => GgmlDType::Q4K,
        }
    }

    /// Returns the GGML type for a matrix whose rows have `row_length` elements. `is_head` selects the type of the
    /// output projection. If `row_length` is not a multiple of the block size, returns a type with smaller blocks or
    /// f16.
    pub fn ggml_dtype(self, row_length: usize, is_head: bool) -> GgmlDType {
        let requested = match self.block_dtype() {
            dtype if is_head && !has_whole_blocks(dtype, row_length) => GgmlDType::Q8_0,
            dtype if is_head && dtype != GgmlDType::Q8_0 => GgmlDType::Q6K,
            dtype => dtype,
        };
        let fitting = match requested {
            dtype if has_whole_blocks(dtype, row_length) => dtype,
            GgmlDType::Q4K => GgmlDType::Q5_0,
            GgmlDType::Q6K => GgmlDType::Q8_0,
            dtype => dtype,
        };
        if has_whole_blocks(fitting, row_length) { fitting } else { GgmlDType::F16 }
    }
}

fn has_whole_blocks(dtype: GgmlDType, row_length: usize) -> bool {
    row_length.is_multiple_of(dtype.block_size())
}

/// Returns llama.cpp's name for a type.
pub(super) fn ggml_type_name(dtype: GgmlDType) -> &'static str {
    match dtype {
        GgmlDType::Q4_0 => "Q4_0",
        GgmlDType::Q5_0 => "Q5_0",
        GgmlDType::Q8_0 => "Q8_0",
        GgmlDType::Q4K => "Q4_K",
        GgmlDType::Q6K => "Q6_K",
        _ => "F16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_partial_blocks_fall_back_like_llama_cpp() {
        use GgmlDType::{F16, Q4_0, Q4K, Q5_0, Q6K, Q8_0};
        for (weight_type, row_length, expected, head) in [
            (WeightType::Q8_0, 512, Q8_0, Q8_0),
            (WeightType::Q8_0, 96, Q8_0, Q8_0),
            (WeightType::Q8_0, 40, F16, F16),
            (WeightType::Q4_0, 512, Q4_0, Q6K),
            (WeightType::Q4_0, 128, Q4_0, Q8_0),
            (WeightType::Q4_0, 40, F16, F16),
            (WeightType::Q4K, 512, Q4K, Q6K),
            (WeightType::Q4K, 128, Q5_0, Q8_0),
            (WeightType::Q4K, 40, F16, F16),
        ] {
            assert_eq!(
                (weight_type.ggml_dtype(row_length, false), weight_type.ggml_dtype(row_length, true)),
                (expected, head),
                "{weight_type:?}, rows of {row_length}"
            );
        }
    }
}
