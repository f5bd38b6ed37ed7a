//! Names of an export's description in its config, and forms and places of operators next to the weights.

use super::architecture::Architecture;
use super::operator::Operator;
use super::tensor_name::name;
use crate::error::Result;

/// Entry of a config that describes an export.
pub(crate) const ENTRY: &str = "ghostlab";
/// Key of the operators in [`ENTRY`].
pub(crate) const OPERATORS: &str = "operators";
/// Key of the dropped sublayers in [`ENTRY`]: a list such as `["attention 3", "mlp 5"]`, absent if there are none.
pub(crate) const DROPPED: &str = "dropped";
/// The activation's entry in that one: the config's own keeps others from reading the weights without the operators.
pub(crate) const ACTIVATION: &str = "activation";

/// Where in a layer an operator stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BranchPlace {
    /// On the stream that enters the layer.
    Before,
    /// On the stream that leaves it.
    After,
    /// On a branch, behind the norm of this name.
    Norm(&'static str),
}

impl BranchPlace {
    /// Returns the config's name of the place.
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Norm(norm) => norm,
        }
    }

    /// Returns the module that holds the operator, below the layer's module.
    pub(crate) fn module(self) -> String {
        match self {
            Self::Before => "boundary".to_owned(),
            Self::After => "boundary_after".to_owned(),
            Self::Norm(norm) => format!("{norm}.branch_map"),
        }
    }

    /// Returns all places of a layer.
    pub(super) fn all(architecture: &Architecture) -> impl Iterator<Item = Self> {
        let behind = [architecture.norms[1], architecture.norms[3]];
        [Self::Before, Self::After].into_iter().chain(behind.into_iter().flatten().map(Self::Norm))
    }
}

/// Returns the name of an operator's bias tensor.
pub(crate) fn bias_name(layer: usize, module: &str) -> String {
    format!("model.layers.{layer}.{module}.bias")
}

/// Returns the name of the weight of the norm that an operator reads the stream through.
pub(crate) fn input_norm_name(layer: usize, module: &str) -> String {
    name(layer, &format!("{module}.input_norm"))
}

/// Returns the name of a norm that is followed by an operator, inside a module of both.
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
    /// A map behind the norm that a branch ends in.
    Branch,
}

impl StepForm {
    /// Returns the description for messages.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Stream => "a map of the stream itself",
            Self::Normed => "a map of the normed stream",
            Self::Constant => "a constant added to the stream",
            Self::Branch => "a map behind the norm of a branch",
        }
    }
}

/// Form of an operator in a config, apart from its bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachedForm {
    Diagonal,
    Dense,
    /// Nothing but a bias.
    Bias,
    /// A map of the normed stream, with the backbone's epsilon. `weighted` says whether the norm has a weight.
    Normed {
        weighted: bool,
    },
}

impl AttachedForm {
    /// Returns the form of an operator.
    ///
    /// # Errors
    /// The operator cannot be read.
    pub fn of(operator: &Operator) -> Result<Self> {
        Ok(match operator.norm()? {
            Some(norm) => Self::Normed { weighted: norm.weight.is_some() },
            None if operator.is_bias_only() => Self::Bias,
            None if operator.is_diagonal() => Self::Diagonal,
            None => Self::Dense,
        })
    }

    /// Returns the config's name of the form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Diagonal => "diagonal",
            Self::Dense => "dense",
            Self::Bias => "bias",
            Self::Normed { weighted: true } => "normed",
            Self::Normed { weighted: false } => "normed-unweighted",
        }
    }

    /// Returns whether an operator of this form can stand at a place, with or without a bias.
    ///
    /// A diagonal behind a norm would be another one than the decoder's, which comes before that norm.
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
