//! The drawn part of a folder's numbers: what computing it takes, and then, computed afresh and held against the record,
//! cells by identity and items by place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::Request;
use super::draw::{cells, drawn};
use super::finding::{Check, CheckKind, Work};
use super::inputs::Finder;
use super::record::{Recorded, RecordedDocument, RunBoundary};
use crate::error::{ErrorKind, Result};
use crate::exec::{Computed, RunSettings, SampledCell, SampledItems, SampledScores, sample, sample_cost};
use crate::grid::{Cell, Grid};
use crate::identity::{ComputeId, Identity, MeasureId};
use crate::model::{EngineRequest, Tolerance};
use crate::plan::{BackbonePlan, Evaluation};
use crate::results::{StoredEngine, StoredNumber};
use crate::stage::operator::BoundaryResult;
use crate::tasks::{AccuracyKind, ChoiceResult, DocumentResult};

/// What is drawn of a folder, to be computed.
pub(super) struct Drawn {
    /// By what ran them.
    parts: Vec<EngineGrid>,
    /// Of the chunks.
    share: f64,
    inputs: Check,
}

/// Cells that one engine runs.
struct EngineGrid {
    grid: Grid,
    settings: RunSettings,
    engine: StoredEngine,
}

/// Makes what the drawn cells of all folders need of each calibration in one pass over its text: by itself each folder would
/// make its own pass, for the sites of its own cells.
///
/// # Errors
/// That the user asked to stop. What else fails is told of the folders that need it.
pub(super) fn calibrate(all: &[&Drawn], request: &Request<'_>) -> Result<()> {
    let mut joined: Vec<EngineGrid> = Vec::new();
    for part in all.iter().flat_map(|drawn| &drawn.parts) {
        match joined.iter_mut().find(|of| of.takes(part)) {
            Some(of) => of.join(part),
            None => joined.push(part.without_evaluations()),
        }
    }
    for EngineGrid { grid, settings, .. } in &joined {
        let nothing = |_: &BackbonePlan, _: &Evaluation, _| Vec::new();
        match sample(grid, *settings, request.store, request.reporter, request.stop, &nothing, &mut Computed::default())
        {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

impl EngineGrid {
    fn without_evaluations(&self) -> Self {
        let Self { mut grid, settings, engine } =
            Self { grid: self.grid.clone(), engine: self.engine.clone(), ..*self };
        (grid.evaluate.perplexity, grid.evaluate.tasks) = (Vec::new(), Vec::new());
        Self { grid, settings, engine }
    }

    /// Whether the same names mean the same in both, and the same engine runs them.
    fn takes(&self, other: &Self) -> bool {
        let (own, two) = (&self.grid, &other.grid);
        let backbones = own.backbones.iter().all(|(name, of)| two.backbones.get(name).is_none_or(|two| two == of));
        let corpora = own.corpora.iter().all(|(name, of)| two.corpora.get(name).is_none_or(|two| two == of));
        backbones
            && corpora
            && self.engine.to_string() == other.engine.to_string()
            && self.settings.batch_tokens == other.settings.batch_tokens
    }

    fn join(&mut self, other: &Self) {
        let nameless = |cell: &Cell| Cell { name: String::new(), ..cell.clone() };
        let known: BTreeSet<usize> = (0..other.grid.cells.len())
            .filter(|&at| self.grid.cells.iter().any(|own| nameless(own) == nameless(&other.grid.cells[at])))
            .collect();
        let own = other.grid.cells.iter().enumerate().filter(|(at, _)| !known.contains(at));
        self.grid.cells.extend(own.map(|(_, cell)| cell.clone()));
        // The cells of a backbone stand one after the other.
        self.grid.cells.sort_by(|one, two| one.backbone.cmp(&two.backbone));
        self.grid.backbones.extend(other.grid.backbones.clone());
        self.grid.corpora.extend(other.grid.corpora.clone());
    }
}

/// The checks of one folder.
struct Checks {
    inputs: Check,
    windows: Check,
    documents: Check,
    choices: Check,
    selections: Check,
    operators: Check,
}

/// Draws cells, and finds what they are made from; what is not there is told in the check of inputs.
pub(super) fn draw(recorded: &Recorded, request: &Request<'_>, finder: &Finder, notes: &mut Vec<String>) -> Drawn {
    let mut drawn = Drawn { parts: Vec::new(), share: request.share, inputs: Check::new(CheckKind::Inputs) };
    let grid = match Grid::thawed(&recorded.numbers.settings) {
        Ok(grid) => grid,
        Err(error) => {
            drawn.inputs.lack("the grid as it ran", error.one_line());
            return drawn;
        }
    };
    let group = |cell: &Cell| match &cell.calibration {
        Some(of) => format!("{} {}", cell.backbone, serde_json::to_string(of).unwrap_or_default()),
        None => String::new(),
    };
    // A whole backbone needs no calibration: it goes with the first cell of it that does.
    let of_dense = |cell: &Cell| {
        let mut own = grid.cells.iter().filter(|of| of.backbone == cell.backbone && of.calibration.is_some());
        own.next().map_or_else(|| cell.backbone.clone(), group)
    };
    let groups = grid.cells.iter().map(|cell| if cell.calibration.is_some() { group(cell) } else { of_dense(cell) });
    let names: Vec<String> = grid.cells.iter().map(ToString::to_string).collect();
    let (places, share) = cells(request.seed, &groups.collect::<Vec<_>>(), &names, request.share);
    drawn.share = share;
    let mut cut = grid.clone();
    cut.cells = places.iter().map(|&at| grid.cells[at].clone()).collect();
    cut.evaluate.latency.clear();
    found(&mut cut, recorded, finder, &mut drawn.inputs);
    let batch = recorded.numbers.measured.values().flat_map(BTreeMap::values).flatten().find_map(|of| match of {
        MeasureId::Windows { batch, .. } | MeasureId::Task { batch, .. } | MeasureId::Defined { batch, .. } => {
            Some(*batch)
        }
        _ => None,
    });
    let engines: BTreeSet<String> =
        cut.cells.iter().map(|cell| recorded.numbers.engine(&cell.backbone).to_string()).collect();
    for engine in engines {
        let mut own = cut.clone();
        own.cells.retain(|cell| recorded.numbers.engine(&cell.backbone).to_string() == engine);
        let Some(backbone) = own.cells.first().map(|cell| cell.backbone.clone()) else { continue };
        own.backbones.retain(|name, _| own.cells.iter().any(|cell| cell.backbone == *name));
        let engine = recorded.numbers.engine(&backbone);
        let asked = asked(&engine, &own, &backbone);
        if asked.is_none() {
            notes.push(format!("{engine} is not on this machine: computed here with what is"));
        }
        let base = request.settings;
        let settings =
            RunSettings { engine: asked.unwrap_or_default(), batch_tokens: batch.unwrap_or(base.batch_tokens), ..base };
        drawn.parts.push(EngineGrid { grid: own, settings, engine });
    }
    drawn
}

impl Drawn {
    /// Which chunks: by what is measured of what, not by a name.
    fn chunks(&self, request: &Request<'_>) -> impl Fn(&BackbonePlan, &Evaluation, usize) -> Vec<usize> + use<> {
        let (seed, share) = (request.seed, self.share);
        move |backbone, of, chunks| {
            let measure = serde_json::to_string(&*of.measure).unwrap_or_default();
            drawn(seed, &format!("{}/{measure}", backbone.content), chunks, share)
        }
    }

    /// What computing it takes, as far as it can be known before.
    ///
    /// # Errors
    /// That the user asked to stop. What else is wrong is told when it is computed.
    pub(super) fn work(&self, request: &Request<'_>) -> Result<Work> {
        let mut work = Work::default();
        for EngineGrid { grid, settings, .. } in &self.parts {
            work.cells += grid.cells.len();
            work.backbones.extend(grid.backbones.values().map(|of| of.path.display().to_string()));
            let draw = self.chunks(request);
            match sample_cost(grid, *settings, request.store, request.reporter, request.stop, &draw) {
                Ok(cost) => {
                    work.calibrations += cost.calibrations;
                    work.chunks += cost.chunks;
                    work.flop += cost.flops;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(_) => {}
            }
        }
        Ok(work)
    }

    /// Computes it anew, and compares.
    ///
    /// # Errors
    /// That the user asked to stop.
    pub(super) fn check(
        self,
        recorded: &Recorded,
        request: &Request<'_>,
        computed: &mut Computed,
    ) -> Result<Vec<Check>> {
        let draw = self.chunks(request);
        let mut checks = Checks {
            inputs: self.inputs,
            windows: Check::new(CheckKind::Windows),
            documents: Check::new(CheckKind::Documents),
            choices: Check::new(CheckKind::LogLikelihoods),
            selections: Check::new(CheckKind::Selections),
            operators: Check::new(CheckKind::Operators),
        };
        for EngineGrid { grid, settings, engine } in &self.parts {
            match sample(grid, *settings, request.store, request.reporter, request.stop, &draw, computed) {
                Ok(cells) => cells.iter().for_each(|cell| compare(recorded, engine, grid, cell, &mut checks)),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(error) => checks.inputs.lack(format!("what {engine} ran"), error.one_line()),
            }
        }
        Ok(checks.all(recorded))
    }
}

impl Checks {
    /// Each with how many numbers of its kind the record has.
    fn all(self, recorded: &Recorded) -> Vec<Check> {
        let numbers = &recorded.numbers.numbers;
        let windows = numbers.iter().filter_map(|of| Some(of.losses.as_ref()?.len())).sum();
        let documents =
            numbers.iter().filter_map(|of| of.right.as_ref().filter(|of| !of.contains(',')).map(String::len)).sum();
        let choices = recorded.documents.iter().flat_map(|all| all.values().flatten()).map(|of| of.choices.len()).sum();
        let pruned = recorded.cells.iter().filter(|cell| !cell.removed.is_empty()).count();
        let boundaries = recorded.cells.iter().map(|cell| cell.boundaries.len()).sum();
        let inputs = self.inputs.compared();
        vec![
            self.inputs.of(inputs),
            self.windows.of(windows),
            self.documents.of(documents),
            self.choices.of(choices),
            self.selections.of(pruned),
            self.operators.of(boundaries),
        ]
    }
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
    let mut is_here = |what: &str, name: &str, path: &mut PathBuf| {
        let here = finder.find(&format!("{what} {name}"), path, inputs, check);
        here.map(|here| *path = here).is_some()
    };
    grid.backbones.retain(|name, of| is_here("backbone", name, &mut of.path));
    grid.corpora.retain(|name, of| is_here("text", name, &mut of.path));
    grid.tasks.retain(|name, of| is_here("task", name, &mut of.path));
    grid.definitions.retain(|name, of| {
        // Each is looked for, so that all that lack are told.
        let mut here = true;
        for file in of.rows.splits.values_mut().flatten() {
            here &= is_here("rows of the task", name, file);
        }
        here
    });
    let Grid { backbones, corpora, tasks, definitions, cells, evaluate, .. } = grid;
    cells.retain(|cell| {
        let text = cell.calibration.as_ref().is_none_or(|of| corpora.contains_key(&of.corpus));
        backbones.contains_key(&cell.backbone) && text
    });
    evaluate.perplexity.retain(|text| corpora.contains_key(&text.corpus));
    evaluate.tasks.retain(|used| tasks.contains_key(&used.name));
    evaluate.definitions.retain(|used| definitions.contains_key(&used.name));
    evaluate.groups.clear();
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
            // Only metrics that are right or wrong document by document leave items.
            None if matches!(&scores.items, SampledItems::Right(all) if all.is_empty()) => {}
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
        SampledItems::Right(of_metrics) => {
            let right = number.right.as_deref().unwrap_or_default();
            let metric = number.record.metric.rsplit('/').next().unwrap_or_default();
            for (place, made) in of_metrics.get(metric).into_iter().flatten() {
                let said = right.chars().nth(*place) == Some('1');
                let word = |right: bool| if right { "right" } else { "wrong" };
                match said == *made {
                    true => checks.documents.agree(0.0),
                    false => {
                        let at = format!("{}, {}, document {place}", number.cell, number.column);
                        checks.documents.differ(at, [word(said), word(*made)], None);
                    }
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
