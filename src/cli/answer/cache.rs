//! What the store holds, and what was checked, found and cleared of it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cluster::FrozenProgram;
use crate::error::{Error, ErrorParts, Result};
use ghostlab_store::{DamagedRecord, Found, InventoryItem, LeftDraft, Store, Stray};

/// The artifacts of one kind and version, together.
#[derive(Serialize, JsonSchema)]
pub(crate) struct KindSum {
    /// Kind and version: `scores-v3`.
    pub(crate) stage: String,
    /// How many there are.
    pub(crate) artifacts: usize,
    /// Their size, in bytes.
    pub(crate) bytes: u64,
    /// What they took to make, in seconds.
    pub(crate) seconds: f64,
}

impl KindSum {
    pub(crate) fn of(entries: &[InventoryItem]) -> Vec<Self> {
        let mut stages: BTreeMap<&str, Self> = BTreeMap::new();
        for entry in entries {
            let stage = || Self { stage: entry.stage.clone(), artifacts: 0, bytes: 0, seconds: 0.0 };
            let sum = stages.entry(&entry.stage).or_insert_with(stage);
            sum.artifacts += 1;
            sum.bytes += entry.bytes();
            sum.seconds += entry.seconds();
        }
        stages.into_values().collect()
    }
}

/// How a stored artifact stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// It can be used; its payloads have the right sizes.
    Whole,
    /// It is not what was written.
    Damaged,
    /// It is of an earlier version of its stage, or of one that it was made from: of an older form, and left alone.
    OtherVersion,
    /// A later program made it; it is left alone.
    LaterVersion,
}

impl State {
    pub(crate) fn of(entry: &InventoryItem) -> Self {
        match &entry.found {
            Found::Damaged(_) => Self::Damaged,
            Found::Whole(_) if entry.later() => Self::LaterVersion,
            Found::Whole(_) if !entry.current() => Self::OtherVersion,
            Found::Whole(_) => Self::Whole,
        }
    }
}

/// What is stored.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Listing {
    /// The store's folder.
    pub(crate) store: String,
    /// By kind and version.
    pub(crate) stages: Vec<ListedStage>,
    /// Each artifact, by kind and key.
    pub(crate) artifacts: Vec<ListedObject>,
    /// Unfinished work; a run goes on from there.
    pub(crate) journals: Files,
    /// What is being written.
    pub(crate) drafts: Files,
    /// What dead processes were writing; the next run removes it.
    pub(crate) dead_drafts: Files,
    /// Programs that were frozen for a scheduler's jobs.
    pub(crate) programs: Files,
}

/// The artifacts of one kind and version, and how they stand.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ListedStage {
    #[serde(flatten)]
    pub(crate) sum: KindSum,
    /// The different states of its artifacts.
    pub(crate) states: Vec<State>,
}

/// A stored artifact.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ListedObject {
    /// The SHA-256 of its key, in hexadecimal digits.
    pub(crate) key: String,
    /// Kind and version: `scores-v3`.
    pub(crate) stage: String,
    /// Its size, in bytes.
    pub(crate) bytes: u64,
    /// What it took to make, in seconds; 0 where that is not known any more.
    pub(crate) seconds: f64,
    pub(crate) state: State,
}

/// Files or folders, together.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct Files {
    /// How many there are.
    pub(crate) count: usize,
    /// Their size, in bytes.
    pub(crate) bytes: u64,
}

impl Files {
    pub(crate) fn of(sizes: impl Iterator<Item = u64>) -> Self {
        sizes.fold(Self::default(), |sum, bytes| Self { count: sum.count + 1, bytes: sum.bytes + bytes })
    }
}

impl Listing {
    pub(crate) fn of(store: &Store) -> Self {
        let entries = store.entries();
        let states = |stage: &str| {
            let own = entries.iter().filter(|entry| entry.stage == stage).map(State::of);
            own.collect::<std::collections::BTreeSet<State>>().into_iter().collect()
        };
        let stages = KindSum::of(&entries).into_iter().map(|sum| ListedStage { states: states(&sum.stage), sum });
        let artifact = |entry: &InventoryItem| ListedObject {
            key: entry.hash.clone(),
            stage: entry.stage.clone(),
            bytes: entry.bytes(),
            seconds: entry.seconds(),
            state: State::of(entry),
        };
        let (dead, living): (Vec<LeftDraft>, Vec<LeftDraft>) =
            store.drafts_left().into_iter().partition(|draft| draft.dead);
        Self {
            store: store.root().display().to_string(),
            stages: stages.collect(),
            artifacts: entries.iter().map(artifact).collect(),
            journals: Files::of(store.journals().into_iter().map(|(_, bytes)| bytes)),
            drafts: Files::of(living.iter().map(|draft| draft.bytes)),
            dead_drafts: Files::of(dead.iter().map(|draft| draft.bytes)),
            programs: Files::of(FrozenProgram::all(store).iter().map(|program| program.bytes)),
        }
    }
}

/// What checking every byte came to. The exit code is 5 where something is damaged and stays.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Verified {
    /// The store's folder.
    pub(crate) store: String,
    /// Artifacts that were checked.
    pub(crate) artifacts: usize,
    /// Those that are not what was written.
    pub(crate) damaged: Vec<DamagedArtifact>,
    /// What lies there and is no file of the store: pipes, devices, folders in the place of files.
    pub(crate) strays: Vec<DamagedFile>,
    /// Records of runs and plans that are not what was written.
    pub(crate) records: Vec<DamagedFile>,
    /// The `store.json` that was lost or damaged and was written anew; null where there was no need to.
    #[schemars(with = "Option<String>")]
    pub(crate) mended: Option<PathBuf>,
    /// Whether what is damaged was removed.
    pub(crate) removed: bool,
}

/// A file that is not the store's, or not as it was written.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DamagedFile {
    /// What lies where.
    pub(crate) error: ErrorParts,
    /// The same in words.
    #[serde(skip)]
    pub(crate) text: String,
    /// Whether it was removed.
    pub(crate) removed: bool,
}

impl DamagedFile {
    fn of_stray(stray: &Stray, repair: bool) -> Self {
        Self::of(stray.error(), if repair { stray.remove() } else { Ok(()) }, repair)
    }

    fn of_record(record: &DamagedRecord, repair: bool) -> Self {
        Self::of(record.error(), if repair { record.remove() } else { Ok(()) }, repair)
    }

    /// Reports a file, or why it could not be removed.
    fn of(error: Error, removed: Result<()>, repair: bool) -> Self {
        let (removed, error) = match removed {
            Ok(()) => (repair, error),
            Err(error) => (false, error),
        };
        Self { error: error.parts().clone(), text: error.to_string(), removed }
    }
}

/// An artifact that is not what was written.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DamagedArtifact {
    /// The SHA-256 of its key, in hexadecimal digits.
    pub(crate) key: String,
    /// Kind and version: `scores-v3`.
    pub(crate) stage: String,
    /// How it is damaged.
    pub(crate) error: ErrorParts,
    /// The same in words.
    #[serde(skip)]
    pub(crate) text: String,
}

impl Verified {
    /// Checks every byte of every artifact, and removes what is damaged where that is wanted.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn of(store: &Store, repair: bool, mended: Option<PathBuf>) -> Result<Self> {
        let entries = store.entries();
        let artifacts = entries.len();
        let told = |error: &Error| (error.parts().clone(), error.to_string());
        let damage = |entry: InventoryItem| {
            let (error, text) = match &entry.found {
                Found::Damaged(error) => told(error),
                Found::Whole(artifact) => told(&artifact.verify().err()?),
            };
            let (key, stage) = (entry.hash.clone(), entry.stage.clone());
            Some((entry, DamagedArtifact { key, stage, error, text }))
        };
        let found: Vec<(InventoryItem, DamagedArtifact)> = entries.into_par_iter().filter_map(damage).collect();
        let (bad, damaged): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        if repair {
            store.remove_all(&bad)?;
        }
        let strays = store.strays().iter().map(|stray| DamagedFile::of_stray(stray, repair)).collect();
        let records = store.damaged_records();
        let records = records.iter().map(|record| DamagedFile::of_record(record, repair)).collect();
        let store = store.root().display().to_string();
        Ok(Self { store, artifacts, damaged, strays, records, mended, removed: repair })
    }

    /// Whether nothing damaged is left.
    pub(crate) fn is_well(&self) -> bool {
        (self.removed || self.damaged.is_empty()) && self.strays.iter().chain(&self.records).all(|of| of.removed)
    }
}

/// What can go of the store, or went.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Clearing {
    /// The store's folder.
    pub(crate) store: String,
    /// Artifacts that stay because a run that goes on made them or will read them.
    pub(crate) in_use: usize,
    /// What goes, by kind and version.
    pub(crate) going: Vec<KindSum>,
    /// What goes of what dead processes left.
    pub(crate) dead_drafts: Files,
    /// Programs that were frozen for jobs of a scheduler that are over.
    pub(crate) programs: Files,
    /// Whether it was deleted. Without `--yes` nothing is, and nobody is asked.
    pub(crate) deleted: bool,
}

/// Where an artifact lies.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Located {
    /// The SHA-256 of its key, in hexadecimal digits.
    pub(crate) key: String,
    /// Kind and version: `scores-v3`.
    pub(crate) stage: String,
    /// Its folder.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub(crate) folder: PathBuf,
}
