//! Environment of a job (layer 1 of the architecture): backbones, engines, store, leases, limits and event reporter.

pub mod backbone;
pub(crate) mod context;
pub(crate) mod coordination;
pub(crate) mod event;
pub(crate) mod inputs;
pub(crate) mod models;
pub(crate) mod run_env;
pub(crate) mod run_settings;
pub(crate) mod store_view;
