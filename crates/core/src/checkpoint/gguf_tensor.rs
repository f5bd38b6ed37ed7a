//! Types, names and contents of the tensors that are written to a GGUF file.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;

use super::layout::CheckpointTensor;
use crate::error::{Error, Result};
use crate::files::gguf_writer::GgufInfo;
use crate::model::Config;
use crate::model::gguf_backbone::name_in_gguf;
use crate::named::named;

/// Type of the matrices in a GGUF file. Norms and biases are f32, as llama.cpp requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    F32,
    Bf16,
    F16,
    Q8_0,
}

named!(GgufType: F32 = "f32", Bf16 = "bf16", F16 = "f16", Q8_0 = "q8_0");

impl GgufType {
    /// Returns `general.file_type` (`llama_ftype` in llama.h).
    pub(super) fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Returns the type of a tensor in the file. With `q8_0`, a matrix whose rows cannot be divided into blocks is
    /// written in f16.
    pub(super) fn ggml_dtype(self, shape: &[usize]) -> GgmlDType {
        match self {
            _ if shape.len() < 2 => GgmlDType::F32,
            Self::F32 => GgmlDType::F32,
            Self::Bf16 => GgmlDType::BF16,
            Self::Q8_0 if shape.last().is_some_and(|row| row % GgmlDType::Q8_0.block_size() == 0) => GgmlDType::Q8_0,
            Self::F16 | Self::Q8_0 => GgmlDType::F16,
        }
    }
}

/// Creates the error for a variant that GGUF cannot represent.
pub(super) fn unsupported_error(expected: &str, found: impl Into<String>) -> Error {
    Error::bad_input("the cell cannot be exported as GGUF")
        .expected(expected)
        .found(found.into())
        .hint("export a Hugging Face folder instead, with `--to FOLDER` and without --gguf")
}

/// Tensor in a GGUF file, with the source of its values.
pub(super) struct GgufTensor<'a> {
    pub(super) info: GgufInfo,
    pub(super) content: GgufContent<'a>,
}

pub(super) enum GgufContent<'a> {
    /// A checkpoint tensor, written in GGUF row order.
    Checkpoint(&'a CheckpointTensor),
    /// Values in f32.
    Numbers(Vec<f32>),
    /// All zeros, which every type encodes as zero bytes.
    Zeros,
}

/// Layer sizes for the metadata. Each [`Value`] is a single number for all layers or a list with one number per layer.
pub(super) struct LayerCounts {
    pub(super) blocks: usize,
    pub(super) heads: Value,
    pub(super) kv_heads: Value,
    pub(super) intermediate: Value,
}

/// Creates the GGUF tensor for a checkpoint tensor whose Hugging Face name is `name`.
pub(super) fn checkpoint_tensor<'a>(
    config: &Config,
    name: &str,
    tensor: &'a CheckpointTensor,
    file_type: GgufType,
) -> Result<GgufTensor<'a>> {
    let name = name_in_gguf(config.architecture, name)
        .ok_or_else(|| Error::job("no GGUF name for the tensor").at(format!("tensor {name}")))?;
    let info = GgufInfo { name, dtype: file_type.ggml_dtype(&tensor.shape), shape: tensor.shape.clone() };
    Ok(GgufTensor { info, content: GgufContent::Checkpoint(tensor) })
}

pub(super) fn count_value(n: usize) -> Value {
    Value::U32(u32::try_from(n).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_with_partial_blocks_use_f16_and_norms_use_f32() {
        for (dtype, shape, expected) in [
            (GgufType::Q8_0, &[4, 64][..], GgmlDType::Q8_0),
            (GgufType::Q8_0, &[4, 40], GgmlDType::F16),
            (GgufType::Q8_0, &[64], GgmlDType::F32),
            (GgufType::Bf16, &[64], GgmlDType::F32),
            (GgufType::Bf16, &[1, 3], GgmlDType::BF16),
        ] {
            assert_eq!(dtype.ggml_dtype(shape), expected, "{dtype:?} {shape:?}");
        }
    }
}
