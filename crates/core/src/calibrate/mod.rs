//! Calibration: one pass of the dense model over the calibration windows, which yields the inputs for layer selection
//! and operator fitting.
//!
//! The pass accumulates the similarities that criteria compare and spools the residual stream at the requested
//! [`HookPoint`]s, so fitting needs no second pass. Apart from the spooled rows, memory use does not grow with the
//! number of sequences.
//!
//! ```
//! use ghostlab_core::calibrate::{HookPoint, in_memory};
//! use ghostlab_core::corpus::{WindowRule, Tokenizer, evaluation_windows, read_rows};
//! use ghostlab_core::model::Decoder;
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let data = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tiny"));
//! let decoder = Decoder::load(&data.join("llama"))?;
//! let tokenizer = Tokenizer::load(data.join("llama/tokenizer.json"))?;
//! let rows = read_rows(data.join("corpora/wiki-validation.jsonl.gz"), None)?;
//! let windows = evaluation_windows(WindowRule::Wikitext2, &rows, &tokenizer, 32, Some(2))?;
//! // The residual stream that enters layer 3: one row of channels for each of 2 · 32 tokens.
//! let activations = in_memory(&decoder, &windows, [HookPoint::Stream(3)])?;
//! let stream = activations.rows(HookPoint::Stream(3), 0..64)?;
//! assert_eq!(stream.len(), 64 * decoder.config().hidden);
//! # Ok(())
//! # }
//! ```

mod activations;
mod pass;
mod similarity;

pub use activations::{ActivationShape, Activations, HookPoint, InMemory, Shard, Spool};
pub use pass::{PassRequest, WindowSubset, computed_sites, in_memory, run, run_program};
pub use similarity::{Pair, Similarities, SimilarityAxis};
