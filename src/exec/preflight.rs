//! What a run needs before its first job. `run`, `worker`, `plan` and `submit` ask here, and so refuse the same in the same
//! words.

use std::sync::atomic::AtomicBool;

use super::preflight_limits;
use crate::error::Result;
use crate::grid::Grid;
use crate::machine;
use crate::model::check_weights;
use crate::plan::{Estimate, Plan, Quota, StoreState};
use crate::stage::tokens::tokenise_missing;
use crate::work::backbone::{BackbonePlan, Subject};
use crate::work::event::{Event, Reporter};
use crate::work::settings::RunSettings;
use ghostlab_store::{InventoryItem, Store};

/// Where a plan is going to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// On this machine: its free memory is what jobs may have where no limit is given.
    Here,
    /// On machines of which nothing is known.
    Elsewhere,
}

/// A plan that can run: how it stands in the store, and what is to come.
pub struct Preflight {
    pub state: StoreState,
    pub estimate: Estimate,
}

/// Checks and tokenises everything, and sees that there is room for it.
///
/// # Errors
/// The first thing that would stop the run later: what [`prepare`] finds, or too little memory or disk. What the grid alone
/// tells to be too much is refused before a text is read.
pub fn preflight(
    plan: &Plan<'_>,
    settings: &RunSettings,
    place: Where,
    store: &Store,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
) -> Result<Preflight> {
    let free = machine::told_free_memory().filter(|_| place == Where::Here);
    if plan.backbones.iter().flat_map(BackbonePlan::tokens).any(|key| !store.has(key)) {
        preflight_limits::for_tokens(plan, store, settings.memory, free)?;
        on_disk(plan, settings, place, store)?;
    }
    prepare(plan, store, reporter, stop)?;
    let found = on_disk(plan, settings, place, store)?;
    for backbone in &plan.backbones {
        preflight_limits::for_jobs(plan, backbone, &found.state, settings.memory, free)?;
    }
    Ok(found)
}

/// Looks through the store, and sees that its disk has room. Of a text that is not tokenised, nothing is counted.
fn on_disk(plan: &Plan<'_>, settings: &RunSettings, place: Where, store: &Store) -> Result<Preflight> {
    let state = if settings.retime { StoreState::to_retime(plan, store) } else { StoreState::read(plan, store) };
    let memory = match place {
        Where::Here => settings.memory_bytes(),
        Where::Elsewhere => settings.memory.unwrap_or(u64::MAX),
    };
    let estimate = Estimate::of(plan, &state, settings.spool_bytes, memory)?;
    let coming = estimate.coming();
    // What the store's limit throws away makes room.
    let goes = settings.store_limit.map(|limit| -> Result<u64> {
        let quota = Quota::of(plan, store, &store.reserved_by_others()?, limit, coming);
        Ok(quota.going.iter().map(InventoryItem::bytes).sum())
    });
    preflight_limits::on_disk(&estimate, goes.transpose()?.unwrap_or(0), store)?;
    Ok(Preflight { state, estimate })
}

/// Checks every backbone and sees that all tokens are stored.
///
/// # Errors
/// The first thing that would stop the run later: a weight file that cannot be read, a recovery that a backbone has no
/// place for, a corpus or a task that cannot be tokenised; or that `stop` was set.
pub fn prepare(plan: &Plan<'_>, store: &Store, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<()> {
    for backbone in &plan.backbones {
        check(plan.grid, backbone, reporter)?;
    }
    tokenise_missing(plan.given(), &plan.backbones, store, reporter, stop)
}

fn check(grid: &Grid, backbone: &BackbonePlan, reporter: &dyn Reporter) -> Result<()> {
    let note = |text: String| reporter.event(Event::Note { text: format!("backbone {}: {text}", backbone.name) });
    backbone.config.notes.iter().for_each(|text| note(text.clone()));
    // Only the header of each weight file; the weights themselves when the backbone's turn comes.
    check_weights(&backbone.config, &backbone.folder)?;
    let mut checked: Vec<String> = Vec::new();
    for method in backbone.variants.iter().filter_map(|variant| grid.cells[variant.cell].recovery.as_ref()) {
        if checked.contains(&method.to_string()) {
            continue;
        }
        method
            .rule
            .check(&backbone.config)
            .map_err(|error| error.at(format!("backbone `{}`, recovery `{method}`", backbone.name)))?;
        checked.push(method.to_string());
    }
    let texts = backbone.evaluations.iter().filter_map(|evaluation| match &evaluation.subject {
        Subject::Windows(text) => Some((&text.corpus, text.length)),
        Subject::Task(_) | Subject::Defined(_) => None,
    });
    let lengths = backbone.calibrations.iter().map(|c| (&c.calibration.corpus, c.calibration.length)).chain(texts);
    for (corpus, length) in lengths {
        if let Some(most) = backbone.config.max_positions.filter(|&most| length > most) {
            note(format!("windows of {length} tokens on `{corpus}` exceed its training context of {most} tokens"));
        }
    }
    Ok(())
}
