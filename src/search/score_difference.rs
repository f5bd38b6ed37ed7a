//! Score differences between two cells on common items.

use super::candidates::Racer;
use super::env::{Gains, Track, scale_score};
use super::race::mean_of_means;
use super::{CandidateOutcome, Lead, Score};
use crate::significance::stratified::StratifiedMean;

/// Returns the score differences between two cells that were scored on the same items, one per objective.
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
/// objective. The rival is the candidate that eliminated it or, if none did, the winner. The list is empty for the
/// winner and for failed candidates.
pub(super) fn differences_to_rival(
    tracks: &[Track],
    racers: &[Racer],
    candidate: usize,
    winner: Option<usize>,
) -> Vec<Score> {
    let rival = match &racers[candidate].outcome {
        CandidateOutcome::Out { rival, .. } => racers.iter().position(|racer| racer.cell.name == *rival),
        CandidateOutcome::Survived | CandidateOutcome::Slow { .. } => winner,
        CandidateOutcome::Failed { .. } => None,
    };
    let Some(rival) = rival.filter(|rival| *rival != candidate) else { return Vec::new() };
    let gains = &racers[candidate].gains;
    score_differences(tracks, gains, &truncate_gains(&racers[rival].gains, gains))
}

/// Truncates the gains in each stratum (task or text) to the number of items in `reference`.
fn truncate_gains(gains: &[Gains], reference: &[Gains]) -> Vec<Gains> {
    gains
        .iter()
        .zip(reference)
        .map(|(gains, reference)| {
            let pairs = gains.iter().zip(reference);
            pairs.map(|(values, reference)| values[..reference.len().min(values.len())].to_vec()).collect()
        })
        .collect()
}

/// Returns the winner's lead over plain removal on the raced items and on the held-out items. `raced` and `held_out`
/// each contain the winner's gains and those of plain removal.
pub(super) fn compute_leads(
    tracks: &[Track],
    raced: (&[Gains], &[Gains]),
    held_out: (&[Gains], &[Gains]),
) -> Vec<Lead> {
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
