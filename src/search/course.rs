//! A search: candidates, rounds, what is measured of the survivors; and the judgement: winner, runner-up, plain removal and the dense
//! backbone on items that the race never saw.

use super::candidates::{Racer, candidates, none_meets, solved, winner};
use super::laboratory::{
    Gains, Laboratory, Stratum, Track, backbone, dense, dense_time, evaluate, no_gains, score, take, timed, times,
    took, tracks,
};
use super::race::{judge, mean_of_means};
use super::route::{Route, layers};
use super::{Fate, Found, Judged, Objective, Round, Spent};
use crate::error::{Error, Result};
use crate::exec::Event;
use crate::grid::{Cell, Grid, Method, Search};
use crate::results::distinct;
use crate::significance::stratified::Stratified;

/// Searches one backbone under one budget: a grid that [`parts`](super::parts) gave.
///
/// # Errors
/// Exit code 2, before anything is computed: no candidate meets the budget, or no item is left for the judgement. What stops a
/// run.
pub fn search(grid: &Grid, lab: &Laboratory<'_>) -> Result<Found> {
    let spec = grid.search.as_ref().ok_or_else(|| Error::bad_input("the grid has no `search`"))?;
    // What cannot be chosen is told once, by the search.
    let told = Search { unselectable: Vec::new(), ..spec.clone() };
    let bare = Grid { search: Some(told), ..grid.clone() };
    let (config, engine) = backbone(&bare, lab)?;
    // Bounds that no time is needed for are told before anything runs.
    let (mut cells, mut left_out) = candidates(grid, &config, engine, None)?;
    let (chosen_from, grid) = (grid, &bare);
    let tracks = tracks(grid, spec, lab)?;
    let dense_time = spec.budget.latency.map(|_| dense_time(grid, spec, lab)).transpose()?;
    if dense_time.is_some() {
        (cells, left_out) = candidates(chosen_from, &config, engine, dense_time)?;
    }
    let mut racers = solved(grid, spec, lab, cells, dense_time, &mut left_out)?;
    if racers.is_empty() {
        let reasons: Vec<String> = left_out.iter().take(3).map(|of| format!("{}: {}", of.cell, of.reason)).collect();
        return Err(none_meets(
            "no candidate meets the budget once it is repaired",
            grid,
            &spec.budget,
            &reasons.join("; "),
        ));
    }
    racers.iter_mut().for_each(|of| of.gains = no_gains(&tracks));
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
        items: track.strata.iter().map(|of| of.used - of.judged()).sum(),
        kept: track.strata.iter().map(Stratum::judged).sum(),
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
    let (all_items, all_layers) = ((all * racers.len()) as f64, all as f64 * everyone);
    let mut spent = Spent { all_items, all_layers, ..Spent::default() };
    let (mut rounds, mut before) = (Vec::new(), 0);
    for round in 0..count {
        let alive: Vec<usize> = (0..racers.len()).filter(|&of| racers[of].fate == Fate::Survived).collect();
        if round > 0 && alive.len() < 2 {
            break;
        }
        let draws = |track: &Track, stratum: usize| track.schedule.new_in(round, stratum);
        let cells = alive.iter().map(|&of| racers[of].cell.clone()).collect();
        let (name, evaluate) = (format!("{}.round-{}", grid.name, round + 1), evaluate(spec, tracks, &draws));
        let own = Grid { cells, name, evaluate, ..grid.clone() };
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
        let Some((time, speedup)) = result.prompt(&spec.prompt).and_then(|of| took(of.sample.as_ref()?)) else {
            let reason =
                format!("it has no time over {}: memory did not suffice, or its engine does not decode", spec.prompt);
            racer.fate = Fate::Slow { reason };
            continue;
        };
        racer.milliseconds = Some(time);
        let slow = spec.budget.speedup.zip(speedup).filter(|(wanted, found)| found < wanted);
        let slow = slow.map(|(wanted, found)| format!("measured {found:.3} times as fast, not {wanted}"));
        let late =
            spec.budget.latency.filter(|most| time > *most).map(|most| format!("measured {time:.2} ms, not {most}"));
        if let Some(reason) = slow.or(late) {
            racer.fate = Fate::Slow { reason };
        }
    }
    Ok(())
}

/// Scores winner, runner-up, dense backbone and plain removal on what the race never saw; and the winner's curse.
pub(super) fn judgement(
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
    let known = grid.cells.iter().find(|of| Cell { name: plain.name.clone(), ..(*of).clone() } == plain);
    let plain = known.cloned().unwrap_or(Cell { name: format!("{}.plain", winner.cell.name), ..plain });
    let mut roles = vec![("winner", winner.cell.clone())];
    roles.extend(second.map(|of| ("runner-up", racers[of].cell.clone())));
    if winner.cell != plain {
        roles.push(("plain", plain));
    }
    roles.extend(dense(grid).into_iter().map(|cell| ("dense", cell)));
    let cells = distinct(roles.iter().map(|(_, cell)| cell));
    let draws = |track: &Track, stratum: usize| {
        let of = &track.strata[stratum];
        vec![(of.all - of.judged(), of.all)]
    };
    let (name, evaluate) = (format!("{}.judgement", grid.name), evaluate(spec, tracks, &draws));
    let own = Grid { cells, name, evaluate, ..grid.clone() };
    let outcome = (lab.run)(&own)?;
    let mut routes: Vec<Route> = Vec::new();
    let mut by_cell: Vec<(&Cell, Vec<Gains>)> = Vec::new();
    for result in &outcome.cells {
        result.ok()?;
        let mut gains = no_gains(tracks);
        take(&mut gains, tracks, &own.evaluate, result)?;
        routes.push(Route::of(result.layers, &result.removed, &result.boundaries));
        by_cell.push((&result.cell, gains));
    }
    let items: usize = tracks.iter().flat_map(|track| &track.strata).map(Stratum::judged).sum();
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
    let worse = |(raced, judged): (&Gains, &Gains)| mean_of_means(raced) - mean_of_means(judged);
    let curse = tracks.iter().zip(winner.gains.iter().zip(won)).map(|(track, of)| track.scale.abs() * worse(of));
    let curse = curse.collect();
    Ok((roles.into_iter().filter_map(judged).collect(), curse))
}
