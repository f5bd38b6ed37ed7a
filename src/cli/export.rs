//! `ghostlab export GRID.yaml [CELL] --to FOLDER`: exports cells as Hugging Face models or GGUF files.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::answer::write_commands::{ExportAnswer, ExportedCell};
use super::answer::{self, Answer};
use super::explain::find_cell;
use super::grid_args::{GridArgs, LimitArgs};
use super::terminal::format_bytes;
use super::{directories, progress, stop};
use crate::checkpoint::GgufType;
use crate::error::{Error, Result};
use crate::export::{self, ExportedModel, Exporter, WeightFormat};
use crate::files::output::check_separate;
use crate::grid::Grid;
use crate::model::{ComputeType, EngineRequest, FloatType};
use crate::pipeline::exec::RunEnv;
use crate::quantity::Gigabytes;

/// Help text for `--dtype`, which has a different meaning in this command.
pub(super) const DTYPE_HELP: &str = "Type of the weights: `f32`, `bf16`, `f16` or `auto` (as stored)";

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    grid_args: GridArgs,
    /// Cell name or unique parts of it [default: every pruned cell].
    ///
    /// For example `streamline-3.ghosted`. `plan` lists the names. Without a cell, every pruned cell is exported to a
    /// subfolder of FOLDER (with --gguf, a file in it) that is named after the cell.
    cell: Option<String>,
    /// Output folder, new or from an earlier export; with --gguf, an output file.
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
    /// Float type for uncached layer selections and operators [default: f32 on the CPU].
    #[arg(long, value_name = "TYPE", value_parser = str::parse::<ComputeType>)]
    compute: Option<ComputeType>,
    /// Write a GGUF file for llama.cpp with `f32`, `bf16`, `f16` or `q8_0` matrices.
    ///
    /// The recovery must be one that is folded into the weights. For Llama-like models, removed sublayers and some
    /// other recoveries are also supported. `ghostlab doctor MODEL` lists them.
    #[arg(long, value_name = "TYPE", value_parser = str::parse::<GgufType>, conflicts_with = "dtype")]
    gguf: Option<GgufType>,
    /// Maximum size of a weight file in GB.
    #[arg(long, value_name = "GB", default_value = "5")]
    shard_size: Gigabytes,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Returns the float type for the exported weights.
///
/// # Errors
/// Fails if `--dtype` is a compute type, such as `bf16x3`, that tensors cannot be stored in.
fn resolve_exported_type(dtype: ComputeType) -> Result<FloatType> {
    dtype.float().ok_or_else(|| {
        Error::bad_input(format!("weights cannot be exported as {dtype}"))
            .expected("--dtype f32, bf16, f16 or auto")
            .hint(format!("use --compute {dtype} to compute layer selections and operators in this type"))
    })
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (grids, _) = arguments.grid_args.grids_to_run(&arguments.grid_args.read()?)?;
    let chosen = select_cells(&grids, arguments)?;
    let store = arguments.grid_args.open_store()?;
    // Check all output paths before writing anything.
    for (grid, _, folder) in &chosen {
        match arguments.gguf {
            Some(_) => export::check_gguf(folder, directories::list_inputs(grid, &store))?,
            None => {
                check_separate(folder, &directories::list_inputs(grid, &store))?;
                export::check_folder(folder)?;
            }
        }
    }
    arguments.grid_args.threads.start()?;
    // `--dtype` is the type of the exported weights, and `--compute` is the type used for computing.
    let request = arguments.grid_args.engine.request();
    let dtype = request.dtype.map(resolve_exported_type).transpose()?;
    let computed = EngineRequest { dtype: arguments.compute, ..request };
    let stop = stop::on_ctrl_c(stop::STOPPING_AFTER_BATCH)?;
    let settings = arguments.limits.settings(computed);
    let env = RunEnv { store: &store, settings, reporter: &*progress::reporter(false), stop: &stop };
    let weight_format = WeightFormat { dtype, shard_bytes: arguments.shard_size.bytes() };
    let exporter = Exporter { env, weight_format, evidence: None };
    let mut folders = Vec::new();
    for (grid, cell, folder) in chosen {
        let (exported, notes) = match arguments.gguf {
            Some(gguf_type) => exporter.export_gguf(grid, cell, &folder, gguf_type)?,
            None => (exporter.export(grid, cell, &folder)?, Vec::new()),
        };
        notes.iter().for_each(|text| note!("note: {text}"));
        if !answer::is_json() {
            // Print each line as soon as its export is written, because the next export may take a while.
            println!("{}", format_exported(&exported));
        }
        folders.push(ExportedCell { cell: grid.cells[cell].to_string(), exported });
    }
    answer::print_answer(ExportAnswer { folders }, Answer::Export, |_| {})
}

fn format_exported(exported: &ExportedModel) -> String {
    let code = if exported.needs_code { "; load it with trust_remote_code=True" } else { "" };
    format!(
        "{}: {:.1} M parameters, {}{code}",
        exported.folder.display(),
        exported.parameters as f64 / 1e6,
        format_bytes(exported.bytes)
    )
}

/// Returns the selected cells, each with its output path.
fn select_cells<'a>(grids: &'a [Grid], arguments: &Arguments) -> Result<Vec<(&'a Grid, usize, PathBuf)>> {
    // The main grid comes last. For an artifact, a grid that only scores the dense backbones may precede it.
    let grid = grids.last().ok_or_else(|| Error::bad_input("the grid has no cells"))?;
    if let Some(text) = &arguments.cell {
        return Ok(vec![(grid, find_cell(grid, text)?, arguments.to.clone())]);
    }
    let extension = if arguments.gguf.is_some() { ".gguf" } else { "" };
    let pruned = grid.cells.iter().enumerate().filter(|(_, cell)| !cell.is_dense());
    let chosen: Vec<_> =
        pruned.map(|(index, cell)| (grid, index, arguments.to.join(format!("{}{extension}", cell.name)))).collect();
    if chosen.is_empty() {
        return Err(Error::bad_input("the grid has no pruned cell")
            .hint("run `ghostlab export GRID dense --to FOLDER` to export a dense backbone"));
    }
    Ok(chosen)
}
