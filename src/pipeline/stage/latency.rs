//! Latency of a variant on one machine, for processing a prompt and for decoding after it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use super::group::{Group, JobContext, Order, Programs, ResumeState};
use super::{Cost, InputNames, Stage, from_json, to_json};
use crate::error::{Error, Result};
use crate::grid::Latency;
use crate::heap;
use crate::latency::{
    DecodeResult, ExtraRounds, LatencyResult, MAX_SESSIONS, PassTimes, Prompt, RoundTimes, Rounds, Session,
    count_passes, decode_work, has_diagonal, measure_decoding, measure_interleaved, measure_until_stable,
    with_dense_operators,
};
use crate::model::{Config, Engine, EngineChoice, Load, Program, Trie, deploy};
use crate::pipeline::env::backbone::{BackbonePlan, Variant};
use crate::pipeline::env::context::RunContext;
use crate::pipeline::env::coordination::{self, JobStatus, timing_lease};
use crate::pipeline::env::event::WorkKind;
use crate::pipeline::identity::{Identity, MeasureId};
use ghostlab_store::{Key, Lookup, ObjectKind, StoredObject};

// Version 2: tied embeddings count once if they are stored once, and operators are f32. Version 4: rounds are repeated
// until the times are stable, and ten of them count.
pub const KIND: ObjectKind = ObjectKind::new("latency", 4);

pub const STAGE: Stage = Stage {
    machine_specific: true,
    words: Some(InputNames {
        group: WorkKind::Time,
        part: "latency",
        about: "Latency of the prompt and of decoding after it.",
        what: "latency over",
        reads: |_, _, _| None,
    }),
    ..Stage::new(KIND)
};

/// Payload that contains times and memory sizes.
pub const LATENCY: &str = "latency.json";

/// Returns the key of a variant's latency. It contains the machine, the prompt and the number of tokens to decode (from
/// `what`), and a hash of the variants that are timed together (`among`). `backbone` is the name in the grid.
pub fn key(backbone: &str, operator: Option<&Arc<Key>>, among: &str, what: &Arc<Identity>) -> Key {
    let mut identity = what.backbone_fields();
    if let Some(MeasureId::Prefill { length, batch, decode, warmups, rounds, machine, .. }) = what.measure.as_deref() {
        identity["machine"] = machine.value();
        for (name, value) in [("length", length), ("batch", batch), ("warmups", warmups), ("rounds", rounds)] {
            identity[name] = json!(value);
        }
        if let Some(decode) = decode {
            identity["decode"] = json!(decode);
        }
        identity["among"] = json!(among);
    }
    let operator = operator.map(|key| ("operator", Arc::clone(key)));
    Key::new(KIND, identity, operator).with_input_name(backbone).with_description(what)
}

/// Estimates the fixed cost of a decoding step as an equivalent number of prefill rows. A step reads all weights, and
/// its matrix products are too small to fill the tiles of the kernels or to use all cores. Fitted to times measured
/// with hidden sizes of 128, 256 and 4096.
fn decode_overhead_rows(config: &Config, sequences: usize) -> f64 {
    12.0 + (512.0 / config.hidden as f64).min(2.0) * sequences as f64
}

/// Estimates the cost of timing all variants of a backbone on a prompt. Each variant runs separately. If any latency is
/// missing (`is_missing`), all variants are timed again. Rounds added because of noise are not included.
pub fn cost(config: &Config, all: &Trie, prompt: &Latency, is_missing: bool) -> Cost {
    let pass_flops = |length: usize| separate_flops(config, all, length * prompt.batch, length);
    let pass = pass_flops(prompt.length)
        + prompt.decode.map_or(0.0, |new| {
            let extra_rows = decode_overhead_rows(config, prompt.batch) * new as f64;
            pass_flops(prompt.length + new) + separate_flops(config, all, extra_rows as usize, 1)
        });
    let rounds = count_passes(1, Rounds::PAPER) as f64 * pass;
    Cost { separate: rounds, shared: rounds, left: if is_missing { rounds } else { 0.0 }, ..Cost::default() }
}

fn separate_flops(config: &Config, all: &Trie, tokens: usize, length: usize) -> f64 {
    all.flops(config, &Load::windows(tokens, length)).separate
}

/// Reads the latency of a variant.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read(object: &StoredObject) -> Result<LatencyResult> {
    from_json(object, LATENCY)
}

/// Variant to time. `full` is its program with dense operators, and `by_channel` with channel-wise operators, if it has
/// any.
struct TimedVariant {
    key: Arc<Key>,
    is_dense: bool,
    full: Program,
    by_channel: Option<Program>,
}

/// Describes which timings `--retime` will repeat.
pub(crate) fn describe_retime(backbones: &[BackbonePlan]) -> String {
    let timed: Vec<String> = backbones
        .iter()
        .filter_map(|backbone| {
            let prompts: Vec<String> = backbone.latencies.iter().map(ToString::to_string).collect();
            let variants = backbone
                .variants
                .iter()
                .filter_map(|variant| variant.latencies.first().map(|key| key.hash().to_owned()))
                .collect::<BTreeSet<_>>()
                .len();
            let Rounds { warmups, timed } = Rounds::PAPER;
            (!prompts.is_empty()).then(|| {
                format!(
                    "{} over {} ({variants} interleaved variants, at least {timed} rounds after {warmups} warm-ups)",
                    backbone.name,
                    prompts.join(", ")
                )
            })
        })
        .collect();
    match timed.is_empty() {
        true => "--retime: this run measures no latencies".to_owned(),
        false => {
            format!("--retime: measuring {} again; only stored times are replaced", timed.join("; "))
        }
    }
}

/// Group of the jobs that time all variants of a backbone on a prompt.
pub const GROUP: Group = Group {
    kind: WorkKind::Time,
    count: |backbone| backbone.latencies.len(),
    label: job_label,
    lease_name: job_label,
    on: |backbone, index| Some(backbone.latencies[index].to_string()),
    produced: |variant, index| variant.latencies.get(index).into_iter().collect(),
    // No memory is reserved, because running out of memory is recorded as a result.
    bytes: |_, _| 0,
    order: Order::Alone("workers do not measure latencies; use `ghostlab run`"),
    run: time_variants,
    report: |_, _, _, _| {},
};

fn job_label(backbone: &BackbonePlan, position: usize) -> String {
    format!("time {} over {}", backbone.name, backbone.latencies[position])
}

/// Times all variants of a backbone together, because timings from different sessions are not comparable. If the
/// program of a variant cannot be read, only its cells fail.
///
/// # Errors
/// Fails on errors that stop the run or affect all variants.
fn time_variants(
    job_context: &JobContext<'_>,
    backbone: &BackbonePlan,
    position: usize,
    _: &[&Variant],
    _: &mut ResumeState,
) -> Result<JobStatus> {
    let JobContext { run, programs } = *job_context;
    let latency = backbone.latencies[position];
    let label = job_label(backbone, position);
    let lease = coordination::lease(run.store, timing_lease(), &label, run.reporter, run.stop)?;
    if !run.settings.retime
        && backbone.variants.iter().filter(|variant| !run.has_failed(variant.cell)).all(|variant| {
            let key = &variant.latencies[position];
            let is_stored = matches!(run.store.get(key), Lookup::Intact(_));
            is_stored.then(|| run.store_view.mark_intact(key)).is_some()
        })
    {
        return Ok(JobStatus::Done);
    }
    let candidates = find_candidates(run, programs, backbone, position)?;
    let prompt = Prompt { length: latency.length, batch: latency.batch };
    let started = Instant::now();
    let engine = run.models.get(backbone)?;
    let memory = run.settings.memory_bytes();
    let config = &backbone.config;
    let choice = backbone.engine;
    let comparison = TimedComparison { run, config, choice, engine: &*engine, prompt, latency, label: &label, memory };
    let max_sessions = if run.settings.settle { MAX_SESSIONS } else { 1 };
    let mut session = || comparison.measure_all(&candidates);
    let mut again = |unstable: usize, sessions: usize| {
        run.note(format!(
            "{label}: {unstable} of {} variants have unstable times; measuring all again (session {} of {max_sessions})",
            candidates.len(),
            sessions + 1
        ));
        run.check_stop()
    };
    let results = measure_until_stable(max_sessions, &mut session, &mut again)?;
    run.models.check_unchanged(backbone)?;
    if !lease.is_held() {
        run.note(format!("{label}: suspended too long, so other processes may have run; measuring again"));
        return Ok(JobStatus::Contended);
    }
    let sessions = results.first().map_or(1, |result| result.sessions);
    let seconds = started.elapsed().as_secs_f64() / (sessions * candidates.len().max(1)) as f64;
    // Discard the old times first. Otherwise, times from two sessions could be mixed after a crash.
    backbone.variants.iter().try_for_each(|variant| run.store.discard(&variant.latencies[position]))?;
    for (candidate, result) in candidates.iter().zip(results) {
        run.store.put(&candidate.key, seconds, &[(LATENCY, &to_json(&result)?)])?;
        run.store_view.mark_intact(&candidate.key);
    }
    Ok(JobStatus::Done)
}

fn find_candidates(
    run: &RunContext<'_>,
    programs: &Programs,
    backbone: &BackbonePlan,
    position: usize,
) -> Result<Vec<TimedVariant>> {
    let mut candidates = Vec::new();
    let mut seen = BTreeSet::new();
    for variant in backbone.variants.iter().filter(|variant| !run.has_failed(variant.cell)) {
        let Some(program) = programs.load_or_record_failure(run, backbone, variant)? else { continue };
        let program = deploy(&program, &backbone.config).program;
        let key = Arc::clone(&variant.latencies[position]);
        // Cells that share a key are timed only once.
        if !seen.insert(key.hash().to_string()) {
            continue;
        }
        let full = with_dense_operators(&program)?;
        let by_channel = has_diagonal(&program).then_some(program);
        candidates.push(TimedVariant { key, is_dense: variant.repair_key().is_none(), full, by_channel });
    }
    // The dense backbone comes first. Rounds are added until the times of each variant are stable in the same rounds as
    // those of the dense backbone.
    candidates.sort_by_key(|candidate| !candidate.is_dense);
    Ok(candidates)
}

/// Timing session in which all variants of a backbone run on one prompt.
struct TimedComparison<'a> {
    run: &'a RunContext<'a>,
    config: &'a Config,
    choice: EngineChoice,
    engine: &'a dyn Engine,
    prompt: Prompt,
    /// Prompt as written in the grid, with the number of tokens to decode.
    latency: Latency,
    label: &'a str,
    /// Memory available for weights and intermediates, in bytes.
    memory: u64,
}

/// Times measured in a session, in the order of its variants.
struct SessionTimes {
    first_counted_round: usize,
    timed: std::vec::IntoIter<PassTimes>,
}

impl From<Session> for SessionTimes {
    fn from(Session { timed, first_counted_round }: Session) -> Self {
        Self { first_counted_round, timed: timed.into_iter() }
    }
}

/// Adds the times and the memory of the dense backbone to all results, if the dense backbone was timed.
fn add_dense_times(results: &mut [LatencyResult], candidates: &[TimedVariant]) {
    let position = candidates.iter().position(|candidate| candidate.is_dense);
    let dense = position.map(|position| results[position].clone());
    results.iter_mut().for_each(|result| result.set_dense(dense.as_ref()));
}

impl TimedComparison<'_> {
    fn measure_all(&self, candidates: &[TimedVariant]) -> Result<Vec<LatencyResult>> {
        let programs =
            candidates.iter().flat_map(|candidate| [Some(&candidate.full), candidate.by_channel.as_ref()]).flatten();
        let fitting: Vec<Program> = programs.filter(|program| self.fits_in_memory(program)).cloned().collect();
        let decode = self.latency.decode;
        let decode_tokens = decode.map_or(0, |new| self.prompt.tokens() + new * self.prompt.batch);
        let tokens = count_passes(fitting.len(), Rounds::PAPER) * (self.prompt.tokens() + decode_tokens);
        let flops = cost(self.config, &Trie::new(&fitting), &self.latency, true).separate;
        let job = self.run.start(self.label, self.label, tokens, candidates.len(), flops);
        let prefill = self.run_session(self.label, (job, self.prompt.tokens()), |after| {
            measure_interleaved(self.engine, &fitting, self.prompt, Rounds::PAPER, ExtraRounds::DEFAULT, after)
        })?;
        let decoded = decode.map(|new| {
            let label = format!("{}, decoding", self.label);
            self.run_session(&label, (job, decode_tokens), |after| {
                measure_decoding(self.engine, &fitting, (self.prompt, new), Rounds::PAPER, ExtraRounds::DEFAULT, after)
            })
        });
        let mut prefill = SessionTimes::from(prefill);
        let mut decoded = decoded.transpose()?.map(SessionTimes::from);
        let mut results = Vec::new();
        for candidate in candidates {
            results.push(self.take_result(candidate, &mut prefill, decoded.as_mut())?);
        }
        add_dense_times(&mut results, candidates);
        self.run.finish(job);
        Ok(results)
    }

    /// Builds the result of a variant from its times, which are the next ones in each session.
    fn take_result(
        &self,
        candidate: &TimedVariant,
        prefill: &mut SessionTimes,
        decoded: Option<&mut SessionTimes>,
    ) -> Result<LatencyResult> {
        let full = &candidate.full;
        let prefill = self.take_round_times(candidate, prefill);
        let decode = self.latency.decode.zip(decoded).map(|(new, session)| DecodeResult {
            tokens: new * self.prompt.batch,
            rounds: self.take_round_times(candidate, session),
            work: decode_work(self.config, full, self.prompt, new),
            dense_work: decode_work(self.config, &Program::dense(self.config.layers), self.prompt, new),
        });
        let intermediate_bytes = if prefill.times.is_some() { self.measure_intermediate_bytes(full)? } else { None };
        Ok(LatencyResult {
            prefill,
            sessions: 1,
            weight_bytes: self.choice.needed_bytes(self.config, full),
            intermediate_bytes,
            dense_bytes: None,
            decode,
        })
    }

    fn take_round_times(&self, candidate: &TimedVariant, session: &mut SessionTimes) -> RoundTimes {
        let times = self.next_times(session, &candidate.full);
        let by_channel = candidate.by_channel.as_ref().and_then(|program| self.next_times(session, program));
        RoundTimes { times, by_channel, dense: None, first: session.first_counted_round }
    }

    /// Returns the next times in the session, which belong to `program`. Returns `None` if the program ran out of
    /// memory, or if it does not fit in memory and was therefore not timed.
    fn next_times(&self, session: &mut SessionTimes, program: &Program) -> Option<Vec<f64>> {
        match self.fits_in_memory(program).then(|| session.timed.next())?? {
            PassTimes::Milliseconds(times) => Some(times),
            PassTimes::OutOfMemory => None,
        }
    }

    /// Runs `measure`, which times the variants that fit in memory in interleaved rounds. `tokens` is the number of
    /// tokens that each pass adds to the progress of the job.
    fn run_session(
        &self,
        label: &str,
        (job, tokens): (usize, usize),
        measure: impl FnOnce(&mut dyn FnMut(bool) -> Result<()>) -> Result<Session>,
    ) -> Result<Session> {
        let mut has_extra_rounds = false;
        let mut after = |is_requested: bool| {
            if is_requested {
                return self.run.advance_without_waiting(job, tokens, None);
            }
            // The token count of the job does not include additional rounds, so they report no progress.
            if !std::mem::replace(&mut has_extra_rounds, true) {
                let (first, ExtraRounds { rounds, seconds }) = (Rounds::PAPER.timed, ExtraRounds::DEFAULT);
                self.run.note(format!(
                    "{label}: the first {first} rounds are too noisy; running up to {rounds} more (time limit: {seconds:.0} \
                     s, or as long as the first rounds took)"
                ));
            }
            self.run.check_stop()
        };
        measure(&mut after).map_err(|error| error.at(self.label.to_string()))
    }

    /// Returns whether weights and intermediates are in host memory. Other devices report when they run out of memory.
    fn runs_in_host_memory(&self) -> bool {
        self.engine.id().is_on_cpu()
    }

    fn fits_in_memory(&self, program: &Program) -> bool {
        let Prompt { length, batch } = self.prompt;
        let cached =
            self.latency.decode.map_or(0, |new| self.config.cache_bytes(program) * ((length + new) * batch) as u64);
        let held = self.config.batch_bytes(self.prompt.tokens(), 1) + cached;
        let needed = self.choice.needed_bytes(self.config, program) + held;
        !self.runs_in_host_memory() || needed <= self.memory
    }

    /// Measures the peak memory in bytes, excluding the weights. A single new thread is used, so that thread-local
    /// caches are counted and the number of threads does not matter.
    fn measure_intermediate_bytes(&self, program: &Program) -> Result<Option<u64>> {
        // Weights that are built on demand would be counted as intermediates.
        let builds_on_demand = self.choice.weight_bytes(self.config) > self.memory;
        if !self.runs_in_host_memory() || builds_on_demand {
            return Ok(None);
        }
        let mut handles = Vec::new();
        let thread = rayon::ThreadPoolBuilder::new().num_threads(1).spawn_handler(|thread| {
            handles.push(std::thread::Builder::new().spawn(|| thread.run())?);
            Ok(())
        });
        let thread = thread.build().map_err(|error| Error::job("cannot start a thread").found(error.to_string()))?;
        let batch = self.prompt.as_batch(self.config.vocab);
        let trie = Trie::new(std::slice::from_ref(program));
        let (done, peak_bytes) =
            thread.install(|| heap::measure_peak(|| self.engine.run(&trie, &batch, &mut ()).map(drop)));
        drop(thread);
        // Wait until the thread has freed its memory.
        handles.into_iter().for_each(|handle| drop(handle.join()));
        done.map(|()| peak_bytes)
    }
}
