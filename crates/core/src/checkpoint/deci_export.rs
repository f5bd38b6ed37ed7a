//! Export to llama.cpp's `deci` architecture, whose layers may omit attention or replace it with a linear map of the
//! normalized stream.
//!
//! The architecture can represent dropped attention sublayers and MLPs, linear maps of the normalized stream, and
//! constants. llama.cpp silently computes wrong results in three cases, which this module works around:
//!
//! - llama.cpp skips the attention of a layer without an MLP (`feed_forward_length` 0). Such a layer gets an all-zero
//!   MLP.
//! - llama.cpp ignores `attn_output.bias` of a linear map. Biases are stored as `ffn_down.bias` of an all-zero MLP.
//! - llama.cpp reads head sizes from the first layer. A first layer without attention gets an all-zero linear map.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;

use super::gguf_tensor::{
    GgufContent, GgufTensor, GgufType, LayerCounts, checkpoint_tensor, count_value, unsupported_error,
};
use super::layout::{AttachedOperator, Layout, TensorContent};
use crate::error::Result;
use crate::files::gguf_writer::GgufInfo;
use crate::model::architecture::{Activation, GgufForm, QueryKeyNorm, RopeEntries};
use crate::model::attached_form::OperatorTensor;
use crate::model::tensors::sublayer_of;
use crate::model::{AttachedForm, BranchPlace, Config, Cut, DECI, StepForm, Sublayer};

/// Number of hidden units in an all-zero MLP, which is the block size of the quantized types.
const ZERO_MLP_WIDTH: usize = 32;
/// Prefix of the names of layer tensors in a checkpoint.
const LAYER_PREFIX: &str = "model.layers.";

/// Rejects a backbone whose architecture `deci` cannot represent.
///
/// # Errors
/// Fails with the name of the first property that llama.cpp would ignore or fail to load.
pub fn check_deci_support(config: &Config) -> Result<()> {
    let architecture = config.architecture;
    let requirements = [
        (config.architecture.gguf.is_none(), "an architecture that llama.cpp supports"),
        (config.experts.is_some(), "an MLP without experts"),
        (architecture.query_key_norm != QueryKeyNorm::None, "no query and key norms"),
        (Sublayer::ALL.iter().any(|&sublayer| config.ends_in_norm(sublayer)), "no norms after attention and MLP"),
        (architecture.fused || architecture.rope != RopeEntries::One, "layers with the structure of Llama"),
        (config.activation != Activation::Silu, "the activation silu"),
        (config.biases.inputs && config.heads * config.head_dim != config.hidden, "query biases of the hidden size"),
    ];
    match requirements.into_iter().find(|(is_violated, _)| *is_violated) {
        None => Ok(()),
        Some((_, expected)) => {
            let expected = format!("{expected}, because llama.cpp runs this cut or repair as `{DECI}`");
            Err(unsupported_error(&expected, architecture.class))
        }
    }
}

/// Checks that `deci` can represent an operator that is not folded into the weights.
///
/// # Errors
/// Fails if [`check_deci_support`] does, or if the operator maps the unnormalized stream or a branch output.
pub fn check_deci_step(config: &Config, step: StepForm) -> Result<()> {
    match step {
        StepForm::Normed | StepForm::Constant => check_deci_support(config),
        StepForm::Stream | StepForm::Branch => {
            let expected = "a repair that is folded into the weights, a constant, or a map of the normalized stream";
            Err(unsupported_error(expected, step.text()))
        }
    }
}

/// Returns the GGUF format for a variant that needs `deci`. Fails if `deci` cannot represent the variant.
pub(super) fn gguf_form(config: &Config, layout: &Layout) -> Result<GgufForm> {
    check_deci_support(config)?;
    for AttachedOperator { place, operator, .. } in &layout.attached {
        let step = match place {
            BranchPlace::Norm(_) => StepForm::Branch,
            _ if operator.is_normed() => StepForm::Normed,
            _ if operator.is_bias_only() => StepForm::Constant,
            _ => StepForm::Stream,
        };
        check_deci_step(config, step)?;
    }
    Ok(GgufForm::uniform(DECI, true))
}

/// Computation in the attention slot of a GGUF layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mixer {
    Attention,
    /// Linear map of the normalized stream, either an operator or all zeros.
    Linear,
    None,
}

/// Layer of the GGUF file.
struct Block<'a> {
    /// Index of the checkpoint layer whose tensors this layer uses.
    layer: usize,
    mixer: Mixer,
    has_mlp: bool,
    operator: Option<&'a AttachedOperator>,
}

impl<'a> Block<'a> {
    /// Creates a layer that contains only an operator.
    fn from_operator(attached: &'a AttachedOperator) -> Self {
        let mixer = if attached.operator.is_normed() { Mixer::Linear } else { Mixer::None };
        Self { layer: attached.layer, mixer, has_mlp: false, operator: Some(attached) }
    }
}

/// Plans the GGUF layers for `layers` checkpoint layers without the `dropped` sublayers, and for their operators.
/// Operators become separate layers unless they replace a dropped attention.
fn arrange_blocks<'a>(layers: usize, dropped: &Cut, attached: &'a [AttachedOperator]) -> Vec<Block<'a>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for layer in 0..layers {
        let has_attention = !dropped.contains(layer, Sublayer::Attention);
        let mixer = if has_attention { Mixer::Attention } else { Mixer::None };
        let has_mlp = !dropped.contains(layer, Sublayer::Mlp);
        let at_layer: Vec<&AttachedOperator> = attached.iter().filter(|attached| attached.layer == layer).collect();
        match at_layer.iter().find(|attached| attached.place == BranchPlace::Before) {
            Some(before) if mixer == Mixer::None && before.operator.is_normed() && !before.operator.has_bias() => {
                blocks.push(Block { layer, mixer: Mixer::Linear, has_mlp, operator: Some(before) });
            }
            before => {
                blocks.extend(before.map(|before| Block::from_operator(before)));
                // A layer without sublayers needs only the blocks of its operators.
                if has_attention || has_mlp {
                    blocks.push(Block { layer, mixer, has_mlp, operator: None });
                }
            }
        }
        let after = at_layer.iter().find(|attached| attached.place == BranchPlace::After);
        blocks.extend(after.map(|after| Block::from_operator(after)));
    }
    if let Some(first) = blocks.first_mut().filter(|block| block.mixer == Mixer::None) {
        first.mixer = Mixer::Linear;
    }
    blocks
}

/// Returns the number of heads and the MLP width of each layer.
pub(super) fn compute_layer_counts(layout: &Layout, config: &Config) -> LayerCounts {
    let blocks = arrange_blocks(layout.kept.len(), &layout.dropped, &layout.attached);
    let list = |count: &dyn Fn(&Block<'_>) -> usize| {
        Value::Array(blocks.iter().map(|block| count_value(count(block))).collect())
    };
    LayerCounts {
        blocks: blocks.len(),
        heads: list(&|block| if block.mixer == Mixer::None { 0 } else { config.heads }),
        kv_heads: list(&|block| if block.mixer == Mixer::Attention { config.kv_heads } else { 0 }),
        intermediate: list(&|block| if block.has_mlp { config.intermediate } else { ZERO_MLP_WIDTH }),
    }
}

/// Returns the tensors of the GGUF file. Operators stay in f32, as in safetensors checkpoints.
pub(super) fn plan_tensors<'a>(
    layout: &'a Layout,
    config: &Config,
    file_type: GgufType,
) -> Result<Vec<GgufTensor<'a>>> {
    let mut tensors = Vec::new();
    for tensor in layout.tensors.iter().filter(|tensor| !tensor.name.starts_with(LAYER_PREFIX)) {
        tensors.push(checkpoint_tensor(config, &tensor.name, tensor, file_type)?);
    }
    for (index, block) in arrange_blocks(layout.kept.len(), &layout.dropped, &layout.attached).iter().enumerate() {
        let prefix = format!("{LAYER_PREFIX}{}.", block.layer);
        for tensor in &layout.tensors {
            let Some(suffix) = tensor.name.strip_prefix(&prefix) else { continue };
            let module = suffix.rsplit_once('.').map_or(suffix, |(module, _)| module);
            let is_in_block = match sublayer_of(config.architecture, module) {
                Sublayer::Attention => block.mixer == Mixer::Attention,
                Sublayer::Mlp => block.has_mlp,
            };
            let is_operator =
                matches!(tensor.content, TensorContent::Operator(_) | TensorContent::Norm(_) | TensorContent::Bias(_));
            if is_in_block && !is_operator {
                tensors.push(checkpoint_tensor(config, &format!("{LAYER_PREFIX}{index}.{suffix}"), tensor, file_type)?);
            }
        }
        add_operator_tensors(layout, index, block, &mut tensors);
        add_zero_tensors(index, block, config.hidden, file_type, &mut tensors);
    }
    Ok(tensors)
}

/// Adds the tensors of a layer's operator.
fn add_operator_tensors<'a>(layout: &'a Layout, index: usize, block: &Block<'a>, tensors: &mut Vec<GgufTensor<'a>>) {
    let Some(attached) = block.operator else { return };
    for (kind, stored, shape) in attached.declaration().tensors(attached.operator.channels()) {
        let suffix = match kind {
            OperatorTensor::Matrix => "attn_output.weight",
            OperatorTensor::Norm => "attn_norm.weight",
            OperatorTensor::Bias => "ffn_down.bias",
        };
        if let Some(tensor) = layout.tensors.iter().find(|tensor| tensor.name == stored) {
            let info = build_info(index, suffix, GgmlDType::F32, &shape);
            tensors.push(GgufTensor { info, content: GgufContent::Checkpoint(tensor) });
        }
    }
}

/// Adds placeholder tensors: an all-zero MLP if the layer has none, an all-zero map for a missing attention in the
/// first layer, and ones for a norm without weights.
fn add_zero_tensors(
    index: usize,
    block: &Block<'_>,
    hidden: usize,
    file_type: GgufType,
    tensors: &mut Vec<GgufTensor<'_>>,
) {
    let mut add = |suffix: &str, shape: &[usize], content: GgufContent<'static>| {
        let info = build_info(index, suffix, file_type.ggml_dtype(shape), shape);
        tensors.push(GgufTensor { info, content });
    };
    let ones = || GgufContent::Numbers(vec![1.0; hidden]);
    let normed = AttachedForm::Normed { weighted: true };
    let is_weighted = block.operator.is_some_and(|attached| attached.declaration().form == normed);
    if block.mixer == Mixer::Linear && !is_weighted {
        add("attn_norm.weight", &[hidden], ones());
    }
    let is_map = block.operator.is_some_and(|attached| attached.operator.is_normed());
    if block.mixer == Mixer::Linear && !is_map {
        add("attn_output.weight", &[hidden; 2], GgufContent::Zeros);
    }
    if !block.has_mlp {
        add("ffn_norm.weight", &[hidden], ones());
        add("ffn_gate.weight", &[ZERO_MLP_WIDTH, hidden], GgufContent::Zeros);
        add("ffn_up.weight", &[ZERO_MLP_WIDTH, hidden], GgufContent::Zeros);
        add("ffn_down.weight", &[hidden, ZERO_MLP_WIDTH], GgufContent::Zeros);
    }
}

fn build_info(index: usize, suffix: &str, dtype: GgmlDType, shape: &[usize]) -> GgufInfo {
    GgufInfo { name: format!("blk.{index}.{suffix}"), dtype, shape: shape.to_vec() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Operator, RmsNorm};

    fn attach_before(layer: usize, operator: Arc<Operator>) -> AttachedOperator {
        AttachedOperator { layer, place: BranchPlace::Before, operator }
    }

    fn normed_operator(bias: Option<Vec<f32>>) -> Arc<Operator> {
        Operator::normed(RmsNorm { eps: 1e-5, weight: Some(vec![1.0]) }, 1, vec![2.0], bias).unwrap()
    }

    fn plan_mixers(dropped: &Cut, attached: &[AttachedOperator]) -> Vec<(usize, Mixer, bool)> {
        arrange_blocks(2, dropped, attached).iter().map(|block| (block.layer, block.mixer, block.has_mlp)).collect()
    }

    #[test]
    fn first_exported_layer_always_has_attention_heads() {
        use Mixer::{Attention, Linear, None};
        let both = Cut::sublayers([(0, Sublayer::Attention), (1, Sublayer::Attention)]);
        assert_eq!(plan_mixers(&both, &[]), [(0, Linear, true), (1, None, true)]);
        let constant = [attach_before(0, Operator::bias_only(vec![1.0]).unwrap())];
        assert_eq!(
            plan_mixers(&Cut::default(), &constant),
            [(0, Linear, false), (0, Attention, true), (1, Attention, true)]
        );
    }

    #[test]
    fn normed_map_without_bias_replaces_dropped_attention() {
        use Mixer::{Attention, Linear, None};
        let dropped = Cut::sublayers([(1, Sublayer::Attention)]);
        assert_eq!(
            plan_mixers(&dropped, &[attach_before(1, normed_operator(Option::None))]),
            [(0, Attention, true), (1, Linear, true)]
        );
        let biased = [attach_before(1, normed_operator(Some(vec![3.0])))];
        assert_eq!(plan_mixers(&dropped, &biased), [(0, Attention, true), (1, Linear, false), (1, None, true)]);
        let full = [attach_before(1, normed_operator(Option::None))];
        assert_eq!(
            plan_mixers(&Cut::default(), &full),
            [(0, Attention, true), (1, Linear, false), (1, Attention, true)]
        );
    }
}
