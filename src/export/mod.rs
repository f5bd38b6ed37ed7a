//! Export of cells as folders for transformers, lm-evaluation-harness and other programs (layer 4 of the architecture,
//! docs/design.md §16).
//!
//! | file | contents |
//! | --- | --- |
//! | `export_folder` | output folder with weights, config, tokenizer and other files of the backbone |
//! | `card` | model card |
//! | `formats` | export formats that support a cut and its repair |
//! | `source` | backbone files that an export copies |
//!
//! This module also exports cells as GGUF files for llama.cpp and programs based on it.

mod card;
mod export_folder;
mod formats;
mod source;

pub use export_folder::{ExportedModel, RECORD_FILE, WeightFormat, check_folder};
pub use formats::{ExportableCut, Formats, exportable_cuts};

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::quantized::gguf_file::Value as Entry;
use export_folder::{check_disk_space, read_config, read_json_object};
use serde_json::Value;

use crate::checkpoint::{GgufMetadata, GgufType, Layout, gguf_form};
use crate::corpus::{self, GgufTokenizer, to_gguf};
use crate::error::{Error, Result};
use crate::files::atomic::write_atomically;
use crate::files::gguf::{Gguf, is_gguf};
use crate::files::output::{Input, OutputFile};
use crate::files::{parts, regular};
use crate::grid::{Cell, Evaluate, Grid};
use crate::machine;
use crate::model::{Config, DeployedModel, deploy, fold_scalar_factors};
use crate::pipeline::env::inputs::Inputs;
use crate::pipeline::exec::{self, CellResult, GridOutcome, RunEnv, stored_program};
use crate::pipeline::plan::{BackbonePlan, Plan};
use crate::results::{collect, long, markdown};
use ghostlab_store::fault;

/// Environment and output options for exporting cells.
pub struct Exporter<'a> {
    pub env: RunEnv<'a>,
    pub weight_format: WeightFormat,
    /// Report on the search that selected the cell, in Markdown. `None` if the cell was not selected by a search.
    pub evidence: Option<String>,
}

impl Exporter<'_> {
    /// Exports a cell of a grid to a folder. Layer selections and operators that are not stored are computed first.
    ///
    /// # Errors
    /// Fails if the cell fails, the weights have changed since they were hashed, the folder must not be overwritten, or
    /// the disk is full. A failed export leaves no output behind.
    pub fn export(&self, grid: &Grid, cell: usize, folder: &Path) -> Result<ExportedModel> {
        let output = export_folder::check_folder(folder)?;
        check_recovery(&grid.cells[cell])?;
        let numbers = self.format_score_table(grid, &grid.cells[cell])?;
        self.with_cell(grid, cell, &mut |made| {
            let card = card::render_card(self, grid, &made, numbers.clone())?;
            made.inputs.read_unchanged(&[&made.backbone.folder], || {
                export_folder::write_export(&output, &made, &card, &self.weight_format, self.env.stop)
            })
        })
    }

    /// Computes the layer selection and operators of a cell unless they are stored, and passes the computed cell to
    /// `then`.
    fn with_cell<T>(&self, grid: &Grid, cell: usize, then: &mut dyn FnMut(ComputedCell<'_>) -> Result<T>) -> Result<T> {
        let cell = &grid.cells[cell];
        let export_grid = build_single_cell_grid(grid, cell);
        let RunEnv { store, settings, .. } = self.env;
        let outcome = exec::run(&export_grid, self.env)?;
        let result = outcome.cells.first().ok_or_else(|| Error::job("no result for the cell").at(cell.to_string()))?;
        result.ok()?;
        let plan = Plan::new(&export_grid, store, settings)?;
        let Some((backbone, variant)) = plan.variants().next() else {
            return Err(Error::job("the plan does not contain the cell").at(cell.to_string()));
        };
        let deployed = deploy(&stored_program(store, backbone, variant)?, &backbone.config);
        let deployed = fold_scalar_factors(deployed, &backbone.config)?;
        let layout = Layout::plan(&backbone.config, &backbone.folder, &deployed, self.weight_format.dtype)?;
        then(ComputedCell { layout: &layout, backbone, result, deployed: &deployed, inputs: &plan.inputs })
    }

    /// Formats a table with the scores of the cell and its dense backbone. Returns `None` if some scores are not
    /// stored.
    fn format_score_table(&self, grid: &Grid, cell: &Cell) -> Result<Option<String>> {
        let mut scored = grid.clone();
        scored.cells.retain(|scored_cell| {
            scored_cell == cell || (scored_cell.is_dense() && scored_cell.backbone == cell.backbone)
        });
        scored.evaluate.latency.clear();
        if !scored.evaluate.has_scores() {
            return Ok(None);
        }
        keep_backbone(&mut scored, cell);
        let RunEnv { store, settings, .. } = self.env;
        let plan = Plan::new(&scored, store, settings)?;
        let outcome = GridOutcome::read(&plan, store, &BTreeMap::new())?;
        let complete = outcome.failed_count() + outcome.incomplete_count() == 0;
        let profile = grid.profile.as_deref().unwrap_or_default();
        Ok(complete.then(|| markdown(&long(&collect(&scored, &outcome, &[]), profile, Vec::new()))))
    }
}

/// Computed cell with the deployed model to export and its checkpoint layout.
struct ComputedCell<'a> {
    layout: &'a Layout,
    backbone: &'a BackbonePlan,
    result: &'a CellResult,
    deployed: &'a DeployedModel,
    inputs: &'a Inputs,
}

/// Builds a grid with only this cell and no evaluations, so that a run computes only what the checkpoint needs.
fn build_single_cell_grid(grid: &Grid, cell: &Cell) -> Grid {
    let mut export_grid = grid.clone();
    export_grid.cells = vec![cell.clone()];
    export_grid.evaluate = Evaluate::default();
    export_grid.tasks.clear();
    keep_backbone(&mut export_grid, cell);
    export_grid
        .corpora
        .retain(|name, _| cell.calibration.as_ref().is_some_and(|calibration| calibration.corpus == *name));
    export_grid
}

/// Removes all backbones except the cell's from a grid, so that their files need not be read.
fn keep_backbone(grid: &mut Grid, cell: &Cell) {
    grid.backbones.retain(|name, _| *name == cell.backbone);
}

/// GGUF metadata key for the cell name. It marks files that were written by ghostlab and may be replaced.
const CELL_KEY: &str = "ghostlab.cell";

/// Checks that `path` does not exist or is an earlier export.
///
/// # Errors
/// Fails with exit code 2 if another file exists at the path, or if the name does not end in `.gguf`.
pub fn check_gguf(path: &Path, inputs: Vec<Input>) -> Result<()> {
    if !is_gguf(path) {
        return Err(Error::bad_input("GGUF file names must end in .gguf")
            .at(path.display().to_string())
            .hint("use a name such as --to model.gguf"));
    }
    OutputFile { path, inputs, force: true, is_ours: |_| false }.check()?;
    if path.exists() && !Gguf::open(path).is_ok_and(|file| file.keys().contains(&CELL_KEY)) {
        return Err(Error::bad_input("the output file already exists")
            .at(path.display())
            .expected("no file, or a file that `ghostlab export` wrote")
            .hint("choose another file"));
    }
    Ok(())
}

impl Exporter<'_> {
    /// Exports a cell of a grid as a GGUF file. Layer selections and operators that are not stored are computed first.
    /// Also returns notes about text that llama.cpp tokenizes differently.
    ///
    /// # Errors
    /// Fails in the same cases as [`Exporter::export`]. Also fails if GGUF cannot represent the cell or llama.cpp does
    /// not support the tokenizer.
    pub fn export_gguf(
        &self,
        grid: &Grid,
        cell: usize,
        path: &Path,
        gguf_type: GgufType,
    ) -> Result<(ExportedModel, Vec<String>)> {
        check_gguf_support(grid, &grid.cells[cell])?;
        check_recovery(&grid.cells[cell])?;
        self.with_cell(grid, cell, &mut |ComputedCell { layout, backbone, result, inputs, .. }| {
            let config = &backbone.config;
            gguf_form(config, layout).map_err(|error| error.at(result.cell.to_string()))?;
            let (mut entries, notes) = gguf_texts(&backbone.folder, config)?;
            entries.push((CELL_KEY.to_owned(), Entry::String(result.cell.to_string())));
            entries.push(("ghostlab.version".to_owned(), Entry::String(machine::program_version())));
            let text = GgufMetadata { name: result.cell.to_string(), entries };
            let bytes = layout.gguf_bytes(config, gguf_type)?;
            let parameters = layout.parameters();
            check_disk_space(path.parent().unwrap_or(Path::new(".")), bytes)?;
            inputs.read_unchanged(&[&backbone.folder], || {
                write_atomically(path, |file| {
                    let mut out = BufWriter::new(file);
                    layout.write_gguf(config, gguf_type, &text, path, &mut out, &mut |_| {
                        check_stop(self.env.stop, "file")
                    })?;
                    out.flush().map_err(|error| Error::io("write", path, &error))
                })
            })?;
            Ok((ExportedModel { folder: path.to_owned(), bytes, parameters, needs_code: false }, notes.clone()))
        })
    }
}

/// Rejects a cell whose cut or recovery GGUF cannot represent, before anything is computed for the cell.
fn check_gguf_support(grid: &Grid, cell: &Cell) -> Result<()> {
    let Some(backbone) = grid.backbones.get(&cell.backbone) else { return Ok(()) };
    // Ignore an invalid config, because the run reports the error.
    let Ok(config) = Config::read_with_attachments(&backbone.path) else { return Ok(()) };
    let recovery = cell.recovery.as_ref().map(|recovery| &*recovery.rule);
    formats::check_gguf(&config, recovery, cell.depth.unit).map_err(|error| error.at(cell.to_string()))
}

/// Rejects a cell whose recovery cannot be exported.
fn check_recovery(cell: &Cell) -> Result<()> {
    let Some(recovery) = &cell.recovery else { return Ok(()) };
    recovery.rule.check_export().map_err(|error| error.at(cell.to_string()))
}

/// Returns an error if the user interrupted the export.
fn check_stop(stop: &AtomicBool, output_kind: &str) -> Result<()> {
    fault::fault_point("export");
    match stop.load(Relaxed) {
        true => Err(Error::interrupted(format!("stopped; the incomplete {output_kind} was removed"))),
        false => Ok(()),
    }
}

/// GGUF metadata entries, and notes about text that llama.cpp tokenizes differently.
type GgufTexts = (Vec<(String, Entry)>, Vec<String>);

/// Returns the GGUF metadata for a backbone's tokenizer and chat template. Also returns notes about text that llama.cpp
/// tokenizes differently.
///
/// # Errors
/// Fails in the same cases as [`to_gguf`], or if a file cannot be read.
pub fn gguf_texts(backbone: &Path, config: &Config) -> Result<GgufTexts> {
    let file = parts::tokenizer_path(backbone);
    let tokenizer: Value = serde_json::from_slice(&corpus::tokenizer_json(&file, config.vocab)?)
        .map_err(|error| Error::bad_input("malformed JSON").at(file.display().to_string()).found(error.to_string()))?;
    let source_config = Value::Object(read_config(backbone)?);
    let folder = parts::sibling_file(backbone, ".");
    let settings = match source::find(&folder, "tokenizer_config.json")? {
        Some(file) => Value::Object(read_json_object(&file)?),
        None => Value::Null,
    };
    let ids = [
        ("bos", find_special_token_id(&tokenizer, &source_config, &settings, "bos")),
        ("eos", find_special_token_id(&tokenizer, &source_config, &settings, "eos")),
        ("padding", find_special_token_id(&tokenizer, &source_config, &settings, "pad")),
    ];
    let GgufTokenizer { mut entries, notes } = to_gguf(&tokenizer, config.vocab, &ids)?;
    let template = match source::find(&folder, "chat_template.jinja")? {
        Some(file) => Some(String::from_utf8_lossy(&regular::read(&file)?).into_owned()),
        None if is_gguf(backbone) => Gguf::open(backbone)?.text("tokenizer.chat_template")?.map(str::to_owned),
        None => settings["chat_template"].as_str().map(str::to_owned),
    };
    entries.extend(template.map(|text| ("tokenizer.chat_template".to_owned(), Entry::String(text))));
    Ok((entries, notes))
}

fn find_special_token_id(tokenizer: &Value, source_config: &Value, settings: &Value, name: &str) -> Option<u64> {
    let token = &settings[format!("{name}_token")];
    let text = token.as_str().or_else(|| token["content"].as_str());
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let mut added = added.filter(|token| text.is_some() && token["content"].as_str() == text);
    let named = added.find_map(|token| token["id"].as_u64()).or_else(|| tokenizer["model"]["vocab"][text?].as_u64());
    named.or_else(|| {
        let id = &source_config[format!("{name}_token_id")];
        id.as_u64().or_else(|| id[0].as_u64())
    })
}
