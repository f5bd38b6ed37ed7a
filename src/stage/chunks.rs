//! Scoring variants on a text or a task: chunk by chunk, each chunk's results kept as it comes, so that a run that was
//! stopped in any way goes on where it was, and two processes at the same work share it.

use std::collections::HashMap;
use std::sync::Arc;

use parts::{ChunkClaim, ChunkGroup, ChunkSweep, ScoredVariant, Tries, Unflushed};

use crate::error::{Error, ErrorKind, Result};
use crate::evaluate::EvalSet;
use crate::model::{Program, Trie};
use crate::work::backbone::BackbonePlan;
use crate::work::calibration_job::Hold;
use crate::work::context::Context;
use crate::work::known_objects::AllStored;
use crate::work::models::Models;
use crate::work::progress::{Progressed, caught};
use crate::work::timing_lock;
use ghostlab_store::{ClaimResult, Journal, JournalRecord, Key, Lease, fault};

mod parts;
mod stored;

pub(crate) use parts::ChunkState;
pub use stored::{GeneratedText, KIND, journal, read, store_texts, texts};
use stored::{VALUES, bytes};
pub(super) use stored::{dense, files, is_claim, scored};

/// Variants of one backbone on one text or task.
pub(crate) struct ChunkRun<'a> {
    pub(crate) run: &'a Context<'a>,
    pub(crate) models: &'a Models<'a>,
    pub(crate) backbone: &'a BackbonePlan,
    pub(crate) eval_set: &'a dyn EvalSet,
    pub(crate) label: &'a str,
    /// What runs a variant, by the key of its scores; none where it has no program, which is said then.
    pub(crate) program: &'a dyn Fn(&Key) -> Result<Option<Program>>,
    /// The name of the journal and of the claims: the same for all processes that score this backbone on this text.
    pub(crate) journal: String,
    /// The calibration that it is a part of.
    pub(crate) within: Option<&'a Hold<'a>>,
}

impl ChunkRun<'_> {
    /// The values of each variant: stored ones as they are, the others scored and stored.
    pub(crate) fn scores(&self, keys: &[Arc<Key>]) -> Result<Vec<Vec<f64>>> {
        let stored = |key: &Arc<Key>| {
            let artifact = self.run.get(key)?;
            read(&artifact).ok()
        };
        let missing: Vec<_> = keys.iter().filter(|key| stored(key).is_none()).cloned().collect();
        if !missing.is_empty() {
            self.score(missing)?;
        }
        keys.iter()
            .map(|key| {
                let artifact = self.run.get(key);
                let missing = || Error::job("scores vanished from the store").at(self.label.to_string());
                read(&artifact.ok_or_else(missing)?)
            })
            .collect()
    }

    /// Scores variants and stores what each scored.
    fn score(&self, keys: Vec<Arc<Key>>) -> Result<()> {
        let mut scoring = self.begin(keys)?;
        loop {
            match self.go_on(&mut scoring)? {
                Progressed::Done | Progressed::Found => return Ok(()),
                Progressed::Busy => self.run.pause()?,
                Progressed::GivenUp(reason) => return Err(Error::job(reason).at(self.label.to_string())),
            }
        }
    }

    /// Takes up the scoring of some variants where it is.
    pub(crate) fn begin(&self, keys: Vec<Arc<Key>>) -> Result<ChunkState> {
        let mut journal = self.run.store.journal(&self.journal)?;
        let chunks = self.eval_set.chunks();
        let new = |key| ScoredVariant { key, program: None, chunks: vec![None; chunks], seconds: 0.0, settled: false };
        let mut candidates: Vec<ScoredVariant> = keys.into_iter().map(new).collect();
        self.absorb(&mut journal, &mut candidates);
        self.look(&mut candidates);
        let left = self.left(&candidates);
        if left.len() < chunks {
            self.run.note(format!("{}: {} of {chunks} chunks are done already", self.label, chunks - left.len()));
        }
        Ok(ChunkState { job: None, journal: Some(journal), candidates, left })
    }

    /// The chunks that some candidates lack.
    fn left(&self, candidates: &[ScoredVariant]) -> Vec<usize> {
        (0..self.eval_set.chunks()).filter(|&chunk| candidates.iter().any(|c| c.lacks(chunk))).collect()
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
        let all = Trie::scoring(&candidates.iter().filter_map(|of| of.program.clone()).collect::<Vec<_>>());
        let flops = all.flops(&self.backbone.config, &self.eval_set.load(&left)).shared;
        let tokens = left.iter().map(|&chunk| self.eval_set.tokens(chunk)).sum();
        let work = self.within.map_or(&*self.journal, Hold::name);
        Ok(*job.insert(self.run.start(work, self.label, tokens, candidates.len(), flops)))
    }

    /// Computes what nobody else is at, and stores what is whole.
    pub(crate) fn go_on(&self, scoring: &mut ChunkState) -> Result<Progressed> {
        while !scoring.left.is_empty() {
            match self.pass(scoring)? {
                ChunkSweep::Worked => self.run.worked(),
                ChunkSweep::Idle => return Ok(Progressed::Busy),
                ChunkSweep::GivenUp(reason) => return Ok(Progressed::GivenUp(reason)),
            }
        }
        self.store(scoring)
    }

    /// Stores what every variant scored: one process does, and the others see that it is there.
    fn store(&self, scoring: &mut ChunkState) -> Result<Progressed> {
        let store = self.run.store;
        let known_objects = &self.run.known_objects;
        let mut left: Vec<&mut ScoredVariant> = scoring.candidates.iter_mut().filter(|of| !of.settled).collect();
        let stored = |left: &[&mut ScoredVariant]| known_objects.all(store, left.iter().map(|of| &of.key));
        let mut lease = None;
        let stands = stored(&left);
        if stands == AllStored::Lacking {
            lease = self.run.claim(&format!("{}-store", self.journal), &format!("{}: storing", self.label))?;
            if lease.is_none() {
                return Ok(Progressed::Busy);
            }
            // Another process may have stored them in between.
            match stored(&left) {
                AllStored::All => {}
                AllStored::Unclear => return Ok(Progressed::Busy),
                AllStored::Lacking => {
                    left.retain(|of| !known_objects.knows(of.key.hash()));
                    put_scored(self.run, self.eval_set, left)?;
                }
            }
        } else if stands == AllStored::Unclear {
            return Ok(Progressed::Busy);
        }
        if let Some(journal) = scoring.journal.take() {
            match lease {
                Some(_) => {
                    let kind = scoring.candidates.first().map_or(KIND, |of| of.key.kind());
                    let stored = |hash: &str| known_objects.knows(hash) || store.has_hash(kind, hash);
                    store.retire(journal, stored);
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

    /// Goes once through the chunks that are left, and computes those that nobody else is at.
    fn pass(&self, scoring: &mut ChunkState) -> Result<ChunkSweep> {
        let ChunkState { job, journal, candidates, left } = scoring;
        let before = left.len();
        let Some(journal) = journal else { return Ok(ChunkSweep::Idle) };
        let mut tries = Tries::default();
        let mut pending = Unflushed::default();
        let mut others = Vec::new();
        let mut group = ChunkGroup::default();
        // Workers that come together begin at places of their own, and do not ask for each other's chunks.
        let first = if self.run.terms.is_some() { self.run.store.start_offset(left.len()) } else { 0 };
        left.rotate_left(first);
        for chunk in std::mem::take(left) {
            let (mut members, lease) = match self.claim(*job, chunk, journal, candidates)? {
                ChunkClaim::Mine(members, lease) => (members, lease),
                ChunkClaim::Done => continue,
                ChunkClaim::Others => {
                    others.push(chunk);
                    continue;
                }
                ChunkClaim::GivenUp(reason) => {
                    self.flush(&mut pending, journal)?;
                    return Ok(ChunkSweep::GivenUp(reason));
                }
            };
            let job = self.started(job, candidates)?;
            members.retain(|&index| candidates[index].lacks(chunk));
            if members.is_empty() {
                continue;
            }
            let tokens = self.eval_set.tokens(chunk);
            // The backbone is loaded when the first chunk has to be computed.
            let most = self.models.get(self.backbone)?.pass_tokens(members.len());
            if !group.chunks.is_empty() && (members != group.members || group.tokens + tokens > most) {
                let group = std::mem::take(&mut group);
                others.extend(self.compute(job, group, journal, candidates, &mut tries, &mut pending)?);
            }
            group.members = members;
            group.chunks.push(chunk);
            group.leases.push(lease);
            group.tokens += tokens;
            // Nothing is waited for where one chunk is enough.
            if group.tokens >= most {
                let group = std::mem::take(&mut group);
                others.extend(self.compute(job, group, journal, candidates, &mut tries, &mut pending)?);
            }
        }
        if let Some(job) = job.filter(|_| !group.chunks.is_empty()) {
            others.extend(self.compute(job, group, journal, candidates, &mut tries, &mut pending)?);
        }
        self.flush(&mut pending, journal)?;
        others.sort_unstable();
        *left = others;
        Ok(if left.len() < before { ChunkSweep::Worked } else { ChunkSweep::Idle })
    }

    /// Claims a chunk that some candidates lack.
    fn claim(
        &self,
        job: Option<usize>,
        chunk: usize,
        journal: &mut Journal,
        candidates: &mut [ScoredVariant],
    ) -> Result<ChunkClaim> {
        if candidates.iter().any(|candidate| candidate.lacks(chunk)) {
            let name = self.chunk_name(chunk);
            if self.run.store.seems_theirs(&name) {
                return Ok(ChunkClaim::Others);
            }
            let ClaimResult::Mine(lease) = self.run.store.claim(&name)? else { return Ok(ChunkClaim::Others) };
            // Whoever had the chunk before has written its records before giving it free.
            self.absorb(journal, candidates);
            self.look(candidates);
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

    fn chunk_name(&self, chunk: usize) -> String {
        format!("{}-{chunk}", self.journal)
    }

    /// Computes some chunks together; their records reach the disk soon. Those that are other processes' by now are not kept,
    /// and are given back.
    fn compute(
        &self,
        job: usize,
        group: ChunkGroup,
        journal: &mut Journal,
        candidates: &mut [ScoredVariant],
        tries: &mut Tries,
        pending: &mut Unflushed,
    ) -> Result<Vec<usize>> {
        let ChunkGroup { mut chunks, members, leases, tokens } = group;
        timing_lock::keep(self.run.store, self.run.reporter, self.run.stop)?;
        // As long as the claims are held, so that no other process tries what is known to fail.
        let held: Vec<(usize, &Lease)> = chunks.iter().copied().zip(&leases).collect();
        let result = caught(|| self.record(&held, &members, tokens, journal, candidates, tries));
        if let Err(error) = &result
            && error.kind() == ErrorKind::Job
        {
            let note =
                |chunk: &usize| self.run.store.note_attempt(&self.chunk_name(*chunk), self.label, &error.one_line());
            chunks.iter().for_each(note);
        }
        pending.leases.extend(leases);
        if result.is_err() || pending.due(self.run.store.now()) {
            self.flush(pending, journal)?;
        }
        let (lost, ran) = result?;
        if !lost.is_empty() {
            let (label, count) = (self.label, lost.len());
            self.run.note(format!(
                "{label}: halted for so long that others took it for dead; {count} chunks are left to them"
            ));
        }
        chunks.retain(|chunk| !lost.contains(chunk));
        for chunk in chunks {
            let ran = ran.get(&chunk).copied();
            if let Err(stopped) = self.run.advance_running(job, self.eval_set.tokens(chunk), ran) {
                self.flush(pending, journal)?;
                return Err(stopped);
            }
        }
        Ok(lost)
    }

    /// Computes some chunks for some candidates that all lack them, and notes what comes of it, but of those whose claims are
    /// gone then; and how many tokens ran of each, where that is not what was announced.
    fn record(
        &self,
        held: &[(usize, &Lease)],
        members: &[usize],
        tokens: usize,
        journal: &mut Journal,
        candidates: &mut [ScoredVariant],
        tries: &mut Tries,
    ) -> Result<(Vec<usize>, HashMap<usize, usize>)> {
        let chunks: Vec<usize> = held.iter().map(|(chunk, _)| *chunk).collect();
        let trie = tries.of(members, candidates);
        let mut seconds = vec![0.0; trie.len()];
        fault::here("score");
        let engine = self.models.get(self.backbone)?;
        let results = self.eval_set.run(&*engine, trie, &chunks, &mut seconds);
        engine.notes().into_iter().for_each(|note| self.run.note(format!("{}: {note}", self.label)));
        let results = results?;
        let shares = trie.shares(&seconds);
        let (mut lost, mut ran) = (Vec::new(), HashMap::new());
        for (&(chunk, lease), results) in held.iter().zip(results) {
            if !lease.holds() {
                lost.push(chunk);
                continue;
            }
            let values: Vec<&[f64]> = results.iter().map(Vec::as_slice).collect();
            ran.extend(self.eval_set.ran(chunk, &values).map(|tokens| (chunk, tokens)));
            let part = self.eval_set.tokens(chunk) as f64 / tokens.max(1) as f64;
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

    /// Writes down what was computed, if the backbone is still the one that was hashed.
    fn flush(&self, pending: &mut Unflushed, journal: &mut Journal) -> Result<()> {
        let (store, started) = (self.run.store, self.run.store.now());
        self.models.unchanged(self.backbone)?;
        let any = !pending.leases.is_empty();
        pending.flush(journal, store.now(), store.now() - started)?;
        if any {
            self.run.kept();
            if let Some(within) = self.within {
                within.gone_on();
            }
        }
        Ok(())
    }

    /// Takes in what this or other processes have written.
    fn absorb(&self, journal: &mut Journal, candidates: &mut [ScoredVariant]) {
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
    }

    /// Sees which candidates others have stored by now. Whoever stores a text stores it of all variants: of hundreds one is
    /// asked for.
    fn look(&self, candidates: &mut [ScoredVariant]) {
        let first = candidates.iter().find(|candidate| !candidate.settled);
        if !first.is_some_and(|candidate| self.run.known_objects.has(self.run.store, &candidate.key)) {
            return;
        }
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.settled) {
            candidate.settled = self.run.known_objects.has(self.run.store, &candidate.key);
        }
    }
}

/// Stores scores that are known from elsewhere, together.
pub(super) fn put(run: &Context<'_>, scores: &[(Arc<Key>, Vec<f64>)]) -> Result<()> {
    let packing = |(key, values): &(Arc<Key>, Vec<f64>)| run.store.packing(key, 0.0, &[(VALUES, &bytes(values))]);
    run.store.put_all(scores.iter().map(packing).collect())?;
    scores.iter().for_each(|(key, _)| run.stored_scores(key));
    Ok(())
}

/// Stores what some candidates scored, together.
fn put_scored(run: &Context<'_>, eval_set: &dyn EvalSet, mut candidates: Vec<&mut ScoredVariant>) -> Result<()> {
    let mut packed = Vec::new();
    for candidate in &mut candidates {
        let chunks: Vec<Vec<f64>> = candidate.chunks.iter_mut().map(|c| c.take().unwrap_or_default()).collect();
        let values = eval_set.assemble(&chunks);
        match eval_set.generations(&values)? {
            None => {
                packed.push(run.store.packing(&candidate.key, candidate.seconds, &[(VALUES, &bytes(&values))]));
            }
            Some(answers) => store_texts(run.store, &candidate.key, candidate.seconds, &answers)?,
        }
    }
    if !packed.is_empty() {
        run.store.put_all(packed)?;
    }
    candidates.iter().for_each(|candidate| run.stored_scores(&candidate.key));
    Ok(())
}
