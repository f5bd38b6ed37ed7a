//! Sliding-window attention settings in a config, as interpreted by transformers. A query attends to the last `width`
//! tokens, including itself (`sliding_window_overlay` in `masking_utils.py`).

use serde_json::{Map, Value};

use super::architecture::{Architecture, SlidingWindow};
use super::config_fields::Entries;
use crate::error::Result;

/// Upper bound for context lengths.
pub(super) const MAX_CONTEXT_LENGTH: usize = 1 << 30;

/// Default values in transformers for `sliding_window` and `max_window_layers`.
const DEFAULT_WIDTH: usize = 4096;
const DEFAULT_FIRST_LAYER: usize = 28;

const WIDTH_KEY: &str = "sliding_window";
const SWITCH_KEY: &str = "use_sliding_window";
const FIRST_LAYER_KEY: &str = "max_window_layers";
const LAYER_TYPES_KEY: &str = "layer_types";
const FULL_ATTENTION: &str = "full_attention";
const SLIDING_ATTENTION: &str = "sliding_attention";

/// Parses the sliding-window width of each layer, which is `None` for full attention. `rotated` specifies which layers
/// have a rotary embedding.
///
/// # Errors
/// Fails if an entry is invalid, or if transformers does not support the windows for the architecture.
pub(super) fn parse(
    entries: &Entries<'_>,
    architecture: &Architecture,
    layers: usize,
    rotated: &[bool],
    notes: &mut Vec<String>,
) -> Result<Vec<Option<usize>>> {
    let fields = WindowFields {
        entries,
        layers,
        layer_types: parse_layer_types(entries, layers)?,
        switch: entries.flag(SWITCH_KEY)?,
    };
    match architecture.window {
        SlidingWindow::Never => fields.parse_never(),
        SlidingWindow::Always => fields.parse_always(notes),
        SlidingWindow::Switched => fields.parse_switched(notes),
        SlidingWindow::SwitchedWhole => {
            let window = if fields.switch == Some(true) { parse_width(entries, notes)? } else { None };
            fields.same_for_all_layers(window, &format!("the same in every layer, according to `{SWITCH_KEY}`"))
        }
        SlidingWindow::Patterned { every, key } => fields.parse_patterned(every, key),
        SlidingWindow::Unrotated => fields.parse_unrotated(rotated),
    }
}

/// Config entries for sliding windows.
struct WindowFields<'a> {
    entries: &'a Entries<'a>,
    layers: usize,
    layer_types: Option<Vec<&'a Value>>,
    /// Value of `use_sliding_window`.
    switch: Option<bool>,
}

impl WindowFields<'_> {
    fn parse_never(&self) -> Result<Vec<Option<usize>>> {
        if self.switch == Some(true) {
            let expected = "false, because this architecture has no sliding windows";
            return Err(self.entries.unsupported_error(SWITCH_KEY, &Value::from(true), expected));
        }
        if let Some(found) = self.entries.get(WIDTH_KEY).filter(|_| self.switch.is_none()) {
            return Err(self.entries.unsupported_error(WIDTH_KEY, found, "null (attention to all earlier tokens)"));
        }
        self.same_for_all_layers(None, &format!("{FULL_ATTENTION} in every layer"))
    }

    fn parse_always(&self, notes: &mut Vec<String>) -> Result<Vec<Option<usize>>> {
        let window = parse_width(self.entries, notes)?;
        // transformers ignores `use_sliding_window` here, so reject a value that contradicts the window.
        if let Some(found) = self.entries.get(SWITCH_KEY).filter(|_| self.switch != Some(window.is_some())) {
            let expected = format!("a value that agrees with `{WIDTH_KEY}`, where null means no window");
            return Err(self.entries.unsupported_error(SWITCH_KEY, found, &expected));
        }
        self.same_for_all_layers(window, &format!("the same in every layer, according to `{WIDTH_KEY}`"))
    }

    fn parse_switched(&self, notes: &mut Vec<String>) -> Result<Vec<Option<usize>>> {
        if self.switch != Some(true) {
            return self.same_for_all_layers(None, &format!("{FULL_ATTENTION}, or `{SWITCH_KEY}: true`"));
        }
        let width = parse_width(self.entries, notes)?;
        if let Some(layer_types) = &self.layer_types {
            return self.windows_by_layer_type(
                layer_types,
                width,
                &format!("`{WIDTH_KEY}` to be set, because `layer_types` has sliding layers"),
            );
        }
        // `count` rejects 0, but here 0 is a valid layer index.
        let first = match self.entries.get(FIRST_LAYER_KEY) {
            Some(zero) if zero.as_u64() == Some(0) => 0,
            Some(_) => self.entries.count(FIRST_LAYER_KEY, MAX_CONTEXT_LENGTH)?,
            None => default_with_note(FIRST_LAYER_KEY, DEFAULT_FIRST_LAYER, notes),
        };
        Ok((0..self.layers).map(|layer| width.filter(|_| layer >= first)).collect())
    }

    /// Returns the windows according to `layer_types`. If `layer_types` is missing, all layers except every `every`-th
    /// have a window.
    fn parse_patterned(&self, every: usize, key: Option<&str>) -> Result<Vec<Option<usize>>> {
        // transformers always builds a window mask, so the width must not be null.
        let width = self.entries.count(WIDTH_KEY, MAX_CONTEXT_LENGTH)?;
        let named = key.filter(|key| self.entries.get(key).is_some());
        let every = named.map_or(Ok(every), |key| self.entries.count(key, MAX_CONTEXT_LENGTH))?;
        let windows = (0..self.layers).map(|layer| {
            let has_window = match &self.layer_types {
                Some(layer_types) => is_sliding(layer_types[layer]),
                None => !(layer + 1).is_multiple_of(every),
            };
            has_window.then_some(width)
        });
        Ok(windows.collect())
    }

    /// Returns the windows according to `layer_types`. If `layer_types` is missing, the layers without a rotary
    /// embedding have a window.
    fn parse_unrotated(&self, rotated: &[bool]) -> Result<Vec<Option<usize>>> {
        let width = self.entries.optional_count(WIDTH_KEY, MAX_CONTEXT_LENGTH)?.filter(|_| self.switch == Some(true));
        match &self.layer_types {
            Some(layer_types) => self.windows_by_layer_type(
                layer_types,
                width,
                &format!("{FULL_ATTENTION}, or `{SWITCH_KEY}: true` and a `{WIDTH_KEY}`"),
            ),
            None => Ok(rotated.iter().map(|rotated| width.filter(|_| !rotated)).collect()),
        }
    }

    /// Returns the same window for all layers. Fails if `layer_types` contradicts it.
    fn same_for_all_layers(&self, window: Option<usize>, expected: &str) -> Result<Vec<Option<usize>>> {
        let other = self.layer_types.iter().flatten().find(|layer_type| is_sliding(layer_type) == window.is_none());
        match other {
            Some(found) => Err(self.entries.unsupported_error(LAYER_TYPES_KEY, found, expected)),
            None => Ok(vec![window; self.layers]),
        }
    }

    /// Returns the window that `layer_types` specifies for each layer. Fails if a layer requires a window but the
    /// config sets no width.
    fn windows_by_layer_type(
        &self,
        layer_types: &[&Value],
        width: Option<usize>,
        expected: &str,
    ) -> Result<Vec<Option<usize>>> {
        if let Some(found) = layer_types.iter().find(|layer_type| width.is_none() && is_sliding(layer_type)) {
            return Err(self.entries.unsupported_error(LAYER_TYPES_KEY, found, expected));
        }
        Ok(layer_types.iter().map(|layer_type| width.filter(|_| is_sliding(layer_type))).collect())
    }
}

fn is_sliding(layer_type: &Value) -> bool {
    layer_type.as_str() == Some(SLIDING_ATTENTION)
}

/// Returns the value of `layer_types` for the given windows.
pub(crate) fn layer_types(windows: impl Iterator<Item = Option<usize>>) -> Value {
    windows.map(|window| if window.is_some() { SLIDING_ATTENTION } else { FULL_ATTENTION }).collect::<Vec<_>>().into()
}

/// Returns the value of `max_window_layers`, which is the first sliding-window layer, or its default if the config
/// relies on it.
pub(crate) fn first_window_layer(config: &Map<String, Value>, architecture: &Architecture) -> Option<u64> {
    let switched = architecture.window == SlidingWindow::Switched && config.get(SWITCH_KEY) == Some(&Value::Bool(true));
    config.get(FIRST_LAYER_KEY).and_then(Value::as_u64).or(switched.then_some(DEFAULT_FIRST_LAYER as u64))
}

/// Parses a window width. Null means no window.
fn parse_width(entries: &Entries<'_>, notes: &mut Vec<String>) -> Result<Option<usize>> {
    match entries.map.get(WIDTH_KEY) {
        Some(_) => entries.optional_count(WIDTH_KEY, MAX_CONTEXT_LENGTH),
        None => Ok(Some(default_with_note(WIDTH_KEY, DEFAULT_WIDTH, notes))),
    }
}

fn default_with_note(key: &str, value: usize, notes: &mut Vec<String>) -> usize {
    notes.push(format!("config.json does not set {key}: using {value}, as in transformers"));
    value
}

/// Parses `layer_types`, if present.
fn parse_layer_types<'a>(entries: &Entries<'a>, layers: usize) -> Result<Option<Vec<&'a Value>>> {
    let Some(value) = entries.get(LAYER_TYPES_KEY) else { return Ok(None) };
    let Some(layer_types) = value.as_array().filter(|layer_types| layer_types.len() == layers) else {
        return Err(entries.value_error(LAYER_TYPES_KEY, &format!("a list of {layers} names, one for each layer")));
    };
    match layer_types
        .iter()
        .find(|layer_type| ![Some(FULL_ATTENTION), Some(SLIDING_ATTENTION)].contains(&layer_type.as_str()))
    {
        Some(other) => {
            Err(entries.unsupported_error(LAYER_TYPES_KEY, other, &format!("{FULL_ATTENTION} or {SLIDING_ATTENTION}")))
        }
        None => Ok(Some(layer_types.iter().collect())),
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
            assert!(!notes.iter().any(|note| note.contains(WIDTH_KEY)), "{notes:?}");
        }
    }

    #[test]
    fn missing_window_entries_use_defaults_and_add_notes() {
        let (found, notes) = windows("mistral", &json!({})).unwrap();
        assert_eq!(found, vec![Some(4096); 3]);
        assert!(notes[0].contains("sliding_window: using 4096"), "{notes:?}");
        let (found, notes) = windows("qwen2", &json!({"use_sliding_window": true, "sliding_window": 8})).unwrap();
        assert_eq!(found, vec![None; 3]);
        assert!(notes[0].contains("max_window_layers: using 28"), "{notes:?}");
    }

    #[test]
    fn unsupported_window_entries_are_named_in_the_error() {
        for (model_type, entries, key) in [
            ("llama", json!({"sliding_window": 8}), "sliding_window"),
            ("llama", json!({"use_sliding_window": true}), "use_sliding_window"),
            ("olmo2", json!({"layer_types": types_starting_with("sliding_attention")}), "layer_types"),
            ("olmo2", json!({"layer_types": ["full_attention"]}), "layer_types"),
            ("mistral", json!({"sliding_window": 0}), "sliding_window"),
            ("mistral", json!({"sliding_window": "wide"}), "sliding_window"),
            ("mistral", json!({"sliding_window": 8, "use_sliding_window": false}), "use_sliding_window"),
            (
                "mistral",
                json!({"sliding_window": 8, "layer_types": types_starting_with("sliding_attention")}),
                "layer_types",
            ),
            (
                "mistral",
                json!({"sliding_window": null, "layer_types": types_starting_with("sliding_attention")}),
                "layer_types",
            ),
            (
                "qwen2",
                json!({"sliding_window": 8, "layer_types": types_starting_with("sliding_attention")}),
                "layer_types",
            ),
            (
                "qwen2",
                json!({"use_sliding_window": true, "layer_types": types_starting_with("chunked_attention")}),
                "chunked_attention",
            ),
            ("qwen2", json!({"use_sliding_window": "yes"}), "use_sliding_window"),
            ("qwen2", json!({"use_sliding_window": true, "max_window_layers": -1}), "max_window_layers"),
            ("gemma2", json!({"sliding_window": null}), "sliding_window"),
            (
                "smollm3",
                json!({"sliding_window": 8, "layer_types": types_starting_with("sliding_attention")}),
                "layer_types",
            ),
        ] {
            let text = windows(model_type, &entries).unwrap_err().to_string();
            assert!(text.contains(key), "{model_type} {entries}: {text}");
        }
    }

    /// Returns `layer_types` for three layers, of which only the first has the given type.
    fn types_starting_with(layer_type: &str) -> Value {
        json!([layer_type, "full_attention", "full_attention"])
    }
}
