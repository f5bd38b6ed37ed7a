//! Names of one run as another run calls the same: `--map tiny-llama=tiny-qwen3`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::stem;
use super::stored::StoredResults;
use crate::error::{Error, Result, nearest};
use crate::metric::Metric;

/// How names of the first run are read.
pub(super) struct Renamed(BTreeMap<String, String>);

impl Renamed {
    /// # Errors
    /// A name that a run does not have.
    pub(super) fn new(names: &[(String, String)], first: &StoredResults, second: &StoredResults) -> Result<Self> {
        for (name, run, which) in
            names.iter().flat_map(|(from, to)| [(from, first, "the first run"), (to, second, "the second run")])
        {
            let known = known(run);
            if known.contains(name) {
                continue;
            }
            let error = Error::bad_input(format!("{which} has nothing of the name `{name}`"))
                .at(format!(
                    "--map {}",
                    names.iter().map(|(a, b)| format!("{a}={b}")).collect::<Vec<_>>().join(" --map ")
                ))
                .expected(format!("one of {}", known.iter().cloned().collect::<Vec<_>>().join(", ")))
                .found(format!("`{name}`"));
            return Err(match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            });
        }
        Ok(Self(names.iter().cloned().collect()))
    }

    /// None where the second run calls something else so.
    pub(super) fn name(&self, name: &str) -> Option<String> {
        match self.0.get(name) {
            Some(to) => Some(to.clone()),
            None if self.0.values().any(|to| to == name) => None,
            None => Some(name.to_owned()),
        }
    }

    /// `corpora.c4`
    pub(super) fn dotted(&self, name: &str) -> Option<String> {
        let (kind, name) = name.split_once('.')?;
        Some(format!("{kind}.{}", self.name(name)?))
    }

    pub(super) fn metric(&self, metric: &str) -> Option<String> {
        let corpus = |name: &str| self.0.iter().find(|(from, _)| stem(from) == name).map(|(_, to)| stem(to).to_owned());
        let known = Metric::find(metric).ok();
        match known.as_ref().and_then(|of| Some((of.entry(), of.text()?))) {
            Some((of, name)) => Some(of.on(&corpus(name).unwrap_or_else(|| name.to_owned())).id),
            None => self.name(metric),
        }
    }

    /// A tree of settings with every key and text that is one of the names.
    pub(super) fn value(&self, value: &Value) -> Value {
        let name = |name: &String| self.0.get(name).unwrap_or(name).clone();
        match value {
            Value::String(text) => Value::String(name(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => map.iter().map(|(key, value)| (name(key), self.value(value))).collect(),
            other => other.clone(),
        }
    }
}

/// Everything of a run that can be renamed.
fn known(run: &StoredResults) -> BTreeSet<String> {
    let of = run.numbers.iter().map(|number| &number.record.condition);
    let conditions = of.flat_map(|of| {
        let corpus = of.calibrated().0.to_owned();
        [of.backbone.clone(), of.criterion.clone(), of.recovery.clone(), corpus]
    });
    let entries = |kind: &'static str| run.settings[kind].as_object().into_iter().flat_map(|map| map.keys().cloned());
    conditions.chain(["corpora", "tasks"].into_iter().flat_map(entries)).filter(|name| !name.is_empty()).collect()
}
