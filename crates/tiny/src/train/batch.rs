//! One step's chunks of text, shared out among threads: the loss and the sum of the gradients.

use rayon::prelude::*;

use super::network::{Network, Tape};

/// Room for the shards of a batch. A shard is the work of one thread: which chunks it holds never depends on how many
/// threads there are, so neither does the result.
#[derive(Debug)]
pub struct Shards {
    tapes: Vec<Tape<f32>>,
    /// The gradient of each shard's chunks.
    pub gradients: Vec<Vec<f32>>,
}

impl Shards {
    pub fn new(count: usize, parameters: usize) -> Self {
        Self { tapes: (0..count).map(|_| Tape::default()).collect(), gradients: vec![vec![0.0; parameters]; count] }
    }

    /// The mean loss of the chunks, each one token longer than it counts; the gradient of the weighted mean is added to
    /// `gradients`.
    ///
    /// Tokens attend within windows of `span`. `counts` says how much each prediction of a chunk weighs.
    pub fn run(
        &mut self,
        network: &Network,
        weights: &[f32],
        chunks: &[&[u32]],
        span: usize,
        counts: &(dyn Fn(&[u32]) -> Vec<f32> + Sync),
    ) -> f64 {
        let tokens: usize = chunks.iter().map(|chunk| chunk.len() - 1).sum();
        let mut factors: Vec<Vec<f32>> = chunks.iter().map(|chunk| counts(chunk)).collect();
        let total: f32 = factors.iter().flatten().sum();
        factors.iter_mut().flatten().for_each(|factor| *factor /= total);
        let each = chunks.len().div_ceil(self.tapes.len());
        let shards = chunks.par_chunks(each).zip(factors.par_chunks(each));
        let shards = shards.zip(&mut self.tapes).zip(&mut self.gradients);
        let sums: Vec<f64> = shards
            .map(|(((chunks, factors), tape), gradient)| {
                let mut losses = Vec::new();
                for (chunk, factors) in chunks.iter().zip(factors) {
                    let (inputs, targets) = (&chunk[..chunk.len() - 1], &chunk[1..]);
                    network.forward(weights, inputs, span, tape);
                    network.losses_back(weights, targets, factors, tape, &mut losses, gradient);
                    network.backward(weights, inputs, span, tape, gradient);
                }
                losses.iter().sum::<f64>()
            })
            .collect();
        sums.iter().sum::<f64>() / tokens as f64
    }

    /// The loss of every token but the first of each chunk, in order.
    pub fn losses(&mut self, network: &Network, weights: &[f32], chunks: &[&[u32]]) -> Vec<f64> {
        let each = chunks.len().div_ceil(self.tapes.len()).max(1);
        let shards = chunks.par_chunks(each).zip(&mut self.tapes);
        let parts: Vec<Vec<f64>> = shards
            .map(|(chunks, tape)| {
                let mut losses = Vec::new();
                for chunk in chunks.iter().filter(|chunk| chunk.len() > 1) {
                    let (inputs, targets) = (&chunk[..chunk.len() - 1], &chunk[1..]);
                    network.forward(weights, inputs, inputs.len(), tape);
                    network.losses(weights, targets, tape, &mut losses);
                }
                losses
            })
            .collect();
        parts.into_iter().flatten().collect()
    }
}
