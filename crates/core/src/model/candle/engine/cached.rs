//! Decoding with a cache: keys and values of blocks as tensors on the device, with room for what comes. On CUDA one kernel
//! attends for all rows of a step; elsewhere plain operations do, run by run.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use candle_core::Tensor;

use super::CandleEngine;
use crate::error::Result;
use crate::model::batch::Batch;
#[cfg(feature = "cuda")]
use crate::model::candle::cuda::{self, Places, Sight};
use crate::model::candle::layout::Seen;
use crate::model::candle::{head, ops};
use crate::model::decoding::{BlockId, Cached, Past, Placed, positions};
use crate::model::program::Step;
use crate::model::rope;

/// Keys, rotated, and values of some tokens of one layer in the engine's type.
pub(in crate::model) struct KeyValues {
    keys: Tensor,   // [room, K, D]
    values: Tensor, // [room, K, D]
    /// Where both begin.
    #[cfg(feature = "cuda")]
    places: [u64; 2],
}

impl KeyValues {
    /// Empty; `like` has the form of the keys `[.., K, D]`.
    fn with_room(room: usize, like: &Tensor) -> Result<Self> {
        let (_, heads, head_dim) = like.dims3()?;
        let both = Tensor::zeros((2, room, heads, head_dim), like.dtype(), like.device())?;
        let (keys, values) = (both.get(0)?, both.get(1)?);
        Ok(Self {
            #[cfg(feature = "cuda")]
            places: [cuda::place(&keys)?, cuda::place(&values)?],
            keys,
            values,
        })
    }
}

/// Those of one step.
#[derive(Default)]
pub(in crate::model) struct Blocks {
    all: HashMap<BlockId, KeyValues>,
    #[cfg(feature = "cuda")]
    last: Option<Places>,
}

impl Blocks {
    /// Makes those that are not there yet; `like` as of [`KeyValues::with_room`].
    fn begin(&mut self, runs: &[Placed<'_>], like: &Tensor) -> Result<()> {
        for Placed { run, .. } in runs {
            if let Entry::Vacant(block) = self.all.entry(run.block) {
                block.insert(KeyValues::with_room(run.room, like)?);
            }
        }
        Ok(())
    }
}

/// What new rows need at every step.
pub(in crate::model) struct Shared {
    /// As of a [`Piece`](crate::model::candle::layout::Piece).
    turned: Vec<Option<(Tensor, Tensor)>>,
    #[cfg(feature = "cuda")]
    sight: Option<Sight>,
}

type PastRows<'a> = Past<'a, Shared, Blocks>;

/// Of one run.
///
/// # Shapes
/// `queries [q, H, D]`; result `[q, H·D]`.
fn attend(
    of: &Placed<'_>,
    queries: &Tensor,
    blocks: &HashMap<BlockId, KeyValues>,
    window: Option<usize>,
    scores: ops::Scores,
) -> Result<Tensor> {
    let parts = of.chain(blocks)?;
    let joined = |side: fn(&KeyValues) -> &Tensor| -> Result<Tensor> {
        let parts = parts.iter().map(|(block, tokens)| side(block).narrow(0, 0, *tokens));
        Ok(Tensor::cat(&parts.collect::<candle_core::Result<Vec<_>>>()?, 0)?.unsqueeze(0)?)
    };
    let (keys, values) = (joined(|of| &of.keys)?, joined(|of| &of.values)?); // [1, k, K, D]
    let (rows, count) = (of.rows.len(), of.first + of.rows.len());
    let sees = |at: usize| {
        let (row, key) = (of.first + at / count, at % count);
        key <= row && row - key < window.unwrap_or(usize::MAX)
    };
    let mask: Vec<f32> = (0..rows * count).map(|at| if sees(at) { 0.0 } else { f32::NEG_INFINITY }).collect();
    let mask = Tensor::from_vec(mask, (rows, count), queries.device())?;
    Ok(ops::attention(&queries.unsqueeze(0)?, &keys, &values, &mask, scores)?.squeeze(0)?)
}

impl Seen for PastRows<'_> {
    fn turned(&self, rotary: usize) -> Option<&(Tensor, Tensor)> {
        self.shared.turned.get(rotary).and_then(Option::as_ref)
    }

    fn attention(
        &self,
        [queries, keys, values]: [&Tensor; 3],
        window: Option<usize>,
        scores: ops::Scores,
    ) -> Result<Tensor> {
        let mut blocks = self.blocks.borrow_mut();
        #[cfg(feature = "cuda")]
        if let Some(sight) = &self.shared.sight {
            let places = match blocks.last.take().filter(|last| last.are_of(sight)) {
                Some(last) => last,
                None => {
                    blocks.begin(self.runs, keys)?;
                    Places::new(sight, |id| blocks.all.get(id).map(|of| of.places), queries.device())?
                }
            };
            let attended = cuda::attend([queries, keys, values], sight, &places, window, scores);
            blocks.last = Some(places);
            return attended;
        }
        blocks.begin(self.runs, keys)?;
        for of in self.runs {
            let Some(block) = blocks.all.get(&of.run.block) else { continue };
            for (x, to) in [(keys, &block.keys), (values, &block.values)] {
                to.slice_set(&x.narrow(0, of.rows.start, of.rows.len())?.contiguous()?, 0, of.place())?;
            }
        }
        let of_run = |of: &Placed<'_>| {
            attend(of, &queries.narrow(0, of.rows.start, of.rows.len())?, &blocks.all, window, scores)
        };
        let runs = self.runs.iter().map(of_run).collect::<Result<Vec<_>>>()?;
        Ok(if runs.len() == 1 { runs[0].clone() } else { Tensor::cat(&runs, 0)? })
    }
}

impl CandleEngine {
    /// # Shapes
    /// `x [rows, C]`; result `[rows, vocab]`.
    fn every_logit(&self, x: &Tensor) -> Result<Tensor> {
        let rows: Vec<usize> = (0..x.dim(0)?).collect();
        head::logits(x, self.ends(), &self.parts.head()?, &rows)
    }
}

impl Cached for CandleEngine {
    type Blocks = Blocks;
    type Shared = Shared;

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        let mut batch = Batch::default();
        batch.push(ids, None);
        batch.check_ids(self.config.vocab)?;
        self.parts.embeddings(ids)
    }

    fn shared(&self, runs: &[Placed<'_>]) -> Result<Shared> {
        let positions = positions(runs);
        let turned =
            self.rotaries.turned(|rotary| rope::tensors(&*rotary.continued(&positions)?, &positions, &self.device))?;
        Ok(Shared {
            turned,
            #[cfg(feature = "cuda")]
            sight: Sight::new(runs, self.config.head_dim, &self.device)?,
        })
    }

    fn step(&self, step: &Step, x: &Tensor, past: &PastRows<'_>) -> Result<Tensor> {
        #[cfg(test)]
        if x.dim(0)? > self.room {
            return Err(crate::error::Error::job("a tensor operation failed").found("CUDA_ERROR_OUT_OF_MEMORY"));
        }
        let x = self.step(step, past, x)?;
        self.stays_finite(step, &x)?;
        Ok(x)
    }

    fn forget(blocks: &mut Blocks, block: BlockId) {
        blocks.all.remove(&block);
        #[cfg(feature = "cuda")]
        blocks.last.take();
    }

    fn head(&self, x: &Tensor) -> Result<Vec<Vec<f32>>> {
        Ok(self.every_logit(x)?.to_vec2()?)
    }

    fn likeliest(&self, x: &Tensor) -> Result<Vec<Option<u32>>> {
        head::likeliest(&self.every_logit(x)?)
    }

    fn key_value_bytes(&self) -> u64 {
        2 * self.dtype.bytes() * (self.config.kv_heads * self.config.head_dim) as u64
    }
}
