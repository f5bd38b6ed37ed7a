//! What makes a run a worker: it shares the grid with others, tries a failed job no more often than all together may, and
//! may leave when nothing is left for it to do.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use super::lock::lock;
use crate::plan::Plan;
use ghostlab_store::{Attempt, ClaimResult, Lease, Store};

/// The terms on which a worker works.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerLimits {
    /// How often all workers together try a job again that failed.
    pub retries: u32,
    /// For how long it waits for work before it leaves; until all is done where none is given.
    pub idle_exit: Option<Duration>,
}

impl WorkerLimits {
    /// How often processes may die at a job, whatever of, before nobody tries it any more. Workers are killed for many
    /// reasons; a job that takes its worker down with it shows by how often it does.
    pub const DEATHS: usize = 5;

    /// Why nobody is to try a job again, after these attempts; none where it may be tried.
    pub(super) fn given_up(self, attempts: &[Attempt]) -> Option<String> {
        let died = attempts.iter().filter(|attempt| attempt.died).count();
        let failed = attempts.len() - died;
        let last = |died| attempts.iter().rfind(|attempt| attempt.died == died).map(|attempt| attempt.reason.clone());
        if failed > self.retries as usize {
            return last(false);
        }
        let last = last(true).filter(|_| died >= Self::DEATHS)?;
        Some(format!("{died} processes died at it, the last one: {last}"))
    }
}

/// Spreads workers over the backbones of a grid: each takes the backbone at which the fewest are, so that each loads one;
/// when nothing is left to do at its own, it takes the next.
#[derive(Default)]
pub(super) struct SeatClaim(Mutex<Option<Lease>>);

impl SeatClaim {
    /// Chooses one of some backbones, by their places in the plan. A worker is at a backbone as long as it has the claim
    /// of a seat there, and the one with the lowest free seat is where the fewest are.
    pub(super) fn choose(&self, plan: &Plan<'_>, backbones: &[usize], store: &Store) -> usize {
        let mut seat = lock(&self.0);
        // First the old one is given back: it may be the best.
        *seat = None;
        let first = backbones.first().copied().unwrap_or_default();
        let taken: BTreeSet<String> = store
            .with_claims(|claims| claims.iter().filter(|name| name.starts_with(SEAT)).cloned().collect())
            .unwrap_or_default();
        for number in 0..=taken.len() {
            for &backbone in backbones {
                let content = &plan.backbones[backbone].content;
                let name = format!("{SEAT}{}-{number}", content.get(..16).unwrap_or(content));
                if taken.contains(&name) {
                    continue;
                }
                if let Ok(ClaimResult::Mine(lease)) = store.claim(&name) {
                    *seat = Some(lease);
                    return backbone;
                }
            }
        }
        first
    }
}

/// What the names of seats begin with.
const SEAT: &str = "at-";

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(died: bool) -> Attempt {
        let [what, reason, process, host] = ["calibrate", "no room", "5-a", "node"].map(str::to_owned);
        Attempt { what, reason, died, process, host, time: 0 }
    }

    #[test]
    fn failures_are_bounded_by_retries_and_deaths_by_a_number_of_their_own() {
        let terms = |retries| WorkerLimits { retries, idle_exit: None };
        let failed = |count| vec![attempt(false); count];
        assert_eq!(terms(0).given_up(&[]), None);
        assert_eq!(terms(0).given_up(&failed(1)).as_deref(), Some("no room"));
        assert_eq!(terms(2).given_up(&failed(2)), None);
        assert!(terms(2).given_up(&failed(3)).is_some());
        let died = |count| vec![attempt(true); count];
        assert_eq!(terms(0).given_up(&died(WorkerLimits::DEATHS - 1)), None, "workers are killed for many reasons");
        let reason = terms(0).given_up(&died(WorkerLimits::DEATHS)).unwrap();
        assert!(reason.contains("5 processes died at it"), "{reason}");
        assert!(terms(1).given_up(&[failed(1), died(4)].concat()).is_none(), "each has its own bound");
    }
}
