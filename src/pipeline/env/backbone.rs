//! Plan for one backbone: its cells, calibrations and evaluations, with the store keys of the objects that they need.
//! [`plan`](crate::pipeline::plan) creates it, and jobs read it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use crate::calibrate::ActivationShape;
use crate::criterion::{Depth, PruneSpec};
use crate::distill::Finetune;
use crate::error::Result;
use crate::grid::{Calibration, Draw, EvalTask, Latency, Perplexity};
use crate::model::{Config, EngineChoice, Load, Program, folder_program};
use crate::pipeline::identity::{CalibrationId, Identity, MeasureId};
use ghostlab_store::Key;

/// Backbone and engine of a store key.
#[derive(Debug, Clone, Copy)]
pub struct BackboneKeyParts<'a> {
    /// Name in the grid.
    pub name: &'a str,
    /// Identity of the dense backbone.
    pub dense: &'a Identity,
    /// Tokens per batch. The batch size affects the last digits of scores.
    pub batch_tokens: usize,
}

/// Backbone in a grid, with its cells, calibrations and evaluations.
pub struct BackbonePlan {
    /// Name in the grid.
    pub name: String,
    pub folder: PathBuf,
    pub config: Config,
    /// Identity of the dense backbone, which is independent of the backbone's name, path and file format.
    pub dense: Identity,
    /// Plan for the same backbone with weights as stored, but without cells. Set if weights are rounded but calibration
    /// uses the original weights.
    pub unquantized: Option<Box<BackbonePlan>>,
    pub engine: EngineChoice,
    pub batch_tokens: usize,
    /// Distinct calibrations of the cells, including the texts for training.
    pub calibrations: Vec<CalibrationPlan>,
    /// Evaluations in grid order: perplexities first, then tasks.
    pub evaluations: Vec<Evaluation>,
    /// Prompts to time, in grid order. A prompt is given by its length, batch size and number of new tokens.
    pub latencies: Vec<Latency>,
    /// Cells, in grid order.
    pub variants: Vec<Variant>,
}

/// Calibration of a backbone on one text.
#[derive(Clone)]
pub struct CalibrationPlan {
    /// Calibration of the first cell that uses this plan, but with `operator_sequences` set to `sequences`. The number
    /// of sequences on which operators are solved depends on the variant ([`Variant::fitted`]).
    pub calibration: Calibration,
    pub identity: Arc<CalibrationId>,
    pub tokens: Arc<Key>,
}

/// Windows of a text or documents of a task to score, and whether to compare variants with the dense model.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScoredExtent {
    /// Random sample of the windows or documents, or `None` to score all of them.
    pub draw: Option<Draw>,
    /// Whether the scores of variants are compared with those of the dense model.
    pub damage: bool,
}

/// Text or task on which variants are scored.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum EvalTarget {
    Windows(Perplexity),
    Task(EvalTask),
}

impl EvalTarget {
    /// Returns which windows or documents are scored, and whether variants are compared with the dense model.
    pub(crate) fn extent(&self) -> ScoredExtent {
        ScoredExtent { draw: self.draw(), damage: matches!(self, Self::Windows(text) if text.damage) }
    }

    /// Reads the [`Program`] of the dense model, or returns `None` if variants are not compared with it.
    ///
    /// # Errors
    /// Fails if the operators in the backbone's folder cannot be read.
    pub(crate) fn read_reference(&self, backbone: &BackbonePlan) -> Result<Option<Program>> {
        self.extent().damage.then(|| folder_program(&backbone.config, &backbone.folder)).transpose()
    }

    /// Returns the random sample of windows or documents to score, or `None` to score all of them.
    pub fn draw(&self) -> Option<Draw> {
        match self {
            Self::Windows(text) => text.draw,
            Self::Task(task) => task.how.draw,
        }
    }
}

/// Evaluation of a backbone's variants on a text or task.
pub struct Evaluation {
    pub target: EvalTarget,
    /// Identity of the measurement. [`Identity::with_measure`] combines it with a variant to identify the scores.
    pub measure: Arc<MeasureId>,
    pub tokens: Arc<Key>,
    /// Name of the journal for partial results. It is also the prefix of the lease names.
    pub journal: String,
    /// Whether the variants generate text.
    pub generates: bool,
}

/// Formats a text like `c4@512`, and a task as written in the grid.
impl std::fmt::Display for EvalTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Windows(text) => text.fmt(f),
            Self::Task(task) => task.fmt(f),
        }
    }
}

/// Cell with the keys of its stored objects.
pub struct Variant {
    /// Index of the cell in the grid.
    pub cell: usize,
    /// Identity of the variant, which does not contain any names.
    pub identity: Arc<Identity>,
    /// Index in [`BackbonePlan::calibrations`]. For the dense backbone, `calibration`, `selection` and `operator` are
    /// `None`.
    pub calibration: Option<usize>,
    pub selection: Option<Arc<Key>>,
    /// Keys of the intermediate selections of an iterative criterion, for the depths 1, 2, … below the final depth. An
    /// interrupted selection resumes from the deepest one that is stored.
    pub steps: Vec<Arc<Key>>,
    pub operator: Option<Arc<Key>>,
    /// Training of the operator, or `None` if the operator is used as solved.
    pub trained: Option<TrainingPlan>,
    /// Keys of the scores, one for each evaluation of the backbone.
    pub scores: Vec<Arc<Key>>,
    /// Keys of the latencies, one for each prompt in [`BackbonePlan::latencies`].
    pub latencies: Vec<Arc<Key>>,
    /// Identities of the latency measurements, one for each prompt in [`BackbonePlan::latencies`]. Each contains a hash
    /// of the variants that are timed together.
    pub prompts: Vec<Arc<MeasureId>>,
}

pub struct TrainingPlan {
    /// Index of the training text among the backbone's calibrations.
    pub text: usize,
    pub finetune: Finetune,
    pub key: Arc<Key>,
}

impl CalibrationPlan {
    /// Returns the load of a calibration pass for the cost model. It is computed from the settings, without reading the
    /// text.
    pub fn load(&self) -> Load {
        let Calibration { sequences, length, .. } = self.calibration;
        Load::windows(sequences.saturating_mul(length), length)
    }

    /// Returns the label of the calibration job in events and run records.
    pub fn label(&self, plan: &BackbonePlan) -> String {
        format!("calibrate {} on {}", plan.calibrated().name, self.calibration)
    }

    /// Returns the shape of the activations at one [`HookPoint`](crate::calibrate::HookPoint).
    pub fn shape(&self, config: &Config) -> ActivationShape {
        let Calibration { sequences, length, .. } = self.calibration;
        ActivationShape { sequences, length, channels: config.hidden }
    }
}

impl Variant {
    /// Creates the variant for a dense cell, which needs no calibration.
    pub(crate) fn dense(cell: usize, identity: Identity) -> Self {
        Self {
            cell,
            identity: Arc::new(identity),
            calibration: None,
            selection: None,
            steps: Vec::new(),
            operator: None,
            trained: None,
            scores: Vec::new(),
            latencies: Vec::new(),
            prompts: Vec::new(),
        }
    }

    /// Iterates over the keys of the variant's objects, in the order in which the objects are computed.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.repairs().chain(&self.scores).chain(&self.latencies)
    }

    /// Iterates over the keys of the selection and the operators that are needed to run the variant.
    pub fn repairs(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.selection.iter().chain(&self.operator).chain(self.trained.iter().map(|trained| &trained.key))
    }

    /// Returns the number of leading calibration sequences on which the operator is solved, or 0 for the dense
    /// backbone.
    pub fn fitted(&self) -> usize {
        self.identity.repair.as_ref().map_or(0, |repair| repair.fitted)
    }

    /// Returns the key of the trained operators, or of the solved operators if they are not trained.
    pub fn repair_key(&self) -> Option<&Arc<Key>> {
        self.trained.as_ref().map(|trained| &trained.key).or(self.operator.as_ref())
    }
}

impl BackbonePlan {
    /// Returns the parts of store keys that the backbone and its engine determine.
    pub fn key_parts(&self) -> BackboneKeyParts<'_> {
        BackboneKeyParts { name: &self.name, dense: &self.dense, batch_tokens: self.batch_tokens }
    }

    /// Returns the backbone on which calibrations run: the unquantized backbone if there is one, or else this one.
    pub fn calibrated(&self) -> &Self {
        self.unquantized.as_deref().unwrap_or(self)
    }

    /// Returns a request to remove `depth` layers or sublayers.
    pub(crate) fn prune_spec(&self, depth: Depth) -> PruneSpec<'_> {
        PruneSpec { backbone: &self.name, layers: self.config.layers, depth: depth.count, unit: depth.unit }
    }

    /// Iterates over the keys of all objects. A key may occur more than once.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.variants.iter().flat_map(Variant::keys).chain(self.tokens())
    }

    /// Returns the distinct keys of the tokenized texts.
    pub fn tokens(&self) -> Vec<&Arc<Key>> {
        let all = self.calibrations.iter().map(|c| &c.tokens).chain(self.evaluations.iter().map(|e| &e.tokens));
        let mut seen = BTreeSet::new();
        all.filter(|key| seen.insert(key.hash().to_string())).collect()
    }
}
