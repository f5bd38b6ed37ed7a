//! The judgement: winner, runner-up, plain removal and the dense backbone on items that the race never saw.

use super::found::{Fate, Judged, Spent};
use super::laboratory::{Laboratory, dense};
use super::race::mean_of_means;
use super::racer::Racer;
use super::route::{Route, layers};
use super::track::{Gains, Stratum, Track, evaluate, score, take};
use crate::error::Result;
use crate::grid::{Cell, Grid, Method, Search};
use crate::significance::stratified::Stratified;

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
        vec![(of.all - of.judged(), of.all)]
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
    let curse = tracks.iter().zip(winner.gains.iter().zip(won));
    let curse =
        curse.map(|(track, (raced, judged))| track.scale.abs() * (mean_of_means(raced) - mean_of_means(judged)));
    let curse = curse.collect();
    Ok((roles.into_iter().filter_map(judged).collect(), curse))
}
