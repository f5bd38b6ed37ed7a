//! A search: candidates, rounds, what is measured of the survivors, judgement.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use super::candidates;
use super::costs::Costs;
use super::found::{Candidate, Fate, Found, Judged, LeftOut, Objective, Round, Score, Spent};
use super::race::{judge, mean_of_means};
use super::route::{Place, Repair, Route, layers};
use super::schedule::{FIRST_DOCUMENTS, FIRST_WINDOWS, Schedule};
use super::simulation::judged;
use crate::error::{Error, Result};
use crate::exec::{self, CellResult, Event, GridOutcome, Reporter, RunSettings, Where, stored_program};
use crate::grid::{Cell, Draw, Evaluate, Grid, Method, Perplexity, Search, TaskUse};
use crate::latency::LatencyResult;
use crate::model::{Config, EngineChoice, deployed};
use crate::plan::Plan;
use crate::significance::stratified::Stratified;
use crate::stage::operator::{BoundaryResult, PlacedRepair};
use ghostlab_store::Store;

/// What a search works with.
pub struct Laboratory<'a> {
    pub store: &'a Store,
    pub settings: RunSettings,
    pub reporter: &'a dyn Reporter,
    pub stop: &'a AtomicBool,
    /// Runs a grid to its end, alone or beside others.
    pub run: &'a dyn Fn(&Grid) -> Result<GridOutcome>,
    /// Whether times may be measured here; those that are stored are read in any case.
    pub times: bool,
}

/// What is scored, and how much of it.
struct Stratum {
    on: On,
    /// All items.
    all: usize,
    /// Those that the search may use: the race its first, the judgement the last of all.
    used: usize,
}

enum On {
    Task(TaskUse),
    Text(Perplexity),
}

/// Strata of one kind of numbers.
struct Track {
    name: &'static str,
    strata: Vec<Stratum>,
    schedule: Schedule,
    /// From gains to the unit that is shown.
    scale: f64,
}

/// Gains by stratum.
type Gains = Vec<Vec<f64>>;

/// A candidate on its way.
struct Racer {
    cell: Cell,
    removed: Vec<usize>,
    route: Route,
    costs: Costs,
    same: Vec<String>,
    milliseconds: Option<f64>,
    /// By objective.
    gains: Vec<Gains>,
    fate: Fate,
}

/// Searches one backbone under one budget: a grid that [`parts`](super::parts) gave.
///
/// # Errors
/// Exit code 2, before anything is computed: no candidate meets the budget, or no item is left for the judgement. What stops a
/// run.
pub fn search(grid: &Grid, lab: &Laboratory<'_>) -> Result<Found> {
    let spec = grid.search.as_ref().ok_or_else(|| Error::bad_input("the grid has no `search`"))?;
    let (config, engine) = backbone(grid, lab)?;
    let tracks = tracks(grid, spec, lab)?;
    let dense_time = match spec.budget.latency {
        Some(_) => Some(dense_time(grid, spec, lab)?),
        None => None,
    };
    let (cells, mut left_out) = candidates::candidates(grid, &config, engine, dense_time)?;
    let mut racers = solved(grid, spec, lab, cells, dense_time, &mut left_out)?;
    if racers.is_empty() {
        let reasons: Vec<String> = left_out.iter().take(3).map(|of| format!("{}: {}", of.cell, of.reason)).collect();
        return Err(Error::bad_input("no candidate meets the budget once it is repaired")
            .at(grid.file.display().to_string())
            .expected(spec.budget.to_string())
            .found(reasons.join("; "))
            .hint("other depths, or a budget that asks for less"));
    }
    racers
        .iter_mut()
        .for_each(|of| of.gains = tracks.iter().map(|track| vec![Vec::new(); track.strata.len()]).collect());
    let (rounds, mut spent) = race(grid, spec, lab, &tracks, &mut racers)?;
    measure(grid, spec, lab, &mut racers)?;
    let best = winner(&racers);
    let (judged, curse) = match best {
        Some(best) => judgement(grid, spec, lab, &tracks, &racers, best, &mut spent)?,
        None => (Vec::new(), Vec::new()),
    };
    let winner = best.map(|best| racers[best].cell.name.clone());
    let objective = |track: &Track| Objective {
        name: track.name.to_owned(),
        on: track.strata.iter().map(|of| of.on.name()).collect(),
        items: track.strata.iter().map(|of| of.used - judged_of(of)).sum(),
        kept: track.strata.iter().map(judged_of).sum(),
    };
    let (mut survivors, others): (Vec<Racer>, Vec<Racer>) =
        racers.into_iter().partition(|of| of.fate == Fate::Survived);
    survivors.extend(others);
    Ok(Found {
        backbone: grid.backbone.first().cloned().unwrap_or_default(),
        layers: config.layers,
        budget: spec.budget.to_string(),
        alpha: spec.alpha,
        seed: spec.seed,
        prompt: spec.prompt.to_string(),
        objectives: tracks.iter().map(objective).collect(),
        rounds,
        candidates: survivors.into_iter().map(|of| of.told(&tracks)).collect(),
        left_out,
        winner,
        judged,
        winners_curse: curse,
        spent,
    })
}

fn judged_of(stratum: &Stratum) -> usize {
    judged(stratum.used)
}

impl On {
    fn name(&self) -> String {
        match self {
            Self::Task(used) => used.to_string(),
            Self::Text(text) => text.to_string(),
        }
    }
}

/// The backbone's config, and what computes it.
fn backbone(grid: &Grid, lab: &Laboratory<'_>) -> Result<(Config, EngineChoice)> {
    let bare = Grid { cells: dense(grid), ..bare(grid) };
    let plan = Plan::new(&bare, lab.store, lab.settings.engine, lab.settings.batch_tokens)?;
    let of = plan.backbones.first().ok_or_else(|| Error::bad_input("the search has no backbone"))?;
    Ok((of.config.clone(), of.engine))
}

fn nothing() -> Evaluate {
    Evaluate {
        perplexity: Vec::new(),
        tasks: Vec::new(),
        definitions: Vec::new(),
        groups: Vec::new(),
        latency: Vec::new(),
        metrics: Vec::new(),
    }
}

/// The grid with nothing to score.
fn bare(grid: &Grid) -> Grid {
    let mut bare = grid.clone();
    bare.evaluate = nothing();
    bare
}

fn dense(grid: &Grid) -> Vec<Cell> {
    grid.cells.iter().filter(|cell| cell.is_dense()).cloned().collect()
}

/// What is raced on, with how many items there are: all texts and tasks are tokenised for it.
fn tracks(grid: &Grid, spec: &Search, lab: &Laboratory<'_>) -> Result<Vec<Track>> {
    let whole = Grid { cells: dense(grid), ..grid.clone() };
    let plan = Plan::new(&whole, lab.store, lab.settings.engine, lab.settings.batch_tokens)?;
    exec::preflight(&plan, &lab.settings, Where::Here, lab.store, lab.reporter, lab.stop)?;
    let outcome = GridOutcome::read(&plan, lab.store, &BTreeMap::new())?;
    let tasks = grid.evaluate.tasks.iter().map(|used| {
        let all = outcome.task(used).map_or(0, |of| of.documents);
        (On::Task(used.clone()), all)
    });
    let texts = grid.evaluate.perplexity.iter().map(|text| {
        let all = outcome.text_reads(text).next().map_or(0, |of| of.windows);
        (On::Text(text.clone()), all)
    });
    let track = |name, strata: Vec<(On, usize)>, first, scale| {
        let share = spec.items.map_or(usize::MAX, |items| items.div_ceil(strata.len().max(1)));
        let strata = strata.into_iter().map(|(on, all)| Stratum { on, all, used: all.min(share) });
        let strata: Vec<Stratum> = strata.collect();
        let sizes = strata.iter().map(|of| of.used - judged_of(of)).collect();
        Track { name, strata, schedule: Schedule::new(sizes, first), scale }
    };
    let tracks = [
        track("accuracy", tasks.collect(), FIRST_DOCUMENTS, 100.0),
        track("loss", texts.collect(), FIRST_WINDOWS, -1.0),
    ];
    let tracks: Vec<Track> = tracks.into_iter().filter(|track| !track.strata.is_empty()).collect();
    let poor = tracks.iter().flat_map(|track| &track.strata).find(|of| judged_of(of) == 0);
    match poor {
        None => Ok(tracks),
        Some(of) => Err(Error::bad_input("no item is left for the judgement")
            .at(of.on.name())
            .expected("3 items or more of each task and text: a fifth is kept for what the race never sees")
            .found(format!("{} of {}", of.used, of.all))
            .hint("more --items, or fewer tasks and texts")),
    }
}

/// Milliseconds of the dense backbone over the prompt.
fn dense_time(grid: &Grid, spec: &Search, lab: &Laboratory<'_>) -> Result<f64> {
    let timed = Grid { cells: dense(grid), name: format!("{}.dense", grid.name), ..timed(grid, spec) };
    let outcome = times(&timed, lab)?;
    let time = outcome.cells.first().and_then(|of| milliseconds(of, spec));
    time.ok_or_else(|| Error::job("the dense backbone has no time").at(grid.backbone.join(", ")))
}

fn timed(grid: &Grid, spec: &Search) -> Grid {
    let mut timed = bare(grid);
    timed.evaluate.latency = vec![spec.prompt];
    timed
}

/// Runs a grid of times; reads what is stored of it where none are measured.
fn times(grid: &Grid, lab: &Laboratory<'_>) -> Result<GridOutcome> {
    if lab.times {
        return (lab.run)(grid);
    }
    let outcome = exec::stored(grid, lab.settings, lab.store, &())?;
    match outcome.cells.iter().find(|of| of.missing.is_some() && of.failure.is_none()) {
        None => Ok(outcome),
        Some(of) => Err(Error::missing("a search under a time waits for times, which no worker measures")
            .at(of.cell.to_string())
            .hint("`ghostlab search` of the same file measures them, beside the workers or after them")),
    }
}

fn milliseconds(of: &CellResult, spec: &Search) -> Option<f64> {
    Some(of.prompt(&spec.prompt)?.sample.as_ref()?.spread()?.mean)
}

/// Solves the candidates' cuts and repairs; copies are one, and what misses the budget with its operators is left out.
fn solved(
    grid: &Grid,
    spec: &Search,
    lab: &Laboratory<'_>,
    cells: Vec<Cell>,
    dense: Option<f64>,
    left_out: &mut Vec<LeftOut>,
) -> Result<Vec<Racer>> {
    let solving = Grid { cells, name: format!("{}.candidates", grid.name), ..bare(grid) };
    let outcome = (lab.run)(&solving)?;
    let plan = Plan::new(&solving, lab.store, lab.settings.engine, lab.settings.batch_tokens)?;
    let mut racers: Vec<Racer> = Vec::new();
    let mut fits = Vec::new();
    for ((backbone, variant), result) in plan.variants().zip(&outcome.cells) {
        let cell = result.cell.clone();
        let leave = |reason: String| LeftOut { cell: cell.name.clone(), reason };
        if let Some(reason) = result.failure.as_ref().or(result.missing.as_ref()) {
            left_out.push(leave(reason.clone()));
            continue;
        }
        let program = deployed(&stored_program(lab.store, backbone, variant)?, &backbone.config).program;
        let costs = Costs::of(&program, &backbone.config, backbone.engine, spec.prompt);
        match costs.misses(&spec.budget, dense) {
            Some(reason) => left_out.push(leave(format!("with its operators {reason}"))),
            None => fits.push((cell, result, costs)),
        }
    }
    let kept = candidates::without_deeper(fits.iter().map(|(cell, ..)| cell.clone()).collect(), left_out);
    for (cell, result, costs) in fits.into_iter().filter(|(cell, ..)| kept.contains(cell)) {
        let route = Route::of(result.layers, &result.removed, &repairs(&result.boundaries));
        match racers.iter_mut().find(|of| of.route == route) {
            Some(same) => same.same.push(cell.name),
            None => racers.push(Racer {
                cell,
                removed: result.removed.clone(),
                route,
                costs,
                same: Vec::new(),
                milliseconds: None,
                gains: Vec::new(),
                fate: Fate::Survived,
            }),
        }
    }
    Ok(racers)
}

fn repairs(boundaries: &[BoundaryResult]) -> Vec<Repair> {
    let repair = |of: &BoundaryResult| {
        let place = match of.placed? {
            PlacedRepair::Stream => Place::Stream,
            PlacedRepair::Mlp => Place::Mlp,
            PlacedRepair::AttentionAndMlp => Place::AttentionAndMlp,
        };
        Some(Repair { start: of.region.0, operator: of.operator.clone()?, place })
    };
    boundaries.iter().filter_map(repair).collect()
}

/// Races until one is left or the items end: the rounds, and what they cost.
fn race(
    grid: &Grid,
    spec: &Search,
    lab: &Laboratory<'_>,
    tracks: &[Track],
    racers: &mut [Racer],
) -> Result<(Vec<Round>, Spent)> {
    let count = tracks.iter().map(|track| track.schedule.rounds()).max().unwrap_or(1);
    let all: usize = tracks.iter().flat_map(|track| &track.strata).map(|of| of.used).sum();
    let everyone = layers(racers.iter().map(|of| &of.route));
    let mut spent = Spent {
        items: 0.0,
        all_items: (all * racers.len()) as f64,
        layers: 0.0,
        all_layers: all as f64 * everyone,
        judged_items: 0.0,
        judged_layers: 0.0,
    };
    let (mut rounds, mut before) = (Vec::new(), 0);
    for round in 0..count {
        let alive: Vec<usize> = (0..racers.len()).filter(|&of| racers[of].fate == Fate::Survived).collect();
        if round > 0 && alive.len() < 2 {
            break;
        }
        let draws = |track: &Track, stratum: usize| track.schedule.new_in(round, stratum);
        let own = Grid {
            cells: alive.iter().map(|&of| racers[of].cell.clone()).collect(),
            name: format!("{}.round-{}", grid.name, round + 1),
            evaluate: evaluate(spec, tracks, &draws),
            ..grid.clone()
        };
        let seen: usize = tracks.iter().flat_map(|track| track.schedule.seen(round)).sum();
        let outcome = (lab.run)(&own)?;
        spent.items += ((seen - before) * alive.len()) as f64;
        spent.layers += (seen - before) as f64 * layers(alive.iter().map(|&of| &racers[of].route));
        before = seen;
        for (&of, result) in alive.iter().zip(&outcome.cells) {
            let racer = &mut racers[of];
            match result.failure.as_ref().or(result.missing.as_ref()) {
                Some(reason) => racer.fate = Fate::Failed { reason: reason.clone() },
                None => take(&mut racer.gains, tracks, &own.evaluate, result)?,
            }
        }
        let running: Vec<usize> = alive.iter().copied().filter(|&of| racers[of].fate == Fate::Survived).collect();
        let gains: Vec<Vec<Gains>> =
            (0..tracks.len()).map(|at| racers.iter().map(|of| of.gains[at].clone()).collect()).collect();
        let verdict = judge(&running, &gains, spec.alpha / count as f64);
        let out = verdict.map_or_else(Vec::new, |verdict| verdict.out);
        for exit in &out {
            let rival = racers[exit.rival].cell.name.clone();
            racers[exit.candidate].fate = Fate::Out { round: round + 1, rival, p: exit.p };
        }
        rounds.push(Round { items: seen, alive: alive.len(), left: alive.len() - running.len() + out.len() });
        let text = format!("round {}: {seen} items, {} of {} left", round + 1, running.len() - out.len(), racers.len());
        lab.reporter.event(Event::Note { text });
    }
    Ok((rounds, spent))
}

/// Which stretches of a stratum's order.
type Stretches<'a> = dyn Fn(&Track, usize) -> Vec<(usize, usize)> + 'a;

/// What is scored of each stratum: some stretches of its order.
fn evaluate(spec: &Search, tracks: &[Track], draws: &Stretches<'_>) -> Evaluate {
    let (mut perplexity, mut tasks) = (Vec::new(), Vec::new());
    for track in tracks {
        for (at, stratum) in track.strata.iter().enumerate() {
            for (from, to) in draws(track, at) {
                let draw = Some(Draw { seed: spec.seed, from, to });
                match &stratum.on {
                    On::Task(used) => tasks.push(TaskUse { draw, ..used.clone() }),
                    On::Text(text) => perplexity.push(Perplexity { draw, ..text.clone() }),
                }
            }
        }
    }
    Evaluate { perplexity, tasks, ..nothing() }
}

/// Appends a candidate's new gains, in the order of the draws.
fn take(gains: &mut [Gains], tracks: &[Track], evaluate: &Evaluate, result: &CellResult) -> Result<()> {
    let lacking = |on: String| Error::job("a candidate has no scores").at(format!("{} on {on}", result.cell));
    for (track, gains) in tracks.iter().zip(gains) {
        for (stratum, gains) in track.strata.iter().zip(gains) {
            match &stratum.on {
                On::Task(own) => {
                    let drawn = evaluate.tasks.iter().filter(|of| TaskUse { draw: None, ..(*of).clone() } == *own);
                    for used in drawn {
                        let scores = result.task(used).and_then(|of| of.sample.as_ref());
                        let scores = scores.ok_or_else(|| lacking(used.to_string()))?;
                        let column = scores.result.task.column;
                        gains.extend(scores.answers.documents().map(|of| f64::from(u8::from(of.right(column)))));
                    }
                }
                On::Text(own) => {
                    let drawn =
                        evaluate.perplexity.iter().filter(|of| Perplexity { draw: None, ..(*of).clone() } == *own);
                    for text in drawn {
                        let losses = result.text(text).and_then(|of| of.sample.as_ref());
                        let losses = losses.ok_or_else(|| lacking(text.to_string()))?;
                        gains.extend(losses.windows.iter().map(|loss| -loss));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Times the survivors where the budget is of time; who is slower than it allows is no winner.
fn measure(grid: &Grid, spec: &Search, lab: &Laboratory<'_>, racers: &mut [Racer]) -> Result<()> {
    if spec.budget.speedup.is_none() && spec.budget.latency.is_none() {
        return Ok(());
    }
    let alive = || racers.iter().filter(|of| of.fate == Fate::Survived).map(|of| of.cell.clone());
    let cells: Vec<Cell> = dense(grid).into_iter().chain(alive()).collect();
    let outcome = times(&Grid { cells, name: format!("{}.times", grid.name), ..timed(grid, spec) }, lab)?;
    for result in outcome.cells.iter().filter(|of| !of.cell.is_dense()) {
        let Some(racer) = racers.iter_mut().find(|of| of.cell == result.cell) else { continue };
        let sample = result.prompt(&spec.prompt).and_then(|of| of.sample.as_ref());
        racer.milliseconds = milliseconds(result, spec);
        let speedup = sample.and_then(LatencyResult::speedup).map(|of| of.ratio);
        let slow = spec.budget.speedup.zip(speedup).filter(|(wanted, found)| found < wanted);
        let slow = slow.map(|(wanted, found)| format!("measured {found:.3} times as fast, not {wanted}"));
        let late = spec.budget.latency.zip(racer.milliseconds).filter(|(most, found)| found > most);
        let late = late.map(|(most, found)| format!("measured {found:.2} ms, not {most}"));
        if let Some(reason) = slow.or(late) {
            racer.fate = Fate::Slow { reason };
        }
    }
    Ok(())
}

/// The best of the survivors on the first objective; of equals the first.
fn winner(racers: &[Racer]) -> Option<usize> {
    let merit = |of: usize| mean_of_means(&racers[of].gains[0]);
    let alive = (0..racers.len()).filter(|&of| racers[of].fate == Fate::Survived);
    alive.reduce(|best, other| if merit(other) > merit(best) { other } else { best })
}

/// Scores winner, runner-up, dense backbone and plain removal on what the race never saw; and the winner's curse.
fn judgement(
    grid: &Grid,
    spec: &Search,
    lab: &Laboratory<'_>,
    tracks: &[Track],
    racers: &[Racer],
    best: usize,
    spent: &mut Spent,
) -> Result<(Vec<Judged>, Vec<f64>)> {
    let rank = |of: &Racer| {
        let seen: usize = of.gains.iter().flatten().map(Vec::len).sum();
        (of.fate == Fate::Survived, seen, mean_of_means(&of.gains[0]))
    };
    let others = (0..racers.len()).filter(|&of| of != best && !matches!(racers[of].fate, Fate::Failed { .. }));
    // Of equals the first.
    let second = others.rev().max_by(|&a, &b| {
        let (a, b) = (rank(&racers[a]), rank(&racers[b]));
        (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2))
    });
    let winner = &racers[best];
    let plain = Cell { recovery: Some(Method::new("none", &Default::default())?), ..winner.cell.clone() };
    let plain = grid
        .cells
        .iter()
        .find(|of| Cell { name: plain.name.clone(), ..(*of).clone() } == plain)
        .cloned()
        .unwrap_or(Cell { name: format!("{}.plain", winner.cell.name), ..plain });
    let mut roles = vec![("winner", winner.cell.clone())];
    roles.extend(second.map(|of| ("runner-up", racers[of].cell.clone())));
    if winner.cell != plain {
        roles.push(("plain", plain));
    }
    roles.extend(dense(grid).into_iter().map(|cell| ("dense", cell)));
    let mut cells: Vec<Cell> = Vec::new();
    for (_, cell) in &roles {
        if !cells.contains(cell) {
            cells.push(cell.clone());
        }
    }
    let draws = |track: &Track, stratum: usize| {
        let of = &track.strata[stratum];
        vec![(of.all - judged_of(of), of.all)]
    };
    let own = Grid {
        cells,
        name: format!("{}.judgement", grid.name),
        evaluate: evaluate(spec, tracks, &draws),
        ..grid.clone()
    };
    let outcome = (lab.run)(&own)?;
    let mut routes: Vec<Route> = Vec::new();
    let mut by_cell: Vec<(&Cell, Vec<Gains>)> = Vec::new();
    for result in &outcome.cells {
        result.ok()?;
        let mut gains: Vec<Gains> = tracks.iter().map(|track| vec![Vec::new(); track.strata.len()]).collect();
        take(&mut gains, tracks, &own.evaluate, result)?;
        routes.push(Route::of(result.layers, &result.removed, &repairs(&result.boundaries)));
        by_cell.push((&result.cell, gains));
    }
    let items: usize = tracks.iter().flat_map(|track| &track.strata).map(judged_of).sum();
    spent.judged_items = (items * routes.len()) as f64;
    spent.judged_layers = items as f64 * layers(&routes);
    let of = |cell: &Cell| by_cell.iter().find(|(known, _)| *known == cell).map(|(_, gains)| gains);
    let Some(won) = of(&winner.cell) else { return Ok((Vec::new(), Vec::new())) };
    let judged = |(role, cell): (&str, Cell)| -> Option<Judged> {
        let gains = of(&cell)?;
        let scores = tracks.iter().zip(gains).map(|(track, of)| score(Stratified::of(of), mean_of_means(of), track));
        let pairs = tracks.iter().zip(gains.iter().zip(won));
        let beyond = pairs.map(|(track, (own, won))| {
            let mean = mean_of_means(own) - mean_of_means(won);
            score(Stratified::paired(own, won), mean, track)
        });
        let beyond = if role == "winner" { Vec::new() } else { beyond.collect() };
        Some(Judged { role: role.to_owned(), cell: cell.name, scores: scores.collect(), beyond })
    };
    let curse = tracks.iter().zip(winner.gains.iter().zip(won));
    let curse =
        curse.map(|(track, (raced, judged))| track.scale.abs() * (mean_of_means(raced) - mean_of_means(judged)));
    let curse = curse.collect();
    Ok((roles.into_iter().filter_map(judged).collect(), curse))
}

fn score(of: Option<Stratified>, mean: f64, track: &Track) -> Score {
    Score { mean: track.scale * mean, half: of.map(|of| track.scale.abs() * of.half_width(0.95)) }
}

impl Racer {
    fn told(self, tracks: &[Track]) -> Candidate {
        let scores = tracks.iter().zip(&self.gains).filter(|(_, gains)| gains.iter().any(|of| !of.is_empty()));
        let scores = scores.map(|(track, gains)| score(Stratified::of(gains), mean_of_means(gains), track)).collect();
        let items = self.gains.iter().flatten().map(Vec::len).sum();
        let Self { cell, removed, costs, same, milliseconds, fate, .. } = self;
        let text = |method: Option<String>| method.unwrap_or_default();
        Candidate {
            criterion: text(cell.criterion.as_ref().map(ToString::to_string)),
            recovery: text(cell.recovery.as_ref().map(ToString::to_string)),
            calibration: text(cell.calibration.as_ref().map(ToString::to_string)),
            cell: cell.name,
            removed,
            same,
            costs,
            milliseconds,
            scores,
            items,
            fate,
        }
    }
}
