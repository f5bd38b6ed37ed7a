//! Objects stored under the hash of what made them (docs/design.md §9).
//!
//! `<root>/<kind>-v<stage version>/<2 hex>/<sha256>/` holds `meta.json` and payload files; where they are small, `<sha256>` is one
//! file, and those that are made by the hundred (scores) share files in `packs/`. An object is written to a
//! private folder and renamed into its place, so that it is whole or not there; a reader checks the hash of every
//! payload that it uses. Keys hold contents and settings, never a path, a name or a time. Beside the objects lie the
//! journals of unfinished work (`journals/`), what living processes have claimed and read (`claims/`, `uses/`,
//! `processes/`), what was tried in vain (`attempts/`), private folders (`drafts/`), remembered hashes of large inputs
//! (`index/`), records of runs (`runs/`), outlines of what they do (`plans/`), what was handed to a scheduler
//! (`submissions/`) and the programs that its jobs run (`programs/`). `store.json` marks it: a folder without it is
//! somebody's own, and nothing of it is touched.

mod attempts;
mod disk;
mod draft;
pub mod fault;
mod index;
mod inventory;
mod journal;
mod key;
mod mark;
mod meta;
mod object;
mod packed;
#[cfg(test)]
mod packed_tests;
mod process;
mod processes;
mod records;
mod shadow;
mod shared;
#[cfg(test)]
#[path = "../tests/simulated/mod.rs"]
mod simulated;
mod small;
mod stray;
mod uses;
mod worker;

pub use attempts::Attempt;
pub use disk::{Disk, Mapped};
pub use draft::{Draft, LeftDraft, Payload};
pub use index::Input;
pub use inventory::{Found, InventoryItem};
pub use journal::{Journal, JournalRecord};
pub use key::{About, Key, ObjectKind, StoreWords, canonical};
pub use meta::Meta;
pub use object::StoredObject;
pub use packed::Packing;
pub use process::Process;
pub use records::DamagedRecord;
pub use shadow::Shadow;
pub use shared::Shared;
pub use stray::Stray;
pub use uses::Pin;
pub use worker::{ClaimResult, Lease};

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[cfg(test)]
extern crate self as ghostlab_store;

use disk::SystemDisk;
use ghostlab_core::error::{Error, Result};
use index::KnownInputs;
use mark::Mark;
use packed::Packs;
use shadow::Scratch;
use uses::Uses;
use worker::Worker;

/// A folder of objects.
#[derive(Clone)]
pub struct Store {
    root: PathBuf,
    words: StoreWords,
    /// A folder of the disk that is to have room for it, where that is not its own.
    room: Option<PathBuf>,
    worker: Arc<OnceLock<Worker>>,
    disk: Arc<dyn Disk>,
    uses: Arc<Uses>,
    /// Objects that lie in files of many.
    packs: Arc<Packs>,
    /// Those of the same kind that do not: programs before this one put each apart.
    apart: Arc<OnceLock<HashSet<String>>>,
    /// Hash every input anew, once.
    rehash: bool,
    /// Inputs that this process has hashed: many grids read the same files.
    inputs: Arc<KnownInputs>,
    /// What every object's record says of who made it.
    made: Arc<dyn Fn() -> Value + Send + Sync>,
    /// Attempts that could not be written: this process at least does not try for ever.
    untold: Arc<Mutex<BTreeMap<String, Vec<Attempt>>>>,
    /// Of a store that is only read: where what is made all the same lies as long as it is open.
    scratch: Option<Arc<Scratch>>,
    /// Whether anything may be remembered there: it is a store already.
    begun: bool,
}

/// What stands under a key.
#[derive(Debug)]
pub enum Lookup {
    Absent,
    /// Something is there, but it is not what was once written. It is never used; writing the key again replaces it.
    Damaged(Error),
    Whole(StoredObject),
}

impl Store {
    /// Opens a store to read and write, and removes what dead processes left there. Where there is none, or an empty folder,
    /// one is begun.
    ///
    /// # Errors
    /// Exit code 3: the folder is somebody's own, cannot be made or written to, or a newer program has written it. Exit code
    /// 5: `store.json` is damaged.
    pub fn open(root: &Path, words: StoreWords) -> Result<Self> {
        let refused = |error: &std::io::Error| {
            Error::missing("the store cannot be written to")
                .at(root.display())
                .found(error)
                .hint("name another folder with --store")
        };
        let mark = match Mark::read(root, words)? {
            Some(mark) => mark,
            None => {
                Mark::new(Shared::Umask).begin(root).map_err(|error| refused(&error))?;
                // Another process may have begun it at the same moment, and otherwise.
                Mark::read(root, words)?.unwrap_or(Mark::new(Shared::Umask))
            }
        };
        let store = Self::on(Arc::new(SystemDisk::new(mark.shared)), root, words);
        store.disk.make_folder(&store.drafts()).map_err(|error| refused(&error))?;
        tempfile::tempfile_in(store.drafts()).map_err(|error| refused(&error))?;
        store.sweep();
        Ok(store)
    }

    /// Opens a store to read; it may be absent. Nothing of it changes but what is remembered of large inputs, where that can be
    /// written. What is made all the same (tokens that a plan counts) lies in a folder of its own, which goes with it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn look_at(root: &Path, words: StoreWords) -> Result<Self> {
        let mark = Mark::read(root, words)?;
        let disk = SystemDisk::new(mark.map(|mark| mark.shared).unwrap_or_default());
        let begun = mark.is_some();
        Ok(Self { scratch: Some(Arc::default()), begun, ..Self::on(Arc::new(disk), root, words) })
    }

    /// A store on some disk: the system's, or one that a test plays.
    pub fn on(disk: Arc<dyn Disk>, root: &Path, words: StoreWords) -> Self {
        let (worker, uses) = (Arc::default(), Arc::new(Uses::new(Arc::clone(&disk))));
        let packs = Arc::new(Packs::new(Arc::clone(&disk), &root.join(words.packed.folder())));
        let made = Arc::new(|| Value::Null);
        Self {
            root: root.to_owned(),
            words,
            room: None,
            worker,
            disk,
            uses,
            packs,
            apart: Arc::default(),
            rehash: false,
            inputs: Arc::default(),
            made,
            untold: Arc::default(),
            scratch: None,
            begun: true,
        }
    }

    /// A folder of the disk that is to have room for what is stored.
    pub fn room(&self) -> &Path {
        self.room.as_deref().unwrap_or(&self.root)
    }

    /// Makes a folder a store, for some people where they are named. Of one that is there it is changed for whom it is, and what
    /// lies in it gets their rights too, as far as it is this user's. For whom it is then.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn init(root: &Path, words: StoreWords, shared: Option<Shared>) -> Result<Shared> {
        let failed = |error: std::io::Error| Error::io("write", &root.join(mark::MARK), &error);
        let before = Mark::read(root, words)?;
        let shared = shared.or(before.map(|mark| mark.shared)).unwrap_or_default();
        match before {
            None => Mark::new(shared).begin(root).map_err(failed)?,
            Some(mark) if mark.shared != shared => Mark::new(shared).replace(root).map_err(failed)?,
            Some(_) => {}
        }
        shared.give_all(root);
        Ok(shared)
    }

    /// Writes a `store.json` that was lost or damaged anew, where all that lies beside it is a store's; whether there was need
    /// to.
    ///
    /// # Errors
    /// Exit code 3: the folder holds something else, or cannot be written to.
    pub fn mend(root: &Path, words: StoreWords) -> Result<bool> {
        Mark::mend(root, words)
    }

    /// Whether every input is to be hashed anew, whatever is remembered of it.
    #[must_use]
    pub fn rehashing(mut self, rehash: bool) -> Self {
        self.rehash = rehash;
        self
    }

    /// What the record of every object is to say of who made it, asked for when it is written.
    #[must_use]
    pub fn signed(mut self, made: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        self.made = Arc::new(made);
        self
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where unfinished objects are written.
    fn drafts(&self) -> PathBuf {
        self.root.join("drafts")
    }

    /// Where a key's object lies, or would, that is not in a file of many.
    fn place(&self, key: &Key) -> PathBuf {
        self.place_of(key.kind(), key.hash())
    }

    fn place_of(&self, kind: ObjectKind, hash: &str) -> PathBuf {
        self.root.join(kind.folder()).join(hash.get(..2).unwrap_or_default()).join(hash)
    }

    /// The object of a key, with every payload's hash checked.
    pub fn get(&self, key: &Key) -> Lookup {
        if self.worker.get().is_some() {
            // Where that cannot be noted, clearing up beside this process may take it away: it is made anew then.
            self.reserve([key.hash()]).ok();
        }
        match self.look(key) {
            Lookup::Whole(object) => match object.verify() {
                Ok(()) => Lookup::Whole(object),
                Err(error) => Lookup::Damaged(error),
            },
            other => other,
        }
    }

    /// The object of a key, with its record and its payloads' sizes checked; [`StoredObject::read`] checks hashes.
    pub fn look(&self, key: &Key) -> Lookup {
        if let Some(made) = self.made_here().filter(|made| made.has(key)) {
            return made.look(key);
        }
        let Some(standing) = self.standing(key.kind(), key.hash()) else { return Lookup::Absent };
        match self.opened(key.hash(), &standing) {
            Ok(object) => Lookup::Whole(object),
            Err(error) => Lookup::Damaged(error),
        }
    }

    /// Whether something stands under a key: what is cheapest to ask.
    pub fn has(&self, key: &Key) -> bool {
        self.has_hash(key.kind(), key.hash()) || self.passing(key)
    }

    /// Whether what stands under a key goes again with this opening of a store that is only read.
    pub fn passing(&self, key: &Key) -> bool {
        self.made_here().is_some_and(|made| made.has(key))
    }

    /// Where what is made here is kept, if anything was, of a store that is only read.
    fn made_here(&self) -> Option<&Self> {
        self.scratch.as_deref()?.made()
    }

    /// Where what is made is kept: here, or beside a store that is only read.
    fn writer(&self) -> Result<&Self> {
        self.scratch.as_deref().map_or(Ok(self), |scratch| scratch.store(self.words))
    }

    /// The hashes of all objects of a kind: a few hundred listings, however many are asked for.
    pub fn present(&self, kind: ObjectKind) -> HashSet<String> {
        let mut present = self.listed(kind);
        if self.among_many(kind) {
            present.extend(self.packs.hashes());
        }
        present.extend(self.made_here().into_iter().flat_map(|made| made.present(kind)));
        present
    }

    /// The same of those that do not lie in files of many.
    fn listed(&self, kind: ObjectKind) -> HashSet<String> {
        let folder = self.root.join(kind.folder());
        let groups = self.disk.list(&folder).into_iter().filter(|name| name != Packs::FOLDER);
        groups.flat_map(|prefix| self.disk.list(&folder.join(prefix))).collect()
    }

    /// Whether something stands under the hash of a key.
    pub fn has_hash(&self, kind: ObjectKind, hash: &str) -> bool {
        self.standing(kind, hash).is_some()
    }

    /// A private folder for the payloads of a new object; nothing is visible before [`Store::commit`].
    pub fn draft(&self) -> Result<Draft> {
        let to = self.writer()?;
        Draft::new(Arc::clone(&to.disk), &to.drafts(), to.worker()?.id())
    }

    /// Puts a finished draft under its key. What stands there whole already stays: same key, same content.
    pub fn commit(&self, draft: Draft, key: &Key, seconds: f64) -> Result<StoredObject> {
        let to = self.writer()?;
        let place = to.place(key);
        to.reserve([key.hash()])?;
        draft.commit(&place, key, seconds, (self.made)(), || matches!(to.get(key), Lookup::Whole(_)))?;
        StoredObject::open(Arc::clone(&to.disk), place, Some(key.hash()))
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
    pub fn start_offset(&self, count: usize) -> usize {
        self.worker().map_or(0, |worker| worker.start_offset(count))
    }

    /// How many operations on the file system this opening of the store has cost.
    pub fn operations(&self) -> u64 {
        self.disk.operations()
    }

    /// Shows the names of all claims, of a moment ago at most.
    pub fn with_claims<T>(&self, look: impl FnOnce(&BTreeSet<String>) -> T) -> Result<T> {
        Ok(self.worker()?.with_claims(look))
    }

    /// Keeps that a piece of work failed, under the name of its claim or the hash of what could not be made.
    pub fn note_attempt(&self, name: &str, what: &str, reason: &str) {
        let Ok(worker) = self.worker() else { return };
        let attempt = Attempt::failed(worker.id(), what, reason);
        if attempts::note(&*self.disk, &self.root, name, &attempt).is_err() {
            self.untold().entry(name.to_owned()).or_default().push(attempt);
        }
    }

    fn untold(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Attempt>>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece of work has gone on: what processes died at before was not what is left.
    pub fn forgive_deaths(&self, name: &str) {
        attempts::clear_deaths(&*self.disk, &self.root, name);
    }

    /// What was tried in vain of a piece of work, the oldest first.
    pub fn attempts(&self, name: &str) -> Vec<Attempt> {
        let mut all = attempts::of(&*self.disk, &self.root, name);
        all.extend(self.untold().get(name).into_iter().flatten().cloned());
        all
    }

    /// All that was tried in vain, by the names of the works.
    pub fn all_attempts(&self) -> BTreeMap<String, Vec<Attempt>> {
        attempts::all(&*self.disk, &self.root)
    }

    /// A piece of work is done, with all its chunks: earlier attempts do not matter any more.
    pub fn clear_attempts(&self, name: &str) {
        self.untold().retain(|of, _| !of.starts_with(name));
        attempts::clear(&*self.disk, &self.root, name);
    }

    /// What whoever clears up claims, so that no run begins meanwhile.
    pub const CLEARING: &str = "clearing-up";

    /// Notes what this process will read or make, by hash: nobody clears it away as long as this process lives.
    ///
    /// # Errors
    /// The store cannot be written to.
    pub fn reserve<'k>(&self, hashes: impl IntoIterator<Item = &'k str>) -> Result<()> {
        let to = self.writer()?;
        to.uses.note(&to.root, to.worker()?.id(), hashes)
    }

    /// Keeps some objects from [`Self::discard_unused`] by other parts of this process.
    #[must_use]
    pub fn pin(&self, keys: impl IntoIterator<Item = Key>) -> Pin {
        self.uses.pin(keys.into_iter().map(|key| key.hash().to_owned()).collect())
    }

    /// Removes what stands under some keys, but for what other processes, or other parts of this one, have noted to use.
    ///
    /// # Errors
    /// The store cannot be written to.
    pub fn discard_unused(&self, keys: &[Key]) -> Result<()> {
        let there: Vec<&Key> = keys.iter().filter(|key| self.has(key)).collect();
        if there.is_empty() {
            return Ok(());
        }
        let hashes = there.iter().map(|key| key.hash());
        let unused = uses::noted_by_none(&*self.disk, &self.root, &self.others()?, hashes);
        self.uses.while_pinned(|is_pinned| {
            let mut gone = there.iter().filter(|key| unused.contains(key.hash()) && !is_pinned(key.hash()));
            gone.try_for_each(|key| self.discard(key))
        })
    }

    /// The hashes of everything that living processes have noted ([`Self::reserve`]).
    pub fn reserved(&self) -> BTreeSet<String> {
        uses::of(&*self.disk, &self.root, &self.living())
    }

    /// The same of all living processes but this one.
    pub fn reserved_by_others(&self) -> Result<BTreeSet<String>> {
        Ok(uses::of(&*self.disk, &self.root, &self.others()?))
    }

    /// All living processes but this one.
    fn others(&self) -> Result<Vec<String>> {
        let own = if self.scratch.is_some() { "" } else { self.worker()?.id() };
        Ok(self.living().into_iter().filter(|id| id != own).collect())
    }

    /// The private folders of unfinished objects.
    pub fn drafts_left(&self) -> Vec<LeftDraft> {
        draft::all(&*self.disk, &self.root, &self.drafts())
    }

    /// The journal of a piece of work.
    pub fn journal(&self, name: &str) -> Result<Journal> {
        let to = self.writer()?;
        Ok(Journal::open(Arc::clone(&to.disk), to.root.join("journals").join(name), to.worker()?.id()))
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
        processes::all(&*self.disk, &self.root)
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
        // A folder that is no store yet is left as it is.
        let index = self.memory();
        self.inputs.input(path, || index::input(&*self.disk, index.as_deref(), path, self.rehash))
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
        let index = self.memory();
        self.inputs.found(input, what, || index::remembered(&*self.disk, index.as_deref(), (path, input), what, find))
    }

    /// Where things are remembered that save work, and nothing else; none where a folder is no store yet.
    pub fn memory(&self) -> Option<PathBuf> {
        self.begun.then(|| self.root.join("index"))
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
        if self.scratch.is_some() {
            return self.writer()?.worker();
        }
        if self.worker.get().is_none() {
            // Of two threads that come here together, one's worker is dropped again.
            let worker = Worker::start(&self.root, self.words, Arc::clone(&self.disk), Arc::clone(&self.uses))?;
            self.worker.set(worker).ok();
        }
        self.worker.get().ok_or_else(|| Error::job("the store has no worker"))
    }

    /// Removes what dead processes left: drafts, claims, temporary files, and journals of work that is stored; their
    /// records last, because they tell whose the rest is. Other journals stay: they hold work.
    pub fn sweep(&self) {
        if self.scratch.is_some() {
            return;
        }
        let disk = &*self.disk;
        let known = processes::all(disk, &self.root);
        worker::sweep_claims(disk, &self.root, self.words, &known);
        for left in self.drafts_left().iter().filter(|left| left.dead) {
            disk.remove_folder(&left.folder).ok();
        }
        let living: Vec<&str> =
            known.iter().filter(|known| !known.dead).map(|known| known.process.id.as_str()).collect();
        let dead = |owner: &str| !living.contains(&owner);
        let stored = |hash: &str| self.words.kinds.iter().any(|&kind| self.has_hash(kind, hash));
        journal::sweep(disk, &self.root.join("journals"), dead, stored);
        uses::sweep(disk, &self.root, &known);
        for known in known.iter().filter(|known| known.dead) {
            disk.remove(&uses::file(&self.root, &known.process.id)).ok();
            // What is no file is none of ours: `cache verify` names it.
            if known.is_file {
                disk.remove(&known.record).ok();
            }
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

    /// Makes a folder of its own.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make_folder(&self, path: &Path) -> Result<()> {
        self.disk.make_folder(path).map_err(|error| Error::io("create", path, &error))
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
    pub fn now(&self) -> Duration {
        self.disk.now()
    }

    /// Lets some time go by, less where `stop` is set meanwhile.
    pub fn sleep(&self, time: Duration, stop: &AtomicBool) {
        self.disk.sleep(time, stop);
    }
}

#[cfg(test)]
mod tests;
