//! Config entries and tensor names of the operators that an exported checkpoint contains.

use serde_json::{Value, json};

use super::architecture::{Activation, Architecture, activation_names};
use super::cut::Cut;
use super::operator::{Matrix, Operator};
use super::tensor_name::name;

/// Config key for the section that describes an export.
pub(crate) const CONFIG_KEY: &str = "ghostlab";
/// Key for the operators in the [`CONFIG_KEY`] section.
pub(crate) const OPERATORS_KEY: &str = "operators";
/// Key for the dropped sublayers in the [`CONFIG_KEY`] section, such as `["attention 3", "mlp 5"]`. Absent if no
/// sublayer is dropped.
pub(crate) const DROPPED_KEY: &str = "dropped";
/// Key for the name of the activation function in the [`CONFIG_KEY`] section. The standard config entry contains an
/// invalid name, so that other loaders reject the export instead of ignoring its operators.
pub(crate) const ACTIVATION_KEY: &str = "activation";

/// Position of an operator in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BranchPlace {
    /// Applied to the residual stream that enters the layer.
    Before,
    /// Applied to the residual stream that leaves the layer.
    After,
    /// Applied to a branch, after the norm with this name.
    Norm(&'static str),
}

impl BranchPlace {
    /// Returns the name of the position in configs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Norm(norm) => norm,
        }
    }

    /// Returns the name of the module that contains the operator, relative to the layer.
    pub(crate) fn module(self) -> String {
        match self {
            Self::Before => "boundary".to_owned(),
            Self::After => "boundary_after".to_owned(),
            Self::Norm(norm) => format!("{norm}.branch_map"),
        }
    }

    /// Returns the positions at which a layer of the architecture can contain an operator.
    pub(super) fn all(architecture: &Architecture) -> impl Iterator<Item = Self> {
        let post_norms = [architecture.norms[1], architecture.norms[3]];
        [Self::Before, Self::After].into_iter().chain(post_norms.into_iter().flatten().map(Self::Norm))
    }
}

/// Returns the name of an operator's bias tensor.
pub(crate) fn bias_name(layer: usize, module: &str) -> String {
    format!("model.layers.{layer}.{module}.bias")
}

/// Returns the name of the weight tensor of an operator's input norm.
pub(crate) fn input_norm_name(layer: usize, module: &str) -> String {
    name(layer, &format!("{module}.input_norm"))
}

/// Returns the name of the weight tensor of a norm that shares its module with the operator after it.
pub(crate) fn norm_name(layer: usize, norm: &str) -> String {
    name(layer, &format!("{norm}.norm"))
}

/// Computation of an exported operator, which determines the file formats that can store the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepForm {
    /// Linear map of the residual stream, `x·W`, with an optional bias.
    Stream,
    /// Linear map of the normalized stream, added to the stream: `x + RMSNorm(x)·M`, with an optional bias.
    Normed,
    /// Constant added to the stream, `x + b`.
    Constant,
    /// Linear map after the norm at the end of a branch.
    Branch,
}

impl StepForm {
    /// Returns a description for error messages.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Stream => "a linear map of the residual stream",
            Self::Normed => "a linear map of the normalized stream",
            Self::Constant => "a constant added to the residual stream",
            Self::Branch => "a linear map after the norm of a branch",
        }
    }
}

/// Form of an exported operator, which determines its tensors in the checkpoint. Except for [`Self::Bias`], the form
/// does not indicate whether the operator has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachedForm {
    Diagonal,
    Dense,
    /// Only a bias.
    Bias,
    /// Linear map of the normalized stream. The norm uses the backbone's epsilon, and has a weight if `weighted` is
    /// set.
    Normed {
        weighted: bool,
    },
}

impl AttachedForm {
    /// Returns the form of an operator.
    pub fn from_operator(operator: &Operator) -> Self {
        match &operator.matrix {
            Matrix::Normed { norm, .. } => Self::Normed { weighted: norm.weighted },
            Matrix::Identity => Self::Bias,
            Matrix::Diagonal(_) => Self::Diagonal,
            Matrix::Dense(_) | Matrix::LowRank { .. } => Self::Dense,
        }
    }

    /// Returns the name of the form in configs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Diagonal => "diagonal",
            Self::Dense => "dense",
            Self::Bias => "bias",
            Self::Normed { weighted: true } => "normed",
            Self::Normed { weighted: false } => "normed-unweighted",
        }
    }

    /// Returns whether an operator of this form, with or without a bias, is valid at a position.
    ///
    /// A diagonal after a norm is invalid, because the decoder applies diagonals before the norm.
    pub(super) fn is_allowed_at(self, place: BranchPlace, bias: bool) -> bool {
        let on_stream = !matches!(place, BranchPlace::Norm(_));
        match self {
            Self::Dense => true,
            Self::Diagonal => on_stream && !bias,
            Self::Bias => on_stream && bias,
            Self::Normed { .. } => on_stream,
        }
    }

    /// Returns the shape of the operator's matrix, if it has one.
    pub(crate) fn shape(self, hidden: usize) -> Option<Vec<usize>> {
        match self {
            Self::Bias => None,
            Self::Diagonal => Some(vec![hidden]),
            Self::Dense | Self::Normed { .. } => Some(vec![hidden; 2]),
        }
    }

    pub(super) const ALL: [Self; 5] =
        [Self::Diagonal, Self::Dense, Self::Bias, Self::Normed { weighted: true }, Self::Normed { weighted: false }];
}

/// Operator that an export declares in its config and stores as tensors of the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    pub layer: usize,
    pub place: BranchPlace,
    pub form: AttachedForm,
    pub bias: bool,
}

impl Attachment {
    /// Returns the operator's tensors for `hidden` channels: their content, name and shape.
    pub(crate) fn tensors(
        self,
        hidden: usize,
    ) -> impl DoubleEndedIterator<Item = (OperatorTensor, String, Vec<usize>)> {
        let module = self.place.module();
        let is_weighted = self.form == AttachedForm::Normed { weighted: true };
        let matrix = self.form.shape(hidden).map(|shape| (OperatorTensor::Matrix, name(self.layer, &module), shape));
        let norm = is_weighted.then(|| (OperatorTensor::Norm, input_norm_name(self.layer, &module), vec![hidden]));
        let bias = self.bias.then(|| (OperatorTensor::Bias, bias_name(self.layer, &module), vec![hidden]));
        [matrix, norm, bias].into_iter().flatten()
    }
}

/// Content of a tensor that belongs to an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperatorTensor {
    Matrix,
    /// Weight of the norm that the operator applies to its input.
    Norm,
    Bias,
}

/// Returns the config section that describes an export.
pub(crate) fn export_section(
    attachments: impl Iterator<Item = Attachment>,
    dropped: &Cut,
    activation: Activation,
) -> Value {
    let operators = attachments.map(|Attachment { layer, place, form, bias }| {
        json!({"layer": layer, "at": place.name(), "form": form.name(), "bias": bias})
    });
    let operators: Vec<Value> = operators.collect();
    let mut section = json!({OPERATORS_KEY: operators, ACTIVATION_KEY: activation_names(activation)[0]});
    if !dropped.is_empty() {
        section[DROPPED_KEY] = json!(dropped);
    }
    section
}
