//! A variant's operators: solved from activations, stored with their figures, loaded as a program.

use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::calibrate::Activations;
use crate::criterion::Selection;
use crate::error::{Error, Result};
use crate::grid::Cell;
use crate::model::{Decoder, Operator, Program, Repairs, Sublayer};
use crate::plan::payload::{FIGURES, from_json, to_json};
use crate::recovery::{self, Boundary, Recovery, Repair, RepairMetrics, Span, System};
use crate::store::{Key, Store, StoredArtifact};

/// Where a repair stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacedRepair {
    /// On the residual stream, in the place of the removed layers.
    Stream,
    /// On the MLP branch of the layer before.
    Mlp,
    /// On both branches of the layer before.
    AttentionAndMlp,
}

/// One repaired span.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BoundaryResult {
    /// The removed layers, `[start, end)`.
    pub region: (usize, usize),
    /// The operator's content key; none where the layers were only removed.
    pub operator: Option<String>,
    /// Where it stands.
    pub placed: Option<PlacedRepair>,
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
    pub numbers: RepairMetrics,
}

/// The recovery of a cell that is not the dense one.
pub(super) fn recovery_of(cell: &Cell) -> Result<Box<dyn Recovery>> {
    let method = cell.recovery.as_ref();
    let method = method.ok_or_else(|| Error::job("the dense cell has no recovery").at(cell.to_string()))?;
    recovery::build(&method.name, &method.options)
}

/// The spans that get an operator each.
pub(super) fn spans(selection: &Selection, recovery: &dyn Recovery) -> Vec<Span> {
    let regions = selection.regions().into_iter();
    regions.flat_map(|(start, end)| recovery.spans(Span { start, end })).collect()
}

/// Solves a cell's operators and stores them.
///
/// # Errors
/// Kind `Job`: the cell cannot be repaired, and why.
pub(super) fn solve(
    cell: &Cell,
    selection: &Selection,
    decoder: &Decoder,
    activations: &Activations,
    store: &Store,
    key: &Key,
) -> Result<()> {
    let started = Instant::now();
    let recovery = recovery_of(cell)?;
    let sequences = activations.shape().sequences;
    let spans = spans(selection, &*recovery);
    let first = cell.calibration.as_ref().map_or(sequences, |c| c.operator_sequences);
    let fitted = recovery.fitted_on(spans.len() == 1).count(sequences, first);
    let (mut results, mut matrices) = (Vec::new(), Vec::new());
    for &span in &spans {
        let boundary = Boundary { backbone: decoder, activations, span, fitted };
        let place = |error: Error| error.at(format!("boundary of layer {}", span.start));
        let began = Instant::now();
        let solution = recovery.solve(&boundary).map_err(place)?;
        let solve_seconds = began.elapsed().as_secs_f64();
        let System { rank, condition } = solution.system.unwrap_or(System { rank: 0, condition: f64::INFINITY });
        let placed = match &solution.repair {
            Repair::Cut => None,
            Repair::Stream(_) => Some(PlacedRepair::Stream),
            Repair::Branches { attention: false, .. } => Some(PlacedRepair::Mlp),
            Repair::Branches { attention: true, .. } => Some(PlacedRepair::AttentionAndMlp),
        };
        let operator = solution.repair.operator();
        if let Some(operator) = operator {
            let (form, values) = operator.parts()?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            matrices.push((format!("{:04}.{form}.f32", results.len()), bytes));
        }
        results.push(BoundaryResult {
            region: (span.start, span.end),
            operator: operator.map(|operator| operator.key()),
            placed,
            notes: solution.notes,
            rank: solution.system.map(|_| rank),
            condition: condition.is_finite().then_some(condition),
            losses: solution.losses,
            solve_seconds,
            numbers: RepairMetrics::of(&boundary, &solution.repair)?,
        });
    }
    let figures = to_json(&results)?;
    // JSON has no word for a number that is none: it would not come back.
    if serde_json::from_slice::<Vec<BoundaryResult>>(&figures).is_err() {
        return Err(Error::job("the repair's figures are not finite numbers")
            .hint("the method diverged: a smaller learning rate, or another method"));
    }
    let payloads = matrices.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    let payloads: Vec<(&str, &[u8])> = payloads.chain([(FIGURES, figures.as_slice())]).collect();
    store.put(key, started.elapsed().as_secs_f64(), &payloads).map(drop)
}

/// What is known of a stored variant's boundaries.
///
/// # Errors
/// Damage.
pub(super) fn figures(artifact: &StoredArtifact) -> Result<Vec<BoundaryResult>> {
    from_json(artifact, FIGURES)
}

/// A stored variant as a program.
///
/// # Errors
/// Damage.
pub(super) fn program(artifact: &StoredArtifact, layers: usize, selection: &Selection) -> Result<Program> {
    let mut repairs = Repairs::default();
    for (index, result) in figures(artifact)?.into_iter().enumerate() {
        let (Some(placed), Some(key)) = (result.placed, &result.operator) else { continue };
        let operator = load(artifact, index)?;
        let start = result.region.0;
        let misfit =
            || Error::damaged("a stored operator does not fit its record").at(artifact.folder().display().to_string());
        if operator.key() != *key {
            return Err(misfit());
        }
        if placed == PlacedRepair::Stream {
            repairs.stream.insert(start, operator);
            continue;
        }
        let Some(layer) = (0..start).rev().find(|layer| !selection.removed.contains(layer)) else {
            // Factors scale the embedding where no layer is left before; maps of a branch have nowhere to go.
            if placed == PlacedRepair::Mlp {
                return Err(misfit());
            }
            add(repairs.stream.entry(start), operator)?;
            continue;
        };
        if placed == PlacedRepair::AttentionAndMlp {
            add(repairs.branches.entry((layer, Sublayer::Attention)), Arc::clone(&operator))?;
        }
        add(repairs.branches.entry((layer, Sublayer::Mlp)), operator)?;
    }
    Ok(Program::repaired(layers, &selection.removed, &repairs))
}

/// Puts an operator after what stands there already: the layer before a region takes the maps of all its layers in.
fn add<K: Ord>(place: Entry<'_, K, Arc<Operator>>, operator: Arc<Operator>) -> Result<()> {
    match place {
        Entry::Vacant(free) => drop(free.insert(operator)),
        Entry::Occupied(mut taken) => {
            let product = taken.get().then(&operator)?;
            taken.insert(product);
        }
    }
    Ok(())
}

fn load(artifact: &StoredArtifact, index: usize) -> Result<Arc<Operator>> {
    let prefix = format!("{index:04}.");
    let name = artifact.payloads().find(|name| name.starts_with(&prefix)).unwrap_or(&prefix);
    let values = artifact.read(name)?;
    let values: Vec<f32> =
        bytemuck::pod_collect_to_vec::<u8, u32>(&values).into_iter().map(|b| f32::from_bits(u32::from_le(b))).collect();
    let form = name.split('.').nth(1).unwrap_or_default();
    Operator::from_parts(form, values)
}
