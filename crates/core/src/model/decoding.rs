//! KV-cached decoding (design §20): new tokens run through the trie of all programs and attend to the cached keys and
//! values of earlier tokens.
//!
//! Keys and values are stored in blocks. The context of a token is a chain of blocks, each used up to a given length.
//! Prompts with a common prefix share the first blocks of their chains, and programs share the blocks of shared layers.
//! At a shared step, the rows of all programs form one matrix.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use candle_core::Tensor;

use super::config::Config;
use super::length_regime::LengthRegime;
use super::program::Step;
use super::trie::{Model, Trie};
use crate::error::{Error, Result};

/// Id of a block, assigned by the caller.
pub type BlockId = usize;

/// New tokens to run for one sequence.
#[derive(Debug, Clone)]
pub struct SequenceInput {
    pub ids: Vec<u32>,
    /// Indices of the programs that run the tokens. There must be at least one.
    pub programs: Vec<usize>,
    /// Blocks that precede `block`, each with the number of its tokens in use. Earlier inputs of the same call may
    /// append to them.
    pub context: Vec<(BlockId, usize)>,
    /// Block to which the keys and values of the new tokens are appended.
    pub block: BlockId,
    /// Capacity of the block in tokens.
    pub capacity: usize,
}

/// Decoding session: the programs of one trie and their KV cache.
pub trait Decoding {
    /// Runs new tokens through their programs. Returns the next-token logits `[vocab]`, indexed by `[input][program]`.
    ///
    /// # Errors
    /// Fails if a step fails or an id is outside the vocabulary. The session must not be used afterwards.
    fn run(&mut self, inputs: &[SequenceInput]) -> Result<Vec<Vec<Vec<f32>>>>;

    /// Returns the argmax of the next-token logits (lowest id on ties), or `None` if no logit is finite or any logit is
    /// NaN or +∞. Only the ids are transferred from the device.
    ///
    /// # Errors
    /// See [`Self::run`].
    fn greedy_tokens(&mut self, inputs: &[SequenceInput]) -> Result<Vec<Vec<Option<u32>>>>;

    fn free_block(&mut self, block: BlockId);

    /// Returns how many bytes of KV cache the given programs need per token.
    fn token_bytes(&self, programs: &[usize]) -> u64;
}

/// Returns the argmax of the logits (lowest id on ties), or `None` if no logit is finite or any logit is NaN or +∞.
pub(crate) fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best = (None, f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(logits) {
        if logit.is_nan() || logit == f32::INFINITY {
            return None;
        }
        if logit > best.1 {
            best = (Some(token), logit);
        }
    }
    best.0
}

/// Engine operations required for decoding.
pub(super) trait CachedModel: Model + Sync {
    /// Keys and values of all blocks.
    type Blocks: Default + Send;
    /// Data that all steps need for a group of runs ([`RunPlacement`]).
    type StepData;

    fn backbone(&self) -> &Config;

    /// Returns the embeddings of token ids. Fails if an id is outside the vocabulary.
    ///
    /// # Shapes
    /// Result `[tokens, C]`.
    fn embed(&self, ids: &[u32]) -> Result<Tensor>;

    /// Computes the data that all steps of the runs need, such as rotary tables.
    ///
    /// # Errors
    /// Fails if a block is not cached.
    fn prepare_step_data(&self, runs: &[RunPlacement<'_>], blocks: &Self::Blocks) -> Result<Self::StepData>;

    /// Runs a step, other than embedding and head, on the new rows of a stream.
    ///
    /// # Shapes
    /// `x` and the result are `[tokens, C]`.
    fn step(&self, step: &Step, x: &Tensor, cache: &CacheView<'_, Self::StepData, Self::Blocks>) -> Result<Tensor>;

    /// Allocates a block of `capacity` tokens for the given trie nodes, which are in ascending order.
    ///
    /// # Errors
    /// Fails if there is not enough memory.
    fn allocate_block(
        &self,
        blocks: &mut Self::Blocks,
        nodes: Vec<usize>,
        block: BlockId,
        capacity: usize,
    ) -> Result<()>;

    fn free_block(blocks: &mut Self::Blocks, block: BlockId);

    /// Computes the logits for each row.
    ///
    /// # Shapes
    /// `x [rows, C]`; result `[rows][vocab]`.
    fn row_logits(&self, x: &Tensor) -> Result<Vec<Vec<f32>>>;

    /// Returns the result of [`argmax`] for each row.
    fn greedy_tokens(&self, x: &Tensor) -> Result<Vec<Option<u32>>> {
        Ok(self.row_logits(x)?.iter().map(|logits| argmax(logits)).collect())
    }

    /// Returns the size in bytes of one token's keys and values across all heads.
    fn key_value_bytes(&self) -> u64;
}

/// A run (one [`SequenceInput`]), with its rows and position in a batch of runs that share a step.
pub(super) struct RunPlacement<'a> {
    /// Rows of the stream that belong to this run.
    pub(super) rows: Range<usize>,
    /// Position of the first new token.
    pub(super) first: usize,
    pub(super) run: &'a SequenceInput,
}

impl RunPlacement<'_> {
    /// Returns the position of the first new token within the block to which it is appended.
    pub(super) fn offset_in_block(&self) -> usize {
        self.first - self.run.context.iter().map(|(_, tokens)| tokens).sum::<usize>()
    }

    /// Finds the blocks that are visible to the last row, each with the number of its visible tokens.
    pub(super) fn visible_blocks<'b, B>(
        &self,
        find_block: impl Fn(BlockId) -> Option<&'b B>,
    ) -> Result<Vec<(&'b B, usize)>> {
        let visible = self.offset_in_block() + self.rows.len();
        let chain = self.run.context.iter().copied().chain([(self.run.block, visible)]);
        let found = chain.map(|(id, tokens)| Some((find_block(id)?, tokens))).collect::<Option<_>>();
        found.ok_or_else(not_cached_error)
    }
}

/// Creates the error for a run whose blocks are not cached.
pub(super) fn not_cached_error() -> Error {
    Error::job("a sequence continues a block that is not in the cache")
}

/// View of the KV cache for the runs that share a step.
pub(super) struct CacheView<'a, S, B> {
    pub(super) runs: &'a [RunPlacement<'a>],
    pub(super) step_data: &'a S,
    pub(super) blocks: RefCell<&'a mut B>,
    /// Trie node that the step belongs to.
    pub(super) node: usize,
}

/// Decoding session for one trie on one engine.
pub(super) struct TrieDecoding<'a, M: CachedModel> {
    model: &'a M,
    trie: &'a Trie,
    blocks: M::Blocks,
    /// Number of tokens in each block.
    lengths: HashMap<BlockId, usize>,
    /// Length regime of each block's rotated keys, set when the block is created.
    regimes: HashMap<BlockId, LengthRegime>,
}

/// Runs that share steps, with the data that these steps need.
struct RunGroup<'r, S> {
    placements: Vec<RunPlacement<'r>>,
    /// Index of each run in the inputs of [`Decoding::run`].
    runs: Vec<usize>,
    step_data: S,
}

/// Step that is ready to run, with its input.
struct PendingStep<'r, S> {
    node: usize,
    depth: usize,
    group: Rc<RunGroup<'r, S>>,
    x: Tensor,
}

impl<'a, M: CachedModel> TrieDecoding<'a, M> {
    /// Creates an empty session.
    ///
    /// # Errors
    /// Fails if a program has no head.
    pub(super) fn new(model: &'a M, trie: &'a Trie) -> Result<Self> {
        let program_without_head =
            (0..trie.programs()).find(|&program| trie.path(program).last().map(|&n| trie.step(n)) != Some(&Step::Head));
        if let Some(program) = program_without_head {
            return Err(Error::job("cannot generate from a program without a head").at(format!("program {program}")));
        }
        Ok(Self { model, trie, blocks: M::Blocks::default(), lengths: HashMap::new(), regimes: HashMap::new() })
    }

    fn attention_nodes(&self, programs: &[usize]) -> Vec<usize> {
        let nodes: BTreeSet<usize> = programs.iter().flat_map(|&program| self.trie.path(program)).copied().collect();
        nodes.into_iter().filter(|&node| self.trie.step(node).is_attention()).collect()
    }

    /// Returns the number of tokens in a run's sequence that are already cached.
    fn cached_tokens(&self, run: &SequenceInput) -> usize {
        let before: usize = run.context.iter().map(|(_, tokens)| tokens).sum();
        before + self.lengths.get(&run.block).copied().unwrap_or(0)
    }

    /// Records the length regime of a new block. Fails if cached keys have a different regime and transformers would
    /// recompute them ([`Config::recomputes_in_new_regime`]).
    fn check_regime(&mut self, run: &SequenceInput) -> Result<()> {
        let config = self.model.backbone();
        if !config.has_length_regimes() {
            return Ok(());
        }
        let length = self.cached_tokens(run) + run.ids.len();
        let regime = config.length_regime(length);
        self.regimes.entry(run.block).or_insert(regime);
        let mut seen = run.context.iter().map(|(block, _)| block).chain([&run.block]);
        let is_unchanged =
            seen.all(|block| self.regimes.get(block).is_none_or(|cached_regime| *cached_regime == regime));
        if is_unchanged || !config.recomputes_in_new_regime() {
            return Ok(());
        }
        Err(Error::bad_input("sequence exceeds the length up to which RoPE frequencies are constant")
            .expected(format!("at most {} tokens, including generated ones", config.stable_length()))
            .found(length)
            .hint("use a shorter prompt or fewer new tokens: cached keys cannot be rotated again"))
    }

    /// Adds the child steps of a node to `ready`, each with the runs whose programs contain it.
    fn push_children<'r>(
        &self,
        from: &PendingStep<'r, M::StepData>,
        runs: &'r [SequenceInput],
        ready: &mut Vec<PendingStep<'r, M::StepData>>,
    ) -> Result<()> {
        for &node in self.trie.children(from.node) {
            let depth = from.depth + 1;
            let passing = from.group.placements.iter().zip(&from.group.runs).filter(|(placed, _)| {
                placed.run.programs.iter().any(|program| self.trie.path(*program).get(depth) == Some(&node))
            });
            let (placements, members): (Vec<&RunPlacement<'_>>, Vec<usize>) = passing.unzip();
            if members.is_empty() {
                continue;
            }
            if members.len() == from.group.runs.len() {
                ready.push(PendingStep { node, depth, group: Rc::clone(&from.group), x: from.x.clone() });
                continue;
            }
            let rows = placements.iter().flat_map(|placed| placed.rows.clone()).map(|row| row as u32).collect();
            let x = select_rows(&from.x, rows)?;
            ready.push(PendingStep { node, depth, group: self.build_run_group(runs, members)?, x });
        }
        Ok(())
    }

    fn build_run_group<'r>(
        &self,
        runs: &'r [SequenceInput],
        members: Vec<usize>,
    ) -> Result<Rc<RunGroup<'r, M::StepData>>> {
        let mut start = 0;
        let placements = members.iter().map(|&member| {
            let run = &runs[member];
            let rows = start..start + run.ids.len();
            start = rows.end;
            RunPlacement { rows, first: self.cached_tokens(run), run }
        });
        let placements: Vec<RunPlacement<'_>> = placements.collect();
        let step_data = self.model.prepare_step_data(&placements, &self.blocks)?;
        Ok(Rc::new(RunGroup { placements, runs: members, step_data }))
    }

    /// Removes and returns the next step in layer order, so that weights loaded on demand are loaded only once.
    fn take_next<'r>(&self, ready: &mut Vec<PendingStep<'r, M::StepData>>) -> Option<PendingStep<'r, M::StepData>> {
        let next = (0..ready.len()).min_by_key(|&next| {
            let node = ready[next].node;
            (self.trie.step(node).weight_index(), node)
        })?;
        let current = ready.remove(next);
        let now = self.trie.step(current.node).weight_index();
        // Look up the next weights in any program that contains the node.
        let path =
            (0..self.trie.programs()).map(|program| self.trie.path(program)).find(|path| path.contains(&current.node));
        let after = path.unwrap_or(self.trie.path(0)).iter().copied();
        let ahead = after.skip(current.depth).chain(ready.iter().map(|candidate| candidate.node));
        let next = ahead.filter_map(|node| self.trie.step(node).weight_index()).find(|weights| Some(*weights) != now);
        self.model.announce_weights(now, next);
        Some(current)
    }
}

fn select_rows(x: &Tensor, rows: Vec<u32>) -> Result<Tensor> {
    Ok(x.index_select(&Tensor::new(rows, x.device())?, 0)?)
}

impl<M: CachedModel> TrieDecoding<'_, M> {
    /// Runs the new tokens of each run through its programs, and applies `head` to each run's last row.
    fn forward<T: Clone>(
        &mut self,
        runs: &[SequenceInput],
        head: impl Fn(&M, &Tensor) -> Result<Vec<T>>,
    ) -> Result<Vec<Vec<T>>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let mut outputs: Vec<Vec<Option<T>>> = runs.iter().map(|run| vec![None; run.programs.len()]).collect();
        for run in runs {
            self.check_regime(run)?;
            if !self.lengths.contains_key(&run.block) {
                let nodes = self.attention_nodes(&run.programs);
                self.model.allocate_block(&mut self.blocks, nodes, run.block, run.capacity)?;
            }
        }
        let ids: Vec<u32> = runs.iter().flat_map(|run| run.ids.iter().copied()).collect();
        let group = self.build_run_group(runs, (0..runs.len()).collect())?;
        let root = PendingStep { node: 0, depth: 0, group, x: self.model.embed(&ids)? };
        let mut ready = Vec::new();
        self.push_children(&root, runs, &mut ready)?;
        drop(root);
        while let Some(mut current) = self.take_next(&mut ready) {
            let step = self.trie.step(current.node);
            let placements = &current.group.placements;
            if *step == Step::Head {
                let last_rows: Vec<u32> = placements.iter().map(|placed| placed.rows.end as u32 - 1).collect();
                let is_all_rows = current.x.dim(0)? == last_rows.len();
                let head_outputs =
                    head(self.model, &if is_all_rows { current.x } else { select_rows(&current.x, last_rows)? })?;
                for (&run, head_outputs) in current.group.runs.iter().zip(head_outputs) {
                    for (output, &program) in outputs[run].iter_mut().zip(&runs[run].programs) {
                        if self.trie.path(program).last() == Some(&current.node) {
                            *output = Some(head_outputs.clone());
                        }
                    }
                }
                continue;
            }
            let step_data = &current.group.step_data;
            let blocks = RefCell::new(&mut self.blocks);
            current.x = self.model.step(
                step,
                &current.x,
                &CacheView { runs: placements, step_data, blocks, node: current.node },
            )?;
            self.push_children(&current, runs, &mut ready)?;
        }
        for run in runs {
            *self.lengths.entry(run.block).or_default() += run.ids.len();
        }
        let complete = outputs.into_iter().map(|run_outputs| run_outputs.into_iter().collect::<Option<Vec<T>>>());
        complete
            .collect::<Option<_>>()
            .ok_or_else(|| Error::job("the batch has a program without an output projection"))
    }
}

impl<M: CachedModel> Decoding for TrieDecoding<'_, M> {
    // Enter the thread pool only once. A token needs about a hundred small matrix products. Submitting each of them
    // from outside the pool would wake a worker each time.
    fn run(&mut self, inputs: &[SequenceInput]) -> Result<Vec<Vec<Vec<f32>>>> {
        rayon::scope(|_| self.forward(inputs, M::row_logits))
    }

    fn greedy_tokens(&mut self, inputs: &[SequenceInput]) -> Result<Vec<Vec<Option<u32>>>> {
        rayon::scope(|_| self.forward(inputs, M::greedy_tokens))
    }

    fn free_block(&mut self, block: BlockId) {
        self.lengths.remove(&block);
        self.regimes.remove(&block);
        M::free_block(&mut self.blocks, block);
    }

    fn token_bytes(&self, programs: &[usize]) -> u64 {
        self.attention_nodes(programs).len() as u64 * self.model.key_value_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_prefers_the_lowest_id_and_rejects_nan() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(argmax(&[f32::NEG_INFINITY, -2.0]), Some(1));
        for wrong in [[1.0, f32::NAN], [f32::NAN, 1.0], [f32::INFINITY, 1.0], [f32::NEG_INFINITY; 2]] {
            assert_eq!(argmax(&wrong), None);
        }
        assert_eq!(argmax(&[]), None);
    }
}
