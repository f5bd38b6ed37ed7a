//! Reads the stored results of a grid without running any jobs.

use std::collections::BTreeMap;

use super::preflight::{self, SurveyHook};
use crate::error::Result;
use crate::grid::Grid;
use crate::pipeline::env::event::Event;
use crate::pipeline::env::run_env::RunEnv;
use crate::pipeline::outcome::GridOutcome;
use crate::pipeline::plan::{Plan, StoreView};
use ghostlab_store::Attempt;

/// Reads the stored results of a grid, and the recorded failures of cells without results. Calls `surveyed` before
/// reading any results.
///
/// # Errors
/// Fails if an input cannot be read or an object is damaged.
pub fn read_stored(grid: &Grid, env: &RunEnv<'_>, surveyed: SurveyHook<'_>) -> Result<GridOutcome> {
    let RunEnv { store, settings, reporter, .. } = *env;
    let plan = Plan::new(grid, store, settings)?;
    preflight::report_warnings(grid, &plan, reporter);
    let state = StoreView::survey(&plan, store);
    surveyed(&plan, &state);
    state.damage_errors().for_each(|error| reporter.event(Event::Note { text: error.one_line() }));
    let failures = recorded_failures(&plan, &state, &store.all_attempts());
    let outcome = GridOutcome::read(&plan, store, &failures)?;
    let failed = outcome.failed_count();
    let incomplete = outcome.incomplete_count();
    reporter.event(Event::Ended { complete: outcome.cells.len() - failed - incomplete, failed, interrupted: false });
    Ok(outcome)
}

/// Returns the failure reasons of incomplete cells, by cell index. Each reason comes from the last failed attempt to
/// compute an object, a calibration or a [chunk](crate::evaluate::EvalSet) of scores for the cell.
fn recorded_failures(
    plan: &Plan<'_>,
    state: &StoreView,
    attempts: &BTreeMap<String, Vec<Attempt>>,
) -> BTreeMap<usize, String> {
    let mut failures = BTreeMap::new();
    for (backbone, variant) in plan.variants() {
        let failed_jobs = backbone.jobs().filter_map(|job| {
            let key = job.produced_keys(variant).into_iter().find(|key| !state.has(key))?;
            let lease_name = job.lease_name(backbone);
            last_failure_reason(attempts, key.hash())
                .or_else(|| last_failure_reason(attempts, &lease_name))
                .or_else(|| last_chunk_failure_reason(attempts, &lease_name))
        });
        if let Some(reason) = { failed_jobs }.next() {
            failures.insert(variant.cell, reason);
        }
    }
    failures
}

fn last_failure_reason(attempts: &BTreeMap<String, Vec<Attempt>>, name: &str) -> Option<String> {
    attempts.get(name)?.last().map(|attempt| attempt.reason.clone())
}

fn last_chunk_failure_reason(attempts: &BTreeMap<String, Vec<Attempt>>, journal: &str) -> Option<String> {
    let chunks = attempts.range(format!("{journal}-")..).take_while(|(name, _)| name.starts_with(journal));
    chunks.last().and_then(|(_, attempts)| attempts.last()).map(|attempt| attempt.reason.clone())
}
