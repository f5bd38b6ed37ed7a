//! Simulated machines that run worker processes and may fail.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::simulated::network::{Client, Network, Server};
use super::simulated::played_time::{Time, Timer};
use super::{FLOPS, LENGTH};
use crate::model::{Batch, Config, Load, Trie};

/// Failure rates of the machines and the network.
#[derive(Clone, Copy, Default)]
pub(super) struct FailureRates {
    pub(super) network: Network,
    /// Mean number of preemptions per 100 workers per hour.
    pub(super) preempted: f64,
    /// Mean number of kills per 100 workers per hour.
    pub(super) killed: f64,
    /// Mean number of pauses per 100 workers per hour. A paused worker loses its leases.
    pub(super) halted: f64,
    pub(super) seed: u64,
}

/// Duration of a pause. It exceeds the lifetime of a lease without a heartbeat.
const PAUSE: Duration = Duration::from_secs(400);

#[derive(Default)]
pub(super) struct Totals {
    /// Computing time in microseconds, including work that was discarded.
    pub(super) computed: AtomicU64,
    pub(super) loaded: AtomicUsize,
    pub(super) deaths: AtomicUsize,
    pub(super) preemptions: AtomicUsize,
}

/// Worker process on a machine that may fail.
pub(super) struct WorkerProcess {
    pub(super) disk: Arc<Client>,
    pub(super) pace: Arc<Pace>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) rates: FailureRates,
}

/// Callback that simulates a failure of a process.
type Failure = Box<dyn FnMut() + Send>;

impl WorkerProcess {
    /// Creates a simulated process. Storing an operator takes as long as solving it would. `solve_flops` contains the
    /// cost of solving each operator, by the hash of the operator's key.
    pub(super) fn new(
        pace: Arc<Pace>,
        server: &Arc<Server>,
        machine: usize,
        rates: FailureRates,
        solve_flops: BTreeMap<String, f64>,
    ) -> Self {
        let solving = Arc::clone(&pace);
        let on_write = move |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(flops) = solve_flops.get(&*name).filter(|_| path.to_string_lossy().contains("/operator-v")) {
                solving.spend(flops / FLOPS);
            }
        };
        let clock = Some((Arc::clone(&pace.time), pace.worker));
        let disk = Client::with_clock(server, rates.network, machine, clock, Some(Box::new(on_write)));
        Self { disk, pace, stop: Arc::default(), rates }
    }

    /// Schedules a failure at a random time. `rate` is the mean number of failures per 100 processes per hour.
    pub(super) fn schedule_failure(&self, draws: &mut RandomDraws, rate: f64, failure: Failure) -> Option<Timer> {
        if rate == 0.0 {
            return None;
        }
        let hours = -(1.0 - draws.unit()).ln() * 100.0 / rate;
        Some(self.pace.time.after(Duration::from_secs_f64((hours * 3600.0).min(1e9)), failure))
    }

    /// Returns a failure that asks the worker to stop, as a scheduler does when it preempts a job.
    pub(super) fn preemption(&self) -> Failure {
        let pace = Arc::clone(&self.pace);
        let stop = Arc::clone(&self.stop);
        Box::new(move || {
            stop.store(true, Relaxed);
            pace.time.wake(pace.worker);
        })
    }

    /// Returns a failure that takes the machine down.
    pub(super) fn kill(&self) -> Failure {
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

    /// Returns a failure that pauses the machine until its leases are lost.
    pub(super) fn pause(&self) -> Failure {
        let pace = Arc::clone(&self.pace);
        let disk = Arc::clone(&self.disk);
        Box::new(move || {
            let end = pace.time.now() + PAUSE;
            disk.halt(end);
            pace.halted.store(end.as_micros() as u64, Relaxed);
            pace.time.wake(pace.worker);
        })
    }
}

/// Virtual clock of a worker, which advances by the time that the work would take on the simulated hardware.
pub(super) struct Pace {
    pub(super) down: AtomicBool,
    /// Time at which the pause of the worker ends, in microseconds.
    pub(super) halted: AtomicU64,
    pub(super) shape: Config,
    pub(super) scale: usize,
    pub(super) time: Arc<Time>,
    pub(super) worker: usize,
    pub(super) totals: Arc<Totals>,
}

impl Pace {
    /// Advances the virtual clock by `time`, or to the end of the current pause if that is later. Returns early if the
    /// machine goes down.
    pub(super) fn wait(&self, time: Duration) {
        let end = self.time.now() + time;
        let until = || end.max(Duration::from_micros(self.halted.load(Relaxed)));
        while !self.down.load(Relaxed) && self.time.now() < until() {
            self.time.sleep(self.worker, until() - self.time.now());
        }
    }

    /// Advances the virtual clock by the given computing time, and adds the time to the totals.
    pub(super) fn spend(&self, seconds: f64) {
        let before = self.time.now();
        self.wait(Duration::from_secs_f64(seconds));
        self.totals.computed.fetch_add((self.time.now() - before).as_micros() as u64, Relaxed);
    }

    /// Advances the virtual clock by the estimated time of a forward pass over the batches.
    pub(super) fn simulate_pass(&self, trie: &Trie, batches: &[Batch]) {
        let flops = batches.iter().map(|batch| {
            let load = Load {
                tokens: batch.tokens() * self.scale,
                scored: batch.targets.len().max(batch.tokens()) * self.scale,
                length: LENGTH * self.scale,
            };
            trie.flops(&self.shape, &load).shared
        });
        self.spend(flops.sum::<f64>() / FLOPS);
    }
}

/// Deterministic random number generator for the tests.
pub(super) struct RandomDraws(pub(super) u64);

impl RandomDraws {
    /// Returns a random number in `[0, 1)`.
    pub(super) fn unit(&mut self) -> f64 {
        for _ in 0..3 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}
