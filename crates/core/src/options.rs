//! Registries of methods: names, appearance, and strictly parsed options.
//!
//! ```
//! use ghostlab_core::recovery;
//! use serde_json::json;
//!
//! let options = json!({"slover": "svd"});
//! let error = recovery::build("ghosted", options.as_object().unwrap()).err().unwrap();
//! assert!(error.to_string().contains("unknown field `slover`"));
//! ```

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::deviation::{Deviation, PruneCase};
use crate::error::{Error, Result};
use crate::style::Style;

/// A method's options by name.
pub type Options = Map<String, Value>;

/// How tables and figures show a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appearance {
    /// Its name in a grid.
    pub name: &'static str,
    /// The paper's label, or the name.
    pub label: &'static str,
    /// `None` if figures choose the style.
    pub style: Option<Style>,
    /// Whether it is the paper's own method: its rows are shaded, and tested against the best other.
    pub ours: bool,
}

/// A way to use a method that tables tell apart by the value of an option: `ghosted:svd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub option: &'static str,
    /// Value in a grid.
    pub value: &'static str,
    /// Suffix of the method's name in tables.
    pub word: &'static str,
    /// The paper's label.
    pub label: &'static str,
}

/// A method in a registry: how it is shown, what builds it (a `dyn M`), and what its options are.
pub struct Registered<M: ?Sized> {
    pub shown: Appearance,
    pub variants: &'static [Variant],
    /// The reference: the official repository, or where else the method is described. Empty where there is nothing to cite.
    pub source: &'static str,
    /// Whether the paper has it not: its tables of methods leave it out.
    pub beyond: bool,
    /// Version of its results. It must be raised when a method's numbers change, so that older results are not reused.
    pub version: u32,
    /// Short form in cell names.
    pub short: &'static str,
    /// Where the official code departs from its formula.
    pub deviations: &'static [Deviation],
    build: Build<M>,
    resolve: fn(&str, &Options) -> Result<Options>,
    schema: fn() -> Value,
}

/// A method as the grid sees it before it is built.
#[derive(Debug, Clone)]
pub struct Described {
    pub name: String,
    /// The paper's label.
    pub label: &'static str,
    /// The JSON schema of its options, an object.
    pub options: Value,
    /// The reference.
    pub source: &'static str,
    /// Whether the paper has it not.
    pub beyond: bool,
    /// Short form in cell names.
    pub short: &'static str,
}

/// Function that builds a method from its name and options.
type Build<M> = fn(&str, &Options) -> Result<Box<M>>;

impl<M: ?Sized> Registered<M> {
    /// Creates an entry whose options are the struct `T`, which `build` passes to [`read`].
    pub const fn new<T: JsonSchema + Serialize + DeserializeOwned>(
        name: &'static str,
        source: &'static str,
        build: Build<M>,
    ) -> Self {
        let shown = Appearance { name, label: name, style: None, ours: false };
        Self {
            shown,
            variants: &[],
            source,
            beyond: false,
            version: 1,
            short: name,
            deviations: &[],
            build,
            resolve: resolve::<T>,
            schema: schema::<T>,
        }
    }

    /// Sets the paper's label.
    #[must_use]
    pub const fn label(mut self, label: &'static str) -> Self {
        self.shown.label = label;
        self
    }

    /// Sets the style in figures.
    #[must_use]
    pub const fn style(mut self, style: Style) -> Self {
        self.shown.style = Some(style);
        self
    }

    /// Marks the entry as the paper's own method.
    #[must_use]
    pub const fn ours(mut self) -> Self {
        self.shown.ours = true;
        self
    }

    /// Marks the entry as beyond the paper.
    #[must_use]
    pub const fn beyond(mut self) -> Self {
        self.beyond = true;
        self
    }

    /// Sets the version of the results.
    #[must_use]
    pub const fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets a shorter name for cell names.
    #[must_use]
    pub const fn short(mut self, short: &'static str) -> Self {
        self.short = short;
        self
    }

    /// Same with the deviations of its official code.
    #[must_use]
    pub const fn deviations(mut self, deviations: &'static [Deviation]) -> Self {
        self.deviations = deviations;
        self
    }

    /// Sets the variants.
    #[must_use]
    pub const fn variants(mut self, variants: &'static [Variant]) -> Self {
        self.variants = variants;
        self
    }

    /// Sets a function that derives options that were left out from others.
    #[must_use]
    pub const fn resolving(mut self, resolve: fn(&str, &Options) -> Result<Options>) -> Self {
        self.resolve = resolve;
        self
    }

    /// Builds the method with options.
    ///
    /// # Errors
    /// An unknown option or a wrong value.
    pub fn build(&self, options: &Options) -> Result<Box<M>> {
        (self.build)(self.shown.name, options)
    }

    /// Fills in all default options: the form that keys contain.
    ///
    /// # Errors
    /// As [`read`].
    pub fn resolve(&self, options: &Options) -> Result<Options> {
        (self.resolve)(self.shown.name, options)
    }

    /// Describes the entry for editors and the grid parser.
    pub fn described(&self) -> Described {
        let Appearance { name, label, .. } = self.shown;
        let source = self.source;
        let beyond = self.beyond;
        let short = self.short;
        Described { name: name.to_owned(), label, options: (self.schema)(), source, beyond, short }
    }
}

impl Described {
    /// Returns whether an option of this name exists.
    pub fn has(&self, option: &str) -> bool {
        self.options["properties"].get(option).is_some()
    }

    /// Returns whether an option is itself a list, so that only a list of lists is an axis.
    pub fn takes_list(&self, option: &str) -> bool {
        match &self.options["properties"][option]["type"] {
            Value::String(kind) => kind == "array",
            Value::Array(kinds) => kinds.iter().any(|kind| kind == "array"),
            _ => false,
        }
    }
}

/// Generates a draft 7 schema without references, the dialect that editors' YAML servers read.
pub fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Reads options into the method's own struct (which has `#[serde(default, deny_unknown_fields)]`).
///
/// # Errors
/// An unknown option or a wrong value, in serde's words with the method's name.
pub fn read<T: DeserializeOwned>(method: &str, options: &Options) -> Result<T> {
    serde_json::from_value(Value::Object(options.clone()))
        .map_err(|error| Error::bad_input(format!("wrong options for `{method}`")).found(error))
}

/// Options with every default filled in, in the form that their type gives them: `0` and `0.0` come to the same.
fn resolve<T: Serialize + DeserializeOwned>(method: &str, options: &Options) -> Result<Options> {
    written(method, &read::<T>(method, options)?)
}

/// Converts a method's struct back to options.
///
/// # Errors
/// A number that is none: no grid can say it.
pub fn written(method: &str, settings: &impl Serialize) -> Result<Options> {
    match serde_json::to_value(settings) {
        Ok(Value::Object(options)) => Ok(options),
        other => Err(Error::job(format!("the options of `{method}` are no map")).found(format!("{other:?}"))),
    }
}

/// Finds the entry of a registry by its name.
///
/// # Errors
/// An unknown name, with the known ones and the nearest.
pub fn lookup<'a, M: ?Sized>(what: &str, name: &str, entries: &'a [Registered<M>]) -> Result<&'a Registered<M>> {
    entries.iter().find(|entry| entry.shown.name == name).ok_or_else(|| {
        let names = entries.iter().map(|entry| entry.shown.name);
        Error::bad_input(format!("unknown {what} `{name}`")).none_of(name, names)
    })
}

/// Returns what the official code of a method does otherwise in a case; nothing of an unknown name.
pub fn deviations<M: ?Sized>(name: &str, entries: &[Registered<M>], case: &PruneCase<'_>) -> Vec<&'static str> {
    let known = entries.iter().find(|entry| entry.shown.name == name).map_or(&[][..], |entry| entry.deviations);
    known.iter().filter(|deviation| (deviation.applies)(case)).map(|deviation| deviation.text).collect()
}

/// Returns the appearance for a table name: an entry's name, with a colon and a word if an option is part of it. A variant
/// has its own label, otherwise that of its method.
pub fn appearance<M: ?Sized>(name: &str, entries: &[Registered<M>]) -> Option<Appearance> {
    let (entry, variant, _) = parse_name(name, entries)?;
    Some(Appearance { label: variant.map_or(entry.shown.label, |variant| variant.label), ..entry.shown })
}

/// Returns the words after the colon of a table name that no variant has a label for.
pub fn further<'a, M: ?Sized>(name: &'a str, entries: &[Registered<M>]) -> Option<&'a str> {
    parse_name(name, entries)?.2
}

/// Splits a table name into its entry, the variant that its first word names, and the other words.
fn parse_name<'a, 'n, M: ?Sized>(
    name: &'n str,
    entries: &'a [Registered<M>],
) -> Option<(&'a Registered<M>, Option<&'a Variant>, Option<&'n str>)> {
    let (method, words) = name.split_once(':').map_or((name, None), |(method, words)| (method, Some(words)));
    let entry = entries.iter().find(|entry| entry.shown.name == method)?;
    let Some(words) = words else { return Some((entry, None, None)) };
    let (first, others) = words.split_once(':').map_or((words, None), |(first, others)| (first, Some(others)));
    match entry.variants.iter().find(|variant| variant.word == first) {
        Some(variant) => Some((entry, Some(variant), others)),
        None => Some((entry, None, Some(words))),
    }
}
