//! Variants as programs, with their operators in memory.

use std::collections::HashMap;
use std::sync::Mutex;

use super::context::Context;
use super::lock::lock;
use super::operator;
use crate::error::{Error, Result};
use crate::model::Program;
use crate::plan::{BackbonePlan, Variant, payload};

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
        let find = |key, what| {
            let missing = || Error::job(format!("its {what} is not in the store"));
            run.get(key).ok_or_else(missing)
        };
        let selection = payload::selection(&find(selection, "selection")?)?;
        let program = operator::program(&find(operator, "operator")?, layers, &selection)?;
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
