//! How text is generated.

use serde::{Deserialize, Serialize};

use super::processors::LogitsProcessors;
use crate::error::{Error, Result};

/// How the next token is drawn. The temperature divides the logits, then `top_k` and `top_p` leave tokens out, in the order
/// of transformers' warpers.
///
/// Each prompt has a generator of its own, an MT19937 that begins with the SHA-256 of the seed and the prompt's identity, and
/// each token takes one draw from it. All programs begin with the same one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// More than 0.
    pub temperature: f64,
    /// The likeliest tokens whose probabilities reach this sum stay; 1 leaves none out.
    pub top_p: f64,
    /// Keeps only this many of the likeliest tokens. `None` keeps all.
    pub top_k: Option<usize>,
    pub seed: u64,
}

/// Settings that determine generated text, and the number of concurrent prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Tokens of a continuation at most.
    pub max_new_tokens: usize,
    /// Tokens of prompt and continuation together. Of a longer prompt the last tokens stay, as many as leave room for
    /// `max_new_tokens`.
    pub context: usize,
    /// Texts that end a continuation; they are not a part of it.
    pub stops: Vec<String>,
    /// Tokens that end a continuation.
    pub end_of_text: Vec<u32>,
    /// Changes of logits before a token is chosen.
    pub processors: LogitsProcessors,
    /// `None` takes the likeliest token, the lowest of equal ones.
    pub sampling: Option<Sampling>,
    /// Prompts that run together at most, each under all programs. Results do not depend on it.
    pub batch: usize,
    /// Bytes of keys and values at most. Results do not depend on it.
    pub cache_bytes: u64,
}

impl Settings {
    /// Returns greedy settings without stops, with 16 prompts at a time.
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
            return wrong_setting("nothing would be generated", "one new token at least", "0".into());
        }
        if self.context <= self.max_new_tokens {
            let found = format!("a context of {} and {} new tokens", self.context, self.max_new_tokens);
            return wrong_setting("new tokens leave no room for a prompt", "a longer context than new tokens", found);
        }
        if self.batch == 0 {
            return wrong_setting("no prompt could run", "one prompt at a time at least", "0".into());
        }
        if let Some(index) = self.stops.iter().position(String::is_empty) {
            return wrong_setting(
                "an empty text ends every continuation",
                "stops of one character or more",
                format!("stop {index}"),
            );
        }
        if let Some(sampling) = &self.sampling {
            if !(sampling.temperature > 0.0 && sampling.temperature.is_finite()) {
                return wrong_setting(
                    "a temperature that nothing can be drawn at",
                    "more than 0",
                    sampling.temperature.to_string(),
                );
            }
            if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
                return wrong_setting("top_p leaves no token", "more than 0, at most 1", sampling.top_p.to_string());
            }
            if sampling.top_k == Some(0) {
                return wrong_setting("top_k leaves no token", "1 or more", "0".into());
            }
        }
        Ok(())
    }
}

fn wrong_setting(what: &str, expected: &str, found: String) -> Result<()> {
    Err(Error::bad_input(what).at("generation").expected(expected).found(found))
}
