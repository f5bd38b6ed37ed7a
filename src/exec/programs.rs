//! Variants as programs, with their operators in memory.

use std::collections::HashMap;
use std::sync::Mutex;

use super::context::Context;
use super::lock::lock;
use super::operator;
use crate::error::{Error, Result};
use crate::model::Program;
use crate::plan::{BackbonePlan, Variant, payload};
use crate::store::{Key, Lookup, Store, StoredArtifact};

/// The program of a variant, from the store.
///
/// # Errors
/// Kinds `Job` and `Damaged`: what the variant lacks.
pub fn stored_program(store: &Store, backbone: &BackbonePlan, variant: &Variant) -> Result<Program> {
    let (Some(selection), Some(operator)) = (&variant.selection, variant.repair()) else {
        return Ok(Program::dense(backbone.config.layers));
    };
    let find = |key: &Key| match store.get(key) {
        Lookup::Whole(artifact) => Ok(Some(artifact)),
        Lookup::Absent => Ok(None),
        Lookup::Damaged(error) => Err(error),
    };
    read(&find, selection, operator, backbone.config.layers)
}

fn read(
    find: &dyn Fn(&Key) -> Result<Option<StoredArtifact>>,
    selection: &Key,
    operator: &Key,
    layers: usize,
) -> Result<Program> {
    let found = |key, what| find(key)?.ok_or_else(|| Error::job(format!("its {what} is not in the store")));
    let selection = payload::selection(&found(selection, "selection")?)?;
    operator::program(&found(operator, "operator")?, layers, &selection)
}

/// Programs by the hashes of their operators: each is read once for all texts.
#[derive(Default)]
pub(super) struct Programs(Mutex<HashMap<String, Program>>);

impl Programs {
    /// The program of a variant whose selection and operators are stored.
    ///
    /// # Errors
    /// Kinds `Job` and `Damaged`: what the variant lacks.
    pub(super) fn of(&self, run: &Context<'_>, backbone: &BackbonePlan, variant: &Variant) -> Result<Program> {
        let layers = backbone.config.layers;
        let (Some(selection), Some(operator)) = (&variant.selection, variant.repair()) else {
            return Ok(Program::dense(layers));
        };
        if let Some(program) = lock(&self.0).get(operator.hash()) {
            return Ok(program.clone());
        }
        let program = read(&|key| Ok(run.get(key)), selection, operator, layers)?;
        lock(&self.0).insert(operator.hash().to_string(), program.clone());
        Ok(program)
    }

    /// Frees the programs of a backbone whose jobs are done.
    pub(super) fn forget(&self, backbone: &BackbonePlan) {
        let mut programs = lock(&self.0);
        for operator in backbone.variants.iter().filter_map(Variant::repair) {
            programs.remove(operator.hash());
        }
    }
}
