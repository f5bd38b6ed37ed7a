//! Sublayers of a decoder layer as candle operations, for inference and training.

use candle_core::{DType, Device, Tensor};

use super::batch_layout::AttentionContext;
use super::device_weight_cache::{GatedTensors, LayerTensors, MlpTensors};
use super::ops;
use crate::error::Result;
use crate::model::config::Config;
use crate::model::experts::Experts;
use crate::model::sublayer::{Sublayer, SublayerOutput};

impl LayerTensors {
    /// Returns the post-norm of a sublayer, if any.
    pub(super) fn norm_after(&self, sublayer: Sublayer) -> Option<&Tensor> {
        self.norms[sublayer.norms()[1]].as_ref()
    }

    /// Runs a sublayer up to the stage `end`. `context` computes the attention.
    ///
    /// # Shapes
    /// `x` and the result are `[rows, C]`.
    pub(super) fn run_sublayer(
        &self,
        config: &Config,
        sublayer: Sublayer,
        x: &Tensor,
        end: SublayerOutput,
        context: &dyn AttentionContext,
    ) -> Result<Tensor> {
        let eps = f64::from(config.norm_eps);
        let before = self.norms[sublayer.norms()[0]].as_ref();
        let normed = before.map_or_else(|| Ok(x.clone()), |weight| ops::rms_norm(x, weight, eps))?;
        let out = match sublayer {
            Sublayer::Attention => {
                let [queries, keys, values] = self.project_heads(config, &normed, context.cos_sin(self.rotary))?;
                let scores = ops::Scores::from_config(config);
                let attended = context.attention([&queries, &keys, &values], self.window, scores)?;
                ops::add_bias(&ops::linear(&attended, &self.output)?, self.biases[3].as_ref())?
            }
            Sublayer::Mlp => self.mlp.forward(config, &normed)?,
        };
        let branch = match self.norm_after(sublayer).filter(|_| end != SublayerOutput::Projection) {
            Some(weight) => ops::rms_norm(&out, weight, eps)?,
            None => out,
        };
        if end == SublayerOutput::Stream { ops::sum(x, &branch) } else { Ok(branch) }
    }

    /// Computes the queries, keys and values of normalized rows, and applies the rotary embedding.
    fn project_heads(&self, config: &Config, x: &Tensor, cos_sin: Option<&(Tensor, Tensor)>) -> Result<[Tensor; 3]> {
        let rows = x.dim(0)?;
        let head_dim = config.head_dim;
        let eps = f64::from(config.norm_eps);
        let split_heads = |x: Tensor, norm: Option<&Tensor>, heads: usize| -> Result<Tensor> {
            let shape = (rows, heads, head_dim);
            // A norm as wide as a head applies to each head separately. A wider norm spans all heads.
            let x = match norm {
                None => x.reshape(shape)?,
                Some(weight) if weight.elem_count() == head_dim => ops::rms_norm(&x.reshape(shape)?, weight, eps)?,
                Some(weight) => ops::rms_norm(&x, weight, eps)?.reshape(shape)?,
            };
            cos_sin.map_or_else(|| Ok(x.clone()), |(cos, sin)| ops::rotate(&x, cos, sin))
        };
        let [query, key, value, _] = &self.biases;
        let queries = split_heads(project(&self.query, query, x)?, self.query_norm.as_ref(), config.heads)?;
        let keys = split_heads(project(&self.key, key, x)?, self.key_norm.as_ref(), config.kv_heads)?;
        let values = project(&self.value, value, x)?.reshape((rows, config.kv_heads, head_dim))?;
        Ok([queries, keys, values])
    }
}

fn project(weight: &Tensor, bias: &Option<Tensor>, x: &Tensor) -> Result<Tensor> {
    ops::add_bias(&ops::linear(x, weight)?, bias.as_ref())
}

impl MlpTensors {
    /// Computes the MLP output, without the residual addition.
    ///
    /// # Shapes
    /// `x` and the result are `[rows, C]`.
    fn forward(&self, config: &Config, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(config, x),
            Self::Experts(experts_config, router, experts) => {
                mixture_of_experts(config, *experts_config, router, experts, x)
            }
        }
    }
}

impl GatedTensors {
    fn forward(&self, config: &Config, x: &Tensor) -> Result<Tensor> {
        let biases = self.biases.each_ref().map(Option::as_ref);
        ops::mlp(x, [&self.gate, &self.up, &self.down], biases, config.activation)
    }
}

/// Computes the weighted sum of each row's expert outputs in f32, and rounds it once. Experts are selected on the host,
/// but the routing weights stay on the device and are differentiable.
fn mixture_of_experts(
    config: &Config,
    experts_config: Experts,
    router: &Tensor,
    experts: &[GatedTensors],
    x: &Tensor,
) -> Result<Tensor> {
    let logits = ops::widen(&ops::linear(x, router)?)?; // [rows, E]
    let host_logits = logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    let routes = experts_config.route_tokens(&host_logits);
    let rows = x.dim(0)?;
    let probabilities = ops::softmax(&logits)?;
    // [rows, E], 1 where a row is routed to an expert
    let mut routing_mask = vec![0.0f32; rows * experts_config.count];
    for (expert, (tokens, _)) in routes.per_expert.iter().enumerate() {
        tokens.iter().for_each(|&token| routing_mask[token as usize * experts_config.count + expert] = 1.0);
    }
    let routing_mask =
        Tensor::from_vec(routing_mask, (rows, experts_config.count), x.device())?.to_dtype(probabilities.dtype())?;
    let mut weights = (probabilities * routing_mask)?;
    if experts_config.normalized {
        weights = weights.broadcast_div(&weights.sum_keepdim(1)?)?;
    }
    let mut out = ops::widen(x)?.zeros_like()?;
    for (expert, (tokens, _)) in routes.per_expert.into_iter().enumerate().filter(|(_, (tokens, _))| !tokens.is_empty())
    {
        let token_indices = Tensor::new(tokens, x.device())?;
        let value = ops::widen(&experts[expert].forward(config, &x.index_select(&token_indices, 0)?)?)?;
        let weight = weights.narrow(1, expert, 1)?.contiguous()?.index_select(&token_indices, 0)?; // [expert rows, 1]
        out = out.index_add(&token_indices, &value.broadcast_mul(&weight)?, 0)?;
    }
    Ok(out.to_dtype(x.dtype())?)
}
