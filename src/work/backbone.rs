//! A backbone with all that its cells need, each by its key: what jobs are given. `plan` makes them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::calibrate::ActivationShape;
use crate::criterion::PruneSpec;
use crate::distill::Finetune;
use crate::grid::{Calibration, DefinitionUse, Draw, Latency, Perplexity, TaskUse};
use crate::identity::{CalibrationId, Identity, MeasureId};
use crate::model::{CPU, Config, EngineChoice, EngineId, Load, WeightType};
use ghostlab_store::Key;

/// A backbone with what computes it, as keys name them.
#[derive(Debug, Clone, Copy)]
pub struct KeyedBackbone<'a> {
    /// What the grid calls it.
    pub name: &'a str,
    /// SHA-256 of what its forward pass reads.
    pub content: &'a str,
    pub engine: EngineId,
    /// What its matrices are rounded to as they are read.
    pub weights: Option<WeightType>,
    /// Tokens of a batch, on which the last digits of scores depend.
    pub batch_tokens: usize,
}

/// What operations of other engines are, in keys.
const FUSED: &str = "fused";

impl KeyedBackbone<'_> {
    /// The backbone and what its numbers depend on where it runs. Keys are older than the word engine: the CPU's have no
    /// name in them, another engine's have its name beside float type and device class.
    pub(crate) fn on_engine(&self) -> Value {
        let EngineId { name, dtype, device } = self.engine;
        let mut of = json!({"backbone": self.content, "dtype": dtype, "device": device});
        if name != CPU.name {
            of["engine"] = json!(name);
            // Before that all of its operations were plain ones.
            of["operations"] = json!(FUSED);
        }
        // Before that the own kernels' output projection, and later their attention, were f32 whatever the layers were in.
        if self.is_half() {
            of["head"] = json!(dtype);
            of["attention"] = json!(dtype);
        }
        if let Some(weights) = self.weights {
            of["weights"] = json!(weights.name());
        }
        of
    }

    /// Who computes with another engine shares no chunks and no claims: what fails there need not fail here. Names are
    /// older than the word engine: the CPU's have none in them.
    pub(crate) fn other_engine(&self) -> String {
        let head = if self.is_half() { " with its head and attention" } else { "" };
        let operations = if self.engine.name == CPU.name { "" } else { FUSED };
        let engine = if self.engine == CPU { String::new() } else { format!(" {}{head}{operations}", self.engine) };
        self.weights.map_or(engine.clone(), |weights| format!("{engine} in {}", weights.name()))
    }

    /// Whether the own kernels compute products in another type than f32.
    fn is_half(&self) -> bool {
        self.engine.name == CPU.name && self.engine.dtype != CPU.dtype
    }
}

/// Everything that a backbone's cells need.
pub struct BackbonePlan {
    /// What the grid calls it.
    pub name: String,
    pub folder: PathBuf,
    pub config: Config,
    /// SHA-256 of what its forward pass reads: what it is, whatever it is called and however it is stored. What weights are
    /// rounded to, the config says beside it.
    pub content: String,
    /// The backbone as it is stored, without a cell, where this one's weights are rounded and its repairs are computed
    /// before that.
    pub full: Option<Box<BackbonePlan>>,
    /// What runs it.
    pub engine: EngineChoice,
    /// Tokens of a batch.
    pub batch_tokens: usize,
    /// The distinct calibrations of its cells.
    pub calibrations: Vec<CalibrationPlan>,
    /// The grid's evaluations, in its order: perplexities, then tasks, then definitions.
    pub evaluations: Vec<Evaluation>,
    /// The prompts whose latencies are measured, in the grid's order.
    pub latencies: Vec<Latency>,
    /// Its cells, in the grid's order.
    pub variants: Vec<Variant>,
}

/// One calibration of one backbone.
#[derive(Clone)]
pub struct CalibrationPlan {
    /// As the first cell names it that needs it. How many sequences an operator is solved on is each variant's own.
    pub calibration: Calibration,
    pub identity: Arc<CalibrationId>,
    pub tokens: Arc<Key>,
}

/// What is scored.
#[derive(Debug, Clone)]
pub enum Subject {
    Windows(Perplexity),
    Task(TaskUse),
    Defined(DefinitionUse),
}

impl Subject {
    /// Which part of it is scored; none where all is.
    pub fn draw(&self) -> Option<Draw> {
        match self {
            Self::Windows(text) => text.draw,
            Self::Task(used) => used.draw,
            // A search does not race on them.
            Self::Defined(_) => None,
        }
    }
}

/// One evaluation of one backbone.
pub struct Evaluation {
    pub subject: Subject,
    /// What is measured: with a variant's identity it is what its numbers are ([`Identity::measured`]).
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
            Self::Defined(task) => task.fmt(f),
        }
    }
}

/// One cell with the keys of its artifacts.
pub struct Variant {
    /// Its place among the grid's cells.
    pub cell: usize,
    /// What it is, whatever the grid calls it.
    pub identity: Arc<Identity>,
    /// Its place among the backbone's calibrations; none for the dense backbone, and so below.
    pub calibration: Option<usize>,
    pub selection: Option<Arc<Key>>,
    pub operator: Option<Arc<Key>>,
    /// How many of the calibration's sequences, its first, the operator is solved on: as its key says.
    pub fitted: usize,
    /// What its operator becomes by training; none where it stays as it is solved.
    pub trained: Option<TrainingPlan>,
    /// One for each evaluation.
    pub scores: Vec<Arc<Key>>,
    /// One for each timed prompt.
    pub latencies: Vec<Arc<Key>>,
    /// What is measured of it over each: beside which others is each variant's own.
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
    /// How much text it is: known before any of it is read.
    pub fn load(&self) -> Load {
        let Calibration { sequences, length, .. } = self.calibration;
        Load::windows(sequences.saturating_mul(length), length)
    }

    /// What events and records call the making of all repairs on it.
    pub fn label(&self, of: &BackbonePlan) -> String {
        format!("calibrate {} on {}", of.calibrated().name, self.calibration)
    }

    /// What a pass over it keeps of a site.
    pub fn shape(&self, config: &Config) -> ActivationShape {
        let Calibration { sequences, length, .. } = self.calibration;
        ActivationShape { sequences, length, channels: config.hidden }
    }
}

impl Variant {
    /// One of which nothing has to be made.
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

    /// All its artifacts, in the order in which they are made.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.repairs().chain(&self.scores).chain(&self.latencies)
    }

    /// Those that it needs before it can run.
    pub fn repairs(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.selection.iter().chain(&self.operator).chain(self.trained.iter().map(|trained| &trained.key))
    }

    /// The operators that it runs with: as they were solved, or trained.
    pub fn repair(&self) -> Option<&Arc<Key>> {
        self.trained.as_ref().map(|trained| &trained.key).or(self.operator.as_ref())
    }
}

impl BackbonePlan {
    /// As keys name it.
    pub fn keyed(&self) -> KeyedBackbone<'_> {
        let Self { name, content, engine, config, batch_tokens, .. } = self;
        let (engine, weights) = (engine.id(), config.rounded);
        KeyedBackbone { name, content, engine, weights, batch_tokens: *batch_tokens }
    }

    /// The backbone that layers are chosen and repairs computed with.
    pub fn calibrated(&self) -> &Self {
        self.full.as_deref().unwrap_or(self)
    }

    /// What a rule is asked for that removes so many of its layers.
    pub(crate) fn cut(&self, depth: usize) -> PruneSpec<'_> {
        PruneSpec { backbone: &self.name, layers: self.config.layers, depth }
    }

    /// All artifacts that it names; cells that share one name it each.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.variants.iter().flat_map(Variant::keys).chain(self.tokens())
    }

    /// All token artifacts, each once.
    pub fn tokens(&self) -> Vec<&Arc<Key>> {
        let all = self.calibrations.iter().map(|c| &c.tokens).chain(self.evaluations.iter().map(|e| &e.tokens));
        let mut seen = BTreeSet::new();
        all.filter(|key| seen.insert(key.hash().to_string())).collect()
    }
}
