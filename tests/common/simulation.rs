//! Simulates the races of `search` on known scores, in many orders of the items. Measures how often a race eliminates
//! the best candidate, and how many items it scores.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "each program uses only some items, which panic on setup errors"
)]

use ghostlab::corpus::PythonRandom;
use ghostlab::error::Result;
use ghostlab::model::{Cut, Program};
use ghostlab::pipeline::stage::boundary_result::BoundaryResult;
use ghostlab::results::StoredResults;
use ghostlab::search::{Schedule, build_program, count_layers, eliminate, held_out_items, mean_of_means, pareto_front};
use serde_json::Value;

/// Scores, of which larger ones are better, indexed by `[candidate][stratum][item]`. A stratum is a task or a text.
pub type Gains = Vec<Vec<Vec<f64>>>;

/// Known scores of a grid's candidates, without duplicates.
#[derive(Debug, Clone)]
pub struct KnownScores {
    pub name: String,
    /// Programs, indexed by candidate.
    pub paths: Vec<Program>,
    pub objectives: Vec<KnownObjective>,
}

/// Known scores for one objective.
#[derive(Debug, Clone)]
pub struct KnownObjective {
    /// Approximate number of items in the first round of a race (see [`Schedule::new`]).
    pub first: usize,
    pub gains: Gains,
    /// Maximum distance from the best score at which a candidate's score counts as near the best.
    pub near: f64,
}

/// Reads the programs of the distinct candidates in a recorded run. Also returns their gains on tasks (1 for a correct
/// answer, 0 for a wrong one) and on texts (negative losses).
pub fn read_candidates(stored: &StoredResults, cells: &[&Value]) -> (Vec<Program>, [Gains; 2]) {
    let mut paths = Vec::new();
    let mut right = Vec::new();
    let mut losses = Vec::new();
    for cell in cells {
        let mut boundaries = cell["boundaries"].clone();
        // Records omit the per-channel errors, but the type requires the field.
        let each = boundaries.as_array_mut().unwrap().iter_mut();
        each.for_each(|boundary| boundary["boundary_mae_by_channel"] = Value::Array(Vec::new()));
        let boundaries: Vec<BoundaryResult> = serde_json::from_value(boundaries).unwrap();
        let layers = cell["layers"].as_u64().unwrap() as usize;
        let path_of_cell =
            build_program(layers, &serde_json::from_value::<Cut>(cell["removed"].clone()).unwrap(), &boundaries)
                .unwrap();
        if paths.contains(&path_of_cell) {
            continue;
        }
        paths.push(path_of_cell);
        let numbers = stored.numbers.iter().filter(|number| cell["cell"]["name"] == number.cell);
        let mut task_scores = Vec::new();
        let mut text_scores = Vec::new();
        for number in numbers {
            if let Some(right) = number.task_answers() {
                task_scores.push(right.iter().map(|&right| f64::from(u8::from(right))).collect::<Vec<f64>>());
            }
            text_scores.extend(number.losses().map(|losses| losses.iter().map(|loss| -loss).collect()));
        }
        right.push(task_scores);
        losses.push(text_scores);
    }
    (paths, [right, losses])
}

#[derive(Debug, Clone, PartialEq)]
pub struct SimulationResult {
    /// Fraction of races in which the best candidate survives. With two objectives, fraction of races in which the
    /// whole Pareto front survives.
    pub best_survives: f64,
    /// Fraction of races in which the leader's score is near the best.
    pub leader_near_best: f64,
    /// Median cost before the final scoring, as a fraction of the cost of the exhaustive grid. `items` counts items,
    /// and `layers` counts items times layers.
    pub items: f64,
    pub layers: f64,
    /// Mean number of candidates that survive a race.
    pub survivors: f64,
    /// Fraction of races in which one of two planted candidates with equal expected scores eliminates the other.
    pub tie_separated: f64,
    /// Mean difference between the winner's score in the race and its score on held-out items.
    pub selection_bias: f64,
}

/// Simulates a race for each of `seeds` orders of the items. With a single objective, also simulates a race with a
/// planted tie.
///
/// # Errors
/// Propagates errors from the race.
pub fn simulate(known: &KnownScores, seeds: u64, alpha: f64) -> Result<SimulationResult> {
    let mut races = Vec::new();
    let mut separated = 0;
    let ties = known.objectives.len() == 1 && known.paths.len() > 1;
    for seed in 0..seeds {
        let mut random = PythonRandom::new(seed);
        races.push(race(known, &mut random, alpha)?);
        if ties {
            let (planted, pair) = plant_tie(known, &mut random)?;
            let race = race(&planted, &mut random, alpha)?;
            separated += usize::from(race.exits.iter().any(|(out, rival)| pair.contains(out) && pair.contains(rival)));
        }
    }
    let fraction_of =
        |holds: &dyn Fn(&Race) -> bool| races.iter().filter(|race| holds(race)).count() as f64 / races.len() as f64;
    let everyone: Vec<usize> = (0..known.paths.len()).collect();
    let gains: Vec<_> = known.objectives.iter().map(|objective| objective.gains.clone()).collect();
    let best = pareto_front(&everyone, &gains);
    let merits: Vec<f64> = known.objectives[0].gains.iter().map(|gains| mean_of_means(gains)).collect();
    let best_merit = merits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // If several candidates are tied for the best score, each of them counts as the best.
    Ok(SimulationResult {
        best_survives: fraction_of(&|race: &Race| match known.objectives.len() {
            1 => race.alive.iter().any(|&candidate| merits[candidate] >= best_merit),
            _ => best.iter().all(|candidate| race.alive.contains(candidate)),
        }),
        leader_near_best: fraction_of(&|race| merits[race.leader] >= best_merit - known.objectives[0].near),
        items: median_of(&races, &|race| race.items),
        layers: median_of(&races, &|race| race.layers),
        survivors: mean_of(&races, &|race| race.alive.len() as f64),
        tie_separated: separated as f64 / seeds as f64,
        selection_bias: mean_of(&races, &|race| race.selection_bias),
    })
}

fn mean_of(races: &[Race], measure: &dyn Fn(&Race) -> f64) -> f64 {
    races.iter().map(measure).sum::<f64>() / races.len() as f64
}

fn median_of(races: &[Race], measure: &dyn Fn(&Race) -> f64) -> f64 {
    let mut all: Vec<f64> = races.iter().map(measure).collect();
    all.sort_by(f64::total_cmp);
    f64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2])
}

/// Outcome of one race.
struct Race {
    alive: Vec<usize>,
    leader: usize,
    /// Eliminated candidates, each with the rival that beat it.
    exits: Vec<(usize, usize)>,
    items: f64,
    layers: f64,
    selection_bias: f64,
}

fn race(known: &KnownScores, random: &mut PythonRandom, alpha: f64) -> Result<Race> {
    // Shuffle the items in the same order for every candidate.
    let mut shuffled: Vec<Vec<Vec<Vec<f64>>>> = Vec::new();
    let mut schedules = Vec::new();
    for objective in &known.objectives {
        let sizes: Vec<usize> = objective.gains[0].iter().map(Vec::len).collect();
        let orders = sizes.iter().map(|&size| random.sample(size, size)).collect::<Result<Vec<_>>>()?;
        shuffled.push(objective.gains.iter().map(|strata| reorder(strata, &orders)).collect());
        schedules.push(Schedule::new(sizes.iter().map(|&size| size - held_out_items(size)).collect(), objective.first));
    }
    let rounds = schedules.iter().map(Schedule::rounds).max().unwrap_or(1);
    let all: f64 = shuffled.iter().flat_map(|candidate| &candidate[0]).map(|values| values.len() as f64).sum();
    let mut alive: Vec<usize> = (0..known.paths.len()).collect();
    let layers_of = |alive: &[usize]| count_layers(alive.iter().map(|&candidate| &known.paths[candidate]));
    let all_layers = layers_of(&alive);
    let candidates = alive.len() as f64;
    let mut exits = Vec::new();
    let mut leader = 0;
    let mut before = 0.0;
    let mut items = 0.0;
    let mut spent = 0.0;
    for round in 0..rounds {
        let seen: Vec<Vec<usize>> = schedules.iter().map(|schedule| schedule.items_after(round)).collect();
        let now = seen.iter().flatten().sum::<usize>() as f64;
        items += (now - before) * alive.len() as f64;
        spent += (now - before) * layers_of(&alive);
        before = now;
        let gains: Vec<_> = shuffled.iter().zip(&seen).map(|(objective, seen)| seen_gains(objective, seen)).collect();
        if let Some(verdict) = eliminate(&alive, &gains, alpha / rounds as f64) {
            leader = verdict.leader;
            alive.retain(|candidate| verdict.out.iter().all(|exit| exit.candidate != *candidate));
            exits.extend(verdict.out.iter().map(|exit| (exit.candidate, exit.rival)));
        }
        if alive.len() == 1 {
            break;
        }
    }
    Ok(Race {
        alive,
        leader,
        exits,
        items: items / (all * candidates),
        layers: spent / (all * all_layers),
        selection_bias: selection_bias(&shuffled[0][leader]),
    })
}

/// Returns the gains in each stratum, rearranged in the given order.
fn reorder(strata: &[Vec<f64>], orders: &[Vec<usize>]) -> Vec<Vec<f64>> {
    strata.iter().zip(orders).map(|(values, order)| order.iter().map(|&item| values[item]).collect()).collect()
}

/// Returns the first `seen[stratum]` gains in each stratum, for each candidate.
fn seen_gains(candidates: &[Vec<Vec<f64>>], seen: &[usize]) -> Vec<Vec<Vec<f64>>> {
    candidates
        .iter()
        .map(|strata| strata.iter().zip(seen).map(|(stratum, &seen)| stratum[..seen].to_vec()).collect())
        .collect()
}

/// Returns the mean gain on the raced items minus the mean gain on the held-out items.
fn selection_bias(strata: &[Vec<f64>]) -> f64 {
    let parts = strata.iter().map(|values| values.split_at(values.len() - held_out_items(values.len())));
    let (raced, judged): (Vec<_>, Vec<_>) = parts.map(|(raced, judged)| (raced.to_vec(), judged.to_vec())).unzip();
    mean_of_means(&raced) - mean_of_means(&judged)
}

/// Plants a tie between the two best candidates. For each item, a fair coin flip decides whether they swap their
/// scores. Returns the changed scores and the two candidates.
fn plant_tie(known: &KnownScores, random: &mut PythonRandom) -> Result<(KnownScores, [usize; 2])> {
    let mut planted = known.clone();
    let merits: Vec<f64> = known.objectives[0].gains.iter().map(|gains| mean_of_means(gains)).collect();
    let mut order: Vec<usize> = (0..known.paths.len()).collect();
    order.sort_by(|a, b| merits[*b].total_cmp(&merits[*a]));
    let pair = [order[0], order[1]];
    for objective in &mut planted.objectives {
        for stratum in 0..objective.gains[0].len() {
            for item in 0..objective.gains[0][stratum].len() {
                if random.randint(0, 1)? == 1 {
                    let [a, b] = pair.map(|pair| objective.gains[pair][stratum][item]);
                    objective.gains[pair[0]][stratum][item] = b;
                    objective.gains[pair[1]][stratum][item] = a;
                }
            }
        }
    }
    Ok((planted, pair))
}
