//! Recomputes a sample of a grid's scores for `ghostlab verify`: some [chunks](EvalSet) of each evaluation, and the
//! selections and operators that they need. Stored scores are not read.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::grid_run::{attempt, new_context};
use super::preflight::{Preflight, TargetMachine, preflight};
use crate::criterion::Selection;
use crate::error::{Error, Result};
use crate::evaluate::EvalSet;
use crate::evaluate::choices::scores_of_choices;
use crate::evaluate::damage_eval::VALUES_PER_WINDOW;
use crate::grid::Grid;
use crate::model::Program;
use crate::pipeline::env::backbone::{BackbonePlan, EvalTarget, Evaluation, Variant};
use crate::pipeline::env::context::RunContext;
use crate::pipeline::env::coordination::JobStatus;
use crate::pipeline::env::event::WorkKind;
use crate::pipeline::env::models::{Models, load_engine};
use crate::pipeline::env::run_env::RunEnv;
use crate::pipeline::identity::{Identity, MeasureId};
use crate::pipeline::plan::{JobCost, Plan};
use crate::pipeline::stage::boundary_result::BoundaryResult;
use crate::pipeline::stage::chunks::{ChunkRun, ScoredVariant};
use crate::pipeline::stage::group::{JobContext, Order, Programs};
use crate::pipeline::stage::operator::read_results;
use crate::pipeline::stage::selection;
use crate::pipeline::stage::tokens::{self, AnswerKey, Documents};
use crate::tasks::{AccuracyKind, DocumentResult, ScoredTask, Solutions};
use ghostlab_definitions::Definition;
use ghostlab_definitions::aggregate::{Aggregation, Item, bits};
use ghostlab_definitions::results::{MetricItems, metric_items};
use ghostlab_store::Key;

/// Recomputed selection, operators and scores of a cell.
#[derive(Debug)]
pub struct SampledCell {
    /// Index of the cell in the grid.
    pub cell: usize,
    pub identity: Arc<Identity>,
    /// Layers or sublayers selected for removal. `None` for a dense backbone, or if the selection failed.
    pub selection: Option<Selection>,
    pub boundaries: Vec<BoundaryResult>,
    pub scores: Vec<SampledScores>,
    pub failure: Option<String>,
}

/// Scores of a variant on the sampled chunks of an evaluation.
#[derive(Debug, Clone)]
pub struct SampledScores {
    pub measure: Arc<MeasureId>,
    /// Text or task, as written in the grid.
    pub label: String,
    pub items: SampledItems,
    /// Total number of windows or documents.
    pub all: usize,
}

/// Windows or documents in the sample, with their indices in the evaluation.
#[derive(Debug, Clone)]
pub enum SampledItems {
    /// Values of each window: its loss in nats per token and, if requested, its differences from the dense model.
    Windows(Vec<(usize, Vec<f64>)>),
    Documents(Vec<(usize, DocumentResult)>, AccuracyKind),
    /// Values for each document of a user-defined task, by metric and filter (`acc,none`).
    Defined(BTreeMap<String, DefinedItems>),
}

/// Values of one metric for each document of a user-defined task.
#[derive(Debug, Clone)]
pub enum DefinedItems {
    /// Whether the answer to each document is correct.
    Right(Vec<(usize, bool)>),
    /// Losses of the documents, from which a perplexity is computed.
    Losses {
        items: Vec<DocumentLoss>,
        aggregation: Aggregation,
        /// Divisor for the sum of the losses over all documents.
        units: f64,
    },
}

/// Negative log-likelihood of a document.
#[derive(Debug, Clone, Copy)]
pub struct DocumentLoss {
    pub index: usize,
    pub nats: f64,
    /// Number of scored tokens.
    pub tokens: usize,
}

/// Function that returns the chunks to sample from an evaluation. Its last argument is the total number of chunks.
pub type ChunkSampler<'a> = dyn Fn(&BackbonePlan, &Evaluation, usize) -> Vec<usize> + 'a;

/// Estimated cost of recomputing a sample.
#[derive(Debug, Clone, Copy, Default)]
pub struct SampleCost {
    /// Number of calibration passes.
    pub calibrations: usize,
    /// Number of chunks of windows or documents.
    pub chunks: usize,
    /// Number of FLOPs, as estimated by the cost model.
    pub flops: f64,
}

/// Estimates the cost of [`score_sample`]. Texts that are missing from the store are tokenized and stored. Nothing else
/// is computed.
///
/// # Errors
/// Fails under the same conditions as [`score_sample`].
pub fn estimate_sample_cost(grid: &Grid, env: RunEnv<'_>, draw: &ChunkSampler<'_>) -> Result<SampleCost> {
    let RunEnv { store, settings, .. } = env;
    let plan = Plan::new(grid, store, settings)?;
    let Preflight { state, estimate } = preflight(&plan, &env, TargetMachine::Local, &|_, _| ())?;
    // No backbone is loaded, so no memory budgets are needed.
    let models = Models::new(&plan.inputs, HashMap::new(), settings.device_memory, &load_engine);
    let context = RunContext::new(plan.grid_inputs(), &state, models, env, None);
    let mut total = SampleCost::default();
    for (index, backbone) in plan.backbones.iter().enumerate() {
        for JobCost { job, cost, .. } in estimate.jobs.iter().filter(|cost| cost.backbone == index) {
            if job.group.order == Order::First {
                total.calibrations += usize::from(cost.left > 0.0);
                total.flops += cost.left;
            }
            if job.group.kind == WorkKind::Score {
                let evaluation = &backbone.evaluations[job.index];
                let text = tokens::load_tokens(&context, backbone, &evaluation.target, &evaluation.tokens)?;
                let chunks = text.eval_set(backbone, &evaluation.target)?.chunks();
                let drawn = draw(backbone, evaluation, chunks);
                let fraction = drawn.len() as f64 / chunks.max(1) as f64;
                total.chunks += drawn.len();
                total.flops += cost.shared * fraction;
            }
        }
    }
    Ok(total)
}

/// Computes the selections and operators for the cells of a grid, and scores the cells on the sampled chunks.
/// Selections and operators in `store` are reused, so the store should contain only objects that the caller trusts.
///
/// # Errors
/// Fails if a preflight check fails or an error stops the run. If only one cell fails, its result contains the reason.
pub fn score_sample(grid: &Grid, env: RunEnv<'_>, draw: &ChunkSampler<'_>) -> Result<Vec<SampledCell>> {
    let RunEnv { store, settings, .. } = env;
    let plan = Plan::new(grid, store, settings)?;
    let Preflight { state, .. } = preflight(&plan, &env, TargetMachine::Local, &|_, _| ())?;
    let context = new_context(&plan, &state, env, None, &load_engine);
    let programs = Programs::default();
    let mut sampled = Vec::new();
    for backbone in &plan.backbones {
        for job in backbone.jobs().filter(|job| job.group.order == Order::First) {
            let missing = state.missing_variants(backbone, job);
            let job_context = JobContext { run: &context, programs: &programs };
            while !missing.is_empty()
                && attempt(&plan, &job_context, backbone, job, &missing, &mut None)? == JobStatus::Contended
            {
                context.back_off()?;
            }
        }
        let mut scores = score_backbone_sample(&context, &programs, backbone, draw)?;
        for variant in &backbone.variants {
            let variant_scores = scores.remove(&variant.cell).unwrap_or_default();
            sampled.push(build_sampled_cell(&context, variant, variant_scores)?);
        }
        context.models.unload(backbone);
        programs.unload(backbone);
    }
    Ok(sampled)
}

fn build_sampled_cell(context: &RunContext<'_>, variant: &Variant, scores: Vec<SampledScores>) -> Result<SampledCell> {
    let stored = |key: Option<&Arc<_>>| key.and_then(|key| context.get(key));
    Ok(SampledCell {
        cell: variant.cell,
        identity: Arc::clone(&variant.identity),
        selection: stored(variant.selection.as_ref()).as_ref().map(selection::read).transpose()?,
        boundaries: stored(variant.repair_key()).as_ref().map(read_results).transpose()?.unwrap_or_default(),
        scores,
        failure: context.failures().remove(&variant.cell),
    })
}

type ScoresByCell = BTreeMap<usize, Vec<SampledScores>>;

fn score_backbone_sample(
    context: &RunContext<'_>,
    programs: &Programs,
    backbone: &BackbonePlan,
    draw: &ChunkSampler<'_>,
) -> Result<ScoresByCell> {
    let mut members: Vec<(&Variant, Program)> = Vec::new();
    for variant in backbone.variants.iter().filter(|variant| !context.has_failed(variant.cell)) {
        members.extend(programs.load_or_record_failure(context, backbone, variant)?.map(|program| (variant, program)));
    }
    let mut all = ScoresByCell::new();
    if members.is_empty() {
        return Ok(all);
    }
    for (index, evaluation) in backbone.evaluations.iter().enumerate() {
        let text = tokens::load_tokens(context, backbone, &evaluation.target, &evaluation.tokens)?;
        let label = format!("{} on {}", backbone.name, evaluation.target);
        let scored = text.scored_tokens();
        let eval_set = text.eval_set(backbone, &evaluation.target)?;
        let drawn = draw(backbone, evaluation, eval_set.chunks());
        if drawn.is_empty() {
            continue;
        }
        // Cells that share a score key are scored only once.
        let programs: BTreeMap<&str, (&Arc<Key>, &Program)> = members
            .iter()
            .map(|(variant, program)| (variant.scores[index].hash(), (&variant.scores[index], program)))
            .collect();
        let job = ChunkRun {
            run: context,
            backbone,
            eval_set: &*eval_set,
            label: &label,
            program: &|key| Ok(programs.get(key.hash()).map(|(_, program)| (*program).clone())),
            journal: evaluation.journal.clone(),
            calibration_guard: None,
            sample: Some(&drawn),
        };
        let sampled = job.compute_sample(programs.values().map(|(key, _)| Arc::clone(key)).collect())?;
        let values: HashMap<&str, Vec<Vec<f64>>> =
            sampled.iter().map(|variant| (variant.key.hash(), drawn_values(variant, &drawn))).collect();
        let answer_key = AnswerKey::read(evaluation, context.store)?;
        for (variant, _) in &members {
            let values = &values[variant.scores[index].hash()];
            let (items, all_items) =
                build_sampled_items(context, evaluation, &*eval_set, values, &scored, answer_key.as_ref())?;
            all.entry(variant.cell).or_default().push(SampledScores {
                measure: Arc::clone(&evaluation.measure),
                label: evaluation.target.to_string(),
                items,
                all: all_items,
            });
        }
    }
    Ok(all)
}

/// Returns the values of each chunk. The list for a chunk that was not drawn is empty.
fn drawn_values(variant: &ScoredVariant, drawn: &[usize]) -> Vec<Vec<f64>> {
    let chunks = variant.chunks.iter().enumerate();
    chunks.map(|(index, values)| values.clone().filter(|_| drawn.contains(&index)).unwrap_or_default()).collect()
}

/// Returns the windows or documents in the computed chunks with their indices, and the total number of windows or
/// documents. `scored` contains the number of scored tokens in each text of a task.
fn build_sampled_items(
    context: &RunContext<'_>,
    evaluation: &Evaluation,
    eval_set: &dyn EvalSet,
    chunks: &[Vec<f64>],
    scored: &[usize],
    answer_key: Option<&AnswerKey>,
) -> Result<(SampledItems, usize)> {
    let sample = SampledValues::new(eval_set, chunks);
    match (&evaluation.target, answer_key) {
        (EvalTarget::Windows(text), _) => Ok(sample.sampled_windows(if text.damage { VALUES_PER_WINDOW } else { 1 })),
        (EvalTarget::Task(_), Some(AnswerKey::Builtin(solutions))) => sample.sampled_documents(solutions),
        (EvalTarget::Task(task), Some(AnswerKey::Defined(documents))) => {
            let definition = context.grid.task(task).definition()?;
            sample.sampled_metrics(definition, documents, eval_set, scored)
        }
        (EvalTarget::Task(_), None) => {
            Err(Error::job("the documents of a task are missing from the store").at(evaluation.target.to_string()))
        }
    }
}

/// Values of an evaluation, with zeros for chunks that were not drawn.
struct SampledValues {
    values: Vec<f64>,
    /// Whether each value was computed.
    drawn: Vec<bool>,
}

impl SampledValues {
    fn new(eval_set: &dyn EvalSet, chunks: &[Vec<f64>]) -> Self {
        let mut filled = Vec::new();
        let mut mask = Vec::new();
        for (chunk, values) in chunks.iter().enumerate() {
            let count = eval_set.count(chunk);
            filled.push(if values.is_empty() { vec![0.0; count] } else { values.clone() });
            mask.push(vec![if values.is_empty() { 0.0 } else { 1.0 }; count]);
        }
        let drawn = eval_set.assemble(&mask).into_iter().map(|mark| mark > 0.5).collect();
        Self { values: eval_set.assemble(&filled), drawn }
    }

    /// Returns the drawn windows, each with `width` values, and the total number of windows.
    fn sampled_windows(&self, width: usize) -> (SampledItems, usize) {
        let windows = self.values.chunks_exact(width).map(<[f64]>::to_vec).enumerate();
        let drawn = windows.filter(|(at, _)| self.drawn[width * at]);
        (SampledItems::Windows(drawn.collect()), self.values.len() / width)
    }

    /// Returns the drawn documents of a built-in task, and the total number of documents.
    fn sampled_documents(&self, solutions: &Arc<Solutions>) -> Result<(SampledItems, usize)> {
        let values_per_choice = self.values.len() / solutions.requests().max(1);
        let answers = ScoredTask::new(solutions, scores_of_choices(&self.values))?;
        let mut at = 0;
        let mut drawn = Vec::new();
        let mut count = 0;
        for document in answers.documents() {
            let end = at + values_per_choice * document.choices.len();
            if self.drawn[at..end].iter().all(|&drawn| drawn) && end > at {
                drawn.push((count, document));
            }
            at = end;
            count += 1;
        }
        Ok((SampledItems::Documents(drawn, solutions.task.paper_metric), count))
    }

    /// Returns the metrics of a user-defined task for the drawn documents, and the total number of documents.
    /// `scored` contains the number of scored tokens in each text.
    fn sampled_metrics(
        &self,
        definition: &Definition,
        documents: &Documents,
        eval_set: &dyn EvalSet,
        scored: &[usize],
    ) -> Result<(SampledItems, usize)> {
        // The generated texts of chunks that were not drawn are empty.
        let generations = eval_set.generations(&self.values)?;
        let answers = match &generations {
            Some(all) => {
                documents.generated(definition, &all.iter().map(|text| text.text.as_str()).collect::<Vec<_>>())?
            }
            None => documents.answers(definition, &self.values)?,
        };
        let complete: Vec<bool> = documents
            .spans()
            .map(|span| self.drawn[2 * span.start..2 * span.end].iter().all(|is_drawn| *is_drawn))
            .collect();
        let task = documents.task(definition)?;
        // A perplexity is normalized by the length of all documents, so all of them are kept. Filters of generated
        // texts, however, must not see documents without a generated text.
        let indices: Vec<usize> = (0..documents.len()).filter(|at| generations.is_none() || complete[*at]).collect();
        let answered = indices.iter().map(|&at| (at, answers[at].as_slice()));
        let mut all = BTreeMap::new();
        let spans: Vec<Range<usize>> = documents.spans().collect();
        for MetricItems { metric, filter, items, .. } in metric_items(&task, &answered)? {
            let items = build_defined_items(
                metric.aggregation,
                &items,
                &|at: usize| Some(indices[at]).filter(|&index| complete[index]),
                &|at: usize| scored.get(spans[at].clone()).map_or(0, |scored| scored.iter().sum()),
            );
            all.extend(items.map(|items| (format!("{},{filter}", metric.kind.name()), items)));
        }
        Ok((SampledItems::Defined(all), documents.len()))
    }
}

/// Returns the values of one metric for the documents in the sample, or `None` if the metric has no per-document
/// values. `drawn` maps a document to its index among all documents, or to `None` if it was not drawn. `tokens` returns
/// the number of scored tokens in a document.
fn build_defined_items(
    aggregation: Aggregation,
    items: &[Item],
    drawn: &dyn Fn(usize) -> Option<usize>,
    tokens: &dyn Fn(usize) -> usize,
) -> Option<DefinedItems> {
    if let Some((losses, units)) = aggregation.losses(items) {
        let items = losses
            .into_iter()
            .enumerate()
            .filter_map(|(at, nats)| drawn(at).map(|index| DocumentLoss { index, nats, tokens: tokens(index) }))
            .collect();
        return Some(DefinedItems::Losses { items, aggregation, units });
    }
    let flags = bits(items)?.into_iter().enumerate().filter_map(|(at, right)| Some((drawn(at)?, right)));
    Some(DefinedItems::Right(flags.collect()))
}
