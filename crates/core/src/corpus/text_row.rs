//! Deserializer for the requested columns of a JSON row. Other columns, and values that are not text, are checked for
//! valid syntax but not kept in memory.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Value of a requested column.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Column {
    Text(String),
    /// Value that is not a string. Its content is discarded.
    Other,
}

impl<'de> Deserialize<'de> for Column {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ColumnVisitor)
    }
}

/// Visitor that keeps a string and discards any other value without storing it.
struct ColumnVisitor;

impl<'de> Visitor<'de> for ColumnVisitor {
    type Value = Column;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Column, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<Column, E> {
        Ok(Column::Text(text))
    }

    fn visit_unit<E>(self) -> Result<Column, E> {
        Ok(Column::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Column, E> {
        Ok(Column::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Column, E> {
        Ok(Column::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Column, E> {
        Ok(Column::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Column, E> {
        Ok(Column::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Column, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Column::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Column, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Column::Other)
    }
}

/// Deserializer for the columns of a JSON object that have one of the given names.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextRowSeed<'c>(pub(super) &'c [&'c str]);

impl<'de> DeserializeSeed<'de> for TextRowSeed<'_> {
    type Value = HashMap<String, Column>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TextRowSeed<'_> {
    type Value = HashMap<String, Column>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut columns = HashMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if self.0.contains(&name.as_str()) {
                // The last of several equal keys wins, as in Python.
                columns.insert(name, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> serde_json::Result<HashMap<String, Column>> {
        TextRowSeed(&["text", "sentence"]).deserialize(&mut serde_json::Deserializer::from_str(text))
    }

    #[test]
    fn only_requested_columns_are_kept() {
        let row = read(r#"{"x": [1, {"text": 2}], "sentence": "é", "text": "a", "text": "b", "y": 1e999}"#).unwrap();
        assert_eq!(row.len(), 2);
        assert_eq!(row["text"], Column::Text("b".into()));
        assert_eq!(row["sentence"], Column::Text("é".into()));
    }

    #[test]
    fn non_string_values_are_not_text() {
        for value in ["null", "true", "1", "-1", "0.5", "[[1], {}]", "{\"text\": \"a\"}"] {
            let row = read(&format!("{{\"text\": {value}}}")).unwrap();
            assert_eq!(row["text"], Column::Other, "{value}");
            if !value.starts_with('{') {
                assert!(read(value).is_err(), "{value}");
            }
        }
    }
}
