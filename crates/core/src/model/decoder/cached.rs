//! Decoding with a cache: keys and values of blocks in this machine's memory.

use std::collections::HashMap;

use candle_core::Tensor;
use ghostlab_kernels::forward::{self as kernels, Heads, KeyValues, Scratch, SeenRun};

use super::{Decoder, Seen};
use crate::error::Result;
use crate::model::batch::Batch;
use crate::model::decoding::{BlockId, Cached, Past, Placed, positions};
use crate::model::program::Step;
use crate::model::rope::Rotary;
use crate::model::slice::elements;
use crate::model::trie::Model;

type Blocks = HashMap<BlockId, KeyValues>;

/// New rows by their positions.
type PastRows<'a> = Past<'a, Vec<usize>, Blocks>;

impl Seen for PastRows<'_> {
    fn attention(&self, qkv: &[f32], heads: &Heads<'_>, rotary: &Rotary) -> Result<Scratch> {
        let table = rotary.continued(self.shared)?;
        let rotated = kernels::rotate(qkv, heads, self.shared, &table);
        let mut blocks = self.blocks.borrow_mut();
        for of in self.runs {
            let fresh = || KeyValues::with_room(of.run.room, heads.keys * heads.head_dim);
            let block = blocks.entry(of.run.block).or_insert_with(fresh);
            kernels::keep(block, &rotated, qkv, heads, of.rows.clone());
        }
        let seen = self
            .runs
            .iter()
            .map(|of| Ok(SeenRun { rows: of.rows.clone(), first: of.first, blocks: of.chain(&blocks)? }));
        let seen: Vec<SeenRun<'_>> = seen.collect::<Result<_>>()?;
        Ok(kernels::attention_over(&rotated, heads, &seen))
    }
}

impl Cached for Decoder {
    type Blocks = Blocks;
    /// The position of each row.
    type Shared = Vec<usize>;

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        let mut batch = Batch::default();
        batch.push(ids, None);
        self.begin(&batch)
    }

    fn shared(&self, runs: &[Placed<'_>]) -> Result<Vec<usize>> {
        Ok(positions(runs))
    }

    fn step(&self, step: &Step, x: &Tensor, past: &PastRows<'_>) -> Result<Tensor> {
        self.step_of(step, past, x)
    }

    fn forget(blocks: &mut Blocks, block: BlockId) {
        blocks.remove(&block);
    }

    fn head(&self, x: &Tensor) -> Result<Vec<Vec<f32>>> {
        let rows: Vec<usize> = (0..x.dim(0)?).collect();
        let logits = self.logits(x, &rows)?;
        Ok(elements(&logits)?.chunks_exact(self.config.vocab).map(<[f32]>::to_vec).collect())
    }

    /// In f32 whatever the products are computed in: a query at a time, reading them is what takes time.
    fn key_value_bytes(&self) -> u64 {
        8 * (self.config.kv_heads * self.config.head_dim) as u64
    }
}
