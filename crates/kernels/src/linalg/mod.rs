//! Dense linear algebra on plain slices, independent of models.

pub mod adam;
pub mod aligned;
pub mod amx;
pub mod bf16;
pub mod bf16_split;
mod bf16_tile;
mod dots;
pub mod eigen;
pub mod float32;
mod float32_tile;
pub mod gemm;
pub mod hadamard;
pub mod least_squares_stats;
mod pairs;
pub mod panel_product;
pub mod panels;
pub mod simd;
pub mod solve;
mod solve_error;
pub mod spectrum;
pub mod streaming_qr;
mod transpose;
mod view;

pub use solve_error::SolveError;
