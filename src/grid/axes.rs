//! The values on an axis: none twice, none missing, and lists inside entries multiplied out.

use std::fmt::Display;

use serde_json::Value;

use super::Calibration;
use super::check::{Checker, MOST_CELLS, MOST_TOKENS, Placed};
use super::depth::{Depth, DepthEntry};
use super::many::Many;
use super::method::{Method, MethodEntry};
use super::node::Step;
use super::node::Step::{Item, Key};
use super::schema::CalibrationEntry;
use crate::error::{Error, Result};
use crate::options::{Described, Options};

/// Which of the two axes of methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Criterion,
    Recovery,
}

impl Role {
    pub(super) fn key(self) -> &'static str {
        match self {
            Role::Criterion => "criterion",
            Role::Recovery => "recovery",
        }
    }
}

impl Checker<'_> {
    /// The values at `steps` with their places; at least one, and none twice.
    pub(super) fn axis<T: PartialEq + Display + Clone>(
        &self,
        steps: &[Step<'_>],
        values: &[T],
    ) -> Result<Vec<Placed<T>>> {
        let placed =
            |(i, value): (usize, &T)| Placed { value: value.clone(), place: self.place(&[steps, &[Item(i)]].concat()) };
        let values: Vec<Placed<T>> = values.iter().enumerate().map(placed).collect();
        self.distinct(steps, &values)?;
        Ok(values)
    }

    /// Refuses what would be multiplied out to more than can be planned.
    pub(super) fn few_enough(&self, sizes: &[usize], steps: &[Step<'_>]) -> Result<()> {
        if sizes.iter().copied().fold(1, usize::saturating_mul) <= MOST_CELLS {
            return Ok(());
        }
        let product: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        Err(self
            .bad("the grid's lists multiply out to too many cells", steps)
            .expected(format!("at most {MOST_CELLS}"))
            .found(product.join(" × "))
            .hint("make several grids of it"))
    }

    /// At least one value, and none twice.
    pub(super) fn distinct<T: PartialEq + Display>(&self, steps: &[Step<'_>], values: &[Placed<T>]) -> Result<()> {
        self.few_enough(&[values.len()], steps)?;
        if values.is_empty() {
            return Err(self
                .bad(format!("the axis `{}` is empty", name(steps)), steps)
                .expected("at least one value")
                .found("an empty list")
                .hint("without a value on each axis there is no cell to run"));
        }
        for (i, Placed { value, place }) in values.iter().enumerate() {
            if let Some(first) = values[..i].iter().find(|earlier| earlier.value == *value) {
                return Err(Error::bad_input(format!("the axis `{}` has the same value twice", name(steps)))
                    .at(place.clone())
                    .expected("each value once")
                    .found(format!("`{value}`, which stands already at {}", first.place))
                    .hint("remove one of the two"));
            }
        }
        Ok(())
    }

    /// Depths, not yet counted out on a backbone.
    pub(super) fn depths(&self, steps: &[Step<'_>], entries: &[DepthEntry]) -> Result<Vec<Placed<Depth>>> {
        let depths = entries
            .iter()
            .enumerate()
            .map(|(i, entry)| Depth::read(entry).map_err(|error| error.at(self.place(&[steps, &[Item(i)]].concat()))));
        self.axis(steps, &depths.collect::<Result<Vec<_>>>()?)
    }

    /// Methods that the registry accepts, resolved. Of two ways to write one method the first stays.
    pub(super) fn methods(
        &self,
        steps: &[Step<'_>],
        entries: &[MethodEntry],
        role: Role,
    ) -> Result<Vec<Placed<Method>>> {
        let written = self.expand_methods(steps, entries, role)?;
        let mut methods: Vec<Placed<Method>> = Vec::new();
        for Placed { value: method, place } in &written {
            let (name, options) = (&method.name, &method.options);
            let resolved = match role {
                Role::Criterion => self.registry.resolve_criterion(name, options),
                Role::Recovery => self.registry.resolve_recovery(name, options),
            };
            let resolved = resolved.map_err(|error| {
                // Of several methods at one place the message has to say which one it means.
                let shared = written.iter().filter(|other| other.place == *place).count() > 1;
                if shared { error.at(method.to_string()).at(place.clone()) } else { error.at(place.clone()) }
            })?;
            let method = Method { resolved, ..method.clone() };
            if methods.iter().all(|known| known.value != method) {
                methods.push(Placed { value: method, place: place.clone() });
            }
        }
        // The same words twice are a mistake.
        let label = |of: &Placed<Method>| Placed { value: of.value.to_string(), place: of.place.clone() };
        self.distinct(steps, &written.iter().map(label).collect::<Vec<_>>())?;
        Ok(methods)
    }

    /// Methods as they are written, not resolved. An option that takes a single value and is given a list stands for a
    /// method for each value; one that takes a list does where it is given a list of lists.
    pub(super) fn expand_methods(
        &self,
        steps: &[Step<'_>],
        entries: &[MethodEntry],
        role: Role,
    ) -> Result<Vec<Placed<Method>>> {
        let known = match role {
            Role::Criterion => &self.criteria,
            Role::Recovery => &self.recoveries,
        };
        let mut methods = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let described = known.iter().find(|described| described.name == entry.name);
            let at = [steps, &[Item(i)]].concat();
            methods.extend(self.expand_method(&at, entry, described)?);
        }
        Ok(methods)
    }

    fn expand_method(
        &self,
        steps: &[Step<'_>],
        entry: &MethodEntry,
        described: Option<&Described>,
    ) -> Result<Vec<Placed<Method>>> {
        let mut options = Vec::new();
        for (key, value) in &entry.options {
            let values = match value {
                Value::Array(values) if described.is_some_and(|described| is_axis(described, key, values)) => {
                    let at = [steps, &[Key(key.as_str())]].concat();
                    self.axis(&at, values)?.into_iter().map(|v| (v.value, Some(v.place))).collect()
                }
                single => vec![(single.clone(), None)],
            };
            options.push((key, values));
        }
        let sizes: Vec<usize> = options.iter().map(|(_, values)| values.len()).collect();
        self.few_enough(&sizes, steps)?;
        let lists = options.iter().filter(|(_, values)| values.iter().any(|(_, place)| place.is_some())).count();
        let method = |combination: Vec<usize>| {
            let chosen = options.iter().zip(combination).map(|((key, values), i)| (key, &values[i]));
            let own_place = chosen.clone().find_map(|(_, (_, place))| place.clone()).filter(|_| lists == 1);
            let options = chosen.map(|(key, (value, _))| ((*key).clone(), value.clone())).collect();
            let place = own_place.unwrap_or_else(|| self.place(steps));
            let name = entry.name.clone();
            Placed { value: Method { name, options, resolved: Options::new() }, place }
        };
        Ok(combinations(&sizes).into_iter().map(method).collect())
    }

    pub(super) fn calibrations(
        &self,
        steps: &[Step<'_>],
        entries: &[CalibrationEntry],
    ) -> Result<Vec<Placed<Calibration>>> {
        let mut calibrations = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            calibrations.extend(self.calibration(&[steps, &[Item(i)]].concat(), entry)?);
        }
        self.distinct(steps, &calibrations)?;
        Ok(calibrations)
    }

    /// The product of an entry's lists.
    fn calibration(&self, steps: &[Step<'_>], entry: &CalibrationEntry) -> Result<Vec<Placed<Calibration>>> {
        let at = |key: &'static str| [steps, &[Key(key)]].concat();
        let corpora = self.axis(&at("corpus"), &entry.corpus)?;
        for (i, corpus) in corpora.iter().enumerate() {
            self.known_corpus(&corpus.value, &[&at("corpus")[..], &[Item(i)]].concat())?;
        }
        let counts = |key: &'static str, values: &Many<usize>, least: usize, what: &str| {
            let values = self.axis(&at(key), values)?;
            values.iter().try_for_each(|count| self.at_least(least, count.value, what, &count.place))?;
            Ok::<_, Error>(values)
        };
        let sequences = counts("sequences", &entry.sequences, 1, "the number of calibration sequences")?;
        let lengths = counts("length", &entry.length, 2, "the length of a calibration sequence")?;
        let left_out = |place: &str| Placed { value: None, place: place.to_owned() };
        let written = |place: Placed<usize>| Placed { value: Some(place.value), place: place.place };
        let entry_place = self.place(steps);
        let seeds = if self.has(steps, "seed") {
            self.axis(&at("seed"), &entry.seed)?
        } else {
            vec![Placed { value: 0, place: entry_place.clone() }]
        };
        let operators: Vec<Placed<Option<usize>>> = if self.has(steps, "operator_sequences") {
            let what = "the number of sequences for the operator";
            counts("operator_sequences", &entry.operator_sequences, 1, what)?.into_iter().map(written).collect()
        } else {
            vec![left_out(&entry_place)]
        };

        let sizes = [corpora.len(), sequences.len(), lengths.len(), seeds.len(), operators.len()];
        self.few_enough(&sizes, steps)?;
        let lists = sizes.iter().filter(|&&size| size > 1).count();
        let mut calibrations = Vec::new();
        for combination in combinations(&sizes) {
            let [c, n, t, s, o] = combination[..] else { continue };
            let (corpus, count, length, seed, operator) =
                (&corpora[c], &sequences[n], &lengths[t], &seeds[s], &operators[o]);
            let value = Calibration {
                corpus: corpus.value.clone(),
                sequences: count.value,
                length: length.value,
                seed: seed.value,
                // Filled in, so that two ways to write the same thing are the same.
                operator_sequences: operator.value.unwrap_or(count.value),
            };
            if value.sequences.saturating_mul(value.length) > MOST_TOKENS {
                return Err(Error::bad_input("a calibration has too many tokens")
                    .at(count.place.clone())
                    .expected(format!("sequences × length of {MOST_TOKENS} or less"))
                    .found(format!("{} × {}", value.sequences, value.length)));
            }
            if value.operator_sequences > value.sequences {
                return Err(too_many_for_the_operator(&value, &operator.place, lists > 0));
            }
            let places = [&corpus.place, &count.place, &length.place, &seed.place, &operator.place];
            let own = places.into_iter().zip(sizes).find(|(_, size)| lists == 1 && *size > 1);
            let place = own.map_or(&entry_place, |(place, _)| place).clone();
            calibrations.push(Placed { value, place });
        }
        Ok(calibrations)
    }
}

fn too_many_for_the_operator(calibration: &Calibration, place: &str, of_lists: bool) -> Error {
    let Calibration { sequences, operator_sequences, .. } = calibration;
    let error = Error::bad_input("the operator wants more sequences than there are")
        .at(place)
        .expected(format!("at most {sequences}, the entry's `sequences`"));
    if !of_lists {
        return error.found(operator_sequences.to_string()).hint("leave `operator_sequences` out to use all");
    }
    error
        .found(format!("{operator_sequences}, in the combination `{calibration}` of the entry's lists"))
        .hint("write the combinations that there are as entries of their own")
}

/// Whether the values of an option are those of an axis. Of an unknown option the registry says that it is unknown.
fn is_axis(described: &Described, option: &str, values: &[Value]) -> bool {
    let of_lists = !values.is_empty() && values.iter().all(Value::is_array);
    described.has(option) && (!described.takes_list(option) || of_lists)
}

/// Every choice of one index below each size, the first changing slowest.
pub(super) fn combinations(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![Vec::new()], |all, &size| {
        all.iter().flat_map(|chosen| (0..size).map(move |i| [&chosen[..], &[i]].concat())).collect()
    })
}

/// `evaluate.perplexity`, `include[0].depth`
pub(super) fn name(steps: &[Step<'_>]) -> String {
    let mut name = String::new();
    for step in steps {
        match step {
            Key(key) if name.is_empty() => name.push_str(key),
            Key(key) => name.push_str(&format!(".{key}")),
            Item(item) => name.push_str(&format!("[{item}]")),
        }
    }
    name
}
