//! How a weight file holds a tensor.

use candle_core::quantized::GgmlDType;
use safetensors::Dtype;

/// How the numbers of a tensor are held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// One by one.
    Plain(Dtype),
    /// In quantised blocks.
    Blocks(GgmlDType),
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(dtype) => write!(f, "{dtype:?}"),
            Self::Blocks(dtype) => write!(f, "{dtype:?}"),
        }
    }
}

/// A tensor of a weight file.
#[derive(Clone)]
pub(super) struct TensorInfo {
    pub(super) held: Held,
    pub(super) shape: Vec<usize>,
    /// Rows of a head whose first and second half take turns in the file, as llama.cpp's rotary embedding has them.
    pub(super) turns: Option<usize>,
    /// Whether the file has one more than the weights, as llama.cpp has Gemma's norms.
    pub(super) one_more: bool,
    /// Its bytes, from the beginning of the file.
    pub(super) start: u64,
    pub(super) bytes: u64,
}
