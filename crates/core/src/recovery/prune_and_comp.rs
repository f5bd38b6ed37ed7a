//! Prune&Comp: magnitudes made up for, in weights that are there already (Chen et al. 2025; paper appendix A; design §7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::add_magnitudes;
use super::{Boundary, Entry, Recovery, Repair, Solution, Span};
use crate::calibrate::Site;
use crate::error::{Error, Result};
use crate::model::Operator;
use crate::options::{self, Options};

const NAME: &str = "prune-and-comp";
const SOURCE: &str = "no public code: from the paper";
pub(super) const ENTRY: Entry = Entry::new::<Settings>(NAME, SOURCE, build).resolving(resolve);

/// `d = mean|X_post| / mean|X_pre|` over all sequences.
///
/// - `granularity: channel, target: boundary` (the paper's description): one factor a channel, on the output rows of
///   `o_proj` and `down_proj` of layer `s − 1`.
/// - `granularity: scalar, target: stream` (the original method): one factor on the embedding and all `o_proj` and
///   `down_proj` before the region. A root-mean-square norm does not see the scale of what it norms, so every branch
///   before the region stays as it is and the stream arrives scaled: which is what one factor on the stream at the
///   boundary gives, exactly, and with all steps before it shared.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// One factor for each channel, or one for all.
    granularity: Option<Granularity>,
    /// What is scaled; it follows from `granularity`.
    target: Option<Target>,
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

/// One of the two forms.
enum PruneAndComp {
    Channel,
    Scalar,
}

/// Each of the two follows from the other; by default they are the paper's.
fn resolve(name: &str, options: &Options) -> Result<Options> {
    let settings: Settings = options::read(name, options)?;
    let (granularity, target) = match form(&settings)? {
        PruneAndComp::Channel => (Granularity::Channel, Target::Boundary),
        PruneAndComp::Scalar => (Granularity::Scalar, Target::Stream),
    };
    options::written(name, &Settings { granularity: Some(granularity), target: Some(target) })
}

fn build(options: &Options) -> Result<Box<dyn Recovery>> {
    Ok(Box::new(form(&options::read(NAME, options)?)?))
}

fn form(settings: &Settings) -> Result<PruneAndComp> {
    match (settings.granularity, settings.target) {
        (None | Some(Granularity::Channel), None | Some(Target::Boundary)) => Ok(PruneAndComp::Channel),
        (None | Some(Granularity::Scalar), Some(Target::Stream)) | (Some(Granularity::Scalar), None) => {
            Ok(PruneAndComp::Scalar)
        }
        _ => Err(Error::bad_input(format!("options of `{NAME}` that do not go together"))
            .expected("`granularity: channel, target: boundary` or `granularity: scalar, target: stream`")
            .found("the one with the other's")
            .hint("factors by channel change what a norm gives, so only one factor for all can go through the stream")),
    }
}

impl Recovery for PruneAndComp {
    fn sites(&self, span: Span) -> Vec<Site> {
        let around = [Site::Stream(span.start), Site::Stream(span.end)];
        match self {
            Self::Scalar => around.to_vec(),
            // What enters the layer whose weights change: its new output is computed from there.
            Self::Channel => span.start.checked_sub(1).map(Site::Stream).into_iter().chain(around).collect(),
        }
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let channels = boundary.channels();
        let (mut pre, mut post) = (vec![0.0; channels], vec![0.0; channels]);
        for rows in boundary.blocks(boundary.fitted) {
            add_magnitudes(&mut pre, boundary.pre(rows.clone())?);
            add_magnitudes(&mut post, boundary.post(rows)?);
        }
        match self {
            Self::Scalar => {
                let (pre, post) = (pre.iter().sum::<f64>(), post.iter().sum::<f64>());
                if pre == 0.0 {
                    return Err(Error::job("the residual stream before the region is zero").at(NAME));
                }
                let operator = Operator::diagonal(vec![(post / pre) as f32; channels])?;
                Ok(Solution::of(Repair::Stream(operator)))
            }
            Self::Channel => {
                // A channel that is silent before the region has nothing that a factor could change.
                let silent = pre.iter().filter(|&&pre| pre == 0.0).count();
                let factor = |(pre, post): (f64, f64)| if pre == 0.0 { 1.0 } else { (post / pre) as f32 };
                let operator = Operator::diagonal(pre.into_iter().zip(post).map(factor).collect())?;
                let solution = if boundary.span.start == 0 {
                    Solution::of(Repair::Stream(operator)).note("no layer stands before: the embedding is scaled")
                } else {
                    Solution::of(Repair::Branches { operator, attention: true })
                };
                Ok(if silent == 0 {
                    solution
                } else {
                    solution.note(format!("{silent} silent channels keep factor 1"))
                })
            }
        }
    }
}
