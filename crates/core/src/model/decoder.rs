//! The decoder: one description of every architecture in the registry, run step by step.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;

use super::batch::{Batch, Prediction};
use super::config::Config;
use super::decoding::{Cached, Past};
use super::kernels::{self, Heads, KeyValues, Norm, Scratch, SeenRun};
use super::matrix::{LayerMatrix, Products};
use super::operator::Operator;
use super::parts::{Layer, Parts};
use super::passes::Passes;
use super::program::{Step, Sublayer};
use super::rope::Rotary;
use super::slice::{elements, tensor};
use super::tensor_name::FINAL_NORM;
use super::tensors::checked;
use super::trie::Model;
use crate::error::{Error, Result};
use crate::linalg::panels::Panels;

/// A backbone's weights, ready to run.
#[derive(Clone)]
pub struct Decoder {
    config: Config,
    products: Products,
    parts: Parts,
    final_norm: Tensor, // [C]
    rotary: Arc<Rotary>,
    /// Where weights are made by need.
    passes: Option<Arc<Passes>>,
}

/// How the rows of a stream see each other, and what was before them.
trait Seen {
    /// # Shapes
    /// `qkv [tokens, (H + 2K)·D]`; result `[tokens, H·D]`.
    fn attention(&self, qkv: &[f32], heads: &Heads<'_>, rotary: &Rotary) -> Result<Scratch>;
}

impl Seen for Batch {
    fn attention(&self, qkv: &[f32], heads: &Heads<'_>, rotary: &Rotary) -> Result<Scratch> {
        Ok(kernels::attention(qkv, heads, self, &rotary.table(self.longest())))
    }
}

impl Seen for Past<'_, KeyValues> {
    fn attention(&self, qkv: &[f32], heads: &Heads<'_>, rotary: &Rotary) -> Result<Scratch> {
        let positions = self.positions();
        let table = rotary.table(positions.iter().max().map_or(0, |last| last + 1));
        let rotated = kernels::rotate(qkv, heads, &positions, &table);
        let mut blocks = self.blocks.borrow_mut();
        for of in &self.runs {
            let fresh = || KeyValues::with_room(of.run.room, heads.keys * heads.head_dim);
            let block = blocks.entry(of.run.block).or_insert_with(fresh);
            kernels::keep(block, &rotated, qkv, heads, of.rows.clone());
        }
        let seen = self.runs.iter().map(|of| {
            let own = of.first + of.rows.len() - of.run.before.iter().map(|(_, tokens)| tokens).sum::<usize>();
            let chain = of.run.before.iter().copied().chain([(of.run.block, own)]);
            let block = |(id, tokens)| blocks.get(&id).map(|block| (block, tokens));
            let chain: Option<Vec<_>> = chain.map(block).collect();
            let blocks = chain.ok_or_else(|| Error::job("a sequence continues what is not in the cache"))?;
            Ok(SeenRun { rows: of.rows.clone(), first: of.first, blocks })
        });
        let seen: Vec<SeenRun<'_>> = seen.collect::<Result<_>>()?;
        Ok(kernels::attention_over(&rotated, heads, &seen))
    }
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
    /// See [`Config::read`] and [`super::check_weights`]: whatever is missing, misshapen, not finite or left over is
    /// named.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_with(Config::read(folder)?, folder)
    }

    /// Reads the weights of a folder under a config that was read before.
    pub fn load_with(config: Config, folder: &Path) -> Result<Self> {
        Self::load_within(config, folder, Products::F32, u64::MAX)
    }

    /// As [`Self::load_with`], with the products of the layers and of the output projection in that type, and `budget` bytes of memory: where the weights are more, each layer and the head are made
    /// from the weight files when a step needs them, the next one while the one before computes, and the one goes that is
    /// needed last. Rows of the embedding are read when they are asked for. A part of the budget is for streams, so that
    /// more than one batch goes through the layers together. Results do not depend on the budget.
    ///
    /// # Errors
    /// Of weights that are made by need, a number that is not finite is found when it is used, as is a file that changed.
    pub fn load_within(config: Config, folder: &Path, products: Products, budget: u64) -> Result<Self> {
        let weights = checked(&config, folder)?;
        let final_norm = tensor(weights.take(FINAL_NORM, &[config.hidden])?, &[config.hidden])?;
        let (weights_budget, streams) = config.divided(products, budget);
        let parts = Parts::new(&config, products, weights, weights_budget)?;
        let passes = (!parts.kept()).then(|| Arc::new(Passes::new(streams, config.hidden)));
        let rotary = Arc::new(Rotary::new(&config.rope, config.head_dim));
        Ok(Self { products, parts, final_norm, rotary, passes, config })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What products with weights are computed in.
    pub(super) fn products(&self) -> Products {
        self.products
    }

    /// How long passes are; none where all weights are in memory.
    pub(super) fn passes(&self) -> Option<&Passes> {
        self.passes.as_deref()
    }

    /// Seconds in which weights were made by need.
    pub(super) fn seconds_making(&self) -> f64 {
        self.parts.seconds_making()
    }

    /// Every logit of the given rows.
    ///
    /// # Shapes
    /// `state [tokens, C]`; result `[rows, vocab]`.
    pub fn logits(&self, state: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let head = self.parts.get(self.config.layers)?;
        let (x, norm) = (elements(state)?, elements(&self.final_norm)?);
        let norm = Norm { weight: &norm, eps: self.config.norm_eps };
        let logits = match head.head()? {
            LayerMatrix::F32(weight) => kernels::logits(&x, self.config.hidden, norm, weight, rows),
            LayerMatrix::Bf16(weight) => kernels::logits(&x, self.config.hidden, norm, weight, rows),
        };
        tensor(logits, &[rows.len(), self.config.vocab])
    }

    /// The backbone with `operator` multiplied into the weights that end a half of a layer: what [`Step::Edited`] stands for.
    ///
    /// Weights that are not changed are shared with `self`. A diagonal goes into the output rows of the half's last
    /// projection, before a norm where the branch ends in one.
    ///
    /// # Errors
    /// A dense operator on a branch that ends in a norm, or one with a bias: no weight can take it in. Weights that are made
    /// by need, or are in bf16.
    pub fn folded(&self, half: Sublayer, layer: usize, operator: &Operator) -> Result<Self> {
        let mut weights = self.parts.get(layer)?.layer()?.clone();
        if operator.bias.is_some() {
            return Err(Error::job("a map with a bias cannot be folded: the projection has none")
                .at(format!("layer {layer}, {half:?}"))
                .hint("apply it as a step of its own"));
        }
        if !operator.is_diagonal() && weights.norm_after(half).is_some() {
            return Err(Error::job("a dense map cannot be folded into a branch that ends in a norm")
                .at(format!("layer {layer}, {half:?}"))
                .hint("apply it as a step after the norm"));
        }
        let target = match half {
            Sublayer::Attention => &mut weights.output,
            Sublayer::Mlp => &mut weights.down,
        };
        let LayerMatrix::F32(target) = target else {
            return Err(Error::job("weights in bf16 cannot be changed").at(format!("layer {layer}, {half:?}")));
        };
        let columns = target.outer();
        let product = operator.apply(&target.to_rows())?;
        *target = Arc::new(Panels::of_rows(&product, product.len() / columns, columns));
        let mut folded = self.clone();
        folded.parts.replace(layer, weights)?;
        Ok(folded)
    }

    /// One half of a layer, as far as is asked for.
    fn half(&self, half: Sublayer, weights: &Layer, seen: &dyn Seen, x: &Tensor, end: End) -> Result<Tensor> {
        match half {
            Sublayer::Attention => self.attention(weights, seen, x, end),
            Sublayer::Mlp => self.mlp(weights, x, end),
        }
    }

    fn attention(&self, layer: &Layer, seen: &dyn Seen, x: &Tensor, end: End) -> Result<Tensor> {
        let config = &self.config;
        let c = config.hidden;
        let x = elements(x)?; // [tokens, C]
        let norms = [slices(layer.norms[0].as_ref())?, slices(layer.norms[1].as_ref())?];
        let [before, after] = [0, 1].map(|i| self.norm(norms[i].as_deref()));
        let bias = slices(layer.bias.as_ref())?;
        let qkv = kernels::project(&x, c, before, layer.qkv.weight(), bias.as_deref()); // [tokens, (H + 2K)·D]
        let (query_norm, key_norm) = (slices(layer.query_norm.as_ref())?, slices(layer.key_norm.as_ref())?);
        let heads = Heads {
            queries: config.heads,
            keys: config.kv_heads,
            head_dim: config.head_dim,
            query_norm: self.norm(query_norm.as_deref()),
            key_norm: self.norm(key_norm.as_deref()),
            window: layer.window.unwrap_or(usize::MAX),
        };
        let context = seen.attention(&qkv, &heads, &self.rotary)?; // [tokens, H·D]
        let width = config.heads * config.head_dim;
        let stream = (end == End::Stream).then_some(&*x);
        let after = after.filter(|_| end != End::Projection);
        let out = kernels::linear(&context, width, layer.output.weight(), after, stream);
        tensor(out, &[x.len() / c, c])
    }

    fn mlp(&self, layer: &Layer, x: &Tensor, end: End) -> Result<Tensor> {
        let c = self.config.hidden;
        let x = elements(x)?; // [tokens, C]
        let norms = [slices(layer.norms[2].as_ref())?, slices(layer.norms[3].as_ref())?];
        let [before, after] = [0, 1].map(|i| self.norm(norms[i].as_deref()));
        let stream = (end == End::Stream).then_some(&*x);
        let after = after.filter(|_| end != End::Projection);
        let (gate_up, down) = (layer.gate_up.weight(), layer.down.weight());
        let out = kernels::mlp(&x, c, before, gate_up, down, after, stream);
        tensor(out, &[x.len() / c, c])
    }

    /// `x + branch(x)·T`; a diagonal stands before a norm that the branch ends in, a dense map after it.
    fn edited(&self, half: Sublayer, layer: usize, operator: &Operator, seen: &dyn Seen, x: &Tensor) -> Result<Tensor> {
        let part = self.parts.get(layer)?;
        let layer = part.layer()?;
        let last = slices(layer.norm_after(half))?;
        let before = self.norm(last.as_deref()).filter(|_| operator.is_diagonal());
        let end = if before.is_some() { End::Projection } else { End::Branch };
        let branch = self.half(half, layer, seen, x, end)?; // [tokens, C]
        let mut out = operator.apply(&elements(&branch)?)?;
        if let Some(norm) = before {
            kernels::norm(&mut out, norm);
        }
        kernels::add(&mut out, &elements(x)?);
        tensor(out, x.dims())
    }

    fn step_of(&self, step: &Step, seen: &dyn Seen, x: &Tensor) -> Result<Tensor> {
        match step {
            Step::Attention(layer) => {
                self.half(Sublayer::Attention, self.parts.get(*layer)?.layer()?, seen, x, End::Stream)
            }
            Step::Mlp(layer) => self.half(Sublayer::Mlp, self.parts.get(*layer)?.layer()?, seen, x, End::Stream),
            Step::Edited(half, layer, operator) => self.edited(*half, *layer, operator, seen, x),
            Step::Apply(operator) => tensor(operator.apply(&elements(x)?)?, x.dims()),
            Step::Embed | Step::Head => Err(Error::job("a program has an embedding or a head in its middle")),
        }
    }

    fn norm<'a>(&self, weight: Option<&'a [f32]>) -> Option<Norm<'a>> {
        weight.map(|weight| Norm { weight, eps: self.config.norm_eps })
    }
}

impl Model for Decoder {
    type Batch = Batch;
    /// The residual stream, `[tokens, C]`; narrowed, `[scored rows, C]`.
    type Residual = Tensor;
    /// One for each target of the batch.
    type Output = Vec<Prediction>;

    fn expect(&self, now: Option<usize>, next: Option<usize>) {
        self.parts.expect(&self.config, now, next);
    }

    fn begin(&self, batch: &Batch) -> Result<Tensor> {
        batch.check_ids(self.config.vocab)?;
        tensor(self.parts.embeddings(&self.config, &batch.ids)?, &[batch.tokens(), self.config.hidden])
    }

    fn advance(&self, batch: &Batch, step: &Step, x: &Tensor) -> Result<Tensor> {
        self.step_of(step, batch, x)
    }

    fn narrow(&self, batch: &Batch, x: Tensor) -> Result<Tensor> {
        let Some(rows) = batch.scored_rows() else { return Ok(x) };
        let c = self.config.hidden;
        let all = elements(&x)?;
        let scored = rows.iter().flat_map(|&row| &all[row * c..(row + 1) * c]).copied().collect();
        tensor(scored, &[rows.len(), c])
    }

    fn finish(&self, batch: &Batch, x: &Tensor) -> Result<Vec<Prediction>> {
        let head = self.parts.get(self.config.layers)?;
        let targets = batch.targets_among(x.dim(0)?);
        let (x, norm) = (elements(x)?, elements(&self.final_norm)?);
        let norm = Norm { weight: &norm, eps: self.config.norm_eps };
        Ok(match head.head()? {
            LayerMatrix::F32(weight) => kernels::predictions(&x, self.config.hidden, norm, weight, &targets),
            LayerMatrix::Bf16(weight) => kernels::predictions(&x, self.config.hidden, norm, weight, &targets),
        })
    }
}

impl Cached for Decoder {
    type Block = KeyValues;

    fn expect(&self, now: Option<usize>, next: Option<usize>) {
        Model::expect(self, now, next);
    }

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        let mut batch = Batch::default();
        batch.push(ids, None);
        self.begin(&batch)
    }

    fn step(&self, step: &Step, x: &Tensor, past: &Past<'_, KeyValues>) -> Result<Tensor> {
        self.step_of(step, past, x)
    }

    fn head(&self, x: &Tensor) -> Result<Vec<f32>> {
        let rows: Vec<usize> = (0..x.dim(0)?).collect();
        let logits = self.logits(x, &rows)?;
        Ok(elements(&logits)?.to_vec())
    }

    /// In f32 whatever the products are computed in, as the forward pass's attention is.
    fn key_value_bytes(&self) -> u64 {
        8 * (self.config.kv_heads * self.config.head_dim) as u64
    }
}

fn slices(tensor: Option<&Tensor>) -> Result<Option<impl Deref<Target = [f32]> + Sync + '_>> {
    tensor.map(elements).transpose()
}
