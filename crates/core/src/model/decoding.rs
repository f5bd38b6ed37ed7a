//! Decoding with a cache (design §20): new tokens go through the trie of all programs and see the keys and values of the
//! tokens before them, which were kept when those ran.
//!
//! Keys and values lie in blocks. What stands before a run of new tokens is a chain of blocks, each from its start as far
//! as it is given: prompts that begin alike are chains that begin with the same block, and a layer that programs share holds
//! a block once. At a shared step the rows of all programs are one matrix.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use candle_core::Tensor;

use super::program::Step;
use super::trie::{Model, Trie};
use crate::error::{Error, Result};

/// The number of a block, which whoever decodes gives it.
pub type BlockId = usize;

/// New tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Run {
    pub ids: Vec<u32>,
    /// The programs that run them, by their index; one at least.
    pub programs: Vec<usize>,
    /// What stands before the run's own block: blocks, and how many tokens of each. A block may be that of a run before this
    /// one in the same call.
    pub before: Vec<(BlockId, usize)>,
    /// Where the keys and values of the new tokens go, behind those that are there.
    pub block: BlockId,
    /// Tokens that the block will hold at most.
    pub room: usize,
}

/// An engine at decoding: the programs of one trie, and the keys and values of what they ran.
pub trait Decoding {
    /// Runs new tokens through their programs: for each run, for each of its programs every logit of what follows its
    /// last token, `[vocab]`.
    ///
    /// # Errors
    /// A step that fails, an id that the embedding has not. What is cached is then of no use any more.
    fn run(&mut self, runs: &[Run]) -> Result<Vec<Vec<Vec<f32>>>>;

    /// Forgets a block.
    fn free(&mut self, block: BlockId);

    /// Bytes of the keys and values of one token of a run of these programs.
    fn token_bytes(&self, programs: &[usize]) -> u64;
}

/// What decoding needs of an engine.
pub(super) trait Cached: Model + Sync {
    /// Keys and values of one block at one step.
    type Block: Send;

    /// # Shapes
    /// Result `[tokens, C]`.
    fn embed(&self, ids: &[u32]) -> Result<Tensor>;

    /// # Shapes
    /// `x [tokens, C]`; result the same.
    fn step(&self, step: &Step, x: &Tensor, past: &Past<'_, Self::Block>) -> Result<Tensor>;

    /// # Shapes
    /// `x [rows, C]`; result `[rows, vocab]`.
    fn head(&self, x: &Tensor) -> Result<Vec<f32>>;

    /// Bytes of a key and a value of all heads.
    fn key_value_bytes(&self) -> u64;
}

/// A run among those that take a step together.
pub(super) struct Placed<'a> {
    /// Its rows of the stream.
    pub(super) rows: Range<usize>,
    /// The position of its first token.
    pub(super) first: usize,
    pub(super) run: &'a Run,
}

impl Placed<'_> {
    /// What its last row sees: blocks, and how many tokens of each.
    pub(super) fn chain<'b, B>(&self, blocks: &'b HashMap<BlockId, B>) -> Result<Vec<(&'b B, usize)>> {
        let own = self.first + self.rows.len() - self.run.before.iter().map(|(_, tokens)| tokens).sum::<usize>();
        let chain = self.run.before.iter().copied().chain([(self.run.block, own)]);
        let found = chain.map(|(id, tokens)| Some((blocks.get(&id)?, tokens))).collect::<Option<_>>();
        found.ok_or_else(|| Error::job("a sequence continues what is not in the cache"))
    }
}

/// What the rows of a stream see beside each other at one step.
pub(super) struct Past<'a, B> {
    pub(super) runs: Vec<Placed<'a>>,
    /// The step's.
    pub(super) blocks: RefCell<&'a mut HashMap<BlockId, B>>,
}

impl<B> Past<'_, B> {
    /// The position of each row.
    pub(super) fn positions(&self) -> Vec<usize> {
        self.runs.iter().flat_map(|run| run.first..run.first + run.rows.len()).collect()
    }
}

/// One trie on one engine.
pub(super) struct TrieDecoding<'a, M: Cached> {
    model: &'a M,
    trie: &'a Trie,
    /// Of each node.
    blocks: Vec<HashMap<BlockId, M::Block>>,
    /// Tokens of each block.
    lengths: HashMap<BlockId, usize>,
}

/// A step that may run on the stream of some runs.
struct Ready {
    node: usize,
    depth: usize,
    runs: Vec<usize>,
    x: Tensor,
}

impl<'a, M: Cached> TrieDecoding<'a, M> {
    /// # Errors
    /// A program without a head.
    pub(super) fn new(model: &'a M, trie: &'a Trie) -> Result<Self> {
        let headless =
            (0..trie.programs()).find(|&program| trie.path(program).last().map(|&n| trie.step(n)) != Some(&Step::Head));
        if let Some(program) = headless {
            return Err(Error::job("a program without a head generates nothing").at(format!("program {program}")));
        }
        let blocks = (0..trie.len()).map(|_| HashMap::new()).collect();
        Ok(Self { model, trie, blocks, lengths: HashMap::new() })
    }

    /// Adds the steps that follow a node, each with the runs of its programs.
    fn branch(&self, of: &Ready, runs: &[Run], ready: &mut Vec<Ready>) -> Result<()> {
        for &node in self.trie.children(of.node) {
            let depth = of.depth + 1;
            let passes = |program: &usize| self.trie.path(*program).get(depth) == Some(&node);
            let own = |run: &usize| runs[*run].programs.iter().any(passes);
            let (mut members, mut rows, mut start) = (Vec::new(), Vec::new(), 0);
            for run in &of.runs {
                let end = start + runs[*run].ids.len() as u32;
                if own(run) {
                    members.push(*run);
                    rows.extend(start..end);
                }
                start = end;
            }
            let x = match members.len() {
                0 => continue,
                count if count == of.runs.len() => of.x.clone(),
                _ => select(&of.x, rows)?,
            };
            ready.push(Ready { node, depth, runs: members, x });
        }
        Ok(())
    }

    /// Takes out the step that runs next: layer by layer, so that weights which are made by need are made once.
    fn take(&self, ready: &mut Vec<Ready>) -> Option<Ready> {
        let of = |ready: &Ready| (self.trie.step(ready.node).weights(), ready.node);
        let at = (0..ready.len()).min_by_key(|&at| of(&ready[at]))?;
        let taken = ready.remove(at);
        let now = self.trie.step(taken.node).weights();
        // Of a program that passes the node.
        let path =
            (0..self.trie.programs()).map(|program| self.trie.path(program)).find(|path| path.contains(&taken.node));
        let after = path.unwrap_or(self.trie.path(0)).iter().copied();
        let ahead = after.skip(taken.depth).chain(ready.iter().map(|of| of.node));
        let next = ahead.filter_map(|node| self.trie.step(node).weights()).find(|weights| Some(*weights) != now);
        self.model.expect(now, next);
        Some(taken)
    }
}

fn select(x: &Tensor, rows: Vec<u32>) -> Result<Tensor> {
    Ok(x.index_select(&Tensor::new(rows, x.device())?, 0)?)
}

impl<M: Cached> TrieDecoding<'_, M> {
    fn run_here(&mut self, runs: &[Run]) -> Result<Vec<Vec<Vec<f32>>>> {
        let of_run = |run: &Run| vec![Vec::new(); run.programs.len()];
        let mut outputs: Vec<Vec<Vec<f32>>> = runs.iter().map(of_run).collect();
        let firsts: Vec<usize> = runs
            .iter()
            .map(|run| {
                let before: usize = run.before.iter().map(|(_, tokens)| tokens).sum();
                before + self.lengths.get(&run.block).copied().unwrap_or(0)
            })
            .collect();
        if runs.is_empty() {
            return Ok(outputs);
        }
        let ids: Vec<u32> = runs.iter().flat_map(|run| run.ids.iter().copied()).collect();
        let root = Ready { node: 0, depth: 0, runs: (0..runs.len()).collect(), x: self.model.embed(&ids)? };
        let mut ready = Vec::new();
        self.branch(&root, runs, &mut ready)?;
        drop(root);
        while let Some(mut taken) = self.take(&mut ready) {
            let step = self.trie.step(taken.node);
            if *step == Step::Head {
                let ends = taken.runs.iter().scan(0, |end, &run| {
                    *end += runs[run].ids.len() as u32;
                    Some(*end - 1)
                });
                let logits = self.model.head(&select(&taken.x, ends.collect())?)?;
                let vocab = logits.len() / taken.runs.len();
                for (&run, row) in taken.runs.iter().zip(logits.chunks_exact(vocab)) {
                    for (output, &program) in outputs[run].iter_mut().zip(&runs[run].programs) {
                        if self.trie.path(program).last() == Some(&taken.node) {
                            *output = row.to_vec();
                        }
                    }
                }
                continue;
            }
            let mut start = 0;
            let placed = taken.runs.iter().map(|&run| {
                let rows = start..start + runs[run].ids.len();
                start = rows.end;
                Placed { rows, first: firsts[run], run: &runs[run] }
            });
            let past = Past { runs: placed.collect(), blocks: RefCell::new(&mut self.blocks[taken.node]) };
            taken.x = self.model.step(step, &taken.x, &past)?;
            self.branch(&taken, runs, &mut ready)?;
        }
        for run in runs {
            *self.lengths.entry(run.block).or_default() += run.ids.len();
        }
        Ok(outputs)
    }
}

impl<M: Cached> Decoding for TrieDecoding<'_, M> {
    fn run(&mut self, runs: &[Run]) -> Result<Vec<Vec<Vec<f32>>>> {
        // On one of the pool's threads: from elsewhere each of a token's hundred small products wakes one, and waits for it.
        rayon::scope(|_| self.run_here(runs))
    }

    fn free(&mut self, block: BlockId) {
        self.lengths.remove(&block);
        self.blocks.iter_mut().for_each(|blocks| drop(blocks.remove(&block)));
    }

    fn token_bytes(&self, programs: &[usize]) -> u64 {
        let nodes: BTreeSet<usize> = programs.iter().flat_map(|&of| self.trie.path(of)).copied().collect();
        let attention = |node: &usize| self.trie.step(*node).is_attention();
        nodes.into_iter().filter(attention).count() as u64 * self.model.key_value_bytes()
    }
}
