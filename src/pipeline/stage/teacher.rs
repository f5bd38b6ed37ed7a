//! Outputs of the dense backbone, which is the teacher for training: the most likely tokens at each position of a text,
//! and their logits. They are stored in shards, which are ranges of sequences.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use super::activations::{FLOPS_PER_KEPT_BYTE, KeptActivations, sequence_range, shard_rows_key};
use super::calibration_job::CalibrationJob;
use super::row_writer::{ROWS, disk_full_error};
use super::{BackboneKeyParts, Check, Family, Member, Stage, tokens};
use crate::calibrate::{self, ActivationShape, Activations, HookPoint, PassRequest, Spool, WindowSubset};
use crate::distill::{Finetune, LayersAfter, TopTokens, top_tokens};
use crate::error::{Error, Result};
use crate::model::{Config, Load, Program, Trie};
use crate::pipeline::env::backbone::TrainingPlan;
use ghostlab_store::{Key, ObjectKind, Payload, Pin, StoredObject, fault};

// Version 2: candle does not round logits in half precision. Version 3: see version 4 of `tokens`.
pub const KIND: ObjectKind = ObjectKind::new("teacher", 3);

pub const STAGE: Stage =
    Stage { check: Check::Never, inodes: |_| 6, members: &[Member::WithFields(&[SEQUENCES])], ..Stage::new(KIND) };

const SEQUENCES: &str = "sequences";

/// Payloads that contain the most likely tokens at the positions of a shard, and their logits.
const TOKENS: &str = "likeliest.u32";
const LOGITS: &str = "logits.f32";

/// Cost of the top-k selection for each logit, in floating-point operations. Measured on three texts with a vocabulary
/// of 2,048 tokens.
const TOP_K_FLOPS_PER_LOGIT: f64 = 1400.0;

/// Estimates the number of FLOPs for a forward pass with the output head, including the selection and storage of the
/// top tokens and the storage of the residual stream.
pub(super) fn pass_flops(config: &Config, load: &Load) -> f64 {
    let pass = Trie::new(&[Program::dense(config.layers)]).flops(config, load).shared;
    pass + TOP_K_FLOPS_PER_LOGIT * (load.tokens * config.vocab) as f64
        + FLOPS_PER_KEPT_BYTE * output_bytes(config, load.tokens) as f64
}

/// Returns the size in bytes of the stored residual stream, top tokens and logits for the given number of tokens.
pub(super) fn output_bytes(config: &Config, tokens: usize) -> u64 {
    ((4 * config.hidden + 8 * Finetune::TOP_TOKENS) * tokens) as u64
}

/// Returns the key family of the teacher's predictions on a text.
pub(super) fn family(backbone: BackboneKeyParts<'_>, tokens: &Arc<Key>) -> Family {
    let mut identity = backbone.dense.backbone_fields();
    identity["likeliest"] = json!(Finetune::TOP_TOKENS);
    Family::new(KIND, identity, tokens, backbone)
}

pub fn shard_key(backbone: BackboneKeyParts<'_>, tokens: &Arc<Key>, sequences: &Range<usize>) -> Key {
    family(backbone, tokens).member([(SEQUENCES, sequence_range(sequences))])
}

/// Returns the name of the lease on a shard. All training runs on the text share it.
pub fn lease_name(backbone: BackboneKeyParts<'_>, tokens: &Arc<Key>, sequences: &Range<usize>) -> String {
    format!("teach-{}", shard_key(backbone, tokens, sequences).hash())
}

pub fn encode_outputs<'a>(tokens: &'a [u32], logits: &'a [f32]) -> [(&'static str, &'a [u8]); 2] {
    [(TOKENS, bytemuck::cast_slice(tokens)), (LOGITS, bytemuck::cast_slice(logits))]
}

/// Reads the teacher's top tokens at `positions` in a shard. `position_count` is the number of positions in the shard.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read(object: &StoredObject, positions: Range<usize>, position_count: usize) -> Result<TopTokens> {
    let tokens = object.read(TOKENS)?;
    let logits = object.read(LOGITS)?;
    let kept = tokens.len() / (4 * position_count).max(1);
    let range = 4 * positions.start * kept..4 * positions.end * kept;
    let damaged_error = || Error::damaged("stored teacher outputs have the wrong length").at(object.folder().display());
    let tokens = tokens.get(range.clone()).ok_or_else(damaged_error)?;
    let logits = logits.get(range).ok_or_else(damaged_error)?;
    Ok(TopTokens {
        kept,
        tokens: tokens.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
        logits: logits.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
    })
}

/// Maximum number of rows whose logits are in memory at the same time.
const MAX_LOGIT_ROWS: usize = 256;

/// Stored teacher outputs and residual streams of a text, by shard.
struct TeacherOutputs<'t, 'a> {
    text_job: &'t CalibrationJob<'a>,
    site: HookPoint,
    shards: Vec<Range<usize>>,
    rows: KeptActivations,
    top_tokens: Vec<Option<StoredObject>>,
}

impl<'t, 'a> TeacherOutputs<'t, 'a> {
    fn look_up(text_job: &'t CalibrationJob<'a>, site: HookPoint, shards: Vec<Range<usize>>) -> Self {
        let mut rows = KeptActivations::default();
        rows.look_up(text_job, &BTreeSet::from([site]));
        let top_tokens = shards.iter().map(|shard| text_job.run.get(&text_job.teacher_key(shard))).collect();
        Self { text_job, site, shards, rows, top_tokens }
    }

    /// Computes the missing shards with the dense backbone, and waits for shards that other processes are computing.
    fn complete(&mut self, tail: &LayersAfter) -> Result<()> {
        let Self { text_job, site, .. } = *self;
        let length = text_job.shape.length;
        let mut left: Vec<usize> = (0..self.shards.len())
            .filter(|&index| self.top_tokens[index].is_none() || !self.rows.has(site, index))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        let load = Load::windows(left.iter().map(|&index| self.shards[index].len() * length).sum(), length);
        let flops = pass_flops(&text_job.backbone.config, &load);
        let id = text_job.run.start(text_job.guard.name(), &text_job.label, load.tokens, 0, flops);
        while !left.is_empty() {
            let mut contended = Vec::new();
            for index in left {
                if !self.complete_shard(id, index, tail)? {
                    contended.push(index);
                }
            }
            left = contended;
            if !left.is_empty() {
                text_job.run.back_off()?;
            }
        }
        text_job.run.finish(id);
        Ok(())
    }

    /// Reads or computes one shard. Returns false if another process holds its lease.
    fn complete_shard(&mut self, id: usize, index: usize, tail: &LayersAfter) -> Result<bool> {
        let Self { text_job, site, .. } = *self;
        let shard = &self.shards[index];
        // The lease ensures that only one training run computes a shard.
        let name = lease_name(text_job.backbone.key_parts(), text_job.tokens, shard);
        let Some(_lease) = text_job.run.lease(&name, &format!("{}, shard {}", text_job.label, index + 1))? else {
            return Ok(false);
        };
        let rows = text_job.run.get(&shard_rows_key(text_job, site, shard));
        let top = text_job.run.get(&text_job.teacher_key(shard));
        let (rows, top) = match (rows, top) {
            (Some(rows), Some(top)) => {
                text_job.run.advance_elsewhere(id, shard.len() * text_job.shape.length);
                (rows, top)
            }
            (_, top) => text_job.compute_shard(id, site, shard, tail, top)?,
        };
        self.rows.add(text_job.shape, index, [(site, rows)]);
        self.top_tokens[index] = Some(top);
        Ok(true)
    }
}

/// Inputs of a training run, by sequence.
pub(super) struct TrainingData {
    shape: ActivationShape,
    site: HookPoint,
    streams: Activations,
    /// Predictions of the teacher, by shard.
    top_tokens: Vec<StoredObject>,
    shards: Vec<Range<usize>>,
    /// Pin that protects the residual streams from deletion while they are in use.
    _pin: Pin,
}

impl TrainingData {
    /// Loads the inputs for training. Missing shards are computed with the dense backbone.
    pub(super) fn load_inputs(
        job: &CalibrationJob<'_>,
        plan: &TrainingPlan,
        first_removed: usize,
        tail: &LayersAfter,
    ) -> Result<Self> {
        let run = job.run;
        let backbone = job.backbone;
        let tokens = &backbone.calibrations[plan.text].tokens;
        let windows = tokens::load_windows(run, backbone, tokens)?;
        let shape =
            ActivationShape { channels: backbone.config.hidden, sequences: windows.count(), length: windows.length };
        let site = HookPoint::Stream(first_removed);
        let label = format!("read {} for fine-tuning {}", backbone.calibrations[plan.text].calibration, backbone.name);
        let engine = Arc::clone(&job.engine);
        let text_job = CalibrationJob { engine, tokens, windows, label, shape, ..*job };
        let shards: Vec<Range<usize>> = shape.shards().collect();
        // Pin the rows, because another calibration may use the same text and would delete them when it cleans up.
        let pin = run.store.pin(shards.iter().map(|shard| shard_rows_key(&text_job, site, shard)));
        let mut outputs = TeacherOutputs::look_up(&text_job, site, shards);
        outputs.complete(tail)?;
        let streams = outputs.rows.open(shape, &BTreeSet::from([site]))?;
        let TeacherOutputs { shards, top_tokens, .. } = outputs;
        Ok(Self { shape, site, streams, top_tokens: top_tokens.into_iter().flatten().collect(), shards, _pin: pin })
    }

    /// Returns the input of the first removed layer for a sequence, with shape `[positions, C]`.
    pub(super) fn stream(&self, sequence: usize) -> Result<&[f32]> {
        self.streams.rows(self.site, sequence * self.shape.length..(sequence + 1) * self.shape.length)
    }

    /// Returns the teacher's top tokens at all positions of a sequence.
    pub(super) fn top_tokens(&self, sequence: usize) -> Result<TopTokens> {
        let index = self
            .shards
            .iter()
            .position(|shard| shard.contains(&sequence))
            .ok_or_else(|| Error::job("teacher outputs are missing from the store"))?;
        let shard = &self.shards[index];
        let length = self.shape.length;
        let first = (sequence - shard.start) * length;
        self::read(&self.top_tokens[index], first..first + length, shard.len() * length)
    }
}

impl CalibrationJob<'_> {
    fn teacher_key(&self, shard: &Range<usize>) -> Key {
        self::shard_key(self.backbone.key_parts(), self.tokens, shard)
    }

    /// Runs the dense backbone on one shard. Stores the residual stream at `site` and, if `top` is not given, the
    /// predictions of the teacher.
    fn compute_shard(
        &self,
        id: usize,
        site: HookPoint,
        shard: &Range<usize>,
        tail: &LayersAfter,
        top: Option<StoredObject>,
    ) -> Result<(StoredObject, StoredObject)> {
        fault::fault_point("teach");
        let store = self.run.store;
        let started = Instant::now();
        let windows: Vec<&[u32]> = self.windows.iter().skip(shard.start).take(shard.len()).collect();
        let mut draft = store.draft()?;
        let payload = draft.payload(ROWS)?;
        let last = HookPoint::Stream(self.backbone.config.layers);
        let mut spool = TeacherSpool { site, payload, last, ends: Vec::new() };
        let ends = if top.is_some() { None } else { Some(last) };
        let request = PassRequest { sites: ends.into_iter().chain([site]).collect(), ..PassRequest::default() };
        let batch = self.backbone.batch_tokens;
        let mut pieces = [WindowSubset { windows, first_sequence: shard.start, spool: &mut spool }];
        calibrate::run(&*self.engine, &mut pieces, batch, &request, |tokens| self.run.advance(id, tokens))
            .map_err(|error| error.at(self.label.clone()))?;
        let TeacherSpool { payload, ends, .. } = spool;
        payload.into_inner().map_err(|error| write_error(error.error()))?;
        let mut tokens = Vec::new();
        let mut logits = Vec::new();
        for rows in ends.chunks(MAX_LOGIT_ROWS * self.shape.channels) {
            let top = top_tokens(&tail.project_rows(rows)?, Finetune::TOP_TOKENS)?;
            tokens.extend(top.tokens);
            logits.extend(top.logits);
        }
        self.check_unchanged()?;
        let seconds = started.elapsed().as_secs_f64() / 2.0;
        let top = top.map_or_else(
            || store.put(&self.teacher_key(shard), seconds, &self::encode_outputs(&tokens, &logits)),
            Ok,
        )?;
        let rows = store.commit(draft, &shard_rows_key(self, site, shard), seconds)?;
        self.guard.record_progress();
        Ok((rows, top))
    }
}

/// Writer that stores the residual stream at `site`, and collects the input of the final norm in `ends`.
struct TeacherSpool {
    site: HookPoint,
    payload: Payload,
    last: HookPoint,
    ends: Vec<f32>,
}

impl Spool for TeacherSpool {
    fn push(&mut self, site: HookPoint, rows: &[f32]) -> Result<()> {
        if site == self.last {
            self.ends.extend_from_slice(rows);
        }
        if site == self.site {
            self.payload.write_all(bytemuck::cast_slice(rows)).map_err(|error| write_error(&error))?;
        }
        Ok(())
    }
}

fn write_error(error: &std::io::Error) -> Error {
    disk_full_error("cannot write teacher outputs", error)
}
