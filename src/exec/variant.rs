//! From a calibration to the variants of one backbone: selections, operators, programs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::calibrate::{Calibration, Request};
use crate::criterion::{self, Selection};
use crate::error::{Error, Result};
use crate::grid::{Cell, Method};
use crate::model::{Operator, Program};
use crate::recovery::{self, Boundary, Numbers};

/// A cell and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct CellResult {
    pub cell: Cell,
    /// Layers of the dense backbone.
    pub layers: usize,
    /// Removed layers, ascending.
    pub removed: Vec<usize>,
    /// `(candidate, score)` of the criterion.
    pub scores: Vec<(usize, f64)>,
    pub boundaries: Vec<BoundaryResult>,
    /// One for each perplexity of the grid; none where the cell failed.
    pub perplexity: Vec<Option<f64>>,
    /// This cell's part of the run: what it shares with others counts in equal parts.
    pub seconds: f64,
    /// Why the cell has no result.
    pub failure: Option<String>,
    #[serde(skip)]
    pub(super) program: Option<Program>,
}

/// One repaired boundary.
#[derive(Debug, Clone, Serialize)]
pub struct BoundaryResult {
    /// The removed region, `[start, end)`.
    pub region: (usize, usize),
    /// The operator's content key; none where the layers were only removed.
    pub operator: Option<String>,
    #[serde(flatten)]
    pub numbers: Option<Numbers>,
}

impl CellResult {
    pub(super) fn new(cell: Cell, layers: usize) -> Self {
        let program = cell.is_dense().then(|| Program::dense(layers));
        Self {
            cell,
            layers,
            removed: Vec::new(),
            scores: Vec::new(),
            boundaries: Vec::new(),
            perplexity: Vec::new(),
            seconds: 0.0,
            failure: None,
            program,
        }
    }
}

/// What the pass of one calibration has to measure for some cells.
pub(super) fn request(cells: &[&mut CellResult]) -> Result<Request> {
    let mut request = Request::default();
    for result in cells {
        let (criterion, recovery) = methods(&result.cell)?;
        let criterion = criterion::build(&criterion.name, &criterion.options)?;
        request.pairs.extend(criterion.pairs(result.layers, result.cell.depth));
        if recovery::build(&recovery.name, &recovery.options)?.reads_activations() {
            request.sites.extend(criterion.boundaries(result.layers, result.cell.depth));
        }
    }
    Ok(request)
}

/// The boundaries that the cells' selections really have.
pub(super) fn chosen_sites(cells: &[&mut CellResult]) -> BTreeSet<usize> {
    let regions = cells.iter().flat_map(|result| regions(&result.removed));
    regions.flat_map(|(start, end)| [start, end]).collect()
}

/// Sets the removed layers of each cell.
pub(super) fn select(cells: &mut [&mut CellResult], calibration: &Calibration) {
    let mut known: BTreeMap<(String, usize), Result<Selection, String>> = BTreeMap::new();
    for result in cells {
        let (layers, depth) = (result.layers, result.cell.depth);
        let picked = methods(&result.cell).map(|(criterion, _)| criterion.clone());
        let label = picked.as_ref().map(ToString::to_string).unwrap_or_default();
        let selection = known.entry((label, depth)).or_insert_with(|| {
            picked
                .and_then(|method| criterion::build(&method.name, &method.options))
                .and_then(|criterion| criterion.select(layers, depth, &calibration.similarities))
                .map_err(|error| error.one_line())
        });
        match selection {
            Ok(selection) => {
                result.removed.clone_from(&selection.removed);
                result.scores.clone_from(&selection.scores);
            }
            Err(reason) => result.failure = Some(reason.clone()),
        }
    }
}

/// Solves each cell's operators and writes its program. A cell that cannot be repaired fails alone.
pub(super) fn repair(cells: &mut [&mut CellResult], calibration: &Calibration) {
    for result in cells.iter_mut().filter(|result| result.failure.is_none()) {
        let started = Instant::now();
        match operators(result, calibration) {
            Ok(operators) => {
                let at = |start: usize| operators.get(&start).cloned();
                result.program = Some(Program::pruned(result.layers, &result.removed, at));
            }
            Err(error) => result.failure = Some(error.one_line()),
        }
        result.seconds += started.elapsed().as_secs_f64();
    }
}

fn operators(result: &mut CellResult, calibration: &Calibration) -> Result<BTreeMap<usize, Arc<Operator>>> {
    let (_, method) = methods(&result.cell)?;
    let recovery = recovery::build(&method.name, &method.options)?;
    let wanted = result.cell.calibration.as_ref().map_or(calibration.sequences, |c| c.operator_sequences);
    let regions = regions(&result.removed);
    let mut operators = BTreeMap::new();
    for &(start, end) in &regions {
        let boundary = Boundary {
            activations: &calibration.activations,
            start,
            end,
            sequences: calibration.sequences,
            operator_sequences: wanted.min(calibration.sequences),
            length: calibration.length,
            only: regions.len() == 1,
        };
        let operator = recovery.solve(&boundary).map_err(|error| error.at(format!("boundary of layer {start}")))?;
        // Without activations there is nothing to measure a bare cut on.
        let spooled = calibration.activations.has(start) && calibration.activations.has(end);
        let numbers = spooled.then(|| Numbers::of(&boundary, operator.as_deref())).transpose()?;
        let key = operator.as_ref().map(|operator| operator.key());
        result.boundaries.push(BoundaryResult { region: (start, end), operator: key, numbers });
        operators.extend(operator.map(|operator| (start, operator)));
    }
    Ok(operators)
}

/// Maximal runs of removed layers.
fn regions(removed: &[usize]) -> Vec<(usize, usize)> {
    Selection { removed: removed.to_vec(), scores: Vec::new() }.regions()
}

fn methods(cell: &Cell) -> Result<(&Method, &Method)> {
    match (&cell.criterion, &cell.recovery) {
        (Some(criterion), Some(recovery)) => Ok((criterion, recovery)),
        _ => Err(Error::job("the dense cell has no methods").at(cell.to_string())),
    }
}
