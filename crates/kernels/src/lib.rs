//! What of ghostlab has to be fast, on plain slices: it knows no models, no files and no messages.
//!
//! A crate of its own, because it is compiled in one piece, so that all of a kernel is optimised together; the rest of the house is
//! in many, so that a changed line costs seconds. Nothing that is called for each block of rows is generic in what it offers, as
//! that would be compiled where it is called.

pub mod forward;
pub mod linalg;
