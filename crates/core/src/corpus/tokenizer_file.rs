//! Sanity checks for a `tokenizer.json` before the library loads it. The checks reject values that would allocate
//! gigabytes or expand text without bound.

use serde_json::{Map, Value};

/// Exclusive upper bound on token ids, far above any real vocabulary.
const MAX_IDS: u64 = 1 << 24;
/// Maximum number of special tokens in a post-processor, and of pieces in a template.
const MAX_SPECIAL_TOKENS: usize = 64;
/// Maximum factor by which the normalizer's replacements, taken together, may lengthen a text.
const MAX_TEXT_GROWTH: usize = 4096;
/// Maximum number of entries in any list in the settings.
const MAX_ENTRIES: usize = 1 << 16;
/// Maximum length of a string in the settings, in bytes.
const MAX_STRING_BYTES: usize = 1 << 16;

/// Returns the reason why a tokenizer file is unsafe to load with `tokenizers`, or `None` if it is safe.
pub(super) fn find_problem(file: &Value) -> Option<String> {
    let Some(file) = file.as_object() else { return Some("not a JSON object".to_owned()) };
    let model = file.get("model").and_then(Value::as_object);
    let vocab = model.and_then(|model| model.get("vocab"));
    let mut ids = vocab.and_then(Value::as_object).into_iter().flat_map(Map::values);
    if let Some(id) = ids.find(|id| exceeds_max_id(id)) {
        return Some(format!("the id {id} in the vocabulary"));
    }
    let added = file.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    if let Some(id) = added.map(|token| &token["id"]).find(|id| exceeds_max_id(id)) {
        return Some(format!("the id {id} of an added token"));
    }
    let components = ["normalizer", "pre_tokenizer", "post_processor", "decoder"];
    let mut growth = 1;
    components.iter().find_map(|component| find_setting_problem(component, file.get(*component)?, &mut growth))
}

fn exceeds_max_id(id: &Value) -> bool {
    id.as_u64().is_none_or(|id| id >= MAX_IDS)
}

/// Recursively checks the settings of one component of the tokenizer. Multiplies `growth` by the factor by which each
/// replacement may lengthen a text.
fn find_setting_problem(component: &str, value: &Value, growth: &mut usize) -> Option<String> {
    match value {
        Value::Object(map) => find_object_problem(component, map, growth)
            .or_else(|| map.iter().find_map(|(key, value)| find_nested_problem(component, key, value, growth))),
        Value::Array(list) if list.len() > MAX_ENTRIES => {
            Some(format!("a list of {} entries in {component}", list.len()))
        }
        Value::Array(list) => list.iter().find_map(|value| find_setting_problem(component, value, growth)),
        Value::Number(number)
            if component == "post_processor" && number.as_f64().is_none_or(|n| n.abs() >= MAX_IDS as f64) =>
        {
            Some(format!("the number {number} in {component}"))
        }
        Value::String(text) if text.len() > MAX_STRING_BYTES => {
            Some(format!("a string of {} bytes in {component}", text.len()))
        }
        _ => None,
    }
}

fn find_nested_problem(component: &str, key: &str, value: &Value, growth: &mut usize) -> Option<String> {
    match (key, value.as_str()) {
        ("precompiled_charsmap", Some(map)) => find_charsmap_problem(map),
        _ => find_setting_problem(component, value, growth),
    }
}

fn find_object_problem(component: &str, map: &Map<String, Value>, growth: &mut usize) -> Option<String> {
    match map.get("type").and_then(Value::as_str) {
        Some("Replace" | "Prepend") if component == "normalizer" => {
            let texts = ["content", "prepend"].iter().filter_map(|key| map.get(*key)?.as_str());
            *growth = growth.saturating_mul(texts.map(|text| text.chars().count()).sum::<usize>().max(1));
            (*growth > MAX_TEXT_GROWTH).then(|| format!("replacements that make a text {growth} times longer"))
        }
        Some("TemplateProcessing") => {
            let pieces = map.get("single").and_then(Value::as_array)?;
            let tokens = map.get("special_tokens").and_then(Value::as_object);
            let (special, texts): (usize, usize) = (
                pieces
                    .iter()
                    .filter_map(|piece| {
                        let name = piece["SpecialToken"]["id"].as_str()?;
                        tokens?.get(name)?["ids"].as_array().map(Vec::len)
                    })
                    .fold(0, usize::saturating_add),
                pieces.iter().filter(|piece| piece.get("Sequence").is_some()).count(),
            );
            (special > MAX_SPECIAL_TOKENS || texts > 1 || pieces.len() > MAX_SPECIAL_TOKENS).then(|| {
                format!(
                    "a template of {} pieces that inserts the text {texts} times and {special} special tokens",
                    pieces.len()
                )
            })
        }
        _ => None,
    }
}

/// Checks the trie size that is declared at the start of a base64-encoded SentencePiece normalization map. The library
/// would allocate up to 8 GB for it.
fn find_charsmap_problem(text: &str) -> Option<String> {
    // Decode base64: six bits per character.
    let bits = text.bytes().take(6).filter_map(base64_digit).fold(0u64, |bits, digit| bits << 6 | u64::from(digit));
    let size = u32::swap_bytes((bits >> 4) as u32);
    let max = text.len() as u64 / 4 * 3;
    (text.len() < 8 || u64::from(size) > max)
        .then(|| format!("a precompiled_charsmap that declares {size} bytes but has {max}"))
}

fn base64_digit(c: u8) -> Option<u8> {
    match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tokenizer::sample;
    use super::*;

    #[test]
    fn valid_tokenizer_file_is_accepted() {
        assert_eq!(find_problem(&sample::description()), None);
        let mut plain = sample::description();
        // "AAQAAA…" decodes to a trie size of 1,024 bytes.
        plain["normalizer"] =
            json!({"type": "Precompiled", "precompiled_charsmap": "AAQAAA==".to_owned() + &"A".repeat(1400)});
        assert_eq!(find_problem(&plain), None);
    }

    #[test]
    fn unsafe_tokenizer_settings_are_reported() {
        let special = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(100)});
        for (component, value, words) in [
            (
                "normalizer",
                json!({"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}),
                "precompiled_charsmap",
            ),
            ("normalizer", json!({"type": "Sequence", "normalizers": [replace, replace, replace]}), "times longer"),
            ("normalizer", json!({"type": "Prepend", "prepend": "a".repeat(5000)}), "times longer"),
            ("post_processor", template_with_ids(&json!([special, text]), &json!([1_u64 << 40])), "the number"),
            ("post_processor", template_with_ids(&json!([special, text]), &json!(vec![1; 1000])), "1000 special"),
            ("post_processor", template_with_ids(&json!([text, text]), &json!([1])), "2 times"),
            (
                "post_processor",
                json!({"type": "BertProcessing", "sep": ["</s>", 1_u64 << 30], "cls": ["<s>", 1]}),
                "the number",
            ),
            ("added_tokens", json!([{"id": 1_u64 << 31, "content": "x"}]), "added token"),
            ("model", json!({"type": "WordLevel", "vocab": {"a": u32::MAX}, "unk_token": "a"}), "the vocabulary"),
        ] {
            let mut description = sample::description();
            description[component] = value;
            let found = find_problem(&description).unwrap_or_default();
            assert!(found.contains(words), "{component}: {found}");
        }
    }

    fn template_with_ids(single: &Value, ids: &Value) -> Value {
        json!({"type": "TemplateProcessing", "single": single,
            "special_tokens": {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"]}}})
    }
}
