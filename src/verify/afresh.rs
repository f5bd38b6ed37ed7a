//! The drawn part of a folder's numbers, computed afresh and held against the record: cells by identity, items by place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Request;
use super::draw::{drawn, parts};
use super::finding::{Check, CheckKind};
use super::inputs::Finder;
use super::record::{Recorded, RecordedDocument, RunBoundary};
use crate::error::{ErrorKind, Result};
use crate::exec::{BoundaryResult, Methods, SampledCell, SampledItems, SampledScores, Settings, sample};
use crate::grid::Grid;
use crate::identity::{ComputeId, Identity, MeasureId};
use crate::model::{EngineRequest, Tolerance};
use crate::results::{StoredEngine, StoredNumber};
use crate::tasks::{AccuracyKind, ChoiceResult, DocumentResult};

/// The checks of one folder.
struct Checks {
    inputs: Check,
    windows: Check,
    documents: Check,
    choices: Check,
    selections: Check,
    operators: Check,
}

/// Computes a drawn part anew; what could not be is told in the checks.
///
/// # Errors
/// That the user asked to stop.
pub(super) fn check(
    recorded: &Recorded,
    request: &Request<'_>,
    finder: &Finder,
    folder: &str,
    notes: &mut Vec<String>,
) -> Result<Vec<Check>> {
    let mut checks = Checks {
        inputs: Check::new(CheckKind::Inputs),
        windows: Check::new(CheckKind::Windows),
        documents: Check::new(CheckKind::Documents),
        choices: Check::new(CheckKind::LogLikelihoods),
        selections: Check::new(CheckKind::Selections),
        operators: Check::new(CheckKind::Operators),
    };
    match Grid::thawed(&recorded.numbers.settings, &Methods) {
        Ok(grid) => drawn_part(recorded, request, finder, folder, notes, &grid, &mut checks)?,
        Err(error) => checks.inputs.lack("the grid as it ran", error.one_line()),
    }
    let numbers = &recorded.numbers.numbers;
    let windows = numbers.iter().filter_map(|of| Some(of.losses.as_ref()?.len())).sum();
    let documents =
        numbers.iter().filter_map(|of| of.right.as_ref().filter(|of| !of.contains(',')).map(String::len)).sum();
    let choices = recorded.documents.iter().flat_map(|all| all.values().flatten()).map(|of| of.choices.len()).sum();
    let pruned = recorded.cells.iter().filter(|cell| !cell.removed.is_empty()).count();
    let boundaries = recorded.cells.iter().map(|cell| cell.boundaries.len()).sum();
    let Checks { inputs, windows: w, documents: d, choices: c, selections, operators } = checks;
    let inputs_all = inputs.compared();
    Ok(vec![
        inputs.of(inputs_all),
        w.of(windows),
        d.of(documents),
        c.of(choices),
        selections.of(pruned),
        operators.of(boundaries),
    ])
}

fn drawn_part(
    recorded: &Recorded,
    request: &Request<'_>,
    finder: &Finder,
    folder: &str,
    notes: &mut Vec<String>,
    grid: &Grid,
    checks: &mut Checks,
) -> Result<()> {
    let (count, share) = parts(request.share, grid.cells.len());
    let part = count as f64 / grid.cells.len().max(1) as f64;
    let places = drawn(request.seed, &format!("{folder}/cells"), grid.cells.len(), part);
    let mut cut = grid.clone();
    cut.cells = places.iter().map(|&at| grid.cells[at].clone()).collect();
    cut.evaluate.latency.clear();
    found(&mut cut, recorded, finder, &mut checks.inputs);
    if cut.cells.is_empty() {
        return Ok(());
    }
    let batch = recorded.numbers.measured.values().flat_map(BTreeMap::values).flatten().find_map(|of| match of {
        MeasureId::Windows { batch, .. } | MeasureId::Task { batch, .. } => Some(*batch),
        _ => None,
    });
    let engines: BTreeSet<String> =
        cut.cells.iter().map(|cell| recorded.numbers.engine(&cell.backbone).to_string()).collect();
    for engine in engines {
        let mut own = cut.clone();
        own.cells.retain(|cell| recorded.numbers.engine(&cell.backbone).to_string() == engine);
        let Some(backbone) = own.cells.first().map(|cell| cell.backbone.clone()) else { continue };
        own.backbones.retain(|name, _| own.cells.iter().any(|cell| cell.backbone == *name));
        let recorded_engine = recorded.numbers.engine(&backbone);
        let asked = asked(&recorded_engine, &own, &backbone);
        if asked.is_none() {
            notes.push(format!("{recorded_engine} is not on this machine: computed here with what is"));
        }
        let base = request.settings;
        let settings =
            Settings { engine: asked.unwrap_or_default(), batch_tokens: batch.unwrap_or(base.batch_tokens), ..base };
        let draw = |backbone: &crate::plan::BackbonePlan, of: &crate::plan::Evaluation, chunks: usize| {
            // By what is measured of what, not by a name.
            let measure = serde_json::to_string(&*of.measure).unwrap_or_default();
            drawn(request.seed, &format!("{folder}/{}/{measure}", backbone.content), chunks, share)
        };
        match sample(&own, settings, request.store, request.reporter, request.stop, &draw) {
            Ok(cells) => cells.iter().for_each(|cell| compare(recorded, &recorded_engine, &own, cell, checks)),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) => checks.inputs.lack(format!("what {engine} ran"), error.one_line()),
        }
    }
    Ok(())
}

/// The engine that the record names, where it runs here.
fn asked(of: &StoredEngine, grid: &Grid, backbone: &str) -> Option<EngineRequest> {
    let StoredEngine { name, dtype, device } = of.clone();
    let request = ComputeId { name, dtype, device }.request()?;
    request.choose(&grid.backbones.get(backbone)?.path).ok().map(|_| request)
}

/// Leaves of a grid what can be read here, at its places here.
fn found(grid: &mut Grid, recorded: &Recorded, finder: &Finder, check: &mut Check) {
    let inputs = &recorded.numbers.inputs;
    grid.backbones.retain(|name, _| grid.cells.iter().any(|cell| cell.backbone == *name));
    grid.backbones.retain(|name, of| match finder.find(&format!("backbone {name}"), &of.path, inputs, check) {
        Some(path) => {
            of.path = path;
            true
        }
        None => false,
    });
    grid.corpora.retain(|name, of| match finder.find(&format!("text {name}"), &of.path, inputs, check) {
        Some(path) => {
            of.path = path;
            true
        }
        None => false,
    });
    grid.tasks.retain(|name, of| match finder.find(&format!("task {name}"), &of.path, inputs, check) {
        Some(path) => {
            of.path = path;
            true
        }
        None => false,
    });
    let Grid { backbones, corpora, tasks, cells, evaluate, .. } = grid;
    cells.retain(|cell| {
        let text = cell.calibration.as_ref().is_none_or(|of| corpora.contains_key(&of.corpus));
        backbones.contains_key(&cell.backbone) && text
    });
    evaluate.perplexity.retain(|text| corpora.contains_key(&text.corpus));
    evaluate.tasks.retain(|used| tasks.contains_key(&used.name));
}

fn compare(recorded: &Recorded, engine: &StoredEngine, grid: &Grid, cell: &SampledCell, checks: &mut Checks) {
    // Another engine may have computed here; all else has to be the same.
    let StoredEngine { name, dtype, device } = engine.clone();
    let here = cell.identity.engine.dtype.clone();
    let coarser = if dtype == "f32" { here } else { dtype.clone() };
    let tolerance = Tolerance::of(&coarser);
    let identity = Identity { engine: Arc::new(ComputeId { name, dtype, device }), ..(*cell.identity).clone() };
    let identities = &recorded.numbers.identities;
    let Some((name, _)) = identities.iter().find(|(_, of)| **of == identity) else {
        let of = grid.cells[cell.cell].to_string();
        checks.inputs.lack(of, format!("a number of that identity; {} wrote the record", recorded.numbers.program));
        return;
    };
    let own: Vec<&StoredNumber> = recorded.numbers.numbers.iter().filter(|of| of.cell == *name).collect();
    if let Some(failure) = &cell.failure {
        let failed = own.iter().any(|of| of.failure.is_some());
        match failed {
            true => checks.operators.agree(0.0),
            false => checks.operators.lack(name, format!("a result: {failure}")),
        }
        return;
    }
    if let Some(run) = recorded.run_cell(name) {
        if let Some(selection) = &cell.selection {
            match selection.removed == run.removed {
                true => checks.selections.agree(0.0),
                false => {
                    let said = [&run.removed, &selection.removed].map(|removed| format!("{removed:?}"));
                    checks.selections.differ(format!("{name}, removed layers"), said, None);
                }
            }
        }
        boundaries(name, &run.boundaries, &cell.boundaries, tolerance, &mut checks.operators);
    } else if cell.selection.is_some() {
        checks.selections.lack(name, "the cell in run.json");
    }
    for scores in &cell.scores {
        let of = |number: &&&StoredNumber| {
            let items = number.losses.is_some() || number.right.is_some();
            items && recorded.measure(number) == Some(&*scores.measure)
        };
        match own.iter().find(of) {
            Some(number) => items(recorded, number, scores, tolerance, checks),
            None if own.iter().any(|number| number.failure.is_some()) => {}
            None => checks.inputs.lack(format!("{name} on {}", scores.label), "items of that measure in the record"),
        }
    }
}

fn boundaries(name: &str, recorded: &[RunBoundary], made: &[BoundaryResult], of: Tolerance, check: &mut Check) {
    if recorded.len() != made.len() {
        let counts = [recorded.len(), made.len()].map(|count| format!("{count} boundaries"));
        check.differ(name, counts, None);
        return;
    }
    for (one, two) in recorded.iter().zip(made) {
        let at = |what: &str| format!("{name}, boundary of layer {}, {what}", one.region.0);
        if one.region != two.region {
            check.differ(at("region"), [format!("{:?}", one.region), format!("{:?}", two.region)], None);
            continue;
        }
        // A badly conditioned problem enlarges what rounding does to its solution, and hardly what the solution does.
        let enlarged = of.activations * one.condition.unwrap_or(0.0);
        let solved = of.perplexity.max(enlarged.min(1.0));
        let numbers = &two.numbers;
        let figures = [
            ("mean absolute error", one.boundary_mae, numbers.boundary_mae, of.perplexity),
            ("norm of the change", one.delta_norm, numbers.delta_norm, of.perplexity),
            ("norm of M", one.m_norm, numbers.m_norm, solved),
            ("norm of M's symmetric part", one.m_symmetric_norm, numbers.m_symmetric_norm, solved),
            ("norm of M's antisymmetric part", one.m_antisymmetric_norm, numbers.m_antisymmetric_norm, solved),
        ];
        let scale = |what: &str, own: f64| if what.starts_with("norm of M") { one.m_norm.abs() } else { own.abs() };
        let far = figures.iter().find(|(what, one, two, part)| {
            let by = (one - two).abs();
            !(by <= part * scale(what, *one) || one.to_bits() == two.to_bits())
        });
        match far {
            None => check.agree((one.boundary_mae - numbers.boundary_mae).abs()),
            Some((what, one, two, _)) => {
                check.differ(at(what), [one.to_string(), two.to_string()], Some((one - two).abs()));
            }
        }
    }
}

fn items(recorded: &Recorded, number: &StoredNumber, scores: &SampledScores, of: Tolerance, checks: &mut Checks) {
    // What a perplexity may be apart as a part of it, its logarithm may be apart as a number: nats per token.
    let per_token = of.perplexity.ln_1p();
    let at = |what: String| format!("{}, {}, {what}", number.cell, number.column);
    match &scores.items {
        SampledItems::Windows(windows) => {
            let losses = number.losses.as_deref().unwrap_or_default();
            for &(place, found) in windows {
                match losses.get(place) {
                    Some(&loss) => checks.windows.number(|| at(format!("window {place}")), loss, found, per_token),
                    None => checks.windows.lack(at(format!("window {place}")), "its loss in the record"),
                }
            }
        }
        SampledItems::Documents(documents, kind) => {
            let right: Vec<char> = number.right.as_deref().unwrap_or_default().chars().collect();
            let own =
                recorded.documents.as_ref().and_then(|all| all.get(&(number.cell.clone(), number.column.clone())));
            for (place, document) in documents {
                let place = *place;
                let found = document.right(*kind);
                match right.get(place) {
                    Some(&bit) if (bit == '1') == found || is_tie(document, *kind, per_token) => {
                        checks.documents.agree(0.0);
                    }
                    Some(&bit) => {
                        let word = |right: bool| if right { "right" } else { "wrong" };
                        let at = at(format!("document {place} of those that are scored"));
                        checks.documents.differ(at, [word(bit == '1'), word(found)], None);
                    }
                    None => checks.documents.lack(at(format!("document {place}")), "its answer in the record"),
                }
                if let Some(known) = own.and_then(|own| own.get(place)) {
                    choices(known, document, per_token, &|what| at(what), &mut checks.choices);
                }
            }
        }
    }
}

fn choices(
    recorded: &RecordedDocument,
    found: &DocumentResult,
    per_token: f64,
    at: &dyn Fn(String) -> String,
    check: &mut Check,
) {
    if (recorded.id, recorded.gold, recorded.choices.len()) != (found.id, found.gold, found.choices.len()) {
        let said = |id: usize, gold: i64, choices: usize| format!("document {id}, right is {gold} of {choices}");
        let two = said(found.id, found.gold, found.choices.len());
        check.differ(
            at(format!("document {}", found.id)),
            [said(recorded.id, recorded.gold, recorded.choices.len()), two],
            None,
        );
        return;
    }
    for (place, (one, two)) in recorded.choices.iter().zip(&found.choices).enumerate() {
        let at = || at(format!("document {}, choice {place}", found.id));
        check.number(at, one.log_likelihood, two.log_likelihood, per_token * two.tokens as f64);
    }
}

/// Whether rounding may decide which choice is the best.
fn is_tie(document: &DocumentResult, kind: AccuracyKind, per_token: f64) -> bool {
    let part = |choice: &ChoiceResult| match kind {
        AccuracyKind::Acc => 1.0,
        AccuracyKind::AccNorm => choice.characters.max(1) as f64,
    };
    let of =
        |choice: &ChoiceResult| (choice.log_likelihood / part(choice), per_token * choice.tokens as f64 / part(choice));
    let mut all: Vec<(f64, f64)> = document.choices.iter().map(of).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    matches!(all.as_slice(), [first, second, ..] if first.0 - second.0 <= first.1 + second.1)
}
