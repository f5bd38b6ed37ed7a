//! A criterion or a recovery, as it is written and as a cell has it.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::options::Options;

/// A criterion or a recovery: a name and its options. The grid knows neither; the caller's registry checks both, and says
/// what is left out. Two ways to write one method are equal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Method {
    pub name: String,
    /// As the file has them.
    pub options: Options,
    /// With every default filled in: what the method is.
    #[serde(skip)]
    pub resolved: Options,
}

impl Method {
    /// What it is: its options with every default filled in, where that is known.
    pub fn settings(&self) -> &Options {
        if self.resolved.is_empty() { &self.options } else { &self.resolved }
    }
}

#[cfg(test)]
impl Method {
    /// A method without options.
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), options: Options::new(), resolved: Options::new() }
    }
}

impl PartialEq for Method {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.resolved) == (&other.name, &other.resolved)
    }
}

impl Eq for Method {}

impl Hash for Method {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, &self.resolved).hash(state);
    }
}

/// `llm-streamline`, or `llm-streamline(cosine=token)`. Options come in the order of their names, whatever their order in
/// the file, so that equal methods have equal labels.
impl fmt::Display for Method {
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
#[derive(Debug, Clone)]
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
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
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
        let method = |options: serde_json::Value| {
            let options = options.as_object().unwrap().clone();
            Method { name: "m".into(), options, resolved: Options::new() }
        };
        assert_eq!(method(serde_json::json!({})).to_string(), "m");
        assert_eq!(method(serde_json::json!({"z": 1, "a": "token"})).to_string(), "m(a=token,z=1)");
    }
}
