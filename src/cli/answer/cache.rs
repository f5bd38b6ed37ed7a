//! Output of `ghostlab cache`, which lists, verifies and garbage-collects the store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cluster::FrozenProgram;
use crate::error::{Error, ErrorParts, Result};
use ghostlab_store::{AbandonedDraft, DamagedEntry, InventoryItem, Store};

/// Totals for the artifacts of one kind and version.
#[derive(Serialize, JsonSchema)]
pub(crate) struct KindTotals {
    /// Kind and version, such as `scores-v3`.
    pub(crate) stage: String,
    /// Number of artifacts.
    pub(crate) artifacts: usize,
    /// Total size in bytes.
    pub(crate) bytes: u64,
    /// Total compute time of the artifacts, in seconds.
    pub(crate) seconds: f64,
}

impl KindTotals {
    pub(crate) fn by_kind(entries: &[InventoryItem]) -> Vec<Self> {
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

/// State of a stored object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ArtifactState {
    /// Intact: all payloads have the recorded sizes.
    Whole,
    /// Damaged: the content differs from what was written.
    Damaged,
    /// Written with an earlier version of its kind or of an input's kind.
    OtherVersion,
    /// Written by a newer version of the program. Such objects are left untouched.
    LaterVersion,
}

impl ArtifactState {
    pub(crate) fn from_item(entry: &InventoryItem) -> Self {
        match &entry.object {
            Err(_) => Self::Damaged,
            Ok(_) if entry.is_newer_version() => Self::LaterVersion,
            Ok(_) if !entry.is_current() => Self::OtherVersion,
            Ok(_) => Self::Whole,
        }
    }
}

/// Output of `cache ls`: contents of the store.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CacheLsAnswer {
    /// Directory of the store.
    pub(crate) store: String,
    /// Totals by kind and version.
    pub(crate) stages: Vec<StageTotals>,
    /// All artifacts, sorted by kind and key.
    pub(crate) artifacts: Vec<StoredArtifact>,
    /// Journals of unfinished work, from which a run resumes.
    pub(crate) journals: FileTotals,
    /// Drafts of objects that are being written.
    pub(crate) drafts: FileTotals,
    /// Drafts left by dead processes. The next run removes them.
    pub(crate) dead_drafts: FileTotals,
    /// Frozen copies of the program for scheduler jobs.
    pub(crate) programs: FileTotals,
}

/// Totals and states for the artifacts of one kind and version.
#[derive(Serialize, JsonSchema)]
pub(crate) struct StageTotals {
    #[serde(flatten)]
    pub(crate) sum: KindTotals,
    /// Distinct states of the artifacts.
    pub(crate) states: Vec<ArtifactState>,
}

/// Stored artifact.
#[derive(Serialize, JsonSchema)]
pub(crate) struct StoredArtifact {
    /// SHA-256 of the artifact's key, in hexadecimal.
    pub(crate) key: String,
    /// Kind and version, such as `scores-v3`.
    pub(crate) stage: String,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Compute time in seconds; 0 if unknown.
    pub(crate) seconds: f64,
    pub(crate) state: ArtifactState,
}

/// Number and total size of a set of files or directories.
#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct FileTotals {
    /// Number of entries.
    pub(crate) count: usize,
    /// Total size in bytes.
    pub(crate) bytes: u64,
}

impl FileTotals {
    pub(crate) fn from_sizes(sizes: impl Iterator<Item = u64>) -> Self {
        sizes.fold(Self::default(), |sum, bytes| Self { count: sum.count + 1, bytes: sum.bytes + bytes })
    }
}

impl CacheLsAnswer {
    pub(crate) fn new(store: &Store) -> Self {
        let entries = store.entries();
        let stages = KindTotals::by_kind(&entries).into_iter().map(|sum| {
            let states = entries.iter().filter(|entry| entry.stage == sum.stage).map(ArtifactState::from_item);
            let states = states.collect::<std::collections::BTreeSet<ArtifactState>>().into_iter().collect();
            StageTotals { states, sum }
        });
        let (dead, living): (Vec<AbandonedDraft>, Vec<AbandonedDraft>) =
            store.abandoned_drafts().into_iter().partition(|draft| draft.dead);
        Self {
            store: store.root().display().to_string(),
            stages: stages.collect(),
            artifacts: entries
                .iter()
                .map(|entry| StoredArtifact {
                    key: entry.hash.clone(),
                    stage: entry.stage.clone(),
                    bytes: entry.bytes(),
                    seconds: entry.seconds(),
                    state: ArtifactState::from_item(entry),
                })
                .collect(),
            journals: FileTotals::from_sizes(store.journals().into_iter().map(|(_, bytes)| bytes)),
            drafts: FileTotals::from_sizes(living.iter().map(|draft| draft.bytes)),
            dead_drafts: FileTotals::from_sizes(dead.iter().map(|draft| draft.bytes)),
            programs: FileTotals::from_sizes(FrozenProgram::all(store).iter().map(|program| program.bytes)),
        }
    }
}

/// Output of `cache verify`. The exit code is 5 if damaged objects remain.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CacheVerifyAnswer {
    /// Directory of the store.
    pub(crate) store: String,
    /// Number of artifacts checked.
    pub(crate) artifacts: usize,
    /// Damaged artifacts.
    pub(crate) damaged: Vec<DamagedArtifact>,
    /// Entries of the wrong type, such as pipes, devices, or directories in place of files.
    pub(crate) strays: Vec<DamagedFile>,
    /// Damaged records of runs and plans.
    pub(crate) records: Vec<DamagedFile>,
    /// Path of the lost or damaged `store.json` that was rewritten; null if it was intact.
    #[schemars(with = "Option<String>")]
    pub(crate) mended: Option<PathBuf>,
    /// Whether damaged objects were removed.
    pub(crate) removed: bool,
}

/// Damaged file, or file that does not belong to the store.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DamagedFile {
    /// Error that names the path and describes the damage.
    #[schemars(with = "ErrorParts")]
    pub(crate) error: Error,
    /// Whether the file was removed.
    pub(crate) removed: bool,
}

impl DamagedFile {
    /// Removes the entry if `repair` is set. If it cannot be removed, the error is that of the removal.
    fn new(entry: DamagedEntry, repair: bool) -> Self {
        match if repair { entry.remove() } else { Ok(()) } {
            Ok(()) => Self { error: entry.error, removed: repair },
            Err(error) => Self { error, removed: false },
        }
    }
}

/// Damaged artifact.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DamagedArtifact {
    /// SHA-256 of the artifact's key, in hexadecimal.
    pub(crate) key: String,
    /// Kind and version, such as `scores-v3`.
    pub(crate) stage: String,
    /// Error that describes the damage.
    #[schemars(with = "ErrorParts")]
    pub(crate) error: Error,
}

impl CacheVerifyAnswer {
    /// Verifies the hashes of all artifacts. Removes damaged artifacts and files if `repair` is set.
    pub(crate) fn new(store: &Store, repair: bool, mended: Option<PathBuf>) -> Result<Self> {
        let entries = store.entries();
        let artifacts = entries.len();
        let found: Vec<(InventoryItem, DamagedArtifact)> = entries
            .into_par_iter()
            .filter_map(|entry| {
                let error = match &entry.object {
                    Err(error) => error.clone(),
                    Ok(artifact) => artifact.verify().err()?,
                };
                let damaged = DamagedArtifact { key: entry.hash.clone(), stage: entry.stage.clone(), error };
                Some((entry, damaged))
            })
            .collect();
        let (bad, damaged): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        if repair {
            store.remove_all(&bad)?;
        }
        let strays = store.unknown_entries().into_iter().map(|stray| DamagedFile::new(stray, repair)).collect();
        let records = store.damaged_records().into_iter().map(|record| DamagedFile::new(record, repair)).collect();
        let store = store.root().display().to_string();
        Ok(Self { store, artifacts, damaged, strays, records, mended, removed: repair })
    }

    /// Returns whether no damaged objects, files or records remain.
    pub(crate) fn is_intact(&self) -> bool {
        (self.removed || self.damaged.is_empty()) && self.strays.iter().chain(&self.records).all(|stray| stray.removed)
    }
}

/// Output of `cache gc`: objects to delete.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CacheGcAnswer {
    /// Directory of the store.
    pub(crate) store: String,
    /// Number of artifacts kept because an active run wrote them or will read them.
    pub(crate) in_use: usize,
    /// Artifacts to remove, by kind and version.
    pub(crate) going: Vec<KindTotals>,
    /// Drafts left by dead processes, to be removed.
    pub(crate) dead_drafts: FileTotals,
    /// Frozen copies of the program to remove, because their scheduler jobs have ended.
    pub(crate) programs: FileTotals,
    /// Whether the objects were deleted. JSON output never prompts, so deletion requires `--yes`.
    pub(crate) deleted: bool,
}

/// Output of `cache path`: location of an artifact.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CachePathAnswer {
    /// SHA-256 of the artifact's key, in hexadecimal.
    pub(crate) key: String,
    /// Kind and version, such as `scores-v3`.
    pub(crate) stage: String,
    /// Directory of the artifact.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    #[schemars(with = "String")]
    pub(crate) folder: PathBuf,
}
