//! Scoring variants on a text or a task: chunk by chunk, each chunk's results kept as it comes, so that a run that was
//! stopped in any way goes on where it was, and two processes at the same work share it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::Context;
use super::models::Models;
use crate::error::{Error, Result};
use crate::evaluate::EvalSet;
use crate::fault;
use crate::model::{Program, Trie};
use crate::plan::BackbonePlan;
use crate::plan::payload::{VALUES, value_bytes, values};
use crate::store::{ArtifactKind, ClaimResult, Journal, JournalRecord, Key, Lease};

/// At most this much work is lost when a run is killed, beside the chunk it is at.
const FLUSH_EVERY: Duration = Duration::from_millis(250);

/// Variants of one backbone on one text or task.
pub(super) struct ScoringJob<'a> {
    pub(super) run: &'a Context<'a>,
    pub(super) models: &'a Models<'a>,
    pub(super) backbone: &'a BackbonePlan,
    pub(super) eval_set: &'a dyn EvalSet,
    pub(super) label: &'a str,
    /// The name of the journal and of the claims: the same for all processes that score this backbone on this text.
    pub(super) journal: String,
}

/// A variant that is being scored.
struct Candidate {
    key: Arc<Key>,
    program: Program,
    /// By chunk.
    chunks: Vec<Option<Vec<f64>>>,
    seconds: f64,
    /// Another process has stored it meanwhile.
    elsewhere: bool,
}

impl Candidate {
    fn lacks(&self, chunk: usize) -> bool {
        !self.elsewhere && self.chunks[chunk].is_none()
    }

    fn take(&mut self, record: &JournalRecord, count: usize) {
        if record.values.len() == count && self.chunks[record.chunk].is_none() {
            self.chunks[record.chunk] = Some(record.values.clone());
            self.seconds += record.seconds;
        }
    }
}

impl ScoringJob<'_> {
    /// The values of each variant: stored ones as they are, the others scored and stored.
    pub(super) fn scores(&self, variants: Vec<(Arc<Key>, Program)>) -> Result<Vec<Vec<f64>>> {
        let stored = |key: &Arc<Key>| {
            let artifact = self.run.get(key)?;
            values(&artifact).ok()
        };
        let keys: Vec<Arc<Key>> = variants.iter().map(|(key, _)| Arc::clone(key)).collect();
        let missing: Vec<_> = variants.into_iter().filter(|(key, _)| stored(key).is_none()).collect();
        if !missing.is_empty() {
            self.score(missing)?;
        }
        keys.iter()
            .map(|key| {
                let artifact = self.run.get(key);
                let missing = || Error::job("scores vanished from the store").at(self.label.to_string());
                values(&artifact.ok_or_else(missing)?)
            })
            .collect()
    }

    /// Scores variants and stores what each scored.
    pub(super) fn score(&self, variants: Vec<(Arc<Key>, Program)>) -> Result<()> {
        let mut journal = self.run.store.journal(&self.journal)?;
        let chunks = self.eval_set.chunks();
        let new =
            |(key, program)| Candidate { key, program, chunks: vec![None; chunks], seconds: 0.0, elsewhere: false };
        let mut candidates: Vec<Candidate> = variants.into_iter().map(new).collect();
        self.absorb(&mut journal, &mut candidates);
        let left: Vec<usize> = (0..chunks).filter(|&chunk| candidates.iter().any(|c| c.lacks(chunk))).collect();
        let all = Trie::scoring(&candidates.iter().map(|c| c.program.clone()).collect::<Vec<_>>());
        let load = self.eval_set.load(&left);
        let flops = all.flops(&self.backbone.config, &load).shared;
        let tokens = left.iter().map(|&chunk| self.eval_set.tokens(chunk)).sum();
        if left.len() < chunks {
            self.run.note(format!("{}: {} of {chunks} chunks are done already", self.label, chunks - left.len()));
        }
        let job = self.run.start(self.label, tokens, candidates.len(), flops);
        self.fill(job, &mut journal, &mut candidates, left)?;
        self.run.finish(job);
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.elsewhere) {
            let chunks: Vec<Vec<f64>> = candidate.chunks.iter_mut().map(|c| c.take().unwrap_or_default()).collect();
            let bytes = value_bytes(&self.eval_set.assemble(&chunks));
            self.run.store.put(&candidate.key, candidate.seconds, &[(VALUES, &bytes)])?;
        }
        self.run.store.retire(journal, |hash| self.run.store.has_hash(ArtifactKind::Scores, hash));
        Ok(())
    }

    /// Computes, or waits for, every missing chunk of every candidate.
    fn fill(&self, job: usize, journal: &mut Journal, candidates: &mut [Candidate], left: Vec<usize>) -> Result<()> {
        let mut left = left;
        let mut tries = Tries::default();
        let mut pending = Pending::default();
        while !left.is_empty() {
            let mut others = Vec::new();
            let mut group = Group::default();
            for chunk in std::mem::take(&mut left) {
                let Some((members, lease)) = self.claim(job, chunk, journal, candidates, &mut others)? else {
                    continue;
                };
                let tokens = self.eval_set.tokens(chunk);
                // The backbone is loaded when the first chunk has to be computed.
                let most = self.models.get(self.backbone)?.pass_tokens(members.len());
                if !group.chunks.is_empty() && (members != group.members || group.tokens + tokens > most) {
                    self.compute(job, std::mem::take(&mut group), journal, candidates, &mut tries, &mut pending)?;
                }
                group.members = members;
                group.chunks.push(chunk);
                group.leases.push(lease);
                group.tokens += tokens;
                // Nothing is waited for where one chunk is enough.
                if group.tokens >= most {
                    self.compute(job, std::mem::take(&mut group), journal, candidates, &mut tries, &mut pending)?;
                }
            }
            if !group.chunks.is_empty() {
                self.compute(job, group, journal, candidates, &mut tries, &mut pending)?;
            }
            self.flush(&mut pending, journal)?;
            left = others;
            if !left.is_empty() {
                self.run.pause()?;
                self.absorb(journal, candidates);
            }
        }
        Ok(())
    }

    /// The candidates that lack a chunk, and the claim of it; none where nobody lacks it, or another process is at it,
    /// which puts it among `others`.
    fn claim(
        &self,
        job: usize,
        chunk: usize,
        journal: &mut Journal,
        candidates: &mut [Candidate],
        others: &mut Vec<usize>,
    ) -> Result<Option<(Vec<usize>, Lease)>> {
        if candidates.iter().any(|candidate| candidate.lacks(chunk)) {
            let ClaimResult::Mine(lease) = self.run.store.claim(&format!("{}-{chunk}", self.journal))? else {
                others.push(chunk);
                return Ok(None);
            };
            // Whoever had the chunk before has written its records before giving it free.
            self.absorb(journal, candidates);
            let members: Vec<usize> = (0..candidates.len()).filter(|&index| candidates[index].lacks(chunk)).collect();
            if !members.is_empty() {
                return Ok(Some((members, lease)));
            }
        }
        self.run.advance_elsewhere(job, self.eval_set.tokens(chunk));
        Ok(None)
    }

    /// Computes some chunks together; their records reach the disk soon.
    fn compute(
        &self,
        job: usize,
        group: Group,
        journal: &mut Journal,
        candidates: &mut [Candidate],
        tries: &mut Tries,
        pending: &mut Pending,
    ) -> Result<()> {
        let Group { chunks, members, leases, tokens } = group;
        let result = self.record(&chunks, &members, tokens, journal, candidates, tries);
        pending.leases.extend(leases);
        if result.is_err() || pending.due() {
            self.flush(pending, journal)?;
        }
        result?;
        for chunk in chunks {
            if let Err(stopped) = self.run.advance(job, self.eval_set.tokens(chunk)) {
                self.flush(pending, journal)?;
                return Err(stopped);
            }
        }
        Ok(())
    }

    /// Computes some chunks for some candidates that all lack them, and notes what comes of it.
    fn record(
        &self,
        chunks: &[usize],
        members: &[usize],
        tokens: usize,
        journal: &mut Journal,
        candidates: &mut [Candidate],
        tries: &mut Tries,
    ) -> Result<()> {
        let trie = tries.of(members, candidates);
        let mut seconds = vec![0.0; trie.len()];
        fault::here("score");
        let engine = self.models.get(self.backbone)?;
        let results = self.eval_set.run(&*engine, trie, chunks, &mut seconds);
        engine.notes().into_iter().for_each(|note| self.run.note(format!("{}: {note}", self.label)));
        let results = results?;
        let shares = trie.shares(&seconds);
        for (&chunk, results) in chunks.iter().zip(results) {
            let part = self.eval_set.tokens(chunk) as f64 / tokens.max(1) as f64;
            for ((&index, values), seconds) in members.iter().zip(results).zip(&shares) {
                let candidate = &mut candidates[index];
                let key = candidate.key.hash().to_string();
                let record = JournalRecord { key, chunk, values, seconds: seconds * part };
                journal.push(&record)?;
                candidate.take(&record, self.eval_set.count(chunk));
            }
        }
        Ok(())
    }

    /// Writes down what was computed, if the backbone is still the one that was hashed.
    fn flush(&self, pending: &mut Pending, journal: &mut Journal) -> Result<()> {
        let started = Instant::now();
        self.models.unchanged(self.backbone)?;
        pending.flush(journal, started.elapsed())
    }

    /// Takes in what this or other processes have written, and what is stored whole by now.
    fn absorb(&self, journal: &mut Journal, candidates: &mut [Candidate]) {
        let (records, damages) = journal.read();
        for error in damages {
            self.run.note(format!("{}: {}", self.label, error.one_line()));
        }
        let by_key: HashMap<String, usize> =
            candidates.iter().enumerate().map(|(index, c)| (c.key.hash().to_string(), index)).collect();
        for record in records.iter().filter(|record| record.chunk < self.eval_set.chunks()) {
            if let Some(&index) = by_key.get(&record.key) {
                candidates[index].take(record, self.eval_set.count(record.chunk));
            }
        }
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.elsewhere) {
            let has = self.run.store.has(&candidate.key);
            candidate.elsewhere = has && self.run.get(&candidate.key).is_some();
        }
    }
}

/// Chunks that are computed together.
#[derive(Default)]
struct Group {
    chunks: Vec<usize>,
    /// The candidates that lack them.
    members: Vec<usize>,
    leases: Vec<Lease>,
    tokens: usize,
}

/// Chunks whose records are not on the disk yet: others may have them after that.
#[derive(Default)]
struct Pending {
    leases: Vec<Lease>,
    /// When records were last written; the first are written at once.
    since: Option<Instant>,
    /// How long it took to see that the backbone is unchanged: long where the system does not tell of changes.
    looking: Duration,
}

impl Pending {
    fn due(&self) -> bool {
        self.since.is_none_or(|since| since.elapsed() >= FLUSH_EVERY.max(10 * self.looking))
    }

    fn flush(&mut self, journal: &mut Journal, looking: Duration) -> Result<()> {
        journal.flush()?;
        self.leases.clear();
        (self.since, self.looking) = (Some(Instant::now()), looking);
        Ok(())
    }
}

/// The trie of the candidates that lack a chunk: mostly the same from chunk to chunk.
#[derive(Default)]
struct Tries(Option<(Vec<usize>, Trie)>);

impl Tries {
    fn of(&mut self, members: &[usize], candidates: &[Candidate]) -> &Trie {
        let fits = self.0.as_ref().is_some_and(|(of, _)| of == members);
        if !fits {
            self.0 = None;
        }
        let build = || {
            let programs: Vec<Program> = members.iter().map(|&index| candidates[index].program.clone()).collect();
            (members.to_vec(), Trie::scoring(&programs))
        };
        &self.0.get_or_insert_with(build).1
    }
}
