//! Decoder that runs the steps of all architectures in the registry.

mod cached;
mod cpu_engine;

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use ghostlab_kernels::forward::{
    self as kernels, AttentionParams, HeadParams, Linear, Norm, PackedWeights, Scratch, Weight,
};

use super::batch::{Batch, Divergence, Prediction};
use super::batching::PassPlanner;
use super::compare::Compare;
use super::config::Config;
use super::merged_layer::MergedLayerCache;
use super::operator::Operator;
use super::products::Products;
use super::program::Step;
use super::rope::{Rotaries, Rotary};
use super::slice::{elements, tensor};
use super::sublayer::{Sublayer, SublayerOutput};
use super::tensor_name::FINAL_NORM;
use super::tensors::{self, open_checked_weights};
use super::trie::Model;
use super::weight_cache::{GatedMlp, Layer, Mlp, ModelPart, WeightCache};
use crate::error::{Error, Result};
use crate::linalg::panels::Panels;

/// Loaded backbone of the CPU engine.
#[derive(Clone)]
pub struct Decoder {
    config: Config,
    products: Products,
    weight_cache: WeightCache,
    final_norm: Vec<f32>, // [C]
    rotaries: Arc<Rotaries>,
    merged: Arc<MergedLayerCache<ModelPart>>,
    /// Planner for the number of tokens per pass. `None` if all weights are in memory.
    pass_planner: Option<Arc<PassPlanner>>,
}

/// Keys and values that new rows attend to: their own and, during decoding, those in the KV cache.
trait AttentionContext {
    /// Computes the attention output of each row.
    ///
    /// # Shapes
    /// `qkv [tokens, (H + 2K)·D]`; result `[tokens, H·D]`.
    fn attention(&self, qkv: &[f32], params: &AttentionParams<'_>, rotary: &Rotary) -> Result<Scratch>;
}

impl AttentionContext for Batch {
    fn attention(&self, qkv: &[f32], params: &AttentionParams<'_>, rotary: &Rotary) -> Result<Scratch> {
        let (table, table_rows) = rotary.batch_table(self)?;
        let rotated = kernels::prepare_queries_and_keys(qkv, params, &table_rows, &table);
        Ok(kernels::attention(qkv, &rotated, params, self.kernel_segments()))
    }
}

impl Decoder {
    /// Loads the config and the weights from a backbone folder.
    ///
    /// # Errors
    /// Fails if the config or weights are missing, malformed, non-finite or incomplete, or if there are extra weights.
    /// See [`Config::read`] and [`super::check_weights`].
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_with(Config::read(folder)?, folder)
    }

    /// Loads the weights from a folder, using the given config.
    pub fn load_with(config: Config, folder: &Path) -> Result<Self> {
        Self::load_within(config, folder, Products::F32, u64::MAX)
    }

    /// Loads a backbone like [`Self::load_with`], within `budget` bytes. If the weights exceed the budget, the layers,
    /// the head and embedding rows are read from the files on demand. The next layer is prefetched, and the weights
    /// whose next use is furthest away are evicted. Part of the budget is reserved for residual streams, so that
    /// several batches can share a pass over the layers. Results do not depend on the budget.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::load_with`]. If weights are loaded on demand, non-finite values and changed
    /// files are detected only when they are used.
    pub fn load_within(config: Config, folder: &Path, products: Products, budget: u64) -> Result<Self> {
        let weights = open_checked_weights(&config, folder)?;
        let final_norm = tensors::read_norm(&config, &weights, FINAL_NORM, &[config.hidden])?;
        let (weights_budget, streams) = config.split_budget(products, budget);
        let weight_cache = WeightCache::new(&config, products, weights, weights_budget)?;
        let pass_planner = (!weight_cache.keeps_all()).then(|| Arc::new(PassPlanner::new(streams, config.hidden)));
        let rotaries = Arc::new(Rotaries::new(&config));
        Ok(Self { products, weight_cache, final_norm, rotaries, merged: Arc::default(), pass_planner, config })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Computes the logits for the given rows.
    ///
    /// # Shapes
    /// `state [tokens, C]`; result `[rows, vocab]`.
    pub fn logits(&self, state: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let head = self.weight_cache.head(&self.config)?;
        let x = elements(state)?;
        let logits = kernels::logits(&x, self.config.hidden, self.head_params(), head.head()?, rows);
        tensor(logits, &[rows.len(), self.config.vocab])
    }

    /// Returns the backbone with `operator` folded into the last projection of a sublayer, which is equivalent to
    /// [`Step::Edited`].
    ///
    /// Unchanged weights are shared with `self`. The operator transforms the outputs of the projection, including its
    /// bias, before the norm at the end of the branch if there is one. If the MLP has experts, the operator is folded
    /// into each of them (see `experts.rs`).
    ///
    /// # Errors
    /// Fails if the operator has a bias or norm, or is dense while the branch ends in a norm, because no weight can
    /// absorb it. Also fails if the weights are loaded on demand, or the matrix products are not f32.
    pub fn folded(&self, sublayer: Sublayer, layer: usize, operator: &Operator) -> Result<Self> {
        let mut weights = self.weight_cache.layer(&self.config, layer)?.layer()?.clone();
        if !operator.is_linear() {
            return Err(Error::job("an operator with a bias or a norm cannot be folded into a projection")
                .at(format!("layer {layer}, {sublayer:?}"))
                .hint("apply it as a separate step"));
        }
        if !operator.is_diagonal() && weights.norm_after(sublayer).is_some() {
            return Err(Error::job("a dense operator cannot be folded into a branch that ends in a norm")
                .at(format!("layer {layer}, {sublayer:?}"))
                .hint("apply it as a step after the norm"));
        }
        let fold = |matrix: &mut PackedWeights, bias: &mut Option<Vec<f32>>| -> Result<()> {
            let PackedWeights::F32(matrix) = matrix else {
                return Err(Error::job("an operator can only be folded into f32 weights")
                    .at(format!("layer {layer}, {sublayer:?}")));
            };
            let columns = matrix.outer();
            let product = operator.apply(&matrix.to_rows())?;
            *matrix = Arc::new(Panels::from_rows(&product, product.len() / columns, columns));
            if let Some(bias) = bias {
                *bias = operator.apply(bias)?;
            }
            Ok(())
        };
        let mut folded = Self { merged: Arc::default(), ..self.clone() };
        match (sublayer, &mut weights.mlp) {
            (Sublayer::Attention, _) => fold(&mut weights.output, &mut weights.output_bias)?,
            (Sublayer::Mlp, Mlp::Dense(mlp)) => fold(&mut mlp.down, &mut mlp.down_bias)?,
            (Sublayer::Mlp, Mlp::Experts(_)) => {
                for number in 0..self.config.experts.map_or(0, |experts| experts.count) {
                    let mut expert = self.weight_cache.expert(&self.config, layer, number)?.expert()?.clone();
                    fold(&mut expert.down, &mut expert.down_bias)?;
                    folded
                        .weight_cache
                        .replace(self.config.layer_part(layer) + 1 + number, ModelPart::Expert(expert))?;
                }
                return Ok(folded);
            }
        }
        folded.weight_cache.replace(self.config.layer_part(layer), ModelPart::Layer(Box::new(weights)))?;
        Ok(folded)
    }

    /// Runs a sublayer with the weights of `layer` up to the stage `end`.
    fn run_sublayer(
        &self,
        sublayer: Sublayer,
        layer: &Layer,
        attended: &dyn AttentionContext,
        x: &Tensor,
        end: SublayerOutput,
    ) -> Result<Tensor> {
        let values = elements(x)?; // [tokens, C]
        let [before, after] = sublayer.norms().map(|index| self.norm(layer.norms[index].as_deref()));
        let after = after.filter(|_| end != SublayerOutput::Projection);
        let stream = (end == SublayerOutput::Stream).then_some(&*values);
        let out = match (sublayer, &layer.mlp) {
            (Sublayer::Attention, _) => {
                let context = self.run_attention(layer, attended, &values, before)?; // [tokens, H·D]
                let output = linear(&layer.output, layer.output_bias.as_deref());
                kernels::linear(&context, self.config.heads * self.config.head_dim, output, after, stream)
            }
            (Sublayer::Mlp, Mlp::Dense(mlp)) => self.run_gated_mlp(mlp, &values, before, after, stream),
            (Sublayer::Mlp, Mlp::Experts(router)) => {
                let mut out = self.run_experts(router, layer.index, &values, before)?;
                if let Some(norm) = after {
                    kernels::apply_norm(&mut out, norm);
                }
                if let Some(stream) = stream {
                    kernels::add_assign(&mut out, stream);
                }
                out
            }
        };
        tensor(out, x.dims())
    }

    /// Computes attention before the output projection.
    ///
    /// # Shapes
    /// `x [tokens, C]`; result `[tokens, H·D]`.
    fn run_attention(
        &self,
        layer: &Layer,
        attended: &dyn AttentionContext,
        x: &[f32],
        before: Option<Norm<'_>>,
    ) -> Result<Scratch> {
        let config = &self.config;
        let inputs = linear(&layer.qkv, layer.bias.as_deref());
        let qkv = kernels::norm_linear(x, config.hidden, before, inputs); // [tokens, (H + 2K)·D]
        let params = AttentionParams {
            query_heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            query_norm: self.norm(layer.query_norm.as_deref()),
            key_norm: self.norm(layer.key_norm.as_deref()),
            window: layer.window.unwrap_or(usize::MAX),
            scale: config.scale,
            cap: config.score_cap,
            bf16_kernels: self.products.bf16_kernels(),
        };
        attended.attention(&qkv, &params, self.rotaries.get(layer.index))
    }

    /// Computes a dense MLP or a single expert, and adds `stream` if it is given.
    fn run_gated_mlp(
        &self,
        mlp: &GatedMlp,
        x: &[f32],
        before: Option<Norm<'_>>,
        after: Option<Norm<'_>>,
        stream: Option<&[f32]>,
    ) -> Vec<f32> {
        let branch = kernels::Mlp {
            gate_up: linear(&mlp.gate_up, mlp.gate_up_bias.as_deref()),
            down: linear(&mlp.down, mlp.down_bias.as_deref()),
            activation: self.config.activation,
        };
        kernels::mlp(x, self.config.hidden, before, branch, after, stream)
    }

    /// Computes the branch of a mixture-of-experts MLP. Experts are loaded one by one. Experts without routed tokens
    /// are skipped.
    ///
    /// # Shapes
    /// `router [C, E]`, `x [tokens, C]`; result `[tokens, C]`.
    fn run_experts(&self, router: &[f32], layer: usize, x: &[f32], before: Option<Norm<'_>>) -> Result<Vec<f32>> {
        let c = self.config.hidden;
        let experts = self
            .config
            .experts
            .ok_or_else(|| Error::job("the weights contain experts, but the config has no expert settings"))?;
        let mut normed = x.to_vec();
        if let Some(norm) = before {
            kernels::apply_norm(&mut normed, norm);
        }
        let router = Weight::Plain(router, experts.count);
        let routes = experts.route_tokens(&kernels::norm_linear(&normed, c, None, router.into())); // [tokens, E]
        let mut out = vec![0.0; x.len()];
        for (number, (tokens, weights)) in
            routes.per_expert.iter().enumerate().filter(|(_, (tokens_of_expert, _))| !tokens_of_expert.is_empty())
        {
            let part = self.weight_cache.expert(&self.config, layer, number)?;
            let rows = kernels::gather_rows(&normed, c, tokens);
            let expert_output = self.run_gated_mlp(part.expert()?, &rows, None, None, None); // [expert tokens, C]
            kernels::scatter_add(&mut out, c, tokens, weights, &expert_output);
        }
        Ok(out)
    }

    /// Computes `x + branch(x)·T`. If the branch ends in a norm, a diagonal operator is applied before the norm and a
    /// dense one after it.
    fn run_edited_sublayer(
        &self,
        sublayer: Sublayer,
        layer: &Layer,
        operator: &Operator,
        attended: &dyn AttentionContext,
        x: &Tensor,
    ) -> Result<Tensor> {
        let before = self.norm(layer.norm_after(sublayer)).filter(|_| operator.is_diagonal());
        let end = if before.is_some() { SublayerOutput::Projection } else { SublayerOutput::Branch };
        let branch = self.run_sublayer(sublayer, layer, attended, x, end)?; // [tokens, C]
        let mut out = operator.apply(&elements(&branch)?)?;
        if let Some(norm) = before {
            kernels::apply_norm(&mut out, norm);
        }
        kernels::add_assign(&mut out, &elements(x)?);
        tensor(out, x.dims())
    }

    fn run_step(&self, step: &Step, attended: &dyn AttentionContext, x: &Tensor) -> Result<Tensor> {
        match step {
            Step::Sublayer(sublayer, layer) => {
                let part = self.weight_cache.layer(&self.config, *layer)?;
                self.run_sublayer(*sublayer, part.layer()?, attended, x, SublayerOutput::Stream)
            }
            Step::Edited(sublayer, layer, operator) => {
                let part = self.weight_cache.layer(&self.config, *layer)?;
                self.run_edited_sublayer(*sublayer, part.layer()?, operator, attended, x)
            }
            Step::Merged(sublayer, merged) => {
                let part =
                    self.merged.get_or_compute(merged, || self.weight_cache.compute_merged(&self.config, merged))?;
                self.run_sublayer(*sublayer, part.layer()?, attended, x, SublayerOutput::Stream)
            }
            Step::Apply(operator) => tensor(operator.apply(&elements(x)?)?, x.dims()),
            Step::Embed | Step::Head => Err(Error::job("embedding or head step in the middle of a program")),
        }
    }

    fn head_params(&self) -> HeadParams<'_> {
        HeadParams { norm: Norm { weight: &self.final_norm, eps: self.config.norm_eps }, cap: self.config.logit_cap }
    }

    fn norm<'a>(&self, weight: Option<&'a [f32]>) -> Option<Norm<'a>> {
        weight.map(|weight| Norm { weight, eps: self.config.norm_eps })
    }
}

impl Model for Decoder {
    type Batch = Batch;
    /// Residual stream `[tokens, C]`, or `[scored rows, C]` after narrowing.
    type Residual = Tensor;
    /// Predictions, one per target in the batch.
    type Output = Vec<Prediction>;

    fn announce_weights(&self, now: Option<usize>, next: Option<usize>) {
        self.weight_cache.announce_weights(&self.config, now, next);
    }

    fn begin(&self, batch: &Batch) -> Result<Tensor> {
        batch.check_ids(self.config.vocab)?;
        tensor(self.weight_cache.embeddings(&self.config, &batch.ids)?, &[batch.tokens(), self.config.hidden])
    }

    fn advance(&self, batch: &Batch, step: &Step, x: &Tensor) -> Result<Tensor> {
        self.run_step(step, batch, x)
    }

    fn narrow(&self, batch: &Batch, x: Tensor) -> Result<Tensor> {
        let Some(rows) = batch.scored_rows() else { return Ok(x) };
        let c = self.config.hidden;
        let values = elements(&x)?;
        let scored = rows.iter().flat_map(|&row| &values[row * c..(row + 1) * c]).copied().collect();
        tensor(scored, &[rows.len(), c])
    }

    fn finish(&self, batch: &Batch, x: &Tensor) -> Result<Vec<Prediction>> {
        let head = self.weight_cache.head(&self.config)?;
        let targets = batch.targets_for_rows(x.dim(0)?);
        Ok(kernels::predictions(&elements(x)?, self.config.hidden, self.head_params(), head.head()?, &targets))
    }
}

impl Compare for Decoder {
    type Divergences = Vec<Divergence>;

    fn compare(&self, batch: &Batch, reference: &Tensor, x: &Tensor) -> Result<Vec<Divergence>> {
        let head = self.weight_cache.head(&self.config)?;
        // One of the streams may be narrowed to the scored rows while the other one is not.
        let narrowed = reference.dim(0)?.min(x.dim(0)?);
        let [reference, x] = [reference, x].map(|x| match x.dim(0)? == narrowed {
            true => Ok(x.clone()),
            false => self.narrow(batch, x.clone()),
        });
        let [reference, x] = [reference?, x?];
        let targets = batch.targets_for_rows(narrowed);
        let streams = [&*elements(&reference)?, &*elements(&x)?];
        Ok(kernels::divergences(streams, self.config.hidden, self.head_params(), head.head()?, &targets))
    }
}

fn linear<'a>(weight: &'a PackedWeights, bias: Option<&'a [f32]>) -> Linear<'a> {
    Linear { weight: Weight::Packed(weight), bias }
}
