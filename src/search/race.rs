//! Elimination of candidates after each round.
//!
//! The leader is the candidate with the best mean gain (right answers or negative losses), with equal weight for each
//! stratum (task or text). A candidate is eliminated if it is significantly worse in a paired t-test within strata and,
//! for right or wrong answers, also in McNemar's exact test. The significance level is corrected for the number of
//! rounds (Bonferroni) and of remaining candidates (Holm). With two objectives, a single rival must be better in both.
//! [`docs/search.md`](../../docs/search.md) reports simulated savings and error rates.

use crate::significance::mcnemar_exact;
use crate::significance::stratified::{StratifiedMean, holm_correction};

/// Leader and eliminated candidates after a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Index of the candidate that is best in the first objective.
    pub leader: usize,
    pub out: Vec<Elimination>,
}

/// Elimination of a candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Elimination {
    pub candidate: usize,
    /// Index of the candidate that is significantly better.
    pub rival: usize,
    /// Two-sided p-value before Holm's correction. With two objectives, the larger of the two p-values times the number
    /// of rivals.
    pub p: f64,
}

/// Decides which candidates are eliminated after a round. `objectives` contains the gains by candidate and stratum,
/// with items in the same order for all candidates. Larger gains are better. `level` bounds the probability of a wrong
/// elimination. Returns `None` if no candidate is alive.
pub fn eliminate<S: AsRef<[f64]>>(alive: &[usize], objectives: &[Vec<Vec<S>>], level: f64) -> Option<Verdict> {
    let first = objectives.first()?;
    let leader = find_leader(alive, first)?;
    let rivals = if objectives.len() == 1 { vec![leader] } else { pareto_front(alive, objectives) };
    let others = alive.iter().copied().filter(|racer| objectives.len() > 1 || *racer != leader);
    let exits: Vec<Elimination> = others
        .map(|candidate| {
            let closest = rivals
                .iter()
                .filter(|rival| **rival != candidate)
                .map(|&rival| (rival, intersection_union_p(candidate, rival, objectives) * rivals.len() as f64));
            let (rival, p) = closest.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((leader, 1.0));
            Elimination { candidate, rival, p: p.min(1.0) }
        })
        .collect();
    let rejected = holm_correction(&exits.iter().map(|exit| exit.p).collect::<Vec<_>>(), level);
    let out = exits.into_iter().zip(rejected).filter(|(_, out)| *out).map(|(exit, _)| exit).collect();
    Some(Verdict { leader, out })
}

/// Returns the candidate with the largest mean. The first one wins a tie.
fn find_leader<S: AsRef<[f64]>>(alive: &[usize], objective: &[Vec<S>]) -> Option<usize> {
    let means = alive.iter().map(|&candidate| (candidate, mean_of_means(&objective[candidate])));
    let best = means.reduce(|best, other| if other.1 > best.1 { other } else { best });
    best.map(|(candidate, _)| candidate)
}

/// Returns the mean over all non-empty strata of their mean gains.
pub fn mean_of_means<S: AsRef<[f64]>>(strata: &[S]) -> f64 {
    let means = strata.iter().map(AsRef::as_ref).filter(|values| !values.is_empty());
    let means: Vec<f64> = means.map(|values| values.iter().sum::<f64>() / values.len() as f64).collect();
    means.iter().sum::<f64>() / means.len() as f64
}

/// Computes the p-value of the intersection-union test that a candidate is worse in every objective. This is the
/// largest p-value of any objective, or 1 if in some objective the candidate is not worse.
fn intersection_union_p<S: AsRef<[f64]>>(candidate: usize, rival: usize, objectives: &[Vec<Vec<S>>]) -> f64 {
    objectives
        .iter()
        .map(|objective| match StratifiedMean::paired(&objective[rival], &objective[candidate]) {
            Some(difference) if difference.mean > 0.0 => {
                difference.p().max(mcnemar_p(&objective[rival], &objective[candidate]))
            }
            _ => 1.0,
        })
        .fold(0.0, f64::max)
}

/// Computes the p-value of McNemar's exact test for right or wrong answers, for which a t-test is too optimistic if few
/// answers differ. Returns 0 for other gains, so that the t-test decides.
fn mcnemar_p<S: AsRef<[f64]>>(rival: &[S], candidate: &[S]) -> f64 {
    let mut only_rival = 0;
    let mut only_candidate = 0;
    for (&a, &b) in rival.iter().zip(candidate).flat_map(|(a, b)| a.as_ref().iter().zip(b.as_ref())) {
        if ![a, b].into_iter().all(|gain| gain == 0.0 || gain == 1.0) {
            return 0.0;
        }
        only_rival += u64::from(a > b);
        only_candidate += u64::from(a < b);
    }
    mcnemar_exact(only_rival, only_candidate)
}

/// Returns the Pareto front: the candidates that no other candidate beats in every objective.
pub fn pareto_front<S: AsRef<[f64]>>(alive: &[usize], objectives: &[Vec<Vec<S>>]) -> Vec<usize> {
    let all: Vec<(usize, Vec<f64>)> = alive
        .iter()
        .map(|&racer| (racer, objectives.iter().map(|objective| mean_of_means(&objective[racer])).collect()))
        .collect();
    all.iter()
        .filter(|(_, means)| !all.iter().any(|(_, other)| other.iter().zip(means).all(|(other, mean)| other > mean)))
        .map(|(racer, _)| *racer)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the gains of a candidate that answers `count` of 40 questions correctly in each of two tasks.
    fn right_answers(count: usize) -> Vec<Vec<f64>> {
        vec![hits(count, 0), hits(count, 3)]
    }

    fn hits(count: usize, shift: usize) -> Vec<f64> {
        (0..40).map(|at| f64::from(u8::from((at * 7 + shift) % 40 < count))).collect()
    }

    #[test]
    fn only_significantly_worse_candidates_are_eliminated() {
        let gains = vec![right_answers(38), right_answers(10), right_answers(37), right_answers(38)];
        let verdict = eliminate(&[0, 1, 2, 3], std::slice::from_ref(&gains), 0.01).unwrap();
        assert_eq!(verdict.leader, 0);
        assert_eq!(verdict.out.iter().map(|exit| (exit.candidate, exit.rival)).collect::<Vec<_>>(), [(1, 0)]);
        assert!(verdict.out[0].p < 1e-9);
        // Only the given candidates are compared.
        assert!(eliminate(&[2, 3], &[gains], 0.01).unwrap().out.is_empty());
    }

    #[test]
    fn candidate_is_eliminated_only_if_worse_in_both_objectives() {
        // Candidate 0 is best in the first objective, and candidate 1 in the second. Candidate 2 is worse than
        // candidate 0 in both. Candidate 3 is worse than each of the first two in one objective only.
        let first = vec![right_answers(38), right_answers(20), right_answers(20), right_answers(30)];
        let second = vec![right_answers(20), right_answers(38), right_answers(5), right_answers(30)];
        let verdict = eliminate(&[0, 1, 2, 3], &[first, second], 0.01).unwrap();
        assert_eq!(verdict.out.iter().map(|exit| exit.candidate).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn equal_candidates_are_never_eliminated() {
        let verdict = eliminate(&[0, 1], &[vec![right_answers(20), right_answers(20)]], 0.5).unwrap();
        assert_eq!(verdict, Verdict { leader: 0, out: Vec::new() });
        assert_eq!(eliminate::<Vec<f64>>(&[], &[vec![]], 0.5), None);
    }
}
