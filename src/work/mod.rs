//! Layer 1: the environment of a job: the backbone with its keys, engines, the store, claims, limits, and the reporter.
//! It knows no stage.

pub mod backbone;
pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod inputs;
pub(crate) mod known_objects;
pub(crate) mod models;
pub(crate) mod progress;
pub(crate) mod settings;
