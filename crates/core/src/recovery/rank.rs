//! Low-rank variant of Ghosted Layers, which the paper does not include.
//!
//! Let `X` be the residual stream before the removed layers, `Δ` their update, `C` the number of channels, and `M` the
//! map of [`ghosted`](super::ghosted), which minimizes `‖X·M − Δ‖`. Among all maps `N` of rank `r`, `N = D·U` with
//! `D = M·V` and `U = Vᵀ` minimizes `‖X·(N − M)‖`, where the columns of `V` are the first `r` eigenvectors of `MᵀXᵀΔ`
//! (derivation at [`NormalEquations::low_rank_approximation`]). The residual of `M` is orthogonal to the columns of `X`,
//! so `N` also minimizes `‖X·N − Δ‖² = ‖X·(N − M)‖² + ‖X·M − Δ‖²`. Computing `x + (x·D)·U` needs `2·C·r` stored numbers
//! instead of `C²`, and `2·C·r` multiplications per token.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Solution, Span};
use super::least_squares::{self, RIDGE};
use super::method::{FitSequences, Recovery, RecoveryEntry};
use crate::error::{Error, Result};
use crate::model::{Config, Operator};
use crate::options::{self, Options};

const NAME: &str = "rank";
pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<Rank>(NAME, "", build).label("Ghost Layer, low rank").not_in_paper();

/// Ghosted's map `W = I + D·U`, restricted to the directions that change the stream most.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Rank {
    /// Number of columns in `D` and of rows in `U`.
    #[schemars(range(min = 1))]
    rank: usize,
    /// Whether to use one operator per region or one per removed layer.
    boundary: Placement,
}

impl Default for Rank {
    fn default() -> Self {
        Self { rank: 32, boundary: Placement::default() }
    }
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    let settings: Rank = options::read(name, options)?;
    if settings.rank == 0 {
        return Err(options::invalid_options(name, "`rank` of 1 or more", 0));
    }
    Ok(Box::new(settings))
}

impl Recovery for Rank {
    fn check(&self, config: &Config) -> Result<()> {
        if self.rank <= config.hidden {
            return Ok(());
        }
        Err(Error::bad_input("the rank exceeds the hidden size")
            .at(format!("`rank` of `{NAME}`"))
            .expected(format!("at most {}", config.hidden))
            .found(self.rank))
    }

    fn spans(&self, region: Span) -> Vec<Span> {
        self.boundary.spans(region)
    }

    fn fit_sequences(&self, _: bool) -> FitSequences {
        FitSequences::First
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let channels = boundary.channels();
        let normal = boundary.normal_equations()?;
        let solved = least_squares::solve(&normal, RIDGE)?;
        let factors = normal.low_rank_approximation(&solved.matrix, self.rank)?;
        let down = factors.down.into_iter().map(|v| v as f32).collect();
        let up = factors.up.into_iter().map(|v| v as f32).collect();
        let operator = Operator::low_rank(channels, down, up)?;
        let note = format!("rank {} keeps {:.1} % of ghosted's correction", self.rank, 100.0 * factors.fraction);
        Ok(solved.on_stream(operator).note(note))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::recovery::boundary::tests::{LiteralActivations, near};

    #[test]
    fn low_rank_map_keeps_the_direction_of_largest_change() {
        // XᵀX = diag(16, 1) and M = diag(1, 3), so the rows move by 4 along the first channel and by 3 along the
        // second.
        let streams: [(usize, &[f32]); 2] = [(1, &[4.0, 0.0, 0.0, 1.0]), (2, &[8.0, 0.0, 0.0, 4.0])];
        let written = LiteralActivations::new(2, 1, &streams);
        let [(one, notes), (two, _)] = [1, 2].map(|rank| {
            let solution = written.solve((1, 2), &[], "rank", &json!({"rank": rank})).unwrap();
            let operator = solution.repair.operator().unwrap();
            assert_eq!(operator.parts().unwrap().1.len(), 4 * rank);
            (operator.to_dense().unwrap(), solution.notes)
        });
        near(&one, &[2.0, 0.0, 0.0, 1.0]);
        assert_eq!(notes, ["rank 1 keeps 64.0 % of ghosted's correction"]);
        near(&two, &[2.0, 0.0, 0.0, 4.0]);
    }
}
