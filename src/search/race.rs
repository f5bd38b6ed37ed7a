//! Decides after each round which candidates are eliminated, and which leads.
//!
//! The leader has the best mean of means. Who is worse than it by a paired t-test within strata, and on right and wrong answers by
//! McNemar's exact test as well, leaves, at a level that is held over rounds (Bonferroni) and over those alive (Holm). Of two objectives a candidate leaves only when one rival is proven
//! better in both. [`docs/search.md`](../../docs/search.md) has what this costs and loses, simulated on stored scores.

use crate::significance::mcnemar_exact;
use crate::significance::stratified::{Stratified, holm};

/// Verdict of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The best of the first objective.
    pub leader: usize,
    /// Eliminated candidates, in order.
    pub out: Vec<Exit>,
}

/// Why a candidate leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exit {
    pub candidate: usize,
    /// The one that is better.
    pub rival: usize,
    /// Two-sided, before the correction for many; of two objectives the larger one, times the rivals that were looked at.
    pub p: f64,
}

/// Judges a round. `objectives` holds the gains so far by candidate and stratum: larger is better, and an item has the
/// same position for all candidates. `level` is the probability of any wrong elimination in this round.
pub fn judge<S: AsRef<[f64]>>(alive: &[usize], objectives: &[Vec<Vec<S>>], level: f64) -> Option<Verdict> {
    let mean = |objective: &Vec<Vec<S>>, candidate: usize| mean_of_means(&objective[candidate]);
    let best = |objective: &Vec<Vec<S>>| {
        // The first of equal ones.
        let better = |best, other| if mean(objective, other) > mean(objective, best) { other } else { best };
        alive.iter().copied().reduce(better)
    };
    let first = objectives.first()?;
    let leader = best(first)?;
    let rivals = if objectives.len() == 1 { vec![leader] } else { front(alive, objectives) };
    let others = alive.iter().copied().filter(|racer| objectives.len() > 1 || *racer != leader);
    let exits: Vec<Exit> = others
        .map(|candidate| {
            let closest = rivals
                .iter()
                .filter(|rival| **rival != candidate)
                .map(|&rival| (rival, worse(candidate, rival, objectives) * rivals.len() as f64));
            let (rival, p) = closest.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((leader, 1.0));
            Exit { candidate, rival, p: p.min(1.0) }
        })
        .collect();
    let rejected = holm(&exits.iter().map(|exit| exit.p).collect::<Vec<_>>(), level);
    let out = exits.into_iter().zip(rejected).filter(|(_, out)| *out).map(|(exit, _)| exit).collect();
    Some(Verdict { leader, out })
}

/// Averages the means of nonempty strata.
pub fn mean_of_means<S: AsRef<[f64]>>(strata: &[S]) -> f64 {
    let means = strata.iter().map(AsRef::as_ref).filter(|values| !values.is_empty());
    let means: Vec<f64> = means.map(|values| values.iter().sum::<f64>() / values.len() as f64).collect();
    means.iter().sum::<f64>() / means.len() as f64
}

/// Computes the p of a candidate being worse than a rival in every objective: the largest of the objectives' p (an
/// intersection-union test needs no correction); 1 if it is not worse in one.
fn worse<S: AsRef<[f64]>>(candidate: usize, rival: usize, objectives: &[Vec<Vec<S>>]) -> f64 {
    objectives
        .iter()
        .map(|seses| match Stratified::paired(&seses[rival], &seses[candidate]) {
            Some(difference) if difference.mean > 0.0 => difference.p().max(exact(&seses[rival], &seses[candidate])),
            _ => 1.0,
        })
        .fold(0.0, f64::max)
}

/// Computes McNemar's exact p if gains are answers, because a t-test is too optimistic for few differences. 0, which bounds
/// nothing, for other gains.
fn exact<S: AsRef<[f64]>>(rival: &[S], candidate: &[S]) -> f64 {
    let pairs = || rival.iter().zip(candidate).flat_map(|(a, b)| a.as_ref().iter().zip(b.as_ref()));
    if !pairs().all(|(a, b)| [a, b].into_iter().all(|gain| *gain == 0.0 || *gain == 1.0)) {
        return 0.0;
    }
    let only = |compare: fn(&f64, &f64) -> bool| pairs().filter(|(a, b)| compare(a, b)).count() as u64;
    mcnemar_exact(only(|a, b| a > b), only(|a, b| a < b))
}

/// Returns the candidates that no other beats in every objective so far.
pub fn front<S: AsRef<[f64]>>(alive: &[usize], objectives: &[Vec<Vec<S>>]) -> Vec<usize> {
    let means =
        |racer: usize| -> Vec<f64> { objectives.iter().map(|objective| mean_of_means(&objective[racer])).collect() };
    let all: Vec<(usize, Vec<f64>)> = alive.iter().map(|&racer| (racer, means(racer))).collect();
    let beaten =
        |numbers: &[f64]| all.iter().any(|(_, other)| other.iter().zip(numbers).all(|(other, merits)| other > merits));
    all.iter().filter(|(_, merits)| !beaten(merits)).map(|(racer, _)| *racer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns gains of a candidate with `count` of 40 correct answers, the first ones of each of two tasks.
    fn right(count: usize) -> Vec<Vec<f64>> {
        vec![hits(count, 0), hits(count, 3)]
    }

    fn hits(count: usize, shift: usize) -> Vec<f64> {
        (0..40).map(|at| f64::from(u8::from((at * 7 + shift) % 40 < count))).collect()
    }

    #[test]
    fn who_is_worse_beyond_chance_leaves_and_who_is_near_stays() {
        let gains = vec![right(38), right(10), right(37), right(38)];
        let verdict = judge(&[0, 1, 2, 3], std::slice::from_ref(&gains), 0.01).unwrap();
        assert_eq!(verdict.leader, 0);
        assert_eq!(verdict.out.iter().map(|exit| (exit.candidate, exit.rival)).collect::<Vec<_>>(), [(1, 0)]);
        assert!(verdict.out[0].p < 1e-9);
        // Only among the remaining ones.
        assert!(judge(&[2, 3], &[gains], 0.01).unwrap().out.is_empty());
    }

    #[test]
    fn of_two_objectives_only_what_one_rival_beats_in_both_leaves() {
        // 0 is the best of the first, 1 of the second; 2 is worse than 0 in both; 3 is worse than each in one.
        let first = vec![right(38), right(20), right(20), right(30)];
        let second = vec![right(20), right(38), right(5), right(30)];
        let verdict = judge(&[0, 1, 2, 3], &[first, second], 0.01).unwrap();
        assert_eq!(verdict.out.iter().map(|exit| exit.candidate).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn equals_are_never_parted() {
        let verdict = judge(&[0, 1], &[vec![right(20), right(20)]], 0.5).unwrap();
        assert_eq!(verdict, Verdict { leader: 0, out: Vec::new() });
        assert_eq!(judge::<Vec<f64>>(&[], &[vec![]], 0.5), None);
    }
}
