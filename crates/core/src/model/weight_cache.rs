//! Weights of a decoder, divided into layers, experts and the head. These parts are either all in memory or loaded on
//! demand.

use std::sync::Arc;

use ghostlab_kernels::forward::PackedWeights;

use super::cache::Cache;
use super::config::Config;
use super::products::Products;
use super::sublayer::Sublayer;
use super::tensor_name::{
    DOWN, EMBEDDING, GATED_PROJECTIONS, HEAD, INPUTS, KEY_NORM, MLP, OUTPUT, QUERY_NORM, ROUTER, bias, expert, name,
};
use super::tensors::{self, Part, layer_parts};
use super::weights::Weights;
use crate::error::{Error, Result};

/// Weights that are loaded and evicted as a unit.
pub(super) enum ModelPart {
    Layer(Box<Layer>),
    Expert(GatedMlp),
    /// Output projection `[C, vocab]`.
    Head(PackedWeights),
}

#[derive(Clone)]
pub(super) struct Layer {
    pub(super) index: usize,
    /// Norms `[C]`, in the order: before attention, after attention, before the MLP, after the MLP.
    pub(super) norms: [Option<Vec<f32>>; 4],
    pub(super) qkv: PackedWeights,     // [C, (H + 2K)·D]
    pub(super) bias: Option<Vec<f32>>, // [(H + 2K)·D]
    pub(super) query_norm: Option<Vec<f32>>,
    pub(super) key_norm: Option<Vec<f32>>,
    pub(super) output: PackedWeights,         // [H·D, C]
    pub(super) output_bias: Option<Vec<f32>>, // [C]
    pub(super) mlp: Mlp,
    /// Sliding-window width in tokens, or `None` for full attention.
    pub(super) window: Option<usize>,
}

#[derive(Clone)]
pub(super) enum Mlp {
    Dense(GatedMlp),
    /// Router weights `[C, E]`. Each expert is a separate part.
    Experts(Vec<f32>),
}

#[derive(Clone)]
pub(super) struct GatedMlp {
    pub(super) gate_up: PackedWeights,         // [C, 2F]
    pub(super) gate_up_bias: Option<Vec<f32>>, // [2F]
    pub(super) down: PackedWeights,            // [F, C]
    pub(super) down_bias: Option<Vec<f32>>,    // [C]
}

/// Weights of a backbone, in numbered parts: each layer followed by its experts, and finally the head. Clones share the
/// weights.
#[derive(Clone)]
pub(super) struct WeightCache {
    storage: Storage,
    embedding_factor: Option<f32>,
}

/// Location of the parts: all in memory, or in files and a cache of limited size.
#[derive(Clone)]
enum Storage {
    InMemory {
        /// Token embeddings `[vocab, C]`.
        embedding: Arc<Vec<f32>>,
        parts: Vec<Option<Arc<ModelPart>>>,
    },
    OnDemand {
        weights: Arc<Weights>,
        cache: Arc<Cache<ModelPart>>,
    },
}

impl WeightCache {
    /// Loads all parts if they fit into `budget` bytes. Larger backbones are loaded part by part on demand, and cached
    /// within the budget.
    pub(super) fn new(config: &Config, products: Products, weights: Weights, budget: u64) -> Result<Self> {
        let c = config.hidden;
        let vocab = config.vocab;
        let embedding_factor = tensors::embedding_factor(config, &weights);
        if config.weight_bytes(products) <= budget {
            let embedding = Arc::new(weights.take(EMBEDDING, &[vocab, c])?);
            let parts = (0..=config.head_part())
                .map(|part| ModelPart::read(config, products, &weights, part).map(|loaded| loaded.map(Arc::new)))
                .collect::<Result<_>>()?;
            return Ok(Self { storage: Storage::InMemory { embedding, parts }, embedding_factor });
        }
        let bytes = (0..=config.head_part()).map(|part| config.part_bytes(products, part)).collect();
        let weights = Arc::new(weights);
        let cache_config = config.clone();
        let cache_weights = Arc::clone(&weights);
        let cache = Cache::new(bytes, budget, move |part| {
            let read = ModelPart::read(&cache_config, products, &cache_weights, part)?;
            read.ok_or_else(|| Error::job("a step refers to an expert that does not exist"))
        })?;
        Ok(Self { storage: Storage::OnDemand { weights, cache: Arc::new(cache) }, embedding_factor })
    }

    pub(super) fn keeps_all(&self) -> bool {
        matches!(self.storage, Storage::InMemory { .. })
    }

    pub(super) fn layer(&self, config: &Config, layer: usize) -> Result<Arc<ModelPart>> {
        self.get(config.layer_part(layer))
    }

    pub(super) fn expert(&self, config: &Config, layer: usize, number: usize) -> Result<Arc<ModelPart>> {
        self.get(config.layer_part(layer) + 1 + number)
    }

    pub(super) fn head(&self, config: &Config) -> Result<Arc<ModelPart>> {
        self.get(config.head_part())
    }

    fn get(&self, part: usize) -> Result<Arc<ModelPart>> {
        match &self.storage {
            Storage::InMemory { parts, .. } => {
                let known = parts.get(part).and_then(Option::as_ref);
                known.cloned().ok_or_else(|| Error::job("a step refers to weights that do not exist"))
            }
            Storage::OnDemand { cache, .. } => cache.get(part),
        }
    }

    /// Starts loading the weights of the current and the next step in the background, unless all weights are in memory.
    pub(super) fn announce_weights(&self, config: &Config, now: Option<usize>, next: Option<usize>) {
        if let (Storage::OnDemand { cache, .. }, Some(next)) = (&self.storage, next) {
            // An index past the last layer denotes the head.
            let part_number = |weights: usize| config.layer_part(weights.min(config.layers));
            cache.prefetch(now.map(part_number), part_number(next));
        }
    }

    /// Returns the total time spent loading parts on demand, in seconds.
    pub(super) fn load_seconds(&self) -> f64 {
        match &self.storage {
            Storage::InMemory { .. } => 0.0,
            Storage::OnDemand { cache, .. } => cache.load_seconds(),
        }
    }

    /// Returns the embeddings of the given ids, concatenated. Panics if an id is outside the vocabulary.
    pub(super) fn embeddings(&self, config: &Config, ids: &[u32]) -> Result<Vec<f32>> {
        let c = config.hidden;
        let mut rows = match &self.storage {
            Storage::InMemory { embedding, .. } => {
                let mut rows = Vec::with_capacity(ids.len() * c);
                ids.iter().for_each(|&id| rows.extend_from_slice(&embedding[id as usize * c..][..c]));
                rows
            }
            Storage::OnDemand { weights, .. } => weights.rows(EMBEDDING, [config.vocab, c], ids)?,
        };
        if let Some(factor) = self.embedding_factor {
            rows.iter_mut().for_each(|x| *x *= factor);
        }
        Ok(rows)
    }

    /// Replaces a layer or an expert. `index` is a part number.
    ///
    /// # Errors
    /// Fails if parts are loaded on demand, because the next load would restore the original part.
    pub(super) fn replace(&mut self, index: usize, part: ModelPart) -> Result<()> {
        let Storage::InMemory { parts, .. } = &mut self.storage else {
            return Err(Error::job("weights loaded on demand are read-only").at(format!("part {index}")));
        };
        parts[index] = Some(Arc::new(part));
        Ok(())
    }
}

impl ModelPart {
    /// Reads a layer, an expert or the head. Returns `None` for the experts of a dense layer.
    fn read(config: &Config, products: Products, weights: &Weights, part: usize) -> Result<Option<Self>> {
        let c = config.hidden;
        let vocab = config.vocab;
        Ok(Some(match config.part(part) {
            NamedPart::Layer(layer) => Self::Layer(Box::new(Layer::read(config, products, weights, layer)?)),
            NamedPart::Expert(layer, _) if !config.sparse[layer] => return Ok(None),
            NamedPart::Expert(layer, number) => {
                Self::Expert(LayerReader::new(config, products, weights, layer).read_gated_mlp(&expert(number))?)
            }
            NamedPart::Head => {
                let name = if config.tied_embeddings { EMBEDDING } else { HEAD };
                Self::Head(products.read(weights, &[(name, vocab)], c)?)
            }
        }))
    }

    pub(super) fn layer(&self) -> Result<&Layer> {
        match self {
            Self::Layer(layer) => Ok(layer),
            Self::Head(_) | Self::Expert(_) => Err(Error::job("a step refers to a layer that does not exist")),
        }
    }

    pub(super) fn expert(&self) -> Result<&GatedMlp> {
        match self {
            Self::Expert(expert) => Ok(expert),
            Self::Head(_) | Self::Layer(_) => Err(Error::job("expected an expert, found a layer or the head")),
        }
    }

    pub(super) fn head(&self) -> Result<&PackedWeights> {
        match self {
            Self::Head(head) => Ok(head),
            Self::Layer(_) | Self::Expert(_) => Err(Error::job("expected the head, found a layer or an expert")),
        }
    }
}

/// Layer, expert or head that a part number identifies.
pub(super) enum NamedPart {
    Layer(usize),
    /// Layer index, and index of the expert within the layer.
    Expert(usize, usize),
    Head,
}

impl Config {
    /// Returns the number of parts per layer: one for the layer itself, and one for each of its experts.
    fn parts_per_layer(&self) -> usize {
        1 + self.experts.map_or(0, |experts| experts.count)
    }

    /// Returns the part number of a layer, or of the head if `layer` is the number of layers.
    pub(super) fn layer_part(&self, layer: usize) -> usize {
        layer * self.parts_per_layer()
    }

    pub(super) fn head_part(&self) -> usize {
        self.layer_part(self.layers)
    }

    pub(super) fn part(&self, part: usize) -> NamedPart {
        match (part / self.parts_per_layer(), part % self.parts_per_layer()) {
            (layer, _) if layer >= self.layers => NamedPart::Head,
            (layer, 0) => NamedPart::Layer(layer),
            (layer, index) => NamedPart::Expert(layer, index - 1),
        }
    }
}

impl Layer {
    /// Returns the post-norm of a sublayer, if any.
    pub(super) fn norm_after(&self, sublayer: Sublayer) -> Option<&[f32]> {
        self.norms[sublayer.norms()[1]].as_deref()
    }

    fn read(config: &Config, products: Products, weights: &Weights, index: usize) -> Result<Self> {
        let reader = LayerReader::new(config, products, weights, index);
        let [pre_attention_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm] =
            config.architecture.norms.map(|part| part.map_or(Ok(None), |part| reader.read_norm(part)));
        let c = config.hidden;
        let q = config.heads * config.head_dim;
        Ok(Self {
            index,
            qkv: reader.read_joined(&INPUTS.map(str::to_owned), c)?,
            bias: reader.read_biases(&INPUTS.map(str::to_owned))?,
            output: reader.read_joined(&[OUTPUT.to_owned()], q)?,
            output_bias: reader.read_biases(&[OUTPUT.to_owned()])?,
            mlp: match config.experts.filter(|_| config.sparse[index]) {
                None => Mlp::Dense(reader.read_gated_mlp(MLP)?),
                Some(experts) => Mlp::Experts(weights.read_transposed(&[(name(index, ROUTER), experts.count)], c)?),
            },
            norms: [pre_attention_norm?, post_attention_norm?, pre_mlp_norm?, post_mlp_norm?],
            query_norm: reader.read_norm(QUERY_NORM)?,
            key_norm: reader.read_norm(KEY_NORM)?,
            window: config.windows[index],
        })
    }
}

struct LayerReader<'a> {
    config: &'a Config,
    products: Products,
    weights: &'a Weights,
    index: usize,
    parts: Vec<Part>,
}

impl<'a> LayerReader<'a> {
    fn new(config: &'a Config, products: Products, weights: &'a Weights, index: usize) -> Self {
        Self { config, products, weights, index, parts: layer_parts(config, index) }
    }

    fn shape(&self, part: &str) -> Option<&[usize]> {
        self.parts.iter().find(|(known, _)| known == part).map(|(_, shape)| shape.as_slice())
    }

    /// Reads and concatenates the named vectors that exist in the architecture. Returns `None` if none of them exist.
    fn read_vectors(&self, names: impl Iterator<Item = String>) -> Result<Option<Vec<f32>>> {
        let mut values = Vec::new();
        for part in names {
            if let Some(shape) = self.shape(&part) {
                values.extend(self.weights.take(&name(self.index, &part), shape)?);
            }
        }
        Ok((!values.is_empty()).then_some(values))
    }

    fn read_biases(&self, parts: &[String]) -> Result<Option<Vec<f32>>> {
        self.read_vectors(parts.iter().map(|part| bias(part)))
    }

    fn read_norm(&self, part: &str) -> Result<Option<Vec<f32>>> {
        let Some(shape) = self.shape(part) else { return Ok(None) };
        tensors::read_norm(self.config, self.weights, &name(self.index, part), shape).map(Some)
    }

    /// Reads several projections of the same input as one matrix `[inner, Σ outer]`, so that a single product computes
    /// all of them.
    fn read_joined(&self, names: &[String], inner: usize) -> Result<PackedWeights> {
        let matrices: Vec<(String, usize)> =
            names.iter().filter_map(|part| Some((name(self.index, part), self.shape(part)?[0]))).collect();
        self.products.read(self.weights, &matrices, inner)
    }

    fn read_gated_mlp(&self, prefix: &str) -> Result<GatedMlp> {
        let gate_up = GATED_PROJECTIONS.map(|part| format!("{prefix}.{part}"));
        let down = [format!("{prefix}.{DOWN}")];
        let width = self.shape(&gate_up[0]).map_or(0, |shape| shape[0]);
        Ok(GatedMlp {
            gate_up: self.read_joined(&gate_up, self.config.hidden)?,
            gate_up_bias: self.read_biases(&gate_up)?,
            down: self.read_joined(&down, width)?,
            down_bias: self.read_biases(&down)?,
        })
    }
}
