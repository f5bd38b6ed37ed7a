//! Programs: lists of the steps by which a backbone or a pruned variant transforms the residual stream (design §3).

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem::{self, Discriminant};
use std::sync::Arc;

use super::cut::Cut;
use super::merged_layer::MergedLayer;
use super::operator::Operator;
use super::sublayer::Sublayer;

/// One step over the residual stream. Operators and merged layers are compared by their content hashes.
#[derive(Clone)]
pub enum Step {
    /// Embedding of the token ids.
    Embed,
    /// Sublayer of a layer, including the residual addition.
    Sublayer(Sublayer, usize),
    /// Sublayer whose branch is multiplied by an operator before the residual addition: `x ← x + branch(x)·T`.
    /// Equivalent to folding `T` into the weights ([`Decoder::folded`](super::Decoder::folded)). If the branch ends in
    /// a norm, a diagonal operator is applied before the norm, and a dense one, which cannot be folded, after it.
    Edited(Sublayer, usize, Arc<Operator>),
    /// Sublayer in a layer with merged weights, including the residual addition.
    Merged(Sublayer, Arc<MergedLayer>),
    /// Operator that a [recovery method](crate::recovery) applies to the residual stream.
    Apply(Arc<Operator>),
    /// Final norm, output projection, and log-probability of each target.
    Head,
}

/// Identity of a step: its kind, its sublayer, and the content hash of its operator or merged layer.
pub(super) type StepIdentity<'a> = (Discriminant<Step>, Option<(Sublayer, usize)>, &'a [u8]);

impl Step {
    /// Returns the index of the layer whose weights the step needs, or `usize::MAX` for the head. Returns `None` if the
    /// step needs no weights that are loaded on demand.
    pub(super) fn weight_index(&self) -> Option<usize> {
        match self {
            Self::Head => Some(usize::MAX),
            _ => self.sublayer().map(|(_, layer)| layer),
        }
    }

    /// Returns the sublayer that the step computes and its layer index, or `None` if it computes no sublayer.
    pub fn sublayer(&self) -> Option<(Sublayer, usize)> {
        match self {
            Self::Sublayer(sublayer, layer) | Self::Edited(sublayer, layer, _) => Some((*sublayer, *layer)),
            Self::Merged(sublayer, merged) => Some((*sublayer, merged.layer())),
            Self::Embed | Self::Apply(_) | Self::Head => None,
        }
    }

    /// Returns whether the step processes each row independently.
    pub(super) fn is_rowwise(&self) -> bool {
        !matches!(self, Self::Embed) && !self.is_attention()
    }

    /// Returns whether the step computes attention, which needs a KV cache when decoding.
    pub(super) fn is_attention(&self) -> bool {
        matches!(self.sublayer(), Some((Sublayer::Attention, _)))
    }

    /// Returns the operator that the step applies to the stream or to a branch, if any.
    pub(super) fn operator(&self) -> Option<&Arc<Operator>> {
        match self {
            Self::Edited(.., operator) | Self::Apply(operator) => Some(operator),
            Self::Embed | Self::Sublayer(..) | Self::Merged(..) | Self::Head => None,
        }
    }

    pub(super) fn identity(&self) -> StepIdentity<'_> {
        let key = match self {
            Self::Merged(_, merged) => merged.key_bytes(),
            _ => self.operator().map_or(&[][..], |operator| operator.key_bytes()),
        };
        (mem::discriminant(self), self.sublayer(), key)
    }
}

impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Step {}

impl Hash for Step {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embed => write!(f, "Embed"),
            Self::Sublayer(sublayer, layer) => write!(f, "{sublayer:?}({layer})"),
            Self::Edited(sublayer, layer, operator) => write!(f, "{sublayer:?}({layer}·{})", &operator.key()[..8]),
            Self::Merged(sublayer, merged) => {
                write!(f, "{sublayer:?}({}, merged {})", merged.layer(), &merged.key()[..8])
            }
            Self::Apply(operator) => write!(f, "Apply({})", &operator.key()[..8]),
            Self::Head => write!(f, "Head"),
        }
    }
}

/// Operators and merged layers that [recovery methods](crate::recovery) add to a pruned backbone.
#[derive(Debug, Clone, Default)]
pub struct Repairs {
    /// Operators on the residual stream, keyed by the removed layer that they replace.
    pub stream: BTreeMap<usize, Arc<Operator>>,
    /// Operators on the residual stream, keyed by the removed sublayer that they replace.
    pub sublayers: BTreeMap<(usize, Sublayer), Arc<Operator>>,
    /// Operators on the branches of remaining sublayers.
    pub branches: BTreeMap<(usize, Sublayer), Arc<Operator>>,
    /// Remaining layers whose weights are merged with those of removed layers.
    pub merged: BTreeMap<usize, Arc<MergedLayer>>,
}

/// Steps of one variant, in execution order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program(pub Vec<Step>);

impl Program {
    /// Returns the unpruned program.
    pub fn dense(layers: usize) -> Self {
        Self::pruned(layers, &[], |_| None)
    }

    /// Returns the unpruned program without the head. Its output is the final residual stream `X_L`.
    pub fn trunk(layers: usize) -> Self {
        let mut program = Self::dense(layers);
        program.0.pop();
        program
    }

    /// Returns the program without the layers in `removed`. The operator `operator_at(s)` replaces the removed region
    /// that starts at layer `s`.
    ///
    /// If a region starts at layer 0, its operator comes before the first remaining layer.
    pub fn pruned(layers: usize, removed: &[usize], operator_at: impl Fn(usize) -> Option<Arc<Operator>>) -> Self {
        let starts = removed.iter().filter(|&&layer| layer == 0 || !removed.contains(&(layer - 1)));
        let stream = starts.filter_map(|&start| Some((start, operator_at(start)?))).collect();
        let cut = Cut::layers(removed.iter().copied());
        Self::repaired(layers, &cut, &Repairs { stream, ..Repairs::default() })
    }

    /// Returns the program without the sublayers of a cut.
    pub fn without(layers: usize, cut: &Cut) -> Self {
        Self::repaired(layers, cut, &Repairs::default())
    }

    /// Returns the program without the sublayers of a cut, but with the given repairs.
    pub fn repaired(layers: usize, cut: &Cut, repairs: &Repairs) -> Self {
        let mut steps = vec![Step::Embed];
        for layer in 0..layers {
            if cut.contains_layer(layer) {
                steps.extend(repairs.stream.get(&layer).map(|operator| Step::Apply(Arc::clone(operator))));
            }
            for sublayer in Sublayer::ALL {
                if cut.contains(layer, sublayer) {
                    let operator = repairs.sublayers.get(&(layer, sublayer));
                    steps.extend(operator.map(|operator| Step::Apply(Arc::clone(operator))));
                    continue;
                }
                steps.push(match (repairs.branches.get(&(layer, sublayer)), repairs.merged.get(&layer)) {
                    (Some(operator), _) => Step::Edited(sublayer, layer, Arc::clone(operator)),
                    (None, Some(merged)) => Step::Merged(sublayer, Arc::clone(merged)),
                    (None, None) => Step::Sublayer(sublayer, layer),
                });
            }
        }
        steps.push(Step::Head);
        Self(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attention(layer: usize) -> Step {
        Step::Sublayer(Sublayer::Attention, layer)
    }

    fn mlp(layer: usize) -> Step {
        Step::Sublayer(Sublayer::Mlp, layer)
    }

    #[test]
    fn operator_replaces_the_removed_layers() {
        let operator = Operator::diagonal(vec![1.0, 2.0]).unwrap();
        let program = Program::pruned(4, &[1, 2], |start| (start == 1).then(|| Arc::clone(&operator)));
        use Step::{Apply, Embed, Head};
        assert_eq!(program.0, [Embed, attention(0), mlp(0), Apply(operator), attention(3), mlp(3), Head]);
    }

    #[test]
    fn operators_replace_a_removed_first_and_last_layer() {
        let operator = Operator::diagonal(vec![1.0]).unwrap();
        let program = Program::pruned(3, &[0, 2], |_| Some(Arc::clone(&operator)));
        use Step::{Apply, Embed, Head};
        assert_eq!(program.0, [Embed, Apply(operator.clone()), attention(1), mlp(1), Apply(operator), Head]);
    }

    #[test]
    fn operators_replace_both_sublayers_of_a_layer() {
        use Sublayer::{Attention, Mlp};
        let [first, second] = [1.0, 2.0].map(|d| Operator::diagonal(vec![d]).unwrap());
        let sublayers = [((1, Attention), first.clone()), ((1, Mlp), second.clone())].into();
        let repairs = Repairs { sublayers, ..Repairs::default() };
        let program = Program::repaired(2, &Cut::sublayers([(1, Attention), (1, Mlp)]), &repairs);
        let steps = [Step::Embed, attention(0), mlp(0), Step::Apply(first), Step::Apply(second), Step::Head];
        assert_eq!(program.0, steps);
    }

    #[test]
    fn repairs_are_inserted_at_removed_layers_and_branches() {
        let operators = [1.0, 2.0, 3.0].map(|d| Operator::diagonal(vec![d]).unwrap());
        let [first, second, branch] = operators.each_ref().map(Arc::clone);
        let repairs = Repairs {
            stream: [(1, first.clone()), (2, second.clone())].into(),
            branches: [((0, Sublayer::Mlp), branch.clone())].into(),
            ..Repairs::default()
        };
        let program = Program::repaired(4, &Cut::layers([1, 2]), &repairs);
        use Step::{Apply, Edited, Embed, Head};
        let expected = [
            Embed,
            attention(0),
            Edited(Sublayer::Mlp, 0, branch),
            Apply(first),
            Apply(second),
            attention(3),
            mlp(3),
            Head,
        ];
        assert_eq!(program.0, expected);
        assert_ne!(program, Program::pruned(4, &[1, 2], |_| None));
    }

    #[test]
    fn removed_sublayers_are_omitted_from_the_program() {
        use Step::{Embed, Head};
        let cut = Cut::layers([2]).with(0, Sublayer::Mlp).with(1, Sublayer::Attention);
        assert_eq!(Program::without(4, &cut).0, [Embed, attention(0), mlp(1), attention(3), mlp(3), Head]);
        assert_eq!(Program::without(2, &Cut::default()), Program::dense(2));
    }

    #[test]
    fn operator_replaces_a_removed_attention_sublayer() {
        use Step::{Apply, Embed, Head};
        let operator = Operator::diagonal(vec![1.0]).unwrap();
        let sublayers = [((1, Sublayer::Attention), operator.clone())].into();
        let cut = Cut::sublayers([(1, Sublayer::Attention), (0, Sublayer::Mlp)]);
        let program = Program::repaired(2, &cut, &Repairs { sublayers, ..Repairs::default() });
        assert_eq!(program.0, [Embed, attention(0), Apply(operator), mlp(1), Head]);
    }

    #[test]
    fn operators_compare_by_content() {
        let a = Operator::diagonal(vec![1.0, 2.0]).unwrap();
        let b = Operator::diagonal(vec![1.0, 2.0]).unwrap();
        let other = Operator::diagonal(vec![1.0, 2.5]).unwrap();
        assert_eq!(Step::Apply(Arc::clone(&a)), Step::Apply(b));
        assert_ne!(Step::Apply(a), Step::Apply(other));
    }
}
