//! Environment in which grids are planned, checked and run.

use std::sync::atomic::AtomicBool;

use super::event::Reporter;
use super::run_settings::RunSettings;
use ghostlab_store::Store;

/// Environment of a run: its store, settings, reporter and stop flag.
#[derive(Clone, Copy)]
pub struct RunEnv<'a> {
    pub store: &'a Store,
    pub settings: RunSettings,
    pub reporter: &'a dyn Reporter,
    /// Flag that ends the run after the current batch when it is set.
    pub stop: &'a AtomicBool,
}

impl<'a> RunEnv<'a> {
    /// Creates an environment with default settings. Its runs report no events and are never stopped.
    pub fn new(store: &'a Store) -> Self {
        static NEVER_STOPPED: AtomicBool = AtomicBool::new(false);
        Self { store, settings: RunSettings::default(), reporter: &(), stop: &NEVER_STOPPED }
    }
}
