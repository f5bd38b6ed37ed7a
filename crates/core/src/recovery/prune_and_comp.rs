//! Prune&Comp: magnitude compensation folded into existing weights (Chen et al. 2025; appendix A of the Ghosted Layers
//! paper; docs/design.md §7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Repair, Solution, Span, add_magnitudes};
use super::method::{ELEMENT_COST, Recovery, RecoveryEntry, RepairTarget};
use crate::calibrate::HookPoint;
use crate::error::{Error, Result};
use crate::model::{Config, Operator, StepForm, Sublayer};
use crate::options::{self, Options};
use crate::style::{Dash, Hue, Marker, Style};

const NAME: &str = "prune-and-comp";
pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<PruneAndCompOptions>(NAME, "no public code: from the paper", build)
        .resolving(resolve)
        .label("Prune and Comp")
        .style(Style::new(Hue::Purple, Marker::TriangleDown, Dash::DashDotDot));

/// `d = mean|X_post| / mean|X_pre|` over all sequences.
///
/// - `granularity: channel, target: boundary` (the paper's description): one factor per channel, on the output rows of
///   `o_proj` and `down_proj` of layer `s − 1`. If a branch ends in a norm, the norm removes the common magnitude of the
///   factors, and only their proportions reach the stream.
/// - `granularity: scalar, target: stream` (the original method): one factor on the embedding and on every `o_proj` and
///   `down_proj` before the region. An RMS norm ignores the scale of its input, so the branches before the region do not
///   change and the stream arrives scaled. One factor on the stream at the boundary gives the same result and lets
///   variants share the steps before it. If branches end in norms, factors on projections have no effect; the factor then
///   is a separate step, with a note.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct PruneAndCompOptions {
    /// Whether to use one factor per channel or one for all channels.
    granularity: Option<Granularity>,
    /// Weights to scale. Determined by `granularity`.
    target: Option<Target>,
    /// Whether to compute factors per region or per removed layer. Factors of several layers are multiplied.
    boundary: Placement,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Granularity {
    Channel,
    Scalar,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Target {
    Boundary,
    Stream,
}

struct PruneAndComp {
    granularity: Granularity,
    placement: Placement,
}

/// Fills in the granularity and the target, each of which determines the other. The defaults are those of the paper.
fn resolve(name: &str, options: &Options) -> Result<Options> {
    let mut settings: PruneAndCompOptions = options::read(name, options)?;
    let (granularity, target) = resolve_granularity(&settings)?;
    (settings.granularity, settings.target) = (Some(granularity), Some(target));
    options::to_options(name, &settings)
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    let settings: PruneAndCompOptions = options::read(name, options)?;
    Ok(Box::new(PruneAndComp { granularity: resolve_granularity(&settings)?.0, placement: settings.boundary }))
}

fn resolve_granularity(settings: &PruneAndCompOptions) -> Result<(Granularity, Target)> {
    match (settings.granularity, settings.target) {
        (None | Some(Granularity::Channel), None | Some(Target::Boundary)) => {
            Ok((Granularity::Channel, Target::Boundary))
        }
        (None | Some(Granularity::Scalar), Some(Target::Stream)) | (Some(Granularity::Scalar), None) => {
            Ok((Granularity::Scalar, Target::Stream))
        }
        _ => Err(Error::bad_input(format!("`granularity` and `target` of `{NAME}` do not match"))
            .expected("`granularity: channel, target: boundary` or `granularity: scalar, target: stream`")
            .found(match settings.granularity {
                Some(Granularity::Channel) => "`granularity: channel, target: stream`",
                _ => "`granularity: scalar, target: boundary`",
            })
            .hint("remove one of the two options, because each determines the other")),
    }
}

impl Recovery for PruneAndComp {
    fn target(&self) -> RepairTarget {
        match self.granularity {
            Granularity::Channel => RepairTarget::Rows,
            Granularity::Scalar => RepairTarget::Stream,
        }
    }

    fn step_form(&self, config: &Config) -> Option<StepForm> {
        // A single factor is folded into the branches that follow, unless they end in norms.
        let is_step = self.granularity == Granularity::Scalar
            && Sublayer::ALL.iter().any(|sublayer| config.ends_in_norm(*sublayer));
        is_step.then_some(StepForm::Stream)
    }

    fn spans(&self, region: Span) -> Vec<Span> {
        self.placement.spans(region)
    }

    fn sites(&self, span: Span) -> Vec<HookPoint> {
        match self.granularity {
            Granularity::Scalar => vec![span.input(), span.output()],
            // Recomputing the output of the layer whose weights change requires its input.
            Granularity::Channel => span.ends_and(HookPoint::Stream),
        }
    }

    fn estimated_operations(&self, channels: usize, rows: usize) -> f64 {
        2.0 * ELEMENT_COST * (rows * channels) as f64
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let channels = boundary.channels();
        let mut pre = vec![0.0; channels];
        let mut post = vec![0.0; channels];
        for rows in boundary.blocks(boundary.fitted) {
            add_magnitudes(&mut pre, boundary.pre(rows.clone())?);
            add_magnitudes(&mut post, boundary.post(rows)?);
        }
        let ends_in_norm = boundary.backbone.config().ends_in_norm(Sublayer::Mlp);
        match self.granularity {
            Granularity::Scalar => {
                let pre = pre.iter().sum::<f64>();
                let post = post.iter().sum::<f64>();
                if pre == 0.0 {
                    return Err(Error::job("the residual stream before the region is zero").at(NAME));
                }
                let operator = Operator::diagonal(vec![(post / pre) as f32; channels])?;
                let solution = Solution::new(Repair::Stream(operator));
                Ok(if ends_in_norm {
                    solution.note(
                        "branches end in norms: the factor is a separate step instead of being folded into weights",
                    )
                } else {
                    solution
                })
            }
            Granularity::Channel => {
                // A factor cannot change a channel that is zero before the region.
                let zero_channels = pre.iter().filter(|&&pre| pre == 0.0).count();
                let operator = Operator::diagonal(
                    pre.into_iter()
                        .zip(post)
                        .map(|(pre, post)| if pre == 0.0 { 1.0 } else { (post / pre) as f32 })
                        .collect(),
                )?;
                let solution = if boundary.span.start == 0 {
                    Solution::new(Repair::Stream(operator))
                        .note("no remaining layer before the region: the embedding is scaled")
                } else {
                    let solution = Solution::new(Repair::Branches { operator, attention: true });
                    let note = "branches end in norms: of the factors before these, only the proportions count";
                    if ends_in_norm { solution.note(note) } else { solution }
                };
                Ok(if zero_channels == 0 {
                    solution
                } else {
                    solution.note(format!("{zero_channels} channels that are always zero keep factor 1"))
                })
            }
        }
    }
}
