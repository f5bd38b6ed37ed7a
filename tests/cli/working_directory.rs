//! Tests for the locations of the store and the results when the program is called from another folder.

use super::*;

#[test]
fn store_is_found_from_another_working_directory() {
    let world = World::new();
    world.run_ok(&[]);
    let other_folder = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    let grid = world.path("grid.yaml");
    let (code, text) = run_in(&world, other_folder.path(), home.path(), &["plan", grid.to_str().unwrap()]);
    assert!(code == Some(0) && text.contains("9 complete, 0 to run"), "{text}");
    let (code, text) = run_in(&world, other_folder.path(), home.path(), &["run", grid.to_str().unwrap()]);
    assert!(code == Some(0) && text.contains("9 of 9 cells cached"), "{text}");
    for arguments in [&["status"][..], &["cache", "ls"]] {
        let (code, text) = run_in(&world, other_folder.path(), home.path(), arguments);
        assert!(code == Some(0), "{text}");
    }
    let (code, text) = run_in(&world, other_folder.path(), home.path(), &["report"]);
    assert!(code == Some(3) && text.contains("--results"), "{text}");
    let absolute_grid = std::fs::read_to_string(&grid).unwrap();
    let root = world.folder.path().display();
    let absolute_grid = absolute_grid.replace("path: ", &format!("path: {root}/"));
    std::fs::write(other_folder.path().join("own.yaml"), absolute_grid).unwrap();
    let (code, text) = run_in(&world, other_folder.path(), home.path(), &["plan", "own.yaml"]);
    assert!(code == Some(0) && text.contains("0 complete") && !home.path().join("ghostlab").exists(), "{text}");
    let begins = format!("creating a store in {}", home.path().join("ghostlab/store").display());
    let (code, text) = run_in(&world, other_folder.path(), home.path(), &["run", "own.yaml"]);
    assert!(code == Some(0) && text.contains(&begins), "{text}");
    let (code, text) = run_in(&world, other_folder.path(), home.path(), &["run", "own.yaml"]);
    assert!(code == Some(0) && text.contains("9 of 9 cells cached") && !text.contains(&begins), "{text}");
    let named = world
        .command(&["plan", "own.yaml"])
        .current_dir(other_folder.path())
        .env("GHOSTLAB_STORE", world.path("data/store"))
        .output();
    assert!(
        String::from_utf8_lossy(&named.unwrap().stdout).contains("9 complete"),
        "store keys depend on the location of the grid"
    );
    let (code, text) = run_in(&world, other_folder.path(), home.path(), &["plan", "owm.yaml"]);
    assert!(code == Some(3) && text.contains("did you mean `own.yaml`?"), "{text}");
    assert!(!other_folder.path().join("data").exists(), "a store was created in the current folder");
    // A `--store` that does not exist is an error.
    for arguments in [&["status", "--store", "data/stor"][..], &["cache", "ls", "--store", "data/stor"]] {
        let output = world.ghostlab(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && text.contains("did you mean `data/store`?"), "{text}");
    }
}

fn run_in(world: &World, other_folder: &Path, home: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = world.command(arguments);
    let output = command.current_dir(other_folder).env("XDG_DATA_HOME", home).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
