//! Floor 2: scores of variants.

pub mod choices;
mod encoder;
mod eval_set;
pub mod perplexity;

pub use encoder::{SpecialToken, TaskEncoder, prefix_token};
pub use eval_set::{EvalSet, score};
