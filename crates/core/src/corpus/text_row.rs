//! Deserializer for the text columns of a JSON row. Other columns are checked for valid syntax but not kept in memory.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// JSON row or column value: the requested columns of an object, or the text of a string. Other values are discarded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TextRow {
    pub(super) columns: Vec<(String, TextRow)>,
    /// Text of the value, or `None` if it is not a string.
    pub(super) text: Option<String>,
}

impl TextRow {
    /// Removes and returns the first of `columns` that the row contains.
    pub(super) fn take_column(&mut self, columns: &[&str]) -> Option<(String, TextRow)> {
        let index = columns.iter().find_map(|column| self.columns.iter().position(|(name, _)| name == column))?;
        Some(self.columns.swap_remove(index))
    }
}

/// Deserializer for the requested columns of a row.
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
            let value = map.next_value_seed(TextRowSeed(&[]))?;
            // The last of several equal keys wins, as in Python.
            row.columns.retain(|(known, _)| *known != name);
            row.columns.push((name, value));
        }
        Ok(row)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TextRow, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(TextRow::default())
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

    fn visit_str<E: Error>(self, text: &str) -> Result<TextRow, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<TextRow, E> {
        Ok(TextRow { text: Some(text), ..TextRow::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> TextRow {
        TextRowSeed(&["text", "sentence"]).deserialize(&mut serde_json::Deserializer::from_str(text)).unwrap()
    }

    fn text_row(text: &str) -> TextRow {
        TextRow { text: Some(text.to_owned()), ..TextRow::default() }
    }

    #[test]
    fn only_requested_columns_are_kept() {
        let mut row = read(r#"{"x": [1, {"text": 2}], "sentence": "é", "text": "a", "text": "b", "y": 1e999}"#);
        assert_eq!(row.columns.len(), 2);
        assert_eq!(row.take_column(&["text", "sentence"]), Some(("text".into(), text_row("b"))));
        assert_eq!(row.take_column(&["sentence"]), Some(("sentence".into(), text_row("é"))));
        assert_eq!(row.take_column(&["sentence"]), None);
    }

    #[test]
    fn non_string_values_are_not_text() {
        for value in ["null", "true", "1", "-1", "0.5", "[[1], {}]", "{\"text\": \"a\"}"] {
            let mut row = read(&format!("{{\"text\": {value}}}"));
            assert_eq!(row.take_column(&["text"]), Some(("text".into(), TextRow::default())), "{value}");
            if !value.starts_with('{') {
                assert_eq!(read(value), TextRow::default(), "{value}");
            }
        }
    }
}
