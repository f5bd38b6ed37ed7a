//! Settings of a run, and limits for workers.

use std::time::Duration;

use crate::machine;
use crate::model::EngineRequest;
use ghostlab_store::Attempt;

/// Settings of a run. Apart from rounding errors, they do not affect the results.
#[derive(Debug, Clone, Copy)]
pub struct RunSettings {
    /// Engine, device and float type to use.
    pub engine: EngineRequest,
    /// Maximum device memory in bytes. Defaults to most of the free device memory.
    pub device_memory: Option<u64>,
    /// Number of tokens per batch. The default depends on the engine.
    pub batch_tokens: Option<usize>,
    /// Maximum number of bytes of activations that the first calibration pass writes to disk. If layers are not
    /// selected yet and all candidates need more, a second pass collects only the activations for the selected layers.
    pub spool_bytes: u64,
    /// Maximum number of jobs to run in parallel.
    pub jobs: usize,
    /// Maximum memory for all jobs in bytes, including weights. Defaults to most of the free memory.
    pub memory: Option<u64>,
    /// Maximum size of the store in bytes. It is exceeded if the grid needs more.
    pub store_limit: Option<u64>,
    /// Number of times that a failed job is retried.
    pub retries: u32,
    /// Whether to repeat latency measurements that are already stored.
    pub retime: bool,
    /// Whether to repeat noisy timing sessions. True for latencies that will be recorded.
    pub settle: bool,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            engine: EngineRequest::default(),
            device_memory: None,
            batch_tokens: None,
            spool_bytes: 32 << 30,
            jobs: 1,
            memory: None,
            store_limit: None,
            retries: 0,
            retime: false,
            settle: false,
        }
    }
}

impl RunSettings {
    /// Returns the default settings with the given engine.
    pub fn with_engine(engine: EngineRequest) -> Self {
        Self { engine, ..Self::default() }
    }

    /// Returns the memory limit for all jobs together, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.unwrap_or_else(|| machine::free_memory() / 5 * 4)
    }

    /// Returns the maximum size of the KV cache during generation, in bytes.
    pub fn cache_bytes(&self) -> u64 {
        Self::max_cache_bytes(self.memory_bytes())
    }

    /// Returns the number of bytes of `memory` that the KV cache may use.
    pub fn max_cache_bytes(memory: u64) -> u64 {
        memory / 4
    }
}

/// Retry limit and idle timeout of a worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerLimits {
    /// Number of times that all workers together retry a failed job.
    pub retries: u32,
    /// Time after which an idle worker exits, or `None` to wait until all work is done.
    pub idle_exit: Option<Duration>,
}

impl WorkerLimits {
    /// Number of worker deaths after which a job is abandoned. Workers die for many reasons, so only repeated deaths
    /// are blamed on the job.
    pub const MAX_DEATHS: usize = 5;

    /// Returns why a job must not be retried, or `None` if it may be.
    pub(crate) fn abandon_reason(self, attempts: &[Attempt]) -> Option<String> {
        let died = attempts.iter().filter(|attempt| attempt.died).count();
        let failed = attempts.len() - died;
        if failed > self.retries as usize {
            return last_failure(attempts, false);
        }
        let last = last_failure(attempts, true).filter(|_| died >= Self::MAX_DEATHS)?;
        Some(format!("{died} processes died during this job (last failure: {last})"))
    }
}

fn last_failure(attempts: &[Attempt], died: bool) -> Option<String> {
    attempts.iter().rfind(|attempt| attempt.died == died).map(|attempt| attempt.reason.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(died: bool) -> Attempt {
        let [what, reason, process, host] = ["calibrate", "no room", "5-a", "node"].map(str::to_owned);
        Attempt { what, reason, died, process, host, time: 0 }
    }

    #[test]
    fn failures_and_deaths_have_separate_limits() {
        let worker_limits = |retries| WorkerLimits { retries, idle_exit: None };
        let failed = |count| vec![attempt(false); count];
        assert_eq!(worker_limits(0).abandon_reason(&[]), None);
        assert_eq!(worker_limits(0).abandon_reason(&failed(1)).as_deref(), Some("no room"));
        assert_eq!(worker_limits(2).abandon_reason(&failed(2)), None);
        assert!(worker_limits(2).abandon_reason(&failed(3)).is_some());
        assert_eq!(
            worker_limits(0).abandon_reason(&fatal_attempts(WorkerLimits::MAX_DEATHS - 1)),
            None,
            "workers are killed for many reasons"
        );
        let reason = worker_limits(0).abandon_reason(&fatal_attempts(WorkerLimits::MAX_DEATHS)).unwrap();
        assert!(reason.contains("5 processes died during this job"), "{reason}");
        assert!(
            worker_limits(1).abandon_reason(&[failed(1), fatal_attempts(4)].concat()).is_none(),
            "failures and deaths have separate limits"
        );
    }

    fn fatal_attempts(count: usize) -> Vec<Attempt> {
        vec![attempt(true); count]
    }
}
