//! Operators next to the weights of an export: config keys, tensor names, forms and places.

use super::architecture::Architecture;
use super::operator::Operator;
use super::tensor_name::name;
use crate::error::Result;

/// Config key of the description of an export.
pub(crate) const ENTRY: &str = "ghostlab";
/// Key of the operator list in [`ENTRY`].
pub(crate) const OPERATORS: &str = "operators";
/// Key of the dropped sublayers in [`ENTRY`]: a list such as `["attention 3", "mlp 5"]`, absent if there are none.
pub(crate) const DROPPED: &str = "dropped";
/// Key of the activation's name in [`ENTRY`]. The config's own entry is invalid, so that other loaders do not load the
/// weights without the operators.
pub(crate) const ACTIVATION: &str = "activation";

/// Place of an operator in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BranchPlace {
    /// On the stream that enters the layer.
    Before,
    /// On the stream that leaves the layer.
    After,
    /// On a branch, after the norm of this name.
    Norm(&'static str),
}

impl BranchPlace {
    /// Returns the name of the place in configs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Norm(norm) => norm,
        }
    }

    /// Returns the name of the module that holds the operator, relative to the layer.
    pub(crate) fn module(self) -> String {
        match self {
            Self::Before => "boundary".to_owned(),
            Self::After => "boundary_after".to_owned(),
            Self::Norm(norm) => format!("{norm}.branch_map"),
        }
    }

    /// Returns all places in a layer.
    pub(super) fn all(architecture: &Architecture) -> impl Iterator<Item = Self> {
        let behind = [architecture.norms[1], architecture.norms[3]];
        [Self::Before, Self::After].into_iter().chain(behind.into_iter().flatten().map(Self::Norm))
    }
}

/// Returns the name of an operator's bias tensor.
pub(crate) fn bias_name(layer: usize, module: &str) -> String {
    format!("model.layers.{layer}.{module}.bias")
}

/// Returns the name of the weight of the norm that an operator applies to its input.
pub(crate) fn input_norm_name(layer: usize, module: &str) -> String {
    name(layer, &format!("{module}.input_norm"))
}

/// Returns the name of a norm that is followed by an operator. Both are in one module.
pub(crate) fn norm_name(layer: usize, norm: &str) -> String {
    name(layer, &format!("{norm}.norm"))
}

/// Form of an operator next to the weights of a checkpoint. It decides which formats can hold the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepForm {
    /// A map of the stream: `x·W`, with or without a bias.
    Stream,
    /// A map of the normed stream: `x + RMSNorm(x)·M`, with or without a bias.
    Normed,
    /// A constant: `x + b`.
    Constant,
    /// A map after the norm at the end of a branch.
    Branch,
}

impl StepForm {
    /// Returns a description for messages.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Stream => "a map of the stream itself",
            Self::Normed => "a map of the normed stream",
            Self::Constant => "a constant added to the stream",
            Self::Branch => "a map after the norm of a branch",
        }
    }
}

/// Form of an operator in a config, ignoring its bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachedForm {
    Diagonal,
    Dense,
    /// Only a bias.
    Bias,
    /// A map of the normed stream, with the backbone's epsilon. `weighted` is set if the norm has a weight.
    Normed {
        weighted: bool,
    },
}

impl AttachedForm {
    /// Returns the form of an operator.
    ///
    /// # Errors
    /// Fails if the operator cannot be read.
    pub fn of(operator: &Operator) -> Result<Self> {
        Ok(match operator.norm()? {
            Some(norm) => Self::Normed { weighted: norm.weight.is_some() },
            None if operator.is_bias_only() => Self::Bias,
            None if operator.is_diagonal() => Self::Diagonal,
            None => Self::Dense,
        })
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

    /// Returns whether an operator of this form is valid at a place, with or without a bias.
    ///
    /// A diagonal after a norm is not: the decoder applies diagonals before the norm.
    pub(super) fn fits(self, place: BranchPlace, bias: bool) -> bool {
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
