//! Continuous batching: runs as many prompts at a time as the batch size and the cache allow, each under all programs.
//! When a prompt finishes, the next one starts.
//!
//! Prompts run in the order of their ids, so that prompts with a common prefix are adjacent. Each prompt reuses the
//! cached blocks of its predecessor and runs only the remaining tokens.

use std::collections::{HashMap, HashSet, VecDeque};

use rayon::prelude::*;

use super::generated_text::{Detokenizer, End, Generation, end};
use super::processors::GeneratedSequence;
use super::sampling::TokenSampler;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::model::{BlockId, Config, Decoding, Engine, Run, Trie, likeliest};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Identity of the prompt. Together with the seed, it initializes the prompt's sampling.
    pub identity: String,
    /// Token ids, at least one.
    pub ids: Vec<u32>,
}

/// Progress callbacks. An error stops the generation.
pub trait GenerationObserver {
    /// Called when a prompt is finished, with its continuation under each program.
    fn finished(&mut self, prompt: usize, generations: &[Generation]) -> Result<()>;

    /// Called before each round that adds a token to every running sequence.
    fn round(&mut self) -> Result<()> {
        Ok(())
    }
}

/// No-op implementation.
impl GenerationObserver for () {
    fn finished(&mut self, _: usize, _: &[Generation]) -> Result<()> {
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
    text: &dyn Detokenizer,
    observer: &mut dyn GenerationObserver,
) -> Result<Vec<Vec<Generation>>> {
    settings.check()?;
    let cache_bytes =
        engine.cache_bytes().map_or(settings.cache_bytes, |available| available.min(settings.cache_bytes));
    let settings = &Settings { cache_bytes, ..settings.clone() };
    let mut schedule = Schedule::new(engine, trie, prompts, settings)?;
    while schedule.is_busy() {
        observer.round()?;
        schedule.round(text, observer)?;
    }
    let done = schedule.done.into_iter().map(|outcomes| outcomes.into_iter().flatten().collect());
    Ok(done.collect())
}

/// Blocks of the KV cache in order, each with the number of its tokens in use.
type Chain = Vec<(BlockId, usize)>;

/// Continuation of one prompt under one program.
struct Sequence {
    prompt: usize,
    program: usize,
    /// Blocks that hold the prompt, kept until it is finished under all programs.
    chain: Chain,
    block: BlockId,
    /// Whether `block` includes the prompt because the sequence was recomputed in another length regime.
    is_whole: bool,
    ids: Vec<u32>,
    /// Sampling state, or `None` for greedy decoding.
    choice: Option<TokenSampler>,
}

impl Sequence {
    /// Chooses the next token from its logits. Returns `None` if no logit is finite or one is NaN or +∞.
    fn next(&mut self, logits: &mut [f32], prompt: &[u32], settings: &Settings) -> Option<u32> {
        likeliest(logits)?;
        settings
            .processors
            .apply(logits, GeneratedSequence { prompt, new: &self.ids, max_new_tokens: settings.max_new_tokens });
        match &mut self.choice {
            Some(choice) => choice.next(logits),
            None => likeliest(logits),
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
    waiting: VecDeque<usize>,
    live: Vec<Sequence>,
    /// Generations indexed by `[prompt][program]`.
    done: Vec<Vec<Option<Generation>>>,
    /// Reference count and size in bytes of each block.
    blocks: HashMap<BlockId, (usize, u64)>,
    /// Most recent prompt, whose blocks are kept for the next one.
    last: Option<(usize, Chain)>,
    used: u64,
    next: BlockId,
}

impl<'a> Schedule<'a> {
    fn new(engine: &'a dyn Engine, trie: &'a Trie, prompts: &'a [Prompt], settings: &'a Settings) -> Result<Self> {
        let programs: Vec<usize> = (0..trie.programs()).collect();
        let max_prompt = settings.context - settings.max_new_tokens;
        let ids: Vec<&[u32]> =
            prompts.iter().map(|prompt| &prompt.ids[prompt.ids.len().saturating_sub(max_prompt)..]).collect();
        let mut order: Vec<usize> = (0..prompts.len()).collect();
        order.sort_by_key(|&prompt| ids[prompt]);
        let done = vec![vec![None; programs.len()]; prompts.len()];
        let schedule = Self {
            decoding: engine.decoding(trie)?,
            config: engine.config(),
            prompt_tokens: engine.prompt_tokens(),
            settings,
            prompts,
            ids,
            programs,
            waiting: order.into(),
            live: Vec::new(),
            done,
            blocks: HashMap::new(),
            last: None,
            used: 0,
            next: 0,
        };
        for (index, (prompt, ids)) in schedule.prompts.iter().zip(&schedule.ids).enumerate() {
            if ids.is_empty() {
                return Err(Error::bad_input("cannot generate from an empty prompt")
                    .at(format!("prompt `{}`", prompt.identity))
                    .hint("add the backbone's BOS token"));
            }
            let bytes = schedule.prompt_bytes(ids.len()) + schedule.new_bytes(index);
            if bytes > settings.cache_bytes {
                return Err(Error::missing("a prompt does not fit in the KV cache")
                    .at(format!("prompt `{}`", prompt.identity))
                    .expected(format!("{bytes} bytes: {} tokens, {} new", ids.len(), settings.max_new_tokens))
                    .found(format!("{} bytes", settings.cache_bytes))
                    .hint("reduce the number of variants or of new tokens"));
            }
        }
        Ok(schedule)
    }

    fn is_busy(&self) -> bool {
        !self.programs.is_empty() && (!self.waiting.is_empty() || !self.live.is_empty())
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

    /// Returns the maximum number of tokens in the block of a sequence. The block holds the new tokens, and also the
    /// prompt if the sequence may be recomputed.
    fn block_tokens(&self, prompt: usize) -> usize {
        let anew = if self.may_recompute(prompt) { self.ids[prompt].len() } else { 0 };
        self.settings.max_new_tokens + anew
    }

    /// Returns the cache size in bytes for a sequence under one program, excluding the prompt's blocks.
    fn own_bytes(&self, prompt: usize, program: usize) -> u64 {
        self.decoding.token_bytes(&[program]) * self.block_tokens(prompt) as u64
    }

    fn new_bytes(&self, prompt: usize) -> u64 {
        self.programs.iter().map(|&program| self.own_bytes(prompt, program)).sum()
    }

    fn block(&mut self) -> BlockId {
        self.next += 1;
        self.next
    }

    fn release(&mut self, chain: &Chain) {
        for (block, _) in chain {
            let Some((users, bytes)) = self.blocks.get_mut(block) else { continue };
            *users -= 1;
            if *users == 0 {
                self.used -= *bytes;
                self.blocks.remove(block);
                self.decoding.free(*block);
            }
        }
    }

    /// Returns the cached blocks that a prompt shares with the most recent prompt. The last token of the new prompt
    /// always runs and is excluded. Keys from another length regime cannot be shared.
    fn shared(&self, prompt: usize) -> Chain {
        let Some((last, chain)) = &self.last else { return Vec::new() };
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

    /// Starts as many waiting prompts as the batch size and the cache allow, and returns their runs.
    fn admit(&mut self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut prefill = 0;
        // The batch size limits the number of prompts, both running and newly started.
        let running = self.live.iter().map(|sequence| sequence.prompt).collect::<HashSet<usize>>().len();
        while let Some(&prompt) = self.waiting.front() {
            if running + runs.len() >= self.settings.batch {
                break;
            }
            let mut chain = self.shared(prompt);
            let mut tokens = self.ids[prompt].len() - chain.iter().map(|(_, tokens)| tokens).sum::<usize>();
            if self.used + self.prompt_bytes(tokens) + self.new_bytes(prompt) > self.settings.cache_bytes {
                if !self.live.is_empty() {
                    break;
                }
                // No sequence is running, so the cached blocks of the last prompt can be released.
                if let Some((_, last)) = self.last.take() {
                    self.release(&last);
                }
                (chain, tokens) = (Vec::new(), self.ids[prompt].len());
            }
            if prefill > 0 && prefill + tokens > self.prompt_tokens {
                break;
            }
            prefill += tokens;
            self.waiting.pop_front();
            let block = self.block();
            let bytes = self.prompt_bytes(tokens);
            let before = chain.clone();
            self.blocks.insert(block, (0, bytes));
            self.used += bytes + self.new_bytes(prompt);
            chain.push((block, tokens));
            // Count two users of each block: this prompt, and the next prompt, which may reuse the block.
            for (block, _) in chain.iter().chain(&chain) {
                if let Some((users, _)) = self.blocks.get_mut(block) {
                    *users += 1;
                }
            }
            if let Some((_, last)) = self.last.replace((prompt, chain.clone())) {
                self.release(&last);
            }
            let ids = self.ids[prompt];
            runs.push(Run {
                ids: ids[ids.len() - tokens..].to_vec(),
                programs: self.programs.clone(),
                before,
                block,
                room: tokens,
            });
            for program in self.programs.clone() {
                let identity = &self.prompts[prompt].identity;
                let choice = self.settings.sampling.map(|sampling| TokenSampler::new(sampling, identity));
                let block = self.block();
                let chain = chain.clone();
                self.live.push(Sequence { prompt, program, chain, block, is_whole: false, ids: Vec::new(), choice });
            }
        }
        runs
    }

    /// Adds one token to each sequence and starts prompts that fit.
    fn round(&mut self, text: &dyn Detokenizer, observer: &mut dyn GenerationObserver) -> Result<()> {
        let going = self.live.len();
        let mut live = std::mem::take(&mut self.live);
        let mut runs: Vec<Run> = live.iter_mut().map(|sequence| self.continuation(sequence)).collect();
        self.live = live;
        runs.extend(self.admit());
        let live = std::mem::take(&mut self.live);
        let nexts = self.next_tokens(&runs, live)?;
        debug_assert!(going <= nexts.len());
        // Detokenizing all sequences takes about as long as a step of a small backbone, so run it in parallel.
        let settings = self.settings;
        let ends = nexts.into_par_iter().map(|(mut sequence, next)| {
            sequence.ids.extend(next);
            let end = if next.is_none() { Some(End::NotFinite) } else { end(&sequence.ids, settings, text)? };
            Ok((sequence, end))
        });
        let mut finished = Vec::new();
        for (sequence, end) in ends.collect::<Result<Vec<_>>>()? {
            match end {
                None => self.live.push(sequence),
                Some(end) => finished.push((sequence, end)),
            }
        }
        finished.into_iter().try_for_each(|(sequence, end)| self.finish(sequence, end, text, observer))
    }

    /// Chooses the next token of each sequence. `live` must be in the order of `runs`, with one sequence per program
    /// for each new prompt.
    fn next_tokens(&mut self, runs: &[Run], live: Vec<Sequence>) -> Result<Vec<(Sequence, Option<u32>)>> {
        let settings = self.settings;
        if settings.sampling.is_none() && settings.processors.is_empty() {
            return Ok(live.into_iter().zip(self.decoding.likeliest(runs)?.into_iter().flatten()).collect());
        }
        let logits: Vec<Vec<f32>> = self.decoding.run(runs)?.into_iter().flatten().collect();
        let prompts = &self.ids;
        let chosen = live.into_par_iter().zip(logits).map(|(mut sequence, mut logits)| {
            let next = sequence.next(&mut logits, prompts[sequence.prompt], settings);
            (sequence, next)
        });
        Ok(chosen.collect())
    }

    /// Returns the run that computes the next token of a sequence. The run contains the last token, or all tokens if
    /// the cached keys belong to another length regime and must be recomputed.
    fn continuation(&mut self, sequence: &mut Sequence) -> Run {
        let prompt = self.ids[sequence.prompt];
        let length = prompt.len() + sequence.ids.len();
        let grown = self.config.length_regime(length) != self.config.length_regime(length - 1);
        let mut ids = sequence.ids.last().copied().into_iter().collect();
        if grown && self.config.recomputes_in_new_regime() {
            self.decoding.free(sequence.block);
            sequence.block = self.block();
            sequence.is_whole = true;
            ids = [prompt, sequence.ids.as_slice()].concat();
        }
        let (before, capacity) = match sequence.is_whole {
            true => (Vec::new(), self.block_tokens(sequence.prompt)),
            false => (sequence.chain.clone(), self.settings.max_new_tokens),
        };
        Run { ids, programs: vec![sequence.program], before, block: sequence.block, room: capacity }
    }

    fn finish(
        &mut self,
        sequence: Sequence,
        end: End,
        text: &dyn Detokenizer,
        observer: &mut dyn GenerationObserver,
    ) -> Result<()> {
        self.decoding.free(sequence.block);
        self.used -= self.own_bytes(sequence.prompt, sequence.program);
        self.done[sequence.prompt][sequence.program] = Some(Generation::new(sequence.ids, end, self.settings, text)?);
        let all: Option<Vec<Generation>> = self.done[sequence.prompt].iter().cloned().collect();
        let Some(all) = all else { return Ok(()) };
        self.release(&sequence.chain);
        observer.finished(sequence.prompt, &all)
    }
}
