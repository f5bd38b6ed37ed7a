//! `ghostlab cache`: what the store holds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, Subcommand};
use rayon::prelude::*;

use super::grid_args::EngineArgs;
use super::home::Place;
use super::progress;
use super::units::{bytes, columns, seconds};
use crate::error::{self, Error, Result};
use crate::exec::{self, Methods, Settings};
use crate::grid::Grid;
use crate::plan::{KeptKeys, Plan};
use crate::store::{ArtifactKind, Found, InventoryItem, Left, Store};

#[derive(Subcommand)]
pub(super) enum Command {
    /// List what is stored, by kind.
    Ls {
        #[command(flatten)]
        place: Place,
        /// List every artifact.
        #[arg(long)]
        all: bool,
    },
    /// Check every byte of every artifact against its hash. Exit code 5 where something is damaged.
    Verify {
        #[command(flatten)]
        place: Place,
        /// Remove what is damaged, so that the next run makes it anew.
        #[arg(long)]
        repair: bool,
    },
    /// Show what can go, with its size and what it would take to make again; delete it when told to.
    Gc(Gc),
    /// Print the folder of an artifact.
    Path {
        #[command(flatten)]
        place: Place,
        /// The beginning of its key.
        key: String,
    },
}

#[derive(Args)]
pub(super) struct Gc {
    #[command(flatten)]
    place: Place,
    /// Keep what this grid uses, and throw away whatever no kept grid does. Without a grid to keep, only what no program
    /// of this version can use goes: damaged artifacts and those of earlier versions.
    #[arg(long, value_name = "GRID.yaml")]
    keep: Vec<PathBuf>,
    /// Keep what the kept grids use under this profile only; may stand several times. Without it, under each of theirs.
    #[arg(long, value_name = "NAME", requires = "keep")]
    profile: Vec<String>,
    /// Change a value of the kept grids, as `run` does.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "keep")]
    overrides: Vec<String>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Only artifacts of this kind: tokens, activations, selection, operator, scores.
    #[arg(long)]
    kind: Option<String>,
    /// Only artifacts that were written at least so many days ago.
    #[arg(long, value_name = "DAYS")]
    older: Option<f64>,
    /// Delete without asking.
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Ls { place, all } => list(&place.look()?, *all),
        Command::Verify { place, repair: false } => verify(&place.look()?, false),
        Command::Verify { place, repair: true } => verify(&place.store()?, true),
        Command::Gc(gc) => collect(gc),
        Command::Path { place, key } => path(&place.look()?, key),
    }
}

fn list(store: &Store, all: bool) -> Result<ExitCode> {
    let entries = store.entries();
    println!("store {}", store.root().display());
    if all {
        let mut rows = vec![["key", "kind", "bytes", "made in", ""].map(str::to_string).to_vec()];
        rows.extend(entries.iter().map(|entry| {
            vec![entry.hash.clone(), entry.stage.clone(), bytes(entry.bytes()), seconds(entry.seconds()), state(entry)]
        }));
        print!("{}", columns(&rows, &[2, 3]));
    }
    let mut stages: BTreeMap<&str, Vec<&InventoryItem>> = BTreeMap::new();
    entries.iter().for_each(|entry| stages.entry(&entry.stage).or_default().push(entry));
    let mut rows = vec![["kind", "artifacts", "bytes", "made in", ""].map(str::to_string).to_vec()];
    for (stage, entries) in stages {
        let states: BTreeSet<String> = entries.iter().map(|entry| state(entry)).filter(|s| !s.is_empty()).collect();
        rows.push(vec![
            stage.to_string(),
            entries.len().to_string(),
            bytes(entries.iter().map(|entry| entry.bytes()).sum()),
            seconds(entries.iter().map(|entry| entry.seconds()).sum()),
            states.into_iter().collect::<Vec<_>>().join("; "),
        ]);
    }
    print!("{}", columns(&rows, &[1, 2, 3]));
    let journals = store.journals();
    if !journals.is_empty() {
        let size = journals.iter().map(|(_, size)| size).sum();
        println!("unfinished work: {} journals, {}; a run goes on from there", journals.len(), bytes(size));
    }
    for (dead, what) in [(false, "being written"), (true, "left by dead processes; the next run removes them")] {
        let drafts: Vec<Left> = store.drafts_left().into_iter().filter(|draft| draft.dead == dead).collect();
        if !drafts.is_empty() {
            println!("drafts: {}, {}, {what}", drafts.len(), bytes(drafts.iter().map(|draft| draft.bytes).sum()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn state(entry: &InventoryItem) -> String {
    match &entry.found {
        Found::Damaged(_) => "damaged".to_string(),
        Found::Whole(_) if !entry.current() => "of another version".to_string(),
        Found::Whole(_) => String::new(),
    }
}

fn verify(store: &Store, repair: bool) -> Result<ExitCode> {
    let entries = store.entries();
    let damage = |entry: &InventoryItem| match &entry.found {
        Found::Damaged(error) => Some(error.to_string()),
        Found::Whole(artifact) => artifact.verify().err().map(|error| error.to_string()),
    };
    let damages: Vec<(&InventoryItem, String)> =
        entries.par_iter().filter_map(|entry| Some((entry, damage(entry)?))).collect();
    for (_, error) in &damages {
        println!("{error}");
    }
    println!("{} of {} artifacts are whole", entries.len() - damages.len(), entries.len());
    if repair {
        damages.iter().try_for_each(|(entry, _)| store.remove(entry))?;
        println!("{} damaged artifacts were removed; the next run that needs them makes them anew", damages.len());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(if damages.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(5) })
}

fn collect(gc: &Gc) -> Result<ExitCode> {
    if let Some(kind) = &gc.kind {
        let names: Vec<&str> = ArtifactKind::ALL.iter().map(|kind| kind.name()).collect();
        if !names.contains(&kind.as_str()) {
            return Err(Error::bad_input("unknown kind of artifact")
                .expected(format!("one of {}", names.join(", ")))
                .found(format!("`{kind}`")));
        }
    }
    // What the dead left is shown with the rest: opening the store to write to it would sweep it before.
    let store = gc.place.look()?;
    let left: Vec<Left> = store.drafts_left().into_iter().filter(|draft| draft.dead).collect();
    let in_use = store.reserved();
    let kept = kept(gc, &store)?;
    let goes = |entry: &InventoryItem| {
        let damaged = matches!(entry.found, Found::Damaged(_)) || !entry.current();
        let unused = !gc.keep.is_empty() && !kept.has(entry);
        let of_kind = gc.kind.as_ref().is_none_or(|kind| entry.stage.starts_with(&format!("{kind}-v")));
        let old = gc.older.is_none_or(|days| entry.age() >= Duration::from_secs_f64(days.max(0.0) * 86_400.0));
        // With a kind or an age and nothing to keep, these alone decide.
        let chosen = gc.keep.is_empty() && (gc.kind.is_some() || gc.older.is_some());
        (damaged || unused || chosen) && of_kind && old
    };
    let (used, going): (Vec<InventoryItem>, Vec<InventoryItem>) =
        store.entries().into_iter().filter(goes).partition(|entry| in_use.contains(&entry.hash));
    if !used.is_empty() {
        println!("{} artifacts stay because a run that goes on made them or will read them", used.len());
    }
    if going.is_empty() && left.is_empty() {
        println!("nothing to delete");
        return Ok(ExitCode::SUCCESS);
    }
    let mut stages: BTreeMap<&str, (usize, u64, f64)> = BTreeMap::new();
    for entry in &going {
        let sum = stages.entry(&entry.stage).or_default();
        *sum = (sum.0 + 1, sum.1 + entry.bytes(), sum.2 + entry.seconds());
    }
    let mut rows = vec![["to delete", "artifacts", "bytes", "to make again"].map(str::to_string).to_vec()];
    for (stage, (count, size, time)) in &stages {
        rows.push(vec![(*stage).to_string(), count.to_string(), bytes(*size), seconds(*time)]);
    }
    if !left.is_empty() {
        let size = left.iter().map(|draft| draft.bytes).sum();
        rows.push(vec!["drafts of dead processes".into(), left.len().to_string(), bytes(size), String::new()]);
        let sum = stages.entry("drafts").or_default();
        *sum = (sum.0 + left.len(), sum.1 + size, sum.2);
    }
    let total = stages.values().fold((0, 0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1, sum.2 + of.2));
    rows.push(vec!["all".to_string(), total.0.to_string(), bytes(total.1), seconds(total.2)]);
    print!("{}", columns(&rows, &[1, 2, 3]));
    if !gc.yes && !agreed()? {
        println!("nothing was deleted; --yes deletes without asking");
        return Ok(ExitCode::SUCCESS);
    }
    // Sweeps what the dead left.
    let store = gc.place.store()?;
    let (reporter, stop) = (progress::reporter(false), AtomicBool::new(false));
    let _clearing = exec::claim(&store, Store::CLEARING, "clearing up the store", &*reporter, &stop)?;
    for some in going.chunks(64) {
        // A run may have begun since, or gone on to something new.
        let in_use = store.reserved();
        some.iter().filter(|entry| !in_use.contains(&entry.hash)).try_for_each(|entry| store.remove(entry))?;
    }
    println!("deleted");
    Ok(ExitCode::SUCCESS)
}

/// What the kept grids use. A profile that nobody named and that cannot be looked up stops everything: its models may be
/// away for a while, and what was computed with them looks like what no grid uses.
fn kept(gc: &Gc, store: &Store) -> Result<KeptKeys> {
    let mut kept = KeptKeys::default();
    for file in &gc.keep {
        let own = if gc.profile.is_empty() { Grid::profiles(file)? } else { gc.profile.clone() };
        let profiles: Vec<Option<&str>> =
            if own.is_empty() { vec![None] } else { own.iter().map(|name| Some(name.as_str())).collect() };
        for profile in profiles {
            let unknown = |error: Error| match profile {
                Some(name) if gc.profile.is_empty() && error.kind() == error::ErrorKind::Missing => {
                    Error::missing(format!("what the grid uses under its profile `{name}` cannot be looked up"))
                        .at(file.display().to_string())
                        .found(error.one_line())
                        .hint("nothing was deleted; `--profile NAME` keeps what is used under that profile only")
                }
                _ => error,
            };
            let grid = Grid::load(file, profile, &gc.overrides, &Methods).map_err(unknown)?;
            kept.add(&Plan::new(&grid, store, gc.engine.request(), Settings::default().batch_tokens).map_err(unknown)?);
        }
    }
    Ok(kept)
}

/// Asks a person; nobody to ask is no.
fn agreed() -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    print!("delete them? [y/N] ");
    std::io::stdout().flush().ok();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Error::job("cannot read the answer").found(error.to_string()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn path(store: &Store, key: &str) -> Result<ExitCode> {
    let found: Vec<InventoryItem> = store.entries().into_iter().filter(|entry| entry.hash.starts_with(key)).collect();
    match found.as_slice() {
        [one] => {
            println!("{}", one.folder.display());
            Ok(ExitCode::SUCCESS)
        }
        [] => Err(Error::missing("no artifact has such a key")
            .found(format!("`{key}`"))
            .hint("`cache ls --all` lists all keys")),
        several => Err(Error::bad_input(format!("{} artifacts have such a key", several.len()))
            .expected("more digits")
            .found(format!("`{key}`"))),
    }
}
