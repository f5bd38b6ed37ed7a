//! Workers that share a grid take a backbone each.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::plan::Plan;
use crate::work::lock::lock;
use ghostlab_store::{ClaimResult, Lease, Store};

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
