//! Up-to-date check: a command whose inputs and outputs have not changed returns its cached result.
//!
//! The SHA-256 hashes of all inputs, stored objects and outputs are compared with cached hashes. Large files are hashed
//! again only if they changed since the store cached their hash.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::files::{regular, sha256};
use crate::machine;
use crate::pipeline::plan::Plan;
use ghostlab_store::{Store, canonical};

/// Up-to-date check of one command: the path of its cache entry, and a hash of its inputs.
pub struct UpToDateCheck<'a> {
    store: &'a Store,
    path: PathBuf,
    inputs_hash: String,
}

#[derive(Serialize, Deserialize)]
struct FinishedRecord {
    /// Hash of the inputs.
    made_of: String,
    /// SHA-256 of each output file, keyed by path.
    files: BTreeMap<String, String>,
    #[serde(rename = "said")]
    answer: Value,
    /// Checksum of the other fields.
    check: String,
}

impl FinishedRecord {
    fn check(&self) -> String {
        sha256::of_bytes(format!("{} {} {}", self.made_of, json!(self.files), canonical(&self.answer)))
    }
}

impl<'a> UpToDateCheck<'a> {
    /// Creates the check for the result called `name`, which is computed from `inputs`. Returns `None` if the store has
    /// no cache directory.
    pub fn new(store: &'a Store, name: &str, inputs: &Value) -> Option<Self> {
        let program = std::env::current_exe().and_then(std::fs::metadata).ok()?;
        let written = program.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let program = json!([machine::program_version(), program.len(), written.as_nanos().to_string()]);
        let path = store.cache_dir()?.join(format!("{}.finished.json", sha256::of_bytes(name)));
        Some(Self { store, path, inputs_hash: sha256::of_bytes(canonical(&json!([program, inputs]))) })
    }

    /// Creates a check that also covers the stored objects of a plan. Returns `None` if one of them is missing.
    pub fn from_plan(store: &'a Store, name: &str, plan: &Plan<'_>, extra: &Value) -> Option<Self> {
        let places = plan.keys().map(|key| store.has(key).then(|| store.object_path(key)));
        let places: BTreeSet<PathBuf> = places.collect::<Option<_>>()?;
        let keys: BTreeSet<&str> = plan.keys().map(|key| key.hash()).collect();
        let objects = hash_paths(store, &places)?;
        let inputs = plan.inputs.hashes_by_path();
        Self::new(store, name, &json!([extra, keys, objects, inputs, plan.engines(), plan.machine()]))
    }

    /// Returns the cached answer if the inputs and the files at `places` have not changed.
    pub fn cached_answer<T: DeserializeOwned>(&self, places: &[&Path]) -> Option<T> {
        let entry: FinishedRecord = serde_json::from_slice(&self.store.file(&self.path)?).ok()?;
        let is_current = entry.made_of == self.inputs_hash && entry.check == entry.check();
        let is_current = is_current && hash_paths(self.store, places)? == entry.files;
        if is_current { serde_json::from_value(entry.answer).ok() } else { None }
    }

    /// Caches the answer and the hashes of the files at `places`. Ignores write errors, because they only lead to a
    /// recomputation.
    pub fn store_answer<T: Serialize>(&self, places: &[&Path], output: &T) {
        let (Some(files), Ok(answer)) = (hash_paths(self.store, places), serde_json::to_value(output)) else { return };
        let entry = FinishedRecord { made_of: self.inputs_hash.clone(), files, answer, check: String::new() };
        let entry = FinishedRecord { check: entry.check(), ..entry };
        if let Ok(text) = serde_json::to_vec(&entry) {
            self.store.put_file(&self.path, &text).ok();
        }
    }
}

/// Minimum size in bytes of a file whose hash may come from the store's cache. Smaller files are hashed every time.
const MIN_CACHED_BYTES: u64 = 1 << 20;

/// Hashes all files at and below `places`, keyed by path. Returns `None` if a file cannot be read.
pub fn hash_paths<P: AsRef<Path>>(
    store: &Store,
    places: impl IntoIterator<Item = P>,
) -> Option<BTreeMap<String, String>> {
    fn add(store: &Store, path: &Path, hashes: &mut BTreeMap<String, String>) -> Option<()> {
        let metadata = path.symlink_metadata().ok()?;
        if !metadata.is_dir() {
            let hash = match metadata.len() {
                0..MIN_CACHED_BYTES => sha256::of_bytes(regular::read(path).ok()?),
                _ => store.input(path).ok()?.sha256().to_owned(),
            };
            hashes.insert(path.display().to_string(), hash);
            return Some(());
        }
        std::fs::read_dir(path).ok()?.try_for_each(|item| add(store, &item.ok()?.path(), hashes))
    }
    let mut all = BTreeMap::new();
    places.into_iter().try_for_each(|path| add(store, path.as_ref(), &mut all))?;
    Some(all)
}
