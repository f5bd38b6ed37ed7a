//! A part of a grid's numbers, computed afresh: some chunks of each evaluation, with the selections and operators of its
//! cells. Nothing of it is read from scores that are stored.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::preflight::{Preflight, Where, preflight};
use super::run::{attempt, context};
use crate::criterion::Selection;
use crate::error::{Error, ErrorKind, Result};
use crate::evaluate::EvalSet;
use crate::grid::Grid;
use crate::identity::{Identity, MeasureId};
use crate::model::{Program, Trie};
use crate::plan::{JobCost, Plan, job_costs, weights_budget};
use crate::stage::group::{Order, Tools};
use crate::stage::operator::{BoundaryResult, figures};
use crate::stage::program::Programs;
use crate::stage::scores::answered;
use crate::stage::selection;
use crate::stage::tokens;
use crate::stage::tokens::{defined, sheet};
use crate::tasks::{AccuracyKind, DocumentResult, Solutions};
use crate::work::backbone::{BackbonePlan, Evaluation, Subject, Variant};
use crate::work::context::{Conditions, Context};
use crate::work::event::Reporter;
use crate::work::event::WorkKind;
use crate::work::models::{FromFiles, Models};
use crate::work::progress::Progressed;
use crate::work::settings::RunSettings;
use ghostlab_definitions::aggregate::Item;
use ghostlab_definitions::results::Judged;
use ghostlab_store::{Lookup, Store};

/// A cell of which a part was computed.
#[derive(Debug)]
pub struct SampledCell {
    /// Its place in the grid.
    pub cell: usize,
    pub identity: Arc<Identity>,
    /// Which layers were chosen; none of a dense backbone.
    pub selection: Option<Selection>,
    pub boundaries: Vec<BoundaryResult>,
    pub scores: Vec<SampledScores>,
    /// Why the rest lacks.
    pub failure: Option<String>,
}

/// What a variant scored in one evaluation, as far as it was drawn.
#[derive(Debug, Clone)]
pub struct SampledScores {
    pub measure: Arc<MeasureId>,
    /// As the grid writes it.
    pub label: String,
    pub items: SampledItems,
    /// Drawn chunks, and all.
    pub chunks: [usize; 2],
    /// All its windows, or documents.
    pub all: usize,
}

/// Items by their places among all of an evaluation.
#[derive(Debug, Clone)]
pub enum SampledItems {
    /// Nats per token.
    Windows(Vec<(usize, f64)>),
    Documents(Vec<(usize, DocumentResult)>, AccuracyKind),
    /// Of a definition's metrics (`acc,none`) that are right or wrong document by document.
    Right(BTreeMap<String, Vec<(usize, bool)>>),
}

/// Which chunks of an evaluation are drawn, of so many.
pub type Draw<'a> = dyn Fn(&BackbonePlan, &Evaluation, usize) -> Vec<usize> + 'a;

/// What chunks scored, by the scores' key and the chunk: several samples of one caller compute each once.
#[derive(Debug, Default)]
pub struct Computed(HashMap<(String, usize), Vec<f64>>);

/// What a sample is going to compute.
#[derive(Debug, Clone, Copy, Default)]
pub struct SampleCost {
    /// Calibrations, each a pass over its text.
    pub calibrations: usize,
    /// Batches of windows or documents.
    pub chunks: usize,
    /// By the cost model.
    pub flops: f64,
}

/// The same as [`sample`] would, without computing anything but tokens, which stay in the store.
///
/// # Errors
/// As of [`sample`].
pub fn sample_cost(
    grid: &Grid,
    settings: RunSettings,
    store: &Store,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
    draw: &Draw<'_>,
) -> Result<SampleCost> {
    let plan = Plan::new(grid, store, settings.engine, settings.batch_tokens)?;
    let Preflight { state, .. } = preflight(&plan, &settings, Where::Here, store, reporter, stop)?;
    let context = context(&plan, &state, Conditions { store, settings, reporter, stop, terms: None });
    let costs = job_costs(&plan, &state)?;
    let mut all = SampleCost::default();
    for (place, backbone) in plan.backbones.iter().enumerate() {
        for JobCost { job, cost, .. } in costs.iter().filter(|cost| cost.backbone == place) {
            if job.group.order == Order::First {
                all.calibrations += usize::from(cost.left > 0.0);
                all.flops += cost.left;
            }
            if job.group.kind == WorkKind::Score {
                let evaluation = &backbone.evaluations[job.place];
                let text = tokens::text(&context, backbone, &evaluation.subject, &evaluation.tokens)?;
                text.with_eval_set(settings.batch_tokens, |eval_set| {
                    let (drawn, chunks) = (draw(backbone, evaluation, eval_set.chunks()), eval_set.chunks());
                    let part = drawn.len() as f64 / chunks.max(1) as f64;
                    all.chunks += drawn.len();
                    all.flops += cost.shared * part;
                    Ok(())
                })?;
            }
        }
    }
    Ok(all)
}

/// Computes the selections and operators of a grid's cells, and what they score in the chunks that are drawn. What is stored
/// of selections and operators is taken: `store` is one of the caller's own.
///
/// # Errors
/// What stops a whole run. What one cell suffers from is its failure.
pub fn sample(
    grid: &Grid,
    settings: RunSettings,
    store: &Store,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
    draw: &Draw<'_>,
    computed: &mut Computed,
) -> Result<Vec<SampledCell>> {
    let plan = Plan::new(grid, store, settings.engine, settings.batch_tokens)?;
    let Preflight { state, .. } = preflight(&plan, &settings, Where::Here, store, reporter, stop)?;
    let context = context(&plan, &state, Conditions { store, settings, reporter, stop, terms: None });
    let memory = settings.memory_bytes();
    let budget = |backbone: &BackbonePlan| (backbone.name.clone(), weights_budget(&plan, backbone, &state, memory));
    let budgets: Vec<(String, u64)> = plan.backbones.iter().map(budget).collect();
    let budgets = budgets.iter().map(|(name, bytes)| (&**name, *bytes)).collect();
    let models = Models::new(&plan.inputs, budgets, settings.device_memory, &FromFiles);
    let programs = Programs::default();
    let mut sampled = Vec::new();
    for backbone in &plan.backbones {
        for job in backbone.jobs().filter(|job| job.group.order == Order::First) {
            let own = backbone.lacking(job, &state);
            let tools = Tools { run: &context, models: &models, programs: &programs };
            while !own.is_empty() && attempt(&plan, &tools, backbone, job, &own, &mut None)? == Progressed::Busy {
                context.pause()?;
            }
        }
        let mut scores = scores(&context, &models, &programs, backbone, draw, computed)?;
        for variant in &backbone.variants {
            let own = scores.remove(&variant.cell).unwrap_or_default();
            sampled.push(cell(&context, variant, own)?);
        }
        models.forget(backbone);
        programs.forget(backbone);
    }
    Ok(sampled)
}

fn cell(context: &Context<'_>, variant: &Variant, scores: Vec<SampledScores>) -> Result<SampledCell> {
    let stored = |key: Option<&Arc<_>>| key.and_then(|key| context.get(key));
    Ok(SampledCell {
        cell: variant.cell,
        identity: Arc::clone(&variant.identity),
        selection: stored(variant.selection.as_ref()).as_ref().map(selection::read).transpose()?,
        boundaries: stored(variant.repair()).as_ref().map(figures).transpose()?.unwrap_or_default(),
        scores,
        failure: context.failures().remove(&variant.cell),
    })
}

type Scores = BTreeMap<usize, Vec<SampledScores>>;

fn scores(
    context: &Context<'_>,
    models: &Models<'_>,
    programs: &Programs,
    backbone: &BackbonePlan,
    draw: &Draw<'_>,
    computed: &mut Computed,
) -> Result<Scores> {
    let mut members: Vec<(&Variant, Program)> = Vec::new();
    for variant in backbone.variants.iter().filter(|variant| !context.failed(variant.cell)) {
        match programs.of(context, backbone, variant) {
            Ok(program) => members.push((variant, program)),
            Err(error) if matches!(error.kind(), ErrorKind::Job | ErrorKind::Damaged) => {
                context.fail(variant.cell, error.one_line());
            }
            Err(error) => return Err(error),
        }
    }
    let mut all = Scores::new();
    if members.is_empty() {
        return Ok(all);
    }
    for (place, evaluation) in backbone.evaluations.iter().enumerate() {
        let text = tokens::text(context, backbone, &evaluation.subject, &evaluation.tokens)?;
        let label = format!("{} on {}", backbone.name, evaluation.subject);
        text.with_eval_set(context.settings.batch_tokens, |eval_set| {
            let drawn = draw(backbone, evaluation, eval_set.chunks());
            if drawn.is_empty() {
                return Ok(());
            }
            let key = |variant: &Variant, chunk: usize| (variant.scores[place].hash().to_owned(), chunk);
            // Chunks by whose scores of them are not known yet: one trie for all of the same.
            let mut lacking: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
            for &chunk in &drawn {
                let unknown = |&at: &usize| !computed.0.contains_key(&key(members[at].0, chunk));
                lacking.entry((0..members.len()).filter(unknown).collect()).or_default().push(chunk);
            }
            for (own, chunks) in lacking.iter().filter(|(own, _)| !own.is_empty()) {
                let engine = models.get(backbone)?;
                let trie = Trie::scoring(&own.iter().map(|&at| members[at].1.clone()).collect::<Vec<_>>());
                let flops = trie.flops(&backbone.config, &eval_set.load(chunks)).shared;
                let tokens = chunks.iter().map(|&chunk| eval_set.tokens(chunk)).sum();
                let job = context.start(&evaluation.journal, &label, tokens, own.len(), flops);
                for &chunk in chunks {
                    let made = eval_set.run(&*engine, &trie, &[chunk], &mut vec![0.0; trie.len()])?;
                    for (&at, made) in own.iter().zip(made.into_iter().flatten()) {
                        computed.0.insert(key(members[at].0, chunk), made);
                    }
                    context.advance(job, eval_set.tokens(chunk))?;
                }
                models.unchanged(backbone)?;
                context.finish(job);
            }
            let values = members.iter().map(|(variant, _)| {
                let mut values = vec![Vec::new(); eval_set.chunks()];
                for &chunk in &drawn {
                    values[chunk] = computed.0.get(&key(variant, chunk)).cloned().unwrap_or_default();
                }
                values
            });
            let values: Vec<Vec<Vec<f64>>> = values.collect();
            let solutions = sheet(evaluation, context.store)?;
            for ((variant, _), values) in members.iter().zip(values) {
                let (items, of) = items(context, evaluation, eval_set, &values, solutions.as_ref())?;
                all.entry(variant.cell).or_default().push(SampledScores {
                    measure: Arc::clone(&evaluation.measure),
                    label: evaluation.subject.to_string(),
                    items,
                    chunks: [drawn.len(), eval_set.chunks()],
                    all: of,
                });
            }
            Ok(())
        })?;
    }
    Ok(all)
}

/// The items of the chunks that have values, by their places, and how many there are in all.
fn items(
    context: &Context<'_>,
    evaluation: &Evaluation,
    eval_set: &dyn EvalSet,
    chunks: &[Vec<f64>],
    key: Option<&Arc<Solutions>>,
) -> Result<(SampledItems, usize)> {
    // Assembling twice tells which places the drawn chunks have: zeros stand for the others.
    let filled = |of: &dyn Fn(&[f64]) -> Vec<f64>| -> Vec<Vec<f64>> {
        let fill = |(at, values): (usize, &Vec<f64>)| match values.is_empty() {
            true => vec![0.0; eval_set.count(at)],
            false => of(values),
        };
        chunks.iter().enumerate().map(fill).collect()
    };
    let values = eval_set.assemble(&filled(&<[f64]>::to_vec));
    let drawn: Vec<bool> =
        eval_set.assemble(&filled(&|of| vec![1.0; of.len()])).into_iter().map(|mark| mark > 0.5).collect();
    match (&evaluation.subject, key) {
        (Subject::Windows(_), _) => {
            let count = values.len();
            let own = values.into_iter().enumerate().filter(|(at, _)| drawn[*at]);
            Ok((SampledItems::Windows(own.collect()), count))
        }
        (Subject::Task(_), Some(key)) => {
            let each = values.len() / key.requests().max(1);
            let (answers, _) = answered(&values, key)?;
            let (mut at, mut own, mut count) = (0, Vec::new(), 0);
            for document in answers.documents() {
                let end = at + each * document.choices.len();
                if drawn[at..end].iter().all(|&drawn| drawn) && end > at {
                    own.push((count, document));
                }
                (at, count) = (end, count + 1);
            }
            Ok((SampledItems::Documents(own, key.task()?.column), count))
        }
        // A part of a generation is not held against its whole: texts are compared all at once or not at all.
        (Subject::Defined(_), _) if evaluation.generates => Ok((SampledItems::Right(BTreeMap::new()), 0)),
        (Subject::Defined(used), _) => {
            let Lookup::Whole(object) = context.store.look(&evaluation.tokens) else {
                return Err(Error::job("a task's documents are not in the store").at(evaluation.subject.to_string()));
            };
            let (documents, definition) =
                (defined::documents(&object)?, &context.grid.definitions[&used.name].definition);
            let whole: Vec<bool> =
                documents.spans().map(|span| drawn[2 * span.start..2 * span.end].iter().all(|of| *of)).collect();
            let answers = documents.answers(definition.output, &values)?;
            let mut all = BTreeMap::new();
            for Judged { score, items } in documents.judge(definition, &answers, 0)? {
                let bit = |(at, item): (usize, &Item)| match item {
                    Item::Number(number) if *number == 0.0 || *number == 1.0 => Some((at, *number == 1.0)),
                    _ => None,
                };
                let bits: Option<Vec<(usize, bool)>> = items.iter().enumerate().map(bit).collect();
                let key = format!("{},{}", score.metric, score.filter);
                all.extend(bits.map(|bits| (key, bits.into_iter().filter(|(at, _)| whole[*at]).collect())));
            }
            Ok((SampledItems::Right(all), documents.len()))
        }
        (Subject::Task(_), None) => {
            Err(Error::job("a task's documents are not in the store").at(evaluation.subject.to_string()))
        }
    }
}
