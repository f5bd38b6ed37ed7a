//! Generation settings of a backbone from `generation_config.json`, or from `config.json` if that file does not exist,
//! with the semantics of transformers 5. Sampling settings are ignored because they do not affect greedy decoding.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::processors::LogitsProcessors;
use crate::error::{Error, Result, shorten};

pub const GENERATION_CONFIG: &str = "generation_config.json";

/// Settings that change the decoding strategy, each with the numeric value that disables it, if any. All other values
/// are rejected.
const UNSUPPORTED_SETTINGS: [(&str, Option<f64>); 18] = [
    ("assistant_early_exit", None),
    ("constraints", None),
    ("dola_layers", None),
    ("encoder_no_repeat_ngram_size", Some(0.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("force_words_ids", None),
    ("forced_decoder_ids", None),
    ("guidance_scale", Some(1.0)),
    ("max_time", None),
    ("num_beam_groups", Some(1.0)),
    ("num_beams", Some(1.0)),
    ("num_return_sequences", Some(1.0)),
    ("penalty_alpha", Some(0.0)),
    ("prompt_lookup_num_tokens", Some(0.0)),
    ("stop_strings", None),
    ("token_healing", None),
    ("use_mtp", None),
    ("watermarking_config", None),
];

/// Settings in a backbone's files that affect greedy decoding.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end an answer, or an empty list if the files name none.
    pub end_of_text: Vec<u32>,
    /// Whether `end_of_text` differs from the end tokens in `config.json`.
    has_other_ends: bool,
    /// Maximum number of new tokens in an answer. Overrides the task's value.
    pub max_new_tokens: Option<usize>,
    pub processors: LogitsProcessors,
}

impl GenerationConfig {
    /// Parses the settings. `generation_config` is null if the file does not exist. If the file sets no end tokens,
    /// those of `config.json` apply.
    ///
    /// # Errors
    /// Fails if a value is invalid or a setting requires a strategy other than greedy decoding.
    pub fn read(generation_config: &Value, config: &Value) -> Result<Self> {
        let none = Map::new();
        let (name, file) = match generation_config {
            Value::Null => ("config.json", config),
            file => (GENERATION_CONFIG, file),
        };
        let entries = match file {
            Value::Object(entries) => entries,
            Value::Null => &none,
            other => return Err(value_error(name, "", "a JSON object", other)),
        };
        let settings = ConfigEntries { name, entries };
        settings.check_decoding_strategy()?;
        let config_ends =
            ConfigEntries { name: "config.json", entries: config.as_object().unwrap_or(&none) }.read_end_tokens()?;
        let end_of_text =
            Some(settings.read_end_tokens()?).filter(|ends| !ends.is_empty()).unwrap_or_else(|| config_ends.clone());
        let has_other_ends = to_set(&end_of_text) != to_set(&config_ends);
        let mut processors = settings.read_processors()?;
        if !processors.is_empty() {
            processors.end_of_text.clone_from(&end_of_text);
        }
        if processors.exponential_decay_length_penalty.is_some() && end_of_text.is_empty() {
            let key = "exponential_decay_length_penalty";
            return Err(value_error(name, key, "`eos_token_id` in the same file or in config.json", &file[key]));
        }
        let max_new_tokens = settings.read_count("max_new_tokens", 1)?;
        Ok(Self { end_of_text, has_other_ends, max_new_tokens, processors })
    }

    /// Returns the settings that differ from `config.json` and the task's defaults, for use in cache keys, or `None` if
    /// there are none.
    pub fn changes(&self) -> Option<Value> {
        let mut changes = Map::new();
        if self.has_other_ends {
            changes.insert("eos_token_id".to_owned(), json!(self.end_of_text));
        }
        if let Some(tokens) = self.max_new_tokens {
            changes.insert("max_new_tokens".to_owned(), json!(tokens));
        }
        if !self.processors.is_empty() {
            changes.insert("processors".to_owned(), json!(self.processors));
        }
        (!changes.is_empty()).then_some(Value::Object(changes))
    }

    /// Checks that all token ids are in the vocabulary.
    ///
    /// # Errors
    /// Fails if an id is `vocab` or higher.
    pub fn check_ids(&self, vocab: usize) -> Result<()> {
        match self.processors.highest_id().filter(|id| *id as usize >= vocab) {
            None => Ok(()),
            Some(id) => Err(Error::bad_input("a generation setting has a token id outside the vocabulary")
                .at(GENERATION_CONFIG)
                .expected(format!("ids below {vocab}"))
                .found(id)),
        }
    }
}

fn to_set(ids: &[u32]) -> BTreeSet<u32> {
    ids.iter().copied().collect::<BTreeSet<u32>>()
}

/// Entries of a config file, and the file's name for error messages.
struct ConfigEntries<'a> {
    name: &'static str,
    entries: &'a Map<String, Value>,
}

impl ConfigEntries<'_> {
    /// Returns the value of a setting, or `None` if it is absent or null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key).filter(|value| !value.is_null())
    }

    fn check_decoding_strategy(&self) -> Result<()> {
        for (key, neutral) in UNSUPPORTED_SETTINGS {
            let Some(value) = self.get(key) else { continue };
            let is_neutral = match value {
                Value::Number(number) => number.as_f64() == neutral,
                Value::Bool(is_enabled) => !is_enabled,
                Value::Array(items) => items.is_empty(),
                _ => false,
            };
            if !is_neutral {
                let expected = neutral.map_or("null".to_owned(), |number| format!("null or {number}"));
                return Err(value_error(self.name, key, &expected, value));
            }
        }
        match self.get("cache_implementation").filter(|value| *value == "quantized") {
            Some(value) => Err(value_error(self.name, "cache_implementation", "a cache that is not quantized", value)),
            None => Ok(()),
        }
    }

    /// Converts a setting with `parse`. Returns `None` if it is absent or null.
    fn read<T>(&self, key: &str, expected: &str, parse: impl FnOnce(&Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        parse(value).map(Some).ok_or_else(|| value_error(self.name, key, expected, value))
    }

    /// Reads the end tokens. Negative ids are skipped, because in transformers they never end an answer.
    fn read_end_tokens(&self) -> Result<Vec<u32>> {
        let ids = self.read("eos_token_id", "a token id, or a list of token ids", |value| {
            let ids = one_or_many(value).iter().filter(|id| id.as_i64().is_none_or(|id| id >= 0));
            ids.map(parse_token).collect()
        });
        Ok(ids?.unwrap_or_default())
    }

    fn read_processors(&self) -> Result<LogitsProcessors> {
        Ok(LogitsProcessors {
            sequence_bias: self.read_sequence_bias()?,
            repetition_penalty: self.read_repetition_penalty()?,
            no_repeat_ngram_size: self.read_count("no_repeat_ngram_size", 0)?.filter(|size| *size > 0),
            bad_words_ids: self.read_bad_words()?,
            min_length: self.read_count("min_length", 0)?.filter(|tokens| *tokens > 0),
            min_new_tokens: self.read_count("min_new_tokens", 0)?.filter(|tokens| *tokens > 0),
            forced_bos_token_id: self.read_tokens("forced_bos_token_id")?.first().copied(),
            forced_eos_token_id: self.read_tokens("forced_eos_token_id")?,
            exponential_decay_length_penalty: self.read_length_penalty()?,
            suppress_tokens: self.read_tokens("suppress_tokens")?,
            begin_suppress_tokens: self.read_tokens("begin_suppress_tokens")?,
            end_of_text: Vec::new(),
        })
    }

    fn read_count(&self, key: &str, min: u64) -> Result<Option<usize>> {
        self.read(key, &format!("a whole number from {min}"), |value| {
            value.as_u64().filter(|count| *count >= min).and_then(|count| usize::try_from(count).ok())
        })
    }

    fn read_tokens(&self, key: &str) -> Result<Vec<u32>> {
        let ids = self.read(key, "token ids", |value| one_or_many(value).iter().map(parse_token).collect());
        Ok(ids?.unwrap_or_default())
    }

    fn read_repetition_penalty(&self) -> Result<Option<f64>> {
        let penalty = self.read("repetition_penalty", "a number above 0", |value| {
            value.as_f64().filter(|penalty| penalty.is_finite() && *penalty > 0.0)
        });
        Ok(penalty?.filter(|penalty| *penalty != 1.0))
    }

    fn read_bad_words(&self) -> Result<Vec<Vec<u32>>> {
        let words = self.read("bad_words_ids", "a list of lists of token ids", |value| {
            value.as_array()?.iter().map(parse_sequence).collect()
        });
        Ok(words?.unwrap_or_default())
    }

    fn read_sequence_bias(&self) -> Result<Vec<(Vec<u32>, f64)>> {
        let pairs = self.read("sequence_bias", "a list of [[token ids], number]", |value| {
            value.as_array()?.iter().map(parse_biased_sequence).collect::<Option<Vec<_>>>()
        });
        let pairs = pairs?.unwrap_or_default();
        // If a sequence occurs more than once, its last bias wins.
        let last = (0..pairs.len()).filter(|&index| pairs[index + 1..].iter().all(|(ids, _)| *ids != pairs[index].0));
        Ok(last.map(|index| pairs[index].clone()).collect())
    }

    fn read_length_penalty(&self) -> Result<Option<(i64, f64)>> {
        self.read("exponential_decay_length_penalty", "[start, factor], an integer and a number", |value| {
            let pair = value.as_array()?;
            Some((pair.first()?.as_i64()?, pair.get(1)?.as_f64()?))
        })
    }
}

/// Returns the elements of a list, or a single value as a list.
fn one_or_many(value: &Value) -> &[Value] {
    value.as_array().map_or_else(|| std::slice::from_ref(value), Vec::as_slice)
}

fn parse_token(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn parse_biased_sequence(pair: &Value) -> Option<(Vec<u32>, f64)> {
    let [ids, bias] = pair.as_array()?.as_slice() else { return None };
    Some((parse_sequence(ids)?, bias.as_f64()?))
}

/// Parses a nonempty list of token ids.
fn parse_sequence(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(parse_token).collect::<Option<Vec<u32>>>().filter(|ids| !ids.is_empty())
}

fn value_error(file: &str, key: &str, expected: &str, found: &Value) -> Error {
    Error::bad_input("invalid or unsupported generation setting")
        .at(format!("{file}, {key}"))
        .expected(expected)
        .found(shorten(&found.to_string(), 200))
        .hint("remove the entry to generate without it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_effect_are_omitted_from_cache_keys() {
        let config = json!({"eos_token_id": [2, 7]});
        for file in [
            json!(null),
            json!({}),
            json!({"eos_token_id": [7, 2], "bos_token_id": 1, "transformers_version": "5.24.0"}),
            json!({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "max_length": 4096}),
            json!({"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "num_beams": 1, "suppress_tokens": null}),
            json!({"guidance_scale": 1, "penalty_alpha": 0.0, "token_healing": false, "bad_words_ids": null}),
            json!({"cache_implementation": "hybrid", "encoder_repetition_penalty": 1.0, "min_length": 0}),
        ] {
            let read = GenerationConfig::read(&file, &config).unwrap();
            assert_eq!((read.changes(), read.end_of_text.len()), (None, 2), "{file}");
        }
    }

    #[test]
    fn changes_lists_settings_that_affect_generation() {
        let config = json!({"eos_token_id": 2});
        for (file, changes) in [
            (json!({"eos_token_id": [2, 426]}), json!({"eos_token_id": [2, 426]})),
            (json!({"eos_token_id": 5}), json!({"eos_token_id": [5]})),
            (json!({"max_new_tokens": 9}), json!({"max_new_tokens": 9})),
            (
                json!({"repetition_penalty": 1.1}),
                json!({"processors": {"repetition_penalty": 1.1, "end_of_text": [2]}}),
            ),
            (
                json!({"sequence_bias": [[[3], 1.0], [[4, 5], -2.5], [[3], 2.0]]}),
                json!({"processors": {"sequence_bias": [[[4, 5], -2.5], [[3], 2.0]], "end_of_text": [2]}}),
            ),
            (
                json!({"exponential_decay_length_penalty": [3, 1.5], "forced_eos_token_id": 2}),
                json!({"processors": {
                    "exponential_decay_length_penalty": [3, 1.5], "forced_eos_token_id": [2], "end_of_text": [2]}}),
            ),
        ] {
            assert_eq!(GenerationConfig::read(&file, &config).unwrap().changes(), Some(changes), "{file}");
        }
        // If the file is missing, transformers reads the settings from config.json.
        let older = json!({"eos_token_id": 2, "no_repeat_ngram_size": 3});
        assert!(GenerationConfig::read(&json!(null), &older).unwrap().changes().is_some());
        assert_eq!(GenerationConfig::read(&json!({}), &older).unwrap().changes(), None);
        assert!(GenerationConfig::read(&json!(null), &json!({"eos_token_id": -1})).unwrap().end_of_text.is_empty());
        let beyond = GenerationConfig::read(&json!({"bad_words_ids": [[1], [3, 512]]}), &config).unwrap();
        assert!(beyond.check_ids(513).is_ok() && beyond.check_ids(512).is_err());
    }

    #[test]
    fn unsupported_generation_settings_are_rejected_by_name() {
        for (key, value) in [
            ("num_beams", json!(4)),
            ("penalty_alpha", json!(0.6)),
            ("guidance_scale", json!(1.5)),
            ("stop_strings", json!(["\n"])),
            ("watermarking_config", json!({"bias": 2.5})),
            ("force_words_ids", json!([[3]])),
            ("encoder_no_repeat_ngram_size", json!(2)),
            ("cache_implementation", json!("quantized")),
            ("repetition_penalty", json!(0)),
            ("repetition_penalty", json!("1.1")),
            ("bad_words_ids", json!([3])),
            ("bad_words_ids", json!([[]])),
            ("sequence_bias", json!({"3": 1.0})),
            ("suppress_tokens", json!([-1])),
            ("eos_token_id", json!("</s>")),
            ("max_new_tokens", json!(0)),
            ("exponential_decay_length_penalty", json!([3])),
        ] {
            let error = GenerationConfig::read(&json!({key: value}), &json!({})).unwrap_err();
            let text = error.to_string();
            assert!(error.exit_code() == 2 && text.contains(&format!("{GENERATION_CONFIG}, {key}")), "{text}");
        }
        assert!(GenerationConfig::read(&json!([]), &json!({})).is_err());
    }
}
