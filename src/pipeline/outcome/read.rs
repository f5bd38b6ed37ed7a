//! Reads the results of a grid from the store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::cell_result::{CellResult, EvalResult, GridOutcome, TaskExtent, TextExtent, UsedObject};
use super::drawn_errors::DrawnErrors;
use crate::corpus::WindowRule;
use crate::error::Result;
use crate::grid::Grid;
use crate::machine;
use crate::metric::{self, Savings};
use crate::model::{Cut, Program, deploy, describe_quantization};
use crate::pipeline::env::backbone::{BackbonePlan, EvalTarget, Evaluation, Variant};
use crate::pipeline::identity::ComputeId;
use crate::pipeline::plan::Plan;
use crate::pipeline::stage::group::stored_program;
use crate::pipeline::stage::tokens::{AnswerKey, AnswerSource, extent};
use crate::pipeline::stage::{distilled, latency, operator, scores, selection};
use ghostlab_store::{Key, Lookup, Store, StoredObject};

impl GridOutcome {
    /// Reads the stored results of a plan. Cells in `failures` are marked as failed. Other cells are incomplete if any
    /// of their objects are missing.
    ///
    /// # Errors
    /// Fails if a stored object was damaged after the run had verified it.
    pub fn read(plan: &Plan<'_>, store: &Store, failures: &BTreeMap<usize, String>) -> Result<Self> {
        let inputs = plan.inputs.hashes_by_path();
        let mut cells = Vec::new();
        for backbone in &plan.backbones {
            let reader = BackboneReader::new(plan.grid, backbone, store, &inputs)?;
            for variant in &backbone.variants {
                cells.push(reader.read_cell(variant, failures.get(&variant.cell))?);
            }
            reader.errors.iter().for_each(DrawnErrors::save);
        }
        let engines = plan.backbones.iter();
        let engines =
            engines.map(|backbone| (backbone.name.clone(), ComputeId::clone(&backbone.dense.engine))).collect();
        let rounded = plan
            .backbones
            .iter()
            .filter_map(|backbone| Some((backbone.name.clone(), describe_quantization(&backbone.config)?)))
            .collect();
        let first = plan.variants().next().and_then(|(_, variant)| variant.prompts.first());
        let machine = first.and_then(|prompt| prompt.machine());
        let machine = machine.map_or_else(String::new, |machine| machine::describe(&machine.value()));
        Ok(Self { cells, inputs, engines, rounded, machine })
    }
}

/// Extent and answer key of an evaluation, which all variants share.
struct EvaluationInputs {
    text_extent: Option<TextExtent>,
    answer_key: Option<AnswerKey>,
}

impl EvaluationInputs {
    fn read(grid: &Grid, evaluation: &Evaluation, store: &Store) -> Result<Self> {
        let mut inputs = Self { text_extent: None, answer_key: AnswerKey::read(evaluation, store)? };
        if let (EvalTarget::Windows(text), Lookup::Intact(object)) =
            (&evaluation.target, store.lookup(&evaluation.tokens))
        {
            let rule: WindowRule = grid.corpora[&text.corpus].rule.parse()?;
            let (windows, corpus_tokens, bytes) = extent(&object)?;
            let all = rule.windows(corpus_tokens, text.length);
            inputs.text_extent = Some(TextExtent { windows, all, bytes });
        }
        Ok(inputs)
    }
}

/// Reader for the results of one backbone. Extents and answer keys are read once for all variants.
struct BackboneReader<'a> {
    grid: &'a Grid,
    backbone: &'a BackbonePlan,
    store: &'a Store,
    evaluation_inputs: Vec<EvaluationInputs>,
    errors: Vec<DrawnErrors<'a>>,
    /// Paths of the input files, by hash.
    files: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> BackboneReader<'a> {
    fn new(
        grid: &'a Grid,
        backbone: &'a BackbonePlan,
        store: &'a Store,
        inputs: &'a BTreeMap<String, String>,
    ) -> Result<Self> {
        let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (path, hash) in inputs {
            files.entry(hash).or_default().push(path);
        }
        let evaluation_inputs = backbone
            .evaluations
            .iter()
            .map(|evaluation| EvaluationInputs::read(grid, evaluation, store))
            .collect::<Result<_>>()?;
        let errors =
            backbone.evaluations.iter().map(|evaluation| DrawnErrors::open(store, &evaluation.tokens)).collect();
        Ok(Self { grid, backbone, store, evaluation_inputs, errors, files })
    }

    fn read_cell(&self, variant: &Variant, failure: Option<&String>) -> Result<CellResult> {
        let cell = self.grid.cells[variant.cell].clone();
        let mut result = CellResult::unmeasured(cell, self.backbone.config.layers, failure.cloned());
        result.identity = Some(Arc::clone(&variant.identity));
        let inputs = self.files.values().flatten().filter(|path| Path::new(path).starts_with(&self.backbone.folder));
        result.inputs.extend(inputs.map(|path| (*path).to_string()));
        let is_solved = self.read_recovery(variant, &mut result)?;
        if is_solved && self.grid.evaluate.metrics.iter().any(|name| metric::is_size(name)) {
            result.savings = self.compute_savings(variant, &result.removed)?;
        }
        // Operators may be evicted after scoring. A missing operator therefore matters only if the cell has no
        // measurements.
        if variant.scores.is_empty() && variant.latencies.is_empty() && !is_solved {
            result.missing = Some("operator not computed".to_owned());
        }
        for (index, key) in variant.scores.iter().enumerate() {
            self.read_scores(index, key, &mut result)?;
        }
        for ((prompt, key), measure) in self.backbone.latencies.iter().zip(&variant.latencies).zip(&variant.prompts) {
            let artifact = self.find_measured(key, &mut result, || format!("not timed over {prompt}"));
            let sample = artifact.map(|artifact| latency::read(&artifact)).transpose()?;
            result.prompts.push(EvalResult { requested: *prompt, measure: Arc::clone(measure), extent: None, sample });
        }
        Ok(result)
    }

    /// Reads the selection and the operators of a variant. Returns whether all of its operators are stored.
    fn read_recovery(&self, variant: &Variant, result: &mut CellResult) -> Result<bool> {
        if let Some(artifact) = variant.selection.as_ref().and_then(|key| self.find_and_record(key, result)) {
            let selection = selection::read(&artifact)?;
            result.removed = selection.removed;
            result.scores = selection.scores;
            result.selection_notes = selection::notes(&artifact)?;
        }
        // The dense backbone has no operator.
        let mut is_solved = variant.operator.is_none();
        if let Some(artifact) = variant.operator.as_ref().and_then(|key| self.find_and_record(key, result)) {
            result.boundaries = operator::read_results(&artifact)?;
            result.seconds += artifact.meta().seconds;
            is_solved = true;
        }
        if let Some(artifact) = variant.trained.as_ref().and_then(|trained| self.find_and_record(&trained.key, result))
        {
            result.boundaries = operator::read_results(&artifact)?;
            result.training = distilled::losses(&artifact)?;
            result.seconds += artifact.meta().seconds;
            is_solved = true;
        }
        Ok(is_solved)
    }

    /// Reads the scores for the evaluation at `index` into `result`.
    fn read_scores(&self, index: usize, key: &Key, result: &mut CellResult) -> Result<()> {
        let evaluation = &self.backbone.evaluations[index];
        let inputs = &self.evaluation_inputs[index];
        let artifact = self.find_measured(key, result, || format!("not scored on {}", evaluation.target));
        let measure = Arc::clone(&evaluation.measure);
        match &evaluation.target {
            EvalTarget::Windows(text) => {
                let scores = artifact.map(|artifact| scores::window_scores(scores::read(&artifact)?, text));
                let (sample, damages) =
                    scores.transpose()?.map_or((None, None), |(losses, damages)| (Some(losses), damages));
                if let Some(losses) = sample.as_ref().filter(|losses| losses.not_finite() > 0) {
                    let not_finite = losses.not_finite();
                    let all = losses.windows.len();
                    result.failure =
                        Some(format!("{not_finite} of {all} windows of {} have no finite loss", text.corpus));
                }
                result.texts.push(EvalResult { requested: text.clone(), measure, extent: inputs.text_extent, sample });
                result.damages.push(damages);
            }
            EvalTarget::Task(task) => {
                let scored = artifact.as_ref().zip(inputs.answer_key.as_ref());
                let scores = scored.map(|(artifact, key)| {
                    let definition = self.grid.task(task).definition()?;
                    let errors = &self.errors[index];
                    key.judge(task.to_string(), definition, AnswerSource::Stored(artifact), &|aggregation, items| {
                        errors.error(aggregation, items)
                    })
                });
                let sample = match scores.transpose() {
                    Ok(sample) => sample,
                    // A user-defined metric may fail on the answers of a single variant, which fails only this cell.
                    Err(error) if task.defined => {
                        result.failure = Some(error.one_line());
                        None
                    }
                    Err(error) => return Err(error),
                };
                let extent = inputs.answer_key.as_ref().map(AnswerKey::documents);
                let extent = extent.map(|[documents, original]| TaskExtent { documents, original });
                result.tasks.push(EvalResult { requested: task.clone(), measure, extent, sample });
            }
        }
        Ok(())
    }

    /// Looks up a stored measurement. Adds its compute time to the result, or records that it is missing.
    fn find_measured(
        &self,
        key: &Key,
        result: &mut CellResult,
        missing: impl FnOnce() -> String,
    ) -> Option<StoredObject> {
        // A stored measurement of a failed cell is outdated.
        let artifact = if result.failure.is_none() { self.find_and_record(key, result) } else { None };
        match &artifact {
            Some(artifact) => result.seconds += artifact.meta().seconds,
            None => {
                result.missing.get_or_insert_with(missing);
            }
        }
        artifact
    }

    /// Returns the savings of a variant after deployment, or `None` if its selection or operators are not stored.
    fn compute_savings(&self, variant: &Variant, removed: &Cut) -> Result<Option<Savings>> {
        let config = &self.backbone.config;
        let stored = [&variant.selection, &variant.repair_key().cloned()];
        if stored.into_iter().flatten().any(|key| !matches!(self.store.lookup(key), Lookup::Intact(_))) {
            return Ok(None);
        }
        let program = match variant.repair_key() {
            None => Program::without(config.layers, removed),
            Some(_) => stored_program(self.store, self.backbone, variant)?,
        };
        Ok(Some(Savings::new(&deploy(&program, config).program, config)))
    }

    /// Looks up an object, and adds it and its input files to the provenance of the result.
    fn find_and_record(&self, key: &Key, result: &mut CellResult) -> Option<StoredObject> {
        let Lookup::Intact(artifact) = self.store.lookup(key) else { return None };
        let meta = artifact.meta();
        self.add_input_files(&meta.key, result);
        result.made_from.push(UsedObject {
            kind: key.kind().name(),
            key: key.hash().to_string(),
            seconds: meta.seconds,
            made: meta.provenance.clone(),
        });
        Some(artifact)
    }
}

impl BackboneReader<'_> {
    /// Adds the input files whose hashes occur in a key or in the keys that it depends on. The weights and the config
    /// share a single hash, so `read_cell` adds all files in the folder of the backbone.
    fn add_input_files(&self, key: &Value, result: &mut CellResult) {
        match key {
            Value::String(hash) => {
                let files = self.files.get(hash.as_str()).map(Vec::as_slice).unwrap_or_default();
                // Another backbone may have a file with the same content. Skip it if the folder of this backbone
                // contains such a file.
                let is_in_folder = files.iter().any(|path| Path::new(path).starts_with(&self.backbone.folder));
                let others = files.iter().filter(|_| !is_in_folder);
                result.inputs.extend(others.map(|path| (*path).to_string()));
            }
            Value::Array(values) => values.iter().for_each(|value| self.add_input_files(value, result)),
            Value::Object(fields) => fields.values().for_each(|value| self.add_input_files(value, result)),
            _ => {}
        }
    }
}
