//! The decoder: one description of Llama, Qwen3 and OLMo-2, run step by step.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;

use super::batch::{Batch, Prediction};
use super::config::{Config, QueryKeyNorm};
use super::kernels::{self, Heads, Norm};
use super::program::{Half, Matrix, Operator, Step};
use super::rope::Rotary;
use super::slice::{elements, tensor};
use super::trie::Model;
use super::weights::Weights;
use crate::error::{Error, Result};

/// A backbone's weights, ready to run. Linear weights stand as `[in, out]`: the layout in which the product is fastest.
#[derive(Clone)]
pub struct Decoder {
    config: Config,
    embedding: Tensor, // [vocab, C]
    layers: Vec<Layer>,
    final_norm: Tensor, // [C]
    head: Tensor,       // [C, vocab]
    rotary: Arc<Rotary>,
}

#[derive(Clone)]
struct Layer {
    /// Before and after attention, before and after the MLP; each `[C]`.
    norms: [Option<Tensor>; 4],
    qkv: Tensor, // [C, (H + 2K)·D]
    query_norm: Option<Tensor>,
    key_norm: Option<Tensor>,
    output: Tensor,  // [H·D, C]
    gate_up: Tensor, // [C, 2F]
    down: Tensor,    // [F, C]
}

impl Decoder {
    /// Reads a backbone's folder: config and weights.
    ///
    /// # Errors
    /// See [`Config::read`] and [`Weights`]: whatever is missing, misshapen, not finite or left over is named.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_with(Config::read(folder)?, folder)
    }

    /// Reads the weights of a folder under a config that was read before.
    pub fn load_with(config: Config, folder: &Path) -> Result<Self> {
        let mut weights = Weights::open(folder)?;
        let (c, vocab) = (config.hidden, config.vocab);
        let embedding = weights.take("model.embed_tokens.weight", &[vocab, c])?;
        let layers = (0..config.layers).map(|l| Layer::read(&config, &mut weights, l)).collect::<Result<Vec<_>>>()?;
        let final_norm = vector(&mut weights, "model.norm.weight", c)?;
        let head = if config.tied_embeddings {
            tensor(transpose(&[(&embedding, vocab)], c), &[c, vocab])?
        } else {
            matrix(&mut weights, &[("lm_head.weight", vocab)], c)?
        };
        let tied = config.tied_embeddings;
        // Files of a tied model may hold a copy of the embedding; old ones hold the rotary table.
        weights.finish(|name| (tied && name == "lm_head.weight") || name.ends_with("rotary_emb.inv_freq"))?;
        let rotary = Arc::new(Rotary::new(&config.rope, config.head_dim));
        Ok(Self { embedding: tensor(embedding, &[vocab, c])?, layers, final_norm, head, rotary, config })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Every logit of the given rows.
    ///
    /// # Shapes
    /// `state [tokens, C]`; result `[rows, vocab]`.
    pub fn logits(&self, state: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let (x, weight, norm) = (elements(state)?, elements(&self.head)?, elements(&self.final_norm)?);
        let norm = Norm { weight: &norm, eps: self.config.norm_eps };
        let logits = kernels::logits(&x, self.config.hidden, norm, &weight, rows);
        tensor(logits, &[rows.len(), self.config.vocab])
    }

    /// The backbone with `operator` multiplied into the weights that end a half of a layer: what [`Step::Edited`] stands for.
    ///
    /// Weights that are not changed are shared with `self`.
    ///
    /// # Errors
    /// A dense operator on a branch that ends in a norm: no weight can take it in.
    pub fn folded(&self, half: Half, layer: usize, operator: &Operator) -> Result<Self> {
        let mut folded = self.clone();
        let weights = &mut folded.layers[layer];
        let (after, last) = match half {
            Half::Attention => (&mut weights.norms[1], &mut weights.output),
            Half::Mlp => (&mut weights.norms[3], &mut weights.down),
        };
        let target = match (&operator.matrix, after) {
            // The norm's weight is itself a diagonal that the branch ends with.
            (Matrix::Diagonal(_), Some(norm)) => norm,
            (Matrix::Dense(_), Some(_)) => {
                return Err(Error::job("a dense map cannot be folded into a branch that ends in a norm")
                    .at(format!("layer {layer}, {half:?}"))
                    .hint("apply it as a step after the norm"));
            }
            (_, None) => last,
        };
        let shape = target.dims().to_vec();
        let product = operator.apply(&elements(target)?)?;
        *target = tensor(product, &shape)?;
        Ok(folded)
    }

    /// `x + branch(x)` of one half of a layer; the bare `branch(x)` where the stream is not added.
    fn half(&self, half: Half, layer: usize, batch: &Batch, x: &Tensor, add_stream: bool) -> Result<Tensor> {
        let weights = &self.layers[layer];
        match half {
            Half::Attention => self.attention(weights, batch, x, add_stream),
            Half::Mlp => self.mlp(weights, batch, x, add_stream),
        }
    }

    fn attention(&self, layer: &Layer, batch: &Batch, x: &Tensor, add_stream: bool) -> Result<Tensor> {
        let config = &self.config;
        let c = config.hidden;
        let x = elements(x)?; // [tokens, C]
        let norms = [slices(layer.norms[0].as_ref())?, slices(layer.norms[1].as_ref())?];
        let [before, after] = [0, 1].map(|i| self.norm(norms[i].as_deref()));
        let qkv = kernels::project(&x, c, before, &elements(&layer.qkv)?); // [tokens, (H + 2K)·D]
        let (query_norm, key_norm) = (slices(layer.query_norm.as_ref())?, slices(layer.key_norm.as_ref())?);
        let heads = Heads {
            queries: config.heads,
            keys: config.kv_heads,
            head_dim: config.head_dim,
            query_norm: self.norm(query_norm.as_deref()),
            key_norm: self.norm(key_norm.as_deref()),
        };
        let table = self.rotary.table(batch.longest());
        let context = kernels::attention(&qkv, &heads, batch, &table); // [tokens, H·D]
        let width = config.heads * config.head_dim;
        let stream = add_stream.then_some(&*x);
        let out = kernels::linear(&context, width, &elements(&layer.output)?, after, stream);
        tensor(out, &[batch.tokens(), c])
    }

    fn mlp(&self, layer: &Layer, batch: &Batch, x: &Tensor, add_stream: bool) -> Result<Tensor> {
        let c = self.config.hidden;
        let x = elements(x)?; // [tokens, C]
        let norms = [slices(layer.norms[2].as_ref())?, slices(layer.norms[3].as_ref())?];
        let [before, after] = [0, 1].map(|i| self.norm(norms[i].as_deref()));
        let stream = add_stream.then_some(&*x);
        let out = kernels::mlp(&x, c, before, &elements(&layer.gate_up)?, &elements(&layer.down)?, after, stream);
        tensor(out, &[batch.tokens(), c])
    }

    /// `x + branch(x)·T`
    fn edited(&self, half: Half, layer: usize, operator: &Operator, batch: &Batch, x: &Tensor) -> Result<Tensor> {
        let branch = self.half(half, layer, batch, x, false)?; // [tokens, C]
        let mut out = operator.apply(&elements(&branch)?)?;
        kernels::add(&mut out, &elements(x)?);
        tensor(out, &[batch.tokens(), self.config.hidden])
    }

    fn norm<'a>(&self, weight: Option<&'a [f32]>) -> Option<Norm<'a>> {
        weight.map(|weight| Norm { weight, eps: self.config.norm_eps })
    }
}

impl Model for Decoder {
    type Batch = Batch;
    /// The residual stream, `[tokens, C]`.
    type State = Tensor;
    /// One for each target of the batch.
    type Output = Vec<Prediction>;

    fn begin(&self, batch: &Batch) -> Result<Tensor> {
        let (c, table) = (self.config.hidden, elements(&self.embedding)?);
        let mut x = Vec::with_capacity(batch.tokens() * c);
        for &id in &batch.ids {
            let start = id as usize * c;
            let row = table.get(start..start + c).ok_or_else(|| {
                Error::bad_input("a token id exceeds the embedding")
                    .expected(format!("ids below {}", self.config.vocab))
                    .found(id.to_string())
                    .hint("the tokenizer is of another model")
            })?;
            x.extend_from_slice(row);
        }
        tensor(x, &[batch.tokens(), c])
    }

    fn advance(&self, batch: &Batch, step: &Step, x: &Tensor) -> Result<Tensor> {
        match step {
            Step::Attention(layer) => self.half(Half::Attention, *layer, batch, x, true),
            Step::Mlp(layer) => self.half(Half::Mlp, *layer, batch, x, true),
            Step::Edited(half, layer, operator) => self.edited(*half, *layer, operator, batch, x),
            Step::Apply(operator) => tensor(operator.apply(&elements(x)?)?, &[batch.tokens(), self.config.hidden]),
            Step::Embed | Step::Head => Err(Error::job("a program has an embedding or a head in its middle")),
        }
    }

    fn finish(&self, batch: &Batch, x: &Tensor) -> Result<Vec<Prediction>> {
        let (x, weight, norm) = (elements(x)?, elements(&self.head)?, elements(&self.final_norm)?);
        let norm = Norm { weight: &norm, eps: self.config.norm_eps };
        Ok(kernels::predictions(&x, self.config.hidden, norm, &weight, &batch.targets))
    }
}

impl Layer {
    fn read(config: &Config, weights: &mut Weights, index: usize) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{index}.{part}.weight");
        let (c, f) = (config.hidden, config.intermediate);
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let (query_width, key_width) = match config.layout.query_key_norm {
            QueryKeyNorm::None => (None, None),
            QueryKeyNorm::PerHead => (Some(config.head_dim), Some(config.head_dim)),
            QueryKeyNorm::WholeProjection => (Some(q), Some(kv)),
        };
        let mut norm = |part: &str, width: Option<usize>| width.map(|w| vector(weights, &name(part), w)).transpose();
        let query_norm = norm("self_attn.q_norm", query_width)?;
        let key_norm = norm("self_attn.k_norm", key_width)?;
        let mut norms = [None, None, None, None];
        for (slot, part) in norms.iter_mut().zip(config.layout.norms) {
            *slot = part.map(|part| norm(part, Some(c))).transpose()?.flatten();
        }
        let mut join = |parts: &[(&str, usize)], inner: usize| {
            let names: Vec<(String, usize)> = parts.iter().map(|(part, outer)| (name(part), *outer)).collect();
            let names: Vec<(&str, usize)> = names.iter().map(|(name, outer)| (name.as_str(), *outer)).collect();
            matrix(weights, &names, inner)
        };
        Ok(Self {
            qkv: join(&[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)], c)?,
            output: join(&[("self_attn.o_proj", c)], q)?,
            gate_up: join(&[("mlp.gate_proj", f), ("mlp.up_proj", f)], c)?,
            down: join(&[("mlp.down_proj", c)], f)?,
            norms,
            query_norm,
            key_norm,
        })
    }
}

fn vector(weights: &mut Weights, name: &str, width: usize) -> Result<Tensor> {
    tensor(weights.take(name, &[width])?, &[width])
}

/// Several projections of the same input side by side, as one `[inner, Σ outer]` matrix: one product instead of three.
fn matrix(weights: &mut Weights, parts: &[(&str, usize)], inner: usize) -> Result<Tensor> {
    let stored =
        parts.iter().map(|(name, outer)| weights.take(name, &[*outer, inner])).collect::<Result<Vec<Vec<f32>>>>()?;
    let outer = parts.iter().map(|(_, outer)| outer).sum();
    let joined: Vec<(&Vec<f32>, usize)> = stored.iter().zip(parts).map(|(data, (_, outer))| (data, *outer)).collect();
    tensor(transpose(&joined, inner), &[inner, outer])
}

/// Stored `[outer, inner]` matrices to one `[inner, Σ outer]`.
fn transpose(parts: &[(&Vec<f32>, usize)], inner: usize) -> Vec<f32> {
    let total: usize = parts.iter().map(|(_, outer)| outer).sum();
    let mut out = vec![0.0; inner * total];
    let mut first = 0;
    for (data, outer) in parts {
        for (row, values) in data.chunks_exact(inner).enumerate() {
            for (column, &value) in values.iter().enumerate() {
                out[column * total + first + row] = value;
            }
        }
        first += outer;
    }
    out
}

fn slices(tensor: Option<&Tensor>) -> Result<Option<impl Deref<Target = [f32]> + Sync + '_>> {
    tensor.map(elements).transpose()
}
