//! `ghostlab fetch TARGET…`: what artifacts, grids or single names need from the hub.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Args;

use super::answer::done::{Fetched, HubFile, Refused, shown};
use super::answer::{self, Answer};
use super::home::{self, StoreArgs};
use super::out::{bytes, columns, seconds};
use super::{candidates, progress, stop, work};
use crate::error::{Error, Result};
use crate::grid::{InputList, Need};
use crate::hub::{Hub, HubSettings, Lock, Plan, PlannedFile, PlannedRepo, RepoKind, Source, Want, Wanted};
use crate::installed;
use crate::quantity::counted;
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    /// `table2`, `figure1`, …, or `all`; a grid file; or `org/name[@revision]`, `datasets/org/name[@revision]`.
    #[arg(required = true, value_name = "TARGET", add = candidates::targets())]
    targets: Vec<String>,
    /// The profile of artifacts and grids: `paper` needs the paper's models and data.
    #[arg(long, value_name = "NAME", add = candidates::profiles())]
    profile: Option<String>,
    /// Change a value of the grids, for example `--set backbone=llama-3-8b`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// For `org/name`: only files matching this pattern. The default for a model is config, tokenizer and weights; a
    /// dataset has no default.
    #[arg(long = "files", value_name = "PATTERN")]
    files: Vec<String>,
    /// Pin instead: write commit, size and SHA-256 of every file, as the hub has them now, into `hub.lock`. Only small
    /// files are brought for it.
    #[arg(long)]
    lock: bool,
    /// List files and bytes; bring and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print every event as a line of JSON instead of progress.
    #[arg(long, conflicts_with = "json")]
    events: bool,
    /// The folder of the artifacts' files; by default $GHOSTLAB_EXPERIMENTS, or `experiments` of the checkout.
    #[arg(long, value_name = "FOLDER")]
    experiments: Option<PathBuf>,
    #[command(flatten)]
    place: StoreArgs,
}

/// Hint for pinning.
const AGAIN: &str = "the same command with --lock";

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut wants: BTreeMap<PathBuf, Vec<Want>> = BTreeMap::new();
    for target in &arguments.targets {
        for (lock, want) in wanted(target, arguments)? {
            wants.entry(lock).or_default().push(want);
        }
    }
    if wants.is_empty() {
        note!("nothing to fetch: everything lies where its `path` says, or comes with the program");
        return answer::show(Fetched::default(), Answer::Fetch, |_| {});
    }
    let hub = Hub::new(HubSettings::from_env()?);
    let stop = stop::on_ctrl_c("stopping; what came is kept")?;
    let store = arguments.place.look_anyway(None).ok().filter(|store| store.root().join("store.json").is_file());
    let mut code = ExitCode::SUCCESS;
    let mut told = Fetched { cache: shown(hub.cache().root()), ..Fetched::default() };
    for (lock_file, wants) in &wants {
        let reporter = progress::fetch_reporter(arguments.events);
        if arguments.lock {
            let plan = hub.plan(wants, &Lock::default(), &*reporter, &stop)?;
            match arguments.dry_run {
                true => show_listed(&plan, &hub),
                false => {
                    pin(&hub, &plan, lock_file, &*reporter, &stop)?;
                    told.locks.push(shown(lock_file));
                }
            }
            told.files.extend(hub_files(&plan));
            continue;
        }
        let plan = hub.plan(wants, &Lock::read(lock_file)?, &*reporter, &stop)?;
        told.files.extend(hub_files(&plan));
        if arguments.dry_run {
            show_listed(&plan, &hub);
            tell_unpinned(&plan, lock_file, AGAIN);
            continue;
        }
        let clock = Instant::now();
        // With a store it is remembered: the run that follows need not hash it again.
        let fetched = hub.fetch(&plan, Some(&work::hash(store.as_ref())), &*reporter, &stop);
        drop(reporter);
        let fetched = fetched?;
        note!(
            "{} fetched ({} in {}), {} {} cached; all are in {}",
            counted(fetched.brought, "file"),
            bytes(fetched.bytes),
            seconds(clock.elapsed().as_secs_f64()),
            fetched.cached,
            if fetched.cached == 1 { "was" } else { "were" },
            hub.cache().root().display()
        );
        tell_unpinned(&plan, lock_file, AGAIN);
        (told.brought, told.bytes) = (told.brought + fetched.brought, told.bytes + fetched.bytes);
        for (file, error) in &fetched.failures {
            eprintln!("{file}: {error}");
            told.failures.push(Refused::new(file.to_string(), error));
        }
        code = fetched.failures.first().map_or(code, |(_, error)| ExitCode::from(error.exit_code()));
    }
    if !arguments.events {
        answer::show(told, Answer::Fetch, |_| {})?;
    }
    Ok(code)
}

/// Prints the list of files for people.
fn show_listed(plan: &Plan, hub: &Hub) {
    if !answer::json() {
        print!("{}", listed(plan, hub));
    }
}

fn hub_files(plan: &Plan) -> Vec<HubFile> {
    let file = |(repo, file): (&PlannedRepo, &PlannedFile)| HubFile {
        file: format!("{}/{}", repo.source.repo, file.name),
        bytes: file.bytes,
        cached: file.cached.is_some(),
        commit: repo.commit.to_string(),
        pinned: repo.locked,
    };
    plan.files().map(file).collect()
}

/// Returns a target's wanted files with the lock that pins each.
fn wanted(target: &str, arguments: &Arguments) -> Result<Vec<(PathBuf, Want)>> {
    let file = Path::new(target);
    let profile = arguments.profile.as_deref();
    let overrides = &arguments.overrides;
    match (file.is_file(), target.ends_with(".yaml")) {
        (false, false) if target.contains('/') => {
            return Ok(vec![(lock_in_use(arguments), named(target, &arguments.files)?)]);
        }
        (false, true) => {
            return Err(Error::missing("the grid is not there").at(target).hint("check the path for a typing error"));
        }
        _ => {}
    }
    let experiments = || home::experiments(arguments.experiments.as_ref());
    let needs = work::of_target(target, profile, overrides, experiments)?;
    // Files already at its path are not fetched, but they are pinned, so that a copy can be distinguished from another
    // model.
    let want = |need: &Need| if arguments.lock { need.want.clone() } else { need.to_fetch().cloned() };
    let in_use = (arguments.lock && !file.is_file()).then(|| lock_in_use(arguments));
    let of = |needs: &InputList| {
        let lock = in_use.clone().unwrap_or_else(|| needs.lock_file.clone());
        needs.needs.iter().filter_map(want).map(move |want| (lock.clone(), want)).collect::<Vec<_>>()
    };
    Ok(needs.iter().flat_map(of).collect())
}

/// Returns the lock of the experiments in use, or of the current folder. The installed experiments are never written.
fn lock_in_use(arguments: &Arguments) -> PathBuf {
    let folder = home::experiments(arguments.experiments.as_ref()).ok();
    let folder = folder.filter(|folder| folder.is_dir() && installed::experiments().as_ref() != Some(folder));
    folder.unwrap_or_default().join(Lock::FILE)
}

fn named(target: &str, files: &[String]) -> Result<Want> {
    let source = Source::parse(target)?;
    if !files.is_empty() {
        return Ok(Want { source, files: files.iter().map(Wanted::needed).collect() });
    }
    match source.repo.kind() {
        RepoKind::Model => Ok(Want::backbone(source)),
        RepoKind::Dataset => Err(Error::bad_input("which files of the dataset is not said")
            .at(target)
            .expected("--files PATTERN, once or several times")
            .found("none")
            .hint("`*` is any part of a name, `**` any folders; --dry-run lists what a pattern means")),
    }
}

/// Says which repositories were taken as they are today, and what pins them.
fn tell_unpinned(plan: &Plan, lock_file: &Path, pins: &str) {
    let unpinned: Vec<String> = plan.unpinned().map(ToString::to_string).collect();
    if !unpinned.is_empty() {
        let lock = lock_file.display();
        note!("not pinned in {lock}, so taken as they are today: {}; {pins} pins them", unpinned.join(", "));
    }
}

/// Formats one line per file, and the sums.
fn listed(plan: &Plan, hub: &Hub) -> String {
    let mut rows = vec![["file", "bytes", "state", "commit"].map(str::to_owned).to_vec()];
    for (repo, file) in plan.files() {
        let state = match (&file.cached, file.here) {
            (Some(_), _) => "cached".to_owned(),
            (None, 0) => "to fetch".to_owned(),
            (None, here) => format!("to fetch, {} are here", bytes(here)),
        };
        let size = file.bytes.map_or("unknown".to_owned(), bytes);
        let pinned = if repo.locked { "" } else { ", not pinned" };
        rows.push(vec![
            format!("{}/{}", repo.source.repo, file.name),
            size,
            state,
            format!("{}{pinned}", repo.commit.short()),
        ]);
    }
    let all: u64 = plan.files().filter_map(|(_, file)| file.bytes).sum();
    format!(
        "{}{}, {}; {} to fetch into {}\n",
        columns(&rows, &[1]),
        counted(rows.len() - 1, "file"),
        bytes(all),
        bytes(plan.left()),
        hub.cache().root().display()
    )
}

/// Writes what a plan pins, and says what changed.
fn pin(hub: &Hub, plan: &Plan, lock_file: &Path, reporter: &dyn crate::hub::Reporter, stop: &AtomicBool) -> Result<()> {
    let pinned = hub.pin(plan, reporter, stop)?;
    let mut lock = Lock::read(lock_file)?;
    for (source, repo) in pinned {
        let files = counted(repo.files.len(), "file");
        match lock.get(&source).map(|known| known.commit.clone()) {
            Some(known) if known == repo.commit => note!("{source}: {files} at {known}, as before"),
            Some(known) => note!("{source}: {files}, {known} → {}", repo.commit),
            None => note!("{source}: {files} at {}", repo.commit),
        }
        lock.pin(&source, repo);
    }
    lock.write(lock_file)?;
    note!("written: {}", lock_file.display());
    Ok(())
}

/// Brings what some grids need, on the way to running them.
///
/// # Errors
/// The first thing that cannot be brought.
pub(super) fn bring(needs: &[InputList], store: &Store, events: bool, stop: &AtomicBool) -> Result<()> {
    let hub = Hub::new(HubSettings::from_env()?);
    for needs in needs {
        let wants: Vec<Want> = needs.needs.iter().filter_map(Need::to_fetch).cloned().collect();
        if wants.is_empty() {
            continue;
        }
        let reporter = progress::fetch_reporter(events);
        let plan = hub.plan(&wants, &Lock::read(&needs.lock_file)?, &*reporter, stop)?;
        let fetched = hub.fetch(&plan, Some(&work::hash(store)), &*reporter, stop)?;
        drop(reporter);
        tell_unpinned(&plan, &needs.lock_file, &format!("`{} --lock`", needs.around().command()));
        if let Some((file, error)) = fetched.failures.into_iter().next() {
            return Err(error.at(file));
        }
    }
    Ok(())
}
