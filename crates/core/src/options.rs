//! Options of a method, as a grid wrote them: read by the method itself, strictly. Floor 0.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result, nearest};

/// A method's options by name.
pub type Options = Map<String, Value>;

/// A method in a registry: its name in a grid, what builds it, and what its options are.
pub struct Registered<B> {
    pub name: &'static str,
    /// The reference: the official repository, or where else the method is described. Empty where there is nothing to cite.
    pub source: &'static str,
    pub build: B,
    resolve: fn(&str, &Options) -> Result<Options>,
    schema: fn() -> Value,
}

/// A method as the grid sees it before it is built.
#[derive(Debug, Clone)]
pub struct Described {
    pub name: String,
    /// The JSON schema of its options, an object.
    pub options: Value,
    /// The reference.
    pub source: &'static str,
}

impl<B> Registered<B> {
    /// An entry whose options are the struct `T`, the one that [`read`] is called with.
    pub const fn new<T: JsonSchema + Serialize + DeserializeOwned>(
        name: &'static str,
        source: &'static str,
        build: B,
    ) -> Self {
        Self { name, source, build, resolve: resolve::<T>, schema: schema::<T> }
    }

    /// The same where an option that is left out follows from another one.
    #[must_use]
    pub const fn resolving(mut self, resolve: fn(&str, &Options) -> Result<Options>) -> Self {
        self.resolve = resolve;
        self
    }

    /// The options with every one that was left out filled in: what a method is known by in keys.
    ///
    /// # Errors
    /// As [`read`].
    pub fn resolve(&self, options: &Options) -> Result<Options> {
        (self.resolve)(self.name, options)
    }

    /// What editors and the grid's reader have to know of it.
    pub fn described(&self) -> Described {
        Described { name: self.name.to_string(), options: (self.schema)(), source: self.source }
    }
}

impl Described {
    /// Whether there is an option of this name.
    pub fn has(&self, option: &str) -> bool {
        self.options["properties"].get(option).is_some()
    }

    /// Whether an option is a list by itself, so that only a list of lists makes an axis of it.
    pub fn takes_list(&self, option: &str) -> bool {
        match &self.options["properties"][option]["type"] {
            Value::String(kind) => kind == "array",
            Value::Array(kinds) => kinds.iter().any(|kind| kind == "array"),
            _ => false,
        }
    }
}

/// Draft 7, without references: the dialect that editors' YAML servers read.
fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Reads options into the method's own struct (which has `#[serde(default, deny_unknown_fields)]`).
///
/// # Errors
/// An unknown option or a wrong value, in serde's words with the method's name.
pub fn read<T: DeserializeOwned>(method: &str, options: &Options) -> Result<T> {
    serde_json::from_value(Value::Object(options.clone()))
        .map_err(|error| Error::bad_input(format!("wrong options for `{method}`")).found(error.to_string()))
}

/// Options with every default filled in, in the form that their type gives them: `0` and `0.0` come to the same.
fn resolve<T: Serialize + DeserializeOwned>(method: &str, options: &Options) -> Result<Options> {
    written(method, &read::<T>(method, options)?)
}

/// A method's own struct as options again.
///
/// # Errors
/// A number that is none: no grid can say it.
pub fn written(method: &str, settings: &impl Serialize) -> Result<Options> {
    match serde_json::to_value(settings) {
        Ok(Value::Object(options)) => Ok(options),
        other => Err(Error::job(format!("the options of `{method}` are no map")).found(format!("{other:?}"))),
    }
}

/// The entry of a registry by its name.
///
/// # Errors
/// An unknown name, with the known ones and the nearest.
pub fn lookup<'a, B>(what: &str, name: &str, entries: &'a [Registered<B>]) -> Result<&'a Registered<B>> {
    entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
        let error = Error::bad_input(format!("unknown {what} `{name}`"))
            .expected(format!("one of {}", names.join(", ")))
            .found(format!("`{name}`"));
        match nearest(name, names) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    })
}
