//! Which cells and chunks are drawn. A draw depends on its seed and on what is drawn, on nothing else: the same call draws the
//! same on every machine.

use std::collections::BTreeSet;

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

/// Which cells are drawn, and the part of the chunks of each of them: together they make the share of all. `groups` says
/// what each cell is calibrated with. First groups are drawn, then cells of these, then chunks: a calibration,
/// which takes longest, serves all cells of its group, and a cell that is wrong as a whole is likelier found than a number.
/// Neither depends on the folder, so that what several folders share is computed once.
pub(super) fn cells(seed: u64, groups: &[String], names: &[String], share: f64) -> (Vec<usize>, f64) {
    let kinds: Vec<&String> = groups.iter().collect::<BTreeSet<_>>().into_iter().collect();
    let chosen = ranked(seed, &kinds, share.sqrt());
    let among: Vec<usize> = (0..groups.len()).filter(|&at| chosen.contains(&groups[at].as_str())).collect();
    let own: Vec<&String> = among.iter().map(|&at| &names[at]).collect();
    let part = (share * groups.len() as f64 / among.len().max(1) as f64).min(1.0);
    let chosen = ranked(seed, &own, part.sqrt());
    let cells: Vec<usize> = among.into_iter().filter(|&at| chosen.contains(&names[at].as_str())).collect();
    let part = (share * groups.len() as f64 / cells.len().max(1) as f64).min(1.0);
    (cells, part)
}

/// That part of some texts, rounded up and at least one, by a hash of each alone.
fn ranked<'a>(seed: u64, of: &[&'a String], part: f64) -> BTreeSet<&'a str> {
    let count = ((part * of.len() as f64 - 1e-9).ceil().max(1.0) as usize).min(of.len());
    let mut all: Vec<(String, &str)> =
        of.iter().map(|text| (sha256::of_bytes(format!("{seed}/{text}")), text.as_str())).collect();
    all.sort_unstable();
    all.into_iter().take(count).map(|(_, text)| text).collect()
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
    fn cells_and_chunks_make_the_share_and_few_calibrations_are_needed() {
        let of = |count: usize| -> (Vec<String>, Vec<String>) {
            (0..count).map(|at| (format!("backbone {}", at % 3), format!("cell {at}"))).unzip()
        };
        for (share, count) in [(0.05, 66), (0.02, 57), (1.0, 5), (0.5, 1), (0.02, 2)] {
            let (groups, names) = of(count);
            let (drawn, chunks) = cells(7, &groups, &names, share);
            assert!(!drawn.is_empty() && drawn.len() <= count);
            let made = drawn.len() as f64 * chunks / count as f64;
            assert!((made - share).abs() < 1e-9, "{share} {count} {drawn:?} {chunks}");
            let kinds: BTreeSet<&String> = drawn.iter().map(|&at| &groups[at]).collect();
            assert!(share > 0.1 || kinds.len() <= 2, "{kinds:?}");
        }
        // The same cells wherever they stand.
        let (groups, names) = of(57);
        let (first, _) = cells(7, &groups, &names, 0.02);
        let reversed = |of: &[String]| of.iter().rev().cloned().collect::<Vec<_>>();
        let (again, _) = cells(7, &reversed(&groups), &reversed(&names), 0.02);
        let mut again: Vec<usize> = again.iter().map(|at| 56 - at).collect();
        again.sort_unstable();
        assert_eq!(first, again);
        assert_ne!(first, cells(8, &groups, &names, 0.02).0);
    }
}
