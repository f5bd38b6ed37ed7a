//! Simulates the races of `ghostlab search` on stored scores in many item orders. Measures how often a race eliminates
//! the best candidate, and how many items it scores.
//!
//! `cargo bench --bench search [-- SEEDS FOLDER …]` simulates 200 orders of the recorded results by default. Each
//! folder must be a results folder with `numbers.json` and `run.json`. If folders are given, the candidates of all
//! depths also race together. `docs/search.md` explains the numbers in `benches/results/simulated/search.csv`.
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ghostlab::results::StoredResults;
use ghostlab::search::{FIRST_DOCUMENTS, FIRST_WINDOWS};
use serde_json::Value;

#[path = "../tests/common/simulation.rs"]
mod simulation;
use simulation::{KnownObjective, KnownScores, SimulationResult, read_candidates, simulate};

const ALPHA: f64 = 0.05;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let seeds = arguments.first().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    let mut folders: Vec<PathBuf> = arguments.iter().skip(1).map(PathBuf::from).collect();
    let together = !folders.is_empty();
    if !together {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        folders = ["table2", "seeds", "beyond", "table3"].map(|name| results.join(name).join("tiny")).to_vec();
    }
    println!(
        "| grid | candidates × items | best survives | winner near | items % | items × layers % | survivors | tie parted | race − held-out |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut all: BTreeMap<(&str, String), Vec<SimulationResult>> = BTreeMap::new();
    for folder in &folders {
        for (kind, known) in read_settings(folder, together) {
            let simulated = simulate(&known, seeds, ALPHA).unwrap();
            let items: usize = known.objectives.iter().flat_map(|objective| &objective.gains[0]).map(Vec::len).sum();
            println!(
                "| {} {kind} | {} × {items} | {:.3} | {:.3} | {:.0} | {:.0} | {:.1} | {} | {:+.4} |",
                known.name,
                known.paths.len(),
                simulated.best_survives,
                simulated.leader_near_best,
                100.0 * simulated.items,
                100.0 * simulated.layers,
                simulated.survivors,
                if kind == "both" { "—".to_owned() } else { format!("{:.3}", simulated.tie_separated) },
                simulated.selection_bias
            );
            let artifact = known.name.split(' ').next().unwrap_or_default().to_owned();
            all.entry((kind, artifact)).or_default().push(simulated);
        }
    }
    println!();
    for ((kind, artifact), simulations) in &all {
        let max_separated = simulations.iter().map(|one| one.tie_separated).fold(0.0, f64::max);
        println!(
            "{kind}, {artifact} ({} grids): best survives in at least {:.3}, winner near the best in at least {:.3}; median items {:.0} %, items × layers {:.0} %; a tie is separated in at most {max_separated:.3}",
            simulations.len(),
            min_of(|simulated| simulated.best_survives, simulations),
            min_of(|simulated| simulated.leader_near_best, simulations),
            100.0 * median(simulations.iter().map(|simulated| simulated.items)),
            100.0 * median(simulations.iter().map(|simulated| simulated.layers)),
        );
    }
}

fn min_of(field: fn(&SimulationResult) -> f64, simulations: &[SimulationResult]) -> f64 {
    simulations.iter().map(field).fold(f64::INFINITY, f64::min)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    f64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2])
}

/// Reads the candidates for each setting in a results folder, with scores by accuracy, by loss, and by both. A
/// setting is a backbone at one depth. `together` adds a setting with all depths of each backbone.
fn read_settings(folder: &Path, together: bool) -> Vec<(&'static str, KnownScores)> {
    let stored = StoredResults::read(folder).unwrap();
    let run: Value = serde_json::from_slice(&std::fs::read(folder.join("run.json")).unwrap()).unwrap();
    let mut settings: Vec<(String, Vec<&Value>)> = Vec::new();
    for cell in run["cells"].as_array().unwrap() {
        if cell["cell"]["depth"] == 0 || !cell["failure"].is_null() {
            continue;
        }
        let backbone = format!("{} {}", stored.name, cell["cell"]["backbone"].as_str().unwrap());
        let name = format!("{backbone} −{}", cell["cell"]["depth"]);
        for name in [Some(name), together.then(|| format!("{backbone}, all depths"))].into_iter().flatten() {
            match settings.iter_mut().find(|(known, _)| *known == name) {
                Some((_, cells)) => cells.push(cell),
                None => settings.push((name, vec![cell])),
            }
        }
    }
    let mut grids = Vec::new();
    for (name, cells) in settings {
        let (paths, [right, losses]) = read_candidates(&stored, &cells);
        let accuracy =
            is_complete(&right).then_some(KnownObjective { first: FIRST_DOCUMENTS, gains: right, near: 0.01 });
        let loss = is_complete(&losses).then_some(KnownObjective { first: FIRST_WINDOWS, gains: losses, near: 0.01 });
        let scores =
            |objectives: Vec<KnownObjective>| KnownScores { name: name.clone(), paths: paths.clone(), objectives };
        grids.extend(accuracy.clone().map(|one| ("accuracy", scores(vec![one]))));
        grids.extend(loss.clone().map(|one| ("loss", scores(vec![one]))));
        grids.extend(accuracy.zip(loss).map(|(one, other)| ("both", scores(vec![one, other]))));
    }
    grids
}

fn is_complete(gains: &[Vec<Vec<f64>>]) -> bool {
    gains.len() > 1 && gains.iter().all(|gains| !gains.is_empty())
}
