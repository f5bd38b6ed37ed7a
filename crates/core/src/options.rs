//! Registry entries of methods: names, labels and styles for tables and figures, and strict parsing of options.
//!
//! ```
//! use ghostlab_core::recovery;
//! use serde_json::json;
//!
//! let options = json!({"slover": "svd"});
//! let error = recovery::build("ghosted", options.as_object().unwrap()).err().unwrap();
//! assert!(error.to_string().contains("unknown field `slover`"));
//! ```

use std::fmt::Display;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::deviation::{Deviation, PruneCase};
use crate::error::{Error, Result};
use crate::style::Style;

pub type Options = Map<String, Value>;

/// Name, label and style of a method in tables and figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appearance {
    pub name: &'static str,
    /// Label in the Ghosted Layers paper, or the method's name if that paper does not include it.
    pub label: &'static str,
    /// Style in figures. If it is `None`, the figure chooses a style.
    pub style: Option<Style>,
    /// Whether this is the method that the paper proposes. Its rows are highlighted and tested against the best other
    /// method.
    pub ours: bool,
}

/// Variant of a method that tables distinguish by the value of an option, such as `ghosted:svd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub option: &'static str,
    /// Value of the option in a grid.
    pub value: &'static str,
    /// Suffix that is added to the method's name in tables.
    pub word: &'static str,
    /// Label in the paper.
    pub label: &'static str,
}

/// Registry entry for a method: its appearance, its options, and a function that builds a `Box<M>`.
pub struct RegistryEntry<M: ?Sized> {
    pub appearance: Appearance,
    pub variants: &'static [Variant],
    /// URL of the official repository, or of a description of the method. Empty if there is neither.
    pub source: &'static str,
    /// Whether the method is not part of the paper. Tables that show only the paper's methods omit it.
    pub beyond: bool,
    /// Version of the method's results. Increase it when they change, so that cached results are not reused.
    pub version: u32,
    /// Short name used in cell names.
    pub short: &'static str,
    /// Cases in which the official code deviates from the formulas in the publication.
    pub deviations: &'static [Deviation],
    /// Option that this method rejects, and the reason shown in the error.
    pub refused: Option<(&'static str, &'static str)>,
    build: Build<M>,
    resolve: fn(&str, &Options) -> Result<Options>,
    schema: fn() -> Value,
}

/// Description of a method that is available without building the method.
#[derive(Debug, Clone)]
pub struct MethodDescription {
    pub name: String,
    /// Label in the paper.
    pub label: &'static str,
    /// JSON schema of the options, which is an object.
    pub options: Value,
    /// URL of a reference, as in [`RegistryEntry::source`].
    pub source: &'static str,
    /// Whether the method is not part of the paper.
    pub beyond: bool,
    /// Short name used in cell names.
    pub short: &'static str,
}

type Build<M> = fn(&str, &Options) -> Result<Box<M>>;

impl<M: ?Sized> RegistryEntry<M> {
    /// Creates an entry whose options deserialize into the struct `T`. The `build` function must call [`read`] to
    /// deserialize them.
    pub const fn new<T: JsonSchema + Serialize + DeserializeOwned>(
        name: &'static str,
        source: &'static str,
        build: Build<M>,
    ) -> Self {
        let appearance = Appearance { name, label: name, style: None, ours: false };
        Self {
            appearance,
            variants: &[],
            source,
            beyond: false,
            version: 1,
            short: name,
            deviations: &[],
            refused: None,
            build,
            resolve: resolve::<T>,
            schema: schema::<T>,
        }
    }

    #[must_use]
    pub const fn label(mut self, label: &'static str) -> Self {
        self.appearance.label = label;
        self
    }

    #[must_use]
    pub const fn style(mut self, style: Style) -> Self {
        self.appearance.style = Some(style);
        self
    }

    #[must_use]
    pub const fn proposed_by_paper(mut self) -> Self {
        self.appearance.ours = true;
        self
    }

    #[must_use]
    pub const fn not_in_paper(mut self) -> Self {
        self.beyond = true;
        self
    }

    #[must_use]
    pub const fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    #[must_use]
    pub const fn short(mut self, short: &'static str) -> Self {
        self.short = short;
        self
    }

    /// Sets the cases in which the official code deviates from the formulas.
    #[must_use]
    pub const fn deviations(mut self, deviations: &'static [Deviation]) -> Self {
        self.deviations = deviations;
        self
    }

    /// Sets the option that this method rejects, and the reason shown in the error.
    #[must_use]
    pub const fn refusing(mut self, option: &'static str, reason: &'static str) -> Self {
        self.refused = Some((option, reason));
        self
    }

    #[must_use]
    pub const fn variants(mut self, variants: &'static [Variant]) -> Self {
        self.variants = variants;
        self
    }

    /// Sets a function that derives omitted options from others.
    #[must_use]
    pub const fn resolving(mut self, resolve: fn(&str, &Options) -> Result<Options>) -> Self {
        self.resolve = resolve;
        self
    }

    /// Returns the variant that an option value selects, if any.
    pub fn variant(&self, option: &str, value: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.option == option && variant.value == value)
    }

    /// Builds the method with the given options.
    ///
    /// # Errors
    /// Fails if an option is unknown or a value is invalid.
    pub fn build(&self, options: &Options) -> Result<Box<M>> {
        (self.build)(self.appearance.name, options)
    }

    /// Fills in the default values of omitted options. Cache keys contain the result.
    ///
    /// # Errors
    /// See [`read`].
    pub fn resolve(&self, options: &Options) -> Result<Options> {
        (self.resolve)(self.appearance.name, options)
    }

    /// Returns a description of the entry for editors and the grid parser.
    pub fn description(&self) -> MethodDescription {
        let Appearance { name, label, .. } = self.appearance;
        let source = self.source;
        let beyond = self.beyond;
        let short = self.short;
        MethodDescription { name: name.to_owned(), label, options: (self.schema)(), source, beyond, short }
    }
}

impl MethodDescription {
    /// Returns whether an option with this name exists.
    pub fn has(&self, option: &str) -> bool {
        self.options["properties"].get(option).is_some()
    }

    /// Returns whether the values of an option are lists. In a grid (the YAML file of an experiment), only a list of
    /// lists is a sweep over such an option.
    pub fn takes_list(&self, option: &str) -> bool {
        match &self.options["properties"][option]["type"] {
            Value::String(kind) => kind == "array",
            Value::Array(kinds) => kinds.iter().any(|kind| kind == "array"),
            _ => false,
        }
    }

    /// Returns each option with each of the values that its schema lists.
    pub fn choices(&self) -> Vec<(String, Value)> {
        let options = self.options["properties"].as_object().into_iter().flatten();
        options
            .flat_map(|(option, schema)| fixed_values(schema).into_iter().map(move |value| (option.clone(), value)))
            .collect()
    }
}

/// Returns the values that a schema lists, excluding those of nested properties.
fn fixed_values(schema: &Value) -> Vec<Value> {
    if schema["type"] == "boolean" {
        return vec![Value::Bool(true), Value::Bool(false)];
    }
    let listed = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
    let mut values: Vec<Value> = listed.filter(|value| !value.is_null()).cloned().collect();
    let branches = ["anyOf", "oneOf"].into_iter().filter_map(|keyword| schema[keyword].as_array()).flatten();
    values.extend(branches.flat_map(fixed_values));
    values
}

/// Generates a JSON schema (draft 7) with all subschemas inlined, as YAML language servers expect.
pub fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Deserializes options into the method's struct, which must have `#[serde(default, deny_unknown_fields)]`.
///
/// # Errors
/// Fails if an option is unknown or a value is invalid. The error contains serde's message and the method's name.
pub fn read<T: DeserializeOwned>(method: &str, options: &Options) -> Result<T> {
    serde_json::from_value(Value::Object(options.clone()))
        .map_err(|error| Error::bad_input(format!("invalid options for `{method}`")).found(error))
}

/// Fills in all default values, and normalizes values so that, for example, `0` and `0.0` are equal.
fn resolve<T: Serialize + DeserializeOwned>(method: &str, options: &Options) -> Result<Options> {
    to_options(method, &read::<T>(method, options)?)
}

/// Converts a method's struct back to options.
///
/// # Errors
/// Fails if the struct does not serialize to a map.
pub fn to_options(method: &str, settings: &impl Serialize) -> Result<Options> {
    match serde_json::to_value(settings) {
        Ok(Value::Object(options)) => Ok(options),
        other => Err(Error::job(format!("the options of `{method}` are not a map")).found(format!("{other:?}"))),
    }
}

/// Creates the error for option values that a method does not accept.
pub fn invalid_options(method: &str, expected: impl Display, found: impl Display) -> Error {
    Error::bad_input(format!("invalid options for `{method}`")).expected(expected).found(found)
}

/// Returns the registry entry with this name, if any.
pub fn find<'a, M: ?Sized>(name: &str, entries: &'a [RegistryEntry<M>]) -> Option<&'a RegistryEntry<M>> {
    entries.iter().find(|entry| entry.appearance.name == name)
}

/// Returns the registry entry with this name.
///
/// # Errors
/// Fails if the name is unknown. The message contains `noun`, lists the known names and suggests the closest match.
pub fn lookup<'a, M: ?Sized>(noun: &str, name: &str, entries: &'a [RegistryEntry<M>]) -> Result<&'a RegistryEntry<M>> {
    find(name, entries).ok_or_else(|| {
        let names = entries.iter().map(|entry| entry.appearance.name);
        Error::bad_input(format!("unknown {noun} `{name}`")).none_of(name, names)
    })
}

/// Returns the deviations of a method's official code that apply to `case`, or an empty list for an unknown method.
pub fn deviations<M: ?Sized>(name: &str, entries: &[RegistryEntry<M>], case: &PruneCase<'_>) -> Vec<&'static str> {
    let known = find(name, entries).map_or(&[][..], |entry| entry.deviations);
    known.iter().filter(|deviation| (deviation.applies)(case)).map(|deviation| deviation.text).collect()
}

/// Returns the appearance of the method with the given table name. A table name is the name of a method, optionally
/// followed by a colon and words for options. A variant has its own label, which replaces the method's label.
pub fn appearance<M: ?Sized>(name: &str, entries: &[RegistryEntry<M>]) -> Option<Appearance> {
    let (entry, variant, _) = parse_name(name, entries)?;
    Some(Appearance { label: variant.map_or(entry.appearance.label, |variant| variant.label), ..entry.appearance })
}

/// Returns the words after the colon in a table name, without the word that names a variant.
pub fn further<'a, M: ?Sized>(name: &'a str, entries: &[RegistryEntry<M>]) -> Option<&'a str> {
    parse_name(name, entries)?.2
}

/// Splits a table name into its entry, the variant named by the first word, and the remaining words.
fn parse_name<'a, 'n, M: ?Sized>(
    name: &'n str,
    entries: &'a [RegistryEntry<M>],
) -> Option<(&'a RegistryEntry<M>, Option<&'a Variant>, Option<&'n str>)> {
    let (method, words) = name.split_once(':').map_or((name, None), |(method, words)| (method, Some(words)));
    let entry = find(method, entries)?;
    let Some(words) = words else { return Some((entry, None, None)) };
    let (first, others) = words.split_once(':').map_or((words, None), |(first, others)| (first, Some(others)));
    match entry.variants.iter().find(|variant| variant.word == first) {
        Some(variant) => Some((entry, Some(variant), others)),
        None => Some((entry, None, Some(words))),
    }
}
