//! Decoding with a cache: keys and values of blocks as tensors on the device, appended to by plain operations.

use std::collections::HashMap;

use candle_core::{Device, Tensor};

use super::CandleEngine;
use crate::error::Result;
use crate::model::batch::Batch;
use crate::model::candle::layout::Seen;
use crate::model::candle::{head, ops};
use crate::model::decoding::{BlockId, Cached, Past, Placed};
use crate::model::program::Step;
use crate::model::rope::Rotaries;

/// Keys, rotated, and values of some tokens of one layer, each `[tokens, K, D]` in the engine's type.
#[derive(Clone)]
pub(in crate::model) struct KeyValues {
    keys: Tensor,
    values: Tensor,
}

impl KeyValues {
    fn followed_by(block: Option<&Self>, keys: Tensor, values: Tensor) -> Result<Self> {
        let Some(block) = block else { return Ok(Self { keys, values }) };
        let [keys, values] =
            [(&block.keys, keys), (&block.values, values)].map(|(old, new)| Tensor::cat(&[old, &new], 0));
        Ok(Self { keys: keys?, values: values? })
    }

    /// Its first tokens.
    fn first(&self, tokens: usize) -> Result<Self> {
        Ok(Self { keys: self.keys.narrow(0, 0, tokens)?, values: self.values.narrow(0, 0, tokens)? })
    }
}

/// New rows, and the blocks of what stands before them.
struct PastRows<'a, 'b> {
    past: &'a Past<'b, KeyValues>,
    /// As of a [`Piece`](crate::model::candle::layout::Piece).
    turned: Vec<Option<(Tensor, Tensor)>>,
    device: Device,
}

impl<'a, 'b> PastRows<'a, 'b> {
    fn new(past: &'a Past<'b, KeyValues>, rotaries: &Rotaries, device: &Device) -> Result<Self> {
        let positions = past.positions();
        let turned = rotaries.turned(|rotary| rotary.continued(&positions)?.tensors(&positions, device))?;
        Ok(Self { past, turned, device: device.clone() })
    }

    /// Of one run.
    ///
    /// # Shapes
    /// `queries [q, H, D]`; result `[q, H·D]`.
    fn attend(
        &self,
        of: &Placed<'_>,
        queries: &Tensor,
        blocks: &HashMap<BlockId, KeyValues>,
        window: Option<usize>,
        scores: ops::Scores,
    ) -> Result<Tensor> {
        let parts = of.chain(blocks)?.into_iter().map(|(block, tokens)| block.first(tokens));
        let parts: Vec<KeyValues> = parts.collect::<Result<_>>()?;
        let joined = |of: fn(&KeyValues) -> &Tensor| -> Result<Tensor> {
            let parts: Vec<&Tensor> = parts.iter().map(of).collect();
            Ok(Tensor::cat(&parts, 0)?.unsqueeze(0)?)
        };
        let (keys, values) = (joined(|of| &of.keys)?, joined(|of| &of.values)?); // [1, k, K, D]
        let (rows, count) = (of.rows.len(), of.first + of.rows.len());
        let sees = |at: usize| {
            let (row, key) = (of.first + at / count, at % count);
            key <= row && row - key < window.unwrap_or(usize::MAX)
        };
        let mask: Vec<f32> = (0..rows * count).map(|at| if sees(at) { 0.0 } else { f32::NEG_INFINITY }).collect();
        let mask = Tensor::from_vec(mask, (rows, count), &self.device)?;
        Ok(ops::attention(&queries.unsqueeze(0)?, &keys, &values, &mask, scores)?.squeeze(0)?)
    }
}

impl Seen for PastRows<'_, '_> {
    fn turned(&self, rotary: usize) -> Option<&(Tensor, Tensor)> {
        self.turned.get(rotary).and_then(Option::as_ref)
    }

    fn attention(
        &self,
        [queries, keys, values]: [&Tensor; 3],
        window: Option<usize>,
        scores: ops::Scores,
    ) -> Result<Tensor> {
        let mut blocks = self.past.blocks.borrow_mut();
        for of in &self.past.runs {
            let own = |x: &Tensor| x.narrow(0, of.rows.start, of.rows.len());
            let block = KeyValues::followed_by(blocks.get(&of.run.block), own(keys)?, own(values)?)?;
            blocks.insert(of.run.block, block);
        }
        let of_run = |of: &Placed<'_>| {
            self.attend(of, &queries.narrow(0, of.rows.start, of.rows.len())?, &blocks, window, scores)
        };
        let runs = self.past.runs.iter().map(of_run).collect::<Result<Vec<_>>>()?;
        Ok(if runs.len() == 1 { runs[0].clone() } else { Tensor::cat(&runs, 0)? })
    }
}

impl Cached for CandleEngine {
    type Block = KeyValues;

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        let mut batch = Batch::default();
        batch.push(ids, None);
        batch.check_ids(self.config.vocab)?;
        self.parts.embeddings(ids)
    }

    fn step(&self, step: &Step, x: &Tensor, past: &Past<'_, KeyValues>) -> Result<Tensor> {
        let x = self.step(step, &PastRows::new(past, &self.rotaries, &self.device)?, x)?;
        self.stays_finite(step, &x)?;
        Ok(x)
    }

    fn head(&self, x: &Tensor) -> Result<Vec<f32>> {
        let rows: Vec<usize> = (0..x.dim(0)?).collect();
        let logits = head::logits(x, self.ends(), &self.parts.head()?, &rows)?;
        Ok(logits.flatten_all()?.to_vec1()?)
    }

    fn key_value_bytes(&self) -> u64 {
        2 * self.dtype.bytes() * (self.config.kv_heads * self.config.head_dim) as u64
    }
}
