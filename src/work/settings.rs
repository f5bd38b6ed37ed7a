//! How to run a grid.

use crate::machine;
use crate::model::EngineRequest;

/// How to run, as far as it may not change a result beyond the rounding of the float type.
#[derive(Debug, Clone, Copy)]
pub struct RunSettings {
    /// What computes, where, and in which float type.
    pub engine: EngineRequest,
    /// Most bytes of another device's memory; most of what is free there where none is given.
    pub device_memory: Option<u64>,
    /// Tokens of a batch.
    pub batch_tokens: usize,
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
    /// Whether latencies are measured anew, whatever is stored of them.
    pub retime: bool,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            engine: EngineRequest::default(),
            device_memory: None,
            batch_tokens: 2048,
            spool_bytes: 32 << 30,
            jobs: 1,
            memory: None,
            store_limit: None,
            retries: 0,
            retime: false,
        }
    }
}

impl RunSettings {
    /// Bytes of memory that jobs may take together.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.unwrap_or_else(|| machine::free_memory() / 5 * 4)
    }

    /// Bytes of keys and values that are kept while texts are generated.
    pub fn cache_bytes(&self) -> u64 {
        Self::cache_part(self.memory_bytes())
    }

    /// The same of jobs that may take so much: beside the weights, operators and a batch.
    pub fn cache_part(memory: u64) -> u64 {
        memory / 4
    }
}
