//! Maximum input length of a model.

use serde_json::Value;

use crate::error::{Error, Result};

/// Keys in `config.json` that may specify the maximum length, in order of precedence.
const LENGTH_KEYS: [&str; 3] = ["n_positions", "max_position_embeddings", "n_ctx"];
/// Default length in lm-eval.
const DEFAULT_LENGTH: usize = 2048;
/// Value of `model_max_length` that means no limit. transformers writes it as int(1e30).
const UNLIMITED: f64 = 1e30;

/// Returns the maximum input length in tokens as lm-eval determines it. The sources are, in order: the model's
/// `config.json` (its `text_config` if present), `model_max_length` in `tokenizer_config.json`, and the default 2048.
///
/// # Errors
/// Fails if the length is not a positive integer.
pub fn max_length(config: &Value, tokenizer_config: Option<&Value>) -> Result<usize> {
    let text = &config["text_config"];
    let config = if text.as_object().is_some_and(|text| !text.is_empty()) { text } else { config };
    let stated = LENGTH_KEYS.iter().map(|key| (*key, &config[*key])).find(|(_, value)| !value.is_null());
    let stated = stated.or_else(|| {
        let value = &tokenizer_config?["model_max_length"];
        (!value.is_null() && value.as_f64() != Some(UNLIMITED)).then_some(("model_max_length", value))
    });
    let Some((key, value)) = stated else { return Ok(DEFAULT_LENGTH) };
    let length = value.as_u64().and_then(|length| usize::try_from(length).ok()).filter(|length| *length > 0);
    // lm-eval treats very large numbers as unlimited. This bound has the same effect, because no text is longer.
    let length = length.map(|length| length.min(MAX_LENGTH));
    length.ok_or_else(|| {
        Error::bad_input(format!("invalid `{key}`, the model's context length"))
            .expected("a whole number from 1")
            .found(value)
    })
}

/// Upper bound that exceeds the length of any text and prevents sums from overflowing.
const MAX_LENGTH: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_stated_maximum_length_is_used() {
        let unlimited: Value = serde_json::from_str("{\"model_max_length\": 1000000000000000019884624838656}").unwrap();
        let tokenizer = json!({"model_max_length": 512});
        for (config, tokenizer, expected) in [
            (json!({"n_ctx": 3, "max_position_embeddings": 2}), None, 2),
            (json!({"n_positions": null, "n_ctx": 3}), Some(&tokenizer), 3),
            (json!({"n_positions": 9, "text_config": {"n_ctx": 4}}), None, 4),
            (json!({"n_positions": 9, "text_config": {"hidden_size": 4}}), Some(&tokenizer), 512),
            (json!({"n_positions": 9, "text_config": {}}), None, 9),
            (json!({}), Some(&tokenizer), 512),
            (json!({}), Some(&unlimited), 2048),
            (json!({}), None, 2048),
            (json!({"n_ctx": u64::MAX}), None, MAX_LENGTH),
        ] {
            assert_eq!(max_length(&config, tokenizer).unwrap(), expected, "{config}");
        }
        for value in [json!(0), json!(-1), json!("2048"), json!(1.5)] {
            assert_eq!(max_length(&json!({"n_ctx": value}), None).unwrap_err().exit_code(), 2);
        }
        assert_eq!(max_length(&json!(null), None).unwrap(), 2048);
    }
}
