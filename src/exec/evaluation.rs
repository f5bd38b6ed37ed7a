//! One text or task: the variants that have no scores on it yet, scored together.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::context::Context;
use super::models::Models;
use super::programs::Programs;
use super::score::ScoringJob;
use super::tokenise;
use crate::error::{ErrorKind, Result};
use crate::plan::{BackbonePlan, Variant};

/// Scores some variants on the evaluation at `place`. One without a program fails alone.
///
/// # Errors
/// What stops the whole run, and what all variants suffer from.
pub(super) fn score(
    run: &Context<'_>,
    models: &Models<'_>,
    programs: &Programs,
    backbone: &BackbonePlan,
    place: usize,
    variants: &[&Variant],
) -> Result<()> {
    let evaluation = &backbone.evaluations[place];
    let mut candidates = Vec::new();
    for variant in variants.iter().filter(|variant| !run.failed(variant.cell)) {
        match programs.of(run, backbone, variant) {
            Ok(program) => candidates.push((Arc::clone(&variant.scores[place]), program)),
            Err(error) if matches!(error.kind(), ErrorKind::Job | ErrorKind::Damaged) => {
                run.fail(variant.cell, error.one_line());
            }
            Err(error) => return Err(error),
        }
    }
    // Two cells may be one variant: the same key needs one score.
    let mut seen = BTreeSet::new();
    candidates.retain(|(key, _)| seen.insert(key.hash().to_string()));
    if candidates.is_empty() {
        return Ok(());
    }
    let text = tokenise::text(run, backbone, &evaluation.subject, &evaluation.tokens)?;
    let label = format!("{} on {}", backbone.name, evaluation.subject);
    text.with_eval_set(run.settings.batch_tokens, |eval_set| {
        let journal = evaluation.journal.clone();
        ScoringJob { run, models, backbone, eval_set, label: &label, journal }.score(candidates)
    })
}
