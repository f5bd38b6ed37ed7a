//! Reproduces an artifact: checks the dense backbones, runs the grid, and writes the tables, figures and provenance
//! record.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::comparison::{Gate, GateFailure, format_comparison, gate_error, insert_gated_cells};
use super::drawer::Drawer;
use super::figure::Drawing;
use super::files::{FinishedRun, accompanying_files, incomplete_note, run_notes, write_texts};
use super::layout::{lay_out_table, with_notes};
use super::lists::{self, NameList};
use super::loss_curves::draw_losses;
use super::page_part::{self, PagePart};
use super::results_folder::{PublishedFiles, ResultsFolder};
use super::seeds::{draw_seed_dots, order_notes};
use super::{Artifact, paper_columns};
use crate::artifact::page::{FigureView, WRITING_FINISHED, WRITING_STARTED};
use crate::artifact::paper::{self, backbone_label};
use crate::error::{Error, Result};
use crate::files::output::Draft;
use crate::grid::{Description, FigureKind, Grid, ListEntry, TableEntry};
use crate::pipeline::exec::{GridOutcome, RunEnv, RunSettings, Runner};
use crate::quantity::pluralize;
use crate::results::number_record::Record;
use crate::results::{
    NoisyTimes, Provenance, ResultRow, Results, Table, collect, cut_frame, drawn_frame, notes_file, put, run_frame,
    screen, tidy_frame, write_csv, write_frame,
};

/// Interface for running grids. Tests implement it without computing anything.
pub trait Executor {
    /// Runs the grid. `results` is the folder in which the results will be published.
    ///
    /// # Errors
    /// Fails if the run stops early. Failed cells are reported in the outcome instead.
    fn run(&self, grid: &Grid, results: &Path) -> Result<GridOutcome>;

    /// Runs a grid that precedes another one. Does not evict objects that the next grid may need.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::run`].
    fn run_before(&self, grid: &Grid, results: &Path) -> Result<GridOutcome> {
        self.run(grid, results)
    }
}

impl Executor for Runner<'_> {
    fn run(&self, grid: &Grid, results: &Path) -> Result<GridOutcome> {
        Self::run(self, grid, results)
    }

    fn run_before(&self, grid: &Grid, results: &Path) -> Result<GridOutcome> {
        let settings = RunSettings { store_limit: None, retime: false, ..self.env.settings };
        Runner { env: RunEnv { settings, ..self.env }, ..*self }.run(grid, results)
    }
}

#[derive(Debug)]
pub struct ArtifactOutcome {
    /// Table of the artifact, or `None` if it is only a figure.
    pub table: Option<Table>,
    /// Comparison with the paper. Empty if the paper has no values for the backbones.
    pub comparison: String,
    pub files: Vec<PathBuf>,
    /// Comparison with the recorded run, or `None` if there is none.
    pub recorded: Option<String>,
    /// Dense scores that do not match the paper's. The pruned cells of these backbones were not run.
    pub misses: Vec<GateFailure>,
    /// Backbones from the paper that have no comparable dense numbers, each with the reason.
    pub unknown: Vec<(String, String)>,
    /// Cells that failed, each with the reason.
    pub failures: Vec<(String, String)>,
    /// Number of cells that failed or were stopped by the gate.
    pub failed: usize,
    /// Number of cells without complete results.
    pub unmade: usize,
}

/// Whether dense backbones must reproduce the paper's numbers before they are pruned.
#[derive(Debug)]
pub enum GateMode {
    /// The dense numbers are not checked.
    No,
    /// The cells of this grid are checked. `None` if no backbone is from the paper ([`Artifact::gate`]).
    Yes(Option<Box<Grid>>),
}

/// Reproduces a table or figure.
///
/// # Errors
/// Fails if the run stops, the numbers do not match the description, or the folder is not writable.
pub fn make(
    artifact: &Artifact,
    grid: &Grid,
    gated: &GateMode,
    target: &ResultsFolder,
    executor: &dyn Executor,
) -> Result<ArtifactOutcome> {
    let started = SystemTime::now();
    check_depth_units(artifact, grid)?;
    target.output().check(&artifact_files(artifact, grid))?;
    let description = &artifact.description;
    let profile = grid.profile.as_deref().unwrap_or_default();
    let named = description.table.as_ref().map(|table| table.named_options.clone()).unwrap_or_default();
    let (Gate { misses, unknown }, open) =
        self::run_gate(description, grid, gated, &|dense: &Grid| executor.run_before(dense, target.path()))?;
    let outcome = executor.run(&open, target.path())?;
    let outcome = insert_gated_cells(outcome, grid, &misses);
    let results = collect(grid, &outcome, &named);
    // Store the numbers for each seed even if the table aggregates them.
    let tabled = results.aggregate_over(description.table.as_ref().and_then(|table| table.over));

    let staging = target.output().stage()?;
    let mut files = Vec::new();
    let mut table = None;
    let mut comparison = String::new();
    if let Some(entry) = &description.table {
        // An artifact that is not in the paper has no values to compare with.
        let paper = paper::records(&artifact.name).unwrap_or_default();
        let order = entry.order_of.as_deref().map(paper::records).transpose()?.unwrap_or_default();
        let order = order_notes(entry, &tabled.rows(), &order);
        let notes = [run_notes(grid, &outcome), incomplete_note(&outcome), tabled.notes(), order].concat();
        let laid = with_notes(lay_out_table(description, entry, &tabled.rows(), &paper)?, profile, notes);
        files.extend(write_frame(staging.path(), &artifact.name, tidy_frame(&artifact.name, profile, &laid)?)?);
        let variants = latex_variants(artifact, entry, &laid);
        files.extend(write_texts(staging.path(), &artifact.name, &laid, &variants, str::to_owned)?);
        comparison = format_comparison(&laid);
        table = Some(laid);
    }
    // A figure without cells cannot be drawn. If the gate stopped its backbones, report the gate's error instead.
    let drawn = write_figures(artifact, &outcome, &tabled, profile, &staging);
    let (drawn, figures) = drawn.map_err(|error| gate_error(&misses).unwrap_or(error))?;
    files.extend(drawn);
    let run = FinishedRun { target, grid, outcome: &outcome, started };
    let record = run.finish(matches!(gated, GateMode::Yes(_)), &results, &mut files, staging.path())?;
    // The results page shows only runs that use an unmodified description.
    if target.as_described() {
        let mut part = page_part::build_table_page_part(artifact, profile, &outcome, table.as_ref(), figures);
        part.artifact.provenance = provenance_lines(&record, grid.cells.len());
        if target.is_recording() { part.without_numbers() } else { part }.write(staging.path())?;
    }
    check_recordable(artifact, &outcome, target)?;
    let PublishedFiles { files, recorded } = target.publish(staging, &files)?;

    let failed = outcome.cells.iter().filter(|result| open.cells.contains(&result.cell));
    let failures = failed.filter_map(|result| Some((result.cell.to_string(), result.failure.clone()?))).collect();
    let failed = outcome.failed_count();
    let unmade = outcome.incomplete_count();
    Ok(ArtifactOutcome { table, comparison, files, recorded, misses, unknown, failures, failed, unmade })
}

/// Rejects recording a run that is incomplete or has noisy timings.
fn check_recordable(artifact: &Artifact, outcome: &GridOutcome, target: &ResultsFolder) -> Result<()> {
    if target.is_recording() && outcome.failed_count() + outcome.incomplete_count() > 0 {
        let found = format!(
            "{} failed, {} not computed",
            pluralize(outcome.failed_count(), "cell"),
            outcome.incomplete_count()
        );
        return Err(Error::job("an incomplete run cannot be recorded")
            .at(artifact.name.clone())
            .expected("results for all cells")
            .found(found)
            .hint("run the same command without --record to see which cells failed, and why"));
    }
    if let Some(noisy) = NoisyTimes::from_outcome(outcome).filter(|_| target.rejects_noisy_times()) {
        return Err(Error::job("unstable times cannot be recorded")
            .at(artifact.name.clone())
            .expected("an idle machine")
            .found(noisy.sentence())
            .hint("measure again on an idle machine with --retime, or add --record-noisy"));
    }
    Ok(())
}

/// Returns the names of the files that an artifact may write.
pub fn artifact_files(artifact: &Artifact, grid: &Grid) -> Vec<String> {
    let outputs = ["csv", "parquet", "md", "svg", "pdf", "png"].map(|ending| format!("{}.{ending}", artifact.name));
    let printed = artifact.names().into_iter().map(str::to_owned);
    let variants = [COMPARED_SUFFIX, BEYOND_SUFFIX].map(|suffix| format!("{}-{suffix}", artifact.name));
    let printed = printed.chain(variants).map(|name| format!("{name}.tex")).chain([notes_file(&artifact.name)]);
    outputs.into_iter().chain(printed).chain([PagePart::FILE.to_owned()]).chain(accompanying_files(grid)).collect()
}

/// Rejects cuts of sublayers if the table or figure supports only whole layers.
fn check_depth_units(artifact: &Artifact, grid: &Grid) -> Result<()> {
    let description = &artifact.description;
    let Some(cell) = grid.cells.iter().find(|cell| !cell.depth.is_in_layers()) else { return Ok(()) };
    if description.shows_sublayers() {
        return Ok(());
    }
    let (message, hint) = match description.table {
        Some(_) => ("the table supports only whole layers", "add `removed` to the table's `lead`"),
        None => ("the figure supports only whole layers", "use a figure of kind `layers` or `pareto`"),
    };
    Err(Error::bad_input(message)
        .at(format!("{}, {cell}", artifact.name))
        .expected("depths in layers")
        .found(format!("a depth of {}", cell.depth))
        .hint(format!("{hint}, or leave `artifact` out and use `ghostlab run`")))
}

/// Runs the dense backbones with `run`, unless `gated` switches the gate off. Returns the result of the gate, and the
/// grid without the cells that the gate stops.
///
/// # Errors
/// Fails if the run stops.
pub fn run_gate(
    description: &Description,
    grid: &Grid,
    gated: &GateMode,
    run: &dyn Fn(&Grid) -> Result<GridOutcome>,
) -> Result<(Gate, Grid)> {
    let gate = match gated {
        GateMode::Yes(Some(dense)) => {
            let paper: Vec<Record> = paper::all()?.into_iter().map(|entry| entry.record).collect();
            let results = collect(dense, &run(dense)?, &[]);
            Gate::check(&results.rows(), &paper, &description.tolerance)
        }
        GateMode::Yes(None) | GateMode::No => Gate::default(),
    };
    let stopped = GateFailure::backbones(&gate.misses);
    let mut open = grid.clone();
    open.cells.retain(|cell| cell.is_dense() || !stopped.contains(&cell.backbone));
    Ok((gate, open))
}

/// Returns the LaTeX variants of a table with their file names: one with the paper's columns for each name of the
/// artifact, one that adds the paper's values, and one with the columns that the paper does not have.
pub(super) fn latex_variants(artifact: &Artifact, entry: &TableEntry, table: &Table) -> Vec<(String, Table)> {
    let tables = paper_columns::keep_paper_columns(entry, table);
    let mut variants: Vec<(String, Table)> =
        artifact.names().into_iter().map(|name| (name.to_owned(), tables.clone().without_comparisons())).collect();
    variants.extend(tables.has_paper().then(|| (format!("{}-{COMPARED_SUFFIX}", artifact.name), tables)));
    let beyond = paper_columns::columns_beyond_paper(entry, table);
    variants.extend(beyond.map(|table| (format!("{}-{BEYOND_SUFFIX}", artifact.name), table.without_comparisons())));
    variants
}

/// Suffixes for the file names of the LaTeX variants.
const COMPARED_SUFFIX: &str = "compared";
const BEYOND_SUFFIX: &str = "beyond";

/// Draws the figures of an artifact and writes them in all formats. Returns the paths of the files, and the figures for
/// the results page.
fn write_figures(
    artifact: &Artifact,
    outcome: &GridOutcome,
    results: &Results,
    profile: &str,
    staging: &Draft,
) -> Result<(Vec<PathBuf>, Vec<FigureView>)> {
    let description = &artifact.description;
    let mut files = Vec::new();
    let mut figures = Vec::new();
    let all = results.rows();
    let name = artifact.name.clone();
    let (figure_name, drawings) = match &description.figure {
        Some(entry) => (name, Drawer { description, entry, outcome, numbers: &all }.draw()?),
        None => (format!("{name}-losses"), draw_losses(&description.title, outcome)?),
    };
    // If the artifact also has a table, its files already contain the numbers of the figure.
    if let Some(figure) = description.figure.as_ref().filter(|_| description.table.is_none()) {
        let numbers: Vec<&ResultRow> = all
            .iter()
            .map(AsRef::as_ref)
            .filter(|number| {
                let is_cost = figure.costs.iter().any(|cost| cost == number.metric.family());
                figure.metrics.is_empty() || figure.metrics.contains(&number.record.metric) || is_cost
            })
            .collect();
        let path = staging.path().join(format!("{}.csv", artifact.name));
        let splits_layers = outcome.cells.iter().any(|result| !result.cell.depth.is_in_layers());
        let frame = match figure.kind {
            FigureKind::Layers if splits_layers => cut_frame(&artifact.name, profile, &outcome.cells)?,
            _ => drawn_frame(&artifact.name, profile, &numbers)?,
        };
        write_csv(&path, &frame)?;
        files.push(path);
    }
    let over = description.table.as_ref().filter(|table| table.over.is_some());
    let dots = over.map(|table| draw_seed_dots(&description.title, table, &all, &outcome.cells)).transpose()?.flatten();
    if let Some(drawing) = dots {
        files.extend(put_drawing(staging, &format!("{}-seeds", artifact.name), &drawing)?);
        figures.push(FigureView { svg: drawing.svg, label: "One dot per seed".to_owned() });
    }
    for (name, drawing) in drawings {
        let base = if name.is_empty() { figure_name.clone() } else { format!("{figure_name}-{name}") };
        files.extend(put_drawing(staging, &base, &drawing)?);
        figures.push(FigureView { svg: drawing.svg, label: backbone_label(&name).to_owned() });
    }
    Ok((files, figures))
}

fn put_drawing(staging: &Draft, base: &str, drawing: &Drawing) -> Result<Vec<PathBuf>> {
    drawing.formats().map(|(ending, bytes)| put(&staging.path().join(format!("{base}.{ending}")), bytes)).collect()
}

/// Formats the provenance record as name-value pairs for the results page.
pub(super) fn provenance_lines(record: &Provenance, cells: usize) -> Vec<(String, String)> {
    let dirty = if record.dirty { ", with uncommitted changes" } else { "" };
    let machine = &record.machine;
    let processor = machine.cpu.as_deref().unwrap_or("unknown processor");
    let threads = machine.threads;
    let features = machine.cpu_features.join(" ");
    let lines = [
        ("program", Some(format!("ghostlab {}", record.ghostlab))),
        ("commit", record.commit.as_ref().map(|commit| format!("{commit}{dirty}"))),
        ("command", Some(record.command.join(" "))),
        (WRITING_STARTED, Some(record.started.clone())),
        (WRITING_FINISHED, Some(record.finished.clone())),
        ("machine", Some(format!("{processor}, {threads} threads, {features}, {}, {}", machine.os, machine.arch))),
        ("cells", Some(cells.to_string())),
    ];
    lines.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Writes the files of a list of methods or checkpoints. Returns its table formatted for the terminal.
///
/// # Errors
/// Fails if the folder is not writable.
pub fn list(
    artifact: &Artifact,
    list: ListEntry,
    experiments: &Path,
    results: &Path,
    width: Option<usize>,
) -> Result<String> {
    let list: NameList = match list {
        ListEntry::Methods => lists::list_methods(),
        ListEntry::Checkpoints => lists::list_checkpoints(experiments)?,
    };
    let target = ResultsFolder::list_folder(results, &artifact.name);
    let csv = format!("{}.csv", artifact.name);
    let full_list = list.full_table();
    let printed = list.printed(&artifact.description).map_err(|error| error.at(artifact.file.path().display()))?;
    let variants: Vec<(String, Table)> =
        artifact.names().into_iter().map(|name| (name.to_owned(), printed.clone())).collect();
    let names = [format!("{}.md", artifact.name), csv.clone(), PagePart::FILE.to_owned()];
    let printed_names = artifact.names().into_iter().map(|name| format!("{name}.tex"));
    target.check(&names.into_iter().chain(printed_names).collect::<Vec<_>>())?;
    let draft = target.stage()?;
    write_texts(draft.path(), &artifact.name, &full_list, &variants, str::to_owned)?;
    write_csv(&draft.path().join(csv), &run_frame(&full_list)?)?;
    page_part::build_list_page_part(artifact, &list).write(draft.path())?;
    draft.publish()?;
    Ok(screen(&full_list, width))
}
