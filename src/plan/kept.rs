//! What of a store some plans use: what `cache gc --keep` leaves alone.

use std::collections::BTreeSet;

use super::recipe::{PAIRS, SEQUENCES, SITE, TRIAL};
use super::{BackbonePlan, Plan};
use crate::store::{InventoryItem, Key};

/// The hashes of the artifacts that some plans use, and of all that these are made from.
#[derive(Debug, Default)]
pub struct KeptKeys(BTreeSet<String>);

impl KeptKeys {
    pub fn add(&mut self, plan: &Plan<'_>) {
        let of_variants = plan.variants().flat_map(|(_, variant)| variant.keys());
        let tokens = plan.backbones.iter().flat_map(BackbonePlan::tokens);
        of_variants.chain(tokens).for_each(|key| self.add_key(key));
    }

    fn add_key(&mut self, key: &Key) {
        if self.0.insert(key.hash().to_string()) {
            key.parents().for_each(|(_, parent)| self.add_key(parent));
        }
    }

    /// Of a pass all sites are kept, and of a criterion's perplexities all trials: another depth or recovery may use them.
    pub fn has(&self, entry: &InventoryItem) -> bool {
        let family = |fields: &[&str]| entry.hash_without(fields).is_some_and(|hash| self.0.contains(&hash));
        self.0.contains(&entry.hash)
            || family(&[TRIAL])
            || family(&[SITE, SEQUENCES])
            || family(&[PAIRS, SEQUENCES])
            || family(&[SEQUENCES])
    }
}
