//! Floor 0: dense linear algebra on plain slices. Knows nothing of models.

pub mod gemm;
pub mod hadamard;
pub mod lanes;
pub mod solve;
pub mod spectrum;
pub mod tall;
mod transpose;
