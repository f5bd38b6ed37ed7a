//! Scores variants on a text or a task chunk by chunk. Each chunk's results are stored as they are computed, so that an
//! interrupted run resumes, and two processes with the same work share it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::generations;
use super::scores::{self, ScoredVariant};
use crate::error::{Error, ErrorKind, Result};
use crate::evaluate::EvalSet;
use crate::model::{Program, Trie};
use crate::work::backbone::BackbonePlan;
use crate::work::context::{Context, Hold};
use crate::work::models::Models;
use crate::work::progress::{Progressed, caught};
use ghostlab_store::{ClaimResult, Journal, JournalRecord, Key, Lease, fault};

/// Upper bound on the work lost when a run is killed, besides the current chunk.
const FLUSH_EVERY: Duration = Duration::from_millis(250);

/// Variants of one backbone on one text or task.
pub(crate) struct ChunkRun<'a> {
    pub(crate) run: &'a Context<'a>,
    pub(crate) models: &'a Models<'a>,
    pub(crate) backbone: &'a BackbonePlan,
    pub(crate) eval_set: &'a dyn EvalSet,
    pub(crate) label: &'a str,
    /// Program of a variant, by the key of its scores; `None` after reporting that it has none.
    pub(crate) program: &'a dyn Fn(&Key) -> Result<Option<Program>>,
    /// The name of the journal and of the claims: the same for all processes that score this backbone on this text.
    pub(crate) journal: String,
    /// The calibration that it is a part of.
    pub(crate) within: Option<&'a Hold<'a>>,
    /// Chunks to score, `None` for all.
    pub(crate) sample: Option<&'a [usize]>,
}

impl ChunkRun<'_> {
    /// Takes up the scoring of some variants where it is.
    pub(crate) fn begin(&self, keys: Vec<Arc<Key>>) -> Result<ChunkState> {
        let mut journal = self.run.store.journal(&self.journal)?;
        let chunks = self.eval_set.chunks();
        let mut candidates: Vec<ScoredVariant> = keys
            .into_iter()
            .map(|key| ScoredVariant { key, program: None, chunks: vec![None; chunks], seconds: 0.0, settled: false })
            .collect();
        self.catch_up(&mut journal, &mut candidates);
        let left = self.left(&candidates);
        if left.len() < chunks && self.sample.is_none() {
            self.run.note(format!("{}: {} of {chunks} chunks are done already", self.label, chunks - left.len()));
        }
        Ok(ChunkState { job: None, journal: Some(journal), candidates, left, caught_up: true })
    }

    /// Returns the chunks missing from some candidates.
    fn left(&self, candidates: &[ScoredVariant]) -> Vec<usize> {
        let mut chunks = self.sample.map_or_else(|| (0..self.eval_set.chunks()).collect(), <[usize]>::to_vec);
        chunks.retain(|&chunk| candidates.iter().any(|candidate| candidate.lacks(chunk)));
        chunks
    }

    /// Reads the candidates' programs and tells that the job begins, when the first chunk is to be computed here; its number.
    fn started(&self, job: &mut Option<usize>, candidates: &mut [ScoredVariant]) -> Result<usize> {
        if let Some(job) = *job {
            return Ok(job);
        }
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.settled) {
            candidate.program = (self.program)(&candidate.key)?;
            candidate.settled = candidate.program.is_none();
        }
        let left = self.left(candidates);
        let programs = candidates.iter().filter_map(|candidate| candidate.program.clone());
        let all = self.eval_set.trie(&programs.collect::<Vec<_>>());
        let flops = all.flops(&self.backbone.config, &self.eval_set.load(&left)).shared;
        let tokens = left.iter().map(|&chunk| self.eval_set.tokens(chunk)).sum();
        let work = self.within.map_or(&*self.journal, Hold::name);
        Ok(*job.insert(self.run.start(work, self.label, tokens, candidates.len(), flops)))
    }

    /// Computes chunks that no other process works on, and stores finished variants.
    pub(crate) fn go_on(&self, scoring: &mut ChunkState) -> Result<Progressed> {
        while !scoring.left.is_empty() {
            match self.pass(scoring)? {
                Progressed::Done | Progressed::Found => self.run.worked(),
                step => return Ok(step),
            }
        }
        if self.sample.is_none() {
            return self.store(scoring);
        }
        if let Some(job) = scoring.job {
            self.run.finish(job);
        }
        Ok(Progressed::Done)
    }

    /// Computes the sample of some variants and stores nothing but the journal, which later samples reuse.
    pub(crate) fn sampled(&self, keys: Vec<Arc<Key>>) -> Result<Vec<ScoredVariant>> {
        let mut scoring = self.begin(keys)?;
        self.finish(&mut scoring)?;
        Ok(scoring.candidates)
    }

    /// Repeats [`Self::go_on`] until nothing is left.
    pub(crate) fn finish(&self, scoring: &mut ChunkState) -> Result<()> {
        loop {
            match self.go_on(scoring)? {
                Progressed::Done | Progressed::Found => return Ok(()),
                Progressed::Busy => self.run.pause()?,
                Progressed::GivenUp(reason) => return Err(Error::job(reason).at(self.label)),
            }
        }
    }

    /// Stores what every variant scored: one process does, and the others see that it is there.
    fn store(&self, scoring: &mut ChunkState) -> Result<Progressed> {
        let store = self.run.store;
        let known_objects = &self.run.known_objects;
        let mut left: Vec<&mut ScoredVariant> =
            scoring.candidates.iter_mut().filter(|candidate| !candidate.settled).collect();
        let stored = |left: &[&mut ScoredVariant]| known_objects.all(store, left.iter().map(|variant| &variant.key));
        let mut lease = None;
        let mut all_stored = stored(&left);
        if !all_stored {
            lease = self.run.claim(&format!("{}-store", self.journal), &format!("{}: storing", self.label))?;
            if lease.is_none() {
                return Ok(Progressed::Busy);
            }
            // Another process may have stored them in between.
            all_stored = stored(&left);
        }
        if !all_stored {
            left.retain(|variant| !known_objects.knows(variant.key.hash()));
            self.put(left)?;
        }
        if let Some(journal) = scoring.journal.take() {
            match lease {
                Some(_) => {
                    let kind = scoring.candidates.first().map_or(scores::KIND, |candidate| candidate.key.kind());
                    store.retire(journal, |hash| known_objects.knows(hash) || store.has_hash(kind, hash));
                    store.clear_attempts(&self.journal);
                }
                None => store.leave(journal),
            }
        }
        if let Some(job) = scoring.job {
            self.run.finish(job);
        }
        Ok(Progressed::Done)
    }

    /// Stores what some candidates scored, together.
    fn put(&self, mut candidates: Vec<&mut ScoredVariant>) -> Result<()> {
        let store = self.run.store;
        let mut packed = Vec::new();
        for ScoredVariant { key, chunks, seconds, .. } in candidates.iter_mut().map(|candidate| &mut **candidate) {
            let chunks: Vec<Vec<f64>> = chunks.iter_mut().map(|chunk| chunk.take().unwrap_or_default()).collect();
            let values = self.eval_set.assemble(&chunks);
            match self.eval_set.generations(&values)? {
                None => packed.push(store.packing(key, *seconds, &[(scores::VALUES, &scores::bytes(&values))])),
                Some(answers) => generations::store(store, key, *seconds, &answers)?,
            }
        }
        if !packed.is_empty() {
            store.put_all(packed)?;
        }
        candidates.iter().for_each(|candidate| self.run.stored_scores(&candidate.key));
        Ok(())
    }

    /// Visits the remaining chunks once and computes unclaimed ones: done if there were any, busy if others work on all
    /// of them.
    fn pass(&self, scoring: &mut ChunkState) -> Result<Progressed> {
        let ChunkState { job, journal, candidates, left, caught_up } = scoring;
        let before = left.len();
        let Some(journal) = journal else { return Ok(Progressed::Busy) };
        // Most unclaimed chunks are finished: reading the journal once is cheaper than claiming each.
        let free = |claims: &BTreeSet<String>| left.iter().any(|chunk| !claims.contains(&self.claim_name(*chunk)));
        if !std::mem::take(caught_up) && self.run.store.with_claims(free)? {
            self.catch_up(journal, candidates);
        }
        let mut sweep = Sweep::default();
        // Workers that come together begin at places of their own, and do not ask for each other's chunks.
        let first = if self.run.terms.is_some() { self.run.store.start_offset(left.len()) } else { 0 };
        left.rotate_left(first);
        for chunk in std::mem::take(left) {
            let (mut members, lease) = match self.claim(*job, chunk, journal, candidates)? {
                ChunkClaim::Mine(members, lease) => (members, lease),
                ChunkClaim::Done => continue,
                ChunkClaim::Others => {
                    sweep.others.push(chunk);
                    continue;
                }
                ChunkClaim::GivenUp(reason) => {
                    self.flush(&mut sweep, journal)?;
                    return Ok(Progressed::GivenUp(reason));
                }
            };
            let job = self.started(job, candidates)?;
            members.retain(|&index| candidates[index].lacks(chunk));
            if members.is_empty() {
                continue;
            }
            let tokens = self.eval_set.tokens(chunk);
            // The backbone is loaded when the first chunk has to be computed.
            let most = self.eval_set.pass_tokens(&*self.models.get(self.backbone)?, members.len());
            if members != sweep.group.members || sweep.group.tokens + tokens > most {
                self.compute(job, journal, candidates, &mut sweep)?;
            }
            sweep.group.members = members;
            sweep.group.chunks.push(chunk);
            sweep.group.leases.push(lease);
            sweep.group.tokens += tokens;
            // No further claims are needed when one chunk suffices.
            if sweep.group.tokens >= most {
                self.compute(job, journal, candidates, &mut sweep)?;
            }
        }
        if let Some(job) = *job {
            self.compute(job, journal, candidates, &mut sweep)?;
        }
        self.flush(&mut sweep, journal)?;
        sweep.others.sort_unstable();
        *left = sweep.others;
        Ok(if left.len() < before { Progressed::Done } else { Progressed::Busy })
    }

    fn claim_name(&self, chunk: usize) -> String {
        format!("{}-{chunk}", self.journal)
    }

    /// Claims a chunk missing from some candidates.
    fn claim(
        &self,
        job: Option<usize>,
        chunk: usize,
        journal: &mut Journal,
        candidates: &mut [ScoredVariant],
    ) -> Result<ChunkClaim> {
        if candidates.iter().any(|candidate| candidate.lacks(chunk)) {
            let name = self.claim_name(chunk);
            if self.run.store.seems_theirs(&name) {
                return Ok(ChunkClaim::Others);
            }
            let ClaimResult::Mine(lease) = self.run.store.claim(&name)? else { return Ok(ChunkClaim::Others) };
            // The previous holder wrote its records before releasing the claim.
            self.catch_up(journal, candidates);
            let members: Vec<usize> = (0..candidates.len()).filter(|&index| candidates[index].lacks(chunk)).collect();
            if !members.is_empty() {
                return Ok(match self.run.given_up(&name) {
                    Some(reason) => ChunkClaim::GivenUp(reason),
                    None => ChunkClaim::Mine(members, lease),
                });
            }
        }
        if let Some(job) = job {
            self.run.advance_elsewhere(job, self.eval_set.tokens(chunk));
        }
        Ok(ChunkClaim::Done)
    }

    /// Computes some chunks together, if there are any; their records reach the disk soon. Those that are other processes' by
    /// now are not kept, and are given back.
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
        self.run.wait_while_timed()?;
        // While the claims are held, so that no other process tries work that is known to fail.
        let result = caught(|| self.record(&group, journal, candidates, &mut sweep.trie));
        if let Err(error) = &result
            && error.kind() == ErrorKind::Job
        {
            for chunk in &group.chunks {
                self.run.store.note_attempt(&self.claim_name(*chunk), self.label, &error.one_line());
            }
        }
        sweep.unwritten.extend(group.leases);
        let least = FLUSH_EVERY.max(10 * sweep.looking);
        if result.is_err() || sweep.since.is_none_or(|since| self.run.store.now() - since >= least) {
            self.flush(sweep, journal)?;
        }
        let (lost, ran) = result?;
        if !lost.is_empty() {
            let label = self.label;
            let count = lost.len();
            self.run.note(format!(
                "{label}: suspended for so long that others took it for dead; it leaves {count} chunks to them"
            ));
        }
        for chunk in group.chunks.into_iter().filter(|chunk| !lost.contains(chunk)) {
            let ran = ran.get(&chunk).copied();
            if let Err(stopped) = self.run.advance_running(job, self.eval_set.tokens(chunk), ran) {
                self.flush(sweep, journal)?;
                return Err(stopped);
            }
        }
        sweep.others.extend(lost);
        Ok(())
    }

    /// Computes some chunks for candidates that all lack them, and records the results except those with lost claims;
    /// also the numbers of tokens processed, if they differ from the announced ones.
    fn record(
        &self,
        group: &ChunkGroup,
        journal: &mut Journal,
        candidates: &mut [ScoredVariant],
        known: &mut Option<(Vec<usize>, Trie)>,
    ) -> Result<(Vec<usize>, HashMap<usize, usize>)> {
        let ChunkGroup { chunks, members, leases, tokens } = group;
        known.take_if(|(cached, _)| cached != members);
        let (_, trie) = known.get_or_insert_with(|| {
            let programs: Vec<Program> =
                members.iter().filter_map(|&member| candidates[member].program.clone()).collect();
            (members.clone(), self.eval_set.trie(&programs))
        });
        let mut seconds = vec![0.0; trie.len()];
        fault::here("score");
        let engine = self.models.get(self.backbone)?;
        let results = self.eval_set.run(&*engine, trie, chunks, &mut seconds);
        engine.notes().into_iter().for_each(|note| self.run.note(format!("{}: {note}", self.label)));
        let results = results?;
        let shares = trie.shares(&seconds);
        let mut lost = Vec::new();
        let mut ran = HashMap::new();
        for ((&chunk, lease), results) in chunks.iter().zip(leases).zip(results) {
            if !lease.holds() {
                lost.push(chunk);
                continue;
            }
            let values: Vec<&[f64]> = results.iter().map(Vec::as_slice).collect();
            ran.extend(self.eval_set.ran(chunk, &values).map(|tokens| (chunk, tokens)));
            let part = self.eval_set.tokens(chunk) as f64 / (*tokens).max(1) as f64;
            for ((&index, values), seconds) in members.iter().zip(results).zip(&shares) {
                let candidate = &mut candidates[index];
                let key = candidate.key.hash().to_string();
                let record = JournalRecord { key, chunk, values, seconds: seconds * part };
                journal.push(&record)?;
                candidate.take(&record, self.eval_set);
            }
        }
        Ok((lost, ran))
    }

    /// Writes results if the backbone is still unchanged since hashing.
    fn flush(&self, sweep: &mut Sweep, journal: &mut Journal) -> Result<()> {
        let store = self.run.store;
        let started = self.run.store.now();
        self.models.unchanged(self.backbone)?;
        let now = store.now();
        let any = !sweep.unwritten.is_empty();
        journal.flush()?;
        sweep.unwritten.clear();
        (sweep.since, sweep.looking) = (Some(now), now - started);
        if any {
            self.run.kept();
            if let Some(within) = self.within {
                within.gone_on();
            }
        }
        Ok(())
    }

    /// Reads what all processes have written, and which candidates are stored by now. A text is stored for all variants
    /// together, so one of hundreds is looked up.
    fn catch_up(&self, journal: &mut Journal, candidates: &mut [ScoredVariant]) {
        let (records, damages) = journal.read();
        for error in damages {
            self.run.note(format!("{}: {}", self.label, error.one_line()));
        }
        let by_key: HashMap<String, usize> =
            candidates.iter().enumerate().map(|(index, c)| (c.key.hash().to_string(), index)).collect();
        for record in records.iter().filter(|record| record.chunk < self.eval_set.chunks()) {
            if let Some(&index) = by_key.get(&record.key) {
                candidates[index].take(record, self.eval_set);
            }
        }
        let store = self.run.store;
        let known_objects = &self.run.known_objects;
        let mut left = candidates.iter_mut().filter(|candidate| !candidate.settled).peekable();
        if left.peek().is_some_and(|first| known_objects.has(store, &first.key)) {
            left.for_each(|candidate| candidate.settled = known_objects.has(store, &candidate.key));
        }
    }
}

/// The state of scoring, including while others work on the rest.
pub(crate) struct ChunkState {
    /// `None` until something is computed here.
    job: Option<usize>,
    /// Until the work is stored.
    journal: Option<Journal>,
    candidates: Vec<ScoredVariant>,
    /// The chunks missing from some candidates.
    left: Vec<usize>,
    /// Whether others' results were just read.
    caught_up: bool,
}

/// Result of an attempt to claim a chunk.
enum ChunkClaim {
    /// With the candidates that lack it.
    Mine(Vec<usize>, Lease),
    /// No candidate lacks it any more.
    Done,
    Others,
    GivenUp(String),
}

/// Chunks that are computed together.
#[derive(Default)]
struct ChunkGroup {
    chunks: Vec<usize>,
    /// The candidates that lack them.
    members: Vec<usize>,
    leases: Vec<Lease>,
    tokens: usize,
}

/// One way through the chunks.
#[derive(Default)]
struct Sweep {
    /// The next group of chunks to compute.
    group: ChunkGroup,
    /// Chunks at which others are.
    others: Vec<usize>,
    /// The trie of the candidates that lacked a chunk: mostly the same from chunk to chunk.
    trie: Option<(Vec<usize>, Trie)>,
    /// Claims on chunks whose records are not on disk yet; released after writing.
    unwritten: Vec<Lease>,
    /// When records were last written; the first are written at once.
    since: Option<Duration>,
    /// Time needed to check that the backbone is unchanged: long if the system does not notify of changes.
    looking: Duration,
}
