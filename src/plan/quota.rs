//! What of a store goes so that it stays within a limit: what is cheapest to make again for its bytes, and nothing that a
//! grid still needs.

use std::collections::BTreeSet;

use super::{KeepSet, Plan};
use ghostlab_store::{InventoryItem, Store};

/// How a store stands to a limit.
#[derive(Debug, Default)]
pub struct Quota {
    pub limit: u64,
    /// Bytes that the plan needs, or a living process.
    pub needed: u64,
    /// Bytes that nobody needs and that have room all the same.
    pub kept: u64,
    /// What goes, in this order.
    pub going: Vec<InventoryItem>,
    /// Bytes that will come.
    pub coming: u64,
}

impl Quota {
    /// Looks through a store into which `coming` bytes will be written. `in_use` are the hashes of what living processes
    /// have noted.
    pub fn of(plan: &Plan<'_>, store: &Store, in_use: &BTreeSet<String>, limit: u64, coming: u64) -> Self {
        let mut needed = KeepSet::default();
        needed.add_needed(plan, store);
        let needed = |entry: &InventoryItem| in_use.contains(&entry.hash) || (entry.current() && needed.has(entry));
        Self::divided(store.entries(), needed, limit, coming)
    }

    fn divided(entries: Vec<InventoryItem>, needed: impl Fn(&InventoryItem) -> bool, limit: u64, coming: u64) -> Self {
        let sum = |entries: &[InventoryItem]| entries.iter().map(InventoryItem::bytes).sum::<u64>();
        let (needed, mut others): (Vec<_>, Vec<_>) = entries.into_iter().partition(needed);
        let (needed, mut kept) = (sum(&needed), sum(&others));
        // Another version's are not this one's to judge.
        others.retain(|entry| !entry.older() && !entry.later());
        // What is damaged took no time, as far as anyone knows.
        let price = |entry: &InventoryItem| entry.seconds() / entry.bytes().max(1) as f64;
        others.sort_by(|a, b| price(a).total_cmp(&price(b)).then_with(|| a.hash.cmp(&b.hash)));
        let mut going = Vec::new();
        for entry in others {
            if needed + kept + coming <= limit {
                break;
            }
            kept -= entry.bytes();
            going.push(entry);
        }
        Self { limit, needed, kept, going, coming }
    }

    /// Bytes that are too many even when all goes that may.
    pub fn beyond(&self) -> u64 {
        (self.needed + self.kept + self.coming).saturating_sub(self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage;
    use ghostlab_store::Key;
    use serde_json::json;

    #[test]
    fn what_is_cheapest_for_its_bytes_goes_first_and_what_is_needed_never() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), stage::WORDS).unwrap();
        // Bytes, and the seconds that they took: 10, 1, 100 and 2 ms a byte.
        for (number, (bytes, seconds)) in [(100, 1.0), (1000, 1.0), (10, 1.0), (500, 1.0)].into_iter().enumerate() {
            let key = Key::new(stage::selection::KIND, json!({"number": number}), []);
            store.put(&key, seconds, &[("a", &vec![0; bytes])]).unwrap();
        }
        let quota = |needed: u64, limit: u64, coming: u64| {
            let quota = Quota::divided(store.entries(), |entry| entry.bytes() == needed, limit, coming);
            (quota.going.iter().map(InventoryItem::bytes).collect::<Vec<_>>(), quota.beyond())
        };
        assert_eq!(quota(0, 1610, 0), (vec![], 0));
        assert_eq!(quota(0, 1609, 0), (vec![1000], 0));
        assert_eq!(quota(0, 1610, 1001), (vec![1000, 500], 0));
        assert_eq!(quota(1000, 1100, 0), (vec![500, 100], 0), "the cheapest is needed");
        assert_eq!(quota(1000, 900, 0), (vec![500, 100, 10], 100));
    }
}
