//! Scores variants on a text or task, and reports the results.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::chunks::ChunkRun;
use super::group::{Group, JobContext, Order, Programs, ResumeState};
use super::operator;
use super::scores::{self, KIND, VALUES_FILE, encode_values, read};
use super::task_scores::displayed_score;
use super::tokens::{self, AnswerKey, AnswerSource};
use crate::error::{Error, Result};
use crate::metric::Metric;
use crate::model::{CPU, Program};
use crate::pipeline::env::backbone::{BackbonePlan, EvalTarget, Evaluation, ScoredExtent, Variant};
use crate::pipeline::env::context::RunContext;
use crate::pipeline::env::coordination::JobStatus;
use crate::pipeline::env::event::{Event, WorkKind};
use ghostlab_store::{Key, Lookup};

/// Group of scoring jobs. Each job scores all variants on one text or task in a single [`Trie`](crate::model::Trie), so
/// that shared steps run once.
pub(crate) const GROUP: Group = Group {
    kind: WorkKind::Score,
    count: |backbone| backbone.evaluations.len(),
    label: |backbone, index| format!("{} on {}", backbone.name, backbone.evaluations[index].target),
    lease_name: |backbone, index| backbone.evaluations[index].journal.clone(),
    on: |backbone, index| Some(backbone.evaluations[index].target.to_string()),
    produced: |variant, index| variant.scores.get(index).into_iter().collect(),
    // Scoring keeps one operator per variant in memory.
    bytes: |backbone, variants| variants.len() as u64 * operator::matrix_bytes(&backbone.config),
    order: Order::Then,
    run: score_variants,
    report: report_scores,
};

/// Scores the given variants on an evaluation. If the program of a variant cannot be read, only its cells fail.
///
/// # Errors
/// Fails on errors that stop the run or affect all variants.
fn score_variants(
    job_context: &JobContext<'_>,
    backbone: &BackbonePlan,
    index: usize,
    variants: &[&Variant],
    resume_state: &mut ResumeState,
) -> Result<JobStatus> {
    let JobContext { run, programs } = *job_context;
    let evaluation = &backbone.evaluations[index];
    let variants: Vec<&Variant> = variants.iter().copied().filter(|variant| !run.has_failed(variant.cell)).collect();
    let stored = || run.store_view.are_stored(variants.iter().map(|variant| &variant.scores[index]));
    if resume_state.is_none() {
        // If other processes have stored everything, the inputs need not be read.
        if stored() {
            return Ok(JobStatus::Cached);
        }
        if reuse_full_scores(run, backbone, index, &variants)? && stored() {
            return Ok(JobStatus::Done);
        }
    }
    let label = (GROUP.label)(backbone, index);
    let program = |key: &Key| load_program(run, programs, backbone, &variants, key);
    let (text, begun) = match resume_state.take() {
        Some((text, scoring)) => (text, Some(scoring)),
        None => (tokens::load_tokens(run, backbone, &evaluation.target, &evaluation.tokens)?, None),
    };
    let (status, scoring) = {
        let eval_set = &*text.eval_set(backbone, &evaluation.target)?;
        let journal = evaluation.journal.clone();
        let label = &*label;
        let program = &program;
        let job = ChunkRun { run, backbone, eval_set, label, program, journal, calibration_guard: None, sample: None };
        let mut scoring = match begun {
            Some(scoring) => scoring,
            None => {
                // Several cells may have the same variant and thus the same key. Each key is scored once.
                let mut seen = BTreeSet::new();
                let keys = variants.iter().map(|variant| &variant.scores[index]).filter(|key| seen.insert(key.hash()));
                job.begin(keys.cloned().collect())?
            }
        };
        (job.advance(&mut scoring)?, scoring)
    };
    if status == JobStatus::Contended {
        *resume_state = Some((text, scoring));
    }
    Ok(status)
}

/// Stores the scores on a sample for the variants whose scores on the complete text or task are already stored. This is
/// possible only with the f32 CPU engine, whose scores do not depend on the batch. Returns whether there were any such
/// variants.
fn reuse_full_scores(
    run: &RunContext<'_>,
    backbone: &BackbonePlan,
    index: usize,
    variants: &[&Variant],
) -> Result<bool> {
    let evaluation = &backbone.evaluations[index];
    let extent = evaluation.target.extent();
    let reusable = backbone.engine.id() == CPU && !extent.damage;
    let Some(draw) = extent.draw.filter(|_| reusable) else { return Ok(false) };
    let mut known = Vec::new();
    for variant in variants {
        let key = &variant.scores[index];
        if run.store_view.is_stored(key) || known.iter().any(|(known, _): &(&Arc<Key>, _)| **known == *key) {
            continue;
        }
        let full_key = scores::key(
            KIND,
            backbone.key_parts(),
            variant.repair_key(),
            &evaluation.tokens,
            ScoredExtent::default(),
            &variant.identity,
        );
        if let Lookup::Intact(object) = run.store.lookup(&full_key) {
            known.push((key, read(&object)?));
        }
    }
    if known.is_empty() {
        return Ok(false);
    }
    let text = tokens::load_full_tokens(run, backbone, &evaluation.target, &evaluation.tokens)?;
    let drawn = text.drawn_value_ranges(draw)?;
    let known: Vec<(Arc<Key>, Vec<f64>)> = known
        .into_iter()
        .filter_map(|(key, values)| {
            let parts: Option<Vec<&[f64]>> = drawn.iter().cloned().map(|at| values.get(at)).collect();
            Some((Arc::clone(key), parts?.concat()))
        })
        .collect();
    run.store.put_all(
        known
            .iter()
            .map(|(key, values)| run.store.pack_entry(key, 0.0, &[(VALUES_FILE, &encode_values(values))]))
            .collect(),
    )?;
    known.into_iter().for_each(|(key, values)| run.record_stored_scores(&key, Some(values)));
    Ok(true)
}

/// Reports the perplexities and accuracies (in percent) of the given variants. Scores that cannot be read are skipped,
/// because damaged objects are reported when the results are read.
fn report_scores(run: &RunContext<'_>, backbone: &BackbonePlan, index: usize, variants: &[&Variant]) {
    let evaluation = &backbone.evaluations[index];
    if let Ok(answer_key) = AnswerKey::read(evaluation, run.store) {
        for variant in variants {
            let key = &variant.scores[index];
            if run.has_failed(variant.cell) || !run.reports_score(key) {
                continue;
            }
            if let Ok(Some(value)) = reported_value(run, evaluation, answer_key.as_ref(), key) {
                let cell = run.grid.cells[variant.cell].to_string();
                run.reporter.event(Event::Scored { cell, on: evaluation.target.to_string(), value });
            }
        }
    }
    run.forget_scores(variants.iter().map(|variant| &variant.scores[index]));
}

/// Returns the value of a score for the progress output. The score is read from the store only if another process
/// stored it or if it consists of generated answers.
fn reported_value(
    run: &RunContext<'_>,
    evaluation: &Evaluation,
    answer_key: Option<&AnswerKey>,
    key: &Key,
) -> Result<Option<f64>> {
    let stored = || match run.store.lookup(key) {
        Lookup::Intact(object) => Ok(object),
        _ => Err(Error::job("the scores are not in the store")),
    };
    let fresh = run.fresh_scores(key);
    let (task, answer_key) = match (&evaluation.target, answer_key) {
        (EvalTarget::Windows(text), _) => {
            let values = fresh.map_or_else(|| read(&stored()?), Ok)?;
            return Ok(Some(scores::window_scores(values, text)?.0.perplexity()));
        }
        (EvalTarget::Task(task), Some(answer_key)) => (task, answer_key),
        (EvalTarget::Task(_), None) => return Ok(None),
    };
    let object;
    let source = match fresh {
        Some(values) => AnswerSource::Fresh(values),
        None => {
            object = stored()?;
            AnswerSource::Stored(&object)
        }
    };
    let definition = run.grid.task(task).definition()?;
    let scores = answer_key.judge(evaluation.target.to_string(), definition, source, &|_, _| Ok(None))?;
    let main_score = scores.main_score();
    Ok(main_score.map(|score| displayed_score(score, &Metric::defined("", &score.metric, &score.filter)).value))
}

/// Returns the program of the variant with the given score key. If it cannot be read, records that the cell failed.
fn load_program(
    run: &RunContext<'_>,
    programs: &Programs,
    backbone: &BackbonePlan,
    variants: &[&Variant],
    key: &Key,
) -> Result<Option<Program>> {
    let mut found = None;
    for variant in variants.iter().filter(|variant| variant.scores.iter().any(|score| score.hash() == key.hash())) {
        found = programs.load_or_record_failure(run, backbone, variant)?.or(found);
    }
    Ok(found)
}
