//! Generated text and its stop conditions.

use serde::{Deserialize, Serialize};

use crate::corpus::Tokenizer;
use crate::error::Result;

/// Conversion of token ids to text.
pub trait Detokenizer: Sync {
    /// Decodes token ids. Special tokens are omitted unless `special` is set.
    ///
    /// # Errors
    /// Fails if an id is not in the vocabulary.
    fn decode(&self, ids: &[u32], special: bool) -> Result<String>;
}

impl Detokenizer for Tokenizer {
    fn decode(&self, ids: &[u32], special: bool) -> Result<String> {
        self.decode_all(ids, special)
    }
}

/// Reason a continuation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The last id is one of the tokens in [`end_of_text`](super::Settings::end_of_text).
    EndOfText,
    /// The text contains a stop string.
    Stop,
    Length,
    /// A logit was NaN or +∞, or none was finite.
    NotFinite,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// All new tokens, including those of a stop string.
    pub ids: Vec<u32>,
    /// Text without special tokens, truncated at the stop strings.
    pub text: String,
    pub end: End,
}

impl Generation {
    /// Decodes tokens into a continuation.
    ///
    /// # Errors
    /// Fails if an id is not in the vocabulary.
    pub fn new(ids: Vec<u32>, end: End, settings: &super::Settings, detokenizer: &dyn Detokenizer) -> Result<Self> {
        let text = truncate_at_stops(detokenizer.decode(&ids, false)?, &settings.stops);
        Ok(Self { ids, text, end })
    }
}

/// Returns the reason why a continuation ends after `ids`, or `None` if it continues. Stop strings are searched for in
/// the complete text including special tokens, because a stop string may span tokens.
pub(super) fn find_end_reason(
    ids: &[u32],
    settings: &super::Settings,
    detokenizer: &dyn Detokenizer,
) -> Result<Option<End>> {
    if ids.last().is_some_and(|last| settings.end_of_text.contains(last)) {
        return Ok(Some(End::EndOfText));
    }
    if !settings.stops.is_empty() {
        let text = detokenizer.decode(ids, true)?;
        if settings.stops.iter().any(|stop| text.contains(stop.as_str())) {
            return Ok(Some(End::Stop));
        }
    }
    Ok((ids.len() >= settings.max_new_tokens).then_some(End::Length))
}

/// Truncates a text at each stop string in turn, like lm-evaluation-harness.
pub(super) fn truncate_at_stops(mut text: String, stops: &[String]) -> String {
    for stop in stops {
        if let Some(end) = text.find(stop.as_str()) {
            text.truncate(end);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_strings_are_applied_in_order() {
        // The expected texts come from lm-evaluation-harness.
        assert_eq!(truncate_at_stops("abcDEFgh".into(), &owned_texts(&["EF", "DEF"])), "abcD");
        assert_eq!(truncate_at_stops("abcDEFgh".into(), &owned_texts(&["DEF", "EF"])), "abc");
        assert_eq!(truncate_at_stops(" a\n\nb".into(), &owned_texts(&["\n\n"])), " a");
    }

    fn owned_texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&stop| stop.to_owned()).collect::<Vec<_>>()
    }
}
