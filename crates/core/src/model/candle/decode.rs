//! The candle engine as something that decodes with a cache.

use candle_core::Tensor;

use super::cached::KeyValues;
use super::engine::CandleEngine;
use crate::error::Result;
use crate::model::decoding::{Cached, Past};
use crate::model::program::Step;
use crate::model::trie::Model;

impl Cached for CandleEngine {
    type Block = KeyValues;

    fn expect(&self, now: Option<usize>, next: Option<usize>) {
        Model::expect(self, now, next);
    }

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        self.embeddings(ids)
    }

    fn step(&self, step: &Step, x: &Tensor, past: &Past<'_, KeyValues>) -> Result<Tensor> {
        self.cached_step(step, x, past)
    }

    fn head(&self, x: &Tensor) -> Result<Vec<f32>> {
        self.all_logits(x)
    }

    fn key_value_bytes(&self) -> u64 {
        self.cache_bytes()
    }
}
