//! The performance-critical code of ghostlab on plain slices. It knows no models, files or messages.
//!
//! This crate is compiled as one codegen unit, so that a kernel is optimised as a whole. Other crates are split for
//! fast rebuilds. Nothing called per block of rows is generic in the public interface, because generics would be
//! compiled in the calling crate.

pub mod forward;
pub mod linalg;
