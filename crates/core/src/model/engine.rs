//! Interface of the engines, which run programs with a backbone's weights on a device (design §3). Batches, programs
//! and results are passed in host memory.

use std::fmt;
use std::ops::Deref;

use candle_core::{DType, Device, Tensor};
use ghostlab_kernels::forward::map_parts;
use rayon::prelude::*;
use serde::Serialize;

use super::batch::{Batch, Divergence, Prediction};
use super::config::Config;
use super::decoding::Decoding;
use super::kernel_family::KernelFamily;
use super::program::Step;
use super::rms_norm::RmsNorm;
use super::slice::{elements, tensor};
use super::sublayer::Sublayer;
use super::trie::{Model, Observer, Trie};
use crate::error::{Error, Result};

/// Engine properties that affect numerical results. Cache keys contain them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EngineId {
    pub name: &'static str,
    /// Float type of the computation.
    pub dtype: &'static str,
    /// Device class, which determines the rounding.
    pub device: &'static str,
}

/// The default engine: CPU in f32.
pub const CPU: EngineId = EngineId { name: "cpu", dtype: "f32", device: "cpu" };

impl EngineId {
    /// Returns whether the engine keeps weights and intermediates in host memory.
    pub fn is_on_cpu(&self) -> bool {
        [KernelFamily::Portable, KernelFamily::Amx].iter().any(|family| family.device_class() == self.device)
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.name, self.dtype, self.device)
    }
}

/// Numerical tolerances for an engine's results, by float type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Relative tolerance for perplexities of backbones that predict the text reasonably well.
    pub perplexity: f64,
    /// Absolute tolerance for accuracies.
    pub answers: f64,
    /// Relative tolerance for activations, and for results that do not amplify their errors. It is 16 units in the last
    /// place in f32 and bf16x6, but only 5 in other types, because sums are always accumulated in f32.
    pub activations: f64,
}

impl Tolerance {
    /// Returns the tolerance for a float type.
    pub fn for_dtype(dtype: &str) -> Self {
        match dtype {
            "f32" | "bf16x6" => Self { perplexity: 0.001, answers: 0.005, activations: 2e-6 },
            "bf16x3" => Self { perplexity: 0.001, answers: 0.005, activations: 1.5e-4 },
            "f16" => Self { perplexity: 0.005, answers: 0.02, activations: 5e-3 },
            _ => Self { perplexity: 0.005, answers: 0.02, activations: 4e-2 },
        }
    }

    /// Returns the tolerance for comparing results in two float types, which is that of the less precise one.
    pub fn between(first: &str, second: &str) -> Self {
        let [first, second] = [first, second].map(Self::for_dtype);
        Self {
            perplexity: first.perplexity.max(second.perplexity),
            answers: first.answers.max(second.answers),
            activations: first.activations.max(second.activations),
        }
    }
}

/// For each program, one prediction per target in a batch, or `None` if the program has no head.
pub type BatchPredictions = Vec<Option<Vec<Prediction>>>;

/// For each program, one divergence per target in a batch, or `None` if the program has no head.
pub type BatchDivergences = Vec<Option<Vec<Divergence>>>;

/// Default value of [`Engine::prompt_tokens`].
pub(super) const PROMPT_TOKENS: usize = 2048;

/// Loaded backbone that can run [programs](super::program::Program).
pub trait Engine: Send + Sync {
    fn id(&self) -> EngineId;

    fn config(&self) -> &Config;

    /// Returns the minimum number of tokens per part. Chunks of an [eval set](crate::evaluate) are split into parts,
    /// which run in parallel. The number is fixed per engine, so results do not depend on the machine.
    fn part_tokens(&self) -> usize;

    /// Returns the preferred number of tokens per pass over the layers, given `streams` residual streams per token.
    /// Returns 0 if one chunk per pass is enough. Engines that load weights on demand override this method.
    fn pass_tokens(&self, _streams: usize) -> usize {
        0
    }

    /// Returns the maximum number of prompt tokens to prefill together. A single prompt may exceed it.
    fn prompt_tokens(&self) -> usize {
        PROMPT_TOKENS
    }

    /// Returns the number of bytes of device memory available for the KV cache, if known. It is `None` on the CPU.
    fn cache_bytes(&self) -> Option<u64> {
        None
    }

    /// Runs one batch through all programs of a trie.
    ///
    /// # Errors
    /// Fails if a step or the observer fails.
    fn run(
        &self,
        trie: &Trie,
        batch: &Batch,
        observer: &mut dyn Observer<dyn ResidualStream>,
    ) -> Result<BatchPredictions>;

    /// Runs several batches through all programs of a trie in parallel, with the same results as [`Self::run`]. Adds
    /// the time spent at each node, summed over all batches, to `seconds[node]`.
    ///
    /// # Errors
    /// See [`Self::run`].
    fn score(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<BatchPredictions>> {
        run_timed_in_parallel(parts, seconds, |batch, nodes| self.run(trie, batch, &mut StepTimer(nodes)))
    }

    /// Runs several batches through a trie built by [`Trie::with_reference`], and compares its programs with the
    /// reference program. `seconds` is updated as in [`Self::score`].
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::run`], or if the engine does not support comparisons.
    fn compare(&self, _trie: &Trie, _parts: &[Batch], _seconds: &mut [f64]) -> Result<Vec<BatchDivergences>> {
        Err(Error::job("this engine does not support comparisons").at(self.id()))
    }

    /// Runs several batches and passes their residual streams to an observer. At each node, the streams arrive in batch
    /// order.
    fn observe(&self, trie: &Trie, batches: &[Batch], observer: &mut dyn BatchObserver) -> Result<()> {
        for (index, batch) in batches.iter().enumerate() {
            self.run(trie, batch, &mut SingleBatchObserver(index, observer))?;
        }
        Ok(())
    }

    /// Runs steps other than embedding and head on a given residual stream.
    ///
    /// # Shapes
    /// `stream [tokens, C]`; result `[tokens, C]`.
    fn run_steps(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows>;

    /// Computes the logits for some rows of a given residual stream.
    ///
    /// # Shapes
    /// `stream [tokens, C]` before the final norm; result `[rows, vocab]`.
    fn logits(&self, stream: &[f32], rows: &[usize]) -> Result<HostRows>;

    /// Returns the pre-norm of a sublayer. The norm has no weight if the architecture has no pre-norms.
    ///
    /// # Errors
    /// Fails if the engine does not expose its weights, or they cannot be loaded.
    fn input_norm(&self, layer: usize, _sublayer: Sublayer) -> Result<RmsNorm> {
        Err(Error::job("this engine does not expose its norms").at(format!("layer {layer}, {}", self.id())))
    }

    /// Returns the norm before the output projection.
    ///
    /// # Errors
    /// Fails if the engine does not expose its weights, or they cannot be loaded.
    fn final_norm(&self) -> Result<RmsNorm> {
        Err(Error::job("this engine does not expose its final norm").at(self.id()))
    }

    /// Starts decoding with the programs of a trie and an empty cache.
    ///
    /// # Errors
    /// Fails if a program has no head, or the engine does not support decoding.
    fn start_decoding<'a>(&'a self, _trie: &'a Trie) -> Result<Box<dyn Decoding + 'a>> {
        Err(Error::job("this engine does not support decoding").at(self.id()))
    }

    /// Returns the device that accumulates sums over rows, such as calibration statistics, or `None` for the CPU.
    fn accumulation_device(&self) -> Option<Device> {
        None
    }

    /// Returns the notes added since the last call, for example about an overflow or a reduced batch size.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Observer for the residual streams of several batches.
pub trait BatchObserver {
    /// Called after each step of a batch except the head, with the resulting stream.
    fn after_step(&mut self, batch: usize, node: usize, stream: &dyn ResidualStream) -> Result<()>;
}

/// Adapter that passes the streams of one batch to a [`BatchObserver`].
struct SingleBatchObserver<'a>(usize, &'a mut dyn BatchObserver);

impl Observer<dyn ResidualStream> for SingleBatchObserver<'_> {
    fn after_step(&mut self, node: usize, stream: Option<&dyn ResidualStream>, _: f64) -> Result<()> {
        stream.map_or(Ok(()), |stream| self.1.after_step(self.0, node, stream))
    }
}

/// Returns how many leading pieces of work, given by their token counts, have at most `max_tokens` tokens in total.
/// Returns at least 1 if there are any pieces.
pub fn count_fitting_pieces(token_counts: impl Iterator<Item = usize>, max_tokens: usize) -> usize {
    let sums = token_counts.scan(0, |sum, tokens| {
        *sum += tokens;
        Some(*sum)
    });
    sums.enumerate().take_while(|&(index, sum)| index == 0 || sum <= max_tokens).count()
}

/// Runs the batches through the trie one after the other.
pub(super) fn run_sequentially<M>(
    model: &M,
    trie: &Trie,
    batches: &[Batch],
    observer: &mut dyn BatchObserver,
) -> Result<()>
where
    M: Model<Batch = Batch, Output = Vec<Prediction>, Residual: ResidualStream + 'static>,
{
    for (index, batch) in batches.iter().enumerate() {
        trie.run(model, batch, &mut StreamAdapter(&mut SingleBatchObserver(index, observer)))?;
    }
    Ok(())
}

/// Runs the parts through the trie independently and in parallel.
pub(super) fn run_parts_in_parallel<M>(
    model: &M,
    trie: &Trie,
    parts: &[Batch],
    seconds: &mut [f64],
) -> Result<Vec<BatchPredictions>>
where
    M: Model<Batch = Batch, Output = Vec<Prediction>> + Sync,
{
    run_timed_in_parallel(parts, seconds, |batch, nodes| trie.run(model, batch, &mut StepTimer(nodes)))
}

/// Runs the parts in parallel, and adds the time spent at each trie node to `seconds`.
pub(super) fn run_timed_in_parallel<T: Send>(
    parts: &[Batch],
    seconds: &mut [f64],
    run: impl Fn(&Batch, &mut [f64]) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let nodes = seconds.len();
    let timed_outputs = map_parts(parts, |_, batch| {
        let mut node_seconds = vec![0.0; nodes];
        run(batch, &mut node_seconds).map(|output| (output, node_seconds))
    });
    let mut outputs = Vec::with_capacity(parts.len());
    for timed_output in timed_outputs {
        let (output, node_seconds) = timed_output?;
        seconds.iter_mut().zip(node_seconds).for_each(|(sum, part_seconds)| *sum += part_seconds);
        outputs.push(output);
    }
    Ok(outputs)
}

/// Outputs indexed by `[program][part]`, or `None` for programs without a head.
pub(super) type ProgramOutputs<T> = Vec<Option<Vec<T>>>;

/// Regroups the outputs of each program by part.
pub(super) fn regroup_by_part<T: Clone>(program_outputs: ProgramOutputs<T>, parts: usize) -> Vec<Vec<Option<T>>> {
    let mut part_outputs = vec![Vec::with_capacity(program_outputs.len()); parts];
    for outputs in program_outputs {
        let outputs = outputs.map_or_else(|| vec![None; parts], |outputs| outputs.into_iter().map(Some).collect());
        part_outputs.iter_mut().zip(outputs).for_each(|(part, output)| part.push(output));
    }
    part_outputs
}

/// Adapter that runs several batches together: all batches complete a step before the next step starts.
pub(super) struct Lockstep<'a, M> {
    pub(super) model: &'a M,
    /// Whether batches run in parallel on one core each, instead of one after the other on all cores.
    pub(super) one_core_per_batch: bool,
}

impl<M: Model<Batch = Batch, Output = Vec<Prediction>, Residual: Send + Sync> + Sync> Lockstep<'_, M> {
    fn map_parts<T: Send>(
        &self,
        batches: &[Batch],
        streams: &[M::Residual],
        run: impl Fn(&Batch, &M::Residual) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        if self.one_core_per_batch {
            map_parts(batches, |index, batch| run(batch, &streams[index])).into_iter().collect()
        } else {
            batches.iter().zip(streams).map(|(batch, x)| run(batch, x)).collect()
        }
    }
}

impl<M: Model<Batch = Batch, Output = Vec<Prediction>, Residual: Send + Sync> + Sync> Model for Lockstep<'_, M> {
    type Batch = [Batch];
    type Residual = Vec<M::Residual>;
    type Output = Vec<Vec<Prediction>>;

    fn announce_weights(&self, now: Option<usize>, next: Option<usize>) {
        self.model.announce_weights(now, next);
    }

    fn begin(&self, parts: &[Batch]) -> Result<Vec<M::Residual>> {
        parts.par_iter().map(|batch| self.model.begin(batch)).collect()
    }

    fn advance(&self, parts: &[Batch], step: &Step, streams: &Vec<M::Residual>) -> Result<Vec<M::Residual>> {
        self.map_parts(parts, streams, |batch, x| self.model.advance(batch, step, x))
    }

    fn narrow(&self, parts: &[Batch], streams: Vec<M::Residual>) -> Result<Vec<M::Residual>> {
        parts.iter().zip(streams).map(|(batch, x)| self.model.narrow(batch, x)).collect()
    }

    fn finish(&self, parts: &[Batch], streams: &Vec<M::Residual>) -> Result<Vec<Vec<Prediction>>> {
        self.map_parts(parts, streams, |batch, x| self.model.finish(batch, x))
    }
}

/// Adapter that passes the stream of each batch to a [`BatchObserver`].
pub(super) struct PerBatchObserver<'a>(pub(super) &'a mut dyn BatchObserver);

impl<S: ResidualStream + 'static> Observer<Vec<S>> for PerBatchObserver<'_> {
    fn after_step(&mut self, node: usize, streams: Option<&Vec<S>>, _: f64) -> Result<()> {
        let mut streams = streams.into_iter().flatten().enumerate();
        streams.try_for_each(|(batch, stream)| self.0.after_step(batch, node, stream))
    }
}

/// Observer that adds up the seconds spent at each node.
pub(super) struct StepTimer<'a>(pub(super) &'a mut [f64]);

impl<S: ?Sized> Observer<S> for StepTimer<'_> {
    fn after_step(&mut self, node: usize, _: Option<&S>, seconds: f64) -> Result<()> {
        self.0[node] += seconds;
        Ok(())
    }
}

/// A residual stream `[tokens, C]` in the engine's memory.
pub trait ResidualStream {
    /// Copies the rows to host memory.
    fn rows(&self) -> Result<HostRows>;
}

/// Rows of f32 values in host memory, in row-major order. Clones share the data.
#[derive(Clone)]
pub struct HostRows(Tensor);

impl HostRows {
    /// Wraps rows without copying them.
    pub fn new(values: Vec<f32>) -> Result<Self> {
        let length = values.len();
        tensor(values, &[length]).map(Self)
    }

    pub fn values(&self) -> Result<impl Deref<Target = [f32]> + Sync + '_> {
        elements(&self.0)
    }
}

/// The rows of a contiguous f32 tensor in host memory are not copied.
impl ResidualStream for Tensor {
    fn rows(&self) -> Result<HostRows> {
        Ok(HostRows(self.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?))
    }
}

/// Adapter that passes an engine's streams to an observer of [`ResidualStream`]s.
pub(super) struct StreamAdapter<'a>(pub(super) &'a mut dyn Observer<dyn ResidualStream>);

impl<S: ResidualStream + 'static> Observer<S> for StreamAdapter<'_> {
    fn after_step(&mut self, node: usize, state: Option<&S>, seconds: f64) -> Result<()> {
        self.0.after_step(node, state.map(|stream| stream as &dyn ResidualStream), seconds)
    }
}

#[cfg(test)]
pub(crate) mod tests;
