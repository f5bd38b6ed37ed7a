//! `ghostlab cache`: lists, verifies and cleans up the store.

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use super::answer::cache::{
    ArtifactState, CacheGcAnswer, CacheLsAnswer, CachePathAnswer, CacheVerifyAnswer, FileTotals, KindTotals,
    StageTotals,
};
use super::answer::{self, Answer};
use super::directories::StoreArgs;
use super::grid_args::EngineArgs;
use super::progress;
use super::terminal::{format_bytes, format_columns, format_seconds};
use crate::cluster::{self, FrozenProgram};
use crate::error::{self, Error, Result};
use crate::grid::{AxisChoice, EntryKind, GridFile};
use crate::model::EngineRequest;
use crate::pipeline::exec::{self, RunSettings};
use crate::pipeline::identity::ComputeId;
use crate::pipeline::plan::{KeepSet, Plan, engines_of};
use crate::pipeline::stage;
use crate::quantity::{Days, pluralize};
use ghostlab_store::{AbandonedDraft, InventoryItem, ObjectKind, Store};

#[derive(Subcommand)]
pub(super) enum Command {
    /// List the stored objects by kind.
    Ls {
        #[command(flatten)]
        store: StoreArgs,
        /// List every object.
        #[arg(long)]
        all: bool,
    },
    /// Check every stored byte against its hash.
    ///
    /// Exit code 5 if anything is damaged.
    Verify {
        #[command(flatten)]
        store: StoreArgs,
        /// Remove damaged objects, which the next run recomputes, and repair `store.json`.
        #[arg(long)]
        repair: bool,
    },
    /// Show which objects can be deleted, and delete them.
    ///
    /// Shows the size and the recompute time of the objects. Asks for confirmation before deleting, unless --yes is
    /// given.
    Gc(Gc),
    /// Print the folder of an object.
    Path {
        #[command(flatten)]
        store: StoreArgs,
        /// Beginning of the object key.
        key: String,
    },
}

#[derive(Args)]
pub(super) struct Gc {
    #[command(flatten)]
    store: StoreArgs,
    /// Keep only the objects that this grid uses; can be repeated.
    ///
    /// Objects for every engine and float type are kept. With `--engine`, `--device` or `--dtype`, only objects for the
    /// given engine, device or float type are kept. Without --keep, --kind or --older, only damaged objects are
    /// deleted. Objects from other program versions are kept; see --stage.
    #[arg(long, value_name = "GRID.yaml")]
    keep: Vec<PathBuf>,
    /// Keep only objects used with this profile; can be repeated [default: all].
    #[arg(long, value_name = "NAME", requires = "keep")]
    profile: Vec<String>,
    /// Override a value in the --keep grids, as in `run`.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "keep")]
    overrides: Vec<String>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Delete only objects of this kind.
    #[arg(long, value_parser = PossibleValuesParser::new(stage::KINDS.map(ObjectKind::name)))]
    kind: Option<String>,
    /// Delete only objects of this kind and version, e.g. `scores-v3`.
    ///
    /// `cache ls` lists the kinds and versions. This option is the only way to delete objects of older versions.
    #[arg(long, value_name = "KIND-vN", conflicts_with_all = ["keep", "kind"])]
    stage: Option<String>,
    /// Delete only objects written at least this many days ago.
    #[arg(long, value_name = "DAYS")]
    older: Option<Days>,
    /// Delete without asking.
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Ls { store, all } => {
            answer::print_answer(CacheLsAnswer::new(&store.open_read_only()?), Answer::CacheLs, |listing| {
                print_listing(listing, *all);
            })
        }
        Command::Verify { store, repair: false } => verify(&store.open_read_only()?, false, None),
        Command::Verify { store, repair: true } => {
            let rewritten_marker = store.repair_marker()?;
            verify(&store.open(None)?, true, rewritten_marker)
        }
        Command::Gc(gc) => collect_garbage(gc),
        Command::Path { store, key } => {
            answer::print_answer(find_object(&store.open_read_only()?, key)?, Answer::CachePath, |answer| {
                println!("{}", answer.folder.display());
            })
        }
    }
}

fn print_listing(listing: &CacheLsAnswer, all: bool) {
    println!("store {}", listing.store);
    if all {
        let mut rows = vec![["key", "kind", "bytes", "compute time", ""].map(str::to_string).to_vec()];
        rows.extend(listing.artifacts.iter().map(|artifact| {
            vec![
                artifact.key.clone(),
                artifact.stage.clone(),
                format_bytes(artifact.bytes),
                format_seconds(artifact.seconds),
                state_label(artifact.state).to_owned(),
            ]
        }));
        print!("{}", format_columns(&rows, &[2, 3]));
    }
    let mut rows = vec![["kind", "objects", "bytes", "compute time", ""].map(str::to_string).to_vec()];
    for StageTotals { sum, states } in &listing.stages {
        let states: Vec<&str> =
            states.iter().map(|found| state_label(*found)).filter(|text| !text.is_empty()).collect();
        rows.push([format_totals(sum), vec![states.join("; ")]].concat());
    }
    print!("{}", format_columns(&rows, &[1, 2, 3]));
    let CacheLsAnswer { journals, drafts, dead_drafts, programs, .. } = listing;
    let journal_count = pluralize(journals.count, "journal");
    for (what, count, totals, note) in [
        ("unfinished work", journal_count, journals, " (the next run resumes from it)"),
        ("drafts", drafts.count.to_string(), drafts, ", being written"),
        ("drafts", dead_drafts.count.to_string(), dead_drafts, ", left by dead processes (the next run removes them)"),
        (
            "programs of submitted jobs",
            programs.count.to_string(),
            programs,
            " (`cache gc` removes the programs of finished jobs)",
        ),
    ] {
        if totals.count > 0 {
            println!("{what}: {count}, {}{note}", format_bytes(totals.bytes));
        }
    }
}

/// Formats the kind, number, size and compute time of objects as cells of a row.
fn format_totals(sum: &KindTotals) -> Vec<String> {
    let KindTotals { stage, artifacts, bytes, seconds } = sum;
    vec![stage.clone(), artifacts.to_string(), format_bytes(*bytes), format_seconds(*seconds)]
}

fn state_label(state: ArtifactState) -> &'static str {
    match state {
        ArtifactState::Damaged => "damaged",
        ArtifactState::OtherVersion => "older format (delete with `cache gc --stage`)",
        ArtifactState::LaterVersion => "newer format",
        ArtifactState::Whole => "",
    }
}

fn verify(store: &Store, repair: bool, rewritten_marker: Option<PathBuf>) -> Result<ExitCode> {
    let verified = CacheVerifyAnswer::new(store, repair, rewritten_marker)?;
    let code = if verified.is_intact() { ExitCode::SUCCESS } else { ExitCode::from(5) };
    answer::print_answer(verified, Answer::CacheVerify, |answer| {
        if let Some(path) = &answer.mended {
            println!("rewrote {}, which was missing or damaged", path.display());
        }
        answer.damaged.iter().for_each(|damaged| println!("{}", damaged.error));
        answer.strays.iter().chain(&answer.records).for_each(|file| println!("{}", file.error));
        let verb = if answer.artifacts == 1 { "is" } else { "are" };
        let intact = answer.artifacts - answer.damaged.len();
        println!("{intact} of {} {verb} intact", pluralize(answer.artifacts, "object"));
        if repair {
            let count = answer.damaged.len();
            println!("removed {} (recomputed by the next run that needs them)", pluralize(count, "damaged object"));
            let strays = answer.strays.iter().filter(|stray| stray.removed).count();
            if strays > 0 {
                println!("removed {} of unknown origin from the store", pluralize(strays, "file"));
            }
            let records = answer.records.iter().filter(|record| record.removed).count();
            if records > 0 {
                println!("removed {} of runs and plans", pluralize(records, "damaged record"));
            }
        }
    })?;
    Ok(code)
}

fn collect_garbage(gc: &Gc) -> Result<ExitCode> {
    // Open the store only for reading. Opening it for writing would remove the drafts (partially written objects) of
    // dead processes before they are listed.
    let store = gc.store.open_read_only()?;
    let dead_drafts: Vec<AbandonedDraft> = store.abandoned_drafts().into_iter().filter(|draft| draft.dead).collect();
    let programs = deletable_programs(gc, &store);
    let in_use = store.reserved();
    let entries = store.entries();
    let kept_objects = KeptObjects::new(gc, &store, &entries)?;
    for absent in &kept_objects.absent_profiles {
        note!("{absent}: none of its backbones is on this machine; keeping all objects that it might use");
    }
    let (used, going): (Vec<InventoryItem>, Vec<InventoryItem>) = entries
        .into_iter()
        .filter(|entry| is_evicted(gc, &kept_objects, entry))
        .partition(|entry| in_use.contains(&entry.hash));
    let mut clearing = CacheGcAnswer {
        store: store.root().display().to_string(),
        in_use: used.len(),
        going: KindTotals::by_kind(&going),
        dead_drafts: FileTotals::from_sizes(dead_drafts.iter().map(|draft| draft.bytes)),
        programs: FileTotals::from_sizes(programs.iter().map(|program| program.bytes)),
        deleted: false,
    };
    let nothing = going.is_empty() && dead_drafts.is_empty() && programs.is_empty();
    if !answer::is_json() {
        print_deletions(&clearing);
    }
    if nothing || (!gc.yes && (answer::is_json() || !confirm()?)) {
        return answer::print_answer(clearing, Answer::CacheGc, |_| {
            if !nothing {
                println!("nothing was deleted; use --yes to delete without asking");
            }
        });
    }
    // Opening the store for writing removes the drafts of dead processes.
    let store = gc.store.open(None)?;
    let reporter = progress::reporter(false);
    let stop = AtomicBool::new(false);
    let clearing_up = exec::lease(&store, Store::GC_LEASE, "cleaning up the store", &*reporter, &stop)?;
    for batch in going.chunks(64) {
        // Runs may have started or reserved more objects since the objects to delete were listed.
        let in_use = store.reserved();
        if !clearing_up.is_held() {
            return Err(Error::job("the cleanup lost its lease while it was suspended")
                .at(store.root().display().to_string())
                .hint("run the same command again to delete the remaining objects"));
        }
        store.remove_all(batch.iter().filter(|entry| !in_use.contains(&entry.hash)))?;
    }
    // Jobs submitted in the meantime may need some of the program copies.
    let still = deletable_programs(gc, &store);
    programs.iter().filter(|program| still.contains(program)).try_for_each(FrozenProgram::remove)?;
    clearing.deleted = true;
    answer::print_answer(clearing, Answer::CacheGc, |_| println!("deleted"))
}

/// Returns whether `cache gc` deletes an object, provided that no run uses it.
fn is_evicted(gc: &Gc, kept: &KeptObjects<'_>, entry: &InventoryItem) -> bool {
    // Keep objects that were written by a newer program version or, with `--keep`, computed by an engine that this
    // version does not support.
    if entry.is_newer_version()
        || (!gc.keep.is_empty() && engines_of(entry).iter().any(|engine| kept.unknown_engines.contains(engine)))
    {
        return false;
    }
    // `--stage` selects objects by kind and version, even those written by earlier program versions. `--older` still
    // applies.
    let old = gc.older.is_none_or(|days| entry.age() >= days.duration());
    if let Some(stage) = &gc.stage {
        return entry.stage == *stage && old;
    }
    if entry.is_older_version() {
        return false;
    }
    let damaged = entry.object.is_err();
    let is_known = kept.absent_profiles.is_empty() || kept.used.has_all_inputs(entry);
    let unused = !gc.keep.is_empty() && !kept.used.has(entry) && is_known;
    let has_kind = gc.kind.as_ref().is_none_or(|kind| entry.stage.starts_with(&format!("{kind}-v")));
    // With `--kind` or `--older` but without `--keep`, these filters alone select the objects.
    let chosen = gc.keep.is_empty() && (gc.kind.is_some() || gc.older.is_some());
    (damaged || unused || chosen) && has_kind && old
}

/// Returns the copies of the program, made for scheduler jobs, that can be deleted. With `--kind`, returns none,
/// because they have no kind.
fn deletable_programs(gc: &Gc, store: &Store) -> Vec<FrozenProgram> {
    match gc.kind {
        None => cluster::unused_programs(store)
            .into_iter()
            .filter(|program| gc.older.is_none_or(|days| program.age() >= days.duration()))
            .collect(),
        Some(_) => Vec::new(),
    }
}

fn print_deletions(clearing: &CacheGcAnswer) {
    if clearing.in_use > 0 {
        println!("keeping {} used by running jobs", pluralize(clearing.in_use, "object"));
    }
    let others =
        [(&clearing.dead_drafts, "drafts of dead processes"), (&clearing.programs, "programs of finished jobs")];
    if clearing.going.is_empty() && others.iter().all(|(size, _)| size.count == 0) {
        println!("nothing to delete");
        return;
    }
    let mut rows = vec![["to delete", "objects", "bytes", "recompute time"].map(str::to_string).to_vec()];
    rows.extend(clearing.going.iter().map(format_totals));
    for (size, what) in others.into_iter().filter(|(size, _)| size.count > 0) {
        rows.push(vec![what.into(), size.count.to_string(), format_bytes(size.bytes), String::new()]);
    }
    let [drafts, programs] = others.map(|(size, _)| size);
    let count = drafts.count + programs.count + clearing.going.iter().map(|object| object.artifacts).sum::<usize>();
    let size = drafts.bytes + programs.bytes + clearing.going.iter().map(|object| object.bytes).sum::<u64>();
    let time = clearing.going.iter().map(|object| object.seconds).sum();
    rows.push(vec!["all".to_string(), count.to_string(), format_bytes(size), format_seconds(time)]);
    print!("{}", format_columns(&rows, &[1, 2, 3]));
}

/// Objects used by the grids passed to `--keep`.
struct KeptObjects<'a> {
    gc: &'a Gc,
    store: &'a Store,
    /// Engines for which objects are kept.
    requests: Vec<EngineRequest>,
    used: KeepSet,
    /// Engines, with their float types, that occur in the store but are not supported by this program.
    unknown_engines: BTreeSet<ComputeId>,
    /// Descriptions of the profiles that have no backbone on this machine, so that the objects they use are unknown.
    absent_profiles: Vec<String>,
}

impl<'a> KeptObjects<'a> {
    /// Collects the objects that the grids use. If no engine is given, this covers every engine in the store.
    ///
    /// # Errors
    /// Fails if inputs of a profile are missing, because its objects would be treated as unused. Without `--profile`, a
    /// profile that has no backbone on this machine is added to `absent_profiles` instead, and objects whose inputs are
    /// unknown are kept.
    fn new(gc: &'a Gc, store: &'a Store, entries: &[InventoryItem]) -> Result<Self> {
        let request = gc.engine.request();
        let (known, unknown_engines): (BTreeSet<ComputeId>, BTreeSet<ComputeId>) =
            entries.iter().flat_map(engines_of).partition(|engine| engine.request().is_some());
        let mut requests = vec![request];
        if request == EngineRequest::default() {
            requests.extend(known.iter().filter_map(ComputeId::request));
        }
        let used = KeepSet::default();
        let mut kept_objects = Self { gc, store, requests, used, unknown_engines, absent_profiles: Vec::new() };
        for file in &gc.keep {
            let file = GridFile::read(file)?;
            let requested = if gc.profile.is_empty() { file.profiles() } else { gc.profile.clone() };
            let default = requested.is_empty().then_some(None);
            for profile in requested.iter().map(|name| Some(name.as_str())).chain(default) {
                kept_objects.add(&file, profile)?;
            }
        }
        Ok(kept_objects)
    }

    /// Adds the objects that a profile of a grid uses.
    fn add(&mut self, file: &GridFile, profile: Option<&str>) -> Result<()> {
        let error = match self.add_plans(file, profile) {
            Err(error) if error.kind() == error::ErrorKind::Missing && self.gc.profile.is_empty() => error,
            done => return done,
        };
        match profile {
            Some(name) if has_no_backbone(file, name, &self.gc.overrides)? => {
                self.absent_profiles.push(format!("profile `{name}` of {}", file.path().display()));
                Ok(())
            }
            Some(name) => Err(missing_profile_error(self.gc, file, name, &error)),
            None => Err(error),
        }
    }

    fn add_plans(&mut self, file: &GridFile, profile: Option<&str>) -> Result<()> {
        let grid = file.grid(profile, &self.gc.overrides)?;
        for &request in &self.requests {
            let plan = Plan::new(&grid, self.store, RunSettings::with_engine(request))?;
            self.used.add(&plan, self.store);
        }
        Ok(())
    }
}

/// Returns whether none of a profile's backbones are on this machine.
fn has_no_backbone(file: &GridFile, profile: &str, overrides: &[String]) -> Result<bool> {
    let no_evaluations = AxisChoice { text: &|_| false, task: &|_| false, latency: false };
    let list = file.needs(Some(profile), overrides, &no_evaluations)?;
    let resolver = list.resolver();
    Ok(list.needs.iter().filter(|need| need.kind == EntryKind::Backbone).all(|need| need.find(&resolver).is_err()))
}

fn missing_profile_error(gc: &Gc, file: &GridFile, name: &str, error: &Error) -> Error {
    let here: Vec<String> = file
        .profiles()
        .into_iter()
        .filter(|profile| file.grid(Some(profile), &gc.overrides).is_ok())
        .map(|profile| format!("--profile {profile}"))
        .collect();
    let hint = match here.as_slice() {
        [] => "provide the inputs, or select a profile with `--profile NAME`".to_owned(),
        here => format!("add `{}` to keep only the objects of the other profiles", here.join(" ")),
    };
    Error::missing(format!("the inputs of profile `{name}` are missing, so the objects it uses are unknown"))
        .at(file.path().display())
        .found(&error.parts().what)
        .hint(format!("{hint}; nothing was deleted"))
}

/// Asks the user for confirmation. Returns false if stdin is not a terminal.
fn confirm() -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    print!("delete them? [y/N] ");
    std::io::stdout().flush().ok();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Error::job("cannot read the confirmation").found(error.to_string()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn find_object(store: &Store, key: &str) -> Result<CachePathAnswer> {
    let mut found: Vec<InventoryItem> =
        store.entries().into_iter().filter(|entry| entry.hash.starts_with(key)).collect();
    match (found.pop(), found.len()) {
        (Some(InventoryItem { hash: key, stage, folder, .. }), 0) => Ok(CachePathAnswer { key, stage, folder }),
        (None, _) => Err(Error::missing("unknown object key")
            .found(format!("`{key}`"))
            .hint("run `ghostlab cache ls --all` to list all keys")),
        (_, others) => Err(Error::bad_input(format!("{} objects match the key", others + 1))
            .expected("a longer key prefix")
            .found(format!("`{key}`"))),
    }
}
