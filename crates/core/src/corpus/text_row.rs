//! Text of a JSON row. Other columns are only checked for syntax, which takes no memory.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Field {
    Text(String),
    /// Any other value, which is discarded.
    Other,
}

/// Requested columns that a row has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TextRow(pub(super) Vec<(String, Field)>);

impl TextRow {
    /// Removes and returns the first of `columns` that the row has.
    pub(super) fn take(&mut self, columns: &[&str]) -> Option<(String, Field)> {
        let index = columns.iter().find_map(|column| self.0.iter().position(|(name, _)| name == column))?;
        Some(self.0.swap_remove(index))
    }
}

/// Deserializer of the requested columns of a row. Values that are not objects give a row without columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextRowSeed<'c>(pub(super) &'c [&'c str]);

impl<'de> DeserializeSeed<'de> for TextRowSeed<'_> {
    type Value = TextRow;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<TextRow, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextRowSeed<'_> {
    type Value = TextRow;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TextRow, A::Error> {
        let mut row = TextRow::default();
        while let Some(name) = map.next_key::<String>()? {
            if !self.0.contains(&name.as_str()) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let field = map.next_value_seed(FieldSeed)?;
            // The last of duplicate keys wins, as in Python.
            row.0.retain(|(known, _)| *known != name);
            row.0.push((name, field));
        }
        Ok(row)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<TextRow, A::Error> {
        skip_items(list).map(|()| TextRow::default())
    }

    fn visit_unit<E>(self) -> Result<TextRow, E> {
        Ok(TextRow::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<TextRow, E> {
        Ok(TextRow::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<TextRow, E> {
        Ok(TextRow::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<TextRow, E> {
        Ok(TextRow::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<TextRow, E> {
        Ok(TextRow::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<TextRow, E> {
        Ok(TextRow::default())
    }
}

/// Deserializer of one column.
struct FieldSeed;

impl<'de> DeserializeSeed<'de> for FieldSeed {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Field, E> {
        Ok(Field::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Field, E> {
        Ok(Field::Text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Field, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Field::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Field, A::Error> {
        skip_items(list).map(|()| Field::Other)
    }

    fn visit_unit<E>(self) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Field, E> {
        Ok(Field::Other)
    }
}

/// Consumes a list without storing its items.
fn skip_items<'de, A: SeqAccess<'de>>(mut list: A) -> Result<(), A::Error> {
    while list.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> TextRow {
        TextRowSeed(&["text", "sentence"]).deserialize(&mut serde_json::Deserializer::from_str(text)).unwrap()
    }

    #[test]
    fn only_the_columns_looked_for_are_kept() {
        let mut row = read(r#"{"x": [1, {"text": 2}], "sentence": "é", "text": "a", "text": "b", "y": 1e999}"#);
        assert_eq!(row.0.len(), 2);
        assert_eq!(row.take(&["text", "sentence"]), Some(("text".into(), Field::Text("b".into()))));
        assert_eq!(row.take(&["sentence"]), Some(("sentence".into(), Field::Text("é".into()))));
        assert_eq!(row.take(&["sentence"]), None);
    }

    #[test]
    fn other_values_are_no_text() {
        for value in ["null", "true", "1", "-1", "0.5", "[[1], {}]", "{\"text\": \"a\"}"] {
            let mut row = read(&format!("{{\"text\": {value}}}"));
            assert_eq!(row.take(&["text"]), Some(("text".into(), Field::Other)), "{value}");
            if !value.starts_with('{') {
                assert_eq!(read(value), TextRow::default(), "{value}");
            }
        }
    }
}
