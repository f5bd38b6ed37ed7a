//! How to run a grid; and what makes a run a worker: it shares the grid with others, tries a failed job no more often than all
//! together may, and may leave when nothing is left for it to do.

use std::time::Duration;

use crate::machine;
use crate::model::EngineRequest;
use ghostlab_store::Attempt;

/// How to run, as far as it may not change a result beyond the rounding of the float type.
#[derive(Debug, Clone, Copy)]
pub struct RunSettings {
    /// Engine, device and float type.
    pub engine: EngineRequest,
    /// Most bytes of another device's memory; most of what is free there where none is given.
    pub device_memory: Option<u64>,
    /// Tokens of a batch; what suits the engine where none are given.
    pub batch_tokens: Option<usize>,
    /// Most bytes of activations to spool in one pass. Where all sites that a selection may need are more, a second
    /// pass spools only those that the selections chose.
    pub spool_bytes: u64,
    /// Jobs at a time.
    pub jobs: usize,
    /// Bytes of memory that jobs may take together, with the weights that they run; most of what is free where none is
    /// given.
    pub memory: Option<u64>,
    /// Bytes that the store may have, as far as the grid does not need more.
    pub store_limit: Option<u64>,
    /// How often a job that failed is tried again.
    pub retries: u32,
    /// Whether stored latencies are measured again.
    pub retime: bool,
    /// Whether sessions with unstable times are measured again, because the times will be recorded.
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
    /// Returns the memory that jobs may take together.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.unwrap_or_else(|| machine::free_memory() / 5 * 4)
    }

    /// Returns the bytes of keys and values kept during generation.
    pub fn cache_bytes(&self) -> u64 {
        Self::cache_part(self.memory_bytes())
    }

    /// Returns the share of memory for keys and values next to weights, operators and a batch.
    pub fn cache_part(memory: u64) -> u64 {
        memory / 4
    }
}

/// The terms on which a worker works.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerLimits {
    /// How often all workers together try a job again that failed.
    pub retries: u32,
    /// For how long it waits for work before it leaves; until all is done where none is given.
    pub idle_exit: Option<Duration>,
}

impl WorkerLimits {
    /// Number of processes that may die during a job, for any reason, before it is given up. Workers are killed for
    /// many reasons; a job that kills its workers is recognized by the count.
    pub const DEATHS: usize = 5;

    /// Returns why a job must not be tried again after these attempts, if so.
    pub(crate) fn given_up(self, attempts: &[Attempt]) -> Option<String> {
        let died = attempts.iter().filter(|attempt| attempt.died).count();
        let failed = attempts.len() - died;
        if failed > self.retries as usize {
            return last_failure(attempts, false);
        }
        let last = last_failure(attempts, true).filter(|_| died >= Self::DEATHS)?;
        Some(format!("{died} processes died during it, the last one: {last}"))
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
    fn failures_have_a_retry_limit_and_deaths_their_own() {
        let terms = |retries| WorkerLimits { retries, idle_exit: None };
        let failed = |count| vec![attempt(false); count];
        assert_eq!(terms(0).given_up(&[]), None);
        assert_eq!(terms(0).given_up(&failed(1)).as_deref(), Some("no room"));
        assert_eq!(terms(2).given_up(&failed(2)), None);
        assert!(terms(2).given_up(&failed(3)).is_some());
        assert_eq!(terms(0).given_up(&died(WorkerLimits::DEATHS - 1)), None, "workers are killed for many reasons");
        let reason = terms(0).given_up(&died(WorkerLimits::DEATHS)).unwrap();
        assert!(reason.contains("5 processes died during it"), "{reason}");
        assert!(terms(1).given_up(&[failed(1), died(4)].concat()).is_none(), "each has its own bound");
    }

    fn died(count: usize) -> Vec<Attempt> {
        vec![attempt(true); count]
    }
}
