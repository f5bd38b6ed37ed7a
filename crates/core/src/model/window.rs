//! Sliding-window attention settings in a config, as interpreted by transformers. A query attends to the last `width`
//! tokens, including itself (`sliding_window_overlay` in `masking_utils.py`).

use serde_json::{Map, Value};

use super::architecture::{Architecture, SlidingWindow};
use super::config_fields::Entries;
use crate::error::Result;

/// Upper bound for context lengths.
pub(super) const MAX_TOKENS: usize = 1 << 30;

/// Default values in transformers for `sliding_window` and `max_window_layers`.
const WIDTH: usize = 4096;
const FIRST_LAYER: usize = 28;

const KEY: &str = "sliding_window";
const SWITCH: &str = "use_sliding_window";
const FIRST: &str = "max_window_layers";
const LAYERS: &str = "layer_types";
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Returns the window for each layer. `rotated` specifies which layers have a rotary embedding.
///
/// # Errors
/// Fails if transformers does not support such a window for the architecture, or an entry is invalid.
pub(super) fn parse(
    entries: &Entries<'_>,
    architecture: &Architecture,
    layers: usize,
    rotated: &[bool],
    notes: &mut Vec<String>,
) -> Result<Vec<Option<usize>>> {
    let fields = WindowFields { entries, layers, kinds: kinds(entries, layers)?, switch: entries.flag(SWITCH)? };
    match architecture.window {
        SlidingWindow::Never => fields.never(),
        SlidingWindow::Always => fields.always(notes),
        SlidingWindow::Switched => fields.switched(notes),
        SlidingWindow::SwitchedWhole => {
            let window = if fields.switch == Some(true) { width(entries, notes)? } else { None };
            fields.uniform(window, &format!("the same in every layer, according to `{SWITCH}`"))
        }
        SlidingWindow::Patterned { every, key } => fields.patterned(every, key),
        SlidingWindow::Unrotated => fields.unrotated(rotated),
    }
}

/// Config entries that are related to sliding windows.
struct WindowFields<'a> {
    entries: &'a Entries<'a>,
    layers: usize,
    /// Value of `layer_types`.
    kinds: Option<Vec<&'a Value>>,
    /// Value of `use_sliding_window`.
    switch: Option<bool>,
}

impl WindowFields<'_> {
    fn never(&self) -> Result<Vec<Option<usize>>> {
        if self.switch == Some(true) {
            let expected = "false, because this architecture has no sliding windows";
            return Err(self.entries.unsupported_error(SWITCH, &Value::from(true), expected));
        }
        if let Some(found) = self.entries.get(KEY).filter(|_| self.switch.is_none()) {
            return Err(self.entries.unsupported_error(KEY, found, "null (attention to all earlier tokens)"));
        }
        self.uniform(None, &format!("{FULL} in every layer"))
    }

    fn always(&self, notes: &mut Vec<String>) -> Result<Vec<Option<usize>>> {
        let window = width(self.entries, notes)?;
        // transformers ignores the other entries here, so reject a config that sets them.
        if let Some(found) = self.entries.get(SWITCH).filter(|_| self.switch != Some(window.is_some())) {
            let expected = format!("a value that agrees with `{KEY}`, where null means no window");
            return Err(self.entries.unsupported_error(SWITCH, found, &expected));
        }
        self.uniform(window, &format!("the same in every layer, according to `{KEY}`"))
    }

    fn switched(&self, notes: &mut Vec<String>) -> Result<Vec<Option<usize>>> {
        if self.switch != Some(true) {
            return self.uniform(None, &format!("{FULL}, or `{SWITCH}: true`"));
        }
        let width = width(self.entries, notes)?;
        if let Some(kinds) = &self.kinds {
            return self.by_kind(kinds, width, &format!("`{KEY}` to be set, because `layer_types` has sliding layers"));
        }
        // `count` rejects 0, but here 0 is a valid layer index.
        let first = match self.entries.get(FIRST) {
            Some(zero) if zero.as_u64() == Some(0) => 0,
            Some(_) => self.entries.count(FIRST, MAX_TOKENS)?,
            None => effective_window(FIRST, FIRST_LAYER, notes),
        };
        Ok((0..self.layers).map(|layer| width.filter(|_| layer >= first)).collect())
    }

    /// Returns the windows given by `layer_types`. If `layer_types` is missing, all layers except every `every`-th have
    /// a window.
    fn patterned(&self, every: usize, key: Option<&str>) -> Result<Vec<Option<usize>>> {
        // transformers builds the window masks unconditionally, so null is not allowed here.
        let width = self.entries.count(KEY, MAX_TOKENS)?;
        let named = key.filter(|key| self.entries.get(key).is_some());
        let every = named.map_or(Ok(every), |key| self.entries.count(key, MAX_TOKENS))?;
        let windows = (0..self.layers).map(|layer| {
            let has_window = match &self.kinds {
                Some(kinds) => is_sliding(kinds[layer]),
                None => !(layer + 1).is_multiple_of(every),
            };
            has_window.then_some(width)
        });
        Ok(windows.collect())
    }

    /// Returns the windows given by `layer_types`. If `layer_types` is missing, the layers without rotary embedding
    /// have a window.
    fn unrotated(&self, rotated: &[bool]) -> Result<Vec<Option<usize>>> {
        let width = self.entries.optional_count(KEY, MAX_TOKENS)?.filter(|_| self.switch == Some(true));
        match &self.kinds {
            Some(kinds) => self.by_kind(kinds, width, &format!("{FULL}, or `{SWITCH}: true` and a `{KEY}`")),
            None => Ok(rotated.iter().map(|rotated| width.filter(|_| !rotated)).collect()),
        }
    }

    /// Returns the given window for all layers. Fails if `layer_types` contradicts it.
    fn uniform(&self, window: Option<usize>, expected: &str) -> Result<Vec<Option<usize>>> {
        let other = self.kinds.iter().flatten().find(|kind| is_sliding(kind) == window.is_none());
        match other {
            Some(found) => Err(self.entries.unsupported_error(LAYERS, found, expected)),
            None => Ok(vec![window; self.layers]),
        }
    }

    /// Returns the window that `layer_types` specifies for each layer. Fails if a layer requires a window but the
    /// config sets no width.
    fn by_kind(&self, kinds: &[&Value], width: Option<usize>, expected: &str) -> Result<Vec<Option<usize>>> {
        if let Some(found) = kinds.iter().find(|kind| width.is_none() && is_sliding(kind)) {
            return Err(self.entries.unsupported_error(LAYERS, found, expected));
        }
        Ok(kinds.iter().map(|kind| width.filter(|_| is_sliding(kind))).collect())
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
        None => Ok(Some(effective_window(KEY, WIDTH, notes))),
    }
}

fn effective_window(key: &str, value: usize, notes: &mut Vec<String>) -> usize {
    notes.push(format!("config.json does not set {key}: using {value}, as in transformers"));
    value
}

/// Parses `layer_types`, if present.
fn kinds<'a>(entries: &Entries<'a>, layers: usize) -> Result<Option<Vec<&'a Value>>> {
    let Some(value) = entries.get(LAYERS) else { return Ok(None) };
    let Some(kinds) = value.as_array().filter(|kinds| kinds.len() == layers) else {
        return Err(entries.value_error(LAYERS, &format!("a list of {layers} names, one for each layer")));
    };
    match kinds.iter().find(|kind| ![Some(FULL), Some(SLIDING)].contains(&kind.as_str())) {
        Some(other) => Err(entries.unsupported_error(LAYERS, other, &format!("{FULL} or {SLIDING}"))),
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
        parse(&Entries { map, prefix: "" }, architecture, 3, &[true, false, true], &mut notes)
            .map(|windows| (windows, notes))
    }

    /// The expected values are `config.sliding_window` and `config.layer_types` in transformers 5.23.0, for three
    /// layers.
    #[test]
    fn sliding_windows_match_transformers() {
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
    fn default_window_width_is_noted() {
        let (found, notes) = windows("mistral", &json!({})).unwrap();
        assert_eq!(found, vec![Some(4096); 3]);
        assert!(notes[0].contains("sliding_window: using 4096"), "{notes:?}");
        let (found, notes) = windows("qwen2", &json!({"use_sliding_window": true, "sliding_window": 8})).unwrap();
        assert_eq!(found, vec![None; 3]);
        assert!(notes[0].contains("max_window_layers: using 28"), "{notes:?}");
    }

    #[test]
    fn unsupported_windows_are_rejected_with_their_names() {
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
