//! Scoring requests: token ids of a context and a continuation, truncated to the model's maximum length.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::python::strip_end;
use crate::error::{Error, Result};
use crate::named::named;

/// Tokenizer operations that are needed to build requests.
pub trait Encoder: Sync {
    /// Encodes a text. If `add_special` is set, the post-processor adds its special tokens.
    ///
    /// # Errors
    /// Fails if the text cannot be tokenized.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>>;

    /// Returns the token that is used in place of an empty context.
    fn prefix(&self) -> Option<&Prefix>;
}

/// Token that is used in place of an empty context: the model's BOS, or its EOS if it has no BOS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    pub id: u32,
    /// Decoded token, such as `<s>`. Texts that begin with this string are encoded without special tokens.
    pub text: String,
}

/// Whether contexts begin with the tokenizer's special tokens. This setting is part of the evaluation protocol. For
/// Llama models, results published with lm-eval before 0.4.9.2 correspond to `never`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bos {
    /// The tokenizer's default.
    #[default]
    Tokenizer,
    /// No special tokens.
    Never,
    /// Special tokens. Tokenizers whose output then does not begin with the prefix token are rejected.
    Always,
}

named!(Bos: Tokenizer = "tokenizer", Never = "never", Always = "always");

/// Token ids of a context and its continuation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizedRequest {
    /// Model input: the context and the continuation, truncated from the left to the maximum length plus 1, with the
    /// last id dropped. The logits at its last `continuation_ids.len()` positions score the continuation.
    pub input_ids: Vec<u32>,
    /// Ids of the continuation before truncation, including whitespace moved from the end of the context.
    pub continuation_ids: Vec<u32>,
    /// Ids that truncation removed from the left.
    pub cut_ids: Vec<u32>,
}

/// Encodes a context and its continuation. `context_cache` caches encoded contexts. `max_length` is the model's maximum
/// input length (see [`max_length`](super::max_length)).
///
/// # Errors
/// Fails if `max_length` is 0, the context or continuation has no tokens, the continuation exceeds `max_length`, the
/// context is empty and there is no prefix token, or the encoder fails.
pub fn continuation(
    texts: (&str, &str),
    encoder: &impl Encoder,
    bos: Bos,
    max_length: usize,
    context_cache: &mut HashMap<String, Vec<u32>>,
) -> Result<TokenizedRequest> {
    if max_length == 0 {
        return Err(Error::bad_input("the model's context length is 0 tokens").expected("a length of 1 or more"));
    }
    let (context, continuation) = texts;
    let request_encoder = RequestEncoder { encoder, bos, max_length };
    let (context_ids, continuation_ids) = request_encoder.encode_pair(context, continuation, context_cache)?;
    request_encoder.truncate((context, continuation), &context_ids, continuation_ids)
}

/// Splits a text into windows in which each token is predicted exactly once. The first window is conditioned on the
/// prefix token, and each later window on the last token of the previous window. A short last window includes as much
/// preceding text as fits. A BOS added by the tokenizer is also predicted, as in lm-eval.
///
/// # Errors
/// Fails if the text has no tokens, `max_length` is 0, the tokenizer has no prefix token, or the encoder fails.
pub fn rolling(text: &str, encoder: &impl Encoder, bos: Bos, max_length: usize) -> Result<Vec<TokenizedRequest>> {
    let request_encoder = RequestEncoder { encoder, bos, max_length };
    let ids = request_encoder.encode(text)?;
    let prefix = request_encoder.prefix()?.id;
    if ids.is_empty() || max_length == 0 {
        return Err(Error::bad_input("the text has no tokens").found(format!("{text:?}")));
    }
    let mut windows = Vec::new();
    let mut from = 0;
    while from < ids.len() {
        let to = (from + max_length).min(ids.len());
        // The input starts one token before the first predicted token. A short last window starts earlier, with as much
        // context as fits.
        let input_ids = match from {
            0 => [&[prefix], &ids[..to - 1]].concat(),
            _ => ids[to - 1 - max_length.min(to - 1)..to - 1].to_vec(),
        };
        windows.push(TokenizedRequest { input_ids, continuation_ids: ids[from..to].to_vec(), cut_ids: Vec::new() });
        from = to;
    }
    Ok(windows)
}

/// Encodes a prompt. An empty prompt becomes the prefix token.
///
/// # Errors
/// Fails if the encoder fails, or the prompt is empty and there is no prefix token.
pub fn prompt(text: &str, encoder: &impl Encoder, bos: Bos) -> Result<Vec<u32>> {
    let request_encoder = RequestEncoder { encoder, bos, max_length: usize::MAX };
    let ids = request_encoder.encode(text)?;
    if ids.is_empty() { Ok(vec![request_encoder.prefix()?.id]) } else { Ok(ids) }
}

struct RequestEncoder<'a, E> {
    encoder: &'a E,
    bos: Bos,
    max_length: usize,
}

impl<E: Encoder> RequestEncoder<'_, E> {
    /// Encodes a context and its continuation as lm-eval does. The context is encoded separately, and then both are
    /// encoded as one text. The continuation's ids are those of the joined text after skipping as many ids as the
    /// context has. If a token spans the boundary, the concatenation of both differs from the ids of the joined text.
    fn encode_pair(
        &self,
        context: &str,
        continuation: &str,
        context_cache: &mut HashMap<String, Vec<u32>>,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        if context.is_empty() {
            return self.encode_without_context(continuation);
        }
        let stripped = strip_end(context);
        let context_ids = match context_cache.get(stripped) {
            Some(ids) => ids.clone(),
            None => {
                let ids = self.encode(stripped)?;
                context_cache.insert(stripped.to_owned(), ids.clone());
                ids
            }
        };
        // The continuation includes the whitespace stripped from the context.
        let joined_ids = self.encode(&format!("{context}{continuation}"))?;
        let continuation_ids = joined_ids.get(context_ids.len()..).unwrap_or_default().to_vec();
        Ok((context_ids, continuation_ids))
    }

    /// Uses the prefix token as the context. If the continuation already begins with the prefix token, that token
    /// becomes the context.
    fn encode_without_context(&self, continuation: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        let prefix = self.prefix()?;
        let mut ids = self.encoder.encode(continuation, false)?;
        if ids.first() == Some(&prefix.id) {
            let rest = ids.split_off(1);
            return Ok((ids, rest));
        }
        Ok((vec![prefix.id], ids))
    }

    fn prefix(&self) -> Result<&Prefix> {
        self.encoder.prefix().ok_or_else(|| {
            Error::bad_input("no BOS or EOS token for an empty context")
                .expected("a tokenizer with a BOS or an EOS token")
                .found("neither")
        })
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let prefix = self.encoder.prefix();
        let starts_with_prefix = prefix.is_some_and(|prefix| text.starts_with(&prefix.text));
        let ids = self.encoder.encode(text, self.bos != Bos::Never && !starts_with_prefix)?;
        if self.bos == Bos::Always && ids.first().copied() != prefix.map(|prefix| prefix.id) {
            return Err(Error::bad_input("the tokenizer does not add a BOS token")
                .expected("a BOS token, which the BOS policy `always` requires")
                .found(ids.first().map_or("no token".to_owned(), |id| format!("token {id}")))
                .hint("use the BOS policy `tokenizer`, which gives the same ids as lm-eval"));
        }
        Ok(ids)
    }

    /// Truncates the ids to the maximum length. `texts` are the context and the continuation, for error messages.
    fn truncate(
        &self,
        texts: (&str, &str),
        context_ids: &[u32],
        continuation_ids: Vec<u32>,
    ) -> Result<TokenizedRequest> {
        if context_ids.is_empty() {
            return Err(Error::bad_input("the context has no tokens")
                .expected("at least one token before the continuation")
                .found(format!("the context {:?}", texts.0)));
        }
        if continuation_ids.is_empty() {
            return Err(Error::bad_input("the continuation has no tokens")
                .expected("at least one token to score")
                .found(format!("the continuation {:?}", texts.1)));
        }
        if continuation_ids.len() > self.max_length {
            return Err(Error::bad_input("the continuation exceeds the model's context")
                .expected(format!("at most {} tokens", self.max_length))
                .found(format!("{} tokens", continuation_ids.len())));
        }
        let mut input_ids = [context_ids, continuation_ids.as_slice()].concat();
        // Truncate from the left, so BOS is removed first.
        let truncated_left = input_ids.len().saturating_sub(self.max_length.saturating_add(1));
        let cut_ids = input_ids.drain(..truncated_left).collect();
        // The model does not need the last id, because no token is predicted after it.
        input_ids.pop();
        Ok(TokenizedRequest { input_ids, continuation_ids, cut_ids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test tokenizer with one token per character (its code point), except that "ab" is a single token (1000). `^` is
    /// the prefix token (1), which is added at the start.
    struct LetterEncoder {
        prefix: Option<Prefix>,
        adds_prefix: bool,
    }

    impl Encoder for LetterEncoder {
        fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
            if text.contains('!') {
                return Err(Error::bad_input("no token"));
            }
            let special = (self.adds_prefix && add_special).then_some(1);
            let joined = text.replace("ab", "\u{3e8}");
            Ok(special
                .into_iter()
                .chain(joined.chars().map(|letter| if letter == '^' { 1 } else { u32::from(letter) }))
                .collect())
        }

        fn prefix(&self) -> Option<&Prefix> {
            self.prefix.as_ref()
        }
    }

    fn letter_encoder() -> LetterEncoder {
        LetterEncoder { prefix: Some(Prefix { id: 1, text: "^".to_owned() }), adds_prefix: true }
    }

    fn tokenize_pair(encoder: &LetterEncoder, pair: (&str, &str), bos: Bos, length: usize) -> Result<TokenizedRequest> {
        continuation(pair, encoder, bos, length, &mut HashMap::new())
    }

    /// Returns the ids of the untruncated context.
    fn context_ids(tokenized: &TokenizedRequest) -> Vec<u32> {
        let all = [tokenized.cut_ids.as_slice(), &tokenized.input_ids].concat();
        all[..=all.len() - tokenized.continuation_ids.len()].to_vec()
    }

    /// Encodes and renders a context and continuation, in which `^` stands for the prefix token and `&` for "ab".
    fn encode_to_letters(pair: (&str, &str), bos: Bos) -> (String, String) {
        let request = tokenize_pair(&letter_encoder(), pair, bos, 99).unwrap();
        (
            context_ids(&request).iter().map(letter_of_id).collect(),
            request.continuation_ids.iter().map(letter_of_id).collect(),
        )
    }

    fn letter_of_id(id: &u32) -> char {
        match id {
            1 => '^',
            1000 => '&',
            other => char::from_u32(*other).unwrap(),
        }
    }

    fn pair(context: &str, continuation: &str) -> (String, String) {
        (context.to_owned(), continuation.to_owned())
    }

    #[test]
    fn trailing_whitespace_of_context_moves_to_continuation() {
        assert_eq!(encode_to_letters(("Q", " x"), Bos::Tokenizer), pair("^Q", " x"));
        assert_eq!(encode_to_letters(("Q \n\t\u{a0}\u{1f}", " x"), Bos::Tokenizer), pair("^Q", " \n\t\u{a0}\u{1f} x"));
        assert_eq!(encode_to_letters((" Q", " x"), Bos::Never), pair(" Q", " x"));
        assert_eq!(encode_to_letters((" ", " x"), Bos::Tokenizer), pair("^", "  x"), "the context must be BOS only");
    }

    #[test]
    fn token_spanning_context_and_continuation_is_not_scored() {
        // The joined text has the tokens c, ab and d. Skipping the context's two tokens leaves d, so b is never scored.
        assert_eq!(encode_to_letters(("ca", "bd"), Bos::Never), pair("ca", "d"));
        let error = tokenize_pair(&letter_encoder(), ("ca", "b"), Bos::Never, 99).unwrap_err().to_string();
        assert!(error.contains("the continuation has no tokens"), "{error}");
    }

    #[test]
    fn bos_is_added_by_policy_and_never_twice() {
        for (bos, expected) in [(Bos::Tokenizer, "^Q"), (Bos::Always, "^Q"), (Bos::Never, "Q")] {
            assert_eq!(encode_to_letters(("Q", "x"), bos).0, expected);
            assert_eq!(encode_to_letters(("^Q", "x"), bos).0, "^Q");
        }
        let without = LetterEncoder { adds_prefix: false, ..letter_encoder() };
        assert_eq!(context_ids(&tokenize_pair(&without, ("Q", "x"), Bos::Tokenizer, 9).unwrap()).len(), 1);
        let error = tokenize_pair(&without, ("Q", "x"), Bos::Always, 9).unwrap_err();
        assert!(error.to_string().contains("`always`"), "{error}");
    }

    #[test]
    fn empty_context_becomes_one_prefix_token() {
        for bos in [Bos::Tokenizer, Bos::Never, Bos::Always] {
            assert_eq!(encode_to_letters(("", " x"), bos), pair("^", " x"));
            assert_eq!(encode_to_letters(("", "^x"), bos), pair("^", "x"));
        }
        let none = LetterEncoder { prefix: None, adds_prefix: false };
        assert!(tokenize_pair(&none, ("", " x"), Bos::Tokenizer, 9).unwrap_err().to_string().contains("BOS or an EOS"));
        assert!(
            tokenize_pair(&letter_encoder(), ("", "^"), Bos::Tokenizer, 9)
                .unwrap_err()
                .to_string()
                .contains("continuation has no")
        );
    }

    #[test]
    fn inputs_are_truncated_left_and_drop_the_last_id() {
        let request = |length| tokenize_pair(&letter_encoder(), ("QR", "xyz"), Bos::Tokenizer, length);
        for (length, input, cut) in [(99, "^QRxy", 0), (5, "^QRxy", 0), (4, "QRxy", 1), (3, "Rxy", 2)] {
            let request = request(length).unwrap();
            assert_eq!((context_ids(&request), &request.continuation_ids), (letter_ids("^QR"), &letter_ids("xyz")));
            assert_eq!((request.input_ids, request.cut_ids.len()), (letter_ids(input), cut), "length {length}");
        }
        let error = request(2).unwrap_err();
        assert!(error.to_string().contains("at most 2 tokens"), "the limit is inclusive: {error}");
        assert_eq!(request(0).unwrap_err().exit_code(), 2);
    }

    fn letter_ids(text: &str) -> Vec<u32> {
        text.chars().map(|c| if c == '^' { 1 } else { u32::from(c) }).collect::<Vec<_>>()
    }

    /// The expected windows are those of `utils.get_rolling_token_windows` in lm-evaluation-harness for ten tokens,
    /// after they are made disjoint.
    #[test]
    fn rolling_windows_cover_a_text_without_overlap() {
        let windows = |text: &str, length| -> Vec<(String, String)> {
            let all = rolling(text, &letter_encoder(), Bos::Never, length).unwrap();
            all.iter().map(|request| (show_ids(&request.input_ids), show_ids(&request.continuation_ids))).collect()
        };
        assert_eq!(windows("QRSTUVWXYZ", 4), [pair("^QRS", "QRST"), pair("TUVW", "UVWX"), pair("VWXY", "YZ")]);
        assert_eq!(windows("QRS", 4), [pair("^QR", "QRS")]);
        assert_eq!(windows("QRST", 4), [pair("^QRS", "QRST")]);
        // A BOS added by the tokenizer is predicted from the prefix token and scored like the other tokens.
        let with_bos = rolling("Q", &letter_encoder(), Bos::Tokenizer, 9).unwrap();
        assert_eq!((with_bos[0].input_ids.len(), with_bos[0].continuation_ids.len()), (2, 2));
        let none = LetterEncoder { prefix: None, adds_prefix: false };
        assert!(rolling("Q", &none, Bos::Tokenizer, 9).is_err());
        assert!(rolling("", &letter_encoder(), Bos::Never, 9).is_err());
    }

    fn show_ids(ids: &[u32]) -> String {
        ids.iter().map(|id| if *id == 1 { '^' } else { char::from_u32(*id).unwrap() }).collect::<String>()
    }

    #[test]
    fn unscorable_request_is_rejected() {
        for (texts, bos) in [((" ", " x"), Bos::Never), (("Q", ""), Bos::Never), (("Q", "!"), Bos::Tokenizer)] {
            assert_eq!(tokenize_pair(&letter_encoder(), texts, bos, 9).unwrap_err().exit_code(), 2);
        }
    }
}
