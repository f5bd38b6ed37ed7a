//! Neural Block Linearization (arXiv 2505.21077): an affine map replaces each removed sublayer. The published scripts
//! replace only attention sublayers. The Ghosted Layers paper does not evaluate this method.
//!
//! The sublayer adds `a` to the stream. The linear minimum mean square error estimate of `a` from `z` is `z·Wᵀ + b`,
//! where `W = C_az·C_zz⁻¹` and `b = E[a] − W·E[z]`, without a ridge. The published scripts estimate from the stream,
//! `z = x`, and also remove the norm before the sublayer. `input: normed` estimates from `z = RMSNorm(x)`, as with the
//! published option `layer_drop_norm False`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Solution, Span};
use super::method::{FitSequences, Recovery, RecoveryEntry, build};
use super::stream_fit;
use crate::error::Result;
use crate::map_input::MapInput;
use crate::model::{Config, StepForm};
use crate::options::Variant;

pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<Nbl>("nbl", "https://github.com/LIONS-EPFL/NBL", build::<Nbl>)
        .label("NBL")
        .variants(VARIANTS)
        .not_in_paper();

const VARIANTS: &[Variant] =
    &[Variant { option: "input", value: "normed", word: "normed", label: "NBL, normed input" }];

/// `x ← x + z·Wᵀ + b` in place of a sublayer, fitted on the operator sequences.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Nbl {
    /// Input to the map: the stream, or the normed stream that the sublayer reads.
    input: MapInput,
}

impl Recovery for Nbl {
    fn replaces_sublayers(&self) -> bool {
        true
    }

    fn step_form(&self, _: &Config) -> Option<StepForm> {
        Some(match self.input {
            MapInput::Stream => StepForm::Stream,
            MapInput::Normed => StepForm::Normed,
        })
    }

    fn fit_sequences(&self, _: bool) -> FitSequences {
        FitSequences::First
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let Span { start: layer, sublayer, .. } = boundary.span;
        let norm = match (self.input, sublayer) {
            // A sublayer without a preceding norm reads the stream itself.
            (MapInput::Normed, Some(sublayer)) => {
                Some(boundary.backbone.input_norm(layer, sublayer)?).filter(|norm| norm.weight.is_some())
            }
            _ => None,
        };
        stream_fit::solve(boundary, norm, true, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::calibrate::HookPoint;
    use crate::model::{Cut, Sublayer};
    use crate::recovery::boundary::tests::{LiteralActivations, near};
    use crate::recovery::{Span, build, spans};

    #[test]
    fn nbl_recovers_the_known_linear_map_of_a_sublayer() {
        // a = x·(1 0; 1 2) + (5, −1) at the corners of the unit square.
        let pre = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
        let post = [5.0, -1.0, 7.0, -1.0, 6.0, 2.0, 8.0, 2.0];
        let method = build("nbl", json!({}).as_object().unwrap()).unwrap();
        for (sublayer, sites) in [
            (Sublayer::Attention, [HookPoint::Stream(1), HookPoint::Middle(1)]),
            (Sublayer::Mlp, [HookPoint::Middle(1), HookPoint::Stream(2)]),
        ] {
            let written = LiteralActivations::at(2, 1, &[(sites[0], &pre[..]), (sites[1], &post[..])]);
            let solution = written.solve_at(Span::sublayer(1, sublayer), &*method).unwrap();
            let operator = solution.repair.operator().unwrap();
            near(&operator.linear_part().unwrap(), &[2.0, 0.0, 1.0, 3.0]);
            near(&operator.bias().unwrap().unwrap(), &[5.0, -1.0]);
            assert_eq!((solution.system.unwrap().rank, solution.notes.len()), (2, 0));
        }
    }

    #[test]
    fn every_removed_sublayer_is_replaced_by_a_map() {
        let method = build("nbl", json!({"input": "normed"}).as_object().unwrap()).unwrap();
        let removed = [(2, Sublayer::Attention), (3, Sublayer::Attention), (3, Sublayer::Mlp)];
        let found = spans(&*method, &Cut::sublayers(removed));
        assert_eq!(found, removed.map(|(layer, sublayer)| Span::sublayer(layer, sublayer)));
        assert_eq!(method.sites(found[0]), [HookPoint::Stream(2), HookPoint::Middle(2)]);
        assert_eq!(method.sites(found[2]), [HookPoint::Middle(3), HookPoint::Stream(4)]);
    }
}
