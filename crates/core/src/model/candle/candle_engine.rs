//! The candle engine, which runs programs on a candle device.

mod device_cache;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_core::{D, DType, Device, Tensor};
use rayon::prelude::*;

use super::batch_layout::{AttentionContext, Layout, LayoutParams, Piece};
use super::device::{DeviceName, FloatType};
use super::device_weight_cache::{TensorPart, WeightCache, weight_bytes};
use super::head::HeadParams;
use super::memory::{self, DEVICE_MAX_ELEMENTS, is_out_of_memory, out_of_memory_error};
use super::notes::Notes;
use super::operators::OperatorCache;
use super::{head, ops};
use crate::error::{Error, Result};
use crate::model::batch::{Batch, Divergence, Prediction};
use crate::model::compare::{Compare, compare_parts_in_parallel, compare_trie};
use crate::model::config::Config;
use crate::model::decoding::{Decoding, TrieDecoding};
use crate::model::engine::{
    BatchDivergences, BatchPredictions, Engine, EngineId, HostRows, Lockstep, PROMPT_TOKENS, ResidualStream, StepTimer,
    StreamAdapter, regroup_by_part, run_parts_in_parallel,
};
use crate::model::merged_layer::MergedLayerCache;
use crate::model::program::Step;
use crate::model::rms_norm::RmsNorm;
use crate::model::rope::Rotaries;
use crate::model::sublayer::{Sublayer, SublayerOutput};
use crate::model::tensor_name::FINAL_NORM;
use crate::model::tensors::{self, open_checked_weights};
use crate::model::trie::{Model, Observer, Trie};

/// Name of the engine in cache keys.
pub(super) const NAME: &str = "candle";

/// Number of tokens per [`Piece`] on the CPU. Pieces run in parallel, because most of candle's kernels use a single
/// core.
const CPU_PIECE_TOKENS: usize = 512;
/// Maximum number of elements in a large intermediate (attention scores or logits) on the CPU.
const CPU_MAX_ELEMENTS: usize = 1 << 22;

/// Device and float type of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    pub device: DeviceName,
    pub dtype: FloatType,
}

impl Placement {
    /// Returns the engine properties that results depend on.
    pub fn id(self) -> EngineId {
        EngineId { name: NAME, dtype: self.dtype.name(), device: self.device.class() }
    }
}

/// Backbone on a candle device.
pub struct CandleEngine {
    config: Config,
    id: EngineId,
    device: Device,
    dtype: FloatType,
    weight_cache: WeightCache,
    final_norm: Tensor, // [C]
    rotaries: Rotaries,
    /// Distinct sliding-window sizes of the layers. `None` means full attention.
    windows: Vec<Option<usize>>,
    operators: OperatorCache,
    merged: MergedLayerCache<TensorPart>,
    /// Maximum number of tokens per piece. Reduced if the device runs out of memory.
    piece_tokens: AtomicUsize,
    notes: Notes,
    /// Simulated memory limit: pieces with more tokens fail.
    #[cfg(test)]
    max_test_rows: usize,
}

/// A residual stream and the attention layout of its rows.
#[derive(Clone)]
pub struct Stream {
    x: Tensor, // [tokens, C], or [scored rows, C] after `narrow`
    layout: Arc<Layout>,
    finite: bool,
}

impl ResidualStream for Stream {
    fn rows(&self) -> Result<HostRows> {
        self.x.rows()
    }
}

impl CandleEngine {
    /// Loads a backbone onto a device, using at most `memory` bytes. On the CPU, the limit applies to weights only. On
    /// other devices, it applies to all memory and defaults to 90 % of the free memory. Weights that do not fit are
    /// loaded from the weight files when needed.
    ///
    /// # Errors
    /// Fails in the same cases as [`Decoder::load_within`](crate::model::Decoder::load_within). Also fails if this
    /// build or machine does not support the device, or if a weight exceeds the f16 range.
    pub fn load(config: Config, folder: &Path, placement: Placement, memory: Option<u64>) -> Result<Self> {
        let device = placement.device.open()?;
        let weights = open_checked_weights(&config, folder)?;
        let cpu = matches!(device, Device::Cpu);
        let total_bytes = weight_bytes(&config, placement.dtype);
        let memory = memory.or_else(|| Some(memory::free_bytes(&device)? / 10 * 9)).unwrap_or(u64::MAX);
        let (piece_tokens, budget) = if cpu {
            (CPU_PIECE_TOKENS, memory)
        } else {
            memory::split_memory(memory, total_bytes, |tokens| memory::estimate_activations(&config, tokens))
        };
        let final_norm = tensors::read_norm(&config, &weights, FINAL_NORM, &[config.hidden])?;
        let final_norm = Tensor::from_vec(final_norm, config.hidden, &device)?;
        let weight_cache = WeightCache::new(&config, weights, &device, placement.dtype, budget)?;
        weight_cache.fill().map_err(|error| {
            if is_out_of_memory(&error) { out_of_memory_error(&error, placement.device.to_string()) } else { error }
        })?;
        let rotaries = Rotaries::new(&config);
        let engine = Self {
            id: placement.id(),
            operators: OperatorCache::new(&device),
            merged: MergedLayerCache::default(),
            device,
            dtype: placement.dtype,
            weight_cache,
            final_norm,
            rotaries,
            windows: config.windows.iter().copied().collect::<BTreeSet<_>>().into_iter().collect(),
            piece_tokens: AtomicUsize::new(piece_tokens),
            notes: Notes::default(),
            #[cfg(test)]
            max_test_rows: usize::MAX,
            config,
        };
        if !engine.weight_cache.keeps_all() {
            engine.notes.report(format!(
                "{:.1} GB of weights in {} exceed the {:.1} GB available on {}: layers are loaded on demand",
                total_bytes as f64 / 1e9,
                placement.dtype.name(),
                budget as f64 / 1e9,
                placement.device
            ));
        }
        Ok(engine)
    }

    fn eps(&self) -> f64 {
        f64::from(self.config.norm_eps)
    }

    fn head_params(&self) -> HeadParams<'_> {
        HeadParams { norm: &self.final_norm, eps: self.eps(), cap: self.config.logit_cap }
    }

    fn is_cpu(&self) -> bool {
        matches!(self.device, Device::Cpu)
    }

    fn max_elements(&self) -> usize {
        if self.is_cpu() { CPU_MAX_ELEMENTS } else { DEVICE_MAX_ELEMENTS }
    }

    /// Builds the layout of a stream that contains either all rows of a batch or only its scored rows.
    fn build_layout(&self, batch: &Batch, rows: usize) -> Result<Arc<Layout>> {
        let max_scores = self.max_elements() / self.config.heads;
        let tokens = self.piece_tokens.load(Relaxed);
        if rows < batch.tokens() {
            return Ok(Arc::new(Layout::from_rows(rows, tokens)));
        }
        let windows = &self.windows;
        let rotaries = &self.rotaries;
        let head_dim = self.config.head_dim;
        Layout::new(batch, tokens, LayoutParams { max_scores, windows, rotaries, head_dim, device: &self.device })
            .map(Arc::new)
    }

    fn build_stream(&self, batch: &Batch, x: Tensor) -> Result<Stream> {
        Ok(Stream { layout: self.build_layout(batch, x.dim(0)?)?, x, finite: true })
    }

    /// Applies `run` to each piece and concatenates the results. If the device runs out of memory, permanently halves
    /// the piece size and tries again.
    fn run_in_pieces(
        &self,
        batch: &Batch,
        stream: &Stream,
        run: impl Fn(&Piece, &Tensor) -> Result<Tensor> + Sync,
    ) -> Result<(Tensor, Arc<Layout>)> {
        let mut layout = Arc::clone(&stream.layout);
        if layout.piece_tokens > self.piece_tokens.load(Relaxed) {
            layout = self.build_layout(batch, stream.x.dim(0)?)?;
        }
        loop {
            let run_piece = |piece: &Piece| {
                #[cfg(test)]
                if piece.rows.len() > self.max_test_rows {
                    return Err(Error::job("a tensor operation failed").found("CUDA_ERROR_OUT_OF_MEMORY"));
                }
                run(piece, &stream.x.narrow(0, piece.rows.start, piece.rows.len())?)
            };
            // Other devices run operations sequentially, so parallel pieces would only need more memory.
            let done: Result<Vec<Tensor>> = if self.is_cpu() {
                layout.pieces.par_iter().map(run_piece).collect()
            } else {
                layout.pieces.iter().map(run_piece).collect()
            };
            let joined = done.and_then(|pieces| match pieces.as_slice() {
                [piece] => Ok(piece.clone()),
                pieces => Ok(Tensor::cat(pieces, 0)?),
            });
            match joined {
                Ok(x) => return Ok((x, layout)),
                Err(error) if is_out_of_memory(&error) => {
                    layout = self.shrink_layout(batch, stream, &layout, &error)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns a layout with pieces of half the length, or an out-of-memory error if pieces cannot be split further.
    fn shrink_layout(&self, batch: &Batch, stream: &Stream, layout: &Layout, error: &Error) -> Result<Arc<Layout>> {
        let longest = layout.pieces.iter().map(|piece| piece.rows.len()).max().unwrap_or(0);
        let half = longest / 2;
        self.piece_tokens.fetch_min(half.max(1), Relaxed);
        let next = self.build_layout(batch, stream.x.dim(0)?)?;
        if next.pieces.len() <= layout.pieces.len() {
            let cause = format!("a document or window of {longest} tokens");
            return Err(out_of_memory_error(error, cause));
        }
        self.notes.report(format!("out of device memory with {longest} tokens per pass; continuing with {half}"));
        Ok(next)
    }

    /// Calls `project` with the number of rows of logits to keep in memory. If the device runs out of memory, halves
    /// the number and tries again.
    fn project_rows<T>(&self, project: impl Fn(usize) -> Result<T>) -> Result<T> {
        let mut rows = self.max_elements() / self.config.vocab;
        loop {
            match project(rows) {
                Err(error) if is_out_of_memory(&error) && rows > 1 => rows /= 2,
                done => return done,
            }
        }
    }

    fn step(&self, step: &Step, piece: &dyn AttentionContext, x: &Tensor) -> Result<Tensor> {
        match step {
            Step::Sublayer(sublayer, layer) => {
                let part = self.weight_cache.layer(*layer)?;
                part.layer()?.run_sublayer(&self.config, *sublayer, x, SublayerOutput::Stream, piece)
            }
            Step::Edited(sublayer, layer, operator) => {
                let part = self.weight_cache.layer(*layer)?;
                let layer = part.layer()?;
                // A diagonal operator is applied before the norm at the end of a branch, and a dense one after it.
                let norm = layer.norm_after(*sublayer).filter(|_| operator.is_diagonal());
                let end = if norm.is_some() { SublayerOutput::Projection } else { SublayerOutput::Branch };
                let branch = layer.run_sublayer(&self.config, *sublayer, x, end, piece)?;
                let mut branch = self.operators.apply(operator, &branch)?;
                if let Some(weight) = norm {
                    branch = ops::rms_norm(&branch, weight, self.eps())?;
                }
                ops::sum(x, &branch)
            }
            Step::Merged(sublayer, merged) => {
                let part = self.merged.get_or_compute(merged, || self.weight_cache.compute_merged(merged))?;
                part.layer()?.run_sublayer(&self.config, *sublayer, x, SublayerOutput::Stream, piece)
            }
            Step::Apply(operator) => self.operators.apply(operator, x),
            Step::Embed | Step::Head => Err(Error::job("embedding or head step in the middle of a program")),
        }
    }

    /// Returns whether all values of an f16 stream are finite, and `true` for other types. Adds a note about the step
    /// if values overflowed (above 65504).
    fn stays_finite(&self, step: &Step, x: &Tensor) -> Result<bool> {
        if self.dtype != FloatType::F16 {
            return Ok(true);
        }
        // Zero times a non-finite value is NaN. Rows are summed first, because a full reduction runs on a single GPU
        // multiprocessor.
        let zero = x.affine(0.0, 0.0)?.sum(D::Minus1)?.sum_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?;
        if zero == 0.0 {
            return Ok(true);
        }
        let rows = x.rows()?;
        let values = rows.values()?;
        let non_finite = values.iter().filter(|v| !v.is_finite()).count();
        let step_name = match step {
            Step::Sublayer(sublayer, layer) | Step::Edited(sublayer, layer, _) => match sublayer {
                Sublayer::Attention => format!("attention of layer {layer}"),
                Sublayer::Mlp => format!("MLP of layer {layer}"),
            },
            Step::Merged(sublayer, merged) => format!("{sublayer:?} of merged layer {}", merged.layer()),
            Step::Apply(operator) => format!("operator {}", &operator.key()[..8]),
            Step::Embed | Step::Head => "embedding".to_owned(),
        };
        let percentage = 100.0 * non_finite as f64 / values.len().max(1) as f64;
        self.notes.report_once(&step_name, || {
            format!(
                "f16 overflows in the {step_name}: {percentage:.3} % of the stream is not finite, so later values are \
                 NaN; use --dtype bf16 or f32"
            )
        });
        Ok(false)
    }
}

impl Model for CandleEngine {
    type Batch = Batch;
    type Residual = Stream;
    type Output = Vec<Prediction>;

    fn announce_weights(&self, now: Option<usize>, next: Option<usize>) {
        self.weight_cache.announce_weights(now, next);
    }

    fn begin(&self, batch: &Batch) -> Result<Stream> {
        batch.check_ids(self.config.vocab)?;
        let x = self.weight_cache.embeddings(&batch.ids)?;
        let finite = self.stays_finite(&Step::Embed, &x)?;
        Ok(Stream { finite, ..self.build_stream(batch, x)? })
    }

    fn advance(&self, batch: &Batch, step: &Step, stream: &Stream) -> Result<Stream> {
        let (x, layout) = self.run_in_pieces(batch, stream, |piece, x| self.step(step, piece, x))?;
        let finite = stream.finite && self.stays_finite(step, &x)?;
        Ok(Stream { x, layout, finite })
    }

    fn narrow(&self, batch: &Batch, stream: Stream) -> Result<Stream> {
        let Some(rows) = batch.scored_rows() else { return Ok(stream) };
        let rows: Vec<u32> = rows.into_iter().map(|row| row as u32).collect();
        let x = stream.x.index_select(&Tensor::new(rows, &self.device)?, 0)?;
        Ok(Stream { finite: stream.finite, ..self.build_stream(batch, x)? })
    }

    fn finish(&self, batch: &Batch, stream: &Stream) -> Result<Vec<Prediction>> {
        let weight = self.weight_cache.head()?;
        let targets = batch.targets_for_rows(stream.x.dim(0)?);
        self.project_rows(|rows| head::predictions(&stream.x, self.head_params(), &weight, &targets, rows))
    }
}

impl Compare for CandleEngine {
    type Divergences = Vec<Divergence>;

    fn compare(&self, batch: &Batch, reference: &Stream, stream: &Stream) -> Result<Vec<Divergence>> {
        let weight = self.weight_cache.head()?;
        // One stream may be narrowed to the scored rows while the other one is not.
        let narrowed = reference.x.dim(0)?.min(stream.x.dim(0)?);
        let [reference, stream] = [reference, stream].map(|stream| match stream.x.dim(0)? == narrowed {
            true => Ok(stream.clone()),
            false => self.narrow(batch, stream.clone()),
        });
        let [reference, stream] = [reference?, stream?];
        let targets = batch.targets_for_rows(narrowed);
        // Project as many rows at a time as `finish`, because the number of rows may affect the rounding of a product.
        let streams = [&reference.x, &stream.x];
        self.project_rows(|rows| head::divergences(streams, self.head_params(), &weight, &targets, rows))
    }
}

impl Engine for CandleEngine {
    fn id(&self) -> EngineId {
        self.id
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn input_norm(&self, layer: usize, sublayer: Sublayer) -> Result<RmsNorm> {
        let part = self.weight_cache.layer(layer)?;
        let weight = part.layer()?.norms[sublayer.norms()[0]].as_ref();
        let weight = weight.map(|weight| weight.to_device(&Device::Cpu)?.to_vec1::<f32>()).transpose()?;
        Ok(RmsNorm { eps: self.config.norm_eps, weight })
    }

    fn final_norm(&self) -> Result<RmsNorm> {
        let weight = self.final_norm.to_device(&Device::Cpu)?.to_vec1::<f32>()?;
        Ok(RmsNorm { eps: self.config.norm_eps, weight: Some(weight) })
    }

    fn accumulation_device(&self) -> Option<Device> {
        (!self.device.is_cpu()).then(|| self.device.clone())
    }

    fn part_tokens(&self) -> usize {
        // On the CPU, a part has the size of a piece. On other devices, each chunk is a single part, because large
        // products are faster.
        if self.is_cpu() { CPU_PIECE_TOKENS } else { usize::MAX }
    }

    fn prompt_tokens(&self) -> usize {
        self.piece_tokens.load(Relaxed).max(PROMPT_TOKENS)
    }

    /// Returns half of the free memory. Streams and logits need the rest, and freed memory is not immediately reusable.
    fn cache_bytes(&self) -> Option<u64> {
        memory::free_bytes(&self.device).map(|free| free / 2)
    }

    fn run(
        &self,
        trie: &Trie,
        batch: &Batch,
        observer: &mut dyn Observer<dyn ResidualStream>,
    ) -> Result<BatchPredictions> {
        trie.run(self, batch, &mut StreamAdapter(observer))
    }

    fn score(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<BatchPredictions>> {
        if self.weight_cache.keeps_all() {
            return run_parts_in_parallel(self, trie, parts, seconds);
        }
        // Run all parts together, so that the weights of each step are loaded once.
        let model = Lockstep { model: self, one_core_per_batch: true };
        trie.run(&model, parts, &mut StepTimer(seconds)).map(|outputs| regroup_by_part(outputs, parts.len()))
    }

    fn compare(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<BatchDivergences>> {
        if self.weight_cache.keeps_all() {
            return compare_parts_in_parallel(self, trie, parts, seconds);
        }
        let model = Lockstep { model: self, one_core_per_batch: true };
        compare_trie(&model, trie, None, parts, seconds).map(|outputs| regroup_by_part(outputs, parts.len()))
    }

    fn start_decoding<'a>(&'a self, trie: &'a Trie) -> Result<Box<dyn Decoding + 'a>> {
        Ok(Box::new(TrieDecoding::new(self, trie)?))
    }

    fn run_steps(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
        let x = Tensor::from_slice(stream, (batch.tokens(), self.config.hidden), &self.device)?;
        let stream = self.build_stream(batch, x.to_dtype(self.dtype.candle_dtype())?)?;
        steps.iter().try_fold(stream, |stream, step| self.advance(batch, step, &stream))?.rows()
    }

    fn logits(&self, stream: &[f32], rows: &[usize]) -> Result<HostRows> {
        let c = self.config.hidden;
        let x = Tensor::from_slice(stream, (stream.len() / c, c), &self.device)?.to_dtype(self.dtype.candle_dtype())?;
        head::logits(&x, self.head_params(), &self.weight_cache.head()?, rows)?.flatten_all()?.rows()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.take()
    }
}

#[cfg(test)]
mod tests;
