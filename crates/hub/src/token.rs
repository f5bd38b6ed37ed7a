//! Access tokens for the Hub.

use std::fmt;

use ghostlab_core::error::{Error, Result};
use reqwest::header::HeaderValue;

/// Access token. `Debug` does not reveal it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

const REDACTED_TOKEN: &str = "[token]";
/// Minimum length of a token. A shorter string may occur in messages by chance, and redacting it would garble them.
const MIN_TOKEN_LENGTH: usize = 4;

impl Token {
    /// Parses a token and trims whitespace. Returns `None` for an empty string. `source` names the origin of the token
    /// in error messages.
    ///
    /// # Errors
    /// Fails if the string is too short or has invalid characters. The message does not include the string.
    pub fn new(text: &str, source: &str) -> Result<Option<Self>> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let is_short = text.len() < MIN_TOKEN_LENGTH;
        if !text.chars().all(|c| c.is_ascii_graphic()) || is_short {
            let found = match is_short {
                true => format!("fewer than {MIN_TOKEN_LENGTH} characters"),
                false => "whitespace or other invalid characters".to_owned(),
            };
            return Err(Error::bad_input("invalid hub token")
                .at(source)
                .expected("one line without spaces, such as `hf_abc123`")
                .found(found)
                .hint("create a token at https://huggingface.co/settings/tokens"));
        }
        Ok(Some(Self(text.to_owned())))
    }

    /// Returns the authorization header, marked as sensitive.
    pub(crate) fn header(&self) -> Result<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0))
            .map_err(|_| Error::bad_input("the token contains characters that are not allowed in an HTTP header"))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Replaces occurrences of the token in a string.
    pub fn redact(&self, text: &str) -> String {
        text.replace(&self.0, REDACTED_TOKEN)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED_TOKEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_absent_from_debug_output_and_errors() {
        let token = Token::new(" hf_secret\r\n", "HF_TOKEN").unwrap().unwrap();
        assert_eq!(format!("{token:?} {:?}", token.header().unwrap()), "[token] Sensitive");
        assert_eq!(token.redact("you sent hf_secret, twice: hf_secret"), "you sent [token], twice: [token]");
        assert!(Token::new(" \n", "HF_TOKEN").unwrap().is_none());
        let error = Token::new("hf_se cret", "HF_TOKEN").unwrap_err().to_string();
        assert!(!error.contains("cret") && error.contains("HF_TOKEN"), "{error}");
    }
}
