//! How often each token stands in a text. (A sketch to begin with: put what you store in its place.)

use std::sync::Arc;

use serde_json::json;

use super::{Cost, Stage};
use crate::corpus::Windows;
use crate::error::{Error, Result};
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

/// What gives other bytes than before gets the next version.
pub const KIND: ObjectKind = ObjectKind::new("my-stage", 1);

/// All of it is read before a run relies on it, and it belongs to no family ([`Stage`] says what else there is to say).
pub const STAGE: Stage = Stage { inodes: |_| 2, ..Stage::new(KIND) };

/// A number for each token id, as `u32` in little-endian order.
const COUNTS: &str = "counts.u32";

/// All that its bytes depend on, and the keys of what it is made from.
pub fn key(tokens: &Arc<Key>, vocab: usize) -> Key {
    Key::new(KIND, json!({"vocab": vocab}), [("tokens", Arc::clone(tokens))])
}

/// What it takes, for `tokens` of text, where it is `left` to make.
pub fn cost(tokens: usize, vocab: usize, left: bool) -> Cost {
    let (flops, disk) = (tokens as f64, 4 * vocab as u64);
    let (left, disk) = if left { (flops, disk) } else { (0.0, 0) };
    Cost { separate: flops, shared: flops, left, disk, ..Cost::default() }
}

/// Makes and stores it.
///
/// # Errors
/// Kind `Job`: a token beyond the vocabulary. Else a store that cannot be written.
pub fn make(store: &Store, key: &Key, windows: &Windows, vocab: usize) -> Result<()> {
    let mut counts = vec![0_u32; vocab];
    for &id in &windows.ids {
        let count = counts.get_mut(id as usize);
        *count.ok_or_else(|| Error::job("a token is not in the vocabulary").found(id.to_string()))? += 1;
    }
    let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    store.put(key, 0.0, &[(COUNTS, &bytes)]).map(drop)
}

/// What is stored.
///
/// # Errors
/// Damage.
pub fn read(object: &StoredObject) -> Result<Vec<u32>> {
    Ok(object.read(COUNTS)?.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
}

#[cfg(test)]
mod tests {
    use ghostlab_store::Lookup;

    use super::*;
    use crate::stage::{WORDS, tokens};

    #[test]
    fn what_is_made_is_read_again_and_is_another_thing_for_other_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), WORDS).unwrap();
        let tokens = |seed: u64| Arc::new(Key::new(tokens::KIND, json!({"seed": seed}), []));
        let windows = Windows { ids: vec![2, 0, 2], length: 3, starts: Vec::new(), corpus_tokens: 3, bytes: 3 };
        make(&store, &key(&tokens(1), 4), &windows, 4).unwrap();
        let Lookup::Whole(object) = store.get(&key(&tokens(1), 4)) else { panic!("it was stored") };
        assert_eq!(read(&object).unwrap(), [1, 0, 2, 0], "counted by hand");
        assert!(!store.has(&key(&tokens(2), 4)));
        assert!(make(&store, &key(&tokens(1), 2), &windows, 2).is_err());
        assert_eq!((cost(3, 4, true).disk, cost(3, 4, false).disk), (16, 0));
    }
}
