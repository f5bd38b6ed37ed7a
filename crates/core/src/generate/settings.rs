//! Generation settings.

use serde::{Deserialize, Serialize};

use super::processors::LogitsProcessors;
use crate::error::{Error, Result};

/// Sampling of the next token. The temperature divides the logits, then `top_k` and `top_p` filter tokens, in the same
/// order as transformers' warpers.
///
/// Each prompt has its own MT19937 generator, seeded with the SHA-256 of the seed and the prompt's identity. Each token
/// uses one random number. For a prompt, all programs start from the same generator state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Temperature, greater than 0.
    pub temperature: f64,
    /// Cumulative probability that the kept tokens must reach. A value of 1 keeps all tokens.
    pub top_p: f64,
    /// Number of most likely tokens to keep. `None` keeps all.
    pub top_k: Option<usize>,
    pub seed: u64,
}

/// Settings for text generation and batching.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub max_new_tokens: usize,
    /// Maximum total number of tokens in the prompt and the continuation. A longer prompt is truncated from the left so
    /// that `max_new_tokens` fit.
    pub context: usize,
    /// Stop strings, which end a continuation and are removed from its text.
    pub stops: Vec<String>,
    /// Tokens that end a continuation.
    pub end_of_text: Vec<u32>,
    /// Logits processors applied before a token is chosen.
    pub processors: LogitsProcessors,
    /// Sampling settings, or `None` for greedy decoding (lowest id on ties).
    pub sampling: Option<Sampling>,
    /// Maximum number of prompts that run at once, each under all programs. Results do not depend on it.
    pub batch: usize,
    /// Maximum size of the KV cache in bytes. Results do not depend on it.
    pub cache_bytes: u64,
}

impl Settings {
    /// Returns settings for greedy decoding without stop strings, with up to 16 concurrent prompts.
    pub fn greedy(max_new_tokens: usize, context: usize) -> Self {
        Self {
            max_new_tokens,
            context,
            stops: Vec::new(),
            end_of_text: Vec::new(),
            processors: LogitsProcessors::default(),
            sampling: None,
            batch: 16,
            cache_bytes: u64::MAX,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.max_new_tokens == 0 {
            return reject_setting("the number of new tokens is 0", "at least one new token", "0".into());
        }
        if self.context <= self.max_new_tokens {
            let found = format!("a context of {} and {} new tokens", self.context, self.max_new_tokens);
            return reject_setting(
                "the context is too short for a prompt and the new tokens",
                "a context that exceeds the number of new tokens",
                found,
            );
        }
        if self.batch == 0 {
            return reject_setting("the batch size is 0", "at least one prompt per batch", "0".into());
        }
        if let Some(index) = self.stops.iter().position(String::is_empty) {
            return reject_setting(
                "empty stop string",
                "stop strings of at least one character",
                format!("stop {index}"),
            );
        }
        if let Some(sampling) = &self.sampling {
            if !(sampling.temperature > 0.0 && sampling.temperature.is_finite()) {
                return reject_setting("invalid temperature", "a number above 0", sampling.temperature.to_string());
            }
            if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
                return reject_setting("invalid top_p", "a number above 0, at most 1", sampling.top_p.to_string());
            }
            if sampling.top_k == Some(0) {
                return reject_setting("invalid top_k", "a whole number from 1", "0".into());
            }
        }
        Ok(())
    }
}

fn reject_setting(what: &str, expected: &str, found: String) -> Result<()> {
    Err(Error::bad_input(what).at("generation").expected(expected).found(found))
}
