//! Tests for submission scripts and their options.

use super::*;

/// Lines that the submitted script must contain.
const SCRIPT_LINES: [&str; 16] = [
    "--array=0-2%3",
    "#SBATCH --requeue",
    "#SBATCH --signal=B:USR1@120",
    "--dependency=afterany:ARRAY",
    "#SBATCH --open-mode=append",
    " --partition=gpu ",
    " --time=2:00:00 ",
    " --nice=5 ",
    "#SBATCH --cpus-per-task=2",
    "#SBATCH --export=PATH",
    "#SBATCH --comment=ghostlab:",
    "#SBATCH --job-name=ghostlab-grid-",
    "module load x",
    "    exec /",
    "--stored",
    "--retries 1",
];

#[test]
fn submission_is_one_readable_script_without_secrets() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    world.write("slurm.yaml", "partition: gpu\ntime: 2:00:00\ncpus: 2\nretries: 1\nsetup: [module load x]\n");
    let arguments = [
        "submit",
        "slurm",
        "grid.yaml",
        "--workers",
        "3",
        "--profile-file",
        "slurm.yaml",
        "--dry-run",
        "--",
        "--nice=5",
    ];
    let output = slurm.run(&world, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let script = stdout(&output);
    for line in SCRIPT_LINES {
        assert!(script.contains(line), "`{line}` is not in\n{script}");
    }
    assert!(!script.contains("hf_very_secret") && !script.contains("HF_TOKEN"), "{script}");
    assert!(script.contains("#SBATCH --mem=") && !script.contains("--gres"), "{script}");
    assert_eq!(slurm.logged_calls("sbatch"), "", "the dry run submitted jobs");
    assert_eq!(fs::read_dir(world.path("data/store")).unwrap().count(), 0, "the dry run wrote files");
    assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
    let short = slurm.run(&world, &["submit", "slurm", "grid.yaml", "--dry-run", "--", "--time=2"]);
    assert!(
        stderr(&short).contains("warning: the time limit of") && stderr(&short).contains("or more"),
        "{}",
        stderr(&short)
    );
    assert_bash_reads(&script);
}

/// Asserts that bash finds no syntax errors in a script.
fn assert_bash_reads(script: &str) {
    let checked = Command::new("bash").args(["-n", "/dev/stdin"]).stdin(Stdio::piped()).spawn();
    let mut checked = checked.unwrap();
    std::io::Write::write_all(&mut checked.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(checked.wait().unwrap().success(), "bash rejects the script");
}

#[test]
fn submission_requests_a_gpu_with_enough_memory() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    // If the grid runs on a GPU, the script requests a GPU type that has enough memory for the largest backbone.
    world.write("slurm.yaml", "gpus:\n  - {name: big, memory: 80}\n  - {name: small, memory: 1}\n");
    let output = slurm.run(
        &world,
        &[
            "submit",
            "slurm",
            "grid.yaml",
            "--profile-file",
            "slurm.yaml",
            "--dry-run",
            "--device",
            "cuda",
            "--dtype",
            "bf16",
        ],
    );
    let script = stdout(&output);
    assert!(script.contains(" --gres=gpu:small:1 ") && script.contains("--device cuda"), "{script}{}", stderr(&output));
}

#[test]
fn submit_in_bf16_freezes_the_kernel_family() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    for (asked, frozen) in [("portable", "--kernels portable"), ("amx", "--kernels amx")] {
        let script = stdout(&run_submit(&slurm, &world, &["--dtype", "bf16", "--kernels", asked]));
        assert_eq!(script.matches(frozen).count(), 2, "worker and report of {asked}: {script}");
    }
    let output = run_submit(&slurm, &world, &["--dtype", "bf16"]);
    let script = stdout(&output);
    let family = ["portable", "amx"].map(|kernels| format!("--kernels {kernels}"));
    assert!(family.iter().any(|word| script.matches(word).count() == 2), "{script}");
    assert!(stderr(&output).contains("--kernels auto selected "), "{}", stderr(&output));
    assert!(
        !stdout(&run_submit(&slurm, &world, &[])).contains("--kernels"),
        "a kernel family was frozen although f32 has only one"
    );
}

#[test]
fn special_paths_reach_slurm_intact_or_are_rejected() {
    let alone = World::new();
    let world = World::new();
    alone.run_ok(&[]);
    let slurm = FakeSlurm::new(&world);
    let store = world.path("a b%j #'\"$(touch x)/store");
    let run = |store: &Path| {
        let store = store.display().to_string();
        slurm.run(&world, &["submit", "slurm", "grid.yaml", "--store", &store, "--", "--mail-user=a b"])
    };
    let output = run(&store);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let folder = submission_in(&store);
    let words = fs::read_to_string(slurm.0.join("sbatch.words")).unwrap();
    let logs = folder.join("logs").display().to_string().replace('%', "%%");
    for word in [format!("--output={logs}/%A_%a.log"), format!("--output={logs}/%j.log"), "--mail-user=a b".to_owned()]
    {
        assert!(words.lines().any(|line| line == word), "`{word}` is not in\n{words}");
    }
    for task in [Some("0"), None] {
        let output = run_job(&folder, task);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    assert!(alone.tables() == world.tables() && !world.path("x").exists());
    for (path, word) in [("a\nb", "a UTF-8 path on one line"), ("a\\b", "without `\\`")] {
        let submitted = slurm.logged_calls("sbatch");
        let output = run(&world.path(path));
        assert!(output.status.code() == Some(2) && stderr(&output).contains(word), "{}", stderr(&output));
        assert_eq!(slurm.logged_calls("sbatch"), submitted, "a rejected path was submitted");
    }
}

#[test]
fn conflicting_slurm_options_are_rejected_with_their_line() {
    let world = World::new();
    let slurm = FakeSlurm::new(&world);
    world.write("slurm.yaml", "time: 60\noptions:\n  - --exclude=node7\n  - --comm=mine\n");
    let profile = ["submit", "slurm", "grid.yaml", "--profile-file", "slurm.yaml"];
    let output = slurm.run(&world, &profile);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    for word in ["slurm.yaml, line 4", "`--comm=mine`", "`--comment`"] {
        assert!(stderr(&output).contains(word), "`{word}` is not in {}", stderr(&output));
    }
    let output = slurm.run(&world, &["submit", "slurm", "grid.yaml", "--", "--no-requeue"]);
    assert!(output.status.code() == Some(2) && stderr(&output).contains("`--no-requeue`"), "{}", stderr(&output));
    assert_eq!(slurm.logged_calls("sbatch"), "");
}
