//! Tests with input files that change during a run, are not regular files, or have unusual names.

use super::*;

/// Simulates another process that is tokenizing, and starts a run that hashes its inputs and waits for this process.
/// Then applies `change` to the inputs and lets the run continue.
#[cfg(unix)]
fn run_with_change_after_hashing(world: &World, change: impl FnOnce()) -> Output {
    let record = plant_remote_process(world, REMOTE_PROCESS, &["tokenising"]);
    let log = world.path("log");
    let mut command = world.command(&[&["run", "grid.yaml"], &SMALL[..]].concat());
    command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let child = command.spawn().unwrap();
    let began = Instant::now();
    while !fs::read_to_string(&log).unwrap().contains("waiting") {
        assert!(began.elapsed() < TIMEOUT, "the command does not wait");
        std::thread::sleep(Duration::from_millis(10));
    }
    change();
    // Release the lease. The run notices this sooner than it would notice the death of the process.
    fs::remove_file(world.path("data/store/claims/tokenising")).unwrap();
    fs::remove_file(record).unwrap();
    let output = wait_for_exit(child);
    Output { stderr: fs::read(log).unwrap(), ..output }
}

#[cfg(unix)]
#[test]
fn inputs_changed_during_a_run_are_rejected() {
    let inputs = ["backbone/model.safetensors", "backbone/tokenizer.json", "train.txt", "test.jsonl", "copa.jsonl"];
    let undisturbed = World::large();
    undisturbed.run_ok(&SMALL);
    for name in inputs {
        for settled in [false, true] {
            let world = World::large();
            let path = world.path(name);
            let bytes = fs::read(&path).unwrap();
            if settled {
                make_stale(&path);
            }
            let times = fs::metadata(&path).unwrap().modified().unwrap();
            let output = run_with_change_after_hashing(&world, || {
                // Replace the file with another one that has the same size and modification time.
                let mut other = bytes.clone();
                let last = other.len() - if name.ends_with(".safetensors") { 4 } else { 40 };
                other[last] = if other[last] == b'1' { b'2' } else { b'1' };
                let other_file = world.path("beside");
                fs::write(&other_file, other).unwrap();
                fs::File::open(&other_file).unwrap().set_modified(times).unwrap();
                fs::rename(other_file, &path).unwrap();
            });
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{name}: {log}");
            assert!(log.contains("an input changed after it was hashed") && log.contains(name), "{log}");
            assert!(!world.path("results/grid/results.csv").exists());
            // A run on the original bytes must give the original results. Otherwise, values computed from the changed
            // file were stored under the hash of the original one.
            fs::write(&path, &bytes).unwrap();
            world.run_ok(&SMALL);
            assert!(world.tables() == undisturbed.tables(), "{name}");
        }
    }
}

/// Memory limit at which weights are loaded on demand.
const LOW_MEMORY: [&str; 2] = ["--memory", "0.05"];

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_stored_if_weights_change_while_loading() {
    let undisturbed = World::large();
    undisturbed.run_ok(&SMALL);
    let arguments = [&SMALL[..], &LOW_MEMORY].concat();
    type Change<'a> = (&'a str, &'a dyn Fn(&Path));
    let changes: [Change<'_>; 3] = [
        ("in place", &flip_last_byte),
        ("cut off", &truncate_file),
        ("replaced", &|path: &Path| {
            let copy = path.with_extension("beside");
            fs::copy(path, &copy).unwrap();
            flip_last_byte(&copy);
            fs::rename(copy, path).unwrap();
        }),
    ];
    for (how, change) in changes {
        // Change the file during the calibration pass, at the first scores, or at later scores.
        for (point, settled) in [("activations:1", true), ("score:1", false), ("score:3", true)] {
            let world = World::large();
            let bytes = fs::read(weights_of(&world)).unwrap();
            if settled {
                make_stale(&weights_of(&world));
            }
            let mut child =
                spawn_with_fault(&world, &[&["run", "grid.yaml"], &arguments[..]].concat(), &format!("stop@{point}"));
            wait_until_stopped(&mut child);
            change(&weights_of(&world));
            send_signal(&child, "-CONT");
            let output = wait_for_exit(child);
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{how} at {point}: {log}");
            assert!(log.contains("model.safetensors"), "{how} at {point}: {log}");
            assert!(!world.path("results/grid/results.csv").exists());
            // A run on the original bytes must give the original results. Otherwise, values computed from the changed
            // file were stored under the hash of the original one.
            fs::write(weights_of(&world), &bytes).unwrap();
            world.run_ok(&arguments);
            assert!(world.tables() == undisturbed.tables(), "{how} at {point}");
        }
    }
}

fn weights_of(world: &World) -> std::path::PathBuf {
    world.path("backbone/model.safetensors")
}

/// Flips a bit near the end of a file in place, and restores its modification time.
fn flip_last_byte(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let time = fs::metadata(path).unwrap().modified().unwrap();
    let last = bytes.len() - 4;
    bytes[last] ^= 1;
    fs::write(path, bytes).unwrap();
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_stored_if_weights_change_during_fine_tuning() {
    let undisturbed = fine_tuned_world();
    undisturbed.run_ok(&[]);
    // The backbone is in memory, but each training run reads the teacher (the dense model) and the layers after the
    // cut again. Change the
    // file before the first or the second training run.
    for (point, settled) in [("activations:1", true), ("activations:1", false), ("train:5", true)] {
        let world = fine_tuned_world();
        let weights = world.path("backbone/model.safetensors");
        let bytes = fs::read(&weights).unwrap();
        if settled {
            make_stale(&weights);
        }
        let time = fs::metadata(&weights).unwrap().modified().unwrap();
        let mut child = spawn_with_fault(&world, &["run", "grid.yaml"], &format!("stop@{point}"));
        wait_until_stopped(&mut child);
        let mut other = bytes.clone();
        let other_file = world.path("beside");
        let last = other.len() - 4;
        other[last] ^= 1;
        fs::write(&other_file, other).unwrap();
        fs::File::open(&other_file).unwrap().set_modified(time).unwrap();
        fs::rename(&other_file, &weights).unwrap();
        send_signal(&child, "-CONT");
        let output = wait_for_exit(child);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{point}: {log}");
        assert!(log.contains("model.safetensors"), "{point}: {log}");
        fs::write(&weights, &bytes).unwrap();
        world.run_ok(&[]);
        assert!(world.tables() == undisturbed.tables(), "{point}");
    }
}

fn fine_tuned_recovery(name: &str) -> String {
    format!("{{name: {name}, finetune: {{sequences: 8, length: 32}}}}")
}

fn fine_tuned_world() -> World {
    let world = World::new();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let all = "recovery: [none, linearpatch-diag, linearpatch-rotate, ghosted]";
    assert!(grid.contains(all) && grid.contains("depth: [1, 2]"));
    let grid = grid.replace(
        all,
        &format!("recovery: [{}, {}]", fine_tuned_recovery("linearpatch-diag"), fine_tuned_recovery("ghosted")),
    );
    world.write("grid.yaml", grid.replace("depth: [1, 2]", "depth: 1"));
    world
}

#[cfg(target_os = "linux")]
fn wait_until_stopped(child: &mut Child) {
    let began = Instant::now();
    while process_state(child.id()) != Some('T') {
        assert!(child.try_wait().unwrap().is_none() && began.elapsed() < TIMEOUT, "the command does not stop");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn process_state(id: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().unwrap_or_default().chars().next()
}

#[cfg(unix)]
#[test]
fn pipe_instead_of_an_input_is_rejected_with_its_name() {
    for name in ["grid.yaml", "backbone/model.safetensors", "backbone/tokenizer.json", "train.txt", "copa.jsonl"] {
        let world = World::large();
        fs::remove_file(world.path(name)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(world.path(name)).status().unwrap().success());
        let (code, log) = run_with_fault(&world, &[], "");
        assert!(code == Some(2) || code == Some(3), "{name}: {log}");
        assert!(log.contains(name.rsplit('/').next().unwrap()) || log.contains("the backbone has no weights"), "{log}");
    }
}

#[test]
fn gc_during_a_run_removes_none_of_its_objects() {
    let world = World::large();
    let undisturbed = World::large();
    undisturbed.run_ok(&[]);
    let mut run = spawn_with_fault(&world, &["run", "grid.yaml"], "");
    let mut rounds = 0;
    while run.try_wait().unwrap().is_none() {
        for kind in ["tokens", "activations", "selection", "operator", "scores"] {
            let output = world.ghostlab(&["cache", "gc", "--kind", kind, "--yes"]);
            // In the first round, the store may not exist yet.
            assert!(output.status.success() || rounds == 0, "{}", String::from_utf8_lossy(&output.stderr));
        }
        rounds += 1;
    }
    let output = run.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(!log.contains("damaged") && !log.contains("missing from the store"), "{log}");
    assert!(rounds > 1 && world.tables() == undisturbed.tables());
    // The last round may have deleted scores, so recreate them. No process is running now, so nothing protects them
    // from deletion.
    world.run_ok(&[]);
    let output = stdout(&world.ghostlab(&["cache", "gc", "--kind", "scores", "--yes"]));
    assert!(output.contains("deleted"), "{output}");
    assert!(!stage_exists(&world, "scores"));
}

#[test]
fn two_names_of_the_same_backbone_share_work() {
    let world = World::large();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("tiny: {path: backbone}", "tiny: {path: backbone}\n  same: {path: ./backbone}");
    world.write("grid.yaml", grid.replace("backbone: [tiny]", "backbone: [tiny, same]"));
    let log = world.run_ok(&["--jobs", "2", "--memory", "16"]);
    assert!(!log.contains("damaged"), "{log}");
    let rows = common::world::read_rows(&world.path("results/grid/results.csv"));
    assert_eq!(model_rows(&rows, "tiny").len(), 31);
    assert_eq!(first_three(model_rows(&rows, "tiny")), first_three(model_rows(&rows, "same")));
}

fn model_rows(rows: &[Vec<String>], name: &str) -> Vec<Vec<String>> {
    let matching = rows.iter().filter(|row| row[0] == name);
    matching.map(|row| row[1..].iter().filter(|cell| cell.parse::<f64>().is_ok()).cloned().collect()).collect()
}

fn first_three(rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    rows.into_iter().map(|row| row[..3].to_vec()).collect::<Vec<_>>()
}

#[cfg(target_os = "linux")]
#[test]
fn grid_with_non_utf8_path_runs() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let name = Path::new(std::ffi::OsStr::from_bytes(b"gr\xffd.yaml"));
    fs::rename(world.path("grid.yaml"), world.folder.path().join(name)).unwrap();
    let output = world.command(&["run"]).arg(name).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(0) && !log.contains("panicked"), "{log}");
    assert!(stdout(&world.ghostlab(&["status"])).contains("complete"));
}

#[test]
fn excessive_thread_count_is_capped() {
    let world = World::new();
    let began = Instant::now();
    let (code, log) = run_with_fault(&world, &["--threads", "4096"], "");
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("--threads 4096 exceeds the maximum") && began.elapsed() < TIMEOUT, "{log}");
}
