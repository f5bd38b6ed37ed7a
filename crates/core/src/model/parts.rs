//! The weights of a decoder, part by part: all in memory, or made from the stored tensors when they are needed.

use std::sync::Arc;

use candle_core::Tensor;

use super::cache::Cache;
use super::config::Config;
use super::matrix::{LayerMatrix, Products};
use super::slice::{elements, tensor};
use super::sublayer::Sublayer;
use super::tensor_name::{
    DOWN, EMBEDDING, GATED, HEAD, INPUTS, KEY_NORM, MLP, OUTPUT, QUERY_NORM, ROUTER, bias, expert, name,
};
use super::tensors::{self, Part, parts};
use super::weights::Weights;
use crate::error::{Error, Result};

pub(super) enum ModelPart {
    Layer(Layer),
    Expert(Gated),
    /// `[C, vocab]`
    Head(LayerMatrix),
}

#[derive(Clone)]
pub(super) struct Layer {
    /// Before and after attention, before and after the MLP; each `[C]`.
    pub(super) norms: [Option<Tensor>; 4],
    pub(super) qkv: LayerMatrix,     // [C, (H + 2K)·D]
    pub(super) bias: Option<Tensor>, // [(H + 2K)·D]
    pub(super) query_norm: Option<Tensor>,
    pub(super) key_norm: Option<Tensor>,
    pub(super) output: LayerMatrix,         // [H·D, C]
    pub(super) output_bias: Option<Tensor>, // [C]
    pub(super) mlp: Mlp,
    /// How many tokens a query sees.
    pub(super) window: Option<usize>,
}

#[derive(Clone)]
pub(super) enum Mlp {
    Dense(Gated),
    /// The router's weights, `[C, E]`; the experts are parts of their own.
    Experts(Tensor),
}

/// An MLP with a gate.
#[derive(Clone)]
pub(super) struct Gated {
    pub(super) gate_up: LayerMatrix,         // [C, 2F]
    pub(super) gate_up_bias: Option<Tensor>, // [2F]
    pub(super) down: LayerMatrix,            // [F, C]
    pub(super) down_bias: Option<Tensor>,    // [C]
}

/// The parts of one backbone: its layers in order, behind each its experts, then the head. A clone shares them.
#[derive(Clone)]
pub(super) struct Parts {
    held: HeldParts,
    /// Factor of embeddings.
    embedding_factor: Option<f32>,
}

#[derive(Clone)]
enum HeldParts {
    Kept {
        /// `[vocab, C]`
        embedding: Tensor,
        parts: Vec<Option<Arc<ModelPart>>>,
    },
    ByNeed {
        weights: Arc<Weights>,
        cache: Arc<Cache<ModelPart>>,
    },
}

impl Parts {
    /// Makes all parts, if they fit into `budget` bytes. Else each is made when it is needed, and kept within the budget.
    pub(super) fn new(config: &Config, products: Products, weights: Weights, budget: u64) -> Result<Self> {
        let c = config.hidden;
        let vocab = config.vocab;
        let embedding_factor = tensors::embedding_factor(config, &weights);
        if config.weight_bytes(products) <= budget {
            let embedding = tensor(weights.take(EMBEDDING, &[vocab, c])?, &[vocab, c])?;
            let parts = (0..=config.head_part())
                .map(|part| ModelPart::read(config, products, &weights, part).map(|loaded| loaded.map(Arc::new)))
                .collect::<Result<_>>()?;
            return Ok(Self { held: HeldParts::Kept { embedding, parts }, embedding_factor });
        }
        let bytes = (0..=config.head_part()).map(|part| config.part_bytes(products, part)).collect();
        let weights = Arc::new(weights);
        let config_of_cache = config.clone();
        let weights_of_cache = Arc::clone(&weights);
        let cache = Cache::new(bytes, budget, move |part| {
            let read = ModelPart::read(&config_of_cache, products, &weights_of_cache, part)?;
            read.ok_or_else(|| Error::job("an expert is asked for of a layer that has none"))
        })?;
        Ok(Self { held: HeldParts::ByNeed { weights, cache: Arc::new(cache) }, embedding_factor })
    }

    /// Returns whether all parts are in memory.
    pub(super) fn kept(&self) -> bool {
        matches!(self.held, HeldParts::Kept { .. })
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
        match &self.held {
            HeldParts::Kept { parts, .. } => {
                let known = parts.get(part).and_then(Option::as_ref);
                known.cloned().ok_or_else(|| Error::job("a part is asked for that the backbone has not"))
            }
            HeldParts::ByNeed { cache, .. } => cache.get(part),
        }
    }

    /// Announces which weights are needed now and next. The next are loaded in the background.
    pub(super) fn expect(&self, config: &Config, now: Option<usize>, next: Option<usize>) {
        if let (HeldParts::ByNeed { cache, .. }, Some(next)) = (&self.held, next) {
            // The head stands after the last layer.
            let part = |weights: usize| config.layer_part(weights.min(config.layers));
            cache.ahead(now.map(part), part(next));
        }
    }

    /// Returns the total seconds spent loading parts on demand.
    pub(super) fn seconds_making(&self) -> f64 {
        match &self.held {
            HeldParts::Kept { .. } => 0.0,
            HeldParts::ByNeed { cache, .. } => cache.seconds_making(),
        }
    }

    /// Returns the embeddings of existing tokens, concatenated.
    pub(super) fn embeddings(&self, config: &Config, ids: &[u32]) -> Result<Vec<f32>> {
        let c = config.hidden;
        let mut rows = match &self.held {
            HeldParts::Kept { embedding, .. } => {
                let table = elements(embedding)?;
                let mut rows = Vec::with_capacity(ids.len() * c);
                ids.iter().for_each(|&id| rows.extend_from_slice(&table[id as usize * c..][..c]));
                rows
            }
            HeldParts::ByNeed { weights, .. } => weights.rows(EMBEDDING, [config.vocab, c], ids)?,
        };
        if let Some(factor) = self.embedding_factor {
            rows.iter_mut().for_each(|x| *x *= factor);
        }
        Ok(rows)
    }

    /// Puts another layer or expert into the place of one; `index` counts all parts.
    ///
    /// # Errors
    /// Not all parts are in memory: the next use would make the old one again.
    pub(super) fn replace(&mut self, index: usize, part: ModelPart) -> Result<()> {
        let HeldParts::Kept { parts, .. } = &mut self.held else {
            return Err(Error::job("weights loaded on demand cannot be changed").at(format!("part {index}")));
        };
        parts[index] = Some(Arc::new(part));
        Ok(())
    }
}

impl ModelPart {
    /// Reads a layer, an expert, or the head after the last layer. `None` for expert slots of a dense layer.
    fn read(config: &Config, products: Products, weights: &Weights, part: usize) -> Result<Option<Self>> {
        let c = config.hidden;
        let vocab = config.vocab;
        Ok(Some(match config.part(part) {
            NamedPart::Layer(layer) => Self::Layer(Layer::read(config, products, weights, layer)?),
            NamedPart::Expert(layer, _) if !config.sparse[layer] => return Ok(None),
            NamedPart::Expert(layer, number) => {
                Self::Expert(Reader::new(config, products, weights, layer).gated(&expert(number))?)
            }
            NamedPart::Head => {
                let name = if config.tied_embeddings { EMBEDDING } else { HEAD };
                Self::Head(LayerMatrix::read(products, weights, &[(name, vocab)], c)?)
            }
        }))
    }

    pub(super) fn layer(&self) -> Result<&Layer> {
        match self {
            Self::Layer(layer) => Ok(layer),
            Self::Head(_) | Self::Expert(_) => Err(Error::job("a step asks for a layer beyond the last")),
        }
    }

    pub(super) fn expert(&self) -> Result<&Gated> {
        match self {
            Self::Expert(expert) => Ok(expert),
            Self::Head(_) | Self::Layer(_) => Err(Error::job("a part of a backbone is no expert")),
        }
    }

    pub(super) fn head(&self) -> Result<&LayerMatrix> {
        match self {
            Self::Head(head) => Ok(head),
            Self::Layer(_) | Self::Expert(_) => Err(Error::job("the last part of a backbone is not its head")),
        }
    }
}

/// Which part of a backbone a number is of.
pub(super) enum NamedPart {
    Layer(usize),
    /// Layer, and number of the expert in it.
    Expert(usize, usize),
    Head,
}

impl Config {
    /// Returns the slots of a layer: its own, and one per possible expert.
    fn places(&self) -> usize {
        1 + self.experts.map_or(0, |experts| experts.count)
    }

    /// Returns the part number of a layer, or of the head for the layer after the last.
    pub(super) fn layer_part(&self, layer: usize) -> usize {
        layer * self.places()
    }

    pub(super) fn head_part(&self) -> usize {
        self.layer_part(self.layers)
    }

    pub(super) fn part(&self, part: usize) -> NamedPart {
        match (part / self.places(), part % self.places()) {
            (layer, _) if layer >= self.layers => NamedPart::Head,
            (layer, 0) => NamedPart::Layer(layer),
            (layer, index) => NamedPart::Expert(layer, index - 1),
        }
    }
}

impl Layer {
    /// Returns the norm that ends a sublayer's branch, if any.
    pub(super) fn norm_after(&self, half: Sublayer) -> Option<&Tensor> {
        self.norms[half.norms()[1]].as_ref()
    }

    fn read(config: &Config, products: Products, weights: &Weights, index: usize) -> Result<Self> {
        let reader = Reader::new(config, products, weights, index);
        let [one, two, three, four] =
            config.architecture.norms.map(|part| part.map_or(Ok(None), |part| reader.norm(part)));
        let c = config.hidden;
        let q = config.heads * config.head_dim;
        Ok(Self {
            qkv: reader.join(&INPUTS.map(str::to_owned), c)?,
            bias: reader.biases(&INPUTS.map(str::to_owned))?,
            output: reader.join(&[OUTPUT.to_owned()], q)?,
            output_bias: reader.biases(&[OUTPUT.to_owned()])?,
            mlp: match config.experts.filter(|_| config.sparse[index]) {
                None => Mlp::Dense(reader.gated(MLP)?),
                Some(experts) => {
                    let router = weights.transposed(&[(name(index, ROUTER), experts.count)], c)?;
                    Mlp::Experts(tensor(router, &[c, experts.count])?)
                }
            },
            norms: [one?, two?, three?, four?],
            query_norm: reader.norm(QUERY_NORM)?,
            key_norm: reader.norm(KEY_NORM)?,
            window: config.windows[index],
        })
    }
}

/// Reads the parts of a layer.
struct Reader<'a> {
    config: &'a Config,
    products: Products,
    weights: &'a Weights,
    index: usize,
    parts: Vec<Part>,
}

impl<'a> Reader<'a> {
    fn new(config: &'a Config, products: Products, weights: &'a Weights, index: usize) -> Self {
        Self { config, products, weights, index, parts: parts(config, index) }
    }

    fn shape(&self, part: &str) -> Option<&[usize]> {
        self.parts.iter().find(|(known, _)| known == part).map(|(_, shape)| shape.as_slice())
    }

    /// Reads the vectors that the architecture has, concatenated.
    fn vectors(&self, names: impl Iterator<Item = String>) -> Result<Option<Tensor>> {
        let mut values = Vec::new();
        for part in names {
            if let Some(shape) = self.shape(&part) {
                values.extend(self.weights.take(&name(self.index, &part), shape)?);
            }
        }
        let length = values.len();
        (length > 0).then(|| tensor(values, &[length])).transpose()
    }

    fn biases(&self, parts: &[String]) -> Result<Option<Tensor>> {
        self.vectors(parts.iter().map(|part| bias(part)))
    }

    fn norm(&self, part: &str) -> Result<Option<Tensor>> {
        let Some(shape) = self.shape(part) else { return Ok(None) };
        let values = tensors::norm(self.config, self.weights, &name(self.index, part), shape)?;
        tensor(values, shape).map(Some)
    }

    /// Reads several projections of one input as a single `[inner, Σ outer]` matrix, for one product instead of three.
    fn join(&self, names: &[String], inner: usize) -> Result<LayerMatrix> {
        let matrices: Vec<(String, usize)> =
            names.iter().filter_map(|part| Some((name(self.index, part), self.shape(part)?[0]))).collect();
        LayerMatrix::read(self.products, self.weights, &matrices, inner)
    }

    fn gated(&self, prefix: &str) -> Result<Gated> {
        let gate_up = GATED.map(|part| format!("{prefix}.{part}"));
        let down = [format!("{prefix}.{DOWN}")];
        let width = self.shape(&gate_up[0]).map_or(0, |shape| shape[0]);
        Ok(Gated {
            gate_up: self.join(&gate_up, self.config.hidden)?,
            gate_up_bias: self.biases(&gate_up)?,
            down: self.join(&down, width)?,
            down_bias: self.biases(&down)?,
        })
    }
}
