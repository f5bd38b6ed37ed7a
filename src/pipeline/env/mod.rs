//! Layer 1: the environment of a job: backbones, engines, the store, leases, limits, and the reporter.

pub mod backbone;
pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod inputs;
pub(crate) mod models;
pub(crate) mod progress;
pub(crate) mod settings;
pub(crate) mod store_cache;
