//! Generation arguments, which are parsed from `generation_kwargs` as in lm-eval.

use ghostlab_core::error::{Error, Result, nearest};

use crate::value::Value;

/// Default maximum number of tokens in an answer.
const DEFAULT_MAX_TOKENS: usize = 256;
/// Accepted names of the length limit. If several are set, the first one in this list applies, as in
/// lm-evaluation-harness.
const LENGTH_LIMITS: [&str; 4] = ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"];
/// Default value of `top_k` in transformers.
const DEFAULT_TOP_K: usize = 50;

/// Stop sequences, maximum length and sampling parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationConfig {
    /// Nonempty stop sequences, in the order in which they truncate the answer.
    pub until: Vec<String>,
    /// Maximum number of tokens in an answer.
    pub max_tokens: usize,
    /// Sampling parameters, or `None` for greedy decoding.
    pub sampling: Option<Sampling>,
}

/// Sampling parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    pub temperature: f64,
    /// Cumulative probability up to which the most likely tokens are kept.
    pub top_p: f64,
    /// Number of most likely tokens to keep, or `None` to keep all.
    pub top_k: Option<usize>,
}

/// Supported options besides the length limits.
const OTHER_OPTIONS: [&str; 6] = ["until", "do_sample", "temperature", "top_p", "top_k", "num_beams"];

impl GenerationConfig {
    /// Parses `generation_kwargs`.
    ///
    /// # Errors
    /// Fails if an option is unsupported or its value is invalid.
    pub fn read(settings: &Value) -> Result<Self> {
        let Value::Map(pairs) = settings else { return Err(value_error("generation_kwargs", "a mapping", settings)) };
        if let Some((key, value)) = pairs.iter().find(|(key, value)| {
            !is_supported_option(key.as_text().unwrap_or_default()) && !matches!(value, Value::None)
        }) {
            let known: Vec<&str> = OTHER_OPTIONS.into_iter().chain(LENGTH_LIMITS).collect();
            let error = value_error(&key.text(), &known.join(", "), value);
            let key = key.text();
            return Err(match nearest(&key, OTHER_OPTIONS.into_iter().chain(LENGTH_LIMITS)) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            });
        }
        if let Some(beams) = read_setting("num_beams", settings).filter(|beams| beams.as_int() != Some(1)) {
            return Err(value_error("num_beams", "1, because beam search is not supported", beams));
        }
        let until = match read_setting("until", settings) {
            None => Vec::new(),
            Some(Value::List(items)) => items.iter().map(Value::text).collect(),
            Some(one) => vec![one.text()],
        };
        let max_tokens = match LENGTH_LIMITS.iter().find_map(|key| Some((*key, read_setting(key, settings)?))) {
            None => DEFAULT_MAX_TOKENS,
            Some((key, value)) => parse_count(key, value)?,
        };
        let temperature =
            read_setting("temperature", settings).map(|value| parse_number("temperature", value)).transpose()?;
        let is_sampled = match read_setting("do_sample", settings) {
            Some(Value::Bool(is_sampled)) => *is_sampled,
            Some(other) => return Err(value_error("do_sample", "true or false", other)),
            None => temperature.is_some_and(|temperature| temperature > 0.0),
        };
        let sampling = is_sampled.then(|| -> Result<Sampling> {
            let temperature = temperature.unwrap_or(1.0);
            if temperature <= 0.0 {
                let found = Value::Float(temperature);
                return Err(value_error("temperature", "more than 0 if `do_sample` is true", &found));
            }
            let top_p = read_setting("top_p", settings).map_or(Ok(1.0), |value| parse_number("top_p", value))?;
            let top_k = read_setting("top_k", settings)
                .map_or(Ok(DEFAULT_TOP_K as f64), |value| parse_number("top_k", value))?;
            // 0 and -1 disable `top_k`.
            Ok(Sampling { temperature, top_p, top_k: (top_k >= 1.0).then_some(top_k as usize) })
        });
        let sampling = sampling.transpose()?;
        Ok(Self { until: until.into_iter().filter(|stop| !stop.is_empty()).collect(), max_tokens, sampling })
    }
}

fn is_supported_option(key: &str) -> bool {
    LENGTH_LIMITS.contains(&key) || OTHER_OPTIONS.contains(&key)
}

fn read_setting<'a>(key: &str, settings: &'a Value) -> Option<&'a Value> {
    settings.get(key).filter(|value| !matches!(value, Value::None))
}

fn parse_count(key: &str, value: &Value) -> Result<usize> {
    let number = value.as_int().and_then(|number| usize::try_from(number).ok()).filter(|number| *number > 0);
    number.ok_or_else(|| value_error(key, "a number of tokens, 1 or more", value))
}

fn parse_number(key: &str, value: &Value) -> Result<f64> {
    value.as_number().filter(|number| number.is_finite()).ok_or_else(|| value_error(key, "a number", value))
}

fn value_error(key: &str, expected: &str, found: &Value) -> Error {
    Error::bad_input(format!("`generation_kwargs.{key}` is not supported")).expected(expected).found(found.repr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, Value)]) -> Result<GenerationConfig> {
        GenerationConfig::read(&Value::Map(
            pairs.iter().map(|(key, value)| (Value::from(*key), value.clone())).collect(),
        ))
    }

    #[test]
    fn generation_settings_are_parsed_as_in_the_harness() {
        // The expected results are those of `models/utils.py` in lm-evaluation-harness.
        let plain = GenerationConfig { until: vec!["a".into()], max_tokens: DEFAULT_MAX_TOKENS, sampling: None };
        assert_eq!(read(&[("until", Value::List(["a", ""].map(Value::from).to_vec()))]).unwrap(), plain);
        assert_eq!(read(&[("until", Value::from("a"))]).unwrap(), plain);
        let greedy = [("temperature", Value::Float(0.7)), ("do_sample", Value::Bool(false))];
        assert_eq!(read(&greedy).unwrap().sampling, None);
        let drawn = read(&[("temperature", Value::Float(0.7)), ("top_k", Value::Int(0))]).unwrap().sampling.unwrap();
        assert_eq!(drawn, Sampling { temperature: 0.7, top_p: 1.0, top_k: None });
        let all = [("max_tokens", Value::Int(3)), ("max_gen_toks", Value::Int(7))];
        assert_eq!(read(&all).unwrap().max_tokens, 7);
        assert_eq!(read(&[("do_sample", Value::Bool(true))]).unwrap().sampling.unwrap().top_k, Some(50));
    }

    #[test]
    fn unsupported_generation_option_is_rejected_with_its_name() {
        let refused = [
            ("num_beams", Value::Int(4)),
            ("repetition_penalty", Value::Float(1.1)),
            ("think_end_token", Value::from("</think>")),
            ("max_gen_toks", Value::Int(0)),
            ("do_sample", Value::from("yes")),
        ];
        for (key, value) in refused {
            let error = read(&[(key, value)]).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
        assert!(read(&[("do_sample", Value::Bool(true)), ("temperature", Value::Float(0.0))]).is_err());
        assert!(read(&[("num_beams", Value::Int(1)), ("do_sample", Value::Bool(false))]).is_ok());
    }
}
