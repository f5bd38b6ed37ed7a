//! Keys of a mapping by hash. Mappings keep their pairs in a list, which would take quadratic time to build by scanning.

use std::collections::HashMap;
use std::hash::RandomState;

/// A key of a mapping.
pub(crate) trait Key: PartialEq {
    /// Hashes a key such that equal keys have equal hashes.
    fn hash(&self, state: &RandomState) -> u64;
}

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
    pub(crate) fn of<K: Key, T>(pairs: &[(K, T)]) -> Self {
        let mut index = Self::default();
        index.hash_if_long(pairs);
        index
    }

    /// Returns the position of a key.
    pub(crate) fn position<K: Key, T>(&self, pairs: &[(K, T)], key: &K) -> Option<usize> {
        let Some(hashes) = &self.hashes else { return pairs.iter().position(|(stored_key, _)| stored_key == key) };
        let candidates = hashes.positions.get(&key.hash(&hashes.state))?;
        candidates.iter().copied().find(|position| pairs[*position].0 == *key)
    }

    /// Sets the value of a key, in its place where the key is there.
    pub(crate) fn set<K: Key, T>(&mut self, pairs: &mut Vec<(K, T)>, key: K, value: T) {
        match self.position(pairs, &key) {
            Some(position) => pairs[position].1 = value,
            None => self.push(pairs, key, value),
        }
    }

    /// Adds a pair whose key is not in the list.
    pub(crate) fn push<K: Key, T>(&mut self, pairs: &mut Vec<(K, T)>, key: K, value: T) {
        if let Some(hashes) = &mut self.hashes {
            hashes.insert(&key, pairs.len());
        }
        pairs.push((key, value));
        self.hash_if_long(pairs);
    }

    fn hash_if_long<K: Key, T>(&mut self, pairs: &[(K, T)]) {
        if self.hashes.is_none() && pairs.len() > MAX_SCANNED {
            let mut hashes = Hashes::default();
            pairs.iter().enumerate().for_each(|(position, (key, _))| hashes.insert(key, position));
            self.hashes = Some(hashes);
        }
    }
}

impl Hashes {
    fn insert(&mut self, key: &impl Key, position: usize) {
        self.positions.entry(key.hash(&self.state)).or_default().push(position);
    }
}
