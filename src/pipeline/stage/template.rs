//! Example of a stage, which counts how often each token id occurs. To add a stage, copy this file and replace the
//! counts with your own output.

use std::sync::Arc;

use serde_json::json;

use super::{Cost, Stage};
use crate::corpus::Windows;
use crate::error::{Error, Result};
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

/// Kind of the stored objects. Increase the version whenever the output changes.
pub const KIND: ObjectKind = ObjectKind::new("my-stage", 1);

/// Stage whose objects are verified before use and belong to no family. [`Stage`] lists the other options.
pub const STAGE: Stage = Stage { inodes: |_| 2, ..Stage::new(KIND) };

/// Payload that contains a little-endian `u32` for each token id.
const COUNTS: &str = "counts.u32";

/// Returns the key. It contains everything that affects the output, and the keys of the inputs.
pub fn key(tokens: &Arc<Key>, vocab: usize) -> Key {
    Key::new(KIND, json!({"vocab": vocab}), [("tokens", Arc::clone(tokens))])
}

/// Estimates the cost for the given number of tokens. `is_missing` indicates whether the object is missing.
pub fn cost(tokens: usize, vocab: usize, is_missing: bool) -> Cost {
    let flops = tokens as f64;
    let disk = 4 * vocab as u64;
    let (left, disk) = if is_missing { (flops, disk) } else { (0.0, 0) };
    Cost { separate: flops, shared: flops, left, disk, ..Cost::default() }
}

/// Computes and stores the counts.
///
/// # Errors
/// Fails with kind `Job` if a token is outside the vocabulary. Also fails if the store cannot be written.
pub fn make(store: &Store, key: &Key, windows: &Windows, vocab: usize) -> Result<()> {
    let mut counts = vec![0_u32; vocab];
    for &id in &windows.ids {
        let count = counts.get_mut(id as usize);
        *count.ok_or_else(|| Error::job("token id outside the vocabulary").found(id.to_string()))? += 1;
    }
    let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    store.put(key, 0.0, &[(COUNTS, &bytes)]).map(drop)
}

/// Reads the stored counts.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read(object: &StoredObject) -> Result<Vec<u32>> {
    Ok(object.read(COUNTS)?.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
}

#[cfg(test)]
mod tests {
    use ghostlab_store::Lookup;

    use super::*;
    use crate::pipeline::stage::{STORE_WORDS, tokens};

    #[test]
    fn stored_counts_round_trip_and_depend_on_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), STORE_WORDS).unwrap();
        let tokens = |seed: u64| Arc::new(Key::new(tokens::KIND, json!({"seed": seed}), []));
        let windows = Windows { ids: vec![2, 0, 2], length: 3, starts: Vec::new(), corpus_tokens: 3, bytes: 3 };
        make(&store, &key(&tokens(1), 4), &windows, 4).unwrap();
        let Lookup::Intact(object) = store.get(&key(&tokens(1), 4)) else { panic!("the object is not intact") };
        assert_eq!(read(&object).unwrap(), [1, 0, 2, 0], "counted by hand");
        assert!(!store.has(&key(&tokens(2), 4)));
        assert!(make(&store, &key(&tokens(1), 2), &windows, 2).is_err());
        assert_eq!((cost(3, 4, true).disk, cost(3, 4, false).disk), (16, 0));
    }
}
