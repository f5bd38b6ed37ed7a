//! Cache of a backbone's weights on a device, limited by a byte budget. Weights are loaded from files when a step first
//! needs them, and the weights whose next use is furthest away are evicted.

use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::device::FloatType;
use super::ops;
use crate::error::{Error, Result};
use crate::model::cache::Cache;
use crate::model::config::Config;
use crate::model::experts::Experts;
use crate::model::products::Products;
use crate::model::rope::Rotaries;
use crate::model::tensor_name::{
    DOWN, EMBEDDING, GATED_PROJECTIONS, HEAD, INPUTS, KEY_NORM, MLP, OUTPUT, QUERY_NORM, ROUTER, bias, expert, name,
};
use crate::model::tensors::{self, embedding_factor, layer_parts};
use crate::model::weights::Weights;

/// Part of the weights that is loaded and evicted as a unit: a layer or a vocabulary table. Matrices have the layout of
/// weight files, `[out, in]`, and the engine's float type. Norms and biases are f32.
pub(super) enum TensorPart {
    Layer(Box<LayerTensors>),
    /// The output projection or the embedding, `[vocab, C]`.
    Table(Tensor),
}

/// Weights of a layer as tensors, with matrices `[out, in]`.
pub(super) struct LayerTensors {
    /// Index of the layer's rotary embedding.
    pub(super) rotary: usize,
    /// Norms before and after attention, and before and after the MLP, each `[C]`.
    pub(super) norms: [Option<Tensor>; 4],
    pub(super) query_norm: Option<Tensor>,
    pub(super) key_norm: Option<Tensor>,
    pub(super) query: Tensor,  // [H·D, C]
    pub(super) key: Tensor,    // [K·D, C]
    pub(super) value: Tensor,  // [K·D, C]
    pub(super) output: Tensor, // [C, H·D]
    /// Biases of queries, keys, values and output: `[H·D]`, `[K·D]`, `[K·D]`, `[C]`.
    pub(super) biases: [Option<Tensor>; 4],
    pub(super) mlp: MlpTensors,
    /// Sliding-window size in tokens. `None` if the layer attends to all earlier tokens.
    pub(super) window: Option<usize>,
}

/// Weights of a layer's MLP.
pub(super) enum MlpTensors {
    Dense(GatedTensors),
    /// Mixture of experts: settings, router `[E, C]` and experts.
    Experts(Experts, Tensor, Vec<GatedTensors>),
}

/// Weights of a gated MLP.
pub(super) struct GatedTensors {
    pub(super) gate: Tensor, // [F, C]
    pub(super) up: Tensor,   // [F, C]
    pub(super) down: Tensor, // [C, F]
    /// Biases of gate, up and down: `[F]`, `[F]`, `[C]`.
    pub(super) biases: [Option<Tensor>; 3],
}

/// Cached weights of a backbone on a device, in numbered parts: the layers, the head, and the embedding unless it is
/// tied.
pub(super) struct WeightCache {
    cache: Cache<TensorPart>,
    source: Arc<WeightSource>,
    /// Whether all weights fit into the budget.
    keeps_all: bool,
}

/// Loader that reads weights from files onto a device.
pub(super) struct WeightSource {
    pub(super) config: Config,
    pub(super) weights: Weights,
    pub(super) device: Device,
    pub(super) dtype: FloatType,
}

/// Returns the size in bytes of each part for a float type. The parts are the layers, the head, and the embedding if it
/// is not tied.
fn part_sizes(config: &Config, dtype: FloatType) -> Vec<u64> {
    let mut part_sizes: Vec<u64> = (0..config.layers)
        .map(|layer| bytes_in_dtype(Products::F32.bytes() * config.layer_weight_count(layer), dtype))
        .collect();
    part_sizes.extend(vec![
        bytes_in_dtype(config.head_bytes(Products::F32), dtype);
        if config.tied_embeddings { 1 } else { 2 }
    ]);
    part_sizes
}

/// Converts the size of f32 values in bytes to their size in another float type.
fn bytes_in_dtype(f32_bytes: u64, dtype: FloatType) -> u64 {
    f32_bytes / 4 * dtype.bytes()
}

/// Returns the size of all weights on a device in bytes.
pub(in crate::model) fn weight_bytes(config: &Config, dtype: FloatType) -> u64 {
    part_sizes(config, dtype).iter().sum()
}

impl WeightCache {
    /// Creates an empty cache with a budget of `budget` bytes.
    ///
    /// # Errors
    /// Fails if no threads can be started.
    pub(super) fn new(
        config: &Config,
        weights: Weights,
        device: &Device,
        dtype: FloatType,
        budget: u64,
    ) -> Result<Self> {
        let source = Arc::new(WeightSource { config: config.clone(), weights, device: device.clone(), dtype });
        let part_source = Arc::clone(&source);
        let cache = Cache::new(part_sizes(config, dtype), budget, move |part| part_source.load_part(part))?;
        Ok(Self { cache, source, keeps_all: weight_bytes(config, dtype) <= budget })
    }

    pub(super) fn keeps_all(&self) -> bool {
        self.keeps_all
    }

    /// Loads all weights now if they fit into the budget.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read or the device runs out of memory.
    pub(super) fn fill(&self) -> Result<()> {
        let count = part_sizes(&self.source.config, self.source.dtype).len();
        let count = if self.keeps_all { count } else { 0 };
        (0..count).try_for_each(|part| self.cache.get(part).map(drop))
    }

    /// Starts loading the weights of the current and the next step in the background, unless all weights are cached.
    pub(super) fn announce_weights(&self, now: Option<usize>, next: Option<usize>) {
        if let (false, Some(next)) = (self.keeps_all, next) {
            // An index past the last layer denotes the head.
            let head = self.source.config.layers;
            self.cache.prefetch(now.map(|weights| weights.min(head)), next.min(head));
        }
    }

    pub(super) fn layer(&self, index: usize) -> Result<Arc<TensorPart>> {
        self.cache.get(index)
    }

    /// Returns the output projection, `[vocab, C]`.
    pub(super) fn head(&self) -> Result<Tensor> {
        self.cached_table(self.source.config.layers)
    }

    /// Returns the embeddings `[tokens, C]` of the given token ids, which must be valid.
    pub(super) fn embeddings(&self, ids: &[u32]) -> Result<Tensor> {
        let WeightSource { config, weights, device, dtype } = &*self.source;
        if self.keeps_all {
            let table = self.cached_table(config.layers + usize::from(!config.tied_embeddings))?;
            let rows = table.index_select(&Tensor::new(ids, device)?, 0)?;
            return match embedding_factor(config, weights) {
                Some(factor) => Ok((ops::widen(&rows)? * f64::from(factor))?.to_dtype(rows.dtype())?),
                None => Ok(rows),
            };
        }
        // Read rows from the file, because caching a table that is used once per batch would evict layers.
        let mut rows = weights.rows(EMBEDDING, [config.vocab, config.hidden], ids)?;
        if let Some(factor) = embedding_factor(config, weights) {
            rows.iter_mut().for_each(|x| *x *= factor);
        }
        Ok(Tensor::from_vec(rows, (ids.len(), config.hidden), device)?.to_dtype(dtype.candle_dtype())?)
    }

    fn cached_table(&self, part: usize) -> Result<Tensor> {
        match &*self.cache.get(part)? {
            TensorPart::Table(table) => Ok(table.clone()),
            TensorPart::Layer(_) => Err(Error::job("expected an embedding or output projection, found a layer")),
        }
    }
}

impl WeightSource {
    fn load_part(&self, index: usize) -> Result<TensorPart> {
        let layers = self.config.layers;
        if index < layers {
            return Ok(TensorPart::Layer(Box::new(self.load_layer(index)?)));
        }
        if index == layers { self.load_head() } else { self.load_table(EMBEDDING) }.map(TensorPart::Table)
    }

    /// Loads the output projection, `[vocab, C]`.
    ///
    /// # Errors
    /// See [`Self::load_layer`].
    pub(super) fn load_head(&self) -> Result<Tensor> {
        self.load_table(if self.config.tied_embeddings { EMBEDDING } else { HEAD })
    }

    fn load_table(&self, name: &str) -> Result<Tensor> {
        self.load_tensor(name, &[self.config.vocab, self.config.hidden], self.dtype)
    }

    /// Loads a layer.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read or a weight overflows f16. The message names the tensor.
    pub(super) fn load_layer(&self, index: usize) -> Result<LayerTensors> {
        let config = &self.config;
        let parts = layer_parts(config, index);
        let shape = |part: &str| parts.iter().find(|(known, _)| known == part).map(|(_, shape)| shape.as_slice());
        // A dropped sublayer has empty matrices, which no step uses.
        let matrix = |part: &str| match shape(part) {
            Some(dims) => self.load_tensor(&name(index, part), dims, self.dtype),
            None => Ok(Tensor::zeros(0, self.dtype.candle_dtype(), &self.device)?),
        };
        // Biases and norms exist only in some architectures.
        let vector =
            |part: &str| shape(part).map(|dims| self.load_tensor(&name(index, part), dims, FloatType::F32)).transpose();
        let norm = |part: &str| shape(part).map(|dims| self.load_norm(&name(index, part), dims)).transpose();
        let [one, two, three, four] = config.architecture.norms.map(|part| part.map_or(Ok(None), norm));
        let gated = |prefix: &str| -> Result<GatedTensors> {
            let names = [GATED_PROJECTIONS[0], GATED_PROJECTIONS[1], DOWN].map(|part| format!("{prefix}.{part}"));
            let [gate, up, down] = names.each_ref().map(|part| matrix(part));
            let [gate_bias, up_bias, down_bias] = names.each_ref().map(|part| vector(&bias(part)));
            let biases = [gate_bias?, up_bias?, down_bias?];
            Ok(GatedTensors { gate: gate?, up: up?, down: down?, biases })
        };
        let [query, key, value] = INPUTS.map(matrix);
        let [query_bias, key_bias, value_bias] = INPUTS.map(|part| vector(&bias(part)));
        Ok(LayerTensors {
            rotary: Rotaries::index(config, index),
            norms: [one?, two?, three?, four?],
            query_norm: norm(QUERY_NORM)?,
            key_norm: norm(KEY_NORM)?,
            query: query?,
            key: key?,
            value: value?,
            output: matrix(OUTPUT)?,
            biases: [query_bias?, key_bias?, value_bias?, vector(&bias(OUTPUT))?],
            mlp: match config.experts.filter(|_| config.sparse[index]) {
                None => MlpTensors::Dense(gated(MLP)?),
                Some(settings) => {
                    let experts = (0..settings.count).map(|number| gated(&expert(number))).collect::<Result<_>>()?;
                    MlpTensors::Experts(settings, matrix(ROUTER)?, experts)
                }
            },
            window: config.windows[index],
        })
    }

    /// Loads the weight of a norm in f32.
    ///
    /// # Errors
    /// See [`Self::load_layer`].
    pub(super) fn load_norm(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::from_vec(tensors::read_norm(&self.config, &self.weights, name, shape)?, shape, &self.device)?)
    }

    fn load_tensor(&self, name: &str, shape: &[usize], dtype: FloatType) -> Result<Tensor> {
        let values = self.weights.take(name, shape)?;
        if dtype == FloatType::F16
            && let Some(index) = values.iter().position(|v| !half::f16::from_f32(*v).is_finite())
        {
            return Err(Error::bad_input("a weight overflows f16")
                .at(format!("tensor {name}"))
                .found(format!("{} at element {index} of {shape:?}", values[index]))
                .hint("use --dtype bf16 or f32"));
        }
        Ok(Tensor::from_vec(values, shape, &self.device)?.to_dtype(dtype.candle_dtype())?)
    }
}

impl TensorPart {
    pub(super) fn layer(&self) -> Result<&LayerTensors> {
        match self {
            Self::Layer(layer) => Ok(layer),
            Self::Table(_) => Err(Error::job("a step refers to a layer that does not exist")),
        }
    }
}
