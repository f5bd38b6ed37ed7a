//! Training: the operators of some variants after they are solved. Teacher and stream come from one dense pass, kept in
//! shards, which every method at a boundary reads.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use candle_core::Device;

use super::job::CalibrationJob;
use super::shards::KeptActivations;
use crate::calibrate::{self, ActivationShape, Activations, HookPoint, PassRequest, Piece, Spool};
use crate::criterion::Selection;
use crate::distill::{Checkpoint, Finetune, LayersAfter, TopTokens, Training, top_tokens};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::tokenise;
use crate::model::{Load, Operator, Program, Trie};
use crate::plan::{TrainingPlan, Variant};
use crate::recovery::{Boundary, Repair, RepairMetrics, Span};
use crate::stage::activations::ROWS;
use crate::stage::distilled::{self, STATE};
use crate::stage::{operator, teacher};
use ghostlab_store::fault;
use ghostlab_store::{Payload, Pin, StoredObject};

/// How many checkpoints a training leaves on its way, each in the place of the one before.
const CHECKPOINTS: usize = 20;
/// Rows whose logits are there at a time.
const LOGIT_ROWS: usize = 256;

/// Trains what is to be trained of some variants and not stored. One whose training fails fails alone.
///
/// # Errors
/// What stops the whole run.
pub(super) fn train(
    job: &CalibrationJob<'_>,
    chosen: &[(&Variant, &Selection)],
    activations: &Activations,
) -> Result<()> {
    for (variant, selection) in chosen {
        let Some(plan) = variant.trained.as_ref().filter(|plan| job.run.get(&plan.key).is_none()) else { continue };
        // Its operator could not be solved.
        if job.run.failed(variant.cell) {
            continue;
        }
        match one(job, variant, plan, selection, activations) {
            Err(error) if matches!(error.kind(), ErrorKind::Job | ErrorKind::Damaged) => {
                job.run.fail_at(variant.cell, &plan.key, error.one_line());
            }
            done => done?,
        }
    }
    Ok(())
}

fn one(
    job: &CalibrationJob<'_>,
    variant: &Variant,
    plan: &TrainingPlan,
    selection: &Selection,
    activations: &Activations,
) -> Result<()> {
    let (run, backbone) = (job.run, job.backbone);
    let [(start, end)] = selection.regions()[..] else {
        return Err(Error::job("an operator is only fine-tuned at a contiguous cut"));
    };
    let missing = || Error::job("its operator is not in the store");
    let solved = variant.operator.as_ref().and_then(|key| run.get(key)).ok_or_else(missing)?;
    let tail = || LayersAfter::load(&backbone.config, &backbone.folder, end, &Device::Cpu);
    let tail = job.models.read(backbone, tail)?;
    let lessons = TrainingData::kept(job, plan, start, &tail)?;
    let began = Instant::now();
    let (state, spent) = resumed(job, plan, || Ok(Checkpoint::start(operator::matrix(&solved)?)))?;
    let mut training = Training::new(&tail, state)?;
    let (steps, length) = (plan.finetune.sequences, plan.finetune.length);
    let label = format!("fine-tune {}", run.plan.grid.cells[variant.cell]);
    // Forwards, and backwards twice that, through what stands after the boundary.
    let load = Load::windows((steps - training.steps()) * length, length);
    let program = Program::pruned(backbone.config.layers, &(0..end).collect::<Vec<_>>(), |_| None);
    let flops = 3.0 * Trie::new(&[program]).flops(&backbone.config, &load).shared;
    let id = run.start(job.hold.name(), &label, load.tokens, 0, flops);
    let every = steps.div_ceil(CHECKPOINTS);
    while training.steps() < steps {
        let at = training.steps();
        fault::here("train");
        let loss = training.step(lessons.stream(at)?, &lessons.teacher(at)?)?;
        let done = at + 1;
        if done.is_multiple_of(every) {
            run.note(format!("{label}: step {done} of {steps}, loss {loss:.4}"));
            if done < steps {
                let seconds = spent + began.elapsed().as_secs_f64();
                let key = distilled::checkpoint(&plan.key, done);
                job.hold.check()?;
                run.store.put(&key, seconds, &[(STATE, &training.state().to_bytes())])?;
                job.hold.gone_on();
                run.store.discard(&distilled::checkpoint(&plan.key, done - every))?;
            }
        }
        run.advance(id, length)?;
    }
    run.finish(id);
    store(
        job,
        plan,
        &solved,
        (Span { start, end }, activations),
        training.state(),
        spent + began.elapsed().as_secs_f64(),
    )?;
    (1..=CHECKPOINTS).try_for_each(|place| run.store.discard(&distilled::checkpoint(&plan.key, place * every)))
}

/// The last checkpoint of a training with the seconds until then, or its beginning.
fn resumed(
    job: &CalibrationJob<'_>,
    plan: &TrainingPlan,
    start: impl FnOnce() -> Result<Checkpoint>,
) -> Result<(Checkpoint, f64)> {
    let every = plan.finetune.sequences.div_ceil(CHECKPOINTS);
    for place in (1..=CHECKPOINTS).rev() {
        let Some(artifact) = job.run.get(&distilled::checkpoint(&plan.key, place * every)) else { continue };
        let state = Checkpoint::from_bytes(&artifact.read(STATE)?)?;
        job.run.note(format!("fine-tuning goes on after step {} of {}", place * every, plan.finetune.sequences));
        return Ok((state, artifact.meta().seconds));
    }
    Ok((start()?, 0.0))
}

/// Stores a trained operator in the form of a solved one, with its own figures and the losses of its steps.
fn store(
    job: &CalibrationJob<'_>,
    plan: &TrainingPlan,
    solved: &StoredObject,
    (span, activations): (Span, &Activations),
    state: &Checkpoint,
    seconds: f64,
) -> Result<()> {
    let operator = Operator::dense(job.backbone.config.hidden, state.matrix.clone())?;
    let mut results = operator::figures(solved)?;
    let fitted = activations.shape().sequences;
    let boundary =
        Boundary { backbone: &*job.engine, activations, span, fitted, earlier: &[], starts: &job.windows.starts };
    for result in &mut results {
        result.operator = Some(operator.key());
        result.numbers = RepairMetrics::of(&boundary, &Repair::Stream(std::sync::Arc::clone(&operator)))?;
    }
    job.unchanged()?;
    distilled::store(job.run.store, &plan.key, seconds, &results, &operator, &state.losses)
}

/// What a training reads, sequence by sequence.
struct TrainingData {
    shape: ActivationShape,
    site: HookPoint,
    streams: Activations,
    /// By shard.
    tops: Vec<StoredObject>,
    shards: Vec<Range<usize>>,
    /// As long as they are read, nothing of them is cleared away.
    _pin: Pin,
}

impl TrainingData {
    /// Those of a text at a boundary: what is stored, the rest from a dense pass, shard by shard.
    fn kept(job: &CalibrationJob<'_>, plan: &TrainingPlan, boundary: usize, tail: &LayersAfter) -> Result<Self> {
        let (run, backbone) = (job.run, job.backbone);
        let tokens = &backbone.calibrations[plan.text].tokens;
        let windows = tokenise::windows(run, backbone, tokens)?;
        let shape =
            ActivationShape { channels: backbone.config.hidden, sequences: windows.count(), length: windows.length };
        let (site, last) = (HookPoint::Stream(boundary), HookPoint::Stream(backbone.config.layers));
        let sites = BTreeSet::from([site]);
        let shards: Vec<Range<usize>> = shape.shards().collect();
        let label = format!("read {} for fine-tuning {}", backbone.calibrations[plan.text].calibration, backbone.name);
        let text = CalibrationJob {
            models: job.models,
            run,
            backbone,
            engine: std::sync::Arc::clone(&job.engine),
            tokens,
            windows,
            label: label.clone(),
            shape,
            hold: job.hold,
        };
        // The text may be another calibration's, which clears up after itself.
        let pin = run.store.pin(shards.iter().map(|shard| text.rows_key(site, shard)));
        let mut kept = KeptActivations::default();
        kept.find(&text, &sites);
        let mut tops: Vec<Option<StoredObject>> =
            shards.iter().map(|shard| run.get(&teacher::shard(backbone.keyed(), tokens, shard))).collect();
        let mut left: Vec<usize> = (0..shards.len()).filter(|&at| tops[at].is_none() || !kept.has(site, at)).collect();
        let load = Load::windows(left.iter().map(|&at| shards[at].len() * shape.length).sum(), shape.length);
        if !left.is_empty() {
            let program = Program::dense(backbone.config.layers);
            let flops = Trie::new(&[program]).flops(&backbone.config, &load).shared;
            let id = run.start(job.hold.name(), &label, load.tokens, 0, flops);
            while !left.is_empty() {
                let mut others = Vec::new();
                for at in left {
                    // Trainings of other calibrations may ask for the same: each shard is made once.
                    let name = teacher::claim(backbone.keyed(), tokens, &shards[at]);
                    let Some(_lease) = run.claim(&name, &format!("{label}, shard {}", at + 1))? else {
                        others.push(at);
                        continue;
                    };
                    let stored = (
                        run.get(&text.rows_key(site, &shards[at])),
                        run.get(&teacher::shard(backbone.keyed(), tokens, &shards[at])),
                    );
                    let (rows, top) = match stored {
                        (Some(rows), Some(top)) => {
                            run.advance_elsewhere(id, shards[at].len() * shape.length);
                            (rows, top)
                        }
                        (_, top) => text.lesson(id, [site, last], &shards[at], tail, top)?,
                    };
                    kept.add(shape, at, [(site, rows)]);
                    tops[at] = Some(top);
                }
                left = others;
                if !left.is_empty() {
                    run.pause()?;
                }
            }
            run.finish(id);
        }
        let streams = kept.open(shape, &sites)?;
        Ok(Self { shape, site, streams, tops: tops.into_iter().flatten().collect(), shards, _pin: pin })
    }

    /// What enters the first removed layer, `[positions, C]`.
    fn stream(&self, sequence: usize) -> Result<&[f32]> {
        self.streams.rows(self.site, sequence * self.shape.length..(sequence + 1) * self.shape.length)
    }

    fn teacher(&self, sequence: usize) -> Result<TopTokens> {
        let lost = || Error::job("what the teacher said vanished from the store");
        let at = self.shards.iter().position(|shard| shard.contains(&sequence)).ok_or_else(lost)?;
        let (shard, length) = (&self.shards[at], self.shape.length);
        let first = (sequence - shard.start) * length;
        teacher::read(&self.tops[at], first..first + length, shard.len() * length)
    }
}

impl CalibrationJob<'_> {
    /// One shard of a dense pass: the stream at the boundary, and what the head makes of the last one where that is not stored.
    fn lesson(
        &self,
        id: usize,
        [site, last]: [HookPoint; 2],
        shard: &Range<usize>,
        tail: &LayersAfter,
        top: Option<StoredObject>,
    ) -> Result<(StoredObject, StoredObject)> {
        fault::here("teach");
        let (store, started) = (self.run.store, Instant::now());
        let windows: Vec<&[u32]> = self.windows.iter().skip(shard.start).take(shard.len()).collect();
        let mut draft = store.draft()?;
        let payload = draft.payload(ROWS)?;
        let mut spool = Both { site, payload, last, ends: Vec::new() };
        let ends = if top.is_some() { None } else { Some(last) };
        let request = PassRequest { sites: ends.into_iter().chain([site]).collect(), ..PassRequest::default() };
        let progress = |tokens| self.run.advance(id, tokens);
        let batch = self.run.settings.batch_tokens;
        let mut pieces = [Piece { windows, first_sequence: shard.start, spool: &mut spool }];
        calibrate::run(&*self.engine, &mut pieces, batch, &request, progress)
            .map_err(|error| error.at(self.label.clone()))?;
        let Both { payload, ends, .. } = spool;
        payload.close().map_err(|error| unwritten(&error))?;
        let (mut tokens, mut logits): (Vec<u32>, Vec<f32>) = Default::default();
        for rows in ends.chunks(LOGIT_ROWS * self.shape.channels) {
            let top = top_tokens(&tail.project_rows(rows)?, Finetune::TOP_TOKENS)?;
            tokens.extend(top.tokens);
            logits.extend(top.logits);
        }
        self.unchanged()?;
        let seconds = started.elapsed().as_secs_f64() / 2.0;
        let key = teacher::shard(self.backbone.keyed(), self.tokens, shard);
        let put = || store.put(&key, seconds, &teacher::payloads(&tokens, &logits));
        let top = top.map_or_else(put, Ok)?;
        let rows = store.commit(draft, &self.rows_key(site, shard), seconds)?;
        self.hold.gone_on();
        Ok((rows, top))
    }
}

/// Takes the stream at the boundary into the store, and keeps what enters the final norm.
struct Both {
    site: HookPoint,
    payload: Payload,
    last: HookPoint,
    ends: Vec<f32>,
}

impl Spool for Both {
    fn push(&mut self, site: HookPoint, rows: &[f32]) -> Result<()> {
        if site == self.last {
            self.ends.extend_from_slice(rows);
        }
        if site == self.site {
            self.payload.write_all(bytemuck::cast_slice(rows)).map_err(|error| unwritten(&error))?;
        }
        Ok(())
    }
}

fn unwritten(error: &std::io::Error) -> Error {
    Error::missing("cannot write what a training reads")
        .found(error.to_string())
        .hint("free some room on the store's disk, or name another folder with --store")
}
