//! Cache of loaded backbones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::backbone::BackbonePlan;
use super::coordination::lock;
use super::inputs::Inputs;
use crate::error::Result;
use crate::model::Engine;

/// Function that loads a backbone. The numbers are limits in bytes: for the weights in host memory, and for the total
/// memory used on a GPU. Tests use another function.
pub(crate) type LoadEngine<'a> = dyn Fn(&BackbonePlan, u64, Option<u64>) -> Result<Arc<dyn Engine>> + Sync + 'a;

/// Loads a backbone from its files.
///
/// # Errors
/// Fails if the backbone cannot be read.
pub(crate) fn load_engine(
    backbone: &BackbonePlan,
    max_weight_bytes: u64,
    max_device_bytes: Option<u64>,
) -> Result<Arc<dyn Engine>> {
    backbone.engine.load(backbone.config.clone(), &backbone.folder, max_weight_bytes, max_device_bytes)
}

/// Loaded engines, by backbone name.
pub(crate) struct Models<'a> {
    inputs: &'a Inputs,
    /// Maximum number of bytes of weights in memory, by backbone name.
    budgets: HashMap<&'a str, u64>,
    max_device_bytes: Option<u64>,
    load: &'a LoadEngine<'a>,
    loaded: Mutex<HashMap<String, Arc<dyn Engine>>>,
}

impl<'a> Models<'a> {
    pub(crate) fn new(
        inputs: &'a Inputs,
        budgets: HashMap<&'a str, u64>,
        max_device_bytes: Option<u64>,
        load: &'a LoadEngine<'a>,
    ) -> Self {
        Self { inputs, budgets, max_device_bytes, load, loaded: Mutex::default() }
    }

    /// Returns the engine for a backbone. The backbone is loaded on first use.
    pub(crate) fn get(&self, backbone: &BackbonePlan) -> Result<Arc<dyn Engine>> {
        let mut loaded = lock(&self.loaded);
        if let Some(engine) = loaded.get(&backbone.name) {
            return Ok(Arc::clone(engine));
        }
        let budget = self.budget(backbone);
        let engine =
            self.inputs.read_unchanged(&[&backbone.folder], || (self.load)(backbone, budget, self.max_device_bytes))?;
        debug_assert_eq!(engine.id(), backbone.engine.id(), "cache keys name the engine, so it must match");
        loaded.insert(backbone.name.clone(), Arc::clone(&engine));
        Ok(engine)
    }

    /// Checks that the weight files have not changed since they were hashed, unless all weights are in CPU memory.
    ///
    /// # Errors
    /// Fails with exit code 2 if a file has changed. The error names the file.
    pub(crate) fn check_unchanged(&self, backbone: &BackbonePlan) -> Result<()> {
        let engine = backbone.engine;
        if engine.id().is_on_cpu() && self.budget(backbone) >= engine.weight_bytes(&backbone.config) {
            return Ok(());
        }
        self.inputs.read_unchanged(&[&backbone.folder], || Ok(()))
    }

    /// Calls `read`, and checks that the files of the backbone have not changed since they were hashed.
    pub(crate) fn read<T>(&self, backbone: &BackbonePlan, read: impl FnOnce() -> Result<T>) -> Result<T> {
        self.inputs.read_unchanged(&[&backbone.folder], read)
    }

    fn budget(&self, backbone: &BackbonePlan) -> u64 {
        self.budgets.get(&*backbone.name).copied().unwrap_or(u64::MAX)
    }

    pub(crate) fn unload(&self, backbone: &BackbonePlan) {
        lock(&self.loaded).remove(&backbone.name);
    }
}
