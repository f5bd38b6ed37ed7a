//! A backbone with all that its cells need, each by its key: what jobs are given. `plan` makes them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use crate::calibrate::ActivationShape;
use crate::criterion::{Depth, PruneSpec};
use crate::distill::Finetune;
use crate::error::Result;
use crate::grid::{Calibration, Draw, EvalTask, Latency, Perplexity};
use crate::identity::{CalibrationId, Identity, MeasureId};
use crate::model::{CPU, Config, EngineChoice, EngineId, Load, Program, WeightType, whole};
use ghostlab_store::Key;

/// A backbone with what computes it, as keys name them.
#[derive(Debug, Clone, Copy)]
pub struct KeyedBackbone<'a> {
    /// Name in the grid.
    pub name: &'a str,
    /// SHA-256 of what its forward pass reads.
    pub content: &'a str,
    pub engine: EngineId,
    /// Type to which its matrices are rounded on reading.
    pub weights: Option<WeightType>,
    /// Tokens of a batch, on which the last digits of scores depend.
    pub batch_tokens: usize,
}

/// The operations of other engines, in keys.
const FUSED: &str = "fused";

impl KeyedBackbone<'_> {
    /// Returns the key part of the backbone and of what its numbers depend on. The CPU kernels have no name in keys; other
    /// engines have their name, float type and device class.
    pub(crate) fn on_engine(&self) -> Value {
        let EngineId { name, dtype, device } = self.engine;
        let mut identity = json!({"backbone": self.content, "dtype": dtype, "device": device});
        if name != CPU.name {
            identity["engine"] = json!(name);
            // Before that all of its operations were plain ones.
            identity["operations"] = json!(FUSED);
        }
        // Before that the own kernels' output projection, and later their attention, were f32 whatever the layers were in.
        if self.is_half() {
            identity["head"] = json!(dtype);
            identity["attention"] = json!(dtype);
        }
        if let Some(weights) = self.weights {
            identity["weights"] = json!(weights.name());
        }
        identity
    }

    /// Returns the prefix of leases and journals of another engine, whose chunks are not shared. The CPU kernels have none.
    pub(crate) fn other_engine(&self) -> String {
        let head = if self.is_half() { " with its head and attention" } else { "" };
        let operations = if self.engine.name == CPU.name { "" } else { FUSED };
        let engine = if self.engine == CPU { String::new() } else { format!(" {}{head}{operations}", self.engine) };
        self.weights.map_or(engine.clone(), |weights| format!("{engine} in {}", weights.name()))
    }

    /// Returns whether our kernels compute products in another type than f32.
    fn is_half(&self) -> bool {
        self.engine.name == CPU.name && self.engine.dtype != CPU.dtype
    }
}

/// Everything that a backbone's cells need.
pub struct BackbonePlan {
    /// Name in the grid.
    pub name: String,
    pub folder: PathBuf,
    pub config: Config,
    /// SHA-256 of the inputs of its forward pass: its identity, independent of name and storage. The type of rounded
    /// weights is in the config next to it.
    pub content: String,
    /// The backbone as it is stored, without a cell, where this one's weights are rounded and its repairs are computed
    /// before that.
    pub full: Option<Box<BackbonePlan>>,
    /// The engine.
    pub engine: EngineChoice,
    /// Tokens of a batch.
    pub batch_tokens: usize,
    /// The distinct calibrations of its cells.
    pub calibrations: Vec<CalibrationPlan>,
    /// The grid's evaluations, in its order: perplexities, then tasks.
    pub evaluations: Vec<Evaluation>,
    /// The prompts whose latencies are measured, in the grid's order.
    pub latencies: Vec<Latency>,
    /// Its cells, in the grid's order.
    pub variants: Vec<Variant>,
}

/// One calibration of one backbone.
#[derive(Clone)]
pub struct CalibrationPlan {
    /// The value as named by the first cell that needs it. The number of sequences for solving an operator belongs to each
    /// variant.
    pub calibration: Calibration,
    pub identity: Arc<CalibrationId>,
    pub tokens: Arc<Key>,
}

/// Scored part of a text or task, and the scope of its values.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScoredExtent {
    /// `None` if everything is scored.
    pub draw: Option<Draw>,
    /// Whether the values compare variants with the dense model.
    pub damage: bool,
}

/// Subject of scoring.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Subject {
    Windows(Perplexity),
    Task(EvalTask),
}

impl Subject {
    /// Returns which part is scored, and whether variants are compared with the dense model.
    pub(crate) fn extent(&self) -> ScoredExtent {
        ScoredExtent { draw: self.draw(), damage: matches!(self, Self::Windows(text) if text.damage) }
    }

    /// Returns the dense program if variants are compared with it.
    ///
    /// # Errors
    /// Operators next to the weights that cannot be read.
    pub(crate) fn reference(&self, backbone: &BackbonePlan) -> Result<Option<Program>> {
        self.extent().damage.then(|| whole(&backbone.config, &backbone.folder)).transpose()
    }

    /// Returns the scored sample. `None` if everything is scored.
    pub fn draw(&self) -> Option<Draw> {
        match self {
            Self::Windows(text) => text.draw,
            Self::Task(task) => task.how.draw,
        }
    }
}

/// One evaluation of one backbone.
pub struct Evaluation {
    pub subject: Subject,
    /// The measurement: with a variant's identity it identifies its numbers ([`Identity::measured`]).
    pub measure: Arc<MeasureId>,
    pub tokens: Arc<Key>,
    /// The name of its journal and its claims.
    pub journal: String,
    /// Whether variants answer it by texts.
    pub generates: bool,
}

/// `c4@512`, or the task as the grid writes it.
impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Windows(text) => text.fmt(f),
            Self::Task(task) => task.fmt(f),
        }
    }
}

/// One cell with the keys of its artifacts.
pub struct Variant {
    /// Its place among the grid's cells.
    pub cell: usize,
    /// Identity, independent of names.
    pub identity: Arc<Identity>,
    /// Its place among the backbone's calibrations; none for the dense backbone, and so below.
    pub calibration: Option<usize>,
    pub selection: Option<Arc<Key>>,
    pub operator: Option<Arc<Key>>,
    /// How many of the calibration's sequences, its first, the operator is solved on: as its key says.
    pub fitted: usize,
    /// The training of its operator; `None` if it stays as solved.
    pub trained: Option<TrainingPlan>,
    /// One for each evaluation.
    pub scores: Vec<Arc<Key>>,
    /// One for each timed prompt.
    pub latencies: Vec<Arc<Key>>,
    /// Its timing for each prompt: the variants timed together differ per variant.
    pub prompts: Vec<Arc<MeasureId>>,
}

/// The training of an operator.
pub struct TrainingPlan {
    /// The place of its text among the backbone's calibrations.
    pub text: usize,
    pub finetune: Finetune,
    pub key: Arc<Key>,
}

impl CalibrationPlan {
    /// Returns the amount of text, known before reading it.
    pub fn load(&self) -> Load {
        let Calibration { sequences, length, .. } = self.calibration;
        Load::windows(sequences.saturating_mul(length), length)
    }

    /// Labels the repairs of a calibration in events and records.
    pub fn label(&self, plan: &BackbonePlan) -> String {
        format!("calibrate {} on {}", plan.calibrated().name, self.calibration)
    }

    /// Returns the shape of a site's activations.
    pub fn shape(&self, config: &Config) -> ActivationShape {
        let Calibration { sequences, length, .. } = self.calibration;
        ActivationShape { sequences, length, channels: config.hidden }
    }
}

impl Variant {
    /// Creates a variant that needs nothing computed.
    pub(crate) fn whole(cell: usize, identity: Identity) -> Self {
        Self {
            cell,
            identity: Arc::new(identity),
            calibration: None,
            selection: None,
            operator: None,
            fitted: 0,
            trained: None,
            scores: Vec::new(),
            latencies: Vec::new(),
            prompts: Vec::new(),
        }
    }

    /// Iterates over its objects in the order of computation.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.repairs().chain(&self.scores).chain(&self.latencies)
    }

    /// Iterates over the objects needed before it can run.
    pub fn repairs(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.selection.iter().chain(&self.operator).chain(self.trained.iter().map(|trained| &trained.key))
    }

    /// Returns the operators that it runs with: solved, or trained.
    pub fn repair(&self) -> Option<&Arc<Key>> {
        self.trained.as_ref().map(|trained| &trained.key).or(self.operator.as_ref())
    }
}

impl BackbonePlan {
    /// Returns the backbone's key parts.
    pub fn keyed(&self) -> KeyedBackbone<'_> {
        let Self { name, content, engine, config, batch_tokens, .. } = self;
        let engine = engine.id();
        let weights = config.rounded;
        KeyedBackbone { name, content, engine, weights, batch_tokens: *batch_tokens }
    }

    /// Returns the backbone for selection and repairs.
    pub fn calibrated(&self) -> &Self {
        self.full.as_deref().unwrap_or(self)
    }

    /// Returns the request to remove `depth` of its layers.
    pub(crate) fn cut(&self, depth: Depth) -> PruneSpec<'_> {
        PruneSpec { backbone: &self.name, layers: self.config.layers, depth: depth.count, unit: depth.unit }
    }

    /// Iterates over its object keys, with repetitions.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.variants.iter().flat_map(Variant::keys).chain(self.tokens())
    }

    /// Returns the unique token objects.
    pub fn tokens(&self) -> Vec<&Arc<Key>> {
        let all = self.calibrations.iter().map(|c| &c.tokens).chain(self.evaluations.iter().map(|e| &e.tokens));
        let mut seen = BTreeSet::new();
        all.filter(|key| seen.insert(key.hash().to_string())).collect()
    }
}
