//! ReplaceMe with least squares: a linear map of the MLP output before the region (docs/design.md §7). The reference is
//! the ReplaceMe repository.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Repair, Solution, Span, branch_and_target};
use super::least_squares::{self, LeastSquaresSolution};
use super::method::{Recovery, RecoveryEntry, RepairTarget};
use crate::calibrate::HookPoint;
use crate::error::Result;
use crate::model::{Config, Operator, Sublayer};
use crate::options::{self, Options};
use crate::style::{Dash, Hue, Marker, Style};

pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<LeastSquares>("replaceme-ls", "https://github.com/mts-ai/ReplaceMe", build)
        .label("ReplaceMe (LS)")
        .style(Style::new(Hue::Green, Marker::Square, Dash::Long));

/// Map `T = (AᵀA + αI)⁻¹AᵀY`, where `A` is the MLP output of layer `s − 1` and `Y = X_post − (X_pre − A)`, over all
/// sequences.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LeastSquares {
    /// Ridge added to the diagonal of `AᵀA`.
    alpha: f64,
    /// Whether to use one map per region or one per removed layer. Maps of several layers are multiplied.
    boundary: Placement,
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    let settings: LeastSquares = options::read(name, options)?;
    if !settings.alpha.is_finite() || settings.alpha < 0.0 {
        return Err(options::invalid_options(name, "`alpha` of 0 or more", settings.alpha));
    }
    Ok(Box::new(settings))
}

/// Creates a solution that maps the MLP output. Adds a note if the map cannot be folded into `down_proj`.
pub(super) fn on_branch(map: Vec<f32>, boundary: &Boundary<'_>) -> Result<Solution> {
    let operator = Operator::dense(boundary.channels(), map)?;
    let solution = Solution::new(Repair::Branches { operator, attention: false });
    Ok(if ends_in_norm(boundary.backbone.config()) {
        solution.note("the MLP ends in a norm: its map is a linear step after that norm, not folded")
    } else {
        solution
    })
}

fn squared_norm(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v).powi(2)).sum()
}

fn ends_in_norm(config: &Config) -> bool {
    config.ends_in_norm(Sublayer::Mlp)
}

impl Recovery for LeastSquares {
    fn target(&self) -> RepairTarget {
        RepairTarget::Branch
    }

    fn spans(&self, region: Span) -> Vec<Span> {
        self.boundary.spans(region)
    }

    fn sites(&self, span: Span) -> Vec<HookPoint> {
        // The MLP output before the span is the difference of two streams.
        span.ends_and(HookPoint::Middle)
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let mut sums = boundary.new_sums();
        let mut squares = 0.0;
        for rows in boundary.blocks(boundary.fitted) {
            let pre = boundary.pre(rows.clone())?;
            let post = boundary.post(rows.clone())?;
            let middle = boundary.middle(rows)?;
            squares += squared_norm(pre) + squared_norm(middle);
            let (branch, target) = branch_and_target(pre, middle, post);
            sums.add(&branch, &target)?;
        }
        let mut normal = sums.finish()?;
        // The branch is a difference of two streams, so its rounding error scales with their magnitude.
        normal.set_source_squared_norm(squares);
        let LeastSquaresSolution { matrix, system, notes } = least_squares::solve(&normal, self.alpha)?;
        let mut solution = on_branch(matrix.into_iter().map(|v| v as f32).collect(), boundary)?;
        solution.system = Some(system);
        solution.notes.extend(notes);
        Ok(solution)
    }
}
