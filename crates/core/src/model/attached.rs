//! Operators stored next to a backbone's weights, as exports have them if no weight can absorb a repair (`checkpoint`
//! writes such folders).

use std::sync::Arc;

use serde_json::Value;

use super::architecture::Architecture;
use super::entries::Entries;
use super::operator::Operator;
use super::tensor_name::name;
use super::weights::Weights;
use crate::error::Result;

/// Its entry in the config.
pub(crate) const ENTRY: &str = "ghostlab";
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
    fn all(architecture: &Architecture) -> impl Iterator<Item = Self> {
        let behind = [architecture.norms[1], architecture.norms[3]];
        [Self::Before, Self::After].into_iter().chain(behind.into_iter().flatten().map(Self::Norm))
    }
}

/// Returns the name of an operator's bias tensor.
pub(crate) fn bias_name(layer: usize, module: &str) -> String {
    format!("model.layers.{layer}.{module}.bias")
}

/// Returns the name of a norm that is followed by an operator, inside a module of both.
pub(crate) fn norm_name(layer: usize, norm: &str) -> String {
    name(layer, &format!("{norm}.norm"))
}

/// An operator that a config names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    pub layer: usize,
    pub place: BranchPlace,
    pub diagonal: bool,
    pub bias: bool,
}

impl Attachment {
    fn channels(self, hidden: usize) -> Vec<usize> {
        vec![hidden; if self.diagonal { 1 } else { 2 }]
    }

    /// Checks that exactly the operator's tensors exist, on streams of `hidden` channels: see
    /// [`check_weights`](super::check_weights).
    pub(super) fn check(self, hidden: usize, weights: &mut Weights) -> Result<()> {
        let module = self.place.module();
        weights.check(&name(self.layer, &module), &self.channels(hidden))?;
        if self.bias {
            weights.check(&bias_name(self.layer, &module), &[hidden])?;
        }
        Ok(())
    }

    pub(super) fn operator(self, hidden: usize, weights: &Weights) -> Result<Arc<Operator>> {
        let c = hidden;
        let module = self.place.module();
        let name = name(self.layer, &module);
        if self.diagonal {
            return Operator::diagonal(weights.take(&name, &[c])?);
        }
        // Stored as linear layers are: Wᵀ.
        let matrix = weights.transposed(&[(name, c)], c)?;
        match self.bias {
            true => Operator::affine(c, matrix, weights.take(&bias_name(self.layer, &module), &[c])?),
            false => Operator::dense(c, matrix),
        }
    }
}

/// Parses the operators that a config names, for a folder with `layers` layers.
pub(super) fn listed(entries: &Entries<'_>, architecture: &Architecture, layers: usize) -> Result<Vec<Attachment>> {
    let section = entries.map_at(ENTRY)?.ok_or_else(|| entries.wrong(ENTRY, "a map with operators"))?;
    let expected = "a list of operators: a layer, `at` a place of the architecture, `form` diagonal or dense, `bias`";
    let wrong = || section.wrong("operators", expected);
    let mut found: Vec<Attachment> = Vec::new();
    for value in section.get("operators").and_then(Value::as_array).ok_or_else(wrong)? {
        let layer = value.get("layer").and_then(Value::as_u64).and_then(|layer| usize::try_from(layer).ok());
        let layer = layer.filter(|&layer| layer < layers).ok_or_else(wrong)?;
        let branch = BranchPlace::all(architecture)
            .find(|branch| text_of("at", value) == Some(branch.name()))
            .ok_or_else(wrong)?;
        let diagonal = match text_of("form", value) {
            Some("dense") => false,
            // Behind a norm a diagonal would be another one than the decoder's, which stands before it; and a map that
            // adds something is a full one.
            Some("diagonal") if !matches!(branch, BranchPlace::Norm(_)) => true,
            _ => return Err(wrong()),
        };
        let bias = value.get("bias").and_then(Value::as_bool).filter(|bias| !(*bias && diagonal)).ok_or_else(wrong)?;
        if found.iter().any(|attachment| (attachment.layer, attachment.place) == (layer, branch)) {
            return Err(wrong());
        }
        found.push(Attachment { layer, place: branch, diagonal, bias });
    }
    if found.is_empty() { Err(wrong()) } else { Ok(found) }
}

fn text_of<'a>(key: &str, value: &'a Value) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}
