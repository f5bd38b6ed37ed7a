//! The axes of a grid, or of an entry of `include`: lists inside entries multiplied out, defaults filled in, methods built.

use std::collections::BTreeMap;

use serde_json::Value;

use super::at::{At, Positioned};
use super::cell::{CUT_AXES, Calibration};
use super::depth::{Depth, DepthEntry};
use super::disk::{Backbone, Rounded};
use super::limits;
use super::list::{self, combinations};
use super::many::Many;
use super::method::{Method, MethodAxis, MethodEntry, WrittenMethod};
use super::node::YamlPosition;
use super::schema::{CalibrationEntry, IncludeEntry, Schema};
use super::weights::Weights;
use crate::criterion::Criterion;
use crate::error::{Error, Result};
use crate::options::Described;
use crate::quantity::MOST_TOKENS;
use crate::recovery::Recovery;

/// Axes that are checked, each none where its key is not written. Where the four beside `backbone` are none there are dense
/// cells only.
#[derive(Debug, Clone)]
pub(super) struct Axes {
    /// Where the map stands that holds them.
    pub(super) place: YamlPosition,
    pub(super) backbone: Option<Vec<Positioned<String>>>,
    pub(super) criterion: Option<Vec<Positioned<Method<dyn Criterion>>>>,
    pub(super) depth: Option<Vec<Positioned<Depth>>>,
    pub(super) recovery: Option<Vec<Positioned<Method<dyn Recovery>>>>,
    pub(super) calibration: Option<Vec<Positioned<Calibration>>>,
    /// The texts that the calibrations name.
    pub(super) corpora: Vec<Positioned<String>>,
}

/// The keys of a map that hold axes.
pub(super) struct AxisEntries<'a> {
    backbone: &'a Many<String>,
    criterion: &'a Many<MethodEntry>,
    depth: &'a Many<DepthEntry>,
    recovery: &'a Many<MethodEntry>,
    calibration: &'a Many<CalibrationEntry>,
}

impl<'a> From<&'a Schema> for AxisEntries<'a> {
    fn from(schema: &'a Schema) -> Self {
        let Schema { backbone, criterion, depth, recovery, calibration, .. } = schema;
        Self { backbone, criterion, depth, recovery, calibration }
    }
}

impl<'a> From<&'a IncludeEntry> for AxisEntries<'a> {
    fn from(entry: &'a IncludeEntry) -> Self {
        let IncludeEntry { backbone, criterion, depth, recovery, calibration } = entry;
        Self { backbone, criterion, depth, recovery, calibration }
    }
}

impl Axes {
    /// Those of the map that stands at `at`.
    pub(super) fn read(at: &At<'_>, entries: &AxisEntries<'_>) -> Result<Self> {
        let AxisEntries { backbone, criterion, depth, recovery, calibration } = entries;
        let calibrations = calibration.written().map(|of| calibrations(&at.key("calibration"), of)).transpose()?;
        let (calibration, corpora) = calibrations.unzip();
        Ok(Self {
            place: at.place(),
            backbone: backbone.written().map(|names| list::values(&at.key("backbone"), names)).transpose()?,
            criterion: criterion.written().map(|entries| built(at, entries)).transpose()?,
            depth: depth.written().map(|entries| depths(&at.key("depth"), entries)).transpose()?,
            recovery: recovery.written().map(|entries| built(at, entries)).transpose()?,
            calibration,
            corpora: corpora.unwrap_or_default(),
        })
    }

    /// The same, and where an axis is not written that of `grid`.
    pub(super) fn within(&self, grid: &Self) -> Self {
        let Self { place, backbone, criterion, depth, recovery, calibration, corpora } = self.clone();
        Self {
            place,
            backbone: backbone.or_else(|| grid.backbone.clone()),
            criterion: criterion.or_else(|| grid.criterion.clone()),
            depth: depth.or_else(|| grid.depth.clone()),
            recovery: recovery.or_else(|| grid.recovery.clone()),
            calibration: calibration.or_else(|| grid.calibration.clone()),
            corpora,
        }
    }

    /// Its backbones each in all these weights, which are backbones of their own; as they are where there are none.
    pub(super) fn round(
        &mut self,
        weights: &[Positioned<Weights>],
        backbones: &mut BTreeMap<String, Backbone>,
    ) -> Result<()> {
        let Some(names) = self.backbone.take_if(|_| !weights.is_empty()) else { return Ok(()) };
        let all = names.iter().flat_map(|name| weights.iter().map(move |of| (name, of)));
        let all = all.map(|(name, of)| rounded(name, of.value, backbones)).collect::<Result<_>>()?;
        self.backbone = Some(all);
        Ok(())
    }

    /// The axes of a cut that are written, and those that are not.
    pub(super) fn of_cuts(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let Self { criterion, depth, recovery, calibration, .. } = self;
        let written = [criterion.is_some(), depth.is_some(), recovery.is_some(), calibration.is_some()];
        let of = |wanted: bool| {
            let keys = CUT_AXES.into_iter().zip(written).filter(|(_, written)| *written == wanted);
            keys.map(|(key, _)| key).collect()
        };
        (of(true), of(false))
    }
}

/// A backbone with such weights, put among the others; its name.
fn rounded(
    name: &Positioned<String>,
    weights: Weights,
    backbones: &mut BTreeMap<String, Backbone>,
) -> Result<Positioned<String>> {
    let Some((to, calibrated)) = weights.rounded() else { return Ok(name.clone()) };
    let own = format!("{}@{weights}", name.value);
    let of = Rounded { of: name.value.clone(), to, calibrated };
    let made = Backbone { weights: Some(of), ..backbones[&name.value].clone() };
    if backbones.insert(own.clone(), made.clone()).is_some_and(|known| known != made) {
        return Err(Error::bad_input("two backbones of one name")
            .at(name.place.to_string())
            .found(format!("`{own}`, as the axis `weights` calls one"))
            .hint("give the other one another name"));
    }
    Ok(Positioned { value: own, place: name.place.clone() })
}

/// Depths, not yet counted out on a backbone.
pub(super) fn depths(at: &At<'_>, entries: &[DepthEntry]) -> Result<Vec<Positioned<Depth>>> {
    let read =
        |(i, entry): (usize, &DepthEntry)| Depth::read(entry).map_err(|error| error.at(at.item(i).place().to_string()));
    list::values(at, &entries.iter().enumerate().map(read).collect::<Result<Vec<_>>>()?)
}

/// The methods of an axis of the map that stands at `at`. Of two ways to write one method the first stays.
fn built<M: MethodAxis + ?Sized>(at: &At<'_>, entries: &[MethodEntry]) -> Result<Vec<Positioned<Method<M>>>> {
    let written = methods::<M>(at, entries)?;
    list::each_once(&at.key(M::KEY), &written)?;
    let mut methods: Vec<Positioned<Method<M>>> = Vec::new();
    for Positioned { value: method, place } in &written {
        let value = Method::new(&method.name, &method.options).map_err(|error| {
            // Of several methods at one place the message has to say which one it means.
            let shared = written.iter().filter(|other| other.place == *place).count() > 1;
            let error = if shared { error.at(method.to_string()) } else { error };
            error.at(place.to_string())
        })?;
        if methods.iter().all(|known| known.value != value) {
            methods.push(Positioned { value, place: place.clone() });
        }
    }
    Ok(methods)
}

/// Methods as they are written in the map that stands at `at`. An option that takes a single value and is given a list stands
/// for a method for each value; one that takes a list does where it is given a list of lists.
pub(super) fn methods<M: MethodAxis + ?Sized>(
    at: &At<'_>,
    entries: &[MethodEntry],
) -> Result<Vec<Positioned<WrittenMethod>>> {
    let (at, known, mut methods) = (at.key(M::KEY), M::described(), Vec::new());
    for (i, entry) in entries.iter().enumerate() {
        let described = known.iter().find(|described| described.name == entry.name);
        methods.extend(method(&at.item(i), entry, described)?);
    }
    Ok(methods)
}

fn method(at: &At<'_>, entry: &MethodEntry, described: Option<&Described>) -> Result<Vec<Positioned<WrittenMethod>>> {
    let mut options = Vec::new();
    for (key, value) in &entry.options {
        let values = match value {
            Value::Array(values) if described.is_some_and(|described| is_axis(described, key, values)) => {
                list::values(&at.key(key), values)?.into_iter().map(|of| (of.value, Some(of.place))).collect()
            }
            single => vec![(single.clone(), None)],
        };
        options.push((key, values));
    }
    let lengths: Vec<usize> = options.iter().map(|(_, values)| values.len()).collect();
    limits::few_enough(&lengths, &at.place())?;
    let lists = options.iter().filter(|(_, values)| values.iter().any(|(_, place)| place.is_some())).count();
    let method = |combination: Vec<usize>| {
        let chosen = options.iter().zip(combination).map(|((key, values), i)| (key, &values[i]));
        let own_place = chosen.clone().find_map(|(_, (_, place))| place.clone()).filter(|_| lists == 1);
        let options = chosen.map(|(key, (value, _))| ((*key).clone(), value.clone())).collect();
        let value = WrittenMethod { name: entry.name.clone(), options };
        Positioned { value, place: own_place.unwrap_or_else(|| at.place()) }
    };
    Ok(combinations(&lengths).into_iter().map(method).collect())
}

/// Whether the values of an option are those of an axis. Of an unknown option its method says that it is unknown.
fn is_axis(described: &Described, option: &str, values: &[Value]) -> bool {
    let of_lists = !values.is_empty() && values.iter().all(Value::is_array);
    described.has(option) && (!described.takes_list(option) || of_lists)
}

/// The calibrations of an axis, and the texts that they name.
type Calibrations = (Vec<Positioned<Calibration>>, Vec<Positioned<String>>);

fn calibrations(at: &At<'_>, entries: &[CalibrationEntry]) -> Result<Calibrations> {
    let (mut all, mut corpora) = (Vec::new(), Vec::new());
    for (i, entry) in entries.iter().enumerate() {
        let (calibrations, named) = calibration(&at.item(i), entry)?;
        all.extend(calibrations);
        corpora.extend(named);
    }
    list::each_once(at, &all)?;
    Ok((all, corpora))
}

/// The product of an entry's lists.
fn calibration(at: &At<'_>, entry: &CalibrationEntry) -> Result<Calibrations> {
    let corpora = list::values(&at.key("corpus"), &entry.corpus)?;
    let what = "the number of calibration sequences";
    let sequences = list::counts(&at.key("sequences"), &entry.sequences, 1, what)?;
    let lengths = list::counts(&at.key("length"), &entry.length, 2, "the length of a calibration sequence")?;
    let seeds = entry.seed.written().map(|seeds| list::values(&at.key("seed"), seeds)).transpose()?;
    let what = "the number of sequences for the operator";
    let operators = |values| list::counts(&at.key("operator_sequences"), values, 1, what);
    let operators = entry.operator_sequences.written().map(operators).transpose()?;
    let (seeds, operators) = (optional(at, seeds), optional(at, operators));

    let sizes = [corpora.len(), sequences.len(), lengths.len(), seeds.len(), operators.len()];
    limits::few_enough(&sizes, &at.place())?;
    let lists = sizes.iter().filter(|&&size| size > 1).count();
    let mut calibrations = Vec::new();
    for combination in combinations(&sizes) {
        let [c, n, t, s, o] = combination[..] else { continue };
        let (corpus, count, length, seed, operator) =
            (&corpora[c], &sequences[n], &lengths[t], &seeds[s], &operators[o]);
        // With the defaults, so that two ways to write the same thing are the same.
        let value = Calibration {
            corpus: corpus.value.clone(),
            sequences: count.value,
            length: length.value,
            seed: seed.value.unwrap_or(0),
            operator_sequences: operator.value.unwrap_or(count.value),
        };
        if value.sequences.saturating_mul(value.length) > MOST_TOKENS {
            return Err(Error::bad_input("a calibration has too many tokens")
                .at(count.place.to_string())
                .expected(format!("sequences × length of {MOST_TOKENS} or less"))
                .found(format!("{} × {}", value.sequences, value.length)));
        }
        if value.operator_sequences > value.sequences {
            return Err(too_many_for_the_operator(&value, &operator.place, lists > 0));
        }
        let places = [&corpus.place, &count.place, &length.place, &seed.place, &operator.place];
        let own = places.into_iter().zip(sizes).find(|(_, size)| lists == 1 && *size > 1);
        let place = own.map_or_else(|| at.place(), |(place, _)| place.clone());
        calibrations.push(Positioned { value, place });
    }
    Ok((calibrations, corpora))
}

/// The values of a key, or one that is none where it is not written.
fn optional<T>(at: &At<'_>, values: Option<Vec<Positioned<T>>>) -> Vec<Positioned<Option<T>>> {
    match values {
        Some(values) => values.into_iter().map(|of| Positioned { value: Some(of.value), place: of.place }).collect(),
        None => vec![at.placed(None)],
    }
}

fn too_many_for_the_operator(calibration: &Calibration, place: &YamlPosition, of_lists: bool) -> Error {
    let Calibration { sequences, operator_sequences, .. } = calibration;
    let error = Error::bad_input("the operator wants more sequences than there are")
        .at(place.to_string())
        .expected(format!("at most {sequences}, the entry's `sequences`"));
    if !of_lists {
        return error.found(operator_sequences.to_string()).hint("leave `operator_sequences` out to use all");
    }
    error
        .found(format!("{operator_sequences}, in the combination `{calibration}` of the entry's lists"))
        .hint("write the combinations that there are as entries of their own")
}
