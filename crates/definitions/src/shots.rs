//! Which examples stand before a question: the harness' samplers, with CPython's draws.

use ghostlab_core::corpus::PythonRandom;
use ghostlab_core::error::{Error, Result};

use crate::value::Value;

/// Examples to draw from, and the state of the draw: it goes on from document to document.
#[derive(Debug, Clone)]
pub struct Pool {
    documents: Vec<Value>,
    random: PythonRandom,
    first: bool,
}

impl Pool {
    /// A pool in the order of its split; `first` takes the first ones instead of drawing.
    pub fn new(documents: Vec<Value>, seed: u64, first: bool) -> Self {
        Self { documents, random: PythonRandom::new(seed), first }
    }

    /// Examples for one document. Where `without` is the document, one more is drawn and those equal to it are dropped.
    ///
    /// # Errors
    /// When there are too few.
    pub fn sample(&mut self, count: usize, without: Option<&Value>) -> Result<Vec<Value>> {
        let other = |document: &&Value| without.is_none_or(|without| *document != without);
        let drawn: Vec<Value> = if self.first {
            self.documents.iter().filter(other).take(count).cloned().collect()
        } else {
            let more = usize::from(without.is_some());
            let places =
                self.random.sample(self.documents.len(), count + more).map_err(|_| self.too_few(count + more))?;
            places.iter().map(|at| &self.documents[*at]).filter(other).take(count).cloned().collect()
        };
        if drawn.len() < count { Err(self.too_few(count)) } else { Ok(drawn) }
    }

    fn too_few(&self, wanted: usize) -> Error {
        Error::bad_input("there are too few examples to show before a question")
            .expected(format!("{wanted} that are not the question itself"))
            .found(format!("{} in all", self.documents.len()))
            .hint("ask for fewer shots, or take equal rows out of the data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: i64, first: bool) -> Pool {
        Pool::new((0..count).map(Value::Int).collect(), 1234, first)
    }

    fn numbers(values: &[Value]) -> Vec<i64> {
        values.iter().filter_map(Value::as_int).collect()
    }

    /// Expected numbers: `random.Random(1234)`, Python 3.11; with a document left out one more is drawn.
    #[test]
    fn examples_are_drawn_as_the_harness_draws() {
        let mut drawn = pool(100, false);
        assert_eq!(numbers(&drawn.sample(5, None).unwrap()), [99, 56, 14, 0, 11]);
        assert_eq!(numbers(&drawn.sample(5, None).unwrap()), [74, 4, 85, 88, 10]);
        let mut without = pool(100, false);
        assert_eq!(numbers(&without.sample(4, Some(&Value::Int(14))).unwrap()), [99, 56, 0, 11]);
        assert_eq!(numbers(&pool(9, true).sample(3, Some(&Value::Int(1))).unwrap()), [0, 2, 3]);
        assert!(pool(3, false).sample(3, Some(&Value::Int(7))).unwrap_err().to_string().contains("too few"));
        assert!(pool(3, true).sample(4, None).is_err());
        assert!(pool(0, false).sample(1, None).is_err());
    }
}
