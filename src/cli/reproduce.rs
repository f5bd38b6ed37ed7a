//! `ghostlab reproduce ARTIFACT…`: the paper's tables and figures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

use clap::Args;

use super::asked::{Limits, Place, start_threads};
use super::units::{columns, seconds};
use super::{made, progress, report, stop};
use crate::claims;
use crate::error::{Error, Kind, Result, nearest};
use crate::exec::{self, CellResult, Methods, Outcome, Recorder, RunRecord, Settings};
use crate::files::atomic::write_atomically;
use crate::grid::{Cell, Description, Grid, ListEntry};
use crate::machine;
use crate::page::FigureView;
use crate::paper;
use crate::plan::{BackbonePlan, Estimate, Plan, State};
use crate::record::Record;
use crate::report::{Provenance, ensure_writable};
use crate::reproduce::{self, List, Miss, Number, View};
use crate::store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    /// `table2`, `figure1`, …, or `all`.
    artifacts: Vec<String>,
    /// `tiny`: on the backbones and data that come with the program; `paper`: on the paper's.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// The folder of the artifacts' files.
    #[arg(long, default_value = "experiments")]
    experiments: PathBuf,
    /// Where the artifacts' folders are made.
    #[arg(long, default_value = "results")]
    results: PathBuf,
    /// Where the page of all artifacts is written.
    #[arg(long, default_value = "reports")]
    reports: PathBuf,
    /// Prune and repair even where the dense backbone misses the paper's dense numbers.
    #[arg(long)]
    no_gate: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    limits: Limits,
    /// Threads to compute with; all cores by default.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// An artifact's file.
struct Artifact {
    name: String,
    file: PathBuf,
    description: Description,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let all = artifacts(&arguments.experiments)?;
    let chosen = chosen(&all, &arguments.artifacts)?;
    start_threads(arguments.threads)?;
    if chosen.is_empty() {
        println!("{}", listed(&all, arguments)?);
        return Ok(ExitCode::SUCCESS);
    }
    let store = arguments.place.store()?;
    let stop = stop::on_ctrl_c()?;
    let clock = Instant::now();
    let (mut failed, mut errors, mut profiles) = (0, Vec::new(), Vec::new());
    for artifact in &chosen {
        match made_one(artifact, arguments, &store, &stop) {
            Ok((cells, profile)) => {
                failed += cells;
                profiles.extend(profile);
            }
            // Of several artifacts, one that lacks its models does not keep the others from being made.
            Err(error) if chosen.len() > 1 && error.kind() != Kind::Interrupted => {
                eprintln!("{}: {error}\n", artifact.name);
                errors.push((artifact.name.clone(), error));
            }
            Err(error) => return Err(error),
        }
    }
    let names: Vec<&str> = chosen.iter().map(|artifact| artifact.name.as_str()).collect();
    // Lists have no profile, and where nothing else was made there is nothing to judge.
    if let Some(profile) = profiles.first() {
        print!("{}", claims_about(&names, arguments, profile)?);
    }
    let page = report::write(&arguments.results, &arguments.experiments, &arguments.reports)?;
    eprintln!("page of all artifacts: {}", page.display());
    if chosen.len() > 1 {
        eprintln!("{} artifacts in {}", chosen.len() - errors.len(), seconds(clock.elapsed().as_secs_f64()));
    }
    match errors.first() {
        Some((_, first)) => {
            let names: Vec<&str> = errors.iter().map(|(name, _)| name.as_str()).collect();
            eprintln!("not made: {}", names.join(", "));
            Ok(ExitCode::from(first.exit_code()))
        }
        None if failed > 0 => Ok(ExitCode::from(4)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The paper's claims about these artifacts, on the paper's numbers and on ours.
fn claims_about(names: &[&str], arguments: &Arguments, profile: &str) -> Result<String> {
    let claims = report::claims_of(&arguments.experiments)?;
    let about = |claim: &claims::Claim| claim.artifacts.iter().any(|artifact| names.contains(&artifact.as_str()));
    let claims: Vec<claims::Claim> = claims.into_iter().filter(about).collect();
    if claims.is_empty() {
        return Ok(String::new());
    }
    let ours = report::numbers(&arguments.results, profile)?;
    Ok(format!("\nclaims of the paper:\n{}", claims::render(&report::judged(&claims, &ours, profile)?)))
}

/// All files of the folder that describe an artifact, tables before figures, in the paper's order.
fn artifacts(folder: &Path) -> Result<Vec<Artifact>> {
    let listing = std::fs::read_dir(folder).map_err(|error| {
        Error::io("read", folder, &error).hint("run it in a checkout, or name the folder with --experiments")
    })?;
    let mut files: Vec<PathBuf> = listing.filter_map(|item| Some(item.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    let mut all = Vec::new();
    for file in files {
        let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        // Claims are a list, not a map.
        if name == "claims" {
            continue;
        }
        if let Some((description, _)) = Description::read(&file)? {
            all.push(Artifact { name, file, description });
        }
    }
    all.sort_by_key(|artifact| report::order(&artifact.name));
    Ok(all)
}

fn chosen<'a>(all: &'a [Artifact], names: &[String]) -> Result<Vec<&'a Artifact>> {
    if names.iter().any(|name| name == "all") {
        return Ok(all.iter().collect());
    }
    let find = |name: &String| {
        let known = |artifact: &&Artifact| artifact.name == *name || artifact.description.also.as_ref() == Some(name);
        all.iter().find(known).ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|artifact| artifact.name.as_str()).chain(["all"]).collect();
            let error = Error::bad_input(format!("unknown artifact `{name}`"))
                .expected(format!("one of {}", known.join(", ")))
                .found(format!("`{name}`"));
            match nearest(name, known) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error.hint("`ghostlab reproduce` without arguments lists them"),
            }
        })
    };
    names.iter().map(find).collect()
}

/// Title, what is stored, what is left to do, last result.
fn listed(all: &[Artifact], arguments: &Arguments) -> Result<String> {
    let store = arguments.place.look()?;
    let rate = RunRecord::rate(&store);
    let mut rows = vec![["artifact", "what", "profile", "stored", "left", "last made"].map(str::to_owned).to_vec()];
    for artifact in all {
        let mut row = vec![artifact.name.clone(), artifact.description.title.clone()];
        if artifact.description.list.is_some() {
            row.extend(["—", "—", "—", "—"].map(str::to_owned));
        } else {
            match grid_of(artifact, arguments) {
                Ok(grid) => {
                    let (complete, flops) = progress_of(&grid, &store)?;
                    let left = match (complete == grid.cells.len(), flops.zip(rate)) {
                        (true, _) => "nothing".to_owned(),
                        (false, Some((flops, rate))) => format!("about {}", seconds(flops / rate)),
                        (false, None) => format!("{} cells", grid.cells.len() - complete),
                    };
                    let record = folder(artifact, &grid, arguments).join(Provenance::FILE);
                    let made = std::fs::metadata(record).and_then(|file| file.modified()).ok();
                    let profile = grid.profile.clone().unwrap_or_default();
                    row.extend([profile, format!("{complete} of {}", grid.cells.len()), left]);
                    row.push(made.map_or("never".to_owned(), crate::report::utc));
                }
                Err(error) => row.extend(["—".to_owned(), "—".to_owned(), error.one_line(), "—".to_owned()]),
            }
        }
        rows.push(row);
    }
    Ok(columns(&rows, &[]))
}

/// The artifact's grid. What it does not show is not scored.
fn grid_of(artifact: &Artifact, arguments: &Arguments) -> Result<Grid> {
    let mut grid = Grid::load(&artifact.file, arguments.profile.as_deref(), &[], &Methods)?;
    let shows = |metric: &str, average: &str| {
        let metrics = artifact.description.metrics();
        metrics.iter().any(|shown| shown == metric || shown == average)
    };
    grid.evaluate.perplexity.retain(|text| shows(&reproduce::perplexity_of(&text.corpus), "ppl_average"));
    grid.evaluate.tasks.retain(|task| shows(&task.name, "acc_average"));
    let tasks = &grid.evaluate.tasks;
    grid.tasks.retain(|name, _| tasks.iter().any(|task| task.name == *name));
    Ok(grid)
}

/// Complete cells, and the operations that are left; none where texts are not tokenised yet, so that nobody knows.
fn progress_of(grid: &Grid, store: &Store) -> Result<(usize, Option<f64>)> {
    let grid = match exec::generated(grid, store) {
        Ok(grid) => grid,
        // A store that is only looked at makes no texts.
        Err(_) => return Ok((0, None)),
    };
    let plan = Plan::new(&grid, store, Settings::default().batch_tokens)?;
    let state = State::read(&plan, store);
    let complete = plan.variants().filter(|(_, variant)| state.complete(variant)).count();
    let estimate = Estimate::of(&plan, &state, Settings::default().spool_bytes)?;
    let known = plan.backbones.iter().flat_map(BackbonePlan::tokens).all(|key| state.has(key));
    Ok((complete, known.then_some(estimate.left)))
}

fn folder(artifact: &Artifact, grid: &Grid, arguments: &Arguments) -> PathBuf {
    arguments.results.join(&artifact.name).join(grid.profile.as_deref().unwrap_or_default())
}

/// Makes one artifact; how many of its cells failed, and the profile that it was made under.
fn made_one(
    artifact: &Artifact,
    arguments: &Arguments,
    store: &Store,
    stop: &AtomicBool,
) -> Result<(usize, Option<String>)> {
    if let Some(list) = artifact.description.list {
        return made_list(artifact, list, arguments).map(|()| (0, None));
    }
    let (started, clock) = (SystemTime::now(), Instant::now());
    let grid = grid_of(artifact, arguments)?;
    let folder = folder(artifact, &grid, arguments);
    ensure_writable(&folder, &[Provenance::FILE])?;
    // Only the paper's own backbones have its numbers.
    let paper = paper::records(&artifact.name).unwrap_or_default();
    let named = artifact.description.table.as_ref().map(|table| table.named_options.clone()).unwrap_or_default();
    let reporter = progress::reporter();
    let run = |grid: &Grid| -> Result<Outcome> {
        let recorder = Recorder::start(grid, &folder, store, &*reporter)?;
        let outcome = exec::run(grid, arguments.limits.settings(), store, &recorder, stop);
        outcome.inspect_err(|error| recorder.end(error))
    };
    let (open, gated) = if arguments.no_gate { (grid.clone(), Vec::new()) } else { gate(&grid, artifact, &run)? };
    let outcome = with_stopped(run(&open)?, &grid, &gated);
    let numbers = reproduce::numbers(&grid, &outcome, &named);
    let (mut files, mut figures, mut table_view) = (Vec::new(), Vec::new(), None);
    if let Some(table) = &artifact.description.table {
        let view = View::new(&artifact.description, table, &numbers, &paper)?;
        files.extend(written(artifact, &grid, &outcome, &view, &numbers, &folder)?);
        println!("{}", reproduce::screen(&view));
        print!("{}", beside(&view, &numbers));
        table_view = Some(view);
    }
    if let Some(figure) = &artifact.description.figure {
        for (name, drawing) in reproduce::draw(&artifact.description, figure, &outcome, &numbers)? {
            let base = if name.is_empty() { artifact.name.clone() } else { format!("{}-{name}", artifact.name) };
            files.push(put(&folder.join(format!("{base}.svg")), drawing.svg.as_bytes())?);
            files.push(put(&folder.join(format!("{base}.png")), &drawing.png)?);
            let caption = artifact.description.caption.clone().unwrap_or_default();
            let caption = if name.is_empty() { caption } else { format!("{name}. {caption}") };
            figures.push(FigureView { svg: drawing.svg, caption });
        }
    }
    let profile = grid.profile.clone().unwrap_or_default();
    reproduce::Stored::of(&artifact.name, &grid, &outcome, &numbers, &machine::program())?.write(&folder)?;
    let record = made::provenance(&grid, &outcome, made::protocols(&grid, &outcome), &files, started)?;
    record.write(&folder)?;
    let of = reproduce::Made {
        name: &artifact.name,
        profile: &profile,
        file: &artifact.file,
        description: &artifact.description,
        outcome: &outcome,
        numbers: &numbers,
    };
    let mut sheet = reproduce::sheet(of, table_view.as_ref(), figures);
    sheet.artifact.provenance = vec![
        ("program".into(), machine::program()),
        ("command".into(), record.command.join(" ")),
        ("started".into(), record.started.clone()),
        ("finished".into(), record.finished.clone()),
        ("machine".into(), serde_json::to_string(&record.machine).unwrap_or_default()),
        ("cells".into(), grid.cells.len().to_string()),
    ];
    let sheet = serde_json::to_string(&sheet)
        .map_err(|error| Error::job("an artifact has no JSON form").found(error.to_string()))?;
    put(&folder.join(reproduce::Sheet::FILE), sheet.as_bytes())?;
    let written: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    eprintln!(
        "{}: {} cells in {}; written: {}",
        artifact.name,
        grid.cells.len(),
        seconds(clock.elapsed().as_secs_f64()),
        written.join(", ")
    );
    for miss in &gated {
        eprintln!("  {miss}");
    }
    if !gated.is_empty() {
        eprintln!(
            "{}: its pruned cells were not run; --no-gate runs them all the same",
            Miss::backbones(&gated).join(", ")
        );
    }
    let tried = |cell: &Cell| open.cells.contains(cell);
    for result in outcome.cells.iter().filter(|result| result.failure.is_some() && tried(&result.cell)) {
        eprintln!("  {} failed: {}", result.cell, result.failure.as_deref().unwrap_or_default());
    }
    Ok((outcome.failed(), grid.profile))
}

/// The grid without the pruned cells of backbones whose dense numbers are not the paper's, and what those miss.
fn gate(grid: &Grid, artifact: &Artifact, run: &dyn Fn(&Grid) -> Result<Outcome>) -> Result<(Grid, Vec<Miss>)> {
    let paper: Vec<Record> = paper::all()?.into_iter().map(|entry| entry.record).collect();
    let of_paper = |backbone: &String| paper.iter().any(|record| record.condition.backbone == *backbone);
    if !grid.backbones.keys().any(of_paper) {
        return Ok((grid.clone(), Vec::new()));
    }
    let mut dense = grid.clone();
    dense.cells.retain(Cell::is_dense);
    let outcome = run(&dense)?;
    let numbers = reproduce::numbers(&dense, &outcome, &[]);
    let misses = reproduce::gate(&numbers, &paper, &artifact.description.tolerance);
    let stopped = Miss::backbones(&misses);
    let mut open = grid.clone();
    open.cells.retain(|cell| cell.is_dense() || !stopped.contains(&cell.backbone));
    Ok((open, misses))
}

/// The outcome with the cells that the gate stopped, each in its place and as failed: a table says what it lacks.
fn with_stopped(outcome: Outcome, grid: &Grid, misses: &[Miss]) -> Outcome {
    if misses.is_empty() {
        return outcome;
    }
    let mut ran = outcome.cells.into_iter().peekable();
    let result = |cell: &Cell| match ran.next_if(|result| result.cell == *cell) {
        Some(result) => result,
        None => {
            let reason = misses.iter().find(|miss| miss.backbone == cell.backbone).map(ToString::to_string);
            let reason = format!("stopped by the gate: {}", reason.unwrap_or_default());
            CellResult::unmeasured(cell.clone(), grid.backbones[&cell.backbone].layers, Some(reason))
        }
    };
    Outcome { cells: grid.cells.iter().map(result).collect(), ..outcome }
}

/// All forms of a table.
fn written(
    artifact: &Artifact,
    grid: &Grid,
    outcome: &Outcome,
    view: &View,
    numbers: &[Number],
    folder: &Path,
) -> Result<Vec<PathBuf>> {
    let cells: Vec<String> = outcome.cells.iter().map(|result| result.cell.to_string()).collect();
    let profile = grid.profile.as_deref().unwrap_or_default();
    let origin = reproduce::Origin { artifact: &artifact.name, profile, cells: &cells };
    let mut files = reproduce::write_frame(folder, origin, view, numbers)?;
    files.push(put(&folder.join(format!("{}.md", artifact.name)), reproduce::markdown(view).as_bytes())?);
    files.push(put(&folder.join(format!("{}.tex", artifact.name)), reproduce::latex(view, &artifact.name).as_bytes())?);
    Ok(files)
}

/// How the numbers stand to the paper's, where it has them for these backbones.
fn beside(view: &View, numbers: &[Number]) -> String {
    let compared: Vec<_> = view.shown().filter_map(|(_, shown)| Some((shown, shown.beside?))).collect();
    if compared.is_empty() {
        return String::new();
    }
    let same = compared.iter().filter(|(_, beside)| beside.holds()).count();
    let mut text = format!("beside the paper: {same} of {} values are within the tolerance\n", compared.len());
    for (shown, beside) in compared.iter().filter(|(_, beside)| !beside.holds()) {
        let record = &numbers[shown.number].record;
        let of = &record.condition;
        text.push_str(&format!(
            "  {} {}/{} {} {} {}: {}, the paper has {:.2} (± {:.2}): {}\n",
            of.backbone,
            of.depth,
            of.layers,
            of.criterion,
            of.recovery,
            record.metric,
            shown.text,
            beside.paper,
            beside.tolerance,
            beside.verdict()
        ));
    }
    text
}

fn made_list(artifact: &Artifact, list: ListEntry, arguments: &Arguments) -> Result<()> {
    let list: List = match list {
        ListEntry::Methods => reproduce::methods(),
        ListEntry::Checkpoints => reproduce::checkpoints(&arguments.experiments)?,
    };
    let folder = arguments.results.join(&artifact.name);
    ensure_writable(&folder, &[])?;
    put(&folder.join(format!("{}.md", artifact.name)), list.markdown()?.as_bytes())?;
    put(&folder.join(format!("{}.csv", artifact.name)), &list.csv()?)?;
    println!("{}\n\n{}", artifact.description.title, list.screen()?);
    Ok(())
}

fn put(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    use std::io::Write;
    write_atomically(path, |file| file.write_all(bytes).map_err(|error| Error::io("write", path, &error)))?;
    Ok(path.to_owned())
}
