//! Calibration pass, which compares residual streams at pairs of sites ([`HookPoint`]s) and spools the streams at
//! requested sites.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::activations::{ActivationShape, Activations, HookPoint, InMemory, Spool};
use super::similarity::{Pair, Similarities};
use crate::corpus::Windows;
use crate::error::{Error, Result};
use crate::linalg::simd;
use crate::model::{Batch, BatchObserver, Engine, HostRows, Program, ResidualStream, Trie, count_fitting_pieces};

/// Similarities and residual streams that a calibration pass collects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassRequest {
    pub pairs: BTreeSet<Pair>,
    /// Sites at which the residual stream is spooled.
    pub sites: BTreeSet<HookPoint>,
}

impl PassRequest {
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.sites.is_empty()
    }

    /// Returns the maximum number of residual streams in memory at once, including those kept for later comparisons.
    pub fn streams(&self) -> usize {
        let longest = self.pairs.iter().map(|pair| pair.to.saturating_sub(pair.from)).max();
        longest.unwrap_or(0) + 2
    }

    /// Returns the program of the dense model, truncated after the last requested site.
    pub fn program(&self, layers: usize) -> Program {
        let ends_of_pairs = self.pairs.iter().map(|pair| pair.ends()[1]);
        let last = ends_of_pairs.chain(self.sites.iter().copied()).map(HookPoint::position).max();
        let mut program = Program::trunk(layers);
        program.0.truncate(1 + last.unwrap_or(0));
        program
    }
}

/// Subset of the calibration windows, with a spool for its activations. Each subset gets its own [`Similarities`].
pub struct WindowSubset<'a> {
    pub windows: Vec<&'a [u32]>,
    /// Index of the first sequence, used in error messages.
    pub first_sequence: usize,
    /// Spool for the rows of the requested sites.
    pub spool: &'a mut dyn Spool,
}

/// Runs the dense backbone once over the windows of all `subsets`, and returns the similarities of each. `progress`
/// receives the token count of each batch and may stop the pass by returning an error.
///
/// # Errors
/// Fails if a residual stream is not finite (the message names the layer and the sequence), the spool runs out of
/// space, or `progress` fails.
pub fn run(
    engine: &dyn Engine,
    subsets: &mut [WindowSubset<'_>],
    batch_tokens: usize,
    request: &PassRequest,
    progress: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Similarities>> {
    run_program(engine, &request.program(engine.config().layers), subsets, batch_tokens, request, progress)
}

/// Runs the calibration pass with any program, such as a pruned one. A site is measured only if the program contains a
/// sublayer adjacent to it.
///
/// # Errors
/// See [`run`].
pub fn run_program(
    engine: &dyn Engine,
    program: &Program,
    subsets: &mut [WindowSubset<'_>],
    batch_tokens: usize,
    request: &PassRequest,
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Similarities>> {
    let trie = Trie::new(std::slice::from_ref(program));
    let sites = map_nodes_to_sites(program, &trie, request);
    let batches: Vec<(BatchOrigin, Batch)> =
        subsets.iter().enumerate().flat_map(|(index, subset)| subset.batches(index, batch_tokens)).collect();
    let mut similarities: Vec<Similarities> = subsets.iter().map(|_| Similarities::new(&request.pairs)).collect();
    let mut remaining = batches.as_slice();
    while !remaining.is_empty() {
        let max_tokens = engine.pass_tokens(request.streams());
        let (group, rest) =
            remaining.split_at(count_fitting_pieces(remaining.iter().map(|(_, batch)| batch.tokens()), max_tokens));
        let (origins, group): (Vec<BatchOrigin>, Vec<Batch>) = group.iter().cloned().unzip();
        let mut collector = StreamCollector {
            sites: &sites,
            channels: engine.config().hidden,
            batches: &group,
            origins: &origins,
            kept_streams: vec![BTreeMap::new(); group.len()],
            similarities: &mut similarities,
            subsets,
        };
        engine.observe(&trie, &group, &mut collector)?;
        for (origin, batch) in origins.iter().zip(&group) {
            similarities[origin.subset].add_sequences(batch.segments.len());
            progress(batch.tokens())?;
        }
        remaining = rest;
    }
    Ok(similarities)
}

/// Subset that a batch belongs to, and the index of the batch's first sequence.
#[derive(Clone, Copy)]
struct BatchOrigin {
    subset: usize,
    first_sequence: usize,
}

impl WindowSubset<'_> {
    /// Splits the windows into batches of at most `max_tokens` tokens. Each batch has at least one window.
    fn batches(&self, subset: usize, max_tokens: usize) -> Vec<(BatchOrigin, Batch)> {
        let windows_per_batch = (max_tokens / self.windows.first().map_or(1, |window| window.len().max(1))).max(1);
        self.windows
            .chunks(windows_per_batch)
            .enumerate()
            .map(|(index, windows)| {
                let first_sequence = self.first_sequence + index * windows_per_batch;
                (BatchOrigin { subset, first_sequence }, Batch::windows(windows.iter().copied()))
            })
            .collect()
    }
}

/// Runs a calibration pass and keeps the activations of the given sites in memory.
///
/// # Errors
/// See [`run`].
pub fn in_memory(
    engine: &dyn Engine,
    windows: &Windows,
    sites: impl IntoIterator<Item = HookPoint>,
) -> Result<Activations> {
    let request = PassRequest { sites: sites.into_iter().collect(), ..PassRequest::default() };
    let shape =
        ActivationShape { channels: engine.config().hidden, sequences: windows.count(), length: windows.length };
    let mut collected = InMemory::new(request.sites.iter().copied());
    let mut subsets = [WindowSubset { windows: windows.iter().collect(), first_sequence: 0, spool: &mut collected }];
    run(engine, &mut subsets, 8 * shape.length, &request, |_| Ok(()))?;
    collected.finish(shape)
}

/// Returns the sites whose stream a program computes, each with the index of the step that produces the stream. The
/// embedding produces `X_0`, the attention of layer `l` produces `Middle(l)`, and the MLP of layer `l` produces
/// `X_{l+1}`.
pub fn computed_sites(program: &Program) -> BTreeSet<(usize, HookPoint)> {
    let mut sites = BTreeSet::from([(0, HookPoint::Stream(0))]);
    for (index, (sublayer, layer)) in
        program.0.iter().enumerate().filter_map(|(index, step)| Some((index, step.sublayer()?)))
    {
        let before = sublayer.index_in_model(layer);
        sites.extend([(index - 1, HookPoint::at_position(before)), (index, HookPoint::at_position(before + 1))]);
    }
    sites
}

/// Maps each trie node to the sites whose streams it produces, ordered by position. Includes every layer boundary, and
/// the sites between attention and MLP that are spooled or compared.
fn map_nodes_to_sites(program: &Program, trie: &Trie, request: &PassRequest) -> BTreeMap<usize, Vec<HookPoint>> {
    let compared: BTreeSet<HookPoint> = request.pairs.iter().flat_map(Pair::ends).collect();
    let mut sites: BTreeMap<usize, Vec<HookPoint>> = BTreeMap::new();
    for (index, site) in computed_sites(program) {
        if matches!(site, HookPoint::Stream(_)) || request.sites.contains(&site) || compared.contains(&site) {
            sites.entry(trie.path(0)[index]).or_default().push(site);
        }
    }
    sites.values_mut().for_each(|sites| sites.sort_by_key(|site| site.position()));
    sites
}

struct StreamCollector<'a, 'p> {
    sites: &'a BTreeMap<usize, Vec<HookPoint>>,
    channels: usize,
    batches: &'a [Batch],
    origins: &'a [BatchOrigin],
    /// Streams of each batch that are kept for comparison with later streams.
    kept_streams: Vec<BTreeMap<HookPoint, HostRows>>,
    similarities: &'a mut [Similarities],
    subsets: &'a mut [WindowSubset<'p>],
}

impl BatchObserver for StreamCollector<'_, '_> {
    fn after_step(&mut self, batch: usize, node: usize, stream: &dyn ResidualStream) -> Result<()> {
        let sites = self.sites.get(&node).into_iter().flatten();
        sites.copied().try_for_each(|site| self.visit(batch, site, stream))
    }
}

impl StreamCollector<'_, '_> {
    /// Checks, compares and spools the stream at one site.
    fn visit(&mut self, batch: usize, site: HookPoint, stream: &dyn ResidualStream) -> Result<()> {
        let BatchOrigin { subset, first_sequence } = self.origins[batch];
        let spool = &mut self.subsets[subset].spool;
        let similarities = &mut self.similarities[subset];
        let kept_streams = &mut self.kept_streams[batch];
        let batch = &self.batches[batch];
        kept_streams.insert(site, stream.rows()?);
        let pairs = similarities.ending_at(site);
        let streams =
            kept_streams.iter().map(|(&site, rows)| Ok((site, rows.values()?))).collect::<Result<BTreeMap<_, _>>>()?;
        let rows = &streams[&site];
        if let HookPoint::Stream(layer) = site {
            check_finite(rows, layer, self.channels, batch, first_sequence)?;
        }
        similarities.add(&pairs, self.channels, &batch.segments, |site| &streams[&site]);
        spool.push(site, rows)?;
        drop(streams);
        kept_streams.retain(|&from, _| similarities.last_use(from).is_some_and(|last| last > site.position()));
        Ok(())
    }
}

fn check_finite(stream: &[f32], layer: usize, channels: usize, batch: &Batch, first_sequence: usize) -> Result<()> {
    let Some(index) = find_first_non_finite(stream) else { return Ok(()) };
    let row = index / channels;
    let segment = batch.segments.iter().position(|rows| rows.contains(&row)).unwrap_or(0);
    Err(Error::job("an activation is not a finite number")
        .at(format!("residual stream entering layer {layer}, calibration sequence {}", first_sequence + segment))
        .found(format!(
            "{} at token {}, channel {}",
            stream[index],
            row - batch.segments[segment].start,
            index % channels
        ))
        .hint("check the weights, or use --dtype bf16 or f32, because f16 may overflow"))
}

/// Returns the index of the first NaN or infinity.
fn find_first_non_finite(numbers: &[f32]) -> Option<usize> {
    const BLOCK_VALUES: usize = 1 << 14;
    let block = numbers.par_chunks(BLOCK_VALUES).position_first(has_non_finite)?;
    let within = numbers[block * BLOCK_VALUES..].iter().position(|number| !number.is_finite())?;
    Some(block * BLOCK_VALUES + within)
}

/// Returns whether any value is NaN or infinite, that is, has an exponent of all ones.
fn has_non_finite(numbers: &[f32]) -> bool {
    const EXPONENT_MASK: u32 = 0x7f80_0000;
    // Do not exit early, so that the loop vectorizes.
    simd::in_widest!(
        numbers.iter().fold(false, |any, number| any | (number.to_bits() & EXPONENT_MASK == EXPONENT_MASK))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Start;
    use crate::model::engine::tests::AddingEngine;

    #[test]
    fn calibration_copies_only_the_observed_activations() {
        let engine = AddingEngine::new();
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
        assert_eq!(
            engine.copy_count(),
            3,
            "expected copies of the streams that enter layers 0 and 1, and of one stream between sublayers"
        );
    }

    #[test]
    fn first_nonfinite_value_is_found_in_any_block() {
        let mut numbers = vec![f32::MAX; 40_000];
        assert_eq!(find_first_non_finite(&numbers), None);
        for (index, number) in
            [(39_999, f32::NAN), (16_384, f32::NEG_INFINITY), (16_383, f32::INFINITY), (0, -f32::NAN)]
        {
            numbers[index] = number;
            assert_eq!(find_first_non_finite(&numbers), Some(index));
        }
    }
}
