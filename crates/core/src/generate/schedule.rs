//! Continuous batching: runs as many prompts at once as the batch size and the cache allow, each under all programs.
//! When a prompt finishes, the next one starts.
//!
//! Prompts run in the lexicographic order of their token ids, so that prompts with a common prefix are adjacent. Each
//! prompt reuses the cached blocks of its predecessor and runs only the remaining tokens.

use std::collections::{HashMap, HashSet, VecDeque};

use rayon::prelude::*;

use super::generated_text::{Detokenizer, End, Generation, find_end_reason};
use super::processors::GeneratedSequence;
use super::sampling::TokenSampler;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::model::{BlockId, Config, Decoding, Engine, SequenceInput, Trie, argmax};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Identity of the prompt. Together with the seed, it seeds the prompt's random generator.
    pub identity: String,
    /// Token ids, at least one.
    pub ids: Vec<u32>,
}

/// Progress callbacks. An error stops the generation.
pub trait GenerationObserver {
    /// Called when a prompt is finished, with its continuation under each program.
    fn on_prompt_finished(&mut self, prompt: usize, generations: &[Generation]) -> Result<()>;

    /// Called before each round that adds a token to every running sequence.
    fn on_round(&mut self) -> Result<()> {
        Ok(())
    }
}

impl GenerationObserver for () {
    fn on_prompt_finished(&mut self, _: usize, _: &[Generation]) -> Result<()> {
        Ok(())
    }
}

/// Generates the continuations of all prompts under each program of a trie.
///
/// # Errors
/// Fails if the settings are contradictory, a prompt is empty, or the cache is too small for one prompt. Propagates
/// errors from `observer`.
pub fn generate(
    engine: &dyn Engine,
    trie: &Trie,
    prompts: &[Prompt],
    settings: &Settings,
    detokenizer: &dyn Detokenizer,
    observer: &mut dyn GenerationObserver,
) -> Result<Vec<Vec<Generation>>> {
    settings.check()?;
    let cache_bytes =
        engine.cache_bytes().map_or(settings.cache_bytes, |available| available.min(settings.cache_bytes));
    let settings = &Settings { cache_bytes, ..settings.clone() };
    let mut schedule = Schedule::new(engine, trie, prompts, settings)?;
    while schedule.is_busy() {
        observer.on_round()?;
        schedule.run_round(detokenizer, observer)?;
    }
    let generations = schedule.generations.into_iter().map(|outcomes| outcomes.into_iter().flatten().collect());
    Ok(generations.collect())
}

/// Blocks of the KV cache in order, each with the number of its tokens in use.
type BlockChain = Vec<(BlockId, usize)>;

/// Continuation of one prompt under one program.
struct Sequence {
    prompt: usize,
    program: usize,
    /// Blocks that contain the prompt, kept until the prompt is finished under all programs.
    chain: BlockChain,
    block: BlockId,
    /// Whether `block` includes the prompt because the sequence was recomputed in another length regime.
    includes_prompt: bool,
    ids: Vec<u32>,
    /// Sampling state, or `None` for greedy decoding.
    sampler: Option<TokenSampler>,
}

impl Sequence {
    /// Chooses the next token from the given logits. Returns `None` if no logit is finite or one is NaN or +∞.
    fn choose_token(&mut self, logits: &mut [f32], prompt: &[u32], settings: &Settings) -> Option<u32> {
        argmax(logits)?;
        settings
            .processors
            .apply(logits, GeneratedSequence { prompt, new: &self.ids, max_new_tokens: settings.max_new_tokens });
        match &mut self.sampler {
            Some(sampler) => sampler.next(logits),
            None => argmax(logits),
        }
    }
}

struct Schedule<'a> {
    decoding: Box<dyn Decoding + 'a>,
    config: &'a Config,
    /// Maximum number of new prompt tokens per round, unless a single prompt exceeds it.
    prompt_tokens: usize,
    settings: &'a Settings,
    prompts: &'a [Prompt],
    /// Token ids of each prompt, truncated to the context length.
    ids: Vec<&'a [u32]>,
    programs: Vec<usize>,
    pending_prompts: VecDeque<usize>,
    sequences: Vec<Sequence>,
    /// Generations indexed by `[prompt][program]`.
    generations: Vec<Vec<Option<Generation>>>,
    /// Reference count and size in bytes of each block.
    blocks: HashMap<BlockId, (usize, u64)>,
    /// Most recent prompt, whose blocks are kept for the next one.
    previous_prompt: Option<(usize, BlockChain)>,
    used_bytes: u64,
    next_block: BlockId,
}

impl<'a> Schedule<'a> {
    fn new(engine: &'a dyn Engine, trie: &'a Trie, prompts: &'a [Prompt], settings: &'a Settings) -> Result<Self> {
        let programs: Vec<usize> = (0..trie.programs()).collect();
        let max_prompt = settings.context - settings.max_new_tokens;
        let ids: Vec<&[u32]> =
            prompts.iter().map(|prompt| &prompt.ids[prompt.ids.len().saturating_sub(max_prompt)..]).collect();
        let mut order: Vec<usize> = (0..prompts.len()).collect();
        order.sort_by_key(|&prompt| ids[prompt]);
        let generations = vec![vec![None; programs.len()]; prompts.len()];
        let schedule = Self {
            decoding: engine.start_decoding(trie)?,
            config: engine.config(),
            prompt_tokens: engine.prompt_tokens(),
            settings,
            prompts,
            ids,
            programs,
            pending_prompts: order.into(),
            sequences: Vec::new(),
            generations,
            blocks: HashMap::new(),
            previous_prompt: None,
            used_bytes: 0,
            next_block: 0,
        };
        for (index, (prompt, ids)) in schedule.prompts.iter().zip(&schedule.ids).enumerate() {
            if ids.is_empty() {
                return Err(Error::bad_input("cannot generate from an empty prompt")
                    .at(format!("prompt `{}`", prompt.identity))
                    .hint("start the prompt with the backbone's BOS token"));
            }
            let bytes = schedule.prompt_bytes(ids.len()) + schedule.total_sequence_bytes(index);
            if bytes > settings.cache_bytes {
                return Err(Error::missing("a prompt does not fit in the KV cache")
                    .at(format!("prompt `{}`", prompt.identity))
                    .expected(format!(
                        "{bytes} bytes for {} prompt tokens and {} new tokens",
                        ids.len(),
                        settings.max_new_tokens
                    ))
                    .found(format!("{} bytes", settings.cache_bytes))
                    .hint("reduce the number of variants or of new tokens"));
            }
        }
        Ok(schedule)
    }

    fn is_busy(&self) -> bool {
        !self.programs.is_empty() && (!self.pending_prompts.is_empty() || !self.sequences.is_empty())
    }

    /// Returns the cache size in bytes for `tokens` tokens under all programs.
    fn prompt_bytes(&self, tokens: usize) -> u64 {
        self.decoding.token_bytes(&self.programs) * tokens as u64
    }

    /// Returns whether the prompt's sequences may be recomputed (see [`Config::recomputes_in_new_regime`]).
    fn may_recompute(&self, prompt: usize) -> bool {
        let length = self.ids[prompt].len();
        let longest = length + self.settings.max_new_tokens - 1;
        self.config.recomputes_in_new_regime()
            && self.config.length_regime(length) != self.config.length_regime(longest)
    }

    /// Returns the maximum number of tokens in the block of a sequence. The block contains the new tokens, and also the
    /// prompt if the sequence may be recomputed.
    fn block_tokens(&self, prompt: usize) -> usize {
        let recomputed = if self.may_recompute(prompt) { self.ids[prompt].len() } else { 0 };
        self.settings.max_new_tokens + recomputed
    }

    /// Returns the cache size in bytes for a sequence under one program, excluding the prompt's blocks.
    fn sequence_bytes(&self, prompt: usize, program: usize) -> u64 {
        self.decoding.token_bytes(&[program]) * self.block_tokens(prompt) as u64
    }

    fn total_sequence_bytes(&self, prompt: usize) -> u64 {
        self.programs.iter().map(|&program| self.sequence_bytes(prompt, program)).sum()
    }

    fn allocate_block_id(&mut self) -> BlockId {
        self.next_block += 1;
        self.next_block
    }

    fn release_chain(&mut self, chain: &BlockChain) {
        for (block, _) in chain {
            let Some((users, bytes)) = self.blocks.get_mut(block) else { continue };
            *users -= 1;
            if *users == 0 {
                self.used_bytes -= *bytes;
                self.blocks.remove(block);
                self.decoding.free_block(*block);
            }
        }
    }

    /// Returns the cached blocks that a prompt shares with the most recent prompt. The last token of the new prompt
    /// always runs and is excluded. Keys from another length regime ([`Config::length_regime`]) cannot be shared.
    fn find_shared_chain(&self, prompt: usize) -> BlockChain {
        let Some((last, chain)) = &self.previous_prompt else { return Vec::new() };
        let prompt_ids = self.ids[prompt];
        let other = self.ids[*last];
        if self.config.length_regime(prompt_ids.len()) != self.config.length_regime(other.len()) {
            return Vec::new();
        }
        let mut left = prompt_ids[..prompt_ids.len() - 1].iter().zip(other).take_while(|(a, b)| a == b).count();
        let mut shared = Vec::new();
        for &(block, tokens) in chain {
            let reused = tokens.min(left);
            if reused > 0 {
                shared.push((block, reused));
            }
            left -= reused;
        }
        shared
    }

    /// Starts as many pending prompts as the batch size, the cache and `prompt_tokens` allow, and returns their inputs.
    fn start_prompts(&mut self) -> Vec<SequenceInput> {
        let mut inputs: Vec<SequenceInput> = Vec::new();
        let mut prefill_tokens = 0;
        // The batch size limits the number of prompts, both running and newly started.
        let running = self.sequences.iter().map(|sequence| sequence.prompt).collect::<HashSet<usize>>().len();
        while let Some(&prompt) = self.pending_prompts.front() {
            if running + inputs.len() >= self.settings.batch {
                break;
            }
            let mut chain = self.find_shared_chain(prompt);
            let mut tokens = self.ids[prompt].len() - chain.iter().map(|(_, tokens)| tokens).sum::<usize>();
            if self.used_bytes + self.prompt_bytes(tokens) + self.total_sequence_bytes(prompt)
                > self.settings.cache_bytes
            {
                if !self.sequences.is_empty() {
                    break;
                }
                // No sequence is running, so the cached blocks of the last prompt can be released.
                if let Some((_, last)) = self.previous_prompt.take() {
                    self.release_chain(&last);
                }
                (chain, tokens) = (Vec::new(), self.ids[prompt].len());
            }
            if prefill_tokens > 0 && prefill_tokens + tokens > self.prompt_tokens {
                break;
            }
            prefill_tokens += tokens;
            self.pending_prompts.pop_front();
            let block = self.allocate_block_id();
            let bytes = self.prompt_bytes(tokens);
            let context = chain.clone();
            self.blocks.insert(block, (0, bytes));
            self.used_bytes += bytes + self.total_sequence_bytes(prompt);
            chain.push((block, tokens));
            // Count two users of each block: this prompt, and the next prompt, which may reuse the block.
            for (block, _) in chain.iter().chain(&chain) {
                if let Some((users, _)) = self.blocks.get_mut(block) {
                    *users += 1;
                }
            }
            if let Some((_, last)) = self.previous_prompt.replace((prompt, chain.clone())) {
                self.release_chain(&last);
            }
            let ids = self.ids[prompt];
            inputs.push(SequenceInput {
                ids: ids[ids.len() - tokens..].to_vec(),
                programs: self.programs.clone(),
                context,
                block,
                capacity: tokens,
            });
            self.push_sequences(prompt, &chain);
        }
        inputs
    }

    /// Creates the sequences of a new prompt, one per program.
    fn push_sequences(&mut self, prompt: usize, chain: &BlockChain) {
        for program in self.programs.clone() {
            let identity = &self.prompts[prompt].identity;
            let sampler = self.settings.sampling.map(|sampling| TokenSampler::new(sampling, identity));
            let block = self.allocate_block_id();
            let chain = chain.clone();
            let ids = Vec::new();
            self.sequences.push(Sequence { prompt, program, chain, block, includes_prompt: false, ids, sampler });
        }
    }

    /// Adds one token to each sequence and starts prompts that fit.
    fn run_round(&mut self, detokenizer: &dyn Detokenizer, observer: &mut dyn GenerationObserver) -> Result<()> {
        let running_before = self.sequences.len();
        let mut sequences = std::mem::take(&mut self.sequences);
        let mut inputs: Vec<SequenceInput> =
            sequences.iter_mut().map(|sequence| self.prepare_next_input(sequence)).collect();
        self.sequences = sequences;
        inputs.extend(self.start_prompts());
        let sequences = std::mem::take(&mut self.sequences);
        let sequences_with_tokens = self.choose_next_tokens(&inputs, sequences)?;
        debug_assert!(running_before <= sequences_with_tokens.len());
        // Detokenizing all sequences takes about as long as a step of a small backbone, so run it in parallel.
        let settings = self.settings;
        let ends = sequences_with_tokens.into_par_iter().map(|(mut sequence, next)| {
            sequence.ids.extend(next);
            let end = if next.is_none() {
                Some(End::NotFinite)
            } else {
                find_end_reason(&sequence.ids, settings, detokenizer)?
            };
            Ok((sequence, end))
        });
        let mut finished = Vec::new();
        for (sequence, end) in ends.collect::<Result<Vec<_>>>()? {
            match end {
                None => self.sequences.push(sequence),
                Some(end) => finished.push((sequence, end)),
            }
        }
        finished.into_iter().try_for_each(|(sequence, end)| self.finish(sequence, end, detokenizer, observer))
    }

    /// Chooses the next token of each sequence. `sequences` must be in the order of `inputs`, with one sequence per
    /// program for each new prompt.
    fn choose_next_tokens(
        &mut self,
        inputs: &[SequenceInput],
        sequences: Vec<Sequence>,
    ) -> Result<Vec<(Sequence, Option<u32>)>> {
        let settings = self.settings;
        if settings.sampling.is_none() && settings.processors.is_empty() {
            return Ok(sequences.into_iter().zip(self.decoding.greedy_tokens(inputs)?.into_iter().flatten()).collect());
        }
        let logits: Vec<Vec<f32>> = self.decoding.run(inputs)?.into_iter().flatten().collect();
        let prompts = &self.ids;
        let sequences_with_tokens = sequences.into_par_iter().zip(logits).map(|(mut sequence, mut logits)| {
            let next = sequence.choose_token(&mut logits, prompts[sequence.prompt], settings);
            (sequence, next)
        });
        Ok(sequences_with_tokens.collect())
    }

    /// Returns the input that computes the next token of a sequence. It contains the last token, or all tokens if the
    /// cached keys belong to another length regime and must be recomputed.
    fn prepare_next_input(&mut self, sequence: &mut Sequence) -> SequenceInput {
        let prompt = self.ids[sequence.prompt];
        let length = prompt.len() + sequence.ids.len();
        let is_new_regime = self.config.length_regime(length) != self.config.length_regime(length - 1);
        let mut ids = sequence.ids.last().copied().into_iter().collect();
        if is_new_regime && self.config.recomputes_in_new_regime() {
            self.decoding.free_block(sequence.block);
            sequence.block = self.allocate_block_id();
            sequence.includes_prompt = true;
            ids = [prompt, sequence.ids.as_slice()].concat();
        }
        let (context, capacity) = match sequence.includes_prompt {
            true => (Vec::new(), self.block_tokens(sequence.prompt)),
            false => (sequence.chain.clone(), self.settings.max_new_tokens),
        };
        SequenceInput { ids, programs: vec![sequence.program], context, block: sequence.block, capacity }
    }

    fn finish(
        &mut self,
        sequence: Sequence,
        end: End,
        detokenizer: &dyn Detokenizer,
        observer: &mut dyn GenerationObserver,
    ) -> Result<()> {
        self.decoding.free_block(sequence.block);
        self.used_bytes -= self.sequence_bytes(sequence.prompt, sequence.program);
        self.generations[sequence.prompt][sequence.program] =
            Some(Generation::new(sequence.ids, end, self.settings, detokenizer)?);
        let generations: Option<Vec<Generation>> = self.generations[sequence.prompt].iter().cloned().collect();
        let Some(generations) = generations else { return Ok(()) };
        self.release_chain(&sequence.chain);
        observer.on_prompt_finished(sequence.prompt, &generations)
    }
}
