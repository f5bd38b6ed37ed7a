//! Scores of variants on a text or task, and of trials on a calibration text. Defines their format, and the names of
//! journals and leases for their chunks ([`EvalSet`](crate::evaluate::EvalSet)).

use std::sync::Arc;

use serde_json::{Value, json};

use super::{BackboneKeyParts, Cost, Family, InputNames, Member, Stage};
use crate::criterion::{Trial, TrialMetric};
use crate::error::{Error, Result};
use crate::evaluate::damage_eval::{Damages, VALUES_PER_WINDOW};
use crate::evaluate::perplexity::Losses;
use crate::files::sha256;
use crate::grid::Perplexity;
use crate::model::trie::Cost as TrieCost;
use crate::model::{Config, Cut, Load, Program, Trie};
use crate::pipeline::env::backbone::ScoredExtent;
use crate::pipeline::env::event::WorkKind;
use crate::pipeline::identity::Identity;
use ghostlab_store::{Key, Lookup, ObjectKind, Store, StoredObject};

// Version 2: the softmax divides last, which changes the rounding. Version 3: products of single rows are rounded
// differently. Version 4: candle does not round logits in half precision. Version 5: see version 4 of `tokens`.
pub const KIND: ObjectKind = ObjectKind::new("scores", 5);

/// Stage of scores. Scores are packed, so that one file contains many of them.
pub const STAGE: Stage = Stage {
    inodes: |_| 0,
    members: &[
        Member::WithFields(&[REMOVED_FIELD]),
        Member::WithFields(&[REMOVED_FIELD, DISTANCE_FIELD]),
        Member::WithFields(&[REMOVED_FIELD, MERGED_FIELD]),
    ],
    words: Some(INPUT_NAMES),
    ..Stage::new(KIND)
};

pub(super) const INPUT_NAMES: InputNames = InputNames {
    group: WorkKind::Score,
    part: "scores",
    about: "Scores on a text or task.",
    what: "scores on",
    reads: |backbone, _, index| {
        let evaluation = &backbone.evaluations[index];
        Some((format!("tokens of {}", evaluation.target), Arc::clone(&evaluation.tokens)))
    },
};

/// Key field that distinguishes the scores of a trial from those of the dense backbone for the same tokens.
const REMOVED_FIELD: &str = "removed";
/// Key field that distinguishes trials that measure logit distances from trials that measure perplexities.
const DISTANCE_FIELD: &str = "distance";

/// Key field that contains the merged layers of a trial that compares outputs by cosine.
const MERGED_FIELD: &str = "merged";

/// Value of the key field `compared` if scores are compared with the dense program of the same backbone.
const DENSE_REFERENCE: &str = "dense";

/// Payload that contains scores as little-endian `f64`: one value per window or two values per choice. If variants are
/// compared with the dense model, each window has several values ([`Damages`]).
pub(super) const VALUES_FILE: &str = "values.f64";

fn dense_key_part(backbone: BackboneKeyParts<'_>) -> Value {
    let mut identity = backbone.dense.backbone_fields();
    identity["batch"] = json!(backbone.batch_tokens);
    identity
}

/// Returns the key fields that describe the scored variant. If there is an operator, the engine is omitted, because the
/// key of the operator contains it. The weight type is kept, because weights may be rounded after the operator is
/// solved.
pub(super) fn variant_key_part(backbone: BackboneKeyParts<'_>, operator: Option<&Arc<Key>>) -> Value {
    if operator.is_none() {
        return dense_key_part(backbone);
    }
    let mut identity = json!({"batch": backbone.batch_tokens});
    if let Some(weights) = &backbone.dense.model.weights {
        identity["weights"] = json!(weights);
    }
    identity
}

/// Returns the key of a variant's scores on a text or task, or on a sample of it.
pub fn key(
    kind: ObjectKind,
    backbone: BackboneKeyParts<'_>,
    operator: Option<&Arc<Key>>,
    tokens: &Arc<Key>,
    extent: ScoredExtent,
    what: &Arc<Identity>,
) -> Key {
    let mut identity = variant_key_part(backbone, operator);
    if let Some(draw) = extent.draw {
        identity["draw"] = json!(draw);
    }
    if extent.damage {
        identity["compared"] = json!(DENSE_REFERENCE);
    }
    let operator = operator.map(|operator| ("operator", Arc::clone(operator)));
    let parents = operator.into_iter().chain([("tokens", Arc::clone(tokens))]);
    Key::new(kind, identity, parents).with_input_name(backbone.name).with_description(what)
}

/// Estimates the cost of scoring the variants in `all`, and of the `missing` ones among them. If variants are compared
/// with a `reference`, the cost of running it is included.
pub fn cost(config: &Config, all: &Trie, reference: Option<&Program>, missing: &[Program], load: &Load) -> Cost {
    let TrieCost { shared, separate } = all.flops(config, load);
    let mut cost = Cost { separate, shared, ..Cost::default() };
    if !missing.is_empty() {
        let left =
            reference.map_or_else(|| Trie::for_scoring(missing), |reference| Trie::with_reference(reference, missing));
        cost.left = left.flops(config, load).shared;
        let item_bytes = if reference.is_some() { 8 * VALUES_PER_WINDOW as u64 } else { 16 };
        cost.disk = missing.len() as u64 * item_bytes * load.scored as u64 / load.length.max(1) as u64;
        cost.inodes = pack_file_count(missing.len());
    }
    cost
}

/// Returns the key family for the trials on a calibration text. The family key describes the dense backbone. Each
/// trial adds at least the field `removed`.
pub(super) fn trial_family(backbone: BackboneKeyParts<'_>, tokens: &Arc<Key>) -> Family {
    Family::new(KIND, dense_key_part(backbone), tokens, backbone)
}

pub fn trial_key(backbone: BackboneKeyParts<'_>, tokens: &Arc<Key>, metric: TrialMetric, trial: &Trial) -> Key {
    let removed = (REMOVED_FIELD, json!(trial.removed));
    match metric {
        TrialMetric::Perplexity => trial_family(backbone, tokens).member([removed]),
        TrialMetric::Distance(distance) => {
            trial_family(backbone, tokens).member([removed, (DISTANCE_FIELD, json!(distance))])
        }
        TrialMetric::Cosine => trial_family(backbone, tokens).member([removed, (MERGED_FIELD, json!(trial.merged))]),
    }
}

/// Computes the result of a trial from its values, one per window.
pub fn trial_result(metric: TrialMetric, window_values: Vec<f64>) -> f64 {
    match metric {
        TrialMetric::Perplexity => Losses { windows: window_values }.perplexity(),
        TrialMetric::Distance(_) | TrialMetric::Cosine => {
            window_values.iter().sum::<f64>() / window_values.len() as f64
        }
    }
}

/// Reads the result of a trial. Returns `None` if it is not stored or is damaged.
pub fn read_trial(store: &Store, key: &Key, metric: TrialMetric) -> Option<f64> {
    let Lookup::Intact(object) = store.lookup(key) else { return None };
    Some(trial_result(metric, read(&object).ok()?))
}

/// Estimates the cost of all trials of a criterion, and of those that are not stored.
pub fn trial_cost(config: &Config, metric: TrialMetric, [all, missing]: [&[Cut]; 2], load: &Load) -> Cost {
    let flops = step_flops(config, metric, all, load).iter().sum();
    let left = step_flops(config, metric, missing, load);
    let inodes = left.len() as u64 * pack_file_count(config.layers);
    Cost { separate: flops, shared: flops, left: left.iter().sum(), inodes, disk: 0 }
}

/// Returns the number of FLOPs for each step of a selection. A greedy search runs its steps in sequence, so the trials
/// of each size are scored separately. Cosines are measured one by one, each with the dense backbone.
fn step_flops(config: &Config, metric: TrialMetric, trials: &[Cut], load: &Load) -> Vec<f64> {
    let is_cosine = metric == TrialMetric::Cosine;
    let steps = trials.chunk_by(|a, b| !is_cosine && a.len() == b.len()).map(|step| {
        let dense = is_cosine.then(|| Program::trunk(config.layers));
        let cuts = step.iter().map(|cut| Program::without(config.layers, cut));
        let programs: Vec<Program> = dense.into_iter().chain(cuts).collect();
        Trie::new(&programs).flops(config, load).shared
    });
    steps.collect()
}

/// Returns the name of the journal for scoring on a text or task, or on a sample of it. The name is also the prefix of
/// the lease names.
pub fn journal_name(backbone: BackboneKeyParts<'_>, tokens: &Key, extent: ScoredExtent) -> String {
    let BackboneKeyParts { dense, batch_tokens, .. } = backbone;
    let content = &dense.model.content;
    let draw = extent.draw.map_or_else(String::new, |draw| format!(" {draw}"));
    let compared = if extent.damage { format!(" compared with {DENSE_REFERENCE}") } else { String::new() };
    sha256::of_bytes(format!("{content} {} {batch_tokens}{}{draw}{compared}", tokens.hash(), dense.engine_suffix()))
}

/// Returns whether a lease name belongs to a chunk. Such names are `JOURNAL-CHUNK`, where the journal name is a
/// SHA-256.
pub(super) fn is_lease(name: &str) -> bool {
    name.split_once('-').is_some_and(|(journal, _)| journal.len() == 64)
}

/// Returns the number of pack files needed for the given number of scores.
fn pack_file_count(scores: usize) -> u64 {
    scores.div_ceil(Store::MAX_PACK_MEMBERS) as u64
}

/// Reads stored scores.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read(object: &StoredObject) -> Result<Vec<f64>> {
    let bits = bytemuck::pod_collect_to_vec::<u8, u64>(&object.read(VALUES_FILE)?);
    Ok(bits.into_iter().map(|bits| f64::from_bits(u64::from_le(bits))).collect())
}

/// Splits values into the losses of a text's windows and, if requested, the comparison with the dense model.
///
/// # Errors
/// Fails with kind `Damaged` if the values do not form complete windows.
pub(crate) fn window_scores(values: Vec<f64>, text: &Perplexity) -> Result<(Losses, Option<Damages>)> {
    if !text.damage {
        return Ok((Losses { windows: values }, None));
    }
    let count = values.len();
    let damages = Damages::from_values(&values).ok_or_else(|| {
        Error::damaged("stored scores contain an incomplete window")
            .at(text.to_string())
            .expected(format!("a multiple of {VALUES_PER_WINDOW} values"))
            .found(count)
    })?;
    Ok((damages.losses.clone(), Some(damages)))
}

/// Encodes values as a payload that [`read`] can decode.
pub(super) fn encode_values(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect()
}
