//! Axes of a grid or of an `include` entry, and the cells built from them. The cells are the product of the axes,
//! without those that `exclude` matches, plus those that `include` adds.

use std::collections::{BTreeMap, HashSet};
use std::iter;

use super::cell::{CUT_AXES, Calibration, Cell, Method, MethodEntry, build_methods};
use super::definitions::{Backbone, RoundedWeights};
use super::depth::{Depth, DepthEntry, read_depths};
use super::name;
use super::node::{EntryPosition, Positioned, YamlPosition};
use super::one_or_many::OneOrMany;
use super::pattern::CellPattern;
use super::schema::CalibrationEntry;
use super::search::Search;
use super::unprunable::{find_unprunable, remove_unprunable};
use super::validate::{self, combinations};
use super::weights::Weights;
use crate::criterion::{self, Criterion};
use crate::error::{Error, Result};
use crate::quantity::MAX_TOKENS;
use crate::recovery::Recovery;

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
        let calibrations = calibration
            .explicit_values()
            .map(|written| read_calibrations(&at.key("calibration"), written))
            .transpose()?;
        let (calibration, corpora) = calibrations.unzip();
        Ok(Self {
            position: at.position(),
            backbone: backbone
                .explicit_values()
                .map(|names| validate::read_values(&at.key("backbone"), names))
                .transpose()?,
            criterion: criterion.explicit_values().map(|entries| build_methods(at, entries)).transpose()?,
            depth: depth.explicit_values().map(|entries| read_depths(&at.key("depth"), entries)).transpose()?,
            recovery: recovery.explicit_values().map(|entries| build_methods(at, entries)).transpose()?,
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

/// Calibrations on an axis, and the corpora they refer to.
type Calibrations = (Vec<Positioned<Calibration>>, Vec<Positioned<String>>);

fn read_calibrations(at: &EntryPosition<'_>, entries: &[CalibrationEntry]) -> Result<Calibrations> {
    let mut all = Vec::new();
    let mut corpora = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let (calibrations, named) = expand_calibration(&at.item(i), entry)?;
        all.extend(calibrations);
        corpora.extend(named);
    }
    validate::check_values(at, &all)?;
    Ok((all, corpora))
}

/// Expands the lists of an entry into calibrations, one per combination.
fn expand_calibration(at: &EntryPosition<'_>, entry: &CalibrationEntry) -> Result<Calibrations> {
    let corpora = validate::read_values(&at.key("corpus"), &entry.corpus)?;
    let subject = "the number of calibration sequences";
    let sequences = validate::read_counts(&at.key("sequences"), &entry.sequences, 1, subject)?;
    let lengths = validate::read_counts(&at.key("length"), &entry.length, 2, "the length of a calibration sequence")?;
    let seeds = entry.seed.explicit_values().map(|seeds| validate::read_values(&at.key("seed"), seeds)).transpose()?;
    let subject = "the number of sequences for the operator";
    let operators = entry
        .operator_sequences
        .explicit_values()
        .map(|values| validate::read_counts(&at.key("operator_sequences"), values, 1, subject))
        .transpose()?;
    let seeds = optional_values(at, seeds);
    let operators = optional_values(at, operators);

    let sizes = [corpora.len(), sequences.len(), lengths.len(), seeds.len(), operators.len()];
    validate::check_cell_count(&sizes, &at.position())?;
    let lists = sizes.iter().filter(|&&size| size > 1).count();
    let mut calibrations = Vec::new();
    for combination in combinations(&sizes) {
        let [c, n, t, s, o] = combination[..] else { continue };
        let (corpus, count, length, seed, operator) =
            (&corpora[c], &sequences[n], &lengths[t], &seeds[s], &operators[o]);
        // Fill in the defaults so that explicit and implicit defaults compare equal.
        let value = Calibration {
            corpus: corpus.value.clone(),
            sequences: count.value,
            length: length.value,
            seed: seed.value.unwrap_or(0),
            operator_sequences: operator.value.unwrap_or(count.value),
        };
        if value.sequences.saturating_mul(value.length) > MAX_TOKENS {
            return Err(Error::bad_input("a calibration has too many tokens")
                .at(count.position.to_string())
                .expected(format!("sequences × length of {MAX_TOKENS} or less"))
                .found(format!("{} × {}", value.sequences, value.length)));
        }
        if value.operator_sequences > value.sequences {
            return Err(operator_sequences_error(&value, &operator.position, lists > 0));
        }
        let positions = [&corpus.position, &count.position, &length.position, &seed.position, &operator.position];
        let listed = positions.into_iter().zip(sizes).find(|(_, size)| lists == 1 && *size > 1);
        let position = listed.map_or_else(|| at.position(), |(position, _)| position.clone());
        calibrations.push(Positioned { value, position });
    }
    Ok((calibrations, corpora))
}

/// Returns the values of a key, or a single `None` at the position of the map if the key is missing.
pub(super) fn optional_values<T>(
    at: &EntryPosition<'_>,
    values: Option<Vec<Positioned<T>>>,
) -> Vec<Positioned<Option<T>>> {
    match values {
        Some(values) => {
            values.into_iter().map(|value| Positioned { value: Some(value.value), position: value.position }).collect()
        }
        None => vec![at.with_position(None)],
    }
}

fn operator_sequences_error(calibration: &Calibration, position: &YamlPosition, is_expanded: bool) -> Error {
    let Calibration { sequences, operator_sequences, .. } = calibration;
    let error = Error::bad_input("`operator_sequences` exceeds `sequences`")
        .at(position.to_string())
        .expected(format!("at most {sequences}, the entry's `sequences`"));
    if !is_expanded {
        return error.found(operator_sequences.to_string()).hint("remove `operator_sequences` to use all sequences");
    }
    error
        .found(format!("{operator_sequences}, in the expanded combination `{calibration}`"))
        .hint("write the valid combinations as separate entries")
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
    /// Fails in the same cases as [`expand_cells`] and [`remove_unprunable`]. Without a search, also fails if a cell
    /// cannot be pruned or repaired.
    pub(super) fn into_cells(
        mut self,
        search: Option<&mut Search>,
        backbones: &mut BTreeMap<String, Backbone>,
    ) -> Result<Vec<Cell>> {
        for axes in iter::once(&mut self.product).chain(&mut self.includes) {
            axes.expand_weights(&self.weights, backbones)?;
        }
        let mut cells = expand_cells(&self.product, &self.includes, &self.excludes, backbones)?;
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
}

/// Returns all unique cells. Each backbone contributes its dense cell, the product of the axes without the excluded
/// cells, and the included cells. A backbone whose cells are all excluded contributes none.
///
/// # Errors
/// Fails if there are no cells or too many, if a pattern matches no cell, or if a depth removes all layers of a
/// backbone. Depths of excluded cells are not checked.
fn expand_cells(
    axes: &Axes,
    includes: &[Axes],
    excludes: &[CellPattern],
    backbones: &BTreeMap<String, Backbone>,
) -> Result<Vec<Positioned<Cell>>> {
    for axes in iter::once(axes).chain(includes) {
        axes.check_cell_count()?;
    }
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
