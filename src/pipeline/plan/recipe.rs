//! Derives the keys of all objects that a grid needs, without computing the objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::contents::{self, BackboneContents};
use crate::criterion::{Criterion, Depth, PruneSpec};
use crate::distill::Finetune;
use crate::error::{Error, Result};
use crate::files::{parts, sha256};
use crate::grid::{CalibratedOn, Calibration, Cell, Grid, Method};
use crate::machine;
use crate::model::{Config, describe_quantization};
use crate::pipeline::env::backbone::{BackbonePlan, CalibrationPlan, EvalTarget, Evaluation, TrainingPlan, Variant};
use crate::pipeline::env::inputs::{GridInputs, Inputs};
use crate::pipeline::env::run_settings::RunSettings;
use crate::pipeline::identity::{CutId, Identity, MeasureId, ModelId, RepairId, timing_cohort};
use crate::pipeline::stage::{distilled, generations, latency, operator, scores, selection};
use ghostlab_store::{Key, Store};

/// Plan for a grid. It contains the keys of all objects that the grid needs.
pub struct Plan<'g> {
    pub grid: &'g Grid,
    pub inputs: Inputs,
    /// Backbones, in the order of the grid's cells.
    pub backbones: Vec<BackbonePlan>,
}

impl<'g> Plan<'g> {
    /// Hashes the inputs and builds all keys. The number of tokens per batch affects the last digits of scores, so it
    /// is part of their keys. Its default depends on the engine.
    ///
    /// # Errors
    /// Fails if an input cannot be read or the engine is not available on this machine.
    pub fn new(grid: &'g Grid, store: &Store, settings: RunSettings) -> Result<Self> {
        let inputs = Inputs::read(grid, store)?;
        let mut names: Vec<&str> = grid.cells.iter().map(|cell| cell.backbone.as_str()).collect();
        names.dedup();
        let planned = names.iter().map(|name| BackbonePlan::new(grid, name, &inputs, settings));
        let backbones = planned.collect::<Result<_>>()?;
        Ok(Self { grid, inputs, backbones })
    }

    pub(crate) fn grid_inputs(&self) -> GridInputs<'_> {
        GridInputs { grid: self.grid, inputs: &self.inputs }
    }

    /// Returns the distinct engines of the backbones as text. There is usually only one.
    pub fn engines(&self) -> String {
        let ids: BTreeSet<String> = self.backbones.iter().map(|backbone| backbone.engine.id().to_string()).collect();
        ids.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Returns the [`machine::identity`] of this machine as text, once for each device in use.
    pub fn machine(&self) -> String {
        let all: BTreeSet<String> =
            self.backbones.iter().map(|backbone| machine::identity(backbone.engine.device()).to_string()).collect();
        all.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Iterates over the keys of all objects for all backbones.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.backbones.iter().flat_map(BackbonePlan::keys)
    }

    /// Iterates over the variants with their backbones, in the order of the grid's cells.
    pub fn variants(&self) -> impl Iterator<Item = (&BackbonePlan, &Variant)> {
        self.backbones.iter().flat_map(|backbone| backbone.variants.iter().map(move |variant| (backbone, variant)))
    }
}

/// Returns the text on which the operator of a cell is trained. It comes from the same corpus as the cell's
/// calibration. Returns `None` if the operator is not trained.
fn training_calibration(cell: &Cell) -> Option<Calibration> {
    let Finetune { sequences, length, seed } = cell.recovery.as_ref()?.training?;
    let corpus = cell.calibration.as_ref()?.corpus.clone();
    Some(Calibration { corpus, sequences, length, seed, operator_sequences: sequences })
}

/// Rejects cells that prune a backbone that was itself exported from a pruned variant.
fn reject_cuts_of_export(config: &Config, cells: &[(usize, &Cell)]) -> Result<()> {
    match cells.iter().find(|(_, cell)| !cell.is_dense() && !config.is_plain()) {
        None => Ok(()),
        Some((_, cell)) => {
            Err(Error::bad_input("a backbone with side operators or missing sublayers can be scored, but not pruned")
                .at(cell.to_string())
                .expected("a dense cell")
                .found(format!("an export: {}", config.export_text()))
                .hint("prune the model that it was exported from"))
        }
    }
}

/// Plans the calibrations and training texts for the cells of a backbone. Returns the plans, and the index of the plan
/// for each calibration. Calibrations on the same tokens share one plan.
fn plan_calibrations(
    contents: &BackboneContents<'_>,
    cells: &[(usize, &Cell)],
) -> Result<(Vec<CalibrationPlan>, HashMap<Calibration, usize>)> {
    let cell_calibrations = cells.iter().filter_map(|(_, cell)| cell.calibration.clone());
    let training_calibrations = cells.iter().filter_map(|(_, cell)| training_calibration(cell));
    let mut plans: Vec<CalibrationPlan> = Vec::new();
    let mut indices = HashMap::new();
    for calibration in cell_calibrations.chain(training_calibrations) {
        if indices.contains_key(&calibration) {
            continue;
        }
        let (identity, tokens) = contents.calibration_id(&calibration)?;
        let index = plans.iter().position(|plan| *plan.tokens == tokens).unwrap_or(plans.len());
        indices.insert(calibration.clone(), index);
        if index == plans.len() {
            let calibration = Calibration { operator_sequences: calibration.sequences, ..calibration };
            plans.push(CalibrationPlan { calibration, identity: Arc::new(identity), tokens: Arc::new(tokens) });
        }
    }
    Ok((plans, indices))
}

/// Plans the evaluations of a backbone: texts first, then tasks.
fn plan_evaluations(contents: &BackboneContents<'_>) -> Result<Vec<Evaluation>> {
    let grid = contents.grid;
    let texts = grid.evaluate.perplexity.iter().cloned().map(EvalTarget::Windows);
    let tasks = grid.evaluate.tasks.iter().cloned().map(EvalTarget::Task);
    texts
        .chain(tasks)
        .map(|target| {
            let (measure, tokens) = match &target {
                EvalTarget::Windows(text) => contents.windows_id(text)?,
                EvalTarget::Task(task) => contents.task_id(task)?,
            };
            let journal = scores::journal_name(contents.plan.key_parts(), &tokens, target.extent());
            let generates = matches!(&target, EvalTarget::Task(task) if grid.task(task).is_generative());
            let measure = Arc::new(measure);
            let tokens = Arc::new(tokens);
            Ok(Evaluation { target, measure, tokens, journal, generates })
        })
        .collect()
}

impl BackbonePlan {
    pub(super) fn new(grid: &Grid, name: &str, inputs: &Inputs, settings: RunSettings) -> Result<Self> {
        let folder = grid.backbones[name].path.clone();
        let weights = grid.backbones[name].weights.as_ref();
        let mut config =
            inputs.read_unchanged(&[&parts::config_path(&folder)], || Config::read_with_attachments(&folder))?;
        config.rounded = weights.map(|weights| weights.to);
        config.notes.extend(describe_quantization(&config));
        let engine = settings.engine.choose(&folder)?;
        let rounded = weights.map(|weights| weights.to.name().to_owned());
        let model = ModelId { weights: rounded, ..inputs.model_id(&folder)? };
        let mut plan = Self {
            name: name.to_string(),
            folder,
            config,
            dense: Identity::dense(model, engine.id().into()),
            unquantized: None,
            engine,
            batch_tokens: settings.batch_tokens.unwrap_or_else(|| engine.batch_tokens()),
            calibrations: Vec::new(),
            evaluations: Vec::new(),
            latencies: grid.evaluate.latency.clone(),
            variants: Vec::new(),
        };
        let cells: Vec<(usize, &Cell)> =
            grid.cells.iter().enumerate().filter(|(_, cell)| cell.backbone == name).collect();
        let contents = BackboneContents { grid, inputs, plan: &plan };
        let prefix_note = contents.prefix_note()?;
        reject_cuts_of_export(&plan.config, &cells)?;
        let (calibrations, indices) = plan_calibrations(&contents, &cells)?;
        let mut known = PlannedParts { calibrations: indices, cuts: BTreeMap::new() };
        let evaluations = plan_evaluations(&contents)?;
        plan.config.notes.extend(prefix_note);
        plan.calibrations = calibrations;
        plan.evaluations = evaluations;
        if let Some(stored_weights) = weights.filter(|weight| weight.calibrated == CalibratedOn::Full) {
            plan.unquantized = Some(Box::new(plan.build_unquantized(&stored_weights.backbone)));
        }
        for (index, cell) in cells {
            let variant = plan.plan_variant(index, cell, &mut known)?;
            plan.variants.push(variant);
        }
        plan.add_latencies();
        Ok(plan)
    }

    /// Builds the plan for the unquantized backbone. It has the same calibrations, but no cells.
    fn build_unquantized(&self, name: &str) -> Self {
        let unrounded = ModelId { weights: None, ..ModelId::clone(&self.dense.model) };
        Self {
            name: name.to_owned(),
            folder: self.folder.clone(),
            config: Config { rounded: None, ..self.config.clone() },
            dense: Identity { model: Arc::new(unrounded), ..self.dense.clone() },
            unquantized: None,
            engine: self.engine,
            batch_tokens: self.batch_tokens,
            calibrations: self.calibrations.clone(),
            evaluations: Vec::new(),
            latencies: Vec::new(),
            variants: Vec::new(),
        }
    }

    /// Adds the keys of the latencies. They depend on all variants, because these are timed together.
    fn add_latencies(&mut self) {
        if self.latencies.is_empty() {
            return;
        }
        let among: BTreeSet<String> = self
            .variants
            .iter()
            .map(|variant| variant.repair_key().map_or("dense", |key| key.hash()).to_owned())
            .collect();
        let among = sha256::of_bytes(among.into_iter().collect::<Vec<_>>().join(" "));
        let machine = machine::identity(self.engine.device());
        let cohorts = timing_cohort(&self.variants.iter().map(|variant| &*variant.identity).collect::<Vec<_>>());
        let timed: Vec<(Vec<Arc<Key>>, _)> = self
            .variants
            .iter()
            .zip(cohorts)
            .map(|(variant, cohort)| {
                let prompts =
                    self.latencies.iter().map(|prompt| Arc::new(contents::prefill_id(prompt, &machine, &cohort)));
                let prompts: Vec<Arc<MeasureId>> = prompts.collect();
                let keys = prompts.iter().map(|measure| {
                    let description = Arc::new(variant.identity.with_measure(measure));
                    Arc::new(latency::key(&self.name, variant.repair_key(), &among, &description))
                });
                (keys.collect(), prompts)
            })
            .collect();
        let each = self.variants.iter_mut().zip(timed);
        each.for_each(|(variant, timed)| (variant.latencies, variant.prompts) = timed);
    }

    fn plan_variant(&self, index: usize, cell: &Cell, known: &mut PlannedParts) -> Result<Variant> {
        let PlannedParts { calibrations, cuts } = known;
        let dense = &self.dense;
        let calibrated = &self.calibrated().dense;
        let calibrated_parts = self.calibrated().key_parts();
        let (Some(criterion), Some(recovery), Some(calibration)) = (&cell.criterion, &cell.recovery, &cell.calibration)
        else {
            return Ok(Variant { scores: self.score_keys(dense, None), ..Variant::dense(index, dense.clone()) });
        };
        let missing_error = || Error::job("the plan has no calibration for the cell").at(cell.to_string());
        let position = calibrations.get(calibration).copied().ok_or_else(missing_error)?;
        let plan = &self.calibrations[position];
        let spec = self.prune_spec(cell.depth);
        let repair = contents::repair_id(calibration, criterion, recovery, &spec);
        let repaired = Some(&repair).filter(|_| criterion.rule.is_iterative() && recovery.rule.is_repairing());
        let rule =
            repaired.map_or(criterion.to_string(), |_| format!("{criterion} with {recovery} on {}", repair.fitted));
        let (cut, selection, steps) = match cuts.entry((position, rule, cell.depth)) {
            std::collections::btree_map::Entry::Occupied(known) => known.get().clone(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let select = |spec: &PruneSpec<'_>| -> Result<(Arc<CutId>, Arc<Key>)> {
                    let cut = Arc::new(contents::cut_id(criterion, spec, repaired)?);
                    let chosen = Identity {
                        cut: Some(Arc::clone(&cut)),
                        calibration: Some(Arc::clone(&plan.identity)),
                        ..calibrated.clone()
                    };
                    let key = selection::key(calibrated_parts, &cut, (&*criterion.rule, spec), &plan.tokens);
                    Ok((cut, Arc::new(key.with_description(&Arc::new(chosen)))))
                };
                let earlier = if criterion.rule.is_iterative() { 1..spec.depth } else { 0..0 };
                let steps = earlier.map(|depth| Ok(select(&PruneSpec { depth, ..spec })?.1));
                let steps = steps.collect::<Result<Vec<_>>>()?;
                let (cut, selection) = select(&spec)?;
                free.insert((cut, selection, steps)).clone()
            }
        };
        let identity = repaired_identity(plan, &cut, dense, repair.clone());
        let solved = Arc::new(repaired_identity(plan, &cut, calibrated, RepairId { training: None, ..repair.clone() }));
        let operator =
            Arc::new(operator::key(calibrated_parts, &selection, &repair, &plan.tokens).with_description(&solved));
        let text = training_calibration(cell).and_then(|text| calibrations.get(&text).copied());
        let trained = if let Some((finetune, text)) = recovery.training.zip(text) {
            self.check_one_block(cell, criterion)?;
            let trained = Arc::new(repaired_identity(plan, &cut, calibrated, repair.clone()));
            let key = distilled::key(calibrated_parts, &operator, &self.calibrations[text].tokens, &trained);
            Some(TrainingPlan { text, finetune, key: Arc::new(key) })
        } else {
            None
        };
        let used_operator = trained.as_ref().map_or(&operator, |trained| &trained.key);
        let scores = self.score_keys(&identity, Some(used_operator));
        Ok(Variant {
            calibration: Some(position),
            selection: Some(selection),
            steps,
            operator: Some(operator),
            trained,
            scores,
            ..Variant::dense(index, identity)
        })
    }

    /// Returns the keys of a variant's scores, one for each evaluation. `operator` is the key of the variant's
    /// operator, or `None` for the dense backbone.
    fn score_keys(&self, identity: &Identity, operator: Option<&Arc<Key>>) -> Vec<Arc<Key>> {
        self.evaluations
            .iter()
            .map(|evaluation| {
                let description = Arc::new(identity.with_measure(&evaluation.measure));
                let kind = if evaluation.generates { generations::KIND } else { scores::KIND };
                Arc::new(scores::key(
                    kind,
                    self.key_parts(),
                    operator,
                    &evaluation.tokens,
                    evaluation.target.extent(),
                    &description,
                ))
            })
            .collect()
    }

    /// Rejects training unless the cut is guaranteed to be a single block of layers.
    fn check_one_block(&self, cell: &Cell, criterion: &Method<dyn Criterion>) -> Result<()> {
        let regions = criterion.rule.regions(&self.prune_spec(cell.depth));
        if !criterion.rule.is_iterative() && regions.iter().all(|(start, end)| cell.depth == end - start) {
            return Ok(());
        }
        Err(Error::bad_input("fine-tuning requires one contiguous block of removed layers")
            .at(cell.to_string())
            .expected("a criterion that removes one block")
            .found(format!("`{criterion}`, which may remove several blocks"))
            .hint("use the criterion `llm-streamline`, or remove `finetune` from the recovery"))
    }
}

fn repaired_identity(plan: &CalibrationPlan, cut: &Arc<CutId>, dense: &Identity, repair: RepairId) -> Identity {
    Identity {
        cut: Some(Arc::clone(cut)),
        repair: Some(Arc::new(repair)),
        calibration: Some(Arc::clone(&plan.identity)),
        ..dense.clone()
    }
}

/// Calibrations and cuts that have been planned and that the cells of a backbone share.
struct PlannedParts {
    /// Index of each calibration in [`BackbonePlan::calibrations`].
    calibrations: HashMap<Calibration, usize>,
    /// Cuts with the keys of their selections, by calibration, criterion (with the recovery that it depends on, if any)
    /// and depth.
    cuts: BTreeMap<(usize, String, Depth), SelectedCut>,
}

/// Cut, the key of its selection, and the keys of the intermediate selections of an iterative criterion.
type SelectedCut = (Arc<CutId>, Arc<Key>, Vec<Arc<Key>>);
