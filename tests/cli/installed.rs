//! Tests for an installed program that runs in an empty folder.

use super::*;

/// Installs the program in a new folder. Returns this folder and the path of the program.
#[cfg(unix)]
fn install_program() -> (tempfile::TempDir, PathBuf) {
    let prefix = tempfile::tempdir().unwrap();
    let program = prefix.path().join("bin/ghostlab");
    std::fs::create_dir(prefix.path().join("bin")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_ghostlab"), &program).unwrap();
    (prefix, program)
}

/// Runs an installed program in an empty folder. User data is kept in `home`.
#[cfg(unix)]
fn check_in_empty_folder(program: &Path, home: &Path) {
    let empty = tempfile::tempdir().unwrap();
    assert!(run_installed(program, empty.path(), home, &["plan", "figure3"]).contains("grid figure3"));
    assert!(run_installed(program, empty.path(), home, &["reproduce"]).contains("table2"));
    // Use a bundled model by its name. Results go to the current folder, and the store is created in the user's data
    // folder.
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/corpora/wiki-test.jsonl.gz");
    let arguments = ["score", "tiny-llama", "--windows", "1", "--length", "64", "--perplexity", text.to_str().unwrap()];
    assert!(run_installed(program, empty.path(), home, &arguments).contains("1 windows"));
    assert!(home.join("ghostlab/store/store.json").is_file() && !empty.path().join("data").exists());
    run_installed(
        program,
        empty.path(),
        home,
        &["init", Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/llama").to_str().unwrap()],
    );
    assert!(std::fs::read_to_string(empty.path().join("grid.yaml")).unwrap().contains("arc_easy"));
}

fn run_installed(program: &Path, current_dir: &Path, home: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.current_dir(current_dir).env_remove("GHOSTLAB_STORE").env_remove("GHOSTLAB_EXPERIMENTS");
    let output = command.env("XDG_DATA_HOME", home).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[cfg(unix)]
#[test]
fn installed_program_works_in_an_empty_folder() {
    let ((prefix, program), home) = (install_program(), tempfile::tempdir().unwrap());
    let share = prefix.path().join("share/ghostlab");
    std::fs::create_dir_all(share.join("data")).unwrap();
    for folder in ["experiments", "data/tiny"] {
        std::os::unix::fs::symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), share.join(folder)).unwrap();
    }
    check_in_empty_folder(&program, home.path());
    assert!(!share.join("data/store").exists() && !share.join("results").exists());
    let names = file_names(&home.path().join("ghostlab"));
    assert!(names.iter().all(|name| !name.starts_with("share")), "the experiments were unpacked again: {names:?}");
}

#[cfg(unix)]
#[test]
fn bare_program_unpacks_experiments_to_user_data_folder() {
    let ((_prefix, program), home) = (install_program(), tempfile::tempdir().unwrap());
    check_in_empty_folder(&program, home.path());
    let names = file_names(&home.path().join("ghostlab"));
    let [share] = names.iter().filter(|name| name.starts_with("share-")).collect::<Vec<_>>()[..] else {
        panic!("{names:?}");
    };
    let share = home.path().join("ghostlab").join(share);
    for name in ["experiments/table2.yaml", "data/tiny/qwen3/model.safetensors", "data/tiny/tasks/copa.jsonl.gz"] {
        let original = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
        assert!(std::fs::read(share.join(name)).unwrap() == original, "{name}");
    }
    assert!(!share.join("data/store").exists() && !share.join("results").exists());
}
