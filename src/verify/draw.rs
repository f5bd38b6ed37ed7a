//! Which cells and chunks are drawn. A draw depends on its seed and on what is drawn, on nothing else: the same call draws the
//! same on every machine.

use crate::files::sha256;

/// Some of so many places, ascending: the share of them, rounded up, and at least one.
pub(super) fn drawn(seed: u64, what: &str, all: usize, share: f64) -> Vec<usize> {
    let mut ranked: Vec<(String, usize)> =
        (0..all).map(|at| (sha256::of_bytes(format!("{seed}/{what}/{at}")), at)).collect();
    ranked.sort();
    // A product like 0.05 × 100 may be a hair above 5.
    let count = ((share * all as f64 - 1e-9).ceil().max(1.0) as usize).min(all);
    let mut places: Vec<usize> = ranked.into_iter().take(count).map(|(_, at)| at).collect();
    places.sort_unstable();
    places
}

/// The part of the cells, and of the chunks of each of them, that make the share of all: as many of the one as of the
/// other, so that a cell that is wrong as a whole is more likely found than a single number.
pub(super) fn parts(share: f64, cells: usize) -> (usize, f64) {
    let drawn = ((share.sqrt() * cells as f64 - 1e-9).ceil().max(1.0) as usize).min(cells);
    (drawn, (share * cells as f64 / drawn.max(1) as f64).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_and_another_seed_draws_others() {
        assert_eq!(drawn(0, "a", 100, 0.05).len(), 5);
        assert_eq!(drawn(0, "a", 7, 0.01).len(), 1);
        assert_eq!(drawn(0, "a", 7, 1.0), [0, 1, 2, 3, 4, 5, 6]);
        assert!(drawn(0, "a", 0, 1.0).is_empty());
        assert_eq!(drawn(3, "a", 100, 0.1), drawn(3, "a", 100, 0.1));
        assert_ne!(drawn(3, "a", 100, 0.1), drawn(4, "a", 100, 0.1));
        assert_ne!(drawn(3, "a", 100, 0.1), drawn(3, "b", 100, 0.1));
    }

    #[test]
    fn cells_and_chunks_make_the_share() {
        for (share, cells) in [(0.05, 66), (0.02, 30), (1.0, 5), (0.5, 1)] {
            let (drawn, chunks) = parts(share, cells);
            assert!(drawn >= 1 && drawn <= cells);
            assert!((drawn as f64 * chunks / cells as f64 - share).abs() < 1e-9, "{share} {cells} {drawn} {chunks}");
        }
    }
}
