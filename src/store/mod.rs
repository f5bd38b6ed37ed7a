//! Floor 0: artifacts stored under the hash of what made them (design §9).
//!
//! `<root>/<kind>-v<stage version>/<2 hex>/<sha256>/` holds `meta.json` and payload files. An artifact is written to a
//! private folder and renamed into its place, so that it is whole or not there; a reader checks the hash of every
//! payload that it uses. Keys hold contents and settings, never a path, a name or a time. Beside the artifacts lie the
//! journals of unfinished work (`journals/`), what living processes have claimed and read (`claims/`, `uses/`,
//! `processes/`), what was tried in vain (`attempts/`), private folders (`drafts/`), remembered hashes of large inputs
//! (`index/`), records of runs (`runs/`), outlines of what they do (`plans/`), what was handed to a scheduler
//! (`submissions/`) and the programs that its jobs run (`programs/`).

mod artifact;
mod attempts;
mod disk;
mod draft;
mod index;
mod inventory;
mod journal;
mod key;
#[cfg(test)]
pub(crate) mod network;
#[cfg(test)]
pub(crate) mod played_time;
mod process;
mod uses;
mod worker;

pub use artifact::{Meta, StoredArtifact};
pub use attempts::Attempt;
pub use disk::Mapped;
pub use draft::{Draft, Left, Payload};
pub use index::Input;
pub use inventory::{Found, InventoryItem};
pub use journal::{Journal, JournalRecord};
pub use key::{About, ArtifactKind, Key, canonical};
pub use process::Process;
pub use worker::{CALIBRATING, ClaimResult, Lease};

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};
use disk::{Disk, SystemDisk};
use uses::Uses;
use worker::Worker;

/// A folder of artifacts.
#[derive(Clone)]
pub struct Store {
    root: PathBuf,
    worker: Arc<OnceLock<Worker>>,
    disk: Arc<dyn Disk>,
    uses: Arc<Uses>,
    /// Hash every input anew.
    rehash: bool,
    /// What every artifact's record says of who made it.
    made: Arc<dyn Fn() -> Value + Send + Sync>,
}

/// What stands under a key.
#[derive(Debug)]
pub enum Lookup {
    Absent,
    /// Something is there, but it is not what was once written. It is never used; writing the key again replaces it.
    Damaged(Error),
    Whole(StoredArtifact),
}

/// The layout of the folder; a newer program may write another one.
const FORMAT: u64 = 1;

impl Store {
    /// Opens a store to read and write.
    ///
    /// # Errors
    /// Exit code 3: the folder cannot be made or written to, or a newer program has written it.
    pub fn open(root: &Path) -> Result<Self> {
        let refused = |error: &std::io::Error| {
            Error::missing("the store cannot be written to")
                .at(root.display().to_string())
                .found(error.to_string())
                .hint("name another folder with --store")
        };
        let store = Self::look_at(root)?;
        fs::create_dir_all(store.drafts()).map_err(|error| refused(&error))?;
        tempfile::tempfile_in(store.drafts()).map_err(|error| refused(&error))?;
        let format = root.join("store.json");
        if !store.disk.exists(&format) {
            let text = serde_json::json!({"format": FORMAT}).to_string();
            store.disk.replace(&format, text.as_bytes()).map_err(|error| refused(&error))?;
        }
        store.sweep();
        Ok(store)
    }

    /// Opens a store to read; it may be absent.
    ///
    /// # Errors
    /// Exit code 3: a newer program has written it.
    pub fn look_at(root: &Path) -> Result<Self> {
        Self::on(Arc::<SystemDisk>::default(), root)
    }

    /// The same on some disk.
    pub(crate) fn on(disk: Arc<dyn Disk>, root: &Path) -> Result<Self> {
        if let Ok(text) = disk.read(&root.join("store.json")) {
            let format = serde_json::from_slice::<Value>(&text).ok().and_then(|value| value["format"].as_u64());
            if format != Some(FORMAT) {
                let found = format.map_or("no format at all".to_string(), |format| format!("format {format}"));
                return Err(Error::missing("the store was written by another version of this program")
                    .at(root.join("store.json").display().to_string())
                    .expected(format!("format {FORMAT}"))
                    .found(found)
                    .hint("use the newer program, or name another folder with --store"));
            }
        }
        let (worker, uses) = (Arc::default(), Arc::new(Uses::new(Arc::clone(&disk))));
        Ok(Self { root: root.to_owned(), worker, disk, uses, rehash: false, made: Arc::new(|| Value::Null) })
    }

    /// Whether every input is to be hashed anew, whatever is remembered of it.
    #[must_use]
    pub fn rehashing(mut self, rehash: bool) -> Self {
        self.rehash = rehash;
        self
    }

    /// What the record of every artifact is to say of who made it, asked for when it is written.
    #[must_use]
    pub fn signed(mut self, made: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        self.made = Arc::new(made);
        self
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where unfinished artifacts are written.
    fn drafts(&self) -> PathBuf {
        self.root.join("drafts")
    }

    /// Where a key's artifact lies, or would.
    pub fn place(&self, key: &Key) -> PathBuf {
        self.place_of(key.kind(), key.hash())
    }

    fn place_of(&self, kind: ArtifactKind, hash: &str) -> PathBuf {
        self.root.join(kind.folder()).join(hash.get(..2).unwrap_or_default()).join(hash)
    }

    /// The artifact of a key, with every payload's hash checked.
    pub fn get(&self, key: &Key) -> Lookup {
        if self.worker.get().is_some() {
            // Where that cannot be noted, clearing up beside this process may take it away: it is made anew then.
            self.reserve([key.hash()]).ok();
        }
        match self.look(key) {
            Lookup::Whole(artifact) => match artifact.verify() {
                Ok(()) => Lookup::Whole(artifact),
                Err(error) => Lookup::Damaged(error),
            },
            other => other,
        }
    }

    /// The artifact of a key, with its record and its payloads' sizes checked; [`StoredArtifact::read`] checks hashes.
    pub fn look(&self, key: &Key) -> Lookup {
        let folder = self.place(key);
        if !self.disk.exists(&folder) {
            return Lookup::Absent;
        }
        match StoredArtifact::open(Arc::clone(&self.disk), folder, Some(key)) {
            Ok(artifact) => Lookup::Whole(artifact),
            Err(error) => Lookup::Damaged(error),
        }
    }

    /// Whether something stands under a key: what is cheapest to ask.
    pub fn has(&self, key: &Key) -> bool {
        self.disk.exists(&self.place(key))
    }

    /// The hashes of all artifacts of a kind: a few hundred listings, however many are asked for.
    pub fn present(&self, kind: ArtifactKind) -> HashSet<String> {
        let folder = self.root.join(kind.folder());
        self.disk.list(&folder).iter().flat_map(|prefix| self.disk.list(&folder.join(prefix))).collect()
    }

    /// Whether something stands under the hash of a key.
    pub fn has_hash(&self, kind: ArtifactKind, hash: &str) -> bool {
        self.disk.exists(&self.place_of(kind, hash))
    }

    /// A private folder for the payloads of a new artifact; nothing is visible before [`Store::commit`].
    pub fn draft(&self) -> Result<Draft> {
        Draft::new(Arc::clone(&self.disk), &self.drafts(), self.worker()?.id())
    }

    /// Puts a finished draft under its key. What stands there whole already stays: same key, same content.
    pub fn commit(&self, draft: Draft, key: &Key, seconds: f64) -> Result<StoredArtifact> {
        let place = self.place(key);
        self.reserve([key.hash()])?;
        draft.commit(&place, key, seconds, (self.made)(), || matches!(self.get(key), Lookup::Whole(_)))?;
        StoredArtifact::open(Arc::clone(&self.disk), place, Some(key))
    }

    /// Writes an artifact of one or more small payloads.
    pub fn put(&self, key: &Key, seconds: f64, payloads: &[(&str, &[u8])]) -> Result<StoredArtifact> {
        let mut draft = self.draft()?;
        for (name, bytes) in payloads {
            draft.write(name, bytes)?;
        }
        self.commit(draft, key, seconds)
    }

    /// Claims a piece of work for this process, so that no other does it at the same time.
    pub fn claim(&self, name: &str) -> Result<ClaimResult> {
        Ok(self.worker()?.claim(name))
    }

    /// Whether a claim that was tried a moment ago in vain still stands: cheap to ask of many.
    pub fn still_theirs(&self, name: &str) -> bool {
        self.worker().is_ok_and(|worker| worker.still_theirs(name))
    }

    /// Whether somebody has a claim, by the listing of all claims alone: cheap to ask of many that may be free.
    pub fn seems_theirs(&self, name: &str) -> bool {
        self.worker().is_ok_and(|worker| worker.seems_theirs(name))
    }

    /// A number below `count` that is this process's own: where it begins, so that not all begin at the same.
    pub fn lot(&self, count: usize) -> usize {
        self.worker().map_or(0, |worker| worker.lot(count))
    }

    /// How many operations on the file system this opening of the store has cost.
    pub fn operations(&self) -> u64 {
        self.disk.operations()
    }

    /// Shows the names of all claims, of a moment ago at most.
    pub fn with_claims<T>(&self, look: impl FnOnce(&HashSet<String>) -> T) -> Result<T> {
        Ok(self.worker()?.with_claims(look))
    }

    /// Keeps that a piece of work failed, under the name of its claim or the hash of what could not be made.
    pub fn note_attempt(&self, name: &str, what: &str, reason: &str) {
        if let Ok(worker) = self.worker() {
            attempts::note(&*self.disk, &self.root, name, &Attempt::failed(worker.id(), what, reason));
        }
    }

    /// What was tried in vain of a piece of work, the oldest first.
    pub fn attempts(&self, name: &str) -> Vec<Attempt> {
        attempts::of(&*self.disk, &self.root, name)
    }

    /// All that was tried in vain, by the names of the works.
    pub fn all_attempts(&self) -> BTreeMap<String, Vec<Attempt>> {
        attempts::all(&*self.disk, &self.root)
    }

    /// A piece of work is done, with all its chunks: earlier attempts do not matter any more.
    pub fn forgive(&self, name: &str) {
        attempts::clear(&*self.disk, &self.root, name);
    }

    /// What whoever clears up claims, so that no run begins meanwhile.
    pub const CLEARING: &str = "clearing-up";

    /// Notes what this process will read or make, by hash: nobody clears it away as long as this process lives.
    ///
    /// # Errors
    /// The store cannot be written to.
    pub fn reserve<'k>(&self, hashes: impl IntoIterator<Item = &'k str>) -> Result<()> {
        self.uses.note(&self.root, self.worker()?.id(), hashes)
    }

    /// The hashes of everything that living processes have noted ([`Self::reserve`]).
    pub fn reserved(&self) -> BTreeSet<String> {
        uses::of(&*self.disk, &self.root, &self.living())
    }

    /// The same of all living processes but this one.
    pub fn reserved_by_others(&self) -> Result<BTreeSet<String>> {
        let own = self.worker()?.id();
        let others: Vec<String> = self.living().into_iter().filter(|id| id != own).collect();
        Ok(uses::of(&*self.disk, &self.root, &others))
    }

    /// The private folders of unfinished artifacts.
    pub fn drafts_left(&self) -> Vec<Left> {
        draft::all(&*self.disk, &self.root, &self.drafts())
    }

    /// The journal of a piece of work.
    pub fn journal(&self, name: &str) -> Result<Journal> {
        Ok(Journal::open(Arc::clone(&self.disk), self.root.join("journals").join(name), self.worker()?.id()))
    }

    /// Ends a journal whose work is stored.
    pub fn retire(&self, journal: Journal, stored: impl Fn(&str) -> bool) {
        let living = self.living();
        journal.retire(|owner| !living.iter().any(|id| id == owner), stored);
    }

    /// Leaves a journal whose work another process has stored.
    pub fn leave(&self, journal: Journal) {
        journal.leave();
    }

    /// This process's name in the store.
    pub fn process(&self) -> Result<String> {
        Ok(self.worker()?.id().to_string())
    }

    /// The names of the processes that are not known to be dead.
    pub fn living(&self) -> Vec<String> {
        process::all(&*self.disk, &self.root)
            .into_iter()
            .filter(|known| !known.dead)
            .map(|known| known.process.id)
            .collect()
    }

    /// Where outlines of what runs do lie.
    pub fn plans(&self) -> PathBuf {
        self.root.join("plans")
    }

    /// Where lies what was handed to a scheduler.
    pub fn submissions(&self) -> PathBuf {
        self.root.join("submissions")
    }

    /// Where copies of programs lie that jobs of a scheduler run.
    pub fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// The SHA-256 of an input file; of a large one that has not changed, as it is remembered.
    ///
    /// # Errors
    /// It cannot be read, or is no ordinary file.
    pub fn input(&self, path: &Path) -> Result<Input> {
        index::input(&*self.disk, &self.root.join("index"), path, self.rehash)
    }

    /// What `find` finds out about the content of an input, as it is remembered of a large one. `what` names it.
    ///
    /// # Errors
    /// What `find` refuses.
    pub fn remembered<T: Serialize + DeserializeOwned>(
        &self,
        path: &Path,
        input: &Input,
        what: &str,
        find: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        index::remembered(&*self.disk, &self.root.join("index"), (path, input), what, find)
    }

    /// Where records of runs lie.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// Reads input files with `read`, and sees that what was read is what was hashed.
    ///
    /// # Errors
    /// What `read` refuses; exit code 2, naming the file, where one has changed.
    pub fn guarded<T>(files: &[(&Path, &Input)], read: impl FnOnce() -> Result<T>) -> Result<T> {
        index::guarded(files, read)
    }

    fn worker(&self) -> Result<&Worker> {
        if self.worker.get().is_none() {
            // Of two threads that come here together, one's worker is dropped again.
            let worker = Worker::start(&self.root, Arc::clone(&self.disk))?;
            self.worker.set(worker).ok();
        }
        self.worker.get().ok_or_else(|| Error::job("the store has no worker"))
    }

    /// Removes what dead processes left: drafts, claims, temporary files, and journals of work that is stored; their
    /// records last, because they tell whose the rest is. Other journals stay: they hold work.
    pub fn sweep(&self) {
        let disk = &*self.disk;
        let known = process::all(disk, &self.root);
        worker::sweep_claims(disk, &self.root, &known);
        for left in self.drafts_left().iter().filter(|left| left.dead) {
            disk.remove_folder(&left.folder).ok();
        }
        let living: Vec<&str> =
            known.iter().filter(|known| !known.dead).map(|known| known.process.id.as_str()).collect();
        let dead = |owner: &str| !living.contains(&owner);
        let stored = |hash: &str| ArtifactKind::ALL.iter().any(|&kind| self.has_hash(kind, hash));
        journal::sweep(disk, &self.root.join("journals"), dead, stored);
        uses::sweep(disk, &self.root, &known);
        for known in known.iter().filter(|known| known.dead) {
            disk.remove(&uses::file(&self.root, &known.process.id)).ok();
            disk.remove(&known.record).ok();
        }
        for folder in
            [self.root.clone(), self.drafts(), self.runs(), self.root.join("index"), self.root.join("processes")]
        {
            disk.sweep(&folder);
        }
    }

    /// Puts a small file of its own into the store, whole, whatever stands there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put_file(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let written = self.disk.replace(path, bytes).or_else(|error| match path.parent() {
            Some(folder) if error.kind() == ErrorKind::NotFound => {
                self.disk.make_folder(folder).and_then(|()| self.disk.replace(path, bytes))
            }
            _ => Err(error),
        });
        written.map_err(|error| Error::io("write", path, &error))
    }

    /// Whether a file of its own is there.
    pub fn has_file(&self, path: &Path) -> bool {
        self.disk.exists(path)
    }

    /// A small file of its own.
    pub fn file(&self, path: &Path) -> Option<Vec<u8>> {
        self.disk.read(path).ok()
    }

    /// The small files of a folder of it.
    pub fn files(&self, folder: &Path) -> Vec<Vec<u8>> {
        self.disk.list(folder).into_iter().filter_map(|name| self.disk.read(&folder.join(name)).ok()).collect()
    }

    /// A time that only grows.
    pub(crate) fn now(&self) -> Duration {
        self.disk.now()
    }

    /// Lets some time go by, less where `stop` is set meanwhile.
    pub(crate) fn sleep(&self, time: Duration, stop: &AtomicBool) {
        self.disk.sleep(time, stop);
    }
}

#[cfg(test)]
mod tests;
