//! Conversion of a `tokenizer.json` to GGUF entries, if llama.cpp can reproduce the tokenizer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use candle_core::quantized::gguf_file::Value as Entry;
use serde_json::Value;

use super::{BYTE, CONTROL, NORMAL, SPACE, SPLITTERS, UNKNOWN, UNUSED, USER_DEFINED, derive_merges};
use crate::error::{Error, Result, shorten};

/// Tokenizer as metadata entries of a GGUF file.
#[derive(Debug)]
pub struct GgufTokenizer {
    pub entries: Vec<(String, Entry)>,
    /// Differences between llama.cpp's tokenization and that of the `tokenizer.json`.
    pub notes: Vec<String>,
}

/// Converts a tokenizer to GGUF entries, with one token for each of the embedding's `rows` rows. `ids` lists the names
/// of the model's special tokens (`bos`, `eos`, `padding`) with their ids.
///
/// # Errors
/// Fails if llama.cpp cannot reproduce the tokenizer: the model is neither byte-level BPE nor SentencePiece BPE, the
/// pre-tokenizer is unknown, or tokens or merges cannot be represented.
pub fn to_gguf(tokenizer: &Value, rows: usize, ids: &[(&str, Option<u64>)]) -> Result<GgufTokenizer> {
    let model = &tokenizer["model"];
    if model["type"] != "BPE" {
        return Err(unsupported_error("model.type", "BPE", &model["type"]));
    }
    let keys = ["dropout", "continuing_subword_prefix", "end_of_word_suffix"];
    if let Some(key) = keys.iter().find(|key| !(model[*key].is_null() || model[*key] == "" || model[*key] == 0.0)) {
        return Err(unsupported_error(&format!("model.{key}"), "null", &model[*key]));
    }
    let vocabulary = TokenTable::from_tokenizer(tokenizer, rows)?;
    let mut notes = Vec::new();
    let mut entries = Vec::new();
    let mut add_entry = |key: &str, value: Entry| entries.push((format!("tokenizer.ggml.{key}"), value));
    let merges =
        model["merges"].as_array().into_iter().flatten().map(parse_merge).collect::<Result<Vec<(String, String)>>>()?;
    if model["byte_fallback"] == true {
        let scores = vocabulary.compute_scores(&merges)?;
        add_entry("model", string_entry("llama"));
        add_entry("pre", string_entry("default"));
        add_entry("scores", Entry::Array(scores.into_iter().map(|score| Entry::F32(score as f32)).collect()));
        add_entry("add_space_prefix", Entry::Bool(prepends_space(tokenizer)?));
        if let Some(id) = model["unk_token"].as_str().and_then(|unknown| vocabulary.find_id(unknown)) {
            add_entry("unknown_token_id", Entry::U32(id));
        }
    } else {
        let (pre, note) = find_pre_tokenizer_name(tokenizer)?;
        notes.extend(note);
        if let Some((left, right)) = merges.iter().find(|(left, right)| left.contains(' ') || right.contains(' ')) {
            return Err(unsupported_error("model.merges", "tokens without spaces", &format!("{left} {right}").into()));
        }
        add_entry("model", string_entry("gpt2"));
        add_entry("pre", string_entry(pre));
        add_entry(
            "merges",
            Entry::Array(merges.iter().map(|(left, right)| string_entry(&format!("{left} {right}"))).collect()),
        );
    }
    add_entry("tokens", Entry::Array(vocabulary.tokens.iter().map(|token| string_entry(token)).collect()));
    add_entry(
        "token_type",
        Entry::Array(vocabulary.token_types.iter().map(|token_type| Entry::I32(*token_type as i32)).collect()),
    );
    let [before, after] = find_surrounding_tokens(tokenizer)?;
    for (name, id) in ids {
        let added_id = match *name {
            "bos" => before,
            "eos" => after,
            _ => None,
        };
        // The post-processor's tokens take precedence over `ids`.
        if let Some(id) = added_id.map(u64::from).or(*id).and_then(|id| u32::try_from(id).ok()) {
            add_entry(&format!("{name}_token_id"), Entry::U32(id));
        }
    }
    add_entry("add_bos_token", Entry::Bool(before.is_some()));
    add_entry("add_eos_token", Entry::Bool(after.is_some()));
    Ok(GgufTokenizer { entries, notes })
}

fn string_entry(text: &str) -> Entry {
    Entry::String(text.to_owned())
}

fn unsupported_error(key: &str, expected: &str, found: &Value) -> Error {
    let found = match found {
        Value::String(text) => format!("`{text}`"),
        other => shorten(&other.to_string(), 200),
    };
    Error::bad_input("llama.cpp does not support this tokenizer")
        .at(format!("tokenizer.json, {key}"))
        .expected(expected)
        .found(found)
        .hint("export a Hugging Face folder instead, with `--to FOLDER` and without `--gguf`")
}

/// Tokens and their types, indexed by id.
struct TokenTable {
    tokens: Vec<String>,
    token_types: Vec<u32>,
}

impl TokenTable {
    fn from_tokenizer(tokenizer: &Value, rows: usize) -> Result<Self> {
        let model = &tokenizer["model"];
        let mut by_id: BTreeMap<usize, (&str, u32)> = BTreeMap::new();
        let bytes = model["byte_fallback"] == true;
        let unknown = model["unk_token"].as_str();
        for (token, id) in model["vocab"].as_object().into_iter().flatten() {
            let parsed = id.as_u64().and_then(|id| usize::try_from(id).ok());
            let id = parsed.ok_or_else(|| unsupported_error(&format!("model.vocab, {token}"), "a whole number", id))?;
            let token_type = match token.as_str() {
                token if Some(token) == unknown => UNKNOWN,
                token if bytes && is_byte(token) => BYTE,
                _ => NORMAL,
            };
            by_id.insert(id, (token, token_type));
        }
        for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
            let (Some(id), Some(token)) = (added["id"].as_u64(), added["content"].as_str()) else {
                return Err(unsupported_error("added_tokens", "an entry with `id` and `content`", added));
            };
            // llama.cpp matches added tokens anywhere and never includes adjacent spaces.
            if let Some(key) = ["lstrip", "rstrip", "single_word"].into_iter().find(|key| added[key] == true) {
                return Err(unsupported_error(&format!("added_tokens, {token}"), &format!("`{key}: false`"), added));
            }
            let token_type = match Some(token) == unknown {
                true => UNKNOWN,
                false if added["special"] == true => CONTROL,
                false => USER_DEFINED,
            };
            by_id.insert(usize::try_from(id).unwrap_or(usize::MAX), (token, token_type));
        }
        if let Some((id, _)) = by_id.last_key_value().filter(|(id, _)| **id >= rows) {
            return Err(unsupported_error(
                "model.vocab",
                &format!("ids below {rows}, the rows of the embedding"),
                &(*id).into(),
            ));
        }
        let (tokens, token_types) = (0..rows)
            .map(|id| {
                by_id
                    .get(&id)
                    .map_or((format!("[PAD{id}]"), UNUSED), |(token, token_type)| ((*token).to_owned(), *token_type))
            })
            .unzip();
        Ok(Self { tokens, token_types })
    }

    fn find_id(&self, token: &str) -> Option<u32> {
        self.tokens.iter().position(|known| known == token).and_then(|id| u32::try_from(id).ok())
    }

    /// Assigns SentencePiece scores that are higher for earlier merges. llama.cpp has no list of merges: it merges any
    /// two pieces that form a token, in the order of these scores. Fails if that implies other merges than listed.
    fn compute_scores(&self, merges: &[(String, String)]) -> Result<Vec<f64>> {
        let mut ranks: HashMap<String, usize> = HashMap::new();
        for (rank, (left, right)) in merges.iter().enumerate() {
            ranks.entry(format!("{left}{right}")).or_insert(rank);
        }
        let last = merges.len();
        let scores: Vec<f64> = self
            .tokens
            .iter()
            .zip(&self.token_types)
            .map(
                |(token, token_type)| {
                    if *token_type == NORMAL { -(*ranks.get(token).unwrap_or(&last) as f64) } else { 0.0 }
                },
            )
            .collect();
        let tokens: Vec<&str> = self.tokens.iter().map(String::as_str).collect();
        let implied: BTreeSet<[&str; 2]> = derive_merges(&tokens, &self.token_types, &scores).into_iter().collect();
        let listed: BTreeSet<[&str; 2]> = merges.iter().map(|(left, right)| [left.as_str(), right.as_str()]).collect();
        match implied.symmetric_difference(&listed).next() {
            None => Ok(scores),
            Some([left, right]) => {
                let expected = "SentencePiece's merges: all pairs of tokens whose concatenation is a token";
                let verdict = if listed.contains(&[*left, *right]) { "a merge" } else { "no merge" };
                Err(unsupported_error("model.merges", expected, &format!("{verdict} of {left} and {right}").into()))
            }
        }
    }
}

/// Returns whether a token is a byte token such as `<0x0A>`.
fn is_byte(token: &str) -> bool {
    token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

fn parse_merge(merge: &Value) -> Result<(String, String)> {
    let pair = match merge {
        Value::String(text) => text.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned())),
        Value::Array(two) => match &two[..] {
            [Value::String(left), Value::String(right)] => Some((left.clone(), right.clone())),
            _ => None,
        },
        _ => None,
    };
    pair.ok_or_else(|| unsupported_error("model.merges", "two tokens", merge))
}

/// Returns the steps listed under `key`, or `value` itself if it is a single step.
fn pipeline_steps<'a>(value: &'a Value, key: &str) -> Vec<&'a Value> {
    value[key].as_array().map_or_else(|| vec![value], |steps| steps.iter().collect())
}

/// Returns llama.cpp's name for a byte-level pre-tokenizer, and a note about any differences.
fn find_pre_tokenizer_name(tokenizer: &Value) -> Result<(&'static str, Option<String>)> {
    let pre = &tokenizer["pre_tokenizer"];
    let normalizer = &tokenizer["normalizer"];
    let steps = pipeline_steps(pre, "pretokenizers");
    let mut digits = false;
    let mut pattern = None;
    let mut bytes = None;
    for step in steps {
        match step["type"].as_str() {
            Some("Digits") if step["individual_digits"] == true && pattern.is_none() && bytes.is_none() => {
                digits = true;
            }
            Some("Split")
                if step["behavior"] == "Isolated" && step["invert"] != true && pattern.is_none() && bytes.is_none() =>
            {
                pattern = Some(step["pattern"]["Regex"].as_str().ok_or_else(|| splitter_error(pre))?);
            }
            Some("ByteLevel") if step["add_prefix_space"] != true && bytes.is_none() => {
                bytes = Some(step["use_regex"] != false);
            }
            _ => return Err(splitter_error(pre)),
        }
    }
    let ignore_merges = tokenizer["model"]["ignore_merges"] == true;
    let is_match = |splitter: &&super::Splitter| {
        splitter.pattern == pattern
            && splitter.digits == digits
            && splitter.ignore_merges == ignore_merges
            && bytes == Some(pattern.is_none())
    };
    let uses_nfc = normalizer["type"] == "NFC";
    if !normalizer.is_null() && !uses_nfc {
        return Err(unsupported_error("normalizer", "null or NFC", normalizer));
    }
    let found = SPLITTERS
        .iter()
        .find(|splitter| is_match(splitter) && splitter.nfc == uses_nfc)
        .or_else(|| SPLITTERS.iter().find(is_match));
    let note =
        "llama.cpp does not apply the tokenizer's NFC normalization, so it tokenizes decomposed characters differently";
    found.map(|splitter| (splitter.names[0], uses_nfc.then(|| note.to_owned()))).ok_or_else(|| splitter_error(pre))
}

fn splitter_error(pre: &Value) -> Error {
    let names: Vec<&str> = SPLITTERS.iter().map(|splitter| splitter.names[0]).collect();
    unsupported_error("pre_tokenizer", &format!("one of {}", names.join(", ")), pre)
}

/// Returns whether a SentencePiece tokenizer prepends a space to the text.
fn prepends_space(tokenizer: &Value) -> Result<bool> {
    let normalizer = &tokenizer["normalizer"];
    let pre = &tokenizer["pre_tokenizer"];
    let steps = pipeline_steps(normalizer, "normalizers").into_iter().filter(|step| !step.is_null());
    let mut prefix = false;
    let mut spaces = false;
    for step in steps {
        match step["type"].as_str() {
            Some("Prepend") if step["prepend"] == SPACE && !spaces => prefix = true,
            Some("Replace") if step["pattern"]["String"] == " " && step["content"] == SPACE => spaces = true,
            _ => {
                return Err(unsupported_error(
                    "normalizer",
                    "spaces replaced with ▁, and an optional ▁ in front",
                    normalizer,
                ));
            }
        }
    }
    match pre["type"].as_str() {
        None if spaces => Ok(prefix),
        // Without `split`, merges apply to the whole text, as in SentencePiece.
        Some("Metaspace") if !spaces && pre["split"] == false && pre["replacement"] == SPACE => {
            match pre["prepend_scheme"].as_str() {
                Some("first" | "always") => Ok(true),
                Some("never") => Ok(false),
                _ => Err(unsupported_error("pre_tokenizer", "a prepend_scheme of first, always or never", pre)),
            }
        }
        _ => Err(unsupported_error("pre_tokenizer", "none, or Metaspace with split: false", pre)),
    }
}

/// Returns the ids of the tokens that the post-processor adds before and after a text.
fn find_surrounding_tokens(tokenizer: &Value) -> Result<[Option<u32>; 2]> {
    let processor = &tokenizer["post_processor"];
    let steps = pipeline_steps(processor, "processors").into_iter().filter(|step| !step.is_null());
    let mut found = [None, None];
    for step in steps {
        match step["type"].as_str() {
            Some("ByteLevel") => {}
            Some("TemplateProcessing") => {
                let mut position = 0;
                let mut fits = true;
                for piece in step["single"].as_array().into_iter().flatten() {
                    match piece["SpecialToken"]["id"].as_str() {
                        Some(name) => {
                            let ids = step["special_tokens"][name]["ids"].as_array();
                            let id = ids.filter(|ids| ids.len() == 1).and_then(|ids| ids[0].as_u64());
                            let id = id.and_then(|id| u32::try_from(id).ok());
                            fits &= id.is_some() && found[position].is_none();
                            found[position] = id;
                        }
                        None => {
                            fits &= position == 0;
                            position = 1;
                        }
                    }
                }
                if !fits || position == 0 {
                    return Err(unsupported_error(
                        "post_processor",
                        "at most one token before and one after the text",
                        step,
                    ));
                }
            }
            _ => return Err(unsupported_error("post_processor", "TemplateProcessing or ByteLevel", step)),
        }
    }
    Ok(found)
}
