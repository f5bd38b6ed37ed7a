//! What a scoring holds: its candidates, and chunks on their way from a claim to the disk.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::evaluate::EvalSet;
use crate::model::{Program, Trie};
use ghostlab_store::{Journal, JournalRecord, Key, Lease};

/// At most this much work is lost when a run is killed, beside the chunk it is at.
const FLUSH_EVERY: Duration = Duration::from_millis(250);

/// A variant that is being scored.
pub(crate) struct ScoredVariant {
    pub(crate) key: Arc<Key>,
    /// From the first chunk on that is computed here: operators are large.
    pub(crate) program: Option<Program>,
    /// By chunk.
    pub(crate) chunks: Vec<Option<Vec<f64>>>,
    pub(crate) seconds: f64,
    /// Another process has stored it meanwhile, or it has no program.
    pub(crate) settled: bool,
}

impl ScoredVariant {
    pub(crate) fn lacks(&self, chunk: usize) -> bool {
        !self.settled && self.chunks[chunk].is_none()
    }

    pub(crate) fn take(&mut self, record: &JournalRecord, eval_set: &dyn EvalSet) {
        if eval_set.fits(record.chunk, &record.values) && self.chunks[record.chunk].is_none() {
            self.chunks[record.chunk] = Some(record.values.clone());
            self.seconds += record.seconds;
        }
    }
}

/// A scoring that is under way, also while others are at what is left of it.
pub(crate) struct ChunkState {
    /// None as long as nothing was computed here.
    pub(crate) job: Option<usize>,
    /// Until the work is stored.
    pub(crate) journal: Option<Journal>,
    pub(crate) candidates: Vec<ScoredVariant>,
    /// The chunks that some candidates lack.
    pub(crate) left: Vec<usize>,
}

/// What came of one way through the chunks.
pub(crate) enum ChunkSweep {
    Worked,
    /// Others are at all that is left.
    Idle,
    /// A chunk was tried as often as it may be.
    GivenUp(String),
}

/// What came of the attempt to claim a chunk.
pub(crate) enum ChunkClaim {
    /// With the candidates that lack it.
    Mine(Vec<usize>, Lease),
    /// Nobody lacks it any more.
    Done,
    Others,
    GivenUp(String),
}

/// Chunks that are computed together.
#[derive(Default)]
pub(crate) struct ChunkGroup {
    pub(crate) chunks: Vec<usize>,
    /// The candidates that lack them.
    pub(crate) members: Vec<usize>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) tokens: usize,
}

/// Chunks whose records are not on the disk yet: others may have them after that.
#[derive(Default)]
pub(crate) struct Unflushed {
    pub(crate) leases: Vec<Lease>,
    /// When records were last written; the first are written at once.
    pub(crate) since: Option<Duration>,
    /// How long it took to see that the backbone is unchanged: long where the system does not tell of changes.
    pub(crate) looking: Duration,
}

impl Unflushed {
    pub(crate) fn due(&self, now: Duration) -> bool {
        self.since.is_none_or(|since| now - since >= FLUSH_EVERY.max(10 * self.looking))
    }

    pub(crate) fn flush(&mut self, journal: &mut Journal, now: Duration, looking: Duration) -> Result<()> {
        journal.flush()?;
        self.leases.clear();
        (self.since, self.looking) = (Some(now), looking);
        Ok(())
    }
}

/// The trie of the candidates that lack a chunk: mostly the same from chunk to chunk.
#[derive(Default)]
pub(crate) struct Tries(Option<(Vec<usize>, Trie)>);

impl Tries {
    pub(crate) fn of(&mut self, members: &[usize], candidates: &[ScoredVariant]) -> &Trie {
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
