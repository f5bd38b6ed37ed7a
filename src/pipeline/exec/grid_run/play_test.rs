//! Simulates hundreds of workers that run a grid in virtual time.
//!
//! Scheduling, leases and the store are the production code, on a simulated file server. The engine computes nothing.
//! It advances the clock by the time that the cost model predicts for a backbone with 8 billion weights.
//!
//! `GHOSTLAB_PLAY=1,8,64 cargo test --release --lib workers_share_backbones -- --nocapture` prints the rows of
//! benches/results/simulated/workers.csv for these numbers of workers.
#![allow(clippy::disallowed_macros, reason = "prints a table")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::*;
use crate::model::{CPU, Config, EngineRequest, Load};
use crate::pipeline::env::store_view::SURVEYS;
use crate::pipeline::exec::{Recorder, RunEnv};
use crate::pipeline::plan::ESTIMATES;
use crate::pipeline::stage::{self, operator::solve_flops};

mod grid_files;
mod paced_engine;
#[path = "../../../../crates/store/tests/simulated/mod.rs"]
mod simulated;
mod simulated_machine;
use grid_files::GridDimensions;
use simulated::network::{Client, Network, Server};
use simulated::played_time::Time;
use simulated_machine::{FailureRates, Pace, RandomDraws, Totals, WorkerProcess};

const LENGTH: usize = 8;
const CHANNELS: usize = 8;

/// Grid with 10,001 cells. Each of its 73 backbones is evaluated unpruned and with 8 depths × 17 recoveries.
/// Calibration uses 128 × 2,048 tokens, and scoring uses 64 windows of 2,048 tokens.
const LARGE: GridDimensions = GridDimensions {
    backbones: 73,
    ridges: 12,
    depths: "2, 3, 4, 5, 6, 7, 8, 9",
    sequences: 128,
    windows: 32,
    scale: 256,
};

/// Simulated hardware: 200 TFLOP/s, and 8 s to load 16 GB of weights.
const FLOPS: f64 = 200e12;
const LOADING_TIME: Duration = Duration::from_secs(8);

/// Delay before a worker that died or was preempted is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(60);

struct SimulatedGrid {
    _folder: tempfile::TempDir,
    grid: Grid,
    /// Config with the dimensions that determine the simulated times.
    shape: Config,
    scale: usize,
}

struct SimulationResult {
    server: Arc<Server>,
    /// Time until the last worker finished.
    took: Duration,
    /// Computing time in seconds, summed over all workers. Includes work that was discarded.
    computed: f64,
    /// Number of times that a backbone was loaded.
    loaded: usize,
    deaths: usize,
    preemptions: usize,
}

const ROOT: &str = "/store";

fn settings() -> RunSettings {
    let engine = EngineRequest { device: CPU.device.parse().ok(), ..EngineRequest::default() };
    RunSettings { engine, batch_tokens: Some(LENGTH), memory: Some(1 << 40), ..RunSettings::default() }
}

impl SimulatedGrid {
    fn new(dimensions: GridDimensions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        grid_files::write(folder.path(), dimensions);
        let grid = Grid::load(&folder.path().join("grid.yaml"), None, &[]).unwrap();
        let shape = Config::read_file(&folder.path().join("shape.json")).unwrap();
        Self { _folder: folder, grid, shape, scale: dimensions.scale }
    }

    /// Returns the plan for the grid on a server that already stores all tokens.
    fn plan(&self, server: &Arc<Server>) -> Plan<'_> {
        let store =
            Store::open_on(Client::new(server, Network::default(), 1_000_000), Path::new(ROOT), stage::STORE_WORDS);
        let plan = Plan::new(&self.grid, &store, settings()).unwrap();
        crate::pipeline::stage::tokens::tokenize_missing(
            plan.grid_inputs(),
            &plan.backbones,
            &store,
            &(),
            &AtomicBool::new(false),
        )
        .unwrap();
        plan
    }

    /// Returns the total time for the plan in seconds, as estimated by the cost model.
    fn planned_seconds(&self, server: &Arc<Server>) -> f64 {
        let mut plan = self.plan(server);
        let store =
            Store::open_on(Client::new(server, Network::default(), 1_000_001), Path::new(ROOT), stage::STORE_WORDS);
        let state = StoreView::survey(&plan, &store);
        plan.backbones.iter_mut().for_each(|backbone| backbone.config = self.shape.clone());
        let estimate = Estimate::from_plan(&plan, &state, u64::MAX, u64::MAX).unwrap();
        estimate.jobs.iter().map(|job| job.cost.shared).sum::<f64>() / FLOPS
    }

    /// Returns the estimated number of FLOPs for solving each operator, by the hash of the operator's key.
    fn solve_flops_by_key(&self, plan: &Plan<'_>) -> BTreeMap<String, f64> {
        let sequences = plan.backbones[0].calibrations[0].calibration.sequences;
        let load = Load::windows(sequences * LENGTH * self.scale, LENGTH * self.scale);
        let solves = plan.variants().filter_map(|(_, variant)| {
            let recovery = &*plan.grid.cells[variant.cell].recovery.as_ref()?.rule;
            let flops = solve_flops(&self.shape, recovery, &load, variant.fitted(), 1);
            Some((variant.operator.as_ref()?.hash().to_string(), flops))
        });
        solves.collect()
    }

    fn simulate(&self, workers: usize, rates: FailureRates) -> SimulationResult {
        let server = Arc::<Server>::default();
        let plan = self.plan(&server);
        let totals = Arc::<Totals>::default();
        let machines = AtomicUsize::new(1);
        let took = Time::play(workers, |time, worker| {
            let mut draws = RandomDraws(rates.seed * 1_000_003 + worker as u64);
            // The scheduler starts 50 workers per second.
            time.sleep(worker, Duration::from_millis(20 * worker as u64));
            loop {
                let pace = Pace {
                    down: AtomicBool::new(false),
                    halted: AtomicU64::new(0),
                    shape: self.shape.clone(),
                    scale: self.scale,
                    time: Arc::clone(time),
                    worker,
                    totals: Arc::clone(&totals),
                };
                let machine = machines.fetch_add(1, Relaxed);
                let process =
                    WorkerProcess::new(Arc::new(pace), &server, machine, rates, self.solve_flops_by_key(&plan));
                if self.run_process(&plan, &process, &mut draws) {
                    break;
                }
                time.sleep(worker, RESTART_DELAY);
            }
        });
        SimulationResult {
            took,
            computed: totals.computed.load(Relaxed) as f64 / 1e6,
            loaded: read_count(&totals.loaded),
            deaths: read_count(&totals.deaths),
            preemptions: read_count(&totals.preemptions),
            server,
        }
    }

    /// Runs one worker process. Returns false if the process died or was preempted.
    fn run_process(&self, plan: &Plan<'_>, process: &WorkerProcess, draws: &mut RandomDraws) -> bool {
        let WorkerProcess { disk, pace, stop, rates, .. } = process;
        let _preempted = process.schedule_failure(draws, rates.preempted, process.preemption());
        let _killed = process.schedule_failure(draws, rates.killed, process.kill());
        let _halted = process.schedule_failure(draws, rates.halted, process.pause());
        let done = {
            let store = Store::open_on(Arc::<Client>::clone(disk), Path::new(ROOT), stage::STORE_WORDS);
            self.run_worker(plan, &store, pace, stop)
        };
        match done {
            Ok(()) => true,
            Err(_) if disk.is_down() => {
                pace.totals.deaths.fetch_add(1, Relaxed);
                false
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                pace.totals.preemptions.fetch_add(1, Relaxed);
                false
            }
            Err(error) => panic!("worker {}: {error}", pace.worker),
        }
    }

    fn run_worker(&self, plan: &Plan<'_>, store: &Store, pace: &Arc<Pace>, stop: &AtomicBool) -> Result<()> {
        let recorder = Recorder::for_worker(&self.grid, store, &FailureReporter)?;
        reserve(plan, store, &recorder, stop)?;
        let state = StoreView::survey(plan, store);
        let settings = settings();
        let env = RunEnv { store, settings, reporter: &recorder, stop };
        let load = |backbone: &BackbonePlan, _: u64, _: Option<u64>| Ok(paced_engine::load(backbone, pace));
        execute(plan, &new_context(plan, &state, env, Some(WorkerLimits::default()), &load), &state)
    }
}

fn read_count(counter: &AtomicUsize) -> usize {
    counter.load(Relaxed)
}

/// Reporter that panics if a simulated job fails.
struct FailureReporter;

impl Reporter for FailureReporter {
    fn event(&self, event: Event) {
        if let Event::Failed { cell, reason } = event {
            panic!("{cell}: {reason}");
        }
    }
}

/// Reads the distinct payloads of the objects of all variants, except for JSON files. Every simulation must produce the
/// same payloads.
fn read_results(grid: &SimulatedGrid, result: &SimulationResult) -> Vec<(PathBuf, Vec<u8>)> {
    let plan = grid.plan(&result.server);
    let store =
        Store::open_on(Client::new(&result.server, Network::default(), 2_000_000), Path::new(ROOT), stage::STORE_WORDS);
    let mut payloads = Vec::new();
    for key in plan.variants().flat_map(|(_, variant)| variant.keys()) {
        let ghostlab_store::Lookup::Intact(artifact) = store.get(key) else { panic!("not intact: {}", key.short()) };
        for name in artifact.payloads().filter(|name| !name.ends_with(".json")) {
            payloads.push((Path::new(key.hash()).join(name), artifact.read(name).unwrap()));
        }
    }
    payloads.sort();
    payloads.dedup();
    payloads
}

const SMALL: GridDimensions =
    GridDimensions { backbones: 2, ridges: 1, depths: "4, 7", sequences: 8, windows: 12, scale: 1 };

#[test]
fn several_workers_match_one_worker_without_duplicate_work() {
    let grid = SimulatedGrid::new(SMALL);
    let alone = grid.simulate(1, FailureRates::default());
    let planned = grid.planned_seconds(&alone.server);
    // The estimate is slightly too high. It assumes a pass over all layers, and a separate step for each operator.
    assert!((0.95..1.05).contains(&(alone.computed / planned)), "{} s of {planned}", alone.computed);
    assert_eq!(alone.loaded, 2);
    let expected = read_results(&grid, &alone);
    for workers in [2, 5] {
        let result = grid.simulate(workers, FailureRates::default());
        assert!(read_results(&grid, &result) == expected, "{workers} workers produce different results");
        assert!((result.computed - alone.computed).abs() < 1e-3 * planned, "{workers} workers did work twice");
        assert_eq!(result.server.stolen_leases(), 0);
        for folder in ["claims", "processes", "journals", "drafts", "attempts"] {
            assert!(result.server.names(&Path::new(ROOT).join(folder)).is_empty(), "{workers}: {folder}");
        }
    }
}

#[test]
fn preflight_surveys_and_estimates_once() {
    let grid = SimulatedGrid::new(SMALL);
    let server = Arc::<Server>::default();
    let plan = grid.plan(&server);
    let store = Store::open_on(Client::new(&server, Network::default(), 1), Path::new(ROOT), stage::STORE_WORDS);
    let before = (SURVEYS.get(), ESTIMATES.get());
    let env = RunEnv { settings: settings(), ..RunEnv::new(&store) };
    let found = preflight(&plan, &env, TargetMachine::Local, &|_, _| ()).unwrap();
    assert_eq!((SURVEYS.get(), ESTIMATES.get()), (before.0 + 1, before.1 + 1));
    // Each backbone has three jobs: one calibration and two texts.
    assert_eq!(found.estimate.jobs.len(), 2 * 3);
    assert!(!remaining_work(&plan, &found.estimate).is_empty());
}

#[test]
fn paused_workers_do_not_remove_leases_of_others() {
    let grid = SimulatedGrid::new(GridDimensions { scale: 256, ..SMALL });
    let expected = read_results(&grid, &grid.simulate(1, FailureRates::default()));
    let mut stolen_leases = 0;
    for seed in 1..=4 {
        // At this rate, each worker is paused about every two minutes.
        let result = grid.simulate(5, FailureRates { halted: 3000.0, seed, ..FailureRates::default() });
        assert!(read_results(&grid, &result) == expected, "seed {seed}: the result differs");
        assert_eq!(result.server.removed(), 0, "seed {seed}: a resumed process removed another process's lease");
        for folder in ["claims", "processes", "journals", "drafts", "uses"] {
            let left = result.server.names(&Path::new(ROOT).join(folder));
            assert!(left.is_empty(), "seed {seed}: {folder} has {left:?}");
        }
        stolen_leases += result.server.stolen_leases();
    }
    assert!(stolen_leases > 0, "no process was paused during its work");
}

#[test]
fn results_survive_faulty_network_and_dying_workers() {
    let grid = SimulatedGrid::new(GridDimensions { scale: 256, ..SMALL });
    let alone = grid.simulate(1, FailureRates::default());
    let expected = read_results(&grid, &alone);
    for seed in 1..=3 {
        let network = Network { cache: 60, lies: 5 };
        // At these rates, each worker is interrupted about every three minutes and killed about every six minutes.
        let result = grid.simulate(6, FailureRates { network, preempted: 2000.0, killed: 1000.0, halted: 0.0, seed });
        assert!(read_results(&grid, &result) == expected, "seed {seed}: the result differs");
        assert_eq!(result.server.stolen_leases(), 0, "seed {seed}: the lease of a live process was stolen");
        let times = result.computed / alone.computed;
        println!(
            "seed {seed}: {times:.2} times the work; {} deaths, {} preemptions; {:.0} s, {:.0} s with one worker",
            result.deaths,
            result.preemptions,
            result.took.as_secs_f64(),
            alone.took.as_secs_f64()
        );
        // A worker may score a text again, because it caches its listing of the store for up to a minute and may not
        // see new scores.
        assert!(times < 6.0, "seed {seed}: {times}");
    }
}

/// Simulates [`LARGE`] with the numbers of workers and backbones given in `GHOSTLAB_PLAY`. `64/9` stands for 64 workers
/// and nine backbones, and `64` for all 73 backbones. The default is `6/3`.
#[test]
fn workers_share_backbones_with_little_waste() {
    let requested = std::env::var("GHOSTLAB_PLAY").ok();
    for play in requested.as_deref().unwrap_or("6/3").split(',') {
        let (workers, backbones) = play.split_once('/').unwrap_or((play, "73"));
        let [workers, backbones] = [workers, backbones].map(|text| text.parse().unwrap());
        let grid = SimulatedGrid::new(GridDimensions { backbones, ..LARGE });
        let began = Instant::now();
        let rates = FailureRates { preempted: 1.0, killed: 1.0, seed: 1, ..FailureRates::default() };
        let result = grid.simulate(workers, rates);
        println!(
            "{workers} workers: {:.0} s, computed {:.0} s, loaded {}, {} operations, {} deaths, {} preemptions; took {:.0} s",
            result.took.as_secs_f64(),
            result.computed,
            result.loaded,
            result.server.operations(),
            result.deaths,
            result.preemptions,
            began.elapsed().as_secs_f64()
        );
        result.server.by_kind().iter().take(16).for_each(|(kind, count)| println!("  {count} {kind}"));
        assert_eq!(result.server.stolen_leases(), 0);
        if requested.is_none() {
            // Failures are rare at these rates, so hardly any work is repeated.
            let alone = grid.simulate(1, FailureRates::default());
            assert!(read_results(&grid, &alone) == read_results(&grid, &result), "the result differs");
            assert!(result.computed < 1.02 * alone.computed, "{} s of {}", result.computed, alone.computed);
            let speed = alone.took.as_secs_f64() / result.took.as_secs_f64();
            assert!(speed > 4.0, "{speed}");
            // Workers do not read each other's scores, so the number of file operations hardly depends on the number of
            // workers.
            let [one, six] = [&alone, &result].map(|run| run.server.operations());
            assert!(six < one * 3 / 2, "{six} operations of six workers, {one} of one");
        }
    }
}
