//! Coordination of the workers of a grid.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use super::schedule::Scheduled;
use crate::plan::Plan;
use crate::work::progress::lock;
use ghostlab_store::{ClaimResult, Lease, Store};

/// Coordination state of one worker.
#[derive(Default)]
pub(super) struct Spread {
    pub(super) seat: SeatClaim,
    pub(super) sightings: Sightings,
}

/// Distribution of workers over backbones. A worker takes the backbone with the fewest workers and stays with it until
/// it is finished, to load one backbone at a time.
#[derive(Default)]
pub(super) struct SeatClaim(Mutex<Option<Lease>>);

impl SeatClaim {
    /// Chooses one of `backbones` (indices into the plan). A worker holds the lease of a numbered seat, so the backbone
    /// with the lowest free number has the fewest workers.
    pub(super) fn choose(&self, plan: &Plan<'_>, backbones: &[usize], store: &Store) -> usize {
        let mut seat = lock(&self.0);
        // Release the current seat first, because it may be the best choice.
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

/// Prefix of seat lease names.
const SEAT: &str = "at-";

/// Last observed leases of other workers, by job. While the leases of a job are unchanged, it has no new work to take.
#[derive(Default)]
pub(super) struct Sightings(Mutex<HashMap<String, (Vec<String>, Duration)>>);

impl Sightings {
    /// Time after which an unchanged job is polled anyway, because its workers may have died.
    const PROBE: Duration = Duration::from_secs(10);

    pub(super) fn others_at(&self, task: &Scheduled<'_>, store: &Store) -> bool {
        let claims = store
            .with_claims(|claims: &BTreeSet<String>| -> Vec<String> {
                claims.range(task.claim.clone()..).take_while(|name| name.starts_with(&task.claim)).cloned().collect()
            })
            .unwrap_or_default();
        let now = store.now();
        let mut jobs = lock(&self.0);
        if claims.is_empty() {
            jobs.remove(&task.claim);
            return false;
        }
        let same = match jobs.get(&task.claim) {
            Some((seen, since)) if *seen == claims && now.saturating_sub(*since) < Self::PROBE => return true,
            known => known.is_none() && task.exclusive,
        };
        jobs.insert(task.claim.clone(), (claims, now));
        same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::progress::Progressed;

    #[test]
    fn contended_job_is_rechecked_when_its_lease_changes() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), crate::stage::WORDS).unwrap();
        let sightings = Sightings::default();
        let calibration = job("calibrate", true);
        let text = job("text", false);
        let others_at = |task: &Scheduled<'_>| {
            std::thread::sleep(Duration::from_millis(250));
            sightings.others_at(task, &store)
        };
        assert!(!others_at(&calibration) && !others_at(&text), "no worker is left");
        let leases = ["calibrate", "text-1", "text-2"].map(|name| match store.claim(name).unwrap() {
            ClaimResult::Mine(lease) => lease,
            ClaimResult::Theirs(_) => panic!("{name} is taken"),
        });
        assert!(others_at(&calibration), "who has the one claim does all of it");
        assert!(!others_at(&text), "a chunk may be free");
        assert!(others_at(&text), "none was, and nothing has changed");
        let [calibrating, one, _two] = leases;
        drop(one);
        assert!(!others_at(&text) && others_at(&text), "a chunk was given back");
        drop(calibrating);
        assert!(!others_at(&calibration));
    }

    fn job(claim: &str, exclusive: bool) -> Scheduled<'_> {
        Scheduled {
            after: Vec::new(),
            model: 0,
            bytes: 0,
            claim: claim.to_owned(),
            exclusive,
            run: Box::new(|| Ok(Progressed::Done)),
        }
    }
}
