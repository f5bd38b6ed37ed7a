//! Layout of an exported checkpoint: its tensors, and the sources of their values.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::model::attached_form::{AttachedForm, OperatorTensor, norm_name};
use crate::model::tensor_name::{EMBEDDING, FINAL_NORM, HEAD, KEY_NORM, QUERY_NORM, name};
use crate::model::tensors::{StoredPart, open_checked_weights, stored_tensors, sublayer_of};
use crate::model::weights::Weights;
use crate::model::{Attachment, BranchPlace, Config, Cut, DeployedModel, FloatType, MergedLayer, Operator, Step};

/// Planned checkpoint of a variant (pruned and repaired backbone). Layers and the names of their tensors are
/// renumbered.
pub struct Layout {
    /// Backbone layer of each exported layer, in ascending order. An exported layer without sublayers, which contains
    /// only an operator, repeats the backbone layer of a neighbor.
    pub kept: Vec<usize>,
    /// Sublayers missing from the kept layers, by layer index after renumbering.
    pub dropped: Cut,
    /// Operators that are not folded into a weight.
    pub attached: Vec<AttachedOperator>,
    pub(super) weights: Weights,
    pub(super) tensors: Vec<CheckpointTensor>,
}

/// Operator that is not folded into a weight, but stored as separate tensors.
#[derive(Debug, Clone)]
pub struct AttachedOperator {
    /// Layer index after renumbering.
    pub layer: usize,
    pub place: BranchPlace,
    pub operator: Arc<Operator>,
}

impl AttachedOperator {
    /// Returns the config entry for the operator.
    pub(super) fn declaration(&self) -> Attachment {
        let Self { layer, place, operator } = self;
        let form = AttachedForm::from_operator(operator);
        Attachment { layer: *layer, place: *place, form, bias: operator.has_bias() }
    }
}

/// Tensor in the exported checkpoint.
pub(super) struct CheckpointTensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: FloatType,
    pub(super) content: TensorContent,
}

pub(super) enum TensorContent {
    /// An unchanged tensor of the backbone.
    Stored(String),
    /// A backbone tensor with an operator folded in: a matrix `[C, inner]` becomes `Wᵀ·matrix`, a bias `[C]` becomes
    /// `b·W`.
    Folded(String, Arc<Operator>),
    /// A tensor that is merged from the same tensor in several layers.
    Merged(String, Arc<MergedLayer>),
    /// Matrix of an operator: a diagonal `[C]`, or a full matrix `[C, C]` (`Wᵀ` or `Mᵀ`) in the layout of linear
    /// layers.
    Operator(Arc<Operator>),
    /// The weight `[C]` of the norm that an operator applies to its input.
    Norm(Arc<Operator>),
    /// The bias `[C]` of an operator.
    Bias(Arc<Operator>),
}

impl CheckpointTensor {
    pub(super) fn element_count(&self) -> u64 {
        self.shape.iter().map(|&side| side as u64).product()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.element_count() * self.dtype.bytes()
    }
}

impl Layout {
    /// Plans the checkpoint of a variant. `folder` contains the backbone. Weights are converted to `dtype`. If `dtype`
    /// is `None`, they keep their stored type. Operators are always stored in f32, the type in which they are applied.
    ///
    /// # Errors
    /// Fails if the weights do not match the config, the program has no layers, or a checkpoint cannot store an
    /// operator at its position.
    pub fn plan(config: &Config, folder: &Path, deployed: &DeployedModel, dtype: Option<FloatType>) -> Result<Self> {
        let weights = open_checked_weights(config, folder)?;
        let LayerPlan { kept, dropped, attached } = plan_layers(config, deployed)?;
        let c = config.hidden;
        let vocab = config.vocab;
        let mut tensors = Vec::new();
        let mut add = |tensor_name: String, shape: Vec<usize>, content: TensorContent| {
            let dtype = match &content {
                TensorContent::Operator(_) | TensorContent::Bias(_) | TensorContent::Norm(_) => FloatType::F32,
                TensorContent::Stored(stored) | TensorContent::Folded(stored, _) => {
                    dtype.unwrap_or_else(|| FloatType::from_stored(weights.dtype(stored)))
                }
                TensorContent::Merged(part, merged) => {
                    dtype.unwrap_or_else(|| FloatType::from_stored(weights.dtype(&name(merged.layer(), part))))
                }
            };
            tensors.push(CheckpointTensor { name: tensor_name, shape, dtype, content });
        };
        add(EMBEDDING.to_owned(), vec![vocab, c], TensorContent::Stored(EMBEDDING.to_owned()));
        for (index, &layer) in kept.iter().enumerate() {
            let layer_operators: Vec<&AttachedOperator> =
                attached.iter().filter(|attached| attached.layer == index).collect();
            for part in stored_tensors(config, layer) {
                if dropped.contains(index, sublayer_of(config.architecture, &part.holds[0].0)) {
                    continue;
                }
                let content = layer_content(config, deployed, layer, &part);
                // An operator after a norm is stored together with the norm, under a different name.
                let has_mapped_norm = layer_operators
                    .iter()
                    .any(|attached| matches!(attached.place, BranchPlace::Norm(norm) if norm == part.name));
                let new = if has_mapped_norm { norm_name(index, &part.name) } else { name(index, &part.name) };
                add(new, part.shape, content);
            }
            for attached in layer_operators {
                for (kind, name, shape) in attached.declaration().tensors(c).rev() {
                    let content = match kind {
                        OperatorTensor::Matrix => TensorContent::Operator,
                        OperatorTensor::Norm => TensorContent::Norm,
                        OperatorTensor::Bias => TensorContent::Bias,
                    };
                    add(name, shape, content(Arc::clone(&attached.operator)));
                }
            }
        }
        add(FINAL_NORM.to_owned(), vec![c], TensorContent::Stored(FINAL_NORM.to_owned()));
        if !config.tied_embeddings {
            add(HEAD.to_owned(), vec![vocab, c], TensorContent::Stored(HEAD.to_owned()));
        }
        Ok(Self { kept, dropped, attached, tensors, weights })
    }

    /// Returns whether the checkpoint has a separate output projection.
    pub(super) fn has_head(&self) -> bool {
        self.tensors.iter().any(|tensor| tensor.name == HEAD)
    }

    /// Returns whether loaders need the modeling file, because some operators are not folded into weights or some
    /// sublayers are dropped.
    pub fn needs_modeling_file(&self) -> bool {
        !self.attached.is_empty() || !self.dropped.is_empty()
    }

    /// Returns the size of all tensors in bytes.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(CheckpointTensor::bytes).sum()
    }

    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(CheckpointTensor::element_count).sum()
    }
}

/// Returns the source of a layer tensor's values: the backbone, a fold or a merge.
fn layer_content(config: &Config, deployed: &DeployedModel, layer: usize, part: &StoredPart) -> TensorContent {
    let tensor = name(layer, &part.name);
    let fold = part.ends.and_then(|sublayer| deployed.folds.get(&(layer, sublayer)));
    match (merged_layer(deployed, layer), fold) {
        (Some(merged), None) if merged.has_merged_norms() || !is_norm(config, part) => {
            TensorContent::Merged(part.name.clone(), Arc::clone(merged))
        }
        (_, Some(operator)) => TensorContent::Folded(tensor, Arc::clone(operator)),
        (_, None) => TensorContent::Stored(tensor),
    }
}

/// Returns the merged weights that the program uses for a layer, if any.
fn merged_layer(deployed: &DeployedModel, layer: usize) -> Option<&Arc<MergedLayer>> {
    deployed.program.0.iter().find_map(|step| match step {
        Step::Merged(_, merged) if merged.layer() == layer => Some(merged),
        _ => None,
    })
}

/// Returns whether a stored tensor is the weight of a norm.
fn is_norm(config: &Config, part: &StoredPart) -> bool {
    let norms = config.architecture.norms.into_iter().flatten().chain([QUERY_NORM, KEY_NORM]);
    norms.into_iter().any(|norm| part.name == norm)
}

/// Layers, missing sublayers and operators of a program.
struct LayerPlan {
    kept: Vec<usize>,
    dropped: Cut,
    attached: Vec<AttachedOperator>,
}

/// Extracts the layers and operators of a program. Adjacent operators are composed into one. Operators on the
/// normalized stream cannot be composed, so all of them except the last become layers without attention and MLP.
fn plan_layers(config: &Config, deployed: &DeployedModel) -> Result<LayerPlan> {
    let mut kept: Vec<usize> = Vec::new();
    let mut present = Cut::default();
    let mut attached = Vec::new();
    let mut pending: Vec<Arc<Operator>> = Vec::new();
    for step in &deployed.program.0 {
        if let Step::Apply(operator) = step {
            match pending.last_mut() {
                Some(last) if !last.is_normed() && !operator.is_normed() => *last = last.compose(operator)?,
                _ => pending.push(Arc::clone(operator)),
            }
        }
        let Some((sublayer, layer)) = step.sublayer() else { continue };
        if kept.last() != Some(&layer) {
            let last = pending.pop();
            attach_to_empty_layers(pending.drain(..), layer, &mut kept, &mut attached);
            kept.push(layer);
            let index = kept.len() - 1;
            attached.extend(last.map(|operator| AttachedOperator {
                layer: index,
                place: BranchPlace::Before,
                operator,
            }));
        }
        if !pending.is_empty() {
            return Err(Error::job("a checkpoint cannot store an operator between the sublayers of a layer")
                .at(format!("layer {layer}")));
        }
        let index = kept.len() - 1;
        present = present.with(index, sublayer);
        if let Step::Edited(sublayer, _, operator) = step {
            let norm = config.norm_after(*sublayer);
            let norm = norm.ok_or_else(|| {
                Error::job("cannot export an operator that is not folded into the weights")
                    .at(format!("layer {layer}, {}", sublayer.name()))
                    .expected("a sublayer with an output norm, to which the operator can be attached")
                    .found("no output norm")
            })?;
            attached.push(AttachedOperator {
                layer: index,
                place: BranchPlace::Norm(norm),
                operator: Arc::clone(operator),
            });
        }
    }
    let last_layer = *kept.last().ok_or_else(|| Error::job("a variant without layers cannot be exported"))?;
    let last_operator = pending.pop();
    attach_to_empty_layers(pending.drain(..), last_layer, &mut kept, &mut attached);
    let index = kept.len() - 1;
    attached.extend(last_operator.map(|operator| AttachedOperator {
        layer: index,
        place: BranchPlace::After,
        operator,
    }));
    let dropped =
        Cut::layers(0..kept.len()).iter().filter(|&(layer, sublayer)| !present.contains(layer, sublayer)).collect();
    Ok(LayerPlan { kept, dropped, attached })
}

/// Adds a layer without sublayers for each operator. These layers have the settings of backbone layer `layer`.
fn attach_to_empty_layers(
    operators: impl Iterator<Item = Arc<Operator>>,
    layer: usize,
    kept: &mut Vec<usize>,
    attached: &mut Vec<AttachedOperator>,
) {
    for operator in operators {
        attached.push(AttachedOperator { layer: kept.len(), place: BranchPlace::Before, operator });
        kept.push(layer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Program, Repairs, RmsNorm, Sublayer, deploy};

    fn config(name: &str) -> Config {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/fixtures/arch/{name}/config.json"));
        Config::read_file(&file).unwrap()
    }

    fn plan_places(config: &Config, removed: &[usize], repairs: &Repairs) -> (Vec<usize>, Vec<(usize, &'static str)>) {
        let program = Program::repaired(6, &Cut::layers(removed.iter().copied()), repairs);
        let LayerPlan { kept, attached, .. } = plan_layers(config, &deploy(&program, config)).unwrap();
        (kept, attached.iter().map(|attached| (attached.layer, attached.place.name())).collect())
    }

    #[test]
    fn operators_are_attached_where_layers_were_removed() {
        let config = config("llama-gqa");
        let operator = Operator::diagonal(vec![2.0]).unwrap();
        assert_eq!(
            plan_places(&config, &[2, 3], &stream_repairs(&[2], &operator)),
            (vec![0, 1, 4, 5], vec![(2, "before")])
        );
        assert_eq!(
            plan_places(&config, &[0, 5], &stream_repairs(&[0, 5], &operator)),
            (vec![1, 2, 3, 4], vec![(0, "before"), (3, "after")])
        );
        assert_eq!(plan_places(&config, &[1, 2], &Repairs::default()), (vec![0, 3, 4, 5], vec![]));
    }

    fn stream_repairs(layers: &[usize], operator: &Arc<Operator>) -> Repairs {
        Repairs { stream: layers.iter().map(|&layer| (layer, operator.clone())).collect(), ..Repairs::default() }
    }

    #[test]
    fn operators_at_the_same_position_are_multiplied() {
        let config = config("llama-gqa");
        let stream = [(1, one_channel_operator(2.0)), (2, one_channel_operator(5.0))].into();
        let program = Program::repaired(4, &Cut::layers([1, 2]), &Repairs { stream, ..Repairs::default() });
        let LayerPlan { attached, .. } = plan_layers(&config, &deploy(&program, &config)).unwrap();
        assert_eq!(attached.len(), 1);
        assert_eq!(attached[0].operator.parts().unwrap().1, [10.0]);
    }

    #[test]
    fn adjacent_normed_maps_get_layers_without_sublayers() {
        use BranchPlace::{After, Before};
        use Sublayer::{Attention, Mlp};
        let config = config("llama-gqa");
        let norm = RmsNorm { eps: 1e-5, weight: Some(vec![1.0]) };
        let map = Operator::normed(norm, 1, vec![2.0], None).unwrap();
        let removed = [(0, Mlp), (1, Attention), (1, Mlp), (2, Attention), (3, Attention), (3, Mlp)];
        let sublayers = removed.map(|sublayer| (sublayer, Arc::clone(&map))).into();
        let repairs = Repairs { sublayers, ..Repairs::default() };
        let program = Program::repaired(4, &Cut::sublayers(removed), &repairs);
        let LayerPlan { kept, dropped, attached } = plan_layers(&config, &deploy(&program, &config)).unwrap();
        assert_eq!(kept, [0, 2, 2, 2, 2, 2]);
        let places: Vec<_> = attached.iter().map(|attached| (attached.layer, attached.place)).collect();
        assert_eq!(places, [(1, Before), (2, Before), (3, Before), (4, Before), (5, Before), (5, After)]);
        let complete = Cut::sublayers([(0, Attention), (4, Mlp)]);
        assert!(
            Cut::layers(0..6)
                .iter()
                .all(|(layer, kind)| dropped.contains(layer, kind) != complete.contains(layer, kind))
        );
    }

    #[test]
    fn dropped_sublayers_use_indices_of_kept_layers() {
        use Sublayer::{Attention, Mlp};
        let config = config("llama-gqa");
        let cut = Cut::layers([1]).with(0, Attention).with(2, Mlp);
        let program = Program::without(4, &cut);
        let LayerPlan { kept, dropped, attached } = plan_layers(&config, &deploy(&program, &config)).unwrap();
        assert_eq!((kept, attached.len()), (vec![0, 2, 3], 0));
        assert_eq!(dropped, Cut::sublayers([(0, Attention), (1, Mlp)]));
    }

    #[test]
    fn operator_is_attached_before_a_layer_without_attention() {
        let config = config("llama-gqa");
        let steps = [Step::Embed, Step::Apply(one_channel_operator(2.0)), Step::Sublayer(Sublayer::Mlp, 3), Step::Head];
        let LayerPlan { kept, dropped, attached } =
            plan_layers(&config, &deploy(&Program(steps.to_vec()), &config)).unwrap();
        assert_eq!((kept, dropped), (vec![3], Cut::sublayers([(0, Sublayer::Attention)])));
        assert_eq!((attached[0].layer, attached[0].place), (0, BranchPlace::Before));
        let between = [
            Step::Sublayer(Sublayer::Attention, 0),
            Step::Apply(one_channel_operator(2.0)),
            Step::Sublayer(Sublayer::Mlp, 0),
        ];
        plan_layers(&config, &deploy(&Program(between.to_vec()), &config)).err().unwrap();
    }

    fn one_channel_operator(d: f32) -> Arc<Operator> {
        Operator::diagonal(vec![d]).unwrap()
    }

    #[test]
    fn branch_map_is_attached_only_to_a_norm_after_the_branch() {
        let map = Operator::dense(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let branches = [((1, Sublayer::Mlp), map)].into();
        let repairs = Repairs { branches, ..Repairs::default() };
        let olmo = config("olmo2");
        let llama = config("llama-gqa");
        assert_eq!(plan_places(&olmo, &[2], &repairs).1, [(1, "post_feedforward_layernorm")]);
        assert_eq!(plan_places(&llama, &[2], &repairs).1, [], "the map must be folded into the weights");
    }
}
