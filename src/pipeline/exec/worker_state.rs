//! Coordination between the workers of a grid.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use super::schedule::ScheduledTask;
use crate::pipeline::env::coordination::lock;
use crate::pipeline::plan::Plan;
use crate::pipeline::stage::Order;
use ghostlab_store::{Lease, LeaseResult, Store};

/// State that a worker keeps to share the work with other workers.
#[derive(Default)]
pub(super) struct WorkerState {
    pub(super) seat: SeatLease,
    pub(super) seen_leases: SeenLeases,
}

/// Lease that shows other workers which backbone a worker has loaded. Each backbone has numbered leases, called seats.
/// Each of its workers holds one seat. A worker chooses the backbone with the fewest workers, and stays with it until
/// the backbone is finished. A worker thus loads only one backbone at a time.
#[derive(Default)]
pub(super) struct SeatLease(Mutex<Option<Lease>>);

impl SeatLease {
    /// Chooses the backbone with the fewest workers, and leases its lowest free seat. `backbones` and the result are
    /// indices into the plan.
    pub(super) fn choose(&self, plan: &Plan<'_>, backbones: &[usize], store: &Store) -> usize {
        let mut seat = lock(&self.0);
        // Release the current seat first, because it may turn out to be the best choice.
        *seat = None;
        let first = backbones.first().copied().unwrap_or_default();
        let taken: BTreeSet<String> = store
            .with_leases(|leases| leases.iter().filter(|name| name.starts_with(SEAT_PREFIX)).cloned().collect())
            .unwrap_or_default();
        for number in 0..=taken.len() {
            for &backbone in backbones {
                let content = &plan.backbones[backbone].dense.model.content;
                let name = format!("{SEAT_PREFIX}{}-{number}", content.get(..16).unwrap_or(content));
                if taken.contains(&name) {
                    continue;
                }
                if let Ok(LeaseResult::Acquired(lease)) = store.lease(&name) {
                    *seat = Some(lease);
                    return backbone;
                }
            }
        }
        first
    }
}

const SEAT_PREFIX: &str = "at-";

/// Last known leases of other workers, by job. A job is not retried while its leases are unchanged, because no part of
/// its work can have become free.
#[derive(Default)]
pub(super) struct SeenLeases(Mutex<HashMap<String, (Vec<String>, Duration)>>);

impl SeenLeases {
    /// Time after which a job is retried even if its leases are unchanged, because their owners may have died.
    const PROBE_INTERVAL: Duration = Duration::from_secs(10);

    /// Returns whether to skip a task because other workers hold its leases. A task with a single lease is skipped as
    /// soon as it is leased. Any other task is skipped only while its leases are unchanged.
    pub(super) fn is_leased_elsewhere(&self, task: &ScheduledTask<'_>, store: &Store) -> bool {
        let leases = store
            .with_leases(|leases: &BTreeSet<String>| -> Vec<String> {
                leases
                    .range(task.lease_name.clone()..)
                    .take_while(|name| name.starts_with(&task.lease_name))
                    .cloned()
                    .collect()
            })
            .unwrap_or_default();
        let now = store.now();
        let mut jobs = lock(&self.0);
        if leases.is_empty() {
            jobs.remove(&task.lease_name);
            return false;
        }
        let is_skipped = match jobs.get(&task.lease_name) {
            Some((seen, since)) if *seen == leases && now.saturating_sub(*since) < Self::PROBE_INTERVAL => return true,
            seen => seen.is_none() && task.order == Order::First,
        };
        jobs.insert(task.lease_name.clone(), (leases, now));
        is_skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::env::coordination::JobStatus;

    #[test]
    fn contended_job_is_rechecked_when_its_lease_changes() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), crate::pipeline::stage::STORE_WORDS).unwrap();
        let seen_leases = SeenLeases::default();
        let calibration = job("calibrate", Order::First);
        let text = job("text", Order::Then);
        let is_leased_elsewhere = |task: &ScheduledTask<'_>| {
            std::thread::sleep(Duration::from_millis(250));
            seen_leases.is_leased_elsewhere(task, &store)
        };
        assert!(!is_leased_elsewhere(&calibration) && !is_leased_elsewhere(&text), "there are no leases");
        let leases = ["calibrate", "text-1", "text-2"].map(|name| match store.lease(name).unwrap() {
            LeaseResult::Acquired(lease) => lease,
            LeaseResult::Contended(_) => panic!("{name} is taken"),
        });
        assert!(is_leased_elsewhere(&calibration), "the holder of the only lease does the complete job");
        assert!(!is_leased_elsewhere(&text), "a chunk may be free");
        assert!(is_leased_elsewhere(&text), "no chunk was free, and nothing has changed");
        let [calibrating, one, _two] = leases;
        drop(one);
        assert!(!is_leased_elsewhere(&text) && is_leased_elsewhere(&text), "a chunk was released");
        drop(calibrating);
        assert!(!is_leased_elsewhere(&calibration));
    }

    fn job(lease_name: &str, order: Order) -> ScheduledTask<'_> {
        ScheduledTask {
            dependencies: Vec::new(),
            model: 0,
            bytes: 0,
            lease_name: lease_name.to_owned(),
            order,
            run: Box::new(|| Ok(JobStatus::Done)),
        }
    }
}
