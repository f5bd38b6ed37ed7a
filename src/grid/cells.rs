//! Axes of a grid or of an `include` entry, and the cells built from them. The cells are the product of the axes,
//! without those that `exclude` matches, plus those that `include` adds. Cells that cannot be pruned or repaired are
//! rejected in a grid and left out of a search.

use std::collections::{BTreeMap, HashSet};
use std::iter;

use super::calibration::{Calibration, CalibrationEntry, read_calibrations};
use super::cell::{CUT_AXES, Cell, Method, MethodEntry, build_methods};
use super::definitions::{Backbone, RoundedWeights};
use super::depth::{Depth, DepthEntry, read_depths};
use super::name;
use super::one_or_many::OneOrMany;
use super::pattern::CellPattern;
use super::search::{Search, UnselectableCut};
use super::validate::{self, EntryPosition};
use super::weights::Weights;
use super::yaml::{Positioned, YamlPosition};
use crate::criterion::{self, Criterion, PruneSpec};
use crate::error::{Error, Result};
use crate::recovery::{self, Recovery, RepairTarget};

/// Validated axes. An axis is `None` if its key is missing. A grid without the four pruning axes has only dense cells.
#[derive(Debug, Clone)]
pub(super) struct Axes {
    /// Position of the map that contains the axes.
    pub(super) position: YamlPosition,
    pub(super) backbone: Option<Vec<Positioned<String>>>,
    pub(super) criterion: Option<Vec<Positioned<Method<dyn Criterion>>>>,
    pub(super) depth: Option<Vec<Positioned<Depth>>>,
    pub(super) recovery: Option<Vec<Positioned<Method<dyn Recovery>>>>,
    pub(super) calibration: Option<Vec<Positioned<Calibration>>>,
    /// Corpora that the calibrations refer to.
    pub(super) corpora: Vec<Positioned<String>>,
}

impl Axes {
    /// Reads the axes of the map at `at`.
    pub(super) fn read(
        at: &EntryPosition<'_>,
        backbone: &OneOrMany<String>,
        criterion: &OneOrMany<MethodEntry>,
        depth: &OneOrMany<DepthEntry>,
        recovery: &OneOrMany<MethodEntry>,
        calibration: &OneOrMany<CalibrationEntry>,
    ) -> Result<Self> {
        let calibrations = calibration.read_with(|entries| read_calibrations(&at.key("calibration"), entries))?;
        let (calibration, corpora) = calibrations.unzip();
        Ok(Self {
            position: at.position(),
            backbone: backbone.read_with(|names| validate::read_values(&at.key("backbone"), names))?,
            criterion: criterion.read_with(|entries| build_methods(at, entries))?,
            depth: depth.read_with(|entries| read_depths(&at.key("depth"), entries))?,
            recovery: recovery.read_with(|entries| build_methods(at, entries))?,
            calibration,
            corpora: corpora.unwrap_or_default(),
        })
    }

    /// Fills in missing axes from `grid`.
    pub(super) fn inherit_from(self, grid: &Self) -> Self {
        Self {
            backbone: self.backbone.or_else(|| grid.backbone.clone()),
            criterion: self.criterion.or_else(|| grid.criterion.clone()),
            depth: self.depth.or_else(|| grid.depth.clone()),
            recovery: self.recovery.or_else(|| grid.recovery.clone()),
            calibration: self.calibration.or_else(|| grid.calibration.clone()),
            ..self
        }
    }

    /// Replaces each backbone with one backbone per weight type. Does nothing if `weights` is empty.
    fn expand_weights(
        &mut self,
        weights: &[Positioned<Weights>],
        backbones: &mut BTreeMap<String, Backbone>,
    ) -> Result<()> {
        let Some(names) = self.backbone.take_if(|_| !weights.is_empty()) else { return Ok(()) };
        let all = names.iter().flat_map(|name| weights.iter().map(move |weight| (name, weight)));
        let all =
            all.map(|(name, weights)| add_quantized_backbone(name, weights.value, backbones)).collect::<Result<_>>()?;
        self.backbone = Some(all);
        Ok(())
    }

    /// Returns the keys of the pruning axes that are present, and the keys of those that are missing.
    pub(super) fn cut_axis_keys(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let Self { criterion, depth, recovery, calibration, .. } = self;
        let written = [criterion.is_some(), depth.is_some(), recovery.is_some(), calibration.is_some()];
        let mut present = Vec::new();
        let mut missing = Vec::new();
        for (key, written) in CUT_AXES.into_iter().zip(written) {
            if written {
                present.push(key);
            } else {
                missing.push(key);
            }
        }
        (present, missing)
    }
}

/// Registers a backbone with rounded weights and returns its name. Returns `name` unchanged for stored weights.
fn add_quantized_backbone(
    name: &Positioned<String>,
    weights: Weights,
    backbones: &mut BTreeMap<String, Backbone>,
) -> Result<Positioned<String>> {
    let Some((to, calibrated)) = weights.rounding() else { return Ok(name.clone()) };
    let full_name = format!("{}@{weights}", name.value);
    let rounding = RoundedWeights { backbone: name.value.clone(), to, calibrated };
    let rounded = Backbone { weights: Some(rounding), ..backbones[&name.value].clone() };
    if backbones.insert(full_name.clone(), rounded.clone()).is_some_and(|known| known != rounded) {
        return Err(Error::bad_input("two backbones have the same name")
            .at(name.position.to_string())
            .found(format!("`{full_name}`, which is also generated by the `weights` axis"))
            .hint(format!("rename the backbone `{full_name}` in `backbones`")));
    }
    Ok(Positioned { value: full_name, position: name.position.clone() })
}

/// Cell with its depth as written in the grid file, and the position of that depth.
struct PrunedCell {
    cell: Cell,
    depth: Depth,
    position: YamlPosition,
}

/// Axes of a grid, and the settings that add cells to their product or remove cells from it.
#[derive(Debug)]
pub(super) struct GridAxes {
    pub(super) product: Axes,
    /// Weight types for the backbones. Empty if the file lists none.
    pub(super) weights: Vec<Positioned<Weights>>,
    /// Axes of each `include` entry. Missing axes are filled in from the grid.
    pub(super) includes: Vec<Axes>,
    pub(super) excludes: Vec<CellPattern>,
}

impl GridAxes {
    /// Iterates over the axes of the grid, followed by those of the `include` entries.
    pub(super) fn all(&self) -> impl Iterator<Item = &Axes> + Clone {
        iter::once(&self.product).chain(&self.includes)
    }

    /// Returns the cells with their names, and adds backbones with rounded weights to `backbones`. For a search, cells
    /// that cannot be pruned are left out and recorded in `search`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::expand_cells`] and [`remove_unprunable`]. Without a search, also fails if a
    /// cell cannot be pruned or repaired.
    pub(super) fn into_cells(
        mut self,
        search: Option<&mut Search>,
        backbones: &mut BTreeMap<String, Backbone>,
    ) -> Result<Vec<Cell>> {
        for axes in iter::once(&mut self.product).chain(&mut self.includes) {
            axes.expand_weights(&self.weights, backbones)?;
        }
        let mut cells = self.expand_cells(backbones)?;
        match search {
            Some(search) => cells = remove_unprunable(cells, backbones, search)?,
            None => {
                if let Some(first) = find_unprunable(&cells, backbones).into_iter().next() {
                    return Err(first.into_error());
                }
            }
        }
        let mut cells: Vec<Cell> = cells.into_iter().map(|cell| cell.value).collect();
        name::assign_names(&mut cells);
        Ok(cells)
    }

    /// Returns all unique cells. Each backbone contributes its dense cell, the product of the axes without the excluded
    /// cells, and the included cells. A backbone whose cells are all excluded contributes none.
    ///
    /// # Errors
    /// Fails if there are no cells or too many, if a pattern matches no cell, or if a depth removes all layers of a
    /// backbone. Depths of excluded cells are not checked.
    fn expand_cells(&self, backbones: &BTreeMap<String, Backbone>) -> Result<Vec<Positioned<Cell>>> {
        self.all().try_for_each(Axes::check_cell_count)?;
        let Self { product: axes, includes, excludes, .. } = self;
        let product = axes.expand_product(backbones);
        let dense: Vec<Positioned<Cell>> = axes
            .backbone
            .iter()
            .flatten()
            .map(|backbone| Positioned { value: Cell::dense(&backbone.value), position: backbone.position.clone() })
            .collect();
        let all = dense.iter().map(|backbone| &backbone.value).chain(product.iter().map(|candidate| &candidate.cell));
        let all: Vec<(&Cell, usize)> = all.map(|cell| (cell, layer_count(backbones, cell))).collect();
        excludes.iter().try_for_each(|pattern| pattern.check(&all))?;

        let is_kept = |cell: &Cell| !excludes.iter().any(|pattern| pattern.matches(cell, layer_count(backbones, cell)));
        let added: Vec<PrunedCell> = includes.iter().flat_map(|axes| axes.expand_product(backbones)).collect();
        let retained = product.iter().filter(|candidate| is_kept(&candidate.cell)).chain(&added).collect::<Vec<_>>();
        let named = dense
            .iter()
            .filter(|backbone| is_kept(&backbone.value))
            .map(|backbone| (&backbone.value.backbone, &backbone.position));
        let named = named.chain(retained.iter().map(|candidate| (&candidate.cell.backbone, &candidate.position)));

        let mut cells = Vec::new();
        let mut backbones_seen = HashSet::new();
        let mut seen = HashSet::new();
        for (backbone, position) in named.filter(|(backbone, _)| backbones_seen.insert(*backbone)) {
            cells.push(Positioned { value: Cell::dense(backbone), position: position.clone() });
            for candidate in retained.iter().filter(|candidate| candidate.cell.backbone == *backbone) {
                if seen.insert(&candidate.cell) {
                    candidate.check_layers_left(layer_count(backbones, &candidate.cell))?;
                    cells.push(Positioned { value: candidate.cell.clone(), position: candidate.position.clone() });
                }
            }
        }
        match (cells.is_empty(), excludes.first()) {
            (true, Some(pattern)) => Err(pattern.no_cells_left_error()),
            _ => Ok(cells),
        }
    }
}

fn layer_count(backbones: &BTreeMap<String, Backbone>, cell: &Cell) -> usize {
    backbones[&cell.backbone].layers
}

impl PrunedCell {
    /// Rejects a depth that removes all layers of the backbone.
    fn check_layers_left(&self, layers: usize) -> Result<()> {
        let Cell { backbone, depth, .. } = &self.cell;
        // Depths in sublayers are validated by the criterion.
        if !depth.is_in_layers() || depth.count < layers {
            return Ok(());
        }
        let found = match self.depth.is_fraction() {
            false => depth.to_string(),
            true => format!("`{}`, which is {depth} layers of `{backbone}`", self.depth),
        };
        Err(Error::bad_input(format!("the depth removes all layers of the backbone `{backbone}`"))
            .at(self.position.to_string())
            .expected(format!("fewer than the {layers} layers of `{backbone}`"))
            .found(found)
            .hint(format!("remove at most {} layers", layers.saturating_sub(1))))
    }
}

impl Axes {
    fn check_cell_count(&self) -> Result<()> {
        fn size<T>(values: &Option<Vec<T>>) -> usize {
            values.as_ref().map_or(0, Vec::len)
        }
        let Self { position, backbone, criterion, depth, recovery, calibration, .. } = self;
        validate::check_cell_count(
            &[size(backbone), size(criterion), size(depth), size(recovery), size(calibration)],
            position,
        )
    }

    /// Returns the product of the axes for each backbone, or no cells if an axis is missing. The axes are nested in the
    /// order criterion, depth, recovery, calibration.
    fn expand_product(&self, backbones: &BTreeMap<String, Backbone>) -> Vec<PrunedCell> {
        let mut candidates = Vec::new();
        for backbone in self.backbone.iter().flatten().map(|backbone| &backbone.value) {
            let depths = self.resolve_depths(backbones[backbone].layers);
            for criterion in self.criterion.iter().flatten() {
                for (count, depth) in &depths {
                    for recovery in self.recovery.iter().flatten() {
                        for calibration in self.calibration.iter().flatten() {
                            let cell = Cell {
                                backbone: backbone.clone(),
                                criterion: Some(criterion.value.clone()),
                                depth: *count,
                                recovery: Some(recovery.value.clone()),
                                calibration: Some(calibration.value.clone()),
                                name: String::new(),
                            };
                            candidates.push(PrunedCell { cell, depth: depth.value, position: depth.position.clone() });
                        }
                    }
                }
            }
        }
        candidates
    }

    /// Resolves the depths for a backbone with `layers` layers. If several depths are equal, only the first is kept.
    fn resolve_depths(&self, layers: usize) -> Vec<(criterion::Depth, &Positioned<Depth>)> {
        let mut counts: Vec<(criterion::Depth, &Positioned<Depth>)> = Vec::new();
        for depth in self.depth.iter().flatten() {
            let count = depth.value.resolve(layers);
            if counts.iter().all(|(known, _)| *known != count) {
                counts.push((count, depth));
            }
        }
        counts
    }
}

/// Cell that its criterion or recovery rejects, with the error.
struct UnprunableCell {
    cell: Cell,
    position: YamlPosition,
    error: Error,
}

impl UnprunableCell {
    /// Returns the error, located at the position of the cell.
    fn into_error(self) -> Error {
        self.error.at(self.position.to_string())
    }
}

/// Returns the cells that are rejected by their criterion or recovery. A depth that a criterion rejects is reported
/// only for the first cell that has it.
fn find_unprunable(cells: &[Positioned<Cell>], backbones: &BTreeMap<String, Backbone>) -> Vec<UnprunableCell> {
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
fn remove_unprunable(
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
