//! The dense pass itself.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Tensor;
use rayon::prelude::*;

use super::activations::{ActivationShape, Activations, HookPoint, InMemory, Spool};
use super::similarity::{Pair, Similarities};
use crate::corpus::Windows;
use crate::error::{Error, Result};
use crate::model::{Batch, Decoder, Observer, Program, Trie};

/// What a grid needs of one calibration.
#[derive(Debug, Clone, Default)]
pub struct PassRequest {
    pub pairs: BTreeSet<Pair>,
    /// Where the residual stream is spooled.
    pub sites: BTreeSet<HookPoint>,
}

impl PassRequest {
    /// Whether there is nothing to measure.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.sites.is_empty()
    }

    /// The dense backbone as far as it has to run.
    pub fn program(&self, layers: usize) -> Program {
        let of_site = |site: &HookPoint| match site {
            HookPoint::Stream(layer) => 2 * layer,
            HookPoint::Middle(layer) => 2 * layer + 1,
        };
        let last = self.pairs.iter().map(|pair| 2 * pair.to).chain(self.sites.iter().map(of_site)).max();
        let mut program = Program::trunk(layers);
        program.0.truncate(1 + last.unwrap_or(0));
        program
    }
}

/// Runs the dense backbone once over all windows: `spool` takes the rows of the sites that were
/// asked for, and an error counts sequences from `first_sequence`. `progress` is told the tokens of each batch and may stop the pass.
///
/// # Errors
/// A residual stream that is not finite (named with layer and sequence), no room for the spool, or what `progress` returns.
pub fn run(
    decoder: &Decoder,
    windows: &[&[u32]],
    first_sequence: usize,
    batch_tokens: usize,
    request: &PassRequest,
    spool: &mut dyn Spool,
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<Similarities> {
    let trie = Trie::new(&[request.program(decoder.config().layers)]);
    let length = windows.first().map_or(0, |window| window.len());
    let mut taps = Taps {
        sites: sites(&trie),
        similarities: Similarities::new(&request.pairs),
        spool,
        channels: decoder.config().hidden,
        batch: Batch::default(),
        first_sequence,
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
    Ok(taps.similarities)
}

/// The activations at some sites over all windows, kept in memory.
///
/// # Errors
/// As [`run`].
pub fn in_memory(
    decoder: &Decoder,
    windows: &Windows,
    sites: impl IntoIterator<Item = HookPoint>,
) -> Result<Activations> {
    let request = PassRequest { sites: sites.into_iter().collect(), ..PassRequest::default() };
    let shape =
        ActivationShape { channels: decoder.config().hidden, sequences: windows.count(), length: windows.length };
    let mut kept = InMemory::of(request.sites.iter().copied());
    let windows: Vec<&[u32]> = windows.iter().collect();
    run(decoder, &windows, 0, 8 * shape.length, &request, &mut kept, |_| Ok(()))?;
    kept.finish(shape)
}

/// Node → site: `X_0` leaves the embedding, the middle of layer `l` its attention, `X_{l+1}` its MLP.
fn sites(trie: &Trie) -> BTreeMap<usize, HookPoint> {
    let of_step =
        |step: usize| if step.is_multiple_of(2) { HookPoint::Stream(step / 2) } else { HookPoint::Middle(step / 2) };
    trie.path(0).iter().enumerate().map(|(step, &node)| (node, of_step(step))).collect()
}

struct Taps<'a> {
    sites: BTreeMap<usize, HookPoint>,
    similarities: Similarities,
    spool: &'a mut dyn Spool,
    channels: usize,
    batch: Batch,
    first_sequence: usize,
    /// Streams of this batch that a later boundary is compared with.
    held: BTreeMap<usize, Tensor>,
}

impl Observer<Tensor> for Taps<'_> {
    fn after(&mut self, node: usize, state: Option<&Tensor>, _: f64) -> Result<()> {
        let (Some(&site), Some(state)) = (self.sites.get(&node), state) else { return Ok(()) };
        let HookPoint::Stream(boundary) = site else {
            return self.spool.push(site, &crate::model::elements(state)?);
        };
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
        self.spool.push(site, stream)?;
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
