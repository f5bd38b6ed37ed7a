//! Chat templates of models, and the functions that transformers adds to Jinja.

use std::fmt;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use chrono::format::StrftimeItems;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::gguf::{Gguf, is_gguf};
use ghostlab_core::files::{parts, regular};
use ghostlab_core::tasks::python::is_space;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error as JinjaError, ErrorKind, Value as Jinja};

use crate::activity;
use crate::bounds::check_operators;
use crate::exchange::{python, variables};
use crate::jinja::reset_render_state;
use crate::prompt::{Message, Role};
use crate::template::{compile, create_environment, render_catching_panics, template_error};
use crate::value::{JsonStyle, Value};

/// Marker that transformers appends to the last message, so that it can find the end of the message in the rendered
/// text.
const CONTINUE_MARKER: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
const TEMPLATE_FILE: &str = "chat_template.jinja";
const SPECIAL_TOKEN_KEYS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// GGUF keys of the [`SPECIAL_TOKEN_KEYS`], in the same order and without the prefix `tokenizer.ggml.`. The misspelling
/// "seperator" is part of the format.
const GGUF_TOKEN_KEYS: [&str; 7] = [
    "bos_token_id",
    "eos_token_id",
    "unknown_token_id",
    "seperator_token_id",
    "padding_token_id",
    "cls_token_id",
    "mask_token_id",
];

/// Compiled chat template, with the special tokens that it can use.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// Names and texts of the special tokens.
    tokens: Vec<(Value, Value)>,
    location: String,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChatTemplate({})", self.location)
    }
}

impl ChatTemplate {
    /// Reads the template of a model. In a folder, `chat_template.jinja` takes precedence over `tokenizer_config.json`.
    /// For a GGUF file, a `chat_template.jinja` next to it takes precedence over the template in its metadata.
    ///
    /// # Errors
    /// Fails if the model has no chat template or the template is invalid.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        if is_gguf(folder) {
            return Self::from_gguf(folder);
        }
        let path = folder.join("tokenizer_config.json");
        let config = if path.exists() { regular::read(&path)? } else { b"{}".to_vec() };
        let config: Value =
            serde_json::from_slice(&config).map_err(|error| template_file_error("invalid JSON", &path).found(error))?;
        let template_file = folder.join(TEMPLATE_FILE);
        let (source, location) = if template_file.exists() {
            (read_template(&template_file)?, template_file.display().to_string())
        } else {
            let text = match config.get("chat_template") {
                Some(Value::Text(text)) => Some(text.clone()),
                // Some models have several named templates. Use `default`.
                Some(Value::List(templates)) => templates
                    .iter()
                    .find(|one| one.get("name").and_then(Value::as_text) == Some("default"))
                    .and_then(|one| one.get("template")?.as_text().map(str::to_owned)),
                _ => None,
            };
            (
                text.ok_or_else(|| {
                    template_file_error("the model has no chat template", &path)
                        .expected(format!("`chat_template` in this file, or a file {TEMPLATE_FILE}"))
                })?,
                path.display().to_string(),
            )
        };
        Self::new(
            &source,
            SPECIAL_TOKEN_KEYS
                .into_iter()
                .filter_map(|name| {
                    let token = config.get(name)?;
                    token
                        .as_text()
                        .or_else(|| token.get("content")?.as_text())
                        .map(|text| (Value::from(name), Value::from(text)))
                })
                .collect(),
            &location,
        )
    }

    fn from_gguf(path: &Path) -> Result<Self> {
        const KEY: &str = "tokenizer.chat_template";
        let file = Gguf::open(path)?;
        let template_path = parts::sibling_file(path, TEMPLATE_FILE);
        let (source, location) = match file.text(KEY)? {
            _ if template_path.exists() => (read_template(&template_path)?, template_path.display().to_string()),
            Some(text) => (text.to_owned(), file.location(KEY)),
            None => {
                return Err(template_file_error("the model has no chat template", path)
                    .expected(format!("`{KEY}` in this file, or a file {TEMPLATE_FILE} next to it")));
            }
        };
        let vocabulary = file.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let mut tokens = Vec::new();
        for (name, key) in SPECIAL_TOKEN_KEYS.into_iter().zip(GGUF_TOKEN_KEYS) {
            let id = file.count(&format!("tokenizer.ggml.{key}"))?;
            let text = id.and_then(|id| vocabulary.get(usize::try_from(id).ok()?));
            tokens.extend(text.map(|text| (Value::from(name), Value::from(*text))));
        }
        Self::new(&source, tokens, &location)
    }

    /// Compiles a template. `tokens` maps the names of special tokens to their texts. `location` identifies the
    /// template in error messages.
    ///
    /// # Errors
    /// Fails if the template is invalid.
    pub fn new(source: &str, tokens: Vec<(Value, Value)>, location: &str) -> Result<Self> {
        static LENIENT_ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
            let mut environment = create_environment();
            if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
                environment.set_syntax(syntax);
            }
            environment.add_filter("tojson", |value: Jinja, kwargs: Kwargs| tojson(&value, &kwargs));
            environment.add_function("raise_exception", |message: String| {
                Err::<Jinja, _>(JinjaError::new(ErrorKind::InvalidOperation, message))
            });
            environment.add_function("strftime_now", |format: String| strftime(&format, unix_time()));
            environment
        });
        activity::record_start(format_args!("{location}, chat template"));
        check_operators(source).map_err(|error| error.at(location))?;
        let environment = compile(&LENIENT_ENVIRONMENT, &remove_generation_tags(source))
            .map_err(|error| template_error(&error).at(location))?;
        Ok(Self { environment, source: source.to_owned(), tokens, location: location.to_owned() })
    }

    /// Returns the location of the template for error messages.
    pub(crate) fn location(&self) -> &str {
        &self.location
    }

    /// Returns the template source and the special tokens as a Python literal, for use in cache keys.
    pub fn content(&self) -> String {
        Value::List(vec![Value::from(&*self.source), Value::Map(self.tokens.clone())]).repr()
    }

    /// Renders messages. If `continued` is set, the text ends right after the last message. Otherwise, it ends with the
    /// generation prompt. If the template raises an exception, rendering is retried without system messages, as in
    /// lm-eval.
    ///
    /// # Errors
    /// Fails if the template raises an exception, exceeds the step limit, or omits the message to continue.
    pub fn render(&self, messages: &[Message], continued: bool) -> Result<String> {
        self.render_once(messages, continued).or_else(|error| {
            let non_system: Vec<Message> = messages.iter().filter(|one| one.role != Role::System).cloned().collect();
            if non_system.len() == messages.len() { Err(error) } else { self.render_once(&non_system, continued) }
        })
    }

    fn render_once(&self, messages: &[Message], continued: bool) -> Result<String> {
        activity::record_start(format_args!("{}, chat template", self.location));
        reset_render_state();
        let last = messages.len().saturating_sub(1);
        let message_maps = messages.iter().enumerate().map(|(index, one)| {
            let marker = if continued && index == last { CONTINUE_MARKER } else { "" };
            Value::Map(vec![
                (Value::from("role"), Value::from(one.role.name())),
                (Value::from("content"), Value::Text(format!("{}{marker}", one.content))),
            ])
        });
        let mut context = vec![
            (Value::from("messages"), Value::List(message_maps.collect())),
            (Value::from("tools"), Value::None),
            (Value::from("documents"), Value::None),
            (Value::from("add_generation_prompt"), Value::Bool(!continued)),
        ];
        context.extend(self.tokens.iter().cloned());
        let template = self.environment.get_template("it");
        let text = template
            .and_then(|template| render_catching_panics(|| template.render(variables(&Value::Map(context)))))
            .map_err(|error| template_error(&error).at(&self.location))?;
        if !continued {
            return Ok(text);
        }
        let content = messages.last().map_or("", |last| last.content.trim_matches(is_space));
        let start = text
            .rfind(CONTINUE_MARKER.trim_end())
            .filter(|_| self.source.contains("content") && text.contains(content));
        let start = start.ok_or_else(|| {
            Error::bad_input("the chat template does not print the message to continue")
                .at(&self.location)
                .expected(format!("{content:?}, unchanged"))
                .hint("remove `gen_prefix` or the chat template")
        })?;
        // If the template trimmed the space after the marker, trim the whitespace before the marker too.
        let has_whole_marker = text[start..].starts_with(CONTINUE_MARKER);
        Ok(if has_whole_marker {
            text[..start].to_owned()
        } else {
            text[..start].trim_end_matches(is_space).to_owned()
        })
    }
}

fn read_template(path: &Path) -> Result<String> {
    String::from_utf8(regular::read(path)?)
        .map_err(|_| Error::bad_input("a chat template is not UTF-8").at(path.display()))
}

fn template_file_error(message: &str, path: &Path) -> Error {
    Error::bad_input(message).at(path.display())
}

/// Implements transformers' `tojson` filter, which preserves non-ASCII characters and the order of keys.
fn tojson(value: &Jinja, kwargs: &Kwargs) -> std::result::Result<String, JinjaError> {
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let separators = match separators.as_deref() {
        None => None,
        Some([between, after]) => Some((between.clone(), after.clone())),
        Some(_) => return Err(JinjaError::new(ErrorKind::InvalidOperation, "`separators` must be two strings")),
    };
    let style = JsonStyle {
        indent: kwargs.get("indent")?,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators,
    };
    kwargs.assert_all_used()?;
    Ok(python(value)?.json_in(&style))
}

/// Replaces the tags of `generation` blocks, which mark assistant text, so that only the block's content is rendered.
fn remove_generation_tags(source: &str) -> String {
    let mut out = String::new();
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, from) = rest.split_at(open);
        out.push_str(before);
        // Start searching after `{%`, so that `{%}` is not taken for a complete tag.
        let Some(end) = from[2..].find("%}").map(|end| end + 4) else {
            rest = from;
            break;
        };
        let tag = &from[..end];
        let word = tag[2..end - 2].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &from[end..];
    }
    out + rest
}

/// Returns the current Unix time in seconds.
fn unix_time() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

/// Formats a Unix time in UTC like C's `strftime`. Rejects directives on which C and chrono may differ.
fn strftime(format: &str, seconds: i64) -> std::result::Result<String, JinjaError> {
    const SHARED_DIRECTIVES: &str = "dmyHIMSYBbAapFT%";
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('%') {
        let bare = after.strip_prefix('-').unwrap_or(after);
        let letter = bare.chars().next().ok_or_else(|| directive_error(""))?;
        if !SHARED_DIRECTIVES.contains(letter) {
            return Err(directive_error(letter.encode_utf8(&mut [0; 4])));
        }
        rest = &bare[letter.len_utf8()..];
    }
    let items = StrftimeItems::new(format).parse().map_err(|_| directive_error(format.trim_start_matches('%')))?;
    let time = DateTime::from_timestamp(seconds, 0).ok_or_else(|| directive_error(format.trim_start_matches('%')))?;
    Ok(time.format_with_items(items.iter()).to_string())
}

fn directive_error(unknown: &str) -> JinjaError {
    JinjaError::new(ErrorKind::InvalidOperation, format!("`strftime_now` does not support %{unknown}"))
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::gguf_file::Value as Entry;
    use ghostlab_core::files::gguf_writer;

    use super::*;

    fn message(role: Role, content: &str) -> Message {
        Message { role, content: content.to_owned(), delimiter: String::new() }
    }

    #[test]
    fn chat_template_is_retried_without_the_system_message() {
        let source = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}\
            {% generation %}<{{ m.content }}>{% endgeneration %}{% endfor %}{% if add_generation_prompt %}{{ bos_token }}{% endif %}";
        let template = ChatTemplate::new(source, vec![(Value::from("bos_token"), Value::from("<s>"))], "t").unwrap();
        let messages = [message(Role::System, "s"), message(Role::User, "u")];
        assert_eq!(template.render(&messages, false).unwrap(), "<u><s>");
        let raising = ChatTemplate::new("{{ raise_exception('never') }}", vec![], "t").unwrap();
        assert!(raising.render(&messages, false).unwrap_err().to_string().contains("never"));
        let looping = ChatTemplate::new(
            "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
            vec![],
            "t",
        );
        assert!(looping.unwrap().render(&messages, false).unwrap_err().to_string().contains("exceeds the step limit"));
    }

    #[test]
    fn template_file_overrides_the_gguf_chat_template() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        let write = |entries: &[(&str, Entry)]| {
            let entries: Vec<(String, Entry)> =
                entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
            std::fs::write(&file, gguf_writer::header(&entries, &[]).unwrap()).unwrap();
        };
        let vocabulary = ["a", "</s>"].map(|token| Entry::String(token.to_owned()));
        let tokens = [
            ("tokenizer.ggml.tokens", Entry::Array(vocabulary.to_vec())),
            ("tokenizer.ggml.eos_token_id", Entry::U32(1)),
        ];
        write(&tokens);
        let error = ChatTemplate::from_folder(&file).unwrap_err().to_string();
        assert!(error.contains("no chat template") && error.contains("m.gguf"), "{error}");
        let source = Entry::String("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}".to_owned());
        write(&[&tokens[..], &[("tokenizer.chat_template", source)]].concat());
        let messages = [message(Role::User, "u")];
        let render = || ChatTemplate::from_folder(&file).unwrap().render(&messages, false).unwrap();
        assert_eq!(render(), "u</s>");
        std::fs::write(folder.path().join(TEMPLATE_FILE), "beside {{ eos_token }}").unwrap();
        assert_eq!(render(), "beside </s>");
    }

    #[test]
    fn chat_template_with_an_unclosed_tag_is_rejected() {
        for source in ["{%}", "{%", "{%} generation %}", "{%%}"] {
            assert!(ChatTemplate::new(source, vec![], "t").is_err(), "{source}");
        }
    }

    #[test]
    fn continued_text_ends_with_the_last_message() {
        let template =
            ChatTemplate::new("{% for m in messages %}[{{ m.content | trim }}]\n{% endfor %}", vec![], "t").unwrap();
        let messages = [message(Role::User, "u"), message(Role::Assistant, "The answer is ")];
        assert_eq!(template.render(&messages, true).unwrap(), "[u]\n[The answer is");
    }

    /// The expected strings are the output of GNU `date -u -d @… +…`.
    #[test]
    fn strftime_matches_gnu_date() {
        assert_eq!(strftime("%d %b %Y, %A %H:%M:%S", 1_709_210_096).unwrap(), "29 Feb 2024, Thursday 12:34:56");
        assert_eq!(strftime("%-d.%-m.%y %F", 0).unwrap(), "1.1.70 1970-01-01");
        assert!(strftime("%Q", 0).is_err());
    }
}
