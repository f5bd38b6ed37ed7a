//! How workers that share a grid keep out of each other's way: each takes a backbone, and looks at what others are at only when
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

/// What the names of seats begin with.
const SEAT: &str = "at-";

/// What a worker saw of others at jobs, by their claims. As long as these stay the same nothing is left there that was not
/// before: whether it changes, one listing tells of all jobs.
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
    /// After so long a job is looked at all the same: those that are at it may be dead.
    const PROBE: Duration = Duration::from_secs(10);
    /// So many of them in a round: hundreds of workers wait for hundreds of jobs.
    const PROBES: usize = 2;

    /// Whether others are at all of a job, as far as one can tell.
    pub(super) fn others_at(&self, task: &Scheduled<'_>, store: &Store) -> bool {
        let of = |claims: &BTreeSet<String>| -> Vec<String> {
            claims.range(task.claim.clone()..).take_while(|name| name.starts_with(&task.claim)).cloned().collect()
        };
        let (claims, now) = (store.with_claims(of).unwrap_or_default(), store.now());
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
            known => known.is_none() && task.whole,
        };
        jobs.insert(task.claim.clone(), (claims, now));
        same
    }

    /// A new round of looks begins.
    pub(super) fn next_round(&self) {
        lock(&self.0).probes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::progress::Progressed;

    #[test]
    fn a_job_that_others_are_at_is_looked_at_again_when_something_changes_there() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), crate::stage::WORDS).unwrap();
        let sightings = Sightings::default();
        let job = |claim: &str, whole: bool| Scheduled {
            after: Vec::new(),
            model: 0,
            bytes: 0,
            claim: claim.to_owned(),
            whole,
            run: Box::new(|| Ok(Progressed::Done)),
        };
        let (calibration, text) = (job("calibrate", true), job("text", false));
        let others_at = |task: &Scheduled<'_>| {
            // A listing serves for a while.
            std::thread::sleep(Duration::from_millis(250));
            sightings.others_at(task, &store)
        };
        let claim = |name: &str| match store.claim(name).unwrap() {
            ClaimResult::Mine(lease) => lease,
            ClaimResult::Theirs(_) => panic!("{name} is taken"),
        };
        assert!(!others_at(&calibration) && !others_at(&text), "nobody is there");
        let leases = ["calibrate", "text-1", "text-2"].map(claim);
        assert!(others_at(&calibration), "who has the one claim does all of it");
        assert!(!others_at(&text), "a chunk may be free");
        assert!(others_at(&text), "none was, and nothing has changed");
        let [calibrating, one, _two] = leases;
        drop(one);
        assert!(!others_at(&text) && others_at(&text), "a chunk was given back");
        drop(calibrating);
        assert!(!others_at(&calibration));
    }
}
