//! The names of cells: `llama-3.1-8b.streamline-7.ghosted`, `llama-3.1-8b.dense`.
//!
//! Backbone, criterion (in short) with the depth, recovery. Cells that have all of these alike are neighbours, and a further
//! part says each setting that it takes to tell them apart: `….ghosted` and `….ghosted.solver-svd`. A setting that has its
//! default is not said.
//!
//! ASCII letters, digits and `._-` alone, not a dot or dash first: no shell, file system or URL has to quote a name. No two of a
//! grid are alike, not even where a file system takes `A` for `a`. A name depends on its cell, and on what its neighbours have
//! other than it. No other cell, no order of cells, and no way of writing the same grid changes it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Map, Value};

use super::cell::{Cell, Method};
use crate::criterion::{self, Criterion};
use crate::files::sha256;
use crate::options::Options;
use crate::recovery::Recovery;

/// Most bytes of a backbone's name, of one further part, and of all: a file's ending, and what a temporary file is called
/// besides, stay within the 255 that file systems allow.
const MOST_OF_BACKBONE: usize = 80;
const MOST_OF_PART: usize = 48;
const MOST: usize = 180;
/// Digits of a hash where a name is cut short, or written like another one.
const DIGITS: usize = 8;

/// Where a setting stands: its axis, and its place in the options there.
type SettingPlace = (usize, Vec<String>);
/// Settings beside those of every name that are not what they are by default, in the order of the parts of a name. A map
/// stands for itself as an empty one, before what is in it.
type NameSettings = BTreeMap<SettingPlace, Value>;

/// Names all cells of a grid; what they are called so far does not matter.
pub fn give(cells: &mut [Cell]) {
    let known = KnownMethods::of(cells);
    let own: Vec<(String, NameSettings)> =
        cells.iter().map(|cell| (known.begins(cell), known.settings(cell))).collect();
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, (begins, _)) in own.iter().enumerate() {
        groups.entry(begins.to_ascii_lowercase()).or_default().push(at);
    }
    for group in groups.into_values() {
        let telling = telling(&group.iter().map(|&at| &own[at].1).collect::<Vec<_>>());
        let plain = group.iter().map(|&at| plain(&own[at].0, &own[at].1, &telling)).collect::<Vec<_>>();
        let hashes = group.iter().map(|&at| hash(&cells[at], &own[at].1)).collect::<Vec<_>>();
        for (at, name) in group.into_iter().zip(apart(&plain, &hashes)) {
            cells[at].name = name;
        }
    }
}

/// What is known of the methods of a grid.
struct KnownMethods {
    /// Criteria by name, in short.
    short: BTreeMap<String, &'static str>,
    /// Each method without an option; none of one that cannot be without.
    defaults: BTreeMap<(usize, String), Options>,
}

impl KnownMethods {
    fn of(cells: &[Cell]) -> Self {
        let mut defaults = BTreeMap::new();
        for cell in cells {
            if let Some(of) = &cell.criterion {
                defaults.entry((0, of.name.clone())).or_insert_with(|| Method::<dyn Criterion>::defaults(&of.name));
            }
            if let Some(of) = &cell.recovery {
                defaults.entry((1, of.name.clone())).or_insert_with(|| Method::<dyn Recovery>::defaults(&of.name));
            }
        }
        Self { short: criterion::described().into_iter().map(|of| (of.name, of.short)).collect(), defaults }
    }

    /// What every name begins with.
    fn begins(&self, cell: &Cell) -> String {
        let name = safe(&cell.backbone, "._-");
        let name = match name.trim_start_matches(['.', '-']) {
            "" => "_",
            name => name,
        };
        let backbone = short(name, MOST_OF_BACKBONE);
        match (&cell.criterion, &cell.recovery) {
            (Some(criterion), Some(recovery)) => {
                let short = self.short.get(&criterion.name).copied().unwrap_or(&criterion.name);
                format!("{backbone}.{}-{}.{}", safe(short, "_-"), cell.depth, safe(&recovery.name, "_-"))
            }
            _ => format!("{backbone}.dense"),
        }
    }

    fn settings(&self, cell: &Cell) -> NameSettings {
        let mut all = NameSettings::new();
        for (axis, name, resolved) in methods(cell) {
            let default = self.defaults.get(&(axis, name.clone()));
            let own = resolved.iter().filter(|(key, value)| default.and_then(|of| of.get(*key)) != Some(value));
            own.for_each(|(key, value)| put((axis, vec![key.clone()]), value, &mut all));
        }
        if let Some(of) = &cell.calibration {
            let said = [
                ("corpus", Some(of.corpus.clone().into())),
                ("sequences", Some(of.sequences.into())),
                ("length", Some(of.length.into())),
                ("seed", (of.seed != 0).then(|| of.seed.into())),
                ("operator_sequences", (of.operator_sequences != of.sequences).then(|| of.operator_sequences.into())),
            ];
            let said = said.into_iter().enumerate();
            all.extend(said.filter_map(|(place, (key, value))| Some(((2 + place, vec![key.to_owned()]), value?))));
        }
        all
    }
}

/// The methods of a cell, each with the place of its axis: its name and what it is.
fn methods(cell: &Cell) -> impl Iterator<Item = (usize, &String, &Options)> {
    let criterion = cell.criterion.iter().map(|of| (0, &of.name, &of.resolved));
    criterion.chain(cell.recovery.iter().map(|of| (1, &of.name, &of.resolved)))
}

fn put(at: SettingPlace, value: &Value, into: &mut NameSettings) {
    let Value::Object(map) = value else {
        into.insert(at, value.clone());
        return;
    };
    for (key, value) in map {
        put((at.0, [&at.1[..], std::slice::from_ref(key)].concat()), value, into);
    }
    into.insert(at, Map::new().into());
}

/// What neighbours do not all have alike; of what stands in a map, those that have the map.
fn differ(neighbours: &[&NameSettings]) -> BTreeSet<SettingPlace> {
    let mut all: BTreeMap<&SettingPlace, (&Value, usize, bool)> = BTreeMap::new();
    for (at, value) in neighbours.iter().flat_map(|of| of.iter()) {
        let (first, count, differ) = all.entry(at).or_insert((value, 0, false));
        *differ |= *first != value;
        *count += 1;
    }
    let above = |(axis, path): &SettingPlace| match path.len() {
        1 => neighbours.len(),
        more => all.get(&(*axis, path[..more - 1].to_vec())).map_or(0, |(_, count, _)| *count),
    };
    all.iter().filter(|(at, (_, count, differ))| *differ || *count < above(at)).map(|(at, _)| (*at).clone()).collect()
}

/// What it takes to tell neighbours apart: of all in which they differ, less what the others tell already. What comes first
/// in a name stays.
fn telling(neighbours: &[&NameSettings]) -> BTreeSet<SettingPlace> {
    let mut kept = differ(neighbours);
    let kinds = |of: &BTreeSet<SettingPlace>| {
        let kind = |own: &&NameSettings| of.iter().map(|at| own.get(at).cloned()).collect::<Vec<Option<Value>>>();
        neighbours.iter().map(kind).collect::<HashSet<_>>().len()
    };
    let all = kinds(&kept);
    for at in kept.clone().iter().rev() {
        kept.remove(at);
        if kinds(&kept) < all {
            kept.insert(at.clone());
        }
    }
    kept
}

/// A cell's name where no neighbour is written alike. A part is `solver-svd`, `layers-3-4-5`; of a map `finetune`,
/// `finetune-seed-1`.
fn plain(begins: &str, own: &NameSettings, telling: &BTreeSet<SettingPlace>) -> String {
    let mut parts: BTreeMap<(usize, &str), String> = BTreeMap::new();
    for (at, value) in own.iter().filter(|(at, _)| telling.contains(*at)) {
        let (axis, path) = at;
        let part = parts.entry((*axis, &path[0])).or_insert_with(|| safe(&path[0], "_-"));
        if !value.is_object() {
            let below = path[1..].iter().map(|key| safe(key, "_-"));
            below.chain([word(value)]).for_each(|text| part.extend(["-", &text]));
        }
    }
    let parts = parts.values().map(|part| short(part, MOST_OF_PART));
    short(&[begins.to_owned()].into_iter().chain(parts).collect::<Vec<_>>().join("."), MOST)
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => safe(text, "_-"),
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join("-"),
        // Its point stands between digits, so that no part ends like the beginning of a name.
        Value::Number(number) => safe(&number.to_string(), ".-"),
        other => safe(&other.to_string(), "_-"),
    }
}

/// A text with a dash for whatever is no letter, no digit and none of these.
fn safe(text: &str, more: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || more.contains(c) { c } else { '-' }).collect()
}

/// A safe text, or its beginning and some digits of its hash.
fn short(text: &str, most: usize) -> String {
    match text.len() <= most {
        true => text.to_owned(),
        false => format!("{}-{}", &text[..most - DIGITS - 1], &sha256::of_bytes(text)[..DIGITS]),
    }
}

fn hash(cell: &Cell, settings: &NameSettings) -> String {
    let methods = methods(cell).map(|(_, name, _)| name.clone());
    let settings = settings.iter().map(|((axis, path), value)| format!("{axis} {path:?} {value}"));
    let all = [cell.backbone.clone(), cell.depth.to_string()].into_iter().chain(methods).chain(settings);
    sha256::of_bytes(all.collect::<Vec<_>>().join("\n"))
}

/// The names of neighbours; those that are written alike with digits of their hashes, as many as it takes.
fn apart(plain: &[String], hashes: &[String]) -> Vec<String> {
    let folded: Vec<String> = plain.iter().map(|name| name.to_ascii_lowercase()).collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    folded.iter().for_each(|name| *seen.entry(name).or_default() += 1);
    let longer = |digits: usize| -> Vec<String> {
        let all = plain.iter().zip(&folded).zip(hashes);
        all.map(|((name, folded), hash)| match seen[folded.as_str()] {
            1 => name.clone(),
            _ => format!("{name}.{}", &hash[..digits]),
        })
        .collect()
    };
    let unlike = |names: &Vec<String>| {
        names.iter().map(|name| name.to_ascii_lowercase()).collect::<BTreeSet<_>>().len() == names.len()
    };
    [DIGITS, 16, 32].into_iter().map(longer).find(unlike).unwrap_or_else(|| longer(64))
}

#[cfg(test)]
#[path = "name_test.rs"]
mod tests;
