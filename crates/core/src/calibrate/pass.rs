//! The dense pass itself.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::activations::{ActivationShape, Activations, HookPoint, InMemory, Spool};
use super::similarity::{Pair, Similarities};
use crate::corpus::Windows;
use crate::error::{Error, Result};
use crate::model::{Batch, Engine, HostRows, Observer, Program, ResidualStream, Trie};

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
    engine: &dyn Engine,
    windows: &[&[u32]],
    first_sequence: usize,
    batch_tokens: usize,
    request: &PassRequest,
    spool: &mut dyn Spool,
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<Similarities> {
    let trie = Trie::new(&[request.program(engine.config().layers)]);
    let length = windows.first().map_or(0, |window| window.len());
    let mut taps = Taps {
        sites: sites(&trie, request),
        similarities: Similarities::new(&request.pairs),
        spool,
        channels: engine.config().hidden,
        batch: Batch::default(),
        first_sequence,
        held: BTreeMap::new(),
    };
    for windows in windows.chunks((batch_tokens / length.max(1)).max(1)) {
        taps.batch = Batch::windows(windows.iter().copied());
        let batch = taps.batch.clone();
        engine.run(&trie, &batch, &mut taps)?;
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
    engine: &dyn Engine,
    windows: &Windows,
    sites: impl IntoIterator<Item = HookPoint>,
) -> Result<Activations> {
    let request = PassRequest { sites: sites.into_iter().collect(), ..PassRequest::default() };
    let shape =
        ActivationShape { channels: engine.config().hidden, sequences: windows.count(), length: windows.length };
    let mut kept = InMemory::of(request.sites.iter().copied());
    let windows: Vec<&[u32]> = windows.iter().collect();
    run(engine, &windows, 0, 8 * shape.length, &request, &mut kept, |_| Ok(()))?;
    kept.finish(shape)
}

/// Node → site, of every boundary and of the middles that were asked for. `X_0` leaves the embedding, the middle of layer
/// `l` its attention, `X_{l+1}` its MLP.
fn sites(trie: &Trie, request: &PassRequest) -> BTreeMap<usize, HookPoint> {
    let of_step =
        |step: usize| if step.is_multiple_of(2) { HookPoint::Stream(step / 2) } else { HookPoint::Middle(step / 2) };
    let sites = trie.path(0).iter().enumerate().map(|(step, &node)| (node, of_step(step)));
    sites.filter(|(_, site)| matches!(site, HookPoint::Stream(_)) || request.sites.contains(site)).collect()
}

struct Taps<'a> {
    sites: BTreeMap<usize, HookPoint>,
    similarities: Similarities,
    spool: &'a mut dyn Spool,
    channels: usize,
    batch: Batch,
    first_sequence: usize,
    /// Streams of this batch that a later boundary is compared with.
    held: BTreeMap<usize, HostRows>,
}

impl Observer<dyn ResidualStream> for Taps<'_> {
    fn after(&mut self, node: usize, stream: Option<&dyn ResidualStream>, _: f64) -> Result<()> {
        let (Some(&site), Some(stream)) = (self.sites.get(&node), stream) else { return Ok(()) };
        let HookPoint::Stream(boundary) = site else {
            return self.spool.push(site, &stream.rows()?.values()?);
        };
        self.held.insert(boundary, stream.rows()?);
        let pairs = self.similarities.ending_at(boundary);
        let streams =
            self.held.iter().map(|(&at, rows)| Ok((at, rows.values()?))).collect::<Result<BTreeMap<_, _>>>()?;
        let rows = &streams[&boundary];
        refuse_non_finite(rows, boundary, self.channels, &self.batch, self.first_sequence)?;
        self.similarities.add(&pairs, self.channels, &self.batch.segments, |at| &streams[&at]);
        self.spool.push(site, rows)?;
        drop(streams);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Start;
    use crate::model::engine::tests::Adding;

    #[test]
    fn any_engine_calibrates_and_copies_only_what_is_looked_at() {
        let engine = Adding::new();
        let starts = vec![Start { document: 0, token: 0 }, Start { document: 0, token: 3 }];
        let windows = Windows { ids: (0..6).collect(), length: 3, starts, corpus_tokens: 6, bytes: 0 };
        let sites = [HookPoint::Stream(1), HookPoint::Middle(1)];
        let activations = in_memory(&engine, &windows, sites).unwrap();
        for (site, added) in sites.into_iter().zip([11.0, 12.0]) {
            for sequence in [0..3, 3..6] {
                let rows = activations.rows(site, sequence.clone()).unwrap();
                let expected: Vec<f32> = sequence.flat_map(|id| vec![id as f32 + added; 64]).collect();
                assert_eq!(rows, expected, "{site}");
            }
        }
        assert_eq!(engine.copied(), 3, "the boundaries 0 and 1, whose numbers are checked, and one middle");
    }
}
