//! The YAML of a file of claims: its shape, with the place of everything that is checked later.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error as YamlError, MessageFormatter, Spanned, UserMessageFormatter};

use super::filter::Literal;
use crate::error::{Error, Result, nearest};

/// A claim as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    pub(super) id: Spanned<String>,
    pub(super) artifact: Spanned<Values>,
    pub(super) says: Spanned<String>,
    #[serde(rename = "where")]
    pub(super) place: Spanned<String>,
    pub(super) over: Spanned<Values>,
    #[serde(default)]
    pub(super) only: Only,
    pub(super) check: Spanned<String>,
    pub(super) holds: Spanned<String>,
    pub(super) reading: Option<Spanned<String>>,
}

/// A value, or a list of values.
#[derive(Debug)]
pub(super) enum Values {
    One(Literal),
    Many(Vec<Spanned<Values>>),
}

/// The map `only`, in the order in which it is written.
#[derive(Debug, Default)]
pub(super) struct Only(pub(super) Vec<(Spanned<String>, Spanned<Values>)>);

/// Reads the text of a file; `file` is how messages name it.
pub(super) fn read(text: &str, file: &str) -> Result<Vec<Written>> {
    let options = serde_saphyr::options! {
        // `no`, `on` and `off` are words here.
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<Vec<Written>>(text, options).map_err(|error| explain(&error, file))
}

/// The values of a list, or the one value that stands for a list of one, each with its place. A list in a list is refused.
pub(super) fn items<'a>(file: &str, values: &'a Spanned<Values>) -> Result<Vec<(String, &'a Literal)>> {
    match &values.value {
        Values::One(literal) => Ok(vec![(place(file, values), literal)]),
        Values::Many(list) => list
            .iter()
            .map(|item| match &item.value {
                Values::One(literal) => Ok((place(file, item), literal)),
                Values::Many(_) => Err(Error::bad_input("a list stands in a list").at(place(file, item))),
            })
            .collect(),
    }
}

/// The same of names.
pub(super) fn names<'a>(file: &str, values: &'a Spanned<Values>) -> Result<Vec<(String, &'a str)>> {
    let named = |(place, literal): (String, &'a Literal)| match literal {
        Literal::Text(text) => Ok((place, text.as_str())),
        other => {
            Err(Error::bad_input("a value has the wrong type").at(place).expected("a name").found(other.describe()))
        }
    };
    items(file, values)?.into_iter().map(named).collect()
}

/// Where a value stands in the file.
pub(super) fn place<T>(file: &str, spanned: &Spanned<T>) -> String {
    format!("{file}:{}:{}", spanned.referenced.line(), spanned.referenced.column())
}

/// A message of the YAML reader in the house's form.
fn explain(error: &YamlError, file: &str) -> Error {
    let error = error.without_snippet();
    let bad = match error {
        YamlError::DuplicateMappingKey { key: Some(key), .. } => {
            Error::bad_input(format!("the key `{key}` stands twice in the same map")).hint("keep one of the two")
        }
        YamlError::SerdeUnknownField { field, expected, .. } => {
            let bad = Error::bad_input(format!("unknown key `{field}` in a claim"))
                .expected(format!("one of {}", expected.join(", ")));
            match nearest(field, expected.iter().copied()) {
                Some(near) => bad.hint(format!("did you mean `{near}`?")),
                None => bad,
            }
        }
        YamlError::SerdeMissingField { field, .. } => {
            Error::bad_input(format!("a claim lacks the key `{field}`")).expected(format!("`{field}: …`"))
        }
        other => Error::bad_input(format!("the claims cannot be read: {}", UserMessageFormatter.format_message(other))),
    };
    match error.location() {
        Some(location) => bad.at(format!("{file}:{}:{}", location.line(), location.column())),
        None => bad.at(file),
    }
}

struct ValuesVisitor;

impl<'de> Visitor<'de> for ValuesVisitor {
    type Value = Values;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name, a number, true, false, or a list of these")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Values, E> {
        Ok(Values::One(Literal::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Values, E> {
        Ok(Values::One(Literal::Number(value as f64)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Values, E> {
        Ok(Values::One(Literal::Number(value as f64)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Values, E> {
        Ok(Values::One(Literal::Number(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Values, E> {
        Ok(Values::One(Literal::Text(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Values, A::Error> {
        let mut values = Vec::new();
        while let Some(item) = items.next_element()? {
            values.push(item);
        }
        Ok(Values::Many(values))
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValuesVisitor)
    }
}

struct OnlyVisitor;

impl<'de> Visitor<'de> for OnlyVisitor {
    type Value = Only;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of fields and their values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Only, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Only(entries))
    }
}

impl<'de> Deserialize<'de> for Only {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OnlyVisitor)
    }
}
