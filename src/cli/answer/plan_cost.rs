//! Costs in the output of `plan`.

use std::time::Instant;

use schemars::JsonSchema;
use serde::Serialize;

use crate::files::disk;
use crate::linalg::gemm;
use crate::machine;
use crate::pipeline::exec::RunRecord;
use crate::pipeline::plan::{Estimate, Plan};
use crate::pipeline::stage::Cost;
use ghostlab_store::Store;

/// Costs of a grid.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PlanCost {
    /// FLOPs for the grid if each cell ran separately.
    pub(crate) cell_by_cell_flop: f64,
    /// FLOPs for the grid with shared computation.
    pub(crate) shared_flop: f64,
    /// Remaining FLOPs.
    pub(crate) left_flop: f64,
    /// Cost of the run; null if nothing remains.
    pub(crate) run: Option<RunCost>,
}

/// Cost of a run on this machine.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RunCost {
    /// Distinct engines of the backbones, separated by commas. Usually there is only one.
    pub(crate) engine: String,
    /// Estimated time; null if the speed of the engine is unknown on this machine.
    pub(crate) time: Option<PlanTime>,
    /// Peak memory in bytes, including mapped files.
    pub(crate) memory_bytes: u64,
    /// Free memory in bytes.
    pub(crate) free_memory_bytes: u64,
    /// Number of bytes to be written to the store.
    pub(crate) disk_bytes: u64,
    /// Size of additional temporary files in bytes.
    pub(crate) spool_bytes: u64,
    /// Free space on the store's disk in bytes; null if unknown.
    pub(crate) free_disk_bytes: Option<u64>,
    /// Maximum number of new files and folders in the store.
    pub(crate) inodes: u64,
    /// Free inodes on the store's disk; null if unlimited or unknown.
    pub(crate) free_inodes: Option<u64>,
}

/// Estimated time of a run.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PlanTime {
    /// Seconds until completion.
    pub(crate) seconds: f64,
    /// Assumed rate in FLOPs per second.
    pub(crate) flop_per_second: f64,
    pub(crate) rate: RateSource,
}

/// Source of a rate.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RateSource {
    /// Measured in the last run with this store and engine on this machine.
    LastRun,
    /// Estimated by timing a short matrix product.
    Probe,
}

pub(super) fn compute_cost(estimate: &Estimate, plan: &Plan<'_>, store: &Store) -> PlanCost {
    let Estimate { cost: Cost { separate, shared, left, disk: bytes, inodes }, memory, spool, .. } = *estimate;
    let run = (left > 0.0).then(|| {
        let engine = plan.engines();
        let on_cpu = plan.backbones.iter().all(|backbone| backbone.engine.id().is_on_cpu());
        let rate = match RunRecord::latest_rate(store, &engine, &plan.machine()) {
            Some(rate) => Some((rate, RateSource::LastRun)),
            None if on_cpu => Some((estimate_flop_per_second(), RateSource::Probe)),
            None => None,
        };
        let time = rate.map(|(rate, source)| PlanTime { seconds: left / rate, flop_per_second: rate, rate: source });
        RunCost {
            engine,
            time,
            memory_bytes: memory,
            free_memory_bytes: machine::free_memory(),
            disk_bytes: bytes,
            spool_bytes: spool,
            free_disk_bytes: disk::free(store.root()),
            inodes,
            free_inodes: disk::free_inodes(store.root()),
        }
    });
    PlanCost { cell_by_cell_flop: separate, shared_flop: shared, left_flop: left, run }
}

/// Estimates the speed of a run on the CPU in FLOPs per second: half the measured speed of a plain matrix product.
pub(crate) fn estimate_flop_per_second() -> f64 {
    const SIZE: usize = 768;
    let x = vec![1.0f32; SIZE * SIZE];
    let mut y = vec![0.0f32; SIZE * SIZE];
    let mut products = 0.0;
    let started = Instant::now();
    while products < 3.0 || started.elapsed().as_millis() < 60 {
        let a = gemm::MatrixView::rows(&x, SIZE, SIZE);
        let b = gemm::MatrixView::rows(&x, SIZE, SIZE);
        gemm::gemm_parallel(gemm::MatrixViewMut::rows(&mut y, SIZE, SIZE), gemm::Update::Replace, a, b);
        products += 1.0;
    }
    0.5 * products * 2.0 * (SIZE as f64).powi(3) / started.elapsed().as_secs_f64()
}
