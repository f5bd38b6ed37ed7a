//! Contents of the store, and the results of checking and clearing it.

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
    /// Time to make them, in seconds.
    pub(crate) seconds: f64,
}

impl KindSum {
    pub(crate) fn of(entries: &[InventoryItem]) -> Vec<Self> {
        let mut stages: BTreeMap<&str, Self> = BTreeMap::new();
        for entry in entries {
            let sum = stages.entry(&entry.stage).or_insert_with(|| Self {
                stage: entry.stage.clone(),
                artifacts: 0,
                bytes: 0,
                seconds: 0.0,
            });
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
    /// Usable: its payloads have the right sizes.
    Whole,
    /// Its content differs from what was written.
    Damaged,
    /// This comes from an earlier version of its stage or of a stage before it, and is kept unchanged.
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

/// Contents of the store.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Listing {
    /// The store's folder.
    pub(crate) store: String,
    /// Indexed by kind and version.
    pub(crate) stages: Vec<ListedStage>,
    /// Each artifact, by kind and key.
    pub(crate) artifacts: Vec<ListedObject>,
    /// Unfinished work, which a run resumes.
    pub(crate) journals: Files,
    /// Objects being written.
    pub(crate) drafts: Files,
    /// Drafts of dead processes; the next run removes them.
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
    /// Time to make it, in seconds; 0 if unknown.
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
            let states = entries.iter().filter(|entry| entry.stage == stage).map(State::of);
            states.collect::<std::collections::BTreeSet<State>>().into_iter().collect()
        };
        let stages = KindSum::of(&entries).into_iter().map(|sum| ListedStage { states: states(&sum.stage), sum });
        let (dead, living): (Vec<LeftDraft>, Vec<LeftDraft>) =
            store.drafts_left().into_iter().partition(|draft| draft.dead);
        Self {
            store: store.root().display().to_string(),
            stages: stages.collect(),
            artifacts: entries
                .iter()
                .map(|entry| ListedObject {
                    key: entry.hash.clone(),
                    stage: entry.stage.clone(),
                    bytes: entry.bytes(),
                    seconds: entry.seconds(),
                    state: State::of(entry),
                })
                .collect(),
            journals: Files::of(store.journals().into_iter().map(|(_, bytes)| bytes)),
            drafts: Files::of(living.iter().map(|draft| draft.bytes)),
            dead_drafts: Files::of(dead.iter().map(|draft| draft.bytes)),
            programs: Files::of(FrozenProgram::all(store).iter().map(|program| program.bytes)),
        }
    }
}

/// Result of checking every byte. The exit code is 5 if damaged objects remain.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Verified {
    /// The store's folder.
    pub(crate) store: String,
    /// Artifacts that were checked.
    pub(crate) artifacts: usize,
    /// Damaged artifacts.
    pub(crate) damaged: Vec<DamagedArtifact>,
    /// Entries of the wrong type: pipes, devices, folders in place of files.
    pub(crate) strays: Vec<DamagedFile>,
    /// Records of runs and plans that are not what was written.
    pub(crate) records: Vec<DamagedFile>,
    /// The lost or damaged `store.json` that was rewritten; null if there was no need.
    #[schemars(with = "Option<String>")]
    pub(crate) mended: Option<PathBuf>,
    /// Whether what is damaged was removed.
    pub(crate) removed: bool,
}

/// A file that is not the store's, or not as it was written.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DamagedFile {
    /// Its path and type.
    pub(crate) error: ErrorParts,
    /// Same as text.
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

/// A damaged artifact.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DamagedArtifact {
    /// The SHA-256 of its key, in hexadecimal digits.
    pub(crate) key: String,
    /// Kind and version: `scores-v3`.
    pub(crate) stage: String,
    /// How it is damaged.
    pub(crate) error: ErrorParts,
    /// Same as text.
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
        let found: Vec<(InventoryItem, DamagedArtifact)> = entries
            .into_par_iter()
            .filter_map(|entry| {
                let (error, text) = match &entry.found {
                    Found::Damaged(error) => describe(error),
                    Found::Whole(artifact) => describe(&artifact.verify().err()?),
                };
                let key = entry.hash.clone();
                let stage = entry.stage.clone();
                Some((entry, DamagedArtifact { key, stage, error, text }))
            })
            .collect();
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

    /// Returns whether nothing damaged remains.
    pub(crate) fn is_well(&self) -> bool {
        (self.removed || self.damaged.is_empty()) && self.strays.iter().chain(&self.records).all(|stray| stray.removed)
    }
}

fn describe(error: &Error) -> (ErrorParts, String) {
    (error.parts().clone(), error.to_string())
}

/// What can be removed from the store, or was.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Clearing {
    /// The store's folder.
    pub(crate) store: String,
    /// Artifacts kept because an active run made them or will read them.
    pub(crate) in_use: usize,
    /// Removed artifacts, by kind and version.
    pub(crate) going: Vec<KindSum>,
    /// Drafts of dead processes that are removed.
    pub(crate) dead_drafts: Files,
    /// Programs that were frozen for jobs of a scheduler that are over.
    pub(crate) programs: Files,
    /// Whether it was deleted. Without `--yes` nothing is, and no question is asked.
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
