//! What a variant scores on one text or task, and what a backbone without some layers scores on a calibration's text.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::chunks::{ChunkRun, ChunkState, dense, files};
use super::program::Programs;
use super::tokens::{self, Text};
use super::{Check, Cost, KeyedBackbone, Member, Stage, trial};
use crate::error::{ErrorKind, Result};
use crate::identity::Identity;
use crate::model::trie::Cost as TrieCost;
use crate::model::{Config, Load, Program, Trie};
use crate::work::backbone::{BackbonePlan, JobPlace, Variant};
use crate::work::context::Context;
use crate::work::models::Models;
use crate::work::progress::Progressed;
use ghostlab_store::Key;

pub use super::chunks::{KIND, journal, read};

/// Scores lie in files of many.
pub const STAGE: Stage =
    Stage { kind: KIND, check: Check::Whole, inodes: |_| 0, members: &[Member::Of(&[trial::REMOVED])], here: false };

/// The scores of a variant. Where it runs stands in its operator's key already.
pub fn key(backbone: KeyedBackbone<'_>, operator: Option<&Arc<Key>>, tokens: &Arc<Key>, what: &Arc<Identity>) -> Key {
    let of = operator.map_or_else(|| dense(backbone), |_| json!({"batch": backbone.batch_tokens}));
    let operator = operator.map(|operator| ("operator", Arc::clone(operator)));
    let parents = operator.into_iter().chain([("tokens", Arc::clone(tokens))]);
    Key::new(KIND, of, parents).named(backbone.name).about(what)
}

/// What scoring all variants takes, whose trie `all` is, and what of it is `missing`.
pub fn cost(config: &Config, all: &Trie, missing: &[Program], load: &Load) -> Cost {
    let TrieCost { shared, separate } = all.flops(config, load);
    let mut cost = Cost { separate, shared, ..Cost::default() };
    if !missing.is_empty() {
        cost.left = Trie::scoring(missing).flops(config, load).shared;
        cost.disk = missing.len() as u64 * 16 * load.scored as u64 / load.length.max(1) as u64;
        cost.inodes = files(missing.len());
    }
    cost
}

/// A scoring to which a process comes back after others were at it.
pub(crate) type Kept = Option<(Text, ChunkState)>;

/// Scores some variants on the evaluation at `place`. One without a program fails alone. What is `kept` is gone on with.
///
/// # Errors
/// What stops the whole run, and what all variants suffer from.
pub(crate) fn make(
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
            let text = tokens::text(run, backbone, &evaluation.subject, &evaluation.tokens)?;
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
