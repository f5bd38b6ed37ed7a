//! Neural Block Linearization (arXiv 2505.21077), which the paper does not include: an affine map replaces a removed
//! attention sublayer.
//!
//! The attention adds `a` to the stream. Its linear minimum mean square error estimate from `z` is `z·Wᵀ + b`, where
//! `W = C_az·C_zz⁻¹` and `b = E[a] − W·E[z]`, without a ridge. The published scripts estimate from the stream, `z = x`,
//! and also remove the norm before the attention. `input: normed` estimates from `z = RMSNorm(x)`, as with the
//! published option `layer_drop_norm False`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Solution};
use super::method::{FitSequences, Recovery, RecoveryEntry, build};
use super::stream_fit;
use crate::error::Result;
use crate::map_input::MapInput;
use crate::model::{Config, Operator, StepForm, Sublayer};
use crate::options::Variant;

const NAME: &str = "nbl";
const SOURCE: &str = "https://github.com/LIONS-EPFL/NBL";
pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<Nbl>(NAME, SOURCE, build::<Nbl>).label("NBL").variants(VARIANTS).not_in_paper();

const VARIANTS: &[Variant] =
    &[Variant { option: "input", value: "normed", word: "normed", label: "NBL, normed input" }];

/// `x ← x + z·Wᵀ + b` in place of an attention, fitted on the operator sequences.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Nbl {
    /// Input to the map: the stream, or the normed stream that the attention reads.
    input: MapInput,
}

impl Recovery for Nbl {
    fn sublayer(&self) -> Option<Sublayer> {
        Some(Sublayer::Attention)
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
        let channels = boundary.channels();
        let norm = match self.input {
            MapInput::Stream => None,
            // An attention sublayer without a preceding norm reads the stream itself.
            MapInput::Normed => {
                Some(boundary.backbone.stream_norm(boundary.span.start)?).filter(|norm| norm.weight.is_some())
            }
        };
        let read = |pre: &[f32], stream: Vec<f64>| norm.as_ref().map_or(stream, |norm| norm.apply(pre, channels));
        let (solved, bias) = stream_fit::with_bias(boundary, &read, 0.0)?;
        let operator = match norm {
            None => Operator::affine(channels, solved.with_identity(channels), bias)?,
            Some(norm) => {
                Operator::normed(norm, channels, solved.matrix.iter().map(|&v| v as f32).collect(), Some(bias))?
            }
        };
        Ok(solved.on_stream(operator))
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
    fn nbl_recovers_a_known_linear_map_of_an_attention_sublayer() {
        // a = x·(1 0; 1 2) + (5, −1) at the corners of a square.
        let pre = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
        let post = [5.0, -1.0, 7.0, -1.0, 6.0, 2.0, 8.0, 2.0];
        let sites = [(HookPoint::Stream(1), &pre[..]), (HookPoint::Middle(1), &post[..])];
        let written = LiteralActivations::at(2, 1, &sites);
        let method = build("nbl", json!({}).as_object().unwrap()).unwrap();
        let solution = written.solve_at(Span::sublayer(1, Sublayer::Attention), &*method).unwrap();
        let operator = solution.repair.operator().unwrap();
        near(&operator.linear_part().unwrap(), &[2.0, 0.0, 1.0, 3.0]);
        near(&operator.bias().unwrap().unwrap(), &[5.0, -1.0]);
        assert_eq!((solution.system.unwrap().rank, solution.notes.len()), (2, 0));
    }

    #[test]
    fn every_removed_attention_sublayer_is_replaced_by_a_map() {
        let method = build("nbl", json!({"input": "normed"}).as_object().unwrap()).unwrap();
        let cut = Cut::sublayers([(2, Sublayer::Attention), (3, Sublayer::Attention), (5, Sublayer::Mlp)]);
        let found = spans(&*method, &cut);
        assert_eq!(found, [2, 3].map(|layer| Span::sublayer(layer, Sublayer::Attention)));
        assert_eq!(method.sites(found[0]), [HookPoint::Stream(2), HookPoint::Middle(2)]);
    }
}
