//! Claims on a file system over the network, played in a time of its own: what a client has seen it believes for a minute,
//! so that what others make, rename or remove shows late; links are made and said to have failed; clocks differ. Nothing may
//! be wrong or lost; work may be done twice, and is counted. (A lock that lets everybody in changes nothing: none is asked.)
#![allow(clippy::disallowed_macros, reason = "figures for docs/cluster.md")]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicUsize;

use super::*;

type Bytes = Arc<Mutex<(Vec<u8>, Duration)>>;

/// What a client saw of a file, and when.
type Seen = (Duration, Option<Vec<u8>>);

/// What the server has: a file may have several names.
#[derive(Default)]
struct Server {
    files: Mutex<BTreeMap<PathBuf, Bytes>>,
    /// Milliseconds.
    clock: AtomicU64,
    operations: AtomicUsize,
}

impl Server {
    fn now(&self) -> Duration {
        Duration::from_millis(self.clock.load(Relaxed))
    }
}

/// One machine's view of it.
struct Client {
    server: Arc<Server>,
    /// For so long it believes what it has seen.
    cache: Duration,
    /// Of so many links one is made and said to exist; 0: none.
    lies: u64,
    links: AtomicU64,
    /// How far its clock is ahead.
    ahead: Duration,
    seen: Mutex<HashMap<PathBuf, Seen>>,
    lists: Mutex<HashMap<PathBuf, (Duration, Vec<String>)>>,
}

impl Client {
    fn new(server: &Arc<Server>, cache: u64, lies: u64, ahead: u64) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(server),
            cache: Duration::from_secs(cache),
            lies,
            links: AtomicU64::new(0),
            ahead: Duration::from_secs(ahead),
            seen: Mutex::default(),
            lists: Mutex::default(),
        })
    }

    fn asked(&self) {
        self.server.operations.fetch_add(1, Relaxed);
    }

    /// What it has done itself, it sees at once.
    fn changed(&self, path: &Path) {
        lock(&self.seen).remove(path);
        path.parent().map(|folder| lock(&self.lists).remove(folder));
    }

    fn look(&self, path: &Path) -> Option<Vec<u8>> {
        let now = self.server.now();
        if let Some((at, seen)) = lock(&self.seen).get(path).filter(|(at, _)| now < *at + self.cache) {
            let _ = at;
            return seen.clone();
        }
        self.asked();
        let found = lock(&self.server.files).get(path).map(|file| lock(file).0.clone());
        lock(&self.seen).insert(path.to_owned(), (now, found.clone()));
        found
    }
}

impl Disk for Client {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.look(path).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.asked();
        self.changed(path);
        let mut files = lock(&self.server.files);
        if files.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        files.insert(path.to_owned(), Arc::new(Mutex::new((bytes.to_vec(), self.server.now()))));
        Ok(())
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.asked();
        self.changed(path);
        let files = lock(&self.server.files);
        let file = files.get(path).ok_or(ErrorKind::NotFound)?;
        *lock(file) = (bytes.to_vec(), self.server.now());
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.asked();
        let mut files = lock(&self.server.files);
        let file = Arc::clone(files.get(from).ok_or(ErrorKind::NotFound)?);
        if files.contains_key(to) {
            // What the server said, the client knows; what stands there it may still have seen otherwise.
            return Err(ErrorKind::AlreadyExists.into());
        }
        files.insert(to.to_owned(), file);
        self.changed(to);
        // The answer was lost, and the question is asked again.
        let number = self.links.fetch_add(1, Relaxed) + 1;
        let lie = self.lies > 0 && number.is_multiple_of(self.lies);
        if lie { Err(ErrorKind::AlreadyExists.into()) } else { Ok(()) }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.asked();
        let mut files = lock(&self.server.files);
        let file = files.remove(from).ok_or(ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        [from, to].iter().for_each(|path| self.changed(path));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.asked();
        self.changed(path);
        lock(&self.server.files).remove(path).map(drop).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn exists(&self, path: &Path) -> bool {
        self.look(path).is_some()
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        let now = self.server.now();
        if let Some((_, names)) = lock(&self.lists).get(folder).filter(|(at, _)| now < *at + self.cache) {
            return names.clone();
        }
        self.asked();
        let files = lock(&self.server.files);
        let own = files.keys().filter(|path| path.parent() == Some(folder));
        let names: Vec<String> = own.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
        lock(&self.lists).insert(folder.to_owned(), (now, names.clone()));
        names
    }

    fn age(&self, path: &Path, _folder: &Path) -> Option<Duration> {
        self.asked();
        let changed = lock(&self.server.files).get(path).map(|file| lock(file).1)?;
        Some(self.server.now().saturating_sub(changed))
    }

    fn now(&self) -> Duration {
        self.server.now() + self.ahead + PATIENCE * 4
    }
}

/// A worker on a machine of its own.
struct Machine {
    disk: Arc<Client>,
    worker: Worker,
    heart: Heart,
    work: Option<(usize, Lease)>,
}

fn machine(server: &Arc<Server>, number: usize, cache: u64, lies: u64) -> Machine {
    let disk = Client::new(server, cache, lies, 7 * number as u64);
    let owner = Owner { pid: 5, system: Some(format!("machine {number}")), started: Some(1) };
    let process = Process { id: format!("5-{:012x}", number * 7919), owner, beat: 0 };
    let worker = Worker::begin(Path::new("/store"), process, Arc::<Client>::clone(&disk)).unwrap();
    Machine { heart: worker.heart_of(), disk, worker, work: None }
}

/// What came of a number of jobs.
#[derive(Debug)]
struct Outcome {
    jobs: usize,
    /// How often a job was done.
    done: usize,
    deaths: usize,
    seconds: u64,
}

/// Draws as everywhere in the tests: the same each time.
struct Draws(u64);

impl Draws {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }
}

/// `machines` workers do `jobs` jobs of half a minute each; of a hundred jobs so many are the last of their worker, for which
/// another one comes.
fn play(machines: usize, jobs: usize, cache: u64, lies: u64, deaths_in_100: u64, seed: u64) -> Outcome {
    let server = Arc::new(Server::default());
    let place = |job: usize| PathBuf::from(format!("/store/done/{job}"));
    let bytes = |job: usize| format!("result {job}").into_bytes();
    let mut all: Vec<Machine> = (0..machines).map(|number| machine(&server, number, cache, lies)).collect();
    // When each acts, and when each beats, in milliseconds.
    let (mut acts, mut beats): (Vec<u64>, Vec<u64>) = (vec![0; machines], vec![15_000; machines]);
    let (mut draws, mut outcome) = (Draws(seed), Outcome { jobs, done: 0, deaths: 0, seconds: 0 });
    let whole = |server: &Server| (0..jobs).all(|job| lock(&server.files).contains_key(&place(job)));
    while !whole(&server) {
        let next = (0..machines).min_by_key(|&number| acts[number].min(beats[number])).unwrap();
        let now = acts[next].min(beats[next]);
        assert!(now < 86_400_000, "it does not come to an end: {outcome:?}");
        server.clock.store(now, Relaxed);
        outcome.seconds = now / 1000;
        let at = &mut all[next];
        if beats[next] <= acts[next] {
            at.heart.beat();
            beats[next] += 15_000;
            continue;
        }
        if let Some((job, lease)) = at.work.take() {
            outcome.done += 1;
            if draws.below(100) < deaths_in_100 {
                // Its claims and its record stay, and another one comes.
                std::mem::forget(lease);
                outcome.deaths += 1;
                let fresh = machine(&server, machines + outcome.deaths, cache, lies);
                let Machine { worker, .. } = std::mem::replace(at, fresh);
                std::mem::forget(worker);
            } else {
                // As artifacts are: written under a private name, and renamed.
                let draft = PathBuf::from(format!("/store/drafts/{}.{job}", at.worker.id()));
                at.disk.create(&draft, &bytes(job)).unwrap();
                at.disk.rename(&draft, &place(job)).unwrap();
                drop(lease);
            }
        }
        let first = at.worker.lot(jobs);
        let mut order = (0..jobs).map(|job| (first + job) % jobs);
        let claimed = order.find_map(|job| {
            let name = format!("job-{job}");
            if at.disk.exists(&place(job)) || at.worker.seems_theirs(&name) {
                return None;
            }
            match at.worker.claim(&name) {
                ClaimResult::Mine(lease) => Some((job, lease)),
                ClaimResult::Theirs(_) => None,
            }
        });
        acts[next] = now + if claimed.is_some() { 20_000 + draws.below(20_000) } else { 10_000 };
        at.work = claimed;
    }
    for job in 0..jobs {
        let file = Arc::clone(&lock(&server.files)[&place(job)]);
        assert_eq!(lock(&file).0, bytes(job), "job {job}");
    }
    outcome
}

#[test]
fn where_everything_shows_at_once_nothing_is_done_twice() {
    let outcome = play(8, 200, 0, 0, 0, 1);
    assert_eq!(outcome.done, outcome.jobs, "{outcome:?}");
    // Eight at a time, half a minute each.
    assert!(outcome.seconds < 2 * 200 / 8 * 30, "{outcome:?}");
}

#[test]
fn on_a_network_that_caches_and_lies_nothing_is_lost_and_double_work_is_counted() {
    for seed in 1..=8 {
        let outcome = play(8, 200, 60, 5, 2, seed);
        println!("{outcome:?}");
        // What the dead had done, and what was done while it did not show that it was done.
        assert!(outcome.done - outcome.deaths <= 2 * outcome.jobs, "{outcome:?}");
        assert!(outcome.deaths > 0, "{outcome:?}");
    }
}

#[test]
fn what_the_dead_had_claimed_is_taken_over_when_their_records_stand_still() {
    let outcome = play(4, 40, 0, 0, 20, 3);
    assert!(outcome.deaths > 3 && outcome.done == outcome.jobs + outcome.deaths, "{outcome:?}");
}

/// Operations a second that a worker costs the server by its claims: where another one holds all that is left, and where it
/// works. docs/cluster.md has the figures.
#[test]
fn a_waiting_worker_costs_the_server_about_one_operation_a_second() {
    let server = Arc::new(Server::default());
    let [mut busy, mut idle] = [0, 1].map(|number| machine(&server, number, 0, 0));
    let names: Vec<String> = (0..300).map(|job| format!("job-{job}")).collect();
    let held: Vec<Lease> = names
        .iter()
        .map(|name| match busy.worker.claim(name) {
            ClaimResult::Mine(lease) => lease,
            ClaimResult::Theirs(_) => panic!("{name} is taken"),
        })
        .collect();
    let spent = |server: &Server| server.operations.load(Relaxed);
    let before = spent(&server);
    for second in 0..600 {
        server.clock.store(second * 1000, Relaxed);
        if second % 15 == 0 {
            busy.heart.beat();
            idle.heart.beat();
        }
        // As a worker looks that has waited for a while.
        if second % 10 == 0 {
            let asked = names.iter().filter(|name| !idle.worker.seems_theirs(name));
            asked.for_each(|name| assert!(matches!(idle.worker.claim(name), ClaimResult::Theirs(_))));
        }
    }
    let waiting = (spent(&server) - before) as f64 / 600.0;
    let before = spent(&server);
    drop(held);
    let given_back = (spent(&server) - before) as f64 / 300.0;
    server.clock.store(700_000, Relaxed);
    let before = spent(&server);
    let taken = names.iter().filter(|name| !idle.worker.seems_theirs(name));
    let taken = taken.filter(|name| matches!(idle.worker.claim(name), ClaimResult::Mine(_))).count();
    let claimed = (spent(&server) - before) as f64 / 300.0;
    assert_eq!(taken, 300);
    println!("waiting: {waiting:.2} operations a second; working: {:.2} for each chunk", claimed + given_back);
    assert!(waiting < 2.0, "{waiting}");
    assert!(claimed + given_back < 4.0, "{claimed} {given_back}");
}
