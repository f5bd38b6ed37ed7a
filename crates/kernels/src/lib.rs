//! Performance-critical numerical kernels on plain slices, independent of model formats and files.
//!
//! This crate is compiled as one codegen unit, so that each kernel is optimized as a whole. The other crates are split
//! for fast rebuilds. Public functions called per block of rows are not generic, because generic functions are compiled
//! in the calling crate.
//!
//! ```
//! use ghostlab_kernels::linalg::solve::NormalEquations;
//!
//! // For two tokens and two channels, y = (2·x₀, 3·x₁), so the solution M is diagonal.
//! let mut equations = NormalEquations::new(2);
//! equations.add(&[1.0, 0.0, 0.0, 1.0], &[2.0, 0.0, 0.0, 3.0]);
//! let solved = equations.solve(0.0).unwrap();
//! assert!(solved.iter().zip([2.0, 0.0, 0.0, 3.0]).all(|(found, expected)| (found - expected).abs() < 1e-12));
//! ```

pub mod forward;
pub mod linalg;
mod scratch;
