//! One dense pass over the calibration windows, from which selection and operators are computed.
//!
//! The pass sums what the criteria compare while it runs, and spools the residual stream at the sites that the
//! selections may need, so that operators need no further pass. Memory holds one batch, whatever the number of
//! sequences.

mod activations;
mod pass;
mod similarity;

pub use activations::{ActivationShape, Activations, HookPoint, InMemory, Shard, Spool};
pub use pass::{PassRequest, Piece, in_memory, places, run, run_program};
pub use similarity::{Pair, Similarities, SimilarityAxis};
