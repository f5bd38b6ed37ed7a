//! Storage format of a tensor in a weight file.

use candle_core::quantized::GgmlDType;
use safetensors::Dtype;

/// Encoding of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementEncoding {
    /// Unquantized elements.
    Plain(Dtype),
    /// Quantized blocks.
    Blocks(GgmlDType),
}

impl std::fmt::Display for ElementEncoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(dtype) => write!(f, "{dtype:?}"),
            Self::Blocks(dtype) => write!(f, "{dtype:?}"),
        }
    }
}

/// Metadata of a stored tensor.
#[derive(Clone)]
pub(super) struct TensorInfo {
    pub(super) encoding: ElementEncoding,
    pub(super) shape: Vec<usize>,
    /// Number of rows per head if the rows of each head are interleaved, as in llama.cpp's rotary layout.
    pub(super) interleaved: Option<usize>,
    /// Whether the stored values are the weights plus 1, as in llama.cpp's Gemma norms.
    pub(super) offset_by_one: bool,
    /// Byte offset from the start of the file.
    pub(super) start: u64,
    pub(super) bytes: u64,
}
