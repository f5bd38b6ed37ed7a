//! Trained operators of variants, and checkpoints taken during training.

use std::sync::Arc;
use std::time::Instant;

use candle_core::Device;
use serde_json::json;

use super::boundary_result::BoundaryResult;
use super::calibration_job::CalibrationJob;
use super::operator;
use super::{BackboneKeyParts, Cost, InputNames, Member, Stage, activations, teacher};
use crate::calibrate::{ActivationShape, Activations};
use crate::criterion::Selection;
use crate::distill::{Checkpoint, Finetune, LayersAfter, Training};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CPU, Config, Load, Operator, Program, Trie};
use crate::pipeline::env::backbone::{TrainingPlan, Variant};
use crate::pipeline::env::event::WorkKind;
use crate::pipeline::identity::Identity;
use crate::recovery::{Boundary, Repair, RepairMetrics, Span};
use ghostlab_store::{Key, ObjectKind, Store, StoredObject, fault};

pub const KIND: ObjectKind = ObjectKind::new("distilled", 2);

pub const STAGE: Stage = Stage {
    check: operator::STAGE.check,
    inodes: operator::STAGE.inodes,
    members: &[Member::Toward(TRAINING_INPUT)],
    words: Some(InputNames {
        group: WorkKind::Calibrate,
        part: "trained_operator",
        about: "Fine-tuned operator.",
        what: "trained operator",
        reads: |backbone, variant, _| {
            let text = &backbone.calibrations[variant.trained.as_ref()?.text];
            Some((format!("fine-tuning tokens: {}", text.calibration), Arc::clone(&text.tokens)))
        },
    }),
    ..Stage::new(KIND)
};

/// Name under which the key of a checkpoint refers to its training run.
const TRAINING_INPUT: &str = "trained";

/// Payload that contains the loss at each training step. The same object contains the payloads of the operator.
const LOSSES: &str = "losses.f64";
/// Payload that contains the training state of a checkpoint.
pub const STATE: &str = "state.bin";

/// Returns the key of a trained operator. It depends on the operator before training and on the training text.
pub fn key(backbone: BackboneKeyParts<'_>, operator: &Arc<Key>, text: &Arc<Key>, what: &Arc<Identity>) -> Key {
    let identity = json!({
        "learning_rate": Finetune::LEARNING_RATE, "weight_decay": Finetune::WEIGHT_DECAY,
        // Training always runs on the CPU in f32, whichever engine computed its inputs.
        "likeliest": Finetune::TOP_TOKENS, "dtype": CPU.dtype, "device": CPU.device,
    });
    let teacher = Arc::new(teacher::family(backbone, text).key());
    let activations = Arc::new(activations::family(backbone, text).key());
    let parents = [("operator", Arc::clone(operator)), ("teacher", teacher), ("activations", activations)];
    Key::new(KIND, identity, parents).with_description(what)
}

/// Returns the key of the checkpoint taken after `steps` training steps.
pub fn checkpoint(trained: &Arc<Key>, steps: usize) -> Key {
    Key::new(KIND, json!({"checkpoint": steps}), [(TRAINING_INPUT, Arc::clone(trained))])
}

/// Estimates the cost of training on a text. The gradient passes through the layers after the removed ones, which are
/// assumed to be a quarter of all layers. `token_flops` is the cost of passing one token through all layers.
/// `is_missing` indicates whether the trained operator is missing.
pub fn cost(config: &Config, token_flops: f64, text: &Load, is_missing: bool) -> Cost {
    let head = 2.0 * config.hidden as f64 * config.vocab as f64;
    let products = (token_flops / 4.0 + head) * text.tokens as f64;
    let steps = step_flops(config, products, text, config.layers / 4);
    Cost { separate: steps, shared: steps, left: if is_missing { steps } else { 0.0 }, ..Cost::default() }
}

/// Cost of the elementwise operations between matrix products during training, in floating-point operations per value.
/// It covers the forward and the backward pass. It is high because the operations are not fused, so each value is read
/// and written many times. Measured in nine training runs with a hidden size of 128.
const ELEMENTWISE_FLOPS: f64 = 650.0;

/// Returns the FLOPs for training through `layers` layers: the forward pass, and twice as much for the backward pass.
/// `products` is the number of FLOPs in the matrix products of the forward pass.
fn step_flops(config: &Config, products: f64, text: &Load, layers: usize) -> f64 {
    let widths = 8 * (config.hidden + config.intermediate) + 6 * config.heads * text.length;
    3.0 * products + ELEMENTWISE_FLOPS * (widths * layers * text.tokens) as f64
}

/// Estimates the cost of the inputs that all training runs with the same text and selection share. The inputs are the
/// residual stream of a text and the outputs of the teacher.
pub fn teacher_cost(config: &Config, text: &Load, shape: ActivationShape) -> Cost {
    Cost {
        left: teacher::pass_flops(config, text),
        disk: teacher::output_bytes(config, text.tokens),
        inodes: 2 * shape.shard_count() as u64 * (teacher::STAGE.inodes)(false),
        ..Cost::default()
    }
}

/// Stores a trained operator.
///
/// # Errors
/// Fails if a measured value is not finite, or the store cannot be written.
pub fn store(
    store: &Store,
    key: &Key,
    seconds: f64,
    results: &[BoundaryResult],
    operator: &Operator,
    losses: &[f64],
) -> Result<()> {
    let (name, matrix) = operator::encode_operator(0, operator)?;
    let losses: Vec<u8> = losses.iter().flat_map(|loss| loss.to_le_bytes()).collect();
    let encoded_results = operator::encode_results(results)?;
    let payloads = [(name.as_str(), &*matrix), (operator::RESULTS_FILE, &*encoded_results), (LOSSES, &*losses)];
    store.put(key, seconds, &payloads).map(drop)
}

/// Reads the loss at each step of a stored training run.
///
/// # Errors
/// Fails if the object is damaged.
pub fn losses(object: &StoredObject) -> Result<Vec<f64>> {
    Ok(object.read(LOSSES)?.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect())
}

/// Number of checkpoints during training. Each replaces the previous one.
const CHECKPOINTS: usize = 20;

/// Trains the operators that have not been trained yet. If a training run fails, only its variant fails.
///
/// # Errors
/// Fails on errors that stop the run.
pub(crate) fn train(
    job: &CalibrationJob<'_>,
    chosen: &[(&Variant, &Selection)],
    activations: &Activations,
) -> Result<()> {
    for (variant, selection) in chosen {
        let Some(plan) = variant.trained.as_ref().filter(|plan| job.run.get(&plan.key).is_none()) else { continue };
        // A failed cell has no operator to train.
        if job.run.has_failed(variant.cell) {
            continue;
        }
        match train_one(job, variant, plan, selection, activations) {
            Err(error) if matches!(error.kind(), ErrorKind::Job | ErrorKind::Damaged) => {
                job.run.fail_and_record(variant.cell, &plan.key, error.one_line());
            }
            done => done?,
        }
    }
    Ok(())
}

/// Trains the operator of one variant. Resumes from the latest checkpoint if there is one.
fn train_one(
    job: &CalibrationJob<'_>,
    variant: &Variant,
    plan: &TrainingPlan,
    selection: &Selection,
    activations: &Activations,
) -> Result<()> {
    let run = job.run;
    let backbone = job.backbone;
    let [(start, end)] = selection.regions()[..] else {
        return Err(Error::job("fine-tuning requires one contiguous block of removed layers"));
    };
    let solved = variant
        .operator
        .as_ref()
        .and_then(|key| run.get(key))
        .ok_or_else(|| Error::job("the operator is not in the store"))?;
    let tail =
        run.models.read(backbone, || LayersAfter::load(&backbone.config, &backbone.folder, end, &Device::Cpu))?;
    let training_data = teacher::TrainingData::load_inputs(job, plan, start, &tail)?;
    let began = Instant::now();
    let (state, spent) = latest_checkpoint(job, plan, || Ok(Checkpoint::start(operator::read_matrix(&solved)?)))?;
    let mut training = Training::new(&tail, state)?;
    let steps = plan.finetune.sequences;
    let length = plan.finetune.length;
    let label = format!("fine-tune {}", run.grid.cells[variant.cell]);
    let load = Load::windows((steps - training.steps()) * length, length);
    let id = run.start(job.guard.name(), &label, load.tokens, 0, remaining_flops(&backbone.config, &load, end));
    while training.steps() < steps {
        let sequence = training.steps();
        fault::fault_point("train");
        let loss = training.step(training_data.stream(sequence)?, &training_data.top_tokens(sequence)?)?;
        let done = sequence + 1;
        if done.is_multiple_of(checkpoint_interval(plan)) {
            run.note(format!("{label}: step {done} of {steps}, loss {loss:.4}"));
            if done < steps {
                replace_checkpoint(job, plan, training.state(), done, spent + began.elapsed().as_secs_f64())?;
            }
        }
        run.advance(id, length)?;
    }
    run.finish(id);
    let seconds = spent + began.elapsed().as_secs_f64();
    store_trained(job, plan, &solved, (Span::layers(start, end), activations), training.state(), seconds)?;
    (1..=CHECKPOINTS)
        .try_for_each(|number| run.store.discard(&checkpoint(&plan.key, number * checkpoint_interval(plan))))
}

/// Returns the FLOPs for training on `load` through layer `end` and all later layers.
fn remaining_flops(config: &Config, load: &Load, end: usize) -> f64 {
    let program = Program::pruned(config.layers, &(0..end).collect::<Vec<_>>(), |_| None);
    let products = Trie::new(&[program]).flops(config, load).shared;
    step_flops(config, products, load, config.layers - end)
}

fn checkpoint_interval(plan: &TrainingPlan) -> usize {
    plan.finetune.sequences.div_ceil(CHECKPOINTS)
}

/// Stores the checkpoint taken after `steps` steps, and removes the previous one.
fn replace_checkpoint(
    job: &CalibrationJob<'_>,
    plan: &TrainingPlan,
    state: &Checkpoint,
    steps: usize,
    seconds: f64,
) -> Result<()> {
    let store = job.run.store;
    job.guard.check()?;
    store.put(&checkpoint(&plan.key, steps), seconds, &[(STATE, &state.to_bytes())])?;
    job.guard.record_progress();
    store.discard(&checkpoint(&plan.key, steps - checkpoint_interval(plan)))
}

/// Returns the latest checkpoint of a training run and the seconds spent until then. Returns the initial state if there
/// is no checkpoint.
fn latest_checkpoint(
    job: &CalibrationJob<'_>,
    plan: &TrainingPlan,
    start: impl FnOnce() -> Result<Checkpoint>,
) -> Result<(Checkpoint, f64)> {
    let interval = checkpoint_interval(plan);
    for number in (1..=CHECKPOINTS).rev() {
        let Some(artifact) = job.run.get(&self::checkpoint(&plan.key, number * interval)) else { continue };
        let state =
            Checkpoint::from_bytes(&artifact.read(STATE)?).map_err(|error| error.at(artifact.folder().display()))?;
        job.run.note(format!("resuming fine-tuning after step {} of {}", number * interval, plan.finetune.sequences));
        return Ok((state, artifact.meta().seconds));
    }
    Ok((start()?, 0.0))
}

/// Stores a trained operator in the format of a solved one, with new measurements and the loss at each step.
fn store_trained(
    job: &CalibrationJob<'_>,
    plan: &TrainingPlan,
    solved: &StoredObject,
    (span, activations): (Span, &Activations),
    state: &Checkpoint,
    seconds: f64,
) -> Result<()> {
    let operator = Operator::dense(job.backbone.config.hidden, state.matrix.clone())?;
    let mut results = operator::read_results(solved)?;
    let fitted = activations.shape().sequences;
    let boundary = Boundary { starts: &job.windows.starts, ..Boundary::new(&*job.engine, activations, span, fitted) };
    for result in &mut results {
        result.operator = Some(operator.key());
        result.numbers = RepairMetrics::compute(&boundary, &Repair::Stream(std::sync::Arc::clone(&operator)))?;
    }
    job.check_unchanged()?;
    self::store(job.run.store, &plan.key, seconds, &results, &operator, &state.losses)
}
