//! Score differences between two variants on common items.

use super::candidates::Racer;
use super::env::{Gains, Track, scale_score};
use super::race::mean_of_means;
use super::{CandidateOutcome, Lead, Score};
use crate::significance::stratified::StratifiedMean;

/// Returns the score differences between two variants that were scored on the same items, one per objective.
pub(super) fn score_differences(tracks: &[Track], gains: &[Gains], other: &[Gains]) -> Vec<Score> {
    let pairs = tracks.iter().zip(gains.iter().zip(other));
    pairs
        .map(|(track, (gain, other))| {
            let mean = mean_of_means(gain) - mean_of_means(other);
            scale_score(StratifiedMean::paired(gain, other), mean, track)
        })
        .collect()
}

/// Returns the score differences between a candidate and its rival on the items that both were scored on, one per
/// objective. The rival is the candidate that eliminated it or, for a survivor, the winner.
pub(super) fn differences_to_rival(tracks: &[Track], racers: &[Racer], at: usize, winner: Option<usize>) -> Vec<Score> {
    let rival = match &racers[at].outcome {
        CandidateOutcome::Out { rival, .. } => racers.iter().position(|racer| racer.cell.name == *rival),
        CandidateOutcome::Survived | CandidateOutcome::Slow { .. } => winner,
        CandidateOutcome::Failed { .. } => None,
    };
    let Some(rival) = rival.filter(|rival| *rival != at) else { return Vec::new() };
    let gains = &racers[at].gains;
    score_differences(tracks, gains, &first_items(&racers[rival].gains, gains))
}

/// Truncates the gains in each stratum to the number of items in `like`.
fn first_items(gains: &[Gains], like: &[Gains]) -> Vec<Gains> {
    gains
        .iter()
        .zip(like)
        .map(|(gains, like)| {
            gains.iter().zip(like).map(|(values, like)| values[..like.len().min(values.len())].to_vec()).collect()
        })
        .collect()
}

/// Returns the winner's lead over plain removal on the raced items and on the held-out items. `raced` and `held_out`
/// each contain the winner's gains and those of plain removal.
pub(super) fn leads(tracks: &[Track], raced: (&[Gains], &[Gains]), held_out: (&[Gains], &[Gains])) -> Vec<Lead> {
    let raced = score_differences(tracks, raced.0, raced.1);
    let held_out = score_differences(tracks, held_out.0, held_out.1);
    let pairs = tracks.iter().zip(raced.into_iter().zip(held_out));
    pairs
        .map(|(track, (raced, held_out))| Lead { raced: orient(track, raced), held_out: orient(track, held_out) })
        .collect()
}

/// Flips the sign of a difference if lower values of the objective are better.
fn orient(track: &Track, score: Score) -> Score {
    Score { mean: score.mean * track.scale.signum(), ..score }
}
