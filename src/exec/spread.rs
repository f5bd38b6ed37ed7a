//! How workers that share a grid avoid each other: each takes a backbone, and looks again at others' work only when
//! something changes there.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use super::schedule::Scheduled;
use crate::plan::Plan;
use crate::work::progress::lock;
use ghostlab_store::{ClaimResult, Lease, Store};

/// Both, of one worker.
#[derive(Default)]
pub(super) struct Spread {
    pub(super) seat: SeatClaim,
    pub(super) sightings: Sightings,
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

/// Prefix of claims on a backbone.
const SEAT: &str = "at-";

/// A worker's last view of others' claims on jobs. While these claims are unchanged, nothing new is available there;
/// one listing shows changes of all jobs.
#[derive(Default)]
pub(super) struct Sightings(Mutex<Sighted>);

#[derive(Default)]
struct Sighted {
    /// The claims of a job, and since when they are the same.
    jobs: HashMap<String, (Vec<String>, Duration)>,
    /// How many jobs were looked at in this round because nothing has changed there for long.
    probes: usize,
}

impl Sightings {
    /// Time after which a job is checked anyway: its workers may be dead.
    const PROBE: Duration = Duration::from_secs(10);
    /// Maximum number of such checks per round: hundreds of workers wait for hundreds of jobs.
    const PROBES: usize = 2;

    /// Returns whether a job's remaining work is leased by others.
    pub(super) fn others_at(&self, task: &Scheduled<'_>, store: &Store) -> bool {
        let claims = store
            .with_claims(|claims: &BTreeSet<String>| -> Vec<String> {
                claims.range(task.claim.clone()..).take_while(|name| name.starts_with(&task.claim)).cloned().collect()
            })
            .unwrap_or_default();
        let now = store.now();
        let Sighted { jobs, probes } = &mut *lock(&self.0);
        if claims.is_empty() {
            jobs.remove(&task.claim);
            return false;
        }
        let same = match jobs.get_mut(&task.claim) {
            Some((seen, since)) if *seen == claims => {
                let asks = now.saturating_sub(*since) >= Self::PROBE && *probes < Self::PROBES;
                if asks {
                    (*since, *probes) = (now, *probes + 1);
                }
                return !asks;
            }
            known => known.is_none() && task.exclusive,
        };
        jobs.insert(task.claim.clone(), (claims, now));
        same
    }

    /// Starts a new round of polling.
    pub(super) fn next_round(&self) {
        lock(&self.0).probes = 0;
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
            // A listing serves for a while.
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
