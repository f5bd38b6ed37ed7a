//! Keys of a mapping by hash. Mappings keep their pairs in a list, which would take quadratic time to build by scanning.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::value::Value;

/// Pairs up to which scanning is faster than hashing.
const MAX_SCANNED: usize = 32;

/// Positions of the keys of a list of pairs. The same list has to be passed to every call.
#[derive(Debug, Default)]
pub(crate) struct KeyIndex {
    /// Absent while the list is short.
    hashes: Option<Hashes>,
}

#[derive(Debug, Default)]
struct Hashes {
    state: RandomState,
    positions: HashMap<u64, Vec<usize>>,
}

impl KeyIndex {
    pub(crate) fn of<T>(pairs: &[(Value, T)]) -> Self {
        let mut index = Self::default();
        index.hash_if_long(pairs);
        index
    }

    /// Returns the position of a key.
    pub(crate) fn position<T>(&self, pairs: &[(Value, T)], key: &Value) -> Option<usize> {
        let Some(hashes) = &self.hashes else { return pairs.iter().position(|(own, _)| own == key) };
        let candidates = hashes.positions.get(&hashes.hash(key))?;
        candidates.iter().copied().find(|position| pairs[*position].0 == *key)
    }

    /// Sets the value of a key, in its place where the key is there.
    pub(crate) fn set<T>(&mut self, pairs: &mut Vec<(Value, T)>, key: Value, value: T) {
        match self.position(pairs, &key) {
            Some(position) => pairs[position].1 = value,
            None => self.push(pairs, key, value),
        }
    }

    /// Adds a pair whose key is not in the list.
    pub(crate) fn push<T>(&mut self, pairs: &mut Vec<(Value, T)>, key: Value, value: T) {
        if let Some(hashes) = &mut self.hashes {
            hashes.insert(&key, pairs.len());
        }
        pairs.push((key, value));
        self.hash_if_long(pairs);
    }

    fn hash_if_long<T>(&mut self, pairs: &[(Value, T)]) {
        if self.hashes.is_none() && pairs.len() > MAX_SCANNED {
            let mut hashes = Hashes::default();
            pairs.iter().enumerate().for_each(|(position, (key, _))| hashes.insert(key, position));
            self.hashes = Some(hashes);
        }
    }
}

impl Hashes {
    fn insert(&mut self, key: &Value, position: usize) {
        self.positions.entry(self.hash(key)).or_default().push(position);
    }

    /// Hashes a key such that equal keys have equal hashes: `1`, `1.0` and `True` are one key in Python.
    fn hash(&self, key: &Value) -> u64 {
        match (key, key.as_number()) {
            (Value::Text(text), _) => self.state.hash_one(text),
            // Zero has two signs.
            (_, Some(number)) => self.state.hash_one((number + 0.0).to_bits()),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_are_found_whatever_their_type() {
        for others in [0, 100] {
            let mut pairs = vec![(Value::Int(1), 0), (Value::from("1"), 0), (Value::None, 0), (Value::Float(-0.0), 0)];
            let mut index = KeyIndex::of(&pairs);
            (0..others).for_each(|at| index.set(&mut pairs, Value::Text(format!("k{at}")), at));
            for (key, position) in [
                (Value::Bool(true), Some(0)),
                (Value::Float(1.0), Some(0)),
                (Value::from("1"), Some(1)),
                (Value::None, Some(2)),
                (Value::Int(0), Some(3)),
                (Value::from("2"), None),
            ] {
                assert_eq!(index.position(&pairs, &key), position, "{key:?} beside {others}");
            }
            index.set(&mut pairs, Value::Float(1.0), 7);
            assert_eq!((pairs.len(), pairs[0].1), (4 + others, 7));
        }
    }
}
