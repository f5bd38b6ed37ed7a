//! Floor 0: dense linear algebra on plain slices. Knows nothing of models.

pub mod adam;
pub(crate) mod bf16;
pub mod explained;
pub(crate) mod float32;
pub mod gemm;
pub mod hadamard;
pub(crate) mod panels;
pub mod simd;
pub mod solve;
pub mod spectrum;
pub mod streaming_qr;
mod transpose;
