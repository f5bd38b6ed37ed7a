//! Generation: prompts that every program of a trie continues, chunk by chunk.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::eval_set::{ChunkValues, EvalSet};
use crate::error::{Error, Result};
use crate::generate::{Detokenizer, End, Generation, Prompt, Settings, generate};
use crate::model::{Engine, Load, Trie, is_out_of_memory, out_of_memory};

/// Prompts of a chunk, which run together. When a run is killed, no more is lost than they gave; on another device than the
/// processor, what the chunks gave that are computed together.
pub const CHUNK: usize = 64;

/// Prompts that are computed together on another device than the processor, and tokens, which are fewer prompts where these are
/// long.
const DEVICE_PROMPTS: usize = 1024;
const DEVICE_TOKENS: usize = 1 << 18;

/// Prompts as an eval set: a chunk's values are, of each of its prompts, why it ended, how many tokens it got, and these.
/// [`GenerationEval::read`] reads them.
pub struct GenerationEval<'a> {
    prompts: &'a [Prompt],
    settings: Settings,
    text: &'a dyn Detokenizer,
    /// Prompts that run at a time at most.
    together: AtomicUsize,
    /// Tokens that run together on another device.
    device_tokens: usize,
}

impl<'a> GenerationEval<'a> {
    /// Creates an eval set of prompts. The batch in `settings` is ignored: chunks of one pass run together if the cache has
    /// room.
    pub fn new(prompts: &'a [Prompt], settings: Settings, text: &'a dyn Detokenizer) -> Self {
        let mut eval = Self { prompts, settings, text, together: usize::MAX.into(), device_tokens: 0 };
        let tokens: usize = prompts.iter().map(|prompt| eval.size(prompt)).sum();
        // Adds half a chunk, because chunks differ in size.
        let together = tokens * (2 * DEVICE_PROMPTS + CHUNK) / (2 * prompts.len().max(1));
        eval.device_tokens = together.min(DEVICE_TOKENS);
        eval
    }

    /// Generates continuations. If the device runs out of memory, half as many prompts run at a time from then on. Results
    /// do not depend on it.
    fn generated(&self, engine: &dyn Engine, trie: &Trie, prompts: &[Prompt]) -> Result<Vec<Vec<Generation>>> {
        loop {
            let batch = prompts.len().clamp(1, self.together.load(Relaxed));
            let settings = Settings { batch, ..self.settings.clone() };
            match generate(engine, trie, prompts, &settings, self.text, &mut ()) {
                Err(error) if is_out_of_memory(&error) && batch > 1 => {
                    self.together.fetch_min(batch / 2, Relaxed);
                }
                Err(error) if is_out_of_memory(&error) => {
                    let longest = prompts.iter().map(|prompt| self.size(prompt)).max().unwrap_or(0);
                    return Err(out_of_memory(
                        &error,
                        format!("a prompt of {longest} tokens, with those that it may get"),
                    ));
                }
                done => return done,
            }
        }
    }

    fn members(&self, chunk: usize) -> Range<usize> {
        chunk * CHUNK..self.prompts.len().min((chunk + 1) * CHUNK)
    }

    /// Returns the tokens of a prompt that the model sees, plus the maximum number of new tokens.
    fn size(&self, prompt: &Prompt) -> usize {
        let new = self.settings.max_new_tokens;
        prompt.ids.len().min(self.settings.context.saturating_sub(new)) + new
    }

    /// Converts the values of all prompts to continuations.
    ///
    /// # Errors
    /// Values that are none of these prompts'; tokens that are none of the vocabulary's.
    pub fn read(&self, values: &[f64]) -> Result<Vec<Generation>> {
        let unlike = || {
            Error::job("the tokens do not fit the prompts").expected(format!("those of {} prompts", self.prompts.len()))
        };
        let parts = parts(values).filter(|parts| parts.len() == self.prompts.len()).ok_or_else(unlike)?;
        parts
            .into_iter()
            .map(|(end, ids)| {
                let end = ENDS.get(end as usize).copied().ok_or_else(unlike)?;
                let ids: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
                Generation::new(ids, end, &self.settings, self.text)
            })
            .collect()
    }
}

/// Why continuations end, by their numbers.
const ENDS: [End; 4] = [End::EndOfText, End::Stop, End::Length, End::NotFinite];

/// Splits values into each prompt's end and tokens. `None` if they are truncated.
fn parts(mut values: &[f64]) -> Option<Vec<(f64, &[f64])>> {
    let mut parts = Vec::new();
    while let [end, count, rest @ ..] = values {
        let (ids, later) = rest.split_at_checked(*count as usize)?;
        parts.push((*end, ids));
        values = later;
    }
    values.is_empty().then_some(parts)
}

fn values(generation: &Generation) -> impl Iterator<Item = f64> {
    let end = ENDS.iter().position(|end| *end == generation.end).unwrap_or(ENDS.len());
    [end as f64, generation.ids.len() as f64].into_iter().chain(generation.ids.iter().map(|&id| f64::from(id)))
}

impl EvalSet for GenerationEval<'_> {
    fn chunks(&self) -> usize {
        self.prompts.len().div_ceil(CHUNK)
    }

    /// Returns an upper bound, because a continuation may end early.
    fn tokens(&self, chunk: usize) -> usize {
        self.prompts[self.members(chunk)].iter().map(|prompt| self.size(prompt)).sum()
    }

    /// Counts each prompt once, plus the average number of generated tokens.
    fn ran(&self, chunk: usize, of_programs: &[&[f64]]) -> Option<usize> {
        let new = |values: &&[f64]| parts(values).map(|parts| parts.iter().map(|(_, ids)| ids.len()).sum::<usize>());
        let new: usize = of_programs.iter().map(new).sum::<Option<usize>>()?;
        let most = self.settings.max_new_tokens;
        let prompts: usize = self.prompts[self.members(chunk)].iter().map(|prompt| self.size(prompt) - most).sum();
        Some(prompts + new / of_programs.len().max(1))
    }

    fn load(&self, chunks: &[usize]) -> Load {
        let members = || chunks.iter().flat_map(|&chunk| self.members(chunk));
        let count = members().count();
        let tokens = members().map(|member| self.size(&self.prompts[member])).sum::<usize>();
        Load { tokens, scored: count * self.settings.max_new_tokens, length: tokens / count.max(1) }
    }

    /// Returns the tokens of several chunks if the device is faster with more sequences.
    fn pass_tokens(&self, engine: &dyn Engine, programs: usize) -> usize {
        let least = if engine.sums_device().is_some() { self.device_tokens } else { 0 };
        engine.pass_tokens(programs).max(least)
    }

    fn run(&self, engine: &dyn Engine, trie: &Trie, chunks: &[usize], seconds: &mut [f64]) -> Result<ChunkValues> {
        let started = Instant::now();
        let prompts: Vec<Prompt> =
            chunks.iter().flat_map(|&chunk| &self.prompts[self.members(chunk)]).cloned().collect();
        let mut done = self.generated(engine, trie, &prompts)?.into_iter();
        let of_chunks = chunks
            .iter()
            .map(|&chunk| {
                let done: Vec<Vec<Generation>> = done.by_ref().take(self.members(chunk).len()).collect();
                (0..trie.programs())
                    .map(|program| {
                        done.iter().flat_map(|generations| values(&generations[program])).collect::<Vec<f64>>()
                    })
                    .collect()
            })
            .collect();
        // All programs share the first step, so they share the time equally.
        if let Some(first) = seconds.first_mut() {
            *first += started.elapsed().as_secs_f64();
        }
        Ok(of_chunks)
    }

    /// Counts the two values that precede each prompt's tokens.
    fn count(&self, chunk: usize) -> usize {
        2 * self.members(chunk).len()
    }

    fn generations(&self, values: &[f64]) -> Result<Option<Vec<Generation>>> {
        self.read(values).map(Some)
    }

    fn fits(&self, chunk: usize, values: &[f64]) -> bool {
        parts(values).is_some_and(|parts| parts.len() == self.members(chunk).len())
    }

    fn assemble(&self, chunks: &[Vec<f64>]) -> Vec<f64> {
        chunks.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;

    struct Letters;

    impl Detokenizer for Letters {
        fn text(&self, ids: &[u32], _: bool) -> Result<String> {
            Ok(ids.iter().filter_map(|&id| char::from_digit(id, 36)).collect())
        }
    }

    #[test]
    fn generation_cache_rejects_values_of_other_prompts() {
        let settings = Settings { stops: vec!["c".to_owned()], ..Settings::greedy(4, 64) };
        let prompts: Vec<Prompt> = (0..2).map(|index| Prompt { identity: index.to_string(), ids: vec![1] }).collect();
        let generations = [
            Generation::new(vec![10, 11, 12], End::Stop, &settings, &Letters).unwrap(),
            Generation::new(Vec::new(), End::NotFinite, &settings, &Letters).unwrap(),
        ];
        let all: Vec<f64> = generations.iter().flat_map(values).collect();
        assert_eq!(all, [1.0, 3.0, 10.0, 11.0, 12.0, 3.0, 0.0]);
        let eval = GenerationEval::new(&prompts, settings, &Letters);
        assert_eq!(eval.read(&all).unwrap(), generations);
        assert_eq!(generations[0].text, "ab", "up to the stop");
        assert!(eval.fits(0, &all));
        for other in [&all[..6], &all[..5], &all[..4], &[]] {
            assert!(!eval.fits(0, other), "{other:?}");
        }
        assert!(eval.read(&all[..5]).is_err());
        // Each counts with all tokens that it may get.
        assert_eq!((eval.chunks(), eval.tokens(0)), (1, 10));
        // Two prompts of one token and three new tokens ran.
        assert_eq!(
            (eval.ran(0, &[&all]), eval.ran(0, &[&all, &all]), eval.ran(0, &[&all[..4]])),
            (Some(5), Some(5), None)
        );
    }

    #[test]
    fn device_batches_chunks_together_and_fewer_long_prompts() {
        assert_eq!((count_passes(4), count_passes(100)), (DEVICE_PROMPTS / CHUNK, DEVICE_PROMPTS / CHUNK));
        assert_eq!(count_passes(1018), DEVICE_TOKENS / 1024 / CHUNK);
    }

    fn count_passes(length: usize) -> usize {
        let prompts: Vec<Prompt> =
            (0..40 * CHUNK).map(|index| Prompt { identity: index.to_string(), ids: vec![1; length] }).collect();
        let eval = GenerationEval::new(&prompts, Settings::greedy(6, 1 << 20), &Letters);
        eval.device_tokens / eval.tokens(0)
    }
}
