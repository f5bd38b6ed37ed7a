//! `ghostlab plan GRID.yaml`: what a run would do, and why, and what it would cost.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Args;

use super::grid_args::GridArgs;
use super::progress;
use super::units::{bytes, cells, columns, flops, seconds};
use crate::error::Result;
use crate::exec::{self, RunRecord, Settings};
use crate::files::disk;
use crate::grid::Grid;
use crate::linalg::gemm;
use crate::machine;
use crate::plan::{BackbonePlan, Estimate, KeyState, Plan, Reason, Reasons, StoreState, Trials, Variant};
use crate::store::{ArtifactKind, Key, Store};

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    asked: GridArgs,
    /// List every cell that would run, not only the first.
    #[arg(long)]
    all: bool,
}

/// Cells that are listed where not all are asked for.
const LISTED: usize = 20;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (grids, artifact) = arguments.asked.work()?;
    arguments.asked.start_threads()?;
    let store = arguments.asked.store()?;
    if let Some(artifact) = artifact {
        println!("an artifact: what `reproduce {}` runs, which is no more than it shows", artifact.name);
    }
    for (place, grid) in grids.iter().enumerate() {
        if place + 1 < grids.len() {
            println!("first whether the dense backbones are the paper's (--no-gate goes without):");
        }
        show(grid, &store, arguments.all)?;
        if place + 1 < grids.len() {
            println!("\nthen:");
        }
    }
    println!("downloads: none; all inputs are on this machine");
    Ok(ExitCode::SUCCESS)
}

fn show(grid: &Grid, store: &Store, all: bool) -> Result<()> {
    let settings = Settings::default();
    let plan = Plan::new(grid, store, settings.batch_tokens)?;
    // Tokens are made here: what a text amounts to is known when it is tokenised, and what cannot be is said now.
    exec::prepare(&plan, store, &*progress::reporter(false), &AtomicBool::new(false))?;
    let state = StoreState::read(&plan, store);
    let (reasons, estimate) =
        (Reasons::new(store, &plan), Estimate::of(&plan, &state, settings.spool_bytes, settings.memory_bytes())?);
    let left: Vec<(&BackbonePlan, &Variant)> = plan.variants().filter(|(_, v)| !state.complete(v)).collect();

    let profile = grid.profile.as_ref().map_or(String::new(), |profile| format!(", profile {profile}"));
    println!("grid {} ({}{profile}): {}", grid.name, grid.file.display(), cells(grid.cells.len()));
    println!("{} complete, {} to run\n", grid.cells.len() - left.len(), left.len());
    print!("{}", artifacts(&plan, &state, &reasons, store)?);
    if !left.is_empty() {
        println!("\njobs:");
        for backbone in &plan.backbones {
            jobs(&plan, backbone, &state, store)?.iter().for_each(|job| println!("  {job}"));
        }
        println!("\ncells to run:");
        let most = if all { left.len() } else { LISTED };
        for (backbone, variant) in left.iter().take(most) {
            println!("  {}", grid.cells[variant.cell]);
            for line in why(backbone, variant, &state, &reasons) {
                println!("    {line}");
            }
        }
        if left.len() > most {
            println!("  … and {} more (--all lists them)", left.len() - most);
        }
    }
    println!("\n{}", costs(&estimate, store));
    Ok(())
}

/// The jobs of one backbone, in the order in which they run.
fn jobs(plan: &Plan<'_>, backbone: &BackbonePlan, state: &StoreState, store: &Store) -> Result<Vec<String>> {
    let mut jobs = Vec::new();
    let has = |key: &Option<Arc<Key>>| key.as_ref().is_none_or(|key| state.has(key));
    for (place, calibration) in backbone.calibrations.iter().enumerate() {
        let own = backbone.variants.iter().filter(|variant| variant.calibration == Some(place));
        let own: Vec<&Variant> = own.collect();
        let missing = own.iter().filter(|variant| !has(&variant.selection) || !has(&variant.operator)).count();
        for Trials { criterion, needed, stored } in Trials::of(plan, backbone, place, state, store)? {
            if stored < needed {
                jobs.push(format!(
                    "choose layers of {} by {criterion} on {}: {} trials",
                    backbone.name,
                    calibration.calibration,
                    needed - stored
                ));
            }
        }
        if missing > 0 {
            jobs.push(format!("calibrate {} on {}: repair {}", backbone.name, calibration.calibration, cells(missing)));
        }
        for trained in own.iter().filter_map(|variant| variant.trained.as_ref()).filter(|of| !state.has(&of.key)) {
            let text = &backbone.calibrations[trained.text].calibration;
            jobs.push(format!("fine-tune an operator of {} on {text}", backbone.name));
        }
    }
    for (place, evaluation) in backbone.evaluations.iter().enumerate() {
        let missing = backbone.variants.iter().filter(|variant| !state.has(&variant.scores[place])).count();
        if missing > 0 {
            jobs.push(format!("score {} on {}: {}", backbone.name, evaluation.subject, cells(missing)));
        }
    }
    for (place, prompt) in backbone.latencies.iter().enumerate() {
        if backbone.variants.iter().any(|variant| !state.has(&variant.latencies[place])) {
            // Those of one comparison are measured together.
            jobs.push(format!("time {} over {prompt}: {}", backbone.name, cells(backbone.variants.len())));
        }
    }
    Ok(jobs)
}

/// How the artifacts of each kind stand, and why what is missing is.
fn artifacts(plan: &Plan<'_>, state: &StoreState, reasons: &Reasons, store: &Store) -> Result<String> {
    let mut keys: BTreeMap<ArtifactKind, BTreeMap<String, Arc<Key>>> = BTreeMap::new();
    let of_variants = plan.variants().flat_map(|(_, variant)| variant.keys());
    for key in of_variants.chain(plan.backbones.iter().flat_map(BackbonePlan::tokens)) {
        keys.entry(key.kind()).or_default().insert(key.hash().to_string(), Arc::clone(key));
    }
    let head = ["artifacts", "needed", "stored", "to make", "why"].map(str::to_string).to_vec();
    let mut rows = vec![head];
    for (kind, keys) in keys {
        let missing: Vec<&Arc<Key>> = keys.values().filter(|key| !state.has(key)).collect();
        let mut counted: BTreeMap<String, usize> = BTreeMap::new();
        // Of what was never made there is nothing to tell.
        for reason in missing.iter().map(|key| reasons.of(key, state)).filter(|reason| *reason != Reason::First) {
            *counted.entry(reason.to_string()).or_default() += 1;
        }
        let mut counted: Vec<(String, usize)> = counted.into_iter().collect();
        counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut whys = counted.into_iter().map(|(reason, count)| format!("{count} {reason}"));
        rows.push(vec![
            kind.name().to_string(),
            keys.len().to_string(),
            (keys.len() - missing.len()).to_string(),
            missing.len().to_string(),
            whys.next().unwrap_or_default(),
        ]);
        rows.extend(whys.map(|why| vec![String::new(), String::new(), String::new(), String::new(), why]));
    }
    let (mut needed, mut stored) = (0, 0);
    for backbone in &plan.backbones {
        for place in 0..backbone.calibrations.len() {
            for trials in Trials::of(plan, backbone, place, state, store)? {
                (needed, stored) = (needed + trials.needed, stored + trials.stored);
            }
        }
    }
    if needed > 0 {
        let counts = [needed, stored, needed - stored].map(|count| count.to_string());
        rows.push([&["trials".to_owned()][..], &counts, &[String::new()]].concat());
    }
    Ok(columns(&rows, &[1, 2, 3]))
}

/// What is missing of one cell, and why, where something like it is stored. What follows from a missing selection or
/// operator needs no reason of its own.
fn why(backbone: &BackbonePlan, variant: &Variant, state: &StoreState, reasons: &Reasons) -> Vec<String> {
    let told = |what: &str, key: &Key| match reasons.of(key, state) {
        Reason::First => what.to_owned(),
        reason => format!("{what}: {reason}"),
    };
    let trained = variant.trained.as_ref().map(|trained| &trained.key);
    let made = [
        ("selection", variant.selection.as_ref()),
        ("operator", variant.operator.as_ref()),
        ("trained operator", trained),
    ];
    let first = made.iter().find_map(|(name, key)| {
        let key = key.filter(|key| !state.has(key))?;
        Some(told(name, key))
    });
    let missing: Vec<_> = backbone.evaluations.iter().zip(&variant.scores).filter(|(_, key)| !state.has(key)).collect();
    let timed = backbone.latencies.iter().zip(&variant.latencies).filter(|(_, key)| !state.has(key));
    let timed: Vec<String> = timed.map(|(prompt, _)| prompt.to_string()).collect();
    let damaged = missing.iter().any(|(_, key)| matches!(state.of(key), KeyState::Damaged(_)));
    let mut lines: Vec<String> = first.into_iter().collect();
    if lines.is_empty() || damaged {
        // Those that have a reason a line each, the others on one.
        let (plain, reasoned): (Vec<_>, Vec<_>) =
            missing.iter().partition(|(_, key)| reasons.of(key, state) == Reason::First);
        lines.extend(reasoned.iter().map(|(of, key)| told(&of.subject.to_string(), key)));
        let plain: Vec<String> = plain.iter().map(|(of, _)| of.subject.to_string()).collect();
        if !plain.is_empty() {
            lines.push(format!("scored on {}", plain.join(", ")));
        }
    } else if !missing.is_empty() {
        let subjects: Vec<String> = missing.iter().map(|(of, _)| of.subject.to_string()).collect();
        lines.push(format!("then scored on {}", subjects.join(", ")));
    }
    if !timed.is_empty() {
        lines.push(format!("timed over {}", timed.join(", ")));
    }
    lines
}

fn costs(estimate: &Estimate, store: &Store) -> String {
    let Estimate { naive, shared, left, memory, disk, spool } = *estimate;
    let mut lines = vec![format!(
        "cost: {} cell by cell, {} shared ({:.0} %), {} left to do",
        flops(naive),
        flops(shared),
        100.0 * shared / naive.max(1.0),
        flops(left)
    )];
    if left > 0.0 {
        let (rate, how) = match RunRecord::rate(store) {
            Some(rate) => (rate, "as in the last run with this store"),
            None => (probe(), "guessed from a short matrix product: the first run measures"),
        };
        lines.push(format!("time: about {} at {}/s ({how})", seconds(left / rate), flops(rate)));
        lines.push(format!("memory: about {} at the peak; {} are free", bytes(memory), bytes(machine::free_memory())));
        let room = disk::free(store.root()).map_or(String::new(), |free| format!("; {} are free", bytes(free)));
        lines.push(format!("disk: about {} to stay, {} for a while{room}", bytes(disk), bytes(spool)));
    }
    lines.join("\n")
}

/// Floating-point operations a second of a run, from those of a plain product: about half the time goes elsewhere.
fn probe() -> f64 {
    const SIZE: usize = 768;
    let x = vec![1.0f32; SIZE * SIZE];
    let mut y = vec![0.0f32; SIZE * SIZE];
    let (mut products, started) = (0.0, Instant::now());
    while products < 3.0 || started.elapsed().as_millis() < 60 {
        let (a, b) = (gemm::MatrixView::rows(&x, SIZE, SIZE), gemm::MatrixView::rows(&x, SIZE, SIZE));
        gemm::gemm_parallel(gemm::MatrixViewMut::rows(&mut y, SIZE, SIZE), gemm::Update::Replace, a, b);
        products += 1.0;
    }
    0.5 * products * 2.0 * (SIZE as f64).powi(3) / started.elapsed().as_secs_f64()
}
