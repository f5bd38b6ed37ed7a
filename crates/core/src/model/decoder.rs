//! The decoder: one description of Llama, Qwen3 and OLMo-2, run step by step.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;

use super::batch::{Batch, Prediction};
use super::config::Config;
use super::kernels::{self, Heads, Norm};
use super::program::{Matrix, Operator, Step, Sublayer};
use super::rope::Rotary;
use super::slice::{elements, tensor};
use super::tensors::{EMBEDDING, FINAL_NORM, HEAD, KEY_NORM, QUERY_NORM, checked, name, parts};
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

/// How far a half of a layer is computed.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// Its last projection.
    Projection,
    /// Its branch: the projection, and the norm after it where there is one.
    Branch,
    /// The stream with the branch added.
    Stream,
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
        let weights = checked(&config, folder)?;
        let (c, vocab) = (config.hidden, config.vocab);
        let embedding = tensor(weights.take(EMBEDDING, &[vocab, c])?, &[vocab, c])?;
        let layers = (0..config.layers).map(|l| Layer::read(&config, &weights, l)).collect::<Result<Vec<_>>>()?;
        let final_norm = tensor(weights.take(FINAL_NORM, &[c])?, &[c])?;
        let head = if config.tied_embeddings { EMBEDDING } else { HEAD };
        let head = tensor(weights.transposed(&[(head, vocab)], c)?, &[c, vocab])?;
        let rotary = Arc::new(Rotary::new(&config.rope, config.head_dim));
        Ok(Self { embedding, layers, final_norm, head, rotary, config })
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
    /// Weights that are not changed are shared with `self`. A diagonal goes into the output rows of the half's last
    /// projection, before a norm where the branch ends in one.
    ///
    /// # Errors
    /// A dense operator on a branch that ends in a norm: no weight can take it in.
    pub fn folded(&self, half: Sublayer, layer: usize, operator: &Operator) -> Result<Self> {
        let mut folded = self.clone();
        let weights = &mut folded.layers[layer];
        if matches!(operator.matrix, Matrix::Dense(_)) && weights.norm_after(half).is_some() {
            return Err(Error::job("a dense map cannot be folded into a branch that ends in a norm")
                .at(format!("layer {layer}, {half:?}"))
                .hint("apply it as a step after the norm"));
        }
        let target = match half {
            Sublayer::Attention => &mut weights.output,
            Sublayer::Mlp => &mut weights.down,
        };
        let shape = target.dims().to_vec();
        let product = operator.apply(&elements(target)?)?;
        *target = tensor(product, &shape)?;
        Ok(folded)
    }

    /// One half of a layer, as far as is asked for.
    fn half(&self, half: Sublayer, layer: usize, batch: &Batch, x: &Tensor, end: End) -> Result<Tensor> {
        let weights = &self.layers[layer];
        match half {
            Sublayer::Attention => self.attention(weights, batch, x, end),
            Sublayer::Mlp => self.mlp(weights, batch, x, end),
        }
    }

    fn attention(&self, layer: &Layer, batch: &Batch, x: &Tensor, end: End) -> Result<Tensor> {
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
        let stream = (end == End::Stream).then_some(&*x);
        let after = after.filter(|_| end != End::Projection);
        let out = kernels::linear(&context, width, &elements(&layer.output)?, after, stream);
        tensor(out, &[batch.tokens(), c])
    }

    fn mlp(&self, layer: &Layer, batch: &Batch, x: &Tensor, end: End) -> Result<Tensor> {
        let c = self.config.hidden;
        let x = elements(x)?; // [tokens, C]
        let norms = [slices(layer.norms[2].as_ref())?, slices(layer.norms[3].as_ref())?];
        let [before, after] = [0, 1].map(|i| self.norm(norms[i].as_deref()));
        let stream = (end == End::Stream).then_some(&*x);
        let after = after.filter(|_| end != End::Projection);
        let out = kernels::mlp(&x, c, before, &elements(&layer.gate_up)?, &elements(&layer.down)?, after, stream);
        tensor(out, &[batch.tokens(), c])
    }

    /// `x + branch(x)·T`; a diagonal stands before a norm that the branch ends in, a dense map after it.
    fn edited(&self, half: Sublayer, layer: usize, operator: &Operator, batch: &Batch, x: &Tensor) -> Result<Tensor> {
        let last = slices(self.layers[layer].norm_after(half))?;
        let before = self.norm(last.as_deref()).filter(|_| matches!(operator.matrix, Matrix::Diagonal(_)));
        let end = if before.is_some() { End::Projection } else { End::Branch };
        let branch = self.half(half, layer, batch, x, end)?; // [tokens, C]
        let mut out = operator.apply(&elements(&branch)?)?;
        if let Some(norm) = before {
            kernels::norm(&mut out, norm);
        }
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
    type Residual = Tensor;
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
            Step::Attention(layer) => self.half(Sublayer::Attention, *layer, batch, x, End::Stream),
            Step::Mlp(layer) => self.half(Sublayer::Mlp, *layer, batch, x, End::Stream),
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
    /// The norm that a half's branch ends in.
    fn norm_after(&self, half: Sublayer) -> Option<&Tensor> {
        match half {
            Sublayer::Attention => self.norms[1].as_ref(),
            Sublayer::Mlp => self.norms[3].as_ref(),
        }
    }

    fn read(config: &Config, weights: &Weights, index: usize) -> Result<Self> {
        let parts = parts(config);
        let width = |part: &str| parts.iter().find(|(known, _)| *known == part).map(|(_, shape)| shape[0]);
        let norm = |part: &str| -> Result<Option<Tensor>> {
            let Some(width) = width(part) else { return Ok(None) };
            Ok(Some(tensor(weights.take(&name(index, part), &[width])?, &[width])?))
        };
        let (query_norm, key_norm) = (norm(QUERY_NORM)?, norm(KEY_NORM)?);
        let mut norms = [None, None, None, None];
        for (slot, part) in norms.iter_mut().zip(config.architecture.norms) {
            *slot = part.map(norm).transpose()?.flatten();
        }
        // Several projections of the same input side by side, as one `[inner, Σ outer]` matrix: one product instead of three.
        let join = |names: &[&str], inner: usize| {
            let of = |part: &&str| Some((name(index, part), width(part)?));
            let matrices: Vec<(String, usize)> = names.iter().filter_map(of).collect();
            let outer = matrices.iter().map(|(_, outer)| outer).sum();
            tensor(weights.transposed(&matrices, inner)?, &[inner, outer])
        };
        let (c, f, q) = (config.hidden, config.intermediate, config.heads * config.head_dim);
        Ok(Self {
            qkv: join(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], c)?,
            output: join(&["self_attn.o_proj"], q)?,
            gate_up: join(&["mlp.gate_proj", "mlp.up_proj"], c)?,
            down: join(&["mlp.down_proj"], f)?,
            norms,
            query_norm,
            key_norm,
        })
    }
}

fn slices(tensor: Option<&Tensor>) -> Result<Option<impl Deref<Target = [f32]> + Sync + '_>> {
    tensor.map(elements).transpose()
}
