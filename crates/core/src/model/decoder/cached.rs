//! Decoding with a KV cache in host memory.

use std::collections::HashMap;

use candle_core::Tensor;
use ghostlab_kernels::forward::{self as kernels, AttentionParams, CachedRun, KeyValues, Scratch};

use super::{AttentionContext, Decoder};
use crate::error::Result;
use crate::model::batch::Batch;
use crate::model::config::Config;
use crate::model::decoding::{BlockId, CacheView, CachedModel, RunPlacement};
use crate::model::program::Step;
use crate::model::rope::Rotary;
use crate::model::slice::elements;
use crate::model::trie::Model;

/// Keys and values by block and trie node.
type Blocks = HashMap<BlockId, HashMap<usize, KeyValues>>;

type AttentionCacheView<'a> = CacheView<'a, (), Blocks>;

impl AttentionContext for AttentionCacheView<'_> {
    fn attention(&self, qkv: &[f32], params: &AttentionParams<'_>, rotary: &Rotary) -> Result<Scratch> {
        let (table, table_rows) = rotary.decoding_table(self.runs);
        let rotated = kernels::prepare_queries_and_keys(qkv, params, &table_rows, &table);
        let mut blocks = self.blocks.borrow_mut();
        for placed in self.runs {
            if let Some(block) = blocks.get_mut(&placed.run.block).and_then(|block| block.get_mut(&self.node)) {
                kernels::append_keys_values(block, &rotated, qkv, params, placed.rows.clone());
            }
        }
        let seen = self.runs.iter().map(|placed| {
            Ok(CachedRun {
                rows: placed.rows.clone(),
                first: placed.first,
                blocks: placed.visible_blocks(|id| blocks.get(&id)?.get(&self.node))?,
            })
        });
        let seen: Vec<CachedRun<'_>> = seen.collect::<Result<_>>()?;
        Ok(kernels::attention_with_cache(&rotated, params, &seen))
    }
}

impl CachedModel for Decoder {
    type Blocks = Blocks;
    type StepData = ();

    fn backbone(&self) -> &Config {
        &self.config
    }

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        let mut batch = Batch::default();
        batch.push(ids, None);
        self.begin(&batch)
    }

    fn prepare_step_data(&self, _: &[RunPlacement<'_>], _: &Blocks) -> Result<()> {
        Ok(())
    }

    fn step(&self, step: &Step, x: &Tensor, cache: &AttentionCacheView<'_>) -> Result<Tensor> {
        self.run_step(step, cache, x)
    }

    fn allocate_block(&self, blocks: &mut Blocks, nodes: Vec<usize>, block: BlockId, capacity: usize) -> Result<()> {
        let width = self.config.kv_heads * self.config.head_dim;
        blocks.insert(block, nodes.into_iter().map(|node| (node, KeyValues::with_capacity(capacity, width))).collect());
        Ok(())
    }

    fn free_block(blocks: &mut Blocks, block: BlockId) {
        blocks.remove(&block);
    }

    fn row_logits(&self, x: &Tensor) -> Result<Vec<Vec<f32>>> {
        let rows: Vec<usize> = (0..x.dim(0)?).collect();
        let logits = self.logits(x, &rows)?;
        Ok(elements(&logits)?.chunks_exact(self.config.vocab).map(<[f32]>::to_vec).collect())
    }

    /// Returns the size of f32 keys and values. They are cached in f32 even if products use bf16.
    fn key_value_bytes(&self) -> u64 {
        8 * (self.config.kv_heads * self.config.head_dim) as u64
    }
}
