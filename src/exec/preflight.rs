//! What a run needs before its first job. `run`, `worker`, `plan` and `submit` ask here, and so refuse the same in the same
//! words.

use std::sync::atomic::AtomicBool;

use super::preflight_limits;
use super::prepare::prepare;
use crate::error::Result;
use crate::machine;
use crate::plan::{Estimate, Plan, Quota, StoreState};
use crate::work::backbone::BackbonePlan;
use crate::work::event::Reporter;
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
