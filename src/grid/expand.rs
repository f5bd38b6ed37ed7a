//! From axes to cells: the product, less what `exclude` means, and what `include` adds.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;

use super::axes::Role;
use super::check::{Checker, Placed};
use super::depth::Depth;
use super::node::Step;
use super::node::Step::{Item, Key};
use super::pattern::Pattern;
use super::{Backbone, Calibration, Cell, Method};
use crate::error::{Error, Result};

/// Checked axes, of the grid or of an `include`.
#[derive(Debug, Clone)]
struct Axes {
    backbone: Vec<Placed<String>>,
    criterion: Vec<Placed<Method>>,
    depth: Vec<Placed<Depth>>,
    recovery: Vec<Placed<Method>>,
    calibration: Vec<Placed<Calibration>>,
}

/// What the cells are made of.
pub(super) struct Expansion {
    axes: Axes,
    includes: Vec<Axes>,
    excludes: Vec<Pattern>,
}

impl Expansion {
    /// All backbones that are named, some maybe several times.
    pub(super) fn backbones(&self) -> impl Iterator<Item = &Placed<String>> {
        [&self.axes].into_iter().chain(&self.includes).flat_map(|axes| &axes.backbone)
    }
}

/// A cell and the place of its depth, which is checked only if the cell stays.
struct Candidate {
    cell: Cell,
    depth: Depth,
    place: String,
}

/// Reads the axes, `include` and `exclude`.
pub(super) fn plan(checker: &Checker<'_>) -> Result<Expansion> {
    let schema = checker.schema;
    let axes = Axes {
        backbone: checker.axis(&[Key("backbone")], &schema.backbone)?,
        criterion: checker.methods(&[Key("criterion")], &schema.criterion, Role::Criterion)?,
        depth: checker.depths(&[Key("depth")], &schema.depth)?,
        recovery: checker.methods(&[Key("recovery")], &schema.recovery, Role::Recovery)?,
        calibration: checker.calibrations(&[Key("calibration")], &schema.calibration)?,
    };
    let includes = (0..schema.include.len()).map(|i| include(checker, i, &axes)).collect::<Result<_>>()?;
    let excludes =
        schema.exclude.iter().enumerate().map(|(i, entry)| checker.pattern(i, entry)).collect::<Result<_>>()?;
    Ok(Expansion { axes, includes, excludes })
}

/// The axes of an `include`: its own, and the grid's where it has none.
fn include(checker: &Checker<'_>, i: usize, grid: &Axes) -> Result<Axes> {
    let entry = &checker.schema.include[i];
    let steps = [Key("include"), Item(i)];
    if ["backbone", "criterion", "depth", "recovery", "calibration"].iter().all(|key| !checker.has(&steps, key)) {
        return Err(checker
            .bad("an entry of `include` is empty", &steps)
            .expected("one or more of backbone, criterion, depth, recovery, calibration")
            .found("an empty map")
            .hint("it would add what the axes give already"));
    }
    let own = |key: &'static str| checker.has(&steps, key).then_some([steps[0], steps[1], Key(key)]);
    fn or<T: Clone>(
        own: Option<[Step<'_>; 3]>,
        grid: &[Placed<T>],
        read: impl FnOnce(&[Step<'_>]) -> Result<Vec<Placed<T>>>,
    ) -> Result<Vec<Placed<T>>> {
        own.map_or_else(|| Ok(grid.to_vec()), |steps| read(&steps))
    }
    Ok(Axes {
        backbone: or(own("backbone"), &grid.backbone, |at| checker.axis(at, &entry.backbone))?,
        criterion: or(own("criterion"), &grid.criterion, |at| checker.methods(at, &entry.criterion, Role::Criterion))?,
        depth: or(own("depth"), &grid.depth, |at| checker.depths(at, &entry.depth))?,
        recovery: or(own("recovery"), &grid.recovery, |at| checker.methods(at, &entry.recovery, Role::Recovery))?,
        calibration: or(own("calibration"), &grid.calibration, |at| checker.calibrations(at, &entry.calibration))?,
    })
}

impl Axes {
    fn sizes(&self) -> [usize; 5] {
        let Self { backbone, criterion, depth, recovery, calibration } = self;
        [backbone.len(), criterion.len(), depth.len(), recovery.len(), calibration.len()]
    }

    /// For each backbone criterion by criterion, in it depth by depth, then recovery, then calibration.
    fn product(&self, backbones: &BTreeMap<String, Backbone>) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for backbone in self.backbone.iter().map(|backbone| &backbone.value) {
            let layers = backbones[backbone].layers;
            let depths = self.depths(layers);
            for criterion in &self.criterion {
                for (count, depth) in &depths {
                    for recovery in &self.recovery {
                        for calibration in &self.calibration {
                            let cell = Cell {
                                backbone: backbone.clone(),
                                criterion: Some(criterion.value.clone()),
                                depth: *count,
                                recovery: Some(recovery.value.clone()),
                                calibration: Some(calibration.value.clone()),
                            };
                            candidates.push(Candidate { cell, depth: depth.value, place: depth.place.clone() });
                        }
                    }
                }
            }
        }
        candidates
    }

    /// The axis counted out; of entries that come to the same count the first one stays.
    fn depths(&self, layers: usize) -> Vec<(usize, &Placed<Depth>)> {
        let mut counts: Vec<(usize, &Placed<Depth>)> = Vec::new();
        for depth in &self.depth {
            let count = depth.value.of(layers);
            if counts.iter().all(|(known, _)| *known != count) {
                counts.push((count, depth));
            }
        }
        counts
    }
}

/// All cells: backbone by backbone the dense one, the product without what is excluded, what is included. None twice.
pub(super) fn cells(
    checker: &Checker<'_>,
    plan: &Expansion,
    backbones: &BTreeMap<String, Backbone>,
) -> Result<Vec<Cell>> {
    for axes in [&plan.axes].into_iter().chain(&plan.includes) {
        checker.few_enough(&axes.sizes(), &[])?;
    }
    let product = plan.axes.product(backbones);
    let dense: Vec<Cell> = plan.axes.backbone.iter().map(|backbone| Cell::dense(&backbone.value)).collect();
    let layers = |cell: &Cell| backbones[&cell.backbone].layers;
    let all = dense.iter().chain(product.iter().map(|candidate| &candidate.cell));
    let all: Vec<(&Cell, usize)> = all.map(|cell| (cell, layers(cell))).collect();
    plan.excludes.iter().try_for_each(|pattern| pattern.check(&all))?;

    let stays = |cell: &Cell| !plan.excludes.iter().any(|pattern| pattern.matches(cell, layers(cell)));
    let kept: Vec<&Candidate> = product.iter().filter(|candidate| stays(&candidate.cell)).collect();
    let added: Vec<Candidate> = plan.includes.iter().flat_map(|axes| axes.product(backbones)).collect();
    let candidates: Vec<&Candidate> = kept.into_iter().chain(&added).collect();

    let named = dense.iter().filter(|cell| stays(cell)).chain(candidates.iter().map(|candidate| &candidate.cell));
    let mut cells = Vec::new();
    let (mut seen, mut checked) = (HashSet::new(), HashSet::new());
    for backbone in distinct(named.map(|cell| &cell.backbone)) {
        cells.push(Cell::dense(&backbone));
        for candidate in candidates.iter().filter(|candidate| candidate.cell.backbone == backbone) {
            if !seen.insert(&candidate.cell) {
                continue;
            }
            if checked.insert((&candidate.cell.backbone, &candidate.cell.criterion, candidate.cell.depth)) {
                check_depth(checker, candidate, layers(&candidate.cell))?;
            }
            cells.push(candidate.cell.clone());
        }
    }
    if cells.is_empty() {
        return Err(checker
            .bad("no cell is left", &[Key("exclude")])
            .expected("at least one backbone that no pattern leaves out")
            .found("patterns that leave out every backbone")
            .hint("a pattern with nothing but `backbone` leaves out its dense cell too"));
    }
    Ok(cells)
}

/// Whether a criterion can remove so many layers of a backbone.
fn check_depth(checker: &Checker<'_>, candidate: &Candidate, layers: usize) -> Result<()> {
    let Candidate { cell: Cell { backbone, criterion, depth, .. }, depth: written, place } = candidate;
    if *depth >= layers {
        let found = match written {
            Depth::Count(count) => count.to_string(),
            Depth::Share { .. } => format!("`{written}`, which is {depth} layers of `{backbone}`"),
        };
        return Err(Error::bad_input(format!("a depth would leave nothing of the backbone `{backbone}`"))
            .at(place.clone())
            .expected(format!("a number below {layers}, the layers of `{backbone}`"))
            .found(found)
            .hint(format!("remove at most {} layers", layers.saturating_sub(1))));
    }
    match criterion {
        Some(criterion) => checker.registry.check_depth(criterion, backbone, *depth, layers),
        None => Ok(()),
    }
    .map_err(|error| error.at(place.clone()))
}

/// Each value once, in the order of first appearance.
pub(super) fn distinct<'a, T: Clone + Eq + Hash + 'a>(values: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut seen = HashSet::new();
    values.filter(|value| seen.insert(*value)).cloned().collect()
}
