//! Timed passes, the variants' one after the other in every round: a drift of the machine meets them all.

use std::time::Instant;

use super::prompt::Prompt;
use crate::error::Result;
use crate::model::{Batch, Engine, Program, Trie, is_out_of_memory};

/// How often each variant reads the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounds {
    /// Passes that are not counted.
    pub warmups: usize,
    /// Passes that are.
    pub timed: usize,
}

impl Rounds {
    /// The paper's protocol, appendix F.
    pub const PAPER: Self = Self { warmups: 3, timed: 10 };
}

/// What came of one variant.
#[derive(Debug, Clone, PartialEq)]
pub enum Timed {
    /// Of each timed round.
    Milliseconds(Vec<f64>),
    /// The device had not enough memory for a pass.
    OutOfMemory,
}

/// How many passes [`interleaved`] makes at most.
pub fn passes(programs: usize, rounds: Rounds) -> usize {
    programs * (rounds.warmups + rounds.timed)
}

/// Times each program's pass over the prompt, alone in its trie, the head at every position. A pass ends when its
/// predictions are in this machine's memory: the device has nothing left to do. Every round begins with another program,
/// so that none always comes after the same one. `after` is called after each pass.
///
/// # Errors
/// A step that fails for another reason than want of memory, or what `after` returns.
pub fn interleaved(
    engine: &dyn Engine,
    programs: &[Program],
    prompt: Prompt,
    rounds: Rounds,
    after: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<Timed>> {
    let batch = prompt.as_batch(engine.config().vocab);
    let tries: Vec<Trie> = programs.iter().map(|program| Trie::new(std::slice::from_ref(program))).collect();
    let mut timed = vec![Timed::Milliseconds(Vec::with_capacity(rounds.timed)); programs.len()];
    for round in 0..rounds.warmups + rounds.timed {
        for place in 0..programs.len() {
            let at = (round + place) % programs.len();
            if timed[at] == Timed::OutOfMemory {
                continue;
            }
            match (pass(engine, &tries[at], &batch), &mut timed[at]) {
                (Ok(took), Timed::Milliseconds(all)) if round >= rounds.warmups => all.push(took),
                (Ok(_), _) => {}
                (Err(error), of) if is_out_of_memory(&error) => *of = Timed::OutOfMemory,
                (Err(error), _) => return Err(error),
            }
            after()?;
        }
    }
    Ok(timed)
}

/// Milliseconds of one pass.
fn pass(engine: &dyn Engine, trie: &Trie, batch: &Batch) -> Result<f64> {
    let started = Instant::now();
    let predictions = engine.run(trie, batch, &mut ())?;
    let took = started.elapsed().as_secs_f64() * 1e3;
    drop(predictions);
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::model::engine::tests::Adding;
    use crate::model::{Config, EngineId, HostRows, Observer, Prediction, ResidualStream, Step};
    use std::sync::Mutex;

    /// Notes the length of each program that it runs; has no room for one of more than `most` steps.
    struct Noting {
        inner: Adding,
        ran: Mutex<Vec<usize>>,
        most: usize,
    }

    impl Engine for Noting {
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
            self.ran.lock().unwrap().push(trie.len());
            if trie.len() > self.most {
                return Err(Error::job("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"));
            }
            self.inner.run(trie, batch, observer)
        }

        fn resume(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
            self.inner.resume(batch, steps, stream)
        }

        fn logits(&self, stream: &[f32], rows: &[usize]) -> Result<HostRows> {
            self.inner.logits(stream, rows)
        }
    }

    fn measured(most: usize) -> (Vec<Timed>, Vec<usize>, usize) {
        let engine = Noting { inner: Adding::new(), ran: Mutex::default(), most };
        let programs = [Program::dense(4), Program::pruned(4, &[1], |_| None), Program::pruned(4, &[1, 2], |_| None)];
        let (mut passes, rounds) = (0, Rounds { warmups: 1, timed: 3 });
        let mut after = || {
            passes += 1;
            Ok(())
        };
        let timed = interleaved(&engine, &programs, Prompt { length: 3, batch: 2 }, rounds, &mut after).unwrap();
        (timed, engine.ran.into_inner().unwrap(), passes)
    }

    #[test]
    fn every_round_has_every_variant_and_warm_ups_do_not_count() {
        let (timed, ran, passes) = measured(usize::MAX);
        // Steps: embedding, two a layer, head.
        assert_eq!(ran, [10, 8, 6, 8, 6, 10, 6, 10, 8, 10, 8, 6]);
        assert_eq!(passes, 12);
        assert!(timed.iter().all(|of| matches!(of, Timed::Milliseconds(all) if all.len() == 3)), "{timed:?}");
    }

    #[test]
    fn a_variant_without_room_is_said_to_and_the_others_go_on() {
        let (timed, ran, _) = measured(8);
        assert_eq!(timed[0], Timed::OutOfMemory);
        assert!(timed[1..].iter().all(|of| matches!(of, Timed::Milliseconds(all) if all.len() == 3)), "{timed:?}");
        assert_eq!(ran.iter().filter(|&&steps| steps == 10).count(), 1, "it is not tried again");
    }
}
