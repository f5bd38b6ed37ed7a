//! Variants as programs, with their operators in memory.

use std::collections::HashMap;
use std::sync::Mutex;

use super::{operator, selection};
use crate::criterion::Selection;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Program, whole};
use crate::work::backbone::{BackbonePlan, Variant};
use crate::work::context::Context;
use crate::work::lock::lock;
use ghostlab_store::{Key, Lookup, Store, StoredObject};

/// The program of a variant, from the store.
///
/// # Errors
/// Kinds `Job` and `Damaged`: what the variant lacks.
pub fn stored_program(store: &Store, backbone: &BackbonePlan, variant: &Variant) -> Result<Program> {
    let (Some(selection), Some(operator)) = (&variant.selection, variant.repair()) else {
        return whole(&backbone.config, &backbone.folder);
    };
    let find = |key: &Key| match store.get(key) {
        Lookup::Whole(artifact) => Ok(Some(artifact)),
        Lookup::Absent => Ok(None),
        Lookup::Damaged(error) => Err(error),
    };
    let selection = read_selection(&find, selection)?;
    operator::program(&found(&find, operator, "operator")?, backbone.config.layers, &selection)
}

type Find<'a> = dyn Fn(&Key) -> Result<Option<StoredObject>> + 'a;

fn read_selection(find: &Find<'_>, key: &Key) -> Result<Selection> {
    selection::read(&found(find, key, "selection")?)
}

fn found(find: &Find<'_>, key: &Key, what: &str) -> Result<StoredObject> {
    find(key)?.ok_or_else(|| Error::job(format!("its {what} is not in the store")))
}

/// Programs by the hashes of their operators, or of the backbone that has operators of its own, and selections by theirs: each
/// is read once for all texts.
#[derive(Default)]
pub(crate) struct Programs {
    programs: Mutex<HashMap<String, Program>>,
    selections: Mutex<HashMap<String, Selection>>,
}

impl Programs {
    /// The program of a variant whose selection and operators are stored.
    ///
    /// # Errors
    /// Kinds `Job` and `Damaged`: what the variant lacks.
    pub(crate) fn of(&self, run: &Context<'_>, backbone: &BackbonePlan, variant: &Variant) -> Result<Program> {
        let (Some(selection), Some(operator)) = (&variant.selection, variant.repair()) else {
            return self.whole(run, backbone);
        };
        if let Some(program) = lock(&self.programs).get(operator.hash()) {
            return Ok(program.clone());
        }
        let find = |key: &Key| Ok(run.get(key));
        let known = lock(&self.selections).get(selection.hash()).cloned();
        let selection = match known {
            Some(known) => known,
            None => {
                let read = read_selection(&find, selection)?;
                lock(&self.selections).insert(selection.hash().to_string(), read.clone());
                read
            }
        };
        let program = operator::program(&found(&find, operator, "operator")?, backbone.config.layers, &selection)?;
        lock(&self.programs).insert(operator.hash().to_string(), program.clone());
        Ok(program)
    }

    /// The same; where there is none, its cell has failed.
    ///
    /// # Errors
    /// What stops the whole run.
    pub(crate) fn or_failed(
        &self,
        run: &Context<'_>,
        backbone: &BackbonePlan,
        variant: &Variant,
    ) -> Result<Option<Program>> {
        match self.of(run, backbone, variant) {
            Err(error) if matches!(error.kind(), ErrorKind::Job | ErrorKind::Damaged) => {
                run.fail(variant.cell, error.one_line());
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// The program of a backbone as its folder has it.
    fn whole(&self, run: &Context<'_>, backbone: &BackbonePlan) -> Result<Program> {
        if backbone.config.attachments.is_empty() {
            return Ok(Program::dense(backbone.config.layers));
        }
        if let Some(program) = lock(&self.programs).get(&backbone.content) {
            return Ok(program.clone());
        }
        let read = || whole(&backbone.config, &backbone.folder);
        let program = run.inputs.guarded(&[&backbone.folder], read)?;
        lock(&self.programs).insert(backbone.content.clone(), program.clone());
        Ok(program)
    }

    /// Frees the programs of a backbone whose jobs are done.
    pub(crate) fn forget(&self, backbone: &BackbonePlan) {
        let mut programs = lock(&self.programs);
        for operator in backbone.variants.iter().filter_map(Variant::repair) {
            programs.remove(operator.hash());
        }
        programs.remove(&backbone.content);
    }
}
