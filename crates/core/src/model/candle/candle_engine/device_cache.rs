//! Decoding with a KV cache, whose blocks are preallocated tensors on the device. On CUDA, one kernel computes
//! attention for all rows of a step. Other devices process one sequence at a time with candle's operations.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::Tensor;

use super::CandleEngine;
use crate::error::{Error, Result};
use crate::model::batch::Batch;
use crate::model::candle::batch_layout::AttentionContext;
#[cfg(feature = "cuda")]
use crate::model::candle::cuda::{self, AddressTable, BlockAddress, VisibleBlocks};
use crate::model::candle::{head, ops};
use crate::model::config::Config;
use crate::model::decoding::{BlockId, CacheView, CachedModel, RunPlacement};
use crate::model::program::Step;
use crate::model::rope;

/// Rotated keys and values of one block for all attention steps, in the engine's dtype. They share one allocation
/// because each allocation costs two driver calls.
pub(in crate::model) struct KeyValues {
    tensor: Tensor, // [nodes, 2, capacity, K, D]
    /// Trie nodes of the attention steps, in ascending order.
    nodes: Arc<[usize]>,
    /// Device address of the allocation.
    #[cfg(feature = "cuda")]
    first: u64,
}

impl KeyValues {
    /// Returns `[keys, values]` of a step, each `[capacity, K, D]`.
    fn keys_and_values(&self, node: usize) -> Result<[Tensor; 2]> {
        let index = self
            .nodes
            .binary_search(&node)
            .map_err(|_| Error::job("a block of the KV cache has no entry for a step"))?;
        let pair = self.tensor.get(index)?;
        Ok([pair.get(0)?, pair.get(1)?])
    }

    #[cfg(feature = "cuda")]
    fn block_address(&self) -> BlockAddress {
        let value_offset = self.tensor.stride()[1] * self.tensor.dtype().size_in_bytes();
        BlockAddress { nodes: Arc::clone(&self.nodes), first: self.first, value_offset: value_offset as u64 }
    }
}

#[derive(Default)]
pub(in crate::model) struct Blocks {
    key_values: HashMap<BlockId, KeyValues>,
    /// Last address table of each attention step, keyed by trie node.
    #[cfg(feature = "cuda")]
    last_addresses: HashMap<usize, AddressTable>,
}

/// Rotary tables and visible blocks of the new rows, shared by all steps.
pub(in crate::model) struct StepData {
    /// Cosines and sines for each rotary embedding, as in a [`Piece`](crate::model::candle::batch_layout::Piece).
    cos_sin: Vec<Option<(Tensor, Tensor)>>,
    #[cfg(feature = "cuda")]
    visible: Option<VisibleBlocks>,
}

type AttentionCacheView<'a> = CacheView<'a, StepData, Blocks>;

/// Computes attention for one sequence over its cached blocks.
///
/// # Shapes
/// `queries [q, H, D]`; result `[q, H·D]`.
fn attend(
    placed: &RunPlacement<'_>,
    queries: &Tensor,
    (blocks, node): (&HashMap<BlockId, KeyValues>, usize),
    window: Option<usize>,
    scores: ops::Scores,
) -> Result<Tensor> {
    let visible = placed.visible_blocks(|id| blocks.get(&id))?;
    let [keys, values] = [0, 1].map(|side| -> Result<Tensor> {
        let parts = visible.iter().map(|(block, tokens)| Ok(block.keys_and_values(node)?[side].narrow(0, 0, *tokens)?));
        Ok(Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?.unsqueeze(0)?)
    });
    let keys = keys?; // [1, k, K, D]
    let values = values?; // [1, k, K, D]
    let mask = ops::causal_mask(placed.first, placed.rows.len(), window, queries.device())?;
    Ok(ops::attention(&queries.unsqueeze(0)?, &keys, &values, &mask, scores)?.squeeze(0)?)
}

impl AttentionContext for AttentionCacheView<'_> {
    fn cos_sin(&self, rotary: usize) -> Option<&(Tensor, Tensor)> {
        self.step_data.cos_sin.get(rotary).and_then(Option::as_ref)
    }

    fn attention(
        &self,
        [queries, keys, values]: [&Tensor; 3],
        window: Option<usize>,
        scores: ops::Scores,
    ) -> Result<Tensor> {
        let blocks = &mut **self.blocks.borrow_mut();
        #[cfg(feature = "cuda")]
        if let Some(visible) = &self.step_data.visible {
            let addresses = match blocks.last_addresses.remove(&self.node).filter(|last| last.is_for(visible)) {
                Some(last) => last,
                None => visible.address_table(self.node, queries.device())?,
            };
            let attended = cuda::attend([queries, keys, values], visible, &addresses, window, scores);
            blocks.last_addresses.insert(self.node, addresses);
            return attended;
        }
        for placed in self.runs {
            let Some(block) = blocks.key_values.get(&placed.run.block) else { continue };
            for (x, to) in [keys, values].into_iter().zip(block.keys_and_values(self.node)?) {
                to.slice_set(
                    &x.narrow(0, placed.rows.start, placed.rows.len())?.contiguous()?,
                    0,
                    placed.offset_in_block(),
                )?;
            }
        }
        let runs = self
            .runs
            .iter()
            .map(|placed| {
                attend(
                    placed,
                    &queries.narrow(0, placed.rows.start, placed.rows.len())?,
                    (&blocks.key_values, self.node),
                    window,
                    scores,
                )
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(if runs.len() == 1 { runs[0].clone() } else { Tensor::cat(&runs, 0)? })
    }
}

impl CandleEngine {
    /// Computes the logits of every row.
    ///
    /// # Shapes
    /// `x [rows, C]`; result `[rows, vocab]`.
    fn all_logits(&self, x: &Tensor) -> Result<Tensor> {
        let rows: Vec<usize> = (0..x.dim(0)?).collect();
        head::logits(x, self.head_params(), &self.weight_cache.head()?, &rows)
    }
}

impl CachedModel for CandleEngine {
    type Blocks = Blocks;
    type StepData = StepData;

    fn backbone(&self) -> &Config {
        &self.config
    }

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        let mut batch = Batch::default();
        batch.push(ids, None);
        batch.check_ids(self.config.vocab)?;
        self.weight_cache.embeddings(ids)
    }

    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "used only by CUDA kernels"))]
    fn prepare_step_data(&self, runs: &[RunPlacement<'_>], blocks: &Blocks) -> Result<StepData> {
        let cos_sin = self.rotaries.map_used(|rotary| {
            let (table, rows) = rotary.decoding_table(runs);
            rope::cos_sin_tensors(&table, &rows, &self.device)
        })?;
        Ok(StepData {
            cos_sin,
            #[cfg(feature = "cuda")]
            visible: VisibleBlocks::new(runs, self.config.head_dim, &self.device, |id| {
                blocks.key_values.get(&id).map(KeyValues::block_address)
            })?,
        })
    }

    fn step(&self, step: &Step, x: &Tensor, cache: &AttentionCacheView<'_>) -> Result<Tensor> {
        #[cfg(test)]
        if x.dim(0)? > self.max_test_rows {
            return Err(Error::job("a tensor operation failed").found("CUDA_ERROR_OUT_OF_MEMORY"));
        }
        let x = self.step(step, cache, x)?;
        self.stays_finite(step, &x)?;
        Ok(x)
    }

    fn allocate_block(&self, blocks: &mut Blocks, nodes: Vec<usize>, block: BlockId, capacity: usize) -> Result<()> {
        let shape = [nodes.len(), 2, capacity, self.config.kv_heads, self.config.head_dim];
        let tensor = Tensor::zeros(&shape, self.dtype.candle_dtype(), &self.device)?;
        let key_values = KeyValues {
            nodes: nodes.into(),
            #[cfg(feature = "cuda")]
            first: cuda::device_address(&tensor)?,
            tensor,
        };
        blocks.key_values.insert(block, key_values);
        Ok(())
    }

    fn free_block(blocks: &mut Blocks, block: BlockId) {
        blocks.key_values.remove(&block);
        #[cfg(feature = "cuda")]
        blocks.last_addresses.clear();
    }

    fn row_logits(&self, x: &Tensor) -> Result<Vec<Vec<f32>>> {
        Ok(self.all_logits(x)?.to_vec2()?)
    }

    fn greedy_tokens(&self, x: &Tensor) -> Result<Vec<Option<u32>>> {
        head::argmax(&self.all_logits(x)?)
    }

    fn key_value_bytes(&self) -> u64 {
        2 * self.dtype.bytes() * (self.config.kv_heads * self.config.head_dim) as u64
    }
}
