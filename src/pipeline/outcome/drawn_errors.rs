//! Cache of bootstrapped standard errors, kept in the cache directory of the store and keyed by a hash of the input. It
//! saves seconds whenever a grid is viewed, because each bootstrap has 100,000 draws.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ghostlab_definitions::aggregate::{Aggregation, BOOTSTRAP_DRAWS, Item};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::Result;
use crate::files::sha256;
use ghostlab_store::{Key, Store};

/// Version of the sampling algorithm. Changing it invalidates the cache.
const VERSION: u32 = 1;

/// Cached standard errors of the scores of one evaluation.
pub(super) struct DrawnErrors<'a> {
    store: &'a Store,
    /// Cache file, or `None` if the store has no cache.
    path: Option<PathBuf>,
    known: RefCell<ErrorBits>,
    /// Whether `known` contains standard errors that are not saved yet.
    is_changed: Cell<bool>,
}

/// Bits of each standard error (`f64::to_bits`), by the hash of its input. Bits are stored because JSON cannot
/// represent NaN.
type ErrorBits = BTreeMap<String, u64>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CachedErrors {
    errors: ErrorBits,
    /// SHA-256 of `errors` as JSON.
    check: String,
}

impl CachedErrors {
    fn new(errors: ErrorBits) -> Self {
        let check = sha256::of_bytes(json!(errors).to_string());
        Self { errors, check }
    }
}

/// Reads a cache file. Returns an empty map if the file is missing or damaged.
fn read_cache(store: &Store, path: &Path) -> ErrorBits {
    let found = store.file(path).and_then(|text| serde_json::from_slice::<CachedErrors>(&text).ok());
    let cached = found
        .map(|found| (found.check, CachedErrors::new(found.errors)))
        .filter(|(check, stored)| *check == stored.check);
    cached.map(|(_, stored)| stored.errors).unwrap_or_default()
}

impl<'a> DrawnErrors<'a> {
    /// Opens the cache for the scores on the given tokens.
    pub(super) fn open(store: &'a Store, tokens: &Key) -> Self {
        let path = store.cache_dir().map(|folder| folder.join(format!("{}.errors.json", tokens.hash())));
        let known = path.as_deref().map(|path| read_cache(store, path)).unwrap_or_default();
        Self { store, path, known: RefCell::new(known), is_changed: Cell::new(false) }
    }

    /// Returns [`Aggregation::error`] with as many draws as lm-evaluation-harness uses. A bootstrapped error is read
    /// from the cache if possible.
    ///
    /// # Errors
    /// Propagates errors from [`Aggregation::error`].
    pub(super) fn error(&self, aggregation: Aggregation, items: &[Item]) -> Result<Option<f64>> {
        if !aggregation.needs_bootstrap() {
            return aggregation.error(items, BOOTSTRAP_DRAWS);
        }
        let hash = sha256::of_bytes(format!("{VERSION} {} {BOOTSTRAP_DRAWS} {items:?}", aggregation.name()));
        let known = self.known.borrow().get(&hash).copied();
        if let Some(bits) = known {
            return Ok(Some(f64::from_bits(bits)));
        }
        let error = aggregation.error(items, BOOTSTRAP_DRAWS)?;
        if let Some(error) = error {
            self.known.borrow_mut().insert(hash, error.to_bits());
            self.is_changed.set(true);
        }
        Ok(error)
    }

    /// Saves newly computed standard errors. If writing fails, they are computed again next time.
    pub(super) fn save(&self) {
        let Some(path) = self.path.as_deref().filter(|_| self.is_changed.get()) else { return };
        // Merge the standard errors with those that another process may have saved in the meantime.
        let mut errors = read_cache(self.store, path);
        errors.extend(self.known.borrow().iter().map(|(hash, bits)| (hash.clone(), *bits)));
        if let Ok(text) = serde_json::to_vec(&CachedErrors::new(errors)) {
            self.store.put_file(path, &text).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::stage::{STORE_WORDS, tokens};

    #[test]
    fn bootstrap_error_is_cached_and_recomputed_if_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), STORE_WORDS).unwrap();
        let key = Key::new(tokens::KIND, json!({"seed": 1}), []);
        let items = [-1.5, -0.25, f64::NEG_INFINITY, -3.0].map(Item::Number);
        let sound = [items[0].clone(), items[1].clone(), items[3].clone()];
        let aggregation = Aggregation::Perplexity;
        let expected = aggregation.error(&sound, BOOTSTRAP_DRAWS).unwrap().unwrap();
        let errors = DrawnErrors::open(&store, &key);
        assert_eq!(errors.error(aggregation, &sound).unwrap(), Some(expected));
        errors.save();
        // Replace the cached value with a wrong one, to show that the cache is used.
        let path = errors.path.clone().unwrap();
        let mut known = read_cache(&store, &path);
        assert_eq!(known.values().copied().collect::<Vec<_>>(), [expected.to_bits()]);
        known.values_mut().for_each(|bits| *bits = 7.5_f64.to_bits());
        let text = serde_json::to_string(&CachedErrors::new(known)).unwrap();
        std::fs::write(&path, &text).unwrap();
        let again = DrawnErrors::open(&store, &key);
        assert_eq!(again.error(aggregation, &sound).unwrap(), Some(7.5));
        // Different documents have a different hash, so their error is not in the cache. Errors that are not finite are
        // cached too.
        assert_eq!(
            again.error(aggregation, &sound[..2]).unwrap(),
            aggregation.error(&sound[..2], BOOTSTRAP_DRAWS).unwrap()
        );
        let nan = again.error(aggregation, &items).unwrap().unwrap();
        assert!(!nan.is_finite() && again.known.borrow().values().any(|bits| *bits == nan.to_bits()));
        // A mean needs no draws and thus no cache. A damaged cache file is ignored.
        assert_eq!(
            again.error(Aggregation::Mean, &sound).unwrap(),
            Aggregation::Mean.error(&sound, BOOTSTRAP_DRAWS).unwrap()
        );
        std::fs::write(&path, text.replace("errors", "error")).unwrap();
        assert_eq!(DrawnErrors::open(&store, &key).error(aggregation, &sound).unwrap(), Some(expected));
        std::fs::write(&path, text.replace(&7.5_f64.to_bits().to_string(), "1")).unwrap();
        assert_eq!(DrawnErrors::open(&store, &key).error(aggregation, &sound).unwrap(), Some(expected));
    }
}
