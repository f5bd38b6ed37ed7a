//! Which layers each cell loses: stored, computed before the calibration pass, or after it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde_json::json;
use std::io::Write;

use super::calibration::Calibrating;
use super::variant::{self, CellResult};
use crate::calibrate::{Pair, Similarities};
use crate::criterion::{self, Criterion, Cut, Evidence, Selection};
use crate::error::{Error, Kind, Result};
use crate::grid::Method;
use crate::store::{self, Key};

/// The selections of some cells, each computed once.
pub(super) struct Selections {
    by_cut: BTreeMap<(String, usize), Entry>,
}

struct Entry {
    method: Method,
    cut: OwnedCut,
    picked: Picked,
    /// What it took, in seconds.
    seconds: f64,
    /// How many cells use it.
    cells: usize,
}

/// How far a selection is.
pub(super) enum Picked {
    Done(Selection),
    Failed(String),
    /// It needs similarities that the pass has to measure.
    Waiting {
        criterion: Box<dyn Criterion>,
        cut: OwnedCut,
    },
}

/// A [`Cut`] that outlives its cell.
#[derive(Clone)]
pub(super) struct OwnedCut {
    backbone: String,
    layers: usize,
    depth: usize,
}

impl OwnedCut {
    pub(super) fn borrowed(&self) -> Cut<'_> {
        Cut { backbone: &self.backbone, layers: self.layers, depth: self.depth }
    }
}

impl Selections {
    /// Looks up what is stored, and picks what needs no similarities.
    ///
    /// # Errors
    /// The run was stopped; a selection that fails by itself is kept as failed.
    pub(super) fn of(calibrating: &Calibrating<'_>, cells: &[&mut CellResult]) -> Result<Self> {
        let mut by_cut: BTreeMap<(String, usize), Entry> = BTreeMap::new();
        let mut known = BTreeMap::new();
        for result in cells {
            let (method, _) = variant::methods(&result.cell)?;
            let key = key(method, result.cell.depth);
            if let Some(entry) = by_cut.get_mut(&key) {
                entry.cells += 1;
                continue;
            }
            let started = Instant::now();
            let cut =
                OwnedCut { backbone: result.cell.backbone.clone(), layers: result.layers, depth: result.cell.depth };
            let criterion = criterion::build(&method.name, &method.options)?;
            let picked = match stored(calibrating, method, result.cell.depth) {
                Some(selection) => Picked::Done(selection),
                None if !criterion.pairs(&cut.borrowed()).is_empty() => Picked::Waiting { criterion, cut: cut.clone() },
                None => {
                    let mut witness = Witness {
                        calibrating,
                        label: method.to_string(),
                        similarities: None,
                        known: &mut known,
                        asked: false,
                    };
                    let picked = pick(&*criterion, &cut.borrowed(), &mut witness)?;
                    if witness.asked {
                        keep(calibrating, method, &picked, &cut, started.elapsed().as_secs_f64())?;
                    }
                    picked
                }
            };
            let seconds = started.elapsed().as_secs_f64();
            by_cut.insert(key, Entry { method: method.clone(), cut, picked, seconds, cells: 1 });
        }
        Ok(Self { by_cut })
    }

    /// The similarities that the pass has to measure.
    pub(super) fn pairs(&self) -> BTreeSet<Pair> {
        let waiting = self.by_cut.values().filter_map(|entry| match &entry.picked {
            Picked::Waiting { criterion, cut } => Some(criterion.pairs(&cut.borrowed())),
            _ => None,
        });
        waiting.flatten().collect()
    }

    /// Picks what waited for the pass.
    pub(super) fn finish(&mut self, calibrating: &Calibrating<'_>, similarities: &Similarities) -> Result<()> {
        for entry in self.by_cut.values_mut() {
            let Picked::Waiting { criterion, cut } = &entry.picked else { continue };
            let (started, mut known) = (Instant::now(), BTreeMap::new());
            let mut witness = Witness {
                calibrating,
                label: entry.method.to_string(),
                similarities: Some(similarities),
                known: &mut known,
                asked: false,
            };
            let picked = pick(&**criterion, &cut.borrowed(), &mut witness)?;
            entry.seconds += started.elapsed().as_secs_f64();
            keep(calibrating, &entry.method, &picked, &entry.cut, entry.seconds)?;
            entry.picked = picked;
        }
        Ok(())
    }

    pub(super) fn of_cell(&self, result: &CellResult) -> Option<&Picked> {
        let (method, _) = variant::methods(&result.cell).ok()?;
        self.by_cut.get(&key(method, result.cell.depth)).map(|entry| &entry.picked)
    }

    /// Writes each cell's selection, or why it has none, into it.
    pub(super) fn write(&self, cells: &mut [&mut CellResult]) {
        for result in cells {
            let Ok((method, _)) = variant::methods(&result.cell) else { continue };
            let Some(entry) = self.by_cut.get(&key(method, result.cell.depth)) else { continue };
            result.seconds += entry.seconds / entry.cells as f64;
            match &entry.picked {
                Picked::Done(selection) => {
                    result.removed.clone_from(&selection.removed);
                    result.scores.clone_from(&selection.scores);
                }
                Picked::Failed(reason) => result.failure = Some(reason.clone()),
                Picked::Waiting { .. } => result.failure = Some("its criterion was never measured".to_string()),
            }
        }
    }
}

fn key(method: &Method, depth: usize) -> (String, usize) {
    (method.to_string(), depth)
}

fn pick(criterion: &dyn Criterion, cut: &Cut<'_>, witness: &mut Witness<'_>) -> Result<Picked> {
    match criterion.select(cut, witness) {
        Ok(selection) => Ok(Picked::Done(selection)),
        Err(error) if error.kind() == Kind::Job => Ok(Picked::Failed(error.one_line())),
        Err(error) => Err(error),
    }
}

const PAYLOAD: &str = "selection.json";

fn store_key(calibrating: &Calibrating<'_>, method: &Method, depth: usize) -> Key {
    let criterion = json!({"name": method.name, "options": method.options, "depth": depth});
    calibrating.key(store::Kind::Selection, "criterion", criterion)
}

fn stored(calibrating: &Calibrating<'_>, method: &Method, depth: usize) -> Option<Selection> {
    let artifact = calibrating.get(&store_key(calibrating, method, depth), &format!("selection by {method}"))?;
    serde_json::from_slice(&std::fs::read(artifact.path(PAYLOAD).ok()?).ok()?).ok()
}

/// Stores a selection that took a measurement.
fn keep(calibrating: &Calibrating<'_>, method: &Method, picked: &Picked, cut: &OwnedCut, seconds: f64) -> Result<()> {
    let Picked::Done(selection) = picked else { return Ok(()) };
    let text = serde_json::to_vec(selection)
        .map_err(|error| Error::job("a selection has no JSON form").found(error.to_string()))?;
    let mut draft = calibrating.store.draft()?;
    let mut payload = draft.payload(PAYLOAD)?;
    let written = payload.write_all(&text).and_then(|()| payload.close());
    written.map_err(|error| Error::missing("cannot write a selection to the store").found(error.to_string()))?;
    calibrating.store.commit(draft, &store_key(calibrating, method, cut.depth), seconds)?;
    Ok(())
}

/// What the criteria may ask of one calibration.
struct Witness<'a> {
    calibrating: &'a Calibrating<'a>,
    label: String,
    similarities: Option<&'a Similarities>,
    /// Perplexities measured so far, by removed layers: two rules, or two depths, may ask for the same.
    known: &'a mut BTreeMap<Vec<usize>, f64>,
    /// Whether anything was measured.
    asked: bool,
}

impl Evidence for Witness<'_> {
    fn similarity(&self, pair: Pair) -> Result<f64> {
        match self.similarities.and_then(|similarities| similarities.get(pair)) {
            Some(value) if value.is_finite() => Ok(value),
            other => Err(Error::job("a similarity is missing or not finite")
                .at(format!("layers {} and {}", pair.from, pair.to))
                .found(format!("{other:?}"))),
        }
    }

    fn perplexities(&mut self, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
        self.asked = true;
        let new: Vec<Vec<usize>> = removed.iter().filter(|set| !self.known.contains_key(*set)).cloned().collect();
        if !new.is_empty() {
            let measured = self.calibrating.perplexities(&self.label, &new)?;
            self.known.extend(new.into_iter().zip(measured));
        }
        Ok(removed.iter().map(|set| self.known[set]).collect())
    }
}
