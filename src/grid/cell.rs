//! Grid cells, which are the variants of a backbone. The criterion and recovery of a cell are kept both as written in
//! the file and with all options resolved.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::calibration::Calibration;
use super::validate::{self, EntryPosition, combinations};
use super::yaml::Positioned;
use crate::criterion::{self, Criterion, Depth};
use crate::distill::Finetune;
use crate::error::Result;
use crate::options::{MethodDescription, Options};
use crate::recovery::{self, Recovery};

/// Keys of the axes that define the pruning. A grid has either all of them or none.
pub(super) const CUT_AXES: [&str; 4] = ["criterion", DEPTH, "recovery", "calibration"];
/// Key of the axis for the number of removed layers.
pub(super) const DEPTH: &str = "depth";
/// Keys of all axes, in the order in which they appear in a cell name.
pub(super) const AXES: [&str; 5] = ["backbone", CUT_AXES[0], CUT_AXES[1], CUT_AXES[2], CUT_AXES[3]];

/// Variant in a grid. The cell of the dense backbone has no criterion, recovery or calibration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// Backbone name in [`Grid::backbones`](super::Grid::backbones).
    pub backbone: String,
    pub criterion: Option<Method<dyn Criterion>>,
    pub depth: Depth,
    pub recovery: Option<Method<dyn Recovery>>,
    pub calibration: Option<Calibration>,
    /// Name of the cell within its grid, such as `llama-3.1-8b.streamline-7.ghosted`. It is never parsed.
    #[serde(default)]
    pub name: String,
}

impl Cell {
    pub(super) fn dense(backbone: &str) -> Self {
        let backbone = backbone.to_owned();
        let name = String::new();
        Self { backbone, criterion: None, depth: Depth::default(), recovery: None, calibration: None, name }
    }

    #[cfg(test)]
    pub(crate) fn with_name(backbone: &str, name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::dense(backbone) }
    }

    /// Returns whether no layers are removed.
    pub fn is_dense(&self) -> bool {
        self.criterion.is_none()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Criterion or recovery built from a name and options. Methods that are written differently but resolve to the same
/// options are equal.
#[derive(Serialize)]
pub struct Method<M: MethodAxis + ?Sized> {
    pub name: String,
    /// Options as written in the file.
    pub options: Options,
    /// Options with all defaults filled in, which identify the method.
    #[serde(skip)]
    pub resolved: Options,
    /// Settings for fine-tuning the operator of a recovery after it has been solved.
    #[serde(skip)]
    pub training: Option<Finetune>,
    #[serde(skip)]
    pub rule: Arc<M>,
}

/// Axis whose values are methods.
pub trait MethodAxis: 'static {
    const KEY: &'static str;

    /// Returns the descriptions of the methods and their options.
    fn descriptions() -> Vec<MethodDescription>;

    /// Builds a method from the registry, and returns it with its resolved options and training settings.
    ///
    /// # Errors
    /// Fails if the name is unknown, or if an option is unknown or invalid. The caller adds the position in the grid to
    /// the error.
    fn build(name: &str, options: &Options) -> Result<(Box<Self>, Options, Option<Finetune>)>;
}

impl MethodAxis for dyn Criterion {
    const KEY: &'static str = "criterion";

    fn descriptions() -> Vec<MethodDescription> {
        criterion::descriptions()
    }

    fn build(name: &str, options: &Options) -> Result<(Box<Self>, Options, Option<Finetune>)> {
        let (rule, resolved) = criterion::build_resolved(name, options)?;
        Ok((rule, resolved, None))
    }
}

impl MethodAxis for dyn Recovery {
    const KEY: &'static str = "recovery";

    fn descriptions() -> Vec<MethodDescription> {
        recovery::descriptions()
    }

    fn build(name: &str, options: &Options) -> Result<(Box<Self>, Options, Option<Finetune>)> {
        recovery::build_resolved(name, options)
    }
}

impl<M: MethodAxis + ?Sized> Method<M> {
    /// Creates a method from its name and options.
    ///
    /// # Errors
    /// Fails in the same cases as [`MethodAxis::build`].
    pub fn new(name: &str, options: &Options) -> Result<Self> {
        let (rule, resolved, training) = M::build(name, options)?;
        Ok(Self { name: name.to_owned(), options: options.clone(), resolved, training, rule: Arc::from(rule) })
    }

    /// Returns the default options of a method, or no options if it has required ones.
    pub fn defaults(name: &str) -> Options {
        Self::new(name, &Options::new()).map(|options| options.resolved).unwrap_or_default()
    }

    #[cfg(test)]
    pub(crate) fn with_name(name: &str) -> Self {
        Self::new(name, &Options::new()).unwrap()
    }
}

impl<M: MethodAxis + ?Sized> Clone for Method<M> {
    fn clone(&self) -> Self {
        let Self { name, options, resolved, training, rule } = self;
        let name = name.clone();
        let options = options.clone();
        let resolved = resolved.clone();
        Self { name, options, resolved, training: *training, rule: Arc::clone(rule) }
    }
}

impl<M: MethodAxis + ?Sized> PartialEq for Method<M> {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.resolved) == (&other.name, &other.resolved)
    }
}

impl<M: MethodAxis + ?Sized> Eq for Method<M> {}

impl<M: MethodAxis + ?Sized> Hash for Method<M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, &self.resolved).hash(state);
    }
}

impl<M: MethodAxis + ?Sized> fmt::Debug for Method<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Method").field("name", &self.name).field("resolved", &self.resolved).finish()
    }
}

/// Deserializes a method from a frozen grid, which stores its name and options.
impl<'de, M: MethodAxis + ?Sized> Deserialize<'de> for Method<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WrittenMethod { name, options } = WrittenMethod::deserialize(deserializer)?;
        Self::new(&name, &options).map_err(|error| de::Error::custom(error.one_line()))
    }
}

/// Formats the method as `llm-streamline` or `llm-streamline(cosine=token)`. Options are sorted by name so that equal
/// methods have equal labels.
impl<M: MethodAxis + ?Sized> fmt::Display for Method<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_method(&self.name, &self.options))
    }
}

fn format_method(name: &str, options: &Options) -> String {
    let mut options: Vec<_> = options.iter().collect();
    options.sort_by_key(|(name, _)| *name);
    let options: Vec<String> = options
        .into_iter()
        .map(|(name, value)| match value {
            Value::String(text) => format!("{name}={text}"),
            // Omit the JSON punctuation, because cell names are typed on command lines.
            Value::Object(map) => format!("{name}={}", format_method("", map)),
            other => format!("{name}={other}"),
        })
        .collect();
    if options.is_empty() { name.to_owned() } else { format!("{name}({})", options.join(",")) }
}

/// Method as written in the file, with a single value for each option.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct WrittenMethod {
    pub(super) name: String,
    pub(super) options: Options,
}

impl fmt::Display for WrittenMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_method(&self.name, &self.options))
    }
}

/// Method as written in the file. An option with a list of values expands to several methods.
#[derive(Debug, Clone)]
pub(super) struct MethodEntry {
    pub(super) name: String,
    /// Options in file order, which determines the order of the methods.
    pub(super) options: Vec<(String, Value)>,
}

impl<'de> Deserialize<'de> for MethodEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MethodVisitor)
    }
}

struct MethodVisitor;

impl<'de> Visitor<'de> for MethodVisitor {
    type Value = MethodEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name, or a map with `name` and options")
    }

    fn visit_str<E>(self, name: &str) -> Result<MethodEntry, E> {
        Ok(MethodEntry { name: name.to_owned(), options: Vec::new() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MethodEntry, A::Error> {
        let mut name = None;
        let mut options = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "name" {
                name = Some(map.next_value()?);
            } else {
                options.push((key, map.next_value()?));
            }
        }
        let name = name.ok_or_else(|| de::Error::missing_field("name"))?;
        Ok(MethodEntry { name, options })
    }
}

/// Builds the methods that the map at `at` lists for an axis. Keeps only the first of several equal methods.
pub(super) fn build_methods<M: MethodAxis + ?Sized>(
    at: &EntryPosition<'_>,
    entries: &[MethodEntry],
) -> Result<Vec<Positioned<Method<M>>>> {
    let written = expand_methods::<M>(at, entries)?;
    validate::check_values(&at.key(M::KEY), &written)?;
    let mut methods: Vec<Positioned<Method<M>>> = Vec::new();
    for Positioned { value: method, position } in &written {
        let value = Method::new(&method.name, &method.options).map_err(|error| {
            // Name the method in the message if several methods have the same position.
            let shared = written.iter().filter(|other| other.position == *position).count() > 1;
            let error = if shared { error.at(method.to_string()) } else { error };
            error.at(position.to_string())
        })?;
        if methods.iter().all(|known| known.value != value) {
            methods.push(Positioned { value, position: position.clone() });
        }
    }
    Ok(methods)
}

/// Expands the entries into methods. A list of values for a single-valued option yields one method per value. A list of
/// lists for a list-valued option yields one method per inner list.
pub(super) fn expand_methods<M: MethodAxis + ?Sized>(
    at: &EntryPosition<'_>,
    entries: &[MethodEntry],
) -> Result<Vec<Positioned<WrittenMethod>>> {
    let at = at.key(M::KEY);
    let known = M::descriptions();
    let mut methods = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let description = known.iter().find(|description| description.name == entry.name);
        methods.extend(expand_method(&at.item(i), entry, description)?);
    }
    Ok(methods)
}

/// Expands an entry into one method per combination of the values of its options.
fn expand_method(
    at: &EntryPosition<'_>,
    entry: &MethodEntry,
    description: Option<&MethodDescription>,
) -> Result<Vec<Positioned<WrittenMethod>>> {
    let mut options = Vec::new();
    for (key, value) in &entry.options {
        let values = match value {
            Value::Array(values) if description.is_some_and(|description| is_axis(description, key, values)) => {
                validate::read_values(&at.key(key), values)?
                    .into_iter()
                    .map(|value| (value.value, Some(value.position)))
                    .collect()
            }
            single => vec![(single.clone(), None)],
        };
        options.push((key, values));
    }
    let lengths: Vec<usize> = options.iter().map(|(_, values)| values.len()).collect();
    validate::check_cell_count(&lengths, &at.position())?;
    let lists = options.iter().filter(|(_, values)| values.iter().any(|(_, position)| position.is_some())).count();
    Ok(combinations(&lengths)
        .into_iter()
        .map(|combination| {
            let chosen = options.iter().zip(combination).map(|((key, values), i)| (key, &values[i]));
            let own_position = chosen.clone().find_map(|(_, (_, position))| position.clone()).filter(|_| lists == 1);
            let options = chosen.map(|(key, (value, _))| ((*key).clone(), value.clone())).collect();
            let value = WrittenMethod { name: entry.name.clone(), options };
            Positioned { value, position: own_position.unwrap_or_else(|| at.position()) }
        })
        .collect())
}

/// Returns whether each value of an option yields its own method. Unknown options are reported later, when the method
/// is built.
fn is_axis(description: &MethodDescription, option: &str, values: &[Value]) -> bool {
    let all_lists = !values.is_empty() && values.iter().all(Value::is_array);
    description.has(option) && (!description.takes_list(option) || all_lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_label_lists_options_in_sorted_order() {
        assert_eq!(method(&serde_json::json!({})).to_string(), "m");
        assert_eq!(method(&serde_json::json!({"z": 1, "a": "token"})).to_string(), "m(a=token,z=1)");
    }

    fn method(options: &serde_json::Value) -> WrittenMethod {
        WrittenMethod { name: "m".into(), options: options.as_object().unwrap().clone() }
    }
}
