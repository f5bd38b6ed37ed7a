//! Tests that queued jobs run a copy of the program, so that rebuilding it does not affect them.

use super::*;

#[test]
fn rebuilt_program_does_not_affect_queued_jobs() {
    let alone = World::new();
    let world = World::new();
    alone.run_ok(&[]);
    let slurm = FakeSlurm::new(&world);
    let program = world.path("ghostlab");
    fs::copy(env!("CARGO_BIN_EXE_ghostlab"), &program).unwrap();
    let mut command = Command::new(&program);
    command.current_dir(world.folder.path()).args(["submit", "slurm", "grid.yaml"]);
    let output = slurm.with_fake_slurm(command).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    fs::write(&program, "another program").unwrap();
    for task in [Some("0"), None] {
        let output = run_job(&submission(&world), task);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    assert!(alone.tables().len() == 3 && alone.tables() == world.tables(), "the tables differ");
}

/// Sets the modification times of all files and folders under a folder to `hours` hours ago.
fn set_age(folder: &Path, hours: u64) {
    let then = std::time::SystemTime::now() - Duration::from_secs(3600 * hours);
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            set_age(&entry, hours);
        }
        fs::File::open(&entry).unwrap().set_modified(then).unwrap();
    }
}

#[test]
fn frozen_program_is_kept_while_a_job_may_run_it() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    let output = slurm.run(&world, &["submit", "slurm", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let programs = world.path("data/store/programs");
    // Add a program that belongs to no submission, and a folder that was not created by this program.
    let orphan = programs.join("ab".repeat(32));
    let theirs = programs.join("mine");
    for folder in [&orphan, &theirs] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("ghostlab"), "a program").unwrap();
    }
    assert_eq!(collect_garbage(&slurm, &world, &[]), 0, "new programs were collected");
    assert!(stdout(&slurm.run(&world, &["cache", "ls"])).contains("programs of submitted jobs: 2"));
    let id = submission(&world).file_name().unwrap().to_string_lossy().into_owned();
    let record: Value = serde_json::from_slice(&fs::read(submission(&world).join("submission.json")).unwrap()).unwrap();
    let queued = format!("42|a|PENDING|Dependency|ghostlab:{}:{id}\n", record["plan"].as_str().unwrap());
    set_age(&programs, 48);
    set_age(&submission(&world), 48);
    fs::write(slurm.0.join("squeue.out"), queued).unwrap();
    assert_eq!(collect_garbage(&slurm, &world, &["--kind", "scores"]), 0, "`--kind` collected programs");
    assert_eq!(collect_garbage(&slurm, &world, &["--older", "3"]), 0);
    assert_eq!(
        (collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()),
        (1.into(), 2),
        "the program of a queued report was collected"
    );
    assert!(!orphan.exists() && theirs.join("ghostlab").exists());
    // The queue does not answer, so the job may still be waiting. The program is kept.
    slurm.put("squeue", "exit 1");
    slurm.put("sacct", "exit 1");
    assert_eq!((collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()), (0.into(), 2));
    slurm.put("squeue", "exit 0");
    // A submission that cannot be read may need any program, so none is removed.
    let unread = world.path("data/store/submissions/other");
    fs::create_dir(&unread).unwrap();
    fs::write(unread.join("submission.json"), "{\"format\": 99}").unwrap();
    assert_eq!((collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()), (0.into(), 2));
    fs::remove_dir_all(&unread).unwrap();
    // A job that ended recently may be requeued, so its program is kept.
    fs::write(submission(&world).join("logs/41_0.log"), "done").unwrap();
    assert_eq!((collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()), (0.into(), 2));
    set_age(&programs, 48);
    set_age(&submission(&world), 48);
    assert_eq!((collect_garbage(&slurm, &world, &[]), fs::read_dir(&programs).unwrap().count()), (1.into(), 1));
    // A deleted program is copied again when a submission needs it.
    let output = slurm.run(&world, &["submit", "slurm", "grid.yaml", "--again"]);
    assert_eq!((output.status.code(), fs::read_dir(&programs).unwrap().count()), (Some(0), 2), "{}", stderr(&output));
}

fn collect_garbage(slurm: &FakeSlurm, world: &World, more: &[&str]) -> Value {
    let output = slurm.run(world, &[&["cache", "gc", "--yes", "--json"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_str::<Value>(&stdout(&output)).unwrap()["answer"]["programs"]["count"].clone()
}
