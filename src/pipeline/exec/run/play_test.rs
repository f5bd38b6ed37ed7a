//! Simulates hundreds of workers on a grid in virtual time.
//!
//! Only the arithmetic is simulated: the engine advances the clock by the cost model's time for a backbone with 8
//! billion weights.
//!
//! `GHOSTLAB_PLAY=1,8,64 cargo test --release --lib workers_share_backbones -- --nocapture` prints the table in
//! benches/results/simulated/workers.csv for these numbers of workers.
#![allow(clippy::disallowed_macros, reason = "prints a table")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

use super::*;
use crate::error::Error;
use crate::model::{
    Batch, BatchObserver, CPU, Config, Engine, EngineId, EngineRequest, HostRows, Load, Observer, Prediction,
    ResidualStream, Step as ProgramStep, Trie,
};
use crate::pipeline::exec::Recorder;
use crate::pipeline::plan::job_costs;
use crate::pipeline::stage::{self, operator::solve_flops};

#[path = "../../../../crates/store/tests/simulated/mod.rs"]
mod simulated;
use simulated::network::{Client, Network, Server};
use simulated::played_time::{Time, Timer};

const LENGTH: usize = 8;
const LAYERS: usize = 32;
const CHANNELS: usize = 8;

/// Dimensions of a simulated grid.
#[derive(Clone, Copy)]
struct Grounds {
    backbones: usize,
    /// Number of values of an option, which multiplies the recoveries.
    ridges: usize,
    depths: &'static str,
    sequences: usize,
    /// Windows per text.
    windows: usize,
    /// Real tokens per simulated token.
    scale: usize,
}

/// 10,001 cells: 73 backbones, each dense and with 8 depths × 17 recoveries, calibrated on 128 × 2,048 tokens and
/// scored on 64 windows of 2,048.
const LARGE: Grounds =
    Grounds { backbones: 73, ridges: 12, depths: "2, 3, 4, 5, 6, 7, 8, 9", sequences: 128, windows: 32, scale: 256 };

/// Simulated hardware: 200 TFLOP/s, and 8 s to load 16 GB of weights at 2 GB/s.
const FLOPS: f64 = 200e12;
const LOADING: Duration = Duration::from_secs(8);

/// Failure rates of machines and the network.
#[derive(Clone, Copy, Default)]
struct Weather {
    network: Network,
    /// Share of workers interrupted and share killed per hour.
    preempted: f64,
    killed: f64,
    /// Share of workers paused beyond the stale timeout, per hour.
    halted: f64,
    seed: u64,
}

/// Duration of a pause, longer than the stale timeout.
const HALT: Duration = Duration::from_secs(400);

/// Delay until an ended worker is rescheduled.
const AGAIN: Duration = Duration::from_secs(60);

struct RunState {
    _folder: tempfile::TempDir,
    grid: Grid,
    /// Model shape that determines the simulated times.
    shape: Config,
    scale: usize,
}

/// Totals over all workers.
#[derive(Default)]
struct Tally {
    /// Computing time in microseconds, including discarded work.
    computed: AtomicU64,
    loaded: AtomicUsize,
    deaths: AtomicUsize,
    preemptions: AtomicUsize,
}

/// Outcome of a simulation.
struct Played {
    server: Arc<Server>,
    /// Time until the last worker ended.
    took: Duration,
    computed: f64,
    loaded: usize,
    deaths: usize,
    preemptions: usize,
}

const ROOT: &str = "/store";

fn settings() -> RunSettings {
    let engine = EngineRequest { device: CPU.device.parse().ok(), ..EngineRequest::default() };
    RunSettings { engine, batch_tokens: Some(LENGTH), memory: Some(1 << 40), ..RunSettings::default() }
}

fn config(hidden: usize, heads: [usize; 3], intermediate: usize, vocab: usize) -> Value {
    let [heads, kv, dim] = heads;
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "intermediate_size": intermediate,
        "num_hidden_layers": LAYERS, "vocab_size": vocab, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "tie_word_embeddings": false,
        "attention_bias": false, "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2
    })
}

/// Returns placeholder weights that differ between backbones.
fn weights(number: usize) -> Vec<u8> {
    let mut shapes =
        vec![("model.embed_tokens.weight".to_owned(), vec![300, 8]), ("lm_head.weight".into(), vec![300, 8])];
    shapes.push(("model.norm.weight".into(), vec![8]));
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![8]),
            ("post_attention_layernorm", vec![8]),
            ("self_attn.q_proj", vec![8, 8]),
            ("self_attn.k_proj", vec![4, 8]),
            ("self_attn.v_proj", vec![4, 8]),
            ("self_attn.o_proj", vec![8, 8]),
            ("mlp.gate_proj", vec![16, 8]),
            ("mlp.up_proj", vec![16, 8]),
            ("mlp.down_proj", vec![8, 16]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    // The tensors identify a backbone, so the first value must differ.
    let mut zeros = vec![0; 4 * 300 * 8];
    zeros[..4].copy_from_slice(&(number as f32).to_le_bytes());
    let number = [("number".to_owned(), number.to_string())].into_iter().collect();
    safetensors::serialize(
        shapes.into_iter().map(|(name, shape)| {
            let bytes = &zeros[..4 * shape.iter().product::<usize>()];
            (name, TensorView::new(Dtype::F32, shape, bytes).unwrap())
        }),
        Some(number),
    )
    .unwrap()
}

impl RunState {
    fn new(grounds: Grounds) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let vocab: serde_json::Map<String, Value> = (0..300).map(|i| (format!("w{i}"), json!(i))).collect();
        let tokenizer = json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
        });
        let mut names = Vec::new();
        for number in 0..grounds.backbones {
            let name = format!("b{number}");
            fs::create_dir(path(&name)).unwrap();
            let file = |file: &str| path(&name).join(file);
            fs::write(file("config.json"), config(CHANNELS, [2, 1, 4], 16, 300).to_string()).unwrap();
            fs::write(file("tokenizer.json"), tokenizer.to_string()).unwrap();
            fs::write(file("model.safetensors"), weights(number)).unwrap();
            names.push(name);
        }
        // Sizes of Llama-3.1-8B.
        fs::write(path("shape.json"), config(4096, [32, 8, 128], 14336, 128_256).to_string()).unwrap();
        for (text, step) in [("one.txt", 31), ("two.txt", 37)] {
            let words: Vec<String> = (0..4000).map(|i| format!("w{}", i * step % 299)).collect();
            fs::write(path(text), words.join(" ")).unwrap();
        }
        let backbones: String = names.iter().map(|name| format!("  {name}: {{path: {name}}}\n")).collect();
        let ridges: String =
            (0..grounds.ridges).map(|i| format!("  - {{name: replaceme-ls, alpha: {}}}\n", i + 1)).collect();
        let grid = format!(
            "backbones:\n{backbones}corpora:\n  one: {{path: one.txt, rule: wikitext2, limit: {windows}}}\n  \
             two: {{path: two.txt, rule: wikitext2, limit: {windows}}}\nbackbone: [{names}]\n\
             criterion: [llm-streamline]\ndepth: [{depths}]\nrecovery:\n  - none\n  - prune-and-comp\n  \
             - linearpatch-diag\n  - ghosted\n  - {{name: ghosted, solver: svd}}\n{ridges}\
             calibration: [{{corpus: one, sequences: {sequences}, length: {LENGTH}}}]\n\
             evaluate:\n  perplexity: [{{corpus: one, length: {LENGTH}}}, {{corpus: two, length: {LENGTH}}}]\n",
            windows = grounds.windows,
            names = names.join(", "),
            depths = grounds.depths,
            sequences = grounds.sequences,
        );
        fs::write(path("grid.yaml"), grid).unwrap();
        let grid = Grid::load(&path("grid.yaml"), None, &[]).unwrap();
        let shape = Config::read_file(&path("shape.json")).unwrap();
        Self { _folder: folder, grid, shape, scale: grounds.scale }
    }

    /// Plans the grid on a server that already has all tokens.
    fn plan(&self, server: &Arc<Server>) -> Plan<'_> {
        let store = Store::on(Client::new(server, Network::default(), 1_000_000), Path::new(ROOT), stage::WORDS);
        let plan = Plan::new(&self.grid, &store, settings().engine, Some(LENGTH)).unwrap();
        crate::pipeline::stage::tokens::tokenise_missing(
            plan.given(),
            &plan.backbones,
            &store,
            &(),
            &AtomicBool::new(false),
        )
        .unwrap();
        plan
    }

    /// Returns the plan's total time by the cost model, in seconds.
    fn planned(&self, server: &Arc<Server>) -> f64 {
        let mut plan = self.plan(server);
        let store = Store::on(Client::new(server, Network::default(), 1_000_001), Path::new(ROOT), stage::WORDS);
        let state = StoreState::read(&plan, &store);
        plan.backbones.iter_mut().for_each(|backbone| backbone.config = self.shape.clone());
        job_costs(&plan, &state).unwrap().iter().map(|job| job.cost.shared).sum::<f64>() / FLOPS
    }

    /// Returns the estimated FLOPs for solving each operator, by key hash.
    fn solves(&self, plan: &Plan<'_>) -> BTreeMap<String, f64> {
        let sequences = plan.backbones[0].calibrations[0].calibration.sequences;
        let load = Load::windows(sequences * LENGTH * self.scale, LENGTH * self.scale);
        let keys = |variant: &Variant| {
            let recovery = &*plan.grid.cells[variant.cell].recovery.as_ref()?.rule;
            let flops = solve_flops(&self.shape, recovery, &load, variant.fitted, 1);
            Some((variant.operator.as_ref()?.hash().to_string(), flops))
        };
        plan.variants().filter_map(|(_, variant)| keys(variant)).collect()
    }

    fn play(&self, workers: usize, weather: Weather) -> Played {
        let server = Arc::<Server>::default();
        let plan = self.plan(&server);
        let tally = Arc::<Tally>::default();
        let machines = AtomicUsize::new(1);
        let took = Time::play(workers, |time, worker| {
            let mut draws = Draws(weather.seed * 1_000_003 + worker as u64);
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
                    tally: Arc::clone(&tally),
                };
                let machine = machines.fetch_add(1, Relaxed);
                let process = WorkerProcess::new(Arc::new(pace), &server, machine, weather, self.solves(&plan));
                if self.work(&plan, &process, &mut draws) {
                    break;
                }
                time.sleep(worker, AGAIN);
            }
        });
        Played {
            took,
            computed: tally.computed.load(Relaxed) as f64 / 1e6,
            loaded: load_count(&tally.loaded),
            deaths: load_count(&tally.deaths),
            preemptions: load_count(&tally.preemptions),
            server,
        }
    }

    /// Runs one worker process, and returns whether it found no work left.
    fn work(&self, plan: &Plan<'_>, process: &WorkerProcess, draws: &mut Draws) -> bool {
        let WorkerProcess { disk, pace, stop, weather, .. } = process;
        let _preempted = process.at_random(draws, weather.preempted, process.preemption());
        let _killed = process.at_random(draws, weather.killed, process.kill());
        let _halted = process.at_random(draws, weather.halted, process.pause());
        let done = {
            let store = Store::on(Arc::<Client>::clone(disk), Path::new(ROOT), stage::WORDS);
            self.grid_of(plan, &store, pace, stop)
        };
        match done {
            Ok(()) => true,
            Err(_) if disk.is_down() => {
                pace.tally.deaths.fetch_add(1, Relaxed);
                false
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                pace.tally.preemptions.fetch_add(1, Relaxed);
                false
            }
            Err(error) => panic!("worker {}: {error}", pace.worker),
        }
    }

    fn grid_of(&self, plan: &Plan<'_>, store: &Store, pace: &Arc<Pace>, stop: &AtomicBool) -> Result<()> {
        let recorder = Recorder::worker(&self.grid, store, &Failing)?;
        reserve(plan, store, &recorder, stop)?;
        let state = StoreState::read(plan, store);
        let settings = settings();
        let worker_limits = Some(WorkerLimits::default());
        let context = context(plan, &state, RunEnv { store, settings, reporter: &recorder, stop, worker_limits });
        execute(plan, &context, &state, &Paced(Arc::clone(pace)))
    }
}

/// Worker process on a machine that may fail.
struct WorkerProcess {
    disk: Arc<Client>,
    pace: Arc<Pace>,
    stop: Arc<AtomicBool>,
    weather: Weather,
}

/// Failure of a process.
type Failure = Box<dyn FnMut() + Send>;

impl WorkerProcess {
    /// Starts a process that spends the time for solving when an operator is stored.
    fn new(
        pace: Arc<Pace>,
        server: &Arc<Server>,
        machine: usize,
        weather: Weather,
        solves: BTreeMap<String, f64>,
    ) -> Self {
        let solving = Arc::clone(&pace);
        let on_write = move |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(flops) = solves.get(&*name).filter(|_| path.to_string_lossy().contains("/operator-v")) {
                solving.spend(flops / FLOPS);
            }
        };
        let at = Some((Arc::clone(&pace.time), pace.worker));
        let disk = Client::at_work(server, weather.network, machine, at, Some(Box::new(on_write)));
        Self { disk, pace, stop: Arc::default(), weather }
    }

    /// Schedules a failure that hits `percent` of all processes per hour.
    fn at_random(&self, draws: &mut Draws, percent: f64, failure: Failure) -> Option<Timer> {
        if percent == 0.0 {
            return None;
        }
        let hours = -(1.0 - draws.unit()).ln() * 100.0 / percent;
        Some(self.pace.time.after(Duration::from_secs_f64((hours * 3600.0).min(1e9)), failure))
    }

    /// Returns a failure that asks the worker to stop.
    fn preemption(&self) -> Failure {
        let pace = Arc::clone(&self.pace);
        let stop = Arc::clone(&self.stop);
        Box::new(move || {
            stop.store(true, Relaxed);
            pace.time.wake(pace.worker);
        })
    }

    /// Returns a failure that takes the machine down.
    fn kill(&self) -> Failure {
        let pace = Arc::clone(&self.pace);
        let stop = Arc::clone(&self.stop);
        let disk = Arc::clone(&self.disk);
        Box::new(move || {
            disk.go_down();
            pace.down.store(true, Relaxed);
            stop.store(true, Relaxed);
            pace.time.wake(pace.worker);
        })
    }

    /// Returns a failure that pauses the machine beyond the stale timeout.
    fn pause(&self) -> Failure {
        let pace = Arc::clone(&self.pace);
        let disk = Arc::clone(&self.disk);
        Box::new(move || {
            let end = pace.time.now() + HALT;
            disk.halt(end);
            pace.halted.store(end.as_micros() as u64, Relaxed);
            pace.time.wake(pace.worker);
        })
    }
}

fn load_count(counter: &AtomicUsize) -> usize {
    counter.load(Relaxed)
}

/// Reporter that panics if a simulated job fails.
struct Failing;

impl Reporter for Failing {
    fn event(&self, event: Event) {
        if let Event::Failed { cell, reason } = event {
            panic!("{cell}: {reason}");
        }
    }
}

struct Pace {
    /// Whether the machine is down.
    down: AtomicBool,
    /// Time until which the worker is paused, in microseconds.
    halted: AtomicU64,
    shape: Config,
    scale: usize,
    time: Arc<Time>,
    worker: usize,
    tally: Arc<Tally>,
}

impl Pace {
    /// Advances the virtual clock, including any pause. Returns early if the machine goes down.
    fn wait(&self, time: Duration) {
        let end = self.time.now() + time;
        let until = || end.max(Duration::from_micros(self.halted.load(Relaxed)));
        while !self.down.load(Relaxed) && self.time.now() < until() {
            self.time.sleep(self.worker, until() - self.time.now());
        }
    }

    fn spend(&self, seconds: f64) {
        let before = self.time.now();
        self.wait(Duration::from_secs_f64(seconds));
        self.tally.computed.fetch_add((self.time.now() - before).as_micros() as u64, Relaxed);
    }

    fn pass(&self, trie: &Trie, batches: &[Batch]) {
        let load = |batch: &Batch| Load {
            tokens: batch.tokens() * self.scale,
            scored: batch.targets.len().max(batch.tokens()) * self.scale,
            length: LENGTH * self.scale,
        };
        self.spend(batches.iter().map(|batch| trie.flops(&self.shape, &load(batch)).shared).sum::<f64>() / FLOPS);
    }
}

struct Paced(Arc<Pace>);

impl Engines for Paced {
    fn load(&self, backbone: &BackbonePlan, _: u64, _: Option<u64>) -> Result<Arc<dyn Engine>> {
        self.0.tally.loaded.fetch_add(1, Relaxed);
        self.0.wait(LOADING);
        Ok(Arc::new(PacedEngine { config: backbone.config.clone(), pace: Arc::clone(&self.0) }))
    }
}

/// Engine that derives its streams from token and layer, so that they are reproducible.
struct PacedEngine {
    config: Config,
    pace: Arc<Pace>,
}

struct MadeUp(Vec<f32>);

impl ResidualStream for MadeUp {
    fn rows(&self) -> Result<HostRows> {
        HostRows::new(self.0.clone())
    }
}

fn made_up(id: u32, position: usize, node: usize, channel: usize) -> f32 {
    let mixed = (u64::from(id) << 40) ^ ((position as u64) << 24) ^ ((node as u64) << 12) ^ channel as u64;
    let mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 40) as f32 / (1u64 << 24) as f32) - 0.4
}

impl Engine for PacedEngine {
    fn id(&self) -> EngineId {
        CPU
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn part_tokens(&self) -> usize {
        usize::MAX
    }

    fn run(
        &self,
        _: &Trie,
        _: &Batch,
        _: &mut dyn Observer<dyn ResidualStream>,
    ) -> Result<Vec<Option<Vec<Prediction>>>> {
        Err(Error::job("it passes over a trie or shows its streams"))
    }

    fn score(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<Vec<Option<Vec<Prediction>>>>> {
        self.pace.pass(trie, parts);
        seconds.fill(1.0);
        Ok(parts
            .iter()
            .map(|part| {
                let predictions: Vec<_> = part
                    .targets
                    .iter()
                    .map(|target| Prediction {
                        log_probability: made_up(target.token, target.row, 0, 0) - 1.0,
                        likeliest: true,
                    })
                    .collect();
                vec![Some(predictions); trie.programs()]
            })
            .collect())
    }

    fn observe(&self, trie: &Trie, batches: &[Batch], observer: &mut dyn BatchObserver) -> Result<()> {
        self.pace.pass(trie, batches);
        for &node in trie.path(0) {
            for (index, batch) in batches.iter().enumerate() {
                let rows = batch
                    .ids
                    .iter()
                    .enumerate()
                    .flat_map(|(position, &id)| (0..CHANNELS).map(move |c| made_up(id, position, node, c)))
                    .collect();
                observer.after(index, node, &MadeUp(rows))?;
            }
        }
        Ok(())
    }

    fn resume(&self, _: &Batch, _: &[ProgramStep], stream: &[f32]) -> Result<HostRows> {
        HostRows::new(stream.to_vec())
    }

    fn logits(&self, _: &[f32], _: &[usize]) -> Result<HostRows> {
        Err(Error::job("the engine has no vocabulary"))
    }
}

/// Deterministic random number generator of the tests.
struct Draws(u64);

impl Draws {
    fn unit(&mut self) -> f64 {
        for _ in 0..3 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Reads the payloads of all planned objects, which must be the same in every simulation.
fn results(stage: &RunState, played: &Played) -> Vec<(PathBuf, Vec<u8>)> {
    let plan = stage.plan(&played.server);
    let store = Store::on(Client::new(&played.server, Network::default(), 2_000_000), Path::new(ROOT), stage::WORDS);
    let mut all = Vec::new();
    for key in plan.variants().flat_map(|(_, variant)| variant.keys()) {
        let ghostlab_store::Lookup::Whole(artifact) = store.get(key) else { panic!("not whole: {}", key.short()) };
        for name in artifact.payloads().filter(|name| !name.ends_with(".json")) {
            all.push((Path::new(key.hash()).join(name), artifact.read(name).unwrap()));
        }
    }
    all.sort();
    all.dedup();
    all
}

const SMALL: Grounds = Grounds { backbones: 2, ridges: 1, depths: "4, 7", sequences: 8, windows: 12, scale: 1 };

#[test]
fn plan_predicts_one_worker_and_workers_share_the_time() {
    let stage = RunState::new(SMALL);
    let alone = stage.play(1, Weather::default());
    let planned = stage.planned(&alone.server);
    // The plan assumes a full pass and separate steps for folded maps, so it slightly overestimates.
    assert!((0.95..1.05).contains(&(alone.computed / planned)), "{} s of {planned}", alone.computed);
    assert_eq!(alone.loaded, 2);
    let expected = results(&stage, &alone);
    for workers in [2, 5] {
        let played = stage.play(workers, Weather::default());
        assert!(results(&stage, &played) == expected, "{workers} workers produce different results");
        assert!((played.computed - alone.computed).abs() < 1e-3 * planned, "{workers} workers did work twice");
        assert_eq!(played.server.robbed(), 0);
        for folder in ["claims", "processes", "journals", "drafts", "attempts"] {
            assert!(played.server.names(&Path::new(ROOT).join(folder)).is_empty(), "{workers}: {folder}");
        }
    }
}

#[test]
fn suspended_workers_resume_and_take_no_jobs_back() {
    let stage = RunState::new(Grounds { scale: 256, ..SMALL });
    let expected = results(&stage, &stage.play(1, Weather::default()));
    let mut robbed = 0;
    for seed in 1..=4 {
        // Each worker is paused about every two minutes.
        let played = stage.play(5, Weather { halted: 3000.0, seed, ..Weather::default() });
        assert!(results(&stage, &played) == expected, "seed {seed}: the result differs");
        assert_eq!(played.server.removed(), 0, "seed {seed}: a resumed process removed another process's lease");
        for folder in ["claims", "processes", "journals", "drafts", "uses"] {
            let left = played.server.names(&Path::new(ROOT).join(folder));
            assert!(left.is_empty(), "seed {seed}: {folder} has {left:?}");
        }
        robbed += played.server.robbed();
    }
    assert!(robbed > 0, "no process was paused during its work");
}

#[test]
fn results_survive_faulty_network_and_dying_workers() {
    let stage = RunState::new(Grounds { scale: 256, ..SMALL });
    let alone = stage.play(1, Weather::default());
    let expected = results(&stage, &alone);
    for seed in 1..=3 {
        let network = Network { cache: 60, lies: 5 };
        // Each worker is interrupted about every three minutes and killed about every six.
        let played = stage.play(6, Weather { network, preempted: 2000.0, killed: 1000.0, halted: 0.0, seed });
        assert!(results(&stage, &played) == expected, "seed {seed}: the result differs");
        assert_eq!(played.server.robbed(), 0, "seed {seed}: the lease of a live process was taken");
        let times = played.computed / alone.computed;
        println!(
            "seed {seed}: {times:.2} times the work; {} deaths, {} asked to end; {:.0} s, and {:.0} s alone",
            played.deaths,
            played.preemptions,
            played.took.as_secs_f64(),
            alone.took.as_secs_f64()
        );
        // A worker may rescore a text that its cached listing, up to a minute old, does not show as done.
        assert!(times < 6.0, "seed {seed}: {times}");
    }
}

/// Simulates 10,001 cells with `GHOSTLAB_PLAY` workers, or some of their backbones (`64/9`: 64 workers, nine
/// backbones).
#[test]
fn workers_share_backbones_with_little_waste() {
    let asked = std::env::var("GHOSTLAB_PLAY").ok();
    for play in asked.as_deref().unwrap_or("6/3").split(',') {
        let (workers, backbones) = play.split_once('/').unwrap_or((play, "73"));
        let [workers, backbones] = [workers, backbones].map(|text| text.parse().unwrap());
        let stage = RunState::new(Grounds { backbones, ..LARGE });
        let began = Instant::now();
        let weather = Weather { preempted: 1.0, killed: 1.0, seed: 1, ..Weather::default() };
        let played = stage.play(workers, weather);
        println!(
            "{workers} workers: {:.0} s, computed {:.0} s, loaded {}, {} operations, {} deaths, {} asked to end; played in {:.0} s",
            played.took.as_secs_f64(),
            played.computed,
            played.loaded,
            played.server.operations(),
            played.deaths,
            played.preemptions,
            began.elapsed().as_secs_f64()
        );
        played.server.by_kind().iter().take(16).for_each(|(kind, count)| println!("  {count} {kind}"));
        assert_eq!(played.server.robbed(), 0);
        if asked.is_none() {
            // Without failures, no work is repeated.
            let alone = stage.play(1, Weather::default());
            assert!(results(&stage, &alone) == results(&stage, &played), "the result differs");
            assert!(played.computed < 1.02 * alone.computed, "{} s of {}", played.computed, alone.computed);
            let speed = alone.took.as_secs_f64() / played.took.as_secs_f64();
            assert!(speed > 4.0, "{speed}");
            // Workers do not read each other's scores, so file operations grow with the work only.
            let [one, six] = [&alone, &played].map(|run| run.server.operations());
            assert!(six < one * 3 / 2, "{six} operations of six workers, {one} of one");
        }
    }
}
