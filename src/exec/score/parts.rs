//! What a scoring holds: its candidates, and chunks on their way from a claim to the disk.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::model::{Program, Trie};
use ghostlab_store::{Journal, JournalRecord, Key, Lease};

/// At most this much work is lost when a run is killed, beside the chunk it is at.
const FLUSH_EVERY: Duration = Duration::from_millis(250);

/// A variant that is being scored.
pub(super) struct ScoredVariant {
    pub(super) key: Arc<Key>,
    /// From the first chunk on that is computed here: operators are large.
    pub(super) program: Option<Program>,
    /// By chunk.
    pub(super) chunks: Vec<Option<Vec<f64>>>,
    pub(super) seconds: f64,
    /// Another process has stored it meanwhile, or it has no program.
    pub(super) settled: bool,
}

impl ScoredVariant {
    pub(super) fn lacks(&self, chunk: usize) -> bool {
        !self.settled && self.chunks[chunk].is_none()
    }

    pub(super) fn take(&mut self, record: &JournalRecord, count: usize) {
        if record.values.len() == count && self.chunks[record.chunk].is_none() {
            self.chunks[record.chunk] = Some(record.values.clone());
            self.seconds += record.seconds;
        }
    }
}

/// A scoring that is under way, also while others are at what is left of it.
pub(in crate::exec) struct ChunkState {
    /// None as long as nothing was computed here.
    pub(super) job: Option<usize>,
    /// Until the work is stored.
    pub(super) journal: Option<Journal>,
    pub(super) candidates: Vec<ScoredVariant>,
    /// The chunks that some candidates lack.
    pub(super) left: Vec<usize>,
}

/// What came of one way through the chunks.
pub(super) enum ChunkSweep {
    Worked,
    /// Others are at all that is left.
    Idle,
    /// A chunk was tried as often as it may be.
    GivenUp(String),
}

/// What came of the attempt to claim a chunk.
pub(super) enum ChunkClaim {
    /// With the candidates that lack it.
    Mine(Vec<usize>, Lease),
    /// Nobody lacks it any more.
    Done,
    Others,
    GivenUp(String),
}

/// Chunks that are computed together.
#[derive(Default)]
pub(super) struct ChunkGroup {
    pub(super) chunks: Vec<usize>,
    /// The candidates that lack them.
    pub(super) members: Vec<usize>,
    pub(super) leases: Vec<Lease>,
    pub(super) tokens: usize,
}

/// Chunks whose records are not on the disk yet: others may have them after that.
#[derive(Default)]
pub(super) struct Unflushed {
    pub(super) leases: Vec<Lease>,
    /// When records were last written; the first are written at once.
    pub(super) since: Option<Duration>,
    /// How long it took to see that the backbone is unchanged: long where the system does not tell of changes.
    pub(super) looking: Duration,
}

impl Unflushed {
    pub(super) fn due(&self, now: Duration) -> bool {
        self.since.is_none_or(|since| now - since >= FLUSH_EVERY.max(10 * self.looking))
    }

    pub(super) fn flush(&mut self, journal: &mut Journal, now: Duration, looking: Duration) -> Result<()> {
        journal.flush()?;
        self.leases.clear();
        (self.since, self.looking) = (Some(now), looking);
        Ok(())
    }
}

/// The trie of the candidates that lack a chunk: mostly the same from chunk to chunk.
#[derive(Default)]
pub(super) struct Tries(Option<(Vec<usize>, Trie)>);

impl Tries {
    pub(super) fn of(&mut self, members: &[usize], candidates: &[ScoredVariant]) -> &Trie {
        let fits = self.0.as_ref().is_some_and(|(of, _)| of == members);
        if !fits {
            self.0 = None;
        }
        let build = || {
            let programs: Vec<Program> = members.iter().filter_map(|&of| candidates[of].program.clone()).collect();
            (members.to_vec(), Trie::scoring(&programs))
        };
        &self.0.get_or_insert_with(build).1
    }
}
