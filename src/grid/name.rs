//! Names of cells, such as `llama-3.1-8b.streamline-7.ghosted` and `llama-3.1-8b.dense`.
//!
//! A name consists of the backbone, the short name of the criterion with the depth, and the recovery. Cells that agree
//! in all three are neighbors. Further parts give the settings that distinguish neighbors, as in `….ghosted` and
//! `….ghosted.solver-svd`. Default values are omitted.
//!
//! Names contain only ASCII letters, digits and `._-`, and start with a letter, a digit or `_`. They need no quoting in
//! shells, file systems and URLs. Names in a grid are unique even on case-insensitive file systems. The name of a cell
//! depends only on the cell and its differences from its neighbors. Other cells, the order of the cells and the way the
//! grid is written do not matter.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Map, Value};

use super::cell::{Cell, Method};
use crate::criterion::{self, Criterion};
use crate::files::sha256;
use crate::options::Options;
use crate::recovery::Recovery;

/// Maximum lengths in bytes of a backbone name, of each further part, and of the whole name. Even with a file extension
/// or a temporary suffix, names stay within the 255 bytes that file systems allow.
const MAX_BACKBONE_BYTES: usize = 80;
const MAX_PART_BYTES: usize = 48;
const MAX_NAME_BYTES: usize = 180;
/// Number of hash digits appended to names that are too long or not unique.
const HASH_DIGITS: usize = 8;

/// Path of a setting: the index of its axis, and its keys in the options.
type AxisSettingPath = (usize, Vec<String>);
/// Non-default settings, in the order in which they appear in a name. An option that is a map has an empty map at its
/// own path, followed by its entries at longer paths.
type NameSettings = BTreeMap<AxisSettingPath, Value>;

/// Sets the name of each cell. The names are unique within `cells`.
pub fn assign_names(cells: &mut [Cell]) {
    let known = KnownMethods::from_cells(cells);
    let names: Vec<(String, NameSettings)> =
        cells.iter().map(|cell| (known.build_base_name(cell), known.collect_settings(cell))).collect();
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, (base_name, _)) in names.iter().enumerate() {
        groups.entry(base_name.to_ascii_lowercase()).or_default().push(at);
    }
    for group in groups.into_values() {
        let distinguishing = find_distinguishing_settings(&group.iter().map(|&at| &names[at].1).collect::<Vec<_>>());
        let plain = group
            .iter()
            .map(|&at| build_readable_name(&names[at].0, &names[at].1, &distinguishing))
            .collect::<Vec<_>>();
        let hashes = group.iter().map(|&at| hash_cell(&cells[at], &names[at].1)).collect::<Vec<_>>();
        for (at, name) in group.into_iter().zip(make_unique(&plain, &hashes)) {
            cells[at].name = name;
        }
    }
}

/// Short names and default options of the methods that the cells of a grid use.
struct KnownMethods {
    /// Short names of the criteria, by full name.
    short_names: BTreeMap<String, &'static str>,
    /// Default options by axis and method name. Empty for methods that have required options.
    defaults: BTreeMap<(usize, String), Options>,
}

impl KnownMethods {
    fn from_cells(cells: &[Cell]) -> Self {
        let mut defaults = BTreeMap::new();
        for cell in cells {
            if let Some(criterion) = &cell.criterion {
                defaults
                    .entry((0, criterion.name.clone()))
                    .or_insert_with(|| Method::<dyn Criterion>::defaults(&criterion.name));
            }
            if let Some(recovery) = &cell.recovery {
                defaults
                    .entry((1, recovery.name.clone()))
                    .or_insert_with(|| Method::<dyn Recovery>::defaults(&recovery.name));
            }
        }
        Self {
            short_names: criterion::descriptions().into_iter().map(|method| (method.name, method.short)).collect(),
            defaults,
        }
    }

    /// Builds the beginning of a name: backbone, criterion with depth, and recovery.
    fn build_base_name(&self, cell: &Cell) -> String {
        let name = replace_unsafe(&cell.backbone, "._-");
        let name = match name.trim_start_matches(['.', '-']) {
            "" => "_",
            name => name,
        };
        let backbone = truncate(name, MAX_BACKBONE_BYTES);
        match (&cell.criterion, &cell.recovery) {
            (Some(criterion), Some(recovery)) => {
                let short = self.short_names.get(&criterion.name).copied().unwrap_or(&criterion.name);
                format!(
                    "{backbone}.{}-{}.{}",
                    replace_unsafe(short, "_-"),
                    cell.depth.cell_name_part(),
                    replace_unsafe(&recovery.name, "_-")
                )
            }
            _ => format!("{backbone}.dense"),
        }
    }

    /// Returns the non-default options and the calibration settings of a cell.
    fn collect_settings(&self, cell: &Cell) -> NameSettings {
        let mut all = NameSettings::new();
        for (axis, name, resolved) in methods(cell) {
            let default = self.defaults.get(&(axis, name.clone()));
            let changed = resolved
                .iter()
                .filter(|(key, value)| default.and_then(|method_defaults| method_defaults.get(*key)) != Some(value));
            changed.for_each(|(key, value)| insert_setting((axis, vec![key.clone()]), value, &mut all));
        }
        if let Some(calibration) = &cell.calibration {
            let settings = [
                ("corpus", Some(calibration.corpus.clone().into())),
                ("sequences", Some(calibration.sequences.into())),
                ("length", Some(calibration.length.into())),
                ("seed", (calibration.seed != 0).then(|| calibration.seed.into())),
                (
                    "operator_sequences",
                    (calibration.operator_sequences != calibration.sequences)
                        .then(|| calibration.operator_sequences.into()),
                ),
            ];
            let numbered = settings.into_iter().enumerate();
            all.extend(numbered.filter_map(|(index, (key, value))| Some(((2 + index, vec![key.to_owned()]), value?))));
        }
        all
    }
}

/// Iterates over the methods in a cell. Each item consists of the axis index, the name and the resolved options.
fn methods(cell: &Cell) -> impl Iterator<Item = (usize, &String, &Options)> {
    let criterion = cell.criterion.iter().map(|criterion| (0, &criterion.name, &criterion.resolved));
    criterion.chain(cell.recovery.iter().map(|recovery| (1, &recovery.name, &recovery.resolved)))
}

fn insert_setting(at: AxisSettingPath, value: &Value, settings: &mut NameSettings) {
    let Value::Object(map) = value else {
        settings.insert(at, value.clone());
        return;
    };
    for (key, value) in map {
        insert_setting((at.0, [&at.1[..], std::slice::from_ref(key)].concat()), value, settings);
    }
    settings.insert(at, Map::new().into());
}

/// Returns the settings in which neighbors differ. Settings in a map are compared only among the neighbors that have
/// the map.
fn find_differing_settings(neighbors: &[&NameSettings]) -> BTreeSet<AxisSettingPath> {
    let mut all: BTreeMap<&AxisSettingPath, (&Value, usize, bool)> = BTreeMap::new();
    for (at, value) in neighbors.iter().flat_map(|neighbor| neighbor.iter()) {
        let (first, count, differ) = all.entry(at).or_insert((value, 0, false));
        *differ |= *first != value;
        *count += 1;
    }
    all.iter()
        .filter(|(at, (_, count, differ))| *differ || *count < count_with_parent(neighbors, &all, at))
        .map(|(at, _)| (*at).clone())
        .collect()
}

/// Returns the number of neighbors with the map that contains a setting. Counts all neighbors for a top-level setting.
fn count_with_parent(
    neighbors: &[&BTreeMap<(usize, Vec<String>), Value>],
    all: &BTreeMap<&(usize, Vec<String>), (&Value, usize, bool)>,
    (axis, path): &AxisSettingPath,
) -> usize {
    match path.len() {
        1 => neighbors.len(),
        more => all.get(&(*axis, path[..more - 1].to_vec())).map_or(0, |(_, count, _)| *count),
    }
}

/// Returns a minimal set of settings that distinguishes the neighbors. Earlier settings are preferred.
fn find_distinguishing_settings(neighbors: &[&NameSettings]) -> BTreeSet<AxisSettingPath> {
    let mut settings = find_differing_settings(neighbors);
    let all = count_distinct(neighbors, &settings);
    for at in settings.clone().iter().rev() {
        settings.remove(at);
        if count_distinct(neighbors, &settings) < all {
            settings.insert(at.clone());
        }
    }
    settings
}

fn count_distinct(neighbors: &[&BTreeMap<(usize, Vec<String>), Value>], paths: &BTreeSet<AxisSettingPath>) -> usize {
    neighbors
        .iter()
        .map(|settings| paths.iter().map(|at| settings.get(at).cloned()).collect::<Vec<Option<Value>>>())
        .collect::<HashSet<_>>()
        .len()
}

/// Builds a cell name that need not be unique. Its parts look like `solver-svd` or `layers-3-4-5`. A map gives parts
/// such as `finetune` and `finetune-seed-1`.
fn build_readable_name(base_name: &str, settings: &NameSettings, distinguishing: &BTreeSet<AxisSettingPath>) -> String {
    let mut parts: BTreeMap<(usize, &str), String> = BTreeMap::new();
    for (at, value) in settings.iter().filter(|(at, _)| distinguishing.contains(*at)) {
        let (axis, path) = at;
        let part = parts.entry((*axis, &path[0])).or_insert_with(|| replace_unsafe(&path[0], "_-"));
        if !value.is_object() {
            let below = path[1..].iter().map(|key| replace_unsafe(key, "_-"));
            below.chain([format_value(value)]).for_each(|text| part.extend(["-", &text]));
        }
    }
    let parts = parts.values().map(|part| truncate(part, MAX_PART_BYTES));
    truncate(&[base_name.to_owned()].into_iter().chain(parts).collect::<Vec<_>>().join("."), MAX_NAME_BYTES)
}

fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => replace_unsafe(text, "_-"),
        Value::Array(items) => items.iter().map(format_value).collect::<Vec<_>>().join("-"),
        // A decimal point is always between two digits, so the parts remain separable.
        Value::Number(number) => replace_unsafe(&number.to_string(), ".-"),
        other => replace_unsafe(&other.to_string(), "_-"),
    }
}

/// Replaces every character with a dash, except for ASCII letters, digits and the characters in `allowed`.
fn replace_unsafe(text: &str, allowed: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || allowed.contains(c) { c } else { '-' }).collect()
}

/// Truncates a string of more than `max_bytes`, and appends digits of its hash.
fn truncate(text: &str, max_bytes: usize) -> String {
    match text.len() <= max_bytes {
        true => text.to_owned(),
        false => format!("{}-{}", &text[..max_bytes - HASH_DIGITS - 1], &sha256::of_bytes(text)[..HASH_DIGITS]),
    }
}

fn hash_cell(cell: &Cell, settings: &NameSettings) -> String {
    let methods = methods(cell).map(|(_, name, _)| name.clone());
    let settings = settings.iter().map(|((axis, path), value)| format!("{axis} {path:?} {value}"));
    let all = [cell.backbone.clone(), cell.depth.to_string()].into_iter().chain(methods).chain(settings);
    sha256::of_bytes(all.collect::<Vec<_>>().join("\n"))
}

/// Returns the names of neighbors, made unique by appending hash digits to names that are equal up to case.
fn make_unique(plain: &[String], hashes: &[String]) -> Vec<String> {
    let folded: Vec<String> = plain.iter().map(|name| name.to_ascii_lowercase()).collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    folded.iter().for_each(|name| *seen.entry(name).or_default() += 1);
    [HASH_DIGITS, 16, 32]
        .into_iter()
        .map(|digits| append_hashes(plain, hashes, &folded, &seen, digits))
        .find(|names| names.iter().map(|name| name.to_ascii_lowercase()).collect::<BTreeSet<_>>().len() == names.len())
        .unwrap_or_else(|| append_hashes(plain, hashes, &folded, &seen, 64))
}

fn append_hashes(
    plain: &[String],
    hashes: &[String],
    folded: &[String],
    seen: &BTreeMap<&str, usize>,
    digits: usize,
) -> Vec<String> {
    let all = plain.iter().zip(folded).zip(hashes);
    all.map(|((name, folded), hash)| match seen[folded.as_str()] {
        1 => name.clone(),
        _ => format!("{name}.{}", &hash[..digits]),
    })
    .collect()
}

#[cfg(test)]
#[path = "name_test.rs"]
mod tests;
