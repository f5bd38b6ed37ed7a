//! Floor 2: scores of variants.

pub mod perplexity;
