//! Computes the remaining [chunks](crate::evaluate::EvalSet) of a scoring job, except those leased by other processes.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::chunks::{ChunkRun, ChunkState, ScoredVariant};
use crate::error::{ErrorKind, Result};
use crate::model::{Program, Trie};
use crate::pipeline::env::coordination::{JobStatus, catch_panic};
use ghostlab_store::{Journal, JournalRecord, Lease, LeaseResult, fault};

/// Minimum time between flushes of the journal. A run that is killed loses about this much finished work.
const MIN_FLUSH_INTERVAL: Duration = Duration::from_millis(250);

impl ChunkRun<'_> {
    /// Visits each remaining chunk once, and computes those that no other process has leased. Returns `Done` if fewer
    /// chunks remain, `Contended` if other processes have leased all of them, or `Abandoned` if a chunk reached its
    /// retry limit.
    pub(super) fn run_pass(&self, scoring: &mut ChunkState) -> Result<JobStatus> {
        let ChunkState { job, journal, candidates, left, caught_up } = scoring;
        let before = left.len();
        let Some(journal) = journal else { return Ok(JobStatus::Contended) };
        // Most chunks without a lease are already finished, so reading the journal once is cheaper than leasing each of
        // them.
        let has_free_chunk =
            |leases: &BTreeSet<String>| left.iter().any(|chunk| !leases.contains(&self.lease_name(*chunk)));
        if !std::mem::take(caught_up) && self.run.store.with_leases(has_free_chunk)? {
            self.catch_up(journal, candidates);
        }
        let mut sweep = Sweep::default();
        // Workers that start at the same time begin with different chunks, to avoid contention.
        let first = if self.run.worker_limits.is_some() { self.run.store.start_offset(left.len()) } else { 0 };
        left.rotate_left(first);
        for chunk in std::mem::take(left) {
            let (mut members, lease) = match self.lease(*job, chunk, journal, candidates)? {
                ChunkLeaseResult::Acquired(members, lease) => (members, lease),
                ChunkLeaseResult::Done => continue,
                ChunkLeaseResult::LeasedElsewhere => {
                    sweep.leased_elsewhere.push(chunk);
                    continue;
                }
                ChunkLeaseResult::Abandoned(reason) => {
                    self.flush(&mut sweep, journal)?;
                    return Ok(JobStatus::Abandoned(reason));
                }
            };
            let job = self.ensure_started(job, candidates)?;
            members.retain(|&index| candidates[index].is_missing_chunk(chunk));
            if members.is_empty() {
                continue;
            }
            let tokens = self.eval_set.tokens(chunk);
            // Load the backbone only when the first chunk has to be computed.
            let max_tokens = self.eval_set.pass_tokens(&*self.run.models.get(self.backbone)?, members.len());
            if members != sweep.group.members || sweep.group.tokens + tokens > max_tokens {
                self.compute(job, journal, candidates, &mut sweep)?;
            }
            sweep.group.members = members;
            sweep.group.chunks.push(chunk);
            sweep.group.leases.push(lease);
            sweep.group.tokens += tokens;
            // If the chunks fill a batch, compute them before leasing more.
            if sweep.group.tokens >= max_tokens {
                self.compute(job, journal, candidates, &mut sweep)?;
            }
        }
        if let Some(job) = *job {
            self.compute(job, journal, candidates, &mut sweep)?;
        }
        self.flush(&mut sweep, journal)?;
        sweep.leased_elsewhere.sort_unstable();
        *left = sweep.leased_elsewhere;
        Ok(if left.len() < before { JobStatus::Done } else { JobStatus::Contended })
    }

    fn lease_name(&self, chunk: usize) -> String {
        format!("{}-{chunk}", self.journal)
    }

    /// Acquires the lease on a chunk, unless no candidate lacks the chunk.
    fn lease(
        &self,
        job: Option<usize>,
        chunk: usize,
        journal: &mut Journal,
        candidates: &mut [ScoredVariant],
    ) -> Result<ChunkLeaseResult> {
        if candidates.iter().any(|candidate| candidate.is_missing_chunk(chunk)) {
            let name = self.lease_name(chunk);
            if self.run.store.is_listed_as_leased(&name) {
                return Ok(ChunkLeaseResult::LeasedElsewhere);
            }
            let LeaseResult::Acquired(lease) = self.run.store.lease(&name)? else {
                return Ok(ChunkLeaseResult::LeasedElsewhere);
            };
            // The previous holder wrote its records before it released the lease.
            self.catch_up(journal, candidates);
            let members: Vec<usize> =
                (0..candidates.len()).filter(|&index| candidates[index].is_missing_chunk(chunk)).collect();
            if !members.is_empty() {
                return Ok(match self.run.abandon_reason(&name) {
                    Some(reason) => ChunkLeaseResult::Abandoned(reason),
                    None => ChunkLeaseResult::Acquired(members, lease),
                });
            }
        }
        if let Some(job) = job {
            self.run.advance_elsewhere(job, self.eval_set.tokens(chunk));
        }
        Ok(ChunkLeaseResult::Done)
    }

    /// Computes the chunks in the group of `sweep`, if any, and flushes their records if the last flush was long enough
    /// ago. Chunks whose leases have been lost in the meantime are left to other processes.
    fn compute(
        &self,
        job: usize,
        journal: &mut Journal,
        candidates: &mut [ScoredVariant],
        sweep: &mut Sweep,
    ) -> Result<()> {
        let group = std::mem::take(&mut sweep.group);
        if group.chunks.is_empty() {
            return Ok(());
        }
        self.run.wait_for_latency_measurement()?;
        // Record failures while the leases are still held, so that no other process repeats work that is known to fail.
        let result = catch_panic(|| self.compute_and_record(&group, journal, candidates, &mut sweep.trie));
        if let Err(error) = &result
            && error.kind() == ErrorKind::Job
        {
            for chunk in &group.chunks {
                self.run.store.record_attempt(&self.lease_name(*chunk), self.label, &error.one_line());
            }
        }
        sweep.unwritten.extend(group.leases);
        let interval = MIN_FLUSH_INTERVAL.max(10 * sweep.check_time);
        if result.is_err() || sweep.last_flush.is_none_or(|since| self.run.store.now() - since >= interval) {
            self.flush(sweep, journal)?;
        }
        let (lost, ran) = result?;
        if !lost.is_empty() {
            let label = self.label;
            let count = lost.len();
            self.run.note(format!("{label}: suspended too long; other workers took over {count} chunks"));
        }
        for chunk in group.chunks.into_iter().filter(|chunk| !lost.contains(chunk)) {
            let ran = ran.get(&chunk).copied();
            if let Err(stopped) = self.run.advance_running(job, self.eval_set.tokens(chunk), ran) {
                self.flush(sweep, journal)?;
                return Err(stopped);
            }
        }
        sweep.leased_elsewhere.extend(lost);
        Ok(())
    }

    /// Computes a group of chunks for candidates that lack all of them. Records the results, except for chunks whose
    /// leases were lost. Returns the lost chunks, and the number of tokens processed in each chunk of generated text,
    /// because generation may end early.
    fn compute_and_record(
        &self,
        group: &ChunkGroup,
        journal: &mut Journal,
        candidates: &mut [ScoredVariant],
        cached_trie: &mut Option<(Vec<usize>, Trie)>,
    ) -> Result<(Vec<usize>, HashMap<usize, usize>)> {
        let ChunkGroup { chunks, members, leases, tokens } = group;
        cached_trie.take_if(|(cached, _)| cached != members);
        let (_, trie) = cached_trie.get_or_insert_with(|| {
            let programs: Vec<Program> =
                members.iter().filter_map(|&member| candidates[member].program.clone()).collect();
            (members.clone(), self.eval_set.trie(&programs))
        });
        let mut seconds = vec![0.0; trie.len()];
        fault::fault_point("score");
        let engine = self.run.models.get(self.backbone)?;
        let results = self.eval_set.run(&*engine, trie, chunks, &mut seconds);
        engine.notes().into_iter().for_each(|note| self.run.note(format!("{}: {note}", self.label)));
        let results = results?;
        let seconds_by_program = trie.divide_among_programs(&seconds);
        let mut lost = Vec::new();
        let mut ran = HashMap::new();
        for ((&chunk, lease), results) in chunks.iter().zip(leases).zip(results) {
            if !lease.is_held() {
                lost.push(chunk);
                continue;
            }
            let values: Vec<&[f64]> = results.iter().map(Vec::as_slice).collect();
            ran.extend(self.eval_set.processed_tokens(chunk, &values).map(|tokens| (chunk, tokens)));
            let fraction = self.eval_set.tokens(chunk) as f64 / (*tokens).max(1) as f64;
            for ((&index, values), seconds) in members.iter().zip(results).zip(&seconds_by_program) {
                let candidate = &mut candidates[index];
                let key = candidate.key.hash().to_string();
                let record = JournalRecord { key, chunk, values, seconds: seconds * fraction };
                journal.push(&record)?;
                candidate.add_record(&record, self.eval_set);
            }
        }
        Ok((lost, ran))
    }

    /// Writes the records to disk, and then releases the leases of their chunks. Fails if the backbone has changed
    /// since it was hashed.
    fn flush(&self, sweep: &mut Sweep, journal: &mut Journal) -> Result<()> {
        let store = self.run.store;
        let started = self.run.store.now();
        self.run.models.check_unchanged(self.backbone)?;
        let now = store.now();
        let has_records = !sweep.unwritten.is_empty();
        journal.flush()?;
        sweep.unwritten.clear();
        (sweep.last_flush, sweep.check_time) = (Some(now), now - started);
        if has_records {
            self.run.report_stored();
            if let Some(guard) = self.calibration_guard {
                guard.record_progress();
            }
        }
        Ok(())
    }
}

/// Result of an attempt to lease a chunk.
enum ChunkLeaseResult {
    /// The lease was acquired. Contains the indices of the candidates that lack the chunk, and the lease.
    Acquired(Vec<usize>, Lease),
    /// No candidate lacks the chunk.
    Done,
    LeasedElsewhere,
    /// The retry limit of the chunk was reached. Contains the reason for the last failure.
    Abandoned(String),
}

/// Chunks that are computed together.
#[derive(Default)]
struct ChunkGroup {
    chunks: Vec<usize>,
    /// Indices of the candidates that lack the chunks.
    members: Vec<usize>,
    leases: Vec<Lease>,
    tokens: usize,
}

/// State of a sweep, which visits the remaining chunks once.
#[derive(Default)]
struct Sweep {
    /// Chunks that will be computed next.
    group: ChunkGroup,
    leased_elsewhere: Vec<usize>,
    /// Candidate indices of the last group, and their trie. It is reused if the next group has the same candidates.
    trie: Option<(Vec<usize>, Trie)>,
    /// Leases on chunks whose records are not on disk yet. They are released after the next flush.
    unwritten: Vec<Lease>,
    /// Time of the last flush, or `None` before the first one, which happens immediately.
    last_flush: Option<Duration>,
    /// Duration of the last check that the backbone is unchanged, which is long if the system does not report file
    /// changes.
    check_time: Duration,
}
