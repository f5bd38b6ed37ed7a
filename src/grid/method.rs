//! A criterion or a recovery, as it is written and as a cell has it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::criterion::{self, Criterion};
use crate::distill::Finetune;
use crate::error::Result;
use crate::options::{Described, Options};
use crate::recovery::{self, Recovery};

/// A criterion or a recovery, by a name and options, and built from them. Two ways to write one method are equal.
#[derive(Serialize)]
pub struct Method<M: MethodAxis + ?Sized> {
    pub name: String,
    /// As the file has them.
    pub options: Options,
    /// With every default filled in: what the method is.
    #[serde(skip)]
    pub resolved: Options,
    /// How a recovery's operator is trained after it is solved.
    #[serde(skip)]
    pub training: Option<Finetune>,
    #[serde(skip)]
    pub rule: Arc<M>,
}

/// An axis whose values are methods.
pub trait MethodAxis: 'static {
    /// Its key in a grid.
    const KEY: &'static str;

    /// The methods that there are, and their options.
    fn described() -> Vec<Described>;

    /// What the registry has under a name, with the options filled in, and how its operator is trained.
    ///
    /// # Errors
    /// An unknown name, unknown or wrong options, saying what is wrong; the grid adds the place.
    fn build(name: &str, options: &Options) -> Result<(Box<Self>, Options, Option<Finetune>)>;
}

impl MethodAxis for dyn Criterion {
    const KEY: &'static str = "criterion";

    fn described() -> Vec<Described> {
        criterion::described()
    }

    fn build(name: &str, options: &Options) -> Result<(Box<Self>, Options, Option<Finetune>)> {
        let (rule, resolved) = criterion::resolved(name, options)?;
        Ok((rule, resolved, None))
    }
}

impl MethodAxis for dyn Recovery {
    const KEY: &'static str = "recovery";

    fn described() -> Vec<Described> {
        recovery::described()
    }

    fn build(name: &str, options: &Options) -> Result<(Box<Self>, Options, Option<Finetune>)> {
        recovery::resolved(name, options)
    }
}

impl<M: MethodAxis + ?Sized> Method<M> {
    /// The method of a name, with its options.
    ///
    /// # Errors
    /// As [`MethodAxis::build`].
    pub fn new(name: &str, options: &Options) -> Result<Self> {
        let (rule, resolved, training) = M::build(name, options)?;
        Ok(Self { name: name.to_owned(), options: options.clone(), resolved, training, rule: Arc::from(rule) })
    }

    /// What a method is whose options are left out; nothing of one that cannot be without.
    pub fn defaults(name: &str) -> Options {
        Self::new(name, &Options::new()).map(|of| of.resolved).unwrap_or_default()
    }

    /// A method without options.
    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        Self::new(name, &Options::new()).unwrap()
    }
}

impl<M: MethodAxis + ?Sized> Clone for Method<M> {
    fn clone(&self) -> Self {
        let Self { name, options, resolved, training, rule } = self;
        let (name, options, resolved) = (name.clone(), options.clone(), resolved.clone());
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

/// Of a frozen grid: what it has are names and options.
impl<'de, M: MethodAxis + ?Sized> Deserialize<'de> for Method<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WrittenMethod { name, options } = WrittenMethod::deserialize(deserializer)?;
        Self::new(&name, &options).map_err(|error| de::Error::custom(error.one_line()))
    }
}

/// `llm-streamline`, or `llm-streamline(cosine=token)`. Options come in the order of their names, whatever their order in
/// the file, so that equal methods have equal labels.
impl<M: MethodAxis + ?Sized> fmt::Display for Method<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&label(&self.name, &self.options))
    }
}

fn label(name: &str, options: &Options) -> String {
    let mut options: Vec<_> = options.iter().collect();
    options.sort_by_key(|(name, _)| *name);
    let options: Vec<String> = options
        .into_iter()
        .map(|(name, value)| match value {
            Value::String(text) => format!("{name}={text}"),
            // A map's own values, without the signs of JSON: names of cells stand on command lines.
            Value::Object(map) => format!("{name}={}", label("", map)),
            other => format!("{name}={other}"),
        })
        .collect();
    if options.is_empty() { name.to_owned() } else { format!("{name}({})", options.join(",")) }
}

/// A method with the options that are written, of each list one value.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct WrittenMethod {
    pub(super) name: String,
    pub(super) options: Options,
}

impl fmt::Display for WrittenMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&label(&self.name, &self.options))
    }
}

/// What the file says. An option may be a list of values, and stands for several methods then.
#[derive(Debug, Clone)]
pub(super) struct MethodEntry {
    pub(super) name: String,
    /// In the order of the file, which is the order of the methods.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_the_options_in_one_order() {
        let method = |options: serde_json::Value| WrittenMethod {
            name: "m".into(),
            options: options.as_object().unwrap().clone(),
        };
        assert_eq!(method(serde_json::json!({})).to_string(), "m");
        assert_eq!(method(serde_json::json!({"z": 1, "a": "token"})).to_string(), "m(a=token,z=1)");
    }
}
