//! Scores of variants.

pub mod choices;
pub mod damage;
mod encoder;
mod eval_set;
pub mod generation;
pub mod logit_distance;
pub mod perplexity;

pub use encoder::{PrefixToken, SpecialToken, TaskEncoder, end_of_text, end_tokens, prefix_token};
pub use eval_set::{ChunkValues, EvalSet, score};
