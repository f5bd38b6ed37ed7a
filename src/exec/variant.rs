//! A cell's variant: its repairs, its program, and what came of it.

use std::collections::BTreeSet;
use std::time::Instant;

use serde::Serialize;

use super::tasks::TaskScores;
use crate::calibrate::{Activations, Site};
use crate::criterion::Selection;
use crate::error::{Error, Result};
use crate::grid::{Cell, Method};
use crate::model::{Decoder, Half, Program, Repairs};
use crate::recovery::{self, Boundary, Numbers, Recovery, Repair, Span, System};
use crate::tasks::TaskResult;

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
    /// One for each task of the grid; none where the cell failed.
    pub tasks: Vec<Option<TaskScores>>,
    /// This cell's part of the run: what it shares with others counts in equal parts.
    pub seconds: f64,
    /// Why the cell has no result.
    pub failure: Option<String>,
    #[serde(skip)]
    pub(super) program: Option<Program>,
}

/// One repaired span.
#[derive(Debug, Clone, Serialize)]
pub struct BoundaryResult {
    /// The removed layers, `[start, end)`.
    pub region: (usize, usize),
    /// The operator's content key; none where the layers were only removed.
    pub operator: Option<String>,
    /// `stream`, or the branches that are multiplied: `mlp`, `attention and mlp`.
    pub placed: Option<&'static str>,
    /// What a reader has to know of the repair.
    pub notes: Vec<String>,
    /// Rank of the least-squares problem's matrix, where one was solved.
    pub rank: Option<usize>,
    /// Its condition number; none where it is infinite.
    pub condition: Option<f64>,
    /// Mean loss of each epoch, where the method iterates.
    pub losses: Vec<f64>,
    /// What solving took, without measuring.
    pub solve_seconds: f64,
    #[serde(flatten)]
    pub numbers: Numbers,
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
            tasks: Vec::new(),
            seconds: 0.0,
            failure: None,
            program,
        }
    }

    /// What a reader has to know of this cell, each thing once.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for boundary in &self.boundaries {
            for note in &boundary.notes {
                let placed = format!("layer {}: {note}", boundary.region.0);
                let note = if self.boundaries.len() == 1 { note } else { &placed };
                if !notes.contains(note) {
                    notes.push(note.clone());
                }
            }
        }
        for scores in self.tasks.iter().flatten() {
            let TaskResult { non_finite, unanswered, effective, .. } = scores.result;
            if non_finite > 0 {
                notes.push(format!("{non_finite} of {effective} documents of {} have no finite score", scores.label));
            }
            if unanswered > 0 {
                notes.push(format!("{unanswered} of {effective} documents of {} have no answer", scores.label));
            }
        }
        notes
    }
}

/// The sites that the cells' selections really need.
pub(super) fn chosen_sites(cells: &[&mut CellResult]) -> Result<BTreeSet<Site>> {
    let mut sites = BTreeSet::new();
    for result in cells.iter().filter(|result| result.failure.is_none()) {
        let recovery = recovery(&result.cell)?;
        let spans = spans(result, &*recovery);
        sites.extend(spans.into_iter().flat_map(|span| recovery.sites(span)));
    }
    Ok(sites)
}

/// Solves a cell's operators and writes its program. A cell that cannot be repaired fails alone.
pub(super) fn repair(result: &mut CellResult, decoder: &Decoder, activations: &Activations) {
    if result.failure.is_some() {
        return;
    }
    let started = Instant::now();
    match repairs(result, decoder, activations) {
        Ok(repairs) => result.program = Some(Program::repaired(result.layers, &result.removed, &repairs)),
        Err(error) => result.failure = Some(error.one_line()),
    }
    result.seconds += started.elapsed().as_secs_f64();
}

fn repairs(result: &mut CellResult, decoder: &Decoder, activations: &Activations) -> Result<Repairs> {
    let recovery = recovery(&result.cell)?;
    let sequences = activations.shape().sequences;
    let wanted = result.cell.calibration.as_ref().map_or(sequences, |c| c.operator_sequences);
    let spans = spans(result, &*recovery);
    let mut repairs = Repairs::default();
    for &span in &spans {
        let boundary = Boundary {
            backbone: decoder,
            activations,
            span,
            operator_sequences: wanted.min(sequences),
            only: spans.len() == 1,
        };
        let started = Instant::now();
        let solution =
            recovery.solve(&boundary).map_err(|error| error.at(format!("boundary of layer {}", span.start)))?;
        let solve_seconds = started.elapsed().as_secs_f64();
        let System { rank, condition } = solution.system.unwrap_or(System { rank: 0, condition: f64::INFINITY });
        result.boundaries.push(BoundaryResult {
            region: (span.start, span.end),
            operator: solution.repair.operator().map(|operator| operator.key()),
            placed: match &solution.repair {
                Repair::Cut => None,
                Repair::Stream(_) => Some("stream"),
                Repair::Branches { attention: false, .. } => Some("mlp"),
                Repair::Branches { attention: true, .. } => Some("attention and mlp"),
            },
            notes: solution.notes,
            rank: solution.system.map(|_| rank),
            condition: condition.is_finite().then_some(condition),
            losses: solution.losses,
            solve_seconds,
            numbers: Numbers::of(&boundary, &solution.repair)?,
        });
        match solution.repair {
            Repair::Cut => {}
            Repair::Stream(operator) => {
                repairs.stream.insert(span.start, operator);
            }
            Repair::Branches { operator, attention } => {
                let layer = boundary.layer_before()?;
                if attention {
                    repairs.branches.insert((layer, Half::Attention), operator.clone());
                }
                repairs.branches.insert((layer, Half::Mlp), operator);
            }
        }
    }
    Ok(repairs)
}

fn spans(result: &CellResult, recovery: &dyn Recovery) -> Vec<Span> {
    let selection = Selection { removed: result.removed.clone(), scores: Vec::new() };
    let regions = selection.regions().into_iter();
    regions.flat_map(|(start, end)| recovery.spans(Span { start, end })).collect()
}

pub(super) fn recovery(cell: &Cell) -> Result<Box<dyn Recovery>> {
    let (_, method) = methods(cell)?;
    recovery::build(&method.name, &method.options)
}

pub(super) fn methods(cell: &Cell) -> Result<(&Method, &Method)> {
    match (&cell.criterion, &cell.recovery) {
        (Some(criterion), Some(recovery)) => Ok((criterion, recovery)),
        _ => Err(Error::job("the dense cell has no methods").at(cell.to_string())),
    }
}
