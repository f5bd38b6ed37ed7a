//! Ghosted Layers: the least-squares map of the update of the removed layers (paper §3, Theorem 1; design §7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Solution, Span, System, pre_and_delta};
use super::least_squares::{self, Ridge, Solved};
use super::method::{F64_COST, Fitted, Recovery, RecoveryEntry, least_squares_operations};
use crate::error::{Error, Result};
use crate::linalg::streaming_qr::StreamingQr;
use crate::model::Operator;
use crate::options::{self, Options, Variant};
use crate::style::{Dash, Hue, Marker, Style};

const NAME: &str = "ghosted";
const SOURCE: &str = "https://github.com/daniel-eai/ghosted_layers_official_repository";
pub(super) const ENTRY: RecoveryEntry = RecoveryEntry::new::<Ghosted>(NAME, SOURCE, build)
    .label("Ghost Layer (Ours)")
    .style(Style::new(Hue::Blue, Marker::Circle, Dash::Solid))
    .ours()
    .variants(VARIANTS);

/// The two solvers that the paper's table A10 compares, in its words, and a variant beyond the paper.
const VARIANTS: &[Variant] = &[
    Variant { option: "solver", value: "svd", word: "svd", label: "SVD-based" },
    Variant { option: "solver", value: "normal", word: "solve", label: "Solver-based" },
    Variant { option: "ridge", value: "auto", word: "ridge", label: "Ghost Layer, chosen ridge" },
];

/// Singular values at or below this fraction of the largest count as zero, as in the reference code.
const CUTOFF: f64 = 1e-6;

/// `W = I + M` with `M = argmin ‖X_pre·M − Δ‖`, over the operator sequences.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Ghosted {
    /// How the least-squares problem is solved.
    solver: Solver,
    /// Whether each region or each removed layer gets an operator.
    boundary: Placement,
    /// Added to the diagonal of `XᵀX`: a number, or `auto`, chosen on held-out windows.
    #[serde(skip_serializing_if = "Ridge::is_default")]
    ridge: Ridge,
}

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Solver {
    /// `(XᵀX + ridge·I)·M = XᵀΔ` by Cholesky in f64.
    #[default]
    Normal,
    /// `M = X_pre⁺·Δ` by a thin singular value decomposition in f64, streamed.
    Svd,
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    let ghosted: Ghosted = options::read(name, options)?;
    if matches!(ghosted.solver, Solver::Svd) && !ghosted.ridge.is_default() {
        return Err(Error::bad_input(format!("wrong options for `{name}`"))
            .expected("`solver: normal` where there is a `ridge`")
            .found("`solver: svd`, which cuts small singular values off instead"));
    }
    Ok(Box::new(ghosted))
}

impl Recovery for Ghosted {
    fn tunable(&self) -> bool {
        self.boundary == Placement::Region
    }

    fn spans(&self, region: Span) -> Vec<Span> {
        self.boundary.spans(region)
    }

    fn fitted_on(&self, _: bool) -> Fitted {
        Fitted::First
    }

    fn operations(&self, channels: usize, rows: usize) -> f64 {
        let cube = (channels as f64).powi(3);
        match (self.solver, self.ridge) {
            (Solver::Normal, Ridge::Fixed(_)) => least_squares_operations(channels, rows),
            // Every candidate ridge is solved on the windows that are not held out.
            (Solver::Normal, Ridge::Auto) => least_squares_operations(channels, rows) + 20.0 * F64_COST * cube,
            // Householder reflections of [X Δ], and the decomposition of the triangular factor.
            (Solver::Svd, _) => F64_COST * (6.0 * rows as f64 * (channels as f64).powi(2) + 30.0 * cube),
        }
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let channels = boundary.channels();
        let solved = match self.solver {
            Solver::Normal => match self.ridge {
                Ridge::Fixed(ridge) => least_squares::solve(&boundary.normal_equations()?, channels, ridge)?,
                Ridge::Auto => least_squares::cross_validated(boundary)?,
            },
            Solver::Svd => {
                let mut tall = StreamingQr::new(channels);
                for rows in boundary.blocks(boundary.fitted) {
                    let (pre, delta) = pre_and_delta(boundary.pre(rows.clone())?, boundary.post(rows)?);
                    tall.add(&pre, &delta);
                }
                let svd = tall.solve(CUTOFF)?;
                let mut notes = Vec::new();
                if svd.rank < channels {
                    notes.push(format!("rank {} of {channels} ({} tokens): least norm", svd.rank, tall.rows()));
                }
                let system = System { rank: svd.rank, condition: svd.condition };
                Solved { matrix: svd.solution, system, notes }
            }
        };
        let operator = Operator::dense(channels, solved.with_identity(channels))?;
        Ok(solved.on_stream(operator))
    }
}
