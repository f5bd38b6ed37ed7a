//! From axes to cells: the product, less what `exclude` means, and what `include` adds.

use std::collections::{BTreeMap, HashSet};

use super::at::Positioned;
use super::axes::Axes;
use super::cell::Cell;
use super::depth::Depth;
use super::disk::Backbone;
use super::limits;
use super::node::YamlPosition;
use super::pattern::CellPattern;
use super::search::{Search, Unselectable};
use crate::criterion::PruneSpec;
use crate::error::{Error, Result};

/// A pruned cell, its depth as it was written, and where.
struct PrunedCell {
    cell: Cell,
    depth: Depth,
    place: YamlPosition,
}

/// All cells: backbone by backbone the dense one, the product without what is excluded, what is included. None twice.
///
/// # Errors
/// Too many cells or none, a pattern that means none, or a depth that leaves nothing of a backbone. A cell that is excluded
/// need not be possible.
pub(super) fn cells(
    axes: &Axes,
    includes: &[Axes],
    excludes: &[CellPattern],
    backbones: &BTreeMap<String, Backbone>,
) -> Result<Vec<Positioned<Cell>>> {
    for axes in [axes].into_iter().chain(includes) {
        axes.few_enough()?;
    }
    let product = axes.product(backbones);
    let dense: Vec<Positioned<Cell>> = axes.backbone.iter().flatten().map(dense_of).collect();
    let layers = |cell: &Cell| backbones[&cell.backbone].layers;
    let all = dense.iter().map(|of| &of.value).chain(product.iter().map(|candidate| &candidate.cell));
    let all: Vec<(&Cell, usize)> = all.map(|cell| (cell, layers(cell))).collect();
    excludes.iter().try_for_each(|pattern| pattern.check(&all))?;

    let stays = |cell: &Cell| !excludes.iter().any(|pattern| pattern.matches(cell, layers(cell)));
    let added: Vec<PrunedCell> = includes.iter().flat_map(|axes| axes.product(backbones)).collect();
    let kept = product.iter().filter(|candidate| stays(&candidate.cell)).chain(&added).collect::<Vec<_>>();
    let named = dense.iter().filter(|of| stays(&of.value)).map(|of| (&of.value.backbone, &of.place));
    let named = named.chain(kept.iter().map(|candidate| (&candidate.cell.backbone, &candidate.place)));

    let (mut cells, mut backbones_seen, mut seen) = (Vec::new(), HashSet::new(), HashSet::new());
    for (backbone, place) in named.filter(|(backbone, _)| backbones_seen.insert(*backbone)) {
        cells.push(Positioned { value: Cell::dense(backbone), place: place.clone() });
        for candidate in kept.iter().filter(|candidate| candidate.cell.backbone == *backbone) {
            if seen.insert(&candidate.cell) {
                candidate.leaves_something(layers(&candidate.cell))?;
                cells.push(Positioned { value: candidate.cell.clone(), place: candidate.place.clone() });
            }
        }
    }
    match (cells.is_empty(), excludes.first()) {
        (true, Some(pattern)) => Err(pattern.leaves_nothing()),
        _ => Ok(cells),
    }
}

/// A depth that a criterion cannot choose on a backbone, though it is below its layers; and why.
pub(super) struct Impossible {
    cell: Cell,
    place: YamlPosition,
    error: Error,
}

impl Impossible {
    /// As an error where it is written.
    pub(super) fn into_error(self) -> Error {
        self.error.at(self.place.to_string())
    }
}

/// The depths that criteria cannot choose, each once.
pub(super) fn impossible(cells: &[Positioned<Cell>], backbones: &BTreeMap<String, Backbone>) -> Vec<Impossible> {
    let (mut asked, mut impossible) = (HashSet::new(), Vec::new());
    for Positioned { value: cell, place } in cells {
        let Cell { backbone, criterion: Some(criterion), depth, .. } = cell else { continue };
        if asked.insert((backbone, criterion, depth)) {
            let cut = PruneSpec { backbone, layers: backbones[backbone].layers, depth: *depth };
            if let Err(error) = criterion.rule.check(&cut) {
                impossible.push(Impossible { cell: cell.clone(), place: place.clone(), error });
            }
        }
    }
    impossible
}

/// Leaves out of a search what its criteria cannot choose.
///
/// # Errors
/// Of a backbone, or of a number of layers that the budget asks for, nothing would be left: why.
pub(super) fn without_impossible(
    mut cells: Vec<Positioned<Cell>>,
    backbones: &BTreeMap<String, Backbone>,
    search: &mut Search,
) -> Result<Vec<Positioned<Cell>>> {
    let impossible = impossible(&cells, backbones);
    let same = |a: &Cell, b: &Cell| (&a.backbone, &a.criterion, a.depth) == (&b.backbone, &b.criterion, b.depth);
    cells.retain(|of| !impossible.iter().any(|one| same(&one.cell, &of.value)));
    let layers = search.budget.layers.clone();
    for one in impossible {
        let Cell { backbone, criterion, depth, .. } = &one.cell;
        let beside =
            |of: &Cell| of.backbone == *backbone && !of.is_dense() && (layers.is_empty() || of.depth == *depth);
        let wanted = layers.is_empty() || layers.contains(depth);
        if wanted && !cells.iter().any(|of| beside(&of.value)) {
            return Err(one.into_error());
        }
        search.unselectable.push(Unselectable {
            backbone: backbone.clone(),
            criterion: criterion.as_ref().map(ToString::to_string).unwrap_or_default(),
            depth: *depth,
            reason: one.error.one_line(),
        });
    }
    Ok(cells)
}

fn dense_of(backbone: &Positioned<String>) -> Positioned<Cell> {
    Positioned { value: Cell::dense(&backbone.value), place: backbone.place.clone() }
}

impl PrunedCell {
    /// Refuses a cut of a whole backbone.
    fn leaves_something(&self, layers: usize) -> Result<()> {
        let Cell { backbone, depth, .. } = &self.cell;
        if *depth < layers {
            return Ok(());
        }
        let found = match self.depth {
            Depth::Count(count) => count.to_string(),
            Depth::Share { .. } => format!("`{}`, which is {depth} layers of `{backbone}`", self.depth),
        };
        Err(Error::bad_input(format!("a depth would leave nothing of the backbone `{backbone}`"))
            .at(self.place.to_string())
            .expected(format!("a number below {layers}, the layers of `{backbone}`"))
            .found(found)
            .hint(format!("remove at most {} layers", layers.saturating_sub(1))))
    }
}

impl Axes {
    fn few_enough(&self) -> Result<()> {
        fn size<T>(of: &Option<Vec<T>>) -> usize {
            of.as_ref().map_or(0, Vec::len)
        }
        let Self { place, backbone, criterion, depth, recovery, calibration, .. } = self;
        limits::few_enough(&[size(backbone), size(criterion), size(depth), size(recovery), size(calibration)], place)
    }

    /// For each backbone criterion by criterion, in it depth by depth, then recovery, then calibration.
    fn product(&self, backbones: &BTreeMap<String, Backbone>) -> Vec<PrunedCell> {
        let mut candidates = Vec::new();
        for backbone in self.backbone.iter().flatten().map(|backbone| &backbone.value) {
            let depths = self.depths(backbones[backbone].layers);
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
                            candidates.push(PrunedCell { cell, depth: depth.value, place: depth.place.clone() });
                        }
                    }
                }
            }
        }
        candidates
    }

    /// The axis counted out; of entries that come to the same count the first one stays.
    fn depths(&self, layers: usize) -> Vec<(usize, &Positioned<Depth>)> {
        let mut counts: Vec<(usize, &Positioned<Depth>)> = Vec::new();
        for depth in self.depth.iter().flatten() {
            let count = depth.value.of(layers);
            if counts.iter().all(|(known, _)| *known != count) {
                counts.push((count, depth));
            }
        }
        counts
    }
}
