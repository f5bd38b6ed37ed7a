//! Hash index of the keys in a mapping. Mappings store their pairs in a list, and building a long list with linear
//! searches would take quadratic time.

use std::collections::HashMap;
use std::hash::RandomState;

/// Hashable key of a mapping.
pub(crate) trait Key: PartialEq {
    /// Computes a hash. Equal keys have equal hashes.
    fn hash(&self, state: &RandomState) -> u64;
}

/// Maximum number of pairs that are searched linearly. In longer lists, keys are hashed.
const MAX_SCANNED_PAIRS: usize = 32;

/// Index of the keys in a list of pairs. The caller owns the list and must pass it to every call.
#[derive(Debug, Default)]
pub(crate) struct KeyIndex {
    /// Hashes of the keys in a long list, or `None` for a short list.
    hashes: Option<Hashes>,
}

#[derive(Debug, Default)]
struct Hashes {
    state: RandomState,
    positions: HashMap<u64, Vec<usize>>,
}

impl KeyIndex {
    pub(crate) fn new<K: Key, T>(pairs: &[(K, T)]) -> Self {
        let mut index = Self::default();
        index.hash_if_long(pairs);
        index
    }

    pub(crate) fn position<K: Key, T>(&self, pairs: &[(K, T)], key: &K) -> Option<usize> {
        let Some(hashes) = &self.hashes else { return pairs.iter().position(|(stored_key, _)| stored_key == key) };
        let candidates = hashes.positions.get(&key.hash(&hashes.state))?;
        candidates.iter().copied().find(|position| pairs[*position].0 == *key)
    }

    /// Replaces the value of an existing key in place, or appends the pair if the key is new.
    pub(crate) fn set<K: Key, T>(&mut self, pairs: &mut Vec<(K, T)>, key: K, value: T) {
        match self.position(pairs, &key) {
            Some(position) => pairs[position].1 = value,
            None => self.push(pairs, key, value),
        }
    }

    /// Appends a pair whose key is not in the list yet.
    pub(crate) fn push<K: Key, T>(&mut self, pairs: &mut Vec<(K, T)>, key: K, value: T) {
        if let Some(hashes) = &mut self.hashes {
            hashes.insert(&key, pairs.len());
        }
        pairs.push((key, value));
        self.hash_if_long(pairs);
    }

    fn hash_if_long<K: Key, T>(&mut self, pairs: &[(K, T)]) {
        if self.hashes.is_none() && pairs.len() > MAX_SCANNED_PAIRS {
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
