//! Performance-critical numerical kernels on plain slices, independent of models, files and messages.
//!
//! This crate is compiled as one codegen unit, so that each kernel is optimized as a whole. The other crates are split
//! for fast rebuilds. Public functions called per block of rows are not generic, because generic functions are compiled
//! in the calling crate.

pub mod forward;
pub mod linalg;
