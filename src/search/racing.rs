//! Main procedure of a search: selects candidates, eliminates them in rounds, times the survivors, and evaluates the
//! winner on held-out items.

use super::candidates::{
    Racer, count_seen_items, find_candidates, find_winner, no_candidate_error, solve_candidates, survivors,
};
use super::env::{
    DrawRanges, Gains, SearchEnv, Stratum, Track, append_gains, build_evaluation, build_tracks, dense_cells,
    empty_gains, measure_dense_latency, measured_latency, read_backbone, scale_score, step_grid, time_cells,
};
use super::program_path::{build_program, count_layers};
use super::race::{eliminate, mean_of_means};
use super::{
    CandidateOutcome, HeldOutScore, Lead, Objective, Round, SearchCost, SearchOutcome, score_difference, violated_speed,
};
use crate::error::{Error, Result};
use crate::grid::{Cell, Grid, Method, Search};
use crate::model::Program;
use crate::pipeline::exec::Event;
use crate::recovery;
use crate::results::distinct;
use crate::significance::stratified::StratifiedMean;

/// Runs the search for one of the grids from [`split_searches`](super::split_searches).
///
/// # Errors
/// Fails with exit code 2 before any computation if no candidate meets the budget or no item remains for the final
/// evaluation. Fails if a run fails or is interrupted.
pub fn search(grid: &Grid, env: &SearchEnv<'_>) -> Result<SearchOutcome> {
    let spec = grid.search.as_ref().ok_or_else(|| Error::bad_input("the grid has no `search`"))?;
    // Cuts that a criterion cannot select are reported once per search. Clear them so that the grid of each round does
    // not report them again.
    let selectable = Search { unselectable: Vec::new(), ..spec.clone() };
    let bare = Grid { search: Some(selectable), ..grid.clone() };
    let (config, engine) = read_backbone(&bare, env)?;
    // Check the bounds that need no timing first so that an unreachable budget fails before anything runs.
    let (mut cells, mut excluded) = find_candidates(grid, &config, engine, None)?;
    let tracks = build_tracks(&bare, spec, env)?;
    let run = SearchRun { grid: &bare, spec, env, tracks: &tracks };
    let dense_time = spec.budget.latency.map(|_| measure_dense_latency(&bare, spec, env)).transpose()?;
    if dense_time.is_some() {
        (cells, excluded) = find_candidates(grid, &config, engine, dense_time)?;
    }
    let mut racers = solve_candidates(&bare, spec, env, cells, dense_time, &mut excluded)?;
    if racers.is_empty() {
        let reasons: Vec<String> =
            excluded.iter().take(3).map(|entry| format!("{}: {}", entry.cell, entry.reason)).collect();
        let what = "no candidate meets the budget after recovery";
        return Err(no_candidate_error(what, grid, &spec.budget, &reasons.join("; ")));
    }
    racers.iter_mut().for_each(|racer| racer.gains = empty_gains(&tracks));
    let (rounds, mut spent) = run.run_rounds(&mut racers)?;
    run.measure_latencies(&mut racers)?;
    let best = find_winner(&racers);
    for at in 0..racers.len() {
        racers[at].differences = score_difference::differences_to_rival(&tracks, &racers, at, best);
    }
    let (judged, leads) = match best {
        Some(best) => run.judge_winner(&racers, best, &mut spent)?,
        None => (Vec::new(), Vec::new()),
    };
    let winner = best.map(|best| racers[best].cell.name.clone());
    let (mut survivors, others): (Vec<Racer>, Vec<Racer>) =
        racers.into_iter().partition(|racer| racer.outcome == CandidateOutcome::Survived);
    survivors.extend(others);
    Ok(SearchOutcome {
        backbone: grid.backbone.first().cloned().unwrap_or_default(),
        layers: config.layers,
        budget: spec.budget.to_string(),
        alpha: spec.alpha,
        seed: spec.seed,
        prompt: spec.prompt.to_string(),
        objectives: tracks.iter().map(to_objective).collect(),
        rounds,
        candidates: survivors.into_iter().map(|survivor| survivor.into_candidate(&tracks, &spec.budget)).collect(),
        left_out: excluded,
        winner,
        held_out_scores: judged,
        leads,
        spent,
    })
}

fn to_objective(track: &Track) -> Objective {
    Objective {
        name: track.name.to_owned(),
        on: track.strata.iter().map(|stratum| stratum.on.to_string()).collect(),
        items: track.strata.iter().map(|stratum| stratum.used - stratum.held_out_count()).sum(),
        kept: track.strata.iter().map(Stratum::held_out_count).sum(),
    }
}

/// Inputs that the steps of a search share.
#[derive(Clone, Copy)]
struct SearchRun<'a> {
    /// Grid whose list of unselectable cuts is empty, so that rounds do not report them again.
    grid: &'a Grid,
    spec: &'a Search,
    env: &'a SearchEnv<'a>,
    tracks: &'a [Track],
}

impl SearchRun<'_> {
    /// Runs rounds until a single candidate remains or all items are scored. Returns the rounds and their cost.
    fn run_rounds(&self, racers: &mut [Racer]) -> Result<(Vec<Round>, SearchCost)> {
        let Self { grid, spec, env, tracks } = *self;
        let count = tracks.iter().map(|track| track.schedule.rounds()).max().unwrap_or(1);
        let all: usize = tracks.iter().flat_map(|track| &track.strata).map(|stratum| stratum.used).sum();
        let all_items = (all * racers.len()) as f64;
        let all_layers = all as f64 * count_layers(racers.iter().map(|racer| &racer.placeholder_program));
        let mut spent = SearchCost { all_items, all_layers, ..SearchCost::default() };
        let mut rounds = Vec::new();
        let mut seen_before = 0;
        for round in 0..count {
            let alive: Vec<usize> = survivors(racers).collect();
            if round > 0 && alive.len() < 2 {
                break;
            }
            let cells = alive.iter().map(|&racer| racers[racer].cell.clone()).collect();
            let evaluate = build_evaluation(spec, tracks, &|track: &Track, stratum: usize| {
                track.schedule.added_ranges(round, stratum)
            });
            let round_grid = step_grid(grid, &format!("round-{}", round + 1), cells, evaluate);
            let seen: usize = tracks.iter().flat_map(|track| track.schedule.items_after(round)).sum();
            let outcome = (env.run)(&round_grid)?;
            let new_items = seen - seen_before;
            spent.items += (new_items * alive.len()) as f64;
            spent.layers +=
                new_items as f64 * count_layers(alive.iter().map(|&racer| &racers[racer].placeholder_program));
            seen_before = seen;
            for (&index, result) in alive.iter().zip(&outcome.cells) {
                let racer = &mut racers[index];
                match result.failure.as_ref().or(result.missing.as_ref()) {
                    Some(reason) => racer.outcome = CandidateOutcome::Failed { reason: reason.clone() },
                    None => append_gains(&mut racer.gains, tracks, &round_grid.evaluate, result)?,
                }
            }
            let running: Vec<usize> = survivors(racers).collect();
            let gains: Vec<Vec<Gains>> =
                (0..tracks.len()).map(|at| racers.iter().map(|racer| racer.gains[at].clone()).collect()).collect();
            let verdict = eliminate(&running, &gains, spec.alpha / count as f64);
            let out = verdict.map_or_else(Vec::new, |verdict| verdict.out);
            for exit in &out {
                let rival = racers[exit.rival].cell.name.clone();
                racers[exit.candidate].outcome = CandidateOutcome::Out { round: round + 1, rival, p: exit.p };
            }
            rounds.push(Round { items: seen, alive: alive.len(), left: alive.len() - running.len() + out.len() });
            let text = format!(
                "round {}: {seen} items, {} of {} candidates left",
                round + 1,
                running.len() - out.len(),
                racers.len()
            );
            env.run_env.reporter.event(Event::Note { text });
        }
        Ok((rounds, spent))
    }

    /// Measures the latencies of the survivors if the budget bounds latency or speedup. Survivors that miss the bound
    /// become `Slow`.
    fn measure_latencies(&self, racers: &mut [Racer]) -> Result<()> {
        let Self { grid, spec, env, .. } = *self;
        if spec.budget.speedup.is_none() && spec.budget.latency.is_none() {
            return Ok(());
        }
        let mut cells = dense_cells(grid);
        cells.extend(survivors(racers).map(|racer| racers[racer].cell.clone()));
        let outcome = time_cells(grid, "times", cells, spec, env)?;
        for result in outcome.cells.iter().filter(|cell| !cell.cell.is_dense()) {
            let Some(racer) = racers.iter_mut().find(|racer| racer.cell == result.cell) else { continue };
            let Some((time, speedup)) = measured_latency(result, &spec.prompt) else {
                let reason =
                    format!("no latency measured over {}: out of memory, or the engine cannot decode", spec.prompt);
                racer.outcome = CandidateOutcome::Slow { reason };
                continue;
            };
            racer.milliseconds = Some(time);
            if let Some(reason) = violated_speed(&spec.budget, "measured", speedup, Some(time)) {
                racer.outcome = CandidateOutcome::Slow { reason };
            }
        }
        Ok(())
    }

    /// Scores the winner, the runner-up, plain removal (the winner's layers without recovery) and the dense backbone on
    /// held-out items. Also scores plain removal on the items of the race, so that the winner's lead is known on both
    /// sets.
    fn judge_winner(
        &self,
        racers: &[Racer],
        best: usize,
        spent: &mut SearchCost,
    ) -> Result<(Vec<HeldOutScore>, Vec<Lead>)> {
        let Self { grid, tracks, .. } = *self;
        let winner = &racers[best];
        let plain = build_plain_removal(grid, winner)?;
        let mut roles = vec![("winner", winner.cell.clone())];
        roles.extend(find_runner_up(racers, best).map(|second| ("runner-up", racers[second].cell.clone())));
        if winner.cell != plain {
            roles.push(("plain", plain.clone()));
        }
        roles.extend(dense_cells(grid).into_iter().map(|cell| ("dense", cell)));
        let cells = distinct(roles.iter().map(|(_, cell)| cell));
        let scored = self.score_cells("judgement", cells, &|track: &Track, stratum: usize| {
            let stratum = &track.strata[stratum];
            vec![(stratum.all - stratum.held_out_count(), stratum.all)]
        })?;
        let items: usize = tracks.iter().flat_map(|track| &track.strata).map(Stratum::held_out_count).sum();
        spent.judged_items = (items * scored.len()) as f64;
        spent.judged_layers = items as f64 * count_layers(scored.iter().map(|entry| &entry.placeholder_program));
        let gains_of =
            |cell: &Cell| scored.iter().find(|entry| entry.cell == *cell).map(|entry| entry.gains.as_slice());
        let Some(won) = gains_of(&winner.cell) else { return Ok((Vec::new(), Vec::new())) };
        let judged = roles
            .into_iter()
            .filter_map(|(role, cell): (&str, Cell)| -> Option<HeldOutScore> {
                let gains = gains_of(&cell)?;
                let scores = tracks
                    .iter()
                    .zip(gains)
                    .map(|(track, gains)| scale_score(StratifiedMean::from_strata(gains), mean_of_means(gains), track));
                let differences =
                    if role == "winner" { Vec::new() } else { score_difference::score_differences(tracks, gains, won) };
                Some(HeldOutScore { role: role.to_owned(), cell: cell.name, scores: scores.collect(), differences })
            })
            .collect();
        let leads = match gains_of(&plain).filter(|_| winner.cell != plain) {
            None => Vec::new(),
            Some(held_out) => {
                let raced = self.score_plain_removal(racers, winner, &plain, spent)?;
                score_difference::compute_leads(tracks, (&winner.gains, &raced), (won, held_out))
            }
        };
        Ok((judged, leads))
    }

    /// Scores plain removal on the items on which the winner was scored in the race. Plain removal may not have been a
    /// candidate, or may have been eliminated early.
    fn score_plain_removal(
        &self,
        racers: &[Racer],
        winner: &Racer,
        plain: &Cell,
        spent: &mut SearchCost,
    ) -> Result<Vec<Gains>> {
        // The winner was scored on whole ranges only, so it saw a range if and only if it saw the range's first item.
        let raced = |track: &Track, stratum: usize| -> Vec<(usize, usize)> {
            let rounds = 0..track.schedule.rounds();
            let ranges = rounds.flat_map(|round| track.schedule.added_ranges(round, stratum));
            let at = self.tracks.iter().position(|other| other.name == track.name).unwrap_or_default();
            let winner_saw = winner.gains[at][stratum].len();
            ranges.filter(|(from, _)| *from < winner_saw).collect()
        };
        let mut scored = self.score_cells("plain", vec![plain.clone()], &raced)?;
        let plain_scored =
            scored.pop().ok_or_else(|| Error::job("plain removal has no scores").at(plain.to_string()))?;
        let known = racers.iter().find(|racer| racer.cell == *plain || racer.duplicates.contains(&plain.name));
        let new = count_seen_items(&plain_scored.gains)
            .saturating_sub(known.map_or(0, |known| count_seen_items(&known.gains))) as f64;
        spent.judged_items += new;
        spent.judged_layers += new * count_layers([&plain_scored.placeholder_program]);
        Ok(plain_scored.gains)
    }

    /// Scores the cells on the item ranges that `draw_ranges` returns for each stratum (task or text).
    fn score_cells(&self, step: &str, cells: Vec<Cell>, draw_ranges: &DrawRanges<'_>) -> Result<Vec<ScoredCell>> {
        let Self { grid, spec, env, tracks } = *self;
        let judged_grid = step_grid(grid, step, cells, build_evaluation(spec, tracks, draw_ranges));
        let outcome = (env.run)(&judged_grid)?;
        outcome
            .cells
            .iter()
            .map(|result| {
                result.ok()?;
                let mut gains = empty_gains(tracks);
                append_gains(&mut gains, tracks, &judged_grid.evaluate, result)?;
                let placeholder_program = build_program(result.layers, &result.removed, &result.boundaries)?;
                Ok(ScoredCell { cell: result.cell.clone(), placeholder_program, gains })
            })
            .collect()
    }
}

/// Returns the runner-up. Survivors rank first, then candidates that were scored on more items, then those that are
/// better in the first objective. The first candidate wins a tie.
fn find_runner_up(racers: &[Racer], winner: usize) -> Option<usize> {
    let others = (0..racers.len())
        .filter(|&racer| racer != winner && !matches!(racers[racer].outcome, CandidateOutcome::Failed { .. }));
    others.rev().max_by(|&a, &b| {
        let [a, b] = [&racers[a], &racers[b]];
        a.rank().cmp(&b.rank()).then(a.merit().total_cmp(&b.merit()))
    })
}

/// Returns the cell that removes the winner's layers without recovery. If the grid contains this cell, returns it with
/// its name in the grid.
fn build_plain_removal(grid: &Grid, winner: &Racer) -> Result<Cell> {
    let plain = Cell { recovery: Some(Method::new(recovery::NONE, &Default::default())?), ..winner.cell.clone() };
    let known = grid.cells.iter().find(|cell| Cell { name: plain.name.clone(), ..(*cell).clone() } == plain);
    Ok(known.cloned().unwrap_or(Cell { name: format!("{}.plain", winner.cell.name), ..plain }))
}

/// Cell with its gains on the item ranges on which it was scored.
struct ScoredCell {
    cell: Cell,
    placeholder_program: Program,
    gains: Vec<Gains>,
}
