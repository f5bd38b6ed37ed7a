//! Timed rounds. Every round runs the programs of all variants, so that machine drift affects them equally.

use std::time::{Duration, Instant};

use super::spread::TimeSpread;
use crate::error::Result;
use crate::model::{Batch, Engine, Program, ScoredRow, Trie, is_out_of_memory};

/// Number of passes per variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounds {
    /// Number of untimed passes before the timed ones.
    pub warmups: usize,
    pub timed: usize,
}

impl Rounds {
    /// Protocol of the Ghosted Layers paper, appendix G.
    pub const PAPER: Self = Self { warmups: 3, timed: 10 };
}

/// Limit on additional rounds while times are unstable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExtraRounds {
    /// Maximum number of additional rounds.
    pub rounds: usize,
    /// Maximum duration of additional rounds in seconds. If the requested rounds took longer, their duration is the
    /// limit.
    pub seconds: f64,
}

impl ExtraRounds {
    pub const DEFAULT: Self = Self { rounds: 100, seconds: 180.0 };
}

/// Timing outcome of one variant.
#[derive(Debug, Clone, PartialEq)]
pub enum PassTimes {
    /// Duration of each timed round in milliseconds.
    Milliseconds(Vec<f64>),
    /// The device had insufficient memory for a pass.
    OutOfMemory,
}

/// Timing outcome of all variants.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    pub timed: Vec<PassTimes>,
    /// Index of the first of the most stable consecutive rounds. These rounds are counted for all variants that are
    /// stable in them.
    pub first_counted_round: usize,
}

/// Returns the index of the first round to count for a variant. `times` are those of the variant and of the dense
/// backbone. If they are stable from `first` on, the variant uses the rounds that all variants of the session share.
/// Otherwise it uses its own most stable consecutive rounds.
pub(super) fn choose_counted_rounds(first: usize, times: &[&[f64]]) -> usize {
    let count = Rounds::PAPER.timed;
    let is_stable = measure_instability(times, first, count).0 == 0;
    if is_stable { first } else { find_most_stable_rounds(times, count) }
}

/// Returns the number of passes that [`measure_interleaved`] makes if no additional rounds are needed.
pub fn count_passes(programs: usize, rounds: Rounds) -> usize {
    programs * (rounds.warmups + rounds.timed)
}

/// Times each program's pass over the prompt. Each program runs in a separate trie, and the head is applied at every
/// position. A pass ends only when its predictions are in host memory, so no work is pending on the device. See
/// `run_rounds`.
///
/// # Errors
/// Fails if a step fails for a reason other than insufficient memory. Propagates errors from `after_pass`.
pub fn measure_interleaved(
    engine: &dyn Engine,
    programs: &[Program],
    prompt: Prompt,
    rounds: Rounds,
    extra: ExtraRounds,
    after_pass: &mut dyn FnMut(bool) -> Result<()>,
) -> Result<Session> {
    let batch = prompt.as_batch(engine.config().vocab);
    let tries = build_separate_tries(programs);
    run_rounds(tries.len(), rounds, extra, &mut |index| time_pass(engine, &tries[index], &batch), after_pass)
}

/// Builds a separate trie for each program, so that programs share no steps.
pub(super) fn build_separate_tries(programs: &[Program]) -> Vec<Trie> {
    programs.iter().map(|program| Trie::new(std::slice::from_ref(program))).collect()
}

/// Runs rounds of one pass per program. `pass` returns milliseconds. Every round starts with a different program, so
/// that the order varies. `after_pass` runs after each pass. Its argument states whether the pass belongs to the
/// requested rounds.
///
/// A time is unstable if it varies too much ([`TimeSpread::is_noise`]). Rounds are added, up to the limits of `extra`,
/// until each program has `rounds.timed` consecutive rounds in which both this program and the first one, the dense
/// backbone, are stable. These rounds may differ between programs, because with dozens of programs, no rounds are
/// stable for all of them unless the machine is perfectly idle. Source: Georges, Buytaert and Eeckhout, "Statistically
/// rigorous Java performance evaluation", OOPSLA 2007, section 4.2.
pub(super) fn run_rounds(
    programs: usize,
    rounds: Rounds,
    extra: ExtraRounds,
    pass: &mut dyn FnMut(usize) -> Result<f64>,
    after_pass: &mut dyn FnMut(bool) -> Result<()>,
) -> Result<Session> {
    let mut timed = vec![PassTimes::Milliseconds(Vec::with_capacity(rounds.timed)); programs];
    let requested = rounds.warmups + rounds.timed;
    let mut timing_started = Instant::now();
    let mut requested_duration = Duration::ZERO;
    for round in 0..requested + extra.rounds {
        if round == rounds.warmups {
            timing_started = Instant::now();
        }
        if round == requested {
            requested_duration = timing_started.elapsed();
        }
        let limit = requested_duration.max(Duration::from_secs_f64(extra.seconds));
        if round >= requested
            && (have_stable_rounds(&timed, rounds.timed)
                || (round > requested && timing_started.elapsed() - requested_duration >= limit))
        {
            break;
        }
        for turn in 0..programs {
            let index = (round + turn) % programs;
            if timed[index] == PassTimes::OutOfMemory {
                continue;
            }
            match (pass(index), &mut timed[index]) {
                (Ok(took), PassTimes::Milliseconds(times)) if round >= rounds.warmups => times.push(took),
                (Ok(_), _) => {}
                (Err(error), slot) if is_out_of_memory(&error) => *slot = PassTimes::OutOfMemory,
                (Err(error), _) => return Err(error),
            }
            after_pass(round < requested)?;
        }
    }
    let first_counted_round = find_most_stable_rounds(&measured_times(&timed), rounds.timed);
    Ok(Session { timed, first_counted_round })
}

/// Returns the times of the programs that did not run out of memory.
fn measured_times(timed: &[PassTimes]) -> Vec<&[f64]> {
    let measured = timed.iter().filter_map(|timed| match timed {
        PassTimes::Milliseconds(times) => Some(&times[..]),
        PassTimes::OutOfMemory => None,
    });
    measured.collect()
}

/// Returns whether each program has `count` consecutive rounds in which both this program and the first one are stable.
fn have_stable_rounds(timed: &[PassTimes], count: usize) -> bool {
    let times = measured_times(timed);
    let Some(&dense) = times.first() else { return true };
    times.iter().all(|&times| {
        let pair = [dense, times];
        measure_instability(&pair, find_most_stable_rounds(&pair, count), count).0 == 0
    })
}

/// Returns the number of unstable programs and the sum of relative deviations for `count` rounds starting at `first`.
fn measure_instability(times: &[&[f64]], first: usize, count: usize) -> (usize, f64) {
    let counted = times.iter().filter_map(|all| all.get(first..all.len().min(first + count)));
    let spreads: Vec<TimeSpread> = counted.filter_map(TimeSpread::from_times).collect();
    (spreads.iter().filter(|spread| spread.is_noise()).count(), spreads.iter().map(TimeSpread::relative).sum())
}

/// Returns the start of the `count` consecutive rounds with the fewest unstable programs. The sum of relative
/// deviations breaks ties.
fn find_most_stable_rounds(times: &[&[f64]], count: usize) -> usize {
    let rounds = times.iter().map(|all| all.len()).max().unwrap_or(0);
    let candidates = (0..=rounds.saturating_sub(count)).map(|first| (first, measure_instability(times, first, count)));
    candidates.min_by(|(_, a), (_, b)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).map_or(0, |(first, _)| first)
}

fn time_pass(engine: &dyn Engine, trie: &Trie, batch: &Batch) -> Result<f64> {
    let started = Instant::now();
    let predictions = engine.run(trie, batch, &mut ())?;
    let took = started.elapsed().as_secs_f64() * 1e3;
    drop(predictions);
    Ok(took)
}

/// Batch of sequences of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prompt {
    /// Number of tokens per sequence.
    pub length: usize,
    /// Number of sequences.
    pub batch: usize,
}

impl Prompt {
    pub fn tokens(&self) -> usize {
        self.length * self.batch
    }

    /// Builds the prompt as a batch with the head at every position, as in the paper's code. The ids are fixed and
    /// spread over the vocabulary. The time does not depend on them.
    pub fn as_batch(&self, vocab: usize) -> Batch {
        let mut batch = Batch::default();
        for sequence in 0..self.batch {
            let first = sequence * self.length;
            let ids: Vec<u32> = (first..first + self.length).map(|position| sample_id(position, vocab)).collect();
            batch.push(&ids, None);
        }
        batch.targets = (0..self.tokens()).map(|row| ScoredRow { row, token: sample_id(row + 1, vocab) }).collect();
        batch
    }
}

fn sample_id(position: usize, vocab: usize) -> u32 {
    (position.wrapping_mul(SAMPLE_ID_STRIDE) % vocab.max(1)) as u32
}

/// Prime stride between ids, chosen so that consecutive ids rarely share a page of the embedding.
const SAMPLE_ID_STRIDE: usize = 7919;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::error::Error;
    use crate::model::engine::tests::AddingEngine;
    use crate::model::{Config, EngineId, HostRows, Observer, Prediction, ResidualStream, Step};

    /// Engine that records the length of each program it runs. Programs of more than `max_steps` steps run out of
    /// memory.
    struct RecordingEngine {
        inner: AddingEngine,
        run_lengths: Mutex<Vec<usize>>,
        max_steps: usize,
    }

    impl Engine for RecordingEngine {
        fn id(&self) -> EngineId {
            self.inner.id()
        }

        fn config(&self) -> &Config {
            self.inner.config()
        }

        fn part_tokens(&self) -> usize {
            1
        }

        fn run(
            &self,
            trie: &Trie,
            batch: &Batch,
            observer: &mut dyn Observer<dyn ResidualStream>,
        ) -> Result<Vec<Option<Vec<Prediction>>>> {
            self.run_lengths.lock().unwrap().push(trie.len());
            if trie.len() > self.max_steps {
                return Err(Error::job("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"));
            }
            self.inner.run(trie, batch, observer)
        }

        fn run_steps(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
            self.inner.run_steps(batch, steps, stream)
        }

        fn logits(&self, stream: &[f32], rows: &[usize]) -> Result<HostRows> {
            self.inner.logits(stream, rows)
        }
    }

    /// Limit that allows no additional rounds.
    const NO_EXTRA_ROUNDS: ExtraRounds = ExtraRounds { rounds: 0, seconds: 0.0 };

    fn measure_rounds(max_steps: usize) -> (Vec<PassTimes>, Vec<usize>, usize) {
        let engine = RecordingEngine { inner: AddingEngine::new(), run_lengths: Mutex::default(), max_steps };
        let programs = [Program::dense(4), Program::pruned(4, &[1], |_| None), Program::pruned(4, &[1, 2], |_| None)];
        let mut passes = 0;
        let rounds = Rounds { warmups: 1, timed: 3 };
        let prompt = Prompt { length: 3, batch: 2 };
        let session = measure_interleaved(&engine, &programs, prompt, rounds, NO_EXTRA_ROUNDS, &mut |_| {
            passes += 1;
            Ok(())
        });
        let session = session.unwrap();
        (session.timed, engine.run_lengths.into_inner().unwrap(), passes)
    }

    #[test]
    fn rounds_time_every_variant_and_exclude_warmups() {
        let (timed, run_lengths, passes) = measure_rounds(usize::MAX);
        // Steps per program: embedding, two per layer, head.
        assert_eq!(run_lengths, [10, 8, 6, 8, 6, 10, 6, 10, 8, 10, 8, 6]);
        assert_eq!(passes, 12);
        assert!(
            timed.iter().all(|variant| matches!(variant, PassTimes::Milliseconds(times) if times.len() == 3)),
            "{timed:?}"
        );
    }

    #[test]
    fn out_of_memory_variant_is_marked_and_not_rerun() {
        let (timed, run_lengths, _) = measure_rounds(8);
        assert_eq!(timed[0], PassTimes::OutOfMemory);
        assert!(
            timed[1..].iter().all(|variant| matches!(variant, PassTimes::Milliseconds(times) if times.len() == 3)),
            "{timed:?}"
        );
        assert_eq!(
            run_lengths.iter().filter(|&&steps| steps == 10).count(),
            1,
            "a variant without enough memory was run again"
        );
    }

    /// Engine whose passes take the given times in turn, then repeat the last one.
    struct TimedEngine {
        inner: RecordingEngine,
        milliseconds: Mutex<Vec<u64>>,
    }

    impl Engine for TimedEngine {
        fn id(&self) -> EngineId {
            self.inner.id()
        }

        fn config(&self) -> &Config {
            self.inner.config()
        }

        fn part_tokens(&self) -> usize {
            1
        }

        fn run(
            &self,
            trie: &Trie,
            batch: &Batch,
            observer: &mut dyn Observer<dyn ResidualStream>,
        ) -> Result<Vec<Option<Vec<Prediction>>>> {
            let mut left = self.milliseconds.lock().unwrap();
            let next = if left.len() > 1 { left.remove(0) } else { left[0] };
            std::thread::sleep(Duration::from_millis(next));
            self.inner.run(trie, batch, observer)
        }

        fn run_steps(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
            self.inner.run_steps(batch, steps, stream)
        }

        fn logits(&self, stream: &[f32], rows: &[usize]) -> Result<HostRows> {
            self.inner.logits(stream, rows)
        }
    }

    /// Runs one program with the given pass times and requests three rounds after a warm-up. Returns the number of
    /// rounds, the first counted round, and the number of additional passes.
    fn measure_adaptive_rounds(milliseconds: &[u64], extra: ExtraRounds) -> (usize, usize, usize) {
        let inner =
            RecordingEngine { inner: AddingEngine::new(), run_lengths: Mutex::default(), max_steps: usize::MAX };
        let engine = TimedEngine { inner, milliseconds: Mutex::new(milliseconds.to_vec()) };
        let rounds = Rounds { warmups: 1, timed: 3 };
        let mut extra_passes = 0;
        let prompt = Prompt { length: 3, batch: 2 };
        let session = measure_interleaved(&engine, &[Program::dense(4)], prompt, rounds, extra, &mut |is_requested| {
            extra_passes += usize::from(!is_requested);
            Ok(())
        });
        let session = session.unwrap();
        let PassTimes::Milliseconds(times) = &session.timed[0] else { panic!("{session:?}") };
        (times.len(), session.first_counted_round, extra_passes)
    }

    #[test]
    fn noisy_rounds_are_repeated_until_stable() {
        let extra = ExtraRounds { rounds: 60, seconds: 60.0 };
        // The standard deviation of 40, 200 and 40 ms is about as large as their mean, so these times are unstable.
        let (rounds, first, extra_rounds) = measure_adaptive_rounds(&[40, 200, 40, 200, 40], extra);
        assert!(rounds >= 6 && first == rounds - 3, "{rounds} rounds, from {first}");
        assert_eq!(extra_rounds, rounds - 3);
    }

    #[test]
    fn unstable_rounds_end_at_their_limit() {
        let noise: Vec<u64> = [1, 30].into_iter().cycle().take(400).collect();
        let (rounds, first, extra_rounds) = measure_adaptive_rounds(&noise, ExtraRounds { rounds: 4, seconds: 60.0 });
        assert_eq!((rounds, extra_rounds), (7, 4));
        assert!(first <= 4);
        // With a limit of 0 seconds, the additional rounds may still take as long as the requested ones.
        assert!(measure_adaptive_rounds(&noise, ExtraRounds { rounds: 300, seconds: 0.0 }).0 < 303);
        assert_eq!(measure_adaptive_rounds(&noise, NO_EXTRA_ROUNDS).0, 3);
    }

    #[test]
    fn most_stable_consecutive_rounds_are_chosen() {
        let timed = [milliseconds(&[9.0, 5.0, 5.0, 5.1, 9.0]), PassTimes::OutOfMemory, milliseconds(&[2.0; 5])];
        let times = measured_times(&timed);
        assert_eq!(times.len(), 2);
        assert_eq!(find_most_stable_rounds(&times, 3), 1);
        assert_eq!(find_most_stable_rounds(&[], 3), 0);
        assert_eq!(measure_instability(&times, 0, 3).0, 1);
    }

    #[test]
    fn variants_may_be_stable_in_different_rounds() {
        let dense = milliseconds(&[5.0; 6]);
        let (early, late) =
            (milliseconds(&[2.0, 2.0, 2.0, 9.0, 2.0, 9.0]), milliseconds(&[9.0, 2.0, 9.0, 2.0, 2.0, 2.0]));
        assert!(have_stable_rounds(&[dense.clone(), early.clone(), late.clone()], 3));
        // A variant is not compared with unstable times of the dense backbone.
        assert!(!have_stable_rounds(&[late, early], 3));
        assert!(have_stable_rounds(&[PassTimes::OutOfMemory], 3));
    }

    #[test]
    fn shared_rounds_are_counted_unless_they_are_unstable() {
        let dense = [5.0; 20];
        let mut variant = [2.0; 20];
        assert_eq!(choose_counted_rounds(4, &[&dense, &variant]), 4);
        variant[5] = 9.0;
        assert_eq!(choose_counted_rounds(4, &[&dense, &variant]), 6);
    }

    fn milliseconds(times: &[f64]) -> PassTimes {
        PassTimes::Milliseconds(times.to_vec())
    }

    #[test]
    fn prompt_batch_predicts_every_position() {
        let batch = Prompt { length: 5, batch: 3 }.as_batch(11);
        assert_eq!((batch.tokens(), batch.segments.len(), batch.longest()), (15, 3, 5));
        assert_eq!(batch.targets.iter().map(|target| target.row).collect::<Vec<_>>(), (0..15).collect::<Vec<_>>());
        assert!(batch.ids.iter().chain(batch.targets.iter().map(|target| &target.token)).all(|&id| id < 11));
    }
}
