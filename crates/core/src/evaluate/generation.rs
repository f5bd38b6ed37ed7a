//! Eval set of generation tasks. Each chunk of prompts is continued under every program (variant) of a [`Trie`].

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::eval_set::{ChunkValues, EvalSet};
use crate::error::{Error, Result};
use crate::generate::{Detokenizer, End, Generation, Prompt, Settings, generate};
use crate::model::{Engine, Load, Trie, is_out_of_memory, out_of_memory_error};

/// Prompts per chunk. A killed run loses at most the chunks in progress: one on the CPU, one batch of chunks on a GPU.
pub const PROMPTS_PER_CHUNK: usize = 64;

/// Approximate number of prompts per pass on a GPU, unless they exceed [`DEVICE_TOKENS`].
const DEVICE_PROMPTS: usize = 1024;
/// Maximum number of tokens per pass on a GPU.
const DEVICE_TOKENS: usize = 1 << 18;

/// Eval set of prompts. The values of a chunk list the end reason, the number of new tokens and the ids of these tokens
/// for each prompt. [`GenerationEval::read`] parses them.
pub struct GenerationEval<'a> {
    prompts: &'a [Prompt],
    settings: Settings,
    detokenizer: &'a dyn Detokenizer,
    /// Maximum number of prompts that run at once. Halved whenever the device runs out of memory.
    max_prompts: AtomicUsize,
    /// Number of tokens per pass on a GPU.
    device_tokens: usize,
}

impl<'a> GenerationEval<'a> {
    /// Creates an eval set of prompts. The batch size in `settings` is ignored, because all chunks of a pass run
    /// together if the cache is large enough.
    pub fn new(prompts: &'a [Prompt], settings: Settings, detokenizer: &'a dyn Detokenizer) -> Self {
        let mut eval = Self { prompts, settings, detokenizer, max_prompts: usize::MAX.into(), device_tokens: 0 };
        let tokens: usize = prompts.iter().map(|prompt| eval.max_tokens(prompt)).sum();
        // Allow half a chunk more, because chunks differ in size.
        let pass_tokens = tokens * (2 * DEVICE_PROMPTS + PROMPTS_PER_CHUNK) / (2 * prompts.len().max(1));
        eval.device_tokens = pass_tokens.min(DEVICE_TOKENS);
        eval
    }

    /// Generates continuations. If the device runs out of memory, permanently halves the number of concurrent prompts,
    /// which does not affect results.
    fn generate_in_batches(
        &self,
        engine: &dyn Engine,
        trie: &Trie,
        prompts: &[Prompt],
    ) -> Result<Vec<Vec<Generation>>> {
        loop {
            let batch = prompts.len().clamp(1, self.max_prompts.load(Relaxed));
            let settings = Settings { batch, ..self.settings.clone() };
            match generate(engine, trie, prompts, &settings, self.detokenizer, &mut ()) {
                Err(error) if is_out_of_memory(&error) && batch > 1 => {
                    self.max_prompts.fetch_min(batch / 2, Relaxed);
                }
                Err(error) if is_out_of_memory(&error) => {
                    let longest = prompts.iter().map(|prompt| self.max_tokens(prompt)).max().unwrap_or(0);
                    return Err(out_of_memory_error(
                        &error,
                        format!("a prompt of {longest} tokens, including new tokens"),
                    ));
                }
                done => return done,
            }
        }
    }

    fn prompt_range(&self, chunk: usize) -> Range<usize> {
        chunk * PROMPTS_PER_CHUNK..self.prompts.len().min((chunk + 1) * PROMPTS_PER_CHUNK)
    }

    /// Returns the number of tokens in the truncated prompt plus the maximum number of new tokens.
    fn max_tokens(&self, prompt: &Prompt) -> usize {
        let new = self.settings.max_new_tokens;
        prompt.ids.len().min(self.settings.context.saturating_sub(new)) + new
    }

    /// Converts the values of all prompts to continuations.
    ///
    /// # Errors
    /// Fails if the values do not match the prompts, or a token is not in the vocabulary.
    pub fn read(&self, values: &[f64]) -> Result<Vec<Generation>> {
        let mismatch_error = || {
            Error::job("the stored tokens do not match the prompts")
                .expected(format!("tokens for {} prompts", self.prompts.len()))
        };
        let parts =
            split_prompts(values).filter(|parts| parts.len() == self.prompts.len()).ok_or_else(mismatch_error)?;
        parts
            .into_iter()
            .map(|(end, ids)| {
                let end = ENDS.get(end as usize).copied().ok_or_else(mismatch_error)?;
                let ids: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
                Generation::new(ids, end, &self.settings, self.detokenizer)
            })
            .collect()
    }
}

/// End reasons, indexed by the number under which they are stored.
const ENDS: [End; 4] = [End::EndOfText, End::Stop, End::Length, End::NotFinite];

/// Splits values into the end reason and tokens of each prompt. Returns `None` if they are truncated.
fn split_prompts(mut values: &[f64]) -> Option<Vec<(f64, &[f64])>> {
    let mut parts = Vec::new();
    while let [end, count, rest @ ..] = values {
        let (ids, later) = rest.split_at_checked(*count as usize)?;
        parts.push((*end, ids));
        values = later;
    }
    values.is_empty().then_some(parts)
}

fn encode_generation(generation: &Generation) -> impl Iterator<Item = f64> {
    let end = ENDS.iter().position(|end| *end == generation.end).unwrap_or(ENDS.len());
    [end as f64, generation.ids.len() as f64].into_iter().chain(generation.ids.iter().map(|&id| f64::from(id)))
}

impl EvalSet for GenerationEval<'_> {
    fn chunks(&self) -> usize {
        self.prompts.len().div_ceil(PROMPTS_PER_CHUNK)
    }

    /// Returns an upper bound, because a continuation may end early.
    fn tokens(&self, chunk: usize) -> usize {
        self.prompts[self.prompt_range(chunk)].iter().map(|prompt| self.max_tokens(prompt)).sum()
    }

    /// Returns the number of tokens in all prompts plus the average number of generated tokens per program.
    fn processed_tokens(&self, chunk: usize, program_values: &[&[f64]]) -> Option<usize> {
        let mut new = 0;
        for values in program_values {
            new += split_prompts(values)?.iter().map(|(_, ids)| ids.len()).sum::<usize>();
        }
        let max_new = self.settings.max_new_tokens;
        let prompts: usize =
            self.prompts[self.prompt_range(chunk)].iter().map(|prompt| self.max_tokens(prompt) - max_new).sum();
        Some(prompts + new / program_values.len().max(1))
    }

    fn load(&self, chunks: &[usize]) -> Load {
        let prompts = chunks.iter().flat_map(|&chunk| self.prompt_range(chunk));
        let count = prompts.clone().count();
        let tokens = prompts.map(|prompt| self.max_tokens(&self.prompts[prompt])).sum::<usize>();
        Load { tokens, scored: count * self.settings.max_new_tokens, length: tokens / count.max(1) }
    }

    /// Returns the preferred number of tokens per pass. On a device that is faster with more sequences, a pass has
    /// several chunks.
    fn pass_tokens(&self, engine: &dyn Engine, programs: usize) -> usize {
        let min = if engine.accumulation_device().is_some() { self.device_tokens } else { 0 };
        engine.pass_tokens(programs).max(min)
    }

    fn run(&self, engine: &dyn Engine, trie: &Trie, chunks: &[usize], seconds: &mut [f64]) -> Result<ChunkValues> {
        let started = Instant::now();
        let prompts: Vec<Prompt> =
            chunks.iter().flat_map(|&chunk| &self.prompts[self.prompt_range(chunk)]).cloned().collect();
        let mut done = self.generate_in_batches(engine, trie, &prompts)?.into_iter();
        let chunk_values = chunks
            .iter()
            .map(|&chunk| {
                let done: Vec<Vec<Generation>> = done.by_ref().take(self.prompt_range(chunk).len()).collect();
                (0..trie.programs())
                    .map(|program| {
                        done.iter()
                            .flat_map(|generations| encode_generation(&generations[program]))
                            .collect::<Vec<f64>>()
                    })
                    .collect()
            })
            .collect();
        // All programs share the first step, so time attributed to that step is divided equally among them.
        if let Some(first) = seconds.first_mut() {
            *first += started.elapsed().as_secs_f64();
        }
        Ok(chunk_values)
    }

    /// Returns two values per prompt, the end reason and the token count, as a lower bound.
    fn count(&self, chunk: usize) -> usize {
        2 * self.prompt_range(chunk).len()
    }

    fn generations(&self, values: &[f64]) -> Result<Option<Vec<Generation>>> {
        self.read(values).map(Some)
    }

    fn is_complete(&self, chunk: usize, values: &[f64]) -> bool {
        split_prompts(values).is_some_and(|parts| parts.len() == self.prompt_range(chunk).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;

    struct LetterDetokenizer;

    impl Detokenizer for LetterDetokenizer {
        fn decode(&self, ids: &[u32], _: bool) -> Result<String> {
            Ok(ids.iter().filter_map(|&id| char::from_digit(id, 36)).collect())
        }
    }

    #[test]
    fn generation_values_round_trip_and_truncated_ones_fail() {
        let settings = Settings { stops: vec!["c".to_owned()], ..Settings::greedy(4, 64) };
        let prompts: Vec<Prompt> = (0..2).map(|index| Prompt { identity: index.to_string(), ids: vec![1] }).collect();
        let generations = [
            Generation::new(vec![10, 11, 12], End::Stop, &settings, &LetterDetokenizer).unwrap(),
            Generation::new(Vec::new(), End::NotFinite, &settings, &LetterDetokenizer).unwrap(),
        ];
        let all: Vec<f64> = generations.iter().flat_map(encode_generation).collect();
        assert_eq!(all, [1.0, 3.0, 10.0, 11.0, 12.0, 3.0, 0.0]);
        let eval = GenerationEval::new(&prompts, settings, &LetterDetokenizer);
        assert_eq!(eval.read(&all).unwrap(), generations);
        assert_eq!(generations[0].text, "ab", "the text must end at the stop string");
        assert!(eval.is_complete(0, &all));
        for other in [&all[..6], &all[..5], &all[..4], &[]] {
            assert!(!eval.is_complete(0, other), "{other:?}");
        }
        assert!(eval.read(&all[..5]).is_err());
        // The token count of a prompt is its length plus the maximum number of new tokens.
        assert_eq!((eval.chunks(), eval.tokens(0)), (1, 10));
        // Processed tokens: two one-token prompts and three generated tokens.
        assert_eq!(
            (
                eval.processed_tokens(0, &[&all]),
                eval.processed_tokens(0, &[&all, &all]),
                eval.processed_tokens(0, &[&all[..4]])
            ),
            (Some(5), Some(5), None)
        );
    }

    #[test]
    fn device_batch_size_shrinks_for_long_prompts() {
        assert_eq!(
            (count_chunks_per_pass(4), count_chunks_per_pass(100)),
            (DEVICE_PROMPTS / PROMPTS_PER_CHUNK, DEVICE_PROMPTS / PROMPTS_PER_CHUNK)
        );
        assert_eq!(count_chunks_per_pass(1018), DEVICE_TOKENS / 1024 / PROMPTS_PER_CHUNK);
    }

    fn count_chunks_per_pass(length: usize) -> usize {
        let prompts: Vec<Prompt> = (0..40 * PROMPTS_PER_CHUNK)
            .map(|index| Prompt { identity: index.to_string(), ids: vec![1; length] })
            .collect();
        let eval = GenerationEval::new(&prompts, Settings::greedy(6, 1 << 20), &LetterDetokenizer);
        eval.device_tokens / eval.tokens(0)
    }
}
