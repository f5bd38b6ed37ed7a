//! Cells that cannot be pruned or repaired. They are rejected in a grid and left out of a search.

use std::collections::{BTreeMap, HashSet};

use super::cell::{Cell, Method};
use super::definitions::Backbone;
use super::node::{Positioned, YamlPosition};
use super::search::{Search, UnselectableCut};
use crate::criterion::{self, Criterion, PruneSpec};
use crate::error::{Error, Result};
use crate::recovery::{self, Recovery, RepairTarget};

/// Cell that its criterion or recovery rejects, with the error.
pub(super) struct UnprunableCell {
    cell: Cell,
    position: YamlPosition,
    error: Error,
}

impl UnprunableCell {
    /// Returns the error, located at the position of the cell.
    pub(super) fn into_error(self) -> Error {
        self.error.at(self.position.to_string())
    }
}

/// Returns the cells that are rejected by their criterion or recovery. A depth that a criterion rejects is reported
/// only for the first cell that has it.
pub(super) fn find_unprunable(
    cells: &[Positioned<Cell>],
    backbones: &BTreeMap<String, Backbone>,
) -> Vec<UnprunableCell> {
    let mut seen = HashSet::new();
    let mut unprunable = Vec::new();
    for Positioned { value: cell, position } in cells {
        let Cell { backbone, criterion: Some(criterion), depth, recovery, .. } = cell else { continue };
        let mut error = None;
        if seen.insert((backbone, criterion, depth)) {
            let cut = PruneSpec { backbone, layers: backbones[backbone].layers, depth: depth.count, unit: depth.unit };
            error = criterion::check(&criterion.name, &*criterion.rule, &cut).err();
        }
        let error = error.or_else(|| unsupported_unit_error(recovery.as_ref()?, *depth));
        let error = error.or_else(|| iterative_merge_error(criterion, recovery.as_ref()?));
        unprunable.extend(error.map(|error| UnprunableCell { cell: cell.clone(), position: position.clone(), error }));
    }
    unprunable
}

/// Returns an error if the recovery cannot repair a cut in the unit of `depth`.
fn unsupported_unit_error(recovery: &Method<dyn Recovery>, depth: criterion::Depth) -> Option<Error> {
    if depth.unit.is_layers() != recovery.rule.replaces_sublayers() || !recovery.rule.is_repairing() {
        return None;
    }
    if recovery.rule.replaces_sublayers() {
        let error = Error::bad_input(format!("`{}` can only repair removed sublayers", recovery.name));
        return Some(
            error
                .expected(format!("a depth such as `{{attention: {}}}`", depth.count))
                .found(format!("`{recovery}` with depth {depth}"))
                .hint("add an entry of `include` that combines the recovery with a suitable depth"),
        );
    }
    let accepted: Vec<&str> = recovery::sublayer_methods().collect();
    Some(
        Error::bad_input(format!("`{}` repairs whole layers, but the depth is given in sublayers", recovery.name))
            .expected(format!("one of {}, which accept sublayers", accepted.join(", ")))
            .found(format!("`{recovery}` with depth {depth}"))
            .hint("add an entry of `include` that combines sublayers with `recovery: none`"),
    )
}

/// Returns an error if an iterative criterion is combined with a recovery that merges layers.
fn iterative_merge_error(criterion: &Method<dyn Criterion>, recovery: &Method<dyn Recovery>) -> Option<Error> {
    if !criterion.rule.is_iterative() || recovery.rule.target() != RepairTarget::Layer {
        return None;
    }
    let error = Error::bad_input(format!("`{}` cannot repair layers that are removed one by one", recovery.name));
    let found = format!("`{criterion}` with `{recovery}`");
    Some(error.expected("a criterion without `iterative: true`").found(found))
}

/// Returns whether the criterion supports the unit of the cell's depth and the recovery can repair the cut.
fn is_combinable(cell: &Cell) -> bool {
    let (Some(criterion), Some(recovery)) = (&cell.criterion, &cell.recovery) else { return true };
    criterion.rule.units().contains(&cell.depth.unit)
        && unsupported_unit_error(recovery, cell.depth).is_none()
        && iterative_merge_error(criterion, recovery).is_none()
}

/// Removes the cells of a search that cannot be pruned, and records them in `search`. Before that, drops cells whose
/// depth unit or recovery does not fit their criterion, unless no pruned cell would remain.
///
/// # Errors
/// Fails if no cell remains for a backbone, or for a layer count that the budget requests.
pub(super) fn remove_unprunable(
    mut cells: Vec<Positioned<Cell>>,
    backbones: &BTreeMap<String, Backbone>,
    search: &mut Search,
) -> Result<Vec<Positioned<Cell>>> {
    if cells.iter().any(|cell| !cell.value.is_dense() && is_combinable(&cell.value)) {
        cells.retain(|cell| is_combinable(&cell.value));
    }
    let unprunable = find_unprunable(&cells, backbones);
    cells.retain(|cell| {
        !unprunable.iter().any(|one| {
            (&one.cell.backbone, &one.cell.criterion, one.cell.depth)
                == (&cell.value.backbone, &cell.value.criterion, cell.value.depth)
        })
    });
    let layers = search.budget.layers.clone();
    for one in unprunable {
        let Cell { backbone, criterion, depth, .. } = &one.cell;
        let is_requested = layers.is_empty() || layers.iter().any(|count| depth == count);
        let neighbors = cells.iter().map(|cell| &cell.value).filter(|cell| cell.backbone == *backbone);
        let mut pruned = neighbors.filter(|cell| !cell.is_dense());
        if is_requested && !pruned.any(|cell| layers.is_empty() || cell.depth == *depth) {
            return Err(one.into_error());
        }
        search.unselectable.push(UnselectableCut {
            backbone: backbone.clone(),
            criterion: criterion.as_ref().map(ToString::to_string).unwrap_or_default(),
            depth: *depth,
            reason: one.error.one_line(),
        });
    }
    Ok(cells)
}
