//! Identities of the cells and evaluations of a backbone. They depend on the engine, the settings and the hashes of
//! input files, but not on the names in the grid.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::corpus::{self, EVALUATION_SEED};
use crate::criterion::{self, Criterion, Depth, PruneSpec};
use crate::error::Result;
use crate::evaluate::{PrefixToken, end_of_text, prefix_token};
use crate::files::gguf::is_gguf;
use crate::files::{parts, sha256};
use crate::grid::{CalibratedOn, Calibration, EvalTask, Grid, Latency, Method, Perplexity, TaskSettings};
use crate::latency::Rounds;
use crate::pipeline::env::backbone::BackbonePlan;
use crate::pipeline::env::inputs::Inputs;
use crate::pipeline::identity::{
    CalibrationId, Canonical, ChatId, CutId, MeasureId, RepairId, ShardsId, ShotsId, TextId,
};
use crate::pipeline::stage::tokens;
use crate::recovery::{self, Recovery};
use crate::tasks;
use ghostlab_definitions::Definition;
use ghostlab_definitions::metric::Output;
use ghostlab_definitions::rows::format as row_format;
use ghostlab_store::Key;

/// Builder for the identities of a backbone's calibrations and evaluations.
pub(super) struct BackboneContents<'a> {
    pub(super) grid: &'a Grid,
    pub(super) inputs: &'a Inputs,
    pub(super) plan: &'a BackbonePlan,
}

impl BackboneContents<'_> {
    fn file_hashes(&self, files: &[PathBuf]) -> Result<Vec<String>> {
        files.iter().map(|file| self.inputs.file_hash(file).map(str::to_owned)).collect()
    }

    /// Returns the hash and the format of each file with documents.
    fn row_files(&self, files: &[PathBuf]) -> Result<(Vec<String>, Vec<String>)> {
        let formats = files.iter().map(|file| row_format(file).map(str::to_owned));
        Ok((self.file_hashes(files)?, formats.collect::<Result<_>>()?))
    }

    /// Returns the identity of a text. For a streamed text, it includes the hashes of the shards in reading order,
    /// which depends on the seed.
    fn text_id(&self, corpus: &str, seed: u64) -> Result<TextId> {
        let entry = &self.grid.corpora[corpus];
        let files = entry.files_for_seed(seed)?;
        let read = self.file_hashes(&files)?;
        let column = entry.column.clone();
        let rule = entry.rule.clone();
        let format = files.first().map_or(Ok(""), |file| corpus::file_format(file))?.to_owned();
        Ok(match &entry.stream {
            None => TextId { bytes: read.concat(), format, column, rule, shards: None },
            Some(stream) => {
                let bytes = sha256::of_bytes(read.concat());
                let shards = Some(ShardsId { order: stream.shards, count: stream.count, read });
                TextId { bytes, format, column, rule, shards }
            }
        })
    }

    /// Returns the identity of a calibration and the key of its tokenized windows.
    pub(super) fn calibration_id(&self, calibration: &Calibration) -> Result<(CalibrationId, Key)> {
        let &Calibration { ref corpus, sequences, length, seed, .. } = calibration;
        let text = self.text_id(corpus, seed)?;
        let windows = json!({"for": "calibration", "sequences": sequences, "length": length, "seed": seed});
        let tokens = tokens::windows_key(corpus, &text, &self.plan.dense.model.tokenizer, &windows);
        let rounded = self.grid.backbones[&self.plan.name].weights.as_ref();
        let rounded = rounded.filter(|weights| weights.calibrated == CalibratedOn::Rounded);
        let weights = rounded.map(|weights| weights.to.name().to_owned());
        Ok((CalibrationId { text, sequences, length, seed, weights }, tokens))
    }

    /// Returns the identity of a perplexity measurement and the key of its tokenized windows.
    pub(super) fn windows_id(&self, perplexity: &Perplexity) -> Result<(MeasureId, Key)> {
        let &Perplexity { ref corpus, length, draw, .. } = perplexity;
        let text = self.text_id(corpus, EVALUATION_SEED)?;
        let limit = self.grid.corpora[corpus].limit;
        let windows = json!({"for": "perplexity", "length": length, "limit": limit});
        let tokens = tokens::windows_key(corpus, &text, &self.plan.dense.model.tokenizer, &windows);
        Ok((MeasureId::Windows { text, length, limit, draw, batch: self.plan.batch_tokens }, tokens))
    }

    /// Returns the token used in place of an empty context.
    fn read_prefix<'v>(&self, tokenizer_config: &'v Value, config: &'v Value) -> Result<Option<PrefixToken<'v>>> {
        let tokenizer = parts::tokenizer_path(&self.plan.folder);
        prefix_token(tokenizer_config, config, |text| corpus::token_id(&tokenizer, text))
    }

    /// Returns a note about the token used in place of an empty context, if the grid has tasks and the token is
    /// unusual. Returns `None` for a GGUF file.
    pub(super) fn prefix_note(&self) -> Result<Option<String>> {
        let evaluate = &self.grid.evaluate;
        if evaluate.tasks.is_empty() || is_gguf(&self.plan.folder) {
            return Ok(None);
        }
        let [config, tokenizer_config] = self.inputs.read_configs(&self.plan.folder)?;
        Ok(self.read_prefix(&tokenizer_config, &config)?.and_then(|prefix| prefix.note()))
    }

    /// Returns the identity of the measurement on a task, and the key of the task's requests. The key excludes the
    /// metrics and filters of a definition, so that stored answers can be reused for a new metric.
    pub(super) fn task_id(&self, task: &EvalTask) -> Result<(MeasureId, Key)> {
        let data = self.grid.task(task);
        let definition = data.definition()?;
        let how = &task.how;
        let files = data.rows()?;
        let documents = files.evaluated(definition);
        let (rows, formats) = self.row_files(documents)?;
        let limit = self.inputs.effective_limit(task)?.map(|limit| json!(limit));
        let bos = how.bos.to_string();
        let [config, tokenizer_config] = self.inputs.read_configs(&self.plan.folder)?;
        let max_length = how.max_length.map_or_else(|| tasks::max_length(&config, Some(&tokenizer_config)), Ok)?;
        let prefix = self.read_prefix(&tokenizer_config, &config)?.map(|prefix| json!(prefix.token));
        if let Some(builtin) = data.builtin() {
            let requests = json!({
                "task": builtin.name, "task_version": builtin.version, "rows": rows, "formats": formats, "limit": limit,
                "bos": bos, "max_length": max_length, "prefix": prefix, "tokenizer": self.plan.dense.model.tokenizer,
            });
            let measure = MeasureId::Task {
                task: builtin.name.to_owned(),
                version: builtin.version,
                rows,
                formats,
                limit: limit.as_ref().map(Canonical::from_value),
                draw: how.draw,
                bos,
                max_length,
                prefix: prefix.as_ref().map(Canonical::from_value),
                batch: self.plan.batch_tokens,
            };
            return Ok((measure, tokens::requests_key(&task.name, requests)));
        }
        let generation = match definition.output {
            Output::Generate => self.inputs.read_generation_config(&self.plan.folder, &config)?.changes(),
            _ => None,
        };
        let measure = MeasureId::Defined {
            asks: sha256::of_bytes(definition.request_keys()),
            rows,
            formats,
            shots: self.shots_id(how, definition, files.examples(definition, how.shots))?,
            chat: self.chat_id(how)?,
            system: how.system.as_ref().map(sha256::of_bytes),
            limit: limit.as_ref().map(Canonical::from_value),
            bos,
            max_length,
            prefix: prefix.as_ref().map(Canonical::from_value),
            generation: generation.as_ref().map(Canonical::from_value),
            batch: self.plan.batch_tokens,
        };
        let mut requests = json!(measure)["defined"].take();
        // The requests do not depend on the batch size, which affects only the last digits of scores.
        requests.as_object_mut().and_then(|fields| fields.remove("batch"));
        requests["tokenizer"] = json!(self.plan.dense.model.tokenizer);
        if definition.output == Output::Generate {
            requests["end_of_text"] = json!(end_of_text(&tokenizer_config, &config));
        }
        Ok((measure, tokens::requests_key(&task.name, json!({"definition": requests}))))
    }

    fn shots_id(&self, how: &TaskSettings, definition: &Definition, files: &[PathBuf]) -> Result<Option<ShotsId>> {
        let count = definition.shots(how.shots);
        if count == 0 {
            return Ok(None);
        }
        let (rows, formats) = self.row_files(files)?;
        Ok(Some(ShotsId { count, seed: how.seed, rows, formats }))
    }

    fn chat_id(&self, how: &TaskSettings) -> Result<Option<ChatId>> {
        let Some(multiturn) = how.chat else { return Ok(None) };
        let template = sha256::of_bytes(self.inputs.read_chat_template(&self.plan.folder)?.content());
        Ok(Some(ChatId { template, multiturn }))
    }
}

/// Returns the identity of a latency measurement. `machine` identifies this machine and its device. `among` is the hash
/// of the variants that are timed together ([`identity::timing_cohort`](crate::pipeline::identity::timing_cohort)).
pub(super) fn prefill_id(prompt: &Latency, machine: &Value, among: &str) -> MeasureId {
    let Rounds { warmups, timed } = Rounds::PAPER;
    MeasureId::Prefill {
        length: prompt.length,
        batch: prompt.batch,
        decode: prompt.decode,
        warmups,
        rounds: timed,
        machine: Canonical::from_value(machine),
        among: among.to_owned(),
    }
}

/// Returns the identity of a cut. It includes the repair if the criterion removes layers one by one.
pub(super) fn cut_id(
    criterion: &Method<dyn Criterion>,
    spec: &PruneSpec<'_>,
    repair: Option<&RepairId>,
) -> Result<CutId> {
    Ok(CutId {
        criterion: criterion.name.clone(),
        version: criterion::version(&criterion.name),
        options: Canonical::from_value(&json!(criterion.resolved)),
        depth: Depth { count: spec.depth, unit: spec.unit },
        known: criterion.rule.prior_order(spec)?.map(|order| Canonical::from_value(&json!(order))),
        repaired: repair.map(|repair| RepairId { training: None, ..repair.clone() }),
    })
}

pub(super) fn repair_id(
    calibration: &Calibration,
    criterion: &Method<dyn Criterion>,
    recovery: &Method<dyn Recovery>,
    spec: &PruneSpec<'_>,
) -> RepairId {
    let Calibration { sequences, operator_sequences, .. } = *calibration;
    RepairId {
        recovery: recovery.name.clone(),
        version: recovery::version(&recovery.name),
        options: Canonical::from_value(&json!(recovery::without_finetune(&recovery.resolved))),
        fitted: recovery.rule.fit_sequences(criterion.rule.one_block(spec)).count(sequences, operator_sequences),
        training: recovery.training,
    }
}
