//! The dense pass itself.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Tensor;
use rayon::prelude::*;

use super::activations::{Activations, Spool};
use super::similarity::{Pair, Similarities};
use crate::error::{Error, Result};
use crate::model::{Batch, Decoder, Observer, Program, Trie};

/// What a grid needs of one calibration.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub pairs: BTreeSet<Pair>,
    /// Boundaries whose rows are spooled: `l` stands for `X_l`, the residual stream entering layer `l`.
    pub sites: BTreeSet<usize>,
}

/// What a pass gives.
pub struct Calibration {
    pub similarities: Similarities,
    pub activations: Activations,
    pub sequences: usize,
    /// Tokens of each sequence.
    pub length: usize,
}

/// Runs the dense backbone once over all windows. `progress` is told the tokens of each batch and may stop the pass.
///
/// # Errors
/// A residual stream that is not finite (named with layer and sequence), no room for the spool, or what `progress` returns.
pub fn run(
    decoder: &Decoder,
    windows: &[&[u32]],
    batch_tokens: usize,
    request: &Request,
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<Calibration> {
    let layers = decoder.config().layers;
    let trie = Trie::new(&[Program::trunk(layers)]);
    let length = windows.first().map_or(0, |window| window.len());
    let mut taps = Taps {
        boundary: boundaries(&trie, layers),
        similarities: Similarities::new(&request.pairs),
        spool: Spool::create(&request.sites, decoder.config().hidden)?,
        channels: decoder.config().hidden,
        batch: Batch::default(),
        first_sequence: 0,
        held: BTreeMap::new(),
    };
    for windows in windows.chunks((batch_tokens / length.max(1)).max(1)) {
        taps.batch = Batch::windows(windows.iter().copied());
        let batch = taps.batch.clone();
        trie.run(decoder, &batch, &mut taps)?;
        taps.held.clear();
        taps.similarities.count(windows.len());
        taps.first_sequence += windows.len();
        progress(batch.tokens())?;
    }
    Ok(Calibration {
        similarities: taps.similarities,
        activations: taps.spool.finish()?,
        sequences: windows.len(),
        length,
    })
}

/// Node → boundary: `X_0` leaves the embedding, `X_{l+1}` leaves the MLP of layer `l`.
fn boundaries(trie: &Trie, layers: usize) -> BTreeMap<usize, usize> {
    let path = trie.path(0);
    (0..=layers).map(|boundary| (path[2 * boundary], boundary)).collect()
}

struct Taps {
    boundary: BTreeMap<usize, usize>,
    similarities: Similarities,
    spool: Spool,
    channels: usize,
    batch: Batch,
    first_sequence: usize,
    /// Streams of this batch that a later boundary is compared with.
    held: BTreeMap<usize, Tensor>,
}

impl Observer<Tensor> for Taps {
    fn after(&mut self, node: usize, state: Option<&Tensor>, _: f64) -> Result<()> {
        let (Some(&boundary), Some(state)) = (self.boundary.get(&node), state) else { return Ok(()) };
        self.held.insert(boundary, state.clone());
        let pairs = self.similarities.ending_at(boundary);
        let slices = self
            .held
            .iter()
            .map(|(&at, tensor)| Ok((at, crate::model::elements(tensor)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        let stream = &slices[&boundary];
        refuse_non_finite(stream, boundary, self.channels, &self.batch, self.first_sequence)?;
        self.similarities.add(&pairs, self.channels, &self.batch.segments, |at| &slices[&at]);
        self.spool.push(boundary, stream)?;
        drop(slices);
        let similarities = &self.similarities;
        self.held.retain(|&from, _| similarities.last_use(from).is_some_and(|last| last > boundary));
        Ok(())
    }
}

fn refuse_non_finite(stream: &[f32], boundary: usize, channels: usize, batch: &Batch, first: usize) -> Result<()> {
    let Some(at) = stream.par_iter().position_first(|v| !v.is_finite()) else { return Ok(()) };
    let row = at / channels;
    let segment = batch.segments.iter().position(|rows| rows.contains(&row)).unwrap_or(0);
    Err(Error::job("an activation is not a finite number")
        .at(format!("residual stream entering layer {boundary}, calibration sequence {}", first + segment))
        .found(format!("{} at token {}, channel {}", stream[at], row - batch.segments[segment].start, at % channels))
        .hint("the backbone overflows on this text: check its weights and float type"))
}
