//! Scores variants on a text or task in chunks of windows or documents ([`EvalSet`]). The results of each chunk are
//! written to a [`Journal`], so that an interrupted run can resume and several processes can share the work.

use std::collections::HashMap;
use std::sync::Arc;

use super::calibration_job::LeaseGuard;
use super::generations;
use super::scores;
use crate::error::{Error, Result};
use crate::evaluate::EvalSet;
use crate::model::Program;
use crate::pipeline::env::backbone::BackbonePlan;
use crate::pipeline::env::context::RunContext;
use crate::pipeline::env::coordination::JobStatus;
use ghostlab_store::{Journal, JournalRecord, Key};

/// Scoring of a backbone's variants on one text or task.
pub(crate) struct ChunkRun<'a> {
    pub(crate) run: &'a RunContext<'a>,
    pub(crate) backbone: &'a BackbonePlan,
    pub(crate) eval_set: &'a dyn EvalSet,
    pub(crate) label: &'a str,
    /// Function that returns the program of the variant with the given score key. If the program cannot be read, it
    /// reports the failure and returns `None`.
    pub(crate) program: &'a dyn Fn(&Key) -> Result<Option<Program>>,
    /// Name of the journal, and prefix of the lease names. All processes that score this backbone on this text use the
    /// same name.
    pub(crate) journal: String,
    /// Lease on the calibration whose trials are scored, or `None` if variants are scored.
    pub(crate) calibration_guard: Option<&'a LeaseGuard<'a>>,
    /// Chunks to score, or `None` to score all of them.
    pub(crate) sample: Option<&'a [usize]>,
}

impl ChunkRun<'_> {
    /// Starts or resumes scoring. Opens the journal and reads the results that it contains.
    pub(crate) fn begin(&self, keys: Vec<Arc<Key>>) -> Result<ChunkState> {
        let mut journal = self.run.store.journal(&self.journal)?;
        let chunks = self.eval_set.chunks();
        let mut candidates: Vec<ScoredVariant> = keys
            .into_iter()
            .map(|key| ScoredVariant {
                key,
                program: None,
                chunks: vec![None; chunks],
                seconds: 0.0,
                is_settled: false,
            })
            .collect();
        self.catch_up(&mut journal, &mut candidates);
        let left = self.missing_chunks(&candidates);
        if left.len() < chunks && self.sample.is_none() {
            self.run.note(format!("{}: {} of {chunks} chunks cached", self.label, chunks - left.len()));
        }
        Ok(ChunkState { job: None, journal: Some(journal), candidates, left, caught_up: true })
    }

    /// Returns the chunks that are missing for at least one candidate.
    fn missing_chunks(&self, candidates: &[ScoredVariant]) -> Vec<usize> {
        let mut chunks = self.sample.map_or_else(|| (0..self.eval_set.chunks()).collect(), <[usize]>::to_vec);
        chunks.retain(|&chunk| candidates.iter().any(|candidate| candidate.is_missing_chunk(chunk)));
        chunks
    }

    /// Loads the programs and reports the start of the job, unless this process has already done so. Returns the job
    /// id.
    pub(super) fn ensure_started(&self, job: &mut Option<usize>, candidates: &mut [ScoredVariant]) -> Result<usize> {
        if let Some(job) = *job {
            return Ok(job);
        }
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.is_settled) {
            candidate.program = (self.program)(&candidate.key)?;
            candidate.is_settled = candidate.program.is_none();
        }
        let left = self.missing_chunks(candidates);
        let programs = candidates.iter().filter_map(|candidate| candidate.program.clone());
        let all = self.eval_set.trie(&programs.collect::<Vec<_>>());
        let flops = all.flops(&self.backbone.config, &self.eval_set.load(&left)).shared;
        let tokens = left.iter().map(|&chunk| self.eval_set.tokens(chunk)).sum();
        let work = self.calibration_guard.map_or(&*self.journal, LeaseGuard::name);
        Ok(*job.insert(self.run.start(work, self.label, tokens, candidates.len(), flops)))
    }

    /// Computes the chunks that no other process has leased. When no chunks remain, stores the scores of all variants,
    /// unless only a sample is scored.
    pub(crate) fn advance(&self, scoring: &mut ChunkState) -> Result<JobStatus> {
        while !scoring.left.is_empty() {
            match self.run_pass(scoring)? {
                JobStatus::Done | JobStatus::Cached => self.run.reset_idle(),
                status => return Ok(status),
            }
        }
        if self.sample.is_none() {
            return self.store(scoring);
        }
        if let Some(job) = scoring.job {
            self.run.finish(job);
        }
        Ok(JobStatus::Done)
    }

    /// Computes the sample of chunks for the variants with the given score keys. Stores only the journal, which later
    /// samples reuse.
    pub(crate) fn compute_sample(&self, keys: Vec<Arc<Key>>) -> Result<Vec<ScoredVariant>> {
        let mut scoring = self.begin(keys)?;
        self.finish(&mut scoring)?;
        Ok(scoring.candidates)
    }

    /// Repeats [`Self::advance`] until all chunks are done.
    pub(crate) fn finish(&self, scoring: &mut ChunkState) -> Result<()> {
        loop {
            match self.advance(scoring)? {
                JobStatus::Done | JobStatus::Cached => return Ok(()),
                JobStatus::Contended => self.run.back_off()?,
                JobStatus::Abandoned(reason) => return Err(Error::job(reason).at(self.label)),
            }
        }
    }

    /// Stores the scores of all variants. One process stores them, while the others wait until they are in the store.
    fn store(&self, scoring: &mut ChunkState) -> Result<JobStatus> {
        let store = self.run.store;
        let store_view = self.run.store_view;
        let mut left: Vec<&mut ScoredVariant> =
            scoring.candidates.iter_mut().filter(|candidate| !candidate.is_settled).collect();
        let stored = |left: &[&mut ScoredVariant]| store_view.are_stored(left.iter().map(|variant| &variant.key));
        let mut lease = None;
        let mut all_stored = stored(&left);
        if !all_stored {
            lease = self.run.lease(&format!("{}-store", self.journal), &format!("{}: storing", self.label))?;
            if lease.is_none() {
                return Ok(JobStatus::Contended);
            }
            // Another process may have stored the scores in the meantime.
            all_stored = stored(&left);
        }
        if !all_stored {
            left.retain(|variant| !store_view.is_known_stored(variant.key.hash()));
            self.put_scores(left)?;
        }
        if let Some(journal) = scoring.journal.take() {
            match lease {
                Some(_) => {
                    let kind = scoring.candidates.first().map_or(scores::KIND, |candidate| candidate.key.kind());
                    store.retire(journal, |hash| store_view.is_known_stored(hash) || store.has_hash(kind, hash));
                    store.clear_attempts(&self.journal);
                }
                None => journal.remove(),
            }
        }
        if let Some(job) = scoring.job {
            self.run.finish(job);
        }
        Ok(JobStatus::Done)
    }

    /// Stores the scores of several candidates in a single write.
    fn put_scores(&self, mut candidates: Vec<&mut ScoredVariant>) -> Result<()> {
        let store = self.run.store;
        let mut packed = Vec::new();
        let mut fresh_scores = Vec::new();
        for ScoredVariant { key, chunks, seconds, .. } in candidates.iter_mut().map(|candidate| &mut **candidate) {
            let chunks: Vec<Vec<f64>> = chunks.iter_mut().map(|chunk| chunk.take().unwrap_or_default()).collect();
            let values = self.eval_set.assemble(&chunks);
            match self.eval_set.generations(&values)? {
                None => {
                    packed.push(store.pack_entry(
                        key,
                        *seconds,
                        &[(scores::VALUES_FILE, &scores::encode_values(&values))],
                    ));
                    fresh_scores.push(Some(values));
                }
                Some(answers) => {
                    generations::store(store, key, *seconds, &answers)?;
                    fresh_scores.push(None);
                }
            }
        }
        if !packed.is_empty() {
            store.put_all(packed)?;
        }
        for (candidate, values) in candidates.iter().zip(fresh_scores) {
            self.run.record_stored_scores(&candidate.key, values);
        }
        Ok(())
    }

    /// Reads the journal records of all processes, and checks which candidates have been stored. The scores of all
    /// variants are stored together, so the others are looked up only if the first is stored.
    pub(super) fn catch_up(&self, journal: &mut Journal, candidates: &mut [ScoredVariant]) {
        let (records, damages) = journal.read();
        for error in damages {
            self.run.note(format!("{}: {}", self.label, error.one_line()));
        }
        let by_key: HashMap<String, usize> =
            candidates.iter().enumerate().map(|(index, c)| (c.key.hash().to_string(), index)).collect();
        for record in records.iter().filter(|record| record.chunk < self.eval_set.chunks()) {
            if let Some(&index) = by_key.get(&record.key) {
                candidates[index].add_record(record, self.eval_set);
            }
        }
        let store_view = self.run.store_view;
        let mut left = candidates.iter_mut().filter(|candidate| !candidate.is_settled).peekable();
        if left.peek().is_some_and(|first| store_view.is_stored(&first.key)) {
            left.for_each(|candidate| candidate.is_settled = store_view.is_stored(&candidate.key));
        }
    }
}

/// State of a scoring job. It is kept while other processes work on the remaining chunks.
pub(crate) struct ChunkState {
    /// Job id, or `None` if this process has not computed anything yet.
    pub(super) job: Option<usize>,
    /// Journal, or `None` once the scores have been stored.
    pub(super) journal: Option<Journal>,
    /// Variants to score.
    pub(super) candidates: Vec<ScoredVariant>,
    /// Chunks that are missing for at least one candidate.
    pub(super) left: Vec<usize>,
    /// Whether the results of other processes have just been read.
    pub(super) caught_up: bool,
}

/// Variant whose scores are being computed.
pub(crate) struct ScoredVariant {
    pub(crate) key: Arc<Key>,
    /// Program of the variant. It is loaded only when this process computes the first chunk, because operators are
    /// large.
    pub(super) program: Option<Program>,
    /// Values of each chunk, or `None` for chunks that are missing.
    pub(crate) chunks: Vec<Option<Vec<f64>>>,
    pub(super) seconds: f64,
    /// Whether the variant needs no more work, because its scores are stored or because it has no program.
    pub(super) is_settled: bool,
}

impl ScoredVariant {
    pub(super) fn is_missing_chunk(&self, chunk: usize) -> bool {
        !self.is_settled && self.chunks[chunk].is_none()
    }

    pub(super) fn add_record(&mut self, record: &JournalRecord, eval_set: &dyn EvalSet) {
        if eval_set.is_complete(record.chunk, &record.values) && self.chunks[record.chunk].is_none() {
            self.chunks[record.chunk] = Some(record.values.clone());
            self.seconds += record.seconds;
        }
    }
}
