//! Layout of the weights in one flat vector by Hugging Face name, and their initialization.
//!
//! Weights, gradients and both optimizer moments are such vectors. Projections of the same input are adjacent, so that
//! one product computes all of them without a copy.

use std::ops::Range;

use rand_mt::Mt64;

use ghostlab_core::model::Config;
use ghostlab_core::model::architecture::QueryKeyNorm;

/// Kind of a weight, which determines its initialization and weight decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    Embedding,
    Norm,
    Matrix,
    /// Matrix whose product is added to the residual stream.
    Residual,
}

impl ParameterKind {
    /// Whether weight decay applies.
    pub fn decays(self) -> bool {
        matches!(self, Self::Matrix | Self::Residual)
    }
}

#[derive(Debug, Clone)]
pub struct Parameter {
    pub name: String,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
    pub kind: ParameterKind,
}

/// Ranges of the weights of one decoder layer.
#[derive(Debug, Clone)]
pub(super) struct LayerPlaces {
    /// Queries, keys and values, `[(H + 2K)·D, C]`.
    pub(super) qkv: Range<usize>,
    /// `[C, H·D]`
    pub(super) output: Range<usize>,
    /// Gate and up, `[2F, C]`.
    pub(super) gate_up: Range<usize>,
    /// `[C, F]`
    pub(super) down: Range<usize>,
    /// Norms before and after attention, and before and after the MLP, each `[C]`.
    pub(super) norms: [Option<Range<usize>>; 4],
    pub(super) query_norm: Option<Range<usize>>,
    pub(super) key_norm: Option<Range<usize>>,
}

/// Layout of all weights of a backbone.
#[derive(Debug, Clone)]
pub struct Parameters {
    pub list: Vec<Parameter>,
    pub total: usize,
    pub(super) layers: Vec<LayerPlaces>,
    /// `[vocab, C]`
    pub(super) embedding: Range<usize>,
    pub(super) final_norm: Range<usize>,
    /// `[vocab, C]`; equals `embedding` if tied.
    pub(super) head: Range<usize>,
}

struct Builder {
    list: Vec<Parameter>,
    total: usize,
}

impl Builder {
    fn put(&mut self, name: String, shape: &[usize], kind: ParameterKind) -> Range<usize> {
        let range = self.total..self.total + shape.iter().product::<usize>();
        self.total = range.end;
        self.list.push(Parameter { name, shape: shape.to_vec(), range: range.clone(), kind });
        range
    }
}

impl Parameters {
    /// Creates the layout for an architecture.
    pub fn of(config: &Config) -> Self {
        let c = config.hidden;
        let f = config.intermediate;
        let q = config.heads * config.head_dim;
        let kv = config.kv_heads * config.head_dim;
        let mut to = Builder { list: Vec::new(), total: 0 };
        let embedding = to.put("model.embed_tokens.weight".into(), &[config.vocab, c], ParameterKind::Embedding);
        let layers = (0..config.layers)
            .map(|index| {
                let name = |part: &str| format!("model.layers.{index}.{part}.weight");
                let mut put = |part: &str, shape: &[usize], kind| to.put(name(part), shape, kind);
                let qkv = join(&[
                    put("self_attn.q_proj", &[q, c], ParameterKind::Matrix),
                    put("self_attn.k_proj", &[kv, c], ParameterKind::Matrix),
                    put("self_attn.v_proj", &[kv, c], ParameterKind::Matrix),
                ]);
                let output = put("self_attn.o_proj", &[c, q], ParameterKind::Residual);
                let gate_up = join(&[
                    put("mlp.gate_proj", &[f, c], ParameterKind::Matrix),
                    put("mlp.up_proj", &[f, c], ParameterKind::Matrix),
                ]);
                let down = put("mlp.down_proj", &[c, f], ParameterKind::Residual);
                let norms = config.architecture.norms.map(|part| part.map(|part| put(part, &[c], ParameterKind::Norm)));
                let widths = match config.architecture.query_key_norm {
                    QueryKeyNorm::None => None,
                    QueryKeyNorm::PerHead => Some((config.head_dim, config.head_dim)),
                    QueryKeyNorm::WholeProjection => Some((q, kv)),
                };
                let query_norm = widths.map(|(width, _)| put("self_attn.q_norm", &[width], ParameterKind::Norm));
                let key_norm = widths.map(|(_, width)| put("self_attn.k_norm", &[width], ParameterKind::Norm));
                LayerPlaces { qkv, output, gate_up, down, norms, query_norm, key_norm }
            })
            .collect();
        let final_norm = to.put("model.norm.weight".into(), &[c], ParameterKind::Norm);
        let head = if config.tied_embeddings {
            embedding.clone()
        } else {
            to.put("lm_head.weight".into(), &[config.vocab, c], ParameterKind::Matrix)
        };
        Self { list: to.list, total: to.total, layers, embedding, final_norm, head }
    }

    /// Returns the standard deviation of a kind's initial values; `None` for norms, which start at 1. It is 0.02,
    /// divided by `sqrt(2L)` for residual matrices, so that the stream does not grow with the depth.
    pub fn deviation(&self, kind: ParameterKind) -> Option<f64> {
        match kind {
            ParameterKind::Norm => None,
            ParameterKind::Embedding | ParameterKind::Matrix => Some(0.02),
            ParameterKind::Residual => Some(0.02 / (2.0 * self.layers.len() as f64).sqrt()),
        }
    }

    /// Returns the initial weights, drawn from normal distributions with the deviation of their kind.
    pub fn start(&self, seed: u64) -> Vec<f32> {
        let mut random = Mt64::new(seed);
        let mut values = Vec::with_capacity(self.total);
        for parameter in &self.list {
            match self.deviation(parameter.kind) {
                None => values.resize(parameter.range.end, 1.0),
                Some(deviation) => {
                    values.extend(parameter.range.clone().map(|_| (normal(&mut random) * deviation) as f32));
                }
            }
        }
        values
    }
}

/// Returns the range that covers adjacent ranges.
fn join(parts: &[Range<usize>]) -> Range<usize> {
    let start = parts.iter().map(|part| part.start).min().unwrap_or(0);
    let end = parts.iter().map(|part| part.end).max().unwrap_or(0);
    start..end
}

/// Draws from the standard normal distribution (Box–Muller).
fn normal(random: &mut Mt64) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(random)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(random)).cos()
}

/// Draws a number in `[0, 1)` from 53 random bits.
fn uniform(random: &mut Mt64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
