//! Sliding-window attention settings of a config, as interpreted by transformers: a query sees the last `width` tokens
//! including itself (`sliding_window_overlay` in `masking_utils.py`).

use serde_json::{Map, Value};

use super::architecture::{Architecture, SlidingWindow};
use super::config_fields::Entries;
use crate::error::Result;

/// Upper bound of a context length.
pub(super) const MAX_TOKENS: usize = 1 << 30;

/// transformers' defaults.
const WIDTH: usize = 4096;
const FIRST_LAYER: usize = 28;

const KEY: &str = "sliding_window";
const SWITCH: &str = "use_sliding_window";
const FIRST: &str = "max_window_layers";
const LAYERS: &str = "layer_types";
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Returns the window of each layer. `rotated` states which layers have a rotary embedding.
///
/// # Errors
/// Fails if transformers does not support such a window for the architecture, or an entry is invalid.
pub(super) fn of(
    entries: &Entries<'_>,
    architecture: &Architecture,
    layers: usize,
    rotated: &[bool],
    notes: &mut Vec<String>,
) -> Result<Vec<Option<usize>>> {
    let kinds = kinds(entries, layers)?;
    let switch = entries.flag(SWITCH)?;
    let refused = |key: &str, found: &Value, expected: &str| Err(entries.unsupported(key, found, expected));
    let alike = |window: Option<usize>, expected: &str| {
        let other = kinds.iter().flatten().find(|kind| is_sliding(kind) == window.is_none());
        other.map_or_else(|| Ok(vec![window; layers]), |found| refused(LAYERS, found, expected))
    };
    let by_kind = |kinds: &[&Value], width: Option<usize>, expected: &str| {
        let lost = kinds.iter().find(|kind| width.is_none() && is_sliding(kind));
        lost.map_or_else(
            || Ok(kinds.iter().map(|kind| width.filter(|_| is_sliding(kind))).collect()),
            |found| refused(LAYERS, found, expected),
        )
    };
    match architecture.window {
        SlidingWindow::Never => {
            if switch == Some(true) {
                return refused(SWITCH, &Value::from(true), "false, because this architecture has no sliding windows");
            }
            if let Some(found) = entries.get(KEY).filter(|_| switch.is_none()) {
                return refused(KEY, found, "null (attention to all earlier tokens)");
            }
            alike(None, &format!("{FULL} in every layer"))
        }
        SlidingWindow::Always => {
            let window = width(entries, notes)?;
            // transformers ignores the other entries here, so reject a config that sets them.
            if let Some(found) = entries.get(SWITCH).filter(|_| switch != Some(window.is_some())) {
                return refused(
                    SWITCH,
                    found,
                    &format!("a value that agrees with `{KEY}`, where null means no window"),
                );
            }
            alike(window, &format!("the same in every layer, according to `{KEY}`"))
        }
        SlidingWindow::Switched => {
            if switch != Some(true) {
                return alike(None, &format!("{FULL}, or `{SWITCH}: true`"));
            }
            let width = width(entries, notes)?;
            if let Some(kinds) = &kinds {
                return by_kind(kinds, width, &format!("`{KEY}` to be set, because `layer_types` has sliding layers"));
            }
            // `count` rejects 0, which is a valid number of layers here.
            let first = match entries.get(FIRST) {
                Some(zero) if zero.as_u64() == Some(0) => 0,
                Some(_) => entries.count(FIRST, MAX_TOKENS)?,
                None => taken(FIRST, FIRST_LAYER, notes),
            };
            Ok((0..layers).map(|layer| width.filter(|_| layer >= first)).collect())
        }
        SlidingWindow::SwitchedWhole => {
            let window = if switch == Some(true) { width(entries, notes)? } else { None };
            alike(window, &format!("the same in every layer, according to `{SWITCH}`"))
        }
        SlidingWindow::Patterned { every, key } => {
            // transformers builds the window masks unconditionally, so null is not allowed here.
            let width = entries.count(KEY, MAX_TOKENS)?;
            let named = key.and_then(|key| Some(key).filter(|key| entries.get(key).is_some()));
            let every = named.map_or(Ok(every), |key| entries.count(key, MAX_TOKENS))?;
            Ok((0..layers)
                .map(|layer| {
                    (match &kinds {
                        Some(kinds) => is_sliding(kinds[layer]),
                        None => !(layer + 1).is_multiple_of(every),
                    })
                    .then_some(width)
                })
                .collect())
        }
        SlidingWindow::Unrotated => {
            let width = entries.optional_count(KEY, MAX_TOKENS)?.filter(|_| switch == Some(true));
            match &kinds {
                Some(kinds) => by_kind(kinds, width, &format!("{FULL}, or `{SWITCH}: true` and a `{KEY}`")),
                None => Ok(rotated.iter().map(|rotated| width.filter(|_| !rotated)).collect()),
            }
        }
    }
}

fn is_sliding(kind: &Value) -> bool {
    kind.as_str() == Some(SLIDING)
}

/// Returns the value of `layer_types` for the given windows.
pub(crate) fn layer_types(windows: impl Iterator<Item = Option<usize>>) -> Value {
    windows.map(|window| if window.is_some() { SLIDING } else { FULL }).collect::<Vec<_>>().into()
}

/// Returns the first sliding-window layer, if the config sets it as a single number or leaves it to transformers'
/// default.
pub(crate) fn first_window(config: &Map<String, Value>, architecture: &Architecture) -> Option<u64> {
    let switched = architecture.window == SlidingWindow::Switched && config.get(SWITCH) == Some(&Value::Bool(true));
    config.get(FIRST).and_then(Value::as_u64).or(switched.then_some(FIRST_LAYER as u64))
}

/// Parses a window width. Null means no window.
fn width(entries: &Entries<'_>, notes: &mut Vec<String>) -> Result<Option<usize>> {
    match entries.map.get(KEY) {
        Some(_) => entries.optional_count(KEY, MAX_TOKENS),
        None => Ok(Some(taken(KEY, WIDTH, notes))),
    }
}

fn taken(key: &str, value: usize, notes: &mut Vec<String>) -> usize {
    notes.push(format!("config.json does not set {key}: using {value}, as in transformers"));
    value
}

/// Parses `layer_types`, if present.
fn kinds<'a>(entries: &Entries<'a>, layers: usize) -> Result<Option<Vec<&'a Value>>> {
    let Some(value) = entries.get(LAYERS) else { return Ok(None) };
    let Some(kinds) = value.as_array().filter(|kinds| kinds.len() == layers) else {
        return Err(entries.wrong(LAYERS, &format!("a list of {layers} names, one for each layer")));
    };
    match kinds.iter().find(|kind| ![Some(FULL), Some(SLIDING)].contains(&kind.as_str())) {
        Some(other) => Err(entries.unsupported(LAYERS, other, &format!("{FULL} or {SLIDING}"))),
        None => Ok(Some(kinds.iter().collect())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::architecture::ARCHITECTURES;

    fn windows(model_type: &str, entries: &Value) -> Result<(Vec<Option<usize>>, Vec<String>)> {
        let architecture = ARCHITECTURES.iter().find(|candidate| candidate.model_type == model_type).unwrap();
        let map: &Map<String, Value> = entries.as_object().unwrap();
        let mut notes = Vec::new();
        of(&Entries { map, prefix: "" }, architecture, 3, &[true, false, true], &mut notes)
            .map(|windows| (windows, notes))
    }

    /// Expected values: `config.sliding_window` and `config.layer_types` of transformers 5.23.0 for three layers.
    #[test]
    fn a_window_is_where_transformers_has_it() {
        let full = vec![None; 3];
        let all = vec![Some(8); 3];
        for (model_type, entries, expected) in [
            ("mistral", json!({"sliding_window": 8}), all.clone()),
            ("mistral", json!({"sliding_window": null}), full.clone()),
            ("qwen2", json!({"sliding_window": 8, "max_window_layers": 0}), full.clone()),
            ("qwen2", json!({"use_sliding_window": false, "sliding_window": 8}), full.clone()),
            ("qwen2", json!({"use_sliding_window": true, "sliding_window": null}), full.clone()),
            ("qwen2", json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0}), all.clone()),
            ("qwen2", json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 28}), full.clone()),
            (
                "qwen3",
                json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2}),
                vec![None, None, Some(8)],
            ),
            (
                "qwen3",
                json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
                vec![Some(8), None, Some(8)],
            ),
            ("llama", json!({"layer_types": ["full_attention", "full_attention", "full_attention"]}), full.clone()),
            ("qwen3_moe", json!({"sliding_window": 8}), full.clone()),
            (
                "qwen3_moe",
                json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2}),
                all.clone(),
            ),
            ("gemma2", json!({"sliding_window": 8}), vec![Some(8), None, Some(8)]),
            ("gemma3_text", json!({"sliding_window": 8}), all.clone()),
            ("gemma3_text", json!({"sliding_window": 8, "sliding_window_pattern": 2}), vec![Some(8), None, Some(8)]),
            (
                "gemma3_text",
                json!({"sliding_window": 8, "sliding_window_pattern": 2,
                    "layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
                vec![None, None, Some(8)],
            ),
            ("smollm3", json!({"sliding_window": 8}), full.clone()),
            ("smollm3", json!({"use_sliding_window": true, "sliding_window": 8}), vec![None, Some(8), None]),
        ] {
            let (found, notes) = windows(model_type, &entries).unwrap();
            assert_eq!(found, expected, "{model_type} {entries}");
            assert!(!notes.iter().any(|note| note.contains(KEY)), "{notes:?}");
        }
    }

    #[test]
    fn a_width_that_the_config_leaves_out_is_said() {
        let (found, notes) = windows("mistral", &json!({})).unwrap();
        assert_eq!(found, vec![Some(4096); 3]);
        assert!(notes[0].contains("sliding_window: using 4096"), "{notes:?}");
        let (found, notes) = windows("qwen2", &json!({"use_sliding_window": true, "sliding_window": 8})).unwrap();
        assert_eq!(found, vec![None; 3]);
        assert!(notes[0].contains("max_window_layers: using 28"), "{notes:?}");
    }

    #[test]
    fn windows_that_nobody_computes_are_refused_by_name() {
        for (model_type, entries, key) in [
            ("llama", json!({"sliding_window": 8}), "sliding_window"),
            ("llama", json!({"use_sliding_window": true}), "use_sliding_window"),
            ("olmo2", json!({"layer_types": layer_kinds("sliding_attention")}), "layer_types"),
            ("olmo2", json!({"layer_types": ["full_attention"]}), "layer_types"),
            ("mistral", json!({"sliding_window": 0}), "sliding_window"),
            ("mistral", json!({"sliding_window": "wide"}), "sliding_window"),
            ("mistral", json!({"sliding_window": 8, "use_sliding_window": false}), "use_sliding_window"),
            ("mistral", json!({"sliding_window": 8, "layer_types": layer_kinds("sliding_attention")}), "layer_types"),
            (
                "mistral",
                json!({"sliding_window": null, "layer_types": layer_kinds("sliding_attention")}),
                "layer_types",
            ),
            ("qwen2", json!({"sliding_window": 8, "layer_types": layer_kinds("sliding_attention")}), "layer_types"),
            (
                "qwen2",
                json!({"use_sliding_window": true, "layer_types": layer_kinds("chunked_attention")}),
                "chunked_attention",
            ),
            ("qwen2", json!({"use_sliding_window": "yes"}), "use_sliding_window"),
            ("qwen2", json!({"use_sliding_window": true, "max_window_layers": -1}), "max_window_layers"),
            ("gemma2", json!({"sliding_window": null}), "sliding_window"),
            ("smollm3", json!({"sliding_window": 8, "layer_types": layer_kinds("sliding_attention")}), "layer_types"),
        ] {
            let text = windows(model_type, &entries).unwrap_err().to_string();
            assert!(text.contains(key), "{model_type} {entries}: {text}");
        }
    }

    fn layer_kinds(kind: &str) -> Value {
        json!([kind, "full_attention", "full_attention"])
    }
}
