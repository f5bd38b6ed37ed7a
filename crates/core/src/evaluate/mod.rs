//! Evaluation of variants (pruned and repaired backbones): perplexity, multiple-choice tasks, generation, and damage
//! relative to the dense model.
//!
//! ```
//! use ghostlab_core::corpus::{WindowRule, Tokenizer, evaluation_windows, read_rows};
//! use ghostlab_core::evaluate::perplexity;
//! use ghostlab_core::model::{Decoder, Program};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let data = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tiny"));
//! let decoder = Decoder::load(&data.join("llama"))?;
//! let tokenizer = Tokenizer::load(data.join("llama/tokenizer.json"))?;
//! let rows = read_rows(data.join("corpora/wiki-test.jsonl.gz"), None)?;
//! let windows = evaluation_windows(WindowRule::Wikitext2, &rows, &tokenizer, 64, Some(4))?;
//! let layers = decoder.config().layers;
//! let programs = [Program::dense(layers), Program::pruned(layers, &[5, 6, 7, 8], |_| None)];
//! let scored = perplexity::of(&decoder, &programs, &windows)?;
//! assert!(scored[0] < scored[1], "removing four layers must not improve predictions");
//! # Ok(())
//! # }
//! ```

pub mod choices;
pub mod damage_eval;
mod encoder;
mod eval_set;
pub mod generation;
pub mod logit_distance;
pub mod perplexity;
mod trunks;

pub use encoder::{PrefixToken, SpecialToken, TaskEncoder, end_of_text, end_tokens, prefix_token};
pub use eval_set::{ChunkValues, EvalSet, score};
pub use trunks::{Progress, output_cosines};
