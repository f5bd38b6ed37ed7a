//! Kinds of stored objects (layer 1 of the architecture). Each kind has its own file, which defines its key, inputs,
//! cost, format and reader. Planning, cost estimation and garbage collection are generic over [`Stage`].

pub mod activations;
pub mod boundary_result;
pub mod calibration;
pub mod calibration_inputs;
mod calibration_job;
mod chunk_sweep;
pub(crate) mod chunks;
pub mod distilled;
pub mod generations;
pub mod group;
pub mod latency;
mod measured_trials;
pub mod operator;
mod row_writer;
pub mod scores;
pub(crate) mod scoring;
pub mod selection;
pub mod task_scores;
pub mod teacher;
#[cfg(test)]
pub mod template;
pub mod tokens;

use std::ops::AddAssign;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::group::{Group, Job, Order};
use crate::error::{Error, Result};
pub use crate::pipeline::env::backbone::BackboneKeyParts;
use crate::pipeline::env::backbone::{BackbonePlan, Variant};
use crate::pipeline::env::event::WorkKind;
use ghostlab_store::{Key, ObjectKind, StoreSchema, StoredObject};

/// Description of one kind of stored object. Planning, cost estimation and garbage collection use it to treat all kinds
/// alike.
pub struct Stage {
    pub kind: ObjectKind,
    pub check: Check,
    /// Returns the maximum number of files and folders that an object needs, including the folder named after the first
    /// digits of its hash. `small` indicates whether an operator of the backbone and its record fit in one file.
    pub inodes: fn(small: bool) -> u64,
    /// Rules by which garbage collection keeps objects that are in no plan but related to an object of a plan.
    pub members: &'static [Member],
    /// Whether objects are valid on one machine only. Such objects are not counted in outlines and not computed by
    /// workers.
    pub machine_specific: bool,
    /// Names of the object as an input of a cell, or `None` for intermediate objects.
    pub words: Option<InputNames>,
}

/// Names for an input of a cell, in messages and in JSON.
#[derive(Clone, Copy)]
pub struct InputNames {
    /// Kind of the jobs that compute the input.
    pub group: WorkKind,
    /// Name in JSON output. `about` describes it in the schema.
    pub part: &'static str,
    pub about: &'static str,
    /// Name in messages. It is followed by the text or task, if any.
    pub what: &'static str,
    /// Returns the tokens that a job reads, given its index.
    pub reads: fn(&BackbonePlan, &Variant, usize) -> Option<TokensRef>,
}

/// Label and key of tokens.
pub type TokensRef = (String, Arc<Key>);

/// Rule that determines which payloads of a stored object are verified before a run uses it.
#[derive(Debug, Clone, Copy)]
pub enum Check {
    /// All payloads are verified.
    Whole,
    /// If an object derived from this one is missing, all payloads are verified. Otherwise, only the named payload is
    /// verified, because the others are large.
    Only(&'static str),
    /// Nothing is verified, because the reader verifies the object.
    Never,
}

/// Relation of an object that is in no plan to an object of a plan.
#[derive(Debug, Clone, Copy)]
pub enum Member {
    /// The object is a member of a [`Family`]. Its key has these fields in addition to those of the family key.
    WithFields(&'static [&'static str]),
    /// The object is an intermediate result for the parent with this name, and is needed until the parent is stored.
    Toward(&'static str),
}

/// All stages. A new kind of object needs its own file and an entry here.
const STAGES: &[Stage] = &[
    tokens::STAGE,
    activations::STAGE,
    selection::STAGE,
    operator::STAGE,
    scores::STAGE,
    generations::STAGE,
    teacher::STAGE,
    distilled::STAGE,
    latency::STAGE,
];

/// Groups, in the order in which their jobs start.
pub const GROUPS: [&Group; 3] = [&calibration::GROUP, &scoring::GROUP, &latency::GROUP];

/// Kinds of objects in all stages. If the output of a stage changes, its version must be increased. Otherwise,
/// `tests/golden.rs` fails.
pub const KINDS: [ObjectKind; STAGES.len()] = {
    let mut kinds = [STAGES[0].kind; STAGES.len()];
    let mut index = 0;
    while index < kinds.len() {
        kinds[index] = STAGES[index].kind;
        index += 1;
    }
    kinds
};

/// Schema of the stores that this program opens.
pub const STORE_WORDS: StoreSchema = StoreSchema { kinds: &KINDS, packed: scores::KIND, counts_death };

/// Returns whether the death of a lease's owner counts as a crash. This is the case only for leases on calibrations and
/// chunks.
fn counts_death(lease_name: &str) -> bool {
    activations::is_lease(lease_name) || scores::is_lease(lease_name)
}

impl Stage {
    /// Creates a stage with small objects, which are always verified completely.
    const fn new(kind: ObjectKind) -> Self {
        Self { kind, check: Check::Whole, inodes: |_| 2, members: &[], machine_specific: false, words: None }
    }

    /// Returns the names of all inputs of cells, in the order of the jobs.
    pub fn input_names() -> Vec<InputNames> {
        let mut names: Vec<InputNames> = STAGES.iter().filter_map(|stage| stage.words).collect();
        names.sort_by_key(|names| names.group);
        names
    }

    /// Returns the stage for a kind of object.
    ///
    /// # Errors
    /// Fails with kind `Job` if no stage creates such objects.
    pub fn for_kind(kind: ObjectKind) -> Result<&'static Self> {
        STAGES.iter().find(|stage| stage.kind == kind).ok_or_else(|| {
            Error::job("no stage creates objects of this kind")
                .expected(KINDS.map(ObjectKind::name).join(", "))
                .found(kind.name())
                .hint("add its stage to `STAGES` (`src/pipeline/stage/mod.rs`)")
        })
    }

    pub fn is_machine_specific(key: &Key) -> bool {
        Self::for_kind(key.kind()).is_ok_and(|stage| stage.machine_specific)
    }

    /// Verifies the payloads of an object that a run uses. `is_needed` indicates whether an object derived from it is
    /// missing.
    ///
    /// # Errors
    /// Fails if the object is damaged.
    pub fn check(&self, object: &StoredObject, is_needed: bool) -> Result<()> {
        match self.check {
            Check::Only(payload) if !is_needed => object.read(payload).map(drop),
            Check::Whole | Check::Only(_) => object.verify(),
            Check::Never => Ok(()),
        }
    }
}

/// Group of related objects. A run computes only the members that it needs. The keys of derived objects refer to the
/// family key, which represents all members. No object is stored under the family key.
#[derive(Debug, Clone)]
pub struct Family {
    kind: ObjectKind,
    identity: Value,
    tokens: Arc<Key>,
    backbone: String,
}

impl Family {
    fn new(kind: ObjectKind, identity: Value, tokens: &Arc<Key>, backbone: BackboneKeyParts<'_>) -> Self {
        Self { kind, identity, tokens: Arc::clone(tokens), backbone: backbone.name.to_owned() }
    }

    /// Returns the key that represents all members of the family.
    fn key(self) -> Key {
        Key::new(self.kind, self.identity, [("tokens", self.tokens)]).with_input_name(&self.backbone)
    }

    /// Returns the key of the member with the given fields, which must be declared in [`Member::WithFields`].
    fn member<const N: usize>(mut self, fields: [(&str, Value); N]) -> Key {
        fields.into_iter().for_each(|(name, value)| self.identity[name] = value);
        self.key()
    }
}

/// Serializes a payload as JSON.
///
/// # Errors
/// Fails with kind `Job` if the value cannot be represented in JSON.
fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::job("cannot write the object as JSON").found(error.to_string()))
}

/// Reads a JSON payload.
///
/// # Errors
/// Fails if the payload is damaged.
fn from_json<T: DeserializeOwned>(artifact: &StoredObject, name: &str) -> Result<T> {
    serde_json::from_slice(&artifact.read(name)?).map_err(|error| {
        Error::damaged("cannot read a stored object")
            .at(artifact.folder().join(name).display().to_string())
            .found(error.to_string())
    })
}

/// Cost of objects that are computed together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Number of floating-point operations if each object is computed separately.
    pub separate: f64,
    /// Number of floating-point operations if shared work is counted once.
    pub shared: f64,
    /// Number of floating-point operations in `shared` that are not done yet.
    pub left: f64,
    /// Number of bytes that will be written to the store.
    pub disk: u64,
    /// Number of files and folders, in addition to those of planned objects.
    pub inodes: u64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.separate += other.separate;
        self.shared += other.shared;
        self.left += other.left;
        self.disk += other.disk;
        self.inodes += other.inodes;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::calibrate::{HookPoint, Pair, SimilarityAxis};
    use crate::criterion::TrialMetric;
    use crate::evaluate::logit_distance::LogitDistance;
    use crate::model::Cut;
    use crate::pipeline::env::backbone::ScoredExtent;
    use crate::pipeline::identity::{Identity, ModelId};
    use ghostlab_store::Store;

    #[test]
    fn member_key_without_its_fields_matches_the_family_key() {
        let dense = Identity::tiny();
        let backbone = BackboneKeyParts { name: "tiny", dense: &dense, batch_tokens: 64 };
        let tokens = Arc::new(Key::new(tokens::KIND, json!({"seed": 1}), []));
        let pairs = BTreeSet::from([Pair { axis: SimilarityAxis::Token, from: 0, to: 2 }]);
        let pass = activations::family(backbone, &tokens).key();
        let members = [
            (activations::rows_key(backbone, &tokens, HookPoint::Stream(2), &(0..4)), pass.clone()),
            (activations::sums_key(backbone, &tokens, &pairs, &(4..8)), pass),
            (
                scores::trial_key(backbone, &tokens, TrialMetric::Perplexity, &Cut::layers([1, 2]).into()),
                scores::trial_family(backbone, &tokens).key(),
            ),
            (
                scores::trial_key(
                    backbone,
                    &tokens,
                    TrialMetric::Distance(LogitDistance::Angle),
                    &Cut::layers([1]).into(),
                ),
                scores::trial_family(backbone, &tokens).key(),
            ),
            (
                scores::trial_key(backbone, &tokens, TrialMetric::Cosine, &Cut::layers([1]).into()),
                scores::trial_family(backbone, &tokens).key(),
            ),
            (teacher::shard_key(backbone, &tokens, &(0..4)), teacher::family(backbone, &tokens).key()),
        ];
        for (member, family) in members {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(folder.path(), STORE_WORDS).unwrap();
            store.put(&member, 1.0, &[("payload", b"1")]).unwrap();
            let entries = store.entries();
            let members = Stage::for_kind(member.kind()).unwrap().members.iter().filter(|member| match member {
                Member::WithFields(fields) => entries[0].hash_without(fields).is_some_and(|hash| hash == family.hash()),
                Member::Toward(_) => false,
            });
            assert_eq!(members.count(), 1, "{}", member.readable());
        }
    }

    #[test]
    fn checkpoint_key_refers_to_its_training_run() {
        let trained = Arc::new(Key::new(distilled::KIND, json!({"seed": 1}), []));
        let checkpoint = distilled::checkpoint(&trained, 7);
        assert!(distilled::STAGE.members.iter().any(|member| match member {
            Member::Toward(parent) => checkpoint.parents().any(|(name, key)| name == *parent && *key == trained),
            Member::WithFields(_) => false,
        }));
    }

    /// The operator is solved before rounding, so its key does not depend on the weight type.
    #[test]
    fn scores_of_rounded_weights_have_separate_keys() {
        use crate::model::WeightType;
        let extent = ScoredExtent::default();
        let dense = Identity::tiny();
        let backbone = BackboneKeyParts { name: "tiny", dense: &dense, batch_tokens: 64 };
        let [tokens, operator] = [tokens::KIND, operator::KIND].map(|kind| Arc::new(Key::new(kind, json!({}), [])));
        let what = Arc::new(dense.clone());
        for repair in [None, Some(&operator)] {
            let hashes = [None, Some(WeightType::Q8_0), Some(WeightType::Q4_0)].map(|weights| {
                let weights = weights.map(|weights| weights.name().to_owned());
                let model = Arc::new(ModelId { weights, ..ModelId::clone(&dense.model) });
                let dense = Identity { model, ..dense.clone() };
                let backbone = BackboneKeyParts { dense: &dense, ..backbone };
                let scored = scores::key(scores::KIND, backbone, repair, &tokens, extent, &what).hash().to_owned();
                [scored, scores::key(generations::KIND, backbone, repair, &tokens, extent, &what).hash().to_owned()]
            });
            assert_eq!(hashes.iter().flatten().collect::<BTreeSet<_>>().len(), 6, "{repair:?}");
        }
    }

    #[test]
    fn kind_without_stage_is_rejected_with_its_name() {
        let error = Stage::for_kind(ObjectKind::new("rumours", 1)).map(|stage| stage.kind).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        assert!(error.to_string().contains("rumours") && error.to_string().contains("STAGES"), "{error}");
    }

    #[test]
    fn only_calibration_and_chunk_crashes_count_as_attempts() {
        let dense = Identity::tiny();
        let backbone = BackboneKeyParts { name: "tiny", dense: &dense, batch_tokens: 64 };
        let tokens = Arc::new(Key::new(tokens::KIND, json!({}), []));
        let chunk = format!("{}-3", scores::journal_name(backbone, &tokens, ScoredExtent::default()));
        let leases = [activations::lease_name(backbone, &tokens), chunk];
        assert!(leases.iter().all(|lease_name| counts_death(lease_name)), "{leases:?}");
        assert!(!["tokenising", "timing-1"].iter().any(|lease_name| counts_death(lease_name)));
        assert!(!counts_death(&teacher::lease_name(backbone, &tokens, &(0..4))));
    }
}
