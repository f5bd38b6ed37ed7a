//! One text or task: the variants that have no scores on it yet, scored together.

use std::collections::BTreeSet;

use super::context::Context;
use super::models::Models;
use super::programs::Programs;
use super::schedule::Progressed;
use super::score::{ChunkRun, ChunkState};
use super::tokenise;
use crate::error::{ErrorKind, Result};
use crate::model::Program;
use crate::plan::{BackbonePlan, JobPlace, Variant};
use crate::stage::tokens::Text;
use ghostlab_store::Key;

/// A scoring to which a process comes back after others were at it.
pub(super) type Kept = Option<(Text, ChunkState)>;

/// Scores some variants on the evaluation at `place`. One without a program fails alone. What is `kept` is gone on with.
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
    kept: &mut Kept,
) -> Result<Progressed> {
    let evaluation = &backbone.evaluations[place];
    let label = backbone.label(JobPlace::Evaluation(place));
    let program = |key: &Key| program(run, programs, backbone, variants, key);
    let on = |text: &Text, step: &mut dyn FnMut(&ChunkRun<'_>) -> Result<Progressed>| {
        text.with_eval_set(run.settings.batch_tokens, |eval_set| {
            let journal = evaluation.journal.clone();
            step(&ChunkRun { run, models, backbone, eval_set, label: &label, program: &program, journal, within: None })
        })
    };
    let (text, mut scoring) = match kept.take() {
        Some((text, scoring)) => (text, Some(scoring)),
        None => {
            let mut keys: Vec<_> = variants.iter().map(|variant| variant.scores[place].clone()).collect();
            // Two cells may be one variant: the same key needs one score.
            let mut seen = BTreeSet::new();
            keys.retain(|key| seen.insert(key.hash().to_string()));
            let text = tokenise::text(run, backbone, &evaluation.subject, &evaluation.tokens)?;
            let mut scoring = None;
            on(&text, &mut |job| {
                scoring = Some(job.begin(std::mem::take(&mut keys))?);
                Ok(Progressed::Done)
            })?;
            (text, scoring)
        }
    };
    let Some(going) = &mut scoring else { return Ok(Progressed::Done) };
    let step = on(&text, &mut |job| job.go_on(going))?;
    if step == Progressed::Busy {
        *kept = scoring.map(|scoring| (text, scoring));
    }
    Ok(step)
}

/// The program of those variants whose scores have a key. Where they have none, they fail.
fn program(
    run: &Context<'_>,
    programs: &Programs,
    backbone: &BackbonePlan,
    variants: &[&Variant],
    key: &Key,
) -> Result<Option<Program>> {
    let mut found = None;
    for variant in variants.iter().filter(|variant| variant.scores.iter().any(|of| of.hash() == key.hash())) {
        match programs.of(run, backbone, variant) {
            Ok(program) => found = Some(program),
            Err(error) if matches!(error.kind(), ErrorKind::Job | ErrorKind::Damaged) => {
                run.fail(variant.cell, error.one_line());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
