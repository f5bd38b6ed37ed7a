//! Leases on a simulated network file system ([`crate::simulated::network`]) in simulated time: changes by other
//! clients become visible late, successful links may report failure, and clocks differ. Results must be complete and
//! correct. Duplicate work is allowed and counted.
#![allow(clippy::disallowed_macros, reason = "prints a table")]

use super::*;
use crate::simulated::network::{Client, Network, Server};
use crate::tests::SCHEMA;

/// Worker on its own machine.
struct Machine {
    disk: Arc<Client>,
    worker: Worker,
    heartbeat: Heartbeat,
    work: Option<(usize, Lease)>,
}

fn start_machine(server: &Arc<Server>, number: usize, network: Network) -> Machine {
    let disk = Client::new(server, network, number);
    let gc_roots = Arc::new(GcRoots::new(Arc::<Client>::clone(&disk)));
    let worker =
        Worker::new(Path::new("/store"), SCHEMA, disk.process(), Arc::<Client>::clone(&disk), gc_roots).unwrap();
    Machine { heartbeat: worker.new_heartbeat(), disk, worker, work: None }
}

/// Statistics of a simulation.
#[derive(Debug)]
struct Outcome {
    jobs: usize,
    /// Number of jobs done, including duplicates.
    done: usize,
    deaths: usize,
    seconds: u64,
}

/// Deterministic pseudorandom number generator.
struct RandomDraws(u64);

impl RandomDraws {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }
}

/// Simulates `machines` workers doing `jobs` jobs of 20 to 40 s each. A worker dies in `deaths_in_100` percent of its
/// jobs and is replaced.
fn simulate(machines: usize, jobs: usize, network: Network, deaths_in_100: u64, seed: u64) -> Outcome {
    let server = Arc::new(Server::default());
    let mut all: Vec<Machine> = (0..machines).map(|number| start_machine(&server, number, network)).collect();
    // Times of each machine's next action and next heartbeat, in milliseconds.
    let (mut acts, mut beats): (Vec<u64>, Vec<u64>) = (vec![0; machines], vec![15_000; machines]);
    let mut draws = RandomDraws(seed);
    let mut outcome = Outcome { jobs, done: 0, deaths: 0, seconds: 0 };
    while !(0..jobs).all(|job| server.file(&done_path(job)).is_some()) {
        let next = (0..machines).min_by_key(|&number| acts[number].min(beats[number])).unwrap();
        let now = acts[next].min(beats[next]);
        assert!(now < 86_400_000, "the simulation does not end: {outcome:?}");
        server.set_clock(Duration::from_millis(now));
        outcome.seconds = now / 1000;
        let current = &mut all[next];
        if beats[next] <= acts[next] {
            current.heartbeat.beat();
            beats[next] += 15_000;
            continue;
        }
        if let Some((job, lease)) = current.work.take() {
            outcome.done += 1;
            if draws.below(100) < deaths_in_100 {
                // A dead worker leaves its leases and its record behind.
                std::mem::forget(lease);
                outcome.deaths += 1;
                let fresh = start_machine(&server, machines + outcome.deaths, network);
                let Machine { worker, .. } = std::mem::replace(current, fresh);
                std::mem::forget(worker);
            } else {
                // Like objects, results are written under a private name and then renamed.
                let draft = PathBuf::from(format!("/store/drafts/{}.{job}", current.worker.id()));
                current.disk.create(&draft, &result_bytes(job)).unwrap();
                // The rename may report failure, because its reply may be lost.
                current.disk.rename(&draft, &done_path(job)).ok();
                assert!(current.disk.exists(&done_path(job)));
                drop(lease);
            }
        }
        let first = current.worker.start_offset(jobs);
        let mut order = (0..jobs).map(|job| (first + job) % jobs);
        let leased = order.find_map(|job| {
            let name = format!("job-{job}");
            if current.disk.exists(&done_path(job)) || current.worker.is_listed_as_leased(&name) {
                return None;
            }
            match current.worker.lease(&name) {
                LeaseResult::Acquired(lease) => Some((job, lease)),
                LeaseResult::Contended(_) => None,
            }
        });
        acts[next] = now + if leased.is_some() { 20_000 + draws.below(20_000) } else { 10_000 };
        current.work = leased;
    }
    for job in 0..jobs {
        assert_eq!(server.file(&done_path(job)), Some(result_bytes(job)), "job {job}");
    }
    outcome
}

fn done_path(job: usize) -> PathBuf {
    PathBuf::from(format!("/store/done/{job}"))
}

fn result_bytes(job: usize) -> Vec<u8> {
    format!("result {job}").into_bytes()
}

#[test]
fn no_job_is_duplicated_on_a_consistent_network() {
    let outcome = simulate(8, 200, Network::default(), 0, 1);
    assert_eq!(outcome.done, outcome.jobs, "{outcome:?}");
    // Eight jobs run concurrently and take 30 s on average. Allow twice the ideal time.
    assert!(outcome.seconds < 2 * 200 / 8 * 30, "{outcome:?}");
}

#[test]
fn faulty_network_loses_no_job_and_causes_few_duplicates() {
    for seed in 1..=8 {
        let outcome = simulate(8, 200, Network { cache: 60, lies: 5 }, 2, seed);
        println!("{outcome:?}");
        // `done` includes the jobs of dead workers, and jobs repeated because their results were not visible yet.
        assert!(outcome.done - outcome.deaths <= 2 * outcome.jobs, "{outcome:?}");
        assert!(outcome.deaths > 0, "{outcome:?}");
    }
}

#[test]
fn leases_of_dead_processes_are_taken_over() {
    let outcome = simulate(4, 40, Network::default(), 20, 3);
    assert!(outcome.deaths > 3 && outcome.done == outcome.jobs + outcome.deaths, "{outcome:?}");
}

/// Counts the server operations for leases, per second while a worker waits and per job while it works.
#[test]
fn waiting_worker_needs_under_two_operations_per_second() {
    let server = Arc::new(Server::default());
    let [mut busy, mut idle] = [0, 1].map(|number| start_machine(&server, number, Network::default()));
    let names: Vec<String> = (0..300).map(|job| format!("job-{job}")).collect();
    let held: Vec<Lease> = names
        .iter()
        .map(|name| match busy.worker.lease(name) {
            LeaseResult::Acquired(lease) => lease,
            LeaseResult::Contended(_) => panic!("{name} is already leased"),
        })
        .collect();
    let before = server.operations();
    for second in 0..600 {
        server.set_clock(Duration::from_secs(second));
        if second % 15 == 0 {
            busy.heartbeat.beat();
            idle.heartbeat.beat();
        }
        // A worker that has waited for some time retries less often.
        if second % 10 == 0 {
            let unlisted = names.iter().filter(|name| !idle.worker.is_listed_as_leased(name));
            unlisted.for_each(|name| assert!(matches!(idle.worker.lease(name), LeaseResult::Contended(_))));
        }
    }
    let waiting = (server.operations() - before) as f64 / 600.0;
    let before = server.operations();
    drop(held);
    let releasing = (server.operations() - before) as f64 / 300.0;
    server.set_clock(Duration::from_secs(700));
    let before = server.operations();
    let taken = names.iter().filter(|name| !idle.worker.is_listed_as_leased(name));
    // Keep the leases until all are counted so that releases are not counted too.
    let taken = taken.filter_map(|name| match idle.worker.lease(name) {
        LeaseResult::Acquired(lease) => Some(lease),
        LeaseResult::Contended(_) => None,
    });
    let taken: Vec<Lease> = taken.collect();
    let leased = (server.operations() - before) as f64 / 300.0;
    assert_eq!(taken.len(), 300);
    println!("waiting: {waiting:.2} operations a second; working: {:.2} for each chunk", leased + releasing);
    assert!(waiting < 2.0, "{waiting}");
    assert!(leased + releasing < 4.0, "{leased} {releasing}");
}
