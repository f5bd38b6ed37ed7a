//! Random sample of windows or documents.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::corpus::PythonRandom;
use crate::error::Result;

/// Range of positions in a random order of the items. The order equals Python's `random.Random(seed).sample(range(n),
/// n)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    pub seed: u64,
    /// First position.
    pub from: usize,
    /// End position, exclusive.
    pub to: usize,
}

impl Draw {
    /// Returns the item indices in the range, in random order. `count` is the total number of items.
    ///
    /// # Errors
    /// Propagates errors from [`PythonRandom::sample`].
    pub fn indices(&self, count: usize) -> Result<Vec<usize>> {
        let order = PythonRandom::new(self.seed).sample(count, count)?;
        let to = self.to.min(count);
        Ok(order[self.from.min(to)..to].to_vec())
    }

    /// Returns the number of items drawn out of `total` items.
    pub fn drawn_count(&self, total: usize) -> usize {
        self.to.min(total).saturating_sub(self.from)
    }
}

/// Formats the positions and the seed, such as `8-16@0`.
impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, from, to } = self;
        write!(f, "{from}-{to}@{seed}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw_ranges_partition_the_python_sample() {
        let [a, b, c, none] =
            [(0, 4), (4, 8), (8, 16), (12, 20)].map(|(from, to)| Draw { seed: 7, from, to }.indices(10).unwrap());
        // Expected: `random.Random(7).sample(range(10), 10)` in Python 3.11.
        assert_eq!([a, b, c].concat(), [5, 2, 6, 9, 0, 7, 4, 1, 3, 8]);
        assert_eq!(Draw { seed: 7, from: 8, to: 16 }.drawn_count(10), 2);
        assert!(none.is_empty());
    }
}
