//! The weights of a decoder, part by part: all in memory, or made from the stored tensors when they are needed.

use std::sync::Arc;

use candle_core::Tensor;

use super::cache::Cache;
use super::config::Config;
use super::matrix::{LayerMatrix, Products};
use super::program::Sublayer;
use super::slice::{elements, tensor};
use super::tensor_name::{BIASES, EMBEDDING, HEAD, KEY_NORM, QUERY_NORM, name};
use super::tensors::parts;
use super::weights::Weights;
use crate::error::{Error, Result};

pub(super) enum ModelPart {
    Layer(Layer),
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
    pub(super) output: LayerMatrix,  // [H·D, C]
    pub(super) gate_up: LayerMatrix, // [C, 2F]
    pub(super) down: LayerMatrix,    // [F, C]
    /// How many tokens a query sees.
    pub(super) window: Option<usize>,
}

/// The parts of one backbone: its layers in order, then the head. A clone shares them.
#[derive(Clone)]
pub(super) enum Parts {
    Kept {
        /// `[vocab, C]`
        embedding: Tensor,
        parts: Vec<Arc<ModelPart>>,
    },
    ByNeed {
        weights: Arc<Weights>,
        cache: Arc<Cache<ModelPart>>,
    },
}

impl Parts {
    /// Makes all parts, if they fit into `budget` bytes. Else each is made when it is needed, and kept within the budget.
    pub(super) fn new(config: &Config, products: Products, weights: Weights, budget: u64) -> Result<Self> {
        let (c, vocab) = (config.hidden, config.vocab);
        if config.weight_bytes(products) <= budget {
            let embedding = tensor(weights.take(EMBEDDING, &[vocab, c])?, &[vocab, c])?;
            let parts = (0..=config.layers).map(|part| ModelPart::read(config, products, &weights, part).map(Arc::new));
            return Ok(Self::Kept { embedding, parts: parts.collect::<Result<_>>()? });
        }
        let mut bytes = vec![config.layer_bytes(products); config.layers];
        bytes.push(config.head_bytes(products));
        let weights = Arc::new(weights);
        let (own, of) = (config.clone(), Arc::clone(&weights));
        let cache = Cache::new(bytes, budget, move |part| ModelPart::read(&own, products, &of, part))?;
        Ok(Self::ByNeed { weights, cache: Arc::new(cache) })
    }

    /// Whether all parts are in memory.
    pub(super) fn kept(&self) -> bool {
        matches!(self, Self::Kept { .. })
    }

    pub(super) fn get(&self, part: usize) -> Result<Arc<ModelPart>> {
        match self {
            Self::Kept { parts, .. } => Ok(Arc::clone(&parts[part])),
            Self::ByNeed { cache, .. } => cache.get(part),
        }
    }

    /// Is told which weights are needed now and which next: those are made meanwhile.
    pub(super) fn expect(&self, config: &Config, now: Option<usize>, next: Option<usize>) {
        if let (Self::ByNeed { cache, .. }, Some(next)) = (self, next) {
            // The head stands after the last layer.
            let part = |weights: usize| weights.min(config.layers);
            cache.ahead(now.map(part), part(next));
        }
    }

    /// Seconds in which parts were made by need, all together.
    pub(super) fn seconds_making(&self) -> f64 {
        match self {
            Self::Kept { .. } => 0.0,
            Self::ByNeed { cache, .. } => cache.seconds_making(),
        }
    }

    /// The embeddings of tokens that are there, one after the other.
    pub(super) fn embeddings(&self, config: &Config, ids: &[u32]) -> Result<Vec<f32>> {
        let c = config.hidden;
        match self {
            Self::Kept { embedding, .. } => {
                let table = elements(embedding)?;
                let mut rows = Vec::with_capacity(ids.len() * c);
                ids.iter().for_each(|&id| rows.extend_from_slice(&table[id as usize * c..][..c]));
                Ok(rows)
            }
            Self::ByNeed { weights, .. } => weights.rows(EMBEDDING, [config.vocab, c], ids),
        }
    }

    /// Puts another layer into the place of one.
    ///
    /// # Errors
    /// Not all parts are in memory: the next use would make the old layer again.
    pub(super) fn replace(&mut self, index: usize, layer: Layer) -> Result<()> {
        let Self::Kept { parts, .. } = self else {
            return Err(Error::job("weights that are made by need cannot be changed").at(format!("layer {index}")));
        };
        parts[index] = Arc::new(ModelPart::Layer(layer));
        Ok(())
    }
}

impl ModelPart {
    /// A layer by its index, or the head after the last.
    fn read(config: &Config, products: Products, weights: &Weights, index: usize) -> Result<Self> {
        if index < config.layers {
            return Layer::read(config, products, weights, index).map(Self::Layer);
        }
        let (c, vocab) = (config.hidden, config.vocab);
        let name = if config.tied_embeddings { EMBEDDING } else { HEAD };
        LayerMatrix::read(products, weights, &[(name, vocab)], c).map(Self::Head)
    }

    pub(super) fn layer(&self) -> Result<&Layer> {
        match self {
            Self::Layer(layer) => Ok(layer),
            Self::Head(_) => Err(Error::job("a step asks for a layer beyond the last")),
        }
    }

    pub(super) fn head(&self) -> Result<&LayerMatrix> {
        match self {
            Self::Head(head) => Ok(head),
            Self::Layer(_) => Err(Error::job("the last part of a backbone is not its head")),
        }
    }
}

impl Layer {
    /// The norm that a half's branch ends in.
    pub(super) fn norm_after(&self, half: Sublayer) -> Option<&Tensor> {
        match half {
            Sublayer::Attention => self.norms[1].as_ref(),
            Sublayer::Mlp => self.norms[3].as_ref(),
        }
    }

    fn read(config: &Config, products: Products, weights: &Weights, index: usize) -> Result<Self> {
        let parts = parts(config);
        let width = |part: &str| parts.iter().find(|(known, _)| *known == part).map(|(_, shape)| shape[0]);
        // Those of some vectors that the architecture has, one after the other.
        let vectors = |names: &[&str]| -> Result<Option<Tensor>> {
            let mut values = Vec::new();
            for (part, width) in names.iter().filter_map(|part| Some((part, width(part)?))) {
                values.extend(weights.take(&name(index, part), &[width])?);
            }
            let length = values.len();
            (length > 0).then(|| tensor(values, &[length])).transpose()
        };
        let norm = |part: &str| vectors(&[part]);
        let (query_norm, key_norm) = (norm(QUERY_NORM)?, norm(KEY_NORM)?);
        let mut norms = [None, None, None, None];
        for (slot, part) in norms.iter_mut().zip(config.architecture.norms) {
            *slot = part.map(norm).transpose()?.flatten();
        }
        // Several projections of the same input side by side, as one `[inner, Σ outer]` matrix: one product instead of three.
        let join = |names: &[&str], inner: usize| {
            let of = |part: &&str| Some((name(index, part), width(part)?));
            let matrices: Vec<(String, usize)> = names.iter().filter_map(of).collect();
            LayerMatrix::read(products, weights, &matrices, inner)
        };
        let (c, f, q) = (config.hidden, config.intermediate, config.heads * config.head_dim);
        Ok(Self {
            qkv: join(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], c)?,
            output: join(&["self_attn.o_proj"], q)?,
            gate_up: join(&["mlp.gate_proj", "mlp.up_proj"], c)?,
            down: join(&["mlp.down_proj"], f)?,
            bias: vectors(&BIASES)?,
            norms,
            query_norm,
            key_norm,
            window: config.windows[index],
        })
    }
}
